//! Arrays that a test creates itself, so that it knows every byte. The chunks are cut out of the
//! flat bytes as the Zarr specification defines them, and encoded by the crate's own codecs.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use zarrfs_format::metadata::{ArrayMetadata, Order};
use zarrfs_format::pipeline::Pipeline;

/// An array in a directory store, and the bytes that it should have.
pub struct TestArray {
    pub path: PathBuf,
    /// The bytes that `data.raw` must show.
    pub flat: Vec<u8>,
    document: Value,
    shape: Vec<usize>,
    chunks: Vec<usize>,
    item: usize,
    pipeline: Pipeline,
}

/// Returns compressible bytes in which no two words of 8 bytes are equal. Patterns of other seeds
/// have other words.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    for i in 0..len.div_ceil(8) as u64 {
        let noise = (i ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (noise >> 48 & 0x0f0f) | (i & 0xff_ffff) << 16 | seed << 56;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns metadata fields that compress chunks with zlib.
pub fn zlib() -> Value {
    json!({"compressor": {"id": "zlib", "level": 1}})
}

impl TestArray {
    /// Creates an array of unsigned bytes, uncompressed, without stored chunks. The fields in
    /// `more` replace those of the metadata document.
    pub fn new(path: PathBuf, shape: &[usize], chunks: &[usize], more: Value) -> TestArray {
        let mut document = json!({"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1",
            "compressor": null, "fill_value": 0, "order": "C", "filters": null, "dimension_separator": "."});
        document
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let mut meta = ArrayMetadata::parse(document.to_string().as_bytes()).unwrap();
        let item = meta.dtype.size();
        // the tests change the order of the items themselves
        meta.order = Order::C;
        let pipeline = Pipeline::new(&meta, item * chunks.iter().product::<usize>()).unwrap();
        let flat = vec![0; item * shape.iter().product::<usize>()];
        let shape = shape.to_vec();
        let chunks = chunks.to_vec();
        let made = TestArray {
            path,
            flat,
            document,
            shape,
            chunks,
            item,
            pipeline,
        };
        fs::create_dir_all(&made.path).unwrap();
        replace(
            &made.path.join(".zarray"),
            made.document.to_string().as_bytes(),
        );
        made
    }

    /// Creates an array as [`TestArray::new`] does, and stores all its chunks.
    pub fn with_chunks(path: PathBuf, shape: &[usize], chunks: &[usize], more: Value) -> TestArray {
        let mut made = TestArray::new(path, shape, chunks, more);
        made.flat = pattern(1, made.flat.len());
        for index in made.grid() {
            made.put(&index);
        }
        made
    }

    /// Creates an array of one dimension with `count` stored chunks of `size` zeros.
    pub fn with_zeros(path: PathBuf, size: usize, count: usize, more: Value) -> TestArray {
        let made = TestArray::new(path, &[size * count], &[size], more);
        let chunk = made.encoded(&[0]);
        for index in 0..count {
            replace(&made.file(&[index]), &chunk);
        }
        made
    }

    /// Returns the metadata document as it is stored.
    pub fn text(&self) -> String {
        self.document.to_string()
    }

    /// Returns the indices of all chunks, in C order.
    pub fn grid(&self) -> Vec<Vec<usize>> {
        let counts: Vec<usize> = self
            .shape
            .iter()
            .zip(&self.chunks)
            .map(|(s, c)| s.div_ceil(*c))
            .collect();
        indices(&counts)
    }

    /// Returns the size in bytes of a decoded chunk.
    pub fn chunk_size(&self) -> usize {
        self.item * self.chunks.iter().product::<usize>()
    }

    /// Returns the size in bytes of a row, along the last dimension.
    pub fn row(&self) -> usize {
        self.item * self.shape.last().unwrap_or(&1)
    }

    /// Returns the path of a stored chunk.
    pub fn file(&self, index: &[usize]) -> PathBuf {
        let separator = self.document["dimension_separator"].as_str().unwrap();
        self.path.join(
            index
                .iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(separator),
        )
    }

    /// Returns the name of a chunk file in the mount.
    pub fn chunk_name(index: &[usize]) -> String {
        index
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(".")
    }

    /// Returns the parts of rows that a chunk holds, each as its flat offset, its length and its
    /// offset in the chunk, in bytes.
    pub fn rows(&self, index: &[usize]) -> Vec<(usize, usize, usize)> {
        let dims = 0..self.shape.len();
        let first: Vec<usize> = dims.clone().map(|d| index[d] * self.chunks[d]).collect();
        let mut inside: Vec<usize> = dims
            .clone()
            .map(|d| self.chunks[d].min(self.shape[d] - first[d]))
            .collect();
        let row = inside.pop().unwrap_or(1) * self.item;
        inside.push(1);
        let position = |at: &mut dyn FnMut(usize) -> usize, sizes: &[usize]| {
            dims.clone()
                .fold(0, |position, d| position * sizes[d] + at(d))
                * self.item
        };
        let rows = indices(&inside).into_iter().map(|at| {
            let flat = position(&mut |d| first[d] + at[d], &self.shape);
            (flat, row, position(&mut |d| at[d], &self.chunks))
        });
        rows.collect()
    }

    /// Returns the expected content of a chunk file: the decoded bytes in the array's own order.
    /// The padding is 0xee.
    pub fn chunk(&self, index: &[usize]) -> Vec<u8> {
        let mut chunk = vec![0xee; self.chunk_size()];
        for (flat, len, at) in self.rows(index) {
            chunk[at..at + len].copy_from_slice(&self.flat[flat..flat + len]);
        }
        self.reordered(&chunk, true)
    }

    /// Converts a chunk from C order to the array's own order, or back.
    fn reordered(&self, chunk: &[u8], to_own: bool) -> Vec<u8> {
        let mut out = chunk.to_vec();
        if self.document["order"] == "F" {
            // positions in order F of the items in C order, built from the last dimension to the
            // first
            let mut positions = vec![0];
            let mut count = self.chunks.iter().product::<usize>();
            for &size in self.chunks.iter().rev() {
                count /= size.max(1);
                positions = (0..size)
                    .flat_map(|i| positions.iter().map(move |p| p + i * count))
                    .collect();
            }
            for (c, f) in positions.into_iter().enumerate() {
                let (from, to) = if to_own {
                    (c * self.item, f * self.item)
                } else {
                    (f * self.item, c * self.item)
                };
                out[to..to + self.item].copy_from_slice(&chunk[from..from + self.item]);
            }
        }
        out
    }

    /// Creates the array `a` in a new group, with these attributes.
    pub fn in_group(
        shape: &[usize],
        chunks: &[usize],
        more: Value,
        attributes: &str,
    ) -> (tempfile::TempDir, TestArray) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
        let array = TestArray::with_chunks(folder.path().join("a"), shape, chunks, more);
        std::fs::write(array.path.join(".zattrs"), attributes).unwrap();
        (folder, array)
    }

    /// Updates `flat` with the decoded bytes of a chunk in the array's own order.
    pub fn set_chunk(&mut self, index: &[usize], bytes: &[u8]) {
        let chunk = self.reordered(bytes, false);
        for (flat, len, at) in self.rows(index) {
            self.flat[flat..flat + len].copy_from_slice(&chunk[at..at + len]);
        }
    }

    /// Returns the bytes of a chunk without padding, taken from `flat` row by row.
    pub fn inside(&self, flat: &[u8], index: &[usize]) -> Vec<u8> {
        // whole rows: a debug build takes long to copy single bytes
        let mut inside = Vec::with_capacity(self.chunk_size());
        self.rows(index)
            .into_iter()
            .for_each(|(at, len, _)| inside.extend_from_slice(&flat[at..at + len]));
        inside
    }

    /// Returns the bytes of a chunk without padding as the store has them, row by row. A chunk that
    /// is not stored has the fill value 0. Returns a reason if the chunk cannot be decoded.
    pub fn stored(&self, index: &[usize]) -> Result<Vec<u8>, String> {
        let bytes = match fs::read(self.file(index)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => vec![0; self.chunk_size()],
            Err(e) => return Err(e.to_string()),
            Ok(stored) => {
                let mut decoded = Vec::new();
                self.pipeline
                    .decode(&stored, &mut decoded)
                    .map_err(|e| e.to_string())?;
                self.reordered(&decoded, false)
            }
        };
        let mut stored = Vec::with_capacity(bytes.len());
        self.rows(index)
            .into_iter()
            .for_each(|(_, len, at)| stored.extend_from_slice(&bytes[at..at + len]));
        Ok(stored)
    }

    /// Returns the flat bytes of the whole array as the store has them.
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

    /// Returns the encoded bytes of a chunk.
    pub fn encoded(&self, index: &[usize]) -> Vec<u8> {
        let mut stored = Vec::new();
        self.pipeline
            .encode(&self.chunk(index), &mut stored)
            .unwrap();
        stored
    }

    /// Returns the decoded bytes of a stored chunk in the array's own order, or `None` if it is not
    /// stored.
    pub fn decoded_in_own_order(&self, index: &[usize]) -> Option<Vec<u8>> {
        let stored = fs::read(self.file(index)).ok()?;
        let mut chunk = Vec::new();
        self.pipeline.decode(&stored, &mut chunk).unwrap();
        Some(chunk)
    }

    /// Returns the decoded bytes of a stored chunk in C order, or `None` if it is not stored.
    pub fn decoded(&self, index: &[usize]) -> Option<Vec<u8>> {
        Some(self.reordered(&self.decoded_in_own_order(index)?, false))
    }

    /// Stores a chunk as a new file, which is renamed over an existing one.
    pub fn put(&self, index: &[usize]) {
        replace(&self.file(index), &self.encoded(index));
    }

    /// Gives a chunk other bytes in `flat`. The store is not changed.
    pub fn change(&mut self, index: &[usize], seed: u64) {
        let fresh = pattern(seed, self.flat.len());
        for (flat, len, _) in self.rows(index) {
            self.flat[flat..flat + len].copy_from_slice(&fresh[flat..flat + len]);
        }
    }

    /// Gives a chunk the fill value 0 in `flat`. The store is not changed.
    pub fn clear(&mut self, index: &[usize]) {
        for (flat, len, _) in self.rows(index) {
            self.flat[flat..flat + len].fill(0);
        }
    }
}

/// Returns all indices below these counts, in C order.
fn indices(counts: &[usize]) -> Vec<Vec<usize>> {
    counts.iter().fold(vec![Vec::new()], |all, &count| {
        all.iter()
            .flat_map(|index| (0..count).map(move |i| [index.as_slice(), &[i]].concat()))
            .collect()
    })
}

/// Creates or replaces a file by renaming a new one. Creates missing directories above it.
pub fn replace(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let unfinished = path.with_file_name(".zarrfs-made");
    fs::write(&unfinished, bytes).unwrap();
    fs::rename(unfinished, path).unwrap();
}
