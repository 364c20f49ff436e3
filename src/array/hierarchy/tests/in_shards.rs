//! Stores that are copied with their chunks in shards, also in steps.

use super::migrated::{documents, store};
use super::shapes::{document, elements, store_chunks};
use super::*;
use zarrfs_store::testing::UnlistedStore;

fn copied(from: &Hierarchy, to: Arc<dyn Store>, shape: &ShardShape) -> Result<ShardedCopy> {
    let scratch = tempfile::tempfile().unwrap();
    from.copy_in_shards(to, shape, &scratch, &mut |_| ())
}

fn opened(store: Arc<dyn Store>) -> Hierarchy {
    Hierarchy::new(store, V1Order::Zarr1, Arc::default())
}

fn values(h: &Hierarchy) -> [Vec<u16>; 2] {
    ["a", "g/h/x"].map(|path| elements(&array(h, path)))
}

/// Returns all keys of a store with their values.
fn content(store: &MemoryStore) -> Vec<(String, Vec<u8>)> {
    let names = everything(store).into_iter();
    let names = names.filter(|name| !name.ends_with('/'));
    names
        .map(|name| {
            let mut value = Vec::new();
            store.get(&key(&name), 1 << 20, &mut value).unwrap();
            (name, value)
        })
        .collect()
}

#[test]
fn chunks_become_chunks_of_shards() {
    let source = store();
    // a plain file with the name of a document of v1
    source.insert("meta", "notes");
    let from = opened(source);
    let target = Arc::new(MemoryStore::default());
    let shape = ShardShape::Lengths(vec![4, 4]);
    let copy = copied(&from, target.clone(), &shape).unwrap();
    let expected = ShardedCopy {
        arrays: 2,
        sharded: 1,
        chunks: 5,
        shards: 4,
    };
    assert_eq!(copy, expected);
    let to = opened(target.clone());
    assert_eq!(values(&to), values(&from));
    let names: Vec<String> = content(&target).into_iter().map(|(name, _)| name).collect();
    let expected = [
        "a/c/0/0",
        "a/c/0/1",
        "a/c/1/0",
        "a/c/1/1",
        "a/zarr.json",
        "g/h/x/0",
        "g/h/x/zarr.json",
        "g/h/zarr.json",
        "g/notes.txt",
        "g/zarr.json",
        "meta",
        "plain/file",
        "zarr.json",
    ];
    assert_eq!(names, expected);
    // all but the codecs is as `migrate` makes it
    from.migrate_to_v3().unwrap();
    for group in ["", "g"] {
        let stale = to.stale_consolidated(DocumentFormat::V3, &key(group));
        assert_eq!(stale.unwrap(), []);
        let attributes = |h: &Hierarchy| h.attributes(&key(group)).unwrap().get("title").cloned();
        assert_eq!(attributes(&to), attributes(&from));
    }
    assert_eq!(to.attributes(&key("a")).unwrap()["units"], "K");
    // chunks that are in shards stay there, and so does what else a store of v3 holds
    let again = Arc::new(MemoryStore::default());
    let auto = copied(&to, again.clone(), &ShardShape::Auto).unwrap();
    assert_eq!((auto.arrays, auto.sharded, auto.shards), (2, 1, 1));
    assert_eq!(values(&opened(again.clone())), values(&from));
    let of_a = |store: &MemoryStore| {
        let mut content = content(store);
        content.retain(|(name, _)| name.starts_with("a/"));
        content
    };
    assert_eq!(of_a(&again), of_a(&target));
}

