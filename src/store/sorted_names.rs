//! Lists one level of sorted names, such as the members of an archive. This module does not know
//! the meaning of the names.

use super::{Entry, EntryKind, Key, Stat};
use std::sync::Arc;

/// Names in ascending order, each at a position.
pub(super) trait SortedNames: Send + Sync {
    /// Returns the position of the first name that is not less than `name`.
    fn at_or_after(&self, name: &str) -> usize;

    /// Returns the name at a position.
    fn name_at(&self, position: usize) -> Option<&str>;

    /// Returns the metadata of the value at a position, if it is known without a request.
    fn stat_at(&self, position: usize) -> Option<Stat>;

    /// Returns whether a name begins with `prefix`.
    fn any_begins(&self, prefix: &str) -> bool {
        self.name_at(self.at_or_after(prefix))
            .is_some_and(|name| name.starts_with(prefix))
    }
}

/// An iterator over the names below a prefix.
pub(super) struct SortedListing<T> {
    names: Arc<T>,
    /// Prefix of the names.
    prefix: String,
    /// Position of the next name.
    position: usize,
}

impl<T: SortedNames> SortedListing<T> {
    /// Lists the names one level below `prefix`.
    pub fn new(names: Arc<T>, prefix: &Key) -> Self {
        let prefix = if prefix.is_root() {
            String::new()
        } else {
            format!("{}/", prefix.as_str())
        };
        let position = names.at_or_after(&prefix);
        SortedListing {
            names,
            prefix,
            position,
        }
    }

    /// Returns the position after all names below the directory `name`.
    fn after(&self, name: &str) -> usize {
        // in ASCII, `0` follows the slash
        self.names.at_or_after(&format!("{}{name}0", self.prefix))
    }
}

impl<T: SortedNames> Iterator for SortedListing<T> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let rest = self
                .names
                .name_at(self.position)?
                .strip_prefix(&self.prefix)?;
            let Some((name, _)) = rest.split_once('/') else {
                let position = self.position;
                let name = rest.to_string();
                self.position += 1;
                // the directory itself has an empty name
                if name.is_empty() {
                    continue;
                }
                let whole = format!("{}{name}", self.prefix);
                let may_hide = self
                    .names
                    .name_at(position + 1)
                    .is_some_and(|next| next.starts_with(&whole));
                let hides_prefix = may_hide && self.names.any_begins(&(whole + "/"));
                let stat = self.names.stat_at(position);
                return Some(Entry {
                    stat,
                    hides_prefix,
                    ..Entry::new(name, EntryKind::Value)
                });
            };
            let name = name.to_string();
            self.position = self.after(&name);
            // a value of the same name has been listed
            let whole = format!("{}{name}", self.prefix);
            if self.names.name_at(self.names.at_or_after(&whole)) != Some(&whole) {
                return Some(Entry::new(name, EntryKind::Prefix));
            }
        }
    }
}
