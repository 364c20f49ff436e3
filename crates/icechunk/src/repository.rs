//! The branches, tags and snapshots of a repository: in the file `repo` of the second version
//! (specification 2.1, section "Repo Info File", and `repo.fbs`), in a file for each of them below
//! `refs/` in the first (specification 1, section "Reference Files").

use super::flat::{FlatBytes, FlatTable, FlatVector, damaged};
use super::flex;
use super::ice_file::{self, IceFileKind};
use super::snapshot::{IceSnapshot, time_of};
use percent_encoding::{CONTROLS, percent_decode_str, utf8_percent_encode};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json;
use zarrfs_base::memory::lock;
use zarrfs_base::spill_file::SpillSpace;
use zarrfs_store::{
    EntryKind, Key, NameSpan, NamedEntry, ObjectId, Permissions, SnapshotCommit, SnapshotHistory,
    SnapshotRef, SortedEntries, Stat, Store, StoreExt, both, granted_between, granted_by, present,
};

/// The fields of the tables.
mod field {
    pub const TAGS: usize = 1;
    pub const BRANCHES: usize = 2;
    pub const SNAPSHOTS: usize = 4;
    pub const CONFIGURATION: usize = 9;
    pub const NAME: usize = 0;
    pub const SNAPSHOT: usize = 1;
    pub const ID: usize = 0;
    pub const PARENT: usize = 1;
    pub const FLUSHED_AT: usize = 2;
    pub const MESSAGE: usize = 3;
}

/// The key of the file of the second version.
pub(super) const REPOSITORY: &str = "repo";

/// The prefix of the branches and tags of the first version.
pub(super) const REFERENCES: &str = "refs";

/// The branch that each repository has.
const MAIN: &str = "main";

/// What names snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceKind {
    Branch,
    Tag,
}

impl ReferenceKind {
    fn name(self) -> &'static str {
        match self {
            ReferenceKind::Branch => "branch",
            ReferenceKind::Tag => "tag",
        }
    }
}

/// An iterator over names.
pub(super) type Names = Box<dyn Iterator<Item = Result<String>> + Send>;

/// Maximum number of names in which those of a repository are looked for.
pub(super) const MAX_LISTED: usize = 1000;

/// Maximum size in bytes of the file of a branch or tag of the first version.
const MAX_REFERENCE: u64 = 4 << 10;

/// Maximum size in bytes of the configuration.
const MAX_CONFIGURATION: usize = 1 << 20;

/// Maximum number of snapshots of the first version, each in a file, that are searched for a time.
const MAX_STEPS: usize = 10_000;

/// A snapshot that was found, and the file that names it.
pub(super) struct FoundSnapshot {
    pub key: Key,
    /// Metadata of the file.
    pub stat: Stat,
    pub snapshot: Arc<IceSnapshot>,
    /// The names and prefixes of the containers of virtual chunks.
    pub containers: Vec<(String, String)>,
}

/// Returns a snapshot that is open.
pub(super) type KnownSnapshots<'a> = &'a dyn Fn(ObjectId) -> Option<Arc<IceSnapshot>>;

/// The files of a repository.
pub(super) struct IceRepository {
    pub below: Arc<dyn Store>,
    /// The space for files that exceed memory.
    spill: Option<Arc<SpillSpace>>,
    /// Whether the repository is of the first version. It is not asked for the file of the second
    /// one again.
    is_first: AtomicBool,
    /// The file of the second version as it was read last. The lock is held while it is read, so
    /// that only one thread does so.
    latest: Mutex<Option<(Arc<RepositoryFile>, Stat)>>,
}

impl IceRepository {
    pub fn new(below: Arc<dyn Store>, spill: Option<Arc<SpillSpace>>) -> Self {
        IceRepository {
            is_first: AtomicBool::new(false),
            latest: Mutex::default(),
            below,
            spill,
        }
    }

    /// Returns the file of the second version, which is read again if it has changed; `None` if the
    /// repository is of the first one.
    fn file(&self) -> Result<Option<(Arc<RepositoryFile>, Stat)>> {
        if self.is_first.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let key = Key::root().join(REPOSITORY);
        let mut latest = lock(&self.latest);
        if let Some((_, read)) = &*latest {
            let now = self.below.stat(&key)?;
            if now.is_some_and(|now| now.version == read.version) {
                return Ok(latest.clone());
            }
        }
        // its memory is returned before the new one is read
        *latest = None;
        let file = self.read(&key, IceFileKind::Repository)?;
        *latest = file.map(|(file, stat)| (Arc::new(RepositoryFile::new(file)), stat));
        Ok(latest.clone())
    }

