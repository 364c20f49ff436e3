//! The kinds of findings: severity, name, meaning and advice. The code that reports a finding adds
//! the key and the reason.

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

/// What is known of a kind.
struct Row {
    kind: FindingKind,
    severity: Severity,
    name: &'static str,
    meaning: &'static str,
    advice: &'static str,
}

const fn row(
    kind: FindingKind,
    severity: Severity,
    name: &'static str,
    meaning: &'static str,
    advice: &'static str,
) -> Row {
    Row {
        kind,
        severity,
        name,
        meaning,
        advice,
    }
}

/// The kinds in the order of [`FindingKind`].
const ROWS: [Row; 23] = [
    row(
        FindingKind::Metadata,
        Severity::Error,
        "metadata",
        "A metadata document that breaks its format.",
        "repair the document, or restore it from a copy",
    ),
    row(
        FindingKind::Attributes,
        Severity::Error,
        "attributes",
        "Attributes that are no JSON object.",
        "repair the document: it must hold a JSON object",
    ),
    row(
        FindingKind::Chunk,
        Severity::Error,
        "chunk",
        "A stored chunk that can't be decoded, or whose size can't be right.",
        "restore it from a copy; if it is deleted the chunk reads as the fill value",
    ),
    row(
        FindingKind::Unreadable,
        Severity::Error,
        "unreadable",
        "The system doesn't let it be looked at.",
        "look at the permissions, and at the disk or the server",
    ),
    row(
        FindingKind::Separator,
        Severity::Error,
        "separator",
        "A chunk under the separator that the array doesn't use: no reader finds it.",
        "correct the separator in the array's document, or rename the chunks",
    ),
    row(
        FindingKind::Unsupported,
        Severity::Warning,
        "unsupported",
        "A codec or dtype that this version doesn't have.",
        "other programs may read it",
    ),
    row(
        FindingKind::UndeclaredSeparator,
        Severity::Warning,
        "undeclared-separator",
        "Chunks under / of an array that declares no separator.",
        "add \"dimension_separator\": \"/\" to .zarray: other programs look under \".\"",
    ),
    row(
        FindingKind::NoCodecs,
        Severity::Warning,
        "no-codecs",
        "A list of codecs without one that makes bytes of an array.",
        "add the codec bytes with endian little to zarr.json: other programs refuse the array",
    ),
    row(
        FindingKind::Dimensions,
        Severity::Warning,
        "dimensions",
        "_ARRAY_DIMENSIONS has more or fewer names than the array has dimensions.",
        "correct the attribute: xarray can't open the array",
    ),
    row(
        FindingKind::OutsideGrid,
        Severity::Warning,
        "outside-grid",
        "Named like a chunk, but outside the grid.",
        "readers do not find it: delete it, or correct the shape in the array's document",
    ),
    row(
        FindingKind::Leftover,
        Severity::Warning,
        "leftover",
        "A value that a writer has not finished, or a file that it left.",
        "a writer died or is still running: delete it once no program writes",
    ),
    row(
        FindingKind::Consolidated,
        Severity::Warning,
        "zmetadata",
        "Consolidated metadata lack a document, or have one that is not stored so.",
        "rewrite it with `zarrfs consolidate`",
    ),
    row(
        FindingKind::MixedFormats,
        Severity::Warning,
        "mixed-formats",
        "Metadata of Zarr v2 beside that of v3, which counts.",
        "delete the documents of the format that is not meant: readers differ in which they use",
    ),
    row(
        FindingKind::Nested,
        Severity::Warning,
        "nested",
        "A group or array inside an array.",
        "keys below an array are not part of the hierarchy: move it",
    ),
    row(
        FindingKind::NotAFile,
        Severity::Warning,
        "not-a-file",
        "A FIFO, a socket or a device, or a link that leads out of the store.",
        "it is not read",
    ),
    row(
        FindingKind::HiddenValue,
        Severity::Warning,
        "hidden-value",
        "A value with the name of a directory, which a mount shows instead.",
        "rename or delete one of them: no file system can hold both",
    ),
    row(
        FindingKind::V1,
        Severity::Note,
        "zarr-v1",
        "An array of Zarr v1.",
        "`zarrfs migrate` turns it into v2",
    ),
    row(
        FindingKind::NoGroup,
        Severity::Note,
        "no-zgroup",
        "A directory without the document of a group.",
        "other programs may not take it for a group",
    ),
    row(
        FindingKind::Extra,
        Severity::Note,
        "extra",
        "A file or directory that is no part of the hierarchy.",
        "",
    ),
    row(
        FindingKind::ShardWaste,
        Severity::Note,
        "shard-waste",
        "More than half of a shard's bytes belong to no chunk of the array.",
        "a copy of the array takes less space",
    ),
    row(
        FindingKind::ShardOutside,
        Severity::Note,
        "shard-outside",
        "A shard has chunks outside the array, which no reader shows.",
        "",
    ),
    row(
        FindingKind::Unlisted,
        Severity::Note,
        "unlisted",
        "The store can't be listed: what it should not hold is not found.",
        "",
    ),
    row(
        FindingKind::LeftOut,
        Severity::Error,
        "left-out",
        "It has no place in a mount: its name is no text or no path, or it lies too deep.",
        "rename it, or move it up",
    ),
];

impl FindingKind {
    /// Returns all kinds.
    pub fn all() -> impl Iterator<Item = FindingKind> {
        ROWS.iter().map(|row| row.kind)
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Returns the severity.
    pub fn level(self) -> Severity {
        self.row().severity
    }

    /// Returns the identifier that programs use.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Describes the kind for the manual.
    pub fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// Returns advice for the user; empty if nothing is necessary.
    pub fn advice(self) -> &'static str {
        self.row().advice
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
        let message = if fault.advice().is_empty() {
            what
        } else {
            format!("{what}; {}", fault.advice())
        };
        Finding {
            fault,
            key: key.clone(),
            message,
        }
    }

    /// Returns the finding with the name of the chunk file in the mount before the message: a
    /// shard's key names no chunk.
    pub(super) fn in_chunk(self, chunk: &str) -> Self {
        Finding {
            message: format!("chunk {chunk}: {}", self.message),
            ..self
        }
    }

    /// Returns a finding at `key` with an error as the reason. A key at the start of the error's
    /// message is removed.
    pub(super) fn of_error(fault: FindingKind, key: &Key, e: &Error) -> Self {
        let own = format!("{key}: ");
        Finding::new(
            fault,
            key,
            e.message().strip_prefix(&own).unwrap_or(e.message()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_row() {
        assert!(
            FindingKind::all()
                .enumerate()
                .all(|(n, kind)| n == kind as usize && kind.row().kind == kind)
        );
        assert_eq!(ROWS.len(), FindingKind::LeftOut as usize + 1);
    }
}
