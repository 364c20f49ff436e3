//! The forms of codecs in documents of v3, which become configurations with the types and shapes
//! that v3 leaves to the reader. Source of the rules: the Zarr v3.1 specification, "Codecs", and
//! the registry of its extensions.

use super::{CodecConfig, CodecSpec, ItemTypes};
use crate::dtype::DType;
use crate::extension::Extension;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Value};

/// The kind of a codec, by its input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecKind {
    /// A codec from arrays to arrays.
    Array,
    /// A codec from arrays to bytes.
    ArrayToBytes,
    /// A codec from bytes to bytes.
    Bytes,
}

/// The input of a codec that encodes: items of a type in an array of a shape.
#[derive(Clone, Debug)]
pub struct ArrayInput {
    /// The type of single numbers as codec configurations spell it; `None` for other items.
    pub element: Option<String>,
    /// The size of an item in bytes.
    pub itemsize: usize,
    /// Whether the items are big-endian.
    pub is_big_endian: bool,
    /// Whether items have a variable length.
    pub is_variable: bool,
    /// The shape of the chunk.
    pub shape: Vec<u64>,
    /// The order of the dimensions: dimension `i` of the chunk is dimension `axes[i]` of the array.
    /// `None` after a reshape.
    pub axes: Option<Vec<usize>>,
}

impl ArrayInput {
    /// Returns the type of the items, or an error if they are not numbers.
    pub(super) fn element(&self, codec: &Extension) -> Result<&str> {
        self.element.as_deref().ok_or_else(|| {
            Error::unsupported(format!(
                "codecs: {:?} encodes numbers, which this data type has not",
                codec.name
            ))
        })
    }

    /// Sets the type of the items to a dtype.
    fn set_dtype(&mut self, dtype: String) -> Result<()> {
        self.itemsize = DType::parse_str(&dtype)?.size();
        self.element = Some(dtype);
        Ok(())
    }
}

/// Translates a codec whose parameters are those of numcodecs.
pub(super) fn plain(spec: &CodecSpec, codec: &Extension) -> Result<CodecConfig> {
    codec.allow_only(spec.parameters)?;
    Ok(CodecConfig::new(spec.id, codec.configuration.clone()))
}

/// Translates a codec of numbers, whose configuration gets their type as `dtype`, and the shape of
/// the chunk as `shape` if it has such a parameter.
pub(super) fn with_dtype(
    spec: &CodecSpec,
    codec: &Extension,
    input: &mut ArrayInput,
) -> Result<Option<CodecConfig>> {
    let stated: Vec<&str> = spec
        .parameters
        .iter()
        .copied()
        .filter(|name| !["dtype", "shape"].contains(name))
        .collect();
    codec.allow_only(&stated)?;
    let dtype = input.element(codec)?;
    let config = plain(spec, codec)?.with("dtype", dtype.into());
    Ok(Some(if spec.parameters.contains(&"shape") {
        config.with("shape", input.shape.clone().into())
    } else {
        config
    }))
}

/// Translates a filter of numcodecs whose parameters state the types of its items.
pub(super) fn stated_types(
    spec: &CodecSpec,
    codec: &Extension,
    input: &mut ArrayInput,
) -> Result<Option<CodecConfig>> {
    let config = plain(spec, codec)?;
    let ItemTypes::Stated { decoded, encoded } = spec.items else {
        return Ok(Some(config));
    };
    let from = match ordered_dtype(codec, decoded, input)? {
        Some(dtype) => dtype,
        None => input.element(codec)?.to_string(),
    };
    match DType::parse_str(&from) {
        Ok(parsed) if parsed.size() == input.itemsize => {}
        Ok(_) => {
            return Err(codec.invalid(decoded, &format!("{from:?} is not the type of the items")));
        }
        Err(_) => {
            let why = format!("codecs: {:?} can't encode {from:?}", codec.name);
            return Err(Error::unsupported(why));
        }
    }
    let to = ordered_dtype(codec, encoded, input)?.unwrap_or_else(|| from.clone());
    input.set_dtype(to.clone())?;
    Ok(Some(
        config.with(decoded, from.into()).with(encoded, to.into()),
    ))
}

/// Returns a dtype parameter, with the byte order of the chain: numcodecs writes the byte order of
/// the machine.
fn ordered_dtype(codec: &Extension, name: &str, input: &ArrayInput) -> Result<Option<String>> {
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
    let canonical = DType::canonical(text).map_err(|e| codec.invalid(name, e.message()))?;
    Ok(Some(match canonical.strip_prefix('<') {
        Some(rest) if input.is_big_endian => format!(">{rest}"),
        _ => canonical,
    }))
}

/// Checks that a parameter, if it is there, is an integer from `low` to `high`.
pub(super) fn check_int(codec: &Extension, name: &str, low: i64, high: i64) -> Result<()> {
    match codec.get(name).map(Value::as_i64) {
        None => Ok(()),
        Some(Some(n)) if (low..=high).contains(&n) => Ok(()),
        Some(_) => Err(codec.invalid(name, &format!("is not an integer from {low} to {high}"))),
    }
}
