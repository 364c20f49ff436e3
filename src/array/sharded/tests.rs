use super::pending::{PendingBytes, PendingChunk};
use super::*;
use crate::array::{ArrayEntry, Ranges, Scratch};
use zarrfs_base::json::{Value, json};
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_outlive::{Journal, KeyedCounts, create_memory};
use zarrfs_store::{ByteRange, Capabilities, Key, MemoryStore, Readable, Store, delegate_store};

/// Returns the document of an array of 5 x 4 bytes in chunks of 1 x 2, in shards of 2 x 4: 3
/// objects of 4 chunks, the last one over the edge.
fn document(around: Value) -> Vec<u8> {
    let sharding = json!({"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 2], "codecs": ["bytes"],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"]}});
    let mut codecs = vec![sharding];
    codecs.extend(around.as_array().unwrap().clone());
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": [5, 4], "data_type": "uint8", "fill_value": 9,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": codecs});
    zarrfs_base::json::write(&document).into_bytes()
}

/// Returns a shard with `junk` bytes of waste in front and these entries. The two bytes of each
/// chunk spell the number of its entry.
fn shard(junk: usize, entries: [Option<u8>; 4]) -> Vec<u8> {
    let mut value = vec![0xee; junk];
    let mut index = Vec::new();
    for entry in entries {
        let place = entry.map_or((u64::MAX, u64::MAX), |_| (value.len() as u64, 2));
        value.extend(entry.into_iter().flat_map(|item| [item; 2]));
        index.extend([place.0.to_le_bytes(), place.1.to_le_bytes()].concat());
    }
    index.extend(crc32c::crc32c(&index).to_le_bytes());
    [value, index].concat()
}

fn array(store: &Arc<MemoryStore>, around: Value) -> Arc<Array> {
    let metadata = ArrayMetadata::parse_v3(&document(around)).unwrap();
    Arc::new(Array::new(Key::root(), metadata, store.clone(), Arc::default()).unwrap())
}

fn put(store: &MemoryStore, name: &str, value: &[u8]) {
    store.put(&Key::normalize(name).unwrap(), value).unwrap();
}

fn load(array: &Array, chunk: u64) -> Result<Option<Vec<u8>>> {
    Ok(array
        .load(ChunkId(chunk), Vec::new(), &mut Scratch::default())?
        .map(|loaded| loaded.bytes))
}

fn listed(array: &Arc<Array>) -> Vec<u64> {
    let chunk = |entry| match entry {
        Ok(ArrayEntry::Chunk(chunk)) => chunk.0,
        other => panic!("{other:?}"),
    };
    let mut chunks: Vec<u64> = array.entries().unwrap().map(chunk).collect();
    chunks.sort_unstable();
    chunks
}

#[test]
fn chunks_are_read_listed_and_measured() {
    let store = Arc::new(MemoryStore::default());
    put(
        &store,
        "c/0/0",
        &shard(0, [Some(0), None, Some(2), Some(3)]),
    );
    put(&store, "c/2/0", &shard(7, [Some(8), Some(9), None, None]));
    let array = array(&store, json!([]));
    assert_eq!(listed(&array), [0, 2, 3, 8, 9]);
    for (chunk, expected) in [
        (0, Some(0)),
        (1, None),
        (2, Some(2)),
        (3, Some(3)),
        (4, None),
        (8, Some(8)),
        (9, Some(9)),
    ] {
        assert_eq!(
            load(&array, chunk).unwrap(),
            expected.map(|item| vec![item; 2]),
            "{chunk}"
        );
        let stat = array.stat_chunk(ChunkId(chunk)).unwrap();
        assert_eq!(stat.map(|stat| stat.size), expected.map(|_| 2), "{chunk}");
    }
    let mut part = Vec::new();
    assert!(
        array
            .read_plain(ChunkId(3), 1..2, &mut part)
            .unwrap()
            .is_some()
    );
    assert_eq!(
        (part, array.stats.index_reads.get()),
        (vec![3], 2),
        "each index was read once"
    );
}

