//! The samples of a preview: the item nearest to the center of each pixel, in a bounded number of
//! chunks. This module knows neither colors nor files.

use super::PreviewFrame;
use super::colors::ColorRule;
use crate::described::{Described, MetadataNumber};
use crate::number::{NumberKind, NumberType};
use crate::reader::ArrayNode;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::pool::{on_threads, processors};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::grid::Grid;

/// Maximum number of chunks that are read for each color or channel. The colors of an RGB image
/// often have chunks of their own, and with one maximum for all they would be a third as fine.
const MAX_CHUNKS: usize = 64;

/// Number of chunks of a remote array that are read at a time: each waits for a server.
const TOGETHER: usize = 8;

/// The type of samples.
#[derive(Clone, Copy)]
pub struct SampleType {
    number: NumberType,
    /// Whether the smallest integer is no value, but "not a time".
    has_nat: bool,
}

/// The items of an array that an image shows.
pub struct SampledPlane<'a> {
    /// What the image shows.
    pub frame: &'a PreviewFrame,
    /// The array as it was described.
    pub array: &'a Described,
    /// The array with the values: the same, or the same image in a lower resolution.
    pub level: &'a ArrayNode,
}

/// The pixels along a dimension that show items of one chunk.
struct ChunkPixels {
    /// The index of the chunk along the dimension.
    chunk: u64,
    /// The items of the chunk that are in the array.
    items: Range<u64>,
    /// Each pixel with the index of its item in the chunk.
    pixels: Vec<(usize, u64)>,
}

/// The chunks that are read: each combination of one of the bands, rows and columns of chunks.
pub struct SampledChunks {
    bands: Vec<ChunkPixels>,
    rows: Vec<ChunkPixels>,
    columns: Vec<ChunkPixels>,
}

impl SampledChunks {
    /// Returns the number of chunks.
    pub fn count(&self) -> usize {
        self.bands.len() * self.rows.len() * self.columns.len()
    }

    /// Returns the pixels along the bands, rows and columns of a chunk.
    fn get(&self, number: usize) -> Option<[&ChunkPixels; 3]> {
        let [rows, columns] = [self.rows.len(), self.columns.len()];
        let band = self.bands.get(number / (rows * columns))?;
        let row = self.rows.get(number / columns % rows)?;
        Some([band, row, self.columns.get(number % columns)?])
    }
}

impl SampleType {
    /// Returns the type of a dtype's samples; `None` unless they are real numbers or times.
    pub fn of(dtype: &DType) -> Option<Self> {
        let number = match dtype.kind() {
            DTypeKind::Bool => NumberType {
                kind: NumberKind::Unsigned,
                size: dtype.size(),
                is_big_endian: false,
            },
            _ => NumberType::of(dtype)?,
        };
        Some(SampleType {
            number,
            has_nat: dtype.has_time(),
        })
    }

    /// Returns whether items are bytes from 0 to 255.
    pub fn is_byte(dtype: &DType) -> bool {
        (dtype.kind(), dtype.size()) == (&DTypeKind::UInt, 1)
    }

    /// Returns an item as a number; NaN if it stands for a missing value.
    fn sample(self, item: &[u8], missing: Option<u64>) -> f64 {
        let bits = self.number.load(item);
        let is_nat = self.has_nat && self.number.integer(bits) == i64::MIN.into();
        if is_nat || missing == Some(bits) {
            f64::NAN
        } else {
            self.number.float(bits)
        }
    }

    /// Returns the bits of the items that stand for missing values.
    fn missing(self, array: &Described) -> Option<u64> {
        match array.nodata? {
            MetadataNumber::Int(number) if self.number.kind != NumberKind::Float => {
                self.number.integer_bits(number)
            }
            number => self.number.nearest(number.as_f64()),
        }
    }
}

