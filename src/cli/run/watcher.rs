//! The process that ends what the command of `zarrfs run` has started. This module must not know
//! what that is.

use crate::cli::child_process::{ChildProcess, close_all, last_error};
use crate::fuse::kill_namespace;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, setsid};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

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
