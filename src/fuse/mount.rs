//! Mounting and unmounting. fuser could do both, but it unmounts any mount at the path, and fails
//! where fusermount3 would succeed. This module identifies its mount by the device number in the
//! mount table and by the number that statx tells, and unmounts no other.

use super::control::read_statistics;
use super::guard::MountGuard;
use super::inherited;
use super::mount_place::{
    FS_TYPE, MountEntry, MountPlace, abort_file, entry_of, mounts, mounts_at, open_directory,
    path_of, path_to_mount, proc_path,
};
use super::namespace;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{self, MountAttrFlags, MoveMountFlags, UnmountFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zarrfs_base::error::{Error, ErrorContext, Result, is_sandboxed};
use zarrfs_sandbox::PathAccess;

/// Maximum number of searches for a mount whose directories are renamed meanwhile, and of attempts
/// to unmount.
const ATTEMPTS: u32 = 10;

/// Time between two attempts to unmount a mount in use.
const MOMENT: Duration = Duration::from_millis(10);

/// The reason why mounting failed.
#[derive(Debug)]
pub enum MountError {
    /// The mountpoint is missing, not a directory, or in use.
    Mountpoint(String),
    /// A mount whose daemon has ended is there.
    Stale(String),
    /// FUSE is not available.
    Unavailable(String),
    /// Another error.
    Other(Error),
}

/// The outcome of mounting.
type MountResult<T> = std::result::Result<T, MountError>;

/// A mount. It stays mounted when this is dropped.
pub struct Mountpoint {
    /// The path at the time of mounting, for messages.
    path: PathBuf,
    /// `None` if another program has mounted, and unmounts.
    place: Option<MountPlace>,
    /// The device number; `None` if the kernel doesn't tell it.
    device: Option<String>,
    fuse: Option<OwnedFd>,
    /// The kernel's file that ends the connection, if it can be opened. It belongs to this
    /// connection even if another mount gets the device number later.
    abort: Option<File>,
    aborted: AtomicBool,
    guard: Option<Arc<MountGuard>>,
}

/// The outcome of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount has ended.
    Gone,
    /// The mount is in use. If it was detached, it ends when its last file is closed.
    InUse,
    /// The mount is no longer at the path, another one is over it, or another program has made it.
    /// It was left as it is.
    NotOnTop,
}

/// Options of a mount.
pub struct MountRequest<'a> {
    /// The source in the mount table.
    pub source: &'a str,
    /// The directory to mount on.
    pub path: &'a Path,
    /// The directory at `path`, if it was created for this mount.
    pub directory: Option<BorrowedFd<'a>>,
    /// Whether other users may use the mount.
    pub allow_other: bool,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whether every write is synced before it returns.
    pub sync: bool,
    /// Whether files can't be executed.
    pub noexec: bool,
    /// Whether a mount whose daemon has ended is removed first.
    pub replace_stale: bool,
    /// Whether this process has entered a namespace of its own, where fusermount3 has no
    /// privileges.
    pub is_in_own_namespace: bool,
}

/// The effect of [`unmount_path`] on a mount in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Unmounting fails.
    Unused,
    /// The mount is detached, and ends with its last open file.
    Lazy,
    /// The mount ends immediately. Requests in flight fail, and writes that the daemon has not
    /// taken are lost.
    Forced,
}

impl UnmountMode {
    fn flags(self) -> UnmountFlags {
        match self {
            UnmountMode::Unused => UnmountFlags::empty(),
            UnmountMode::Lazy => UnmountFlags::DETACH,
            // this ends a mount in use, too, and does not wait for a daemon that hangs
            UnmountMode::Forced => UnmountFlags::FORCE | UnmountFlags::DETACH,
        }
    }
}

