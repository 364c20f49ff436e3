//! The groups and arrays of a store: what stands at a path, its metadata documents as the decoded view shows them, and
//! the walk over everything below a group; and how all of it is changed, in files of their own. Metadata is read when it
//! is asked for, and again when it has changed. It knows neither open files nor decoded chunks: whoever changes an array
//! has written back what is not in the store yet.

use crate::array::{Array, Source};
use crate::error::{Error, Kind, Result};
use crate::stats::Stats;
use crate::store::{Counted, EntryKind, Key, Listing, Stat, Store, SubtreeLocks, Version, get_counted};
use crate::util::json::{self, Object};
use crate::util::memory::{self, Grant};
use crate::zarr::metadata::{
    ArrayMetadata, CodecConfig, GROUP_DOCUMENT, MAX_DOCUMENT, V1_ATTRS, V1_META, V1Order, ZARRAY, ZATTRS, ZGROUP,
    ZMETADATA,
};
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;

mod array_document;
mod arrays;
mod consolidated;
mod document;
mod migrate;
mod namespace;
mod resize;
mod consolidated_store;

pub use consolidated::Stale;
pub use consolidated_store::{ConsolidatedStore, UseConsolidated};

use arrays::Arrays;

/// Arrays whose parsed metadata is kept.
const ARRAYS_KEPT: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Names looked at to tell a store without `.zgroup` from a directory that is none.
const PROBED_NAMES: usize = 1000;

/// What begins with this are files of ours that are no part of the hierarchy: unfinished values, and [`REMOVED`].
pub const OWN: &str = ".zarrfs-";

/// Where an array's document is kept once its `.zarray` was removed, until its directory is removed or a new `.zarray`
/// is written. Programs remove the files of a directory in any order, and its chunks must keep their names until they
/// are gone; and who saves a document by removing the old one first doesn't lose the codecs, which he has never seen.
pub const REMOVED: &str = ".zarrfs-zarray";

/// The metadata document of Zarr v3.
pub const V3_DOCUMENT: &str = "zarr.json";

/// What is told of a directory that such a document alone marks. It is shown as the plain files it has: it is no group of
/// the hierarchy, and no `.zgroup` is made up for it.
pub const V3_PROBLEM: &str = "a group or array of Zarr v3: this version reads v1 and v2";

/// What stands at a path of the hierarchy.
#[derive(Clone)]
pub enum StoredNode {
    /// An array whose metadata can be honoured; its codecs may still be unknown.
    Array(Arc<Array>),
    /// Array metadata that can't be honoured, and why.
    Damaged(Error),
    /// A group, also one without `.zgroup`.
    Group,
    /// A key that is neither metadata nor chunk.
    Value(Stat),
    /// Something unreadable: a FIFO, a socket, a device.
    Other,
}

/// A metadata document of the decoded view, and what the store knows of the key it comes from.
pub struct MetadataDocument {
    /// The document's bytes.
    pub text: Vec<u8>,
    /// Of the stored document, or of the prefix where there is none.
    pub stat: Stat,
    /// Counts the text.
    pub memory: Grant,
}

impl MetadataDocument {
    /// A document that was made, with its memory counted.
    fn made(text: Vec<u8>, stat: Stat) -> Result<Self> {
        let memory = memory::take(text.capacity())?;
        Ok(MetadataDocument { text, stat, memory })
    }
}

/// The metadata documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataFile {
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
    const ALL: [MetadataFile; 4] =
        [MetadataFile::Array, MetadataFile::Group, MetadataFile::Attributes, MetadataFile::Consolidated];

    /// The document of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.name() == name)
    }

    /// The name in a group or array.
    pub fn name(self) -> &'static str {
        match self {
            MetadataFile::Array => ZARRAY,
            MetadataFile::Group => ZGROUP,
            MetadataFile::Attributes => ZATTRS,
            MetadataFile::Consolidated => ZMETADATA,
        }
    }
}

type Parsed = std::result::Result<Arc<Array>, Error>;

