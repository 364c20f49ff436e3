use super::*;
use crate::array::Array;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zarrfs_base::error::Result;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::{
    ByteRange, Key, Listing, MemoryStore, Readable, Replaces, Stat, Store, StoreExt, ValuePiece,
    Version, delegate_store,
};

/// A store that is slow enough for readers to meet, and panics on demand.
#[derive(Default)]
struct SlowStore {
    inner: MemoryStore,
    gets: AtomicUsize,
    panic: std::sync::atomic::AtomicBool,
    no_files_left: std::sync::atomic::AtomicBool,
}

impl Readable for SlowStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        if let ByteRange::Whole(_) = range {
            self.gets.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            assert!(!self.panic.load(Ordering::SeqCst), "a panic on demand");
            if self.no_files_left.load(Ordering::SeqCst) {
                return Err(Error::system(libc::EMFILE));
            }
        }
        self.inner.read(key, range, value)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.inner.stat(key)
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.inner.list(prefix)
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

impl Store for SlowStore {
    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        assert!(!self.panic.load(Ordering::SeqCst), "a panic on demand");
        self.inner.put_pieces(key, pieces, replaces)
    }
}

const CHUNK: usize = 10_000;

fn get(cache: &Cache, array: &Array, chunk: u64) -> Result<Option<Vec<u8>>> {
    Ok(cache
        .get(array, ChunkId(chunk), ChunkPart::Whole)?
        .map(|piece| piece.bytes().to_vec()))
}

/// Returns a store, its array of 16 chunks of [`CHUNK`] bytes, of which all but the last are
/// stored, and a cache of `bound` bytes.
fn setup(bound: usize) -> (Arc<SlowStore>, Arc<Array>, Cache) {
    let store = Arc::new(SlowStore::default());
    let doc = br#"{"zarr_format":2,"shape":[160000],"chunks":[10000],"dtype":"|u1","compressor":null,"fill_value":0,
        "order":"C","filters":null}"#;
    for i in 0..15 {
        store.inner.insert(&format!("{i}"), vec![i; CHUNK]);
    }
    let stats = Arc::new(Stats::default());
    let metadata = ArrayMetadata::parse(doc).unwrap();
    let array = Array::new(Key::root(), metadata, store.clone(), stats.clone()).unwrap();
    (store, Arc::new(array), Cache::new(bound, stats))
}

#[test]
fn sixteen_readers_of_a_chunk_cause_one_load() {
    let (store, array, cache) = setup(1 << 20);
    std::thread::scope(|s| {
        for _ in 0..16 {
            s.spawn(|| assert_eq!(get(&cache, &array, 3).unwrap().unwrap()[99], 3));
        }
    });
    assert_eq!(store.gets.load(Ordering::SeqCst), 1);
    assert_eq!(cache.stats.misses.get(), 1);
    assert!(get(&cache, &array, 15).unwrap().is_none());
}

#[test]
fn the_bound_holds_under_eight_readers() {
    let bound = 4 * CHUNK;
    let (_, array, cache) = setup(bound);
    std::thread::scope(|s| {
        for t in 0..8 {
            let cache = &cache;
            let array = &array;
            s.spawn(move || {
                for i in 0..30 {
                    let id = (t * 7 + i * 3) % 16;
                    let chunk = get(cache, array, id).unwrap();
                    assert_eq!(chunk.is_some(), id < 15);
                    drop(chunk);
                    // the chunks that readers hold were within the bound when they got them
                    assert!(cache.used() <= bound + 8 * CHUNK, "{}", cache.used());
                }
            });
        }
    });
    assert!(cache.used() <= bound);
}

#[test]
fn a_replaced_chunk_is_seen_after_the_next_opening() {
    let (store, array, cache) = setup(1 << 20);
    let read = || get(&cache, &array, 0).unwrap().map(|c| c[0]);
    array.freshness().begin_opening();
    assert_eq!(read(), Some(0));
    store.inner.insert("0", vec![77; CHUNK]);
    assert_eq!(read(), Some(0));
    array.freshness().begin_opening();
    assert_eq!(read(), Some(77));
    store.inner.remove("0");
    array.freshness().begin_opening();
    assert_eq!(read(), None);
    array.freshness().begin_opening();
    let gets = store.gets.load(Ordering::SeqCst);
    assert_eq!(read(), None);
    assert_eq!(
        store.gets.load(Ordering::SeqCst),
        gets,
        "a version check is enough"
    );
}

#[test]
fn a_bad_chunk_fails_and_recovers() {
    let (store, array, cache) = setup(1 << 20);
    store.inner.insert("1", vec![0; 99]);
    for _ in 0..2 {
        assert_eq!(get(&cache, &array, 1).err().unwrap().errno(), libc::EIO);
    }
    assert_eq!(
        store.gets.load(Ordering::SeqCst),
        1,
        "the failure is remembered"
    );
    store.inner.insert("1", vec![5; CHUNK]);
    array.freshness().begin_opening();
    assert_eq!(get(&cache, &array, 1).unwrap().unwrap()[0], 5);
}

