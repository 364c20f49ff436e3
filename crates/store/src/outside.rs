//! Changes of directories by another process. A process in a sandbox may use the directory of its
//! store, and no other that takes its place: programs that write a whole store remove the directory
//! and make another one. From then on a process outside makes the calls that the sandbox refuses,
//! in the new directory alone.

use rustix::fs::{self, AtFlags, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::{Errno, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A call of a process in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryCall {
    /// openat2(2), with its flags, mode and resolution.
    Open(String, OFlags, Mode, ResolveFlags),
    /// mkdirat(2).
    MakeDirectory(String, Mode),
    /// unlinkat(2).
    Unlink(String, AtFlags),
    /// renameat2(2), with a second directory.
    Rename(String, String, RenameFlags),
}

/// Makes a call in directories, one or two, outside the sandbox. Returns the opened file.
type MakeOutside =
    dyn Fn(&DirectoryCall, &[BorrowedFd]) -> Result<Option<OwnedFd>> + Send + Sync + 'static;

static OUTSIDE: OnceLock<Box<MakeOutside>> = OnceLock::new();

/// Whether another directory took the place of the store.
static IS_REPLACED: AtomicBool = AtomicBool::new(false);

/// Makes another process change the directory that takes the place of the store.
pub fn change_directories_by(outside: Box<MakeOutside>) {
    let _ = OUTSIDE.set(outside);
}

/// Records that another directory took the place of the store.
pub(crate) fn set_replaced() {
    IS_REPLACED.store(true, Ordering::Relaxed);
}

impl DirectoryCall {
    /// Makes the call in this process.
    ///
    /// # Errors
    ///
    /// EINVAL if a directory is missing.
    pub fn make(&self, directories: &[BorrowedFd]) -> Result<Option<OwnedFd>> {
        let directory = directories.first().ok_or(Errno::INVAL)?;
        match self {
            DirectoryCall::Open(path, flags, mode, resolve) => {
                fs::openat2(directory, path, *flags, *mode, *resolve).map(Some)
            }
            DirectoryCall::MakeDirectory(name, mode) => {
                fs::mkdirat(directory, name, *mode).map(|()| None)
            }
            DirectoryCall::Unlink(name, flags) => {
                fs::unlinkat(directory, name, *flags).map(|()| None)
            }
            DirectoryCall::Rename(from, to, flags) => {
                let other = directories.get(1).ok_or(Errno::INVAL)?;
                fs::renameat_with(directory, from, other, to, *flags).map(|()| None)
            }
        }
    }

    /// Returns the call as bytes, for [`DirectoryCall::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, numbers, names) = match self {
            DirectoryCall::Open(path, flags, mode, resolve) => (
                b'o',
                [
                    u64::from(flags.bits()),
                    u64::from(mode.bits()),
                    resolve.bits(),
                ],
                [path.as_str(), ""],
            ),
            DirectoryCall::MakeDirectory(name, mode) => {
                (b'm', [u64::from(mode.bits()), 0, 0], [name.as_str(), ""])
            }
            DirectoryCall::Unlink(name, flags) => {
                (b'u', [u64::from(flags.bits()), 0, 0], [name.as_str(), ""])
            }
            DirectoryCall::Rename(from, to, flags) => (
                b'r',
                [u64::from(flags.bits()), 0, 0],
                [from.as_str(), to.as_str()],
            ),
        };
        let mut bytes = vec![kind];
        numbers
            .iter()
            .for_each(|number| bytes.extend(number.to_le_bytes()));
        // no name has a zero
        bytes.extend_from_slice(names.join("\0").as_bytes());
        bytes
    }

    /// Parses a call.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (numbers, names) = rest.split_at_checked(24)?;
        let mut numbers = numbers
            .chunks_exact(8)
            .map(|number| number.try_into().map_or(0, u64::from_le_bytes));
        let [first, second, third] = std::array::from_fn(|_| numbers.next().unwrap_or_default());
        let (from, to) = std::str::from_utf8(names).ok()?.split_once('\0')?;
        let low = u32::try_from(first).ok()?;
        Some(match kind {
            b'o' => DirectoryCall::Open(
                from.to_string(),
                OFlags::from_bits_retain(low),
                Mode::from_bits_retain(u32::try_from(second).ok()?),
                ResolveFlags::from_bits_retain(third),
            ),
            b'm' => DirectoryCall::MakeDirectory(from.to_string(), Mode::from_bits_retain(low)),
            b'u' => DirectoryCall::Unlink(from.to_string(), AtFlags::from_bits_retain(low)),
            b'r' => DirectoryCall::Rename(
                from.to_string(),
                to.to_string(),
                RenameFlags::from_bits_retain(low),
            ),
            _ => return None,
        })
    }
}

