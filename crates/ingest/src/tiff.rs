//! A TIFF or BigTIFF file as one array of rows and columns, before them the bands, and before these
//! the pages. The attributes are those from which `data.tif` of a mount states the same place on
//! Earth, scaling and resolution: the reverse of `export/tiff.rs`, by its tables. Sources: TIFF
//! 6.0, GeoTIFF 1.1.

mod compression;
mod directory;
mod form;
mod geo;
mod values;

pub use values::TiffValues;

use super::{
    FilePlace, IncomingArray, ItemSource, MAX_CHUNK, MIN_CHUNK, byte_count, check_size,
    suitable_chunks,
};
use directory::TiffReader;
use form::{TiffForm, TiffPage};
use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{Map, Value, json};
use zarrfs_base::memory::Grant;
use zarrfs_export::tiff_format::{
    COLOR_MAP, COLOR_MAP_NAME, GDAL_NODATA, NEW_SUBFILE_TYPE, PALETTE, PHOTOMETRIC_NAME,
    nodata_item,
};
use zarrfs_format::dtype::DType;

/// Maximum number of pages and bands together, as in `data.tif`.
const MAX_PAGES: u64 = 1 << 16;

/// The bits of [`NEW_SUBFILE_TYPE`]: an image of lower resolution, and a mask.
const IS_REDUCED: u64 = 1;
const IS_MASK: u64 = 4;

/// The size in bytes to which chunks of several strips grow.
const CHUNK_SIZE: u64 = 4 << 20;

/// A file whose directories are read, and whose strips and tiles are all in the file.
pub struct TiffFile {
    array: IncomingArray,
    /// The memory of the directories.
    _held: Grant,
}

impl TiffFile {
    /// Reads the directories of a file of `len` bytes and checks them.
    ///
    /// # Errors
    ///
    /// Those of [`Incoming::open`](super::Incoming::open).
    pub fn open(file: &File, len: u64) -> Result<Self> {
        let mut reader = TiffReader::open(file, len)?;
        let mut pages: Vec<TiffPage> = Vec::new();
        let mut first = None;
        let mut seen = HashSet::new();
        let mut at = reader.first;
        while at != 0 {
            if !seen.insert(at) || seen.len() as u64 > MAX_PAGES {
                let why = format!("its pages are more than {MAX_PAGES}, or follow in a circle");
                return Err(Error::invalid(why));
            }
            let directory = reader.directory(at)?;
            at = directory.next;
            let number = seen.len();
            let kind = reader.one(&directory, NEW_SUBFILE_TYPE)?.unwrap_or(0);
            if kind & IS_MASK != 0 {
                let why = "a mask of pixels that are not valid, which an array does not have";
                return Err(Error::invalid(why).context(format!("page {number}")));
            }
            // a page of lower resolution can be made again
            if kind & IS_REDUCED != 0 {
                continue;
            }
            let read = TiffForm::read(&mut reader, &directory, len);
            let (form, page) = read.context(format!("page {number}"))?;
            match &first {
                Some((_, known)) if form != *known => {
                    let why = "another size, type or layout than the page before; an array has one";
                    return Err(Error::invalid(why).context(format!("page {number}")));
                }
                Some(_) => {}
                None => first = Some((directory, form)),
            }
            pages.push(TiffPage { number, ..page });
        }
        let Some((directory, form)) = first else {
            return Err(Error::invalid("a TIFF file without a page"));
        };
        let count = pages.len() as u64;
        if count.saturating_mul(form.samples) > MAX_PAGES {
            return Err(Error::invalid(format!("more than {MAX_PAGES} bands")));
        }
        let mut attributes = geo::attributes(&mut reader, &directory, form.samples)?;
        if form.photometric != 1 {
            attributes.insert(PHOTOMETRIC_NAME.to_string(), json!(form.photometric));
        }
        if form.photometric == u64::from(PALETTE) {
            if count > 1 {
                return Err(Error::invalid("several pages with palettes"));
            }
            let colors = reader.numbers(&directory, COLOR_MAP)?;
            attributes.insert(COLOR_MAP_NAME.to_string(), json!(colors));
        }
        let mut dimensions = page_dimensions(&attributes, count)?;
        if form.samples > 1 {
            dimensions.push(("band".to_string(), form.samples));
        }
        dimensions.push(("y".to_string(), form.rows));
        dimensions.push(("x".to_string(), form.columns));
        let (names, shape): (Vec<String>, Vec<u64>) = dimensions.into_iter().unzip();
        let item = form.item() as u64;
        check_size(byte_count(&shape, item), &shape, len)?;
        let dtype: Value = form.dtype().into();
        let nodata = reader.text(&directory, GDAL_NODATA)?;
        let parsed = DType::parse(&dtype)?;
        // a value that no item has marks nothing
        let missing = nodata.and_then(|text| nodata_item(&parsed, text.trim()));
        let (chunks, items) = match dense_place(&form, &pages, &shape) {
            Some(place) => (None, ItemSource::Place(place)),
            None => {
                let chunks = chunks(&form, &shape);
                let values = TiffValues::new(form, pages, shape.clone(), missing.as_deref());
                (chunks, ItemSource::Tiff(Arc::new(values)))
            }
        };
        Ok(TiffFile {
            array: IncomingArray {
                name: String::new(),
                dtype,
                shape,
                dimensions: Some(names),
                attributes,
                missing,
                chunks,
                items,
            },
            _held: reader.held,
        })
    }

