//! The asynchronous runtime for requests to servers, shared by all stores of the process. Callers
//! use [`block_on`], and the modules above are synchronous.

use std::future::Future;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};
use zarrfs_base::error::{Error, Result};

/// Number of threads for sockets and TLS. Callers wait in their own threads.
const THREADS: usize = 2;

static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();

/// Returns the runtime, which is started by the first call.
///
/// # Errors
///
/// EAGAIN if the system cannot start its threads.
fn handle() -> Result<&'static Handle> {
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
    let request = request(std::mem::take(value));
    let (result, memory) = RemoteTask::spawn(async { Ok(request.await) })?.wait()?;
    *value = memory;
    result
}

/// Work of the runtime, which is aborted when this is dropped.
pub(super) struct RemoteTask<T>(JoinHandle<Result<T>>);

impl<T: Send + 'static> RemoteTask<T> {
    /// Starts `work`.
    pub fn spawn(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<Self> {
        Ok(RemoteTask(handle()?.spawn(work)))
    }
}

impl<T> RemoteTask<T> {
    /// Waits for the result in the calling thread, which must not belong to the runtime.
    pub fn wait(mut self) -> Result<T> {
        handle()?.block_on(&mut self.0).map_err(interrupted)?
    }
}

impl<T> Drop for RemoteTask<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `work` to completion in the calling thread, which must not belong to the runtime.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    handle()?.block_on(work)
}

/// Returns the error for a task that panicked or was aborted.
pub(super) fn interrupted(error: JoinError) -> Error {
    Error::system(libc::EIO).context(format!("a request was aborted: {error}"))
}
