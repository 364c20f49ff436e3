//! Requests over HTTP: sent, sent again while that may help, and answered with a whole body or not at all. It knows
//! nothing of stores: what a status means is for others to say.

use super::failure::{Cause, Failure};
use super::retry::{self, Backoff};
use crate::stats::Stats;
use crate::util::memory;
use object_store::client::HttpRequestBody;
use percent_encoding::percent_decode_str;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, LOCATION, RANGE, TRANSFER_ENCODING, USER_AGENT,
};
use reqwest::{Body, Client, Method, Response, StatusCode, Url, Version};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

/// Headers that a redirect may take to another origin: what makes the answer the right one. Anything else may be a secret:
/// credentials, session tokens, keys that objects are encrypted with, and whatever a provider invents next.
const HARMLESS: [HeaderName; 8] =
    [ACCEPT, ACCEPT_ENCODING, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE, USER_AGENT];

/// Redirects that are followed for one request.
const MAX_REDIRECTS: usize = 10;

/// Bytes of an answer that is no value: what a server says of an error.
const MAX_ERROR: u64 = 64 << 10;

/// Bytes of a value that are received for a part of it at most, from a server that knows no parts.
const MAX_SKIPPED: u64 = 64 << 20;

/// The longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Requests under way at once to a server that ends its connection after each: small ones, Python's for instance, let six
/// wait to be accepted and drop others, which the system sends again after a second.
const NEW_CONNECTIONS: usize = 6;

/// An answer that stops coming for this part of the timeout is given up, and the request sent again.
const STALLS: u32 = 3;

/// A request.
pub(super) struct Ask {
    /// GET, HEAD, PUT, ...
    pub method: Method,
    /// To where.
    pub url: Url,
    /// Its own headers; those of [`Sender::headers`] are added.
    pub headers: HeaderMap,
    /// What is sent along.
    pub body: Option<HttpRequestBody>,
    /// The most bytes the body of the answer may have.
    pub limit: u64,
    /// If the answer is a whole value and not the part that was asked for, as many bytes of it will do.
    pub enough: Option<u64>,
    /// So many bytes at the beginning of a whole value are not wanted: they are dropped as they come.
    pub skipped: u64,
}

impl Ask {
    /// A request without a body.
    pub fn new(method: Method, url: Url) -> Self {
        Ask { method, url, headers: HeaderMap::new(), body: None, limit: MAX_ERROR, enough: None, skipped: 0 }
    }
}

/// An answer, whole.
pub(super) struct Answer {
    /// How often the request was sent for it.
    pub tries: u32,
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Bytes that came before the body and were dropped.
    pub skipped: u64,
}

/// Sends requests.
pub(super) struct Transport {
    client: Client,
    /// Headers the user gave, which only the hosts of the store get to see.
    headers: HeaderMap,
    hosts: Vec<String>,
    timeout: Duration,
    retries: u32,
    stats: Arc<Stats>,
    /// The server ends its connections, by its latest answer.
    is_closing: AtomicBool,
    new_connections: Semaphore,
}

