//! Spill files: decoded chunks that are needed again and do not fit into memory. A spill file has
//! no name, so that it disappears with its last reader or with the process. This module knows the
//! numbers and versions of chunks, not their origin.

use crate::array::{Opening, VersionTag};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::spill_file::{SpillGrant, SpillOptions, SpillSpace};
use zarrfs_format::grid::ChunkId;

/// The spill files of a mount.
pub struct Spills(Arc<SpillSpace>);

/// The spill file of one working set of an array.
pub struct Spill {
    chunks: Range<u64>,
    max_chunk_size: u64,
    file: File,
    _space: SpillGrant,
    /// Held while chunks are put. Protects no data.
    put_lock: Mutex<()>,
    /// Protects the map: the version of each chunk in the file, and the opening in which the store
    /// confirmed it.
    versions: Mutex<HashMap<ChunkId, (VersionTag, Opening)>>,
}

impl Spills {
    /// Returns the spill files of a new mount.
    pub fn new(options: SpillOptions) -> Self {
        Spills(SpillSpace::new(options))
    }

    /// Returns whether spill files are turned off.
    pub fn is_off(&self) -> bool {
        self.0.is_off()
    }

    /// Opens a file for `chunks` of at most `max_chunk_size` bytes each.
    ///
    /// # Errors
    ///
    /// Fails if the file may exceed the limit or half of the free space, or if the directory is in
    /// memory.
    pub fn open(&self, chunks: Range<u64>, max_chunk_size: usize) -> Result<Spill> {
        let max_chunk_size = max_chunk_size as u64;
        let bytes = (chunks.end - chunks.start).saturating_mul(max_chunk_size);
        let space = self.0.take(bytes)?;
        Ok(Spill {
            chunks,
            max_chunk_size,
            file: self.0.open()?,
            _space: space,
            put_lock: Mutex::default(),
            versions: Mutex::default(),
        })
    }
}

impl Spill {
    /// Returns the chunks that the file is for.
    pub fn chunks(&self) -> &Range<u64> {
        &self.chunks
    }

    /// Locks the file for a thread that decodes chunks to put them here.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        lock(&self.put_lock)
    }

    fn position(&self, chunk: ChunkId) -> Option<u64> {
        self.chunks
            .contains(&chunk.0)
            .then(|| (chunk.0 - self.chunks.start) * self.max_chunk_size)
    }

    /// Returns the version of a chunk in the file, and the opening in which the store confirmed it.
    pub fn version(&self, chunk: ChunkId) -> Option<(VersionTag, Opening)> {
        lock(&self.versions).get(&chunk).copied()
    }

    /// Records that the store confirmed the version of a chunk in `opening`.
    pub fn confirm(&self, chunk: ChunkId, opening: Opening) {
        if let Some(version) = lock(&self.versions).get_mut(&chunk) {
            version.1 = opening;
        }
    }

    /// Reads bytes of a chunk in the file.
    pub fn read(&self, chunk: ChunkId, range: Range<usize>, out: &mut [u8]) -> Result<()> {
        let position = self
            .position(chunk)
            .ok_or_else(|| Error::system(libc::EIO))?;
        Ok(self
            .file
            .read_exact_at(&mut out[..range.len()], position + range.start as u64)?)
    }

    /// Puts a chunk into the file. Returns false if it could not be written.
    pub fn put(&self, chunk: ChunkId, tag: VersionTag, confirmed: Opening, bytes: &[u8]) -> bool {
        let fits = bytes.len() as u64 <= self.max_chunk_size;
        let Some(position) = self.position(chunk).filter(|_| fits) else {
            return false;
        };
        // a reader must not take a half-written chunk for either version
        lock(&self.versions).remove(&chunk);
        let done = self.file.write_all_at(bytes, position).is_ok();
        if done {
            lock(&self.versions).insert(chunk, (tag, confirmed));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Freshness;
    use zarrfs_store::Version;

    #[test]
    fn chunks_that_were_put_are_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let spills = Spills::new(SpillOptions {
            directory: directory.path().into(),
            limit: 3000,
        });
        assert!(spills.open(5..9, 1000).is_err());
        let Ok(spill) = spills.open(5..8, 1000) else {
            return;
        }; // a tmpfs
        assert!(spills.open(0..1, 1).is_err(), "the limit is for all");
        let a = VersionTag::of(Some(&Version::Count(1)));
        let b = VersionTag::of(Some(&Version::Count(2)));
        assert!(
            spill.put(ChunkId(7), a, Opening::default(), &[7; 1000])
                && spill.put(ChunkId(7), b, Opening::default(), &[8; 1000])
        );
        assert!(
            !spill.put(ChunkId(8), a, Opening::default(), &[7; 1000])
                && !spill.put(ChunkId(6), a, Opening::default(), &[7; 1001])
        );
        assert_eq!(
            (spill.version(ChunkId(7)), spill.version(ChunkId(6))),
            (Some((b, Opening::default())), None)
        );
        let freshness = Freshness::default();
        freshness.begin_opening();
        spill.confirm(ChunkId(7), freshness.opening());
        assert_eq!(spill.version(ChunkId(7)), Some((b, freshness.opening())));
        let mut out = [0; 20];
        spill.read(ChunkId(7), 990..1000, &mut out).unwrap();
        assert_eq!((&out[..10], &out[10..]), (&[8; 10][..], &[0; 10][..]));
        assert!(
            spill.put(ChunkId(5), a, Opening::default(), &[9; 10]),
            "chunks may be smaller than the largest"
        );
        spill.read(ChunkId(5), 0..10, &mut out).unwrap();
        assert_eq!(out[..10], [9; 10]);
        drop(spill);
        assert!(spills.open(0..3, 1000).is_ok());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