#[test]
fn arrays_whose_shards_could_not_be_stored_are_not_writable() {
    let sharding = |chunk: u64, codecs: Value| {
        json!({"name": "sharding_indexed", "configuration": {"chunk_shape": [chunk], "codecs": codecs,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}})
    };
    let writable_as = |len: u64, shard: u64, of: &str, codecs: Value| {
        let fill = if of == "string" { json!("") } else { json!(9) };
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": [len], "data_type": of,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard]}}, "fill_value": fill,
            "chunk_key_encoding": {"name": "default"}, "codecs": codecs});
        let metadata =
            ArrayMetadata::parse_v3(&zarrfs_base::json::write(&document).into_bytes()).unwrap();
        let array = Array::new(
            Key::root(),
            metadata,
            Arc::new(MemoryStore::default()),
            Arc::default(),
        )
        .unwrap();
        array.writable().map_err(|e| (e.errno(), e.to_string()))
    };
    let writable = |shard: u64, codecs: Value| writable_as(shard * 4, shard, "uint8", codecs);
    let entries = 1 << 22;
    let limit = memory::limit() as u64;
    assert!(
        limit > 64 * entries && limit < 2 * 64 * entries,
        "while it is put, an entry takes 64 bytes"
    );
    writable(entries, json!([sharding(1, json!(["bytes"]))])).unwrap();
    let nested = json!([sharding(entries, json!([sharding(1, json!(["bytes"]))]))]);
    let (errno, message) = writable(entries * entries, nested).unwrap_err();
    assert!(
        errno == libc::ENOMEM && message.contains("--cache-size"),
        "{message}"
    );
    let mib = 1 << 20;
    let gzip = json!({"name": "gzip", "configuration": {"level": 1}});
    let around = json!([sharding(mib, json!(["bytes"])), gzip]);
    writable(limit / 5 / mib * mib, around.clone()).unwrap();
    writable(
        limit / 3 / mib * mib,
        json!([sharding(mib, json!(["bytes"]))]),
    )
    .unwrap();
    let large = limit / 3 / mib * mib;
    let (errno, message) = writable(large, around.clone()).unwrap_err();
    assert!(
        errno == libc::ENOMEM && message.contains("encoded as a whole"),
        "{message}"
    );
    // a shard holds no more chunks than the array has
    writable_as(3 * mib, large, "uint8", around).unwrap();
    let nested = json!([
        sharding(mib, json!([sharding(1024, json!(["bytes"]))])),
        gzip
    ]);
    writable_as(3 * mib, large, "uint8", nested).unwrap();
    // the size of variable-length objects is unknown
    writable_as(
        large * 4,
        large,
        "string",
        json!([sharding(mib, json!(["vlen-utf8"])), gzip]),
    )
    .unwrap();
}

#[test]
fn a_shard_that_is_encoded_as_a_whole_is_decoded_once() {
    let store = Arc::new(MemoryStore::default());
    let mut value = shard(3, [Some(5), None, Some(7), None]);
    value.extend(crc32c::crc32c(&value).to_le_bytes());
    put(&store, "c/1/0", &value);
    let array = array(&store, json!(["crc32c"]));
    assert_eq!(
        (load(&array, 4).unwrap(), load(&array, 6).unwrap()),
        (Some(vec![5; 2]), Some(vec![7; 2]))
    );
    assert_eq!(
        (load(&array, 5).unwrap(), array.stats.index_reads.get()),
        (None, 1)
    );
    value[1] ^= 1;
    put(&store, "c/1/0", &value);
    array.freshness().begin_opening();
    assert_eq!(load(&array, 4).unwrap_err().kind(), Kind::Damaged);
}

