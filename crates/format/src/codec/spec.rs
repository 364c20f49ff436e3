//! What the crate knows of a codec besides how it encodes: its names, its parameters, and the
//! arrays that it fits. The module of each codec states this in one constant, and all other code
//! asks the constants.

use super::v3::{ArrayInput, CodecKind, plain, stated_types};
use super::{Codec, CodecConfig};
use crate::dtype::DType;
use crate::extension::Extension;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{Map, Value};

/// Completes the parameters of a document of v2, for items of a size in bytes, as v3 spells them.
pub type SpellParameters = fn(&mut Map<String, Value>, usize);

/// A codec by its id.
pub struct CodecSpec {
    /// The id in documents of v2. Codecs that numcodecs lacks have one, too.
    pub id: &'static str,
    /// The names of all parameters.
    pub parameters: &'static [&'static str],
    /// Creates the codec for decoded items of a size in bytes. The caller has checked the names of
    /// the parameters.
    pub build: fn(&CodecConfig, usize) -> Result<Box<dyn Codec>>,
    /// The types of decoded and encoded items.
    pub items: ItemTypes,
    /// Whether the codec encodes Python objects, as the first filter of an array does.
    pub is_object_codec: bool,
    /// Whether the codec encodes each item by itself, so that it commutes with the division of a
    /// shard into chunks.
    pub is_elementwise: bool,

    /// The names in documents of v3, if it has any. The first one is written for a document of v2.
    pub v3_names: &'static [&'static str],
    /// What the codec of v3 encodes.
    pub kind: CodecKind,
    /// Translates the codec of v3, and changes the input to its output. Returns `None` for a codec
    /// that changes no bytes.
    pub parse: fn(&CodecSpec, &Extension, &mut ArrayInput) -> Result<Option<CodecConfig>>,
    /// How v3 spells the parameters. `None` if documents of v2 do not have the codec.
    pub spell: Option<SpellParameters>,

    /// All parameters of a compressor with their defaults in numcodecs, a JSON object; empty for a
    /// filter.
    pub defaults: &'static str,
    /// Number of parameters that `--compressor ID[:PARAMETER...]` can state, the first ones.
    pub stated: usize,
    /// Maximum size in bytes of a chunk that numcodecs can encode.
    pub max_chunk: usize,
    /// Checks that a new array may apply the codec to such data.
    pub check_input: fn(&CodecConfig, &Intermediate) -> Result<()>,
    /// Returns whether numcodecs accepts the value of a parameter as it is spelled.
    pub accepts: fn(&CodecConfig, &str, &Value) -> Result<bool>,
}

impl CodecSpec {
    /// A codec from bytes to bytes, to be completed. Without `v3_names` v3 lacks it; with `spell:
    /// None` it has no other form in conversions.
    pub const BYTES: CodecSpec = CodecSpec {
        id: "",
        parameters: &[],
        build: |config, _| Err(unknown(config)),
        items: ItemTypes::Bytes,
        is_object_codec: false,
        is_elementwise: false,
        v3_names: &[],
        kind: CodecKind::Bytes,
        parse: |spec, codec, _| plain(spec, codec).map(Some),
        spell: Some(|_, _| {}),
        defaults: "",
        stated: 1,
        max_chunk: usize::MAX,
        check_input: |_, _| Ok(()),
        accepts: |_, _, value| Ok(is_plain(value)),
    };

    /// A filter of numcodecs that states the types of its numbers, to be completed.
    pub const NUMBERS: CodecSpec = CodecSpec {
        items: ItemTypes::Stated {
            decoded: "dtype",
            encoded: "astype",
        },
        kind: CodecKind::Array,
        parse: stated_types,
        accepts: |_, name, value| Ok(is_plain(value) || name == "astype" && value.is_null()),
        ..CodecSpec::BYTES
    };
}

/// Returns the error for a codec that this crate lacks.
pub(super) fn unknown(config: &CodecConfig) -> Error {
    Error::unsupported(format!("codec {:?} is unknown", config.id))
}

/// The types of the items that a codec decodes and encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemTypes {
    /// Anything becomes bytes.
    Bytes,
    /// Items keep their type.
    Kept,
    /// The parameters of these names state the types.
    Stated {
        /// The parameter with the type of decoded items.
        decoded: &'static str,
        /// The parameter with the type of encoded items; if it is absent, they are like decoded
        /// ones.
        encoded: &'static str,
    },
    /// Texts become the numbers of their labels. `dtype` and `astype` state the types; the numbers
    /// are single bytes if `astype` is absent.
    Labels,
    /// Numbers become bytes. Documents need not state their type, which the codec gets as `dtype`.
    Numbers,
}

/// The data between two codecs.
#[derive(Clone)]
pub struct Intermediate {
    /// The dtype of the items; single bytes after a codec that makes bytes.
    pub items: DType,
    /// Whether the size depends on the values.
    pub is_variable: bool,
}

/// Returns whether `value` is what numcodecs accepts for most parameters: a 32-bit integer or a
/// string.
pub(super) fn is_plain(value: &Value) -> bool {
    match value {
        Value::Number(_) => value
            .as_i64()
            .is_some_and(|number| i32::try_from(number).is_ok()),
        Value::String(_) => true,
        _ => false,
    }
}

/// Refuses a codec that numcodecs lacks: no other program could read a new array of v2 with it.
pub fn lacking_in_numcodecs(config: &CodecConfig, _: &Intermediate) -> Result<()> {
    Err(refused(
        config,
        "numcodecs lacks it, so no other program could read the array",
    ))
}

/// Returns the error for a codec that a new array must not use in a place.
pub fn refused(config: &CodecConfig, why: &str) -> Error {
    Error::invalid(format!("codec {:?}: {why}", config.id))
}
