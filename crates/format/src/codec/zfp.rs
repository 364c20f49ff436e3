//! The codecs of the library zfp: `zfpy` of numcodecs, whose values begin with a header that states
//! type, shape and mode, and `zfp` of Zarr v3, whose values have no header. Sources of the rules:
//! `numcodecs.zfpy` and zfpy 1.0; the registry of Zarr extensions, "ZFP codec", and zarrs, which
//! promotes numbers of 8 and 16 bits, and cuts unsigned ones at the largest signed number.

use super::items::{Items, not_numeric};
use super::scalar::Scalar;
use super::spec::{lacking_in_numcodecs, refused};
use super::v3::with_dtype;
use super::{
    Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, ItemTypes, Size, buffer,
    encode_only,
};
use crate::word;
use std::borrow::Cow;
use std::fmt::Display;
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Value};
use zfp_rs::{
    ZfpBitStream, ZfpConfig, ZfpDimensionality, ZfpField, ZfpFieldMut, ZfpHeaderMask, ZfpMode,
    ZfpScalar, ZfpScalarType, ZfpStreamAlignment,
};

/// What is known of the codec of v3.
pub const ZFP: CodecSpec = CodecSpec {
    id: "zfp",
    parameters: &[
        "mode",
        "rate",
        "precision",
        "tolerance",
        "minbits",
        "maxbits",
        "maxprec",
        "minexp",
        "dtype",
        "shape",
    ],
    build: |config, _| Ok(Box::new(Zfp::new(config, false)?)),
    v3_names: &["zfp", "zarrs.zfp"],
    spell: None,
    check_input: lacking_in_numcodecs,
    ..ZFPY
};

/// What is known of the codec of numcodecs.
pub const ZFPY: CodecSpec = CodecSpec {
    id: "zfpy",
    parameters: &[
        "mode",
        "tolerance",
        "rate",
        "precision",
        "compression_kwargs",
        "dtype",
        "shape",
    ],
    build: |config, _| Ok(Box::new(Zfp::new(config, true)?)),
    items: ItemTypes::Numbers,
    v3_names: &["numcodecs.zfpy"],
    kind: CodecKind::ArrayToBytes,
    parse: with_dtype,
    check_input: |config, _| {
        let why = "numcodecs has it only together with another package, zfpy";
        Err(refused(config, why))
    },
    accepts: |_, _, _| Ok(true),
    ..CodecSpec::BYTES
};

/// The codec `zfp`, or `zfpy` with a header.
pub struct Zfp {
    scalar: Scalar,
    zfp_type: ZfpScalarType,
    promotion: Option<(i128, u32)>,
    has_header: bool,
    /// The shape of a chunk in items, the last dimension first; `None` for one dimension of any
    /// length.
    dims: Option<[usize; 4]>,
    config: CodecResult<ZfpConfig>,
}

/// Returns the type as which numbers are compressed, and for those that zfp lacks a number that is
/// subtracted and the bits by which the difference is shifted.
fn zfp_type(scalar: Scalar) -> Option<(ZfpScalarType, Option<(i128, u32)>)> {
    use Scalar::*;
    Some(match scalar {
        I8 => (ZfpScalarType::I32, Some((0, 23))),
        U8 => (ZfpScalarType::I32, Some((1 << 7, 23))),
        I16 => (ZfpScalarType::I32, Some((0, 15))),
        U16 => (ZfpScalarType::I32, Some((1 << 15, 15))),
        I32 => (ZfpScalarType::I32, None),
        U32 => (ZfpScalarType::I32, Some((0, 0))),
        I64 => (ZfpScalarType::I64, None),
        U64 => (ZfpScalarType::I64, Some((0, 0))),
        F32 => (ZfpScalarType::F32, None),
        F64 => (ZfpScalarType::F64, None),
        _ => return None,
    })
}

impl Zfp {
    /// Creates the codec from its parameters, and from `dtype` and `shape`, which the caller adds.
    /// Decoding values with a header needs no other parameter.
    pub fn new(config: &CodecConfig, has_header: bool) -> Result<Self> {
        let items = Items::param(config, "dtype")?
            .filter(|items| !items.swapped && cfg!(target_endian = "little"));
        let scalar = items.map_or(Scalar::Bool, |items| items.scalar);
        let (zfp_type, promotion) = zfp_type(scalar)
            .filter(|(_, promotion)| !has_header || promotion.is_none())
            .ok_or_else(|| not_numeric(config, "dtype"))?;
        let dims = dims(config);
        let mode = dims
            .clone()
            .and_then(|dims| mode(config, has_header, zfp_type, dims));
        if !has_header {
            mode.clone()?;
        }
        Ok(Zfp {
            scalar,
            zfp_type,
            promotion,
            has_header,
            dims: dims.ok().flatten(),
            config: encode_only(mode),
        })
    }
}

