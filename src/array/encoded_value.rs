//! Stored values that programs write encoded: objects of an array of v3 that they created with
//! codecs of their own. A value is read like the one it is to replace, from a store of its own,
//! before it replaces that one. This module decodes nothing and keeps no chunk; `fs` decides what
//! is replaced when.

use super::Array;
use super::chunks::ObjectChunks;
use std::fs::File;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::{
    ByteRange, Entry, Key, Listing, Readable, Replaces, Stat, Store, StoreExt, ValuePiece, Version,
    read_at,
};

/// A store with one value, the content of a file.
struct SingleValueStore {
    key: Key,
    file: File,
    stat: Stat,
}

impl Readable for SingleValueStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let Some(stat) = self.stat(key)? else {
            return Ok(None);
        };
        let part = range.within(stat.size)?;
        memory::resize(value, (part.end - part.start) as usize)?;
        read_at(&self.file, part.start, value)?;
        Ok(Some(stat))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        Ok((*key == self.key).then(|| self.stat.clone()))
    }

    fn list(&self, _: &Key) -> Result<Listing> {
        Ok(Box::new(std::iter::empty::<Result<Entry>>()))
    }

    fn location(&self) -> String {
        self.key.to_string()
    }
}

impl Store for SingleValueStore {}

impl Array {
    /// Returns the chunks of the value that holds `chunk`.
    pub fn chunks_beside(&self, chunk: ChunkId) -> ObjectChunks {
        self.object_members(self.object_of(chunk))
    }

    /// Returns the maximum size of a chunk in bytes, decoded or stored.
    ///
    /// # Errors
    ///
    /// Fails if the array has no pipeline.
    pub fn max_size(&self, chunk: ChunkId) -> Result<u64> {
        let stored = self.pipeline_of(chunk)?.max_stored();
        Ok(stored.max(self.grid.chunk_size(chunk) as u64))
    }

    /// Returns whether bytes are a stored chunk, which decodes by the codecs of the array, rather
    /// than a decoded one. A chunk that shares its object has no value of its own, and codecs that
    /// check nothing decode anything: `false`.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or if the array has no pipeline.
    pub fn is_stored_form(&self, chunk: ChunkId, bytes: &[u8]) -> Result<bool> {
        let pipeline = self.pipeline_of(chunk)?;
        if self.own_key(chunk).is_none() || !pipeline.is_recognizable() {
            return Ok(false);
        }
        let mut decoded = Vec::new();
        let checked = pipeline
            .check_stored_size(bytes.len() as u64)
            .and_then(|()| pipeline.decode(bytes, &mut decoded));
        match checked.and_then(|()| self.check_objects(chunk, &decoded)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == Kind::Damaged => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns an array like this one whose only stored value, that of `chunk`, is the content of a
    /// file.
    pub fn with_value(&self, chunk: ChunkId, file: &File) -> Result<Array> {
        let stat = Stat::value(file.metadata()?.len(), SystemTime::now(), Version::Count(0));
        let store = SingleValueStore {
            key: self.stored_key(chunk),
            file: file.try_clone()?,
            stat,
        };
        let metadata = ArrayMetadata {
            separator: Some(self.separator()),
            ..self.metadata().clone()
        };
        Array::new(
            self.key.clone(),
            metadata,
            Arc::new(store),
            self.stats.clone(),
        )
    }

    /// Replaces the value that holds `chunk` by the content of a file, or deletes it, and makes
    /// every reader look at the store again. Returns whether there is, or was, such a value. The
    /// caller has stored what was written to the chunks before.
    ///
    /// # Errors
    ///
    /// ESTALE if another array took the place of this one; those of the store.
    pub fn replace_value(&self, chunk: ChunkId, file: Option<&File>) -> Result<bool> {
        let key = self.stored_key(chunk);
        let _alone = self.lock_replacing(&key);
        let _lock = self.store.lock(&key, Instant::now())?;
        self.confirm(false)?;
        if self.freshness.is_replaced() {
            return Err(Error::stale()
                .context("another program replaced the array")
                .context(&key));
        }
        let replaced = match file {
            Some(file) => {
                let pieces = [ValuePiece::File(file, 0..file.metadata()?.len())];
                self.store
                    .put_pieces(&key, &pieces, Replaces::Anything)
                    .map(|version| version.is_some())
            }
            None => self.store.delete(&key),
        };
        // also after an error, since the store may hold the new value nevertheless
        self.chunks.forget(self, chunk);
        self.freshness.record_store();
        self.freshness.begin_opening();
        self.freshness.record_write();
        replaced.context(key)
    }
}
