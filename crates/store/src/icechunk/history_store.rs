//! All versions of a repository as one store: a prefix for each branch, tag and snapshot. A version
//! is opened when a key in it is asked for, and closed again when others are used more or memory is
//! short.

use super::IcechunkStore;
use super::object_id::ObjectId;
use super::repository::{IceHistory, IceRef};
use super::snapshot::IceCommit;
use crate::{Entry, EntryKind, Key, Listing, Readable, Stat, Store, Version, check_size};
use lru::LruCache;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, Reclaim, lock};

/// Maximum number of versions that are open.
const OPEN_VERSIONS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Characters of names that names of directories lack or that escape others.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%').add(b'\\');

/// The prefixes at the root.
const KINDS: [&str; 3] = ["branch", "snapshot", "tag"];

/// The document of the prefixes above the versions.
const DOCUMENT: &[u8] = br#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;

/// A store of all versions.
pub struct IceHistoryStore {
    /// The main branch, whose manifests and targets all versions share.
    main: IcechunkStore,
    opened: Arc<OpenVersions>,
}

/// The versions that were used last. The lock protects the map alone.
struct OpenVersions(Mutex<LruCache<Key, Arc<IcechunkStore>>>);

impl Reclaim for OpenVersions {
    fn reclaim(&self) {
        if let Ok(mut versions) = self.0.try_lock() {
            versions.clear();
        }
    }
}

/// What a key names.
enum HistoryKey {
    /// A prefix above the versions.
    Above,
    /// The document of such a prefix.
    Document,
    /// A key in a version.
    Inside(Arc<IcechunkStore>, Key),
    Nothing,
}

impl IceHistoryStore {
    /// Returns the store of all versions of a repository whose main branch is open.
    pub fn new(main: IcechunkStore) -> Self {
        let opened = Arc::new(OpenVersions(Mutex::new(LruCache::new(OPEN_VERSIONS))));
        memory::register(&opened);
        IceHistoryStore { main, opened }
    }

    fn find(&self, key: &Key) -> Result<HistoryKey> {
        let mut names = key.as_str().splitn(3, '/');
        let kind = names.next().unwrap_or_default();
        let is_document = |name: &str| name == "zarr.json";
        if key.is_root() {
            return Ok(HistoryKey::Above);
        }
        if is_document(kind) && key.depth() == 1 {
            return Ok(HistoryKey::Document);
        }
        if !KINDS.contains(&kind) {
            return Ok(HistoryKey::Nothing);
        }
        let Some(name) = names.next() else {
            return Ok(HistoryKey::Above);
        };
        let inside = names.next().unwrap_or_default();
        if is_document(name) && inside.is_empty() {
            return Ok(HistoryKey::Document);
        }
        let version = Key::root().join(kind).join(name);
        if let Some(store) = lock(&self.opened.0).get(&version) {
            return Ok(HistoryKey::Inside(store.clone(), Key::root().join(inside)));
        }
        let Some(wanted) = reference_of(kind, name) else {
            return Ok(HistoryKey::Nothing);
        };
        match self.main.at(wanted) {
            Ok(store) => {
                let store = Arc::new(store);
                lock(&self.opened.0).put(version, store.clone());
                Ok(HistoryKey::Inside(store, Key::root().join(inside)))
            }
            Err(e) if e.kind() == Kind::NotFound => Ok(HistoryKey::Nothing),
            Err(e) => Err(e),
        }
    }

    /// Returns the names below a prefix above the versions.
    fn names(&self, prefix: &Key) -> Result<Vec<String>> {
        let names = |named: Vec<(String, ObjectId)>| {
            let names = named.into_iter().map(|(name, _)| escaped_name(&name));
            names.collect()
        };
        let history = || self.main.history(0).map(Option::unwrap_or_default);
        Ok(match prefix.as_str() {
            "" => KINDS.map(String::from).to_vec(),
            "branch" => names(history()?.branches),
            "tag" => names(history()?.tags),
            _ => {
                let ids = self.main.manifests.repository.snapshots()?;
                ids.iter().map(ObjectId::to_string).collect()
            }
        })
    }

