//! The codecs of one array in sequence: filters, then compressor, as zarr-python's `_encode_chunk`
//! applies them, and in reverse for decoding. The pipeline knows a bound for every intermediate
//! result. So no codec writes more than expected, and decoding takes no more memory than one chunk
//! may, whatever filters a document names.

use crate::codec::{
    Codec, CodecConfig, CodecResult, ItemTypes, PartialDecode, SeekPoints, Size, build, spec_of,
    transposition,
};
use crate::metadata::{ArrayMetadata, Order};
use std::borrow::Cow;
use std::ops::Range;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::Value;
use zarrfs_base::memory::{self, Spares};

/// Maximum size in bytes of a chunk of encoded objects, which the metadata do not bound.
const MAX_OBJECT_CHUNK: usize = 256 << 20;

/// Maximum size of an intermediate result in bytes: that of a decoded chunk.
const MAX_INTERMEDIATE: usize = (1 << 31) - 1;

/// Maximum size in bytes of shuffled items of which a part is decoded: each byte of an item is
/// decoded from a segment of its own.
const MAX_SHUFFLED: usize = 16;

/// Number of bytes by which another encoder's output may exceed twice the bound of this crate's
/// encoder.
const SLACK: usize = 1 << 16;

/// Second buffers for intermediate results, kept for the next chunk unless they are large.
static SCRATCH: Spares<Vec<u8>> = Spares::new();

/// The codecs of an array, ready to use.
///
/// ```
/// use zarrfs_format::metadata::ArrayMetadata;
/// use zarrfs_format::pipeline::Pipeline;
///
/// let metadata = ArrayMetadata::parse(br#"{"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i2", "order": "C",
///     "fill_value": 0, "compressor": {"id": "zlib", "level": 1}, "filters": null}"#)?;
/// let pipeline = Pipeline::new(&metadata, 8)?;
/// let (mut stored, mut decoded) = (Vec::new(), Vec::new());
/// pipeline.encode(&[1, 0, 2, 0, 3, 0, 4, 0], &mut stored)?;
/// pipeline.decode(&stored, &mut decoded)?;
/// assert_eq!(decoded, [1, 0, 2, 0, 3, 0, 4, 0]);
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
pub struct Pipeline {
    /// The codecs in the order of encoding.
    steps: Vec<Box<dyn Codec>>,
    /// `sizes[i]` is the size of the input of `steps[i]` when encoding; the last one is the stored
    /// size.
    sizes: Vec<Size>,
    /// Number of the first steps that only change the order of items.
    transpositions: usize,
}

impl Pipeline {
    /// Creates the pipeline of `meta` for decoded chunks of `chunk_size` bytes. It leaves out an
    /// object codec: a decoded chunk of objects is the output of that codec.
    ///
    /// # Errors
    ///
    /// The errors of [`build`], and [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if
    /// an intermediate result may be too large.
    pub fn new(meta: &ArrayMetadata, chunk_size: usize) -> Result<Self> {
        Self::with_filters(meta, &meta.filters, chunk_size)
    }

    /// Creates a pipeline like [`Pipeline::new`], with other filters than those of the largest
    /// chunk.
    ///
    /// # Errors
    ///
    /// The errors of [`Pipeline::new`].
    pub fn with_filters(
        meta: &ArrayMetadata,
        filters: &[CodecConfig],
        chunk_size: usize,
    ) -> Result<Self> {
        let kept = usize::from(meta.object_codec().is_some());
        let (size, itemsize) = if meta.has_objects() {
            (Size::AtMost(MAX_OBJECT_CHUNK), 1)
        } else {
            (Size::Exact(chunk_size), meta.dtype.size())
        };
        let order = (meta.order == Order::F && meta.chunks.len() > 1 && !meta.has_objects())
            .then(|| f_order(&meta.chunks));
        let configs = order
            .iter()
            .chain(filters.iter().skip(kept))
            .chain(&meta.compressor);
        let mut shape = meta.chunks.clone();
        if meta.order == Order::F {
            shape.reverse();
        }
        let input = (Some(&meta.dtype_json), shape);
        Self::of(configs, (size, itemsize), input, chunk_size)
    }