/// Where an array's metadata is stored.
struct ArrayDocument {
    key: Key,
    stat: Stat,
    form: DocumentKind,
    /// [`Arrays::moves`] before it was looked for.
    moves: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DocumentKind {
    /// `.zarray`
    V2,
    /// `meta` of a v1 store.
    V1,
    /// [`REMOVED`]
    Removed,
}

/// The hierarchy of a store.
pub struct Hierarchy {
    store: Arc<dyn Store>,
    v1_order: V1Order,
    compressor: Option<CodecConfig>,
    stats: Arc<Stats>,
    /// Held while documents or places at and below a key are changed: what one change reads must not be changed by
    /// another before it writes. It protects nothing else.
    changing: SubtreeLocks,
    /// Held while one document is read, changed and written, after `changing`: changes of different places edit the same
    /// `.zmetadata`.
    editing: SubtreeLocks,
    arrays: Arc<Arrays>,
}

impl Hierarchy {
    /// The hierarchy of `store`.
    pub fn new(store: Arc<dyn Store>, v1_order: V1Order, stats: Arc<Stats>) -> Self {
        let arrays = Arc::new(Arrays::new(ARRAYS_KEPT));
        memory::register(&arrays);
        let (changing, editing) = (SubtreeLocks::default(), SubtreeLocks::default());
        Hierarchy { store, v1_order, compressor: None, stats, changing, editing, arrays }
    }

    /// The same, but new arrays that are written without a compressor are stored with this one.
    pub fn with_compressor(self, compressor: Option<CodecConfig>) -> Self {
        Hierarchy { compressor, ..self }
    }

    /// The store below.
    pub fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// An error, saying what is there instead, unless the store holds a Zarr v1 or v2 hierarchy.
    pub fn check(&self) -> Result<()> {
        let (root, failure) = (Key::root(), Cell::new(None));
        let is_value = |key: &Key| match self.store.stat(key) {
            Ok(stat) => stat.is_some_and(|stat| stat.kind == EntryKind::Value),
            Err(e) => {
                failure.set(Some(e.context(key)));
                false
            }
        };
        let any = |names: &[&str]| names.iter().any(|name| is_value(&root.join(name)));
        if any(&[ZARRAY, ZGROUP, ZMETADATA, REMOVED]) || (any(&[V1_META]) && any(&[V1_ATTRS])) {
            return Ok(());
        }
        if any(&[V3_DOCUMENT]) {
            return Err(Error::unsupported("a Zarr v3 store: this version reads v1 and v2"));
        }
        for entry in self.store.list(&root)?.take(PROBED_NAMES) {
            let entry = entry?;
            let below = root.join(&entry.name);
            if entry.kind == EntryKind::Prefix && (is_value(&below.join(ZARRAY)) || is_value(&below.join(ZGROUP))) {
                return Ok(());
            }
        }
        // what could not be looked at may have been it
        match failure.take() {
            Some(e) => Err(e),
            None => Err(Error::invalid("not a Zarr store: it has no .zgroup, .zarray, .zmetadata or meta")),
        }
    }

    /// What stands at `key`; None if there is definitely nothing.
    pub fn find(&self, key: &Key) -> Result<Option<StoredNode>> {
        let document = match self.array_document(key) {
            Err(e) if self.hides_metadata(key, &e) => {
                self.stats.problem(e.to_string());
                return Ok(Some(StoredNode::Damaged(e)));
            }
            document => document?,
        };
        if let Some(document) = document {
            return self.array(key, &document).map(|parsed| match parsed {
                Ok(array) => Some(StoredNode::Array(array)),
                Err(e) => Some(StoredNode::Damaged(e)),
            });
        }
        Ok(self.store.stat(key).map_err(|e| e.context(key))?.map(|stat| match stat.kind {
            EntryKind::Prefix => StoredNode::Group,
            EntryKind::Value => StoredNode::Value(stat),
            EntryKind::Other => StoredNode::Other,
        }))
    }

    /// True if `e` came of the metadata document of a directory that itself can be looked at: a link out of the store.
    fn hides_metadata(&self, key: &Key, e: &Error) -> bool {
        [libc::EACCES, libc::ELOOP].contains(&e.errno())
            && matches!(self.store.stat(key), Ok(Some(stat)) if stat.kind == EntryKind::Prefix)
    }

