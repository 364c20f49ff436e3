//! A hierarchy whose arrays are boxes of the arrays of another hierarchy: the items between two
//! indices along each dimension that is cut. What describes an array, or makes a container, sees
//! arrays of that size.

use super::cut::{AxisCut, IndexRun};
use crate::describe::{StringEncoding, axis_names, flat_range, visit_strings};
use crate::reader::{ArrayNode, ChunkBytes, ChunkReader, HierarchyNode, HierarchyReader};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::Object;
use zarrfs_base::key::Key;
use zarrfs_base::memory::{Grant, lock};
use zarrfs_format::fill_value::FillMeaning;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{ArrayMetadata, Order};

/// The range of a dimension that is shown.
struct DimensionCut<'a> {
    dimension: &'a str,
    range: Range<u64>,
    /// The length of the dimension.
    len: u64,
    array: Option<&'a Key>,
}

/// The hierarchy of the file of one piece.
pub struct BoxedHierarchy<'a> {
    inner: &'a dyn HierarchyReader,
    group: &'a Key,
    /// The arrays of the group that are shown; `None` for all.
    shown: Option<BTreeSet<Key>>,
    cuts: Vec<DimensionCut<'a>>,
    /// Where the items of each array begin among its flat bytes, and its shape. Protects the map
    /// alone.
    places: Mutex<HashMap<Key, (u64, Vec<u64>)>>,
}

/// The only chunk of a box.
struct BoxChunks {
    whole: Arc<ArrayNode>,
    /// The bytes among the flat bytes; of strings of any length their numbers.
    range: Range<u64>,
}

impl<'a> BoxedHierarchy<'a> {
    /// Returns the hierarchy that shows these arrays of `group`, cut to these runs.
    pub fn new(
        inner: &'a dyn HierarchyReader,
        group: &'a Key,
        shown: Option<BTreeSet<Key>>,
        cuts: &'a [AxisCut],
        runs: &[IndexRun],
    ) -> Self {
        let pairs = cuts.iter().zip(runs);
        let cuts = pairs.map(|(cut, run)| DimensionCut {
            dimension: &cut.dimension,
            range: run.range.clone(),
            len: cut.len,
            array: cut.array.as_ref(),
        });
        BoxedHierarchy {
            inner,
            group,
            shown,
            cuts: cuts.collect(),
            places: Mutex::default(),
        }
    }

    /// Returns where the items of an array that was shown begin among its flat bytes, and its
    /// shape.
    pub fn place(&self, key: &Key) -> Option<(u64, Vec<u64>)> {
        lock(&self.places).get(key).cloned()
    }

    /// Returns whether a group or array is part of the file, or describes a part of it.
    fn shows(&self, key: &Key) -> bool {
        let Some(shown) = &self.shown else {
            return true;
        };
        shown.contains(key)
            || key
                .relative_to(self.group)
                .is_none_or(|below| below.is_root())
    }

    /// Returns the range of a dimension of an array. Arrays of other groups share it if they are as
    /// long.
    ///
    /// # Errors
    ///
    /// ESTALE if the array has become shorter than the range.
    fn range(&self, key: &Key, name: Option<&str>, len: u64) -> Result<Range<u64>> {
        let is_near = key.parent() == *self.group;
        let found = self.cuts.iter().find(|cut| {
            let is_same = len == cut.len || is_near || cut.array == Some(key);
            name == Some(cut.dimension) && is_same
        });
        match found {
            Some(cut) if cut.range.end > len => Err(Error::stale().context(key)),
            Some(cut) => Ok(cut.range.clone()),
            None => Ok(0..len),
        }
    }

