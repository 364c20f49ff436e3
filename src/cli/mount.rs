//! `zarrfs mount`: mounts a store, in the background unless --foreground is given. The background
//! process is this program started again; it keeps standard error until the mount answers, so that
//! a failure reads the same as in the foreground.

use super::compressor::{self, CompressorArg};
use super::header_options::HeadersArgs;
use super::listen::{self, ListenAddress, StatisticsListener};
use super::logger::{self, LogArgs};
use super::mountpoint::{MadeDirectories, RemovableDirectories};
use super::nesting::{MountSite, OwnPath, OwnPathKind};
use super::sandbox::{MountNeeds, Sandbox, SandboxArgs};
use super::systemd::ServiceManager;
use super::{
    ACCESS, CACHING, CommandFailure, DIAGNOSTICS, ExitCode, ReadArgs, StoreArgs, StoreLocation,
    StoreRequest, WRITING, WriteArgs, absolute, duration, idle, leftovers, location, mount_options,
    mountpoint, nesting, overlay, size, start_directory, stdio, version, warn_unlisted,
};
use crate::array::hierarchy::Hierarchy;
use crate::fs::tree::Audience;
use crate::fs::{Fs, Options};
use crate::fuse::{
    MountError, MountRequest, Mountpoint, ServeOptions, Unmounted, inherited_descriptor,
    names_connection, serve,
};
use clap::{Args, FromArgMatches};
use signal_hook::consts::{SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
use signal_hook::iterator::Signals;
use std::ffi::{OsString, c_int};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use zarrfs_base::error::Error;
use zarrfs_base::memory;
use zarrfs_base::pool::start_thread;
use zarrfs_base::signals::ENDING;
use zarrfs_base::spill_file::SpillSpace;
use zarrfs_base::stats::Stats;

/// The environment variable of the background process, which writes [`READY`] to its standard
/// output, a pipe.
const BACKGROUND: &str = "ZARRFS_BACKGROUND";
pub const READY: &[u8] = b"ready\n";

/// The name under which the control files show the level of the log.
const LOG_LEVEL: &str = "log_level";

/// Read-ahead in bytes, where the mount may set it. The kernel sends half of the requests that it
/// sends with its own read-ahead. A longer one would slow down maps that are read at random.
const READAHEAD: u64 = 256 << 10;

/// The thread that serves a mount. It ends with the mount.
type Session = JoinHandle<zarrfs_base::error::Result<()>>;

/// Arguments of `mount`.
#[derive(Args)]
#[command(args_override_self = true)]
pub struct MountArgs {
    /// Existing directory, or one that --auto-mountpoint creates
    ///
    /// Or /dev/fd/N: the descriptor N is /dev/fuse, which the calling program has opened and
    /// mounted. Or a socket, where a program sends that descriptor, as fusermount3 does. zarrfs
    /// serves such a mount without privileges, and never unmounts it.
    #[arg(index = 2)]
    mountpoint: Option<PathBuf>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Take options as in fstab (ro,cache_size=1G)
    ///
    /// Any long option of this page without its dashes. Options of mount(8) and of systemd that
    /// don't concern zarrfs are accepted. Options on the command line take precedence.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignore unknown -o options
    #[arg(short, long)]
    sloppy: bool,
    /// Create the mountpoint, and remove it afterwards
    ///
    /// It is removed after the unmount if it is empty. If none is named, it is a new directory in
    /// the working directory, named as the store without .zarr, .zip and .ozx; its name is printed.
    #[arg(long)]
    auto_mountpoint: bool,
    /// Unmount after this time without use (30s, 10m)
    ///
    /// A mount with an open file, or with a request in that time, is in use.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    idle_timeout: Option<Duration>,
    /// First remove a mount whose daemon has ended
    #[arg(long)]
    replace_stale: bool,
    #[command(flatten)]
    served: ServedArgs,
}

/// What is mounted, and how it is served: the arguments of every verb that mounts.
#[derive(Args)]
pub struct ServedArgs {
    /// Directory, .zip archive or URL of the store, or memory:
    ///
    /// URLs begin with http, https, s3, gs, az or abfs. memory: is an empty store in memory.
    #[arg(index = 1)]
    store: StoreLocation,
    /// Mount a directory of stores
    ///
    /// STORE is a local directory. Each NAME.zarr in it, at any depth, is shown as a store, and
    /// each archive NAME.zarr.zip or NAME.ozx as a directory of that name; other files are shown as
    /// they are. Nothing is read of a store before it is used.
    #[arg(long, conflicts_with = "synchronizer")]
    stores: bool,
    /// Mount all snapshots of an Icechunk repository
    ///
    /// Shows each in a directory: branch/NAME, tag/NAME and snapshot/ID. A slash in a name is shown
    /// as %2F. Nothing is read of a snapshot before it is used.
    #[arg(long, conflicts_with_all = ["snapshot", "stores"])]
    history: bool,
    #[command(flatten)]
    reading: ReadArgs,
    /// Bypass the kernel's page cache for flat bytes
    ///
    /// Faster for bytes that are read once, slower for those that are read again.
    #[arg(long, help_heading = CACHING)]
    direct_io: bool,
    /// Set the kernel's read-ahead [default: 256K]
    ///
    /// Only root may set it; other mounts have the kernel's own, 128K. A map that is read at random
    /// gets as much for every page that it touches.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = CACHING)]
    readahead: Option<u64>,
    /// Refuse writes
    #[arg(long, help_heading = ACCESS)]
    read_only: bool,
    /// Let other users use the mount
    #[arg(long, help_heading = ACCESS)]
    allow_other: bool,
    /// Set the owner of files [default: the caller]
    #[arg(long, value_name = "UID", help_heading = ACCESS)]
    uid: Option<u32>,
    /// Set the group of files [default: the caller's]
    #[arg(long, value_name = "GID", help_heading = ACCESS)]
    gid: Option<u32>,
    /// Remove these permission bits, in octal
    #[arg(long, value_name = "OCTAL", value_parser = parse_umask, help_heading = ACCESS)]
    umask: Option<u16>,
    /// Forbid executing files from the mount
    #[arg(long, help_heading = ACCESS)]
    noexec: bool,
    #[command(flatten)]
    store_args: StoreArgs,
    /// Keep changes in DIR, and never write the store
    ///
    /// Mounts a store that can't or must not be written, such as an archive or a web server, as a
    /// writable one. DIR is created; only zarrfs can read it. `zarrfs overlay` shows, commits and
    /// discards the changes. With --read-only the mount shows an overlay that exists, and does not
    /// change it.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["synchronizer", "stores"],
        help_heading = WRITING)]
    overlay: Option<PathBuf>,
    /// Store and sync every write before it returns
    ///
    /// This is slow.
    #[arg(long, help_heading = WRITING)]
    sync: bool,
    /// Compress new arrays that have no compressor
    ///
    /// Applies to arrays that are created in the mount without a compressor: blosc:zstd:5, zlib:1,
    /// or a JSON object.
    #[arg(long, value_name = "CODEC", value_parser = compressor::parse, help_heading = WRITING)]
    compressor: Option<CompressorArg>,
    /// Let writes past the end of data.raw extend it
    ///
    /// Truncating data.raw, and writing past its end, changes the array's first dimension.
    #[arg(long, help_heading = WRITING)]
    resize: bool,
    #[command(flatten)]
    writing: WriteArgs,
    #[command(flatten)]
    headers: HeadersArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// Serve statistics at http://ADDRESS/metrics
    ///
    /// For Prometheus. ADDRESS is HOST:PORT, or a port of the loopback interface alone: 9464. With
    /// port 0 a free one is chosen, which .zarrfs/stats shows. Any client that can connect can read
    /// the statistics, under an IP address, localhost or HOST.
    #[arg(long, value_name = "ADDRESS", value_parser = listen::parse, help_heading = DIAGNOSTICS)]
    listen: Option<ListenAddress>,
}

