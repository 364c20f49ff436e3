//! `.zmetadata`: the metadata documents below a group in one. The one shown is made of what is there, decoded; the one
//! in the store is kept in step with what is written, also by other machines: each change is laid on what is there, and
//! puts what the documents say then. It knows nothing of who reads it.

use super::document::refused;
use super::{Hierarchy, MetadataDocument, StoredNode};
use crate::error::{Error, Kind, Result};
use crate::store::{Key, Permissions, Stat, both};
use crate::util::json::{self, Members, Value};
use crate::util::memory::{self, Grant};
use crate::zarr::metadata::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};

/// The largest `.zmetadata` that is read, made or stored, in bytes: it may hold the documents of 20,000 arrays.
pub(super) const MAX_CONSOLIDATED: u64 = 64 << 20;

/// The largest document that is shown in a `.zmetadata`, in bytes: far above real ones. A reader parses them all.
const MAX_SHOWN: usize = 4 << 20;

/// Makes the entries of a `.zmetadata` anew.
type EntriesChange<'a> = &'a dyn Fn(Members, &mut ConsolidatedText) -> Result<()>;

/// How an entry of a stored `.zmetadata` is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The document is stored, but not in it.
    Missing,
    /// It is there, but no such document is stored.
    Extra,
    /// It says something else.
    Different,
}

