//! Counts the requests to a remote store that reading arrays takes, and checks that they are
//! concurrent.

use crate::array::hierarchy::Hierarchy;
use crate::fs::*;
use std::sync::atomic::Ordering;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::Separator;
use zarrfs_format::metadata::{ArrayMetadata, V1Order};
use zarrfs_format::pipeline::Pipeline;
use zarrfs_store::testing::SimulatedRemote;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const REQUEST: u64 = 128 * K;
const LATENCY: Duration = Duration::from_millis(20);

const PLAIN: &str = "null";
const ZLIB: &str = r#"{"id":"zlib","level":1}"#;
const BLOSC: &str = r#"{"id":"blosc","cname":"lz4","clevel":1,"shuffle":0,"blocksize":65536}"#;

struct Case {
    store: Arc<SimulatedRemote>,
    fs: Arc<Fs>,
    stats: Arc<Stats>,
    flat: Vec<u8>,
    bound: usize,
    /// Number of chunks of the grid.
    chunks: u64,
}

/// Returns flat bytes that show their position and are compressible.
fn flat_bytes(size: u64) -> Vec<u8> {
    let mut flat = vec![0; size as usize];
    flat.chunks_mut(16)
        .zip(0u64..)
        .for_each(|(run, i)| run.fill((i ^ (i >> 8) ^ (i >> 16)) as u8));
    flat
}

fn case(shape: &[u64], chunks: &[u64], compressor: &str, bound: usize) -> Case {
    case_of(shape, chunks, compressor, bound, true)
}

/// Returns a read-only array on a web server, which cannot list, or a writable one in a bucket,
/// which can.
fn case_of(shape: &[u64], chunks: &[u64], compressor: &str, bound: usize, read_only: bool) -> Case {
    let store = Arc::new(SimulatedRemote::new(LATENCY, !read_only));
    let document = format!(
        r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":"|u1","compressor":{compressor},"fill_value":0,"order":"C","filters":null,"dimension_separator":"."}}"#
    );
    store.below.insert("a/.zarray", document.clone());
    let metadata = ArrayMetadata::parse(document.as_bytes()).unwrap();
    let grid = zarrfs_format::grid::Grid::new(shape, chunks, 1).unwrap();
    let whole = flat_bytes(grid.size());
    let pipeline = Pipeline::new(&metadata, grid.max_chunk_size()).unwrap();
    for chunk in (0..grid.chunk_count()).map(ChunkId) {
        let mut decoded = vec![0; grid.chunk_size(chunk)];
        let mut stored = Vec::new();
        for (flat, run) in grid.chunk_runs(chunk, 0..grid.size()) {
            decoded[run.offset..][..run.len].copy_from_slice(&whole[flat as usize..][..run.len]);
        }
        pipeline.encode(&decoded, &mut stored).unwrap();
        store.below.insert(
            &format!("a/{}", grid.chunk_key(chunk, Separator::Dot)),
            stored,
        );
    }
    let stats = Arc::new(Stats::default());
    let cache = Arc::new(Cache::new(bound, stats.clone()).decoding_with(2));
    let hierarchy = Hierarchy::new(store.clone(), V1Order::Zarr1, stats.clone());
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 1 << 30,
    };
    let options = Options {
        read_only,
        resize: false,
        threads: 2,
        direct_io: false,
        spill,
    };
    let fs = Fs::new(
        Tree::new(hierarchy, cache.clone()),
        cache,
        stats.clone(),
        options,
    )
    .unwrap();
    Case {
        store,
        fs: Arc::new(fs),
        stats,
        flat: whole,
        bound,
        chunks: grid.chunk_count(),
    }
}

impl Case {
    fn open(&self) -> OpenedFile {
        let inode = ["a", "data.raw"].iter().fold(1, |parent, name| {
            self.fs.lookup(parent, name).unwrap().inode
        });
        self.fs.open(inode, false, false).unwrap()
    }

    fn read(&self, handle: u64, offset: u64, len: u64) {
        let mut out = Vec::new();
        if !self
            .fs
            .read_cached(handle, offset, len as usize, &mut out)
            .unwrap()
        {
            self.fs
                .read(handle, offset, len as usize, &mut out)
                .unwrap();
        }
        assert!(
            out == self.flat[offset as usize..][..len as usize],
            "at {offset}"
        );
    }

    fn read_all(&self, handle: u64, size: u64) {
        (0..size)
            .step_by(REQUEST as usize)
            .for_each(|at| self.read(handle, at, REQUEST.min(size - at)));
    }

