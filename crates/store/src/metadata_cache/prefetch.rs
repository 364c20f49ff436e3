//! Requests many levels and documents together, before a caller asks for one after the other.

use super::{MetadataCache, snapshot};
use crate::{Key, Stat, StoreExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;

/// Minimum number of prefixes whose values are listed together, which may take two requests in
/// vain.
const TOGETHER: usize = 6;

/// Requests the names in these prefixes and the documents among them. Errors are ignored: a caller
/// that needs a failed answer requests it again, and gets the error then.
pub(super) fn prefetch(cache: &MetadataCache, prefixes: &[Key]) {
    let documents = lock(&cache.contents).documents();
    if documents.is_empty() || prefixes.is_empty() {
        return;
    }
    list_together(cache, prefixes);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(prefix) = prefixes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let _ = prefetch_one(cache, prefix, documents);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..cache.below.concurrency().min(prefixes.len()) {
            // fewer threads only take longer
            if Builder::new()
                .name("zarrfs-prefetch".into())
                .spawn_scoped(scope, work)
                .is_err()
            {
                break;
            }
        }
        work();
    });
}

/// Lists the values below prefixes of one level together, if many of these are unknown or will be
/// soon.
fn list_together(cache: &MetadataCache, prefixes: &[Key]) {
    let mut unknown: Vec<&Key> = prefixes.iter().collect();
    let is_dense = {
        let mut contents = lock(&cache.contents);
        unknown.retain(|key| !key.is_root() && contents.is_expiring_level(key));
        unknown
            .first()
            .is_some_and(|key| contents.dense.as_ref() == Some(&key.parent()))
    };
    unknown.sort_unstable();
    let (Some(first), Some(last)) = (unknown.first(), unknown.last()) else {
        return;
    };
    let level = first.parent();
    if unknown.len() < TOGETHER || is_dense || unknown.iter().any(|key| key.parent() != level) {
        return;
    }
    if !snapshot::take_siblings(cache.below.as_ref(), first, last, &cache.contents) {
        lock(&cache.contents).dense = Some(level);
    }
}

/// Requests metadata of several documents of a level together, if the metadata of `key` and of
/// others is no longer valid, and returns the answer for `key`. A server that cannot list is asked
/// for several documents to recognize a node, and again when a file is opened.
pub(super) fn revalidate_documents(
    cache: &MetadataCache,
    key: &Key,
) -> Option<Result<Option<Stat>>> {
    let requests = lock(&cache.contents).request_documents(key);
    if requests.is_empty() {
        return None;
    }
    let mut keys = requests.iter().map(|(key, _)| key.clone());
    // threads that wait for an answer go on when its sender is dropped
    let senders: Vec<_> = requests
        .iter()
        .map(|(key, pending)| (key, pending, pending.sender()))
        .collect();
    let mut senders = senders.into_iter();
    let mut answer = None;
    cache.below.stat_many(&mut keys, &mut |stat| {
        let Some((requested, pending, sender)) = senders.next() else {
            return false;
        };
        lock(&cache.contents).finish(requested, pending, stat.as_ref().ok());
        if requested == key {
            answer = Some(stat.clone());
        }
        sender.finish(stat);
        true
    });
    answer
}

fn prefetch_one(cache: &MetadataCache, prefix: &Key, documents: &[&str]) -> Result<()> {
    cache.cache_level(prefix)?;
    let keys = lock(&cache.contents).uncached(prefix, documents);
    for key in keys {
        cache.get(&key, super::MAX_VALUE as u64, &mut Vec::new())?;
    }
    Ok(())
}
