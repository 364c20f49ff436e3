//! The pixels of a TIFF file, box by box. A block, which is a strip or a tile, is decoded as a
//! whole, and kept for boxes that share it. Memory is bounded by the size of a block. This module
//! must not know tags or attributes.

use super::compression::decompress;
use super::form::{TiffForm, TiffPage};
use crate::place::advance;
use crate::{FilePlace, byte_count};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::{lock, zeroed};

/// Maximum size in bytes of decoded blocks that are kept, unless one is larger.
const MAX_KEPT: usize = 16 << 20;

/// A decoded block; empty until it is needed.
type KeptBlock = Arc<Mutex<Vec<u8>>>;

/// The pixels of all pages of a file.
pub struct TiffValues {
    form: TiffForm,
    pages: Vec<TiffPage>,
    shape: Vec<u64>,
    /// The item of blocks that the file lacks.
    absent: Vec<u8>,
    /// The size of the largest encoded block in bytes.
    encoded: usize,
    kept: Mutex<VecDeque<(usize, KeptBlock)>>,
}

impl std::fmt::Debug for TiffValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TiffValues").field(&self.form).finish()
    }
}

impl TiffValues {
    /// Describes the pixels of an array of this shape, whose last dimensions are bands, if there
    /// are several, rows and columns.
    pub fn new(
        form: TiffForm,
        pages: Vec<TiffPage>,
        shape: Vec<u64>,
        absent: Option<&[u8]>,
    ) -> Self {
        let blocks = pages.iter().flat_map(|page| &page.blocks);
        let encoded = blocks.map(|(_, bytes)| *bytes).max().unwrap_or_default();
        TiffValues {
            absent: absent.map_or_else(|| vec![0; form.item()], <[u8]>::to_vec),
            form,
            pages,
            shape,
            encoded: usize::try_from(encoded).unwrap_or(usize::MAX),
            kept: Mutex::default(),
        }
    }

    /// Returns the memory in bytes that reading a box takes: an encoded block, decoded ones, and a
    /// block or a row of one in another form.
    pub fn memory(&self) -> usize {
        let block = self.block_size();
        let other = if self.form.kind.is_half() {
            block
        } else {
            block / self.form.block[0] as usize
        };
        let kept = self.kept_blocks().saturating_mul(block);
        kept.saturating_add(other).saturating_add(self.encoded)
    }

    /// Returns the size of a decoded block in bytes, as it is in the file or as it is kept.
    fn block_size(&self) -> usize {
        let size = byte_count(&self.form.block_shape(), self.form.item() as u64);
        size.and_then(|size| usize::try_from(size).ok())
            .unwrap_or(usize::MAX)
    }

    fn kept_blocks(&self) -> usize {
        let all = self.pages.len().saturating_mul(self.form.block_count());
        (MAX_KEPT / self.block_size().max(1)).clamp(1, all.max(1))
    }

    /// Reads a box: see [`ItemSource::read_box`](crate::ItemSource::read_box).
    ///
    /// # Errors
    ///
    /// The file is damaged, or cannot be read.
    pub fn read_box(
        &self,
        file: &File,
        start: &[u64],
        counts: &[u64],
        lengths: &[u64],
        out: &mut [u8],
    ) -> Result<()> {
        if counts.contains(&0) {
            return Ok(());
        }
        let form = &self.form;
        let steps = FilePlace::dense(0, lengths, form.item(), false).strides;
        let end = |n: usize| start[n] + counts[n];
        let y = start.len() - 2;
        let x = start.len() - 1;
        // the dimensions of pages come first
        let pages = y - usize::from(form.samples > 1);
        let mut part = BoxPart {
            samples: 0..1,
            rows: start[y]..end(y),
            columns: start[x]..end(x),
            begin: 0,
            steps: [0, steps[y] as usize],
        };
        if form.samples > 1 {
            part.samples = start[pages]..end(pages);
            part.steps[0] = steps[pages] as usize;
        }
        let mut indices = vec![0; pages];
        for _ in 0..counts[..pages].iter().product() {
            let mut page = 0;
            part.begin = 0;
            for n in 0..pages {
                page = page * self.shape[n] + start[n] + indices[n];
                part.begin += (indices[n] * steps[n]) as usize;
            }
            self.read_page(file, page as usize, &part, out)?;
            advance(&mut indices, counts[..pages].iter().copied());
        }
        Ok(())
    }

    fn read_page(&self, file: &File, page: usize, part: &BoxPart, out: &mut [u8]) -> Result<()> {
        let form = &self.form;
        let [rows, columns] = form.block;
        let planes = if form.is_planar {
            part.samples.clone()
        } else {
            0..1
        };
        for plane in planes {
            for i in part.rows.start / rows..part.rows.end.div_ceil(rows) {
                for j in part.columns.start / columns..part.columns.end.div_ceil(columns) {
                    let number = form.block_number(plane, i, j);
                    let block = self.block(page * form.block_count() + number);
                    let mut block = lock(&block);
                    if block.is_empty() {
                        *block = self
                            .decode(file, page, number, i)
                            .context(format!("page {}", self.pages[page].number))?;
                    }
                    part.copy(form, &block, [plane, i * rows, j * columns], out);
                }
            }
        }
        Ok(())
    }

    /// Returns the place of a decoded block, and drops the oldest ones.
    fn block(&self, number: usize) -> KeptBlock {
        let mut kept = lock(&self.kept);
        if let Some((_, block)) = kept.iter().find(|(known, _)| *known == number) {
            return block.clone();
        }
        let block = KeptBlock::default();
        kept.push_back((number, block.clone()));
        while kept.len() > self.kept_blocks() {
            kept.pop_front();
        }
        block
    }

