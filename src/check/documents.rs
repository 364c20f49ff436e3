//! Checks the metadata documents of a group or array, and the other keys in a group, but not
//! chunks.

use super::names::leftover;
use super::tally::Tally;
use super::{Check, Finding, FindingKind};
use crate::array::Array;
use crate::array::hierarchy::{DocumentFormat, MAX_NAMES, MAX_NODES, MetadataFile, Stale};
use zarrfs_base::json::{self, Object, Value};
use zarrfs_format::metadata::{MAX_CONSOLIDATED, Separator, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP};
use zarrfs_store::{Entry, EntryKind, Key, StoreExt, escaped, get_counted};

/// xarray's attribute with the names of an array's dimensions.
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// The finding for a document of v2 that is not read.
pub(super) const BESIDE_V3: &str = "metadata of Zarr v2 beside that of v3, which counts";

impl Check<'_> {
    /// Checks a group and returns the keys below it that must be checked, last name first.
    pub(super) fn group(&mut self, key: &Key) -> Vec<Key> {
        let [v2, v3] = [ZGROUP, ZARR_JSON].map(|name| self.is_value(&key.join(name)));
        let marked = v2 || v3;
        if let Some(what) = leftover(key.name()) {
            self.found(FindingKind::Leftover, key, what);
            return Vec::new();
        }
        // directories of other programs
        if !marked && !key.is_root() && key.name().starts_with('.') {
            self.found(
                FindingKind::Extra,
                key,
                "a directory that is no part of the hierarchy",
            );
            return Vec::new();
        }
        self.summary.groups += 1;
        if v3 {
            self.group_document(key, DocumentFormat::V3);
            self.mixed_formats(key, &[ZARRAY, ZGROUP, ZATTRS]);
        } else if v2 {
            self.group_document(key, DocumentFormat::V2);
        } else {
            self.no_group_document(key);
        }
        self.attributes(key);
        self.consolidated(key);
        self.names_of_group(key)
    }

    fn names_of_group(&mut self, key: &Key) -> Vec<Key> {
        let listing = match self.hierarchy.store().list(key) {
            Ok(listing) => listing,
            Err(e) => {
                self.failed(FindingKind::Unreadable, key, &e);
                return Vec::new();
            }
        };
        let mut below = Vec::new();
        let mut tally = Tally::new(key);
        for (count, entry) in listing.enumerate() {
            if count >= MAX_NAMES || below.len() >= MAX_NODES {
                self.found(
                    FindingKind::LeftOut,
                    key,
                    format!("more than {count} names: the others are left out"),
                );
                break;
            }
            match entry {
                Ok(entry) if entry.is_prefix() => {
                    let key = key.join(&entry.name);
                    if entry.hides_prefix {
                        let what = "a value with the name of a directory, which is shown instead";
                        tally.add(
                            Finding::new(FindingKind::HiddenValue, &key, what),
                            self.tell,
                        );
                    }
                    below.push(key);
                }
                Ok(entry) => {
                    if let Some((fault, what)) = stray_in_group(&entry) {
                        tally.add(Finding::new(fault, &key.join(&entry.name), what), self.tell);
                    }
                }
                Err(e) => {
                    self.failed(FindingKind::Unreadable, key, &e);
                    break;
                }
            }
        }
        tally.end(self.tell);
        below.sort_unstable_by(|a, b| b.cmp(a));
        below
    }

    fn is_value(&self, key: &Key) -> bool {
        // errors are reported when the document is read
        matches!(self.hierarchy.store().stat(key), Ok(Some(stat)) if stat.kind == EntryKind::Value)
    }

    fn group_document(&mut self, key: &Key, format: DocumentFormat) {
        let document = key.join(format.group_file().name());
        let checked = match get_counted(self.hierarchy.store(), &document, MAX_CONSOLIDATED) {
            Ok(Some(read)) => format.check_group(&read.bytes),
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        if let Err(e) = checked {
            let fault = FindingKind::of_document(&e, FindingKind::Metadata);
            self.failed(fault, &document, &e);
        }
    }

    fn no_group_document(&mut self, key: &Key) {
        let what = match self.hierarchy.is_v3(key) {
            Ok(true) => "a directory without zarr.json",
            _ => "a directory without .zgroup",
        };
        self.found(FindingKind::NoGroup, key, what);
    }

    /// Reports the documents of v2 at a node that has a `zarr.json`.
    pub(super) fn mixed_formats(&mut self, key: &Key, names: &[&str]) {
        let mut documents: Vec<Key> = names.iter().map(|name| key.join(name)).collect();
        documents.retain(|document| self.is_value(document));
        for document in documents {
            self.found(FindingKind::MixedFormats, &document, BESIDE_V3);
        }
    }

    /// Checks the attributes of a group or array and returns them; empty if they cannot be used.
    pub(super) fn attributes(&mut self, key: &Key) -> Object {
        let _once = self.hierarchy.asked_once();
        // those in a `zarr.json` are checked with the rest of the document
        if self.hierarchy.attributes_key(key).name() == ZARR_JSON {
            return self.hierarchy.attributes(key).unwrap_or_default();
        }
        let attributes = match self.hierarchy.shown_attributes(key) {
            Ok(Some(document)) => json::parse_object(&document.text),
            Ok(None) => Ok(Object::default()),
            Err(e) => Err(e),
        };
        attributes.unwrap_or_else(|e| {
            let fault = FindingKind::of_document(&e, FindingKind::Attributes);
            self.failed(fault, &key.join(ZATTRS), &e);
            Object::default()
        })
    }

    /// Checks the consistency of an array's valid documents.
    pub(super) fn array_documents(&mut self, array: &Array) {
        let key = array.key();
        let metadata = array.metadata();
        if let Err(e) = array.readable() {
            self.failed(FindingKind::of_document(&e, FindingKind::Metadata), key, &e);
        }
        if metadata.zarr_format == 3 {
            self.mixed_formats(key, &[ZGROUP]);
        }
        if metadata
            .v3
            .as_ref()
            .is_some_and(|v3| v3.codecs.as_array().is_some_and(Vec::is_empty))
        {
            self.found(
                FindingKind::NoCodecs,
                &key.join(ZARR_JSON),
                "codecs is empty",
            );
        }
        if metadata.zarr_format == 1 {
            self.found(FindingKind::V1, key, "an array of Zarr v1");
        }
        if metadata.separator.is_none() && array.separator() == Separator::Slash {
            let what = "no dimension_separator is declared, but chunks lie under \"/\"";
            self.found(FindingKind::UndeclaredSeparator, &key.join(ZARRAY), what);
        }
        let attributes = self.attributes(key);
        if let Some(Value::Array(names)) = attributes.get(DIMENSIONS)
            && names.len() != metadata.shape.len()
        {
            let what = format!(
                "{DIMENSIONS} has {} names, the shape {} dimensions",
                names.len(),
                metadata.shape.len()
            );
            self.found(
                FindingKind::Dimensions,
                &self.hierarchy.attributes_key(key),
                what,
            );
        }
    }

    /// Compares the consolidated metadata of a group with the stored documents.
    fn consolidated(&mut self, group: &Key) {
        // a store that cannot list takes its documents from .zmetadata, so there is nothing to
        // compare
        if !self.hierarchy.store().lists_all() {
            return;
        }
        self.compare_consolidated(group, DocumentFormat::V2);
        if self.is_value(&group.join(ZARR_JSON)) {
            self.compare_consolidated(group, DocumentFormat::V3);
        }
    }

    fn compare_consolidated(&mut self, group: &Key, format: DocumentFormat) {
        let key = &group.join(format.consolidated_file().name());
        let stale = match self.hierarchy.stale_consolidated(format, group) {
            Ok(stale) => stale,
            Err(e) => {
                let fault = FindingKind::of_document(&e, FindingKind::Metadata);
                return self.failed(fault, key, &e);
            }
        };
        let mut tally = Tally::new(key);
        for (name, how) in stale {
            let name = escaped(&name);
            let what = match how {
                Stale::Missing => format!("lacks {name}, which is stored"),
                Stale::Extra => format!("has {name}, of which no valid document is stored"),
                Stale::Different => format!("has another {name} than is stored"),
            };
            tally.add(
                Finding::new(FindingKind::Consolidated, key, what),
                self.tell,
            );
        }
        tally.end(self.tell);
    }
}

/// Describes an entry of a group that is not a prefix. Returns `None` for a document.
fn stray_in_group(entry: &Entry) -> Option<(FindingKind, &'static str)> {
    if MetadataFile::of_name(&entry.name).is_some() {
        return None;
    }
    if let Some(what) = leftover(&entry.name) {
        return Some((FindingKind::Leftover, what));
    }
    if entry.kind == EntryKind::Other {
        let what = "no regular file, or a link out of the store";
        return Some((FindingKind::NotAFile, what));
    }
    Some((FindingKind::Extra, "a plain file"))
}
