use super::*;
use crate::MemoryStore;
use crate::testing::SimulatedRemote;
use std::time::Duration;

fn key(text: &str) -> Key {
    Key::normalize(text).unwrap()
}

/// Returns a store with the values `a/x`, `a/b/y` and `z`.
fn remote() -> Arc<SimulatedRemote> {
    let remote = SimulatedRemote::new(Duration::ZERO, true);
    for name in ["a/x", "a/b/y", "z"] {
        remote.below.put(&key(name), name.as_bytes()).unwrap();
    }
    Arc::new(remote)
}

/// Returns the answers of a store for all keys that the tests use.
fn seen(store: &dyn Store) -> Vec<String> {
    let mut seen = Vec::new();
    for name in [
        "", "a", "a/x", "a/b", "a/b/y", "a/b/n", "z", "n", "n/m", "n/m/o", "z/x",
    ] {
        let kind = store
            .stat(&key(name))
            .unwrap()
            .map(|stat| (stat.kind, stat.size));
        let mut value = Vec::new();
        let is_value = kind.is_some_and(|(kind, _)| kind == EntryKind::Value);
        let got = is_value.then(|| store.get(&key(name), 100, &mut value).unwrap().is_some());
        let names = match kind {
            Some((EntryKind::Prefix, _)) => {
                let mut names: Vec<_> = store
                    .list(&key(name))
                    .unwrap()
                    .map(|entry| entry.unwrap().name)
                    .collect();
                names.sort();
                names
            }
            _ => Vec::new(),
        };
        seen.push(format!("{name}: {kind:?} {got:?} {value:?} {names:?}"));
    }
    seen
}

#[test]
fn answers_are_those_of_the_store_before_and_after_changes() {
    let below = remote();
    let cache = LevelCache::new(below.clone());
    assert_eq!(seen(&cache), seen(&below.below));
    for round in 0..2 {
        // once with all levels known, once with none
        let cache = LevelCache::new(below.clone());
        if round == 0 {
            seen(&cache);
        }
        cache.put(&key("n/m/o"), b"new").unwrap();
        cache.put(&key("a/b/n"), b"new").unwrap();
        assert_eq!(
            cache
                .put_if(&key("a/x"), b"not", Replaces::Nothing)
                .unwrap(),
            None
        );
        let version = cache.stat(&key("a/x")).unwrap().unwrap().version;
        assert!(
            cache
                .put_if(&key("a/x"), b"longer", Replaces::Version(&version))
                .unwrap()
                .is_some()
        );
        assert_eq!(seen(&cache), seen(&below.below));
        assert!(cache.delete(&key("n/m/o")).unwrap() && !cache.delete(&key("n/nothing")).unwrap());
        assert_eq!(cache.stat(&key("n/m/o")).unwrap(), None);
        assert_eq!(
            seen(&*cache.at(key("a/b"))),
            seen(&*LevelCache::new(below.clone()).at(key("a/b")))
        );
    }
}

#[test]
fn no_request_is_sent_twice() {
    let below = remote();
    let cache = LevelCache::new(below.clone());
    let store = cache.at(key("a"));
    for _ in 0..3 {
        seen(&*store);
        store.forget(&Key::root());
        assert!(
            store
                .get(&key("b/y"), 100, &mut Vec::new())
                .unwrap()
                .is_some()
        );
        assert!(
            store
                .get(&key("x"), 100, &mut Vec::new())
                .unwrap()
                .is_some()
        );
        assert_eq!(
            (
                store.stat(&key("n/m/o")).unwrap(),
                store.delete(&key("n")).unwrap()
            ),
            (None, false)
        );
    }
    assert_eq!(below.counts(), [2, 0, 0]);
    assert_eq!(
        below.below.stat(&key("a/x")).unwrap().map(|stat| stat.size),
        Some(3)
    );
}

#[test]
fn a_key_that_another_program_has_created_is_not_overwritten() {
    let below = remote();
    let cache = LevelCache::new(below.clone());
    assert_eq!(cache.stat(&key("a/new")).unwrap(), None);
    below.below.put(&key("a/new"), b"of another").unwrap();
    assert_eq!(
        cache.put(&key("a/new"), b"own").unwrap_err().errno(),
        libc::EEXIST
    );
    let mut value = Vec::new();
    assert!(cache.get(&key("a/new"), 100, &mut value).unwrap().is_some() && value == b"of another");
}

#[test]
fn created_prefixes_exist_for_the_command_alone() {
    let below = Arc::new(MemoryStore::default());
    let cache = LevelCache::new(below.clone()).at(key("store"));
    assert_eq!(
        cache.stat(&Key::root()).unwrap().map(|stat| stat.kind),
        Some(EntryKind::Prefix)
    );
    assert_eq!(cache.list(&Key::root()).unwrap().count(), 0);
    assert_eq!(
        cache.make_prefix(&key("a/b")).unwrap_err().kind(),
        Kind::NotFound
    );
    cache.make_prefix(&key("a")).unwrap();
    assert_eq!(
        cache.make_prefix(&key("a")).unwrap_err().errno(),
        libc::EEXIST
    );
    assert_eq!(cache.list(&key("a")).unwrap().count(), 0);
    assert_eq!(below.stat(&key("store/a")).unwrap(), None);
    cache.put(&key("a/x"), b"1").unwrap();
    assert_eq!(
        below.stat(&key("store/a/x")).unwrap().map(|stat| stat.size),
        Some(1)
    );
}
