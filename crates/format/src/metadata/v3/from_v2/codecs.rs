//! Filters and compressors of v2 as codecs of v3. A codec of v3 gets an array of one data type, or
//! bytes. A codec of v2 gets any buffer and interprets it as its parameters say. Only chains in
//! which both have the same effect have a form in v3.

use crate::codec::{CodecConfig, CodecKind, CodecSpec, ItemTypes, spec_of};
use crate::dtype::{DType, DTypeKind};
use crate::metadata::{ArrayMetadata, Order};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value, json};

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
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if v3 has no such codec, or no
/// place for it.
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
        let known = v3_spec(codec).filter(|spec| spec.kind != CodecKind::Bytes);
        let Some(spec) = known else {
            self.end_array();
            self.codecs.push(compressor_codec(codec, self.itemsize)?);
            self.itemsize = 1;
            return Ok(());
        };
        if self.is_bytes {
            let why = format!(
                "codec {:?} has no place in Zarr v3 behind one that makes bytes",
                codec.id
            );
            return Err(Error::unsupported(why));
        }
        let configuration = self.array_codec(codec, spec.items)?;
        self.push(spec.v3_names[0], Value::Object(configuration));
        self.is_bytes = spec.kind == CodecKind::ArrayToBytes;
        Ok(())
    }

    /// Returns the configuration of a codec of numbers, with all types stated, and changes the type
    /// of the items to that of the codec's output.
    fn array_codec(&mut self, codec: &CodecConfig, items: ItemTypes) -> Result<Map<String, Value>> {
        let element = self.element.clone().ok_or_else(|| {
            Error::unsupported(format!(
                "codec {:?} of items that are no numbers has no form in Zarr v3",
                codec.id
            ))
        })?;
        if self.is_big_endian && items != ItemTypes::Kept {
            // zarr-python takes the byte order from the codec or from `bytes`, depending on its
            // release
            let why = format!(
                "codec {:?} of big-endian items has no certain form in Zarr v3",
                codec.id
            );
            return Err(Error::unsupported(why));
        }
        let mut configuration = codec.to_map();
        let made = match items {
            ItemTypes::Stated { decoded, encoded } => {
                let from = type_parameter(codec, decoded, &element)?;
                check_type(codec, decoded, &from, &element)?;
                let to = type_parameter(codec, encoded, &element)?;
                // zarr-python does not know the output of another `astype`
                if codec.id == "quantize" {
                    check_type(codec, encoded, &to, &element)?;
                }
                configuration.insert(decoded.into(), from.into());
                configuration.insert(encoded.into(), to.clone().into());
                to
            }
            ItemTypes::Bytes | ItemTypes::Labels => "|u1".to_string(),
            ItemTypes::Kept | ItemTypes::Numbers => element,
        };
        self.itemsize = DType::parse_str(&made)?.size();
        self.element = Some(made);
        Ok(configuration)
    }
}

/// Returns what is known of a codec of v2 that v3 has.
fn v3_spec(codec: &CodecConfig) -> Option<&'static CodecSpec> {
    spec_of(&codec.id).filter(|spec| !spec.v3_names.is_empty() && spec.spell.is_some())
}

/// Checks that the type in a parameter is that of the items.
fn check_type(codec: &CodecConfig, name: &str, dtype: &str, items: &str) -> Result<()> {
    if dtype == items {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "codec {:?}: {name} {dtype:?} has no form in Zarr v3 where items are {items:?}",
        codec.id
    )))
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
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if v3 has no such codec.
pub fn compressor_codec(compressor: &CodecConfig, itemsize: usize) -> Result<Value> {
    let spec = v3_spec(compressor).filter(|spec| spec.kind == CodecKind::Bytes);
    let (spec, spell) = spec
        .and_then(|spec| Some((spec, spec.spell?)))
        .ok_or_else(|| without_form(compressor))?;
    let mut configuration = compressor.to_map();
    spell(&mut configuration, itemsize);
    Ok(json!({"name": spec.v3_names[0], "configuration": configuration}))
}
