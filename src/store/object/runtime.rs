//! The asynchronous runtime for requests to servers, shared by all stores of the process. Callers
//! use [`block_on`], and the modules above are synchronous.

use crate::error::{Error, Result};
use std::future::Future;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

/// Number of threads for sockets and TLS. Callers wait in their own threads.
const THREADS: usize = 2;

static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();

/// Returns the runtime, which is started by the first call.
///
/// # Errors
///
/// EAGAIN if the system cannot start its threads.
pub(super) fn handle() -> Result<&'static Handle> {
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(THREADS)
            .thread_name("zarrfs-remote")
            .enable_all();
        builder.build().map_err(|e| e.to_string())
    });
    match made {
        Ok(runtime) => Ok(runtime.handle()),
        Err(e) => {
            Err(Error::system(libc::EAGAIN)
                .context(format!("threads for requests to servers: {e}")))
        }
    }
}

/// Runs a request that receives into the memory of `value`, and waits for it. The threads of the
/// runtime copy what they have read from a socket, since it takes more processor time to wake the
/// caller for each piece. `request` gets the memory, and returns it with its result.
pub(super) fn receive<T, W>(value: &mut Vec<u8>, request: impl FnOnce(Vec<u8>) -> W) -> Result<T>
where
    T: Send + 'static,
    W: Future<Output = (Result<T>, Vec<u8>)> + Send + 'static,
{
    let handle = handle()?;
    let work = handle.spawn(request(std::mem::take(value)));
    let (result, memory) = handle.block_on(work).map_err(|e| interrupted(&e))?;
    *value = memory;
    result
}

/// Runs `work` to completion in the calling thread, which must not belong to the runtime.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    handle()?.block_on(work)
}

/// Returns the error for a task that panicked or was aborted.
pub(super) fn interrupted(error: &tokio::task::JoinError) -> Error {
    Error::system(libc::EIO).context(format!("a request was aborted: {error}"))
}
