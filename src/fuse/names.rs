//! Requests that make, remove and rename names, and set attributes: to calls of [`Fs`] and back, each on a worker.

use super::{ENTRY_TTL, Server, answer_empty, attribute_ttl, guarded};
use crate::error::{Error, Result};
use crate::fs::{Fs, KernelPages, RequestKind};
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, RenameFlags, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyStatfs,
};
use std::ffi::OsStr;
use std::time::Duration;

/// Blocks of 4096 bytes, and files, that are said to be free where nobody can tell: 1 PiB.
const ENDLESS: u64 = 1 << 38;

/// Keys are UTF-8: no other name can be made.
fn utf8(name: &OsStr) -> Result<String> {
    name.to_str().map(str::to_string).ok_or_else(|| Error::system(libc::EILSEQ))
}

/// True for the part of a file's mode that says it is a regular one.
pub(super) fn is_regular(mode: u32) -> bool {
    [0, libc::S_IFREG].contains(&(mode & libc::S_IFMT))
}

impl Server {
    /// Runs a change of names, and replies when the kernel has dropped its pages of what changed.
    pub(super) fn change(
        &self,
        what: &'static str,
        change: impl FnOnce(&Fs) -> Result<()> + Send + 'static,
        reply: ReplyEmpty,
    ) {
        let notices = self.notices.clone();
        self.dispatch(RequestKind::Change, move |fs| {
            let done = guarded(fs, what, || change(fs));
            notices.reply_after(move || answer_empty(done, reply));
        });
    }

    pub(super) fn create_file(&self, parent: INodeNo, name: &OsStr, flags: i32, reply: ReplyCreate) {
        let (options, notices, name) = (self.options.clone(), self.notices.clone(), utf8(name));
        let names = self.names.clone();
        let (exclusive, truncate) = (flags & libc::O_EXCL != 0, flags & libc::O_TRUNC != 0);
        self.dispatch(RequestKind::Change, move |fs| {
            let done = guarded(fs, "create", || fs.create(parent.0, &name?, exclusive, truncate));
            notices.reply_after(move || match done {
                Ok((attributes, opened)) => {
                    let pages = match opened.pages {
                        KernelPages::None => FopenFlags::FOPEN_DIRECT_IO,
                        _ => FopenFlags::empty(),
                    };
                    let handle = FileHandle(opened.handle);
                    names.opened(attributes.inode);
                    // one time to live for name and attributes; the latter may change at once
                    reply.created(&Duration::ZERO, &options.attributes(&attributes), Generation(0), handle, pages);
                }
                Err(e) => reply.error(e),
            });
        });
    }

    /// Makes a regular file, as open and close would.
    pub(super) fn make_file(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = utf8(name);
        self.make_entry("mknod", reply, move |fs| {
            let (attributes, opened) = fs.create(parent.0, &name?, true, false)?;
            let stored = fs.flush(opened.handle);
            fs.release(opened.handle);
            stored.inspect_err(|_| fs.forget(attributes.inode, 1))?;
            Ok(attributes)
        });
    }

    pub(super) fn make_directory(&self, parent: INodeNo, name: &OsStr, maker: u32, reply: ReplyEntry) {
        let name = utf8(name);
        self.make_entry("mkdir", reply, move |fs| fs.make_directory(parent.0, &name?, maker));
    }

    pub(super) fn link_file(&self, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = utf8(name);
        self.make_entry("link", reply, move |fs| fs.link(inode.0, parent.0, &name?));
    }

    fn make_entry(
        &self,
        what: &'static str,
        reply: ReplyEntry,
        make: impl FnOnce(&Fs) -> Result<crate::fs::tree::Attributes> + Send + 'static,
    ) {
        let (options, notices) = (self.options.clone(), self.notices.clone());
        self.dispatch(RequestKind::Change, move |fs| {
            let made = guarded(fs, what, || make(fs));
            notices.reply_after(move || match made {
                Ok(a) => {
                    let attributes = options.attributes(&a);
                    reply.entry_with_ttls(&attribute_ttl(&a), &ENTRY_TTL, &attributes, Generation(0));
                }
                Err(e) => reply.error(e),
            });
        });
    }

    pub(super) fn remove_name(&self, parent: INodeNo, name: &OsStr, directory: bool, thread: u32, reply: ReplyEmpty) {
        let name = utf8(name);
        match directory {
            true => self.change("rmdir", move |fs| fs.remove_directory(parent.0, &name?), reply),
            false => self.change("unlink", move |fs| fs.unlink(parent.0, &name?, thread), reply),
        }
    }

    pub(super) fn rename_name(
        &self,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let keep = RenameFlags::RENAME_NOREPLACE;
        if !keep.contains(flags) {
            return reply.error(Errno::EINVAL);
        }
        let (name, new_name, keep) = (utf8(name), utf8(new_name), flags.contains(keep));
        let rename = move |fs: &Fs| fs.rename((parent.0, &name?), (new_parent.0, &new_name?), keep);
        self.change("rename", rename, reply);
    }

    pub(super) fn change_xattr(
        &self,
        inode: INodeNo,
        name: &OsStr,
        value: Option<&[u8]>,
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (utf8(name), value.map(<[u8]>::to_vec));
        let (create, replace) = (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0);
        let change = move |fs: &Fs| fs.set_xattr(inode.0, &name?, value.as_deref(), create, replace);
        self.change("setxattr", change, reply);
    }

    pub(super) fn tell_space(&self, reply: ReplyStatfs) {
        let read_only = self.options.read_only;
        self.dispatch(RequestKind::Brief, move |fs| match guarded(fs, "statfs", || fs.space()) {
            // a store that has no end to tell: programs that look for room before they write must find some
            Ok(None) => {
                let free = if read_only { 0 } else { ENDLESS };
                reply.statfs(free, free, free, free, free, 4096, 255, 4096);
            }
            Ok(Some(s)) => {
                let block = u32::try_from(s.block_size).unwrap_or(4096);
                reply.statfs(s.blocks, s.free, s.available, s.files, s.free_files, block, 255, block);
            }
            Err(e) => reply.error(e),
        });
    }
}
