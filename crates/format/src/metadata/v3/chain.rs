//! The codec chain of a v3 document, translated to the codecs of one innermost chunk and the levels
//! of shards around it. Every configuration gets the types and shapes that v3 leaves to the reader.
//! Source of the rules: the Zarr v3.1 specification, "Codecs", and the registry of its extensions.

mod reshape;
mod sharding;

use crate::codec::{ArrayInput, CodecConfig, CodecKind, v3_spec_of};
use crate::data_type::DataType;
use crate::extension::Extension;
use crate::metadata::ShardLevel;
use crate::metadata::array::LOW_BITS;
use crate::real::narrow_integer;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value};

/// Maximum number of codecs in a chain.
const MAX_CODECS: usize = 64;

/// Maximum number of levels of shards.
const MAX_LEVELS: usize = 4;

/// A parsed chain.
#[derive(Debug, PartialEq)]
pub struct Chain {
    /// The data type, in the byte order that `bytes` states.
    pub data_type: DataType,
    /// The codecs of an innermost chunk, in the order of encoding.
    pub filters: Vec<CodecConfig>,
    /// The levels of shards, outermost first.
    pub shards: Vec<ShardLevel>,
    /// The length of an innermost chunk along each dimension in items.
    pub chunks: Vec<u64>,
}

/// Parses the chain `codecs` for outermost chunks of shape `chunks`.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the chain breaks the specification,
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for an unknown codec or parameter.
pub fn parse_chain(codecs: &Value, chunks: &[u64], data_type: &Value) -> Result<Chain> {
    let codecs = parse_list(codecs, "codecs")?;
    let is_big_endian = is_big_endian(&codecs, 0)?;
    let data_type = DataType::parse(data_type, is_big_endian)?;
    let input = ArrayInput {
        element: data_type.element.clone(),
        itemsize: data_type.dtype.size(),
        is_big_endian,
        is_variable: data_type.dtype.has_objects(),
        shape: chunks.to_vec(),
        axes: Some((0..chunks.len()).collect()),
    };
    let mut chain = Chain {
        data_type,
        filters: Vec::new(),
        shards: Vec::new(),
        chunks: chunks.to_vec(),
    };
    parse_level(&codecs, input, &mut chain)?;
    Ok(chain)
}

/// Returns whether a codec of a document changes the shape of chunks.
pub fn is_reshape(codec: &Value) -> bool {
    Extension::parse(codec, "codecs").is_ok_and(|codec| RESHAPES.contains(&codec.name.as_str()))
}

/// Parses a list of codecs.
fn parse_list(codecs: &Value, field: &str) -> Result<Vec<Extension>> {
    let list = codecs
        .as_array()
        .ok_or_else(|| Error::damaged(format!("{field} is not a list")))?;
    if list.len() > MAX_CODECS {
        return Err(Error::unsupported(format!(
            "{field}: {} codecs are too many",
            list.len()
        )));
    }
    list.iter().map(|codec| parse_codec(codec, field)).collect()
}

/// Parses a codec. Configurations of numcodecs' codecs may repeat the id, as in v2.
fn parse_codec(codec: &Value, field: &str) -> Result<Extension> {
    let mut codec = Extension::parse(codec, field)?;
    let id = codec.name.strip_prefix("numcodecs.");
    if id.is_some() && codec.get("id").and_then(json::text) == id {
        codec.configuration.shift_remove("id");
    }
    Ok(codec)
}

/// Returns the byte order of the innermost `bytes`. The default is little-endian, as zarr-python
/// wrote it for structs.
fn is_big_endian(codecs: &[Extension], depth: usize) -> Result<bool> {
    for codec in codecs {
        match codec.name.as_str() {
            "bytes" | "endian" => {
                return match codec.text("endian", "little")? {
                    "little" => Ok(false),
                    "big" => Ok(true),
                    other => Err(codec.invalid(
                        "endian",
                        &format!("is {other:?}, neither \"little\" nor \"big\""),
                    )),
                };
            }
            "sharding_indexed" if depth < MAX_LEVELS => {
                let Some(inner) = codec.get("codecs") else {
                    return Ok(false);
                };
                return is_big_endian(&parse_list(inner, "codecs")?, depth + 1);
            }
            _ => {}
        }
    }
    Ok(false)
}

