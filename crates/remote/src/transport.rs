//! HTTP requests with retries. An answer is complete or an error. This module does not know stores,
//! and leaves the meaning of a status to its callers.

mod receive;

use super::answer_headers::text;
use super::connection_error::{cause_of, lack_of_certificates, refusal_of_proxy, text_of};
use super::hosts::Hosts;
use super::outage::Outage;
use super::request_error::{Cause, RequestError};
use super::request_log::{self, Attempt};
use super::retry;
use super::store_url;
use object_store::client::HttpRequestBody;
use percent_encoding::percent_decode_str;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, LOCATION, RANGE, USER_AGENT,
};
use reqwest::{Body, Client, ClientBuilder, Method, Response, StatusCode, Url, Version};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use zarrfs_base::error::Error;
use zarrfs_base::memory;
use zarrfs_base::stats::{ServerOperation, ServerOutcome, Stats};
use zarrfs_store::TargetPlace;

/// Headers that a redirect to another origin may carry, since they select the right answer. Any
/// other header may be a secret: credentials, session tokens, encryption keys of objects.
const HARMLESS: [HeaderName; 8] = [
    ACCEPT,
    ACCEPT_ENCODING,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE,
    RANGE,
    USER_AGENT,
];

/// Header with the region of a bucket of S3.
pub(super) const BUCKET_REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");

/// Maximum number of redirects per attempt.
const MAX_REDIRECTS: usize = 10;

/// Maximum size of an answer that reports an error, in bytes.
const MAX_ERROR: u64 = 64 << 10;

/// Maximum time to establish a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Maximum number of requests in flight to a server that closes each connection. Small servers,
/// such as Python's, accept a backlog of about six connections and drop others, which the system
/// retries after a second.
const NEW_CONNECTIONS: usize = 6;

/// Share of the timeout, as a divisor, after which an answer without new data is given up.
const STALLS: u32 = 3;

/// Remaining time below which pauses are no longer shortened, so that the next attempt is the last
/// one.
const LAST: Duration = Duration::from_millis(500);

/// A request.
pub(super) struct ServerRequest {
    /// GET, HEAD, PUT, ...
    pub method: Method,
    /// Target of the request.
    pub url: Url,
    /// Headers of this request; those of the user are added.
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: Option<HttpRequestBody>,
    /// Maximum size of the body of the answer, in bytes.
    pub limit: u64,
    /// The requested range. If the server sends the whole value instead, only its bytes are kept,
    /// and the answer is changed to that of a server that supports ranges. An answer with another
    /// part, or without the size of the value, is an error.
    pub range: Option<Range<u64>>,
    /// Region of the bucket. A redirect that names another region is returned as an answer, since a
    /// signature is valid in one region only.
    pub region: Option<String>,
}

impl ServerRequest {
    /// Creates a request without a body.
    pub fn new(method: Method, url: Url) -> Self {
        ServerRequest {
            method,
            url,
            headers: HeaderMap::new(),
            body: None,
            limit: MAX_ERROR,
            range: None,
            region: None,
        }
    }

    /// Returns the size of the body in bytes.
    fn sent(&self) -> usize {
        self.body
            .as_ref()
            .map_or(0, HttpRequestBody::content_length)
    }

    /// Creates a request for a range of a value, which must not be empty.
    pub fn for_range(url: Url, range: Range<u64>) -> Self {
        let limit = range.end - range.start;
        ServerRequest {
            limit,
            range: Some(range),
            ..Self::new(Method::GET, url)
        }
    }
}

/// A complete answer, except for its body, which is in a buffer of the caller.
pub(super) struct ServerAnswer {
    /// Number of attempts.
    pub tries: u32,
    pub status: StatusCode,
    pub headers: HeaderMap,
}

