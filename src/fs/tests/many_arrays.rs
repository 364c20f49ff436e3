//! Counts what a program that walks through many arrays costs: names, and calls of the store.

use super::*;
use crate::fs::tree::{FIXED_NAMES, Headers};
use zarrfs_export::Format;

const GROUP: &str = r#"{"zarr_format":2}"#;
const ARRAY: &str = r#"{"zarr_format":2,"shape":[1000],"chunks":[10],"dtype":"<f8","compressor":null,"fill_value":0,
    "order":"C","filters":null}"#;

/// Returns a file system over a store with the array `a` of so many chunks, which shows all headers.
fn with_chunks(chunks: usize) -> (Arc<MemoryStore>, Fs) {
    let store = Arc::new(MemoryStore::default());
    store.insert(".zgroup", GROUP);
    store.insert("a/.zarray", ARRAY);
    for chunk in 0..chunks {
        store.insert(&format!("a/{chunk}"), [0; 80]);
    }
    (store.clone(), with_all_headers(store))
}

fn with_all_headers(store: Arc<dyn Store>) -> Fs {
    let headers = Headers {
        formats: Format::ALL.to_vec(),
        ..Headers::default()
    };
    with_tree(mount_store(store, 1 << 20, true), |tree| {
        tree.with_headers(headers)
    })
}

/// Returns the names from position `from` on that the file system passes to one request, and the
/// position after them.
fn listed(fs: &Fs, handle: u64, from: u64, with_attributes: bool) -> (Vec<String>, u64) {
    let mut names = Vec::new();
    let mut at = from;
    if with_attributes {
        let add = |entry: DirectoryEntry, next| {
            names.push(entry.name.name.clone());
            at = next;
            false
        };
        fs.read_directory_with_attributes(handle, from, add)
    } else {
        let add = |name: &tree::Name, next| {
            names.push(name.name.clone());
            at = next;
            false
        };
        fs.read_directory(handle, from, add)
    }
    .unwrap();
    (names, at)
}

/// The kernel requests attributes with the first names of every directory.
#[test]
fn a_listing_that_asks_for_no_attributes_makes_no_header() {
    let (_, fs) = with_chunks(1);
    let a = fs.lookup(1, "a").unwrap().inode;
    let handle = fs.open_directory(a).unwrap();
    let (first, at) = listed(&fs, handle, 0, true);
    assert_eq!((first, at), (vec![".".to_string(), "..".to_string()], 2));
    let (names, at) = listed(&fs, handle, at, false);
    assert!(names.len() > 3, "{names:?}");
    assert_eq!([&names[0], &names[names.len() - 1]], ["data.raw", "0"]);
    assert_eq!(listed(&fs, handle, at, false).0, Vec::<String>::new());
    // of the array alone, whose name was looked up
    assert!(fs.tree.state().contains(&("live_nodes", 1.into())));
}

#[test]
fn a_program_that_asks_for_attributes_gets_those_of_many_chunks_together() {
    let (_, fs) = with_chunks(100);
    let a = fs.lookup(1, "a").unwrap().inode;
    let handle = fs.open_directory(a).unwrap();
    let (first, at) = listed(&fs, handle, 2, false);
    assert!(first.len() < 100 && at > FIXED_NAMES, "{first:?}");
    let (rest, _) = listed(&fs, handle, at, true);
    let mut chunks: Vec<usize> = first.iter().chain(&rest).flat_map(|n| n.parse()).collect();
    chunks.sort_unstable();
    assert!(chunks.into_iter().eq(0..100));
}
