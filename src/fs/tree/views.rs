//! Views of arrays in the tree: directories beside an array, with files like the array's own. They
//! come with the array; a stored key of the same name takes their place.

use super::headers::KEPT;
use super::names::{NameStream, name_at};
use super::node::{ROOT_NAME, SLICES, UNPACKED, View, ViewedFile};
use super::{Attributes, FLAT, ListedNode, Name, Node, Tree, has_flat};
use crate::array::Array;
use crate::array::hierarchy::Hierarchy;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use zarrfs_base::error::{Error, Result};
use zarrfs_export::{ArrayView, Composite, Described, Format};
use zarrfs_format::chunk_key::parse_index;
use zarrfs_store::{Hint, Key, Permissions};

/// Dimensions of the smallest slices: those of an image.
const PLANE: usize = 2;

/// Dimensions of the largest slices that have files: those of a volume.
const VOLUME: usize = 3;

/// Number of arrays whose documents are requested together.
const TOGETHER: usize = 64;

/// Which views of arrays are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Views {
    /// Physical values.
    pub unpacked: bool,
    /// Slices along leading dimensions.
    pub slices: bool,
}

impl View {
    /// Returns the view of one more index.
    fn at(&self, index: u64) -> Option<View> {
        let View::Slices(indices) = self else {
            return None;
        };
        Some(View::Slices(
            indices.iter().copied().chain([index]).collect(),
        ))
    }

    /// Returns whether the directory has files that show the array `shown`.
    fn has_files(&self, shown: &ArrayView) -> bool {
        match self {
            View::Unpacked => true,
            View::Slices(indices) => !indices.is_empty() && shown.metadata.shape.len() <= VOLUME,
        }
    }

    /// Returns the number of directories in that of the view.
    fn directories(&self, shown: &ArrayView) -> u64 {
        match (self, shown.metadata.shape.as_slice()) {
            (View::Slices(_), [len, rest @ ..]) if rest.len() >= PLANE => *len,
            _ => 0,
        }
    }
}

impl Views {
    /// Returns the views that are shown, with the ends of their names.
    fn shown(self) -> impl Iterator<Item = (&'static str, View)> {
        let all = [
            (self.unpacked, UNPACKED, View::Unpacked),
            (self.slices, SLICES, View::Slices(Vec::new())),
        ];
        all.into_iter()
            .filter(|(is_shown, ..)| *is_shown)
            .map(|(_, end, view)| (end, view))
    }

    /// Returns the names of the views of the array at `key`; none if there is no array.
    pub(super) fn beside(self, hierarchy: &Hierarchy, key: &Key) -> Vec<Name> {
        let views = self
            .shown()
            .filter(|(_, view)| matches!(find(hierarchy, key, view), Ok(Some(_))));
        views
            .map(|(_, view)| view.path(key))
            .filter(|path| matches!(hierarchy.store().stat(path), Ok(None)))
            .map(|path| name_at(&path.parent(), path.name().to_string(), true))
            .collect()
    }
}

/// Returns an array and what a view shows of it; `None` if there is no such view.
fn find(hierarchy: &Hierarchy, key: &Key, view: &View) -> Result<Option<(Arc<Array>, ArrayView)>> {
    let Some(array) = hierarchy.find(key)?.and_then(|node| node.array()) else {
        return Ok(None);
    };
    if !has_flat(&array) {
        return Ok(None);
    }
    let metadata = array.metadata();
    let shown = match view {
        View::Unpacked => {
            let attributes = hierarchy.attributes(key)?;
            let meaning = hierarchy.fill_meaning(key, metadata);
            let fill_is_missing = zarrfs_export::fill_is_missing(meaning, metadata, &attributes);
            ArrayView::unpacked(metadata, &attributes, fill_is_missing)
        }
        View::Slices(indices)
            if metadata.shape.len() > PLANE && indices.len() + PLANE <= metadata.shape.len() =>
        {
            ArrayView::slice(metadata, indices)
        }
        View::Slices(_) => None,
    };
    Ok(shown.map(|shown| (array, shown)))
}

impl Tree {
    /// Returns the same tree with these views.
    pub fn with_views(self, views: Views) -> Self {
        Tree { views, ..self }
    }

