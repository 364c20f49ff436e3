//! Decides when keys are read again: after a server has refused them, and before they expire. This
//! module reads no clock and no keys.
//!
//! A refusal causes a reading if this minimum time has passed since the latest one. A minimum with
//! a range doubles:
//!
//! | keys from | the answer names the keys | the answer may mean the keys |
//! |---|---|---|
//! | a file | 1 s | 1 s to 10 s, while readings return the same keys |
//! | a program or a service | 10 s to 5 min, while readings return the same keys | 5 min to 1 h |
//!
//! If a program or a service has returned the same keys again, an answer that may mean the keys
//! causes no reading.
//!
//! A server that forbids an object refuses every request for it. An answer that does not name the
//! keys must therefore not run programs all the time.

use std::time::{Duration, Instant, SystemTime};

/// Maximum time before their expiry at which keys are replaced, as by the SDKs of AWS.
const EARLY: Duration = Duration::from_secs(300);

/// Pause after a failed reading. Until it ends, requests without valid keys fail at once.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The origin of keys, which decides the cost of reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOrigin {
    /// A file with profiles.
    File,
    /// A program, or a service such as those of the machine and of tokens.
    Program,
}

/// The kind of a server's refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The answer names the keys as the cause.
    OfKeys,
    /// The keys may be the cause, or may not permit this request.
    Unclear,
}

/// The result of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadingOutcome {
    /// The keys that are in use, or other ones if `are_other`.
    Keys {
        are_other: bool,
        origin: KeyOrigin,
        expires: Option<SystemTime>,
    },
    /// No keys.
    Failure,
}

/// The state of the keys in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Validity {
    /// The keys do not expire soon.
    Valid,
    /// The keys are valid but expire soon. They are read again while requests use them.
    Expiring,
    /// There are no keys, or their end has passed.
    None,
}

/// A moment on two clocks: the monotonic one, which measures pauses, and the system time, which the
/// expiry of keys is stated in.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyMoment {
    pub instant: Instant,
    pub time: SystemTime,
}

impl KeyMoment {
    /// Returns the present.
    pub fn now() -> Self {
        KeyMoment {
            instant: Instant::now(),
            time: SystemTime::now(),
        }
    }
}

/// A pause that doubles from `first` to `longest`.
struct Pause {
    current: Duration,
    first: Duration,
    longest: Duration,
}

impl Pause {
    fn new(first: u64, longest: u64) -> Self {
        let [first, longest] = [first, longest].map(Duration::from_secs);
        Pause {
            current: first,
            first,
            longest,
        }
    }

    fn double(&mut self) {
        self.current = (2 * self.current).min(self.longest);
    }

    fn reset(&mut self) {
        self.current = self.first;
    }
}

/// The state that decides when keys are read again.
pub(super) struct KeyRenewal {
    origin: KeyOrigin,
    /// Minimum time since the latest reading after [`Refusal::OfKeys`].
    of_keys: Pause,
    /// Minimum time since the latest reading after [`Refusal::Unclear`].
    unclear: Pause,
    /// Time at which the latest reading ended.
    read: Option<Instant>,
    /// Whether the latest reading failed.
    has_failed: bool,
    /// Whether the latest successful reading returned the keys in use again.
    are_confirmed: bool,
    has_keys: bool,
    /// Time at which the keys are replaced, and time of their expiry.
    times: Option<(SystemTime, SystemTime)>,
}

impl KeyRenewal {
    /// Creates the state before the first reading.
    pub fn new() -> Self {
        let (of_keys, unclear) = pauses(KeyOrigin::File);
        KeyRenewal {
            origin: KeyOrigin::File,
            of_keys,
            unclear,
            read: None,
            has_failed: false,
            are_confirmed: false,
            has_keys: false,
            times: None,
        }
    }

    /// Returns the state of the keys in use.
    pub fn validity(&self, now: KeyMoment) -> Validity {
        match self.times {
            _ if !self.has_keys => Validity::None,
            Some((_, end)) if now.time >= end => Validity::None,
            Some((renewal, _)) if now.time >= renewal => Validity::Expiring,
            _ => Validity::Valid,
        }
    }

    /// Returns whether missing keys must not be read now, because the latest reading failed less
    /// than [`AFTER_FAILURE`] ago.
    pub fn is_paused(&self, now: KeyMoment) -> bool {
        self.has_failed && self.since_reading(now) < AFTER_FAILURE
    }

    /// Returns whether a refusal of the keys in use causes a reading now.
    pub fn is_due(&self, refusal: Refusal, now: KeyMoment) -> bool {
        let pause = match refusal {
            Refusal::OfKeys => &self.of_keys,
            Refusal::Unclear if self.origin == KeyOrigin::Program && self.are_confirmed => {
                return false;
            }
            Refusal::Unclear => &self.unclear,
        };
        self.since_reading(now) >= pause.current
    }

    fn since_reading(&self, now: KeyMoment) -> Duration {
        self.read.map_or(Duration::MAX, |read| {
            now.instant.saturating_duration_since(read)
        })
    }

    /// Records a reading that ended now, and the refusal that caused it.
    pub fn record(&mut self, outcome: ReadingOutcome, cause: Option<Refusal>, now: KeyMoment) {
        self.read = Some(now.instant);
        self.has_failed = outcome == ReadingOutcome::Failure;
        let ReadingOutcome::Keys {
            are_other,
            origin,
            expires,
        } = outcome
        else {
            if let Some((renewal, _)) = &mut self.times {
                *renewal = now.time + AFTER_FAILURE;
            }
            return;
        };
        if origin != self.origin {
            (self.of_keys, self.unclear) = pauses(origin);
        }
        (self.origin, self.has_keys, self.are_confirmed) = (origin, true, !are_other);
        if are_other {
            self.of_keys.reset()
        } else {
            self.of_keys.double()
        }
        match (are_other, origin) {
            (true, KeyOrigin::File) => self.unclear.reset(),
            // a service may return other keys each time, which the server refuses for the same
            // reason
            (_, _) if cause == Some(Refusal::Unclear) => self.unclear.double(),
            (_, _) => {}
        }
        self.times = expires.map(|end| (self.renewal(end, are_other, now), end));
    }

    /// Returns the time at which keys that expire at `end` are replaced.
    fn renewal(&self, end: SystemTime, are_other: bool, now: KeyMoment) -> SystemTime {
        // not before three quarters of the remaining time, so that keys that are valid only for
        // minutes are used, too
        let left = end.duration_since(now.time).unwrap_or_default();
        let renewal = end - EARLY.min(left / 4);
        // a program may return the same keys until they expire
        if are_other {
            renewal
        } else {
            renewal.max(now.time + self.of_keys.current)
        }
    }

    /// Records that the server accepts keys that were read after a refusal: reading them again was
    /// of use.
    pub fn record_use(&mut self) {
        self.of_keys.reset();
        self.unclear.reset();
    }
}

/// Returns the pauses after a refusal that names the keys, and after another one.
fn pauses(origin: KeyOrigin) -> (Pause, Pause) {
    match origin {
        KeyOrigin::File => (Pause::new(1, 1), Pause::new(1, 10)),
        KeyOrigin::Program => (Pause::new(10, 300), Pause::new(300, 3600)),
    }
}

#[cfg(test)]
mod tests;
