//! A file made of bytes and of arrays' flat bytes, in parts that follow each other. It knows where each part begins,
//! not how an array is read.

use super::ItemForm;
use super::vrt::Bands;
use crate::error::Result;
use crate::store::Key;
use crate::util::memory::{self, SharedGrant};
use crate::zarr::dtype::DType;
use crate::zarr::metadata::ArrayMetadata;
use std::ops::Range;
use std::sync::Arc;

/// The layout of a file that programs other than zarrfs define: headers, padding, and the flat bytes of arrays, without
/// gaps.
///
/// A format of this module builds one by pushing parts; the file system and `zarrfs header` read it part by part, and
/// load flat bytes from the array that [`PartContent::Flat`] names. The bytes of a `Composite` never include those of
/// an array, so that a header of a terabyte file is small.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Composite {
    parts: Vec<FilePart>,
    size: u64,
    /// The groups and arrays whose documents or chunks the file was made from; its permissions and age follow theirs.
    pub sources: Vec<Key>,
    /// Counts the bytes of [`PartContent::Bytes`].
    memory: SharedGrant,
}

/// A run of bytes of a [`Composite`].
#[derive(Clone, Debug, PartialEq)]
pub struct FilePart {
    /// Offset in the file, in bytes.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// The source of the bytes.
    pub content: PartContent,
}

/// The source of a part's bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum PartContent {
    /// The bytes themselves, which are read-only.
    Bytes(Arc<[u8]>),
    /// Zeros, which are read-only.
    Padding,
    /// The text of some bands of a VRT, generated when it is read because the whole text may be large.
    Bands(Bands),
    /// Flat bytes of an array.
    Flat {
        /// The array's key in the hierarchy.
        key: Key,
        /// The array's shape when the file was made.
        shape: Vec<u64>,
        /// The array's dtype when the file was made.
        dtype: DType,
        /// Where the bytes begin among all flat bytes.
        start: u64,
        /// How the file holds the items.
        form: ItemForm,
    },
}

impl FilePart {
    /// Returns whether the part holds flat bytes of an array.
    pub fn is_flat(&self) -> bool {
        matches!(self.content, PartContent::Flat { .. })
    }

    /// Returns whether the part holds flat bytes of an array that still has this shape and dtype.
    pub fn is_of(&self, metadata: &ArrayMetadata) -> bool {
        matches!(&self.content, PartContent::Flat { shape, dtype, .. } if *shape == metadata.shape && *dtype == metadata.dtype)
    }
}

impl PartContent {
    /// Returns whether the bytes belong to the file itself: neither an array's nor padding.
    pub fn is_own(&self) -> bool {
        matches!(self, PartContent::Bytes(_) | PartContent::Bands(_))
    }
}

impl From<Vec<u8>> for Composite {
    fn from(bytes: Vec<u8>) -> Self {
        let mut file = Composite::default();
        file.push_bytes(bytes);
        file
    }
}

impl From<String> for Composite {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl Composite {
    /// Appends bytes.
    pub fn push_bytes(&mut self, bytes: Vec<u8>) {
        self.push(bytes.len() as u64, PartContent::Bytes(bytes.into()));
    }

    /// Appends the text of a block of bands.
    pub fn push_bands(&mut self, bands: Bands) {
        self.push(bands.text().len() as u64, PartContent::Bands(bands));
    }

    /// Appends zeros up to the next multiple of `step` bytes.
    pub fn pad_to(&mut self, step: u64) {
        self.push(self.size.next_multiple_of(step) - self.size, PartContent::Padding);
    }

    /// Appends the flat bytes of the array at `key`, with its present shape and dtype, its items in `form`.
    pub fn push_flat(&mut self, key: Key, metadata: &ArrayMetadata, form: ItemForm) {
        self.push_range(key, metadata, 0..metadata.flat_size(), form);
    }

    /// Appends a range of the flat bytes of the array at `key`, whole items in `form`.
    pub fn push_range(&mut self, key: Key, metadata: &ArrayMetadata, range: Range<u64>, form: ItemForm) {
        let (shape, dtype, start) = (metadata.shape.clone(), metadata.dtype.clone(), range.start);
        self.push(form.shown(range.end - start), PartContent::Flat { key, shape, dtype, start, form });
    }

    fn push(&mut self, len: u64, content: PartContent) {
        if len > 0 {
            self.parts.push(FilePart { at: self.size, len, content });
            self.size += len;
        }
    }

    /// Charges the memory of the file's own bytes to the memory limit.
    pub fn counted(self) -> Result<Self> {
        let own = |part: &FilePart| if matches!(part.content, PartContent::Bytes(_)) { part.len as usize } else { 0 };
        let bytes: usize = self.parts.iter().map(own).sum();
        let memory = memory::take(bytes + self.parts.len() * size_of::<FilePart>())?.into();
        Ok(Composite { memory, ..self })
    }

    /// Returns the size of the whole file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns all parts in file order.
    pub fn parts(&self) -> &[FilePart] {
        &self.parts
    }

    /// Returns the index of the part that holds the byte at `position`; the number of parts past the end.
    pub fn part_at(&self, position: u64) -> usize {
        self.parts.partition_point(|part| part.at + part.len <= position)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        let mut file = Composite::from("header".to_string());
        file.pad_to(8);
        file.pad_to(8);
        let metadata = testing::metadata("\"<i2\"", &[5]);
        file.push_flat(Key::root(), &metadata, ItemForm::Reversed(2));
        file.push_bytes(Vec::new());
        assert_eq!(file.parts().iter().map(|p| (p.at, p.len)).collect::<Vec<_>>(), [(0, 6), (6, 2), (8, 10)]);
        assert_eq!(file.size(), 18);
        assert!(file.parts()[2].is_of(&metadata) && !file.parts()[1].is_of(&metadata));
        assert!(!file.parts()[2].is_of(&testing::metadata("\">i2\"", &[5])));
        assert_eq!([0, 5, 6, 8, 17, 18].map(|at| file.part_at(at)), [0, 0, 1, 2, 2, 3]);
    }
}
