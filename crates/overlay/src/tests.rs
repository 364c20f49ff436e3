use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault, UnlistedStore};
use zarrfs_store::{DirectoryStore, MemoryStore, Replaces, StoreExt, ValuePiece};

#[derive(Clone, Debug)]
enum Op {
    Put(usize, u8),
    PutOld(usize, u8),
    Delete(usize),
    MakePrefix(usize),
    RemovePrefix(usize),
    Rename(usize, usize),
}

const KEYS: [&str; 8] = ["a", "b", "a/b", "a/c", "a/b/c", "b/c", "c", "c/d/e"];

/// Values that the lower store has.
const LOWER: [&[&str]; 3] = [&["a/b/c", "a/c", "b"], &["c/d/e", "b/c"], &["a", "c"]];

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..KEYS.len();
    prop_oneof![
        4 => (key(), any::<u8>()).prop_map(|(k, v)| Op::Put(k, v)),
        2 => (key(), any::<u8>()).prop_map(|(k, v)| Op::PutOld(k, v)),
        4 => key().prop_map(Op::Delete),
        2 => key().prop_map(Op::MakePrefix),
        3 => key().prop_map(Op::RemovePrefix),
        3 => (key(), key()).prop_map(|(from, to)| Op::Rename(from, to)),
    ]
}

fn key(path: &str) -> Key {
    Key::normalize(path).unwrap()
}

fn lower(n: usize) -> Arc<MemoryStore> {
    let store = MemoryStore::default();
    LOWER[n]
        .iter()
        .for_each(|key| store.insert(key, key.as_bytes()));
    Arc::new(store)
}

fn overlay(lower: Arc<dyn Store>, upper: Arc<dyn Store>) -> OverlayStore {
    OverlayStore::over(lower, upper, std::env::temp_dir(), Arc::default()).unwrap()
}

/// Applies an operation. Returns the part of its result on which all kinds of stores must agree.
fn apply(store: &dyn Store, op: &Op) -> std::result::Result<bool, ()> {
    let key = |i: &usize| key(KEYS[*i]);
    let done = match op {
        Op::Put(k, v) => store.put(&key(k), &[*v; 5]).map(|version| {
            assert_eq!(store.stat(&key(k)).unwrap().unwrap().version, version);
            true
        }),
        Op::PutOld(k, v) => {
            let found = store
                .stat(&key(k))
                .unwrap()
                .filter(|stat| stat.kind == EntryKind::Value);
            let Some(stat) = found else { return Ok(false) };
            let pieces = [
                ValuePiece::Bytes(std::slice::from_ref(v)),
                ValuePiece::Old(0..1),
                ValuePiece::Old(0..1),
            ];
            store
                .put_pieces(&key(k), &pieces, Replaces::Version(&stat.version))
                .map(|put| put.is_some())
        }
        Op::Delete(k) => store.delete(&key(k)),
        Op::MakePrefix(k) => store.make_prefix(&key(k)).map(|()| true),
        Op::RemovePrefix(k) => store.remove_prefix(&key(k)).map(|()| true),
        Op::Rename(from, to) => store.rename(&key(from), &key(to)).map(|()| true),
    };
    done.map_err(|_| ())
}

type Content = BTreeMap<Key, Option<Vec<u8>>>;

/// Returns everything in a store. Each name must be listed once.
fn content(store: &dyn Store) -> Content {
    fn visit(store: &dyn Store, prefix: &Key, found: &mut Content) {
        for entry in store.list(prefix).unwrap() {
            let entry = entry.unwrap();
            let key = prefix.join(&entry.name);
            let mut value = Vec::new();
            let is_value = entry.kind == EntryKind::Value;
            assert_eq!(store.stat(&key).unwrap().unwrap().kind, entry.kind);
            if is_value {
                store.get(&key, 100, &mut value).unwrap().unwrap();
            }
            assert_eq!(
                found.insert(key.clone(), is_value.then_some(value)),
                None,
                "{key}"
            );
            if !is_value {
                visit(store, &key, found);
            }
        }
    }
    let mut found = Content::new();
    visit(store, &Key::root(), &mut found);
    for path in KEYS {
        let stat = store.stat(&key(path)).unwrap();
        assert_eq!(stat.is_some(), found.contains_key(&key(path)), "{path}");
    }
    let mut stats = Vec::new();
    store.stat_many(&mut KEYS.iter().map(|path| key(path)), &mut |stat| {
        stats.push(stat.unwrap());
        true
    });
    assert_eq!(stats, KEYS.map(|path| store.stat(&key(path)).unwrap()));
    found
}

