//! The compressor `pcodec`: a standalone `.pco` file of numbers. Source of the parameters:
//! `numcodecs.PCodec`; of the format: "format.md" of pcodec. A small file may claim any number of
//! values, so this module checks the claimed sizes before the library allocates memory for them.

use super::items::Items;
use super::number::Number;
use super::scalar::Scalar;
use super::v3::with_dtype;
use super::{
    Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, ItemTypes, Size, buffer,
};
use pco::data_types::{Number as PcoNumber, NumberType};
use pco::errors::PcoError;
use pco::metadata::{ChunkMeta, DeltaEncoding};
use pco::standalone::{self, guarantee};
use pco::{ChunkConfig, DeltaSpec, ModeSpec, PagingSpec, wrapped};
use zarrfs_base::error::{Error, Result};

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "pcodec",
    parameters: &[
        "dtype",
        "level",
        "mode_spec",
        "delta_spec",
        "paging_spec",
        "delta_encoding_order",
        "equal_pages_up_to",
    ],
    build: |config, _| Ok(Box::new(Pcodec::new(config)?)),
    items: ItemTypes::Numbers,
    v3_names: &["numcodecs.pcodec"],
    kind: CodecKind::ArrayToBytes,
    parse: with_dtype,
    ..CodecSpec::BYTES
};

/// Number of numbers decoded at a time: a multiple of 256, as the library requires.
const BATCH: usize = 1024;

/// Memory in bytes that the library takes for each number of a page while it encodes: 42 were
/// measured.
const ENCODER_BYTES: usize = 48;

/// Maximum length, in numbers, of the window of a small chunk: twice the maximum of the library's
/// encoder. The window of a larger chunk may have twice the chunk's length.
const MAX_WINDOW: usize = 1 << 16;

/// Size in bytes of the type and count before each of a file's chunks.
const PREAMBLE: usize = 4;

/// The compressor `pcodec`.
pub struct Pcodec {
    scalar: Scalar,
    config: CodecResult<ChunkConfig>,
    /// Maximum count of numbers in one of a file's chunks.
    page: usize,
}

impl Pcodec {
    /// Creates the compressor from `dtype`, which the caller adds to the parameters of numcodecs.
    /// Decoding needs no other parameter.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let items = Items::param(config, "dtype")?;
        let items = items.ok_or_else(|| config.invalid("dtype", "is missing"))?;
        if items.swapped || !is_supported(items.scalar) {
            let name = config.text("dtype", "")?;
            return Err(Error::unsupported(format!(
                "codec \"pcodec\": dtype {name:?} cannot be compressed"
            )));
        }
        let page = config.int("equal_pages_up_to", 1 << 18, 1, i64::MAX);
        let page_or_default = page.as_ref().map_or(1 << 18, |page| *page as usize);
        let config = super::encode_only(page.and_then(|page| chunk_config(config, page as usize)));
        Ok(Pcodec {
            scalar: items.scalar,
            config,
            page: page_or_default,
        })
    }
}

/// Returns whether numcodecs compresses numbers of this type. Times are compressed as integers.
fn is_supported(scalar: Scalar) -> bool {
    !matches!(
        scalar,
        Scalar::Bool | Scalar::I8 | Scalar::U8 | Scalar::C64 | Scalar::C128
    )
}

