//! The content of a `.zmetadata`: its documents by key, and the groups and arrays that they define.

use super::super::DocumentFormat;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::time::SystemTime;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::MemberTexts;
use zarrfs_base::memory::{self, Grant};
use zarrfs_format::metadata::{ZARR_JSON, ZARRAY, ZATTRS, ZGROUP};
use zarrfs_store::{ByteRange, Counted, Entry, Key, Permissions, Stat, Version};

/// The content of a `.zmetadata`.
pub struct Outline {
    /// The time of its last change.
    pub modified: SystemTime,
    /// Its permissions, which hold for all that is made of it; `None` in a store without modes.
    permissions: Option<Permissions>,
    /// The whole text, which contains the documents.
    text: Vec<u8>,
    pub documents: BTreeMap<Key, DocumentRange>,
    /// The keys of groups and arrays and of all levels above them.
    pub prefixes: BTreeSet<Key>,
    /// Grant for the memory of the text and of both maps.
    memory: Grant,
}

/// The range of a document in the text.
pub struct DocumentRange {
    range: Range<u32>,
    /// A hash of the document.
    digest: u128,
}

/// The memory of a key in both maps, besides its text, in bytes; nodes of a B-tree may be half
/// empty.
const KEY: usize = 2 * (size_of::<Key>() + size_of::<DocumentRange>()) + 32;

impl Outline {
    fn new(stat: &Stat, memory: Grant) -> Self {
        Outline {
            modified: stat.modified,
            permissions: stat.permissions,
            text: Vec::new(),
            documents: BTreeMap::new(),
            prefixes: BTreeSet::from([Key::root()]),
            memory,
        }
    }

    /// Parses a `.zmetadata`, or in v3 the root's `zarr.json`; `None` if that has no consolidated
    /// metadata.
    pub fn parse(read: Counted, format: DocumentFormat) -> Result<Option<Self>> {
        let Counted {
            bytes,
            stat,
            memory,
        } = read;
        let Some(entries) = format.entries(&bytes)? else {
            return Ok(None);
        };
        let mut outline = Outline::new(&stat, memory);
        for entry in MemberTexts::of(entries.as_bytes())? {
            let (name, value) = entry?;
            // ignore names that are not valid keys, and entries that no change would keep current
            let Some(key) = format
                .entry_document(&name)
                .filter(|key| format.consolidated_names().contains(&key.name()))
            else {
                continue;
            };
            let start = value.as_ptr() as usize - bytes.as_ptr() as usize;
            outline.add(key, value, start)?;
        }
        if format == DocumentFormat::V3 {
            let root = std::str::from_utf8(&bytes).map_err(|_| Error::damaged("not UTF-8"))?;
            outline.add(Key::root().join(ZARR_JSON), root, 0)?;
        }
        Ok(Some(Outline {
            text: bytes,
            ..outline
        }))
    }

    fn add(&mut self, key: Key, value: &str, start: usize) -> Result<()> {
        let mut above = key.parent();
        while !self.prefixes.contains(&above) {
            self.count(&above)?;
            let next = above.parent();
            self.prefixes.insert(above);
            above = next;
        }
        self.count(&key)?;
        // fits because of MAX_CONSOLIDATED
        let range = start as u32..(start + value.len()) as u32;
        self.documents.insert(
            key,
            DocumentRange {
                range,
                digest: digest(0, value) << 64 | digest(1, value),
            },
        );
        Ok(())
    }

    /// Counts the memory of a key. A quarter of the memory limit stays free for reading the
    /// documents.
    fn count(&mut self, key: &Key) -> Result<()> {
        let more = KEY + key.as_str().len();
        if self.memory.bytes() + more > memory::limit() / 4 * 3 {
            return Err(memory::too_large(self.memory.bytes() / 3 * 4));
        }
        self.memory.grow(more)
    }

    /// Replaces the content of `value` by bytes of a document; returns `None` if there is no such
    /// document.
    pub fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let Some(place) = self.documents.get(key) else {
            return Ok(None);
        };
        let text = &self.text[place.range.start as usize..place.range.end as usize];
        range.copy(text, value)?;
        Ok(Some(self.stat_of(place)))
    }

    pub fn stat_of(&self, place: &DocumentRange) -> Stat {
        // the version depends on the document alone, not on other changes of .zmetadata
        let version = Version::Tag(format!("{:x}-{:032x}", place.range.len(), place.digest));
        Stat {
            permissions: self.permissions,
            ..Stat::value(place.range.len() as u64, self.modified, version)
        }
    }

    /// Returns the stat of `key` if it is a group, an array, or a level above one. Readers of the
    /// `.zmetadata` may search it.
    pub fn prefix(&self, key: &Key) -> Option<Stat> {
        self.prefixes.contains(key).then(|| self.stat_of_prefix())
    }

    fn stat_of_prefix(&self) -> Stat {
        Stat {
            permissions: self.permissions.map(Permissions::of_level),
            ..prefix_of(self.modified)
        }
    }
}

fn digest(seed: u64, value: &str) -> u128 {
    let mut hasher = DefaultHasher::new();
    (seed, value).hash(&mut hasher);
    u128::from(hasher.finish())
}

/// An iterator over the documents, then the groups and arrays, one level below a prefix. It holds
/// no list, since there may be a million.
pub struct OutlineListing {
    outline: Arc<Outline>,
    prefix: Key,
    /// The last key visited; `None` before the first.
    last: Option<Key>,
    in_prefixes: bool,
}

impl OutlineListing {
    /// Starts a listing of `prefix`.
    pub fn new(outline: Arc<Outline>, prefix: Key) -> Self {
        OutlineListing {
            outline,
            prefix,
            last: None,
            in_prefixes: false,
        }
    }

    /// Returns the first key below the prefix after the last one, and its stat.
    fn after_last(&self) -> Option<(Key, Stat)> {
        // keys below the prefix are contiguous, so that a listing visits no others
        let first = self.prefix.join("");
        let from = self
            .last
            .as_ref()
            .map_or(Bound::Included(&first), Bound::Excluded);
        let range = (from, Bound::Unbounded);
        let found = if !self.in_prefixes {
            let (key, place) = self.outline.documents.range::<Key, _>(range).next()?;
            (key.clone(), self.outline.stat_of(place))
        } else {
            let key = self.outline.prefixes.range::<Key, _>(range).next()?;
            (key.clone(), self.outline.stat_of_prefix())
        };
        Some(found).filter(|(key, _)| key.relative_to(&self.prefix).is_some())
    }
}

impl Iterator for OutlineListing {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let Some((key, stat)) = self.after_last() else {
                if self.in_prefixes {
                    return None;
                }
                (self.last, self.in_prefixes) = (None, true);
                continue;
            };
            let is_next = !key.is_root() && key.parent() == self.prefix;
            let name = key.name().to_string();
            self.last = Some(key);
            if is_next {
                return Some(Entry::of_stat(name, stat));
            }
        }
    }
}

/// Returns whether the last name of `key` is that of a metadata document.
pub fn is_document(key: &Key) -> bool {
    [ZARR_JSON, ZARRAY, ZGROUP, ZATTRS].contains(&key.name())
}

/// Returns the stat of a prefix in a store without modes.
pub fn prefix_of(modified: SystemTime) -> Stat {
    Stat {
        modified,
        ..Stat::prefix()
    }
}
