//! Translates the v3 codecs from arrays to arrays into codec configurations.

use super::{Extension, Input, ordered_dtype, unknown};
use crate::error::{Error, Result};
use crate::util::json::{self, Map, Value};
use crate::zarr::dtype::DType;
use crate::zarr::metadata::CodecConfig;

/// Translates an array codec and changes `input` to the output of the codec. Returns `None` for a
/// codec that changes no bytes.
pub(super) fn parse(codec: &Extension, input: &mut Input) -> Result<Option<CodecConfig>> {
    match codec.name.as_str() {
        "transpose" => return transpose(codec, input),
        "reshape" | "zarrs.squeeze" => return reshape(codec, input).map(|()| None),
        _ if input.is_variable => {
            return Err(Error::damaged(format!(
                "codecs: {:?} can't encode items of variable length",
                codec.name
            )));
        }
        "scale_offset" => scale_offset(codec, input),
        "cast_value" => cast_value(codec, input),
        "bitround" | "numcodecs.bitround" => bitround(codec, input),
        "numcodecs.packbits" => packbits(codec, input),
        "numcodecs.delta" | "numcodecs.fixedscaleoffset" | "numcodecs.quantize" => {
            numeric(codec, input)
        }
        "numcodecs.astype" => astype(codec, input),
        _ => Err(unknown(codec)),
    }
    .map(Some)
}

/// Parses `order`. Drafts of v3 had `"C"` and `"F"`.
fn order_of(codec: &Extension, dimensions: usize) -> Result<Vec<usize>> {
    match codec.get("order").and_then(json::text) {
        Some("C") => return Ok((0..dimensions).collect()),
        Some("F") => return Ok((0..dimensions).rev().collect()),
        _ => {}
    }
    let order: Vec<usize> = codec
        .lengths("order")?
        .into_iter()
        .map(|axis| axis as usize)
        .collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.into_iter().eq(0..dimensions) {
        Ok(order)
    } else {
        Err(codec.invalid(
            "order",
            &format!("is not a permutation of {dimensions} dimensions"),
        ))
    }
}

fn transpose(codec: &Extension, input: &mut Input) -> Result<Option<CodecConfig>> {
    codec.allow_only(&["order"])?;
    let order = order_of(codec, input.shape.len())?;
    if order.iter().copied().eq(0..order.len()) {
        return Ok(None);
    }
    let config = transposition(&input.shape, &order, input.is_variable);
    input.shape = order.iter().map(|&axis| input.shape[axis]).collect();
    input.axes = input
        .axes
        .as_ref()
        .map(|axes| order.iter().map(|&axis| axes[axis]).collect());
    Ok(Some(config))
}

/// Returns the codec that transposes chunks of shape `shape`: axis `i` of the encoded chunk is axis
/// `order[i]`.
pub(super) fn transposition(shape: &[u64], order: &[usize], is_variable: bool) -> CodecConfig {
    let mut parameters = Map::new();
    parameters.insert("shape".into(), shape.to_vec().into());
    parameters.insert(
        "order".into(),
        order
            .iter()
            .map(|&axis| axis as u64)
            .collect::<Vec<_>>()
            .into(),
    );
    CodecConfig::new(
        if is_variable {
            "vlen_transpose"
        } else {
            "transpose"
        },
        parameters,
    )
}

/// Changes the shape that later codecs see. No bytes move.
fn reshape(codec: &Extension, input: &mut Input) -> Result<()> {
    let items = |shape: &[u64]| shape.iter().try_fold(1u64, |n, len| n.checked_mul(*len));
    let shape = match codec.name.as_str() {
        "zarrs.squeeze" => {
            codec.allow_only(&[])?;
            input
                .shape
                .iter()
                .copied()
                .filter(|len| *len != 1)
                .collect()
        }
        _ => {
            codec.allow_only(&["shape"])?;
            reshaped(codec, &input.shape)?
        }
    };
    if items(&shape) != items(&input.shape) {
        return Err(codec.invalid(
            "shape",
            &format!(
                "{shape:?} has other items than the chunk's {:?}",
                input.shape
            ),
        ));
    }
    (input.shape, input.axes) = (shape, None);
    Ok(())
}

/// Parses the shape of `reshape`: a length, a list of dimensions whose lengths are multiplied, or
/// once -1 for the rest. Source: the registry of Zarr extensions, "reshape".
fn reshaped(codec: &Extension, shape: &[u64]) -> Result<Vec<u64>> {
    let bad = || codec.invalid("shape", "is not a list of lengths and lists of dimensions");
    let list = codec
        .get("shape")
        .and_then(Value::as_array)
        .ok_or_else(bad)?;
    let mut lengths = Vec::new();
    let mut rest = None;
    for (i, value) in list.iter().enumerate() {
        let length = match value.as_array() {
            Some(axes) => {
                let axis = |axis: &Value| axis.as_u64().and_then(|axis| shape.get(axis as usize));
                axes.iter()
                    .try_fold(1u64, |n, value| n.checked_mul(*axis(value)?))
            }
            None if value.as_i64() == Some(-1) && rest.is_none() => {
                rest = Some(i);
                Some(1)
            }
            None => value.as_u64().filter(|length| *length > 0),
        };
        lengths.push(length.ok_or_else(bad)?);
    }
    if let Some(i) = rest {
        let known = lengths
            .iter()
            .try_fold(1u64, |n, len| n.checked_mul(*len))
            .filter(|known| *known > 0);
        let all = shape.iter().try_fold(1u64, |n, len| n.checked_mul(*len));
        let (Some(known), Some(all)) = (known, all) else {
            return Err(bad());
        };
        lengths[i] = all / known;
    }
    Ok(lengths)
}

