//! Whether a server states versions of its values. Without them, equal content cannot be shown: a
//! cached value is never current, two parts of a value are compared by its size, and a conditional
//! put is impossible, so none is made.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::stats::Stats;
use zarrfs_store::Version;

const UNSTATED: &str = "the server states no version of its values, neither ETag nor Last-Modified";

/// The versions that one server states.
pub(super) struct StatedVersions {
    /// The server or bucket, for messages.
    server: String,
    stats: Arc<Stats>,
    /// Whether the server has sent a value without a version.
    are_missing: AtomicBool,
}

impl StatedVersions {
    pub fn new(server: String, stats: Arc<Stats>) -> Self {
        StatedVersions {
            server,
            stats,
            are_missing: AtomicBool::new(false),
        }
    }

    /// Returns the version of a value of `size` bytes: that of its entity tag, or else its date and
    /// size. Reports once that a server states neither.
    pub fn version(
        &self,
        of_tag: Option<Version>,
        date: Option<impl Display>,
        size: u64,
    ) -> Version {
        let of_date = date.map(|date| Version::Tag(format!("{date}, {size} bytes")));
        of_tag.or(of_date).unwrap_or_else(|| {
            if !self.are_missing.swap(true, Ordering::Relaxed) {
                let what =
                    "a change during a read is noticed by the size alone, and writing is refused";
                self.stats
                    .problem(format!("{}: {UNSTATED}: {what}", self.server));
            }
            Version::unstated(size)
        })
    }

    /// Checks that no value came without a version.
    ///
    /// # Errors
    ///
    /// EROFS with the reason.
    pub fn check(&self) -> Result<()> {
        if !self.are_missing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let why = format!("{UNSTATED}, so a put could undo changes of other writers");
        Err(Error::new(Kind::ReadOnly, why).context(&self.server))
    }
}