impl Mountpoint {
    /// Mounts. Requests wait from now on: the caller must not use the path until they are served.
    pub fn mount(request: &MountRequest) -> MountResult<Self> {
        let directory = free_mountpoint(request)?;
        let (fuse, entry) = match new_mount(request) {
            Ok((fuse, mount)) => (fuse, attach(&mount, &directory, request.path)?),
            Err(e @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS))
                if request.is_in_own_namespace =>
            {
                return Err(MountError::Unavailable(namespace::explain(e)));
            }
            // without privileges, or with an old kernel
            Err(e @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS)) => {
                mount_by_helper(request, &directory, e)?
            }
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                return Err(MountError::Unavailable(
                    "FUSE is not available: /dev/fuse is missing; load the fuse module (modprobe fuse), or give the \
                     container the device (--device /dev/fuse). `zarrfs cat` works without FUSE"
                        .into(),
                ));
            }
            Err(e) => return Err(failed(request.path, Error::from(e))),
        };
        let (place, MountEntry { path, device, .. }) = entry;
        Ok(Mountpoint {
            path,
            place: Some(place),
            abort: open_abort_file(&device),
            device: Some(device),
            fuse: Some(fuse),
            aborted: AtomicBool::new(false),
            guard: None,
        })
    }

    /// Takes a mount that another program has made, by the descriptor or the socket that `name`
    /// stands for. It is never unmounted.
    pub fn inherit(name: &Path) -> MountResult<Self> {
        let fuse = inherited::take(name).map_err(|why| {
            MountError::Mountpoint(format!("mountpoint {}: {why}", name.display()))
        })?;
        let device = inherited::device_number(&fuse);
        let mut mountpoint = Mountpoint {
            path: name.to_path_buf(),
            place: None,
            abort: device.as_deref().and_then(open_abort_file),
            device,
            fuse: Some(fuse),
            aborted: AtomicBool::new(false),
            guard: None,
        };
        let places = mountpoint.places().map_err(MountError::Other)?;
        if let Some(path) = places.into_iter().next() {
            mountpoint.path = path;
        }
        Ok(mountpoint)
    }

    /// Returns the mount as bytes and descriptors, by which another process can serve it: the
    /// device comes first. `None` once the mount is served.
    pub fn to_message(&self) -> Option<(Vec<u8>, Vec<BorrowedFd<'_>>)> {
        let device = self.device.clone().unwrap_or_default();
        let mut bytes = [device.as_bytes(), &[0], self.path.as_os_str().as_bytes()].concat();
        let mut files = vec![self.fuse.as_ref()?.as_fd()];
        if let Some(place) = &self.place {
            bytes.push(0);
            bytes.extend(place.name().as_bytes());
            files.push(place.parent());
        }
        files.extend(self.abort.as_ref().map(|abort| abort.as_fd()));
        Some((bytes, files))
    }

    /// Returns the mount of a message of [`Mountpoint::to_message`].
    pub fn from_message(bytes: &[u8], files: Vec<OwnedFd>) -> Option<Self> {
        let mut parts = bytes.split(|byte| *byte == 0);
        let device = str::from_utf8(parts.next()?).ok()?;
        let path = PathBuf::from(OsStr::from_bytes(parts.next()?));
        let mut files = files.into_iter();
        let fuse = files.next()?;
        let place = parts.next().and_then(|name| Some((name, files.next()?)));
        Some(Mountpoint {
            path,
            place: place
                .map(|(name, parent)| MountPlace::new(parent, OsStr::from_bytes(name).to_owned())),
            abort: files.next().map(File::from),
            device: (!device.is_empty()).then(|| device.to_string()),
            fuse: Some(fuse),
            aborted: AtomicBool::new(false),
            guard: None,
        })
    }

    /// Has the kernel send again all requests that were taken and not answered, by a daemon whose
    /// threads take none any more.
    pub fn resend_unanswered(&self) -> Result<()> {
        match &self.fuse {
            Some(fuse) => Ok(inherited::resend_unanswered(fuse)?),
            None => Ok(()),
        }
    }

    /// Returns whether another program has made the mount.
    pub fn is_inherited(&self) -> bool {
        self.place.is_none()
    }

    /// Starts the process that ends the connection if this one is killed, and that does what the
    /// sandbox forbids. Other directories may take the place of those in `directories`, and the
    /// variables are for services. The program must call
    /// [`run_child`](super::run_child) when it starts, and the calling thread must live as long as
    /// the mount.
    ///
    /// # Errors
    ///
    /// Fails if the process can't be started; the mount then works without it, and without a
    /// sandbox.
    pub fn start_guard(
        &mut self,
        directories: &[(PathBuf, PathAccess)],
        variables: &[(&str, OsString)],
        deaths: Option<BorrowedFd>,
    ) -> Result<()> {
        let device = self.device.as_deref();
        let place = self.place.as_ref();
        let abort = self.abort.as_ref();
        if abort.is_none() {
            log::debug!("if the daemon is killed, its mount may hang until it is unmounted");
        }
        let guard = MountGuard::start(device, abort, place, directories, variables, deaths)
            .context("the guard process")?;
        self.guard = Some(Arc::new(guard));
        Ok(())
    }

    /// Returns the guard, if it runs.
    pub fn guard(&self) -> Option<&Arc<MountGuard>> {
        self.guard.as_ref()
    }

    /// Unmounts what is on top at the place. A process in the sandbox may not do so itself.
    fn unmount_top(&self, place: &MountPlace, flags: UnmountFlags) -> Result<()> {
        match &self.guard {
            Some(guard) if is_sandboxed() => guard.unmount(flags),
            _ => place.unmount(flags),
        }
    }

    /// Returns the path at the time of mounting.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the connection to the kernel; `None` after the first call.
    pub(super) fn take_device(&mut self) -> Option<OwnedFd> {
        self.fuse.take()
    }

    /// Returns the device number.
    fn device(&self) -> Result<&str> {
        self.device.as_deref().ok_or_else(|| {
            Error::unsupported("the kernel does not tell which mount an inherited descriptor is of")
        })
    }

    /// Returns whether an entry of the mount table is this mount.
    fn is(&self, entry: &MountEntry) -> bool {
        self.device.as_ref() == Some(&entry.device)
    }

    /// Returns the places of this mount in the mount table. There are several where mounts
    /// propagate, and none if another program has made it where this process can't see it.
    pub fn places(&self) -> Result<Vec<PathBuf>> {
        Ok(mounts()?
            .into_iter()
            .filter(|mount| self.is(mount))
            .map(|mount| mount.path)
            .collect())
    }

    /// Unmounts, if this mount is still on top at the path. A mount in use is detached.
    pub fn unmount(&self) -> Result<Unmounted> {
        match (self.unmount_unused()?, &self.place) {
            (Unmounted::InUse, Some(place)) => {
                self.unmount_top(place, UnmountFlags::DETACH)?;
                Ok(Unmounted::InUse)
            }
            (other, _) => Ok(other),
        }
    }

    /// Unmounts as [`Mountpoint::unmount`] does, but leaves a mount in use as it is.
    pub fn unmount_unused(&self) -> Result<Unmounted> {
        let (Some(place), Some(device)) = (&self.place, &self.device) else {
            return Ok(Unmounted::NotOnTop);
        };
        if !place.has_on_top(device)? {
            return Ok(Unmounted::NotOnTop);
        }
        match self.unmount_top(place, UnmountFlags::empty()) {
            Err(e) if e.errno() == libc::EBUSY => Ok(Unmounted::InUse),
            done => done.map(|()| Unmounted::Gone),
        }
    }

    /// Returns whether this process can end the mount by unmounting it: not if another program has
    /// made it, nor if it was detached, since it then has no path any more, and ends with its last
    /// open file.
    pub fn can_unmount(&self) -> bool {
        let is_gone = mounts().is_ok_and(|mounts| !mounts.iter().any(|mount| self.is(mount)));
        !self.is_inherited() && !is_gone
    }

    /// Sets how many bytes the kernel reads ahead. Only root may.
    pub fn set_readahead(&self, bytes: u64) -> Result<()> {
        let path = format!("/sys/class/bdi/{}/read_ahead_kb", self.device()?);
        std::fs::write(&path, (bytes / 1024).to_string()).context(path)
    }

    /// Returns whether [`Mountpoint::abort`] was called.
    pub fn aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// Ends the connection: requests in flight get EIO. Returns whether it ends, for which the
    /// kernel's control files must be there.
    pub fn abort(&self) -> bool {
        self.aborted.store(true, Ordering::Relaxed);
        let mut file = self.abort.as_ref();
        file.as_mut()
            .is_some_and(|file| file.write_all(b"1").is_ok())
    }
}

