//! The background process of a mount: this program started again. It keeps standard error until the
//! mount answers, so that a failure reads the same as in the foreground.

use crate::cli::{CommandFailure, CommandResult, start_directory, stdio};
use crate::fuse::close_on_exec;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::RawFd;
use std::process::{Command, ExitStatus, Stdio};

/// The environment variable of the background process, which writes [`READY`] to its standard
/// output, a pipe.
const BACKGROUND: &str = "ZARRFS_BACKGROUND";
pub const READY: &[u8] = b"ready\n";

/// Returns whether this process was started in the background.
pub fn is_this() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// Starts the background process, which inherits the descriptor `kept`, and standard input if
/// `keeps_input`. Waits until the mount answers or the process ends.
pub fn start(words: &[OsString], kept: Option<RawFd>, keeps_input: bool) -> CommandResult {
    let input = if keeps_input {
        Stdio::inherit()
    } else {
        Stdio::null()
    };
    let ended = background_process(words, kept, input)
        .map_err(|e| CommandFailure::failed(format!("can't start the background process: {e}")))?;
    let Some(status) = ended else { return Ok(()) };
    match status.code() {
        // the process has printed its error to the same standard error
        Some(code) => Err(CommandFailure::of_process(code)),
        None => Err(CommandFailure::failed(format!(
            "the background process was killed ({status})"
        ))),
    }
}

/// Starts the background process. Returns `None` once the mount answers, or else how the process
/// has ended.
fn background_process(
    words: &[OsString],
    kept: Option<RawFd>,
    input: Stdio,
) -> std::io::Result<Option<ExitStatus>> {
    leave_descriptors(kept);
    let mut child = Command::new(std::env::current_exe()?)
        .args(words.iter().skip(1))
        .envs(start_directory::variables())
        .env(BACKGROUND, "1")
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut said)?;
    }
    if said == READY {
        Ok(None)
    } else {
        child.wait().map(Some)
    }
}

/// Keeps the background process from inheriting the caller's open files and their locks, except for
/// the descriptor `kept`.
fn leave_descriptors(kept: Option<RawFd>) {
    // the standard streams are replaced anyway
    let kept = kept.unwrap_or(2).max(2).unsigned_abs();
    close_on_exec(3, kept - 1);
    close_on_exec(kept + 1, u32::MAX);
}

/// Reports to the parent process that the mount answers, and releases the terminal and the working
/// directory, but not standard input if `keeps_input`.
pub fn leave_terminal(keeps_input: bool) -> CommandResult {
    let mut out = stdio::output();
    // if the parent has ended this fails and ends the mount, since the parent was asked to stop
    out.write_all(READY).and_then(|()| out.flush())?;
    release(keeps_input)
}

/// Releases the terminal and the working directory, but not standard input if `keeps_input`.
pub fn release(keeps_input: bool) -> CommandResult {
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    std::env::set_current_dir("/")?;
    if !keeps_input {
        rustix::stdio::dup2_stdin(&null)?;
    }
    rustix::stdio::dup2_stderr(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
