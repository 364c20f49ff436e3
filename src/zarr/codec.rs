//! Codecs: from encoded chunk bytes to decoded ones and back. This file maps ids to codecs; each
//! codec has a file of its own. Any id may be a compressor or a filter. A codec knows neither keys
//! nor stores: its error is a reason, to which the caller adds array and key. Reference: numcodecs
//! 0.15.

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
#[cfg(test)]
mod compressor_testing;
mod deflate;
mod delta;
mod fixed_scale_offset;
mod gzip;
mod interchange;
mod items;
mod jenkins_lookup3;
#[cfg(test)]
mod limits;
mod low_bits;
mod lz4;
mod lzma;
mod lzma_filters;
mod number;
mod object;
mod packbits;
mod packbits_v3;
mod pcodec;
mod pipeline;
mod quantize;
mod real;
mod scale_offset;
mod shuffle;
mod streams;
#[cfg(test)]
mod testing;
mod transpose;
mod vlen_transpose;
mod word;
mod zlib;
mod zstd;

use crate::error::{Error, Result};
use crate::zarr::metadata::{CodecConfig, NO_ZFP};

pub use blosc::BloscHeader;
#[cfg(test)]
pub(crate) use deflate::deflate_for_tests;
pub use deflate::inflate;
pub use interchange::{check_compressor, check_interchange};
pub use object::check_objects;
pub use pipeline::{PartialDecode, Pipeline};
pub use zstd::ZstdFrame;

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
    /// Returns the size, or its bound.
    pub fn max(self) -> usize {
        match self {
            Size::Exact(n) | Size::AtMost(n) => n,
        }
    }
}

/// One step of a pipeline, set up with its parameters.
///
/// Damaged or hostile `encoded` bytes must end in a [`CodecError`]: a codec never panics and takes
/// no more memory than a constant factor of `out.len()`, whatever the bytes claim. Only `lzma` may
/// allocate up to 256 MiB more.
///
/// ```
/// use zarrfs::util::json;
/// use zarrfs::zarr::codec::build;
/// use zarrfs::zarr::metadata::CodecConfig;
///
/// let config = CodecConfig::parse(&json::parse(br#"{"id": "shuffle", "elementsize": 2}"#)?)?;
/// let codec = build(&config, 2)?;
/// let mut encoded = Vec::new();
/// codec.encode(&[1, 2, 3, 4], &mut encoded).unwrap();
/// assert_eq!(encoded, [1, 3, 2, 4]);
/// # Ok::<(), zarrfs::error::Error>(())
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

    /// Appends the encoding of `decoded` to `out`, which is empty.
    ///
    /// # Errors
    ///
    /// If these bytes cannot be encoded, or if a parameter that only encoding needs is wrong.
    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()>;
}

/// Returns the codec that `config` names, for decoded items of `itemsize` bytes.
///
/// # Errors
///
/// [`Kind::Unsupported`](crate::error::Kind::Unsupported) for an unknown id or parameter,
/// [`Kind::Damaged`](crate::error::Kind::Damaged) for a parameter of the wrong type or range.
pub fn build(config: &CodecConfig, itemsize: usize) -> Result<Box<dyn Codec>> {
    Ok(match config.id.as_str() {
        "blosc" => Box::new(blosc::Blosc::new(config, itemsize)?),
        "bz2" => Box::new(bz2::Bz2::new(config)?),
        "gzip" => Box::new(gzip::Gzip::new(config)?),
        "lz4" => Box::new(lz4::Lz4::new(config)?),
        "lzma" => Box::new(lzma::Lzma::new(config)?),
        "zlib" => Box::new(zlib::Zlib::new(config)?),
        "zstd" => Box::new(zstd::Zstd::new(config)?),
        "astype" => Box::new(astype::AsType::new(config)?),
        "base64" => Box::new(base64::Base64::new(config)?),
        "bitround" => Box::new(bitround::BitRound::new(config, itemsize)?),
        "adler32" | "crc32" | "crc32c" | "fletcher32" | "jenkins_lookup3" => {
            Box::new(checksum::Checksum::new(config)?)
        }
        "cast_value" => Box::new(cast_value::CastValue::new(config)?),
        "categorize" => Box::new(categorize::Categorize::new(config)?),
        "low_bits" => Box::new(low_bits::LowBits::new(config)?),
        "delta" => Box::new(delta::Delta::new(config)?),
        "fixedscaleoffset" => Box::new(fixed_scale_offset::FixedScaleOffset::new(config)?),
        "json2" | "msgpack2" | "pickle" | "vlen-array" | "vlen-bytes" | "vlen-utf8" => {
            Box::new(object::Passthrough::new(config)?)
        }
        "packbits" => Box::new(packbits::PackBits::new(config)?),
        "packbits_v3" => Box::new(packbits_v3::PackBitsV3::new(config)?),
        "pcodec" => Box::new(pcodec::Pcodec::new(config)?),
        "quantize" => Box::new(quantize::Quantize::new(config)?),
        "scale_offset" => Box::new(scale_offset::ScaleOffset::new(config)?),
        "shuffle" => Box::new(shuffle::Shuffle::new(config)?),
        "transpose" => Box::new(transpose::Transpose::new(config, itemsize)?),
        "vlen_transpose" => Box::new(vlen_transpose::VlenTranspose::new(config)?),
        "zfpy" => return Err(Error::unsupported(format!("codec \"zfpy\" {NO_ZFP}"))),
        id => return Err(Error::unsupported(format!("codec {id:?} is unknown"))),
    })
}
