//! The compressor `flac`: a FLAC file of 16-bit samples, of one channel, or of two if a chunk has
//! as many columns. Sources of the rules: `flac_numcodecs.Flac`, and RFC 9639. The library reads
//! files into frames; this module computes the samples, since the library's decoders can panic.

use super::items::not_numeric;
use super::spec::lacking_in_numcodecs;
use super::{Codec, CodecConfig, CodecError, CodecResult, CodecSpec, ItemTypes, buffer};
use flac_codec::encode::{FlacSampleWriter, Options};
use flac_codec::metadata::read_info;
use flac_codec::stream::{
    ChannelAssignment, Frame, ResidualPartition, Residuals, Subframe, SubframeHeaderType,
    SubframeWidth,
};
use std::fmt::Display;
use std::io::Cursor;
use zarrfs_base::error::Result;
use zarrfs_base::json::Value;

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "flac",
    parameters: &[
        "level",
        "blocksize",
        "sample_rate",
        "tmpdir",
        "dtype",
        "shape",
    ],
    build: |config, _| Ok(Box::new(Flac::new(config)?)),
    items: ItemTypes::Numbers,
    spell: None,
    check_input: lacking_in_numcodecs,
    ..CodecSpec::BYTES
};

/// Size of a sample in bytes.
const SAMPLE: usize = 2;

/// Length of the marker and the first metadata block of a file in bytes.
const HEAD: usize = 42;

/// Maximum number of samples of each channel in a frame that any player can play.
const MAX_BLOCK: usize = 4608;

/// Number of samples that are encoded at a time.
const BATCH: usize = 1 << 13;

/// The compressor `flac`.
pub struct Flac {
    channels: u8,
    level: i64,
    sample_rate: u32,
}

impl Flac {
    /// Creates the compressor from its parameters, and from `dtype` and `shape`, which the caller
    /// adds. The encoder chooses the size of frames, and ignores `blocksize`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        if config.text("dtype", "")? != "<i2" {
            return Err(not_numeric(config, "dtype"));
        }
        let shape = config.get("shape").and_then(Value::as_array);
        let is_stereo = shape.is_some_and(|shape| shape.len() == 2 && shape[1] == 2);
        Ok(Flac {
            channels: if is_stereo { 2 } else { 1 },
            level: config.int("level", 5, i64::MIN, i64::MAX)?,
            sample_rate: config.int("sample_rate", 48_000, 1, (1 << 20) - 1)? as u32,
        })
    }
}

/// Returns the codec error for an error of the library.
fn failed(error: impl Display) -> CodecError {
    CodecError::new(format!("flac: {error}"))
}

/// Returns the bytes after the metadata blocks, each of which begins with a mark of the last one
/// and its length.
fn frames(encoded: &[u8]) -> CodecResult<&[u8]> {
    let mut is_last = encoded.get(4).is_some_and(|kind| kind >> 7 == 1);
    let mut at = HEAD;
    while !is_last {
        let Some([kind, a, b, c]) = encoded.get(at..).and_then(|rest| rest.first_chunk()) else {
            return Err(failed("cut short"));
        };
        is_last = kind >> 7 == 1;
        at += 4 + u32::from_be_bytes([0, *a, *b, *c]) as usize;
    }
    encoded.get(at..).ok_or_else(|| failed("cut short"))
}

/// Appends the residuals of `partitions` to `samples`.
fn extend<const MAX: u32>(samples: &mut Vec<i32>, partitions: Vec<ResidualPartition<MAX, i32>>) {
    for partition in partitions {
        match partition {
            ResidualPartition::Standard { residuals, .. }
            | ResidualPartition::Escaped { residuals, .. } => samples.extend(residuals),
            ResidualPartition::Constant { partition_len } => {
                samples.resize(samples.len() + partition_len, 0);
            }
        }
    }
}

/// Returns the samples of which the first ones are `samples`, and the others differ from what
/// `coefficients` predict by `residuals`.
fn predicted(
    mut samples: Vec<i32>,
    residuals: Residuals<i32>,
    coefficients: &[i64],
    shift: u32,
) -> Vec<i32> {
    match residuals {
        Residuals::Method0 { partitions } => extend(&mut samples, partitions),
        Residuals::Method1 { partitions } => extend(&mut samples, partitions),
    }
    for at in coefficients.len()..samples.len() {
        let (before, rest) = samples.split_at_mut(at);
        let terms = before.iter().rev().zip(coefficients);
        let sum: i64 = terms.map(|(sample, by)| i64::from(*sample) * by).sum();
        // only damaged samples exceed 32 bits
        rest[0] = rest[0].wrapping_add((sum >> shift) as i32);
    }
    samples
}

