//! Headers and containers in the tree. Selects those that an array or a group shows, and caches
//! their content for a second.

use super::access::{SeenSources, SourcesStat};
use super::xattr::AttributeTexts;
use super::{Attributes, FLAT, Node, Tree};
use crate::array::Array;
use crate::export::CachedHierarchy;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, Reclaim, lock};
use zarrfs_export::{ArrayView, Composite, Described, Format, GroupFormat, NetcdfOptions};
use zarrfs_store::{Key, Permissions};

/// Maximum age of a description for requests that open no file: a listing needs it once for each
/// header.
pub(super) const KEPT: Duration = Duration::from_secs(1);

/// The headers and containers that the mount shows.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    /// The formats shown for each array, in the order in which they are listed.
    pub formats: Vec<Format>,
    /// The formats in which each group shows itself as a file.
    pub groups: Vec<GroupFormat>,
    /// How it does so in netCDF.
    pub netcdf: NetcdfOptions,
}

impl Reclaim for KnownHeaders {
    fn reclaim(&self) {
        if let Ok(mut described) = self.described.try_lock() {
            described.clear();
        }
        if let Ok(mut datasets) = self.datasets.try_lock() {
            datasets.clear();
        }
        if let Ok(mut texts) = self.texts.try_lock() {
            texts.clear();
        }
        if let Ok(mut attributes) = self.attributes.try_lock() {
            attributes.clear();
        }
    }
}

/// The values of an array as text, and what they were read from.
struct ValuesText {
    made: Instant,
    array: Weak<Array>,
    /// The array's writes and stores before the values were read.
    changes: [u64; 2],
    file: Arc<Composite>,
}

/// The file of a group.
#[derive(Clone)]
struct Dataset {
    file: Arc<Composite>,
    sources: SourcesStat,
    /// When the file was last known to be that of its group.
    checked: Instant,
    /// Whether a change of a source since the file was begun shows in a version: those of files
    /// have times, which may be as coarse as [`TICK`].
    tells_changes: bool,
}

/// The longest time for which the times of changed files may stay the same.
const TICK: Duration = Duration::from_millis(20);

/// A description of an array, and the files that were made of it.
struct KnownDescription {
    made: Instant,
    described: Arc<Described>,
    /// The writes and stores of its coordinates at that time.
    changes: Vec<[u64; 2]>,
    files: Vec<(Format, Arc<Composite>)>,
}

/// Recently made descriptions and containers, and extended attributes.
pub(super) struct KnownHeaders {
    /// Protects the map alone.
    described: Mutex<LruCache<Key, KnownDescription>>,
    /// Protects the map alone.
    datasets: Mutex<LruCache<(Key, GroupFormat), Dataset>>,
    /// Protects the map alone.
    texts: Mutex<LruCache<Key, ValuesText>>,
    /// Protects the map alone.
    pub(super) attributes: Mutex<LruCache<Key, Arc<AttributeTexts>>>,
    /// Protects the map alone: the groups for which the log says what their files leave out, and
    /// those words.
    left_out: Mutex<LruCache<(Key, GroupFormat), Vec<String>>>,
}

impl KnownHeaders {
    pub(super) fn new() -> Self {
        const FEW: NonZeroUsize = NonZeroUsize::new(4).unwrap();
        const LOGGED: NonZeroUsize = NonZeroUsize::new(64).unwrap();
        KnownHeaders {
            described: Mutex::new(LruCache::new(FEW)),
            datasets: Mutex::new(LruCache::new(FEW)),
            texts: Mutex::new(LruCache::new(FEW)),
            attributes: Mutex::new(LruCache::new(FEW)),
            left_out: Mutex::new(LruCache::new(LOGGED)),
        }
    }

    /// Forgets everything, because a document was changed.
    pub(super) fn clear(&self) {
        lock(&self.described).clear();
        lock(&self.datasets).clear();
        lock(&self.texts).clear();
        lock(&self.attributes).clear();
    }
}

impl Tree {
    /// Returns the same tree with these headers.
    pub fn with_headers(self, headers: Headers) -> Self {
        Tree { headers, ..self }
    }

