//! The groups and arrays of a store: nodes found by path, their metadata documents in the mounted
//! tree, listings, and, in submodules, changes. Metadata is read on demand and again after it has
//! changed. This module knows neither open files nor decoded chunks: the caller writes dirty chunks
//! back before it changes an array.

use crate::array::{Array, Source};
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::{self, Grant};
use zarrfs_base::stats::Stats;
use zarrfs_format::fill_value::FillMeaning;
use zarrfs_format::metadata::v3::node::{self, NodeType};
use zarrfs_format::metadata::{
    ArrayMetadata, CodecConfig, MAX_DOCUMENT, V1_ATTRS, V1_META, V1Order, ZARR_JSON, ZARRAY,
    ZATTRS, ZGROUP, ZMETADATA,
};
use zarrfs_outlive::{Journal, Record, RecordedNames};
use zarrfs_store::{
    Entry, EntryKind, Key, Listing, ReportingStore, Stat, Store, StoreExt, SubtreeLocks, Version,
};

mod array_document;
mod arrays;
mod asked_once;
mod consolidated;
mod consolidated_spelling;
mod shown_consolidated;
mod document;
mod format;
mod migrate;
mod namespace;
mod nested_stores;
mod prefixes;
mod resize;
mod stores;
mod values;
mod as_v2;
mod v3;
mod shown;
mod written_array;
mod consolidated_store;

pub use as_v2::ShownFormat;
pub use asked_once::AskedOnce;
pub use consolidated::Stale;
pub use consolidated_store::{ConsolidatedStore, UseConsolidated};
pub use format::DocumentFormat;
pub use migrate::{ShardShape, ShardedCopy};
pub use nested_stores::{NestedStores, OpenRepository};
pub use prefixes::{MAX_NAMES, MAX_NODES, Prefixes, WalkBounds, too_much};

use arrays::Arrays;
use consolidated_spelling::WrittenConsolidated;
use namespace::Unmarked;
use v3::V3Outline;

/// Maximum number of arrays whose parsed metadata is kept.
const ARRAYS_KEPT: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Maximum number of prefixes recorded that show no generated document: a program makes many
/// directories before it writes their documents.
const UNMARKED_KEPT: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// The kinds of records in the journal.
const UNMARKED_RECORD: u32 = 13;
const DECODED_RECORD: u32 = 14;
const CHANGING_RECORD: u32 = 18;

/// Number of names examined to recognize a store that has no `.zgroup` at its root.
const PROBED_NAMES: usize = 1000;

/// The prefix of zarrfs' own keys, which are not part of the hierarchy: unfinished values, and
/// [`REMOVED`].
pub const OWN: &str = ".zarrfs-";

/// The key that keeps an array's document after `.zarray` or `zarr.json` was removed, until the
/// directory is removed or a new document is written. Programs such as `rm -r` delete files in any
/// order, and chunks must keep their names until they are deleted. An editor that deletes a
/// document before saving it again must not lose the codecs, which the mounted tree hides.
pub const REMOVED: &str = ".zarrfs-zarray";

/// The names of the documents of groups and arrays.
pub const DOCUMENTS: [&str; 8] = [
    ZARR_JSON, ZARRAY, ZGROUP, ZATTRS, ZMETADATA, REMOVED, V1_META, V1_ATTRS,
];

/// The node of the hierarchy, or the plain key, at a path.
#[derive(Clone)]
pub enum StoredNode {
    /// An array with usable metadata; its codecs may still be unknown.
    Array(Arc<Array>),
    /// An array whose metadata cannot be used, and the reason.
    Damaged(Error),
    /// A group, with or without `.zgroup`.
    Group,
    /// A plain key, which is neither metadata nor a chunk.
    Value,
    /// Something that is not a regular file: a FIFO, a socket, a device.
    Other,
}

impl StoredNode {
    /// Returns the array if its metadata can be used.
    pub fn array(&self) -> Option<Arc<Array>> {
        self.usable().ok().flatten()
    }

