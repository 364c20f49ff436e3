//! Classifies the keys below an array: chunks, or keys that should not be there. The store is
//! listed once, as a stream with one open listing for each level of a chunk key.

use super::FindingKind;
use super::documents::BESIDE_V3;
use super::names::leftover;
use crate::array::{Array, is_chunk_like};
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_format::chunk_key::{KeyEncoding, parse_index};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{
    Separator, V1_ATTRS, V1_META, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA,
};
use zarrfs_store::{Entry, EntryKind, Key, Listing, Store};

/// A key below an array.
pub(super) enum ArrayKey {
    /// A stored chunk of the grid.
    Chunk(ChunkId),
    /// The number of a stored object that holds chunks of the grid.
    Shard(u64),
    /// A key that should not be there: the kind of finding, the key, and its description.
    Stray(FindingKind, Key, String),
    /// A level that cannot be listed.
    Failed(Key, Error),
}

/// An iterator over the keys below an array, without its metadata documents.
pub(super) struct ArrayKeys<'a> {
    array: &'a Arc<Array>,
    store: &'a dyn Store,
    /// Open listings, outermost first, each with its path below the array.
    levels: Vec<(Listing, String)>,
    /// A key to return next.
    queued: Option<ArrayKey>,
}

impl<'a> ArrayKeys<'a> {
    /// Begins to list the keys below `array`, which is in `store`.
    pub fn of(array: &'a Arc<Array>, store: &'a dyn Store) -> Result<Self> {
        Ok(ArrayKeys {
            array,
            store,
            levels: vec![(store.list(array.key())?, String::new())],
            queued: None,
        })
    }

    /// Classifies the entry at `path` below the array. Returns `None` for a document, and for a
    /// level of chunk keys, which is listed next.
    fn classify(&mut self, path: String, kind: EntryKind) -> Option<ArrayKey> {
        let key = self.array.key().join(&path);
        let nested = path.contains('/');
        if !nested && self.is_own_document(&path) {
            return None;
        }
        if let (EntryKind::Value, Some(what)) = (kind, leftover(key.name())) {
            return stray(FindingKind::Leftover, key, what);
        }
        let chunk = self.array.chunk_stored_at(&path);
        match (kind, chunk) {
            (EntryKind::Value, Some(chunk)) => Some(match self.array.shard_of(chunk) {
                None => ArrayKey::Chunk(chunk),
                Some(object) => ArrayKey::Shard(object),
            }),
            (EntryKind::Value, None) => self.stray_value(key, &path),
            (EntryKind::Prefix, _) if self.is_level(&path) => self.enter(key, path),
            (_, Some(_)) => stray(FindingKind::Chunk, key, "is not a regular file"),
            (EntryKind::Prefix, None) => self.stray_prefix(key),
            (EntryKind::Other, None) => stray(
                FindingKind::NotAFile,
                key,
                "no regular file, or a link out of the store",
            ),
        }
    }

    fn is_own_document(&self, name: &str) -> bool {
        let v1 = self.array.metadata().zarr_format == 1 && [V1_META, V1_ATTRS].contains(&name);
        let own: &[&str] = if self.array.metadata().zarr_format == 3 {
            &[ZARR_JSON]
        } else {
            &[ZARRAY, ZATTRS]
        };
        v1 || own.contains(&name)
    }

    /// Describes a value that is not a chunk.
    fn stray_value(&self, key: Key, path: &str) -> Option<ArrayKey> {
        let objects = self.array.object_grid();
        if let Some(what) = self.other_encoding(path) {
            return stray(FindingKind::Separator, key, what);
        }
        if self.is_like_chunk(path) {
            let counts = shown(objects.counts());
            let what = format!("named like a chunk, but the grid has {counts}");
            return stray(FindingKind::OutsideGrid, key, what);
        }
        match path {
            ZARRAY | ZATTRS => stray(FindingKind::MixedFormats, key, BESIDE_V3),
            ZGROUP | ZMETADATA => stray(
                FindingKind::Nested,
                key,
                "a document of a group, but this is an array",
            ),
            _ => stray(FindingKind::Extra, key, "a plain file"),
        }
    }

