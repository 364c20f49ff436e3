//! The command line: one file per verb, which turns arguments into calls of the library, and
//! results into output and exit codes. No other module names clap.

mod cat;
mod check;
mod completions;
mod compressor;
mod consolidate;
mod create;
mod duration;
mod failure;
mod flat;
mod header;
mod header_options;
mod idle;
mod info;
mod leftovers;
mod listen;
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
mod nesting;
mod overlay;
mod pack;
mod progress;
mod put;
mod remote;
mod run;
mod sandbox;
mod size;
mod start_directory;
mod stats;
mod stdio;
mod systemd;
mod time;
mod umount;
mod unfinished;
mod version;

use crate::array::hierarchy::{ConsolidatedStore, Hierarchy, NestedStores, UseConsolidated};
use crate::cache::{Cache, SpillOptions};
use crate::fs::Options;
use crate::fs::tree::FLAT;
use crate::fuse::run_child;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, Subcommand};
use failure::{CommandFailure, ExitCode, wants_json};
use location::{StoreLocation, StoreRequest};
use remote::RemoteArgs;
use start_directory::absolute;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::time::Duration;
use stdio::print;
use zarrfs_base::error::{Error, Kind};
use zarrfs_base::memory;
use zarrfs_base::signals;
use zarrfs_base::spill_file::SpillSpace;
use zarrfs_base::stats::Stats;
use zarrfs_export::Format;
use zarrfs_format::metadata::V1Order;
use zarrfs_store::{DirectoryStore, Hint, IceRef, Key, LockFiles, Store};

pub use stdio::Inherited;

/// Show Zarr stores as plain files
///
/// A mount is the same hierarchy without the codecs: every array is a directory with its decoded
/// chunks as files, its flat bytes as one file data.raw, and headers that let other programs open
/// that file. Any program that reads raw binary data reads a compressed, chunked array, and changes
/// it in place.
///
/// A store is a directory, a zip archive (PATH.zip, PATH.ozx), a URL of a web server (http://,
/// https://), or a bucket (s3://, gs://, az://, abfs://). The path may continue to a group or array
/// in the store.
#[derive(Parser)]
#[command(name = "zarrfs", version, max_term_width = 100, after_help = EXIT_CODES, disable_help_flag = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Print help; `zarrfs man VERB` has the details
    #[arg(short, long, global = true, action = ArgAction::HelpShort)]
    help: Option<bool>,
}

/// Headings of options in the help.
const CACHING: &str = "Caching";
const ACCESS: &str = "Access";
const REMOTE: &str = "Remote stores";
const WRITING: &str = "Writing";
const PROGRAMS: &str = "Other programs";
const DIAGNOSTICS: &str = "Diagnostics";

const EXIT_CODES: &str = "Exit codes:
  0  success
  1  an error of the system or of the data; findings of a check
  2  a wrong command line
  3  no such store, or no such array in it
  4  not a Zarr store, or one that this version can't read
  5  the mountpoint is missing, not a directory, or in use
  6  FUSE is not available: no /dev/fuse, no fusermount3, or for run no namespaces
  7  a mount without a daemon was left at the mountpoint";

