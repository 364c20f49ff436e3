//! The compressor `blosc`. The decoder is part of this crate and needs only the frame; c-blosc
//! encodes. Source of the rules: numcodecs' blosc, except that a truncated frame is an error and an
//! empty buffer round-trips.

mod blosclz;
mod frame;
mod shuffle;
use super::spec::is_plain;
use super::v3::{check_int, plain};
use super::{
    Codec, CodecConfig, CodecError, CodecResult, CodecSpec, PartialDecode, Size, encode_only, zstd,
};
use crate::extension::Extension;
pub use frame::BloscHeader;
pub use shuffle::unshuffle;
use std::ffi::CStr;
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Map, Value};

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "blosc",
    parameters: &["cname", "clevel", "shuffle", "blocksize", "typesize"],
    build: |config, itemsize| Ok(Box::new(Blosc::new(config, itemsize)?)),
    v3_names: &["blosc", "numcodecs.blosc"],
    parse: |spec, codec, _| parse_v3(spec, codec).map(Some),
    spell: Some(spell_v3),
    defaults: r#"{"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}"#,
    stated: 3,
    max_chunk: blosc_src::BLOSC_MAX_BUFFERSIZE as usize,
    accepts: |config, name, value| match name {
        "typesize" => Err(config.invalid(name, "is a parameter that older numcodecs don't know")),
        _ => Ok(is_plain(value)),
    },
    ..CodecSpec::BYTES
};

/// The words for numbers of `shuffle`: those of v3, and that of numcodecs' AUTOSHUFFLE.
pub const SHUFFLES: [(&str, i64); 4] = [
    ("noshuffle", 0),
    ("shuffle", 1),
    ("bitshuffle", 2),
    ("autoshuffle", -1),
];

/// The compressors of c-blosc.
const COMPRESSORS: [&CStr; 6] = [c"blosclz", c"lz4", c"lz4hc", c"snappy", c"zlib", c"zstd"];

/// Maximum number of bytes by which a frame is longer than its data.
const OVERHEAD: usize = blosc_src::BLOSC_MAX_OVERHEAD as usize;

/// Maximum item size that c-blosc knows; it shuffles larger items as single bytes.
const MAX_TYPESIZE: usize = blosc_src::BLOSC_MAX_TYPESIZE as usize;

/// Maximum size in bytes of a block for which no size is stated.
const MAX_BLOCK: usize = 1 << 20;

/// The compressor `{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}`.
/// Decoding needs no parameter.
pub struct Blosc {
    arguments: CodecResult<EncoderArguments>,
}

/// Arguments of c-blosc's encoder, each within the range that it supports.
///
/// Invariant: every number from a store or a command line is checked here before it reaches
/// c-blosc, which keeps sizes in signed 32-bit integers and divides by the item size. A size of 0
/// would end the process with SIGFPE, and an overflow would write past its buffers.
struct EncoderArguments {
    compressor: &'static CStr,
    clevel: i32,
    shuffle: i32,
    blocksize: usize,
    /// Item size in bytes, from 1 to [`MAX_TYPESIZE`].
    typesize: usize,
}

impl Blosc {
    /// Creates the compressor from its parameters, for items of `itemsize` bytes.
    pub fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        Ok(Blosc {
            arguments: encode_only(EncoderArguments::new(config, itemsize)),
        })
    }
}

impl EncoderArguments {
    fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        let cname = config.text("cname", "lz4")?;
        let compressor = compressor(cname).ok_or_else(|| {
            config.invalid("cname", &format!("is {cname:?}, which blosc doesn't know"))
        })?;
        let typesize = config.int("typesize", itemsize as i64, 1, i64::MAX)? as usize;
        let shuffle = match config.int("shuffle", 1, -1, 2)? {
            -1 if typesize == 1 => 2,
            -1 => 1,
            n => n as i32,
        };
        Ok(EncoderArguments {
            compressor,
            clevel: config.int("clevel", 5, 0, 9)? as i32,
            shuffle,
            blocksize: config.int("blocksize", 0, 0, i64::from(i32::MAX))? as usize,
            typesize: known_typesize(typesize),
        })
    }

    /// Returns the memory in bytes that c-blosc takes to encode `len` bytes: copies of a block, and
    /// zstd's encoder.
    fn memory(&self, len: usize) -> usize {
        let block = self.blocksize.max(MAX_BLOCK).min(len);
        let encoder = match (self.compressor.to_bytes(), self.clevel) {
            (b"zstd", 9..) => zstd::encoder_memory(zstd_safe::max_c_level(), block),
            (b"zstd", level) => zstd::encoder_memory(2 * level - 1, block),
            _ => 0,
        };
        block.saturating_mul(2).saturating_add(encoder)
    }

    /// Appends c-blosc's frame of `decoded` to `out` and returns c-blosc's result: the size of the
    /// frame, or 0 or less for an error.
    fn compress(&self, decoded: &[u8], out: &mut Vec<u8>) -> i32 {
        out.reserve(decoded.len() + OVERHEAD);
        let spare = out.spare_capacity_mut();
        let room = spare.len().min(decoded.len() + OVERHEAD);
        // SAFETY: both pointers belong to slices at least as long as the lengths given, which do
        // not overlap; the name is NUL-terminated. Told to use one thread, the call starts none and
        // keeps no state.
        let code = unsafe {
            blosc_src::blosc_compress_ctx(
                self.clevel,
                self.shuffle,
                self.typesize,
                decoded.len(),
                decoded.as_ptr().cast(),
                spare.as_mut_ptr().cast(),
                room,
                self.compressor.as_ptr(),
                self.blocksize,
                1,
            )
        };
        let made = usize::try_from(code).unwrap_or(0);
        // SAFETY: c-blosc has written `made` bytes after the current length, at most `room`.
        unsafe { out.set_len(out.len() + made) };
        code
    }
}

