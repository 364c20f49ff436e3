//! Arrays made by the test itself, so that it knows every byte: the chunks are cut out of the flat bytes by the
//! definition, and encoded by the crate's own codecs.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use zarrfs::zarr::codec::Pipeline;
use zarrfs::zarr::metadata::ArrayMetadata;

/// An array on disk.
pub struct Made {
    pub path: PathBuf,
    /// What `data.raw` must hold.
    pub flat: Vec<u8>,
    document: Value,
    shape: Vec<usize>,
    chunks: Vec<usize>,
    item: usize,
    pipeline: Pipeline,
}

/// Bytes that look alike to a codec and yet are different everywhere, and with every seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|i| {
        let noise = (i ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((noise >> 48 & 0x0f0f) | (i & 0xff_ffff) << 16 | seed << 56).to_le_bytes()
    });
    let mut bytes: Vec<u8> = words.collect();
    bytes.truncate(len);
    bytes
}

impl Made {
    /// Writes the document of an array, and no chunk. What is not named in `more` is as usual: bytes, uncompressed.
    pub fn new(path: PathBuf, shape: &[usize], chunks: &[usize], more: Value) -> Made {
        let mut document = json!({"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1",
            "compressor": null, "fill_value": 0, "order": "C", "filters": null, "dimension_separator": "."});
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let meta = ArrayMetadata::parse(document.to_string().as_bytes()).unwrap();
        let item = meta.dtype.size();
        let pipeline = Pipeline::new(&meta, item * chunks.iter().product::<usize>()).unwrap();
        let flat = vec![0; item * shape.iter().product::<usize>()];
        let (shape, chunks) = (shape.to_vec(), chunks.to_vec());
        let made = Made { path, flat, document, shape, chunks, item, pipeline };
        fs::create_dir_all(&made.path).unwrap();
        replace(&made.path.join(".zarray"), made.document.to_string().as_bytes());
        made
    }

    /// As [`Made::new`], with all chunks.
    pub fn full(path: PathBuf, shape: &[usize], chunks: &[usize], more: Value) -> Made {
        let mut made = Made::new(path, shape, chunks, more);
        made.flat = pattern(1, made.flat.len());
        for index in made.grid() {
            made.put(&index);
        }
        made
    }

    /// The document as it is stored.
    pub fn text(&self) -> String {
        self.document.to_string()
    }

    /// The indices of all chunks, in C order.
    pub fn grid(&self) -> Vec<Vec<usize>> {
        let counts: Vec<usize> = self.shape.iter().zip(&self.chunks).map(|(s, c)| s.div_ceil(*c)).collect();
        indices(&counts)
    }

    /// Bytes of a decoded chunk.
    pub fn chunk_size(&self) -> usize {
        self.item * self.chunks.iter().product::<usize>()
    }

    /// Bytes of a row of the array: the last dimension.
    pub fn row(&self) -> usize {
        self.item * self.shape.last().unwrap_or(&1)
    }

    /// The file of a chunk.
    pub fn file(&self, index: &[usize]) -> PathBuf {
        let separator = self.document["dimension_separator"].as_str().unwrap();
        self.path.join(index.iter().map(usize::to_string).collect::<Vec<_>>().join(separator))
    }

    /// The name of a chunk in the mount.
    pub fn name(index: &[usize]) -> String {
        index.iter().map(usize::to_string).collect::<Vec<_>>().join(".")
    }

    /// Rows of the array that lie in a chunk: the flat position and the length of each, and its position in the chunk,
    /// in bytes.
    pub fn rows(&self, index: &[usize]) -> Vec<(usize, usize, usize)> {
        let dims = 0..self.shape.len();
        let first: Vec<usize> = dims.clone().map(|d| index[d] * self.chunks[d]).collect();
        let mut inside: Vec<usize> = dims.clone().map(|d| self.chunks[d].min(self.shape[d] - first[d])).collect();
        let row = inside.pop().unwrap_or(1) * self.item;
        inside.push(1);
        let position = |at: &mut dyn FnMut(usize) -> usize, sizes: &[usize]| {
            dims.clone().fold(0, |position, d| position * sizes[d] + at(d)) * self.item
        };
        let rows = indices(&inside).into_iter().map(|at| {
            let flat = position(&mut |d| first[d] + at[d], &self.shape);
            (flat, row, position(&mut |d| at[d], &self.chunks))
        });
        rows.collect()
    }

    /// The decoded bytes of a chunk, in the array's own order: what the chunk file must hold. The padding is of 0xee.
    pub fn chunk(&self, index: &[usize]) -> Vec<u8> {
        let mut chunk = vec![0xee; self.chunk_size()];
        for (flat, len, at) in self.rows(index) {
            chunk[at..at + len].copy_from_slice(&self.flat[flat..flat + len]);
        }
        self.rearranged(&chunk, true)
    }