fn values(content: Content) -> Content {
    content
        .into_iter()
        .filter(|(_, value)| value.is_some())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn an_overlay_is_like_a_store_of_its_own(n in 0..LOWER.len(), ops in prop::collection::vec(op(), 1..40)) {
        let below = lower(n);
        let model = lower(n);
        let directory = tempfile::tempdir().unwrap();
        let uppers: [Arc<dyn Store>; 2] = [
            Arc::new(MemoryStore::default()),
            Arc::new(DirectoryStore::open(directory.path()).unwrap().without_fsync()),
        ];
        for (i, op) in ops.iter().enumerate() {
            let results = uppers.each_ref().map(|upper| apply(&overlay(below.clone(), upper.clone()), op));
            prop_assert_eq!(results[0], results[1], "{:?}", op);
            prop_assert_eq!(results[0], apply(model.as_ref(), op), "{} {:?}", i, op);
            for upper in &uppers {
                prop_assert_eq!(content(&overlay(below.clone(), upper.clone())), content(model.as_ref()), "{:?}", op);
            }
        }
        prop_assert_eq!(content(below.as_ref()), content(lower(n).as_ref()), "the lower store is not written");
    }

    /// Fails each call of the upper store that the last operation makes.
    #[test]
    fn an_interrupted_change_leaves_the_view_before_or_after_it(
        n in 0..LOWER.len(), ops in prop::collection::vec(op(), 1..12),
    ) {
        let (last, earlier) = ops.split_last().unwrap();
        let below = lower(n);
        let prepare = || {
            let upper = Arc::new(MemoryStore::default());
            let store = overlay(below.clone(), upper.clone());
            earlier.iter().for_each(|op| _ = apply(&store, op));
            (upper, content(&store))
        };
        let (upper, before) = prepare();
        let _ = apply(&overlay(below.clone(), upper.clone()), last);
        let after = content(&overlay(below.clone(), upper));
        for operation in [Operation::Put, Operation::Delete, Operation::Sync, Operation::Prefix, Operation::Rename] {
            for applied in [false, true] {
                for calls in 0.. {
                    let upper = prepare().0;
                    let faulty = Arc::new(FaultyStore::new(upper.clone()));
                    let fault = PlannedFault { after: calls, applied, ..PlannedFault::next(operation, libc::EIO) };
                    faulty.plan(fault);
                    let _ = apply(&overlay(below.clone(), faulty.clone()), last);
                    let found = content(&overlay(below.clone(), upper.clone()));
                    let (found, old, new) = match last {
                        Op::MakePrefix(_) | Op::RemovePrefix(_) => (found, before.clone(), after.clone()),
                        _ => (values(found), values(before.clone()), values(after.clone())),
                    };
                    let is_fine = found == old || found == new || is_interrupted_rename(last, &found, &old, &new);
                    prop_assert!(is_fine, "{:?} {:?} of {:?}: {:?}", fault, last, ops, found);
                    if faulty.calls(operation) <= calls {
                        break;
                    }
                }
            }
        }
    }

    /// Commits to the lower store and to a copy of it, also if each call fails in turn and the
    /// commit is repeated.
    #[test]
    fn a_commit_makes_the_store_equal_to_the_view(
        n in 0..LOWER.len(), ops in prop::collection::vec(op(), 1..20), is_copy in any::<bool>(), failing in 0u64..12,
    ) {
        let below = lower(n);
        let directory = tempfile::tempdir().unwrap();
        let upper: Arc<dyn Store> = Arc::new(DirectoryStore::open(directory.path()).unwrap().without_fsync());
        let store = overlay(below.clone(), upper.clone());
        ops.iter().for_each(|op| _ = apply(&store, op));
        let wanted = values(content(&store));
        let target = if is_copy { lower(n) } else { below.clone() };
        let faulty = FaultyStore::new(target.clone());
        for operation in [Operation::Put, Operation::Delete, Operation::Sync, Operation::Prefix] {
            for applied in [false, true] {
                faulty.plan(PlannedFault { after: failing, applied, ..PlannedFault::next(operation, libc::EIO) });
            }
        }
        let mut attempts = 0;
        let report = loop {
            match run_commit(&[upper.as_ref(), below.as_ref(), &faulty], &mut |_| {}) {
                Ok(report) => break report,
                Err(e) => prop_assert!(e.message().ends_with("Input/output error") && attempts < 20, "{}", e),
            }
            attempts += 1;
        };
        prop_assert_eq!(report.conflicts, 0);
        prop_assert_eq!(values(content(target.as_ref())), wanted, "{:?}", ops);
        let mut left = 0;
        OverlayStore::visit_changes(upper.as_ref(), &mut |_| { left += 1; Ok(()) }).unwrap();
        prop_assert_eq!(left, 0);
        let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        prop_assert!(names.into_iter().all(|name| name == record::RECORDS), "values are left");
    }
}

