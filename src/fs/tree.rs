//! The mounted tree: the names in each directory, and the kind, inode number, attributes and
//! extended attributes of each. It reads chunks only for the size of a chunk of objects and for the
//! coordinates in headers, and knows nothing of open files.

use crate::array::Array;
use crate::array::hierarchy::{Hierarchy, MetadataDocument, MetadataFile};
use crate::cache::Cache;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::Value;
use zarrfs_base::memory::{self, Reclaim, lock};
use zarrfs_base::stats::Counter;
use zarrfs_export::Format;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{
    Separator, V1_ATTRS, V1_META, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA,
};
use zarrfs_outlive::{Journal, Record};
use zarrfs_store::{Hint, Key, Stat, StoreExt, escaped};

mod access;
mod attributes;
mod early;
mod headers;
mod ingested;
mod layout;
mod levels;
mod live;
mod lookup;
mod names;
mod node;
mod node_text;
mod stored;
mod target;
mod views;
mod walk;
mod xattr;

pub use access::Audience;
pub use attributes::Attributes;
pub use headers::Headers;
pub use ingested::IngestRules;
pub use levels::{EncodedValue, is_partial};
pub use lookup::{DirectoryKind, ListedNode};
pub use names::{Name, NameStream};
pub use node::{ControlFile, Node, NodeNature, View, ViewedFile};
pub use target::Target;
pub use views::Views;

use early::EarlyFiles;
use headers::KnownHeaders;
use layout::MountLayout;
use live::LiveNodes;
use node::NodeSource;
use stored::StoredSizes;
use walk::Walks;

/// The file with the flat bytes of an array.
pub const FLAT: &str = "data.raw";
/// The directory of control files at the root of the mount. It exists by name and is never listed.
pub const CONTROL: &str = ".zarrfs";
/// The control file that stores everything when it is opened, and holds the errors.
pub const SYNC: &str = "sync";
/// The control file with the statistics for Prometheus.
pub const METRICS: &str = "metrics";
/// The root's inode number, fixed by FUSE.
pub const ROOT_INODE: u64 = 1;

/// Maximum number of names in a directory that do not come from a listing of the store: `.`, `..`
/// and two views among them.
pub const FIXED_NAMES: u64 = 7 + Format::ALL.len() as u64;

/// Maximum age of generated consolidated metadata for requests that open no file: generating them
/// reads every document below the group.
const CONSOLIDATED_KEPT: Duration = Duration::from_secs(1);

/// Recently generated `.zmetadata` documents, and `zarr.json` with consolidated metadata. Protects
/// the map alone.
struct KnownConsolidated(Mutex<LruCache<(Key, MetadataFile), MadeDocument>>);

/// A generated document, and when it was made.
type MadeDocument = (Instant, Arc<MetadataDocument>);

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
    hierarchy: Arc<Hierarchy>,
    cache: Arc<Cache>,
    started: SystemTime,
    /// The nodes that the kernel knows.
    pub live: LiveNodes,
    stored_sizes: StoredSizes,
    walks: Walks,
    /// The number that [`Tree::requests`] returns.
    requests: Counter,
    headers: Headers,
    views: Views,
    layout: MountLayout,
    pub(super) ingest: Option<Arc<IngestRules>>,
    known_headers: Arc<KnownHeaders>,
    consolidated: Arc<KnownConsolidated>,
    /// Files that were written before what they are made of.
    pub early: EarlyFiles,
}

impl Tree {
    /// Creates the tree of a hierarchy.
    pub fn new(hierarchy: Hierarchy, cache: Arc<Cache>) -> Self {
        let known_headers = Arc::new(KnownHeaders::new());
        let consolidated = Arc::new(KnownConsolidated::default());
        memory::register(&known_headers);
        memory::register(&consolidated);
        Tree {
            hierarchy: Arc::new(hierarchy.reporting()),
            cache,
            started: SystemTime::now(),
            live: LiveNodes::default(),
            stored_sizes: StoredSizes::new(),
            walks: Walks::new(),
            requests: Counter::default(),
            headers: Headers::default(),
            views: Views::default(),
            layout: MountLayout::default(),
            ingest: None,
            known_headers,
            consolidated,
            early: EarlyFiles::new(),
        }
    }

