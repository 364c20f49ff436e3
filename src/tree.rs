//! The mounted tree: which names stand in which directory, what each name is, its inode number, size and times, its
//! extended attributes. It never reads chunks, but for the size of one whose items are objects; it knows nothing of open
//! files.

use crate::array::{Array, ArrayEntry, is_chunk_like};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::grid::ChunkId;
use crate::hierarchy::{Document, Hierarchy, Place};
use crate::json::Value;
use crate::metadata::{Separator, V1_ATTRS, V1_META, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::stats::Stats;
use crate::store::{EntryKind, Key, Stat};
use lru::LruCache;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

mod xattr;

/// The flat bytes of an array.
pub const FLAT: &str = "data.raw";
/// The directory of control files, at the root of the mount: there by name, never listed.
pub const CONTROL: &str = ".zarrfs";
/// The root's inode number, fixed by FUSE.
pub const ROOT_INODE: u64 = 1;

/// What `read` is best asked for: large enough that a request's cost doesn't matter.
const BLOCK_SIZE: u32 = 1 << 20;

/// Chunks looked at to tell how much an array stores. Beyond that the sum is an estimate: stat must not take longer for
/// a larger array.
const SIZE_SAMPLE: usize = 1024;

/// How long the stored size of an array, and a synthesised `.zmetadata`, are taken as they were.
const SHORT: Duration = Duration::from_secs(1);

/// A file or directory of the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Group(Key),
    /// An array's directory, also a damaged one's.
    Array(Key),
    /// `data.raw` of the array at this key.
    Flat(Key),
    /// A stored chunk of the array at this key.
    Chunk(Key, ChunkId, String),
    /// A metadata document of the group or array at this key.
    Metadata(Key, MetadataFile),
    /// Any other key.
    Value(Key),
    /// Listed, but never readable: a FIFO, a chunk of a damaged array.
    Unreadable(Key),
    ControlDirectory,
    Control(ControlFile),
}

/// The metadata documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataFile {
    Array,
    Group,
    Attributes,
    Consolidated,
}

/// The control files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFile {
    Stats,
    StatsJson,
}

impl MetadataFile {
    fn name(self) -> &'static str {
        match self {
            MetadataFile::Array => ZARRAY,
            MetadataFile::Group => ZGROUP,
            MetadataFile::Attributes => ZATTRS,
            MetadataFile::Consolidated => ZMETADATA,
        }
    }
}

impl ControlFile {
    const ALL: [ControlFile; 2] = [ControlFile::Stats, ControlFile::StatsJson];

    fn name(self) -> &'static str {
        match self {
            ControlFile::Stats => "stats",
            ControlFile::StatsJson => "stats.json",
        }
    }
}

impl Node {
    /// True for directories.
    pub fn is_directory(&self) -> bool {
        matches!(self, Node::Group(_) | Node::Array(_) | Node::ControlDirectory)
    }

    /// The path in the mount, without a leading slash.
    fn path(&self) -> Key {
        match self {
            Node::Group(key) | Node::Array(key) | Node::Value(key) | Node::Unreadable(key) => key.clone(),
            Node::Flat(key) => key.join(FLAT),
            Node::Chunk(key, _, name) => key.join(name),
            Node::Metadata(key, file) => key.join(file.name()),
            Node::ControlDirectory => Key::root().join(CONTROL),
            Node::Control(file) => Key::root().join(CONTROL).join(file.name()),
        }
    }

    /// The inode number: a function of the path, so that it is the same in every listing and every mount.
    pub fn inode(&self) -> u64 {
        inode(self.is_directory(), self.path().as_str())
    }

    /// The inode number of the directory above.
    pub fn parent_inode(&self) -> u64 {
        let path = self.path();
        inode(true, path.as_str().rsplit_once('/').map_or("", |(parent, _)| parent))
    }
}

fn inode(directory: bool, path: &str) -> u64 {
    if path.is_empty() {
        return ROOT_INODE;
    }
    let mut hasher = DefaultHasher::new();
    (directory, path).hash(&mut hasher);
    // 0 means "none" to FUSE, 1 is the root
    hasher.finish().max(ROOT_INODE + 1)
}

