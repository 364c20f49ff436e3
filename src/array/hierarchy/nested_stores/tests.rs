use super::*;
use crate::array::hierarchy::{Hierarchy, MetadataFile, StoredNode};
use std::path::Path;
use zarrfs_format::metadata::{GROUP_DOCUMENT, V1Order, ZATTRS, ZGROUP, ZMETADATA};
use zarrfs_store::DirectoryStore;
use zarrfs_store::testing::archive_of;

const ARRAY: &str = r#"{"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1", "order": "C",
    "compressor": null, "filters": null, "fill_value": 0}"#;

fn key(text: &str) -> Key {
    Key::normalize(text).unwrap()
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Returns an archive with one array, whose chunk is `chunk`.
fn store_with(prefix: &str, chunk: &[u8]) -> Vec<u8> {
    let names = [".zgroup", "a/.zarray", "a/0"].map(|name| format!("{prefix}{name}"));
    let values = [GROUP_DOCUMENT.as_bytes(), ARRAY.as_bytes(), chunk];
    archive_of(
        &names
            .iter()
            .map(String::as_str)
            .zip(values)
            .collect::<Vec<_>>(),
    )
}

fn opened(folder: &Path) -> NestedStores {
    NestedStores::new(
        Arc::new(DirectoryStore::open(folder).unwrap().without_fsync()),
        Arc::default(),
        Box::new(|_, _| Ok(None)),
    )
}

fn get(store: &NestedStores, name: &str) -> Result<Option<Vec<u8>>> {
    let mut value = Vec::new();
    Ok(store.get(&key(name), 1 << 20, &mut value)?.map(|_| value))
}

/// The names in a prefix, directories with a slash.
fn names(store: &dyn Store, prefix: &str) -> Vec<String> {
    let slash = |entry: &Entry| {
        if entry.kind == EntryKind::Prefix {
            "/"
        } else {
            ""
        }
    };
    let entries = store
        .list(&key(prefix))
        .unwrap()
        .map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .map(|entry| format!("{}{}", entry.name, slash(&entry)))
        .collect();
    names.sort();
    names
}

#[test]
fn archives_are_directories_and_are_opened_when_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "x.zarr.zip", &store_with("", b"xx"));
    write(
        folder.path(),
        "sub/y.zarr.zip",
        &store_with("y.zarr/", b"yy"),
    );
    write(folder.path(), "broken.zarr.zip", b"no archive");
    write(
        folder.path(),
        "d.zarr/inner.zarr.zip",
        &store_with("", b"dd"),
    );
    write(folder.path(), "plain.zip", b"plain");
    write(folder.path(), "dir.zarr.zip/.zgroup", b"{}");
    let store = opened(folder.path());
    let shown = [
        "broken.zarr.zip/",
        "d.zarr/",
        "dir.zarr.zip/",
        "plain.zip",
        "sub/",
        "x.zarr.zip/",
    ];
    assert_eq!(names(&store, ""), shown);
    let mut kinds = Vec::new();
    let all =
        shown
            .map(key)
            .into_iter()
            .chain([key("x.zarr.zip/a"), key("none.zarr.zip"), key("sub")]);
    store.stat_many(&mut all.into_iter(), &mut |stat| {
        kinds.push(stat.unwrap().map(|stat| (stat.kind, stat.size)));
        true
    });
    let directory = Some(EntryKind::Prefix);
    let expected = [
        directory,
        directory,
        directory,
        Some(EntryKind::Value),
        directory,
        directory,
        directory,
        None,
    ];
    assert_eq!(
        kinds
            .iter()
            .map(|kind| kind.map(|(kind, _)| kind))
            .collect::<Vec<_>>()[..8],
        expected
    );
    assert_eq!(kinds.len(), 9);
    assert_eq!(names(&store, "d.zarr"), ["inner.zarr.zip"]);
    assert_eq!(names(&store, "x.zarr.zip/a"), [".zarray", "0"]);
    assert_eq!(names(&store, "sub/y.zarr.zip"), [".zgroup", "a/"]);
    assert_eq!(names(&store, "dir.zarr.zip"), [".zgroup"]);
    assert_eq!(get(&store, "x.zarr.zip/a/0").unwrap().unwrap(), b"xx");
    assert_eq!(get(&store, "sub/y.zarr.zip/a/0").unwrap().unwrap(), b"yy");
    assert_eq!(get(&store, "x.zarr.zip/a/1").unwrap(), None);
    assert_eq!(get(&store, "none.zarr.zip/a").unwrap(), None);
    let broken = get(&store, "broken.zarr.zip/.zgroup").unwrap_err();
    assert_eq!(
        (
            broken.kind(),
            broken.message().matches("broken.zarr.zip").count()
        ),
        (Kind::Damaged, 1),
        "{broken}"
    );
    assert_eq!(
        store.stat(&key("broken.zarr.zip")).unwrap().unwrap().kind,
        EntryKind::Prefix
    );
}

