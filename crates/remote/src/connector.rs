//! Adapts the transport to `object_store`, whose clients of S3, Google and Azure send their
//! requests through it.

use super::answer_headers::{first_to_last, text};
use super::page_filter;
use super::request_error::{Cause, RequestError, is_metadata_service, refused};
use super::transport::{ServerAnswer, ServerRequest, Transport, is_listing};
use async_trait::async_trait;
use chrono::DateTime;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use quick_xml::escape::unescape;
use reqwest::header::{CONTENT_LENGTH, ETAG, RANGE};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::timeout;
use zarrfs_base::memory::lock;

/// Maximum size of an answer that is not a value, such as a listing or a token, in bytes.
const MAX_ANSWER: u64 = 10 << 20;

/// Timeout of a request to the metadata service of a cloud's own machines. On other machines
/// nothing answers.
const METADATA: Duration = Duration::from_secs(2);

/// Time after a failure of the metadata service in which it is not asked again: each request of a
/// store without credentials would wait for it.
const METADATA_PAUSE: Duration = Duration::from_secs(10);

/// Request extension: the answer is a value.
#[derive(Clone)]
pub(super) struct ValueBuffer {
    /// Maximum size of the value in bytes.
    limit: u64,
    /// Memory for the value.
    memory: Arc<Mutex<Vec<u8>>>,
}

impl ValueBuffer {
    /// Creates an extension with the memory of `value`.
    pub fn new(limit: u64, value: &mut Vec<u8>) -> Self {
        ValueBuffer {
            limit,
            memory: Arc::new(Mutex::new(std::mem::take(value))),
        }
    }

    /// Returns the memory, unless the answer took it.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.memory))
    }

    /// Returns the memory for the answer to a request.
    pub fn of(request: &HttpRequest) -> Vec<u8> {
        request
            .extensions()
            .get()
            .map(ValueBuffer::take)
            .unwrap_or_default()
    }

    /// Gives back memory that the answer to a request did not need.
    fn restore(request: &HttpRequest, memory: Vec<u8>) {
        if let Some(ValueBuffer { memory: buffer, .. }) = request.extensions().get() {
            *lock(buffer) = memory;
        }
    }
}

/// Answer extension: names that cannot be keys were removed from a listing.
#[derive(Clone, Copy)]
pub(super) struct NamesRemoved;

/// Request extension: set if the request was sent more than once.
#[derive(Clone, Default)]
pub(super) struct WasRetried(pub Arc<AtomicBool>);

/// A source of HTTP clients for `object_store` that share one transport.
#[derive(Clone)]
pub(super) struct Connector {
    pub transport: Arc<Transport>,
    /// The bucket or container, for messages.
    pub bucket: String,
    /// When the metadata service failed last, without an answer since. The lock protects the time
    /// alone.
    metadata_failed: Arc<Mutex<Option<Instant>>>,
    /// Receives the time at which keys expire that an answer contains: `object_store` does not
    /// reveal it. The lock protects the time alone.
    key_expiry: Option<Arc<Mutex<Option<SystemTime>>>>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = url_of(&request)?;
        let mut body = ValueBuffer::of(&request);
        let answer = self.exchange(&url, &request, None, &mut body).await;
        let answer = answer.map_err(http_error)?;
        if let Some(expiry) = &self.key_expiry
            && let Some(end) = end_in(&body)
        {
            *lock(expiry) = Some(end);
        }
        self.response(&url, &request, answer, body)
            .map_err(http_error)
    }
}

/// Returns the URL of a request.
pub(super) fn url_of(request: &HttpRequest) -> Result<Url, HttpError> {
    Url::parse(&request.uri().to_string()).map_err(|e| HttpError::new(HttpErrorKind::Request, e))
}

pub(super) fn http_error(failure: RequestError) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, failure)
}

impl Connector {
    /// Creates a source of clients for a bucket or container.
    pub fn new(transport: Arc<Transport>, bucket: &str) -> Self {
        Connector {
            transport,
            bucket: bucket.to_string(),
            metadata_failed: Arc::default(),
            key_expiry: None,
        }
    }

    /// Makes this a connector for keys, which notes in `expiry` when they expire.
    pub fn noting_expiry(self, expiry: Arc<Mutex<Option<SystemTime>>>) -> Self {
        Connector {
            key_expiry: Some(expiry),
            ..self
        }
    }

    /// Sends a request to the metadata service, which answers at once or not at all.
    pub async fn ask_metadata(
        &self,
        url: &Url,
        request: &ServerRequest,
        body: &mut Vec<u8>,
    ) -> Result<ServerAnswer, RequestError> {
        let silent = RequestError::new(&request.method, url, Cause::TimedOut(METADATA), 1);
        if lock(&self.metadata_failed).is_some_and(|at| at.elapsed() < METADATA_PAUSE) {
            return Err(silent);
        }
        let answer = timeout(METADATA, self.transport.send(request, body))
            .await
            .unwrap_or(Err(silent));
        *lock(&self.metadata_failed) = answer.is_err().then(Instant::now);
        answer
    }

