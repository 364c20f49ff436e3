//! An HTTP server on loopback whose answers for chosen paths are wrong in a chosen way. Otherwise
//! it serves a folder correctly: ranges, entity tags, If-Match, persistent connections, and the
//! listings, puts and deletions of S3.

use super::bucket;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A way in which an answer is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The headers of the whole body, then half of it and the end of the connection.
    ShortBody,
    /// Half of the body, with a Content-Length that fits it.
    HalfValue,
    /// The body, followed by bytes beyond its Content-Length.
    LongBody,
    /// The body, followed by bytes that its Content-Length includes.
    LongValue,
    /// Status 200 with the whole value for a request of a range.
    IgnoredRange,
    /// The body with all bits inverted.
    OtherRange,
    /// A partial answer without Content-Range.
    NoContentRange,
    /// A partial answer with status 200, as `rclone serve s3` sends it.
    PartWith200,
    /// No version of the value: neither ETag nor Last-Modified.
    NoVersion,
    /// This status, with a short body.
    Status(u16),
    /// Status 500 for this number of requests, then correct answers.
    Burst(u32),
    /// No answer at all.
    Stall,
    /// Half of the body, then nothing more.
    StallInBody,
    /// One byte of the body every 100 ms.
    Trickle,
    /// Another value and entity tag with each answer. If-Match is honored.
    ChangingTag,
    /// Another value and entity tag with each answer. If-Match is ignored.
    ChangingTagUnchecked,
    /// A chunked body without an end.
    Endless,
    /// A Content-Length larger than any memory, and a body without an end.
    Huge,
    /// The connection is reset in the middle of the body.
    Reset,
    /// The connection is reset before the first byte of an answer.
    ResetAtOnce,
    /// A redirect to the same URL.
    RedirectLoop,
    /// Status 200 with an HTML page that reports a missing page.
    Page,
    /// The body in the content encoding gzip, which the client has not asked for.
    Gzip,
    /// Bytes that are not HTTP.
    Garbage,
}

/// The path that stands for all paths.
const ALL: &str = "*";

/// A request as the server received it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Values of the headers by their names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

