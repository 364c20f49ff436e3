//! The codec `cast_value` of Zarr v3: numbers converted to another type by value. Source of the
//! rules: the registry of Zarr extensions, "cast_value codec", and its implementation cast-value-rs
//! 0.5.

use super::spec::lacking_in_numcodecs;
use super::{
    ArrayInput, Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, Size, buffer,
};
use crate::data_type::DataType;
use crate::extension::Extension;
use crate::float_format::{FloatValue, RoundingMode};
use crate::real::{Misfit, OutOfRange, RealType};
use zarrfs_base::error::{Error, Result};

/// What is known of the codec.
pub const SPEC: CodecSpec = CodecSpec {
    id: "cast_value",
    parameters: &["from", "to", "rounding", "out_of_range", "scalar_map"],
    build: |config, _| Ok(Box::new(CastValue::new(config)?)),
    v3_names: &["cast_value"],
    kind: CodecKind::Array,
    parse: parse_v3,
    spell: None,
    check_input: lacking_in_numcodecs,
    is_elementwise: true,
    ..CodecSpec::BYTES
};

/// Maximum number of pairs in a map: enough for every 16-bit number.
const MAX_PAIRS: usize = 1 << 16;

/// The codec `cast_value`.
#[derive(Debug)]
pub struct CastValue {
    encoding: ValueCast,
    decoding: ValueCast,
}

/// One direction of the codec.
#[derive(Debug)]
struct ValueCast {
    from: RealType,
    to: RealType,
    mode: RoundingMode,
    out_of_range: OutOfRange,
    /// The pairs of `scalar_map`, sorted: the bits of a number, as [`matchable`] returns them, and
    /// the bits of its result.
    map: Vec<(u64, u64)>,
}

impl CastValue {
    /// Creates the codec from `from`, `to`, `rounding`, `out_of_range` and `scalar_map`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let from = real_type(config, "from")?;
        let to = real_type(config, "to")?;
        let encoding = ValueCast {
            from,
            to,
            mode: rounding(config)?,
            out_of_range: out_of_range(config)?,
            map: scalar_map(config, "encode", from, to)?,
        };
        let decoding = ValueCast {
            from: to,
            to: from,
            map: scalar_map(config, "decode", to, from)?,
            ..encoding
        };
        Ok(CastValue { encoding, decoding })
    }
}

/// Translates the codec of v3, which states the encoded type.
fn parse_v3(
    spec: &CodecSpec,
    codec: &Extension,
    input: &mut ArrayInput,
) -> Result<Option<CodecConfig>> {
    codec.allow_only(&["data_type", "rounding", "out_of_range", "scalar_map"])?;
    let from = input.element(codec)?.to_string();
    let target = codec
        .get("data_type")
        .ok_or_else(|| codec.invalid("data_type", "is missing"))?;
    let target = DataType::parse(target, input.is_big_endian)?;
    let to = target
        .element
        .ok_or_else(|| codec.invalid("data_type", "is not a type of numbers"))?;
    let mut parameters = codec.configuration.clone();
    parameters.shift_remove("data_type");
    parameters
        .entry("rounding")
        .or_insert("nearest-even".into());
    (input.element, input.itemsize) = (Some(to.clone()), target.dtype.size());
    let config = CodecConfig::new(spec.id, parameters);
    Ok(Some(config.with("from", from.into()).with("to", to.into())))
}

fn real_type(config: &CodecConfig, name: &str) -> Result<RealType> {
    config.required(name)?;
    let dtype = config.text(name, "")?;
    RealType::parse(dtype).ok_or_else(|| {
        Error::unsupported(format!(
            "codec \"cast_value\": cannot convert numbers of type {dtype:?}"
        ))
    })
}

fn rounding(config: &CodecConfig) -> Result<RoundingMode> {
    Ok(match config.text("rounding", "nearest-even")? {
        "nearest-even" => RoundingMode::NearestEven,
        "nearest-away" => RoundingMode::NearestAway,
        "towards-zero" => RoundingMode::TowardsZero,
        "towards-positive" => RoundingMode::TowardsPositive,
        "towards-negative" => RoundingMode::TowardsNegative,
        _ => return Err(config.invalid("rounding", "is unknown")),
    })
}

fn out_of_range(config: &CodecConfig) -> Result<OutOfRange> {
    Ok(match config.text("out_of_range", "error")? {
        "error" => OutOfRange::Error,
        "clamp" => OutOfRange::Clamp,
        "wrap" => OutOfRange::Wrap,
        _ => {
            return Err(config.invalid(
                "out_of_range",
                "is neither \"clamp\", \"wrap\" nor \"error\"",
            ));
        }
    })
}

