//! Counts the store calls that reads and writes in shards take.

use crate::fs::tests::model;
use crate::fs::tree::FLAT;
use crate::fs::*;
use zarrfs_store::MemoryStore;
use zarrfs_store::testing::{FaultyStore, Operation};

/// Mounts an array of 64 x 64 bytes in 16 shards, each of 4 x 4 chunks of 4 x 4 bytes, with a cache
/// of `bound` bytes.
fn mount(bound: usize) -> (Arc<FaultyStore>, Fs) {
    mount_square(64, 16, bound)
}

/// Mounts an array of `side` x `side` bytes in shards of `shard` x `shard`, whose chunks have 4 x 4
/// bytes. No thread stores quiet shards: no time passes for them.
fn mount_square(side: u64, shard: u64, bound: usize) -> (Arc<FaultyStore>, Fs) {
    let index = r#"{"name":"bytes","configuration":{"endian":"little"}},{"name":"crc32c"}"#;
    let document = format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":[{side},{side}],"data_type":"uint8","fill_value":0,
        "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[{shard},{shard}]}}}},
        "chunk_key_encoding":{{"name":"default"}},"codecs":[{{"name":"sharding_indexed","configuration":{{
        "chunk_shape":[4,4],"codecs":[{{"name":"bytes"}}],"index_codecs":[{index}]}}}}]}}"#
    );
    let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::default())));
    store
        .put(&Key::normalize("a/zarr.json").unwrap(), document.as_bytes())
        .unwrap();
    let fs = model::mount(&store, bound);
    (store, fs)
}

fn flat(fs: &Fs) -> u64 {
    let array = fs.lookup(1, "a").unwrap().inode;
    fs.open(fs.lookup(array, FLAT).unwrap().inode, true, false)
        .unwrap()
        .handle
}

#[test]
fn a_stream_puts_each_shard_once_and_reads_nothing() {
    // the smaller cache holds 24 chunks of 16 bytes, while a row of shards has 64
    for bound in [24 * 16, 1 << 20] {
        let (store, fs) = mount(bound);
        let handle = flat(&fs);
        let puts = store.calls(Operation::Put);
        for row in 0..64u64 {
            fs.change()
                .write(handle, 64 * row, &[row as u8 + 1; 64])
                .unwrap();
        }
        fs.change().flush(handle).unwrap();
        assert_eq!(
            (
                store.calls(Operation::Put) - puts,
                fs.stats.index_reads.get()
            ),
            (16, 0),
            "cache {bound}"
        );
        let mut bytes = Vec::new();
        fs.read(handle, 0, 64 * 64, &mut bytes).unwrap();
        assert!(
            bytes
                .chunks(64)
                .enumerate()
                .all(|(row, bytes)| bytes == [row as u8 + 1; 64])
        );
        fs.change().release(handle);
    }
}

#[test]
fn chunk_files_put_each_shard_once() {
    let (store, fs) = mount(1 << 20);
    let array = fs.lookup(1, "a").unwrap().inode;
    let puts = store.calls(Operation::Put);
    for chunk in 0..256 {
        let (_, opened) = fs
            .change()
            .create(
                array,
                &format!("{}.{}", chunk / 16, chunk % 16),
                false,
                false,
                0o644,
            )
            .unwrap();
        fs.change()
            .write(opened.handle, 0, &[chunk as u8; 16])
            .unwrap();
        fs.change().flush(opened.handle).unwrap();
        fs.change().release(opened.handle);
    }
    assert_eq!(
        (
            store.calls(Operation::Put) - puts,
            fs.stats.index_reads.get()
        ),
        (16, 0)
    );
    // nothing waits to be stored
    assert!(!fs.cache.has_pending(|_| true));
}

