//! Fails each call to the store in turn, while each request of the kernel is answered: each failure
//! leaves a problem in the statistics, also if the request goes on without that call.

use super::*;
use crate::array::hierarchy::Hierarchy;
use crate::cache::Cache;
use crate::fs::tree::{Audience, Headers, ROOT_INODE, Tree};
use crate::fs::{Options, Seek};
use std::path::Path;
use std::sync::Arc;
use zarrfs_base::spill_file::SpillOptions;
use zarrfs_base::stats::Stats;
use zarrfs_export::{Format, GroupFormat};
use zarrfs_format::metadata::V1Order;
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault};
use zarrfs_store::{DirectoryStore, Key, MemoryStore, Store, StoreExt};

type Answer<T> = std::result::Result<T, Errno>;

/// What the store answers. Some of these are refusals if zarrfs itself makes them.
const ERRNOS: [i32; 4] = [libc::EIO, libc::EPERM, libc::EACCES, libc::EROFS];

/// The values of the store: `a` has no `dimension_separator`, `s` is sharded.
const VALUES: [(&str, &str); 7] = [
    (".zgroup", r#"{"zarr_format":2}"#),
    (
        "a/.zarray",
        r#"{"zarr_format":2,"shape":[4,4],"chunks":[2,4],"dtype":"|u1","fill_value":0,"order":"C","filters":null,
            "compressor":{"id":"zlib","level":1}}"#,
    ),
    ("a/.zattrs", r#"{"units":"K"}"#),
    (
        "s/zarr.json",
        r#"{"zarr_format":3,"node_type":"array","shape":[8],"data_type":"uint8","fill_value":0,
            "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[8]}},
            "chunk_key_encoding":{"name":"default"},
            "codecs":[{"name":"sharding_indexed","configuration":{"chunk_shape":[4],"codecs":[{"name":"bytes"}],
            "index_codecs":[{"name":"bytes","configuration":{"endian":"little"}}]}}]}"#,
    ),
    ("g/.zgroup", r#"{"zarr_format":2}"#),
    ("g/plain", "text"),
    ("g/other", "more text"),
];

/// A mount whose requests are answered without a kernel.
struct Session {
    fs: Fs,
    stats: Arc<Stats>,
}

impl Session {
    fn new(store: Arc<dyn Store>) -> Self {
        let stats = Arc::new(Stats::default());
        let cache = Arc::new(Cache::new(1 << 20, stats.clone()));
        let hierarchy = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
        let spill = SpillOptions {
            directory: std::env::temp_dir(),
            limit: 1 << 20,
        };
        let options = Options {
            read_only: false,
            resize: false,
            threads: 1,
            direct_io: false,
            spill,
        };
        let headers = Headers {
            formats: vec![Format::Npy],
            groups: vec![GroupFormat::Netcdf],
            ..Headers::default()
        };
        let tree = Tree::new(hierarchy, cache.clone()).with_headers(headers);
        let fs = Fs::new(tree, cache, stats.clone(), options).unwrap();
        Session { fs, stats }
    }

    /// Answers one request.
    fn ask<T>(&self, work: impl FnOnce(&Fs) -> Result<T>) -> Answer<T> {
        RequestInfo::of("request", INodeNo(ROOT_INODE)).run(&self.fs, || work(&self.fs))
    }

    fn inode(&self, path: &str) -> Answer<u64> {
        path.split('/').try_fold(ROOT_INODE, |at, name| {
            self.ask(|fs| fs.lookup(at, name)).map(|found| found.inode)
        })
    }

    fn open(&self, path: &str, for_writing: bool) -> Answer<u64> {
        let inode = self.inode(path)?;
        self.ask(|fs| fs.open(inode, for_writing, false))
            .map(|opened| opened.handle)
    }

    fn read(&self, path: &str) -> Answer<()> {
        let handle = self.open(path, false)?;
        let read = self.ask(|fs| fs.read(handle, 0, 1 << 20, &mut Vec::new()));
        self.fs.change().release(handle);
        read
    }

    fn write(&self, path: &str, offset: u64, bytes: &[u8], syncs: bool) -> Answer<()> {
        let handle = self.open(path, true)?;
        let written = self.ask(|fs| fs.change().write(handle, offset, bytes));
        self.store(written.map(|_| ()), handle, syncs)
    }

    fn create(&self, directory: &str, name: &str, bytes: &[u8]) -> Answer<()> {
        let parent = self.inode(directory)?;
        let (_, opened) = self.ask(|fs| fs.change().create(parent, name, true, false, 0o644))?;
        let written = self.ask(|fs| fs.change().write(opened.handle, 0, bytes));
        self.store(written.map(|_| ()), opened.handle, false)
    }

    fn store(&self, written: Answer<()>, handle: u64, syncs: bool) -> Answer<()> {
        let stored = self.ask(|fs| {
            if syncs {
                fs.change().fsync(handle)
            } else {
                fs.change().flush(handle)
            }
        });
        self.fs.change().release(handle);
        written.and(stored)
    }

    fn list(&self, path: &str, with_attributes: bool) -> Answer<()> {
        let inode = self.inode(path)?;
        let handle = self.ask(|fs| fs.open_directory(inode))?;
        let listed = self.ask(|fs| {
            if !with_attributes {
                return fs.read_directory(handle, 0, |_, _| false);
            }
            let mut from = 0;
            loop {
                let before = from;
                fs.read_directory_with_attributes(handle, from, |_, next| {
                    from = next;
                    false
                })?;
                if from == before {
                    return Ok(());
                }
            }
        });
        self.fs.release_directory(handle);
        listed
    }

    fn in_directory<T>(
        &self,
        path: &str,
        work: impl FnOnce(&crate::fs::Change, u64) -> Result<T>,
    ) -> Answer<()> {
        let inode = self.inode(path)?;
        self.ask(|fs| work(&fs.change(), inode)).map(|_| ())
    }
}

type Request = (&'static str, fn(&Session) -> Answer<()>);

const REQUESTS: [Request; 33] = [
    ("stat of an array", |s| s.inode("a").map(|_| ())),
    ("stat of a file", |s| {
        s.in_directory("a/data.raw", |fs, inode| fs.attributes(inode))
    }),
    ("stat of a chunk", |s| s.inode("a/0.0").map(|_| ())),
    ("list the root", |s| s.list("g", false)),
    ("list an array", |s| s.list("a", false)),
    ("list attributes", |s| s.list("a", true)),
    ("list sharded", |s| s.list("s", true)),
    ("read data.raw", |s| s.read("a/data.raw")),
    ("read a chunk", |s| s.read("a/0.0")),
    ("read a document", |s| s.read("a/.zarray")),
    ("read attributes", |s| s.read("a/.zattrs")),
    ("read a header", |s| s.read("a/data.npy")),
    ("read a container", |s| s.read("dataset.nc")),
    ("read a value", |s| s.read("g/plain")),
    ("read in shards", |s| s.read("s/data.raw")),
    ("xattrs", |s| {
        s.in_directory("a", |fs, inode| fs.xattrs(inode, Audience::Owner, None))
    }),
    ("set an xattr", |s| {
        s.in_directory("a", |fs, inode| {
            fs.set_xattr(inode, "user.zarr.attrs.x", Some(b"1"), false, false)
        })
    }),
    ("write data.raw", |s| {
        s.write("a/data.raw", 3, &[7; 9], false)
    }),
    ("fsync data.raw", |s| {
        s.write("a/data.raw", 0, &[7; 8], true)
    }),
    ("write a chunk", |s| s.write("a/0.0", 2, &[7; 3], false)),
    ("write in shards", |s| {
        s.write("s/data.raw", 1, &[7; 2], true)
    }),
    ("write attributes", |s| {
        s.write("a/.zattrs", 0, br#"{"units":"m"}"#, false)
    }),
    ("write a value", |s| s.write("g/plain", 1, b"E", true)),
    ("create a value", |s| s.create("g", "new", b"text")),
    ("create a chunk", |s| {
        s.in_directory("a", |fs, inode| fs.unlink(inode, "1.0"))?;
        s.create("a", "1.0", &[7; 8])
    }),
    ("holes", |s| {
        let handle = s.open("a/data.raw", false)?;
        s.ask(|fs| fs.seek(handle, 0, Seek::Hole)).map(|_| ())
    }),
    ("truncate", |s| {
        let inode = s.inode("g/plain")?;
        s.ask(|fs| fs.change().set_size(inode, 1, None)).map(|_| ())
    }),
    ("punch a hole", |s| {
        let handle = s.open("a/data.raw", true)?;
        let punched = s.ask(|fs| fs.change().punch(handle, 0, 8));
        s.store(punched, handle, false)
    }),
    ("remove a value", |s| {
        s.in_directory("g", |fs, inode| fs.unlink(inode, "plain"))
    }),
    ("remove a chunk", |s| {
        s.in_directory("a", |fs, inode| fs.unlink(inode, "0.0"))
    }),
    ("rename", |s| {
        s.in_directory("g", |fs, inode| {
            fs.rename((inode, "plain"), (inode, "other"), false)
        })
    }),
    ("rename a directory", |s| {
        s.in_directory("g", |fs, inode| {
            fs.rename((ROOT_INODE, "a"), (inode, "b"), false)
        })
    }),
    ("directories", |s| {
        s.in_directory("g", |fs, inode| {
            fs.make_directory(inode, "new", 0o755)?;
            fs.remove_directory(inode, "new")
        })
    }),
];

/// Returns the values of a store with [`VALUES`] and their chunks.
fn values() -> Vec<(Key, Vec<u8>)> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    for (key, value) in VALUES {
        let key = Key::normalize(key).unwrap();
        store.put(&key, value.as_bytes()).unwrap();
    }
    let session = Session::new(store.clone());
    session.write("a/data.raw", 0, &[1; 16], false).unwrap();
    session.write("s/data.raw", 0, &[1; 8], true).unwrap();
    let chunks = ["a/0.0", "a/1.0", "s/c/0"];
    let keys = VALUES.iter().map(|(key, _)| *key).chain(chunks);
    keys.map(|key| {
        let key = Key::normalize(key).unwrap();
        let mut value = Vec::new();
        store.get(&key, 1 << 20, &mut value).unwrap().unwrap();
        (key, value)
    })
    .collect()
}

/// Returns a store of these values, of one of two kinds.
fn stored(values: &[(Key, Vec<u8>)], directory: &Path, is_remote: bool) -> Arc<FaultyStore> {
    if is_remote {
        let memory = MemoryStore::default();
        for (key, value) in values {
            memory.insert(key.as_str(), value.clone());
        }
        return Arc::new(FaultyStore::remote(Arc::new(memory)));
    }
    for (key, value) in values {
        let path = directory.join(key.as_str());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, value).unwrap();
    }
    let store = DirectoryStore::open(directory).unwrap();
    Arc::new(FaultyStore::new(Arc::new(store)))
}

#[test]
fn every_errno_of_the_store_is_a_problem() {
    let values = values();
    let mut failed = 0;
    for is_remote in [false, true] {
        for (name, request) in REQUESTS {
            for operation in Operation::ALL {
                for after in 0.. {
                    let errno = ERRNOS[after as usize % ERRNOS.len()];
                    let directory = tempfile::tempdir().unwrap();
                    let store = stored(&values, directory.path(), is_remote);
                    let session = Session::new(store.clone());
                    let before = store.calls(operation);
                    store.plan(PlannedFault {
                        after,
                        ..PlannedFault::next(operation, errno)
                    });
                    let answer = request(&session);
                    let calls = store.calls(operation) - before;
                    let problems = session.stats.problems();
                    let what = format!(
                        "{name}, remote {is_remote}, {operation:?} {after}: errno {errno}: {answer:?}, {problems:?}"
                    );
                    if calls <= after {
                        assert!(answer.is_ok() && problems.is_empty(), "{what}");
                        break;
                    }
                    assert!(!problems.is_empty(), "{what}");
                    failed += usize::from(answer.is_err());
                }
            }
        }
    }
    assert!(failed > 300, "{failed}");
}
