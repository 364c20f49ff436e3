//! Seek points of chunks, which outlive the decoded chunks: small reads of an array that is larger
//! than the cache decode each chunk once, and afterwards only from the point before the bytes that
//! they want. This module decodes nothing.

use crate::array::Array;
use lru::LruCache;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zarrfs_base::memory::{self, Grant, Reclaim, lock};
use zarrfs_format::codec::SeekPoints;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Version;

/// Minimum decoded size in bytes of a chunk whose seek points are kept: smaller ones have too few.
const MIN_CHUNK: usize = 2 << 20;

/// Approximate memory of an entry beside its points, in bytes.
const ENTRY_COST: usize = 256;

/// The seek points of a version of a chunk.
pub(super) struct KeptPoints {
    /// `None` if the version has none.
    pub points: Option<SeekPoints>,
    pub version: Version,
    memory: Grant,
}

/// Seek points by the numbers of arrays and chunks. **They take at most half of what may be
/// granted**, and are dropped when a request needs their memory.
pub(super) struct SeekCache {
    /// The lock is not held while memory is granted.
    kept: Mutex<Kept>,
}

struct Kept {
    chunks: LruCache<(u64, ChunkId), Arc<KeptPoints>>,
    bytes: usize,
}

impl SeekCache {
    pub fn new() -> Arc<Self> {
        let kept = Mutex::new(Kept {
            chunks: LruCache::unbounded(),
            bytes: 0,
        });
        let cache = Arc::new(SeekCache { kept });
        memory::register(&cache);
        cache
    }

    /// Returns whether points of the chunks of an array are worth their memory, in a cache of
    /// `bound` bytes of decoded chunks.
    pub fn wants(array: &Array, chunk: ChunkId, bound: usize) -> bool {
        array.grid().chunk_size(chunk) >= MIN_CHUNK && array.size() > bound as u64
    }

    /// Keeps the points of a version of a chunk, or that it has none, in place of those of an older
    /// version, if there is memory.
    pub fn insert(
        &self,
        array: &Array,
        chunk: ChunkId,
        points: Option<SeekPoints>,
        version: Version,
    ) {
        let size = points.as_ref().map_or(0, SeekPoints::size) + ENTRY_COST;
        let limit = memory::limit() / 2;
        // a version that is not stated can't be compared
        if size > limit || version.is_unstated() {
            return;
        }
        let mut dropped = Vec::new();
        let mut kept = lock(&self.kept);
        while kept.bytes + size > limit {
            let Some((_, oldest)) = kept.chunks.pop_lru() else {
                break;
            };
            kept.bytes -= oldest.memory.bytes();
            dropped.push(oldest);
        }
        drop(kept);
        free(dropped);
        let Ok(memory) = memory::take_within(size, Duration::ZERO) else {
            return;
        };
        let entry = Arc::new(KeptPoints {
            points,
            version,
            memory,
        });
        let mut kept = lock(&self.kept);
        kept.bytes += size;
        let before = kept.chunks.put((array.id(), chunk), entry);
        kept.bytes -= before.as_ref().map_or(0, |before| before.memory.bytes());
        drop(kept);
        free(before);
    }

    /// Returns the seek points of a chunk, which may be of an older version.
    pub fn get(&self, array: &Array, chunk: ChunkId) -> Option<Arc<KeptPoints>> {
        lock(&self.kept).chunks.get(&(array.id(), chunk)).cloned()
    }
}

/// Drops points, and returns the memory of those that no load uses at once: each return may take
/// milliseconds.
fn free(points: impl IntoIterator<Item = Arc<KeptPoints>>) {
    let unused = points.into_iter().filter_map(Arc::into_inner);
    drop(unused.map(|kept| kept.memory).reduce(Grant::and));
}

