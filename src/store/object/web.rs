//! A read-only store below a URL of a web server: GET reads values, HEAD returns their metadata. A
//! web server cannot list names.

use super::EndOfValue;
use super::answer_headers::{content_range, length, text};
use super::request_error::{Cause, RequestError};
use super::stated_versions::StatedVersions;
use super::store_url;
use super::transport::{ServerAnswer, ServerRequest, Transport};
use crate::error::{Error, Kind, Result};
use crate::store::{EntryKind, Key, Stat, Version};
use chrono::DateTime;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, LAST_MODIFIED, RANGE,
};
use reqwest::{Method, StatusCode, Url};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// A store on a web server.
pub(super) struct Web {
    transport: Arc<Transport>,
    base: Url,
    versions: StatedVersions,
    pub forbidden_is_missing: bool,
    /// Whether the server has shown that it does not support requests for the end of a value.
    lacks_ends: AtomicBool,
}

/// The entry at a key, according to an answer.
enum Found {
    Nothing,
    /// The server redirects from `a` to `a/`.
    Directory,
    Value,
    /// The answer says neither of these: an HTML page, or status 405. Some servers answer so for a
    /// directory.
    Neither(Error),
}

impl Web {
    pub fn new(
        transport: Arc<Transport>,
        base: Url,
        versions: StatedVersions,
        forbidden_is_missing: bool,
    ) -> Self {
        Web {
            transport,
            base,
            versions,
            forbidden_is_missing,
            lacks_ends: AtomicBool::new(false),
        }
    }

