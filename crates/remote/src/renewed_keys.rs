//! Keys that are read again when they expire or are refused, without delaying the requests that
//! have valid ones. This module does not know the sources of keys. Messages never show keys.
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

use async_trait::async_trait;
use object_store::aws::AwsCredential;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;

/// Maximum time before their expiry at which keys are replaced, as by the SDKs of AWS.
const EARLY: Duration = Duration::from_secs(300);

/// Pause after a failed reading. Until it ends, requests without valid keys fail at once.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The origin of keys, which decides the cost of reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOrigin {
    /// The environment, or a file with profiles.
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

/// Keys, and their time of expiry. The type has no `Debug`, so that nothing prints keys.
#[derive(PartialEq, Eq)]
pub(super) struct NewKeys {
    pub credential: Arc<AwsCredential>,
    pub expires: Option<SystemTime>,
    pub origin: KeyOrigin,
}

/// A source of keys.
#[async_trait]
pub(super) trait KeySource: Send + Sync + 'static {
    /// Reads the keys, within a time limit.
    async fn read(&self) -> Result<NewKeys>;
}

/// Keys that never change.
#[async_trait]
impl KeySource for Arc<AwsCredential> {
    async fn read(&self) -> Result<NewKeys> {
        Ok(NewKeys {
            credential: self.clone(),
            expires: None,
            origin: KeyOrigin::File,
        })
    }
}

/// The state of the keys in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Validity {
    /// The keys do not expire soon.
    Valid,
    /// The keys are valid but expire soon. They are read again while requests use them.
    Expiring,
    /// There are no keys, or their end has passed.
    None,
}

/// Keys in use, and their source.
#[derive(Clone)]
pub(super) struct RenewedKeys(Arc<Shared>);

struct Shared {
    source: Box<dyn KeySource>,
    clock: Box<dyn Fn() -> SystemTime + Send + Sync>,
    /// Protects the state alone; it is not held while keys are read.
    state: Mutex<KeysState>,
}

/// What decides when keys are read again. Times are those of the system, in which the expiry of
/// keys is stated; a clock that is set back ends the pauses.
#[derive(Default)]
struct KeysState {
    /// The keys of the latest successful reading.
    keys: Option<NewKeys>,
    /// Time at which they are replaced, if they expire.
    renewal: Option<SystemTime>,
    /// Whether that reading returned the keys in use again.
    are_confirmed: bool,
    /// Time at which the latest reading ended.
    read: Option<SystemTime>,
    /// The error of the latest reading.
    failure: Option<Error>,
    /// How often the minimum time after [`Refusal::OfKeys`] has doubled.
    of_keys: u32,
    /// How often the minimum time after [`Refusal::Unclear`] has doubled.
    unclear: u32,
    /// A channel that is closed when the reading in flight ends.
    reading: Option<watch::Receiver<()>>,
}

impl KeysState {
    /// Returns the state of the keys in use.
    fn validity(&self, now: SystemTime) -> Validity {
        let Some(keys) = &self.keys else {
            return Validity::None;
        };
        if keys.expires.is_some_and(|end| now >= end) {
            Validity::None
        } else if self.renewal.is_some_and(|renewal| now >= renewal) {
            Validity::Expiring
        } else {
            Validity::Valid
        }
    }

    /// Returns why missing keys must not be read now: the latest reading failed less than
    /// [`AFTER_FAILURE`] ago.
    fn recent_failure(&self, now: SystemTime) -> Option<&Error> {
        self.failure
            .as_ref()
            .filter(|_| self.since_reading(now) < AFTER_FAILURE)
    }

    /// Returns keys other than those that a server has refused, if there are any.
    fn other_than(&self, refused: &AwsCredential) -> Option<Arc<AwsCredential>> {
        let credential = &self.keys.as_ref()?.credential;
        (**credential != *refused).then(|| credential.clone())
    }

    /// Returns whether a refusal of the keys in use causes a reading now.
    fn is_due(&self, refusal: Refusal, now: SystemTime) -> bool {
        let Some(NewKeys { origin, .. }) = self.keys else {
            return true;
        };
        let doublings = match refusal {
            Refusal::OfKeys => self.of_keys,
            Refusal::Unclear if origin == KeyOrigin::Program && self.are_confirmed => return false,
            Refusal::Unclear => self.unclear,
        };
        self.since_reading(now) >= pause(origin, refusal, doublings)
    }

    fn since_reading(&self, now: SystemTime) -> Duration {
        self.read
            .and_then(|read| now.duration_since(read).ok())
            .unwrap_or(Duration::MAX)
    }

