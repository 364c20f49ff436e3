//! Messages to systemd: lines of the log, and the message that the mount answers. Both are
//! datagrams to its sockets, and this module never waits until they are read.

use log::Level;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

/// The socket of the journal.
pub const JOURNAL: &str = "/run/systemd/journal/socket";

/// The environment variable with the socket of the process that waits for the mount: sd_notify(3).
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// A connection to the journal, which takes an entry with each write.
pub struct SystemJournal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl SystemJournal {
    /// Opens the journal at `path`.
    ///
    /// # Errors
    ///
    /// Fails if no journal listens there.
    pub fn open(path: &Path) -> io::Result<SystemJournal> {
        UnixDatagram::unbound()?.connect(path)?;
        let socket = UnixDatagram::unbound()?;
        // a journal that hangs loses lines, but delays no request
        socket.set_nonblocking(true)?;
        Ok(SystemJournal {
            socket,
            path: path.to_path_buf(),
        })
    }
}

impl Write for SystemJournal {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        // not connected: the journal may have been restarted
        self.socket.send_to(entry, &self.path)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a line of the log as an entry (systemd's "Native Journal Protocol"). `journalctl -t
/// zarrfs` shows it, and so does `journalctl ZARRFS_MOUNTPOINT=PATH` for one mount.
pub fn entry(level: Level, text: &str, mountpoint: &Path) -> Vec<u8> {
    // the priorities of syslog(3)
    let priority = match level {
        Level::Error => "3",
        Level::Warn => "4",
        Level::Info => "6",
        Level::Debug | Level::Trace => "7",
    };
    let mut entry = Vec::new();
    add_field(&mut entry, "PRIORITY", priority.as_bytes());
    add_field(&mut entry, "SYSLOG_IDENTIFIER", b"zarrfs");
    add_field(
        &mut entry,
        "ZARRFS_MOUNTPOINT",
        mountpoint.as_os_str().as_bytes(),
    );
    add_field(&mut entry, "MESSAGE", text.as_bytes());
    entry
}

fn add_field(entry: &mut Vec<u8>, name: &str, value: &[u8]) {
    entry.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

/// The service manager that has started the program with Type=notify.
pub struct ServiceManager(Option<UnixDatagram>);

impl ServiceManager {
    /// Connects to the service manager, if there is one. A sandbox permits no connection later.
    pub fn connect() -> io::Result<Self> {
        let Some(name) = std::env::var_os(NOTIFY_SOCKET) else {
            return Ok(ServiceManager(None));
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address(&name)?)?;
        Ok(ServiceManager(Some(socket)))
    }

    /// Notifies the service manager that the mount answers.
    pub fn notify_ready(&self) -> io::Result<()> {
        self.0
            .as_ref()
            .map_or(Ok(()), |socket| socket.send(b"READY=1\n").map(drop))
    }
}

/// Returns the address of a socket: a path, or, after an @, an abstract name.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_follow_the_protocol_of_the_journal() {
        let write = |mountpoint: &str, text: &str| {
            String::from_utf8(entry(Level::Warn, text, Path::new(mountpoint))).unwrap()
        };
        let head = "PRIORITY=4\nSYSLOG_IDENTIFIER=zarrfs\nZARRFS_MOUNTPOINT";
        assert_eq!(
            write("/mnt/a b", "a=b"),
            format!("{head}=/mnt/a b\nMESSAGE=a=b\n")
        );
        // a path is written unchanged
        let two = format!("{head}\n\x03\0\0\0\0\0\0\0a\nb\nMESSAGE=a\n");
        assert_eq!(write("a\nb", "a"), two);
    }

    #[test]
    fn sockets_have_paths_or_abstract_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let hidden = format!("@zarrfs-test-{}", std::process::id());
        for name in [path.as_os_str(), OsStr::new(&hidden)] {
            let listening = UnixDatagram::bind_addr(&address(name).unwrap()).unwrap();
            UnixDatagram::unbound()
                .unwrap()
                .send_to_addr(b"READY=1\n", &address(name).unwrap())
                .unwrap();
            let mut said = [0; 16];
            let length = listening.recv(&mut said).unwrap();
            assert_eq!(&said[..length], b"READY=1\n");
        }
        drop(
            SystemJournal::open(&path)
                .err()
                .expect("nobody listens any more"),
        );
    }
}