    /// Returns whether any array may have a view of this name.
    pub fn is_view_name(&self, name: &str) -> bool {
        self.views
            .shown()
            .any(|(end, _)| name.len() > end.len() && name.ends_with(end))
    }

    /// Returns the array at `key` and what a view shows of it.
    ///
    /// # Errors
    ///
    /// ESTALE if there is no such view.
    pub fn viewed(&self, key: &Key, view: &View) -> Result<(Arc<Array>, ArrayView)> {
        find(&self.hierarchy, key, view)?.ok_or_else(Error::stale)
    }

    /// Returns the view that `name` is in a group, or in the root if that is an array. The caller
    /// has made sure that no key of this name is stored.
    pub(super) fn view_in(&self, directory: &Key, name: &str) -> Result<Option<Node>> {
        for (end, view) in self.views.shown() {
            let Some(stem) = name.strip_suffix(end).filter(|stem| !stem.is_empty()) else {
                continue;
            };
            let is_array = directory.is_root()
                && self
                    .hierarchy
                    .find(directory)?
                    .is_some_and(|node| node.array().is_some());
            let key = if !is_array {
                directory.child(stem)?
            } else if stem == ROOT_NAME {
                directory.clone()
            } else {
                continue;
            };
            if find(&self.hierarchy, &key, &view)?.is_some() {
                return Ok(Some(Node::ViewDirectory(key, view)));
            }
        }
        Ok(None)
    }

    /// Returns the directory at a path, which may be that of a view.
    pub fn directory_at(&self, path: &Key) -> Result<Node> {
        let directory = Node::Directory(path.clone());
        if self.views == Views::default() || path.is_root() || self.hierarchy.find(path)?.is_some()
        {
            return Ok(directory);
        }
        let found = match self.directory_at(&path.parent())?.view() {
            Some((key, view)) => self.lookup_in_view(key, view, path.name())?,
            None => self.view_in(&path.parent(), path.name())?,
        };
        Ok(found
            .filter(|node| node.is_directory())
            .unwrap_or(directory))
    }

    /// Adds the views of the arrays in a group to the names in it, and the files that show its
    /// arrays and groups. Those of a node come before it, because a program that removes a tree
    /// removes them with the node. A listing of a
    /// directory of stores opens none of them.
    pub(super) fn with_views_of(&self, group: &Key, names: NameStream) -> NameStream {
        let hierarchy = self.hierarchy.clone();
        let views = self.views;
        let ingest = self.ingest.clone();
        let group = group.clone();
        let is_alone = views == Views::default() && ingest.is_none();
        if is_alone || !self.hierarchy.is_in_store(&group).unwrap_or(true) {
            return names;
        }
        let mut names = names;
        let mut batch = Vec::new().into_iter();
        let next = std::iter::from_fn(move || {
            let name = batch.next().or_else(|| {
                let some: Vec<_> = names.by_ref().take(TOGETHER).collect();
                let directories = some.iter().flatten().filter(|name| name.is_directory);
                // a server is asked for the documents of these arrays together
                let keys: Vec<_> = directories.map(|name| group.join(&name.name)).collect();
                hierarchy.store().hint(Hint::Nodes(&keys));
                batch = some.into_iter();
                batch.next()
            })?;
            let mut beside = Vec::new();
            if let Ok(name) = &name
                && name.is_directory
            {
                let key = group.join(&name.name);
                beside = views.beside(&hierarchy, &key);
                beside.extend(
                    ingest
                        .iter()
                        .flat_map(|rules| rules.beside(&hierarchy, &key)),
                );
            }
            Some(beside.into_iter().map(Ok).chain([name]).collect::<Vec<_>>())
        });
        Box::new(next.flatten())
    }

    /// Looks up a name in the directory of a view.
    pub(super) fn lookup_in_view(
        &self,
        key: &Key,
        view: &View,
        name: &str,
    ) -> Result<Option<Node>> {
        let (array, shown) = self.viewed(key, view)?;
        if view.has_files(&shown) {
            let mut formats = self.formats_of_view(&array, &shown);
            let file = match Format::of_name(ViewedFile::listed_name(name)) {
                _ if name == FLAT => Some(ViewedFile::Flat),
                Some(format) if formats.any(|other| other == format) => {
                    Some(ViewedFile::Header(format))
                }
                _ => None,
            };
            if let Some(file) = file {
                return Ok(Some(Node::ViewFile(key.clone(), view.clone(), file)));
            }
        }
        let index = parse_index(name).filter(|index| *index < view.directories(&shown));
        Ok(index
            .and_then(|index| view.at(index))
            .map(|view| Node::ViewDirectory(key.clone(), view)))
    }

