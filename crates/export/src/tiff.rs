//! TIFF 6.0, or BigTIFF if offsets need more than 32 bits. Each band is a page of one strip, unless
//! each pixel has an item of every band: then they are the samples of one page. All directories
//! come first, and each has those of the same image in lower resolutions, whose flat bytes follow.
//! The flat bytes of the array come last, at a multiple of 4096, in the header's byte order, so
//! that programs can map them. The first page's description has the dimensions: of an OME-NGFF
//! image for Bio-Formats, of others for ImageJ. GDAL reads the position from GeoTIFF tags.

mod geo;
mod image_j;
mod ome;
mod resolution;

pub use geo::{
    GDAL_METADATA, GDAL_NODATA, GEO_KEYS, GEODETIC_SYSTEM, GEOGRAPHIC, ITEMS, MODEL_TYPE,
    PIXEL_SCALE, PROJECTED, PROJECTED_SYSTEM, RASTER_TYPE, TIEPOINT, TRANSFORMATION,
};
pub use resolution::{NAMES as RESOLUTION_NAMES, UNIT as RESOLUTION_UNIT};

use super::binary::HeaderFields;
use super::described::Overview;
use super::raster::{Interleave, Raster};
use super::{Composite, Described, FormatContent, FormatSpec, ItemForm, MAX_FILE};
use std::collections::BTreeMap;
use zarrfs_base::json::Value;
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.tif",
    id: "tif",
    content: FormatContent::FlatBytes,
    is_container: true,
    fits,
    header: |array| Ok(file(array)),
    ..FormatSpec::DEFAULT
};

/// Maximum number of pages: GDAL and tifffile read the directory of each.
const MAX_PAGES: u64 = 1 << 16;

/// Alignment of the flat bytes in the file, in bytes.
const ALIGNMENT: u64 = 4096;

/// Maximum number of pages of all overviews.
const MAX_OVERVIEW_PAGES: u64 = 1 << 16;

/// Upper bound of the header in bytes: a page has some twenty tags of up to 20 bytes, and texts are
/// bounded.
const MAX_HEADER: u64 = 64 << 20;

/// NewSubfileType.
pub const NEW_SUBFILE_TYPE: u16 = 254;
/// ImageWidth.
pub const IMAGE_WIDTH: u16 = 256;
/// ImageLength.
pub const IMAGE_LENGTH: u16 = 257;
/// BitsPerSample.
pub const BITS_PER_SAMPLE: u16 = 258;
/// Compression.
pub const COMPRESSION: u16 = 259;
/// PhotometricInterpretation.
pub const PHOTOMETRIC: u16 = 262;
/// ImageDescription.
pub const DESCRIPTION: u16 = 270;
/// StripOffsets.
pub const STRIP_OFFSETS: u16 = 273;
/// SamplesPerPixel.
pub const SAMPLES_PER_PIXEL: u16 = 277;
/// RowsPerStrip.
pub const ROWS_PER_STRIP: u16 = 278;
/// StripByteCounts.
pub const STRIP_BYTE_COUNTS: u16 = 279;
/// ColorMap.
pub const COLOR_MAP: u16 = 320;
const SUB_IFDS: u16 = 330;
const EXTRA_SAMPLES: u16 = 338;
/// SampleFormat.
pub const SAMPLE_FORMAT: u16 = 339;

/// The value of [`PHOTOMETRIC`] for numbers of the colors of [`COLOR_MAP`].
pub const PALETTE: u16 = 3;

/// The attribute in which the numbers of [`COLOR_MAP`] are kept: reds, greens and blues.
pub const COLOR_MAP_NAME: &str = "TIFFTAG_COLORMAP";

/// The attribute in which the value of [`PHOTOMETRIC`] is kept.
pub const PHOTOMETRIC_NAME: &str = "TIFFTAG_PHOTOMETRIC";

/// The value of [`PHOTOMETRIC`] for pixels of which zero is white.
const WHITE_IS_ZERO: u16 = 0;

/// Number of numbers of the palette of bytes.
const PALETTE_NUMBERS: usize = 3 << 8;

/// The letters of dtypes, and the codes of their samples.
pub const SAMPLE_FORMATS: [(char, u16); 4] = [('u', 1), ('i', 2), ('f', 3), ('c', 6)];

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

/// Makes the file up to the flat bytes: the header and the flat bytes of the overviews.
fn file(array: &Described) -> Composite {
    let mut file = Composite::from(header(array));
    for overview in overviews(array) {
        let metadata = &overview.metadata;
        file.push_flat(overview.key.clone(), metadata, ItemForm::AsStored);
        file.pad_to(ALIGNMENT);
    }
    file
}