#[derive(Subcommand)]
enum Verb {
    /// Mount a store, in the background
    ///
    /// The command returns when the mount answers. Writes are stored when a file is closed or
    /// synced, and at the latest when the mount ends. SIGTERM and SIGINT unmount; while files are
    /// open the mount ends with the last of them, or with a second signal. SIGHUP opens the file of
    /// --log-file again, for programs that rotate logs. SIGUSR1 and SIGUSR2 raise and lower the
    /// level of the log.
    ///
    /// mount(8) mounts stores with the type fuse.zarrfs, and so does a line in /etc/fstab; each
    /// option may stand there without its dashes. Options of mount(8) and of systemd are accepted:
    /// nofail, _netdev, user, x-systemd.automount and others.
    Mount(Box<mount::MountArgs>),
    /// Unmount, and wait until the daemon has ended
    #[command(visible_alias = "unmount")]
    Umount(umount::UmountArgs),
    /// Run a command with a mount that it alone sees
    ///
    /// Mounts the store on a new directory, runs COMMAND, and stores everything that was written
    /// before it returns. {} in COMMAND and its arguments stands for the mountpoint, and so does
    /// the variable ZARRFS_MOUNT. The mount is in a namespace that COMMAND and its children share,
    /// and which other programs can't see: users need neither fusermount3 nor privileges. There
    /// set-user-ID programs such as sudo run without their privileges, unless root runs zarrfs.
    ///
    /// Signals are passed on to COMMAND. If programs that it has started in the background have
    /// files of the mount open when it ends, zarrfs waits until they close them, or for another
    /// signal.
    ///
    /// The exit code is that of COMMAND, or 128 and the number of the signal that has ended it; 127
    /// if there is no such program, and 126 if it can't be executed. Those of zarrfs itself are
    /// below: 1 if COMMAND has succeeded but something could not be stored. A signal before COMMAND
    /// has started ends zarrfs.
    Run(Box<run::RunArgs>),
    /// Show the groups and arrays of a store
    ///
    /// Each line has the path, the dtype, the dimensions with their names and lengths, the decoded
    /// size and the units, cut to the width of the terminal. --wide shows the shape, chunks, order
    /// and codecs, and how much is stored.
    ///
    /// A map shows the chunk grid. The last dimension runs from left to right, the second to last
    /// from top to bottom, and each index of the other dimensions has a panel. The map of a
    /// one-dimensional array wraps at the width of the picture. If the grid is larger than the
    /// picture, a cell stands for several chunks, and the map says for how many.
    Info(info::InfoArgs),
    /// List a group or array as a mount shows it, without FUSE
    ///
    /// Names that begin with a dot are listed, too. A directory has a slash after its name. The
    /// stored size of an array is exact up to 1024 chunks, and an estimate beyond that.
    Ls(ls::LsArgs),
    /// Find damaged metadata and chunks, stray keys and leftovers
    ///
    /// Nothing is written. The check covers every group, array and stored chunk: whether documents
    /// are valid and .zmetadata agrees with them, whether chunks have a possible size or, with
    /// --deep, can be decoded, and what else is in the store.
    ///
    /// Each finding is one line: its severity, its place, the fault and a remedy. With --json it is
    /// an object with level, path, kind and message in the list findings. For each kind and
    /// directory, the first twenty findings are reported, and the number of the rest; chunks are
    /// always reported one by one.
    Check(check::CheckArgs),
    /// Print the flat bytes of an array, without FUSE
    Cat(cat::CatArgs),
    /// Print a header that lets another program open flat bytes
    Header(header::HeaderArgs),
    /// Overwrite the flat bytes of an array with standard input
    Put(put::PutArgs),
    /// Create an array
    Create(Box<create::CreateArgs>),
    /// Convert a Zarr v1 store to v2, or with --to 3 to v3, in place
    ///
    /// Only metadata documents are written; chunks stay where they are. Everything is checked
    /// first: a store that the format cannot describe is refused as a whole, with the name of the
    /// array and the reason, and stays as it is. At every moment readers find a valid store, and a
    /// conversion that was interrupted is finished by the next one. Unmount the store before.
    ///
    /// With --shards, STORE stays as it is, and is copied to NEW, a store of v3 with fewer files:
    /// the encoded chunks lie in shards.
    ///
    /// With --to 3, filters become the codecs that zarr-python calls numcodecs.NAME, .zmetadata
    /// becomes consolidated metadata in zarr.json, and the attributes _ARRAY_DIMENSIONS and
    /// _FillValue of xarray get the form that xarray reads in v3.
    Migrate(migrate::MigrateArgs),
    /// Copy a store into one archive, FILE.zip or FILE.ozx
    ///
    /// All values are copied as they are, without decoding, and members are not compressed again.
    /// Documents come first, and equal stores give equal archives. zarr-python's ZipStore and
    /// zarrfs read the archive. It gets its name once it is complete and on disk; a command that
    /// fails leaves nothing.
    ///
    /// FILE.ozx is a zipped OME-Zarr as RFC-9 of OME-NGFF specifies it.
    Pack(pack::PackArgs),
    /// Write .zmetadata, which holds all metadata documents
    ///
    /// It is read where a store can't be listed, as on a web server.
    Consolidate(consolidate::ConsolidateArgs),
    /// Show, commit or discard the changes in a directory of mount --overlay
    Overlay(Box<overlay::OverlayArgs>),
    /// Show the counters and problems of a mount, or list all mounts
    Stats(stats::StatsArgs),
    /// Print completions of the command line for a shell
    Completions(completions::CompletionsArgs),
    /// Show a manual page, or write all of them
    Man(man::ManArgs),
}

