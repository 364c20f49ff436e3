//! The codec `transpose` of Zarr v3: the items of a chunk in C order of its permuted axes. Source
//! of the rules: the Zarr v3 specification, "Transpose codec". The codec knows the size of the
//! items, not their type.

use super::spec::lacking_in_numcodecs;
use super::{
    ArrayInput, Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, ItemTypes, Size,
    buffer,
};
use crate::extension::Extension;
use crate::layout::{byte_size, is_permutation, permute};
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Map, Value};

/// What is known of the codec.
pub const SPEC: CodecSpec = CodecSpec {
    id: "transpose",
    parameters: &["shape", "order"],
    build: |config, itemsize| Ok(Box::new(Transpose::new(config, itemsize)?)),
    items: ItemTypes::Kept,
    v3_names: &["transpose"],
    kind: CodecKind::Array,
    parse: |_, codec, input| parse_v3(codec, input),
    spell: None,
    check_input: lacking_in_numcodecs,
    ..CodecSpec::BYTES
};

/// The codec `transpose`.
pub struct Transpose {
    axes: AxisOrder,
    /// Size of an item in bytes.
    itemsize: usize,
    /// Size of a chunk in bytes.
    size: usize,
}

impl Transpose {
    /// Creates the codec from `order` and `shape`, the shape of the decoded chunk, for items of
    /// `itemsize` bytes. Axis `i` of the encoded chunk is axis `order[i]` of the decoded one.
    pub fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        let axes = AxisOrder::parse(config)?;
        let size = byte_size(&axes.shape, itemsize)
            .ok_or_else(|| config.invalid("shape", "is too large"))?;
        Ok(Transpose {
            axes,
            itemsize,
            size,
        })
    }

    /// Checks that a chunk has the expected size.
    fn check_size(&self, len: usize) -> CodecResult<()> {
        if len == self.size {
            Ok(())
        } else {
            Err(CodecError::new(format!(
                "transpose: {len} bytes where the chunk has {}",
                self.size
            )))
        }
    }
}

impl Codec for Transpose {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded)
    }

    fn encoded_itemsize(&self) -> usize {
        self.itemsize
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        self.check_size(encoded.len())?;
        let out = buffer::front(out, self.size)?;
        permute(
            &self.axes.encoded_shape,
            &self.axes.inverse,
            self.itemsize,
            encoded,
            out,
        );
        Ok(self.size)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        self.check_size(decoded.len())?;
        out.resize(self.size, 0);
        permute(
            &self.axes.shape,
            &self.axes.order,
            self.itemsize,
            decoded,
            out,
        );
        Ok(())
    }
}

/// A permutation of axes, in both directions.
pub(super) struct AxisOrder {
    /// The shape of a decoded chunk in items.
    pub(super) shape: Vec<u64>,
    /// The decoded axis for each encoded axis.
    pub(super) order: Vec<usize>,
    /// The shape of an encoded chunk in items.
    pub(super) encoded_shape: Vec<u64>,
    /// The encoded axis for each decoded axis.
    pub(super) inverse: Vec<usize>,
}

impl AxisOrder {
    /// Parses the parameters `shape` and `order`.
    pub(super) fn parse(config: &CodecConfig) -> Result<Self> {
        let shape = numbers(config, "shape")?;
        let order: Vec<usize> = numbers(config, "order")?
            .iter()
            .map(|n| *n as usize)
            .collect();
        if !is_permutation(&order, shape.len()) {
            return Err(config.invalid("order", "is not a permutation of the axes"));
        }
        let encoded_shape = order.iter().map(|d| shape[*d]).collect();
        let mut inverse = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, d)| inverse[*d] = i);
        Ok(AxisOrder {
            shape,
            order,
            encoded_shape,
            inverse,
        })
    }
}

/// Translates the codec of v3. Returns `None` if the items keep their places.
fn parse_v3(codec: &Extension, input: &mut ArrayInput) -> Result<Option<CodecConfig>> {
    codec.allow_only(&["order"])?;
    let order = order_v3(codec, input.shape.len())?;
    if order.iter().copied().eq(0..order.len()) {
        return Ok(None);
    }
    let config = transposition(&input.shape, &order, input.is_variable);
    input.shape = order.iter().map(|&axis| input.shape[axis]).collect();
    if let Some(axes) = &mut input.axes {
        *axes = order.iter().map(|&axis| axes[axis]).collect();
    }
    Ok(Some(config))
}