fn open_abort_file(device: &str) -> Option<File> {
    let file = OpenOptions::new().write(true).open(abort_file(device));
    let opened = file.inspect_err(|e| log::debug!("{}: {e}", abort_file(device)));
    opened.ok()
}

/// Returns the directory to mount on, after removing mounts whose daemon has ended if the request
/// allows it.
fn free_mountpoint(request: &MountRequest) -> MountResult<OwnedFd> {
    if let Some(directory) = request.directory {
        return directory
            .try_clone_to_owned()
            .map_err(|e| MountError::Other(e.into()));
    }
    loop {
        match check_mountpoint(request.path) {
            Err(MountError::Stale(_)) if request.replace_stale => {
                log::info!(
                    "{}: removing a mount whose daemon has ended",
                    request.path.display()
                );
                unmount_path(request.path, UnmountMode::Lazy).map_err(MountError::Other)?;
            }
            checked => return checked,
        }
    }
}

/// Opens the directory at `path`, if it can be mounted on. Reads the mount table first, because a
/// hung mount doesn't answer.
fn check_mountpoint(path: &Path) -> MountResult<OwnedFd> {
    let shown = path.display();
    let opened = path_to_mount(path)
        .map_err(Error::from)
        .and_then(
            |absolute| match mounts_at(&absolute)?.pop().filter(MountEntry::is_zarrfs) {
                Some(mount) => Err(Error::system(if is_stale(&mount) {
                    libc::ENOTCONN
                } else {
                    libc::EBUSY
                })),
                None => Ok(open_directory(path)?),
            },
        );
    opened.map_err(|e| {
        let why = match e.errno() {
            libc::ENOTCONN => {
                return MountError::Stale(format!(
                    "mountpoint {shown}: a mount whose daemon has ended is left here; run zarrfs umount {shown}, or mount with --replace-stale"
                ));
            }
            libc::EBUSY => "a store is mounted here already".to_string(),
            libc::ENOENT => format!("no such directory; create it: mkdir -p {shown}"),
            libc::ENOTDIR => "not a directory".to_string(),
            _ => e.to_string(),
        };
        MountError::Mountpoint(format!("mountpoint {shown}: {why}"))
    })
}

