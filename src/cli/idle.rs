//! What ends a mount by itself: `--idle-timeout` and `--until-eof`. The former asks the file system
//! whether files are open and whether requests arrived, the latter waits for the end of standard
//! input. Every daemon of a mount does so: a successor finds the end of the input, too.

use super::{CommandFailure, CommandResult, stdio};
use crate::fs::Fs;
use crate::fuse::{Mountpoint, Unmounted};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
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

/// Checks that standard input is a pipe, which ends with the programs that have its other end.
///
/// # Errors
///
/// It is closed, or a file or device, which has ended already or never ends.
pub fn check_input() -> CommandResult {
    let input = fstat(stdio::input()?.as_fd())?;
    if matches!(
        FileType::from_raw_mode(input.st_mode),
        FileType::Fifo | FileType::Socket
    ) {
        return Ok(());
    }
    let why = "--until-eof: standard input is neither a pipe nor a socket; keep one open as long as the mount is used";
    Err(CommandFailure::wrong_use(why))
}

/// Starts a thread that waits for the end of standard input, and unmounts. A mount in use is
/// detached, and ends with its last open file.
pub fn unmount_with_input(fs: Arc<Fs>, mountpoint: Arc<Mountpoint>) -> CommandResult {
    start_thread("input", move || {
        wait_for_end();
        let shown = mountpoint.path().display();
        log::info!("{shown}: unmounting at the end of standard input");
        // a daemon before this one may have detached it
        while mountpoint.can_unmount() {
            match mountpoint.unmount() {
                Ok(Unmounted::Gone) => return,
                // a failure is on record, and storing is tried again at the end
                Ok(Unmounted::InUse) => drop(fs.change().store_all()),
                Ok(Unmounted::NotOnTop) => {
                    log::warn!("{shown}: something else is mounted over it; unmount that first")
                }
                Err(e) => log::error!("--until-eof: {shown}: {e}"),
            }
            thread::sleep(LONGEST_PAUSE);
        }
    })?;
    Ok(())
}

/// Waits until all other ends of the pipe at standard input are closed.
fn wait_for_end() {
    let Ok(mut input) = stdio::input() else {
        return;
    };
    loop {
        // the program may have made its pipe one that does not block
        let _ = poll(&mut [PollFd::new(&input.as_fd(), PollFlags::IN)], None);
        match input.read(&mut [0; 512]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return log::error!("--until-eof: standard input: {e}"),
        }
    }
}
