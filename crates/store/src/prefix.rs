//! The keys of a store below a prefix, as a store of their own. This module must not know what the
//! prefix is.

use super::{
    FileAttribute, Hint, Key, KeyLock, Listing, Permissions, Readable, Replaces, Space, Stat,
    Store, ValuePiece, Version,
};
use std::fs::File;
use std::ops::Range;
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
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        self.below.get(&self.full(key), limit, value)
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.below.get_range(&self.full(key), range, value)
    }

    fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.below.get_end(&self.full(key), len, value)
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

    fn hint(&self, hint: Hint) {
        match hint {
            Hint::WholeStore => self.below.hint(Hint::Below(&self.prefix)),
            Hint::Below(prefix) => self.below.hint(Hint::Below(&self.full(prefix))),
            Hint::Level(level) => self.below.hint(Hint::Level(&self.full(level))),
            Hint::Nodes(prefixes) => {
                let full: Vec<Key> = prefixes.iter().map(|key| self.full(key)).collect();
                self.below.hint(Hint::Nodes(&full));
            }
        }
    }

    fn derived(&self, key: &Key, name: &str, bytes: &mut Vec<u8>) -> Option<String> {
        self.below.derived(&self.full(key), name, bytes)
    }

    fn keep_derived(&self, key: &Key, name: &str, version: &Version, bytes: &[u8]) {
        self.below
            .keep_derived(&self.full(key), name, version, bytes);
    }

    fn forget(&self, prefix: &Key) {
        self.below.forget(&self.full(prefix));
    }

    fn file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.below.file(&self.full(key))
    }

    fn location(&self) -> String {
        format!(
            "{}{}",
            self.below.location().trim_end_matches('/'),
            self.prefix
        )
    }

    fn refers_to_files(&self, key: &Key) -> bool {
        self.below.refers_to_files(&self.full(key))
    }

    fn lists_all(&self) -> bool {
        self.below.lists_all()
    }

    fn lists_nodes(&self) -> bool {
        self.below.lists_nodes()
    }

    fn concurrency(&self) -> usize {
        self.below.concurrency()
    }
}

impl Store for PrefixStore {
    fn space(&self) -> Result<Option<Space>> {
        self.below.space()
    }

    fn is_writable(&self) -> bool {
        self.below.is_writable()
    }

    fn sync(&self) -> Result<()> {
        self.below.sync()
    }

    fn check_writable(&self, prefix: &Key) -> Result<()> {
        self.below.check_writable(&self.full(prefix))
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        self.below.put_if(&self.full(key), value, replaces)
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        self.below.put_pieces(&self.full(key), pieces, replaces)
    }

    fn set_file_attribute(
        &self,
        key: &Key,
        attribute: FileAttribute,
    ) -> Result<Option<Permissions>> {
        self.below.set_file_attribute(&self.full(key), attribute)
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        self.below.delete(&self.full(key))
    }

    fn lock(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.below.lock(&self.full(key), since)
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        self.below.make_prefix(&self.full(key))
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        self.below.remove_prefix(&self.full(key))
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        self.below.rename(&self.full(from), &self.full(to))
    }

    fn writable_file(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.below.writable_file(&self.full(key), create, exclusive)
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
