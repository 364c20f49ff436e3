//! The hierarchy on a store in memory.

use super::*;
use zarrfs_base::error::Kind;
use zarrfs_base::json::{self, Value};
use zarrfs_format::metadata::{GROUP_DOCUMENT, MAX_DOCUMENT};
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault};
use zarrfs_store::{ByteRange, MemoryStore, Readable, Version};

mod contended;
mod documents;
mod in_shards;
mod interrupted;
mod migrated;
mod namespace;
mod consolidated_store;
mod serialized;
mod shapes;
mod values;
mod as_v2;
mod v3;

const ARRAY: &str = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"<i4","compressor":{"id":"zlib"},"fill_value":0,
    "order":"C","filters":null}"#;

fn hierarchy(values: &[(&str, &str)]) -> (Arc<MemoryStore>, Hierarchy) {
    let store = Arc::new(MemoryStore::default());
    for (key, value) in values {
        store.insert(key, *value);
    }
    let hierarchy = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default());
    (store, hierarchy)
}

fn key(path: &str) -> Key {
    Key::normalize(path).unwrap()
}

fn text(store: &MemoryStore, path: &str) -> Option<String> {
    let mut value = Vec::new();
    store
        .get(&key(path), 1 << 20, &mut value)
        .unwrap()
        .map(|_| String::from_utf8(value).unwrap())
}

fn object(store: &MemoryStore, path: &str) -> Value {
    json::parse(
        text(store, path)
            .unwrap_or_else(|| panic!("no {path}"))
            .as_bytes(),
    )
    .unwrap()
}

/// Returns every key and prefix of the store, prefixes with a slash.
fn everything(store: &MemoryStore) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![Key::root()];
    while let Some(prefix) = left.pop() {
        for entry in store.list(&prefix).unwrap().map(|e| e.unwrap()) {
            let below = prefix.join(&entry.name);
            match entry.kind {
                EntryKind::Prefix => {
                    found.push(format!("{}/", below.as_str()));
                    left.push(below);
                }
                _ => found.push(below.as_str().to_string()),
            }
        }
    }
    found.sort();
    found
}

fn array(h: &Hierarchy, path: &str) -> Arc<Array> {
    match h.find(&key(path)).unwrap() {
        Some(StoredNode::Array(array)) => array,
        _ => panic!("{path} is no array"),
    }
}

#[test]
fn groups_arrays_and_intermediate_directories_are_found() {
    let (_, h) = hierarchy(&[
        (".zgroup", "{\"zarr_format\":2}"),
        ("a/b/x/.zarray", ARRAY),
        ("a/b/x/inner/.zarray", ARRAY),
        ("bad/.zarray", "{"),
        ("both/.zgroup", "{}"),
        ("both/.zarray", ARRAY),
        ("notes.txt", "hello"),
    ]);
    let mut seen = Vec::new();
    h.visit_below(&Key::root(), NodeUse::Chunks, &mut |key, place| {
        let kind = match place {
            StoredNode::Array(_) => "array",
            StoredNode::Damaged(_) => "damaged",
            StoredNode::Group => "group",
            _ => "other",
        };
        seen.push(format!("{key} {kind}"));
        Ok(())
    })
    .unwrap();
    let expected = [
        "/ group",
        "/a group",
        "/a/b group",
        "/a/b/x array",
        "/bad damaged",
        "/both array",
    ];
    assert_eq!(seen, expected);
    assert!(matches!(
        h.find(&Key::normalize("notes.txt").unwrap()).unwrap(),
        Some(StoredNode::Value)
    ));
    assert!(h.find(&Key::normalize("none").unwrap()).unwrap().is_none());
}

