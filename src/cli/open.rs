//! `zarrfs open`: mounts a store below the user's runtime directory, and shows it in the file
//! manager. Desktops run it for a store that is double-clicked, so that an error is also a
//! notification. This module must not mount: it runs `zarrfs mount`.

use super::location::check_answers;
use super::{CommandFailure, CommandResult, StoreLocation, absolute, mountpoint, stdio};
use crate::fuse::mounts_at;
use clap::{Args, ValueHint};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zarrfs_base::error::Error;

/// The variable with the directory of the user's files that last as long as the session.
const RUNTIME_DIRECTORY: &str = "XDG_RUNTIME_DIR";

/// The directory of mountpoints in the runtime directory.
const DIRECTORY: &str = "zarrfs";

/// Options of the mount, as in fstab, unless others are given: a file manager and the programs that
/// it starts write files of their own beside those that they show.
const OPTIONS: &str = "ro,containers=png";

/// The time without use after which the mount ends: no file manager reports a closed window.
const IDLE_TIMEOUT: &str = "1h";

/// Maximum number of stores of one name that are mounted.
const MAX_NAMESAKES: usize = 100;

/// The programs that show a folder, and an error.
const FILE_MANAGER: &str = "xdg-open";
const NOTIFIER: &str = "notify-send";

/// Arguments of `open`.
#[derive(Args)]
pub struct OpenArgs {
    /// Directory, .zip archive or URL of the store
    #[arg(value_hint = ValueHint::AnyPath)]
    store: OsString,
    /// Mount with these options, as in fstab
    ///
    /// Any long option of `zarrfs mount` without its dashes: rw,headers=all. A store that is
    /// mounted already keeps the options that it has.
    #[arg(
        short,
        value_name = "OPTIONS",
        default_value = OPTIONS,
        hide_default_value = true,
        help = "Mount with these options [default: ro,containers=png]"
    )]
    options: String,
}

/// Runs the verb.
pub fn run(args: &OpenArgs) -> CommandResult {
    let opened = open(args);
    if let Err(failure) = &opened {
        notify(&args.store, &failure.message);
    }
    opened
}

fn open(args: &OpenArgs) -> CommandResult {
    let store = StoreLocation::from(args.store.clone());
    store.check_answers()?;
    let directory = runtime_directory()?;
    if store
        .path()
        .is_some_and(|path| absolute(path).starts_with(&directory))
    {
        // the file manager would be this program again
        let why = "is in a folder that zarrfs open has made; choose another program for folders, as with xdg-mime default org.gnome.Nautilus.desktop inode/directory";
        return Err(CommandFailure::wrong_use(format!("{store}: {why}")));
    }
    let locked = lock(&directory)?;
    let (path, is_mounted) = mountpoint_of(&store, &directory)?;
    if !is_mounted {
        mount(args, &path)?;
    }
    drop(locked);
    stdio::print(format!("{}\n", path.display()))?;
    show(&path)
}

/// Returns the directory of mountpoints, and creates it.
fn runtime_directory() -> CommandResult<PathBuf> {
    let stated = std::env::var_os(RUNTIME_DIRECTORY).map(PathBuf::from);
    let Some(above) = stated.filter(|path| path.is_absolute()) else {
        let why = format!("{RUNTIME_DIRECTORY} is not set; mount the store with zarrfs mount");
        return Err(CommandFailure::mountpoint(why));
    };
    let directory = absolute(&above.join(DIRECTORY));
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => {
            let why = format!("{}: {}", directory.display(), Error::from(e));
            Err(CommandFailure::mountpoint(why))
        }
        _ => Ok(directory),
    }
}

/// Waits until no other process chooses a mountpoint: a double click may start two.
fn lock(directory: &Path) -> CommandResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let locked = rustix::fs::open(directory, flags, Mode::empty()).and_then(|opened| {
        rustix::fs::flock(&opened, FlockOperation::LockExclusive)?;
        Ok(opened)
    });
    locked.map_err(|e| {
        CommandFailure::mountpoint(format!("{}: {}", directory.display(), Error::from(e)))
    })
}

/// Returns the mountpoint of a store, and whether the store is mounted there. Stores of the same
/// name are numbered.
fn mountpoint_of(store: &StoreLocation, directory: &Path) -> CommandResult<(PathBuf, bool)> {
    let name = mountpoint::bare_name(store).unwrap_or_else(|| "store".to_string());
    let source = store.absolute().to_string();
    for number in 1..=MAX_NAMESAKES {
        let path = match number {
            1 => directory.join(&name),
            _ => directory.join(format!("{name}-{number}")),
        };
        let mounts = mounts_at(&path)?;
        match mounts.last() {
            Some(mount) if mount.is_zarrfs() && mount.source == source.as_bytes() => {
                // a mount whose daemon has ended is replaced
                let is_stale = fs::symlink_metadata(&path)
                    .is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN));
                if !is_stale {
                    check_answers(&path)?;
                }
                return Ok((path, !is_stale));
            }
            Some(_) => {}
            None if mountpoint::is_free(&path) => return Ok((path, false)),
            None => {}
        }
    }
    let why = format!("{MAX_NAMESAKES} stores named {name} are mounted; unmount some");
    Err(CommandFailure::mountpoint(format!(
        "{}: {why}",
        directory.display()
    )))
}

/// Mounts the store.
fn mount(args: &OpenArgs, path: &Path) -> CommandResult {
    let output = Command::new(std::env::current_exe()?)
        .args(["mount", "--auto-mountpoint", "--replace-stale"])
        .args(["--idle-timeout", IDLE_TIMEOUT, "-o", &args.options, "--"])
        .args([args.store.as_os_str(), path.as_os_str()])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| CommandFailure::failed(format!("can't start zarrfs mount: {e}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let (error, warnings) = if output.status.success() {
        (None, said.trim_end())
    } else {
        let (warnings, error) = said
            .trim_end()
            .rsplit_once('\n')
            .unwrap_or(("", said.trim_end()));
        (Some(error), warnings)
    };
    for warning in warnings.lines() {
        eprintln!("{warning}");
    }
    let Some(error) = error else { return Ok(()) };
    let mut failure = CommandFailure::of_process(output.status.code().unwrap_or(1));
    failure.message = error.strip_prefix("error: ").unwrap_or(error).to_string();
    Err(failure)
}

/// Shows a folder in the file manager.
fn show(path: &Path) -> CommandResult {
    let why = match Command::new(FILE_MANAGER).arg(path).status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => format!("{FILE_MANAGER} has failed ({status})"),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            format!("{FILE_MANAGER} is missing; install xdg-utils, or open the folder yourself")
        }
        Err(e) => format!("{FILE_MANAGER}: {}", Error::from(e)),
    };
    let shown = path.display();
    Err(CommandFailure::failed(format!(
        "{shown}: mounted, but not shown: {why}"
    )))
}

/// Shows an error to a user who sees no standard error, if the desktop has a program for that.
fn notify(store: &OsString, message: &str) {
    let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    if io::stderr().is_terminal() || !has_desktop {
        return;
    }
    let title = format!("zarrfs can't open {}", store.display());
    // notifications may contain markup
    let body = message.replace('&', "&amp;").replace('<', "&lt;");
    let shown = Command::new(NOTIFIER)
        .args([
            "--app-name=zarrfs",
            "--icon=dialog-error",
            "--",
            &title,
            &body,
        ])
        .stdin(Stdio::null())
        .status();
    if let Err(e) = shown {
        log::debug!("{NOTIFIER}: {e}");
    }
}