/// A sender of requests.
pub(super) struct Transport {
    client: Client,
    /// Why the certificates of servers cannot be checked.
    certificates: Option<String>,
    /// Headers from the user, which only the hosts of the store receive.
    headers: HeaderMap,
    hosts: Mutex<Vec<String>>,
    /// Places to which redirects may lead; `None` for all.
    pub redirects: Option<Arc<[TargetPlace]>>,
    /// Whether a refused connection is final while the server has not answered.
    pub refusal_is_final: bool,
    timeout: Duration,
    retries: u32,
    pub(super) stats: Arc<Stats>,
    /// Whether the latest answer announced that the server closes the connection.
    is_closing: AtomicBool,
    outage: Outage,
    new_connections: Semaphore,
}

impl Transport {
    /// Creates a transport. `headers` are sent only to `hosts`, those of the store.
    pub fn new(
        hosts: Vec<String>,
        headers: HeaderMap,
        timeout: Duration,
        retries: u32,
        stats: Arc<Stats>,
    ) -> zarrfs_base::error::Result<Self> {
        // an error means that a provider is installed already
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = client_builder(timeout).build();
        let certificates = lack_of_certificates(client.is_ok());
        // without certificates, http:// still works
        let client = client
            .or_else(|_| client_builder(timeout).tls_certs_only([]).build())
            .map_err(|e| Error::unsupported(text_of(&e)))?;
        Ok(Transport {
            client,
            certificates,
            headers,
            hosts: Mutex::new(hosts),
            redirects: None,
            refusal_is_final: false,
            timeout,
            retries,
            outage: Outage::new(timeout, stats.clone()),
            stats,
            is_closing: AtomicBool::new(false),
            new_connections: Semaphore::new(NEW_CONNECTIONS),
        })
    }

    /// Adds a host of the store.
    pub fn add_host(&self, host: &str) {
        if !self.is_own(host) {
            memory::lock(&self.hosts).push(host.to_string());
        }
    }

    fn is_own(&self, host: &str) -> bool {
        memory::lock(&self.hosts).iter().any(|h| h == host)
    }

    /// Returns whether a request goes to the store. That a service for credentials fails is no
    /// outage of the store.
    fn is_of_store(&self, request: &ServerRequest) -> bool {
        request.url.host_str().is_some_and(|host| self.is_own(host))
    }

