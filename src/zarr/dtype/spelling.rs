//! Dtypes and fill values as zarr-python 2.18 spells them in a `.zarray`. [`DType::parse`] and [`DType::fill`] take more
//! spellings than other readers do. What this program writes has the one form that every reader of Zarr v2 takes.
//! Source of the rules: `encode_dtype`, `encode_fill_value` and `decode_fill_value` of zarr-python 2.18.

use super::{DType, DTypeKind, from_name};
use crate::error::{Error, Result};
use crate::util::json::{self, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Largest item, in bytes, whose fill value of zeros is spelled out in base64; beyond it null says the same in less.
const MAX_SPELLED: usize = 1 << 20;

impl DType {
    /// Returns the type string that NumPy makes of `text`: `float32` and `f4` are `<f4`.
    pub fn canonical(text: &str) -> Result<String> {
        Ok(Self::parse_str(text)?.canonical_text(text))
    }

    /// As [`DType::canonical`], of a dtype as array metadata has it, a list of fields too.
    pub fn canonical_json(value: &Value) -> Result<Value> {
        let dtype = Self::parse(value)?;
        match (value, &dtype.kind) {
            (Value::Array(list), DTypeKind::Struct(fields)) => {
                let fields = list.iter().zip(fields).map(|(spelled, field)| {
                    let dtype =
                        spelled.get(1).map_or(Err(Error::damaged("dtype: a field has none")), Self::canonical_json)?;
                    let mut parts = vec![Value::from(field.name.as_str()), dtype];
                    if !field.shape.is_empty() {
                        parts.push(field.shape.clone().into());
                    }
                    Ok(Value::Array(parts))
                });
                let canonical = Value::Array(fields.collect::<Result<_>>()?);
                // NumPy's name for a nameless field may be another field's
                Self::parse(&canonical).map(|_| canonical)
            }
            _ => Ok(dtype.canonical_text(json::text(value).unwrap_or_default()).into()),
        }
    }

    /// The canonical form of `text`, which spells this dtype.
    fn canonical_text(&self, text: &str) -> String {
        let bare = text.trim_start_matches(['<', '>', '|', '=']);
        let bare = match (from_name(bare).unwrap_or(bare), &self.kind) {
            (_, DTypeKind::Object) => "O".to_string(),
            (bare, DTypeKind::Bytes) => bare.replacen('a', "S", 1),
            (bare, DTypeKind::TimeDelta | DTypeKind::DateTime) => with_canonical_unit(bare),
            (bare, _) => bare.to_string(),
        };
        match self.kind {
            DTypeKind::Bytes | DTypeKind::Void | DTypeKind::Object => format!("|{bare}"),
            _ if self.size == 1 => format!("|{bare}"),
            _ if self.big_endian => format!(">{bare}"),
            _ => format!("<{bare}"),
        }
    }

    /// Returns the fill value whose item is `item`, which may lack zero bytes at its end: the inverse of
    /// [`DType::fill`]. Returns `None` if no fill value makes every reader see just this item, such as a NaN with a
    /// payload, and for objects, whose fill values are no bytes.
    pub fn fill_value_json(&self, item: &[u8]) -> Option<Value> {
        let value = match &self.kind {
            _ if self.has_objects() => return None,
            // a struct or a void of gigabytes
            DTypeKind::Struct(_) | DTypeKind::Void if self.size > MAX_SPELLED && item.is_empty() => {
                return Some(Value::Null);
            }
            DTypeKind::Struct(_) | DTypeKind::Void => STANDARD.encode(self.whole(item)).into(),
            DTypeKind::Bytes => STANDARD.encode(item).into(),
            DTypeKind::Text => self.text_of(item)?.into(),
            DTypeKind::Bool => item.iter().any(|byte| *byte != 0).into(),
            DTypeKind::Float => float_json(self.float_of(&self.whole(item))),
            DTypeKind::Complex => {
                let whole = self.whole(item);
                let (re, im) = whole.split_at(self.size / 2);
                Value::Array(vec![float_json(self.float_of(re)), float_json(self.float_of(im))])
            }
            DTypeKind::UInt => self.little(&self.whole(item)).into(),
            DTypeKind::Int | DTypeKind::TimeDelta | DTypeKind::DateTime => {
                // the sign is in the highest bit of the item
                let unused = 64 - 8 * self.size as u32;
                ((self.little(&self.whole(item)) << unused) as i64 >> unused).into()
            }
            DTypeKind::Object => return None,
        };
        self.parse_fill_value(&value)
            .is_ok_and(|read| read.is_some_and(|read| self.is_same_item(&read, item)))
            .then_some(value)
    }

    /// Compares items, the zero bytes at whose ends may be missing.
    fn is_same_item(&self, a: &[u8], b: &[u8]) -> bool {
        let trimmed = |item: &[u8]| item.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        a[..trimmed(a)] == b[..trimmed(b)]
    }

    /// The item with the zero bytes at its end.
    fn whole(&self, item: &[u8]) -> Vec<u8> {
        let mut whole = item.to_vec();
        whole.resize(self.size, 0);
        whole
    }

    /// The unsigned integer that at most 8 bytes hold in this dtype's byte order.
    fn little(&self, bytes: &[u8]) -> u64 {
        let add = |n: u64, byte: &u8| n << 8 | u64::from(*byte);
        if self.big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) }
    }

    /// The number that a float of 2, 4, 8 or 16 bytes in this dtype's byte order holds, to the nearest double.
    fn float_of(&self, bytes: &[u8]) -> f64 {
        match bytes.len() {
            2 => half::f16::from_bits(self.little(bytes) as u16).to_f64(),
            4 => f64::from(f32::from_bits(self.little(bytes) as u32)),
            8 => f64::from_bits(self.little(bytes)),
            _ => from_extended(&self.ordered(bytes)),
        }
    }

    fn text_of(&self, item: &[u8]) -> Option<String> {
        self.whole(item)
            .chunks_exact(4)
            .map(|unit| char::from_u32(self.little(unit) as u32))
            .collect::<Option<String>>()
            .map(|text| text.trim_end_matches('\0').to_string())
    }
}

