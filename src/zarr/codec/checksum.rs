//! `crc32`, `crc32c`, `adler32`, `fletcher32` and `jenkins_lookup3`: the bytes as they are, with a 32-bit checksum before or after them.
//! Source of the rules: `numcodecs.checksum32`, and HDF5's Fletcher sum.

use super::{Codec, CodecError, Size, buffer, jenkins_lookup3};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

type Sum = Box<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// The filter, with its checksum and the checksum's place.
pub struct Checksum {
    name: &'static str,
    sum: Sum,
    at_start: bool,
    /// HDF5's sum of no bytes at all is an error in numcodecs.
    may_be_empty: bool,
}

impl Checksum {
    /// `crc32`, from `location`.
    pub fn crc32(config: &CodecConfig) -> Result<Self> {
        Self::placed(config, "crc32", Box::new(crc32fast::hash), "start")
    }

    /// `crc32c`, from `location`.
    pub fn crc32c(config: &CodecConfig) -> Result<Self> {
        Self::placed(config, "crc32c", Box::new(crc32c::crc32c), "end")
    }

    /// `adler32`, from `location`.
    pub fn adler32(config: &CodecConfig) -> Result<Self> {
        Self::placed(config, "adler32", Box::new(|bytes| simd_adler32::adler32(&bytes)), "start")
    }

    /// `fletcher32`; it has no parameters.
    pub fn fletcher32(config: &CodecConfig) -> Result<Self> {
        config.only(&[])?;
        Ok(Checksum { name: "fletcher32", sum: Box::new(fletcher32), at_start: false, may_be_empty: false })
    }

    /// `jenkins_lookup3`, from `initval`. `prefix` is known but has no form in JSON, so that it can only be null.
    pub fn jenkins_lookup3(config: &CodecConfig) -> Result<Self> {
        config.only(&["initval", "prefix"])?;
        if config.get("prefix").is_some() {
            return Err(config.bad("prefix", "is not bytes"));
        }
        let initval = config.int("initval", 0, 0, i64::from(u32::MAX))? as u32;
        let sum = Box::new(move |bytes: &[u8]| jenkins_lookup3::hash(bytes, initval));
        Ok(Checksum { name: "jenkins_lookup3", sum, at_start: false, may_be_empty: true })
    }

    fn placed(config: &CodecConfig, name: &'static str, sum: Sum, default: &str) -> Result<Self> {
        config.only(&["location"])?;
        let at_start = match config.text("location", default)? {
            "start" => true,
            "end" => false,
            _ => return Err(config.bad("location", "is neither \"start\" nor \"end\"")),
        };
        Ok(Checksum { name, sum, at_start, may_be_empty: true })
    }

    fn check_empty(&self, bytes: &[u8]) -> std::result::Result<(), CodecError> {
        match bytes.is_empty() && !self.may_be_empty {
            true => Err(CodecError::new(format!("{} has no sum of no bytes", self.name))),
            false => Ok(()),
        }
    }
}

impl Codec for Checksum {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded.saturating_add(4))
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, CodecError> {
        let short = || CodecError::new(format!("{} bytes are too few to hold a {} checksum", encoded.len(), self.name));
        let (data, stored) = match self.at_start {
            true => encoded.split_first_chunk().map(|(sum, data)| (data, sum)),
            false => encoded.split_last_chunk(),
        }
        .ok_or_else(short)?;
        self.check_empty(data)?;
        let room = buffer::front(out, data.len())?;
        if (self.sum)(data) != u32::from_le_bytes(*stored) {
            return Err(CodecError::new(format!("the {} checksum does not match", self.name)));
        }
        room.copy_from_slice(data);
        Ok(data.len())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), CodecError> {
        self.check_empty(decoded)?;
        let sum = (self.sum)(decoded).to_le_bytes();
        out.reserve_exact(decoded.len().saturating_add(4));
        if self.at_start {
            out.extend_from_slice(&sum);
        }
        out.extend_from_slice(decoded);
        if !self.at_start {
            out.extend_from_slice(&sum);
        }
        Ok(())
    }
}

/// HDF5's sum: big-endian words of 16 bits, an odd last byte as a high byte.
fn fletcher32(bytes: &[u8]) -> u32 {
    let fold = |s: u32| (s & 0xffff) + (s >> 16);
    let (mut sum1, mut sum2) = (0u32, 0u32);
    let (words, last) = bytes.as_chunks::<2>();
    // no sum overflows in so many words
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
        check(r#"{"id": "crc32", "location": "end"}"#, b"a", &[b'a', 0x43, 0xbe, 0xb7, 0xe8]);
        check(r#"{"id": "crc32c"}"#, b"123456789", b"123456789\x83\x92\x06\xe3");
        check(r#"{"id": "adler32"}"#, b"a", &[98, 0, 98, 0, b'a']);
        check(r#"{"id": "adler32"}"#, b"", &[1, 0, 0, 0]);
        check(r#"{"id": "fletcher32"}"#, &[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4, 4, 6, 9, 8]);
        check(r#"{"id": "fletcher32"}"#, b"a", &[b'a', 0, b'a', 0, b'a']);
    }

    #[test]
    fn the_worst_case_of_fletcher_does_not_overflow() {
        assert_eq!(fletcher32(&[0xff; 100_000]), 0xffff_ffff);
    }

    #[test]
    fn what_is_refused() {
        broken(r#"{"id": "crc32"}"#, &[0x43, 0xbe, 0xb7, 0xe8, b'b']);
        broken(r#"{"id": "crc32"}"#, &[0, 0, 0]);
        broken(r#"{"id": "fletcher32"}"#, &[0, 0, 0, 0]);
        refused(r#"{"id": "crc32", "location": "middle"}"#);
        refused(r#"{"id": "fletcher32", "location": "end"}"#);
    }
}