fn parse_umask(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|m| *m <= 0o777)
        .ok_or_else(|| "not an octal mode, such as 022".into())
}

impl MountArgs {
    /// Returns the arguments with those of `-o` added, and all options as in fstab. `words` are the
    /// program and its arguments.
    fn with_options(self, words: &[OsString]) -> Result<(Self, String), CommandFailure> {
        let command = MountArgs::augment_args(clap::Command::new("mount"));
        let expanded = mount_options::expand(&self.options, self.sloppy, &command)?;
        let (verb, own) = words.split_at(words.len().min(2));
        let all = verb.iter().skip(1).chain(&expanded).chain(own);
        let matches = command.clone().get_matches_from(all);
        let args = MountArgs::from_arg_matches(&matches)
            .map_err(|e| CommandFailure::wrong_use(e.to_string()))?;
        Ok((args, mount_options::given(&command, &matches)))
    }
}

/// Runs the verb; `words` are the program and its arguments.
pub fn run(args: MountArgs, words: &[OsString]) -> Result<(), CommandFailure> {
    let (args, options) = args.with_options(words)?;
    let path = match &args.mountpoint {
        Some(path) => path.clone(),
        None if args.auto_mountpoint => {
            args.served.store.check_answers()?;
            mountpoint::for_store(&args.served.store)?
        }
        None => {
            return Err(CommandFailure::wrong_use(
                "no MOUNTPOINT; name a directory, or use --auto-mountpoint",
            ));
        }
    };
    // the mountpoint may lie in another mount
    if let Ok(whole) = std::path::absolute(&path)
        && let Some(above) = whole.parent()
    {
        location::check_answers(above)?;
    }
    let chosen = match &args.mountpoint {
        Some(_) => String::new(),
        None => format!("{}\n", path.display()),
    };
    let plan = MountPlan {
        path: &path,
        makes_mountpoint: args.auto_mountpoint,
        replace_stale: args.replace_stale,
        idle_timeout: args.idle_timeout,
        foreground: args.foreground,
        options: &options,
        orders: None,
    };
    if args.foreground {
        let failed = |e| CommandFailure::from(Error::from(e).context("NOTIFY_SOCKET"));
        let manager = ServiceManager::connect().map_err(failed)?;
        return mount(&args.served, plan, || {
            stdio::print(chosen)?;
            manager.notify_ready().map_err(failed)
        });
    }
    match std::env::var_os(BACKGROUND) {
        None => {
            start_background(words, inherited_descriptor(&path)).and_then(|()| stdio::print(chosen))
        }
        Some(_) => {
            let _ = rustix::process::setsid();
            mount(&args.served, plan, leave_terminal)
        }
    }
}

