//! The references of a document, sorted by key, so that binary search finds the names of one level.
//! A reference takes 32 bytes beside its key; targets that several references name are kept once.

use super::MAX_NAME;
use super::template::Substitute;
use std::collections::HashMap;
use zarrfs_base::error::{Error, Result};
use zarrfs_store::{Key, NameSpan, NamedEntry, SortedEntries};

/// Memory of a target beside its text, in bytes: its entry in the list and in the map.
const TARGET: usize = 2 * size_of::<StatedTarget>() + 48;

/// Text of a target, or why a reference has none. The error is boxed: almost none is one.
type StatedTarget = std::result::Result<Box<str>, Box<Error>>;

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
    targets: Vec<StatedTarget>,
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

    /// Adds a reference to a range of a target, or to all of it. One that no file can have concerns
    /// its key only.
    pub fn add_target(&mut self, key: &str, target: &str, range: Option<(u64, u64)>) -> Result<()> {
        if target.len() > MAX_NAME {
            return self.add_faulty(key, format!("a target of more than {MAX_NAME} bytes"));
        }
        let (offset, len) = range.unwrap_or((0, WHOLE));
        if range.is_some()
            && offset
                .checked_add(len)
                .is_none_or(|end| end > i64::MAX as u64)
        {
            let why = format!("{len} bytes from byte {offset} on are more than a file can have");
            return self.add_faulty(key, why);
        }
        let number = self.number_of(target)?;
        self.add(key, number, offset, len)
    }

    /// Adds a key whose reference cannot be used: the key must not look missing, since the value of
    /// a missing chunk is the fill value.
    pub fn add_faulty(&mut self, key: &str, why: impl Into<String>) -> Result<()> {
        let why = why.into();
        let latest = self.targets.get(self.latest as usize);
        if !latest.is_some_and(|latest| latest.as_ref().is_err_and(|e| e.message() == why)) {
            self.references
                .count(why.len() + size_of::<Error>() + TARGET)?;
            self.latest = self.push_target(Err(Box::new(Error::damaged(why))))?;
        }
        self.add(key, self.latest, 0, WHOLE)
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
            .is_some_and(|latest| latest.as_ref().is_ok_and(|latest| **latest == *target))
        {
            return Ok(self.latest);
        }
        if let Some(&number) = self.numbers.get(target) {
            self.latest = number;
            return Ok(number);
        }
        self.references.count(2 * target.len() + TARGET)?;
        let number = self.push_target(Ok(target.into()))?;
        self.numbers.insert(target.into(), number);
        self.latest = number;
        Ok(number)
    }

    /// Appends a target whose memory was counted, and returns its number.
    fn push_target(&mut self, target: StatedTarget) -> Result<u32> {
        let number = u32::try_from(self.targets.len())
            .ok()
            .filter(|&number| number != INLINE);
        let number = number.ok_or_else(|| Error::damaged("too many targets"))?;
        self.targets.push(target);
        Ok(number)
    }

    /// Replaces the names of templates in all targets that were added so far. A target for which
    /// that fails concerns its references only.
    pub fn substitute(&mut self, templates: Substitute) -> Result<()> {
        let mut targets = std::mem::take(&mut self.targets);
        self.numbers = HashMap::new();
        for target in &mut targets {
            if let Ok(text) = target {
                let substituted = super::template::substitute(text, templates);
                self.references.count(match &substituted {
                    Ok(text) => text.len(),
                    Err(e) => e.message().len() + size_of::<Error>(),
                })?;
                *target = substituted.map(Into::into).map_err(Box::new);
            }
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
    ///
    /// # Errors
    ///
    /// Fails if the reference cannot be used, and says why.
    pub fn referenced(&self, reference: &Reference) -> Result<Option<Referenced<'_>>> {
        let &Reference {
            target,
            offset,
            len,
            ..
        } = reference;
        if target == INLINE {
            let start = offset as usize;
            return Ok(Some(Referenced::Inline(
                self.inline
                    .get(start..start + len as usize)
                    .unwrap_or_default(),
            )));
        }
        let Some(target) = self.targets.get(target as usize) else {
            return Ok(None);
        };
        let target = target.as_ref().map_err(|e| Error::clone(e))?;
        Ok(Some(if len == WHOLE {
            Referenced::Whole(target)
        } else {
            Referenced::Range {
                target,
                offset,
                len,
            }
        }))
    }

    /// Returns where the value of `key` is.
    ///
    /// # Errors
    ///
    /// Fails if the reference cannot be used, and names it.
    pub fn find(&self, key: &str) -> Result<Option<Referenced<'_>>> {
        match self.references.find(key) {
            Some(reference) => self
                .referenced(reference)
                .map_err(|e| e.context(format!("the reference {key:?}"))),
            None => Ok(None),
        }
    }

    /// Returns the texts of the targets.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().flatten().map(|target| &**target)
    }

    /// Returns why references cannot be used.
    pub fn faults(&self) -> impl Iterator<Item = &Error> {
        self.targets
            .iter()
            .filter_map(|target| target.as_ref().err())
            .map(|e| &**e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            index.find("b/0").unwrap(),
            Some(Referenced::Inline(b"last"))
        );
        assert_eq!(index.find("a").unwrap(), Some(Referenced::Whole("x.nc")));
        assert_eq!(
            index.find("b/1").unwrap(),
            Some(Referenced::Range {
                target: "x.nc",
                offset: 3,
                len: 4
            })
        );
        assert_eq!(
            (index.find("b").unwrap(), index.refused.as_deref()),
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
            index.add_target("b", "x", Some((offset, len))).unwrap();
            let number = index.latest as usize;
            assert!(index.targets[number].is_err(), "{offset}, {len}");
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
