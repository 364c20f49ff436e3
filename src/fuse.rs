//! FUSE requests to calls of [`Fs`] and back: the only room that names `fuser`. It mounts, serves and unmounts; what a
//! request means is decided in `fs`.
//!
//! # What may block, and on which threads
//!
//! A request may block for as long as the store, another process that holds a lock, or the kernel pleases. No such wait
//! delays a request that needs neither:
//!
//! * **Session threads** take requests from the kernel. At most one of them ([`OneInline`]) runs a request that may
//!   block; this saves a change of threads where nothing does block. The others run only what needs memory alone:
//!   reads of cached bytes, `forget`. They take no lock that is held across a call to the store.
//! * **Workers** run all other requests. Their pool grows while requests wait (`pool`), so that blocked requests,
//!   however many, leave a thread to the next one. A request known to be slow goes there at once.
//! * **Notification threads** (`notify`) wait for the kernel, which waits for requests in flight. Their pool grows, too.
//! * **Write-back threads** (`fs`) store chunks while their writers go on; their pool grows. **Read-ahead threads** may
//!   all be blocked: no request waits for what they have not begun.
//! * A release is answered before it is carried out, since no program waits for it, and the kernel lets only
//!   [`MAX_BACKGROUND`] releases, read-aheads and writes of mapped pages wait for their answers.
//!
//! Locks that a blocked request holds are of one array, one file or one key, never of the mount.
//!
//! A panic in a request ends in EIO for that request alone.

mod backing;
mod mount;
mod mount_place;
mod name_limit;
mod names;
mod notify;

pub use mount::{Manner, MountError, MountRequest, Mountpoint, Unmounted, mountpoint_of, unmount_path};
pub use mount_place::{mounts_at, open_directory};

use crate::error::{Error, Kind, Result};
use crate::fs::tree::{Attributes, Audience};
use crate::fs::{Fs, KernelPages, RequestKind, Seek};
use crate::util::pool::{Pool, PoolGrowth};
use backing::Backings;
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use name_limit::NameLimit;
use notify::{Kernel, Notices};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// How long the kernel may take a name as known. A stale one does no harm: `open` asks the store again.
const ENTRY_TTL: Duration = Duration::from_secs(1);

/// How long attributes may be taken as they were. Those of most files are asked for each time: a size that changed
/// behind the mount must show at once.
fn attribute_ttl(a: &Attributes) -> Duration {
    if a.lasting { ENTRY_TTL } else { Duration::ZERO }
}

/// Threads that take requests. More are woken in turn and get slower (measured, 2 cores).
const SESSION_THREADS: usize = 2;

/// Requests the kernel may have under way without waiting for their replies; the default of 16 starves read-ahead.
/// Where so many wait for a store that hangs, the kernel holds back reads of all files.
const MAX_BACKGROUND: u16 = 256;

/// When a request gets a worker of its own, and how many there may be.
const GROWTH: PoolGrowth = PoolGrowth { patience: Duration::from_millis(100), max_threads: 1024 };

thread_local! {
    /// The bytes of a reply, kept for the next one: fresh memory costs as much as the copy.
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Owner and modes of everything in the mount, and how many threads decode.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Owner of everything.
    pub uid: u32,
    /// Group of everything.
    pub gid: u32,
    /// Permission bits taken away from what the stored files grant, which is at most 0755 and 0644, or, read-only, 0555
    /// and 0444.
    pub umask: u16,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Threads that load and decode chunks.
    pub threads: usize,
    /// Whether the kernel is asked to read files of the store itself.
    pub passthrough: bool,
}

