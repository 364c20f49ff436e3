//! Locations of stores on a command line: names are parsed, what they name is probed, and the
//! layers of stores are opened for it.

mod args;
mod hierarchy;
mod open;
mod parse;
mod probe;
mod server;
mod targets;

pub use args::{Reading, StoreArgs, StoreUsage, WriteArgs};
pub use parse::{
    StoreLocation, UrlParts, check_url, is_archive_name, is_ome_archive_name, leads_into_archive,
};
pub use probe::{check_answers, check_not_mounted, check_not_swapped, marked_by};

use super::failure::{CommandFailure, ExitCode};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, Kind};
use zarrfs_base::stats::Stats;
use zarrfs_store::ObjectOptions;

/// Maximum number of levels above a URL that are searched for consolidated metadata.
const LEVELS_ABOVE: usize = 8;

/// What is asked of a store that is opened.
#[derive(Clone, Copy)]
pub struct StoreRequest<'a> {
    pub location: &'a StoreLocation,
    pub args: &'a StoreArgs,
    /// `None` if the store is only read.
    pub writing: Option<&'a WriteArgs>,
    pub stats: &'a Arc<Stats>,
}

impl<'a> StoreRequest<'a> {
    /// Returns the request of a command that only reads.
    pub fn reading(
        location: &'a StoreLocation,
        args: &'a StoreArgs,
        stats: &'a Arc<Stats>,
    ) -> Self {
        StoreRequest {
            location,
            args,
            writing: None,
            stats,
        }
    }

    /// Returns the request of a command that writes, too.
    pub fn for_writing(self, writing: &'a WriteArgs) -> Self {
        StoreRequest {
            writing: Some(writing),
            ..self
        }
    }

    /// Returns the options of requests to servers.
    fn object_options(self) -> Result<ObjectOptions, Error> {
        Ok(ObjectOptions {
            refusal_is_final: self.args.usage.mountpoint.is_none(),
            ..self.args.remote.options()?
        })
    }

    fn metadata_ttl(self) -> Option<Duration> {
        self.args.remote.metadata_ttl(self.args.reads_once())
    }

    /// Returns the failure for an error about the location. The kinds in `codes` have exit codes of
    /// their own.
    fn failure(self, e: Error, codes: &[(Kind, ExitCode)]) -> CommandFailure {
        match codes.iter().find(|(kind, _)| *kind == e.kind()) {
            Some((_, code)) => CommandFailure::new(*code, format!("{}: {e}", self.location)),
            None => e.context(self.location).into(),
        }
    }

    /// Returns the failure for an error about the documents at the location.
    fn not_opened(self, e: Error) -> CommandFailure {
        let codes = [Kind::Invalid, Kind::Unsupported].map(|kind| (kind, ExitCode::NotZarr));
        self.failure(e, &codes)
    }
}
