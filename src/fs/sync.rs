//! Implements `.zarrfs/sync`, which `zarrfs umount` reads: stores all written data within one time limit, and names what is
//! not stored. Without the limit, each chunk could take the timeout of a server.

use super::Fs;
use crate::error::{Error, Kind, Result};
use crate::util::memory::lock;
use std::fmt::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Extra wait beyond the timeout of one request, so that a sync can report why the request failed.
const MARGIN: Duration = Duration::from_secs(1);

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
    /// Why the last one failed.
    error: Option<Error>,
    /// How many callers wait.
    waiting: usize,
    /// What a sync has lost for which no caller waited any more: the next one reports it.
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
        // what was not stored is tried again, what was lost is not
        if state.waiting == 0 && state.error.as_ref().is_some_and(|e| e.errno() == libc::ESTALE) {
            state.unreported = state.error.clone();
        }
        drop(state);
        self.fs.syncs.ended.notify_all();
    }
}

impl Fs {
    /// Sets how long a sync tries to reach the store. Storing goes on after it.
    pub fn limit_syncs(self: &Arc<Self>, limit: Duration) {
        let _ = self.syncs.limit.set((limit, Arc::downgrade(self)));
    }

    /// Stores everything, as [`Fs::flush_all`] does.
    ///
    /// # Errors
    ///
    /// Names what is not stored: arrays with the number and bytes of their chunks, and files.
    pub fn sync_all(&self) -> Result<()> {
        let limited = self.syncs.limit.get().and_then(|(limit, fs)| Some((*limit, fs.upgrade()?)));
        let stored = match limited {
            Some((limit, fs)) => self.sync_within(limit, &fs),
            None => self.flush_all(),
        };
        stored.map_err(|e| match self.unstored_names() {
            names if names.is_empty() => e,
            names => e.context(format!("not stored: {names}")),
        })
    }

    /// Waits for a sync that begins from now on.
    fn sync_within(&self, limit: Duration, fs: &Arc<Fs>) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let deadline = Instant::now() + limit + MARGIN;
        let mut state = lock(&self.syncs.state);
        state.waiting += 1;
        let (mut state, ended) = self.wait_for_sync(state, deadline, fs);
        state.waiting -= 1;
        match ended {
            Ok(true) => state.unreported.take().or_else(|| state.error.clone()).map_or(Ok(()), Err),
            Ok(false) => Err(self.tried_for(limit)),
            Err(e) => Err(e),
        }
    }

    /// Waits until a sync that begins from now on has ended; returns false if it has not until the deadline.
    fn wait_for_sync<'a>(
        &'a self,
        mut state: MutexGuard<'a, SyncState>,
        deadline: Instant,
        fs: &Arc<Fs>,
    ) -> (MutexGuard<'a, SyncState>, Result<bool>) {
        let own = state.begun + 1;
        while state.ended < own {
            if state.begun == state.ended {
                state.begun += 1;
                // its end takes the lock
                drop(state);
                let begun = begin(RunningSync { fs: fs.clone(), result: Err(Error::system(libc::EIO)) });
                state = lock(&self.syncs.state);
                if let Err(e) = begun {
                    return (state, Err(e));
                }
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (state, Ok(false));
            }
            state = self.syncs.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state, Ok(true))
    }

    fn tried_for(&self, limit: Duration) -> Error {
        let last = self.stats.last_error().map_or_else(String::new, |last| format!("; last error: {}", last.message));
        let message = format!("tried for {:.1} s (--timeout){last}", limit.as_secs_f64());
        Error::new(Kind::System(libc::ETIMEDOUT), message)
    }

    /// Returns what is not stored: `a (3 chunks, 2400 bytes), b/.zattrs`.
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
fn begin(mut running: RunningSync) -> Result<()> {
    let run = move || running.result = running.fs.flush_all();
    std::thread::Builder::new().name("sync".into()).spawn(run)?;
    Ok(())
}
