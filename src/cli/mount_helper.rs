//! The helper of mount(8) and umount(8). If mount.fuse calls the program, or if it is called by a
//! name that mount and umount look for in /sbin, it takes their arguments and returns their exit
//! codes. This module only translates to the verbs `mount` and `umount`.

use super::{
    Cli, CommandFailure, CommandResult, ExitCode, mount_options, print, run as run_verb, stdio,
};
use crate::fuse::inherited_descriptor;
use clap::{CommandFactory, Parser};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process;

/// Exit codes of mount(8).
const WRONG_USE: u8 = 1;
const FAILED: u8 = 32;

/// Options that mount.fuse3 has given to the kernel, and gives to this program as well, if it
/// passes a mounted descriptor on (`drop_privileges`).
const GIVEN_TO_THE_KERNEL: [&str; 5] = ["allow_other", "noexec", "sync", "fsname", "max_read"];

/// Arguments of mount(8): `mount.TYPE SOURCE DIRECTORY [-sfnvrw] [-N NAMESPACE] [-o OPTIONS] [-t
/// TYPE]`.
#[derive(Parser)]
#[command(
    about = "Mounts a Zarr store, for mount(8); see zarrfs mount --help",
    version
)]
struct MountHelperArgs {
    source: OsString,
    directory: OsString,
    /// Ignore unknown options
    #[arg(short)]
    sloppy: bool,
    /// Check the options without mounting
    #[arg(short)]
    fake: bool,
    /// Do nothing: there is no mtab
    #[arg(short)]
    no_mtab: bool,
    /// Print the source and the mountpoint
    #[arg(short)]
    verbose: bool,
    /// Mount read-only
    #[arg(short)]
    read_only: bool,
    /// Mount for reading and writing
    #[arg(short = 'w')]
    read_write: bool,
    #[arg(short = 'N')]
    namespace: Option<OsString>,
    #[arg(short)]
    options: Vec<String>,
    #[arg(short)]
    type_name: Option<OsString>,
}

/// Arguments of umount(8): `umount.TYPE DIRECTORY [-nlfvr] [-N NAMESPACE] [-t TYPE]`.
#[derive(Parser)]
#[command(
    about = "Unmounts a Zarr store, for umount(8); see zarrfs umount --help",
    version
)]
struct UmountHelperArgs {
    directory: OsString,
    /// Do nothing: there is no mtab
    #[arg(short)]
    no_mtab: bool,
    /// Unmount also while in use
    #[arg(short)]
    lazy: bool,
    /// Unmount immediately; unstored writes are lost
    #[arg(short)]
    force: bool,
    /// Do nothing
    #[arg(short)]
    verbose: bool,
    /// Do nothing
    #[arg(short)]
    read_only: bool,
    #[arg(short = 'N')]
    namespace: Option<OsString>,
    #[arg(short)]
    type_name: Option<OsString>,
}

/// Runs the helper. Returns `None` if the program was not called by mount(8) or umount(8).
pub fn run(words: &[OsString]) -> Option<process::ExitCode> {
    let name = Path::new(words.first()?)
        .file_name()
        .and_then(OsStr::to_str)
        .unwrap_or_default();
    let done = match name {
        "mount.zarrfs" | "mount.fuse.zarrfs" => mount(words),
        "umount.zarrfs" | "umount.fuse.zarrfs" => umount(words),
        _ if is_mount_fuse(words) => mount(words),
        _ => return None,
    };
    Some(match done {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(false);
            process::ExitCode::from(if failure.is(ExitCode::WrongUse) {
                WRONG_USE
            } else {
                FAILED
            })
        }
    })
}

/// Returns whether mount.fuse calls the program for the type fuse.zarrfs: `zarrfs SOURCE DIRECTORY
/// -o OPTIONS`.
fn is_mount_fuse(words: &[OsString]) -> bool {
    match words {
        [_, source, _, o, _] => {
            let verbs = Cli::command();
            o == "-o"
                && !source.as_encoded_bytes().starts_with(b"-")
                && verbs.find_subcommand(source).is_none()
        }
        _ => false,
    }
}

fn mount(words: &[OsString]) -> CommandResult {
    let Some(args) = parse::<MountHelperArgs>(words)? else {
        return Ok(());
    };
    in_own_namespace(args.namespace.as_deref())?;
    let mut line: Vec<OsString> = vec!["zarrfs".into(), "mount".into()];
    let access = [(args.read_only, "ro"), (args.read_write, "rw")];
    let access = access
        .iter()
        .filter(|(asked, _)| *asked)
        .map(|(_, option)| option.to_string());
    let is_inherited = inherited_descriptor(Path::new(&args.directory)).is_some();
    for options in args.options.iter().cloned().chain(access) {
        let options = if is_inherited {
            mount_options::without(&options, &GIVEN_TO_THE_KERNEL)
        } else {
            options
        };
        line.extend(["-o".into(), options.into()]);
    }
    line.extend(args.sloppy.then(|| "--sloppy".into()));
    line.extend(["--".into(), args.source.clone(), args.directory.clone()]);
    if args.fake {
        let command = Cli::command();
        let mount = command.find_subcommand("mount").unwrap_or(&command);
        return mount_options::expand(&args.options, args.sloppy, mount).map(|_| ());
    }
    run_verb(&line)?;
    if args.verbose {
        // the store is mounted, even if the line can't be printed
        let _ = print(format!(
            "zarrfs: {} mounted on {}\n",
            args.source.display(),
            args.directory.display()
        ));
    }
    Ok(())
}

fn umount(words: &[OsString]) -> CommandResult {
    let Some(args) = parse::<UmountHelperArgs>(words)? else {
        return Ok(());
    };
    in_own_namespace(args.namespace.as_deref())?;
    let how = [(args.lazy, "--lazy"), (args.force, "--force")];
    let how = how
        .iter()
        .filter(|(asked, _)| *asked)
        .map(|(_, option)| OsString::from(option));
    let mut line: Vec<OsString> = vec!["zarrfs".into(), "umount".into()];
    line.extend(how.chain(["--".into(), args.directory]));
    run_verb(&line)
}

/// Parses the arguments. Returns `None` after printing the help.
fn parse<T: Parser>(words: &[OsString]) -> CommandResult<Option<T>> {
    match T::try_parse_from(words) {
        Ok(args) => Ok(Some(args)),
        Err(e) if e.use_stderr() => {
            let _ = e.print();
            Err(CommandFailure::wrong_use(""))
        }
        Err(help) => stdio::print_help(&help).map(|()| None),
    }
}

/// Refuses another mount namespace: the daemon would stay in its own.
fn in_own_namespace(other: Option<&OsStr>) -> CommandResult {
    match other {
        None => Ok(()),
        Some(_) => Err(CommandFailure::wrong_use(
            "-N: not supported; run mount in the namespace (nsenter --mount)",
        )),
    }
}
