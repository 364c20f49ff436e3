//! Results and costs of reads, on a real mount. The bytes are compared with those that the test
//! stored. Costs are counters of `.zarrfs/stats.json`, never times.

use crate::support;
use crate::support::array::{TestArray, replace, zlib};
use crate::support::shared_map::SharedMap;
use crate::support::{Mount, errno, random};
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Barrier;

const K: usize = 1 << 10;
const M: usize = 1 << 20;

/// Opens a file with `O_DIRECT`, so that every read reaches the daemon unchanged and the kernel
/// caches nothing.
fn open_direct(path: &Path) -> File {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())
        .unwrap()
        .into()
}

/// Reads a whole file from its beginning and compares it with `expected`, one buffer at a time.
#[track_caller]
fn assert_reads(path: &Path, expected: &[u8]) {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; 256 * K];
    let mut at = 0;
    loop {
        let n = file.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        let end = (at + n).min(expected.len());
        assert!(
            buffer[..n] == expected[at.min(end)..end],
            "{}: {n} bytes at {at} differ",
            path.display()
        );
        at += n;
    }
    assert_eq!(at, expected.len(), "{}", path.display());
}

/// Returns fields that compress chunks with blosc. Blocks below 64 KiB need zstd: c-blosc makes
/// those of lz4 larger.
fn blosc(cname: &str, blocksize: usize) -> Value {
    json!({"compressor": {"id": "blosc", "cname": cname, "clevel": 1, "shuffle": 1, "blocksize": blocksize}})
}

/// The parts of the store that are symbolic links.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Links {
    None,
    /// The array, one of its chunks, and one level of nested chunk keys.
    Everywhere,
}

/// A mounted array of 4 x 4 chunks that changes behind the mount. Every read is compared with its
/// current bytes.
struct Changing {
    _store: tempfile::TempDir,
    mount: Mount,
    array: TestArray,
    what: String,
    /// Number of times that the kernel dropped pages that it should have kept.
    lost: Cell<u32>,
}

