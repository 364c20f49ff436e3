//! The kinds of faults: how much each matters, what a program calls it and what a person can do. Who finds one adds where
//! and why.

use crate::error::Error;
use crate::store::Key;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know; not a finding that makes a check fail.
    Note,
    /// Nothing that is read is wrong, but something is not as its writer wanted it.
    Warning,
    /// Data or metadata that can't be read, or that nobody finds.
    Error,
}

impl Severity {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
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

impl FindingKind {
    /// All of them.
    pub const ALL: [FindingKind; 18] = [
        FindingKind::Metadata,
        FindingKind::Attributes,
        FindingKind::Chunk,
        FindingKind::Unreadable,
        FindingKind::Separator,
        FindingKind::Unsupported,
        FindingKind::UndeclaredSeparator,
        FindingKind::Dimensions,
        FindingKind::OutsideGrid,
        FindingKind::Leftover,
        FindingKind::Consolidated,
        FindingKind::V3,
        FindingKind::Nested,
        FindingKind::NotAFile,
        FindingKind::V1,
        FindingKind::NoGroup,
        FindingKind::Extra,
        FindingKind::Unlisted,
    ];

    /// How much it matters.
    pub fn level(self) -> Severity {
        match self {
            FindingKind::Metadata
            | FindingKind::Attributes
            | FindingKind::Chunk
            | FindingKind::Unreadable
            | FindingKind::Separator => Severity::Error,
            FindingKind::V1 | FindingKind::NoGroup | FindingKind::Extra | FindingKind::Unlisted => Severity::Note,
            _ => Severity::Warning,
        }
    }

    /// What a program calls it.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Metadata => "metadata",
            FindingKind::Attributes => "attributes",
            FindingKind::Chunk => "chunk",
            FindingKind::Unreadable => "unreadable",
            FindingKind::Separator => "separator",
            FindingKind::Unsupported => "unsupported",
            FindingKind::UndeclaredSeparator => "undeclared-separator",
            FindingKind::Dimensions => "dimensions",
            FindingKind::OutsideGrid => "outside-grid",
            FindingKind::Leftover => "leftover",
            FindingKind::Consolidated => "zmetadata",
            FindingKind::V3 => "zarr-v3",
            FindingKind::Nested => "nested",
            FindingKind::NotAFile => "not-a-file",
            FindingKind::V1 => "zarr-v1",
            FindingKind::NoGroup => "no-zgroup",
            FindingKind::Extra => "extra",
            FindingKind::Unlisted => "unlisted",
        }
    }

    /// What it is, for the manual.
    pub fn meaning(self) -> &'static str {
        match self {
            FindingKind::Metadata => "A metadata document that breaks its format.",
            FindingKind::Attributes => "Attributes that are no JSON object.",
            FindingKind::Chunk => "A stored chunk that can't be decoded, or whose size can't be right.",
            FindingKind::Unreadable => "The system doesn't let it be looked at.",
            FindingKind::Separator => "A chunk under the separator that the array doesn't use: no reader finds it.",
            FindingKind::Unsupported => "A codec or dtype that this version doesn't have.",
            FindingKind::UndeclaredSeparator => "Chunks under / of an array that declares no separator.",
            FindingKind::Dimensions => "_ARRAY_DIMENSIONS has more or fewer names than the array has dimensions.",
            FindingKind::OutsideGrid => "Named like a chunk, but outside the grid.",
            FindingKind::Leftover => "A value that a writer has not finished, or a file that it left.",
            FindingKind::Consolidated => ".zmetadata lacks a document, or has one that is not stored so.",
            FindingKind::V3 => "Metadata of Zarr v3.",
            FindingKind::Nested => "A group or array inside an array.",
            FindingKind::NotAFile => "A FIFO, a socket or a device, or a link that leads out of the store.",
            FindingKind::V1 => "An array of Zarr v1.",
            FindingKind::NoGroup => "A directory without .zgroup.",
            FindingKind::Extra => "A file or directory that is no part of the hierarchy.",
            FindingKind::Unlisted => "The store can't be listed: what it should not hold is not found.",
        }
    }

    /// What can be done; empty where nothing need be.
    pub fn advice(self) -> &'static str {
        match self {
            FindingKind::Metadata => "mend the document, or restore it from a copy",
            FindingKind::Attributes => "mend the document: it must hold a JSON object",
            FindingKind::Chunk => "restore it from a copy; if it is deleted the chunk reads as the fill value",
            FindingKind::Unreadable => "look at the permissions, and at the disk or the server",
            FindingKind::Separator => "correct dimension_separator in .zarray, or rename the chunks",
            FindingKind::Unsupported => "other programs may read it",
            FindingKind::UndeclaredSeparator => {
                "add \"dimension_separator\": \"/\" to .zarray: other programs look under \".\""
            }
            FindingKind::Dimensions => "correct the attribute: xarray can't open the array",
            FindingKind::OutsideGrid => "no reader finds it: delete it, or correct the shape in .zarray",
            FindingKind::Leftover => "a writer died, or is still at it: delete it when nobody writes",
            FindingKind::Consolidated => "write it anew with `zarrfs consolidate`",
            FindingKind::V3 => "this version reads v1 and v2",
            FindingKind::Nested => "what stands below an array is no part of the hierarchy: move it",
            FindingKind::NotAFile => "it is not read",
            FindingKind::V1 => "`zarrfs migrate` turns it into v2",
            FindingKind::NoGroup => "other programs may not take it for a group",
            FindingKind::Extra | FindingKind::Unlisted => "",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub fault: FindingKind,
    /// Where.
    pub key: Key,
    /// Why, and what can be done: one line, without the key.
    pub message: String,
}

impl Finding {
    /// A fault at `key`, because of `what`.
    pub(super) fn new(fault: FindingKind, key: &Key, what: impl Into<String>) -> Self {
        let what = what.into();
        let message = if fault.advice().is_empty() { what } else { format!("{what}; {}", fault.advice()) };
        Finding { fault, key: key.clone(), message }
    }

    /// A fault at `key` that an error tells, which names the key itself or one below it.
    pub(super) fn of_error(fault: FindingKind, key: &Key, e: &Error) -> Self {
        let own = format!("{key}: ");
        Finding::new(fault, key, e.message().strip_prefix(&own).unwrap_or(e.message()))
    }
}
