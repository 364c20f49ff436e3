//! Chunks in shards, as [`Chunks`]. This file reads them. The index of a shard, and a shard that is
//! encoded as a whole, are kept for the version of the object they came from. A range that turns
//! out to belong to another version is not used: the object was replaced, and everything about it
//! is read again.
//!
//! A chunk is written to its object in two steps: `hand_over` makes it pending, `put` stores the
//! object. A chunk keeps its version when this mount replaces its object to store other chunks: see
//! `versions`.

mod hand_over;
mod load_index;
mod neighbors;
mod new_shard;
mod pending;
mod put;
mod recorded;
mod survey;
mod versions;

use super::chunks::{Chunks, Due, EncodedChunk, ObjectChunks, WriteBack};
use super::{Array, Opening};
use lru::LruCache;
pub use neighbors::{NeighborBytes, Neighbors};
use pending::{PendingBytes, PendingChunk, PendingChunks, are_too_many};
pub use recorded::RecordedChunk;
use std::any::Any;
use std::collections::HashSet;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
pub use survey::ShardUsage;
use versions::KnownVersions;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, Grant, Reclaim, lock};
use zarrfs_format::grid::{ChunkId, Grid};
use zarrfs_format::shard::{Index, ShardId, Shards};
use zarrfs_store::{Key, Replaces, Stat, StoreExt, Version};

/// Maximum number of shards kept per array.
const KEPT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Maximum number of missing objects kept per array.
const KEPT_MISSING: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Number of locks that serialize the loading of shards.
const STRIPES: usize = 16;

/// Maximum number of attempts to read a chunk while other writers replace its object.
const ATTEMPTS: usize = 64;

/// What looks like a writer who replaces an object again and again. Requests alone cannot tell the
/// two apart.
const OR_CHANGING_TAGS: &str =
    "unless the server states another ETag of an unchanged object in each answer";

/// Maximum size in bytes of an object that is read as a whole from a server that states no
/// versions. Of a larger one, the index and a chunk are compared by the size of the object.
const MAX_WHOLE: u64 = 16 << 20;

/// How often an object was replaced while a chunk in it was read.
#[derive(Default)]
struct Replacements(usize);

impl Replacements {
    /// Counts another replacement.
    ///
    /// # Errors
    ///
    /// EIO for the last attempt.
    fn count(&mut self, object: Key) -> Result<()> {
        self.0 += 1;
        if self.0 < ATTEMPTS {
            return Ok(());
        }
        let why = format!(
            "was replaced each time that a chunk in it was read, {ATTEMPTS} times, {OR_CHANGING_TAGS}"
        );
        Err(Error::new(Kind::System(libc::EIO), why).context(object))
    }
}

/// A shard whose index was read.
struct LoadedShard {
    /// The stat of the object that holds the shard.
    object: Stat,
    /// The location of the shard's bytes.
    bytes: ShardBytes,
    /// The index; an error if it is damaged.
    index: Result<Index>,
    _memory: Grant,
}

#[derive(Clone)]
enum ShardBytes {
    /// A range of the object.
    Stored(Range<u64>),
    /// A range of a decoded shard.
    Decoded(Arc<DecodedShard>, Range<u64>),
}

/// The bytes of a shard that was encoded as a whole.
struct DecodedShard {
    bytes: Vec<u8>,
    _memory: Grant,
}

/// The location of a chunk or of an inner shard.
struct StoredChunk {
    /// The stat of the object that holds it.
    object: Stat,
    bytes: ShardBytes,
}

/// The result of a lookup in an object.
enum Lookup<T> {
    Found(T),
    /// Nothing is stored.
    Absent,
    /// The result is unknown, because the object was replaced during the lookup.
    Replaced,
}

/// The chunks of one array in shards, with the most recently used shards.
pub(super) struct ShardedChunks {
    shards: Shards,
    /// Protects the pointer alone. After a resize, the old and the new `Array` share the pending
    /// chunks.
    pending: Mutex<Arc<PendingChunks>>,
    /// Protects the shards, each with the latest opening in which the store confirmed its object.
    loaded: Mutex<LruCache<ShardId, (Opening, Arc<LoadedShard>)>>,
    /// Protects the objects that were missing, each with the opening in which the store reported
    /// that.
    missing: Mutex<LruCache<u64, Opening>>,
    /// Each serializes the loading of some shards. They protect no data.
    loading: [Mutex<()>; STRIPES],
    /// Protects the versions of chunks that differ from those of their objects.
    versions: Mutex<KnownVersions>,
}

