//! Tests requests while another thread changes or forgets what they are about.

use crate::array::hierarchy::{DocumentFormat, Hierarchy, MetadataFile};
use crate::fs::tree::{FLAT, IngestRules, ROOT_INODE};
use crate::fs::*;
use crate::ingest::IngestLayout;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zarrfs_base::error::Kind;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::V1Order;
use zarrfs_ingest::FileFormat;
use zarrfs_store::{
    Key, MemoryStore, Readable, Replaces, Store, ValuePiece, Version, delegate_store,
};

fn document(length: u64) -> String {
    format!(
        r#"{{"zarr_format":2,"shape":[{length}],"chunks":[8],"dtype":"|u1","compressor":{{"id":"zlib"}},"fill_value":9,
        "order":"C","filters":null}}"#
    )
}

fn file_system() -> Fs {
    let store = MemoryStore::default();
    store.insert("a/.zarray", document(64));
    file_system_over(Arc::new(store), false)
}

fn file_system_over(store: Arc<dyn Store>, resize: bool) -> Fs {
    file_system_with(store, resize, |tree| tree)
}

fn file_system_with(
    store: Arc<dyn Store>,
    resize: bool,
    with_options: impl FnOnce(Tree) -> Tree,
) -> Fs {
    let stats = Arc::new(Stats::default());
    let cache = Arc::new(Cache::new(1 << 20, stats.clone()));
    let hierarchy = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 0,
    };
    let options = Options {
        read_only: false,
        resize,
        threads: 2,
        direct_io: false,
        spill,
    };
    let tree = with_options(Tree::new(hierarchy, cache.clone()));
    Fs::new(tree, cache, stats, options).unwrap()
}

fn open(fs: &Fs, directory: &str) -> Result<u64> {
    let directory = fs.lookup(ROOT_INODE, directory)?.inode;
    Ok(fs
        .open(fs.lookup(directory, FLAT)?.inode, true, false)?
        .handle)
}

/// A guard that ends the other threads when the test ends or fails.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn writes_during_changes_of_the_shape_are_visible_and_kept() {
    let fs = file_system();
    let done = AtomicBool::new(false);
    let key = Key::normalize("a").unwrap();
    let last = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let handle = open(&fs, "a").unwrap();
            let mut value = 0u8;
            let mut read = Vec::new();
            while !done.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                // a chunk, and the first half of the next one, which the end of the array crosses
                assert_eq!(fs.change().write(handle, 16, &[value; 12]).unwrap(), 12);
                fs.read(handle, 16, 12, &mut read).unwrap();
                assert_eq!(read, [value; 12]);
            }
            fs.change().flush(handle).unwrap();
            value
        });
        let until = Until(&done);
        for turn in 0..1000 {
            fs.change()
                .put_document(
                    &key,
                    MetadataFile::Array,
                    document([29, 64][turn % 2]).as_bytes(),
                )
                .unwrap();
        }
        drop(until);
        writer.join().unwrap()
    });
    let array = fs.tree.array(&key).unwrap();
    let mut scratch = Default::default();
    let mut stored = |chunk| {
        array
            .load(ChunkId(chunk), Vec::new(), &mut scratch)
            .unwrap()
            .unwrap()
            .bytes
    };
    assert_eq!(stored(2), [last; 8]);
    assert_eq!(stored(3), [[last; 4], [9; 4]].concat());
}

#[test]
fn nothing_is_stored_at_the_old_key_of_a_renamed_array() {
    let fs = file_system();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for name in ["a", "b"] {
                    let Ok(handle) = open(&fs, name) else {
                        continue;
                    };
                    // the write succeeds or reports an error
                    let _ = fs.change().write(handle, 3, &[7; 20]);
                    let _ = fs.change().flush(handle);
                    fs.change().release(handle);
                }
            }
        });
        let _until = Until(&done);
        for turn in 0..1000 {
            let (from, to) = [("a", "b"), ("b", "a")][turn % 2];
            fs.change()
                .rename((ROOT_INODE, from), (ROOT_INODE, to), false)
                .unwrap();
            let left = fs.lookup(ROOT_INODE, from).map(|_| ());
            assert_eq!(left.unwrap_err().kind(), Kind::NotFound, "{from}");
        }
    });
    assert_eq!(fs.stats.problems(), Vec::<String>::new());
}

/// A store that waits after each change of a document until the test has examined the mount.
struct Waiting {
    below: MemoryStore,
    /// The barrier of store and test: reached when the document is stored, and again when the test
    /// has examined the mount.
    looking: Barrier,
}

impl Readable for Waiting {
    delegate_store!(below: read stat list location capabilities);
}

impl Store for Waiting {
    delegate_store!(below: change sync check_writable);

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let stored = self.below.put_pieces(key, pieces, replaces);
        if key.name() == ".zarray" {
            self.looking.wait();
            self.looking.wait();
        }
        stored
    }
}

/// With `--resize`, `stat` shows a new size only once its bytes exist, not while only the shape has
/// changed.
#[test]
fn no_size_is_shown_before_its_bytes_exist() {
    let store = Arc::new(Waiting {
        below: MemoryStore::default(),
        looking: Barrier::new(2),
    });
    store.below.insert("a/.zarray", document(8));
    let fs = file_system_over(store.clone(), true);
    let inode = fs
        .lookup(fs.lookup(ROOT_INODE, "a").unwrap().inode, FLAT)
        .unwrap()
        .inode;
    let handle = open(&fs, "a").unwrap();
    let fs = &fs;
    let store = &store;
    let size = || fs.attributes(inode).unwrap().size;
    std::thread::scope(|scope| {
        for (before, added) in [(8, 16), (24, 3), (27, 40)] {
            let writer =
                scope.spawn(move || fs.change().write(handle, before, &vec![1; added]).unwrap());
            store.looking.wait();
            let shown = size();
            store.looking.wait();
            assert_eq!(writer.join().unwrap(), added);
            assert_eq!((shown, size()), (before, before + added as u64));
        }
    });
}

/// A file that is created where one was just removed has a number for which the kernel may ask,
/// whenever it forgets the removed one.
#[test]
fn a_created_file_has_a_number_that_the_tree_knows() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let rules = IngestRules {
        formats: vec![FileFormat::Npy],
        layout: IngestLayout {
            format: DocumentFormat::V2,
            chunks: None,
            shards: None,
            compressor: None,
            drops_empty: false,
        },
    };
    let fs = file_system_with(store, false, |tree| tree.with_ingest(Some(rules)).unwrap());
    let done = AtomicBool::new(false);
    let removed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !done.load(Ordering::Relaxed) {
                let inode = removed.swap(0, Ordering::Relaxed);
                if inode != 0 {
                    turn += 1;
                    (0..turn % 64 * 16).for_each(|_| std::hint::spin_loop());
                    fs.forget(inode, 1);
                }
            }
        });
        let _until = Until(&done);
        for _ in 0..2000 {
            let created = fs.change().create(ROOT_INODE, "x.npy", true, false, 0o600);
            let (attributes, opened) = created.unwrap();
            let inode = attributes.inode;
            assert_eq!(fs.attributes(inode).unwrap().inode, inode);
            fs.change().unlink(ROOT_INODE, "x.npy").unwrap();
            fs.change().release(opened.handle);
            removed.store(inode, Ordering::Relaxed);
        }
    });
}