/// Returns the type of the items, or an error if they are not numbers.
fn element<'a>(codec: &Extension, input: &'a Input) -> Result<&'a str> {
    let why = || {
        Error::unsupported(format!(
            "codecs: {:?} encodes numbers, which this data type has not",
            codec.name
        ))
    };
    input.element.as_deref().ok_or_else(why)
}

fn scale_offset(codec: &Extension, input: &Input) -> Result<CodecConfig> {
    codec.allow_only(&["offset", "scale"])?;
    let mut parameters = codec.configuration.clone();
    parameters.insert("dtype".into(), element(codec, input)?.into());
    Ok(CodecConfig::new("scale_offset", parameters))
}

fn cast_value(codec: &Extension, input: &mut Input) -> Result<CodecConfig> {
    codec.allow_only(&["data_type", "rounding", "out_of_range", "scalar_map"])?;
    let from = element(codec, input)?.to_string();
    let target = codec
        .get("data_type")
        .ok_or_else(|| codec.invalid("data_type", "is missing"))?;
    let target = super::DataType::parse(target, input.is_big_endian)?;
    let to = target.element.clone();
    let to = to.ok_or_else(|| codec.invalid("data_type", "is not a type of numbers"))?;
    let mut parameters = codec.configuration.clone();
    parameters.shift_remove("data_type");
    parameters
        .entry("rounding")
        .or_insert("nearest-even".into());
    parameters.insert("from".into(), from.into());
    parameters.insert("to".into(), to.clone().into());
    (input.element, input.itemsize) = (Some(to), target.dtype.size());
    Ok(CodecConfig::new("cast_value", parameters))
}

fn bitround(codec: &Extension, input: &Input) -> Result<CodecConfig> {
    codec.allow_only(&["keepbits"])?;
    let mut parameters = codec.configuration.clone();
    // without it the codec treats items as little-endian floats
    parameters.insert("dtype".into(), element(codec, input)?.into());
    Ok(CodecConfig::new("bitround", parameters))
}

/// Translates `numcodecs.packbits`, which encodes an array of booleans into an array of bytes.
fn packbits(codec: &Extension, input: &mut Input) -> Result<CodecConfig> {
    codec.allow_only(&[])?;
    if element(codec, input)? != "|b1" {
        return Err(Error::damaged(
            "codecs: \"numcodecs.packbits\" encodes booleans alone",
        ));
    }
    let items = input
        .shape
        .iter()
        .try_fold(1u64, |n, len| n.checked_mul(*len))
        .unwrap_or(u64::MAX);
    (input.element, input.itemsize) = (Some("|u1".into()), 1);
    // numcodecs puts the number of unused bits first
    (input.shape, input.axes) = (vec![1 + items.div_ceil(8)], None);
    Ok(CodecConfig::new("packbits", Map::new()))
}

/// Translates a filter of numcodecs with the parameters `dtype` and `astype`.
fn numeric(codec: &Extension, input: &mut Input) -> Result<CodecConfig> {
    let id = codec.name.trim_start_matches("numcodecs.");
    codec.allow_only(match id {
        "delta" => &["dtype", "astype"],
        "quantize" => &["digits", "dtype", "astype"],
        _ => &["offset", "scale", "dtype", "astype"],
    })?;
    let mut parameters = codec.configuration.clone();
    let from = numpy_type(codec, "dtype", input)?;
    let to = ordered_dtype(codec, "astype", input)?.unwrap_or_else(|| from.clone());
    parameters.insert("dtype".into(), from.into());
    parameters.insert("astype".into(), to.clone().into());
    (input.itemsize, input.element) = (DType::parse_str(&to)?.size(), Some(to));
    Ok(CodecConfig::new(id, parameters))
}

/// Returns the NumPy type of the decoded numbers: the parameter `name`, or else the type of the
/// items.
fn numpy_type(codec: &Extension, name: &str, input: &Input) -> Result<String> {
    let dtype = match ordered_dtype(codec, name, input)? {
        Some(dtype) => dtype,
        None => element(codec, input)?.to_string(),
    };
    match DType::parse_str(&dtype) {
        Ok(parsed) if parsed.size() == input.itemsize => Ok(dtype),
        Ok(_) => Err(codec.invalid(name, &format!("{dtype:?} is not the type of the items"))),
        Err(_) => Err(Error::unsupported(format!(
            "codecs: {:?} can't encode {dtype:?}",
            codec.name
        ))),
    }
}

fn astype(codec: &Extension, input: &mut Input) -> Result<CodecConfig> {
    codec.allow_only(&["encode_dtype", "decode_dtype"])?;
    let to = ordered_dtype(codec, "encode_dtype", input)?;
    let to = to.ok_or_else(|| codec.invalid("encode_dtype", "is missing"))?;
    let from = numpy_type(codec, "decode_dtype", input)?;
    let mut parameters = Map::new();
    parameters.insert("encode_dtype".into(), to.clone().into());
    parameters.insert("decode_dtype".into(), from.into());
    (input.itemsize, input.element) = (DType::parse_str(&to)?.size(), Some(to));
    Ok(CodecConfig::new("astype", parameters))
}
