//! Another machine that changes the same documents: no change of either is lost.

use super::*;
use std::collections::VecDeque;
use std::sync::Mutex;
use zarrfs_base::memory::lock;
use zarrfs_store::{Listing, MetadataCache, PagedListing, Replaces, ValuePiece, delegate_store};

type Interference = Box<dyn FnOnce(&MemoryStore) + Send>;

/// A store into which another process writes just before a conditional put.
struct Raced {
    memory: Arc<MemoryStore>,
    /// The actions of the other process before the next conditional puts.
    next: Mutex<VecDeque<Interference>>,
}

impl PagedListing for Raced {}

impl Readable for Raced {
    delegate_store!(memory: read stat location);

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.memory.list(prefix)
    }
}

impl Store for Raced {
    delegate_store!(memory: check_writable change sync);

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let next = lock(&self.next).pop_front();
        if let Some(interfere) = next {
            interfere(&self.memory);
        }
        self.memory.put_pieces(key, pieces, replaces)
    }
}

const CONSOLIDATED: &str =
    r#"{"metadata":{".zgroup":{"zarr_format":2}},"zarr_consolidated_format":1}"#;

fn raced(values: &[(&str, &str)]) -> (Arc<MemoryStore>, Arc<Raced>, Hierarchy) {
    let (memory, _) = hierarchy(values);
    memory.insert(".zgroup", "{\"zarr_format\":2}");
    let raced = Arc::new(Raced {
        memory: memory.clone(),
        next: Mutex::default(),
    });
    // answers in the cache never expire
    let store = Arc::new(MetadataCache::new(raced.clone(), None));
    (
        memory,
        raced,
        Hierarchy::new(store, V1Order::Zarr1, Arc::default()),
    )
}

impl Raced {
    fn before_next(&self, interfere: impl FnOnce(&MemoryStore) + Send + 'static) {
        lock(&self.next).push_back(Box::new(interfere));
    }
}

