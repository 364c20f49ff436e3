//! Files made of bytes and of flat bytes of arrays, in parts that follow each other. This module
//! knows where each part begins, but not how an array is read.

use super::ItemForm;
use super::records::{FileSlice, Records};
use super::vrt::Bands;
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_base::key::Key;
use zarrfs_base::memory::{self, SharedGrant};
use zarrfs_format::dtype::DType;
use zarrfs_format::metadata::ArrayMetadata;

/// The layout of a file in a format of other programs: headers, padding and the flat bytes of
/// arrays, without gaps.
///
/// A format of this module builds one by pushing parts; the file system and `zarrfs header` read it
/// part by part, and load flat bytes from the array that [`PartContent::Flat`] names. The bytes of
/// a `Composite` never include those of an array, so that a header of a terabyte file is small. The
/// last parts may be those of a record, which repeat: a file of a million records has no more parts
/// than one of a single record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Composite {
    parts: Vec<FilePart>,
    /// The size in bytes of everything before the records.
    size: u64,
    records: Option<Records>,
    /// The arrays that become longer together when records are appended, and why that cannot be, if
    /// so.
    pub growing: GrowingArrays,
    /// Why arrays of a group are not in its file, a line for each.
    pub left_out: Vec<String>,
    /// The groups and arrays whose documents or chunks the file was made from; its permissions and
    /// age follow theirs.
    pub sources: Vec<Key>,
    /// Grant for the memory of [`PartContent::Bytes`].
    memory: SharedGrant,
}

/// The arrays of a record dimension. Those that a file cannot show are among them: a dimension has
/// one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GrowingArrays {
    /// The keys of the arrays whose first dimension it is.
    pub keys: Vec<Key>,
    /// Why they cannot become longer, if so: one of them has the dimension elsewhere.
    pub fixed: Option<String>,
}

/// Minimum size in bytes of a hole: one page. Smaller padding is data.
const MIN_HOLE: u64 = 4096;

/// A run of bytes of a [`Composite`].
#[derive(Clone, Debug, PartialEq)]
pub struct FilePart {
    /// Offset in the file, in bytes.
    pub at: u64,
    /// Length in bytes; of a part of records, in each record.
    pub len: u64,
    /// Whether the part is one of a record: `at` is its offset in the first one.
    pub is_record: bool,
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
    /// The text of some bands of a VRT, generated when it is read because the whole text may be
    /// large.
    Bands(Bands),
    /// Values that were read when the file was made, because their array has no flat bytes; they
    /// are read-only.
    Values {
        /// The array's key in the hierarchy.
        key: Key,
        /// The values, those of all records.
        bytes: Arc<[u8]>,
    },
    /// Flat bytes of an array; in records, an item of the first dimension in each.
    Flat {
        /// The array's key in the hierarchy.
        key: Key,
        /// The array's shape when the file was made.
        shape: Vec<u64>,
        /// The array's dtype when the file was made.
        dtype: DType,
        /// The position of the first of them among all flat bytes, in bytes.
        start: u64,
        /// The form of the items in the file.
        form: ItemForm,
    },
}

impl FilePart {
    /// Returns whether the part holds flat bytes of an array.
    pub fn is_flat(&self) -> bool {
        matches!(self.content, PartContent::Flat { .. })
    }

    /// Returns whether the part is padding that programs may skip as a hole.
    fn is_hole(&self) -> bool {
        self.content == PartContent::Padding && !self.is_record && self.len >= MIN_HOLE
    }

    /// Returns whether the part holds flat bytes of an array that still has this shape and dtype.
    /// An array in records, or an array of which the file holds a part, may have become longer: its
    /// bytes stay where they are if only the first dimension has another length.
    pub fn is_of(&self, metadata: &ArrayMetadata) -> bool {
        let PartContent::Flat {
            shape,
            dtype,
            start,
            form,
            ..
        } = &self.content
        else {
            return false;
        };
        let stored = self.len / form.shown_item() as u64 * form.stored_item() as u64;
        let end = start.saturating_add(stored);
        let size_then = shape
            .iter()
            .fold(dtype.size() as u64, |size, len| size.saturating_mul(*len));
        let is_shape = match (shape.split_first(), metadata.shape.split_first()) {
            (Some((_, inner)), Some((_, now))) if self.is_record => inner == now,
            (Some((_, inner)), Some((_, now))) if (*start, end) != (0, size_then) => {
                inner == now && end <= metadata.flat_size()
            }
            _ => *shape == metadata.shape,
        };
        is_shape && *dtype == metadata.dtype
    }

    /// Returns whether both parts hold the flat bytes of one array from the same offset on, with
    /// another length of its first dimension.
    pub fn is_longer_or_shorter(&self, other: &FilePart) -> bool {
        let values = |part: &FilePart| match &part.content {
            PartContent::Flat {
                key,
                shape,
                dtype,
                start,
                form,
            } => {
                let inner = shape.get(1..)?.to_vec();
                Some((
                    part.at,
                    key.clone(),
                    inner,
                    dtype.clone(),
                    *start,
                    form.clone(),
                ))
            }
            _ => None,
        };
        values(self).is_some_and(|own| Some(own) == values(other))
    }
}

