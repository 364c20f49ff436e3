//! Places of mounts: the mount table, paths up to a mount, and descriptors that hold mountpoints
//! and directories to mount on. Nothing here enters a mount of zarrfs, whose daemon may not answer.
//!
//! Invariant: no path is resolved again between the check of a directory or mount and the mount or
//! unmount. Otherwise a user who may rename directories above it could swap one for a symbolic
//! link, and redirect the operation.

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};

/// The file system type in the mount table.
pub const FS_TYPE: &str = "fuse.zarrfs";

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The unique number of the mount.
    pub id: u64,
    /// The number of the mount on which this one is mounted.
    pub parent: u64,
    /// `major:minor`, unique for each mounted file system.
    pub device: String,
    /// The directory of the file system that is mounted, `/` for all of it.
    pub root: PathBuf,
    /// The mountpoint.
    pub path: PathBuf,
    /// The type of file system.
    pub fs_type: String,
    /// The source that the mounting program gave.
    pub source: Vec<u8>,
    /// The options of the mount, and those of the file system.
    pub options: String,
    /// The user and the group whose processes may use a FUSE mount.
    pub owner: Option<(u32, u32)>,
}

impl MountEntry {
    /// Returns whether the mount is of zarrfs.
    pub fn is_zarrfs(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// Returns whether a path leads elsewhere, since another of all `mounts` lies over this one or
    /// over a directory above it.
    pub fn is_covered(&self, mounts: &[MountEntry]) -> bool {
        let mut below = Vec::new();
        let mut next = Some(self);
        // a table that changes while it is read could name a mount as its own ancestor
        while let Some(mount) = next.filter(|mount| !below.contains(&mount.id)) {
            below.push(mount.id);
            next = mounts.iter().find(|other| other.id == mount.parent);
        }
        mounts
            .iter()
            .any(|other| self.path.starts_with(&other.path) && !below.contains(&other.id))
    }
}

/// Where the kernel's control files of connections are.
const CONTROL_FILES: &str = "/sys/fs/fuse/connections";

/// Returns the kernel's file that ends the connection of the FUSE mount with this device number.
pub fn abort_file(device: &str) -> String {
    format!(
        "{CONTROL_FILES}/{}/abort",
        device.rsplit(':').next().unwrap_or_default()
    )
}

/// A path without symbolic links, up to the place where following ended.
#[derive(Debug, PartialEq, Eq)]
pub struct FollowedPath {
    /// The whole path, or the place where following ended.
    pub path: PathBuf,
    /// The names that follow; `None` if the path was followed to its end.
    pub rest: Option<PathBuf>,
}

impl FollowedPath {
    /// Returns the path with the names that were not followed.
    pub fn whole(self) -> PathBuf {
        let rest = self.rest.unwrap_or_default();
        let mut whole = self.path;
        for name in rest.components() {
            match name {
                Component::ParentDir => drop(whole.pop()),
                name => whole.push(name),
            }
        }
        whole
    }
}

/// Maximum number of symbolic links in a path, the same as in the kernel.
const MAX_LINKS: usize = 40;

/// Follows the symbolic links of a path as the kernel does, up to the first place that `is_end`
/// accepts, which is not entered.
pub fn follow(path: &Path, is_end: &dyn Fn(&Path) -> bool) -> std::io::Result<FollowedPath> {
    let mut left = names_backwards(&std::path::absolute(path)?);
    let mut done = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == ".." {
            done.pop();
            continue;
        }
        let next = done.join(&name);
        if is_end(&next) {
            return Ok(FollowedPath {
                path: next,
                rest: Some(left.iter().rev().collect()),
            });
        }
        match std::fs::read_link(&next) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                if target.is_absolute() {
                    done = PathBuf::from("/");
                }
                left.extend(names_backwards(&target));
            }
            // no link
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => done = next,
            // the kernel's path of the working directory has no links, and may lead through
            // directories of other users
            Err(e)
                if e.kind() == ErrorKind::PermissionDenied
                    && working_directory()?.starts_with(&next) =>
            {
                done = next
            }
            Err(e) => return Err(e),
        }
    }
    Ok(FollowedPath {
        path: done,
        rest: None,
    })
}

