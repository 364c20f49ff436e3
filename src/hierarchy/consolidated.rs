//! `.zmetadata`: the metadata documents below a group in one. The one shown is made of what is there, decoded; the one
//! in the store is kept in step with what is written, also by other machines: each change is laid on what is there, and
//! puts what the documents say then. It knows nothing of who reads it.

use super::document::refused;
use super::{Document, Hierarchy, Place};
use crate::error::{Error, Kind, Result};
use crate::json::{self, Map, Value};
use crate::metadata::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::store::{Key, Permissions, Stat, both};
use std::cell::{Cell, RefCell};

/// The largest `.zmetadata` that is read, in bytes: it may hold the documents of very many arrays.
pub(super) const MAX_CONSOLIDATED: u64 = 1 << 30;

/// The documents in a `.zmetadata`, by their keys as seen from its group.
type Entries = Map<String, Value>;

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
    /// there, since the stored one may be stale.
    pub fn consolidated_view(&self, key: &Key) -> Result<Option<Document>> {
        let Some(stat) = self.store.stat(&key.join(ZMETADATA)).map_err(|e| e.context(key))? else { return Ok(None) };
        // it may be read by those who may read every document in it
        let granted = Cell::new(stat.permissions);
        let restrict = |by: Option<Permissions>| granted.set(both(granted.get(), by));
        let mut entries: Vec<String> = Vec::new();
        let mut add = |key: Key, document: Result<Option<Document>>| match document {
            Ok(None) => {}
            // a document that is no JSON can't be put inside another
            Ok(Some(d)) => match String::from_utf8(d.text) {
                Ok(text) if json::parse(text.as_bytes()).is_ok() => {
                    restrict(d.stat.permissions);
                    entries.push(format!("{}:{}", Value::from(key.as_str()), text.trim()));
                }
                _ => self.stats.problem(format!("{key}: not valid JSON, left out of .zmetadata")),
            },
            Err(e) => self.stats.problem(e.to_string()),
        };
        self.walk(key, &mut |place_key, place| {
            let below = place_key.relative_to(key).unwrap_or_default();
            if stat.permissions.is_some() {
                let directory = self.store.stat(place_key).ok().flatten().and_then(|stat| stat.permissions);
                restrict(Some(directory.map_or(Permissions::OWNER_ONLY, Permissions::inside)));
            }
            match place {
                Place::Array(_) => add(below.join(ZARRAY), self.array_view(place_key)),
                Place::Group => add(below.join(ZGROUP), self.group_view(place_key)),
                _ => return,
            }
            add(below.join(ZATTRS), self.attributes_view(place_key));
        });
        let text = format!("{{\"metadata\":{{{}}},\"zarr_consolidated_format\":1}}", entries.join(","));
        Ok(Some(Document { text: text.into_bytes(), stat: Stat { permissions: granted.get(), ..stat } }))
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
        self.make_consolidated(key).map(drop)
    }

    /// Writes the `.zmetadata` of the group at `key`, made of the documents that are stored there and below; the answer is
    /// the keys of those that are in it, as seen from the group.
    pub fn write_consolidated(&self, key: &Key) -> Result<Vec<String>> {
        let _turn = self.turn(&[key])?;
        if !matches!(self.find(key)?, Some(Place::Group)) {
            return Err(Error::invalid("not a group: only a group has a .zmetadata").context(key));
        }
        let names = self.make_consolidated(key)?;
        self.store.sync()?;
        Ok(names)
    }

    fn make_consolidated(&self, key: &Key) -> Result<Vec<String>> {
        let names = RefCell::new(Vec::new());
        self.edit(&key.join(ZMETADATA), MAX_CONSOLIDATED, &|_| {
            self.store.forget(key);
            let entries = self.stored_documents(key);
            names.replace(entries.keys().cloned().collect());
            let mut consolidated = Map::new();
            consolidated.insert("metadata".into(), Value::Object(entries));
            consolidated.insert("zarr_consolidated_format".into(), 1.into());
            Ok(Some(Value::Object(consolidated)))
        })?;
        Ok(names.into_inner())
    }

    /// The entries of the stored `.zmetadata` of the group at `key` that [`Hierarchy::write_consolidated`] would write
    /// otherwise, by name; none if it has none. [`Kind::Damaged`] if it can't be used at all.
    pub fn stale_consolidated(&self, key: &Key) -> Result<Vec<(String, Stale)>> {
        let (document, mut text) = (key.join(ZMETADATA), Vec::new());
        let got = self.store.get(&document, MAX_CONSOLIDATED, &mut text).map_err(|e| e.context(&document))?;
        if got.is_none() {
            return Ok(Vec::new());
        }
        let parsed = json::parse(&text).map_err(|e| e.context(&document))?;
        let Some(Value::Object(there)) = parsed.get("metadata") else {
            return Err(Error::damaged("holds no metadata object").context(&document));
        };
        let stored = self.stored_documents(key);
        let extra = there.keys().filter(|name| !stored.contains_key(*name));
        let mut stale: Vec<_> = extra.map(|name| (name.clone(), Stale::Extra)).collect();
        stale.extend(stored.iter().filter_map(|(name, value)| match there.get(name) {
            None => Some((name.clone(), Stale::Missing)),
            Some(entry) => (!is_equal(entry, value)).then(|| (name.clone(), Stale::Different)),
        }));
        Ok(stale)
    }

    /// The documents of `key` and of everything below it, as they are stored.
    fn stored_documents(&self, key: &Key) -> Entries {
        let mut entries = Map::new();
        self.walk(key, &mut |place, _| {
            let below = place.relative_to(key).unwrap_or_default();
            for name in [ZARRAY, ZATTRS, ZGROUP] {
                match self.parsed(&place.join(name)) {
                    Ok(None) => {}
                    Ok(Some(value)) => drop(entries.insert(below.join(name).as_str().to_string(), value)),
                    Err(e) => self.stats.problem(format!("{e}: left out of {}", key.join(ZMETADATA))),
                }
            }
        });
        entries
    }

    /// The document at `key`; None if there is none.
    fn parsed(&self, key: &Key) -> Result<Option<Value>> {
        let parse = |d: Document| json::parse(&d.text).map_err(|e| e.context(key));
        self.stored(key)?.map(parse).transpose()
    }

    /// Brings documents of `place` up to date, given by their names, in the `.zmetadata` of every group at or above it that
    /// has one. They are read again, after it was: another machine may have changed them, too, and be done before us.
    pub(super) fn consolidate(&self, place: &Key, documents: &[&str]) -> Result<()> {
        for group in upwards(place) {
            let below = place.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, |mut entries| {
                for name in documents {
                    let (name, document) = (below.join(name), place.join(name));
                    self.store.forget(&document);
                    match self.parsed(&document)? {
                        Some(value) => drop(entries.insert(name.as_str().to_string(), value)),
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

    /// Takes note of a group or array that has come to `key`, or gone from there, with everything below it, by a rename
    /// that this hierarchy did not make: every `.zmetadata` above it says what is stored there now.
    pub fn adopt(&self, key: &Key) -> Result<()> {
        let _turn = self.turn(&[key])?;
        self.forget_below(key);
        self.store.forget(key);
        for group in upwards(&key.parent()) {
            let below = key.relative_to(&group).unwrap_or_default();
            self.edit_consolidated(&group, |entries| Ok(self.with_stored(without(entries, &below), key, &below)))?;
        }
        Ok(())
    }

    /// The entries, and those of the documents that are stored at and below `place`, which the group calls `below`.
    fn with_stored(&self, mut entries: Entries, place: &Key, below: &Key) -> Entries {
        let stored = self.stored_documents(place).into_iter();
        entries.extend(stored.map(|(name, value)| (below.join(&name).as_str().to_string(), value)));
        entries
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
                let entries = without(entries, &new);
                let Some(old) = from.relative_to(&group) else { return Ok(self.with_stored(entries, to, &new)) };
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
    fn edit_consolidated(&self, group: &Key, edit: impl Fn(Entries) -> Result<Entries>) -> Result<()> {
        let key = group.join(ZMETADATA);
        let edited = self.edit(&key, MAX_CONSOLIDATED, &|text| {
            let Some(text) = text else { return Ok(None) };
            let mut document = json::parse(text).map_err(|e| e.context(&key))?;
            match document.get_mut("metadata") {
                Some(Value::Object(entries)) => *entries = edit(std::mem::take(entries))?,
                _ => return Err(Error::damaged("holds no metadata object").context(&key)),
            }
            Ok(Some(document))
        });
        edited.or_else(|e| match e.kind() {
            Kind::Damaged => {
                self.stats.problem(format!("{e}: it can't be kept in step with the metadata that is written"));
                Ok(())
            }
            _ => Err(e),
        })
    }
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

fn without(entries: Entries, place: &Key) -> Entries {
    entries.into_iter().filter(|(name, _)| rest_below(name, place).is_none()).collect()
}

/// What follows `place` in the name of an entry; None if it is not below it.
fn rest_below<'a>(name: &'a str, place: &Key) -> Option<&'a str> {
    name.strip_prefix(place.as_str())?.strip_prefix('/')
}
