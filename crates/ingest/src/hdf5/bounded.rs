//! A file as the library `hdf5-reader` reads it: with bounds for memory, and with its errors and
//! panics turned into errors of one line. This module must not know what the file describes.

use super::filters;
use hdf5_reader::error::Error as LibraryError;
use hdf5_reader::{ExternalLinkResolver, Hdf5File, OpenOptions, Storage, StorageBuffer};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{Grant, lock};

/// Maximum size of an object header in bytes. Headers of netCDF-4 have some kilobytes; attributes
/// beyond eight, and links, lie elsewhere.
const MAX_HEADER: usize = 2 << 20;

/// Memory in bytes that the library keeps for each byte of headers that it has read: messages,
/// names and their copies.
const PARSED: usize = 8;

/// Granted bytes beyond which a file is opened anew, which frees what the library keeps of it.
const MAX_KEPT: usize = 32 << 20;

/// The message for a file that is shorter than its headers state.
const ENDS: &str = "the file ends before the bytes that it refers to: it is truncated, still being \
    written, or damaged";

/// The bounds of reads, and their memory.
#[derive(Clone, Copy)]
pub enum ReadBounds {
    /// Headers, which the library keeps: each byte read takes memory for [`PARSED`].
    Headers,
    /// Values: at most as many bytes at a time as [`BoundedFile::admit`] says.
    Values {
        /// Maximum decoded size of a chunk in bytes.
        chunk: usize,
        /// Maximum size in bytes of the decoded chunks that are kept.
        kept: usize,
    },
}

/// The bytes of a file.
struct BoundedStorage {
    file: Arc<File>,
    len: u64,
    bounds: ReadBounds,
    state: Mutex<StorageState>,
}

#[derive(Default)]
struct StorageState {
    /// The memory of headers.
    held: Grant,
    /// Number of bytes read so far.
    read: usize,
    /// Maximum number of bytes of one read of values.
    largest: usize,
    /// The error of a read, of which the library knows the message alone.
    failure: Option<Error>,
}

impl BoundedStorage {
    fn check(&self, offset: u64, len: usize) -> Result<()> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(Error::invalid(ENDS));
        }
        let mut state = lock(&self.state);
        state.read += len;
        match self.bounds {
            ReadBounds::Headers => state.held.grow(len.saturating_mul(PARSED)),
            ReadBounds::Values { .. } if len > state.largest => {
                let why = format!("{len} bytes are no part of an array or header");
                Err(Error::invalid(why))
            }
            ReadBounds::Values { .. } => Ok(()),
        }
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.check(offset, len)?;
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

impl Storage for BoundedStorage {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_range(&self, offset: u64, len: usize) -> hdf5_reader::error::Result<StorageBuffer> {
        match self.read(offset, len) {
            Ok(bytes) => Ok(StorageBuffer::from_vec(bytes)),
            Err(e) => {
                let told = LibraryError::Other(e.message().to_string());
                lock(&self.state).failure.get_or_insert(e);
                Err(told)
            }
        }
    }
}

/// Refuses links to other files, which the library would else leave out.
struct NoOtherFiles;

impl ExternalLinkResolver for NoOtherFiles {
    fn resolve_external_link(&self, name: &str) -> hdf5_reader::error::Result<Option<Hdf5File>> {
        let why = format!("a link to another file, {name:?}, which is not read");
        Err(LibraryError::Other(why))
    }
}

/// A file that is open, and opened anew when the library keeps much of it.
pub struct BoundedFile {
    storage: Arc<BoundedStorage>,
    opened: Hdf5File,
}

impl BoundedFile {
    /// Opens a file of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if it is damaged; ENOMEM without
    /// memory.
    pub fn open(file: &Arc<File>, len: u64, bounds: ReadBounds) -> Result<Self> {
        let storage = Arc::new(BoundedStorage {
            file: file.clone(),
            len,
            bounds,
            state: Mutex::new(StorageState {
                largest: MAX_HEADER,
                ..StorageState::default()
            }),
        });
        let mut options = OpenOptions::default()
            .with_max_object_header_bytes(MAX_HEADER)
            .with_external_link_resolver(Arc::new(NoOtherFiles));
        options = match bounds {
            ReadBounds::Headers => options.with_chunk_cache_bytes(0).with_max_chunk_bytes(0),
            ReadBounds::Values { chunk, kept } => options
                .with_filter_registry(filters::registry(chunk))
                .with_chunk_cache_bytes(kept)
                .with_max_chunk_bytes(chunk),
        };
        let opened = contained(&storage, || {
            Hdf5File::from_storage_with_options(storage.clone(), options)
        })?;
        Ok(BoundedFile { storage, opened })
    }

    /// Returns the file, opened anew if the library keeps much of it.
    ///
    /// # Errors
    ///
    /// Those of [`BoundedFile::open`].
    pub fn fresh(&mut self) -> Result<&Hdf5File> {
        let storage = &self.storage;
        if lock(&storage.state).held.bytes() > MAX_KEPT {
            *self = BoundedFile::open(&storage.file, storage.len, storage.bounds)?;
        }
        Ok(&self.opened)
    }

    /// Admits reads of values of so many bytes.
    pub fn admit(&self, largest: usize) {
        let mut state = lock(&self.storage.state);
        state.largest = state.largest.max(largest);
    }

    /// Returns the file.
    pub fn opened(&self) -> &Hdf5File {
        &self.opened
    }

    /// Returns the number of bytes that were read since the file was opened.
    pub fn read(&self) -> usize {
        lock(&self.storage.state).read
    }

    /// Calls the library, and turns its error or panic into an error.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if the file is damaged or has what the
    /// library lacks, ENOMEM without memory, the error of a read.
    pub fn call<T>(
        &self,
        work: impl FnOnce(&Hdf5File) -> hdf5_reader::error::Result<T>,
    ) -> Result<T> {
        contained(&self.storage, || work(&self.opened))
    }
}

/// Calls the library. A panic unwinds to here: the caller drops the file, with all that the library
/// has made of it, since an error ends the reading. The library's locks are not poisoned.
fn contained<T>(
    storage: &BoundedStorage,
    work: impl FnOnce() -> hdf5_reader::error::Result<T>,
) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    let failure = lock(&storage.state).failure.take();
    match (done, failure) {
        // also one that the library takes for a link without target
        (_, Some(e)) => Err(e),
        (Ok(Ok(value)), None) => Ok(value),
        (Ok(Err(e)), None) => Err(translated(e)),
        (Err(_), None) => Err(Error::invalid("its HDF5 structure is damaged")),
    }
}

fn translated(e: LibraryError) -> Error {
    match e {
        LibraryError::Io(e) => e.into(),
        LibraryError::UnexpectedEof { .. } => Error::invalid(ENDS),
        // the caller knows the path of the group, and lacks the name of the object in it
        LibraryError::Context { path, source } => match path.strip_prefix("child ") {
            Some(child) => {
                let name = child.rsplit_once(" at ").map_or(child, |(name, _)| name);
                translated(*source).context(name.trim_matches('\''))
            }
            None => translated(*source),
        },
        LibraryError::UnsupportedFilter(_) | LibraryError::UnsupportedEncoding(_) => {
            Error::invalid(format!("{e}; `h5repack -f GZIP=1` makes a file without it"))
        }
        LibraryError::UnsupportedLayoutClass(3) => {
            Error::invalid("a virtual data set, whose values are in other files")
        }
        _ => Error::invalid(format!("HDF5: {e}")),
    }
}