/// Returns the names in a path, the last one first.
fn names_backwards(path: &Path) -> Vec<OsString> {
    let names = path
        .components()
        .rev()
        .filter(|name| matches!(name, Component::Normal(_) | Component::ParentDir));
    names.map(|name| name.as_os_str().to_owned()).collect()
}

/// Returns the absolute form of a path. Links are resolved up to the first mount of zarrfs, which
/// has none.
pub fn path_to_mount(path: &Path) -> std::io::Result<PathBuf> {
    let mounts = mounts().unwrap_or_default();
    let followed = follow(path, &|place| {
        let mount = mounts.iter().rfind(|m| m.path == place);
        mount.is_some_and(MountEntry::is_zarrfs)
    });
    Ok(followed?.whole())
}

/// Returns the zarrfs mount that holds `path`, or `None` if there is none.
pub fn mount_of(path: &Path) -> Result<Option<MountEntry>> {
    let absolute = path_to_mount(path)?;
    let mounts = mounts()?;
    let nearest = absolute
        .ancestors()
        .find_map(|above| mounts.iter().rfind(|mount| mount.path == above));
    Ok(nearest.filter(|mount| mount.is_zarrfs()).cloned())
}

/// Asks statx for a mount's number that is given once (linux/stat.h).
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

/// The place of a mount: the directory that holds its mountpoint, and the mountpoint's name there.
/// The kernel refuses to rename or remove that name while it is mounted on.
pub struct MountPlace {
    parent: OwnedFd,
    name: OsString,
    /// The number of the mount that was on top when this was made; `None` before Linux 6.8.
    number: Option<u64>,
}

impl MountPlace {
    /// Returns the place of the mount at an absolute path.
    pub fn of(path: &Path) -> Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::invalid("not a mountpoint").context(path.display()));
        };
        Ok(MountPlace::new(open_directory(parent)?, name.to_owned()))
    }

    /// Returns the place of a name in an open directory.
    pub fn new(parent: OwnedFd, name: OsString) -> Self {
        let mut place = MountPlace::with_number(parent, name, None);
        place.number = place.number_of_top();
        place
    }

    /// Returns the place of a mount whose number is known.
    pub fn with_number(parent: OwnedFd, name: OsString, number: Option<u64>) -> Self {
        MountPlace {
            parent,
            name,
            number,
        }
    }

    /// Returns the number of the mount; `None` before Linux 6.8.
    pub fn number(&self) -> Option<u64> {
        self.number
    }

    /// Returns the number of the mount on top, which the kernel gives to no other one. It gives the
    /// identifiers and device numbers of mounts that have ended to new ones.
    fn number_of_top(&self) -> Option<u64> {
        let number = StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE);
        // the daemon of the mount is not asked
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = statx(&self.parent, &self.name, flags, number).ok()?;
        (found.stx_mask & STATX_MNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id)
    }

    /// Returns whether the mount with this device number is on top, the same as when this was made.
    pub fn has_on_top(&self, device: &str) -> Result<bool> {
        let top = self.top()?;
        Ok(top.is_some_and(|top| top.device == device) && self.number == self.number_of_top())
    }

    /// Returns the directory that holds the mountpoint.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// Returns the name of the mountpoint.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the current path of the place.
    pub fn path(&self) -> Result<PathBuf> {
        Ok(path_of(&self.parent)?.join(&self.name))
    }

    /// Returns a path that leads to the place even if directories are renamed, as long as this
    /// value exists.
    pub fn fixed_path(&self) -> PathBuf {
        proc_path(&self.parent).join(&self.name)
    }

    /// Returns the mount on top.
    pub fn top(&self) -> Result<Option<MountEntry>> {
        Ok(mounts_at(&self.path()?)?.pop())
    }

    /// Unmounts the mount on top, by fusermount3 if this process is not allowed to.
    pub fn unmount(&self, flags: UnmountFlags) -> Result<()> {
        match rustix::mount::unmount(self.fixed_path(), flags | UnmountFlags::NOFOLLOW) {
            Err(Errno::PERM) => self.unmount_by_helper(flags),
            done => Ok(done?),
        }
    }

    fn unmount_by_helper(&self, flags: UnmountFlags) -> Result<()> {
        let mut command = Command::new("fusermount3");
        command
            .arg("-u")
            .args(flags.contains(UnmountFlags::DETACH).then_some("-z"))
            .arg("--")
            .arg(&self.name);
        command
            .current_dir(proc_path(&self.parent))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let Ok(output) = command.output() else {
            return Err(Error::system(libc::EPERM)
                .context("fusermount3 is missing, and needed unless you are root"));
        };
        let said = String::from_utf8_lossy(&output.stderr);
        match said.trim().lines().next() {
            _ if output.status.success() => Ok(()),
            Some(said) if said.contains("busy") => Err(Error::system(libc::EBUSY)),
            // for example, the mount is that of another user
            Some(said) => Err(Error::new(Kind::System(libc::EPERM), said)),
            None => Err(Error::system(libc::EPERM)),
        }
    }
}

