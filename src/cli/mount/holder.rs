//! The process that *holds* a mount: it keeps the connection to the kernel open, starts the daemon,
//! and a successor when the daemon is killed or another program takes over. It has neither a store
//! nor a cache, and its only socket takes orders of `zarrfs upgrade`. It must not know how a mount
//! is made or served: daemons pass the connection on, and what their successors need stands in
//! memory (`crates/outlive`) and in a spill file that it keeps.
//!
//! * A request that a daemon has taken and not answered belongs to the connection. The kernel sends
//!   it again when this process asks for it, after the last thread of the daemon has stopped taking
//!   requests, and before the successor takes the first one.
//! * A thread of a daemon that makes the kernel drop pages may wait for a request that the daemon
//!   has taken. It does not die before the successor has answered. The guard of the daemon writes
//!   into a pipe that the daemon has begun to end.
//! * Killing this process ends the mount: the daemon stores everything.

use super::handover::{HandOverOrder, OrderSocket};
use super::held::{Held, KeptFiles, split_text};
use super::message::Message;
use super::plan::MountPlan;
use crate::cli::child_process::{ChildProcess, PassedSignals, WaitEnd, last_error};
use crate::cli::location::StoreLocation;
use crate::cli::mountpoint::{self, MadeDirectories};
use crate::cli::{CommandFailure, CommandResult};
use crate::fuse::{Mountpoint, receive, send, socket_pair};
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};
use signal_hook::consts::SIGKILL;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};
use zarrfs_base::error::Error;
use zarrfs_base::signals::{ENDING, SIGNALED};
use zarrfs_outlive::create_memory;

/// Time within which the deaths of daemons are counted.
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

/// Time before another daemon is started, if one could not start.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// Maximum time until the threads of a killed daemon have stopped taking requests.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Maximum time until a program that takes over answers. Requests wait for as long.
const HANDOVER_LIMIT: Duration = Duration::from_secs(20);

/// What this process is to do.
pub enum MountRole<R> {
    /// Serve the mount without a holder, for this reason, and then call the function.
    Alone(&'static str, R),
    /// Serve the mount as the daemon of a holder.
    Daemon(Held),
    /// End: the mount has ended.
    Ended,
}

/// Returns why a mount does not outlive its daemon; `None` if it does.
fn why_alone(plan: &MountPlan) -> Option<&'static str> {
    if plan.args.no_outlive {
        return Some("--no-outlive");
    }
    if matches!(plan.args.store, StoreLocation::Memory) {
        return Some("the store is in the memory of the daemon");
    }
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let version = (number().unwrap_or_default(), number().unwrap_or_default());
    (version < RESENDING).then_some("the kernel sends no request again before Linux 6.9")
}

/// The version of Linux that first sends requests again.
const RESENDING: (u32, u32) = (6, 9);

/// Holds a mount, and calls `ready` once it answers. Returns in this process when the mount has
/// ended, and in each daemon when it begins. This process must have one thread.
pub fn hold<R: FnOnce() -> CommandResult>(
    plan: &MountPlan,
    ready: R,
) -> CommandResult<MountRole<R>> {
    if let Some(held) = Held::from_environment()? {
        return Ok(MountRole::Daemon(held));
    }
    if let Some(why) = why_alone(plan) {
        return Ok(MountRole::Alone(why, ready));
    }
    let Ok(memory) = create_memory() else {
        return Ok(MountRole::Alone(
            "the system gives no memory for the journal",
            ready,
        ));
    };
    let signals = PassedSignals::block().map_err(Error::from)?;
    let mut made = MadeDirectories::default();
    if plan.makes_mountpoint {
        made = mountpoint::make(plan.path)?;
    }
    let (ends, deaths) = pipe_with(PipeFlags::CLOEXEC).map_err(Error::from)?;
    let kept = KeptFiles {
        memory,
        deaths,
        spill: None,
    };
    let mut holder = Holder {
        plan,
        directory: std::env::current_dir().ok(),
        made,
        kept,
        signals,
        daemon: None,
        deaths: ends,
        unreaped: Vec::new(),
        mount: None,
        killed: VecDeque::new(),
        orders: None,
        upgrade: None,
        program: None,
        failure: None,
        signaled: None,
        is_ready: false,
        is_serving: false,
        is_ending: false,
    };
    let ended = holder.run(ready);
    if ended.is_err() {
        holder.end_daemon();
    }
    Ok(match ended? {
        Some(held) => MountRole::Daemon(Held {
            made: holder.made,
            ..held
        }),
        None => MountRole::Ended,
    })
}

