//! The kinds of findings: severity, name, meaning and advice. The code that reports a finding adds
//! the key and the reason.

use zarrfs_base::error::{Error, Kind};
use zarrfs_store::Key;

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

/// What is known of a kind of findings.
struct Row {
    severity: Severity,
    name: &'static str,
    meaning: &'static str,
    advice: &'static str,
}

/// Declares the kinds: name, severity, identifier, meaning and advice.
macro_rules! finding_kinds {
    ($($kind:ident, $severity:ident, $name:literal, $meaning:literal, $advice:literal;)*) => {
        /// The kind of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum FindingKind {
            $(#[doc = $meaning] $kind,)*
        }

        const KINDS: &[FindingKind] = &[$(FindingKind::$kind,)*];

        /// The rows in the order of [`FindingKind`].
        static ROWS: &[Row] = &[
            $(Row {
                severity: Severity::$severity,
                name: $name,
                meaning: $meaning,
                advice: $advice,
            },)*
        ];
    };
}

finding_kinds! {
    Metadata, Error, "metadata",
        "A metadata document that breaks its format.",
        "repair the document, or restore it from a copy";
    Attributes, Error, "attributes",
        "Attributes that are no JSON object.",
        "repair the document: it must hold a JSON object";
    Chunk, Error, "chunk",
        "A stored chunk that can't be decoded, or whose size can't be right.",
        "restore it from a copy; if it is deleted the chunk reads as the fill value";
    Unreadable, Error, "unreadable",
        "The system doesn't let it be looked at.",
        "look at the permissions, and at the disk or the server";
    Memory, Error, "memory",
        "A chunk that takes more memory than the check may use.",
        "it was not examined";
    Separator, Error, "separator",
        "A chunk under the separator that the array doesn't use: no reader finds it.",
        "correct the separator in the array's document, or rename the chunks";
    Unsupported, Warning, "unsupported",
        "A codec or dtype that this version doesn't have.",
        "other programs may read it";
    UndeclaredSeparator, Warning, "undeclared-separator",
        "Chunks under / of an array that declares no separator.",
        "add \"dimension_separator\": \"/\" to .zarray: other programs look under \".\"";
    NoCodecs, Warning, "no-codecs",
        "A list of codecs without one that makes bytes of an array.",
        "add the codec bytes with endian little to zarr.json: other programs refuse the array";
    Dimensions, Warning, "dimensions",
        "_ARRAY_DIMENSIONS has more or fewer names than the array has dimensions.",
        "correct the attribute: xarray can't open the array";
    OutsideGrid, Warning, "outside-grid",
        "Named like a chunk, but outside the grid.",
        "readers do not find it: delete it, or correct the shape in the array's document";
    Leftover, Warning, "leftover",
        "A value that a writer has not finished, or a file that it left.",
        "a writer died or is still running: delete it once no program writes";
    Consolidated, Warning, "zmetadata",
        "Consolidated metadata lack a document, or have one that is not stored so.",
        "rewrite it with `zarrfs consolidate`";
    MixedFormats, Warning, "mixed-formats",
        "Metadata of Zarr v2 beside that of v3, which counts.",
        "delete the documents of the format that is not meant: readers differ in which they use";
    Nested, Warning, "nested",
        "A group or array inside an array.",
        "keys below an array are not part of the hierarchy: move it";
    NotAFile, Warning, "not-a-file",
        "A FIFO, a socket or a device, or a link that leads out of the store.",
        "it is not read";
    HiddenValue, Warning, "hidden-value",
        "A value with the name of a directory, which a mount shows instead.",
        "rename or delete one of them: no file system can hold both";
    V1, Note, "zarr-v1",
        "An array of Zarr v1.",
        "`zarrfs migrate` turns it into v2";
    NoGroup, Note, "no-zgroup",
        "A directory without the document of a group.",
        "other programs may not take it for a group";
    Extra, Note, "extra",
        "A file or directory that is no part of the hierarchy.",
        "";
    ShardWaste, Note, "shard-waste",
        "More than half of a shard's bytes belong to no chunk of the array.",
        "a copy of the array takes less space";
    ShardOutside, Note, "shard-outside",
        "A shard has chunks outside the array, which no reader shows.",
        "";
    Unlisted, Note, "unlisted",
        "The store can't be listed: what it should not hold is not found.",
        "";
    LeftOut, Error, "left-out",
        "It has no place in a mount: its name is no text or no path, or it lies too deep.",
        "rename it, or move it up";
}

impl FindingKind {
    /// Returns all kinds.
    pub fn all() -> impl Iterator<Item = FindingKind> {
        KINDS.iter().copied()
    }

    /// Returns the kind for an error of reading a document; `other` for damage.
    pub(super) fn of_document(e: &Error, other: FindingKind) -> Self {
        match e.kind() {
            Kind::Unsupported => FindingKind::Unsupported,
            Kind::System(_) => FindingKind::Unreadable,
            _ => other,
        }
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
                .all(|(n, kind)| n == kind as usize && std::ptr::eq(kind.row(), &ROWS[n]))
        );
        assert_eq!(ROWS.len(), FindingKind::LeftOut as usize + 1);
    }
}
