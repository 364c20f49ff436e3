//! The pause of all changes while a mount is handed over to another program: a change that waits
//! here is not answered, and the kernel sends its request again to the successor. This module must
//! not know what a change is.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zarrfs_base::memory::lock;

/// The changes in flight, and whether further ones wait.
#[derive(Debug, Default)]
pub struct ChangePause {
    /// Protects the state.
    state: Mutex<PauseState>,
    /// Notified when a pause ends, and when the last change in flight ends.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PauseState {
    is_paused: bool,
    in_flight: usize,
}

/// The right to change something, which lasts until it is dropped.
pub struct ChangePass<'a>(&'a ChangePause);

impl ChangePause {
    /// Returns the right to change something; `None` during a pause.
    pub fn try_pass(&self) -> Option<ChangePass<'_>> {
        let mut state = lock(&self.state);
        if state.is_paused {
            return None;
        }
        state.in_flight += 1;
        Some(ChangePass(self))
    }

    /// Waits until no pause is in force, and returns the right to change something. During a pause
    /// that ends with this process it never returns.
    pub fn pass(&self) -> ChangePass<'_> {
        let mut state = lock(&self.state);
        while state.is_paused {
            state = self.wait(state);
        }
        state.in_flight += 1;
        ChangePass(self)
    }

    /// Begins a pause, and waits for changes in flight. Returns whether all have ended within
    /// `limit`; otherwise the pause has not begun.
    pub fn begin(&self, limit: Duration) -> bool {
        let mut state = lock(&self.state);
        state.is_paused = true;
        let is_busy = |state: &mut PauseState| state.in_flight > 0;
        let waited = self.changed.wait_timeout_while(state, limit, is_busy);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let has_begun = state.in_flight == 0;
        if !has_begun {
            state.is_paused = false;
            self.changed.notify_all();
        }
        has_begun
    }

    /// Ends a pause.
    pub fn end(&self) {
        lock(&self.state).is_paused = false;
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, PauseState>) -> MutexGuard<'a, PauseState> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ChangePass<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.in_flight -= 1;
        if state.in_flight == 0 && state.is_paused {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn a_pause_waits_for_changes_and_holds_back_further_ones() {
        let pause = Arc::new(ChangePause::default());
        let pass = pause.try_pass().unwrap();
        assert!(
            !pause.begin(Duration::from_millis(1)),
            "a change is in flight"
        );
        assert!(pause.try_pass().is_some(), "the pause has not begun");
        drop(pass);
        assert!(pause.begin(Duration::from_secs(60)));
        assert!(pause.try_pass().is_none());
        let other = pause.clone();
        let waiting = thread::spawn(move || drop(other.pass()));
        pause.end();
        waiting.join().unwrap();
        assert!(pause.begin(Duration::from_secs(60)));
    }
}
