//! A snapshot of all names below a prefix, from a listing across all levels, if that takes few requests.

use super::contents::CacheContents;
use crate::store::level::KnownNames;
use crate::store::{Entry, EntryKind, Key, Reach, Stat, Store};
use crate::util::memory::lock;
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Maximum number of values in a snapshot: their names take half of the cache's memory for names.
const MAX_KEYS: usize = 1 << 15;

/// Number of pages that are requested in any case.
const PAGES: usize = 2;

/// Minimum average number of levels per page. Pages are requested one after the other, but levels concurrently, so a
/// page full of chunks costs more than it saves.
const LEVELS: usize = 8;

/// Lists the values below `prefix`, and records the levels that are completely known. Errors are ignored:
/// later requests report them. If the snapshot `is_final`, names that are not in it do not exist for the
/// command that takes it.
pub(super) fn take(store: &dyn Store, prefix: &Key, is_final: bool, contents: &Mutex<CacheContents>) {
    let run = lock(contents).begin_listing(prefix);
    let Ok(Some(pages)) = store.values_below(prefix) else { return };
    let (mut levels, mut last): (_, Option<Key>) = (Levels::default(), None);
    let (mut is_complete, mut is_sorted) = (true, true);
    for (number, page) in pages.enumerate() {
        let Ok(page) = page else { return };
        let keys = last.iter().chain(page.values.iter().map(|(key, _)| key));
        is_sorted &= keys.is_sorted_by(|a, b| a.as_str() <= b.as_str());
        last = page.values.last().map(|(key, _)| key.clone()).or(last);
        page.values.into_iter().for_each(|(key, stat)| levels.add(&key, stat));
        let is_dense = number + 1 < PAGES || levels.names.len() >= LEVELS * (number + 1);
        if !page.is_last && (levels.keys > MAX_KEYS || !is_dense) {
            is_complete = false;
            break;
        }
    }
    if !is_complete && !is_sorted {
        return;
    }
    if let Some(last) = last.filter(|_| !is_complete) {
        levels.remove_above(&last);
    }
    let mut contents = lock(contents);
    for (level, names) in levels.names {
        if !levels.uncertain.contains(&level) && !names.is_empty() && level.relative_to(prefix).is_some() {
            let names = KnownNames::new(names.into_values().collect(), Reach::All);
            contents.insert_level(level, &run, Arc::new(names), is_final);
        }
    }
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
        names.insert(name.clone(), Entry { hides_prefix, ..Entry::of_stat(name, stat) });
        let mut prefix = key.parent();
        while !prefix.is_root() {
            let name = prefix.name().to_string();
            match self.names.entry(prefix.parent()).or_default().entry(name.clone()) {
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