/// Options of every verb that reads a store.
#[derive(Args, Clone)]
struct StoreArgs {
    /// Read v1 order F as zarr1 or spec [default: zarr1]
    ///
    /// zarr1 reads them as zarr 1.x wrote them, spec as the text of the specification says.
    #[arg(long, value_parser = words(&[("zarr1", V1Order::Zarr1), ("spec", V1Order::Spec)]),
        value_name = "READING", default_value = "zarr1", help_heading = ACCESS,
        hide_possible_values = true, hide_default_value = true)]
    v1_order: V1Order,
    /// Let references lead to what is below URL
    ///
    /// A URL or path, compared name by name. By default references may only lead to files below the
    /// directory of the file of references. Credentials and headers are sent to servers below URL,
    /// too. May be given several times.
    #[arg(long, value_name = "URL", help_heading = ACCESS)]
    allow_reference: Vec<StoreLocation>,
    /// Read an Icechunk snapshot [default: branch:main]
    ///
    /// branch:NAME follows a branch, tag:NAME, snapshot:ID and asof:TIME name a snapshot for good.
    /// TIME is as 2026-01-31T12:30Z, and is looked for in the branch main.
    #[arg(long = "ref", value_name = "REF", value_parser = IceRef::parse, help_heading = ACCESS)]
    snapshot: Option<IceRef>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Whether keys of unfinished writes are listed. Verbs that look for them set it.
    #[arg(skip)]
    lists_unfinished: bool,
    /// How often the store is read. Verbs that only read set this field.
    #[arg(skip)]
    reading: Reading,
    /// Whether a mount is read-only.
    #[arg(skip)]
    is_read_only: bool,
    /// Whether the location is a directory of stores.
    #[arg(skip)]
    holds_stores: bool,
    /// Whether all snapshots of a repository are shown, each in a directory.
    #[arg(skip)]
    shows_history: bool,
    /// Whether a branch of a repository stays at the snapshot that it has when it is opened.
    #[arg(skip)]
    keeps_snapshot: bool,
    /// Whether the location is above the store, and documents alone are looked for there.
    #[arg(skip)]
    is_above: bool,
    /// The mountpoint, without links, which no reference may lead into.
    #[arg(skip)]
    mountpoint: Option<PathBuf>,
    /// The space of spill files, if a mount has another one.
    #[arg(skip)]
    spill: Option<Arc<SpillSpace>>,
}

/// How often a command reads a store.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Reading {
    /// Whenever a program asks.
    #[default]
    Repeated,
    /// At one moment, so that no request is repeated.
    Once,
    /// All of it, at one moment.
    WholeOnce,
}

impl StoreArgs {
    /// Returns whether the command reads the store at one moment.
    fn reads_once(&self) -> bool {
        self.reading != Reading::Repeated
    }

    /// Returns the condition under which consolidated metadata is used.
    fn consolidated(&self) -> UseConsolidated {
        match self.remote.consolidated {
            // a check looks at the documents themselves
            UseConsolidated::Auto if self.lists_unfinished => UseConsolidated::Auto,
            UseConsolidated::Auto if self.is_read_only || self.reads_once() => {
                UseConsolidated::UntilOpened
            }
            when => when,
        }
    }
}

