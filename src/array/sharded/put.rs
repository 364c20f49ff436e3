//! Stores the pending chunks of an object by one put, with copies of all its other chunks.
//!
//! Invariants:
//!
//! * The new object is a copy of one version of the former one, except for the pending chunks. It
//!   replaces that version and no other.
//! * Where stored bytes show through a pending chunk, they are those of that version.
//! * A chunk is pending until an object that holds it is stored.

use super::load_index::{check_whole_shard, rebuild_memory};
use super::pending::{ChunkChanges, PendingBytes, PendingChunk, PendingChunks};
use super::recorded;
use super::{
    LoadedShard, Lookup, OR_CHANGING_TAGS, Recency, Replacements, ShardBytes, ShardedChunks,
    StoredChunk,
};
use crate::array::chunks::Chunks;
use crate::array::{Array, Due, Ranges, Scratch, WriteBack};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::{self, lock};
use zarrfs_base::spill_file::SpillFile;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::shard::{EntryChange, ShardPiece};
use zarrfs_store::{Replaces, StoreExt, ValuePiece, Version};

/// A piece of the new bytes of a shard.
enum NewPiece {
    Bytes(Vec<u8>),
    Pending(Arc<PendingChunk>),
    Old(ShardBytes),
}

impl NewPiece {
    fn len(&self) -> u64 {
        match self {
            NewPiece::Bytes(bytes) => bytes.len() as u64,
            NewPiece::Pending(pending) => pending.bytes.as_ref().map_or(0, PendingBytes::size),
            NewPiece::Old(bytes) => bytes.len(),
        }
    }

    /// Returns the piece for the store.
    fn for_store(&self) -> ValuePiece<'_> {
        match self {
            NewPiece::Bytes(bytes) => ValuePiece::Bytes(bytes),
            NewPiece::Pending(pending) => match &pending.bytes {
                Some(PendingBytes::Memory(held)) => ValuePiece::Bytes(&held.bytes),
                Some(PendingBytes::Spilled(spilled)) => {
                    let (file, range) = spilled.place();
                    ValuePiece::File(file, range)
                }
                None => ValuePiece::Bytes(&[]),
            },
            NewPiece::Old(ShardBytes::Stored(range)) => ValuePiece::Old(range.clone()),
            NewPiece::Old(ShardBytes::Decoded(decoded, range)) => {
                ValuePiece::Bytes(&decoded.bytes[range.start as usize..range.end as usize])
            }
        }
    }
}

impl Array {
    /// Stores all objects with pending chunks without confirming the array's document, for a caller
    /// that changes the shape.
    ///
    /// # Errors
    ///
    /// The first error, after every object was tried.
    pub fn store_objects(&self) -> Result<()> {
        let how = WriteBack::unconfirmed();
        let mut done = Ok(());
        for object in self.due(Due::All) {
            done = done.and(self.store_object(object, how));
        }
        done
    }

    /// Stores the pending chunks of an object by one put.
    ///
    /// # Errors
    ///
    /// The chunks stay pending. If the array was replaced or became smaller, that is no error:
    /// the lost bytes are recorded.
    pub fn store_object(&self, object: u64, how: WriteBack) -> Result<()> {
        self.chunks.flush(self, object, how)
    }
}

impl ShardedChunks {
    /// Stores an object, so that there is space for another pending chunk. Returns whether there
    /// was one that could be stored.
    pub(super) fn make_space(&self, array: &Array, how: WriteBack) -> bool {
        self.pending().objects().into_iter().any(|object| {
            let since = Instant::now();
            let stored = self.flush(array, object, WriteBack { since, ..how });
            stored.map_err(|e| array.stats.not_stored(e)).is_ok()
        })
    }

