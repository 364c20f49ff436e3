//! Codecs: from encoded chunk bytes to decoded ones and back. This file lists the codecs; each has
//! a file of its own with a [`CodecSpec`]. Any codec may be a compressor or a filter. A codec knows
//! neither keys nor stores nor documents: its error is a reason, to which the caller adds array and
//! key. Reference: numcodecs 0.15.

mod astype;
mod base64;
mod bitround;
mod blosc;
mod buffer;
mod bz2;
mod cast_value;
mod categorize;
mod checksum;
mod complex;
mod config;
mod deflate;
mod delta;
mod fixed_scale_offset;
mod flac;
mod foreign;
mod gzip;
mod items;
mod jenkins_lookup3;
mod low_bits;
mod lz4;
mod lzma;
mod lzma_filters;
mod number;
mod object;
mod packbits;
mod packbits_v3;
mod pcodec;
mod quantize;
mod scalar;
mod scale_offset;
mod seek_points;
mod shuffle;
mod spec;
mod streams;
#[cfg(test)]
mod testing;
mod transpose;
mod v3;
mod vlen_transpose;
mod zfp;
mod zlib;
mod zstd;

use std::ops::Range;
use zarrfs_base::error::Result;

pub use blosc::{BloscHeader, SHUFFLES};
pub use config::CodecConfig;
pub use foreign::{BEGINNING, foreign_content};
pub use jenkins_lookup3::hash as lookup3;
pub use object::check_objects;
pub use seek_points::SeekPoints;
pub use spec::{CodecSpec, Intermediate, ItemTypes, refused};
pub use transpose::transposition;
pub use v3::{ArrayInput, CodecKind};
pub use zstd::ZstdFrame;

/// All codecs.
pub(crate) static CODECS: [&CodecSpec; 39] = [
    &astype::SPEC,
    &base64::SPEC,
    &bitround::SPEC,
    &blosc::SPEC,
    &bz2::SPEC,
    &cast_value::SPEC,
    &categorize::SPEC,
    &checksum::ADLER32,
    &checksum::CRC32,
    &checksum::CRC32C,
    &checksum::FLETCHER32,
    &checksum::JENKINS_LOOKUP3,
    &delta::SPEC,
    &fixed_scale_offset::SPEC,
    &flac::SPEC,
    &gzip::SPEC,
    &low_bits::SPEC,
    &lz4::SPEC,
    &lzma::SPEC,
    &object::JSON2,
    &object::MSGPACK2,
    &object::PICKLE,
    &object::VLEN_ARRAY,
    &object::VLEN_BYTES,
    &object::VLEN_UTF8,
    &packbits::SPEC,
    &packbits_v3::SPEC,
    &pcodec::SPEC,
    &quantize::SPEC,
    &scale_offset::SPEC,
    &shuffle::SPEC,
    &transpose::SPEC,
    &vlen_transpose::SPEC,
    &zfp::ZFP,
    &zfp::ZFPY,
    &zlib::IMAGECODECS,
    &zlib::SPEC,
    &zstd::IMAGECODECS,
    &zstd::SPEC,
];

/// The reason why bytes cannot be decoded or encoded, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecError(pub String);

impl CodecError {
    /// Creates an error from its reason.
    pub fn new(reason: impl Into<String>) -> Self {
        CodecError(reason.into())
    }
}

/// The result of a codec.
pub type CodecResult<T> = std::result::Result<T, CodecError>;

/// Defers the error of a parameter that only encoding needs: numcodecs decodes arrays even if such
/// a parameter is wrong.
fn encode_only<T>(parameter: Result<T>) -> CodecResult<T> {
    parameter.map_err(|e| CodecError::new(e.message()))
}

/// A size in bytes that is either known or only bounded before the bytes are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Exactly this many bytes.
    Exact(usize),
    /// At most this many bytes.
    AtMost(usize),
}

impl Size {
    /// Returns whether the size is known.
    pub fn is_exact(self) -> bool {
        matches!(self, Size::Exact(_))
    }

    /// Returns the size, or its bound.
    pub fn max(self) -> usize {
        match self {
            Size::Exact(n) | Size::AtMost(n) => n,
        }
    }
}

/// The way to decode a part of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialDecode {
    /// Only the whole chunk can be decoded.
    No,
    /// Chunks are stored decoded, so any range of bytes can be read.
    Plain,
    /// Chunks are stored as blosc frames, whose blocks can be decoded; see
    /// [`BloscHeader`].
    Blosc,
    /// Chunks are stored as zstd frames, whose beginnings can be decoded; see
    /// [`ZstdFrame`].
    Zstd,
    /// A chunk that was decoded once has [`SeekPoints`], from which it can be decoded.
    Seek,
}

