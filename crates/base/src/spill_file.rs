//! Unnamed files for bytes that do not fit into memory. The system deletes such a file with its
//! last user, which may be a process that keeps it for the next one. The module does not know what
//! the bytes mean.

use crate::error::{Error, ErrorContext, Kind, Result};
use crate::memory::lock;
use crate::outside::{ANSWER_LIMIT, Answer, ask_outside};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// `f_type` of file systems that keep their files in memory: tmpfs, ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// The directory of spill files, and the maximum of their size.
#[derive(Clone, Debug)]
pub struct SpillOptions {
    /// An existing directory.
    pub directory: PathBuf,
    /// Maximum size in bytes of one owner's spill files together; 0 turns them off.
    pub limit: u64,
}

/// The space on disk of spill files, which counts until their [`SpillGrant`] is dropped.
pub struct SpillSpace {
    options: SpillOptions,
    /// Number of bytes that the files may take.
    granted: AtomicU64,
}

/// Permission to put a number of bytes into spill files. The owner of the file drops it last.
pub struct SpillGrant {
    space: Arc<SpillSpace>,
    bytes: u64,
}

impl SpillSpace {
    /// Returns the space of files that do not exist yet.
    pub fn new(options: SpillOptions) -> Arc<Self> {
        Arc::new(SpillSpace {
            options,
            granted: AtomicU64::new(0),
        })
    }

    /// Returns whether there may be no spill files.
    pub fn is_off(&self) -> bool {
        self.options.limit == 0
    }

    /// Grants `bytes`.
    ///
    /// # Errors
    ///
    /// ENOSPC beyond the limit or if the bytes would take more than half of the free space;
    /// [`Kind::Invalid`] if the directory is in memory.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<SpillGrant> {
        let mut grant = SpillGrant {
            space: self.clone(),
            bytes: 0,
        };
        grant.grow(bytes)?;
        Ok(grant)
    }

    /// Opens a new file without a name.
    ///
    /// # Errors
    ///
    /// Those of opening a file.
    pub fn open(&self) -> Result<File> {
        unnamed_file(&self.options.directory)
    }
}

