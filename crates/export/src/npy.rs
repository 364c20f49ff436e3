//! NumPy's `.npy` (`numpy.lib.format`), version 1.0, or 2.0 if the header is longer than 64 KiB.

use super::{FormatContent, FormatSpec};
use zarrfs_base::json::{self, Value};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.npy",
    id: "npy",
    readers: Some("NumPy"),
    content: FormatContent::FlatBytes,
    fits,
    header: |array| Ok(header(&array.metadata).into()),
    ..FormatSpec::DEFAULT
};

/// Alignment of the flat bytes in the file, which numpy chose so that they can be mapped.
const ALIGNMENT: usize = 64;

/// Maximum length of the text of a dtype in bytes. NumPy refuses to evaluate longer ones than
/// 10,000 unless asked to.
const MAX_DESCR: usize = 1 << 18;

/// Returns whether numpy can read the dtype from a header: not objects, nor structs with unusual
/// field names.
fn fits(metadata: &ArrayMetadata) -> bool {
    descr(&metadata.dtype, &metadata.dtype_json).is_some()
}

/// Writes the header.
fn header(metadata: &ArrayMetadata) -> Vec<u8> {
    let descr = descr(&metadata.dtype, &metadata.dtype_json).unwrap_or_default();
    let shape: String = metadata.shape.iter().map(|n| format!("{n}, ")).collect();
    let shape = match metadata.shape.len() {
        1 => shape.trim_end().to_string(),
        _ => shape.trim_end_matches(", ").to_string(),
    };
    let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ({shape}), }}");
    let mut header = b"\x93NUMPY".to_vec();
    // magic, version, and the length of the rest of the header in two or four bytes
    let mut total = (10 + text.len() + 1).next_multiple_of(ALIGNMENT);
    if let Ok(len) = u16::try_from(total - 10) {
        header.extend([1, 0]);
        header.extend(len.to_le_bytes());
    } else {
        total = (12 + text.len() + 1).next_multiple_of(ALIGNMENT);
        header.extend([2, 0]);
        header.extend(((total - 12) as u32).to_le_bytes());
    }
    header.extend(text.bytes());
    header.resize(total - 1, b' ');
    header.push(b'\n');
    header
}

/// Returns the dtype as a Python literal; `None` if numpy cannot read it from a file, or if it is
/// longer than [`MAX_DESCR`].
pub fn descr(dtype: &DType, json: &Value) -> Option<String> {
    let mut text = String::new();
    push_descr(dtype, json, &mut text).map(|()| text)
}

fn push_descr(dtype: &DType, json: &Value, text: &mut String) -> Option<()> {
    let DTypeKind::Struct(fields) = dtype.kind() else {
        let is_object = *dtype.kind() == DTypeKind::Object;
        text.push_str(&quoted(
            &DType::canonical(json::text(json).filter(|_| !is_object)?).ok()?,
        )?);
        return (text.len() <= MAX_DESCR).then_some(());
    };
    text.push('[');
    for (i, (field, json)) in fields.iter().zip(json.as_array()?).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        text.push_str(&format!("{comma}({}, ", quoted(&field.name)?));
        push_descr(&field.dtype, json.get(1)?, text)?;
        if !field.shape.is_empty() {
            let shape: String = field.shape.iter().map(|n| format!("{n}, ")).collect();
            text.push_str(&format!(", ({shape})"));
        }
        text.push(')');
    }
    text.push(']');
    (text.len() <= MAX_DESCR).then_some(())
}

/// Returns text as a Python string; `None` if it has characters that versions 1 and 2 of the format
/// cannot hold.
fn quoted(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let is_plain = bytes.all(|c| matches!(c, b' '..=b'~') && c != b'\'' && c != b'\\');
    is_plain.then(|| format!("'{text}'"))
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn a_struct_of_many_levels_or_fields_is_spelled_once_or_not_at_all() {
        let nested =
            |levels: usize, leaf: &str| "[[\"a\",".repeat(levels) + leaf + &"]]".repeat(levels);
        let short = testing::metadata(&nested(50, "\"<f4\""), &[2]);
        assert_eq!(
            descr(&short.dtype, &short.dtype_json).unwrap(),
            "[('a', ".repeat(50) + "'<f4'" + &")]".repeat(50)
        );
        let fields: Vec<String> = (0..9000)
            .map(|i| format!("[\"{}{i}\",\"<f4\"]", "x".repeat(40)))
            .collect();
        let long = testing::metadata(&nested(50, &format!("[{}]", fields.join(","))), &[2]);
        assert!(!fits(&long));
    }
}