#[test]
fn an_interrupted_copy_is_no_store_and_can_be_repeated() {
    let shape = ShardShape::Auto;
    let whole = Arc::new(MemoryStore::default());
    copied(&opened(store()), whole.clone(), &shape).unwrap();
    assert_eq!(documents(&whole).len(), 5);
    let mut stops = 0;
    for operation in [Operation::Put, Operation::Sync] {
        for is_applied in [false, true] {
            for after in 0.. {
                let source = store();
                let before = content(&source);
                let target = Arc::new(MemoryStore::default());
                let faulty = Arc::new(FaultyStore::new(target.clone()));
                faulty.plan(PlannedFault {
                    operation,
                    after,
                    times: u64::MAX,
                    errno: libc::EIO,
                    applied: is_applied,
                });
                let from = opened(source.clone());
                if copied(&from, faulty, &shape).is_ok() {
                    break;
                }
                stops += 1;
                if text(&target, "zarr.json").is_some() {
                    // the last sync failed, or the put of the root had taken effect
                    assert_eq!(content(&target), content(&whole));
                }
                assert_eq!(content(&source), before);
                copied(&from, target.clone(), &shape).unwrap();
                assert_eq!(content(&target), content(&whole));
            }
        }
    }
    assert!(stops > 20, "{stops}");
}

#[test]
fn what_has_no_shards_is_refused_before_anything_is_put() {
    let refused = |from: &Hierarchy, shape: &[u64], why: &str| {
        let target = Arc::new(MemoryStore::default());
        let e = copied(from, target.clone(), &ShardShape::Lengths(shape.to_vec())).unwrap_err();
        assert!(e.message().contains(why), "{e}");
        assert_eq!(everything(&target), [""; 0]);
    };
    let (made, h) = hierarchy(&[(".zgroup", GROUP_DOCUMENT), ("x/.zarray", ARRAY)]);
    store_chunks(&array(&h, "x"), 1);
    refused(
        &h,
        &[3],
        "/x: --shards: [3] are no multiples of the chunks [2]",
    );
    refused(
        &h,
        &[2, 2],
        "--shards: no array of 2 dimensions has several chunks",
    );
    made.insert("x/1", "");
    let target = Arc::new(MemoryStore::default());
    let e = copied(&h, target.clone(), &ShardShape::Auto).unwrap_err();
    assert_eq!(e.message(), "/x/1: a chunk without bytes");
    assert_eq!(text(&target, "zarr.json"), None);
    made.insert("y/.zarray", ARRAY.replace("zlib", "unheard-of"));
    refused(&h, &[4], "codec \"unheard-of\" is unknown");
}

#[test]
fn a_store_that_cannot_list_is_copied() {
    let source = store();
    let unlisted = Arc::new(UnlistedStore::new(source.clone()));
    let from = ConsolidatedStore::over(unlisted, UseConsolidated::Auto, Arc::default()).unwrap();
    let target = Arc::new(MemoryStore::default());
    let copy = copied(&opened(from), target.clone(), &ShardShape::Auto).unwrap();
    assert_eq!((copy.arrays, copy.sharded, copy.shards), (2, 2, 2));
    assert_eq!(values(&opened(target)), values(&opened(source)));
}

/// Chunks and plain values that are larger than the part that is read at a time.
#[test]
fn large_values_are_copied() {
    let len = 3 << 20;
    let array_document = document(&[2 * len], &[len], "C", ".").replace(r#"{"id":"zlib"}"#, "null");
    let (made, h) = hierarchy(&[(".zgroup", GROUP_DOCUMENT), ("x/.zarray", &array_document)]);
    let bytes: Vec<u8> = (0..2 * len as u32).map(|i| (i / 7) as u8).collect();
    for name in ["x/0", "x/1", "x/notes"] {
        made.insert(name, bytes.clone());
    }
    let target = Arc::new(MemoryStore::default());
    let copy = copied(&h, target.clone(), &ShardShape::Auto).unwrap();
    assert_eq!((copy.chunks, copy.shards), (2, 1));
    let mut notes = Vec::new();
    target.get(&key("x/notes"), 1 << 30, &mut notes).unwrap();
    assert!(notes == bytes);
    assert!(elements(&array(&opened(target), "x")) == elements(&array(&h, "x")));
}
