//! The process of `zarrfs run` that waits for the daemon and the command, and passes signals on.
//! This module must not know which command runs.

use crate::cli::child_process::{ChildProcess, PassedSignals, WaitEnd, close_all};
use crate::cli::failure::{CommandFailure, CommandResult, ExitCode};
use crate::cli::mount::READY;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGKILL, SIGTERM};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use zarrfs_base::signals::{ENDING, SIGNALED};

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

/// The process that waits for the daemon and the command.
pub struct Supervisor {
    pub daemon: ChildProcess,
    /// The pipe for orders. Dropping it ends the daemon.
    orders: Option<File>,
    ready: File,
    signals: PassedSignals,
}

impl Supervisor {
    pub fn new(daemon: i32, pipes: Pipes) -> rustix::io::Result<Self> {
        Ok(Supervisor {
            daemon: ChildProcess::new(daemon)?,
            orders: Some(pipes.orders.1.into()),
            ready: pipes.ready.0.into(),
            signals: PassedSignals::block()?,
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
        let command = match start(self.signals.blocked) {
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
            match self.signals.wait_for(watched) {
                WaitEnd::Signal(_, true) | WaitEnd::TimedOut => {}
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
            match self.signals.wait_for(&[self.ready.as_fd()]) {
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
                WaitEnd::Signal(..) | WaitEnd::TimedOut => {}
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
            match self.signals.wait_for(&[self.daemon.pidfd.as_fd()]) {
                WaitEnd::Readable(_) => return,
                WaitEnd::Signal(signal, _) if ENDING.contains(&signal) => self.send_order(),
                WaitEnd::Signal(..) | WaitEnd::TimedOut => {}
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
}