    /// Stores the pending chunks of an object.
    pub(super) fn store_object(&self, array: &Array, object: u64, how: WriteBack) -> Result<()> {
        let pending = self.pending();
        let _alone = array.lock_replacing(&array.object_key(object));
        let Some((&first, _)) = pending.chunks(object).first_key_value() else {
            return Ok(());
        };
        if first.0 >= array.grid.chunk_count() {
            return Ok(());
        }
        let key = array.stored_key(first);
        let _lock = array.store.lock(&key, how.since)?;
        array.replace_repeatedly(first, &format!(", {OR_CHANGING_TAGS}"), how, || {
            if how.losses.is_some() {
                if array.freshness.is_replaced() {
                    pending.remove(object, &pending.chunks(object));
                    array.record_loss(first, "the array was replaced or deleted", how);
                    return Ok(true);
                }
                self.drop_outside(array, &pending, object, how)?;
            }
            let changes = pending.chunks(object);
            // a larger array shares these chunks and stores them
            let is_foreign = changes
                .last_key_value()
                .is_some_and(|(last, _)| last.0 >= array.grid.chunk_count());
            if changes.is_empty() || is_foreign {
                return Ok(true);
            }
            let is_stored = self
                .try_store_object(array, object, first, &changes, how.spill)
                .context(&key)?;
            if !is_stored {
                self.forget_object(array, first);
            }
            Ok(is_stored)
        })
    }

    /// Makes one attempt to store an object. Returns false, with nothing stored, if another writer
    /// was faster, or a chunk had to be laid over another version.
    fn try_store_object(
        &self,
        array: &Array,
        object: u64,
        first: ChunkId,
        changes: &ChunkChanges,
        spill: Option<&Arc<SpillFile>>,
    ) -> Result<bool> {
        let old = match self.load_shard(array, first, 0, None, Recency::Now)? {
            Lookup::Found(shard) => Some(shard),
            Lookup::Absent => None,
            Lookup::Replaced => return Ok(false),
        };
        let version = old.as_ref().map(|old| old.object.version.clone());
        if self.rebase_all(array, changes, spill)? {
            return Ok(false);
        }
        let all: Vec<(ChunkId, &Arc<PendingChunk>)> = changes
            .iter()
            .map(|(chunk, change)| (*chunk, change))
            .collect();
        let start = Instant::now();
        let new = match self.rebuild(array, 0, old.as_deref(), &all)? {
            Lookup::Replaced => return Ok(false),
            Lookup::Absent => {
                if !self.delete_object(array, first, version.as_ref())? {
                    return Ok(false);
                }
                None
            }
            Lookup::Found(pieces) => {
                match self.put_object(array, first, &pieces, version.as_ref())? {
                    None => return Ok(false),
                    new => new,
                }
            }
        };
        let pending = self.pending();
        pending.record_put(start.elapsed());
        if let Some(new) = &new {
            let versions = changes
                .iter()
                .map(|(chunk, change)| (*chunk, change.version.clone()));
            lock(&self.versions).record_put(object, version.as_ref(), new, versions);
        }
        self.drop_kept(self.outer_shard(array, first));
        pending.remove(object, changes);
        Ok(true)
    }

    /// Replaces the version `old` of an object; `None` creates it. Returns `None` if the store
    /// holds another version.
    fn put_object(
        &self,
        array: &Array,
        first: ChunkId,
        pieces: &[NewPiece],
        old: Option<&Version>,
    ) -> Result<Option<Version>> {
        let replaces = old.map_or(Replaces::Nothing, Replaces::Version);
        let for_store = pieces.iter().map(NewPiece::for_store).collect::<Vec<_>>();
        let start = Instant::now();
        let put = array
            .store
            .put_pieces(&array.stored_key(first), &for_store, replaces);
        array.stats.store_time.add_since(start);
        let put = put?;
        if put.is_some() {
            array.stats.object_stores.add(1);
            array
                .stats
                .bytes_written
                .add(pieces.iter().map(NewPiece::len).sum());
        }
        Ok(put)
    }

