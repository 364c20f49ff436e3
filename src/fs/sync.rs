//! Stores all written data within one time limit, and names the arrays and files that are not
//! stored: for `.zarrfs/sync`, which `zarrfs umount` reads, and at the end of the process.
//!
//! Invariant: an outage of the server takes `--timeout` once, not once for each chunk, array or
//! attempt.
//!
//! * A flush ends with the first failure while the server answers nothing
//!   (`cache/write_back/flush.rs:is_in_vain`).
//! * After a request was given up, one at a time is sent once until the server answers
//!   (`store/object/transport.rs:send`), so that a program that closes several files waits for the
//!   first one alone.
//! * A sync that fails for a cause that may pass ([`may_pass`]), also of credentials, tries again
//!   for `--timeout`.
//! * Both wait while the server takes data, however slowly: until nothing could be stored for
//!   `--timeout` ([`Patience`]). The end of the process does so after any failure, since bytes that
//!   are not stored are lost.

use super::Fs;
use crate::cache::Cache;
use std::fmt::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::stats::Stats;

/// Extra wait beyond the timeout of one request, so that a sync can report why the request failed.
pub(super) const MARGIN: Duration = Duration::from_secs(1);

/// Number of attempts at the end of the process where there is no time limit, as with a full disk,
/// and the pause between attempts.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum time between two checks of the progress.
const LOOK: Duration = Duration::from_millis(250);

/// Maximum number of names in a message.
const MAX_NAMES: usize = 8;

/// The syncs of a mount. One is in flight at a time, on a thread of its own.
pub struct Syncs {
    cache: Arc<Cache>,
    stats: Arc<Stats>,
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
        if state.waiting == 0
            && state
                .error
                .as_ref()
                .is_some_and(|e| e.errno() == libc::ESTALE)
        {
            state.unreported = state.error.clone();
        }
        drop(state);
        self.fs.syncs.ended.notify_all();
    }
}

/// What has been stored and sent so far, to be compared with an earlier state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// Values stored, objects stored, and bytes that are not stored.
    stored: [u64; 3],
    /// Bytes sent. Those of a value that the store refuses at last are sent in vain.
    sent: u64,
}

/// How long storing is tried, round by round: until nothing could be stored for `limit`.
struct Patience {
    limit: Duration,
    progress: Progress,
    since: Instant,
    /// The state when the round began, and the time of the latest progress by then.
    begun: (Progress, Instant),
}

impl Patience {
    fn new(limit: Duration, progress: Progress, now: Instant) -> Self {
        Patience {
            limit,
            progress,
            since: now,
            begun: (progress, now),
        }
    }

    /// Returns the time that is left at `now`, while a round runs.
    fn left(&mut self, progress: Progress, now: Instant) -> Duration {
        if progress != self.progress {
            (self.progress, self.since) = (progress, now);
        }
        (self.since + self.limit).saturating_duration_since(now)
    }

    /// Returns the time that is left at `now`, where a round has ended. What a round has sent does
    /// not count if it has stored nothing: the next round sends it again.
    fn left_after_round(&mut self, progress: Progress, now: Instant) -> Duration {
        let (begun, since) = self.begun;
        if progress.stored == begun.stored {
            (self.progress, self.since) = (progress, since);
        }
        let left = self.left(progress, now);
        self.begun = (progress, self.since);
        left
    }
}

