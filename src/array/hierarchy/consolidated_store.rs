//! A store whose metadata documents come from the `.zmetadata` at its root: for stores that cannot list, and for any store if
//! the user asks for it. If a store that cannot list has no `.zmetadata`, nodes are found by name. This is a store itself, so
//! that the layers above do not know where documents come from.

use super::OWN;
use super::consolidated::metadata_of;
use super::inline::inline_entries;
use crate::error::{Error, Kind, Result};
use crate::stats::Stats;
use crate::store::{
    Counted, Entry, EntryKind, Key, Listing, Replaces, Stat, Store, Version, delegate_store, get_counted,
    stat_many_with,
};
use crate::util::json::{self, MemberTexts};
use crate::util::memory::{self, Grant, lock};
use crate::zarr::metadata::{MAX_CONSOLIDATED, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// When to use the documents in the root's `.zmetadata` instead of the stored ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UseConsolidated {
    /// If the store cannot list.
    #[default]
    Auto,
    /// Always; the metadata is then read-only.
    Always,
    /// Never.
    Never,
}

/// A store with the hierarchy of its `.zmetadata`.
pub struct ConsolidatedStore {
    below: Arc<dyn Store>,
    uses_metadata: bool,
    stats: Arc<Stats>,
    /// The version of the latest `.zmetadata` and its content, `None` if unusable. Locked while it is read.
    latest: Mutex<Option<(Version, Option<Arc<Outline>>)>>,
}

/// The content of a `.zmetadata`.
struct Outline {
    /// The time of its last change.
    modified: SystemTime,
    /// The whole text, which contains the documents.
    text: Vec<u8>,
    documents: BTreeMap<Key, DocumentRange>,
    /// The keys of groups and arrays and of all levels above them.
    prefixes: BTreeSet<Key>,
    /// Counts the memory of the text and of both maps.
    memory: Grant,
}

/// The range of a document in the text.
struct DocumentRange {
    range: Range<u32>,
    /// A hash of the document.
    digest: u128,
}

/// The memory of a key in both maps, besides its text, in bytes; nodes of a B-tree may be half empty.
const KEY: usize = 2 * (size_of::<Key>() + size_of::<DocumentRange>()) + 32;

impl ConsolidatedStore {
    /// Wraps `store` unless it can list and `when` does not ask for `.zmetadata`.
    ///
    /// # Errors
    ///
    /// [`UseConsolidated::Always`] without a usable `.zmetadata`.
    pub fn over(store: Arc<dyn Store>, when: UseConsolidated, stats: Arc<Stats>) -> Result<Arc<dyn Store>> {
        if store.lists_all() && when != UseConsolidated::Always {
            return Ok(store);
        }
        let uses_metadata = when != UseConsolidated::Never;
        let consolidated = ConsolidatedStore { below: store, uses_metadata, stats, latest: Mutex::default() };
        if when == UseConsolidated::Always && consolidated.outline()?.is_none() {
            let why = "has no .zmetadata that can be used: `zarrfs consolidate` writes one";
            return Err(Error::invalid(why));
        }
        Ok(Arc::new(consolidated))
    }

    /// Returns the content of the present `.zmetadata`; `None` if there is no usable one.
    fn outline(&self) -> Result<Option<Arc<Outline>>> {
        if !self.uses_metadata {
            return Ok(None);
        }
        let Some((key, stat)) = self.consolidated_document()? else { return Ok(None) };
        let mut latest = lock(&self.latest);
        if let Some((version, outline)) = &*latest
            && *version == stat.version
        {
            return Ok(outline.clone());
        }
        // the old and the new one may not fit into memory together
        *latest = None;
        let read = get_counted(self.below.as_ref(), &key, MAX_CONSOLIDATED);
        let version = match &read {
            Ok(None) => return Ok(None),
            Ok(Some(read)) => read.stat.version.clone(),
            Err(e) if e.kind() == Kind::Damaged => stat.version,
            Err(e) => return Err(e.clone().context(&key)),
        };
        let parse = if key.name() == ZARR_JSON { Outline::parse_inline } else { Outline::parse };
        let outline = match read.and_then(|read| read.map_or(Ok(None), parse)) {
            Ok(outline) => outline.map(Arc::new),
            Err(e) if e.kind() == Kind::System(libc::ENOMEM) => return Err(e.context(&key)),
            Err(e) => {
                self.stats.problem(format!("{key}: {e}: it is not used, metadata is asked for by name"));
                None
            }
        };
        *latest = Some((version, outline.clone()));
        Ok(outline)
    }

    /// Returns the document that holds the others: the root's `zarr.json`, or else `.zmetadata`.
    fn consolidated_document(&self) -> Result<Option<(Key, Stat)>> {
        for name in [ZARR_JSON, ZMETADATA] {
            let key = Key::root().join(name);
            let stat = self.below.stat(&key).map_err(|e| e.context(&key))?;
            if let Some(stat) = stat.filter(|stat| stat.kind == EntryKind::Value) {
                return Ok(Some((key, stat)));
            }
        }
        Ok(None)
    }

