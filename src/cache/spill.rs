//! Decoded chunks that are needed again but don't fit into memory, in a file without a name: it is gone with the last
//! reader, or with the process. It knows chunks by their numbers and marks, not how they were made.

use crate::array::{Opening, VersionTag};
use crate::error::{Error, Result};
use crate::util::memory::lock;
use crate::zarr::grid::ChunkId;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// `f_type` of file systems that keep their files in memory: tmpfs, ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Where chunks may be spilled to, and how much.
#[derive(Clone, Debug)]
pub struct SpillOptions {
    /// An existing directory.
    pub directory: PathBuf,
    /// Bytes of all spill files; 0 turns it off.
    pub limit: u64,
}

/// The spill files of a mount.
pub struct Spills {
    options: SpillOptions,
    /// Bytes that open spill files may come to hold.
    promised: Arc<AtomicU64>,
}

/// The spilled chunks of one working set of an array.
pub struct Spill {
    chunks: Range<u64>,
    chunk_size: u64,
    file: File,
    promised: Arc<AtomicU64>,
    /// Held while chunks are put. It protects nothing else.
    turn: Mutex<()>,
    /// Protects the map: which chunks are there, whole, of which version, and known as such in which epoch.
    there: Mutex<HashMap<ChunkId, (VersionTag, Opening)>>,
}

impl Spills {
    /// None is open yet.
    pub fn new(options: SpillOptions) -> Self {
        Spills { options, promised: Arc::default() }
    }

    /// True if there will never be any.
    pub fn is_off(&self) -> bool {
        self.options.limit == 0
    }

    /// A file with room for `chunks`, of `chunk_size` bytes each; an error that says why there is none. At most half of
    /// what is free is taken.
    pub fn open(&self, chunks: Range<u64>, chunk_size: usize) -> Result<Spill> {
        let SpillOptions { directory, limit } = &self.options;
        let chunk_size = chunk_size as u64;
        let bytes = (chunks.end - chunks.start).saturating_mul(chunk_size);
        let free = check(directory)?;
        if bytes > free / 2 {
            let why = format!("{bytes} bytes, more than half of the {free} free");
            return Err(Error::invalid(why).context(directory.display()));
        }
        let promise = |n: u64| n.checked_add(bytes).filter(|n| n <= limit);
        if let Err(n) = self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, promise) {
            return Err(Error::invalid(format!("{bytes} bytes, beside {n} in others more than the limit of {limit}")));
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).inspect_err(|_| {
            self.promised.fetch_sub(bytes, Ordering::Relaxed);
        });
        let (file, promised) = (opened?.into(), self.promised.clone());
        Ok(Spill { chunks, chunk_size, file, promised, turn: Mutex::default(), there: Mutex::default() })
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        let bytes = (self.chunks.end - self.chunks.start).saturating_mul(self.chunk_size);
        self.promised.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Spill {
    /// The chunks it has room for.
    pub fn chunks(&self) -> &Range<u64> {
        &self.chunks
    }

    /// To be held by who decodes chunks to put them here.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    fn place(&self, chunk: ChunkId) -> Option<u64> {
        self.chunks.contains(&chunk.0).then(|| (chunk.0 - self.chunks.start) * self.chunk_size)
    }

    /// The version of a chunk that is there, and the epoch in which it was known to be the latest.
    pub fn mark(&self, chunk: ChunkId) -> Option<(VersionTag, Opening)> {
        lock(&self.there).get(&chunk).copied()
    }

    /// Notes that a chunk which is there was still the latest in `epoch`.
    pub fn confirm(&self, chunk: ChunkId, epoch: Opening) {
        if let Some(there) = lock(&self.there).get_mut(&chunk) {
            there.1 = epoch;
        }
    }

    /// Reads bytes of a chunk that is there.
    pub fn read(&self, chunk: ChunkId, range: Range<usize>, out: &mut [u8]) -> Result<()> {
        let place = self.place(chunk).ok_or_else(|| Error::system(libc::EIO))?;
        Ok(self.file.read_exact_at(&mut out[..range.len()], place + range.start as u64)?)
    }

    /// Keeps a chunk; without room for it, nothing is kept.
    pub fn put(&self, chunk: ChunkId, mark: VersionTag, epoch: Opening, bytes: &[u8]) -> bool {
        let Some(place) = self.place(chunk).filter(|_| bytes.len() as u64 == self.chunk_size) else { return false };
        // half of another version must never be taken for it
        lock(&self.there).remove(&chunk);
        let done = self.file.write_all_at(bytes, place).is_ok();
        if done {
            lock(&self.there).insert(chunk, (mark, epoch));
        }
        done
    }
}

/// The bytes free in a directory that may be spilled to.
fn check(directory: &Path) -> Result<u64> {
    let stat = rustix::fs::statfs(directory).map_err(|e| Error::from(e).context(directory.display()))?;
    if IN_MEMORY.contains(&(stat.f_type as i64)) {
        return Err(Error::invalid("its files are kept in memory").context(directory.display()));
    }
    Ok(u64::try_from(stat.f_bsize).unwrap_or(0).saturating_mul(stat.f_bavail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Freshness;
    use crate::store::Version;

    #[test]
    fn what_was_put_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let spills = Spills::new(SpillOptions { directory: directory.path().into(), limit: 3000 });
        assert!(spills.open(5..9, 1000).is_err());
        let Ok(spill) = spills.open(5..8, 1000) else { return }; // a tmpfs
        assert!(spills.open(0..1, 1).is_err(), "the limit is for all");
        let (a, b) = (VersionTag::of(Some(&Version::Count(1))), VersionTag::of(Some(&Version::Count(2))));
        assert!(
            spill.put(ChunkId(7), a, Opening::default(), &[7; 1000])
                && spill.put(ChunkId(7), b, Opening::default(), &[8; 1000])
        );
        assert!(
            !spill.put(ChunkId(8), a, Opening::default(), &[7; 1000])
                && !spill.put(ChunkId(6), a, Opening::default(), &[7; 999])
        );
        assert_eq!((spill.mark(ChunkId(7)), spill.mark(ChunkId(6))), (Some((b, Opening::default())), None));
        let freshness = Freshness::default();
        freshness.begin_opening();
        spill.confirm(ChunkId(7), freshness.opening());
        assert_eq!(spill.mark(ChunkId(7)), Some((b, freshness.opening())));
        let mut out = [0; 20];
        spill.read(ChunkId(7), 990..1000, &mut out).unwrap();
        assert_eq!((&out[..10], &out[10..]), (&[8; 10][..], &[0; 10][..]));
        drop(spill);
        assert!(spills.open(0..3, 1000).is_ok());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