impl Changing {
    fn new(separator: &str, codec: &Value, links: Links, cache: &str) -> Changing {
        let store = tempfile::tempdir().unwrap();
        fs::write(store.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
        let mut more = codec.clone();
        more["dimension_separator"] = separator.into();
        let place = if links == Links::None {
            "a"
        } else {
            "elsewhere"
        };
        let array =
            TestArray::with_chunks(store.path().join(place), &[256, 1024], &[64, 256], more);
        if links == Links::Everywhere {
            symlink("elsewhere", store.path().join("a")).unwrap();
            let chunk = array.file(&[0, 0]);
            fs::rename(&chunk, store.path().join("moved")).unwrap();
            let up = if separator == "/" {
                "../../moved"
            } else {
                "../moved"
            };
            symlink(up, &chunk).unwrap();
            if separator == "/" {
                fs::rename(array.path.join("1"), store.path().join("level")).unwrap();
                symlink("../level", array.path.join("1")).unwrap();
            }
        }
        let mount = Mount::new(store.path(), &["-o", "ro", "--cache-size", cache]);
        let what = format!("{separator} {codec} {links:?} {cache}");
        Changing {
            _store: store,
            mount,
            array,
            what,
            lost: Cell::new(0),
        }
    }

    /// Opens, reads and closes the flat bytes and two chunk files. Returns the number of bytes that
    /// the daemon served for each.
    fn read(&self, step: &str) -> [u64; 3] {
        let chunk = |index: [usize; 2]| (TestArray::chunk_name(&index), self.array.chunk(&index));
        [
            ("data.raw".to_string(), self.array.flat.clone()),
            chunk([0, 0]),
            chunk([1, 1]),
        ]
        .map(|(name, expected)| {
            let path = self.mount.join("a").join(&name);
            let growth = self.mount.growth(|| {
                let bytes = fs::read(&path).unwrap();
                assert!(bytes == expected, "{}: {name} is wrong, {step}", self.what);
            });
            growth.of("bytes_served")
        })
    }

    /// Checks that the daemon serves the changed flat bytes and first chunk, and that unchanged
    /// pages stay cached.
    fn assert_seen_and_pages_kept(&self, step: &str) {
        let [flat, chunk, other] = self.read(step);
        assert!(flat > 0 && chunk > 0, "{}: {step}", self.what);
        // a kernel short of memory may drop pages, but not at every step
        self.lost.set(self.lost.get() + u32::from(other > 0));
        assert!(
            self.lost.get() <= 1,
            "{}: the pages of another chunk are kept, {step}",
            self.what
        );
        // random reads meanwhile evict chunks from the daemon's cache
        let file = open_direct(&self.mount.join("a/data.raw"));
        let mut random = random(7);
        let mut buffer = vec![0; 3000];
        for _ in 0..30 {
            let at = random(self.array.flat.len() - buffer.len());
            file.read_exact_at(&mut buffer, at as u64).unwrap();
            assert!(
                buffer == self.array.flat[at..at + buffer.len()],
                "{}: at {at}, {step}",
                self.what
            );
        }
        let kept = (0..3).any(|_| self.read(step) == [0; 3]);
        assert!(kept, "{}: the pages are kept, {step}", self.what);
    }
}

fn assert_changes_are_seen(codec: &Value, links: Links) {
    for (separator, cache) in [
        (".", "512M"),
        ("/", "512M"),
        (".", "100K"),
        ("/", "100K"),
        (".", "40K"),
        ("/", "0"),
    ] {
        let mut c = Changing::new(separator, codec, links, cache);
        let [flat, ..] = c.read("at first");
        assert!(
            flat >= c.array.flat.len() as u64,
            "{}: {flat} bytes served",
            c.what
        );
        assert!(
            (0..3).any(|_| c.read("unchanged") == [0; 3]),
            "{}: the pages are kept",
            c.what
        );

        // replace by rename; a symbolic link is itself replaced
        c.array.change(&[0, 0], 2);
        c.array.put(&[0, 0]);
        c.assert_seen_and_pages_kept("by rename");

        // change in place, with the old modification time
        c.array.change(&[0, 0], 3);
        let before = fs::metadata(c.array.file(&[0, 0]))
            .unwrap()
            .modified()
            .unwrap();
        fs::write(c.array.file(&[0, 0]), c.array.encoded(&[0, 0])).unwrap();
        File::options()
            .write(true)
            .open(c.array.file(&[0, 0]))
            .unwrap()
            .set_modified(before)
            .unwrap();
        c.assert_seen_and_pages_kept("in place");

        // delete; the chunk file disappears with it
        fs::remove_file(c.array.file(&[0, 0])).unwrap();
        assert_eq!(
            errno(fs::read(c.mount.join("a/0.0"))),
            "ENOENT",
            "{}",
            c.what
        );
        let content = c.array.chunk(&[0, 0]);
        c.array.clear(&[0, 0]);
        assert_reads(&c.mount.join("a/data.raw"), &c.array.flat);
        let again = c
            .mount
            .growth(|| assert_reads(&c.mount.join("a/data.raw"), &c.array.flat));
        assert_eq!(again.of("bytes_served"), 0, "{}: deleted", c.what);

        // create again
        c.array.change(&[0, 0], 3);
        assert!(c.array.chunk(&[0, 0]) == content);
        c.array.put(&[0, 0]);
        c.assert_seen_and_pages_kept("created");

        // replace by a symbolic link to another file
        let target = c.array.path.parent().unwrap().join("target");
        c.array.change(&[0, 0], 4);
        replace(&target, &c.array.encoded(&[0, 0]));
        fs::remove_file(c.array.file(&[0, 0])).unwrap();
        let up = if separator == "/" {
            "../../target"
        } else {
            "../target"
        };
        symlink(up, c.array.file(&[0, 0])).unwrap();
        c.assert_seen_and_pages_kept("by a link");
        c.array.change(&[0, 0], 5);
        replace(&target, &c.array.encoded(&[0, 0]));
        c.assert_seen_and_pages_kept("behind a link");

        // change the shape but not the number of bytes, so that the chunks lie elsewhere
        let mut more = codec.clone();
        more["dimension_separator"] = separator.into();
        let array = TestArray::new(c.array.path.clone(), &[512, 512], &[64, 256], more);
        let old = std::mem::replace(&mut c.array, array);
        for index in c.array.grid().into_iter().filter(|index| index[0] < 4) {
            let chunk = old.chunk(&index);
            for (flat, len, at) in c.array.rows(&index) {
                c.array.flat[flat..flat + len].copy_from_slice(&chunk[at..at + len]);
            }
        }
        let [flat, ..] = c.read("another shape");
        assert!(flat > 0, "{}", c.what);
        assert!(
            (0..3).any(|_| c.read("another shape, again") == [0; 3]),
            "{}: the pages are kept",
            c.what
        );
    }
}

/// "`open` of a file shows the current content of the store", for every way to replace a chunk,
/// also after the cache has evicted chunks. The kernel keeps its pages if no chunk was replaced.
#[test]
fn an_open_sees_every_change_and_keeps_unchanged_pages_of_uncompressed_chunks() {
    assert_changes_are_seen(&json!({}), Links::None);
}

/// Chunks compressed with zlib are decoded whole.
#[test]
fn an_open_sees_every_change_and_keeps_unchanged_pages_of_zlib_chunks() {
    assert_changes_are_seen(&zlib(), Links::None);
}

/// Chunks compressed with blosc are decoded in parts.
#[test]
fn an_open_sees_every_change_and_keeps_unchanged_pages_of_blosc_chunks() {
    assert_changes_are_seen(&blosc("zstd", 4096), Links::None);
}

/// Symbolic links inside the store are followed.
#[test]
fn an_open_sees_every_change_and_keeps_unchanged_pages_behind_symbolic_links() {
    assert_changes_are_seen(&zlib(), Links::Everywhere);
    assert_changes_are_seen(&json!({}), Links::Everywhere);
}

/// A store with one array, `a`, all of whose chunks are stored.
struct Stored {
    directory: tempfile::TempDir,
    array: TestArray,
}

fn stored(shape: &[usize], chunks: &[usize], codec: Value) -> Stored {
    let directory = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(directory.path().join("a"), shape, chunks, codec);
    Stored { directory, array }
}

impl Stored {
    fn mount(&self, args: &[&str]) -> Mount {
        Mount::new(self.directory.path(), args)
    }

