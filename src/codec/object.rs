//! `vlen-utf8`, `vlen-bytes`, `vlen-array`, `json2`, `msgpack2` and `pickle`: encodings of Python objects. They have no
//! form as an array of bytes, so that what numcodecs stores is passed on as it is, both ways.

use super::{Broken, Codec, Size, buffer};
use crate::error::Result;
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

#[cfg(test)]
mod tests {
    use crate::codec::testing::{check, refused};

    #[test]
    fn bytes_pass() {
        for id in ["vlen-utf8", "vlen-bytes", "vlen-array", "json2", "msgpack2", "pickle"] {
            check(&format!(r#"{{"id": "{id}"}}"#), b"anything", b"anything");
            refused(&format!(r#"{{"id": "{id}", "level": 1}}"#));
        }
    }
}
