//! Failed requests, their causes, and the errors that a store returns for them.

use super::renewed_keys::Refusal;
use chrono::DateTime;
use reqwest::header::{DATE, HeaderMap};
use reqwest::{Method, StatusCode, Url};
use std::fmt;
use std::time::{Duration, SystemTime};
use zarrfs_base::error::{Error, Kind};
use zarrfs_base::stats::ServerOutcome;

/// The cause of a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// No connection.
    Unreachable(String),
    /// No connection, since no program listens at the port.
    Refused(String),
    /// A broken connection, or a body that was shorter or longer than announced.
    Broken(String),
    /// No data arrived for this long.
    TimedOut(Duration),
    /// A temporary failure of the server, with the pause that it asks for.
    Busy(StatusCode, Option<Duration>),
    /// The value exceeds its limit.
    TooLarge {
        /// Announced size in bytes.
        size: Option<u64>,
        /// Maximum size in bytes.
        limit: u64,
    },
    /// A connection that no retry can make: a certificate, a protocol or a proxy.
    Unusable(String),
    /// An answer that violates HTTP or the request.
    Wrong(&'static str),
    /// A status that is not a success, with the explanation of the server.
    Status(StatusCode, String),
    /// A refusal by a server whose time differs from that of this machine, with its explanation and
    /// the difference.
    Clock(StatusCode, String, Option<Duration>),
    /// The server has no bucket or container of this name.
    NoBucket(String),
    /// There are no credentials to sign the request with.
    Credentials(Error),
    /// An error of the local system.
    System(Error),
}

impl Cause {
    /// Returns the cause for a body of another length than announced.
    pub fn short(received: u64, wanted: u64) -> Self {
        Cause::Broken(format!("received {received} bytes instead of {wanted}"))
    }

    /// Returns whether a retry may succeed.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Cause::Unreachable(_)
                | Cause::Refused(_)
                | Cause::Broken(_)
                | Cause::TimedOut(_)
                | Cause::Busy(..)
        )
    }

    /// Returns the outcome as which the attempt is counted.
    pub fn outcome(&self) -> ServerOutcome {
        match self {
            Cause::Unreachable(_) | Cause::Refused(_) | Cause::Unusable(_) => {
                ServerOutcome::Unreachable
            }
            Cause::Broken(_) => ServerOutcome::Broken,
            Cause::TimedOut(_) => ServerOutcome::TimedOut,
            Cause::Busy(status, _) | Cause::Status(status, _) | Cause::Clock(status, ..) => {
                ServerOutcome::of_status(status.as_u16())
            }
            Cause::NoBucket(_) => ServerOutcome::of_status(404),
            Cause::TooLarge { .. } | Cause::Wrong(_) | Cause::System(_) | Cause::Credentials(_) => {
                ServerOutcome::Invalid
            }
        }
    }

    /// Returns the pause that the server asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Cause::Busy(_, after) => *after,
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Unreachable(text)
            | Cause::Refused(text)
            | Cause::Broken(text)
            | Cause::Unusable(text) => f.write_str(text),
            Cause::TimedOut(time) => {
                write!(f, "no data for {:.1} s (--timeout)", time.as_secs_f32())
            }
            Cause::Busy(status, _) => write!(f, "the server answers {status}"),
            Cause::TooLarge {
                size: Some(size),
                limit,
            } => {
                write!(f, "{size} bytes, more than the {limit} it may have")
            }
            Cause::TooLarge { size: None, limit } => {
                write!(f, "more than the {limit} bytes it may have")
            }
            Cause::Wrong(text) => f.write_str(text),
            Cause::Status(status, said) => f.write_str(&answered(*status, said)),
            Cause::Clock(status, said, difference) => {
                let minutes = difference.map_or(String::new(), |difference| {
                    format!(" by {} min", difference.as_secs() / 60)
                });
                let answered = answered(*status, said);
                write!(
                    f,
                    "{answered}; the clock of this machine is wrong{minutes}, set it"
                )
            }
            Cause::NoBucket(bucket) => write!(f, "the server has no bucket {bucket}"),
            Cause::Credentials(error) | Cause::System(error) => error.fmt(f),
        }
    }
}

/// Returns what a server answers, with its explanation.
fn answered(status: StatusCode, said: &str) -> String {
    let colon = if said.is_empty() { "" } else { ": " };
    format!("the server answers {status}{colon}{said}")
}

/// A request that failed for good.
#[derive(Clone, Debug)]
pub(super) struct RequestError {
    /// Method and URL without secrets.
    request: String,
    host: String,
    cause: Cause,
    tries: u32,
    /// Whether the request had credentials that expire.
    pub may_have_expired: bool,
}

impl RequestError {
    pub fn new(method: &Method, url: &Url, cause: Cause, tries: u32) -> Self {
        let host = url.host_str().unwrap_or_default().to_string();
        RequestError {
            request: format!("{method} {}", super::store_url::without_secrets(url)),
            host,
            cause,
            tries,
            may_have_expired: false,
        }
    }

    /// Returns the HTTP status, if it was the cause.
    pub fn status(&self) -> Option<u16> {
        match &self.cause {
            Cause::Status(status, _) | Cause::Busy(status, _) | Cause::Clock(status, ..) => {
                Some(status.as_u16())
            }
            _ => None,
        }
    }