/// Starts the background process, which inherits the descriptor `kept`, and waits until the mount
/// answers or the process ends.
fn start_background(words: &[OsString], kept: Option<RawFd>) -> Result<(), CommandFailure> {
    let ended = background_process(words, kept)
        .map_err(|e| CommandFailure::failed(format!("can't start the background process: {e}")))?;
    let Some(status) = ended else { return Ok(()) };
    match status.code() {
        // the process has printed its error to the same standard error
        Some(code) => Err(CommandFailure::of_process(code)),
        None => Err(CommandFailure::failed(format!(
            "the background process was killed ({status})"
        ))),
    }
}

/// Starts the background process. Returns `None` once the mount answers, or else how the process
/// has ended.
fn background_process(
    words: &[OsString],
    kept: Option<RawFd>,
) -> std::io::Result<Option<ExitStatus>> {
    close_on_exec(kept);
    let mut child = Command::new(std::env::current_exe()?)
        .args(words.iter().skip(1))
        .envs(start_directory::variables())
        .env(BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut said)?;
    }
    if said == READY {
        Ok(None)
    } else {
        child.wait().map(Some)
    }
}

/// Keeps the background process from inheriting the caller's open files and their locks, except for
/// the descriptor `kept`.
fn close_on_exec(kept: Option<RawFd>) {
    // the standard streams are replaced anyway
    let kept = kept.unwrap_or(2).max(2).unsigned_abs();
    for (first, last) in [(3, kept - 1), (kept + 1, u32::MAX)] {
        // SAFETY: the call takes numbers alone and sets a flag on descriptors; none is closed here.
        // It refuses an empty range.
        unsafe {
            libc::syscall(
                libc::SYS_close_range,
                first,
                last,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
    }
}

/// Where a store is mounted, and what ends the mount.
pub struct MountPlan<'a> {
    /// The mountpoint.
    pub path: &'a Path,
    /// Whether the mountpoint is created, and removed afterwards.
    pub makes_mountpoint: bool,
    /// Whether a mount whose daemon has ended is removed first.
    pub replace_stale: bool,
    /// The time without use after which the mount ends.
    pub idle_timeout: Option<Duration>,
    /// Whether the process keeps its standard error.
    pub foreground: bool,
    /// The options as in fstab.
    pub options: &'a str,
    /// The [`orders`] of `zarrfs run`, in whose namespace the mount is. Signals end other mounts.
    pub orders: Option<File>,
}

/// Takes the mount of another program, if `path` names its connection.
fn inherit(args: &ServedArgs, plan: &MountPlan) -> Result<Option<Mountpoint>, CommandFailure> {
    if !names_connection(plan.path) {
        return Ok(None);
    }
    let shown = plan.path.display();
    for (is_given, option) in [
        (args.allow_other, "--allow-other"),
        (args.noexec, "--noexec"),
        (args.sync, "--sync"),
        (plan.makes_mountpoint, "--auto-mountpoint"),
        (plan.replace_stale, "--replace-stale"),
        (plan.idle_timeout.is_some(), "--idle-timeout"),
    ] {
        if is_given {
            return Err(CommandFailure::wrong_use(format!(
                "{option}: not with {shown}, which another program mounts with options of its own, and unmounts"
            )));
        }
    }
    Mountpoint::inherit(plan.path).map(Some).map_err(failure)
}

/// Mounts, calls `ready`, and serves the mount until it ends.
pub fn mount(
    args: &ServedArgs,
    plan: MountPlan,
    ready: impl FnOnce() -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let inherited = inherit(args, &plan)?;
    let resolved = match &inherited {
        Some(mountpoint) => mountpoint.path().to_path_buf(),
        None => absolute(plan.path),
    };
    // an inherited mount does not answer yet, and the store must not lie in it
    if inherited.is_none() {
        args.store.check_answers()?;
    }
    let own = own_paths(args, inherited.is_some());
    let site = match &inherited {
        Some(mountpoint) => MountSite::of(mountpoint)?,
        None => MountSite::before(&resolved),
    };
    nesting::check(&own, &site)?;
    // only now no directory is read that may hang
    if inherited.is_none() && !args.stores {
        location::check_not_swapped(&args.store, plan.path)?;
    }
    args.log.start(&resolved)?;
    raise_file_limit();
    args.reading.memory.set_bound();
    let stats = Arc::new(Stats::default());
    let listener = args
        .listen
        .as_ref()
        .map(StatisticsListener::bind)
        .transpose()?;
    let hierarchy = open_hierarchy(args, &resolved, &stats)?;
    warn_unlisted(&hierarchy, &args.store);
    let read_only = args.read_only || !hierarchy.store().is_writable();
    // register signals before any thread starts: a signal without its handler would leave the mount
    // or its directory behind
    let handled = ENDING.into_iter().chain([SIGUSR1, SIGUSR2, SIGXCPU]);
    let mut signals = Signals::new(handled).map_err(Error::from)?;
    // dropping this removes the directory, after the mount has ended
    let mut made = MadeDirectories::default();
    if plan.makes_mountpoint {
        made = mountpoint::make(plan.path)?;
    }
    let store = hierarchy.shared_store();
    let fs = file_system(args, hierarchy, read_only, stats)?;
    set_facts(&fs, args, &plan);
    let needs = needs(args, &made, read_only);
    let sandbox = args.sandbox.prepare(&needs)?;
    let mountpoint = match inherited {
        Some(mountpoint) => mountpoint,
        None => {
            mountpoint::warn_of_hidden_files(&resolved, &args.store);
            make_mount(args, &plan, made.directory(), read_only)?
        }
    };
    let (session, mountpoint) = start_session(args, mountpoint, &fs, &needs, &own, sandbox)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let handler = SignalHandler {
        fs: fs.clone(),
        mountpoint: mountpoint.clone(),
        made: made.removable(),
        interrupted: interrupted.clone(),
    };
    match plan.orders {
        None => start_thread("signals", move || handler.run(signals.forever())),
        Some(pipe) => {
            let fs = fs.clone();
            start_thread("orders", move || handler.run(orders(pipe)))
                .and_then(|_| start_thread("signals", move || ignore(&fs, signals)))
        }
    }
    .map_err(Error::from)?;
    let started =
        start_serving(&fs, &mountpoint, plan.idle_timeout, listener).and_then(|()| ready());
    if started.is_ok() && !read_only && !args.stores {
        leftovers::remove(store);
    }
    if started.is_err() {
        if !mountpoint.can_unmount() {
            // the kernel ends the connection with the process
            return started.and(store_all(&fs));
        }
        let _ = mountpoint.unmount();
    }
    let ended = session.join();
    // an aborted connection leaves its mount behind
    let left = mountpoint.unmount();
    let stored = store_all(&fs);
    match ended.map_err(|_| CommandFailure::failed("the session ended by an internal error"))? {
        // the kernel also answers so if a signal or the last close after the unmount ends the
        // connection while a thread takes a request
        Err(e) if e.errno() == libc::ECONNABORTED && matches!(left, Ok(Unmounted::NotOnTop)) => {}
        ended => ended?,
    }
    if interrupted.load(Ordering::Relaxed) && stored.is_ok() {
        let why =
            "ended by a second signal: requests in flight failed, all that was written is stored";
        return Err(CommandFailure::failed(why));
    }
    started.and(stored)
}

/// Sets what the control files show of the program and of its command line.
fn set_facts(fs: &Fs, args: &ServedArgs, plan: &MountPlan) {
    let everyone = Audience::Everyone;
    fs.facts().set("options", plan.options, Audience::Owner);
    fs.facts()
        .set("log", args.log.destination(plan.foreground), everyone);
    fs.facts()
        .set(LOG_LEVEL, logger::shown(args.log.level()), everyone);
    fs.facts().set("build", version::build(), everyone);
    fs.facts().set("features", version::features(), everyone);
}

/// Creates the file system with the options of the mount.
fn file_system(
    args: &ServedArgs,
    hierarchy: Hierarchy,
    read_only: bool,
    stats: Arc<Stats>,
) -> Result<Arc<Fs>, CommandFailure> {
    let options = Options {
        resize: args.resize,
        direct_io: args.direct_io,
        ..args.reading.options(read_only)
    };
    let cache = args
        .reading
        .memory
        .cache(stats.clone())
        .dropping_empty(args.writing.drop_empty_chunks);
    let cache = Arc::new(cache.spilling(options.spill.clone()));
    memory::register_shrinking(&cache);
    let tree = args.headers.tree(hierarchy, cache.clone());
    let fs = Arc::new(Fs::new(tree, cache.clone(), stats, options)?);
    if !read_only {
        cache.store_quiet_objects()?;
    }
    if fs.concurrency() > 1 {
        fs.limit_syncs(args.store_args.remote.timeout);
    }
    Ok(fs)
}

/// Mounts on `directory`, or on the path of the plan if it is `None`.
fn make_mount(
    args: &ServedArgs,
    plan: &MountPlan,
    directory: Option<BorrowedFd>,
    read_only: bool,
) -> Result<Mountpoint, CommandFailure> {
    let request = MountRequest {
        source: &args.store.absolute().to_string(),
        path: plan.path,
        directory,
        allow_other: args.allow_other,
        read_only,
        sync: args.sync,
        noexec: args.noexec,
        replace_stale: plan.replace_stale,
        is_in_own_namespace: plan.orders.is_some(),
    };
    Mountpoint::mount(&request).map_err(failure)
}

/// Enters the sandbox, and starts to serve a mount. Unmounts it after a failure.
fn start_session(
    args: &ServedArgs,
    mut mountpoint: Mountpoint,
    fs: &Arc<Fs>,
    needs: &MountNeeds,
    own: &[OwnPath],
    mut sandbox: Sandbox,
) -> Result<(Session, Arc<Mountpoint>), CommandFailure> {
    // check again: directories may have been renamed since the path was resolved, and mounts
    // propagate
    let is_inherited = mountpoint.is_inherited();
    let session = MountSite::of(&mountpoint)
        .and_then(|site| nesting::check(own, &site))
        .and_then(|()| {
            let options = serve_options(args, needs.read_only);
            let before = |mountpoint: &mut Mountpoint| {
                set_readahead(args, mountpoint);
                // not before: it would end a connection that another daemon serves
                args.sandbox.start_guard(&mut sandbox, needs, mountpoint)?;
                fs.facts()
                    .set("sandbox", &*sandbox.description, Audience::Everyone);
                sandbox.enter(mountpoint)
            };
            serve(fs.clone(), &mut mountpoint, options, before).map_err(|e| match e.errno() {
                // another daemon serves an inherited connection
                libc::EBUSY if is_inherited => {
                    CommandFailure::new(ExitCode::Mountpoint, e.to_string())
                }
                _ => e.into(),
            })
        })
        .inspect_err(|_| {
            let _ = mountpoint.unmount();
        })?;
    Ok((session, Arc::new(mountpoint)))
}

/// Sets the read-ahead of the kernel, which the handshake has limited.
fn set_readahead(args: &ServedArgs, mountpoint: &Mountpoint) {
    if let Err(e) = mountpoint.set_readahead(args.readahead.unwrap_or(READAHEAD))
        && args.readahead.is_some()
    {
        log::warn!("--readahead: {e}; using the kernel's default");
    }
}

/// Returns what the daemon needs while it serves.
fn needs<'a>(args: &'a ServedArgs, made: &MadeDirectories, read_only: bool) -> MountNeeds<'a> {
    let own = [
        &args.store_args.remote.cache_dir,
        &args.writing.synchronizer,
    ];
    MountNeeds {
        store: args.store.absolute(),
        overlay: args.overlay.as_deref(),
        read_only,
        own: own.into_iter().flatten().map(PathBuf::as_path).collect(),
        spill: args.reading.spill_directory(),
        references: &args.store_args.allow_reference,
        endpoint: args.store_args.remote.endpoint_url.as_deref(),
        made_in: made.parent(),
    }
}