#[test]
fn a_replaced_object_is_read_again() {
    let store = Arc::new(MemoryStore::default());
    put(
        &store,
        "c/0/0",
        &shard(0, [Some(0), Some(1), Some(2), None]),
    );
    let array = array(&store, json!([]));
    assert_eq!(load(&array, 0).unwrap(), Some(vec![0; 2]));
    put(
        &store,
        "c/0/0",
        &shard(1, [Some(10), Some(11), Some(12), Some(13)]),
    );
    // the kept index is of another version: its range is not used
    assert_eq!(load(&array, 1).unwrap(), Some(vec![11; 2]));
    array.freshness().begin_opening();
    assert_eq!(load(&array, 3).unwrap(), Some(vec![13; 2]));
    put(&store, "c/0/0", &shard(1, [None, None, None, Some(14)]));
    array.freshness().begin_opening();
    assert_eq!((load(&array, 0).unwrap(), listed(&array)), (None, vec![3]));
    store.delete(&Key::normalize("c/0/0").unwrap()).unwrap();
    array.freshness().begin_opening();
    assert_eq!((load(&array, 3).unwrap(), listed(&array)), (None, vec![]));
}

/// A store in which another writer replaces the object before each read of a part, except before
/// each `spared`th.
struct Replaced {
    store: Arc<MemoryStore>,
    is_remote: bool,
    spared: usize,
    reads: std::sync::atomic::AtomicUsize,
}

impl Replaced {
    fn replace(&self) {
        let read = self.reads.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if read % self.spared != self.spared - 1 {
            put(
                &self.store,
                "c/0/0",
                &shard(0, [Some(0), Some(1), Some(2), Some(3)]),
            );
        }
    }
}

impl Readable for Replaced {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        if !matches!(range, ByteRange::Whole(_)) {
            self.replace();
        }
        self.store.read(key, range, value)
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            concurrency: if self.is_remote { 64 } else { 1 },
            ..Capabilities::default()
        }
    }

    delegate_store!(store: stat list location);
}

impl Store for Replaced {
    delegate_store!(store: check_writable put_pieces change sync);
}

#[test]
fn an_object_that_is_always_replaced_is_given_up() {
    for (is_remote, spared) in [
        (false, usize::MAX),
        (false, 2),
        (false, 50),
        (true, usize::MAX),
    ] {
        let store = Arc::new(MemoryStore::default());
        put(
            &store,
            "c/0/0",
            &shard(0, [Some(0), Some(1), Some(2), Some(3)]),
        );
        let reads = std::sync::atomic::AtomicUsize::new(0);
        let replaced = Arc::new(Replaced {
            store,
            is_remote,
            spared,
            reads,
        });
        let metadata = ArrayMetadata::parse_v3(&document(json!([]))).unwrap();
        let array = Array::new(Key::root(), metadata, replaced.clone(), Arc::default()).unwrap();
        assert_eq!(array.is_remote(), is_remote);
        let reads = || replaced.reads.load(std::sync::atomic::Ordering::SeqCst);
        let error = load(&array, 0).unwrap_err();
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert!(
            error.message().contains("/c/0/0") && error.message().contains("64 times"),
            "{error}"
        );
        assert!(
            error.message().contains("the server states another ETag"),
            "{error}"
        );
        assert!(
            (ATTEMPTS..=2 * ATTEMPTS).contains(&reads()),
            "{} reads, {is_remote} {spared}",
            reads()
        );
        // written bytes that have to be laid over what the store holds
        let before = reads();
        let new = EncodedChunk {
            bytes: &[7, 7],
            written: Some(&Ranges::from(0..1)),
            replaces: Replaces::Nothing,
        };
        let put = array.store_if(ChunkId(0), new, WriteBack::unconfirmed());
        assert!(put.unwrap().is_some());
        assert!(load(&array, 0).is_err());
        assert!(
            reads() - before <= 3 * ATTEMPTS,
            "{} reads, {is_remote} {spared}",
            reads() - before
        );
    }
}

