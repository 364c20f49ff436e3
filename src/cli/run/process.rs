//! The child processes of `zarrfs run`. This module must not know what they do.

use crate::cli::failure::ExitCode;
use crate::fuse::kill_namespace;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, setsid, waitid,
};
use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use zarrfs_base::signals::SIGNALED;

/// A child process, and a descriptor that can be read once it has ended.
pub struct ChildProcess {
    pub pid: Pid,
    pub pidfd: OwnedFd,
}

impl ChildProcess {
    pub fn new(pid: i32) -> rustix::io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(ChildProcess { pid, pidfd })
    }

    pub fn send(&self, signal: c_int) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // until this process waits for its child, no other process gets the number
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Waits for the end of the process. Returns its exit code as a shell does.
    pub fn wait(&self) -> u8 {
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
pub struct Watcher {
    process: ChildProcess,
    /// A byte dismisses the watcher.
    pipe: File,
}

impl Watcher {
    pub fn start(daemon: Pid) -> rustix::io::Result<Self> {
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

    pub fn dismiss(mut self) {
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

/// Returns the error of a call of the C library that has just failed.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Closes all descriptors but the standard ones, in a process that uses no other.
pub fn close_all() {
    // SAFETY: the descriptors from 3 on have no owner that uses or closes them later.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
