//! The kinds of faults: how much each matters, what a program calls it and what a person can do. The table stands here
//! once; who finds a fault adds where and why.

use crate::error::Error;
use crate::store::Key;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Good to know; not a finding that makes a check fail.
    Note,
    /// Nothing that is read is wrong, but something is not as its writer wanted it.
    Warning,
    /// Data or metadata that can't be read, or that nobody finds.
    Error,
}

impl Level {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// A metadata document that breaks its format.
    Metadata,
    /// Attributes that are no JSON object.
    Attributes,
    /// A stored chunk that can't be right.
    Chunk,
    /// The system doesn't let it be looked at.
    Unreadable,
    /// Chunks under the separator that the array doesn't use.
    Separator,
    /// A codec or dtype this build doesn't have.
    Unsupported,
    /// Chunks under `/` of an array that declares no separator.
    UndeclaredSeparator,
    /// `_ARRAY_DIMENSIONS` that do not fit the shape.
    Dimensions,
    /// Named like a chunk, but outside the grid.
    OutsideGrid,
    /// A value that was never finished.
    Leftover,
    /// A document in `.zmetadata` that is not what is stored.
    Consolidated,
    /// Metadata of Zarr v3.
    V3,
    /// A group or array below an array.
    Nested,
    /// Neither a file nor a directory, or a link that leads out of the store.
    NotAFile,
    /// An array of Zarr v1.
    V1,
    /// A directory without `.zgroup`.
    NoGroup,
    /// A key that is no part of the hierarchy.
    Extra,
    /// A store that can't list.
    Unlisted,
}

impl Fault {
    /// What a program calls it.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// How much it matters.
    pub fn level(self) -> Level {
        self.row().0
    }

    /// What can be done; empty where nothing need be.
    pub fn advice(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> (Level, &'static str, &'static str) {
        use Level::{Error, Note, Warning};
        match self {
            Fault::Metadata => (Error, "metadata", "mend the document, or restore it from a copy"),
            Fault::Attributes => (Error, "attributes", "mend the document: it must hold a JSON object"),
            Fault::Chunk => {
                (Error, "chunk", "restore it from a copy; if it is deleted the chunk reads as the fill value")
            }
            Fault::Unreadable => (Error, "unreadable", "look at the permissions, and at the disk or the server"),
            Fault::Separator => {
                (Error, "separator", "no reader finds it: correct dimension_separator in .zarray, or rename the chunks")
            }
            Fault::Unsupported => (Warning, "unsupported", "other programs may read it"),
            Fault::UndeclaredSeparator => (
                Warning,
                "undeclared-separator",
                "add \"dimension_separator\": \"/\" to .zarray: others look under \".\"",
            ),
            Fault::Dimensions => (Warning, "dimensions", "correct the attribute: xarray can't open the array"),
            Fault::OutsideGrid => {
                (Warning, "outside-grid", "no reader finds it: delete it, or correct the shape in .zarray")
            }
            Fault::Leftover => (Warning, "leftover", "a writer died, or is still at it: delete it when nobody writes"),
            Fault::Consolidated => (Warning, "zmetadata", "write it anew with `zarrfs consolidate`"),
            Fault::V3 => (Warning, "zarr-v3", "this version reads v1 and v2"),
            Fault::Nested => (Warning, "nested", "what stands below an array is no part of the hierarchy: move it"),
            Fault::NotAFile => (Warning, "not-a-file", "it is not read"),
            Fault::V1 => (Note, "zarr-v1", "`zarrfs migrate` turns it into v2"),
            Fault::NoGroup => (Note, "no-zgroup", "other programs may not take it for a group"),
            Fault::Extra => (Note, "extra", ""),
            Fault::Unlisted => (Note, "unlisted", ""),
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub fault: Fault,
    /// Where.
    pub key: Key,
    /// Why, and what can be done: one line, without the key.
    pub message: String,
}

impl Finding {
    /// A fault at `key`, because of `what`.
    pub(super) fn new(fault: Fault, key: &Key, what: impl Into<String>) -> Self {
        let what = what.into();
        let message = if fault.advice().is_empty() { what } else { format!("{what}; {}", fault.advice()) };
        Finding { fault, key: key.clone(), message }
    }

    /// A fault at `key` that an error tells, which names the key itself or one below it.
    pub(super) fn of_error(fault: Fault, key: &Key, e: &Error) -> Self {
        let own = format!("{key}: ");
        Finding::new(fault, key, e.message().strip_prefix(&own).unwrap_or(e.message()))
    }
}
