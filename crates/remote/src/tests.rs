mod bodies;
mod bucket;
mod ends;
mod faults;
mod outages;
mod ranges;
mod server;
mod web;

use super::*;
use server::{After, Reply, Request, Server, reply};
use std::time::{Duration, Instant};
use zarrfs_base::error::Kind;
use zarrfs_store::StoreExt;

fn key(path: &str) -> Key {
    Key::normalize(path).unwrap()
}

/// Maximum time of work on a busy machine. Only what hangs takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `done` returns true.
#[track_caller]
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns options with few retries, and a timeout that only a silent server reaches.
fn quick() -> ObjectOptions {
    ObjectOptions {
        timeout: Duration::from_secs(15),
        retries: 3,
        ..ObjectOptions::default()
    }
}

fn open(url: &str, options: &ObjectOptions) -> (ObjectStore, Arc<Stats>) {
    let stats = Arc::new(Stats::default());
    (
        ObjectStore::open(url, options, stats.clone()).unwrap(),
        stats,
    )
}

/// Returns the value of `key`.
fn get(store: &ObjectStore, path: &str) -> Result<Option<Vec<u8>>> {
    let mut value = Vec::new();
    Ok(store.get(&key(path), 1 << 20, &mut value)?.map(|_| value))
}

fn get_range(
    store: &ObjectStore,
    path: &str,
    range: Range<u64>,
) -> Result<Option<(Vec<u8>, Stat)>> {
    let mut value = Vec::new();
    Ok(store
        .get_range(&key(path), range, &mut value)?
        .map(|stat| (value, stat)))
}
