//! Stores all written data within one time limit, and names the arrays and files that are not stored: for
//! `.zarrfs/sync`, which `zarrfs umount` reads, and at the end of the process.
//!
//! Invariant: an outage of the server takes `--timeout` once, not once for each chunk, array or attempt.
//!
//! * A flush ends with the first failure while the server does not answer (`cache/write_back/flush.rs:is_in_vain`).
//! * After a request was given up, further ones are sent once until the server answers
//!   (`store/object/transport.rs:send`), so that a program that closes several files waits for the first one alone.
//! * The end of the process waits until nothing could be stored for `--timeout` ([`Patience`]): a server that takes
//!   data, however slowly, gets all of them.

use super::Fs;
use crate::error::{Error, Kind, Result};
use crate::util::memory::lock;
use std::fmt::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Extra wait beyond the timeout of one request, so that a sync can report why the request failed.
const MARGIN: Duration = Duration::from_secs(1);

/// Number of attempts to store data at the end of the process, since a cause such as a full disk may pass, and the
/// pause between attempts.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum time between two checks of the progress.
const LOOK: Duration = Duration::from_millis(250);

/// Maximum number of names in a message.
const MAX_NAMES: usize = 8;

/// The syncs of a mount. One is in flight at a time, on a thread of its own.
#[derive(Default)]
pub struct Syncs {
    limit: OnceLock<(Duration, Weak<Fs>)>,
    /// Protects the numbers and the result.
    state: Mutex<SyncState>,
    /// Notified when a sync has ended.
    ended: Condvar,
}

#[derive(Default)]
struct SyncState {
    /// Number of syncs that have begun, and that have ended.
    begun: u64,
    ended: u64,
    /// Error of the last sync, if it failed.
    error: Option<Error>,
    /// Number of callers that wait.
    waiting: usize,
    /// The loss found by a sync whose callers had all given up; the next sync reports it.
    unreported: Option<Error>,
}

/// A sync in flight. It has ended when this is dropped, also by a panic.
struct RunningSync {
    fs: Arc<Fs>,
    result: Result<()>,
}

impl Drop for RunningSync {
    fn drop(&mut self) {
        let mut state = lock(&self.fs.syncs.state);
        state.ended += 1;
        state.error = std::mem::replace(&mut self.result, Ok(())).err();
        // later syncs try unstored data again, but report no loss again
        if state.waiting == 0 && state.error.as_ref().is_some_and(|e| e.errno() == libc::ESTALE) {
            state.unreported = state.error.clone();
        }
        drop(state);
        self.fs.syncs.ended.notify_all();
    }
}

/// Counters of sent and stored data. A change shows progress.
type Progress = [u64; 4];

/// The time left to store data: it ends when nothing could be stored for `limit`.
struct Patience {
    limit: Duration,
    progress: Progress,
    since: Instant,
}

impl Patience {
    fn new(limit: Duration, progress: Progress, now: Instant) -> Self {
        Patience { limit, progress, since: now }
    }

    /// Returns the time that is left at `now`.
    fn left(&mut self, progress: Progress, now: Instant) -> Duration {
        if progress != self.progress {
            (self.progress, self.since) = (progress, now);
        }
        (self.since + self.limit).saturating_duration_since(now)
    }
}

impl Fs {
    /// Sets how long a sync waits for the store. Storing continues afterwards.
    pub fn limit_syncs(self: &Arc<Self>, limit: Duration) {
        let _ = self.syncs.limit.set((limit, Arc::downgrade(self)));
    }

    /// Stores everything, as [`Fs::flush_all`] does.
    ///
    /// # Errors
    ///
    /// An error that names what is not stored: arrays with the number and bytes of their chunks, and files.
    pub fn sync_all(&self) -> Result<()> {
        let stored = match self.limit() {
            Some((limit, fs)) => {
                let deadline = Instant::now() + limit + MARGIN;
                self.sync_while(limit, &fs, &mut || deadline.saturating_duration_since(Instant::now()))
            }
            None => self.flush_all(),
        };
        stored.map_err(|e| match self.unstored_names() {
            names if names.is_empty() => e,
            names => e.context(format!("not stored: {names}")),
        })
    }

