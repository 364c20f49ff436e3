//! Read-only stores of repositories of Icechunk. [`IcechunkStore`] is one snapshot: documents from
//! the snapshot, and chunks that lie in manifests, in files of the repository, or in targets, which
//! are read as those of references. It never changes, so that nothing is revalidated or read twice.
//! [`IceRepositoryStore`] is a repository, whose branches move from snapshot to snapshot.
//!
//! The files are hostile: each is checked when it is opened, and targets are read only below the
//! prefixes that the caller gives. The module follows the specifications 1, 2 and 2.1.

mod chunk_keys;
mod chunk_listing;
mod flat;
mod flex;
mod ice_file;
mod manifest;
mod manifest_tree;
mod manifests;
mod repository;
mod repository_store;
mod snapshot;

use chunk_keys::ChunkKey;
use chunk_listing::ChunkListing;
use ice_file::IceFileKind;
use manifest::{ChunkPlace, IceManifest, TargetCondition};
use manifests::{IceManifests, manifest_key};
use percent_encoding::percent_decode_str;
use repository::{FoundSnapshot, IceRepository, KnownSnapshots, RepositoryFile, snapshot_key};
pub use repository_store::IceRepositoryStore;
use snapshot::{IceArray, IceDocument, IceSnapshot};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory;
use zarrfs_base::spill_file::SpillSpace;
use zarrfs_base::stats::Stats;
use zarrfs_reference::TargetRoot;
use zarrfs_reference::{TargetRoots, check_end};
use zarrfs_store::target_error;
use zarrfs_store::{
    ByteRange, Capabilities, EntryKind, Hint, Key, Listing, ObjectId, Permissions, Readable,
    SnapshotCommit, SnapshotRef, SortedListing, Stat, Store, StoreExt, TargetPlace, Version, both,
};

/// A store in a snapshot of a repository.
pub struct IcechunkStore {
    /// What led to the snapshot.
    wanted: SnapshotRef,
    found: FoundSnapshot,
    manifests: Arc<IceManifests>,
    targets: Arc<TargetRoots>,
    /// The containers of virtual chunks, for a snapshot that was opened by its identifier.
    containers: OnceLock<Vec<(String, String)>>,
    stats: Arc<Stats>,
}

/// What a key names.
enum IceValue<'a> {
    Document(&'a IceDocument),
    Chunk(FoundChunk),
    Prefix,
    Nothing,
}

/// A chunk that has a reference.
struct FoundChunk {
    /// Identifier of the manifest.
    id: ObjectId,
    manifest: Arc<IceManifest>,
    place: ChunkPlace,
}

/// Metadata of files that earlier keys have needed. Chunks of one file are neighbors, so one
/// request serves all of them.
#[derive(Default)]
struct KnownStats {
    /// The latest target.
    target: Option<(String, Stat)>,
    /// The files that led to the latest value, and the permissions that they grant.
    granted: Option<([Option<Key>; 3], Option<Permissions>)>,
}

impl IcechunkStore {
    /// Opens the repository at the root of the store `below`, whose place is `folder`, in the
    /// snapshot that `wanted` leads to. Targets are read below `roots`. A manifest that exceeds
    /// memory is kept in a file in `spill`.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`](zarrfs_base::error::Kind::NotFound) if there is no such branch, tag or
    /// snapshot.
    pub fn open(
        below: Arc<dyn Store>,
        wanted: SnapshotRef,
        folder: TargetPlace,
        roots: Vec<TargetRoot>,
        spill: Option<Arc<SpillSpace>>,
    ) -> Result<Self> {
        let repository = IceRepository::new(below, spill);
        Ok(IcechunkStore {
            found: repository.find(&wanted, &|_| None)?,
            wanted,
            manifests: IceManifests::new(repository),
            targets: Arc::new(TargetRoots::new(folder, roots)),
            containers: OnceLock::new(),
            stats: Arc::default(),
        })
    }

