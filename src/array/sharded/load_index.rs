//! Loads the indexes of shards: of an object, of an inner shard, and of a shard that is encoded as
//! a whole.

use super::{DecodedShard, LoadedShard, Lookup, Recency, ShardBytes, ShardedChunks, StoredChunk};
use crate::array::{Array, Opening};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::{self, Grant, lock};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::shard::{IndexCodec, MAX_RANGES, ShardId};
use zarrfs_store::{ByteRange, EntryKind, Stat, StoreExt};

/// Number of bytes that a shard encoded as a whole may waste, in addition to as many bytes as its
/// chunks can take.
const WASTE: u64 = 64 << 10;

impl ShardedChunks {
    /// Returns the shard of a level that holds `chunk`. `place` is its location in the enclosing
    /// shard; `None` if the shard is a whole object.
    pub(super) fn load_shard(
        &self,
        array: &Array,
        chunk: ChunkId,
        level: usize,
        place: Option<StoredChunk>,
        recency: Recency,
    ) -> Result<Lookup<Arc<LoadedShard>>> {
        let id = self.shards.shard(level, &array.grid.indices(chunk));
        let opening = array.freshness.opening();
        if let Some(shard) = self.kept_shard(array, id, place.as_ref(), recency) {
            return Ok(Lookup::Found(shard));
        }
        let _loading = self.lock_loading(id);
        // another thread may have loaded it meanwhile
        if let Some(shard) = self.kept_shard(array, id, place.as_ref(), recency) {
            return Ok(Lookup::Found(shard));
        }
        let missing_since = match place {
            None => lock(&self.missing).pop(&id.number),
            Some(_) => None,
        };
        if let Some(since) = missing_since
            .filter(|since| recency != Recency::Now && array.freshness.is_current(*since))
        {
            return Ok(self.absent(array, id, since));
        }
        let (object, bytes) = match place {
            Some(StoredChunk { object, bytes }) => (object, bytes),
            None if missing_since.is_none() && self.takes_index_at_once(array, id) => {
                let Some(shard) = self.load_index_at_once(array, chunk)? else {
                    return Ok(self.absent(array, id, opening));
                };
                let shard = Arc::new(shard);
                lock(&self.loaded).put(id, (opening, shard.clone()));
                return Ok(Lookup::Found(shard));
            }
            None => {
                let Some(stat) = array
                    .stat_object(chunk)?
                    .filter(|stat| stat.kind == EntryKind::Value)
                else {
                    return Ok(self.absent(array, id, opening));
                };
                if let Some(shard) = self.confirm_shard(id, &stat, opening) {
                    return Ok(Lookup::Found(shard));
                }
                let whole = ShardBytes::Stored(0..stat.size);
                (stat, whole)
            }
        };
        let Some(shard) = self.read_shard(array, chunk, id, object, bytes)? else {
            return Ok(Lookup::Replaced);
        };
        let shard = Arc::new(shard);
        lock(&self.loaded).put(id, (opening, shard.clone()));
        Ok(Lookup::Found(shard))
    }

    /// Returns whether to request the index of an object before its size and version are known,
    /// because the answer reports both. A kept index may only need to be confirmed.
    fn takes_index_at_once(&self, array: &Array, id: ShardId) -> bool {
        // without a stated version, nothing confirms it
        array.is_remote()
            && self.shards.around(0).is_none()
            && lock(&self.loaded)
                .peek(&id)
                .is_none_or(|(_, kept)| kept.object.version.is_unstated())
    }

    /// Records that an object is missing, so that it is requested only once per opening.
    fn absent(&self, array: &Array, id: ShardId, opening: Opening) -> Lookup<Arc<LoadedShard>> {
        lock(&self.loaded).pop(&id);
        if array.is_remote() {
            lock(&self.missing).put(id.number, opening);
        }
        Lookup::Absent
    }

    /// Reads the index of an object by one request; `None` if the object is not stored.
    fn load_index_at_once(&self, array: &Array, chunk: ChunkId) -> Result<Option<LoadedShard>> {
        let codec = self.shards.index_codec(0, &array.grid.indices(chunk))?;
        let key = array.stored_key(chunk);
        let memory = memory::take(codec.memory()).context(&key)?;
        let mut encoded = Vec::new();
        let _encoded = memory::take(codec.stored_size() as usize)?;
        let size = codec.stored_size();
        let read = array.timed(&key, || {
            if codec.is_at_start() {
                array.store.get_range(&key, 0..size, &mut encoded)
            } else {
                array
                    .store
                    .read(&key, &ByteRange::Suffix(size), &mut encoded)
            }
        })?;
        let Some(object) = read.filter(|stat| stat.kind == EntryKind::Value) else {
            return Ok(None);
        };
        array.stats.bytes_stored.add(encoded.len() as u64);
        let bytes = ShardBytes::Stored(0..object.size);
        match codec.place(object.size) {
            Ok(_) => decode_index(array, chunk, &codec, &encoded, object, bytes, memory).map(Some),
            Err(e) => Ok(Some(LoadedShard {
                object,
                bytes,
                index: Err(array.explained_by_store(chunk, e)),
                _memory: Grant::default(),
            })),
        }
    }

