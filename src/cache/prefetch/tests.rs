use super::*;
use std::sync::mpsc::channel;
use std::time::Duration;
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::Key;
use zarrfs_store::testing::SimulatedRemote;

const CHUNKS: u64 = 16;
const CHUNK: u64 = 64 << 10;

#[test]
fn a_late_prefetch_loads_no_chunk_that_its_reader_has_left() {
    let store = Arc::new(SimulatedRemote::new(Duration::ZERO, false));
    for chunk in 0..CHUNKS {
        store
            .below
            .insert(&chunk.to_string(), vec![7; CHUNK as usize]);
    }
    let document =
        br#"{"zarr_format":2,"shape":[1048576],"chunks":[65536],"dtype":"|u1","compressor":null,
        "fill_value":0,"order":"C","filters":null}"#;
    let metadata = ArrayMetadata::parse(document).unwrap();
    let stats = Arc::new(Stats::default());
    let array = Arc::new(Array::new(Key::root(), metadata, store.clone(), stats.clone()).unwrap());
    let cache = Arc::new(Cache::new(1 << 20, stats));
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 0,
    };
    let prefetcher = Prefetcher::new(cache.clone(), 2, 64, spill).unwrap();
    let state = PrefetchState::default();

    // a job that weighs as much as all together lets no other one begin
    let (end, ended) = channel::<()>();
    prefetcher
        .pool
        .run_weighing(usize::MAX, move || _ = ended.recv());
    for chunk in 0..CHUNKS {
        prefetcher.record_access(&state, &array, chunk * CHUNK, CHUNK, true);
        cache.get(&array, ChunkId(chunk), ChunkPart::Whole).unwrap();
    }
    drop(end);
    let (done, is_done) = channel();
    prefetcher
        .pool
        .run_weighing(usize::MAX, move || done.send(()).unwrap());
    is_done.recv().unwrap();
    assert_eq!(store.counts(), [CHUNKS as usize, 0, 0]);
}
