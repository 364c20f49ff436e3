//! Changes the shape of an array. Where a user of the flat bytes changes it
//! ([`Hierarchy::resize`]), new elements read as the fill value, and elements that left the array
//! never return, whichever program wrote them and however an earlier change ended. Where a program
//! writes a document, it does what the same write does in a directory: no chunk changes, and the
//! program deletes those that it wants to be gone.

use super::document::{ATTEMPTS, contended, refused};
use super::{ArrayDocument, DocumentKind, Hierarchy, REMOVED};
use crate::array::{Array, ArrayEntry, Loaded, Scratch, WriteBack};
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::json::{self, Map, Value};
use zarrfs_base::memory;
use zarrfs_format::chunk_key::{Separator, parse_index};
use zarrfs_format::grid::{ChunkId, Edges, Grid};
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_format::metadata::v3::grid::extend_grid;
use zarrfs_store::{Replaces, StoreExt, Version};

/// Maximum number of chunks that are requested one by one, at some microseconds each; if more are
/// affected, the stored ones are listed.
const MAX_PROBED: u64 = 1 << 16;

/// Bytes of cleared chunks after which the objects are stored that they wait for.
const MAX_HANDED_OVER: usize = 8 << 20;

/// Minimum bytes that a cleared chunk counts as, even if it is erased.
const MIN_HANDED_OVER: usize = 1 << 10;

/// Minimum size of a buffer of fill values, in bytes.
const BLANK: usize = 64 << 10;

/// What happens to the elements outside a new shape.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutsideElements {
    /// They become fill values.
    Cleared,
    /// They stay as they are stored.
    Kept,
}

impl Hierarchy {
    /// Changes the shape of an array. Chunks that leave the grid are deleted; elements that leave
    /// the array in other chunks become the fill value. The caller has written back all dirty
    /// chunks.
    ///
    /// # Errors
    ///
    /// The number of dimensions changes, or the store fails.
    pub fn resize(&self, array: &Arc<Array>, shape: &[u64]) -> Result<()> {
        let key = array.key();
        let _lock = self.lock_for_change(&[key])?;
        let gone = || Error::not_found("no such array").context(key);
        for _ in 0..ATTEMPTS {
            let found = self.array_document(key)?.ok_or_else(gone)?;
            // the caller's array may be older than the document
            let array = self.array(key, &found)??;
            let before = &array.metadata().shape;
            if shape.len() != before.len() {
                let message = format!(
                    "shape {shape:?} has {} dimensions, not those of {before:?}",
                    shape.len()
                );
                return Err(Error::invalid(message).context(key));
            }
            if shape == before {
                return Ok(());
            }
            let (fields, version) = self.stored_object(&found.key)?.ok_or_else(gone)?;
            let (mut fields, _memory) = fields.into_parts();
            fields.insert("shape".into(), shape.into());
            if self.put_shape(&array, &found, fields, &version, OutsideElements::Cleared)? {
                return Ok(());
            }
        }
        Err(contended(key))
    }

    /// Replaces the given version of an existing array's document by one that may have another
    /// shape. Returns false if another process replaced that version first.
    ///
    /// Elements outside the array are invisible. If they are to be cleared, this is done before the
    /// array grows over them and after it has shrunk. If the change is interrupted before the put,
    /// the array is unchanged. If it is interrupted after the put, the array has the new shape, and
    /// elements outside are cleared when it grows again. An array that grows along one dimension
    /// and shrinks along another does both. Each step is synced before the next.
    pub(super) fn put_shape(
        &self,
        old: &Arc<Array>,
        found: &ArrayDocument,
        mut fields: Map<String, Value>,
        version: &Version,
        outside: OutsideElements,
    ) -> Result<bool> {
        let key = old.key();
        extend_grid(&mut fields);
        let document = key.join(old.metadata_name());
        let text = json::write_pretty(&Value::Object(fields));
        let mut metadata = self
            .metadata(text.as_bytes(), found.form)
            .map_err(|e| refused(&document, e))?;
        metadata.separator = Some(old.separator());
        let new = self.check_usable(key, metadata)?;
        let before = &old.metadata().shape;
        let after = &new.metadata().shape;
        let is_cleared = outside == OutsideElements::Cleared;
        let grows = is_cleared
            && before
                .iter()
                .zip(after)
                .any(|(before, after)| after > before);
        if grows && self.clear_outside(&new, before, &new)? {
            self.store.sync()?;
        }
        let removed = found.form == DocumentKind::Removed;
        let replaces = if removed {
            Replaces::Nothing
        } else {
            Replaces::Version(version)
        };
        if self
            .store
            .put_if(&document, text.as_bytes(), replaces)
            .context(&document)?
            .is_none()
        {
            return Ok(false);
        }
        if removed {
            self.delete(&key.join(REMOVED))?;
        }
        self.reload(key)?;
        if found.form != DocumentKind::V1 {
            self.consolidate(key, &[old.metadata_name()])?;
        }
        if is_cleared
            && before
                .iter()
                .zip(after)
                .any(|(before, after)| after < before)
        {
            self.store.sync()?;
            self.clear_outside(old, after, &new)?;
        }
        Ok(true)
    }

