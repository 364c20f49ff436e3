//! One array of a store: its metadata, its grid, its pipeline, and loading one chunk. Nothing above this room may
//! assume that a chunk is a key of its own. Chunks in memory are always of C layout, whatever the store's order is.

use crate::error::{Error, Kind, Result};
use crate::stats::Stats;
use crate::store::{EntryKind, Key, Listing, Stat, Store, Version};
use crate::util::memory;
use crate::zarr::codec::Pipeline;
use crate::zarr::grid::{ChunkId, Grid, parse_index};
use crate::zarr::layout;
use crate::zarr::metadata::{ArrayMetadata, Order, Separator, V1_META, ZARRAY};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime};

mod confirm;
pub mod hierarchy;
mod part;
mod stored;
mod write;

pub use confirm::Source;
pub use part::{Opened, Parts};
pub use write::ChunkLock;

/// Names looked at to find out an undeclared separator: enough to get past stray files, few enough to be quick.
const SEPARATOR_SAMPLE: usize = 1000;

/// Decoded bytes of far chunks that are worth being under way at once: they fill a link of several GB/s for as long as an
/// answer takes, and leave most of the cache to what has come.
const UNDER_WAY: usize = 64 << 20;

/// Numbers arrays and openings; never given twice in a process.
static COUNTER: AtomicU64 = AtomicU64::new(1);

/// Memory that a load needs beside the decoded bytes, to be used again for the next one.
#[derive(Default)]
pub struct Scratch {
    /// The encoded chunk or block.
    pub stored: Vec<u8>,
    /// The decoded chunk before its layout is changed.
    pub other: Vec<u8>,
    /// Bytes that a chunk of objects may have, encoded and decoded, if the load has made room for no more.
    pub most: Option<usize>,
}

impl Scratch {
    /// Bytes of memory it takes.
    pub fn capacity(&self) -> usize {
        self.stored.capacity() + self.other.capacity()
    }
}

/// One array.
pub struct Array {
    key: Key,
    metadata: ArrayMetadata,
    grid: Grid,
    pipeline: Result<Pipeline>,
    /// Unset as long as neither the metadata nor a chunk has told it.
    separator: OnceLock<Separator>,
    /// Why no chunk can be encoded, once that was tried.
    encodable: OnceLock<Result<()>>,
    /// Stored bytes of the chunk that was asked for last; 0 before.
    stored_size: AtomicU64,
    store: Arc<dyn Store>,
    /// None of an array that is stored nowhere yet.
    source: Option<Source>,
    stats: Arc<Stats>,
    id: u64,
    /// When the array was opened last; what was known before has to be checked again.
    epoch: AtomicU64,
    /// Held while the array is opened: what one opening finds out must not be lost to the next. It protects nothing else.
    opening: Mutex<()>,
    /// Set when newer metadata was read, or somebody else reads this array through another object.
    superseded: AtomicBool,
    /// Set when the array that stands here now has other chunks.
    replaced: AtomicBool,
    /// Chunks that were written and are not yet stored.
    dirty: AtomicUsize,
    /// How often chunks were written, and how often stored or forgotten.
    writes: AtomicU64,
    stores: AtomicU64,
    /// When a chunk was last written, in nanoseconds since 1970.
    written_at: AtomicU64,
    /// How many times written bytes could not be stored because the array was replaced or became smaller.
    /// Protects the reference: an array that comes from this one by growth counts along.
    losses: Mutex<Arc<AtomicU64>>,
}

/// A name below an array's prefix.
#[derive(Debug, PartialEq, Eq)]
pub enum ArrayEntry {
    /// A stored chunk of the grid.
    Chunk(ChunkId),
    /// A value that is neither chunk nor chunk-like.
    Value(String),
    /// A level of chunk keys that can't be listed: there may be chunks.
    Unlisted,
}

/// A decoded chunk, C layout, and the version it was read from.
pub struct Loaded {
    /// `Grid::chunk_size` of them, but for objects.
    pub bytes: Vec<u8>,
    /// Of the stored bytes they were made of.
    pub version: Version,
    /// How many stored bytes there were.
    pub stored: u64,
}

/// A chunk as it was stored: the other half of [`Array::load`] decodes it.
pub struct Fetched {
    key: Key,
    /// Room for the decoded bytes, or these themselves.
    bytes: Vec<u8>,
    version: Version,
    stored: u64,
}