#[test]
fn a_listing_and_stats_open_no_archive() {
    let folder = tempfile::tempdir().unwrap();
    (0..50).for_each(|i| {
        write(
            folder.path(),
            &format!("{i}.zarr.zip"),
            &store_with("", b"xx"),
        )
    });
    let store = opened(folder.path());
    assert_eq!(names(&store, "").len(), 50);
    store.stat_many(
        &mut (0..50).map(|i| key(&format!("{i}.zarr.zip"))),
        &mut |stat| stat.unwrap().is_some(),
    );
    assert_eq!(lock(&store.opened.0).len(), 0);
    store.forget(&Key::root());
    get(&store, "7.zarr.zip/a/0").unwrap().unwrap();
    assert_eq!(lock(&store.opened.0).len(), 1);
}

#[test]
fn few_archives_are_open_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let most = OPEN_STORES.get();
    (0..most + 10).for_each(|i| {
        write(
            folder.path(),
            &format!("{i}.zarr.zip"),
            &store_with("", &[i as u8, 0]),
        )
    });
    let store = opened(folder.path());
    let version = |i: usize| {
        store
            .stat(&key(&format!("{i}.zarr.zip/a/0")))
            .unwrap()
            .unwrap()
            .version
    };
    let first = version(0);
    for i in (0..most + 10).chain(0..most + 10) {
        assert_eq!(
            get(&store, &format!("{i}.zarr.zip/a/0")).unwrap().unwrap()[0],
            i as u8
        );
        assert!(lock(&store.opened.0).len() <= most);
    }
    // an archive that was closed and opened again is the same
    assert_eq!(version(0), first);
    store.opened.reclaim();
    assert_eq!(lock(&store.opened.0).len(), 0);
    assert_eq!(version(0), first);
}

#[test]
fn an_archive_may_be_replaced_removed_or_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let store = opened(folder.path());
    let replace = |bytes: &[u8]| {
        write(folder.path(), "new", bytes);
        std::fs::rename(folder.path().join("new"), folder.path().join("x.zarr.zip")).unwrap();
    };
    let version = || {
        store
            .stat(&key("x.zarr.zip/a/0"))
            .unwrap()
            .map(|stat| stat.version)
    };
    replace(b"broken");
    assert_eq!(
        get(&store, "x.zarr.zip/a/0").unwrap_err().kind(),
        Kind::Damaged
    );
    replace(&store_with("", b"11"));
    assert_eq!(get(&store, "x.zarr.zip/a/0").unwrap().unwrap(), b"11");
    let first = version();
    replace(&store_with("x.zarr/", b"22"));
    assert!(version().is_some() && version() != first);
    store.forget(&key("x.zarr.zip/a"));
    assert_eq!(get(&store, "x.zarr.zip/a/0").unwrap().unwrap(), b"22");
    std::fs::remove_file(folder.path().join("x.zarr.zip")).unwrap();
    assert_eq!(
        (version(), store.stat(&key("x.zarr.zip")).unwrap()),
        (None, None)
    );
    write(folder.path(), "x.zarr.zip/a/0", b"33");
    assert_eq!(get(&store, "x.zarr.zip/a/0").unwrap().unwrap(), b"33");
}

#[test]
fn archives_are_read_only_and_their_neighbors_are_not() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "x.zarr.zip", &store_with("", b"xx"));
    let store = opened(folder.path());
    let inside = key("x.zarr.zip/a/0");
    let errors = [
        store.put(&inside, b"").err(),
        store.put_if(&inside, b"", Replaces::Anything).err(),
        store.put_pieces(&inside, &[], Replaces::Anything).err(),
        store.delete(&inside).err(),
        store.make_prefix(&key("x.zarr.zip/b")).err(),
        store.make_prefix(&key("new.zarr.zip")).err(),
        store.remove_prefix(&key("x.zarr.zip")).err(),
        store.rename(&key("x.zarr.zip"), &key("y.zarr.zip")).err(),
        store.rename(&inside, &key("plain")).err(),
        store
            .writable_file(&key("x.zarr.zip/new"), true, false)
            .err(),
        store.writable_file(&key("new.zarr.zip"), true, false).err(),
        store.check_writable(&key("x.zarr.zip/a")).err(),
    ];
    for (i, error) in errors.into_iter().enumerate() {
        assert_eq!(error.map(|e| e.kind()), Some(Kind::ReadOnly), "{i}");
    }
    store.put(&key("y.zarr/a/0"), b"yy").unwrap();
    get(&store, "x.zarr.zip/a/0").unwrap().unwrap();
    store.make_prefix(&key("sub")).unwrap();
    std::fs::rename(
        folder.path().join("x.zarr.zip"),
        folder.path().join("sub/x.zarr.zip"),
    )
    .unwrap();
    assert_eq!(get(&store, "sub/x.zarr.zip/a/0").unwrap().unwrap(), b"xx");
    store.rename(&key("sub"), &key("other")).unwrap();
    assert_eq!(get(&store, "sub/x.zarr.zip/a/0").unwrap(), None);
    assert_eq!(get(&store, "other/x.zarr.zip/a/0").unwrap().unwrap(), b"xx");
}

