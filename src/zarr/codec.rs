//! Codecs: from encoded chunk bytes to decoded ones and back. The table from id to codec stands here, one file per
//! codec beside it. Compressors and filters are one list: any id may stand in either place. A codec knows neither keys
//! nor stores; it answers a reason, and the floor above adds the array and the key. The reference is numcodecs 0.15.

mod astype;
mod base64;
mod bitround;
mod blosc;
mod buffer;
mod bz2;
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
mod lz4;
mod lzma;
mod lzma_filters;
mod number;
mod object;
mod packbits;
mod pipeline;
mod quantize;
mod shuffle;
mod streams;
#[cfg(test)]
mod testing;
mod zlib;
mod zstd;

use crate::error::{Error, Result};
use crate::zarr::metadata::CodecConfig;

pub use blosc::Header as BloscHeader;
#[cfg(test)]
pub(crate) use deflate::deflate_for_tests;
pub use deflate::inflate;
pub use interchange::{check_compressor, check_interchange};
pub use object::check_objects;
pub use pipeline::{PartialDecode, Pipeline};

/// Why bytes can't be decoded or encoded, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecError(pub String);

impl CodecError {
    /// A reason.
    pub fn new(reason: impl Into<String>) -> Self {
        CodecError(reason.into())
    }
}

/// A parameter that only encoding needs. numcodecs reads arrays where it is wrong, and so do we: encoding fails.
type EncodeOnly<T> = std::result::Result<T, CodecError>;

fn encode_only<T>(parameter: Result<T>) -> EncodeOnly<T> {
    parameter.map_err(|e| CodecError::new(e.message()))
}

/// A number of bytes that is known before decoding, or only bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Just so many bytes.
    Exact(usize),
    /// No more than so many bytes.
    AtMost(usize),
}

impl Size {
    /// The number, or the bound.
    pub fn max(self) -> usize {
        match self {
            Size::Exact(n) | Size::AtMost(n) => n,
        }
    }
}

/// One step of a pipeline, set up with its parameters. Damaged or hostile `encoded` bytes must end in `CodecError`: never a
/// panic, nor memory beyond a constant factor of `out.len()`, whatever they claim.
pub trait Codec: Send + Sync {
    /// Bytes that [`Codec::encode`] makes of `decoded` bytes.
    fn encoded_size(&self, decoded: usize) -> Size;

    /// Bytes of one item of what [`Codec::encode`] makes: 1 unless it gives typed numbers. Blosc shuffles by it.
    fn encoded_itemsize(&self) -> usize {
        1
    }

    /// True if what [`Codec::encode`] makes is a blosc frame, whose blocks can be decoded one by one.
    fn is_blosc(&self) -> bool {
        false
    }

    /// True if every value that [`Codec::encode`] takes is decoded to just the same bytes.
    fn is_lossless(&self) -> bool {
        true
    }

    /// Decodes into the front of `out` and returns how many bytes there are. More than `out` holds is `CodecError`; fewer
    /// are the caller's to judge.
    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, CodecError>;

    /// Appends the encoding of `decoded` to `out`, which is empty.
    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), CodecError>;
}

/// The codec that `config` names, for decoded items of `itemsize` bytes. An unknown id or parameter is
/// [`Kind::Unsupported`](crate::error::Kind), a parameter of the wrong type or range
/// [`Kind::Damaged`](crate::error::Kind).
pub fn build(config: &CodecConfig, itemsize: usize) -> Result<Box<dyn Codec>> {
    Ok(match config.id.as_str() {
        "blosc" => Box::new(blosc::Blosc::new(config, itemsize)?),
        "bz2" => Box::new(bz2::Bz2::new(config)?),
        "gzip" => Box::new(gzip::Gzip::new(config)?),
        "lz4" => Box::new(lz4::Lz4::new(config)?),
        "lzma" => Box::new(lzma::Lzma::new(config)?),
        "zlib" => Box::new(zlib::Zlib::new(config)?),
        "zstd" => Box::new(zstd::Zstd::new(config)?),
        "adler32" => Box::new(checksum::Checksum::adler32(config)?),
        "astype" => Box::new(astype::AsType::new(config)?),
        "base64" => Box::new(base64::Base64::new(config)?),
        "bitround" => Box::new(bitround::BitRound::new(config, itemsize)?),
        "categorize" => Box::new(categorize::Categorize::new(config)?),
        "crc32" => Box::new(checksum::Checksum::crc32(config)?),
        "crc32c" => Box::new(checksum::Checksum::crc32c(config)?),
        "delta" => Box::new(delta::Delta::new(config)?),
        "fixedscaleoffset" => Box::new(fixed_scale_offset::FixedScaleOffset::new(config)?),
        "fletcher32" => Box::new(checksum::Checksum::fletcher32(config)?),
        "jenkins_lookup3" => Box::new(checksum::Checksum::jenkins_lookup3(config)?),
        "json2" | "msgpack2" | "pickle" | "vlen-array" | "vlen-bytes" | "vlen-utf8" => {
            Box::new(object::Passthrough::new(config)?)
        }
        "packbits" => Box::new(packbits::PackBits::new(config)?),
        "quantize" => Box::new(quantize::Quantize::new(config)?),
        "shuffle" => Box::new(shuffle::Shuffle::new(config)?),
        id => return Err(Error::unsupported(format!("codec {id:?} is unknown"))),
    })
}