    fn document(&self) -> Result<Stat> {
        let (_, commit) = self
            .main
            .commit_at(&Key::root())?
            .ok_or_else(Error::stale)?;
        let version = Version::Tag("history".to_string());
        Ok(Stat::value(DOCUMENT.len() as u64, commit.time, version))
    }
}

/// Returns the name of the prefix of a branch or tag.
fn escaped_name(name: &str) -> String {
    let escaped = utf8_percent_encode(name, ESCAPED).to_string();
    if [".", "..", "zarr.json"].contains(&name) {
        escaped.replace('.', "%2E")
    } else {
        escaped
    }
}

/// Returns what the prefix `kind/name` shows.
fn reference_of(kind: &str, name: &str) -> Option<IceRef> {
    let plain = percent_decode_str(name).decode_utf8().ok()?.into_owned();
    if kind != "snapshot" && escaped_name(&plain) != name {
        return None;
    }
    match kind {
        "branch" => Some(IceRef::Branch(plain)),
        "tag" => Some(IceRef::Tag(plain)),
        _ => ObjectId::parse(name)
            .filter(|id| id.to_string() == name)
            .map(IceRef::Snapshot),
    }
}

impl Readable for IceHistoryStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        match self.find(key)? {
            HistoryKey::Inside(store, inside) => store.get(&inside, limit, value),
            HistoryKey::Document => {
                check_size(DOCUMENT.len() as u64, limit)?;
                value.clear();
                value.extend_from_slice(DOCUMENT);
                Ok(Some(self.document()?.version))
            }
            HistoryKey::Above | HistoryKey::Nothing => Ok(None),
        }
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        match self.find(key)? {
            HistoryKey::Inside(store, inside) => store.get_range(&inside, range, value),
            HistoryKey::Document => {
                let end = range.end.min(DOCUMENT.len() as u64) as usize;
                value.clear();
                value.extend_from_slice(&DOCUMENT[(range.start as usize).min(end)..end]);
                self.document().map(Some)
            }
            HistoryKey::Above | HistoryKey::Nothing => Ok(None),
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        match self.find(key)? {
            HistoryKey::Inside(store, inside) => store.stat(&inside),
            HistoryKey::Document => self.document().map(Some),
            HistoryKey::Above => Ok(Some(Stat::prefix())),
            HistoryKey::Nothing => Ok(None),
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        match self.find(prefix)? {
            HistoryKey::Inside(store, inside) => store.list(&inside),
            HistoryKey::Above => {
                let names = self.names(prefix)?.into_iter();
                let entries = names.map(|name| Ok(Entry::new(name, EntryKind::Prefix)));
                let document = Entry::new("zarr.json", EntryKind::Value);
                Ok(Box::new(std::iter::once(Ok(document)).chain(entries)))
            }
            _ => Err(Error::not_found("no such prefix in the repository")),
        }
    }

    fn concurrency(&self) -> usize {
        self.main.concurrency()
    }

    fn forget(&self, prefix: &Key) {
        self.main.forget(prefix);
        // the lock is not held while a store is called
        let opened: Vec<_> = lock(&self.opened.0)
            .iter()
            .map(|(_, store)| store.clone())
            .collect();
        opened.iter().for_each(|store| store.forget(prefix));
    }

    fn commit_at(&self, key: &Key) -> Result<Option<(IceRef, IceCommit)>> {
        match self.find(key)? {
            HistoryKey::Inside(store, inside) => store.commit_at(&inside),
            _ => Ok(None),
        }
    }

    fn history(&self, count: usize) -> Result<Option<IceHistory>> {
        self.main.history(count)
    }

    fn location(&self) -> String {
        self.main.location()
    }
}

impl Store for IceHistoryStore {}
