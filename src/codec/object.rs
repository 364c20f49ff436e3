//! `vlen-utf8`, `vlen-bytes`, `vlen-array`, `json2`, `msgpack2` and `pickle`: encodings of Python objects. They have no
//! form as an array of bytes, so that what numcodecs stores is passed on as it is, both ways.

use super::{Broken, Codec, Size, buffer};
use crate::error::Result;
use crate::json::{self, Value};
use crate::metadata::CodecConfig;

/// Bytes as they are.
pub struct Passthrough;

impl Passthrough {
    /// Checks the parameters' names; their values change nothing here.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.only(match config.id.as_str() {
            "vlen-array" => &["dtype"],
            "pickle" => &["protocol"],
            "msgpack2" => &["use_single_float", "use_bin_type", "raw"],
            "json2" => &[
                "encoding",
                "skipkeys",
                "ensure_ascii",
                "check_circular",
                "allow_nan",
                "sort_keys",
                "indent",
                "separators",
                "strict",
            ],
            _ => &[],
        })?;
        Ok(Passthrough)
    }
}

impl Codec for Passthrough {
    fn encoded_size(&self, _decoded: usize) -> Size {
        Size::AtMost(i32::MAX as usize)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, Broken> {
        buffer::copy(encoded, out)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), Broken> {
        out.extend_from_slice(decoded);
        Ok(())
    }
}

/// An error unless `bytes` can be what the object codec `config` makes of so many objects, as far as their lengths tell. Of
/// msgpack2 and pickle nothing is told, and of json2 only whether it is a list.
pub fn check_objects(config: &CodecConfig, bytes: &[u8], items: u64) -> std::result::Result<(), Broken> {
    match config.id.as_str() {
        "vlen-utf8" => check_lengths(bytes, items, |item| std::str::from_utf8(item).is_ok()),
        "vlen-bytes" | "vlen-array" => check_lengths(bytes, items, |_| true),
        "json2" if config.text("encoding", "utf-8").is_ok_and(|name| name == "utf-8") => match json::parse(bytes) {
            Ok(Value::Array(_)) => Ok(()),
            Ok(_) => Err(Broken::new("json2: not a list")),
            Err(e) => Err(Broken::new(format!("json2: {e}"))),
        },
        _ => Ok(()),
    }
}

/// numcodecs' vlen: the number of items, then each with its length before it; numbers of 32 bits, little-endian.
fn check_lengths(bytes: &[u8], items: u64, sound: impl Fn(&[u8]) -> bool) -> std::result::Result<(), Broken> {
    let short = || Broken::new("cut short");
    let (count, mut rest) = bytes.split_first_chunk().ok_or_else(short)?;
    let count = u32::from_le_bytes(*count);
    if u64::from(count) != items {
        return Err(Broken::new(format!("{count} items, where the chunk has {items}")));
    }
    for i in 0..count {
        let (len, after) = rest.split_first_chunk().ok_or_else(short)?;
        let (item, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(short)?;
        if !sound(item) {
            return Err(Broken::new(format!("item {i} is not UTF-8")));
        }
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::{check, refused};

    #[test]
    fn lengths_tell_what_is_damaged() {
        let told = |id: &str, bytes: &[u8], items| {
            let config = CodecConfig::parse(&json::parse(format!("{{\"id\":\"{id}\"}}").as_bytes()).unwrap()).unwrap();
            check_objects(&config, bytes, items).map_err(|e| e.0)
        };
        let two = b"\x02\0\0\0\x01\0\0\0a\x02\0\0\0\xc3\xa4";
        for id in ["vlen-utf8", "vlen-bytes", "vlen-array"] {
            assert_eq!(told(id, two, 2), Ok(()));
            for len in 0..two.len() {
                assert_eq!(told(id, &two[..len], 2), Err("cut short".into()), "{id} {len}");
            }
            assert_eq!(told(id, two, 3), Err("2 items, where the chunk has 3".into()));
            assert_eq!(told(id, b"\x01\0\0\0\xff\xff\xff\xff", 1), Err("cut short".into()));
        }
        let latin = b"\x01\0\0\0\x01\0\0\0\xe4";
        assert_eq!(told("vlen-utf8", latin, 1), Err("item 0 is not UTF-8".into()));
        assert_eq!(told("vlen-bytes", latin, 1), Ok(()));
        assert_eq!(told("json2", b"[1, \"|O\", [1]]", 1), Ok(()));
        assert!(told("json2", b"[1, \"|O\", [1]", 1).is_err() && told("json2", b"7", 1).is_err());
        assert_eq!(told("pickle", b"anything", 1), Ok(()));
    }

    #[test]
    fn bytes_pass() {
        for id in ["vlen-utf8", "vlen-bytes", "vlen-array", "json2", "msgpack2", "pickle"] {
            check(&format!(r#"{{"id": "{id}"}}"#), b"anything", b"anything");
            refused(&format!(r#"{{"id": "{id}", "level": 1}}"#));
        }
    }
}
