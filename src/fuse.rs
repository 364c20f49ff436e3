//! The FUSE adapter: turns requests of the kernel into calls of [`Fs`], and the results into
//! replies. It mounts, serves and unmounts, and is the only module that names `fuser`. It must not
//! know what a request means.
//!
//! # What may block, and on which threads
//!
//! A request may block for as long as the store, another process that holds a lock, or the kernel
//! takes. No such wait delays a request that needs neither:
//!
//! * **Session threads** take requests from the kernel. At most one of them (`OneInline`) runs a
//!   request that the store could block after all (`Fs::may_block` guesses); this saves a change of
//!   threads for most requests. The others run only requests that memory can answer: reads of
//!   cached bytes, writes into the cache, `forget`. They take no lock that is held across a call to
//!   the store.
//! * **Workers** run all other requests. Their pool grows while requests wait (`pool`), so that
//!   blocked requests, however many, leave a thread to the next one. A request known to be slow
//!   goes there directly.
//! * **Notification threads** (`notify`, `name_limit`) wait for the kernel, which waits for
//!   requests in flight. Their pools grow, too.
//! * **Write-back threads** (`fs`) store chunks while their writers continue; their pool grows.
//!   **Prefetching threads** may all be blocked: no request waits for a chunk that they have not
//!   begun to load.
//! * A release is answered before it is carried out, since no program waits for it, and the kernel
//!   lets only `MAX_BACKGROUND` releases, read-aheads and writes of mapped pages wait for their
//!   answers.
//!
//! Locks that a blocked request holds are of one array, one file or one key, never of the mount.
//!
//! A panic in a request ends in EIO for that request alone (`request_info`).

mod control;
mod guard;
mod inherited;
mod messages;
mod mount;
mod mount_place;
mod name_limit;
mod namespace;
mod notify;
mod operations;
mod page_reads;
mod pause;
mod replies;
mod request_info;
mod requests;

pub use control::{PATIENCE, close_on_exec, read_control, read_statistics};
pub use guard::{MountGuard, RunService, daemons};
pub use inherited::{inherited_descriptor, names_connection};
pub use messages::{receive, send, socket_pair};
pub use mount::{MountError, MountRequest, Mountpoint, UnmountMode, Unmounted, unmount_path};
pub use mount_place::{
    FollowedPath, MountEntry, abort_file, follow, mount_of, mounts, mounts_at, open_directory,
};
pub use namespace::{enter_own_namespace, kill_namespace};

use crate::fs::tree::Attributes;
use crate::fs::{Change, Fs, RequestKind};
use fuser::{Config, Errno, FileHandle, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry, Request};
use inherited::Handshake;
use name_limit::NameLimit;
use notify::{KernelConnection, Notices};
use operations::{Operation, Operations};
pub use pause::ChangePause;
use replies::{FallibleReply, finish, send_ok};
use request_info::RequestInfo;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::huge_pages::populate;
use zarrfs_base::memory::lock;
use zarrfs_base::pool::{Pool, PoolGrowth};
use zarrfs_outlive::{Journal, Record};

/// Number of threads that take requests. With more, the kernel wakes them in turn, and requests
/// take longer (measured, 2 cores).
const SESSION_THREADS: usize = 2;

/// Maximum number of background requests in flight. fuser's default of 16 leaves too few to read
/// ahead with. While so many wait for a store that hangs, the kernel holds back reads of all files.
const MAX_BACKGROUND: u16 = 256;

/// Maximum wait for a server that is asked for the attributes of the root: commands wait for a
/// control file for [`PATIENCE`].
const ROOT_PATIENCE: Duration = Duration::from_secs(1);

/// Growth of the worker pool: the time after which a waiting request gets a new worker, and the
/// maximum number of workers.
const GROWTH: PoolGrowth = PoolGrowth {
    patience: Duration::from_millis(100),
    max_threads: 1024,
};

/// Options of the FUSE server: owner and modes of all files in the mount, and the number of
/// decoding threads.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Owner of everything.
    pub uid: u32,
    /// Group of everything.
    pub gid: u32,
    /// Permission bits removed from those that the stored files grant, which are at most 0755 and
    /// 0644, or, in a read-only mount, 0555 and 0444.
    pub umask: u16,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Number of threads that load and decode chunks.
    pub threads: usize,
}

