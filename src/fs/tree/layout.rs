//! The files of a layout in the tree: parts of arrays under the names that patterns make of
//! coordinates. Names are made once for a state of the coordinates, and kept; files are made when
//! they are opened. A directory of a pattern that the store has shows them beside its own names.

use super::access::SourcesStat;
use super::headers::KEPT;
use super::names::{NameStream, name_at};
use super::node::{LayoutSource, Node};
use super::{Attributes, CONTROL, FLAT, Tree};
use lru::LruCache;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::lock;
use zarrfs_export::{Composite, LayoutPieces, LayoutRule, PieceClass};
use zarrfs_store::{Hint, Key, Permissions, StoreExt};

/// Maximum number of sizes of files that are kept.
const SIZES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// The layout of a mount.
#[derive(Default)]
pub(super) struct MountLayout {
    rules: Vec<LayoutRule>,
    /// Protects the reference alone.
    known: Mutex<Option<Arc<LaidOut>>>,
    /// Why the names could not be made again, to log it once. Protects the text alone.
    failure: Mutex<String>,
}

/// The files of all rules in one state of the store.
pub(super) struct LaidOut {
    rules: Vec<(LayoutPieces, Arc<LayoutSource>)>,
    /// The directory of the mountpoint: of a branch, where its present snapshot stays.
    root: Key,
    /// What the names were made of.
    keys: Vec<Key>,
    versions: u64,
    /// The writes and stores of the coordinates at that time.
    changes: Vec<[u64; 2]>,
    /// When this was last known to be current, or when a thread began to find out.
    checked: Mutex<Instant>,
    /// Protects the map alone.
    sizes: Mutex<LruCache<(usize, PieceClass), KnownSize>>,
}

/// What `stat` needs of files of one class.
#[derive(Clone)]
struct KnownSize {
    size: u64,
    /// Bytes that belong to the file itself.
    own: u64,
    sources: Arc<[Key]>,
    stat: SourcesStat,
    checked: Instant,
}

impl LaidOut {
    /// Returns a path as the rules name it: without the snapshot in which its directory stays.
    fn shown(&self, path: &Key) -> Key {
        match path.as_str().split_once('/').unwrap_or((path.as_str(), "")) {
            (first, rest) if !self.root.is_root() && first.starts_with('@') => {
                Key::root().join(rest)
            }
            _ => path.clone(),
        }
    }

    /// Returns the rule and the number of the file at a path.
    fn find(&self, path: &Key) -> Option<(usize, usize)> {
        let path = self.shown(path);
        let rules = self.rules.iter().enumerate();
        rules
            .filter_map(|(rule, (pieces, _))| Some((rule, pieces.find(path.as_str())?)))
            .next()
    }

    fn has_directory(&self, path: &Key) -> bool {
        let path = &self.shown(path);
        self.rules
            .iter()
            .any(|(pieces, _)| pieces.has_directory(path))
    }

    /// Returns the next name in a directory from a place among the paths of a rule on. The first
    /// of several rules with a directory names it.
    fn next_name(
        &self,
        directory: &Key,
        (rule, place): &mut (usize, Option<usize>),
    ) -> Option<(String, bool)> {
        let directory = &self.shown(directory);
        while let Some((pieces, _)) = self.rules.get(*rule) {
            let from = place.unwrap_or_else(|| pieces.first_below(directory));
            let Some((name, is_directory, behind)) = pieces.name_at(directory, from) else {
                (*rule, *place) = (*rule + 1, None);
                continue;
            };
            *place = Some(behind);
            let mut before = self.rules.iter().take(*rule);
            let path = directory.join(name);
            if !(is_directory && before.any(|(pieces, _)| pieces.has_directory(&path))) {
                return Some((name.to_string(), is_directory));
            }
        }
        None
    }
}