    /// Deletes an object that has no chunks left. Returns false if the store holds another version
    /// than `old`.
    fn delete_object(&self, array: &Array, first: ChunkId, old: Option<&Version>) -> Result<bool> {
        let Some(old) = old else { return Ok(true) };
        // a store can't delete under a condition
        array.store.forget(&array.stored_key(first));
        match array.stat_object(first)? {
            Some(stat) if stat.version.may_equal(old) => {
                array.store.delete(&array.stored_key(first)).map(|_| true)
            }
            _ => Ok(false),
        }
    }

    /// Returns the pieces of a shard after changes to chunks in it; `Absent` if no chunk is left.
    /// `old` is the former shard.
    fn rebuild(
        &self,
        array: &Array,
        level: usize,
        old: Option<&LoadedShard>,
        changes: &[(ChunkId, &Arc<PendingChunk>)],
    ) -> Result<Lookup<Vec<NewPiece>>> {
        let Some((first, _)) = changes.first() else {
            return Ok(Lookup::Absent);
        };
        let codec = self
            .shards
            .index_codec(level, &array.grid.indices(*first))?;
        let _memory = memory::take(rebuild_memory(&codec))?;
        let index = match old.map(|old| &old.index) {
            None => None,
            Some(Ok(index)) => Some(index),
            Some(Err(_)) if self.is_covered(array, level, changes) => None,
            Some(Err(e)) => return Err(unreplaced(e)),
        };
        let mut by_slot: BTreeMap<usize, Vec<(ChunkId, &Arc<PendingChunk>)>> = BTreeMap::new();
        for (chunk, change) in changes {
            by_slot
                .entry(self.shards.slot(level, &array.grid.indices(*chunk)))
                .or_default()
                .push((*chunk, change));
        }
        let mut entries = BTreeMap::new();
        let mut new = BTreeMap::new();
        for (slot, changes) in by_slot {
            let place = match index.map_or(Ok(None), |index| index.get(slot)) {
                Err(e)
                    if level + 1 < self.shards.levels()
                        && !self.is_covered(array, level + 1, &changes) =>
                {
                    return Err(unreplaced(&e));
                }
                place => old
                    .zip(place.ok().flatten())
                    .map(|(old, place)| old.part(place)),
            };
            let pieces = match self.rebuild_entry(array, level, place, &changes)? {
                Lookup::Found(pieces) => Some(pieces),
                Lookup::Absent => None,
                Lookup::Replaced => return Ok(Lookup::Replaced),
            };
            let size = pieces
                .as_ref()
                .map(|pieces| pieces.iter().map(NewPiece::len).sum());
            entries.insert(slot, size.map_or(EntryChange::Erase, EntryChange::Put));
            new.extend(pieces.map(|pieces| (slot, pieces)));
        }
        let Some(layout) = codec.rebuild(index, &entries)? else {
            return Ok(Lookup::Absent);
        };
        let mut pieces = Vec::new();
        for piece in layout {
            match piece {
                ShardPiece::Old(range) => {
                    pieces.extend(old.map(|old| NewPiece::Old(old.bytes.part(range))))
                }
                ShardPiece::New(slot) => pieces.extend(new.remove(&slot).into_iter().flatten()),
                ShardPiece::Index(bytes) => pieces.push(NewPiece::Bytes(bytes)),
            }
        }
        self.encode_shard(array, level, old, changes[0].0, pieces)
    }

    /// Returns the pieces of an entry of a shard after `changes` to chunks in it. `place` is the
    /// location of its former bytes.
    fn rebuild_entry(
        &self,
        array: &Array,
        level: usize,
        place: Option<StoredChunk>,
        changes: &[(ChunkId, &Arc<PendingChunk>)],
    ) -> Result<Lookup<Vec<NewPiece>>> {
        let Some((chunk, change)) = changes.first() else {
            return Ok(Lookup::Absent);
        };
        if level + 1 == self.shards.levels() {
            return Ok(match change.bytes {
                Some(_) => Lookup::Found(vec![NewPiece::Pending((*change).clone())]),
                None => Lookup::Absent,
            });
        }
        let inner = match place {
            None => Lookup::Absent,
            Some(_) => self.load_shard(array, *chunk, level + 1, place, Recency::Now)?,
        };
        match inner {
            Lookup::Found(inner) => self.rebuild(array, level + 1, Some(&inner), changes),
            Lookup::Absent => self.rebuild(array, level + 1, None, changes),
            Lookup::Replaced => Ok(Lookup::Replaced),
        }
    }

