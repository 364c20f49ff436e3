//! An account of memory whose amount a store, a server or a user decides. A failed allocation is an
//! error of one request and does not end the program, large scratch buffers are freed after use,
//! and all memory except chunks counts against one [budget](take). The module does not know what
//! the memory holds.
//!
//! **Invariant: no memory of an externally decided size is allocated before it is counted.**
//! Decoded and encoded chunks count in the cache, whose bound the user sets. Everything else
//! (documents, their parsed form, generated headers and `.zmetadata`, drafts, the directory of an
//! archive) needs a [`Grant`], held as long as the memory lives. Chunks and grants together stay
//! within the cache's bound plus [`RESERVE`] bytes. The rest of the 64 MiB that the documentation
//! promises is for threads, replies and the allocator.
//!
//! **No request waits for itself.** Each thread knows how much the request that it
//! [serves](begin_request) holds. A request waits only if the others that hold memory, and do not
//! wait themselves, hold enough. No request waits for memory of the [store itself](end_opening).

mod buffers;

pub use buffers::{release, reserve, resize, resize_populated, zeroed};

use crate::error::{Error, Kind, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Minimum size in bytes of blocks of C libraries that are returned to the system as soon as they
/// are freed. Codecs free smaller ones after each chunk and take them again at the next one.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;

/// Number of granted bytes that do not reduce the cache.
pub const RESERVE: usize = 40 << 20;

/// Default bound of the cache in bytes, for programs that set none.
const DEFAULT_BOUND: usize = 512 << 20;

/// Maximum time that a request waits for memory that other requests hold.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Minimum size in bytes of a returned grant after which the allocator returns unused memory of
/// small blocks to the system, which takes a few milliseconds.
const MIN_TRIM: usize = 1 << 20;

static BUDGET: Budget = Budget {
    bound: AtomicUsize::new(DEFAULT_BOUND),
    used: Mutex::new(Used {
        granted: 0,
        waiting: 0,
        by_waiting: 0,
        by_store: 0,
    }),
    freed: Condvar::new(),
    owners: Mutex::new(Vec::new()),
    shrinking: Mutex::new(Vec::new()),
};

/// The number of the next request.
static NEXT_REQUEST: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The request that this thread serves.
    static SERVED: Cell<ServedRequest> = Cell::new(ServedRequest::new());
}

/// A request, and the memory that it holds.
#[derive(Clone, Copy)]
struct ServedRequest {
    number: u64,
    /// The bytes that were granted to it and are not returned. Memory that another thread returns
    /// counts until the request ends.
    bytes: usize,
}

impl ServedRequest {
    fn new() -> Self {
        ServedRequest {
            number: NEXT_REQUEST.fetch_add(1, Ordering::Relaxed),
            bytes: 0,
        }
    }
}

/// Granted bytes.
struct Used {
    granted: usize,
    /// Number of requests that wait for more.
    waiting: usize,
    /// The part that they hold.
    by_waiting: usize,
    /// The part that the store held when it was open.
    by_store: usize,
}

/// The account of memory that is not chunks.
struct Budget {
    /// The bound of the cache in bytes.
    bound: AtomicUsize,
    /// No other lock is taken while this one is held.
    used: Mutex<Used>,
    /// Notified when a grant is returned.
    freed: Condvar,
    /// The registered owners. The lock is not held while an owner is called.
    owners: Mutex<Vec<Weak<dyn Reclaim>>>,
    /// The owners to shrink, which are few, since every grant beyond [`RESERVE`] calls them. The
    /// lock is not held then.
    shrinking: Mutex<Vec<Weak<dyn Reclaim>>>,
}

/// An owner of memory that it can free on request. The caller may hold locks, so neither method may
/// wait for a lock under which memory is granted.
pub trait Reclaim: Send + Sync {
    /// Frees granted memory that is not in use, because a request needs it.
    fn reclaim(&self) {}

    /// Frees memory that is not granted, such as cached chunks, because [`above_reserve`] may have
    /// increased.
    fn shrink(&self) {}
}

/// Permission to allocate a number of bytes, which is returned on drop. The owner of the memory
/// also owns the grant, and drops it last.
#[derive(Debug, Default)]
pub struct Grant {
    bytes: usize,
    /// The number of the request that took it.
    request: u64,
}

/// Begins a request on this thread. What earlier ones have not returned belongs to open files and
/// caches.
pub fn begin_request() {
    SERVED.set(ServedRequest::new());
}

