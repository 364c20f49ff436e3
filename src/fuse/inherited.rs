//! Connections to the kernel that another program has opened and mounted: this process has
//! inherited the descriptor, and a mountpoint `/dev/fd/N` names it, as libfuse, Apptainer and
//! mount.fuse3 do; or the mountpoint is a socket that gives a descriptor. This module checks, takes
//! and initializes a connection. It must not mount or unmount.
//!
//! Invariant: a connection that is refused is left as it was, also if another daemon serves it: no
//! request is taken from it.

use fuser::{Config, Filesystem, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags, statx};
use rustix::io::{Errno, FdFlags, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use zarrfs_base::error::{Error, Kind, Result};

/// Major and minor number of /dev/fuse (Documentation/admin-guide/devices.txt of Linux).
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// Size in bytes of the smallest buffer for which the kernel answers a read of a connection
/// (`FUSE_MIN_READ_BUFFER`). Once a daemon has initialized the connection, the buffer must hold the
/// longest write, so that a read of this size fails with EINVAL and takes no request.
const INIT_BUFFER: usize = 8192;

/// Maximum wait for a descriptor: the time that mounting may take.
const RECEIVE_LIMIT: Duration = Duration::from_secs(30);

const SERVED: &str =
    "another program serves this connection, or has served it; open /dev/fuse anew, and mount that";
const ENDED: &str = "its mount has ended";

/// Returns the number of the descriptor that a mountpoint names: `/dev/fd/N`, or `/proc/self/fd/N`.
pub fn inherited_descriptor(mountpoint: &Path) -> Option<RawFd> {
    let name = ["/dev/fd", "/proc/self/fd"]
        .iter()
        .find_map(|directory| mountpoint.strip_prefix(directory).ok())?
        .to_str()?;
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    // no process has a descriptor of the largest number
    is_number.then(|| name.parse().unwrap_or(RawFd::MAX))
}

/// Returns whether a mountpoint is a descriptor or a socket, not a directory.
pub fn names_connection(mountpoint: &Path) -> bool {
    // these flags ask the kernel alone: a mount may hang, and an automount wait for this program
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, mountpoint, flags, StatxFlags::TYPE);
    let is_socket =
        found.is_ok_and(|found| FileType::from_raw_mode(found.stx_mode.into()) == FileType::Socket);
    is_socket || inherited_descriptor(mountpoint).is_some()
}

/// Takes the connection that a mountpoint names. It must be mounted, and not initialized yet.
/// Programs that this process starts don't inherit it.
///
/// # Errors
///
/// The reason why it can't be served.
pub fn take(mountpoint: &Path) -> std::result::Result<OwnedFd, String> {
    let device = match inherited_descriptor(mountpoint) {
        Some(number) => take_descriptor(number)?,
        None => receive(mountpoint)?,
    };
    check_first_request(&device)?;
    // threads wait for requests in read(2)
    let flags = rustix::fs::fcntl_getfl(&device).map_err(reason)?;
    rustix::fs::fcntl_setfl(&device, flags - OFlags::NONBLOCK).map_err(reason)?;
    Ok(device)
}

fn reason(e: impl Into<Error>) -> String {
    e.into().to_string()
}

fn take_descriptor(number: RawFd) -> std::result::Result<OwnedFd, String> {
    check_device(number)?;
    if number <= libc::STDERR_FILENO {
        return Err("a standard stream; pass the FUSE device on as descriptor 3 or higher".into());
    }
    // SAFETY: the descriptor is open, and this program has not opened it: it opens /dev/fuse only
    // to mount by itself. So nothing else in this process uses or closes the number.
    let device = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).map_err(reason)?;
    Ok(device)
}

/// Receives a descriptor from the program that listens at a socket.
fn receive(socket: &Path) -> std::result::Result<OwnedFd, String> {
    let connection = UnixStream::connect(socket).map_err(reason)?;
    connection
        .set_read_timeout(Some(RECEIVE_LIMIT))
        .map_err(reason)?;
    let device = receive_fd(&connection)
        .ok_or("the program at this socket sent no descriptor; its messages say why")?;
    check_device(device.as_raw_fd())?;
    Ok(device)
}

/// Receives a descriptor, which programs that this process starts don't inherit.
pub fn receive_fd(socket: impl AsFd) -> Option<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut buffers = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(
        socket,
        &mut buffers,
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Checks that a descriptor is open, and a FUSE device.
fn check_device(number: RawFd) -> std::result::Result<(), String> {
    let path = format!("/proc/self/fd/{number}");
    // the descriptor may be a file of a mount that hangs: ask the kernel alone
    let found = match statx(CWD, &path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) {
        Err(Errno::NOENT) => {
            return Err(
                "no such open descriptor; the calling program must open /dev/fuse, mount it, and pass it on".into(),
            );
        }
        found => found.map_err(reason)?,
    };
    let is_device = FileType::from_raw_mode(found.stx_mode.into()) == FileType::CharacterDevice;
    if !is_device || (found.stx_rdev_major, found.stx_rdev_minor) != FUSE_DEVICE {
        return Err(
            "not a FUSE device; the calling program must open /dev/fuse, mount it, and pass it on"
                .into(),
        );
    }
    Ok(())
}

/// Checks that the first request of a connection waits: the kernel adds it when the device is
/// mounted.
fn check_first_request(device: &OwnedFd) -> std::result::Result<(), String> {
    let mut state = [PollFd::new(device, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    retry_on_intr(|| poll(&mut state, Some(&now))).map_err(reason)?;
    let state = state[0].revents();
    if state.contains(PollFlags::ERR) {
        // a read does not wait in this state
        let why = match rustix::io::read(device, &mut [0; INIT_BUFFER]) {
            Err(Errno::PERM) => "not mounted; mount it before (mount(2) with fd=N)",
            _ => ENDED,
        };
        return Err(why.into());
    }
    if !state.contains(PollFlags::IN) {
        return Err(SERVED.into());
    }
    Ok(())
}

/// Returns the device number of the mount of a connection, as the mount table has it. Linux tells
/// it since version 6.16.
pub fn device_number(device: &OwnedFd) -> Option<String> {
    let path = format!("/proc/self/fdinfo/{}", device.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("fuse_connection:"))?;
    Some(format!("0:{}", number.trim()))
}

/// The first request of a connection and its answer. The kernel sends the request once, and a
/// successor of the daemon must answer alike.
pub struct Handshake {
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Handshake {
    /// Returns the bytes of the handshake: the length of the request, the request and the answer.
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = (self.request.len() as u32).to_le_bytes();
        [&length, self.request.as_slice(), &self.answer].concat()
    }

    /// Returns the handshake of the bytes of [`Handshake::to_bytes`]; `None` for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (request, answer) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Some(Handshake {
            request: request.to_vec(),
            answer: answer.to_vec(),
        })
    }
}

