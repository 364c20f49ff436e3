mod changing_sources;
mod composites;
mod empty_chunks;
mod faults;
mod headers;
mod latency;
mod many_arrays;
pub mod model;
mod pages_model;
mod races;
mod remote;
mod removed;
mod shard_costs;
mod views;
mod xattrs;

use super::*;
use crate::array::hierarchy::Hierarchy;
use proptest::prelude::*;
use std::sync::atomic::Ordering;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::layout;
use zarrfs_format::metadata::Order;
use zarrfs_format::metadata::Separator;
use zarrfs_format::metadata::{ArrayMetadata, V1Order};
use zarrfs_store::MemoryStore;

/// Returns the file system of a store, with a cache of `bound` bytes.
fn mount_store(store: Arc<dyn Store>, bound: usize, read_only: bool) -> Fs {
    let stats = Arc::new(Stats::default());
    let cache = Arc::new(Cache::new(bound, stats.clone()));
    let hierarchy = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 1 << 20,
    };
    let options = Options {
        read_only,
        resize: false,
        threads: 2,
        direct_io: false,
        spill,
    };
    Fs::new(Tree::new(hierarchy, cache.clone()), cache, stats, options).unwrap()
}

/// Returns a file system that was not used yet, with another tree.
fn with_tree(fs: Fs, change: impl FnOnce(Tree) -> Tree) -> Fs {
    drop((fs.arrays, fs.absent, fs.lost));
    let tree = Arc::try_unwrap(fs.tree).ok().unwrap();
    Fs::new(change(tree), fs.cache, fs.stats, fs.options).unwrap()
}

/// A file system over a store with one array, `a`, and the array's expected flat bytes.
struct Case {
    fs: Fs,
    flat: Vec<u8>,
    stored: Vec<bool>,
    chunk_of: Vec<u64>,
}

fn case(
    shape: &[u64],
    chunks: &[u64],
    item: u64,
    order: &str,
    fill: u8,
    mask: u64,
    bound: usize,
) -> Case {
    let store = Arc::new(MemoryStore::default());
    let fill_value = "AQEBAQ==";
    let dtype = if item == 4 && fill == 1 {
        "\"|V4\"".to_string()
    } else {
        format!("\"|V{item}\"")
    };
    let fill_json = if fill == 1 && item == 4 {
        format!("\"{fill_value}\"")
    } else {
        "null".into()
    };
    let fill = if fill == 1 && item == 4 { 1 } else { 0 };
    store.insert(
        "a/.zarray",
        format!(
            r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":{dtype},"compressor":null,"fill_value":{fill_json},"order":"{order}","filters":null}}"#
        ),
    );
    let grid = zarrfs_format::grid::Grid::new(shape, chunks, item as usize).unwrap();
    let mut stored = Vec::new();
    let mut decoded = Vec::new();
    for id in 0..grid.chunk_count() {
        let bytes: Vec<u8> = (0..grid.chunk_size(ChunkId(id)))
            .map(|i| (i as u64 * 7 + id * 13 + 1) as u8)
            .collect();
        stored.push(mask >> (id % 64) & 1 == 1);
        if stored[id as usize] {
            let mut file = bytes.clone();
            if order == "F" {
                // C layout of a shape is F layout of the reversed shape
                let reversed: Vec<u64> = chunks.iter().rev().copied().collect();
                layout::f_to_c(&reversed, item as usize, &bytes, &mut file);
            }
            store.insert(
                &format!(
                    "a/{}",
                    grid.chunk_key(ChunkId(id), zarrfs_format::metadata::Separator::Dot)
                ),
                file,
            );
        }
        decoded.push(bytes);
    }
    let mut flat = Vec::new();
    let mut chunk_of = Vec::new();
    for run in grid.runs(0..u64::MAX) {
        for i in 0..run.len {
            let id = run.chunk.0 as usize;
            flat.push(if stored[id] {
                decoded[id][run.offset + i]
            } else {
                fill
            });
            chunk_of.push(run.chunk.0);
        }
    }
    let fs = mount_store(store, bound, true);
    Case {
        fs,
        flat,
        stored,
        chunk_of,
    }
}