/// Returns a map of at most `most` entries that allocates nothing while it is empty: every array
/// has such maps, and there may be many arrays.
fn empty<K: Hash + Eq, V>(most: NonZeroUsize) -> LruCache<K, V> {
    let mut map = LruCache::unbounded();
    map.resize(most);
    map
}

impl ShardedChunks {
    pub fn new(shards: Shards) -> Arc<Self> {
        let new = Arc::new(ShardedChunks {
            shards,
            pending: Mutex::default(),
            loaded: Mutex::new(empty(KEPT)),
            missing: Mutex::new(empty(KEPT_MISSING)),
            loading: Default::default(),
            versions: Mutex::default(),
        });
        memory::register(&new);
        new
    }

    fn lock_loading(&self, id: ShardId) -> MutexGuard<'_, ()> {
        lock(&self.loading[(id.number as usize ^ id.level) % STRIPES])
    }
}

impl Reclaim for ShardedChunks {
    fn reclaim(&self) {
        if let Ok(mut loaded) = self.loaded.try_lock() {
            loaded.clear();
        }
    }
}

/// The required recency of the confirmation of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recency {
    /// The store confirms it now.
    Now,
    /// The store confirmed it in the latest opening of the array.
    Opening,
    /// Any confirmation will do: the caller reads the object next, which confirms or refutes the
    /// kept index.
    Any,
}

impl Chunks for ShardedChunks {
    fn objects<'a>(&'a self, _: &'a Array) -> &'a Grid {
        self.shards.objects()
    }

    fn object_of(&self, array: &Array, chunk: ChunkId) -> u64 {
        self.outer_shard(array, chunk).number
    }

    fn members(&self, array: &Array, object: u64) -> ObjectChunks {
        Box::new(self.shards.members(object, &array.grid))
    }

    fn stored_members(&self, array: &Arc<Array>, object: u64) -> ObjectChunks {
        let array = array.clone();
        let members = self.shards.members(object, &array.grid).enumerate();
        let stored = members.filter(move |(i, chunk)| {
            // ask the store for the object once
            let recency = if *i == 0 {
                Recency::Now
            } else {
                Recency::Opening
            };
            let chunks = array.in_shards();
            chunks.is_some_and(|chunks| chunks.may_be_stored(&array, *chunk, recency))
        });
        Box::new(stored.map(|(_, chunk)| chunk))
    }

