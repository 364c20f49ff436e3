//! Stores a file of another program as the group or array that it describes. Several threads read
//! chunks from the file, encode and put them. The documents follow, and the document of the group
//! comes last, so that no reader finds a part of it. This module must not know who asks for it: a
//! verb, or the close of a file in a mount.
//!
//! Invariant: **the node that was a file, and no other, has a mark** in its attributes, by which a
//! mount with `--ingest` knows it ([`FileMark`]).

mod document;
mod staged;

pub use document::{FileMark, IngestLayout};
pub use staged::StagedNode;

use crate::array::{Array, Scratch};
use document::{NodeDocuments, array_documents, group_documents, mark};
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::{self, Grant, lock};
use zarrfs_base::pool::on_threads;
use zarrfs_base::spill_file::unnamed_file;
use zarrfs_base::stats::Stats;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use zarrfs_ingest::{FileFormat, Incoming, IncomingArray, IncomingGroup};
use zarrfs_store::{EntryKind, Key, Store, StoreExt};

/// Memory in bytes of a chunk in a shard until the shard is put: its place, also in the index.
const SHARD_ENTRY: usize = 160;

/// A file that is about to be stored.
pub struct Ingest<'a> {
    /// The file, whose content must not change.
    pub file: &'a File,
    /// What it describes.
    pub incoming: &'a Incoming,
    /// The end of the file's name, by which a mount shows it again.
    pub ending: &'a str,
    /// How the arrays are stored.
    pub layout: &'a IngestLayout,
    /// A directory for unnamed files with the encoded chunks of a shard.
    pub scratch: &'a Path,
    /// Maximum number of threads.
    pub threads: usize,
    /// Called with the number of decoded bytes so far.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// An array whose chunks are being put.
struct IngestTask {
    described: IncomingArray,
    array: Array,
}

impl IngestTask {
    /// Returns the memory in bytes for a chunk: its encoded forms, its items, and what reading them
    /// takes.
    fn memory(&self) -> usize {
        let array = &self.array;
        let of_codecs = array.chunk_memory().saturating_add(array.encoder_memory());
        let items = &self.described.items;
        of_codecs.saturating_add(items.memory(array.grid().max_chunk_size()))
    }
}

/// The objects that no thread has begun.
struct PendingObjects {
    /// The number of the next array.
    number: usize,
    task: Option<Arc<IngestTask>>,
    /// The number of the next object of `task`.
    object: u64,
}

/// The buffers of a thread.
#[derive(Default)]
struct IngestBuffers {
    chunk: Vec<u8>,
    scattered: Vec<u8>,
    scratch: Scratch,
    /// The encoded chunks of a shard.
    shard: Option<File>,
}

