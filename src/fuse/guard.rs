//! The guard of a mount: a child process that stays outside the daemon's sandbox.
//!
//! A thread of the daemon that makes the kernel drop pages may wait for a read in flight, which the
//! daemon answers. If it is killed then, neither ends, unless the guard ends the connection, or
//! tells the process that holds the mount, which then starts a successor to answer the read.
//!
//! The guard also does for the daemon what the sandbox forbids: it unmounts this mount, and runs
//! services of the command line. Invariant: a request names what is done, never on what. The mount,
//! directories, paths and programs are in the environment and the first message, which the guard
//! has before the daemon serves, so that a daemon that is under the control of an attacker gains no
//! other. Names of hosts, and of files below the directories, are the exception.

use super::control::own_program;
use super::messages::{MAX_DESCRIPTORS, receive, send, socket_pair};
use super::mount_place::{MountPlace, open_directory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::retry_on_intr;
use rustix::mount::UnmountFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Signal, geteuid, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    set_capabilities,
};
use signal_hook::consts::{SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::outside::Answer;
use zarrfs_base::signals::{self, ENDING};
use zarrfs_sandbox::{PathAccess, restrict_thread};
use zarrfs_store::DirectoryCall;

/// The environment variable with the number of the process that the child guards.
const GUARDED: &str = "ZARRFS_GUARDED";

/// The name of the process that guards a mount.
const GUARD_NAME: &str = "zarrfs-guard";

/// Time in which an unmount, or a call in a directory, ends.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// A request to the guard. Its number is the first byte of the message, which has the descriptor of
/// a socket for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum GuardRequest {
    Unmount = 1,
    Detach,
    /// Runs a service: its name, a zero and its argument are the rest of the message.
    Serve,
    /// Returns a socket that takes [`DirectoryCall`]s.
    Admit,
    /// Says that the guard takes requests.
    Greet,
}

const REQUESTS: [GuardRequest; 5] = [
    GuardRequest::Unmount,
    GuardRequest::Detach,
    GuardRequest::Serve,
    GuardRequest::Admit,
    GuardRequest::Greet,
];

/// Sends an answer to a request: an errno and a message, or 0 and the result.
fn send_answer(done: Result<Answer>, socket: BorrowedFd) -> rustix::io::Result<()> {
    let (errno, answer) = match done {
        Ok(answer) => (0, answer),
        Err(e) => (e.errno(), Answer::of_bytes(e.message().as_bytes().to_vec())),
    };
    let message = [&errno.to_le_bytes(), answer.bytes.as_slice()].concat();
    let files: Vec<BorrowedFd> = answer.file.iter().map(|file| file.as_fd()).collect();
    send(socket, &message, &files)
}

/// Sends a request and receives its answer.
///
/// # Errors
///
/// The outer error means that there is no answer, and that none to a further request can be told
/// from a late one to this request.
fn exchange(socket: BorrowedFd, request: &[u8], files: &[BorrowedFd]) -> Result<Result<Answer>> {
    send(socket, request, files)?;
    receive_answer(socket)
}

/// Receives the answer to a request. The outer error is that of [`exchange`].
fn receive_answer(socket: BorrowedFd) -> Result<Result<Answer>> {
    let (bytes, files) = receive(socket).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => Error::system(libc::ETIMEDOUT).context("the guard process"),
        _ => e.into(),
    })?;
    let Some((errno, rest)) = bytes.split_first_chunk() else {
        return Err(Error::io("the guard process has ended"));
    };
    Ok(match i32::from_le_bytes(*errno) {
        0 => Ok(Answer {
            bytes: rest.to_vec(),
            file: files.into_iter().next(),
        }),
        errno => Err(Error::new(
            Kind::System(errno),
            String::from_utf8_lossy(rest),
        )),
    })
}

/// Runs a service with its argument, in the guard.
pub type RunService = fn(&str, &[u8]) -> Result<Answer>;

/// The running guard of a mount.
pub struct MountGuard {
    socket: OwnedFd,
    /// Sockets that take [`DirectoryCall`]s, and are not in use.
    admitted: Mutex<Vec<OwnedFd>>,
}

