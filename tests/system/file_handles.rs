//! File handles of name_to_handle_at(2), by which NFS servers name files of what they export. A
//! mount has none, so that no handle can name another file after the mount has ended, or has
//! forgotten the file. See docs/limits.md.

use crate::mounting::{Sandbox, is_root};
use crate::support::{Mount, announce};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The flag for handles that only tell files apart.
const AT_HANDLE_FID: i32 = 0x200;

/// A `struct file_handle` with space for the largest handle.
#[repr(C)]
struct FileHandle {
    size: u32,
    kind: i32,
    bytes: [u8; 128],
}

impl FileHandle {
    fn of(path: &Path, flags: i32) -> io::Result<FileHandle> {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut handle = FileHandle {
            size: 128,
            kind: 0,
            bytes: [0; 128],
        };
        let mut mount = 0;
        // SAFETY: the path ends with a zero byte, and the handle has space for `size` bytes behind
        // its two numbers
        let done = unsafe {
            libc::name_to_handle_at(
                libc::AT_FDCWD,
                path.as_ptr(),
                (&raw mut handle).cast(),
                &mut mount,
                flags,
            )
        };
        if done == 0 {
            Ok(handle)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn open(&mut self, mount: &Path) -> io::Result<File> {
        let mount = File::open(mount)?;
        let handle = (&raw mut *self).cast();
        // SAFETY: the handle has `size` bytes behind its two numbers
        let file = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), handle, libc::O_RDONLY) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened this descriptor for this caller
        Ok(unsafe { File::from_raw_fd(file) })
    }
}

#[test]
fn no_file_handle_can_be_opened() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let store = sandbox.path().join("sample.zarr");
    let mount = Mount::new(&store, &[]);
    let chunk = mount.join("air_temperature/0.0.0");
    fs::read(&chunk).unwrap();
    match FileHandle::of(&chunk, 0) {
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP)),
        Ok(_) => return announce("skipped: this kernel gives handles of all FUSE file systems"),
    }
    let Ok(mut handle) = FileHandle::of(&chunk, AT_HANDLE_FID) else {
        return announce("skipped: this kernel has no handles that only tell files apart");
    };
    let stale = |handle: &mut FileHandle, mount: &Path| {
        let e = handle.open(mount).unwrap_err();
        let refused = [Some(libc::ESTALE), Some(libc::EOPNOTSUPP)];
        assert!(refused.contains(&e.raw_os_error()), "{e}");
    };
    stale(&mut handle, mount.path());
    fs::remove_file(&chunk).unwrap();
    stale(&mut handle, mount.path());
    drop(mount);
    let mount = Mount::new(&store, &[]);
    fs::read(mount.join("air_temperature/0.0.1")).unwrap();
    stale(&mut handle, mount.path());
}
