//! Views of an array: its physical values, and parts of it with fewer dimensions. A view is
//! described to other programs as if it were an array. This module does not know how views are
//! named.

use super::describe::DIMENSIONS;
use super::packing::{PACKING_ATTRIBUTES, Packing};
use super::{Composite, Described, Format, ImageInfo, ItemForm, MAX_FILE, MetadataNumber};
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_base::json::{Map, Object, Value};
use zarrfs_base::memory;
use zarrfs_format::dtype::DType;
use zarrfs_format::metadata::{ArrayMetadata, Order};

/// Attributes in units of the packed items.
const PACKED_RANGES: [&str; 3] = ["valid_min", "valid_max", "valid_range"];

/// Bytes that are shown as an array: all flat bytes of a stored array or a range of them, perhaps
/// converted.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayView {
    /// The range of the stored array's flat bytes.
    pub range: Range<u64>,
    /// How they are shown.
    pub form: ItemForm,
    /// The array that they are shown as.
    pub metadata: ArrayMetadata,
    /// Number of leading dimensions that the view leaves out.
    left_out: usize,
}

impl ArrayView {
    /// Returns the physical values of an array; `None` if nothing is said that changes its items.
    pub fn unpacked(
        metadata: &ArrayMetadata,
        attributes: &Map<String, Value>,
        fill_is_missing: bool,
    ) -> Option<Self> {
        let packing = Packing::of(metadata, attributes, fill_is_missing)?;
        let spelled = if packing.shown_size() == 4 {
            "<f4"
        } else {
            "<f8"
        };
        let items = metadata.flat_size() / packing.stored_size() as u64;
        items
            .checked_mul(packing.shown_size() as u64)
            .filter(|size| *size <= MAX_FILE)?;
        let metadata_of_values = ArrayMetadata {
            dtype: DType::parse_str(spelled).ok()?,
            dtype_json: spelled.into(),
            fill_value: Value::Null,
            fill: None,
            order: Order::C,
            v3: None,
            ..without_chunks(metadata, 0)
        };
        let form = ItemForm::Unpacked(Arc::new(packing));
        Some(ArrayView {
            range: 0..metadata.flat_size(),
            form,
            metadata: metadata_of_values,
            left_out: 0,
        })
    }

    /// Returns the part of an array with these indices of its leading dimensions; `None` if there
    /// is none.
    pub fn slice(metadata: &ArrayMetadata, indices: &[u64]) -> Option<Self> {
        let (leading, shape) = metadata.shape.split_at_checked(indices.len())?;
        if !indices.iter().zip(leading).all(|(index, len)| index < len) {
            return None;
        }
        // the products are those of the whole array, which were checked, unless it is empty
        let size = if shape.contains(&0) {
            0
        } else {
            let items = shape.iter().try_fold(1u64, |n, len| n.checked_mul(*len));
            items?.checked_mul(metadata.dtype.size() as u64)?
        };
        let number = indices
            .iter()
            .zip(leading)
            .try_fold(0u64, |n, (index, len)| {
                n.checked_mul(*len)?.checked_add(*index)
            });
        let start = number?.checked_mul(size)?;
        let range = start..start.checked_add(size)?;
        let metadata = ArrayMetadata {
            shape: shape.to_vec(),
            ..without_chunks(metadata, indices.len())
        };
        Some(ArrayView {
            range,
            form: ItemForm::AsStored,
            metadata,
            left_out: indices.len(),
        })
    }

    /// Returns whether a stored array still has the items of which this is a view. Its first
    /// dimension may have another length if the view shows all of it, or has its part still.
    pub fn is_of(&self, opened: &ArrayMetadata, now: &ArrayMetadata) -> bool {
        opened.dtype == now.dtype
            && opened.shape.len() == now.shape.len()
            && opened.shape.get(1..) == now.shape.get(1..)
            && (self.left_out == 0 || self.range.end <= now.flat_size())
    }

    /// Returns how far the view reaches among the flat bytes of its array: to the end of a view of
    /// the whole array, which may have become longer.
    pub fn end(&self) -> Option<u64> {
        (self.left_out > 0).then_some(self.range.end)
    }