fn hierarchy(folder: &Path) -> Hierarchy {
    Hierarchy::new(Arc::new(opened(folder)), V1Order::Zarr1, Arc::default()).holding_stores()
}

#[test]
fn no_documents_are_made_up_outside_of_stores() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "x.zarr/g/a/.zarray", ARRAY.as_bytes());
    let hierarchy = hierarchy(folder.path());
    let group = |name: &str| hierarchy.shown_group(&key(name)).unwrap().is_some();
    assert!(!group("") && !group("x.zarr") && group("x.zarr/g"));
    for name in ["plain", "plain/new.zarr", "plain/new.zarr/g", "x.zarr/h"] {
        hierarchy.create_group(&key(name)).unwrap();
    }
    let stored = |name: &str| folder.path().join(name).join(ZGROUP).exists();
    assert_eq!(
        ["plain", "plain/new.zarr", "plain/new.zarr/g", "x.zarr/h"].map(stored),
        [false, false, true, true]
    );
    let v3 = br#"{"zarr_format": 3, "node_type": "group"}"#;
    hierarchy
        .put_document(&key("plain/new.zarr"), MetadataFile::Zarr, v3)
        .unwrap();
    hierarchy.create_group(&key("plain/new.zarr/k")).unwrap();
    assert!(folder.path().join("plain/new.zarr/k/zarr.json").exists());
    assert!(
        !hierarchy.is_in_store(&key("plain")).unwrap()
            && hierarchy.is_in_store(&key("x.zarr/none")).unwrap()
    );
    write(folder.path(), "plain/.zgroup", GROUP_DOCUMENT.as_bytes());
    assert!(group("plain") && hierarchy.is_in_store(&key("plain")).unwrap());
    hierarchy.create_group(&key("plain/h")).unwrap();
    assert!(stored("plain/h"));
}

#[test]
fn what_belongs_to_a_store_ends_at_its_root() {
    let folder = tempfile::tempdir().unwrap();
    let consolidated = r#"{"metadata": {}, "zarr_consolidated_format": 1}"#;
    for store in ["", "sub/", "sub/x.zarr/"] {
        write(
            folder.path(),
            &format!("{store}{ZMETADATA}"),
            consolidated.as_bytes(),
        );
    }
    write(
        folder.path(),
        "sub/x.zarr/.zgroup",
        GROUP_DOCUMENT.as_bytes(),
    );
    write(folder.path(), "sub/old.zarr/meta", b"{}");
    write(folder.path(), "sub/old.zarr/attrs", b"{}");
    let hierarchy = hierarchy(folder.path());
    hierarchy.create_group(&key("sub/x.zarr/g")).unwrap();
    hierarchy
        .put_document(&key("sub/x.zarr"), MetadataFile::Attributes, br#"{"a": 1}"#)
        .unwrap();
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let own = text("sub/x.zarr/.zmetadata");
    assert!(
        own.contains(r#""g/.zgroup""#) && own.contains(&format!("\"{ZATTRS}\"")),
        "{own}"
    );
    assert_eq!(
        (text(".zmetadata"), text("sub/.zmetadata")),
        (consolidated.to_string(), consolidated.to_string())
    );
    assert_eq!(
        hierarchy
            .upwards(&key("sub/x.zarr/g/a"))
            .map(|key| key.to_string())
            .collect::<Vec<_>>(),
        ["/sub/x.zarr/g/a", "/sub/x.zarr/g", "/sub/x.zarr"]
    );
    // the documents of v1 count at the root of a store alone; these are damaged
    assert!(matches!(
        hierarchy.find(&key("sub/old.zarr")).unwrap(),
        Some(StoredNode::Damaged(_))
    ));
}
