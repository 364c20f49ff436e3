//! What the names below an array are: chunks, documents, or something that should not be there. The store is listed once,
//! streamed, with one open listing for each level of a chunk key.

use super::FindingKind;
use crate::array::hierarchy::{OWN, REMOVED, V3_DOCUMENT};
use crate::array::{Array, is_chunk_like};
use crate::error::{Error, Kind, Result};
use crate::store::{Entry, EntryKind, Key, Listing, Store};
use crate::zarr::grid::{ChunkId, parse_index};
use crate::zarr::metadata::{Separator, V1_ATTRS, V1_META, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use std::sync::Arc;

/// One name below an array.
pub(super) enum Name {
    /// A stored chunk of the grid.
    Chunk(ChunkId),
    /// Something else, where, and what it is.
    Stray(FindingKind, Key, String),
    /// A level that can't be listed.
    Failed(Key, Error),
}

/// Iterator over what stands below an array; its metadata documents are left out.
pub(super) struct Names<'a> {
    array: &'a Arc<Array>,
    store: &'a dyn Store,
    /// Listings, outermost first, each with the path below the array that it is of.
    levels: Vec<(Listing, String)>,
}

impl<'a> Names<'a> {
    /// The names below `array`, which is in `store`.
    pub fn of(array: &'a Arc<Array>, store: &'a dyn Store) -> Result<Self> {
        Ok(Names { array, store, levels: vec![(store.list(array.key())?, String::new())] })
    }

    /// What an entry at `path` below the array is; None of a document, and of a level of chunk keys that comes next.
    fn name(&mut self, path: String, kind: EntryKind) -> Option<Name> {
        let key = self.array.key().join(&path);
        let stray = |fault, what: &str| Some(Name::Stray(fault, key.clone(), what.to_string()));
        let nested = path.contains('/');
        if !nested && self.is_own_document(&path) {
            return None;
        }
        if let (EntryKind::Value, Some(what)) = (kind, leftover(key.name())) {
            return stray(FindingKind::Leftover, what);
        }
        let chunk = self.array.grid().parse_chunk_key(&path, self.array.separator());
        match (kind, chunk) {
            (EntryKind::Value, Some(chunk)) => Some(Name::Chunk(chunk)),
            (EntryKind::Value, None) => self.stray_value(key, &path),
            (EntryKind::Prefix, _) if self.is_level(&path) => self.enter(key, path),
            (_, Some(_)) => stray(FindingKind::Chunk, "is not a regular file"),
            (EntryKind::Prefix, None) => self.stray_prefix(key),
            (EntryKind::Other, None) => stray(FindingKind::NotAFile, "no regular file, or a link out of the store"),
        }
    }

    fn is_own_document(&self, name: &str) -> bool {
        let v1 = self.array.metadata().zarr_format == 1 && [V1_META, V1_ATTRS].contains(&name);
        v1 || [ZARRAY, ZATTRS].contains(&name)
    }

    /// A value that is no chunk.
    fn stray_value(&self, key: Key, path: &str) -> Option<Name> {
        let grid = self.array.grid();
        let (own, other) = match self.array.separator() {
            Separator::Dot => (Separator::Dot, Separator::Slash),
            Separator::Slash => (Separator::Slash, Separator::Dot),
        };
        let (fault, what) = if grid.parse_chunk_key(path, other).is_some() {
            let [own, other] = [own, other].map(Separator::as_char);
            (FindingKind::Separator, format!("a chunk under {other:?}, where the array's separator is {own:?}"))
        } else if path.split('/').all(is_chunk_like) {
            (FindingKind::OutsideGrid, format!("named like a chunk, but the grid has {}", shown(grid.counts())))
        } else if path == V3_DOCUMENT {
            (FindingKind::V3, "metadata of Zarr v3 beside that of v2".to_string())
        } else if [ZGROUP, ZMETADATA].contains(&path) {
            (FindingKind::Nested, "a document of a group, but this is an array".to_string())
        } else {
            (FindingKind::Extra, "a plain file".to_string())
        };
        Some(Name::Stray(fault, key, what))
    }

    fn stray_prefix(&self, key: Key) -> Option<Name> {
        let is_place = [ZARRAY, ZGROUP, V3_DOCUMENT].iter().any(|name| {
            let stat = self.store.stat(&key.join(name));
            matches!(stat, Ok(Some(stat)) if stat.kind == EntryKind::Value)
        });
        Some(match is_place {
            true => Name::Stray(FindingKind::Nested, key, "a group or array inside an array".to_string()),
            false => Name::Stray(FindingKind::Extra, key, "a directory".to_string()),
        })
    }

    /// True if chunk keys may go on below `path`, whichever separator the array has.
    fn is_level(&self, path: &str) -> bool {
        path.split('/').all(|name| parse_index(name).is_some())
            && path.split('/').count() < self.array.grid().dimensions()
    }

    fn enter(&mut self, key: Key, path: String) -> Option<Name> {
        match self.store.list(&key) {
            Ok(below) => {
                self.levels.push((below, path));
                None
            }
            // it went away since it was listed
            Err(e) if e.kind() == Kind::NotFound => None,
            Err(e) => Some(Name::Failed(key, e)),
        }
    }
}

impl Iterator for Names<'_> {
    type Item = Name;

    fn next(&mut self) -> Option<Name> {
        loop {
            let (level, path) = self.levels.last_mut()?;
            match level.next() {
                None => drop(self.levels.pop()),
                Some(Err(e)) => {
                    let key = self.array.key().join_key(&Key::normalize(path).unwrap_or_default());
                    self.levels.pop();
                    return Some(Name::Failed(key, e));
                }
                Some(Ok(Entry { name, kind, .. })) => {
                    let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                    if let Some(name) = self.name(path, kind) {
                        return Some(name);
                    }
                }
            }
        }
    }
}

/// True for the metadata documents of Zarr v2.
pub(super) fn is_document(name: &str) -> bool {
    [ZARRAY, ZGROUP, ZATTRS, ZMETADATA].contains(&name)
}

/// What is left under names that writers use until a value is whole: ours, those of zarr-python (`KEY.HEX.partial`) and of
/// TensorStore (`KEY.__lock`); None of other names.
pub(super) fn leftover(name: &str) -> Option<&'static str> {
    match name {
        REMOVED => Some("the .zarray of an array that was removed"),
        _ if name.starts_with(OWN) => Some("a value that zarrfs has not finished"),
        _ if name.ends_with(".partial") || name.contains(".__partial") => Some("a value that was not finished"),
        _ if name.ends_with(".__lock") => Some("a value, or a lock, that TensorStore has left"),
        _ => None,
    }
}

/// The chunks of a grid along each dimension: `3 x 4`.
fn shown(counts: &[u64]) -> String {
    match counts {
        [] => "1".to_string(),
        counts => counts.iter().map(u64::to_string).collect::<Vec<_>>().join(" x "),
    }
}
