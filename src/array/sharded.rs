//! Reading chunks of shards. The index of a shard, and a shard that is encoded as a whole, are kept for the version of the
//! object they came from. A range that is read of another version is not used: the object was replaced, and everything about it
//! is read again.
//!
//! A chunk keeps its version when this mount replaces its object for the sake of other chunks: see `versions`.

mod hand_over;
mod put;
mod versions;

use super::pending::PendingChunk;
use super::{Array, Opening};
use crate::error::{Error, Kind, Result};
use crate::store::{EntryKind, Stat, Version};
use crate::util::memory::{self, Grant, Reclaim, lock};
use crate::zarr::grid::ChunkId;
use crate::zarr::shard::{Index, ShardId, Shards};
use lru::LruCache;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use versions::KnownVersions;

/// Maximum number of shards kept of an array.
const KEPT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Locks that serialize the loading of shards.
const STRIPES: usize = 16;

/// Bytes of waste that a shard may have beside as many as its chunks take.
const WASTE: u64 = 64 << 10;

/// Maximum number of times that a chunk is looked for again because its object was replaced meanwhile.
const ATTEMPTS: usize = 64;

/// A shard whose index was read.
struct LoadedShard {
    /// The stat of the object that holds the shard.
    object: Stat,
    /// Where its bytes are.
    bytes: ShardBytes,
    /// The index; an error if it is damaged.
    index: Result<Index>,
    _memory: Grant,
}

#[derive(Clone)]
enum ShardBytes {
    /// These bytes of the object.
    Stored(Range<u64>),
    /// A range of decoded bytes.
    Decoded(Arc<DecodedShard>, Range<u64>),
}

/// The bytes of a shard that was encoded as a whole.
struct DecodedShard {
    bytes: Vec<u8>,
    _memory: Grant,
}

/// Where the bytes of a chunk, or of an inner shard, are.
struct StoredChunk {
    /// The stat of the object that holds it.
    object: Stat,
    bytes: ShardBytes,
}

/// What was found in an object.
enum Lookup<T> {
    Found(T),
    /// There is nothing.
    Absent,
    /// Nothing is known: the object was replaced meanwhile.
    Replaced,
}

/// The shards of one array that were used last.
pub(super) struct ShardCache {
    /// Protects the shards, each with the latest opening in which the store confirmed its object.
    loaded: Mutex<LruCache<ShardId, (Opening, Arc<LoadedShard>)>>,
    /// Each serializes the loading of some shards. They protect no data.
    loading: [Mutex<()>; STRIPES],
    /// Protects the versions of chunks that differ from those of their objects.
    versions: Mutex<KnownVersions>,
}

impl ShardCache {
    pub fn new() -> Arc<Self> {
        let cache = Arc::new(ShardCache {
            loaded: Mutex::new(LruCache::new(KEPT)),
            loading: Default::default(),
            versions: Mutex::default(),
        });
        memory::register(&cache);
        cache
    }

    fn lock_loading(&self, id: ShardId) -> MutexGuard<'_, ()> {
        lock(&self.loading[(id.number as usize ^ id.level) % STRIPES])
    }
}

impl Reclaim for ShardCache {
    fn reclaim(&self) {
        if let Ok(mut loaded) = self.loaded.try_lock() {
            loaded.clear();
        }
    }
}

/// How recent the confirmation of an object must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recency {
    /// The store is asked now.
    Now,
    /// It was asked in the latest opening of the array.
    Opening,
}

impl Array {
    /// Returns what the store knows of a chunk of shards; `None` if it is not stored. Where the index is damaged, every chunk of
    /// the shard has the stat of its object: none may look missing.
    pub(super) fn stat_in_shard(&self, shards: &Shards, chunk: ChunkId) -> Result<Option<Stat>> {
        self.stat_in_shard_as_of(shards, chunk, Recency::Now)
    }

    fn stat_in_shard_as_of(&self, shards: &Shards, chunk: ChunkId, recency: Recency) -> Result<Option<Stat>> {
        if let Some(pending) = self.rebased(shards, chunk, recency, None)? {
            return Ok(self.stat_pending(chunk, &pending));
        }
        match self.locate(shards, chunk, recency) {
            Ok(found) => Ok(found.map(|found| self.stat_stored(shards, chunk, &found))),
            Err(e) if e.kind() == Kind::Damaged => self.stat_object(chunk),
            Err(e) => Err(e),
        }
    }

    /// Returns the stat of a stored chunk: that of its object, with its own size and version.
    fn stat_stored(&self, shards: &Shards, chunk: ChunkId, found: &StoredChunk) -> Stat {
        let object = shards.shard(0, &self.grid.indices(chunk)).number;
        let version = lock(&self.shard_cache.versions).version(object, chunk, &found.object.version);
        Stat { size: found.bytes.len(), version, ..found.object.clone() }
    }

