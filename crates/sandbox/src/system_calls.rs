//! The system calls of a daemon that serves (seccomp). All others fail with EPERM: those that start
//! programs and processes, trace or signal others, change mounts, namespaces, users, modules, keys,
//! clocks or the machine, and interfaces that would evade the other rules, such as io_uring.
//!
//! The list has what the daemon, Rust's library, tokio and the C libraries may call for files,
//! memory, threads and sockets. The kernel answers a call that is permitted for any argument from a
//! bitmap, and does not run the filter for it.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use zarrfs_base::error::{Error, Result};

/// Files, memory, threads and time, on all architectures.
const PERMITTED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_chdir,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mkdirat,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pselect6,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat2,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendfile,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_sysinfo,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
    // connections that exist, those that `--listen` accepts, and the socket of the journal
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// The same under their former numbers.
#[cfg(target_arch = "x86_64")]
const FORMER: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(target_arch = "aarch64")]
const FORMER: &[libc::c_long] = &[libc::SYS_renameat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const FORMER: &[libc::c_long] = &[];

/// The requests of ioctl(2): of sockets and pipes, and whether a file is a terminal. Any other may
/// reach a driver, and TIOCSTI types into the terminal.
#[allow(clippy::unnecessary_cast)] // other numbers in other C libraries
const REQUESTS: [u64; 4] = [
    libc::FIONBIO as u64,
    libc::FIONREAD as u64,
    libc::FIOCLEX as u64,
    libc::TCGETS as u64,
];

/// Names of threads and of mappings. The C library sets those of its heap.
const PROCESS_REQUESTS: [u64; 3] = [
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_SET_VMA as u64,
];

/// The commands of fcntl(2) by which a file that becomes ready signals other processes: F_SETOWN,
/// F_SETSIG and F_SETOWN_EX.
const SIGNAL_SETTINGS: [u64; 3] = [8, 10, 15];

/// Flags of clone(2) that put the new thread or process into other namespaces.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Returns whether the kernel has filters.
pub fn is_supported() -> bool {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads one number, which outlives it, and changes nothing.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    answer == 0
}

/// Restricts the system calls of all threads. Sockets for TCP can be made if `connects`.
pub fn restrict(connects: bool) -> Result<()> {
    // its flags are in memory, where no filter can check them: the C library then uses clone(2)
    let unchecked = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    apply(unchecked, SeccompAction::Allow, missing)?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let mut rules = rules(connects)?;
    rules.insert(libc::SYS_clone3, Vec::new());
    apply(rules, denied, SeccompAction::Allow)
}

/// Returns the numbers of the system calls that are permitted, some for a part of their arguments.
///
/// # Errors
///
/// Fails if a rule on arguments is wrong.
pub fn permitted_calls(connects: bool) -> Result<Vec<i64>> {
    Ok(rules(connects)?.into_keys().collect())
}

fn rules(connects: bool) -> Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let process = u64::from(std::process::id());
    let any_of = |index: u8, values: &[u64]| -> Result<Vec<SeccompRule>> {
        values
            .iter()
            .map(|value| rule([(index, SeccompCmpOp::Eq, *value)]))
            .collect()
    };
    let whole = PERMITTED.iter().chain(FORMER);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        whole.map(|number| (*number, Vec::new())).collect();
    rules.insert(libc::SYS_ioctl, any_of(1, &REQUESTS)?);
    rules.insert(libc::SYS_prctl, any_of(0, &PROCESS_REQUESTS)?);
    // another process is asked whether it exists, and gets no signal
    rules.insert(libc::SYS_kill, any_of(1, &[0])?);
    rules.insert(libc::SYS_tgkill, any_of(0, &[process])?);
    rules.insert(libc::SYS_prlimit64, any_of(0, &[0])?);
    // a thread of this process, in its namespaces
    let thread = libc::CLONE_THREAD as u64;
    let threads_only = (0, SeccompCmpOp::MaskedEq(thread | NAMESPACES), thread);
    rules.insert(libc::SYS_clone, vec![rule([threads_only])?]);
    let no_signals = SIGNAL_SETTINGS.map(|setting| (1, SeccompCmpOp::Ne, setting));
    rules.insert(libc::SYS_fcntl, vec![rule(no_signals)?]);
    // Landlock does not check connections that sending makes
    let fast_open = SeccompCmpOp::MaskedEq(libc::MSG_FASTOPEN as u64);
    for (number, flags) in [
        (libc::SYS_sendto, 3),
        (libc::SYS_sendmsg, 2),
        (libc::SYS_sendmmsg, 3),
    ] {
        rules.insert(number, vec![rule([(flags, fast_open.clone(), 0)])?]);
    }
    // the sockets of a pair can't connect to others, unlike those for datagrams. Requests to the
    // guard take pairs, and the asynchronous runtime, which may start later, takes one.
    let mut pairs = Vec::new();
    for kind in [
        libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
        libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
        libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
    ] {
        pairs.push(equal([libc::AF_UNIX, kind])?);
    }
    rules.insert(libc::SYS_socketpair, pairs);
    if connects {
        let mut sockets = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            for flags in [
                0,
                libc::SOCK_NONBLOCK,
                libc::SOCK_CLOEXEC,
                libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            ] {
                for protocol in [0, libc::IPPROTO_TCP] {
                    sockets.push(equal([family, libc::SOCK_STREAM | flags, protocol])?);
                }
            }
        }
        rules.insert(libc::SYS_socket, sockets);
        rules.insert(libc::SYS_connect, Vec::new());
    }
    Ok(rules)
}

