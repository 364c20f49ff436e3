//! Answers to the kernel: attributes, times to live, errors.

use super::ServeOptions;
use crate::fs::Fs;
use crate::fs::tree::Attributes;
use fuser::{
    Errno, FileAttr, FileType, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request,
};
use std::time::Duration;

/// Time for which the kernel may use a name without a request. A stale name does no harm: `open`
/// asks the store again.
pub const ENTRY_TTL: Duration = Duration::from_secs(1);

/// Returns the time for which the kernel may use attributes without a request. It is zero for most
/// files: a size that another process changed in the store must show immediately.
pub fn attribute_ttl(is_lasting: bool) -> Duration {
    if is_lasting {
        ENTRY_TTL
    } else {
        Duration::ZERO
    }
}

impl ServeOptions {
    /// Returns whether a request comes from the owner of the mount, from the user who made it, or
    /// from root.
    pub(super) fn is_owner(&self, asker: &Request) -> bool {
        [0, self.uid, rustix::process::getuid().as_raw()].contains(&asker.uid())
    }

    /// Converts attributes to those that the kernel expects.
    pub(super) fn attributes(&self, a: &Attributes) -> FileAttr {
        let (kind, mode, nlink) = if a.is_directory {
            (FileType::Directory, 0o755, 2)
        } else {
            (FileType::RegularFile, 0o644, u32::from(!a.is_removed))
        };
        let mode = match a
            .permissions
            .map(|granted| granted.bits(self.uid, self.gid))
        {
            Some(stored) if a.is_stored => stored,
            Some(granted) => mode & granted,
            None => mode,
        };
        let mode = if self.read_only { mode & 0o555 } else { mode };
        FileAttr {
            ino: INodeNo(a.inode),
            size: a.size,
            blocks: a.blocks,
            atime: a.modified,
            mtime: a.modified,
            ctime: a.changed,
            crtime: a.modified,
            kind,
            perm: mode & !self.umask,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: a.block_size,
            flags: 0,
        }
    }

    /// Answers with the attributes of an inode.
    pub(super) fn send_attributes(&self, reply: ReplyAttr, a: &Attributes) {
        reply.attr(&attribute_ttl(a.lasting), &self.attributes(a));
    }

    /// Answers with the inode of a name, which has the attributes `a`.
    pub(super) fn send_entry(&self, fs: &Fs, reply: ReplyEntry, a: &Attributes) {
        reply.entry_with_ttls(
            &attribute_ttl(a.lasting),
            &ENTRY_TTL,
            &self.attributes(a),
            generation(fs, a),
        );
    }
}

/// Returns the generation of an inode with the attributes `a`.
pub fn generation(fs: &Fs, a: &Attributes) -> Generation {
    Generation(fs.tree().live.generation(a.inode).into())
}

/// A reply that can carry an error instead of a value.
pub trait FallibleReply: Send + 'static {
    /// Answers with an error.
    fn fail(self, e: Errno);
}

macro_rules! replies {
    ($($reply:ty),*) => {
        $(impl FallibleReply for $reply {
            fn fail(self, e: Errno) {
                self.error(e);
            }
        })*
    };
}

replies!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

/// Answers with the value of a request, or with its error.
pub fn finish<T, R: FallibleReply>(done: Result<T, Errno>, reply: R, send: impl FnOnce(R, T)) {
    match done {
        Ok(value) => send(reply, value),
        Err(e) => reply.fail(e),
    }
}

/// Answers a request that has no value.
pub fn send_ok(reply: ReplyEmpty, (): ()) {
    reply.ok();
}

/// Answers with the number of bytes written.
pub fn send_written(reply: ReplyWrite, bytes: usize) {
    reply.written(bytes as u32);
}

/// Answers with the value or the names of extended attributes. A `size` of 0 asks for the size
/// alone.
pub fn send_xattr(reply: ReplyXattr, value: &[u8], size: u32) {
    match size as usize {
        0 => reply.size(value.len() as u32),
        size if value.len() > size => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