/// Answers the mount's requests until it is unmounted. The handshake with the kernel is done when this returns.
pub fn serve(fs: Arc<Fs>, mountpoint: &mut Mountpoint, options: ServeOptions) -> Result<JoinHandle<Result<()>>> {
    let mut config = Config::default();
    config.n_threads = Some(SESSION_THREADS);
    // they wait for a far store, each for its request
    let pool = Pool::growing("worker", options.threads.max(fs.concurrency()), GROWTH)?;
    let fd = mountpoint.take_device().ok_or_else(|| Error::invalid("the mount is served already"))?;
    // who may use the mount is the kernel's business: allow_other is a mount option
    let kernel = Kernel::default();
    let notices = Arc::new(Notices::new(fs.clone(), kernel.clone())?);
    let names = Arc::new(NameLimit::new(fs.clone(), kernel.clone())?);
    let inline = OneInline::default();
    let (backings, maps_direct) = (None, false);
    let server = Server { fs, inline, pool, options, backings, maps_direct, kernel: kernel.clone(), notices, names };
    let session = Session::from_fd(server, fd, SessionACL::All, config)?;
    kernel.connect(session.notifier());
    let run = move || session.run().map_err(Error::from);
    Ok(std::thread::Builder::new().name("session".into()).spawn(run)?)
}

struct Server {
    fs: Arc<Fs>,
    inline: OneInline,
    pool: Pool,
    options: ServeOptions,
    /// None without passthrough.
    backings: Option<Arc<Backings>>,
    /// Whether the kernel maps files whose reads go past its page cache.
    maps_direct: bool,
    kernel: Kernel,
    notices: Arc<Notices>,
    names: Arc<NameLimit>,
}

/// The right of one session thread to run a request that may block. The other session threads go on taking requests.
#[derive(Default)]
struct OneInline(AtomicBool);

impl OneInline {
    /// Returns the right until it is dropped, or `None` if another thread has it.
    fn take(&self) -> Option<Inline<'_>> {
        (!self.0.swap(true, Ordering::Acquire)).then(|| Inline(self))
    }
}

struct Inline<'a>(&'a OneInline);

impl Drop for Inline<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

impl Server {
    /// Runs the job of a request: on a worker if it may block or another session thread runs one, else on this thread.
    /// Pages that the job has made stale and does not wait for are dropped afterwards.
    fn dispatch(&self, request: RequestKind, job: impl FnOnce(&Fs) + Send + 'static) {
        let inline = if self.fs.may_block(request) { None } else { self.inline.take() };
        let (fs, notices, names) = (self.fs.clone(), self.notices.clone(), self.names.clone());
        let job = move || {
            job(&fs);
            notices.drop_stale();
            names.enforce();
        };
        match inline {
            Some(_inline) => job(),
            None => self.pool.run(job),
        }
    }
}

/// Runs the work of one request. A panic is EIO.
fn guarded<T>(fs: &Fs, what: &str, work: impl FnOnce() -> Result<T>) -> std::result::Result<T, Errno> {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::damaged(format!("{what}: internal error: {}", text.unwrap_or("panic"))))
    });
    result.map_err(|e| {
        match e.kind() {
            Kind::Damaged => fs.problem(e.to_string()),
            _ => log::debug!("{what}: {e}"),
        }
        Errno::from_i32(e.errno())
    })
}

