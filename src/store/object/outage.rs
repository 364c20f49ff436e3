//! Outages of a server: periods in which every request fails or gets a temporary error. Each is
//! logged once when it lasts, and once when it is over, so that a log tells when a store failed,
//! and how, without a line for each request.
//!
//! After a request was given up, further ones are probes until the server answers: one is in flight
//! at a time, and gets one attempt. Others wait for it, and fail with its error. After a probe that
//! was silent, the next ones are short, as long as they follow within a second: a server that is
//! back answers them, and one that is not costs little.

use super::request_error::Cause;
use crate::stats::{ServerOutcome, Stats};
use crate::util::memory::lock;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;

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
    stats: Arc<Stats>,
}

#[derive(Default)]
struct OutageState {
    /// Time of the latest answer.
    answered: Option<Instant>,
    /// Time at which the first attempt without an answer began.
    since: Option<Instant>,
    /// When the latest attempt without an answer ended, and why it failed.
    failed: Option<(Instant, Cause)>,
    /// Whether a request was given up since the server has answered last.
    is_given_up: bool,
    /// When the latest silent attempt ended, since a request was given up.
    silent: Option<Instant>,
    /// When a request was given up, or the latest probe began that is not short.
    patient: Option<Instant>,
    /// The number of the probe in flight. Dropping the sender wakes those that wait for it.
    probe: Option<(u64, watch::Sender<()>)>,
    /// Number of probes so far.
    probes: u64,
    /// Attempts without an answer, by their outcome.
    failures: BTreeMap<ServerOutcome, u64>,
    is_logged: bool,
}

impl OutageState {
    /// Returns a text such as `2.0 s: 503 ×12, timeout ×1`.
    fn shown(&self, now: Instant) -> String {
        let time = self
            .since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let failures: Vec<_> = self
            .failures
            .iter()
            .map(|(outcome, count)| format!("{outcome} ×{count}"))
            .collect();
        format!("{:.1} s: {}", time.as_secs_f64(), failures.join(", "))
    }

    /// Returns why the latest attempt failed, if a request was given up, and the server has
    /// answered nothing since, but has failed less than `limit` ago.
    fn given_up(&self, limit: Duration, now: Instant) -> Option<&(Instant, Cause)> {
        let failed = self.failed.as_ref().filter(|_| self.is_given_up);
        failed.filter(|(at, _)| now.saturating_duration_since(*at) < limit)
    }
}

/// What happens to a request during an outage.
enum Admission {
    /// It is sent and repeated as usual.
    Usual,
    /// It is sent once; the number is that of the probe. A short one ends early.
    Probe { number: u64, is_short: bool },
    /// It waits for the probe in flight.
    Wait(watch::Receiver<()>),
    /// It fails without an attempt.
    Refused(Cause),
}

/// The right to one attempt, which no other request has until this is dropped.
pub(super) struct Probe<'a> {
    outage: &'a Outage,
    number: u64,
    is_short: bool,
}

impl Probe<'_> {
    /// Returns the maximum duration of the attempt.
    pub fn limit(&self) -> Duration {
        if self.is_short { SHORT } else { Duration::MAX }
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.outage.state);
        if state
            .probe
            .as_ref()
            .is_some_and(|(number, _)| *number == self.number)
        {
            state.probe = None;
        }
    }
}

impl Outage {
    /// Creates the state of a server that has not failed.
    pub fn new(stats: Arc<Stats>) -> Self {
        Outage {
            state: Mutex::default(),
            stats,
        }
    }