    /// Returns the stat of a pending chunk; `None` if it was erased.
    fn stat_pending(&self, chunk: ChunkId, pending: &PendingChunk) -> Option<Stat> {
        let size = pending.bytes.as_ref()?.size();
        let stat = Stat::value(size, pending.modified, pending.version.clone());
        // a remote store has no permissions
        let object = if self.is_remote() { None } else { self.stat_object(chunk).ok().flatten() };
        Some(stat.restricted(object.and_then(|object| object.permissions)))
    }

    /// Calls `each` with the stat of each chunk of shards, in order, until it returns false.
    pub(super) fn stat_in_shards(
        &self,
        shards: &Shards,
        chunks: &mut dyn Iterator<Item = ChunkId>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        // an object is asked for once in a call
        let mut asked = HashSet::new();
        for chunk in chunks {
            let object = shards.shard(0, &self.grid.indices(chunk)).number;
            let recency = if asked.insert(object) { Recency::Now } else { Recency::Opening };
            if !each(self.stat_in_shard_as_of(shards, chunk, recency)) {
                return;
            }
        }
    }

    /// Returns whether a chunk is stored, or may be because its shard is damaged. `is_first` asks the store for the object.
    pub(super) fn may_be_stored(&self, shards: &Shards, chunk: ChunkId, is_first: bool) -> bool {
        let recency = if is_first { Recency::Now } else { Recency::Opening };
        match self.pending_chunk(chunk) {
            Some(pending) => pending.bytes.is_some(),
            None => !matches!(self.locate(shards, chunk, recency), Ok(None)),
        }
    }

    /// Makes the next look at an object ask the store itself: what a cache knows of the object is out of date.
    fn forget_object(&self, chunk: ChunkId) {
        self.store.forget(&self.extent(chunk).key);
    }

    fn stat_object(&self, chunk: ChunkId) -> Result<Option<Stat>> {
        let key = self.extent(chunk).key;
        self.store.stat(&key).map_err(|e| e.context(&key))
    }

    /// Reads the bytes `range` of a stored chunk, fewer if it ends earlier. The stat has the chunk's size, and the version of the
    /// object they were read from.
    pub(super) fn read_in_shard(
        &self,
        shards: &Shards,
        chunk: ChunkId,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        if let Some(pending) = self.rebased(shards, chunk, Recency::Opening, None)? {
            let Some(bytes) = &pending.bytes else { return Ok(None) };
            bytes.read(range, out).map_err(|e| e.context(self.extent(chunk)))?;
            return Ok(self.stat_pending(chunk, &pending));
        }
        self.read_stored(shards, chunk, range, out)
    }

    /// Reads a stored chunk as [`Array::read_in_shard`] does, also if another one is pending.
    fn read_stored(
        &self,
        shards: &Shards,
        chunk: ChunkId,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        for attempt in 0..ATTEMPTS {
            let recency = if attempt == 0 { Recency::Opening } else { Recency::Now };
            let Some(found) = self.locate(shards, chunk, recency)? else { return Ok(None) };
            let stat = self.stat_stored(shards, chunk, &found);
            let end = range.end.min(stat.size);
            if self.read_shard_bytes(chunk, &found.object, &found.bytes, range.start.min(end)..end, out)? {
                return Ok(Some(stat));
            }
            self.forget_object(chunk);
        }
        Err(replaced_always().context(self.extent(chunk)))
    }