/// Returns whether each value is at its old or at its new place, or at both: a rename copies values
/// first.
fn is_interrupted_rename(last: &Op, found: &Content, old: &Content, new: &Content) -> bool {
    let Op::Rename(from, to) = last else {
        return false;
    };
    let from = key(KEYS[*from]);
    let to = key(KEYS[*to]);
    let is_kept = |(key, value): (&Key, &Option<Vec<u8>>)| {
        let moved = key.moved(&from, &to).and_then(|moved| found.get(&moved));
        found.get(key) == Some(value) || moved == Some(value) || *key == to
    };
    let is_known = |(key, value)| old.get(key) == Some(value) || new.get(key) == Some(value);
    found.iter().all(is_known) && old.iter().all(is_kept)
}

fn run_commit(stores: &[&dyn Store; 3], conflicts: &mut dyn FnMut(&str)) -> Result<CommitReport> {
    let mut on_conflict = |key: &Key, _: &str| {
        conflicts(key.as_str());
        Ok(())
    };
    Committer::new(*stores, &|_| 0, &|_, _, _| false, &mut on_conflict).run()
}

fn get(store: &dyn Store, path: &str) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    store
        .get(&key(path), 100, &mut value)
        .unwrap()
        .map(|_| value)
}

#[test]
fn a_changed_lower_value_is_reported_and_not_shown() {
    let below = lower(0);
    let upper = Arc::new(MemoryStore::default());
    let stats = Arc::new(Stats::default());
    let store = OverlayStore::over(
        below.clone(),
        upper.clone(),
        std::env::temp_dir(),
        stats.clone(),
    )
    .unwrap();
    store.put(&key("b"), b"ours").unwrap();
    store.delete(&key("a/c")).unwrap();
    store.put(&key("new"), b"1").unwrap();
    assert_eq!(
        (get(&store, "b").unwrap(), stats.problems()),
        (b"ours".to_vec(), vec![])
    );
    below.insert("b", "theirs");
    below.insert("a/c", "theirs");
    below.insert("new", "theirs");
    for _ in 0..2 {
        assert_eq!(get(&store, "b").unwrap(), b"ours");
        assert_eq!(get(&store, "a/c"), None);
    }
    assert_eq!(store.stat(&key("new")).unwrap().unwrap().size, 1);
    let problems = stats.problems();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems[0].starts_with("/b: the store below has changed since"),
        "{problems:?}"
    );
    // a rewrite stays on the version that it was laid on
    store.put(&key("b"), b"again").unwrap();
    // a new key that another writer has created, too, is not uncovered by its removal
    assert!(store.delete(&key("new")).unwrap() && get(&store, "new").is_none());
    let mut conflicts = Vec::new();
    OverlayStore::visit_changes(upper.as_ref(), &mut |change| {
        conflicts.push((
            change.key.as_str().to_string(),
            change.kind,
            change.is_conflict(below.as_ref())?,
        ));
        Ok(())
    })
    .unwrap();
    conflicts.sort_by(|a, b| a.0.cmp(&b.0));
    let [changed, removed] = [ChangeKind::Changed, ChangeKind::Removed];
    let all = [("a/c", removed), ("b", changed), ("new", removed)]
        .map(|(key, kind)| (key.to_string(), kind, true));
    assert_eq!(conflicts, all);
}

