//! The keys of a store below a prefix, as a store of their own. This module must not know what the
//! prefix is.

use super::{
    ByteRange, Capabilities, FileAttribute, Hint, Key, KeyLock, Listing, LocalFiles, NameChange,
    Permissions, Readable, Replaces, SideStore, Space, Stat, Store, StoreExt, ValuePiece, Version,
};
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;
use zarrfs_base::error::Result;

/// A store whose root is a prefix of another one.
pub struct PrefixStore {
    below: Arc<dyn Store>,
    prefix: Key,
}

impl PrefixStore {
    /// Returns the store of the keys below `prefix`: for the root, the same store.
    pub fn at(below: Arc<dyn Store>, prefix: Key) -> Arc<dyn Store> {
        if prefix.is_root() {
            below
        } else {
            Arc::new(PrefixStore { below, prefix })
        }
    }

    fn full(&self, key: &Key) -> Key {
        self.prefix.join_key(key)
    }
}

impl Readable for PrefixStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.below.read(&self.full(key), range, value)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.below.stat(&self.full(key))
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        self.below
            .stat_many(&mut keys.map(|key| self.full(&key)), each);
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.below.list(&self.full(prefix))
    }

    fn lists_nodes(&self) -> bool {
        self.below.lists_nodes()
    }

    fn refers_to_files(&self, key: &Key) -> bool {
        self.below.refers_to_files(&self.full(key))
    }

    fn hint(&self, hint: Hint) {
        match hint {
            Hint::WholeStore => self.below.hint(Hint::Below(&self.prefix)),
            Hint::Below(prefix) => self.below.hint(Hint::Below(&self.full(prefix))),
            Hint::Level(level) => self.below.hint(Hint::Level(&self.full(level))),
            Hint::Nodes(prefixes) => {
                let full: Vec<Key> = prefixes.iter().map(|key| self.full(key)).collect();
                self.below.hint(Hint::Nodes(&full));
            }
            Hint::Forget(prefix) => self.below.hint(Hint::Forget(&self.full(prefix))),
            Hint::ForgetDocuments(prefix) => {
                self.below.hint(Hint::ForgetDocuments(&self.full(prefix)));
            }
        }
    }

    /// Passes on no snapshots, since they are snapshots of the whole repository.
    fn capabilities(&self) -> Capabilities<'_> {
        let below = self.below.capabilities();
        Capabilities {
            local: below.local.map(|_| self as &dyn LocalFiles),
            side: below.side.map(|_| self as &dyn SideStore),
            snapshots: None,
            ..below
        }
    }

    fn location(&self) -> String {
        format!(
            "{}{}",
            self.below.location().trim_end_matches('/'),
            self.prefix
        )
    }
}

impl Store for PrefixStore {
    fn check_writable(&self, prefix: &Key) -> Result<()> {
        self.below.check_writable(&self.full(prefix))
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        self.below.put_pieces(&self.full(key), pieces, replaces)
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        match change {
            NameChange::Delete(key) => self.below.delete(&self.full(key)),
            NameChange::MakePrefix(key) => {
                self.below.change(NameChange::MakePrefix(&self.full(key)))
            }
            NameChange::RemovePrefix(key) => {
                self.below.change(NameChange::RemovePrefix(&self.full(key)))
            }
            NameChange::Rename(from, to) => {
                let renamed = NameChange::Rename(&self.full(from), &self.full(to));
                self.below.change(renamed)
            }
        }
    }

    fn sync(&self) -> Result<()> {
        self.below.sync()
    }
}

impl LocalFiles for PrefixStore {
    fn open_file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.below.file(&self.full(key))
    }

    fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.below.writable_file(&self.full(key), create, exclusive)
    }

    fn set_attribute(&self, key: &Key, attribute: FileAttribute) -> Result<Option<Permissions>> {
        self.below.set_file_attribute(&self.full(key), attribute)
    }

    fn lock_key(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.below.lock(&self.full(key), since)
    }

    fn statvfs(&self) -> Result<Option<Space>> {
        self.below.space()
    }

    fn exchange(&self, one: &Key, other: &Key) -> Result<()> {
        self.below.exchange(&self.full(one), &self.full(other))
    }
}

impl SideStore for PrefixStore {
    fn derived(&self, key: &Key, name: &str, bytes: &mut Vec<u8>) -> Option<String> {
        let side = self.below.capabilities().side?;
        side.derived(&self.full(key), name, bytes)
    }

    fn keep_derived(&self, key: &Key, name: &str, version: &Version, bytes: &[u8]) {
        if let Some(side) = self.below.capabilities().side {
            side.keep_derived(&self.full(key), name, version, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DirectoryStore;

    #[test]
    fn a_group_is_put_together_from_pieces_and_opened_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let below = Arc::new(DirectoryStore::open(folder.path()).unwrap().without_fsync());
        let group = PrefixStore::at(below, Key::root().join("g"));
        let shard = Key::root().join("a").join("0");
        let pieces = [ValuePiece::Bytes(b"ab"), ValuePiece::Bytes(b"c")];
        group
            .put_pieces(&shard, &pieces, Replaces::Anything)
            .unwrap()
            .unwrap();
        assert_eq!(std::fs::read(folder.path().join("g/a/0")).unwrap(), b"abc");
        assert!(
            group.file(&shard).unwrap().is_some()
                && group.writable_file(&shard, false, false).is_ok()
        );
    }
}
