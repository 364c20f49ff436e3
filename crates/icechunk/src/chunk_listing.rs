//! The names of chunks one level below an array or below a prefix of its chunks, manifest by
//! manifest.

use super::manifest::IceManifest;
use super::manifest_tree::ManifestSearch;
use super::manifests::IceManifests;
use super::snapshot::IceArray;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_base::memory::Grant;
use zarrfs_store::{Entry, EntryKind};

/// Memory of a name that was listed, in bytes: an entry of a set, half of which may be empty.
const LISTED: usize = 16;

/// An iterator over names.
pub(super) struct ChunkListing {
    manifests: Arc<IceManifests>,
    array: Arc<IceArray>,
    /// The name that all chunks share, if it is the next one.
    single: Option<Entry>,
    /// The beginning of the places of the chunks.
    begin: Vec<u32>,
    /// The manifests that are left; `None` if none has to be read.
    search: Option<ManifestSearch>,
    /// The references that are left in a manifest.
    current: Option<(Arc<IceManifest>, Range<usize>)>,
    /// The prefixes that were listed, if several manifests may have chunks in one.
    listed: HashSet<u32>,
    memory: Grant,
}

impl ChunkListing {
    /// Lists what lies in the prefix of the chunks whose places begin with `begin`; `None` stands
    /// for the array itself.
    pub fn new(
        manifests: Arc<IceManifests>,
        array: Arc<IceArray>,
        begin: Option<Vec<u32>>,
    ) -> Self {
        let is_array = begin.is_none();
        let begin = begin.unwrap_or_default();
        let mut listing = ChunkListing {
            manifests,
            single: None,
            search: Some(array.manifests.search(begin.clone())),
            current: None,
            listed: HashSet::new(),
            memory: Grant::default(),
            begin,
            array,
        };
        if is_array
            && let Some((name, is_chunk)) =
                listing.array.encoding.single_name(listing.array.dimensions)
        {
            let kind = if is_chunk {
                EntryKind::Value
            } else {
                EntryKind::Prefix
            };
            let has_any = !listing.array.manifests.is_empty();
            listing.single = has_any.then(|| Entry::new(name, kind));
            listing.search = None;
        }
        listing
    }

    /// Returns the next name in the current manifest.
    fn next_in_manifest(&mut self) -> Result<Option<Entry>> {
        let Some((manifest, left)) = &mut self.current else {
            return Ok(None);
        };
        let node = &self.array.node;
        let depth = self.begin.len();
        while left.start < left.end {
            let place = manifest.index(node, left.start)?;
            let (name, is_chunk) = self.array.encoding.name(&place, depth);
            if is_chunk {
                left.start += 1;
                return Ok(Some(Entry::new(name, EntryKind::Value)));
            }
            let shared = place.get(..=depth).unwrap_or_default();
            left.start = manifest
                .after(node, left.clone(), shared)?
                .max(left.start + 1);
            let number = shared.last().copied().unwrap_or_default();
            if self.array.manifests.len() > 1 {
                self.memory.grow(LISTED)?;
                if !self.listed.insert(number) {
                    continue;
                }
            }
            return Ok(Some(Entry::new(name, EntryKind::Prefix)));
        }
        Ok(None)
    }

    /// Begins the next manifest. Returns `false` after the last one.
    fn next_manifest(&mut self) -> Result<bool> {
        self.current = None;
        let Some(search) = &mut self.search else {
            return Ok(false);
        };
        let Some(named) = search.next_in(&self.array.manifests) else {
            return Ok(false);
        };
        let manifest = self.manifests.get(named.id)?;
        let range = manifest.range(&self.array.node, &self.begin);
        let range = range.map_err(|e| self.manifests.named(named.id, e))?;
        self.current = Some((manifest, range));
        Ok(true)
    }
}

impl Iterator for ChunkListing {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.single.take() {
            return Some(Ok(entry));
        }
        loop {
            match self.next_in_manifest() {
                Ok(Some(entry)) => return Some(Ok(entry)),
                Ok(None) => match self.next_manifest() {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(e) => return Some(Err(e)),
                },
                Err(e) => {
                    self.current = None;
                    return Some(Err(e));
                }
            }
        }
    }
}
