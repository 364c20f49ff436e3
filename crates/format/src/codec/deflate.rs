//! The compressor that `zlib` and `gzip` are. The module does not know what may follow a stream.

use super::streams::StreamError;
use super::{Codec, CodecConfig, CodecError, CodecResult, encode_only};
use zarrfs_base::deflate::{Container, DeflateError, compress};

impl From<DeflateError> for StreamError {
    fn from(e: DeflateError) -> Self {
        match e {
            DeflateError::TooLong => StreamError::TooLong,
            DeflateError::Damaged => StreamError::Invalid("damaged or cut short"),
            DeflateError::OutOfMemory => StreamError::Invalid("out of memory"),
        }
    }
}

/// A compressor of deflate data: `{"id": "zlib", "level": 1}` or `gzip`.
pub struct Deflate {
    container: Container,
    level: CodecResult<i32>,
    decompress: fn(&[u8], &mut [u8]) -> Result<usize, StreamError>,
}

impl Deflate {
    /// Creates the compressor from its parameters. `decompress` decodes a whole value and returns
    /// the number of bytes written.
    pub fn new(
        config: &CodecConfig,
        container: Container,
        decompress: fn(&[u8], &mut [u8]) -> Result<usize, StreamError>,
    ) -> Self {
        Deflate {
            container,
            level: encode_only(config.int("level", 1, -1, 9).map(|n| n as i32)),
            decompress,
        }
    }
}

impl Codec for Deflate {
    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        (self.decompress)(encoded, out)
            .map_err(|e| e.into_codec_error(self.container.name(), encoded.len(), out.len()))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        compress(self.container, self.level.clone()?, decoded, out)
            .map_err(|e| CodecError::new(format!("{}: {e}", self.container.name())))
    }
}