/// Parses `order`. Drafts of v3 had `"C"` and `"F"`.
fn order_v3(codec: &Extension, dimensions: usize) -> Result<Vec<usize>> {
    match codec.get("order").and_then(json::text) {
        Some("C") => return Ok((0..dimensions).collect()),
        Some("F") => return Ok((0..dimensions).rev().collect()),
        _ => {}
    }
    let order = codec.lengths("order")?;
    let order: Vec<usize> = order.into_iter().map(|axis| axis as usize).collect();
    if is_permutation(&order, dimensions) {
        Ok(order)
    } else {
        let why = format!("is not a permutation of {dimensions} dimensions");
        Err(codec.invalid("order", &why))
    }
}

/// The id of the codec that transposes items of variable length.
pub const OF_BYTES: &str = "vlen_transpose";

/// Returns the codec that transposes chunks of shape `shape`, whose items may have variable
/// length: axis `i` of the encoded chunk is axis `order[i]`.
pub fn transposition(shape: &[u64], order: &[usize], is_variable: bool) -> CodecConfig {
    let id = if is_variable { OF_BYTES } else { SPEC.id };
    CodecConfig::new(id, Map::new())
        .with("shape", shape.into())
        .with("order", order.into())
}

/// Returns the parameter `name`, a list of non-negative integers.
fn numbers(config: &CodecConfig, name: &str) -> Result<Vec<u64>> {
    let list = config
        .required(name)?
        .as_array()
        .ok_or_else(|| config.invalid(name, "is not a list"))?;
    list.iter()
        .map(Value::as_u64)
        .collect::<Option<_>>()
        .ok_or_else(|| config.invalid(name, "is not a list of sizes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::{broken, check, config, encoded_as, refused};
    use proptest::prelude::*;

    const CUBE: &str = r#"{"id": "transpose", "shape": [2, 3, 2], "order": [1, 2, 0]}"#;

    /// Tests the values of `numpy.arange(12).reshape(2, 3, 2).transpose(1, 2, 0)`.
    #[test]
    fn worked_examples() {
        let plain: Vec<u8> = (0..12).collect();
        check(CUBE, &plain, &[0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]);
        check(
            r#"{"id": "transpose", "shape": [], "order": []}"#,
            b"a",
            b"a",
        );
        check(
            r#"{"id": "transpose", "shape": [3, 0], "order": [1, 0]}"#,
            b"",
            b"",
        );
        let matrix = r#"{"id": "transpose", "shape": [2, 2], "order": [1, 0]}"#;
        assert_eq!(encoded_as(matrix, 3, b"aaabbbcccddd"), b"aaacccbbbddd");
        assert_eq!(
            Transpose::new(&config(matrix), 3)
                .unwrap()
                .encoded_itemsize(),
            3
        );
    }

    #[test]
    fn other_sizes_and_bad_parameters_are_errors() {
        broken(CUBE, &[0; 11]);
        broken(CUBE, &[0; 13]);
        let codec = Transpose::new(&config(CUBE), 2).unwrap();
        assert!(codec.encode(&[0; 12], &mut Vec::new()).is_err());
        for parameters in [
            r#""shape": [2, 3]"#,
            r#""order": [0, 1]"#,
            r#""shape": [2, 3], "order": [0]"#,
            r#""shape": [2, 3], "order": [0, 0]"#,
            r#""shape": [2, 3], "order": [1, 2]"#,
            r#""shape": [2, 3], "order": "F""#,
            r#""shape": [2, -3], "order": [1, 0]"#,
            r#""shape": [18446744073709551615, 2], "order": [1, 0]"#,
            r#""shape": [2], "order": [0], "level": 1"#,
        ] {
            refused(&format!(r#"{{"id": "transpose", {parameters}}}"#));
        }
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(
            shape in prop::collection::vec(1u64..6, 4),
            order in Just(vec![0usize, 1, 2, 3]).prop_shuffle(),
            item in 1usize..9,
        ) {
            let text = format!(r#"{{"id": "transpose", "shape": {shape:?}, "order": {order:?}}}"#);
            let codec = Transpose::new(&config(&text), item).unwrap();
            let plain: Vec<u8> = (0..codec.size).map(|i| (i ^ i >> 8) as u8).collect();
            let mut stored = Vec::new();
            let mut decoded = vec![0; plain.len()];
            codec.encode(&plain, &mut stored).unwrap();
            prop_assert_eq!(codec.decode(&stored, &mut decoded), Ok(plain.len()));
            prop_assert_eq!(decoded, plain);
        }
    }
}