/// How a mount outlives its daemon.
#[derive(Clone, Debug, Default)]
pub struct OutliveOptions<'a> {
    /// The memory of the journal; `None` if the mount does not outlive its daemon.
    pub memory: Option<BorrowedFd<'a>>,
    /// Pauses all changes before another program takes over.
    pub pause: Arc<ChangePause>,
}

/// Runs the child of [`read_control`] or of [`Mountpoint::start_guard`], which runs services by
/// `serve`. Returns `None` in any other process.
pub fn run_child(serve: RunService) -> Option<ExitCode> {
    guard::run_guard(serve).or_else(control::run_reader)
}

/// Answers the mount's requests until it is unmounted. Calls `before` after the handshake with the
/// kernel and before the first request. Takes over what a former daemon has left.
///
/// # Errors
///
/// Fails with the error of `before`, if the mountpoint is served already, or if a thread can't be
/// started.
pub fn serve(
    fs: Arc<Fs>,
    mountpoint: &mut Mountpoint,
    options: ServeOptions,
    outlive: OutliveOptions,
    before: impl FnOnce(&mut Mountpoint) -> Result<()>,
) -> Result<JoinHandle<Result<()>>> {
    let mut config = Config::default();
    config.n_threads = Some(SESSION_THREADS);
    // the requests to a remote store wait, each on a thread
    let pool = Pool::growing("worker", options.threads.max(fs.concurrency()), GROWTH)?;
    let fd = mountpoint
        .take_device()
        .ok_or_else(|| Error::invalid("the mount is served already"))?;
    // the kernel decides which users may use the mount: allow_other is a mount option
    let kernel = KernelConnection::default();
    let notices = Arc::new(Notices::new(fs.clone(), kernel.clone())?);
    let names = Arc::new(NameLimit::new(fs.clone(), kernel.clone())?);
    let inline = OneInline::default();
    let OutliveOptions { memory, pause } = outlive;
    let (journal, left) = memory.map(open_journal).transpose()?.unzip();
    let left = left.unwrap_or_default();
    let server = FuseServer {
        fs: fs.clone(),
        inline,
        pool,
        options,
        maps_direct: false,
        is_inherited: mountpoint.is_inherited(),
        kernel: kernel.clone(),
        notices: notices.clone(),
        names: names.clone(),
        known_root: Arc::default(),
        operations: Operations::new(journal.as_ref(), &left),
        pause,
    };
    if journal.is_some() {
        populate(REQUEST_BUFFER, MAX_REQUEST);
    }
    let record = left.iter().find(|record| record.kind == HANDSHAKE_RECORD);
    let handshake = record.and_then(|record| Handshake::from_bytes(&record.text));
    let generation = record.map_or(0, |record| record.numbers[0]);
    let shown = mountpoint.path().display().to_string();
    let session = match &handshake {
        Some(handshake) => inherited::take_over(fd, server, config, handshake),
        None => inherited::initialize(fd, server, config).map(|(session, handshake)| {
            if let Some(journal) = &journal {
                journal.add(HANDSHAKE_RECORD, [1, 0], &handshake.to_bytes());
            }
            session
        }),
    };
    let session = session.map_err(|e| e.context(format!("mountpoint {shown}")))?;
    kernel.connect(session.notifier());
    if let Some(journal) = journal {
        if let Some(record) = record {
            let number = journal.number(record.id, 0);
            number.store(generation + 1, Ordering::Release);
        }
        let open = fs.outlive(journal, &left, generation);
        open.into_iter().for_each(|inode| names.opened(inode));
    }
    before(mountpoint)?;
    if handshake.is_some() {
        // they may show bytes that are lost, and this process does not know their versions
        notices.drop_all(fs.tree().live.numbers());
    }
    let run = move || session.run().map_err(Error::from);
    Ok(std::thread::Builder::new()
        .name("session".into())
        .spawn(run)?)
}

