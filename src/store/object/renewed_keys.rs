//! Keys that are read again when they expire or are refused, without delaying the requests that
//! have valid ones. This module does not know the sources of keys; `key_renewal` decides when they
//! are read. Messages never show keys.

use super::key_renewal::{KeyMoment, KeyOrigin, KeyRenewal, ReadingOutcome, Refusal, Validity};
use crate::error::{Error, Result};
use crate::util::memory::lock;
use async_trait::async_trait;
use object_store::aws::AwsCredential;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tokio::sync::watch;

/// Keys and their time of expiry. The type has no `Debug`, so that nothing prints keys.
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

/// Keys in use, and their source.
pub(super) struct RenewedKeys(Arc<Shared>);

struct Shared {
    source: Box<dyn KeySource>,
    clock: Box<dyn Fn() -> KeyMoment + Send + Sync>,
    /// Protects the state alone; it is not held while keys are read.
    state: Mutex<KeysState>,
}

struct KeysState {
    renewal: KeyRenewal,
    credential: Option<Arc<AwsCredential>>,
    /// The error of the latest reading.
    failure: Option<Error>,
    /// A channel that is closed when the reading in flight ends.
    reading: Option<watch::Receiver<()>>,
}

impl RenewedKeys {
    /// Creates keys that are read when they are needed.
    pub fn new(source: impl KeySource) -> Self {
        Self::with_clock(source, KeyMoment::now)
    }

    fn with_clock(
        source: impl KeySource,
        clock: impl Fn() -> KeyMoment + Send + Sync + 'static,
    ) -> Self {
        let state = KeysState {
            renewal: KeyRenewal::new(),
            credential: None,
            failure: None,
            reading: None,
        };
        RenewedKeys(Arc::new(Shared {
            source: Box::new(source),
            clock: Box::new(clock),
            state: Mutex::new(state),
        }))
    }

    /// Returns the keys for a request. Only requests without valid keys wait for a reading.
    pub async fn current(&self) -> Result<Arc<AwsCredential>> {
        let reading = {
            let mut state = lock(&self.0.state);
            let now = (self.0.clock)();
            match (state.renewal.validity(now), state.credential.clone()) {
                (Validity::Valid, Some(credential)) => return Ok(credential),
                (Validity::Expiring, Some(credential)) => {
                    self.begin(&mut state, None);
                    return Ok(credential);
                }
                _ => {}
            }
            if state.renewal.is_paused(now)
                && let Some(e) = &state.failure
            {
                return Err(e.clone());
            }
            self.begin(&mut state, None)
        };
        end_of(reading).await;
        let state = lock(&self.0.state);
        match (&state.failure, &state.credential) {
            (None, Some(credential)) => Ok(credential.clone()),
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
        let other = |state: &KeysState| {
            state
                .credential
                .clone()
                .filter(|credential| **credential != *refused)
        };
        let reading = {
            let mut state = lock(&self.0.state);
            if let Some(other) = other(&state) {
                // another refused request has already led to a reading
                return Some(other);
            }
            if state.reading.is_none() && !state.renewal.is_due(refusal, (self.0.clock)()) {
                return None;
            }
            self.begin(&mut state, Some(refusal))
        };
        end_of(reading).await;
        other(&lock(&self.0.state))
    }

    /// Records that the server accepts keys of [`RenewedKeys::instead_of`].
    pub fn record_use(&self) {
        lock(&self.0.state).renewal.record_use();
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
            let read = ending.shared.source.read().await;
            ending.shared.accept(read, cause);
        });
        reading
    }
}

impl Shared {
    /// Records the result of a reading.
    fn accept(&self, read: Result<NewKeys>, cause: Option<Refusal>) {
        let mut state = lock(&self.state);
        let now = (self.clock)();
        match read {
            Ok(keys) => {
                let are_other = state.credential.as_deref() != Some(&*keys.credential);
                let outcome = ReadingOutcome::Keys {
                    are_other,
                    origin: keys.origin,
                    expires: keys.expires,
                };
                state.renewal.record(outcome, cause, now);
                (state.credential, state.failure) = (Some(keys.credential), None);
                if are_other && cause.is_some() {
                    log::info!(
                        "the server has refused the credentials; using new ones from the same source"
                    );
                }
            }
            Err(e) => {
                state.renewal.record(ReadingOutcome::Failure, cause, now);
                // without valid keys, the requests return the error
                if state.failure.is_none() && state.renewal.validity(now) != Validity::None {
                    log::warn!("{e}; using the previous credentials");
                }
                state.failure = Some(e);
            }
        }
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