/// A running daemon.
struct Daemon {
    process: ChildProcess,
    link: OwnedFd,
}

impl Daemon {
    fn has_message(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(recv(&self.link, &mut byte, flags), Ok((1.., _)))
    }
}

/// An order of `zarrfs upgrade` that is carried out.
struct Upgrade {
    order: HandOverOrder,
    /// The program that takes over, once the former daemon has ended.
    takeover: Option<Takeover>,
}

struct Takeover {
    /// The program before.
    former: Option<PathBuf>,
    /// When the new one must answer; `None` if it has missed that time.
    end: Option<Instant>,
}

struct Holder<'a> {
    plan: &'a MountPlan<'a>,
    /// The working directory in which the program was started.
    directory: Option<PathBuf>,
    /// The mountpoint and directories above it that were made.
    made: MadeDirectories,
    /// What each daemon gets. They stay open as long as this process.
    kept: KeptFiles,
    signals: PassedSignals,
    daemon: Option<Daemon>,
    /// The pipe for the numbers of daemons that end.
    deaths: OwnedFd,
    /// Daemons that were killed, and wait in the kernel.
    unreaped: Vec<ChildProcess>,
    /// The mount, as the first daemon has passed it on before it answered the first request.
    mount: Option<Mountpoint>,
    /// When daemons were killed.
    killed: VecDeque<Instant>,
    /// Takes orders of `zarrfs upgrade`.
    orders: Option<OrderSocket>,
    /// The order that is carried out.
    upgrade: Option<Upgrade>,
    /// The program of daemons; `None` for this one.
    program: Option<PathBuf>,
    /// Why the latest daemon could not serve.
    failure: Option<String>,
    /// The exit code of a daemon that a signal has ended which this process passes on.
    signaled: Option<i32>,
    /// Whether the mount has answered.
    is_ready: bool,
    /// Whether it has answered by the present daemon.
    is_serving: bool,
    /// Whether the mount has ended.
    is_ending: bool,
}

