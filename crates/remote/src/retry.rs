//! The rules for retries: which failures are temporary, and the pauses between the attempts.

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Pause before the first retry; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(100);

/// Maximum pause.
const LONGEST: Duration = Duration::from_secs(5);

/// Returns the pause after the attempt with this number, from 1. It is random, so that clients that
/// failed together do not retry together. It is at least as long as the server asks for, if that is
/// at most twice [`LONGEST`].
pub(super) fn pause(tries: u32, after: Option<Duration>) -> Duration {
    let pause = FIRST.saturating_mul(1 << (tries - 1).min(16)).min(LONGEST);
    // between half and one and a half of the nominal pause
    let random = RandomState::new().hash_one(tries) % 1000;
    let pause = pause.mul_f64(0.5 + random as f64 / 1000.0);
    pause.max(after.unwrap_or_default().min(2 * LONGEST))
}

/// Returns whether a status is a temporary failure: 408, 429 and some of 5xx.
pub(super) fn may_pass(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

/// Returns the pause that a server asks for in seconds, by RFC 9110, 10.2.3. Dates are ignored,
/// since clocks differ.
pub(super) fn after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ() {
        let pauses = || -> Vec<Duration> { (1..=12).map(|tries| pause(tries, None)).collect() };
        let a = pauses();
        let b = pauses();
        for (n, pause) in a.iter().enumerate() {
            let middle = FIRST.saturating_mul(1 << n).min(LONGEST);
            assert!(
                *pause >= middle / 2 && *pause < middle * 3 / 2,
                "{n}: {pause:?}"
            );
        }
        assert_ne!(a, b);
    }

    #[test]
    fn a_server_may_ask_for_a_longer_pause_within_reason() {
        let asked = |seconds| pause(1, Some(Duration::from_secs(seconds)));
        assert_eq!(
            (asked(2), asked(100_000)),
            (Duration::from_secs(2), 2 * LONGEST)
        );
    }
}