/// What `stat` tells of a node.
#[derive(Clone, Debug)]
pub struct Attributes {
    pub inode: u64,
    pub is_directory: bool,
    /// Bytes a reader gets.
    pub size: u64,
    /// Units of 512 bytes stored.
    pub blocks: u64,
    pub modified: SystemTime,
    pub block_size: u32,
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub name: String,
    pub inode: u64,
    pub is_directory: bool,
}

/// The names of a directory, streamed.
pub type Names = Box<dyn Iterator<Item = Result<Name>> + Send>;

/// The tree of one mount.
pub struct Tree {
    hierarchy: Hierarchy,
    cache: Arc<Cache>,
    stats: Arc<Stats>,
    started: SystemTime,
    /// Nodes the kernel knows, each with its lookup count. Protects the map alone.
    live: Mutex<HashMap<u64, (Arc<Node>, u64)>>,
    /// Stored bytes of arrays, by array id. Protects the map alone.
    stored_sizes: Mutex<LruCache<u64, (Instant, u64)>>,
    /// `.zmetadata` documents made a moment ago. Protects the map alone.
    consolidated: Mutex<LruCache<Key, (Instant, Arc<Document>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tree {
    /// The tree of a hierarchy.
    pub fn new(hierarchy: Hierarchy, cache: Arc<Cache>, stats: Arc<Stats>) -> Self {
        const KEPT: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
        const FEW: NonZeroUsize = NonZeroUsize::new(4).unwrap();
        Tree {
            hierarchy,
            cache,
            stats,
            started: SystemTime::now(),
            live: Mutex::default(),
            stored_sizes: Mutex::new(LruCache::new(KEPT)),
            consolidated: Mutex::new(LruCache::new(FEW)),
        }
    }

    /// The hierarchy shown.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// The node of an inode number that the kernel knows.
    pub fn node(&self, inode: u64) -> Result<Arc<Node>> {
        if let Some((node, _)) = lock(&self.live).get(&inode) {
            return Ok(node.clone());
        }
        match inode {
            ROOT_INODE => self.directory(Key::root()).map(Arc::new),
            _ => Err(Error::system(libc::ESTALE)),
        }
    }

    /// Counts a lookup of `node`: the kernel will send its inode number from now on.
    pub fn remember(&self, node: Node) -> u64 {
        let inode = node.inode();
        let mut live = lock(&self.live);
        let entry = live.entry(inode).or_insert_with(|| (Arc::new(node.clone()), 0));
        if *entry.0 != node {
            entry.0 = Arc::new(node);
        }
        entry.1 += 1;
        inode
    }

    /// Takes back `count` lookups.
    pub fn forget(&self, inode: u64, count: u64) {
        let mut live = lock(&self.live);
        if let Some(entry) = live.get_mut(&inode) {
            entry.1 = entry.1.saturating_sub(count);
            if entry.1 == 0 {
                live.remove(&inode);
            }
        }
    }

    /// Nodes the kernel knows.
    pub fn live_nodes(&self) -> usize {
        lock(&self.live).len()
    }

    fn directory(&self, key: Key) -> Result<Node> {
        match self.hierarchy.find(&key)? {
            Some(Place::Array(_) | Place::Damaged(_)) => Ok(Node::Array(key)),
            Some(Place::Group) => Ok(Node::Group(key)),
            _ => Err(Error::not_found("no such directory")),
        }
    }

    /// The sound array at `key`; the reason if it is damaged.
    pub fn array(&self, key: &Key) -> Result<Arc<Array>> {
        match self.hierarchy.find(key)? {
            Some(Place::Array(array)) => Ok(array),
            Some(Place::Damaged(e)) => Err(e),
            _ => Err(Error::not_found(format!("{key}: no such array"))),
        }
    }

    /// What `name` is in the directory `parent`; None if there is no such name.
    pub fn lookup(&self, parent: &Node, name: &str) -> Result<Option<Node>> {
        match parent {
            Node::Group(key) => self.lookup_in_group(key, name),
            Node::Array(key) => self.lookup_in_array(key, name),
            Node::ControlDirectory => Ok(ControlFile::ALL.into_iter().find(|f| f.name() == name).map(Node::Control)),
            _ => Err(Error::system(libc::ENOTDIR)),
        }
    }

    fn lookup_in_group(&self, key: &Key, name: &str) -> Result<Option<Node>> {
        let metadata = |file| Ok(self.document(key, file)?.map(|_| Node::Metadata(key.clone(), file)));
        match name {
            ZGROUP => return metadata(MetadataFile::Group),
            ZATTRS => return metadata(MetadataFile::Attributes),
            ZMETADATA => return metadata(MetadataFile::Consolidated),
            CONTROL if key.is_root() => return Ok(Some(Node::ControlDirectory)),
            _ => {}
        }
        let below = key.child(name)?;
        Ok(match self.hierarchy.find(&below)? {
            None => None,
            Some(Place::Array(_) | Place::Damaged(_)) => Some(Node::Array(below)),
            Some(Place::Group) => Some(Node::Group(below)),
            Some(Place::Value(_)) => Some(Node::Value(below)),
            Some(Place::Other) => Some(Node::Unreadable(below)),
        })
    }

    fn lookup_in_array(&self, key: &Key, name: &str) -> Result<Option<Node>> {
        let array = match self.hierarchy.find(key)? {
            Some(Place::Array(array)) => Some(array),
            Some(Place::Damaged(_)) => None,
            _ => return Err(Error::system(libc::ESTALE)),
        };
        match name {
            ZARRAY => return Ok(Some(Node::Metadata(key.clone(), MetadataFile::Array))),
            ZATTRS => {
                let found = self.document(key, MetadataFile::Attributes)?;
                return Ok(found.map(|_| Node::Metadata(key.clone(), MetadataFile::Attributes)));
            }
            CONTROL if key.is_root() => return Ok(Some(Node::ControlDirectory)),
            _ if is_hidden(array.as_deref(), name) => return Ok(None),
            FLAT if array.as_deref().is_some_and(has_flat) => return Ok(Some(Node::Flat(key.clone()))),
            _ => {}
        }
        if let Some(array) = &array
            && is_chunk_like(name)
        {
            let chunk = array.grid().parse_chunk_key(name, Separator::Dot);
            let stored = chunk.filter(|&c| array.stat_chunk(c).ok() != Some(None));
            return Ok(stored.map(|c| Node::Chunk(key.clone(), c, name.to_string())));
        }
        let below = key.child(name)?;
        let stat = self.hierarchy.store().stat(&below).map_err(|e| e.context(&below))?;
        Ok(match stat.map(|s| s.kind) {
            None | Some(EntryKind::Prefix) => None,
            Some(EntryKind::Value) if !is_chunk_like(name) => Some(Node::Value(below)),
            Some(_) => Some(Node::Unreadable(below)),
        })
    }

    /// A metadata document as the mount shows it; None if there is none.
    pub fn document(&self, key: &Key, file: MetadataFile) -> Result<Option<Arc<Document>>> {
        let document = match file {
            MetadataFile::Array => self.hierarchy.array_view(key),
            MetadataFile::Group => self.hierarchy.group_view(key),
            MetadataFile::Attributes => self.hierarchy.attributes_view(key),
            MetadataFile::Consolidated => return self.consolidated(key, SHORT),
        };
        Ok(document?.map(Arc::new))
    }

    /// The `.zmetadata` of the decoded view, not older than `age`: it takes a walk over the hierarchy.
    pub fn consolidated(&self, key: &Key, age: Duration) -> Result<Option<Arc<Document>>> {
        if let Some((made, document)) = lock(&self.consolidated).get(key)
            && made.elapsed() < age
        {
            return Ok(Some(document.clone()));
        }
        let document = self.hierarchy.consolidated_view(key)?.map(Arc::new);
        if let Some(document) = &document {
            lock(&self.consolidated).put(key.clone(), (Instant::now(), document.clone()));
        }
        Ok(document)
    }

    /// What `stat` tells.
    pub fn attributes(&self, node: &Node) -> Result<Attributes> {
        let gone = || Error::system(libc::ENOENT);
        let store_stat = |key: &Key| self.hierarchy.store().stat(key).map_err(|e| e.context(key))?.ok_or_else(gone);
        match node {
            Node::Group(key) | Node::Array(key) => {
                let stat = store_stat(key)?;
                Ok(self.plain(node, 0, 0, stat.modified))
            }
            Node::Flat(key) => {
                let array = self.array(key)?;
                let (document, directory) = (store_stat(&key.join(array.metadata_name()))?, store_stat(key)?);
                // chunks that come or are replaced by a rename show in the directory's time
                let modified = document.modified.max(directory.modified);
                let blocks = self.stored_size(&array)?.div_ceil(512);
                Ok(self.plain(node, array.size(), blocks, modified))
            }
            Node::Chunk(key, chunk, _) => {
                let array = self.array(key)?;
                let stat = array.stat_chunk(*chunk)?.ok_or_else(gone)?;
                let size = self.chunk_size(&array, *chunk)?;
                Ok(self.plain(node, size, stat.size.div_ceil(512), stat.modified))
            }
            Node::Metadata(key, file) => {
                let document = self.document(key, *file)?.ok_or_else(gone)?;
                let size = document.text.len() as u64;
                Ok(self.plain(node, size, size.div_ceil(512), document.stat.modified))
            }
            Node::Value(key) => {
                let Stat { size, modified, .. } = store_stat(key)?;
                Ok(self.plain(node, size, size.div_ceil(512), modified))
            }
            Node::Unreadable(key) => Ok(self.plain(node, 0, 0, store_stat(key)?.modified)),
            Node::ControlDirectory | Node::Control(_) => Ok(self.plain(node, 0, 0, self.started)),
        }
    }

    fn plain(&self, node: &Node, size: u64, blocks: u64, modified: SystemTime) -> Attributes {
        let is_directory = node.is_directory();
        Attributes { inode: node.inode(), is_directory, size, blocks, modified, block_size: BLOCK_SIZE }
    }

    /// Bytes of a decoded chunk. For objects it takes decoding it; a chunk that can't be decoded shows as empty.
    fn chunk_size(&self, array: &Array, chunk: ChunkId) -> Result<u64> {
        if !array.metadata().is_object() || array.readable().is_err() {
            return Ok(if array.metadata().is_object() { 0 } else { array.grid().chunk_size() as u64 });
        }
        Ok(self.cache.get(array, chunk).ok().flatten().map_or(0, |c| c.len() as u64))
    }

    /// Bytes the store holds for an array's chunks: exact up to [`SIZE_SAMPLE`] chunks, beyond that as many times their
    /// mean as the grid has chunks. Never 0 where a reader would get other bytes than zeros: to `tar` and `cp` a file
    /// without blocks is all hole.
    fn stored_size(&self, array: &Arc<Array>) -> Result<u64> {
        if let Some((at, size)) = lock(&self.stored_sizes).get(&array.id())
            && at.elapsed() < SHORT
        {
            return Ok(*size);
        }
        let (mut chunks, mut sum) = (0u64, 0u64);
        for entry in array.entries()? {
            if let ArrayEntry::Chunk(chunk) = entry? {
                // one that can't be looked at is told when it is read
                sum += array.stat_chunk(chunk).ok().flatten().map_or(0, |s| s.size);
                chunks += 1;
            }
            if chunks as usize > SIZE_SAMPLE {
                let mean = sum as f64 / chunks as f64;
                sum = (mean * array.grid().chunk_count() as f64) as u64;
                break;
            }
        }
        if sum == 0 && array.size() > 0 && !array.fill_is_zero() {
            sum = 1;
        }
        lock(&self.stored_sizes).put(array.id(), (Instant::now(), sum));
        Ok(sum)
    }

    /// The names in a directory: the fixed ones first, then what the store lists, streamed.
    pub fn names(&self, node: &Node) -> Result<Names> {
        match node {
            Node::Group(key) => {
                let files = [MetadataFile::Group, MetadataFile::Attributes, MetadataFile::Consolidated];
                let key = key.clone();
                let fixed = self.metadata_names(&key, &files)?;
                let names = self.hierarchy.list(&key)?.filter_map(move |entry| match entry {
                    Err(e) => Some(Err(e)),
                    Ok(e) if key.is_root() && e.name == CONTROL => None,
                    Ok(e) => Some(Ok(name_at(&key, e.name, e.kind == EntryKind::Prefix))),
                });
                Ok(Box::new(fixed.into_iter().map(Ok).chain(names)))
            }
            Node::Array(key) => {
                let mut fixed = self.metadata_names(key, &[MetadataFile::Array, MetadataFile::Attributes])?;
                match self.hierarchy.find(key)? {
                    Some(Place::Array(array)) => {
                        if has_flat(&array) {
                            fixed.insert(0, name_at(key, FLAT.to_string(), false));
                        }
                        Ok(Box::new(fixed.into_iter().map(Ok).chain(array_names(key.clone(), &array)?)))
                    }
                    Some(Place::Damaged(_)) => {
                        let key = key.clone();
                        let names = self.hierarchy.list(&key)?.filter_map(move |entry| match entry {
                            Err(e) => Some(Err(e)),
                            Ok(e) if e.kind == EntryKind::Prefix || is_hidden(None, &e.name) => None,
                            Ok(e) => Some(Ok(name_at(&key, e.name, false))),
                        });
                        Ok(Box::new(fixed.into_iter().map(Ok).chain(names)))
                    }
                    _ => Err(Error::system(libc::ESTALE)),
                }
            }
            Node::ControlDirectory => {
                let names = ControlFile::ALL.map(|f| Node::Control(f).path());
                let name =
                    |k: Key| name_at(&Key::root().join(CONTROL), k.as_str()[CONTROL.len() + 1..].to_string(), false);
                Ok(Box::new(names.into_iter().map(move |k| Ok(name(k)))))
            }
            _ => Err(Error::system(libc::ENOTDIR)),
        }
    }

    fn metadata_names(&self, key: &Key, files: &[MetadataFile]) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        for &file in files {
            let there = match file {
                // listing must not take a walk over the hierarchy
                MetadataFile::Consolidated => self.hierarchy.store().stat(&key.join(ZMETADATA))?.is_some(),
                _ => self.document(key, file).is_ok_and(|d| d.is_some()),
            };
            if there {
                names.push(name_at(key, file.name().to_string(), false));
            }
        }
        Ok(names)
    }

    /// Why a node that is listed can't be read.
    pub fn unreadable(&self, key: &Key) -> Error {
        let parent = Key::normalize(key.as_str().rsplit_once('/').map_or("", |(parent, _)| parent)).unwrap_or_default();
        match self.hierarchy.find(&parent) {
            Ok(Some(Place::Damaged(e))) => e,
            _ => Error::damaged("is not a regular file").context(key),
        }
    }

    /// The extended attributes of a node, each with its value.
    pub fn xattrs(&self, node: &Node) -> Result<Vec<(String, Vec<u8>)>> {
        xattr::of(self, node)
    }

    /// Counters and problems, for the control files.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Sizes and state beside the counters, for the control files.
    pub fn state(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("store", self.hierarchy.store().location().into()),
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("pid", std::process::id().into()),
            ("cache_bytes", self.cache.used().into()),
            ("cache_bound", self.cache.bound().into()),
            ("live_nodes", self.live_nodes().into()),
        ]
    }
}

