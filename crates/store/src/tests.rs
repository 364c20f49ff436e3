use super::*;
use crate::testing::{FaultyStore, Operation, UnlistedStore, key};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
enum Op {
    Put(usize, u8),
    Delete(usize),
    MakePrefix(usize),
    RemovePrefix(usize),
    Rename(usize, usize),
}

const KEYS: [&str; 9] = [
    "a", "b", "a/b", "a/c", "a/b/c", "a/b/d", "b/c", "c", "c/d/e",
];

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..KEYS.len();
    prop_oneof![
        4 => (key(), any::<u8>()).prop_map(|(k, v)| Op::Put(k, v)),
        2 => key().prop_map(Op::Delete),
        3 => key().prop_map(Op::MakePrefix),
        2 => key().prop_map(Op::RemovePrefix),
        4 => (key(), key()).prop_map(|(from, to)| Op::Rename(from, to)),
    ]
}

/// Applies an operation. Returns the part of its result on which all kinds of stores must agree.
fn apply(store: &dyn Store, op: &Op) -> std::result::Result<bool, ()> {
    let key = |i: &usize| Key::normalize(KEYS[*i]).unwrap();
    let done = match op {
        Op::Put(k, v) => store.put(&key(k), &[*v; 5]).map(|version| {
            assert_eq!(store.stat(&key(k)).unwrap().unwrap().version, version);
            true
        }),
        Op::Delete(k) => store.delete(&key(k)),
        Op::MakePrefix(k) => store.make_prefix(&key(k)).map(|()| true),
        Op::RemovePrefix(k) => store.remove_prefix(&key(k)).map(|()| true),
        Op::Rename(from, to) => store.rename(&key(from), &key(to)).map(|()| true),
    };
    done.map_err(|_| ())
}

/// Collects everything below `key`.
fn content(store: &dyn Store, key: &Key, found: &mut Vec<(Key, Option<Vec<u8>>)>) {
    let mut entries: Vec<Entry> = store.list(key).unwrap().map(|e| e.unwrap()).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in entries {
        let key = key.child(&entry.name).unwrap();
        let mut value = Vec::new();
        let is_value = entry.kind == EntryKind::Value;
        if is_value {
            store.get(&key, 100, &mut value).unwrap().unwrap();
        }
        found.push((key.clone(), is_value.then_some(value)));
        if !is_value {
            content(store, &key, found);
        }
    }
}

proptest! {
    #[test]
    fn directory_and_memory_stores_agree(ops in prop::collection::vec(op(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let stores: [&dyn Store; 2] =
            [&DirectoryStore::open(dir.path()).unwrap().without_fsync(), &MemoryStore::default()];
        for op in &ops {
            let [a, b] = stores.map(|store| apply(store, op));
            prop_assert_eq!(a, b, "{:?}", op);
            let [a, b] = stores.map(|store| {
                let mut found = Vec::new();
                content(store, &Key::root(), &mut found);
                found
            });
            prop_assert_eq!(a, b, "after {:?}", op);
        }
    }
}

#[test]
fn a_read_only_store_refuses_writes() {
    struct ReadOnly(MemoryStore);
    impl Readable for ReadOnly {
        fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
            self.0.read(key, range, value)
        }

        fn stat(&self, key: &Key) -> Result<Option<Stat>> {
            self.0.stat(key)
        }

        fn list(&self, prefix: &Key) -> Result<Listing> {
            self.0.list(prefix)
        }

        fn location(&self) -> String {
            self.0.location()
        }
    }

    impl Store for ReadOnly {}
    let store = ReadOnly(MemoryStore::default());
    let key = Key::root().join("k");
    let answers = [
        store.put(&key, b"1").map(|_| ()),
        store.delete(&key).map(|_| ()),
        store.check_writable(&key),
        store.writable_file(&key, true, false).map(|_| ()),
    ];
    assert!(!store.is_writable());
    assert!(
        answers
            .iter()
            .all(|a| a.as_ref().is_err_and(|e| e.kind() == Kind::ReadOnly)),
        "{answers:?}"
    );
}

/// A layer that implements only what each store must.
struct ThinLayer {
    inner: Arc<dyn Store>,
}

impl Readable for ThinLayer {
    delegate_store!(inner: read stat list location);

    fn below(&self) -> Option<&dyn Store> {
        Some(&*self.inner)
    }
}

impl Store for ThinLayer {}

#[test]
fn a_layer_asks_the_store_below_for_what_it_does_not_implement() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    std::fs::create_dir(&path).unwrap();
    let locks = LockFiles::open(&folder.path().join("locks"), Duration::from_secs(9)).unwrap();
    let below = DirectoryStore::open(&path).unwrap();
    let inner = Arc::new(below.with_locks(locks));
    let layer = ThinLayer { inner };
    let (value, moved) = (key("a/b"), key("c/b"));
    layer.put(&value, b"one").unwrap();
    layer.put_if(&value, b"two", Replaces::Anything).unwrap();
    // a directory compares versions only for pieces
    let pieces = [ValuePiece::Bytes(b"three")];
    let put = layer.put_pieces(&value, &pieces, Replaces::Nothing);
    assert_eq!(put.unwrap(), None);
    assert_eq!(std::fs::read(path.join("a/b")).unwrap(), b"two");
    assert!(layer.file(&value).unwrap().is_some());
    assert!(layer.writable_file(&value, false, false).is_ok());
    assert!(layer.space().unwrap().is_some() && layer.is_writable());
    assert!(layer.check_writable(&key("a")).is_ok() && layer.check_writable(&key("no")).is_err());
    layer
        .set_file_attribute(&value, FileAttribute::Mode(0o600))
        .unwrap();
    let permissions = layer.stat(&value).unwrap().unwrap().permissions.unwrap();
    assert_eq!(permissions.mode(), 0o600);
    let _lock = layer.lock(&value, Instant::now()).unwrap();
    assert!(folder.path().join("locks/a/b").exists());
    layer.make_prefix(&key("c")).unwrap();
    layer.rename(&value, &moved).unwrap();
    layer.remove_prefix(&key("a")).unwrap();
    assert!(layer.delete(&moved).unwrap());
    layer.sync().unwrap();
}

#[test]
fn a_layer_reads_as_the_store_below_does() {
    let memory = MemoryStore::default();
    memory.insert("a", "value");
    let unlisted = Arc::new(UnlistedStore::new(Arc::new(memory)));
    let below = Arc::new(FaultyStore::remote(unlisted));
    let layer = ThinLayer {
        inner: below.clone(),
    };
    assert!(!layer.lists_all() && !layer.lists_nodes() && layer.concurrency() > 1);
    let mut end = Vec::new();
    layer
        .read(&key("a"), &ByteRange::Suffix(2), &mut end)
        .unwrap();
    assert_eq!(end, b"ue");
    assert_eq!(below.calls(Operation::Stat), 0);
    let mut keys = [key("a"), key("b")].into_iter();
    let mut found = Vec::new();
    layer.stat_many(&mut keys, &mut |stat| {
        found.push(stat.unwrap().is_some());
        true
    });
    assert_eq!(found, [true, false]);
}