impl Tree {
    /// Returns the same tree with a layout.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the store has no such files, or they would hide something. An error of
    /// the store.
    pub fn with_layout(self, rules: Vec<LayoutRule>) -> Result<Self> {
        if rules.is_empty() {
            return Ok(self);
        }
        let layout = MountLayout {
            rules,
            ..MountLayout::default()
        };
        let tree = Tree { layout, ..self };
        let laid_out = tree.lay_out()?;
        // a format that cannot hold the arrays is refused before the mount
        for (rule, (pieces, _)) in tree.layout.rules.iter().zip(&laid_out.rules) {
            for line in pieces.shortened() {
                log::warn!("layout {:?}: {line}", rule.text());
            }
            if !pieces.is_empty() {
                let file = pieces.file(&tree.exported(), 0, &tree.headers.netcdf);
                let file = file.map_err(|e| e.context(format!("layout {:?}", rule.text())))?;
                if !file.left_out.is_empty() {
                    log::warn!("{}: left out: {}", pieces.path(0), file.left_out.join("; "));
                }
            }
        }
        *lock(&tree.layout.known) = Some(Arc::new(laid_out));
        Ok(tree)
    }

    /// Makes the names of all files.
    fn lay_out(&self) -> Result<LaidOut> {
        let hierarchy = self.exported();
        let root = self.layout_root();
        let mut rules: Vec<(LayoutPieces, Arc<LayoutSource>)> = Vec::new();
        let mut keys = BTreeSet::new();
        for rule in &self.layout.rules {
            let pieces = rule.pieces(&hierarchy, &root)?;
            keys.extend(pieces.sources());
            let source = Arc::new(LayoutSource {
                group: pieces.group().clone(),
                format: pieces.container(),
            });
            let checked = self.check_names(rule, &pieces, &rules, &root);
            checked.map_err(|e| e.context(format!("layout {:?}", rule.text())))?;
            rules.push((pieces, source));
        }
        let keys: Vec<Key> = keys.into_iter().collect();
        self.hierarchy.store().hint(Hint::Nodes(&keys));
        Ok(LaidOut {
            versions: self.of_sources(&keys)?.versions,
            changes: self.changes_of(&keys),
            keys,
            rules,
            root,
            checked: Mutex::new(Instant::now()),
            sizes: Mutex::new(LruCache::new(SIZES)),
        })
    }

    /// Checks that the files of a rule hide nothing, and have other names than those `before`.
    fn check_names(
        &self,
        rule: &LayoutRule,
        pieces: &LayoutPieces,
        before: &[(LayoutPieces, Arc<LayoutSource>)],
        root: &Key,
    ) -> Result<()> {
        let refused =
            |path: &str, why: &str| Err(Error::invalid(format!("the name {path:?} {why}")));
        let directories = rule.fixed_directories();
        for directory in &directories {
            if directory.name() == CONTROL {
                return refused(directory.as_str(), "is one that zarrfs itself uses");
            }
            let found = self.hierarchy.find(&root.join_key(directory))?;
            if found.is_some_and(|node| !node.is_group() && !node.is_array()) {
                return refused(directory.as_str(), "is that of a file in the store");
            }
        }
        let directory = root.join_key(directories.last().unwrap_or(&Key::root()));
        let is_group = self
            .hierarchy
            .find(&directory)?
            .is_some_and(|node| node.is_group());
        if is_group {
            for key in &self.hierarchy.prefixes(&directory)?.keys {
                let shown = key.relative_to(root);
                if shown.is_some_and(|key| pieces.find(key.as_str()).is_some()) {
                    return refused(key.as_str(), "hides an array or group");
                }
            }
        }
        for number in 0..pieces.len() {
            let path = Key::root().join(pieces.path(number));
            if (self.is_generated_name(path.name()) || path.name() == FLAT)
                && self
                    .hierarchy
                    .find(&root.join_key(&path.parent()))?
                    .is_some()
            {
                return refused(path.as_str(), "hides a file that the mount shows");
            }
            for (other, _) in before {
                if other.find(path.as_str()).is_some() || other.has_directory(&path) {
                    return refused(path.as_str(), "is that of two files");
                }
                let mut above =
                    std::iter::successors(Some(path.parent()), |key| Some(key.parent()));
                let mut above = above.by_ref().take_while(|key| !key.is_root());
                if above.any(|key| other.find(key.as_str()).is_some()) {
                    return refused(path.as_str(), "is below another file");
                }
            }
        }
        Ok(())
    }