    /// Creates a pipeline for opaque values of at most `bound` bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`Pipeline::new`].
    pub fn of_bytes(configs: &[CodecConfig], bound: usize) -> Result<Self> {
        Self::of(
            configs.iter(),
            (Size::AtMost(bound), 1),
            (None, Vec::new()),
            bound,
        )
    }

    /// Creates a pipeline for values of exactly `size` bytes, in items of `itemsize` bytes, whose
    /// encoding also has an exact size.
    ///
    /// # Errors
    ///
    /// The errors of [`Pipeline::new`], and [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged)
    /// for a codec without a fixed size.
    pub fn of_exact_bytes(configs: &[CodecConfig], size: usize, itemsize: usize) -> Result<Self> {
        let pipeline = Self::of(
            configs.iter(),
            (Size::Exact(size), itemsize),
            (None, Vec::new()),
            size,
        )?;
        if pipeline.sizes.iter().all(|size| size.is_exact()) {
            Ok(pipeline)
        } else {
            Err(Error::damaged("a codec has no fixed size"))
        }
    }

    /// Creates a pipeline for values of a size and item size in bytes, and of a dtype and a shape
    /// that the codecs may need.
    fn of<'a>(
        configs: impl Iterator<Item = &'a CodecConfig>,
        (mut size, mut itemsize): (Size, usize),
        (mut dtype, mut shape): (Option<&'a Value>, Vec<u64>),
        chunk_size: usize,
    ) -> Result<Self> {
        let mut steps = Vec::new();
        let mut sizes = vec![size];
        let mut transpositions = 0;
        for config in configs {
            let codec = build(&with_input(config, dtype, &shape), itemsize)?;
            dtype = encoded_dtype(config, dtype);
            if ["delta", "fixedscaleoffset"].contains(&config.id.as_str()) {
                // numcodecs makes an array of one dimension
                shape = vec![shape.iter().fold(1, |n, len| len.saturating_mul(n))];
            }
            itemsize = codec.encoded_itemsize();
            let encoded = codec.encoded_size(size.max());
            size = if size.is_exact() {
                encoded
            } else {
                Size::AtMost(encoded.max())
            };
            if size.max() > MAX_INTERMEDIATE && size.max() > room(chunk_size) {
                let why = format!(
                    "codec {:?} makes {} bytes of a chunk of {chunk_size}",
                    config.id,
                    size.max()
                );
                return Err(Error::unsupported(format!(
                    "{why}, more than {MAX_INTERMEDIATE}"
                )));
            }
            transpositions +=
                usize::from(config.id == "transpose" && transpositions == steps.len());
            sizes.push(size);
            steps.push(codec);
        }
        Ok(Pipeline {
            steps,
            sizes,
            transpositions,
        })
    }

    /// Returns whether chunks are stored decoded.
    pub fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns whether stored chunks can be told from decoded ones, by their size or by what a
    /// compressor checks.
    pub fn is_recognizable(&self) -> bool {
        self.sizes.first() != self.sizes.last()
    }

    /// Returns whether every chunk that can be encoded decodes to the same bytes.
    pub fn is_lossless(&self) -> bool {
        self.steps.iter().all(|step| step.is_lossless())
    }

    /// Returns the way to decode a part of a chunk.
    pub fn partial_decode(&self) -> PartialDecode {
        match self.steps.as_slice() {
            [] => PartialDecode::Plain,
            [step] => step.partial_decode(),
            [filter, step]
                if filter
                    .shuffled_itemsize()
                    .is_some_and(|n| n <= MAX_SHUFFLED) =>
            {
                match step.partial_decode() {
                    PartialDecode::Seek => PartialDecode::Seek,
                    _ => PartialDecode::No,
                }
            }
            _ => PartialDecode::No,
        }
    }

    /// Returns whether items are shuffled before they are compressed.
    pub fn is_shuffled(&self) -> bool {
        self.shuffled_itemsize() > 1
    }

    /// Returns the size of the items that are shuffled before they are compressed, or 1.
    fn shuffled_itemsize(&self) -> usize {
        let first = self.steps.first();
        first.and_then(|step| step.shuffled_itemsize()).unwrap_or(1)
    }