    /// Returns the block size in bytes that the header of the first chunk, a blosc frame, states.
    fn block_size(&self) -> usize {
        let first = vec![0; self.array.grid()[0].len()];
        u32::from_le_bytes(
            fs::read(self.array.file(&first)).unwrap()[8..12]
                .try_into()
                .unwrap(),
        ) as usize
    }
}

/// The chunk is not in the cache.
#[test]
fn sixteen_readers_of_a_chunk_decode_it_once() {
    let s = stored(&[8 * M], &[4 * M], zlib());
    let range = 5 * M..5 * M + 64 * K;
    for direct in [false, true] {
        let mount = s.mount(&[]);
        let barrier = Barrier::new(16);
        let growth = mount.growth(|| {
            std::thread::scope(|scope| {
                for i in 0..16 {
                    let barrier = &barrier;
                    let path = mount.join("a/data.raw");
                    let range = range.clone();
                    let expected = &s.array.flat[range.clone()];
                    scope.spawn(move || {
                        // half of the readers open the file at the same time as well
                        let open = || {
                            if direct {
                                open_direct(&path)
                            } else {
                                File::open(&path).unwrap()
                            }
                        };
                        let file = (i % 2 == 0).then(open);
                        barrier.wait();
                        let mut buffer = vec![0; range.len()];
                        file.unwrap_or_else(open)
                            .read_exact_at(&mut buffer, range.start as u64)
                            .unwrap();
                        assert!(buffer == expected);
                    });
                }
            });
        });
        assert_eq!(growth.of("chunk_decodes"), 1, "direct: {direct}");
        assert_eq!(
            (growth.of("block_decodes"), growth.of("bytes_decoded")),
            (0, 4 * M as u64),
            "direct: {direct}"
        );
    }
}

#[test]
fn sixteen_readers_of_a_block_decode_it_once() {
    let s = stored(&[4 * M], &[4 * M], blosc("lz4", 64 * K));
    let mount = s.mount(&[]);
    let barrier = Barrier::new(16);
    let at = M + 100;
    let size = s.block_size();
    let growth = mount.growth(|| {
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let file = open_direct(&mount.join("a/data.raw"));
                    barrier.wait();
                    let mut buffer = vec![0; 4 * K];
                    file.read_exact_at(&mut buffer, at as u64).unwrap();
                    assert!(buffer == s.array.flat[at..at + 4 * K]);
                });
            }
        });
    });
    let blocks = (at + 4 * K - 1) / size - at / size + 1;
    assert_eq!(
        (growth.of("chunk_decodes"), growth.of("block_decodes")),
        (0, blocks as u64)
    );
}

/// "A forward read decodes each chunk once", ahead of the reader, and no prefetched chunk is
/// dropped unused.
#[test]
fn a_sequential_read_decodes_each_chunk_once() {
    for codec in [zlib(), blosc("lz4", 0), blosc("zstd", 16 * K)] {
        // 12 rows of 4 chunks of 256 KiB
        let s = stored(&[1536, 8 * K], &[128, 2 * K], codec.clone());
        // a busy machine may leave the threads that prefetch too little time
        let is_prefetched = (0..10).any(|_| {
            let mount = s.mount(&[]);
            let growth = mount.growth(|| assert_reads(&mount.join("a/data.raw"), &s.array.flat));
            let counts = [
                "chunk_decodes",
                "block_decodes",
                "bytes_decoded",
                "readahead_wasted",
            ]
            .map(|n| growth.of(n));
            assert_eq!(counts, [48, 0, 12 * M as u64, 0], "{codec}");
            // the first row of chunks is loaded on demand, the others are prefetched
            growth.of("readahead_used") > 8
        });
        assert!(is_prefetched, "{codec}");
    }
}

/// Creates a spill directory outside of tmpfs, where spilled chunks would take memory.
fn spill_directory() -> tempfile::TempDir {
    const TMPFS: i64 = 0x0102_1994;
    let directory = tempfile::tempdir().unwrap();
    match rustix::fs::statfs(directory.path()).unwrap().f_type as i64 {
        TMPFS => tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        _ => directory,
    }
}

/// An array of 32-bit numbers whose rows of chunks, 32 of 256 KiB, take 8 times the cache size
/// [`SMALL`].
fn wide(codec: &Value) -> Stored {
    stored(&[100, 32 * K], &[64, K], numbers(codec))
}