/// Parses the chain of one level: array codecs, one codec from arrays to bytes, bytes codecs.
fn parse_level(codecs: &[Extension], mut input: ArrayInput, chain: &mut Chain) -> Result<()> {
    let mut rest = codecs.iter().peekable();
    let mut filters = Vec::new();
    while let Some(codec) = rest.next_if(|codec| kind_of(codec) == Some(CodecKind::Array)) {
        filters.extend(translate(codec, &mut input)?);
    }
    match rest.next() {
        // zarrita writes an empty list for little-endian bytes
        None if codecs.is_empty() => check_items("bytes", false, &input)?,
        None => return Err(Error::damaged("codecs: none makes bytes of the array")),
        Some(codec) if kind_of(codec) != Some(CodecKind::ArrayToBytes) => {
            return Err(misplaced(codec));
        }
        Some(codec) => {
            let bytes: Vec<&Extension> = rest.clone().collect();
            if let Some(codec) = bytes
                .iter()
                .find(|codec| kind_of(codec) != Some(CodecKind::Bytes))
            {
                return Err(misplaced(codec));
            }
            if codec.name == "sharding_indexed" {
                return sharding::parse(codec, &filters, &bytes, input, chain);
            }
            serialize(codec, &mut filters, &mut input)?;
        }
    }
    for codec in rest {
        filters.extend(translate(codec, &mut input)?);
    }
    chain.filters.extend(filters);
    Ok(())
}

/// Adds the array-to-bytes codec. `bytes` itself needs none, since decoded items have its byte
/// order.
fn serialize(
    codec: &Extension,
    filters: &mut Vec<CodecConfig>,
    input: &mut ArrayInput,
) -> Result<()> {
    let spec = v3_spec_of(&codec.name);
    let is_for_variable = spec.is_some_and(|spec| spec.is_object_codec);
    check_items(&codec.name, is_for_variable, input)?;
    if spec.is_none() {
        codec.allow_only(&["endian"])?;
        filters.extend(low_bits(input));
        return Ok(());
    }
    let config = translate(codec, input)?;
    // the codec of objects comes first: a decoded chunk is its output
    let place = if is_for_variable { 0 } else { filters.len() };
    filters.splice(place..place, config);
    Ok(())
}

/// Checks that the items have a fixed length, or a variable one, as an array-to-bytes codec needs.
fn check_items(codec: &str, is_for_variable: bool, input: &ArrayInput) -> Result<()> {
    if is_for_variable == input.is_variable {
        return Ok(());
    }
    let items = if input.is_variable {
        "variable"
    } else {
        "fixed"
    };
    let why = format!("codecs: {codec:?} can't encode items of {items} length");
    Err(Error::damaged(why))
}

/// Translates a codec other than `bytes` and shards, and changes `input` to its output. Returns
/// `None` for a codec that changes no bytes.
fn translate(codec: &Extension, input: &mut ArrayInput) -> Result<Option<CodecConfig>> {
    let Some(spec) = v3_spec_of(&codec.name) else {
        return reshape::parse(codec, input).map(|()| None);
    };
    if spec.kind == CodecKind::Array && codec.name != "transpose" {
        check_items(&codec.name, false, input)?;
    }
    (spec.parse)(spec, codec, input)
}

/// Returns the codec that clears the upper bits of integers of 2 and 4 bits; `None` for other
/// items.
fn low_bits(input: &ArrayInput) -> Option<CodecConfig> {
    let element = input.element.as_deref()?;
    narrow_integer(element)?;
    Some(CodecConfig::new(LOW_BITS, Map::new()).with("dtype", element.into()))
}

/// The names of the codecs that change the shape of chunks.
const RESHAPES: [&str; 2] = ["reshape", "zarrs.squeeze"];

/// Returns the kind of a codec; `None` for an unknown one.
fn kind_of(codec: &Extension) -> Option<CodecKind> {
    match codec.name.as_str() {
        name if RESHAPES.contains(&name) => Some(CodecKind::Array),
        "bytes" | "endian" | "sharding_indexed" => Some(CodecKind::ArrayToBytes),
        name => v3_spec_of(name).map(|spec| spec.kind),
    }
}

/// Returns the error for a codec that is unknown or cannot stand where it does.
fn misplaced(codec: &Extension) -> Error {
    match kind_of(codec) {
        None => unknown(codec),
        Some(_) => Error::damaged(format!(
            "codecs: {:?} stands in a place that it can't have",
            codec.name
        )),
    }
}

fn unknown(codec: &Extension) -> Error {
    Error::unsupported(format!("codecs: codec {:?} is unknown", codec.name))
}

#[cfg(test)]
mod tests;