/// Opens the store with the options of the mount. The path of the `mountpoint` has no links.
fn open_hierarchy(
    args: &ServedArgs,
    mountpoint: &Path,
    stats: &Arc<Stats>,
) -> Result<Hierarchy, CommandFailure> {
    let store_args = StoreArgs {
        is_read_only: args.read_only,
        holds_stores: args.stores,
        shows_history: args.history,
        mountpoint: Some(mountpoint.to_path_buf()),
        spill: Some(SpillSpace::new(args.reading.spill_options())),
        ..args.store_args.clone()
    };
    let request = StoreRequest {
        location: &args.store,
        args: &store_args,
        writing: Some(&args.writing),
        stats,
    };
    let hierarchy = match &args.overlay {
        Some(directory) => overlay::open(request, directory)?,
        None => request.hierarchy()?,
    };
    memory::end_opening();
    let compressor = args.compressor.as_ref();
    Ok(hierarchy.with_compressor(compressor.and_then(|compressor| compressor.0.clone())))
}

/// Stores all dirty chunks, with several attempts: a full disk may get free space meanwhile.
fn store_all(fs: &Fs) -> Result<(), CommandFailure> {
    // an error even if the bucket is gone: the data written to it are lost
    fs.sync_at_end()
        .map_err(|e| CommandFailure::failed(e.context("not stored, and lost").to_string()))
}