fn open(fs: &Fs, path: &[&str]) -> u64 {
    let inode = path
        .iter()
        .fold(1, |parent, name| fs.lookup(parent, name).unwrap().inode);
    fs.open(inode, false, false).unwrap().handle
}

pub(super) fn geometry() -> impl Strategy<Value = (Vec<u64>, Vec<u64>)> {
    prop::collection::vec((1u64..7, 1u64..8), 1..=4)
        .prop_filter("small", |d| d.iter().map(|d| d.0).product::<u64>() < 600)
        .prop_map(|d| d.into_iter().unzip())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// "data.raw: prod(shape) x itemsize bytes, C order"; "uninitialised chunk: in data.raw it
    /// reads as the fill value".
    #[test]
    fn any_read_of_data_raw_returns_that_slice_of_the_flat_bytes(
        (shape, chunks) in geometry(), item in prop::sample::select(vec![1u64, 3, 4]), f in any::<bool>(),
        fill in 0u8..2, mask in any::<u64>(), bound in prop::sample::select(vec![0usize, 600, 1 << 20]),
        offset in 0.0..1.2f64, len in 0usize..700,
    ) {
        let c = case(&shape, &chunks, item, if f { "F" } else { "C" }, fill, mask, bound);
        let handle = open(&c.fs, &["a", "data.raw"]);
        let offset = (offset * c.flat.len() as f64) as usize;
        let mut out = vec![9; 5];
        if !c.fs.read_cached(handle, offset as u64, len, &mut out).unwrap() {
            c.fs.read(handle, offset as u64, len, &mut out).unwrap();
        }
        let start = offset.min(c.flat.len());
        prop_assert_eq!(&out, &c.flat[start..(start + len).min(c.flat.len())]);
    }

    /// "SEEK_HOLE/SEEK_DATA report it as a hole where the fill bytes are zero".
    #[test]
    fn holes_are_where_chunks_are_missing((shape, chunks) in geometry(), mask in any::<u64>(), offset in 0.0..1.0f64) {
        let c = case(&shape, &chunks, 3, "C", 0, mask, 1 << 20);
        let handle = open(&c.fs, &["a", "data.raw"]);
        let offset = (offset * c.flat.len() as f64) as u64;
        let is_data = |i: &u64| c.stored[c.chunk_of[*i as usize] as usize];
        let end = c.flat.len() as u64;
        let data = (offset..end).find(is_data);
        prop_assert_eq!(c.fs.seek(handle, offset, Seek::Data).ok(), data);
        let hole = (offset..end).find(|i| !is_data(i)).unwrap_or(end);
        prop_assert_eq!(c.fs.seek(handle, offset, Seek::Hole).unwrap(), hole);
        prop_assert_eq!(c.fs.seek(handle, end, Seek::Hole).unwrap_err().errno(), libc::ENXIO);
    }
}

/// An array larger than those of [`case`], so that reads trigger prefetching.
struct Large {
    fs: Fs,
    store: Arc<MemoryStore>,
    grid: zarrfs_format::grid::Grid,
    pipeline: zarrfs_format::pipeline::Pipeline,
    chunks: Vec<u64>,
    order: Order,
    flat: Vec<u8>,
}

/// The next action of a reader. Positions are fractions of the array's size.
#[derive(Clone, Debug)]
enum Walk {
    /// Reads consecutive bytes: the position, the number of bytes, and the bytes per request.
    Forward(f64, usize, usize),
    /// Reads in steps, forwards or backwards: position, step in bytes, bytes per request, number of
    /// requests.
    Strided(f64, i64, usize, usize),
    Anywhere(Vec<(f64, usize)>),
    /// Replaces or removes a chunk and reopens the file, while another reader reads there.
    Change(f64, Option<u8>),
}

