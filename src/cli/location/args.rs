//! Options of every verb that opens a store. This module must not know how one is opened.

use super::parse::StoreLocation;
use crate::array::hierarchy::UseConsolidated;
use crate::cli::remote::RemoteArgs;
use crate::cli::{ACCESS, WRITING, duration, words};
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, ErrorContext};
use zarrfs_base::spill_file::SpillSpace;
use zarrfs_format::metadata::V1Order;
use zarrfs_store::{DirectoryStore, LockFiles, SnapshotRef};

/// Options of every verb that reads a store.
#[derive(Args, Clone)]
pub struct StoreArgs {
    /// Read v1 order F as zarr1 or spec [default: zarr1]
    ///
    /// zarr1 reads them as zarr 1.x wrote them, spec as the text of the specification says.
    #[arg(long, value_parser = words(&[("zarr1", V1Order::Zarr1), ("spec", V1Order::Spec)]),
        value_name = "READING", default_value = "zarr1", help_heading = ACCESS,
        hide_possible_values = true, hide_default_value = true)]
    pub v1_order: V1Order,
    /// Let references lead to what is below URL
    ///
    /// A URL or path, compared name by name. By default references may only lead to files below the
    /// directory of the file of references. Credentials and headers are sent to servers below URL,
    /// too. May be given several times.
    #[arg(long, value_name = "URL", help_heading = ACCESS)]
    pub allow_reference: Vec<StoreLocation>,
    /// Read an Icechunk snapshot [default: branch:main]
    ///
    /// branch:NAME follows a branch, tag:NAME, snapshot:ID and asof:TIME name a snapshot for good.
    /// TIME is as 2026-01-31T12:30Z, and is looked for in the branch main.
    #[arg(long = "ref", value_name = "REF", value_parser = SnapshotRef::parse, help_heading = ACCESS)]
    pub snapshot: Option<SnapshotRef>,
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// How the command uses the store.
    #[arg(skip)]
    pub usage: StoreUsage,
}

/// How a command uses a store: what no option says.
#[derive(Clone, Default)]
pub struct StoreUsage {
    /// Whether keys of unfinished writes are listed. Verbs that look for them set it.
    pub lists_unfinished: bool,
    /// How often the store is read. Verbs that only read set this field.
    pub reading: Reading,
    /// Whether a mount is read-only.
    pub is_read_only: bool,
    /// Whether the location is a directory of stores.
    pub holds_stores: bool,
    /// Whether all snapshots of a repository are shown, each in a directory.
    pub shows_history: bool,
    /// Whether a branch of a repository stays at the snapshot that it has when it is opened.
    pub keeps_snapshot: bool,
    /// Whether the location is above the store, and documents alone are looked for there.
    pub is_above: bool,
    /// The mountpoint, without links, which no reference may lead into.
    pub mountpoint: Option<PathBuf>,
    /// Whether a daemon before this one may have changed the store without a sync.
    pub is_successor: bool,
    /// The space of spill files, if a mount has another one.
    pub spill: Option<Arc<SpillSpace>>,
}

/// How often a command reads a store.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Reading {
    /// Whenever a program asks.
    #[default]
    Repeated,
    /// At one moment, so that no request is repeated.
    Once,
    /// All of it, at one moment.
    WholeOnce,
}

impl StoreArgs {
    /// Returns whether the command reads the store at one moment.
    pub fn reads_once(&self) -> bool {
        self.usage.reading != Reading::Repeated
    }

    /// Returns the condition under which consolidated metadata is used.
    pub fn consolidated(&self) -> UseConsolidated {
        match self.remote.consolidated {
            // a check looks at the documents themselves
            UseConsolidated::Auto if self.usage.lists_unfinished => UseConsolidated::Auto,
            UseConsolidated::Auto if self.usage.is_read_only || self.reads_once() => {
                UseConsolidated::UntilOpened
            }
            when => when,
        }
    }
}

/// Options of every verb that writes a store.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = WRITING)]
pub struct WriteArgs {
    /// Lock chunks as zarr-python's ProcessSynchronizer
    ///
    /// Takes the lock of each chunk that is stored, in the directory that a ProcessSynchronizer
    /// uses. Locks are named by the keys below STORE: a program that opens a group and one that
    /// opens its array don't share them.
    #[arg(long, value_name = "DIR")]
    pub synchronizer: Option<PathBuf>,
    /// Wait this long for a lock
    ///
    /// If another program holds a lock of --synchronizer for longer, storing the chunk fails.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    pub lock_timeout: Duration,
    /// Replace chunks without waiting for the disk
    ///
    /// Faster, but after a power loss neither the old chunk nor the new one may be there. An fsync
    /// still waits.
    #[arg(long)]
    pub no_fsync: bool,
    /// Remove chunks that hold only the fill value
    ///
    /// A chunk that is written and holds nothing but the fill value is removed instead of stored.
    #[arg(long)]
    pub drop_empty_chunks: bool,
}

impl WriteArgs {
    /// Returns the directory store that writes as the options say.
    ///
    /// # Errors
    ///
    /// The directory of locks can't be opened.
    pub fn apply(&self, mut store: DirectoryStore) -> Result<DirectoryStore, Error> {
        if self.no_fsync {
            store = store.without_fsync();
        }
        if let Some(directory) = &self.synchronizer {
            let locks = LockFiles::open(directory, self.lock_timeout);
            store = store.with_locks(locks.context("--synchronizer")?);
        }
        Ok(store)
    }
}
