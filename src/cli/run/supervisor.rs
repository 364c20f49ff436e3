//! The process of `zarrfs run` that waits for the daemon and the command, and passes signals on.
//! This module must not know which command runs.

use super::process::{ChildProcess, close_all, last_error};
use crate::cli::failure::{CommandFailure, CommandResult, ExitCode};
use crate::cli::mount::READY;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use zarrfs_base::signals::{ENDING, SIGNALED, is_ignored};

/// Signals that are passed on to the command, beside [`ENDING`].
const PASSED_ON: [c_int; 3] = [SIGUSR1, SIGUSR2, SIGXCPU];

/// The pipes between this process and the daemon.
pub struct Pipes {
    orders: (OwnedFd, OwnedFd),
    ready: (OwnedFd, OwnedFd),
}

impl Pipes {
    pub fn new() -> rustix::io::Result<Self> {
        Ok(Pipes {
            orders: pipe_with(PipeFlags::CLOEXEC)?,
            ready: pipe_with(PipeFlags::CLOEXEC)?,
        })
    }

    /// Returns the ends of the daemon, in a process that keeps standard error alone of the caller's
    /// descriptors: another program may wait until a pipe is closed.
    pub fn of_daemon(self) -> rustix::io::Result<(File, File)> {
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

/// The end of a wait of the [`Supervisor`].
enum WaitEnd {
    /// A signal, and whether the terminal has sent it, to the command, too.
    Signal(c_int, bool),
    /// The descriptor at this index can be read.
    Readable(usize),
}

/// The process that waits for the daemon and the command.
pub struct Supervisor {
    pub daemon: ChildProcess,
    /// The pipe for orders. Dropping it ends the daemon.
    orders: Option<File>,
    ready: File,
    /// Gets signals in place of their usual effect.
    signals: File,
    /// The signals that the caller has blocked.
    blocked: libc::sigset_t,
}

impl Supervisor {
    pub fn new(daemon: i32, pipes: Pipes) -> rustix::io::Result<Self> {
        let (signals, blocked) = block_signals()?;
        Ok(Supervisor {
            daemon: ChildProcess::new(daemon)?,
            orders: Some(pipes.orders.1.into()),
            ready: pipes.ready.0.into(),
            signals,
            blocked,
        })
    }

    /// Runs the command once the mount answers: `start` gets the signals that the caller has
    /// blocked. Returns the exit code.
    pub fn run(
        mut self,
        start: impl FnOnce(libc::sigset_t) -> CommandResult<ChildProcess>,
    ) -> CommandResult<u8> {
        if let Some(code) = self.wait_for_mount() {
            return Ok(code);
        }
        let command = match start(self.blocked) {
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