/// Returns the library's configuration for encoding chunks of up to `page` numbers.
fn chunk_config(config: &CodecConfig, page: usize) -> Result<ChunkConfig> {
    let mode = match config.text("mode_spec", "auto")? {
        "auto" => ModeSpec::Auto,
        "classic" => ModeSpec::Classic,
        _ => return Err(config.invalid("mode_spec", "is neither \"auto\" nor \"classic\"")),
    };
    let order = config
        .get("delta_encoding_order")
        .map(|_| config.int("delta_encoding_order", 0, 0, 7))
        .transpose()?;
    let delta = match (config.text("delta_spec", "auto")?, order) {
        ("auto" | "try_consecutive", Some(order)) => DeltaSpec::TryConsecutive(order as usize),
        ("try_consecutive", None) => {
            return Err(config.invalid("delta_encoding_order", "is missing"));
        }
        ("none" | "try_lookback", Some(_)) => {
            return Err(config.invalid(
                "delta_encoding_order",
                "needs the delta_spec \"try_consecutive\"",
            ));
        }
        ("auto", None) => DeltaSpec::Auto,
        ("none", None) => DeltaSpec::NoOp,
        ("try_lookback", None) => DeltaSpec::TryLookback,
        _ => return Err(config.invalid("delta_spec", "is unknown")),
    };
    if config.text("paging_spec", "equal_pages_up_to")? != "equal_pages_up_to" {
        return Err(config.invalid("paging_spec", "is not \"equal_pages_up_to\""));
    }
    let level = config.int("level", 8, 0, 12)? as usize;
    let config = ChunkConfig::default()
        .with_compression_level(level)
        .with_mode_spec(mode);
    Ok(config
        .with_delta_spec(delta)
        .with_paging_spec(PagingSpec::EqualPagesUpTo(page)))
}

/// Returns the codec error for an error of the library.
fn failed(error: PcoError) -> CodecError {
    CodecError::new(format!("pcodec: {}", error.message))
}

fn damaged(what: &str) -> CodecError {
    CodecError::new(format!("pcodec: {what}"))
}

/// Returns the decompressor of the format version that the header states, and the bytes after the
/// header.
fn read_header(encoded: &[u8]) -> CodecResult<(wrapped::FileDecompressor, &[u8])> {
    let (file, rest) = standalone::FileDecompressor::new(encoded).map_err(failed)?;
    // the header ends with the version, which has a minor number since version 4
    let len = if file.format_version().major >= 4 {
        2
    } else {
        1
    };
    let version = (encoded.len() - rest.len())
        .checked_sub(len)
        .ok_or_else(|| damaged("no version"))?;
    wrapped::FileDecompressor::new(&encoded[version..]).map_err(failed)
}

/// Decodes a file of numbers of type `T` into the front of `out` and returns the number of bytes
/// written.
fn decode<T: PcoNumber + Number>(encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
    let (file, mut rest) = read_header(encoded)?;
    let mut written = 0;
    loop {
        let [kind, count @ ..] = match *rest {
            [0, ..] => return Ok(written),
            [a, b, c, d, ..] => [a, b, c, d],
            _ => return Err(damaged("cut short")),
        };
        if kind != NumberType::new::<T>() as u8 {
            return Err(damaged(&format!(
                "numbers of type {kind} where the array has {}",
                NumberType::new::<T>() as u8
            )));
        }
        let count = count
            .iter()
            .rev()
            .fold(0, |n, byte| n << 8 | usize::from(*byte))
            + 1;
        let len = buffer::total(count, T::SIZE)?;
        let room = buffer::front(&mut out[written..], len)?;
        rest = decode_chunk::<T>(&file, &rest[PREAMBLE..], count, room)?;
        written += len;
    }
}

/// Decodes a chunk of `count` numbers into `out`, which has exactly their size, and returns the
/// bytes after the chunk.
fn decode_chunk<'a, T: PcoNumber + Number>(
    file: &wrapped::FileDecompressor,
    encoded: &'a [u8],
    count: usize,
    out: &mut [u8],
) -> CodecResult<&'a [u8]> {
    check_dictionary(encoded, T::SIZE)?;
    let (mut chunk, rest) = file.chunk_decompressor::<T, _>(encoded).map_err(failed)?;
    check_window(chunk.meta(), count)?;
    let mut page = chunk.page_decompressor(rest, count).map_err(failed)?;
    let mut numbers = [T::default(); BATCH];
    for out in out.chunks_mut(BATCH * T::SIZE) {
        let n = out.len() / T::SIZE;
        let progress = page.read(&mut numbers).map_err(failed)?;
        if progress.n_processed != n {
            return Err(damaged("fewer numbers than announced"));
        }
        out.chunks_exact_mut(T::SIZE)
            .zip(&numbers)
            .for_each(|(out, number)| number.write(out));
    }
    Ok(page.into_src())
}