impl Transport {
    /// `hosts` are those of the store itself; `headers` go nowhere else.
    pub fn new(
        hosts: Vec<String>,
        headers: HeaderMap,
        timeout: Duration,
        retries: u32,
        stats: Arc<Stats>,
    ) -> Result<Self, String> {
        // an error says that there is one already
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            Client::builder()
                .user_agent(concat!("zarrfs/", env!("CARGO_PKG_VERSION")))
                // followed here: not every header may go where a server points
                .redirect(reqwest::redirect::Policy::none())
                .retry(reqwest::retry::never())
                .connect_timeout(CONNECT.min(timeout))
                .http1_only()
        };
        let client = builder().build().or_else(|e| {
            // a machine without certificates can still do without TLS
            log::info!(
                "https:// will not work without certificates, of which SSL_CERT_FILE can name some: {}",
                text_of(&e)
            );
            builder().tls_certs_only([]).build()
        });
        let client = client.map_err(|e| text_of(&e))?;
        let new_connections = Semaphore::new(NEW_CONNECTIONS);
        let is_closing = AtomicBool::new(false);
        Ok(Transport { client, headers, hosts, timeout, retries, stats, is_closing, new_connections })
    }

    /// Sends a request, and again while it fails in a way that may pass. All of it ends within the timeout.
    pub async fn send(&self, ask: &Ask) -> Result<Answer, Failure> {
        let deadline = Instant::now() + self.timeout;
        let mut backoff = Backoff::default();
        loop {
            let tries = backoff.tries() + 1;
            let cause = match timeout_at(deadline, self.try_once(ask)).await {
                Ok(Ok(answer)) => return Ok(Answer { tries, ..answer }),
                Ok(Err(cause)) => cause,
                Err(_) => Cause::TimedOut(self.timeout),
            };
            let pause = backoff.next(cause.retry_after());
            if !cause.may_pass() || tries > self.retries || Instant::now() + pause >= deadline {
                return Err(Failure::new(&ask.method, &ask.url, cause, tries));
            }
            log::debug!("{} {}: {cause}; again in {pause:?}", ask.method, super::location::shown(&ask.url));
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a request and follows where it leads.
    async fn try_once(&self, ask: &Ask) -> Result<Answer, Cause> {
        let _turn = match self.is_closing.load(Ordering::Relaxed) {
            true => self.new_connections.acquire().await.ok(),
            false => None,
        };
        let mut url = ask.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.exchange(ask, &url).await?;
            match followed(ask, &url, &response) {
                Some(next) => url = next,
                None => return self.receive(ask, response).await,
            }
        }
        Err(Cause::Redirects)
    }

    /// Sends a request to `url` and waits for the head of the answer.
    async fn exchange(&self, ask: &Ask, url: &Url) -> Result<Response, Cause> {
        let mut request = reqwest::Request::new(ask.method.clone(), url.clone());
        *request.headers_mut() = ask.headers.clone();
        // what a proxy or a server has compressed would not be the value
        request.headers_mut().entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
        if url.origin() != ask.url.origin() {
            let headers = std::mem::take(request.headers_mut());
            let harmless = headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
            request.headers_mut().extend(harmless.filter(|(name, _)| HARMLESS.contains(name)));
        } else if url.host_str().is_some_and(|host| self.hosts.iter().any(|h| h == host)) {
            request.headers_mut().extend(self.headers.clone());
        }
        *request.body_mut() = ask.body.clone().map(Body::wrap);
        self.stats.requests.add(1);
        let stall = if is_safe(&ask.method) { self.stall() } else { self.timeout };
        let answer = timeout(stall, self.client.execute(request)).await;
        let answer = answer.map_err(|_| Cause::TimedOut(stall))?.map_err(|e| Cause::Broken(text_of(&e)))?;
        let says_close = text(answer.headers(), &CONNECTION).is_some_and(|says| says.eq_ignore_ascii_case("close"));
        self.is_closing.store(says_close || answer.version() == Version::HTTP_10, Ordering::Relaxed);
        Ok(answer)
    }

    /// Receives the body of an answer.
    async fn receive(&self, ask: &Ask, mut response: Response) -> Result<Answer, Cause> {
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        if retry::may_pass(status) {
            return Err(Cause::Busy(status, retry::after(&headers)));
        }
        if ask.method == Method::HEAD {
            return Ok(Answer { tries: 1, status, headers, body: Vec::new(), skipped: 0 });
        }
        let length = length(&headers);
        if status.is_success() && length.is_none() && !headers.contains_key(TRANSFER_ENCODING) && status != 204 {
            return Err(Cause::Wrong("the server doesn't tell the length of the value, so that its end is unknown"));
        }
        let enough = ask.enough.filter(|_| status == StatusCode::OK);
        if enough.is_some_and(|bytes| bytes > MAX_SKIPPED) {
            return Err(Cause::Wrong(
                "the server knows no parts of values, and this one is too large to be read from its start",
            ));
        }
        let limit = match enough {
            Some(_) => MAX_SKIPPED,
            None if status.is_success() => ask.limit,
            None => MAX_ERROR,
        };
        let skipped = enough.map_or(0, |_| ask.skipped);
        let (body, received) = self.receive_body(&mut response, length, limit, enough, skipped).await?;
        let part = part_of(status, &headers, body.len() as u64)?;
        // some servers call the bytes behind the end an empty part
        let status =
            if part.is_some_and(|range| range.is_empty()) { StatusCode::RANGE_NOT_SATISFIABLE } else { status };
        if status.is_success() {
            self.stats.bytes_received.add(received);
        }
        Ok(Answer { tries: 1, status, headers, body, skipped: skipped.min(received) })
    }

    /// The body without its first `skipped` bytes, and how many bytes came.
    async fn receive_body(
        &self,
        response: &mut Response,
        length: Option<u64>,
        limit: u64,
        enough: Option<u64>,
        skipped: u64,
    ) -> Result<(Vec<u8>, u64), Cause> {
        let most = enough.unwrap_or(u64::MAX);
        let wanted = length.map(|length| length.min(most));
        let mut body = Vec::new();
        if let Some(wanted) = wanted {
            if wanted > limit {
                return Err(Cause::TooLarge { size: length, limit });
            }
            memory::reserve(&mut body, wanted.saturating_sub(skipped) as usize).map_err(Cause::System)?;
        }
        let (end, mut received) = (wanted.unwrap_or(most), 0);
        while received < end {
            let piece = timeout(self.stall(), response.chunk()).await.map_err(|_| Cause::TimedOut(self.stall()))?;
            let Some(piece) = piece.map_err(|e| Cause::Broken(text_of(&e)))? else { break };
            let room = (end - received).min(piece.len() as u64);
            if received + room > limit {
                return Err(Cause::TooLarge { size: None, limit });
            }
            let from = skipped.saturating_sub(received).min(room);
            body.extend_from_slice(piece.get(from as usize..room as usize).unwrap_or_default());
            received += room;
        }
        match wanted {
            Some(wanted) if received < wanted => Err(Cause::Short { received, wanted }),
            _ => Ok((body, received)),
        }
    }

    fn stall(&self) -> Duration {
        self.timeout / STALLS
    }
}

