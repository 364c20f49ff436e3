use crate::array::Array;
use crate::cache::{Cache, ChunkPart, Creates};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::stats::Stats;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::testing::FaultyStore;
use zarrfs_store::{
    Key, MemoryStore, Readable, Replaces, Store, StoreExt, ValuePiece, Version, delegate_store,
};

const CHUNK: usize = 10_000;

/// Chunks in an array. All are stored.
const CHUNKS: u64 = 20;

/// A cache in which three dirty chunks leave no space for a fourth one.
const BOUND: usize = 4 * (CHUNK + super::DIRTY_COST);

/// Time that a request may take on a busy machine. The tests stop other requests for longer.
const LIMIT: Duration = Duration::from_secs(60);

/// A store that refuses to put values of the array `stuck`.
struct Refusing {
    below: MemoryStore,
    /// The error number; 0 while it refuses nothing.
    errno: AtomicI32,
}

impl Refusing {
    fn check(&self, key: &Key) -> Result<()> {
        let errno = self.errno.load(Ordering::SeqCst);
        let refuses = errno != 0 && key.as_str().starts_with("stuck/");
        if refuses {
            Err(Error::system(errno))
        } else {
            Ok(())
        }
    }
}

impl Readable for Refusing {
    delegate_store!(below: read stat list location);
}

impl Store for Refusing {
    delegate_store!(below: check_writable);

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        self.check(key)?;
        self.below.put_pieces(key, pieces, replaces)
    }
}

/// A cache over a store whose calls for the array `stuck` can be refused or stopped.
struct Setup {
    refusing: Arc<Refusing>,
    store: Arc<FaultyStore>,
    stats: Arc<Stats>,
    cache: Arc<Cache>,
    stuck: Arc<Array>,
}

impl Setup {
    fn new(bound: usize) -> Setup {
        let refusing = Arc::new(Refusing {
            below: MemoryStore::default(),
            errno: AtomicI32::new(0),
        });
        let store = Arc::new(FaultyStore::new(refusing.clone()));
        let stats = Arc::new(Stats::default());
        let cache = Arc::new(Cache::new(bound, stats.clone()));
        let stuck = made(&refusing, &store, &stats, "stuck");
        Setup {
            refusing,
            store,
            stats,
            cache,
            stuck,
        }
    }

    fn array(&self, name: &str) -> Arc<Array> {
        made(&self.refusing, &self.store, &self.stats, name)
    }

    fn stop(&self) {
        self.store.stop(Key::root().join("stuck"), 0);
    }

    /// Makes three chunks of the array `stuck` dirty, `len` bytes of each.
    fn fill(&self, len: usize) {
        (0..3).for_each(|chunk| {
            self.cache
                .write(&self.stuck, ChunkId(chunk), 0, &vec![99; len])
                .unwrap()
        });
    }

    /// Calls `f` in a thread.
    fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Cache) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (done, wait) = channel();
        let cache = self.cache.clone();
        std::thread::spawn(move || done.send(f(&cache)));
        wait
    }

    /// Checks that the store holds the bytes that [`Setup::fill`] wrote.
    fn check_filled(&self, len: usize) {
        let mut value = Vec::new();
        for chunk in 0..3 {
            self.store
                .get(
                    &Key::root().join("stuck").join(&chunk.to_string()),
                    u64::MAX,
                    &mut value,
                )
                .unwrap();
            assert!(value[..len].iter().all(|&byte| byte == 99), "chunk {chunk}");
            assert!(
                value[len..].iter().all(|&byte| byte == chunk),
                "chunk {chunk}"
            );
        }
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.store.resume();
    }
}