    /// Sends a request, and retries temporary failures. The answer's body replaces the content of
    /// `body`, whose memory is reused. All attempts together end within the timeout. If the server
    /// has answered nothing since a request was given up, one request at a time gets one attempt,
    /// and the others fail with it; a silent server is given little time: programs that close
    /// several files, or ask for several values, wait for the server once and not each time.
    pub async fn send(
        &self,
        request: &ServerRequest,
        body: &mut Vec<u8>,
    ) -> Result<ServerAnswer, RequestError> {
        let deadline = Instant::now() + self.timeout;
        let mut tries = 0;
        let mut probe = None;
        if self.is_of_store(request) {
            let admitted = self.outage.admit(self.first_wait(request)).await;
            probe = admitted.map_err(|cause| self.failed(request, cause, 0))?;
        }
        loop {
            tries += 1;
            let started = Instant::now();
            let limit = probe.as_ref().map_or(self.timeout, |probe| probe.limit);
            let left = deadline.saturating_duration_since(started);
            let outcome = timeout(limit.min(left), self.try_once(request, body)).await;
            let outcome = outcome.unwrap_or(Err(Cause::TimedOut(limit)));
            Attempt {
                method: &request.method,
                url: &request.url,
                range: request.range.as_ref(),
                sent: request.sent(),
                outcome: outcome.as_ref().map(|(status, _)| (*status, body.len())),
                time: started.elapsed(),
                tries,
            }
            .log();
            let cause = match outcome {
                Ok((status, headers)) => {
                    self.record_answer(request, status, started);
                    return Ok(ServerAnswer {
                        tries,
                        status,
                        headers,
                    });
                }
                Err(cause) => cause,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let mut pause = retry::pause(tries, cause.retry_after());
            if cause.retry_after().is_none() && left > LAST {
                // the last attempts use the time that is left
                pause = pause.min(left / 2);
            }
            // another request may have been answered meanwhile
            if !self.outage.is_given_up(Instant::now()) {
                probe = None;
            }
            let retries = if probe.is_some() { 0 } else { self.retries };
            let cause = self.final_refusal(cause);
            let is_last =
                !cause.may_pass() || tries > retries || Instant::now() + pause >= deadline;
            self.record_failure(request, &cause, started, is_last);
            if is_last {
                return Err(self.failed(request, cause, tries));
            }
            self.stats.request_retries.add(1);
            tokio::time::sleep(pause).await;
        }
    }

    /// Returns a cause that no retry mends, and what to do, for a refused connection that is final.
    fn final_refusal(&self, cause: Cause) -> Cause {
        match cause {
            Cause::Refused(text) if self.refusal_is_final && !self.outage.has_answered() => {
                Cause::Unusable(format!(
                    "{text}; check the host and the port of the URL, and that the server runs"
                ))
            }
            cause => cause,
        }
    }

    /// Counts an attempt that began at `began` and got an answer.
    fn record_answer(&self, request: &ServerRequest, status: StatusCode, began: Instant) {
        let outcome = ServerOutcome::of_status(status.as_u16());
        let requests = &self.stats.server_requests;
        requests.record(operation(request), outcome, began.elapsed());
        if status.is_success() {
            self.stats.bytes_sent.add(request.sent() as u64);
        }
        if self.is_of_store(request)
            && let Some(line) = self.outage.answered(Instant::now())
        {
            log::warn!("{}: {line}", request.url.origin().ascii_serialization());
        }
    }

    /// Counts an attempt that began at `began` and failed. Another one follows unless `is_last`.
    fn record_failure(
        &self,
        request: &ServerRequest,
        cause: &Cause,
        began: Instant,
        is_last: bool,
    ) {
        let requests = &self.stats.server_requests;
        requests.record(operation(request), cause.outcome(), began.elapsed());
        if !cause.may_pass() || !self.is_of_store(request) {
            return;
        }
        if let Some(line) = self.outage.failed(cause, began, Instant::now(), is_last) {
            let next = if is_last {
                String::new()
            } else {
                format!(
                    "; trying again, each request up to {:.1} s (--timeout)",
                    self.timeout.as_secs_f32()
                )
            };
            log::warn!(
                "{}: {line}; last: {cause}{next}",
                request.url.origin().ascii_serialization()
            );
        }
    }

    /// Counts a request that failed for good.
    fn failed(&self, request: &ServerRequest, cause: Cause, tries: u32) -> RequestError {
        let e = RequestError::new(&request.method, &request.url, cause, tries);
        self.stats.request_failures.add(1);
        self.stats.record_error(e.to_string());
        e
    }

    /// Sends a request once, and follows redirects.
    async fn try_once(
        &self,
        request: &ServerRequest,
        body: &mut Vec<u8>,
    ) -> Result<(StatusCode, HeaderMap), Cause> {
        let _permit = if self.is_closing.load(Ordering::Relaxed) {
            self.new_connections.acquire().await.ok()
        } else {
            None
        };
        let mut url = request.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.exchange(request, &url).await?;
            match followed(request, &url, &response) {
                Some(next) => {
                    self.check_redirect(&next)?;
                    url = next;
                }
                None => return self.receive(request, response, body).await,
            }
        }
        Err(Cause::Wrong("too many redirects"))
    }

    /// Checks that a redirect leads where requests may be sent.
    fn check_redirect(&self, next: &Url) -> Result<(), Cause> {
        let Some(places) = &self.redirects else {
            return Ok(());
        };
        if TargetPlace::of_url(next.as_str()).is_ok_and(|place| place.is_below_any(places)) {
            return Ok(());
        }
        let why = format!(
            "the server redirects to {}, outside the directory of the references; --allow-reference URL allows it",
            store_url::without_secrets(next)
        );
        Err(Cause::System(Error::denied(why)))
    }

