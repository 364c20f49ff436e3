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

use super::mount::{self, MountPlan, READY, ServedArgs};
use super::{CommandFailure, CommandResult, ExitCode, absolute};
use crate::fuse::{UnmountMode, enter_own_namespace, kill_namespace, unmount_path};
use clap::{Args, ValueHint};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal, setsid, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
use std::ffi::{OsStr, OsString, c_int};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use zarrfs_base::error::Error;
use zarrfs_base::signals::{ENDING, SIGNALED, is_ignored};

/// The variable of the command's environment with the mountpoint.
const MOUNTPOINT: &str = "ZARRFS_MOUNT";

/// Signals that are passed on to the command, beside [`ENDING`].
const PASSED_ON: [c_int; 3] = [SIGUSR1, SIGUSR2, SIGXCPU];

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
            let code = supervisor.run(args, &path);
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

/// The pipes between this process and the daemon.
struct Pipes {
    orders: (OwnedFd, OwnedFd),
    ready: (OwnedFd, OwnedFd),
}

impl Pipes {
    fn new() -> rustix::io::Result<Self> {
        Ok(Pipes {
            orders: pipe_with(PipeFlags::CLOEXEC)?,
            ready: pipe_with(PipeFlags::CLOEXEC)?,
        })
    }

    /// Returns the ends of the daemon, in a process that keeps standard error alone of the caller's
    /// descriptors: another program may wait until a pipe is closed.
    fn of_daemon(self) -> rustix::io::Result<(File, File)> {
        rustix::stdio::dup2_stdin(&self.orders.0)?;
        rustix::stdio::dup2_stdout(&self.ready.1)?;
        drop(self);
        close_all();
        let orders = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        let ready = fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok((orders.into(), ready.into()))
    }
}

/// Closes all descriptors but the standard ones, in a process that uses no other.
fn close_all() {
    // SAFETY: the descriptors from 3 on have no owner that uses or closes them later.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
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
        foreground: true,
        options: "",
        orders: Some(orders),
    };
    // if the other process has ended this fails, and ends the mount
    let tell = move || Ok(ready.write_all(READY)?);
    mount::mount(plan, tell).map_err(|failure| {
        if failure.is(ExitCode::Mountpoint) {
            let message = format!("{}; run makes it in TMPDIR", failure.message);
            CommandFailure::new(ExitCode::Mountpoint, message)
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

/// A child process, and a descriptor that can be read once it has ended.
struct ChildProcess {
    pid: Pid,
    pidfd: OwnedFd,
}

impl ChildProcess {
    fn new(pid: i32) -> rustix::io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(ChildProcess { pid, pidfd })
    }

    fn send(&self, signal: c_int) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // until this process waits for its child, no other process gets the number
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Waits for the end of the process. Returns its exit code as a shell does.
    fn wait(&self) -> u8 {
        let status = loop {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED) {
                Err(Errno::INTR) => {}
                ended => break ended.ok().flatten(),
            }
        };
        let code = status.and_then(|status| {
            let signal = status.terminating_signal().map(|signal| SIGNALED + signal);
            status.exit_status().or(signal)
        });
        code.and_then(|code| u8::try_from(code).ok())
            .unwrap_or(ExitCode::Failed as u8)
    }
}

/// A process that kills everything that the command has started if this process is killed. The
/// kernel would kill the command alone.
struct Watcher {
    process: ChildProcess,
    /// A byte dismisses the watcher.
    pipe: File,
}

impl Watcher {
    fn start(daemon: Pid) -> rustix::io::Result<Self> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: this process has one thread, so the child may do whatever this process may.
        match unsafe { libc::fork() } {
            0 => watch(&theirs, daemon),
            -1 => Err(last_error()),
            child => Ok(Watcher {
                process: ChildProcess::new(child)?,
                pipe: ours.into(),
            }),
        }
    }

    fn dismiss(mut self) {
        // it may have been killed
        let _ = self.pipe.write_all(b"e");
        self.process.wait();
    }
}