/// zarr-python writes each chunk to a file beside it and renames that; its threads work in no
/// order.
#[test]
fn sixteen_threads_that_rename_4096_chunk_files_put_each_shard_once() {
    const THREADS: u64 = 16;
    let (store, fs) = mount_square(256, 32, 1 << 20);
    let array = fs.lookup(1, "a").unwrap().inode;
    let puts = store.calls(Operation::Put);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                for chunk in (thread..4096).step_by(THREADS as usize) {
                    let name = format!("{}.{}", chunk / 64, chunk % 64);
                    let beside = format!("{name}.{thread}.partial");
                    let (_, opened) = fs
                        .change()
                        .create(array, &beside, true, false, 0o644)
                        .unwrap();
                    fs.change()
                        .write(opened.handle, 0, &[chunk as u8 | 1; 16])
                        .unwrap();
                    fs.change().flush(opened.handle).unwrap();
                    fs.change().release(opened.handle);
                    fs.change()
                        .rename((array, &beside), (array, &name), false)
                        .unwrap();
                }
            });
        }
    });
    // puts also create and fill the files beside
    assert_eq!(
        (
            store.calls(Operation::Put) - puts,
            fs.stats.object_stores.get()
        ),
        (2 * 4096 + 64, 64)
    );
    assert!(!fs.cache.has_pending(|_| true));
    let mut bytes = Vec::new();
    fs.read(flat(&fs), 0, 256 * 256, &mut bytes).unwrap();
    let chunk_of = |i: usize| (i / 256 / 4 * 64 + i % 256 / 4) as u8 | 1;
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(i, byte)| *byte == chunk_of(i))
    );
}

#[test]
fn a_small_change_reads_one_index_and_one_chunk_and_puts_one_shard() {
    let (store, fs) = mount(1 << 20);
    let handle = flat(&fs);
    fs.change().write(handle, 0, &[5; 64 * 64]).unwrap();
    fs.change().flush(handle).unwrap();
    fs.change().release(handle);
    let fs = model::mount(&store, 1 << 20);
    let handle = flat(&fs);
    let before = [Operation::Put, Operation::Get].map(|operation| store.calls(operation));
    fs.change().write(handle, 0, &[6; 2]).unwrap();
    fs.change().flush(handle).unwrap();
    let [puts, gets] = [Operation::Put, Operation::Get].map(|operation| store.calls(operation));
    // two gets for the chunk: the index and its bytes; the put reads the old shard through the
    // store below
    assert_eq!(puts - before[0], 1);
    assert!(gets - before[1] <= 2, "{}", gets - before[1]);
}

#[test]
fn a_random_read_reads_an_index_and_a_chunk() {
    const CHUNK: u64 = 64 << 10;
    let gzip = r#"{"name":"gzip","configuration":{"level":1}}"#;
    for (is_remote, more) in [
        (false, String::new()),
        (true, String::new()),
        (false, format!(",{gzip}")),
        (true, format!(",{gzip}")),
    ] {
        let index = r#"{"name":"bytes","configuration":{"endian":"little"}},{"name":"crc32c"}"#;
        let document = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[{}],"data_type":"uint8","fill_value":0,
            "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[{}]}}}},
            "chunk_key_encoding":{{"name":"default"}},"codecs":[{{"name":"sharding_indexed","configuration":{{
            "chunk_shape":[{CHUNK}],"codecs":[{{"name":"bytes"}}{more}],"index_codecs":[{index}]}}}}]}}"#,
            64 * CHUNK,
            16 * CHUNK
        );
        let memory = Arc::new(MemoryStore::default());
        let store = Arc::new(if is_remote {
            FaultyStore::remote(memory)
        } else {
            FaultyStore::new(memory)
        });
        store
            .put(&Key::normalize("a/zarr.json").unwrap(), document.as_bytes())
            .unwrap();
        let fs = model::mount(&store, 64 << 20);
        let handle = flat(&fs);
        // bytes that gzip does not make smaller
        let mut state = 1u64;
        let byte = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..64 * CHUNK).map(byte).collect();
        fs.change().write(handle, 0, &bytes).unwrap();
        fs.change().flush(handle).unwrap();
        fs.change().release(handle);
        let fs = model::mount(&store, 64 << 20);
        let handle = flat(&fs);
        for i in 0..40 {
            let start = i * 37 % 64 * CHUNK + i * 1000;
            let before = fs.stats.bytes_stored.get();
            let mut out = Vec::new();
            fs.read(handle, start, 4096, &mut out).unwrap();
            assert_eq!(out, bytes[start as usize..][..4096]);
            let read = fs.stats.bytes_stored.get() - before;
            assert!(
                read <= 16 * 16 + 4 + CHUNK + (64 << 10),
                "read {i}: {read} bytes, {is_remote} {more}"
            );
        }
        fs.change().release(handle);
    }
}
