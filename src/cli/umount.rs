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
        // --lazy and --force are also for mounts that hang, and must not touch them
        let daemon = if mode == UnmountMode::Unused { daemon(path) } else { None };
        if daemon.is_some()
            && let Err(e) = store_all(path)
        {
            let (shown, why) = (path.display(), lines(&e.message));
            let advice = "run it again later, or with --force, which may lose the data";
            let _ = writeln!(std::io::stderr(), "error: {shown}: still mounted: {why}; {advice}");
            result = Err(CommandFailure::new(1, ""));
            continue;
        }
        if let Err(e) = unmount_path(path, mode) {
            if result.is_err() {
                let _ = writeln!(std::io::stderr(), "error: {e}");
            } else {
                result = Err(CommandFailure::from(e));
            }
            continue;
        }
        if let Some(daemon) = daemon {
            let _ = poll(&mut [PollFd::new(&daemon, PollFlags::IN)], Some(&WAIT));
        }
    }
    result
}

/// Stores everything that was written to a mount.
///
/// # Errors
///
/// Names the chunks that could not be stored. A mount that has ended, or that is not of zarrfs, is no error.
fn store_all(mountpoint: &Path) -> Result<(), CommandFailure> {
    match std::fs::read_to_string(mountpoint.join(CONTROL).join(SYNC)) {
        Ok(said) if !said.is_empty() => Err(CommandFailure::new(1, said.trim_end())),
        _ => Ok(()),
    }
}

/// Returns the process of a mount's daemon from its control file, or `None` if that can't be read in time.
fn daemon(mountpoint: &Path) -> Option<OwnedFd> {
    let file = mountpoint.join(CONTROL).join("stats.json");
    let (answer, wait) = std::sync::mpsc::channel();
    std::thread::Builder::new().spawn(move || answer.send(std::fs::read(file))).ok()?;
    let stats = json::parse(&wait.recv_timeout(PATIENCE).ok()?.ok()?).ok()?;
    let pid = stats.get("pid").and_then(Value::as_i64).and_then(|pid| Pid::from_raw(pid as i32))?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