fn made(
    refusing: &Refusing,
    store: &Arc<FaultyStore>,
    stats: &Arc<Stats>,
    name: &str,
) -> Arc<Array> {
    let doc = br#"{"zarr_format":2,"shape":[200000],"chunks":[10000],"dtype":"|u1","compressor":null,"fill_value":0,
        "order":"C","filters":null}"#;
    for chunk in 0..CHUNKS {
        refusing
            .below
            .insert(&format!("{name}/{chunk}"), vec![chunk as u8; CHUNK]);
    }
    refusing
        .below
        .insert(&format!("{name}/.zarray"), doc.to_vec());
    let metadata = ArrayMetadata::parse(doc).unwrap();
    Arc::new(
        Array::new(
            Key::root().join(name),
            metadata,
            store.clone(),
            stats.clone(),
        )
        .unwrap(),
    )
}

/// Writes parts of all chunks of an array, stores them and reads them again.
fn use_array(cache: &Cache, array: &Arc<Array>) {
    for chunk in 0..CHUNKS {
        cache.write(array, ChunkId(chunk), 100, &[7; 100]).unwrap();
    }
    cache.flush_array(array).unwrap();
    for chunk in 0..CHUNKS {
        let piece = cache
            .get(array, ChunkId(chunk), ChunkPart::Whole)
            .unwrap()
            .unwrap();
        assert_eq!((piece.bytes()[99], piece.bytes()[199]), (chunk as u8, 7));
    }
}

#[test]
fn writes_of_another_array_do_not_wait_for_a_stopped_store() {
    for len in [100, CHUNK] {
        for is_being_stored in [false, true] {
            let setup = Setup::new(BOUND);
            let other = setup.array("other");
            setup.fill(len);
            setup.stop();
            let stuck = setup.stuck.clone();
            let stored = is_being_stored.then(|| {
                let stored = setup.spawn(move |cache| cache.flush_array(&stuck));
                wait_for(|| setup.store.stopped() > 0);
                stored
            });
            let used = setup.spawn(move |cache| use_array(cache, &other));
            used.recv_timeout(LIMIT)
                .expect("the write of another array does not wait");
            setup.store.resume();
            stored
                .into_iter()
                .for_each(|stored| stored.recv_timeout(LIMIT).unwrap().unwrap());
            setup.cache.flush_all().unwrap();
            setup.check_filled(len);
        }
    }
}

#[test]
fn writes_of_another_array_do_not_fail_with_a_store_that_refuses() {
    for errno in [libc::ENOSPC, libc::EIO] {
        let setup = Setup::new(BOUND);
        let other = setup.array("other");
        setup.fill(100);
        setup.refusing.errno.store(errno, Ordering::SeqCst);
        use_array(&setup.cache, &other);
        let own = setup.cache.write(&setup.stuck, ChunkId(5), 0, &[1; 10]);
        assert_eq!(
            own.unwrap_err().errno(),
            errno,
            "its own writer gets the error"
        );
        assert!(!setup.cache.is_dirty(&setup.stuck, ChunkId(5)));
        use_array(&setup.cache, &other);
        setup.refusing.errno.store(0, Ordering::SeqCst);
        setup.cache.flush_all().unwrap();
        setup.check_filled(100);
    }
}

#[test]
fn many_arrays_progress_beside_one_that_is_stopped_and_stay_within_the_bound() {
    let setup = Setup::new(BOUND);
    let others: Vec<_> = (0..20)
        .map(|i| setup.array(&format!("other-{i}")))
        .collect();
    setup.fill(100);
    setup.stop();
    let written = setup.spawn(move |cache| {
        for round in 0..3 {
            for other in &others {
                cache
                    .write(other, ChunkId(round), 0, &[8; CHUNK / 2])
                    .unwrap();
                assert!(
                    cache.lock().dirty_bytes <= BOUND + CHUNK,
                    "{}",
                    cache.lock().dirty_bytes
                );
            }
        }
        others
            .iter()
            .for_each(|other| cache.flush_array(other).unwrap());
    });
    written
        .recv_timeout(LIMIT)
        .expect("no array waits for another one");
    let gone = setup.cache.lock().dirty_bytes;
    assert_eq!(gone, 3 * CHUNK);
}

