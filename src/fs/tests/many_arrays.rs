//! Counts what a program that walks through many arrays costs: names, and calls of the store.

use super::*;
use crate::fs::tree::{FIXED_NAMES, Headers};
use zarrfs_export::{Format, GroupFormat, LayoutRule};
use zarrfs_store::testing::{FaultyStore, Operation};

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
    // the one live node is the array, whose name was looked up
    assert!(fs.tree.state().contains(&("live_nodes", 1.into())));
}

/// The kernel asks for names that it knows one by one unless it gets them with attributes.
#[test]
fn an_array_with_a_known_file_is_listed_with_attributes() {
    let (_, fs) = with_chunks(1);
    let a = fs.lookup(1, "a").unwrap().inode;
    let first = || {
        let handle = fs.open_directory(a).unwrap();
        let (names, at) = listed(&fs, handle, 0, true);
        // what follows is neither lost nor passed twice
        let (others, _) = listed(&fs, handle, at, false);
        fs.release_directory(handle);
        let all = [&names[..], &others[..]].concat();
        (names, all)
    };
    let (names, all) = first();
    assert_eq!(names, [".", ".."]);
    let flat = fs.lookup(a, "data.raw").unwrap().inode;
    let (names, again) = first();
    assert_eq!((&names[..3], &again), (&all[..3], &all));
    fs.forget(flat, 2);
    assert_eq!(first().0, [".", ".."]);
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

/// Returns the number of calls of a store that asks it something.
fn asked(store: &FaultyStore) -> [u64; 3] {
    [Operation::Stat, Operation::Get, Operation::List].map(|operation| store.calls(operation))
}

/// Each document is asked for once in a request, and read once for a listing.
#[test]
fn a_request_asks_the_store_for_each_document_once() {
    let (store, _) = with_chunks(1);
    let store = Arc::new(FaultyStore::new(store));
    let fs = with_all_headers(store.clone());
    let count = |request: &dyn Fn() -> u64| {
        let before = asked(&store);
        let answer = request();
        let after = asked(&store);
        (answer, [0, 1, 2].map(|i| after[i] - before[i]))
    };
    // the documents of the root that could make it an array, its own, the root and the array
    let (a, asked) = count(&|| fs.lookup(1, "a").unwrap().inode);
    assert_eq!(asked, [5, 0, 0]);
    // .zattrs; zarr.json and .zarray, each read in place of its stat
    let (handle, asked) = count(&|| fs.open_directory(a).unwrap());
    assert_eq!(asked, [1, 2, 1]);
    let (_, asked) = count(&|| {
        let (_, at) = listed(&fs, handle, 0, true);
        listed(&fs, handle, at, false).1
    });
    assert_eq!(asked, [0, 0, 0]);
    // and the chunks, which du counts
    let (_, asked) = count(&|| fs.lookup(a, "data.raw").unwrap().size);
    assert_eq!(asked, [4, 0, 1]);
    // and the attributes of the group, which may hold the reference system
    let (_, asked) = count(&|| fs.lookup(a, "data.vrt").unwrap().size);
    assert!(asked[0] <= 10 && asked[1] <= 1, "{asked:?}");
}

/// A listing has the attributes of look-ups, also after another program has changed the store.
#[test]
fn listed_files_of_a_layout_are_those_of_look_ups() {
    let store = Arc::new(MemoryStore::default());
    let array = |len: u64| {
        ARRAY
            .replace("[1000]", &format!("[{len},2]"))
            .replace("[10]", "[1,2]")
    };
    store.insert(".zgroup", GROUP);
    store.insert("x/.zarray", array(40));
    let rules = ["x/{x_0#}.raw = /x", "x/{x_0#}.npy = /x"];
    store.insert("x/.zattrs", r#"{"_ARRAY_DIMENSIONS":["x_0","y"]}"#);
    let rules = rules.map(|rule| LayoutRule::parse(rule).unwrap()).to_vec();
    let fs = with_tree(mount_store(store.clone(), 1 << 20, true), |tree| {
        tree.with_layout(rules).unwrap()
    });
    let directory = fs.lookup(1, "x").unwrap().inode;
    let compare = || {
        let handle = fs.open_directory(directory).unwrap();
        let mut count = 0;
        let mut listed = Vec::new();
        let add = |entry: DirectoryEntry, _| {
            listed.push((entry.name.name.clone(), entry.attributes.clone()));
            false
        };
        fs.read_directory_with_attributes(handle, 2, add).unwrap();
        for (name, attributes) in listed {
            let looked_up = fs.lookup(directory, &name).unwrap();
            assert_eq!(
                format!("{attributes:?}"),
                format!("{looked_up:?}"),
                "{name}"
            );
            count += usize::from(name.ends_with(".raw") && attributes.size == 16);
        }
        fs.release_directory(handle);
        count
    };
    assert_eq!(compare(), 40);
    store.insert("x/.zarray", array(41).replace("f8", "f4"));
    // names may be a second old
    while fs.lookup(directory, "40.raw").is_err() {}
    assert_eq!(compare(), 0);
    assert_eq!(fs.lookup(directory, "40.raw").unwrap().size, 8);
}

/// The dimension names of NCZarr stand in the document that the array was parsed from.
#[test]
fn the_file_of_a_group_reads_each_document_once() {
    let store = Arc::new(MemoryStore::default());
    store.insert(".zgroup", GROUP);
    for i in 0..50 {
        store.insert(&format!("a{i}/.zarray"), ARRAY);
    }
    let store = Arc::new(FaultyStore::new(store));
    let headers = Headers {
        groups: vec![GroupFormat::Hdf5],
        ..Headers::default()
    };
    let fs = with_tree(mount_store(store.clone(), 1 << 20, true), |tree| {
        tree.with_headers(headers)
    });
    assert!(fs.lookup(1, "dataset.h5").unwrap().size > 50 * 8000);
    // zarr.json, .zarray and .zattrs
    let [stat, read, _] = asked(&store);
    assert!(read <= 50 * 3 + 10 && stat <= 50 + 20, "{stat} {read}");
}

/// Another program changes documents between two requests.
#[test]
fn the_next_request_asks_again() {
    let (store, fs) = with_chunks(1);
    let a = fs.lookup(1, "a").unwrap().inode;
    assert_eq!(fs.lookup(a, "data.raw").unwrap().size, 8000);
    store.insert("a/.zarray", ARRAY.replace("1000", "10"));
    assert_eq!(fs.lookup(a, "data.raw").unwrap().size, 80);
    store.insert("a/.zattrs", "{}");
    assert_eq!(fs.lookup(a, ".zattrs").unwrap().size, 2);
}