#[test]
fn no_attribute_is_lost() {
    let (memory, raced, h) = raced(&[("x/.zarray", ARRAY), (".zmetadata", CONSOLIDATED)]);
    let x = key("x");
    h.set_attribute(&x, "a", Some(b"1")).unwrap();
    assert_eq!(h.attributes(&x).unwrap().len(), 1);
    raced.before_next(|store| store.insert("x/.zattrs", r#"{"a":1,"theirs":2}"#));
    h.set_attribute(&x, "b", Some(b"3")).unwrap();
    assert_eq!(
        object(&memory, "x/.zattrs"),
        json::parse(br#"{"a":1,"theirs":2,"b":3}"#).unwrap()
    );
    assert_eq!(
        object(&memory, ".zmetadata")["metadata"]["x/.zattrs"],
        object(&memory, "x/.zattrs")
    );
    raced.before_next(|store| store.insert("x/.zattrs", r#"{"theirs":4,"b":3}"#));
    assert_eq!(
        h.set_attribute(&x, "a", None).unwrap_err().errno(),
        libc::ENODATA
    );
    // a document that another process creates meanwhile
    raced.before_next(|store| store.insert(".zattrs", r#"{"theirs":5}"#));
    h.set_attribute(&key(""), "a", Some(b"6")).unwrap();
    assert_eq!(
        object(&memory, ".zattrs"),
        json::parse(br#"{"theirs":5,"a":6}"#).unwrap()
    );
}

/// "two mounts on one bucket lose no entry of `.zmetadata`"; in the end it agrees with the
/// documents.
#[test]
fn no_entry_of_the_consolidated_metadata_is_lost() {
    let (memory, raced, h) = raced(&[("x/.zarray", ARRAY), (".zmetadata", CONSOLIDATED)]);
    raced.before_next(|store| {
        store.insert("theirs/.zgroup", "{\"zarr_format\":2}");
        let more = CONSOLIDATED.replace(
            ".zgroup\":",
            "theirs/.zgroup\":{\"zarr_format\":2},\".zgroup\":",
        );
        store.insert(".zmetadata", more);
    });
    h.create_group(&key("ours")).unwrap();
    let names = |memory: &MemoryStore| -> Vec<String> {
        object(memory, ".zmetadata")["metadata"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(
        names(&memory),
        ["theirs/.zgroup", ".zgroup", "ours/.zgroup"]
    );
    // the other process changes the document that was just put, and updates .zmetadata first
    h.attributes(&key("x")).unwrap();
    raced.before_next(|_| {});
    raced.before_next(|store| {
        store.insert("x/.zattrs", r#"{"a":1,"theirs":2}"#);
        store.insert(
            ".zmetadata",
            CONSOLIDATED.replace(
                ".zgroup\":",
                "x/.zattrs\":{\"a\":1,\"theirs\":2},\".zgroup\":",
            ),
        );
    });
    h.set_attribute(&key("x"), "a", Some(b"1")).unwrap();
    assert_eq!(
        object(&memory, ".zmetadata")["metadata"]["x/.zattrs"],
        object(&memory, "x/.zattrs")
    );
    // a new `.zmetadata` includes documents that were created meanwhile
    raced.before_next(|store| {
        store.insert("late/.zgroup", "{\"zarr_format\":2}");
        store.insert(".zmetadata", CONSOLIDATED);
    });
    let written = h.write_consolidated(&key("")).unwrap();
    assert_eq!(
        written,
        [
            ".zgroup",
            "late/.zgroup",
            "ours/.zgroup",
            "theirs/.zgroup",
            "x/.zarray",
            "x/.zattrs"
        ]
    );
    assert_eq!(names(&memory), written);
}

#[test]
fn a_new_shape_keeps_other_changes_of_the_document() {
    let (memory, raced, h) = raced(&[("x/.zarray", ARRAY)]);
    let x = array(&h, "x");
    raced.before_next(|store| {
        store.insert(
            "x/.zarray",
            ARRAY.replace("\"fill_value\":0", "\"fill_value\":7"),
        )
    });
    h.resize(&x, &[6]).unwrap();
    let document = object(&memory, "x/.zarray");
    assert_eq!(
        (&document["shape"], &document["fill_value"]),
        (&Value::from(vec![6]), &Value::from(7))
    );
    // the other process has given it that shape already
    let x = array(&h, "x");
    raced.before_next(|store| store.insert("x/.zarray", ARRAY.replace("[4]", "[8]")));
    h.resize(&x, &[8]).unwrap();
    assert_eq!(object(&memory, "x/.zarray")["fill_value"], 0);
    // fields that a user may not change come from the stored document
    let view = String::from_utf8(h.shown_array(&key("x")).unwrap().unwrap().text).unwrap();
    raced.before_next(|store| {
        store.insert(
            "x/.zarray",
            ARRAY.replace("[4]", "[8]").replace("zlib", "bz2"),
        )
    });
    h.put_document(
        &key("x"),
        MetadataFile::Array,
        view.replace('8', "9").as_bytes(),
    )
    .unwrap();
    let document = object(&memory, "x/.zarray");
    assert_eq!(
        (&document["shape"], &document["compressor"]["id"]),
        (&Value::from(vec![9]), &Value::from("bz2"))
    );
}

#[test]
fn an_edit_that_always_loses_fails_with_eagain() {
    let (memory, raced, h) = raced(&[("x/.zarray", ARRAY)]);
    for i in 0..200 {
        raced.before_next(move |store| store.insert("x/.zattrs", format!("{{\"theirs\":{i}}}")));
    }
    let e = h.set_attribute(&key("x"), "a", Some(b"1")).unwrap_err();
    assert_eq!(
        (e.errno(), e.message().starts_with("/x/.zattrs: ")),
        (libc::EAGAIN, true),
        "{e}"
    );
    assert!(object(&memory, "x/.zattrs").get("a").is_none());
}
