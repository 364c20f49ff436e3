//! Names of files that programs have written and that are groups or arrays now: `NAME.nc` or
//! `NAME.h5` beside the group NAME, `NAME.npy` or `NAME.tif` beside the array NAME.
//!
//! Invariant: **whether such a name exists follows from the store alone**: the node has the mark of
//! [`crate::ingest`], and no key has the name of the file. So a later mount shows the same names.
//! This module must not know how a file becomes a node.

use super::names::name_at;
use super::{DirectoryKind, Name, Node, Tree};
use crate::array::hierarchy::Hierarchy;
use crate::ingest::{FileMark, IngestLayout};
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_export::{Format, GroupFormat, NetcdfOptions};
use zarrfs_ingest::FileFormat;
use zarrfs_store::Key;

/// The files that become groups and arrays when programs close them.
pub struct IngestRules {
    /// The formats.
    pub formats: Vec<FileFormat>,
    /// How arrays are stored. The format of the store comes first.
    pub layout: IngestLayout,
}

impl IngestRules {
    /// Returns the format of a file and the name of its node, by the name of the file.
    fn split<'a>(&self, name: &'a str) -> Option<(FileFormat, &'a str)> {
        let (stem, end) = name.rsplit_once('.')?;
        let format = FileFormat::of_ending(end).filter(|format| self.formats.contains(format))?;
        // temporary files have hidden names, and become no node
        (!stem.is_empty() && !stem.starts_with('.')).then_some((format, stem))
    }

    /// Returns the names of the files that show the node at `key`.
    pub(super) fn beside(&self, hierarchy: &Hierarchy, key: &Key) -> Vec<Name> {
        let endings = self.formats.iter().flat_map(|format| format.endings());
        let names = endings.filter_map(|ending| {
            let name = format!("{}.{ending}", key.name());
            let path = key.parent().join(&name);
            let is_shown = matches!(self.shown(hierarchy, key, ending), Ok(Some(_)))
                && matches!(hierarchy.store().stat(&path), Ok(None));
            is_shown.then(|| name_at(&key.parent(), name, false))
        });
        names.collect()
    }

    /// Returns the generated file of the node at `key` that a file whose name ends so shows. What
    /// was HDF5 is shown as HDF5, unless classic netCDF alone shows its unlimited dimension.
    fn shown(&self, hierarchy: &Hierarchy, key: &Key, ending: &str) -> Result<Option<Node>> {
        let Some(found) = hierarchy.find(key)? else {
            return Ok(None);
        };
        let attributes = hierarchy.attributes(key)?;
        let Some(mark) = FileMark::of(&attributes) else {
            return Ok(None);
        };
        let usual = if found.is_group() {
            FileFormat::Netcdf
        } else {
            FileFormat::Npy
        };
        let (format, own) = mark.origin.unwrap_or((usual, usual.id()));
        if own != ending {
            return Ok(None);
        }
        let shown = match (format, mark.unlimited) {
            (FileFormat::Npy, _) => Node::Header(key.clone(), Format::Npy),
            (FileFormat::Tiff, _) => Node::Header(key.clone(), Format::Tiff),
            (FileFormat::Hdf5, None) => Node::Dataset(key.clone(), GroupFormat::Hdf5),
            _ => Node::Dataset(key.clone(), GroupFormat::Netcdf),
        };
        let is_there = match shown {
            Node::Dataset(..) => found.is_group(),
            _ => found.array().is_some(),
        };
        Ok(is_there.then_some(shown))
    }
}

impl Tree {
    /// Returns the same tree, in which these files become groups and arrays.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if the store has no shards. An error of
    /// the store.
    pub fn with_ingest(self, rules: Option<IngestRules>) -> Result<Self> {
        let root = Key::root();
        let has_shards = rules.as_ref().is_some_and(|r| r.layout.shards.is_some());
        if has_shards && self.hierarchy.is_in_store(&root)? && !self.hierarchy.is_v3(&root)? {
            let why = "--ingest-options: shards: the store is one of Zarr v2, which has no shards";
            return Err(Error::invalid(why));
        }
        Ok(Tree {
            ingest: rules.map(Arc::new),
            ..self
        })
    }

    /// Returns whether a file of this name may be a group or an array.
    pub(super) fn may_be_ingested(&self, name: &str) -> bool {
        let split = self.ingest.as_ref().and_then(|rules| rules.split(name));
        split.is_some_and(|(_, stem)| !self.is_view_name(stem) && !self.is_generated_name(name))
    }

    /// Returns whether a listing should not look up the attributes of a name early: see
    /// [`DirectoryKind::is_costly`].
    pub fn is_costly(&self, directory: &DirectoryKind, name: &str) -> bool {
        directory.is_costly(name) || self.may_be_ingested(name)
    }

    /// Returns the key of the node that the file at `path` is or becomes, with its format; `None`
    /// for the names of other files.
    pub fn ingest_target(&self, path: &Key) -> Option<(Key, FileFormat)> {
        if !self.may_be_ingested(path.name()) {
            return None;
        }
        let (format, stem) = self.ingest.as_ref()?.split(path.name())?;
        Some((path.parent().child(stem).ok()?, format))
    }

    /// Returns how the group at `key` is shown as netCDF. One that was a file has its unlimited
    /// dimension and its characters.
    pub(super) fn netcdf_options(&self, key: &Key) -> NetcdfOptions {
        let shown = self.headers.netcdf.clone();
        let attributes = match &self.ingest {
            Some(_) => self.hierarchy.attributes(key).unwrap_or_default(),
            None => return shown,
        };
        let mark = FileMark::of(&attributes);
        let unlimited = mark.as_ref().and_then(|mark| mark.unlimited);
        NetcdfOptions {
            record: unlimited.map(str::to_string).or(shown.record),
            has_characters: mark.is_some(),
        }
    }

    /// Returns the generated file that the file at `path` shows. The caller has made sure that no
    /// key has this path.
    pub fn ingested(&self, path: &Key) -> Result<Option<Node>> {
        match (
            self.ingest_target(path),
            &self.ingest,
            path.name().rsplit_once('.'),
        ) {
            (Some((key, _)), Some(rules), Some((_, ending))) => {
                rules.shown(&self.hierarchy, &key, ending)
            }
            _ => Ok(None),
        }
    }
}
