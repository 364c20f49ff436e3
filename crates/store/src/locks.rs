//! Locks of keys that are shared with other programs: one lock file per key in a separate
//! directory, as zarr-python's `ProcessSynchronizer` uses them (`fasteners.InterProcessLock`: a
//! file opened for appending, with a `fcntl` record lock on the whole file). The locks are
//! advisory. This module must not know the store whose keys it locks.
//!
//! Every wait has a timeout, since any process that may open a lock file can hold its lock forever.
//! A process that may only read the file can still take a shared lock, which delays the exclusive
//! one. Therefore users who cannot write a lock file cannot read it either.

use super::directory::stat_of;
use super::{DirectoryStore, Key, Readable, Version};
use rustix::fs::{Mode, fchmod, fstat};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::outside::{ANSWER_LIMIT, ask_outside};

/// Permissions of new lock files before the umask: programs that take locks open the file for
/// writing, and none reads it.
const LOCK_MODE: u32 = 0o622;

/// First and longest pause between two attempts to take a lock. The pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// A directory of lock files.
pub struct LockFiles {
    files: DirectoryStore,
    timeout: Duration,
}

/// The locks of a key, held until they are dropped.
#[derive(Default)]
pub struct KeyLock {
    /// Closing the files releases the locks.
    files: Vec<File>,
}

impl KeyLock {
    /// Adds the lock that an open file holds.
    pub(crate) fn and(mut self, file: Option<File>) -> KeyLock {
        self.files.extend(file);
        self
    }
}

impl LockFiles {
    /// Opens the lock files in `directory`, which is created if it is missing. It must not be the
    /// directory of the store. A wait for a lock ends after `timeout`.
    pub fn open(directory: &Path, timeout: Duration) -> Result<Self> {
        let metadata = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::metadata(directory))
            .map_err(|e| Error::from(e).context(directory.display()))?;
        if metadata.mode() & 0o002 != 0 {
            log::warn!(
                "{}: any user can create lock files here, and delay writers by holding them",
                directory.display()
            );
        }
        // a lock file need not survive a power loss
        Ok(LockFiles {
            files: DirectoryStore::open(directory)?.without_fsync(),
            timeout,
        })
    }

    /// Waits for the lock of `key` and takes it. The timeout is measured from `since`.
    ///
    /// # Errors
    ///
    /// EIO if the lock is still held after the timeout; the message names the process that holds
    /// it.
    pub fn lock(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.wait_for(key, since)
            .map_err(|e| e.context(format!("the lock file {}{key}", self.files.location())))
    }

    fn wait_for(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        let file = self.file(key)?;
        let mut pause = FIRST_PAUSE;
        while !try_lock(&file)? {
            let left = self.timeout.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(self.held(&file));
            }
            std::thread::sleep(pause.min(left));
            pause = LAST_PAUSE.min(pause * 2);
        }
        Ok(KeyLock { files: vec![file] })
    }

    fn held(&self, file: &File) -> Error {
        let timeout = self.timeout;
        let holder = holder(file);
        let why = format!(
            "{holder} has held it for {timeout:?}; end that program, or raise --lock-timeout"
        );
        Error::new(Kind::System(libc::EIO), why)
    }

    fn file(&self, key: &Key) -> Result<File> {
        let opened = match self
            .files
            .open_lock_file(key, Mode::from_raw_mode(LOCK_MODE))?
        {
            Some(file) => file,
            None => {
                self.files.make_parents(key.as_str())?;
                let file = self
                    .files
                    .open_lock_file(key, Mode::from_raw_mode(LOCK_MODE))?;
                file.ok_or_else(|| Error::system(libc::ENOENT))?
            }
        };
        restrict_readers(&opened)?;
        Ok(opened)
    }
}

/// Removes the permission to read a lock file of this user from the users who cannot write it:
/// zarr-python creates such files. A file with content or with several links is not a lock file and
/// stays unchanged.
fn restrict_readers(file: &File) -> Result<()> {
    let stat = fstat(file)?;
    let readers = stat.st_mode & !(stat.st_mode << 1) & 0o044;
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    if readers != 0 && is_ours && stat.st_nlink == 1 && stat.st_size == 0 {
        // file systems without modes refuse
        let _ = fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o777 & !readers));
    }
    Ok(())
}

/// Describes an exclusive lock of a whole file.
fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Takes the lock of a whole file unless it is held. The lock belongs to the open file, not to the
/// process: it also excludes other threads of this process, and survives when one of them closes
/// the same file. It conflicts with the locks of processes that fasteners takes.
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

/// The service outside a sandbox that runs [`name_holder`]: inside, /proc shows no other processes.
pub const NAME_HOLDER: &str = "name-holder";

