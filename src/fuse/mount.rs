//! Mounting and unmounting, done here rather than by fuser: its unmount takes away whatever is mounted at the path by
//! then, and it gives up where fusermount3 would help. A mount is known by its device number in the mount table;
//! nothing is unmounted that does not have it.

use crate::error::{Error, Kind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The type in the mount table.
pub const FS_TYPE: &str = "fuse.zarrfs";

/// How long a mount of ours may take to answer before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a mount did not come about.
#[derive(Debug)]
pub enum MountError {
    /// The mountpoint is missing, no directory, or taken.
    Mountpoint(String),
    /// A mount whose daemon is gone stands there.
    Stale(String),
    /// FUSE is not to be had.
    Unavailable(String),
    /// Anything else.
    Other(Error),
}

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `major:minor`, which no two mounted file systems share.
    pub device: String,
    /// Where it is mounted.
    pub path: PathBuf,
    /// The type of file system.
    pub fs_type: String,
}

/// A mounted mountpoint. It stays mounted when this is dropped.
pub struct Mountpoint {
    path: PathBuf,
    device: String,
    fuse: Option<OwnedFd>,
    aborted: AtomicBool,
}

/// How an unmount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Nothing of it is left.
    Gone,
    /// In use: what is gone from the path ends when its last file is closed.
    InUse,
    /// It is no longer at the path, or something else was mounted over it: left as it is.
    NotOnTop,
}

/// What to mount.
pub struct MountRequest<'a> {
    /// Shown as the source in the mount table.
    pub source: &'a str,
    /// Where to mount.
    pub path: &'a Path,
    /// Let other users in.
    pub allow_other: bool,
    /// Refuse writing.
    pub read_only: bool,
    /// Have every write synced before it returns.
    pub sync: bool,
    /// Map nothing as a program.
    pub noexec: bool,
    /// Remove a mount first whose daemon is gone.
    pub replace_stale: bool,
}

/// How [`unmount_path`] goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Not while it is in use.
    Unused,
    /// Also while in use: then it ends with its last file.
    Lazy,
    /// At once: requests under way fail, and what the daemon has not taken is lost.
    Forced,
}

impl Manner {
    fn flags(self) -> UnmountFlags {
        match self {
            Manner::Unused => UnmountFlags::empty(),
            Manner::Lazy => UnmountFlags::DETACH,
            // also what is in use, and without waiting for a daemon that hangs
            Manner::Forced => UnmountFlags::FORCE | UnmountFlags::DETACH,
        }
    }
}

impl Mountpoint {
    /// Mounts. Requests wait from now on, and nobody may touch the path until they are served.
    pub fn mount(request: &MountRequest) -> std::result::Result<Self, MountError> {
        let path = free_mountpoint(request)?;
        let fuse = match mount_directly(request, &path) {
            Ok(fuse) => fuse,
            Err(e @ (Errno::PERM | Errno::ACCESS)) => mount_by_helper(request, &path, e)?,
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                return Err(MountError::Unavailable(
                    "FUSE is not available: /dev/fuse is missing. Load the fuse module (modprobe fuse), or give the \
                     container the device (--device /dev/fuse). `zarrfs cat` works without FUSE"
                        .into(),
                ));
            }
            Err(e) => return Err(MountError::Other(Error::from(e).context(format!("mount {}", path.display())))),
        };
        let device = mounts_at(&path).ok().and_then(|mounts| mounts.last().cloned());
        let device = device.filter(|m| m.fs_type == FS_TYPE).map(|m| m.device).ok_or_else(|| {
            MountError::Other(Error::damaged(format!("{}: mounted, but not in the mount table", path.display())))
        })?;
        Ok(Mountpoint { path, device, fuse: Some(fuse), aborted: AtomicBool::new(false) })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The connection to the kernel; once.
    pub(super) fn take_device(&mut self) -> Option<OwnedFd> {
        self.fuse.take()
    }

    /// Unmounts, if it is still this mount that is on top at the path; also while it is in use.
    pub fn unmount(&self) -> Result<Unmounted> {
        match self.unmount_unused()? {
            Unmounted::InUse => unmount(&self.path, UnmountFlags::DETACH).map(|()| Unmounted::InUse),
            other => Ok(other),
        }
    }

    /// As [`Mountpoint::unmount`], but leaves a mount where it is that is in use.
    pub fn unmount_unused(&self) -> Result<Unmounted> {
        let top = mounts_at(&self.path)?.last().cloned();
        if top.is_none_or(|m| m.device != self.device) {
            return Ok(Unmounted::NotOnTop);
        }
        match unmount(&self.path, UnmountFlags::empty()) {
            Err(e) if e.errno() == libc::EBUSY => Ok(Unmounted::InUse),
            done => done.map(|()| Unmounted::Gone),
        }
    }

