//! Our transport as the one of the `object_store` crate: what its clients of S3, Google and Azure send goes through it.

use super::failure::{Cause, Failure, is_metadata_service};
use super::names;
use super::transport::{Ask, Transport};
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

/// The most bytes of an answer of which nobody has said how many it may have: listings, tokens.
const MAX_ANSWER: u64 = 10 << 20;

/// How long a machine's own metadata service may take: where there is none, nothing answers at all.
const METADATA: Duration = Duration::from_secs(2);

/// The most bytes the value may have, as an extension of a request.
#[derive(Clone, Copy)]
pub(super) struct Limit(pub u64);

/// The answer is a listing, as an extension of a request.
#[derive(Clone, Copy)]
pub(super) struct Names;

/// Names that can't be keys were left out of a listing, as an extension of an answer.
#[derive(Clone, Copy)]
pub(super) struct OddNames;

/// Where it is noted that a request was sent more than once, as an extension of a request.
#[derive(Clone, Default)]
pub(super) struct Repeated(pub Arc<AtomicBool>);

/// Makes clients of the one transport.
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
    async fn answer(&self, url: Url, request: HttpRequest) -> Result<HttpResponse, Failure> {
        let (parts, body) = request.into_parts();
        let is_read = [Method::GET, Method::HEAD].contains(&parts.method);
        let ask = Ask {
            method: parts.method,
            url,
            headers: parts.headers,
            body: (!is_read).then_some(body),
            limit: parts.extensions.get().map_or(MAX_ANSWER, |Limit(limit)| *limit),
            enough: None,
            skipped: 0,
        };
        let mut answer = match ask.url.host_str().is_some_and(is_metadata_service) {
            false => self.0.send(&ask).await?,
            true => timeout(METADATA, self.0.send(&ask))
                .await
                .map_err(|_| Failure::new(&ask.method, &ask.url, Cause::TimedOut(METADATA), 1))??,
        };
        if let Some(Repeated(noted)) = parts.extensions.get() {
            noted.store(answer.tries > 1, Ordering::Relaxed);
        }
        if is_failure(answer.status, &answer.body) {
            let cause = Cause::Status(answer.status, said(&answer.body));
            return Err(Failure::new(&ask.method, &ask.url, cause, 1));
        }
        let mut has_odd_names = false;
        if parts.extensions.get::<Names>().is_some()
            && let Some(page) = names::without_odd_ones(&answer.body)
        {
            answer.body = page;
            has_odd_names = true;
        }
        if ask.method != Method::HEAD {
            // the crate wants to know; a body that came in pieces was announced without
            answer.headers.insert(CONTENT_LENGTH, answer.body.len().into());
        }
        let mut response = HttpResponse::new(answer.body.into());
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        if has_odd_names {
            response.extensions_mut().insert(OddNames);
        }
        Ok(response)
    }
}

/// True if the status says more than the crate's clients make of it. They know 404, 409 and 412; but a bucket that is not
/// there is another matter than a key.
fn is_failure(status: StatusCode, body: &[u8]) -> bool {
    match status.as_u16() {
        404 => [&b"<Code>NoSuchBucket"[..], b"<Code>ContainerNotFound"].iter().any(|code| contains(body, code)),
        409 | 412 => false,
        code => code >= 400,
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// What the body of an error says: `<Code>` and `<Message>` of the XML that S3, Google and Azure answer.
fn said(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let line = rest.split('<').next()?.lines().next()?;
        Some(line.chars().take(200).collect::<String>())
    };
    [element("Code"), element("Message")].into_iter().flatten().collect::<Vec<_>>().join(": ")
}
