//! Consolidated metadata: the documents below a group in one document, a `.zmetadata` in v2 and an
//! object in the `zarr.json` of a group in v3 (in the form of zarr-python 3; the specification does
//! not define it). The stored one is updated with each change: the update re-reads the changed
//! documents and edits the entries that are stored by then, so that changes of other processes are
//! kept. What a mount shows is in [`shown_consolidated`](super::shown_consolidated).

use super::document::{refused, size_limit};
use super::{DocumentFormat, Hierarchy, MetadataDocument, NodeUse};
use std::cell::RefCell;
use std::collections::BTreeMap;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::json::{self, MemberTexts, Value};
use zarrfs_base::memory::{self, Grant};
use zarrfs_format::metadata::v3::node::{self, CONSOLIDATED};
use zarrfs_format::metadata::{MAX_CONSOLIDATED, ZARR_JSON, ZATTRS, ZMETADATA};
use zarrfs_store::{Key, StoreExt};

/// Maximum size in bytes of a document in generated consolidated metadata: far above real ones,
/// since a reader parses them all.
const MAX_SHOWN: usize = 4 << 20;

/// The bytes of an entry in consolidated metadata besides its name and its document.
pub(super) const ENTRY: usize = 16;

/// The memory of an entry in a map, besides its name, in bytes.
const MAP_ENTRY: usize = 128;

/// A function that writes the new entries of consolidated metadata from the old ones.
type EntriesChange<'a> = &'a dyn Fn(MemberTexts, &mut ConsolidatedText) -> Result<()>;

/// The way in which an entry of stored consolidated metadata is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The document is stored, but has no entry.
    Missing,
    /// The entry has no stored document.
    Extra,
    /// The entry differs from the stored document.
    Different,
}

