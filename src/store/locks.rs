//! Locks of keys that other programs take, too: one file for each in a directory of their own, as zarr-python's
//! `ProcessSynchronizer` has them (`fasteners.InterProcessLock`: the file opened to append, and a `fcntl` record lock on
//! all of it). A lock holds back whoever asks for it, nobody else; it knows nothing of the store whose keys it names.
//!
//! Every wait ends: any process that may open a lock file can hold its lock for ever. A process needs no more than the
//! right to read a file to hold a shared lock, which delays the exclusive one. Lock files are therefore not readable by
//! users who can't write them.

use super::directory::stat_of;
use super::{DirectoryStore, Key, Store, Version};
use crate::error::{Error, Kind, Result};
use rustix::fs::{Mode, fchmod, fstat};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Permissions of new lock files, before the umask: programs that take locks write, and none reads.
const LOCK_MODE: u32 = 0o622;

/// How often a lock that is held is tried. The pauses double, up to the last one.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// A directory of lock files.
pub struct LockFiles {
    files: DirectoryStore,
    timeout: Duration,
}

/// Held until it is dropped. Of a store without locks it holds nothing.
#[derive(Default)]
pub struct KeyLock {
    /// Closing it gives the lock back.
    _file: Option<File>,
}

impl LockFiles {
    /// Opens the lock files in `directory`, which is made if there is none; it must be another one than the store's. A
    /// wait for a lock ends after `timeout`.
    pub fn open(directory: &Path, timeout: Duration) -> Result<Self> {
        let failed = |e: std::io::Error| Error::from(e).context(directory.display());
        std::fs::create_dir_all(directory).map_err(failed)?;
        if std::fs::metadata(directory).map_err(failed)?.mode() & 0o002 != 0 {
            log::warn!("{}: any user can make lock files here, and delay writers by holding them", directory.display());
        }
        // what is locked after a power loss is of no use to anybody
        Ok(LockFiles { files: DirectoryStore::open(directory)?.without_fsync(), timeout })
    }

    /// Waits for the lock of `key` and takes it. The wait counts from `since`.
    ///
    /// # Errors
    ///
    /// EIO if the lock is still held after the timeout; the message says which process holds it.
    pub fn lock(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        let named = |e: Error| e.context(format!("the lock file {}{key}", self.files.location()));
        let file = self.file(key).map_err(named)?;
        let mut pause = FIRST_PAUSE;
        while !try_lock(&file).map_err(|e| named(e.into()))? {
            let left = self.timeout.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(named(self.held(&file)));
            }
            std::thread::sleep(pause.min(left));
            pause = LAST_PAUSE.min(pause * 2);
        }
        Ok(KeyLock { _file: Some(file) })
    }

    fn held(&self, file: &File) -> Error {
        let (timeout, holder) = (self.timeout, holder(file));
        let why = format!("{holder} has held it for {timeout:?}; end that program, or raise --lock-timeout");
        Error::new(Kind::System(libc::EIO), why)
    }

    fn file(&self, key: &Key) -> Result<File> {
        let opened = match self.files.open_lock_file(key, Mode::from_raw_mode(LOCK_MODE))? {
            Some(file) => file,
            None => {
                for (end, _) in key.as_str().match_indices('/') {
                    match self.files.make_prefix(&Key::root().join(&key.as_str()[..end])) {
                        Err(e) if e.errno() == libc::EEXIST => {}
                        made => made?,
                    }
                }
                let file = self.files.open_lock_file(key, Mode::from_raw_mode(LOCK_MODE))?;
                file.ok_or_else(|| Error::system(libc::ENOENT))?
            }
        };
        keep_from_readers(&opened)?;
        Ok(opened)
    }
}

/// Takes the right to read a lock file of ours from users who can't write it: zarr-python makes such files. A file with
/// content or with another name is none, whoever put it here.
fn keep_from_readers(file: &File) -> Result<()> {
    let stat = fstat(file)?;
    let readers = stat.st_mode & !(stat.st_mode << 1) & 0o044;
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    if readers != 0 && is_ours && stat.st_nlink == 1 && stat.st_size == 0 {
        // a file system without modes refuses
        let _ = fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o777 & !readers));
    }
    Ok(())
}