    fn boxed(&self, array: ArrayNode) -> Result<ArrayNode> {
        let attributes = self.inner.attributes(&array.key)?;
        let names = axis_names(self.inner, &array, &attributes, &mut Vec::new());
        let metadata = &*array.metadata;
        let pairs = names.iter().zip(&metadata.shape);
        let ranges: Vec<Range<u64>> = pairs
            .map(|(name, len)| self.range(&array.key, name.as_deref(), *len))
            .collect::<Result<_>>()?;
        let shape: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
        if shape == metadata.shape {
            return Ok(array);
        }
        let last = (0..shape.len()).rfind(|number| shape[*number] != metadata.shape[*number]);
        let is_contiguous = last.is_none_or(|last| shape[..last].iter().all(|len| *len == 1));
        let readable = if is_contiguous {
            array.readable.clone()
        } else {
            Err(Error::unsupported(
                "is cut along a dimension that is not its first",
            ))
        };
        let pairs = ranges.iter().zip(&metadata.shape);
        let first = pairs.fold(0, |first: u64, (range, len)| {
            first.saturating_mul(*len).saturating_add(range.start)
        });
        let count = shape.iter().product::<u64>();
        let has_objects = metadata.has_objects();
        let item = if has_objects {
            1
        } else {
            metadata.dtype.size() as u64
        };
        let place = (first.saturating_mul(item), metadata.shape.clone());
        let range = place.0..place.0.saturating_add(count.saturating_mul(item));
        lock(&self.places).insert(array.key.clone(), place);
        let chunks = shape.iter().map(|len| (*len).max(1)).collect();
        let cut = metadata.without_codecs(shape, chunks);
        let cut = ArrayMetadata {
            filters: if has_objects {
                metadata.filters.clone()
            } else {
                cut.filters
            },
            order: Order::C,
            ..cut
        };
        let whole = Arc::new(array);
        Ok(ArrayNode {
            metadata: cut.into(),
            readable,
            chunks: Arc::new(BoxChunks {
                whole: whole.clone(),
                range,
            }),
            part_of: Some(whole.clone()),
            ..(*whole).clone()
        })
    }

    fn node(&self, node: HierarchyNode) -> Result<HierarchyNode> {
        match node {
            HierarchyNode::Array(array) => self.boxed(array).map(HierarchyNode::Array),
            other => Ok(other),
        }
    }
}

impl HierarchyReader for BoxedHierarchy<'_> {
    fn find(&self, key: &Key) -> Result<Option<HierarchyNode>> {
        if !self.shows(key) {
            return Ok(None);
        }
        let found = self.inner.find(key)?;
        found.map(|node| self.node(node)).transpose()
    }

    fn find_array(&self, key: &Key) -> Result<Option<ArrayNode>> {
        if !self.shows(key) {
            return Ok(None);
        }
        let found = self.inner.find_array(key)?;
        found.map(|array| self.boxed(array)).transpose()
    }

    fn attributes(&self, key: &Key) -> Result<Object> {
        self.inner.attributes(key)
    }

    fn children(&self, key: &Key) -> Result<(Vec<Key>, Grant)> {
        match &self.shown {
            Some(shown) if key == self.group => {
                Ok((shown.iter().cloned().collect(), Grant::default()))
            }
            _ => self.inner.children(key),
        }
    }

    fn visit_below(
        &self,
        key: &Key,
        visit: &mut dyn FnMut(&Key, HierarchyNode) -> Result<()>,
    ) -> Result<()> {
        let Some(shown) = &self.shown else {
            let mut visit_boxed = |key: &Key, node| visit(key, self.node(node)?);
            return self.inner.visit_below(key, &mut visit_boxed);
        };
        for key in std::iter::once(key).chain(shown) {
            if let Some(node) = self.find(key)? {
                visit(key, node)?;
            }
        }
        Ok(())
    }

    fn ancestors(&self, key: &Key) -> Vec<Key> {
        self.inner.ancestors(key)
    }

    fn document(&self, key: &Key) -> Result<Option<Box<dyn AsRef<[u8]>>>> {
        self.inner.document(key)
    }

    fn fill_meaning(&self, array: &ArrayNode) -> FillMeaning {
        self.inner.fill_meaning(array)
    }
}

impl ChunkReader for BoxChunks {
    fn open(&self) -> Result<()> {
        self.whole.chunks.open()
    }

    fn read(&self, _chunk: ChunkId) -> Result<Option<ChunkBytes>> {
        let metadata = &self.whole.metadata;
        if !metadata.has_objects() {
            let bytes = flat_range(&self.whole, self.range.clone())?;
            return Ok(Some(Box::new(bytes)));
        }
        if StringEncoding::of(metadata) == Some(StringEncoding::Json) {
            return Err(Error::unsupported("lists of JSON can't be cut"));
        }
        // numcodecs' format of strings: their number, then each one after its length
        let count = (self.range.end - self.range.start) as u32;
        let mut bytes = count.to_le_bytes().to_vec();
        visit_strings(&self.whole, &mut |number, string| {
            if self.range.contains(&(number as u64)) {
                bytes.extend((string.len() as u32).to_le_bytes());
                bytes.extend(string);
            }
            Ok(())
        })?;
        Ok(Some(Box::new(bytes)))
    }
}
