//! The form of the pages of a TIFF file: the items, and the strips or tiles in which they lie.
//! What cannot be shown again, or is not read, is refused by name. This module must not know
//! places on Earth or descriptions.

use super::compression::{NONE, PACK_BITS, refused_compression};
use super::directory::{TiffDirectory, TiffReader};
use zarrfs_base::error::{Error, Result};
use zarrfs_export::tiff_format::{
    BITS_PER_SAMPLE, COMPRESSION, IMAGE_LENGTH, IMAGE_WIDTH, PALETTE, PHOTOMETRIC, ROWS_PER_STRIP,
    SAMPLE_FORMAT, SAMPLE_FORMATS, SAMPLES_PER_PIXEL, STRIP_BYTE_COUNTS, STRIP_OFFSETS,
};

const FILL_ORDER: u16 = 266;
const PLANAR: u16 = 284;
const PREDICTOR: u16 = 317;
const TILE_WIDTH: u16 = 322;
const TILE_LENGTH: u16 = 323;
const TILE_OFFSETS: u16 = 324;
const TILE_BYTE_COUNTS: u16 = 325;

/// Maximum number of rows, columns and samples of a pixel, as in GDAL.
const MAX_LENGTH: u64 = i32::MAX as u64;
const MAX_SAMPLES: u64 = u16::MAX as u64;

/// The form that all pages of a file have.
#[derive(Clone, Debug, PartialEq)]
pub struct TiffForm {
    pub rows: u64,
    pub columns: u64,
    /// Number of samples of a pixel.
    pub samples: u64,
    /// Whether each sample has strips or tiles of its own.
    pub is_planar: bool,
    pub kind: ItemKind,
    pub is_big_endian: bool,
    /// Numbers of rows and columns of a strip or tile.
    pub block: [u64; 2],
    pub is_tiled: bool,
    /// What samples mean: TIFF's code.
    pub photometric: u64,
}

/// The items of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ItemKind {
    /// The letter of the dtype.
    pub letter: char,
    /// The size in the file in bytes.
    pub size: usize,
}

/// A page of the form.
#[derive(Clone)]
pub struct TiffPage {
    /// The number in the file, counted from 1.
    pub number: usize,
    pub compression: u64,
    pub predictor: u64,
    /// The offset and the size in bytes of each encoded block; 0 of one that the file lacks.
    pub blocks: Vec<(u64, u64)>,
}

impl ItemKind {
    /// Returns the size in bytes of the parts that have a byte order.
    pub fn part(self) -> usize {
        if self.letter == 'c' {
            self.size / 2
        } else {
            self.size
        }
    }

    /// Returns whether items are half floats, which become floats of 32 bits: no TIFF file of a
    /// mount has half floats.
    pub fn is_half(self) -> bool {
        self.letter == 'f' && self.size == 2
    }
}