    /// Where the metadata of the array at `key` is stored; None if `key` holds no array.
    fn array_document(&self, key: &Key) -> Result<Option<ArrayDocument>> {
        let stat = |name: &str| {
            let key = key.join(name);
            let stat = self.store.stat(&key).map_err(|e| e.context(&key))?;
            Ok::<_, Error>(stat.map(|stat| (key, stat)))
        };
        let moves = self.arrays.moves();
        let found = |form| move |(key, stat)| ArrayDocument { key, stat, form, moves };
        if let Some(document) = stat(ZARRAY)? {
            return Ok(Some(found(DocumentKind::V2)(document)));
        }
        let removed = stat(REMOVED)?;
        // v1 has but one array, at the root
        if removed.is_none() && !key.is_root() || !matches!(self.store.stat(&key.join(ZGROUP)), Ok(None)) {
            return Ok(None);
        }
        if removed.is_some() {
            return Ok(removed.map(found(DocumentKind::Removed)));
        }
        // its writers always made both documents
        let (meta, attrs) = (stat(V1_META)?, stat(V1_ATTRS)?);
        Ok(meta.filter(|_| attrs.is_some()).map(found(DocumentKind::V1)))
    }

    /// The parsed array, from memory if its metadata is still the same.
    fn array(&self, key: &Key, ArrayDocument { key: document, stat, form, moves }: &ArrayDocument) -> Result<Parsed> {
        if let Some(parsed) = self.arrays.get(key, &stat.version) {
            return Ok(parsed.and_then(|array| {
                array.detect_separator().map_err(|e| e.context(key))?;
                Ok(array)
            }));
        }
        let (version, parsed) = match self.stored(document) {
            Ok(None) => return Err(Error::not_found("went away while it was read").context(document)),
            Ok(Some(MetadataDocument { text, stat, .. })) => {
                let parsed = self.parse(key, &text, *form, &stat.version);
                (stat.version, parsed.map_err(|e| e.context(document)))
            }
            Err(e) => (stat.version.clone(), Err(e)),
        };
        if let Err(e) = &parsed {
            self.stats.problem(e.to_string());
        } else if let Ok(array) = &parsed
            && let Err(e) = array.readable()
        {
            self.stats.problem(e.to_string());
        }
        match parsed {
            // may pass, and says nothing of the metadata
            Err(e) if matches!(e.kind(), Kind::System(_)) => Ok(Err(e)),
            parsed => Ok(self.arrays.insert(key, version, parsed, *moves)),
        }
    }

    fn parse(&self, key: &Key, text: &[u8], form: DocumentKind, version: &Version) -> Parsed {
        let metadata = self.metadata(text, form)?;
        let array = Array::new(key.clone(), metadata, self.store.clone(), self.stats.clone())?;
        Ok(Arc::new(array.with_source(self.source(key, form, version.clone()))))
    }

    /// Where the document of an array at `key` is stored; that of v2 also while its removal is not complete.
    fn source(&self, key: &Key, form: DocumentKind, version: Version) -> Source {
        let v1_order = self.v1_order;
        match form {
            DocumentKind::V1 => {
                let parse = move |text: &[u8]| ArrayMetadata::parse_v1(text, v1_order);
                Source::new(vec![key.join(V1_META)], Box::new(parse), version)
            }
            DocumentKind::V2 | DocumentKind::Removed => {
                Source::new(vec![key.join(ZARRAY), key.join(REMOVED)], Box::new(ArrayMetadata::parse), version)
            }
        }
    }

    fn metadata(&self, text: &[u8], form: DocumentKind) -> Result<ArrayMetadata> {
        match form {
            DocumentKind::V1 => ArrayMetadata::parse_v1(text, self.v1_order),
            DocumentKind::V2 | DocumentKind::Removed => ArrayMetadata::parse(text),
        }
    }

    /// Drops what is known of the arrays at and below `key`, which are there no longer.
    fn forget_below(&self, key: &Key) {
        self.arrays.forget_below(key);
    }

