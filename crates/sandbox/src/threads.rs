//! Landlock for all threads of a process. Before version 8 the kernel restricts the calling thread
//! alone, and threads that it starts later. The threads of pools and of the runtime exist before
//! the store is known to be usable, so each is interrupted by a signal and restricts itself, as
//! libpsx does.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Result};

/// Maximum time in which a thread handles the signal.
const SIGNAL_TIME_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two looks at a thread.
const THREAD_POLL_PAUSE: Duration = Duration::from_micros(20);

/// Flag of landlock_create_ruleset(2) that asks for the version.
const VERSION: libc::c_uint = 1;

/// The rules for [`restrict_thread`].
static RULESET: AtomicI32 = AtomicI32::new(-1);

/// The errno of [`restrict_thread`], or 0.
static OUTCOME: AtomicI32 = AtomicI32::new(0);

/// The thread that was restricted last.
static RESTRICTED: AtomicI32 = AtomicI32::new(0);

/// Returns the version of Landlock that the kernel has and permits, or 0.
pub fn landlock_version() -> i32 {
    // SAFETY: the call reads no memory and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            VERSION,
        )
    };
    i32::try_from(version).unwrap_or(0).max(0)
}

/// Restricts all threads of the process, the calling one last.
///
/// # Errors
///
/// ETIMEDOUT if a thread does not handle the signal, as one that waits for a disk without an end.
pub fn restrict_all(ruleset: BorrowedFd) -> Result<()> {
    RULESET.store(ruleset.as_raw_fd(), Ordering::SeqCst);
    // no other part of the program uses this signal. It is delivered whatever the limit of pending
    // ones, unlike those for real time, and does nothing if it comes late
    let signal = libc::SIGURG;
    // SAFETY: `restrict_thread` makes system calls and changes atomic numbers, and keeps errno. It
    // allocates and locks nothing.
    let handler = unsafe { signal_hook::low_level::register(signal, restrict_thread) }?;
    let restricted = interrupt_others(signal);
    signal_hook::low_level::unregister(handler);
    restricted?;
    restrict_thread();
    outcome()
}

/// Makes all threads but the calling one restrict themselves.
fn interrupt_others(signal: i32) -> Result<()> {
    let own = own_number();
    let mut done = BTreeSet::from([own]);
    let mut complete_lists = 0;
    // a thread that is started meanwhile has the rights of the thread that starts it. Two complete
    // lists without a new thread: one may lack a thread if another ends while it is made.
    while complete_lists < 2 {
        complete_lists += 1;
        for thread in threads()? {
            if done.insert(thread) {
                complete_lists = 0;
                interrupt(thread, signal)?;
            }
        }
    }
    Ok(())
}

/// Returns the number of the calling thread. glibc 2.17 has no function for it.
fn own_number() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns the numbers of all threads.
fn threads() -> Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc/self/task").map_err(Error::from)?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// Makes a thread restrict itself, and waits until it has done so or has ended.
fn interrupt(thread: i32, signal: i32) -> Result<()> {
    let start = Instant::now();
    let mut is_sent = false;
    while !is_sent || RESTRICTED.load(Ordering::SeqCst) != thread {
        // signal 0 only asks whether the thread exists
        let signal = if is_sent { 0 } else { signal };
        // SAFETY: the call takes numbers alone.
        let answer = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
        let errno = match answer {
            0 => 0,
            _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        };
        match errno {
            0 => is_sent = true,
            libc::ESRCH => return Ok(()),
            _ => return Err(Error::system(errno).context("a thread can't be restricted")),
        }
        if start.elapsed() > SIGNAL_TIME_LIMIT {
            let why = "a thread waits and can't be restricted";
            return Err(Error::system(libc::ETIMEDOUT).context(why));
        }
        std::thread::sleep(THREAD_POLL_PAUSE);
    }
    outcome()
}

/// Returns the error of the thread that was restricted last.
fn outcome() -> Result<()> {
    match OUTCOME.load(Ordering::SeqCst) {
        0 => Ok(()),
        errno => Err(Error::system(errno).context("Landlock")),
    }
}

/// Restricts the calling thread, which may be in the middle of anything.
fn restrict_thread() {
    // SAFETY: the calls take numbers alone; the pointer is that of this thread's errno.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let flags: libc::c_uint = 0;
        let failed = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::syscall(
                libc::SYS_landlock_restrict_self,
                RULESET.load(Ordering::SeqCst),
                flags,
            ) != 0;
        OUTCOME.store(if failed { *errno } else { 0 }, Ordering::SeqCst);
        RESTRICTED.store(own_number(), Ordering::SeqCst);
        *errno = before;
    }
}