    /// Reads a whole stored chunk of at most `limit` bytes.
    pub(super) fn get_in_shard(
        &self,
        shards: &Shards,
        chunk: ChunkId,
        limit: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<Version>> {
        let Some(stat) = self.read_in_shard(shards, chunk, 0..limit, out)? else { return Ok(None) };
        if stat.size > limit {
            let why = format!("chunk of {} bytes, more than the {limit} it may have", stat.size);
            return Err(Error::damaged(why).context(self.extent(chunk)));
        }
        Ok(Some(stat.version))
    }

    /// Reads a part of the bytes of a shard or chunk; returns false if the object was replaced since its stat.
    fn read_shard_bytes(
        &self,
        chunk: ChunkId,
        object: &Stat,
        bytes: &ShardBytes,
        part: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        match bytes {
            ShardBytes::Stored(place) => {
                let key = self.extent(chunk).key;
                let start = Instant::now();
                let got = self.store.get_range(&key, place.start + part.start..place.start + part.end, out);
                self.stats.store_time.add_since(start);
                let got = got.map_err(|e| e.context(&key))?;
                self.stats.bytes_stored.add(out.len() as u64);
                Ok(got.is_some_and(|now| now.version == object.version && out.len() as u64 == part.end - part.start))
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

    /// Returns where a chunk is; `None` if it is not stored.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`] if an index or the chunk's entry is.
    fn locate(&self, shards: &Shards, chunk: ChunkId, recency: Recency) -> Result<Option<StoredChunk>> {
        for attempt in 0..ATTEMPTS {
            match self.look_for(shards, chunk, if attempt == 0 { recency } else { Recency::Now })? {
                Lookup::Found(found) => return Ok(Some(found)),
                Lookup::Absent => return Ok(None),
                Lookup::Replaced => self.forget_object(chunk),
            }
        }
        Err(replaced_always().context(self.extent(chunk)))
    }

    /// Looks once for a chunk, from its object down to the innermost shard.
    fn look_for(&self, shards: &Shards, chunk: ChunkId, recency: Recency) -> Result<Lookup<StoredChunk>> {
        let indices = self.grid.indices(chunk);
        let in_object = |e: Error| e.context(self.extent(chunk));
        let mut place: Option<StoredChunk> = None;
        for level in 0..shards.levels() {
            let shard = match self.load_shard(shards, chunk, level, place.take(), recency)? {
                Lookup::Found(shard) => shard,
                Lookup::Absent => return Ok(Lookup::Absent),
                Lookup::Replaced => return Ok(Lookup::Replaced),
            };
            let index = shard.index.as_ref().map_err(|e| in_object(e.clone()))?;
            match index.get(shards.slot(level, &indices)).map_err(in_object)? {
                Some(entry) => place = Some(shard.part(entry)),
                None => return Ok(Lookup::Absent),
            }
        }
        Ok(place.map_or(Lookup::Absent, Lookup::Found))
    }

    /// Returns the shard of a level that holds `chunk`. `place` is where it is in the shard around it; `None` for an object.
    fn load_shard(
        &self,
        shards: &Shards,
        chunk: ChunkId,
        level: usize,
        place: Option<StoredChunk>,
        recency: Recency,
    ) -> Result<Lookup<Arc<LoadedShard>>> {
        let id = shards.shard(level, &self.grid.indices(chunk));
        let opening = self.freshness.opening();
        if let Some(shard) = self.kept_shard(id, place.as_ref(), recency) {
            return Ok(Lookup::Found(shard));
        }
        let _loading = self.shard_cache.lock_loading(id);
        // another thread may have loaded it meanwhile
        if let Some(shard) = self.kept_shard(id, place.as_ref(), recency) {
            return Ok(Lookup::Found(shard));
        }
        let (object, bytes) = match place {
            Some(StoredChunk { object, bytes }) => (object, bytes),
            None => {
                let Some(stat) = self.stat_object(chunk)?.filter(|stat| stat.kind == EntryKind::Value) else {
                    lock(&self.shard_cache.loaded).pop(&id);
                    return Ok(Lookup::Absent);
                };
                if let Some(shard) = self.confirm_shard(id, &stat, opening) {
                    return Ok(Lookup::Found(shard));
                }
                let whole = ShardBytes::Stored(0..stat.size);
                (stat, whole)
            }
        };
        let Some(shard) = self.read_shard(shards, chunk, id, object, bytes)? else { return Ok(Lookup::Replaced) };
        let shard = Arc::new(shard);
        lock(&self.shard_cache.loaded).put(id, (opening, shard.clone()));
        Ok(Lookup::Found(shard))
    }

    /// Returns the kept shard if it is recent enough, or lies in the same version of its object as `place`.
    fn kept_shard(&self, id: ShardId, place: Option<&StoredChunk>, recency: Recency) -> Option<Arc<LoadedShard>> {
        let mut loaded = lock(&self.shard_cache.loaded);
        let (confirmed, shard) = loaded.get(&id)?;
        let is_current = match place {
            Some(place) => shard.object.version == place.object.version,
            None => recency == Recency::Opening && self.freshness.is_current(*confirmed),
        };
        is_current.then(|| shard.clone())
    }

    /// Returns the kept shard if it is of the version of `stat`, which the store reported after `opening`.
    fn confirm_shard(&self, id: ShardId, stat: &Stat, opening: Opening) -> Option<Arc<LoadedShard>> {
        let mut loaded = lock(&self.shard_cache.loaded);
        let (confirmed, shard) = loaded.get_mut(&id)?;
        let is_same = shard.object.version == stat.version;
        is_same.then(|| {
            *confirmed = (*confirmed).max(opening);
            shard.clone()
        })
    }

    /// Reads the index of a shard, and the whole shard if it is encoded as such. Returns `None` if the object was replaced.
    fn read_shard(
        &self,
        shards: &Shards,
        chunk: ChunkId,
        id: ShardId,
        object: Stat,
        bytes: ShardBytes,
    ) -> Result<Option<LoadedShard>> {
        let (bytes, size) = match shards.around(id.level) {
            None => (bytes.clone(), bytes.len()),
            Some(_) => match self.decode_shard(shards, chunk, id, &object, &bytes)? {
                Some(decoded) => {
                    let size = decoded.bytes.len() as u64;
                    (ShardBytes::Decoded(Arc::new(decoded), 0..size), size)
                }
                None => return Ok(None),
            },
        };
        let codec = shards.index_codec(id.level);
        let memory = memory::take(codec.memory()).map_err(|e| e.context(self.extent(chunk)))?;
        let loaded =
            |index, memory| LoadedShard { object: object.clone(), bytes: bytes.clone(), index, _memory: memory };
        let place = match codec.place(size) {
            Ok(place) => place,
            Err(e) => return Ok(Some(loaded(Err(e), Grant::default()))),
        };
        let (mut encoded, _encoded) = (Vec::new(), memory::take((place.end - place.start) as usize)?);
        if !self.read_shard_bytes(chunk, &object, &bytes, place, &mut encoded)? {
            return Ok(None);
        }
        self.stats.index_reads.add(1);
        match codec.decode(&encoded, size) {
            // a lack of memory says nothing about the index
            Err(e) if e.kind() != Kind::Damaged => Err(e.context(self.extent(chunk))),
            index => Ok(Some(loaded(index, memory))),
        }
    }

    /// Decodes a shard that is encoded as a whole. Returns `None` if the object was replaced.
    fn decode_shard(
        &self,
        shards: &Shards,
        chunk: ChunkId,
        id: ShardId,
        object: &Stat,
        bytes: &ShardBytes,
    ) -> Result<Option<DecodedShard>> {
        let in_object = |e: Error| e.context(self.extent(chunk));
        let Some(pipeline) = shards.around(id.level) else { return Ok(None) };
        let (len, limit) = (bytes.len(), memory::limit() as u64 / 4);
        let mut memory = self.take_for_whole_shard(len).map_err(in_object)?;
        let mut encoded = Vec::new();
        if !self.read_shard_bytes(chunk, object, bytes, 0..len, &mut encoded)? {
            return Ok(None);
        }
        // waste between the chunks may make a shard larger than what its chunks need
        let without_waste = shards.max_size(id.level, self.pipeline()?.max_stored());
        let wanted = without_waste.saturating_mul(2).saturating_add(WASTE).min(limit) as usize;
        memory.grow(wanted).map_err(in_object)?;
        let mut decoded = Vec::new();
        pipeline.decode_within(&encoded, &mut decoded, wanted).map_err(in_object)?;
        decoded.shrink_to_fit();
        drop(encoded);
        memory.shrink_to(decoded.capacity());
        Ok(Some(DecodedShard { bytes: decoded, _memory: memory }))
    }
}

impl Array {
    /// Returns a grant for a shard that is encoded as a whole.
    fn take_for_whole_shard(&self, len: u64) -> Result<Grant> {
        let limit = memory::limit() as u64 / 4;
        if len > limit {
            let why = format!(
                "a shard of {len} bytes, encoded as a whole: there is memory for {limit}, mount with a larger --cache-size"
            );
            return Err(Error::new(Kind::System(libc::ENOMEM), why));
        }
        memory::take(len as usize)
    }
}

impl LoadedShard {
    /// Returns the place of the bytes `range` of the shard.
    fn part(&self, range: Range<u64>) -> StoredChunk {
        StoredChunk { object: self.object.clone(), bytes: self.bytes.part(range) }
    }
}

impl ShardBytes {
    fn len(&self) -> u64 {
        match self {
            ShardBytes::Stored(place) | ShardBytes::Decoded(_, place) => place.end - place.start,
        }
    }

    /// Returns the part `range` of these bytes.
    fn part(&self, range: Range<u64>) -> ShardBytes {
        let within = |place: &Range<u64>| place.start + range.start..place.start + range.end;
        match self {
            ShardBytes::Stored(place) => ShardBytes::Stored(within(place)),
            ShardBytes::Decoded(decoded, place) => ShardBytes::Decoded(decoded.clone(), within(place)),
        }
    }
}

fn replaced_always() -> Error {
    let why = format!("was replaced each time that a chunk in it was read, {ATTEMPTS} times");
    Error::new(Kind::System(libc::EIO), why)
}

#[cfg(test)]
mod tests;