/// Returns the `len` samples of a subframe.
fn samples_of(subframe: SubframeWidth, len: usize) -> CodecResult<Vec<i32>> {
    let SubframeWidth::Common(subframe) = subframe else {
        return Err(failed("too many bits for a sample"));
    };
    let (mut samples, wasted) = match subframe {
        Subframe::Constant {
            sample, wasted_bps, ..
        } => (vec![sample; len], wasted_bps),
        Subframe::Verbatim {
            samples,
            wasted_bps,
        } => (samples, wasted_bps),
        Subframe::Fixed {
            order,
            warm_up,
            residuals,
            wasted_bps,
        } => {
            let coefficients = SubframeHeaderType::FIXED_COEFFS[usize::from(order)];
            (predicted(warm_up, residuals, coefficients, 0), wasted_bps)
        }
        Subframe::Lpc {
            warm_up,
            coefficients,
            shift,
            residuals,
            wasted_bps,
            ..
        } => {
            let coefficients: Vec<i64> = coefficients.into_iter().map(i64::from).collect();
            let samples = predicted(warm_up, residuals, &coefficients, shift);
            (samples, wasted_bps)
        }
    };
    // partitions need not fill the frame
    if samples.len() != len {
        return Err(failed("damaged"));
    }
    samples.iter_mut().for_each(|sample| *sample <<= wasted);
    Ok(samples)
}

/// Writes the samples of a frame to the front of `out`, and returns the number of bytes.
fn decode_frame(frame: Frame, out: &mut [u8]) -> CodecResult<usize> {
    let len = usize::from(u16::from(frame.header.block_size));
    let channels = frame.subframes.len();
    let size = len * channels * SAMPLE;
    let room = buffer::front(out, size)?;
    let subframes = frame.subframes.into_iter();
    let mut decoded = subframes
        .map(|subframe| samples_of(subframe, len))
        .collect::<CodecResult<Vec<_>>>()?;
    if let [a, b] = &mut decoded[..] {
        for (a, b) in a.iter_mut().zip(b) {
            match frame.header.channel_assignment {
                ChannelAssignment::Independent(_) => {}
                ChannelAssignment::LeftSide => *b = a.wrapping_sub(*b),
                ChannelAssignment::SideRight => *a = a.wrapping_add(*b),
                ChannelAssignment::MidSide => {
                    let sum = a.wrapping_mul(2) | *b & 1;
                    *a = sum.wrapping_add(*b) >> 1;
                    *b = sum.wrapping_sub(*b) >> 1;
                }
            }
        }
    }
    for (channel, samples) in decoded.iter().enumerate() {
        let places = room.as_chunks_mut::<SAMPLE>().0.iter_mut().skip(channel);
        for (place, sample) in places.step_by(channels).zip(samples) {
            *place = (*sample as i16).to_le_bytes();
        }
    }
    Ok(size)
}

impl Codec for Flac {
    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let info = read_info(encoded).map_err(failed)?;
        if u32::from(info.bits_per_sample) != 8 * SAMPLE as u32 {
            return Err(failed("samples that do not have 16 bits"));
        }
        let size = info.total_samples.map(|samples| {
            let channels = u64::from(info.channels.get());
            samples.get().saturating_mul(SAMPLE as u64 * channels)
        });
        let mut rest = frames(encoded)?;
        let mut written = 0;
        // a writer that can't seek leaves the size unknown
        while size.map_or(!rest.is_empty(), |size| (written as u64) < size) {
            let frame = Frame::read(&mut rest, &info).map_err(failed)?;
            written += decode_frame(frame, &mut out[written..])?;
        }
        Ok(written)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let samples = buffer::count(decoded, SAMPLE)?;
        let options = match self.level {
            0..3 => Options::fast(),
            3..7 => Options::default(),
            _ => Options::best(),
        };
        let block = (samples / usize::from(self.channels)).clamp(16, MAX_BLOCK);
        let options = options.block_size(block as u16).map_err(failed)?;
        let mut writer = FlacSampleWriter::new(
            Cursor::new(out),
            options.no_padding().no_seektable(),
            self.sample_rate,
            8 * SAMPLE as u32,
            self.channels,
            Some(samples as u64),
        )
        .map_err(failed)?;
        for bytes in decoded.chunks(SAMPLE * BATCH) {
            let items = bytes.as_chunks::<SAMPLE>().0.iter();
            let batch: Vec<i32> = items.map(|item| i16::from_le_bytes(*item).into()).collect();
            writer.write(&batch).map_err(failed)?;
        }
        writer.finalize().map_err(failed)
    }
}

#[cfg(test)]
mod tests;
