//! The threads that wait for servers: one small runtime for all stores of the process. What is above calls [`block_on`]
//! and knows of nothing that doesn't return with a result.

use crate::error::{Error, Result};
use std::future::Future;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads for sockets and TLS; whoever waits for an answer does so in a thread of their own.
const THREADS: usize = 2;

static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();

/// Begins to wait for what is spawned there; an error if the system gives no threads.
pub(super) fn handle() -> Result<&'static Handle> {
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("zarrfs-remote").enable_all();
        builder.build().map_err(|e| e.to_string())
    });
    match made {
        Ok(runtime) => Ok(runtime.handle()),
        Err(e) => Err(Error::system(libc::EAGAIN).context(format!("threads for requests to servers: {e}"))),
    }
}

/// Runs `work` to its end in the calling thread. Any number of threads may do so at once, none of them the runtime's own.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    handle()?.block_on(work)
}