    /// Stores everything before the process ends, in several attempts. If [`Fs::limit_syncs`] was called, gives up when
    /// nothing could be stored for that time.
    ///
    /// # Errors
    ///
    /// An error that names what is not stored, as that of [`Fs::sync_all`] does.
    pub fn sync_at_end(&self) -> Result<()> {
        let mut limited = self.limit().map(|(limit, fs)| {
            let patience = Patience::new(limit + MARGIN, self.progress(), Instant::now());
            (patience, limit, fs)
        });
        let (mut stored, mut lost) = (Ok(()), Ok(()));
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let mut is_over = false;
            stored = match &mut limited {
                None => self.store_all(),
                Some((patience, limit, fs)) => self.sync_while(*limit, fs, &mut || {
                    let left = patience.left(self.progress(), Instant::now());
                    is_over = left.is_zero();
                    left
                }),
            };
            if stored.is_ok() || is_over {
                break;
            }
            // a later attempt does not report a loss again
            if stored.as_ref().is_err_and(|e| e.errno() == libc::ESTALE) {
                lost = lost.and(stored.clone());
            }
        }
        lost.and(self.take_losses()).and(stored).map_err(|e| match self.unstored_names() {
            names if names.is_empty() => e,
            names => e.context(names),
        })
    }

    fn limit(&self) -> Option<(Duration, Arc<Fs>)> {
        self.syncs.limit.get().and_then(|(limit, fs)| Some((*limit, fs.upgrade()?)))
    }

    /// Returns counters of sent and stored data. Sent parts of a large value count, and so do erased chunks.
    fn progress(&self) -> Progress {
        let stats = &self.stats;
        [stats.bytes_sent.get(), stats.stores.get(), stats.object_stores.get(), self.cache.unstored_total().0]
    }

    /// Waits for a sync that begins from now on, as long as `left` returns a time.
    fn sync_while(&self, limit: Duration, fs: &Arc<Fs>, left: &mut dyn FnMut() -> Duration) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let mut state = lock(&self.syncs.state);
        state.waiting += 1;
        let (mut state, ended) = self.wait_for_sync(state, limit, fs, left);
        state.waiting -= 1;
        match ended {
            Ok(true) => state.unreported.take().or_else(|| state.error.clone()).map_or(Ok(()), Err),
            Ok(false) => Err(self.tried_for(limit)),
            Err(e) => Err(e),
        }
    }

    /// Waits until a sync that begins from now on has ended; returns false if it has not when no time is left.
    fn wait_for_sync<'a>(
        &'a self,
        mut state: MutexGuard<'a, SyncState>,
        limit: Duration,
        fs: &Arc<Fs>,
        left: &mut dyn FnMut() -> Duration,
    ) -> (MutexGuard<'a, SyncState>, Result<bool>) {
        let own = state.begun + 1;
        while state.ended < own {
            if state.begun == state.ended {
                state.begun += 1;
                // the end of the sync takes the lock
                drop(state);
                let begun = begin(RunningSync { fs: fs.clone(), result: Err(Error::system(libc::EIO)) }, limit);
                state = lock(&self.syncs.state);
                if let Err(e) = begun {
                    return (state, Err(e));
                }
                continue;
            }
            drop(state);
            let left = left();
            state = lock(&self.syncs.state);
            if state.ended >= own {
                break;
            }
            if left.is_zero() {
                return (state, Ok(false));
            }
            state = self.syncs.ended.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state, Ok(true))
    }

    /// Stores everything, and tries again while the store does not answer, until nothing could be stored for `limit`.
    fn flush_within(&self, limit: Duration) -> Result<()> {
        let mut patience = Patience::new(limit, self.progress(), Instant::now());
        loop {
            let done = self.store_all();
            let left = patience.left(self.progress(), Instant::now());
            if !self.cache.is_in_vain(&done) || left.is_zero() {
                return self.take_losses().and(done);
            }
            std::thread::sleep(PAUSE.min(left));
        }
    }

    fn tried_for(&self, limit: Duration) -> Error {
        let last = self.stats.last_error().map_or_else(String::new, |last| format!("; last error: {}", last.message));
        let message = format!("tried for {:.1} s (--timeout){last}", limit.as_secs_f64());
        Error::new(Kind::System(libc::ETIMEDOUT), message)
    }

    /// Returns the unstored arrays and files: `a (3 chunks, 2400 bytes), b/.zattrs`.
    fn unstored_names(&self) -> String {
        let arrays = self.cache.unstored().into_iter().map(|unstored| {
            let plural = if unstored.chunks == 1 { "" } else { "s" };
            format!("{} ({} chunk{plural}, {} bytes)", unstored.array, unstored.chunks, unstored.bytes)
        });
        let drafts = self.drafts.all().into_iter().filter(|draft| draft.is_unstored());
        let names: Vec<String> = arrays.chain(drafts.map(|draft| draft.node().path().to_string())).collect();
        let mut shown = names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
        if names.len() > MAX_NAMES {
            let _ = write!(shown, " and {} more", names.len() - MAX_NAMES);
        }
        shown
    }
}

/// Begins a sync on a thread.
fn begin(mut running: RunningSync, limit: Duration) -> Result<()> {
    let run = move || running.result = running.fs.flush_within(limit);
    std::thread::Builder::new().name("sync".into()).spawn(run)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_when_nothing_was_stored_for_the_limit() {
        let (start, limit) = (Instant::now(), Duration::from_secs(30));
        let mut patience = Patience::new(limit, [0; 4], start);
        let mut left =
            |stored, seconds| patience.left([0, stored, 0, 0], start + Duration::from_secs(seconds)).as_secs();
        assert_eq!((left(0, 0), left(0, 10), left(0, 29)), (30, 20, 1));
        // a slow store
        assert_eq!((left(1, 29), left(1, 39), left(2, 58)), (30, 20, 30));
        assert_eq!((left(2, 87), left(2, 88), left(2, 1000)), (1, 0, 0));
    }
}
