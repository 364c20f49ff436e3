//! A file that is put together from bytes and from arrays' flat bytes, in parts that follow each other. It knows where
//! each part stands, not how an array is read.

use super::ItemForm;
use super::vrt::Bands;
use crate::error::Result;
use crate::store::Key;
use crate::util::memory::{self, SharedGrant};
use crate::zarr::dtype::DType;
use crate::zarr::metadata::ArrayMetadata;
use std::sync::Arc;

/// The parts of a file, in file order and without gaps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Composite {
    parts: Vec<FilePart>,
    size: u64,
    /// The arrays and groups whose documents or chunks the file is made of.
    pub sources: Vec<Key>,
    /// Counts the bytes that are no array's.
    memory: SharedGrant,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct FilePart {
    /// Where in the file it begins, in bytes.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// What they are.
    pub content: PartContent,
}

/// What a part holds.
#[derive(Clone, Debug, PartialEq)]
pub enum PartContent {
    /// These bytes. They can't be changed.
    Bytes(Arc<[u8]>),
    /// Bytes of 0, which can't be changed.
    Padding,
    /// The text of some bands, which is made when it is read: all of it may be large.
    Bands(Bands),
    /// All flat bytes of the array at a key.
    Flat {
        /// The array's place in the hierarchy.
        key: Key,
        /// The shape that the file tells of it.
        shape: Vec<u64>,
        /// The dtype that the file tells of it.
        dtype: DType,
        /// How its items are shown.
        form: ItemForm,
    },
}

impl FilePart {
    /// True for flat bytes of an array.
    pub fn is_flat(&self) -> bool {
        matches!(self.content, PartContent::Flat { .. })
    }

    /// True for the flat bytes of an array that is what the file tells of it.
    pub fn is_of(&self, metadata: &ArrayMetadata) -> bool {
        matches!(&self.content, PartContent::Flat { shape, dtype, .. } if *shape == metadata.shape && *dtype == metadata.dtype)
    }
}

impl PartContent {
    /// Whether the bytes are the file's own: neither an array's nor padding.
    pub fn is_own(&self) -> bool {
        matches!(self, PartContent::Bytes(_) | PartContent::Bands(_))
    }
}

impl Composite {
    /// A file of this text alone.
    pub fn text(text: String) -> Self {
        let mut file = Composite::default();
        file.push_bytes(text.into_bytes());
        file
    }

    /// Adds bytes at the end.
    pub fn push_bytes(&mut self, bytes: Vec<u8>) {
        self.push(bytes.len() as u64, PartContent::Bytes(bytes.into()));
    }

    /// Adds the text of bands at the end.
    pub fn push_bands(&mut self, bands: Bands) {
        self.push(bands.text().len() as u64, PartContent::Bands(bands));
    }

    /// Adds zeros at the end up to the next multiple of `step` bytes.
    pub fn pad_to(&mut self, step: u64) {
        self.push(self.size.next_multiple_of(step) - self.size, PartContent::Padding);
    }

    /// Adds the flat bytes of the array at `key`, as it is now, at the end, its items in this form.
    pub fn push_flat(&mut self, key: Key, metadata: &ArrayMetadata, form: ItemForm) {
        let (shape, dtype) = (metadata.shape.clone(), metadata.dtype.clone());
        self.push(metadata.flat_size(), PartContent::Flat { key, shape, dtype, form });
    }

    fn push(&mut self, len: u64, content: PartContent) {
        if len > 0 {
            self.parts.push(FilePart { at: self.size, len, content });
            self.size += len;
        }
    }

    /// The same file, with the memory of what it holds counted.
    pub fn counted(self) -> Result<Self> {
        let own = |part: &FilePart| if matches!(part.content, PartContent::Bytes(_)) { part.len as usize } else { 0 };
        let bytes: usize = self.parts.iter().map(own).sum();
        let memory = memory::take(bytes + self.parts.len() * size_of::<FilePart>())?.into();
        Ok(Composite { memory, ..self })
    }

    /// Bytes of the whole file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// All parts.
    pub fn parts(&self) -> &[FilePart] {
        &self.parts
    }

    /// The number of the part that holds the byte at `position`; the count of parts past the end.
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
        let mut file = Composite::text("header".into());
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
