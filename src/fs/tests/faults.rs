//! Renames while each call to the store fails in turn: no file is lost, and none exists in part.

use crate::fs::tests::model::mount;
use crate::fs::*;
use std::path::Path;
use zarrfs_store::DirectoryStore;
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault};

const OLD: &[u8] = b"{\"v\": 1}";
const NEW: &[u8] = b"{\"v\": 2}";

/// Stores an array of two chunks that are as long as the documents, its attributes, and two plain
/// keys.
fn prepare(root: &Path) {
    let array = r#"{"zarr_format":2,"shape":[16],"chunks":[8],"dtype":"|u1","fill_value":0,"order":"C","filters":null,
        "compressor":{"id":"zlib","level":1}}"#;
    std::fs::create_dir(root.join("a")).unwrap();
    std::fs::write(root.join("a/.zarray"), array).unwrap();
    let fs = mount(&faulty(root), 1 << 20);
    for (name, bytes) in [
        ("0", OLD),
        (".zattrs", OLD),
        ("plain", OLD),
        ("1", NEW),
        ("other", NEW),
    ] {
        let directory = fs.lookup(1, "a").unwrap().inode;
        let (_, opened) = fs
            .change()
            .create(directory, name, true, false, 0o644)
            .unwrap();
        fs.change().write(opened.handle, 0, bytes).unwrap();
        fs.change().flush(opened.handle).unwrap();
        fs.change().release(opened.handle);
    }
}

fn faulty(root: &Path) -> Arc<FaultyStore> {
    Arc::new(FaultyStore::new(Arc::new(
        DirectoryStore::open(root).unwrap(),
    )))
}

fn read(fs: &Fs, name: &str) -> Option<Vec<u8>> {
    let directory = fs.lookup(1, "a").unwrap().inode;
    let inode = fs.lookup(directory, name).ok()?.inode;
    let handle = fs.open(inode, false, false).unwrap().handle;
    let mut bytes = Vec::new();
    fs.read(handle, 0, 100, &mut bytes).unwrap();
    Some(bytes)
}

/// A sync stores what another program has written, which makes pages stale. No request has asked
/// for the list, so the next one gets it, with the guards that it must end.
#[test]
fn a_sync_leaves_its_stale_pages_to_the_next_request() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let fs = mount(&faulty(folder.path()), 1 << 20);
    fs.take_unsent_stale_pages();
    let array = fs.lookup(1, "a").unwrap().inode;
    let raw = fs.lookup(array, "data.raw").unwrap().inode;
    let attributes = fs.lookup(array, ".zattrs").unwrap().inode;
    fs.open(raw, false, false).unwrap();
    let change = fs.change();
    let draft = fs.open(attributes, true, false).unwrap().handle;
    change.write(draft, 0, NEW).unwrap();
    assert!(change.take_stale_pages().is_empty());
    fs.sync_all().unwrap();
    assert!(change.take_stale_pages().is_empty());
    let unsent = fs.take_unsent_stale_pages();
    assert!(unsent.iter().any(|stale| stale.inode == raw), "{unsent:?}");
    assert!(fs.take_unsent_stale_pages().is_empty());
    assert_eq!(read(&fs, ".zattrs").unwrap(), NEW);

    // a write of a chunk through another file guards its bytes against pages of data.raw
    let chunk = fs.lookup(array, "0").unwrap().inode;
    let chunk = fs.open(chunk, true, false).unwrap().handle;
    let page = fs.open(raw, true, false).unwrap().handle;
    fs.change().write(chunk, 0, &[7; 8]).unwrap();
    let mut unsent = fs.take_unsent_stale_pages();
    unsent.retain(|stale| stale.inode == raw && !stale.guards.is_empty());
    assert_eq!(unsent.len(), 1);
    for expected in [7, 1] {
        // a page of a map
        fs.change()
            .write_with(page, 0, &[1; 8], Wait::Allowed, true)
            .unwrap();
        assert_eq!(read(&fs, "0").unwrap(), [expected; 8]);
        fs.arrays.pages_dropped(&unsent[0].guards);
    }
}

#[test]
fn a_rename_that_fails_loses_nothing() {
    let mut failed = 0;
    let mut done = 0;
    let pairs = [
        ("other", "0"),
        ("other", ".zattrs"),
        ("other", "plain"),
        ("1", "0"),
        ("1", "plain"),
        ("1", ".zattrs"),
    ];
    for (from, to) in pairs {
        for (operation, applied) in Operation::ALL.iter().flat_map(|&o| [(o, false), (o, true)]) {
            for after in 0.. {
                let directory = tempfile::tempdir().unwrap();
                prepare(directory.path());
                let store = faulty(directory.path());
                let fs = mount(&store, 1 << 20);
                let inode = fs.lookup(1, "a").unwrap().inode;
                let before = store.calls(operation);
                store.plan(PlannedFault {
                    operation,
                    after,
                    times: 1,
                    errno: libc::EIO,
                    applied,
                });
                let renamed = fs.change().rename((inode, from), (inode, to), false);
                let calls = store.calls(operation) - before;
                store.heal();
                let what =
                    format!("{from} to {to}, {operation:?} {after} applied {applied}: {renamed:?}");
                // check this mount and another one
                for fs in [&fs, &mount(&store, 1 << 20)] {
                    let source = read(fs, from);
                    let target = read(fs, to);
                    let moved = target.as_deref() == Some(NEW);
                    assert!(
                        moved || target.as_deref() == Some(OLD),
                        "{what}: {target:?}"
                    );
                    assert!(moved || source.as_deref() == Some(NEW), "{what}: lost");
                    assert!(
                        renamed.is_err() || moved && source.is_none(),
                        "{what}: not done"
                    );
                }
                failed += usize::from(renamed.is_err());
                done += usize::from(renamed.is_ok());
                if calls <= after {
                    break;
                }
            }
        }
    }
    assert!(failed > 100 && done > 50, "{failed} {done}");
}
