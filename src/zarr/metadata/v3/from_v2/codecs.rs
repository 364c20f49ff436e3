//! Filters and compressors of v2 as codecs of v3. A codec of v3 gets an array of one data type, or
//! bytes. A codec of v2 gets any buffer and interprets it as its parameters say. Only chains in
//! which both have the same effect have a form in v3.

use crate::error::{Error, Result};
use crate::util::json::{self, Map, Value, json};
use crate::zarr::dtype::{DType, DTypeKind};
use crate::zarr::metadata::{ArrayMetadata, CodecConfig, Order};

/// The chain so far, and the input of the next codec.
struct PartialChain {
    codecs: Vec<Value>,
    /// The dtype of the numbers in the array; `None` if the items are no numbers.
    element: Option<String>,
    /// The size in bytes of an item, as blosc shuffles them.
    itemsize: usize,
    is_big_endian: bool,
    /// Whether the next codec gets bytes instead of an array.
    is_bytes: bool,
}

/// Returns the `codecs` of an array of v1 or v2 whose items have this byte order.
///
/// # Errors
///
/// [`Kind::Unsupported`](crate::error::Kind::Unsupported) if v3 has no such codec, or no place for
/// it.
pub(super) fn chain(old: &ArrayMetadata, is_big_endian: bool) -> Result<Value> {
    let mut chain = PartialChain {
        codecs: Vec::new(),
        element: element(&old.dtype, &old.dtype_json),
        itemsize: old.dtype.size(),
        is_big_endian,
        is_bytes: false,
    };
    if old.order == Order::F && old.shape.len() > 1 {
        let order: Vec<usize> = (0..old.shape.len()).rev().collect();
        chain.push("transpose", json!({"order": order}));
    }
    if let Some(codec) = old.object_codec() {
        chain.codecs.push(json!({"name": codec.id}));
        (chain.is_bytes, chain.itemsize) = (true, 1);
    }
    let kept = usize::from(old.object_codec().is_some());
    for codec in old.filters.iter().skip(kept).chain(&old.compressor) {
        chain.add(codec)?;
    }
    chain.end_array();
    Ok(Value::Array(chain.codecs))
}

/// Returns the dtype of items that are single numbers.
fn element(dtype: &DType, spelled: &Value) -> Option<String> {
    let is_number = matches!(
        dtype.kind(),
        DTypeKind::Bool | DTypeKind::Int | DTypeKind::UInt | DTypeKind::Float | DTypeKind::Complex
    );
    json::text(spelled)
        .filter(|_| is_number)
        .and_then(|text| DType::canonical(text).ok())
}

/// Returns the error for a codec that v3 lacks.
pub(super) fn without_form(codec: &CodecConfig) -> Error {
    Error::unsupported(format!("codec {:?} has no form in Zarr v3", codec.id))
}

impl PartialChain {
    fn push(&mut self, name: &str, configuration: Value) {
        self.codecs
            .push(json!({"name": name, "configuration": configuration}));
    }

    /// Adds `bytes`, unless an earlier codec produces bytes.
    fn end_array(&mut self) {
        if !self.is_bytes {
            self.push(
                "bytes",
                json!({"endian": if self.is_big_endian { "big" } else { "little" }}),
            );
            self.is_bytes = true;
        }
    }

    fn add(&mut self, codec: &CodecConfig) -> Result<()> {
        let is_of_arrays = matches!(
            codec.id.as_str(),
            "astype"
                | "bitround"
                | "delta"
                | "fixedscaleoffset"
                | "packbits"
                | "pcodec"
                | "quantize"
        );
        if !is_of_arrays {
            self.end_array();
            self.codecs.push(compressor_codec(codec, self.itemsize)?);
            self.itemsize = 1;
            return Ok(());
        }
        if self.is_bytes {
            let why = format!(
                "codec {:?} has no place in Zarr v3 behind one that makes bytes",
                codec.id
            );
            return Err(Error::unsupported(why));
        }
        let configuration = self.array_codec(codec)?;
        self.push(
            &format!("numcodecs.{}", codec.id),
            Value::Object(configuration),
        );
        self.is_bytes = codec.id == "pcodec";
        Ok(())
    }