    /// Encodes a shard as a whole if the shards of `level` are encoded so; otherwise returns
    /// `pieces`.
    fn encode_shard(
        &self,
        array: &Array,
        level: usize,
        old: Option<&LoadedShard>,
        chunk: ChunkId,
        pieces: Vec<NewPiece>,
    ) -> Result<Lookup<Vec<NewPiece>>> {
        let Some(pipeline) = self.shards.around(level) else {
            return Ok(Lookup::Found(pieces));
        };
        let size: u64 = pieces.iter().map(NewPiece::len).sum();
        let scratch = pipeline.scratch(size as usize);
        check_whole_shard(size, scratch)?;
        // encoding takes as much again
        let _memory = memory::take(size as usize * 2 + scratch)?;
        let mut value = Vec::new();
        let mut part = Vec::new();
        memory::reserve(&mut value, size as usize)?;
        for piece in &pieces {
            match piece {
                NewPiece::Bytes(bytes) => value.extend_from_slice(bytes),
                NewPiece::Pending(pending) => {
                    if let Some(bytes) = &pending.bytes {
                        bytes.read(0..u64::MAX, &mut part)?;
                        value.extend_from_slice(&part);
                    }
                }
                NewPiece::Old(bytes) => {
                    let Some(object) = old.map(|old| &old.object) else {
                        return Ok(Lookup::Replaced);
                    };
                    if !self.read_shard_bytes(
                        array,
                        chunk,
                        object,
                        bytes,
                        0..bytes.len(),
                        &mut part,
                    )? {
                        return Ok(Lookup::Replaced);
                    }
                    value.extend_from_slice(&part);
                }
            }
        }
        let mut encoded = Vec::new();
        pipeline.encode(&value, &mut encoded)?;
        Ok(Lookup::Found(vec![NewPiece::Bytes(encoded)]))
    }

    /// Returns whether every chunk of a shard of `level` has changed as a whole.
    fn is_covered(
        &self,
        array: &Array,
        level: usize,
        changes: &[(ChunkId, &Arc<PendingChunk>)],
    ) -> bool {
        let Some((chunk, _)) = changes.first() else {
            return false;
        };
        let count = self.shards.count(
            self.shards.shard(level, &array.grid.indices(*chunk)),
            &array.grid,
        );
        changes.len() as u64 == count && changes.iter().all(|(_, change)| change.written.is_none())
    }

    /// Lays partly written chunks over the chunks that the store holds now. Returns whether that
    /// changed a chunk, so that `changes` is out of date.
    fn rebase_all(
        &self,
        array: &Array,
        changes: &ChunkChanges,
        spill: Option<&Arc<SpillFile>>,
    ) -> Result<bool> {
        let mut has_changed = false;
        for (chunk, change) in changes
            .iter()
            .filter(|(_, change)| change.written.is_some())
        {
            let now = self.rebased(array, *chunk, Recency::Opening, spill)?;
            has_changed |= now.is_none_or(|now| now.version != change.version);
        }
        Ok(has_changed)
    }