#[derive(Clone, Debug)]
struct LargeGeometry {
    shape: Vec<u64>,
    chunks: Vec<u64>,
    codec: &'static str,
    order: Order,
    /// Bit mask of the stored chunks, repeated for each 16 chunks.
    stored: u16,
    bound: usize,
    spill: u64,
}

const ITEM: usize = 2;

fn large(g: &LargeGeometry) -> Large {
    let store = Arc::new(MemoryStore::default());
    let order = if g.order == Order::F { "F" } else { "C" };
    let document = format!(
        r#"{{"zarr_format":2,"shape":{:?},"chunks":{:?},"dtype":"<u2","compressor":{},"fill_value":258,"order":"{order}","filters":null}}"#,
        g.shape, g.chunks, g.codec,
    );
    let mut meta = ArrayMetadata::parse(document.as_bytes()).unwrap();
    // the tests change the order of the items themselves
    meta.order = Order::C;
    store.insert("a/.zarray", document);
    let grid = zarrfs_format::grid::Grid::new(&g.shape, &g.chunks, ITEM).unwrap();
    let pipeline = zarrfs_format::pipeline::Pipeline::new(&meta, grid.max_chunk_size()).unwrap();
    let stats = Arc::new(Stats::default());
    let cache = Arc::new(Cache::new(g.bound, stats.clone()));
    let hierarchy = Hierarchy::new(store.clone(), V1Order::Zarr1, stats.clone());
    let spill = SpillOptions {
        directory: "/var/tmp".into(),
        limit: g.spill,
    };
    let options = Options {
        read_only: true,
        resize: false,
        threads: 2,
        direct_io: false,
        spill,
    };
    let fs = Fs::new(Tree::new(hierarchy, cache.clone()), cache, stats, options).unwrap();
    let flat = vec![0; grid.size() as usize];
    let mut large = Large {
        fs,
        store,
        grid,
        pipeline,
        chunks: g.chunks.clone(),
        order: g.order,
        flat,
    };
    for id in 0..large.grid.chunk_count() {
        large.put(id, (g.stored >> (id % 16) & 1 == 1).then_some(id as u8));
    }
    large
}

impl Large {
    /// Stores a chunk of bytes generated from the seed, or removes the chunk.
    fn put(&mut self, id: u64, seed: Option<u8>) {
        let chunk: Vec<u8> = match seed {
            Some(seed) => (0..self.grid.max_chunk_size())
                .map(|i| (i / 3) as u8 ^ (i >> 9) as u8 ^ seed)
                .collect(),
            None => [2, 1].repeat(self.grid.max_chunk_size() / ITEM),
        };
        for (flat, run) in self.grid.chunk_runs(ChunkId(id), 0..u64::MAX) {
            self.flat[flat as usize..][..run.len].copy_from_slice(&chunk[run.offset..][..run.len]);
        }
        let key = format!("a/{}", self.grid.chunk_key(ChunkId(id), Separator::Dot));
        let Some(_) = seed else {
            return self.store.remove(&key);
        };
        let mut layout = chunk.clone();
        if self.order == Order::F {
            let reversed: Vec<u64> = self.chunks.iter().rev().copied().collect();
            layout::f_to_c(&reversed, ITEM, &chunk, &mut layout);
        }
        let mut encoded = Vec::new();
        self.pipeline.encode(&layout, &mut encoded).unwrap();
        self.store.insert(&key, encoded);
    }

    fn check(&self, handle: u64, at: usize, len: usize) -> std::result::Result<(), TestCaseError> {
        let mut out = vec![9; 5];
        if !self
            .fs
            .read_cached(handle, at as u64, len, &mut out)
            .unwrap()
        {
            self.fs.read(handle, at as u64, len, &mut out).unwrap();
        }
        let start = at.min(self.flat.len());
        let expected = &self.flat[start..(start + len).min(self.flat.len())];
        prop_assert!(
            out == expected,
            "{len} bytes at {at} of {} differ",
            self.flat.len()
        );
        Ok(())
    }