/// An exclusive lock of a whole file.
fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Locks the whole file, unless that lock is held. The lock belongs to the open file: unlike that of a process it holds
/// back other threads of ours, and stays when one of them closes the file. Those of processes, which fasteners takes,
/// conflict with it.
fn try_lock(file: &File) -> std::io::Result<bool> {
    let whole = whole_file();
    loop {
        // SAFETY: the descriptor is open as long as `file` is, and the call only reads `whole`.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &whole) } == 0 {
            return Ok(true);
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

/// Names the process that holds the lock of a file, for a message.
fn holder(file: &File) -> String {
    let mut found = whole_file();
    // SAFETY: the descriptor is open as long as `file` is, and the call writes nothing but `found`.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut found) } == 0;
    let pid = match found.l_pid {
        _ if !asked || found.l_type == libc::F_UNLCK as libc::c_short => None,
        pid if pid > 0 => Some(pid.to_string()),
        // the lock belongs to an open file, which may be open in several processes
        _ => process_with_lock(file),
    };
    let Some(pid) = pid else { return "another process".to_string() };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim().escape_default()),
        Err(_) => format!("process {pid}"),
    }
}

/// Returns the number of a process that has `file` open with the lock of an open file on it, as far as /proc tells.
fn process_with_lock(file: &File) -> Option<String> {
    let Version::File { inode, .. } = stat_of(file).ok()?.version else { return None };
    let (inode, is_lock) = (format!(":{inode} "), |line: &str| line.starts_with("lock:") && line.contains("OFDLCK"));
    let holds = |process: &Path| {
        let infos = std::fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
        let mut texts = infos.filter_map(|info| std::fs::read_to_string(info.path()).ok());
        texts.any(|text| text.lines().any(|line| is_lock(line) && line.contains(&inode)))
    };
    let names = std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut numbers = names.filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    numbers.find(|number| holds(&Path::new("/proc").join(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn threads_hold_each_other_back() {
        let dir = tempfile::tempdir().unwrap();
        let locks = LockFiles::open(&dir.path().join("made/here"), LONG).unwrap();
        let (inside, rounds) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = locks.lock(&Key::root().join("a/b/0.0"), Instant::now()).unwrap();
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
        let lock = |key: &str| locks.lock(&Key::root().join(key), Instant::now()).unwrap();
        let (_a, _b) = (lock("a/x"), lock("a/y"));
        assert!(dir.path().join("made/here/a/b/0.0").is_file());
    }

    #[test]
    fn a_lock_that_cannot_be_taken_names_its_file() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        let locks = LockFiles::open(dir.path(), LONG).unwrap();
        let error = locks.lock(&Key::root().join("out/0"), Instant::now()).err().unwrap();
        let place = dir.path().display();
        assert_eq!(error.to_string(), format!("the lock file {place}/out/0: a symbolic link leads out of the store"));
    }

    #[test]
    fn a_wait_ends_with_the_name_of_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let locks = LockFiles::open(dir.path(), Duration::from_millis(50)).unwrap();
        let (key, began) = (Key::root().join("a/0"), Instant::now());
        let held = locks.lock(&key, began).unwrap();
        let error = locks.lock(&key, began).err().unwrap();
        let own = format!("process {} (", std::process::id());
        assert_eq!(error.errno(), libc::EIO);
        assert!(error.to_string().contains(&own) && error.to_string().contains("--lock-timeout"), "{error}");
        // a wait that is over already still takes a lock that is free
        drop(held);
        std::thread::sleep(Duration::from_millis(60));
        locks.lock(&key, began).unwrap();
    }

    #[test]
    fn users_who_only_read_cannot_open_a_lock_file() {
        let dir = tempfile::tempdir().unwrap();
        let locks = LockFiles::open(dir.path(), LONG).unwrap();
        let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        let made = |name: &str, mode: u32, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        // as zarr-python makes them, with three umasks; and what is no lock file
        for (name, mode, text) in [("a", 0o644, ""), ("b", 0o664, ""), ("c", 0o666, ""), ("d", 0o644, "text")] {
            made(name, mode, text);
        }
        for name in ["a", "b", "c", "d", "new"] {
            locks.lock(&Key::root().join(name), Instant::now()).unwrap();
        }
        assert_eq!(["a", "b", "c", "d"].map(mode), [0o600, 0o660, 0o666, 0o644]);
        assert_eq!(mode("new") & 0o044, 0);
    }
}