impl ServeOptions {
    fn attributes(&self, a: &Attributes) -> FileAttr {
        let (kind, mode, nlink) = match a.is_directory {
            true => (FileType::Directory, 0o755, 2),
            false => (FileType::RegularFile, 0o644, 1),
        };
        let mode = if self.read_only { mode & 0o555 } else { mode };
        let mode = mode & a.permissions.map_or(0o777, |granted| granted.bits(self.uid, self.gid));
        FileAttr {
            ino: INodeNo(a.inode),
            size: a.size,
            blocks: a.blocks,
            atime: a.modified,
            mtime: a.modified,
            ctime: a.modified,
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
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Never FUSE_ASYNC_DIO: with it the kernel turns each short O_DIRECT write into EIO (fs/fuse/file.c,
        // fuse_get_res_by_io) or into the error of a later piece, though bytes were written.
        // one at a time: a kernel that lacks one must not lose the others
        for flag in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            // only for whoever asks for attributes: they are no use to a plain listing
            InitFlags::FUSE_READDIRPLUS_AUTO,
            // without it every write asks for security.capability
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            let _ = config.add_capabilities(flag);
        }
        self.maps_direct = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        if self.options.passthrough {
            // files of the store must not lie on a stacked file system; the mount itself may carry one
            let offered = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
            match offered && config.set_max_stack_depth(1).is_ok() {
                true => self.backings = Some(Arc::default()),
                false => log::warn!("--passthrough: this kernel has none; files are read by requests"),
            }
        }
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        // keys are UTF-8: no other name can exist
        let Some(name) = name.to_str().map(str::to_string) else { return reply.error(Errno::ENOENT) };
        if self.fs.hides(parent.0, &name, request.pid()) {
            return reply.error(Errno::ENOENT);
        }
        let options = self.options.clone();
        let lookup = RequestKind::Lookup { parent: parent.0, name: &name.clone() };
        self.dispatch(lookup, move |fs| match guarded(fs, "lookup", || fs.lookup(parent.0, &name)) {
            Ok(a) => {
                let attributes = options.attributes(&a);
                reply.entry_with_ttls(&attribute_ttl(&a), &ENTRY_TTL, &attributes, Generation(0));
            }
            Err(e) => reply.error(e),
        });
    }

    fn forget(&self, _: &Request, inode: INodeNo, count: u64) {
        self.fs.forget(inode.0, count);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let options = self.options.clone();
        self.dispatch(RequestKind::Attributes(inode.0), move |fs| {
            match guarded(fs, "getattr", || fs.attributes(inode.0)) {
                Ok(a) => reply.attr(&attribute_ttl(&a), &options.attributes(&a)),
                Err(e) => reply.error(e),
            }
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY || flags.0 & libc::O_TRUNC != 0;
        let direct = flags.0 & libc::O_DIRECT != 0;
        let (backings, maps_direct) = (self.backings.clone(), self.maps_direct);
        let (kernel, notices, thread) = (self.kernel.clone(), self.notices.clone(), request.pid());
        let names = self.names.clone();
        self.dispatch(RequestKind::Open(inode.0), move |fs| {
            match guarded(fs, "open", || fs.open(inode.0, write, direct)) {
                Ok(mut opened) => {
                    if opened.has_lasting_attributes {
                        kernel.forget_attributes(inode);
                    }
                    fs.opened_by(opened.handle, thread);
                    names.opened(inode.0);
                    if opened.pages == KernelPages::Fresh && opened.has_other_writers {
                        notices.note_drop(inode.0);
                    }
                    let handle = FileHandle(opened.handle);
                    let through = || backings.map_or(Ok(None), |b| b.open(inode.0, opened.backing.take(), &reply));
                    match guarded(fs, "open", through) {
                        Ok(Some(id)) => return reply.opened_passthrough(handle, FopenFlags::FOPEN_NOFLUSH, &id),
                        Ok(None) => {}
                        Err(e) => {
                            fs.release(opened.handle);
                            names.closed(inode.0);
                            return reply.error(e);
                        }
                    }
                    let pages = match opened.pages {
                        KernelPages::None => FopenFlags::FOPEN_DIRECT_IO,
                        KernelPages::Maps if maps_direct => FopenFlags::FOPEN_DIRECT_IO,
                        KernelPages::Fresh | KernelPages::Maps => FopenFlags::empty(),
                        KernelPages::Kept => FopenFlags::FOPEN_KEEP_CACHE,
                    };
                    // who only reads has nothing to be told at close
                    let flush = if write { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH };
                    reply.opened(handle, pages | flush);
                }
                Err(e) => reply.error(e),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (handle, size) = (handle.0, size as usize);
        let reply = REPLY.with_borrow_mut(|out| {
            match guarded(&self.fs, "read", || self.fs.read_cached(handle, offset, size, out)) {
                Ok(true) => reply.data(out),
                Ok(false) => return Some(reply),
                Err(e) => reply.error(e),
            }
            None
        });
        let Some(reply) = reply else { return };
        self.dispatch(RequestKind::Change, move |fs| {
            REPLY.with_borrow_mut(|out| match guarded(fs, "read", || fs.read(handle, offset, size, out)) {
                Ok(()) => reply.data(out),
                Err(e) => reply.error(e),
            });
            fs.prepare();
        });
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (notices, len, handle) = (self.notices.clone(), data.len(), handle.0);
        let mapped = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let is_flat = self.fs.is_flat(handle);
        let again = is_flat && !mapped && notices.were_dropped(inode.0);
        let answer = move |written| {
            // the kernel holds pages of the write until it has the answer, and whatever drops them waits for that
            if !is_flat && !mapped {
                return notices.reply_after(move || answer_write(written, reply));
            }
            // also where pages were dropped since: another thread may have answered a read before the bytes were applied
            let again = again || is_flat && !mapped && notices.were_dropped(inode.0);
            answer_write(written, reply);
            if again {
                notices.drop_again(inode.0, offset, len);
            }
            notices.drop_stale();
        };
        match guarded(&self.fs, "write", || self.fs.try_write(handle, offset, data, mapped)) {
            Ok(Some(written)) => return answer(Ok(written)),
            // guards of what was applied so far: the worker applies it again
            Ok(None) => self.notices.drop_stale(),
            Err(e) => return answer(Err(e)),
        }
        // before another request is taken: see `fs::waiting`
        let (waiting, data) = (self.fs.waiting_write(handle, offset, len), data.to_vec());
        self.dispatch(RequestKind::Change, move |fs| {
            let written = guarded(fs, "write", || fs.write_waiting(handle, offset, &data, mapped));
            drop(waiting);
            answer(written);
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let notices = self.notices.clone();
        self.dispatch(RequestKind::Change, move |fs| {
            let files = fs.files_with_pages(handle.0);
            let done = guarded(fs, "flush", || fs.flush(handle.0));
            notices.reply_after_others(&files, move || answer_empty(done, reply));
        });
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (options, notices, thread) = (self.options.clone(), self.notices.clone(), request.pid());
        self.dispatch(RequestKind::Change, move |fs| {
            let done = guarded(fs, "setattr", || {
                let now = options.attributes(&fs.attributes(inode.0)?);
                let is_other = |asked: Option<u32>, now: u32| asked.is_some_and(|asked| asked != now);
                // owner and modes are the mount's
                let mode = mode.filter(|_| !fs.takes_any_mode(inode.0, thread)).map(|mode| mode & 0o7777);
                if is_other(mode, now.perm.into()) || is_other(uid, now.uid) || is_other(gid, now.gid) {
                    return Err(Error::system(libc::EPERM));
                }
                if size == Some(0) {
                    fs.truncate_chunk_file(inode.0, thread, handle.map(|handle| handle.0));
                }
                size.map_or_else(|| fs.attributes(inode.0), |size| fs.set_size(inode.0, size))
            });
            // not after others' pages are dropped: while the size is set the kernel writes none of this file's
            match done {
                Ok(a) => reply.attr(&attribute_ttl(&a), &options.attributes(&a)),
                Err(e) => reply.error(e),
            }
            notices.drop_stale();
        });
    }

    fn release(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(backings) = &self.backings {
            backings.release(inode.0);
        }
        self.names.closed(inode.0);
        // no program waits for the answer, and the kernel holds back other requests while many wait for theirs
        reply.ok();
        let notices = self.notices.clone();
        // pages of a map may have come after the last flush
        self.dispatch(RequestKind::Release(handle.0), move |fs| {
            fs.release(handle.0);
            notices.drop_stale();
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let notices = self.notices.clone();
        self.dispatch(RequestKind::Change, move |fs| {
            let files = fs.files_with_pages(handle.0);
            let done = guarded(fs, "fsync", || fs.fsync(handle.0));
            notices.reply_after_others(&files, move || answer_empty(done, reply));
        });
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let notices = self.notices.clone();
        self.dispatch(RequestKind::Change, move |fs| {
            let done = guarded(fs, "fsyncdir", || fs.flush_all());
            notices.reply_after(move || answer_empty(done, reply));
        });
    }

    fn opendir(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let names = self.names.clone();
        self.dispatch(RequestKind::OpenDirectory(inode.0), move |fs| {
            match guarded(fs, "opendir", || fs.open_directory(inode.0)) {
                Ok(handle) => {
                    names.opened(inode.0);
                    reply.opened(FileHandle(handle), FopenFlags::empty())
                }
                Err(e) => reply.error(e),
            }
        });
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let kind = |directory| if directory { FileType::Directory } else { FileType::RegularFile };
        self.dispatch(RequestKind::ReadDirectory, move |fs| {
            let result = guarded(fs, "readdir", || {
                fs.read_directory(handle.0, offset, |name, next| {
                    reply.add(INodeNo(name.inode), next, kind(name.is_directory), &name.name)
                })
            });
            match result {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(e),
            }
        });
    }

    fn readdirplus(&self, _: &Request, inode: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let options = self.options.clone();
        self.dispatch(RequestKind::ReadDirectoryPlus { inode: inode.0, from: offset }, move |fs| {
            let result = guarded(fs, "readdirplus", || {
                fs.read_directory_with_attributes(handle.0, offset, |entry, next| {
                    let attributes = options.attributes(entry.attributes);
                    let ttl = if entry.lasting { ENTRY_TTL } else { Duration::ZERO };
                    reply.add(attributes.ino, next, &entry.name.name, &ttl, &attributes, Generation(0))
                })
            });
            match result {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(e),
            }
        });
    }

    fn releasedir(&self, _: &Request, inode: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        reply.ok();
        self.names.closed(inode.0);
        self.dispatch(RequestKind::Brief, move |fs| fs.release_directory(handle.0));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.tell_space(reply);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, flags: i32, reply: ReplyCreate) {
        self.create_file(parent, name, flags, reply);
    }

    fn mknod(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: u32, reply: ReplyEntry) {
        match names::is_regular(mode) {
            true => self.make_file(parent, name, reply),
            false => reply.error(Errno::EPERM),
        }
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        self.make_directory(parent, name, request.pid(), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_name(parent, name, false, request.pid(), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_name(parent, name, true, request.pid(), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.rename_name((parent, name), (new_parent, new_name), flags, reply);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn link(&self, _: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.link_file(inode, parent, name, reply);
    }

    fn setxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32, reply: ReplyEmpty) {
        self.change_xattr(inode, name, Some(value), flags, reply);
    }

    fn removexattr(&self, _: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.change_xattr(inode, name, None, 0, reply);
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.to_str().unwrap_or_default().to_string();
        // no access lists, capabilities or labels: `ls` then asks for them once, not once for each file
        if !name.starts_with("user.") {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.dispatch(RequestKind::Xattrs, move |fs| {
            let value = guarded(fs, "getxattr", || {
                let all = match name.starts_with("user.zarr") {
                    true => fs.xattrs(inode.0, Audience::Readers)?,
                    false => Vec::new(),
                };
                let value = all.into_iter().find(|(n, _)| *n == name).map(|(_, value)| value);
                value.ok_or_else(|| Error::system(libc::ENODATA))
            });
            answer_xattr(value, size, reply);
        });
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let is_owner = [0, self.options.uid].contains(&request.uid());
        let audience = if is_owner { Audience::Owner } else { Audience::Everyone };
        self.dispatch(RequestKind::Xattrs, move |fs| {
            let names = guarded(fs, "listxattr", || {
                let all = fs.xattrs(inode.0, audience)?;
                Ok(all.into_iter().flat_map(|(name, _)| name.into_bytes().into_iter().chain([0])).collect::<Vec<u8>>())
            });
            answer_xattr(names, size, reply);
        });
    }

    fn lseek(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.dispatch(RequestKind::Change, move |fs| {
            let result = guarded(fs, "lseek", || {
                let seek = match whence {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return Err(Error::invalid("lseek: unknown whence")),
                };
                let offset = u64::try_from(offset).map_err(|_| Error::system(libc::ENXIO))?;
                fs.seek(handle.0, offset, seek)
            });
            match result {
                Ok(position) => reply.offset(position as i64),
                Err(e) => reply.error(e),
            }
        });
    }
}

fn answer_empty(done: std::result::Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

fn answer_write(written: std::result::Result<usize, Errno>, reply: ReplyWrite) {
    match written {
        Ok(n) => reply.written(n as u32),
        Err(e) => reply.error(e),
    }
}

/// A size of 0 asks for the size alone.
fn answer_xattr(value: std::result::Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(e),
    }
}
