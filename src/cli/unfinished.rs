//! The unfinished output of a verb that creates an array, a store or an archive. It is removed
//! after an error, and when a signal ends the process.
//!
//! Invariant: a verb that fails leaves nothing that a reader sees. In a directory the output is
//! created under a hidden name and renamed when it is complete, so that this holds even for SIGKILL
//! and a power loss, which leave only the hidden directory. In a remote store, which has no atomic
//! rename, the keys of a new array are deleted.

use crate::array::hierarchy::OWN;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use signal_hook::consts::SIGXCPU;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::signals::{ENDING, SIGNALED, is_ignored};

/// Maximum number of attempts to remove a directory into which other threads still write.
const REMOVALS: usize = 1000;

/// Maximum number of hidden names that are tried: earlier processes of the same number may have
/// left some.
const MAX_NAMES: u32 = 1000;

type Removal = Box<dyn FnMut() + Send>;

/// A guard that removes unfinished output when it is dropped, or when a signal
/// that asks for an orderly end ends the process.
pub struct UnfinishedOutput {
    /// Protects the removal: it runs once, and never while the work is being finished. `None` once
    /// it is finished.
    removal: Arc<Mutex<Option<Removal>>>,
}

impl UnfinishedOutput {
    /// Registers `removal`, which is called unless the work is finished.
    pub fn new(removal: impl FnMut() + Send + 'static) -> Result<Self> {
        let removal: Arc<Mutex<Option<Removal>>> = Arc::new(Mutex::new(Some(Box::new(removal))));
        let ending: Vec<i32> = ENDING
            .into_iter()
            .chain([SIGXCPU])
            .filter(|signal| !is_ignored(*signal))
            .collect();
        let mut signals = Signals::new(ending)?;
        let shared = removal.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    let mut removal = lock(&shared);
                    // once the work is finished, the process is about to end by itself
                    if let Some(mut remove) = removal.take() {
                        remove();
                        // fails for a signal that it does not know
                        let _ = emulate_default_handler(signal);
                        std::process::exit(SIGNALED + signal);
                    }
                }
            })?;
        Ok(UnfinishedOutput { removal })
    }

    /// Calls `finish`, and cancels the removal if it succeeds. No signal is handled in between.
    pub fn finish<T>(&self, finish: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut removal = lock(&self.removal);
        let done = finish()?;
        *removal = None;
        Ok(done)
    }
}

impl Drop for UnfinishedOutput {
    fn drop(&mut self) {
        // locked during the removal, so that a signal handler does not exit before it is complete
        let mut removal = lock(&self.removal);
        if let Some(mut remove) = removal.take() {
            remove();
        }
    }
}

/// A file or directory that is made in a hidden directory beside its final name.
pub struct StagedOutput {
    /// The directory of the final name.
    beside: PathBuf,
    hidden: PathBuf,
    unfinished: UnfinishedOutput,
}

impl StagedOutput {
    /// Creates the hidden directory in `beside`.
    pub fn new(beside: &Path) -> Result<Self> {
        let hidden = hidden_directory(beside)?;
        let removed = hidden.clone();
        let unfinished = UnfinishedOutput::new(move || remove_directory(&removed))?;
        Ok(StagedOutput {
            beside: beside.to_path_buf(),
            hidden,
            unfinished,
        })
    }

    /// Returns the path of a name in the hidden directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.hidden.join(name)
    }

    /// Calls `rename`, which gives the output, complete and durable, its final name.
    pub fn finish(&self, rename: impl FnOnce() -> Result<()>) -> Result<()> {
        self.unfinished.finish(rename)?;
        remove_directory(&self.hidden);
        sync_directory(&self.beside)
    }
}

/// Creates a hidden directory in `parent` that no other program uses. zarrfs shows its name in no
/// mount, and it has no document, so that other readers don't treat it as a group.
fn hidden_directory(parent: &Path) -> Result<PathBuf> {
    for n in 0..MAX_NAMES {
        let path = parent.join(format!("{OWN}create-{}-{n}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::from(e).context(parent.display())),
        }
    }
    Err(Error::system(libc::EEXIST).context(parent.display()))
}

/// Removes a directory with everything in it, while other threads of the process may still write
/// into it.
fn remove_directory(path: &Path) {
    for _ in 0..REMOVALS {
        match std::fs::remove_dir_all(path) {
            Err(e)
                if e.kind() == ErrorKind::DirectoryNotEmpty
                    || e.kind() == ErrorKind::NotFound && path.exists() => {}
            _ => return,
        }
    }
}

/// Renames a file or directory to a name that must be free.
pub fn rename_to_free_name(from: &Path, to: &Path) -> Result<()> {
    let renamed = match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // the file system does not know the flag
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if to.symlink_metadata().is_err() => {
            std::fs::rename(from, to).map_err(Error::from)
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(Error::system(libc::EEXIST)),
        renamed => renamed.map_err(Error::from),
    };
    renamed.context(to.display())
}

/// Syncs a directory, so that the names in it survive a power loss.
fn sync_directory(path: &Path) -> Result<()> {
    match std::fs::File::open(path).and_then(|directory| directory.sync_all()) {
        // EINVAL means that the file system can't sync directories
        Err(e) if e.raw_os_error() != Some(libc::EINVAL) => {
            Err(Error::from(e).context(path.display()))
        }
        _ => Ok(()),
    }
}
