//! The command line: one file per verb, arguments in, exit codes out. Types of clap stay here.

mod cat;
mod check;
mod completions;
mod compressor;
mod consolidate;
mod create;
mod duration;
mod flat;
mod header;
mod headers;
mod idle;
mod info;
mod location;
mod logger;
mod ls;
mod man;
mod man_pages;
mod map;
mod migrate;
mod mount;
mod mount_helper;
mod mount_options;
mod mountpoint;
mod progress;
mod put;
mod remote;
mod size;
mod stats;
mod stdio;
mod systemd;
mod time;
mod umount;

use crate::array::hierarchy::{ConsolidatedStore, Hierarchy};
use crate::cache::{Cache, SpillOptions};
use crate::error::{Error, Kind, lines};
use crate::fs::Options;
use crate::stats::Stats;
use crate::store::{DirectoryStore, Key, LockFiles, Store};
use crate::util::memory;
use crate::zarr::metadata::V1Order;
use clap::{Args, Parser, Subcommand, ValueEnum};
use location::Location;
use remote::RemoteArgs;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use stdio::print;

pub use stdio::Inherited;

/// Shows Zarr stores as plain files.
#[derive(Parser)]
#[command(name = "zarrfs", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  an error of the system or of the data; findings of a check
  2  a wrong command line
  3  no such store, or no such array in it
  4  not a Zarr store, or one that this version can't read
  5  the mountpoint is missing, not a directory, or taken
  6  FUSE is not available: no /dev/fuse, or fusermount3 is missing
  7  a stale mount was left behind at the mountpoint";

#[derive(Subcommand)]
enum Verb {
    /// Mount a store, in the background
    Mount(Box<mount::MountArgs>),
    /// Unmount, and wait until the daemon is gone
    #[command(visible_alias = "unmount")]
    Umount(umount::UmountArgs),
    /// Show the groups and arrays of a store
    Info(info::InfoArgs),
    /// List a group or array as a mount shows it, without FUSE
    Ls(ls::LsArgs),
    /// Look for what is wrong with a store: damaged metadata and chunks, stray keys, leftovers. Nothing is written
    Check(check::CheckArgs),
    /// Write the flat bytes of an array to standard output, without FUSE
    Cat(cat::CatArgs),
    /// Show what lets other programs open an array's flat bytes: headers, without FUSE
    Header(header::HeaderArgs),
    /// Write standard input over the flat bytes of an array, without FUSE
    Put(put::PutArgs),
    /// Make a new array
    Create(Box<create::CreateArgs>),
    /// Turn a Zarr v1 store into v2, in place
    Migrate(migrate::MigrateArgs),
    /// Write all metadata documents into one, .zmetadata, which is read where a store can't be listed
    Consolidate(consolidate::ConsolidateArgs),
    /// Show what a mount has done, and the problems it met
    Stats(stats::StatsArgs),
    /// Print what a shell needs to complete the command line
    Completions(completions::CompletionsArgs),
    /// Print a manual page, or write all of them
    Man(man::ManArgs),
}

/// What every verb that reads a store takes.
#[derive(Args, Clone)]
struct StoreArgs {
    /// How to read Zarr v1 arrays of order F: as zarr 1.x wrote them, or as the spec's text says
    #[arg(long, value_enum, value_name = "READING", default_value = "zarr1")]
    v1_order: V1OrderArg,
    #[command(flatten)]
    remote: RemoteArgs,
    /// List also what writers have not finished: not for the command line, but for verbs that look for it
    #[arg(skip)]
    lists_unfinished: bool,
}

/// What every verb that writes a store takes.
#[derive(Args, Clone, Default)]
struct WriteArgs {
    /// Take the lock of each chunk that is stored, as zarr-python's ProcessSynchronizer does with the same directory.
    /// Locks are named by the keys below STORE: who opens a group and who opens its array don't share them
    #[arg(long, value_name = "DIR")]
    synchronizer: Option<PathBuf>,
    /// How long to wait for a lock of --synchronizer that another program holds; then storing the chunk fails
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    lock_timeout: Duration,
    /// Don't wait for the disk before a chunk takes the place of the old one: faster, but a power loss may leave neither.
    /// An fsync still waits
    #[arg(long)]
    no_fsync: bool,
    /// Remove a chunk that comes to hold nothing but the fill value instead of storing it
    #[arg(long)]
    drop_empty_chunks: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum V1OrderArg {
    Zarr1,
    Spec,
}

impl From<V1OrderArg> for V1Order {
    fn from(arg: V1OrderArg) -> Self {
        match arg {
            V1OrderArg::Zarr1 => V1Order::Zarr1,
            V1OrderArg::Spec => V1Order::Spec,
        }
    }
}

/// How a command failed: its exit code, and one line for a person.
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::new(1, e.to_string())
    }
}

