//! Decoding of data that consist of one or more compressed streams. As in Python's
//! `lzma.decompress` and `bz2.decompress`, bytes after the first stream are ignored if they do not
//! start a stream, and an unfinished stream is an error. The module knows no format.

use super::CodecError;

/// The reason why a stream cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The stream decodes to more bytes than the output holds.
    TooLong,
    /// The input ends before the stream does.
    CutShort,
    /// Another reason, in words that follow the name of the codec.
    Invalid(&'static str),
}

impl StreamError {
    /// Returns the error of `codec`, which was given `encoded` bytes and an output of `room` bytes.
    pub fn into_codec_error(self, codec: &str, encoded: usize, room: usize) -> CodecError {
        CodecError(match self {
            StreamError::TooLong => format!("{codec}: holds more than {room} bytes"),
            StreamError::CutShort => format!("{codec}: cut short, {encoded} bytes"),
            StreamError::Invalid(why) => format!("{codec}: {why}, {encoded} bytes"),
        })
    }
}

/// Decodes every stream of `encoded` into the front of `out` and returns the number of bytes
/// written. `decode_one` decodes the stream at the start of its input and returns the numbers of
/// bytes read and written.
pub fn decode_all(
    encoded: &[u8],
    out: &mut [u8],
    mut decode_one: impl FnMut(&[u8], &mut [u8]) -> Result<(usize, usize), StreamError>,
) -> Result<usize, StreamError> {
    let mut rest = encoded;
    let mut written = 0;
    while !rest.is_empty() {
        match decode_one(rest, &mut out[written..]) {
            Ok((used, made)) => {
                rest = &rest[used..];
                written += made;
                // no stream is empty: without this check a faulty library could cause an endless
                // loop
                if used == 0 {
                    return Err(StreamError::Invalid("damaged"));
                }
            }
            Err(StreamError::Invalid(_)) if rest.len() < encoded.len() => break,
            Err(e) => return Err(e),
        }
    }
    Ok(written)
}

/// Runs a streaming decoder over one stream and returns the numbers of bytes read and written.
/// `step` receives the rest of the input and of the output. It returns the same numbers for all
/// calls so far, and whether the stream has ended. When `out` is full, `step` receives one more
/// byte of output. If it writes this byte, the data are too long; otherwise only the end of the
/// stream was left.
pub fn run(
    input: &[u8],
    out: &mut [u8],
    mut step: impl FnMut(&[u8], &mut [u8]) -> Result<(u64, u64, bool), StreamError>,
) -> Result<(usize, usize), StreamError> {
    let mut used = 0;
    let mut made = 0;
    loop {
        let full = made == out.len();
        let mut beyond = [0];
        let room = if full { &mut beyond } else { &mut out[made..] };
        let (read, written, is_end) = step(&input[used..], room)?;
        let before = (used, made);
        (used, made) = (read as usize, written as usize);
        if made > out.len() {
            return Err(StreamError::TooLong);
        }
        if is_end {
            return Ok((used, made));
        }
        if (used, made) == before {
            return Err(StreamError::CutShort);
        }
    }
}