/// Ends the opening of a store on this thread. The memory that the thread still holds, such as a
/// snapshot or the directory of an archive, stays granted as long as the store is open.
pub fn end_opening() {
    reclaim();
    lock(&BUDGET.used).by_store += SERVED.get().bytes;
    begin_request();
}

/// Sets the bound of the cache in bytes, on which the budget depends.
pub fn set_cache_bound(bound: usize) {
    BUDGET.bound.store(bound, Ordering::Relaxed);
}

/// Returns the maximum of all grants together in bytes. It leaves half of the cache's bound to
/// chunks.
pub fn limit() -> usize {
    RESERVE + BUDGET.bound.load(Ordering::Relaxed) / 2
}

/// Returns the number of granted bytes beyond [`RESERVE`]. The cache must be smaller than its bound
/// by so many bytes.
pub fn above_reserve() -> usize {
    lock(&BUDGET.used).granted.saturating_sub(RESERVE)
}

/// Returns the number of bytes of [`RESERVE`] that are not granted. Chunks may take them beyond the
/// cache's bound.
pub fn unused_reserve() -> usize {
    RESERVE.saturating_sub(lock(&BUDGET.used).granted)
}

/// Returns the maximum memory in bytes for one chunk, with everything that decoding or encoding it
/// needs.
pub fn available_for_chunk() -> usize {
    BUDGET
        .bound
        .load(Ordering::Relaxed)
        .saturating_add(RESERVE)
        .saturating_sub(lock(&BUDGET.used).granted)
}

/// Frees granted memory that is not in use if there is less for a chunk than `bytes`.
pub fn make_room(bytes: usize) {
    if available_for_chunk() < bytes {
        reclaim();
    }
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
    let why = format!(
        "a chunk needs {bytes} MiB of memory, more than {left}: mount with a larger --cache-size"
    );
    Err(Error::new(Kind::System(libc::ENOMEM), why))
}

/// Registers an owner of memory to [reclaim](Reclaim::reclaim).
pub fn register(owner: &Arc<impl Reclaim + 'static>) {
    lock(&BUDGET.owners).push(Arc::downgrade(&(owner.clone() as Arc<dyn Reclaim>)));
}

/// Registers an owner of memory to [shrink](Reclaim::shrink).
pub fn register_shrinking(owner: &Arc<impl Reclaim + 'static>) {
    lock(&BUDGET.shrinking).push(Arc::downgrade(&(owner.clone() as Arc<dyn Reclaim>)));
}

/// Grants `bytes`. If there is not enough memory, waits until other requests have returned theirs.
///
/// # Errors
///
/// [`Kind::Damaged`] if there can never be so much memory, ENOMEM if there is not enough for ten
/// seconds, or at once if the requests that hold it wait themselves, or the store holds it.
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

/// Checks that a quarter of [`limit`] is free. Requests that will hold memory for long, such as
/// opening a file, must leave this quarter to requests that need memory for a moment.
///
/// # Errors
///
/// ENOMEM if less is free.
pub fn check_available() -> Result<()> {
    if has_spare() {
        return Ok(());
    }
    reclaim();
    if has_spare() {
        return Ok(());
    }
    let why =
        "open files hold the memory for documents: close some, or mount with a larger --cache-size";
    Err(Error::system(libc::ENOMEM).context(why))
}

fn has_spare() -> bool {
    lock(&BUDGET.used).granted <= limit() / 4 * 3
}

/// Frees unused memory of all owners, and their unused spill files.
pub fn reclaim() {
    for owner in existing(&BUDGET.owners) {
        owner.reclaim();
    }
}

/// Returns the error for a grant of `bytes`, which exceeds [`limit`].
pub fn too_large(bytes: usize) -> Error {
    let limit = limit() >> 20;
    let why = format!(
        "needs {} MiB of memory, more than {limit}: mount with a larger --cache-size",
        bytes.div_ceil(1 << 20)
    );
    Error::new(Kind::Damaged, why)
}

impl Grant {
    /// Returns the granted bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the grant `more` bytes larger. It does not wait, since two requests that wait for each
    /// other's memory would never end.
    ///
    /// # Errors
    ///
    /// The errors of [`take`].
    pub fn grow(&mut self, more: usize) -> Result<()> {
        self.grow_within(more, Duration::ZERO)
    }

    /// Joins two grants.
    pub fn and(mut self, mut other: Grant) -> Grant {
        if self.bytes == 0 {
            self.request = other.request;
        }
        self.bytes += std::mem::take(&mut other.bytes);
        self
    }