    /// Returns the numbers of requests that `work` makes: for whole values, for parts, and for
    /// stats.
    fn requests(&self, work: impl FnOnce()) -> [usize; 3] {
        let before = self.store.counts();
        work();
        let after = self.store.counts();
        std::array::from_fn(|i| after[i] - before[i])
    }
}

/// "Many requests in flight": a chunk takes one request, and no request waits for the one before
/// it.
#[test]
fn a_forward_reader_requests_each_chunk_once_and_many_concurrently() {
    for compressor in [PLAIN, ZLIB, BLOSC] {
        let case = case(&[16 * M], &[64 * K], compressor, 64 << 20);
        let handle = case.open().handle;
        case.store.gather(48);
        let requests = case.requests(|| case.read_all(handle, 16 * M));
        let [gets, ranges, stats] = requests;
        assert!(
            ranges + stats == 0 && gets as u64 == case.chunks,
            "{compressor}: {requests:?}"
        );
        let most = case.store.in_flight.most();
        assert!(
            (48..=80).contains(&most),
            "{compressor}: {most} requests at once"
        );
    }
}

/// Rows that cross several chunks: the next set of chunks is requested while one is read.
#[test]
fn sets_of_chunks_are_prefetched() {
    let case = case(&[64, 512, 512], &[8, 128, 128], ZLIB, 64 << 20);
    let handle = case.open().handle;
    case.store.gather(32);
    assert_eq!(
        case.requests(|| case.read_all(handle, 16 * M)),
        [case.chunks as usize, 0, 0]
    );
    assert_eq!(case.stats.prefetch_wasted.get(), 0);
    assert!(case.store.in_flight.most() >= 32);
}

#[test]
fn large_chunks_in_flight_stay_within_the_bound() {
    let case = case(&[64 * M], &[4 * M], ZLIB, 96 << 20);
    let handle = case.open().handle;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(
                    case.fs.cache.used() <= case.bound,
                    "{}",
                    case.fs.cache.used()
                );
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let requests = case.requests(|| case.read_all(handle, 64 * M));
        done.store(true, Ordering::Relaxed);
        assert_eq!(requests, [16, 0, 0]);
    });
    assert!(
        case.store.in_flight.most() <= 4,
        "twelve megabytes in threes, and one that is waited for"
    );
}

/// Small random reads: a small chunk is fetched whole by one request, while a part of a large one
/// suffices.
#[test]
fn a_part_of_a_remote_chunk_takes_one_request_or_two() {
    // compressor, chunk size; requests for a first part, for another part of the same chunk, for a
    // part of another chunk
    let cases = [
        (PLAIN, M, [1, 0, 0], [0, 0, 0], [1, 0, 0]),
        (ZLIB, M, [1, 0, 0], [0, 0, 0], [1, 0, 0]),
        (BLOSC, M, [1, 0, 0], [0, 0, 0], [1, 0, 0]),
        (PLAIN, 8 * M, [0, 1, 0], [0, 1, 0], [0, 1, 0]),
        // one request reads the block index and one a block; a chunk that compresses this well is
        // fetched whole once its size is known
        (BLOSC, 8 * M, [1, 1, 0], [0, 0, 0], [1, 0, 0]),
        (BLOSC, 32 * M, [0, 2, 0], [0, 1, 0], [0, 2, 0]),
    ];
    for (compressor, chunk, first, second, other) in cases {
        let case = case(&[2 * chunk], &[chunk], compressor, 128 << 20);
        let handle = case.open().handle;
        let what = format!("{compressor} {chunk}");
        assert_eq!(
            case.requests(|| case.read(handle, 700 * K, 4 * K)),
            first,
            "{what}"
        );
        assert_eq!(
            case.requests(|| case.read(handle, 300 * K, 4 * K)),
            second,
            "{what}"
        );
        assert_eq!(
            case.requests(|| case.read(handle, chunk + 500 * K, 4 * K)),
            other,
            "{what}"
        );
    }
}

/// A chunk larger than the cache: a sequential reader loads it in ranges.
#[test]
fn a_large_uncompressed_chunk_is_read_in_ranges() {
    let case = case(&[96 * M], &[96 * M], PLAIN, 48 << 20);
    let handle = case.open().handle;
    let [gets, ranges, stats] = case.requests(|| case.read_all(handle, 96 * M));
    assert_eq!((gets, stats), (0, 0));
    assert!(ranges <= 24, "{ranges} requests");
    assert!(case.fs.cache.used() <= case.bound);
}