    pub fn array(&self) -> IncomingArray {
        self.array.clone()
    }
}

/// Returns the names and lengths of the dimensions of so many pages: those that ImageJ and OME
/// describe, or one. Dimensions of length 1 are left out.
///
/// # Errors
///
/// ImageJ describes images that are no pages.
fn page_dimensions(attributes: &Map<String, Value>, pages: u64) -> Result<Vec<(String, u64)>> {
    let text = attributes.get("TIFFTAG_IMAGEDESCRIPTION");
    let text = text.and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str, end: &str| {
        let (_, value) = text.split_once(name)?;
        value.split(end).next()?.trim().parse::<u64>().ok()
    };
    let mut names = Vec::new();
    if text.starts_with("ImageJ=") {
        if let Some(images) = number("\nimages=", "\n").filter(|images| *images > pages) {
            let why = format!("ImageJ's stack of {images} images in {pages} pages");
            return Err(Error::invalid(why));
        }
        for (name, letter) in [("frames", "t"), ("slices", "z"), ("channels", "c")] {
            names.push((letter, number(&format!("\n{name}="), "\n")));
        }
    } else if let Some((_, order)) = text.split_once("DimensionOrder=\"XY") {
        for letter in order.chars().take_while(|c| *c != '"') {
            let name = match letter {
                'T' => "t",
                'Z' => "z",
                _ => "c",
            };
            names.insert(0, (name, number(&format!("Size{letter}=\""), "\"")));
        }
    }
    let named = names
        .into_iter()
        .map(|(name, len)| (name.to_string(), len.unwrap_or(1)));
    let mut found: Vec<(String, u64)> = named.filter(|(_, len)| *len != 1).collect();
    let lengths: Vec<u64> = found.iter().map(|(_, len)| *len).collect();
    if byte_count(&lengths, 1) != Some(pages) {
        found = vec![("page".to_string(), pages)];
    }
    found.retain(|(_, len)| *len != 1);
    Ok(found)
}

/// Returns where the items of the array lie, if they lie in the file at equal steps.
fn dense_place(form: &TiffForm, pages: &[TiffPage], shape: &[u64]) -> Option<FilePlace> {
    let is_plain = pages
        .iter()
        .all(|page| page.compression == compression::NONE);
    let has_parts = form.kind.part() != form.kind.size && form.is_big_endian;
    if !is_plain || has_parts || form.is_tiled || form.kind.is_half() {
        return None;
    }
    let item = form.kind.size as u64;
    let pixel = item * form.samples_of_block() as u64;
    let row = pixel * form.columns;
    let down = form.rows.div_ceil(form.block[0]) as usize;
    let mut planes = Vec::new();
    for page in pages {
        for strips in page.blocks.chunks(down) {
            let begin = strips[0].0;
            for (n, (at, size)) in strips.iter().enumerate() {
                let before = n as u64 * form.block[0];
                let needed = row * form.block[0].min(form.rows - before);
                if *at != begin.checked_add(before * row)? || *size < needed {
                    return None;
                }
            }
            planes.push(begin);
        }
    }
    let plane_step = planes
        .get(1)
        .map_or(Some(0), |next| next.checked_sub(planes[0]))?;
    if planes
        .windows(2)
        .any(|pair| pair[0].checked_add(plane_step) != Some(pair[1]))
    {
        return None;
    }
    // pages and bands of their own follow each other in the same steps
    let mut strides = vec![row, pixel];
    let outer = &shape[..shape.len() - 2];
    let mut step = plane_step;
    for (n, len) in outer.iter().enumerate().rev() {
        if n + 1 == outer.len() && form.samples > 1 && !form.is_planar {
            strides.insert(0, item);
        } else {
            strides.insert(0, step);
            step = step.saturating_mul(*len);
        }
    }
    Some(FilePlace {
        begin: planes[0],
        strides,
        item: form.kind.size,
        is_reversed: form.is_big_endian,
    })
}

/// Returns the shape of chunks that consist of whole strips or tiles, if it suits a store.
fn chunks(form: &TiffForm, shape: &[u64]) -> Option<Vec<u64>> {
    let [samples, mut rows, mut columns] = form.block_shape();
    let size = |rows: u64, columns: u64| {
        byte_count(&[samples, rows, columns], form.item() as u64).unwrap_or(u64::MAX)
    };
    if form.is_tiled {
        while size(rows, columns) < MIN_CHUNK && (rows < form.rows || columns < form.columns) {
            rows *= 2;
            columns *= 2;
        }
    } else {
        rows *= (CHUNK_SIZE / size(rows, columns)).max(1);
    }
    if size(rows, columns) > MAX_CHUNK {
        return None;
    }
    let mut lengths = vec![1; shape.len()];
    let last = shape.len() - 1;
    lengths[last] = columns;
    lengths[last - 1] = rows;
    if form.samples > 1 {
        lengths[last - 2] = samples;
    }
    suitable_chunks(&lengths, shape, form.item() as u64)
}

#[cfg(test)]
mod tests;
