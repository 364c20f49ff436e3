//! The names of a level as far as one answer of a listing shows them. An incomplete answer still
//! shows which names before its end do not exist.

use super::{Entry, EntryKind, Key, Stat, Store};
use zarrfs_base::error::Result;

/// The first names of a level, as many as one request returns.
#[derive(Debug)]
pub struct FirstNames {
    /// The names, in any order.
    pub entries: Vec<Entry>,
    /// The names that do not exist unless they are in `entries`.
    pub reach: Reach,
}

/// The names of a level that do not exist unless the listing shows them. **Only a complete listing
/// proves that a name does not exist**: one of a store that lists all names, and of which no name
/// is outstanding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All names: the listing is complete.
    All,
    /// The names that sort before this one. The name of a prefix sorts as if it ended in a slash.
    Before(String),
    /// No names: the server does not sort.
    Nothing,
}

/// Values with their keys, in the order of the keys.
pub struct ValuePage {
    /// The keys and the metadata of their values.
    pub values: Vec<(Key, Stat)>,
    /// Whether no page follows.
    pub is_last: bool,
}

/// Pages of values, each of which takes a request.
pub type ValuePages = Box<dyn Iterator<Item = Result<ValuePage>> + Send>;

/// A store that returns names in pages, each of which takes a request.
pub trait PagedListing: Store {
    /// Requests the first names one level below `prefix`; there are none if the prefix does not
    /// exist. Returns `None` if a request for a single key costs less.
    fn first_names(&self, _prefix: &Key) -> Result<Option<FirstNames>> {
        Ok(None)
    }

    /// Streams all values below `prefix`, or those whose keys sort after `after`, page by page.
    /// Returns `None` if the store lists level by level.
    fn values_below(&self, _prefix: &Key, _after: Option<&Key>) -> Result<Option<ValuePages>> {
        Ok(None)
    }
}

/// The names of a level that are known to exist or not to exist.
#[derive(Clone)]
pub(super) struct KnownNames {
    /// Sorted by name.
    pub entries: Vec<Entry>,
    reach: Reach,
}

impl KnownNames {
    /// Sorts the names of a level.
    pub fn new(mut entries: Vec<Entry>, reach: Reach) -> Self {
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        KnownNames { entries, reach }
    }

    /// Adds a name that exists by now, without metadata.
    pub fn add(&mut self, name: &str, kind: EntryKind) {
        match self
            .entries
            .binary_search_by(|entry| entry.name.as_str().cmp(name))
        {
            Err(at) => self.entries.insert(at, Entry::new(name, kind)),
            Ok(at) if kind == EntryKind::Prefix && self.entries[at].kind != kind => {
                self.entries[at].hides_prefix = true
            }
            Ok(_) if kind == EntryKind::Prefix => {}
            Ok(at) => {
                let hides_prefix = self.entries[at].is_prefix();
                self.entries[at] = Entry {
                    hides_prefix,
                    ..Entry::new(name, kind)
                };
            }
        }
    }

    /// Removes a name. A prefix that a removed value hid remains.
    pub fn remove(&mut self, name: &str) {
        let Ok(at) = self
            .entries
            .binary_search_by(|entry| entry.name.as_str().cmp(name))
        else {
            return;
        };
        if self.entries[at].hides_prefix {
            self.entries[at] = Entry::new(name, EntryKind::Prefix);
        } else {
            self.entries.remove(at);
        }
    }

    /// Returns whether no other names exist.
    pub fn is_complete(&self) -> bool {
        self.reach == Reach::All
    }

    /// Returns the entry of `name`, if it was listed.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        let at = self
            .entries
            .binary_search_by(|entry| entry.name.as_str().cmp(name))
            .ok()?;
        self.entries.get(at)
    }

    /// Returns the metadata of `name`, `Some(None)` if it does not exist, and `None` if the listing
    /// does not tell.
    pub fn stat(&self, name: &str) -> Option<Option<Stat>> {
        match (self.entry(name), &self.reach) {
            (
                Some(Entry {
                    stat: Some(stat), ..
                }),
                _,
            ) => Some(Some(stat.clone())),
            (
                Some(Entry {
                    kind: EntryKind::Prefix,
                    ..
                }),
                _,
            ) => Some(Some(Stat::prefix())),
            (Some(_), _) | (None, Reach::Nothing) => None,
            (None, Reach::All) => Some(None),
            (None, Reach::Before(last)) => (format!("{name}/") < *last).then_some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;
    use std::time::SystemTime;

    #[test]
    fn names_before_the_end_of_a_page_are_known() {
        let value = |name: &str| {
            let stat = Stat::value(1, SystemTime::UNIX_EPOCH, Version::Count(1));
            Entry::of_stat(name, stat)
        };
        let prefix = |name: &str| Entry::new(name, EntryKind::Prefix);
        let known = |reach| KnownNames::new(vec![value("d"), prefix("b"), value(".zarray")], reach);
        let found = |known: &KnownNames, name: &str| {
            known.stat(name).map(|stat| stat.map(|stat| stat.kind))
        };
        for reach in [Reach::All, Reach::Nothing, Reach::Before("d".into())] {
            let known = known(reach);
            assert_eq!(found(&known, ".zarray"), Some(Some(EntryKind::Value)));
            assert_eq!(found(&known, "b"), Some(Some(EntryKind::Prefix)));
        }
        let absent = |reach: Reach| {
            let known = known(reach);
            ["0", "c", "d-", "d/", "e"].map(|name| found(&known, name) == Some(None))
        };
        assert_eq!(absent(Reach::All), [true; 5]);
        assert_eq!(absent(Reach::Nothing), [false; 5]);
        assert_eq!(
            absent(Reach::Before("d".into())),
            [true, true, false, false, false]
        );
        // the prefix `d/` may follow the value `d-`
        let ended = KnownNames::new(vec![value("d-")], Reach::Before("d-".into()));
        assert_eq!(found(&ended, "d"), None);
        assert!(!ended.is_complete() && known(Reach::All).is_complete());
    }
}