    fn check_forward(
        &self,
        handle: u64,
        from: usize,
        len: usize,
        request: usize,
    ) -> std::result::Result<(), TestCaseError> {
        (from..self.flat.len().min(from + len))
            .step_by(request)
            .try_for_each(|at| self.check(handle, at, request))
    }
}

fn large_geometry() -> impl Strategy<Value = LargeGeometry> {
    let blosc = r#"{"id":"blosc","cname":"zstd","clevel":1,"shuffle":1,"blocksize":4096}"#;
    let codec = prop::sample::select(vec![blosc, r#"{"id":"zlib","level":1}"#, "null"]);
    let order = prop::sample::select(vec![Order::C, Order::C, Order::F]);
    let bound = prop::sample::select(vec![0usize, 600, 8 << 10, 150 << 10, 1 << 20]);
    let spill = prop::sample::select(vec![0u64, 1 << 30]);
    let shape = (
        prop::sample::select(vec![1u64, 3]),
        8u64..150,
        100_000u64..600_000,
    );
    let chunks = (0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64);
    let stored = prop::sample::select(vec![u16::MAX, u16::MAX, 0x7ffe, 0x5a5a]);
    (shape, chunks, codec, order, stored, bound, spill).prop_map(
        |(shape, chunks, codec, order, stored, bound, spill)| {
            let (planes, rows, items) = shape;
            let shape = vec![planes, rows, (items / planes / rows).max(1)];
            // small parts of a dimension are as likely as large ones; not more than a thousand
            // chunks
            let part = |len: u64, part: f64| ((len as f64).powf(part) as u64).clamp(1, len);
            let mut chunks = vec![
                part(planes, chunks.0),
                part(rows, chunks.1),
                part(shape[2], chunks.2),
            ];
            let count = |chunks: &[u64]| {
                shape
                    .iter()
                    .zip(chunks)
                    .map(|(s, c)| s.div_ceil(*c))
                    .product::<u64>()
            };
            while count(&chunks) > 1000 {
                let d = if chunks[2] < 300 { 2 } else { 1 };
                chunks[d] = (2 * chunks[d]).min(shape[d].max(300));
            }
            LargeGeometry {
                shape,
                chunks,
                codec,
                order,
                stored,
                bound,
                spill,
            }
        },
    )
}

fn walk() -> impl Strategy<Value = Walk> {
    let len = || prop::sample::select(vec![4 << 10, 64 << 10, 128 << 10, 100_001]);
    let forward = (
        prop::sample::select(vec![0.0, 0.0, 0.3]),
        130_000usize..1_500_000,
        len(),
    );
    let strided = (0.0..1.0f64, -100_000i64..100_000, 1usize..9000, 4usize..60);
    let anywhere = prop::collection::vec((0.0..1.1f64, 0usize..20_000), 1..20);
    prop_oneof![
        4 => forward.prop_map(|(from, len, request)| Walk::Forward(from, len, request)),
        2 => strided.prop_map(|(from, step, len, times)| Walk::Strided(from, step, len, times)),
        2 => anywhere.prop_map(Walk::Anywhere),
        1 => (0.0..1.0f64, any::<Option<u8>>()).prop_map(|(at, seed)| Walk::Change(at, seed)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A read returns "that slice of the flat bytes" after any earlier reads, with any cache size
    /// and any prefetching; a change is "seen at the next open".
    #[test]
    fn any_sequence_of_reads_returns_slices_of_the_flat_bytes(
        geometry in large_geometry(), walks in prop::collection::vec((walk(), any::<bool>()), 1..8),
    ) {
        let mut large = large(&geometry);
        let size = large.flat.len();
        let place = |part: f64| (part * size as f64) as usize;
        let mut handles = [0; 2].map(|_| open(&large.fs, &["a", "data.raw"]));
        for (walk, second) in walks {
            let handle = handles[usize::from(second)];
            match walk {
                Walk::Forward(from, len, request) => large.check_forward(handle, place(from), len, request)?,
                Walk::Strided(from, step, len, times) => {
                    let at = (0..times as i64).map(|i| place(from) as i64 + i * step);
                    for at in at.take_while(|at| (0..size as i64).contains(at)) {
                        large.check(handle, at as usize, len)?;
                    }
                }
                Walk::Anywhere(requests) => {
                    for (at, len) in requests {
                        large.check(handle, place(at), len)?;
                    }
                }
                Walk::Change(at, seed) => {
                    let id = (at * large.grid.chunk_count() as f64) as u64;
                    // the other reader's file stays open and shows the change, too
                    let other = handles[usize::from(!second)];
                    let from = large.grid.next_in_chunk(ChunkId(id), 0).unwrap() as usize;
                    large.check_forward(other, from, 300_000, 128 << 10)?;
                    large.put(id, seed);
                    large.fs.change().release(handle);
                    handles[usize::from(second)] = open(&large.fs, &["a", "data.raw"]);
                    large.check_forward(other, from, 300_000, 128 << 10)?;
                }
            }
        }
    }
}

#[test]
fn a_directory_can_be_read_in_pieces_and_again() {
    let c = case(&[9, 9], &[2, 2], 1, "C", 0, u64::MAX, 1 << 20);
    let inode = c.fs.lookup(1, "a").unwrap().inode;
    let handle = c.fs.open_directory(inode).unwrap();
    let all = |from, at_most: usize| {
        let mut names = Vec::new();
        c.fs.read_directory(handle, from, |n, next| {
            let full = names.len() == at_most;
            if !full {
                names.push((n.name.clone(), next));
            }
            full
        })
        .unwrap();
        names
    };
    let whole = all(0, usize::MAX);
    assert_eq!(whole.len(), 2 + 2 + 25);
    assert_eq!(
        whole[..4].iter().map(|n| n.0.as_str()).collect::<Vec<_>>(),
        [".", "..", "data.raw", ".zarray"]
    );
    let mut pieces = all(0, 3);
    loop {
        let next = all(pieces.last().unwrap().1, 3);
        if next.is_empty() {
            break;
        }
        pieces.extend(next);
    }
    assert_eq!(pieces, whole);
}

#[test]
fn names_are_listed_with_attributes_in_pieces() {
    let c = case(&[9, 9], &[2, 2], 1, "C", 0, 0x1ff_ff0f, 1 << 20);
    let inode = c.fs.lookup(1, "a").unwrap().inode;
    let handle = c.fs.open_directory(inode).unwrap();
    let mut names = Vec::new();
    let mut next_from = 0;
    let mut lookups = Vec::new();
    loop {
        let before = names.len();
        let from = next_from;
        let add = |e: DirectoryEntry, next| {
            if names.len() == before + 7 {
                return true;
            }
            next_from = next;
            if ![".", ".."].contains(&e.name.name.as_str()) {
                assert_eq!(e.name.inode, e.attributes.inode);
                lookups.push(e.attributes.inode);
            }
            names.push((e.name.name.clone(), e.attributes.size, e.lasting));
            false
        };
        c.fs.read_directory_with_attributes(handle, from, add)
            .unwrap();
        if names.len() == before {
            break;
        }
    }
    assert_eq!(names.len(), 2 + 2 + 21);
    assert!(
        names.contains(&("4.4".into(), 4, true)) && names.contains(&("data.raw".into(), 81, false)),
        "{names:?}"
    );
    // each returned name counts as one lookup, and no other name does
    for inode in lookups {
        c.fs.attributes(inode).unwrap();
        c.fs.tree().live.forget(inode, 1);
        assert_eq!(c.fs.attributes(inode).unwrap_err().errno(), libc::ESTALE);
    }
    c.fs.tree().live.forget(inode, 1);
    assert!(c.fs.tree.state().contains(&("live_nodes", 0.into())));
}

#[test]
fn opening_for_writing_fails_with_erofs() {
    let c = case(&[4], &[2], 1, "C", 0, 0, 1 << 20);
    let dir = c.fs.lookup(1, "a").unwrap();
    let file = c.fs.lookup(dir.inode, "data.raw").unwrap();
    assert_eq!(
        c.fs.open(file.inode, true, false).unwrap_err().errno(),
        libc::EROFS
    );
    assert_eq!((file.size, file.blocks), (4, 0));
    c.fs.tree().live.forget(file.inode, 1);
    assert_eq!(
        c.fs.attributes(file.inode).unwrap_err().errno(),
        libc::ESTALE
    );
}

#[test]
fn chunks_that_cannot_be_listed_are_no_hole() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join(".zarray"),
        br#"{"zarr_format":2,"shape":[900,2],"chunks":[1,1],"dtype":"|u1","compressor":null,"fill_value":0,"order":"C",
        "filters":null,"dimension_separator":"/"}"#,
    )
    .unwrap();
    let stats = Arc::new(Stats::default());
    let cache = Arc::new(Cache::new(1 << 20, stats.clone()));
    let store = Arc::new(zarrfs_store::DirectoryStore::open(dir.path()).unwrap());
    let hierarchy = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 1 << 20,
    };
    let options = Options {
        read_only: true,
        resize: false,
        threads: 2,
        direct_io: false,
        spill,
    };
    let fs = Fs::new(Tree::new(hierarchy, cache.clone()), cache, stats, options).unwrap();
    let handle = open(&fs, &["data.raw"]);
    assert_eq!(
        fs.seek(handle, 0, Seek::Data).unwrap_err().errno(),
        libc::ENXIO
    );
    // a link to chunks on another disk, which the store must not follow
    std::os::unix::fs::symlink("/", dir.path().join("800")).unwrap();
    let handle = open(&fs, &["data.raw"]);
    assert_eq!(fs.seek(handle, 0, Seek::Data).unwrap(), 0);
    assert_eq!(
        fs.attributes(fs.lookup(1, "data.raw").unwrap().inode)
            .unwrap()
            .size,
        1800
    );
}

