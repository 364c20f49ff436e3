//! Documents of arrays whose chunks lie in shards, in the spelling that every reader of Zarr v3
//! accepts. The index is at the end, where every reader looks for it.

use crate::metadata::ArrayMetadata;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Value, json};

/// Returns the codecs of an array in shards of the shape `shards`. Its chunks have the shape
/// `chunks` and are encoded by `codecs`.
///
/// # Errors
///
/// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if a shard does not consist of whole
/// chunks.
pub fn codecs_in_shards(shards: &[u64], chunks: &[u64], codecs: &Value) -> Result<Value> {
    let are_multiples = shards
        .iter()
        .zip(chunks)
        .all(|(shard, chunk)| *shard > 0 && *chunk > 0 && shard.is_multiple_of(*chunk));
    if shards.len() != chunks.len() || !are_multiples {
        return Err(Error::invalid(format!(
            "--shards: {shards:?} are no multiples of the chunks {chunks:?}"
        )));
    }
    let index =
        json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]);
    let configuration = json!({"chunk_shape": chunks, "codecs": codecs, "index_codecs": index, "index_location": "end"});
    Ok(json!([{"name": "sharding_indexed", "configuration": configuration}]))
}

/// Returns the `zarr.json` of the array that `document` describes, with its chunks in shards of the
/// shape `shards`. The keys are those that the specification has for new arrays; all other members
/// keep their text.
///
/// # Errors
///
/// The errors of [`codecs_in_shards`] and of the parser.
pub fn document_in_shards(document: &[u8], shards: &[u64]) -> Result<Vec<u8>> {
    let old = ArrayMetadata::parse_v3(document)?;
    let object = json::parse_object(document)?;
    let (fields, _memory) = object.into_parts();
    let codecs = fields.get("codecs").cloned().unwrap_or_default();
    let codecs = codecs_in_shards(shards, &old.chunks, &codecs)?;
    let grid = json!({"name": "regular", "configuration": {"chunk_shape": shards}});
    let keys = json!({"name": "default", "configuration": {"separator": "/"}});
    let mut text = document.to_vec();
    for (name, value) in [
        ("chunk_grid", grid),
        ("chunk_key_encoding", keys),
        ("codecs", codecs),
    ] {
        text = json::with_member(&text, name, Some(json::write(&value).as_bytes()))?;
    }
    let new = ArrayMetadata::parse_v3(&text)?;
    let has_same_chunks = new.chunks == old.chunks && new.shape == old.shape;
    if has_same_chunks && new.shards.len() == 1 && new.dtype == old.dtype {
        Ok(text)
    } else {
        Err(Error::unsupported("has no faithful form in shards"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"zarr_format":3,"node_type":"array","shape":[5,4],"data_type":"uint8",
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2,2]}},"fill_value":3,
        "chunk_key_encoding":{"name":"v2","configuration":{"separator":"."}},
        "codecs":[{"name":"bytes"},{"name":"gzip","configuration":{"level":1}}],"attributes":{"a": NaN}}"#;

    #[test]
    fn chunks_move_into_shards() {
        let text = document_in_shards(DOCUMENT.as_bytes(), &[6, 4]).unwrap();
        let [old, new] = [DOCUMENT.as_bytes(), &text].map(|t| ArrayMetadata::parse_v3(t).unwrap());
        assert_eq!(new.shards[0].shape, [6, 4]);
        assert_eq!(
            (new.chunks, new.fill, new.filters),
            (old.chunks, old.fill, old.filters)
        );
        assert!(String::from_utf8(text).unwrap().contains("{\"a\": NaN}"));
        for shards in [&[6, 3][..], &[6], &[0, 4], &[6, 4, 1]] {
            let e = document_in_shards(DOCUMENT.as_bytes(), shards).unwrap_err();
            assert!(
                e.message().contains("no multiples of the chunks [2, 2]"),
                "{e}"
            );
        }
    }
}
