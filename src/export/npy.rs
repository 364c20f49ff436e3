//! NumPy's `.npy` (`numpy.lib.format`), version 1.0, or 2.0 if the header is longer than 64 KiB.

use crate::util::json::{self, Value};
use crate::zarr::dtype::{DType, DTypeKind};
use crate::zarr::metadata::ArrayMetadata;

/// Alignment of the flat bytes in the file, which numpy chose so that they can be mapped.
const ALIGNMENT: usize = 64;

/// Returns whether numpy can read the dtype from a header: not objects, nor structs with unusual field names.
pub fn fits(metadata: &ArrayMetadata) -> bool {
    descr(&metadata.dtype, &metadata.dtype_json).is_some()
}

/// Writes the header.
pub fn header(metadata: &ArrayMetadata) -> Vec<u8> {
    let descr = descr(&metadata.dtype, &metadata.dtype_json).unwrap_or_default();
    let shape: String = metadata.shape.iter().map(|n| format!("{n}, ")).collect();
    let shape = match metadata.shape.len() {
        1 => shape.trim_end().to_string(),
        _ => shape.trim_end_matches(", ").to_string(),
    };
    let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ({shape}), }}");
    let padded = |before: usize| (before + text.len() + 1).next_multiple_of(ALIGNMENT);
    // magic, version, and the length of the rest of the header in two or four bytes
    let (before, total) = match padded(10) {
        total if total - 10 <= usize::from(u16::MAX) => (10, total),
        _ => (12, padded(12)),
    };
    let mut header = b"\x93NUMPY".to_vec();
    match before {
        10 => {
            header.extend([1, 0]);
            header.extend(((total - before) as u16).to_le_bytes());
        }
        _ => {
            header.extend([2, 0]);
            header.extend(((total - before) as u32).to_le_bytes());
        }
    }
    header.extend(text.bytes());
    header.resize(total - 1, b' ');
    header.push(b'\n');
    header
}

/// Returns the dtype as a Python literal; `None` if numpy cannot read it from a file.
pub fn descr(dtype: &DType, json: &Value) -> Option<String> {
    match (dtype.kind(), json) {
        (DTypeKind::Object, _) => None,
        (DTypeKind::Struct(fields), Value::Array(list)) => {
            let field = |(field, json): (&crate::zarr::dtype::Field, &Value)| {
                let inner = descr(&field.dtype, json.get(1)?)?;
                let shape: String = field.shape.iter().map(|n| format!("{n}, ")).collect();
                let name = quoted(&field.name)?;
                Some(match field.shape.is_empty() {
                    true => format!("({name}, {inner})"),
                    false => format!("({name}, {inner}, ({shape}))"),
                })
            };
            let fields: Vec<String> = fields.iter().zip(list).map(field).collect::<Option<_>>()?;
            Some(format!("[{}]", fields.join(", ")))
        }
        _ => quoted(&DType::canonical(json::text(json)?).ok()?),
    }
}

/// Returns text as a Python string; `None` if it has characters that versions 1 and 2 of the format cannot hold.
fn quoted(text: &str) -> Option<String> {
    let plain = |c: char| (' '..='~').contains(&c) && c != '\'' && c != '\\';
    text.chars().all(plain).then(|| format!("'{text}'"))
}
