//! Lists one level of an archive from its sorted index.

use super::OpenArchive;
use crate::store::{Entry, EntryKind, Key};
use std::sync::Arc;

/// An iterator over the names below a prefix.
pub(super) struct ArchiveListing {
    opened: Arc<OpenArchive>,
    /// Prefix of the members' names.
    prefix: String,
    /// Position of the next member.
    position: usize,
}

impl ArchiveListing {
    /// Lists the names one level below `prefix`.
    pub fn new(opened: Arc<OpenArchive>, prefix: &Key) -> Self {
        let prefix = if prefix.is_root() { String::new() } else { format!("{}/", prefix.as_str()) };
        let position = opened.index.at_or_after(&prefix);
        ArchiveListing { opened, prefix, position }
    }

    /// Returns the position after all members below the directory `name`.
    fn after(&self, name: &str) -> usize {
        // in ASCII, `0` follows the slash
        self.opened.index.at_or_after(&format!("{}{name}0", self.prefix))
    }
}

impl Iterator for ArchiveListing {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let index = &self.opened.index;
            let member = index.get(self.position)?;
            let rest = index.name(member).strip_prefix(&self.prefix)?;
            let Some((name, _)) = rest.split_once('/') else {
                self.position += 1;
                // the directory itself has an empty name
                if rest.is_empty() {
                    continue;
                }
                let stat = Some(self.opened.stat(member));
                return Some(Entry { name: rest.to_string(), kind: EntryKind::Value, stat });
            };
            let name = name.to_string();
            self.position = self.after(&name);
            // a member may have the same name as a directory, and takes precedence
            if self.opened.index.find(&format!("{}{name}", self.prefix)).is_none() {
                return Some(Entry { name, kind: EntryKind::Prefix, stat: None });
            }
        }
    }
}