    fn get(
        &self,
        array: &Array,
        chunk: ChunkId,
        limit: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<Version>> {
        let Some(stat) = self.get_range(array, chunk, 0..limit, out)? else {
            return Ok(None);
        };
        if stat.size > limit {
            let why = format!(
                "chunk of {} bytes, more than the {limit} it may have",
                stat.size
            );
            return Err(Error::damaged(why).context(array.stored_key(chunk)));
        }
        Ok(Some(stat.version))
    }

    fn get_range(
        &self,
        array: &Array,
        chunk: ChunkId,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        if let Some(pending) = self.rebased(array, chunk, Recency::Opening, None)? {
            let Some(bytes) = &pending.bytes else {
                return Ok(None);
            };
            bytes
                .read(range, out)
                .map_err(|e| e.context(array.stored_key(chunk)))?;
            return Ok(stat_pending(array, chunk, &pending));
        }
        self.read_stored(array, chunk, range, out, &mut Replacements::default())
    }

    fn stat(&self, array: &Array, chunk: ChunkId) -> Result<Option<Stat>> {
        self.stat_as_of(array, chunk, Recency::Now)
    }

    fn stat_many(
        &self,
        array: &Array,
        chunks: &mut dyn Iterator<Item = ChunkId>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        // ask the store once for each object
        let mut asked = HashSet::new();
        for chunk in chunks {
            let recency = if asked.insert(self.outer_shard(array, chunk)) {
                Recency::Now
            } else {
                Recency::Opening
            };
            if !each(self.stat_as_of(array, chunk, recency)) {
                return;
            }
        }
    }

    fn check_storable(&self, array: &Array) -> Result<()> {
        self.check_shards_storable(array)
    }

    /// Hands the chunk over. If that takes space, stores an object or, if no object can be stored,
    /// takes the memory nevertheless.
    fn put_if(
        &self,
        array: &Array,
        chunk: ChunkId,
        new: EncodedChunk,
        how: WriteBack,
    ) -> Result<Option<Version>> {
        let base = match new.replaces {
            Replaces::Version(version) => Some(version.clone()),
            Replaces::Anything | Replaces::Nothing => None,
        };
        let mut spill = how.spill;
        loop {
            let put = PendingBytes::hold(new.bytes, spill)
                .map_err(|e| e.context(array.stored_key(chunk)))
                .and_then(|held| {
                    self.hand_over(array, chunk, Some(held), new.written, base.clone())
                });
            match put {
                Err(e) if spill.is_some() && [libc::ENOMEM, libc::ENOSPC].contains(&e.errno()) => {
                    if !self.make_space(array, how) {
                        spill = None;
                    }
                }
                put => return put,
            }
        }
    }

    fn erase(&self, array: &Array, chunk: ChunkId, how: WriteBack) -> Result<bool> {
        let was_stored = self.stat(array, chunk)?.is_some();
        if was_stored {
            self.hand_over(array, chunk, None, None, None)?;
            if how.spill.is_some() && are_too_many() {
                self.make_space(array, how);
            }
        }
        Ok(was_stored)
    }

    fn due(&self, array: &Array, due: Due) -> Vec<u64> {
        let pending = self.pending();
        match due {
            Due::All => pending.objects(),
            Due::Quiet(now) => pending.quiet(now),
            Due::Close => {
                let is_outlived = array.freshness.unstored_count().is_some();
                pending.due_at_close(is_outlived)
            }
            Due::After(chunk) => {
                let id = self.outer_shard(array, chunk);
                let count = self.shards.count(id, &array.grid);
                let is_due = pending.is_complete(id.number, count);
                is_due.then_some(id.number).into_iter().collect()
            }
        }
    }

    fn flush(&self, array: &Array, object: u64, how: WriteBack) -> Result<()> {
        self.store_object(array, object, how)
            .inspect_err(|_| self.pending().record_failure(object))
    }

    fn forget(&self, array: &Array, chunk: ChunkId) {
        self.drop_kept(self.outer_shard(array, chunk));
        array.store.forget(&array.stored_key(chunk));
    }

    fn share_objects(&self) -> bool {
        true
    }
}

impl ShardedChunks {
    /// Returns the outermost shard that holds a chunk.
    fn outer_shard(&self, array: &Array, chunk: ChunkId) -> ShardId {
        self.shards.shard(0, &array.grid.indices(chunk))
    }

    /// Returns the stat of a chunk in a shard; `None` if the chunk is not stored. If the index is
    /// damaged, every chunk of the shard gets the stat of the object, since an existing chunk must
    /// not look missing.
    fn stat_as_of(&self, array: &Array, chunk: ChunkId, recency: Recency) -> Result<Option<Stat>> {
        if let Some(pending) = self.rebased(array, chunk, recency, None)? {
            return Ok(stat_pending(array, chunk, &pending));
        }
        match self.locate(array, chunk, recency, &mut Replacements::default()) {
            Ok(found) => Ok(found.map(|found| self.stat_stored(array, chunk, &found))),
            Err(e) if e.kind() == Kind::Damaged => array.stat_object(chunk),
            Err(e) => Err(e),
        }
    }

    /// Returns the stat of a stored chunk: the stat of its object, with the size and the version of
    /// the chunk.
    fn stat_stored(&self, array: &Array, chunk: ChunkId, found: &StoredChunk) -> Stat {
        let object = self.outer_shard(array, chunk).number;
        Stat {
            size: found.bytes.len(),
            version: lock(&self.versions).version(object, chunk, &found.object.version),
            ..found.object.clone()
        }
    }