#[test]
fn damage_affects_only_its_chunk_or_its_shard() {
    let store = Arc::new(MemoryStore::default());
    let sound = shard(0, [Some(0), Some(1), Some(2), Some(3)]);
    let index = sound.len() - 68;
    let len = sound.len();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut value = sound.clone();
        change(&mut value);
        let sum = crc32c::crc32c(&value[index..len - 4]).to_le_bytes();
        value[len - 4..].copy_from_slice(&sum);
        value
    };
    let entry = |value: &mut Vec<u8>, offset: u64, size: u64| {
        value[index..index + 16]
            .copy_from_slice(&[offset.to_le_bytes(), size.to_le_bytes()].concat());
    };
    // damaged entries of the first chunk
    for (offset, size) in [
        (8, 1),
        (u64::MAX - 1, 5),
        (u64::MAX, 2),
        (0, u64::MAX),
        (7, 2),
        (0, 0),
        (0, 1),
        (0, 3),
        (0, 1 << 40),
    ] {
        put(&store, "c/0/0", &with(&|value| entry(value, offset, size)));
        let array = array(&store, json!([]));
        assert_eq!(
            load(&array, 0).unwrap_err().kind(),
            Kind::Damaged,
            "{offset} {size}"
        );
        assert_eq!(
            (load(&array, 1).unwrap(), listed(&array).len()),
            (Some(vec![1; 2]), 4),
            "{offset} {size}"
        );
    }
    // overlapping entries are allowed
    put(&store, "c/0/0", &with(&|value| entry(value, 2, 2)));
    assert_eq!(
        load(&array(&store, json!([])), 0).unwrap(),
        Some(vec![1; 2])
    );
    // damaged indexes
    for value in [
        Vec::new(),
        vec![0; 67],
        sound[..len - 1].to_vec(),
        [&sound[..], &[0]].concat(),
    ] {
        put(&store, "c/0/0", &value);
        let array = array(&store, json!([]));
        assert_eq!(
            (load(&array, 0).unwrap_err().kind(), listed(&array)),
            (Kind::Damaged, vec![0, 1, 2, 3])
        );
        assert!(
            array.stat_chunk(ChunkId(1)).unwrap().is_some(),
            "no chunk looks missing"
        );
    }
}

/// "Of two records of a chunk, the later one stands for it": a daemon leaves two if it is killed
/// after it has recorded a new version and before it removes the old record.
#[test]
fn of_two_records_of_a_chunk_the_later_one_stands() {
    let store = Arc::new(MemoryStore::default());
    put(&store, "c/0/0", &shard(0, [Some(5), None, None, None]));
    let memory = create_memory().unwrap();
    let journal = Arc::new(Journal::open(&memory).unwrap().0);
    let killed = array(&store, json!([]));
    let (counts, _) = KeyedCounts::new(journal.clone(), 1, &[]);
    killed.freshness.count_unstored(|| counts.of(""));
    let hand_over = |bytes: [u8; 2], written, base| {
        let chunks = killed.in_shards().unwrap();
        let bytes = PendingBytes::in_memory(&bytes).unwrap();
        let written = Ranges::from_iter([written]);
        let version = chunks.hand_over(&killed, ChunkId(0), Some(bytes), Some(&written), base);
        version.unwrap().unwrap()
    };
    let earlier = hand_over([1, 0], 0..1, None);
    let (_, left) = Journal::open(&memory).unwrap();
    let record = left.iter().find(|record| record.kind != 1).unwrap();
    let mut text = record.text.clone();
    // the number of the version of a daemon that has handed over many chunks
    let far = u64::from_le_bytes(text[..8].try_into().unwrap()) + 1_000_000;
    hand_over([1, 2], 1..2, Some(earlier));
    let numbers = record.numbers;
    journal.add(record.kind, numbers, &text).unwrap();

    let (_, left) = Journal::open(&memory).unwrap();
    let recorded = RecordedChunk::of_records(&left, None);
    assert_eq!(recorded.len(), 2);
    let successor = array(&store, json!([]));
    for (chunk, _) in recorded {
        successor.hand_over_again(chunk).unwrap();
        assert!(
            [[1, 5], [1, 2]]
                .map(Vec::from)
                .contains(&load(&successor, 0).unwrap().unwrap())
        );
    }
    assert_eq!(load(&successor, 0).unwrap().unwrap(), [1, 2]);

    text[..8].copy_from_slice(&far.to_le_bytes());
    journal.add(record.kind, numbers, &text).unwrap();
    let (_, left) = Journal::open(&memory).unwrap();
    RecordedChunk::of_records(&left, None);
    let next = PendingChunk::new(None, None, None).unwrap();
    assert!(matches!(next.version, Version::Pending(order) if order > far));
}
