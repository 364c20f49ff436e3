//! Temporary files, which get their final names once they are complete. A process that is killed
//! leaves them: their names say whose they are, so that they can be removed later, but never those
//! of a process that may still write.

use super::outside;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use zarrfs_base::error::{Error, Result};

/// Maximum number of names to try: files of a dead process, or of one in another container, may
/// have the same process number.
const MAX_NAMES: u32 = 1000;

/// Number of the next temporary file of this process.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// Age from which a temporary file counts as abandoned if its process runs elsewhere: on another
/// machine, in another container, or before a restart of the machine. No program writes to a file
/// for so long without changing its time.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// A checksum of what gives this process its number: the system since its start, and the namespace
/// of processes. `None` if they are unknown.
static NAMESPACE: LazyLock<Option<u32>> = LazyLock::new(|| {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(crc32fast::hash(format!("{boot}{namespace}").as_bytes()))
});

/// The name of a temporary file: a prefix, the number of the process, a counter and its namespace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TemporaryName {
    process: i32,
    /// `None` in names of former versions.
    namespace: Option<u32>,
}

/// Reads the namespace that names of temporary files state. A sandbox hides it later.
pub(super) fn prepare() {
    LazyLock::force(&NAMESPACE);
}

impl TemporaryName {
    /// Parses a name that begins with `prefix`.
    pub fn parse(name: &str, prefix: &str) -> Option<Self> {
        let (process, rest) = name.strip_prefix(prefix)?.split_once('-')?;
        let (counter, namespace) = rest
            .split_once('-')
            .map_or((rest, None), |(counter, rest)| (counter, Some(rest)));
        let namespace = match namespace {
            Some(hex) if hex.len() == 8 => Some(u32::from_str_radix(hex, 16).ok()?),
            Some(_) => return None,
            None => None,
        };
        (is_number(process) && is_number(counter)).then(|| TemporaryName {
            process: process.parse().unwrap_or(0),
            namespace,
        })
    }

    /// Returns whether no process can still write the file, which was modified at this time.
    pub fn is_abandoned(&self, modified: SystemTime) -> bool {
        if self.namespace.is_some() && self.namespace == *NAMESPACE {
            return Pid::from_raw(self.process)
                .is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        }
        modified.elapsed().is_ok_and(|age| age > ABANDONED)
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A temporary file. The file that has its name is removed when it is dropped, unless it was
/// renamed.
pub(super) struct TemporaryFile<'a> {
    /// The file, open for writing.
    pub file: File,
    directory: &'a OwnedFd,
    /// `None` after the rename.
    name: Option<String>,
}

impl<'a> TemporaryFile<'a> {
    /// Creates a file in `directory`, with a [`TemporaryName`].
    pub fn create(directory: &'a OwnedFd, prefix: &str, mode: Mode) -> Result<Self> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..MAX_NAMES {
            let process = std::process::id();
            let namespace = NAMESPACE.unwrap_or_default();
            let name = format!(
                "{prefix}{process}-{}-{namespace:08x}",
                COUNTER.fetch_add(1, Ordering::Relaxed)
            );
            match outside::create(directory, &name, flags, mode) {
                Ok(fd) => {
                    return Ok(TemporaryFile {
                        file: File::from(fd),
                        directory,
                        name: Some(name),
                    });
                }
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
        Ok(self.rename_with(name, RenameFlags::empty())?)
    }

    /// Renames the file to `name`, relative to its directory. After an exchange, the other file
    /// has the temporary name.
    ///
    /// # Errors
    ///
    /// EEXIST or ENOENT if a file of that name exists or is missing against the flags, EINVAL if
    /// the file system does not support them.
    pub fn rename_with(&mut self, name: &str, flags: RenameFlags) -> rustix::io::Result<()> {
        let directory = self.directory;
        outside::rename(directory, self.name(), directory, name, flags)?;
        if !flags.contains(RenameFlags::EXCHANGE) {
            self.name = None;
        }
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && let Err(e) = outside::unlink(self.directory, name, AtFlags::empty())
            && e != Errno::NOENT
        {
            log::warn!("{name}: cannot be removed: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_processes_that_are_gone_are_abandoned() {
        let now = SystemTime::now();
        let old = now - ABANDONED - Duration::from_secs(1);
        let own = NAMESPACE.unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let parse = |name: String| TemporaryName::parse(&name, "x-").unwrap();
        let gone = parse(format!("x-{}-7-{own:08x}", ended.id()));
        assert!(gone.is_abandoned(now) && gone.is_abandoned(old));
        for process in [std::process::id(), 1] {
            let live = parse(format!("x-{process}-7-{own:08x}"));
            assert!(
                !live.is_abandoned(now) && !live.is_abandoned(old),
                "{live:?}"
            );
        }
        // a number says nothing elsewhere
        for name in [
            format!("x-{}-7-{:08x}", ended.id(), own ^ 1),
            format!("x-{}-7", ended.id()),
        ] {
            let other = parse(name);
            assert!(
                !other.is_abandoned(now)
                    && !other.is_abandoned(now + ABANDONED)
                    && other.is_abandoned(old)
            );
        }
    }

    #[test]
    fn names_of_other_files_are_not_parsed() {
        for name in [
            "x-1",
            "x-1-",
            "x--1",
            "x-a-1",
            "x-1-1-",
            "x-1-1-123",
            "x-1-1-0123456g",
            "y-1-1",
            "x-1-1-00000000-1",
        ] {
            assert_eq!(TemporaryName::parse(name, "x-"), None, "{name}");
        }
        let directory = tempfile::tempdir().unwrap();
        let opened = OwnedFd::from(File::open(directory.path()).unwrap());
        let file = TemporaryFile::create(&opened, "x-", Mode::RUSR).unwrap();
        let named = TemporaryName {
            process: std::process::id() as i32,
            namespace: *NAMESPACE,
        };
        assert_eq!(TemporaryName::parse(file.name(), "x-"), Some(named));
    }
}