    /// Returns the groups and arrays for files of other programs.
    pub(super) fn exported(&self) -> CachedHierarchy<'_> {
        CachedHierarchy {
            hierarchy: &self.hierarchy,
            cache: &self.cache,
            seen: None,
        }
    }

    /// Returns the formats shown for an array, in the order in which they are listed.
    pub(super) fn formats<'a>(&'a self, array: &'a Array) -> impl Iterator<Item = Format> + 'a {
        let sound = array.readable().is_ok();
        self.headers
            .formats
            .iter()
            .copied()
            .filter(move |format| sound && format.may_fit(array.metadata()))
            .filter(move |format| self.tells(*format, array))
    }

    /// Returns whether a format that may fit an array does: the attributes may decide on the sign,
    /// and the values on a text. If the description fails, the file is shown, and opening it
    /// reports the error.
    fn tells(&self, format: Format, array: &Array) -> bool {
        if format.reads_values() {
            return zarrfs_export::check_values(
                array.metadata(),
                array.is_remote(),
                0..array.size(),
            )
            .is_ok()
                && (!array.metadata().has_objects() || self.has_strings(format, array));
        }
        if !format.depends_on_sign(array.metadata()) {
            return true;
        }
        let described = self
            .hierarchy
            .cached_array(array.key())
            .map(|array| self.described(&array, KEPT));
        !matches!(described, Some(Ok(described)) if !format.fits(&described.metadata))
    }

    /// Returns whether a file of values can show the objects of an array, which may be no strings,
    /// or too many: that is known after they are read.
    fn has_strings(&self, format: Format, array: &Array) -> bool {
        let text = self.hierarchy.cached_array(array.key()).map(|array| {
            let path = array.key().clone();
            self.values_text(format, &array, (path, None), KEPT)
        });
        !matches!(text, Some(Err(e)) if e.kind() == Kind::Unsupported)
    }

    /// Returns whether arrays show headers.
    pub fn shows_headers(&self) -> bool {
        !self.headers.formats.is_empty()
    }

    /// Returns whether listing an array reads its attributes and coordinates.
    pub fn is_described_to_list(&self, key: &Key) -> bool {
        self.hierarchy.cached_array(key).is_some_and(|array| {
            let mut formats = self.headers.formats.iter();
            formats.any(|f| f.may_fit(array.metadata()) && f.depends_on_sign(array.metadata()))
        })
    }

    /// Returns the format of the header or container with this name, if the array shows it.
    pub(super) fn format(&self, array: &Array, name: &str) -> Option<Format> {
        let format = Format::of_name(name)?;
        self.formats(array).find(|shown| *shown == format)
    }

    /// Returns the formats in which the group at `key` shows itself as a file.
    pub(super) fn group_formats(&self, key: &Key) -> impl Iterator<Item = GroupFormat> {
        let formats = self.formats_of_group(key);
        formats.filter(|format| !self.is_stored_early(key, *format))
    }

    /// Returns the formats in which the group at `key` can show itself as a file.
    pub(super) fn formats_of_group(&self, key: &Key) -> impl Iterator<Item = GroupFormat> {
        let groups = &self.headers.groups;
        // until a document makes it a group, a program may be copying one
        let is_shown = !groups.is_empty()
            && !self.hierarchy.is_unmarked(key)
            && self.hierarchy.is_in_store(key).unwrap_or(true)
            && !self.is_level(key);
        groups.iter().copied().filter(move |_| is_shown)
    }

    /// Returns the names that an array may show as generated files.
    pub fn generated_names(&self) -> impl Iterator<Item = &'static str> {
        let formats = self.headers.formats.iter().map(|format| format.name());
        [FLAT].into_iter().chain(formats)
    }

    /// Returns the format of the file with this name, if the group at `key` shows it.
    pub(super) fn group_format(&self, key: &Key, name: &str) -> Option<GroupFormat> {
        let format = GroupFormat::of_name(name)?;
        self.group_formats(key).find(|shown| *shown == format)
    }

    /// Returns the format of the file with this name, if the array at `key` shows it: the root of
    /// its store alone is a hierarchy.
    pub(super) fn array_as_group(&self, key: &Key, name: &str) -> Option<GroupFormat> {
        self.group_format(key, name)
            .filter(|format| key.is_root() && format.shows_array())
    }

    /// Returns whether a name exists as long as its directory and holds no data of its own.
    pub fn comes_with(&self, directory: &Key, name: &str) -> bool {
        match self.array(directory) {
            Ok(array) => {
                self.format(&array, name).is_some()
                    || self.array_as_group(directory, name).is_some()
                    || directory.is_root() && self.is_view_name(name)
            }
            Err(_) => self.group_format(directory, name).is_some(),
        }
    }

    /// Returns whether any directory may show this name as a header or container.
    pub fn is_header_name(&self, name: &str) -> bool {
        Format::of_name(name).is_some_and(|format| self.headers.formats.contains(&format))
            || GroupFormat::of_name(name)
                .is_some_and(|format| self.headers.groups.contains(&format))
    }

    /// Returns whether the mount may generate a file of this name.
    pub fn is_generated_name(&self, name: &str) -> bool {
        name == FLAT || self.is_header_name(name)
    }

    /// Returns whether the headers of an array state its reference system, if that is known.
    pub fn has_place(&self, key: &Key) -> Result<bool> {
        let described = self.described(&self.array(key)?, KEPT)?;
        Ok(zarrfs_export::has_place(&described))
    }

    /// Returns the current content of a header or container.
    ///
    /// # Errors
    ///
    /// ESTALE if the format cannot describe the array any more: then the file is not shown.
    pub fn composite(&self, node: &Node) -> Result<Arc<Composite>> {
        match node {
            Node::Header(key, format) if format.is_image() => {
                self.image(key, *format).map_err(no_longer_shown)
            }
            _ => self.composite_not_older(node, Duration::ZERO),
        }
    }

    /// Returns a header or container that is at most `age` old. An image has the right size, but
    /// no pixels: those take chunks.
    fn composite_not_older(&self, node: &Node, age: Duration) -> Result<Arc<Composite>> {
        self.made_composite(node, age).map_err(no_longer_shown)
    }

    /// Returns an image of an array as it is now.
    fn image(&self, key: &Key, format: Format) -> Result<Arc<Composite>> {
        let described = self.described(&self.array(key)?, Duration::ZERO)?;
        let image = format.image(&self.exported(), &described)?;
        image.counted().map(Arc::new)
    }

    fn made_composite(&self, node: &Node, age: Duration) -> Result<Arc<Composite>> {
        match node {
            Node::Header(key, format) => {
                let array = self.array(key)?;
                if format.reads_values() {
                    return self.values_text(*format, &array, (key.clone(), None), age);
                }
                // `data.npy` holds no geometry
                if *format == Format::Npy {
                    let described = Described::of_metadata(key, array.metadata());
                    return format.file(&described)?.counted().map(Arc::new);
                }
                self.described_file(*format, &self.described(&array, age)?)
            }
            Node::Dataset(key, format) => Ok(self.dataset(key, *format, age)?.file),
            Node::ViewFile(key, view, file) => self.view_file(key, view, *file, age),
            Node::LayoutFile(path, _) => self.layout_file(path, age),
            Node::Ingested(path) => {
                let shown = self.ingested(path)?.ok_or_else(Error::stale)?;
                self.made_composite(&shown, age)
            }
            _ => Err(Error::stale()),
        }
    }

    pub(super) fn described(&self, array: &Arc<Array>, age: Duration) -> Result<Arc<Described>> {
        if let Some(known) = lock(&self.known_headers.described).get(array.key())
            && known.made.elapsed() < age
            && *known.described.stored == *array.metadata()
            && known.changes == self.changes_of(&known.described.sources)
        {
            return Ok(known.described.clone());
        }
        let nodes = self.exported();
        let node = nodes.array(array.clone());
        let described = Arc::new(zarrfs_export::describe(&nodes, &node)?);
        let changes = self.changes_of(&described.sources);
        let made = Instant::now();
        let mut all = lock(&self.known_headers.described);
        if let Some(known) = all
            .get_mut(array.key())
            .filter(|known| known.described == described)
        {
            known.made = made;
            known.changes = changes;
            return Ok(known.described.clone());
        }
        all.put(
            array.key().clone(),
            KnownDescription {
                made,
                described: described.clone(),
                changes,
                files: Vec::new(),
            },
        );
        Ok(described)
    }

    /// Returns the numbers of writes and stores of the arrays among `sources` through this mount.
    /// What a program has written it sees at once: it would not find a header that it then creates.
    pub(super) fn changes_of(&self, sources: &[Key]) -> Vec<[u64; 2]> {
        let arrays = sources
            .iter()
            .filter_map(|key| self.hierarchy.cached_array(key));
        arrays
            .map(|array| [array.freshness().writes(), array.freshness().stores()])
            .collect()
    }

    /// Returns the file of a format, which is made once as long as the description stays the same.
    fn described_file(&self, format: Format, described: &Arc<Described>) -> Result<Arc<Composite>> {
        let is_same = |known: &KnownDescription| Arc::ptr_eq(&known.described, described);
        if let Some(known) = lock(&self.known_headers.described)
            .get(&described.key)
            .filter(|known| is_same(known))
            && let Some((_, file)) = known.files.iter().find(|(other, _)| *other == format)
        {
            return Ok(file.clone());
        }
        let file = Arc::new(format.file(described)?.counted()?);
        if let Some(known) = lock(&self.known_headers.described)
            .get_mut(&described.key)
            .filter(|known| is_same(known))
        {
            known.files.push((format, file.clone()));
        }
        Ok(file)
    }

    /// Returns `values.txt` of an array, or of a view at `path`. The text is at most `age` old and
    /// contains every write through the mount; a `stat` and the read that follows get the same
    /// text, so the size is right.
    pub(super) fn values_text(
        &self,
        format: Format,
        array: &Arc<Array>,
        (path, view): (Key, Option<&ArrayView>),
        age: Duration,
    ) -> Result<Arc<Composite>> {
        let changes = [array.freshness().writes(), array.freshness().stores()];
        if let Some(text) = lock(&self.known_headers.texts).get(&path)
            && text.made.elapsed() < age
            && text.changes == changes
            && Weak::ptr_eq(&text.array, &Arc::downgrade(array))
        {
            return Ok(text.file.clone());
        }
        let range = view.map_or(0..array.size(), |view| view.range.clone());
        let nodes = self.exported();
        let node = nodes.array(array.clone());
        let described = zarrfs_export::describe_values(&nodes, &node, range)?;
        let described = match view {
            Some(view) => view.describe_values(&described)?,
            None => described,
        };
        let file = Arc::new(format.file(&described)?.counted()?);
        let made = Instant::now();
        let array_used = Arc::downgrade(array);
        let text = ValuesText {
            made,
            array: array_used,
            changes,
            file: file.clone(),
        };
        lock(&self.known_headers.texts).put(path, text);
        Ok(file)
    }

    /// Returns the container of a group, at most a second old.
    pub(super) fn container(&self, key: &Key, format: GroupFormat) -> Result<Arc<Composite>> {
        Ok(self.dataset(key, format, KEPT)?.file)
    }

    fn dataset(&self, key: &Key, format: GroupFormat, age: Duration) -> Result<Dataset> {
        let _once = self.hierarchy.asked_once();
        let known = (key.clone(), format);
        let last = lock(&self.known_headers.datasets).get(&known).cloned();
        let asked = Instant::now();
        let begun = SystemTime::now();
        if let Some(last) = last {
            if last.checked.elapsed() < age {
                return Ok(last);
            }
            if self.is_current(&last) {
                let dataset = Dataset {
                    checked: asked,
                    ..last
                };
                lock(&self.known_headers.datasets).put(known, dataset.clone());
                return Ok(dataset);
            }
        }
        let seen = SeenSources::new(self);
        let see = |key: &Key| seen.see(key);
        let nodes = CachedHierarchy {
            seen: Some(&see),
            ..self.exported()
        };
        let _once = self.hierarchy.read_once();
        let file = format.file(&nodes, key, &self.netcdf_options(key));
        let file = file
            .and_then(Composite::counted)
            .map_err(|e| too_many_arrays(key, format, e))?;
        self.log_left_out(&known, &file);
        let sources = self.of_seen_sources(&file.sources, &seen)?;
        let is_told = sources.permissions.is_some() && !file.depends_on_values();
        let dataset = Dataset {
            file: Arc::new(file),
            sources,
            checked: Instant::now(),
            tells_changes: is_told && sources.modified + TICK < begun,
        };
        lock(&self.known_headers.datasets).put(known, dataset.clone());
        Ok(dataset)
    }

    /// Returns whether a file is still that of its group. To make it again takes ten times as long.
    fn is_current(&self, last: &Dataset) -> bool {
        last.tells_changes
            && self
                .of_sources(&last.file.sources)
                .is_ok_and(|now| now == last.sources)
    }

    /// Logs once what is not in the file of a group.
    fn log_left_out(&self, known: &(Key, GroupFormat), file: &Composite) {
        let mut logged = lock(&self.known_headers.left_out);
        if !file.left_out.is_empty() && logged.get(known) != Some(&file.left_out) {
            log::warn!(
                "{}: left out: {}",
                known.0.join(known.1.name()),
                file.left_out.join("; ")
            );
            logged.put(known.clone(), file.left_out.clone());
        }
    }

    /// Returns the attributes of a header or container. Its modification time is that of the array.
    /// Its stored size excludes the array's bytes, because `du` would count them twice.
    pub(super) fn composite_attributes(&self, node: &Node) -> Result<Attributes> {
        if let Node::LayoutFile(path, _) = node {
            return self.layout_attributes(node, path);
        }
        if let Node::Ingested(path) = node {
            let shown = self.ingested(path)?.ok_or_else(Error::stale)?;
            return Ok(Attributes {
                inode: node.inode(),
                ..self.composite_attributes(&shown)?
            });
        }
        match node.container() {
            Some((key, format)) => match self.dataset(key, format, KEPT) {
                // a listing must not fail: the file shows as empty, and opening it reports the
                // error
                Err(e) if [Kind::System(libc::ENOMEM), Kind::Damaged].contains(&e.kind()) => {
                    let modified = self
                        .attributes_of_found(&Node::Directory(key.clone()))?
                        .modified;
                    Ok(self.made(node, 0, 0, modified, Some(Permissions::OWNER_ONLY)))
                }
                dataset => {
                    let Dataset { file, sources, .. } = dataset?;
                    Ok(self.made_of(node, &file, sources.modified, &sources))
                }
            },
            None => self.header_attributes(node, &*self.composite_not_older(node, KEPT)?),
        }
    }

    /// Returns the attributes of a header or of a file of a view with this content.
    ///
    /// # Errors
    ///
    /// ESTALE for other nodes, and if the array is gone.
    pub fn header_attributes(&self, node: &Node, file: &Composite) -> Result<Attributes> {
        let key = node
            .key()
            .filter(|_| node.is_composite() && node.container().is_none());
        let flat = Node::Flat(key.ok_or_else(Error::stale)?.clone());
        let modified = self.attributes_of_found(&flat)?.modified;
        let modified = modified.max(self.view_modified(node)?);
        Ok(self.made_of(node, file, modified, &self.of_sources(&file.sources)?))
    }

    /// Builds the attributes of a header or container.
    fn made_of(
        &self,
        node: &Node,
        file: &Composite,
        modified: SystemTime,
        sources: &SourcesStat,
    ) -> Attributes {
        let own: u64 = file
            .parts()
            .iter()
            .filter(|p| p.content.is_own())
            .map(|p| p.len)
            .sum();
        Attributes {
            changed: sources.changed.max(modified),
            ..self.made(
                node,
                file.size(),
                own.div_ceil(512).max(1),
                modified,
                sources.permissions,
            )
        }
    }
}

/// Returns the error for a file whose format cannot describe the array any more.
fn no_longer_shown(e: Error) -> Error {
    match e.kind() {
        Kind::Unsupported => Error::new(Kind::System(libc::ESTALE), e.message()),
        _ => e,
    }
}

/// Returns the error for the file of a group: if memory was missing, most holds what the file needs
/// itself.
fn too_many_arrays(key: &Key, format: GroupFormat, e: Error) -> Error {
    if e.errno() != libc::ENOMEM {
        return e;
    }
    let why = format!(
        "describing its arrays needs more memory than the {} MiB for metadata",
        memory::limit() >> 20
    );
    let id = format.id();
    let why = format!("{why}: mount with a larger --cache-size, or without --containers {id}");
    Error::new(Kind::System(libc::ENOMEM), why).context(key.join(format.name()))
}

#[cfg(test)]
mod tests;