/// The size in bytes of the buffers in which fuser takes requests, and of the longest request of
/// this mount: a write of 1 MiB.
const REQUEST_BUFFER: usize = (16 << 20) + 4096;
const MAX_REQUEST: usize = (1 << 20) + 8192;

/// The kind of the record with the handshake. Its first number counts the daemons.
const HANDSHAKE_RECORD: u32 = 7;

/// Opens a journal, and returns the records that a former daemon has left in it.
fn open_journal(memory: BorrowedFd) -> Result<(Arc<Journal>, Vec<Record>)> {
    let (journal, left) = Journal::open(memory)?;
    if journal.is_incomplete() {
        return Err(Error::unsupported(
            "the mount has more open files and names than outlive a daemon",
        ));
    }
    Ok((Arc::new(journal), left))
}

/// The FUSE server, whose methods are in `requests`.
struct FuseServer {
    fs: Arc<Fs>,
    inline: OneInline,
    pool: Pool,
    options: ServeOptions,
    /// Whether the kernel maps files whose reads bypass its page cache.
    maps_direct: bool,
    /// Whether another program has made the mount, perhaps without the option default_permissions.
    is_inherited: bool,
    kernel: KernelConnection,
    notices: Arc<Notices>,
    names: Arc<NameLimit>,
    /// The latest attributes of the root of a remote store. Protects them alone.
    known_root: Arc<Mutex<Option<Attributes>>>,
    operations: Operations,
    pause: Arc<ChangePause>,
}

/// The right of one session thread to run a request that may block against expectation. The other
/// session threads take requests meanwhile.
#[derive(Default)]
struct OneInline(AtomicBool);

impl OneInline {
    /// Returns the right, which lasts until it is dropped, or `None` if another thread has it.
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

impl FuseServer {
    /// Answers a request for the attributes of the root of a remote store. If the server is silent,
    /// the answer is what it has said before: the kernel asks before it opens a control file, which
    /// must tell why the mount hangs.
    fn remote_root_attributes(&self, root: INodeNo, reply: ReplyAttr) {
        let request = RequestInfo::of("getattr", root);
        let known = self.known_root.clone();
        let (send, answer) = channel();
        self.dispatch(RequestKind::Attributes(root.0), move |fs| {
            let attributes = request.run(fs, || fs.attributes(root.0));
            if let Ok(attributes) = &attributes {
                *lock(&known) = Some(attributes.clone());
            }
            // the other job may have replied
            let _ = send.send(attributes);
        });
        let known = self.known_root.clone();
        let options = self.options.clone();
        self.pool.run(move || {
            let in_time = answer.recv_timeout(ROOT_PATIENCE).ok();
            let attributes = in_time
                .or_else(|| lock(&known).clone().map(Ok))
                .or_else(|| answer.recv().ok())
                .unwrap_or(Err(Errno::EIO));
            finish(attributes, reply, |reply, attributes| {
                options.send_attributes(reply, &attributes);
            });
        });
    }

    /// Runs the job of a request: on a worker if it may block or another session thread runs a job,
    /// otherwise on this thread. Then makes the kernel drop pages that the job has made stale
    /// without waiting for them, and forget names if it knows too many.
    fn dispatch(&self, request: RequestKind, job: impl FnOnce(&Change) + Send + 'static) {
        self.answer(request, job, |_, ()| ());
    }

    /// Runs the job of a request as [`FuseServer::dispatch`] does, in two steps: `send` replies
    /// with what `work` has returned. The reply wakes the program, whose next request may come
    /// while this thread still sends: another session thread may take the right to run it by then.
    fn answer<T>(
        &self,
        request: RequestKind,
        work: impl FnOnce(&Change) -> T + Send + 'static,
        send: impl FnOnce(&Change, T) + Send + 'static,
    ) {
        let inline = if self.fs.may_block(request) {
            None
        } else {
            self.inline.take()
        };
        let fs = self.fs.clone();
        let notices = self.notices.clone();
        let names = self.names.clone();
        let job = move |inline: Option<Inline<'_>>| {
            let change = fs.change();
            let done = work(&change);
            drop(inline);
            send(&change, done);
            notices.drop_stale(change.take_stale_pages());
            notices.drop_stale(fs.take_unsent_stale_pages());
            names.enforce();
        };
        match inline {
            None => self.pool.run(move || job(None)),
            inline => job(inline),
        }
    }

