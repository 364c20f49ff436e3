use super::*;
use KeyOrigin::{File, Program};
use Refusal::{OfKeys, Unclear};

/// The state under test, and a clock that only the test moves.
struct Held {
    renewal: KeyRenewal,
    now: KeyMoment,
}

impl Held {
    /// Creates the state after the first reading of keys of this origin.
    fn new(origin: KeyOrigin, expires: Option<u64>) -> Self {
        let mut held = Held {
            renewal: KeyRenewal::new(),
            now: KeyMoment::now(),
        };
        held.read(origin, true, expires, None);
        held
    }

    fn pass(&mut self, time: Duration) {
        self.now.instant += time;
        self.now.time += time;
    }

    /// Records a reading of keys, which expire after so many seconds.
    fn read(
        &mut self,
        origin: KeyOrigin,
        are_other: bool,
        expires: Option<u64>,
        cause: Option<Refusal>,
    ) {
        let expires = expires.map(|seconds| self.now.time + Duration::from_secs(seconds));
        self.renewal.record(
            ReadingOutcome::Keys {
                are_other,
                origin,
                expires,
            },
            cause,
            self.now,
        );
    }

    /// Checks that a refusal causes a reading after so many seconds, and not before.
    #[track_caller]
    fn assert_due_after(&mut self, seconds: u64, refusal: Refusal) {
        self.pass(Duration::from_secs(seconds) - Duration::from_millis(1));
        assert!(
            !self.renewal.is_due(refusal, self.now),
            "before {seconds} s"
        );
        self.pass(Duration::from_millis(1));
        assert!(self.renewal.is_due(refusal, self.now), "after {seconds} s");
    }

    fn validity(&self) -> Validity {
        self.renewal.validity(self.now)
    }
}

#[test]
fn a_file_is_read_again_once_a_second() {
    let mut held = Held::new(File, None);
    for are_other in [false, false, false, true, false] {
        held.assert_due_after(1, OfKeys);
        held.read(File, are_other, None, Some(OfKeys));
    }
}

/// "10 s to 5 min, while readings return the same keys"
#[test]
fn a_program_runs_again_less_and_less_often_while_it_prints_the_same_keys() {
    let mut held = Held::new(Program, None);
    for seconds in [10, 20, 40, 80, 160, 300, 300] {
        held.assert_due_after(seconds, OfKeys);
        held.read(Program, false, None, Some(OfKeys));
    }
    held.assert_due_after(300, OfKeys);
    held.read(Program, true, None, Some(OfKeys));
    held.assert_due_after(10, OfKeys);
}

/// "1 s to 10 s, while readings return the same keys"
#[test]
fn a_file_is_read_again_less_often_after_unclear_refusals() {
    let mut held = Held::new(File, None);
    for seconds in [1, 2, 4, 8, 10, 10] {
        held.assert_due_after(seconds, Unclear);
        held.read(File, false, None, Some(Unclear));
    }
    // an answer that names the keys
    held.assert_due_after(1, OfKeys);
    held.read(File, true, None, Some(OfKeys));
    held.assert_due_after(1, Unclear);
}

/// "5 min to 1 h"
#[test]
fn a_service_with_new_keys_each_time_is_rarely_asked_after_unclear_refusals() {
    let mut held = Held::new(Program, None);
    for minutes in [5, 10, 20, 40, 60, 60] {
        held.assert_due_after(minutes * 60, Unclear);
        held.read(Program, true, None, Some(Unclear));
    }
    held.renewal.record_use();
    held.assert_due_after(300, Unclear);
    // readings for other reasons
    held.read(Program, true, None, Some(OfKeys));
    held.read(Program, true, None, None);
    held.assert_due_after(300, Unclear);
}

/// "If a program has returned the same keys again, an answer that may mean the keys causes no
/// reading"
#[test]
fn an_unclear_refusal_of_keys_that_a_program_printed_twice_does_not_run_it() {
    let mut held = Held::new(Program, None);
    held.assert_due_after(300, Unclear);
    held.read(Program, false, None, Some(Unclear));
    held.pass(Duration::from_secs(1_000_000));
    assert!(!held.renewal.is_due(Unclear, held.now));
    assert!(held.renewal.is_due(OfKeys, held.now));
    held.read(Program, true, None, Some(OfKeys));
    held.pass(Duration::from_secs(3600));
    assert!(held.renewal.is_due(Unclear, held.now), "other keys");
}

#[test]
fn a_failed_reading_starts_the_pause_and_keeps_the_keys() {
    let mut held = Held::new(Program, None);
    for _ in 0..3 {
        held.assert_due_after(10, OfKeys);
        held.renewal
            .record(ReadingOutcome::Failure, Some(OfKeys), held.now);
    }
    held.assert_due_after(300, Unclear);
    assert_eq!(
        held.validity(),
        Validity::Valid,
        "a failure does not take the keys away"
    );
}

#[test]
fn missing_keys_are_read_at_once_and_again_after_a_pause() {
    let mut held = Held {
        renewal: KeyRenewal::new(),
        now: KeyMoment::now(),
    };
    assert_eq!(
        (held.validity(), held.renewal.is_paused(held.now)),
        (Validity::None, false)
    );
    held.renewal.record(ReadingOutcome::Failure, None, held.now);
    held.pass(AFTER_FAILURE - Duration::from_millis(1));
    assert_eq!(
        (held.validity(), held.renewal.is_paused(held.now)),
        (Validity::None, true)
    );
    held.pass(Duration::from_millis(1));
    assert!(!held.renewal.is_paused(held.now));
}

#[test]
fn keys_are_renewed_before_they_expire() {
    // keys that are valid for an hour, and for less than `EARLY`
    for (seconds, renewal) in [(3600, 3300), (100, 75)] {
        let mut held = Held::new(Program, Some(seconds));
        held.pass(Duration::from_secs(renewal) - Duration::from_millis(1));
        assert_eq!(held.validity(), Validity::Valid);
        held.pass(Duration::from_millis(1));
        assert_eq!(held.validity(), Validity::Expiring);
        held.pass(Duration::from_secs(seconds - renewal) - Duration::from_millis(1));
        assert_eq!(held.validity(), Validity::Expiring);
        held.pass(Duration::from_millis(1));
        assert_eq!(held.validity(), Validity::None);
        held.read(Program, true, Some(3600), None);
        assert_eq!(held.validity(), Validity::Valid);
    }
}

#[test]
fn a_renewal_that_fails_or_changes_nothing_is_repeated_after_a_pause() {
    let mut held = Held::new(Program, Some(3600));
    held.pass(Duration::from_secs(3300));
    held.renewal.record(ReadingOutcome::Failure, None, held.now);
    assert_eq!(held.validity(), Validity::Valid);
    held.pass(AFTER_FAILURE);
    assert_eq!(held.validity(), Validity::Expiring);
    // the program prints the same keys until 12 s before their expiry
    held.pass(Duration::from_secs(283));
    held.read(Program, false, Some(12), None);
    held.pass(Duration::from_millis(11_999));
    assert_eq!(
        held.validity(),
        Validity::Valid,
        "it was run for the same keys a moment ago"
    );
    held.pass(Duration::from_millis(1));
    assert_eq!(held.validity(), Validity::None);
}

#[test]
fn a_profile_may_change_from_keys_to_a_program() {
    let mut held = Held::new(File, None);
    held.assert_due_after(1, OfKeys);
    held.read(Program, true, None, Some(OfKeys));
    held.assert_due_after(10, OfKeys);
    held.assert_due_after(290, Unclear);
}
