//! Builds the `.zarray` of a new v2 array, in the spelling that every reader of Zarr v2 accepts;
//! `document_v3` builds the `zarr.json` of a v3 array.
//!
//! Invariant: zarr-python 2.18 opens the array, and reads back the values written to it. If that is
//! impossible, `create` fails before it creates anything.

use super::CreateArgs;
use crate::array::hierarchy::DocumentFormat;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{self, Value, json};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::grid::Grid;
use zarrfs_format::interchange::check_interchange;
use zarrfs_format::metadata::{ArrayMetadata, CodecConfig};

/// A checked document.
pub struct NewDocument {
    /// The document's text.
    pub text: String,
    /// Number of flat bytes; `None` for objects, which have none.
    pub size: Option<u64>,
    /// The Zarr format.
    pub format: DocumentFormat,
    /// The text of a document for the attributes, if they are in none of the array.
    pub attributes: Option<String>,
}

impl NewDocument {
    /// Creates the `.zarray` from the arguments.
    ///
    /// # Errors
    ///
    /// Fails for arrays that zarr-python would refuse, or read differently, and for options of Zarr
    /// v3.
    pub fn v2(args: &CreateArgs) -> Result<Self> {
        let for_v3 = [
            ("--codecs", args.codecs.is_some()),
            ("--dimension-names", args.dimension_names.is_some()),
            ("--shards", args.shards.is_some()),
        ];
        if let Some((option, _)) = for_v3.iter().find(|(_, is_given)| *is_given) {
            return Err(Error::invalid(format!(
                "{option}: for an array of Zarr v3 (--zarr-format 3)"
            )));
        }
        let dtype = DType::parse(&args.dtype)?;
        dtype.check_storable(&args.dtype).context("--dtype")?;
        let filters = args.filters.clone().unwrap_or(Value::Null);
        let fill = fill_value(args.fill.as_deref(), &dtype, &filters).context("--fill")?;
        let compressor = args.compressor.0.as_ref().map(CodecConfig::to_json);
        let separator = args.separator.as_deref().unwrap_or(".");
        let text = json::write_pretty(&json!({
            "chunks": args.chunks.0,
            "compressor": compressor,
            "dimension_separator": separator,
            "dtype": args.dtype,
            "fill_value": fill,
            "filters": filters,
            "order": args.order,
            "shape": args.shape.0,
            "zarr_format": 2,
        }));
        let metadata = ArrayMetadata::parse(text.as_bytes())?;
        let grid = Grid::new(&metadata.shape, &metadata.chunks, metadata.dtype.size())?;
        check_interchange(&metadata, grid.max_chunk_size())?;
        Ok(NewDocument {
            text,
            size: (!metadata.has_objects()).then_some(grid.size()),
            format: DocumentFormat::V2,
            attributes: args.attrs.as_ref().map(json::write_pretty),
        })
    }
}

/// Returns the fill value as a `.zarray` spells it: the given value, or zeros as in zarr-python.
pub fn fill_value(given: Option<&str>, dtype: &DType, filters: &Value) -> Result<Value> {
    let Some(text) = given else {
        return Ok(if dtype.has_objects() {
            Value::Null
        } else {
            dtype.fill_value_json(&[]).unwrap_or(Value::Null)
        });
    };
    if text == "null" {
        return Ok(Value::Null);
    }
    let asked = spelled(text, dtype)?;
    if dtype.has_objects() {
        return object_fill(asked, dtype, filters);
    }
    let item = dtype.parse_fill_value(&asked)?.unwrap_or_default();
    let value = dtype
        .fill_value_json(&item)
        .ok_or_else(|| Error::invalid(format!("{text} has no spelling in Zarr v2")))?;
    if is_kept(&asked, &value, dtype) {
        Ok(value)
    } else {
        Err(Error::invalid(format!(
            "{text} is not a value of the dtype: it would become {}",
            json::write(&value)
        )))
    }
}

/// Parses the value of the option: JSON, a bare word, or the characters of a text.
fn spelled(text: &str, dtype: &DType) -> Result<Value> {
    let parsed = json::parse(text.as_bytes()).ok();
    let word = parsed.as_ref().and_then(json::text).unwrap_or(text);
    match dtype.kind() {
        // 5 may be a text, too
        DTypeKind::Text => Ok(word.into()),
        DTypeKind::Void | DTypeKind::Struct(_)
            if !dtype.has_objects() && parsed == Some(0.into()) =>
        {
            Ok(0.into())
        }
        DTypeKind::Bytes | DTypeKind::Void | DTypeKind::Struct(_) if !dtype.has_objects() => {
            match STANDARD.decode(word) {
                Ok(bytes) if bytes.len() <= dtype.size() => Ok(word.into()),
                Ok(bytes) => {
                    let len = bytes.len();
                    let size = dtype.size();
                    Err(Error::invalid(format!(
                        "{text} is {len} bytes in base64, an item has {size}"
                    )))
                }
                Err(_) => {
                    let encoded = STANDARD.encode(word);
                    Err(Error::invalid(format!(
                        "{text} is not base64; if these are the bytes, give {encoded}"
                    )))
                }
            }
        }
        // not every JSON parser accepts a bare NaN
        _ => Ok(match parsed {
            Some(value)
                if json::float(&value).is_some_and(|f| !f.is_finite()) && !value.is_number() =>
            {
                text.into()
            }
            Some(value) => value,
            None => text.into(),
        }),
    }
}