impl MountGuard {
    /// Starts the guard of a mount. It ends with the thread that calls this function, which must
    /// live as long as the mount. Without the file `abort` the guard can't end the connection,
    /// without a `place` it unmounts nothing. Other directories may take the place of those in
    /// `directories`. The variables are for the services. With a pipe for `deaths` the guard
    /// writes the number of this process there when it ends, and the connection goes on.
    pub fn start(
        device: Option<&str>,
        abort: Option<&File>,
        place: Option<&MountPlace>,
        directories: &[(PathBuf, PathAccess)],
        variables: &[(&str, OsString)],
        deaths: Option<BorrowedFd>,
    ) -> Result<MountGuard> {
        let (socket, theirs) = socket_pair()?;
        set_socket_timeout(&socket, Timeout::Send, Some(CALL_LIMIT))?;
        let directories: Vec<GuardedDirectory> = directories
            .iter()
            .filter_map(|(path, access)| GuardedDirectory::of(path, *access))
            .collect();
        send_places(socket.as_fd(), device, place, deaths, &directories)?;
        let mut command = own_program();
        match abort {
            Some(abort) => command.stdout(abort.try_clone()?),
            None => command.stdout(Stdio::null()),
        };
        command
            // fusermount3, and the programs that print keys, need the environment
            .envs(std::env::vars_os())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .env(GUARDED, std::process::id().to_string())
            .current_dir("/")
            .stdin(theirs);
        if let Err(e) = keep_mount_capability() {
            log::debug!("the guard process may be unable to unmount: {e}");
        }
        command.spawn()?;
        Ok(MountGuard {
            socket,
            admitted: Mutex::default(),
        })
    }

    /// Waits until the guard takes requests. From then on it has its name, so that a program that
    /// kills all processes named `zarrfs` leaves it alive, and ends the connection after that.
    pub fn wait_until_started(&self) -> Result<()> {
        self.ask(&[GuardRequest::Greet as u8], CALL_LIMIT).map(drop)
    }

    /// Unmounts the mount, if it is on top at its place.
    pub fn unmount(&self, flags: UnmountFlags) -> Result<()> {
        let request = if flags.contains(UnmountFlags::DETACH) {
            GuardRequest::Detach
        } else {
            GuardRequest::Unmount
        };
        self.ask(&[request as u8], CALL_LIMIT).map(drop)
    }

    /// Runs a service, which must answer within `limit`.
    pub fn serve(&self, service: &str, argument: &[u8], limit: Duration) -> Result<Answer> {
        let kind = [GuardRequest::Serve as u8];
        self.ask(&[&kind, service.as_bytes(), &[0], argument].concat(), limit)
    }

    /// Sends a request with a socket for its answer, and waits for that.
    fn ask(&self, request: &[u8], limit: Duration) -> Result<Answer> {
        let (answer, theirs) = socket_pair()?;
        set_socket_timeout(&answer, Timeout::Recv, Some(limit))?;
        send(self.socket.as_fd(), request, &[theirs.as_fd()])?;
        drop(theirs);
        receive_answer(answer.as_fd())?
    }

    /// Makes a call in a directory that took the place of another one.
    pub fn call(
        &self,
        call: &DirectoryCall,
        directories: &[BorrowedFd],
    ) -> Result<Option<OwnedFd>> {
        let request = call.to_bytes();
        let unused = lock(&self.admitted).pop();
        let mut socket = unused.map_or_else(|| self.admit(), Ok)?;
        // a socket without an answer is dropped: a late answer would be taken for the next one
        let mut answer = exchange(socket.as_fd(), &request, directories)?;
        if answer.as_ref().is_err_and(|e| e.errno() == libc::EACCES) {
            // a further directory may have taken the place
            socket = self.admit()?;
            answer = exchange(socket.as_fd(), &request, directories)?;
        }
        lock(&self.admitted).push(socket);
        answer.map(|answer| answer.file)
    }

    /// Returns a new socket that takes [`DirectoryCall`]s.
    fn admit(&self) -> Result<OwnedFd> {
        let answer = self.ask(&[GuardRequest::Admit as u8], CALL_LIMIT)?;
        let socket = answer.into_file()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(CALL_LIMIT))?;
        Ok(socket)
    }
}