    /// Frees the file that was read last, unless it is in use.
    pub fn forget_file(&self) {
        if let Ok(mut latest) = self.latest.try_lock() {
            *latest = None;
        }
    }

    /// Returns the snapshot that `wanted` leads to. A snapshot that `known` returns is not read
    /// again.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`](zarrfs_base::error::Kind::NotFound) if there is no repository, or it has
    /// no such branch, tag or snapshot.
    pub fn find(&self, wanted: &SnapshotRef, known: KnownSnapshots) -> Result<FoundSnapshot> {
        if let SnapshotRef::Snapshot(id) = wanted {
            // the containers alone need the file of the repository
            let snapshot = self.snapshot(*id, None, known)?;
            return Ok(FoundSnapshot {
                key: snapshot_key(*id),
                stat: snapshot.stat_of_version(0, id.to_string()),
                snapshot,
                containers: Vec::new(),
            });
        }
        let key = Key::root().join(REPOSITORY);
        if let Some((repository, stat)) = self.file()? {
            let id = repository.find(wanted).context(&key)?;
            return Ok(FoundSnapshot {
                snapshot: self.snapshot(id, Some(&key), known)?,
                key,
                stat,
                containers: repository.containers(),
            });
        }
        let (key, stat, id) = self.find_v1(wanted)?;
        self.is_first.store(true, Ordering::Relaxed);
        Ok(FoundSnapshot {
            snapshot: self.snapshot(id, Some(&key), known)?,
            key,
            stat,
            containers: Vec::new(),
        })
    }

    /// Returns the containers of virtual chunks that the file of the repository names.
    pub fn containers(&self) -> Result<Vec<(String, String)>> {
        let file = self.file()?;
        Ok(file.map_or(Vec::new(), |(repository, _)| repository.containers()))
    }

    fn read(&self, key: &Key, kind: IceFileKind) -> Result<Option<(FlatBytes, Stat)>> {
        ice_file::read(&*self.below, key, kind, self.spill.as_ref()).context(key)
    }

    /// Reads a file that another one names.
    ///
    /// # Errors
    ///
    /// EIO if it is missing: it must not look like a key without a value.
    pub fn read_named(&self, key: &Key, kind: IceFileKind) -> Result<(FlatBytes, Stat)> {
        let found = self.read(key, kind).map_err(present)?;
        found.ok_or_else(|| Error::io("is missing").context(key))
    }

    /// Reads the snapshot `id`, which the file `named_by` names if one does.
    fn snapshot(
        &self,
        id: ObjectId,
        named_by: Option<&Key>,
        known: KnownSnapshots,
    ) -> Result<Arc<IceSnapshot>> {
        if let Some(known) = known(id) {
            return Ok(known);
        }
        let key = snapshot_key(id);
        let bytes = if named_by.is_some() {
            self.read_named(&key, IceFileKind::Snapshot)?.0
        } else {
            let read = self.read(&key, IceFileKind::Snapshot)?;
            read.ok_or_else(|| Error::not_found(format!("no snapshot {id}")))?
                .0
        };
        let snapshot = IceSnapshot::new(bytes, Some(id));
        snapshot.map(Arc::new).context(&key)
    }

    /// Returns the permissions that all of these files, and the directories that lead to them,
    /// grant now. A file that cannot be looked at grants nothing; a server is not asked.
    pub fn granted(&self, keys: impl IntoIterator<Item = Key>) -> Option<Permissions> {
        if !self.is_local() {
            return None;
        }
        let root = Key::root();
        // without modes, there is nothing to look at
        let mut granted = granted_by(&*self.below, &root)?;
        let mut last = root.clone();
        for key in keys {
            let of_file = match self.below.stat(&key) {
                Ok(Some(file)) => file.permissions,
                Ok(None) | Err(_) => Some(Permissions::OWNER_ONLY),
            };
            granted = of_file.map_or(granted, |more| granted.and(more));
            if key.parent() != last {
                let above = granted_between(&*self.below, &root, &key);
                granted = above.map_or(granted, |more| granted.and(more));
                last = key.parent();
            }
        }
        Some(granted)
    }