    /// Returns the directory of the mountpoint. All files of a branch are of one snapshot.
    fn layout_root(&self) -> Key {
        let snapshots = self.hierarchy.store().capabilities().snapshots;
        let settled = snapshots.map(|snapshots| snapshots.settled(&Key::root()));
        settled.and_then(Result::ok).flatten().unwrap_or_default()
    }

    /// Returns the files, known to be current at most `age` ago; `None` without a layout. If the
    /// names cannot be made again, for example while a program makes arrays longer, the files keep
    /// those that they had.
    fn laid_out(&self, age: Duration) -> Option<Arc<LaidOut>> {
        let known = lock(&self.layout.known).clone()?;
        let is_recent = {
            let mut checked = lock(&known.checked);
            let is_recent = checked.elapsed() < age;
            if !is_recent {
                *checked = Instant::now();
            }
            is_recent
        };
        if is_recent || self.is_laid_out(&known) {
            return Some(known);
        }
        match self.lay_out() {
            Ok(next) => {
                let next = Arc::new(next);
                *lock(&self.layout.known) = Some(next.clone());
                lock(&self.layout.failure).clear();
                Some(next)
            }
            Err(e) => {
                let why = e.to_string();
                let mut failure = lock(&self.layout.failure);
                if *failure != why {
                    log::warn!("the names stay as they are: {why}");
                    *failure = why;
                }
                Some(known)
            }
        }
    }

    /// Returns whether the names are those that the coordinates make now.
    fn is_laid_out(&self, known: &LaidOut) -> bool {
        self.hierarchy.store().hint(Hint::Nodes(&known.keys));
        let hierarchy = self.exported();
        let sources = self.of_sources(&known.keys);
        self.layout_root() == known.root
            && sources.is_ok_and(|now| now.versions == known.versions)
            && self.changes_of(&known.keys) == known.changes
            && known
                .rules
                .iter()
                .all(|(pieces, _)| pieces.is_current(&hierarchy).unwrap_or(false))
    }

    /// Returns whether a directory may have files or directories of the layout.
    pub(super) fn may_be_laid_out(&self, directory: &Node) -> bool {
        !self.layout.rules.is_empty() && directory.directory().is_some()
    }

    /// Returns whether a path names a directory of the layout, which is there even if the store
    /// lacks it.
    pub fn is_layout_directory(&self, path: &Key) -> bool {
        let laid_out = self.laid_out(KEPT);
        laid_out.is_some_and(|laid_out| laid_out.has_directory(path))
    }

    /// Makes a directory of the layout one of the store, since a program creates a file in it: NCO
    /// writes temporary files beside the one that it changes.
    ///
    /// # Errors
    ///
    /// The store cannot create it.
    pub fn begin_layout_directory(&self, path: &Key) -> Result<()> {
        let above = std::iter::successors(Some(path.clone()), |key| Some(key.parent()));
        let missing: Vec<Key> = above
            .take_while(|key| !key.is_root() && self.is_layout_directory(key))
            .take_while(|key| matches!(self.find_stat(key), Ok(None)))
            .collect();
        let mut from_top = missing.iter().rev();
        from_top.try_for_each(|key| self.hierarchy.store().make_prefix(key))
    }

    /// Removes a directory of the layout from the store if it is empty there.
    pub fn end_layout_directory(&self, path: &Key) {
        let above = std::iter::successors(Some(path.clone()), |key| Some(key.parent()));
        let mut own = above.take_while(|key| !key.is_root() && self.is_layout_directory(key));
        // one that is not empty, or that is a group, stays
        while let Some(key) = own.next()
            && matches!(self.hierarchy.document_stats(&key), Ok(stats) if stats.is_empty())
            && self.hierarchy.store().remove_prefix(&key).is_ok()
        {}
    }

    /// Returns the file or directory of the layout at `name` in a directory.
    pub(super) fn layout_node(&self, directory: &Key, name: &str) -> Option<Node> {
        let laid_out = self.laid_out(KEPT)?;
        let path = directory.child(name).ok()?;
        if let Some((rule, _)) = laid_out.find(&path) {
            let (_, source) = laid_out.rules.get(rule)?;
            return Some(Node::LayoutFile(path, source.clone()));
        }
        laid_out
            .has_directory(&path)
            .then_some(Node::Directory(path))
    }