    /// Returns the array; `None` for anything but an array.
    ///
    /// # Errors
    ///
    /// The reason why the metadata of the array cannot be used.
    pub fn usable(&self) -> Result<Option<Arc<Array>>> {
        match self {
            StoredNode::Array(array) => Ok(Some(array.clone())),
            StoredNode::Damaged(e) => Err(e.clone()),
            StoredNode::Group | StoredNode::Value | StoredNode::Other => Ok(None),
        }
    }

    /// Returns whether this is an array, usable or not.
    pub fn is_array(&self) -> bool {
        matches!(self, StoredNode::Array(_) | StoredNode::Damaged(_))
    }

    /// Returns whether this is a group.
    pub fn is_group(&self) -> bool {
        matches!(self, StoredNode::Group)
    }

    /// Returns whether nodes and values can be stored below: whether this is a group or an array,
    /// usable or not.
    pub fn is_directory(&self) -> bool {
        self.is_group() || self.is_array()
    }
}

/// What the arrays that a traversal finds are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeUse {
    /// Their documents alone. A separator that no document states may be unknown.
    Description,
    /// Their chunks, too. The separator is detected, which takes a listing of each array.
    Chunks,
}

/// A metadata document of the mounted tree.
pub struct MetadataDocument {
    /// The text.
    pub text: Vec<u8>,
    /// The stat of the stored document, or of the prefix if the document is generated.
    pub stat: Stat,
    /// Grant for the memory of the text.
    pub memory: Grant,
}

impl AsRef<[u8]> for MetadataDocument {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl MetadataDocument {
    /// Returns a generated document, with its memory counted.
    fn made(text: Vec<u8>, stat: Stat) -> Result<Self> {
        let memory = memory::take(text.capacity())?;
        Ok(MetadataDocument { text, stat, memory })
    }
}

/// The kinds of metadata documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetadataFile {
    /// `zarr.json`
    Zarr,
    /// `.zarray`
    Array,
    /// `.zgroup`
    Group,
    /// `.zattrs`
    Attributes,
    /// `.zmetadata`
    Consolidated,
}

impl MetadataFile {
    const ALL: [MetadataFile; 5] = [
        MetadataFile::Zarr,
        MetadataFile::Array,
        MetadataFile::Group,
        MetadataFile::Attributes,
        MetadataFile::Consolidated,
    ];

    /// Returns the kind of the document with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.name() == name)
    }

    /// Returns the document's name in a group or array.
    pub fn name(self) -> &'static str {
        match self {
            MetadataFile::Zarr => ZARR_JSON,
            MetadataFile::Array => ZARRAY,
            MetadataFile::Group => ZGROUP,
            MetadataFile::Attributes => ZATTRS,
            MetadataFile::Consolidated => ZMETADATA,
        }
    }

    /// Returns whether the document may define an array.
    pub fn defines_arrays(self) -> bool {
        matches!(self, MetadataFile::Zarr | MetadataFile::Array)
    }

    /// Returns whether the document may define a group.
    pub fn defines_groups(self) -> bool {
        matches!(self, MetadataFile::Zarr | MetadataFile::Group)
    }
}

type Parsed = std::result::Result<Arc<Array>, Error>;

/// The stored document that defines an array.
struct ArrayDocument {
    key: Key,
    stat: Stat,
    form: DocumentKind,
    /// The document, if it was read just now.
    read: Option<MetadataDocument>,
    /// Value of [`Arrays::moves`] before the document was looked up.
    moves: u64,
}

/// The kinds of documents that define an array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DocumentKind {
    /// `zarr.json`
    V3,
    /// `.zarray`
    V2,
    /// `meta` of a v1 store.
    V1,
    /// [`REMOVED`]
    Removed,
}

