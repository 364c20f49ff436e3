//! A repository as a mount shows it: one snapshot, a branch, or a prefix for each branch, tag and
//! snapshot. A branch moves, and what a program has found in it must not: so the prefix of a branch
//! has another name beside its own, `NAME@ID`, under which its present snapshot stays as it is.
//! Nothing lists that name. A snapshot is opened when a key in it is asked for, and closed again
//! when others are used more or memory is short.

use super::repository::{Names, ReferenceKind};
use super::{IcechunkStore, KnownStats};
use lru::LruCache;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, Reclaim, lock};
use zarrfs_store::{
    ByteRange, Capabilities, Entry, EntryKind, Hint, Key, Listing, ObjectId, OpenedValue,
    Permissions, Readable, Reopening, SnapshotCommit, SnapshotHistory, SnapshotRef, Snapshots,
    Stat, Store, StoreExt, Version,
};

/// Maximum number of snapshots, and of branches, that are open.
const MAX_OPEN: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Characters of names that names of directories lack or that have a meaning there.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%').add(b'\\').add(b'@');

/// The prefixes at the root.
const KINDS: [&str; 3] = [BRANCH, "snapshot", "tag"];
const BRANCH: &str = "branch";

/// The document of the prefixes above the snapshots.
const DOCUMENT: &[u8] = br#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;

/// Time for which the file on a server that names a snapshot is current after it was opened: that
/// for which answers of servers are, if the user sets none.
const NEW: Duration = Duration::from_secs(1);

/// A store of a repository.
pub struct IceRepositoryStore {
    /// The snapshot that was opened first, whose manifests and targets all others share.
    first: Arc<IcechunkStore>,
    shown: Shown,
    opened: Arc<OpenSnapshots>,
    concurrency: OnceLock<usize>,
}

/// What of a repository is shown.
enum Shown {
    /// The first snapshot, from this key on.
    First(Key),
    /// A branch, from this key on.
    Branch(Arc<IceBranch>, Key),
    /// All of it.
    All(Arc<OpenBranches>),
}

/// The branches that were used last. The lock protects the map alone.
struct OpenBranches(Mutex<LruCache<String, Arc<IceBranch>>>);

impl Reclaim for OpenBranches {
    fn reclaim(&self) {
        if let Ok(mut branches) = self.0.try_lock() {
            branches.clear();
        }
    }
}

/// A branch, and its latest snapshot.
struct IceBranch {
    /// When it was looked up first.
    begun: Instant,
    head: Reopening<BranchHead>,
}

struct BranchHead(Arc<IcechunkStore>);

impl OpenedValue for BranchHead {
    fn stat(&self) -> &Stat {
        &self.0.found.stat
    }
}

impl IceBranch {
    fn new(head: Arc<IcechunkStore>) -> Arc<Self> {
        let (files, key) = (head.files().clone(), head.found.key.clone());
        Arc::new(IceBranch {
            begun: Instant::now(),
            head: Reopening::new(files, key, BranchHead(head)),
        })
    }

    /// Returns the latest snapshot.
    fn fresh(&self) -> Result<Arc<IcechunkStore>> {
        let last = self.head.current();
        if !last.0.manifests.repository.is_local() && self.begun.elapsed() < NEW {
            return Ok(last.0.clone());
        }
        let fresh = self.head.fresh(|| self.open_again())?;
        Ok(fresh.0.clone())
    }

    /// Returns the latest snapshot, after a check if a file was opened since the last one.
    fn known(&self) -> Result<Arc<IcechunkStore>> {
        let known = self.head.known(|| self.open_again())?;
        Ok(known.0.clone())
    }

    fn open_again(&self) -> Result<BranchHead> {
        let last = self.head.current();
        last.0
            .at(last.0.wanted.clone(), &|_| None)
            .map(Arc::new)
            .map(BranchHead)
    }
}

/// The snapshots that were used last. The lock protects the map alone.
struct OpenSnapshots(Mutex<LruCache<ObjectId, Arc<IcechunkStore>>>);

impl Reclaim for OpenSnapshots {
    fn reclaim(&self) {
        if let Ok(mut snapshots) = self.0.try_lock() {
            snapshots.clear();
        }
    }
}

/// What a key names.
enum RepositoryKey {
    /// A prefix above the snapshots.
    Above,
    /// The document of such a prefix.
    Document,
    /// A key in a snapshot.
    Inside(Arc<IcechunkStore>, Key),
    Nothing,
}