#[test]
fn idle_dirty_chunks_are_stored_in_the_background_to_make_space() {
    let setup = Setup::new(BOUND);
    let other = setup.array("other");
    setup.fill(100);
    let mut most = 0;
    for chunk in 0..CHUNKS {
        setup
            .cache
            .write(&other, ChunkId(chunk), 0, &[8; 100])
            .unwrap();
        most = most.max(
            setup
                .cache
                .lock()
                .oldest_dirty(|array| array.id() == other.id())
                .count(),
        );
        while setup.cache.wants_background_flush() && setup.cache.flush_in_background().unwrap() {}
    }
    assert!(!setup.stuck.is_dirty());
    setup.check_filled(100);
    assert_eq!(most, 3, "the other array gets all the space");
}

#[test]
fn background_threads_are_left_for_other_arrays() {
    let setup = Setup::new(100 * CHUNK);
    let other = setup.array("other");
    for array in [&setup.stuck, &other] {
        (0..CHUNKS).for_each(|chunk| {
            setup
                .cache
                .write(array, ChunkId(chunk), 0, &[9; CHUNK])
                .unwrap()
        });
    }
    setup.stop();
    let flush = |many| {
        (0..many)
            .map(|_| setup.spawn(|cache| cache.flush_in_background()))
            .collect::<Vec<_>>()
    };
    let stuck = flush(
        setup
            .cache
            .flush_threads(&setup.stuck)
            .min(super::WRITE_BACK_THREADS),
    );
    wait_for(|| {
        setup
            .cache
            .lock()
            .write_backs
            .get(&setup.stuck.id())
            .is_some_and(|s| s.in_flight == stuck.len())
    });
    // chunks of the stopped array are still the first in the queue; one at a time, since an array
    // has few threads
    for done in (0..CHUNKS).flat_map(|_| flush(1)) {
        assert!(
            done.recv_timeout(LIMIT)
                .expect("no further thread is stopped")
                .unwrap()
        );
    }
    assert!(!other.is_dirty());
    setup.store.resume();
    stuck
        .iter()
        .for_each(|done| assert!(done.recv_timeout(LIMIT).unwrap().unwrap()));
}

#[test]
fn a_load_of_another_array_does_not_wait_for_stopped_loads() {
    // each load takes two chunks, one of them for the encoded bytes
    let setup = Setup::new(5 * CHUNK);
    let other = setup.array("other");
    setup.stop();
    let loads: Vec<_> = (0..4)
        .map(|chunk| {
            let stuck = setup.stuck.clone();
            setup.spawn(move |cache| {
                cache
                    .get(&stuck, ChunkId(chunk), ChunkPart::Whole)
                    .map(|piece| piece.is_some())
            })
        })
        .collect();
    wait_for(|| setup.store.stopped() == 2);
    let read = setup.spawn(move |cache| {
        for chunk in 0..CHUNKS {
            let piece = cache
                .get(&other, ChunkId(chunk), ChunkPart::Whole)
                .unwrap()
                .unwrap();
            assert_eq!(piece.bytes()[0], chunk as u8);
        }
    });
    read.recv_timeout(LIMIT)
        .expect("the read of another array does not wait");
    assert_eq!(
        setup.store.stopped(),
        2,
        "loads of the same array wait for memory"
    );
    setup.store.resume();
    loads
        .iter()
        .for_each(|load| assert!(load.recv_timeout(LIMIT).unwrap().unwrap()));
    assert_eq!(setup.cache.lock().reserved.bytes(), 0);
    assert!(setup.cache.lock().reserved.by_array.is_empty());
}