impl SampledPlane<'_> {
    /// Reads the samples, band by band and row by row; NaN is missing. Samples are scaled as the
    /// attributes of the array say.
    ///
    /// # Errors
    ///
    /// A chunk cannot be read or decoded, or is too short.
    pub fn read(&self) -> Result<Vec<f64>> {
        let frame = self.frame;
        let grid = self.level.grid()?;
        let chunks = self.chunks(&grid);
        let band_count = frame.channels.map_or(1, |(_, count)| count);
        let pixels = frame.width as usize * frame.height as usize;
        let samples = Mutex::new(vec![f64::NAN; pixels * band_count]);
        let next = AtomicUsize::new(0);
        let threads = if self.level.is_remote {
            TOGETHER
        } else {
            processors()
        };
        on_threads(threads.min(chunks.count()), &|| {
            while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let read = self.read_chunk(&grid, chunk, &samples);
                if read.is_err() {
                    next.store(chunks.count(), Ordering::Relaxed);
                }
                read?;
            }
            Ok(())
        })?;
        Ok(samples.into_inner().unwrap_or_else(|e| e.into_inner()))
    }

    /// Reads a chunk, and sets the samples of the pixels that show its items.
    fn read_chunk(
        &self,
        grid: &Grid,
        pixels: [&ChunkPixels; 3],
        samples: &Mutex<Vec<f64>>,
    ) -> Result<()> {
        let frame = self.frame;
        let metadata = &self.level.metadata;
        let kind = SampleType::of(&self.array.metadata.dtype).ok_or_else(Error::stale)?;
        let dimensions = [
            frame.channels.map(|(dimension, _)| dimension),
            Some(frame.y),
            Some(frame.x),
        ];
        let mut indices = vec![0; metadata.shape.len()];
        for (dimension, part) in dimensions.iter().zip(pixels) {
            if let Some(dimension) = *dimension {
                indices[dimension] = part.chunk;
            }
        }
        let shape = metadata.chunk_shape(&indices);
        let [band_step, row_step, column_step] =
            dimensions.map(|dimension| dimension.map_or(0, |along| step(&shape, along)));
        let size = metadata.dtype.size();
        let mut fill = vec![0; size];
        metadata.write_fill(&mut fill, 0);
        let chunk = self.level.chunks.read(grid.chunk(&indices))?;
        let bytes = chunk.as_ref().map(|bytes| (**bytes).as_ref());
        let missing = kind.missing(self.array);
        let [scale, offset] = self.scaling();
        let [width, height] = [frame.width, frame.height].map(|len| len as usize);
        let mut samples = lock(samples);
        for (band, band_at) in &pixels[0].pixels {
            for (row, row_at) in &pixels[1].pixels {
                let start = band_at * band_step + row_at * row_step;
                for (column, column_at) in &pixels[2].pixels {
                    let at = (start + column_at * column_step) as usize * size;
                    let item = match bytes {
                        Some(bytes) => bytes.get(at..at + size),
                        None => Some(fill.as_slice()),
                    };
                    let item = item.ok_or_else(|| {
                        Error::damaged("a chunk is too short").context(&self.level.key)
                    })?;
                    let sample = kind.sample(item, missing);
                    samples[(band * height + row) * width + column] = sample * scale + offset;
                }
            }
        }
        Ok(())
    }

    /// Returns the factor of stored values and the term that is added, which the attributes have; 1
    /// and 0 for the bytes of colors.
    fn scaling(&self) -> [f64; 2] {
        if matches!(self.frame.rule, ColorRule::Rgb { .. }) {
            return [1.0, 0.0];
        }
        let scale = self.array.scale.filter(|x| x.is_finite());
        let offset = self.array.offset.filter(|x| x.is_finite());
        [scale.unwrap_or(1.0), offset.unwrap_or(0.0)]
    }

    /// Returns the chunks that are read, at most [`MAX_CHUNKS`] of each band.
    pub fn chunks(&self, grid: &Grid) -> SampledChunks {
        let bands = match self.frame.channels {
            Some((dimension, count)) => {
                self.pixels(grid, dimension, count as u64, count, MAX_CHUNKS)
            }
            None => vec![ChunkPixels {
                chunk: 0,
                items: 0..1,
                pixels: vec![(0, 0)],
            }],
        };
        let [rows, columns] = self.plane(grid);
        SampledChunks {
            bands,
            rows,
            columns,
        }
    }

    /// Returns the pixels of the rows and of the columns by chunk.
    fn plane(&self, grid: &Grid) -> [Vec<ChunkPixels>; 2] {
        let frame = self.frame;
        let all_rows = self.along(grid, frame.y, frame.height, usize::MAX).len();
        let all_columns = self.along(grid, frame.x, frame.width, usize::MAX).len();
        let mut best = (f64::INFINITY, 1, 1);
        for rows in 1..=all_rows.min(MAX_CHUNKS) {
            let columns = all_columns.min(MAX_CHUNKS / rows);
            let of_rows = gap(frame.height, all_rows, rows);
            let widest = of_rows.max(gap(frame.width, all_columns, columns));
            if widest < best.0 {
                best = (widest, rows, columns);
            }
        }
        let (_, kept_rows, kept_columns) = best;
        let mut rows = self.along(grid, frame.y, frame.height, kept_rows);
        let mut columns = self.along(grid, frame.x, frame.width, kept_columns);
        if frame.is_bottom_up {
            reverse(&mut rows, frame.height as usize);
        }
        if frame.is_right_to_left {
            reverse(&mut columns, frame.width as usize);
        }
        [rows, columns]
    }

    /// Returns the pixels along a whole dimension, as [`SampledPlane::pixels`] does.
    fn along(&self, grid: &Grid, dimension: usize, count: u32, kept: usize) -> Vec<ChunkPixels> {
        let len = self.level.metadata.shape[dimension];
        self.pixels(grid, dimension, len, count as usize, kept)
    }

    /// Returns the `count` pixels along the first `len` items of a dimension by the chunks whose
    /// items they show: those nearest to their centers in at most `kept` chunks, which are spread
    /// evenly over the chunks with these centers.
    fn pixels(
        &self,
        grid: &Grid,
        dimension: usize,
        len: u64,
        count: usize,
        kept: usize,
    ) -> Vec<ChunkPixels> {
        let edges = &self.level.metadata.chunk_edges()[dimension];
        let last_chunk = grid.counts()[dimension].saturating_sub(1);
        let centers: Vec<u64> = (0..count as u64)
            .map(|pixel| center(pixel, count as u64, len))
            .collect();
        let chunks = centers
            .iter()
            .map(|item| edges.index_of(*item).min(last_chunk));
        let mut chunks: Vec<u64> = chunks.collect();
        chunks.dedup();
        let all = chunks.len();
        if all > kept {
            let spread = (0..kept).map(|number| chunks[(2 * number + 1) * all / (2 * kept)]);
            chunks = spread.collect();
        }
        let found = chunks.into_iter().map(|chunk| {
            let span = edges.span(chunk);
            ChunkPixels {
                chunk,
                items: span.start..span.end.min(len).max(span.start + 1),
                pixels: Vec::new(),
            }
        });
        let mut found: Vec<ChunkPixels> = found.collect();
        for (pixel, center) in centers.into_iter().enumerate() {
            let distance = |part: &&mut ChunkPixels| part.nearest(center).abs_diff(center);
            if let Some(part) = found.iter_mut().min_by_key(distance) {
                let item = part.nearest(center) - part.items.start;
                part.pixels.push((pixel, item));
            }
        }
        found.retain(|part| !part.pixels.is_empty());
        found
    }
}