/// Stores an array `a` of bytes: every byte of a chunk is `value` of the chunk's indices.
fn constant(
    store: &MemoryStore,
    shape: [u64; 2],
    chunks: [u64; 2],
    value: impl Fn(u64, u64) -> u8,
) {
    store.insert("a/.zarray", wide_document(shape, chunks));
    for i in 0..shape[0].div_ceil(chunks[0]) {
        for j in 0..shape[1].div_ceil(chunks[1]) {
            store.insert(
                &format!("a/{i}.{j}"),
                vec![value(i, j); (chunks[0] * chunks[1]) as usize],
            );
        }
    }
}

fn wide_document(shape: [u64; 2], chunks: [u64; 2]) -> String {
    format!(
        r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":"|u1","compressor":null,"fill_value":0,"order":"C","filters":null}}"#
    )
}

fn fs_of(store: Arc<MemoryStore>, bound: usize, threads: usize) -> (Fs, Arc<Stats>) {
    let stats = Arc::new(Stats::default());
    let cache = Arc::new(Cache::new(bound, stats.clone()));
    let hierarchy = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 0,
    };
    let options = Options {
        read_only: true,
        resize: false,
        threads,
        direct_io: false,
        spill,
    };
    (
        Fs::new(
            Tree::new(hierarchy, cache.clone()),
            cache,
            stats.clone(),
            options,
        )
        .unwrap(),
        stats,
    )
}