#[test]
fn write_backs_reserve_the_memory_that_they_take() {
    for len in [100, CHUNK] {
        let setup = Setup::new(BOUND);
        setup.fill(len);
        setup.stop();
        let stuck = setup.stuck.clone();
        let stored = setup.spawn(move |cache| cache.flush_array(&stuck));
        wait_for(|| setup.store.stopped() > 0);
        let reserved = setup.cache.lock().reserved.bytes();
        assert!(
            reserved >= CHUNK,
            "the encoded form and the base: {reserved}"
        );
        // the dirty chunks leave memory for one write-back at a time
        assert_eq!(setup.store.stopped(), 1);
        setup.store.resume();
        stored
            .recv_timeout(LIMIT)
            .expect("one write-back follows the other")
            .unwrap();
        setup.check_filled(len);
        assert_eq!(setup.cache.lock().reserved.bytes(), 0);
    }
}

#[test]
fn tiny_chunks_and_scattered_writes_count_with_all_their_memory() {
    let store = Arc::new(MemoryStore::default());
    let stats = Arc::new(Stats::default());
    let cache = Cache::new(100 * super::DIRTY_COST, stats.clone());
    let array = |key: &str, chunk: usize| {
        let document = format!(
            r#"{{"zarr_format":2,"shape":[1000000],"chunks":[{chunk}],"dtype":"|u1","compressor":null,"fill_value":0,
            "order":"C","filters":null}}"#
        );
        let metadata = ArrayMetadata::parse(document.as_bytes()).unwrap();
        Arc::new(
            Array::new(
                Key::root().join(key),
                metadata,
                store.clone(),
                stats.clone(),
            )
            .unwrap(),
        )
    };
    let tiny = array("tiny", 1);
    (0..1000).for_each(|chunk| cache.write(&tiny, ChunkId(chunk), 0, &[9]).unwrap());
    let dirty = cache.lock().dirty.len();
    assert!(
        (10..=75).contains(&dirty),
        "three quarters of the bound are dirty: {dirty}"
    );
    cache.flush_all().unwrap();
    let scattered = array("scattered", CHUNK);
    let parts: Vec<(usize, &[u8])> = (0..CHUNK / 2).map(|n| (2 * n, &b"x"[..])).collect();
    let before = cache.used();
    assert!(
        cache
            .try_write_parts(&scattered, ChunkId(0), &parts, Creates::UnlessEmpty)
            .unwrap()
    );
    let used = cache.used() - before;
    assert!(
        used > CHUNK + CHUNK / 8 && used < CHUNK * 3 / 2 + super::DIRTY_COST,
        "the chunk and a map: {used}"
    );
    cache.flush_all().unwrap();
    assert!(
        cache
            .get(&scattered, ChunkId(0), ChunkPart::Whole)
            .unwrap()
            .unwrap()
            .bytes()
            .starts_with(b"x\0x\0")
    );
}

#[test]
fn readers_and_write_backs_of_the_same_chunks_do_not_wait_for_each_other() {
    // there is memory for less than one load
    let setup = Setup::new(CHUNK);
    let other = setup.array("other");
    let work: Vec<_> = (0..6)
        .map(|n| {
            let stuck = setup.stuck.clone();
            let other = other.clone();
            setup.spawn(move |cache| {
                for round in 0..40 {
                    let array = if round % 2 == 0 { &stuck } else { &other };
                    let chunk = ChunkId(round % 3);
                    match n {
                        0 | 1 => cache.write(array, chunk, 100 * n, &[99; 100]).unwrap(),
                        2 | 3 => drop(cache.get(array, chunk, ChunkPart::Whole).unwrap()),
                        _ => cache.flush_array(array).unwrap(),
                    }
                }
            })
        })
        .collect();
    work.iter()
        .for_each(|done| done.recv_timeout(LIMIT).expect("no thread waits for ever"));
    setup.cache.flush_all().unwrap();
    assert_eq!(setup.cache.lock().reserved.bytes(), 0);
}

fn wait_for(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < LIMIT,
            "what the test waits for does not come"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