    /// Returns the permissions that the directories of manifests and chunks grant on the files in
    /// them.
    pub fn granted_on_chunks(&self) -> Option<Permissions> {
        if !self.is_local() {
            return None;
        }
        let directories = ["manifests", "chunks"].map(|name| Key::root().join(name));
        let granted = directories.map(|key| granted_by(&*self.below, &key));
        both(granted[0], granted[1])
    }

    /// Returns whether values are files of this machine, whose permissions count.
    pub fn is_local(&self) -> bool {
        self.below.concurrency() == 1
    }

    /// Returns the snapshot that a repository of the first version leads to, and the file that
    /// names it.
    fn find_v1(&self, wanted: &SnapshotRef) -> Result<(Key, Stat, ObjectId)> {
        let (kind, name) = match wanted {
            SnapshotRef::Tag(name) => (ReferenceKind::Tag, name.as_str()),
            SnapshotRef::Branch(name) => (ReferenceKind::Branch, name.as_str()),
            _ => (ReferenceKind::Branch, MAIN),
        };
        // icechunk spells names in other letters than ASCII so in directories
        let escaped = utf8_percent_encode(name, CONTROLS).to_string();
        let mut found = None;
        for spelled in [name, &escaped] {
            if found.is_none() && !name.contains(['/', '\0']) {
                found = self.reference(kind, spelled)?;
            }
        }
        let found = found.ok_or_else(|| Error::not_found(format!("no {} {name}", kind.name())));
        let (key, stat, mut id) = found?;
        if let SnapshotRef::AsOf(time) = wanted {
            let mut ancestors = self.ancestors_v1(id);
            let found = ancestors.find(|commit| {
                commit.as_ref().is_err() || commit.as_ref().is_ok_and(|c| c.time <= *time)
            });
            id = found
                .ok_or_else(|| Error::not_found("no snapshot is so old"))??
                .id;
        }
        Ok((key, stat, id))
    }

    /// Reads the file of a branch or tag of the first version, whose name is spelled as in its key.
    /// Returns its key, its metadata and its snapshot; `None` if it does not exist or was deleted.
    fn reference(&self, kind: ReferenceKind, name: &str) -> Result<Option<(Key, Stat, ObjectId)>> {
        let of_kind = kind.name();
        let key = Key::root().join(&format!("{REFERENCES}/{of_kind}.{name}/ref.json"));
        let mut text = Vec::new();
        let stat = self.below.get_range(&key, 0..MAX_REFERENCE, &mut text)?;
        let Some(stat) = stat.filter(|stat| stat.kind == EntryKind::Value) else {
            return Ok(None);
        };
        let deleted = key.parent().join("ref.json.deleted");
        if kind == ReferenceKind::Tag && self.below.stat(&deleted)?.is_some() {
            return Ok(None);
        }
        let parsed = json::parse(&text).ok();
        let id = parsed.and_then(|text| ObjectId::parse(text.get("snapshot")?.as_str()?));
        let id = id.ok_or_else(|| Error::damaged("damaged: names no snapshot").context(&key))?;
        Ok(Some((key, stat, id)))
    }

    /// Returns a snapshot of the first version and those before it.
    fn ancestors_v1(&self, id: ObjectId) -> impl Iterator<Item = Result<SnapshotCommit>> {
        let mut next = Some(id);
        let mut seen = HashSet::new();
        std::iter::from_fn(move || {
            let id = next.take()?;
            if !seen.insert(id) || seen.len() > MAX_STEPS {
                return Some(Err(Error::damaged(
                    "damaged: the snapshots before it form a cycle",
                )));
            }
            let read = self.read_named(&snapshot_key(id), IceFileKind::Snapshot);
            let snapshot = read.and_then(|(bytes, _)| IceSnapshot::new(bytes, Some(id)));
            Some(snapshot.map(|snapshot| {
                next = snapshot.parent;
                snapshot.commit
            }))
        })
    }

    /// Returns the identifiers of all snapshots.
    pub fn snapshots(&self) -> Result<Names> {
        if let Some((repository, _)) = self.file()? {
            let ids = (0..).map_while(move |number| repository.id_at(number).transpose());
            return Ok(Box::new(
                ids.map(|id| id.map(|id| id.to_string()).context(REPOSITORY)),
            ));
        }
        let names = self.below.list(&Key::root().join("snapshots"))?;
        Ok(Box::new(names.filter_map(|entry| {
            let id = entry.map(|entry| ObjectId::parse(&entry.name));
            id.map(|id| Some(id?.to_string())).transpose()
        })))
    }

