//! The filters `crc32`, `crc32c`, `adler32`, `fletcher32` and `jenkins_lookup3`: the bytes with a
//! 32-bit checksum before or after them. Source of the rules: `numcodecs.checksum32`, and HDF5's
//! Fletcher checksum.

use super::spec::{is_plain, refused};
use super::v3::plain;
use super::{
    Codec, CodecConfig, CodecError, CodecResult, CodecSpec, Size, buffer, jenkins_lookup3,
};
use zarrfs_base::error::Result;

/// What is known of `adler32`.
pub const ADLER32: CodecSpec = CodecSpec {
    id: "adler32",
    build: |config, _| located(config, |bytes| simd_adler32::adler32(&bytes), "start"),
    v3_names: &["numcodecs.adler32"],
    ..LOCATED
};

/// What is known of `crc32`.
pub const CRC32: CodecSpec = CodecSpec {
    id: "crc32",
    build: |config, _| located(config, crc32fast::hash, "start"),
    v3_names: &["numcodecs.crc32"],
    ..LOCATED
};

/// What is known of `crc32c`.
pub const CRC32C: CodecSpec = CodecSpec {
    id: "crc32c",
    build: |config, _| located(config, crc32c::crc32c, "end"),
    v3_names: &["numcodecs.crc32c", "crc32c"],
    parse: |spec, codec, _| {
        if codec.name == "crc32c" {
            codec.allow_only(&[])?;
        }
        plain(spec, codec).map(Some)
    },
    check_input: |config, _| {
        // it needs an extra package, which is rarely installed
        let why = "numcodecs has it only together with another package; crc32 is in all of them";
        Err(refused(config, why))
    },
    ..LOCATED
};

/// What is known of `fletcher32`.
pub const FLETCHER32: CodecSpec = CodecSpec {
    id: "fletcher32",
    build: |config, _| Ok(boxed(config, fletcher32, false)),
    v3_names: &["numcodecs.fletcher32"],
    ..CodecSpec::BYTES
};

/// What is known of `jenkins_lookup3`. Its parameter `prefix` has no JSON form and so must be null.
pub const JENKINS_LOOKUP3: CodecSpec = CodecSpec {
    id: "jenkins_lookup3",
    parameters: &["initval", "prefix"],
    build: |config, _| {
        if config.get("prefix").is_some() {
            return Err(config.invalid("prefix", "is not bytes"));
        }
        let initval = config.int("initval", 0, 0, i64::from(u32::MAX))? as u32;
        Ok(boxed(
            config,
            move |bytes: &[u8]| jenkins_lookup3::hash(bytes, initval),
            false,
        ))
    },
    v3_names: &["numcodecs.jenkins_lookup3"],
    accepts: |_, name, value| match name {
        "prefix" if value.is_null() => Ok(true),
        "initval" => Ok(value.as_u64().is_some()),
        _ => Ok(is_plain(value)),
    },
    ..CodecSpec::BYTES
};

/// A checksum with a `location`, to be completed.
const LOCATED: CodecSpec = CodecSpec {
    parameters: &["location"],
    ..CodecSpec::BYTES
};

/// A function that returns the checksum of bytes.
type ChecksumFn = Box<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// A checksum filter.
pub struct Checksum {
    name: String,
    sum: ChecksumFn,
    /// Whether the checksum precedes the bytes.
    is_at_start: bool,
}

/// Returns the filter that `config` names, with this checksum.
fn boxed(
    config: &CodecConfig,
    sum: impl Fn(&[u8]) -> u32 + Send + Sync + 'static,
    is_at_start: bool,
) -> Box<dyn Codec> {
    Box::new(Checksum {
        name: config.id.clone(),
        sum: Box::new(sum),
        is_at_start,
    })
}

/// Returns the filter that `config` names, whose checksum is where `location` says, or else at
/// `default`.
fn located(config: &CodecConfig, sum: fn(&[u8]) -> u32, default: &str) -> Result<Box<dyn Codec>> {
    match config.text("location", default)? {
        "start" => Ok(boxed(config, sum, true)),
        "end" => Ok(boxed(config, sum, false)),
        _ => Err(config.invalid("location", "is neither \"start\" nor \"end\"")),
    }
}

impl Checksum {
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
        let split = if self.is_at_start {
            encoded.split_first_chunk().map(|(sum, data)| (data, sum))
        } else {
            encoded.split_last_chunk()
        };
        let (data, stored) = split.ok_or_else(|| {
            CodecError::new(format!(
                "{} bytes are too few to hold a {} checksum",
                encoded.len(),
                self.name
            ))
        })?;
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

/// Adds the upper half of a sum of 16-bit words to the lower one.
fn fold(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

/// Returns HDF5's Fletcher checksum of big-endian 16-bit words. An odd last byte is the high byte
/// of a word.
fn fletcher32(bytes: &[u8]) -> u32 {
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
    use crate::codec::testing::{broken, check, refused};

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
