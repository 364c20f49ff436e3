//! The hierarchy of a store that can't list: its groups and arrays as the `.zmetadata` at its root tells them, or, without
//! one, as far as somebody asks for them by name. Where the user wants it so, the metadata of any store. It is a store
//! itself, so that nobody above it need know where a document comes from.

use super::OWN;
use super::consolidated::MAX_CONSOLIDATED;
use crate::error::{Error, Kind, Result};
use crate::json::{self, Value};
use crate::memory::lock;
use crate::metadata::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::stats::Stats;
use crate::store::{Entry, EntryKind, Key, Listing, Replaces, Stat, Store, Version, hand_on, stat_many_of};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// When the documents in the `.zmetadata` at the root of a store are used in place of the stored ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UseConsolidated {
    /// Where the store can't list.
    #[default]
    Auto,
    /// Always; then the metadata can't be changed.
    Always,
    /// Never.
    Never,
}

/// A store whose hierarchy is told by its `.zmetadata`, or found by name.
pub struct Consolidated {
    below: Arc<dyn Store>,
    served: bool,
    stats: Arc<Stats>,
    /// Protects what the latest `.zmetadata` says; None if it can't be used. Held while it is read.
    latest: Mutex<Option<(Version, Option<Arc<Outline>>)>>,
}

/// What a `.zmetadata` says.
struct Outline {
    /// When it was written.
    modified: SystemTime,
    /// The documents, in the form in which they would be stored.
    documents: BTreeMap<Key, String>,
    /// Where groups and arrays stand, and all levels above them.
    prefixes: BTreeSet<Key>,
}

impl Consolidated {
    /// `store` as its hierarchy is to be read: `store` itself where it can list and `.zmetadata` is not to be used.
    pub fn over(store: Arc<dyn Store>, when: UseConsolidated, stats: Arc<Stats>) -> Result<Arc<dyn Store>> {
        if store.lists_all() && when != UseConsolidated::Always {
            return Ok(store);
        }
        let served = when != UseConsolidated::Never;
        let consolidated = Consolidated { below: store, served, stats, latest: Mutex::default() };
        if when == UseConsolidated::Always && consolidated.outline()?.is_none() {
            let why = "has no .zmetadata that can be used: `zarrfs consolidate` writes one";
            return Err(Error::invalid(why));
        }
        Ok(Arc::new(consolidated))
    }

    /// What `.zmetadata` says now; None if there is none, or none that can be used.
    fn outline(&self) -> Result<Option<Arc<Outline>>> {
        let key = Key::root().join(ZMETADATA);
        if !self.served {
            return Ok(None);
        }
        let stat = self.below.stat(&key).map_err(|e| e.context(&key))?;
        let Some(stat) = stat.filter(|stat| stat.kind == EntryKind::Value) else { return Ok(None) };
        let mut latest = lock(&self.latest);
        if let Some((version, outline)) = &*latest
            && *version == stat.version
        {
            return Ok(outline.clone());
        }
        let mut text = Vec::new();
        let read = self.below.get(&key, MAX_CONSOLIDATED, &mut text).map_err(|e| e.context(&key))?;
        let Some(version) = read else { return Ok(None) };
        let outline = Outline::parse(&text, stat.modified).map(Arc::new);
        let outline = outline
            .inspect_err(|e| self.stats.problem(format!("{key}: {e}: it is not used, metadata is asked for by name")));
        let outline = outline.ok();
        *latest = Some((version, outline.clone()));
        Ok(outline)
    }

    /// The document at `key`, if `key` is that of a document and `.zmetadata` is used: Some(None) if it has none.
    fn document(&self, key: &Key) -> Result<Option<Option<(String, Stat)>>> {
        if !is_document(key) {
            return Ok(None);
        }
        let outline = self.outline()?;
        Ok(outline.map(|outline| outline.documents.get(key).map(|text| (text.clone(), outline.stat_of(text)))))
    }

    /// Of a key that a store which can't list knows nothing of: a prefix if it is that of an array or a group. Below an
    /// array there are none.
    fn probed(&self, key: &Key) -> Result<Option<Stat>> {
        if key.as_str().split('/').any(|name| name.starts_with('.')) {
            return Ok(None);
        }
        let levels = key.as_str().match_indices('/').map(|(end, _)| &key.as_str()[..end]);
        for above in std::iter::once("").chain(levels) {
            if self.below.stat(&Key::root().join(above).join(ZARRAY))?.is_some() {
                return Ok(None);
            }
        }
        for name in [ZARRAY, ZGROUP] {
            if let Some(stat) = self.below.stat(&key.join(name))? {
                return Ok(Some(prefix_of(stat.modified)));
            }
        }
        Ok(None)
    }

    /// An error if metadata can't be changed because it is not read from where it would be written.
    fn check_unserved(&self) -> Result<()> {
        match self.outline()? {
            None => Ok(()),
            Some(_) => {
                let why = "the metadata is read from .zmetadata alone (--consolidated use), so it can't be changed";
                Err(Error::new(Kind::ReadOnly, why))
            }
        }
    }

    fn check_put(&self, key: &Key) -> Result<()> {
        if is_document(key) { self.check_unserved() } else { Ok(()) }
    }
}