    /// Sends a request and returns the answer unchanged, with its body in `body`. `region` is the
    /// region of the bucket, if the provider has regions.
    pub async fn exchange(
        &self,
        url: &Url,
        request: &HttpRequest,
        region: Option<String>,
        body: &mut Vec<u8>,
    ) -> Result<ServerAnswer, RequestError> {
        let range = bounded_range(request);
        let extensions = request.extensions();
        let value: Option<&ValueBuffer> = extensions.get();
        let mut headers = request.headers().clone();
        if range.is_some() {
            headers.remove(RANGE); // the transport adds it
        }
        let sent = ServerRequest {
            method: request.method().clone(),
            url: url.clone(),
            headers,
            body: (!request.method().is_safe()).then(|| request.body().clone()),
            limit: value.map_or(MAX_ANSWER, |value| value.limit),
            range,
            region,
        };
        // a zone, an emulator or a key file of Google may name another host than the options
        if (is_listing(url) || value.is_some())
            && let Some(host) = url.host_str()
        {
            self.transport.add_host(host);
        }
        let answer = if url.host_str().is_some_and(is_metadata_service) {
            self.ask_metadata(url, &sent, body).await
        } else {
            self.transport.send(&sent, body).await
        };
        let answer = answer.inspect_err(|_| ValueBuffer::restore(request, std::mem::take(body)))?;
        if let Some(WasRetried(noted)) = extensions.get() {
            noted.store(answer.tries > 1, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// Returns an answer as `object_store` expects it.
    pub fn response(
        &self,
        url: &Url,
        request: &HttpRequest,
        mut answer: ServerAnswer,
        mut body: Vec<u8>,
    ) -> Result<HttpResponse, RequestError> {
        if !answer.status.is_success() {
            let said = body.clone();
            ValueBuffer::restore(request, std::mem::replace(&mut body, said));
        }
        if let Some(cause) = self.failure_in(request, &answer, &body) {
            let mut failure = RequestError::new(request.method(), url, cause, 1);
            failure.may_have_expired = request.headers().contains_key("x-amz-security-token");
            return Err(failure);
        }
        let mut are_names_removed = false;
        if is_listing(url)
            && let Some(page) = page_filter::remove_invalid_names(&body)
        {
            body = page;
            are_names_removed = true;
            let why = "keys with empty names, dots or control characters are left out";
            self.transport
                .stats
                .left_out(format!("{}: {why}", self.bucket));
        }
        if request.method() != Method::HEAD {
            // `object_store` requires the length, which a chunked body is sent without
            answer.headers.insert(CONTENT_LENGTH, body.len().into());
        }
        let mut response = HttpResponse::new(body.into());
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        if are_names_removed {
            response.extensions_mut().insert(NamesRemoved);
        }
        Ok(response)
    }

    /// Returns why an answer is a failure. The clients of `object_store` turn 304, 404, 409 and 412
    /// into errors themselves.
    fn failure_in(
        &self,
        request: &HttpRequest,
        answer: &ServerAnswer,
        body: &[u8],
    ) -> Option<Cause> {
        let ServerAnswer {
            status, headers, ..
        } = answer;
        let is_put = request.extensions().get::<WasRetried>().is_some();
        if names_missing_bucket(*status, body) {
            Some(Cause::NoBucket(self.bucket.clone()))
        } else if status.as_u16() >= 300 && !matches!(status.as_u16(), 304 | 404 | 409 | 412) {
            Some(refused(*status, headers, said(body)))
        } else if *status == 200
            && bounded_range(request).is_some()
            && *request.method() == Method::GET
        {
            Some(Cause::Wrong(
                "the server sends another part of the value than requested, or not its size",
            ))
        } else if status.is_success() && is_put && !headers.contains_key(ETAG) {
            // `object_store` would report the stored value as a failure
            Some(Cause::Wrong(
                "the server has stored the value, but states no version of it (ETag), so it cannot be written safely",
            ))
        } else {
            None
        }
    }
}

/// Returns the range of a request for bytes from a first to a last one.
fn bounded_range(request: &HttpRequest) -> Option<Range<u64>> {
    first_to_last(text(request.headers(), &RANGE)?.strip_prefix("bytes=")?)
}

/// Returns whether an answer says that the bucket is missing. An answer to HEAD has no body, so it
/// cannot say this.
fn names_missing_bucket(status: StatusCode, body: &[u8]) -> bool {
    status == 404
        && element(body, "Code")
            .is_some_and(|code| ["NoSuchBucket", "ContainerNotFound"].contains(&code.as_str()))
}

/// Extracts `<Code>` and `<Message>` from the XML body of an error of S3, Google or Azure.
fn said(body: &[u8]) -> String {
    let both = [element(body, "Code"), element(body, "Message")];
    both.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// Returns the text of the first element with this name, on one line.
pub(super) fn element(body: &[u8], name: &str) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let line = rest.split('<').next()?.lines().next()?;
    let line = unescape(line).unwrap_or(line.into());
    Some(line.chars().take(200).collect())
}

/// Returns the `Expiration` of an answer in JSON or XML.
fn end_in(body: &[u8]) -> Option<SystemTime> {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let text = match &parsed {
        Some(parsed) => parsed.get("Expiration")?.as_str()?.to_string(),
        None => element(body, "Expiration")?,
    };
    DateTime::parse_from_rfc3339(text.trim())
        .ok()
        .map(SystemTime::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn services_state_the_end_of_keys_in_json_or_xml() {
        let end = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199));
        assert_eq!(
            end_in(br#"{"AccessKeyId": "A", "Expiration": "2024-02-29T23:59:59Z"}"#),
            end
        );
        assert_eq!(
            end_in(
                b"<R><Credentials><Expiration>2024-02-29T23:59:59Z</Expiration></Credentials></R>"
            ),
            end
        );
        for body in [
            &b"role-name"[..],
            b"{}",
            b"<Expiration>soon</Expiration>",
            br#"{"Expiration": 5}"#,
            b"\xff",
        ] {
            assert_eq!(end_in(body), None);
        }
    }
}
