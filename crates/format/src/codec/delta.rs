//! The filter `delta`: each item but the first is stored as its difference from the item before.
//! Source of the rules: `numcodecs.Delta`, which uses `numpy.diff`, and `numpy.cumsum` with its
//! accumulator type.

use super::items::{self, Items, NumberTypes};
use super::number::Number;
use super::scalar::{Scalar, with_type};
use super::{Codec, CodecConfig, CodecError, CodecResult, CodecSpec, Size, buffer};
use crate::dtype::DTypeKind;
use zarrfs_base::error::Result;

/// What is known of the filter.
pub const SPEC: CodecSpec = CodecSpec {
    id: "delta",
    parameters: &["dtype", "astype"],
    build: |config, _| Ok(Box::new(Delta::new(config)?)),
    v3_names: &["numcodecs.delta"],
    ..CodecSpec::NUMBERS
};

/// The filter `delta`.
pub struct Delta(NumberTypes);

impl Delta {
    /// Creates the filter from `dtype` and `astype`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let types = NumberTypes::new(config, ["dtype", "astype"], |_| true)?;
        let NumberTypes { decoded, encoded } = types;
        let mixed = (decoded.scalar == Scalar::Ticks) != (encoded.scalar == Scalar::Ticks);
        if mixed || is_date(config, "dtype")? || is_date(config, "astype")? {
            return Err(items::not_numeric(config, "dtype"));
        }
        if config.get("astype").is_some() && !items::same_units(config, "dtype", "astype")? {
            return Err(items::not_numeric(config, "astype"));
        }
        Ok(Delta(types))
    }

    fn decode_as<T: Number>(
        &self,
        work: Scalar,
        input: &[u8],
        out: &mut [u8],
    ) -> CodecResult<usize> {
        let mut sum: Option<T> = None;
        self.0.decode(work, input, out, |block| {
            let (head, tail) = block.split_at_mut(T::SIZE);
            // adding the first item to zero would turn -0.0 into 0.0
            let first = sum.map_or_else(|| T::read(head), |sum| sum.add(T::read(head)));
            first.write(head);
            let mut running = first;
            items::each::<T>(tail, |x| {
                running = running.add(x);
                running
            });
            sum = Some(running);
        })
    }

    fn encode_as<T: Number>(&self, input: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let mut last: Option<T> = None;
        self.0.encode(self.0.decoded.scalar, input, out, |block| {
            let (head, tail) = block.split_at_mut(T::SIZE);
            let mut before = T::read(head);
            if let Some(last) = last {
                before.sub(last).write(head);
            }
            items::each::<T>(tail, |x| {
                let difference = x.sub(before);
                before = x;
                difference
            });
            last = Some(before);
        })
    }

    /// Checks that the first item fits a signed encoded type. NumPy assigns this item, which can
    /// fail, but casts the differences, which wraps.
    fn check_first(&self, input: &[u8]) -> CodecResult<()> {
        let NumberTypes { decoded, encoded } = self.0;
        let from = decoded.scalar;
        let to = encoded.scalar;
        let mut native = [0; 8];
        let head = input
            .get(..decoded.size())
            .ok_or_else(|| CodecError::new("delta can't encode an empty buffer"))?;
        if !to.is_signed() || matches!(from, Scalar::Bool | Scalar::Ticks) {
            return Ok(());
        }
        let wide = match from {
            _ if from.is_signed() => Scalar::I64,
            _ if from.is_integer() => Scalar::U64,
            _ => Scalar::F64,
        };
        items::convert(
            decoded,
            wide,
            Items::native(wide),
            head,
            &mut native,
            |_| {},
        );
        let float = f64::from_ne_bytes(native);
        let first = match wide {
            Scalar::I64 => Some(i64::from_ne_bytes(native).into()),
            Scalar::U64 => Some(u64::from_ne_bytes(native).into()),
            // numbers beyond 128 bits become the largest ones
            _ => Some(float as i128).filter(|_| !float.is_nan()),
        };
        if first.is_some_and(|first| to.range().contains(&first)) {
            Ok(())
        } else {
            Err(CodecError::new(
                "the first item does not fit delta's astype",
            ))
        }
    }
}

/// Returns whether a parameter is a type of dates.
fn is_date(config: &CodecConfig, name: &str) -> Result<bool> {
    let dtype = config.dtype(name)?;
    Ok(dtype.is_some_and(|dtype| *dtype.kind() == DTypeKind::DateTime))
}

impl Codec for Delta {
    fn encoded_size(&self, decoded: usize) -> Size {
        self.0.encoded_size(decoded)
    }

    fn encoded_itemsize(&self) -> usize {
        self.0.encoded.size()
    }

    fn is_lossless(&self) -> bool {
        self.0.are_preserved()
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let work = self.0.encoded.scalar.promote(self.0.decoded.scalar);
        with_type!(work, T => self.decode_as::<T>(work, encoded, out))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        buffer::count(decoded, self.0.decoded.size())?;
        self.check_first(decoded)?;
        with_type!(self.0.decoded.scalar, T => self.encode_as::<T>(decoded, out))
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{broken, check, refused};

    #[test]
    fn worked_examples() {
        check(
            r#"{"id": "delta", "dtype": "<i2", "astype": "|i1"}"#,
            &[100, 0, 102, 0, 99, 0],
            &[100, 2, 253],
        );
        check(
            r#"{"id": "delta", "dtype": ">u2"}"#,
            &[0, 5, 0, 4, 1, 4],
            &[0, 5, 255, 255, 1, 0],
        );
        check(
            r#"{"id": "delta", "dtype": "<f4"}"#,
            &[0, 0, 192, 63, 0, 0, 0, 192],
            &[0, 0, 192, 63, 0, 0, 96, 192], // 1.5, -2: 1.5, -3.5
        );
    }

    #[test]
    fn bad_parameters_are_errors() {
        refused(r#"{"id": "delta", "dtype": "<M8[s]"}"#);
        refused(r#"{"id": "delta", "dtype": "<U2"}"#);
        refused(r#"{"id": "delta", "dtype": "<m8[s]", "astype": "<m8[ms]"}"#);
        refused(r#"{"id": "delta", "dtype": "<i2", "order": 1}"#);
        refused(r#"{"id": "delta"}"#);
        broken(r#"{"id": "delta", "dtype": "<i2"}"#, &[1, 2, 3]);
    }
}
