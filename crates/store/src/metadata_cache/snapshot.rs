//! A snapshot of all names below a prefix, from a listing across all levels, if that takes few
//! requests.

use super::contents::CacheContents;
use crate::{Entry, EntryKind, Key, PagedListing, Stat};
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use zarrfs_base::memory::lock;

/// Maximum number of values in a snapshot: their names take half of the cache's memory for names.
const MAX_KEYS: usize = 1 << 15;

/// Number of pages that are requested in any case.
const PAGES: usize = 2;

/// Minimum average number of levels per page. Pages are requested one after the other, but levels
/// concurrently, so a page full of chunks costs more than it saves.
const LEVELS: usize = 8;

/// Lists the values below `prefix`, and records the levels that are completely known. Errors are
/// ignored: later requests report them. If the snapshot `is_final`, names that are not in it do not
/// exist for the command that takes it.
pub(super) fn take(
    store: &dyn PagedListing,
    prefix: &Key,
    is_final: bool,
    contents: &Mutex<CacheContents>,
) {
    let run = lock(contents).begin_listing(prefix);
    let Some((levels, _)) = read(store, prefix, None) else {
        return;
    };
    lock(contents).insert_levels(levels.below(prefix), &run, is_final);
}

/// Lists the values below `first`, `last` and the siblings between them, as [`take`] does. Returns
/// whether that took few requests.
pub(super) fn take_siblings(
    store: &dyn PagedListing,
    first: &Key,
    last: &Key,
    contents: &Mutex<CacheContents>,
) -> bool {
    let run = lock(contents).begin_listing(&first.parent());
    let Some((levels, is_whole)) = read(store, &first.parent(), Some((first, last))) else {
        return false;
    };
    lock(contents).insert_levels(levels.below(&first.parent()), &run, false);
    is_whole
}

/// Reads the values below `prefix`, or of its children from the first to the last one in `range`,
/// as long as that takes few requests. Returns the levels that are completely known, and whether
/// these are all.
fn read(
    store: &dyn PagedListing,
    prefix: &Key,
    range: Option<(&Key, &Key)>,
) -> Option<(Levels, bool)> {
    let pages = store
        .values_below(prefix, range.map(|(first, _)| first))
        .ok()??;
    // in ASCII, `0` follows the slash
    let end = range.map(|(_, last)| format!("{}0", last.as_str()));
    let (mut levels, mut last): (_, Option<Key>) = (Levels::default(), None);
    let mut is_complete = true;
    let mut is_whole = true;
    let mut is_sorted = true;
    for (number, page) in pages.enumerate() {
        let page = page.ok()?;
        let keys = last.iter().chain(page.values.iter().map(|(key, _)| key));
        is_sorted &= keys.is_sorted_by(|a, b| a.as_str() <= b.as_str());
        last = page.values.last().map(|(key, _)| key.clone()).or(last);
        page.values
            .into_iter()
            .for_each(|(key, stat)| levels.add(&key, stat));
        let is_dense = number + 1 < PAGES || levels.names.len() >= LEVELS * (number + 1);
        let is_past = last
            .as_ref()
            .zip(end.as_ref())
            .is_some_and(|(last, end)| last.as_str() >= end.as_str());
        if !page.is_last && (is_past || levels.keys > MAX_KEYS || !is_dense) {
            (is_complete, is_whole) = (false, is_past);
            break;
        }
    }
    if !is_sorted && (!is_complete || range.is_some()) {
        return None;
    }
    // names before the first key, or after the last one, may be missing
    for end in [
        last.filter(|_| !is_complete).as_ref(),
        range.map(|(first, _)| first),
    ]
    .into_iter()
    .flatten()
    {
        levels.remove_above(end);
    }
    let uncertain = std::mem::take(&mut levels.uncertain);
    levels
        .names
        .retain(|level, names| !uncertain.contains(level) && !names.is_empty());
    Some((levels, is_whole))
}

/// The names of levels, from the keys of values.
#[derive(Default)]
struct Levels {
    names: BTreeMap<Key, BTreeMap<String, Entry>>,
    /// Levels with an empty value, which may mark a directory.
    uncertain: BTreeSet<Key>,
    keys: usize,
}

impl Levels {
    /// Adds a value and the prefixes above it.
    fn add(&mut self, key: &Key, stat: Stat) {
        self.keys += 1;
        if stat.size == 0 {
            self.uncertain.insert(key.parent());
        }
        let name = key.name().to_string();
        let names = self.names.entry(key.parent()).or_default();
        let hides_prefix = names.get(&name).is_some_and(Entry::is_prefix);
        names.insert(
            name.clone(),
            Entry {
                hides_prefix,
                ..Entry::of_stat(name, stat)
            },
        );
        let mut prefix = key.parent();
        while !prefix.is_root() {
            let name = prefix.name().to_string();
            match self
                .names
                .entry(prefix.parent())
                .or_default()
                .entry(name.clone())
            {
                Slot::Vacant(slot) => {
                    slot.insert(Entry::new(name, EntryKind::Prefix));
                }
                // the prefixes above it are recorded
                Slot::Occupied(mut slot) => {
                    slot.get_mut().hides_prefix = slot.get().kind == EntryKind::Value;
                    return;
                }
            }
            prefix = prefix.parent();
        }
    }

    /// Returns the levels below `prefix`, each with its names.
    fn below(self, prefix: &Key) -> impl Iterator<Item = (Key, Vec<Entry>)> {
        let below = self
            .names
            .into_iter()
            .filter(|(level, _)| level.relative_to(prefix).is_some());
        below.map(|(level, names)| (level, names.into_values().collect()))
    }

    /// Removes the levels that may continue after `last`.
    fn remove_above(&mut self, last: &Key) {
        let mut level = last.parent();
        loop {
            self.names.remove(&level);
            if level.is_root() {
                return;
            }
            level = level.parent();
        }
    }
}
