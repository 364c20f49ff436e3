//! `--listen`: serves the statistics of a mount to Prometheus, over HTTP. Clients may be hostile:
//! the number of connections, their time, the size of requests and the rate of new statistics are
//! bounded, and the mount waits for no client. HTTP libraries such as tiny_http bound none of that.
//!
//! Invariant: a page in a browser reads no statistics. It could if it came from a name of its own
//! that it has resolved to this machine; requests are therefore answered under IP addresses,
//! `localhost` and the name in the option alone.

use crate::cli::{CommandFailure, CommandResult};
use crate::fs::Fs;
use crate::fs::tree::Audience;
use httparse::{EMPTY_HEADER, Request, Status};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::pool::start_thread;

/// Maximum number of connections, each with a thread. Further connections are closed.
const MAX_CONNECTIONS: usize = 8;

/// Maximum time of a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum size of the head of a request, in bytes, and maximum number of headers in it.
const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;

/// Maximum age of served statistics; requests beyond ten a second reuse them.
const FRESH: Duration = Duration::from_millis(100);

/// The status of an answer to a request for another server.
const MISDIRECTED: &str = "421 Misdirected Request";

/// Pause after a connection that could not be accepted, such as for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The address to listen on. The loopback interface is the default host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    host: String,
    port: u16,
}

/// Parses a port, or a host and a port.
pub fn parse(text: &str) -> std::result::Result<ListenAddress, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let expected = "not a port or HOST:PORT, such as 9464, 10.0.0.1:9464 or [::]:9464";
    let port = port.parse().map_err(|_| expected)?;
    let host = match bracketed.unwrap_or(host) {
        "" => "127.0.0.1",
        name if bracketed.is_none() && name.contains(':') => return Err(expected.into()),
        name => name,
    };
    Ok(ListenAddress {
        host: host.into(),
        port,
    })
}

/// A bound address that is not served yet.
pub struct StatisticsListener {
    listener: TcpListener,
    address: SocketAddr,
    /// The host in the option.
    host: String,
}

impl StatisticsListener {
    /// Binds the address, before anything is mounted.
    pub fn bind(asked: &ListenAddress) -> CommandResult<Self> {
        let bound = TcpListener::bind((asked.host.as_str(), asked.port)).and_then(|listener| {
            let address = listener.local_addr()?;
            Ok(StatisticsListener {
                listener,
                address,
                host: asked.host.clone(),
            })
        });
        let shown = format!("--listen {}:{}", asked.host, asked.port);
        bound.map_err(|e| CommandFailure::failed(Error::from(e).context(shown).to_string()))
    }

