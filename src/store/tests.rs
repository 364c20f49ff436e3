use super::*;
use proptest::prelude::*;

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

/// Returns the key of a path.
pub(super) fn key(path: &str) -> Key {
    Key::normalize(path).unwrap()
}

/// Returns the value at a path.
pub(super) fn get(store: &dyn Store, path: &str) -> Result<Option<Vec<u8>>> {
    let mut value = b"former content".to_vec();
    Ok(store.get(&key(path), 1 << 20, &mut value)?.map(|_| value))
}

/// Returns the bytes of `range` of the value at a path.
pub(super) fn part(store: &dyn Store, path: &str, range: Range<u64>) -> Result<Option<Vec<u8>>> {
    let mut value = b"former content".to_vec();
    Ok(store
        .get_range(&key(path), range, &mut value)?
        .map(|_| value))
}

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
    impl Store for ReadOnly {
        fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
            self.0.get(key, limit, value)
        }
        fn get_range(
            &self,
            key: &Key,
            range: Range<u64>,
            value: &mut Vec<u8>,
        ) -> Result<Option<Stat>> {
            self.0.get_range(key, range, value)
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
