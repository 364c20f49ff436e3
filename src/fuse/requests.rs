//! One method for each request of the kernel: it parses the arguments, calls [`Fs`], and replies.
//! [`super`] decides which thread does the work.

use super::operations::{Earlier, number, resent};
use super::replies::{attribute_ttl, finish, generation, send_ok, send_written, send_xattr};
use super::request_info::RequestInfo;
use super::{FuseServer, MAX_BACKGROUND};
use crate::cache::Wait;
use crate::fs::tree::{Audience, ROOT_INODE};
use crate::fs::{FileOpening, Fs, KernelPages, MAX_NAME, RequestKind, Seek, StalePages};
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, SystemTime};
use zarrfs_base::error::Error;

/// Number of blocks of 4096 bytes, and of files, that are reported free if a store has no limit: 1
/// PiB.
const UNLIMITED: u64 = 1 << 38;

/// Size of the largest reply in bytes.
const MAX_REPLY: usize = 1 << 20;

thread_local! {
    /// The bytes of a reply, kept for the next one: fresh memory costs as much as the copy. A block
    /// of this capacity begins at a page, as decoded chunks do, and takes no memory before it is
    /// used.
    static REPLY: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(MAX_REPLY));
}

/// Answers a read of an open file. Returns the reply if that takes a wait that `wait` does not
/// allow.
fn answer_read(
    fs: &Fs,
    request: &RequestInfo,
    (handle, offset, len): (u64, u64, usize),
    wait: Wait,
    reply: ReplyData,
) -> Option<ReplyData> {
    REPLY.with_borrow_mut(|out| {
        let found = request.run_some(fs, || {
            Ok(fs.read_with(handle, offset, len, wait, out)?.ready())
        });
        match found {
            Ok(None) => return Some(reply),
            Ok(Some(found)) => reply.data(found.bytes(out)),
            Err(e) => reply.error(e),
        }
        None
    })
}