/// Options of every verb that writes a store.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = WRITING)]
struct WriteArgs {
    /// Lock chunks as zarr-python's ProcessSynchronizer
    ///
    /// Takes the lock of each chunk that is stored, in the directory that a ProcessSynchronizer
    /// uses. Locks are named by the keys below STORE: a program that opens a group and one that
    /// opens its array don't share them.
    #[arg(long, value_name = "DIR")]
    synchronizer: Option<PathBuf>,
    /// Wait this long for a lock
    ///
    /// If another program holds a lock of --synchronizer for longer, storing the chunk fails.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    lock_timeout: Duration,
    /// Replace chunks without waiting for the disk
    ///
    /// Faster, but after a power loss neither the old chunk nor the new one may be there. An fsync
    /// still waits.
    #[arg(long)]
    no_fsync: bool,
    /// Remove chunks that hold only the fill value
    ///
    /// A chunk that is written and holds nothing but the fill value is removed instead of stored.
    #[arg(long)]
    drop_empty_chunks: bool,
}

/// Returns the parser of an option that takes one of these words, each of which means a value.
fn words<T: Copy + Send + Sync>(
    words: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words.iter().map(|(word, _)| *word)).try_map(move |word| {
        let meant = words.iter().find(|(known, _)| *known == word);
        meant.map(|(_, value)| *value).ok_or("unknown")
    })
}

/// Runs the command line of a process that was started with the `inherited` descriptors.
pub fn main(inherited: Inherited) -> process::ExitCode {
    signals::disregard_meaningless();
    if let Some(code) = run_child(sandbox::serve) {
        return code;
    }
    memory::configure_allocator();
    stdio::start(inherited);
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = mount_helper::run(&words) {
        return code;
    }
    let code = match run(&words) {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(wants_json(&words));
            process::ExitCode::from(failure.code)
        }
    };
    logger::end();
    code
}

/// Runs the verb that a command line names; its first word is the program.
fn run(words: &[OsString]) -> Result<(), CommandFailure> {
    let verb = match Cli::try_parse_from(words) {
        Ok(cli) => cli.verb,
        Err(e) if e.use_stderr() => {
            // if standard error can't be written, the exit code still reports the error
            let _ = e.print();
            return Err(CommandFailure::of_command_line(&e));
        }
        Err(e) if e.kind() == ErrorKind::DisplayVersion => return print(version::text()),
        Err(help) => return stdio::print_help(&help),
    };
    // the daemon of a mount starts its own log
    if !matches!(verb, Verb::Mount(_) | Verb::Run(_)) {
        logger::start_for_command()?;
    }
    match verb {
        Verb::Mount(args) => mount::run(*args, words),
        Verb::Umount(args) => umount::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Info(args) => info::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Cat(args) => cat::run(&args),
        Verb::Header(args) => header::run(&args),
        Verb::Put(args) => put::run(&args),
        Verb::Create(args) => create::run(&args),
        Verb::Migrate(args) => migrate::run(&args),
        Verb::Pack(args) => pack::run(&args),
        Verb::Consolidate(args) => consolidate::run(&args),
        Verb::Overlay(args) => overlay::run(&args),
        Verb::Stats(args) => stats::run(&args),
        Verb::Completions(args) => completions::run(&args),
        Verb::Man(args) => man::run(&args),
    }
}

/// Opens a store for reading.
fn open_store(
    location: &StoreLocation,
    args: &StoreArgs,
    stats: &Arc<Stats>,
) -> Result<Hierarchy, CommandFailure> {
    let request = StoreRequest {
        location,
        args,
        writing: None,
        stats,
    };
    request.hierarchy()
}