    /// Returns whether a chunk is stored, or may be because its shard is damaged.
    fn may_be_stored(&self, array: &Array, chunk: ChunkId, recency: Recency) -> bool {
        match self.pending_chunk(array, chunk) {
            Some(pending) => pending.bytes.is_some(),
            None => !matches!(
                self.locate(array, chunk, recency, &mut Replacements::default()),
                Ok(None)
            ),
        }
    }

    /// Drops what is kept of an object that this mount has replaced.
    fn drop_kept(&self, id: ShardId) {
        // a load in flight may be about to keep the former index, or to record that there is none
        let _loading = self.lock_loading(id);
        lock(&self.loaded).pop(&id);
        lock(&self.missing).pop(&id.number);
    }

    /// Forgets the outdated state of an object, so that the next lookup asks the store.
    fn forget_object(&self, array: &Array, chunk: ChunkId) {
        let id = self.outer_shard(array, chunk);
        lock(&self.loaded).pop(&id);
        lock(&self.missing).pop(&id.number);
        array.store.forget(&array.stored_key(chunk));
    }

    /// Reads a chunk from the store as [`Chunks::get_range`] does, even if a newer one is
    /// pending.
    fn read_stored(
        &self,
        array: &Array,
        chunk: ChunkId,
        range: Range<u64>,
        out: &mut Vec<u8>,
        replaced: &mut Replacements,
    ) -> Result<Option<Stat>> {
        // reading the bytes shows whether the index is current
        let mut recency = if array.is_remote() {
            Recency::Any
        } else {
            Recency::Opening
        };
        let mut may_take_object = true;
        loop {
            let opening = array.freshness.opening();
            let found = match self.locate(array, chunk, recency, replaced) {
                Ok(Some(found)) if may_take_object && found.is_read_whole() => {
                    may_take_object = false;
                    self.load_object(array, chunk, &found.object)?;
                    continue;
                }
                Ok(Some(found)) if recency != Recency::Any || found.bytes.is_stored() => found,
                Err(e) if e.kind() != Kind::Damaged => return Err(e),
                // no bytes will be read that show whether the index is current
                _ if recency == Recency::Any => {
                    recency = Recency::Opening;
                    continue;
                }
                found => return found.map(|_| None),
            };
            let stat = self.stat_stored(array, chunk, &found);
            let end = range.end.min(stat.size);
            let part = range.start.min(end)..end;
            if self.read_shard_bytes(array, chunk, &found.object, &found.bytes, part, out)? {
                if recency == Recency::Any {
                    self.confirm_shard(self.outer_shard(array, chunk), &found.object, opening);
                }
                return Ok(Some(stat));
            }
            replaced.count(array.stored_key(chunk))?;
            self.forget_object(array, chunk);
            recency = Recency::Now;
        }
    }

    /// Reads a part of the bytes of a shard or chunk; returns false if the object was replaced
    /// since its stat.
    fn read_shard_bytes(
        &self,
        array: &Array,
        chunk: ChunkId,
        object: &Stat,
        bytes: &ShardBytes,
        part: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        match bytes {
            ShardBytes::Stored(place) => {
                let within = place.start + part.start..place.start + part.end;
                let got = array.timed_range(&array.stored_key(chunk), within, out)?;
                Ok(got.is_some_and(|now| {
                    now.version.may_equal(&object.version)
                        && out.len() as u64 == part.end - part.start
                }))
            }
            ShardBytes::Decoded(decoded, place) => {
                out.clear();
                let part = (place.start + part.start) as usize..(place.start + part.end) as usize;
                memory::reserve(out, part.len())?;
                out.extend_from_slice(&decoded.bytes[part]);
                Ok(true)
            }
        }
    }

    /// Returns the location of a chunk; `None` if it is not stored.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`] if an index, or the entry of the chunk in it, is damaged; those of
    /// [`Replacements::count`].
    fn locate(
        &self,
        array: &Array,
        chunk: ChunkId,
        mut recency: Recency,
        replaced: &mut Replacements,
    ) -> Result<Option<StoredChunk>> {
        loop {
            match self.try_locate(array, chunk, recency)? {
                Lookup::Found(found) => return Ok(Some(found)),
                Lookup::Absent => return Ok(None),
                Lookup::Replaced => {
                    replaced.count(array.stored_key(chunk))?;
                    self.forget_object(array, chunk);
                    recency = Recency::Now;
                }
            }
        }
    }

