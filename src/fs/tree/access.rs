//! Permissions of nodes: a node grants no more than any of the stored files that it is made of.

use super::{Node, Tree};
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

    /// Returns what the groups and arrays at these keys have in common. In a store without modes,
    /// directories have no times, and are not looked up.
    pub(super) fn of_sources(&self, keys: &[Key]) -> Result<SourcesStat> {
        let mut modified = SystemTime::UNIX_EPOCH;
        let mut changed = SystemTime::UNIX_EPOCH;
        let mut granted = None;
        let mut versions = DefaultHasher::new();
        let mut has_modes = true;
        for key in keys {
            if has_modes {
                let directory = self.stat(key)?;
                modified = modified.max(directory.modified);
                changed = changed.max(directory.changed());
                directory.version.hash(&mut versions);
                granted = both(granted, directory.permissions.map(Permissions::inside));
                has_modes = directory.permissions.is_some();
            }
            if let Some(array) = self.hierarchy.cached_array(key) {
                modified = modified.max(array.freshness().last_write());
            }
            match self.hierarchy.document_stats(key) {
                // a link out of the store grants nothing
                Err(e) if has_modes && e.kind() != Kind::System(libc::EIO) => {
                    granted = both(granted, Some(Permissions::OWNER_ONLY));
                }
                documents => {
                    for document in documents? {
                        modified = modified.max(document.modified);
                        changed = changed.max(document.changed());
                        document.version.hash(&mut versions);
                        granted = both(granted, document.permissions);
                    }
                }
            }
        }
        Ok(SourcesStat {
            modified,
            changed: changed.max(modified),
            permissions: granted,
            versions: versions.finish(),
        })
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
