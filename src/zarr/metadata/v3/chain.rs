//! The codec chain of a v3 document, translated to the codecs of one innermost chunk and the levels
//! of shards around it. Every configuration gets the types and shapes that v3 leaves to the reader.
//! Source of the rules: the Zarr v3.1 specification, "Codecs", and the registry of its extensions.

mod array_codecs;
mod bytes_codecs;
mod sharding;

use super::data_type::DataType;
use super::extension::Extension;
use crate::error::{Error, Result};
use crate::util::json::{self, Map, Value};
use crate::zarr::metadata::array::LOW_BITS;
use crate::zarr::metadata::{CodecConfig, NO_ZFP, ShardLevel};

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

/// The input of a codec that encodes: items of a type in an array of a shape.
#[derive(Clone, Debug)]
struct Input {
    /// The type of single numbers as codec configurations spell it; `None` for other items.
    element: Option<String>,
    /// The size of an item in bytes.
    itemsize: usize,
    is_big_endian: bool,
    /// Whether items have a variable length.
    is_variable: bool,
    /// The shape of the chunk.
    shape: Vec<u64>,
    /// The order of the dimensions: dimension `i` of the chunk is dimension `axes[i]` of the array.
    /// `None` after a reshape.
    axes: Option<Vec<usize>>,
}

impl Input {
    /// Returns the input for the index of a shard: an array of 64-bit numbers.
    fn of_index(shape: Vec<u64>) -> Input {
        let axes = Some((0..shape.len()).collect());
        let element = Some("<u8".to_string());
        Input {
            element,
            itemsize: 8,
            is_big_endian: false,
            is_variable: false,
            shape,
            axes,
        }
    }
}