#[test]
fn a_failure_of_the_system_is_not_remembered() {
    let (store, array, cache) = setup(1 << 20);
    store.no_files_left.store(true, Ordering::SeqCst);
    assert_eq!(get(&cache, &array, 1).err().unwrap().errno(), libc::EMFILE);
    store.no_files_left.store(false, Ordering::SeqCst);
    assert_eq!(get(&cache, &array, 1).unwrap().unwrap()[0], 1);
}

#[test]
fn a_chunk_larger_than_the_bound_is_kept_until_the_next() {
    let (store, array, cache) = setup(CHUNK / 2);
    for chunk in [3, 3, 3, 4, 4] {
        assert_eq!(
            get(&cache, &array, chunk).unwrap().unwrap()[0] as u64,
            chunk
        );
    }
    assert_eq!(store.gets.load(Ordering::SeqCst), 2);
    assert!(cache.used() < 2 * CHUNK);
}

#[test]
fn a_panic_in_a_load_leaves_the_slot_free() {
    let (store, array, cache) = setup(1 << 20);
    store.panic.store(true, Ordering::SeqCst);
    let read = || get(&cache, &array, 2).map(|c| c.unwrap()[0]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err());
    store.panic.store(false, Ordering::SeqCst);
    assert_eq!(read().unwrap(), 2);
}

#[test]
fn a_panic_in_a_write_back_loses_nothing() {
    let (store, array, cache) = setup(1 << 20);
    cache.write(&array, ChunkId(2), 0, &[9; CHUNK]).unwrap();
    store.panic.store(true, Ordering::SeqCst);
    let flush = || cache.flush_chunk(&array, ChunkId(2));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(flush)).is_err());
    assert_eq!(get(&cache, &array, 2).unwrap().unwrap(), [9; CHUNK]);
    store.panic.store(false, Ordering::SeqCst);
    cache.flush_all().unwrap();
    assert!(!array.is_dirty());
    let mut stored = Vec::new();
    store
        .inner
        .get(&Key::root().join("2"), u64::MAX, &mut stored)
        .unwrap()
        .unwrap();
    assert_eq!(stored, [9; CHUNK]);
}

#[test]
fn dirty_chunks_move_to_an_array_of_another_shape() {
    let (store, array, cache) = setup(1 << 20);
    cache.write(&array, ChunkId(2), 0, &[9; CHUNK]).unwrap();
    cache.write(&array, ChunkId(3), 5, b"part").unwrap();
    let longer = ArrayMetadata {
        shape: vec![200_000],
        ..array.metadata().clone()
    };
    let longer = Array::new(Key::root(), longer, store.clone(), cache.stats.clone()).unwrap();
    let cache = Arc::new(cache);
    let longer = Arc::new(longer);
    let (done, result) = std::sync::mpsc::channel();
    let moving = cache.clone();
    let old = array.clone();
    let new = longer.clone();
    std::thread::spawn(move || {
        moving.transfer(&old, &new);
        done.send(()).unwrap();
    });
    result
        .recv_timeout(Duration::from_secs(60))
        .expect("the transfer takes a lock that it holds already");
    assert!(
        !array.is_dirty()
            && cache.is_dirty(&longer, ChunkId(2))
            && cache.is_dirty(&longer, ChunkId(3))
    );
    assert_eq!(get(&cache, &longer, 2).unwrap().unwrap(), [9; CHUNK]);
    let part = get(&cache, &longer, 3).unwrap().unwrap();
    assert_eq!(
        (&part[..5], &part[5..9], &part[9..]),
        (&[3; 5][..], &b"part"[..], &[3; CHUNK - 9][..])
    );
    cache.flush_all().unwrap();
    let mut stored = Vec::new();
    store
        .inner
        .get(&Key::root().join("2"), u64::MAX, &mut stored)
        .unwrap()
        .unwrap();
    assert_eq!(stored, [9; CHUNK]);
}