    /// Makes one attempt to find a chunk, from its object down to the innermost shard.
    fn try_locate(
        &self,
        array: &Array,
        chunk: ChunkId,
        recency: Recency,
    ) -> Result<Lookup<StoredChunk>> {
        let indices = array.grid.indices(chunk);
        let mut place: Option<StoredChunk> = None;
        for level in 0..self.shards.levels() {
            let shard = match self.load_shard(array, chunk, level, place.take(), recency)? {
                Lookup::Found(shard) => shard,
                Lookup::Absent => return Ok(Lookup::Absent),
                Lookup::Replaced => return Ok(Lookup::Replaced),
            };
            let entry = match &shard.index {
                Ok(index) => index.get(self.shards.slot(level, &indices)),
                Err(e) => Err(e.clone()),
            };
            match entry.map_err(|e| e.context(array.stored_key(chunk)))? {
                Some(entry) => place = Some(shard.part(entry)),
                None => return Ok(Lookup::Absent),
            }
        }
        Ok(place.map_or(Lookup::Absent, Lookup::Found))
    }
}

impl Array {
    /// Returns the offset of a chunk in the object that it shares with others, in bytes; `None` if
    /// it is not stored there, waits to be stored, or lies in a shard that is encoded as a whole.
    pub fn offset_in_object(&self, chunk: ChunkId) -> Result<Option<u64>> {
        let Some(chunks) = self
            .in_shards()
            .filter(|chunks| chunks.pending_chunk(self, chunk).is_none())
        else {
            return Ok(None);
        };
        let found = chunks.locate(self, chunk, Recency::Opening, &mut Replacements::default())?;
        Ok(found.and_then(|found| match found.bytes {
            ShardBytes::Stored(range) => Some(range.start),
            ShardBytes::Decoded(..) => None,
        }))
    }

    /// Returns the chunks as the type that knows shards; `None` if each chunk is a value alone.
    fn in_shards(&self) -> Option<&ShardedChunks> {
        let chunks: &dyn Any = &*self.chunks;
        chunks.downcast_ref()
    }
}

/// Returns the stat of a pending chunk; `None` if it was erased.
fn stat_pending(array: &Array, chunk: ChunkId, pending: &PendingChunk) -> Option<Stat> {
    let size = pending.bytes.as_ref()?.size();
    let stat = Stat::value(size, pending.modified, pending.version.clone());
    // a remote store has no permissions
    let object = if array.is_remote() {
        None
    } else {
        array.stat_object(chunk).ok().flatten()
    };
    Some(stat.restricted(object.and_then(|object| object.permissions)))
}

impl StoredChunk {
    /// Returns whether the object is read as a whole before the chunk, so that the index and the
    /// chunk are of one answer: the server states no version that would show it, and the object is
    /// small.
    fn is_read_whole(&self) -> bool {
        self.object.version.is_unstated() && self.bytes.is_stored() && self.object.size <= MAX_WHOLE
    }
}

impl LoadedShard {
    /// Returns the location of an entry; `None` if nothing is stored or the index is damaged.
    fn valid_entry(&self, slot: usize) -> Option<StoredChunk> {
        let entry = self.index.as_ref().ok()?.get(slot).ok()??;
        Some(self.part(entry))
    }

    /// Returns the location of the bytes `range` of the shard.
    fn part(&self, range: Range<u64>) -> StoredChunk {
        StoredChunk {
            object: self.object.clone(),
            bytes: self.bytes.part(range),
        }
    }
}

impl ShardBytes {
    /// Returns whether the bytes have to be read from the object, because they are not kept in
    /// memory.
    fn is_stored(&self) -> bool {
        matches!(self, ShardBytes::Stored(_))
    }

    fn len(&self) -> u64 {
        match self {
            ShardBytes::Stored(place) | ShardBytes::Decoded(_, place) => place.end - place.start,
        }
    }

    /// Returns the part `range` of these bytes.
    fn part(&self, range: Range<u64>) -> ShardBytes {
        let mut part = self.clone();
        let (ShardBytes::Stored(place) | ShardBytes::Decoded(_, place)) = &mut part;
        *place = place.start + range.start..place.start + range.end;
        part
    }
}

#[cfg(test)]
mod tests;
