//! The codecs `vlen-utf8`, `vlen-bytes`, `vlen-array`, `json2`, `msgpack2` and `pickle`: encodings
//! of Python objects. Objects have no form as flat bytes, so their encoding is passed through in
//! both directions.

use super::spec::refused;
use super::{Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, Size, buffer};
use zarrfs_base::json::{self, Value};

/// What is known of `json2`.
pub const JSON2: CodecSpec = CodecSpec {
    id: "json2",
    parameters: &[
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
    // the defaults of numcodecs: this crate does not interpret the parameters
    accepts: |_, name, value| {
        Ok(match name {
            "encoding" => value == "utf-8",
            "skipkeys" => *value == Value::Bool(false),
            "indent" => value.is_null(),
            "separators" => value.is_null() || *value == json::json!([",", ":"]),
            _ => *value == Value::Bool(true),
        })
    },
    ..OBJECTS
};

/// What is known of `msgpack2`.
pub const MSGPACK2: CodecSpec = CodecSpec {
    id: "msgpack2",
    parameters: &["use_single_float", "use_bin_type", "raw"],
    // the defaults of numcodecs
    accepts: |_, name, value| Ok(*value == Value::Bool(name == "use_bin_type")),
    ..OBJECTS
};

/// What is known of `pickle`.
pub const PICKLE: CodecSpec = CodecSpec {
    id: "pickle",
    parameters: &["protocol"],
    check_input: |config, _| {
        let why = "numcodecs reads no pickles unless told to: they may hold any program";
        Err(refused(config, why))
    },
    ..OBJECTS
};

/// What is known of `vlen-array`.
pub const VLEN_ARRAY: CodecSpec = CodecSpec {
    id: "vlen-array",
    parameters: &["dtype"],
    check_input: |config, _| match config.dtype("dtype")? {
        Some(item) if item.size() > 0 && !item.has_objects() => Ok(()),
        _ => Err(config.invalid("dtype", "is missing, or no type of numbers")),
    },
    ..OBJECTS
};

/// What is known of `vlen-bytes`.
pub const VLEN_BYTES: CodecSpec = CodecSpec {
    id: "vlen-bytes",
    v3_names: &["vlen-bytes"],
    ..OBJECTS
};

/// What is known of `vlen-utf8`.
pub const VLEN_UTF8: CodecSpec = CodecSpec {
    id: "vlen-utf8",
    v3_names: &["vlen-utf8"],
    ..OBJECTS
};

/// A codec of objects, to be completed.
const OBJECTS: CodecSpec = CodecSpec {
    build: |_, _| Ok(Box::new(Passthrough)),
    is_object_codec: true,
    kind: CodecKind::ArrayToBytes,
    spell: None,
    ..CodecSpec::BYTES
};

/// A codec that leaves the bytes unchanged.
pub struct Passthrough;

impl Codec for Passthrough {
    fn encoded_size(&self, _decoded: usize) -> Size {
        Size::AtMost(i32::MAX as usize)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        buffer::copy(encoded, out)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        out.extend_from_slice(decoded);
        Ok(())
    }
}

/// Checks that `bytes` have the form of `items` objects encoded by the object codec `config`: the
/// lengths of vlen items, one list of JSON or MessagePack, the first and the last byte of a pickle.
/// A pickle is never loaded.
///
/// # Errors
///
/// The reason why the bytes are damaged.
pub fn check_objects(config: &CodecConfig, bytes: &[u8], items: u64) -> CodecResult<()> {
    match config.id.as_str() {
        "vlen-utf8" => check_lengths(bytes, items, |item| std::str::from_utf8(item).is_ok()),
        "vlen-bytes" | "vlen-array" => check_lengths(bytes, items, |_| true),
        "json2"
            if config
                .text("encoding", "utf-8")
                .is_ok_and(|name| name == "utf-8") =>
        {
            match json::parse(bytes) {
                Ok(Value::Array(_)) => Ok(()),
                Ok(_) => Err(CodecError::new("json2: not a list")),
                Err(e) => Err(CodecError::new(format!("json2: {e}"))),
            }
        }
        "msgpack2" => check_message(bytes),
        "pickle" if bytes.last() != Some(&b'.') => {
            Err(CodecError::new("pickle: no STOP at the end"))
        }
        "pickle"
            if bytes.first().is_some_and(|first| *first >= 0x80)
                && !matches!(bytes, [0x80, 2..=5, ..]) =>
        {
            Err(CodecError::new("pickle: unknown protocol"))
        }
        _ => Ok(()),
    }
}

fn no_list() -> CodecError {
    CodecError::new("msgpack2: not a list")
}

/// Checks that `bytes` are one MessagePack array and nothing else. Source of the format:
/// MessagePack specification, "Formats".
fn check_message(bytes: &[u8]) -> CodecResult<()> {
    if !matches!(bytes.first(), Some(0x90..=0x9f | 0xdc | 0xdd)) {
        return Err(no_list());
    }
    // `left` is the number of values still expected; a container adds its members
    let mut rest = bytes;
    let mut left = 1u64;
    while left > 0 {
        let (&first, after) = rest.split_first().ok_or_else(no_list)?;
        let number = |size: usize| {
            let bytes = after.get(..size).ok_or_else(no_list)?;
            Ok::<u64, CodecError>(bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
        };
        // bytes of the length, bytes of the value after it, and number of members
        let (length, value, members) = match first {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => (0, 0, 0),
            0x80..=0x8f => (0, 0, 2 * u64::from(first & 0x0f)),
            0x90..=0x9f => (0, 0, u64::from(first & 0x0f)),
            0xa0..=0xbf => (0, u64::from(first & 0x1f), 0),
            0xc4..=0xc6 => (1 << (first - 0xc4), number(1 << (first - 0xc4))?, 0),
            0xc7..=0xc9 => (1 << (first - 0xc7), 1 + number(1 << (first - 0xc7))?, 0),
            0xca | 0xcb => (0, 4 << (first - 0xca), 0),
            0xcc..=0xcf => (0, 1 << (first - 0xcc), 0),
            0xd0..=0xd3 => (0, 1 << (first - 0xd0), 0),
            0xd4..=0xd8 => (0, 1 + (1 << (first - 0xd4)), 0),
            0xd9..=0xdb => (1 << (first - 0xd9), number(1 << (first - 0xd9))?, 0),
            0xdc | 0xdd => (2 << (first - 0xdc), 0, number(2 << (first - 0xdc))?),
            0xde | 0xdf => (2 << (first - 0xde), 0, 2 * number(2 << (first - 0xde))?),
            0xc1 => return Err(no_list()),
        };
        let skipped = usize::try_from(value)
            .ok()
            .and_then(|value| value.checked_add(length))
            .ok_or_else(no_list)?;
        rest = after.get(skipped..).ok_or_else(no_list)?;
        left = left - 1 + members;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(no_list())
    }
}

/// Checks that the items are valid.
fn check_lengths(bytes: &[u8], items: u64, is_valid: impl Fn(&[u8]) -> bool) -> CodecResult<()> {
    let mut i = 0;
    let rest = each_item(bytes, items, |item| {
        if !is_valid(item) {
            return Err(CodecError::new(format!("item {i} is not UTF-8")));
        }
        i += 1;
        Ok(())
    });
    rest.map(drop)
}

/// Calls `each` with the items of numcodecs' vlen format, which has the number of items, then each
/// item after its length, all as little-endian 32-bit numbers. Returns the bytes after the last
/// item.
pub fn each_item<'a>(
    bytes: &'a [u8],
    items: u64,
    mut each: impl FnMut(&'a [u8]) -> CodecResult<()>,
) -> CodecResult<&'a [u8]> {
    let short = || CodecError::new("cut short");
    let (count, mut rest) = bytes.split_first_chunk().ok_or_else(short)?;
    let count = u32::from_le_bytes(*count);
    if u64::from(count) != items {
        return Err(CodecError::new(format!(
            "{count} items, where the chunk has {items}"
        )));
    }
    for _ in 0..count {
        let (len, after) = rest.split_first_chunk().ok_or_else(short)?;
        let len = u32::from_le_bytes(*len) as usize;
        let (item, after) = after.split_at_checked(len).ok_or_else(short)?;
        each(item)?;
        rest = after;
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::{check, refused};

    #[test]
    fn damaged_objects_are_errors() {
        let told = |id: &str, bytes: &[u8], items| {
            let config = CodecConfig::parse(
                &json::parse(format!("{{\"id\":\"{id}\"}}").as_bytes()).unwrap(),
            )
            .unwrap();
            check_objects(&config, bytes, items).map_err(|e| e.0)
        };
        let two = b"\x02\0\0\0\x01\0\0\0a\x02\0\0\0\xc3\xa4";
        for id in ["vlen-utf8", "vlen-bytes", "vlen-array"] {
            assert_eq!(told(id, two, 2), Ok(()));
            for len in 0..two.len() {
                assert_eq!(
                    told(id, &two[..len], 2),
                    Err("cut short".into()),
                    "{id} {len}"
                );
            }
            assert_eq!(
                told(id, two, 3),
                Err("2 items, where the chunk has 3".into())
            );
            assert_eq!(
                told(id, b"\x01\0\0\0\xff\xff\xff\xff", 1),
                Err("cut short".into())
            );
        }
        let latin = b"\x01\0\0\0\x01\0\0\0\xe4";
        assert_eq!(
            told("vlen-utf8", latin, 1),
            Err("item 0 is not UTF-8".into())
        );
        assert_eq!(told("vlen-bytes", latin, 1), Ok(()));
        assert_eq!(told("json2", b"[1, \"|O\", [1]]", 1), Ok(()));
        assert!(told("json2", b"[1, \"|O\", [1]", 1).is_err() && told("json2", b"7", 1).is_err());
        assert_eq!(told("pickle", b"\x80\x04]q\0.", 1), Ok(()));
        assert_eq!(told("pickle", b"(lp0\n.", 1), Ok(()), "protocol 0");
        for broken in [&b"anything"[..], b"\x80\x09.", b"\x02\x01!.", b""] {
            assert!(
                told("pickle", broken, 1).is_err() || broken[0] < 0x80 && broken.ends_with(b"."),
                "{broken:?}"
            );
        }
    }

    /// Tests a value of each format, as Python's msgpack encodes it.
    #[test]
    fn a_message_is_exactly_one_list() {
        let values: &[&[u8]] = &[
            b"\x07",
            b"\xff",
            b"\xc0",
            b"\xc2",
            b"\xa3abc",
            b"\x92\x01\x02",
            b"\x81\xa1k\x01",
            b"\xcc\xff",
            b"\xcd\x01\0",
            b"\xce\0\x01\0\0",
            b"\xcf\0\0\0\x01\0\0\0\0",
            b"\xd0\x80",
            b"\xd3\x80\0\0\0\0\0\0\0",
            b"\xca?\x80\0\0",
            b"\xcb?\xf0\0\0\0\0\0\0",
            b"\xc4\x02ab",
            b"\xd9\x02ab",
            b"\xda\0\x02ab",
            b"\xd4\x01a",
            b"\xc7\x02\x01ab",
            b"\xdc\0\x01\x07",
            b"\xde\0\x01\x01\x02",
        ];
        for value in values {
            let list = [b"\x92", *value, b"\x07"].concat();
            assert!(check_message(&list).is_ok(), "{value:x?}");
            for len in 0..list.len() {
                assert!(
                    check_message(&list[..len]).is_err(),
                    "{value:x?} cut at {len}"
                );
            }
            assert!(
                check_message(&[&list[..], b"\0"].concat()).is_err(),
                "{value:x?} and more"
            );
        }
        assert!(check_message(b"\x81\x01\x02").is_err(), "no list");
        assert!(check_message(b"\xdd\xff\xff\xff\xff").is_err());
    }

    #[test]
    fn encoded_objects_pass_through() {
        for id in [
            "vlen-utf8",
            "vlen-bytes",
            "vlen-array",
            "json2",
            "msgpack2",
            "pickle",
        ] {
            check(&format!(r#"{{"id": "{id}"}}"#), b"anything", b"anything");
            refused(&format!(r#"{{"id": "{id}", "level": 1}}"#));
        }
    }
}
