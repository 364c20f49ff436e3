//! Memory whose amount a store, a server or a user decides. An allocation that fails is an error of one request, not
//! the end of the program; scratch memory that grew large is given back; and what is not a chunk counts against one
//! [budget](take). It knows nothing of what is in the memory.
//!
//! **Invariant: nothing of a size that comes from outside is allocated before it is counted.** Decoded and encoded
//! chunks count in the cache, whose bound the user gives. Everything else (documents, their parsed form, generated
//! headers and `.zmetadata`, drafts, the directory of an archive) takes a [`Grant`] first, and holds it for as long as
//! the memory lives. Both together stay within the cache's bound and [`RESERVE`] bytes; the rest of the 64 MiB that
//! README.md promises is for threads, replies and the allocator.

use crate::error::{Error, Kind, Result};
use std::alloc::{Layout, alloc_zeroed};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Scratch buffers up to this size are kept for the next use, in bytes. Larger ones would sum up over threads.
const KEPT: usize = 4 << 20;

/// Blocks from this size on are given back when they are freed, in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 256 << 10;

/// Bytes of grants that the cache of chunks need not make room for.
pub const RESERVE: usize = 40 << 20;

/// The bound of the cache where the program sets none, in bytes.
const DEFAULT_BOUND: usize = 512 << 20;

/// How long a request waits for memory that other requests hold.
const PATIENCE: Duration = Duration::from_secs(10);

/// Freed grants from this size on make the allocator return what it holds of many small blocks, in bytes. It takes a
/// few milliseconds.
const TRIMMED: usize = 1 << 20;

static BUDGET: Budget = Budget {
    bound: AtomicUsize::new(DEFAULT_BOUND),
    used: Mutex::new(0),
    freed: Condvar::new(),
    keepers: Mutex::new(Vec::new()),
};

/// The memory of the process that is not chunks.
struct Budget {
    /// The bound of the cache of chunks.
    bound: AtomicUsize,
    /// Protects the bytes granted. No other lock is taken while it is held.
    used: Mutex<usize>,
    freed: Condvar,
    /// Protects the list. It is not held while a keeper is asked.
    keepers: Mutex<Vec<Weak<dyn Reclaim>>>,
}

/// Something that keeps memory for later use. The caller may hold locks of its own, so neither method may wait for a
/// lock under which memory is granted.
pub trait Reclaim: Send + Sync {
    /// Drops what is granted and not in use now: a request needs the memory.
    fn reclaim(&self) {}

    /// Drops what counts elsewhere, so that [`above_reserve`] bytes fit beside it.
    fn shrink(&self) {}
}

/// Permission for a number of bytes, returned when it is dropped. Whatever owns the memory owns the grant, and drops it
/// last.
#[derive(Debug, Default)]
pub struct Grant {
    bytes: usize,
}

/// Sets the bound of the cache, with which the budget grows.
pub fn set_cache_bound(bound: usize) {
    BUDGET.bound.store(bound, Ordering::Relaxed);
}

/// The most bytes that all grants may have together. Half of the cache's bound may be chunks at any time.
pub fn limit() -> usize {
    RESERVE + BUDGET.bound.load(Ordering::Relaxed) / 2
}

/// Bytes of grants for which the cache must make room.
pub fn above_reserve() -> usize {
    lock(&BUDGET.used).saturating_sub(RESERVE)
}

/// Returns the bytes that chunks may take beyond the cache's bound now: what is left of [`RESERVE`].
pub fn unused_reserve() -> usize {
    RESERVE.saturating_sub(*lock(&BUDGET.used))
}

/// Bytes that one chunk may take at most, with all that decoding or encoding it needs, beside what is granted now.
pub fn available_for_chunk() -> usize {
    BUDGET.bound.load(Ordering::Relaxed).saturating_add(RESERVE).saturating_sub(*lock(&BUDGET.used))
}

/// An error, of the system, if a chunk that needs `bytes` can't be had.
pub fn check_chunk(bytes: usize) -> Result<()> {
    let left = available_for_chunk();
    if bytes <= left {
        return Ok(());
    }
    let [bytes, left] = [bytes.div_ceil(1 << 20), left >> 20];
    let why = format!("a chunk needs {bytes} MiB of memory, more than {left}: mount with a larger --cache-size");
    Err(Error::new(Kind::System(libc::ENOMEM), why))
}

/// Has `keeper` asked for memory when there is not enough.
pub fn register(keeper: &Arc<impl Reclaim + 'static>) {
    let weak: Weak<dyn Reclaim> = Arc::downgrade(&(keeper.clone() as Arc<dyn Reclaim>));
    lock(&BUDGET.keepers).push(weak);
}

/// Grants `bytes`, after other requests have returned theirs if need be.
///
/// # Errors
///
/// [`Kind::Damaged`] if there can never be so much, ENOMEM if there is not within ten seconds.
pub fn take(bytes: usize) -> Result<Grant> {
    let mut grant = Grant::default();
    grant.grow_within(bytes, PATIENCE)?;
    Ok(grant)
}

/// An error, ENOMEM, if what is held for long takes more than three quarters of the memory: who opens, writes or keeps
/// something must leave the rest to requests that need memory for a moment.
pub fn check_available() -> Result<()> {
    let has_spare = || *lock(&BUDGET.used) <= limit() / 4 * 3;
    if !has_spare() {
        keepers().iter().for_each(|keeper| keeper.reclaim());
        if !has_spare() {
            let why = "open files hold the memory for documents: close some, or mount with a larger --cache-size";
            return Err(Error::system(libc::ENOMEM).context(why));
        }
    }
    Ok(())
}

