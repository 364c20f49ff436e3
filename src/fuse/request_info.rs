//! Logs requests: one line for each at the level `debug`, and one at the level `error` for a
//! request that ends in EIO. This module must not know what requests do.

use crate::fs::Fs;
use fuser::{Errno, INodeNo};
use log::Level;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory;
use zarrfs_base::stats::bytes_decoded_by_thread;

/// A request: its operation, and the file, name or bytes that it is about.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    operation: &'static str,
    /// The inode number of the file, or of the directory that holds the name.
    pub inode: u64,
    /// The name in that directory; empty for a request about the inode itself.
    pub name: String,
    /// Offset and length in bytes.
    range: Option<(u64, usize)>,
}

impl RequestInfo {
    /// Describes a request about an inode.
    pub fn of(operation: &'static str, inode: INodeNo) -> Self {
        RequestInfo {
            operation,
            inode: inode.0,
            name: String::new(),
            range: None,
        }
    }

    /// Describes a request about bytes of an open file.
    pub fn of_bytes(operation: &'static str, inode: INodeNo, offset: u64, len: usize) -> Self {
        RequestInfo {
            range: Some((offset, len)),
            ..RequestInfo::of(operation, inode)
        }
    }

    /// Describes a request about a name in a directory. Returns `None` for a name that is not
    /// UTF-8, which no key of a store can have.
    pub fn of_name(operation: &'static str, directory: INodeNo, name: &OsStr) -> Option<Self> {
        Some(RequestInfo {
            name: name.to_str()?.to_string(),
            ..RequestInfo::of(operation, directory)
        })
    }

    /// Does the work of the request, and logs it.
    ///
    /// # Errors
    ///
    /// The errno to answer. A panic is EIO.
    pub fn run<T>(
        &self,
        fs: &Fs,
        work: impl FnOnce() -> Result<T>,
    ) -> std::result::Result<T, Errno> {
        self.run_some(fs, || work().map(Some))
            .map(|value| value.expect("the work returns a value"))
    }

    /// Runs as [`RequestInfo::run`] does, but logs nothing if the work returns `None`: another
    /// thread continues the request.
    pub fn run_some<T>(
        &self,
        fs: &Fs,
        work: impl FnOnce() -> Result<Option<T>>,
    ) -> std::result::Result<Option<T>, Errno> {
        memory::begin_request();
        let before =
            log::log_enabled!(Level::Debug).then(|| (Instant::now(), bytes_decoded_by_thread()));
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied());
            Err(Error::damaged(format!(
                "{}: internal error: {}",
                self.shown(fs),
                text.unwrap_or("panic")
            )))
        });
        match (&result, before) {
            (Err(e), None) if e.errno() == libc::EIO => log::error!("{}: EIO: {e}", self.shown(fs)),
            (Ok(None), _) | (_, None) => {}
            (_, Some((start, decoded))) => {
                let level = if result.as_ref().is_err_and(|e| e.errno() == libc::EIO) {
                    Level::Error
                } else {
                    Level::Debug
                };
                let outcome = result
                    .as_ref()
                    .err()
                    .map_or("ok".to_string(), |e| format!("errno {} ({e})", e.errno()));
                let decoded = bytes_decoded_by_thread() - decoded;
                log::log!(
                    level,
                    "{}: {outcome}, {:?}, {decoded} bytes decoded",
                    self.shown(fs),
                    start.elapsed()
                );
            }
        }
        result.map_err(|e| {
            let e = fs.report(e);
            Errno::from_i32(e.errno())
        })
    }

    /// Returns the request as one line: `read /a/data.raw offset 0 length 4096`.
    fn shown(&self, fs: &Fs) -> String {
        let mut line = format!(
            "{} {}",
            self.operation,
            fs.tree().shown_path(self.inode, &self.name)
        );
        if let Some((offset, len)) = self.range {
            line.push_str(&format!(" offset {offset} length {len}"));
        }
        line
    }
}

#[cfg(test)]
mod tests;