    /// Serves the statistics of a mount until the process ends.
    pub fn serve(self, fs: Arc<Fs>) -> Result<()> {
        log::info!("statistics at http://{}/metrics", self.address);
        let address = self.address.to_string();
        fs.facts()
            .set("metrics_address", address, Audience::Everyone);
        let server = Arc::new(StatisticsServer {
            fs,
            host: self.host,
            connections: AtomicUsize::new(0),
            made: Mutex::new(None),
        });
        start_thread("metrics", move || {
            loop {
                match self.listener.accept() {
                    Ok((stream, _)) => server.take(stream),
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        })?;
        Ok(())
    }
}

struct StatisticsServer {
    fs: Arc<Fs>,
    /// The host in the option.
    host: String,
    /// Number of connections.
    connections: AtomicUsize,
    /// Protects the latest statistics; held while new ones are made.
    made: Mutex<Option<(Instant, Arc<str>)>>,
}

/// A connection. It counts until it is dropped.
struct Connection {
    server: Arc<StatisticsServer>,
    stream: TcpStream,
    /// The time at which the connection ends at the latest.
    deadline: Instant,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.server.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StatisticsServer {
    /// Answers a connection on a thread of its own, or closes it if there are too many.
    fn take(self: &Arc<Self>, stream: TcpStream) {
        // only one thread adds connections
        if self.connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            return;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        let mut connection = Connection {
            server: self.clone(),
            stream,
            deadline: Instant::now() + PATIENCE,
        };
        // without a thread the connection is closed
        let _ = start_thread("metrics", move || {
            if let Err(e) = connection.answer() {
                log::debug!("--listen: {e}");
            }
        });
    }

    /// Returns statistics that are not older than [`FRESH`].
    fn statistics(&self) -> Arc<str> {
        let mut made = lock(&self.made);
        match &*made {
            Some((at, text)) if at.elapsed() < FRESH => text.clone(),
            _ => {
                let text: Arc<str> = self.fs.metrics().into();
                *made = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}

impl Connection {
    /// Answers one request, and closes the connection.
    fn answer(&mut self) -> std::io::Result<()> {
        let head = self.read_head()?;
        let (status, more) = asked(&head, &self.server.host);
        let text = match status {
            "200 OK" => self.server.statistics(),
            MISDIRECTED => "not a name of this listener: use its IP address, or mount with --listen NAME:PORT\n".into(),
            _ => format!("{status}\nThe statistics are at /metrics.\n").into(),
        };
        let length = text.len();
        let mut answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\n{more}Connection: close\r\n\r\n"
        );
        if !head.starts_with(b"HEAD ") {
            answer += &text;
        }
        self.write_all(answer.as_bytes())?;
        self.stream.shutdown(Shutdown::Write)
    }

    /// Reads up to the end of the head, or up to its maximum size.
    fn read_head(&mut self) -> std::io::Result<Vec<u8>> {
        let mut head = Vec::new();
        let mut piece = [0; 1024];
        while head.len() < MAX_HEAD && !head.windows(4).any(|end| end == b"\r\n\r\n") {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(len) => head.extend_from_slice(piece.get(..len).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(head)
    }

    /// Returns the time that is left, or an error if it is zero.
    fn left(&self) -> std::io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(ErrorKind::TimedOut.into())
        } else {
            Ok(left)
        }
    }
}

impl Write for Connection {
    /// Writes within the time that is left.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the status of the answer to a request, and further headers. `host` is the host in the
/// option.
fn asked(head: &[u8], host: &str) -> (&'static str, &'static str) {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(head) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) if head.len() < MAX_HEAD => return ("400 Bad Request", ""),
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return ("431 Request Header Fields Too Large", "");
        }
        Err(_) => return ("400 Bad Request", ""),
    }
    let mut names = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("Host"));
    if !names.all(|header| is_own_name(header.value, host)) {
        return (MISDIRECTED, "");
    }
    let path = request.path.and_then(|path| path.split('?').next());
    match (request.method, path) {
        (Some("GET" | "HEAD"), Some("/metrics")) => ("200 OK", ""),
        (Some("GET" | "HEAD"), _) => ("404 Not Found", ""),
        _ => ("405 Method Not Allowed", "Allow: GET, HEAD\r\n"),
    }
}

/// Returns whether the value of a Host header names this listener.
fn is_own_name(value: &[u8], host: &str) -> bool {
    let Ok(value) = std::str::from_utf8(value) else {
        return false;
    };
    if let Some(bracketed) = value.strip_prefix('[') {
        return bracketed
            .split_once(']')
            .is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = value
        .split(':')
        .next()
        .unwrap_or_default()
        .trim_end_matches('.');
    // a browser takes no other server for one whose address a page has spelled
    let is_address = name.parse::<IpAddr>().is_ok();
    is_address
        || [host, "localhost"]
            .iter()
            .any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_host_only_this_machine_is_served() {
        let address = |text| parse(text).map(|address| (address.host, address.port)).ok();
        let some = |host: &str, port| Some((host.to_string(), port));
        assert_eq!(
            (address("9464"), address(":0")),
            (some("127.0.0.1", 9464), some("127.0.0.1", 0))
        );
        assert_eq!(
            (address("0.0.0.0:1"), address("[::]:2")),
            (some("0.0.0.0", 1), some("::", 2))
        );
        assert_eq!(address("localhost:3"), some("localhost", 3));
        for text in ["", "x", "host", "::1", "host:", "host:70000", "[::1]", "-1"] {
            assert_eq!(address(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_statistics_are_served() {
        let status = |head: &str| {
            asked(head.as_bytes(), "node1")
                .0
                .split(' ')
                .next()
                .unwrap()
                .to_string()
        };
        for (head, expected) in [
            (
                "GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n",
                "200",
            ),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421"),
            ("GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n", "421"),
            (
                "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
                "421",
            ),
            ("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n", "200"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /../metrics HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", "400"),
            ("SSH-2.0-x\r\n\r\n", "400"),
            ("", "400"),
        ] {
            assert_eq!(status(head), expected, "{head:?}");
        }
        assert_eq!(
            status(&format!(
                "GET /metrics HTTP/1.1\r\n{}",
                "A: b\r\n".repeat(100)
            )),
            "431"
        );
        assert_eq!(
            status(&format!(
                "GET /metrics HTTP/1.1\r\nA: {}",
                "b".repeat(MAX_HEAD)
            )),
            "431"
        );
    }

    #[test]
    fn names_of_others_are_refused() {
        for own in [
            "127.0.0.1",
            "10.0.0.1:9464",
            "[::1]:9464",
            "[fe80::1]",
            "LocalHost:1",
            "localhost.",
            "Node1:80",
        ] {
            assert!(is_own_name(own.as_bytes(), "node1"), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "node1.evil.example:9464",
            "[evil]",
            "[::1",
            "::1",
        ] {
            assert!(!is_own_name(other.as_bytes(), "node1"), "{other}");
        }
        assert!(!is_own_name(b"\xff", "node1"));
    }
}