/// One step of a pipeline, set up with its parameters.
///
/// Damaged or hostile `encoded` bytes must end in a [`CodecError`]: a codec never panics and takes
/// no more memory than a constant factor of `out.len()`, whatever the bytes claim. Only `lzma` may
/// allocate up to 256 MiB more.
///
/// ```
/// use zarrfs_base::json;
/// use zarrfs_format::codec::build;
/// use zarrfs_format::metadata::CodecConfig;
///
/// let config = CodecConfig::parse(&json::parse(br#"{"id": "shuffle", "elementsize": 2}"#)?)?;
/// let codec = build(&config, 2)?;
/// let mut encoded = Vec::new();
/// codec.encode(&[1, 2, 3, 4], &mut encoded).unwrap();
/// assert_eq!(encoded, [1, 3, 2, 4]);
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
pub trait Codec: Send + Sync {
    /// Returns the size of the encoding of `decoded` bytes. The default is a bound that holds for
    /// all compressors.
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::AtMost(decoded.saturating_add(decoded / 8).saturating_add(1024))
    }

    /// Returns the item size of the encoding in bytes: 1 unless it consists of numbers. Blosc
    /// shuffles items of this size.
    fn encoded_itemsize(&self) -> usize {
        1
    }

    /// Returns the way to decode a part of an encoding.
    fn partial_decode(&self) -> PartialDecode {
        PartialDecode::No
    }

    /// Returns whether everything that [`Codec::encode`] accepts decodes to the same bytes.
    fn is_lossless(&self) -> bool {
        true
    }

    /// Decodes into the front of `out` and returns the number of bytes written. Writing fewer bytes
    /// than `out` holds is no error here.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or decode to more than `out` holds.
    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize>;

    /// Decodes as [`Codec::decode`] does, and returns the seek points of a value that fills `out`,
    /// if it has some. Only a codec with [`PartialDecode::Seek`] has.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decode`].
    fn decode_with_points(
        &self,
        encoded: &[u8],
        out: &mut [u8],
    ) -> CodecResult<(usize, Option<SeekPoints>)> {
        match self.decode_whole(encoded, out) {
            Some(points) => Ok((out.len(), points)),
            None => Ok((self.decode(encoded, out)?, None)),
        }
    }

    /// Decodes a value of one stream that fills `out`, and returns its seek points if it has some.
    /// Returns `None` for any other value, also for a damaged one.
    fn decode_whole(&self, _encoded: &[u8], _out: &mut [u8]) -> Option<Option<SeekPoints>> {
        None
    }

    /// Decodes the bytes of `range` from the stored bytes of [`SeekPoints::stored_range`]. Replaces
    /// `out` by bytes that end with them, and returns the number of bytes before them.
    ///
    /// # Errors
    ///
    /// If the stored bytes are not those of which `points` were made.
    fn decode_part(
        &self,
        _points: &SeekPoints,
        _range: Range<usize>,
        _stored: &[u8],
        _out: &mut Vec<u8>,
    ) -> CodecResult<usize> {
        Err(CodecError::new("has no seek points"))
    }

    /// Returns the size in bytes of the items that the codec shuffles, if it does nothing else.
    fn shuffled_itemsize(&self) -> Option<usize> {
        None
    }

    /// Returns the memory in bytes that encoding `decoded` bytes takes at most beside both forms.
    /// The default is for codecs that take some kilobytes.
    fn encoder_memory(&self, _decoded: usize) -> usize {
        0
    }

    /// Appends the encoding of `decoded` to `out`, which is empty.
    ///
    /// # Errors
    ///
    /// If these bytes cannot be encoded, or if a parameter that only encoding needs is wrong.
    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()>;
}

/// Returns what is known of the codec with this id in documents of v2.
pub fn spec_of(id: &str) -> Option<&'static CodecSpec> {
    CODECS.into_iter().find(|spec| spec.id == id)
}

/// Returns what is known of the codec with this name in documents of v3.
pub fn v3_spec_of(name: &str) -> Option<&'static CodecSpec> {
    CODECS
        .into_iter()
        .find(|spec| spec.v3_names.contains(&name))
}

/// Returns the codec that `config` names, for decoded items of `itemsize` bytes.
///
/// # Errors
///
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for an unknown id or parameter,
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) for a parameter of the wrong type or range.
pub fn build(config: &CodecConfig, itemsize: usize) -> Result<Box<dyn Codec>> {
    let spec = spec_of(&config.id).ok_or_else(|| spec::unknown(config))?;
    config.allow_only(spec.parameters)?;
    (spec.build)(config, itemsize)
}