impl Syncs {
    /// Creates the record of a mount whose chunks are in `cache` and whose requests `stats` counts.
    pub fn new(cache: Arc<Cache>, stats: Arc<Stats>) -> Self {
        Syncs {
            cache,
            stats,
            limit: OnceLock::new(),
            state: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    fn limited(&self) -> Option<(Duration, Arc<Fs>)> {
        self.limit
            .get()
            .and_then(|(limit, fs)| Some((*limit, fs.upgrade()?)))
    }

    /// Returns counters of sent and stored data. Sent parts of a large value count, and so do
    /// erased chunks.
    fn progress(&self) -> Progress {
        let stats = &self.stats;
        let stored = [
            stats.stores.get(),
            stats.object_stores.get(),
            self.cache.unstored_total().0,
        ];
        Progress {
            stored,
            sent: stats.bytes_sent.get(),
        }
    }

    /// Returns the patience of a caller whose syncs try for `limit`.
    fn patience(&self, limit: Duration) -> Patience {
        Patience::new(limit + MARGIN, self.progress(), Instant::now())
    }

    /// Waits for a sync that begins from now on, as long as `left` returns a time.
    fn sync_while(
        &self,
        limit: Duration,
        fs: &Arc<Fs>,
        left: &mut dyn FnMut() -> Duration,
    ) -> Result<()> {
        if fs.options.read_only {
            return Ok(());
        }
        let mut state = lock(&self.state);
        state.waiting += 1;
        let (mut state, ended) = self.wait_for_sync(state, limit, fs, left);
        state.waiting -= 1;
        match ended {
            Ok(true) => state
                .unreported
                .take()
                .or_else(|| state.error.clone())
                .map_or(Ok(()), Err),
            Ok(false) => Err(self.tried_for(limit)),
            Err(e) => Err(e),
        }
    }

    /// Waits until a sync that begins from now on has ended; returns false if it has not when no
    /// time is left.
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
                let begun = begin(
                    RunningSync {
                        fs: fs.clone(),
                        result: Err(Error::system(libc::EIO)),
                    },
                    limit,
                );
                state = lock(&self.state);
                if let Err(e) = begun {
                    return (state, Err(e));
                }
                continue;
            }
            drop(state);
            let left = left();
            state = lock(&self.state);
            if state.ended >= own {
                break;
            }
            if left.is_zero() {
                return (state, Ok(false));
            }
            state = self
                .ended
                .wait_timeout(state, left.min(LOOK))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        (state, Ok(true))
    }

    fn tried_for(&self, limit: Duration) -> Error {
        let last = self.stats.last_error().map_or_else(String::new, |last| {
            format!("; last error: {}", last.message)
        });
        let message = format!("tried for {:.1} s (--timeout){last}", limit.as_secs_f64());
        Error::new(Kind::System(libc::ETIMEDOUT), message)
    }
}

impl RunningSync {
    /// Stores everything, and tries again after a failure that may pass, until no round has left
    /// fewer chunks for `limit`. What programs write and store meanwhile prolongs nothing.
    fn flush_within(&self, limit: Duration) -> Result<()> {
        let unstored = || self.fs.cache.unstored_total().0;
        let mut fewest = unstored();
        let mut since = Instant::now();
        loop {
            let done = self.fs.change().store_all();
            let now = Instant::now();
            if unstored() < fewest {
                (fewest, since) = (unstored(), now);
            }
            let left = (since + limit).saturating_duration_since(now);
            if !done.as_ref().is_err_and(may_pass) || left.is_zero() {
                return self.fs.arrays.take_losses().and(done);
            }
            std::thread::sleep(PAUSE.min(left));
        }
    }
}

impl Fs {
    /// Sets how long a sync waits for the store. Storing continues afterwards.
    pub fn limit_syncs(self: &Arc<Self>, limit: Duration) {
        let _ = self.syncs.limit.set((limit, Arc::downgrade(self)));
    }

    /// Stores everything, as [`flush_all`](super::Change::flush_all) does.
    ///
    /// # Errors
    ///
    /// An error that names the arrays that are not stored, with the number and bytes of their
    /// chunks, and the files.
    pub fn sync_all(&self) -> Result<()> {
        let stored = match self.syncs.limited() {
            Some((limit, fs)) => {
                let mut patience = self.syncs.patience(limit);
                self.syncs.sync_while(limit, &fs, &mut || {
                    patience.left(self.syncs.progress(), Instant::now())
                })
            }
            None => self.change().flush_all(),
        };
        stored.map_err(|e| match self.unstored_names() {
            names if names.is_empty() => e,
            names => e.context(format!("not stored: {names}")),
        })
    }