impl Outline {
    fn parse(text: &[u8], modified: SystemTime) -> Result<Self> {
        let metadata = match json::parse(text)? {
            Value::Object(mut document) => document.shift_remove("metadata"),
            _ => None,
        };
        let Some(Value::Object(entries)) = metadata else { return Err(Error::damaged("holds no metadata object")) };
        let mut outline = Outline { modified, documents: BTreeMap::new(), prefixes: BTreeSet::from([Key::root()]) };
        for (name, value) in entries {
            // what can't be a key of a store is in none
            let Some(key) = Key::normalize(&name).ok().filter(is_document) else { continue };
            outline.prefixes.extend(super::consolidated::upwards(&key.parent()));
            outline.documents.insert(key, json::write_pretty(&value));
        }
        Ok(outline)
    }

    fn stat_of(&self, text: &str) -> Stat {
        // whatever else changes in `.zmetadata`, a document is the same as long as its text is
        let version = Version::Tag(text.to_string());
        Stat { kind: EntryKind::Value, size: text.len() as u64, modified: self.modified, version, permissions: None }
    }

    /// What stands at `key`, if that is a group, an array, or a level above one.
    fn prefix(&self, key: &Key) -> Option<Stat> {
        self.prefixes.contains(key).then(|| prefix_of(self.modified))
    }

    /// The documents, groups and arrays one level below `prefix`.
    fn list(&self, prefix: &Key) -> Vec<Entry> {
        let entry = |key: &Key, stat: Stat| Entry { name: key.name().to_string(), kind: stat.kind, stat: Some(stat) };
        let is_next = |key: &Key| !key.is_root() && key.parent() == *prefix;
        // all below it stand together: a listing of one array doesn't go through those of all
        let (first, is_below) = (prefix.join(""), |key: &Key| key.relative_to(prefix).is_some());
        let documents = self.documents.range(&first..).take_while(|(key, _)| is_below(key));
        let documents = documents.filter(|(key, _)| is_next(key)).map(|(key, text)| entry(key, self.stat_of(text)));
        let prefixes = self.prefixes.range(&first..).take_while(|key| is_below(key)).filter(|key| is_next(key));
        documents.chain(prefixes.map(|key| entry(key, prefix_of(self.modified)))).collect()
    }
}

impl Store for Consolidated {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let Some(document) = self.document(key)? else { return self.below.get(key, limit, value) };
        let Some((text, stat)) = document else { return Ok(None) };
        if stat.size > limit {
            return Err(Error::damaged(format!("{} bytes, more than the {limit} it may have", stat.size)));
        }
        *value = text.into_bytes();
        Ok(Some(stat.version))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let Some(document) = self.document(key)? else { return self.below.get_range(key, range, value) };
        let Some((text, stat)) = document else { return Ok(None) };
        let end = range.end.min(stat.size);
        *value = text.as_bytes()[range.start.min(end) as usize..end as usize].to_vec();
        Ok(Some(stat))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if let Some(document) = self.document(key)? {
            return Ok(document.map(|(_, stat)| stat));
        }
        // nobody can have left one
        if key.name().starts_with(OWN) && !self.below.is_writable() {
            return Ok(None);
        }
        let outline = self.outline()?;
        // one that is shown is made of all that there is, which nobody knows
        if key.name() == ZMETADATA && outline.is_none() && !self.below.lists_all() {
            return Ok(None);
        }
        if let Some(stat) = outline.as_ref().and_then(|outline| outline.prefix(key)) {
            return Ok(Some(stat));
        }
        match self.below.stat(key)? {
            None if outline.is_none() && !self.below.lists_all() => self.probed(key),
            found => Ok(found),
        }
    }

    /// Names that are asked for together come from a listing: none of them is probed.
    fn stat_many(&self, keys: &mut dyn Iterator<Item = Key>, each: &mut dyn FnMut(Result<Option<Stat>>) -> bool) {
        let outline = match self.outline() {
            Ok(outline) => outline,
            Err(e) => {
                while keys.next().is_some() && each(Err(e.clone())) {}
                return;
            }
        };
        let mut known = |key: &Key| {
            let outline = outline.as_ref()?;
            match outline.documents.get(key) {
                Some(text) => Some(Some(outline.stat_of(text))),
                None if is_document(key) => Some(None),
                None => outline.prefix(key).map(Some),
            }
        };
        stat_many_of(self.below.as_ref(), keys, &mut known, each);
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        if self.below.lists_all() {
            return self.below.list(prefix);
        }
        match self.outline()? {
            Some(outline) if outline.prefixes.contains(prefix) => {
                Ok(Box::new(outline.list(prefix).into_iter().map(Ok)))
            }
            _ => self.below.list(prefix),
        }
    }

    fn forget(&self, prefix: &Key) {
        self.below.forget(prefix);
        if self.served {
            self.below.forget(&Key::root().join(ZMETADATA));
        }
    }

    hand_on!(below: lists_all concurrency file location space is_writable check_writable lock sync writable_file);

    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        self.check_put(key)?;
        self.below.put(key, value)
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        self.check_put(key)?;
        self.below.put_if(key, value, replaces)
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        self.check_put(key)?;
        self.below.delete(key)
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        self.check_unserved()?;
        self.below.make_prefix(key)
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        self.check_unserved()?;
        self.below.remove_prefix(key)
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        if !matches!(self.below.stat(from)?, Some(stat) if stat.kind == EntryKind::Value) || is_document(from) {
            self.check_unserved()?;
        }
        self.check_put(to)?;
        self.below.rename(from, to)
    }
}

fn is_document(key: &Key) -> bool {
    [ZARRAY, ZGROUP, ZATTRS].contains(&key.name())
}

fn prefix_of(modified: SystemTime) -> Stat {
    let version = Version::Tag(String::new());
    Stat { kind: EntryKind::Prefix, size: 0, modified, version, permissions: None }
}