    /// Returns the whole items of a chunk that hold the bytes of `range`, and the ranges of the
    /// compressed value's decoded bytes that hold those items. The pipeline must have
    /// [`PartialDecode::Seek`], and the chunk `size` bytes.
    pub fn part(&self, range: Range<usize>, size: usize) -> (Range<usize>, Vec<Range<usize>>) {
        let itemsize = self.shuffled_itemsize();
        let items = range.start / itemsize..range.end.div_ceil(itemsize);
        let plane = size / itemsize;
        let in_planes = (0..itemsize).map(|n| n * plane + items.start..n * plane + items.end);
        (
            items.start * itemsize..items.end * itemsize,
            in_planes.collect(),
        )
    }

    /// Decodes one of the ranges of [`Pipeline::part`] from the stored bytes of
    /// [`SeekPoints::stored_range`], and appends it to `joined`. `other` is scratch memory.
    ///
    /// # Errors
    ///
    /// If the stored bytes are not those of which `points` were made.
    pub fn decode_range(
        &self,
        points: &SeekPoints,
        range: Range<usize>,
        stored: &[u8],
        (other, joined): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> CodecResult<()> {
        if let Some(compressor) = self.steps.last() {
            let start = compressor.decode_part(points, range, stored, other)?;
            joined.extend_from_slice(&other[start..]);
        }
        Ok(())
    }

    /// Returns the items of which `joined` holds all ranges of [`Pipeline::part`].
    ///
    /// # Errors
    ///
    /// If `joined` holds no whole number of items.
    pub fn join(&self, joined: Vec<u8>) -> CodecResult<Vec<u8>> {
        match self.steps.as_slice() {
            [shuffle, _] => {
                let mut items = vec![0; joined.len()];
                shuffle.decode(&joined, &mut items)?;
                Ok(items)
            }
            _ => Ok(joined),
        }
    }

    /// Returns the memory in bytes for intermediate results while a chunk of `decoded` bytes is
    /// decoded or encoded: two buffers at a time. It follows from the chunk, not from the bound of
    /// [`Pipeline::of_bytes`], which may be far larger.
    pub fn scratch(&self, decoded: usize) -> usize {
        let between = self.steps.len().saturating_sub(1);
        let mut len = decoded;
        let mut largest = [0; 2];
        for (i, step) in self.steps[..between].iter().enumerate() {
            len = step.encoded_size(len).max();
            largest[i % 2] = len.max(largest[i % 2]);
        }
        largest[0].saturating_add(largest[1])
    }

    /// Returns the memory in bytes that the codecs take at most while `decoded` bytes are encoded,
    /// beside their forms.
    pub fn encoder_memory(&self, decoded: usize) -> usize {
        let mut len = decoded;
        let memory = self.steps.iter().map(|step| {
            let memory = step.encoder_memory(len);
            len = step.encoded_size(len).max();
            memory
        });
        memory.max().unwrap_or(0)
    }

    /// Returns the maximum size in bytes of a chunk that this crate encodes.
    pub fn max_encoded(&self) -> u64 {
        self.sizes.last().map_or(0, |size| size.max() as u64)
    }

    /// Returns the maximum size of a stored chunk in bytes.
    pub fn max_stored(&self) -> u64 {
        match self.sizes.last() {
            Some(Size::Exact(n)) => *n as u64,
            Some(Size::AtMost(n)) => room(*n) as u64,
            None => 0,
        }
    }

    /// Checks that a stored chunk may have `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it may not.
    pub fn check_stored_size(&self, len: u64) -> Result<()> {
        let decoded = self.sizes[0].max();
        match self.sizes.last() {
            Some(Size::Exact(n)) if len != *n as u64 => {
                Err(Error::damaged(format!("{len} bytes, it must have {n}")))
            }
            _ if len == 0 && decoded > 0 => Err(Error::damaged("empty")),
            _ if len > self.max_stored() => Err(Error::damaged(format!(
                "{len} bytes, more than the {} it may have",
                self.max_stored()
            ))),
            _ => Ok(()),
        }
    }

    /// Decodes a stored chunk into `decoded`, whose contents are replaced.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the chunk is damaged, and ENOMEM if
    /// there is not enough memory.
    pub fn decode(&self, stored: &[u8], decoded: &mut Vec<u8>) -> Result<()> {
        let room = memory::available_for_chunk();
        let between = &mut Vec::new();
        self.decode_within(stored, decoded, between, room, false)
            .map(|_| ())
    }

    /// Decodes as [`Pipeline::decode`] does, with at most `room` bytes of memory for the decoded
    /// chunk and intermediate results. `between` is a buffer for intermediate results. Returns the
    /// seek points of the compressed value if they are wanted and it has some.
    ///
    /// # Errors
    ///
    /// The errors of [`Pipeline::decode`].
    pub fn decode_within(
        &self,
        stored: &[u8],
        decoded: &mut Vec<u8>,
        between: &mut Vec<u8>,
        room: usize,
        wants_points: bool,
    ) -> Result<Option<SeekPoints>> {
        let mut points = None;
        let wanted = wants_points.then_some(&mut points);
        with_scratch(|scratch| {
            self.decode_steps((stored, decoded), (scratch, between), room, wanted)
        })?;
        if self.is_identity() {
            memory::reserve(decoded, stored.len())?;
            decoded.extend_from_slice(stored);
        }
        self.check_size(decoded.len()).map(|()| points)
    }

    /// Applies the steps in reverse. The last one decodes into `decoded`, the others into `input`
    /// and `other` in turn.
    fn decode_steps<'a>(
        &self,
        (stored, decoded): (&[u8], &mut Vec<u8>),
        (mut input, mut other): (&'a mut Vec<u8>, &'a mut Vec<u8>),
        room: usize,
        mut points: Option<&mut Option<SeekPoints>>,
    ) -> Result<()> {
        for (i, step) in self.steps.iter().enumerate().rev() {
            let left = room.saturating_sub(input.capacity());
            let from = if i + 1 == self.steps.len() {
                stored
            } else {
                input.as_slice()
            };
            let to = if i == 0 { &mut *decoded } else { &mut *other };
            // only those of the compressor are wanted
            let wanted = points.take();
            decode_step(step.as_ref(), from, self.sizes[i], (to, left), wanted)?;
            std::mem::swap(&mut input, &mut other);
        }
        Ok(())
    }

