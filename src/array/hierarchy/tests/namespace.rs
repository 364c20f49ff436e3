//! Groups, arrays and plain keys that are created, removed and renamed.

use super::*;
use crate::array::WriteBack;

const GROUP: &str = "{\"zarr_format\": 2}";

fn errno(result: Result<()>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn groups_are_created_like_directories() {
    let (store, h) = hierarchy(&[(".zgroup", GROUP), ("x/.zarray", ARRAY), ("file", "")]);
    let make = |path: &str| h.create_group(&key(path));
    make("g").unwrap();
    make("g/sub").unwrap();
    assert_eq!(text(&store, "g/sub/.zgroup").unwrap(), GROUP_DOCUMENT);
    assert_eq!(errno(make("g")), libc::EEXIST);
    assert_eq!(errno(make("")), libc::EEXIST);
    assert_eq!(errno(make("x")), libc::EEXIST);
    assert_eq!(errno(make("none/g")), libc::ENOENT);
    assert_eq!(errno(make("file/g")), libc::ENOTDIR);
    assert_eq!(errno(make("x/g")), libc::EPERM);
    assert_eq!(errno(make("g/.zarray")), libc::EINVAL);
    assert_eq!(errno(make("g/.zarrfs-1")), libc::EINVAL);
    make(".git").unwrap();
    make(".git/objects").unwrap();
    assert_eq!(h.list(&key(".git/objects")).unwrap().count(), 0);
    assert!(h.shown_group(&key(".git/objects")).unwrap().is_none());
    let all = [
        ".git/",
        ".git/objects/",
        ".zgroup",
        "file",
        "g/",
        "g/.zgroup",
        "g/sub/",
        "g/sub/.zgroup",
        "x/",
        "x/.zarray",
    ];
    assert_eq!(everything(&store), all);
}

#[test]
fn a_directory_shows_no_document_until_one_is_written() {
    const GROUP_V3: &str = r#"{"zarr_format":3,"node_type":"group"}"#;
    for (root, view) in [
        (".zgroup", ShownFormat::Stored),
        ("zarr.json", ShownFormat::Stored),
        ("zarr.json", ShownFormat::V2),
    ] {
        let text = if root == "zarr.json" { GROUP_V3 } else { GROUP };
        let (store, h) = hierarchy(&[(root, text), ("found/x/1", "")]);
        let h = h.with_view(view);
        let shown = |path: &str| {
            h.shown_group(&key(path))
                .unwrap()
                .or(h.shown_zarr_json(&key(path)).unwrap())
                .is_some()
        };
        for path in ["g", "g/sub", "g/sub/b"] {
            h.make_directory(&key(path)).unwrap();
        }
        assert_eq!(
            everything(&store)
                .iter()
                .filter(|name| name.starts_with('g'))
                .count(),
            3
        );
        assert_eq!(errno(h.make_directory(&key("g"))), libc::EEXIST);
        assert!(!shown("g") && !shown("g/sub") && shown("found/x"));
        h.rename(&key("g/sub"), &key("moved")).unwrap();
        assert!(!shown("moved") && !shown("moved/b"));
        let (file, text) = match view {
            ShownFormat::Stored if root == "zarr.json" => (MetadataFile::Zarr, GROUP_V3),
            _ => (MetadataFile::Group, GROUP),
        };
        h.put_document(&key("moved"), file, text.as_bytes())
            .unwrap();
        assert!(shown("moved") && !shown("moved/b"));
        // another program makes it a group
        store.insert(
            &format!("g/{root}"),
            if root == "zarr.json" { GROUP_V3 } else { GROUP },
        );
        assert!(shown("g"));
        h.remove_document(&key("moved"), file).unwrap();
        assert!(!shown("moved"));
        // what is there when the next mount begins was not made by that mount
        h.remove_node(&key("moved/b")).unwrap();
        store.insert("moved/b/notes", "");
        assert!(shown("moved/b"));
    }
}

/// Attributes need a document in a store of v3, and the order of `.zattrs` and `.zgroup` does not
/// matter.
#[test]
fn a_directory_takes_documents_of_either_format_in_any_order() {
    for order in [
        [MetadataFile::Attributes, MetadataFile::Group],
        [MetadataFile::Group, MetadataFile::Attributes],
    ] {
        let (store, h) = hierarchy(&[("zarr.json", r#"{"zarr_format":3,"node_type":"group"}"#)]);
        h.make_directory(&key("two")).unwrap();
        for file in order {
            let text = if file == MetadataFile::Group {
                GROUP
            } else {
                r#"{"a": 1}"#
            };
            h.put_document(&key("two"), file, text.as_bytes()).unwrap();
        }
        assert_eq!(
            everything(&store),
            ["two/", "two/.zattrs", "two/.zgroup", "zarr.json"]
        );
        assert!(
            h.shown_group(&key("two")).unwrap().is_some()
                && h.shown_zarr_json(&key("two")).unwrap().is_none()
        );
        h.make_directory(&key("three")).unwrap();
        h.set_attribute(&key("three"), "a", Some(b"1")).unwrap();
        assert!(
            h.shown_zarr_json(&key("three")).unwrap().is_some()
                && text(&store, "three/zarr.json").is_some()
        );
    }
}

#[test]
fn only_empty_nodes_are_removed() {
    let (store, h) = hierarchy(&[
        ("g/.zgroup", GROUP),
        ("g/.zattrs", "{}"),
        ("g/sub/.zgroup", GROUP),
        ("kept/notes.txt", ""),
        ("x/.zarray", ARRAY),
        ("x/1", "chunk"),
        ("noted/.zarray", ARRAY),
        ("noted/notes.txt", ""),
        ("holds/.zarray", ARRAY),
        ("holds/inner/.zarray", ARRAY),
        ("holds/3/.zarray", ARRAY),
        ("holds/3/0", "chunk"),
        ("bad/.zarray", "{"),
        ("bad/0", "chunk"),
        ("file", ""),
    ]);
    let before = everything(&store);
    let remove = |path: &str| h.remove_node(&key(path));
    for path in ["g", "kept", "x", "noted", "holds", "bad"] {
        assert_eq!(errno(remove(path)), libc::ENOTEMPTY, "{path}");
    }
    assert_eq!(errno(remove("none")), libc::ENOENT);
    assert_eq!(errno(remove("file")), libc::ENOTDIR);
    assert_eq!(errno(remove("")), libc::EBUSY);
    assert_eq!(everything(&store), before);
    remove("g/sub").unwrap();
    remove("g").unwrap();
    store.remove("x/1");
    remove("x").unwrap();
    store.remove("bad/0");
    remove("bad").unwrap();
    assert!(
        !everything(&store)
            .iter()
            .any(|k| k.starts_with("g/") || k.starts_with("x/") || k.starts_with("bad/"))
    );
}

#[test]
fn hidden_keys_are_removed_with_their_directory() {
    let slash = ARRAY
        .replace("[4]", "[4,4]")
        .replace("[2]", "[2,2]")
        .replace("\"filters\"", "\"dimension_separator\":\"/\",\"filters\"");
    let (store, h) = hierarchy(&[
        ("x/.zarray", &slash),
        ("x/.zattrs", "{}"),
        ("x/.zarrfs-7-1", "unfinished"),
        ("x/0/.zgroup", GROUP),
        ("x/0/.zarrfs-7-2", "unfinished"),
        ("x/9/9", "of a former shape"),
        ("x/0.0.partial", "unfinished"),
        ("g/.zgroup", GROUP),
        ("g/.zarrfs-7-3", "unfinished"),
    ]);
    assert!(h.list(&key("g")).unwrap().next().is_none());
    h.remove_node(&key("x")).unwrap();
    h.remove_node(&key("g")).unwrap();
    assert!(everything(&store).is_empty(), "{:?}", everything(&store));
}

#[test]
fn arrays_are_removed_in_any_order() {
    let slash = ARRAY
        .replace("[4]", "[4,4]")
        .replace("[2]", "[2,2]")
        .replace("\"filters\"", "\"dimension_separator\":\"/\",\"filters\"");
    for first in [true, false] {
        let (store, h) = hierarchy(&[
            ("x/.zarray", &slash),
            ("x/.zattrs", "{}"),
            ("x/0/0", ""),
            ("x/1/1", ""),
        ]);
        let unlink = |file| h.remove_document(&key("x"), file).unwrap();
        let erase = || {
            for chunk in [0, 3] {
                assert!(
                    array(&h, "x")
                        .erase(
                            zarrfs_format::grid::ChunkId(chunk),
                            WriteBack::unconfirmed()
                        )
                        .unwrap()
                );
            }
        };
        if first {
            unlink(MetadataFile::Array);
        }
        erase();
        unlink(MetadataFile::Attributes);
        if !first {
            unlink(MetadataFile::Array);
        }
        assert!(
            matches!(h.find(&key("x")).unwrap(), Some(StoredNode::Array(_))),
            "data.raw may still have to be removed"
        );
        h.remove_node(&key("x")).unwrap();
        assert!(everything(&store).is_empty(), "{:?}", everything(&store));
    }
}

#[test]
fn groups_arrays_and_files_are_renamed() {
    let (store, h) = hierarchy(&[
        (".zgroup", GROUP),
        ("g/x/.zarray", ARRAY),
        ("g/x/0", "chunk"),
        ("empty/.zgroup", GROUP),
        ("full/f", ""),
        ("file", "1"),
        ("other", "2"),
        ("y/.zarray", ARRAY),
    ]);
    let rename = |from: &str, to: &str| h.rename(&key(from), &key(to));
    let held = array(&h, "g/x");
    for (from, to, expected) in [
        ("g", "g", libc::EINVAL),
        ("g", "g/sub", libc::EINVAL),
        ("", "h", libc::EBUSY),
        ("g", "full", libc::ENOTEMPTY),
        ("g", "file", libc::ENOTDIR),
        ("g", "none/g", libc::ENOENT),
        ("g", "y/g", libc::EPERM),
        ("g", ".zgroup", libc::EINVAL),
        ("none", "h", libc::ENOENT),
        ("file", "g", libc::EISDIR),
        ("file", "none/f", libc::ENOENT),
        ("file", "other/f", libc::ENOTDIR),
        ("file", "y/1", libc::EINVAL),
        ("file", "y/.zattrs", libc::EINVAL),
    ] {
        assert_eq!(errno(rename(from, to)), expected, "{from} {to}");
    }
    assert!(!held.is_superseded());
    rename("g", "empty").unwrap();
    assert!(held.is_superseded());
    assert_eq!(text(&store, "empty/x/0").unwrap(), "chunk");
    rename("empty/x", "x").unwrap();
    assert_eq!(array(&h, "x").size(), 16);
    rename("file", "other").unwrap();
    rename("other", "y/notes").unwrap();
    assert_eq!(text(&store, "y/notes").unwrap(), "1");
    let all = [
        ".zgroup",
        "empty/",
        "full/",
        "full/f",
        "x/",
        "x/.zarray",
        "x/0",
        "y/",
        "y/.zarray",
        "y/notes",
    ];
    assert_eq!(everything(&store), all);
}