    /// Has the store asked anew for the documents of the group or array at `key`.
    pub fn forget_documents(&self, key: &Key) {
        for name in [ZARRAY, ZGROUP, ZATTRS, ZMETADATA, REMOVED, V1_META, V1_ATTRS] {
            self.store.forget(&key.join(name));
        }
    }

    /// The array that stood at `key` when it was last asked for, without asking the store.
    pub fn cached_array(&self, key: &Key) -> Option<Arc<Array>> {
        self.arrays.last(key)
    }

    /// The `.zarray` of the decoded view; of a damaged array, the document as it is stored.
    pub fn array_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let found = self.array_document(key)?.filter(|found| found.form != DocumentKind::Removed);
        let Some(found) = found else { return Ok(None) };
        let text = match self.array(key, &found)? {
            Ok(array) => array.metadata().decoded_view().into_bytes(),
            Err(_) => return self.stored(&found.key),
        };
        MetadataDocument::made(text, found.stat).map(Some)
    }

    /// The `.zattrs` of a group or array, as stored.
    pub fn attributes_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        self.stored(&self.attributes_key(key))
    }

    /// What the store knows of the `.zattrs` of a group or array; None if there is none, an error if it can't be read.
    pub fn attributes_stat(&self, key: &Key) -> Result<Option<Stat>> {
        let document = self.attributes_key(key);
        let stat = self.store.stat(&document).map_err(|e| e.context(&document))?;
        match stat {
            Some(stat) if stat.kind != EntryKind::Value => {
                Err(Error::damaged("is not a regular file").context(document))
            }
            Some(stat) if stat.size > MAX_DOCUMENT => {
                let why = format!("{} bytes, more than the {MAX_DOCUMENT} it may have", stat.size);
                Err(Error::damaged(why).context(document))
            }
            stat => Ok(stat),
        }
    }

    /// Returns the key of the document that defines the array at `key`: `.zarray` unless another one is found.
    pub fn array_document_key(&self, key: &Key) -> Key {
        let found = self.array_document(key).ok().flatten();
        found.map_or_else(|| key.join(ZARRAY), |found| found.key)
    }

    /// The key of the document that holds the attributes of the group or array at `key`.
    pub fn attributes_key(&self, key: &Key) -> Key {
        let v1 = matches!(self.array_document(key), Ok(Some(found)) if found.form == DocumentKind::V1);
        key.join(if v1 { V1_ATTRS } else { ZATTRS })
    }

    /// Whether `key` is a group or array of Zarr v3 alone; false where that can't be told.
    pub fn is_v3(&self, key: &Key) -> bool {
        let is_value =
            |name: &str| matches!(self.store.stat(&key.join(name)), Ok(Some(stat)) if stat.kind == EntryKind::Value);
        !is_value(ZGROUP) && !is_value(ZARRAY) && is_value(V3_DOCUMENT)
    }

    /// The `.zgroup` of a group: as stored, or made for a group that has none. Directories whose names begin with a dot
    /// are other programs' and get none, nor do those below; nor do those of Zarr v3, which are recorded as a problem.
    pub fn group_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        if let Some(document) = self.stored(&key.join(ZGROUP))? {
            return Ok(Some(document));
        }
        let stat = self.store.stat(key).map_err(|e| e.context(key))?;
        let stat = stat.filter(|_| !is_foreign(key));
        if stat.is_some() && self.is_v3(key) {
            self.stats.problem(format!("{}: {V3_PROBLEM}", key.join(V3_DOCUMENT)));
            return Ok(None);
        }
        stat.map(|stat| MetadataDocument::made(GROUP_DOCUMENT.into(), stat)).transpose()
    }

    /// The attributes of a group or array; none where there is no document, or one that is no JSON object or that can't be
    /// reached. An error where the store fails to give it.
    pub fn attributes(&self, key: &Key) -> Result<Object> {
        let parse = |d: MetadataDocument| json::parse_object(&d.text).map_err(|e| e.context(key.join(ZATTRS)));
        match self.attributes_view(key).and_then(|d| d.map(parse).transpose()) {
            Ok(attributes) => Ok(attributes.unwrap_or_default()),
            // may pass; what was told without them would be wrong meanwhile
            Err(e) if [libc::EIO, libc::ENOMEM].map(Kind::System).contains(&e.kind()) => Err(e),
            Err(e) => {
                self.stats.problem(e.to_string());
                Ok(Object::default())
            }
        }
    }

    /// The document at `key` as it is stored; None if there is none.
    pub fn stored(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        self.stored_within(key, MAX_DOCUMENT)
    }

    fn stored_within(&self, key: &Key, limit: u64) -> Result<Option<MetadataDocument>> {
        let read = get_counted(self.store(), key, limit).map_err(|e| e.context(key))?;
        Ok(read.map(|Counted { bytes, stat, memory }| MetadataDocument { text: bytes, stat, memory }))
    }

    /// The names below a group, streamed; metadata documents, unfinished values and links that are refused left out.
    pub fn list(&self, key: &Key) -> Result<Listing> {
        let listing = self.store.list(key).map_err(|e| e.context(key))?;
        let listing = listing.filter(move |e| !e.as_ref().is_ok_and(|e| is_own(&e.name)));
        let (store, key) = (self.store.clone(), key.clone());
        let is_other =
            move |name: &str| store.stat(&key.join(name)).is_ok_and(|s| s.is_some_and(|s| s.kind == EntryKind::Other));
        Ok(Box::new(
            listing.filter(move |e| !e.as_ref().is_ok_and(|e| e.kind == EntryKind::Other && !is_other(&e.name))),
        ))
    }

    /// Calls `visit` for `key` and every group and array below it, in the order of their names. What can't be looked at
    /// is visited as damaged, its neighbours as ever. Other keys are not visited; what lies below an array is no part
    /// of the hierarchy.
    pub fn visit_below(&self, key: &Key, visit: &mut dyn FnMut(&Key, &StoredNode)) {
        let mut levels = vec![Prefixes { keys: vec![key.clone()], memory: Grant::default() }];
        while let Some(level) = levels.last_mut() {
            let Some(key) = level.keys.pop() else {
                levels.pop();
                continue;
            };
            let found = self.find(&key).and_then(|place| match place {
                Some(StoredNode::Group) if !key.is_root() && self.is_v3(&key) => {
                    Err(Error::unsupported(V3_PROBLEM).context(key.join(V3_DOCUMENT)))
                }
                Some(StoredNode::Group) => Ok(Some((StoredNode::Group, self.prefixes(&key)?))),
                place => Ok(place.map(|place| (place, Prefixes::default()))),
            });
            match found {
                Ok(None) => {}
                Ok(Some((place, below))) => {
                    visit(&key, &place);
                    levels.push(below);
                }
                Err(e) => {
                    self.stats.problem(e.to_string());
                    visit(&key, &StoredNode::Damaged(e));
                }
            }
        }
    }

    /// The prefixes one level below a group.
    pub fn prefixes(&self, key: &Key) -> Result<Prefixes> {
        let mut below = Prefixes::default();
        for entry in self.list(key)? {
            let entry = entry.map_err(|e| e.context(key))?;
            if entry.kind == EntryKind::Prefix {
                let prefix = key.child(&entry.name)?;
                let memory = 2 * size_of::<Key>() + prefix.as_str().len() + ALLOCATION;
                below.memory.grow(memory).map_err(|e| e.context(format!("{key}: the names in it")))?;
                below.keys.push(prefix);
            }
        }
        below.keys.sort_unstable_by(|a, b| b.cmp(a));
        Ok(below)
    }
}

/// Bytes that the allocator takes for itself with each allocation.
const ALLOCATION: usize = 16;

/// The prefixes one level below a group, last name first, with their memory counted.
#[derive(Default)]
pub struct Prefixes {
    /// The prefixes.
    pub keys: Vec<Key>,
    memory: Grant,
}

/// True for names in a group or array that are not shown as files of the store.
fn is_own(name: &str) -> bool {
    [ZARRAY, ZGROUP, ZATTRS, ZMETADATA].contains(&name) || name.starts_with(OWN)
}

/// True for what lies at or below a name that begins with a dot.
fn is_foreign(key: &Key) -> bool {
    key.as_str().split('/').any(|name| name.starts_with('.'))
}

#[cfg(test)]
mod tests;