/// Returns whether the daemon of a mount has ended. A mount that hangs is not stale.
fn is_stale(mount: &MountEntry) -> bool {
    // the kernel could answer a stat of a dead mount from its memory
    read_statistics(mount).is_err_and(|e| e.errno() == libc::ENOTCONN)
}

fn failed(path: &Path, e: Error) -> MountError {
    MountError::Other(e.context(format!("mount {}", path.display())))
}

/// Creates a mount without a path. Returns the connection to the kernel, and the mount.
fn new_mount(request: &MountRequest) -> std::result::Result<(OwnedFd, OwnedFd), Errno> {
    let fuse = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let fs = mount::fsopen("fuse", mount::FsOpenFlags::FSOPEN_CLOEXEC)?;
    let fd = fuse.as_raw_fd().to_string();
    let uid = rustix::process::getuid().as_raw().to_string();
    let gid = rustix::process::getgid().as_raw().to_string();
    for (name, value) in [
        ("source", request.source),
        ("subtype", FS_TYPE.trim_start_matches("fuse.")),
        ("fd", fd.as_str()),
        ("rootmode", "40000"),
        ("user_id", uid.as_str()),
        ("group_id", gid.as_str()),
    ] {
        mount::fsconfig_set_string(fs.as_fd(), name, value)?;
    }
    for (is_set, flag) in [
        (true, "default_permissions"),
        (request.allow_other, "allow_other"),
        (request.read_only, "ro"),
        (request.sync, "sync"),
    ] {
        if is_set {
            mount::fsconfig_set_flag(fs.as_fd(), flag)?;
        }
    }
    mount::fsconfig_create(fs.as_fd())?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, request.read_only);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, request.noexec);
    Ok((
        fuse,
        mount::fsmount(fs.as_fd(), mount::FsMountFlags::FSMOUNT_CLOEXEC, attributes)?,
    ))
}

/// Attaches a new mount to a directory, and returns its place. Leaves nothing mounted if it fails.
fn attach(
    new: &OwnedFd,
    directory: &OwnedFd,
    path: &Path,
) -> MountResult<(MountPlace, MountEntry)> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    mount::move_mount(new.as_fd(), "", directory.as_fd(), "", flags)
        .map_err(|e| failed(path, e.into()))?;
    found(path, || entry_of(new)).inspect_err(|_| {
        if let Err(e) = mount::unmount(proc_path(new), UnmountFlags::DETACH) {
            log::error!("{}: can't be unmounted again: {e}", path.display());
        }
    })
}

/// Returns the place of a mount that `entry` finds in the mount table. Directories above it may be
/// renamed meanwhile.
fn found(
    path: &Path,
    entry: impl Fn() -> Result<Option<MountEntry>>,
) -> MountResult<(MountPlace, MountEntry)> {
    for _ in 0..ATTEMPTS {
        let Some(found) = entry().map_err(|e| failed(path, e))? else {
            break;
        };
        if let Ok(place) = MountPlace::of(&found.path)
            && place
                .top()
                .is_ok_and(|top| top.is_some_and(|top| top.id == found.id))
        {
            return Ok((place, found));
        }
    }
    Err(failed(
        path,
        Error::damaged("mounted, but not found in the mount table; unmounted again"),
    ))
}