/// Returns the rule that the first arguments have these values.
fn equal<const N: usize>(values: [i32; N]) -> Result<SeccompRule> {
    let values = (0..).zip(values);
    rule(values.map(|(index, value)| (index, SeccompCmpOp::Eq, value as u64)))
}

/// Returns the rule that these arguments compare so with these values. The kernel reads 32 bits of
/// each.
fn rule(conditions: impl IntoIterator<Item = (u8, SeccompCmpOp, u64)>) -> Result<SeccompRule> {
    let conditions = conditions.into_iter().map(|(index, operator, value)| {
        SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
    });
    let conditions = conditions.collect::<std::result::Result<_, _>>();
    SeccompRule::new(conditions.map_err(failed)?).map_err(failed)
}

/// Adds a filter to all threads: `matched` for the calls in `rules`, `other` for the rest.
fn apply(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    other: SeccompAction,
    matched: SeccompAction,
) -> Result<()> {
    let architecture = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(rules, other, matched, architecture).map_err(failed)?;
    let instructions: BpfProgram = filter.try_into().map_err(failed)?;
    let program = libc::sock_fprog {
        len: u16::try_from(instructions.len()).map_err(failed)?,
        filter: instructions.as_ptr().cast_mut().cast(),
    };
    // without the second flag, older kernels slow down the whole process against attacks by code
    // that they expect in a process with a filter
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the instructions and their description outlive the calls, which only read them. Both
    // libraries give an instruction the layout of the kernel.
    let thread = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match thread {
        0 => Ok(()),
        -1 => Err(Error::from(std::io::Error::last_os_error()).context("seccomp")),
        thread => Err(Error::io(format!(
            "seccomp: thread {thread} has another filter"
        ))),
    }
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::io(format!("seccomp: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_reach_other_processes_or_the_machine_are_not_permitted() {
        let permitted = permitted_calls(true).unwrap();
        assert!(permitted.contains(&libc::SYS_memfd_create));
        for number in [
            libc::SYS_bind,
            libc::SYS_bpf,
            libc::SYS_clone3,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_init_module,
            libc::SYS_io_uring_setup,
            libc::SYS_keyctl,
            libc::SYS_mount,
            libc::SYS_open_by_handle_at,
            libc::SYS_pidfd_send_signal,
            libc::SYS_process_vm_writev,
            libc::SYS_ptrace,
            libc::SYS_setns,
            libc::SYS_unshare,
        ] {
            assert!(!permitted.contains(&number), "{number}");
        }
        let without_servers = permitted_calls(false).unwrap();
        assert!(!without_servers.contains(&libc::SYS_connect));
        assert!(!without_servers.contains(&libc::SYS_socket));
    }
}