/// Waits until the pipe is closed, with the signals blocked that this process passes on.
fn watch(pipe: &OwnedFd, daemon: Pid) -> ! {
    let _ = setsid();
    let kept = rustix::stdio::dup2_stdin(pipe);
    close_all();
    let mut byte = [0];
    if kept.is_ok() && rustix::io::read(rustix::stdio::stdin(), &mut byte) == Ok(0) {
        // the daemon stores what it has, and ends by itself
        let _ = kill_namespace(daemon);
    }
    std::process::exit(0)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The end of a wait of the [`Supervisor`].
enum WaitEnd {
    /// A signal, and whether the terminal has sent it, to the command, too.
    Signal(c_int, bool),
    /// The descriptor at this index can be read.
    Readable(usize),
}

/// The process that waits for the daemon and the command.
struct Supervisor {
    daemon: ChildProcess,
    /// The pipe for orders. Dropping it ends the daemon.
    orders: Option<File>,
    ready: File,
    /// Gets signals in place of their usual effect.
    signals: File,
    /// The signals that the caller has blocked.
    blocked: libc::sigset_t,
}

impl Supervisor {
    fn new(daemon: i32, pipes: Pipes) -> rustix::io::Result<Self> {
        let (signals, blocked) = block_signals()?;
        Ok(Supervisor {
            daemon: ChildProcess::new(daemon)?,
            orders: Some(pipes.orders.1.into()),
            ready: pipes.ready.0.into(),
            signals,
            blocked,
        })
    }

    /// Runs the command once the mount answers. Returns the exit code.
    fn run(mut self, args: &RunArgs, path: &Path) -> CommandResult<u8> {
        if let Some(code) = self.wait_for_mount() {
            return Ok(code);
        }
        let command = match start(args, path, self.blocked) {
            Ok(command) => command,
            Err(failure) => {
                self.end_daemon();
                return Err(failure);
            }
        };
        let mut daemon_code = None;
        let code = loop {
            let both = [command.pidfd.as_fd(), self.daemon.pidfd.as_fd()];
            let watched = if daemon_code.is_none() {
                &both
            } else {
                &both[..1]
            };
            match self.wait_for(watched) {
                WaitEnd::Signal(_, true) => {}
                WaitEnd::Signal(signal, false) => command.send(signal),
                WaitEnd::Readable(0) => break command.wait(),
                WaitEnd::Readable(_) => {
                    let code = self.daemon_code();
                    daemon_code = Some(code);
                    if code != 0 {
                        // the command can't do its work any more
                        command.send(SIGTERM);
                    }
                }
            }
        };
        let daemon_code = daemon_code.unwrap_or_else(|| self.end_daemon());
        Ok(if code == 0 { daemon_code } else { code })
    }

    /// Waits until the mount answers. Returns the exit code if it does not.
    fn wait_for_mount(&mut self) -> Option<u8> {
        loop {
            match self.wait_for(&[self.ready.as_fd()]) {
                WaitEnd::Readable(_) => {
                    let mut said = [0; READY.len()];
                    // the pipe is closed when the daemon ends
                    return match self.ready.read_exact(&mut said) {
                        Ok(()) => None,
                        Err(_) => Some(self.daemon_code()),
                    };
                }
                WaitEnd::Signal(signal, _) if ENDING.contains(&signal) => {
                    // it may not take orders yet
                    self.orders = None;
                    self.daemon.send(SIGTERM);
                    self.wait_for_daemon();
                    return u8::try_from(SIGNALED + signal).ok();
                }
                WaitEnd::Signal(..) => {}
            }
        }
    }

    /// Has the daemon store everything and end. Returns its exit code.
    fn end_daemon(&mut self) -> u8 {
        self.send_order();
        self.wait_for_daemon();
        self.daemon_code()
    }

    /// Sends an order to end the mount, or kills the daemon if there is no pipe any more.
    fn send_order(&mut self) {
        match &mut self.orders {
            // the daemon may have ended
            Some(pipe) => drop(pipe.write_all(b"e")),
            None => self.daemon.send(SIGKILL),
        }
    }

    /// Waits for the end of the daemon. Each signal is an order.
    fn wait_for_daemon(&mut self) {
        loop {
            match self.wait_for(&[self.daemon.pidfd.as_fd()]) {
                WaitEnd::Readable(_) => return,
                WaitEnd::Signal(signal, _) if ENDING.contains(&signal) => self.send_order(),
                WaitEnd::Signal(..) => {}
            }
        }
    }

    /// Returns the exit code of the daemon, which has said why it failed unless it was killed.
    fn daemon_code(&self) -> u8 {
        let code = self.daemon.wait();
        if i32::from(code) <= SIGNALED {
            return code;
        }
        let signal = i32::from(code) - SIGNALED;
        CommandFailure::failed(format!(
            "the daemon was killed (signal {signal}): what was not stored is lost"
        ))
        .print(false);
        ExitCode::Failed as u8
    }

    /// Waits for a signal, or until one of the descriptors can be read.
    fn wait_for(&self, descriptors: &[BorrowedFd]) -> WaitEnd {
        loop {
            let all = [&[self.signals.as_fd()], descriptors].concat();
            let mut polled: Vec<PollFd> = all
                .iter()
                .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
                .collect();
            // an interrupted wait is repeated
            if poll(&mut polled, None).is_err() {
                continue;
            }
            let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
            if ready.next() == Some(true) {
                if let Some(signal) = read_signal(&self.signals) {
                    return signal;
                }
            } else if let Some(index) = ready.position(|is_ready| is_ready) {
                return WaitEnd::Readable(index);
            }
        }
    }
}

/// Blocks the signals that are passed on. Returns a descriptor that gets them, and the signals that
/// were blocked before. Those that the caller ignores, as nohup(1) does, stay ignored.
fn block_signals() -> rustix::io::Result<(File, libc::sigset_t)> {
    // SAFETY: all pointers are to values on this stack, which live longer than the calls; zeros are
    // valid for these types. This thread, whose mask changes, is the only one.
    let (fd, blocked) = unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        let passed_on = ENDING.into_iter().chain(PASSED_ON);
        for signal in passed_on.filter(|signal| !is_ignored(*signal)) {
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, &mut blocked);
        (libc::signalfd(-1, &set, libc::SFD_CLOEXEC), blocked)
    };
    if fd == -1 {
        return Err(last_error());
    }
    // SAFETY: the descriptor was opened above, and has no other owner.
    let signals = unsafe { File::from_raw_fd(fd) };
    Ok((signals, blocked))
}

/// Reads a signal: the fields of signalfd(2), of four bytes each, begin with number, errno and
/// code.
fn read_signal(mut signals: &File) -> Option<WaitEnd> {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    signals.read_exact(&mut info).ok()?;
    let field = |at: usize| Some(i32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
    let signal = field(0)?;
    let code = field(8)?;
    // codes of processes are not positive; the kernel sends SIGALRM at the end of alarm(2)
    let is_of_terminal = code > 0 && [SIGHUP, SIGINT, SIGQUIT].contains(&signal);
    Some(WaitEnd::Signal(signal, is_of_terminal))
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