fn read(fs: &Fs, handle: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    if !fs.read_cached(handle, offset, len, &mut out).unwrap() {
        fs.read(handle, offset, len, &mut out).unwrap();
    }
    out
}

fn open_again(fs: &Fs) -> OpenedFile {
    let inode = ["a", "data.raw"]
        .iter()
        .fold(1, |parent, name| fs.lookup(parent, name).unwrap().inode);
    fs.open(inode, false, false).unwrap()
}

const REQUEST: usize = 128 << 10;
const M: u64 = 1 << 20;

#[test]
fn pages_of_a_window_that_was_cached_are_dropped_when_it_changes() {
    let store = Arc::new(MemoryStore::default());
    constant(&store, [32, M], [16, 1 << 16], |_, j| 1 + j as u8);
    let (fs, _) = fs_of(store.clone(), 16 << 20, 2);
    let read_window = |handle| {
        for i in 0..4 {
            read(&fs, handle, i * REQUEST as u64, REQUEST);
        }
    };
    let first = open_again(&fs);
    read_window(first.handle);
    read(&fs, first.handle, 16 * M, 10);
    fs.change().release(first.handle);
    store.insert("a/1.0", vec![77; 1 << 20]);
    let second = open_again(&fs);
    assert_eq!(second.pages, KernelPages::Fresh);
    read_window(second.handle);
    fs.change().release(second.handle);
    store.insert("a/0.0", vec![78; 1 << 20]);
    assert_eq!(open_again(&fs).pages, KernelPages::Fresh);
}