    /// Sends a request to `url`, and waits for the head of the answer.
    async fn exchange(&self, request: &ServerRequest, url: &Url) -> Result<Response, Cause> {
        let mut outgoing = reqwest::Request::new(request.method.clone(), url.clone());
        *outgoing.headers_mut() = request.headers.clone();
        if let Some(range) = &request.range
            && let Ok(range) =
                HeaderValue::try_from(format!("bytes={}-{}", range.start, range.end - 1))
        {
            outgoing.headers_mut().insert(RANGE, range);
        }
        // a compressed body would not be the value
        outgoing
            .headers_mut()
            .entry(ACCEPT_ENCODING)
            .or_insert(HeaderValue::from_static("identity"));
        if url.origin() != request.url.origin() {
            let headers = std::mem::take(outgoing.headers_mut());
            let harmless = HARMLESS
                .iter()
                .filter_map(|name| Some((name.clone(), headers.get(name)?.clone())));
            outgoing.headers_mut().extend(harmless);
        } else if url.host_str().is_some_and(|host| self.is_own(host)) {
            outgoing.headers_mut().extend(self.headers.clone());
        }
        *outgoing.body_mut() = request.body.clone().map(Body::wrap);
        self.stats.requests.add(1);
        request_log::headers(&request.method, url, None, outgoing.headers());
        let stall = self.first_wait(request);
        let answer = timeout(stall, self.client.execute(outgoing)).await;
        let answer = answer
            .map_err(|_| Cause::TimedOut(stall))?
            .map_err(|e| cause_of(&e, url, self.certificates.as_deref()))?;
        if answer.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return Err(refusal_of_proxy(url));
        }
        request_log::headers(
            &request.method,
            url,
            Some(answer.status().as_u16()),
            answer.headers(),
        );
        let closes = text(answer.headers(), &CONNECTION)
            .is_some_and(|value| value.eq_ignore_ascii_case("close"));
        self.is_closing.store(
            closes || answer.version() == Version::HTTP_10,
            Ordering::Relaxed,
        );
        Ok(answer)
    }

    fn stall(&self) -> Duration {
        self.timeout / STALLS
    }

    /// Returns how long an attempt waits for the head of its answer.
    fn first_wait(&self, request: &ServerRequest) -> Duration {
        if request.method.is_safe() {
            self.stall()
        } else {
            self.timeout
        }
    }
}

fn client_builder(timeout: Duration) -> ClientBuilder {
    Client::builder()
        .user_agent(concat!("zarrfs/", env!("CARGO_PKG_VERSION")))
        // redirects are followed here, since not every header may be sent to their target
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT.min(timeout))
        .dns_resolver(Hosts)
        .http1_only()
}

/// Returns the target of a redirect to follow. A redirect from `a` to `a/` says that `a` is a
/// directory, and is not followed.
fn followed(request: &ServerRequest, url: &Url, response: &Response) -> Option<Url> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    if !is_redirect || !request.method.is_safe() {
        return None;
    }
    let region = text(response.headers(), &BUCKET_REGION);
    if let (Some(own), Some(other)) = (&request.region, region)
        && own != other
    {
        return None;
    }
    let next = url.join(text(response.headers(), &LOCATION)?).ok()?;
    if !["http", "https"].contains(&next.scheme()) || is_directory_of(&next, url) {
        return None;
    }
    Some(next)
}

/// Returns whether `next` is `url` with a trailing slash, however the server encodes it.
fn is_directory_of(next: &Url, url: &Url) -> bool {
    next.path()
        .strip_suffix('/')
        .is_some_and(|path| percent_decode_str(path).eq(percent_decode_str(url.path())))
}

/// Returns what a request asks for.
fn operation(request: &ServerRequest) -> ServerOperation {
    match request.method {
        Method::GET if is_listing(&request.url) => ServerOperation::List,
        Method::GET => ServerOperation::Get,
        Method::HEAD => ServerOperation::Head,
        Method::PUT => ServerOperation::Put,
        Method::DELETE => ServerOperation::Delete,
        _ => ServerOperation::Post,
    }
}

/// Returns whether a URL asks for names. S3 and Google list by `list-type`, Azure lists by `comp`.
pub(super) fn is_listing(url: &Url) -> bool {
    url.query_pairs()
        .any(|(name, value)| name == "list-type" || name == "comp" && value == "list")
}
