//! One array of a store: its metadata, its grid, its codecs, and loading and storing its chunks.
//! Decoded chunks have C layout, whatever the array's order. Nothing above this module knows under
//! which key, or in which part of a value, a chunk is stored.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory;
use zarrfs_base::stats::Stats;
use zarrfs_format::codec::{BEGINNING, foreign_content};
use zarrfs_format::grid::{ChunkId, Grid};
use zarrfs_format::metadata::{ArrayMetadata, Separator, V1_META, ZARR_JSON, ZARRAY};
use zarrfs_format::pipeline::Pipeline;
use zarrfs_format::shard::Shards;
use zarrfs_store::{ExclusiveLock, Hint, Key, Store, StoreExt, SubtreeLocks};

mod chunks;
mod confirm;
mod encoded_value;
mod stored_keys;
mod freshness;
pub mod hierarchy;
mod load;
mod losses;
mod part;
mod pipelines;
mod ranges;
mod sharded;
mod write;

use chunks::{Chunks, PlainChunks};
pub use chunks::{Due, EncodedChunk, WriteBack};
pub use confirm::Source;
pub use freshness::{Freshness, Opening, ServedVersions, VersionTag, are_stored};
pub use load::{Fetched, Loaded, Scratch};
pub use losses::Losses;
pub use part::{BlockIndex, OpenedChunk};
use pipelines::Pipelines;
pub use ranges::Ranges;
use sharded::ShardedChunks;
pub use sharded::{NeighborBytes, Neighbors, RecordedChunk, ShardUsage};
pub use stored_keys::{ArrayEntry, Entries, LevelPermissions, is_chunk_like};
pub use write::MAX_ATTEMPTS;

/// Maximum decoded bytes of the remote chunks requested concurrently. They fill a link of several
/// GB/s for one round trip and leave most of the cache to chunks that have arrived.
const MAX_IN_FLIGHT: usize = 64 << 20;

/// The number of the next array. Numbers are never reused.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// One array.
///
/// ```
/// use std::sync::Arc;
/// use zarrfs::array::{Array, Scratch};
/// use zarrfs_base::stats::Stats;
/// use zarrfs_store::{Key, MemoryStore};
/// use zarrfs_format::grid::ChunkId;
/// use zarrfs_format::metadata::ArrayMetadata;
///
/// let (store, stats) = (MemoryStore::default(), Arc::<Stats>::default());
/// store.insert("a/1.0", [5, 6]);
/// let metadata = ArrayMetadata::parse(br#"{"zarr_format": 2, "shape": [2, 2], "chunks": [1, 2], "dtype": "|u1",
///     "compressor": null, "filters": null, "fill_value": 9, "order": "C"}"#)?;
/// let array = Array::new(Key::normalize("a")?, metadata, Arc::new(store), stats)?;
///
/// assert_eq!(array.size(), 4);
/// assert_eq!(array.stored_key(ChunkId(1)).as_str(), "a/1.0");
/// // chunk 0 is uninitialized: it has no bytes, and reads as the fill value
/// assert!(array.load(ChunkId(0), Vec::new(), &mut Scratch::default())?.is_none());
/// let loaded = array.load(ChunkId(1), Vec::new(), &mut Scratch::default())?.unwrap();
/// assert_eq!(loaded.bytes, [5, 6]);
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
pub struct Array {
    key: Key,
    metadata: Arc<ArrayMetadata>,
    grid: Grid,
    pipelines: Pipelines,
    chunks: Arc<dyn Chunks>,
    /// The locks of [`Array::lock_replacing`].
    replacing: Arc<SubtreeLocks>,
    /// The separator of chunk keys; unset while neither the metadata nor a stored chunk declares
    /// it.
    separator: OnceLock<Separator>,
    /// Whether chunks can be encoded, once that was tried.
    encodable: OnceLock<Result<()>>,
    /// Stored size in bytes of the chunk that was requested last; 0 before the first.
    stored_size: AtomicU64,
    /// Whether the store states no version of its values, so that a chunk has to be read by one
    /// request.
    lacks_versions: AtomicBool,
    store: Arc<dyn Store>,
    /// `None` for an array that is not stored yet.
    source: Option<Source>,
    stats: Arc<Stats>,
    id: u64,
    freshness: Freshness,
}

impl Array {
    /// Returns the array at `key`. If a codec cannot be set up, [`Array::readable`] reports it.
    ///
    /// # Errors
    ///
    /// Fails if the grid is invalid, or if the store cannot be asked for an undeclared separator.
    pub fn new(
        key: Key,
        metadata: ArrayMetadata,
        store: Arc<dyn Store>,
        stats: Arc<Stats>,
    ) -> Result<Self> {
        let array = Self::without_chunks(key, metadata, store, stats)?;
        array.detect_separator()?;
        Ok(array)
    }

