//! Directories of stores: where on a path a store begins. The name decides, so that nothing is read
//! to find out: `NAME.zarr` is a store, `NAME.zarr.zip` and `NAME.ozx` are in archives,
//! `NAME.icechunk` is in a repository, and a store inside a store is a part of it.

use super::{DOCUMENTS, Hierarchy};
use zarrfs_base::error::Result;
use zarrfs_format::metadata::{V1_ATTRS, V1_META};
use zarrfs_store::{EntryKind, Key};

/// Ending of the names of stores in directories.
const DIRECTORY: &str = ".zarr";

/// Endings of the names of stores in archives.
const ARCHIVES: [&str; 2] = [".zarr.zip", ".ozx"];

/// Ending of the names of stores in repositories.
const REPOSITORY: &str = ".icechunk";

/// Returns whether the name belongs to a store in an archive.
pub(super) fn is_archive_name(name: &str) -> bool {
    ARCHIVES.iter().any(|ending| has_ending(name, ending))
}

fn has_ending(name: &str, ending: &str) -> bool {
    let end = name
        .len()
        .checked_sub(ending.len())
        .filter(|len| *len > 0)
        .and_then(|len| name.get(len..));
    end.is_some_and(|end| end.eq_ignore_ascii_case(ending))
}

/// Returns the root of the store that holds `key`, and whether it is an archive or a repository;
/// `None` outside all stores.
fn store_of(key: &Key) -> Option<(Key, bool)> {
    let mut end = 0;
    for name in key.as_str().split('/') {
        end += name.len();
        let is_nested = is_archive_name(name) || has_ending(name, REPOSITORY);
        if is_nested || has_ending(name, DIRECTORY) {
            return Some((Key::root().join(&key.as_str()[..end]), is_nested));
        }
        end += 1;
    }
    None
}

/// Returns whether `key` is outside all stores.
pub(super) fn is_outside(key: &Key) -> bool {
    store_of(key).is_none()
}

/// Splits a key at or below an archive or a repository: returns its key, and the rest.
pub(super) fn split_nested(key: &Key) -> Option<(Key, Key)> {
    let (root, _) = store_of(key).filter(|(_, is_nested)| *is_nested)?;
    let inside = key.relative_to(&root)?;
    Some((root, inside))
}

impl Hierarchy {
    /// Declares that the store is a directory of stores. Outside of them no documents are made up,
    /// and what belongs to a store, such as its consolidated metadata and the coordinates of its
    /// arrays, ends at its root.
    pub fn holding_stores(self) -> Self {
        Hierarchy {
            holds_stores: true,
            ..self
        }
    }

    /// Returns the root of the store that holds the node at `key`; `None` outside all stores.
    pub(super) fn store_root(&self, key: &Key) -> Option<Key> {
        if self.holds_stores {
            store_of(key).map(|(root, _)| root)
        } else {
            Some(Key::root())
        }
    }

    /// Returns whether `key` is the root of a store.
    pub(super) fn is_store_root(&self, key: &Key) -> bool {
        if self.holds_stores {
            self.store_root(key).as_ref() == Some(key)
        } else {
            key.is_root()
        }
    }

    /// Returns whether the node at `key` shows no documents but stored ones: in a directory of
    /// stores, everything outside them and their roots. A program that looks for a store to create
    /// must not find one.
    pub(super) fn has_stored_documents_alone(&self, key: &Key) -> bool {
        self.holds_stores && self.store_root(key).is_none_or(|root| root == *key)
    }

    /// Returns whether the node at `key` is in a store, or has documents like one.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn is_in_store(&self, key: &Key) -> Result<bool> {
        if self.store_root(key).is_some() {
            return Ok(true);
        }
        for name in DOCUMENTS {
            if ![V1_META, V1_ATTRS].contains(&name)
                && self
                    .stat(&key.join(name))?
                    .is_some_and(|stat| stat.kind == EntryKind::Value)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks that `key` is not in an archive or a repository of a directory of stores, whose other
    /// stores can be written.
    ///
    /// # Errors
    ///
    /// EROFS if it is.
    pub fn check_not_archived(&self, key: &Key) -> Result<()> {
        if self.holds_stores && split_nested(key).is_some() {
            self.store.check_writable(key)
        } else {
            Ok(())
        }
    }

    /// Returns `key` and all keys above it, up to the root of its store.
    pub fn upwards(&self, key: &Key) -> impl Iterator<Item = Key> + use<> {
        let root = self.store_root(key).unwrap_or_default();
        std::iter::successors(Some(key.clone()), move |key| {
            (*key != root && !key.is_root()).then(|| key.parent())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_a_store_on_a_path_decides() {
        let of = |key: &str| {
            store_of(&Key::root().join(key)).map(|(root, is_nested)| (root.to_string(), is_nested))
        };
        let found = |root: &str, is_nested| Some((root.to_string(), is_nested));
        assert_eq!(of("a/b.zarr/c.zarr.zip/d"), found("/a/b.zarr", false));
        assert_eq!(of("b.ZARR.Zip"), found("/b.ZARR.Zip", true));
        assert_eq!(of("a/b.ozx/c"), found("/a/b.ozx", true));
        assert_eq!(of("a/r.icechunk/b.zarr"), found("/a/r.icechunk", true));
        assert_eq!(
            of("x/\u{e9}.zarr.zip/a/0"),
            found("/x/\u{e9}.zarr.zip", true)
        );
        for outside in [
            "",
            "a",
            "a/.zarr/b",
            ".zarr.zip",
            ".ozx",
            "a.zip",
            "zarr",
            "\u{1f600}arr",
            "a.zarr.gz",
        ] {
            assert_eq!(of(outside), None, "{outside}");
        }
        let split = |key: &str| {
            split_nested(&Key::root().join(key)).map(|(a, b)| (a.to_string(), b.to_string()))
        };
        assert_eq!(
            split("s/b.zarr.zip"),
            Some(("/s/b.zarr.zip".into(), "/".into()))
        );
        assert_eq!(
            split("s/b.zarr.zip/g/x"),
            Some(("/s/b.zarr.zip".into(), "/g/x".into()))
        );
        assert_eq!(split("b.zarr/c.zarr.zip"), None);
    }
}