/// Returns the parameter `shape` with the last dimension first, as zfp counts.
fn dims(config: &CodecConfig) -> Result<Option<[usize; 4]>> {
    let Some(shape) = config.get("shape").and_then(Value::as_array) else {
        return Ok(None);
    };
    if shape.len() > 4 {
        return Err(config.invalid("shape", "has more than 4 dimensions"));
    }
    // an array without dimensions has one item
    let mut dims = [1, 0, 0, 0];
    for (to, len) in dims.iter_mut().zip(shape.iter().rev()) {
        *to = len.as_u64().unwrap_or(0) as usize;
    }
    Ok(Some(dims))
}

/// Returns the mode. `zfpy` has numbers for modes, and a negative parameter stands for a missing
/// one, and so for the reversible mode.
fn mode(
    config: &CodecConfig,
    is_zfpy: bool,
    zfp_type: ZfpScalarType,
    dims: Option<[usize; 4]>,
) -> Result<ZfpConfig> {
    let word = if is_zfpy {
        let mode = config.int("mode", 4, 2, 5)?;
        [
            "fixed_rate",
            "fixed_precision",
            "fixed_accuracy",
            "reversible",
        ][mode as usize - 2]
    } else {
        config.text("mode", "")?
    };
    let number = |name| match config.get(name) {
        None if is_zfpy => Ok(-1.0),
        value => value
            .and_then(json::float)
            .ok_or_else(|| config.invalid(name, "is no number")),
    };
    let value = match word {
        "fixed_rate" => number("rate")?,
        "fixed_precision" => number("precision")?,
        "fixed_accuracy" => number("tolerance")?,
        _ => 0.0,
    };
    let made = match word {
        _ if is_zfpy && value < 0.0 => Ok(ZfpConfig::reversible()),
        "reversible" => Ok(ZfpConfig::reversible()),
        "fixed_rate" => {
            // zarrs takes each block for a block of three dimensions
            let rank = dims
                .filter(|_| is_zfpy)
                .map_or(3, |dims| dims.iter().filter(|len| **len > 0).count());
            let ranks = [
                ZfpDimensionality::D1,
                ZfpDimensionality::D2,
                ZfpDimensionality::D3,
                ZfpDimensionality::D4,
            ];
            let rank = ranks[rank.max(1) - 1];
            ZfpConfig::fixed_rate(value, zfp_type, rank, ZfpStreamAlignment::Unaligned)
        }
        "fixed_precision" => Ok(ZfpConfig::fixed_precision(value as u32)),
        "fixed_accuracy" => Ok(ZfpConfig::fixed_accuracy(value)),
        "expert" => ZfpConfig::expert(
            number("minbits")? as u32,
            number("maxbits")? as u32,
            number("maxprec")? as u32,
            number("minexp")? as i32,
        ),
        _ => return Err(config.invalid("mode", "is unknown")),
    };
    made.map_err(|e| config.invalid("mode", &format!("cannot be used: {e}")))
}

/// Returns the codec error for an error of the library.
fn failed(error: impl Display) -> CodecError {
    CodecError::new(format!("zfp: {error}"))
}

/// Returns the number of items of a shape, or an error on overflow.
fn count(dims: &[usize; 4]) -> CodecResult<usize> {
    let lengths = dims.iter().filter(|len| **len > 0);
    lengths.copied().try_fold(1, buffer::total)
}

/// Decodes the numbers of type `T` that follow in `stream` into the front of `out`, and returns the
/// number of bytes written.
fn decompress<T: ZfpScalar>(
    stream: &mut ZfpBitStream,
    config: &ZfpConfig,
    dims: [usize; 4],
    out: &mut [u8],
) -> CodecResult<usize> {
    let len = buffer::total(count(&dims)?, size_of::<T>())?;
    let out = buffer::front(out, len)?;
    let mut run = |items: &mut [T]| {
        let mut field = ZfpFieldMut::new(items, dims).map_err(failed)?;
        stream.decompress(config, &mut field).map_err(failed)?;
        Ok(len)
    };
    if let Ok(items) = bytemuck::try_cast_slice_mut(out) {
        return run(items);
    }
    let mut items: Vec<T> = bytemuck::pod_collect_to_vec(out);
    run(&mut items)?;
    buffer::copy(bytemuck::cast_slice(&items), out)
}

/// Appends the encoding of the numbers of type `T` in `decoded` to `out`. `max` is its maximum size
/// in bytes.
fn compress<T: ZfpScalar>(
    config: &ZfpConfig,
    (dims, max): ([usize; 4], usize),
    has_header: bool,
    decoded: &[u8],
    out: &mut Vec<u8>,
) -> CodecResult<()> {
    let items = match bytemuck::try_cast_slice::<u8, T>(decoded) {
        Ok(items) => Cow::Borrowed(items),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(decoded)),
    };
    let field = ZfpField::new(&items, dims).map_err(failed)?;
    let mut stream = ZfpBitStream::new(max).map_err(failed)?;
    if has_header {
        let header = stream.write_header(config, &field.metadata(), ZfpHeaderMask::FULL);
        header.map_err(failed)?;
    }
    stream.compress(config, &field).map_err(failed)?;
    out.extend_from_slice(stream.as_bytes());
    Ok(())
}

