//! `zarrfs run`: runs a command with a mount that the command alone sees.
//!
//! Three processes share a namespace: this one, which waits; its child, the daemon, which serves
//! the mount in a session of its own; and its child, the command, which runs in the caller's place:
//! its terminal, directory, descriptors and process group. The daemon ends by [`orders`] that this
//! process sends through a pipe. If this process is killed, the pipe closes and ends the daemon,
//! the kernel kills the command, and a [`Watcher`] what the command has started. This module must
//! not know how a store is served.
//!
//! [`orders`]: super::mount::MountPlan::orders

mod supervisor;
mod watcher;

use super::child_process::{ChildProcess, last_error};
use super::mount::{self, MountPlan, READY, ServedArgs};
use super::{CommandFailure, CommandResult, ExitCode, absolute};
use crate::fuse::{UnmountMode, enter_own_namespace, unmount_path};
use clap::{Args, ValueHint};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setsid};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use supervisor::{Pipes, Supervisor};
use watcher::Watcher;
use zarrfs_base::error::Error;

/// The variable of the command's environment with the mountpoint.
const MOUNTPOINT: &str = "ZARRFS_MOUNT";

/// Exit codes of programs that run others, as in env(1).
const NOT_EXECUTABLE: u8 = 126;
const NO_COMMAND: u8 = 127;

/// Arguments of `run`.
#[derive(Args)]
#[command(
    args_override_self = true,
    override_usage = "zarrfs run [OPTIONS] <STORE> -- <COMMAND> [ARG]..."
)]
pub struct RunArgs {
    /// Replace STRING by the mountpoint
    ///
    /// In COMMAND and each ARG, wherever it occurs. An empty STRING replaces nothing, and leaves {}
    /// to programs such as find.
    #[arg(
        short = 'I',
        long,
        value_name = "STRING",
        default_value = "{}",
        hide_default_value = true,
        help = "Replace STRING by the mountpoint [default: {}]"
    )]
    replace: OsString,
    #[command(flatten)]
    served: ServedArgs,
    /// Words between STORE and `--`, which are refused.
    #[arg(index = 2, hide = true)]
    unexpected: Vec<OsString>,
    /// Program to run, and its arguments
    #[arg(index = 3, last = true, value_name = "COMMAND", value_hint = ValueHint::CommandName)]
    command: Vec<OsString>,
}

/// Runs the verb.
pub fn run(args: &RunArgs) -> CommandResult {
    if let Some(word) = args.unexpected.first() {
        let why = "run makes the mountpoint, and takes the command after --";
        return Err(CommandFailure::wrong_use(format!(
            "{}: {why}: zarrfs run STORE -- COMMAND",
            word.display()
        )));
    }
    if args.command.is_empty() {
        return Err(CommandFailure::wrong_use(
            "no COMMAND; write it after --: zarrfs run STORE -- COMMAND",
        ));
    }
    let path = new_mountpoint();
    enter_own_namespace().map_err(|why| CommandFailure::new(ExitCode::NoFuse, why))?;
    let pipes = Pipes::new()?;
    // SAFETY: this process has one thread, so the child may do whatever this process may.
    match unsafe { libc::fork() } {
        -1 => Err(Error::from(last_error())
            .context("can't start the daemon")
            .into()),
        0 => serve(&args.served, &path, pipes),
        child => {
            // without a supervisor the pipes close, which ends the daemon
            let supervisor = Supervisor::new(child, pipes)?;
            let watcher = Watcher::start(supervisor.daemon.pid)?;
            let code = supervisor.run(|blocked| start(args, &path, blocked));
            watcher.dismiss();
            // a daemon that was killed has left its mount and mountpoint
            let _ = unmount_path(&path, UnmountMode::Lazy);
            let _ = std::fs::remove_dir(&path);
            match code? {
                0 => Ok(()),
                code => Err(CommandFailure::of_process(code.into())),
            }
        }
    }
}

/// Returns the path of a new mountpoint among the temporary files. No user can guess it.
fn new_mountpoint() -> PathBuf {
    let random = RandomState::new().build_hasher().finish();
    absolute(&std::env::temp_dir()).join(format!("zarrfs-run-{random:016x}"))
}