impl Array {
    /// The array at `key`. A codec that can't be set up is kept for [`Array::readable`] to tell.
    pub fn new(key: Key, metadata: ArrayMetadata, store: Arc<dyn Store>, stats: Arc<Stats>) -> Result<Self> {
        let grid = Grid::new(&metadata.shape, &metadata.chunks, metadata.dtype.size())?;
        let pipeline = Pipeline::new(&metadata, grid.chunk_size());
        let declared = metadata.separator.or((grid.dimensions() < 2).then_some(Separator::Dot));
        let array = Array {
            separator: declared.map(OnceLock::from).unwrap_or_default(),
            encodable: OnceLock::new(),
            stored_size: AtomicU64::new(0),
            key,
            metadata,
            grid,
            pipeline,
            store,
            source: None,
            stats,
            id: COUNTER.fetch_add(1, Ordering::Relaxed),
            epoch: AtomicU64::new(0),
            opening: Mutex::default(),
            superseded: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            dirty: AtomicUsize::new(0),
            writes: AtomicU64::new(0),
            stores: AtomicU64::new(0),
            written_at: AtomicU64::new(0),
            losses: Mutex::default(),
        };
        array.detect_separator()?;
        Ok(array)
    }

    /// Finds out an undeclared separator, if chunks that are there by now tell it.
    pub fn detect_separator(&self) -> Result<()> {
        if self.separator.get().is_some() {
            return Ok(());
        }
        let detected = match self.store.lists_all() {
            true => detect_separator(&self.grid, self.store.list(&self.key)?)?,
            false => self.probe_separator()?,
        };
        let Some(detected) = detected else { return Ok(()) };
        if self.separator.set(detected).is_ok() && detected == Separator::Slash {
            let key = &self.key;
            log::warn!("{key}: no dimension_separator is declared, but chunks lie under \"/\": reading them there");
        }
        Ok(())
    }

    /// The separator under which the first chunk is stored, where the store can't list.
    fn probe_separator(&self) -> Result<Option<Separator>> {
        for separator in [Separator::Dot, Separator::Slash] {
            let key = self.key.join(&self.grid.chunk_key(ChunkId(0), separator));
            if self.store.stat(&key)?.is_some_and(|stat| stat.kind == EntryKind::Value) {
                return Ok(Some(separator));
            }
        }
        Ok(None)
    }

    /// Where the array is in its store.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The checked metadata.
    pub fn metadata(&self) -> &ArrayMetadata {
        &self.metadata
    }

    /// The chunk grid.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Bytes of the flat array.
    pub fn size(&self) -> u64 {
        self.grid.size()
    }

    /// A number no other array of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The store's separator: declared, detected, or `.`.
    pub fn separator(&self) -> Separator {
        self.separator.get().copied().unwrap_or(Separator::Dot)
    }

