//! `.zmetadata`: the metadata documents below a group in one document. The decoded view generates
//! it from the documents that exist. The stored one is updated with each change: the update
//! re-reads the changed documents and edits the entries that are stored by then, so that changes of
//! other processes are kept.

use super::document::refused;
use super::{Hierarchy, MetadataDocument, StoredNode};
use crate::error::{Error, Kind, Result};
use crate::store::{Key, Permissions, Stat, both};
use crate::util::json::{self, MemberTexts, Value};
use crate::util::memory::{self, Grant};
use crate::zarr::metadata::v3::node;
use crate::zarr::metadata::{
    ArrayMetadata, MAX_CONSOLIDATED, Separator, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};

/// Maximum size in bytes of a document in generated consolidated metadata: far above real ones,
/// since a reader parses them all.
pub(super) const MAX_SHOWN: usize = 4 << 20;

/// A function that writes the new entries of a `.zmetadata` from the old ones.
type EntriesChange<'a> = &'a dyn Fn(MemberTexts, &mut ConsolidatedText) -> Result<()>;

/// The way in which an entry of a stored `.zmetadata` is stale.
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
    /// Returns the stat of the stored document behind the `.zmetadata` of the decoded view: a
    /// `.zmetadata` or, in a view as v2, a `zarr.json` with consolidated metadata.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn consolidated_stat(&self, key: &Key) -> Result<Option<Stat>> {
        if self.shows_as_v2(key)? {
            return Ok(self
                .v3_document(key)?
                .filter(|found| found.outline.is_consolidated)
                .map(|found| found.stat));
        }
        self.store
            .stat(&key.join(ZMETADATA))
            .map_err(|e| e.context(key))
    }

    /// Returns the `.zmetadata` of the decoded view if the store has one. It is generated from the
    /// existing documents, since the stored one may be stale. Documents that exceed the size limit
    /// are left out and recorded as a problem.
    pub fn consolidated_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let Some(stat) = self.consolidated_stat(key)? else {
            return Ok(None);
        };
        // the view grants no more than every document in it
        let granted = Cell::new(stat.permissions);
        let restrict = |by: Option<Permissions>| granted.set(both(granted.get(), by));
        let mut consolidated = ConsolidatedText::new();
        let mut failed = Ok(());
        let mut add = |name: Key, document: Result<Option<MetadataDocument>>| {
            let added = document.and_then(|d| match d {
                Some(document) if failed.is_ok() => {
                    consolidated.add(name.as_str(), &document.text)?;
                    restrict(document.stat.permissions);
                    Ok(())
                }
                _ => Ok(()),
            });
            match added {
                _ if failed.is_err() => {}
                // transient: a .zmetadata without the document would be wrong
                Err(e) if e.kind() == Kind::System(libc::ENOMEM) => {
                    failed = Err(e);
                    // free the memory for the rest of the traversal
                    consolidated = ConsolidatedText::new();
                }
                Err(e) => self.stats.problem(format!(
                    "{}: {e}: left out of .zmetadata",
                    key.join_key(&name)
                )),
                Ok(()) => {}
            }
        };
        self.visit_below(key, &mut |place_key, node| {
            let below = place_key.relative_to(key).unwrap_or_default();
            if stat.permissions.is_some() {
                let directory = self
                    .store
                    .stat(place_key)
                    .ok()
                    .flatten()
                    .and_then(|stat| stat.permissions);
                restrict(Some(
                    directory.map_or(Permissions::OWNER_ONLY, Permissions::inside),
                ));
            }
            match node {
                StoredNode::Array(_) => add(below.join(ZARRAY), self.array_view(place_key)),
                StoredNode::Group => add(below.join(ZGROUP), self.group_view(place_key)),
                _ => return,
            }
            add(below.join(ZATTRS), self.attributes_view(place_key));
        });
        failed?;
        consolidated.end_entries();
        let (text, memory) = consolidated.end();
        Ok(Some(MetadataDocument {
            text,
            stat: Stat {
                permissions: granted.get(),
                ..stat
            },
            memory,
        }))
    }

    /// Stores a `.zmetadata` that a user wrote to the group at `key`. Its content is checked but
    /// not used, because the user's entries are decoded views; the new one is made from the stored
    /// documents.
    pub(super) fn put_consolidated(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZMETADATA);
        json::check_object(text).map_err(|e| refused(&document, e))?;
        if !matches!(self.find(key)?, Some(StoredNode::Group)) {
            return Err(Error::invalid("only a group has one").context(document));
        }
        if self.shows_as_v2(key)? {
            self.make_inline(key).map(drop)
        } else {
            self.make_consolidated(key).map(drop)
        }
    }

    /// Writes the consolidated metadata of the group at `key` from the documents stored at and
    /// below it: into `.zmetadata` or, for a group of v3, into its `zarr.json`. Returns the keys of
    /// the documents or, for v3, of the nodes, relative to the group.
    ///
    /// # Errors
    ///
    /// There is no group at `key`, or the documents exceed the size limit.
    pub fn write_consolidated(&self, key: &Key) -> Result<Vec<String>> {
        let _lock = self.lock_for_change(&[key])?;
        if !matches!(self.find(key)?, Some(StoredNode::Group)) {
            return Err(
                Error::invalid("not a group: only a group has consolidated metadata").context(key),
            );
        }
        let names = match self.v3_document(key)? {
            Some(_) => self.make_inline(key)?,
            None => self.make_consolidated(key)?,
        };
        self.store.sync()?;
        Ok(names)
    }

    fn make_consolidated(&self, key: &Key) -> Result<Vec<String>> {
        let document = key.join(ZMETADATA);
        let names = RefCell::new(Vec::new());
        self.edit(&document, MAX_CONSOLIDATED, &|_| {
            self.store.forget(key);
            let mut consolidated = ConsolidatedText::new();
            let mut made = Vec::new();
            self.stored_documents(key, &mut |name, text| {
                made.push(name.to_string());
                consolidated
                    .push(name, text)
                    .map_err(|e| e.context(&document))
            })?;
            consolidated.end_entries();
            names.replace(made);
            Ok(Some(consolidated.end().0))
        })?;
        Ok(names.into_inner())
    }

    /// Returns the names of the entries in the stored `.zmetadata` of the group at `key` that
    /// [`Hierarchy::write_consolidated`] would change; nothing if there is no `.zmetadata`.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`] if the stored one cannot be parsed.
    pub fn stale_consolidated(&self, key: &Key) -> Result<Vec<(String, Stale)>> {
        let document = key.join(ZMETADATA);
        let Some(consolidated) = self.stored_within(&document, MAX_CONSOLIDATED)? else {
            return Ok(Vec::new());
        };
        json::check(&consolidated.text).map_err(|e| e.context(&document))?;
        let metadata = metadata_of(&consolidated.text).map_err(|e| e.context(&document))?;
        let mut entries = BTreeMap::new();
        let mut memory = Grant::default();
        for entry in MemberTexts::of(metadata.as_bytes())? {
            let (name, text) = entry?;
            memory
                .grow(ENTRY + name.len())
                .map_err(|e| e.context(&document))?;
            entries.insert(name, text);
        }
        let mut stale = Vec::new();
        let mut stored = HashSet::new();
        self.stored_documents(key, &mut |name, text| {
            stored.insert(name.to_string());
            match entries.get(name) {
                None => stale.push((name.to_string(), Stale::Missing)),
                Some(entry) if is_same_document(name, entry.as_bytes(), text)? => {}
                Some(_) => stale.push((name.to_string(), Stale::Different)),
            }
            Ok(())
        })?;
        // zarr-python 3 lists attributes that are not stored
        let is_empty = |text: &str| is_same_json(text.as_bytes(), b"{}").is_ok_and(|same| same);
        let is_implied = |name: &str, text: &str| name.ends_with(ZATTRS) && is_empty(text);
        entries.retain(|name, text| !stored.contains(name.as_ref()) && !is_implied(name, text));
        Ok(entries
            .into_keys()
            .map(|name| (name.into_owned(), Stale::Extra))
            .chain(stale)
            .collect())
    }

    /// Calls `each` with the name and the text of each document stored at and below `key`. Invalid
    /// JSON is left out and recorded as a problem.
    fn stored_documents(
        &self,
        key: &Key,
        each: &mut dyn FnMut(&str, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut done = Ok(());
        self.visit_below(key, &mut |node, _| {
            let below = node.relative_to(key).unwrap_or_default();
            for name in [ZARRAY, ZATTRS, ZGROUP] {
                match self.valid(&node.join(name)) {
                    _ if done.is_err() => return,
                    Ok(None) => {}
                    Ok(Some(document)) => done = each(below.join(name).as_str(), &document.text),
                    Err(e) => self
                        .stats
                        .problem(format!("{e}: left out of {}", key.join(ZMETADATA))),
                }
            }
        });
        done
    }

    /// Returns the document at `key`, if there is one; an error if it is not valid JSON.
    fn valid(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let document = self.stored(key)?;
        document
            .iter()
            .try_for_each(|d| json::check(&d.text))
            .map_err(|e| e.context(key))?;
        Ok(document)
    }

    /// Updates the named documents of `node` in the `.zmetadata` of every group at or above it that
    /// has one. The documents are read after the `.zmetadata`, because another process may have
    /// changed both.
    pub(super) fn consolidate(&self, node: &Key, documents: &[&str]) -> Result<()> {
        if documents.contains(&ZARR_JSON) {
            self.refresh_inline(node, false)?;
        }
        for group in self.upwards(node) {
            let below = node.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, &|entries, new| {
                let mut changed = Vec::new();
                for name in documents {
                    let document = node.join(name);
                    self.store.forget(&document);
                    changed.push((below.join(name), self.valid(&document)?));
                }
                for entry in entries {
                    let (name, text) = entry?;
                    match changed
                        .iter_mut()
                        .find(|(changed, _)| changed.as_str() == name)
                    {
                        None => new.push(&name, text.as_bytes())?,
                        Some((_, document)) => document
                            .take()
                            .map_or(Ok(()), |d| new.push(&name, &d.text))?,
                    }
                }
                changed.iter().try_for_each(|(name, document)| {
                    document
                        .as_ref()
                        .map_or(Ok(()), |d| new.push(name.as_str(), &d.text))
                })
            })?;
        }
        Ok(())
    }

    /// Removes the documents at and below a removed node from every `.zmetadata` above it.
    pub(super) fn consolidate_removed(&self, node: &Key) -> Result<()> {
        self.refresh_inline(node, true)?;
        for group in self.upwards(&node.parent()) {
            let below = node.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, &|entries, new| {
                push_renamed(entries, new, &|name| outside(name, &below))
            })?;
        }
        Ok(())
    }

    /// Updates every `.zmetadata` above `key` after a rename outside this hierarchy has moved a
    /// group or array to or from `key`.
    ///
    /// # Errors
    ///
    /// The store fails or is read-only.
    pub fn adopt(&self, key: &Key) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        self.forget_below(key);
        self.store.forget(key);
        self.refresh_inline(key, true)?;
        for group in self.upwards(&key.parent()) {
            let below = key.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, &|entries, new| {
                push_renamed(entries, new, &|name| outside(name, &below))?;
                self.push_stored(new, key, &below)
            })?;
        }
        Ok(())
    }

    /// Adds the documents stored at and below `node`, whose key relative to the group is `below`.
    fn push_stored(&self, new: &mut ConsolidatedText, node: &Key, below: &Key) -> Result<()> {
        self.stored_documents(node, &mut |name, text| {
            new.push(below.join(name).as_str(), text)
        })
    }

    /// Moves the documents at and below a renamed node in every `.zmetadata` above its old or new
    /// path.
    pub(super) fn consolidate_renamed(&self, from: &Key, to: &Key) -> Result<()> {
        self.refresh_inline(from, true)?;
        self.refresh_inline(to, true)?;
        for group in self
            .upwards(&from.parent())
            .filter(|group| to.relative_to(group).is_none())
        {
            let old = from.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, &|entries, new| {
                push_renamed(entries, new, &|name| outside(name, &old))
            })?;
        }
        for group in self.upwards(&to.parent()) {
            let new = to.relative_to(&group).unwrap_or_default();
            let old = from.relative_to(&group);
            let renamed = |name: &str| match old.as_ref().and_then(|old| rest_below(name, old)) {
                Some(rest) => Some(new.join(rest).as_str().to_string()),
                // drop the entries of an empty group that was replaced
                None => outside(name, &new),
            };
            self.edit_consolidated(&group, &|entries, consolidated| {
                push_renamed(entries, consolidated, &renamed)?;
                if old.is_none() {
                    self.push_stored(consolidated, to, &new)
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    /// Changes the entries of the `.zmetadata` of `group`, if it has one, by a single put. An
    /// unusable one stays unchanged and is recorded as a problem.
    fn edit_consolidated(&self, group: &Key, change: EntriesChange) -> Result<()> {
        let key = group.join(ZMETADATA);
        let edited = self.edit(&key, MAX_CONSOLIDATED, &|text| {
            let Some(text) = text else { return Ok(None) };
            let changed = json::check(text).and_then(|()| edited(text, change));
            changed.map(Some).map_err(|e| e.context(&key))
        });
        edited.or_else(|e| match e.kind() {
            Kind::Damaged | Kind::TooLarge => {
                self.stats.problem(format!(
                    "{e}: it can't be updated with the metadata that is written"
                ));
                Ok(())
            }
            _ => Err(e),
        })
    }
}

/// The memory of an entry in a map, besides its name, in bytes.
const ENTRY: usize = 128;

/// The text of a `.zmetadata` under construction, with its memory counted.
struct ConsolidatedText {
    text: Vec<u8>,
    memory: Grant,
    is_first: bool,
    limit: usize,
}

impl ConsolidatedText {
    const BEGIN: &[u8] = b"{\n    \"metadata\": {";
    const END: &[u8] = b",\n    \"zarr_consolidated_format\": 1\n}\n";

    fn new() -> Self {
        // leave memory for the reader's copy and one document at a time
        let limit = (MAX_CONSOLIDATED as usize).min(memory::limit() / 2);
        ConsolidatedText {
            text: Self::BEGIN.to_vec(),
            memory: Grant::default(),
            is_first: true,
            limit,
        }
    }

    /// Adds a document that has not been checked.
    fn add(&mut self, name: &str, text: &[u8]) -> Result<()> {
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
        let more = name.len() + text.len() + 16;
        let end = self.text.len() + more + Self::END.len();
        if end > self.limit {
            let why = format!(
                "the documents together have more than {} bytes, the most of a .zmetadata",
                self.limit
            );
            return Err(Error::new(Kind::TooLarge, why));
        }
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

    /// Ends the entries; later pushes add members beside them.
    fn end_entries(&mut self) {
        self.text.extend_from_slice(b"\n    }");
        self.is_first = false;
    }

    fn end(mut self) -> (Vec<u8>, Grant) {
        self.text.extend_from_slice(Self::END);
        self.text.shrink_to_fit();
        self.memory.shrink_to(self.text.capacity());
        (self.text, self.memory)
    }
}

/// Returns the text of the object in a `.zmetadata` that holds the documents.
pub(super) fn metadata_of(text: &[u8]) -> Result<&str> {
    let mut metadata = None;
    for member in MemberTexts::of(text)? {
        let (name, value) = member?;
        if name == "metadata" && value.starts_with('{') {
            metadata = Some(value);
        }
    }
    metadata.ok_or_else(|| Error::damaged("holds no metadata object"))
}

/// Returns a `.zmetadata` with changed entries.
fn edited(text: &[u8], change: EntriesChange) -> Result<Vec<u8>> {
    let mut new = ConsolidatedText::new();
    change(MemberTexts::of(metadata_of(text)?.as_bytes())?, &mut new)?;
    new.end_entries();
    for member in MemberTexts::of(text)? {
        let (name, value) = member?;
        if name != "metadata" && name != "zarr_consolidated_format" {
            new.push(&name, value.as_bytes())?;
        }
    }
    Ok(new.end().0)
}

/// Adds entries under the names that `rename` returns, without those for which it returns `None`.
fn push_renamed(
    entries: MemberTexts,
    new: &mut ConsolidatedText,
    rename: &dyn Fn(&str) -> Option<String>,
) -> Result<()> {
    for entry in entries {
        let (name, text) = entry?;
        if let Some(name) = rename(&name) {
            new.push(&name, text.as_bytes())?;
        }
    }
    Ok(())
}

/// Returns whether an entry says what the stored document `name` does. **What other writers state
/// in their own words is not stale**: zarr-python 3 states the defaults of arrays, and gives groups
/// below the root an empty member for consolidated metadata.
fn is_same_document(name: &str, entry: &[u8], text: &[u8]) -> Result<bool> {
    if is_same_json(entry, text)? {
        return Ok(true);
    }
    if name.ends_with(ZGROUP) {
        return is_same_json(
            &node::without_consolidated(entry)?,
            &node::without_consolidated(text)?,
        );
    }
    let (Ok(entry), Ok(text)) = (ArrayMetadata::parse(entry), ArrayMetadata::parse(text)) else {
        return Ok(false);
    };
    let separator = |array: &ArrayMetadata| array.separator.unwrap_or(Separator::Dot);
    let is_same = entry.shape == text.shape
        && separator(&entry) == separator(&text)
        && entry.encodes_like(&text);
    Ok(name.ends_with(ZARRAY) && is_same)
}

/// Returns whether two documents are equal as JSON.
pub(super) fn is_same_json(a: &[u8], b: &[u8]) -> Result<bool> {
    if a == b {
        return Ok(true);
    }
    // parsed one after the other, because parsing counts memory
    let [a, b] = [json::parse(a)?, json::parse(b)?];
    Ok(is_equal(&a, &b))
}

/// Returns whether two JSON values are equal, regardless of how programs spell their numbers.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            let is_integer = |v: &Value| v.is_i64() || v.is_u64();
            x == y || !(is_integer(a) && is_integer(b)) && json::float(a) == json::float(b)
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| is_equal(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len()
                && x.iter()
                    .all(|(name, x)| y.get(name).is_some_and(|y| is_equal(x, y)))
        }
        _ => a == b,
    }
}

/// Returns the name of an entry that is not at or below `node`.
fn outside(name: &str, node: &Key) -> Option<String> {
    rest_below(name, node).is_none().then(|| name.to_string())
}

/// Returns the rest of an entry's name below `node`; `None` if it is not below.
fn rest_below<'a>(name: &'a str, node: &Key) -> Option<&'a str> {
    name.strip_prefix(node.as_str())?.strip_prefix('/')
}