impl PartContent {
    /// Returns a range of the flat bytes of the array at `key`, with its present shape and dtype,
    /// whole items in `form`.
    pub fn flat(key: Key, metadata: &ArrayMetadata, range: Range<u64>, form: ItemForm) -> Self {
        PartContent::Flat {
            key,
            shape: metadata.shape.clone(),
            dtype: metadata.dtype.clone(),
            start: range.start,
            form,
        }
    }

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
        let end = self
            .parts
            .last()
            .map_or(0, |part| part.at.saturating_add(part.len));
        let next = end.checked_next_multiple_of(step).unwrap_or(end);
        self.push(next - end, PartContent::Padding);
    }

    /// Appends the flat bytes of the array at `key`, with its present shape and dtype, its items in
    /// `form`; in a record, those of one item of the first dimension.
    pub fn push_flat(&mut self, key: Key, metadata: &ArrayMetadata, form: ItemForm) {
        let stored = if self.records.is_some() {
            metadata.row_size()
        } else {
            metadata.flat_size()
        };
        self.push_range(key, metadata, 0..stored, form);
    }

    /// Appends a range of the flat bytes of the array at `key`, whole items in `form`.
    pub fn push_range(
        &mut self,
        key: Key,
        metadata: &ArrayMetadata,
        range: Range<u64>,
        form: ItemForm,
    ) {
        // the caller has checked the size
        let len = form.shown_size(range.end - range.start).unwrap_or(u64::MAX);
        self.push(len, PartContent::flat(key, metadata, range, form));
    }

    /// Appends values, `len` bytes of them or of each record.
    pub fn push_values(&mut self, key: Key, len: u64, bytes: Arc<[u8]>) {
        self.push(len, PartContent::Values { key, bytes });
    }

    /// Begins the records: the parts that are appended from now on repeat `count` times.
    pub fn begin_records(&mut self, count: u64) {
        self.records = Some(Records {
            first: self.parts.len(),
            at: self.size,
            step: 0,
            count,
        });
    }

    /// Appends `len` bytes, or as many to each record.
    pub fn push(&mut self, len: u64, content: PartContent) {
        if len == 0 {
            return;
        }
        let mut at = self.size;
        let is_record = self.records.is_some();
        match &mut self.records {
            Some(records) => {
                at = at.saturating_add(records.step);
                records.step = records.step.saturating_add(len);
            }
            None => self.size = self.size.saturating_add(len),
        }
        self.parts.push(FilePart {
            at,
            len,
            is_record,
            content,
        });
    }

    /// Moves the flat bytes of arrays, of which the file was made as of whole ones, to where
    /// `place` says: the position of the first byte among all flat bytes of the array, and its
    /// shape.
    /// Arrays of which there is no place stay where they are. The file cannot grow afterwards.
    pub fn place_arrays(&mut self, place: impl Fn(&Key) -> Option<(u64, Vec<u64>)>) {
        for part in &mut self.parts {
            if let PartContent::Flat {
                key, shape, start, ..
            } = &mut part.content
                && let Some((offset, stored)) = place(key)
            {
                *start = start.saturating_add(offset);
                *shape = stored;
            }
        }
        self.growing = GrowingArrays {
            keys: Vec::new(),
            fixed: Some("the file shows a part of the arrays".into()),
        };
    }

    /// Charges the memory of the file's own bytes to the memory limit.
    pub fn counted(self) -> Result<Self> {
        let sizes = self.parts.iter().map(|part| match &part.content {
            PartContent::Bytes(bytes) | PartContent::Values { bytes, .. } => bytes.len(),
            _ => 0,
        });
        let bytes: usize = sizes.sum();
        let memory = memory::take(bytes + self.parts.len() * size_of::<FilePart>())?.into();
        Ok(Composite { memory, ..self })
    }

    /// Returns whether values were read to make the file, so that it may change with them.
    pub fn depends_on_values(&self) -> bool {
        self.parts.iter().any(|part| match &part.content {
            PartContent::Values { .. } => true,
            PartContent::Flat { form, .. } => matches!(form, ItemForm::Double(_)),
            _ => false,
        })
    }

    /// Returns the size of the whole file in bytes.
    pub fn size(&self) -> u64 {
        self.size_with(self.record_count())
    }

    /// Returns the size in bytes that the file has with this number of records.
    pub fn size_with(&self, count: u64) -> u64 {
        self.size.saturating_add(
            self.records
                .map_or(0, |records| records.step.saturating_mul(count)),
        )
    }

    /// Returns the number of records.
    pub fn record_count(&self) -> u64 {
        self.records.map_or(0, |records| records.count)
    }

    /// Returns where the records begin and the number of bytes from one to the next, if the file
    /// has records.
    pub fn records(&self) -> Option<Records> {
        self.records
    }

    /// Returns all parts in file order.
    pub fn parts(&self) -> &[FilePart] {
        &self.parts
    }

    /// Returns the index of the part that holds the byte at `position`, which is not behind the
    /// first record; the number of parts past the end.
    pub fn part_at(&self, position: u64) -> usize {
        self.parts
            .partition_point(|part| part.at + part.len <= position)
    }

    /// Returns the offset at or after `offset` where a hole begins; `None` if no hole does.
    pub fn next_hole(&self, offset: u64) -> Option<u64> {
        let mut parts = self.parts.iter().skip(self.part_at(offset));
        let hole = parts.find(|part| part.is_hole())?;
        Some(hole.at.max(offset))
    }

    /// Returns the offset at or after `offset` that lies in no hole.
    pub fn next_data(&self, offset: u64) -> u64 {
        match self.parts.get(self.part_at(offset)) {
            Some(part) if part.is_hole() => part.at + part.len,
            _ => offset,
        }
    }

    /// Cuts a request of `len` bytes at `offset` at the borders of the parts. The slices end with
    /// the file, which has `count` records. There is one slice for all records of a part.
    pub fn slices(&self, offset: u64, len: usize, count: u64) -> Vec<FileSlice<'_>> {
        let end = offset.saturating_add(len as u64).min(self.size_with(count));
        let first = self
            .records
            .map_or(self.parts.len(), |records| records.first);
        let (header, record) = self.parts.split_at(first);
        // what precedes the records is one record
        let fixed = Records {
            first: 0,
            at: 0,
            step: self.size,
            count: 1,
        };
        let mut slices = Vec::new();
        fixed.slices(header, offset, end.min(self.size), &mut slices);
        if let Some(records) = self.records {
            records.slices(record, offset, end, &mut slices);
        }
        slices
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
        assert_eq!(
            file.parts()
                .iter()
                .map(|p| (p.at, p.len))
                .collect::<Vec<_>>(),
            [(0, 6), (6, 2), (8, 10)]
        );
        assert_eq!(file.size(), 18);
        assert!(file.parts()[2].is_of(&metadata) && !file.parts()[1].is_of(&metadata));
        assert!(!file.parts()[2].is_of(&testing::metadata("\">i2\"", &[5])));
        assert_eq!(
            [0, 5, 6, 8, 17, 18].map(|at| file.part_at(at)),
            [0, 0, 1, 2, 2, 3]
        );
    }

    /// Every byte of a file with records is that of one item, however the file is read.
    #[test]
    fn records_repeat() {
        let mut file = Composite::from("header".to_string());
        file.pad_to(4);
        file.begin_records(3);
        // 2 * 3 bytes and padding, then 4 bytes that are 8 in the file
        file.push_flat(
            Key::root().join("a"),
            &testing::metadata("\"<i2\"", &[3, 3]),
            ItemForm::Reversed(2),
        );
        file.pad_to(4);
        file.push_values(Key::root(), 4, (0..12).collect());
        let metadata = testing::metadata("\"<i2\"", &[3, 3]);
        assert_eq!(
            (file.size(), file.size_with(5), file.record_count()),
            (8 + 3 * 12, 8 + 5 * 12, 3)
        );
        assert!(file.parts()[2].is_of(&metadata));
        assert!(
            file.parts()[2].is_of(&testing::metadata("\"<i2\"", &[4, 3])),
            "an array may grow"
        );
        assert!(!file.parts()[2].is_of(&testing::metadata("\"<i2\"", &[3, 4])));
        let expected = |at: u64| match at {
            0..6 => (0, at),
            6..8 => (1, at - 6),
            _ => match ((at - 8) / 12, (at - 8) % 12) {
                (record, within @ 0..6) => (2, record * 6 + within),
                (record, within @ 6..8) => (3, record * 2 + within - 6),
                (record, within) => (4, record * 4 + within - 8),
            },
        };
        for offset in 0..50 {
            for len in 0..50 {
                let mut found = vec![None; len];
                for slice in file.slices(offset, len, 3) {
                    for (position, part) in slice.pieces() {
                        for (i, at) in part.enumerate() {
                            let was =
                                found[position + i].replace((slice.number, slice.at + at as u64));
                            assert_eq!(was, None);
                        }
                    }
                }
                let shown = (offset..offset + len as u64).map(|at| (at < 44).then(|| expected(at)));
                assert_eq!(found, shown.collect::<Vec<_>>(), "{offset} {len}");
            }
        }
        assert_eq!(
            file.slices(44, 30, 5).len(),
            3,
            "records that were appended"
        );
    }

    /// "a special case: if there is only one record variable, records are not padded": it is one
    /// run of bytes.
    #[test]
    fn a_single_part_of_records_is_read_at_once() {
        let mut file = Composite::from("head".to_string());
        file.begin_records(100);
        file.push_flat(
            Key::root(),
            &testing::metadata("\"|i1\"", &[100, 3]),
            ItemForm::AsStored,
        );
        let slices = file.slices(0, 1000, 100);
        assert_eq!(
            slices.iter().map(|s| (s.at, s.len)).collect::<Vec<_>>(),
            [(0, 4), (0, 300)]
        );
        assert_eq!(slices[1].pieces().collect::<Vec<_>>(), [(4, 0..300)]);
    }
}