/// A traversal that reads documents at once visits what others visit, with the same attributes.
#[test]
fn nodes_whose_documents_are_read_at_once_are_those_of_the_store() {
    let long = format!("{ARRAY}{}", " ".repeat(10_000));
    let v3 = r#"{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"int32","chunk_grid":{"name":"regular",
        "configuration":{"chunk_shape":[2]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,
        "codecs":[{"name":"bytes","configuration":{"endian":"little"}}],"attributes":{"n":N}}"#;
    let (store, h) = hierarchy(&[
        (".zgroup", "{\"zarr_format\":2}"),
        ("m/n/.zgroup", "{\"zarr_format\":2}"),
        ("m/bad/.zarray", "{"),
        ("m/long/.zarray", &long),
        ("m/removed/.zarrfs-zarray", ARRAY),
        ("m/none/0", "1234"),
    ]);
    for n in 0..200 {
        let group = ["", "m/", "m/n/"][n % 3];
        store.insert(&format!("{group}{n}/.zarray"), ARRAY);
        if n % 2 == 0 {
            store.insert(&format!("{group}{n}/.zattrs"), format!("{{\"n\":{n}}}"));
        }
        store.insert(
            &format!("{group}v{n}/zarr.json"),
            v3.replace('N', &n.to_string()),
        );
    }
    let visited = |once: AskedOnce| {
        let mut visited = Vec::new();
        h.visit_below(&Key::root(), NodeUse::Chunks, &mut |key, node| {
            let shape = node
                .usable()
                .map(|array| array.map(|a| a.metadata().shape.clone()));
            let shape = shape.map_err(|e| e.to_string());
            visited.push((key.clone(), shape, h.attributes(key).unwrap()));
            Ok(())
        })
        .unwrap();
        drop(once);
        visited
    };
    let expected = visited(h.asked_once());
    assert_eq!(expected.len(), 400 + 7);
    assert!(visited(h.read_once()) == expected);
    // another request asks again
    store.insert("0/.zattrs", "{\"n\":-1}");
    store.insert("1/.zarray", ARRAY.replace("[4]", "[5]"));
    let changed = visited(h.read_once());
    assert!(changed != expected && changed == visited(h.asked_once()));
}

#[test]
fn the_consolidated_view_is_made_from_existing_documents() {
    let (store, h) = hierarchy(&[
        (".zgroup", "{\"zarr_format\":2}"),
        ("x/.zarray", ARRAY),
        (".zmetadata", "stale"),
    ]);
    store.insert("x/.zattrs", "{\"scale\": NaN}");
    let view = h.shown_consolidated(&Key::root()).unwrap().unwrap().text;
    let view = json::parse(&view).unwrap();
    let names: Vec<&String> = view["metadata"].as_object().unwrap().keys().collect();
    assert_eq!(names, [".zgroup", "x/.zarray", "x/.zattrs"]);
    assert!(view["metadata"]["x/.zarray"]["compressor"].is_null());
    store.remove(".zmetadata");
    assert!(h.shown_consolidated(&Key::root()).unwrap().is_none());
}

#[test]
fn changed_metadata_is_read_again() {
    let (store, h) = hierarchy(&[("x/.zarray", ARRAY)]);
    let size = || match h.find(&Key::normalize("x").unwrap()).unwrap() {
        Some(StoredNode::Array(a)) => a.size(),
        _ => panic!(),
    };
    assert_eq!(size(), 16);
    store.insert("x/.zarray", ARRAY.replace("\"shape\":[4]", "\"shape\":[9]"));
    assert_eq!(size(), 36);
}

#[test]
fn a_failure_of_the_system_is_neither_remembered_nor_taken_for_a_change() {
    let (memory, _) = hierarchy(&[("x/.zarray", ARRAY)]);
    let store = Arc::new(FaultyStore::new(memory.clone()));
    let h = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default());
    let find = || match h.find(&Key::root().join("x")).unwrap() {
        Some(StoredNode::Array(array)) => Ok(array),
        Some(StoredNode::Damaged(e)) => Err(e.errno()),
        _ => panic!(),
    };
    store.plan(PlannedFault::next(Operation::Get, libc::EMFILE));
    assert_eq!(find().err(), Some(libc::EMFILE));
    let array = find().unwrap();
    memory.insert("x/.zarray", ARRAY);
    store.plan(PlannedFault::next(Operation::Get, libc::EMFILE));
    assert_eq!(find().err(), Some(libc::EMFILE));
    assert!(!array.is_superseded() && Arc::ptr_eq(&array, &find().unwrap()));
}

#[test]
fn unreadable_metadata_damages_only_its_array() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    for name in ["hidden", "sound"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    symlink("/", dir.path().join("hidden/.zarray")).unwrap();
    symlink("/", dir.path().join("out")).unwrap();
    std::fs::write(dir.path().join("sound/.zarray"), ARRAY).unwrap();
    symlink(".zattrs", dir.path().join("sound/.zattrs")).unwrap();
    let stats = Arc::new(Stats::default());
    let store = Arc::new(zarrfs_store::DirectoryStore::open(dir.path()).unwrap());
    let h = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
    let key = |name: &str| Key::normalize(name).unwrap();
    assert!(
        matches!(h.find(&key("hidden")).unwrap(), Some(StoredNode::Damaged(e)) if e.errno() == libc::EACCES)
    );
    assert!(
        stats.problems()[0].starts_with("/hidden/.zarray: "),
        "{:?}",
        stats.problems()
    );
    assert!(matches!(
        h.find(&key("sound")).unwrap(),
        Some(StoredNode::Array(_))
    ));
    assert!(h.attributes(&key("sound")).unwrap().is_empty());
    assert!(h.find(&key("out")).is_err());
    let mut names: Vec<_> = h
        .list(&Key::root())
        .unwrap()
        .map(|e| e.unwrap().name)
        .collect();
    names.sort();
    assert_eq!(names, ["hidden", "sound"]);
}