/// Starts the timer of `--idle-timeout` and the server of `--listen`. The mount answers: the
/// handshake is done, and the kernel keeps requests until a thread takes them. A request to the own
/// mount could not prove more, and would hang for ever if the process were killed meanwhile.
fn start_serving(
    fs: &Arc<Fs>,
    mountpoint: &Arc<Mountpoint>,
    idle_timeout: Option<Duration>,
    listener: Option<StatisticsListener>,
) -> Result<(), CommandFailure> {
    if let Some(listener) = listener {
        listener.serve(fs.clone())?;
    }
    match idle_timeout {
        Some(timeout) => idle::unmount_after(timeout, fs.clone(), mountpoint.clone()),
        None => Ok(()),
    }
}

/// Raises the limit of open files: each directory that a user's program holds open takes a
/// descriptor here.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // without the privilege the limit stays
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

fn serve_options(args: &ServedArgs, read_only: bool) -> ServeOptions {
    ServeOptions {
        uid: args
            .uid
            .unwrap_or_else(|| rustix::process::getuid().as_raw()),
        gid: args
            .gid
            .unwrap_or_else(|| rustix::process::getgid().as_raw()),
        umask: args.umask.unwrap_or(0),
        read_only,
        threads: args.reading.memory.threads(),
    }
}