    /// Returns the names in the directory of a view.
    pub(super) fn names_of_view(&self, key: &Key, view: &View) -> Result<NameStream> {
        let (array, shown) = self.viewed(key, view)?;
        let path = view.path(key);
        let mut files = Vec::new();
        if view.has_files(&shown) {
            let formats = self.formats_of_view(&array, &shown).map(Format::name);
            files.extend(
                [FLAT]
                    .into_iter()
                    .chain(formats)
                    .map(|name| Ok(name_at(&path, name.to_string(), false))),
            );
        }
        let directories = (0..view.directories(&shown))
            .map(move |index| Ok(name_at(&path, index.to_string(), true)));
        Ok(Box::new(files.into_iter().chain(directories)))
    }

    /// Returns the formats that can describe a view, in the order in which they are listed.
    fn formats_of_view(
        &self,
        array: &Arc<Array>,
        shown: &ArrayView,
    ) -> impl Iterator<Item = Format> {
        let fitting = self.headers.formats.iter().copied();
        fitting
            .filter(|format| format.may_fit(&shown.metadata) && !format.is_image())
            .filter(move |format| match format {
                format if format.reads_values() => {
                    let range = shown.range.clone();
                    zarrfs_export::check_values(array.metadata(), array.is_remote(), range).is_ok()
                }
                // if the description fails, the file is shown, and opening it reports the error
                format if format.depends_on_sign(&shown.metadata) => {
                    match self.described(array, KEPT) {
                        Ok(described) => format.fits(&shown.describe(&described).metadata),
                        Err(_) => true,
                    }
                }
                _ => true,
            })
    }

    /// Returns the content of a file of a view.
    pub(super) fn view_file(
        &self,
        key: &Key,
        view: &View,
        file: ViewedFile,
        age: Duration,
    ) -> Result<Arc<Composite>> {
        let (array, shown) = self.viewed(key, view)?;
        let described = match file {
            ViewedFile::Flat => {
                let mut file = Composite::default();
                file.push_range(
                    key.clone(),
                    array.metadata(),
                    shown.range.clone(),
                    shown.form.clone(),
                );
                file.sources.push(key.clone());
                return file.counted().map(Arc::new);
            }
            ViewedFile::Header(format) if format.reads_values() => {
                return self.values_text(format, &array, (view.path(key), Some(&shown)), age);
            }
            ViewedFile::Header(Format::Npy) => {
                Arc::new(Described::of_metadata(key, array.metadata()))
            }
            ViewedFile::Header(_) => self.described(&array, age)?,
        };
        let ViewedFile::Header(format) = file else {
            return Err(Error::stale());
        };
        shown
            .file(format, &shown.describe(&described), array.metadata())?
            .counted()
            .map(Arc::new)
    }

    /// Returns when a document that only a view shows was changed: the attributes that say what
    /// items stand for.
    pub(super) fn view_modified(&self, node: &Node) -> Result<SystemTime> {
        match node.view() {
            Some((key, View::Unpacked)) => self.modified(&self.hierarchy.attributes_key(key)),
            _ => Ok(SystemTime::UNIX_EPOCH),
        }
    }

    /// Returns the entry of a name in a view whose lookup has failed.
    pub(super) fn unsound_in_view(
        &self,
        key: &Key,
        view: &View,
        name: &Name,
    ) -> Option<ListedNode> {
        let node = if name.is_directory {
            Node::ViewDirectory(key.clone(), view.at(parse_index(&name.name)?)?)
        } else {
            let format = Format::of_name(&name.name);
            let file = format.map_or(ViewedFile::Flat, ViewedFile::Header);
            Node::ViewFile(key.clone(), view.clone(), file)
        };
        let attributes: Attributes = self.made(
            &node,
            0,
            0,
            SystemTime::UNIX_EPOCH,
            Some(Permissions::OWNER_ONLY),
        );
        Some(ListedNode {
            node,
            attributes,
            sound: false,
        })
    }
}
