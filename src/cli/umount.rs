//! `zarrfs umount`: unmounts, and waits until the daemon is gone.

use super::Failure;
use crate::error::lines;
use crate::fs::tree::{CONTROL, SYNC};
use crate::fuse::{Manner, unmount_path};
use crate::util::json::{self, Value};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Long enough for a daemon to end; a hung one is not waited for.
const WAIT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// How long the mount may take to name its daemon.
const PATIENCE: Duration = Duration::from_secs(3);

/// What `umount` takes.
#[derive(Args)]
pub struct UmountArgs {
    /// Where stores are mounted
    #[arg(required = true)]
    mountpoints: Vec<PathBuf>,
    /// Unmount also while in use: it goes when its last file is closed
    #[arg(short, long)]
    lazy: bool,
    /// End the mount at once: requests under way fail, and what is not stored yet may be lost
    #[arg(short, long)]
    force: bool,
}

/// Runs the verb: every mountpoint, also after one has failed.
pub fn run(args: &UmountArgs) -> Result<(), Failure> {
    let manner = match (args.force, args.lazy) {
        (true, _) => Manner::Forced,
        (false, true) => Manner::Lazy,
        (false, false) => Manner::Unused,
    };
    let mut result = Ok(());
    for path in &args.mountpoints {
        // the others are for mounts that hang, too: they must not touch them
        let daemon = if manner == Manner::Unused { daemon(path) } else { None };
        if daemon.is_some()
            && let Err(e) = store_all(path)
        {
            let _ = writeln!(std::io::stderr(), "zarrfs: {}: still mounted: {}", path.display(), lines(&e.message));
            result = Err(Failure::new(1, ""));
            continue;
        }
        if let Err(e) = unmount_path(path, manner) {
            if result.is_err() {
                let _ = writeln!(std::io::stderr(), "zarrfs: {e}");
            } else {
                result = Err(Failure::from(e));
            }
            continue;
        }
        if let Some(daemon) = daemon {
            let _ = poll(&mut [PollFd::new(&daemon, PollFlags::IN)], Some(&WAIT));
        }
    }
    result
}

/// Has a mount store everything that was written. An error names what could not be stored; a mount that is gone, hangs or
/// is none of ours is no error here.
fn store_all(mountpoint: &Path) -> Result<(), Failure> {
    match std::fs::read_to_string(mountpoint.join(CONTROL).join(SYNC)) {
        Ok(said) if !said.is_empty() => Err(Failure::new(1, said.trim_end())),
        _ => Ok(()),
    }
}

/// The daemon behind a mount, as its control file names it; None where it can't be told, or not soon.
fn daemon(mountpoint: &Path) -> Option<OwnedFd> {
    let file = mountpoint.join(CONTROL).join("stats.json");
    let (answer, wait) = std::sync::mpsc::channel();
    std::thread::Builder::new().spawn(move || answer.send(std::fs::read(file))).ok()?;
    let stats = json::parse(&wait.recv_timeout(PATIENCE).ok()?.ok()?).ok()?;
    let pid = stats.get("pid").and_then(Value::as_i64).and_then(|pid| Pid::from_raw(pid as i32))?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
