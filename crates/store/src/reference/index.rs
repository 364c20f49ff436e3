//! The references of a document, sorted by key, so that binary search finds the names of one level.
//! A reference takes 32 bytes beside its key; targets that several references name are kept once.

use super::template::Substitute;
use crate::Key;
use crate::sorted_names::{NameSpan, NamedEntry, SortedEntries};
use std::collections::HashMap;
use zarrfs_base::error::{Error, Result};

/// Memory of a target beside its text, in bytes: its entry in the list and in the map.
const TARGET: usize = 2 * size_of::<Box<str>>() + 48;

/// The target of a value that the document holds.
const INLINE: u32 = u32::MAX;

/// The length of a reference to a whole target.
const WHOLE: u64 = u64::MAX;

/// A reference: a key, and where its value is.
pub(super) struct Reference {
    key: NameSpan,
    /// Number of the target, or [`INLINE`].
    target: u32,
    /// Offset in the target, or in the inline values.
    offset: u64,
    len: u64,
}

impl NamedEntry for Reference {
    const TOGETHER: &'static str = "the references";

    fn name(&self) -> NameSpan {
        self.key
    }
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Referenced<'a> {
    /// In the document.
    Inline(&'a [u8]),
    /// In `len` bytes of a target.
    Range {
        /// Text of the target.
        target: &'a str,
        offset: u64,
        len: u64,
    },
    /// All of a target.
    Whole(&'a str),
}

/// All references of a document.
#[derive(Default)]
pub(super) struct ReferenceIndex {
    pub references: SortedEntries<Reference>,
    /// Concatenated values that the document holds.
    inline: Vec<u8>,
    targets: Vec<Box<str>>,
    /// The number of each target, while the index is built.
    numbers: HashMap<Box<str>, u32>,
    /// The target of the latest reference: most references have the same one.
    latest: u32,
    /// The first key that cannot be one, if there is one. Such references are left out.
    pub refused: Option<String>,
    /// Number of references whose memory was granted in advance.
    reserved: usize,
}

impl ReferenceIndex {
    /// Adds a value that the document holds.
    pub fn add_inline(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.references.count(value.len())?;
        self.inline
            .try_reserve(value.len())
            .map_err(|_| Error::system(libc::ENOMEM).context(Reference::TOGETHER))?;
        let offset = self.inline.len() as u64;
        self.inline.extend_from_slice(value);
        self.add(key, INLINE, offset, value.len() as u64)
    }

    /// Adds a reference to a range of a target, or to all of it.
    pub fn add_target(&mut self, key: &str, target: &str, range: Option<(u64, u64)>) -> Result<()> {
        let (offset, len) = range.unwrap_or((0, WHOLE));
        if range.is_some()
            && offset
                .checked_add(len)
                .is_none_or(|end| end > i64::MAX as u64)
        {
            let why = format!(
                "reference {key:?}: {len} bytes from byte {offset} on are more than a file can have"
            );
            return Err(Error::damaged(why));
        }
        let number = self.number_of(target)?;
        self.add(key, number, offset, len)
    }

    /// Grants the memory of `count` references in advance.
    pub fn reserve(&mut self, count: usize) -> Result<()> {
        self.references
            .count(count.saturating_mul(size_of::<Reference>()))?;
        self.reserved += count;
        Ok(())
    }

    fn add(&mut self, key: &str, target: u32, offset: u64, len: u64) -> Result<()> {
        let is_reserved = self.reserved > 0;
        self.reserved = self.reserved.saturating_sub(1);
        // `Key::normalize` would accept other spellings of the same key
        let is_key =
            Key::normalize(key).is_ok_and(|normal| !normal.is_root() && normal.as_str() == key);
        if !is_key || !Key::is_short(key) {
            self.refused.get_or_insert_with(|| key.to_string());
            return Ok(());
        }
        if !is_reserved {
            self.references.count(size_of::<Reference>())?;
        }
        self.references.count(key.len())?;
        self.references.add(key, |key| Reference {
            key,
            target,
            offset,
            len,
        })
    }

    /// Returns the number of a target.
    fn number_of(&mut self, target: &str) -> Result<u32> {
        if self
            .targets
            .get(self.latest as usize)
            .is_some_and(|latest| **latest == *target)
        {
            return Ok(self.latest);
        }
        if let Some(&number) = self.numbers.get(target) {
            self.latest = number;
            return Ok(number);
        }
        self.references.count(2 * target.len() + TARGET)?;
        let number = u32::try_from(self.targets.len())
            .ok()
            .filter(|&number| number != INLINE);
        let number = number.ok_or_else(|| Error::damaged("too many targets"))?;
        self.targets.push(target.into());
        self.numbers.insert(target.into(), number);
        self.latest = number;
        Ok(number)
    }

    /// Replaces the names of templates in all targets that were added so far.
    pub fn substitute(&mut self, templates: Substitute) -> Result<()> {
        let mut targets = std::mem::take(&mut self.targets);
        self.numbers = HashMap::new();
        for target in &mut targets {
            let substituted = super::template::substitute(target, templates)?;
            self.references.count(substituted.len())?;
            *target = substituted.into();
        }
        self.targets = targets;
        Ok(())
    }

    /// Sorts the index after all references were added. Of references with the same key, only the
    /// last one is kept.
    pub fn finish(&mut self) -> Result<()> {
        self.references.finish()?;
        self.numbers = HashMap::new();
        self.inline.shrink_to_fit();
        Ok(())
    }

    /// Returns the key at a position.
    pub fn key_at(&self, position: usize) -> Option<&str> {
        self.references.name_at(position)
    }

    /// Returns where the value of a reference is.
    pub fn referenced(&self, reference: &Reference) -> Option<Referenced<'_>> {
        let &Reference {
            target,
            offset,
            len,
            ..
        } = reference;
        if target == INLINE {
            let start = offset as usize;
            return Some(Referenced::Inline(
                self.inline
                    .get(start..start + len as usize)
                    .unwrap_or_default(),
            ));
        }
        let target = self.targets.get(target as usize)?;
        Some(if len == WHOLE {
            Referenced::Whole(target)
        } else {
            Referenced::Range {
                target,
                offset,
                len,
            }
        })
    }

    /// Returns where the value of `key` is.
    pub fn find(&self, key: &str) -> Option<Referenced<'_>> {
        self.referenced(self.references.find(key)?)
    }

