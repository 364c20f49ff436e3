//! Surveys the indexes of stored shards: how many bytes the chunks take, and whether there are
//! chunks outside the array.

use super::{LoadedShard, Lookup, Recency};
use crate::array::Array;
use crate::array::chunks::Chunks;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::shard::{Index, Shards};
use zarrfs_store::Stat;

/// The use of an object that holds a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardUsage {
    /// The size of the object in bytes.
    pub size: u64,
    /// The bytes that chunks and indexes take. Bytes that several entries share count more than
    /// once.
    pub used: u64,
    /// Number of entries for chunks outside the array.
    pub outside: u64,
}

/// The entries of a shard that lead to chunks inside the array.
struct EntriesInside {
    /// One of these chunks.
    chunk: ChunkId,
    /// The positions of the entries in the index.
    slots: Vec<usize>,
}

/// The shards of an object by level and number.
type ShardsInside = BTreeMap<(usize, u64), EntriesInside>;

impl Array {
    /// Returns the number of shards that are objects; `None` if each chunk is a value of its own.
    pub fn shard_count(&self) -> Option<u64> {
        let chunks = self.in_shards()?;
        Some(chunks.shards.objects().chunk_count())
    }

    /// Returns the number of the shard that is the object of a chunk; `None` if the chunk is a
    /// value of its own.
    pub fn shard_of(&self, chunk: ChunkId) -> Option<u64> {
        self.in_shards().map(|_| self.object_of(chunk))
    }

    /// Returns the stat of a chunk, like [`Array::stat_chunk`].
    ///
    /// # Errors
    ///
    /// Also fails if the index of the chunk's shard, or the chunk's entry in it, is damaged.
    pub fn stat_entry(&self, chunk: ChunkId) -> Result<Option<Stat>> {
        match self.in_shards() {
            None => self.stat_chunk(chunk),
            Some(chunks) => chunks.get_range(self, chunk, 0..0, &mut Vec::new()),
        }
    }

    /// Returns the use of the object `number`; `None` if it is not stored, is encoded as a whole,
    /// or was replaced meanwhile. Its indexes stay in memory for those who read its chunks next.
    ///
    /// # Errors
    ///
    /// The store fails, or the index of the outermost shard is damaged.
    pub fn survey_shard(&self, number: u64) -> Result<Option<ShardUsage>> {
        let Some(chunks) = self
            .in_shards()
            .filter(|chunks| chunks.shards.around(0).is_none())
        else {
            return Ok(None);
        };
        let shards = &chunks.shards;
        let mut usage = ShardUsage::default();
        // all but the innermost shards, with a valid index
        let mut outer: HashMap<(usize, u64), Arc<LoadedShard>> = HashMap::new();
        let inside = self.entries_inside(shards, number);
        for ((level, number), EntriesInside { chunk, slots }) in inside {
            let indices = self.grid.indices(chunk);
            let place = match level.checked_sub(1) {
                None => None,
                Some(above) => {
                    let around = outer.get(&(above, shards.shard(above, &indices).number));
                    let Some(place) =
                        around.and_then(|around| around.valid_entry(shards.slot(above, &indices)))
                    else {
                        continue;
                    };
                    Some(place)
                }
            };
            let size = place.as_ref().map_or(0, |place| place.bytes.len());
            if shards.around(level).is_some() {
                // the chunks of the inner shard are reported one by one
                usage.used = usage.used.saturating_add(size);
                continue;
            }
            let shard = match chunks.load_shard(self, chunk, level, place, Recency::Now)? {
                Lookup::Found(shard) => shard,
                Lookup::Absent | Lookup::Replaced => return Ok(None),
            };
            match &shard.index {
                Ok(index) => {
                    let index_size = shards.index_codec(level, &indices)?.stored_size();
                    usage.add(index, &slots, index_size, level + 1 == shards.levels());
                }
                Err(_) if level > 0 => {
                    usage.used = usage.used.saturating_add(size);
                    continue;
                }
                Err(e) => return Err(e.clone().context(self.stored_key(chunk))),
            }
            usage.size = shard.object.size;
            if level + 1 < shards.levels() {
                outer.insert((level, number), shard);
            }
        }
        Ok(Some(usage))
    }

    /// Returns the shards of an object that hold chunks of the array.
    fn entries_inside(&self, shards: &Shards, number: u64) -> ShardsInside {
        let mut inside = ShardsInside::new();
        for chunk in shards.members(number, &self.grid) {
            let indices = self.grid.indices(chunk);
            for level in 0..shards.levels() {
                let id = (level, shards.shard(level, &indices).number);
                let slot = shards.slot(level, &indices);
                let entries = inside.entry(id).or_insert_with(|| EntriesInside {
                    chunk,
                    slots: Vec::new(),
                });
                if entries.slots.last() != Some(&slot) {
                    entries.slots.push(slot);
                }
            }
        }
        for entries in inside.values_mut() {
            entries.slots.sort_unstable();
            entries.slots.dedup();
        }
        inside
    }
}

impl ShardUsage {
    /// Adds a shard whose entries `slots` lead into the array.
    fn add(&mut self, index: &Index, slots: &[usize], index_size: u64, is_innermost: bool) {
        let is_filled = |slot: usize| !matches!(index.get(slot), Ok(None));
        let filled = (0..index.len()).filter(|slot| is_filled(*slot)).count();
        let inside = slots.iter().filter(|slot| is_filled(**slot)).count();
        self.outside += filled.saturating_sub(inside) as u64;
        self.used = self.used.saturating_add(index_size);
        if is_innermost {
            let entries = slots
                .iter()
                .filter_map(|slot| index.get(*slot).ok().flatten());
            self.used = entries.fold(self.used, |used, entry| {
                used.saturating_add(entry.end - entry.start)
            });
        }
    }
}
