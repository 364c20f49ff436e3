//! Orders to hand a mount over to another program: the socket on which the process that holds the
//! mount takes them, for `zarrfs upgrade`. The socket has an abstract name with the number of that
//! process, and takes orders of the user of the mount and of root alone. This module must not know
//! how a program takes over.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zarrfs_base::error::{Error, Result};

/// Maximum time for which an order is received.
const RECEIVE_LIMIT: Duration = Duration::from_secs(5);

/// Maximum time until an order is answered: everything is stored first.
const ANSWER_LIMIT: Duration = Duration::from_secs(180);

/// The answer to an order that was carried out.
const DONE: &str = "done";

/// The socket of a process that holds a mount.
pub struct OrderSocket(UnixListener);

/// An order to hand the mount over to a program.
pub struct HandOverOrder {
    /// The program.
    pub program: PathBuf,
    connection: UnixStream,
}

fn address(holder: u32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("zarrfs-holder-{holder}"))
}

impl OrderSocket {
    /// Opens the socket of this process.
    ///
    /// # Errors
    ///
    /// Another process has taken its name.
    pub fn open() -> std::io::Result<Self> {
        let socket = UnixListener::bind_addr(&address(std::process::id())?)?;
        socket.set_nonblocking(true)?;
        Ok(OrderSocket(socket))
    }

    /// Returns the socket, which can be read when an order comes.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Takes an order; `None` if another user has sent it, or it is incomplete.
    pub fn take(&self) -> Option<HandOverOrder> {
        let (mut connection, _) = self.0.accept().ok()?;
        let sender = rustix::net::sockopt::socket_peercred(&connection).ok()?;
        if !sender.uid.is_root() && sender.uid != rustix::process::geteuid() {
            return None;
        }
        connection.set_nonblocking(false).ok()?;
        connection.set_read_timeout(Some(RECEIVE_LIMIT)).ok()?;
        let mut program = Vec::new();
        // a path has at most 4096 bytes
        let mut received = Read::by_ref(&mut connection).take(4097);
        received.read_to_end(&mut program).ok()?;
        Some(HandOverOrder {
            program: PathBuf::from(OsStr::from_bytes(&program)),
            connection,
        })
    }
}

impl HandOverOrder {
    /// Answers the order: [`DONE`], or why the mount was not handed over.
    pub fn answer(mut self, outcome: std::result::Result<(), String>) {
        let said = outcome.err().unwrap_or_else(|| DONE.to_string());
        // the sender may have ended
        let _ = self.connection.write_all(said.as_bytes());
    }
}

/// Orders the process `holder` to hand its mount over to a program, and waits until it has.
///
/// # Errors
///
/// The reason why the former daemon goes on.
pub fn order(holder: u32, program: &Path) -> Result<()> {
    let mut connection = UnixStream::connect_addr(&address(holder)?)?;
    let receiver = rustix::net::sockopt::socket_peercred(&connection)?;
    if receiver.pid.as_raw_nonzero().get().cast_unsigned() != holder {
        return Err(Error::io(
            "another process has taken the name of its socket",
        ));
    }
    connection.set_read_timeout(Some(ANSWER_LIMIT))?;
    connection.write_all(program.as_os_str().as_bytes())?;
    connection.shutdown(Shutdown::Write)?;
    let mut why = String::new();
    connection.read_to_string(&mut why)?;
    match why.as_str() {
        DONE => Ok(()),
        "" => Err(Error::io("the mount has ended meanwhile")),
        _ => Err(Error::io(why)),
    }
}