/// The question for the latest snapshot of a branch.
type AskBranch = fn(&IceBranch) -> Result<Arc<IcechunkStore>>;

impl IceRepositoryStore {
    /// Returns the store of what is below `inside` in a snapshot.
    pub fn of_snapshot(snapshot: IcechunkStore, inside: Key) -> Self {
        Self::new(Arc::new(snapshot), |_| Shown::First(inside))
    }

    /// Returns the store of what is below `inside` in a branch, whose latest snapshot is open.
    pub fn of_branch(head: IcechunkStore, inside: Key) -> Self {
        Self::new(Arc::new(head), |head| {
            Shown::Branch(IceBranch::new(head), inside)
        })
    }

    /// Returns the store of all branches, tags and snapshots of a repository, one of whose
    /// snapshots is open.
    pub fn of_history(snapshot: IcechunkStore) -> Self {
        let branches = Arc::new(OpenBranches(Mutex::new(LruCache::new(MAX_OPEN))));
        memory::register(&branches);
        Self::new(Arc::new(snapshot), |_| Shown::All(branches))
    }

    fn new(first: Arc<IcechunkStore>, shown: impl FnOnce(Arc<IcechunkStore>) -> Shown) -> Self {
        let opened = Arc::new(OpenSnapshots(Mutex::new(LruCache::new(MAX_OPEN))));
        memory::register(&opened);
        IceRepositoryStore {
            shown: shown(first.clone()),
            first,
            opened,
            concurrency: OnceLock::new(),
        }
    }

    /// Returns a key without what names the snapshot of a branch: the same for all of them.
    pub fn lasting_key(key: &Key) -> Key {
        match split_settled(key.as_str()) {
            Some((branch, _, rest)) => {
                let branch = Key::root().join(branch);
                branch.join_key(&Key::root().join(rest))
            }
            None => key.clone(),
        }
    }

    fn find(&self, key: &Key, ask: AskBranch) -> Result<RepositoryKey> {
        let (branches, inside) = match &self.shown {
            Shown::First(inside) => {
                let key = inside.join_key(key);
                return Ok(RepositoryKey::Inside(self.first.clone(), key));
            }
            Shown::Branch(branch, inside) => (Some(branch), inside),
            Shown::All(_) => (None, &Key::root()),
        };
        if let Some((_, id, rest)) = split_settled(key.as_str()) {
            let store = self.snapshot(id)?.ok_or_else(|| gone(key))?;
            let rest = Key::root().join(rest);
            return Ok(RepositoryKey::Inside(store, inside.join_key(&rest)));
        }
        match branches {
            Some(branch) => Ok(RepositoryKey::Inside(ask(branch)?, inside.join_key(key))),
            None => self.find_in_all(key, ask),
        }
    }

    fn find_in_all(&self, key: &Key, ask: AskBranch) -> Result<RepositoryKey> {
        let mut names = key.as_str().splitn(3, '/');
        let kind = names.next().unwrap_or_default();
        if key.is_root() || KINDS.contains(&kind) && key.depth() == 1 {
            return Ok(RepositoryKey::Above);
        }
        let name = names.next().unwrap_or_default();
        if key.name() == "zarr.json"
            && (key.depth() == 1 || KINDS.contains(&kind) && key.depth() == 2)
        {
            return Ok(RepositoryKey::Document);
        }
        let store = match reference_of(kind, name) {
            None => None,
            Some(SnapshotRef::Branch(name)) => match self.branch(name)? {
                Some(branch) => Some(ask(&branch)?),
                None => None,
            },
            Some(SnapshotRef::Snapshot(id)) => self.snapshot(id)?,
            Some(wanted) => self.open(wanted)?,
        };
        match (store, names.next()) {
            (Some(store), rest) => {
                let inside = Key::root().join(rest.unwrap_or_default());
                Ok(RepositoryKey::Inside(store, inside))
            }
            (None, None) => Ok(RepositoryKey::Nothing),
            // a key that is only missing would have the fill value
            (None, Some(_)) => Err(gone(key)),
        }
    }

    /// Returns a branch; `None` if there is none of this name.
    fn branch(&self, name: String) -> Result<Option<Arc<IceBranch>>> {
        let Shown::All(branches) = &self.shown else {
            return Ok(None);
        };
        if let Some(branch) = lock(&branches.0).get(&name) {
            return Ok(Some(branch.clone()));
        }
        let head = self.open(SnapshotRef::Branch(name.clone()))?;
        Ok(head.map(|head| {
            let branch = IceBranch::new(head);
            lock(&branches.0).put(name, branch.clone());
            branch
        }))
    }

