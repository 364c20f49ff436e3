//! The mount namespace of `zarrfs run`: a mount in it is seen by this process and its children
//! alone, and ends with the last of them. Where this process may not mount, the namespace belongs
//! to a new user namespace, in which the user and the group keep their numbers. Nothing here
//! mounts.

use super::guard::parent_of;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{
    Pid, PidfdFlags, Signal, chroot, fchdir, getegid, geteuid, getpid, pidfd_open,
    pidfd_send_signal,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use zarrfs_base::error::Error;

/// Settings of the kernel that forbid user namespaces to users, with the value that does so, and
/// the command of an administrator that allows them.
const FORBIDDING: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "sysctl user.max_user_namespaces=15000",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
];

/// Searches for processes to kill: killed ones need some time to end.
const MAX_PASSES: u32 = 100;
const PASS_PAUSE: Duration = Duration::from_millis(20);

/// Moves this process into a mount namespace of its own. It must have one thread.
///
/// # Errors
///
/// A message that says what to do.
pub fn enter_own_namespace() -> Result<(), String> {
    let entered = match unshare(UnshareFlags::NEWNS) {
        Ok(()) => stop_propagation(),
        Err(Errno::PERM) => enter_user_namespace(),
        Err(e) => Err(e),
    };
    entered.map_err(explain)
}

/// Returns the message for a namespace that can't be made, or in which mounting is refused.
pub(super) fn explain(e: Errno) -> String {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    if let Err(Errno::ACCESS | Errno::PERM) = device {
        "/dev/fuse: this user may not open it; an administrator allows that: chmod 666 /dev/fuse, or in a container \
         --device /dev/fuse. `zarrfs cat` works without FUSE"
            .into()
    } else {
        format!(
            "can't mount in a namespace of this command: {}; {}, or use `zarrfs mount` with fusermount3. `zarrfs cat` works \
             without FUSE",
            Error::from(e),
            what_allows_namespaces()
        )
    }
}

/// Returns what a user can do where namespaces are forbidden.
fn what_allows_namespaces() -> String {
    let forbids = |(file, value, _): &&(&str, &str, &str)| {
        fs::read_to_string(file).is_ok_and(|now| now.trim() == *value)
    };
    match FORBIDDING.iter().find(forbids) {
        Some((_, _, allow)) => {
            format!("user namespaces are forbidden here, and an administrator allows them: {allow}")
        }
        None => "run needs Linux 5.2, and in a container the right to mount (Docker: --cap-add SYS_ADMIN --security-opt \
                 apparmor=unconfined)"
            .into(),
    }
}

/// Kills all processes of this namespace that this user may kill, and those that they start
/// meanwhile. Spares this process, the `daemon`, and what the daemon has started.
pub fn kill_namespace(daemon: Pid) -> std::io::Result<()> {
    let own = fs::read_link("/proc/self/ns/mnt")?;
    for _ in 0..MAX_PASSES {
        let mut found = false;
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let pid = entry.file_name();
            let pid = pid.to_str().and_then(|name| name.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else {
                continue;
            };
            // another process that gets the number meanwhile is not killed
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
                continue;
            };
            let directory = entry.path();
            let namespace = fs::read_link(directory.join("ns/mnt"));
            let is_spared = pid == getpid()
                || pid == daemon
                || descends_from(&directory, daemon.as_raw_nonzero().get().cast_unsigned());
            if namespace.is_ok_and(|namespace| namespace == own) && !is_spared {
                found |= pidfd_send_signal(&process, Signal::KILL).is_ok();
            }
        }
        if !found {
            break;
        }
        std::thread::sleep(PASS_PAUSE);
    }
    Ok(())
}

/// Returns whether a process, which is a directory of /proc, was started by another one, or by what
/// that has started.
fn descends_from(process: &Path, other: u32) -> bool {
    let mut parents = 0..MAX_PARENTS;
    let mut parent = parent_of(process);
    while let Some(pid) = parent.filter(|pid| *pid > 1 && parents.next().is_some()) {
        if pid == other {
            return true;
        }
        parent = parent_of(Path::new(&format!("/proc/{pid}")));
    }
    false
}

/// Maximum number of processes between a daemon and what it has started: its guard, and a service.
const MAX_PARENTS: u32 = 4;

fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: the flags are those of namespaces; descriptors stay shared.
    unsafe { unshare_unsafe(flags) }
}

/// Enters a user namespace in which this user and group have their own numbers, and a mount
/// namespace below it. The kernel lets no mount out of such a namespace.
fn enter_user_namespace() -> Result<(), Errno> {
    let user = geteuid().as_raw();
    let group = getegid().as_raw();
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    // the kernel takes the map of groups only if the process can drop none
    write_setting("/proc/self/setgroups", "deny")?;
    write_setting("/proc/self/uid_map", &format!("{user} {user} 1"))?;
    write_setting("/proc/self/gid_map", &format!("{group} {group} 1"))
}

fn write_setting(file: &str, value: &str) -> Result<(), Errno> {
    fs::write(file, value).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// Keeps mounts of this namespace from appearing in other namespaces. Later mounts of other
/// processes, such as an automounter, still appear here.
fn stop_propagation() -> Result<(), Errno> {
    match change_propagation() {
        // after a chroot into a directory that is no mountpoint
        Err(Errno::INVAL) => at_real_root(change_propagation),
        changed => changed,
    }
}

fn change_propagation() -> Result<(), Errno> {
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
}

/// Runs `work` with the root of the namespace in place of that of a chroot, and returns to it.
fn at_real_root(work: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let open =
        |path: &str, flags: OFlags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
    let root = open("/", OFlags::PATH | OFlags::DIRECTORY)?;
    let here = open(".", OFlags::PATH | OFlags::DIRECTORY)?;
    let namespace = open("/proc/self/ns/mnt", OFlags::RDONLY)?;
    // entering a namespace, also the own one, leaves the chroot
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
    let done = work();
    fchdir(&root)?;
    chroot(".")?;
    fchdir(&here)?;
    done
}
