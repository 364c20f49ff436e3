//! Archives that are replaced, rewritten or removed while they are read: every result comes from
//! one version.

use super::*;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn local(home: &Path) -> ZipStore {
    ZipStore::open(Arc::new(DirectoryStore::open(home).unwrap()), &key("x.zip")).unwrap()
}

/// Replaces the archive by a rename, as programs do.
fn replace(home: &Path, bytes: &[u8]) {
    std::fs::write(home.join("new"), bytes).unwrap();
    std::fs::rename(home.join("new"), home.join("x.zip")).unwrap();
}

#[test]
fn a_replaced_archive_is_noticed() {
    let home = tempfile::tempdir().unwrap();
    let bytes = archive(&[member("a", "one"), member("b", "same")]);
    replace(home.path(), &bytes);
    let store = local(home.path());
    let version = || store.get(&key("b"), 100, &mut Vec::new()).unwrap();
    assert_eq!(get(&store, "a").unwrap().unwrap(), b"one");
    let before = version();
    let listing = store.list(&Key::root()).unwrap();
    replace(
        home.path(),
        &archive(&[member("b", "same"), member("c", "new")]),
    );
    assert_eq!(store.stat(&key("c")).unwrap().unwrap().size, 3);
    assert_eq!(
        (
            get(&store, "a").unwrap(),
            get(&store, "c").unwrap().unwrap()
        ),
        (None, b"new".to_vec())
    );
    assert_ne!(version(), before);
    // a listing continues with the version in which it began
    assert_eq!(
        listing.map(|e| e.unwrap().name).collect::<Vec<_>>(),
        ["a", "b"]
    );
    // another archive with the same bytes has another version
    let before = version();
    replace(home.path(), &bytes);
    store.forget(&Key::root());
    assert_ne!(version(), before);
}

#[test]
fn an_archive_written_in_place_is_reopened() {
    let home = tempfile::tempdir().unwrap();
    let [old, new] = [1u8, 2].map(|i| {
        archive(&[
            member("a", vec![i; 100]),
            member("b", vec![i; 100]).deflated(),
        ])
    });
    replace(home.path(), &old);
    let store = local(home.path());
    assert_eq!(get(&store, "a").unwrap().unwrap(), [1; 100]);
    // timestamps of files have a coarse clock
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(home.path().join("x.zip"), &new).unwrap();
    assert_eq!(
        (
            get(&store, "a").unwrap().unwrap(),
            get(&store, "b").unwrap().unwrap()
        ),
        (vec![2; 100], vec![2; 100])
    );
}

#[test]
fn a_removed_archive_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    replace(home.path(), &archive(&[member("a", "1")]));
    let store = local(home.path());
    std::fs::remove_file(home.path().join("x.zip")).unwrap();
    store.forget(&Key::root());
    let errors = [
        get(&store, "a").map(|_| ()),
        part(&store, "a", 0..1).map(|_| ()),
        store.stat(&key("a")).map(|_| ()),
        store.list(&Key::root()).map(|_| ()),
    ];
    assert!(
        errors
            .iter()
            .all(|e| e.as_ref().is_err_and(|e| e.errno() == libc::EIO)),
        "{errors:?}"
    );
    replace(home.path(), &archive(&[member("a", "2")]));
    assert_eq!(get(&store, "a").unwrap().unwrap(), b"2");
    let none = ZipStore::open(Arc::new(MemoryStore::default()), &key("x.zip"))
        .err()
        .unwrap();
    assert_eq!(
        (none.kind(), none.message()),
        (Kind::NotFound, "no such archive")
    );
}

#[test]
fn values_come_from_one_archive_during_replacements() {
    let below = Arc::new(MemoryStore::default());
    // the other members have other offsets in each version
    let archives: Vec<_> = (0..7u8)
        .map(|i| {
            let value = vec![i; 1000 + 100 * usize::from(i)];
            archive(&[
                member("first", vec![9; 50 * usize::from(i)]),
                member("a", &*value),
                member("b", value).deflated(),
            ])
        })
        .collect();
    below.insert("x.zip", &*archives[0]);
    let store = ZipStore::open(below.clone(), &key("x.zip")).unwrap();
    let is_over = AtomicBool::new(false);
    let gave_up = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..2000 {
                below.insert("x.zip", &*archives[i % 7]);
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::SeqCst);
        });
        for name in ["a", "b"] {
            let store = &store;
            let is_over = &is_over;
            let gave_up = &gave_up;
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    match get(store, name) {
                        Ok(value) => {
                            let value = value.unwrap();
                            assert_eq!(value, vec![value[0]; 1000 + 100 * usize::from(value[0])]);
                        }
                        Err(e) => {
                            assert!(
                                e.message().ends_with("changes faster than it can be read"),
                                "{e}"
                            );
                            gave_up.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(get(&store, "a").unwrap().unwrap(), vec![4; 1400]);
}