    /// The prefixes of values that never change.
    pub const IMMUTABLE: [&'static str; 2] = ["snapshots", "manifests"];

    /// Returns whether a file begins as those of a repository do.
    pub fn begins_file(bytes: &[u8]) -> bool {
        bytes.starts_with(ice_file::MAGIC)
    }

    /// Returns whether a store holds a repository: the second version of the format has a file that
    /// tells it, the first version has branches. This function lists a store that can list, and
    /// asks any other for two names.
    pub fn is_in(store: &dyn Store) -> Result<bool> {
        let root = Key::root();
        if store.lists_all() {
            let mut names = store.list(&root)?.take(repository::MAX_LISTED);
            return Ok(names.any(|entry| {
                entry.is_ok_and(|entry| match &*entry.name {
                    repository::REPOSITORY => entry.kind == EntryKind::Value,
                    repository::REFERENCES => entry.is_prefix(),
                    _ => false,
                })
            }));
        }
        for key in [repository::REPOSITORY, "refs/branch.main/ref.json"] {
            if store.stat(&root.join(key))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks bytes as a file of a repository, without the files that it names, and returns the
    /// number of names or references in it.
    ///
    /// # Errors
    ///
    /// Those of a damaged file.
    pub fn check(file: &[u8]) -> Result<usize> {
        let kind = IceFileKind::of(file)?;
        let bytes = ice_file::decode(file, kind)?;
        match kind {
            IceFileKind::Snapshot => Ok(IceSnapshot::new(bytes, None)?.check()),
            IceFileKind::Manifest => Ok(IceManifest::new(bytes, None)?.check()),
            IceFileKind::Repository => RepositoryFile::new(bytes).check(),
        }
    }

    /// Records in `stats` that groups and arrays are left out.
    pub fn with_stats(self, stats: Arc<Stats>) -> Self {
        let store = IcechunkStore { stats, ..self };
        store.record_left_out();
        store
    }

    /// Returns a store of another snapshot of the same repository, which shares the manifests. A
    /// snapshot that `known` returns is not read again.
    ///
    /// # Errors
    ///
    /// The errors of [`IcechunkStore::open`].
    fn at(&self, wanted: SnapshotRef, known: KnownSnapshots) -> Result<Self> {
        let repository = &self.manifests.repository;
        let own = &self.found.snapshot;
        let known = |id| {
            if own.commit.id == id {
                Some(own.clone())
            } else {
                known(id)
            }
        };
        let store = IcechunkStore {
            found: repository.find(&wanted, &known)?,
            wanted,
            manifests: self.manifests.clone(),
            targets: self.targets.clone(),
            containers: OnceLock::new(),
            stats: self.stats.clone(),
        };
        store.record_left_out();
        Ok(store)
    }

    /// Returns the store with the files of the repository.
    fn files(&self) -> &Arc<dyn Store> {
        &self.manifests.repository.below
    }

    fn record_left_out(&self) {
        let why = "groups and arrays are left out, since their paths cannot be keys";
        let refused = self.found.snapshot.refused.as_deref();
        self.stats.names_left_out(&self.found.key, refused, why);
    }

    fn commit(&self) -> &SnapshotCommit {
        &self.found.snapshot.commit
    }

    /// Returns whether an array is at a key.
    fn is_array(&self, key: &str) -> Result<bool> {
        let array = self.found.snapshot.array_of(key)?;
        Ok(array.is_some_and(|(_, rest)| rest.is_empty()))
    }

    fn find(&self, key: &Key) -> Result<IceValue<'_>> {
        let snapshot = &self.found.snapshot;
        if let Some(document) = snapshot.document(key.as_str()) {
            return Ok(IceValue::Document(document));
        }
        if snapshot.is_prefix(key.as_str()) {
            return Ok(IceValue::Prefix);
        }
        let Some((array, rest)) = snapshot.array_of(key.as_str())? else {
            return Ok(IceValue::Nothing);
        };
        let found = match array.encoding.parse_key(rest, array.dimensions) {
            None => false,
            Some(ChunkKey::All) => !array.manifests.is_empty(),
            Some(ChunkKey::Begin(begin)) => self.has_any(&array, &begin)?,
            Some(ChunkKey::Chunk(place)) => {
                let chunk = self.chunk(&array, &place)?;
                return Ok(chunk.map_or(IceValue::Nothing, IceValue::Chunk));
            }
        };
        Ok(if found {
            IceValue::Prefix
        } else {
            IceValue::Nothing
        })
    }

    /// Returns the reference of a chunk; `None` if it has the fill value.
    fn chunk(&self, array: &IceArray, place: &[u32]) -> Result<Option<FoundChunk>> {
        // the extents of manifests do not overlap
        let Some(named) = array.manifests.matching(place).next() else {
            return Ok(None);
        };
        let id = named.id;
        let manifest = self.manifests.get(id)?;
        let found = manifest.find(&array.node, place);
        let found = found.map_err(|e| self.manifests.named(id, e))?;
        Ok(found.map(|place| FoundChunk {
            id,
            manifest,
            place,
        }))
    }

    /// Returns whether there are chunks whose places begin with `begin`.
    fn has_any(&self, array: &IceArray, begin: &[u32]) -> Result<bool> {
        for named in array.manifests.matching(begin) {
            let range = self.manifests.get(named.id)?.range(&array.node, begin);
            if !range
                .map_err(|e| self.manifests.named(named.id, e))?
                .is_empty()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the metadata of a chunk. A chunk in the repository needs no request for it, nor does
    /// a target whose reference tells whether the target is unchanged.
    fn stat_of_chunk(&self, chunk: &FoundChunk, known: &mut KnownStats) -> Result<Stat> {
        let snapshot = &self.found.snapshot;
        match &chunk.place {
            ChunkPlace::Inline(range) => {
                let _memory = memory::take(range.len())?;
                let mut bytes = Vec::new();
                chunk.manifest.bytes().read(range.clone(), &mut bytes)?;
                Ok(snapshot.stat_of_bytes(&bytes))
            }
            ChunkPlace::Native { id, offset, len } => {
                let stat = snapshot.stat_of_version(*len, version_of(id, *offset, *len));
                if !self.manifests.repository.is_local() {
                    return Ok(stat);
                }
                let key = chunk_key(*id);
                let file = self.files().stat(&key).map_err(|e| self.named(&key, e))?;
                if file.is_none() {
                    return Err(self.named(&key, Error::damaged("is missing")));
                }
                Ok(stat.restricted(self.manifests.repository.granted([key])))
            }
            ChunkPlace::Virtual {
                location,
                offset,
                len,
                unchanged,
            } => {
                let target = self.target(location)?;
                if *unchanged != TargetCondition::Unstated && !self.manifests.repository.is_local()
                {
                    self.targets.check(&target)?;
                    return Ok(of_target(
                        snapshot,
                        &target,
                        None,
                        (*offset, *len),
                        unchanged,
                    ));
                }
                let stat = match &known.target {
                    Some((known, stat)) if *known == target => stat.clone(),
                    _ => self.targets.stat(&target)?,
                };
                known.target = Some((target.clone(), stat.clone()));
                check_end(&stat, *offset, *len)
                    .and_then(|()| check_unchanged(&stat, unchanged))
                    .map_err(|e| target_error(&target, e))?;
                Ok(of_target(
                    snapshot,
                    &target,
                    Some(&stat),
                    (*offset, *len),
                    unchanged,
                ))
            }
        }
    }

    /// Reads a part of a chunk, and returns the metadata of all of it.
    fn read_chunk(
        &self,
        chunk: &FoundChunk,
        part: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<Stat> {
        let snapshot = &self.found.snapshot;
        match &chunk.place {
            ChunkPlace::Inline(range) => {
                chunk.manifest.bytes().read(range.clone(), value)?;
                let stat = snapshot.stat_of_bytes(value);
                let end = part.end.min(stat.size) as usize;
                value.truncate(end);
                value.drain(..(part.start as usize).min(end));
                Ok(stat)
            }
            ChunkPlace::Native { id, offset, len } => {
                let end = part.end.min(*len);
                let range = offset + part.start.min(end)..offset + end;
                let key = chunk_key(*id);
                let read = self.files().get_range(&key, range.clone(), value);
                let file = read
                    .and_then(|file| file.ok_or_else(|| Error::damaged("is missing")))
                    .and_then(|file| check_end(&file, *offset, *len).map(|()| file))
                    .map_err(|e| self.named(&key, e))?;
                if value.len() as u64 != range.end - range.start {
                    return Err(self.named(&key, Error::damaged("is cut short")));
                }
                let stat = snapshot.stat_of_version(*len, version_of(id, *offset, *len));
                Ok(stat.restricted(file.permissions))
            }
            ChunkPlace::Virtual {
                location,
                offset,
                len,
                unchanged,
            } => {
                let target = self.target(location)?;
                let stat = self
                    .targets
                    .read_part((&target, *offset, *len), part, value)?;
                if let Err(e) = check_unchanged(&stat, unchanged) {
                    value.clear();
                    return Err(target_error(&target, e));
                }
                Ok(of_target(
                    snapshot,
                    &target,
                    Some(&stat),
                    (*offset, *len),
                    unchanged,
                ))
            }
        }
    }

    /// Returns the target that a location names, relative to a container or as a URL, in the
    /// spelling of references.
    fn target(&self, location: &str) -> Result<String> {
        let Some((scheme, rest)) = location.split_once("://") else {
            return Err(Error::damaged(format!("the target {location}: not a URL")));
        };
        if scheme == "vcc" {
            let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
            let containers = match &*self.found.containers {
                [] => self.all_containers()?,
                containers => containers,
            };
            let container = containers.iter().find(|(known, _)| known == name);
            let (_, prefix) = container.ok_or_else(|| {
                Error::denied(format!(
                    "the target {location}: the repository names no such container"
                ))
            })?;
            return Ok(plain_target(&format!(
                "{}/{rest}",
                prefix.trim_end_matches('/')
            )));
        }
        Ok(plain_target(location))
    }

    /// Returns the containers of the repository, which is read for them once.
    fn all_containers(&self) -> Result<&[(String, String)]> {
        if let Some(containers) = self.containers.get() {
            return Ok(containers);
        }
        let containers = self.manifests.repository.containers()?;
        Ok(self.containers.get_or_init(|| containers))
    }

    /// Adds the name of a file of the repository to an error. A missing one must not look like a
    /// missing key.
    fn named(&self, key: &Key, e: Error) -> Error {
        self.manifests.named_key(key, e)
    }

    fn stat_in(&self, key: &Key, known: &mut KnownStats) -> Result<Option<Stat>> {
        let snapshot = &self.found.snapshot;
        let stat = match self.find(key)? {
            IceValue::Document(document) => {
                let stat = snapshot.stat(document)?;
                stat.restricted(self.granted(None, known))
            }
            IceValue::Chunk(chunk) => {
                let stat = self.stat_of_chunk(&chunk, known)?;
                stat.restricted(self.granted(Some(chunk.id), known))
            }
            IceValue::Prefix => {
                let granted = both(self.granted(None, known), self.granted_on_chunks(key));
                let stat = snapshot.stat_of_prefix();
                stat.restricted(granted.map(Permissions::of_level))
            }
            IceValue::Nothing => return Ok(None),
        };
        Ok(Some(stat))
    }

    /// Returns the permissions that the files of the repository which name and hold the snapshot
    /// grant, and the manifest of a chunk.
    fn granted(&self, manifest: Option<ObjectId>, known: &mut KnownStats) -> Option<Permissions> {
        let snapshot = snapshot_key(self.commit().id);
        let named_by = self.found.key.clone();
        let keys = [Some(named_by), Some(snapshot), manifest.map(manifest_key)];
        if let Some((latest, granted)) = &known.granted
            && *latest == keys
        {
            return *granted;
        }
        let repository = &self.manifests.repository;
        let granted = repository.granted(keys.iter().flatten().cloned());
        known.granted = Some((keys, granted));
        granted
    }

    /// Returns the permissions that stand for those of the chunks of an array, if `key` is at or
    /// below one: those of its manifests and of the directories of manifests and chunks. The
    /// manifests are looked at once, since there may be many.
    fn granted_on_chunks(&self, key: &Key) -> Option<Permissions> {
        // a damaged array has no chunks that can be read
        let (array, _) = self.found.snapshot.array_of(key.as_str()).ok()??;
        let repository = &self.manifests.repository;
        let by_manifests = array.granted.get_or_init(|| {
            let keys = array.manifests.iter().map(|named| manifest_key(named.id));
            repository.granted(keys)
        });
        both(*by_manifests, repository.granted_on_chunks())
    }
}

impl Readable for IcechunkStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let snapshot = &self.found.snapshot;
        match self.find(key)? {
            IceValue::Document(document) => {
                let part = range.within(snapshot.len(document)?)?;
                snapshot.read(document, part, value)?;
                snapshot.stat(document).map(Some)
            }
            IceValue::Chunk(chunk) => {
                let size = match &chunk.place {
                    ChunkPlace::Inline(range) => range.len() as u64,
                    ChunkPlace::Native { len, .. } | ChunkPlace::Virtual { len, .. } => *len,
                };
                self.read_chunk(&chunk, range.within(size)?, value)
                    .map(Some)
            }
            IceValue::Prefix | IceValue::Nothing => Ok(None),
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.stat_in(key, &mut KnownStats::default())
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let mut known = KnownStats::default();
        for key in keys {
            if !each(self.stat_in(&key, &mut known)) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let snapshot = &self.found.snapshot;
        let is_node = snapshot.is_prefix(prefix.as_str());
        let documents = is_node.then(|| SortedListing::new(snapshot.clone(), prefix).map(Ok));
        let chunks = match snapshot.array_of(prefix.as_str())? {
            None => None,
            Some((array, rest)) => {
                let begin = match array.encoding.parse_key(rest, array.dimensions) {
                    _ if rest.is_empty() => Some(None),
                    Some(ChunkKey::All) if !array.manifests.is_empty() => Some(Some(Vec::new())),
                    Some(ChunkKey::Begin(begin)) if self.has_any(&array, &begin)? => {
                        Some(Some(begin))
                    }
                    _ => None,
                };
                begin.map(|begin| ChunkListing::new(self.manifests.clone(), array, begin))
            }
        };
        if documents.is_none() && chunks.is_none() {
            return Err(Error::not_found("no such prefix in the snapshot"));
        }
        let chunks = chunks.into_iter().flatten();
        Ok(Box::new(documents.into_iter().flatten().chain(chunks)))
    }

    fn hint(&self, hint: Hint) {
        if let Hint::Forget(_) | Hint::ForgetDocuments(_) = hint {
            self.targets.forget();
        }
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let files = self.files().concurrency();
        Capabilities {
            concurrency: files.max(self.targets.max_concurrency()),
            ..Capabilities::default()
        }
    }

    fn location(&self) -> String {
        self.files().location()
    }
}

impl Store for IcechunkStore {}

fn chunk_key(id: ObjectId) -> Key {
    Key::root().join(&format!("chunks/{id}"))
}

/// Returns the version of a part of a file of the repository, which never changes.
fn version_of(id: &ObjectId, offset: u64, len: u64) -> String {
    format!("{id}/{offset:x}-{len:x}")
}

/// Returns the metadata of bytes of a target. Their version names the version of the target, or
/// the condition under which the reference takes the target for unchanged.
fn of_target(
    snapshot: &IceSnapshot,
    target: &str,
    stat: Option<&Stat>,
    (offset, len): (u64, u64),
    unchanged: &TargetCondition,
) -> Stat {
    let state = match (unchanged, stat) {
        (TargetCondition::EntityTag(tag), _) => format!("tag {tag}"),
        (TargetCondition::LastModified(seconds), _) => format!("until {seconds}"),
        (TargetCondition::Unstated, stat) => {
            stat.map_or(String::new(), |stat| stat.version.lasting())
        }
    };
    let version = snapshot
        .stat_of_bytes(format!("{target}\0{state}").as_bytes())
        .version;
    let mut of_target = snapshot.stat_of_version(len, format!("{version}/{offset:x}-{len:x}"));
    if let Some(stat) = stat {
        of_target.permissions = both(of_target.permissions, stat.permissions);
    }
    of_target
}

/// Checks that a target is the one whose chunks were found.
///
/// # Errors
///
/// EIO if it was replaced: neither its bytes nor the fill value are those of the chunk.
fn check_unchanged(target: &Stat, unchanged: &TargetCondition) -> Result<()> {
    let changed =
        |why: String| Error::damaged(format!("has changed since it was referenced: {why}"));
    match unchanged {
        TargetCondition::Unstated => Ok(()),
        TargetCondition::LastModified(seconds) => {
            let modified = target.modified.duration_since(SystemTime::UNIX_EPOCH);
            if modified.unwrap_or_default().as_secs() <= u64::from(*seconds) {
                return Ok(());
            }
            Err(changed(format!(
                "it was modified after second {seconds} of 1970"
            )))
        }
        TargetCondition::EntityTag(tag) => {
            let now = match &target.version {
                // as object_store makes the tags of local files
                Version::File {
                    inode,
                    modified,
                    size,
                    ..
                } => format!("{inode:x}-{:x}-{size:x}", modified / 1000),
                Version::Tag(tag) => tag.clone(),
                _ => String::new(),
            };
            if unquoted(&now) == unquoted(tag) {
                return Ok(());
            }
            Err(changed(format!("its entity tag is {now}, not {tag}")))
        }
    }
}

fn unquoted(tag: &str) -> &str {
    let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    inner.unwrap_or(tag)
}

/// Returns a URL as references spell it: without a query, and decoded unless it is that of a file
/// or a web server, whose escapes references decode.
fn plain_target(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) if !["file", "http", "https"].contains(&scheme) => {
            format!(
                "{scheme}://{}",
                percent_decode_str(rest).decode_utf8_lossy()
            )
        }
        _ => url.to_string(),
    }
}

#[cfg(test)]
mod tests;