    /// Describes a key that would be that of a chunk, or of a shard, under another key encoding.
    fn other_encoding(&self, path: &str) -> Option<String> {
        let own = self.array.key_encoding();
        let is_v3 = self.array.metadata().zarr_format == 3;
        let prefixes = [own.has_prefix, !own.has_prefix]
            .into_iter()
            .take(if is_v3 { 2 } else { 1 });
        let separators = [Separator::Dot, Separator::Slash];
        let mut all = prefixes.flat_map(|has_prefix| {
            separators.map(|separator| KeyEncoding {
                has_prefix,
                separator,
            })
        });
        let objects = self.array.object_grid();
        let found = all.find(|other| objects.parse_stored_key(path, *other).is_some())?;
        Some(if found.has_prefix == own.has_prefix {
            format!(
                "a chunk under {:?}, where the array's separator is {:?}",
                found.separator.as_char(),
                own.separator.as_char()
            )
        } else if own.has_prefix {
            "a chunk without a prefix, where the array's keys begin with \"c\"".to_string()
        } else {
            "a chunk under \"c\", where the array's keys have no prefix".to_string()
        })
    }

    /// Returns whether a path looks like the key of a chunk or of a shard, such as one of a former
    /// shape.
    fn is_like_chunk(&self, path: &str) -> bool {
        let path = if self.array.key_encoding().has_prefix {
            path.strip_prefix('c')
                .and_then(|rest| rest.strip_prefix(['.', '/']))
        } else {
            Some(path)
        };
        path.is_some_and(|path| path.split('/').all(is_chunk_like))
    }

    fn stray_prefix(&self, key: Key) -> Option<ArrayKey> {
        let is_node = [ZARRAY, ZGROUP, ZARR_JSON].iter().any(|name| {
            let stat = self.store.stat(&key.join(name));
            matches!(stat, Ok(Some(stat)) if stat.kind == EntryKind::Value)
        });
        if is_node {
            stray(FindingKind::Nested, key, "a group or array inside an array")
        } else {
            stray(FindingKind::Extra, key, "a directory")
        }
    }

    /// Returns whether chunk keys may continue below `path`, with either separator.
    fn is_level(&self, path: &str) -> bool {
        let has_prefix = self.array.metadata().has_key_prefix();
        if has_prefix && path == "c" {
            return true;
        }
        let path = if has_prefix {
            path.strip_prefix("c/").unwrap_or_default()
        } else {
            path
        };
        path.split('/').all(|name| parse_index(name).is_some())
            && path.split('/').count() < self.array.grid().dimensions()
    }

    fn enter(&mut self, key: Key, path: String) -> Option<ArrayKey> {
        match self.store.list(&key) {
            Ok(below) => {
                self.levels.push((below, path));
                None
            }
            // deleted since it was listed
            Err(e) if e.kind() == Kind::NotFound => None,
            Err(e) => Some(ArrayKey::Failed(key, e)),
        }
    }
}

impl Iterator for ArrayKeys<'_> {
    type Item = ArrayKey;

    fn next(&mut self) -> Option<ArrayKey> {
        loop {
            if let Some(queued) = self.queued.take() {
                return Some(queued);
            }
            let (level, path) = self.levels.last_mut()?;
            match level.next() {
                None => drop(self.levels.pop()),
                Some(Err(e)) => {
                    let key = self
                        .array
                        .key()
                        .join_key(&Key::normalize(path).unwrap_or_default());
                    self.levels.pop();
                    return Some(ArrayKey::Failed(key, e));
                }
                Some(Ok(Entry {
                    name,
                    kind,
                    hides_prefix,
                    ..
                })) => {
                    let path = if path.is_empty() {
                        name
                    } else {
                        format!("{path}/{name}")
                    };
                    if hides_prefix {
                        let key = self.array.key().join(&path);
                        let is_level = self.is_level(&path);
                        self.queued = if is_level {
                            self.enter(key, path.clone())
                        } else {
                            self.stray_prefix(key)
                        };
                    }
                    if let Some(name) = self.classify(path, kind) {
                        return Some(name);
                    }
                }
            }
        }
    }
}

/// Returns a key that should not be there.
fn stray(kind: FindingKind, key: Key, what: impl Into<String>) -> Option<ArrayKey> {
    Some(ArrayKey::Stray(kind, key, what.into()))
}

/// Spells the number of chunks along each dimension: `3 x 4`.
fn shown(counts: &[u64]) -> String {
    match counts {
        [] => "1".to_string(),
        counts => counts
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(" x "),
    }
}