    /// The name of the key that holds the metadata document.
    pub fn metadata_name(&self) -> &'static str {
        if self.metadata.zarr_format == 1 { V1_META } else { ZARRAY }
    }

    /// True if uninitialised chunks read as zero bytes.
    pub fn fill_is_zero(&self) -> bool {
        self.metadata.fill.as_ref().is_none_or(Vec::is_empty)
    }

    /// An error if this build can't decode the array's chunks.
    pub fn readable(&self) -> Result<()> {
        self.pipeline.as_ref().map(|_| ()).map_err(|e| e.clone().context(&self.key))
    }

    /// True if an answer of the store is a long time on its way: requests are to be few, and under way together.
    pub fn is_remote(&self) -> bool {
        self.store.concurrency() > 1
    }

    /// False if the store may hold chunks that [`Array::entries`] leaves out.
    pub fn lists_all(&self) -> bool {
        self.store.lists_all()
    }

    /// How many chunks are loaded or stored at once to good purpose where `threads` decode: of a far store as many as it
    /// likes to be asked for, within a bound of memory.
    pub fn concurrency(&self, threads: usize) -> usize {
        let room = UNDER_WAY / self.grid.chunk_size().max(1);
        threads.max(self.store.concurrency().min(room))
    }

    /// The number of the latest opening. Whatever was learnt of the store before it must be checked again.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Begins a new epoch: somebody opens a file of the array and must see what is in the store now.
    pub fn begin_epoch(&self) {
        self.epoch.fetch_max(COUNTER.fetch_add(1, Ordering::Relaxed), Ordering::AcqRel);
    }

    /// To be held from the beginning of an epoch until it is known what is new in it.
    pub fn opening(&self) -> MutexGuard<'_, ()> {
        memory::lock(&self.opening)
    }

    /// True if the array must be looked up again: this one may no longer be what the store holds.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }

    /// Tells whoever holds this array to look it up again.
    pub fn supersede(&self) {
        self.superseded.store(true, Ordering::Release);
    }

    /// True if chunks were written and are not yet stored.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire) > 0
    }

    /// Notes that a chunk is no longer as the store has it, or is again.
    pub fn count_dirty(&self, more: isize) {
        self.dirty.fetch_add(more as usize, Ordering::AcqRel);
    }

    /// As [`Array::supersede`], where chunks are no longer what they were: none may be stored any more.
    pub fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
        self.supersede();
    }

    /// True if no chunk of this array may be stored any more.
    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// How often chunks were written: what was put together from several of them before is of no use afterwards.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// Notes that a chunk was written.
    pub fn count_write(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.written_at.store(now.as_nanos() as u64, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// When a chunk was last written here; 1970 if none was.
    pub fn written_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.written_at.load(Ordering::Relaxed))
    }

    /// How often chunks came into the store or out of it: what is loaded meanwhile may be what was there before.
    pub fn stores(&self) -> u64 {
        self.stores.load(Ordering::Acquire)
    }

    /// Notes that a chunk has come into the store or out of it.
    pub fn count_store(&self) {
        self.stores.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how many times written bytes of the array were lost. A file that was written before the count increased
    /// reports the loss at each flush.
    pub fn losses(&self) -> u64 {
        memory::lock(&self.losses).load(Ordering::Acquire)
    }

    /// Records that written bytes were lost.
    pub fn count_loss(&self) {
        memory::lock(&self.losses).fetch_add(1, Ordering::AcqRel);
    }

    /// Counts the losses of `old` along, whose written bytes this array takes over.
    pub fn share_losses(&self, old: &Array) {
        let shared = memory::lock(&old.losses).clone();
        *memory::lock(&self.losses) = shared;
    }

    /// The store's key of a chunk.
    pub fn chunk_key(&self, chunk: ChunkId) -> Key {
        self.key.join(&self.grid.chunk_key(chunk, self.separator()))
    }

    /// What the store knows of a chunk without reading it; None if it is uninitialised.
    pub fn stat_chunk(&self, chunk: ChunkId) -> Result<Option<Stat>> {
        let key = self.chunk_key(chunk);
        self.store.stat(&key).map_err(|e| e.context(&key))
    }

    /// As [`Array::stat_chunk`], of each chunk in turn, until `each` returns false.
    pub fn stat_chunks(&self, chunks: &[ChunkId], each: &mut dyn FnMut(Result<Option<Stat>>) -> bool) {
        self.store.stat_many(&mut chunks.iter().map(|&chunk| self.chunk_key(chunk)), each);
    }

    /// Reads and decodes a chunk, into `buffer` if that has the room; None if it is uninitialised. Errors name the key
    /// and the cause.
    pub fn load(&self, chunk: ChunkId, buffer: Vec<u8>, scratch: &mut Scratch) -> Result<Option<Loaded>> {
        self.fetch(chunk, buffer, scratch)?.map(|fetched| self.decode_fetched(fetched, scratch)).transpose()
    }

    /// The first half of [`Array::load`], which waits for the store.
    pub fn fetch(&self, chunk: ChunkId, buffer: Vec<u8>, scratch: &mut Scratch) -> Result<Option<Fetched>> {
        let (pipeline, mut bytes) = (self.pipeline()?, buffer);
        let key = self.chunk_key(chunk);
        self.check_memory()?;
        let start = Instant::now();
        // an encoded chunk may be larger than the decoded one, but not larger than the memory for it
        let most = pipeline.max_stored().min(self.room(scratch.most) as u64);
        let stored = if self.is_stored_plain(pipeline) { &mut bytes } else { &mut scratch.stored };
        let got = self.store.get(&key, most, stored);
        self.stats.store_time.add_since(start);
        let Some(version) = got.map_err(|e| e.context(&key))? else { return Ok(None) };
        let stored = stored.len() as u64;
        self.stats.bytes_stored.add(stored);
        self.stored_size.store(stored, Ordering::Relaxed);
        Ok(Some(Fetched { key, bytes, version, stored }))
    }

    /// The second half, which takes the processor; `scratch` is that of the first.
    pub fn decode_fetched(&self, fetched: Fetched, scratch: &mut Scratch) -> Result<Loaded> {
        let (pipeline, Fetched { key, mut bytes, version, stored }) = (self.pipeline()?, fetched);
        let start = Instant::now();
        let done = match self.is_stored_plain(pipeline) {
            true => pipeline.check_size(bytes.len()),
            false => self.decode(pipeline, &mut bytes, scratch),
        };
        self.stats.codec_time.add_since(start);
        done.map_err(|e| self.in_chunk(&key, e))?;
        self.stats.decodes.add(1);
        self.stats.bytes_decoded.add(bytes.len() as u64);
        Ok(Loaded { bytes, version, stored })
    }

    /// Bytes of memory that a chunk takes while it is decoded or encoded, its other form included.
    pub fn chunk_memory(&self) -> usize {
        let (size, transposed) = (self.grid.chunk_size(), self.is_transposed());
        let scratch = self.pipeline.as_ref().map_or(0, Pipeline::scratch);
        size.saturating_mul(2 + usize::from(transposed)).saturating_add(scratch)
    }

    /// ENOMEM if there is not the memory for a chunk: decoded, and all that can be told now of what decoding it needs.
    pub fn check_memory(&self) -> Result<()> {
        let (size, pipeline) = (self.grid.chunk_size(), self.pipeline()?);
        let times = 1 + usize::from(self.is_transposed());
        let needed = size.saturating_mul(times).saturating_add(pipeline.scratch());
        // nothing tells how large chunks of objects are
        let needed = if self.metadata.has_objects() { 0 } else { needed };
        memory::check_chunk(needed).map_err(|e| e.context(&self.key))
    }

    /// True if the stored bytes are the decoded ones, in our layout.
    fn is_stored_plain(&self, pipeline: &Pipeline) -> bool {
        pipeline.is_identity() && !self.is_transposed()
    }

    fn pipeline(&self) -> Result<&Pipeline> {
        self.pipeline.as_ref().map_err(|e| e.clone().context(&self.key))
    }

    /// True if the store's layout of a chunk is not ours.
    fn is_transposed(&self) -> bool {
        self.metadata.order == Order::F && self.grid.dimensions() > 1 && !self.metadata.has_objects()
    }

    /// Decodes into `bytes`, C layout.
    fn decode(&self, pipeline: &Pipeline, bytes: &mut Vec<u8>, scratch: &mut Scratch) -> Result<()> {
        let room = self.room(scratch.most).saturating_sub(scratch.stored.len());
        if !self.is_transposed() {
            return pipeline.decode_within(&scratch.stored, bytes, room);
        }
        pipeline.decode_within(&scratch.stored, &mut scratch.other, room)?;
        memory::check_chunk(scratch.other.len().saturating_mul(2))?;
        memory::resize(bytes, scratch.other.len())?;
        layout::f_to_c(&self.metadata.chunks, self.metadata.dtype.size(), &scratch.other, bytes);
        Ok(())
    }

    /// Bytes of memory that there are for a chunk, or for one of objects of which the caller wants no more than `most`.
    fn room(&self, most: Option<usize>) -> usize {
        let most = most.filter(|_| self.metadata.has_objects()).unwrap_or(usize::MAX);
        memory::available_for_chunk().min(most)
    }

    /// An error of decoding, with the key and the codecs.
    fn in_chunk(&self, key: &Key, e: Error) -> Error {
        e.context(format!("{key}: {}", self.codec_names()))
    }

    /// Writes the fill value over `to`, which stands at `position` of the flat array; zeros where there is none.
    pub fn fill(&self, to: &mut [u8], position: u64) {
        // the buffer is used again: it may hold another read's bytes
        to.fill(0);
        let (Some(item), size) = (&self.metadata.fill, self.metadata.dtype.size()) else { return };
        if item.is_empty() {
            return;
        }
        let (mut at, mut inside) = (0, (position % size as u64) as usize);
        while at < to.len() {
            // the zero bytes at an item's end are left out
            let rest = item.get(inside..).unwrap_or_default();
            let n = rest.len().min(to.len() - at);
            to[at..at + n].copy_from_slice(&rest[..n]);
            at += size - inside;
            inside = 0;
        }
    }

    /// True if a whole chunk holds nothing but the fill value. Without one no chunk does.
    pub fn is_empty(&self, chunk: &[u8]) -> bool {
        let (Some(fill), size) = (&self.metadata.fill, self.metadata.dtype.size()) else { return false };
        let Some((first, rest)) = chunk.split_at_checked(size) else { return false };
        let (start, end) = first.split_at(fill.len().min(size));
        // every item is the one before it
        start == fill.as_slice() && end.iter().all(|b| *b == 0) && chunk[..rest.len()] == *rest
    }

    /// The codecs of the array, for messages: `zlib`, or `delta, blosc`.
    pub fn codec_names(&self) -> String {
        let ids = self.metadata.filters.iter().chain(&self.metadata.compressor).map(|c| c.id.as_str());
        let names = ids.collect::<Vec<_>>().join(", ");
        if names.is_empty() { "no codec".to_string() } else { names }
    }

    /// The stored chunks of the grid and the other values below the array's prefix, streamed, in the store's order.
    pub fn entries(self: &Arc<Self>) -> Result<Entries> {
        let level = self.store.list(&self.key).map_err(|e| e.context(&self.key))?;
        Ok(Entries { array: self.clone(), levels: vec![(level, String::new())] })
    }
}