impl Ingest<'_> {
    /// Checks that every array can be stored, below `at` of `store`. Stores nothing.
    ///
    /// # Errors
    ///
    /// The first array that Zarr, the layout, the store or the memory has no place for.
    pub fn check(&self, store: &Arc<dyn Store>, at: &Key) -> Result<()> {
        store.check_writable(&Key::root())?;
        let mut names = HashSet::new();
        for number in 0..self.incoming.count() {
            let name = self.incoming.name(number);
            let task = self.task(store, at, number)?;
            task.array.readable()?;
            named(name, memory::check_chunk(task.memory()))?;
            if !names.insert(task.array.key().clone()) {
                return Err(Error::invalid(format!(
                    "two arrays become {}",
                    task.array.key()
                )));
            }
        }
        for group in self.incoming.groups().iter() {
            let key = self.key(at, &group.path)?;
            if !names.insert(key.clone()) {
                return Err(Error::invalid(format!("two groups or arrays become {key}")));
            }
            self.group_documents(group)?;
        }
        Ok(())
    }

    /// Returns the documents of a group. The one that is the whole file gets the mark.
    fn group_documents(&self, group: &IncomingGroup) -> Result<NodeDocuments> {
        let mut attributes = group.attributes.clone();
        if group.path.is_empty() {
            mark(&mut attributes, self.incoming, self.ending);
        }
        group_documents(attributes, self.layout)
    }

    /// Stores everything at and below `at`, a prefix without keys.
    ///
    /// # Errors
    ///
    /// The first failure. Keys that were put stay; there is no document of the group among them,
    /// nor of an array unless putting documents failed.
    pub fn store(&self, store: &Arc<dyn Store>, at: &Key) -> Result<()> {
        self.check(store, at)?;
        let needed = self.memory_of_thread(store, at)?;
        let pending = Mutex::new(PendingObjects {
            number: 0,
            task: None,
            object: 0,
        });
        let done = AtomicU64::new(0);
        let is_first = Mutex::new(true);
        on_threads(self.threads.max(1), &|| {
            let is_first = std::mem::take(&mut *lock(&is_first));
            // one thread suffices, and waits for memory
            let memory = if is_first {
                memory::take(needed)?
            } else {
                match memory::take_within(needed, Duration::ZERO) {
                    Ok(memory) => memory,
                    Err(_) => return Ok(()),
                }
            };
            let mut buffers = IngestBuffers::default();
            while let Some((task, object)) = self.next(&pending, store, at)? {
                self.put_object(&task, object, &mut buffers, &done)
                    .inspect_err(|_| lock(&pending).number = usize::MAX)?;
            }
            drop(buffers);
            drop(memory);
            Ok(())
        })?;
        for number in 0..self.incoming.count() {
            let described = self.described(number)?;
            let key = self.key(at, &described.name)?;
            put_documents(store, &key, &array_documents(&described, self.layout)?)?;
        }
        // a group follows its members
        for group in self.incoming.groups().iter().rev() {
            let key = self.key(at, &group.path)?;
            put_documents(store, &key, &self.group_documents(group)?)?;
        }
        store.sync()
    }

    fn key(&self, at: &Key, name: &str) -> Result<Key> {
        let mut key = at.clone();
        // a name of classic netCDF has no slash, or is no key
        let is_path = self.incoming.format() == FileFormat::Hdf5;
        for name in name.split(|c| c == '/' && is_path) {
            if name.starts_with('.') {
                let why = format!("{name:?}: names that begin with a dot are hidden in a store");
                return Err(Error::invalid(why));
            }
            if !name.is_empty() {
                key = key.child(name)?;
            }
        }
        Ok(key)
    }

    /// Describes an array. One that is the whole file gets the mark.
    fn described(&self, number: usize) -> Result<IncomingArray> {
        let mut described = self.incoming.array(number)?;
        if !self.incoming.is_group() {
            mark(&mut described.attributes, self.incoming, self.ending);
        }
        Ok(described)
    }

    fn task(&self, store: &Arc<dyn Store>, at: &Key, number: usize) -> Result<IngestTask> {
        let described = self.described(number)?;
        let name = described.name.clone();
        let documents = named(&name, array_documents(&described, self.layout))?;
        let metadata = documents
            .metadata
            .ok_or_else(|| Error::invalid("no array"))?;
        let key = self.key(at, &name)?;
        let array = Array::new(key, metadata, store.clone(), Arc::new(Stats::default()));
        Ok(IngestTask {
            array: named(&name, array)?,
            described,
        })
    }

    /// Returns the memory in bytes that a thread needs for any chunk.
    fn memory_of_thread(&self, store: &Arc<dyn Store>, at: &Key) -> Result<usize> {
        let mut needed = 0;
        for number in 0..self.incoming.count() {
            needed = needed.max(self.task(store, at, number)?.memory());
        }
        Ok(needed)
    }

    /// Returns the next object that no thread has begun.
    fn next(
        &self,
        pending: &Mutex<PendingObjects>,
        store: &Arc<dyn Store>,
        at: &Key,
    ) -> Result<Option<(Arc<IngestTask>, u64)>> {
        let mut pending = lock(pending);
        loop {
            if pending.number > self.incoming.count() {
                return Ok(None);
            }
            if let Some(task) = pending.task.clone()
                && pending.object < task.array.object_grid().chunk_count()
            {
                pending.object += 1;
                return Ok(Some((task, pending.object - 1)));
            }
            pending.task = None;
            if pending.number < self.incoming.count() {
                pending.task = Some(Arc::new(self.task(store, at, pending.number)?));
            }
            pending.number += 1;
            pending.object = 0;
        }
    }

    /// Puts an object: a chunk, or a shard of chunks.
    fn put_object(
        &self,
        task: &IngestTask,
        object: u64,
        buffers: &mut IngestBuffers,
        done: &AtomicU64,
    ) -> Result<()> {
        let array = &task.array;
        let is_shard = array.shard_count().is_some();
        if is_shard && buffers.shard.is_none() {
            buffers.shard = Some(unnamed_file(self.scratch)?);
        }
        let mut chunks = Vec::new();
        let mut memory = Grant::default();
        let mut end = 0;
        for chunk in array.object_members(object) {
            self.read_chunk(task, chunk, buffers)?;
            let more = buffers.chunk.len() as u64;
            (self.progress)(done.fetch_add(more, Ordering::Relaxed) + more);
            let drops_empty = self.layout.drops_empty && !array.metadata().has_objects();
            if drops_empty && array.is_empty(&buffers.chunk) {
                continue;
            }
            let Some(shard) = buffers.shard.as_ref().filter(|_| is_shard) else {
                array.store(chunk, &buffers.chunk, &mut buffers.scratch)?;
                continue;
            };
            let encoded = array.encode_chunk(chunk, &buffers.chunk, &mut buffers.scratch)?;
            let range = end..end + encoded.len() as u64;
            std::os::unix::fs::FileExt::write_all_at(shard, encoded, end)
                .map_err(|e| Error::from(e).context(self.scratch.display()))?;
            end = range.end;
            memory.grow(SHARD_ENTRY)?;
            chunks.push((chunk, range));
        }
        match &buffers.shard {
            Some(shard) if !chunks.is_empty() => array.put_new_shard(object, &chunks, shard),
            _ => Ok(()),
        }
    }

    /// Reads the items of a chunk from the file. Items beyond the array are fill values.
    fn read_chunk(
        &self,
        task: &IngestTask,
        chunk: ChunkId,
        buffers: &mut IngestBuffers,
    ) -> Result<()> {
        let metadata = task.array.metadata();
        let grid = task.array.grid();
        let indices = grid.indices(chunk);
        let steps = indices.iter().zip(&metadata.chunks);
        let start: Vec<u64> = steps.map(|(index, len)| index * len).collect();
        let lengths = &metadata.chunks;
        let counts = metadata.shape.iter().zip(&start).zip(lengths);
        let counts: Vec<u64> = counts
            .map(|((len, start), chunk)| len.saturating_sub(*start).min(*chunk))
            .collect();
        memory::resize(&mut buffers.chunk, grid.chunk_size(chunk))?;
        if counts != *lengths {
            let mut fill = metadata.fill.clone().unwrap_or_default();
            fill.resize(metadata.dtype.size(), 0);
            for item in buffers.chunk.chunks_exact_mut(fill.len().max(1)) {
                item.copy_from_slice(&fill);
            }
        }
        let items = &task.described.items;
        let out = &mut buffers.chunk;
        let scattered = &mut buffers.scattered;
        let read = items.read_box(self.file, &start, &counts, lengths, out, scattered);
        named(&task.described.name, read)
    }
}

