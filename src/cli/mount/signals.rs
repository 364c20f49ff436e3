//! The signals of a daemon, and the orders of `zarrfs run`: some change what a mount does, others
//! end it. This module must not know how a mount was made.

use crate::cli::logger;
use crate::cli::mountpoint::RemovableDirectories;
use crate::fs::Fs;
use crate::fs::tree::Audience;
use crate::fuse::{Mountpoint, Unmounted};
use signal_hook::consts::{SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
use signal_hook::iterator::Signals;
use std::ffi::c_int;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::pool::start_thread;
use zarrfs_base::signals::ENDING;

/// The name under which the control files show the level of the log.
pub const LOG_LEVEL: &str = "log_level";

/// Registers the signals that a daemon handles. The caller must do so before any thread starts: a
/// signal without its handler would leave the mount or its directory behind.
///
/// # Errors
///
/// The system refuses the handlers.
pub fn register() -> Result<Signals> {
    let handled = ENDING.into_iter().chain([SIGUSR1, SIGUSR2, SIGXCPU]);
    Signals::new(handled).map_err(Error::from)
}

/// Returns a signal for each order that `zarrfs run` sends to end the mount: a byte in the pipe. If
/// that process was killed, programs of its command may still have files open, and the mount ends
/// without them, as it does after two orders.
pub fn orders(mut pipe: File) -> impl Iterator<Item = c_int> {
    let mut missing = 2;
    std::iter::from_fn(move || {
        let is_sent = matches!(pipe.read(&mut [0]), Ok(1));
        if !is_sent && missing == 0 {
            return None;
        }
        missing = i32::max(missing - 1, 0);
        Some(SIGTERM)
    })
}

/// Ignores signals that end other mounts: a batch system sends them to each process of a job, and
/// the command may still write then.
pub fn ignore(fs: &Arc<Fs>, mut signals: Signals) {
    for signal in signals.forever() {
        if !is_carried_out(fs, signal) {
            log::info!("signal {signal}: ignored, the mount ends with the command");
        }
    }
}

/// Does what a signal asks of a mount that goes on: SIGHUP opens the log file again, SIGUSR1 and
/// SIGUSR2 change the level of the log, SIGXCPU stores everything. Returns false for other signals.
fn is_carried_out(fs: &Arc<Fs>, signal: c_int) -> bool {
    match signal {
        SIGHUP => logger::reopen(),
        SIGUSR1 | SIGUSR2 => {
            let level = logger::shown(logger::change_level(signal == SIGUSR1));
            fs.facts().set(LOG_LEVEL, level, Audience::Everyone);
        }
        SIGXCPU => store_before_kill(fs.clone()),
        _ => return false,
    }
    true
}

/// Stores everything on a thread: the kernel sends SIGXCPU once a second beyond the limit of
/// processor time, and SIGKILL at the hard limit.
fn store_before_kill(fs: Arc<Fs>) {
    static IS_STORING: AtomicBool = AtomicBool::new(false);
    log::warn!("the limit of processor time is reached (ulimit -t): everything written is stored");
    if IS_STORING.swap(true, Ordering::Relaxed) {
        return;
    }
    let started = start_thread("flush", move || {
        // a failure is on record, and close or fsync reports it
        let _ = fs.change().store_all();
        IS_STORING.store(false, Ordering::Relaxed);
    });
    if started.is_err() {
        IS_STORING.store(false, Ordering::Relaxed);
    }
}

/// Ends the mount when signals arrive.
pub struct SignalHandler {
    pub fs: Arc<Fs>,
    pub mountpoint: Arc<Mountpoint>,
    /// The mountpoint and directories above it that the process has made.
    pub made: RemovableDirectories,
    /// Set when the second signal ends requests.
    pub interrupted: Arc<AtomicBool>,
}

impl SignalHandler {
    /// Handles signals until the process ends. The first signal unmounts and stores everything; a
    /// mount in use ends with its last open file. The second signal ends requests in flight, and so
    /// does the first if this process can't unmount, since nothing else could end it. The third
    /// ends the process.
    pub fn run(self, signals: impl Iterator<Item = c_int>) {
        let mountpoint = &self.mountpoint;
        let shown = mountpoint.path().display();
        let mut waiting = false;
        let mut unmounted = false;
        for signal in signals {
            if is_carried_out(&self.fs, signal) {
                continue;
            }
            if mountpoint.aborted() {
                self.made.remove();
                logger::end();
                std::process::exit(1);
            }
            if waiting || !mountpoint.can_unmount() {
                log::info!("signal {signal}: ending {shown}, requests in flight fail");
                self.interrupted.store(waiting, Ordering::Relaxed);
                // without a mount the process ends by itself, and removes the mountpoint
                if !mountpoint.abort() && !unmounted {
                    // the kernel ends the connection with the process
                    end_when_stored(self.fs.clone(), self.made.clone(), i32::from(waiting));
                }
                continue;
            }
            log::info!("signal {signal}: unmounting {shown}");
            match mountpoint.unmount() {
                Ok(Unmounted::Gone) => unmounted = true,
                Ok(Unmounted::InUse) => {
                    waiting = true;
                    let fs = self.fs.clone();
                    // this thread must take the next signal; a failure is on record, and storing is
                    // tried again at the end
                    let _ = start_thread("flush", move || fs.change().store_all());
                    log::warn!(
                        "{shown} is in use: it ends when its files are closed, or with another signal"
                    );
                }
                Ok(Unmounted::NotOnTop) => {
                    log::warn!("{shown}: something else is mounted over it; unmount that first")
                }
                Err(e) => {
                    waiting = true;
                    log::error!("unmount {shown}: {e}; it ends with another signal")
                }
            }
        }
    }
}

/// Ends the process with `code` once all dirty chunks are stored. Returns at once, since the
/// calling thread must take the next signal.
fn end_when_stored(fs: Arc<Fs>, made: RemovableDirectories, code: i32) {
    let started = start_thread("flush", move || {
        let is_stored = fs.sync_at_end().is_ok();
        // the main thread may have unmounted
        made.remove();
        logger::end();
        std::process::exit(if is_stored { code } else { 1 })
    });
    if started.is_err() {
        std::process::exit(1);
    }
}
