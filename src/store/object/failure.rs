//! Why a request got no answer that could be used, and what of it a program is told. It knows statuses, no keys.

use crate::error::{Error, Kind};
use reqwest::{Method, StatusCode, Url};
use std::fmt;
use std::time::Duration;

/// What stood in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// No connection, or one that broke.
    Broken(String),
    /// Nothing came for this long.
    TimedOut(Duration),
    /// The server can't answer now; when it asks to be asked again.
    Busy(StatusCode, Option<Duration>),
    /// Fewer bytes than were announced, or more.
    Short {
        /// Bytes that came.
        received: u64,
        /// Bytes announced.
        wanted: u64,
    },
    /// More bytes than the value may have.
    TooLarge {
        /// As many as are announced.
        size: Option<u64>,
        /// As many may be.
        limit: u64,
    },
    /// From one place to the next without an end.
    Redirects,
    /// An answer that makes no sense.
    Wrong(&'static str),
    /// A status that is no success, with what the server says of it.
    Status(StatusCode, String),
    /// Something of this machine.
    System(Error),
}

impl Cause {
    /// True if sending the request again may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Cause::Broken(_) | Cause::TimedOut(_) | Cause::Busy(..) | Cause::Short { .. })
    }

    /// The pause that the server asks for.
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
            Cause::Broken(text) => f.write_str(text),
            Cause::TimedOut(time) => write!(f, "nothing came for {:.1} s (--timeout)", time.as_secs_f32()),
            Cause::Busy(status, _) => write!(f, "the server answers {status}"),
            Cause::Short { received, wanted } => write!(f, "{received} bytes came instead of {wanted}"),
            Cause::TooLarge { size: Some(size), limit } => {
                write!(f, "{size} bytes, more than the {limit} it may have")
            }
            Cause::TooLarge { size: None, limit } => write!(f, "more than the {limit} bytes it may have"),
            Cause::Redirects => f.write_str("the server sends from one URL to the next without an end"),
            Cause::Wrong(text) => f.write_str(text),
            Cause::Status(status, said) if said.is_empty() => write!(f, "the server answers {status}"),
            Cause::Status(status, said) => write!(f, "the server answers {status}: {said}"),
            Cause::System(error) => error.fmt(f),
        }
    }
}

/// A request that failed for good.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Method and URL, without what must not be shown.
    request: String,
    host: String,
    cause: Cause,
    tries: u32,
}

impl Failure {
    pub fn new(method: &Method, url: &Url, cause: Cause, tries: u32) -> Self {
        let host = url.host_str().unwrap_or_default().to_string();
        Failure { request: format!("{method} {}", super::location::shown(url)), host, cause, tries }
    }

    /// The status that the server answered, where that is what stood in the way.
    pub fn status(&self) -> Option<u16> {
        match &self.cause {
            Cause::Status(status, _) | Cause::Busy(status, _) => Some(status.as_u16()),
            _ => None,
        }
    }

    /// The error a store answers.
    pub fn into_error(self) -> Error {
        if is_metadata_service(&self.host) {
            return Error::system(libc::EACCES).context(NO_CREDENTIALS);
        }
        let message = self.to_string();
        match self.cause {
            Cause::TooLarge { .. } => Error::damaged(message),
            Cause::System(error) => Error::new(error.kind(), message),
            Cause::Status(status, _) if [401, 403].contains(&status.as_u16()) => {
                Error::new(Kind::System(libc::EACCES), format!("{message}; {}", advice(status)))
            }
            Cause::Status(status, _) if status == 507 => Error::new(Kind::System(libc::ENOSPC), message),
            _ => Error::new(Kind::System(libc::EIO), message),
        }
    }
}

const NO_CREDENTIALS: &str = "no credentials were found in the environment, in a profile or from the machine's role; \
    --anon asks without";

fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        403 => {
            "check the credentials, or give --anon for public data, or --403-is-missing if the server answers so for \
             keys that don't exist"
        }
        _ => "check the credentials, or give --anon for public data",
    }
}

/// The addresses at which clouds tell their own machines who they are.
pub(super) fn is_metadata_service(host: &str) -> bool {
    host.starts_with("169.254.") || host == "metadata.google.internal"
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.request, self.cause)?;
        if self.tries > 1 { write!(f, ", {} times", self.tries) } else { Ok(()) }
    }
}

impl std::error::Error for Failure {}
