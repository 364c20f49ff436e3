//! Several writers of one value, with stores of their own as in different processes. Each writer
//! counts in a cell of its own, so that a lost change shows as a smaller number.

use crate::{DirectoryStore, Key, Replaces, StoreExt};
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 3;
const ROUNDS: u8 = 200;

fn key() -> Key {
    Key::normalize("a/0.0").unwrap()
}

fn open(path: &Path, refuses_conditions: bool) -> DirectoryStore {
    let store = DirectoryStore::open(path).unwrap().without_fsync();
    if refuses_conditions {
        store.refusing_conditions()
    } else {
        store
    }
}

/// Reads the cells, changes one, and stores them if no other writer came between. Returns whether
/// they were stored.
fn change(store: &DirectoryStore, cell: usize, value: u8) -> bool {
    let mut cells = Vec::new();
    let version = store.get(&key(), 1 << 20, &mut cells).unwrap();
    cells.resize(WRITERS, 0);
    cells[cell] = value;
    let replaces = version
        .as_ref()
        .map_or(Replaces::Nothing, Replaces::Version);
    store.put_if(&key(), &cells, replaces).unwrap().is_some()
}

/// Counts in a cell of a store of its own. Returns the number of conflicts.
fn count(store: &DirectoryStore, cell: usize, takes_turns: bool) -> u32 {
    let mut conflicts = 0;
    for value in 1..=ROUNDS {
        let lock = takes_turns.then(|| store.lock(&key(), Instant::now()).unwrap());
        while !change(store, cell, value) {
            conflicts += 1;
        }
        drop(lock);
    }
    conflicts
}

/// Returns the number of conflicts of all writers, of which none may lose a change.
fn count_together(refuses_conditions: bool, takes_turns: bool) -> u32 {
    let folder = tempfile::tempdir().unwrap();
    let stores: Vec<_> = (0..WRITERS)
        .map(|_| open(folder.path(), refuses_conditions))
        .collect();
    if takes_turns {
        // a key without a value has no lock
        stores[0].put(&key(), &[0; WRITERS]).unwrap();
    }
    let conflicts = std::thread::scope(|scope| {
        let writers: Vec<_> = stores
            .iter()
            .enumerate()
            .map(|(cell, store)| scope.spawn(move || count(store, cell, takes_turns)))
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .sum()
    });
    let stored = std::fs::read(folder.path().join("a/0.0")).unwrap();
    assert_eq!(stored, [ROUNDS; WRITERS], "{refuses_conditions}");
    let names: HashSet<_> = std::fs::read_dir(folder.path().join("a"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, HashSet::from(["0.0".into()]));
    conflicts
}

#[test]
fn changes_of_one_value_are_all_kept() {
    for refuses_conditions in [false, true] {
        count_together(refuses_conditions, false);
    }
}

/// A writer that has the lock meets no other.
#[test]
fn writers_that_take_turns_meet_no_conflicts() {
    for refuses_conditions in [false, true] {
        assert_eq!(count_together(refuses_conditions, true), 0);
    }
}

/// A program without locks replaces the value by renaming, as zarr-python does. Its cell is smaller
/// than its last number only while names are exchanged. It keeps the replaced files open, so that
/// none of its values has the inode number of another one within one tick of the kernel's clock.
#[test]
fn changes_of_a_program_without_locks_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), false);
    let path = folder.path().join("a/0.0");
    let other = folder.path().join("a/other");
    store.put(&key(), &[0; WRITERS]).unwrap();
    let is_done = AtomicBool::new(false);
    let lost: Vec<u8> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in (0..=u8::MAX).cycle() {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                change(&store, 0, value);
            }
        });
        let mut replaced = Vec::new();
        let lost = (0..20).flat_map(|_| 1..=u8::MAX).filter(|value| {
            replaced.push(File::open(&path).unwrap());
            if replaced.len() > 200 {
                replaced.remove(0);
            }
            let mut cells = std::fs::read(&path).unwrap();
            cells[1] = *value;
            std::fs::write(&other, &cells).unwrap();
            std::fs::rename(&other, &path).unwrap();
            // the names stay exchanged as long as the other thread gets no time
            let late = Instant::now() + Duration::from_secs(60);
            while std::fs::read(&path).unwrap()[1] != *value {
                if Instant::now() > late {
                    return true;
                }
            }
            false
        });
        let lost = lost.take(1).collect();
        is_done.store(true, Ordering::Relaxed);
        lost
    });
    assert_eq!(lost, [0; 0]);
}

#[test]
fn a_file_that_is_rewritten_in_place_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), false);
    let version = store.put(&key(), b"old").unwrap();
    std::fs::write(folder.path().join("a/0.0"), b"newer").unwrap();
    let put = store.put_if(&key(), b"ours", Replaces::Version(&version));
    assert_eq!(put.unwrap(), None);
    assert_eq!(
        std::fs::read(folder.path().join("a/0.0")).unwrap(),
        b"newer"
    );
}

/// A writer that cannot get the lock of a value waits for a bounded time and goes on.
#[test]
fn a_lock_that_is_never_released_delays_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), false);
    store.put(&key(), b"old").unwrap();
    let held = File::open(folder.path().join("a/0.0")).unwrap();
    held.lock().unwrap();
    let long_ago = Instant::now().checked_sub(Duration::from_secs(3600));
    let since = long_ago.unwrap_or_else(Instant::now);
    let _lock = store.lock(&key(), since).unwrap();
    assert!(change(&store, 0, 1));
}
