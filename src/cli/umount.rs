//! `zarrfs umount`: unmounts, and waits until the daemon has ended.

use super::CommandFailure;
use crate::error::lines;
use crate::fs::tree::{CONTROL, SYNC};
use crate::fuse::{UnmountMode, unmount_path};
use crate::util::json::{self, Value};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum wait for the daemon to end.
const WAIT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Maximum wait for the mount to report the process of its daemon.
const PATIENCE: Duration = Duration::from_secs(3);

/// Arguments of `umount`.
#[derive(Args)]
pub struct UmountArgs {
    /// Directories where stores are mounted
    #[arg(required = true)]
    mountpoints: Vec<PathBuf>,
    /// Unmount also while in use; ends with its last open file
    #[arg(short, long)]
    lazy: bool,
    /// Unmount immediately; unstored writes may be lost
    ///
    /// Requests in flight fail.
    #[arg(short, long)]
    force: bool,
}

/// Runs the verb. Unmounts every mountpoint, also after one has failed.
pub fn run(args: &UmountArgs) -> Result<(), CommandFailure> {
    let mode = match (args.force, args.lazy) {
        (true, _) => UnmountMode::Forced,
        (false, true) => UnmountMode::Lazy,
        (false, false) => UnmountMode::Unused,
    };
    let mut result = Ok(());
    for path in &args.mountpoints {
        // --lazy and --force are also for mounts that hang, and must not read from them
        let stored = if mode == UnmountMode::Unused { store_all(path) } else { Ok(None) };
        let daemon = match stored {
            Ok(daemon) => daemon,
            Err(why) => {
                let (shown, why) = (path.display(), lines(&why));
                let advice = "run it again later, or with --force, which may lose the data";
                let _ = writeln!(std::io::stderr(), "error: {shown}: still mounted: {why}; {advice}");
                result = Err(CommandFailure::new(1, ""));
                continue;
            }
        };
        if let Err(e) = unmount_path(path, mode) {
            if result.is_err() {
                let _ = writeln!(std::io::stderr(), "error: {e}");
            } else {
                result = Err(CommandFailure::from(e));
            }
            continue;
        }
        if let Some(daemon) = daemon
            && poll(&mut [PollFd::new(&daemon, PollFlags::IN)], Some(&WAIT)) == Ok(0)
        {
            let shown = path.display();
            let _ = writeln!(std::io::stderr(), "error: {shown}: unmounted, but its daemon has not ended within 30 s");
            result = Err(CommandFailure::new(1, ""));
        }
    }
    result
}

/// Stores everything that was written to a mount, and returns the process of its daemon if this process can see it. A
/// mount that has ended, that does not answer, or that is not of zarrfs has nothing to store.
///
/// # Errors
///
/// The names of the chunks that could not be stored, or the reason why they are unknown.
fn store_all(mountpoint: &Path) -> Result<Option<OwnedFd>, String> {
    let control = mountpoint.join(CONTROL);
    let statistics = match read_in_time(control.join("stats.json")) {
        None => return Ok(None),
        Some(Err(e)) if is_no_mount(&e) => return Ok(None),
        Some(statistics) => statistics.map_err(|e| unknown(&e))?,
    };
    match std::fs::read_to_string(control.join(SYNC)) {
        Ok(said) if !said.is_empty() => Err(said.trim_end().to_string()),
        Err(e) if !is_no_mount(&e) => Err(unknown(&e)),
        _ => Ok(daemon(&statistics)),
    }
}

fn unknown(e: &std::io::Error) -> String {
    format!("can't know whether everything is stored: {e}")
}

/// Returns whether an error of a control file means that no daemon serves it.
fn is_no_mount(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENOTCONN | libc::ECONNABORTED))
}

/// Reads a file; returns `None` if that takes too long, because the mount hangs.
fn read_in_time(file: PathBuf) -> Option<std::io::Result<Vec<u8>>> {
    let (answer, wait) = std::sync::mpsc::channel();
    std::thread::Builder::new().spawn(move || answer.send(std::fs::read(file))).ok()?;
    wait.recv_timeout(PATIENCE).ok()
}

/// Returns the process of a mount's daemon from its statistics; `None` if it runs where this process cannot see it.
fn daemon(statistics: &[u8]) -> Option<OwnedFd> {
    let statistics = json::parse(statistics).ok()?;
    let pid = statistics.get("pid").and_then(Value::as_i64).and_then(|pid| Pid::from_raw(pid as i32))?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