/// True for names that are chunk keys, or might be taken for one: of a former shape, misspelt, or half written.
pub fn is_chunk_like(name: &str) -> bool {
    let rest = name.trim().trim_start_matches(['+', '-']);
    let digits = rest.strip_suffix(".partial").map_or(rest, |r| r.split_inclusive('.').next().unwrap_or(r));
    digits.starts_with(|c: char| c.is_ascii_digit()) && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// The separator that stored chunks show: the first chunk key joined by `.` decides, else a directory named by an
/// index. A listing that fails says nothing: to take it for empty would make fill values of chunks that are there.
fn detect_separator(grid: &Grid, listing: Listing) -> Result<Option<Separator>> {
    let mut slash = None;
    for entry in listing.take(SEPARATOR_SAMPLE) {
        let entry = entry?;
        match entry.kind {
            EntryKind::Prefix if parse_index(&entry.name).is_some() => slash = Some(Separator::Slash),
            EntryKind::Value if grid.parse_chunk_key(&entry.name, Separator::Dot).is_some() => {
                return Ok(Some(Separator::Dot));
            }
            _ => {}
        }
    }
    Ok(slash)
}

/// Iterator of [`Array::entries`]. It holds one open listing for each level of a chunk key.
pub struct Entries {
    array: Arc<Array>,
    /// Listings, outermost first, each with the part of the chunk key that leads to it.
    levels: Vec<(Listing, String)>,
}

impl Iterator for Entries {
    type Item = Result<ArrayEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let depth = self.levels.len();
            let (level, path) = self.levels.last_mut()?;
            let entry = match level.next() {
                None => {
                    self.levels.pop();
                    continue;
                }
                Some(Err(e)) => return Some(Err(e)),
                Some(Ok(entry)) => entry,
            };
            let array = &self.array;
            let nested = array.separator() == Separator::Slash && array.grid.dimensions() > 1;
            let name = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
            if nested && depth < array.grid.dimensions() {
                if entry.kind == EntryKind::Prefix && name.split('/').all(|p| parse_index(p).is_some()) {
                    match array.store.list(&array.key.join(&name)) {
                        Ok(below) => self.levels.push((below, name)),
                        // a level that went away while we walked
                        Err(e) if e.kind() == Kind::NotFound => {}
                        Err(_) => return Some(Ok(ArrayEntry::Unlisted)),
                    }
                    continue;
                }
                if entry.kind == EntryKind::Other && name.split('/').all(|p| parse_index(p).is_some()) {
                    return Some(Ok(ArrayEntry::Unlisted));
                }
            } else if let Some(chunk) = array.grid.parse_chunk_key(&name, array.separator()) {
                return Some(Ok(ArrayEntry::Chunk(chunk)));
            }
            if depth == 1 && entry.kind == EntryKind::Value && !is_chunk_like(&name) {
                return Some(Ok(ArrayEntry::Value(name)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
