//! Child processes, and the signals that are passed on to them. This module must not know what they
//! do.

use super::failure::ExitCode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU};
use std::ffi::c_int;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Instant;
use zarrfs_base::signals::{ENDING, SIGNALED, is_ignored};

/// A child process, and a descriptor that can be read once it has ended.
pub struct ChildProcess {
    pub pid: Pid,
    pub pidfd: OwnedFd,
}

impl ChildProcess {
    pub fn new(pid: i32) -> rustix::io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(ChildProcess { pid, pidfd })
    }

    pub fn send(&self, signal: c_int) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // until this process waits for its child, no other process gets the number
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Waits for the end of the process. Returns its exit code as a shell does.
    pub fn wait(&self) -> u8 {
        let status = loop {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED) {
                Err(Errno::INTR) => {}
                ended => break ended.ok().flatten(),
            }
        };
        let code = status.and_then(|status| {
            let signal = status.terminating_signal().map(|signal| SIGNALED + signal);
            status.exit_status().or(signal)
        });
        code.and_then(|code| u8::try_from(code).ok())
            .unwrap_or(ExitCode::Failed as u8)
    }
}

/// Signals that are passed on to a child, beside [`ENDING`].
const PASSED_ON: [c_int; 3] = [SIGUSR1, SIGUSR2, SIGXCPU];

/// The end of a wait for a signal or a descriptor.
pub enum WaitEnd {
    /// A signal, and whether the terminal has sent it, to the child, too.
    Signal(c_int, bool),
    /// The descriptor at this index can be read.
    Readable(usize),
    /// The time is over.
    TimedOut,
}

/// The signals that are passed on to a child, in place of their usual effect.
pub struct PassedSignals {
    signals: File,
    /// The signals that the caller has blocked.
    pub blocked: libc::sigset_t,
}

impl PassedSignals {
    /// Blocks the signals in this process, which has one thread.
    pub fn block() -> rustix::io::Result<Self> {
        let (signals, blocked) = block_signals()?;
        Ok(PassedSignals { signals, blocked })
    }

    /// Unblocks the signals in a child process that has just begun.
    pub fn unblock(&self) {
        // SAFETY: the set lives longer than the call, which changes the mask of this thread alone.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.blocked, std::ptr::null_mut()) };
    }

    /// Unblocks the signals that this process has inherited as blocked. Threads inherit the mask.
    pub fn take_blocked() {
        // SAFETY: the set lives longer than the call, which changes the mask of this thread alone;
        // zeros are valid for its type.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in ENDING.into_iter().chain(PASSED_ON) {
                libc::sigaddset(&mut set, signal);
            }
            libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        }
    }

    /// Waits for a signal, or until one of the descriptors can be read.
    pub fn wait_for(&self, descriptors: &[BorrowedFd]) -> WaitEnd {
        self.wait_until(descriptors, None)
    }

    /// Waits as [`PassedSignals::wait_for`] does, at most until `end`.
    pub fn wait_until(&self, descriptors: &[BorrowedFd], end: Option<Instant>) -> WaitEnd {
        loop {
            let all = [&[self.signals.as_fd()], descriptors].concat();
            let mut polled: Vec<PollFd> = all
                .iter()
                .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
                .collect();
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut polled, left.as_ref()) {
                // an interrupted wait is repeated
                Err(_) => continue,
                Ok(0) => return WaitEnd::TimedOut,
                Ok(_) => {}
            }
            let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
            if ready.next() == Some(true) {
                if let Some(signal) = read_signal(&self.signals) {
                    return signal;
                }
            } else if let Some(index) = ready.position(|is_ready| is_ready) {
                return WaitEnd::Readable(index);
            }
        }
    }
}

/// Blocks the signals that are passed on. Returns a descriptor that gets them, and the signals that
/// were blocked before. Those that the caller ignores, as nohup(1) does, stay ignored.
fn block_signals() -> rustix::io::Result<(File, libc::sigset_t)> {
    // SAFETY: all pointers are to values on this stack, which live longer than the calls; zeros are
    // valid for these types. This thread, whose mask changes, is the only one.
    let (fd, blocked) = unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        let passed_on = ENDING.into_iter().chain(PASSED_ON);
        for signal in passed_on.filter(|signal| !is_ignored(*signal)) {
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, &mut blocked);
        (libc::signalfd(-1, &set, libc::SFD_CLOEXEC), blocked)
    };
    if fd == -1 {
        return Err(last_error());
    }
    // SAFETY: the descriptor was opened above, and has no other owner.
    let signals = unsafe { File::from_raw_fd(fd) };
    Ok((signals, blocked))
}

/// Reads a signal: the fields of signalfd(2), of four bytes each, begin with number, errno and
/// code.
fn read_signal(mut signals: &File) -> Option<WaitEnd> {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    signals.read_exact(&mut info).ok()?;
    let field = |at: usize| Some(i32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
    let signal = field(0)?;
    let code = field(8)?;
    // codes of processes are not positive; the kernel sends SIGALRM at the end of alarm(2)
    let is_of_terminal = code > 0 && [SIGHUP, SIGINT, SIGQUIT].contains(&signal);
    Some(WaitEnd::Signal(signal, is_of_terminal))
}

/// Returns the error of a call of the C library that has just failed.
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Closes all descriptors but the standard ones, in a process that uses no other.
pub fn close_all() {
    // SAFETY: the descriptors from 3 on have no owner that uses or closes them later.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