const SMALL: &str = "1M";

/// An array whose rows of chunks, 96 of 260 KiB, exceed the cache size [`MIDDLE`], which holds two
/// windows of flat bytes. The windows begin and end inside of blocks, and the last one is short.
fn wider(codec: &Value) -> Stored {
    stored(&[65, 96 * K], &[65, K], numbers(codec))
}

const MIDDLE: &str = "7M";

/// Adds a 32-bit dtype to the fields of a codec.
fn numbers(codec: &Value) -> Value {
    let mut more = json!({"dtype": "<u4"});
    more.as_object_mut()
        .unwrap()
        .extend(codec.as_object().unwrap().clone());
    more
}

/// Reads a whole array sequentially. Returns the bytes decoded as a multiple of the size of all
/// chunks.
fn decoded_of_a_wide_read(s: &Stored, cache: &str, spill_size: &str) -> f64 {
    let spill = spill_directory();
    let directory = spill.path().to_str().unwrap();
    let mount = s.mount(&[
        "--cache-size",
        cache,
        "--spill-dir",
        directory,
        "--spill-size",
        spill_size,
    ]);
    let growth = mount.growth(|| assert_reads(&mount.join("a/data.raw"), &s.array.flat));
    let names = || fs::read_dir(spill.path()).unwrap().count();
    assert_eq!(names(), 0, "what is spilled has no name");
    if spill_size == "0" {
        assert_eq!(growth.of("bytes_spilled"), 0);
    }
    drop(mount);
    assert_eq!(names(), 0);
    growth.of("bytes_decoded") as f64 / (s.array.grid().len() * s.array.chunk_size()) as f64
}

/// Checks that each byte is decoded at most twice if a row of chunks is larger than the cache.
fn assert_decoded_at_most_twice(codec: Value) {
    let decoded = decoded_of_a_wide_read(&wide(&codec), SMALL, "8G");
    assert!(decoded <= 2.0, "{codec}: each byte {decoded} times");
}

#[test]
fn a_wide_row_of_deflate_chunks_is_decoded_at_most_twice() {
    assert_decoded_at_most_twice(zlib());
    assert_decoded_at_most_twice(json!({"compressor": {"id": "gzip", "level": 1}}));
}

#[test]
fn a_wide_row_of_bz2_chunks_is_decoded_at_most_twice() {
    assert_decoded_at_most_twice(json!({"compressor": {"id": "bz2", "level": 1}}));
}

#[test]
fn a_wide_row_of_lzma_chunks_is_decoded_at_most_twice() {
    assert_decoded_at_most_twice(json!({"compressor": {"id": "lzma", "preset": 0}}));
}

#[test]
fn a_wide_row_of_zstd_and_lz4_chunks_is_decoded_at_most_twice() {
    assert_decoded_at_most_twice(json!({"compressor": {"id": "zstd", "level": 1}}));
    assert_decoded_at_most_twice(json!({"compressor": {"id": "lz4"}}));
}

#[test]
fn a_wide_row_of_shuffled_chunks_is_decoded_at_most_twice() {
    let zlib = json!({"id": "zlib", "level": 1});
    assert_decoded_at_most_twice(
        json!({"filters": [{"id": "shuffle", "elementsize": 4}], "compressor": zlib}),
    );
}

#[test]
fn a_wide_row_of_delta_chunks_is_decoded_at_most_twice() {
    let zlib = json!({"id": "zlib", "level": 1});
    assert_decoded_at_most_twice(
        json!({"filters": [{"id": "delta", "dtype": "<u4"}], "compressor": zlib}),
    );
}

#[test]
fn a_wide_row_of_order_f_chunks_is_decoded_at_most_twice() {
    assert_decoded_at_most_twice(json!({"order": "F", "compressor": {"id": "zlib", "level": 1}}));
}

#[test]
fn a_wide_row_of_blosc_chunks_is_decoded_at_most_twice() {
    for (cname, blocksize) in [("lz4", 0), ("zstd", 0), ("zstd", 8 * K)] {
        let s = wider(&blosc(cname, blocksize));
        let decoded = decoded_of_a_wide_read(&s, MIDDLE, "8G");
        assert!(
            decoded <= 2.0,
            "{cname} {blocksize}: each byte {decoded} times"
        );
    }
}

/// Without a spill file, chunks that can be read in parts are still decoded at most twice. These
/// are uncompressed chunks, and blosc frames whose blocks are no larger than a window's part of a
/// chunk.
#[test]
fn a_wide_row_is_read_correctly_without_a_spill_file() {
    for codec in [json!({}), blosc("zstd", 4 * K)] {
        let decoded = decoded_of_a_wide_read(&wider(&codec), MIDDLE, "0");
        assert!(decoded <= 2.0, "{codec}: each byte {decoded} times");
    }
    decoded_of_a_wide_read(&wide(&zlib()), SMALL, "0");
}

