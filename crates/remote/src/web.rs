//! A read-only store below a URL of a web server: GET reads values, HEAD returns their metadata. A
//! web server cannot list names.

use super::answer_headers::{content_range, length, text};
use super::request_error::{Cause, RequestError};
use super::stated_versions::StatedVersions;
use super::store_url;
use super::transport::{ServerAnswer, ServerRequest, Transport};
use super::{EndOfValue, ServedStore};
use async_trait::async_trait;
use chrono::DateTime;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, LAST_MODIFIED, RANGE,
};
use reqwest::{Method, StatusCode, Url};
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_store::{EntryKind, Key, Stat, Version};

/// A store on a web server.
pub(super) struct Web {
    pub transport: Arc<Transport>,
    /// URL of the root, without user and password.
    pub base: Url,
    pub versions: StatedVersions,
    pub forbidden_is_missing: bool,
}

#[async_trait]
impl ServedStore for Web {
    async fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let request = ServerRequest {
            limit,
            ..ServerRequest::new(Method::GET, self.url(key))
        };
        let answer = self.send(&request, value).await?;
        if !self.has_value(key, &request, &answer)? {
            value.clear();
            return Ok(None);
        }
        if answer.status != StatusCode::OK {
            let what = "with a part of the value instead of the whole";
            return Err(invalid_answer(&request, what));
        }
        Ok(Some(self.stat_of(&answer.headers, value.len() as u64)))
    }

    async fn get_range(
        &self,
        key: &Key,
        range: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        let request = ServerRequest::for_range(self.url(key), range);
        let answer = self.send(&request, value).await?;
        if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            // the range begins after the end of the value
            value.clear();
            return self.stat_value(key).await;
        }
        if !self.has_value(key, &request, &answer)? {
            value.clear();
            return Ok(None);
        }
        self.stat_of_part(&request, &answer).map(Some)
    }

    async fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<EndOfValue> {
        let mut request = ServerRequest {
            limit: len,
            ..ServerRequest::new(Method::GET, self.url(key))
        };
        let Ok(suffix) = HeaderValue::try_from(format!("bytes=-{len}")) else {
            return Ok(EndOfValue::Unsupported { ever: false });
        };
        request.headers.insert(RANGE, suffix);
        let answer = match self.transport.send(&request, value).await {
            Err(e) if e.lacks_range() => return Ok(EndOfValue::Unsupported { ever: true }),
            answer => answer.map_err(RequestError::into_error)?,
        };
        if matches!(answer.status.as_u16(), 416 | 501) {
            // 416 is also the answer for an empty value
            let ever = answer.status == 501;
            return Ok(EndOfValue::Unsupported { ever });
        }
        if !self.has_value(key, &request, &answer)? {
            return Ok(EndOfValue::Nothing);
        }
        Ok(self.end_of(&answer, value.len() as u64, len))
    }

    /// A key other than the root is a prefix only if the server says so.
    async fn stat(&self, key: &Key) -> Result<Option<Stat>> {
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
            None => Ok(None),
            Some(EntryKind::Value) => match length(&answer.headers) {
                Some(size) => Ok(Some(self.stat_of(&answer.headers, size))),
                None => self.stat_by_get(key).await,
            },
            Some(_) => Ok(Some(Stat::prefix())),
        }
    }

    async fn stat_value(&self, key: &Key) -> Result<Option<Stat>> {
        let found = self.stat(key).await?;
        Ok(found.filter(|stat| stat.kind == EntryKind::Value))
    }
}