    /// Returns the stored chunk `name` outside the shape, in an array of a shape that includes it;
    /// `None` if there is no such chunk, or if the lengths of chunks there are unknown. A program
    /// that has written a smaller shape deletes such chunks.
    pub fn chunk_outside(
        &self,
        array: &Array,
        name: &str,
    ) -> Result<Option<(Arc<Array>, ChunkId)>> {
        let old = array.metadata();
        let indices = name
            .split('.')
            .map(parse_index)
            .collect::<Option<Vec<u64>>>()
            .unwrap_or_default();
        if !old.is_regular() || indices.len() != old.shape.len() {
            return Ok(None);
        }
        let ends = indices
            .iter()
            .zip(&old.chunks)
            .map(|(index, chunk)| index.saturating_add(1).saturating_mul(*chunk));
        let shape: Vec<u64> = ends
            .zip(&old.shape)
            .map(|(end, len)| end.max(*len))
            .collect();
        let metadata = ArrayMetadata {
            shape,
            separator: Some(array.separator()),
            ..old.clone()
        };
        // a grid that is too large has no chunk of this name
        let Ok(larger) = self.check_usable(array.key(), metadata) else {
            return Ok(None);
        };
        let Some(chunk) = larger.grid().parse_chunk_key(name, Separator::Dot) else {
            return Ok(None);
        };
        Ok(larger.stat_chunk(chunk)?.map(|_| (larger, chunk)))
    }

    /// Clears the elements of `array` outside the shape `kept`, along the dimensions in which that
    /// is smaller: deletes chunks that are entirely outside, and fills the outer parts of others
    /// with the fill value of `model`. Returns whether anything changed.
    fn clear_outside(&self, array: &Arc<Array>, kept: &[u64], model: &Array) -> Result<bool> {
        let outside = Outside::new(array, kept);
        let mut scratch = Scratch::default();
        let mut changed = false;
        let mut handed_over = 0;
        let mut clear = |chunk| {
            changed |= self.clear_chunk(array, chunk, &outside, model, &mut scratch)?;
            handed_over += array.grid().chunk_size(chunk).max(MIN_HANDED_OVER);
            if handed_over > MAX_HANDED_OVER {
                handed_over = 0;
                array.store_objects()?;
            }
            Ok(())
        };
        if outside.chunks() <= MAX_PROBED {
            outside.each(array.grid(), &mut clear)?;
            return array.store_objects().map(|()| changed);
        }
        for entry in array.entries()? {
            match entry.context(array.key())? {
                ArrayEntry::Chunk(chunk) if outside.touches(&array.grid().indices(chunk)) => {
                    clear(chunk)?
                }
                ArrayEntry::Unlisted => {
                    return Err(Error::damaged("some chunks can't be listed").context(array.key()));
                }
                ArrayEntry::Chunk(_) | ArrayEntry::Value(_) => {}
            }
        }
        array.store_objects().map(|()| changed)
    }

    /// Clears one chunk. A chunk of objects, whose items have no fixed positions, stays unchanged
    /// unless it is entirely outside.
    fn clear_chunk(
        &self,
        array: &Array,
        chunk: ChunkId,
        outside: &Outside,
        model: &Array,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        let spans = outside.spans(&array.grid().indices(chunk));
        let _alone = array.lock_replacing(&array.write_back_key(chunk));
        let _lock = array.lock_chunk(chunk)?;
        if spans.iter().any(|span| span.kept == 0) {
            return array.erase(chunk, WriteBack::unconfirmed());
        }
        if array.metadata().has_objects() {
            return Ok(false);
        }
        let item = array.metadata().dtype.size();
        let mut blank = memory::zeroed(item * (BLANK / item.max(1)).max(1))?;
        model.metadata().write_fill(&mut blank, 0);
        while let Some(mut loaded) = self.load_to_clear(array, chunk, scratch)? {
            if !clear(&mut loaded.bytes, &spans, &blank) {
                break;
            }
            // otherwise another process stored the chunk meanwhile: load it again
            if array
                .stat_chunk(chunk)?
                .is_some_and(|stat| stat.version == loaded.version)
            {
                return array.store(chunk, &loaded.bytes, scratch).map(|_| true);
            }
        }
        Ok(false)
    }

    /// Loads a chunk; `None` also for a damaged one, which no reader can read anyway.
    fn load_to_clear(
        &self,
        array: &Array,
        chunk: ChunkId,
        scratch: &mut Scratch,
    ) -> Result<Option<Loaded>> {
        match array.load(chunk, Vec::new(), scratch) {
            Err(e) if e.kind() == Kind::Damaged => {
                self.stats.problem(format!(
                    "{e}: left as it is while the array's shape changes"
                ));
                Ok(None)
            }
            loaded => loaded,
        }
    }
}