    /// Reads an object by one request, with its index and all chunks, and keeps it. Keeps nothing
    /// if there is no memory, or if the object has another size than `object`.
    pub(super) fn load_object(&self, array: &Array, chunk: ChunkId, object: &Stat) -> Result<()> {
        let indices = array.grid.indices(chunk);
        let id = self.shards.shard(0, &indices);
        let key = array.stored_key(chunk);
        let _loading = self.lock_loading(id);
        let opening = array.freshness.opening();
        let kept = self.kept_shard(array, id, None, Recency::Opening);
        if kept.is_some_and(|kept| !kept.bytes.is_stored()) {
            return Ok(()); // another thread has loaded it meanwhile
        }
        let codec = self.shards.index_codec(0, &indices)?;
        let Ok(memory) = memory::take_within(object.size as usize, Duration::ZERO) else {
            return Ok(());
        };
        let index_memory = memory::take(codec.memory()).context(&key)?;
        let mut bytes = Vec::new();
        let version = match array.timed(&key, || array.store.get(&key, object.size, &mut bytes)) {
            Ok(Some(version)) if bytes.len() as u64 == object.size => version,
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == Kind::Damaged => return Ok(()), // it is larger now
            Err(e) => return Err(e),
        };
        array.stats.bytes_stored.add(object.size);
        let object = Stat {
            version,
            ..object.clone()
        };
        let Ok(place) = codec.place(object.size) else {
            return Ok(());
        };
        let decoded = Arc::new(DecodedShard {
            bytes,
            _memory: memory,
        });
        let encoded = &decoded.bytes[place.start as usize..place.end as usize];
        let all = ShardBytes::Decoded(decoded.clone(), 0..object.size);
        let shard = decode_index(array, chunk, &codec, encoded, object, all, index_memory)?;
        lock(&self.loaded).put(id, (opening, Arc::new(shard)));
        Ok(())
    }

    /// Returns the kept shard if it is recent enough, or of the same version of its object as
    /// `place`.
    fn kept_shard(
        &self,
        array: &Array,
        id: ShardId,
        place: Option<&StoredChunk>,
        recency: Recency,
    ) -> Option<Arc<LoadedShard>> {
        let mut loaded = lock(&self.loaded);
        let (confirmed, shard) = loaded.get(&id)?;
        let is_current = match place {
            Some(place) => shard.object.version == place.object.version,
            None => match recency {
                Recency::Now => false,
                Recency::Opening => array.freshness.is_current(*confirmed),
                // neither decoded bytes, which are not read again, nor those without a stated
                // version can be confirmed
                Recency::Any => {
                    (shard.bytes.is_stored() && !shard.object.version.is_unstated())
                        || array.freshness.is_current(*confirmed)
                }
            },
        };
        is_current.then(|| shard.clone())
    }

    /// Confirms the kept shard if it has the version of `stat`, which the store reported after
    /// `opening`, and returns it.
    pub(super) fn confirm_shard(
        &self,
        id: ShardId,
        stat: &Stat,
        opening: Opening,
    ) -> Option<Arc<LoadedShard>> {
        let mut loaded = lock(&self.loaded);
        let (confirmed, shard) = loaded.get_mut(&id)?;
        let is_same = shard.object.version == stat.version && !stat.version.is_unstated();
        is_same.then(|| {
            *confirmed = (*confirmed).max(opening);
            shard.clone()
        })
    }

    /// Reads the index of a shard. Decodes the shard first if it is encoded as a whole. Returns
    /// `None` if the object was replaced.
    fn read_shard(
        &self,
        array: &Array,
        chunk: ChunkId,
        id: ShardId,
        object: Stat,
        bytes: ShardBytes,
    ) -> Result<Option<LoadedShard>> {
        let (bytes, size) = match self.shards.around(id.level) {
            None => (bytes.clone(), bytes.len()),
            Some(_) => match self.decode_shard(array, chunk, id, &object, &bytes)? {
                Some(decoded) => {
                    let size = decoded.bytes.len() as u64;
                    (ShardBytes::Decoded(Arc::new(decoded), 0..size), size)
                }
                None => return Ok(None),
            },
        };
        let codec = self
            .shards
            .index_codec(id.level, &array.grid.indices(chunk))?;
        let memory =
            memory::take(codec.memory()).map_err(|e| e.context(array.stored_key(chunk)))?;
        let place = match codec.place(size) {
            Ok(place) => place,
            Err(e) => {
                return Ok(Some(LoadedShard {
                    object,
                    bytes,
                    index: Err(e),
                    _memory: Grant::default(),
                }));
            }
        };
        let mut encoded = Vec::new();
        let _encoded = memory::take((place.end - place.start) as usize)?;
        if !self.read_shard_bytes(array, chunk, &object, &bytes, place, &mut encoded)? {
            return Ok(None);
        }
        decode_index(array, chunk, &codec, &encoded, object, bytes, memory).map(Some)
    }