/// Parses the chain `codecs` for outermost chunks of shape `chunks`.
///
/// # Errors
///
/// [`Kind::Damaged`](crate::error::Kind::Damaged) if the chain breaks the specification,
/// [`Kind::Unsupported`](crate::error::Kind::Unsupported) for an unknown codec or parameter.
pub fn parse_chain(codecs: &Value, chunks: &[u64], data_type: &Value) -> Result<Chain> {
    let codecs = parse_list(codecs, "codecs")?;
    let is_big_endian = is_big_endian(&codecs, 0)?;
    let data_type = DataType::parse(data_type, is_big_endian)?;
    let input = Input {
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
    Extension::parse(codec, "codecs")
        .is_ok_and(|codec| ["reshape", "zarrs.squeeze"].contains(&codec.name.as_str()))
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
fn parse_level(codecs: &[Extension], mut input: Input, chain: &mut Chain) -> Result<()> {
    let kind = |codec: &Extension| kind_of(&codec.name);
    let mut rest = codecs.iter().peekable();
    let mut filters = Vec::new();
    while let Some(codec) = rest.next_if(|codec| kind(codec) == Some(CodecKind::Array)) {
        filters.extend(array_codecs::parse(codec, &mut input)?);
    }
    let after = |codec: &Extension| match kind(codec) {
        None => unknown(codec),
        Some(_) => Error::damaged(format!(
            "codecs: {:?} stands in a place that it can't have",
            codec.name
        )),
    };
    let serializer = match rest.next() {
        // zarrita writes an empty list for little-endian bytes
        None if codecs.is_empty() => None,
        None => return Err(Error::damaged("codecs: none makes bytes of the array")),
        Some(codec) if kind(codec) == Some(CodecKind::ArrayToBytes) => Some(codec),
        Some(codec) => return Err(after(codec)),
    };
    let bytes: Vec<&Extension> = rest.collect();
    if let Some(codec) = bytes
        .iter()
        .find(|codec| kind(codec) != Some(CodecKind::Bytes))
    {
        return Err(after(codec));
    }
    match serializer {
        Some(codec) if codec.name == "sharding_indexed" => {
            return sharding::parse(codec, &filters, &bytes, input, chain);
        }
        serializer => serialize(serializer, &mut filters, &mut input)?,
    }
    for codec in bytes {
        filters.push(bytes_codecs::parse(codec)?);
    }
    chain.filters.extend(filters);
    Ok(())
}

/// Adds the array-to-bytes codec. `bytes` itself needs none, since decoded items have its byte
/// order.
fn serialize(
    codec: Option<&Extension>,
    filters: &mut Vec<CodecConfig>,
    input: &mut Input,
) -> Result<()> {
    let name = codec.map_or("bytes", |codec| codec.name.as_str());
    let is_for_variable = matches!(name, "vlen-utf8" | "vlen-bytes");
    if is_for_variable != input.is_variable {
        let items = if input.is_variable {
            "variable"
        } else {
            "fixed"
        };
        return Err(Error::damaged(format!(
            "codecs: {name:?} can't encode items of {items} length"
        )));
    }
    let Some(codec) = codec else { return Ok(()) };
    match name {
        "vlen-utf8" | "vlen-bytes" => {
            codec.allow_only(&[])?;
            // the object codec comes first: a decoded chunk is its output
            filters.insert(0, CodecConfig::new(name, Map::new()));
        }
        "packbits" => filters.push(bytes_codecs::packbits(codec, input)?),
        "numcodecs.pcodec" => filters.push(bytes_codecs::pcodec(codec, input)?),
        _ => {
            codec.allow_only(&["endian"])?;
            filters.extend(low_bits(input));
        }
    }
    Ok(())
}

/// Returns the codec that clears the upper bits of integers of 2 and 4 bits; `None` for other
/// items.
fn low_bits(input: &Input) -> Option<CodecConfig> {
    let element = input
        .element
        .as_deref()
        .filter(|element| ["int2", "int4", "uint2", "uint4"].contains(element))?;
    let dtype = ("dtype".to_string(), Value::from(element));
    Some(CodecConfig::new(LOW_BITS, Map::from_iter([dtype])))
}

/// The kind of a codec, by its input and output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CodecKind {
    /// A codec from arrays to arrays.
    Array,
    /// A codec from arrays to bytes.
    ArrayToBytes,
    /// A codec from bytes to bytes.
    Bytes,
}

fn kind_of(name: &str) -> Option<CodecKind> {
    Some(match name {
        "transpose" | "reshape" | "zarrs.squeeze" | "scale_offset" | "cast_value" | "bitround" => {
            CodecKind::Array
        }
        "numcodecs.bitround"
        | "numcodecs.delta"
        | "numcodecs.fixedscaleoffset"
        | "numcodecs.quantize"
        | "numcodecs.astype"
        | "numcodecs.packbits" => CodecKind::Array,
        "bytes" | "endian" | "packbits" | "vlen-utf8" | "vlen-bytes" | "numcodecs.pcodec"
        | "sharding_indexed" => CodecKind::ArrayToBytes,
        "blosc" | "gzip" | "zstd" | "crc32c" | "zlib" | "lz4" | "shuffle" => CodecKind::Bytes,
        _ => match name.strip_prefix("numcodecs.")? {
            "blosc" | "gzip" | "zlib" | "zstd" | "bz2" | "lz4" | "lzma" | "shuffle" | "crc32"
            | "crc32c" | "adler32" | "fletcher32" | "jenkins_lookup3" => CodecKind::Bytes,
            _ => return None,
        },
    })
}

fn unknown(codec: &Extension) -> Error {
    let why = if matches!(codec.name.as_str(), "zfp" | "numcodecs.zfpy") {
        NO_ZFP
    } else {
        "is unknown"
    };
    Error::unsupported(format!("codecs: codec {:?} {why}", codec.name))
}

/// Returns a dtype parameter, with the byte order of the chain: numcodecs writes the byte order of
/// the machine.
fn ordered_dtype(codec: &Extension, name: &str, input: &Input) -> Result<Option<String>> {
    let Some(value) = codec.get(name) else {
        return Ok(None);
    };
    let text = json::text(value).ok_or_else(|| codec.invalid(name, "is not a string"))?;
    if text.starts_with('>') {
        // releases of zarr-python disagree on its meaning
        let why = format!(
            "codecs: {:?}: {name} {text:?} is big-endian, which has no certain meaning",
            codec.name
        );
        return Err(Error::unsupported(why));
    }
    let canonical =
        crate::zarr::dtype::DType::canonical(text).map_err(|e| codec.invalid(name, e.message()))?;
    Ok(Some(match canonical.strip_prefix('<') {
        Some(rest) if input.is_big_endian => format!(">{rest}"),
        _ => canonical,
    }))
}

#[cfg(test)]
mod tests;
