//! The kinds of findings: severity, name, meaning and advice. The code that reports a finding adds the key and the
//! reason.

use crate::error::Error;
use crate::store::Key;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Information, which does not make a check fail.
    Note,
    /// All data is read correctly, but something is probably not as its writer intended.
    Warning,
    /// Data or metadata cannot be read or found.
    Error,
}

impl Severity {
    /// Returns the word for the severity.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// A metadata document that breaks its format.
    Metadata,
    /// Attributes that are not a JSON object.
    Attributes,
    /// A stored chunk that cannot be decoded or has an impossible size.
    Chunk,
    /// An error of the system or of the server.
    Unreadable,
    /// A chunk named with the separator that the array does not use.
    Separator,
    /// A codec or dtype that this build does not have.
    Unsupported,
    /// Chunks named with `/` in an array that declares no separator.
    UndeclaredSeparator,
    /// A v3 array without an array-to-bytes codec.
    NoCodecs,
    /// `_ARRAY_DIMENSIONS` that does not fit the shape.
    Dimensions,
    /// A key that looks like a chunk key but lies outside the grid.
    OutsideGrid,
    /// A value that a writer did not finish.
    Leftover,
    /// An entry of `.zmetadata` that differs from the stored document.
    Consolidated,
    /// Documents of v2 beside those of v3.
    MixedFormats,
    /// A group or array below an array.
    Nested,
    /// An entry that is neither a file nor a directory, or a link out of the store.
    NotAFile,
    /// A value with the name of a prefix.
    HiddenValue,
    /// An array of Zarr v1.
    V1,
    /// A directory without `.zgroup`.
    NoGroup,
    /// A key that is not part of the hierarchy.
    Extra,
    /// A shard of which more than half belongs to no chunk.
    ShardWaste,
    /// A shard with chunks outside the array.
    ShardOutside,
    /// A store that cannot list.
    Unlisted,
    /// Something that has no place in a mount.
    LeftOut,
}

impl FindingKind {
    /// All kinds.
    pub const ALL: [FindingKind; 23] = [
        FindingKind::Metadata,
        FindingKind::Attributes,
        FindingKind::Chunk,
        FindingKind::Unreadable,
        FindingKind::Separator,
        FindingKind::Unsupported,
        FindingKind::UndeclaredSeparator,
        FindingKind::NoCodecs,
        FindingKind::Dimensions,
        FindingKind::OutsideGrid,
        FindingKind::Leftover,
        FindingKind::Consolidated,
        FindingKind::MixedFormats,
        FindingKind::Nested,
        FindingKind::NotAFile,
        FindingKind::HiddenValue,
        FindingKind::V1,
        FindingKind::NoGroup,
        FindingKind::Extra,
        FindingKind::ShardWaste,
        FindingKind::ShardOutside,
        FindingKind::Unlisted,
        FindingKind::LeftOut,
    ];

    /// Returns the severity.
    pub fn level(self) -> Severity {
        match self {
            FindingKind::Metadata
            | FindingKind::Attributes
            | FindingKind::Chunk
            | FindingKind::Unreadable
            | FindingKind::LeftOut
            | FindingKind::Separator => Severity::Error,
            FindingKind::V1
            | FindingKind::NoGroup
            | FindingKind::Extra
            | FindingKind::ShardWaste
            | FindingKind::ShardOutside
            | FindingKind::Unlisted => Severity::Note,
            _ => Severity::Warning,
        }
    }