    /// Gives all but `bytes` of the grant back.
    pub fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        give_back(freed, self.request);
    }

    fn grow_within(&mut self, more: usize, max_wait: Duration) -> Result<()> {
        let limit = limit();
        let begun = Instant::now();
        if self.bytes.saturating_add(more) > limit {
            return Err(too_large(self.bytes.saturating_add(more)));
        }
        let mut asked = false;
        loop {
            let served = SERVED.get();
            let mut used = lock(&BUDGET.used);
            if used.granted + more <= limit {
                used.granted += more;
                let is_above_reserve = used.granted > RESERVE;
                drop(used);
                self.add(more, served);
                if is_above_reserve {
                    existing(&BUDGET.shrinking)
                        .iter()
                        .for_each(|owner| owner.shrink());
                }
                return Ok(());
            }
            let left = max_wait.saturating_sub(begun.elapsed());
            if !asked {
                drop(used);
                reclaim();
                asked = true;
            } else if left.is_zero()
                || served.bytes + used.by_waiting + used.by_store + more > limit
            {
                return Err(in_use(more, served.bytes, &used));
            } else {
                used.waiting += 1;
                used.by_waiting += served.bytes;
                let (mut used, _) = BUDGET
                    .freed
                    .wait_timeout(used, left)
                    .unwrap_or_else(PoisonError::into_inner);
                used.waiting -= 1;
                used.by_waiting -= served.bytes;
                asked = false;
            }
        }
    }

    /// Adds bytes that were granted to a request.
    fn add(&mut self, more: usize, served: ServedRequest) {
        if self.bytes == 0 {
            self.request = served.number;
        }
        self.bytes += more;
        SERVED.set(ServedRequest {
            bytes: served.bytes + more,
            ..served
        });
    }
}

/// Returns the error for `more` bytes that are not free. The request holds `own` bytes.
fn in_use(more: usize, own: usize, used: &Used) -> Error {
    let not_own = used.granted.saturating_sub(own);
    let by_store = used.by_store.min(not_own);
    let fits_alone = own + by_store + more <= limit();
    let [more, own, by_store, others, limit] =
        [more, own, by_store, not_own - by_store, limit()].map(|bytes| bytes.div_ceil(1 << 20));
    let held = format!(
        "needs {more} MiB more of the {limit} MiB for documents, of which the store itself holds {by_store}, it {own}"
    );
    let why = if fits_alone {
        format!(
            "{held}, and other requests and open files {others}: close some, or mount with a larger --cache-size"
        )
    } else {
        format!("{held}: mount with a larger --cache-size")
    };
    Error::system(libc::ENOMEM).context(why)
}

/// A grant shared by the copies of a value. Shared grants compare equal, so that they do not affect
/// the comparison of their owners.
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
        give_back(self.bytes, self.request);
    }
}

/// Returns bytes of a request to the budget.
fn give_back(bytes: usize, request: u64) {
    if bytes == 0 {
        return;
    }
    // a thread that ends has no request any more
    let _ = SERVED.try_with(|served| {
        let now = served.get();
        if now.number == request {
            served.set(ServedRequest {
                bytes: now.bytes.saturating_sub(bytes),
                ..now
            });
        }
    });
    let mut used = lock(&BUDGET.used);
    used.granted -= bytes;
    let is_awaited = used.waiting > 0;
    drop(used);
    // each notification is a system call, also if no thread waits
    if is_awaited {
        BUDGET.freed.notify_all();
    }
    #[cfg(target_env = "gnu")]
    if bytes >= MIN_TRIM {
        // SAFETY: the call takes a number alone.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Returns the registered owners that still exist.
fn existing(owners: &Mutex<Vec<Weak<dyn Reclaim>>>) -> Vec<Arc<dyn Reclaim>> {
    let mut owners = lock(owners);
    owners.retain(|owner| owner.strong_count() > 0);
    owners.iter().filter_map(Weak::upgrade).collect()
}

/// Makes the system's allocator return large blocks when they are freed, and most of the memory of
/// others. Otherwise each thread would keep some, and the process would use much more memory than
/// is counted. The program calls this when it starts.
pub fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes numbers alone.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 * LARGE);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Values that are expensive to make, such as the state of a compressor, kept for whichever thread
/// needs one next. So there are as many as are used at the same time, however many threads exist.
pub struct Spares<T>(Mutex<Vec<T>>);

impl<T> Spares<T> {
    /// Returns a place without a value.
    pub const fn new() -> Self {
        Spares(Mutex::new(Vec::new()))
    }

    /// Takes the value that was kept last.
    pub fn take(&self) -> Option<T> {
        lock(&self.0).pop()
    }

    /// Keeps a value for the next caller.
    pub fn keep(&self, value: T) {
        lock(&self.0).push(value);
    }
}

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Spares::new()
    }
}