/// Calls `$function` for the numbers of a type of zfp.
macro_rules! with_zfp_type {
    ($zfp_type:expr, $function:ident($($argument:expr),*)) => {
        match $zfp_type {
            ZfpScalarType::I32 => $function::<i32>($($argument),*),
            ZfpScalarType::I64 => $function::<i64>($($argument),*),
            ZfpScalarType::F32 => $function::<f32>($($argument),*),
            ZfpScalarType::F64 => $function::<f64>($($argument),*),
        }
    };
}

/// Writes for each integer of `size` bytes in `from` the one that `step` returns to `to`.
fn each(
    (from, size, is_signed): (&[u8], usize, bool),
    (to, wanted): (&mut [u8], usize),
    mut step: impl FnMut(i128) -> i128,
) {
    let unused = 64 - 8 * size;
    for (item, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(wanted)) {
        let bits = word::load(item, false);
        let number = if is_signed {
            i128::from((bits << unused) as i64 >> unused)
        } else {
            i128::from(bits)
        };
        word::store(step(number) as u64, to, false);
    }
}

impl Zfp {
    /// Decodes `stream` into the front of `out`, and returns the number of bytes written.
    fn decode_stream(&self, stream: &mut ZfpBitStream, out: &mut [u8]) -> CodecResult<usize> {
        if self.has_header {
            let header = stream.read_header(ZfpHeaderMask::FULL).map_err(failed)?;
            let (Some(field), Some(config)) = (header.metadata, header.config) else {
                return Err(failed("no header"));
            };
            let dims = field.dims;
            return with_zfp_type!(field.scalar_type, decompress(stream, &config, dims, out));
        }
        let config = self.config.as_ref().map_err(Clone::clone)?;
        let dims = self.dims_of(out.len() / self.scalar.size());
        let zfp_type = self.zfp_type;
        let Some((bias, shift)) = self.promotion else {
            return with_zfp_type!(zfp_type, decompress(stream, config, dims, out));
        };
        let size = self.scalar.size();
        let range = self.scalar.range();
        let out = buffer::front(out, buffer::total(count(&dims)?, size)?)?;
        let mut wide = vec![0; out.len() / size * zfp_type.size()];
        let room = &mut wide[..];
        with_zfp_type!(zfp_type, decompress(stream, config, dims, room))?;
        each((&wide, zfp_type.size(), true), (out, size), |number| {
            ((number >> shift) + bias).clamp(range.start, range.end - 1)
        });
        Ok(out.len())
    }

    /// Returns the shape of `count` items, the last dimension first.
    fn dims_of(&self, count: usize) -> [usize; 4] {
        self.dims.unwrap_or([count, 0, 0, 0])
    }
}

impl Codec for Zfp {
    fn encoded_size(&self, decoded: usize) -> Size {
        let dims = self.dims_of(decoded / self.scalar.size());
        let config = self.config.as_ref().ok();
        let max = config.and_then(|config| config.maximum_size(self.zfp_type, dims));
        Size::AtMost(max.unwrap_or(decoded))
    }

    fn is_lossless(&self) -> bool {
        let config = self.config.as_ref();
        config.is_ok_and(|config| config.mode() == ZfpMode::Reversible)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let stream = &mut ZfpBitStream::from_bytes(encoded).map_err(failed)?;
        let written = self.decode_stream(stream, out)?;
        // the library adds zeros to a word that is cut short; without a header, a value of another
        // length has another mode
        let len = 8 * encoded.len() as u64;
        if stream.read_pos() > len || stream.read_pos() < len && !self.has_header {
            return Err(failed(format!(
                "{} bytes do not fit the mode",
                encoded.len()
            )));
        }
        Ok(written)
    }

    fn encoder_memory(&self, decoded: usize) -> usize {
        let wide = self.zfp_type.size() / self.scalar.size();
        let encoded = self.encoded_size(decoded).max();
        encoded.saturating_add(decoded.saturating_mul(wide))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let config = self.config.as_ref().map_err(Clone::clone)?;
        let items = buffer::count(decoded, self.scalar.size())?;
        let dims = self.dims_of(items);
        if count(&dims)? != items {
            return Err(failed("not a whole chunk"));
        }
        let mut numbers = Cow::Borrowed(decoded);
        if let Some((bias, shift)) = self.promotion {
            let wide = self.zfp_type.size();
            let input = (decoded, self.scalar.size(), self.scalar.is_signed());
            let mut largest = 0;
            let mut promoted = vec![0; items * wide];
            each(input, (&mut promoted, wide), |number| {
                largest = number.max(largest);
                (number - bias) << shift
            });
            if largest >= 1 << (8 * wide - 1) {
                return Err(failed(format!("{largest} is more than it can encode")));
            }
            numbers = Cow::Owned(promoted);
        }
        let sizes = (dims, self.encoded_size(decoded.len()).max());
        let header = self.has_header;
        with_zfp_type!(
            self.zfp_type,
            compress(config, sizes, header, &numbers, out)
        )
    }
}

#[cfg(test)]
mod tests;
