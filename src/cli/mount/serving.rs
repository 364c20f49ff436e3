//! A mount that is served, until it ends. This module must not know how its store was opened.

use super::ServedArgs;
use super::held::{Held, HeldLink};
use super::opened::OpenedMount;
use super::plan::{MountPlan, failure};
use super::signals::{SignalHandler, ignore, orders};
use crate::cli::mountpoint::{MadeDirectories, warn_of_hidden_files};
use crate::cli::nesting::{self, MountSite};
use crate::cli::stats::listen::StatisticsListener;
use crate::cli::{CommandFailure, CommandResult, idle, leftovers};
use crate::fs::Fs;
use crate::fs::tree::Audience;
use crate::fuse::{MountRequest, Mountpoint, OutliveOptions, ServeOptions, Unmounted, serve};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use zarrfs_base::error::Result as SystemResult;
use zarrfs_base::pool::start_thread;
use zarrfs_store::Store;

/// Read-ahead in bytes, where the mount may set it. The kernel sends half of the requests that it
/// sends with its own read-ahead. A longer one would slow down maps that are read at random.
const READAHEAD: u64 = 256 << 10;

/// The thread that serves a mount. It ends with the mount.
type Session = JoinHandle<SystemResult<()>>;

/// A mount that is served.
pub struct ServingMount {
    fs: Arc<Fs>,
    mountpoint: Arc<Mountpoint>,
    session: Session,
    idle_timeout: Option<Duration>,
    until_eof: bool,
    listener: Option<StatisticsListener>,
    /// The store, if files that killed processes have left are removed from it.
    left_in: Option<Arc<dyn Store>>,
    /// Set when the second signal ends requests.
    interrupted: Arc<AtomicBool>,
    /// The connection to the process that holds the mount.
    link: Option<HeldLink>,
    /// Dropping this removes the mountpoint.
    _made: MadeDirectories,
}

impl ServingMount {
    /// Mounts, and starts to serve.
    pub fn start(mut opened: OpenedMount) -> CommandResult<Self> {
        let args = opened.plan.args;
        let read_only = opened.read_only;
        let mountpoint = match opened.inherited.take() {
            Some(mountpoint) => mountpoint,
            None => {
                warn_of_hidden_files(&opened.path, &args.store);
                make_mount(&opened.plan, opened.made.directory(), read_only)?
            }
        };
        let (session, mountpoint) = start_session(&mut opened, mountpoint)?;
        let OpenedMount {
            plan,
            held,
            listener,
            store,
            fs,
            mut signals,
            made,
            ..
        } = opened;
        let interrupted = Arc::new(AtomicBool::new(false));
        let handler = SignalHandler {
            fs: fs.clone(),
            mountpoint: mountpoint.clone(),
            made: made.removable(),
            interrupted: interrupted.clone(),
        };
        match plan.orders {
            None => start_thread("signals", move || handler.run(signals.forever())),
            Some(pipe) => {
                let fs = fs.clone();
                start_thread("orders", move || handler.run(orders(pipe)))
                    .and_then(|_| start_thread("signals", move || ignore(&fs, signals)))
            }
        }
        .inspect_err(|_| drop(mountpoint.unmount()))?;
        Ok(ServingMount {
            fs,
            mountpoint,
            session,
            idle_timeout: plan.idle_timeout,
            until_eof: plan.until_eof,
            listener,
            left_in: (!read_only && !args.stores).then_some(store),
            link: held.map(Held::link),
            interrupted,
            _made: made,
        })
    }

    /// Calls `ready`, and waits until the mount ends. Stores everything.
    pub fn wait(mut self, ready: impl FnOnce() -> CommandResult) -> CommandResult {
        let mut started = self.start_timers().and_then(|()| ready());
        if let Some(link) = self.link.as_ref().filter(|_| started.is_ok()) {
            started = link.begin(self.fs.clone(), self.mountpoint.clone());
        }
        match self.left_in.take() {
            Some(store) if started.is_ok() => leftovers::remove(store),
            _ => {}
        }
        if started.is_err() {
            if !self.mountpoint.can_unmount() {
                // the kernel ends the connection with the process
                return started.and(store_all(&self.fs));
            }
            let _ = self.mountpoint.unmount();
        }
        let ended = self.session.join();
        if let Some(link) = &self.link {
            link.end();
        }
        // an aborted connection leaves its mount behind
        let left = self.mountpoint.unmount();
        let stored = store_all(&self.fs);
        match ended.map_err(|_| CommandFailure::failed("the session ended by an internal error"))? {
            // the kernel also answers so if a signal or the last close after the unmount ends the
            // connection while a thread takes a request
            Err(e)
                if e.errno() == libc::ECONNABORTED && matches!(left, Ok(Unmounted::NotOnTop)) => {}
            ended => ended?,
        }
        if self.interrupted.load(Ordering::Relaxed) && stored.is_ok() {
            let why = "ended by a second signal: requests in flight failed, all that was written is stored";
            return Err(CommandFailure::failed(why));
        }
        started.and(stored)
    }