    /// Adds the names of the layout in a directory to those of the store.
    pub(super) fn with_layout_of(&self, directory: &Key, names: NameStream) -> NameStream {
        let Some(laid_out) = self.laid_out(KEPT) else {
            return names;
        };
        let directory = directory.clone();
        let mut next = (0, None);
        let own = {
            let laid_out = laid_out.clone();
            let directory = directory.clone();
            std::iter::from_fn(move || {
                let (name, is_directory) = laid_out.next_name(&directory, &mut next)?;
                Some(Ok(name_at(&directory, name, is_directory)))
            })
        };
        let others = names.filter(move |name| match name {
            Ok(name) => {
                let path = directory.join(&name.name);
                laid_out.find(&path).is_none() && !laid_out.has_directory(&path)
            }
            Err(_) => true,
        });
        Box::new(own.chain(others))
    }

    /// Returns the content of a file of the layout.
    ///
    /// # Errors
    ///
    /// ESTALE if there is no such file any more.
    pub(super) fn layout_file(&self, path: &Key, age: Duration) -> Result<Arc<Composite>> {
        let laid_out = self.laid_out(age).ok_or_else(Error::stale)?;
        let (rule, number) = laid_out.find(path).ok_or_else(Error::stale)?;
        let (pieces, _) = laid_out.rules.get(rule).ok_or_else(Error::stale)?;
        let file = pieces.file(&self.exported(), number, &self.headers.netcdf)?;
        file.counted().map(Arc::new)
    }

    /// Returns the attributes of a file of the layout. Those of all but the last along a dimension
    /// may be kept, since a store grows there.
    pub(super) fn layout_attributes(&self, node: &Node, path: &Key) -> Result<Attributes> {
        let laid_out = self.laid_out(KEPT).ok_or_else(Error::stale)?;
        let (rule, number) = laid_out.find(path).ok_or_else(Error::stale)?;
        let (pieces, _) = laid_out.rules.get(rule).ok_or_else(Error::stale)?;
        let class = pieces.class(number).map(|class| (rule, class));
        let known = class.as_ref().and_then(|class| {
            let known = lock(&laid_out.sizes).get(class).cloned();
            known.filter(|known| known.checked.elapsed() < KEPT)
        });
        let known = match known {
            Some(known) => known,
            None => match self.known_size(pieces, number, class.as_ref(), &laid_out) {
                Ok(known) => known,
                // a listing must not fail: the file shows as empty, and opening it reports the
                // error
                Err(e) if [Kind::System(libc::ENOMEM), Kind::Damaged].contains(&e.kind()) => {
                    let nothing = Some(Permissions::OWNER_ONLY);
                    return Ok(self.made(node, 0, 0, SystemTime::UNIX_EPOCH, nothing));
                }
                Err(e) => return Err(e),
            },
        };
        let blocks = known.own.div_ceil(512).max(1);
        let stat = &known.stat;
        Ok(Attributes {
            changed: stat.changed,
            lasting: class.is_some() && !pieces.may_grow(number),
            ..self.made(node, known.size, blocks, stat.modified, stat.permissions)
        })
    }

    /// Finds out what `stat` needs of a file.
    fn known_size(
        &self,
        pieces: &LayoutPieces,
        number: usize,
        class: Option<&(usize, PieceClass)>,
        laid_out: &LaidOut,
    ) -> Result<KnownSize> {
        let last = class.and_then(|class| lock(&laid_out.sizes).get(class).cloned());
        let known = match last {
            Some(last) => KnownSize {
                stat: self.of_sources(&last.sources)?,
                checked: Instant::now(),
                ..last
            },
            None => {
                let _once = self.hierarchy.read_once();
                let file = pieces.file(&self.exported(), number, &self.headers.netcdf)?;
                let own = file.parts().iter().filter(|part| part.content.is_own());
                KnownSize {
                    size: file.size(),
                    own: own.map(|part| part.len).sum(),
                    stat: self.of_sources(&file.sources)?,
                    sources: file.sources.into(),
                    checked: Instant::now(),
                }
            }
        };
        if let Some(class) = class {
            lock(&laid_out.sizes).put(class.clone(), known.clone());
        }
        Ok(known)
    }
}
