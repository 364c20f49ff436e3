//! `zarrfs mount`: mounts a store, in the background unless --foreground is given. A mount is three
//! values, each made of the one before: [`MountPlan`], `OpenedMount` and `ServingMount`.

mod background;
mod handover;
mod held;
mod holder;
mod message;
mod opened;
mod plan;
mod serving;
mod signals;

pub use background::READY;
pub use handover::order;
pub use plan::MountPlan;

use super::compressor::{self, CompressorArg};
use super::header_options::HeadersArgs;
use super::ingest_options::MountIngestArgs;
use super::logger::LogArgs;
use super::sandbox::SandboxArgs;
use super::stats::listen::{self, ListenAddress};
use super::systemd::ServiceManager;
use super::{
    ACCESS, CACHING, CommandFailure, CommandResult, DIAGNOSTICS, ReadArgs, StoreArgs,
    StoreLocation, WRITING, WriteArgs, duration, idle, location, mount_options, mountpoint, size,
    stdio,
};
use crate::fs::tree::Audience;
use crate::fuse::inherited_descriptor;
use clap::{Args, FromArgMatches};
use holder::MountRole;
use opened::OpenedMount;
use serving::ServingMount;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use zarrfs_base::error::Error;

/// The names under which the control files show whether the mount outlives its daemon, and the
/// number of the process that holds it.
pub const OUTLIVES: &str = "outlives_daemon";
pub const HOLDER: &str = "holder_pid";

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
    /// Unmount at the end of standard input, a pipe
    ///
    /// The mount ends with the program that has the other end of the pipe open, also if that is
    /// killed: everything is stored, and files that are still open end with their last use. What
    /// comes through the pipe is ignored. Daemons that take over have the pipe, too.
    #[arg(long)]
    until_eof: bool,
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
    /// End the mount if its daemon is killed
    ///
    /// Otherwise a process of its own starts another daemon, and programs go on; see
    /// docs/operations.md.
    #[arg(long, help_heading = DIAGNOSTICS)]
    no_outlive: bool,
    /// Limit restarts in a minute
    ///
    /// If the daemon is killed more often than that, the mount ends.
    #[arg(long, value_name = "COUNT", default_value_t = 2, help_heading = DIAGNOSTICS)]
    restarts: u32,
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
    ingest: MountIngestArgs,
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
    fn with_options(self, words: &[OsString]) -> CommandResult<(Self, String)> {
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
pub fn run(args: MountArgs, words: &[OsString]) -> CommandResult {
    let (args, options) = args.with_options(words)?;
    if args.until_eof {
        idle::check_input()?;
    }
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
        args: &args.served,
        path: &path,
        makes_mountpoint: args.auto_mountpoint,
        replace_stale: args.replace_stale,
        idle_timeout: args.idle_timeout,
        until_eof: args.until_eof,
        foreground: args.foreground,
        options: &options,
        orders: None,
    };
    if args.foreground {
        let failed = |e| CommandFailure::from(Error::from(e).context("NOTIFY_SOCKET"));
        let manager = ServiceManager::connect().map_err(failed)?;
        return mount(plan, || {
            stdio::print(chosen)?;
            manager.notify_ready().map_err(failed)
        });
    }
    if background::is_this() {
        let _ = rustix::process::setsid();
        return mount(plan, || background::leave_terminal(args.until_eof));
    }
    background::start(words, inherited_descriptor(&path), args.until_eof)?;
    stdio::print(chosen)
}

/// Mounts, calls `ready`, and serves the mount until it ends. This process must have one thread.
pub fn mount(plan: MountPlan, ready: impl FnOnce() -> CommandResult) -> CommandResult {
    match holder::hold(&plan, ready)? {
        MountRole::Ended => Ok(()),
        MountRole::Alone(why, ready) => {
            let opened = OpenedMount::new(plan, None)?;
            let outlives = format!("no: {why}");
            opened
                .fs
                .facts()
                .set(OUTLIVES, outlives, Audience::Everyone);
            ServingMount::start(opened)?.wait(ready)
        }
        MountRole::Daemon(held) => {
            let reporter = held.taken.as_ref().and(held.reporter());
            let foreground = plan.foreground;
            let until_eof = plan.until_eof;
            let served = OpenedMount::new(plan, Some(held)).and_then(ServingMount::start);
            // its standard error may be closed
            let served = served.inspect_err(|failure| {
                if let Some(reporter) = reporter {
                    log::error!("no successor of the daemon: {}", failure.message);
                    reporter.fail(&failure.message);
                }
            });
            served?.wait(|| {
                if foreground {
                    Ok(())
                } else {
                    background::release(until_eof)
                }
            })
        }
    }
}