impl Holder<'_> {
    /// Starts daemons, and waits. Returns the connection in each daemon, and nothing in this
    /// process once the mount has ended.
    fn run(&mut self, ready: impl FnOnce() -> CommandResult) -> CommandResult<Option<Held>> {
        let mut ready = Some(ready);
        if let Some(held) = self.start("")? {
            return Ok(Some(held));
        }
        while let Some(daemon) = &self.daemon {
            let mut watched = vec![
                daemon.process.pidfd.as_fd(),
                daemon.link.as_fd(),
                self.deaths.as_fd(),
            ];
            // one order at a time
            let orders = self.orders.as_ref().filter(|_| self.upgrade.is_none());
            watched.extend(orders.map(OrderSocket::as_fd));
            let death = match self.signals.wait_until(&watched, self.takeover_end()) {
                WaitEnd::Signal(signal, _) => {
                    daemon.process.send(signal);
                    continue;
                }
                WaitEnd::TimedOut => {
                    self.failure = Some(format!("no answer after {HANDOVER_LIMIT:?}"));
                    daemon.process.send(SIGKILL);
                    let takeover = self
                        .upgrade
                        .as_mut()
                        .and_then(|upgrade| upgrade.takeover.as_mut());
                    if let Some(takeover) = takeover {
                        takeover.end = None;
                    }
                    continue;
                }
                WaitEnd::Readable(0) => match self.reap(&mut ready)? {
                    // a successor that can't start has told the log why
                    DaemonEnd::Exited(code) if self.is_replaced() => {
                        sleep(RESTART_PAUSE);
                        format!("has ended with code {code}")
                    }
                    DaemonEnd::Exited(code) => return exit_result(code).map(|()| None),
                    DaemonEnd::Killed(signal) => {
                        self.signaled = ENDING.contains(&signal).then_some(SIGNALED + signal);
                        format!("was killed (signal {signal})")
                    }
                },
                WaitEnd::Readable(1) => {
                    self.take_message(&mut ready)?;
                    continue;
                }
                WaitEnd::Readable(2) => match self.take_death(&mut ready)? {
                    Some(death) => death,
                    None => continue,
                },
                WaitEnd::Readable(_) => {
                    let order = self.orders.as_ref().and_then(OrderSocket::take);
                    if let Some(order) = order {
                        let takeover = None;
                        self.upgrade = Some(Upgrade { order, takeover });
                        self.tell_daemon(Message::Pause);
                    }
                    continue;
                }
            };
            if let Some(code) = self.signaled.take().filter(|_| !self.is_ready) {
                // a signal that was passed on, as it ends any program
                return Err(CommandFailure::of_process(code));
            }
            if self.mount.is_none() || self.is_ending {
                let failure = format!("the daemon {death}: what was not stored is lost");
                return Err(CommandFailure::failed(failure));
            }
            if let Some(held) = self.replace(&death)? {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// Returns when a program that takes over must answer.
    fn takeover_end(&self) -> Option<Instant> {
        self.upgrade.as_ref()?.takeover.as_ref()?.end
    }

    /// Has a daemon end the mount that still serves it, and waits for its end: it would be without
    /// this process, which `zarrfs run` knows, and a watcher spares.
    fn end_daemon(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            drop(daemon.link);
            daemon.process.wait();
        }
    }

    /// Returns whether a daemon that has ended by itself gets a successor: it could not begin.
    fn is_replaced(&self) -> bool {
        self.is_ready && !self.is_serving
    }

    /// Takes a message of the daemon.
    fn take_message(
        &mut self,
        ready: &mut Option<impl FnOnce() -> CommandResult>,
    ) -> CommandResult {
        let Some(daemon) = &self.daemon else {
            return Ok(());
        };
        let (bytes, files) = receive(daemon.link.as_fd()).unwrap_or_default();
        let Some((kind, rest)) = bytes.split_first() else {
            // the daemon has closed it: its end follows
            sleep(Duration::from_millis(1));
            return Ok(());
        };
        let text = String::from_utf8_lossy(rest).into_owned();
        match Message::of_byte(*kind) {
            Some(Message::Mounted) => {
                self.mount = Mountpoint::from_message(split_text(rest).1, files);
            }
            Some(Message::Spill) => self.kept.spill = files.into_iter().next(),
            Some(Message::Ready) => {
                (self.is_ready, self.is_serving) = (true, true);
                let is_upgraded = |upgrade: &Upgrade| upgrade.takeover.is_some();
                if self.upgrade.as_ref().is_some_and(is_upgraded) {
                    self.end_upgrade(Ok(()));
                }
                if let Some(ready) = ready.take() {
                    self.orders = OrderSocket::open().ok();
                    // the daemon ends when it finds that this process has ended
                    ready()?;
                }
            }
            Some(Message::Paused) if self.upgrade.is_some() => daemon.process.send(SIGKILL),
            Some(Message::Paused) => self.tell_daemon(Message::Resume),
            Some(Message::Refused) => self.end_upgrade(Err(text)),
            Some(Message::Failed) => self.failure = Some(text),
            Some(Message::Ending) => self.is_ending = true,
            _ => {}
        }
        Ok(())
    }

    fn tell_daemon(&self, message: Message) {
        if let Some(daemon) = &self.daemon {
            // it may have ended
            let _ = send(daemon.link.as_fd(), &[message as u8], &[]);
        }
    }

    fn end_upgrade(&mut self, outcome: Result<(), String>) {
        if let Some(upgrade) = self.upgrade.take() {
            upgrade.order.answer(outcome);
        }
    }

    /// Takes the number of a daemon whose guard says that it ends. Returns how it has ended, if a
    /// thread of it waits in the kernel, so that it can't be reaped.
    fn take_death(
        &mut self,
        ready: &mut Option<impl FnOnce() -> CommandResult>,
    ) -> CommandResult<Option<String>> {
        let mut said = [0; 256];
        let length = rustix::io::read(&self.deaths, &mut said).unwrap_or_default();
        let Some(daemon) = &self.daemon else {
            return Ok(None);
        };
        let number = daemon.process.pid.as_raw_nonzero().to_string();
        let mut numbers = said[..length].split(|byte| *byte == b'\n');
        let is_current = numbers.any(|said| said == number.as_bytes());
        if !is_current || self.is_ending || !self.has_stopped() {
            return Ok(None);
        }
        let left = self.take_last_messages(ready)?;
        self.unreaped.extend(left.map(|daemon| daemon.process));
        Ok(Some("was killed".to_string()))
    }
}

/// Returns a number as in "3rd".
fn ordinal(number: usize) -> String {
    let end = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}

/// How a daemon has ended.
enum DaemonEnd {
    Exited(i32),
    Killed(i32),
}

impl Holder<'_> {
    /// Starts a daemon, because of `why` if it is a successor. Returns its connection in the new
    /// process.
    fn start(&mut self, why: &str) -> CommandResult<Option<Held>> {
        let failed = |e| CommandFailure::from(Error::from(e).context("can't start the daemon"));
        let (ours, theirs) = socket_pair().map_err(failed)?;
        if let Some((mount, files)) = self.mount.as_ref().and_then(Mountpoint::to_message) {
            let kind = [Message::Mounted as u8];
            let message = [&kind, why.as_bytes(), &[0], mount.as_slice()].concat();
            send(ours.as_fd(), &message, &files).map_err(failed)?;
        }
        // SAFETY: this process has one thread, so the child may do whatever this process may.
        match unsafe { libc::fork() } {
            -1 => Err(failed(last_error())),
            0 => {
                drop(ours);
                // a successor takes them once it has handlers: a signal to the mount must not end
                // it
                if self.mount.is_none() {
                    self.signals.unblock();
                }
                // signals of a terminal come from this process alone, once
                let _ = rustix::process::setpgid(None, None);
                let kept = self.kept.try_clone()?;
                if self.mount.is_none() {
                    return Ok(Some(Held::new(theirs, kept)));
                }
                self.return_to_directory();
                if let Some(program) = &self.program {
                    Held::replace_process(theirs, &kept, program);
                    std::process::exit(1);
                }
                Ok(Some(Held::receive(theirs, kept)?))
            }
            child => {
                self.is_serving = false;
                self.daemon = Some(Daemon {
                    process: ChildProcess::new(child).map_err(failed)?,
                    link: ours,
                });
                Ok(None)
            }
        }
    }

    /// Returns to the directory in which the program was started, for relative paths, unless it
    /// lies in the mount, which does not answer yet.
    fn return_to_directory(&self) {
        let places = self.mount.as_ref().map(Mountpoint::places);
        let is_in_mount = |directory: &PathBuf| {
            let mut places = places.iter().flatten().flatten();
            places.any(|place| directory.starts_with(place))
        };
        let directory = self.directory.as_ref();
        if let Some(directory) = directory.filter(|directory| !is_in_mount(directory)) {
            // a path that needs it can't be opened
            let _ = std::env::set_current_dir(directory);
        }
    }

    /// Chooses the program of the successor of a daemon that has ended. Returns why the daemon has,
    /// and whether it counts as a death.
    fn choose_program(&mut self, death: &str) -> (String, bool) {
        let failure = self.failure.take();
        let Some(upgrade) = &mut self.upgrade else {
            return (failure.unwrap_or_else(|| death.to_string()), true);
        };
        let Some(takeover) = upgrade.takeover.take() else {
            let program = upgrade.order.program.clone();
            let why = format!("hands over to {}", program.display());
            upgrade.takeover = Some(Takeover {
                former: self.program.replace(program),
                end: Some(Instant::now() + HANDOVER_LIMIT),
            });
            return (why, false);
        };
        // it could not take over: the former program does
        self.program = takeover.former;
        let why = failure.unwrap_or_else(|| format!("the new program {death}"));
        self.end_upgrade(Err(why.clone()));
        (format!("can't hand over ({why})"), false)
    }

    /// Starts a successor of a daemon that has ended. Returns its connection in the new process.
    fn replace(&mut self, death: &str) -> CommandResult<Option<Held>> {
        let (death, is_death) = self.choose_program(death);
        let now = Instant::now();
        if is_death {
            self.killed.push_back(now);
        }
        self.killed
            .retain(|at| now.duration_since(*at) < DEATHS_WITHIN);
        let limit = self.plan.args.restarts;
        if self.killed.len() > limit as usize {
            let why = format!(
                "the daemon {death}, for the {} time in a minute: the mount ends; what was not stored is lost",
                ordinal(self.killed.len())
            );
            return Err(self.give_up(&why));
        }
        self.unreaped.retain(|daemon| !is_reaped(daemon));
        let Some(mount) = &self.mount else {
            return Err(self.give_up("the mount was not passed on"));
        };
        if let Err(e) = mount.resend_unanswered() {
            // the mount has ended, or its connection was aborted
            let why = format!("the daemon {death}: {e}");
            return Err(self.give_up(&why));
        }
        self.start(&format!("the daemon {death}"))
    }

    /// Ends the mount as a daemon without a holder does, and returns the failure.
    fn give_up(&self, why: &str) -> CommandFailure {
        if let Some(mount) = &self.mount {
            // where the kernel's control files are missing, the end of this process ends it
            mount.abort();
        }
        if self.plan.args.log.start(self.plan.path).is_ok() {
            log::error!("{why}");
        }
        CommandFailure::failed(why)
    }

    /// Takes the last messages of a daemon that has ended, and returns it.
    fn take_last_messages(
        &mut self,
        ready: &mut Option<impl FnOnce() -> CommandResult>,
    ) -> CommandResult<Option<Daemon>> {
        while self.daemon.as_ref().is_some_and(Daemon::has_message) {
            self.take_message(ready)?;
        }
        Ok(self.daemon.take())
    }

    /// Returns how a daemon has ended, after its last messages.
    fn reap(
        &mut self,
        ready: &mut Option<impl FnOnce() -> CommandResult>,
    ) -> CommandResult<DaemonEnd> {
        let daemon = self.take_last_messages(ready)?;
        let status = daemon.and_then(|daemon| {
            let id = WaitId::PidFd(daemon.process.pidfd.as_fd());
            waitid(id, WaitIdOptions::EXITED).ok().flatten()
        });
        Ok(end_of(status))
    }

    /// Waits until the threads of a daemon that ends take no requests any more. Returns false if
    /// the daemon can be reaped, or goes on.
    fn has_stopped(&self) -> bool {
        let Some(daemon) = &self.daemon else {
            return false;
        };
        let begun = Instant::now();
        while begun.elapsed() < STOP_LIMIT {
            let id = WaitId::PidFd(daemon.process.pidfd.as_fd());
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !matches!(waitid(id, options), Ok(None)) {
                return false;
            }
            let pid = daemon.process.pid.as_raw_nonzero();
            if begun.elapsed() > REAP_PATIENCE && threads_are_stuck(pid.get()) {
                return true;
            }
            sleep(Duration::from_millis(2));
        }
        false
    }
}

/// Time in which a killed daemon usually ends.
const REAP_PATIENCE: Duration = Duration::from_millis(50);

/// Returns whether each thread of a process has ended or waits in the kernel without taking
/// signals. Such threads take no request.
fn threads_are_stuck(pid: i32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // the name in parentheses may hold anything; the state follows
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| "DZX".contains(state))
    })
}

fn is_reaped(daemon: &ChildProcess) -> bool {
    let id = WaitId::PidFd(daemon.pidfd.as_fd());
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    !matches!(waitid(id, options), Ok(None))
}

fn end_of(status: Option<WaitIdStatus>) -> DaemonEnd {
    match status {
        Some(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => DaemonEnd::Exited(code),
            (None, signal) => DaemonEnd::Killed(signal.unwrap_or(SIGKILL)),
        },
        None => DaemonEnd::Killed(SIGKILL),
    }
}

/// Returns the result of a daemon that has said itself why it failed.
fn exit_result(code: i32) -> CommandResult {
    match code {
        0 => Ok(()),
        code => Err(CommandFailure::of_process(code)),
    }
}
