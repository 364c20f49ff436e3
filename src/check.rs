//! Checks a store: examines each group, array and stored chunk once and reports findings
//! immediately. It writes nothing, and its memory does not grow with the number of chunks. The
//! module does not know how a report is printed.

use crate::array::hierarchy::{Hierarchy, Prefixes, WalkBounds};
use crate::array::{Array, ShardUsage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zarrfs_base::error::{Error, Kind};
use zarrfs_format::grid::ChunkId;
use zarrfs_store::{Key, StoreExt};

mod absent;
mod array_keys;
mod chunks;
mod documents;
mod finding;
mod names;
mod tally;
mod together;

pub use absent::{AbsentChunks, items_of};
pub use chunks::{Examined, examine_all};
pub use finding::{Finding, FindingKind, Severity};

use array_keys::{ArrayKey, ArrayKeys};
use chunks::{examine, per_batch};
use tally::Tally;

/// The options of a check.
#[derive(Clone, Copy)]
pub struct CheckOptions<'a> {
    /// Whether to decode each chunk, rather than to examine only its size.
    pub deep: bool,
    /// Maximum number of decoding threads.
    pub threads: usize,
    /// Set by the caller to stop the check: work in flight is finished, and no more is started.
    pub stop: &'a AtomicBool,
}

impl CheckOptions<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The amount of examined data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of groups, including those without `.zgroup`.
    pub groups: u64,
    /// Number of arrays, including those with unusable metadata.
    pub arrays: u64,
    /// Number of stored chunks.
    pub chunks: u64,
    /// Stored size of these chunks in bytes.
    pub bytes: u64,
    /// Whether the check reached the end.
    pub complete: bool,
}

/// A report of a running check.
pub enum Event<'a> {
    /// A finding.
    Found(Finding),
    /// The array, the number of its chunks examined so far, and the summary of the whole store so
    /// far.
    Progress(&'a Array, u64, Summary),
}