impl Hierarchy {
    /// Stores a `.zmetadata` that a user wrote to the group at `key`. Its content is checked but
    /// not used, because the user's entries are shown documents; the new one is made from the
    /// stored documents.
    pub(super) fn put_consolidated(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZMETADATA);
        json::check_object(text).map_err(|e| refused(&document, e))?;
        if !self.is_group(key)? {
            return Err(Error::invalid("only a group has one").context(document));
        }
        let format = if self.shows_as_v2(key)? {
            DocumentFormat::V3
        } else {
            self.written_consolidated.remember(&document, text);
            DocumentFormat::V2
        };
        self.make_consolidated(format, key).map(drop)
    }

    /// Writes the consolidated metadata of the group at `key` from the documents stored at and
    /// below it: into `.zmetadata` or, for a group of v3, into its `zarr.json`. Returns the names
    /// of the entries, relative to the group. An entry of v2 has the key of a document as its name,
    /// an entry of v3 the key of a node.
    ///
    /// # Errors
    ///
    /// There is no group at `key`, or the documents exceed the size limit.
    pub fn write_consolidated(&self, key: &Key) -> Result<Vec<String>> {
        let _lock = self.lock_for_change(&[key])?;
        if !self.is_group(key)? {
            return Err(
                Error::invalid("not a group: only a group has consolidated metadata").context(key),
            );
        }
        let format = if self.v3_document(key)?.is_some() {
            DocumentFormat::V3
        } else {
            DocumentFormat::V2
        };
        let names = self.make_consolidated(format, key)?;
        self.store.sync()?;
        Ok(names)
    }

    /// Stores the consolidated metadata of the group at `key`; returns the names of the entries.
    pub(super) fn make_consolidated(
        &self,
        format: DocumentFormat,
        key: &Key,
    ) -> Result<Vec<String>> {
        let document = key.join(format.consolidated_file().name());
        let names = RefCell::new(Vec::new());
        self.edit(&document, MAX_CONSOLIDATED, &|stored| {
            // other members of a `.zmetadata` belong to its former entries
            let stored = stored.filter(|_| format == DocumentFormat::V3);
            let (text, made) = self.with_consolidated(format, key, stored)?;
            names.replace(made);
            Ok(Some(
                self.written_consolidated.spell(format, &document, text),
            ))
        })?;
        Ok(names.into_inner())
    }

    /// Returns the document `stored` with the documents that are stored below the group at `key` as
    /// its consolidated metadata, and the names of the entries.
    pub(super) fn with_consolidated(
        &self,
        format: DocumentFormat,
        key: &Key,
        stored: Option<&[u8]>,
    ) -> Result<(Vec<u8>, Vec<String>)> {
        let document = key.join(format.consolidated_file().name());
        self.store.forget(key);
        let mut new = ConsolidatedText::new(format);
        let mut names = Vec::new();
        self.stored_documents(format, key, &mut |below, text| {
            let Some(name) = format.entry_name(below) else {
                return Ok(());
            };
            new.push(&name, text).context(&document)?;
            names.push(name);
            Ok(())
        })?;
        let (text, _memory) = new.end(stored).context(&document)?;
        Ok((text, names))
    }

    /// Returns the names of the entries in the stored consolidated metadata of the group at `key`
    /// that [`Hierarchy::write_consolidated`] would change; nothing if there is none in `format`.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`] if the stored one cannot be parsed.
    pub fn stale_consolidated(
        &self,
        format: DocumentFormat,
        key: &Key,
    ) -> Result<Vec<(String, Stale)>> {
        let document = key.join(format.consolidated_file().name());
        let Some(stored) = self.stored_within(&document, MAX_CONSOLIDATED)? else {
            return Ok(Vec::new());
        };
        let text = format.entries(&stored.text).context(&document)?;
        let Some(text) = text else {
            return Ok(Vec::new());
        };
        let mut entries = BTreeMap::new();
        let mut memory = Grant::default();
        for entry in MemberTexts::of(text.as_bytes())? {
            let (name, text) = entry?;
            memory.grow(MAP_ENTRY + name.len()).context(&document)?;
            entries.insert(name, text);
        }
        let mut stale = Vec::new();
        self.stored_documents(format, key, &mut |below, text| {
            let Some(name) = format.entry_name(below) else {
                return Ok(());
            };
            match entries.remove(name.as_str()) {
                None => stale.push((name, Stale::Missing)),
                Some(entry) if format.is_same_entry(&name, entry.as_bytes(), text)? => {}
                Some(_) => stale.push((name, Stale::Different)),
            }
            Ok(())
        })?;
        let extra = entries
            .into_iter()
            .filter(|(name, text)| !is_implied(format, name, text))
            .map(|(name, _)| (name.into_owned(), Stale::Extra));
        Ok(extra.chain(stale).collect())
    }

    /// Calls `each` with the key, relative to `key`, and the text of each document stored at and
    /// below `key` that has an entry in consolidated metadata. Invalid JSON is left out and
    /// recorded as a problem.
    fn stored_documents(
        &self,
        format: DocumentFormat,
        key: &Key,
        each: &mut dyn FnMut(&Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.find(key)?.is_none() {
            return Ok(());
        }
        self.visit_below(key, NodeUse::Description, &mut |node, found| {
            if !found.is_directory() {
                return Ok(());
            }
            let below = node.relative_to(key).unwrap_or_default();
            for name in format.consolidated_names() {
                match self.valid(&node.join(name)) {
                    Ok(None) => {}
                    Ok(Some(document)) => each(&below.join(name), &document.text)?,
                    Err(e) => {
                        let consolidated = key.join(format.consolidated_file().name());
                        self.stats
                            .problem(format!("{e}: left out of {consolidated}"));
                    }
                }
            }
            Ok(())
        })
    }

    /// Returns the document at `key` in the form of an entry, if there is one; an error if it is
    /// not valid JSON.
    fn valid(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let Some(document) = self.stored_within(key, size_limit(key))? else {
            return Ok(None);
        };
        json::check(&document.text).context(key)?;
        if key.name() != ZARR_JSON {
            return Ok(Some(document));
        }
        let text = node::without_consolidated(&document.text).context(key)?;
        MetadataDocument::made(text, document.stat).map(Some)
    }

    /// Updates the named documents of `node` in the consolidated metadata of every group that has
    /// any: in v2 those at or above `node`, in v3 those above it. The documents are read after the
    /// consolidated metadata, because another process may have changed both.
    pub(super) fn consolidate(&self, node: &Key, documents: &[&str]) -> Result<()> {
        for format in DocumentFormat::ALL {
            let names: Vec<&str> = documents
                .iter()
                .copied()
                .filter(|name| format.consolidated_names().contains(name))
                .collect();
            let lowest = match format {
                DocumentFormat::V2 => node.clone(),
                DocumentFormat::V3 => node.parent(),
            };
            if names.is_empty() || format == DocumentFormat::V3 && node.is_root() {
                continue;
            }
            for group in self.upwards(&lowest) {
                self.edit_consolidated(format, &group, &|entries, new| {
                    self.push_changed(format, entries, new, node, &group, &names)
                })?;
            }
        }
        Ok(())
    }

    /// Writes the entries of `group` with those of the named documents of `node` replaced.
    fn push_changed(
        &self,
        format: DocumentFormat,
        entries: MemberTexts,
        new: &mut ConsolidatedText,
        node: &Key,
        group: &Key,
        names: &[&str],
    ) -> Result<()> {
        let below = node.relative_to(group).unwrap_or_default();
        let mut changed = Vec::new();
        for name in names {
            let document = node.join(name);
            self.store.forget(&document);
            changed.push((below.join(name), self.valid(&document)?));
        }
        for entry in entries {
            let (name, text) = entry?;
            let document = format.entry_document(&name);
            match changed
                .iter_mut()
                .find(|(changed, _)| document.as_ref() == Some(changed))
            {
                None => new.push(&name, text.as_bytes())?,
                Some((_, document)) => {
                    if let Some(document) = document.take() {
                        new.push(&name, &document.text)?;
                    }
                }
            }
        }
        for (key, document) in changed {
            if let (Some(name), Some(document)) = (format.entry_name(&key), document) {
                new.push(&name, &document.text)?;
            }
        }
        Ok(())
    }

    /// Updates all consolidated metadata with the documents at and below `key`, after a change that
    /// a killed daemon has begun.
    pub(super) fn settle_change(&self, key: &Key) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        let names: Vec<&str> = DocumentFormat::ALL
            .iter()
            .flat_map(|format| format.consolidated_names())
            .copied()
            .collect();
        self.consolidate(key, &names)?;
        if key.is_root() {
            return Ok(());
        }
        self.consolidate_moved(None, Some(key))
    }

    /// Updates all consolidated metadata above `key` after a rename outside this hierarchy has
    /// moved a group or array to or from `key`.
    ///
    /// # Errors
    ///
    /// The store fails or is read-only.
    pub fn adopt(&self, key: &Key) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        self.forget_below(key);
        self.store.forget(key);
        self.consolidate_moved(None, Some(key))
    }

    /// Moves the entries of a node that was renamed in all consolidated metadata above its old or
    /// new key. A node that was removed has no new key; one that came from elsewhere has no old
    /// key.
    pub(super) fn consolidate_moved(&self, from: Option<&Key>, to: Option<&Key>) -> Result<()> {
        for format in DocumentFormat::ALL {
            let mut groups: Vec<Key> = Vec::new();
            for node in from.into_iter().chain(to) {
                for group in self.upwards(&node.parent()) {
                    if !groups.contains(&group) {
                        groups.push(group);
                    }
                }
            }
            for group in groups {
                let old = from.and_then(|from| from.relative_to(&group));
                let new = to.and_then(|to| to.relative_to(&group));
                self.edit_consolidated(format, &group, &|entries, text| {
                    push_moved(format, entries, text, old.as_ref(), new.as_ref())?;
                    let is_read = old.is_none() || format == DocumentFormat::V3;
                    match (&new, to) {
                        (Some(below), Some(node)) if is_read => {
                            self.push_stored(format, text, node, below)
                        }
                        _ => Ok(()),
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Adds the documents stored at and below `node`, whose key relative to the group is `below`.
    fn push_stored(
        &self,
        format: DocumentFormat,
        new: &mut ConsolidatedText,
        node: &Key,
        below: &Key,
    ) -> Result<()> {
        self.stored_documents(format, node, &mut |document, text| match format
            .entry_name(&below.join_key(document))
        {
            Some(name) => new.push(&name, text),
            None => Ok(()),
        })
    }

    /// Changes the entries of the consolidated metadata of `group`, if it has any, by a single put.
    /// Unusable ones stay unchanged and are recorded as a problem.
    fn edit_consolidated(
        &self,
        format: DocumentFormat,
        group: &Key,
        change: EntriesChange,
    ) -> Result<()> {
        let key = group.join(format.consolidated_file().name());
        let edited = self.edit(&key, MAX_CONSOLIDATED, &|text| match text {
            Some(text) => {
                let text = edited(format, text, change).context(&key)?;
                Ok(text.map(|text| self.written_consolidated.spell(format, &key, text)))
            }
            None => Ok(None),
        });
        edited.or_else(|e| match e.kind() {
            Kind::Damaged | Kind::TooLarge => {
                self.stats
                    .problem(format!("{e}: its consolidated metadata can't be updated"));
                Ok(())
            }
            _ => Err(e),
        })
    }
}

/// The text of a document with consolidated metadata under construction, with its memory counted.
pub(super) struct ConsolidatedText {
    format: DocumentFormat,
    text: Vec<u8>,
    memory: Grant,
    is_first: bool,
}

impl ConsolidatedText {
    /// The end of a `.zmetadata`.
    const END: &[u8] = b",\n    \"zarr_consolidated_format\": 1\n}\n";

    pub(super) fn new(format: DocumentFormat) -> Self {
        let begin: &[u8] = match format {
            DocumentFormat::V2 => b"{\n    \"metadata\": {",
            DocumentFormat::V3 => {
                b"{\"kind\": \"inline\", \"must_understand\": false, \"metadata\": {"
            }
        };
        ConsolidatedText {
            format,
            text: begin.to_vec(),
            memory: Grant::default(),
            is_first: true,
        }
    }

    /// Adds a document that has not been checked.
    pub(super) fn add(&mut self, name: &str, text: &[u8]) -> Result<()> {
        if text.len() > MAX_SHOWN {
            return Err(Error::damaged(format!(
                "{} bytes, more than the {MAX_SHOWN} that are shown there",
                text.len()
            )));
        }
        json::check(text)?;
        self.push(name, text)
    }

    /// Adds an entry; [`Kind::TooLarge`] if it exceeds the limit.
    fn push(&mut self, name: &str, text: &[u8]) -> Result<()> {
        let name = Value::from(name).to_string();
        let text = json::without_mark(text).trim_ascii();
        let more = name.len() + text.len() + ENTRY;
        check_consolidated_size(self.text.len() + more + Self::END.len())?;
        // count only used memory: the system does not provide the unused capacity of a growing
        // vector
        self.memory.grow(more)?;
        // fail rather than wait for memory that this text holds itself
        memory::check_available()?;
        let before: &[u8] = if std::mem::take(&mut self.is_first) {
            b"\n        "
        } else {
            b",\n        "
        };
        for part in [before, name.as_bytes(), b": ", text] {
            self.text.extend_from_slice(part);
        }
        Ok(())
    }

    /// Returns the number of bytes so far.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the whole document, with the other members of the stored one.
    pub(super) fn end(mut self, stored: Option<&[u8]>) -> Result<(Vec<u8>, Grant)> {
        self.text.extend_from_slice(b"\n    }");
        self.is_first = false;
        match self.format {
            DocumentFormat::V2 => {
                for member in MemberTexts::of(stored.unwrap_or(b"{}"))? {
                    let (name, value) = member?;
                    if name != "metadata" && name != "zarr_consolidated_format" {
                        self.push(&name, value.as_bytes())?;
                    }
                }
                self.text.extend_from_slice(Self::END);
                self.text.shrink_to_fit();
                self.memory.shrink_to(self.text.capacity());
            }
            DocumentFormat::V3 => {
                self.text.push(b'}');
                let stored = stored.ok_or_else(|| Error::invalid("a group without zarr.json"))?;
                self.text = json::with_member(stored, CONSOLIDATED, Some(&self.text))?;
            }
        }
        Ok((self.text, self.memory))
    }
}

/// Checks that consolidated metadata may have `len` bytes.
///
/// # Errors
///
/// [`Kind::TooLarge`] if it may not.
pub(super) fn check_consolidated_size(len: usize) -> Result<()> {
    // leave memory for the reader's copy and one document at a time
    let limit = (MAX_CONSOLIDATED as usize).min(memory::limit() / 2);
    if len > limit {
        let why = format!(
            "the documents together have more than {limit} bytes, the most of consolidated metadata"
        );
        return Err(Error::new(Kind::TooLarge, why));
    }
    Ok(())
}

/// Returns a document with changed consolidated metadata; `None` if it has none.
fn edited(format: DocumentFormat, text: &[u8], change: EntriesChange) -> Result<Option<Vec<u8>>> {
    let Some(entries) = format.entries(text)? else {
        return Ok(None);
    };
    let mut new = ConsolidatedText::new(format);
    change(MemberTexts::of(entries.as_bytes())?, &mut new)?;
    new.end(Some(text)).map(|(text, _memory)| Some(text))
}

/// Adds entries after the move of a node from `old` to `new`, which are relative to the group and
/// `None` outside it. Entries of a node that `new` has replaced are dropped.
fn push_moved(
    format: DocumentFormat,
    entries: MemberTexts,
    text: &mut ConsolidatedText,
    old: Option<&Key>,
    new: Option<&Key>,
) -> Result<()> {
    for entry in entries {
        let (name, value) = entry?;
        let document = format.entry_document(&name).unwrap_or_default();
        if let Some(old) = old.filter(|old| document.relative_to(old).is_some()) {
            // those of v3 are read again, which adds what other programs have not consolidated
            let moved = match format {
                DocumentFormat::V2 => new.and_then(|new| document.moved(old, new)),
                DocumentFormat::V3 => None,
            };
            if let Some(name) = moved.and_then(|moved| format.entry_name(&moved)) {
                text.push(&name, value.as_bytes())?;
            }
        } else if new.is_none_or(|new| document.relative_to(new).is_none()) {
            text.push(&name, value.as_bytes())?;
        }
    }
    Ok(())
}

/// Returns whether an entry without a stored document is not stale: zarr-python 3 lists attributes
/// that are not stored.
pub(super) fn is_implied(format: DocumentFormat, name: &str, text: &str) -> bool {
    format
        .entry_document(name)
        .is_some_and(|document| document.name() == ZATTRS)
        && json::parse(text.as_bytes())
            .is_ok_and(|value| value.as_object().is_some_and(|object| object.is_empty()))
}
