//! The circuit breaker of a server: what happens to requests during an outage, a period in which
//! every request fails or gets a temporary error. This module sends nothing.
//!
//! The circuit is closed until a request is given up. Then it is open: the next request is a probe,
//! which gets one attempt. While the probe is in flight the circuit is half open: other requests
//! wait for the probe, and fail with its error. An answer closes the circuit, and requests are sent
//! as usual after a time without a failure. After a probe that was silent, the next ones are short,
//! as long as they follow within a second: a server that is back answers them, and one that is not
//! costs little.
//!
//! Each outage is logged once when it lasts, and once when it is over, so that a log tells when a
//! store failed, and how, without a line for each request.

use super::request_error::Cause;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;
use zarrfs_base::memory::lock;
use zarrfs_base::stats::{ServerOutcome, Stats};

/// Duration of an outage from which it is logged. Busy servers refuse single requests all the time.
const GRACE: Duration = Duration::from_secs(1);

/// Time after a silent attempt in which a probe is short.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum duration of a short probe.
const SHORT: Duration = Duration::from_millis(500);

/// Duration of an attempt from which on it was silent. A failure that comes earlier costs nothing.
const SILENT: Duration = Duration::from_millis(100);

/// The state of a server.
pub(super) struct Outage {
    /// Protects the state, and the share of this server in the count of failing ones.
    state: Mutex<OutageState>,
    /// Time without a failure after which the circuit is closed, and maximum duration of a probe.
    limit: Duration,
    stats: Arc<Stats>,
}

#[derive(Default)]
struct OutageState {
    circuit: Circuit,
    /// Time of the latest answer.
    answered: Option<Instant>,
    /// The attempts without an answer since then.
    failures: Option<FailedAttempts>,
}

#[derive(Default)]
enum Circuit {
    /// Requests are sent and repeated as usual.
    #[default]
    Closed,
    /// The next request is a probe, until [`Outage::limit`] after the latest failure.
    Open(GivenUp),
    /// A probe is in flight. Dropping the sender wakes the requests that wait for it.
    HalfOpen(GivenUp, watch::Sender<()>),
}

/// What is known of a server that does not answer.
#[derive(Clone)]
struct GivenUp {
    /// When the latest attempt ended, and why it failed.
    failed: Instant,
    cause: Cause,
    /// When the latest silent attempt ended, if no other one was the last of its request since.
    silent: Option<Instant>,
    /// When the circuit was opened, or the latest probe began that is not short.
    patient: Instant,
}

/// Attempts without an answer.
struct FailedAttempts {
    /// Time at which the first one began.
    since: Instant,
    counts: BTreeMap<ServerOutcome, u64>,
    is_logged: bool,
}

impl FailedAttempts {
    /// Returns a text such as `2.0 s: 503 ×12, timeout ×1`.
    fn shown(&self, now: Instant) -> String {
        let time = now.saturating_duration_since(self.since);
        let counts: Vec<_> = self
            .counts
            .iter()
            .map(|(outcome, count)| format!("{outcome} ×{count}"))
            .collect();
        format!("{:.1} s: {}", time.as_secs_f64(), counts.join(", "))
    }
}

/// What happens to a request.
enum Admission<'a> {
    /// It is sent, only once if it is a probe.
    Send(Option<Probe<'a>>),
    /// It waits for the probe in flight.
    Wait(watch::Receiver<()>),
    /// It fails without an attempt.
    Refuse(Cause),
}

/// The right to one attempt, which no other request has until this is dropped.
pub(super) struct Probe<'a> {
    outage: &'a Outage,
    in_flight: watch::Receiver<()>,
    /// Maximum duration of the attempt.
    pub limit: Duration,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.outage.state);
        // an impatient request may have become the probe instead
        if let Circuit::HalfOpen(given_up, probe) = &state.circuit
            && probe.subscribe().same_channel(&self.in_flight)
        {
            state.circuit = Circuit::Open(given_up.clone());
        }
    }
}

impl Circuit {
    /// Returns what is known of the server since the circuit was opened.
    fn given_up(&mut self) -> Option<&mut GivenUp> {
        match self {
            Circuit::Closed => None,
            Circuit::Open(given_up) | Circuit::HalfOpen(given_up, _) => Some(given_up),
        }
    }
}

impl Outage {
    /// Creates the state of a server that has not failed.
    pub fn new(limit: Duration, stats: Arc<Stats>) -> Self {
        Outage {
            state: Mutex::default(),
            limit,
            stats,
        }
    }

