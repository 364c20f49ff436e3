//! Checks that other programs can use an array with given codecs. The codecs of this crate are more
//! lenient than numcodecs, because they read everything that numcodecs may have written. A new
//! array, however, must be usable with zarr-python and numcodecs 0.15. Source of the rules: the
//! constructors and `view` calls of numcodecs 0.15.

use super::{Pipeline, build};
use crate::error::{Error, Result};
use crate::util::json::Value;
use crate::zarr::dtype::{DType, DTypeKind};
use crate::zarr::metadata::{ArrayMetadata, CodecConfig};

/// Maximum size of a chunk for numcodecs' blosc in bytes.
const MAX_BLOSC: usize = blosc_src::BLOSC_MAX_BUFFERSIZE as usize;

/// Maximum size of a chunk for numcodecs' lz4 in bytes.
const MAX_LZ4: usize = 0x7E00_0000;

/// The data between two codecs.
#[derive(Clone)]
struct Intermediate {
    /// The dtype of the items; single bytes after a codec that makes bytes.
    items: DType,
    /// Whether the size depends on the values.
    is_variable: bool,
}

/// Checks that zarr-python can open an array with this metadata and chunks of `chunk_size` bytes,
/// and reads back the values that it writes. Filters may round. Filters configured for another type
/// than that of their items are refused: they would misread the bytes and lose the values.
///
/// # Errors
///
/// [`Kind::Invalid`](crate::error::Kind::Invalid), or the error of [`build`].
pub fn check_interchange(meta: &ArrayMetadata, chunk_size: usize) -> Result<()> {
    let kept = usize::from(meta.has_objects());
    let mut data = Intermediate {
        items: meta.dtype.clone(),
        is_variable: false,
    };
    if let Some(codec) = meta.object_codec() {
        check_parameters(codec)?;
        check_object_codec(codec, &meta.dtype)?;
        data = Intermediate {
            items: single_bytes()?,
            is_variable: true,
        };
    }
    for config in meta.filters.iter().skip(kept).chain(&meta.compressor) {
        check_parameters(config)?;
        data = check_step(config, data)?;
    }
    let limit = match meta.compressor.as_ref().map(|config| config.id.as_str()) {
        Some("blosc") => MAX_BLOSC,
        Some("lz4") => MAX_LZ4,
        _ => usize::MAX,
    };
    if chunk_size > limit && !meta.has_objects() {
        return Err(Error::invalid(format!(
            "a chunk has {chunk_size} bytes, its compressor takes {limit}"
        )));
    }
    let pipeline = Pipeline::new(meta, chunk_size)?;
    if meta.has_objects() {
        Ok(())
    } else {
        pipeline.check_encodes(meta.dtype.size(), chunk_size)
    }
}

/// Checks that a codec is a compressor, which any array may use, and that numcodecs accepts its
/// parameters.
///
/// # Errors
///
/// [`Kind::Invalid`](crate::error::Kind::Invalid), or the error of [`build`].
pub fn check_compressor(config: &CodecConfig) -> Result<()> {
    if !["blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"].contains(&config.id.as_str()) {
        // an unknown codec has an error of its own
        build(config, 1)?;
        return Err(Error::invalid(format!(
            "codec {:?} is a filter, no compressor",
            config.id
        )));
    }
    check_parameters(config)?;
    build(config, 1)?
        .encode(&[0; 16], &mut Vec::new())
        .map_err(|e| Error::invalid(e.0))
}

fn single_bytes() -> Result<DType> {
    DType::parse_str("|u1")
}

/// Returns the output of a codec for the input `given`, or an error if the codec must not be
/// applied to it.
fn check_step(config: &CodecConfig, given: Intermediate) -> Result<Intermediate> {
    let refused = |why: &str| Err(Error::invalid(format!("codec {:?}: {why}", config.id)));
    let id = config.id.as_str();
    match id {
        "json2" | "msgpack2" | "pickle" | "vlen-array" | "vlen-bytes" | "vlen-utf8" => {
            refused("encodes objects, which the items here are not")
        }
        // needs an extra package, which is rarely installed
        "crc32c" => {
            refused("numcodecs has it only together with another package; crc32 is in all of them")
        }
        "packbits" if *given.items.kind() != DTypeKind::Bool => {
            refused("keeps booleans alone, other values would be lost")
        }
        "bitround"
            if *given.items.kind() != DTypeKind::Float
                || given.items.is_big_endian()
                || given.items.size() > 8 =>
        {
            refused("rounds little-endian floats of 2, 4 or 8 bytes, which the items here are not")
        }
        "bitround" => Ok(given),
        "delta" | "fixedscaleoffset" | "quantize" | "categorize" => {
            check_typed(config, "dtype", "astype", &given)
        }
        "astype" => check_typed(config, "decode_dtype", "encode_dtype", &given),
        "shuffle" if given.is_variable && config.int("elementsize", 4, 0, i64::MAX)? > 1 => {
            refused("can't shuffle compressed bytes, whose number may be odd")
        }
        _ => {
            let is_fixed = matches!(
                build(config, given.items.size())?.encoded_size(64),
                super::Size::Exact(_)
            );
            Ok(Intermediate {
                items: single_bytes()?,
                is_variable: given.is_variable || !is_fixed,
            })
        }
    }
}