/// Random readers wait for their own chunks, not for each other's.
#[test]
fn random_readers_do_not_wait_for_each_other() {
    let case = case(&[64 * M], &[64 * K], ZLIB, 64 << 20);
    let handle = case.open().handle;
    case.store.gather(4);
    std::thread::scope(|scope| {
        for job in 0..16 {
            let case = &case;
            scope.spawn(move || {
                (0..8).for_each(|i| case.read(handle, ((i * 16 + job) * 37 % 1000) * 64 * K, 4 * K))
            });
        }
    });
    let most = case.store.in_flight.most();
    assert!(most >= 4, "{most} requests at once");
}

/// A plane that cuts through many chunks: all are requested concurrently.
#[test]
fn chunks_of_one_read_are_requested_concurrently() {
    let case = case(&[32, 64 * K], &[32, K], ZLIB, 64 << 20);
    let handle = case.open().handle;
    case.store.gather(16);
    assert_eq!(
        case.requests(|| case.read(handle, 5 * 64 * K, 64 * K)),
        [64, 0, 0]
    );
    let most = case.store.in_flight.most();
    assert!(most >= 16, "{most} requests at once");
}

/// An opening revalidates a few chunks, and drops the kernel's pages if there are many.
#[test]
fn an_opening_does_not_revalidate_many_chunks() {
    let case = case(&[16 * M], &[64 * K], ZLIB, 64 << 20);
    let close = |opened: OpenedFile| case.fs.change().release(opened.handle);
    let first = case.open();
    case.read(first.handle, 0, 4 * K);
    close(first);
    close(case.open());
    let documents = case.requests(|| close(case.open()));
    let opened = case.open();
    assert_eq!(opened.pages, KernelPages::Kept);
    case.read_all(opened.handle, 16 * M);
    close(opened);
    let mut pages = KernelPages::None;
    let [gets, ranges, stats] = case.requests(|| {
        let opened = case.open();
        pages = opened.pages;
        close(opened);
    });
    assert_eq!(pages, KernelPages::Fresh);
    assert!(
        gets <= documents[0] && ranges == 0 && stats <= documents[2],
        "{gets} {ranges} {stats}: {documents:?}"
    );
}

/// "Several are stored at a time": dirty chunks are stored concurrently, each by one request.
#[test]
fn chunks_are_stored_concurrently() {
    let case = case_of(&[16 * M], &[64 * K], PLAIN, 64 << 20, false);
    let inode = ["a", "data.raw"].iter().fold(1, |parent, name| {
        case.fs.lookup(parent, name).unwrap().inode
    });
    let handle = case.fs.open(inode, true, false).unwrap().handle;
    // a flush asks for the document alone
    case.store.gather_where(16, |key| {
        key.name().starts_with(|c: char| c.is_ascii_digit())
    });
    for at in (0..16 * M).step_by(M as usize) {
        assert_eq!(
            case.fs
                .change()
                .write(handle, at, &vec![1 + (at >> 20) as u8; M as usize])
                .unwrap(),
            M as usize
        );
    }
    case.fs.change().flush(handle).unwrap();
    assert_eq!(case.store.puts.load(Ordering::SeqCst) as u64, case.chunks);
    let most = case.store.in_flight.most();
    assert!(most >= 16, "{most} at once");
}

/// SEEK_HOLE of a bucket: the chunks are listed, and none is requested by itself.
#[test]
fn holes_are_found_by_listing() {
    let case = case_of(&[16 * M], &[64 * K], PLAIN, 64 << 20, false);
    for missing in [0, 1, 7, 255] {
        case.store.below.remove(&format!("a/{missing}"));
    }
    let handle = case.open().handle;
    let chunk = 64 * K;
    let seek = |at: u64, what| case.fs.seek(handle, at, what).map_err(|e| e.errno());
    let asked = case.requests(|| {
        assert_eq!(
            [seek(0, Seek::Hole), seek(0, Seek::Data)],
            [Ok(0), Ok(2 * chunk)]
        );
        assert_eq!(
            [seek(2 * chunk, Seek::Hole), seek(7 * chunk, Seek::Data)],
            [Ok(7 * chunk), Ok(8 * chunk)]
        );
        assert_eq!(seek(8 * chunk + 1, Seek::Data), Ok(8 * chunk + 1));
        assert_eq!(
            [seek(8 * chunk, Seek::Hole), seek(255 * chunk, Seek::Data)],
            [Ok(255 * chunk), Err(libc::ENXIO)]
        );
    });
    assert_eq!(asked, [0, 0, 0]);
}
