//! Permissions of nodes: a node grants no more than any of the stored files that it is made of.

use super::{Node, Tree};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::SystemTime;
use zarrfs_base::error::{Kind, Result};
use zarrfs_store::{Key, Permissions, Stat, both};

/// The users to whom a node's extended attributes are shown. The kernel lets readers of the node
/// read an attribute by its name, but lets all users list the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The owner of the mount, or root.
    Owner,
    /// The users that may read the node.
    Readers,
    /// All users.
    Everyone,
}

/// What the groups and arrays that a file is made from have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SourcesStat {
    /// Modification time of the latest of them.
    pub modified: SystemTime,
    /// When any of them or its attributes have changed last.
    pub changed: SystemTime,
    /// The permissions that all documents and chunks grant; `None` in a store without modes.
    pub permissions: Option<Permissions>,
    /// Hash of the versions of all documents and, in a store with modes, directories.
    pub versions: u64,
}

/// The groups and arrays whose documents a request has read, and their stats at that time.
pub(super) struct SeenSources<'a> {
    tree: &'a Tree,
    stats: RefCell<HashMap<Key, SourcesStat>>,
    /// Whether the store may have modes. In one without, directories have no times, and are not
    /// looked up.
    has_modes: Cell<bool>,
}

/// Maximum number of groups and arrays whose stats are kept: some 3 MB.
const MOST_SEEN: usize = 1 << 14;

impl SourcesStat {
    fn nothing() -> Self {
        SourcesStat {
            modified: SystemTime::UNIX_EPOCH,
            changed: SystemTime::UNIX_EPOCH,
            permissions: None,
            versions: 0,
        }
    }

    fn of(stat: &Stat) -> Self {
        let mut version = DefaultHasher::new();
        stat.version.hash(&mut version);
        SourcesStat {
            modified: stat.modified,
            changed: stat.changed(),
            permissions: stat.permissions,
            versions: version.finish(),
        }
    }

    fn and(self, other: SourcesStat) -> SourcesStat {
        let mut versions = DefaultHasher::new();
        [self.versions, other.versions].hash(&mut versions);
        SourcesStat {
            modified: self.modified.max(other.modified),
            changed: self.changed.max(other.changed),
            permissions: both(self.permissions, other.permissions),
            versions: versions.finish(),
        }
    }
}

impl<'a> SeenSources<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        SeenSources {
            tree,
            stats: RefCell::default(),
            has_modes: Cell::new(true),
        }
    }

    /// Records a group or array whose documents the request has just read.
    pub(super) fn see(&self, key: &Key) {
        let mut stats = self.stats.borrow_mut();
        if stats.len() < MOST_SEEN
            && !stats.contains_key(key)
            && let Ok(stat) = self.ask(key)
        {
            stats.insert(key.clone(), stat);
        }
    }

    fn ask(&self, key: &Key) -> Result<SourcesStat> {
        let hierarchy = &self.tree.hierarchy;
        let mut own = SourcesStat::nothing();
        if self.has_modes.get() {
            let directory = self.tree.stat(key)?;
            self.has_modes.set(directory.permissions.is_some());
            own = SourcesStat {
                permissions: directory.permissions.map(Permissions::inside),
                ..SourcesStat::of(&directory)
            };
        }
        if let Some(array) = hierarchy.cached_array(key) {
            own.modified = own.modified.max(array.freshness().last_write());
        }
        match hierarchy.document_stats(key) {
            // a link out of the store grants nothing
            Err(e) if self.has_modes.get() && e.kind() != Kind::System(libc::EIO) => {
                own.permissions = both(own.permissions, Some(Permissions::OWNER_ONLY));
            }
            documents => {
                for document in documents? {
                    own = own.and(SourcesStat::of(&document));
                }
            }
        }
        own.changed = own.changed.max(own.modified);
        Ok(own)
    }
}

/// Returns the permissions of an array's flat bytes. Its document and its directory stand for its
/// chunks, because `stat` must not take longer for a larger array.
pub(super) fn of_flat(document: Option<&Stat>, directory: &Stat) -> Option<Permissions> {
    both(
        document.and_then(|stat| stat.permissions),
        directory.permissions.map(Permissions::inside),
    )
}

impl Tree {
    fn permissions(&self, key: &Key) -> Result<Option<Permissions>> {
        Ok(self.find_stat(key)?.and_then(|stat| stat.permissions))
    }

    /// Returns the permissions of a document. A document without a stat, such as a link out of the
    /// store, grants nothing.
    fn permissions_of_document(&self, key: &Key) -> Result<Option<Permissions>> {
        match self.permissions(key) {
            Err(e) if e.kind() != Kind::System(libc::EIO) => Ok(Some(Permissions::OWNER_ONLY)),
            found => found,
        }
    }

    /// Returns what the groups and arrays at these keys have in common.
    pub(super) fn of_sources(&self, keys: &[Key]) -> Result<SourcesStat> {
        self.of_seen_sources(keys, &SeenSources::new(self))
    }

    /// Returns what the groups and arrays at these keys have in common, without asking again for
    /// those that were `seen`.
    pub(super) fn of_seen_sources(&self, keys: &[Key], seen: &SeenSources) -> Result<SourcesStat> {
        let mut common = SourcesStat::nothing();
        for key in keys {
            let known = seen.stats.borrow().get(key).copied();
            let own = match known {
                Some(known) => known,
                None => seen.ask(key)?,
            };
            common = common.and(own);
        }
        Ok(common)
    }

    /// Returns whether `audience` may read a document whose content is part of the extended
    /// attributes of `node`.
    pub(super) fn may_tell(&self, audience: Audience, node: &Node, document: &Key) -> Result<bool> {
        let Some(of_document) = self.permissions_of_document(document)? else {
            return Ok(true);
        };
        let readers = match (audience, node.chunk(), node.key()) {
            (Audience::Owner, ..) => return Ok(true),
            (Audience::Everyone, ..) => Some(Permissions::EVERYONE),
            // headers grant no more than the documents
            (Audience::Readers, ..) if node.is_composite() => return Ok(true),
            (Audience::Readers, Some((key, name)), _) => {
                let (array, chunk) = self.chunk(key, name)?;
                array.stat_chunk(chunk)?.and_then(|stat| stat.permissions)
            }
            (Audience::Readers, None, Some(key)) => self.permissions(key)?,
            (Audience::Readers, None, None) => None,
        };
        Ok(readers.is_none_or(|readers| readers.readers_may_read(of_document)))
    }
}