    /// Waits until a request may be sent. Returns a probe if it is to be sent once. A probe in
    /// flight is waited for at most `patience`; then the request is a probe as well, since a large
    /// value takes long to be sent.
    ///
    /// # Errors
    ///
    /// Why the probe that this waited for failed.
    pub async fn admit(&self, patience: Duration) -> Result<Option<Probe<'_>>, Cause> {
        let began = Instant::now();
        let mut is_patient = true;
        loop {
            match self.admission(began, Instant::now(), is_patient) {
                Admission::Send(probe) => return Ok(probe),
                Admission::Refuse(cause) => return Err(cause),
                Admission::Wait(mut in_flight) => {
                    let left = patience.saturating_sub(began.elapsed());
                    // an error of the channel says that the probe has ended
                    is_patient = timeout(left, in_flight.changed()).await.is_ok();
                }
            }
        }
    }

    /// Returns what happens at `now` to a request that waits since `began`.
    fn admission(&self, began: Instant, now: Instant, is_patient: bool) -> Admission<'_> {
        let mut state = lock(&self.state);
        let Some(given_up) = self.given_up(&mut state.circuit, now) else {
            return Admission::Send(None);
        };
        if is_patient && given_up.failed > began {
            return Admission::Refuse(given_up.cause.clone());
        }
        let mut given_up = given_up.clone();
        if is_patient && let Circuit::HalfOpen(_, probe) = &state.circuit {
            return Admission::Wait(probe.subscribe());
        }
        let is_silent = given_up
            .silent
            .is_some_and(|at| now.saturating_duration_since(at) < QUIET);
        // a slow server that is back needs a long one
        let is_short = is_silent && now.saturating_duration_since(given_up.patient) < self.limit;
        if !is_short {
            given_up.patient = now;
        }
        let (sender, in_flight) = watch::channel(());
        state.circuit = Circuit::HalfOpen(given_up, sender);
        Admission::Send(Some(Probe {
            outage: self,
            in_flight,
            limit: if is_short {
                SHORT.min(self.limit)
            } else {
                self.limit
            },
        }))
    }

    /// Returns what is known of the server, unless requests are sent as usual at `now`.
    fn given_up<'c>(&self, circuit: &'c mut Circuit, now: Instant) -> Option<&'c mut GivenUp> {
        circuit
            .given_up()
            .filter(|given_up| now.saturating_duration_since(given_up.failed) < self.limit)
    }

    /// Records that the attempt that began at `began` failed at `now`, and whether no other
    /// follows. Returns what to log, once an outage.
    pub fn failed(
        &self,
        cause: &Cause,
        began: Instant,
        now: Instant,
        is_last: bool,
    ) -> Option<String> {
        let mut state = lock(&self.state);
        let began = state.answered.map_or(began, |answered| answered.max(began));
        let is_silent = now.saturating_duration_since(began) >= SILENT;
        match state.circuit.given_up() {
            Some(given_up) => {
                given_up.failed = now;
                given_up.cause = cause.clone();
                if is_last {
                    given_up.silent = is_silent.then_some(now);
                }
            }
            None if is_last => {
                state.circuit = Circuit::Open(GivenUp {
                    failed: now,
                    cause: cause.clone(),
                    silent: is_silent.then_some(now),
                    patient: now,
                });
            }
            None => {}
        }
        let failures = state.failures.get_or_insert_with(|| FailedAttempts {
            since: began,
            counts: BTreeMap::new(),
            is_logged: false,
        });
        *failures.counts.entry(cause.outcome()).or_default() += 1;
        // a server that takes no connection is none that is busy; the error of the last attempt
        // says so itself
        let is_gone = cause.outcome() == ServerOutcome::Unreachable && !is_last;
        let lasts = is_gone || now.saturating_duration_since(failures.since) >= GRACE;
        if !lasts || failures.is_logged {
            return None;
        }
        failures.is_logged = true;
        self.stats.failing_stores.fetch_add(1, Ordering::Relaxed);
        Some(format!("fails for {}", failures.shown(now)))
    }

    /// Returns whether the server has answered any request.
    pub fn has_answered(&self) -> bool {
        lock(&self.state).answered.is_some()
    }

    /// Returns whether a request was given up since the latest answer, and the latest failure is
    /// less than the limit ago.
    pub fn is_given_up(&self, now: Instant) -> bool {
        self.given_up(&mut lock(&self.state).circuit, now).is_some()
    }

    /// Records that the server has answered at `now`. Returns a line for the log if this ends a
    /// logged outage.
    pub fn answered(&self, now: Instant) -> Option<String> {
        let mut state = lock(&self.state);
        state.circuit = Circuit::Closed;
        state.answered = Some(now);
        let failures = state
            .failures
            .take()
            .filter(|failures| failures.is_logged)?;
        self.stats.failing_stores.fetch_sub(1, Ordering::Relaxed);
        Some(format!("answers again, after {}", failures.shown(now)))
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        let state = lock(&self.state);
        if state
            .failures
            .as_ref()
            .is_some_and(|failures| failures.is_logged)
        {
            self.stats.failing_stores.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Cause = Cause::Busy(reqwest::StatusCode::SERVICE_UNAVAILABLE, None);

    const LIMIT: Duration = Duration::from_secs(30);

    fn outage() -> (Outage, Arc<Stats>) {
        let stats = Arc::new(Stats::default());
        (Outage::new(LIMIT, stats.clone()), stats)
    }

    fn unreachable() -> Cause {
        Cause::Unreachable("refused".to_string())
    }

    #[test]
    fn an_outage_is_logged_when_it_lasts_and_when_it_ends() {
        let ((outage, _stats), start) = (outage(), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(outage.answered(at(0)), None);
        assert_eq!(outage.failed(&BUSY, at(100), at(150), false), None);
        assert_eq!(outage.failed(&BUSY, at(300), at(400), false), None);
        assert_eq!(
            outage
                .failed(&Cause::TimedOut(GRACE), at(200), at(1200), true)
                .unwrap(),
            "fails for 1.1 s: 503 ×2, timeout ×1"
        );
        assert_eq!(
            outage.failed(&BUSY, at(1300), at(5000), false),
            None,
            "once"
        );
        assert_eq!(
            outage.answered(at(6100)).unwrap(),
            "answers again, after 6.0 s: 503 ×3, timeout ×1"
        );
        assert_eq!(outage.answered(at(6200)), None);
        assert_eq!(
            outage.failed(&BUSY, at(5000), at(7000), false),
            None,
            "the server answered meanwhile"
        );
        assert_eq!(outage.answered(at(7100)), None);
    }

    #[test]
    fn a_server_is_given_up_with_a_request_until_it_answers() {
        let ((outage, _stats), start) = (outage(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let is_given_up = |seconds| outage.is_given_up(at(seconds));
        outage.failed(&BUSY, at(0), at(1), false);
        assert!(!is_given_up(1), "another attempt follows");
        outage.failed(&BUSY, at(2), at(28), true);
        outage.failed(&BUSY, at(30), at(31), false);
        assert!(
            is_given_up(31) && is_given_up(60) && !is_given_up(61),
            "no request has failed for the limit"
        );
        outage.answered(at(40));
        assert!(!is_given_up(40));
    }

    #[test]
    fn single_failures_are_no_outage() {
        let ((outage, _stats), start) = (outage(), Instant::now());
        for second in 0..10 {
            let now = start + Duration::from_secs(second);
            assert_eq!(
                outage.failed(&BUSY, now, now + Duration::from_millis(100), false),
                None
            );
            assert_eq!(outage.answered(now + Duration::from_millis(200)), None);
        }
    }

    #[test]
    fn a_server_that_takes_no_connection_is_logged_at_once() {
        let ((outage, _stats), now) = (outage(), Instant::now());
        assert_eq!(
            outage.failed(&unreachable(), now, now, true),
            None,
            "the error says so"
        );
        let line = outage.failed(&unreachable(), now, now, false).unwrap();
        assert_eq!(line, "fails for 0.0 s: unreachable ×2");
        assert_eq!(outage.failed(&unreachable(), now, now, false), None);
    }

    #[test]
    fn during_an_outage_one_request_at_a_time_is_sent() {
        let ((outage, _), start) = (outage(), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let admission = |began, now, is_patient| outage.admission(at(began), at(now), is_patient);
        let probe_of = |admission| match admission {
            Admission::Send(Some(probe)) => probe,
            _ => panic!("no probe"),
        };
        assert!(matches!(admission(0, 0, true), Admission::Send(None)));
        outage.failed(&Cause::TimedOut(LIMIT), at(0), at(10_000), true);
        let probe = probe_of(admission(10_900, 10_900, true));
        assert_eq!(probe.limit, SHORT, "it was silent");
        drop(probe);
        let probe = probe_of(admission(11_000, 11_000, true));
        assert_eq!(probe.limit, LIMIT, "a second later");
        assert!(matches!(
            admission(11_001, 11_001, true),
            Admission::Wait(_)
        ));
        let second = probe_of(admission(11_001, 21_001, false));
        drop(probe);
        assert!(
            matches!(admission(21_002, 21_002, true), Admission::Wait(_)),
            "another one is in flight"
        );
        outage.failed(&BUSY, at(21_001), at(21_010), true);
        drop(second);
        assert!(
            matches!(
                admission(21_002, 21_010, true),
                Admission::Refuse(Cause::Busy(..))
            ),
            "it has waited"
        );
        assert_eq!(
            probe_of(admission(21_011, 21_011, true)).limit,
            LIMIT,
            "a busy server answers"
        );
        // short ones follow each other, but not forever
        for second in 22..52 {
            let now = second * 1000;
            outage.failed(&Cause::TimedOut(SHORT), at(now - 500), at(now), true);
            let limit = if now + 900 < 51_011 { SHORT } else { LIMIT };
            assert_eq!(
                probe_of(admission(now + 900, now + 900, true)).limit,
                limit,
                "{now}"
            );
        }
        let probe = probe_of(admission(52_000, 52_000, true));
        outage.answered(at(52_100));
        assert!(matches!(
            admission(52_100, 52_100, true),
            Admission::Send(None)
        ));
        drop(probe);
    }

    /// "1 during an outage"
    #[test]
    fn a_server_that_answers_or_is_not_used_any_more_is_not_failing() {
        let (outage, stats) = outage();
        let now = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        outage.failed(&unreachable(), now, now, false);
                        outage.answered(now);
                    }
                });
            }
        });
        assert!(!stats.is_failing());
        let other = Outage::new(LIMIT, stats.clone());
        outage.failed(&unreachable(), now, now, false);
        other.failed(&unreachable(), now, now, false);
        other.answered(now);
        assert!(stats.is_failing(), "the first one fails");
        drop(outage);
        assert!(!stats.is_failing());
    }
}
