//! What an attacker tries who makes a codec run code. It is compiled into all builds with debug
//! assertions, and does nothing unless `ZARRFS_TEST_PROBE` names an existing directory outside the
//! store and a port. Then the first chunk that is decoded tries everything once, and logs each
//! outcome.
//!
//! Arguments are such that a call without a sandbox does no harm. The calls in `ZARRFS_TEST_CALLS`
//! are the exception: some would stop the daemon, so tests name them only if there is a sandbox.

use libc::c_long;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SendFlags, SocketType};
use std::io::{Error, Result};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Once;

static ONCE: Once = Once::new();

/// Tries everything, once.
pub fn attempt() {
    ONCE.call_once(|| {
        let Ok(setting) = std::env::var("ZARRFS_TEST_PROBE") else {
            return;
        };
        let (directory, port) = setting.split_once(':').unwrap_or((&setting, "9"));
        let port = port.parse().unwrap_or(9);
        let outcomes = [
            named_calls(),
            numbered_calls(),
            paths(Path::new(directory)),
            connections(port),
        ];
        for (name, outcome) in outcomes.into_iter().flatten() {
            let outcome = match outcome.map_err(|e| e.raw_os_error()) {
                Ok(()) => "succeeded".to_string(),
                Err(Some(libc::EPERM)) => "EPERM".to_string(),
                Err(Some(libc::EACCES)) => "EACCES".to_string(),
                Err(Some(libc::ENOSYS)) => "ENOSYS".to_string(),
                Err(errno) => format!("errno {}", errno.unwrap_or(0)),
            };
            log::error!("probe {name}: {outcome}");
        }
        log::error!("probe ended");
    });
}

type Outcomes = Vec<(String, Result<()>)>;

/// Makes a system call. Arguments that are not given are 0.
fn call(number: c_long, arguments: &[c_long]) -> Result<c_long> {
    let [a, b, c, d] = std::array::from_fn(|index| arguments.get(index).copied().unwrap_or(0));
    // SAFETY: the callers below pass null pointers, addresses of texts that live as long as the
    // call, and numbers with which no call touches the memory of this process.
    let returned = unsafe { libc::syscall(number, a, b, c, d, 0, 0) };
    if returned == -1 {
        Err(Error::last_os_error())
    } else {
        Ok(returned)
    }
}

/// Tries the calls with the numbers in `ZARRFS_TEST_CALLS`, without arguments.
fn numbered_calls() -> Outcomes {
    let numbers = std::env::var("ZARRFS_TEST_CALLS").unwrap_or_default();
    let numbers = numbers.split(',').filter_map(|number| number.parse().ok());
    let tried = numbers.map(|number| (format!("call {number}"), call(number, &[]).map(drop)));
    tried.collect()
}

/// Tries calls that are permitted with other arguments, and programs.
fn named_calls() -> Outcomes {
    let program = c"/bin/true".as_ptr() as c_long;
    let parent = std::os::unix::process::parent_id() as c_long;
    let own = c_long::from(std::process::id() as i32);
    let signal = c_long::from(libc::SIGURG);
    let fast_open = c_long::from(libc::MSG_FASTOPEN);
    let mut outcomes: Outcomes = Vec::new();
    let attempts: &[(&str, c_long, &[c_long])] = &[
        // the addresses of arguments are wrong, so no program takes the place of the daemon
        ("execve", libc::SYS_execve, &[program, -1]),
        ("kill", libc::SYS_kill, &[parent, signal]),
        ("tgkill", libc::SYS_tgkill, &[parent, parent, signal]),
        ("prlimit64 of another", libc::SYS_prlimit64, &[parent]),
        ("prctl PR_CAPBSET_READ", libc::SYS_prctl, &[23]),
        ("socket AF_UNIX", libc::SYS_socket, &[1, 1]),
        ("socket AF_NETLINK", libc::SYS_socket, &[16, 3]),
        ("socket AF_PACKET", libc::SYS_socket, &[17, 3]),
        ("socket AF_VSOCK", libc::SYS_socket, &[40, 1]),
        ("socket for datagrams", libc::SYS_socket, &[2, 2]),
        ("socket of raw packets", libc::SYS_socket, &[2, 3, 1]),
        ("socketpair for datagrams", libc::SYS_socketpair, &[1, 2]),
        ("ioctl TIOCSTI", libc::SYS_ioctl, &[0, 0x5412]),
        ("ioctl of a disk", libc::SYS_ioctl, &[0, 0x1260]),
        ("fcntl F_SETOWN", libc::SYS_fcntl, &[0, 8, own]),
        ("fcntl F_SETSIG", libc::SYS_fcntl, &[0, 10]),
        ("fcntl F_SETOWN_EX", libc::SYS_fcntl, &[0, 15]),
        (
            "sendto MSG_FASTOPEN",
            libc::SYS_sendto,
            &[-1, 0, 0, fast_open],
        ),
        (
            "sendmsg MSG_FASTOPEN",
            libc::SYS_sendmsg,
            &[-1, 0, fast_open],
        ),
        (
            "sendmmsg MSG_FASTOPEN",
            libc::SYS_sendmmsg,
            &[-1, 0, 0, fast_open],
        ),
    ];
    for (name, number, arguments) in attempts {
        outcomes.push((name.to_string(), call(*number, arguments).map(drop)));
    }
    for (name, flags) in [
        ("clone of a process", 0),
        ("clone into namespaces", libc::CLONE_NEWUSER),
    ] {
        outcomes.push((name.to_string(), forked(flags | libc::SIGCHLD)));
    }
    let started = std::process::Command::new("/bin/true").status();
    outcomes.push(("program".to_string(), started.map(drop)));
    outcomes
}