    /// Returns a pending chunk. If stored bytes show through it and another writer has replaced
    /// them, the chunk is first laid over the new ones.
    pub(super) fn rebased(
        &self,
        array: &Array,
        chunk: ChunkId,
        recency: Recency,
        spill: Option<&Arc<SpillFile>>,
    ) -> Result<Option<Arc<PendingChunk>>> {
        let mut replaced = Replacements::default();
        loop {
            let Some(change) = self.pending_chunk(array, chunk) else {
                return Ok(None);
            };
            let (Some(written), Some(bytes)) = (&change.written, &change.bytes) else {
                return Ok(Some(change));
            };
            let found = self.locate(array, chunk, recency, &mut replaced)?;
            let base = found.map(|found| self.stat_stored(array, chunk, &found).version);
            let is_same = match (&base, &change.base) {
                (Some(now), Some(before)) => now.may_equal(before),
                (now, before) => now == before,
            };
            if is_same {
                return Ok(Some(change));
            }
            let new = self.laid_over(array, chunk, bytes, written, spill, &mut replaced)?;
            let new = PendingChunk::new(Some(new), Some(written.clone()), base)?;
            let object = self.outer_shard(array, chunk).number;
            self.pending()
                .replace(object, chunk, &change, Some(new), |new| {
                    recorded::record(array, chunk, new)
                });
            replaced.count(array.stored_key(chunk))?;
        }
    }

    /// Copies the written bytes of an encoded chunk over the stored chunk, and encodes the result.
    fn laid_over(
        &self,
        array: &Array,
        chunk: ChunkId,
        bytes: &PendingBytes,
        written: &Ranges,
        spill: Option<&Arc<SpillFile>>,
        replaced: &mut Replacements,
    ) -> Result<PendingBytes> {
        let mut scratch = Scratch::default();
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        memory::check_chunk(array.chunk_memory().saturating_mul(2))?;
        bytes.read(0..u64::MAX, &mut scratch.stored)?;
        array
            .decode(array.pipeline()?, None, &mut ours, &mut scratch)
            .map_err(|e| array.in_chunk(chunk, e))?;
        let limit = array.pipeline()?.max_stored();
        match self.read_stored(array, chunk, 0..limit, &mut scratch.stored, replaced)? {
            Some(_) => {
                array
                    .decode(array.pipeline()?, None, &mut theirs, &mut scratch)
                    .map_err(|e| array.undecodable(chunk, &scratch.stored, e))?;
            }
            None => {
                memory::resize(&mut theirs, ours.len())?;
                array.metadata().write_fill(&mut theirs, 0);
            }
        }
        for range in written.iter() {
            theirs[range.clone()].copy_from_slice(&ours[range]);
        }
        let encoded = array.encode_chunk(chunk, &theirs, &mut scratch)?;
        PendingBytes::hold(encoded, spill)
    }

    /// Removes from the pending chunks of an object the bytes outside the array in the store, which
    /// another program has made smaller.
    fn drop_outside(
        &self,
        array: &Array,
        pending: &PendingChunks,
        object: u64,
        how: WriteBack,
    ) -> Result<()> {
        for (chunk, change) in pending.chunks(object) {
            let outside = array.outside(chunk);
            let Some(bytes) = change.bytes.as_ref().filter(|_| !outside.is_empty()) else {
                continue;
            };
            let before = change
                .written
                .clone()
                .unwrap_or_else(|| Ranges::from(0..array.grid.chunk_size(chunk)));
            let mut written = before.clone();
            written.remove_all(&outside);
            if written == before {
                continue;
            }
            let mut new = None;
            if !written.is_empty() {
                let mut copy = Vec::new();
                bytes.read(0..u64::MAX, &mut copy)?;
                // a version that no chunk has, so that the bytes written inside are laid over the
                // stored chunk
                let none = Some(Version::Pending(0));
                let bytes = PendingBytes::hold(&copy, how.spill)?;
                new = Some(PendingChunk::new(Some(bytes), Some(written), none)?);
            }
            array.record_loss(chunk, "the array became smaller", how);
            pending.replace(object, chunk, &change, new, |new| {
                recorded::record(array, chunk, new)
            });
        }
        Ok(())
    }
}

/// Returns the error for a shard that is not replaced, because its index cannot be read and not all
/// of its chunks were written.
fn unreplaced(e: &Error) -> Error {
    let why = "the shard is damaged, and would be replaced only if all of its chunks were written or removed";
    Error::new(Kind::Damaged, format!("{e}: {why}"))
}
