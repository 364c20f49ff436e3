//! What the store has answered during one request that changes nothing. To find a node and to show
//! it takes the stats of the same few documents many times over. Each is asked for once in a
//! request: no answer is older than the request. This module must not know what documents mean.

use super::Hierarchy;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use zarrfs_base::error::{ErrorContext, Result};
use zarrfs_store::{Key, Stat};

/// Maximum number of answers kept in a request, the latest ones. One node needs a dozen; a request
/// for the file of a group visits many.
const MOST: usize = 32;

/// Maximum number of bytes of a text that is kept in a request.
const SMALL: usize = 2 << 10;

thread_local! {
    static ANSWERS: RefCell<Option<RequestAnswers>> = const { RefCell::new(None) };
}

/// The answers that the request of this thread has got.
struct RequestAnswers {
    /// The address that tells one hierarchy from another.
    hierarchy: usize,
    stats: Vec<KeptAnswer>,
    /// Number of answers so far.
    count: usize,
}

/// What the store has answered about a key.
struct KeptAnswer {
    key: Key,
    stat: Option<Stat>,
    /// The value of this version, if it was read and is [`SMALL`].
    text: Option<Vec<u8>>,
}

impl RequestAnswers {
    fn keep(&mut self, key: Key, stat: Option<Stat>) {
        let place = self.count % MOST;
        let answer = KeptAnswer {
            key,
            stat,
            text: None,
        };
        match self.stats.get_mut(place) {
            Some(oldest) => *oldest = answer,
            None => self.stats.push(answer),
        }
        self.count += 1;
    }
}

/// While this value lives, its thread asks the store of the hierarchy for each stat once.
pub struct AskedOnce {
    is_outermost: bool,
    /// The value stays on its thread.
    on_thread: PhantomData<*const ()>,
}

impl Drop for AskedOnce {
    fn drop(&mut self) {
        if self.is_outermost {
            ANSWERS.take();
        }
    }
}

impl Hierarchy {
    /// Has this thread ask for each stat of a document or node once, until the returned value is
    /// dropped. The caller must not change the store meanwhile, nor wait for a change.
    pub fn asked_once(&self) -> AskedOnce {
        let is_outermost = ANSWERS.with_borrow_mut(|answers| {
            let is_outermost = answers.is_none();
            answers.get_or_insert_with(|| RequestAnswers {
                hierarchy: self.address(),
                stats: Vec::new(),
                count: 0,
            });
            is_outermost
        });
        AskedOnce {
            is_outermost,
            on_thread: PhantomData,
        }
    }

    /// Returns the stat of a key, with the key in an error.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if let Some(stat) = self.known_stat(key) {
            return Ok(stat);
        }
        let stat = self.store.stat(key).context(key)?;
        ANSWERS.with_borrow_mut(|answers| {
            if let Some(answers) = answers
                && answers.hierarchy == self.address()
            {
                answers.keep(key.clone(), stat.clone());
            }
        });
        Ok(stat)
    }

    /// Returns the answer that the request has got about `key`.
    pub(super) fn known_stat(&self, key: &Key) -> Option<Option<Stat>> {
        ANSWERS.with_borrow(|answers| {
            let answers = answers.as_ref();
            let answers = answers.filter(|answers| answers.hierarchy == self.address())?;
            let known = answers.stats.iter().find(|answer| answer.key == *key);
            known.map(|answer| answer.stat.clone())
        })
    }

    /// Returns the value of `key` with this stat if the request has read it.
    pub(super) fn text_read(&self, key: &Key, stat: &Stat) -> Option<Vec<u8>> {
        ANSWERS.with_borrow(|answers| {
            let answers = answers.as_ref();
            let answers = answers.filter(|answers| answers.hierarchy == self.address())?;
            let known = answers.stats.iter().find(|answer| answer.key == *key)?;
            let is_same = known.stat.as_ref() == Some(stat);
            known.text.clone().filter(|_| is_same)
        })
    }

    /// Keeps the value of `key` with this stat for the rest of the request.
    pub(super) fn keep_text(&self, key: &Key, stat: &Stat, text: &[u8]) {
        if text.len() > SMALL {
            return;
        }
        ANSWERS.with_borrow_mut(|answers| {
            if let Some(answers) = answers
                && answers.hierarchy == self.address()
                && let Some(known) = answers.stats.iter_mut().find(|answer| answer.key == *key)
                && known.stat.as_ref() == Some(stat)
            {
                known.text = Some(text.to_vec());
            }
        });
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.arrays).addr()
    }
}