/// Checks the fill value of an array of objects, which its object codec must be able to encode.
fn object_fill(asked: Value, dtype: &DType, filters: &Value) -> Result<Value> {
    let codec = filters
        .get(0)
        .and_then(|codec| codec.get("id"))
        .and_then(json::text)
        .unwrap_or_default();
    let is_fine = match &asked {
        _ if *dtype.kind() != DTypeKind::Object => false,
        Value::String(_) => codec != "vlen-bytes" && codec != "vlen-array",
        Value::Number(_) | Value::Bool(_) => ["json2", "msgpack2"].contains(&codec),
        _ => false,
    };
    if is_fine {
        Ok(asked)
    } else {
        Err(Error::invalid(format!(
            "not a value that codec {codec:?} encodes; null is"
        )))
    }
}

/// Returns whether the stored value is the one given: numbers may be rounded to the dtype's
/// precision, but not clipped to its range or to integers, and texts must not be cut.
fn is_kept(asked: &Value, stored: &Value, dtype: &DType) -> bool {
    match dtype.kind() {
        DTypeKind::Int | DTypeKind::UInt => match (number(asked), number(stored)) {
            (Some(asked), Some(stored)) => asked == stored,
            // a text that spells a number
            _ => true,
        },
        DTypeKind::Float => number(asked).is_none_or(|asked| {
            let stored = number(stored).unwrap_or(f64::NAN);
            asked.is_finite() == stored.is_finite()
                && (asked.is_nan() || asked.signum() == stored.signum())
        }),
        DTypeKind::Complex => {
            complex_parts(asked)
                .iter()
                .zip(complex_parts(stored))
                .all(|(asked, stored)| {
                    asked.is_nan() == stored.is_nan() && asked.is_infinite() == stored.is_infinite()
                })
        }
        DTypeKind::Text => asked == stored,
        _ => true,
    }
}

fn number(value: &Value) -> Option<f64> {
    json::float(value).or_else(|| json::text(value).and_then(json::float_word))
}

fn complex_parts(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(parts) => parts
            .iter()
            .map(|part| number(part).unwrap_or(f64::NAN))
            .collect(),
        value => vec![number(value).unwrap_or(f64::NAN), 0.0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(dtype: &str, text: &str) -> Result<String> {
        let dtype = DType::parse(&json::parse(dtype.as_bytes()).unwrap()).unwrap();
        let filters = json::parse(br#"[{"id":"vlen-utf8"}]"#).unwrap();
        let given = Some(text).filter(|text| !text.is_empty());
        fill_value(given, &dtype, &filters).map(|value| json::write(&value))
    }

    #[test]
    fn fill_values_are_spelled_as_in_a_zarray() {
        for (dtype, text, expected) in [
            ("\"<f4\"", "", "0.0"),
            ("\"<f4\"", "1.5", "1.5"),
            ("\"<f4\"", "NaN", "\"NaN\""),
            ("\"<f4\"", "\"-Infinity\"", "\"-Infinity\""),
            ("\"<f4\"", "-0", "-0.0"),
            ("\"<i4\"", "3.0", "3"),
            ("\"<c8\"", "", "[0.0,0.0]"),
            ("\"<c8\"", "2", "[2.0,0.0]"),
            ("\"<c8\"", "[1,-2]", "[1.0,-2.0]"),
            ("\"<c8\"", "NaN", "[\"NaN\",0.0]"),
            ("\"|S3\"", "", "\"\""),
            ("\"|S3\"", "eHk=", "\"eHk=\""),
            ("\"|V3\"", "0", "\"AAAA\""),
            ("\"|V3\"", "AQ==", "\"AQAA\""),
            ("[[\"a\",\"<i2\"]]", "", "\"AAA=\""),
            ("\"<U3\"", "5", "\"5\""),
            ("\"<U3\"", "\"null\"", ""),
            ("\"<U4\"", "\"null\"", "\"null\""),
            ("\"<U3\"", "null", "null"),
            ("\"<M8[s]\"", "NaT", "-9223372036854775808"),
            ("\"|b1\"", "true", "true"),
            ("\"|O\"", "", "null"),
            ("\"|O\"", "text", "\"text\""),
            ("\"|O\"", "7", ""),
            ("\"<f4\"", "1e39", ""),
            ("\"<f4\"", "0x7fc00001", ""),
            ("\"<i4\"", "1.5", ""),
            ("\"|u1\"", "256", ""),
            ("\"<c8\"", "[1,\"Infinity\"]", ""),
            ("\"<c8\"", "[1]", ""),
            ("\"|S3\"", "xyz!", ""),
            ("\"|S1\"", "eHk=", ""),
            ("\"|V1\"", "eHk=", ""),
            ("\"<f4\"", "x", ""),
        ] {
            match expected {
                "" => assert!(fill(dtype, text).is_err(), "{dtype} {text}"),
                _ => assert_eq!(fill(dtype, text).as_deref(), Ok(expected), "{dtype} {text}"),
            }
        }
    }
}