    /// Returns whether the view of items that are not stored is all zero bytes.
    pub fn fill_is_zero(&self, stored: &ArrayMetadata) -> bool {
        let item = stored.fill.as_deref().unwrap_or_default();
        match &self.form {
            ItemForm::Unpacked(packing) => packing.shows_zeros(item),
            _ => item.iter().all(|byte| *byte == 0),
        }
    }

    /// Returns what other programs are told of the view of `array`.
    pub fn describe(&self, array: &Described) -> Described {
        let axes = array.axes.get(self.left_out..).unwrap_or_default().to_vec();
        let image = array.image.clone().map(|image| self.image(image));
        let mut metadata = self.metadata.clone();
        if self.form == ItemForm::AsStored {
            metadata.dtype = array.metadata.dtype.clone();
            metadata.dtype_json = array.metadata.dtype_json.clone();
        }
        let shown = Described {
            axes,
            image,
            metadata,
            ..array.of_view()
        };
        let ItemForm::Unpacked(packing) = &self.form else {
            return shown;
        };
        let mut attributes = Object::default();
        // the memory of the copies is bounded by that of the attributes, which `array` keeps alive
        attributes.map_mut().extend(
            array
                .attributes
                .iter()
                .filter(|(name, _)| self.keeps_attribute(name))
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        let nodata = packing
            .has_missing()
            .then_some(MetadataNumber::Float(f64::NAN));
        Described {
            nodata,
            scale: None,
            offset: None,
            attributes: Arc::new(attributes),
            ..shown
        }
    }

    /// Describes the view of `array` as [`ArrayView::describe`] does, with the values of the view.
    /// Its items are the items of `array` in the view's range.
    ///
    /// # Errors
    ///
    /// No memory for the values.
    pub fn describe_values(&self, array: &Described) -> Result<Described> {
        let memory = memory::take(self.metadata.flat_size() as usize)?;
        let mut values = array.values.as_deref().unwrap_or_default().to_vec();
        self.form.show(&mut values)?;
        Ok(Described {
            values: Some(values.into()),
            memory: memory.into(),
            ..self.describe(array)
        })
    }

    /// Returns whether an attribute of the array is true of the view.
    pub fn keeps_attribute(&self, name: &str) -> bool {
        match self.form {
            ItemForm::Unpacked(_) => {
                !PACKING_ATTRIBUTES.contains(&name) && !PACKED_RANGES.contains(&name)
            }
            _ => self.left_out == 0 || name != DIMENSIONS,
        }
    }

    /// Returns what is true of the view of an image.
    fn image(&self, image: ImageInfo) -> ImageInfo {
        let channel_axis = image
            .channel_axis
            .and_then(|axis| axis.checked_sub(self.left_out));
        let channels = if channel_axis.is_some() {
            image.channels
        } else {
            Vec::new()
        };
        ImageInfo {
            channel_axis,
            channels,
            ..image
        }
    }

    /// Makes a header or container of the view of `array`, which is described as
    /// [`ArrayView::describe`] returns it, and stored as `stored` says.
    ///
    /// # Errors
    ///
    /// Those of [`Format::file`].
    pub fn file(
        &self,
        format: Format,
        array: &Described,
        stored: &ArrayMetadata,
    ) -> Result<Composite> {
        format.file_with(array, |file| {
            file.push_range(
                array.key.clone(),
                stored,
                self.range.clone(),
                self.form.clone(),
            );
        })
    }
}

/// Returns the metadata of an array in one chunk without codecs, without its `left_out` leading
/// dimensions. Chunks do not show in flat bytes.
fn without_chunks(metadata: &ArrayMetadata, left_out: usize) -> ArrayMetadata {
    let behind = |lengths: &[u64]| lengths.get(left_out..).unwrap_or_default().to_vec();
    metadata.without_codecs(behind(&metadata.shape), behind(&metadata.chunks))
}

#[cfg(test)]
mod tests;