/// The extent of a chunk along one dimension, and the part to keep, in items.
#[derive(Clone, Copy)]
struct Span {
    kept: usize,
    len: usize,
}

/// Overwrites the parts of a C-order chunk that are not kept with `blank`, which holds whole items.
/// Returns whether anything changed.
fn clear(chunk: &mut [u8], spans: &[Span], blank: &[u8]) -> bool {
    let Some((span, inner)) = spans.split_first() else {
        return false;
    };
    let step = chunk.len() / span.len.max(1);
    if step == 0 || spans.iter().all(|span| span.kept == span.len) {
        return false;
    }
    let (kept, rest) = chunk.split_at_mut(span.kept * step);
    let mut changed = false;
    for piece in rest.chunks_mut(blank.len()) {
        let blank = &blank[..piece.len()];
        if piece != blank {
            piece.copy_from_slice(blank);
            changed = true;
        }
    }
    for row in kept.chunks_exact_mut(step) {
        changed |= clear(row, inner, blank);
    }
    changed
}

/// The chunks of a grid that are partly or entirely outside a smaller shape.
struct Outside {
    /// For each dimension: the lengths of the chunks, the length to keep (`None`: all), and the
    /// first chunk not kept whole.
    dimensions: Vec<(Edges, Option<u64>, u64)>,
    counts: Vec<u64>,
}

impl Outside {
    fn new(array: &Array, kept: &[u64]) -> Self {
        let meta = array.metadata();
        let counts = array.grid().counts().to_vec();
        let edges = meta.chunk_edges().into_owned();
        let sizes = meta.shape.iter().zip(edges).zip(kept).zip(&counts);
        let dimensions = sizes.map(|(((&len, edges), &kept), &count)| {
            if kept < len {
                let first = edges.index_of(kept);
                (edges, Some(kept), first)
            } else {
                (edges, None, count)
            }
        });
        Outside {
            dimensions: dimensions.collect(),
            counts,
        }
    }

    /// Returns whether the chunk with these indices is not kept whole.
    fn touches(&self, indices: &[u64]) -> bool {
        indices
            .iter()
            .zip(&self.dimensions)
            .any(|(index, (_, _, first))| index >= first)
    }

    /// Returns the kept part of a chunk along each dimension.
    fn spans(&self, indices: &[u64]) -> Vec<Span> {
        let span = |(&index, (edges, kept, _)): (&u64, &(Edges, Option<u64>, u64))| {
            let items = edges.span(index);
            let len = items.end - items.start;
            let kept = kept.map_or(len, |kept| kept.saturating_sub(items.start).min(len));
            Span {
                kept: kept as usize,
                len: len as usize,
            }
        };
        indices.iter().zip(&self.dimensions).map(span).collect()
    }

    /// Returns disjoint boxes of grid indices that together contain all chunks not kept whole: box
    /// `d` has those that are outside along dimension `d` and inside along all earlier dimensions.
    fn boxes(&self) -> impl Iterator<Item = Vec<Range<u64>>> {
        let firsts = || self.dimensions.iter().map(|(_, _, first)| *first);
        (0..self.counts.len()).map(move |outer| {
            let ranges = firsts()
                .zip(&self.counts)
                .enumerate()
                .map(|(d, (first, &count))| match d.cmp(&outer) {
                    std::cmp::Ordering::Less => 0..first,
                    std::cmp::Ordering::Equal => first..count,
                    std::cmp::Ordering::Greater => 0..count,
                });
            ranges.collect()
        })
    }

    /// Returns the number of chunks not kept whole, saturating.
    fn chunks(&self) -> u64 {
        let size = |ranges: Vec<Range<u64>>| {
            if ranges.iter().any(Range::is_empty) {
                0
            } else {
                ranges
                    .iter()
                    .fold(1u64, |n, range| n.saturating_mul(range.end - range.start))
            }
        };
        self.boxes().map(size).fold(0, u64::saturating_add)
    }

    /// Calls `each` for every chunk of `grid` that is not kept whole.
    fn each(&self, grid: &Grid, each: &mut dyn FnMut(ChunkId) -> Result<()>) -> Result<()> {
        for ranges in self
            .boxes()
            .filter(|ranges| !ranges.iter().any(Range::is_empty))
        {
            let mut indices: Vec<u64> = ranges.iter().map(|range| range.start).collect();
            loop {
                each(grid.chunk(&indices))?;
                let next = indices
                    .iter()
                    .zip(&ranges)
                    .rposition(|(index, range)| index + 1 < range.end);
                let Some(d) = next else { break };
                indices[d] += 1;
                for (index, range) in indices.iter_mut().zip(&ranges).skip(d + 1) {
                    *index = range.start;
                }
            }
        }
        Ok(())
    }
}
