//! Temporary files, which get their final names once they are complete.

use crate::error::{Error, Result};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of names to try: files of a dead process, or of one in another container, may have the same
/// process number.
const MAX_NAMES: u32 = 1000;

/// Number of the next temporary file of this process.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A temporary file. It is removed when dropped unless it was renamed.
pub(super) struct TemporaryFile<'a> {
    /// The file, open for writing.
    pub file: File,
    directory: &'a OwnedFd,
    /// `None` after the rename.
    name: Option<String>,
}

impl<'a> TemporaryFile<'a> {
    /// Creates a file in `directory`. Its name is `prefix`, the process number, a hyphen and another number.
    pub fn create(directory: &'a OwnedFd, prefix: &str, mode: Mode) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..MAX_NAMES {
            let name = format!("{prefix}{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
            match fs::openat(directory, &name, flags, mode) {
                Ok(fd) => return Ok(TemporaryFile { file: File::from(fd), directory, name: Some(name) }),
                Err(Errno::EXIST | Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::system(libc::EEXIST))
    }

    /// Returns the temporary name, which is empty after the rename.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Renames the file to `name`, relative to its directory, and replaces a file of that name.
    pub fn rename_to(&mut self, name: &str) -> Result<()> {
        fs::renameat(self.directory, self.name(), self.directory, name)?;
        self.name = None;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && let Err(e) = fs::unlinkat(self.directory, name, AtFlags::empty())
            && e != Errno::NOENT
        {
            log::warn!("{name}: cannot be removed: {e}");
        }
    }
}