#[test]
fn a_commit_leaves_conflicts_and_takes_what_is_there_already() {
    let below = lower(0);
    let directory = tempfile::tempdir().unwrap();
    let upper: Arc<dyn Store> = Arc::new(DirectoryStore::open(directory.path()).unwrap());
    let store = overlay(below.clone(), upper.clone());
    for path in ["a/b/c", "b", "x", "y"] {
        store.put(&key(path), b"ours").unwrap();
    }
    store.delete(&key("a/c")).unwrap();
    below.insert("b", "theirs");
    below.insert("a/c", "theirs");
    below.insert("y", "theirs");
    // committed by an earlier attempt
    below.insert("x", "ours");
    let mut conflicts = Vec::new();
    let stores: [&dyn Store; 3] = [upper.as_ref(), below.as_ref(), below.as_ref()];
    let report = run_commit(&stores, &mut |key| conflicts.push(key.to_string())).unwrap();
    conflicts.sort();
    assert_eq!((report.committed, report.conflicts), (2, 3));
    assert_eq!(conflicts, ["a/c", "b", "y"]);
    assert_eq!(get(below.as_ref(), "a/b/c").unwrap(), b"ours");
    for path in ["a/c", "b", "y"] {
        assert_eq!(get(below.as_ref(), path).unwrap(), b"theirs");
    }
    assert_eq!(
        (get(&store, "b").unwrap(), get(&store, "a/c")),
        (b"ours".to_vec(), None)
    );
    // one conflict is resolved for the store
    assert_eq!(
        OverlayStore::discard_changes(upper.as_ref(), &key("a")).unwrap(),
        1
    );
    assert_eq!(get(&store, "a/c").unwrap(), b"theirs");
    assert_eq!(
        OverlayStore::discard_changes(upper.as_ref(), &key("a")).unwrap(),
        0
    );
    assert!(!directory.path().join("a").exists());
}

#[test]
fn a_removed_prefix_hides_what_its_store_cannot_list() {
    let below = lower(0);
    below.insert("a/0.0", "chunk");
    let unlisted: Arc<dyn Store> = Arc::new(UnlistedStore::new(below.clone()));
    let directory = tempfile::tempdir().unwrap();
    let upper: Arc<dyn Store> = Arc::new(DirectoryStore::open(directory.path()).unwrap());
    let store = overlay(unlisted.clone(), upper.clone());
    assert!(!store.lists_all());
    store.put(&key("a/meta"), b"1").unwrap();
    assert_eq!(get(&store, "a/0.0").unwrap(), b"chunk");
    store.delete(&key("a/meta")).unwrap();
    // the server does not know prefixes, so the records that are left count
    record::put(
        upper.as_ref(),
        &key("a"),
        ChangeKind::Removed,
        Some("prefix".into()),
    )
    .unwrap();
    assert_eq!(
        (get(&store, "a/0.0"), store.stat(&key("a")).unwrap()),
        (None, None)
    );
    store.put(&key("a/meta"), b"2").unwrap();
    assert_eq!(
        (get(&store, "a/0.0"), get(&store, "a/meta").unwrap()),
        (None, b"2".to_vec())
    );
    // a copy loses the chunk, too
    let copy = lower(0);
    copy.insert("a/0.0", "chunk");
    copy.insert("a/9.9", "of another writer");
    let mut conflicts = Vec::new();
    let stores: [&dyn Store; 3] = [upper.as_ref(), unlisted.as_ref(), copy.as_ref()];
    run_commit(&stores, &mut |key| conflicts.push(key.to_string())).unwrap();
    assert_eq!(
        (conflicts, get(copy.as_ref(), "a/0.0")),
        (vec!["a/9.9".to_string()], None)
    );
    assert_eq!(get(copy.as_ref(), "a/meta").unwrap(), b"2");
}

#[test]
fn conditions_are_those_of_the_view() {
    let store = overlay(lower(0), Arc::new(MemoryStore::default()));
    let version = |path: &str| store.stat(&key(path)).unwrap().unwrap().version;
    let first = version("b");
    assert_eq!(
        store.put_if(&key("b"), b"1", Replaces::Nothing).unwrap(),
        None
    );
    let second = store
        .put_if(&key("b"), b"1", Replaces::Version(&first))
        .unwrap()
        .unwrap();
    assert_eq!(version("b"), second);
    assert_eq!(
        store
            .put_if(&key("b"), b"2", Replaces::Version(&first))
            .unwrap(),
        None
    );
    store.delete(&key("b")).unwrap();
    assert_eq!(
        store
            .put_if(&key("b"), b"2", Replaces::Version(&second))
            .unwrap(),
        None
    );
    assert!(
        store
            .put_if(&key("b"), b"2", Replaces::Nothing)
            .unwrap()
            .is_some()
    );
    assert_eq!(get(&store, "b").unwrap(), b"2");
}

