//! An account of memory whose amount a store, a server or a user decides. A failed allocation is an error of one
//! request and does not end the program, large scratch buffers are freed after use, and all memory except chunks counts
//! against one [budget](take). The module does not know what the memory holds.
//!
//! **Invariant: no memory of an externally decided size is allocated before it is counted.** Decoded and encoded chunks
//! count in the cache, whose bound the user sets. Everything else (documents, their parsed form, generated headers and
//! `.zmetadata`, drafts, the directory of an archive) needs a [`Grant`], held as long as the memory lives. Chunks and
//! grants together stay within the cache's bound plus [`RESERVE`] bytes. The rest of the 64 MiB that the documentation
//! promises is for threads, replies and the allocator.

use crate::error::{Error, Kind, Result};
use rustix::mm::Advice;
use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Maximum size in bytes of a scratch buffer that a thread keeps. Larger buffers would add up over threads.
const MAX_SCRATCH: usize = 4 << 20;

/// Minimum size in bytes of blocks that the allocator returns to the system as soon as they are freed.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 256 << 10;

/// Number of granted bytes that do not reduce the cache.
pub const RESERVE: usize = 40 << 20;

/// Minimum size in bytes of a new buffer whose pages are provided at once.
const MIN_POPULATED: usize = 128 << 10;

/// Default bound of the cache in bytes, for programs that set none.
const DEFAULT_BOUND: usize = 512 << 20;

/// Maximum time that a request waits for memory that other requests hold.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Minimum size in bytes of a returned grant after which the allocator returns unused memory of small blocks to the
/// system, which takes a few milliseconds.
const MIN_TRIM: usize = 1 << 20;

static BUDGET: Budget = Budget {
    bound: AtomicUsize::new(DEFAULT_BOUND),
    used: Mutex::new(0),
    freed: Condvar::new(),
    owners: Mutex::new(Vec::new()),
};

/// The account of memory that is not chunks.
struct Budget {
    /// The bound of the cache in bytes.
    bound: AtomicUsize,
    /// The granted bytes. No other lock is taken while this one is held.
    used: Mutex<usize>,
    /// Notified when a grant is returned.
    freed: Condvar,
    /// The registered owners. The lock is not held while an owner is called.
    owners: Mutex<Vec<Weak<dyn Reclaim>>>,
}

/// An owner of memory that it can free on request. The caller may hold locks, so neither method may wait for a lock
/// under which memory is granted.
pub trait Reclaim: Send + Sync {
    /// Frees granted memory that is not in use, because a request needs it.
    fn reclaim(&self) {}

    /// Frees memory that is not granted, such as cached chunks, because [`above_reserve`] has increased.
    fn shrink(&self) {}
}

/// Permission to allocate a number of bytes, which is returned on drop. The owner of the memory also owns the grant,
/// and drops it last.
#[derive(Debug, Default)]
pub struct Grant {
    bytes: usize,
}

/// Sets the bound of the cache in bytes, on which the budget depends.
pub fn set_cache_bound(bound: usize) {
    BUDGET.bound.store(bound, Ordering::Relaxed);
}

/// Returns the maximum of all grants together in bytes. It leaves half of the cache's bound to chunks.
pub fn limit() -> usize {
    RESERVE + BUDGET.bound.load(Ordering::Relaxed) / 2
}

/// Returns the number of granted bytes beyond [`RESERVE`]. The cache must be smaller than its bound by so many bytes.
pub fn above_reserve() -> usize {
    lock(&BUDGET.used).saturating_sub(RESERVE)
}

/// Returns the number of bytes of [`RESERVE`] that are not granted. Chunks may take them beyond the cache's bound.
pub fn unused_reserve() -> usize {
    RESERVE.saturating_sub(*lock(&BUDGET.used))
}

/// Returns the maximum memory in bytes for one chunk, with everything that decoding or encoding it needs.
pub fn available_for_chunk() -> usize {
    BUDGET.bound.load(Ordering::Relaxed).saturating_add(RESERVE).saturating_sub(*lock(&BUDGET.used))
}

/// Checks that there can be memory for a chunk that needs `bytes`.
///
/// # Errors
///
/// ENOMEM if `bytes` exceeds [`available_for_chunk`].
pub fn check_chunk(bytes: usize) -> Result<()> {
    let left = available_for_chunk();
    if bytes <= left {
        return Ok(());
    }
    let [bytes, left] = [bytes.div_ceil(1 << 20), left >> 20];
    let why = format!("a chunk needs {bytes} MiB of memory, more than {left}: mount with a larger --cache-size");
    Err(Error::new(Kind::System(libc::ENOMEM), why))
}

/// Registers an owner of memory. Its methods are called when memory is short.
pub fn register(owner: &Arc<impl Reclaim + 'static>) {
    let weak: Weak<dyn Reclaim> = Arc::downgrade(&(owner.clone() as Arc<dyn Reclaim>));
    lock(&BUDGET.owners).push(weak);
}