    /// Returns the texts of the targets.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().map(|target| &**target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_base::error::Kind;

    #[test]
    fn the_last_reference_of_a_key_counts_and_other_spellings_are_left_out() {
        let mut index = ReferenceIndex::default();
        index.add_inline("b/0", b"first").unwrap();
        index.add_target("a", "x.nc", None).unwrap();
        index.add_target("b/1", "x.nc", Some((3, 4))).unwrap();
        index.add_inline("b/0", b"last").unwrap();
        for key in ["../x", "/a", "a//b", "", "b/", "a/./b", "a\0", "a\\b"] {
            index.add_inline(key, b"").unwrap();
        }
        index.finish().unwrap();
        assert_eq!(
            (0..4).map(|i| index.key_at(i)).collect::<Vec<_>>(),
            [Some("a"), Some("b/0"), Some("b/1"), None]
        );
        assert_eq!(index.find("b/0"), Some(Referenced::Inline(b"last")));
        assert_eq!(index.find("a"), Some(Referenced::Whole("x.nc")));
        assert_eq!(
            index.find("b/1"),
            Some(Referenced::Range {
                target: "x.nc",
                offset: 3,
                len: 4
            })
        );
        assert_eq!(
            (index.find("b"), index.refused.as_deref()),
            (None, Some("../x"))
        );
        assert_eq!(index.targets().count(), 1);
    }

    #[test]
    fn ranges_end_where_files_can_end() {
        let mut index = ReferenceIndex::default();
        index
            .add_target("a", "x", Some((i64::MAX as u64 - 1, 1)))
            .unwrap();
        for (offset, len) in [
            (i64::MAX as u64, 1),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
            (0, u64::MAX),
        ] {
            assert_eq!(
                index
                    .add_target("a", "x", Some((offset, len)))
                    .unwrap_err()
                    .kind(),
                Kind::Damaged
            );
        }
    }

    #[test]
    fn memory_is_granted_before_it_is_needed() {
        let mut index = ReferenceIndex::default();
        assert!(
            index
                .reserve(usize::MAX / 2)
                .unwrap_err()
                .message()
                .contains("--cache-size")
        );
        index.reserve(2).unwrap();
        index.add_inline("a", b"").unwrap();
    }
}