#[test]
fn old_pieces_come_from_the_version_that_is_replaced() {
    let below = lower(0);
    let large: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    below.insert("big", large.clone());
    let directory = tempfile::tempdir().unwrap();
    let store = overlay(
        below.clone(),
        Arc::new(DirectoryStore::open(directory.path()).unwrap()),
    );
    let version = store.stat(&key("big")).unwrap().unwrap().version;
    let pieces = [
        ValuePiece::Old(5..2_500_000),
        ValuePiece::Bytes(b"new"),
        ValuePiece::Old(0..5),
    ];
    below.insert("other", "x");
    let put = store
        .put_pieces(&key("big"), &pieces, Replaces::Version(&version))
        .unwrap()
        .unwrap();
    let mut value = Vec::new();
    assert_eq!(
        store.get(&key("big"), u64::MAX, &mut value).unwrap(),
        Some(put)
    );
    assert_eq!(value, [&large[5..2_500_000], b"new", &large[..5]].concat());
    assert_eq!(
        store
            .put_pieces(&key("big"), &pieces, Replaces::Version(&version))
            .unwrap(),
        None
    );
    let mut file = store.writable_file(&key("a/c"), false, false).unwrap();
    std::io::Write::write_all(&mut file, b"X").unwrap();
    assert_eq!(get(&store, "a/c").unwrap(), b"X/c");
    assert!(store.writable_file(&key("a/c"), true, true).is_err());
    assert!(store.writable_file(&key("a/n"), false, false).is_err());
    store.writable_file(&key("a/n"), true, true).unwrap();
    assert_eq!(get(&store, "a/n").unwrap(), b"");
}

#[test]
fn the_names_of_records_are_no_keys() {
    let below = lower(0);
    below.insert(".zarrfs-overlay/b", "{}");
    let store = overlay(below, Arc::new(MemoryStore::default()));
    store.put(&key("b"), b"1").unwrap();
    for path in [
        ".zarrfs-overlay",
        ".zarrfs-overlay/b",
        "a/.zarrfs-overlay/x",
    ] {
        assert_eq!(store.stat(&key(path)).unwrap(), None);
        assert!(get(&store, path).is_none());
        assert!(store.put(&key(path), b"").is_err() && store.delete(&key(path)).is_err());
        assert!(
            store.make_prefix(&key(path)).is_err() && store.rename(&key("b"), &key(path)).is_err()
        );
        assert!(store.list(&key(path)).is_err());
    }
    let names: Vec<String> = store
        .list(&Key::root())
        .unwrap()
        .map(|entry| entry.unwrap().name)
        .collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn only_the_owner_may_write_and_nobody_sees_more_than_below() {
    let below = tempfile::tempdir().unwrap();
    let above = tempfile::tempdir().unwrap();
    let set_mode = |path: &str, mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(below.path().join(path), permissions).unwrap();
    };
    for (name, mode) in [("private", 0o600), ("shared", 0o664), ("fixed", 0o444)] {
        std::fs::write(below.path().join(name), "x").unwrap();
        set_mode(name, mode);
    }
    let store = overlay(
        Arc::new(DirectoryStore::open(below.path()).unwrap()),
        Arc::new(DirectoryStore::open(above.path()).unwrap()),
    );
    let uid = rustix::process::geteuid().as_raw();
    let bits = |path: &str| {
        let permissions = store
            .stat(&key(path))
            .unwrap()
            .unwrap()
            .permissions
            .unwrap();
        permissions.bits(uid, rustix::process::getegid().as_raw())
    };
    assert_eq!(
        ["private", "shared", "fixed"].map(bits),
        [0o600, 0o644, 0o644]
    );
    store.put(&key("private"), b"y").unwrap();
    assert_eq!(bits("private"), 0o600);
}
