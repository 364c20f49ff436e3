//! Work that a process in a sandbox leaves to another one, which is outside. A module names the
//! service and knows neither the process nor the sandbox.

use crate::error::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

/// Time in which a service answers that waits for no other program.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The result of a service.
#[derive(Default)]
pub struct Answer {
    /// The bytes, of at most 64 KiB.
    pub bytes: Vec<u8>,
    /// A descriptor.
    pub file: Option<OwnedFd>,
}

impl Answer {
    /// Returns an answer of bytes alone.
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        Answer { bytes, file: None }
    }

    /// Returns an answer of a descriptor alone.
    pub fn of_file(file: impl Into<OwnedFd>) -> Self {
        Answer {
            bytes: Vec::new(),
            file: Some(file.into()),
        }
    }

    /// Returns the descriptor.
    ///
    /// # Errors
    ///
    /// EIO if there is none.
    pub fn into_file(self) -> Result<OwnedFd> {
        self.file.ok_or_else(|| Error::system(libc::EIO))
    }
}

/// Asks the other process for a service with an argument, which must answer within the time.
type AskOutside = dyn Fn(&str, &[u8], Duration) -> Result<Answer> + Send + Sync;

static OUTSIDE: OnceLock<Box<AskOutside>> = OnceLock::new();

/// Makes another process run services from now on.
pub fn set_outside(ask: impl Fn(&str, &[u8], Duration) -> Result<Answer> + Send + Sync + 'static) {
    // a second sandbox is never entered
    let _ = OUTSIDE.set(Box::new(ask));
}

/// Asks the process outside for a service. Returns `None` if this process is in no sandbox, and
/// does the work itself.
pub fn ask_outside(service: &str, argument: &[u8], limit: Duration) -> Option<Result<Answer>> {
    OUTSIDE.get().map(|ask| ask(service, argument, limit))
}