    /// Returns the array at `key` for a caller that only describes it. Its chunks must not be used,
    /// since their separator may be unknown.
    ///
    /// # Errors
    ///
    /// Fails if the grid is invalid.
    pub fn without_chunks(
        key: Key,
        metadata: impl Into<Arc<ArrayMetadata>>,
        store: Arc<dyn Store>,
        stats: Arc<Stats>,
    ) -> Result<Self> {
        let metadata = metadata.into();
        let grid = metadata.grid(&metadata.shape)?;
        let chunks: Arc<dyn Chunks> = match Shards::new(&metadata)? {
            Some(shards) => ShardedChunks::new(shards),
            None => Arc::new(PlainChunks),
        };
        let pipelines = Pipelines::new(&metadata, grid.max_chunk_size());
        let declared = metadata
            .separator
            .or((grid.dimensions() < 2).then_some(Separator::Dot));
        Ok(Array {
            separator: declared.map(OnceLock::from).unwrap_or_default(),
            encodable: OnceLock::new(),
            stored_size: AtomicU64::new(0),
            lacks_versions: AtomicBool::new(false),
            key,
            metadata,
            grid,
            pipelines,
            chunks,
            replacing: Arc::default(),
            store,
            source: None,
            stats,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            freshness: Freshness::default(),
        })
    }

    /// Shares the locks of values that are being replaced with the other arrays of a hierarchy.
    pub fn with_locks(self, replacing: Arc<SubtreeLocks>) -> Self {
        Array { replacing, ..self }
    }

