//! Checks that other programs can use an array with given codecs. The codecs of this crate are more
//! lenient than numcodecs, because they read everything that numcodecs may have written. A new
//! array, however, must be usable with zarr-python and numcodecs 0.15. Source of the rules: the
//! constructors and `view` calls of numcodecs 0.15.

use crate::codec::{CodecConfig, CodecSpec, Intermediate, ItemTypes};
use crate::codec::{build, refused, spec_of};
use crate::dtype::{DType, DTypeKind};
use crate::metadata::ArrayMetadata;
use crate::pipeline::Pipeline;
use zarrfs_base::error::{Error, Result};

/// Checks that zarr-python can open an array with this metadata and chunks of `chunk_size` bytes,
/// and reads back the values that it writes. Filters may round. Filters configured for another type
/// than that of their items are refused: they would misread the bytes and lose the values.
///
/// # Errors
///
/// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid), or the error of [`build`].
pub fn check_interchange(meta: &ArrayMetadata, chunk_size: usize) -> Result<()> {
    let mut data = Intermediate {
        items: meta.dtype.clone(),
        is_variable: false,
    };
    if let Some(config) = meta.object_codec() {
        check_object_codec(config, &data)?;
        data = single_bytes(true)?;
    }
    let kept = usize::from(meta.has_objects());
    for config in meta.filters.iter().skip(kept).chain(&meta.compressor) {
        data = check_step(config, data)?;
    }
    let compressor = meta.compressor.as_ref();
    let limit = compressor
        .and_then(|config| spec_of(&config.id))
        .map_or(usize::MAX, |spec| spec.max_chunk);
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
/// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid), or the error of [`build`].
pub fn check_compressor(config: &CodecConfig) -> Result<()> {
    if spec_of(&config.id).is_none_or(|spec| spec.defaults.is_empty()) {
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

fn single_bytes(is_variable: bool) -> Result<Intermediate> {
    Ok(Intermediate {
        items: DType::parse_str("|u1")?,
        is_variable,
    })
}

/// Returns the output of a codec for the input `given`, or an error if the codec must not be
/// applied to it.
fn check_step(config: &CodecConfig, given: Intermediate) -> Result<Intermediate> {
    let spec = check_parameters(config)?;
    if spec.is_object_codec {
        return Err(refused(
            config,
            "encodes objects, which the items here are not",
        ));
    }
    (spec.check_input)(config, &given)?;
    match spec.items {
        ItemTypes::Kept => Ok(given),
        ItemTypes::Stated { decoded, encoded } => check_typed(config, decoded, encoded, &given),
        ItemTypes::Labels => {
            let made = check_typed(config, "dtype", "astype", &given)?;
            match config.get("astype") {
                Some(_) => Ok(made),
                None => single_bytes(given.is_variable),
            }
        }
        ItemTypes::Bytes | ItemTypes::Numbers => {
            let size = build(config, given.items.size())?.encoded_size(64);
            single_bytes(given.is_variable || !size.is_exact())
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
    let is_lossless = build(config, given.items.size())?.is_lossless();
    // a lossless filter may be configured for another type of the same size
    if dtype.size() != given.items.size() || !is_lossless && dtype != given.items {
        return Err(config.invalid(
            from,
            "is not the type of the items it is given: their values would be lost",
        ));
    }
    Ok(Intermediate {
        items: config.dtype(to)?.unwrap_or(dtype),
        is_variable: given.is_variable,
    })
}

/// Checks that `config` encodes objects of the dtype of `given`.
fn check_object_codec(config: &CodecConfig, given: &Intermediate) -> Result<()> {
    let spec = check_parameters(config)?;
    // object codecs treat a struct as opaque bytes
    if *given.items.kind() != DTypeKind::Object {
        return Err(refused(config, "doesn't encode structs that hold objects"));
    }
    if !spec.is_object_codec {
        return Err(refused(
            config,
            "doesn't encode objects: the first filter must",
        ));
    }
    (spec.check_input)(config, given)
}

/// Checks that numcodecs accepts every parameter as it is spelled, and returns what is known of the
/// codec. The codecs of this crate also accept null for a default, and 1.0 and true for 1.
fn check_parameters(config: &CodecConfig) -> Result<&'static CodecSpec> {
    let spec = spec_of(&config.id).unwrap_or(&CodecSpec::BYTES);
    for (name, value) in config.parameters() {
        if !(spec.accepts)(config, name, value)? {
            return Err(config.invalid(name, "is not what numcodecs takes there"));
        }
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CODECS;
    use zarrfs_base::json;

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
            ("\"<i4\"", codecs(&["zfpy"]), "package"),
            ("\"<i2\"", codecs(&["flac"]), "lacks"),
            ("\"<i4\"", codecs(&["imagecodecs_zstd"]), "lacks"),
            (
                "\"|u1\"",
                codecs(&[r#"{"id":"low_bits","dtype":"int4"}"#]),
                "lacks",
            ),
            (
                "\"|u1\"",
                codecs(&[r#"{"id":"packbits_v3","dtype":"|u1"}"#]),
                "lacks",
            ),
        ] {
            let refused = check(dtype, &filters, "null").unwrap_err();
            assert!(
                refused.message().contains(why),
                "{dtype} {filters}: {refused}"
            );
        }
    }

    /// The codecs of numcodecs 0.15, by its registry, and those that it has with extras.
    const NUMCODECS: [&str; 29] = [
        "adler32",
        "astype",
        "base64",
        "bitround",
        "blosc",
        "bz2",
        "categorize",
        "crc32",
        "crc32c",
        "delta",
        "fixedscaleoffset",
        "fletcher32",
        "gzip",
        "jenkins_lookup3",
        "json2",
        "lz4",
        "lzma",
        "msgpack2",
        "packbits",
        "pcodec",
        "pickle",
        "quantize",
        "shuffle",
        "vlen-array",
        "vlen-bytes",
        "vlen-utf8",
        "zfpy",
        "zlib",
        "zstd",
    ];

    /// A codec is one of numcodecs, or no new array of v2 gets it.
    #[test]
    fn each_codec_that_numcodecs_lacks_is_refused() {
        for spec in CODECS {
            let config = CodecConfig::new(spec.id, json::Map::new());
            let checked = (spec.check_input)(&config, &single_bytes(false).unwrap());
            let is_lacking = checked.is_err_and(|e| e.message().contains("lacks"));
            assert_eq!(is_lacking, !NUMCODECS.contains(&spec.id), "{}", spec.id);
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