/// Reads `len` bytes at each of these offsets and compares them with `flat`.
#[track_caller]
fn assert_reads_at(file: &File, flat: &[u8], len: usize, at: impl Iterator<Item = usize>) {
    let mut buffer = vec![0; len];
    for at in at {
        file.read_exact_at(&mut buffer, at as u64).unwrap();
        assert!(buffer == flat[at..at + len], "{len} bytes at {at} differ");
    }
}

/// Returns for each byte of the array the number of its chunk in [`TestArray::grid`] and its offset
/// in the chunk.
fn chunk_offsets(array: &TestArray) -> Vec<(u32, u32)> {
    let mut places = vec![(0, 0); array.flat.len()];
    for (n, index) in array.grid().iter().enumerate() {
        for (flat, len, at) in array.rows(index) {
            for i in 0..len {
                places[flat + i] = (n as u32, (at + i) as u32);
            }
        }
    }
    places
}

/// Returns the number of blocks of `size` bytes that reads of `len` bytes at these offsets touch.
fn touched(
    places: &[(u32, u32)],
    size: usize,
    len: usize,
    at: impl Iterator<Item = usize>,
) -> usize {
    let blocks = at.flat_map(|at| {
        places[at..at + len]
            .iter()
            .map(|(chunk, at)| (*chunk, *at as usize / size))
    });
    blocks.collect::<std::collections::HashSet<_>>().len()
}

/// Each block is decoded once.
#[test]
fn random_reads_decode_only_the_blocks_they_touch() {
    let s = stored(&[512, 8 * K], &[256, 2 * K], blosc("zstd", 16 * K));
    assert_eq!(s.block_size(), 16 * K);
    let mut random = random(5);
    let pages = s.array.flat.len() / 4096;
    let requests: Vec<usize> = (0..100).map(|_| random(pages) * 4096).collect();
    let blocks = touched(
        &chunk_offsets(&s.array),
        s.block_size(),
        4096,
        requests.iter().copied(),
    ) as u64;
    for direct in [false, true] {
        let mount = s.mount(&[]);
        let path = mount.join("a/data.raw");
        let file = if direct {
            open_direct(&path)
        } else {
            File::open(&path).unwrap()
        };
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let growth =
            mount.growth(|| assert_reads_at(&file, &s.array.flat, 4096, requests.iter().copied()));
        let counts = [
            "chunk_decodes",
            "block_decodes",
            "readahead_used",
            "readahead_wasted",
        ]
        .map(|n| growth.of(n));
        assert_eq!(counts, [0, blocks, 0, 0], "direct: {direct}");
        let again =
            mount.growth(|| assert_reads_at(&file, &s.array.flat, 4096, requests.iter().copied()));
        assert_eq!(again.of("block_decodes"), 0, "they are kept");
    }
}

/// The first read of a zstd frame decodes it up to the wanted bytes, and a read of other bytes
/// decodes all of it. The daemon decodes a frame with a checksum whole, since it shows no byte
/// before it has verified the checksum.
#[test]
fn a_read_of_a_zstd_frame_decodes_no_more_than_its_beginning() {
    for checksum in [false, true] {
        let codec = json!({"compressor": {"id": "zstd", "level": 1, "checksum": checksum}});
        let s = stored(&[4 * M], &[4 * M], codec);
        let mount = s.mount(&[]);
        let file = open_direct(&mount.join("a/data.raw"));
        let read = |at: usize| {
            let growth =
                mount.growth(|| assert_reads_at(&file, &s.array.flat, 4096, std::iter::once(at)));
            ["chunk_decodes", "block_decodes", "bytes_decoded"].map(|n| growth.of(n))
        };
        let whole = [1, 0, 4 * M as u64];
        let none = [0; 3];
        let [beginning, others] = if checksum {
            [whole, none]
        } else {
            [[0, 1, 1 << 20], whole]
        };
        assert_eq!(read(M - 5000), beginning, "checksum: {checksum}");
        assert_eq!(read(M - 5000), none, "checksum: {checksum}: it is kept");
        assert_eq!(read(3 * M), others, "checksum: {checksum}");
        assert_eq!(read(2 * M), none, "checksum: {checksum}: all of it is kept");
    }
}

/// The kernel caches the stored file.
#[test]
fn random_reads_of_uncompressed_chunks_bypass_the_cache() {
    let s = stored(&[512, 8 * K], &[256, 2 * K], json!({}));
    let mount = s.mount(&[]);
    let file = File::open(mount.join("a/data.raw")).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let mut random = random(6);
    let pages = s.array.flat.len() / 4096;
    let requests: Vec<usize> = (0..200).map(|_| random(pages) * 4096).collect();
    let growth = mount.growth(|| assert_reads_at(&file, &s.array.flat, 4096, requests.into_iter()));
    let counts = ["chunk_decodes", "readahead_used", "readahead_wasted"].map(|n| growth.of(n));
    assert_eq!(counts, [0; 3]);
    assert!(
        growth.of("bytes_stored") <= 200 * 4 * 4096,
        "{} bytes read",
        growth.of("bytes_stored")
    );
    assert!(
        mount.counter("cache_bytes") < 64 << 10,
        "{} bytes kept",
        mount.counter("cache_bytes")
    );
}

