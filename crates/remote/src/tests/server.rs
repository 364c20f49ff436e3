//! A web server in this process with programmable behavior, including violations of HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A received request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Returns the first and last byte of the requested range.
    pub fn range(&self) -> Option<(usize, usize)> {
        let (first, last) = self
            .header("range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        Some((first.parse().unwrap(), last.parse().unwrap()))
    }
}

/// An answer, byte by byte.
#[derive(Clone, Default)]
pub struct Reply {
    pub bytes: Vec<u8>,
    pub after: After,
}

/// The server's action after the bytes.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum After {
    /// It reads the next request on the same connection.
    #[default]
    Next,
    /// It closes the connection.
    Close,
    /// It sends nothing more.
    Stall,
    /// It sends the same bytes forever: chunks of an endless body.
    Endless,
}

/// Returns a complete answer with a length.
pub fn reply(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let length = body.len().to_string();
    let mut all = headers.to_vec();
    if !headers
        .iter()
        .any(|(name, _)| ["content-length", "transfer-encoding"].contains(name))
    {
        all.push(("content-length", &length));
    }
    let lines: String = all
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let mut bytes = format!("HTTP/1.1 {status} Said\r\n{lines}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    Reply {
        bytes,
        after: After::Next,
    }
}

impl Reply {
    pub fn then(self, after: After) -> Self {
        Reply { after, ..self }
    }
}

/// A server that runs until the process ends.
pub struct Server {
    pub url: String,
    pub port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Starts a server. `answer` gets each request and its number, which starts at 0.
    pub fn new(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let answer = Arc::new(answer);
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answer = answer.clone();
                let seen = seen.clone();
                // a client may close the connection at any time
                std::thread::spawn(move || drop(talk(stream, &*answer, &seen)));
            }
        });
        Server {
            url: format!("http://127.0.0.1:{port}/data/x.zarr"),
            port,
            requests,
        }
    }

    /// Returns the requests received so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn talk(
    stream: TcpStream,
    answer: &(dyn Fn(&Request, usize) -> Reply + Send + Sync),
    seen: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        let Reply { mut bytes, after } = answer(&request, number);
        if request.method == "HEAD" {
            let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
            bytes.truncate(end);
        }
        writer.write_all(&bytes)?;
        match after {
            After::Next => {}
            After::Close => return Ok(()),
            After::Stall => loop {
                std::thread::park();
            },
            After::Endless => loop {
                writer.write_all(b"1000\r\n")?;
                writer.write_all(&[7; 4096])?;
                writer.write_all(b"\r\n")?;
            },
        }
    }
    Ok(())
}

fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_string);
    let mut request = Request {
        method: words.next().unwrap(),
        target: words.next().unwrap(),
        ..Request::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        request
            .headers
            .push((name.to_string(), value.trim().to_string()));
    }
    let length = request
        .header("content-length")
        .map_or(0, |length| length.parse().unwrap());
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}
