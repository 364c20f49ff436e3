//! The plan of a mount: what a command line asks for, and its checks before a store is opened. This
//! module must not mount.

use super::ServedArgs;
use crate::cli::nesting::{OwnPath, OwnPathKind};
use crate::cli::{
    CommandFailure, CommandResult, ExitCode, StoreLocation, absolute, start_directory,
};
use crate::fuse::{MountError, Mountpoint, names_connection};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a store is mounted, and what ends the mount.
pub struct MountPlan<'a> {
    /// What is mounted, and how it is served.
    pub args: &'a ServedArgs,
    /// The mountpoint.
    pub path: &'a Path,
    /// Whether the mountpoint is created, and removed afterwards.
    pub makes_mountpoint: bool,
    /// Whether a mount whose daemon has ended is removed first.
    pub replace_stale: bool,
    /// The time without use after which the mount ends.
    pub idle_timeout: Option<Duration>,
    /// Whether the mount ends with standard input.
    pub until_eof: bool,
    /// Whether the process keeps its standard error.
    pub foreground: bool,
    /// The options as in fstab.
    pub options: &'a str,
    /// The [`orders`] of `zarrfs run`, in whose namespace the mount is. Signals end other mounts.
    pub orders: Option<File>,
}

/// Takes the mount of another program, if `path` names its connection.
pub fn inherit(plan: &MountPlan) -> CommandResult<Option<Mountpoint>> {
    let args = plan.args;
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
        (plan.until_eof, "--until-eof"),
    ] {
        if is_given {
            return Err(CommandFailure::wrong_use(format!(
                "{option}: not with {shown}, which another program mounts with options of its own, and unmounts"
            )));
        }
    }
    Mountpoint::inherit(plan.path).map(Some).map_err(failure)
}

/// Returns the paths that the daemon opens or lists after it has mounted.
pub fn own_paths(args: &ServedArgs, is_mounted: bool) -> Vec<OwnPath> {
    // a path in a mount that is not served yet can't be resolved: the kernel would wait
    let resolved: fn(&Path) -> PathBuf = if is_mounted {
        Path::to_path_buf
    } else {
        absolute
    };
    let references = &args.store_args.allow_reference;
    let has_url = references
        .iter()
        .chain([&args.store])
        .any(|location| matches!(location, StoreLocation::Url(_)));
    let variables = if has_url {
        start_directory::paths()
    } else {
        Vec::new()
    };
    let trees = [
        ("--overlay", &args.overlay),
        ("--cache-dir", &args.store_args.remote.cache_dir),
        ("--synchronizer", &args.writing.synchronizer),
    ];
    let trees = trees
        .into_iter()
        .filter_map(|(option, path)| Some((option, path.clone()?)));
    let references = references
        .iter()
        .filter_map(|location| Some(("--allow-reference", resolved(location.path()?))));
    let spill = ("--spill-dir", resolved(&args.reading.spill_name()));
    let store = args.store.path().map(|path| ("store", resolved(path)));
    let mut own = Vec::new();
    own.extend(OwnPathKind::Name.of([spill]));
    own.extend(OwnPathKind::Store.of(store));
    own.extend(OwnPathKind::Name.of(variables));
    own.extend(OwnPathKind::Tree.of(trees));
    own.extend(OwnPathKind::Name.of(references.chain(args.log.paths(resolved))));
    own
}

/// Returns the failure of a mount.
pub fn failure(e: MountError) -> CommandFailure {
    match e {
        MountError::Mountpoint(message) => CommandFailure::mountpoint(message),
        MountError::Unavailable(message) => CommandFailure::new(ExitCode::NoFuse, message),
        MountError::Stale(message) => CommandFailure::new(ExitCode::Stale, message),
        MountError::Other(e) => e.into(),
    }
}