/// Returns the overviews that the file contains: the finest ones that leave its header small, and
/// the file short enough for a file system.
fn overviews(array: &Described) -> &[Overview] {
    let pages = raster_of(array).map_or(0, |raster| raster.bands);
    let mut size = array.size().saturating_add(MAX_HEADER);
    let mut all_pages = 0u64;
    let shown = array.overviews.iter().take_while(|overview| {
        let own = overview.metadata.flat_size().saturating_add(ALIGNMENT);
        size = size.saturating_add(own);
        all_pages = all_pages.saturating_add(pages);
        size <= MAX_FILE && all_pages <= MAX_OVERVIEW_PAGES
    });
    &array.overviews[..shown.count()]
}

fn raster_of(array: &Described) -> Option<Raster> {
    Raster::upright(array, |raster| pages_and_samples(raster).is_some())
}

/// Writes the header.
fn header(array: &Described) -> Vec<u8> {
    let dtype = &array.metadata.dtype;
    let (Some(raster), Some(format)) = (raster_of(array), sample_format(dtype)) else {
        return Vec::new();
    };
    let overviews = overviews(array);
    let of_overviews = overviews
        .iter()
        .map(|overview| overview.metadata.flat_size());
    let size = of_overviews.fold(array.size(), u64::saturating_add);
    let layout = Layout {
        is_big: size > u64::from(u32::MAX) - MAX_HEADER,
        is_big_endian: dtype.is_big_endian(),
    };
    let mut image = layout.image(&array.metadata, &raster, format);
    let tags = &mut image.tags;
    geo::tags(array, &raster, tags);
    if let Some(colors) = palette(array).filter(|_| raster.interleave == Interleave::Band) {
        tags.insert(PHOTOMETRIC, TagValue::Short(vec![PALETTE]));
        tags.insert(COLOR_MAP, TagValue::Short(colors));
    }
    let stated = array.attributes.get(PHOTOMETRIC_NAME);
    if stated.and_then(Value::as_u64) == Some(WHITE_IS_ZERO.into()) {
        tags.insert(PHOTOMETRIC, TagValue::Short(vec![WHITE_IS_ZERO]));
    }
    if raster.interleave == Interleave::Band {
        let description = match ome::description(array, &raster) {
            Some(description) => {
                ome::pixels_per_centimeter(array, tags);
                Some(description)
            }
            // one image of a map is a GeoTIFF and no stack
            None if image.pages == 1 && tags.contains_key(&geo::GEO_KEYS) => None,
            None => {
                image_j::pixels_per_unit(array, tags);
                Some(image_j::description(array, image.pages))
            }
        };
        tags.extend(description.map(|text| (DESCRIPTION, TagValue::Ascii(text))));
    }
    resolution::stated(&array.attributes, tags);
    let levels = overviews.iter().filter_map(|overview| {
        let raster = raster.with_lengths(&overview.metadata)?;
        let mut level = layout.image(&overview.metadata, &raster, format);
        // a reduced-resolution version of another image
        level.tags.insert(NEW_SUBFILE_TYPE, TagValue::Long(1));
        Some(level)
    });
    let levels: Vec<TiffImage> = levels.collect();
    if !levels.is_empty() {
        image.tags.insert(SUB_IFDS, layout.offset_value(0));
    }
    layout.header(&image, &levels)
}

/// Returns the palette of bytes that an attribute states.
fn palette(array: &Described) -> Option<Vec<u16>> {
    let numbers = array.attributes.get(COLOR_MAP_NAME)?.as_array()?;
    let dtype = &array.metadata.dtype;
    let is_of_bytes = *dtype.kind() == DTypeKind::UInt && dtype.size() == 1;
    if !is_of_bytes || numbers.len() != PALETTE_NUMBERS {
        return None;
    }
    let numbers = numbers
        .iter()
        .map(|number| number.as_u64()?.try_into().ok());
    numbers.collect()
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
    let kind = match (dtype.kind(), dtype.size()) {
        (DTypeKind::Bool | DTypeKind::UInt, _) => 'u',
        (DTypeKind::Int, _) => 'i',
        (DTypeKind::Float, 4 | 8) => 'f',
        (DTypeKind::Complex, 8 | 16) => 'c',
        _ => return None,
    };
    let mut known = SAMPLE_FORMATS.iter();
    known
        .find(|(letter, _)| *letter == kind)
        .map(|(_, code)| *code)
}

