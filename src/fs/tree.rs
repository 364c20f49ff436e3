//! The mounted tree: which names stand in which directory, what each name is, its inode number, size and times, its
//! extended attributes. It never reads chunks, but for the size of one whose items are objects and for the coordinates
//! that headers tell; it knows nothing of open files.

use crate::array::Array;
use crate::array::hierarchy::{Hierarchy, MetadataDocument, MetadataFile, StoredNode};
use crate::cache::{Cache, ChunkPart};
use crate::error::{Error, Result};
use crate::export::{DATASET, Format};
use crate::stats::Counter;
use crate::store::{Key, Permissions, Stat};
use crate::util::json::Value;
use crate::util::memory::{self, Reclaim, lock};
use crate::zarr::grid::ChunkId;
use crate::zarr::metadata::{Separator, V1_ATTRS, V1_META, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use lru::LruCache;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

mod access;
mod headers;
mod levels;
mod live;
mod lookup;
mod names;
mod stored;
mod target;
mod xattr;

pub use access::Audience;
pub use headers::Headers;
pub use lookup::{DirectoryKind, ListedNode};
pub use target::Target;

use headers::KnownHeaders;
use live::LiveNodes;
use stored::StoredSizes;

/// The flat bytes of an array.
pub const FLAT: &str = "data.raw";
/// The directory of control files, at the root of the mount: there by name, never listed.
pub const CONTROL: &str = ".zarrfs";
/// Opening this control file stores everything that was written; it holds what could not be stored.
pub const SYNC: &str = "sync";
/// The root's inode number, fixed by FUSE.
pub const ROOT_INODE: u64 = 1;

/// What `read` is best asked for: large enough that a request's cost doesn't matter.
const BLOCK_SIZE: u32 = 1 << 20;
/// The same, of files that have less.
const MIN_BLOCK_SIZE: u32 = 4096;

/// Names of a directory that don't come from a listing of the store, `.` and `..` among them: at most so many.
pub const FIXED_NAMES: u64 = 5 + Format::ALL.len() as u64;

/// How long a `.zmetadata` that was made is taken as it was, where no file is opened: making it takes a walk.
const CONSOLIDATED_KEPT: Duration = Duration::from_secs(1);

/// A file or directory of the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A group's or an array's directory. Which of the two is asked each time: one may become the other.
    Directory(Key),
    /// `data.raw` of the array at this key.
    Flat(Key),
    /// A header or container of the array at this key.
    Header(Key, Format),
    /// The group at this key as a netCDF file.
    Dataset(Key),
    /// A stored chunk of the array at this key, by its name in the mount: its number depends on the shape.
    Chunk(Key, String),
    /// A metadata document of the group or array at this key.
    Metadata(Key, MetadataFile),
    /// Any other key.
    Value(Key),
    /// Listed, but never readable: a FIFO, a chunk of a damaged array.
    Unreadable(Key),
    /// `.zarrfs`
    ControlDirectory,
    /// A file below it.
    Control(ControlFile),
}

/// The control files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFile {
    /// Lines of a name and a value.
    Stats,
    /// The same as one JSON object.
    StatsJson,
    /// See [`SYNC`].
    Sync,
}

impl ControlFile {
    const ALL: [ControlFile; 3] = [ControlFile::Stats, ControlFile::StatsJson, ControlFile::Sync];

    fn name(self) -> &'static str {
        match self {
            ControlFile::Stats => "stats",
            ControlFile::StatsJson => "stats.json",
            ControlFile::Sync => SYNC,
        }
    }
}

impl Node {
    /// True for directories.
    pub fn is_directory(&self) -> bool {
        matches!(self, Node::Directory(_) | Node::ControlDirectory)
    }

    /// The path in the mount, without a leading slash.
    pub fn path(&self) -> Key {
        match self {
            Node::Directory(key) | Node::Value(key) | Node::Unreadable(key) => key.clone(),
            Node::Flat(key) => key.join(FLAT),
            Node::Header(key, format) => key.join(format.name()),
            Node::Dataset(key) => key.join(DATASET),
            Node::Chunk(key, name) => key.join(name),
            Node::Metadata(key, file) => key.join(file.name()),
            Node::ControlDirectory => Key::root().join(CONTROL),
            Node::Control(file) => Key::root().join(CONTROL).join(file.name()),
        }
    }