/// The Zarr hierarchy in a store: finds nodes by path, reads their documents as the mounted tree
/// shows them, and changes them.
///
/// Nodes have no handles: each call takes a [`Key`] and looks at the store again, so that changes
/// by other processes are visible. Parsed arrays are cached by the version of their document, and a
/// caller that holds an [`Array`] gets the same object as long as the document stays unchanged.
/// Methods that begin with `shown_` return documents of the mounted tree; the submodules
/// `document`, `array_document`, `namespace`, `resize` and `migrate` contain the changes. A change
/// holds a lock on its subtree and keeps `.zmetadata` up to date (`consolidated`).
///
/// ```
/// use std::sync::Arc;
/// use zarrfs::array::hierarchy::{Hierarchy, MetadataFile, StoredNode};
/// use zarrfs_store::{Key, MemoryStore};
/// use zarrfs_format::metadata::V1Order;
///
/// let store = Arc::new(MemoryStore::default());
/// let hierarchy = Hierarchy::new(store, V1Order::Zarr1, Arc::default());
/// let key = Key::normalize("temperature")?;
/// hierarchy.create_group(&key)?;
/// let document = br#"{"zarr_format": 2, "shape": [365, 180], "chunks": [30, 180], "dtype": "<f4", "order": "C",
///     "compressor": {"id": "zlib", "level": 1}, "filters": null, "fill_value": 0}"#;
/// hierarchy.put_document(&key, MetadataFile::Array, document)?;
///
/// let Some(StoredNode::Array(array)) = hierarchy.find(&key)? else { panic!("no array") };
/// assert_eq!(array.metadata().shape, [365, 180]);
/// let view = hierarchy.shown_array(&key)?.unwrap();
/// assert!(String::from_utf8_lossy(&view.text).contains(r#""compressor": null"#));
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
pub struct Hierarchy {
    store: Arc<dyn Store>,
    v1_order: V1Order,
    compressor: Option<CodecConfig>,
    view: ShownFormat,
    fill_meaning: FillMeaning,
    /// Whether the store is a directory of stores.
    holds_stores: bool,
    stats: Arc<Stats>,
    /// Held while documents or nodes at and below a key change, so that nothing else changes them
    /// between the reads and the writes of a change. Protects no data.
    changing: SubtreeLocks,
    /// The keys of these changes: a daemon may be killed after it has stored a document, and before
    /// it has stored the consolidated metadata.
    changing_keys: RecordedNames,
    /// Held while one document is read, changed and written; acquired after `changing`. Changes of
    /// different nodes edit the same `.zmetadata`.
    editing: SubtreeLocks,
    /// Held by the arrays while they replace chunks and objects.
    replacing: Arc<SubtreeLocks>,
    arrays: Arc<Arrays>,
    /// The node that each recently read `zarr.json` defines, with the version of the document. The
    /// lock protects the map alone.
    node_types: Mutex<LruCache<Key, (Version, V3Outline)>>,
    /// What programs have written as consolidated metadata.
    written_consolidated: WrittenConsolidated,
    /// The v3 arrays whose writer last stated chunks without codecs below `c`. Where others are
    /// stored, it does not know them and writes decoded chunks there.
    decoded_below_c: RecordedNames,
    /// The prefixes that show no generated document, with the number of an [`Unmarked`].
    unmarked: RecordedNames,
}

impl Hierarchy {
    /// Returns the hierarchy of `store`.
    pub fn new(store: Arc<dyn Store>, v1_order: V1Order, stats: Arc<Stats>) -> Self {
        let arrays = Arc::new(Arrays::new(ARRAYS_KEPT));
        memory::register(&arrays);
        Hierarchy {
            store,
            v1_order,
            compressor: None,
            view: ShownFormat::default(),
            fill_meaning: FillMeaning::default(),
            holds_stores: false,
            stats,
            changing: SubtreeLocks::default(),
            changing_keys: RecordedNames::unbounded(),
            editing: SubtreeLocks::default(),
            replacing: Arc::default(),
            arrays,
            node_types: Mutex::new(LruCache::new(ARRAYS_KEPT)),
            written_consolidated: WrittenConsolidated::new(),
            decoded_below_c: RecordedNames::unbounded(),
            unmarked: RecordedNames::new(UNMARKED_KEPT),
        }
    }