/// The error for what needs more memory than there can be.
pub fn too_large(bytes: usize) -> Error {
    let limit = limit() >> 20;
    let why =
        format!("needs {} MiB of memory, more than {limit}: mount with a larger --cache-size", bytes.div_ceil(1 << 20));
    Error::new(Kind::Damaged, why)
}

impl Grant {
    /// The bytes granted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the grant `more` bytes larger. It waits for nobody, since two who wait for each other's memory would wait
    /// for ever.
    ///
    /// # Errors
    ///
    /// As of [`take`].
    pub fn grow(&mut self, more: usize) -> Result<()> {
        self.grow_within(more, Duration::ZERO)
    }

    /// Both grants in one.
    pub fn and(mut self, mut other: Grant) -> Grant {
        self.bytes += std::mem::take(&mut other.bytes);
        self
    }

    /// Returns all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        give_back(freed);
    }

    fn grow_within(&mut self, more: usize, patience: Duration) -> Result<()> {
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
                    keepers().iter().for_each(|keeper| keeper.shrink());
                }
                return Ok(());
            }
            let left = patience.saturating_sub(begun.elapsed());
            if !asked {
                drop(used);
                keepers().iter().for_each(|keeper| keeper.reclaim());
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

/// A grant that copies share: of what is copied rarely, and a little at a time. All are equal, since they say nothing
/// of what they count.
#[derive(Clone, Debug, Default)]
pub struct SharedGrant(#[expect(dead_code, reason = "it is held, not looked at")] Arc<Grant>);

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

fn give_back(bytes: usize) {
    if bytes == 0 {
        return;
    }
    *lock(&BUDGET.used) -= bytes;
    BUDGET.freed.notify_all();
    #[cfg(target_env = "gnu")]
    if bytes >= TRIMMED {
        // SAFETY: the call takes a number alone.
        unsafe { libc::malloc_trim(0) };
    }
}

fn keepers() -> Vec<Arc<dyn Reclaim>> {
    let mut keepers = lock(&BUDGET.keepers);
    keepers.retain(|keeper| keeper.strong_count() > 0);
    keepers.iter().filter_map(Weak::upgrade).collect()
}

/// `len` zero bytes. The memory is fresh from the system where it is large, so that what is never written costs
/// nothing.
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
    // SAFETY: `start` was allocated just now by the global allocator with room for `len` bytes of alignment 1, all of
    // them initialised.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}

/// Makes `buffer` `len` bytes long; what is in it doesn't matter before or after.
pub fn resize(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    if buffer.capacity() < len {
        // nothing of the old buffer is needed: two at a time would be wasted
        *buffer = Vec::new();
        *buffer = zeroed(len)?;
    } else {
        buffer.resize(len, 0);
    }
    Ok(())
}

/// Makes room for `len` bytes in an empty `buffer`.
pub fn reserve(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    buffer.clear();
    // not more than that: what is kept should be what is needed
    buffer.try_reserve_exact(len).map_err(|_| no_room(len))
}

/// Has the allocator give large blocks back to the system when they are freed: else each thread keeps what it has
/// freed, and the memory in use is much more than what is counted. To be called when the program starts.
pub fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes numbers alone.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Empties a buffer that is kept between uses, and gives its memory back if there is much of it.
pub fn release(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT {
        *buffer = Vec::new();
    }
}

fn no_room(len: usize) -> Error {
    Error::system(libc::ENOMEM).context(format!("{len} bytes"))
}

/// Locks a mutex. After a panic of another holder its data is still what that panic left: every holder keeps it valid
/// at all times.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_allocated_is_an_error() {
        assert_eq!(zeroed(usize::MAX / 2).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(reserve(&mut Vec::new(), usize::MAX / 2).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(zeroed(3).unwrap(), [0; 3]);
        assert!(zeroed(0).unwrap().is_empty());
    }

    struct Kept(Mutex<Option<Grant>>);

    impl Reclaim for Kept {
        fn reclaim(&self) {
            lock(&self.0).take();
        }
    }

    #[test]
    fn grants_stay_within_the_limit() {
        // other tests of this process have grants, too
        let most = limit() - (32 << 20);
        assert_eq!(take(limit() + 1).unwrap_err().kind(), Kind::Damaged);
        let kept = Arc::new(Kept(Mutex::new(Some(take(most).unwrap()))));
        register(&kept);
        let mut first = take(most).unwrap();
        assert!(lock(&kept.0).is_none(), "what was only kept gives way");
        assert_eq!(take(0).unwrap().grow(most).unwrap_err().errno(), libc::ENOMEM);
        let waiting = std::thread::spawn(move || take(most).map(|grant| grant.bytes()));
        std::thread::sleep(Duration::from_millis(20));
        first.shrink_to(0);
        assert_eq!(waiting.join().unwrap().unwrap(), most);
        assert_eq!(first.bytes(), 0);
    }

    #[test]
    fn large_scratch_is_given_back() {
        let (mut small, mut large) = (zeroed(1000).unwrap(), zeroed(KEPT + 1).unwrap());
        release(&mut small);
        release(&mut large);
        assert_eq!((small.capacity(), large.capacity()), (1000, 0));
        resize(&mut small, 10).unwrap();
        assert_eq!((small.len(), small.capacity()), (10, 1000));
    }
}
