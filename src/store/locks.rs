//! Locks of keys that other programs take, too: one file for each in a directory of their own, as zarr-python's
//! `ProcessSynchronizer` has them (`fasteners.InterProcessLock`: `fcntl` record locks). A lock holds back whoever asks
//! for it, nobody else; it knows nothing of the store whose keys it names.

use super::{DirectoryStore, Key, Store};
use crate::error::{Error, Result};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A directory of lock files.
pub struct LockFiles {
    files: DirectoryStore,
}

/// Held until it is dropped. Of a store without locks it holds nothing.
#[derive(Default)]
pub struct KeyLock {
    /// Closing it gives the lock back.
    _file: Option<File>,
}

impl LockFiles {
    /// The lock files in `directory`, which is made if there is none: another one than the store's.
    pub fn open(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory).map_err(|e| Error::from(e).context(directory.display()))?;
        // what is locked after a power loss is of no use to anybody
        Ok(LockFiles { files: DirectoryStore::open(directory)?.without_fsync() })
    }

    /// Waits for the lock of `key` and takes it.
    pub fn lock(&self, key: &Key) -> Result<KeyLock> {
        let named = |e: Error| e.context(format!("the lock file {}{key}", self.files.location()));
        let file = self.file(key).map_err(named)?;
        lock_exclusively(&file).map_err(|e| named(e.into()))?;
        Ok(KeyLock { _file: Some(file) })
    }

    fn file(&self, key: &Key) -> Result<File> {
        match self.files.writable_file(key, true, false) {
            Err(e) if e.errno() == libc::ENOENT => {}
            file => return file,
        }
        for (end, _) in key.as_str().match_indices('/') {
            match self.files.make_prefix(&Key::root().join(&key.as_str()[..end])) {
                Err(e) if e.errno() == libc::EEXIST => {}
                made => made?,
            }
        }
        self.files.writable_file(key, true, false)
    }
}

/// Locks the whole file. The lock belongs to the open file: unlike that of a process it holds back other threads of
/// ours, and stays when one of them closes the file. Those of processes, which fasteners takes, conflict with it.
fn lock_exclusively(file: &File) -> std::io::Result<()> {
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    loop {
        // SAFETY: the descriptor is open as long as `file` is, and the call only reads `whole`.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &whole) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn threads_hold_each_other_back() {
        let dir = tempfile::tempdir().unwrap();
        let locks = LockFiles::open(&dir.path().join("made/here")).unwrap();
        let (inside, rounds) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = locks.lock(&Key::root().join("a/b/0.0")).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 200);
        // another key's is another lock
        let (_a, _b) = (locks.lock(&Key::root().join("a/x")).unwrap(), locks.lock(&Key::root().join("a/y")).unwrap());
        assert!(dir.path().join("made/here/a/b/0.0").is_file());
    }

    #[test]
    fn a_lock_that_cannot_be_taken_names_its_file() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        let locks = LockFiles::open(dir.path()).unwrap();
        let error = locks.lock(&Key::root().join("out/0")).err().unwrap();
        let place = dir.path().display();
        assert_eq!(error.to_string(), format!("the lock file {place}/out/0: a symbolic link leads out of the store"));
    }
}