/// Lets a program that this thread starts mount and unmount if it may do so itself: a user other
/// than root would lose that in the namespace of `zarrfs run`.
fn keep_mount_capability() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    if !geteuid().is_root() && sets.effective.contains(CapabilitySet::SYS_ADMIN) {
        sets.inheritable |= CapabilitySet::SYS_ADMIN;
        set_capabilities(None, sets)?;
        configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)?;
    }
    Ok(())
}

/// Returns the processes of daemons, each with the file that ends its connection, also of those
/// that hang. The guard of a mount has that file open, and is a child of the daemon. A daemon
/// without a guard, or of another user, is missing.
pub fn daemons() -> Vec<(PathBuf, u32)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| guarded_by(&process.path()))
        .collect()
}

/// Returns the file that a guard has open, and its parent; `None` if the process is no guard.
fn guarded_by(process: &Path) -> Option<(PathBuf, u32)> {
    let name = std::fs::read_to_string(process.join("comm")).ok()?;
    if name.trim_end() != GUARD_NAME {
        return None;
    }
    let abort = std::fs::read_link(process.join("fd/1")).ok()?;
    Some((abort, parent_of(process)?))
}

/// Returns the number of the parent of a process, which is a directory of /proc.
pub(super) fn parent_of(process: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok()
}

/// Runs the child of [`MountGuard::start`]. Returns `None` in any other process.
pub fn run_guard(serve: RunService) -> Option<ExitCode> {
    let daemon = std::env::var(GUARDED).ok()?;
    Some(ExitCode::from(u8::from(guard(&daemon, serve).is_err())))
}

/// Waits for the end of the daemon, and ends its connection.
fn guard(daemon: &str, serve: RunService) -> std::io::Result<()> {
    let _ = std::fs::write("/proc/self/comm", GUARD_NAME);
    // SAFETY: the process has one thread. A program that it runs may run zarrfs, which must not
    // take itself for a guard.
    unsafe { std::env::remove_var(GUARDED) };
    // a program that the guard runs must not be able to mount
    let _ = clear_ambient_capability_set();
    // an operator may send these to all processes of zarrfs, and a batch system to all of a job
    signals::disregard(ENDING.into_iter().chain([SIGUSR1, SIGUSR2, SIGXCPU]));
    let mut signals = Signals::new([SIGVTALRM])?;
    set_parent_process_death_signal(Some(Signal::VTALARM))?;
    let parent = rustix::process::getppid();
    let mount = GuardedMount::receive(rustix::stdio::stdin()).map(Arc::new);
    if parent.is_some_and(|parent| parent.as_raw_nonzero().to_string() == daemon) {
        if let Ok(mount) = mount.clone() {
            thread::Builder::new().spawn(move || take_requests(&mount, serve))?;
        }
        // a daemon one of whose threads hangs stays the parent after it was killed; another process
        // may send the same signal
        let _ = signals.forever().find(|_| is_ending(daemon));
    }
    let deaths = mount.as_ref().ok().and_then(|mount| mount.deaths.as_ref());
    let is_held = deaths.is_some_and(|deaths| {
        let said = rustix::io::write(deaths, format!("{daemon}\n").as_bytes());
        said.is_ok() && !is_closed_within(deaths, HOLDER_LIMIT)
    });
    if is_held {
        // the process that holds the mount starts a successor, or ends the connection
        return Ok(());
    }
    // it was killed, too
    abort()
}

/// Time after which the process that holds a mount has not been killed together with the daemon.
const HOLDER_LIMIT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Returns whether nothing can read a pipe any more, or within a time.
fn is_closed_within(pipe: &OwnedFd, limit: Timespec) -> bool {
    let mut state = [PollFd::new(pipe, PollFlags::empty())];
    // the end of each thread of the daemon sends the signal again
    let _ = retry_on_intr(|| poll(&mut state, Some(&limit)));
    state[0].revents().contains(PollFlags::ERR)
}

/// Ends the connection to the kernel, whose control file is the standard output.
fn abort() -> std::io::Result<()> {
    File::from(rustix::io::dup(rustix::stdio::stdout())?).write_all(b"1")
}

/// Returns whether a process has begun to end. It has then sent the death signal, or is about to.
fn is_ending(process: &str) -> bool {
    /// The flag PF_EXITING of the kernel.
    const EXITING: u32 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // the name in parentheses may hold anything; the flags are the seventh field after it
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let flags = fields.and_then(|fields| fields.split_whitespace().nth(6)?.parse::<u32>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0)
}