    /// Carries out a change of attributes, which may be carried out twice. Replies after the kernel
    /// has dropped the pages that became stale.
    fn change<T: Send + 'static, R: FallibleReply>(
        &self,
        request: RequestInfo,
        reply: R,
        work: impl FnOnce(&Change, &RequestInfo) -> Result<T> + Send + 'static,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        let notices = self.notices.clone();
        let pause = self.pause.clone();
        self.dispatch(RequestKind::MayWait, move |fs| {
            let _pass = pause.pass();
            let done = request.run(fs, || work(fs, &request));
            let stale = fs.take_stale_pages();
            notices.reply_after(stale, &[], move || finish(done, reply, send));
        });
    }

    /// Carries out a change of names, as [`FuseServer::change`] does, once: see [`operations`].
    fn change_once<T: Send + 'static, R: FallibleReply>(
        &self,
        request: RequestInfo,
        operation: Operation,
        reply: R,
        work: impl FnOnce(&Change, &RequestInfo, &Operation) -> Result<T> + Send + 'static,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        let notices = self.notices.clone();
        let pause = self.pause.clone();
        self.dispatch(RequestKind::MayWait, move |fs| {
            let _pass = pause.pass();
            let done = request.run(fs, || work(fs, &request, &operation));
            operation.finish(&done);
            let stale = fs.take_stale_pages();
            notices.reply_after(stale, &[], move || {
                finish(done, reply, send);
                drop(operation);
            });
        });
    }

    /// Carries out a change that creates a name, given as `None` if it is not UTF-8.
    fn create_entry(
        &self,
        request: Option<RequestInfo>,
        asker: &Request,
        reply: ReplyEntry,
        work: impl FnOnce(&Change, &RequestInfo) -> Result<Attributes> + Send + 'static,
    ) {
        let Some(request) = request else {
            return reply.error(Errno::EILSEQ);
        };
        let options = self.options.clone();
        let fs = self.fs.clone();
        let operation = self.operations.begin(asker);
        self.change_once(
            request,
            operation,
            reply,
            |fs, request, operation| {
                operation.carry_out(
                    libc::EEXIST,
                    || work(fs, request),
                    |earlier| {
                        let found = fs.lookup(request.inode, &request.name)?;
                        if earlier.may_have_made(found.changed, fs.concurrency() > 1) {
                            return Ok(found);
                        }
                        fs.forget(found.inode, 1);
                        Err(Error::system(libc::EEXIST))
                    },
                )
            },
            move |reply, a| options.send_entry(&fs, reply, &a),
        );
    }

    /// Carries out a change of a name, given as `None` if it is not UTF-8. The errno `repeated`
    /// says that it was carried out before.
    fn change_name(
        &self,
        request: Option<RequestInfo>,
        asker: &Request,
        repeated: i32,
        reply: ReplyEmpty,
        work: impl FnOnce(&Change, &RequestInfo) -> Result<()> + Send + 'static,
    ) {
        let Some(request) = request else {
            return reply.error(Errno::EILSEQ);
        };
        self.change_once(
            request,
            self.operations.begin(asker),
            reply,
            move |fs, request, operation| {
                operation.carry_out(repeated, || work(fs, request), |_| Ok(()))
            },
            send_ok,
        );
    }

    /// Stores the writes to an open file, and replies after the kernel has dropped its stale pages.
    fn store_file(
        &self,
        request: RequestInfo,
        handle: FileHandle,
        reply: ReplyEmpty,
        work: impl FnOnce(&Change) -> Result<()> + Send + 'static,
    ) {
        let notices = self.notices.clone();
        self.dispatch(RequestKind::MayWait, move |fs| {
            let files = fs.files_with_pages(handle.0);
            let done = request.run(fs, || work(fs));
            let stale = fs.take_stale_pages();
            notices.reply_after(stale, &files, move || finish(done, reply, send_ok));
        });
    }
}