/// Grants `bytes`. If there is not enough memory, waits until other requests have returned theirs.
///
/// # Errors
///
/// [`Kind::Damaged`] if there can never be so much memory, ENOMEM if there is not enough for ten seconds.
pub fn take(bytes: usize) -> Result<Grant> {
    take_within(bytes, MAX_WAIT)
}

/// Grants `bytes` as [`take`] does, but waits for at most `max_wait`.
///
/// # Errors
///
/// The errors of [`take`].
pub fn take_within(bytes: usize, max_wait: Duration) -> Result<Grant> {
    let mut grant = Grant::default();
    grant.grow_within(bytes, max_wait)?;
    Ok(grant)
}

/// Checks that a quarter of [`limit`] is free. Requests that will hold memory for long, such as opening a file, must
/// leave this quarter to requests that need memory for a moment.
///
/// # Errors
///
/// ENOMEM if less is free.
pub fn check_available() -> Result<()> {
    let has_spare = || *lock(&BUDGET.used) <= limit() / 4 * 3;
    if !has_spare() {
        owners().iter().for_each(|owner| owner.reclaim());
        if !has_spare() {
            let why = "open files hold the memory for documents: close some, or mount with a larger --cache-size";
            return Err(Error::system(libc::ENOMEM).context(why));
        }
    }
    Ok(())
}

/// Returns the error for a grant of `bytes`, which exceeds [`limit`].
pub fn too_large(bytes: usize) -> Error {
    let limit = limit() >> 20;
    let why =
        format!("needs {} MiB of memory, more than {limit}: mount with a larger --cache-size", bytes.div_ceil(1 << 20));
    Error::new(Kind::Damaged, why)
}

impl Grant {
    /// Returns the granted bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the grant `more` bytes larger. It does not wait, since two requests that wait for each other's memory
    /// would never end.
    ///
    /// # Errors
    ///
    /// The errors of [`take`].
    pub fn grow(&mut self, more: usize) -> Result<()> {
        self.grow_within(more, Duration::ZERO)
    }

    /// Joins two grants.
    pub fn and(mut self, mut other: Grant) -> Grant {
        self.bytes += std::mem::take(&mut other.bytes);
        self
    }

    /// Gives all but `bytes` of the grant back.
    pub fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        give_back(freed);
    }

    fn grow_within(&mut self, more: usize, max_wait: Duration) -> Result<()> {
        let (limit, begun) = (limit(), Instant::now());
        if self.bytes.saturating_add(more) > limit {
            return Err(too_large(self.bytes.saturating_add(more)));
        }
        let mut asked = false;
        loop {
            let mut used = lock(&BUDGET.used);
            if *used + more <= limit {
                *used += more;
                self.bytes += more;
                if *used > RESERVE {
                    drop(used);
                    owners().iter().for_each(|owner| owner.shrink());
                }
                return Ok(());
            }
            let left = max_wait.saturating_sub(begun.elapsed());
            if !asked {
                drop(used);
                owners().iter().for_each(|owner| owner.reclaim());
                asked = true;
            } else if left.is_zero() {
                return Err(Error::system(libc::ENOMEM).context("other requests hold the memory for documents"));
            } else {
                drop(BUDGET.freed.wait_timeout(used, left));
                asked = false;
            }
        }
    }
}

/// A grant shared by the copies of a value. Shared grants compare equal, so that they do not affect the comparison of
/// their owners.
#[derive(Clone, Debug, Default)]
pub struct SharedGrant(#[expect(dead_code, reason = "the grant is only held")] Arc<Grant>);

impl From<Grant> for SharedGrant {
    fn from(grant: Grant) -> Self {
        SharedGrant(Arc::new(grant))
    }
}

impl PartialEq for SharedGrant {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        give_back(self.bytes);
    }
}