impl StoreRequest<'_> {
    /// Opens the groups and arrays of the store, or of the stores in a directory.
    fn hierarchy(self) -> Result<Hierarchy, CommandFailure> {
        self.opened()
            .map_err(|failure| self.for_mounted_name(failure))
    }

    /// Returns the failure to open the store. If the last name of its location is that of a file
    /// which only a mount shows, the failure says what to name instead.
    fn for_mounted_name(self, failure: CommandFailure) -> CommandFailure {
        let is_missing = failure.is(ExitCode::NotFound) || failure.is(ExitCode::NotZarr);
        let shown = self.location.to_string();
        match shown.rsplit_once('/') {
            Some((array, name))
                if is_missing
                    && (name == FLAT || Format::of_name(name).is_some())
                    && !self.location.path().is_some_and(Path::exists) =>
            {
                CommandFailure::not_found(format!(
                    "{shown}: {name} is a file of mounts, not of stores; name the array, as in `zarrfs cat {array}`"
                ))
            }
            _ => failure,
        }
    }

    fn opened(self) -> Result<Hierarchy, CommandFailure> {
        if !self.args.holds_stores {
            return self.hierarchy_of(self.open_layers()?);
        }
        location::check_holds_stores(self.location)?;
        let stores = NestedStores::new(self.open()?, self.stats.clone(), self.repository_opener());
        let hierarchy = Hierarchy::new(Arc::new(stores), self.args.v1_order, self.stats.clone());
        Ok(hierarchy.holding_stores())
    }

    /// Opens the store with all its layers.
    fn open_layers(self) -> Result<Arc<dyn Store>, CommandFailure> {
        let store = self.open()?;
        if self.args.reading == Reading::WholeOnce {
            store.hint(Hint::WholeStore);
        }
        let when = self.args.consolidated();
        let above = &mut self.stores_above();
        ConsolidatedStore::over_or_above(store, when, self.stats.clone(), above)
            .map_err(|e| self.not_opened(e))
    }

    /// Returns the hierarchy of the opened store.
    ///
    /// # Errors
    ///
    /// The store is not a Zarr store.
    fn hierarchy_of(self, store: Arc<dyn Store>) -> Result<Hierarchy, CommandFailure> {
        let location = self.location;
        let hierarchy = Hierarchy::new(store, self.args.v1_order, self.stats.clone());
        hierarchy.check().map_err(|e| match e.kind() {
            Kind::Invalid if is_nowhere(hierarchy.store()) => CommandFailure::not_found(format!(
                "{location}: no such store, nor a group or array in one"
            )),
            // this occurs in an archive
            Kind::NotFound => {
                CommandFailure::not_found(format!("{location}: no such group or array: {e}"))
            }
            _ => self.not_opened(e),
        })?;
        Ok(hierarchy)
    }

    fn not_opened(self, e: Error) -> CommandFailure {
        let location = self.location;
        match e.kind() {
            Kind::Invalid | Kind::Unsupported => {
                CommandFailure::not_zarr(format!("{location}: {e}"))
            }
            _ => e.context(location).into(),
        }
    }

    /// Returns the stores above a URL, nearest first, each with the key of the URL in it.
    fn stores_above(self) -> impl Iterator<Item = (Arc<dyn Store>, Key)> {
        let is_listed =
            matches!(self.location, StoreLocation::Url(url) if !location::leads_into_archive(url));
        let first = is_listed.then(|| (self.location.clone(), Key::root()));
        let outwards = std::iter::successors(first, |(location, key)| {
            let (above, name) = location.split_last()?;
            Some((above, name.join_key(key)))
        });
        outwards
            .skip(1)
            .take(LEVELS_ABOVE)
            .map_while(move |(location, key)| {
                let args = StoreArgs {
                    is_above: true,
                    ..self.args.clone()
                };
                let above = StoreRequest {
                    location: &location,
                    args: &args,
                    ..self
                };
                Some((above.open().ok()?, key))
            })
    }
}