/// True if the array's flat bytes can be shown.
fn has_flat(array: &Array) -> bool {
    !array.metadata().is_object() && array.readable().is_ok()
}

/// Names below an array that the mount never shows: metadata it shows by other means, and unfinished writes.
fn is_hidden(array: Option<&Array>, name: &str) -> bool {
    let v1 = array.is_none_or(|a| a.metadata().zarr_format == 1);
    [ZARRAY, ZATTRS, ZGROUP, ZMETADATA].contains(&name)
        || v1 && array.is_some() && [V1_META, V1_ATTRS].contains(&name)
        || name.starts_with(".zarrfs-")
}

fn name_at(key: &Key, name: String, is_directory: bool) -> Name {
    Name { inode: inode(is_directory, key.join(&name).as_str()), name, is_directory }
}

/// The chunks and other values of an array, named as in the mount.
fn array_names(key: Key, array: &Arc<Array>) -> Result<impl Iterator<Item = Result<Name>> + Send + use<>> {
    let array = array.clone();
    let flat = has_flat(&array);
    Ok(array.entries()?.filter_map(move |entry| match entry {
        Err(e) => Some(Err(e)),
        Ok(ArrayEntry::Chunk(chunk)) => Some(Ok(name_at(&key, array.grid().chunk_key(chunk, Separator::Dot), false))),
        Ok(ArrayEntry::Unlisted) => None,
        Ok(ArrayEntry::Value(name)) if is_hidden(Some(&array), &name) || flat && name == FLAT => None,
        Ok(ArrayEntry::Value(name)) => Some(Ok(name_at(&key, name, false))),
    }))
}