    /// Reads the value of `key` into `value`.
    pub async fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let request = ServerRequest {
            limit,
            ..ServerRequest::new(Method::GET, self.url(key))
        };
        let answer = self.send(&request, value).await?;
        match self.found(key, &request, &answer)? {
            Found::Value if answer.status == StatusCode::OK => {
                Ok(Some(self.version(&answer.headers, value.len() as u64)))
            }
            Found::Value => Err(invalid_answer(
                &request,
                "with a part of the value instead of the whole",
            )),
            Found::Neither(e) => Err(e),
            Found::Nothing | Found::Directory => {
                value.clear();
                Ok(None)
            }
        }
    }

    /// Reads the bytes of `range`, which is not empty, into `value`.
    pub async fn get_range(
        &self,
        key: &Key,
        range: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        let request = ServerRequest::for_range(self.url(key), range.clone());
        let answer = self.send(&request, value).await?;
        if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            // the range begins after the end of the value
            value.clear();
            return Ok(self.stat(key).await?.filter(|s| s.kind == EntryKind::Value));
        }
        match self.found(key, &request, &answer)? {
            Found::Value => self.part(&request, &answer, range).map(Some),
            Found::Neither(e) => Err(e),
            Found::Nothing | Found::Directory => {
                value.clear();
                Ok(None)
            }
        }
    }

    /// Reads the last `len` bytes of a value into `value`.
    pub async fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<EndOfValue> {
        if len == 0 || self.lacks_ends.load(Ordering::Relaxed) {
            return Ok(EndOfValue::Unsupported);
        }
        let mut request = ServerRequest {
            limit: len,
            ..ServerRequest::new(Method::GET, self.url(key))
        };
        let Ok(suffix) = HeaderValue::try_from(format!("bytes=-{len}")) else {
            return Ok(EndOfValue::Unsupported);
        };
        request.headers.insert(RANGE, suffix);
        let answer = match self.transport.send(&request, value).await {
            Err(e) if e.lacks_range() => {
                self.lacks_ends.store(true, Ordering::Relaxed);
                return Ok(EndOfValue::Unsupported);
            }
            answer => answer.map_err(RequestError::into_error)?,
        };
        if [
            StatusCode::RANGE_NOT_SATISFIABLE,
            StatusCode::NOT_IMPLEMENTED,
        ]
        .contains(&answer.status)
        {
            self.lacks_ends.fetch_or(
                answer.status == StatusCode::NOT_IMPLEMENTED,
                Ordering::Relaxed,
            );
            return Ok(EndOfValue::Unsupported);
        }
        match self.found(key, &request, &answer)? {
            Found::Nothing | Found::Directory => Ok(EndOfValue::Nothing),
            Found::Neither(e) => Err(e),
            Found::Value => {
                let end = self.end_of(&answer, value.len() as u64, len);
                self.lacks_ends
                    .fetch_or(matches!(end, EndOfValue::Unsupported), Ordering::Relaxed);
                Ok(end)
            }
        }
    }

    /// Returns the metadata of a value, and checks that an answer has the bytes of `range`.
    fn part(
        &self,
        request: &ServerRequest,
        answer: &ServerAnswer,
        range: Range<u64>,
    ) -> Result<Stat> {
        let stated =
            content_range(&answer.headers).and_then(|stated| Some((stated.range?, stated.size?)));
        let Some((received, size)) = stated else {
            return Err(invalid_answer(
                request,
                "with a part of a value without its size",
            ));
        };
        if received != (range.start..range.end.min(size)) {
            return Err(invalid_answer(
                request,
                "with another part of the value than requested",
            ));
        }
        Ok(self.stat_of(&answer.headers, size))
    }

    /// Returns the metadata of `key`. The root is always a prefix; another key is one only if the
    /// server says so.
    pub async fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if key.is_root() {
            return Ok(Some(Stat::prefix()));
        }
        let request = ServerRequest::new(Method::HEAD, self.url(key));
        let answer = self.send(&request, &mut Vec::new()).await?;
        // a signed URL is often valid for one method only, and some servers know only GET
        if matches!(answer.status.as_u16(), 403 | 405 | 501) {
            return self.stat_by_get(key).await;
        }
        match self.found(key, &request, &answer)? {
            Found::Nothing => Ok(None),
            Found::Directory => Ok(Some(Stat::prefix())),
            Found::Value => match length(&answer.headers) {
                Some(size) => Ok(Some(self.stat_of(&answer.headers, size))),
                None => self.stat_by_get(key).await,
            },
            Found::Neither(e) => Err(Error::new(Kind::NotAValue, e.message())),
        }
    }

    async fn stat_by_get(&self, key: &Key) -> Result<Option<Stat>> {
        let request = ServerRequest::for_range(self.url(key), 0..1);
        let mut first = Vec::new();
        let answer = self.send(&request, &mut first).await?;
        if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            // the value is empty
            return Ok(Some(self.stat_of(&answer.headers, 0)));
        }
        match self.found(key, &request, &answer)? {
            Found::Nothing => Ok(None),
            Found::Directory => Ok(Some(Stat::prefix())),
            Found::Value => self.part(&request, &answer, 0..1).map(Some),
            Found::Neither(e) => Err(Error::new(Kind::NotAValue, e.message())),
        }
    }

    async fn send(&self, request: &ServerRequest, body: &mut Vec<u8>) -> Result<ServerAnswer> {
        self.transport
            .send(request, body)
            .await
            .map_err(RequestError::into_error)
    }

    fn found(&self, key: &Key, request: &ServerRequest, answer: &ServerAnswer) -> Result<Found> {
        match answer.status.as_u16() {
            200 | 206 => self.check_value(key, request, answer),
            404 | 410 => Ok(Found::Nothing),
            403 if self.forbidden_is_missing => Ok(Found::Nothing),
            301 | 302 | 303 | 307 | 308 => Ok(Found::Directory),
            status => {
                let cause = Cause::Status(answer.status, String::new());
                let e = RequestError::new(&request.method, &request.url, cause, 1).into_error();
                if status == 405 {
                    Ok(Found::Neither(e))
                } else {
                    Err(e)
                }
            }
        }
    }

    /// Returns an error if the body is not the value itself.
    fn check_value(
        &self,
        key: &Key,
        request: &ServerRequest,
        answer: &ServerAnswer,
    ) -> Result<Found> {
        if text(&answer.headers, &CONTENT_ENCODING)
            .is_some_and(|coding| !coding.eq_ignore_ascii_case("identity"))
        {
            return Err(invalid_answer(
                request,
                "with a compressed value, although uncompressed bytes were requested",
            ));
        }
        let kind = text(&answer.headers, &CONTENT_TYPE)
            .unwrap_or_default()
            .to_ascii_lowercase();
        let name = key.name().to_ascii_lowercase();
        if kind.starts_with("text/html") && ![".html", ".htm"].iter().any(|end| name.ends_with(end))
        {
            let what = "with an HTML page instead of the value: perhaps its \"not found\", a login or a directory";
            return Ok(Found::Neither(invalid_answer(request, what)));
        }
        Ok(Found::Value)
    }

    /// Returns whether the `received` bytes of an answer are the last `len` bytes of a value: a
    /// part that the server says is the end, or the whole value.
    fn end_of(&self, answer: &ServerAnswer, received: u64, len: u64) -> EndOfValue {
        let headers = &answer.headers;
        let size = match answer.status {
            StatusCode::OK => Some(received),
            _ => content_range(headers).and_then(|stated| {
                let range = stated.range?;
                let size = stated.size?;
                (range == (size.saturating_sub(len)..size) && range.end - range.start == received)
                    .then_some(size)
            }),
        };
        size.map_or(EndOfValue::Unsupported, |size| {
            EndOfValue::Found(self.stat_of(headers, size))
        })
    }

    fn stat_of(&self, headers: &HeaderMap, size: u64) -> Stat {
        let date = text(headers, &LAST_MODIFIED)
            .and_then(|date| DateTime::parse_from_rfc2822(date.trim()).ok());
        let modified = date.map_or(SystemTime::UNIX_EPOCH, SystemTime::from);
        Stat::value(size, modified, self.version(headers, size))
    }

    /// Returns the version of a value: the entity tag, or else the date and size.
    fn version(&self, headers: &HeaderMap, size: u64) -> Version {
        let dated = || text(headers, &LAST_MODIFIED).map(|date| format!("{date}, {size} bytes"));
        let stated = text(headers, &ETAG).map(str::to_string).or_else(dated);
        self.versions.version(stated.map(Version::Tag), size)
    }

    /// Returns the URL of a key, with the query of the store.
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

/// Bytes that are escaped in a URL: all but the unreserved ones of RFC 3986, 2.3, and the slash.
/// `Url::set_path` alone would drop tabs and line ends, which changes a key.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn invalid_answer(request: &ServerRequest, what: &str) -> Error {
    let url = store_url::without_secrets(&request.url);
    Error::io(format!(
        "{} {url}: the server answers {what}",
        request.method
    ))
}
