//! `zarrfs umount`: unmounts, and waits until the daemon has ended.

use super::{CommandFailure, CommandResult};
use crate::fs::tree::SYNC;
use crate::fuse::{
    MountEntry, PATIENCE, UnmountMode, mount_of, read_control, read_statistics, unmount_path,
};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;
use zarrfs_base::error::Error;
use zarrfs_base::json;

/// Maximum wait for the daemon to end.
const WAIT: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

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
pub fn run(args: &UmountArgs) -> CommandResult {
    let mode = match (args.force, args.lazy) {
        (true, _) => UnmountMode::Forced,
        (false, true) => UnmountMode::Lazy,
        (false, false) => UnmountMode::Unused,
    };
    let mut result = Ok(());
    for path in &args.mountpoints {
        if let Err(failure) = unmount(path, mode) {
            failure.print(false);
            result = Err(CommandFailure::failed(""));
        }
    }
    result
}

fn unmount(path: &Path, mode: UnmountMode) -> CommandResult {
    let shown = path.display();
    // --lazy and --force are also for mounts that hang, and must not read from them
    let processes = if mode == UnmountMode::Unused {
        store_all(path).map_err(|why| CommandFailure::failed(format!("{shown}: {why}")))?
    } else {
        Vec::new()
    };
    unmount_path(path, mode)?;
    for process in processes {
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&WAIT)) == Ok(0) {
            let why = "unmounted, but its daemon has not ended within 30 s; another mount namespace, as of a container, may keep the mount";
            return Err(CommandFailure::failed(format!("{shown}: {why}")));
        }
    }
    Ok(())
}

/// Stores everything that was written to a mount, and returns its processes, the daemon first, if
/// this process can see them. A mount that has ended, or that is not of zarrfs, has nothing to
/// store.
///
/// # Errors
///
/// The reason why the mount stays, with the names of the chunks that could not be stored.
fn store_all(path: &Path) -> Result<Vec<OwnedFd>, String> {
    let Ok(Some(mount)) = mount_of(path) else {
        return Ok(Vec::new());
    };
    let statistics = match read_statistics(&mount) {
        Err(e) if is_no_mount(&e) => return Ok(Vec::new()),
        statistics => statistics.map_err(unknown)?,
    };
    match sync(&mount) {
        Ok(said) if !said.is_empty() => Err(stays(String::from_utf8_lossy(&said).trim_end())),
        Err(e) if !is_no_mount(&e) => Err(unknown(e)),
        _ => Ok(processes(&statistics)),
    }
}

fn stays(why: &str) -> String {
    format!("still mounted: {why}; run it again later, or with --force, which may lose the data")
}

/// Returns why a mount stays whose control file has failed.
fn unknown(e: Error) -> String {
    match e.errno() {
        libc::ETIMEDOUT => e.to_string(),
        _ => stays(&format!("can't know whether everything is stored: {e}")),
    }
}

/// Stores everything. Returns the names of the chunks that could not be stored. Waits as long as
/// the daemon answers.
fn sync(mount: &MountEntry) -> Result<Vec<u8>, Error> {
    let (answer, wait) = channel();
    let other = mount.clone();
    std::thread::Builder::new()
        .spawn(move || answer.send(read_control(&other, SYNC, Duration::MAX)))?;
    loop {
        match wait.recv_timeout(PATIENCE) {
            Ok(said) => return said,
            Err(_) => read_statistics(mount).map(drop)?,
        }
    }
}

/// Returns whether an error of a control file means that no daemon serves it.
fn is_no_mount(e: &Error) -> bool {
    [
        libc::ENOENT,
        libc::ENOTDIR,
        libc::ENOTCONN,
        libc::ECONNABORTED,
    ]
    .contains(&e.errno())
}

/// Returns the daemon of a mount and the process that holds it, which may remove the mountpoint, by
/// its statistics, except where this process cannot see them.
fn processes(statistics: &[u8]) -> Vec<OwnedFd> {
    let Ok(statistics) = json::parse(statistics) else {
        return Vec::new();
    };
    ["pid", "holder_pid"]
        .into_iter()
        .filter_map(|name| {
            let value = statistics.get(name)?;
            let pid = value.as_i64().or_else(|| value.as_str()?.parse().ok())?;
            pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()
        })
        .collect()
}
