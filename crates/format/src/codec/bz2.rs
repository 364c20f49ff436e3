//! The compressor `bz2`: a sequence of bzip2 streams. Source of the rules: Python's `bz2.compress`
//! and `bz2.decompress`.

use super::streams::{self, StreamError, StreamStep};
use super::{Codec, CodecError, CodecResult, CodecSpec, encode_only};
use bzip2::{Action, Compress, Compression, Decompress, Status};

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "bz2",
    parameters: &["level"],
    build: |config, _| {
        let level = config.int("level", 1, 1, 9).map(|n| n as u32);
        Ok(Box::new(Bz2 {
            level: encode_only(level),
        }))
    },
    v3_names: &["numcodecs.bz2"],
    defaults: r#"{"level": 1}"#,
    ..CodecSpec::BYTES
};

/// The compressor `{"id": "bz2", "level": 1}`.
pub struct Bz2 {
    level: CodecResult<u32>,
}

/// Decodes one stream and returns the numbers of bytes read and written.
fn decode_one(encoded: &[u8], out: &mut [u8]) -> Result<(usize, usize), StreamError> {
    let mut stream = Decompress::new(false);
    streams::run(encoded, out, |input, room| {
        let used = stream.total_in();
        let made = stream.total_out();
        let status = stream
            .decompress(input, room)
            .map_err(|_| StreamError::Invalid("damaged"))?;
        let step = match status {
            Status::StreamEnd => StreamStep::End,
            Status::MemNeeded => return Err(StreamError::Invalid("out of memory")),
            _ => StreamStep::More,
        };
        Ok((
            (stream.total_in() - used) as usize,
            (stream.total_out() - made) as usize,
            step,
        ))
    })
}

impl Codec for Bz2 {
    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let room = out.len();
        streams::decode_all(encoded, out, decode_one)
            .map_err(|e| e.into_codec_error("bz2", encoded.len(), room))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let mut stream = Compress::new(Compression::new(self.level.clone()?), 0);
        out.reserve(decoded.len() / 2 + 64);
        loop {
            let rest = &decoded[stream.total_in() as usize..];
            match stream.compress_vec(rest, out, Action::Finish) {
                Ok(Status::StreamEnd) => return Ok(()),
                Ok(_) => out.reserve(decoded.len() / 4 + 1024),
                Err(e) => return Err(CodecError(format!("bz2: {e}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::compressors::*;

    /// `bz2.compress(b"hello hello hello hello", 1)`.
    const GOLDEN: &str = "425a683131415926535902f8b0bd000003910040000244a00030cd00548696719b38a3c5dc914e142400be2c2f40";

    #[test]
    fn round_trips() {
        for level in [1, 9] {
            round_trip(&*codec(&format!(r#"{{"id": "bz2", "level": {level}}}"#), 1));
        }
    }

    #[test]
    fn streams_of_python_are_decoded() {
        let bz2 = codec(r#"{"id": "bz2"}"#, 1);
        let text = b"hello hello hello hello".to_vec();
        let one = hex(GOLDEN);
        assert_eq!(encoded(&*bz2, &text), one);
        assert_eq!(decoded(&*bz2, &one, 23).unwrap(), text);
        assert_eq!(
            decoded(&*bz2, &[&one[..], &one].concat(), 46).unwrap(),
            [&text[..], &text].concat()
        );
        assert_eq!(
            decoded(&*bz2, &[&one[..], &one].concat(), 30)
                .unwrap_err()
                .0,
            "bz2: holds more than 30 bytes"
        );
        assert_eq!(
            decoded(&*bz2, &[&one[..], b"BZjunk"].concat(), 23).unwrap(),
            text
        );
        assert_eq!(
            decoded(&*bz2, &[&one[..], b"BZh"].concat(), 23)
                .unwrap_err()
                .0,
            "bz2: cut short, 49 bytes"
        );
        assert_eq!(decoded(&*bz2, &[], 23).unwrap(), b"");
    }

    #[test]
    fn damaged_streams_are_errors() {
        let bz2 = codec(r#"{"id": "bz2"}"#, 1);
        hostile(&*bz2, &sample(60));
        let bomb = encoded(&*bz2, &vec![0; 10 << 20]);
        assert!(bomb.len() < 10_000);
        assert!(decoded(&*bz2, &bomb, 100).is_err());
        only_decodes(r#"{"id": "bz2", "level": 0}"#);
    }
}
