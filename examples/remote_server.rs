//! An HTTP server that simulates a remote one: it serves the files of a directory and delays each
//! answer by some milliseconds. `scripts/bench` reads stores from it. It supports persistent
//! connections, ranges and entity tags and nothing else, so it is never the bottleneck;
//! `remote_client` measures its speed.
//!
//! `remote_server DIRECTORY MILLISECONDS` listens on a free port of the loopback interface, prints
//! `ready PORT`, and serves until it is killed. `/.requests` returns, without delay, the number of
//! all other requests so far.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct Server {
    directory: PathBuf,
    latency: Duration,
    requests: AtomicU64,
}

/// A parsed request.
struct Request {
    is_head: bool,
    path: String,
    /// The first byte, and the last one if the request names it. Without a first byte, the number
    /// of bytes at the end.
    range: Option<(Option<u64>, Option<u64>)>,
}

/// Reads the next request of a connection. Returns `None` at the end of the connection.
fn read_request(from: &mut impl BufRead) -> Result<Option<Request>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err(ErrorKind::InvalidData.into());
    };
    let mut request = Request {
        is_head: method == "HEAD",
        path: path.trim_start_matches('/').into(),
        range: None,
    };
    loop {
        let mut header = String::new();
        if from.read_line(&mut header)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = header.trim_end().split_once(':') else {
            return Ok(Some(request));
        };
        if name.eq_ignore_ascii_case("range") {
            let bounds = value
                .trim()
                .strip_prefix("bytes=")
                .and_then(|bounds| bounds.split_once('-'));
            request.range = bounds.map(|(first, last)| (first.parse().ok(), last.parse().ok()));
        }
    }
}

impl Server {
    fn serve(&self, stream: &TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader)? {
            if request.path == ".requests" {
                let count = self.requests.load(Ordering::Relaxed).to_string();
                respond(
                    stream,
                    "200 OK",
                    &format!("Content-Length: {}\r\n\r\n{count}", count.len()),
                )?;
                continue;
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(self.latency);
            self.answer(stream, &request)?;
        }
        Ok(())
    }

    fn answer(&self, stream: &TcpStream, request: &Request) -> Result<()> {
        let is_inside = request.path.split('/').all(|name| name != "..");
        let file = File::open(self.directory.join(&request.path))
            .ok()
            .filter(|_| is_inside);
        let Some((file, metadata)) = file
            .and_then(|f| f.metadata().ok().map(|m| (f, m)))
            .filter(|(_, m)| m.is_file())
        else {
            return respond(stream, "404 Not Found", "Content-Length: 0\r\n\r\n");
        };
        let size = metadata.len();
        let tag = metadata.mtime_nsec() as u64 ^ (metadata.mtime() as u64) << 32;
        let (first, last) = match request.range {
            Some((None, Some(len))) => (size.saturating_sub(len), None),
            Some((first, last)) => (first.unwrap_or(0), last),
            None => (0, None),
        };
        if first >= size && request.range.is_some() {
            return respond(
                stream,
                "416 Range Not Satisfiable",
                "Content-Length: 0\r\n\r\n",
            );
        }
        let end = last.map_or(size, |last| last.saturating_add(1).min(size));
        let (status, place) = match request.range {
            Some(_) => (
                "206 Partial Content",
                format!("Content-Range: bytes {first}-{}/{size}\r\n", end - 1),
            ),
            None => ("200 OK", String::new()),
        };
        let len = end.saturating_sub(first);
        // the date does not matter: the tag identifies the version
        let headers = format!(
            "Content-Length: {len}\r\nContent-Type: application/octet-stream\r\nAccept-Ranges: bytes\r\nETag: \"{tag:x}-{size:x}\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n{place}\r\n"
        );
        respond(stream, status, &headers)?;
        if request.is_head {
            return Ok(());
        }
        let mut file = file;
        file.seek(SeekFrom::Start(first))?;
        // the kernel copies the bytes: the standard library uses sendfile(2) here
        if std::io::copy(&mut file.take(len), &mut &*stream)? == len {
            Ok(())
        } else {
            Err(Error::other("the file became shorter"))
        }
    }
}

fn respond(mut stream: &TcpStream, status: &str, rest: &str) -> Result<()> {
    stream.write_all(format!("HTTP/1.1 {status}\r\n{rest}").as_bytes())
}

fn run(directory: &Path, latency: Duration) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = Arc::new(Server {
        directory: directory.into(),
        latency,
        requests: AtomicU64::new(0),
    });
    println!("ready {}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    for stream in listener.incoming() {
        let stream = stream?;
        let server = server.clone();
        // a client may close its connection at any time
        std::thread::spawn(move || drop(server.serve(&stream)));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, milliseconds] = arguments.as_slice() else {
        eprintln!("usage: remote_server DIRECTORY MILLISECONDS");
        return ExitCode::from(2);
    };
    let done = match milliseconds.parse() {
        Ok(milliseconds) => run(Path::new(directory), Duration::from_millis(milliseconds)),
        Err(e) => Err(Error::other(format!("{milliseconds}: {e}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("remote_server: {e}");
            ExitCode::FAILURE
        }
    }
}