/// Checks a whole store and calls `tell` for each event.
pub fn check(hierarchy: &Hierarchy, how: CheckOptions, tell: &mut dyn FnMut(Event)) -> Summary {
    let mut check = Check {
        hierarchy,
        how,
        tell,
        summary: Summary::default(),
    };
    check.run();
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

    /// Reports an error that prevented the examination of `key`.
    fn failed(&mut self, fault: FindingKind, key: &Key, e: &Error) {
        (self.tell)(Event::Found(Finding::of_error(fault, key, e)));
    }

    fn run(&mut self) {
        if !self.hierarchy.store().lists_all() {
            let what = if self.hierarchy.lists_nodes() {
                "the store can't be listed: what it should not hold is not found"
            } else {
                "the store can't be listed, and has no .zmetadata: its groups and arrays are not known"
            };
            self.found(FindingKind::Unlisted, &Key::root(), what);
        }
        let mut levels = vec![Prefixes::sorted(vec![Key::root()])];
        let mut arrays = Vec::new();
        let mut bounds = WalkBounds::without_end();
        while let Some(level) = levels.last_mut()
            && !self.how.is_stopped()
            && !bounds.is_spent()
        {
            let hierarchy = self.hierarchy;
            // to decode chunks takes longer than to find arrays
            let _once = (!self.how.deep).then(|| hierarchy.read_once());
            let next = level.next(hierarchy.store());
            let admitted = next.as_ref().map_or(Ok(()), |key| bounds.admit(key));
            let next = next.map(|key| (admitted.and_then(|()| hierarchy.find(&key)), key));
            if let Some((Ok(Some(node)), _)) = &next
                && let Some(array) = node.array()
            {
                arrays.push(array);
                if arrays.len() >= self.arrays_together() {
                    self.arrays(&std::mem::take(&mut arrays));
                }
                continue;
            }
            self.arrays(&std::mem::take(&mut arrays));
            match next {
                None => drop(levels.pop()),
                Some((Ok(Some(node)), key)) if node.is_group() => {
                    levels.push(Prefixes::sorted(self.group(&key)))
                }
                Some((Ok(Some(node)), key)) => {
                    // neither is what was deleted or replaced since it was listed
                    if let Err(e) = node.usable() {
                        self.damaged(&key, &e);
                    }
                }
                Some((Ok(None), _)) => {}
                Some((Err(e), key)) if e.kind() == Kind::TooLarge => {
                    self.failed(FindingKind::LeftOut, &key, &e)
                }
                Some((Err(e), key)) => self.failed(FindingKind::Unreadable, &key, &e),
            }
        }
        self.arrays(&arrays);
        for line in self.hierarchy.left_out() {
            self.found(FindingKind::LeftOut, &Key::root(), line);
        }
        self.summary.complete =
            !self.how.is_stopped() && !bounds.is_spent() && self.hierarchy.lists_nodes();
    }

    fn damaged(&mut self, key: &Key, e: &Error) {
        self.summary.arrays += 1;
        let fault = FindingKind::of_document(e, FindingKind::Metadata);
        self.failed(fault, &self.hierarchy.array_document_key(key), e);
        self.attributes(key);
    }

    fn array(&mut self, array: &Arc<Array>) {
        self.summary.arrays += 1;
        self.array_documents(array);
        if array.lists_all() {
            self.listed_chunks(array)
        } else {
            self.unlisted_chunks(array)
        }
    }

    /// Checks all keys below an array.
    fn listed_chunks(&mut self, array: &Arc<Array>) {
        array.prefetch_levels();
        let mut names = match ArrayKeys::of(array, self.hierarchy.store()) {
            Ok(names) => names,
            Err(e) => return self.failed(FindingKind::Unreadable, array.key(), &e),
        };
        let mut tally = Tally::new(array.key());
        let mut done = 0;
        let mut batch = Vec::with_capacity(per_batch(array));
        loop {
            match names.next() {
                Some(ArrayKey::Shard(object)) => done += self.shard(array, object, done),
                Some(ArrayKey::Chunk(chunk)) => batch.push(chunk),
                Some(ArrayKey::Stray(fault, key, what)) => {
                    tally.add(Finding::new(fault, &key, what), self.tell)
                }
                Some(ArrayKey::Failed(key, e)) => tally.add(
                    Finding::of_error(FindingKind::Unreadable, &key, &e),
                    self.tell,
                ),
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

    /// Requests each chunk of the grid from a store that cannot list.
    fn unlisted_chunks(&mut self, array: &Array) {
        if let Some(objects) = array.shard_count() {
            let mut done = 0;
            for object in 0..objects {
                if self.how.is_stopped() {
                    break;
                }
                done += self.shard(array, object, done);
            }
            return;
        }
        let count = array.grid().chunk_count();
        let step = per_batch(array) as u64;
        let mut from = 0;
        while from < count && !self.how.is_stopped() {
            let batch: Vec<ChunkId> = (from..count.min(from + step)).map(ChunkId).collect();
            from += self.chunks(array, &batch, from);
        }
    }

    /// Examines a batch of an array's chunks after `done` others, and returns the size of the
    /// batch.
    fn chunks(&mut self, array: &Array, batch: &[ChunkId], done: u64) -> u64 {
        for (chunk, e) in self.unreadable(array, batch) {
            self.failed(kind_of_chunk(&e), &array.stored_key(chunk), &e);
        }
        let examined = batch.len() as u64;
        (self.tell)(Event::Progress(array, done + examined, self.summary));
        examined
    }

    /// Examines and counts a batch of chunks. Returns those that cannot be read, with the reason.
    fn unreadable(&mut self, array: &Array, batch: &[ChunkId]) -> Vec<(ChunkId, Error)> {
        let mut unreadable = Vec::new();
        for examined in examine(array, batch, self.how) {
            self.summary.chunks += 1;
            self.summary.bytes += examined.stored;
            unreadable.extend(examined.fault.map(|e| (examined.chunk, e)));
        }
        unreadable
    }

    /// Examines shard number `object` after `done` chunks of the array. Returns the number of its
    /// chunks that are done.
    fn shard(&mut self, array: &Array, object: u64, done: u64) -> u64 {
        let mut members = array.object_members(object).peekable();
        let Some(&first) = members.peek() else {
            return 0;
        };
        let key = array.stored_key(first);
        match array.survey_shard(object) {
            Ok(usage) => self.shard_usage(&key, &usage.unwrap_or_default()),
            // no chunk of the shard can be read
            Err(e) => {
                self.failed(kind_of_chunk(&e), &key, &e);
                return members.count() as u64;
            }
        }
        let mut tally = Tally::new(&key);
        let mut examined = 0;
        while members.peek().is_some() && !self.how.is_stopped() {
            let batch: Vec<ChunkId> = members.by_ref().take(per_batch(array)).collect();
            for (chunk, e) in self.unreadable(array, &batch) {
                let finding = Finding::of_error(kind_of_chunk(&e), &key, &e);
                tally.add(finding.in_chunk(array.chunk_path(chunk).name()), self.tell);
            }
            examined += batch.len() as u64;
            (self.tell)(Event::Progress(array, done + examined, self.summary));
        }
        tally.end(self.tell);
        examined
    }

    fn shard_usage(&mut self, key: &Key, usage: &ShardUsage) {
        let ShardUsage {
            size,
            used,
            outside,
        } = *usage;
        if size.saturating_sub(used) > size / 2 {
            let what = format!(
                "{} of {size} bytes belong to no chunk of the array",
                size - used
            );
            self.found(FindingKind::ShardWaste, key, what);
        }
        if outside > 0 {
            let what = format!("the index has entries for chunks outside the array: {outside}");
            self.found(FindingKind::ShardOutside, key, what);
        }
    }
}

/// Returns the kind of finding for an error of examining a chunk.
fn kind_of_chunk(e: &Error) -> FindingKind {
    match e.kind() {
        Kind::System(libc::ENOMEM) => FindingKind::Memory,
        Kind::System(_) => FindingKind::Unreadable,
        _ => FindingKind::Chunk,
    }
}

#[cfg(test)]
mod tests;
