//! Control files of mounts, also of those that hang or belong to another user.
//!
//! Invariant: no process of a command enters a mount itself. A program whose thread waits for a
//! daemon that is stopped may not even die, and its caller would wait for it. So a child reads,
//! which is abandoned if that takes too long. FUSE refuses other users, root too, unless the mount
//! allows them: a child of root reads as the owner of the mount.
//!
//! Another child guards each mount. A thread of the daemon that makes the kernel drop pages may
//! wait for a read in flight, which the daemon answers. If it is killed then, neither ends, unless
//! the guard ends the connection.

use super::mount_place::{MountEntry, abort_file, working_directory};
use crate::fs::tree::CONTROL;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use zarrfs_base::error::{Error, ErrorContext, Result};

/// The control file of all counters. The kernel keeps no pages of it, so that a read shows whether
/// the daemon answers.
const STATISTICS: &str = "stats.json";

/// Time in which a daemon that is not stopped answers.
pub const PATIENCE: Duration = Duration::from_millis(2500);

/// Maximum size of a control file in bytes. Any program could serve a mount of this type.
const MAX_CONTROL: u64 = 16 << 20;

/// The environment variable with the file that the child reads.
const READ_FILE: &str = "ZARRFS_READ_FILE";

/// Reads a control file of a mount.
///
/// # Errors
///
/// ETIMEDOUT, with a message that says what ends the mount, if its daemon does not answer within
/// `limit`.
pub fn read_control(mount: &MountEntry, name: &str, limit: Duration) -> Result<Vec<u8>> {
    let child = start_reader(mount, name).context("reading in another process")?;
    let (answer, wait) = channel();
    std::thread::Builder::new().spawn(move || answer.send(child.wait_with_output()))?;
    let output = wait.recv_timeout(limit).map_err(|_| no_answer(mount))?;
    let Output { status, stdout, .. } = output.map_err(Error::from)?;
    match status.code() {
        Some(0) => Ok(stdout),
        Some(errno) => Err(Error::system(errno)),
        None => Err(Error::system(libc::EIO).context(status)),
    }
}

/// Reads the counters of a mount, or finds that its daemon does not answer.
///
/// # Errors
///
/// The errors of [`read_control`].
pub fn read_statistics(mount: &MountEntry) -> Result<Vec<u8>> {
    read_control(mount, STATISTICS, PATIENCE)
}

/// Returns the error of a mount that does not answer.
fn no_answer(mount: &MountEntry) -> Error {
    let path = mount.path.display();
    let abort = abort_file(&mount.device);
    let why = format!(
        "does not answer: its daemon is stopped or hangs, or waits for its store; `zarrfs umount --force {path}` ends it, or `echo 1 >{abort}`: \
         requests in flight fail, and unstored writes are lost"
    );
    Error::new(zarrfs_base::error::Kind::System(libc::ETIMEDOUT), why)
}

fn start_reader(mount: &MountEntry, name: &str) -> std::io::Result<Child> {
    let mut command = own_program();
    command
        .env(READ_FILE, mount.path.join(CONTROL).join(name))
        .stdout(Stdio::piped());
    let own = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if own.0 == 0
        && let Some((uid, gid)) = mount.owner.filter(|owner| *owner != own)
    {
        command.uid(uid).gid(gid);
    } else if working_directory().is_ok_and(|here| here.starts_with(&mount.path)) {
        return command.spawn();
    }
    // this directory is never busy, and shows nothing to another user, who may trace the child
    command.current_dir("/").spawn()
}

/// Returns the command that starts this program in another process.
pub(super) fn own_program() -> Command {
    // another user could not reach the program by its path
    let mut command = Command::new("/proc/self/exe");
    command
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: the function makes three system calls, and allocates and locks nothing. They keep the
    // user, who may trace the child, from the terminal and the open files of root.
    unsafe { command.pre_exec(detach) };
    command
}

/// Separates a child process from this one, before it runs its program.
fn detach() -> std::io::Result<()> {
    rustix::process::setsid()?;
    // if it waits for the daemon, it ends with this process, or with the mount
    set_parent_process_death_signal(Some(Signal::KILL))?;
    close_on_exec(3, u32::MAX);
    Ok(())
}

/// Closes these descriptors when this process runs another program. An empty range does nothing.
pub fn close_on_exec(first: u32, last: u32) {
    // SAFETY: the call takes numbers alone and sets a flag on descriptors; none is closed here.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}

/// Reads the file for which [`read_control`] has started this process, and prints it. Returns
/// `None` in any other process.
pub fn run_reader() -> Option<ExitCode> {
    let file = PathBuf::from(std::env::var_os(READ_FILE)?);
    Some(match copy_to_output(&file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => ExitCode::from(
            e.raw_os_error()
                .and_then(|errno| u8::try_from(errno).ok())
                .unwrap_or(libc::EIO as u8),
        ),
    })
}

fn copy_to_output(file: &Path) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    open_control(file)?
        .take(MAX_CONTROL)
        .read_to_end(&mut bytes)?;
    File::from(rustix::io::dup(rustix::stdio::stdout())?).write_all(&bytes)
}

/// Opens a control file by its absolute path. If this user may not enter the directories above the
/// mountpoint, opens it from the working directory, which may lie in the mount.
fn open_control(file: &Path) -> std::io::Result<File> {
    match File::open(file) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            File::open(path_from(&working_directory()?, file))
        }
        opened => opened,
    }
}

/// Returns the path that leads from the directory `here` to `file`. Both are absolute.
fn path_from(here: &Path, file: &Path) -> PathBuf {
    let mut way = PathBuf::new();
    for above in here.ancestors() {
        if let Ok(rest) = file.strip_prefix(above) {
            return way.join(rest);
        }
        way.push("..");
    }
    file.to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_from_a_directory_to_a_file() {
        let from = |here: &str| path_from(Path::new(here), Path::new("/m/.zarrfs/stats"));
        for (here, way) in [
            ("/m", ".zarrfs/stats"),
            ("/m/a/b", "../../.zarrfs/stats"),
            ("/m/.zarrfs", "stats"),
        ] {
            assert_eq!(from(here), Path::new(way), "{here}");
        }
    }
}
