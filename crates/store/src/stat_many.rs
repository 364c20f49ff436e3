//! Metadata of many keys, some of which are known already.

use super::{Key, Stat, Store};
use zarrfs_base::error::Result;

/// Maximum number of keys per batch.
const BATCH: usize = 1024;

/// Calls `each` with the metadata of each key, in order, until it returns `false`. Requests the
/// keys for which `known` returns `None` from `below`, once per batch.
pub fn stat_many_with(
    below: &dyn Store,
    keys: &mut dyn Iterator<Item = Key>,
    known: &mut dyn FnMut(&Key) -> Option<Result<Option<Stat>>>,
    each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
) {
    loop {
        let batch: Vec<_> = keys.take(BATCH).map(|key| (known(&key), key)).collect();
        if batch.is_empty() {
            return;
        }
        let mut unknown = batch
            .iter()
            .filter(|(stat, _)| stat.is_none())
            .map(|(_, key)| key.clone());
        let mut known_stats = batch.iter().map(|(stat, _)| stat);
        let mut continues = true;
        // passes on the known results up to the next unknown key, and consumes that key
        let mut report_known = |each: &mut dyn FnMut(Result<Option<Stat>>) -> bool| {
            known_stats.by_ref().map_while(Clone::clone).all(&mut *each)
        };
        continues &= report_known(each);
        if continues && batch.iter().any(|(stat, _)| stat.is_none()) {
            below.stat_many(&mut unknown, &mut |stat| {
                continues = each(stat) && report_known(each);
                continues
            });
        }
        if !continues {
            return;
        }
    }
}
