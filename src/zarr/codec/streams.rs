//! Data made of one or more compressed streams, and what ends them. The rule for what follows the first stream is that
//! of `lzma.decompress` and `bz2.decompress` of Python: an invalid tail is dropped, an unfinished one is an error. It
//! knows no format.

use super::CodecError;

/// Why a stream doesn't decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is more than the room for it.
    TooLong,
    /// The input ends before the stream does.
    CutShort,
    /// Anything else, in words that follow the codec's name.
    Invalid(&'static str),
}

impl Fault {
    /// The reason, for the `encoded` bytes given to `codec` with `room` for the decoded ones.
    pub fn broken(self, codec: &str, encoded: usize, room: usize) -> CodecError {
        CodecError(match self {
            Fault::TooLong => format!("{codec}: holds more than {room} bytes"),
            Fault::CutShort => format!("{codec}: cut short, {encoded} bytes"),
            Fault::Invalid(why) => format!("{codec}: {why}, {encoded} bytes"),
        })
    }
}

/// Decodes every stream of `encoded` into the front of `out` and returns how many bytes there are. `decode_one` decodes
/// the stream at the start of its input and returns the bytes it used and made.
pub fn decode_all(
    encoded: &[u8],
    out: &mut [u8],
    mut decode_one: impl FnMut(&[u8], &mut [u8]) -> Result<(usize, usize), Fault>,
) -> Result<usize, Fault> {
    let (mut rest, mut written) = (encoded, 0);
    while !rest.is_empty() {
        match decode_one(rest, &mut out[written..]) {
            Ok((used, made)) => {
                rest = &rest[used..];
                written += made;
                // a stream of no bytes can't be: this only keeps a faulty library from hanging us
                if used == 0 {
                    return Err(Fault::Invalid("damaged"));
                }
            }
            Err(Fault::Invalid(_)) if rest.len() < encoded.len() => break,
            Err(fault) => return Err(fault),
        }
    }
    Ok(written)
}

/// Where a streaming decoder stands after a call.
pub enum Step {
    /// The stream has ended.
    End,
    /// It wants more input or more room.
    More,
}

/// Runs a streaming decoder over one stream. `step` is given the input and the room that are left and returns the bytes
/// it used and made. Past the end of `out` it gets room for one byte more: whether it fills that tells data too long
/// from a stream that only has its end marker to read.
pub fn run(
    input: &[u8],
    out: &mut [u8],
    mut step: impl FnMut(&[u8], &mut [u8]) -> Result<(usize, usize, Step), Fault>,
) -> Result<(usize, usize), Fault> {
    let (mut used, mut made) = (0, 0);
    loop {
        let full = made == out.len();
        let mut beyond = [0];
        let room = if full { &mut beyond } else { &mut out[made..] };
        let (took, gave, state) = step(&input[used..], room)?;
        if full && gave > 0 {
            return Err(Fault::TooLong);
        }
        used += took;
        made += gave;
        match state {
            Step::End => return Ok((used, made)),
            Step::More if took + gave > 0 => {}
            Step::More => return Err(Fault::CutShort),
        }
    }
}