    /// Returns the hierarchy that the tree shows.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Returns the node of an inode number that the kernel knows: of the prefix of a branch, the
    /// one that stays in the present snapshot.
    ///
    /// # Errors
    ///
    /// ESTALE if the node was removed or the number is unknown.
    pub fn node(&self, inode: u64) -> Result<Arc<Node>> {
        let node = self.named_node(inode)?;
        if let Some(key) = node.directory()
            && let Some(snapshots) = self.hierarchy.store().capabilities().snapshots
            // a request for the directory itself reports why its branch cannot be looked up
            && let Ok(Some(settled)) = snapshots.settled(key)
        {
            self.live.settled(settled.clone(), inode);
            return Ok(Arc::new(Node::Directory(settled)));
        }
        Ok(node)
    }

    /// Returns the node of an inode number as it was looked up, without asking the store.
    fn named_node(&self, inode: u64) -> Result<Arc<Node>> {
        let node = match self.live.get(inode) {
            None if inode == ROOT_INODE => Arc::new(Node::Directory(Key::root())),
            node => node.ok_or_else(Error::stale)?,
        };
        if inode != ROOT_INODE && !node.is_control() {
            self.record_use();
        }
        Ok(node)
    }

    /// Checks that a file, which is about to be opened, is in the snapshot that its branch has now.
    /// One that the kernel has looked up since a check failed is opened all the same: then the
    /// program works in a directory that it found earlier.
    ///
    /// # Errors
    ///
    /// ESTALE, which makes the kernel look up the path of the file again.
    pub fn check_snapshot(&self, inode: u64, node: &Node) -> Result<()> {
        match self.hierarchy.store().capabilities().snapshots {
            Some(snapshots) if snapshots.is_left(&node.path())? && self.live.refuses(inode) => {
                Err(Error::stale())
            }
            _ => Ok(()),
        }
    }

    /// Records that the mount is used. Requests for the mountpoint alone do not count, because `df`
    /// and health checks send them.
    pub fn record_use(&self) {
        self.requests.add(1);
    }

    /// Returns a number that grows with every request for a name, an attribute or a file that is
    /// not open. Those for the mountpoint itself and for control files do not count.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Returns the inode number by which the kernel names `node`, or would name it after a lookup
    /// now.
    pub fn inode(&self, node: &Node) -> u64 {
        self.live.number(node)
    }

