//! The filter `categorize`: each text is stored as the number of its label, counted from 1; 0
//! stands for all other texts. Source of the rules: `numcodecs.Categorize` for texts of fixed
//! length (`U`). Python objects are not supported.

use super::items::{self, Items};
use super::number::Number;
use super::scalar::{Scalar, with_type};
use super::spec::is_plain;
use super::{Codec, CodecConfig, CodecError, CodecResult, CodecSpec, ItemTypes, Size, buffer};
use crate::dtype::DTypeKind;
use std::collections::HashMap;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json;

/// What is known of the filter.
pub const SPEC: CodecSpec = CodecSpec {
    id: "categorize",
    parameters: &["labels", "dtype", "astype"],
    build: |config, _| Ok(Box::new(Categorize::new(config)?)),
    items: ItemTypes::Labels,
    accepts: |_, name, value| Ok(is_plain(value) || name == "labels" && value.is_array()),
    ..CodecSpec::BYTES
};

/// The filter `categorize`.
pub struct Categorize {
    /// The labels in UCS-4 without trailing NULs, in the byte order of the texts.
    labels: Vec<Vec<u8>>,
    /// The number of each label.
    numbers: HashMap<Vec<u8>, usize>,
    /// Size of a text in bytes.
    width: usize,
    encoded: Items,
}

impl Categorize {
    /// Creates the filter from `labels`, `dtype` and `astype`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let dtype = config
            .dtype("dtype")?
            .ok_or_else(|| config.invalid("dtype", "is missing"))?;
        if *dtype.kind() != DTypeKind::Text || dtype.size() == 0 {
            return Err(Error::unsupported(
                "codec \"categorize\": only texts of fixed width are supported",
            ));
        }
        let encoded = Items::param(config, "astype")?.unwrap_or(Items::native(Scalar::U8));
        if !(encoded.scalar.is_integer()
            || encoded.scalar.is_float()
            || encoded.scalar == Scalar::Bool)
        {
            return Err(items::not_numeric(config, "astype"));
        }
        let list = config.get("labels").and_then(json::Value::as_array);
        let list = list.ok_or_else(|| config.invalid("labels", "is not a list"))?;
        let label = |v| {
            let text = json::text(v)
                .ok_or_else(|| config.invalid("labels", "has an item that is not a string"))?;
            Ok(dtype.units_of(text.trim_end_matches('\0')))
        };
        let labels = list.iter().map(label).collect::<Result<Vec<Vec<u8>>>>()?;
        let numbers = labels
            .iter()
            .enumerate()
            .map(|(i, l)| (l.clone(), i + 1))
            .collect();
        Ok(Categorize {
            labels,
            numbers,
            width: dtype.size(),
            encoded,
        })
    }

    fn encode_as<T: Number>(&self, decoded: &[u8], out: &mut Vec<u8>) {
        for text in decoded.chunks_exact(self.width) {
            let number = self.numbers.get(trimmed(text)).copied().unwrap_or(0);
            let start = out.len();
            out.resize(start + T::SIZE, 0);
            T::from_u64(number as u64).write(&mut out[start..]);
            if self.encoded.swapped {
                out[start..].reverse();
            }
        }
    }
}

/// Returns a UCS-4 text without its padding.
fn trimmed(text: &[u8]) -> &[u8] {
    let end = text
        .chunks_exact(4)
        .rposition(|c| c != [0; 4])
        .map_or(0, |last| 4 * (last + 1));
    &text[..end]
}

impl Codec for Categorize {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact((decoded / self.width).saturating_mul(self.encoded.size()))
    }

    fn encoded_itemsize(&self) -> usize {
        self.encoded.size()
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let count = buffer::count(encoded, self.encoded.size())?;
        let len = buffer::total(count, self.width)?;
        let texts = buffer::front(out, len)?;
        texts.fill(0);
        let f8 = Items::native(Scalar::F64);
        let mut numbers = [0; 8 * 256];
        for (some, texts) in encoded
            .chunks(256 * self.encoded.size())
            .zip(texts.chunks_mut(self.width.saturating_mul(256)))
        {
            let n = some.len() / self.encoded.size();
            items::convert(
                self.encoded,
                Scalar::F64,
                f8,
                some,
                &mut numbers[..8 * n],
                |_| {},
            );
            for (number, text) in numbers
                .chunks_exact(8)
                .zip(texts.chunks_exact_mut(self.width))
            {
                let number = f64::read(number);
                // fractions, NaN and numbers out of range stand for no label
                let label = (number >= 1.0 && number.fract() == 0.0)
                    .then(|| self.labels.get(number as usize - 1));
                if let Some(label) = label.flatten() {
                    let cut = label.len().min(text.len());
                    text[..cut].copy_from_slice(&label[..cut]);
                }
            }
        }
        Ok(len)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        buffer::count(decoded, self.width)?;
        let scalar = self.encoded.scalar;
        let bits = 8 * scalar.size() - usize::from(scalar.is_signed());
        if scalar.is_integer() && self.labels.len() as u128 >= 1u128 << bits {
            return Err(CodecError::new(format!(
                "{} labels are too many for categorize's astype",
                self.labels.len()
            )));
        }
        with_type!(scalar, T => self.encode_as::<T>(decoded, out));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{decoded, encoded, refused};

    fn ucs4(text: &str) -> Vec<u8> {
        text.chars()
            .flat_map(|c| (c as u32).to_le_bytes())
            .collect()
    }

    #[test]
    fn worked_examples() {
        let config = r#"{"id": "categorize", "labels": ["a", "b", "a", "cde"], "dtype": "<U2"}"#;
        assert_eq!(encoded(config, &ucs4("a\0b\0c\0ab\0\0")), [3, 2, 0, 0, 0]);
        assert_eq!(
            decoded(config, &[0, 1, 2, 4, 5], 40),
            ucs4("\0\0a\0b\0cd\0\0")
        );
        let wide = r#"{"id": "categorize", "labels": ["ß"], "dtype": ">U1", "astype": ">i2"}"#;
        assert_eq!(encoded(wide, &[0, 0, 0, 0xdf]), [0, 1]);
    }

    #[test]
    fn bad_parameters_are_errors() {
        refused(r#"{"id": "categorize", "labels": ["a"], "dtype": "|S2"}"#);
        refused(r#"{"id": "categorize", "labels": ["a"], "dtype": "|O"}"#);
        refused(r#"{"id": "categorize", "labels": [1], "dtype": "<U2"}"#);
        refused(r#"{"id": "categorize", "dtype": "<U2"}"#);
    }
}
