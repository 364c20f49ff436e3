//! The v3 codecs `reshape` and `zarrs.squeeze`, which change the shape that later codecs see. No
//! bytes move.

use crate::codec::ArrayInput;
use crate::extension::Extension;
use crate::layout::byte_size;
use zarrfs_base::error::Result;
use zarrfs_base::json::Value;

/// Changes the shape of `input` to that of the codec's output.
pub(super) fn parse(codec: &Extension, input: &mut ArrayInput) -> Result<()> {
    let shape = if codec.name == "zarrs.squeeze" {
        codec.allow_only(&[])?;
        input
            .shape
            .iter()
            .copied()
            .filter(|len| *len != 1)
            .collect()
    } else {
        codec.allow_only(&["shape"])?;
        reshaped(codec, &input.shape)?
    };
    if byte_size(&shape, 1) != byte_size(&input.shape, 1) {
        let why = format!(
            "{shape:?} has other items than the chunk's {:?}",
            input.shape
        );
        return Err(codec.invalid("shape", &why));
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
            Some(axes) => joined_length(axes, shape),
            None if value.as_i64() == Some(-1) && rest.is_none() => {
                rest = Some(i);
                Some(1)
            }
            None => value.as_u64().filter(|length| *length > 0),
        };
        lengths.push(length.ok_or_else(bad)?);
    }
    if let Some(i) = rest {
        let all = byte_size(shape, 1).ok_or_else(bad)?;
        let known = byte_size(&lengths, 1);
        lengths[i] = known
            .and_then(|known| all.checked_div(known))
            .ok_or_else(bad)? as u64;
    }
    Ok(lengths)
}

/// Returns the product of the lengths of some dimensions.
fn joined_length(axes: &[Value], shape: &[u64]) -> Option<u64> {
    axes.iter().try_fold(1u64, |product, axis| {
        product.checked_mul(*shape.get(axis.as_u64()? as usize)?)
    })
}
