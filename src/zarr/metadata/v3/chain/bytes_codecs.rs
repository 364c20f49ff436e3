//! Translates the v3 codecs that produce bytes into codec configurations.

use super::{Extension, Input, unknown};
use crate::error::{Error, Result};
use crate::util::json::{self, Value};
use crate::zarr::metadata::CodecConfig;

/// Translates a codec from bytes to bytes.
pub(super) fn parse(codec: &Extension) -> Result<CodecConfig> {
    let plain = |id: &str, known: &[&str]| {
        codec.allow_only(known)?;
        Ok(CodecConfig::new(id, codec.configuration.clone()))
    };
    match codec.name.as_str() {
        "blosc" => blosc(codec),
        "gzip" => {
            check_int(codec, "level", 0, 9)?;
            plain("gzip", &["level"])
        }
        "zstd" => {
            check_int(codec, "level", -131_072, 22)?;
            plain("zstd", &["level", "checksum"])
        }
        "crc32c" => plain("crc32c", &[]),
        "zlib" => plain("zlib", &["level"]),
        "lz4" => plain("lz4", &["acceleration"]),
        "shuffle" => plain("shuffle", &["elementsize"]),
        name => match name.strip_prefix("numcodecs.") {
            Some(id) => plain(id, parameters_of(id).ok_or_else(|| unknown(codec))?),
            None => Err(unknown(codec)),
        },
    }
}

/// Returns the parameters of a codec of numcodecs from bytes to bytes. Source: the constructors of
/// numcodecs 0.16.
fn parameters_of(id: &str) -> Option<&'static [&'static str]> {
    Some(match id {
        "blosc" => &["cname", "clevel", "shuffle", "blocksize", "typesize"],
        "gzip" | "zlib" | "bz2" => &["level"],
        "zstd" => &["level", "checksum"],
        "lz4" => &["acceleration"],
        "lzma" => &["format", "check", "preset", "filters"],
        "shuffle" => &["elementsize"],
        "crc32" | "crc32c" | "adler32" => &["location"],
        "fletcher32" => &[],
        "jenkins_lookup3" => &["initval", "prefix"],
        _ => return None,
    })
}

/// Translates `blosc`. Its `shuffle` is a word in v3 and a number in numcodecs.
fn blosc(codec: &Extension) -> Result<CodecConfig> {
    codec.allow_only(&["cname", "clevel", "shuffle", "typesize", "blocksize"])?;
    let shuffle = match codec.get("shuffle") {
        None => None,
        Some(word) => Some(match json::text(word) {
            Some("noshuffle") => 0,
            Some("shuffle") => 1,
            Some("bitshuffle") => 2,
            _ => {
                return Err(codec.invalid(
                    "shuffle",
                    "is none of \"noshuffle\", \"shuffle\" and \"bitshuffle\"",
                ));
            }
        }),
    };
    check_int(codec, "clevel", 0, 9)?;
    check_int(codec, "typesize", 1, i64::from(i32::MAX))?;
    check_int(codec, "blocksize", 0, i64::from(i32::MAX))?;
    let known = ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"];
    if !known.contains(&codec.text("cname", "lz4")?) {
        return Err(codec.invalid("cname", "is no compressor of blosc"));
    }
    let mut parameters = codec.configuration.clone();
    if let Some(shuffle) = shuffle {
        parameters.insert("shuffle".into(), shuffle.into());
    }
    Ok(CodecConfig::new("blosc", parameters))
}

/// Checks that a parameter, if it is there, is an integer from `low` to `high`.
fn check_int(codec: &Extension, name: &str, low: i64, high: i64) -> Result<()> {
    match codec.get(name).map(Value::as_i64) {
        None => Ok(()),
        Some(Some(n)) if (low..=high).contains(&n) => Ok(()),
        Some(_) => Err(codec.invalid(name, &format!("is not an integer from {low} to {high}"))),
    }
}

/// Translates `packbits`.
pub(super) fn packbits(codec: &Extension, input: &Input) -> Result<CodecConfig> {
    codec.allow_only(&["padding_encoding", "first_bit", "last_bit"])?;
    numbers("packbits_v3", codec, input)
}

/// Translates `numcodecs.pcodec`.
pub(super) fn pcodec(codec: &Extension, input: &Input) -> Result<CodecConfig> {
    codec.allow_only(&[
        "level",
        "mode_spec",
        "delta_spec",
        "paging_spec",
        "delta_encoding_order",
        "equal_pages_up_to",
    ])?;
    numbers("pcodec", codec, input)
}

/// Translates a codec of numbers, whose configuration gets their type.
fn numbers(id: &str, codec: &Extension, input: &Input) -> Result<CodecConfig> {
    let why = || {
        Error::unsupported(format!(
            "codecs: {:?} encodes numbers, which this data type has not",
            codec.name
        ))
    };
    let element = input.element.as_deref().ok_or_else(why)?;
    let mut parameters = codec.configuration.clone();
    parameters.insert("dtype".into(), element.into());
    Ok(CodecConfig::new(id, parameters))
}