impl Filesystem for FuseServer {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Never FUSE_ASYNC_DIO: with it the kernel turns each short O_DIRECT write into EIO
        // (fs/fuse/file.c, fuse_get_res_by_io) or into the error of a later piece, though bytes
        // were written. Each flag is added by a call of its own: a kernel that lacks one must not
        // lose the others.
        for flag in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            // otherwise a truncation by open does not say which open file it comes from
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DO_READDIRPLUS,
            // attributes only for programs that ask for them: a plain listing has no use for them
            InitFlags::FUSE_READDIRPLUS_AUTO,
            // without it each write requests security.capability
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // file handles outlive what this mount knows of a file: no export over NFS
            InitFlags::FUSE_NO_EXPORT_SUPPORT,
        ] {
            let _ = config.add_capabilities(flag);
        }
        if self.is_inherited {
            // with this flag the kernel checks modes, whatever options the mount has
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_ACL);
        }
        self.maps_direct = config
            .add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
            .is_ok();
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, asker: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(request) = RequestInfo::of_name("lookup", parent, name) else {
            return reply.error(Errno::ENOENT);
        };
        let absent = self.fs.absent_names();
        absent.looked_up_by(parent.0, &request.name, asker.pid());
        if absent.contains(parent.0, &request.name) {
            return reply.error(Errno::ENOENT);
        }
        let options = self.options.clone();
        let lookup = RequestKind::Lookup {
            parent: parent.0,
            name: &request.name.clone(),
        };
        self.answer(
            lookup,
            move |fs| request.run(fs, || fs.lookup(parent.0, &request.name)),
            move |fs, found| finish(found, reply, |reply, a| options.send_entry(fs, reply, &a)),
        );
    }

    fn forget(&self, _: &Request, inode: INodeNo, count: u64) {
        self.fs.forget(inode.0, count);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if inode.0 == ROOT_INODE && self.fs.concurrency() > 1 {
            return self.remote_root_attributes(inode, reply);
        }
        let options = self.options.clone();
        self.answer(
            RequestKind::Attributes(inode.0),
            move |fs| RequestInfo::of("getattr", inode).run(fs, || fs.attributes(inode.0)),
            move |_, attributes| {
                finish(attributes, reply, |reply, a| {
                    options.send_attributes(reply, &a)
                });
            },
        );
    }

    fn setattr(
        &self,
        asker: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let options = self.options.clone();
        let asker = asker.uid();
        let pause = self.pause.clone();
        self.dispatch(RequestKind::MayWait, move |fs| {
            let _pass = pause.pass();
            let done = RequestInfo::of("setattr", inode).run(fs, || {
                let now = options.attributes(&fs.attributes(inode.0)?);
                // the mount determines the owner, and the modes of what it makes; a copy keeps
                // owners that no file here can have
                let mode = mode.map(|mode| mode & 0o7777);
                let taken = mode.filter(|mode| *mode <= 0o777 && fs.takes_any_mode(inode.0));
                let refused = mode.filter(|_| taken.is_none());
                if refused.is_some_and(|mode| mode != u32::from(now.perm))
                    || uid.is_some_and(|uid| uid != now.uid && asker != 0)
                    || gid.is_some_and(|gid| gid != now.gid && ![0, now.uid].contains(&asker))
                {
                    return Err(Error::system(libc::EPERM));
                }
                if uid.or(gid).is_some() {
                    fs.writable()?;
                }
                if let Some(mode) = taken {
                    fs.set_mode(inode.0, mode)?;
                }
                if let Some(size) = size {
                    return fs.set_size(inode.0, size, handle.map(|handle| handle.0));
                }
                if let Some(modified) = modified {
                    fs.change().set_modified(inode.0, time_of(modified))?;
                }
                fs.attributes(inode.0)
            });
            // reply before pages of other files are dropped: while the size is set, the kernel
            // writes no page of this file
            finish(done, reply, |reply, a| options.send_attributes(reply, &a));
        });
    }

    fn open(&self, asker: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let truncates = flags.0 & libc::O_TRUNC != 0;
        let for_writing = flags.acc_mode() != OpenAccMode::O_RDONLY || truncates;
        let direct = flags.0 & libc::O_DIRECT != 0;
        let audience = if self.options.is_owner(asker) {
            Audience::Owner
        } else {
            Audience::Readers
        };
        let maps_direct = self.maps_direct;
        // such a descriptor can't be mapped, but before the kernel maps direct files it leaves
        // stale pages beside them
        let is_write_only = maps_direct && flags.acc_mode() == OpenAccMode::O_WRONLY;
        let kernel = self.kernel.clone();
        let notices = self.notices.clone();
        let names = self.names.clone();
        let number = number(asker);
        let resent = resent(asker);
        let kind = if truncates || resent.is_some() {
            RequestKind::MayWait
        } else {
            RequestKind::Open(inode.0)
        };
        let pause = self.pause.clone();
        self.dispatch(kind, move |fs| {
            let _pass = truncates.then(|| pause.pass());
            let request = RequestInfo::of("open", inode);
            if let Some(number) = resent {
                fs.close_unanswered(number);
            }
            let done = request.run(fs, || {
                let opened = fs.open_for(audience, inode.0, for_writing, direct)?;
                let opening = FileOpening {
                    request: number,
                    audience,
                    for_writing,
                    direct,
                    created: None,
                };
                fs.record_opening(&opened, opening);
                if opened.has_lasting_attributes {
                    kernel.forget_attributes(inode);
                }
                if for_writing {
                    fs.absent_names().record_writer(inode.0);
                }
                if truncates {
                    let sized = fs.set_size(inode.0, 0, Some(opened.handle));
                    sized.inspect_err(|_| fs.release(opened.handle))?;
                }
                if opened.pages == KernelPages::Fresh && opened.is_written_while_shared {
                    notices.reads.dropped(inode.0);
                }
                let past_pages = is_write_only
                    && opened.pages != KernelPages::None
                    && fs.files().write_past_pages(opened.handle);
                if past_pages {
                    fs.record_past_pages(opened.handle);
                }
                Ok((past_pages, opened))
            });
            finish(done, reply, |reply, (past_pages, opened)| {
                names.opened(inode.0);
                let pages = match opened.pages {
                    KernelPages::None => FopenFlags::FOPEN_DIRECT_IO,
                    KernelPages::Maps if maps_direct => FopenFlags::FOPEN_DIRECT_IO,
                    KernelPages::Fresh | KernelPages::Maps => FopenFlags::empty(),
                    KernelPages::Kept => FopenFlags::FOPEN_KEEP_CACHE,
                };
                // closing a file that was only read can't fail
                let flush = if for_writing {
                    FopenFlags::empty()
                } else {
                    FopenFlags::FOPEN_NOFLUSH
                };
                let direct = if past_pages {
                    FopenFlags::FOPEN_DIRECT_IO
                } else {
                    FopenFlags::empty()
                };
                reply.opened(FileHandle(opened.handle), pages | flush | direct);
            });
        });
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let range = offset..offset.saturating_add(u64::from(size));
        self.notices.record_read(inode.0, range);
        let request = RequestInfo::of_bytes("read", inode, offset, size as usize);
        let bytes = (handle.0, offset, size as usize);
        let Some(reply) = answer_read(&self.fs, &request, bytes, Wait::Never, reply) else {
            return;
        };
        self.dispatch(RequestKind::MayWait, move |fs| {
            answer_read(fs, &request, bytes, Wait::Allowed, reply);
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
        modes: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let notices = self.notices.clone();
        let len = data.len();
        let handle = handle.0;
        let request = RequestInfo::of_bytes("write", inode, offset, len);
        let is_mapped = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        // the kernel sends no fsync for such a write; O_SYNC contains the bit of O_DSYNC
        let is_synced = modes.0 & libc::O_DSYNC != 0 && !is_mapped;
        let is_flat = self.fs.files().is_flat(handle);
        let fs = self.fs.clone();
        let answer = move |written, stale: Vec<StalePages>| {
            // other writes must be answered first: the kernel holds their pages until then, and a
            // notification waits for the pages
            if !is_flat && !is_mapped {
                return notices
                    .reply_after(stale, &[], move || finish(written, reply, send_written));
            }
            let range = offset..offset.saturating_add(len as u64);
            let has_stale_pages = !is_mapped
                && (fs.files().leaves_stale_pages(handle)
                    || notices.reads.may_be_older(inode.0, range.clone()));
            let others = notices.clone();
            notices.drop_before(inode.0, has_stale_pages.then_some(range), move || {
                finish(written, reply, send_written);
                others.drop_stale(stale);
            });
        };
        if !is_synced && let Some(_pass) = self.pause.try_pass() {
            let change = self.fs.change();
            let written = request.run_some(&self.fs, || {
                change.write_with(handle, offset, data, Wait::Never, is_mapped)
            });
            let stale = change.take_stale_pages();
            match written {
                Ok(Some(written)) => return answer(Ok(written), stale),
                // this removes guards of bytes applied so far; the worker applies them again
                Ok(None) => self.notices.drop_stale(stale),
                Err(e) => return answer(Err(e), stale),
            }
        }
        // record the write before this thread takes another request: see `fs::waiting`
        let waiting = self.fs.waiting_write(handle, offset, len);
        let data = data.to_vec();
        let pause = self.pause.clone();
        self.dispatch(RequestKind::MayWait, move |fs| {
            let _pass = pause.pass();
            let written = request.run(fs, || {
                let written = fs.write_with(handle, offset, &data, Wait::Allowed, is_mapped)?;
                if is_synced {
                    fs.sync_write(handle)?;
                }
                Ok(written.unwrap_or_default())
            });
            drop(waiting);
            answer(written, fs.take_stale_pages());
        });
    }

    fn flush(
        &self,
        asker: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        let thread = asker.pid();
        self.store_file(RequestInfo::of("flush", inode), handle, reply, move |fs| {
            let stored = fs.flush(handle.0);
            fs.absent_names().closed_by(inode.0, thread);
            stored
        });
    }

    fn fsync(&self, _: &Request, inode: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.store_file(RequestInfo::of("fsync", inode), handle, reply, move |fs| {
            fs.fsync(handle.0)
        });
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.change(
            RequestInfo::of("fsyncdir", inode),
            reply,
            |fs, _| fs.flush_all(),
            send_ok,
        );
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
        self.names.closed(inode.0);
        let change = self.fs.change();
        change.end_truncation(handle.0);
        self.notices.drop_stale(change.take_stale_pages());
        // no program waits for the answer, and the kernel holds back other requests while many of
        // these wait
        reply.ok();
        // release also stores pages of a map that came after the last flush
        self.dispatch(RequestKind::Release(handle.0), move |fs| {
            fs.release(handle.0)
        });
    }

    fn opendir(&self, asker: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let names = self.names.clone();
        let number = number(asker);
        let resent = resent(asker);
        self.answer(
            RequestKind::OpenDirectory(inode.0),
            move |fs| {
                if let Some(number) = resent {
                    fs.close_unanswered(number);
                }
                RequestInfo::of("opendir", inode).run(fs, || {
                    let handle = fs.open_directory(inode.0)?;
                    fs.record_directory(handle, inode.0, number);
                    Ok(handle)
                })
            },
            move |_, opened| {
                finish(opened, reply, |reply, handle| {
                    names.opened(inode.0);
                    reply.opened(FileHandle(handle), FopenFlags::empty());
                });
            },
        );
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.answer(
            RequestKind::ReadDirectory,
            move |fs| {
                let done = RequestInfo::of("readdir", inode).run(fs, || {
                    fs.read_directory(handle.0, offset, |name, next| {
                        let kind = if name.is_directory {
                            FileType::Directory
                        } else {
                            FileType::RegularFile
                        };
                        reply.add(INodeNo(name.inode), next, kind, &name.name)
                    })
                });
                (done, reply)
            },
            |_, (done, reply)| finish(done, reply, |reply, ()| reply.ok()),
        );
    }

    fn readdirplus(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let options = self.options.clone();
        self.answer(
            RequestKind::ReadDirectoryPlus {
                inode: inode.0,
                from: offset,
            },
            move |fs| {
                let done = RequestInfo::of("readdirplus", inode).run(fs, || {
                    fs.read_directory_with_attributes(handle.0, offset, |entry, next| {
                        let attributes = options.attributes(entry.attributes);
                        let ttl = attribute_ttl(entry.lasting);
                        reply.add(
                            attributes.ino,
                            next,
                            &entry.name.name,
                            &ttl,
                            &attributes,
                            generation(fs, entry.attributes),
                        )
                    })
                });
                (done, reply)
            },
            |_, (done, reply)| finish(done, reply, |reply, ()| reply.ok()),
        );
    }

    fn releasedir(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        self.names.closed(inode.0);
        // briefer than to have a worker do it
        self.fs.release_directory(handle.0);
    }

    fn statfs(&self, _: &Request, inode: INodeNo, reply: ReplyStatfs) {
        let read_only = self.options.read_only;
        self.dispatch(RequestKind::Brief, move |fs| {
            let space = RequestInfo::of("statfs", inode).run(fs, || fs.space());
            finish(space, reply, |reply, space| match space {
                Some(s) => {
                    let block = u32::try_from(s.block_size).unwrap_or(4096);
                    reply.statfs(
                        s.blocks,
                        s.free,
                        s.available,
                        s.files,
                        s.free_files,
                        block,
                        MAX_NAME as u32,
                        block,
                    );
                }
                // programs that check for free space before they write must find some
                None => {
                    let free = if read_only { 0 } else { UNLIMITED };
                    reply.statfs(free, free, free, free, free, 4096, MAX_NAME as u32, 4096);
                }
            });
        });
    }

    fn create(
        &self,
        asker: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let Some(request) = RequestInfo::of_name("create", parent, name) else {
            return reply.error(Errno::EILSEQ);
        };
        let options = self.options.clone();
        let fs = self.fs.clone();
        let names = self.names.clone();
        let exclusive = flags & libc::O_EXCL != 0;
        let truncate = flags & libc::O_TRUNC != 0;
        let thread = asker.pid();
        let number = number(asker);
        let operation = self.operations.begin(asker);
        self.change_once(
            request,
            operation,
            reply,
            move |fs, request, operation| {
                if operation.earlier != Earlier::Nothing
                    && let Some(created) = fs.created_unanswered(number)
                {
                    return Ok(created);
                }
                let create =
                    |exclusive| fs.create(parent.0, &request.name, exclusive, truncate, mode);
                let created = operation.carry_out(
                    libc::EEXIST,
                    || create(exclusive),
                    |earlier| {
                        let found = fs.lookup(parent.0, &request.name)?;
                        fs.forget(found.inode, 1);
                        if earlier.may_have_made(found.changed, fs.concurrency() > 1) {
                            create(false)
                        } else {
                            Err(Error::system(libc::EEXIST))
                        }
                    },
                )?;
                let opening = FileOpening {
                    request: number,
                    audience: Audience::Owner,
                    for_writing: true,
                    direct: false,
                    created: Some(mode),
                };
                fs.record_opening(&created.1, opening);
                fs.absent_names().created_by(
                    parent.0,
                    &request.name,
                    created.0.inode,
                    thread,
                    exclusive,
                );
                Ok(created)
            },
            move |reply, (attributes, opened)| {
                let pages = match opened.pages {
                    KernelPages::None => FopenFlags::FOPEN_DIRECT_IO,
                    _ => FopenFlags::empty(),
                };
                names.opened(attributes.inode);
                // the name and the attributes share one time to live, and the attributes may change
                // immediately
                let ttl = Duration::ZERO;
                let handle = FileHandle(opened.handle);
                reply.created(
                    &ttl,
                    &options.attributes(&attributes),
                    generation(&fs, &attributes),
                    handle,
                    pages,
                );
            },
        );
    }

    fn mknod(
        &self,
        asker: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        if ![0, libc::S_IFREG].contains(&(mode & libc::S_IFMT)) {
            return reply.error(Errno::EPERM);
        }
        // create the file as open and close would
        self.create_entry(
            RequestInfo::of_name("mknod", parent, name),
            asker,
            reply,
            move |fs, request| {
                let (attributes, opened) = fs.create(parent.0, &request.name, true, false, mode)?;
                let stored = fs.flush(opened.handle);
                fs.release(opened.handle);
                stored.inspect_err(|_| fs.tree().live.forget(attributes.inode, 1))?;
                Ok(fs.attributes(attributes.inode).unwrap_or(attributes))
            },
        );
    }

    fn mkdir(
        &self,
        asker: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let thread = asker.pid();
        let request = RequestInfo::of_name("mkdir", parent, name);
        self.create_entry(request, asker, reply, move |fs, request| {
            let made = fs.make_directory(parent.0, &request.name, mode)?;
            fs.absent_names().made_by(parent.0, &request.name, thread);
            Ok(made)
        });
    }

    fn link(
        &self,
        asker: &Request,
        inode: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let request = RequestInfo::of_name("link", parent, name);
        self.create_entry(request, asker, reply, move |fs, request| {
            fs.link(inode.0, parent.0, &request.name)
        });
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, asker: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let request = RequestInfo::of_name("unlink", parent, name);
        self.change_name(request, asker, libc::ENOENT, reply, move |fs, request| {
            fs.unlink(parent.0, &request.name)
        });
    }

    fn rmdir(&self, asker: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let request = RequestInfo::of_name("rmdir", parent, name);
        self.change_name(request, asker, libc::ENOENT, reply, move |fs, request| {
            fs.remove_directory(parent.0, &request.name)
        });
    }

    fn rename(
        &self,
        asker: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let keep = RenameFlags::RENAME_NOREPLACE;
        if !keep.contains(flags) {
            return reply.error(Errno::EINVAL);
        }
        let Some(new_name) = new_name.to_str().map(str::to_string) else {
            return reply.error(Errno::EILSEQ);
        };
        let keeps_target = flags.contains(keep);
        self.change_name(
            RequestInfo::of_name("rename", parent, name),
            asker,
            libc::ENOENT,
            reply,
            move |fs, request| {
                fs.rename(
                    (parent.0, &request.name),
                    (new_parent.0, &new_name),
                    keeps_target,
                )
            },
        );
    }

    fn setxattr(
        &self,
        asker: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let Some(name) = name.to_str().map(str::to_string) else {
            return reply.error(Errno::EILSEQ);
        };
        let value = value.to_vec();
        let create = flags & libc::XATTR_CREATE != 0;
        let replace = flags & libc::XATTR_REPLACE != 0;
        self.change_name(
            Some(RequestInfo::of("setxattr", inode)),
            asker,
            libc::EEXIST,
            reply,
            move |fs, _| fs.set_xattr(inode.0, &name, Some(&value), create, replace),
        );
    }

    fn removexattr(&self, asker: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(name) = name.to_str().map(str::to_string) else {
            return reply.error(Errno::EILSEQ);
        };
        self.change_name(
            Some(RequestInfo::of("removexattr", inode)),
            asker,
            libc::ENODATA,
            reply,
            move |fs, _| fs.set_xattr(inode.0, &name, None, false, false),
        );
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.to_str().unwrap_or_default().to_string();
        // there are no access lists, capabilities or labels; after this errno, `ls` asks for them
        // once, not once for each file
        if self.is_inherited && name.starts_with("system.posix_acl_") {
            // the kernel asks when it checks a mode, and would take another errno for the outcome
            return reply.error(Errno::ENODATA);
        }
        if !name.starts_with("user.") {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.dispatch(RequestKind::Xattrs, move |fs| {
            let value = RequestInfo::of("getxattr", inode).run(fs, || {
                let found = if ["user.zarr", "user.icechunk."]
                    .iter()
                    .any(|own| name.starts_with(own))
                {
                    fs.xattrs(inode.0, Audience::Readers, Some(&name))?
                } else {
                    Vec::new()
                };
                let value = found.into_iter().next().map(|(_, value)| value);
                value.ok_or_else(|| Error::system(libc::ENODATA))
            });
            finish(value, reply, |reply, value| send_xattr(reply, &value, size));
        });
    }

    fn listxattr(&self, asker: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let audience = if self.options.is_owner(asker) {
            Audience::Owner
        } else {
            Audience::Everyone
        };
        self.dispatch(RequestKind::Xattrs, move |fs| {
            let names = RequestInfo::of("listxattr", inode).run(fs, || {
                let all = fs.xattrs(inode.0, audience, None)?;
                Ok(all
                    .into_iter()
                    .flat_map(|(name, _)| name.into_bytes().into_iter().chain([0]))
                    .collect::<Vec<u8>>())
            });
            finish(names, reply, |reply, names| send_xattr(reply, &names, size));
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let zeroing = mode & !libc::FALLOC_FL_KEEP_SIZE;
        let is_punch = keeps_size
            && [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE].contains(&zeroing);
        if !is_punch && zeroing != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.change(
            RequestInfo::of("fallocate", inode),
            reply,
            move |fs, _| {
                if is_punch {
                    fs.punch(handle.0, offset, len)
                } else {
                    fs.allocate(handle.0, offset, len, keeps_size)
                }
            },
            send_ok,
        );
    }

    fn lseek(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.dispatch(RequestKind::MayWait, move |fs| {
            let position = RequestInfo::of("lseek", inode).run(fs, || {
                let seek = match whence {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return Err(Error::invalid("lseek: unknown whence")),
                };
                let offset = u64::try_from(offset).map_err(|_| Error::system(libc::ENXIO))?;
                fs.seek(handle.0, offset, seek)
            });
            finish(position, reply, |reply, position| {
                reply.offset(position as i64)
            });
        });
    }
}

/// Returns the time that a program sets, or `None` for the present. fuser 0.18 subtracts the
/// nanoseconds of a time before 1970, which are after its second.
fn time_of(set: TimeOrNow) -> Option<SystemTime> {
    match set {
        TimeOrNow::SpecificTime(time) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(_) => Some(time),
            Err(e) => Some(time + 2 * Duration::from_nanos(e.duration().subsec_nanos().into())),
        },
        TimeOrNow::Now => None,
    }
}