/// Returns the output of a filter whose parameters `from` and `to` state the types of decoded and
/// encoded items.
fn check_typed(
    config: &CodecConfig,
    from: &str,
    to: &str,
    given: &Intermediate,
) -> Result<Intermediate> {
    let Some(dtype) = config.dtype(from)? else {
        return Err(config.invalid(from, "is missing"));
    };
    let loses = !build(config, given.items.size())?.is_lossless();
    // a lossless filter may be configured for another type of the same size
    if dtype.size() != given.items.size() || loses && dtype != given.items {
        return Err(config.invalid(
            from,
            "is not the type of the items it is given: their values would be lost",
        ));
    }
    let made = match config.dtype(to)? {
        Some(made) => made,
        None if config.id == "categorize" => single_bytes()?,
        None => dtype,
    };
    Ok(Intermediate {
        items: made,
        is_variable: given.is_variable,
    })
}

/// Checks that `config` encodes objects of this dtype.
fn check_object_codec(config: &CodecConfig, dtype: &DType) -> Result<()> {
    match config.id.as_str() {
        "pickle" => Err(Error::invalid(
            "codec \"pickle\": numcodecs reads no pickles unless told to: they may hold any program",
        )),
        // object codecs treat a struct as opaque bytes
        _ if *dtype.kind() != DTypeKind::Object => Err(Error::invalid(format!(
            "codec {:?} doesn't encode structs that hold objects",
            config.id
        ))),
        "vlen-array" => match config.dtype("dtype")? {
            Some(item) if item.size() > 0 && !item.has_objects() => Ok(()),
            _ => Err(config.invalid("dtype", "is missing, or no type of numbers")),
        },
        "json2" | "msgpack2" | "vlen-bytes" | "vlen-utf8" => Ok(()),
        id => Err(Error::invalid(format!(
            "codec {id:?} doesn't encode objects: the first filter must"
        ))),
    }
}

/// Checks that numcodecs accepts every parameter as it is spelled. The codecs of this crate also
/// accept null for a default, and 1.0 and true for 1.
fn check_parameters(config: &CodecConfig) -> Result<()> {
    for (name, value) in config.parameters() {
        let is_fine = match (config.id.as_str(), name, value) {
            ("blosc", "typesize", _) => {
                return Err(config.invalid(name, "is a parameter that older numcodecs don't know"));
            }
            ("lzma", "filters", Value::Array(_)) => config.int("format", 1, 0, 3)? == 3,
            ("lzma", "preset" | "filters", Value::Null) => true,
            ("jenkins_lookup3", "prefix", Value::Null) => true,
            ("delta" | "fixedscaleoffset" | "quantize", "astype", Value::Null) => true,
            ("fixedscaleoffset", "offset" | "scale", Value::Number(_)) => true,
            ("zstd", "checksum", Value::Bool(_)) => true,
            ("shuffle", "elementsize", value) => value.as_i64().is_some_and(|size| size > 0),
            ("lzma", "preset", value) => value
                .as_u64()
                .is_some_and(|preset| preset <= u64::from(u32::MAX)),
            ("jenkins_lookup3", "initval", value) => value.as_u64().is_some(),
            ("json2" | "msgpack2", ..) => is_default(config, name, value),
            (_, _, Value::Number(_)) => value
                .as_i64()
                .is_some_and(|number| i32::try_from(number).is_ok()),
            (_, _, Value::String(_)) => true,
            ("categorize", "labels", Value::Array(_)) => true,
            _ => false,
        };
        if !is_fine {
            return Err(config.invalid(name, "is not what numcodecs takes there"));
        }
    }
    Ok(())
}

