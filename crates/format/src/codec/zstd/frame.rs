//! The beginning of a zstd frame, which can be decoded alone. The module does not know how frames
//! are made.

use super::{MAGIC, stream_error, with_decoder};
use crate::codec::CodecResult;
use crate::codec::streams::StreamError;
use zstd_safe::{DParameter, InBuffer, OutBuffer, ResetDirective};

/// Number of encoded bytes that are decoded at a time of a frame whose end is not needed.
const STEP: usize = 16 << 10;

/// Maximum size in bytes of a frame's header.
const MAX_HEADER: usize = 18;

/// A value that is one frame with a known size and no checksum. Its beginning can be decoded alone.
/// zarrfs shows no byte of a frame with a checksum before it has verified the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZstdFrame {
    /// Size of the decoded value in bytes.
    nbytes: usize,
    /// Size of the encoded value in bytes.
    cbytes: usize,
}

impl ZstdFrame {
    /// Maximum decoded size of a block of a frame in bytes. Decoding ends between two blocks.
    pub const BLOCK: usize = 128 << 10;

    /// Returns the frame at the start of a value of `len` bytes, of which `encoded` are the first
    /// ones; `None` if the value is no such frame.
    pub fn parse(encoded: &[u8], len: usize) -> Option<Self> {
        let encoded = encoded.get(..MAX_HEADER.min(len))?;
        let magic = encoded.first_chunk()?;
        let descriptor = encoded.get(4)?;
        let has_checksum = descriptor & 0x04 != 0;
        if u32::from_le_bytes(*magic) != MAGIC || has_checksum {
            return None;
        }
        let nbytes = zstd_safe::get_frame_content_size(encoded).ok().flatten()?;
        Some(ZstdFrame {
            nbytes: usize::try_from(nbytes).ok()?,
            cbytes: len,
        })
    }

    /// Returns the size of the decoded value in bytes.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Returns the size of the encoded value in bytes.
    pub fn cbytes(&self) -> usize {
        self.cbytes
    }

    /// Returns the number of bytes that [`ZstdFrame::decode_beginning`] should decode if a reader
    /// needs the first `len` bytes.
    pub fn decoded_len(&self, len: usize) -> usize {
        len.min(self.nbytes)
            .next_multiple_of(Self::BLOCK)
            .min(self.nbytes)
    }

    /// Decodes at least the first `len` bytes of the value into `out`, which has room for all of
    /// them.
    pub fn decode_beginning(&self, encoded: &[u8], len: usize, out: &mut [u8]) -> CodecResult<()> {
        let room = out.len();
        let done = with_decoder(|decoder| {
            decoder
                .reset(ResetDirective::SessionOnly)
                .map_err(stream_error)?;
            // the decoder would otherwise allocate memory for a second copy of the value
            decoder
                .set_parameter(DParameter::StableOutBuffer(true))
                .map_err(stream_error)?;
            let mut output = OutBuffer::around(out);
            let mut left = encoded;
            while output.pos() < len {
                let mut input = InBuffer::around(&left[..left.len().min(STEP)]);
                let hint = decoder
                    .decompress_stream(&mut output, &mut input)
                    .map_err(stream_error)?;
                left = &left[input.pos()..];
                if output.pos() < len && (hint == 0 || left.is_empty()) {
                    return Err(StreamError::CutShort);
                }
            }
            Ok(())
        });
        done.map_err(|e| e.into_codec_error("zstd", encoded.len(), room))
    }
}
