//! A store below a URL of a web server: values are read by GET, and what stands at a key is asked by HEAD. A web server
//! tells no names, and takes nothing.

use super::failure::{Cause, Failure};
use super::location;
use super::transport::{Answer, Ask, Transport, content_range, length, text};
use crate::error::{Error, Result};
use crate::store::{EntryKind, Key, Stat, Version};
use chrono::DateTime;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, LAST_MODIFIED, RANGE};
use reqwest::{Method, StatusCode, Url};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

/// A store of a web server.
pub(super) struct Web {
    pub transport: Arc<Transport>,
    pub base: Url,
    pub forbidden_is_missing: bool,
}

/// What an answer says of a key.
enum Found {
    Nothing,
    /// The server sends from `a` to `a/`.
    Directory,
    Value,
}

impl Web {
    /// The value of `key`.
    pub async fn get(&self, key: &Key, limit: u64) -> Result<Option<(Vec<u8>, Version)>> {
        let ask = Ask { limit, ..Ask::new(Method::GET, self.url(key)) };
        let answer = self.send(&ask).await?;
        match self.found(key, &ask, &answer)? {
            Found::Value if answer.status == StatusCode::OK => {
                let version = version(&answer.headers, answer.body.len() as u64);
                Ok(Some((answer.body, version)))
            }
            Found::Value => Err(wrong(&ask, "a part of the value, though all of it was asked for")),
            Found::Nothing | Found::Directory => Ok(None),
        }
    }

    /// The bytes of `range`.
    pub async fn get_range(&self, key: &Key, range: Range<u64>) -> Result<Option<(Vec<u8>, Stat)>> {
        if range.is_empty() {
            return Ok(self.stat(key).await?.filter(|s| s.kind == EntryKind::Value).map(|stat| (Vec::new(), stat)));
        }
        let mut ask = Ask::new(Method::GET, self.url(key));
        ask.limit = range.end - range.start;
        ask.enough = Some(range.end);
        ask.skipped = range.start;
        ask.headers.insert(RANGE, range_header(&range)?);
        let answer = self.send(&ask).await?;
        if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            // the range begins behind the end
            return Ok(self.stat(key).await?.filter(|s| s.kind == EntryKind::Value).map(|stat| (Vec::new(), stat)));
        }
        match self.found(key, &ask, &answer)? {
            Found::Value => self.part(&ask, answer, range).map(Some),
            Found::Nothing | Found::Directory => Ok(None),
        }
    }

    /// What an answer has of `range`.
    fn part(&self, ask: &Ask, answer: Answer, range: Range<u64>) -> Result<(Vec<u8>, Stat)> {
        let Answer { status, headers, body, skipped, .. } = answer;
        if status == StatusCode::OK {
            // all of the value, up to the end of the range
            let received = skipped + body.len() as u64;
            let ended = received < range.end;
            let Some(size) = length(&headers).or(ended.then_some(received)) else {
                return Err(wrong(ask, "a value whose size it doesn't tell"));
            };
            return Ok((body, stat(&headers, size)));
        }
        let told = content_range(&headers).and_then(|told| Some((told.range?, told.size?)));
        let Some((there, size)) = told else {
            return Err(wrong(ask, "a part of a value whose size it doesn't tell"));
        };
        if there != (range.start..range.end.min(size)) {
            return Err(wrong(ask, "another part of the value than was asked for"));
        }
        Ok((body, stat(&headers, size)))
    }

    /// What stands at `key`; the root is always a prefix, of others only what the server says itself is known.
    pub async fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if key.is_root() {
            return Ok(Some(prefix_stat()));
        }
        let ask = Ask::new(Method::HEAD, self.url(key));
        let answer = self.send(&ask).await?;
        // signed URLs are often good for one method, and some servers know GET alone
        if matches!(answer.status.as_u16(), 403 | 405 | 501)
            || (answer.status == 200 && length(&answer.headers).is_none())
        {
            return self.stat_by_get(key).await;
        }
        match self.found(key, &ask, &answer)? {
            Found::Nothing => Ok(None),
            Found::Directory => Ok(Some(prefix_stat())),
            Found::Value => Ok(length(&answer.headers).map(|size| stat(&answer.headers, size))),
        }
    }

    async fn stat_by_get(&self, key: &Key) -> Result<Option<Stat>> {
        let mut ask = Ask::new(Method::GET, self.url(key));
        ask.limit = 1;
        ask.enough = Some(1);
        ask.headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
        let answer = self.send(&ask).await?;
        if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            // there is no first byte
            return Ok(Some(stat(&answer.headers, 0)));
        }
        match self.found(key, &ask, &answer)? {
            Found::Nothing => Ok(None),
            Found::Directory => Ok(Some(prefix_stat())),
            Found::Value => self.part(&ask, answer, 0..1).map(|(_, stat)| Some(stat)),
        }
    }

    async fn send(&self, ask: &Ask) -> Result<Answer> {
        self.transport.send(ask).await.map_err(Failure::into_error)
    }

    fn found(&self, key: &Key, ask: &Ask, answer: &Answer) -> Result<Found> {
        match answer.status.as_u16() {
            200 | 206 => self.check_value(key, ask, answer).map(|()| Found::Value),
            404 | 410 => Ok(Found::Nothing),
            403 if self.forbidden_is_missing => Ok(Found::Nothing),
            301 | 302 | 303 | 307 | 308 => Ok(Found::Directory),
            _ => {
                let cause = Cause::Status(answer.status, String::new());
                Err(Failure::new(&ask.method, &ask.url, cause, 1).into_error())
            }
        }
    }

    /// An error if the body is not the bytes of the value.
    fn check_value(&self, key: &Key, ask: &Ask, answer: &Answer) -> Result<()> {
        if text(&answer.headers, &CONTENT_ENCODING).is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
            return Err(wrong(ask, "the value compressed, though its plain bytes were asked for"));
        }
        let kind = text(&answer.headers, &CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
        let name = key.name().to_ascii_lowercase();
        if kind.starts_with("text/html") && ![".html", ".htm"].iter().any(|end| name.ends_with(end)) {
            return Err(wrong(ask, "a page for people, not the value: perhaps its \"not found\" or a login"));
        }
        Ok(())
    }

    /// The URL of a key: its names escaped, the query of the store kept.
    fn url(&self, key: &Key) -> Url {
        let mut url = self.base.clone();
        if !key.is_root() {
            url.set_path(&format!(
                "{}/{}",
                self.base.path().trim_end_matches('/'),
                utf8_percent_encode(key.as_str(), ESCAPED)
            ));
        }
        url
    }
}

