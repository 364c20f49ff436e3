//! The kinds of faults: how much each matters, what a program calls it and what a person can do. Who finds one adds where
//! and why.

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
    /// All of them.
    pub const ALL: [Fault; 18] = [
        Fault::Metadata,
        Fault::Attributes,
        Fault::Chunk,
        Fault::Unreadable,
        Fault::Separator,
        Fault::Unsupported,
        Fault::UndeclaredSeparator,
        Fault::Dimensions,
        Fault::OutsideGrid,
        Fault::Leftover,
        Fault::Consolidated,
        Fault::V3,
        Fault::Nested,
        Fault::NotAFile,
        Fault::V1,
        Fault::NoGroup,
        Fault::Extra,
        Fault::Unlisted,
    ];

    /// How much it matters.
    pub fn level(self) -> Level {
        match self {
            Fault::Metadata | Fault::Attributes | Fault::Chunk | Fault::Unreadable | Fault::Separator => Level::Error,
            Fault::V1 | Fault::NoGroup | Fault::Extra | Fault::Unlisted => Level::Note,
            _ => Level::Warning,
        }
    }

    /// What a program calls it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Metadata => "metadata",
            Fault::Attributes => "attributes",
            Fault::Chunk => "chunk",
            Fault::Unreadable => "unreadable",
            Fault::Separator => "separator",
            Fault::Unsupported => "unsupported",
            Fault::UndeclaredSeparator => "undeclared-separator",
            Fault::Dimensions => "dimensions",
            Fault::OutsideGrid => "outside-grid",
            Fault::Leftover => "leftover",
            Fault::Consolidated => "zmetadata",
            Fault::V3 => "zarr-v3",
            Fault::Nested => "nested",
            Fault::NotAFile => "not-a-file",
            Fault::V1 => "zarr-v1",
            Fault::NoGroup => "no-zgroup",
            Fault::Extra => "extra",
            Fault::Unlisted => "unlisted",
        }
    }

    /// What it is, for the manual.
    pub fn meaning(self) -> &'static str {
        match self {
            Fault::Metadata => "A metadata document that breaks its format.",
            Fault::Attributes => "Attributes that are no JSON object.",
            Fault::Chunk => "A stored chunk that can't be decoded, or whose size can't be right.",
            Fault::Unreadable => "The system doesn't let it be looked at.",
            Fault::Separator => "A chunk under the separator that the array doesn't use: no reader finds it.",
            Fault::Unsupported => "A codec or dtype that this version doesn't have.",
            Fault::UndeclaredSeparator => "Chunks under / of an array that declares no separator.",
            Fault::Dimensions => "_ARRAY_DIMENSIONS has more or fewer names than the array has dimensions.",
            Fault::OutsideGrid => "Named like a chunk, but outside the grid.",
            Fault::Leftover => "A value that a writer has not finished, or a file that it left.",
            Fault::Consolidated => ".zmetadata lacks a document, or has one that is not stored so.",
            Fault::V3 => "Metadata of Zarr v3.",
            Fault::Nested => "A group or array inside an array.",
            Fault::NotAFile => "A FIFO, a socket or a device, or a link that leads out of the store.",
            Fault::V1 => "An array of Zarr v1.",
            Fault::NoGroup => "A directory without .zgroup.",
            Fault::Extra => "A file or directory that is no part of the hierarchy.",
            Fault::Unlisted => "The store can't be listed: what it should not hold is not found.",
        }
    }

    /// What can be done; empty where nothing need be.
    pub fn advice(self) -> &'static str {
        match self {
            Fault::Metadata => "mend the document, or restore it from a copy",
            Fault::Attributes => "mend the document: it must hold a JSON object",
            Fault::Chunk => "restore it from a copy; if it is deleted the chunk reads as the fill value",
            Fault::Unreadable => "look at the permissions, and at the disk or the server",
            Fault::Separator => "correct dimension_separator in .zarray, or rename the chunks",
            Fault::Unsupported => "other programs may read it",
            Fault::UndeclaredSeparator => {
                "add \"dimension_separator\": \"/\" to .zarray: other programs look under \".\""
            }
            Fault::Dimensions => "correct the attribute: xarray can't open the array",
            Fault::OutsideGrid => "no reader finds it: delete it, or correct the shape in .zarray",
            Fault::Leftover => "a writer died, or is still at it: delete it when nobody writes",
            Fault::Consolidated => "write it anew with `zarrfs consolidate`",
            Fault::V3 => "this version reads v1 and v2",
            Fault::Nested => "what stands below an array is no part of the hierarchy: move it",
            Fault::NotAFile => "it is not read",
            Fault::V1 => "`zarrfs migrate` turns it into v2",
            Fault::NoGroup => "other programs may not take it for a group",
            Fault::Extra | Fault::Unlisted => "",
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
