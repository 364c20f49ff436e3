//! Outages of a server: periods in which every request fails or gets a temporary error. An outage is logged once when
//! it has lasted for [`GRACE`] and once when it ends. So the log shows when and how a server failed, without a line for
//! each request.

use crate::stats::ServerOutcome;
use crate::util::memory::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Duration of an outage from which it is logged. Busy servers refuse single requests all the time.
const GRACE: Duration = Duration::from_secs(1);

/// The state of a server.
///
/// The lock protects the state alone.
#[derive(Default)]
pub(super) struct Outage(Mutex<OutageState>);

#[derive(Default)]
struct OutageState {
    /// Time of the latest answer.
    answered: Option<Instant>,
    /// Time at which the first attempt without an answer began.
    since: Option<Instant>,
    /// Time at which the latest attempt without an answer ended.
    failed: Option<Instant>,
    /// Whether a request was given up since the latest answer.
    is_given_up: bool,
    /// Attempts without an answer, by their outcome.
    failures: BTreeMap<ServerOutcome, u64>,
    is_logged: bool,
}

impl OutageState {
    /// Returns a text such as `2.0 s: 503 ×12, timeout ×1`.
    fn shown(&self, now: Instant) -> String {
        let time = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let failures: Vec<_> = self.failures.iter().map(|(outcome, count)| format!("{outcome} ×{count}")).collect();
        format!("{:.1} s: {}", time.as_secs_f64(), failures.join(", "))
    }
}

impl Outage {
    /// Records that an attempt, which began at `began`, failed at `now`. Another one follows unless `is_last`. Returns
    /// a line for the log, once per outage.
    pub fn failed(&self, outcome: ServerOutcome, began: Instant, now: Instant, is_last: bool) -> Option<String> {
        let mut state = lock(&self.0);
        let began = state.answered.map_or(began, |answered| answered.max(began));
        let since = *state.since.get_or_insert(began);
        *state.failures.entry(outcome).or_default() += 1;
        (state.failed, state.is_given_up) = (Some(now), state.is_given_up || is_last);
        // a server that accepts no connection is not just busy; after the last attempt, the error of the
        // request says so
        let is_gone = outcome == ServerOutcome::Unreachable && !is_last;
        let lasts = is_gone || now.saturating_duration_since(since) >= GRACE;
        if !lasts || state.is_logged {
            return None;
        }
        state.is_logged = true;
        Some(format!("fails for {}", state.shown(now)))
    }

    /// Returns whether a request was given up since the latest answer, and the latest failure is less than `limit` ago.
    pub fn is_given_up(&self, limit: Duration, now: Instant) -> bool {
        let state = lock(&self.0);
        state.is_given_up && state.failed.is_some_and(|failed| now.saturating_duration_since(failed) < limit)
    }

    /// Records that the server has answered at `now`. Returns a line for the log if this ends a logged outage.
    pub fn answered(&self, now: Instant) -> Option<String> {
        let mut state = lock(&self.0);
        let line = state.is_logged.then(|| format!("answers again, after {}", state.shown(now)));
        if state.since.is_some() {
            *state = OutageState::default();
        }
        state.answered = Some(now);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: ServerOutcome = ServerOutcome::Status(503);

    #[test]
    fn an_outage_is_logged_when_it_lasts_and_when_it_ends() {
        let (outage, start) = (Outage::default(), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(outage.answered(at(0)), None);
        assert_eq!(outage.failed(BUSY, at(100), at(150), false), None);
        assert_eq!(outage.failed(BUSY, at(300), at(400), false), None);
        assert_eq!(
            outage.failed(ServerOutcome::TimedOut, at(200), at(1200), true).unwrap(),
            "fails for 1.1 s: 503 ×2, timeout ×1"
        );
        assert_eq!(outage.failed(BUSY, at(1300), at(5000), false), None, "once");
        assert_eq!(outage.answered(at(6100)).unwrap(), "answers again, after 6.0 s: 503 ×3, timeout ×1");
        assert_eq!(outage.answered(at(6200)), None);
        assert_eq!(outage.failed(BUSY, at(5000), at(7000), false), None, "the server answered meanwhile");
        assert_eq!(outage.answered(at(7100)), None);
    }

    #[test]
    fn a_server_is_given_up_with_a_request_until_it_answers() {
        let (outage, start, limit) = (Outage::default(), Instant::now(), Duration::from_secs(30));
        let at = |seconds| start + Duration::from_secs(seconds);
        let is_given_up = |seconds| outage.is_given_up(limit, at(seconds));
        outage.failed(BUSY, at(0), at(1), false);
        assert!(!is_given_up(1), "another attempt follows");
        outage.failed(BUSY, at(2), at(28), true);
        outage.failed(BUSY, at(30), at(31), false);
        assert!(is_given_up(31) && is_given_up(60) && !is_given_up(61), "no request has failed for the limit");
        outage.answered(at(40));
        assert!(!is_given_up(40));
    }

    #[test]
    fn single_failures_are_no_outage() {
        let (outage, start) = (Outage::default(), Instant::now());
        for second in 0..10 {
            let now = start + Duration::from_secs(second);
            assert_eq!(outage.failed(BUSY, now, now + Duration::from_millis(100), false), None);
            assert_eq!(outage.answered(now + Duration::from_millis(200)), None);
        }
    }

    #[test]
    fn a_server_that_takes_no_connection_is_logged_at_once() {
        let (outage, now) = (Outage::default(), Instant::now());
        assert_eq!(outage.failed(ServerOutcome::Unreachable, now, now, true), None, "the error says so");
        let line = outage.failed(ServerOutcome::Unreachable, now, now, false).unwrap();
        assert_eq!(line, "fails for 0.0 s: unreachable ×2");
        assert_eq!(outage.failed(ServerOutcome::Unreachable, now, now, false), None);
    }
}