/// The variant of the format, which decides how tags are written.
#[derive(Clone, Copy)]
struct Layout {
    is_big: bool,
    is_big_endian: bool,
}

/// An image of one resolution: its pages, which have the same tags, and their strips.
struct TiffImage {
    tags: Tags,
    pages: u64,
    /// Number of bytes of the strip of a page.
    strip: u64,
    /// Number of bytes of all strips.
    size: u64,
}

/// The offsets that the directory of a page has for itself.
#[derive(Clone, Copy, Default)]
struct PageOffsets {
    strip: u64,
    /// The directory of its only level, or the list of those of several.
    sub_ifds: u64,
    /// The directory of the next page, or 0.
    next: u64,
}

/// Where the directories, the lists of directories and the strips of a file lie.
struct FilePlaces {
    /// The first directory.
    first: u64,
    /// The sizes of the first directory, and of each other one of the image.
    of_first: u64,
    of_other: u64,
    /// The directories of levels, page by page.
    of_levels: u64,
    /// The number of bytes before the directory of each level, among those of a page; then that of
    /// all.
    before_level: Vec<u64>,
    /// The lists of the directories of levels, for each page, and the size of each.
    lists: u64,
    each_list: u64,
    /// The strips of the image.
    strips: u64,
    /// The strips of each level.
    strips_of_levels: Vec<u64>,
}

impl FilePlaces {
    fn directory(&self, page: u64) -> u64 {
        match page {
            0 => self.first,
            page => self.first + self.of_first + (page - 1) * self.of_other,
        }
    }

    fn directory_of_level(&self, page: u64, level: usize) -> u64 {
        let each_page = self.before_level.last().copied().unwrap_or_default();
        self.of_levels + page * each_page + self.before_level[level]
    }

    fn list(&self, page: u64) -> u64 {
        self.lists + page * self.each_list
    }
}

impl Layout {
    /// Returns an image with the tags that every page needs.
    fn image(self, metadata: &ArrayMetadata, raster: &Raster, format: u16) -> TiffImage {
        let (pages, samples) = pages_and_samples(raster).unwrap_or((raster.bands, 1));
        let size = metadata.flat_size();
        let strip = size / pages;
        let each_sample = |value| TagValue::Short(vec![value; samples.into()]);
        let mut tags = Tags::from([
            (IMAGE_WIDTH, TagValue::Long(raster.columns as u32)),
            (IMAGE_LENGTH, TagValue::Long(raster.rows as u32)),
            (
                BITS_PER_SAMPLE,
                each_sample(8 * metadata.dtype.size() as u16),
            ),
            (COMPRESSION, TagValue::Short(vec![1])),
            // BlackIsZero
            (PHOTOMETRIC, TagValue::Short(vec![1])),
            (STRIP_OFFSETS, self.offset_value(0)),
            (SAMPLES_PER_PIXEL, TagValue::Short(vec![samples])),
            (ROWS_PER_STRIP, TagValue::Long(raster.rows as u32)),
            (STRIP_BYTE_COUNTS, self.offset_value(strip)),
            (SAMPLE_FORMAT, each_sample(format)),
        ]);
        if samples > 1 {
            // the first sample is the gray value, the others are of no known kind
            tags.insert(
                EXTRA_SAMPLES,
                TagValue::Short(vec![0; usize::from(samples) - 1]),
            );
        }
        TiffImage {
            tags,
            pages,
            strip,
            size,
        }
    }

    /// Returns an offset or a number of bytes as the value of a tag.
    fn offset_value(self, bytes: u64) -> TagValue {
        if self.is_big {
            TagValue::Long8(bytes)
        } else {
            TagValue::Long(bytes as u32)
        }
    }