    /// A chunk of order C in the array's own order, or the other way round.
    fn rearranged(&self, chunk: &[u8], to_own: bool) -> Vec<u8> {
        let mut out = chunk.to_vec();
        if self.document["order"] == "F" {
            let reversed: Vec<usize> = self.chunks.iter().rev().copied().collect();
            for (f, at) in indices(&reversed).into_iter().enumerate() {
                let c = at.iter().rev().zip(&self.chunks).fold(0, |c, (i, size)| c * size + i);
                let (from, to) = if to_own { (c * self.item, f * self.item) } else { (f * self.item, c * self.item) };
                out[to..to + self.item].copy_from_slice(&chunk[from..from + self.item]);
            }
        }
        out
    }

    /// Gives the array's bytes of a chunk those of a decoded one, of the array's own order.
    pub fn set_chunk(&mut self, index: &[usize], bytes: &[u8]) {
        let chunk = self.rearranged(bytes, false);
        for (flat, len, at) in self.rows(index) {
            self.flat[flat..flat + len].copy_from_slice(&chunk[at..at + len]);
        }
    }

    /// The bytes of a chunk that lie in the array, as `flat` has them, row by row.
    pub fn inside(&self, flat: &[u8], index: &[usize]) -> Vec<u8> {
        self.rows(index).into_iter().flat_map(|(at, len, _)| &flat[at..at + len]).copied().collect()
    }

    /// What the store itself has of a chunk, its rows as of [`Made::inside`]: those of the fill value, 0, where there is
    /// no file; else why it can't be decoded.
    pub fn stored(&self, index: &[usize]) -> Result<Vec<u8>, String> {
        let bytes = match fs::read(self.file(index)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => vec![0; self.chunk_size()],
            Err(e) => return Err(e.to_string()),
            Ok(stored) => {
                let mut decoded = Vec::new();
                self.pipeline.decode(&stored, &mut decoded).map_err(|e| e.to_string())?;
                self.rearranged(&decoded, false)
            }
        };
        Ok(self.rows(index).into_iter().flat_map(|(_, len, at)| &bytes[at..at + len]).copied().collect())
    }

    /// What the store itself has of the whole array.
    pub fn stored_flat(&self) -> Result<Vec<u8>, String> {
        let mut flat = vec![0; self.flat.len()];
        for index in self.grid() {
            let stored = self.stored(&index).map_err(|e| format!("{index:?}: {e}"))?;
            let mut rows = stored.as_slice();
            for (at, len, _) in self.rows(&index) {
                let (row, rest) = rows.split_at(len);
                flat[at..at + len].copy_from_slice(row);
                rows = rest;
            }
        }
        Ok(flat)
    }

    /// The stored bytes of a chunk.
    pub fn encoded(&self, index: &[usize]) -> Vec<u8> {
        let mut stored = Vec::new();
        self.pipeline.encode(&self.chunk(index), &mut stored).unwrap();
        stored
    }

    /// What the store holds of a chunk, decoded, in the array's own order; None if it is not stored.
    pub fn decoded_own(&self, index: &[usize]) -> Option<Vec<u8>> {
        let stored = fs::read(self.file(index)).ok()?;
        let mut chunk = Vec::new();
        self.pipeline.decode(&stored, &mut chunk).unwrap();
        Some(chunk)
    }

    /// As [`Made::decoded_own`], of C layout.
    pub fn decoded(&self, index: &[usize]) -> Option<Vec<u8>> {
        Some(self.rearranged(&self.decoded_own(index)?, false))
    }

    /// Stores a chunk, by rename: a file that was there is replaced.
    pub fn put(&self, index: &[usize]) {
        replace(&self.file(index), &self.encoded(index));
    }

    /// Gives the array's bytes of a chunk other values. The store still has the old ones.
    pub fn change(&mut self, index: &[usize], seed: u64) {
        let fresh = pattern(seed, self.flat.len());
        for (flat, len, _) in self.rows(index) {
            self.flat[flat..flat + len].copy_from_slice(&fresh[flat..flat + len]);
        }
    }

    /// The array's bytes of a chunk are the fill value, 0. The store may still have it.
    pub fn clear(&mut self, index: &[usize]) {
        for (flat, len, _) in self.rows(index) {
            self.flat[flat..flat + len].fill(0);
        }
    }
}

/// All indices below these counts, in C order.
fn indices(counts: &[usize]) -> Vec<Vec<usize>> {
    counts.iter().fold(vec![Vec::new()], |all, &count| {
        all.iter().flat_map(|index| (0..count).map(move |i| [index.as_slice(), &[i]].concat())).collect()
    })
}

/// Writes a file by rename, and the directories above it.
pub fn replace(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let unfinished = path.with_file_name(".zarrfs-made");
    fs::write(&unfinished, bytes).unwrap();
    fs::rename(unfinished, path).unwrap();
}
