//! One question on its way to a far store, and all who wait for its answer.

use crate::error::Result;
use crate::store::Stat;
use crate::util::memory::lock;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

type Answer = Result<Option<Stat>>;

/// A question on its way.
pub struct Flight {
    /// When it was asked: see `Known::is_current`.
    pub stamp: u64,
    /// Protects the answer. None: it is not there yet; Some(None): there will be none.
    answer: Mutex<Option<Option<Answer>>>,
    landed: Condvar,
}

impl Flight {
    /// Asked at `stamp`.
    pub fn new(stamp: u64) -> Self {
        Flight { stamp, answer: Mutex::default(), landed: Condvar::new() }
    }

    /// The answer, once it is there; None if who asked has not got one.
    pub fn wait(&self) -> Option<Answer> {
        let answer = lock(&self.answer);
        let answer = self.landed.wait_while(answer, |answer| answer.is_none()).unwrap_or_else(PoisonError::into_inner);
        answer.clone().flatten()
    }

    /// True once nobody need wait any more.
    pub fn is_over(&self) -> bool {
        lock(&self.answer).is_some()
    }

    /// To be held by who asks: those who wait go on when it is dropped, also by a panic.
    pub fn landing(self: &Arc<Self>) -> Landing {
        Landing(self.clone())
    }
}

/// See [`Flight::landing`].
pub struct Landing(Arc<Flight>);

impl Landing {
    /// Gives the answer to all who wait.
    pub fn tell(self, answer: Answer) {
        *lock(&self.0.answer) = Some(Some(answer));
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        lock(&self.0.answer).get_or_insert(None);
        self.0.landed.notify_all();
    }
}