/// Runs the command line of a process that was started with the `inherited` descriptors.
pub fn main(inherited: Inherited) -> ExitCode {
    memory::configure_allocator();
    stdio::start(inherited);
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = mount_helper::run(&words) {
        return code;
    }
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Runs the verb that a command line names; its first word is the program.
fn run(words: &[OsString]) -> Result<(), Failure> {
    let verb = match Cli::try_parse_from(words) {
        Ok(cli) => cli.verb,
        Err(e) if e.use_stderr() => {
            // where nobody listens the exit code still tells
            let _ = e.print();
            return Err(Failure::new(2, ""));
        }
        Err(help) => return stdio::print_help(&help),
    };
    match verb {
        Verb::Mount(args) => mount::run(*args, words),
        Verb::Umount(args) => umount::run(&args),
        Verb::Info(args) => info::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Cat(args) => cat::run(&args),
        Verb::Header(args) => header::run(&args),
        Verb::Put(args) => put::run(&args),
        Verb::Create(args) => create::run(&args),
        Verb::Migrate(args) => migrate::run(&args),
        Verb::Consolidate(args) => consolidate::run(&args),
        Verb::Stats(args) => stats::run(&args),
        Verb::Completions(args) => completions::run(&args),
        Verb::Man(args) => man::run(&args),
    }
}

/// The only place that prints a failure.
fn complain(failure: &Failure) {
    // a silent failure has been reported by the process that met it
    if !failure.message.is_empty() {
        // where nobody listens the exit code still tells
        let _ = writeln!(std::io::stderr(), "zarrfs: {}", lines(&failure.message));
    }
}

/// Opens a store for reading.
fn open_store(location: &Location, args: &StoreArgs, stats: Arc<Stats>) -> Result<Hierarchy, Failure> {
    hierarchy(location, args, None, stats)
}

/// Opens a store.
fn open_store_to_write(
    location: &Location,
    args: &StoreArgs,
    writing: &WriteArgs,
    stats: Arc<Stats>,
) -> Result<Hierarchy, Failure> {
    hierarchy(location, args, Some(writing), stats)
}

fn hierarchy(
    location: &Location,
    args: &StoreArgs,
    writing: Option<&WriteArgs>,
    stats: Arc<Stats>,
) -> Result<Hierarchy, Failure> {
    let store = location::open(location, args, writing, &stats)?;
    let failed = |e: Error| match e.kind() {
        Kind::Invalid | Kind::Unsupported => Failure::new(4, format!("{location}: {e}")),
        _ => e.context(location).into(),
    };
    let store = ConsolidatedStore::over(store, args.remote.consolidated.into(), stats.clone()).map_err(failed)?;
    let hierarchy = Hierarchy::new(store, args.v1_order.into(), stats);
    hierarchy.check().map_err(|e| match e.kind() {
        Kind::Invalid if is_nowhere(hierarchy.store()) => {
            Failure::new(3, format!("{location}: no such store, nor a group or array in one"))
        }
        // in an archive
        Kind::NotFound => Failure::new(3, format!("{location}: no such group or array: {e}")),
        _ => failed(e),
    })?;
    Ok(hierarchy)
}

/// True if nothing is there at all, where a store that holds nothing is not there: in a bucket.
fn is_nowhere(store: &dyn Store) -> bool {
    let is_empty = || store.list(&Key::root()).is_ok_and(|mut names| names.next().is_none());
    store.concurrency() > 1 && store.lists_all() && is_empty()
}

impl WriteArgs {
    fn apply(&self, store: DirectoryStore) -> Result<DirectoryStore, Error> {
        let store = if self.no_fsync { store.without_fsync() } else { store };
        Ok(match &self.synchronizer {
            Some(directory) => {
                let locks = LockFiles::open(directory, self.lock_timeout);
                store.with_locks(locks.map_err(|e| e.context("--synchronizer"))?)
            }
            None => store,
        })
    }
}

/// What decoding and encoding may take.
#[derive(Args)]
struct MemoryArgs {
    /// Memory for decoded chunks: a number with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    cache_size: u64,
    /// Threads that decode and encode [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl MemoryArgs {
    fn cache(&self, stats: Arc<Stats>) -> Cache {
        self.set_bound();
        Cache::new(usize::try_from(self.cache_size).unwrap_or(usize::MAX), stats).decoding_with(self.threads())
    }

    /// Has everything else be counted beside this cache.
    fn set_bound(&self) {
        memory::set_cache_bound(usize::try_from(self.cache_size).unwrap_or(usize::MAX));
    }

    fn threads(&self) -> usize {
        threads(self.threads)
    }
}

/// As many threads as somebody asked for, or one per core.
fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(|| std::thread::available_parallelism().map_or(2, |n| n.get()), usize::from)
}

/// Options of the verbs that read flat bytes.
#[derive(Args)]
struct ReadArgs {
    #[command(flatten)]
    memory: MemoryArgs,
    /// Where decoded chunks wait whose row doesn't fit into the memory, while an array is read from its beginning to its
    /// end; not a file system in memory [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
    /// How much of it they may take in all; 0 to decode them again instead
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = size::parse)]
    spill_size: u64,
}

impl ReadArgs {
    fn options(&self, read_only: bool, direct_io: bool, passthrough: bool) -> Options {
        let default = || std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let directory = self.spill_dir.clone().unwrap_or_else(default);
        let spill = SpillOptions { directory: absolute(&directory), limit: self.spill_size };
        Options { read_only, resize: false, threads: self.memory.threads(), direct_io, passthrough, spill }
    }
}

/// The absolute form of a path, or the path itself where there is none.
fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}
