//! The requests to a server, by operation and outcome, and their durations. The number of entries
//! is bounded, because a server chooses the statuses: at most 504 outcomes for each of six
//! operations.

use crate::memory::lock;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

/// Upper bounds of the classes of times, in seconds. The last class has no bound.
pub const TIME_BOUNDS: [f64; 13] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerOperation {
    /// Reading a value or a range of it.
    Get,
    /// Reading the size and version of a value.
    Head,
    /// Listing names.
    List,
    /// Storing a value.
    Put,
    /// Removing a value.
    Delete,
    /// Any other request: steps of a multipart upload, and requests for credentials.
    Post,
}

impl ServerOperation {
    /// Returns the name that users see.
    pub fn name(self) -> &'static str {
        match self {
            ServerOperation::Get => "get",
            ServerOperation::Head => "head",
            ServerOperation::List => "list",
            ServerOperation::Put => "put",
            ServerOperation::Delete => "delete",
            ServerOperation::Post => "post",
        }
    }
}

/// The outcome of one attempt of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerOutcome {
    /// An answer with this status, from 100 to 599.
    Status(u16),
    /// No connection.
    Unreachable,
    /// A broken connection, or an answer that is cut short.
    Broken,
    /// No answer in time.
    TimedOut,
    /// An answer that can't be used.
    Invalid,
}

impl ServerOutcome {
    /// Returns the outcome of an answer.
    pub fn of_status(status: u16) -> Self {
        match status {
            100..600 => ServerOutcome::Status(status),
            _ => ServerOutcome::Invalid,
        }
    }
}

impl fmt::Display for ServerOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerOutcome::Status(status) => write!(f, "{status}"),
            ServerOutcome::Unreachable => f.write_str("unreachable"),
            ServerOutcome::Broken => f.write_str("broken"),
            ServerOutcome::TimedOut => f.write_str("timeout"),
            ServerOutcome::Invalid => f.write_str("invalid"),
        }
    }
}

/// The attempts of requests for one operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationCounts {
    /// Number of attempts by their outcome.
    pub outcomes: BTreeMap<ServerOutcome, u64>,
    /// Number of attempts by class of time. See [`TIME_BOUNDS`].
    pub times: [u64; TIME_BOUNDS.len() + 1],
    /// Total time of all attempts.
    pub total: Duration,
}

/// The attempts of all requests. The mutex protects the counts.
#[derive(Default)]
pub struct ServerRequests(Mutex<BTreeMap<ServerOperation, OperationCounts>>);

impl ServerRequests {
    /// Counts an attempt.
    pub fn record(&self, operation: ServerOperation, outcome: ServerOutcome, time: Duration) {
        let mut all = lock(&self.0);
        let counts = all.entry(operation).or_default();
        *counts.outcomes.entry(outcome).or_default() += 1;
        counts.times[TIME_BOUNDS.partition_point(|bound| *bound < time.as_secs_f64())] += 1;
        counts.total += time;
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> BTreeMap<ServerOperation, OperationCounts> {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_counted_by_outcome_and_time() {
        let requests = ServerRequests::default();
        for (status, milliseconds) in [(200, 1), (200, 2), (503, 40_000), (999, 5)] {
            let outcome = ServerOutcome::of_status(status);
            requests.record(
                ServerOperation::Get,
                outcome,
                Duration::from_millis(milliseconds),
            );
        }
        let counts = requests.counts().remove(&ServerOperation::Get).unwrap();
        let expected = [
            (ServerOutcome::Status(200), 2),
            (ServerOutcome::Status(503), 1),
            (ServerOutcome::Invalid, 1),
        ];
        assert_eq!(counts.outcomes, expected.into());
        assert_eq!(
            (counts.times[0], counts.times[1], counts.times[13]),
            (1, 2, 1),
            "a bound belongs to its class"
        );
        assert_eq!(counts.total, Duration::from_millis(40_008));
    }
}
