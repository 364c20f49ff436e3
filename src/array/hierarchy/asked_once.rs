//! What the store has answered during one request that changes nothing. To find a node and to show
//! it takes the stats of the same few documents many times over. Each is asked for once in a
//! request: no answer is older than the request. This module must not know what documents mean.

use super::{DOCUMENTS, Hierarchy};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use zarrfs_base::error::{ErrorContext, Result};
use zarrfs_store::{ByteRange, Key, Stat, StoreExt};

/// Maximum number of answers kept in a request, those that were used last. One node needs a dozen;
/// a request for the file of a group visits many.
const MOST: usize = 32;

/// Maximum number of bytes of a text that is kept in a request.
pub(super) const SMALL: usize = 4 << 10;

thread_local! {
    static ANSWERS: RefCell<Option<RequestAnswers>> = const { RefCell::new(None) };
}

/// The answers that the request of this thread has got.
pub(super) struct RequestAnswers {
    /// The address that tells one hierarchy from another.
    hierarchy: usize,
    stats: Vec<KeptAnswer>,
    /// Number of questions so far.
    count: usize,
    /// Whether documents are read where their stats are asked for.
    reads: bool,
}

/// What the store has answered about a key.
struct KeptAnswer {
    key: Key,
    stat: Option<Stat>,
    /// The value of this version, if it was read and is [`SMALL`].
    text: Option<Vec<u8>>,
    /// The number of the question that it has answered last.
    used: usize,
}

impl RequestAnswers {
    fn keep(&mut self, answer: KeptAnswer) {
        self.count += 1;
        let answer = KeptAnswer {
            used: self.count,
            ..answer
        };
        if self.stats.len() < MOST {
            self.stats.push(answer);
        } else if let Some(oldest) = self.stats.iter_mut().min_by_key(|answer| answer.used) {
            *oldest = answer;
        }
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
        self.asking_once(false)
    }

    /// Does what [`Hierarchy::asked_once`] does for a caller that is going to read the documents of
    /// many groups and arrays. To read a small document from a file takes as many calls as its
    /// stat, so that a local store is asked for both together, until the request ends.
    pub fn read_once(&self) -> AskedOnce {
        self.asking_once(self.store.concurrency() == 1)
    }

    fn asking_once(&self, reads: bool) -> AskedOnce {
        ANSWERS.with_borrow_mut(|answers| {
            let is_outermost = answers.is_none();
            let answers = answers.get_or_insert_with(|| RequestAnswers {
                hierarchy: self.address(),
                stats: Vec::new(),
                count: 0,
                reads,
            });
            answers.reads |= reads;
            AskedOnce {
                is_outermost,
                on_thread: PhantomData,
            }
        })
    }

    /// Returns the stat of a key, with the key in an error.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.stat_or_read(key, reads_documents() && DOCUMENTS.contains(&key.name()))
    }

    /// Returns the stat of a key as [`Hierarchy::stat`] does. `reads` says whether the caller will
    /// read the value.
    pub(super) fn stat_or_read(&self, key: &Key, reads: bool) -> Result<Option<Stat>> {
        if let Some(stat) = self.known_stat(key) {
            return Ok(stat);
        }
        let read = if reads { self.read_small(key) } else { None };
        let (stat, text) = match read {
            Some((stat, text)) => (stat, Some(text)),
            None => (self.store.stat(key).context(key)?, None),
        };
        self.keep_answer(KeptAnswer {
            key: key.clone(),
            stat: stat.clone(),
            text,
            used: 0,
        });
        Ok(stat)
    }

    fn keep_answer(&self, answer: KeptAnswer) {
        ANSWERS.with_borrow_mut(|answers| {
            if let Some(answers) = answers
                && answers.hierarchy == self.address()
            {
                answers.keep(answer);
            }
        });
    }

    /// Reads a document. Returns `None` if that fails, or if the document is not [`SMALL`].
    fn read_small(&self, key: &Key) -> Option<(Option<Stat>, Vec<u8>)> {
        let mut text = Vec::new();
        let whole = ByteRange::Whole(SMALL as u64);
        let stat = self.store.read(key, &whole, &mut text).ok()?;
        Some((stat, text))
    }

    /// Returns the answer that the request has got about `key`.
    pub(super) fn known_stat(&self, key: &Key) -> Option<Option<Stat>> {
        ANSWERS.with_borrow_mut(|answers| {
            let answers = answers.as_mut();
            let answers = answers.filter(|answers| answers.hierarchy == self.address())?;
            let known = answers.stats.iter_mut().find(|answer| answer.key == *key)?;
            answers.count += 1;
            known.used = answers.count;
            Some(known.stat.clone())
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

/// Returns whether the request of this thread reads documents where their stats are asked for.
pub(super) fn reads_documents() -> bool {
    ANSWERS.with_borrow(|answers| answers.as_ref().is_some_and(|answers| answers.reads))
}
