//! What stores tell of snapshots, and how the user names one. This module must not know how a
//! repository keeps them.

use super::{Key, ObjectId};
use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use std::fmt;
use std::time::SystemTime;
use zarrfs_base::error::{Error, Result};

/// The branch that is read if none is named.
pub const MAIN: &str = "main";

/// Which snapshot of a repository is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRef {
    /// The latest one of a branch.
    Branch(String),
    /// The one that a tag names.
    Tag(String),
    /// The one with this identifier.
    Snapshot(ObjectId),
    /// The latest one of the branch `main` at a time.
    AsOf(SystemTime),
}

impl Default for SnapshotRef {
    fn default() -> Self {
        SnapshotRef::Branch(MAIN.to_string())
    }
}

impl SnapshotRef {
    /// Parses `branch:NAME`, `tag:NAME`, `snapshot:ID` or `asof:TIME`.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) for any other text.
    pub fn parse(text: &str) -> Result<Self> {
        let forms = "branch:NAME, tag:NAME, snapshot:ID or asof:TIME";
        let (kind, name) = text
            .split_once(':')
            .ok_or_else(|| Error::invalid(format!("not {forms}")))?;
        match kind {
            "branch" | "tag" if name.is_empty() => Err(Error::invalid("no name")),
            "branch" => Ok(SnapshotRef::Branch(name.to_string())),
            "tag" => Ok(SnapshotRef::Tag(name.to_string())),
            "snapshot" => ObjectId::parse(name)
                .map(SnapshotRef::Snapshot)
                .ok_or_else(|| Error::invalid("a snapshot has 20 digits of base 32")),
            "asof" => parse_time(name).map(SnapshotRef::AsOf).ok_or_else(|| {
                Error::invalid(
                    "not a time as 2026-01-31, 2026-01-31T12:30Z or 2026-01-31T12:30:59Z",
                )
            }),
            _ => Err(Error::invalid(format!("not {forms}"))),
        }
    }

    /// Returns whether it may lead to another snapshot later.
    pub fn can_move(&self) -> bool {
        matches!(self, SnapshotRef::Branch(_))
    }
}

impl fmt::Display for SnapshotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotRef::Branch(name) => write!(f, "branch:{name}"),
            SnapshotRef::Tag(name) => write!(f, "tag:{name}"),
            SnapshotRef::Snapshot(id) => write!(f, "snapshot:{id}"),
            SnapshotRef::AsOf(time) => {
                write!(f, "asof:{}", DateTime::<Utc>::from(*time).format("%FT%TZ"))
            }
        }
    }
}

/// Parses a time in UTC, or with an offset.
fn parse_time(text: &str) -> Option<SystemTime> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.into());
    }
    let plain = text.strip_suffix('Z').unwrap_or(text);
    let time = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(plain, form).ok());
    let day = || {
        NaiveDate::parse_from_str(plain, "%Y-%m-%d")
            .ok()?
            .and_hms_opt(0, 0, 0)
    };
    Some(time.or_else(day)?.and_utc().into())
}

/// The description of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotCommit {
    /// Identifier of the snapshot.
    pub id: ObjectId,
    /// Time of the commit.
    pub time: SystemTime,
    /// Message of the commit.
    pub message: String,
}

/// All that names snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHistory {
    /// The branches.
    pub branches: Vec<(String, ObjectId)>,
    /// The tags.
    pub tags: Vec<(String, ObjectId)>,
    /// The latest snapshots of the branch or tag that is read, latest first.
    pub log: Vec<SnapshotCommit>,
}

/// What a store of a repository knows of snapshots.
pub trait Snapshots {
    /// Returns the prefix under which all that is below the prefix `key` now stays as it is, if it
    /// may change: the other name of a branch.
    fn settled(&self, key: &Key) -> Result<Option<Key>>;

    /// Returns whether a branch has left the snapshot in which `key` is, as a prefix returned by
    /// [`Snapshots::settled`].
    fn is_left(&self, key: &Key) -> Result<bool>;

    /// Returns the snapshot whose root is shown at `key`, and what led to it.
    fn commit_at(&self, key: &Key) -> Result<Option<(SnapshotRef, SnapshotCommit)>>;

    /// Returns the branches, the tags, and the latest `count` snapshots up to the one that is
    /// shown; `None` for a directory of repositories.
    fn history(&self, count: usize) -> Result<Option<SnapshotHistory>>;
}
