//! The names that a directory lists, streamed from the store. This module handles names, not the
//! nodes that they stand for.

use super::levels::is_level_name;
use super::node::inode;
use super::{CONTROL, ControlFile, FLAT, Node, Tree, has_flat, is_hidden};
use crate::array::hierarchy::MetadataFile;
use crate::array::{Array, ArrayEntry};
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_export::{Format, GroupFormat};
use zarrfs_format::metadata::Separator;
use zarrfs_store::{EntryKind, Key};

/// The documents that an array may show.
pub(super) const ARRAY_FILES: &[MetadataFile] = &[
    MetadataFile::Zarr,
    MetadataFile::Array,
    MetadataFile::Attributes,
];

/// The documents that a group may show.
pub(super) const GROUP_FILES: &[MetadataFile] = &[
    MetadataFile::Zarr,
    MetadataFile::Group,
    MetadataFile::Attributes,
    MetadataFile::Consolidated,
];

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name without the path.
    pub name: String,
    /// Inode number: see [`Node::inode`].
    pub inode: u64,
    /// Whether this is a directory rather than a regular file.
    pub is_directory: bool,
}

/// The names in a directory.
pub type NameStream = Box<dyn Iterator<Item = Result<Name>> + Send>;

impl Tree {
    /// Returns the names in a directory: the fixed names first, then those that the store lists.
    pub fn names(&self, node: &Node) -> Result<NameStream> {
        let _once = self.hierarchy.read_once();
        let Some(key) = node.directory() else {
            return match node.view() {
                _ if !node.is_directory() => Err(Error::system(libc::ENOTDIR)),
                Some((key, view)) => self.names_of_view(key, view),
                None => Ok(control_names()),
            };
        };
        Ok(self.with_layout_of(key, self.stored_names(key)?))
    }

    /// Returns the names in the directory of a group or array, without the names of a layout.
    fn stored_names(&self, key: &Key) -> Result<NameStream> {
        if let Some(e) = self.damage_above(key) {
            return self.names_of_damaged(key, &e);
        }
        if self.is_level(key) {
            return Ok(Box::new(std::iter::empty()));
        }
        let found = match self.hierarchy.find(key)? {
            Some(found) => found,
            None if self.is_layout_directory(key) => return Ok(Box::new(std::iter::empty())),
            None => return Err(Error::stale()),
        };
        match found.usable() {
            Ok(Some(array)) => self.names_of_array(key, &array),
            Err(e) => self.names_of_damaged(key, &e),
            Ok(None) if found.is_group() => self.names_of_group(key),
            Ok(None) => Err(Error::stale()),
        }
    }

    fn names_of_group(&self, key: &Key) -> Result<NameStream> {
        let mut fixed = self.metadata_names(key, GROUP_FILES)?;
        let shown: Vec<GroupFormat> = self.group_formats(key).collect();
        let files = shown.iter().map(|format| format.name());
        fixed.splice(
            0..0,
            files.map(|name| name_at(key, name.to_string(), false)),
        );
        let group = key.clone();
        let names = self
            .hierarchy
            .list(key)?
            .filter_map(move |entry| match entry {
                Err(e) => Some(Err(e)),
                Ok(e) if group.is_root() && e.name == CONTROL => None,
                Ok(e) if shown.iter().any(|format| format.name() == e.name) => None,
                Ok(e) => Some(Ok(name_at(&group, e.name, e.kind == EntryKind::Prefix))),
            });
        Ok(self.with_views_of(key, Box::new(fixed.into_iter().map(Ok).chain(names))))
    }

    fn names_of_array(&self, key: &Key, array: &Arc<Array>) -> Result<NameStream> {
        let mut fixed = self.metadata_names(key, ARRAY_FILES)?;
        let flat = has_flat(array);
        let formats: Vec<Format> = self.formats(array).collect();
        let bytes = flat
            .then_some(FLAT)
            .into_iter()
            .chain(formats.iter().map(|format| format.name()));
        fixed.splice(
            0..0,
            bytes.map(|name| name_at(key, name.to_string(), false)),
        );
        if key.is_root() {
            let as_group = self
                .group_formats(key)
                .filter(|format| format.shows_array());
            fixed.extend(as_group.map(|format| name_at(key, format.name().to_string(), false)));
            fixed.extend(self.views.beside(&self.hierarchy, key));
        }
        let key = key.clone();
        let array = array.clone();
        array.prefetch_levels();
        let names = array.entries()?.filter_map(move |entry| {
            let name = match entry {
                Err(e) => return Some(Err(e)),
                Ok(ArrayEntry::Unlisted) => return None,
                Ok(ArrayEntry::Chunk(chunk)) => array.grid().chunk_key(chunk, Separator::Dot),
                Ok(ArrayEntry::Value(name))
                    if is_hidden(Some(&array), &name) || flat && name == FLAT =>
                {
                    return None;
                }
                Ok(ArrayEntry::Value(name))
                    if formats.iter().any(|format| format.name() == name) =>
                {
                    return None;
                }
                Ok(ArrayEntry::Value(name)) => name,
            };
            Some(Ok(name_at(&key, name, false)))
        });
        Ok(Box::new(fixed.into_iter().map(Ok).chain(names)))
    }

    /// Returns the names in a node that cannot be used because of `e`. One whose document could not
    /// be read may be a group, so its directories are listed; their use reports the error.
    fn names_of_damaged(&self, key: &Key, e: &Error) -> Result<NameStream> {
        let fixed = self.metadata_names(key, ARRAY_FILES)?;
        let may_be_group = matches!(e.kind(), Kind::System(_));
        let key = key.clone();
        let names = self
            .hierarchy
            .list(&key)?
            .filter_map(move |entry| match entry {
                Err(e) => Some(Err(e)),
                Ok(e) if is_hidden(None, &e.name) => None,
                Ok(e)
                    if e.kind == EntryKind::Prefix && !may_be_group && !is_level_name(&e.name) =>
                {
                    None
                }
                Ok(e) => Some(Ok(name_at(&key, e.name, e.kind == EntryKind::Prefix))),
            });
        Ok(Box::new(fixed.into_iter().map(Ok).chain(names)))
    }

    fn metadata_names(&self, key: &Key, files: &[MetadataFile]) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        for &file in files {
            let there = match file {
                // a listing must not read the whole hierarchy
                MetadataFile::Consolidated => self.hierarchy.consolidated_stat(key)?.is_some(),
                _ if self.hierarchy.shows_as_stored(key, file) => true,
                _ => self.document_stat(key, file).is_ok_and(|d| d.is_some()),
            };
            if there {
                names.push(name_at(key, file.name().to_string(), false));
            }
        }
        Ok(names)
    }
}

/// Returns the names in `.zarrfs`.
fn control_names() -> NameStream {
    let control = Key::root().join(CONTROL);
    let names = ControlFile::ALL.map(|file| name_at(&control, file.name().to_string(), false));
    Box::new(names.map(Ok).into_iter())
}

pub(super) fn name_at(key: &Key, name: String, is_directory: bool) -> Name {
    Name {
        inode: inode(is_directory, key.join(&name).as_str()),
        name,
        is_directory,
    }
}