/// Warns that the groups and arrays in a store that cannot list are unknown.
fn warn_unlisted(hierarchy: &Hierarchy, location: &StoreLocation) {
    if !hierarchy.lists_nodes() {
        let why = "the server can't list names, and there is no .zmetadata: groups and arrays in it are not known";
        // a warning that can't be written must not prevent the output
        let _ = writeln!(std::io::stderr(), "warning: {location}: {why}");
    }
}

/// Returns a JSON list of objects, each in a line of its own.
fn list_of(objects: impl Iterator<Item = String>) -> String {
    format!("[\n{}\n]\n", objects.collect::<Vec<_>>().join(",\n"))
}

/// Maximum number of levels above a URL that are searched for consolidated metadata.
const LEVELS_ABOVE: usize = 8;

/// Returns whether a remote store has no key at all. An empty directory exists; an empty bucket
/// prefix does not.
fn is_nowhere(store: &dyn Store) -> bool {
    store.concurrency() > 1
        && store.lists_all()
        && store
            .list(&Key::root())
            .is_ok_and(|mut names| names.next().is_none())
}

impl WriteArgs {
    fn apply(&self, mut store: DirectoryStore) -> Result<DirectoryStore, Error> {
        if self.no_fsync {
            store = store.without_fsync();
        }
        if let Some(directory) = &self.synchronizer {
            let locks = LockFiles::open(directory, self.lock_timeout);
            store = store.with_locks(locks.map_err(|e| e.context("--synchronizer"))?);
        }
        Ok(store)
    }
}

/// Options of every verb that decodes or encodes chunks.
#[derive(Args)]
#[command(next_help_heading = CACHING)]
struct MemoryArgs {
    /// Limit the memory for decoded chunks
    ///
    /// A number with K, M, G or T.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    cache_size: u64,
    /// Decode on N threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl MemoryArgs {
    fn cache(&self, stats: Arc<Stats>) -> Cache {
        self.set_bound();
        Cache::new(
            usize::try_from(self.cache_size).unwrap_or(usize::MAX),
            stats,
        )
        .decoding_with(self.threads())
    }

    /// Sets the bound that the memory of documents and headers counts against.
    fn set_bound(&self) {
        memory::set_cache_bound(usize::try_from(self.cache_size).unwrap_or(usize::MAX));
    }

    fn threads(&self) -> usize {
        threads(self.threads)
    }
}

/// Returns the number of threads asked for, or one per core.
fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(
        || std::thread::available_parallelism().map_or(2, |n| n.get()),
        usize::from,
    )
}

/// Options of every verb that reads flat bytes.
#[derive(Args)]
#[command(next_help_heading = CACHING)]
struct ReadArgs {
    #[command(flatten)]
    memory: MemoryArgs,
    /// Spill into DIR [default: $TMPDIR or /var/tmp]
    ///
    /// Decoded chunks wait there while an array is read from its beginning to its end and a row of
    /// its chunks doesn't fit into --cache-size, encoded chunks until their shard is stored, and
    /// manifests of Icechunk that exceed memory. It should not be a file system in memory.
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
    /// Limit the size of spill files
    ///
    /// 0 decodes the chunks again instead, and stores shards in more steps.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = size::parse)]
    spill_size: u64,
}

impl ReadArgs {
    fn options(&self, read_only: bool) -> Options {
        let spill = self.spill_options();
        Options {
            read_only,
            resize: false,
            threads: self.memory.threads(),
            direct_io: false,
            spill,
        }
    }

    fn spill_options(&self) -> SpillOptions {
        SpillOptions {
            directory: self.spill_directory(),
            limit: self.spill_size,
        }
    }

    /// Returns the directory of spill files.
    fn spill_directory(&self) -> PathBuf {
        absolute(&self.spill_name())
    }

    /// Returns the directory of spill files by the name that the user has given.
    fn spill_name(&self) -> PathBuf {
        self.spill_dir.clone().unwrap_or_else(spill_directory)
    }
}

/// Returns the default directory of spill files.
fn spill_directory() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}