/// Opens a directory as a reference (O_PATH), not for reading.
pub fn open_directory(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    rustix::fs::open(
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Returns the current path of an open file or directory.
pub fn path_of(fd: &OwnedFd) -> Result<PathBuf> {
    Ok(std::fs::read_link(proc_path(fd))?)
}

/// Returns a path that leads to an open file or directory even if it is renamed.
pub fn proc_path(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Returns the path of the working directory. The kernel answers it alone, even if the directory
/// lies in a mount.
pub fn working_directory() -> std::io::Result<PathBuf> {
    std::fs::read_link("/proc/self/cwd")
}

/// Returns the entry of the mount whose root is open.
pub fn entry_of(mount: &OwnedFd) -> Result<Option<MountEntry>> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", mount.as_raw_fd()))?;
    let id = text
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    Ok(mounts()?.into_iter().find(|entry| Some(entry.id) == id))
}

/// Returns the mounts at exactly `path`, which is absolute, with the topmost last. Reads the mount
/// table, never the mount.
pub fn mounts_at(path: &Path) -> Result<Vec<MountEntry>> {
    Ok(mounts()?.into_iter().filter(|m| m.path == path).collect())
}

/// Returns all mounts.
pub fn mounts() -> Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    Ok(table
        .split(|&b| b == b'\n')
        .filter_map(parse_mountinfo)
        .collect())
}

/// Parses one line of mountinfo: `36 35 98:0 /root /mount/point options - type source
/// super-options` (proc(5)).
fn parse_mountinfo(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let id = text_of(fields.next()?)?.parse().ok()?;
    let parent = text_of(fields.next()?)?.parse().ok()?;
    let device = text_of(fields.next()?)?;
    let root = unescape(fields.next()?).into();
    let path = unescape(fields.next()?).into();
    let of_mount = text_of(fields.next()?)?;
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next().unwrap_or_default()).into_vec();
    let of_file_system = text_of(fields.next().unwrap_or_default())?;
    let owner = number_in(&of_file_system, "user_id=").zip(number_in(&of_file_system, "group_id="));
    Some(MountEntry {
        id,
        parent,
        device,
        root,
        path,
        fs_type,
        source,
        options: format!("{of_mount},{of_file_system}"),
        owner,
    })
}

fn text_of(field: &[u8]) -> Option<String> {
    String::from_utf8(field.to_vec()).ok()
}

/// Returns the number after `name` in the options of a mount.
fn number_in(options: &str, name: &str) -> Option<u32> {
    options
        .split(',')
        .find_map(|option| option.strip_prefix(name)?.parse().ok())
}