/// Names the process that holds the lock of a file, for a message.
fn holder(file: &File) -> String {
    let mut found = whole_file();
    // SAFETY: the descriptor is open as long as `file` is, and the call writes nothing but `found`.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut found) } == 0;
    let is_held = asked && found.l_type != libc::F_UNLCK as libc::c_short;
    let name = match stat_of(file).map(|stat| stat.version) {
        Ok(Version::File { inode, .. }) if is_held => {
            let argument = format!("{inode} {}", found.l_pid);
            match ask_outside(NAME_HOLDER, argument.as_bytes(), ANSWER_LIMIT) {
                Some(answer) => answer
                    .ok()
                    .and_then(|answer| String::from_utf8(answer.bytes).ok()),
                None => name_holder(&argument),
            }
        }
        _ => None,
    };
    name.unwrap_or_else(|| "another process".to_string())
}

/// Names a process that holds a lock. `argument` has two numbers: the inode of the file, and the
/// process, or a number below 1 for the lock of an open file. Returns `None` if /proc does not show
/// the process.
pub fn name_holder(argument: &str) -> Option<String> {
    let (inode, pid) = argument.split_once(' ')?;
    let inode: u64 = inode.parse().ok()?;
    let pid: i32 = pid.parse().ok()?;
    let pid = if pid > 0 {
        pid.to_string()
    } else {
        // the lock belongs to an open file, which several processes may share
        process_with_lock(inode)?
    };
    Some(match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim().escape_default()),
        Err(_) => format!("process {pid}"),
    })
}

/// Returns the number of a process that has an open-file lock of the file with this inode number.
fn process_with_lock(inode: u64) -> Option<String> {
    let inode = format!(":{inode} ");
    let names = std::fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut numbers = names.filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    numbers.find(|number| has_lock(number, &inode))
}

/// Returns whether a process has an open-file lock; `inode` is the inode as /proc spells it.
fn has_lock(pid: &str, inode: &str) -> bool {
    let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
    infos
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|info| std::fs::read_to_string(info.path()).ok())
        .any(|text| {
            text.lines().any(|line| {
                line.starts_with("lock:") && line.contains("OFDLCK") && line.contains(inode)
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_lock_excludes_other_threads() {
        let dir = tempfile::tempdir().unwrap();
        let locks = LockFiles::open(&dir.path().join("made/here"), LONG).unwrap();
        let inside = AtomicU32::new(0);
        let rounds = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = locks
                            .lock(&Key::root().join("a/b/0.0"), Instant::now())
                            .unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 200);
        // the lock of another key is independent
        let lock = |key: &str| locks.lock(&Key::root().join(key), Instant::now()).unwrap();
        let _a = lock("a/x");
        let _b = lock("a/y");
        assert!(dir.path().join("made/here/a/b/0.0").is_file());
    }

    #[test]
    fn an_error_names_the_lock_file() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        let locks = LockFiles::open(dir.path(), LONG).unwrap();
        let error = locks
            .lock(&Key::root().join("out/0"), Instant::now())
            .err()
            .unwrap();
        let place = dir.path().display();
        assert_eq!(
            error.to_string(),
            format!("the lock file {place}/out/0: a symbolic link leads out of the store")
        );
    }

    #[test]
    fn a_timeout_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let locks = LockFiles::open(dir.path(), Duration::from_millis(50)).unwrap();
        let key = Key::root().join("a/0");
        let began = Instant::now();
        let held = locks.lock(&key, began).unwrap();
        let error = locks.lock(&key, began).err().unwrap();
        let own = format!("process {} (", std::process::id());
        assert_eq!(error.errno(), libc::EIO);
        assert!(
            error.to_string().contains(&own) && error.to_string().contains("--lock-timeout"),
            "{error}"
        );
        // after the timeout a free lock can still be taken
        drop(held);
        std::thread::sleep(Duration::from_millis(60));
        locks.lock(&key, began).unwrap();
    }

    #[test]
    fn users_without_write_permission_cannot_open_a_lock_file() {
        let dir = tempfile::tempdir().unwrap();
        let locks = LockFiles::open(dir.path(), LONG).unwrap();
        let mode = |name: &str| {
            std::fs::metadata(dir.path().join(name))
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        let made = |name: &str, mode: u32, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        // files that zarr-python creates under three umasks, and one that is not a lock file
        for (name, mode, text) in [
            ("a", 0o644, ""),
            ("b", 0o664, ""),
            ("c", 0o666, ""),
            ("d", 0o644, "text"),
        ] {
            made(name, mode, text);
        }
        for name in ["a", "b", "c", "d", "new"] {
            locks.lock(&Key::root().join(name), Instant::now()).unwrap();
        }
        assert_eq!(["a", "b", "c", "d"].map(mode), [0o600, 0o660, 0o666, 0o644]);
        assert_eq!(mode("new") & 0o044, 0);
    }
}