impl SpillGrant {
    /// Makes the grant `more` bytes larger.
    ///
    /// # Errors
    ///
    /// The errors of [`SpillSpace::take`].
    pub fn grow(&mut self, more: u64) -> Result<()> {
        let SpillOptions { directory, limit } = &self.space.options;
        let bytes = self.bytes.saturating_add(more);
        // earlier bytes of the grant are on the disk already
        let free = free_space(directory)?.saturating_add(self.bytes);
        if bytes > free / 2 {
            let why = format!("{bytes} bytes, more than half of the {free} that are free");
            return Err(no_space(&why).context(directory.display()));
        }
        let granted = &self.space.granted;
        let grown = granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |granted| {
            granted.checked_add(more).filter(|sum| sum <= limit)
        });
        if let Err(before) = grown {
            let [sum, limit] =
                [before.saturating_add(more), *limit].map(|bytes| bytes.div_ceil(1 << 20));
            let why = format!(
                "{sum} MiB in spill files, more than the {limit} MiB of --spill-size: mount with a larger one"
            );
            return Err(no_space(&why));
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for SpillGrant {
    fn drop(&mut self) {
        self.space.granted.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn no_space(why: &str) -> Error {
    Error::new(Kind::System(libc::ENOSPC), why)
}

/// A file that grows as bytes are put into it. The disk blocks of dropped bytes are freed.
pub struct SpillFile {
    options: SpillOptions,
    /// Protects the file and its sizes.
    state: Mutex<SpillState>,
}

struct SpillState {
    /// `None` until bytes are put.
    file: Option<Arc<File>>,
    end: u64,
    /// Number of bytes that are not dropped yet.
    live: u64,
}

/// Bytes in a spill file.
pub struct SpilledBytes {
    owner: Arc<SpillFile>,
    file: Arc<File>,
    range: Range<u64>,
}

impl SpillFile {
    /// Returns a spill file that continues `file`, or is opened when the first bytes are put.
    pub fn new(options: SpillOptions, file: Option<File>) -> Arc<Self> {
        let end = file
            .as_ref()
            .and_then(|file| Some(file.metadata().ok()?.len()));
        let state = SpillState {
            file: file.map(Arc::new),
            end: end.unwrap_or_default(),
            live: 0,
        };
        Arc::new(SpillFile {
            options,
            state: Mutex::new(state),
        })
    }

    /// Returns bytes that another process has put into the file, `None` if it does not hold them.
    /// The caller takes all of them before any is dropped, and each once.
    pub fn take_over(self: &Arc<Self>, range: Range<u64>) -> Option<SpilledBytes> {
        let mut state = lock(&self.state);
        let file = state.file.clone()?;
        if range.start >= range.end || range.end > state.end {
            return None;
        }
        state.live += range.end - range.start;
        Some(SpilledBytes {
            owner: self.clone(),
            file,
            range,
        })
    }

    /// Puts bytes into the file.
    ///
    /// # Errors
    ///
    /// Fails beyond the limit, if the bytes would take more than half of the free space, or if the
    /// directory is in memory.
    pub fn put(self: &Arc<Self>, bytes: &[u8]) -> Result<SpilledBytes> {
        let SpillOptions { directory, limit } = &self.options;
        let len = bytes.len() as u64;
        if *limit > 0 && len > free_space(directory)? / 2 {
            return Err(Error::system(libc::ENOSPC).context(directory.display()));
        }
        let (file, range) = {
            let mut state = lock(&self.state);
            if state.live.saturating_add(len) > *limit {
                return Err(Error::system(libc::ENOSPC).context("the limit of spilled bytes"));
            }
            let file = match &state.file {
                Some(file) => file.clone(),
                None => state
                    .file
                    .insert(Arc::new(unnamed_file(directory)?))
                    .clone(),
            };
            let start = state.end;
            (state.end, state.live) = (start + len, state.live + len);
            (file, start..start + len)
        };
        let spilled = SpilledBytes {
            owner: self.clone(),
            file,
            range,
        };
        spilled
            .file
            .write_all_at(bytes, spilled.range.start)
            .map_err(|e| Error::from(e).context(directory.display()))?;
        Ok(spilled)
    }
}

impl SpilledBytes {
    /// Returns the file and the range of these bytes in it.
    pub fn place(&self) -> (&File, Range<u64>) {
        (&self.file, self.range.clone())
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Drop for SpilledBytes {
    fn drop(&mut self) {
        let mut state = lock(&self.owner.state);
        state.live -= self.size();
        // no bytes are put meanwhile
        if state.live == 0 && self.file.set_len(0).is_ok() {
            state.end = 0;
            return;
        }
        drop(state);
        // a file system without hole punching keeps the blocks until the file is closed
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&*self.file, flags, self.range.start, self.size());
    }
}

/// The service outside a sandbox that opens the unnamed files of a directory.
pub const OPEN_UNNAMED: &str = "open-unnamed";

/// Opens a new file without a name in `directory`.
pub fn unnamed_file(directory: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        // the directory, which may be one for the files of all programs, is closed in a sandbox
        Err(Errno::ACCESS) => {
            let argument = directory.as_os_str().as_bytes();
            ask_outside(OPEN_UNNAMED, argument, ANSWER_LIMIT)
                .unwrap_or_else(|| Err(Errno::ACCESS.into()))
                .and_then(Answer::into_file)
        }
        opened => opened.map_err(Error::from),
    };
    Ok(opened.context(directory.display())?.into())
}

/// Returns the number of free bytes in the file system of a directory for spill files.
///
/// # Errors
///
/// Fails if the file system keeps its files in memory.
pub fn free_space(directory: &Path) -> Result<u64> {
    let stat =
        rustix::fs::statfs(directory).map_err(|e| Error::from(e).context(directory.display()))?;
    if IN_MEMORY.contains(&(stat.f_type as i64)) {
        return Err(Error::invalid("its files are kept in memory").context(directory.display()));
    }
    Ok(u64::try_from(stat.f_bsize)
        .unwrap_or(0)
        .saturating_mul(stat.f_bavail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_until_they_are_dropped() {
        let directory = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let options = SpillOptions {
            directory: directory.path().into(),
            limit: 10,
        };
        let spill = SpillFile::new(options.clone(), None);
        let Ok(first) = spill.put(&[1; 6]) else {
            return;
        }; // a tmpfs
        let second = spill.put(&[2; 4]).unwrap();
        assert!(spill.put(&[3]).is_err(), "the limit is for all");
        let read = |bytes: &SpilledBytes| {
            let (file, range) = bytes.place();
            let mut out = vec![0; bytes.size() as usize];
            file.read_exact_at(&mut out, range.start).unwrap();
            out
        };
        assert_eq!((read(&first), read(&second)), (vec![1; 6], vec![2; 4]));
        drop(first);
        let third = spill.put(&[3; 6]).unwrap();
        assert_eq!((read(&second), read(&third)), (vec![2; 4], vec![3; 6]));
        drop(second);
        // another process continues the file
        let (file, range) = third.place();
        let next = SpillFile::new(options, Some(file.try_clone().unwrap()));
        let again = next.take_over(range.clone()).unwrap();
        assert!(next.take_over(range.start..range.end + 1).is_none());
        let more = next.put(&[4; 4]).unwrap();
        assert_eq!((read(&again), read(&more)), (vec![3; 6], vec![4; 4]));
        assert!(next.put(&[5]).is_err());
        drop((again, more));
        assert_eq!(file.metadata().unwrap().len(), 0);
        drop(third);
        assert_eq!(lock(&spill.state).end, 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(
            SpillFile::new(
                SpillOptions {
                    directory: "/var/tmp".into(),
                    limit: 0
                },
                None
            )
            .put(&[1])
            .is_err()
        );
    }
}