/// Checks that a dictionary of numbers of `size` bytes, for which the library allocates memory
/// before it reads them, is not longer than the file. Mode 4 in the lowest 4 bits means that there
/// is a dictionary; the next 25 bits are its length in numbers.
fn check_dictionary(encoded: &[u8], size: usize) -> CodecResult<()> {
    let word = encoded
        .first_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let entries = (word >> 4 & ((1 << 25) - 1)) as usize;
    if word & 15 == 4 && entries.saturating_mul(size) > encoded.len() {
        Err(damaged(&format!(
            "a dictionary of {entries} numbers in {} bytes",
            encoded.len()
        )))
    } else {
        Ok(())
    }
}

/// Checks that the window of earlier numbers, which the library allocates as a whole, fits a chunk
/// of `count` numbers.
fn check_window(meta: &ChunkMeta, count: usize) -> CodecResult<()> {
    match &meta.delta_encoding {
        DeltaEncoding::Lookback { config, .. }
            if 1usize
                .checked_shl(config.window_n_log)
                .is_none_or(|n| n > MAX_WINDOW.max(2 * count)) =>
        {
            Err(damaged(&format!(
                "a window of 2^{} numbers for {count}",
                config.window_n_log
            )))
        }
        _ => Ok(()),
    }
}

/// Appends the file of the numbers of type `T` in `decoded` to `out`.
fn encode<T: PcoNumber + Number>(
    config: &ChunkConfig,
    decoded: &[u8],
    out: &mut Vec<u8>,
) -> CodecResult<()> {
    let mut numbers = Vec::new();
    numbers
        .try_reserve_exact(buffer::count(decoded, T::SIZE)?)
        .map_err(|_| damaged("not enough memory"))?;
    numbers.extend(decoded.chunks_exact(T::SIZE).map(T::read));
    out.append(&mut standalone::simple_compress(&numbers, config).map_err(failed)?);
    Ok(())
}

/// Calls `$function` for the numbers of type `$scalar`.
macro_rules! with_number {
    ($scalar:expr, $function:ident($($argument:expr),*)) => {
        match $scalar {
            Scalar::I16 => $function::<i16>($($argument),*),
            Scalar::I32 => $function::<i32>($($argument),*),
            Scalar::I64 | Scalar::Ticks => $function::<i64>($($argument),*),
            Scalar::U16 => $function::<u16>($($argument),*),
            Scalar::U32 => $function::<u32>($($argument),*),
            Scalar::U64 => $function::<u64>($($argument),*),
            Scalar::F16 => $function::<half::f16>($($argument),*),
            Scalar::F32 => $function::<f32>($($argument),*),
            Scalar::F64 => $function::<f64>($($argument),*),
            _ => Err(damaged("a type that is not supported")),
        }
    };
}

impl Codec for Pcodec {
    fn encoded_size(&self, decoded: usize) -> Size {
        let pages = (decoded / self.scalar.size()).div_ceil(self.page);
        let overhead = pages.saturating_mul(guarantee::chunk_size::<u64>(0));
        Size::AtMost(
            decoded
                .saturating_add(overhead)
                .saturating_add(guarantee::header_size() + 1),
        )
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        with_number!(self.scalar, decode(encoded, out))
    }

    fn encoder_memory(&self, decoded: usize) -> usize {
        let page = self.page.min(decoded / self.scalar.size());
        // the numbers, and the whole encoding
        decoded
            .saturating_mul(2)
            .saturating_add(page.saturating_mul(ENCODER_BYTES))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let config = self.config.as_ref().map_err(Clone::clone)?;
        with_number!(self.scalar, encode(config, decoded, out))
    }
}

#[cfg(test)]
mod tests;
