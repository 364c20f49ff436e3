//! TIFF 6.0, or BigTIFF if offsets need more than 32 bits. Each band is a page of one strip, unless
//! each pixel has an item of every band: then they are the samples of one page. All directories
//! come first. The flat bytes follow at a multiple
//! of 4096, in the header's byte order, so that programs can map them. The first page's description
//! has the dimensions: of an OME-NGFF image for Bio-Formats, of others for ImageJ. GDAL reads the
//! position from GeoTIFF tags.

mod geo;
mod image_j;
mod ome;
mod resolution;

use super::binary::HeaderFields;
use super::raster::{Interleave, Raster};
use super::{Described, FormatContent, FormatSpec};
use std::collections::BTreeMap;
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.tif",
    id: "tif",
    content: FormatContent::FlatBytes,
    is_container: true,
    fits,
    header: |array| Ok(header(array).into()),
    ..FormatSpec::DEFAULT
};

/// Maximum number of pages: GDAL and tifffile read the directory of each.
const MAX_PAGES: u64 = 1 << 16;

/// Alignment of the flat bytes in the file, in bytes.
const ALIGNMENT: u64 = 4096;

/// Upper bound of the header in bytes: a page has some twenty tags of up to 20 bytes, and texts are
/// bounded.
const MAX_HEADER: u64 = 64 << 20;

const IMAGE_WIDTH: u16 = 256;
const IMAGE_LENGTH: u16 = 257;
const BITS_PER_SAMPLE: u16 = 258;
const COMPRESSION: u16 = 259;
const PHOTOMETRIC: u16 = 262;
const DESCRIPTION: u16 = 270;
const STRIP_OFFSETS: u16 = 273;
const SAMPLES_PER_PIXEL: u16 = 277;
const ROWS_PER_STRIP: u16 = 278;
const STRIP_BYTE_COUNTS: u16 = 279;
const EXTRA_SAMPLES: u16 = 338;
const SAMPLE_FORMAT: u16 = 339;

/// The values of tags by number.
type Tags = BTreeMap<u16, TagValue>;

/// The value of a tag.
#[derive(Clone, Debug, PartialEq)]
enum TagValue {
    Ascii(String),
    Short(Vec<u16>),
    Long(u32),
    Rational(u32, u32),
    Double(Vec<f64>),
    /// A 64-bit number, which exists in BigTIFF alone.
    Long8(u64),
}

/// Returns whether the array holds real or complex numbers in a bounded number of pages. Bools are
/// bytes. Half floats are refused because ITK silently reads them as integers.
fn fits(metadata: &ArrayMetadata) -> bool {
    let pages = Raster::of(metadata).map(|raster| raster.bands);
    sample_format(&metadata.dtype).is_some() && pages.is_some_and(|pages| pages <= MAX_PAGES)
}

/// Writes the header.
fn header(array: &Described) -> Vec<u8> {
    let dtype = &array.metadata.dtype;
    let raster = Raster::upright(array, |raster| pages_and_samples(raster).is_some());
    let (Some(raster), Some(format)) = (raster, sample_format(dtype)) else {
        return Vec::new();
    };
    let (pages, samples) = pages_and_samples(&raster).unwrap_or((raster.bands, 1));
    let is_big = array.size() > u64::from(u32::MAX) - MAX_HEADER;
    let strip = array.size() / pages;
    let [offset, strip_length] = [0, strip].map(|bytes| {
        if is_big {
            TagValue::Long8(bytes)
        } else {
            TagValue::Long(bytes as u32)
        }
    });
    let mut tags = Tags::from([
        (IMAGE_WIDTH, TagValue::Long(raster.columns as u32)),
        (IMAGE_LENGTH, TagValue::Long(raster.rows as u32)),
        (
            BITS_PER_SAMPLE,
            TagValue::Short(vec![8 * dtype.size() as u16; samples.into()]),
        ),
        (COMPRESSION, TagValue::Short(vec![1])),
        // BlackIsZero
        (PHOTOMETRIC, TagValue::Short(vec![1])),
        (STRIP_OFFSETS, offset),
        (SAMPLES_PER_PIXEL, TagValue::Short(vec![samples])),
        (ROWS_PER_STRIP, TagValue::Long(raster.rows as u32)),
        (STRIP_BYTE_COUNTS, strip_length),
        (SAMPLE_FORMAT, TagValue::Short(vec![format; samples.into()])),
    ]);
    if raster.interleave == Interleave::Pixel {
        // the first sample is the gray value, the others are of no known kind
        let others = vec![0; usize::from(samples).saturating_sub(1)];
        tags.insert(EXTRA_SAMPLES, TagValue::Short(others));
    } else if let Some(description) = ome::description(array, &raster) {
        ome::pixels_per_centimeter(array, &mut tags);
        tags.insert(DESCRIPTION, TagValue::Ascii(description));
    } else {
        image_j::pixels_per_unit(array, &mut tags);
        let description = image_j::description(array, pages);
        tags.insert(DESCRIPTION, TagValue::Ascii(description));
    }
    geo::tags(array, &raster, &mut tags);
    Layout {
        is_big,
        is_big_endian: dtype.is_big_endian(),
    }
    .header(&tags, pages, strip)
}

/// Returns the numbers of pages and of samples per pixel; `None` if the format cannot show the
/// order in which bands, rows and columns are nested.
fn pages_and_samples(raster: &Raster) -> Option<(u64, u16)> {
    match raster.interleave {
        Interleave::Band => Some((raster.bands, 1)),
        Interleave::Pixel => Some((1, u16::try_from(raster.bands).ok()?)),
        Interleave::Line | Interleave::Mixed => None,
    }
}