    /// Records a reading that ended now, and the refusal that caused it.
    fn record(&mut self, read: Result<NewKeys>, cause: Option<Refusal>, now: SystemTime) {
        self.read = Some(now);
        let keys = match read {
            Ok(keys) => keys,
            Err(e) => return self.record_failure(e, now),
        };
        let before = self.keys.as_ref();
        let are_other = before.is_none_or(|before| before.credential != keys.credential);
        if before.is_none_or(|before| before.origin != keys.origin) {
            self.record_use();
        }
        if are_other {
            self.of_keys = 0;
        } else {
            self.of_keys += 1;
        }
        if are_other && keys.origin == KeyOrigin::File {
            self.unclear = 0;
        } else if cause == Some(Refusal::Unclear) {
            // a service may return other keys each time, which the server refuses for the same
            // reason
            self.unclear += 1;
        }
        self.renewal = keys.expires.map(|end| {
            // not before three quarters of the remaining time, so that keys that are valid only for
            // minutes are used, too
            let left = end.duration_since(now).unwrap_or_default();
            let renewal = end - EARLY.min(left / 4);
            // a program may return the same keys until they expire
            if are_other {
                renewal
            } else {
                renewal.max(now + pause(keys.origin, Refusal::OfKeys, self.of_keys))
            }
        });
        self.are_confirmed = !are_other;
        self.failure = None;
        self.keys = Some(keys);
        if are_other && cause.is_some() {
            log::info!(
                "the server has refused the credentials; using new ones from the same source"
            );
        }
    }

    fn record_failure(&mut self, e: Error, now: SystemTime) {
        if let Some(renewal) = &mut self.renewal {
            *renewal = now + AFTER_FAILURE;
        }
        // without valid keys, the requests return the error
        if self.failure.is_none() && self.validity(now) != Validity::None {
            log::warn!("{e}; using the previous credentials");
        }
        self.failure = Some(e);
    }

    /// Records that the server accepts keys that were read after a refusal, so that pauses
    /// between readings begin short again.
    fn record_use(&mut self) {
        self.of_keys = 0;
        self.unclear = 0;
    }
}

/// Returns the minimum time between readings after refusals, which has doubled so often.
fn pause(origin: KeyOrigin, refusal: Refusal, doublings: u32) -> Duration {
    let (first, longest): (u64, u64) = match (origin, refusal) {
        (KeyOrigin::File, Refusal::OfKeys) => (1, 1),
        (KeyOrigin::File, Refusal::Unclear) => (1, 10),
        (KeyOrigin::Program, Refusal::OfKeys) => (10, 300),
        (KeyOrigin::Program, Refusal::Unclear) => (300, 3600),
    };
    Duration::from_secs((first << doublings.min(8)).min(longest))
}

impl RenewedKeys {
    /// Creates keys that are read when they are needed.
    pub fn new(source: impl KeySource) -> Self {
        Self::with_clock(source, SystemTime::now)
    }

    fn with_clock(
        source: impl KeySource,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Self {
        RenewedKeys(Arc::new(Shared {
            source: Box::new(source),
            clock: Box::new(clock),
            state: Mutex::default(),
        }))
    }

    /// Returns the keys for a request. Only requests without valid keys wait for a reading.
    pub async fn current(&self) -> Result<Arc<AwsCredential>> {
        let reading = {
            let mut state = lock(&self.0.state);
            let now = (self.0.clock)();
            let validity = state.validity(now);
            if validity != Validity::None
                && let Some(keys) = &state.keys
            {
                let credential = keys.credential.clone();
                if validity == Validity::Expiring {
                    self.begin(&mut state, None);
                }
                return Ok(credential);
            }
            if let Some(e) = state.recent_failure(now) {
                return Err(e.clone());
            }
            self.begin(&mut state, None)
        };
        end_of(reading).await;
        let state = lock(&self.0.state);
        match (&state.failure, &state.keys) {
            (None, Some(keys)) => Ok(keys.credential.clone()),
            (Some(e), _) => Err(e.clone()),
            (None, None) => Err(Error::io("the credentials could not be read")),
        }
    }

    /// Returns keys other than those that a server has refused, if there are any now.
    pub async fn instead_of(
        &self,
        refused: &AwsCredential,
        refusal: Refusal,
    ) -> Option<Arc<AwsCredential>> {
        let reading = {
            let mut state = lock(&self.0.state);
            if let Some(other) = state.other_than(refused) {
                // another refused request has already led to a reading
                return Some(other);
            }
            if state.reading.is_none() && !state.is_due(refusal, (self.0.clock)()) {
                return None;
            }
            self.begin(&mut state, Some(refusal))
        };
        end_of(reading).await;
        lock(&self.0.state).other_than(refused)
    }

    /// Records that the server accepts keys of [`RenewedKeys::instead_of`].
    pub fn record_use(&self) {
        lock(&self.0.state).record_use();
    }

    /// Starts to read the keys unless a reading is in flight; `cause` is the refusal that led to
    /// it, if any. The reading continues if the request is dropped.
    fn begin(&self, state: &mut KeysState, cause: Option<Refusal>) -> watch::Receiver<()> {
        if let Some(reading) = &state.reading {
            return reading.clone();
        }
        let (end, reading) = watch::channel(());
        state.reading = Some(reading.clone());
        let ending = Ending {
            shared: self.0.clone(),
            _end: end,
        };
        tokio::spawn(async move {
            let shared = &ending.shared;
            let read = shared.source.read().await;
            let mut state = lock(&shared.state);
            state.record(read, cause, (shared.clock)());
        });
        reading
    }
}

/// A guard whose drop ends a reading, also one that panics.
struct Ending {
    shared: Arc<Shared>,
    _end: watch::Sender<()>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.shared.state).reading = None;
    }
}

async fn end_of(mut reading: watch::Receiver<()>) {
    // an error means that the sender was dropped
    while reading.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests;
