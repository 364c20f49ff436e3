//! "A panic fails one request": the program gets `EIO` and the mount continues. The mounted store
//! panics for some keys.

use std::sync::Arc;
use zarrfs::array::hierarchy::Hierarchy;
use zarrfs::cache::{Cache, SpillOptions};
use zarrfs::fs::tree::Tree;
use zarrfs::fs::{Fs, Options};
use zarrfs::fuse::{MountRequest, Mountpoint, OutliveOptions, ServeOptions, serve};
use zarrfs_base::error::Result;
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::V1Order;
use zarrfs_store::{ByteRange, Key, Listing, MemoryStore, Readable, Stat, Store};

/// A store that panics when a key contains "panic".
struct Panicking(MemoryStore);

impl Readable for Panicking {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        assert!(!key.as_str().contains("panic"), "told to panic at {key}");
        self.0.read(key, range, value)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        assert!(
            !key.as_str().contains("panic-stat"),
            "told to panic at {key}"
        );
        self.0.stat(key)
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.0.list(prefix)
    }

    fn location(&self) -> String {
        "a store, with a comma".to_string()
    }
}

impl Store for Panicking {}

/// A mountpoint that is unmounted on drop, even if the test fails.
struct Unmount(Mountpoint);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = self.0.unmount();
    }
}

#[test]
fn a_panic_is_eio_and_the_mount_continues() {
    let store = MemoryStore::default();
    let doc = r#"{"zarr_format":2,"shape":[8],"chunks":[4],"dtype":"|u1","compressor":null,"fill_value":0,"order":"C","filters":null}"#;
    store.insert(".zgroup", "{\"zarr_format\":2}");
    store.insert("a/.zarray", doc);
    store.insert("a/0", [1, 2, 3, 4]);
    store.insert("a/panic", "x");
    store.insert("a/panic-stat", "x");
    let stats = Arc::new(Stats::default());
    let cache = Arc::new(Cache::new(1 << 20, stats.clone()));
    let hierarchy = Hierarchy::new(Arc::new(Panicking(store)), V1Order::Zarr1, stats.clone());
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 0,
    };
    let options = Options {
        read_only: false,
        resize: false,
        threads: 2,
        direct_io: false,
        spill,
    };
    let fs = Arc::new(
        Fs::new(
            Tree::new(hierarchy, cache.clone()),
            cache,
            stats.clone(),
            options,
        )
        .unwrap(),
    );
    let directory = tempfile::tempdir().unwrap();
    let request = MountRequest {
        source: "a store, with a comma",
        path: directory.path(),
        directory: None,
        allow_other: false,
        read_only: false,
        sync: false,
        noexec: false,
        replace_stale: false,
        is_in_own_namespace: false,
    };
    let mut mountpoint = Mountpoint::mount(&request).expect("FUSE");
    let options = ServeOptions {
        uid: 0,
        gid: 0,
        umask: 0,
        read_only: false,
        threads: 2,
    };
    let session = serve(
        fs,
        &mut mountpoint,
        options,
        OutliveOptions::default(),
        |_| Ok(()),
    )
    .unwrap();
    let mounted = Unmount(mountpoint);
    for _ in 0..20 {
        for name in ["panic", "panic-stat"] {
            let error = std::fs::read(directory.path().join("a").join(name)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
        assert_eq!(
            std::fs::read(directory.path().join("a/data.raw")).unwrap(),
            [1, 2, 3, 4, 0, 0, 0, 0]
        );
    }
    assert!(
        stats
            .problems()
            .iter()
            .any(|p| p.contains("told to panic at /a/panic")),
        "{:?}",
        stats.problems()
    );
    drop(mounted);
    session.join().unwrap().unwrap();
}
