//! Requests many levels and documents together, before a caller asks for one after the other.

use super::MetadataCache;
use crate::error::Result;
use crate::store::{Key, Store};
use crate::util::memory::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// Requests the names in these prefixes and the documents among them. Errors are ignored: a caller that needs a failed
/// answer requests it again, and gets the error then.
pub(super) fn prefetch(cache: &MetadataCache, prefixes: &[Key]) {
    let documents = lock(&cache.contents).documents();
    if documents.is_empty() || prefixes.is_empty() {
        return;
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(prefix) = prefixes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let _ = prefetch_one(cache, prefix, documents);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..cache.below.concurrency().min(prefixes.len()) {
            // fewer threads only take longer
            if Builder::new().name("zarrfs-prefetch".into()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}

fn prefetch_one(cache: &MetadataCache, prefix: &Key, documents: &[&str]) -> Result<()> {
    cache.look_at(prefix)?;
    let keys = lock(&cache.contents).uncached(prefix, documents);
    for key in keys {
        cache.get(&key, super::MAX_VALUE as u64, &mut Vec::new())?;
    }
    Ok(())
}