/// What a server says the bytes of a part are, by RFC 9110, 14.4: `bytes 0-9/100`; for a range behind the end
/// `bytes */100`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    /// First byte and the one behind the last; None if there are none.
    pub range: Option<Range<u64>>,
    /// Of the whole value, if it is told.
    pub size: Option<u64>,
}

/// The Content-Range of an answer.
pub(super) fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    let text = text(headers, &CONTENT_RANGE)?.trim();
    let (unit, rest) = text.split_once(' ')?;
    let (range, size) = rest.trim().split_once('/')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let range = match range.split_once('-') {
        None => None,
        Some((first, last)) => {
            let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            Some(first..last.checked_add(1).filter(|end| *end >= first)?)
        }
    };
    Some(ContentRange { range, size: size.trim().parse().ok() })
}

/// The length of a body, as its header tells.
pub(super) fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, &CONTENT_LENGTH)?.trim().parse().ok()
}

/// A header as text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Which bytes an answer has that is a part of a value; an error unless it has those that its header tells.
fn part_of(status: StatusCode, headers: &HeaderMap, received: u64) -> Result<Option<Range<u64>>, Cause> {
    if status != StatusCode::PARTIAL_CONTENT {
        return Ok(None);
    }
    match content_range(headers).and_then(|told| told.range) {
        None => Err(Cause::Wrong("a part of a value, of which the server doesn't tell where it begins")),
        Some(range) if range.end - range.start != received => {
            Err(Cause::Short { received, wanted: range.end - range.start })
        }
        range => Ok(range),
    }
}

/// Where an answer sends the client instead; None if the answer is to be taken as it is. What leads from `a` to `a/`
/// says that `a` is a directory: that is an answer.
fn followed(ask: &Ask, url: &Url, response: &Response) -> Option<Url> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    if !is_redirect || !is_safe(&ask.method) {
        return None;
    }
    let next = url.join(text(response.headers(), &LOCATION)?).ok()?;
    if !["http", "https"].contains(&next.scheme()) || is_directory_of(&next, url) {
        return None;
    }
    Some(next)
}

/// True if `next` is `url` with a slash at its end, however the server escapes it.
fn is_directory_of(next: &Url, url: &Url) -> bool {
    next.path().strip_suffix('/').is_some_and(|path| percent_decode_str(path).eq(percent_decode_str(url.path())))
}

/// Methods that change nothing, by RFC 9110, 9.2.1.
fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD].contains(method)
}

/// An error with its causes in one line. URLs are left out: they may hold signatures.
fn text_of(error: &reqwest::Error) -> String {
    let mut line = match () {
        () if error.is_connect() => "can't connect".to_string(),
        () if error.is_body() || error.is_decode() => "the answer breaks off".to_string(),
        () => "the request failed".to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let text = cause.to_string();
        source = cause.source();
        // most of them repeat the next
        if source.is_none() || !source.is_some_and(|next| text.contains(&next.to_string())) {
            line = format!("{line}: {text}");
        }
    }
    line
}