    /// Returns the names of all branches, or of all tags.
    pub fn names(&self, kind: ReferenceKind) -> Result<Names> {
        if let Some((repository, _)) = self.file()? {
            repository.references(kind).context(REPOSITORY)?;
            let names = (0..).map_while(move |number| {
                let references = repository.references(kind).ok()?;
                references.name_at(number).map(str::to_string)
            });
            return Ok(Box::new(names.map(Ok)));
        }
        let found = self.references_v1(kind)?;
        let names: Vec<_> = found.map(|found| found.map(|(name, _)| name)).collect();
        Ok(Box::new(names.into_iter()))
    }

    /// Returns the branches and tags, and the latest `count` snapshots up to `id`.
    pub fn history(&self, id: ObjectId, count: usize) -> Result<SnapshotHistory> {
        if let Some((repository, _)) = self.file()? {
            let history = repository.history(id, count);
            return history.context(REPOSITORY);
        }
        let mut history = SnapshotHistory {
            log: self.ancestors_v1(id).take(count).collect::<Result<_>>()?,
            branches: self
                .references_v1(ReferenceKind::Branch)?
                .collect::<Result<_>>()?,
            tags: self
                .references_v1(ReferenceKind::Tag)?
                .collect::<Result<_>>()?,
        };
        history.branches.sort();
        history.tags.sort();
        Ok(history)
    }

    /// Returns the branches or the tags of a repository of the first version.
    fn references_v1(
        &self,
        kind: ReferenceKind,
    ) -> Result<impl Iterator<Item = Result<(String, ObjectId)>> + use<'_>> {
        let entries = self.below.list(&Key::root().join(REFERENCES))?;
        let prefix = format!("{}.", kind.name());
        Ok(entries.filter_map(move |entry| {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return Some(Err(e)),
            };
            let spelled = entry.name.strip_prefix(&prefix)?;
            let id = match self.reference(kind, spelled) {
                Ok(found) => found?.2,
                Err(e) => return Some(Err(e)),
            };
            let name = if self.is_local() {
                percent_decode_str(spelled).decode_utf8_lossy()
            } else {
                spelled.into()
            };
            Some(Ok((name.into_owned(), id)))
        }))
    }
}

pub(super) fn snapshot_key(id: ObjectId) -> Key {
    Key::root().join(&format!("snapshots/{id}"))
}

/// The file of a repository of the second version.
pub(super) struct RepositoryFile {
    bytes: FlatBytes,
    /// The branches, once they were asked for.
    branches: OnceLock<SortedEntries<NamedSnapshot>>,
    /// The tags, once they were asked for.
    tags: OnceLock<SortedEntries<NamedSnapshot>>,
}

/// A branch or tag.
struct NamedSnapshot {
    name: NameSpan,
    /// Number of its snapshot.
    snapshot: u32,
}

impl NamedEntry for NamedSnapshot {
    const TOGETHER: &'static str = "the branches and tags of a repository";

    fn name(&self) -> NameSpan {
        self.name
    }
}

impl RepositoryFile {
    pub fn new(bytes: FlatBytes) -> Self {
        RepositoryFile {
            bytes,
            branches: OnceLock::new(),
            tags: OnceLock::new(),
        }
    }

    /// Returns the branches or the tags, sorted by name.
    fn references(&self, kind: ReferenceKind) -> Result<&SortedEntries<NamedSnapshot>> {
        let (known, field) = match kind {
            ReferenceKind::Branch => (&self.branches, field::BRANCHES),
            ReferenceKind::Tag => (&self.tags, field::TAGS),
        };
        if let Some(references) = known.get() {
            return Ok(references);
        }
        let mut references = SortedEntries::default();
        for reference in self.bytes.root()?.required(field, 4)?.tables() {
            let reference = reference?;
            let name = reference.string(field::NAME)?.ok_or_else(damaged)?;
            // many references may share a long name
            references.count(size_of::<NamedSnapshot>() + name.len())?;
            let snapshot = reference.u32(field::SNAPSHOT)?;
            references.add(&name, |name| NamedSnapshot { name, snapshot })?;
        }
        references.finish()?;
        Ok(known.get_or_init(|| references))
    }