#[test]
fn windows_of_a_former_shape_are_forgotten() {
    let store = Arc::new(MemoryStore::default());
    let value = |i: u64, j: u64| (1 + 16 * i + j) as u8;
    constant(&store, [12, M], [4, 1 << 16], value);
    let (fs, _) = fs_of(store.clone(), 3 << 20, 2);
    let file = open_again(&fs).handle;
    for i in 0..20 {
        read(&fs, file, i * REQUEST as u64, REQUEST);
    }
    let columns = 3 << 18;
    store.insert("a/.zarray", wide_document([12, columns], [4, 1 << 16]));
    open_again(&fs);
    for i in 0..32 {
        let offset = i * REQUEST as u64;
        let bytes = read(&fs, file, offset, REQUEST);
        let is = |at: u64| value(at / columns / 4, (at % columns) >> 16);
        let wrong = bytes
            .iter()
            .zip(offset..)
            .filter(|(b, at)| **b != is(*at))
            .count();
        assert_eq!(wrong, 0, "at {offset}");
    }
}

#[test]
fn a_request_across_windows_is_of_one_version() {
    use std::sync::atomic::AtomicBool;
    let store = Arc::new(MemoryStore::default());
    constant(&store, [16, M], [16, 1 << 16], |_, _| 0);
    let (fs, _) = fs_of(store.clone(), 12 << 20, 2);
    let done = AtomicBool::new(false);
    let mixed = std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in (1..=250).cycle() {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                store.insert("a/0.0", vec![version; 1 << 20]);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut mixed = 0;
        for _ in 0..40 {
            let file = open_again(&fs).handle;
            // requests of two rows: both have bytes of the first chunk
            for i in 0..12 {
                let bytes = read(&fs, file, i * M, 2 << 20);
                mixed += usize::from(bytes[0] != bytes[1 << 20]);
            }
            fs.change().release(file);
        }
        done.store(true, Ordering::Relaxed);
        mixed
    });
    assert_eq!(mixed, 0);
}

#[test]
fn windows_of_two_readers_may_begin_at_the_same_position() {
    let store = Arc::new(MemoryStore::default());
    constant(&store, [32, M], [32, 1 << 16], |_, _| 5);
    let (fs, stats) = fs_of(store.clone(), 31 << 20, 1);
    // the second window of `early` begins where the first window of `late` does
    let late = open_again(&fs).handle;
    for i in 0..8 {
        read(&fs, late, 2 * M + i * REQUEST as u64, REQUEST);
    }
    let early = open_again(&fs).handle;
    let before = stats.bytes_stored.get();
    for i in 0..64 {
        read(&fs, early, i * REQUEST as u64, REQUEST);
    }
    assert!(
        stats.bytes_stored.get() - before < 32 << 20,
        "{} {}",
        before,
        stats.bytes_stored.get()
    );
}

