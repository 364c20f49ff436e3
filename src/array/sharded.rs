//! Reading chunks of shards. The index of a shard, and a shard that is encoded as a whole, are kept for the version of the
//! object they came from. A range that is read of another version is not used: the object was replaced, and its index is read
//! again.

use super::{Array, Opening};
use crate::error::{Error, Kind, Result};
use crate::store::{EntryKind, Stat, Version};
use crate::util::memory::{self, Grant, Reclaim, lock};
use crate::zarr::grid::ChunkId;
use crate::zarr::shard::{Index, ShardId, Shards};
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

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
pub(super) struct StoredChunk {
    /// The stat of the object, with the size of the chunk.
    pub stat: Stat,
    bytes: ShardBytes,
}

/// The shards of one array that were used last.
pub(super) struct ShardCache {
    /// Protects the shards, each with the latest opening in which the store confirmed its object.
    loaded: Mutex<LruCache<ShardId, (Opening, Arc<LoadedShard>)>>,
    /// Each serializes the loading of some shards. They protect no data.
    loading: [Mutex<()>; STRIPES],
}

impl ShardCache {
    pub fn new() -> Arc<Self> {
        let cache = Arc::new(ShardCache { loaded: Mutex::new(LruCache::new(KEPT)), loading: Default::default() });
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
        match self.locate(shards, chunk, Recency::Now) {
            Ok(found) => Ok(found.map(|found| found.stat)),
            Err(e) if e.kind() == Kind::Damaged => self.stat_object(chunk),
            Err(e) => Err(e),
        }
    }

    /// Calls `each` with the stat of each chunk of shards, in order, until it returns false.
    pub(super) fn stat_in_shards(
        &self,
        shards: &Shards,
        chunks: &mut dyn Iterator<Item = ChunkId>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        // an object is asked for once in a call
        let mut asked = HashMap::new();
        for chunk in chunks {
            let object = shards.shard(0, &self.grid.indices(chunk)).number;
            let recency = if asked.insert(object, ()).is_some() { Recency::Opening } else { Recency::Now };
            let found = match self.locate(shards, chunk, recency) {
                Ok(found) => Ok(found.map(|found| found.stat)),
                Err(e) if e.kind() == Kind::Damaged => self.stat_object(chunk),
                Err(e) => Err(e),
            };
            if !each(found) {
                return;
            }
        }
    }

    /// Returns whether a chunk is stored, or may be because its shard is damaged. `is_first` asks the store for the object.
    pub(super) fn may_be_stored(&self, shards: &Shards, chunk: ChunkId, is_first: bool) -> bool {
        let recency = if is_first { Recency::Now } else { Recency::Opening };
        !matches!(self.locate(shards, chunk, recency), Ok(None))
    }

    /// Returns the error for a change of a chunk.
    pub(super) fn in_shards(&self) -> Error {
        let why = "chunks are in shards, which this version reads and does not write";
        Error::new(Kind::ReadOnly, why).context(&self.key)
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
        for attempt in 0..ATTEMPTS {
            let recency = if attempt == 0 { Recency::Opening } else { Recency::Now };
            let Some(StoredChunk { stat, bytes }) = self.locate(shards, chunk, recency)? else { return Ok(None) };
            let end = range.end.min(stat.size);
            if self.read_shard_bytes(chunk, &stat, &bytes, range.start.min(end)..end, out)? {
                return Ok(Some(stat));
            }
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

    /// Reads a part of the bytes of a shard or chunk; returns false if the object was replaced since `stat`.
    fn read_shard_bytes(
        &self,
        chunk: ChunkId,
        stat: &Stat,
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
                Ok(got.is_some_and(|now| now.version == stat.version && out.len() as u64 == part.end - part.start))
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
        let indices = self.grid.indices(chunk);
        let in_object = |e: Error| e.context(self.extent(chunk));
        let mut parent: Option<StoredChunk> = None;
        for level in 0..shards.levels() {
            let id = shards.shard(level, &indices);
            let Some(shard) = self.load_shard(shards, chunk, id, parent.take(), recency)? else { return Ok(None) };
            let index = shard.index.as_ref().map_err(|e| in_object(e.clone()))?;
            let entry = index.get(shards.slot(level, &indices)).map_err(in_object)?;
            let Some(entry) = entry else { return Ok(None) };
            let stat = Stat { size: entry.end - entry.start, ..shard.object.clone() };
            parent = Some(StoredChunk { stat, bytes: shard.bytes.part(entry) });
        }
        Ok(parent)
    }

    /// Returns the shard `id`, which holds `chunk`. `place` is where it is in the shard around it; `None` for an object. Returns
    /// `None` if it is not stored.
    fn load_shard(
        &self,
        shards: &Shards,
        chunk: ChunkId,
        id: ShardId,
        place: Option<StoredChunk>,
        recency: Recency,
    ) -> Result<Option<Arc<LoadedShard>>> {
        let opening = self.freshness.opening();
        if let Some(shard) = self.kept_shard(id, place.as_ref(), recency) {
            return Ok(Some(shard));
        }
        let _loading = self.shard_cache.lock_loading(id);
        // another thread may have loaded it meanwhile
        if let Some(shard) = self.kept_shard(id, place.as_ref(), recency) {
            return Ok(Some(shard));
        }
        for _ in 0..ATTEMPTS {
            let found = match &place {
                Some(StoredChunk { stat, bytes }) => Some((stat.clone(), bytes.clone())),
                None => {
                    let stat = self.stat_object(chunk)?.filter(|stat| stat.kind == EntryKind::Value);
                    stat.map(|stat| (stat.clone(), ShardBytes::Stored(0..stat.size)))
                }
            };
            let Some((stat, bytes)) = found else {
                lock(&self.shard_cache.loaded).pop(&id);
                return Ok(None);
            };
            if place.is_none()
                && let Some(shard) = self.confirm_shard(id, &stat, opening)
            {
                return Ok(Some(shard));
            }
            if let Some(shard) = self.read_shard(shards, chunk, id, stat, bytes)? {
                let shard = Arc::new(shard);
                lock(&self.shard_cache.loaded).put(id, (opening, shard.clone()));
                return Ok(Some(shard));
            }
            if place.is_some() {
                break;
            }
        }
        Err(replaced_always().context(self.extent(chunk)))
    }

    /// Returns the kept shard if it is recent enough, or lies in the same version of its object as `place`.
    fn kept_shard(&self, id: ShardId, place: Option<&StoredChunk>, recency: Recency) -> Option<Arc<LoadedShard>> {
        let mut loaded = lock(&self.shard_cache.loaded);
        let (confirmed, shard) = loaded.get(&id)?;
        let is_current = match place {
            Some(place) => shard.object.version == place.stat.version,
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
        if len > limit {
            let why = format!(
                "a shard of {len} bytes, encoded as a whole: there is memory for {limit}, mount with a larger --cache-size"
            );
            return Err(in_object(Error::new(Kind::System(libc::ENOMEM), why)));
        }
        let mut memory = memory::take(len as usize).map_err(in_object)?;
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