    /// Returns whether the server has no such range of the value, does not know such ranges, or
    /// ignores them and sends more than was requested.
    pub fn lacks_range(&self) -> bool {
        matches!(self.status(), Some(416 | 501)) || matches!(self.cause, Cause::TooLarge { .. })
    }

    /// Returns whether the answer is 403, and does not say that the credentials are the cause. An
    /// answer to HEAD says nothing.
    pub fn may_mean_missing(&self) -> bool {
        matches!(&self.cause, Cause::Status(status, said)
            if *status == StatusCode::FORBIDDEN && !is_expired(said) && !WRONG.contains(&code_of(said)))
    }

    /// Converts the failure to the error that a store returns.
    pub fn into_error(self) -> Error {
        if is_metadata_service(&self.host) {
            return Error::system(libc::EACCES).context(NO_CREDENTIALS);
        }
        let message = self.to_string();
        match self.cause {
            Cause::TooLarge { .. } => Error::damaged(message),
            Cause::NoBucket(bucket) => {
                let message = format!(
                    "the server {} has no bucket {bucket}; check its name, or create it",
                    self.host
                );
                Error::new(Kind::NoStore, message)
            }
            Cause::System(error) => Error::new(error.kind(), message),
            Cause::Credentials(error) => error,
            Cause::Clock(..) => Error::denied(message),
            Cause::Status(status, said)
                if [401, 403].contains(&status.as_u16()) || is_expired(&said) =>
            {
                Error::denied(format!("{message}; {}", advice(status)))
            }
            // an answer to HEAD has no code
            Cause::Status(status, said)
                if status == 400 && said.is_empty() && self.may_have_expired =>
            {
                Error::io(format!("{message}; the credentials may have expired"))
            }
            Cause::Status(status, _) if status == 507 => {
                Error::new(Kind::System(libc::ENOSPC), message)
            }
            _ => Error::io(message),
        }
    }
}

const NO_CREDENTIALS: &str = "no credentials were found in the environment, in a profile or from the machine's role; \
    --anon sends none";

/// Codes of answers with status 400 or 403 that other credentials may avoid. `InvalidTokenId` is
/// one of MinIO.
const EXPIRED: [&str; 5] = [
    "ExpiredToken",
    "InvalidToken",
    "InvalidTokenId",
    "TokenRefreshRequired",
    "RequestExpired",
];

/// Codes of answers of S3 and Azure that refuse wrong credentials, whatever the key of the request.
const WRONG: [&str; 6] = [
    "AuthenticationFailed",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "NotSignedUp",
    TOO_SKEWED,
    "SignatureDoesNotMatch",
];

/// Code of an answer that refuses a request because of the clock of this machine, which other
/// credentials cannot help.
const TOO_SKEWED: &str = "RequestTimeTooSkewed";

/// Difference of the clocks from which on a refusal is put down to it: Google and Azure accept no
/// more.
const MAX_SKEW: Duration = Duration::from_secs(5 * 60);

/// Returns whether a server has refused credentials because they have expired. `said` begins with
/// the code of its answer.
fn is_expired(said: &str) -> bool {
    EXPIRED.contains(&code_of(said))
}

/// Returns the kind of refusal, if an answer refuses the credentials of a request. An answer to
/// HEAD has no code.
pub(super) fn refusal_of(status: StatusCode, code: Option<&str>) -> Option<Refusal> {
    let names_keys = code.is_some_and(|code| EXPIRED.contains(&code) || WRONG.contains(&code));
    match (status.as_u16(), code) {
        (_, Some(TOO_SKEWED)) => None,
        (401, _) => Some(Refusal::OfKeys),
        (400 | 403, _) if names_keys => Some(Refusal::OfKeys),
        (403, _) | (400, None) => Some(Refusal::Unclear),
        _ => None,
    }
}

/// Returns the cause for a status that is not a success.
pub(super) fn refused(status: StatusCode, headers: &HeaderMap, said: String) -> Cause {
    let date = headers
        .get(DATE)
        .and_then(|date| DateTime::parse_from_rfc2822(date.to_str().ok()?).ok());
    let now = SystemTime::now();
    let difference = date
        .map(|date| {
            now.duration_since(date.into())
                .unwrap_or_else(|e| e.duration())
        })
        .filter(|difference| *difference >= MAX_SKEW);
    let may_be_clock = [400, 401, 403].contains(&status.as_u16()) && difference.is_some();
    if may_be_clock || code_of(&said) == TOO_SKEWED {
        Cause::Clock(status, said, difference)
    } else {
        Cause::Status(status, said)
    }
}

fn code_of(said: &str) -> &str {
    said.split(':').next().unwrap_or_default()
}

fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "renew the credentials",
        403 => {
            "check the credentials, or give --anon for public data, or --403-is-missing if the server answers so for \
             missing keys"
        }
        _ => "check the credentials, or give --anon for public data",
    }
}

/// Returns whether `host` is the metadata service from which machines of a cloud get credentials.
pub(super) fn is_metadata_service(host: &str) -> bool {
    host.starts_with("169.254.") || host == "metadata.google.internal"
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.request, self.cause)?;
        if self.tries > 1 {
            write!(f, "; {} attempts", self.tries)
        } else {
            Ok(())
        }
    }
}

impl std::error::Error for RequestError {}
