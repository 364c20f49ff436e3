//! `--idle-timeout`: unmounts a mount that is not used. It asks the file system whether files are
//! open and whether requests arrived.

use super::CommandResult;
use crate::fs::Fs;
use crate::fuse::{Mountpoint, Unmounted};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use zarrfs_base::pool::start_thread;

/// Bounds of the time between two checks.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Starts a thread that unmounts when no file is open and no request has arrived for `timeout`. A
/// mount with dirty chunks that can't be stored stays, and so does one that is the working
/// directory of a process.
pub fn unmount_after(timeout: Duration, fs: Arc<Fs>, mountpoint: Arc<Mountpoint>) -> CommandResult {
    start_thread("idle", move || {
        let pause = (timeout / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        let mut requests = fs.tree().requests();
        let mut idle_since = Instant::now();
        loop {
            thread::sleep(pause);
            if fs.is_open() || fs.tree().requests() != requests {
                (requests, idle_since) = (fs.tree().requests(), Instant::now());
            } else if idle_since.elapsed() >= timeout && !is_kept(timeout, &fs, &mountpoint) {
                return;
            }
        }
    })?;
    Ok(())
}

/// Stores everything and unmounts. Returns whether the mount stays and must be checked again.
fn is_kept(timeout: Duration, fs: &Fs, mountpoint: &Mountpoint) -> bool {
    // a failure is on record; a loss is reported at the end
    if fs.change().store_all().is_err() {
        return true;
    }
    let shown = mountpoint.path().display();
    match mountpoint.unmount_unused() {
        Ok(Unmounted::Gone) => {
            log::info!("{shown}: unmounted after {timeout:?} without use");
            false
        }
        // the mount is a working directory, or another mount is in it or over it
        Ok(Unmounted::InUse | Unmounted::NotOnTop) => true,
        Err(e) => {
            log::error!("--idle-timeout: {shown}: {e}");
            false
        }
    }
}
