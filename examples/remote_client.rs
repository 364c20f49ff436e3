//! Fetches every chunk of an array from `remote_server` and discards it: no reader can be faster
//! over this link. `scripts/bench` compares zarrfs with it.
//!
//! `remote_client DIRECTORY PORT PATH CONNECTIONS` requests, below PATH of the server, each file of
//! DIRECTORY whose name begins with a digit, and prints the time as JSON.

use serde_json::json;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Returns the names of the chunks, and the sum of their sizes in bytes.
fn chunks(directory: &Path) -> Result<(Vec<String>, u64)> {
    let mut names = Vec::new();
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            bytes += entry.metadata()?.len();
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok((names, bytes))
}

/// Requests one chunk, discards the body of the answer, and returns its size in bytes.
fn fetch(stream: &mut BufReader<TcpStream>, path: &str, buffer: &mut [u8]) -> Result<u64> {
    let request = format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes())?;
    let mut line = String::new();
    let mut len = None;
    stream.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(Error::other(format!("{path}: {}", line.trim_end())));
    }
    while !line.trim_end().is_empty() {
        line.clear();
        stream.read_line(&mut line)?;
        if let Some((name, value)) = line
            .split_once(':')
            .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            len = Some(
                value
                    .trim()
                    .parse::<u64>()
                    .map_err(|e| Error::other(format!("{name}: {e}")))?,
            );
        }
    }
    let len = len.ok_or(ErrorKind::InvalidData)?;
    let mut left = len;
    while left > 0 {
        let most = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        match stream.read(&mut buffer[..most])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => left -= n as u64,
        }
    }
    Ok(len)
}

fn run(directory: &Path, port: u16, path: &str, connections: usize) -> Result<serde_json::Value> {
    let (names, stored) = chunks(directory)?;
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    let work = || {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        let mut buffer = vec![0; 256 << 10];
        let mut bytes = 0;
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            bytes += fetch(&mut stream, &format!("{path}/{name}"), &mut buffer)?;
        }
        Ok(bytes)
    };
    let fetched = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(work)).collect();
        let died = |_| Err(Error::other("a thread died"));
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(died))
            .sum::<Result<u64>>()
    })?;
    if fetched == stored {
        Ok(
            json!({ "chunks": names.len(), "bytes": fetched, "seconds": start.elapsed().as_secs_f64() }),
        )
    } else {
        Err(Error::other(format!("{fetched} bytes came, of {stored}")))
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers =
        |port: &str, connections: &str| Some((port.parse().ok()?, connections.parse().ok()?));
    let parsed = match arguments.as_slice() {
        [directory, port, path, connections] => {
            numbers(port, connections).map(|n| (directory, path, n))
        }
        _ => None,
    };
    let Some((directory, path, (port, connections))) = parsed else {
        eprintln!("usage: remote_client DIRECTORY PORT PATH CONNECTIONS");
        return ExitCode::from(2);
    };
    match run(Path::new(directory), port, path, connections) {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("remote_client: {e}");
            ExitCode::FAILURE
        }
    }
}