/// Returns the compressor with this name.
fn compressor(name: &str) -> Option<&'static CStr> {
    COMPRESSORS
        .into_iter()
        .find(|known| known.to_bytes() == name.as_bytes())
}

/// Translates the codec of v3. Its `shuffle` is a word in v3 and a number in numcodecs.
fn parse_v3(spec: &CodecSpec, codec: &Extension) -> Result<CodecConfig> {
    let config = plain(spec, codec)?;
    if codec.name != "blosc" {
        return Ok(config);
    }
    let word = codec.get("shuffle").map(json::text);
    let shuffle = SHUFFLES[..3]
        .iter()
        .find(|(known, _)| word == Some(Some(*known)));
    if word.is_some() && shuffle.is_none() {
        return Err(codec.invalid(
            "shuffle",
            "is none of \"noshuffle\", \"shuffle\" and \"bitshuffle\"",
        ));
    }
    check_int(codec, "clevel", 0, 9)?;
    check_int(codec, "typesize", 1, i64::from(i32::MAX))?;
    check_int(codec, "blocksize", 0, i64::from(i32::MAX))?;
    if compressor(codec.text("cname", "lz4")?).is_none() {
        return Err(codec.invalid("cname", "is no compressor of blosc"));
    }
    Ok(match shuffle {
        Some((_, number)) => config.with("shuffle", (*number).into()),
        None => config,
    })
}

/// Spells the parameters as v3 does: all of them, with a word for `shuffle`.
fn spell_v3(configuration: &mut Map<String, Value>, itemsize: usize) {
    let number = |name: &str, default: i64| {
        configuration
            .get(name)
            .and_then(Value::as_i64)
            .unwrap_or(default)
    };
    let typesize = number("typesize", known_typesize(itemsize) as i64);
    let shuffle = match number("shuffle", 1) {
        0 => "noshuffle",
        2 => "bitshuffle",
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

/// Returns an item size that c-blosc knows: 1 for larger items, which it shuffles as single bytes,
/// and for items of 0 bytes, which have no data.
fn known_typesize(itemsize: usize) -> usize {
    if (1..=MAX_TYPESIZE).contains(&itemsize) {
        itemsize
    } else {
        1
    }
}

/// Returns whether this build's c-blosc has the compressor.
fn can_encode(compressor: &CStr) -> bool {
    // SAFETY: the name is NUL-terminated; the call only compares it.
    unsafe { blosc_src::blosc_compname_to_compcode(compressor.as_ptr()) >= 0 }
}

impl Codec for Blosc {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::AtMost(decoded.saturating_add(OVERHEAD))
    }

    fn partial_decode(&self) -> PartialDecode {
        PartialDecode::Blosc
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let header = BloscHeader::parse(encoded, encoded.len(), out.len())?;
        header.decode_all(encoded, &mut out[..header.nbytes()])?;
        Ok(header.nbytes())
    }

    fn encoder_memory(&self, decoded: usize) -> usize {
        self.arguments.as_ref().map_or(0, |a| a.memory(decoded))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let arguments = self.arguments.as_ref().map_err(CodecError::clone)?;
        if !can_encode(arguments.compressor) {
            let name = arguments.compressor.to_string_lossy();
            return Err(CodecError(format!(
                "blosc: this build can't encode with cname {name:?}"
            )));
        }
        let max = SPEC.max_chunk;
        if decoded.len() > max {
            return Err(CodecError(format!(
                "blosc: can't hold {} bytes, at most {max}",
                decoded.len()
            )));
        }
        match arguments.compress(decoded, out) {
            1.. => Ok(()),
            code => Err(CodecError(format!(
                "blosc: c-blosc failed with code {code}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