    /// Returns the content of `.zmetadata` if it has the say over `key`: a metadata document.
    fn outline_of(&self, key: &Key) -> Result<Option<Arc<Outline>>> {
        if is_document(key) { self.outline() } else { Ok(None) }
    }

    /// Probes a key that a store without listings does not know: returns the stat of a prefix if the key has the document of a
    /// group or array and is not below an array.
    fn probe(&self, key: &Key) -> Result<Option<Stat>> {
        if key.as_str().split('/').any(|name| name.starts_with('.')) {
            return Ok(None);
        }
        let levels = key.as_str().match_indices('/').map(|(end, _)| &key.as_str()[..end]);
        for above in std::iter::once("").chain(levels) {
            if self.below.stat(&Key::root().join(above).join(ZARRAY))?.is_some() {
                return Ok(None);
            }
        }
        for name in [ZARR_JSON, ZARRAY, ZGROUP] {
            if let Some(stat) = self.below.stat(&key.join(name))? {
                return Ok(Some(prefix_of(stat.modified)));
            }
        }
        Ok(None)
    }

    /// Returns an error if `.zmetadata` provides the metadata, so that changed documents would not be read.
    fn check_metadata_writable(&self) -> Result<()> {
        match self.outline()? {
            None => Ok(()),
            Some(_) => {
                let why = "the metadata is read from .zmetadata alone (--consolidated use), so it can't be changed";
                Err(Error::new(Kind::ReadOnly, why))
            }
        }
    }

    fn check_put(&self, key: &Key) -> Result<()> {
        if is_document(key) { self.check_metadata_writable() } else { Ok(()) }
    }
}

impl Outline {
    fn new(stat: &Stat, memory: Grant) -> Self {
        let (documents, prefixes) = (BTreeMap::new(), BTreeSet::from([Key::root()]));
        Outline { modified: stat.modified, text: Vec::new(), documents, prefixes, memory }
    }

    /// Parses the root's `zarr.json`; `None` if it has no consolidated metadata.
    fn parse_inline(read: Counted) -> Result<Option<Self>> {
        let Counted { bytes, stat, memory } = read;
        let Some(entries) = inline_entries(&bytes)? else { return Ok(None) };
        let mut outline = Outline::new(&stat, memory);
        for entry in MemberTexts::of(entries.as_bytes())? {
            let (name, value) = entry?;
            // ignore names that are not valid keys
            let Some(key) = Key::normalize(&name).ok().filter(|key| !key.is_root()) else { continue };
            outline.add(key.join(ZARR_JSON), value, value.as_ptr() as usize - bytes.as_ptr() as usize)?;
        }
        let root = std::str::from_utf8(&bytes).map_err(|_| Error::damaged("not UTF-8"))?;
        outline.add(Key::root().join(ZARR_JSON), root, 0)?;
        Ok(Some(Outline { text: bytes, ..outline }))
    }

    /// Parses a `.zmetadata`.
    fn parse(read: Counted) -> Result<Option<Self>> {
        let Counted { bytes, stat, memory } = read;
        json::check(&bytes)?;
        let mut outline = Outline::new(&stat, memory);
        let metadata = metadata_of(&bytes)?;
        for entry in MemberTexts::of(metadata.as_bytes())? {
            let (name, value) = entry?;
            // ignore names that are not valid keys
            let Some(key) = Key::normalize(&name).ok().filter(is_document) else { continue };
            outline.add(key, value, value.as_ptr() as usize - bytes.as_ptr() as usize)?;
        }
        Ok(Some(Outline { text: bytes, ..outline }))
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
        let digest = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, value).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        // fits because of MAX_CONSOLIDATED
        let range = start as u32..(start + value.len()) as u32;
        self.documents.insert(key, DocumentRange { range, digest: digest(0) << 64 | digest(1) });
        Ok(())
    }

    /// Counts the memory of a key. A quarter of the memory limit stays free for reading the documents.
    fn count(&mut self, key: &Key) -> Result<()> {
        let more = KEY + key.as_str().len();
        if self.memory.bytes() + more > memory::limit() / 4 * 3 {
            return Err(memory::too_large(self.memory.bytes() / 3 * 4));
        }
        self.memory.grow(more)
    }

    fn get(&self, key: &Key) -> Option<(&[u8], Stat)> {
        let place = self.documents.get(key)?;
        let text = self.text.get(place.range.start as usize..place.range.end as usize)?;
        Some((text, self.stat_of(place)))
    }

    fn stat_of(&self, place: &DocumentRange) -> Stat {
        // the version depends on the document alone, not on other changes of .zmetadata
        let version = Version::Tag(format!("{:x}-{:032x}", place.range.len(), place.digest));
        let (size, modified) = (place.range.len() as u64, self.modified);
        Stat { kind: EntryKind::Value, size, modified, version, permissions: None }
    }

    /// Returns the stat of `key` if it is a group, an array, or a level above one.
    fn prefix(&self, key: &Key) -> Option<Stat> {
        self.prefixes.contains(key).then(|| prefix_of(self.modified))
    }
}