    /// Sets how many bytes the kernel asks for ahead of a forward reader. Only root may.
    pub fn set_readahead(&self, bytes: u64) -> Result<()> {
        let path = format!("/sys/class/bdi/{}/read_ahead_kb", self.device);
        std::fs::write(&path, (bytes / 1024).to_string()).map_err(|e| Error::from(e).context(path))
    }

    /// Whether [`Mountpoint::abort`] was called.
    pub fn aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Ends the connection: requests under way get EIO. False where the kernel's control files are not there.
    pub fn abort(&self) -> bool {
        let minor = self.device.rsplit(':').next().unwrap_or_default();
        self.aborted.store(true, Ordering::Relaxed);
        std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1").is_ok()
    }
}

/// The path in its absolute form, without what stale mounts may be removed from it.
fn free_mountpoint(request: &MountRequest) -> std::result::Result<PathBuf, MountError> {
    loop {
        match check_mountpoint(request.path) {
            Err(MountError::Stale(_)) if request.replace_stale => {
                log::info!("{}: removing a mount whose daemon is gone", request.path.display());
                unmount_path(request.path, Manner::Lazy).map_err(MountError::Other)?;
            }
            checked => return checked,
        }
    }
}

/// The path in its absolute form, if it can be mounted on. The mount table is asked first: a hung mount would not
/// answer.
fn check_mountpoint(path: &Path) -> std::result::Result<PathBuf, MountError> {
    let shown = path.display();
    let taken = |absolute: &Path| mounts_at(absolute).map(|m| m.last().is_some_and(|m| m.fs_type == FS_TYPE));
    let looked_at = match std::path::absolute(path) {
        Ok(absolute) if taken(&absolute).map_err(MountError::Other)? => look_at_mount(absolute),
        _ => std::fs::canonicalize(path).and_then(|p| Ok((std::fs::metadata(&p)?.is_dir(), p))),
    };
    let (is_directory, absolute) = match looked_at {
        Ok(found) => found,
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            return Err(MountError::Stale(format!(
                "mountpoint {shown}: a mount whose daemon is gone was left here. Remove it: zarrfs umount {shown}, or mount with --replace-stale"
            )));
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(MountError::Mountpoint(format!("mountpoint {shown}: is missing. Create it: mkdir -p {shown}")));
        }
        Err(e) => return Err(MountError::Mountpoint(format!("mountpoint {shown}: {}", Error::from(e)))),
    };
    if !is_directory {
        return Err(MountError::Mountpoint(format!("mountpoint {shown}: is not a directory")));
    }
    if taken(&absolute).map_err(MountError::Other)? {
        return Err(MountError::Mountpoint(format!("mountpoint {shown}: a store is mounted here already")));
    }
    Ok(absolute)
}

/// Asks a mount of ours whether it answers, for a few seconds; one that hangs counts as answering.
fn look_at_mount(path: PathBuf) -> std::io::Result<(bool, PathBuf)> {
    let (answer, wait) = std::sync::mpsc::channel();
    let looked_at = path.clone();
    // stat could be answered from the kernel's memory of a mount that is dead; statfs never is
    std::thread::Builder::new().spawn(move || answer.send(rustix::fs::statfs(&looked_at).map(|_| ())))?;
    wait.recv_timeout(PATIENCE).unwrap_or(Ok(()))?;
    Ok((true, path))
}

fn mount_directly(request: &MountRequest, path: &Path) -> std::result::Result<OwnedFd, Errno> {
    let fuse = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let other = if request.allow_other { ",allow_other" } else { "" };
    let data =
        format!("fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions{other}", fuse.as_raw_fd());
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, request.read_only);
    flags.set(MountFlags::SYNCHRONOUS, request.sync);
    flags.set(MountFlags::NOEXEC, request.noexec);
    rustix::mount::mount(request.source, path, FS_TYPE, flags, data.as_c_str())?;
    Ok(fuse)
}

/// Has fusermount3, which is setuid root, mount for us; it passes the device over a socket.
fn mount_by_helper(request: &MountRequest, path: &Path, denied: Errno) -> std::result::Result<OwnedFd, MountError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let other = |e: Errno| MountError::Other(Error::from(e).context("fusermount3"));
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).map_err(other)?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(other)?;
    let source = request.source.replace('\\', "\\\\").replace(',', "\\,");
    let allow = if request.allow_other { ",allow_other" } else { "" };
    let access = if request.read_only { "ro" } else { "rw" };
    let sync = if request.sync { ",sync" } else { "" };
    let noexec = if request.noexec { ",noexec" } else { "" };
    let flags = format!("{access},nosuid,nodev,noatime{sync}{noexec},default_permissions{allow}");
    let options = format!("{flags},subtype=zarrfs,fsname={source}");
    let child = Command::new("fusermount3")
        .args(["-o", &options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|_| {
            MountError::Unavailable(format!(
                "not allowed to mount ({}), and fusermount3, which could, is missing. Install the package fuse3, or run \
                 as root. `zarrfs cat` works without FUSE",
                Error::from(denied)
            ))
        })?;
    drop(theirs);
    let fuse = receive_fd(&ours);
    let output = child.wait_with_output().map_err(|e| MountError::Other(Error::from(e).context("fusermount3")))?;
    fuse.filter(|_| output.status.success()).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().lines().next().unwrap_or("it gave no reason").to_string();
        MountError::Unavailable(format!("mount {}: {said}", path.display()))
    })
}