    /// Decodes a shard that is encoded as a whole. Returns `None` if the object was replaced.
    fn decode_shard(
        &self,
        array: &Array,
        chunk: ChunkId,
        id: ShardId,
        object: &Stat,
        bytes: &ShardBytes,
    ) -> Result<Option<DecodedShard>> {
        let Some(pipeline) = self.shards.around(id.level) else {
            return Ok(None);
        };
        let key = array.stored_key(chunk);
        let len = bytes.len();
        let limit = memory::limit() as u64 / 4;
        let memory = check_whole_shard(len, 0).and_then(|()| memory::take(len as usize));
        let mut memory = memory.context(&key)?;
        let mut encoded = Vec::new();
        if !self.read_shard_bytes(array, chunk, object, bytes, 0..len, &mut encoded)? {
            return Ok(None);
        }
        // waste between the chunks may make a shard larger than its chunks
        let without_waste = self
            .shards
            .max_size(id.level, array.pipeline()?.max_stored());
        let wanted = without_waste
            .saturating_mul(2)
            .saturating_add(WASTE)
            .min(limit) as usize;
        memory.grow(wanted).context(&key)?;
        let mut decoded = Vec::new();
        pipeline
            .decode_within(&encoded, &mut decoded, &mut Vec::new(), wanted, false)
            .context(&key)?;
        decoded.shrink_to_fit();
        drop(encoded);
        memory.shrink_to(decoded.capacity());
        Ok(Some(DecodedShard {
            bytes: decoded,
            _memory: memory,
        }))
    }

    /// Checks that there is memory to store shards: for the indexes of all levels at a time, and
    /// for shards that are encoded as a whole. The size of a shard of variable-length objects is
    /// not known before it is encoded.
    ///
    /// # Errors
    ///
    /// ENOMEM if there is not.
    pub(super) fn check_shards_storable(&self, array: &Array) -> Result<()> {
        let levels = 0..self.shards.levels();
        // the former index is in memory as well
        let indexes = levels
            .clone()
            .map(|level| self.shards.largest_index_codec(level))
            .map(|index| rebuild_memory(index).saturating_add(index.memory()))
            .fold(0, usize::saturating_add);
        if indexes > memory::limit() {
            let needs = format!(
                "the indexes of a shard take {indexes} bytes to store, there are {}",
                memory::limit()
            );
            return Err(Error::system(libc::ENOMEM)
                .context(format!("{needs}: mount with a larger --cache-size")));
        }
        if array.metadata.has_objects() {
            return Ok(());
        }
        let chunk = array.pipeline()?.max_encoded();
        for level in levels {
            if let Some(pipeline) = self.shards.around(level) {
                let size = self.shards.max_size_of_array(level, chunk, &array.grid);
                let len = usize::try_from(size).unwrap_or(usize::MAX);
                check_whole_shard(size, pipeline.scratch(len))?;
            }
        }
        Ok(())
    }
}

/// Decodes the index of a shard. Damage is kept in the shard; a lack of memory is an error.
fn decode_index(
    array: &Array,
    chunk: ChunkId,
    codec: &IndexCodec,
    encoded: &[u8],
    object: Stat,
    bytes: ShardBytes,
    memory: Grant,
) -> Result<LoadedShard> {
    array.stats.index_reads.add(1);
    match codec.decode(encoded, bytes.len()) {
        Err(e) if e.kind() != Kind::Damaged => Err(e.context(array.stored_key(chunk))),
        index => Ok(LoadedShard {
            object,
            bytes,
            index: index.map_err(|e| array.explained_by_store(chunk, e)),
            _memory: memory,
        }),
    }
}

/// Memory in bytes for a range of the former shard: the range, and the pieces that are made of it.
const RANGE_MEMORY: usize = 128;

/// Returns the memory in bytes that rebuilding a shard takes for its index: the entries, both forms
/// of the new index, and the ranges of the former shard that stay. A list of the positions of
/// entries, which are sorted first, is smaller than both forms, which follow.
pub(super) fn rebuild_memory(index: &IndexCodec) -> usize {
    let ranges = index.entries().min(MAX_RANGES) * RANGE_MEMORY;
    index.memory().saturating_mul(3).saturating_add(ranges)
}

/// Checks that there is memory for both forms of a shard of `len` bytes that is encoded as a whole,
/// and for `scratch` bytes between its codecs.
///
/// # Errors
///
/// ENOMEM if there is not.
pub(super) fn check_whole_shard(len: u64, scratch: usize) -> Result<()> {
    let limit = memory::limit() as u64 / 2;
    let needed = len.saturating_mul(2).saturating_add(scratch as u64);
    if needed <= limit {
        return Ok(());
    }
    let why = format!(
        "a shard of {len} bytes, encoded as a whole, takes {needed} bytes of memory, of {limit}: mount with a larger --cache-size"
    );
    Err(Error::new(Kind::System(libc::ENOMEM), why))
}
