//! Many names in little memory, such as those of the members of an archive, and the names of one
//! level among them. This module does not know the meaning of the names.

use super::{Entry, EntryKind, Key, Stat};
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::Grant;

/// Step by which the grant for memory grows, in bytes.
const GRANT_STEP: usize = 64 << 10;

/// The place of a name among the names of all entries.
#[derive(Clone, Copy)]
pub struct NameSpan {
    start: u32,
    len: u16,
}

/// An entry that has a name.
pub trait NamedEntry {
    /// What the entries are together, for messages.
    const TOGETHER: &'static str;

    /// Returns the place of the name.
    fn name(&self) -> NameSpan;
}

/// Entries, sorted by name once all of them were added, so that binary search finds them.
pub struct SortedEntries<T> {
    /// Concatenated names, in the order in which they were added.
    names: String,
    entries: Vec<T>,
    /// Memory of names and entries.
    memory: Grant,
    /// Bytes that are not granted yet.
    uncounted: usize,
}

impl<T> Default for SortedEntries<T> {
    fn default() -> Self {
        SortedEntries {
            names: String::new(),
            entries: Vec::new(),
            memory: Grant::default(),
            uncounted: 0,
        }
    }
}

impl<T: NamedEntry> SortedEntries<T> {
    /// Adds the entry that `entry` returns for the place of its name, whose memory was counted.
    pub fn add(&mut self, name: &str, entry: impl FnOnce(NameSpan) -> T) -> Result<()> {
        let start = u32::try_from(self.names.len())
            .map_err(|_| Error::damaged("the names in it exceed 4 GiB"))?;
        self.names.try_reserve(name.len()).map_err(no_memory::<T>)?;
        self.entries.try_reserve(1).map_err(no_memory::<T>)?;
        self.names.push_str(name);
        self.entries.push(entry(NameSpan {
            start,
            len: name.len() as u16,
        }));
        Ok(())
    }

    /// Counts memory before it is allocated.
    pub fn count(&mut self, bytes: usize) -> Result<()> {
        self.uncounted = self.uncounted.saturating_add(bytes);
        if self.uncounted > GRANT_STEP {
            self.grant()
        } else {
            Ok(())
        }
    }

    fn grant(&mut self) -> Result<()> {
        self.memory
            .grow(std::mem::take(&mut self.uncounted))
            .map_err(|e| e.context(T::TOGETHER))
    }

    /// Sorts the entries after all were added. Of entries with the same name, only the last one is
    /// kept.
    pub fn finish(&mut self) -> Result<()> {
        self.grant()?;
        let names = &self.names;
        // among entries with the same name, the one that was added last sorts last: its name has
        // the largest offset
        self.entries.sort_unstable_by(|a, b| {
            (name_in(names, a), a.name().start).cmp(&(name_in(names, b), b.name().start))
        });
        self.entries.dedup_by(|later, kept| {
            let is_same = name_in(names, later) == name_in(names, kept);
            if is_same {
                std::mem::swap(later, kept);
            }
            is_same
        });
        self.entries.shrink_to_fit();
        self.names.shrink_to_fit();
        Ok(())
    }

    /// Returns the entries to change them. They must keep their names.
    pub fn entries_mut(&mut self) -> &mut [T] {
        &mut self.entries
    }

    /// Returns the name of an entry.
    pub fn name_of(&self, entry: &T) -> &str {
        name_in(&self.names, entry)
    }

    /// Returns the entry at a position.
    pub fn get(&self, position: usize) -> Option<&T> {
        self.entries.get(position)
    }

    /// Returns the name at a position.
    pub fn name_at(&self, position: usize) -> Option<&str> {
        self.get(position).map(|entry| self.name_of(entry))
    }

    /// Returns the position of the first name that is not less than `name`.
    pub fn at_or_after(&self, name: &str) -> usize {
        self.entries
            .partition_point(|entry| self.name_of(entry) < name)
    }

    /// Returns the entry with this name.
    pub fn find(&self, name: &str) -> Option<&T> {
        let entry = self.get(self.at_or_after(name))?;
        (self.name_of(entry) == name).then_some(entry)
    }

    /// Returns whether a name begins with `prefix`.
    fn any_begins(&self, prefix: &str) -> bool {
        self.name_at(self.at_or_after(prefix))
            .is_some_and(|name| name.starts_with(prefix))
    }

    /// Returns whether names lie below `name`, or it is the root.
    pub fn is_prefix(&self, name: &str) -> bool {
        name.is_empty() || self.any_begins(&format!("{name}/"))
    }
}

fn name_in<'a>(names: &'a str, entry: &impl NamedEntry) -> &'a str {
    let NameSpan { start, len } = entry.name();
    let start = start as usize;
    names
        .get(start..start + usize::from(len))
        .unwrap_or_default()
}

fn no_memory<T: NamedEntry>(_: std::collections::TryReserveError) -> Error {
    Error::system(libc::ENOMEM).context(T::TOGETHER)
}

/// A value that holds sorted names, each of a value.
pub trait SortedNames: Send + Sync {
    /// The entry of a name.
    type Entry: NamedEntry;

    /// Returns the names.
    fn names(&self) -> &SortedEntries<Self::Entry>;

    /// Returns the metadata of the value of an entry, if it is known without a request.
    fn stat_of(&self, entry: &Self::Entry) -> Option<Stat>;
}

/// An iterator over the names below a prefix.
pub struct SortedListing<T> {
    holder: Arc<T>,
    /// Prefix of the names.
    prefix: String,
    /// Position of the next name.
    position: usize,
}

impl<T: SortedNames> SortedListing<T> {
    /// Lists the names one level below `prefix`.
    pub fn new(holder: Arc<T>, prefix: &Key) -> Self {
        let prefix = if prefix.is_root() {
            String::new()
        } else {
            format!("{}/", prefix.as_str())
        };
        let position = holder.names().at_or_after(&prefix);
        SortedListing {
            holder,
            prefix,
            position,
        }
    }

    /// Returns the position after all names below the directory `name`.
    fn after(&self, name: &str) -> usize {
        // in ASCII, `0` follows the slash
        let names = self.holder.names();
        names.at_or_after(&format!("{}{name}0", self.prefix))
    }
}

impl<T: SortedNames> Iterator for SortedListing<T> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let names = self.holder.names();
        loop {
            let entry = names.get(self.position)?;
            let rest = names.name_of(entry).strip_prefix(&self.prefix)?;
            let Some((name, _)) = rest.split_once('/') else {
                self.position += 1;
                // the directory itself has an empty name
                if rest.is_empty() {
                    continue;
                }
                let whole = names.name_of(entry);
                let may_hide = names
                    .name_at(self.position)
                    .is_some_and(|next| next.starts_with(whole));
                return Some(Entry {
                    stat: self.holder.stat_of(entry),
                    hides_prefix: may_hide && names.is_prefix(whole),
                    ..Entry::new(rest, EntryKind::Value)
                });
            };
            self.position = self.after(name);
            // a value of the same name has been listed
            if names.find(&format!("{}{name}", self.prefix)).is_none() {
                return Some(Entry::new(name, EntryKind::Prefix));
            }
        }
    }
}