    /// Checks that a decoded chunk may have `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it may not.
    pub fn check_size(&self, len: usize) -> Result<()> {
        match self.sizes[0] {
            Size::Exact(n) if n != len => Err(Error::damaged(format!(
                "decoded to {len} bytes, the chunk has {n}"
            ))),
            _ => Ok(()),
        }
    }

    /// Encodes a decoded chunk into `stored`, whose contents are replaced.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if a codec cannot encode these bytes,
    /// or cannot encode with its parameters.
    pub fn encode(&self, decoded: &[u8], stored: &mut Vec<u8>) -> Result<()> {
        self.encode_with(decoded, stored, &mut Vec::new())
    }

    /// Encodes as [`Pipeline::encode`] does. `between` is a buffer for intermediate results.
    ///
    /// # Errors
    ///
    /// The errors of [`Pipeline::encode`].
    pub fn encode_with(
        &self,
        decoded: &[u8],
        stored: &mut Vec<u8>,
        between: &mut Vec<u8>,
    ) -> Result<()> {
        if self.is_identity() {
            memory::reserve(stored, decoded.len())?;
            stored.extend_from_slice(decoded);
            return Ok(());
        }
        let scratch = self.scratch(decoded.len());
        memory::check_chunk(decoded.len().saturating_add(scratch))?;
        with_scratch(|scratch| self.encode_steps(decoded, stored, scratch, between))
    }

    /// Checks that a chunk of `chunk_size` bytes can be encoded. It tries one item of zeros, then,
    /// for codecs that need more than an item, a whole chunk.
    ///
    /// # Errors
    ///
    /// The errors of [`Pipeline::encode`].
    pub fn check_encodes(&self, itemsize: usize, chunk_size: usize) -> Result<()> {
        let mut item = memory::zeroed(itemsize)?;
        // a transposition needs a whole chunk, and can't fail
        let mut steps = self.steps.iter().skip(self.transpositions);
        let done: CodecResult<()> = steps.try_for_each(|step| {
            let mut encoded = Vec::new();
            step.encode(&item, &mut encoded)?;
            item = encoded;
            Ok(())
        });
        done.or_else(|_| self.encode(&memory::zeroed(chunk_size)?, &mut Vec::new()))
    }

