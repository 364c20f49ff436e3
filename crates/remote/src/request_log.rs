//! The log of requests: at `debug` a line for each attempt, at `trace` also the headers. No line
//! holds a secret: it shows only those parameters of a URL and those values of headers whose names
//! are listed here.

use super::request_error::Cause;
use log::Level;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode, Url};
use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

/// Parameters of a URL that name keys; others may be signatures.
const PARAMETERS: [&str; 5] = [
    "prefix",
    "delimiter",
    "start-after",
    "uploadId",
    "partNumber",
];

/// Headers whose values are shown; any other may be a secret.
const HARMLESS: [&str; 26] = [
    "accept",
    "accept-encoding",
    "accept-ranges",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "last-modified",
    "range",
    "retry-after",
    "server",
    "transfer-encoding",
    "user-agent",
    "x-amz-bucket-region",
    "x-amz-id-2",
    "x-amz-request-id",
    "x-ms-error-code",
    "x-ms-request-id",
];

/// One attempt of a request.
pub(super) struct Attempt<'a> {
    pub method: &'a Method,
    pub url: &'a Url,
    pub range: Option<&'a Range<u64>>,
    /// Size of the body that was sent, in bytes.
    pub sent: usize,
    /// Status and size in bytes of a complete answer, or the cause of the failure.
    pub outcome: Result<(StatusCode, usize), &'a Cause>,
    pub time: Duration,
    /// Number of the attempt, from 1.
    pub tries: u32,
}

impl Attempt<'_> {
    /// Logs the attempt.
    pub fn log(&self) {
        if log::log_enabled!(Level::Debug) {
            log::debug!("{}", self.line());
        }
    }

    /// Returns the line: method, key, range, status or cause, time, bytes, number of the attempt.
    fn line(&self) -> String {
        let range = self.range.map_or(String::new(), |range| {
            format!(" bytes {}-{}", range.start, range.end.saturating_sub(1))
        });
        let (outcome, received) = match &self.outcome {
            Ok((status, received)) => (status.as_u16().to_string(), *received),
            Err(cause) => (cause.to_string(), 0),
        };
        format!(
            "{} {}{range}: {outcome}, {:.1} ms, {} bytes sent, {received} received, try {}",
            self.method,
            shown(self.url),
            self.time.as_secs_f64() * 1e3,
            self.sent,
            self.tries
        )
    }
}

/// Logs the headers of a request or, with its status, of an answer.
pub(super) fn headers(method: &Method, url: &Url, status: Option<u16>, headers: &HeaderMap) {
    if log::log_enabled!(Level::Trace) {
        let what = status.map_or_else(|| "sent".to_string(), |status| format!("answer {status}"));
        log::trace!(
            "{method} {}: {what}: {}",
            shown(url),
            shown_headers(headers)
        );
    }
}

/// Returns a URL with the parameters that name keys.
fn shown(url: &Url) -> String {
    let mut text = super::store_url::without_secrets(url);
    let named = url
        .query_pairs()
        .filter(|(name, _)| PARAMETERS.contains(&&**name));
    for (n, (name, value)) in named.enumerate() {
        let _ = write!(text, "{}{name}={value}", if n == 0 { '?' } else { '&' });
    }
    text
}

/// Returns headers on one line, without the values that may be secret.
fn shown_headers(headers: &HeaderMap) -> String {
    let shown = headers.iter().map(|(name, value)| {
        if HARMLESS.contains(&name.as_str()) && !value.is_sensitive() {
            format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))
        } else {
            format!("{name}: (hidden)")
        }
    });
    shown.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::{AUTHORIZATION, ETAG, HeaderValue};

    #[test]
    fn a_line_names_method_key_status_time_bytes_and_try() {
        let url = Url::parse("https://me:secret@host/b/x.zarr/0.0?X-Amz-Signature=secret").unwrap();
        let range = 16..48;
        let time = Duration::from_micros(12_340);
        let outcome = Ok((StatusCode::PARTIAL_CONTENT, 32));
        let range = Some(&range);
        let attempt = Attempt {
            method: &Method::GET,
            url: &url,
            range,
            sent: 0,
            outcome,
            time,
            tries: 2,
        };
        let expected = "GET https://host/b/x.zarr/0.0 bytes 16-47: 206, 12.3 ms, 0 bytes sent, 32 received, try 2";
        assert_eq!(attempt.line(), expected);
        let url =
            Url::parse("https://host/b?list-type=2&prefix=x.zarr%2Fa/&delimiter=%2F&sig=secret")
                .unwrap();
        let cause = Cause::Busy(StatusCode::SERVICE_UNAVAILABLE, None);
        let attempt = Attempt {
            url: &url,
            range: None,
            outcome: Err(&cause),
            tries: 1,
            ..attempt
        };
        let expected = "GET https://host/b?prefix=x.zarr/a/&delimiter=/: the server answers 503 Service Unavailable, \
            12.3 ms, 0 bytes sent, 0 received, try 1";
        assert_eq!(attempt.line(), expected);
    }

    #[test]
    fn values_of_unknown_headers_are_hidden() {
        let mut headers = HeaderMap::new();
        headers.insert(ETAG, HeaderValue::from_static("\"abc\""));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        headers.insert("x-amz-security-token", HeaderValue::from_static("secret"));
        let expected = "etag: \"abc\"; authorization: (hidden); x-amz-security-token: (hidden)";
        assert_eq!(shown_headers(&headers), expected);
    }
}
