//! What is wrong with a store: each group, array and stored chunk is looked at once, and what is found is told at once.
//! Nothing is written, and nothing grows with the number of chunks. It knows neither the decoded view nor who is told.

use crate::array::Array;
use crate::array::hierarchy::{Hierarchy, REMOVED, StoredNode};
use crate::error::{Error, Kind};
use crate::store::Key;
use crate::zarr::grid::ChunkId;
use crate::zarr::metadata::{V1_META, ZARRAY};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod chunks;
mod documents;
mod fault;
mod names;
mod tally;

pub use chunks::{Examined, examine_all};
pub use fault::{Finding, FindingKind, Severity};

use chunks::{examine, per_batch};
use names::{Name, Names};
use tally::Tally;

/// How a store is checked.
#[derive(Clone, Copy)]
pub struct CheckOptions<'a> {
    /// Decode each chunk; else its size alone is looked at.
    pub deep: bool,
    /// Threads that decode.
    pub threads: usize,
    /// Set by somebody who has seen enough: what is under way is finished, and no more is begun.
    pub stop: &'a AtomicBool,
}

impl CheckOptions<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Groups, also those without `.zgroup`.
    pub groups: u64,
    /// Arrays, also those whose metadata can't be honoured.
    pub arrays: u64,
    /// Stored chunks.
    pub chunks: u64,
    /// Stored bytes of them.
    pub bytes: u64,
    /// False if it was stopped before the end.
    pub complete: bool,
}

/// What is told while a store is checked.
pub enum Event<'a> {
    /// Something was found.
    Found(Finding),
    /// So many chunks of an array have been looked at; the summary is of the whole store so far.
    Progress(&'a Array, u64, Summary),
}

/// Checks everything in a store.
pub fn check(hierarchy: &Hierarchy, how: CheckOptions, tell: &mut dyn FnMut(Event)) -> Summary {
    let mut check = Check { hierarchy, how, tell, summary: Summary::default() };
    check.walk();
    check.summary
}

struct Check<'a> {
    hierarchy: &'a Hierarchy,
    how: CheckOptions<'a>,
    tell: &'a mut dyn FnMut(Event),
    summary: Summary,
}

impl Check<'_> {
    fn found(&mut self, fault: FindingKind, key: &Key, what: impl Into<String>) {
        (self.tell)(Event::Found(Finding::new(fault, key, what)));
    }

    /// Tells of an error that stood in the way of looking at `key`.
    fn failed(&mut self, fault: FindingKind, key: &Key, e: &Error) {
        (self.tell)(Event::Found(Finding::of_error(fault, key, e)));
    }

    fn walk(&mut self) {
        if !self.hierarchy.store().lists_all() {
            let what = "the store can't be listed: what it should not hold is not found";
            self.found(FindingKind::Unlisted, &Key::root(), what);
        }
        let mut stack = vec![Key::root()];
        while let Some(key) = stack.pop() {
            if self.how.is_stopped() {
                return;
            }
            match self.hierarchy.find(&key) {
                Ok(Some(StoredNode::Group)) => stack.extend(self.group(&key)),
                Ok(Some(StoredNode::Array(array))) => self.array(&array),
                Ok(Some(StoredNode::Damaged(e))) => self.damaged(&key, &e),
                // a value that was a prefix when it was listed, or went away
                Ok(_) => {}
                Err(e) => self.failed(FindingKind::Unreadable, &key, &e),
            }
        }
        self.summary.complete = !self.how.is_stopped();
    }

    fn damaged(&mut self, key: &Key, e: &Error) {
        self.summary.arrays += 1;
        let fault = match e.kind() {
            Kind::Unsupported => FindingKind::Unsupported,
            Kind::System(_) => FindingKind::Unreadable,
            _ => FindingKind::Metadata,
        };
        // the error names the document it came of
        let documents = [ZARRAY, V1_META, REMOVED].map(|name| key.join(name));
        let document = documents.iter().find(|document| e.message().starts_with(&format!("{document}: ")));
        self.failed(fault, document.unwrap_or(key), e);
        self.attributes(key);
    }

    fn array(&mut self, array: &Arc<Array>) {
        self.summary.arrays += 1;
        self.array_documents(array);
        match array.lists_all() {
            true => self.listed_chunks(array),
            false => self.asked_chunks(array),
        }
    }

    /// Looks at everything below an array.
    fn listed_chunks(&mut self, array: &Arc<Array>) {
        let mut names = match Names::of(array, self.hierarchy.store()) {
            Ok(names) => names,
            Err(e) => return self.failed(FindingKind::Unreadable, array.key(), &e),
        };
        let (mut tally, mut done) = (Tally::new(array.key()), 0);
        let mut batch = Vec::with_capacity(per_batch(array));
        loop {
            match names.next() {
                Some(Name::Chunk(chunk)) => batch.push(chunk),
                Some(Name::Stray(fault, key, what)) => tally.add(Finding::new(fault, &key, what), self.tell),
                Some(Name::Failed(key, e)) => {
                    tally.add(Finding::of_error(FindingKind::Unreadable, &key, &e), self.tell)
                }
                None => break,
            }
            if batch.len() == batch.capacity() {
                done += self.chunks(array, &batch, done);
                batch.clear();
            }
            if self.how.is_stopped() {
                break;
            }
        }
        self.chunks(array, &batch, done);
        tally.end(self.tell);
    }

    /// Asks for each chunk of the grid, where the store can't tell which there are.
    fn asked_chunks(&mut self, array: &Array) {
        let (count, step) = (array.grid().chunk_count(), per_batch(array) as u64);
        let mut from = 0;
        while from < count && !self.how.is_stopped() {
            let batch: Vec<ChunkId> = (from..count.min(from + step)).map(ChunkId).collect();
            from += self.chunks(array, &batch, from);
        }
    }

    /// Looks at some chunks of an array, of which `done` were looked at before; how many they were.
    fn chunks(&mut self, array: &Array, batch: &[ChunkId], done: u64) -> u64 {
        for Examined { chunk, stored, fault } in examine(array, batch, self.how) {
            self.summary.chunks += 1;
            self.summary.bytes += stored;
            if let Some(e) = fault {
                let fault =
                    if matches!(e.kind(), Kind::System(_)) { FindingKind::Unreadable } else { FindingKind::Chunk };
                self.failed(fault, &array.chunk_key(chunk), &e);
            }
        }
        let looked_at = batch.len() as u64;
        (self.tell)(Event::Progress(array, done + looked_at, self.summary));
        looked_at
    }
}

#[cfg(test)]
mod tests;
