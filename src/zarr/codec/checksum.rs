//! The filters `crc32`, `crc32c`, `adler32`, `fletcher32` and `jenkins_lookup3`: the bytes with a
//! 32-bit checksum before or after them. Source of the rules: `numcodecs.checksum32`, and HDF5's
//! Fletcher checksum.

use super::{Codec, CodecError, CodecResult, Size, buffer, jenkins_lookup3};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

/// A function that returns the checksum of bytes.
type ChecksumFn = Box<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// A checksum filter.
pub struct Checksum {
    name: String,
    sum: ChecksumFn,
    /// Whether the checksum precedes the bytes.
    is_at_start: bool,
}

impl Checksum {
    /// Creates the filter that the id names. `jenkins_lookup3` has an initial value; its parameter
    /// `prefix` has no JSON form and so must be null. `crc32`, `crc32c` and `adler32` have a
    /// `location`, and `fletcher32` has no parameters.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let located = |default| {
            config.allow_only(&["location"])?;
            match config.text("location", default)? {
                "start" => Ok(true),
                "end" => Ok(false),
                _ => Err(config.invalid("location", "is neither \"start\" nor \"end\"")),
            }
        };
        let name = config.id.clone();
        Ok(match name.as_str() {
            "crc32" => Checksum {
                name,
                sum: Box::new(crc32fast::hash),
                is_at_start: located("start")?,
            },
            "crc32c" => Checksum {
                name,
                sum: Box::new(crc32c::crc32c),
                is_at_start: located("end")?,
            },
            "adler32" => Checksum {
                name,
                sum: Box::new(|bytes| simd_adler32::adler32(&bytes)),
                is_at_start: located("start")?,
            },
            "fletcher32" => {
                config.allow_only(&[])?;
                Checksum {
                    name,
                    sum: Box::new(fletcher32),
                    is_at_start: false,
                }
            }
            _ => {
                config.allow_only(&["initval", "prefix"])?;
                if config.get("prefix").is_some() {
                    return Err(config.invalid("prefix", "is not bytes"));
                }
                let initval = config.int("initval", 0, 0, i64::from(u32::MAX))? as u32;
                let sum = Box::new(move |bytes: &[u8]| jenkins_lookup3::hash(bytes, initval));
                Checksum {
                    name,
                    sum,
                    is_at_start: false,
                }
            }
        })
    }

    /// Checks that the bytes of `fletcher32` are not empty: numcodecs, which uses HDF5's code,
    /// refuses an empty buffer.
    fn check_empty(&self, bytes: &[u8]) -> CodecResult<()> {
        if bytes.is_empty() && self.name == "fletcher32" {
            Err(CodecError::new("fletcher32 has no sum of no bytes"))
        } else {
            Ok(())
        }
    }
}

impl Codec for Checksum {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded.saturating_add(4))
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let short = || {
            CodecError::new(format!(
                "{} bytes are too few to hold a {} checksum",
                encoded.len(),
                self.name
            ))
        };
        let split = if self.is_at_start {
            encoded.split_first_chunk().map(|(sum, data)| (data, sum))
        } else {
            encoded.split_last_chunk()
        };
        let (data, stored) = split.ok_or_else(short)?;
        self.check_empty(data)?;
        let room = buffer::front(out, data.len())?;
        if (self.sum)(data) != u32::from_le_bytes(*stored) {
            return Err(CodecError::new(format!(
                "the {} checksum does not match",
                self.name
            )));
        }
        room.copy_from_slice(data);
        Ok(data.len())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        self.check_empty(decoded)?;
        let sum = (self.sum)(decoded).to_le_bytes();
        out.reserve_exact(decoded.len().saturating_add(4));
        if self.is_at_start {
            out.extend_from_slice(&sum);
        }
        out.extend_from_slice(decoded);
        if !self.is_at_start {
            out.extend_from_slice(&sum);
        }
        Ok(())
    }
}

/// Returns HDF5's Fletcher checksum of big-endian 16-bit words. An odd last byte is the high byte
/// of a word.
fn fletcher32(bytes: &[u8]) -> u32 {
    let fold = |s: u32| (s & 0xffff) + (s >> 16);
    let mut sum1 = 0u32;
    let mut sum2 = 0u32;
    let (words, last) = bytes.as_chunks::<2>();
    // 360 words are the most whose sums cannot overflow
    for block in words.chunks(360) {
        for &word in block {
            sum1 += u32::from(u16::from_be_bytes(word));
            sum2 += sum1;
        }
        (sum1, sum2) = (fold(sum1), fold(sum2));
    }
    if let [byte] = last {
        sum1 += u32::from(*byte) << 8;
        sum2 += sum1;
        (sum1, sum2) = (fold(sum1), fold(sum2));
    }
    fold(sum2) << 16 | fold(sum1)
}

#[cfg(test)]
mod tests {
    use super::fletcher32;
    use crate::zarr::codec::testing::{broken, check, refused};

    #[test]
    fn worked_examples() {
        check(r#"{"id": "crc32"}"#, b"a", &[0x43, 0xbe, 0xb7, 0xe8, b'a']);
        check(
            r#"{"id": "crc32", "location": "end"}"#,
            b"a",
            &[b'a', 0x43, 0xbe, 0xb7, 0xe8],
        );
        check(
            r#"{"id": "crc32c"}"#,
            b"123456789",
            b"123456789\x83\x92\x06\xe3",
        );
        check(r#"{"id": "adler32"}"#, b"a", &[98, 0, 98, 0, b'a']);
        check(r#"{"id": "adler32"}"#, b"", &[1, 0, 0, 0]);
        check(
            r#"{"id": "fletcher32"}"#,
            &[0, 1, 2, 3, 4],
            &[0, 1, 2, 3, 4, 4, 6, 9, 8],
        );
        check(r#"{"id": "fletcher32"}"#, b"a", &[b'a', 0, b'a', 0, b'a']);
    }

    #[test]
    fn fletcher_sums_never_overflow() {
        assert_eq!(fletcher32(&[0xff; 100_000]), 0xffff_ffff);
    }

    #[test]
    fn damage_and_bad_parameters_are_errors() {
        broken(r#"{"id": "crc32"}"#, &[0x43, 0xbe, 0xb7, 0xe8, b'b']);
        broken(r#"{"id": "crc32"}"#, &[0, 0, 0]);
        broken(r#"{"id": "fletcher32"}"#, &[0, 0, 0, 0]);
        refused(r#"{"id": "crc32", "location": "middle"}"#);
        refused(r#"{"id": "fletcher32", "location": "end"}"#);
    }
}