    /// Applies the steps. The last one encodes into `stored`, the others into `input` and `other`
    /// in turn.
    fn encode_steps<'a>(
        &self,
        decoded: &[u8],
        stored: &mut Vec<u8>,
        mut input: &'a mut Vec<u8>,
        mut other: &'a mut Vec<u8>,
    ) -> Result<()> {
        for (i, step) in self.steps.iter().enumerate() {
            let from = if i == 0 { decoded } else { input.as_slice() };
            let to = if i + 1 == self.steps.len() {
                &mut *stored
            } else {
                &mut *other
            };
            // reserves for the largest output; memory that the codec does not need is never touched
            memory::reserve(
                to,
                step.encoded_size(from.len()).max().min(room(from.len())),
            )?;
            step.encode(from, to).map_err(|e| Error::invalid(e.0))?;
            std::mem::swap(&mut input, &mut other);
        }
        Ok(())
    }
}

/// Returns the codec that changes chunks of shape `shape` from C layout to F layout.
fn f_order(shape: &[u64]) -> CodecConfig {
    let order: Vec<usize> = (0..shape.len()).rev().collect();
    transposition(shape, &order, false)
}

/// Returns the types of the items that a codec decodes and encodes.
fn item_types(config: &CodecConfig) -> ItemTypes {
    spec_of(&config.id).map_or(ItemTypes::Bytes, |spec| spec.items)
}

/// Returns `config`. A codec of numbers that does not state their type or the shape of the chunk
/// gets `dtype` and `shape`.
fn with_input<'a>(
    config: &'a CodecConfig,
    dtype: Option<&Value>,
    shape: &[u64],
) -> Cow<'a, CodecConfig> {
    let Some(dtype) = dtype.filter(|_| item_types(config) == ItemTypes::Numbers) else {
        return Cow::Borrowed(config);
    };
    let known = spec_of(&config.id).map_or(&[][..], |spec| spec.parameters);
    let mut config = Cow::Borrowed(config);
    for (name, value) in [("dtype", dtype.clone()), ("shape", shape.into())] {
        if known.contains(&name) && config.get(name).is_none() {
            config = Cow::Owned(config.into_owned().with(name, value));
        }
    }
    config
}

/// Returns the dtype of the items into which the codec `config` encodes items of type `dtype`, or
/// `None` for bytes.
fn encoded_dtype<'a>(config: &'a CodecConfig, dtype: Option<&'a Value>) -> Option<&'a Value> {
    match item_types(config) {
        ItemTypes::Stated { decoded, encoded } => config.get(encoded).or(config.get(decoded)),
        ItemTypes::Kept => dtype,
        _ => None,
    }
}

/// Calls `work` with a buffer for intermediate results.
fn with_scratch<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let done = work(&mut scratch);
    memory::release(&mut scratch);
    SCRATCH.keep(scratch);
    done
}

/// Returns the maximum size of an encoding by another program, where this crate's encoder needs at
/// most `n` bytes.
fn room(n: usize) -> usize {
    n.saturating_add(n).saturating_add(SLACK)
}

/// Decodes one step, whose output has the size `size`, into `to`, with at most `left` bytes of
/// memory. `points` receives the seek points of the input.
fn decode_step(
    codec: &dyn Codec,
    from: &[u8],
    size: Size,
    (to, left): (&mut Vec<u8>, usize),
    points: Option<&mut Option<SeekPoints>>,
) -> Result<()> {
    let wanted = match size {
        Size::Exact(n) => n,
        Size::AtMost(n) => room(n),
    };
    let len = wanted.min(left);
    if !size.is_exact() {
        memory::resize(to, len)?;
    } else if len < wanted {
        return memory::check_chunk(wanted.max(left + 1));
    } else {
        memory::resize_populated(to, len)?;
    }
    let decoded = match points {
        Some(points) => codec.decode_with_points(from, to).map(|(n, found)| {
            *points = found;
            n
        }),
        None => codec.decode(from, to),
    };
    let n = decoded.map_err(|e| {
        if len < wanted {
            Error::damaged(format!(
                "{}; there is memory for {len}: mount with a larger --cache-size",
                e.0
            ))
        } else {
            Error::damaged(e.0)
        }
    })?;
    if size.is_exact() && n != len {
        return Err(Error::damaged(format!(
            "decoded to {n} bytes where {len} are expected"
        )));
    }
    to.truncate(n);
    // a chunk of objects stays in memory and should not keep the reserved memory that it did not
    // need
    if !size.is_exact() && to.capacity() > 2 * n + SLACK {
        to.shrink_to_fit();
    }
    Ok(())
}