    /// The same node when `from` has become `to`. It is there or below.
    fn rebased(&self, from: &Key, to: &Key) -> Node {
        let moved = |key: &Key| key.moved(from, to).unwrap_or_else(|| key.clone());
        match self {
            Node::Directory(key) => Node::Directory(moved(key)),
            Node::Flat(key) => Node::Flat(moved(key)),
            Node::Header(key, format) => Node::Header(moved(key), *format),
            Node::Dataset(key) => Node::Dataset(moved(key)),
            Node::Chunk(key, name) => Node::Chunk(moved(key), name.clone()),
            Node::Metadata(key, file) => Node::Metadata(moved(key), *file),
            Node::Value(key) => Node::Value(moved(key)),
            Node::Unreadable(key) => Node::Unreadable(moved(key)),
            Node::ControlDirectory | Node::Control(_) => self.clone(),
        }
    }

    /// The inode number: a function of the path, so that it is the same in every listing and every mount. Of what was
    /// renamed or came to a path that is still known as something else, [`Tree::remember`] tells it.
    pub fn inode(&self) -> u64 {
        inode(self.is_directory(), self.path().as_str())
    }

    /// The inode number of the directory above.
    pub fn parent_inode(&self) -> u64 {
        inode(true, self.path().parent().as_str())
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
    /// See [`Node::inode`].
    pub inode: u64,
    /// A directory, or else a regular file.
    pub is_directory: bool,
    /// Bytes a reader gets.
    pub size: u64,
    /// Units of 512 bytes stored.
    pub blocks: u64,
    /// The stored key's.
    pub modified: SystemTime,
    /// Bytes that `read` is best asked for.
    pub block_size: u32,
    /// What the stored files grant that the node is made of; `None` where the store has no modes.
    pub permissions: Option<Permissions>,
    /// True if they may be taken as they were for a second, where no file is opened: of directories only the times can
    /// change, and of a chunk the times and what it takes in the store.
    pub lasting: bool,
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Without the path.
    pub name: String,
    /// See [`Node::inode`].
    pub inode: u64,
    /// A directory, or else a regular file.
    pub is_directory: bool,
}

/// The names of a directory, streamed.
pub type NameStream = Box<dyn Iterator<Item = Result<Name>> + Send>;

/// `.zmetadata` documents made a moment ago. Protects the map alone.
struct KnownConsolidated(Mutex<LruCache<Key, (Instant, Arc<MetadataDocument>)>>);

impl Default for KnownConsolidated {
    fn default() -> Self {
        const FEW: NonZeroUsize = NonZeroUsize::new(4).unwrap();
        KnownConsolidated(Mutex::new(LruCache::new(FEW)))
    }
}

impl Reclaim for KnownConsolidated {
    fn reclaim(&self) {
        if let Ok(mut known) = self.0.try_lock() {
            known.clear();
        }
    }
}

/// The tree of one mount.
pub struct Tree {
    hierarchy: Hierarchy,
    cache: Arc<Cache>,
    started: SystemTime,
    live: LiveNodes,
    stored_sizes: StoredSizes,
    /// See [`Tree::requests`].
    requests: Counter,
    headers: Headers,
    known_headers: Arc<KnownHeaders>,
    consolidated: Arc<KnownConsolidated>,
    /// Groups without a stored `.zgroup` of which the one that is shown was removed. Protects the set alone.
    unmarked: Mutex<HashSet<Key>>,
}

impl Tree {
    /// The tree of a hierarchy.
    pub fn new(hierarchy: Hierarchy, cache: Arc<Cache>) -> Self {
        let (known_headers, consolidated) = (Arc::new(KnownHeaders::new()), Arc::new(KnownConsolidated::default()));
        memory::register(&known_headers);
        memory::register(&consolidated);
        Tree {
            hierarchy,
            cache,
            started: SystemTime::now(),
            live: LiveNodes::default(),
            stored_sizes: StoredSizes::new(),
            requests: Counter::default(),
            headers: Headers::default(),
            known_headers,
            consolidated,
            unmarked: Mutex::default(),
        }
    }

    /// The hierarchy shown.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// The node of an inode number that the kernel knows.
    pub fn node(&self, inode: u64) -> Result<Arc<Node>> {
        self.requests.add(1);
        match self.live.get(inode) {
            None if inode == ROOT_INODE => Ok(Arc::new(Node::Directory(Key::root()))),
            node => node.ok_or_else(stale),
        }
    }