/// Locks a mutex, even if another holder has panicked: every holder in this crate keeps the data
/// valid at all times.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_allocations_are_errors() {
        assert_eq!(zeroed(usize::MAX / 2).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(
            reserve(&mut Vec::new(), usize::MAX / 2)
                .unwrap_err()
                .errno(),
            libc::ENOMEM
        );
        assert_eq!(zeroed(3).unwrap(), [0; 3]);
        assert!(zeroed(0).unwrap().is_empty());
    }

    /// Held by tests that take most of the memory.
    static TAKES_MOST: Mutex<()> = Mutex::new(());

    struct CachedGrant(Mutex<Option<Grant>>);

    impl Reclaim for CachedGrant {
        fn reclaim(&self) {
            lock(&self.0).take();
        }
    }

    #[test]
    fn grants_stay_within_the_limit() {
        let _alone = lock(&TAKES_MOST);
        // leaves memory for the grants of other tests in this process
        let most = limit() - (32 << 20);
        assert_eq!(take(limit() + 1).unwrap_err().kind(), Kind::Damaged);
        let kept = Arc::new(CachedGrant(Mutex::new(Some(take(most).unwrap()))));
        register(&kept);
        let mut first = take(most).unwrap();
        assert!(lock(&kept.0).is_none(), "unused memory is reclaimed");
        assert_eq!(
            take(0).unwrap().grow(most).unwrap_err().errno(),
            libc::ENOMEM
        );
        let waiting = std::thread::spawn(move || take(most).map(|grant| grant.bytes()));
        std::thread::sleep(Duration::from_millis(20));
        first.shrink_to(0);
        assert_eq!(waiting.join().unwrap().unwrap(), most);
        assert_eq!(first.bytes(), 0);
    }

    #[test]
    fn no_request_waits_for_itself_or_for_requests_that_wait() {
        let _alone = lock(&TAKES_MOST);
        let half = limit() / 2 + (16 << 20);
        begin_request();
        let held = take(half).unwrap();
        let begun = Instant::now();
        assert_eq!(take(half).unwrap_err().errno(), libc::ENOMEM);
        let waits = std::thread::spawn(move || {
            let own = take(24 << 20).unwrap();
            (take(half).map(drop), own)
        });
        while lock(&BUDGET.used).by_waiting < 24 << 20 {
            assert!(begun.elapsed() < MAX_WAIT, "the other thread does not wait");
            std::thread::yield_now();
        }
        // the other thread waits for this one, which therefore does not wait for it
        let failed = take(limit() - half - (12 << 20)).unwrap_err();
        assert!(
            failed.errno() == libc::ENOMEM && begun.elapsed() < MAX_WAIT,
            "{failed}"
        );
        drop(held);
        assert_eq!(waits.join().unwrap().0, Ok(()));
        begin_request();
        assert_eq!(SERVED.get().bytes, 0);
    }

    /// The time limit is longer than that of any test.
    #[test]
    fn no_request_waits_for_what_the_store_holds() {
        const LONG: Duration = Duration::from_secs(24 * 60 * 60);
        let _alone = lock(&TAKES_MOST);
        begin_request();
        let by_store = take(limit() / 2 + (16 << 20)).unwrap();
        end_opening();
        let e = take_within(limit() / 2, LONG).unwrap_err();
        assert_eq!(e.errno(), libc::ENOMEM);
        assert!(
            e.message().contains("the store itself holds") && !e.message().contains("close some"),
            "{e}"
        );
        // others may return what they hold
        let other = take(limit() / 4).unwrap();
        begin_request();
        let e = take_within(limit() / 4 + (16 << 20), Duration::ZERO).unwrap_err();
        drop(by_store);
        lock(&BUDGET.used).by_store = 0;
        assert!(e.message().contains("close some"), "{e}");
        drop(other);
        assert!(take_within(limit() / 2, LONG).is_ok());
    }

    #[derive(Default)]
    struct Shrinking(AtomicUsize);

    impl Reclaim for Shrinking {
        fn shrink(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_grant_beyond_the_reserve_calls_only_the_owners_that_can_shrink() {
        let _alone = lock(&TAKES_MOST);
        let array = Arc::new(Shrinking::default());
        let cache = Arc::new(Shrinking::default());
        register(&array);
        register_shrinking(&cache);
        drop(take(RESERVE + 1).unwrap());
        assert_eq!(array.0.load(Ordering::Relaxed), 0);
        assert!(cache.0.load(Ordering::Relaxed) > 0);
    }
}