/// Makes a call outside if the sandbox has refused it here with `error`.
fn retry_outside(
    error: Errno,
    directories: &[BorrowedFd],
    call: impl FnOnce() -> DirectoryCall,
) -> Result<Option<OwnedFd>> {
    match OUTSIDE.get() {
        Some(outside) if error == Errno::ACCESS && IS_REPLACED.load(Ordering::Relaxed) => {
            outside(&call(), directories)
        }
        _ => Err(error),
    }
}

/// Opens `path` below a directory as openat2(2) does.
pub(crate) fn open(
    directory: impl AsFd,
    path: &str,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    fs::openat2(&directory, path, flags, mode, resolve).or_else(|e| {
        let call = || DirectoryCall::Open(path.to_string(), flags, mode, resolve);
        retry_outside(e, &[directory.as_fd()], call)?.ok_or(Errno::IO)
    })
}

/// Creates a file as openat(2) does.
pub(crate) fn create(
    directory: impl AsFd,
    name: &str,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd> {
    fs::openat(&directory, name, flags, mode).or_else(|e| {
        let call = || DirectoryCall::Open(name.to_string(), flags, mode, ResolveFlags::empty());
        retry_outside(e, &[directory.as_fd()], call)?.ok_or(Errno::IO)
    })
}

/// Makes a directory as mkdirat(2) does.
pub(crate) fn make_directory(directory: impl AsFd, name: &str, mode: Mode) -> Result<()> {
    fs::mkdirat(&directory, name, mode).or_else(|e| {
        let call = || DirectoryCall::MakeDirectory(name.to_string(), mode);
        retry_outside(e, &[directory.as_fd()], call).map(drop)
    })
}

/// Removes a name as unlinkat(2) does.
pub(crate) fn unlink(directory: impl AsFd, name: &str, flags: AtFlags) -> Result<()> {
    fs::unlinkat(&directory, name, flags).or_else(|e| {
        let call = || DirectoryCall::Unlink(name.to_string(), flags);
        retry_outside(e, &[directory.as_fd()], call).map(drop)
    })
}

/// Renames as renameat2(2) does.
pub(crate) fn rename(
    from: impl AsFd,
    name: &str,
    to: impl AsFd,
    new: &str,
    flags: RenameFlags,
) -> Result<()> {
    fs::renameat_with(&from, name, &to, new, flags).or_else(|e| {
        let call = || DirectoryCall::Rename(name.to_string(), new.to_string(), flags);
        retry_outside(e, &[from.as_fd(), to.as_fd()], call).map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_parsed_as_they_were_written() {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        for call in [
            DirectoryCall::Open("a/b".into(), flags, Mode::RUSR, ResolveFlags::BENEATH),
            DirectoryCall::MakeDirectory("a".into(), Mode::RWXU),
            DirectoryCall::Unlink("a".into(), AtFlags::REMOVEDIR),
            DirectoryCall::Rename("a".into(), "b c".into(), RenameFlags::EXCHANGE),
        ] {
            assert_eq!(DirectoryCall::from_bytes(&call.to_bytes()), Some(call));
        }
        for bytes in [&b""[..], b"o", &[b'x'; 40], &[0; 25]] {
            assert_eq!(DirectoryCall::from_bytes(bytes), None);
        }
    }
}