/// Bytes of a key that are escaped in a URL: all but the unreserved ones of RFC 3986, 2.3, and the slash. `Url::set_path`
/// alone would drop tabs and line ends, which changes a key.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn wrong(ask: &Ask, what: &str) -> Error {
    let url = location::shown(&ask.url);
    Error::new(crate::error::Kind::System(libc::EIO), format!("{} {url}: the server answers {what}", ask.method))
}

fn range_header(range: &Range<u64>) -> Result<HeaderValue> {
    let text = format!("bytes={}-{}", range.start, range.end - 1);
    HeaderValue::from_str(&text).map_err(|e| Error::invalid(e.to_string()))
}

fn prefix_stat() -> Stat {
    let version = Version::Tag(String::new());
    Stat { kind: EntryKind::Prefix, size: 0, modified: SystemTime::UNIX_EPOCH, version, permissions: None }
}

fn stat(headers: &HeaderMap, size: u64) -> Stat {
    let date = text(headers, &LAST_MODIFIED).and_then(|date| DateTime::parse_from_rfc2822(date.trim()).ok());
    let modified = date.map_or(SystemTime::UNIX_EPOCH, SystemTime::from);
    Stat { kind: EntryKind::Value, size, modified, version: version(headers, size), permissions: None }
}

/// What a server calls the version of a value; without a name the date and size. Of a server that tells neither each
/// answer is another version, also from those in another process: what can't be told to be the same is asked for again.
fn version(headers: &HeaderMap, size: u64) -> Version {
    static UNKNOWN: AtomicU64 = AtomicU64::new(0);
    static START: LazyLock<Duration> =
        LazyLock::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    Version::Tag(match (text(headers, &ETAG), text(headers, &LAST_MODIFIED)) {
        (Some(tag), _) => tag.to_string(),
        (None, Some(date)) => format!("{date}, {size} bytes"),
        (None, None) => {
            let n = UNKNOWN.fetch_add(1, Ordering::Relaxed);
            format!("unknown {}-{:x}-{n}", std::process::id(), START.as_nanos())
        }
    })
}