impl ChunkPixels {
    /// Returns the item of the chunk that is nearest to an item of the dimension.
    fn nearest(&self, item: u64) -> u64 {
        item.clamp(self.items.start, self.items.end - 1)
    }
}

/// Returns the number of items of a chunk from one index of a dimension to the next.
fn step(shape: &[u64], dimension: usize) -> u64 {
    let faster = shape[dimension + 1..].iter();
    faster.fold(1, |items, len| items.saturating_mul(*len))
}

/// Returns the widest gap between the pixels of two chunks that are read, in pixels, if `kept` of
/// `all` chunks along `count` pixels are.
fn gap(count: u32, all: usize, kept: usize) -> f64 {
    f64::from(count) / kept as f64 - f64::from(count) / all as f64
}

/// Returns the item at the center of a pixel, of `count` pixels over `len` items.
fn center(pixel: u64, count: u64, len: u64) -> u64 {
    let item = (2 * u128::from(pixel) + 1) * u128::from(len) / (2 * u128::from(count));
    u64::try_from(item).unwrap_or(u64::MAX)
}

/// Lets the first pixel of a dimension be the last one.
fn reverse(chunks: &mut [ChunkPixels], count: usize) {
    for (pixel, _) in chunks.iter_mut().flat_map(|chunk| &mut chunk.pixels) {
        *pixel = count - 1 - *pixel;
    }
}
