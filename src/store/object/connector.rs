//! Adapts the transport to `object_store`, whose clients of S3, Google and Azure send their requests through it.

use super::page_filter;
use super::request_error::{Cause, RequestError, is_metadata_service};
use super::transport::{ServerRequest, Transport};
use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Method, StatusCode, Url};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Maximum size of an answer that is not a value, such as a listing or a token, in bytes.
const MAX_ANSWER: u64 = 10 << 20;

/// Timeout of a request to the metadata service of a cloud's own machines. On other machines nothing answers.
const METADATA: Duration = Duration::from_secs(2);

/// Request extension: the maximum size of the value in bytes.
#[derive(Clone, Copy)]
pub(super) struct ValueLimit(pub u64);

/// Request extension: the answer is a listing.
#[derive(Clone, Copy)]
pub(super) struct IsListing;

/// Answer extension: names that cannot be keys were removed from a listing.
#[derive(Clone, Copy)]
pub(super) struct NamesRemoved;

/// Request extension: set if the request was sent more than once.
#[derive(Clone, Default)]
pub(super) struct WasRetried(pub Arc<AtomicBool>);

/// Creates clients of `object_store` that share one transport.
pub(super) struct Connector(pub Arc<Transport>);

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Connector(self.0.clone())))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = Url::parse(&request.uri().to_string()).map_err(|e| HttpError::new(HttpErrorKind::Request, e))?;
        self.answer(url, request).await.map_err(|failure| HttpError::new(HttpErrorKind::Unknown, failure))
    }
}

impl Connector {
    async fn answer(&self, url: Url, request: HttpRequest) -> Result<HttpResponse, RequestError> {
        let (parts, body) = request.into_parts();
        let is_read = [Method::GET, Method::HEAD].contains(&parts.method);
        let request = ServerRequest {
            method: parts.method,
            url,
            headers: parts.headers,
            body: (!is_read).then_some(body),
            limit: parts.extensions.get().map_or(MAX_ANSWER, |ValueLimit(limit)| *limit),
            range: None,
        };
        let mut answer = match request.url.host_str().is_some_and(is_metadata_service) {
            false => self.0.send(&request).await?,
            true => timeout(METADATA, self.0.send(&request))
                .await
                .map_err(|_| RequestError::new(&request.method, &request.url, Cause::TimedOut(METADATA), 1))??,
        };
        if let Some(WasRetried(noted)) = parts.extensions.get() {
            noted.store(answer.tries > 1, Ordering::Relaxed);
        }
        if is_handled_here(answer.status, &answer.body) {
            let cause = Cause::Status(answer.status, said(&answer.body));
            return Err(RequestError::new(&request.method, &request.url, cause, 1));
        }
        let mut are_names_removed = false;
        if parts.extensions.get::<IsListing>().is_some()
            && let Some(page) = page_filter::remove_invalid_names(&answer.body)
        {
            answer.body = page;
            are_names_removed = true;
        }
        if request.method != Method::HEAD {
            // `object_store` requires the length, which a chunked body is sent without
            answer.headers.insert(CONTENT_LENGTH, answer.body.len().into());
        }
        let mut response = HttpResponse::new(answer.body.into());
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        if are_names_removed {
            response.extensions_mut().insert(NamesRemoved);
        }
        Ok(response)
    }
}

/// Returns whether the status is handled here. The clients of `object_store` handle 404, 409 and 412, except that they
/// do not distinguish a missing bucket from a missing key.
fn is_handled_here(status: StatusCode, body: &[u8]) -> bool {
    match status.as_u16() {
        404 => [&b"<Code>NoSuchBucket"[..], b"<Code>ContainerNotFound"].iter().any(|code| contains(body, code)),
        409 | 412 => false,
        code => code >= 400,
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Extracts `<Code>` and `<Message>` from the XML body of an error of S3, Google or Azure.
fn said(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let line = rest.split('<').next()?.lines().next()?;
        Some(line.chars().take(200).collect::<String>())
    };
    [element("Code"), element("Message")].into_iter().flatten().collect::<Vec<_>>().join(": ")
}
