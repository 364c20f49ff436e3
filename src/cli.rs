//! The command line: one file per verb, which turns arguments into calls of the library, and
//! results into output and exit codes. No other module names clap.

mod cache_options;
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
mod ingest_options;
mod leftovers;
mod location;
mod logger;
mod ls;
mod man;
mod map;
mod migrate;
mod mount;
mod mount_helper;
mod mount_options;
mod mountpoint;
mod nesting;
mod open;
mod overlay;
mod pack;
mod child_process;
mod progress;
mod put;
mod put_file;
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
mod upgrade;
mod version;

use crate::array::hierarchy::Hierarchy;
use crate::fuse::run_child;
use cache_options::{MemoryArgs, ReadArgs};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Parser, Subcommand};
use failure::{CommandFailure, CommandResult, ExitCode, wants_json};
use location::{Reading, StoreArgs, StoreLocation, StoreRequest, WriteArgs};
use start_directory::absolute;
use std::ffi::OsString;
use std::io::Write;
use std::process;
use stdio::print;
use zarrfs_base::memory;
use zarrfs_base::signals;

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
    /// Replace the daemon of a mount by another version, while it is used
    ///
    /// Everything that was written is stored, and the new program takes over: open files, maps,
    /// directories and locks stay, and programs wait for a moment. If it can't take over, the
    /// former program goes on. Mounts of `zarrfs run` end with their command, and are not upgraded.
    Upgrade(upgrade::UpgradeArgs),
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
    /// Mount a store, and show it in the file manager
    ///
    /// The mountpoint is zarrfs/NAME in the directory that XDG_RUNTIME_DIR names; its path is
    /// printed, and xdg-open shows it. A store that is mounted there already is shown again. The
    /// mount is read-only, has previews of arrays (preview.png), and ends after an hour without
    /// use, or with `zarrfs umount`. Without a terminal, an error is also shown by notify-send.
    Open(open::OpenArgs),
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
    /// Overwrite an array with standard input, or store a file as arrays
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
fn run(words: &[OsString]) -> CommandResult {
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
        Verb::Upgrade(args) => upgrade::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Open(args) => open::run(&args),
        Verb::Info(args) => info::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Cat(args) => cat::run(&args),
        Verb::Header(args) => header::run(&args),
        Verb::Put(args) => match &args.file {
            Some(file) => put_file::run(&args, file),
            None => put::run(&args),
        },
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

/// Why a store shows no groups and arrays.
const UNLISTED: &str = "the server can't list names, and there is no .zmetadata: groups and arrays in it are not known";

/// Warns that the groups and arrays in a store that cannot list are unknown.
fn warn_unlisted(hierarchy: &Hierarchy, location: &StoreLocation) {
    if !hierarchy.lists_nodes() {
        // a warning that can't be written must not prevent the output
        let _ = writeln!(std::io::stderr(), "warning: {location}: {UNLISTED}");
    }
}

/// Checks that all groups and arrays of a store are known, for a verb that copies them.
fn check_listed(hierarchy: &Hierarchy, location: &StoreLocation) -> CommandResult {
    if hierarchy.lists_nodes() {
        return Ok(());
    }
    let message = format!("{location}: {UNLISTED}; nothing was written");
    Err(CommandFailure::failed(message))
}

/// Returns a JSON list of objects, each in a line of its own.
fn list_of(objects: impl Iterator<Item = String>) -> String {
    format!("[\n{}\n]\n", objects.collect::<Vec<_>>().join(",\n"))
}