/// Does the handshake of a connection that is mounted and was not served.
///
/// # Errors
///
/// Fails if another program has done it meanwhile.
pub fn initialize<F: Filesystem>(
    device: OwnedFd,
    server: F,
    config: Config,
) -> Result<(Session<F>, Handshake)> {
    let mut buffer = [0; INIT_BUFFER];
    // opening the store has taken time, and the read would wait
    check_first_request(&device).map_err(busy)?;
    let length = rustix::io::read(&device, &mut buffer).map_err(|e| match e {
        Errno::INVAL => busy(SERVED),
        Errno::NODEV => busy(ENDED),
        e => e.into(),
    })?;
    let request = buffer[..length].to_vec();
    let (session, answer) = answer_first_request(&request, server, config)?;
    // the answer of a failed handshake goes to the kernel, too
    if !answer.is_empty() {
        rustix::io::write(&device, &answer)?;
    }
    let session = serve_device(session?, &device)?;
    Ok((session, Handshake { request, answer }))
}

/// Takes over a connection that another daemon has initialized.
///
/// # Errors
///
/// Fails if this program does not answer the first request as that daemon has done.
pub fn take_over<F: Filesystem>(
    device: OwnedFd,
    server: F,
    config: Config,
    handshake: &Handshake,
) -> Result<Session<F>> {
    let (session, answer) = answer_first_request(&handshake.request, server, config)?;
    if answer != handshake.answer {
        return Err(Error::unsupported(
            "this program does not agree with the kernel on what the mount does; unmount, and mount again",
        ));
    }
    serve_device(session?, &device)
}

/// A session that was made of a socket, or the error of making it, and the answer to its request.
type FirstAnswer<F> = (std::io::Result<Session<F>>, Vec<u8>);

/// Has fuser answer the first request of a connection, without the connection. fuser reads with a
/// buffer that takes any request, also of a connection that another daemon serves. So it gets the
/// first request from a socket.
fn answer_first_request<F: Filesystem>(
    request: &[u8],
    server: F,
    config: Config,
) -> Result<FirstAnswer<F>> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    send(&ours, request, SendFlags::empty())?;
    // a second read would end, not wait
    shutdown(&ours, Shutdown::Write)?;
    let session = Session::from_fd(server, theirs, SessionACL::All, config);
    let mut buffer = [0; INIT_BUFFER];
    let length = match recv(&ours, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((length, _)) => length,
        Err(_) => 0,
    };
    Ok((session, buffer[..length].to_vec()))
}

/// Replaces the socket of a session by the device.
fn serve_device<F: Filesystem>(session: Session<F>, device: &OwnedFd) -> Result<Session<F>> {
    let socket = session.as_fd().as_raw_fd();
    // SAFETY: both descriptors are open. The session goes on to own this number, which stands for
    // the device from now on.
    if unsafe { libc::dup3(device.as_raw_fd(), socket, libc::O_CLOEXEC) } < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(session)
}

/// Has the kernel send again all requests of a connection that were taken and not answered. No
/// thread may be taking any. Linux has this since version 6.9.
pub fn resend_unanswered(device: impl AsFd) -> rustix::io::Result<()> {
    /// The code of the notification FUSE_NOTIFY_RESEND.
    const RESEND: i32 = 7;
    // struct fuse_out_header: length, error, unique
    let header = [16u32.to_le_bytes(), RESEND.to_le_bytes(), [0; 4], [0; 4]];
    rustix::io::write(device, &header.concat()).map(drop)
}

fn busy(why: impl Into<String>) -> Error {
    Error::new(Kind::System(libc::EBUSY), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountpoints_may_name_descriptors() {
        for (path, number) in [
            ("/dev/fd/3", Some(3)),
            ("/dev/fd/03", Some(3)),
            ("/proc/self/fd/17", Some(17)),
            ("/dev/fd//3/", Some(3)),
            ("/dev/fd/99999999999", Some(RawFd::MAX)),
            ("/dev/fd", None),
            ("/dev/fd/", None),
            ("/dev/fd/x", None),
            ("/dev/fd/-1", None),
            ("/dev/fd/+1", None),
            ("/dev/fd/3/a", None),
            ("dev/fd/3", None),
            ("/dev/fuse", None),
        ] {
            assert_eq!(inherited_descriptor(Path::new(path)), number, "{path}");
        }
    }
}