/// Adds the name of an array to an error; the file that is one array has none.
fn named<T>(name: &str, result: Result<T>) -> Result<T> {
    if name.is_empty() {
        result
    } else {
        result.context(name)
    }
}

/// Puts the documents of a group or array, the one that makes it last.
fn put_documents(store: &Arc<dyn Store>, key: &Key, documents: &NodeDocuments) -> Result<()> {
    for (name, text) in &documents.texts {
        let document = key.join(name);
        store.put(&document, text.as_bytes()).context(&document)?;
    }
    Ok(())
}

/// Deletes all keys at and below a prefix, the documents at the prefix first, so that no reader
/// finds a part of the group.
///
/// # Errors
///
/// The first failure.
pub fn remove_keys(store: &Arc<dyn Store>, prefix: &Key) -> Result<()> {
    for name in [ZARR_JSON, ZGROUP, ZARRAY, ZATTRS, ZMETADATA] {
        let key = prefix.join(name);
        store.delete(&key).context(&key)?;
    }
    let listed = match store.list(prefix) {
        Err(e) if e.kind() == Kind::NotFound => return Ok(()),
        listed => listed.context(prefix)?,
    };
    for entry in listed {
        let entry = entry.context(prefix)?;
        let key = prefix.join(&entry.name);
        match entry.kind {
            EntryKind::Prefix => remove_keys(store, &key)?,
            _ => drop(store.delete(&key).context(&key)?),
        }
    }
    if !prefix.is_root() {
        store.remove_prefix(prefix).context(prefix)?;
    }
    Ok(())
}
