//! The codecs of an array, in a line. This module must not know what the codecs do.

use zarrfs_base::json::{self, Value};
use zarrfs_format::metadata::ArrayMetadata;

/// Returns the codecs with their parameters, in the order of encoding: `delta(dtype=<i4),
/// zlib(level=1)`.
pub fn codecs(meta: &ArrayMetadata) -> String {
    let list = match &meta.v3 {
        Some(v3) => joined(v3.codecs.as_array().into_iter().flatten().map(v3_codec)),
        None => {
            let codecs = meta.filters.iter().chain(&meta.compressor);
            joined(codecs.map(|c| codec(&c.id, &c.to_json())))
        }
    };
    if list.is_empty() {
        "no codec".to_string()
    } else {
        list
    }
}

/// Returns a codec with its parameters: `zlib(level=1)`.
fn codec(name: &str, parameters: &Value) -> String {
    let parameters = parameters
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, v)| *name != "id" && !v.is_null());
    let list: Vec<String> = parameters
        .map(|(name, v)| format!("{name}={}", parameter(v)))
        .collect();
    if list.is_empty() {
        name.to_string()
    } else {
        format!("{name}({})", list.join(", "))
    }
}

/// Returns a parameter of a codec. Those of v3 may be lists of codecs.
fn parameter(value: &Value) -> String {
    match value {
        Value::Array(list)
            if !list.is_empty()
                && list
                    .iter()
                    .all(|v| v.get("name").is_some_and(Value::is_string)) =>
        {
            format!("[{}]", joined(list.iter().map(v3_codec)))
        }
        _ => json::plain(value),
    }
}

/// Returns texts with commas between them.
pub fn joined(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns a codec of a v3 document with its parameters. A codec may be a bare name.
fn v3_codec(spelled: &Value) -> String {
    let name = json::text(spelled)
        .or_else(|| json::text(spelled.get("name")?))
        .unwrap_or_default();
    codec(name, spelled.get("configuration").unwrap_or(&Value::Null))
}