/// Returns the code for unsigned, signed, float or complex samples.
fn sample_format(dtype: &DType) -> Option<u16> {
    match (dtype.kind(), dtype.size()) {
        (DTypeKind::Bool | DTypeKind::UInt, _) => Some(1),
        (DTypeKind::Int, _) => Some(2),
        (DTypeKind::Float, 4 | 8) => Some(3),
        (DTypeKind::Complex, 8 | 16) => Some(6),
        _ => None,
    }
}

/// The variant of the format, which decides how tags are written.
#[derive(Clone, Copy)]
struct Layout {
    is_big: bool,
    is_big_endian: bool,
}

impl Layout {
    /// Writes a header of `pages` pages with the same tags, whose strips have `strip` bytes. Each
    /// page gets its own strip offset; only the first has the description.
    fn header(self, tags: &Tags, pages: u64, strip: u64) -> Vec<u8> {
        // values that are too long for a tag precede the directories, once for all pages
        let mut shared = HeaderFields::new(self.is_big_endian);
        let begin = if self.is_big { 16 } else { 8 };
        let fields: BTreeMap<u16, Vec<u8>> = tags
            .iter()
            .map(|(id, value)| (*id, self.field(value, begin, &mut shared)))
            .collect();
        let first = begin + shared.len() as u64;
        let size = self.directory_size(tags.len() as u64);
        let other_size = self.directory_size(tags.len() as u64 - 1);
        let flat = (first + size + (pages - 1) * other_size).next_multiple_of(ALIGNMENT);

        let mut file = HeaderFields::new(self.is_big_endian);
        file.bytes(if self.is_big_endian { b"MM" } else { b"II" });
        if self.is_big {
            file.put(43u16.to_le_bytes());
            file.put(8u16.to_le_bytes());
            file.zeros(2);
        } else {
            file.put(42u16.to_le_bytes());
        }
        self.offset(first, &mut file);
        file.bytes(&shared.into_bytes());
        for page in 0..pages {
            let is_first = page == 0;
            let next = file.len() as u64 + if is_first { size } else { other_size };
            self.count(tags.len() as u64 - u64::from(!is_first), &mut file);
            for (id, value) in tags
                .iter()
                .filter(|(id, _)| is_first || **id != DESCRIPTION)
            {
                file.put(id.to_le_bytes());
                file.put(value.kind().to_le_bytes());
                self.offset(value.count(), &mut file);
                match fields.get(id) {
                    Some(field) if *id != STRIP_OFFSETS => file.bytes(field),
                    _ => self.offset(flat + page * strip, &mut file),
                }
            }
            self.offset(if page + 1 < pages { next } else { 0 }, &mut file);
        }
        file.zeros(flat as usize - file.len());
        file.into_bytes()
    }

    /// Returns the value field of a tag: the value itself, or the offset at which `shared` holds
    /// it.
    fn field(self, value: &TagValue, begin: u64, shared: &mut HeaderFields) -> Vec<u8> {
        let width = if self.is_big { 8 } else { 4 };
        let mut bytes = HeaderFields::new(self.is_big_endian);
        value.put(&mut bytes);
        if bytes.len() <= width {
            bytes.zeros(width - bytes.len());
            return bytes.into_bytes();
        }
        let mut field = HeaderFields::new(self.is_big_endian);
        self.offset(begin + shared.len() as u64, &mut field);
        shared.bytes(&bytes.into_bytes());
        // the format requires even offsets; multiples of eight suit the largest values
        shared.zeros(shared.len().next_multiple_of(8) - shared.len());
        field.into_bytes()
    }

    fn offset(self, offset: u64, to: &mut HeaderFields) {
        if self.is_big {
            to.put(offset.to_le_bytes())
        } else {
            to.put((offset as u32).to_le_bytes())
        }
    }

    fn count(self, count: u64, to: &mut HeaderFields) {
        if self.is_big {
            to.put(count.to_le_bytes())
        } else {
            to.put((count as u16).to_le_bytes())
        }
    }

    fn directory_size(self, tags: u64) -> u64 {
        if self.is_big {
            8 + 20 * tags + 8
        } else {
            2 + 12 * tags + 4
        }
    }
}

impl TagValue {
    fn kind(&self) -> u16 {
        match self {
            TagValue::Ascii(_) => 2,
            TagValue::Short(_) => 3,
            TagValue::Long(_) => 4,
            TagValue::Rational(..) => 5,
            TagValue::Double(_) => 12,
            TagValue::Long8(_) => 16,
        }
    }

    fn count(&self) -> u64 {
        match self {
            // includes the terminating NUL
            TagValue::Ascii(text) => text.len() as u64 + 1,
            TagValue::Short(numbers) => numbers.len() as u64,
            TagValue::Double(numbers) => numbers.len() as u64,
            TagValue::Long(_) | TagValue::Rational(..) | TagValue::Long8(_) => 1,
        }
    }

    fn put(&self, to: &mut HeaderFields) {
        match self {
            TagValue::Ascii(text) => to.text(text, text.len() + 1),
            TagValue::Short(numbers) => numbers
                .iter()
                .for_each(|number| to.put(number.to_le_bytes())),
            TagValue::Double(numbers) => numbers
                .iter()
                .for_each(|number| to.put(number.to_le_bytes())),
            TagValue::Long(number) => to.put(number.to_le_bytes()),
            TagValue::Long8(number) => to.put(number.to_le_bytes()),
            TagValue::Rational(over, under) => {
                to.put(over.to_le_bytes());
                to.put(under.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests;