#[test]
fn nothing_is_stored_outside_a_smaller_shape() {
    let document = |n| {
        format!(
            r#"{{"zarr_format":2,"shape":[{n}],"chunks":[2],"dtype":"|u1","compressor":null,"fill_value":0,"order":"C",
            "filters":null}}"#
        )
    };
    for (smaller, stored) in [(6, None), (5, Some(vec![2, 0])), (4, None)] {
        let store = Arc::new(MemoryStore::default());
        let key = Key::root().join(".zarray");
        let version = store.put(&key, document(7).as_bytes()).unwrap();
        let metadata = ArrayMetadata::parse(document(7).as_bytes()).unwrap();
        let array = Array::new(Key::root(), metadata, store.clone(), Arc::default()).unwrap();
        let source =
            crate::array::Source::new(vec![key.clone()], Box::new(ArrayMetadata::parse), version);
        let array = Arc::new(array.with_source(source));
        let cache = Cache::new(1 << 16, Arc::default());
        // item 6 makes its chunk complete; of chunk 2 both items are written
        cache.write(&array, ChunkId(3), 0, &[1]).unwrap();
        cache.write(&array, ChunkId(2), 0, &[2, 1]).unwrap();
        store.put(&key, document(smaller).as_bytes()).unwrap();
        cache.flush_all().unwrap();
        assert_eq!(
            cache.losses().take(|_| true).unwrap_err().errno(),
            libc::ESTALE,
            "{smaller}"
        );
        assert!(
            store.stat(&Key::root().join("3")).unwrap().is_none(),
            "{smaller}"
        );
        let mut bytes = Vec::new();
        let found = store
            .get(&Key::root().join("2"), 2, &mut bytes)
            .unwrap()
            .map(|_| bytes);
        let expected = if smaller == 6 {
            Some(vec![2, 1])
        } else {
            stored
        };
        assert_eq!(found, expected, "{smaller}");
        cache.flush_all().unwrap();
    }
}

/// A store of blosc frames, each of which is replaced before its blocks are read: no block is of
/// the version that was opened.
struct Restless {
    inner: MemoryStore,
    frame: Vec<u8>,
    /// The barrier that makes two threads request blocks at the same time.
    meet: std::sync::Barrier,
}

impl Readable for Restless {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        if let ByteRange::Bounded(range) = range
            && range.start > 0
        {
            self.inner.insert(key.as_str(), self.frame.clone());
            self.meet.wait();
        }
        self.inner.read(key, range, value)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.inner.stat(key)
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.inner.list(prefix)
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

impl Store for Restless {}

#[test]
fn chunks_replaced_while_their_blocks_are_read_do_not_wait_for_each_other() {
    const SIZE: usize = 1 << 20;
    let doc = br#"{"zarr_format":2,"shape":[4194304],"chunks":[1048576],"dtype":"|u1","fill_value":0,"order":"C",
        "compressor":{"id":"blosc","cname":"lz4","clevel":1,"shuffle":0,"blocksize":65536},"filters":null}"#;
    let metadata = ArrayMetadata::parse(doc).unwrap();
    let mut frame = Vec::new();
    let decoded: Vec<u8> = (0..SIZE as u32)
        .map(|i| (i.wrapping_mul(2654435761) >> 24) as u8)
        .collect();
    zarrfs_format::pipeline::Pipeline::new(&metadata, SIZE)
        .unwrap()
        .encode(&decoded, &mut frame)
        .unwrap();
    let store = Restless {
        inner: MemoryStore::default(),
        frame: frame.clone(),
        meet: std::sync::Barrier::new(2),
    };
    for i in 0..2 {
        store.inner.insert(&format!("{i}"), frame.clone());
    }
    let stats = Arc::new(Stats::default());
    let array =
        Arc::new(Array::new(Key::root(), metadata, Arc::new(store), stats.clone()).unwrap());
    let cache = Arc::new(Cache::new(SIZE, stats));
    let (done, results) = std::sync::mpsc::channel();
    for i in 0..2 {
        let cache = cache.clone();
        let array = array.clone();
        let done = done.clone();
        std::thread::spawn(move || {
            let piece = cache
                .get(&array, ChunkId(i), ChunkPart::Bytes { start: 0, end: 1 })
                .unwrap()
                .unwrap();
            done.send(piece.bytes().len()).unwrap();
        });
    }
    for _ in 0..2 {
        assert_eq!(results.recv_timeout(Duration::from_secs(60)), Ok(SIZE));
    }
}