/// Mounts by fusermount3, which is setuid root and passes the device over a socket. It resolves the
/// path itself: a mount in another place is unmounted again.
fn mount_by_helper(
    request: &MountRequest,
    directory: &OwnedFd,
    denied: Errno,
) -> MountResult<(OwnedFd, (MountPlace, MountEntry))> {
    let known: Vec<u64> = mounts()
        .map_err(MountError::Other)?
        .iter()
        .map(|m| m.id)
        .collect();
    let fuse = run_helper(request, directory, denied)?;
    let is_new = |m: &MountEntry| {
        m.is_zarrfs() && m.source == request.source.as_bytes() && !known.contains(&m.id)
    };
    let at = found(request.path, || {
        Ok(mounts_at(&path_of(directory)?)?.pop().filter(is_new))
    });
    let at = at.inspect_err(|_| {
        let new = mounts().unwrap_or_default().into_iter().filter(is_new);
        // if there are several, some belong to other users
        if let [astray] = new.collect::<Vec<_>>().as_slice() {
            let _ =
                MountPlace::of(&astray.path).and_then(|place| place.unmount(UnmountFlags::DETACH));
        }
    })?;
    Ok((fuse, at))
}

fn run_helper(request: &MountRequest, directory: &OwnedFd, denied: Errno) -> MountResult<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let sockets = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    );
    let (ours, theirs) = sockets.map_err(helper_failed)?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(helper_failed)?;
    let source = request.source.replace('\\', "\\\\").replace(',', "\\,");
    let access = if request.read_only { "ro" } else { "rw" };
    let mut options = format!("{access},nosuid,nodev,noatime");
    for (is_set, option) in [
        (request.sync, "sync"),
        (request.noexec, "noexec"),
        (true, "default_permissions"),
        (request.allow_other, "allow_other"),
    ] {
        if is_set {
            options.push(',');
            options.push_str(option);
        }
    }
    options.push_str(&format!(",subtype=zarrfs,fsname={source}"));
    let child = Command::new("fusermount3")
        .args(["-o", &options, "--", "."])
        .current_dir(proc_path(directory))
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|_| {
            MountError::Unavailable(format!(
                "not allowed to mount ({}), and fusermount3 is missing; install the package fuse3, or run as root. \
                 `zarrfs cat` works without FUSE",
                Error::from(denied)
            ))
        })?;
    drop(theirs);
    let fuse = inherited::receive_fd(&ours);
    let output = child.wait_with_output().map_err(helper_failed)?;
    fuse.filter(|_| output.status.success()).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().lines().next().unwrap_or("it gave no reason");
        MountError::Unavailable(format!("mount {}: {said}", request.path.display()))
    })
}

fn helper_failed(e: impl Into<Error>) -> MountError {
    MountError::Other(e.into().context("fusermount3"))
}

/// Returns why the mount on top at `path` is not unmounted.
fn not_of_zarrfs(path: &Path, top: &MountEntry) -> Result<String> {
    let fs_type = &top.fs_type;
    Ok(if mounts_at(path)?.iter().any(MountEntry::is_zarrfs) {
        format!(
            "a mount of type {fs_type} lies over that of zarrfs; unmount it first (umount PATH)"
        )
    } else {
        format!("a mount of type {fs_type}, not of zarrfs")
    })
}

/// Unmounts the zarrfs mount on top at `path`, also one whose daemon has ended.
///
/// # Errors
///
/// Fails if the mount on top is of another type, and if `mode` doesn't allow a mount in use.
pub fn unmount_path(path: &Path, mode: UnmountMode) -> Result<()> {
    let absolute = path_to_mount(path).context(path.display())?;
    let place = MountPlace::of(&absolute)?;
    match place.top()? {
        None => Err(Error::invalid("nothing is mounted here").context(path.display())),
        Some(m) if !m.is_zarrfs() => {
            Err(Error::invalid(not_of_zarrfs(&absolute, &m)?).context(path.display()))
        }
        Some(mount) => {
            if mode == UnmountMode::Forced {
                // fusermount3 does not end the connection; where the file is missing, the daemon
                // must be killed
                let _ = std::fs::write(abort_file(&mount.device), "1");
            }
            let mut unmounted = place.unmount(mode.flags());
            // a call on a path holds a mount for a moment
            for _ in 0..ATTEMPTS {
                if !matches!(&unmounted, Err(e) if e.errno() == libc::EBUSY) {
                    break;
                }
                std::thread::sleep(MOMENT);
                unmounted = place.unmount(mode.flags());
            }
            if mode == UnmountMode::Forced
                && place.top()?.is_none_or(|top| top.device != mount.device)
            {
                // the daemon of an aborted connection unmounts it, too
                return Ok(());
            }
            unmounted.map_err(|e| match e.errno() {
                libc::EBUSY => e.context(format!(
                    "{0}: in use; leave the directory and close its files (fuser -vm {0} lists them), or use --lazy",
                    path.display()
                )),
                _ => e.context(path.display()),
            })
        }
    }
}