    /// Writes the header of an image. Each page has directories of its `levels`, which have as many
    /// pages; only the first has the description. The strips of the levels precede those of the
    /// image.
    fn header(self, image: &TiffImage, levels: &[TiffImage]) -> Vec<u8> {
        // values that are too long for a tag precede the directories, once for all pages
        let mut shared = HeaderFields::new(self.is_big_endian);
        let begin = if self.is_big { 16 } else { 8 };
        let fields = self.fields(&image.tags, begin, &mut shared);
        let mut fields_of_levels = Vec::new();
        for level in levels {
            fields_of_levels.push(self.fields(&level.tags, begin, &mut shared));
        }
        let places = self.places(begin + shared.len() as u64, image, levels);

        let mut file = HeaderFields::new(self.is_big_endian);
        file.bytes(if self.is_big_endian { b"MM" } else { b"II" });
        if self.is_big {
            file.put(43u16.to_le_bytes());
            file.put(8u16.to_le_bytes());
            file.zeros(2);
        } else {
            file.put(42u16.to_le_bytes());
        }
        self.offset(places.directory(0), &mut file);
        file.bytes(&shared.into_bytes());
        for page in 0..image.pages {
            let tags = image.tags.iter();
            let tags = tags.filter(|(id, _)| page == 0 || **id != DESCRIPTION);
            let own = PageOffsets {
                strip: places.strips + page * image.strip,
                sub_ifds: match levels.len() {
                    0 | 1 => places.directory_of_level(page, 0),
                    _ => places.list(page),
                },
                next: if page + 1 < image.pages {
                    places.directory(page + 1)
                } else {
                    0
                },
            };
            self.directory(
                &tags.collect::<Vec<_>>(),
                &fields,
                levels.len(),
                own,
                &mut file,
            );
        }
        for page in 0..image.pages {
            for (n, level) in levels.iter().enumerate() {
                let own = PageOffsets {
                    strip: places.strips_of_levels[n] + page * level.strip,
                    ..PageOffsets::default()
                };
                let tags: Vec<_> = level.tags.iter().collect();
                self.directory(&tags, &fields_of_levels[n], 0, own, &mut file);
            }
        }
        if levels.len() > 1 {
            for page in 0..image.pages {
                for n in 0..levels.len() {
                    self.offset(places.directory_of_level(page, n), &mut file);
                }
            }
        }
        let end = places.strips_of_levels.first().copied();
        file.zeros(end.unwrap_or(places.strips) as usize - file.len());
        file.into_bytes()
    }

    /// Returns where everything lies whose directories begin at `first`.
    fn places(self, first: u64, image: &TiffImage, levels: &[TiffImage]) -> FilePlaces {
        let count = image.tags.len() as u64;
        let has_description = image.tags.contains_key(&DESCRIPTION);
        let mut before_level = vec![0];
        for level in levels {
            let size = self.directory_size(level.tags.len() as u64);
            before_level.push(before_level[before_level.len() - 1] + size);
        }
        let of_first = self.directory_size(count);
        let of_other = self.directory_size(count - u64::from(has_description));
        let of_levels = first + of_first + (image.pages - 1) * of_other;
        let lists = of_levels + image.pages * before_level[levels.len()];
        let each_list = levels.len() as u64 * self.width();
        let list_end = match levels.len() {
            0 | 1 => lists,
            _ => lists + image.pages * each_list,
        };
        let mut strips = list_end.next_multiple_of(ALIGNMENT);
        let mut strips_of_levels = Vec::new();
        for level in levels {
            strips_of_levels.push(strips);
            strips = (strips + level.size).next_multiple_of(ALIGNMENT);
        }
        FilePlaces {
            first,
            of_first,
            of_other,
            of_levels,
            before_level,
            lists,
            each_list,
            strips,
            strips_of_levels,
        }
    }

    /// Writes the directory of a page with these tags and their fields, and so many levels.
    fn directory(
        self,
        tags: &[(&u16, &TagValue)],
        fields: &BTreeMap<u16, Vec<u8>>,
        levels: usize,
        own: PageOffsets,
        file: &mut HeaderFields,
    ) {
        self.count(tags.len() as u64, file);
        for (id, value) in tags {
            file.put(id.to_le_bytes());
            file.put(value.kind().to_le_bytes());
            let count = if **id == SUB_IFDS {
                levels as u64
            } else {
                value.count()
            };
            self.offset(count, file);
            match **id {
                STRIP_OFFSETS => self.offset(own.strip, file),
                SUB_IFDS => self.offset(own.sub_ifds, file),
                id => file.bytes(&fields[&id]),
            }
        }
        self.offset(own.next, file);
    }

    /// Returns the number of bytes of an offset.
    fn width(self) -> u64 {
        if self.is_big { 8 } else { 4 }
    }

    /// Returns the value field of each tag.
    fn fields(self, tags: &Tags, begin: u64, shared: &mut HeaderFields) -> BTreeMap<u16, Vec<u8>> {
        tags.iter()
            .map(|(id, value)| (*id, self.field(value, begin, shared)))
            .collect()
    }

    /// Returns the value field of a tag: the value itself, or the offset at which `shared` holds
    /// it.
    fn field(self, value: &TagValue, begin: u64, shared: &mut HeaderFields) -> Vec<u8> {
        let width = self.width() as usize;
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