    /// Returns the configuration of a codec of numbers, with all types stated, and changes the type
    /// of the items to that of the codec's output.
    fn array_codec(&mut self, codec: &CodecConfig) -> Result<Map<String, Value>> {
        let element = self.element.clone().ok_or_else(|| {
            Error::unsupported(format!(
                "codec {:?} of items that are no numbers has no form in Zarr v3",
                codec.id
            ))
        })?;
        if self.is_big_endian && codec.id != "bitround" {
            // zarr-python takes the byte order from the codec or from `bytes`, depending on its
            // release
            let why = format!(
                "codec {:?} of big-endian items has no certain form in Zarr v3",
                codec.id
            );
            return Err(Error::unsupported(why));
        }
        let mut configuration: Map<String, Value> = codec
            .parameters()
            .map(|(n, v)| (n.to_string(), v.clone()))
            .collect();
        let mut settle = |name: &str, wanted: Option<&str>| {
            let dtype = type_parameter(codec, name, wanted.unwrap_or(&element))?;
            match wanted {
                Some(wanted) if dtype != wanted => {
                    let why = format!(
                        "codec {:?}: {name} {dtype:?} has no form in Zarr v3 where items are {wanted:?}",
                        codec.id
                    );
                    Err(Error::unsupported(why))
                }
                _ => {
                    configuration.insert(name.to_string(), dtype.clone().into());
                    Ok(dtype)
                }
            }
        };
        let made = match codec.id.as_str() {
            "delta" | "fixedscaleoffset" => {
                settle("dtype", Some(&element))?;
                settle("astype", None)?
            }
            // zarr-python does not know the output of another `astype`
            "quantize" => {
                settle("dtype", Some(&element))?;
                settle("astype", Some(&element))?
            }
            "astype" => {
                settle("decode_dtype", Some(&element))?;
                settle("encode_dtype", None)?
            }
            "packbits" => "|u1".to_string(),
            _ => element,
        };
        self.itemsize = DType::parse_str(&made)?.size();
        self.element = Some(made);
        Ok(configuration)
    }
}

/// Returns a dtype of the parameters, or `default` if it is absent.
fn type_parameter(codec: &CodecConfig, name: &str, default: &str) -> Result<String> {
    let dtype = DType::canonical(codec.text(name, default)?)
        .map_err(|e| codec.invalid(name, e.message()))?;
    if dtype.starts_with('>') {
        Err(Error::unsupported(format!(
            "codec {:?}: {name} {dtype:?} has no certain form in Zarr v3",
            codec.id
        )))
    } else {
        Ok(dtype)
    }
}

/// Returns the v3 form of a codec of v2 from bytes to bytes, whose input has items of `itemsize`
/// bytes.
///
/// # Errors
///
/// [`Kind::Unsupported`](crate::error::Kind::Unsupported) if v3 has no such codec.
pub fn compressor_codec(compressor: &CodecConfig, itemsize: usize) -> Result<Value> {
    let mut configuration: Map<String, Value> = compressor
        .parameters()
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect();
    let name = match compressor.id.as_str() {
        "blosc" => {
            blosc(&mut configuration, itemsize);
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
        "shuffle" => {
            // without it zarr-python uses the size of the array's items
            configuration.entry("elementsize").or_insert(4.into());
            "numcodecs.shuffle".to_string()
        }
        id @ ("bz2" | "lz4" | "lzma" | "zlib" | "crc32" | "crc32c" | "adler32" | "fletcher32"
        | "jenkins_lookup3") => {
            format!("numcodecs.{id}")
        }
        _ => return Err(without_form(compressor)),
    };
    Ok(json!({"name": name, "configuration": configuration}))
}

/// Spells the parameters of blosc as v3 does: all of them, with a word for `shuffle`.
fn blosc(configuration: &mut Map<String, Value>, itemsize: usize) {
    let number = |name: &str, default: i64| {
        configuration
            .get(name)
            .and_then(Value::as_i64)
            .unwrap_or(default)
    };
    // c-blosc shuffles larger items as single bytes
    let typesize = number(
        "typesize",
        if (1..=255).contains(&itemsize) {
            itemsize as i64
        } else {
            1
        },
    );
    let shuffle = match number("shuffle", 1) {
        0 => "noshuffle",
        2 => "bitshuffle",
        // numcodecs' AUTOSHUFFLE
        -1 if itemsize == 1 => "bitshuffle",
        _ => "shuffle",
    };
    let clevel = number("clevel", 5);
    let blocksize = number("blocksize", 0);
    let cname = configuration
        .get("cname")
        .cloned()
        .unwrap_or_else(|| "lz4".into());
    *configuration = Map::from_iter([
        ("typesize".to_string(), typesize.into()),
        ("cname".to_string(), cname),
        ("clevel".to_string(), clevel.into()),
        ("shuffle".to_string(), shuffle.into()),
        ("blocksize".to_string(), blocksize.into()),
    ]);
}
