//! The cost of extended attributes: a program asks for one after the other.

use crate::fs::tests::model::mount;
use crate::fs::tree::{Audience, FLAT, ROOT_INODE};
use crate::fs::*;
use zarrfs_base::json::{self, json};
use zarrfs_store::MemoryStore;
use zarrfs_store::testing::{FaultyStore, Operation};

/// Puts a document with attributes, `first` and `count` others, into a store.
fn put_attributes(store: &MemoryStore, count: usize, first: &str) {
    let mut attributes = json::Map::new();
    attributes.insert("first".into(), first.into());
    attributes.insert("_ARRAY_DIMENSIONS".into(), json!(["x"]));
    for n in 0..count {
        attributes.insert(format!("attribute {n}"), json!([n, "text"]));
    }
    store.insert("a/.zattrs", json!(attributes).to_string().into_bytes());
}

/// Reads all attributes, as `getfattr -d` does. Returns how many values of the store that took.
fn read_all(fs: &Fs, requests: &FaultyStore, expected: usize) -> u64 {
    let before = requests.calls(Operation::Get);
    let directory = fs.lookup(ROOT_INODE, "a").unwrap().inode;
    for inode in [directory, fs.lookup(directory, FLAT).unwrap().inode] {
        let all = fs.xattrs(inode, Audience::Readers, None).unwrap();
        let attributes = all
            .iter()
            .filter(|(name, _)| name.starts_with("user.zarr.attrs."));
        assert_eq!(attributes.count(), expected);
        for (name, value) in all {
            let one = fs.xattrs(inode, Audience::Readers, Some(&name)).unwrap();
            assert_eq!(one, [(name, value)]);
        }
        let missing = fs.xattrs(inode, Audience::Readers, Some("user.zarr.attrs.none"));
        assert_eq!(missing.unwrap(), []);
    }
    requests.calls(Operation::Get) - before
}

#[test]
fn a_document_is_read_once_for_all_its_attributes() {
    let store = Arc::new(MemoryStore::default());
    store.insert(".zgroup", br#"{"zarr_format":2}"#.to_vec());
    let document = r#"{"zarr_format":2,"shape":[4],"chunks":[4],"dtype":"|u1","compressor":null,
        "fill_value":0,"order":"C","filters":null}"#;
    store.insert("a/.zarray", document.as_bytes().to_vec());
    put_attributes(&store, 10, "old");
    let requests = Arc::new(FaultyStore::new(store.clone()));
    let fs = mount(&requests, 1 << 16);
    read_all(&fs, &requests, 12);
    // the document of the array is known now
    put_attributes(&store, 50, "new");
    assert_eq!(read_all(&fs, &requests, 52), 1);
    put_attributes(&store, 100, "newer");
    assert_eq!(read_all(&fs, &requests, 102), 1);
    // a change by this mount
    let inode = fs.lookup(ROOT_INODE, "a").unwrap().inode;
    let name = "user.zarr.attrs.first";
    fs.set_xattr(inode, name, Some(b"\"newest\""), false, false)
        .unwrap();
    let first = fs.xattrs(inode, Audience::Readers, Some(name)).unwrap();
    assert_eq!(first, [(name.to_string(), b"\"newest\"".to_vec())]);
}