/// Returns bytes to the budget.
fn give_back(bytes: usize) {
    if bytes == 0 {
        return;
    }
    *lock(&BUDGET.used) -= bytes;
    BUDGET.freed.notify_all();
    #[cfg(target_env = "gnu")]
    if bytes >= MIN_TRIM {
        // SAFETY: the call takes a number alone.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Returns the registered owners that still exist.
fn owners() -> Vec<Arc<dyn Reclaim>> {
    let mut owners = lock(&BUDGET.owners);
    owners.retain(|owner| owner.strong_count() > 0);
    owners.iter().filter_map(Weak::upgrade).collect()
}

/// Returns `len` zero bytes. A large block comes from the system, so parts that are never written take no memory.
///
/// # Errors
///
/// ENOMEM.
pub fn zeroed(len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<u8>(len).map_err(|_| no_room(len))?;
    // SAFETY: the layout has a size above zero.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(no_room(len));
    }
    // SAFETY: `start` has just been allocated by the global allocator for `len` bytes of alignment 1, all of them
    // initialized.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}

/// Gives `buffer` the length `len`, with unspecified contents.
///
/// # Errors
///
/// ENOMEM.
pub fn resize(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    if buffer.capacity() < len {
        // frees the old buffer first, since its contents are not needed
        *buffer = Vec::new();
        *buffer = zeroed(len)?;
    } else {
        buffer.resize(len, 0);
    }
    Ok(())
}

/// Gives `buffer` the length `len`, with unspecified contents, for a caller that will write every byte. The kernel
/// provides the pages of a new buffer in one call, in two thirds of the time that page faults take.
///
/// # Errors
///
/// ENOMEM.
pub fn resize_populated(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    let is_new = buffer.capacity() < len;
    resize(buffer, len)?;
    // the allocator reuses small blocks, whose pages are present
    if is_new && len >= MIN_POPULATED {
        populate(buffer);
    }
    Ok(())
}

/// Makes the kernel provide the pages that lie wholly in `buffer`.
pub fn populate(buffer: &mut [u8]) {
    let page = rustix::param::page_size();
    let start = buffer.as_ptr().align_offset(page).min(buffer.len());
    let len = (buffer.len() - start) / page * page;
    // SAFETY: the range lies in `buffer`, which this function borrows alone, and the call changes no content.
    let done = unsafe { rustix::mm::madvise(buffer[start..].as_mut_ptr().cast(), len, Advice::LinuxPopulateWrite) };
    // Linux before 5.14 doesn't know the advice: the pages come one by one when they are written
    let _ = done;
}

/// Clears `buffer` and reserves `len` bytes in it.
///
/// # Errors
///
/// ENOMEM.
pub fn reserve(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    buffer.clear();
    // exactly, since a kept buffer would keep any excess, too
    buffer.try_reserve_exact(len).map_err(|_| no_room(len))
}

/// Makes the allocator return large blocks to the system when they are freed. Otherwise each thread would keep freed
/// blocks, and the process would use much more memory than is counted. The program calls this when it starts.
pub fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes numbers alone.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Clears a scratch buffer, and frees its memory if it is large.
pub fn release(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > MAX_SCRATCH {
        *buffer = Vec::new();
    }
}

/// Returns the error for an allocation that failed.
fn no_room(len: usize) -> Error {
    Error::system(libc::ENOMEM).context(format!("{len} bytes"))
}

/// Locks a mutex, even if another holder has panicked: every holder in this crate keeps the data valid at all times.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_allocations_are_errors() {
        assert_eq!(zeroed(usize::MAX / 2).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(reserve(&mut Vec::new(), usize::MAX / 2).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(zeroed(3).unwrap(), [0; 3]);
        assert!(zeroed(0).unwrap().is_empty());
    }

    struct CachedGrant(Mutex<Option<Grant>>);

    impl Reclaim for CachedGrant {
        fn reclaim(&self) {
            lock(&self.0).take();
        }
    }

    #[test]
    fn grants_stay_within_the_limit() {
        // leaves memory for the grants of other tests in this process
        let most = limit() - (32 << 20);
        assert_eq!(take(limit() + 1).unwrap_err().kind(), Kind::Damaged);
        let kept = Arc::new(CachedGrant(Mutex::new(Some(take(most).unwrap()))));
        register(&kept);
        let mut first = take(most).unwrap();
        assert!(lock(&kept.0).is_none(), "unused memory is reclaimed");
        assert_eq!(take(0).unwrap().grow(most).unwrap_err().errno(), libc::ENOMEM);
        let waiting = std::thread::spawn(move || take(most).map(|grant| grant.bytes()));
        std::thread::sleep(Duration::from_millis(20));
        first.shrink_to(0);
        assert_eq!(waiting.join().unwrap().unwrap(), most);
        assert_eq!(first.bytes(), 0);
    }

    #[test]
    fn large_scratch_buffers_are_freed() {
        let (mut small, mut large) = (zeroed(1000).unwrap(), zeroed(MAX_SCRATCH + 1).unwrap());
        release(&mut small);
        release(&mut large);
        assert_eq!((small.capacity(), large.capacity()), (1000, 0));
        resize(&mut small, 10).unwrap();
        assert_eq!((small.len(), small.capacity()), (10, 1000));
    }

    #[test]
    fn all_pages_of_a_populated_buffer_are_present() {
        for len in [MIN_POPULATED, MIN_POPULATED + 1, 10 * MIN_POPULATED - 1] {
            let mut buffer = vec![7; 10];
            resize_populated(&mut buffer, len).unwrap();
            assert!(buffer.len() == len && buffer.iter().all(|&byte| byte == 0));
            buffer.fill(1);
            resize_populated(&mut buffer, len - 1).unwrap();
            assert!(
                buffer.len() == len - 1 && buffer.iter().all(|&byte| byte == 1),
                "the contents of a buffer in use stay"
            );
        }
        assert_eq!(resize_populated(&mut Vec::new(), usize::MAX / 2).unwrap_err().errno(), libc::ENOMEM);
    }
}
