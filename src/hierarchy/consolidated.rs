//! `.zmetadata`: the metadata documents below a group in one. The one shown is made of what is there, decoded; the one
//! in the store is kept in step with what is written. It knows nothing of who reads it.

use super::document::refused;
use super::{Document, Hierarchy, Place};
use crate::error::{Error, Kind, Result};
use crate::json::{self, Map, Value};
use crate::metadata::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::store::Key;

/// The largest `.zmetadata` that is read, in bytes: it may hold the documents of very many arrays.
pub(super) const MAX_CONSOLIDATED: u64 = 1 << 30;

/// The documents in a `.zmetadata`, by their keys as seen from its group.
type Entries = Map<String, Value>;

impl Hierarchy {
    /// The `.zmetadata` of the decoded view, where the store has one: made of the metadata documents that are really
    /// there, since the stored one may be stale.
    pub fn consolidated_view(&self, key: &Key) -> Result<Option<Document>> {
        let Some(stat) = self.store.stat(&key.join(ZMETADATA)).map_err(|e| e.context(key))? else { return Ok(None) };
        let mut entries: Vec<String> = Vec::new();
        let mut add = |key: Key, document: Result<Option<Document>>| match document {
            Ok(None) => {}
            // a document that is no JSON can't be put inside another
            Ok(Some(d)) => match String::from_utf8(d.text) {
                Ok(text) if json::parse(text.as_bytes()).is_ok() => {
                    entries.push(format!("{}:{}", Value::from(key.as_str()), text.trim()));
                }
                _ => self.stats.problem(format!("{key}: not valid JSON, left out of .zmetadata")),
            },
            Err(e) => self.stats.problem(e.to_string()),
        };
        self.walk(key, &mut |place_key, place| {
            let below = place_key.relative_to(key).unwrap_or_default();
            match place {
                Place::Array(_) => add(below.join(ZARRAY), self.array_view(place_key)),
                Place::Group => add(below.join(ZGROUP), self.group_view(place_key)),
                _ => return,
            }
            add(below.join(ZATTRS), self.attributes_view(place_key));
        });
        let text = format!("{{\"metadata\":{{{}}},\"zarr_consolidated_format\":1}}", entries.join(","));
        Ok(Some(Document { text: text.into_bytes(), stat }))
    }