/// `M8[025s]` with its unit as NumPy spells it: `M8[25s]`.
fn with_canonical_unit(bare: &str) -> String {
    let Some((start, unit)) = bare.split_once('[') else { return bare.to_string() };
    let unit = unit.trim_end_matches(']').replace('μ', "u");
    let word = unit.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = unit[..unit.len() - word.len()].trim_start_matches('0');
    match (word, count) {
        ("generic", _) => start.to_string(),
        (word, "1") => format!("{start}[{word}]"),
        (word, count) => format!("{start}[{count}{word}]"),
    }
}

/// A float as zarr-python writes it: words, in strings, for what JSON has no number for.
fn float_json(number: f64) -> Value {
    match number {
        _ if number.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => number.into(),
    }
}

/// The nearest double to x86's 80-bit extended float, little-endian: the inverse of what `fill` writes.
fn from_extended(bytes: &[u8]) -> f64 {
    let part =
        |range: std::ops::Range<usize>| bytes[range].iter().rev().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
    let (mantissa, high) = (part(0..8), part(8..10));
    let sign = if high >> 15 == 0 { 1.0 } else { -1.0 };
    sign * match high as i32 & 0x7fff {
        0x7fff if mantissa << 1 == 0 => f64::INFINITY,
        0x7fff => f64::NAN,
        // in two steps: 2 to the whole exponent may be no double where the product is one
        exponent => {
            let exponent = (exponent - 16383 - 63).clamp(-2000, 2000);
            mantissa as f64 * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dtype(text: &str) -> DType {
        DType::parse(&json::parse(text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn canonical_dtypes() {
        for (spelled, expected) in [
            (r#""float32""#, r#""<f4""#),
            (r#""f4""#, r#""<f4""#),
            (r#""=i8""#, r#""<i8""#),
            (r#"">f8""#, r#"">f8""#),
            (r#""bool""#, r#""|b1""#),
            (r#""<u1""#, r#""|u1""#),
            (r#""a7""#, r#""|S7""#),
            (r#"">U3""#, r#"">U3""#),
            (r#""object""#, r#""|O""#),
            (r#""M8[ns]""#, r#""<M8[ns]""#),
            (r#"">m8[025μs]""#, r#"">m8[25us]""#),
            (r#""M8[1s]""#, r#""<M8[s]""#),
            (r#"[["a","int16",3],["","S2",[]]]"#, r#"[["a","<i2",[3]],["f1","|S2"]]"#),
            (r#"[["a",[["b","bool"]],[2,2]]]"#, r#"[["a",[["b","|b1"]],[2,2]]]"#),
        ] {
            let (spelled, expected) =
                (json::parse(spelled.as_bytes()).unwrap(), json::parse(expected.as_bytes()).unwrap());
            assert_eq!(DType::canonical_json(&spelled).unwrap(), expected);
            assert_eq!(DType::parse(&spelled).unwrap(), DType::parse(&expected).unwrap(), "{expected}");
        }
        for bad in [r#""i3""#, r#"[["f1","<i4"],["","<i4"]]"#, "7"] {
            assert!(DType::canonical_json(&json::parse(bad.as_bytes()).unwrap()).is_err(), "{bad}");
        }
    }

    // what zarr.create(fill_value=..., dtype=...) of zarr-python 2.18 writes
    #[test]
    fn fill_values_as_zarr_python_spells_them() {
        for (of, given, expected) in [
            (r#""<c16""#, "0", "[0.0,0.0]"),
            (r#"">c8""#, "[1.5,\"NaN\"]", "[\"NaN\",\"NaN\"]"),
            (r#""|V3""#, "0", "\"AAAA\""),
            (r#"[["a","<i2"],["b","|S1"]]"#, "0", "\"AAAA\""),
            (r#""|S4""#, "\"eHk=\"", "\"eHk=\""),
            (r#""|S4""#, "0", "\"MA==\""),
            (r#""<f4""#, "0.1", "0.10000000149011612"),
            (r#"">f2""#, "-Infinity", "\"-Infinity\""),
            (r#""<f16""#, "-2.5", "-2.5"),
            (r#"">i2""#, "\"-7\"", "-7"),
            (r#""<u8""#, "18446744073709551615", "18446744073709551615"),
            (r#""|b1""#, "1", "true"),
            (r#""<M8[s]""#, "\"NaT\"", "-9223372036854775808"),
            (r#"">U3""#, "5", "\"5\""),
        ] {
            let dtype = dtype(of);
            let item = dtype.parse_fill_value(&json::parse(given.as_bytes()).unwrap()).unwrap().unwrap();
            let value = dtype.fill_value_json(&item).unwrap_or_else(|| panic!("{of} {given}"));
            assert_eq!(json::write(&value), expected, "{of} {given}");
        }
        let payload = dtype(r#""<f4""#).parse_fill_value(&"0x7fc00001".into()).unwrap().unwrap();
        assert_eq!(dtype(r#""<f4""#).fill_value_json(&payload), None);
        assert_eq!(dtype(r#""|V2000000""#).fill_value_json(&[]), Some(Value::Null));
        assert_eq!(dtype(r#""<U1""#).fill_value_json(&[0, 0xd8]), None, "a lone surrogate");
    }

    proptest! {
        #[test]
        fn every_fill_value_is_read_as_the_item_it_was_made_of(
            of in prop::sample::select(vec!["|b1", "|i1", ">i2", "<i8", "|u1", "<u4", ">u8", "<f2", ">f4", "<f8", ">f8",
                "<f16", ">f16", "<c8", ">c16", "<c32", "<m8[s]", ">M8[ns]", "|S5", "<U2", ">U2", "|V7"]),
            bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 32),
        ) {
            let dtype = DType::parse_str(of).unwrap();
            let item = &bytes[..dtype.size()];
            if let Some(value) = dtype.fill_value_json(item) {
                let text = json::write(&value);
                let read = dtype.parse_fill_value(&json::parse(text.as_bytes()).unwrap()).unwrap().unwrap();
                prop_assert!(dtype.is_same_item(&read, item), "{of} {text}");
            } else {
                let is_exact = matches!(dtype.kind(), DTypeKind::Int | DTypeKind::UInt | DTypeKind::Bytes | DTypeKind::Void | DTypeKind::DateTime);
                prop_assert!(!is_exact, "{of} {item:?}");
            }
        }
    }
}