    /// Records the nodes in `journal` from now on, and takes over those that a daemon has left.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        self.live.outlive(journal, left);
        self.early.outlive(journal, left);
        self.hierarchy.outlive(journal, left);
    }

    /// Returns the array and the number of a chunk.
    ///
    /// # Errors
    ///
    /// ESTALE if the chunk is outside the array's grid.
    pub fn chunk(&self, key: &Key, name: &str) -> Result<(Arc<Array>, ChunkId)> {
        let array = self.array(key)?;
        let chunk = chunk_named(&array, name).ok_or_else(Error::stale)?;
        Ok((array, chunk))
    }

    /// Returns the array and the number of a chunk as [`Tree::chunk`] does, also of one that is
    /// stored outside the array's shape, in an array of a larger shape.
    pub fn stored_chunk(&self, key: &Key, name: &str) -> Result<(Arc<Array>, ChunkId)> {
        match self.chunk(key, name) {
            Err(e) if e.errno() == libc::ESTALE => self
                .hierarchy
                .chunk_outside(&*self.array(key)?, name)?
                .ok_or_else(Error::stale),
            found => found,
        }
    }

    /// Returns the array at `key`.
    ///
    /// # Errors
    ///
    /// The reason if the array is damaged; ESTALE if there is none.
    pub fn array(&self, key: &Key) -> Result<Arc<Array>> {
        self.hierarchy.usable_array(key)?.ok_or_else(Error::stale)
    }

    /// Returns the inode number by which the kernel names the flat bytes of the array at `key`.
    pub fn flat_inode(&self, key: &Key) -> u64 {
        self.inode(&Node::Flat(key.clone()))
    }

    /// Returns the key under which a plain key, a directory, a document or a chunk is stored, if it
    /// shares that with no other file.
    pub fn own_key(&self, node: &Node) -> Option<Key> {
        match node.chunk() {
            Some((key, name)) => {
                let (array, chunk) = self.chunk(key, name).ok()?;
                array.own_key(chunk)
            }
            None => node.is_stored().then(|| node.path()),
        }
    }

    /// Returns whether a change of a document may change the metadata of the array at `key`. In a
    /// v2 view of a v3 array, the attributes are part of that metadata.
    pub fn changes_array(&self, key: &Key, file: MetadataFile) -> Result<bool> {
        let hierarchy = self.hierarchy();
        Ok(file.defines_arrays()
            || hierarchy.cached_array(key).is_some() && hierarchy.shows_as_v2(key)?)
    }

    /// Returns whether the size of a file is fixed: for flat bytes, headers, containers, and chunks
    /// unless they hold objects.
    pub fn has_fixed_size(&self, node: &Node) -> Result<bool> {
        Ok(match node.chunk() {
            Some((key, _)) => !self.array(key)?.metadata().has_objects(),
            None => node.is_generated(),
        })
    }

    /// Returns the path of a name in the directory `inode`, or of the inode itself if `name` is
    /// empty, for the log.
    pub fn shown_path(&self, inode: u64, name: &str) -> String {
        match self.node(inode) {
            Ok(node) if name.is_empty() => node.path().to_string(),
            Ok(node) => node.path().join(name).to_string(),
            Err(_) if name.is_empty() => format!("inode {inode}"),
            Err(_) => format!("inode {inode}/{}", escaped(name)),
        }
    }

    /// Drops cached metadata of a file, because the file is opened and must show the current
    /// content of the store.
    pub fn revalidate(&self, node: &Node) {
        let store = self.hierarchy.store();
        match node.source() {
            NodeSource::Nothing => {}
            NodeSource::Below(key) => store.forget(&key),
            NodeSource::Documents(key) => store.hint(Hint::ForgetDocuments(key)),
            NodeSource::Document(key, MetadataFile::Consolidated) => store.forget(key),
            NodeSource::Document(key, MetadataFile::Zarr)
                if self.hierarchy.may_show_inline(key) =>
            {
                store.forget(key)
            }
            NodeSource::Document(key, _) => self.hierarchy.forget_documents(key),
        }
    }

    /// Returns a metadata document as the mount shows it; `None` if there is none. Consolidated
    /// metadata may be a second old.
    pub fn document(&self, key: &Key, file: MetadataFile) -> Result<Option<Arc<MetadataDocument>>> {
        self.document_of_age(key, file, CONSOLIDATED_KEPT)
    }

    /// Returns a metadata document as [`Tree::document`] does, with consolidated metadata not older
    /// than `age`.
    pub fn document_of_age(
        &self,
        key: &Key,
        file: MetadataFile,
        age: Duration,
    ) -> Result<Option<Arc<MetadataDocument>>> {
        let document = match file {
            // a level of chunks shows no generated document
            MetadataFile::Zarr | MetadataFile::Group if self.is_level(key) => return Ok(None),
            MetadataFile::Zarr if self.hierarchy.shows_inline(key)? => {
                return self.consolidated(key, file, age);
            }
            MetadataFile::Zarr => self.hierarchy.shown_zarr_json(key),
            MetadataFile::Array => self.hierarchy.shown_array(key),
            MetadataFile::Group => self.hierarchy.shown_group(key),
            MetadataFile::Attributes => self.hierarchy.shown_attributes(key),
            MetadataFile::Consolidated => return self.consolidated(key, file, age),
        };
        Ok(document?.map(Arc::new))
    }

    /// Returns the stat of a metadata document, with its size as shown; `None` if there is no
    /// document. Attributes that are shown as they are stored are not read.
    fn document_stat(&self, key: &Key, file: MetadataFile) -> Result<Option<Stat>> {
        if file == MetadataFile::Attributes {
            return self.hierarchy.attributes_stat(key);
        }
        Ok(self.document(key, file)?.map(|d| Stat {
            size: d.text.len() as u64,
            ..d.stat.clone()
        }))
    }

    /// Returns the `.zmetadata` or `zarr.json` with consolidated metadata, not older than `age`.
    /// Generating it reads the whole hierarchy.
    fn consolidated(
        &self,
        key: &Key,
        file: MetadataFile,
        age: Duration,
    ) -> Result<Option<Arc<MetadataDocument>>> {
        let kept = (key.clone(), file);
        if let Some((made, document)) = lock(&self.consolidated.0).get(&kept)
            && made.elapsed() < age
        {
            return Ok(Some(document.clone()));
        }
        let document = match file {
            MetadataFile::Zarr => self.hierarchy.shown_inline(key)?,
            _ => self.hierarchy.shown_consolidated(key)?,
        };
        let document = document.map(Arc::new);
        if let Some(document) = &document {
            lock(&self.consolidated.0).put(kept, (Instant::now(), document.clone()));
        }
        Ok(document)
    }

    /// Checks that a plain key is still one: with the metadata beside it, it may have become a
    /// chunk.
    ///
    /// # Errors
    ///
    /// ESTALE if it is not.
    pub fn check_plain(&self, node: &Node, key: &Key) -> Result<()> {
        match self.lookup_in(&self.directory(&Node::Directory(key.parent()))?, key.name())? {
            Some(now) if now == *node => Ok(()),
            _ => Err(Error::stale()),
        }
    }

    /// Returns whether the last lookup of a directory has found an array, without a request to the
    /// store.
    pub fn is_known_array(&self, node: &Node) -> bool {
        let key = node.directory();
        key.is_some_and(|key| self.hierarchy.cached_array(key).is_some())
    }

    /// Returns whether the stored size of the array at `key` is known, so that the attributes of
    /// its flat bytes need no listing.
    pub fn knows_stored_size(&self, key: &Key) -> bool {
        self.hierarchy
            .cached_array(key)
            .is_some_and(|array| self.stored_sizes.knows(&array))
    }

    /// Records that `node` and everything below it were removed. Their inode numbers stay taken
    /// until the kernel forgets them.
    pub fn removed(&self, node: &Node) {
        self.live.removed(node);
        self.document_changed();
    }

    /// Records that the file `node` was renamed, and another node shows its content now.
    pub fn became_another(&self, node: &Node) {
        self.live.became_another(node);
        self.document_changed();
    }

    /// Records that `node` was renamed to `to`, in place of a node there.
    pub fn renamed(&self, node: &Node, to: &Node) {
        self.live.renamed(node, to);
        self.document_changed();
    }

    /// Records that a document was written or removed.
    pub fn document_changed(&self) {
        lock(&self.consolidated.0).clear();
        self.known_headers.clear();
    }

    /// Returns the error for a node that is listed but cannot be read.
    pub fn unreadable(&self, key: &Key) -> Error {
        let parent = key.parent();
        let found = self.hierarchy.find(&parent).ok().flatten();
        found
            .and_then(|found| found.usable().err())
            .or_else(|| self.damage_above(&parent))
            .unwrap_or_else(|| Error::damaged("is not a regular file").context(key))
    }

    /// Returns the extended attributes of a node that `audience` may know, each with its value;
    /// with `wanted` only the one of that name.
    pub fn xattrs(
        &self,
        node: &Node,
        audience: Audience,
        wanted: Option<&str>,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        xattr::of(self, node, audience, wanted)
    }

    /// Returns the values that the control files show beside the counters.
    pub fn state(&self) -> Vec<(&'static str, Value)> {
        let (dirty_chunks, dirty_bytes) = self.cache.unstored_total();
        vec![
            ("store", self.hierarchy.store().location().into()),
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("pid", std::process::id().into()),
            ("uptime_seconds", self.uptime().as_secs().into()),
            ("cache_bytes", self.cache.used().into()),
            ("cache_bound", self.cache.bound().into()),
            ("dirty_chunks", dirty_chunks.into()),
            ("dirty_bytes", dirty_bytes.into()),
            ("live_nodes", self.live.len().into()),
        ]
    }

    /// Returns the time since the mount began.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed().unwrap_or_default()
    }
}

/// Returns the chunk of an array that has this name in the mount.
pub fn chunk_named(array: &Array, name: &str) -> Option<ChunkId> {
    array.grid().parse_chunk_key(name, Separator::Dot)
}

/// Returns whether the array's flat bytes can be shown.
fn has_flat(array: &Array) -> bool {
    !array.metadata().has_objects() && array.readable().is_ok()
}

/// Returns whether a name in an array's directory is never shown: documents, which the tree shows
/// by other means, and unfinished writes.
fn is_hidden(array: Option<&Array>, name: &str) -> bool {
    let v1 = array.is_none_or(|a| a.metadata().zarr_format == 1);
    [ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA].contains(&name)
        || v1 && array.is_some() && [V1_META, V1_ATTRS].contains(&name)
        || name.starts_with(".zarrfs-")
}