/// Returns the paths that the daemon opens or lists after it has mounted.
fn own_paths(args: &ServedArgs, is_mounted: bool) -> Vec<OwnPath> {
    // a path in a mount that is not served yet can't be resolved: the kernel would wait
    let resolved: fn(&Path) -> PathBuf = if is_mounted {
        Path::to_path_buf
    } else {
        absolute
    };
    let spill = resolved(&args.reading.spill_name());
    let mut own = vec![OwnPath::new(OwnPathKind::Name, "--spill-dir", spill)];
    if let StoreLocation::Path(store) = &args.store {
        own.push(OwnPath::new(OwnPathKind::Store, "store", resolved(store)));
    }
    let references = args.store_args.allow_reference.iter();
    if references
        .chain([&args.store])
        .any(|location| matches!(location, StoreLocation::Url(_)))
    {
        own.extend(OwnPath::names(start_directory::paths()));
    }
    for (option, path) in [
        ("--overlay", &args.overlay),
        ("--cache-dir", &args.store_args.remote.cache_dir),
        ("--synchronizer", &args.writing.synchronizer),
    ] {
        if let Some(path) = path {
            own.push(OwnPath::new(OwnPathKind::Tree, option, path.clone()));
        }
    }
    for location in &args.store_args.allow_reference {
        if let StoreLocation::Path(path) = location {
            let path = resolved(path);
            own.push(OwnPath::new(OwnPathKind::Name, "--allow-reference", path));
        }
    }
    own.extend(OwnPath::names(args.log.paths(resolved)));
    own
}

