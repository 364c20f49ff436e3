//! The metadata documents of a group or array, and what else stands in a group. It doesn't look at chunks.

use super::names::{is_document, leftover};
use super::{Check, Finding, FindingKind, Tally};
use crate::array::Array;
use crate::array::hierarchy::{Stale, V3_DOCUMENT};
use crate::error::{Kind, Result};
use crate::store::{Counted, Entry, EntryKind, Key, escaped, get_counted};
use crate::util::json::{self, Object, Value};
use crate::zarr::metadata::{MAX_DOCUMENT, Separator, ZARRAY, ZATTRS, ZGROUP, ZMETADATA, check_group};

/// What xarray calls the dimensions of an array.
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

impl Check<'_> {
    /// Looks at a group; the answer is what is to be looked at below it, last name first.
    pub(super) fn group(&mut self, key: &Key) -> Vec<Key> {
        let (marked, v3) = (self.is_value(&key.join(ZGROUP)), self.is_value(&key.join(V3_DOCUMENT)));
        if let Some(what) = leftover(key.name()) {
            self.found(FindingKind::Leftover, key, what);
            return Vec::new();
        }
        // other programs' directories, and whole hierarchies that this version can't read
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
        // what can't be looked at is told by whoever reads it
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

    /// Looks at the attributes of a group or array; none where there are none that can be used.
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

    /// Looks at what an array's documents say, beyond being valid.
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

    /// Compares a group's `.zmetadata` with the documents that are stored.
    fn consolidated(&mut self, group: &Key) {
        // one that stands for the documents can't be compared with them
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

/// What is to be said of a name in a group that is no prefix; None of a document.
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