    /// Records in `journal` what programs that write nodes have said and done, and takes over what
    /// a daemon has left there: it decides which documents and chunks such a program finds. Also
    /// completes the changes that it has begun.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        self.unmarked.outlive(journal, UNMARKED_RECORD, left);
        self.decoded_below_c.outlive(journal, DECODED_RECORD, left);
        self.changing_keys.outlive(journal, CHANGING_RECORD, left);
        self.restore_prefixes();
        for (key, _) in self.changing_keys.at_and_below("") {
            let settled = Key::normalize(&key).and_then(|key| self.settle_change(&key));
            if let Err(e) = settled {
                let why = "its consolidated metadata may be outdated";
                self.stats.problem(format!("{key}: {why}: {e}"));
            }
        }
    }

    /// Returns the hierarchy of a mount: failures of the store become problems, since the programs
    /// that use the mount see but a number. A command says what has failed.
    pub fn reporting(self) -> Self {
        let arrays = Arc::new(Arrays::new(ARRAYS_KEPT));
        memory::register(&arrays);
        Hierarchy {
            store: ReportingStore::over(self.store, self.stats.clone()),
            arrays,
            ..self
        }
    }

    /// Sets the compressor with which new arrays are stored if their document has none.
    pub fn with_compressor(self, compressor: Option<CodecConfig>) -> Self {
        Hierarchy { compressor, ..self }
    }

    /// Sets the format of the documents that nodes of v3 show.
    pub fn with_view(self, view: ShownFormat) -> Self {
        Hierarchy { view, ..self }
    }

    /// Sets what fill values stand for.
    pub fn with_fill_meaning(self, fill_meaning: FillMeaning) -> Self {
        Hierarchy {
            fill_meaning,
            ..self
        }
    }

    /// Returns what the fill value of the array at `key` stands for. Zeros of files to which the
    /// store refers are ordinary values unless the user says otherwise.
    pub fn fill_meaning(&self, key: &Key, metadata: &ArrayMetadata) -> FillMeaning {
        let is_zero = metadata.fill.iter().flatten().all(|byte| *byte == 0);
        match self.fill_meaning {
            FillMeaning::Auto if is_zero && self.store.refers_to_files(key) => FillMeaning::Value,
            meaning => meaning,
        }
    }

    /// Returns the store.
    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// Returns the store, for another thread.
    pub fn shared_store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Returns whether every group and array can be found: the store is an array, or lists its
    /// groups and arrays.
    pub fn lists_nodes(&self) -> bool {
        self.store.lists_nodes() || matches!(self.find_array(&Key::root()), Ok(Some(_)))
    }

    /// Checks that the store holds a Zarr hierarchy.
    ///
    /// # Errors
    ///
    /// Fails if the store holds no hierarchy, or if it cannot be read.
    pub fn check(&self) -> Result<()> {
        let root = Key::root();
        let mut failure = None;
        if self.has_any(
            &root,
            &[ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA, REMOVED],
            &mut failure,
        ) || self.has_any(&root, &[V1_META], &mut failure)
            && self.has_any(&root, &[V1_ATTRS], &mut failure)
        {
            return self.check_root();
        }
        for entry in self.store.list(&root)?.take(PROBED_NAMES) {
            let entry = entry?;
            let below = root.join(&entry.name);
            if entry.kind == EntryKind::Prefix
                && self.has_any(&below, &[ZARR_JSON, ZARRAY, ZGROUP], &mut failure)
            {
                return Ok(());
            }
        }
        // an unreadable document may have been the one that is missing
        Err(failure.unwrap_or_else(|| {
            Error::invalid(
                "not a Zarr store: it has no zarr.json, .zgroup, .zarray, .zmetadata or meta",
            )
        }))
    }

    /// Returns whether a document of one of these names is stored at `key`. `failure` receives an
    /// error of the store.
    fn has_any(&self, key: &Key, names: &[&str], failure: &mut Option<Error>) -> bool {
        names.iter().any(|name| {
            let document = key.join(name);
            match self.store.stat(&document) {
                Ok(stat) => stat.is_some_and(|stat| stat.kind == EntryKind::Value),
                Err(e) => {
                    *failure = Some(e.context(document));
                    false
                }
            }
        })
    }

    /// Checks that the root's document can be read: a store that may be listed and not read must
    /// not look empty.
    fn check_root(&self) -> Result<()> {
        let root = Key::root();
        let document = self
            .array_document(&root)?
            .map_or(root.join(ZGROUP), |found| found.key);
        match self.stored(&document) {
            Err(e) if matches!(e.kind(), Kind::System(_)) => Err(e),
            // a damaged document has been read
            _ => Ok(()),
        }
    }

    /// Returns the node at `key`; `None` if there is definitely nothing.
    pub fn find(&self, key: &Key) -> Result<Option<StoredNode>> {
        self.find_for(key, NodeUse::Chunks)
    }

    /// Returns the node at `key`, for this use.
    fn find_for(&self, key: &Key, used: NodeUse) -> Result<Option<StoredNode>> {
        let _once = self.asked_once();
        let document = match self.array_document(key) {
            Err(e) if self.hides_metadata(key, &e) => {
                return Ok(Some(StoredNode::Damaged(self.stats.met(e))));
            }
            document => document?,
        };
        if let Some(document) = document {
            let parsed = match used {
                NodeUse::Description => self.described_array(key, &document),
                NodeUse::Chunks => self.array(key, &document),
            };
            return parsed.map(|parsed| match parsed {
                Ok(array) => Some(StoredNode::Array(array)),
                Err(e) => Some(StoredNode::Damaged(e)),
            });
        }
        let Some(stat) = self.stat(key)? else {
            return Ok(None);
        };
        Ok(Some(match self.node_kind(key, stat.kind)? {
            EntryKind::Prefix => StoredNode::Group,
            EntryKind::Value => StoredNode::Value,
            EntryKind::Other => StoredNode::Other,
        }))
    }

    /// Returns the kind of the node at `key`, where the store has an entry of `kind`. Servers and
    /// archives may have a prefix and a value of one name. **Then the prefix counts**, since arrays
    /// may lie below it.
    pub fn node_kind(&self, key: &Key, kind: EntryKind) -> Result<EntryKind> {
        if kind != EntryKind::Value || !self.store.lists_all() {
            return Ok(kind);
        }
        match self.store.list(key) {
            Ok(mut names) => Ok(if names.next().transpose()?.is_some() {
                EntryKind::Prefix
            } else {
                kind
            }),
            Err(e) if ![libc::ENOENT, libc::ENOTDIR].contains(&e.errno()) => Err(e.context(key)),
            _ => Ok(kind),
        }
    }

    /// Returns the array at `key`; `None` if something else or nothing stands there.
    ///
    /// # Errors
    ///
    /// The reason why the array cannot be used.
    pub fn usable_array(&self, key: &Key) -> Result<Option<Arc<Array>>> {
        match self.find(key)? {
            Some(node) => node.usable(),
            None => Ok(None),
        }
    }

    /// Returns whether there is an array at `key`, usable or not.
    pub fn is_array(&self, key: &Key) -> Result<bool> {
        Ok(self.find(key)?.is_some_and(|node| node.is_array()))
    }

    /// Returns whether there is a group at `key`.
    pub fn is_group(&self, key: &Key) -> Result<bool> {
        Ok(self.find(key)?.is_some_and(|node| node.is_group()))
    }

    /// Returns the array at `key`, if there is one with usable metadata. Looks up nothing else at
    /// `key`.
    pub fn find_array(&self, key: &Key) -> Result<Option<Arc<Array>>> {
        let Some(document) = self.array_document(key)? else {
            return Ok(None);
        };
        Ok(self.array(key, &document)?.ok())
    }

    /// Returns whether `e` is about the metadata document of a readable directory, such as a link
    /// out of the store.
    fn hides_metadata(&self, key: &Key, e: &Error) -> bool {
        [libc::EACCES, libc::ELOOP].contains(&e.errno())
            && matches!(self.store.stat(key), Ok(Some(stat)) if stat.kind == EntryKind::Prefix)
    }

    /// Finds the document that defines the array at `key`; `None` if there is no array.
    fn array_document(&self, key: &Key) -> Result<Option<ArrayDocument>> {
        let moves = self.arrays.moves();
        if let Some(document) = self.v3_document(key)? {
            let is_array = document.outline.node_type == NodeType::Array;
            return Ok(is_array.then_some(ArrayDocument {
                key: document.key,
                stat: document.stat,
                form: DocumentKind::V3,
                read: document.read,
                moves,
            }));
        }
        let found = self.old_document_of_array(key)?;
        Ok(found.map(|(form, document, stat)| ArrayDocument {
            key: document,
            stat,
            form,
            read: None,
            moves,
        }))
    }

    /// Returns whether a key has the document of a group of v2, or may have it.
    fn may_be_old_group(&self, key: &Key) -> bool {
        !matches!(self.stat(&key.join(ZGROUP)), Ok(None))
    }

    /// Finds the document of v1 or v2 that defines an array.
    fn old_document_of_array(&self, key: &Key) -> Result<Option<(DocumentKind, Key, Stat)>> {
        let zarray = key.join(ZARRAY);
        if let Some(stat) = self.stat(&zarray)? {
            return Ok(Some((DocumentKind::V2, zarray, stat)));
        }
        // a v1 store has one array, at its root
        let is_root = self.is_store_root(key);
        if is_root && self.may_be_old_group(key) {
            return Ok(None);
        }
        let document = key.join(REMOVED);
        let removed = self.stat(&document)?;
        if !is_root && (removed.is_none() || self.may_be_old_group(key)) {
            return Ok(None);
        }
        if let Some(stat) = removed {
            return Ok(Some((DocumentKind::Removed, document, stat)));
        }
        // writers of v1 always create both documents
        let meta = key.join(V1_META);
        let stat = self.stat(&meta)?;
        let has_both = self.stat(&key.join(V1_ATTRS))?.is_some();
        Ok(stat
            .filter(|_| has_both)
            .map(|stat| (DocumentKind::V1, meta, stat)))
    }

    /// Returns the parsed array, from memory if its document is unchanged.
    fn array(&self, key: &Key, document: &ArrayDocument) -> Result<Parsed> {
        let parsed = self.described_array(key, document)?;
        Ok(parsed.and_then(|array| {
            let detected = array.detect_separator();
            // a name in a damaged array does not have its error
            detected.map_err(|e| self.stats.met(e.context(key)))?;
            Ok(array)
        }))
    }

    /// Returns the parsed array, whose separator may be unknown.
    fn described_array(
        &self,
        key: &Key,
        ArrayDocument {
            key: document,
            stat,
            form,
            read,
            moves,
        }: &ArrayDocument,
    ) -> Result<Parsed> {
        if let Some(parsed) = self.arrays.get(key, &stat.version) {
            return Ok(parsed);
        }
        // a longer document is a group, or refused
        let read = read
            .as_ref()
            .filter(|read| read.text.len() as u64 <= MAX_DOCUMENT);
        let stored = match read {
            Some(_) => Ok(None),
            None => self.stored(document),
        };
        let (version, parsed) = match (read, &stored) {
            (Some(found), _) | (None, Ok(Some(found))) => {
                let version = &found.stat.version;
                let parsed = self.parse(key, &found.text, *form, version);
                (version.clone(), parsed.context(document))
            }
            (None, Ok(None)) => {
                return Err(Error::not_found("went away while it was read").context(document));
            }
            (None, Err(e)) => (stat.version.clone(), Err(e.clone())),
        };
        let parsed = parsed.map_err(|e| self.stats.met(e));
        if let Ok(array) = &parsed
            && let Err(e) = array.readable()
        {
            self.stats.problem(e.to_string());
        }
        match parsed {
            // a transient failure says nothing about the metadata
            Err(e) if matches!(e.kind(), Kind::System(_)) => Ok(Err(e)),
            parsed => Ok(self.arrays.insert(key, version, parsed, *moves)),
        }
    }

    fn parse(&self, key: &Key, text: &[u8], form: DocumentKind, version: &Version) -> Parsed {
        let metadata = self
            .arrays
            .metadata(text, form, || self.metadata(text, form))?;
        let array = Array::without_chunks(
            key.clone(),
            metadata,
            self.store.clone(),
            self.stats.clone(),
        )?;
        let array = array.with_locks(self.replacing.clone());
        Ok(Arc::new(array.with_source(self.source(
            key,
            form,
            version.clone(),
        ))))
    }

    /// Returns the source of the array at `key`. The keys under which its document may be stored
    /// include, except for v1, that of a removed document.
    fn source(&self, key: &Key, form: DocumentKind, version: Version) -> Source {
        let v1_order = self.v1_order;
        let names: &[&str] = match form {
            DocumentKind::V1 => &[V1_META],
            DocumentKind::V3 => &[ZARR_JSON, REMOVED],
            DocumentKind::V2 | DocumentKind::Removed => &[ZARRAY, REMOVED, ZARR_JSON],
        };
        Source::new(
            names.iter().map(|name| key.join(name)).collect(),
            match form {
                DocumentKind::V1 => {
                    Box::new(move |text: &[u8]| ArrayMetadata::parse_v1(text, v1_order))
                }
                _ => Box::new(parse_any),
            },
            version,
        )
    }

    fn metadata(&self, text: &[u8], form: DocumentKind) -> Result<ArrayMetadata> {
        match form {
            DocumentKind::V1 => ArrayMetadata::parse_v1(text, self.v1_order),
            DocumentKind::V3 => ArrayMetadata::parse_v3(text),
            DocumentKind::V2 => ArrayMetadata::parse(text),
            DocumentKind::Removed => parse_any(text),
        }
    }

    /// Forgets the arrays at and below `key`, which no longer exist.
    fn forget_below(&self, key: &Key) {
        self.arrays.forget_below(key);
    }

    /// Makes the store revalidate the documents of the group or array at `key`.
    pub fn forget_documents(&self, key: &Key) {
        for name in DOCUMENTS {
            self.store.forget(&key.join(name));
        }
    }

    /// Returns the array that the last lookup of `key` found, without a request to the store.
    pub fn cached_array(&self, key: &Key) -> Option<Arc<Array>> {
        self.arrays.last(key)
    }

    /// Streams the names in a group, without metadata documents, unfinished values, refused links,
    /// and values that hide a prefix, which is shown instead.
    pub fn list(&self, key: &Key) -> Result<Listing> {
        let listing = self.store.list(key).context(key)?;
        let store = self.store.clone();
        let stats = self.stats.clone();
        let group = key.clone();
        Ok(Box::new(listing.filter_map(move |entry| {
            let entry = match entry {
                Ok(entry) if is_own(&entry.name) => return None,
                Ok(entry) => entry,
                Err(e) => return Some(Err(e)),
            };
            if entry.hides_prefix {
                let value = group.join(&entry.name);
                stats.problem(format!(
                    "{value}: a value with the name of a directory: the directory is shown instead"
                ));
                return Some(Ok(Entry::new(entry.name, EntryKind::Prefix)));
            }
            if entry.kind == EntryKind::Other {
                let stat = store.stat(&group.join(&entry.name)).ok().flatten()?;
                return (stat.kind == EntryKind::Other).then_some(Ok(entry));
            }
            Some(Ok(entry))
        })))
    }
}

/// Returns whether a name in a group or array is that of a document or of a file of zarrfs. Such
/// names are not shown as plain keys.
fn is_own(name: &str) -> bool {
    MetadataFile::of_name(name).is_some() || name.starts_with(OWN)
}

/// Parses the document of a v2 or v3 array. The copy of a removed document may be of either format.
fn parse_any(text: &[u8]) -> Result<ArrayMetadata> {
    match node::member(text, "zarr_format")? {
        Some("2") => ArrayMetadata::parse(text),
        _ => ArrayMetadata::parse_v3(text),
    }
}

/// Returns whether the key belongs to another program: a name in it begins with a dot.
fn is_foreign(key: &Key) -> bool {
    key.as_str().split('/').any(|name| name.starts_with('.'))
}

#[cfg(test)]
mod tests;