    /// Returns the names and snapshots of all branches or tags.
    fn all(&self, kind: ReferenceKind) -> Result<Vec<(String, ObjectId)>> {
        let references = self.references(kind)?;
        let all = (0..).map_while(|number| references.get(number));
        all.map(|reference| {
            let name = references.name_of(reference).to_string();
            Ok((name, self.id_of(reference)?))
        })
        .collect()
    }

    fn id_of(&self, reference: &NamedSnapshot) -> Result<ObjectId> {
        let id = self.id_at(reference.snapshot as usize)?;
        id.ok_or_else(damaged)
    }

    fn snapshots(&self) -> Result<FlatVector<'_>> {
        self.bytes.root()?.required(field::SNAPSHOTS, 4)
    }

    fn snapshot(&self, number: usize) -> Result<FlatTable<'_>> {
        self.snapshots()?.table(number)
    }

    /// Returns the identifier of a snapshot; `None` behind the last one.
    fn id_at(&self, number: usize) -> Result<Option<ObjectId>> {
        let snapshots = self.snapshots()?;
        if number >= snapshots.len() {
            return Ok(None);
        }
        let id = snapshots.table(number)?.inline(field::ID)?;
        id.map(|id| Some(ObjectId(id))).ok_or_else(damaged)
    }

    fn commit(&self, snapshot: FlatTable) -> Result<SnapshotCommit> {
        Ok(SnapshotCommit {
            id: ObjectId(snapshot.inline(field::ID)?.ok_or_else(damaged)?),
            time: time_of(snapshot.u64(field::FLUSHED_AT)?),
            message: snapshot.string(field::MESSAGE)?.unwrap_or_default(),
        })
    }

    /// Returns a snapshot and those before it.
    fn ancestors(&self, id: ObjectId) -> Result<impl Iterator<Item = Result<SnapshotCommit>>> {
        let snapshots = self.snapshots()?;
        let mut next = None;
        for (number, snapshot) in snapshots.tables().enumerate() {
            if snapshot?.inline(field::ID)? == Some(id.0) {
                next = Some(number);
                break;
            }
        }
        let mut steps = 0;
        Ok(std::iter::from_fn(move || {
            let snapshot = self.snapshot(next.take()?);
            steps += 1;
            if steps > snapshots.len() {
                return Some(Err(Error::damaged(
                    "damaged: the snapshots before it form a cycle",
                )));
            }
            Some(snapshot.and_then(|snapshot| {
                let parent = snapshot
                    .inline(field::PARENT)?
                    .map_or(0, i32::from_le_bytes);
                next = usize::try_from(parent).ok();
                self.commit(snapshot)
            }))
        }))
    }

    /// Returns the snapshot of a branch or tag.
    fn named(&self, kind: ReferenceKind, name: &str) -> Result<ObjectId> {
        match self.references(kind)?.find(name) {
            Some(found) => self.id_of(found),
            None => Err(Error::not_found(format!("no {} {name}", kind.name()))),
        }
    }

    /// Returns the snapshot that `wanted` leads to.
    fn find(&self, wanted: &SnapshotRef) -> Result<ObjectId> {
        match wanted {
            SnapshotRef::Branch(name) => self.named(ReferenceKind::Branch, name),
            SnapshotRef::Tag(name) => self.named(ReferenceKind::Tag, name),
            SnapshotRef::Snapshot(id) => Ok(*id),
            SnapshotRef::AsOf(time) => {
                let main = self.named(ReferenceKind::Branch, MAIN)?;
                for commit in self.ancestors(main)? {
                    let commit = commit?;
                    if commit.time <= *time {
                        return Ok(commit.id);
                    }
                }
                Err(Error::not_found("no snapshot is so old"))
            }
        }
    }

    /// Returns the containers of virtual chunks. A configuration that cannot be read names none.
    fn containers(&self) -> Vec<(String, String)> {
        let root = self.bytes.root();
        let configuration =
            root.and_then(|root| root.bytes(field::CONFIGURATION, MAX_CONFIGURATION));
        flex::containers(&configuration.ok().flatten().unwrap_or_default())
    }

    /// Looks for all that can be found, and returns the number of branches and tags.
    pub fn check(&self) -> Result<usize> {
        let names = self.containers().len();
        let main = self.find(&SnapshotRef::default())?;
        let _ = self.find(&SnapshotRef::AsOf(SystemTime::UNIX_EPOCH));
        let history = self.history(main, usize::MAX)?;
        Ok(names + history.branches.len() + history.tags.len())
    }

    /// Returns the branches and tags, and the latest `count` snapshots up to `id`.
    pub fn history(&self, id: ObjectId, count: usize) -> Result<SnapshotHistory> {
        Ok(SnapshotHistory {
            branches: self.all(ReferenceKind::Branch)?,
            tags: self.all(ReferenceKind::Tag)?,
            log: self.ancestors(id)?.take(count).collect::<Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::tests::FlatField::*;
    use crate::flat::tests::{FlatBuilder, flat};
    use std::time::Duration;

    fn name(name: &str, snapshot: u32) -> Vec<crate::flat::tests::FlatField> {
        vec![Bytes(name.as_bytes().to_vec()), U32(snapshot)]
    }

    /// Returns a repository whose snapshots have these parents and are a second apart.
    fn repository(parents: &[i32], main: u32) -> RepositoryFile {
        let snapshots = parents.iter().enumerate().map(|(n, parent)| {
            let message = Bytes(format!("message {n}").into_bytes());
            vec![
                Struct(vec![n as u8; 12]),
                U32(*parent as u32),
                U64((n as u64 + 1) * 1_000_000),
                message,
            ]
        });
        let tags = vec![name("v1", 0)];
        let branches = vec![name("main", main), name("other", 1)];
        RepositoryFile::new(flat(FlatBuilder::build(vec![
            U8(2),
            Tables(tags),
            Tables(branches),
            Absent,
            Tables(snapshots.collect()),
        ])))
    }

    #[test]
    fn branches_tags_and_times_lead_to_snapshots() {
        let repository = repository(&[-1, 0, 0, 2], 3);
        let find = |text: &str| {
            let found = repository.find(&SnapshotRef::parse(text).unwrap());
            found.map(|id| id.0[0]).map_err(|e| e.message().to_string())
        };
        assert_eq!(find("branch:main"), Ok(3));
        assert_eq!(find("branch:other"), Ok(1));
        assert_eq!(find("tag:v1"), Ok(0));
        assert_eq!(find("tag:main"), Err("no tag main".into()));
        assert_eq!(find("asof:1970-01-01T00:00:03Z"), Ok(2));
        assert_eq!(find("asof:1970-01-01T00:00:02Z"), Ok(0));
        assert_eq!(find("asof:2026-01-31"), Ok(3));
        assert_eq!(
            find("asof:1970-01-01T00:00Z"),
            Err("no snapshot is so old".into())
        );
        let history = repository.history(ObjectId([3; 12]), 2).unwrap();
        let messages: Vec<&str> = history.log.iter().map(|commit| &*commit.message).collect();
        assert_eq!(messages, ["message 3", "message 2"]);
        assert_eq!((history.branches.len(), history.tags.len()), (2, 1));
    }

    #[test]
    fn cycles_and_missing_snapshots_are_damage() {
        for (parents, main) in [
            (&[1, 0][..], 0),
            (&[0][..], 0),
            (&[7][..], 0),
            (&[-1][..], 9),
        ] {
            let repository = repository(parents, main);
            let wanted = SnapshotRef::AsOf(SystemTime::UNIX_EPOCH);
            let e = repository.find(&wanted).unwrap_err();
            assert!(e.message().contains("damaged"), "{e}");
        }
    }

    #[test]
    fn references_are_parsed() {
        for text in [
            "main",
            "branch:",
            "tag:",
            "snapshot:1",
            "snapshot:../../../../../../..",
            "asof:yesterday",
            "commit:x",
        ] {
            assert!(SnapshotRef::parse(text).is_err(), "{text}");
        }
        let time =
            |seconds| SnapshotRef::AsOf(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        for (text, seconds) in [
            ("asof:1970-01-02", 86_400),
            ("asof:1970-01-01T00:01Z", 60),
            ("asof:1970-01-01T01:00:01+01:00", 1),
        ] {
            assert_eq!(SnapshotRef::parse(text).unwrap(), time(seconds), "{text}");
        }
        for text in [
            "branch:x",
            "tag:v1.0",
            "snapshot:1CECHNKREP0F1RSTCMT0",
            "asof:2026-01-31T00:00:00Z",
        ] {
            assert_eq!(SnapshotRef::parse(text).unwrap().to_string(), text);
        }
    }
}