/// Starts a process that ends at once.
fn forked(flags: i32) -> Result<()> {
    match call(libc::SYS_clone, &[flags.into()])? {
        // SAFETY: the child makes no other call.
        0 => unsafe { libc::_exit(0) },
        _ => Ok(()),
    }
}

fn paths(outside: &Path) -> Outcomes {
    let file = outside.join("file");
    let environment = format!("/proc/{}/environ", std::os::unix::process::parent_id());
    let mut outcomes: Outcomes = Vec::new();
    for (name, path, flags) in [
        ("reading a file", "file", OFlags::RDONLY),
        ("writing a file", "file", OFlags::WRONLY),
        ("truncating a file", "file", OFlags::WRONLY | OFlags::TRUNC),
        ("creating a file", "new", OFlags::WRONLY | OFlags::CREATE),
        (
            "creating a file without a name",
            ".",
            OFlags::WRONLY | OFlags::TMPFILE,
        ),
        ("listing a directory", ".", OFlags::DIRECTORY),
        ("reading /etc/passwd", "/etc/passwd", OFlags::RDONLY),
        ("reading a program", "/proc/self/exe", OFlags::RDONLY),
        ("reading /proc of a parent", &environment, OFlags::RDONLY),
        ("reading /proc/version", "/proc/version", OFlags::RDONLY),
        ("listing /proc", "/proc", OFlags::DIRECTORY),
        ("listing /sys", "/sys", OFlags::DIRECTORY),
        (
            "writing own memory by /proc",
            "/proc/self/mem",
            OFlags::WRONLY,
        ),
        ("opening /dev/fuse", "/dev/fuse", OFlags::RDWR),
    ] {
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = rustix::fs::open(outside.join(path), flags | OFlags::CLOEXEC, mode);
        outcomes.push((name.to_string(), opened.map(drop).map_err(Error::from)));
    }
    let mut add = |name: &str, outcome: Result<()>| outcomes.push((name.to_string(), outcome));
    let made = outside.join("made");
    add("making a directory", std::fs::create_dir(made));
    let empty = outside.join("empty");
    add("removing a directory", std::fs::remove_dir(empty));
    let other = outside.join("other");
    add("removing a file", std::fs::remove_file(other));
    let link = outside.join("link");
    add("linking a file", std::fs::hard_link(&file, link));
    let renamed = outside.join("renamed");
    add("renaming a file", std::fs::rename(&file, renamed));
    // a descriptor that is only a path is no access, and gives none
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let by_path = rustix::fs::open(outside, flags, Mode::empty()).and_then(|directory| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&directory, "file", flags, Mode::empty())
    });
    add(
        "reading below a path descriptor",
        by_path.map(drop).map_err(Error::from),
    );
    outcomes
}

fn connections(port: u16) -> Outcomes {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let connected = TcpStream::connect(address).map(drop);
    let fast_open = SendFlags::from_bits_retain(libc::MSG_FASTOPEN as u32);
    let sent = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
        .and_then(|socket| rustix::net::sendto(socket, b"x", fast_open, &address));
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map(drop);
    vec![
        ("connecting to another port".to_string(), connected),
        (
            "connecting by sending".to_string(),
            sent.map(drop).map_err(Error::from),
        ),
        ("listening".to_string(), bound),
    ]
}