/// A function that may answer a request before the server considers faults and files. It returns a
/// status, headers and a body, or `None`.
pub type Gate = Box<dyn Fn(&Request) -> Option<(u16, Vec<(&'static str, String)>, String)> + Send>;

/// A server that runs until this value is dropped.
pub struct FaultyServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    folder: PathBuf,
    /// The fault of each path, and the number of requests for the path since it was set.
    faults: Mutex<HashMap<String, (Fault, u32)>>,
    gate: Mutex<Option<Gate>>,
    requests: Mutex<Vec<Request>>,
    /// Milliseconds before each answer.
    latency: AtomicU64,
    ended: AtomicBool,
}

impl FaultyServer {
    /// Serves what is in `folder`.
    pub fn new(folder: &Path) -> FaultyServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            folder: folder.to_path_buf(),
            faults: Mutex::default(),
            gate: Mutex::default(),
            requests: Mutex::default(),
            latency: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.ended.load(SeqCst) {
                    return;
                }
                let serving = serving.clone();
                let stream = stream.unwrap();
                // the error of a client that disconnects early does not matter
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        FaultyServer { address, shared }
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Makes all further answers for a path wrong. The path has no leading slash.
    pub fn set(&self, path: &str, fault: Fault) {
        self.shared
            .faults
            .lock()
            .unwrap()
            .insert(format!("/{path}"), (fault, 0));
    }

    /// Makes the answers for all paths wrong.
    pub fn set_all(&self, fault: Fault) {
        self.shared
            .faults
            .lock()
            .unwrap()
            .insert(ALL.to_string(), (fault, 0));
    }

    /// Makes all further answers correct again.
    pub fn heal(&self) {
        self.shared.faults.lock().unwrap().clear();
    }

    /// Lets `gate` answer all further requests that it has an answer for.
    pub fn set_gate(&self, gate: Gate) {
        *self.shared.gate.lock().unwrap() = Some(gate);
    }

    /// Delays all further answers by `latency`. Requests of several connections wait concurrently.
    #[allow(dead_code)]
    pub fn set_latency(&self, latency: Duration) {
        self.shared
            .latency
            .store(latency.as_millis() as u64, SeqCst);
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the number of requests with a method for a path.
    pub fn count(&self, method: &str, path: &str) -> usize {
        let path = format!("/{path}");
        self.shared
            .requests
            .lock()
            .unwrap()
            .iter()
            .filter(|r| r.method == method && r.path == path)
            .count()
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        // the accepting thread ends at its next connection
        let _ = TcpStream::connect(self.address);
    }
}

/// A response to a request.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn plain(status: u16) -> Answer {
        Answer {
            status,
            headers: Vec::new(),
            body: b"short body".to_vec(),
        }
    }

    /// Returns an answer with the whole value or the requested range, or status 412 if `If-Match`
    /// has another tag.
    fn of(value: Vec<u8>, tag: String, request: &Request) -> Answer {
        if request
            .headers
            .get("if-match")
            .is_some_and(|asked| *asked != tag && asked != "*")
        {
            return Answer::plain(412);
        }
        let mut headers = vec![("ETag", tag), ("Accept-Ranges", "bytes".to_string())];
        match request.range(value.len()) {
            None => Answer {
                status: 200,
                headers,
                body: value,
            },
            Some(range) if range.is_empty() => {
                headers.push(("Content-Range", format!("bytes */{}", value.len())));
                Answer {
                    status: 416,
                    headers,
                    body: Vec::new(),
                }
            }
            Some(range) => {
                headers.push((
                    "Content-Range",
                    format!("bytes {}-{}/{}", range.start, range.end - 1, value.len()),
                ));
                Answer {
                    status: 206,
                    headers,
                    body: value[range].to_vec(),
                }
            }
        }
    }

    fn head(&self, length: Option<u64>) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} Status\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        match length {
            Some(length) => head += &format!("Content-Length: {length}\r\n\r\n"),
            None => head += "Transfer-Encoding: chunked\r\n\r\n",
        }
        head.into_bytes()
    }
}