    /// Stores everything before the process ends, in several attempts. If [`Fs::limit_syncs`] was
    /// called, gives up when nothing could be stored for that time.
    ///
    /// # Errors
    ///
    /// The error of [`Fs::sync_all`].
    pub fn sync_at_end(&self) -> Result<()> {
        self.change().end_begun();
        let mut limited = self
            .syncs
            .limited()
            .map(|(limit, fs)| (self.syncs.patience(limit), limit, fs));
        let mut lost = Ok(());
        let mut attempts = 1;
        let stored = loop {
            let stored = match &mut limited {
                None => self.change().store_all(),
                Some((patience, limit, fs)) => self.syncs.sync_while(*limit, fs, &mut || {
                    patience.left(self.syncs.progress(), Instant::now())
                }),
            };
            // a later attempt does not report a loss again
            if stored.as_ref().is_err_and(|e| e.errno() == libc::ESTALE) {
                lost = lost.and(stored.clone());
            }
            // whatever the cause: what is not stored now is lost
            let pause = match &mut limited {
                None if attempts == ATTEMPTS => Duration::ZERO,
                None => PAUSE,
                Some((patience, ..)) => {
                    PAUSE.min(patience.left_after_round(self.syncs.progress(), Instant::now()))
                }
            };
            if stored.is_ok() || pause.is_zero() {
                break stored;
            }
            std::thread::sleep(pause);
            attempts += 1;
        };
        lost.and(self.arrays.take_losses())
            .and(stored)
            .map_err(|e| match self.unstored_names() {
                names if names.is_empty() => e,
                names => e.context(names),
            })
    }

    /// Returns the unstored arrays and files: `a (3 chunks, 2400 bytes), b/.zattrs`.
    fn unstored_names(&self) -> String {
        let arrays = self.cache.unstored().into_iter().map(|unstored| {
            let plural = if unstored.chunks == 1 { "" } else { "s" };
            format!(
                "{} ({} chunk{plural}, {} bytes)",
                unstored.array, unstored.chunks, unstored.bytes
            )
        });
        let drafts = self
            .drafts
            .all()
            .into_iter()
            .filter(|draft| draft.is_unstored());
        let names: Vec<String> = arrays
            .chain(drafts.map(|draft| draft.node().path().to_string()))
            .collect();
        let mut shown = names
            .iter()
            .take(MAX_NAMES)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        if names.len() > MAX_NAMES {
            let _ = write!(shown, " and {} more", names.len() - MAX_NAMES);
        }
        shown
    }
}

/// Returns whether a store that has failed may take the data later: a server that does not answer,
/// credentials that are renewed, a permission that is granted, space that is freed, or
/// a limit of the process that is raised meanwhile.
fn may_pass(e: &Error) -> bool {
    let errors = [
        libc::EIO,
        libc::EACCES,
        libc::EPERM,
        libc::ENOSPC,
        libc::EDQUOT,
        libc::EFBIG,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOMEM,
        libc::ETIMEDOUT,
    ];
    matches!(e.kind(), Kind::System(errno) if errors.contains(&errno))
}

/// Begins a sync on a thread.
fn begin(mut running: RunningSync, limit: Duration) -> Result<()> {
    let run = move || running.result = running.flush_within(limit);
    std::thread::Builder::new().name("sync".into()).spawn(run)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_when_nothing_was_stored_for_the_limit() {
        let start = Instant::now();
        let limit = Duration::from_secs(30);
        let mut patience = Patience::new(limit, Progress::default(), start);
        let mut left = |stored, seconds| {
            let progress = Progress {
                stored: [stored, 0, 0],
                sent: 0,
            };
            patience
                .left(progress, start + Duration::from_secs(seconds))
                .as_secs()
        };
        assert_eq!((left(0, 0), left(0, 10), left(0, 29)), (30, 20, 1));
        // a slow store
        assert_eq!((left(1, 29), left(1, 39), left(2, 58)), (30, 20, 30));
        assert_eq!((left(2, 87), left(2, 88), left(2, 1000)), (1, 0, 0));
    }

    #[test]
    fn bytes_that_were_sent_in_vain_are_no_progress() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::new(Duration::from_secs(30), Progress::default(), start);
        let progress = |stored, sent| Progress {
            stored: [0, stored, 0],
            sent,
        };
        // a value is sent slowly, and refused at last
        assert_eq!(patience.left(progress(0, 1), at(10)).as_secs(), 30);
        assert_eq!(
            patience.left_after_round(progress(0, 2), at(20)).as_secs(),
            10
        );
        assert_eq!(patience.left(progress(0, 3), at(25)).as_secs(), 30);
        assert_eq!(patience.left(progress(0, 3), at(26)).as_secs(), 29);
        assert_eq!(
            patience.left_after_round(progress(0, 4), at(29)).as_secs(),
            1
        );
        // another one is stored in the same round
        assert_eq!(patience.left(progress(1, 5), at(30)).as_secs(), 30);
        assert_eq!(
            patience.left_after_round(progress(1, 6), at(35)).as_secs(),
            30
        );
        assert_eq!(
            patience.left_after_round(progress(1, 9), at(65)).as_secs(),
            0
        );
    }
}