impl Reclaim for SeekCache {
    fn reclaim(&self) {
        if let Ok(mut kept) = self.kept.try_lock() {
            kept.bytes = 0;
            let dropped = std::mem::replace(&mut kept.chunks, LruCache::unbounded());
            drop(kept);
            free(dropped.into_iter().map(|(_, points)| points));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::array::Array;
    use crate::cache::{Cache, ChunkPart};
    use std::sync::Arc;
    use zarrfs_base::memory::Reclaim;
    use zarrfs_base::stats::Stats;
    use zarrfs_format::grid::ChunkId;
    use zarrfs_format::metadata::ArrayMetadata;
    use zarrfs_format::pipeline::Pipeline;
    use zarrfs_store::{Key, MemoryStore};

    const SIZE: usize = 4 << 20;
    const CHUNKS: usize = 3;

    /// Returns the decoded bytes of chunk `n`, which compress to about a half.
    fn decoded(n: u64, seed: u64) -> Vec<u8> {
        let mut state = n * 1000 + seed;
        let items = (0..SIZE as u32 / 4).flat_map(|i| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (i * 7 + (state >> 52) as u32).to_le_bytes()
        });
        items.collect()
    }

    struct Setup {
        array: Arc<Array>,
        store: Arc<MemoryStore>,
        cache: Cache,
        stats: Arc<Stats>,
        pipeline: Pipeline,
    }

    impl Setup {
        fn new(codecs: &str, bound: usize) -> Self {
            let items = SIZE / 4;
            let doc = format!(
                r#"{{"zarr_format": 2, "shape": [{}], "chunks": [{items}], "dtype": "<u4", "fill_value": 0,
                    "order": "C", {codecs}}}"#,
                CHUNKS * items
            );
            let metadata = ArrayMetadata::parse(doc.as_bytes()).unwrap();
            let pipeline = Pipeline::new(&metadata, SIZE).unwrap();
            let store = Arc::new(MemoryStore::default());
            let stats = Arc::<Stats>::default();
            let array = Array::new(Key::root(), metadata, store.clone(), stats.clone()).unwrap();
            let setup = Setup {
                array: Arc::new(array),
                store,
                cache: Cache::new(bound, stats.clone()),
                stats,
                pipeline,
            };
            (0..CHUNKS as u64).for_each(|n| setup.store(n, 0));
            setup
        }

        fn store(&self, n: u64, seed: u64) {
            let mut stored = Vec::new();
            self.pipeline
                .encode(&decoded(n, seed), &mut stored)
                .unwrap();
            self.store.insert(&n.to_string(), stored);
        }

        /// Checks 100 bytes at `start` of each chunk. Returns the numbers of chunks and of parts
        /// that were decoded for them.
        fn read_all(&self, start: usize, seed: u64) -> (u64, u64) {
            let counts = || (self.stats.decodes.get(), self.stats.block_decodes.get());
            let before = counts();
            for n in 0..CHUNKS as u64 {
                let end = start + 100;
                let part = ChunkPart::Bytes { start, end };
                let part = self
                    .cache
                    .get(&self.array, ChunkId(n), part)
                    .unwrap()
                    .unwrap();
                assert!(
                    part.at(start).unwrap()[..100] == decoded(n, seed)[start..end],
                    "{n}, {start}"
                );
            }
            (counts().0 - before.0, counts().1 - before.1)
        }
    }

    const CODECS: [&str; 4] = [
        r#""compressor": {"id": "zlib", "level": 1}, "filters": null"#,
        r#""compressor": {"id": "lz4"}, "filters": null"#,
        r#""compressor": {"id": "gzip"}, "filters": [{"id": "shuffle", "elementsize": 4}]"#,
        r#""compressor": {"id": "bz2", "level": 1}, "filters": [{"id": "shuffle", "elementsize": 2}]"#,
    ];

    #[test]
    fn small_reads_decode_each_chunk_of_a_large_array_once() {
        for codecs in CODECS {
            let setup = Setup::new(codecs, SIZE * 3 / 2);
            assert_eq!(setup.read_all(3 << 20, 0), (CHUNKS as u64, 0), "{codecs}");
            for start in [0, 12_345, 1_000_001, 256 << 10, SIZE - 100] {
                let (chunks, parts) = setup.read_all(start, 0);
                // the last chunk may have stayed in the cache
                assert!(
                    chunks == 0 && parts + 1 >= CHUNKS as u64,
                    "{codecs}: {start}"
                );
            }
        }
    }

    #[test]
    fn a_replaced_chunk_is_decoded_anew() {
        let setup = Setup::new(CODECS[0], SIZE * 3 / 2);
        setup.read_all(0, 0);
        assert_eq!(setup.read_all(SIZE / 2, 0).0, 0);
        (0..CHUNKS as u64).for_each(|n| setup.store(n, 5));
        setup.array.freshness().begin_opening();
        assert_eq!(setup.read_all(SIZE / 4, 5).0, CHUNKS as u64);
        assert_eq!(setup.read_all(SIZE / 2, 5).0, 0);
    }

    #[test]
    fn points_that_another_request_needed_are_made_again() {
        let setup = Setup::new(CODECS[0], SIZE * 3 / 2);
        setup.read_all(0, 0);
        assert_eq!(setup.read_all(SIZE / 2, 0).0, 0);
        setup.cache.seek_points.reclaim();
        assert_eq!(setup.read_all(SIZE / 4, 0).0, CHUNKS as u64);
        assert_eq!(setup.read_all(SIZE / 3, 0).0, 0);
    }

    #[test]
    fn an_array_that_fits_has_no_points() {
        let setup = Setup::new(CODECS[0], 8 * SIZE);
        assert_eq!(setup.read_all(0, 0), (CHUNKS as u64, 0));
        assert_eq!(setup.read_all(SIZE / 2, 0), (0, 0));
        assert_eq!(super::lock(&setup.cache.seek_points.kept).bytes, 0);
    }
}
