//! Codecs of v2 in the terms of v3.

use crate::error::{Error, Result};
use crate::util::json::{Map, Value, json};
use crate::zarr::dtype::DType;
use crate::zarr::metadata::CodecConfig;

/// Returns the v3 codec of a compressor of v2, for items of `dtype`.
///
/// # Errors
///
/// [`Kind::Unsupported`](crate::error::Kind::Unsupported) if v3 has no such codec.
pub fn compressor_codec(compressor: &CodecConfig, dtype: &DType) -> Result<Value> {
    let mut configuration: Map<String, Value> =
        compressor.parameters().map(|(name, value)| (name.to_string(), value.clone())).collect();
    let name = match compressor.id.as_str() {
        "blosc" => {
            blosc(&mut configuration, dtype);
            "blosc".to_string()
        }
        "gzip" => {
            configuration.entry("level").or_insert(1.into());
            "gzip".to_string()
        }
        "zstd" => {
            configuration.entry("level").or_insert(0.into());
            configuration.entry("checksum").or_insert(false.into());
            "zstd".to_string()
        }
        id @ ("bz2" | "lz4" | "lzma" | "zlib" | "shuffle" | "crc32" | "crc32c" | "adler32" | "fletcher32"
        | "jenkins_lookup3") => format!("numcodecs.{id}"),
        id => return Err(Error::unsupported(format!("codec {id:?} has no form in Zarr v3"))),
    };
    Ok(json!({"name": name, "configuration": configuration}))
}

/// Spells the parameters of blosc as v3 does: all of them, with a word for `shuffle`.
fn blosc(configuration: &mut Map<String, Value>, dtype: &DType) {
    let number = |name: &str, default: i64| configuration.get(name).and_then(Value::as_i64).unwrap_or(default);
    let shuffle = match number("shuffle", 1) {
        0 => "noshuffle",
        2 => "bitshuffle",
        // numcodecs' AUTOSHUFFLE
        -1 if dtype.size() == 1 => "bitshuffle",
        _ => "shuffle",
    };
    let (clevel, blocksize) = (number("clevel", 5), number("blocksize", 0));
    let cname = configuration.get("cname").cloned().unwrap_or_else(|| "lz4".into());
    let typesize = number("typesize", dtype.size().clamp(1, 255) as i64);
    *configuration = Map::from_iter([
        ("typesize".to_string(), typesize.into()),
        ("cname".to_string(), cname),
        ("clevel".to_string(), clevel.into()),
        ("shuffle".to_string(), shuffle.into()),
        ("blocksize".to_string(), blocksize.into()),
    ]);
}