    /// Locks a chunk or an object by its key until it is replaced. A directory store compares the
    /// version of a value first and renames the new value over it afterwards. Without the lock, one
    /// of two threads that replace a value at the same time would lose its change. After a change
    /// of metadata, two `Array`s may stand for one array. They share these locks.
    pub fn lock_replacing(&self, key: &Key) -> ExclusiveLock<'_> {
        self.replacing.exclusive(&[key])
    }

    /// Returns the key of the array in its store.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the validated metadata.
    pub fn metadata(&self) -> &ArrayMetadata {
        &self.metadata
    }

    /// Returns the metadata for a caller that outlives the array.
    pub fn shared_metadata(&self) -> Arc<ArrayMetadata> {
        self.metadata.clone()
    }

    /// Returns the chunk grid.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Returns the size of the flat array in bytes.
    pub fn size(&self) -> u64 {
        self.grid.size()
    }

    /// Returns a number that no other array of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the generations of the array.
    pub fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// Returns whether chunks were written and are not yet stored.
    pub fn is_dirty(&self) -> bool {
        self.freshness.is_dirty() || self.has_pending()
    }

    /// Returns whether the array has to be looked up again before it is used.
    pub fn is_superseded(&self) -> bool {
        self.freshness.is_superseded()
    }

    /// Returns the name of the key that holds the metadata document.
    pub fn metadata_name(&self) -> &'static str {
        match self.metadata.zarr_format {
            1 => V1_META,
            2 => ZARRAY,
            _ => ZARR_JSON,
        }
    }

    /// Returns whether uninitialized chunks read as zero bytes.
    pub fn fill_is_zero(&self) -> bool {
        self.metadata.fill.as_ref().is_none_or(Vec::is_empty)
    }

    /// Checks that chunks can be decoded.
    ///
    /// # Errors
    ///
    /// Fails if a codec is unknown or has invalid parameters.
    pub fn readable(&self) -> Result<()> {
        self.pipeline().map(|_| ())
    }

    /// Returns whether each request to the store takes a round trip. Such requests should be few,
    /// and concurrent.
    pub fn is_remote(&self) -> bool {
        self.store.concurrency() > 1
    }

    /// Requests the names on all levels of chunk keys together, if each level would take a request
    /// of its own.
    pub fn prefetch_levels(&self) {
        let has_levels = self.metadata.has_key_prefix() || self.separator() == Separator::Slash;
        if has_levels && self.is_remote() && self.lists_all() {
            self.store.hint(Hint::Below(&self.key));
        }
    }

    /// Returns the number of chunks to load concurrently if `threads` threads decode.
    pub fn concurrency(&self, threads: usize) -> usize {
        let in_memory = MAX_IN_FLIGHT / self.grid.max_chunk_size().max(1);
        threads.max(self.store.concurrency().min(in_memory))
    }

    /// Returns the number of chunks to put concurrently, of at most `most` that wait for the store.
    /// A chunk that is put to wait for its object does not wait for the store.
    pub fn concurrent_puts(&self, most: usize) -> usize {
        if self.chunks.share_objects() { 0 } else { most }
    }

    /// Returns the bytes of memory that decoding or encoding a chunk takes at most, both forms
    /// included, beside [`Array::encoder_memory`].
    pub fn chunk_memory(&self) -> usize {
        self.memory_of_copies(2)
    }

    /// Returns the bytes of memory that the codecs take while a chunk is encoded, beside its forms.
    /// The size of objects is not known, and they count none.
    pub fn encoder_memory(&self) -> usize {
        match self.pipeline() {
            Ok(pipeline) if !self.metadata.has_objects() => {
                pipeline.encoder_memory(self.grid.max_chunk_size())
            }
            _ => 0,
        }
    }

    /// Returns the bytes of memory that copies of a chunk take, with what its codecs are known to
    /// need.
    fn memory_of_copies(&self, copies: usize) -> usize {
        let size = self.grid.max_chunk_size();
        let scratch = self.pipeline().map_or(0, |pipeline| pipeline.scratch(size));
        size.saturating_mul(copies).saturating_add(scratch)
    }

    /// Checks that there is memory for a decoded chunk and for the memory that its codecs are known
    /// to need.
    ///
    /// # Errors
    ///
    /// ENOMEM if there is not.
    pub fn check_memory(&self) -> Result<()> {
        self.readable()?;
        // the size of a chunk of objects is not known
        let needed = if self.metadata.has_objects() {
            0
        } else {
            self.memory_of_copies(1)
        };
        // the encoded chunk takes memory, too
        memory::make_room(self.chunk_memory());
        memory::check_chunk(needed).context(&self.key)
    }

    /// Returns the pipeline of the largest chunk. The pipelines of other chunks have the same
    /// codecs, for other sizes.
    fn pipeline(&self) -> Result<&Pipeline> {
        self.pipelines.largest().context(&self.key)
    }

    /// Returns the pipeline of a chunk.
    fn pipeline_of(&self, chunk: ChunkId) -> Result<Arc<Pipeline>> {
        let shape = self.chunk_shape(chunk);
        let pipeline = self
            .pipelines
            .of_shape(&self.metadata, &shape, self.grid.chunk_size(chunk));
        pipeline.map_err(|e| self.in_chunk(chunk, e))
    }

    /// Returns the shape of a decoded chunk in items, padding included.
    fn chunk_shape(&self, chunk: ChunkId) -> Cow<'_, [u64]> {
        match self.metadata.edges {
            Some(_) => self.metadata.chunk_shape(&self.grid.indices(chunk)),
            None => Cow::Borrowed(&self.metadata.chunks),
        }
    }

    /// Returns whether every item of a decoded chunk is the fill value. Without a fill value it
    /// returns false.
    pub fn is_empty(&self, chunk: &[u8]) -> bool {
        let (Some(fill), size) = (&self.metadata.fill, self.metadata.dtype.size()) else {
            return false;
        };
        let Some((first, rest)) = chunk.split_at_checked(size) else {
            return false;
        };
        let (start, end) = first.split_at(fill.len().min(size));
        // the chunk without its first item equals the chunk without its last one: all items are
        // equal
        start == fill.as_slice() && end.iter().all(|b| *b == 0) && chunk[..rest.len()] == *rest
    }

    /// Returns the codecs of the array for messages, such as `zlib` or `delta, blosc`.
    pub fn codec_names(&self) -> String {
        let ids = self
            .metadata
            .stated_filters()
            .chain(&self.metadata.compressor)
            .map(|c| c.id.as_str());
        let names = ids.collect::<Vec<_>>().join(", ");
        if names.is_empty() {
            "no codec".to_string()
        } else {
            names
        }
    }

    /// Adds the chunk and the codecs to an error of decoding or encoding.
    fn in_chunk(&self, chunk: ChunkId, e: Error) -> Error {
        let codecs = self.codec_names();
        // the reason of a single codec may begin with its name
        let is_named = e.to_string().starts_with(&format!("{codecs}: "));
        let e = if is_named { e } else { e.context(codecs) };
        e.context(self.stored_key(chunk))
    }

    /// Adds the chunk and the codecs to an error of decoding `stored`, or the beginning of it, and
    /// what the bytes are if the array's codecs have not made them.
    fn undecodable(&self, chunk: ChunkId, stored: &[u8], e: Error) -> Error {
        self.in_chunk(chunk, self.explained(stored, e))
    }

    /// Adds to an error about damage of a stored value, of which `beginning` are the first bytes,
    /// what it is if the array's codecs have not made it.
    fn explained(&self, beginning: &[u8], e: Error) -> Error {
        match foreign_content(beginning, &self.codec_names()) {
            Some(what) if e.kind() == Kind::Damaged => e.context(what),
            _ => e,
        }
    }

    /// Explains damage of the value of a chunk, as [`Array::explained`] does, after reading the
    /// beginning of the value from the store.
    fn explained_by_store(&self, chunk: ChunkId, e: Error) -> Error {
        let mut beginning = Vec::new();
        let first = 0..BEGINNING as u64;
        if e.kind() == Kind::Damaged
            && matches!(
                self.store
                    .get_range(&self.stored_key(chunk), first, &mut beginning),
                Ok(Some(_))
            )
        {
            self.explained(&beginning, e)
        } else {
            e
        }
    }
}

#[cfg(test)]
mod tests;