/// Takes requests until the daemon closes the socket, which is the standard input.
fn take_requests(mount: &Arc<GuardedMount>, serve: RunService) {
    let socket = rustix::stdio::stdin();
    while let Ok((request, files)) = receive(socket) {
        let Some((number, argument)) = request.split_first() else {
            return;
        };
        let kind = REQUESTS.into_iter().find(|known| *known as u8 == *number);
        let (Some(kind), Some(answer)) = (kind, files.into_iter().next()) else {
            continue;
        };
        let mount = mount.clone();
        let argument = argument.to_vec();
        // without a thread the answer is that the socket is closed
        let _ = thread::Builder::new().spawn(move || {
            let done = mount.carry_out(kind, &argument, serve);
            let _ = send_answer(done, answer.as_fd());
        });
    }
}

/// Sends the first message: the device number, and for each place a letter and the name in the
/// directory of a descriptor, all divided by zeros. The owner of a directory stands before its
/// name: another directory may have taken its place before the guard receives the message.
fn send_places(
    socket: BorrowedFd,
    device: Option<&str>,
    place: Option<&MountPlace>,
    deaths: Option<BorrowedFd>,
    directories: &[GuardedDirectory],
) -> Result<()> {
    let mut message = device.unwrap_or_default().as_bytes().to_vec();
    let mut files = Vec::new();
    let mut add = |kind: &str, name: &OsStr, above: BorrowedFd<'_>| {
        message.push(0);
        message.extend(kind.as_bytes());
        message.extend(name.as_bytes());
        files.push(rustix::io::fcntl_dupfd_cloexec(above, 0)?);
        rustix::io::Result::Ok(())
    };
    if let Some(place) = place {
        // a guard that asked for it would use the mount, which could then not be unmounted
        let number = place.number().map(|number| number.to_string());
        let kind = format!("m{}/", number.unwrap_or_default());
        add(&kind, place.name(), place.parent())?;
    }
    if let Some(deaths) = deaths {
        add("h", OsStr::new(""), deaths)?;
    }
    for directory in directories.iter().take(MAX_DESCRIPTORS - 2) {
        let kind = match directory.access {
            PathAccess::Write => 'w',
            _ => 'r',
        };
        let kind = format!("{kind}{}/", directory.owner);
        add(&kind, &directory.name, directory.above.as_fd())?;
    }
    let files: Vec<BorrowedFd> = files.iter().map(|file| file.as_fd()).collect();
    Ok(send(socket, &message, &files)?)
}

/// The mount and the directories of a guard.
struct GuardedMount {
    device: String,
    place: Option<MountPlace>,
    /// The pipe in which the process that holds the mount finds the numbers of daemons that end.
    deaths: Option<OwnedFd>,
    directories: Vec<GuardedDirectory>,
}

impl GuardedMount {
    /// Receives the message of [`send_places`].
    fn receive(socket: BorrowedFd) -> Result<Self> {
        let (message, files) = receive(socket)?;
        let mut parts = message.split(|byte| *byte == 0);
        let device = String::from_utf8_lossy(parts.next().unwrap_or_default());
        let mut mount = GuardedMount {
            device: device.into_owned(),
            place: None,
            deaths: None,
            directories: Vec::new(),
        };
        for (part, above) in parts.zip(files) {
            if part == b"h" {
                mount.deaths = Some(above);
            } else if let Some(place) = part.strip_prefix(b"m") {
                let slash = place.iter().position(|byte| *byte == b'/');
                let (number, name) = place.split_at(slash.unwrap_or_default());
                let name = OsString::from_vec(name.get(1..).unwrap_or_default().to_vec());
                let number = str::from_utf8(number).ok().and_then(|n| n.parse().ok());
                mount.place = Some(MountPlace::with_number(above, name, number));
            } else {
                mount
                    .directories
                    .extend(GuardedDirectory::from_message(above, part));
            }
        }
        Ok(mount)
    }