impl TiffForm {
    /// Reads a page of a file of `len` bytes.
    ///
    /// # Errors
    ///
    /// The page is damaged, or has what no array of a mount has.
    pub fn read(
        reader: &mut TiffReader,
        directory: &TiffDirectory,
        len: u64,
    ) -> Result<(Self, TiffPage)> {
        let mut one = |tag, default: u64| -> Result<u64> {
            Ok(reader.one(directory, tag)?.unwrap_or(default))
        };
        let compression = one(COMPRESSION, NONE)?;
        let rows = one(IMAGE_LENGTH, 0)?;
        let columns = one(IMAGE_WIDTH, 0)?;
        let samples = one(SAMPLES_PER_PIXEL, 1)?;
        let photometric = one(PHOTOMETRIC, 1)?;
        let is_planar = one(PLANAR, 1)? == 2 && samples > 1;
        let mut predictor = one(PREDICTOR, 1)?;
        let tile = [one(TILE_LENGTH, 0)?, one(TILE_WIDTH, 0)?];
        let strip = one(ROWS_PER_STRIP, u64::MAX)?.min(rows);
        if one(FILL_ORDER, 1)? != 1 {
            return Err(Error::invalid("the bits of its bytes are in reverse"));
        }
        if let Some(what) = refused_compression(compression) {
            let why = format!("{what}; `gdal_translate -co COMPRESS=DEFLATE` makes a file without");
            return Err(Error::invalid(why));
        }
        let what = match photometric {
            4 => "its pixels are a mask",
            6 => "its colors are YCbCr",
            _ => "",
        };
        if !what.is_empty() {
            return Err(Error::invalid(what));
        }
        let is_tiled = tile != [0, 0];
        let block = if is_tiled { tile } else { [strip, columns] };
        let lengths = [rows, columns, block[0], block[1]];
        if lengths.iter().any(|len| !(1..=MAX_LENGTH).contains(len))
            || !(1..=MAX_SAMPLES).contains(&samples)
        {
            let why = format!(
                "{rows} rows and {columns} columns of {samples} samples in blocks of {block:?}"
            );
            return Err(Error::invalid(why));
        }
        // libtiff ignores the predictor of blocks that are not compressed, or by PackBits
        if compression == NONE || compression == PACK_BITS {
            predictor = 1;
        }
        let kind = item_kind(
            &reader.numbers(directory, SAMPLE_FORMAT)?,
            &reader.numbers(directory, BITS_PER_SAMPLE)?,
        )?;
        if photometric == u64::from(PALETTE) && (kind.letter, kind.size, samples) != ('u', 1, 1) {
            return Err(Error::invalid("a palette of other numbers than bytes"));
        }
        let is_known = match predictor {
            1 => true,
            2 => kind.part() == kind.size,
            3 => kind.letter == 'f',
            _ => false,
        };
        if !is_known {
            let why = format!("predictor {predictor} of {}", shown(kind));
            return Err(Error::invalid(why));
        }
        let form = TiffForm {
            rows,
            columns,
            samples,
            is_planar,
            kind,
            is_big_endian: reader.is_big_endian,
            block,
            is_tiled,
            photometric,
        };
        let (offsets, sizes) = if is_tiled {
            (TILE_OFFSETS, TILE_BYTE_COUNTS)
        } else {
            (STRIP_OFFSETS, STRIP_BYTE_COUNTS)
        };
        let offsets = reader.numbers(directory, offsets)?;
        let sizes = reader.numbers(directory, sizes)?;
        let count = form.block_count();
        if offsets.len() != count || sizes.len() != count {
            let why = format!(
                "offsets of {} and sizes of {} of {count} strips or tiles",
                offsets.len(),
                sizes.len()
            );
            return Err(Error::invalid(why));
        }
        let blocks: Vec<(u64, u64)> = offsets.into_iter().zip(sizes).collect();
        for (at, size) in &blocks {
            if at.checked_add(*size).is_none_or(|end| end > len) {
                return Err(reader.ends());
            }
        }
        let page = TiffPage {
            number: 0,
            compression,
            predictor,
            blocks,
        };
        Ok((form, page))
    }

    /// Returns the size of an item of the array in bytes.
    pub fn item(&self) -> usize {
        if self.kind.is_half() {
            4
        } else {
            self.kind.size
        }
    }

    /// Returns the dtype of the array.
    pub fn dtype(&self) -> String {
        let order = if self.item() == 1 { '|' } else { '<' };
        format!("{order}{}{}", self.kind.letter, self.item())
    }

    /// Returns the number of samples of a pixel in a block.
    pub fn samples_of_block(&self) -> usize {
        if self.is_planar {
            1
        } else {
            self.samples as usize
        }
    }

    /// Returns the numbers of samples, rows and columns of a block.
    pub fn block_shape(&self) -> [u64; 3] {
        [self.samples_of_block() as u64, self.block[0], self.block[1]]
    }

    /// Returns the number of blocks of a page.
    pub fn block_count(&self) -> usize {
        let planes = if self.is_planar { self.samples } else { 1 };
        self.block_number(planes, 0, 0)
    }

    /// Returns the number of a block by its plane, and its place in the plane from top and left.
    pub fn block_number(&self, plane: u64, i: u64, j: u64) -> usize {
        let down = self.rows.div_ceil(self.block[0]);
        let across = self.columns.div_ceil(self.block[1]);
        let number = plane.saturating_mul(down).saturating_add(i);
        usize::try_from(number.saturating_mul(across).saturating_add(j)).unwrap_or(usize::MAX)
    }
}

/// Returns the items of these formats and numbers of bits of samples.
fn item_kind(formats: &[u64], bits: &[u64]) -> Result<ItemKind> {
    let format = formats.first().copied().unwrap_or(1);
    let size = bits.first().copied().unwrap_or(1);
    if formats.iter().any(|other| *other != format) || bits.iter().any(|other| *other != size) {
        return Err(Error::invalid("samples of several types"));
    }
    let mut known = SAMPLE_FORMATS.iter();
    let letter = known.find(|(_, code)| u64::from(*code) == format);
    let kind = letter.map(|(letter, _)| ItemKind {
        letter: *letter,
        size: size as usize / 8,
    });
    let is_known = |kind: &ItemKind| match kind.letter {
        'u' | 'i' => [8, 16, 32, 64].contains(&size),
        'f' => [16, 32, 64].contains(&size),
        _ => [64, 128].contains(&size),
    };
    kind.filter(is_known).ok_or_else(|| {
        let why = format!("samples of {size} bits and format {format}, which no array has");
        Error::invalid(why)
    })
}

fn shown(kind: ItemKind) -> String {
    format!("items of type {}{}", kind.letter, kind.size)
}