#[test]
fn the_first_read_of_a_block_keeps_the_wanted_bytes_and_the_next_one_all_of_it() {
    const SIZE: usize = 1 << 20;
    const BLOCK: usize = 256 << 10;
    let doc = br#"{"zarr_format":2,"shape":[262144],"chunks":[262144],"dtype":"<u4","fill_value":0,"order":"C",
        "compressor":{"id":"blosc","cname":"lz4","clevel":1,"shuffle":1,"blocksize":65536},"filters":null}"#;
    let metadata = ArrayMetadata::parse(doc).unwrap();
    let decoded: Vec<u8> = (0..SIZE as u32 / 4)
        .flat_map(|i| (i * 7 / 3).to_le_bytes())
        .collect();
    let mut frame = Vec::new();
    zarrfs_format::pipeline::Pipeline::new(&metadata, SIZE)
        .unwrap()
        .encode(&decoded, &mut frame)
        .unwrap();
    let memory = MemoryStore::default();
    memory.insert("0", frame);
    let stats = Arc::new(Stats::default());
    let array =
        Arc::new(Array::new(Key::root(), metadata, Arc::new(memory), stats.clone()).unwrap());
    let cache = Arc::new(Cache::new(4 * SIZE, stats));
    let read = |start: usize, end: usize| {
        let part = cache
            .get(&array, ChunkId(0), ChunkPart::Bytes { start, end })
            .unwrap()
            .unwrap();
        let bytes = part.at(start).unwrap();
        assert_eq!(bytes, &decoded[start..start + bytes.len()]);
        bytes.len()
    };
    // the reader wants most of the decoded bytes, so the cache keeps all of them
    assert_eq!(read(BLOCK + 2000, BLOCK + 5000), 5120 - 2000);
    assert_eq!(
        read(BLOCK + 10, BLOCK + 20),
        5120 - 10,
        "these are decoded already"
    );
    assert_eq!(read(BLOCK + 5100, BLOCK + 5200), 20);
    assert_eq!(read(BLOCK + 5120, BLOCK + 5121), BLOCK - 5120);
    assert_eq!(read(BLOCK + 4000, BLOCK + 5000), BLOCK - 4000);
    // the cache keeps the decoded part of the page with the wanted bytes
    assert_eq!(
        read(2 * BLOCK + 200_000, 2 * BLOCK + 200_100),
        200_704 - 200_000
    );
    assert_eq!(
        read(2 * BLOCK + 196_608, 2 * BLOCK + 196_609),
        200_704 - 196_608
    );
    assert_eq!(
        read(2 * BLOCK + 196_607, 2 * BLOCK + 196_608),
        BLOCK - 196_607
    );
    assert_eq!(read(3 * BLOCK, 4 * BLOCK), BLOCK);
}

/// A store with another writer, which writes just before each of the first conditional puts.
struct Contended {
    below: MemoryStore,
    first: AtomicUsize,
}

impl Readable for Contended {
    delegate_store!(below: read stat list location);
}

impl Store for Contended {
    delegate_store!(below: check_writable);

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let left = self
            .first
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if let Ok(n) = left {
            let mut there = vec![0; CHUNK];
            self.below.get(key, u64::MAX, &mut there)?;
            there[99 + n] = 7;
            self.below.put(key, &there)?;
        }
        self.below.put_pieces(key, pieces, replaces)
    }
}

/// "a chunk changed by both keeps both changes where the byte ranges differ"
#[test]
fn changes_of_another_writer_are_kept() {
    let doc = br#"{"zarr_format":2,"shape":[20000],"chunks":[10000],"dtype":"|u1","compressor":null,"fill_value":0,
        "order":"C","filters":null}"#;
    // chunk 0 is stored already, chunk 1 is not
    let store = Arc::new(Contended {
        below: MemoryStore::default(),
        first: AtomicUsize::new(0),
    });
    store.below.insert("0", vec![1; CHUNK]);
    let stats = Arc::new(Stats::default());
    let metadata = ArrayMetadata::parse(doc).unwrap();
    let array = Arc::new(Array::new(Key::root(), metadata, store.clone(), stats.clone()).unwrap());
    let cache = Cache::new(1 << 20, stats);
    for (chunk, others) in [(0, 3), (1, 3), (0, 1)] {
        store.first.store(others, Ordering::SeqCst);
        cache.write(&array, ChunkId(chunk), 5, b"ours").unwrap();
        cache.flush_all().unwrap();
        let mut value = Vec::new();
        store
            .get(&Key::root().join(&chunk.to_string()), u64::MAX, &mut value)
            .unwrap();
        assert_eq!(
            (&value[5..9], &value[100..100 + others]),
            (b"ours".as_slice(), vec![7; others].as_slice())
        );
        assert_eq!(get(&cache, &array, chunk).unwrap(), Some(value));
        // a chunk that was fully written here replaces the other writer's
        store.first.store(1, Ordering::SeqCst);
        cache
            .write(&array, ChunkId(chunk), 0, &vec![9; CHUNK])
            .unwrap();
        cache.flush_all().unwrap();
        assert_eq!(get(&cache, &array, chunk).unwrap(), Some(vec![9; CHUNK]));
    }
    // too many attempts: the flush reports it, and the chunk stays dirty
    store
        .first
        .store(crate::array::MAX_ATTEMPTS as usize, Ordering::SeqCst);
    cache.write(&array, ChunkId(1), 5, b"more").unwrap();
    assert_eq!(cache.flush_all().unwrap_err().errno(), libc::EAGAIN);
    cache.flush_all().unwrap();
    assert_eq!(&get(&cache, &array, 1).unwrap().unwrap()[5..9], b"more");
}