#[test]
fn stores_are_recognized() {
    assert!(hierarchy(&[("a/.zarray", ARRAY)]).1.check().is_ok());
    assert!(
        hierarchy(&[("meta", "{}"), ("attrs", "{}")])
            .1
            .check()
            .is_ok()
    );
    let (_, h) = hierarchy(&[(".zarray", ARRAY)]);
    h.remove_document(&key(""), MetadataFile::Array).unwrap();
    h.check().unwrap();
    // a file named `meta` alone makes no v1 store
    assert!(
        hierarchy(&[("meta", "notes"), ("a/.zarray", ARRAY)])
            .1
            .find(&Key::root())
            .is_ok_and(|p| matches!(p, Some(StoredNode::Group)))
    );
    assert_eq!(
        hierarchy(&[("a/x", "")]).1.check().unwrap_err().kind(),
        Kind::Invalid
    );
    assert!(hierarchy(&[("zarr.json", "{}")]).1.check().is_ok());
}

#[test]
fn documents_may_begin_with_a_byte_order_mark() {
    let marked = |text: &str| format!("\u{feff}{text}");
    let v3 = r#"{"zarr_format":3,"node_type":"group","attributes":{"a":1}}"#;
    for (root, child, attributes) in [
        (
            (".zgroup", marked(GROUP_DOCUMENT)),
            ("x/.zarray", marked(ARRAY)),
            ("x/.zattrs", marked("{\"a\": 1}")),
        ),
        (
            ("zarr.json", marked(v3)),
            ("x/zarr.json", marked(v3)),
            ("x/none", String::new()),
        ),
    ] {
        let (store, h) =
            hierarchy(&[&root, &child, &attributes].map(|(key, text)| (*key, text.as_str())));
        assert!(matches!(
            h.find(&key("x")),
            Ok(Some(StoredNode::Array(_) | StoredNode::Group))
        ));
        assert_eq!(h.attributes(&key("x")).unwrap()["a"], 1);
        let document = if root.0 == ".zgroup" {
            ".zmetadata"
        } else {
            "zarr.json"
        };
        h.write_consolidated(&Key::root()).unwrap();
        // one mark may begin the document, but none is in it
        assert!(!text(&store, document).unwrap()[1..].contains('\u{feff}'));
        assert!(object(&store, document).to_string().contains("\"a\""));
        store.insert(document, marked(&text(&store, document).unwrap()));
        assert!(
            h.shown_consolidated(&Key::root()).is_ok()
                && h.stale_consolidated(DocumentFormat::V3, &Key::root())
                    .unwrap()
                    .is_empty()
        );
        assert!(
            h.stale_consolidated(DocumentFormat::V2, &Key::root())
                .unwrap()
                .is_empty()
        );
    }
}

/// Answers every listing with the same prefix.
struct Endless;

impl Readable for Endless {
    fn read(&self, _: &Key, _: &ByteRange, _: &mut Vec<u8>) -> Result<Option<Stat>> {
        Ok(None)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        Ok(["", "ok"].contains(&key.name()).then(Stat::prefix))
    }

    fn list(&self, _: &Key) -> Result<Listing> {
        let entry = zarrfs_store::Entry::new("ok".to_string(), EntryKind::Prefix);
        Ok(Box::new(std::iter::once(Ok(entry))))
    }

    fn location(&self) -> String {
        "endless".to_string()
    }
}

impl Store for Endless {}

#[test]
fn every_traversal_ends_and_says_what_is_left_out() {
    let h = Hierarchy::new(Arc::new(Endless), V1Order::Zarr1, Arc::default());
    let mut groups = 0;
    let mut damaged = Vec::new();
    h.visit_below(&Key::root(), NodeUse::Chunks, &mut |_, node| {
        match node {
            StoredNode::Damaged(e) => damaged.push(e.to_string()),
            _ => groups += 1,
        }
        Ok(())
    })
    .unwrap();
    assert_eq!((groups, damaged.len()), (257, 1));
    assert!(
        damaged[0].contains("256 levels deep") && h.left_out() == damaged,
        "{damaged:?}"
    );
    let mut bounds = WalkBounds::without_end();
    let admitted = (0..=MAX_NODES)
        .take_while(|_| bounds.admit(&Key::root()).is_ok())
        .count();
    assert_eq!((admitted, bounds.is_spent()), (MAX_NODES, true));
}