/// The chunks of a strided reader's next steps are prefetched, and at most 20 % more than those.
#[test]
fn a_strided_read_prefetches_the_next_steps() {
    let row = 4 * K;
    for codec in [zlib(), blosc("zstd", 16 * K), blosc("lz4", 16 * K)] {
        // 8 x 16 chunks of 64 KiB
        let s = stored(&[2 * K, row], &[256, 256], codec.clone());
        let places = chunk_offsets(&s.array);
        let unit = if codec == zlib() {
            s.array.chunk_size()
        } else {
            s.block_size()
        };
        // a read through the page cache asks for whole pages, and a page is a row
        let walks: [(&str, bool, usize, Vec<usize>); 4] = [
            (
                "a column",
                true,
                4,
                (0..2 * K).map(|i| i * row + 1234).collect(),
            ),
            (
                "a column backwards",
                true,
                8,
                (0..2 * K).rev().map(|i| i * row + 3000).collect(),
            ),
            (
                "every 37th row",
                true,
                row,
                (0..2 * K).step_by(37).map(|i| i * row).collect(),
            ),
            (
                "every 37th row",
                false,
                row,
                (0..2 * K).step_by(37).map(|i| i * row).collect(),
            ),
        ];
        for (walk, direct, len, requests) in walks {
            let most = 1.2 * (unit * touched(&places, unit, len, requests.iter().copied())) as f64;
            let mount = s.mount(&[]);
            let path = mount.join("a/data.raw");
            let file = if direct {
                open_direct(&path)
            } else {
                File::open(&path).unwrap()
            };
            fadvise(&file, 0, None, Advice::Random).unwrap();
            let growth = mount
                .growth(|| assert_reads_at(&file, &s.array.flat, len, requests.iter().copied()));
            let what = format!("{walk}, {codec}, direct: {direct}");
            assert!(growth.of("readahead_used") > 0, "{what}");
            assert!(
                growth.of("bytes_decoded") as f64 <= most,
                "{what}: {}",
                growth.of("bytes_decoded")
            );
        }
    }
}