/// Parses the pairs of one direction of `scalar_map`. Of pairs for the same number the first
/// counts.
fn scalar_map(
    config: &CodecConfig,
    direction: &str,
    from: RealType,
    to: RealType,
) -> Result<Vec<(u64, u64)>> {
    let invalid = |why: &str| config.invalid("scalar_map", why);
    let Some(value) = config.get("scalar_map") else {
        return Ok(Vec::new());
    };
    let members = value
        .as_object()
        .ok_or_else(|| invalid("is not an object"))?;
    if members.keys().any(|key| key != "encode" && key != "decode") {
        return Err(Error::unsupported(
            "codec \"cast_value\": scalar_map has members other than encode and decode",
        ));
    }
    let Some(pairs) = members.get(direction).filter(|pairs| !pairs.is_null()) else {
        return Ok(Vec::new());
    };
    let pairs = pairs.as_array().filter(|pairs| pairs.len() <= MAX_PAIRS);
    let pairs = pairs.ok_or_else(|| {
        invalid(&format!(
            "has an {direction} that is no list of at most {MAX_PAIRS} pairs"
        ))
    })?;
    let mut map = Vec::new();
    for (i, pair) in pairs.iter().enumerate() {
        let bits = match pair.as_array().map(Vec::as_slice) {
            Some([key, result]) => from.scalar(key).zip(to.scalar(result)),
            _ => None,
        };
        let (key, result) = bits.ok_or_else(|| {
            invalid(&format!(
                "has a pair {i} in {direction} that does not fit the types"
            ))
        })?;
        map.push((matchable(from, key), result));
    }
    map.sort_by_key(|(key, _)| *key);
    map.dedup_by_key(|(key, _)| *key);
    Ok(map)
}

/// Returns the bits by which a map finds an item: the same for all NaNs, for both zeros, and for
/// items that differ only in spare bits.
fn matchable(real: RealType, bits: u64) -> u64 {
    let value = match real.value(bits) {
        FloatValue::Nan { .. } => FloatValue::Nan { is_negative: false },
        FloatValue::Finite(mut number) => {
            number.is_negative &= number.magnitude != 0;
            FloatValue::Finite(number)
        }
        infinity => infinity,
    };
    real.convert(value, RoundingMode::NearestEven, OutOfRange::Error)
        .unwrap_or(bits)
}

impl ValueCast {
    fn item(&self, bits: u64) -> std::result::Result<u64, Misfit> {
        if !self.map.is_empty() {
            let key = matchable(self.from, bits);
            if let Ok(i) = self.map.binary_search_by_key(&key, |(key, _)| *key) {
                return Ok(self.map[i].1);
            }
        }
        if self.from.kind == self.to.kind {
            return Ok(bits);
        }
        self.to
            .convert(self.from.value(bits), self.mode, self.out_of_range)
    }

    /// Converts the items of `input` into `output`, which has space for exactly as many items.
    fn items(&self, input: &[u8], output: &mut [u8]) -> CodecResult<()> {
        self.from.convert_items(self.to, input, output, |bits| {
            self.item(bits).map_err(|misfit| self.error(bits, misfit))
        })
    }

    fn error(&self, bits: u64, misfit: Misfit) -> CodecError {
        CodecError::new(match misfit {
            Misfit::Range => format!(
                "cast_value: {} is out of range of the type to cast to",
                self.from.shown(bits)
            ),
            Misfit::Nan => {
                "cast_value: the type to cast to has no NaN, and scalar_map does not map it"
                    .to_string()
            }
        })
    }

    /// Returns the size of the converted `input` in bytes.
    fn len(&self, input: &[u8]) -> CodecResult<usize> {
        buffer::total(buffer::count(input, self.from.size)?, self.to.size)
    }
}

impl Codec for CastValue {
    fn encoded_size(&self, decoded: usize) -> Size {
        let ValueCast { from, to, .. } = self.encoding;
        Size::Exact((decoded / from.size).saturating_mul(to.size))
    }

    fn encoded_itemsize(&self) -> usize {
        self.encoding.to.size
    }

    fn is_lossless(&self) -> bool {
        let ValueCast { from, to, .. } = self.encoding;
        let is_mapped = !self.encoding.map.is_empty() || !self.decoding.map.is_empty();
        // items of other types may differ in spare bits or in the payload of a NaN, which a cast
        // changes
        !is_mapped && (from.kind == to.kind || from.is_canonical() && from.is_integer_within(to))
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let len = self.decoding.len(encoded)?;
        self.decoding.items(encoded, buffer::front(out, len)?)?;
        Ok(len)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        // the pipeline has reserved the memory, unless the items become more than twice as large
        out.resize(self.encoding.len(decoded)?, 0);
        self.encoding.items(decoded, out)
    }
}

#[cfg(test)]
mod tests;