#[test]
fn a_prefetched_window_does_not_evict_the_one_in_use() {
    for bound in [6, 8, 10, 12] {
        let store = Arc::new(MemoryStore::default());
        constant(&store, [16, M], [16, 1 << 16], |_, _| 5);
        let (fs, stats) = fs_of(store.clone(), bound << 20, 2);
        let file = open_again(&fs).handle;
        for i in 0..128 {
            read(&fs, file, i * REQUEST as u64, REQUEST);
        }
        // if it did, the reader would build a window for each request; a late job repeats one that
        // the reader has built
        assert!(
            stats.bytes_stored.get() < 32 << 20,
            "{bound}: {}",
            stats.bytes_stored.get()
        );
    }
}

#[test]
fn readers_of_one_open_file_keep_each_others_windows() {
    let store = Arc::new(MemoryStore::default());
    constant(&store, [64, M], [32, 1 << 15], |_, _| 5);
    let (fs, stats) = fs_of(store.clone(), 31 << 20, 1);
    let file = open_again(&fs).handle;
    for i in 0..64 {
        for place in [0, 32 * M] {
            read(&fs, file, place + i * REQUEST as u64, REQUEST);
        }
    }
    assert!(
        stats.bytes_stored.get() < 64 << 20,
        "{}",
        stats.bytes_stored.get()
    );
}

#[test]
fn an_array_that_grows_over_written_padding_shows_fill_values() {
    for whole in [true, false] {
        let store = Arc::new(MemoryStore::default());
        let stats = Arc::new(Stats::default());
        let document = r#"{"zarr_format":2,"shape":[5],"chunks":[4],"dtype":"|u1","compressor":null,"fill_value":9,
            "order":"C","filters":null}"#;
        store.insert("a/.zarray", document.to_string());
        // another program has left padding that is not the fill value
        store.insert("a/1", vec![1, 7, 7, 7]);
        let cache = Arc::new(Cache::new(1 << 16, stats.clone()));
        let hierarchy = Hierarchy::new(store.clone(), V1Order::Zarr1, stats.clone());
        let spill = SpillOptions {
            directory: std::env::temp_dir(),
            limit: 1 << 20,
        };
        let options = Options {
            read_only: false,
            resize: true,
            threads: 2,
            direct_io: false,
            spill,
        };
        let fs = Fs::new(Tree::new(hierarchy, cache.clone()), cache, stats, options).unwrap();
        let a = fs.lookup(1, "a").unwrap().inode;
        let open = |name| {
            fs.open(fs.lookup(a, name).unwrap().inode, true, false)
                .unwrap()
                .handle
        };
        let chunk = open("1");
        let flat = open("data.raw");
        let mut out = Vec::new();
        // put the padding into memory: by a write, or by a load for a read beside the written byte
        if whole {
            fs.change().write(chunk, 0, &[1, 2, 3, 4]).unwrap();
        } else {
            fs.change().write(chunk, 0, &[1]).unwrap();
            fs.read(chunk, 0, 4, &mut out).unwrap();
        }
        fs.change().write(flat, 7, &[5]).unwrap();
        fs.read(flat, 0, 8, &mut out).unwrap();
        assert_eq!(out, [9, 9, 9, 9, 1, 9, 9, 5], "{whole}");
        fs.cache.flush_all().unwrap();
        let mut stored = Vec::new();
        zarrfs_store::StoreExt::get(&*store, &Key::normalize("a/1").unwrap(), 4, &mut stored)
            .unwrap()
            .unwrap();
        assert_eq!(stored, [1, 9, 9, 5], "{whole}");
    }
}