/// The bound covers cached chunks and those that are being decoded. What may come on top: a chunk
/// that a reader is copying, even if it has left the cache, and of each array one load, decoded and
/// encoded bytes, that begins although the cache is full.
#[test]
fn eight_readers_stay_within_the_cache_bound() {
    const CHUNK: usize = M / 2;
    let directory = tempfile::tempdir().unwrap();
    let codecs = [
        zlib(),
        blosc("lz4", 64 * K),
        blosc("zstd", 0),
        json!({}),
        zlib(),
    ];
    let arrays: Vec<TestArray> = codecs
        .into_iter()
        .enumerate()
        .map(|(i, codec)| {
            // the last one has rows of 16 MiB
            let (shape, chunks) = if i == 4 {
                ([128, 128 * K], [64, 8 * K])
            } else {
                ([2 * K, 4 * K], [512, K])
            };
            TestArray::with_chunks(directory.path().join(i.to_string()), &shape, &chunks, codec)
        })
        .collect();
    let spill = spill_directory();
    let mount = Mount::new(
        directory.path(),
        &[
            "--cache-size",
            "8M",
            "--spill-dir",
            spill.path().to_str().unwrap(),
        ],
    );
    let done = std::sync::atomic::AtomicUsize::new(0);
    let most = std::thread::scope(|scope| {
        for reader in 0..8 {
            let array = &arrays[reader % arrays.len()];
            let mount = &mount;
            let done = &done;
            scope.spawn(move || {
                // counts the reader even if it fails, so that the loop below ends
                let _done = Done(done);
                let path = mount.join(&format!("{}/data.raw", reader % 5));
                if reader < 5 {
                    return assert_reads(&path, &array.flat);
                }
                let mut random = random(reader as u64);
                let requests = (0..300).map(|_| random(array.flat.len() - 10 * K));
                assert_reads_at(&open_direct(&path), &array.flat, 10 * K, requests);
            });
        }
        let mut most = 0;
        while done.load(std::sync::atomic::Ordering::Relaxed) < 8 {
            most = most.max(mount.counter("cache_bytes") as usize);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        most
    });
    let above = 8 * CHUNK + arrays.len() * 2 * CHUNK;
    assert!(most <= 8 * M + above, "{most} bytes in the cache");
    assert!(most > 2 * M, "{most} bytes: nothing was seen of it");
    assert!(mount.counter("cache_bytes") <= 8 << 20);
    assert!(
        mount.peak_memory() <= (8 + 64) << 20,
        "{} bytes of memory",
        mount.peak_memory()
    );
}

/// Counts a thread when it ends.
struct Done<'a>(&'a std::sync::atomic::AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// `--direct-io` bypasses the kernel's page cache. Reads of any size and maps work, and chunks stay
/// in the daemon's cache.
#[test]
fn direct_io_serves_every_read_from_the_daemons_cache() {
    for codec in [zlib(), blosc("zstd", 8 * K)] {
        let s = stored(&[3000, 2002], &[100, 300], codec);
        let size = s.array.flat.len();
        let mount = s.mount(&["--direct-io"]);
        let path = mount.join("a/data.raw");
        assert_reads(&path, &s.array.flat);
        let file = File::open(&path).unwrap();
        let mut random = random(8);
        let again = mount.growth(|| {
            assert_reads(&path, &s.array.flat);
            for _ in 0..200 {
                let at = random(size);
                let len = [1, 7, 511, 4096, 4097, 70_001][random(6)];
                assert_reads_at(
                    &file,
                    &s.array.flat,
                    len.min(size - at),
                    std::iter::once(at),
                );
            }
        });
        // across the end of the file, and past it
        let mut tail = vec![0; 5000];
        assert_eq!(file.read_at(&mut tail, size as u64 - 777).unwrap(), 777);
        assert!(tail[..777] == s.array.flat[size - 777..]);
        assert_eq!(file.read_at(&mut tail, size as u64).unwrap(), 0);
        assert_eq!(
            (again.of("chunk_decodes"), again.of("block_decodes")),
            (0, 0),
            "a second reader"
        );
        assert!(
            again.of("bytes_served") > size as u64,
            "the kernel keeps nothing"
        );
        assert!(SharedMap::read_only(&file).bytes() == s.array.flat);
    }
}

/// Only the bytes of the damaged chunk are "an I/O error (`EIO`): never fill values, never short
/// data", also in a row of chunks that is larger than the cache.
#[test]
fn a_damaged_chunk_in_a_wide_row_fails_alone() {
    for codec in [zlib(), blosc("zstd", 16 * K), json!({})] {
        // 2 rows of 16 chunks of 256 KiB
        let s = stored(&[16, 512 * K], &[8, 32 * K], codec.clone());
        fs::write(s.array.file(&[0, 5]), b"garbage").unwrap();
        let spill = spill_directory();
        for direct in [true, false] {
            let mount = s.mount(&[
                "--cache-size",
                "1M",
                "--spill-dir",
                spill.path().to_str().unwrap(),
            ]);
            let path = mount.join("a/data.raw");
            let file = if direct {
                open_direct(&path)
            } else {
                File::open(&path).unwrap()
            };
            let len = 32 * K;
            let mut buffer = vec![0; 32 * K];
            for at in (0..s.array.flat.len()).step_by(len) {
                let what = format!("{codec}, direct: {direct}, at {at}");
                let result = file.read_exact_at(&mut buffer, at as u64);
                let damaged = at / len % 16 == 5 && at < s.array.flat.len() / 2;
                assert_eq!(errno(result), if damaged { "EIO" } else { "ok" }, "{what}");
                assert!(damaged || buffer == s.array.flat[at..at + len], "{what}");
            }
            let stats = mount.stats();
            assert!(stats.contains("a/0.5: "), "{stats}");
        }
    }
}

/// A reader in the middle of a row of chunks larger than the cache gets a chunk that was replaced
/// before the latest open. The windows and spilled chunks of the row stay in use where nothing has
/// changed.
#[test]
fn a_change_in_a_wide_row_is_seen_at_the_next_open() {
    for codec in [zlib(), blosc("zstd", 4 * K), json!({})] {
        let mut s = wide(&codec);
        let spill = spill_directory();
        let mount = s.mount(&[
            "--cache-size",
            SMALL,
            "--spill-dir",
            spill.path().to_str().unwrap(),
        ]);
        let path = mount.join("a/data.raw");
        let file = open_direct(&path);
        let steps = |range: std::ops::Range<usize>| range.step_by(128 * K);
        assert_reads_at(&file, &s.array.flat, 128 * K, steps(0..2560 * K));

        s.array.change(&[0, 3], 2);
        s.array.put(&[0, 3]);
        drop(File::open(&path).unwrap());
        // read a window that was assembled already, and the next one
        let growth =
            mount.growth(|| assert_reads_at(&file, &s.array.flat, 128 * K, steps(2048 * K..5 * M)));
        assert!(
            codec != zlib() || growth.of("chunk_decodes") <= 2,
            "{} chunks",
            growth.of("chunk_decodes")
        );

        s.array.clear(&[0, 5]);
        fs::remove_file(s.array.file(&[0, 5])).unwrap();
        drop(File::open(&path).unwrap());
        let growth =
            mount.growth(|| assert_reads_at(&file, &s.array.flat, 128 * K, steps(4 * M..8 * M)));
        assert!(
            codec != zlib() || growth.of("chunk_decodes") == 0,
            "{} chunks",
            growth.of("chunk_decodes")
        );
        assert_reads(&path, &s.array.flat);
    }
}

/// After the array got another shape or order, a file that was opened before shows the new array,
/// also to a sequential reader in a row of chunks larger than the cache.
#[test]
fn an_old_descriptor_of_a_wide_row_shows_the_new_array() {
    let order_f = json!({"order": "F", "compressor": {"id": "zlib", "level": 1}});
    let size = [48, 64 * K];
    let chunks = [32, 2 * K];
    for (shape, more) in [
        ([48, 24 * K], zlib()),
        ([48, 48 * K], zlib()),
        (size, order_f),
    ] {
        let s = stored(&size, &chunks, zlib());
        let spill = spill_directory();
        let mount = s.mount(&[
            "--cache-size",
            "512K",
            "--spill-dir",
            spill.path().to_str().unwrap(),
        ]);
        let old = open_direct(&mount.join("a/data.raw"));
        assert_reads_at(&old, &s.array.flat, 128 * K, (0..1280 * K).step_by(128 * K));
        // only the metadata changes, not the chunk files
        let mut array = TestArray::new(s.array.path.clone(), &shape, &chunks, more.clone());
        for index in array.grid() {
            if array.file(&index).exists() {
                array.set_chunk(&index, &s.array.chunk(&index));
            }
        }
        let _new = File::open(mount.join("a/data.raw")).unwrap();
        let mut buffer = vec![0; 128 * K];
        for at in (640 * K..array.flat.len()).step_by(128 * K) {
            let n = old.read_at(&mut buffer, at as u64).unwrap();
            let expected = &array.flat[at..(at + 128 * K).min(array.flat.len())];
            assert!(
                buffer[..n] == *expected,
                "{shape:?} {more}: {n} bytes at {at} differ"
            );
        }
    }
}

/// With a cache of a few rows of chunks, a sequential read decodes few chunks twice. This holds for
/// requests in order and for requests of the kernel's read-ahead, which overtake each other. A
/// cache that dropped needed chunks would decode each chunk eight times, once for each request in
/// its rows.
#[test]
fn a_sequential_read_with_a_small_cache_decodes_hardly_any_chunk_twice() {
    for codec in [zlib(), blosc("lz4", 0), blosc("zstd", 16 * K)] {
        // 12 rows of 4 chunks of 256 KiB
        let s = stored(&[1536, 8 * K], &[128, 2 * K], codec.clone());
        for cache in ["4M", "6M"] {
            let mount = s.mount(&["-o", "ro", "--cache-size", cache]);
            let path = mount.join("a/data.raw");
            let counts =
                |growth: support::Growth| ["chunk_decodes", "block_decodes"].map(|n| growth.of(n));
            let steps = (0..s.array.flat.len()).step_by(128 * K);
            let direct =
                counts(mount.growth(|| {
                    assert_reads_at(&open_direct(&path), &s.array.flat, 128 * K, steps)
                }));
            // a chunk has at most 16 blocks
            assert!(
                direct[0] + direct[1] / 16 < 2 * 48,
                "{codec} {cache}: {direct:?}"
            );
            let cached = counts(mount.growth(|| assert_reads(&path, &s.array.flat)));
            assert!(
                cached[0] + cached[1] / 16 < 2 * 48,
                "{codec} {cache}: {cached:?}"
            );
        }
    }
}

/// The second series of values across chunks, of an array that is larger than the cache, decodes
/// parts of the chunks that the first one has decoded.
#[test]
fn a_second_series_decodes_no_whole_chunk() {
    const MAPS: usize = 6;
    for more in [
        zlib(),
        json!({"compressor": {"id": "lz4", "acceleration": 1}}),
    ] {
        let s = stored(&[MAPS, 8 * M], &[1, 8 * M], more.clone());
        let mount = s.mount(&["--cache-size", "32M"]);
        let file = open_direct(&mount.join("a/data.raw"));
        let series = |at: usize| {
            let reads = (0..MAPS).map(|map| map * 8 * M + at);
            let growth = mount.growth(|| assert_reads_at(&file, &s.array.flat, 4096, reads));
            ["chunk_decodes", "block_decodes", "bytes_decoded"].map(|n| growth.of(n) as usize)
        };
        let [chunks, ..] = series(M);
        assert!((MAPS..=MAPS + 1).contains(&chunks), "{more}: {chunks}");
        for at in [0, 2 * M, 3 * M + 8192, 8 * M - 4096] {
            let [chunks, parts, bytes] = series(at);
            // one or two maps may have stayed in the cache
            assert_eq!(chunks, 0, "{more}: {at}");
            assert!((MAPS - 2..=MAPS).contains(&parts), "{more}: {at}, {parts}");
            assert!(bytes <= MAPS * 8192, "{more}: {at}, {bytes}");
        }
    }
}