    /// Writes a `.zmetadata` that somebody gives the group at `key`: what it says is not taken over, since he has seen
    /// the decoded documents; it is made of the stored ones.
    pub(super) fn put_consolidated(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZMETADATA);
        match json::parse(text) {
            Ok(Value::Object(_)) => {}
            Ok(_) => return Err(refused(&document, Error::invalid("not a JSON object"))),
            Err(e) => return Err(refused(&document, e)),
        }
        if !matches!(self.find(key)?, Some(Place::Group)) {
            return Err(Error::invalid("only a group has one").context(document));
        }
        let mut consolidated = Map::new();
        consolidated.insert("metadata".into(), Value::Object(self.stored_documents(key)));
        consolidated.insert("zarr_consolidated_format".into(), 1.into());
        self.put(&document, json::write_pretty(&Value::Object(consolidated)).as_bytes())
    }

    /// The documents of `key` and of everything below it, as they are stored.
    fn stored_documents(&self, key: &Key) -> Entries {
        let mut entries = Map::new();
        self.walk(key, &mut |place, _| {
            let below = place.relative_to(key).unwrap_or_default();
            for name in [ZARRAY, ZATTRS, ZGROUP] {
                let parse = |d: Document| json::parse(&d.text).map_err(|e| e.context(place.join(name)));
                match self.stored(&place.join(name)).and_then(|d| d.map(parse).transpose()) {
                    Ok(None) => {}
                    Ok(Some(value)) => drop(entries.insert(below.join(name).as_str().to_string(), value)),
                    Err(e) => self.stats.problem(format!("{e}: left out of {}", key.join(ZMETADATA))),
                }
            }
        });
        entries
    }

    /// Brings documents of `place` up to date, each by its name and its text (None: removed), in the `.zmetadata` of
    /// every group at or above it that has one.
    pub(super) fn consolidate(&self, place: &Key, documents: &[(&str, Option<&[u8]>)]) -> Result<()> {
        for group in upwards(place) {
            let below = place.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, |mut entries| {
                for (name, text) in documents {
                    let name = below.join(name);
                    match text {
                        Some(text) => drop(entries.insert(name.as_str().to_string(), json::parse(text)?)),
                        None => drop(entries.shift_remove(name.as_str())),
                    }
                }
                Ok(entries)
            })?;
        }
        Ok(())
    }

    /// Takes the documents of a removed place, and of all that was below it, out of every `.zmetadata` above it.
    pub(super) fn consolidate_removed(&self, place: &Key) -> Result<()> {
        for group in upwards(&place.parent()) {
            let below = place.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, |entries| Ok(without(entries, &below)))?;
        }
        Ok(())
    }

    /// Moves the documents of a renamed place, and of all below it, in every `.zmetadata` above its old or new path.
    pub(super) fn consolidate_renamed(&self, from: &Key, to: &Key) -> Result<()> {
        for group in upwards(&from.parent()).filter(|group| to.relative_to(group).is_none()) {
            let old = from.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, |entries| Ok(without(entries, &old)))?;
        }
        for group in upwards(&to.parent()) {
            let new = to.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, |entries| {
                // of the empty group that was there
                let mut entries = without(entries, &new);
                let Some(old) = from.relative_to(&group) else {
                    let moved = self.stored_documents(to).into_iter();
                    entries.extend(moved.map(|(name, value)| (new.join(&name).as_str().to_string(), value)));
                    return Ok(entries);
                };
                let renamed = entries.into_iter().map(|(name, value)| {
                    let moved = rest_below(&name, &old).map(|rest| new.join(rest).as_str().to_string());
                    (moved.unwrap_or(name), value)
                });
                Ok(renamed.collect())
            })?;
        }
        Ok(())
    }

    /// Changes the entries of the `.zmetadata` of `group` by one put; nothing if it has none. One that can't be read is
    /// left alone, and recorded as a problem: its readers are told, too.
    fn edit_consolidated(&self, group: &Key, edit: impl FnOnce(Entries) -> Result<Entries>) -> Result<()> {
        let key = group.join(ZMETADATA);
        let mut document = match self.consolidated_document(&key) {
            Ok(None) => return Ok(()),
            Ok(Some(document)) => document,
            Err(e) if e.kind() == Kind::Damaged => {
                self.stats.problem(format!("{e}: it can't be kept in step with the metadata that is written"));
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        if let Some(Value::Object(entries)) = document.get_mut("metadata") {
            *entries = edit(std::mem::take(entries)).map_err(|e| e.context(&key))?;
        }
        self.put(&key, json::write_pretty(&Value::Object(document)).as_bytes())
    }

    /// A stored `.zmetadata` that has entries; None if there is none.
    fn consolidated_document(&self, key: &Key) -> Result<Option<Map<String, Value>>> {
        let mut text = Vec::new();
        let read = self.store.get(key, MAX_CONSOLIDATED, &mut text).map_err(|e| e.context(key))?;
        if read.is_none() {
            return Ok(None);
        }
        match json::parse(&text).map_err(|e| e.context(key))? {
            Value::Object(document) if document.get("metadata").is_some_and(Value::is_object) => Ok(Some(document)),
            _ => Err(Error::damaged("holds no metadata object").context(key)),
        }
    }
}

/// `key` and all keys above it, up to the root.
pub(super) fn upwards(key: &Key) -> impl Iterator<Item = Key> + use<> {
    std::iter::successors(Some(key.clone()), |key| (!key.is_root()).then(|| key.parent()))
}

fn without(entries: Entries, place: &Key) -> Entries {
    entries.into_iter().filter(|(name, _)| rest_below(name, place).is_none()).collect()
}

/// What follows `place` in the name of an entry; None if it is not below it.
fn rest_below<'a>(name: &'a str, place: &Key) -> Option<&'a str> {
    name.strip_prefix(place.as_str())?.strip_prefix('/')
}