impl Web {
    /// Returns the metadata of a value, of which an answer has a part.
    fn stat_of_part(&self, request: &ServerRequest, answer: &ServerAnswer) -> Result<Stat> {
        let Some(size) = content_range(&answer.headers).and_then(|stated| stated.size) else {
            return Err(invalid_answer(
                request,
                "with a part of a value without its size",
            ));
        };
        Ok(self.stat_of(&answer.headers, size))
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
            None => Ok(None),
            Some(EntryKind::Value) => self.stat_of_part(&request, &answer).map(Some),
            Some(_) => Ok(Some(Stat::prefix())),
        }
    }

    async fn send(&self, request: &ServerRequest, body: &mut Vec<u8>) -> Result<ServerAnswer> {
        self.transport
            .send(request, body)
            .await
            .map_err(RequestError::into_error)
    }

    /// Returns whether a value was requested and received.
    fn has_value(&self, key: &Key, request: &ServerRequest, answer: &ServerAnswer) -> Result<bool> {
        match self.found(key, request, answer) {
            Ok(kind) => Ok(kind == Some(EntryKind::Value)),
            Err(e) if e.kind() == Kind::NotAValue => Err(Error::io(e.message())),
            Err(e) => Err(e),
        }
    }

    /// Returns the kind of the entry at a key, according to an answer. A redirect leads from `a` to
    /// `a/`.
    ///
    /// # Errors
    ///
    /// [`Kind::NotAValue`] for an HTML page and status 405: some servers answer so for a directory.
    fn found(
        &self,
        key: &Key,
        request: &ServerRequest,
        answer: &ServerAnswer,
    ) -> Result<Option<EntryKind>> {
        match answer.status.as_u16() {
            200 | 206 => check_value(key, request, answer).map(|()| Some(EntryKind::Value)),
            404 | 410 => Ok(None),
            403 if self.forbidden_is_missing => Ok(None),
            301 | 302 | 303 | 307 | 308 => Ok(Some(EntryKind::Prefix)),
            status => {
                let cause = Cause::Status(answer.status, String::new());
                let e = RequestError::new(&request.method, &request.url, cause, 1).into_error();
                Err(if status == 405 { not_a_value(e) } else { e })
            }
        }
    }

    /// Returns whether the `received` bytes of an answer are the last `len` bytes of a value: a
    /// part that the server says is the end, or the whole value.
    fn end_of(&self, answer: &ServerAnswer, received: u64, len: u64) -> EndOfValue {
        let headers = &answer.headers;
        let size = match answer.status {
            StatusCode::OK => Some(received),
            _ => content_range(headers).and_then(|stated| {
                let size = stated.size?;
                (stated.range? == (size.saturating_sub(len)..size)).then_some(size)
            }),
        };
        match size {
            Some(size) => EndOfValue::Found(self.stat_of(headers, size)),
            None => EndOfValue::Unsupported { ever: true },
        }
    }

    fn stat_of(&self, headers: &HeaderMap, size: u64) -> Stat {
        let date = text(headers, &LAST_MODIFIED)
            .and_then(|date| DateTime::parse_from_rfc2822(date.trim()).ok());
        let modified = date.map_or(SystemTime::UNIX_EPOCH, SystemTime::from);
        Stat::value(size, modified, self.version(headers, size))
    }

    fn version(&self, headers: &HeaderMap, size: u64) -> Version {
        let of_tag = text(headers, &ETAG).map(|tag| Version::Tag(tag.to_string()));
        self.versions
            .version(of_tag, text(headers, &LAST_MODIFIED), size)
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

/// Returns an error if the body is not the value itself.
fn check_value(key: &Key, request: &ServerRequest, answer: &ServerAnswer) -> Result<()> {
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
    if kind.starts_with("text/html") && ![".html", ".htm"].iter().any(|end| name.ends_with(end)) {
        let what = "with an HTML page instead of the value: perhaps its \"not found\", a login or a directory";
        return Err(not_a_value(invalid_answer(request, what)));
    }
    Ok(())
}

/// Returns an error as one about something that is neither a value nor its absence.
fn not_a_value(e: Error) -> Error {
    Error::new(Kind::NotAValue, e.message())
}

fn invalid_answer(request: &ServerRequest, what: &str) -> Error {
    let url = store_url::without_secrets(&request.url);
    Error::io(format!(
        "{} {url}: the server answers {what}",
        request.method
    ))
}