fn failure(e: MountError) -> CommandFailure {
    match e {
        MountError::Mountpoint(message) => CommandFailure::new(ExitCode::Mountpoint, message),
        MountError::Unavailable(message) => CommandFailure::new(ExitCode::NoFuse, message),
        MountError::Stale(message) => CommandFailure::new(ExitCode::Stale, message),
        MountError::Other(e) => e.into(),
    }
}

/// Returns a signal for each order that `zarrfs run` sends to end the mount: a byte in the pipe. If
/// that process was killed, programs of its command may still have files open, and the mount ends
/// without them, as it does after two orders.
fn orders(mut pipe: File) -> impl Iterator<Item = c_int> {
    let mut missing = 2;
    std::iter::from_fn(move || {
        let is_sent = matches!(pipe.read(&mut [0]), Ok(1));
        if !is_sent && missing == 0 {
            return None;
        }
        missing = i32::max(missing - 1, 0);
        Some(SIGTERM)
    })
}

/// Ignores signals that end other mounts: a batch system sends them to each process of a job, and
/// the command may still write then.
fn ignore(fs: &Arc<Fs>, mut signals: Signals) {
    for signal in signals.forever() {
        if !is_carried_out(fs, signal) {
            log::info!("signal {signal}: ignored, the mount ends with the command");
        }
    }
}

/// Does what a signal asks of a mount that goes on: SIGHUP opens the log file again, SIGUSR1 and
/// SIGUSR2 change the level of the log, SIGXCPU stores everything. Returns false for other signals.
fn is_carried_out(fs: &Arc<Fs>, signal: c_int) -> bool {
    match signal {
        SIGHUP => logger::reopen(),
        SIGUSR1 | SIGUSR2 => {
            let level = logger::shown(logger::change_level(signal == SIGUSR1));
            fs.facts().set(LOG_LEVEL, level, Audience::Everyone);
        }
        SIGXCPU => store_before_kill(fs.clone()),
        _ => return false,
    }
    true
}

