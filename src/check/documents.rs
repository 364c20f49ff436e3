//! Checks the metadata documents of a group or array, and the other keys in a group, but not chunks.

use super::names::{is_document, leftover};
use super::tally::Tally;
use super::{Check, Finding, FindingKind};
use crate::array::Array;
use crate::array::hierarchy::{Stale, V3_DOCUMENT};
use crate::error::{Kind, Result};
use crate::store::{Counted, Entry, EntryKind, Key, escaped, get_counted};
use crate::util::json::{self, Object, Value};
use crate::zarr::metadata::{MAX_DOCUMENT, Separator, ZARRAY, ZATTRS, ZGROUP, ZMETADATA, check_group};

/// xarray's attribute with the names of an array's dimensions.
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

impl Check<'_> {
    /// Checks a group and returns the keys below it that must be checked, last name first.
    pub(super) fn group(&mut self, key: &Key) -> Vec<Key> {
        let (marked, v3) = (self.is_value(&key.join(ZGROUP)), self.is_value(&key.join(V3_DOCUMENT)));
        if let Some(what) = leftover(key.name()) {
            self.found(FindingKind::Leftover, key, what);
            return Vec::new();
        }
        // directories of other programs, and hierarchies that this version cannot read
        if !marked && !key.is_root() && (v3 || key.name().starts_with('.')) {
            match v3 {
                true => self.found(FindingKind::V3, &key.join(V3_DOCUMENT), "a group or array of Zarr v3"),
                false => self.found(FindingKind::Extra, key, "a directory that is no part of the hierarchy"),
            }
            return Vec::new();
        }
        self.summary.groups += 1;
        match marked {
            true => self.group_document(key),
            false => self.found(FindingKind::NoGroup, key, "a directory without .zgroup"),
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
        let (mut below, mut tally) = (Vec::new(), Tally::new(key));
        for entry in listing {
            match entry {
                Ok(Entry { name, kind: EntryKind::Prefix, .. }) => below.push(key.join(&name)),
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

    fn read(&self, key: &Key) -> Result<Option<Counted>> {
        get_counted(self.hierarchy.store(), key, MAX_DOCUMENT)
    }

    fn group_document(&mut self, key: &Key) {
        let document = key.join(ZGROUP);
        match self.read(&document).and_then(|read| read.map_or(Ok(()), |read| check_group(&read.bytes))) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), Kind::System(_)) => self.failed(FindingKind::Unreadable, &document, &e),
            Err(e) => self.failed(FindingKind::Metadata, &document, &e),
        }
    }

    /// Checks the attributes of a group or array and returns them; empty if they cannot be used.
    pub(super) fn attributes(&mut self, key: &Key) -> Object {
        let stored = self.hierarchy.attributes_view(key);
        match stored.and_then(|document| document.map(|d| json::parse_object(&d.text)).transpose()) {
            Ok(Some(attributes)) => return attributes,
            Ok(None) => {}
            Err(e) if matches!(e.kind(), Kind::System(_)) => {
                self.failed(FindingKind::Unreadable, &key.join(ZATTRS), &e)
            }
            Err(e) => self.failed(FindingKind::Attributes, &key.join(ZATTRS), &e),
        }
        Object::default()
    }

    /// Checks the consistency of an array's valid documents.
    pub(super) fn array_documents(&mut self, array: &Array) {
        let (key, metadata) = (array.key(), array.metadata());
        if let Err(e) = array.readable() {
            let fault = if e.kind() == Kind::Unsupported { FindingKind::Unsupported } else { FindingKind::Metadata };
            self.failed(fault, key, &e);
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
            let what = format!("{DIMENSIONS} has {} names, the shape {} dimensions", names.len(), metadata.shape.len());
            self.found(FindingKind::Dimensions, &key.join(ZATTRS), what);
        }
    }

    /// Compares a group's `.zmetadata` with the stored documents.
    fn consolidated(&mut self, group: &Key) {
        // a store without listings takes its documents from .zmetadata
        if !self.hierarchy.store().lists_all() {
            return;
        }
        let key = group.join(ZMETADATA);
        let stale = match self.hierarchy.stale_consolidated(group) {
            Ok(stale) => stale,
            Err(e) if matches!(e.kind(), Kind::System(_)) => return self.failed(FindingKind::Unreadable, &key, &e),
            Err(e) => return self.failed(FindingKind::Metadata, &key, &e),
        };
        let mut tally = Tally::new(&key);
        for (name, how) in stale {
            let name = escaped(&name);
            let what = match how {
                Stale::Missing => format!("lacks {name}, which is stored"),
                Stale::Extra => format!("has {name}, of which no valid document is stored"),
                Stale::Different => format!("has another {name} than is stored"),
            };
            tally.add(Finding::new(FindingKind::Consolidated, &key, what), self.tell);
        }
        tally.end(self.tell);
    }
}

/// Describes a key in a group that is not a prefix; `None` for a document.
fn stray_in_group(entry: &Entry) -> Option<(FindingKind, &'static str)> {
    match entry.name.as_str() {
        name if is_document(name) => None,
        V3_DOCUMENT => Some((FindingKind::V3, "metadata of Zarr v3 beside that of v2")),
        name if leftover(name).is_some() => leftover(name).map(|what| (FindingKind::Leftover, what)),
        _ if entry.kind == EntryKind::Other => {
            Some((FindingKind::NotAFile, "no regular file, or a link out of the store"))
        }
        _ => Some((FindingKind::Extra, "a plain file")),
    }
}