/// Serves the mount at `path` until orders end it.
fn serve(args: &ServedArgs, path: &Path, pipes: Pipes) -> CommandResult {
    // signals of the terminal are for the command
    let _ = setsid();
    let (orders, mut ready) = pipes.of_daemon()?;
    let plan = MountPlan {
        args,
        path,
        makes_mountpoint: true,
        replace_stale: false,
        idle_timeout: None,
        until_eof: false,
        foreground: true,
        options: "",
        orders: Some(orders),
    };
    // if the other process has ended this fails, and ends the mount
    let tell = move || Ok(ready.write_all(READY)?);
    mount::mount(plan, tell).map_err(|failure| {
        if failure.is(ExitCode::Mountpoint) && !failure.message.is_empty() {
            let message = format!("{}; run makes it in TMPDIR", failure.message);
            CommandFailure::mountpoint(message)
        } else {
            failure
        }
    })
}

/// Starts the command in the caller's place, with the signals blocked that the caller has blocked.
fn start(args: &RunArgs, path: &Path, blocked: libc::sigset_t) -> CommandResult<ChildProcess> {
    let words: Vec<OsString> = args
        .command
        .iter()
        .map(|word| replaced(word, &args.replace, path))
        .collect();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(MOUNTPOINT, path);
    let parent = getpid();
    let prepare = move || {
        end_with(parent)?;
        // SAFETY: the set lives longer than the call, which changes the mask of this process alone.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &blocked, std::ptr::null_mut()) };
        Ok(())
    };
    // SAFETY: the function makes three system calls, and allocates and locks nothing.
    unsafe { command.pre_exec(prepare) };
    let started = command.spawn().map(|child| child.id());
    let started = started.and_then(|pid| Ok(ChildProcess::new(pid as i32)?));
    started.map_err(|e| {
        let program = words[0].display();
        let is_missing = match e.raw_os_error() {
            Some(libc::ENOENT) => true,
            // also the answer if only a directory of PATH can't be searched
            Some(libc::EACCES) => !is_in_path(&words[0]),
            _ => false,
        };
        let (code, message) = if is_missing {
            (NO_COMMAND, format!("{program}: no such program"))
        } else {
            (NOT_EXECUTABLE, format!("{program}: {}", Error::from(e)))
        };
        let mut failure = CommandFailure::failed(message);
        failure.code = code;
        failure
    })
}

/// Returns whether a program is known to exist: it is named by a path, or a directory of PATH that
/// can be searched has it.
fn is_in_path(program: &OsStr) -> bool {
    let is_path = program.as_bytes().contains(&b'/');
    let path = std::env::var_os("PATH").unwrap_or_default();
    is_path || std::env::split_paths(&path).any(|above| above.join(program).exists())
}

/// Has the kernel kill this process when its parent is killed.
fn end_with(parent: Pid) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) {
        Ok(())
    } else {
        Err(Errno::SRCH.into())
    }
}

/// Returns `word` with the path in each place of `wanted`.
fn replaced(word: &OsStr, wanted: &OsStr, path: &Path) -> OsString {
    let word = word.as_bytes();
    let wanted = wanted.as_bytes();
    let mut out = Vec::new();
    let mut rest = word;
    while let Some((&byte, tail)) = rest.split_first() {
        match rest.strip_prefix(wanted) {
            Some(after) if !wanted.is_empty() => {
                out.extend_from_slice(path.as_os_str().as_bytes());
                rest = after;
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mountpoint_replaces_a_string() {
        for (word, wanted, expected) in [
            ("{}", "{}", "/m"),
            ("a={}/x:{}{}", "{}", "a=/m/x:/m/m"),
            ("{ }{", "{}", "{ }{"),
            ("{}%/x", "%", "{}/m/x"),
            ("{}", "", "{}"),
            ("", "{}", ""),
        ] {
            let made = replaced(word.as_ref(), wanted.as_ref(), Path::new("/m"));
            assert_eq!(made, expected, "{word} {wanted}");
        }
    }
}
