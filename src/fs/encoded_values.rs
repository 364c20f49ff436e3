//! Values that programs write encoded: below `c` of an array that they created with codecs of their
//! own, or as a chunk file.
//!
//! Invariant: a stored value decodes as the document of its array says, or it does not replace the
//! one before; and no read is older than a replacement, as after any other write
//! (`array::freshness`).

use super::arrays::WrittenArrays;
use super::write::{ArrayWriter, WriteMode};
use crate::array::{Array, Scratch};
use crate::cache::ChunkPart;
use crate::fs::tree::EncodedValue;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::spill_file::unnamed_file;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Key;

/// Maximum number of chunks of a value whose pages in other files are guarded one by one.
const MAX_GUARDED: usize = 4096;

impl WrittenArrays {
    /// Opens an empty file for an encoded value.
    pub(super) fn encoded_file(&self, value: &EncodedValue) -> Result<File> {
        let array = &value.array;
        array.readable()?;
        self.store()
            .check_writable(array.key())
            .context(array.key())?;
        unnamed_file(&self.spill_directory)
    }

    /// Returns whether the content of a file that is to become a chunk is an encoded one.
    ///
    /// # Errors
    ///
    /// EINVAL if the content is neither a decoded chunk nor an encoded one, or may be either.
    pub(super) fn is_encoded(&self, array: &Array, chunk: ChunkId, content: &[u8]) -> Result<bool> {
        let size = array.grid().chunk_size(chunk);
        let is_decoded = if array.metadata().has_objects() {
            array
                .check_objects(chunk, content)
                .map_err(|e| Error::invalid(e.message()))
        } else if content.len() == size {
            Ok(())
        } else {
            let why = format!(
                "{} bytes can't become a chunk of {size}, and do not decode to one",
                content.len()
            );
            Err(Error::invalid(why).context(array.stored_key(chunk)))
        };
        if !array.is_stored_form(chunk, content)? {
            return is_decoded.map(|()| false);
        }
        if is_decoded.is_ok() {
            let why =
                "the bytes may be a decoded chunk or an encoded one; write to data.raw instead";
            return Err(Error::invalid(why).context(array.stored_key(chunk)));
        }
        Ok(true)
    }

    /// Checks that every chunk in a value can be read.
    fn check_encoded(
        &self,
        EncodedValue { array, chunk }: &EncodedValue,
        file: &File,
    ) -> Result<()> {
        let candidate = array.with_value(*chunk, file)?;
        for member in candidate.chunks_beside(*chunk) {
            let part = self.cache.get(&candidate, member, ChunkPart::Whole);
            let checked = part.and_then(|part| match part {
                Some(part) => candidate.check_objects(member, part.bytes()),
                None => Ok(()),
            });
            self.cache.discard_chunk(&candidate, member);
            checked.map_err(|e| {
                if e.kind() == Kind::Damaged {
                    Error::invalid(e.message())
                } else {
                    e
                }
            })?;
        }
        Ok(())
    }

    /// Copies a plain key into an unnamed file.
    pub(super) fn copy_of(&self, from: &Key) -> Result<File> {
        let stat = self.tree.stat(from)?;
        let file = unnamed_file(&self.spill_directory)?;
        self.in_pieces(from, 0..stat.size, |at, piece| {
            file.write_all_at(piece, at)?;
            Ok(piece.len())
        })?;
        Ok(file)
    }

    /// Writes bytes into an unnamed file.
    pub(super) fn file_of(&self, bytes: &[u8]) -> Result<File> {
        let file = unnamed_file(&self.spill_directory)?;
        file.write_all_at(bytes, 0)?;
        Ok(file)
    }
}

impl ArrayWriter<'_> {
    /// Stores a whole chunk, given in the array's own order. If that fails the old chunk stays.
    pub(super) fn replace_chunk(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        bytes: &[u8],
    ) -> Result<()> {
        array.writable()?;
        // the bytes may be an encoded chunk of another store
        array
            .check_objects(chunk, bytes)
            .map_err(|e| Error::invalid(e.message()))?;
        let _writing = self.resizing.writing_to(array)?;
        // flush first, or earlier writes would be lost if this chunk cannot be stored; if the flush
        // loses them, their own files report it
        self.cache.flush_chunk(array, chunk)?;
        self.cache.begin_counting(array);
        let stored = if array.metadata().has_objects() {
            let why = "another program replaced the array; open the directory again and retry";
            array.lock_chunk(chunk).and_then(|_lock| {
                array.confirm(false)?;
                if array.freshness().is_replaced() {
                    Err(Error::stale().context(why).context(array.key()))
                } else {
                    array
                        .store(chunk, bytes, &mut Scratch::default())
                        .map(|_| self.cache.add_pending(array))
                }
            })
        } else {
            let written = self.write_chunk_bytes(array, chunk, 0, bytes, WriteMode::internal());
            written.and_then(|_| self.cache.store_written(array, chunk))
        };
        if stored.is_err() || array.metadata().has_objects() {
            self.cache.discard_chunk(array, chunk);
        }
        stored
    }

    /// Replaces an encoded value by the content of a file.
    ///
    /// # Errors
    ///
    /// EINVAL, with nothing changed, if the content does not decode.
    pub(super) fn replace_encoded(&self, value: &EncodedValue, file: &File) -> Result<()> {
        self.check_encoded(value, file)?;
        self.replace_checked(value, file)
    }

    fn replace_checked(&self, value: &EncodedValue, file: &File) -> Result<()> {
        let EncodedValue { array, chunk } = value;
        let _writing = self.resizing.writing_to(array)?;
        // flush first, or earlier writes would be laid over the new value
        self.cache.flush_array(array)?;
        self.guard_value(value);
        let replaced = array.replace_value(*chunk, Some(file));
        self.add_stale(array.key(), true);
        replaced.map(drop)
    }

    /// Deletes an encoded value: its chunks become uninitialized. Returns whether there was one.
    pub(super) fn erase_encoded(&self, value: &EncodedValue) -> Result<bool> {
        let EncodedValue { array, chunk } = value;
        let _writing = self.resizing.writing_to(array)?;
        if array.own_key(*chunk).is_some() {
            return self.erase_chunk(array, *chunk);
        }
        // a value that is too damaged to be changed may be deleted
        if let Err(e) = self.cache.flush_array(array) {
            log::debug!("{e}");
        }
        self.guard_value(value);
        let erased = array.replace_value(*chunk, None);
        self.add_stale(array.key(), true);
        erased
    }

    /// Stores the content of a file as a chunk: decoded, or encoded by the codecs of the array.
    ///
    /// # Errors
    ///
    /// Those of [`WrittenArrays::is_encoded`].
    pub(super) fn put_chunk(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        content: &[u8],
    ) -> Result<()> {
        if self.is_encoded(array, chunk, content)? {
            self.put_encoded(array, chunk, content)
        } else {
            self.replace_chunk(array, chunk, content)
        }
    }

    /// Stores an encoded chunk, as [`WrittenArrays::is_encoded`] has shown it to be.
    pub(super) fn put_encoded(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        content: &[u8],
    ) -> Result<()> {
        let value = EncodedValue {
            array: array.clone(),
            chunk,
        };
        self.replace_checked(&value, &self.file_of(content)?)
    }

    /// Guards the chunks of a value that is about to be replaced against the pages of all files.
    fn guard_value(&self, EncodedValue { array, chunk }: &EncodedValue) {
        array
            .chunks_beside(*chunk)
            .take(MAX_GUARDED)
            .for_each(|member| self.guard_chunk(array, member));
    }
}
