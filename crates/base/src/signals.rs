//! The effects of signals that all verbs share. A signal that ends a process by default is one of
//! four kinds: it asks for an orderly end ([`ENDING`], and [`SIGXCPU`] of all but a mount), has a
//! meaning of its own for a verb, means nothing to zarrfs ([`disregard_meaningless`]), or keeps its
//! default effect: SIGKILL, and the faults of a program, such as SIGSEGV and SIGABRT.
//!
//! [`SIGXCPU`]: libc::SIGXCPU

use std::mem::MaybeUninit;

/// Signals that ask a process to end. SIGALRM and SIGVTALRM come from timers that a caller has set
/// before it started zarrfs, as a time limit.
pub const ENDING: [i32; 7] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPWR,
];

/// Signals that mean nothing to zarrfs, beside those for real time. SIGXFSZ accompanies a write
/// beyond the limit of file sizes, which then fails with EFBIG. Rust ignores SIGPIPE.
const MEANINGLESS: [i32; 4] = [libc::SIGXFSZ, libc::SIGIO, libc::SIGPROF, libc::SIGSTKFLT];

/// What a shell adds to the number of the signal that ended a program, in its exit code.
pub const SIGNALED: i32 = 128;

/// Returns the signals that mean nothing to zarrfs.
fn meaningless() -> impl Iterator<Item = i32> {
    let for_real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    MEANINGLESS.into_iter().chain(for_real_time)
}

/// Keeps signals that mean nothing from ending this process, and lets it wait for its children even
/// if its caller ignores SIGCHLD. Each process calls this function first.
pub fn disregard_meaningless() {
    disregard(meaningless());
    // SAFETY: the call sets the default effect of a signal, and takes numbers alone.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Keeps signals from ending this process. A handler that does nothing catches them, since a
/// program that this process runs would inherit that they are ignored. What the caller ignores, as
/// nohup(1) does with SIGHUP, stays ignored in both.
pub fn disregard(signals: impl IntoIterator<Item = i32>) {
    for signal in signals {
        if is_ignored(signal) {
            continue;
        }
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: every field of the struct may be zero. The call reads the struct alone, and the
        // handler does nothing. The kernel refuses a signal that can't be caught.
        unsafe {
            let action = action.assume_init_mut();
            action.sa_sigaction = do_nothing as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, action, std::ptr::null_mut());
        }
    }
}

extern "C" fn do_nothing(_: i32) {}

/// Returns whether this process ignores a signal.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call writes to the one struct given, which is as large as it must be, and changes
    // no action.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: all bytes of the struct are initialized, zero where the call wrote nothing; every
    // field may be zero.
    known && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}