    /// A number that grows with every request for a name, an attribute or a file that is not open.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Counts a lookup of `node`: the kernel will send its inode number, which is returned, from now on.
    pub fn remember(&self, node: Node) -> u64 {
        self.live.remember(node)
    }

    /// The inode number under which the kernel knows `node`, or would come to know it.
    pub fn inode(&self, node: &Node) -> u64 {
        self.live.number(node)
    }

    /// Takes back `count` lookups.
    pub fn forget(&self, inode: u64, count: u64) {
        self.live.forget(inode, count);
    }

    /// Returns whether the kernel should be asked to forget names, once for each time that this becomes so.
    pub fn take_crowded(&self) -> bool {
        self.live.take_crowded()
    }

    /// Returns names that the kernel should forget, by the inode number of their directory: those that no request has
    /// used for longest, and none of the inodes `kept`.
    pub fn least_used_names(&self, kept: &HashSet<u64>) -> HashMap<u64, Vec<String>> {
        self.live.least_used(kept)
    }

    /// The array and number of a chunk node; ESTALE if the grid no longer has it.
    pub fn chunk(&self, key: &Key, name: &str) -> Result<(Arc<Array>, ChunkId)> {
        let array = self.array(key)?;
        let chunk = array.grid().parse_chunk_key(name, Separator::Dot).ok_or_else(stale)?;
        Ok((array, chunk))
    }

    /// The sound array at `key`; the reason if it is damaged.
    pub fn array(&self, key: &Key) -> Result<Arc<Array>> {
        match self.hierarchy.find(key)? {
            Some(StoredNode::Array(array)) => Ok(array),
            Some(StoredNode::Damaged(e)) => Err(e),
            _ => Err(stale()),
        }
    }

    /// Has the store asked anew for what a file is: somebody opens it, and must see what is there now.
    pub fn revalidate(&self, node: &Node) {
        let store = self.hierarchy.store();
        match node {
            Node::Flat(key) | Node::Chunk(key, _) | Node::Metadata(key, MetadataFile::Consolidated) => {
                store.forget(key)
            }
            Node::Dataset(key) | Node::Header(key, Format::Npy) => store.forget(key),
            // its coordinates lie beside it
            Node::Header(key, _) => store.forget(&key.parent()),
            Node::Metadata(key, _) => self.hierarchy.forget_documents(key),
            Node::Value(key) | Node::Unreadable(key) => store.forget(key),
            Node::Directory(_) | Node::ControlDirectory | Node::Control(_) => {}
        }
    }

    /// A metadata document as the mount shows it; None if there is none.
    pub fn document(&self, key: &Key, file: MetadataFile) -> Result<Option<Arc<MetadataDocument>>> {
        let document = match file {
            MetadataFile::Array => self.hierarchy.array_view(key),
            MetadataFile::Group if self.is_unmarked(key)? => return Ok(None),
            MetadataFile::Group => self.hierarchy.group_view(key),
            MetadataFile::Attributes => self.hierarchy.attributes_view(key),
            MetadataFile::Consolidated => return self.consolidated(key, CONSOLIDATED_KEPT),
        };
        Ok(document?.map(Arc::new))
    }

    /// What is known of a metadata document, with its size as it is shown; None if there is none. One that is shown as it
    /// is stored is not read for it.
    fn known_document(&self, key: &Key, file: MetadataFile) -> Result<Option<Stat>> {
        if file == MetadataFile::Attributes {
            return self.hierarchy.attributes_stat(key);
        }
        Ok(self.document(key, file)?.map(|d| Stat { size: d.text.len() as u64, ..d.stat.clone() }))
    }

    /// The `.zmetadata` of the decoded view, not older than `age`: it takes a walk over the hierarchy.
    pub fn consolidated(&self, key: &Key, age: Duration) -> Result<Option<Arc<MetadataDocument>>> {
        if let Some((made, document)) = lock(&self.consolidated.0).get(key)
            && made.elapsed() < age
        {
            return Ok(Some(document.clone()));
        }
        let document = self.hierarchy.consolidated_view(key)?.map(Arc::new);
        if let Some(document) = &document {
            lock(&self.consolidated.0).put(key.clone(), (Instant::now(), document.clone()));
        }
        Ok(document)
    }