    /// Starts what ends the mount by itself, and the server of `--listen`. The mount answers: the
    /// handshake is done, and the kernel keeps requests until a thread takes them. A request to the
    /// own mount could not prove more, and would hang for ever if the process were killed
    /// meanwhile.
    fn start_timers(&mut self) -> CommandResult {
        if let Some(listener) = self.listener.take() {
            listener.serve(self.fs.clone())?;
        }
        if self.until_eof {
            idle::unmount_with_input(self.fs.clone(), self.mountpoint.clone())?;
        }
        match self.idle_timeout {
            Some(timeout) => idle::unmount_after(timeout, self.fs.clone(), self.mountpoint.clone()),
            None => Ok(()),
        }
    }
}

/// Mounts on `directory`, or on the path of the plan if it is `None`.
fn make_mount(
    plan: &MountPlan,
    directory: Option<BorrowedFd>,
    read_only: bool,
) -> CommandResult<Mountpoint> {
    let args = plan.args;
    let request = MountRequest {
        source: &args.store.absolute().to_string(),
        path: plan.path,
        directory,
        allow_other: args.allow_other,
        read_only,
        sync: args.sync,
        noexec: args.noexec,
        replace_stale: plan.replace_stale,
        is_in_own_namespace: plan.orders.is_some(),
    };
    Mountpoint::mount(&request).map_err(failure)
}

/// Enters the sandbox, and starts to serve a mount. Unmounts it after a failure.
fn start_session(
    opened: &mut OpenedMount,
    mut mountpoint: Mountpoint,
) -> CommandResult<(Session, Arc<Mountpoint>)> {
    let args = opened.plan.args;
    // check again: directories may have been renamed since the path was resolved, and mounts
    // propagate
    let is_inherited = mountpoint.is_inherited();
    let session = MountSite::of(&mountpoint)
        .and_then(|site| nesting::check(&opened.own, &site))
        .and_then(|()| {
            let fs = &opened.fs;
            let options = serve_options(args, opened.read_only);
            let held = opened.held.as_ref();
            let message = Held::mount_message(&mountpoint)?;
            let deaths = held.map(|held| held.kept.deaths.as_fd());
            let outlive = OutliveOptions {
                memory: held.map(|held| held.kept.memory.as_fd()),
                pause: held.map(|held| held.pause.clone()).unwrap_or_default(),
            };
            let before = |mountpoint: &mut Mountpoint| {
                set_readahead(args, mountpoint);
                let sandbox = &mut opened.sandbox;
                // not before: it would end a connection that another daemon serves
                args.sandbox
                    .start_guard(sandbox, &opened.needs, mountpoint, deaths)?;
                fs.facts()
                    .set("sandbox", &*sandbox.description, Audience::Everyone);
                sandbox.enter(mountpoint)?;
                if let Some(guard) = mountpoint.guard()
                    && let Err(e) = guard.wait_until_started()
                {
                    let why = "if the daemon is killed, its mount may hang until it is unmounted";
                    log::warn!("{e}; {why}");
                }
                // the handshake is recorded, so that a successor can serve the mount from now on
                if let Some(held) = held.filter(|_| !opened.is_successor) {
                    held.send_mount(message)?;
                }
                Ok(())
            };
            serve(fs.clone(), &mut mountpoint, options, outlive, before).map_err(|e| {
                match e.errno() {
                    // another daemon serves an inherited connection
                    libc::EBUSY if is_inherited => CommandFailure::mountpoint(e.to_string()),
                    _ => e.into(),
                }
            })
        })
        .inspect_err(|_| {
            // another successor may be able to serve it
            if !opened.is_successor {
                let _ = mountpoint.unmount();
            }
        })?;
    Ok((session, Arc::new(mountpoint)))
}

/// Sets the read-ahead of the kernel, which the handshake has limited.
fn set_readahead(args: &ServedArgs, mountpoint: &Mountpoint) {
    if let Err(e) = mountpoint.set_readahead(args.readahead.unwrap_or(READAHEAD))
        && args.readahead.is_some()
    {
        log::warn!("--readahead: {e}; using the kernel's default");
    }
}

/// Stores all dirty chunks, with several attempts: a full disk may get free space meanwhile.
fn store_all(fs: &Fs) -> CommandResult {
    // an error even if the bucket is gone: the data written to it are lost
    fs.sync_at_end()
        .map_err(|e| CommandFailure::failed(e.context("not stored, and lost").to_string()))
}

fn serve_options(args: &ServedArgs, read_only: bool) -> ServeOptions {
    ServeOptions {
        uid: args
            .uid
            .unwrap_or_else(|| rustix::process::getuid().as_raw()),
        gid: args
            .gid
            .unwrap_or_else(|| rustix::process::getgid().as_raw()),
        umask: args.umask.unwrap_or(0),
        read_only,
        threads: args.reading.memory.threads(),
    }
}