    /// Returns the identifier that programs use.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Metadata => "metadata",
            FindingKind::Attributes => "attributes",
            FindingKind::Chunk => "chunk",
            FindingKind::Unreadable => "unreadable",
            FindingKind::Separator => "separator",
            FindingKind::Unsupported => "unsupported",
            FindingKind::UndeclaredSeparator => "undeclared-separator",
            FindingKind::NoCodecs => "no-codecs",
            FindingKind::Dimensions => "dimensions",
            FindingKind::OutsideGrid => "outside-grid",
            FindingKind::Leftover => "leftover",
            FindingKind::Consolidated => "zmetadata",
            FindingKind::MixedFormats => "mixed-formats",
            FindingKind::Nested => "nested",
            FindingKind::NotAFile => "not-a-file",
            FindingKind::HiddenValue => "hidden-value",
            FindingKind::V1 => "zarr-v1",
            FindingKind::NoGroup => "no-zgroup",
            FindingKind::Extra => "extra",
            FindingKind::ShardWaste => "shard-waste",
            FindingKind::ShardOutside => "shard-outside",
            FindingKind::Unlisted => "unlisted",
            FindingKind::LeftOut => "left-out",
        }
    }

    /// Describes the kind for the manual.
    pub fn meaning(self) -> &'static str {
        match self {
            FindingKind::Metadata => "A metadata document that breaks its format.",
            FindingKind::Attributes => "Attributes that are no JSON object.",
            FindingKind::Chunk => "A stored chunk that can't be decoded, or whose size can't be right.",
            FindingKind::Unreadable => "The system doesn't let it be looked at.",
            FindingKind::Separator => "A chunk under the separator that the array doesn't use: no reader finds it.",
            FindingKind::Unsupported => "A codec or dtype that this version doesn't have.",
            FindingKind::UndeclaredSeparator => "Chunks under / of an array that declares no separator.",
            FindingKind::NoCodecs => "A list of codecs without one that makes bytes of an array.",
            FindingKind::Dimensions => "_ARRAY_DIMENSIONS has more or fewer names than the array has dimensions.",
            FindingKind::OutsideGrid => "Named like a chunk, but outside the grid.",
            FindingKind::Leftover => "A value that a writer has not finished, or a file that it left.",
            FindingKind::Consolidated => "Consolidated metadata lack a document, or have one that is not stored so.",
            FindingKind::MixedFormats => "Metadata of Zarr v2 beside that of v3, which counts.",
            FindingKind::Nested => "A group or array inside an array.",
            FindingKind::NotAFile => "A FIFO, a socket or a device, or a link that leads out of the store.",
            FindingKind::HiddenValue => "A value with the name of a directory, which a mount shows instead.",
            FindingKind::V1 => "An array of Zarr v1.",
            FindingKind::NoGroup => "A directory without the document of a group.",
            FindingKind::Extra => "A file or directory that is no part of the hierarchy.",
            FindingKind::ShardWaste => "More than half of a shard's bytes belong to no chunk of the array.",
            FindingKind::ShardOutside => "A shard has chunks outside the array, which no reader shows.",
            FindingKind::Unlisted => "The store can't be listed: what it should not hold is not found.",
            FindingKind::LeftOut => "It has no place in a mount: its name is no text or no path, or it lies too deep.",
        }
    }

    /// Returns advice for the user; empty if nothing is necessary.
    pub fn advice(self) -> &'static str {
        match self {
            FindingKind::Metadata => "repair the document, or restore it from a copy",
            FindingKind::Attributes => "repair the document: it must hold a JSON object",
            FindingKind::Chunk => "restore it from a copy; if it is deleted the chunk reads as the fill value",
            FindingKind::Unreadable => "look at the permissions, and at the disk or the server",
            FindingKind::Separator => "correct the separator in the array's document, or rename the chunks",
            FindingKind::Unsupported => "other programs may read it",
            FindingKind::UndeclaredSeparator => {
                "add \"dimension_separator\": \"/\" to .zarray: other programs look under \".\""
            }
            FindingKind::NoCodecs => {
                "add the codec bytes with endian little to zarr.json: other programs refuse the array"
            }
            FindingKind::Dimensions => "correct the attribute: xarray can't open the array",
            FindingKind::OutsideGrid => {
                "readers do not find it: delete it, or correct the shape in the array's document"
            }
            FindingKind::Leftover => "a writer died or is still running: delete it once no program writes",
            FindingKind::Consolidated => "rewrite it with `zarrfs consolidate`",
            FindingKind::MixedFormats => {
                "delete the documents of the format that is not meant: readers differ in which they use"
            }
            FindingKind::Nested => "keys below an array are not part of the hierarchy: move it",
            FindingKind::NotAFile => "it is not read",
            FindingKind::HiddenValue => "rename or delete one of them: no file system can hold both",
            FindingKind::V1 => "`zarrfs migrate` turns it into v2",
            FindingKind::NoGroup => "other programs may not take it for a group",
            FindingKind::ShardWaste => "a copy of the array takes less space",
            FindingKind::LeftOut => "rename it, or move it up",
            FindingKind::Extra | FindingKind::ShardOutside | FindingKind::Unlisted => "",
        }
    }
}

/// A problem of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind.
    pub fault: FindingKind,
    /// The key with the problem.
    pub key: Key,
    /// The reason and the advice in one line, without the key.
    pub message: String,
}

impl Finding {
    /// Returns a finding at `key` with the reason `what`.
    pub(super) fn new(fault: FindingKind, key: &Key, what: impl Into<String>) -> Self {
        let what = what.into();
        let message = if fault.advice().is_empty() { what } else { format!("{what}; {}", fault.advice()) };
        Finding { fault, key: key.clone(), message }
    }

    /// Returns the finding with the name of the chunk file in the mount before the message: a shard's key names no
    /// chunk.
    pub(super) fn in_chunk(self, chunk: &str) -> Self {
        Finding { message: format!("chunk {chunk}: {}", self.message), ..self }
    }

    /// Returns a finding at `key` with an error as the reason. A key at the start of the error's message is removed.
    pub(super) fn of_error(fault: FindingKind, key: &Key, e: &Error) -> Self {
        let own = format!("{key}: ");
        Finding::new(fault, key, e.message().strip_prefix(&own).unwrap_or(e.message()))
    }
}