    /// Waits until a request may be sent. Returns a probe if it is to be sent once. A probe in
    /// flight is waited for at most `patience`; then the request is a probe as well, since a large
    /// value takes long to be sent.
    ///
    /// # Errors
    ///
    /// Why the probe that this waited for failed. `limit` is that of [`Outage::is_given_up`].
    pub async fn admit(
        &self,
        limit: Duration,
        patience: Duration,
    ) -> Result<Option<Probe<'_>>, Cause> {
        let began = Instant::now();
        let mut is_patient = true;
        loop {
            match self.admission(limit, began, Instant::now(), is_patient) {
                Admission::Usual => return Ok(None),
                Admission::Probe { number, is_short } => {
                    return Ok(Some(Probe {
                        outage: self,
                        number,
                        is_short,
                    }));
                }
                Admission::Refused(cause) => return Err(cause),
                Admission::Wait(mut ended) => {
                    // an error says that the probe has ended
                    is_patient = timeout(patience.saturating_sub(began.elapsed()), ended.changed())
                        .await
                        .is_ok();
                }
            }
        }
    }

    /// Returns what happens at `now` to a request that waits since `began`.
    fn admission(
        &self,
        limit: Duration,
        began: Instant,
        now: Instant,
        is_patient: bool,
    ) -> Admission {
        let mut state = lock(&self.state);
        let Some((failed, cause)) = state.given_up(limit, now) else {
            return Admission::Usual;
        };
        if is_patient && *failed > began {
            return Admission::Refused(cause.clone());
        }
        if is_patient && let Some((_, probe)) = &state.probe {
            return Admission::Wait(probe.subscribe());
        }
        let is_within = |at: Option<Instant>, time| {
            at.is_some_and(|at| now.saturating_duration_since(at) < time)
        };
        // a slow server that is back needs a long one
        let is_short = is_within(state.silent, QUIET) && is_within(state.patient, limit);
        if !is_short {
            state.patient = Some(now);
        }
        state.probes += 1;
        let number = state.probes;
        state.probe = Some((number, watch::channel(()).0));
        Admission::Probe { number, is_short }
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
        let since = *state.since.get_or_insert(began);
        *state.failures.entry(cause.outcome()).or_default() += 1;
        (state.failed, state.is_given_up) =
            (Some((now, cause.clone())), state.is_given_up || is_last);
        if is_last {
            state.silent = (now.saturating_duration_since(began) >= SILENT).then_some(now);
            state.patient.get_or_insert(now);
        }
        // a server that takes no connection is none that is busy; the error of the last attempt
        // says so itself
        let is_gone = cause.outcome() == ServerOutcome::Unreachable && !is_last;
        let lasts = is_gone || now.saturating_duration_since(since) >= GRACE;
        if !lasts || state.is_logged {
            return None;
        }
        state.is_logged = true;
        self.stats.failing_stores.fetch_add(1, Ordering::Relaxed);
        Some(format!("fails for {}", state.shown(now)))
    }

    /// Returns whether a request was given up since the latest answer, and the latest failure is
    /// less than `limit` ago.
    pub fn is_given_up(&self, limit: Duration, now: Instant) -> bool {
        lock(&self.state).given_up(limit, now).is_some()
    }

    /// Records that the server has answered at `now`. Returns a line for the log if this ends a
    /// logged outage.
    pub fn answered(&self, now: Instant) -> Option<String> {
        let mut state = lock(&self.state);
        let line = state
            .is_logged
            .then(|| format!("answers again, after {}", state.shown(now)));
        if state.is_logged {
            self.stats.failing_stores.fetch_sub(1, Ordering::Relaxed);
        }
        if state.since.is_some() {
            *state = OutageState {
                probes: state.probes,
                ..OutageState::default()
            };
        }
        state.answered = Some(now);
        line
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        if lock(&self.state).is_logged {
            self.stats.failing_stores.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Cause = Cause::Busy(reqwest::StatusCode::SERVICE_UNAVAILABLE, None);

    fn outage() -> (Outage, Arc<Stats>) {
        let stats = Arc::new(Stats::default());
        (Outage::new(stats.clone()), stats)
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
        let ((outage, _stats), start, limit) = (outage(), Instant::now(), Duration::from_secs(30));
        let at = |seconds| start + Duration::from_secs(seconds);
        let is_given_up = |seconds| outage.is_given_up(limit, at(seconds));
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
        let ((outage, _), start, limit) = (outage(), Instant::now(), Duration::from_secs(30));
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let admission =
            |began, now, is_patient| outage.admission(limit, at(began), at(now), is_patient);
        let number = |admission| match admission {
            Admission::Probe { number, is_short } => Some(Probe {
                outage: &outage,
                number,
                is_short,
            }),
            _ => None,
        };
        assert!(matches!(admission(0, 0, true), Admission::Usual));
        outage.failed(&Cause::TimedOut(limit), at(0), at(10_000), true);
        let probe = number(admission(10_900, 10_900, true)).unwrap();
        assert_eq!(probe.limit(), SHORT, "it was silent");
        drop(probe);
        let probe = number(admission(11_000, 11_000, true)).unwrap();
        assert_eq!(probe.limit(), Duration::MAX, "a second later");
        assert!(matches!(
            admission(11_001, 11_001, true),
            Admission::Wait(_)
        ));
        let second = number(admission(11_001, 21_001, false)).unwrap();
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
                Admission::Refused(Cause::Busy(..))
            ),
            "it has waited"
        );
        assert_eq!(
            number(admission(21_011, 21_011, true)).unwrap().limit(),
            Duration::MAX,
            "a busy server answers"
        );
        // short ones follow each other, but not forever
        for second in 22..52 {
            let now = second * 1000;
            outage.failed(&Cause::TimedOut(SHORT), at(now - 500), at(now), true);
            let limit = if now + 900 < 51_011 {
                SHORT
            } else {
                Duration::MAX
            };
            assert_eq!(
                number(admission(now + 900, now + 900, true))
                    .unwrap()
                    .limit(),
                limit,
                "{now}"
            );
        }
        let probe = number(admission(52_000, 52_000, true)).unwrap();
        outage.answered(at(52_100));
        assert!(matches!(admission(52_100, 52_100, true), Admission::Usual));
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
        let other = Outage::new(stats.clone());
        outage.failed(&unreachable(), now, now, false);
        other.failed(&unreachable(), now, now, false);
        other.answered(now);
        assert!(stats.is_failing(), "the first one fails");
        drop(outage);
        assert!(!stats.is_failing());
    }
}