    /// Decodes a block of a page, the block `i` from the top.
    fn decode(&self, file: &File, page: usize, number: usize, i: u64) -> Result<Vec<u8>> {
        let form = &self.form;
        let page = &self.pages[page];
        let (at, len) = page.blocks[number];
        let [rows, columns] = form.block;
        let row = columns as usize * form.samples_of_block() * form.kind.size;
        if len == 0 {
            let mut out = zeroed(self.block_size())?;
            for item in out.chunks_exact_mut(self.absent.len()) {
                item.copy_from_slice(&self.absent);
            }
            return Ok(out);
        }
        let mut out = zeroed(row.saturating_mul(rows as usize))?;
        let mut encoded = zeroed(len as usize)?;
        file.read_exact_at(&mut encoded, at)?;
        let found = decompress(page.compression, &encoded, &mut out)
            .map_err(|why| Error::invalid(format!("a damaged strip or tile: {why}")))?;
        // only the last strip may be shorter
        let needed = row * (form.rows - i * rows).min(rows) as usize;
        if found < needed {
            let why = format!("a strip or tile has {found} of {needed} bytes");
            return Err(Error::invalid(why));
        }
        for row in out.chunks_exact_mut(row) {
            undo_prediction(form, page.predictor, row);
        }
        if !form.kind.is_half() {
            return Ok(out);
        }
        let mut floats = Vec::with_capacity(2 * out.len());
        for item in out.chunks_exact(2) {
            let half = half::f16::from_le_bytes([item[0], item[1]]);
            floats.extend(half.to_f32().to_le_bytes());
        }
        Ok(floats)
    }
}

/// The part of a box that one page has.
struct BoxPart {
    samples: std::ops::Range<u64>,
    rows: std::ops::Range<u64>,
    columns: std::ops::Range<u64>,
    /// The offset in the box in bytes.
    begin: usize,
    /// The number of bytes in the box from one sample, and from one row, to the next.
    steps: [usize; 2],
}

impl BoxPart {
    /// Copies the items of a block that begins at this sample, row and column.
    fn copy(&self, form: &TiffForm, block: &[u8], [plane, row, column]: [u64; 3], out: &mut [u8]) {
        let item = form.item();
        let within = form.samples_of_block();
        let [rows, columns] = form.block;
        let first = self.columns.start.max(column);
        let count = (self.columns.end.min(column + columns) - first) as usize;
        for y in self.rows.start.max(row)..self.rows.end.min(row + rows) {
            let from = ((y - row) * columns + first - column) as usize * within * item;
            let to = self.begin
                + (y - self.rows.start) as usize * self.steps[1]
                + (first - self.columns.start) as usize * item;
            if within == 1 {
                let to = to + (plane - self.samples.start) as usize * self.steps[0];
                out[to..to + count * item].copy_from_slice(&block[from..from + count * item]);
                continue;
            }
            for (n, sample) in self.samples.clone().enumerate() {
                let from = block[from + sample as usize * item..].chunks(within * item);
                let to = out[to + n * self.steps[0]..].chunks_exact_mut(item);
                for (from, to) in from.zip(to).take(count) {
                    to.copy_from_slice(&from[..item]);
                }
            }
        }
    }
}

/// Makes a row of a block little-endian items. Sources: TIFF 6.0, section 14; Adobe Photoshop TIFF
/// Technical Note 3.
fn undo_prediction(form: &TiffForm, predictor: u64, row: &mut [u8]) {
    let size = form.kind.size;
    let part = form.kind.part();
    let samples = form.samples_of_block();
    if predictor == 3 {
        add_before::<1>(row, samples);
        // the first bytes of all items come first
        let count = row.len() / size;
        let planes = row.to_vec();
        for (n, item) in row.chunks_exact_mut(size).enumerate() {
            for (byte, plane) in item.iter_mut().rev().zip(planes.chunks_exact(count)) {
                *byte = plane[n];
            }
        }
        return;
    }
    if form.is_big_endian && part > 1 {
        row.chunks_exact_mut(part).for_each(<[u8]>::reverse);
    }
    match (predictor, size) {
        (2, 1) => add_before::<1>(row, samples),
        (2, 2) => add_before::<2>(row, samples),
        (2, 4) => add_before::<4>(row, samples),
        (2, 8) => add_before::<8>(row, samples),
        _ => {}
    }
}

/// Adds to each integer of `N` bytes the one before it of the same sample.
fn add_before<const N: usize>(row: &mut [u8], samples: usize) {
    for at in (samples * N..row.len()).step_by(N) {
        let before = little_endian::<N>(&row[at - samples * N..]);
        let sum = before.wrapping_add(little_endian::<N>(&row[at..]));
        row[at..at + N].copy_from_slice(&sum.to_le_bytes()[..N]);
    }
}

/// Returns the integer in the first `N` bytes, at most eight.
fn little_endian<const N: usize>(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[..N]);
    u64::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_wrap_and_stay_within_a_sample() {
        let mut row = [255, 1, 2, 3, 4, 250];
        add_before::<1>(&mut row, 2);
        assert_eq!(row, [255, 1, 1, 4, 5, 254]);
        let mut row = [255, 255, 1, 0, 2, 0];
        add_before::<2>(&mut row, 1);
        assert_eq!(row, [255, 255, 0, 0, 2, 0]);
    }
}
