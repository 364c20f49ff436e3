//! The names of one level of an archive, found one after another in its sorted index. It reads nothing.

use super::Opened;
use crate::store::{Entry, EntryKind, Key};
use std::sync::Arc;

/// The names below a prefix.
pub(super) struct Names {
    opened: Arc<Opened>,
    /// What the members' names begin with.
    prefix: String,
    /// Of the next member.
    place: usize,
}

impl Names {
    /// The names one level below `prefix`.
    pub fn new(opened: Arc<Opened>, prefix: &Key) -> Self {
        let prefix = if prefix.is_root() { String::new() } else { format!("{}/", prefix.as_str()) };
        let place = opened.index.at_or_after(&prefix);
        Names { opened, prefix, place }
    }

    /// The place after all that is below the folder `name`.
    fn after(&self, name: &str) -> usize {
        // the character after the slash
        self.opened.index.at_or_after(&format!("{}{name}0", self.prefix))
    }
}

impl Iterator for Names {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let index = &self.opened.index;
            let member = index.get(self.place)?;
            let rest = index.name(member).strip_prefix(&self.prefix)?;
            let Some((name, _)) = rest.split_once('/') else {
                self.place += 1;
                // the folder itself has no name here
                if rest.is_empty() {
                    continue;
                }
                let stat = Some(self.opened.stat(member));
                return Some(Entry { name: rest.to_string(), kind: EntryKind::Value, stat });
            };
            let name = name.to_string();
            self.place = self.after(&name);
            // what stands below a value has no folder of its own
            if self.opened.index.find(&format!("{}{name}", self.prefix)).is_none() {
                return Some(Entry { name, kind: EntryKind::Prefix, stat: None });
            }
        }
    }
}