    fn carry_out(
        &self,
        request: GuardRequest,
        argument: &[u8],
        serve: RunService,
    ) -> Result<Answer> {
        match request {
            GuardRequest::Unmount => self.unmount(UnmountFlags::empty()),
            GuardRequest::Detach => self.unmount(UnmountFlags::DETACH),
            GuardRequest::Serve => {
                let mut parts = argument.splitn(2, |byte| *byte == 0);
                let name = str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default();
                serve(name, parts.next().unwrap_or_default())
            }
            GuardRequest::Admit => self.admit().map(Answer::of_file),
            GuardRequest::Greet => Ok(Answer::default()),
        }
    }

    fn unmount(&self, flags: UnmountFlags) -> Result<Answer> {
        let place = self.place.as_ref();
        let place = place.ok_or_else(|| Error::system(libc::EINVAL))?;
        if !place.has_on_top(&self.device)? {
            return Err(Error::system(libc::EINVAL));
        }
        place.unmount(flags).map(|()| Answer::default())
    }

    /// Starts a thread that takes calls in the directories that are at the places now. It can use
    /// no other directory, whatever descriptors and names a call has.
    ///
    /// # Errors
    ///
    /// EACCES if there is no directory, or another user's.
    fn admit(&self) -> Result<OwnedFd> {
        let found: Vec<(OwnedFd, PathAccess)> = self
            .directories
            .iter()
            .filter_map(|directory| Some((directory.open().ok()?, directory.access)))
            .collect();
        if found.is_empty() {
            return Err(Error::system(libc::EACCES));
        }
        let (socket, theirs) = socket_pair()?;
        thread::Builder::new().spawn(move || {
            // without the restriction the socket is closed
            if restrict_thread(&found).is_ok() {
                drop(found);
                make_calls(socket.as_fd());
            }
        })?;
        Ok(theirs)
    }
}

/// A directory whose place another one may take.
struct GuardedDirectory {
    above: OwnedFd,
    name: OsString,
    owner: u32,
    access: PathAccess,
}

impl GuardedDirectory {
    /// Returns the directory at an absolute path, or `None` if no other one can take its place, as
    /// with the root directory and mountpoints.
    fn of(path: &Path, access: PathAccess) -> Option<Self> {
        let above = open_directory(path.parent()?).ok()?;
        let mut directory = GuardedDirectory {
            above,
            name: path.file_name()?.to_owned(),
            owner: 0,
            access,
        };
        directory.owner = fstat(directory.open_any().ok()?).ok()?.st_uid;
        Some(directory)
    }

    /// Returns the directory of a part of the message of [`send_places`].
    fn from_message(above: OwnedFd, part: &[u8]) -> Option<Self> {
        let (kind, rest) = part.split_first()?;
        let slash = rest.iter().position(|byte| *byte == b'/')?;
        Some(GuardedDirectory {
            above,
            name: OsString::from_vec(rest[slash + 1..].to_vec()),
            owner: str::from_utf8(&rest[..slash]).ok()?.parse().ok()?,
            access: match kind {
                b'w' => PathAccess::Write,
                _ => PathAccess::Read,
            },
        })
    }

    /// Opens the directory at the place, as the store finds it (`store/directory/root.rs`).
    fn open_any(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        Ok(openat2(
            &self.above,
            &self.name,
            flags,
            Mode::empty(),
            resolve,
        )?)
    }

    /// Opens the directory at the place, if it belongs to the owner of the first one.
    fn open(&self) -> Result<OwnedFd> {
        let directory = self.open_any()?;
        if fstat(&directory)?.st_uid == self.owner {
            Ok(directory)
        } else {
            Err(Error::system(libc::EACCES))
        }
    }
}

/// Makes the calls that arrive until the socket is closed.
fn make_calls(socket: BorrowedFd) {
    while let Ok((bytes, files)) = receive(socket)
        && !bytes.is_empty()
    {
        let directories: Vec<BorrowedFd> = files.iter().map(|file| file.as_fd()).collect();
        let made = match DirectoryCall::from_bytes(&bytes) {
            Some(call) => call.make(&directories).map_err(Error::from),
            None => Err(Error::system(libc::EINVAL)),
        };
        if send_answer(
            made.map(|file| Answer {
                bytes: Vec::new(),
                file,
            }),
            socket,
        )
        .is_err()
        {
            return;
        }
    }
}