/// Decodes the octal escapes of spaces and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok());
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
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mount_table_is_parsed() {
        let line =
            b"36 35 0:98 / /mnt/a\\040b\\134c rw,noatime shared:1 - fuse.zarrfs a\\040store,with,commas rw,user_id=0,group_id=7";
        let entry = parse_mountinfo(line).unwrap();
        assert_eq!(
            (entry.id, entry.path.as_path()),
            (36, Path::new("/mnt/a b\\c"))
        );
        assert_eq!(
            (entry.device.as_str(), entry.fs_type.as_str()),
            ("0:98", "fuse.zarrfs")
        );
        assert_eq!(
            (entry.source.as_slice(), entry.owner),
            (b"a store,with,commas".as_slice(), Some((0, 7)))
        );
        assert_eq!(
            (entry.parent, entry.root.as_path(), entry.options.as_str()),
            (35, Path::new("/"), "rw,noatime,rw,user_id=0,group_id=7")
        );
        assert_eq!(parse_mountinfo(b"junk"), None);
    }

    #[test]
    fn a_mount_is_covered_by_others_at_or_above_its_path() {
        let table = [
            "1 0 0:1 / / rw - ext4 x rw",
            // two mounts at one path
            "2 1 0:2 / /a rw - fuse.zarrfs x rw",
            "3 2 0:3 / /a rw - fuse.zarrfs x rw",
            // mounted in a directory that another mount hides
            "4 1 0:4 / /b/c rw - fuse.zarrfs x rw",
            "5 1 0:5 / /b rw - tmpfs x rw",
            // mounted in a mount
            "6 5 0:6 / /b/d rw - fuse.zarrfs x rw",
            // a name that begins with that of a mountpoint
            "7 1 0:7 / /ab rw - fuse.zarrfs x rw",
        ];
        let mounts: Vec<_> = table
            .iter()
            .map(|line| parse_mountinfo(line.as_bytes()).unwrap())
            .collect();
        let covered = mounts.iter().filter(|m| m.is_covered(&mounts));
        assert_eq!(covered.map(|m| m.id).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn links_are_followed_up_to_a_place() {
        let directory = tempfile::tempdir().unwrap();
        let top = std::fs::canonicalize(directory.path()).unwrap();
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::os::unix::fs::symlink("../a/b", top.join("a/link")).unwrap();
        std::os::unix::fs::symlink(top.join("a/link/c"), top.join("far")).unwrap();
        std::os::unix::fs::symlink("loop", top.join("loop")).unwrap();
        let end = |path: &str, at: &str| {
            let followed = follow(&top.join(path), &|place| place == top.join(at)).unwrap();
            let rest = followed.rest.clone();
            (
                rest,
                followed.whole().strip_prefix(&top).unwrap().to_path_buf(),
            )
        };
        for (path, rest) in [
            ("far", ""),
            ("a/link/c", ""),
            ("a/b/../link/./c", ""),
            ("far/../c", "../c"),
        ] {
            assert_eq!(end(path, "none"), (None, "a/b/c".into()), "{path}");
            assert_eq!(
                end(path, "a/b/c"),
                (Some(rest.into()), "a/b/c".into()),
                "{path}"
            );
        }
        // a place on the way, even if the path leaves it again
        assert_eq!(
            end("far/../../x", "a/b"),
            (Some("c/../../x".into()), "a/x".into())
        );
        assert!(
            follow(&top.join("loop"), &|_| false).is_err()
                && follow(&top.join("x/y"), &|_| false).is_err()
        );
    }

    #[test]
    fn a_place_follows_renames() {
        let directory = tempfile::tempdir().unwrap();
        let top = std::fs::canonicalize(directory.path()).unwrap();
        std::fs::create_dir_all(top.join("a/mnt")).unwrap();
        let place = MountPlace::of(&top.join("a/mnt")).unwrap();
        std::fs::rename(top.join("a"), top.join("b")).unwrap();
        std::os::unix::fs::symlink("/", top.join("a")).unwrap();
        assert_eq!(place.path().unwrap(), top.join("b/mnt"));
        assert_eq!(
            std::fs::canonicalize(place.fixed_path()).unwrap(),
            top.join("b/mnt")
        );
        assert_eq!(place.top().unwrap(), None);
        assert!(place.unmount(UnmountFlags::empty()).is_err());
        assert!(MountPlace::of(Path::new("/")).is_err());
    }
}