/// An iterator over the documents, then the groups and arrays, one level below a prefix. It holds no list, since there may be
/// a million.
struct OutlineListing {
    outline: Arc<Outline>,
    prefix: Key,
    /// The last key visited; `None` before the first.
    last: Option<Key>,
    in_prefixes: bool,
}

impl OutlineListing {
    /// Returns the first key below the prefix after the last one, and its stat.
    fn after_last(&self) -> Option<(Key, Stat)> {
        // keys below the prefix are contiguous, so that a listing visits no others
        let first = self.prefix.join("");
        let from = self.last.as_ref().map_or(Bound::Included(&first), Bound::Excluded);
        let range = (from, Bound::Unbounded);
        let found = match self.in_prefixes {
            false => {
                let (key, place) = self.outline.documents.range::<Key, _>(range).next()?;
                (key.clone(), self.outline.stat_of(place))
            }
            true => {
                let key = self.outline.prefixes.range::<Key, _>(range).next()?;
                (key.clone(), prefix_of(self.outline.modified))
            }
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
                return Some(Entry { name, kind: stat.kind, stat: Some(stat) });
            }
        }
    }
}

impl Store for ConsolidatedStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let Some(outline) = self.outline_of(key)? else { return self.below.get(key, limit, value) };
        let Some((text, stat)) = outline.get(key) else { return Ok(None) };
        if stat.size > limit {
            return Err(Error::damaged(format!("{} bytes, more than the {limit} it may have", stat.size)));
        }
        memory::reserve(value, text.len())?;
        value.extend_from_slice(text);
        Ok(Some(stat.version))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let Some(outline) = self.outline_of(key)? else { return self.below.get_range(key, range, value) };
        let Some((text, stat)) = outline.get(key) else { return Ok(None) };
        let end = range.end.min(stat.size);
        *value = text[range.start.min(end) as usize..end as usize].to_vec();
        Ok(Some(stat))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if let Some(outline) = self.outline_of(key)? {
            return Ok(outline.documents.get(key).map(|place| outline.stat_of(place)));
        }
        // a read-only store has no files of zarrfs
        if key.name().starts_with(OWN) && !self.below.is_writable() {
            return Ok(None);
        }
        let outline = self.outline()?;
        // the decoded .zmetadata is made from a listing, which does not exist here
        if key.name() == ZMETADATA && outline.is_none() && !self.below.lists_all() {
            return Ok(None);
        }
        if let Some(stat) = outline.as_ref().and_then(|outline| outline.prefix(key)) {
            return Ok(Some(stat));
        }
        match self.below.stat(key)? {
            None if outline.is_none() && !self.below.lists_all() => self.probe(key),
            found => Ok(found),
        }
    }

    /// Keys requested together come from a listing, so that none of them is probed.
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
                Some(place) => Some(Some(outline.stat_of(place))),
                None if is_document(key) => Some(None),
                None => outline.prefix(key).map(Some),
            }
        };
        stat_many_with(self.below.as_ref(), keys, &mut known, each);
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        if self.below.lists_all() {
            return self.below.list(prefix);
        }
        match self.outline()? {
            Some(outline) if outline.prefixes.contains(prefix) => {
                Ok(Box::new(OutlineListing { outline, prefix: prefix.clone(), last: None, in_prefixes: false }.map(Ok)))
            }
            _ => self.below.list(prefix),
        }
    }

    fn forget(&self, prefix: &Key) {
        self.below.forget(prefix);
        if self.uses_metadata {
            self.below.forget(&Key::root().join(ZMETADATA));
        }
    }

    delegate_store!(below: lists_all concurrency file location space is_writable check_writable lock sync writable_file
        take_snapshot prefetch prefetch_levels);

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
        self.check_metadata_writable()?;
        self.below.make_prefix(key)
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        self.check_metadata_writable()?;
        self.below.remove_prefix(key)
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        if !matches!(self.below.stat(from)?, Some(stat) if stat.kind == EntryKind::Value) || is_document(from) {
            self.check_metadata_writable()?;
        }
        self.check_put(to)?;
        self.below.rename(from, to)
    }
}

fn is_document(key: &Key) -> bool {
    [ZARR_JSON, ZARRAY, ZGROUP, ZATTRS].contains(&key.name())
}

fn prefix_of(modified: SystemTime) -> Stat {
    let version = Version::Tag(String::new());
    Stat { kind: EntryKind::Prefix, size: 0, modified, version, permissions: None }
}