/// Returns whether a parameter of an object codec is numcodecs' default. This crate does not
/// interpret these parameters.
fn is_default(config: &CodecConfig, name: &str, value: &Value) -> bool {
    match (config.id.as_str(), name) {
        ("json2", "encoding") => value == "utf-8",
        ("json2", "skipkeys") | ("msgpack2", "use_single_float" | "raw") => {
            *value == Value::Bool(false)
        }
        ("json2", "indent") => value.is_null(),
        ("json2", "separators") => {
            value.is_null()
                || value
                    .as_array()
                    .is_some_and(|pair| pair.as_slice() == [Value::from(","), ":".into()])
        }
        _ => *value == Value::Bool(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::json;

    fn check(dtype: &str, filters: &str, compressor: &str) -> Result<()> {
        let text = format!(
            r#"{{"zarr_format":2,"shape":[8],"chunks":[8],"dtype":{dtype},"compressor":{compressor},"fill_value":null,
            "order":"C","filters":{filters}}}"#
        );
        let meta = ArrayMetadata::parse(text.as_bytes())?;
        check_interchange(&meta, 8 * meta.dtype.size())
    }

    fn codecs(list: &[&str]) -> String {
        let object = |spelled: &&str| {
            if spelled.starts_with('{') {
                spelled.to_string()
            } else {
                format!(r#"{{"id":"{spelled}"}}"#)
            }
        };
        let list = format!(
            "[{}]",
            list.iter().map(object).collect::<Vec<_>>().join(",")
        );
        json::parse(list.as_bytes())
            .map(|value| json::write(&value))
            .unwrap()
    }

    const DELTA_I4: &str = r#"{"id":"delta","dtype":"<i4"}"#;
    const DELTA_F4: &str = r#"{"id":"delta","dtype":"<f4"}"#;
    const TO_I2: &str = r#"{"id":"astype","encode_dtype":"<i2","decode_dtype":"<f4"}"#;

    #[test]
    fn filters_for_the_type_of_their_items_pass() {
        for (dtype, filters) in [
            ("\"<i4\"", codecs(&[DELTA_I4, "shuffle", "crc32"])),
            ("\"<f4\"", codecs(&[DELTA_F4])),
            ("\"<u4\"", codecs(&[DELTA_I4])),
            (
                "\"<f4\"",
                codecs(&[TO_I2, r#"{"id":"delta","dtype":"<i2"}"#]),
            ),
            (
                "\"<f4\"",
                codecs(&[r#"{"id":"bitround","keepbits":9}"#, "zlib", "base64"]),
            ),
            ("\"|b1\"", codecs(&["packbits"])),
            ("\"|O\"", codecs(&["vlen-utf8", "zlib"])),
        ] {
            assert_eq!(check(dtype, &filters, "null"), Ok(()), "{dtype} {filters}");
        }
    }

    #[test]
    fn filters_that_would_lose_values_are_refused() {
        for (dtype, filters, why) in [
            ("\"|i1\"", codecs(&["packbits"]), "booleans"),
            ("\"<i4\"", codecs(&[DELTA_F4]), "not the type"),
            ("\">f4\"", codecs(&[DELTA_F4]), "not the type"),
            ("\"<f8\"", codecs(&[DELTA_F4]), "not the type"),
            ("\"<i4\"", codecs(&["zlib", DELTA_I4]), "not the type"),
            ("\"<i4\"", codecs(&["zlib", "shuffle"]), "odd"),
            (
                "\"<i4\"",
                codecs(&[r#"{"id":"bitround","keepbits":3}"#]),
                "floats",
            ),
            (
                "\">f4\"",
                codecs(&[r#"{"id":"bitround","keepbits":3}"#]),
                "floats",
            ),
            ("\"<f4\"", codecs(&["vlen-utf8"]), "objects"),
            ("\"<f4\"", codecs(&[TO_I2, DELTA_F4]), "not the type"),
            ("\"|O\"", codecs(&["zlib"]), "objects"),
            ("\"|O\"", codecs(&["vlen-array"]), "dtype"),
            ("[[\"a\",\"|O\"]]", codecs(&["vlen-utf8"]), "structs"),
            ("\"|O\"", codecs(&["pickle"]), "pickles"),
            ("\"<i4\"", codecs(&["crc32c"]), "package"),
        ] {
            let refused = check(dtype, &filters, "null").unwrap_err();
            assert!(
                refused.message().contains(why),
                "{dtype} {filters}: {refused}"
            );
        }
    }

    #[test]
    fn parameters_that_numcodecs_refuses_are_errors() {
        let compressed = |compressor: &str| check("\"<i4\"", "null", compressor);
        for fine in [
            r#"{"id":"zlib"}"#,
            r#"{"id":"zstd","level":-5,"checksum":true}"#,
            r#"{"id":"lzma","preset":null,"filters":null}"#,
            r#"{"id":"lzma","format":3,"filters":[{"id":33}]}"#,
        ] {
            assert_eq!(compressed(fine), Ok(()), "{fine}");
        }
        for wrong in [
            r#"{"id":"zlib","level":null}"#,
            r#"{"id":"zlib","level":1.0}"#,
            r#"{"id":"zlib","level":true}"#,
            r#"{"id":"zlib","level":1,"more":2}"#,
            r#"{"id":"blosc","typesize":4}"#,
            r#"{"id":"zstd","level":9999999999}"#,
            r#"{"id":"lzma","format":1,"filters":[{"id":33}]}"#,
            r#"{"id":"json2"}"#,
        ] {
            assert!(compressed(wrong).is_err(), "{wrong}");
        }
    }
}