/// Stores everything on a thread: the kernel sends SIGXCPU once a second beyond the limit of
/// processor time, and SIGKILL at the hard limit.
fn store_before_kill(fs: Arc<Fs>) {
    static IS_STORING: AtomicBool = AtomicBool::new(false);
    log::warn!("the limit of processor time is reached (ulimit -t): everything written is stored");
    if IS_STORING.swap(true, Ordering::Relaxed) {
        return;
    }
    let started = start_thread("flush", move || {
        // a failure is on record, and close or fsync reports it
        let _ = fs.change().store_all();
        IS_STORING.store(false, Ordering::Relaxed);
    });
    if started.is_err() {
        IS_STORING.store(false, Ordering::Relaxed);
    }
}

/// Ends the mount when signals arrive.
struct SignalHandler {
    fs: Arc<Fs>,
    mountpoint: Arc<Mountpoint>,
    /// The mountpoint and directories above it that the process has made.
    made: RemovableDirectories,
    /// Set when the second signal ends requests.
    interrupted: Arc<AtomicBool>,
}

impl SignalHandler {
    /// Handles signals until the process ends. The first signal unmounts and stores everything; a
    /// mount in use ends with its last open file. The second signal ends requests in flight, and so
    /// does the first if this process can't unmount, since nothing else could end it. The third
    /// ends the process.
    fn run(self, signals: impl Iterator<Item = c_int>) {
        let mountpoint = &self.mountpoint;
        let shown = mountpoint.path().display();
        let mut waiting = false;
        let mut unmounted = false;
        for signal in signals {
            if is_carried_out(&self.fs, signal) {
                continue;
            }
            if mountpoint.aborted() {
                self.made.remove();
                logger::end();
                std::process::exit(1);
            }
            if waiting || !mountpoint.can_unmount() {
                log::info!("signal {signal}: ending {shown}, requests in flight fail");
                self.interrupted.store(waiting, Ordering::Relaxed);
                // without a mount the process ends by itself, and removes the mountpoint
                if !mountpoint.abort() && !unmounted {
                    // the kernel ends the connection with the process
                    end_when_stored(self.fs.clone(), self.made.clone(), i32::from(waiting));
                }
                continue;
            }
            log::info!("signal {signal}: unmounting {shown}");
            match mountpoint.unmount() {
                Ok(Unmounted::Gone) => unmounted = true,
                Ok(Unmounted::InUse) => {
                    waiting = true;
                    let fs = self.fs.clone();
                    // this thread must take the next signal; a failure is on record, and storing is
                    // tried again at the end
                    let _ = start_thread("flush", move || fs.change().store_all());
                    log::warn!(
                        "{shown} is in use: it ends when its files are closed, or with another signal"
                    );
                }
                Ok(Unmounted::NotOnTop) => {
                    log::warn!("{shown}: something else is mounted over it; unmount that first")
                }
                Err(e) => {
                    waiting = true;
                    log::error!("unmount {shown}: {e}; it ends with another signal")
                }
            }
        }
    }
}

/// Ends the process with `code` once all dirty chunks are stored. Returns at once, since the
/// calling thread must take the next signal.
fn end_when_stored(fs: Arc<Fs>, made: RemovableDirectories, code: i32) {
    let started = start_thread("flush", move || {
        let is_stored = fs.sync_at_end().is_ok();
        // the main thread may have unmounted
        made.remove();
        logger::end();
        std::process::exit(if is_stored { code } else { 1 })
    });
    if started.is_err() {
        std::process::exit(1);
    }
}

/// Reports to the parent process that the mount answers, and releases the terminal and the working
/// directory.
fn leave_terminal() -> Result<(), CommandFailure> {
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(Error::from)?;
    std::env::set_current_dir("/").map_err(Error::from)?;
    let mut out = stdio::output();
    // if the parent has ended this fails and ends the mount, since the parent was asked to stop
    out.write_all(READY)
        .and_then(|()| out.flush())
        .map_err(Error::from)?;
    rustix::stdio::dup2_stdin(&null).map_err(Error::from)?;
    rustix::stdio::dup2_stderr(&null).map_err(Error::from)?;
    rustix::stdio::dup2_stdout(&null).map_err(Error::from)?;
    Ok(())
}