impl Request {
    /// Reads the next request. Returns `None` at the end of the connection.
    fn read(stream: &mut impl BufRead) -> Result<Option<Request>> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_string()),
            }
        }
        let mut words = lines
            .first()
            .ok_or(ErrorKind::InvalidData)?
            .split(' ')
            .map(String::from);
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or_default();
        let headers = lines[1..].iter().filter_map(|line| line.split_once(':'));
        let headers: HashMap<String, String> = headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_string()))
            .collect();
        let length = headers
            .get("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        Ok(Some(Request {
            method,
            path,
            headers,
            body,
        }))
    }

    /// Returns the requested range of a value of `length` bytes. It is empty if it begins after the
    /// last byte.
    fn range(&self, length: usize) -> Option<Range<usize>> {
        let (first, last) = self
            .headers
            .get("range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), last) => {
                let end = last.map_or(length, |last| length.min(last.saturating_add(1)));
                Some(first.min(end)..end)
            }
            (Err(_), Ok(suffix)) => Some(length.saturating_sub(suffix)..length),
            _ => None,
        }
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> Result<()> {
        // otherwise the body waits 40 ms for the client to acknowledge the head
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        while let Some(request) = Request::read(&mut reader)? {
            if self.ended.load(SeqCst) {
                return Ok(());
            }
            self.requests.lock().unwrap().push(request.clone());
            // no lock is held here, so that requests wait concurrently
            std::thread::sleep(Duration::from_millis(self.latency.load(SeqCst)));
            let said = self
                .gate
                .lock()
                .unwrap()
                .as_ref()
                .and_then(|gate| gate(&request));
            if let Some((status, headers, body)) = said {
                self.answer(
                    &mut stream,
                    &request,
                    &Answer {
                        status,
                        headers,
                        body: body.into_bytes(),
                    },
                )?;
                continue;
            }
            let mut faults = self.faults.lock().unwrap();
            let key = if faults.contains_key(ALL) {
                ALL
            } else {
                request.path.as_str()
            };
            let fault = faults.get_mut(key).map(|(fault, times)| {
                *times += 1;
                (*fault, *times)
            });
            drop(faults);
            let stays = match fault {
                None => self.answer(&mut stream, &request, &self.good(&request)),
                Some((fault, times)) => self.answer_wrongly(&mut stream, &request, fault, times),
            }?;
            if !stays {
                return Ok(());
            }
        }
        Ok(())
    }

    fn value(&self, request: &Request) -> Option<Vec<u8>> {
        let path = request.path.split('?').next().unwrap_or_default();
        match std::fs::read(self.folder.join(path.trim_start_matches('/'))) {
            Ok(value) => Some(value),
            Err(e)
                if [
                    ErrorKind::NotFound,
                    ErrorKind::IsADirectory,
                    ErrorKind::NotADirectory,
                ]
                .contains(&e.kind()) =>
            {
                None
            }
            // a client must not take an unreadable value for a missing one
            Err(e) => panic!("{path}: {e}"),
        }
    }

    /// Stores or deletes a value if the current one meets the conditions of the request.
    fn change(&self, request: &Request) -> Answer {
        let path = self.folder.join(request.path.trim_start_matches('/'));
        let old = std::fs::read(&path).ok().map(|value| bucket::tag(&value));
        let is_refused = request.headers.contains_key("if-none-match") && old.is_some()
            || request
                .headers
                .get("if-match")
                .is_some_and(|tag| old.as_ref() != Some(tag));
        if is_refused {
            return Answer::plain(412);
        }
        if request.method == "DELETE" {
            let _ = std::fs::remove_file(&path);
            return Answer {
                status: 204,
                headers: Vec::new(),
                body: Vec::new(),
            };
        }
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &request.body).unwrap();
        Answer {
            status: 200,
            headers: vec![("ETag", bucket::tag(&request.body))],
            body: Vec::new(),
        }
    }

    fn good(&self, request: &Request) -> Answer {
        if ["PUT", "DELETE"].contains(&request.method.as_str()) {
            return self.change(request);
        }
        if let Some((path, query)) = request
            .path
            .split_once('?')
            .filter(|(_, query)| query.contains("list-type=2"))
        {
            let page = bucket::page(&self.folder.join(path.trim_matches('/')), query);
            return Answer {
                status: 200,
                headers: Vec::new(),
                body: page.into_bytes(),
            };
        }
        match self.value(request) {
            None => Answer::plain(404),
            Some(value) => {
                let tag = bucket::tag(&value);
                Answer::of(value, tag, request)
            }
        }
    }

    /// Sends an answer. Returns true: the connection stays open.
    fn answer(&self, stream: &mut TcpStream, request: &Request, answer: &Answer) -> Result<bool> {
        stream.write_all(&answer.head(Some(answer.body.len() as u64)))?;
        if request.method != "HEAD" {
            stream.write_all(&answer.body)?;
        }
        Ok(true)
    }

    fn answer_wrongly(
        &self,
        stream: &mut TcpStream,
        request: &Request,
        fault: Fault,
        times: u32,
    ) -> Result<bool> {
        // these faults come first, so that a refused put changes nothing
        match fault {
            Fault::Status(status) => return self.answer(stream, request, &Answer::plain(status)),
            Fault::Burst(count) if times <= count => {
                return self.answer(stream, request, &Answer::plain(500));
            }
            _ => {}
        }
        let mut answer = self.good(request);
        let length = answer.body.len();
        let half = length / 2;
        match fault {
            Fault::Burst(_) => return self.answer(stream, request, &answer),
            Fault::IgnoredRange => {
                let whole = Request {
                    headers: HashMap::new(),
                    ..request.clone()
                };
                return self.answer(stream, request, &self.good(&whole));
            }
            Fault::OtherRange => answer.body.iter_mut().for_each(|byte| *byte ^= 0xff),
            Fault::NoContentRange => answer.headers.retain(|(name, _)| *name != "Content-Range"),
            Fault::PartWith200 if answer.status == 206 => answer.status = 200,
            Fault::PartWith200 => {}
            Fault::NoVersion => answer.headers.retain(|(name, _)| *name != "ETag"),
            Fault::HalfValue => answer.body.truncate(half),
            Fault::LongValue => answer.body.extend([0x5a; 100]),
            Fault::ChangingTag | Fault::ChangingTagUnchecked => {
                answer = self.changing(request, fault, times)
            }
            Fault::RedirectLoop => {
                answer = Answer::plain(302);
                answer.headers.push(("Location", request.path.clone()));
            }
            Fault::Page => {
                answer = Answer::plain(200);
                answer
                    .headers
                    .push(("Content-Type", "text/html".to_string()));
                answer.body = b"<!DOCTYPE html><html><body>No such page</body></html>".to_vec();
            }
            Fault::Gzip => {
                answer
                    .headers
                    .push(("Content-Encoding", "gzip".to_string()));
                answer.body = gzip(&answer.body);
            }
            _ => return self.end_badly(stream, fault, &answer, half),
        }
        self.answer(stream, request, &answer)
    }

    /// Sends an answer after which the connection cannot be used any more. Returns false.
    fn end_badly(
        &self,
        stream: &mut TcpStream,
        fault: Fault,
        answer: &Answer,
        half: usize,
    ) -> Result<bool> {
        let body = &answer.body;
        let length = Some(answer.body.len() as u64);
        match fault {
            Fault::ShortBody => {
                stream.write_all(&answer.head(length))?;
                stream.write_all(&body[..half])?;
            }
            Fault::LongBody => {
                stream.write_all(&answer.head(length))?;
                stream.write_all(body)?;
                stream.write_all(&[0x5a; 1000])?;
            }
            Fault::Stall => self.sleep(),
            Fault::StallInBody => {
                stream.write_all(&answer.head(length))?;
                stream.write_all(&body[..half])?;
                self.sleep();
            }
            Fault::Trickle => {
                stream.write_all(&answer.head(length))?;
                for byte in body {
                    stream.write_all(&[*byte])?;
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            Fault::Endless => {
                stream.write_all(&answer.head(None))?;
                while !self.ended.load(SeqCst) {
                    stream.write_all(b"10000\r\n")?;
                    stream.write_all(&[0; 0x10000])?;
                    stream.write_all(b"\r\n")?;
                }
            }
            Fault::Huge => {
                stream.write_all(&answer.head(Some(u64::MAX >> 8)))?;
                while !self.ended.load(SeqCst) {
                    stream.write_all(&[0; 0x10000])?;
                }
            }
            Fault::Reset => {
                stream.write_all(&answer.head(length))?;
                stream.write_all(&body[..half])?;
                reset(stream);
            }
            Fault::ResetAtOnce => reset(stream),
            _ => stream.write_all(b"SSH-2.0-nothing of the kind\r\n\r\n")?,
        }
        Ok(false)
    }

    /// Answers with a value of one repeated byte, which differs for each request.
    fn changing(&self, request: &Request, fault: Fault, times: u32) -> Answer {
        let Some(value) = self.value(request) else {
            return Answer::plain(404);
        };
        let tag = format!("\"version {times}\"");
        let mut request = request.clone();
        if fault == Fault::ChangingTagUnchecked {
            request.headers.remove("if-match");
        }
        Answer::of(vec![times as u8; value.len()], tag, &request)
    }

    /// Waits until the server ends, but at most a minute.
    fn sleep(&self) {
        for _ in 0..600 {
            if self.ended.load(SeqCst) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Makes the connection end with a reset instead of an orderly close.
fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Returns a gzip member that holds the bytes uncompressed.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut blocks = bytes.chunks(0xffff).peekable();
    while let Some(block) = blocks.next() {
        let length = block.len() as u16;
        out.push(u8::from(blocks.peek().is_none()));
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
    }
    out.extend(crc32fast::hash(bytes).to_le_bytes());
    out.extend((bytes.len() as u32).to_le_bytes());
    out
}
