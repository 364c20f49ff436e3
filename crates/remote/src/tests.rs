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

fn key(path: &str) -> Key {
    Key::normalize(path).unwrap()
}

/// Returns options with short timeouts.
fn quick() -> ObjectOptions {
    ObjectOptions {
        timeout: Duration::from_secs(3),
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