    /// Returns a snapshot; `None` if there is none.
    fn snapshot(&self, id: ObjectId) -> Result<Option<Arc<IcechunkStore>>> {
        if self.first.commit().id == id {
            return Ok(Some(self.first.clone()));
        }
        let known = lock(&self.opened.0).get(&id).cloned();
        match known {
            Some(known) => Ok(Some(known)),
            None => self.open(SnapshotRef::Snapshot(id)),
        }
    }

    fn open(&self, wanted: SnapshotRef) -> Result<Option<Arc<IcechunkStore>>> {
        let known = |id| {
            let opened = lock(&self.opened.0).get(&id).cloned();
            opened.map(|store| store.found.snapshot.clone())
        };
        match self.first.at(wanted, &known) {
            Ok(store) => Ok(Some(self.keep(Arc::new(store)))),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn keep(&self, store: Arc<IcechunkStore>) -> Arc<IcechunkStore> {
        lock(&self.opened.0).put(store.commit().id, store.clone());
        store
    }

    /// Returns the branch below whose name `key` is, and the snapshot that the name has.
    fn branch_of(&self, key: &Key) -> Result<Option<(Arc<IceBranch>, Option<ObjectId>)>> {
        let settled = split_settled(key.as_str());
        let id = settled.map(|(_, id, _)| id);
        match &self.shown {
            Shown::First(_) => Ok(None),
            Shown::Branch(branch, _) => Ok(Some((branch.clone(), id))),
            Shown::All(_) => {
                let branch = settled.map_or(key.as_str(), |(branch, ..)| branch);
                let mut names = branch.splitn(3, '/');
                let kind = names.next().unwrap_or_default();
                let Some(SnapshotRef::Branch(name)) =
                    reference_of(kind, names.next().unwrap_or_default())
                else {
                    return Ok(None);
                };
                Ok(self.branch(name)?.map(|branch| (branch, id)))
            }
        }
    }

    /// Returns the names below a prefix above the snapshots.
    fn names(&self, prefix: &Key) -> Result<Names> {
        let repository = &self.first.manifests.repository;
        let named = match prefix.as_str() {
            "" => return Ok(Box::new(KINDS.map(|kind| Ok(kind.to_string())).into_iter())),
            BRANCH => repository.names(ReferenceKind::Branch)?,
            "tag" => repository.names(ReferenceKind::Tag)?,
            _ => return repository.snapshots(),
        };
        Ok(Box::new(named.map(|name| Ok(escaped_name(&name?)))))
    }

    fn document(&self) -> Stat {
        let version = Version::Tag("history".to_string());
        let stat = Stat::value(DOCUMENT.len() as u64, self.first.commit().time, version);
        stat.restricted(self.granted_above())
    }

    /// Returns the permissions of the file that names the snapshots.
    fn granted_above(&self) -> Option<Permissions> {
        let repository = &self.first.manifests.repository;
        repository.granted([self.first.found.key.clone()])
    }
}

/// Splits a key below the other name of a branch into the prefix of the branch, the snapshot and
/// the rest.
fn split_settled(key: &str) -> Option<(&str, ObjectId, &str)> {
    let (above, settled) = match key.strip_prefix("branch/") {
        Some(below) => ("branch/".len(), below),
        None => (0, key),
    };
    let (settled, rest) = settled.split_once('/').unwrap_or((settled, ""));
    let (name, id) = settled.rsplit_once('@')?;
    if name.is_empty() != (above == 0) {
        return None;
    }
    let parsed = ObjectId::parse(id).filter(|parsed| parsed.to_string() == id)?;
    Some((&key[..above + name.len()], parsed, rest))
}

/// Returns the error of a key in a snapshot that the repository had when the key was found.
fn gone(key: &Key) -> Error {
    Error::io("the repository no longer has the snapshot").context(key)
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
fn reference_of(kind: &str, name: &str) -> Option<SnapshotRef> {
    let plain = percent_decode_str(name).decode_utf8().ok()?.into_owned();
    if kind != "snapshot" && escaped_name(&plain) != name {
        return None;
    }
    match kind {
        "branch" => Some(SnapshotRef::Branch(plain)),
        "tag" => Some(SnapshotRef::Tag(plain)),
        _ => ObjectId::parse(name)
            .filter(|id| id.to_string() == name)
            .map(SnapshotRef::Snapshot),
    }
}

impl Readable for IceRepositoryStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        match self.find(key, IceBranch::known)? {
            RepositoryKey::Inside(store, inside) => store.read(&inside, range, value),
            RepositoryKey::Document => {
                range.copy(DOCUMENT, value)?;
                Ok(Some(self.document()))
            }
            RepositoryKey::Above | RepositoryKey::Nothing => Ok(None),
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        match self.find(key, IceBranch::fresh)? {
            RepositoryKey::Inside(store, inside) => store.stat(&inside),
            RepositoryKey::Document => Ok(Some(self.document())),
            RepositoryKey::Above => {
                let granted = self.granted_above().map(Permissions::of_level);
                Ok(Some(Stat::prefix().restricted(granted)))
            }
            RepositoryKey::Nothing => Ok(None),
        }
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let mut known = KnownStats::default();
        for key in keys {
            let stat = match self.find(&key, IceBranch::fresh) {
                Ok(RepositoryKey::Inside(store, inside)) => store.stat_in(&inside, &mut known),
                Ok(_) => self.stat(&key),
                Err(e) => Err(e),
            };
            if !each(stat) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        match self.find(prefix, IceBranch::fresh)? {
            RepositoryKey::Inside(store, inside) => store.list(&inside),
            RepositoryKey::Above => {
                let names = self.names(prefix)?;
                let entries = names.map(|name| Ok(Entry::new(name?, EntryKind::Prefix)));
                let document = Entry::new("zarr.json", EntryKind::Value);
                Ok(Box::new(std::iter::once(Ok(document)).chain(entries)))
            }
            _ => Err(Error::not_found("no such prefix in the repository")),
        }
    }

    fn hint(&self, hint: Hint) {
        let (Hint::Forget(prefix) | Hint::ForgetDocuments(prefix)) = hint else {
            return;
        };
        self.first.hint(hint);
        // a branch that cannot be looked up reports that when it is used
        if let Ok(Some((branch, _))) = self.branch_of(prefix) {
            branch.head.forget();
        }
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            concurrency: *self.concurrency.get_or_init(|| self.first.concurrency()),
            snapshots: Some(self),
            ..Capabilities::default()
        }
    }

    fn location(&self) -> String {
        match &self.shown {
            Shown::First(inside) | Shown::Branch(_, inside) if !inside.is_root() => {
                let location = self.first.location();
                format!("{}{inside}", location.trim_end_matches('/'))
            }
            _ => self.first.location(),
        }
    }
}

impl Store for IceRepositoryStore {}

impl Snapshots for IceRepositoryStore {
    fn settled(&self, key: &Key) -> Result<Option<Key>> {
        let (prefix, inside) = match &self.shown {
            Shown::Branch(_, inside) if key.is_root() => (String::new(), inside.as_str()),
            Shown::All(_) if key.depth() == 2 => (key.as_str().to_string(), ""),
            _ => return Ok(None),
        };
        let Some((branch, None)) = self.branch_of(key)? else {
            return Ok(None);
        };
        let store = self.keep(branch.fresh()?);
        // the views of an array at the root have the name of the root
        if store.is_array(inside)? {
            return Ok(None);
        }
        Ok(Some(
            Key::root().join(&format!("{prefix}@{}", store.commit().id)),
        ))
    }

    fn is_left(&self, key: &Key) -> Result<bool> {
        let Some((branch, Some(id))) = self.branch_of(key)? else {
            return Ok(false);
        };
        Ok(branch.fresh()?.commit().id != id)
    }

    fn commit_at(&self, key: &Key) -> Result<Option<(SnapshotRef, SnapshotCommit)>> {
        let root = match &self.shown {
            Shown::First(inside) | Shown::Branch(_, inside) => inside,
            Shown::All(_) => &Key::root(),
        };
        Ok(match self.find(key, IceBranch::fresh)? {
            RepositoryKey::Inside(store, inside) if inside == *root => {
                Some((store.wanted.clone(), store.commit().clone()))
            }
            _ => None,
        })
    }

    fn history(&self, count: usize) -> Result<Option<SnapshotHistory>> {
        let store = match &self.shown {
            Shown::Branch(branch, _) => branch.fresh()?,
            _ => self.first.clone(),
        };
        let history = store.manifests.repository.history(store.commit().id, count);
        history.map(Some)
    }
}