impl Hierarchy {
    /// The `.zmetadata` of the decoded view, where the store has one: made of the metadata documents that are really
    /// there, since the stored one may be stale. A document for which it has no room is left out, and recorded.
    pub fn consolidated_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let Some(stat) = self.store.stat(&key.join(ZMETADATA)).map_err(|e| e.context(key))? else { return Ok(None) };
        // it may be read by those who may read every document in it
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
                // it may pass: what was told without the document would be wrong meanwhile
                Err(e) if e.kind() == Kind::System(libc::ENOMEM) => {
                    failed = Err(e);
                    // the rest of the walk needs memory, too
                    consolidated = ConsolidatedText::new();
                }
                Err(e) => self.stats.problem(format!("{}: {e}: left out of .zmetadata", key.join_key(&name))),
                Ok(()) => {}
            }
        };
        self.visit_below(key, &mut |place_key, place| {
            let below = place_key.relative_to(key).unwrap_or_default();
            if stat.permissions.is_some() {
                let directory = self.store.stat(place_key).ok().flatten().and_then(|stat| stat.permissions);
                restrict(Some(directory.map_or(Permissions::OWNER_ONLY, Permissions::inside)));
            }
            match place {
                StoredNode::Array(_) => add(below.join(ZARRAY), self.array_view(place_key)),
                StoredNode::Group => add(below.join(ZGROUP), self.group_view(place_key)),
                _ => return,
            }
            add(below.join(ZATTRS), self.attributes_view(place_key));
        });
        failed?;
        consolidated.end_entries();
        let (text, memory) = consolidated.end();
        Ok(Some(MetadataDocument { text, stat: Stat { permissions: granted.get(), ..stat }, memory }))
    }

    /// Writes a `.zmetadata` that somebody gives the group at `key`: what it says is not taken over, since he has seen
    /// the decoded documents; it is made of the stored ones.
    pub(super) fn put_consolidated(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZMETADATA);
        json::check_object(text).map_err(|e| refused(&document, e))?;
        if !matches!(self.find(key)?, Some(StoredNode::Group)) {
            return Err(Error::invalid("only a group has one").context(document));
        }
        self.make_consolidated(key).map(drop)
    }

    /// Writes the `.zmetadata` of the group at `key`, made of the documents that are stored there and below; the answer is
    /// the keys of those that are in it, as seen from the group.
    pub fn write_consolidated(&self, key: &Key) -> Result<Vec<String>> {
        let _lock = self.lock_for_change(&[key])?;
        if !matches!(self.find(key)?, Some(StoredNode::Group)) {
            return Err(Error::invalid("not a group: only a group has a .zmetadata").context(key));
        }
        let names = self.make_consolidated(key)?;
        self.store.sync()?;
        Ok(names)
    }

    fn make_consolidated(&self, key: &Key) -> Result<Vec<String>> {
        let document = key.join(ZMETADATA);
        let names = RefCell::new(Vec::new());
        self.edit(&document, MAX_CONSOLIDATED, &|_| {
            self.store.forget(key);
            let (mut consolidated, mut made) = (ConsolidatedText::new(), Vec::new());
            self.stored_documents(key, &mut |name, text| {
                made.push(name.to_string());
                consolidated.push(name, text).map_err(|e| e.context(&document))
            })?;
            consolidated.end_entries();
            names.replace(made);
            Ok(Some(consolidated.end().0))
        })?;
        Ok(names.into_inner())
    }

    /// The entries of the stored `.zmetadata` of the group at `key` that [`Hierarchy::write_consolidated`] would write
    /// otherwise, by name; none if it has none. [`Kind::Damaged`] if it can't be used at all.
    pub fn stale_consolidated(&self, key: &Key) -> Result<Vec<(String, Stale)>> {
        let document = key.join(ZMETADATA);
        let Some(consolidated) = self.stored_within(&document, MAX_CONSOLIDATED)? else { return Ok(Vec::new()) };
        json::check(&consolidated.text).map_err(|e| e.context(&document))?;
        let metadata = metadata_of(&consolidated.text).map_err(|e| e.context(&document))?;
        let (mut there, mut memory) = (BTreeMap::new(), Grant::default());
        for entry in Members::of(metadata.as_bytes())? {
            let (name, text) = entry?;
            memory.grow(ENTRY + name.len()).map_err(|e| e.context(&document))?;
            there.insert(name, text);
        }
        let (mut stale, mut stored) = (Vec::new(), HashSet::new());
        self.stored_documents(key, &mut |name, text| {
            stored.insert(name.to_string());
            match there.get(name) {
                None => stale.push((name.to_string(), Stale::Missing)),
                Some(entry) if is_same_json(entry.as_bytes(), text)? => {}
                Some(_) => stale.push((name.to_string(), Stale::Different)),
            }
            Ok(())
        })?;
        let extra = there.into_keys().filter(|name| !stored.contains(name.as_ref()));
        Ok(extra.map(|name| (name.into_owned(), Stale::Extra)).chain(stale).collect())
    }

    /// Calls `each` with the name and the text of the documents of `key` and of everything below it, as they are stored.
    /// What is no JSON is left out, and recorded.
    fn stored_documents(&self, key: &Key, each: &mut dyn FnMut(&str, &[u8]) -> Result<()>) -> Result<()> {
        let mut done = Ok(());
        self.visit_below(key, &mut |place, _| {
            let below = place.relative_to(key).unwrap_or_default();
            for name in [ZARRAY, ZATTRS, ZGROUP] {
                match self.valid(&place.join(name)) {
                    _ if done.is_err() => return,
                    Ok(None) => {}
                    Ok(Some(document)) => done = each(below.join(name).as_str(), &document.text),
                    Err(e) => self.stats.problem(format!("{e}: left out of {}", key.join(ZMETADATA))),
                }
            }
        });
        done
    }

    /// The document at `key`; None if there is none, an error if it is no JSON.
    fn valid(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let document = self.stored(key)?;
        document.iter().try_for_each(|d| json::check(&d.text)).map_err(|e| e.context(key))?;
        Ok(document)
    }

    /// Brings documents of `place` up to date, given by their names, in the `.zmetadata` of every group at or above it that
    /// has one. They are read again, after it was: another machine may have changed them, too, and be done before us.
    pub(super) fn consolidate(&self, place: &Key, documents: &[&str]) -> Result<()> {
        for group in upwards(place) {
            let below = place.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, &|entries, new| {
                let mut changed = Vec::new();
                for name in documents {
                    let document = place.join(name);
                    self.store.forget(&document);
                    changed.push((below.join(name), self.valid(&document)?));
                }
                for entry in entries {
                    let (name, text) = entry?;
                    match changed.iter_mut().find(|(changed, _)| changed.as_str() == name) {
                        None => new.push(&name, text.as_bytes())?,
                        Some((_, document)) => document.take().map_or(Ok(()), |d| new.push(&name, &d.text))?,
                    }
                }
                changed.iter().try_for_each(|(name, document)| {
                    document.as_ref().map_or(Ok(()), |d| new.push(name.as_str(), &d.text))
                })
            })?;
        }
        Ok(())
    }

    /// Takes the documents of a removed place, and of all that was below it, out of every `.zmetadata` above it.
    pub(super) fn consolidate_removed(&self, place: &Key) -> Result<()> {
        for group in upwards(&place.parent()) {
            let below = place.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, &|entries, new| push_renamed(entries, new, &|name| outside(name, &below)))?;
        }
        Ok(())
    }

    /// Takes note of a group or array that has come to `key`, or gone from there, with everything below it, by a rename
    /// that this hierarchy did not make: every `.zmetadata` above it says what is stored there now.
    pub fn adopt(&self, key: &Key) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        self.forget_below(key);
        self.store.forget(key);
        for group in upwards(&key.parent()) {
            let below = key.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, &|entries, new| {
                push_renamed(entries, new, &|name| outside(name, &below))?;
                self.push_stored(new, key, &below)
            })?;
        }
        Ok(())
    }

    /// Adds the documents that are stored at and below `place`, which the group calls `below`.
    fn push_stored(&self, new: &mut ConsolidatedText, place: &Key, below: &Key) -> Result<()> {
        self.stored_documents(place, &mut |name, text| new.push(below.join(name).as_str(), text))
    }

    /// Moves the documents of a renamed place, and of all below it, in every `.zmetadata` above its old or new path.
    pub(super) fn consolidate_renamed(&self, from: &Key, to: &Key) -> Result<()> {
        for group in upwards(&from.parent()).filter(|group| to.relative_to(group).is_none()) {
            let old = from.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, &|entries, new| push_renamed(entries, new, &|name| outside(name, &old)))?;
        }
        for group in upwards(&to.parent()) {
            let new = to.relative_to(&group).unwrap_or_default();
            let old = from.relative_to(&group);
            let renamed = |name: &str| match old.as_ref().and_then(|old| rest_below(name, old)) {
                Some(rest) => Some(new.join(rest).as_str().to_string()),
                // those of the empty group that was there go
                None => outside(name, &new),
            };
            self.edit_consolidated(&group, &|entries, consolidated| {
                push_renamed(entries, consolidated, &renamed)?;
                if old.is_none() { self.push_stored(consolidated, to, &new) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    /// Changes the `.zmetadata` of `group` by one put: `change` makes the new entries of the old ones. Nothing if it has
    /// none. One that can't be used is left alone, and recorded as a problem: its readers are told, too.
    fn edit_consolidated(&self, group: &Key, change: EntriesChange) -> Result<()> {
        let key = group.join(ZMETADATA);
        let edited = self.edit(&key, MAX_CONSOLIDATED, &|text| {
            let Some(text) = text else { return Ok(None) };
            let changed = json::check(text).and_then(|()| edited(text, change));
            changed.map(Some).map_err(|e| e.context(&key))
        });
        edited.or_else(|e| match e.kind() {
            Kind::Damaged | Kind::TooLarge => {
                self.stats.problem(format!("{e}: it can't be kept in step with the metadata that is written"));
                Ok(())
            }
            _ => Err(e),
        })
    }
}

/// Bytes that an entry takes in a map of them, beside its name.
const ENTRY: usize = 128;

/// A `.zmetadata` while it is made, with its memory counted.
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
        // its reader's copy, and one document at a time, have to fit beside it
        let limit = (MAX_CONSOLIDATED as usize).min(memory::limit() / 2);
        ConsolidatedText { text: Self::BEGIN.to_vec(), memory: Grant::default(), is_first: true, limit }
    }

    /// Adds a document that was not looked at.
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

    /// Adds an entry. [`Kind::TooLarge`] if there is no room for it.
    fn push(&mut self, name: &str, text: &[u8]) -> Result<()> {
        let (name, text) = (Value::from(name).to_string(), text.trim_ascii());
        let more = name.len() + text.len() + 16;
        let end = self.text.len() + more + Self::END.len();
        if end > self.limit {
            let why = format!("the documents together have more than {} bytes, the most of a .zmetadata", self.limit);
            return Err(Error::new(Kind::TooLarge, why));
        }
        // the system gives no memory for room that a growing vector doesn't use yet
        self.memory.grow(more)?;
        // the next document needs some, and must not wait for what is held here
        memory::check_available()?;
        let before: &[u8] = if std::mem::take(&mut self.is_first) { b"\n        " } else { b",\n        " };
        for part in [before, name.as_bytes(), b": ", text] {
            self.text.extend_from_slice(part);
        }
        Ok(())
    }

    /// Ends the entries. What is pushed from now on stands beside them.
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

/// The text of the object in a `.zmetadata` that holds the documents.
pub(super) fn metadata_of(text: &[u8]) -> Result<&str> {
    let mut metadata = None;
    for member in Members::of(text)? {
        let (name, value) = member?;
        if name == "metadata" && value.starts_with('{') {
            metadata = Some(value);
        }
    }
    metadata.ok_or_else(|| Error::damaged("holds no metadata object"))
}

/// A `.zmetadata` with other entries.
fn edited(text: &[u8], change: EntriesChange) -> Result<Vec<u8>> {
    let mut new = ConsolidatedText::new();
    change(Members::of(metadata_of(text)?.as_bytes())?, &mut new)?;
    new.end_entries();
    for member in Members::of(text)? {
        let (name, value) = member?;
        if name != "metadata" && name != "zarr_consolidated_format" {
            new.push(&name, value.as_bytes())?;
        }
    }
    Ok(new.end().0)
}

/// Adds entries under the names that `rename` gives them; those without one are dropped.
fn push_renamed(entries: Members, new: &mut ConsolidatedText, rename: &dyn Fn(&str) -> Option<String>) -> Result<()> {
    for entry in entries {
        let (name, text) = entry?;
        if let Some(name) = rename(&name) {
            new.push(&name, text.as_bytes())?;
        }
    }
    Ok(())
}

/// True if two documents say the same.
fn is_same_json(a: &[u8], b: &[u8]) -> Result<bool> {
    if a == b {
        return Ok(true);
    }
    // one after the other: each is counted while it is parsed
    let [a, b] = [json::parse(a)?, json::parse(b)?];
    Ok(is_equal(&a, &b))
}

/// `key` and all keys above it, up to the root.
pub(super) fn upwards(key: &Key) -> impl Iterator<Item = Key> + use<> {
    std::iter::successors(Some(key.clone()), |key| (!key.is_root()).then(|| key.parent()))
}

/// True if two values say the same: Python may have written a number otherwise than somebody else.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            let is_integer = |v: &Value| v.is_i64() || v.is_u64();
            x == y || !(is_integer(a) && is_integer(b)) && json::float(a) == json::float(b)
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| is_equal(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(name, x)| y.get(name).is_some_and(|y| is_equal(x, y)))
        }
        _ => a == b,
    }
}

/// The name of an entry that is not at or below `place`.
fn outside(name: &str, place: &Key) -> Option<String> {
    rest_below(name, place).is_none().then(|| name.to_string())
}

/// What follows `place` in the name of an entry; None if it is not below it.
fn rest_below<'a>(name: &'a str, place: &Key) -> Option<&'a str> {
    name.strip_prefix(place.as_str())?.strip_prefix('/')
}