    /// What `stat` tells. ESTALE if the node is gone: the kernel then looks its path up again.
    pub fn attributes(&self, node: &Node) -> Result<Attributes> {
        if let Node::Value(key) | Node::Unreadable(key) = node {
            self.check_plain(node, key)?;
        }
        self.attributes_of_found(node)
    }

    /// As [`Tree::attributes`], of a node that was looked up just now.
    fn attributes_of_found(&self, node: &Node) -> Result<Attributes> {
        let store_stat = |key: &Key| self.hierarchy.store().stat(key).map_err(|e| e.context(key))?.ok_or_else(stale);
        match node {
            Node::Directory(key) => {
                let stat = store_stat(key)?;
                Ok(self.plain(node, 0, 0, stat.modified, stat.permissions))
            }
            Node::Flat(key) => {
                let array = self.array(key)?;
                // removed already while the directory is being removed
                let document =
                    self.hierarchy.store().stat(&key.join(array.metadata_name())).map_err(|e| e.context(key))?;
                let directory = store_stat(key)?;
                let stored = self.stored_sizes.of(self.hierarchy.store(), &array);
                // chunks that come, go or are replaced by a rename show in the directory's time
                let modified = document.as_ref().map_or(directory.modified, |d| d.modified.max(directory.modified));
                let modified = modified.max(stored.newest);
                let modified = modified.max(array.written_at());
                let permissions = access::of_flat(document.as_ref(), &directory);
                Ok(self.plain(node, array.size(), stored.bytes.div_ceil(512), modified, permissions))
            }
            Node::Chunk(key, name) => {
                let (array, chunk) = self.chunk(key, name)?;
                let stat = array.stat_chunk(chunk)?.ok_or_else(stale)?;
                let stat = self.below_levels(&array, &array.chunk_key(chunk), stat, &mut Default::default());
                let attributes = self.of_chunk(node, self.chunk_size(&array, chunk), &stat);
                Ok(Attributes { lasting: !array.metadata().has_objects(), ..attributes })
            }
            Node::Header(..) | Node::Dataset(_) => self.of_composite(node),
            Node::Metadata(key, file) => {
                let known = self.known_document(key, *file)?.ok_or_else(stale)?;
                Ok(self.of_document(node, &known))
            }
            Node::Value(key) => {
                let stat = store_stat(key)?;
                Ok(self.plain(node, stat.size, stat.size.div_ceil(512), stat.modified, stat.permissions))
            }
            Node::Unreadable(key) => {
                let stat = store_stat(key)?;
                Ok(self.plain(node, 0, 0, stat.modified, stat.permissions))
            }
            // opening it stores what everyone has written
            Node::Control(ControlFile::Sync) => Ok(self.plain(node, 0, 0, self.started, Some(Permissions::OWNER_ONLY))),
            Node::ControlDirectory | Node::Control(_) => Ok(self.plain(node, 0, 0, self.started, None)),
        }
    }

    /// ESTALE unless the plain key is still one: with the metadata beside it, it may have become a chunk.
    pub fn check_plain(&self, node: &Node, key: &Key) -> Result<()> {
        match self.lookup_in(&self.directory(&Node::Directory(key.parent()))?, key.name())? {
            Some(now) if now == *node => Ok(()),
            _ => Err(stale()),
        }
    }

    /// Returns whether the stored size of the array at `key` is known, so that the attributes of its flat bytes need no
    /// listing.
    pub fn knows_stored_size(&self, key: &Key) -> bool {
        self.hierarchy.cached_array(key).is_some_and(|array| self.stored_sizes.knows(&array))
    }

    /// What `stat` tells of a file of `size` bytes that need not be stored as such. Its inode number is the caller's to
    /// set.
    pub fn file_attributes(&self, size: u64, modified: SystemTime, permissions: Option<Permissions>) -> Attributes {
        let node = Node::Value(Key::root());
        self.plain(&node, size, size.div_ceil(512), modified, permissions)
    }

    /// `node` was removed, and what was below it: the kernel's number of it is nobody else's until it is forgotten.
    pub fn removed(&self, node: &Node) {
        self.live.removed(node);
        self.forget_documents(&node.path());
    }

    /// `node` is `to` by now, in place of what was there.
    pub fn renamed(&self, node: &Node, to: &Node) {
        self.live.renamed(node, to);
        self.forget_documents(&node.path());
        self.forget_documents(&to.path());
    }