fn receive_fd(socket: &OwnedFd) -> Option<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut buffers = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Unmounts what is on top at `path`, by fusermount3 where we may not.
fn unmount(path: &Path, flags: UnmountFlags) -> Result<()> {
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => unmount_by_helper(path, flags),
        done => Ok(done?),
    }
}

fn unmount_by_helper(path: &Path, flags: UnmountFlags) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(flags.contains(UnmountFlags::DETACH).then_some("-z")).arg("--").arg(path);
    let Ok(output) = command.stdin(Stdio::null()).stdout(Stdio::null()).output() else {
        return Err(Error::system(libc::EPERM).context("fusermount3 is missing, and only root can do without it"));
    };
    let said = String::from_utf8_lossy(&output.stderr);
    match said.trim().lines().next() {
        _ if output.status.success() => Ok(()),
        Some(said) if said.contains("busy") => Err(Error::system(libc::EBUSY)),
        // somebody else's
        Some(said) => Err(Error::new(Kind::System(libc::EPERM), said)),
        None => Err(Error::system(libc::EPERM)),
    }
}

/// Unmounts the zarrfs mount on top at `path`, also one whose daemon is gone. Somebody else's mount is an error, and
/// stays.
pub fn unmount_path(path: &Path, manner: Manner) -> Result<()> {
    // the path of a dead mount can't be resolved, its parent's can
    let absolute = std::fs::canonicalize(path).or_else(|_| {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::canonicalize(parent).map(|p| path.file_name().map_or(p.clone(), |name| p.join(name)))
    });
    let absolute = absolute.map_err(|e| Error::from(e).context(path.display()))?;
    match mounts_at(&absolute)?.last() {
        None => Err(Error::invalid("nothing is mounted here").context(path.display())),
        Some(m) if m.fs_type != FS_TYPE => {
            Err(Error::invalid(format!("a mount of type {}, not zarrfs's", m.fs_type)).context(path.display()))
        }
        Some(_) => unmount(&absolute, manner.flags()).map_err(|e| match e.errno() {
            libc::EBUSY => e.context(format!(
                "{}: in use. Leave the directory and close its files (fuser -vm {} lists them), or use --lazy",
                path.display(),
                path.display()
            )),
            _ => e.context(path.display()),
        }),
    }
}

/// Where the mount of zarrfs that `path` lies in is mounted; None if `path` lies in none.
pub fn mountpoint_of(path: &Path) -> Result<Option<PathBuf>> {
    let absolute = std::fs::canonicalize(path).map_err(Error::from)?;
    for above in absolute.ancestors() {
        if let Some(mount) = mounts_at(above)?.last() {
            return Ok((mount.fs_type == FS_TYPE).then(|| above.to_path_buf()));
        }
    }
    Ok(None)
}

/// The mounts at exactly `path`, an absolute path, the one on top last. It asks the mount table, never the mount.
pub fn mounts_at(path: &Path) -> Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|e| Error::from(e).context("/proc/self/mountinfo"))?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse_mountinfo).filter(|m| m.path == path).collect())
}

/// One line of mountinfo: `36 35 98:0 /root /mount/point options - type source super-options` (proc(5)).
fn parse_mountinfo(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let path = unescape(fields.nth(1)?);
    let fs_type = fields.skip_while(|f| *f != b"-").nth(1)?;
    Some(MountEntry { device, path, fs_type: String::from_utf8_lossy(fs_type).into_owned() })
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        match octal {
            Some(value) if byte == b'\\' => {
                out.push(value);
                rest = &tail[3..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mount_table() {
        let line = b"36 35 0:98 / /mnt/a\\040b\\134c rw,noatime shared:1 - fuse.zarrfs store,with,commas rw,user_id=0";
        let entry = parse_mountinfo(line).unwrap();
        assert_eq!(entry.path, Path::new("/mnt/a b\\c"));
        assert_eq!((entry.device.as_str(), entry.fs_type.as_str()), ("0:98", "fuse.zarrfs"));
        assert_eq!(parse_mountinfo(b"junk"), None);
    }
}