    /// A document of the group or array at `key` was written or, as `removed` says, removed.
    pub fn document_changed(&self, key: &Key, file: MetadataFile, removed: bool) {
        lock(&self.consolidated.0).clear();
        self.known_headers.clear();
        match file {
            MetadataFile::Group if removed => drop(lock(&self.unmarked).insert(key.clone())),
            MetadataFile::Group => drop(lock(&self.unmarked).remove(key)),
            _ => {}
        }
    }

    fn forget_documents(&self, path: &Key) {
        lock(&self.consolidated.0).clear();
        self.known_headers.clear();
        lock(&self.unmarked).retain(|key| key.relative_to(path).is_none());
    }

    /// True for a group whose `.zgroup` was removed: none is made up for it any more.
    fn is_unmarked(&self, key: &Key) -> Result<bool> {
        if self.is_level(key) {
            return Ok(true);
        }
        let unmarked = lock(&self.unmarked).contains(key);
        Ok(unmarked && self.hierarchy.store().stat(&key.join(ZGROUP))?.is_none())
    }

    fn plain(
        &self,
        node: &Node,
        size: u64,
        blocks: u64,
        modified: SystemTime,
        permissions: Option<Permissions>,
    ) -> Attributes {
        let is_directory = node.is_directory();
        // whoever reads a small file need not get a large buffer for it
        let block_size = size.clamp(u64::from(MIN_BLOCK_SIZE), u64::from(BLOCK_SIZE)).next_power_of_two() as u32;
        let inode = node.inode();
        Attributes { inode, is_directory, size, blocks, modified, block_size, permissions, lasting: is_directory }
    }

    /// Attributes of a document of which the size is known, too.
    fn of_document(&self, node: &Node, stat: &Stat) -> Attributes {
        self.plain(node, stat.size, stat.size.div_ceil(512), stat.modified, stat.permissions)
    }

    /// Attributes of a chunk of `size` decoded bytes that the grid knows.
    fn of_chunk(&self, node: &Node, size: u64, stat: &Stat) -> Attributes {
        let attributes = self.plain(node, size, stat.size.div_ceil(512), stat.modified, stat.permissions);
        Attributes { lasting: true, ..attributes }
    }

    /// Bytes of a decoded chunk. For objects it takes decoding it; one that can't be decoded shows as empty, and
    /// opening it tells why.
    fn chunk_size(&self, array: &Array, chunk: ChunkId) -> u64 {
        if !array.metadata().has_objects() {
            return array.grid().chunk_size() as u64;
        }
        let piece = array.readable().and_then(|()| self.cache.get(array, chunk, ChunkPart::Whole));
        piece.ok().flatten().map_or(0, |p| p.bytes().len() as u64)
    }

    /// Why a node that is listed can't be read.
    pub fn unreadable(&self, key: &Key) -> Error {
        match self.hierarchy.find(&key.parent()) {
            Ok(Some(StoredNode::Damaged(e))) => e,
            _ => Error::damaged("is not a regular file").context(key),
        }
    }

    /// The extended attributes of a node that `audience` may know, each with its value.
    pub fn xattrs(&self, node: &Node, audience: Audience) -> Result<Vec<(String, Vec<u8>)>> {
        xattr::of(self, node, audience)
    }

    /// Sizes and state beside the counters, for the control files.
    pub fn state(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("store", self.hierarchy.store().location().into()),
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("pid", std::process::id().into()),
            ("cache_bytes", self.cache.used().into()),
            ("cache_bound", self.cache.bound().into()),
            ("live_nodes", self.live.len().into()),
        ]
    }
}

/// What a node answers that is no longer there: the kernel looks the path up again.
fn stale() -> Error {
    Error::system(libc::ESTALE)
}

/// True if the array's flat bytes can be shown.
fn has_flat(array: &Array) -> bool {
    !array.metadata().has_objects() && array.readable().is_ok()
}

/// Names below an array that the mount never shows: metadata it shows by other means, and unfinished writes.
fn is_hidden(array: Option<&Array>, name: &str) -> bool {
    let v1 = array.is_none_or(|a| a.metadata().zarr_format == 1);
    [ZARRAY, ZATTRS, ZGROUP, ZMETADATA].contains(&name)
        || v1 && array.is_some() && [V1_META, V1_ATTRS].contains(&name)
        || name.starts_with(".zarrfs-")
}
