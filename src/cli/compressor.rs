//! Compressors on a command line: `ID[:PARAMETER...]`, or the JSON object of a `.zarray`.

use zarrfs_base::json::{self, Map, Value};
use zarrfs_format::codec::{CodecConfig, SHUFFLES, spec_of};
use zarrfs_format::interchange::check_compressor;

/// The forms that [`parse`] accepts, for messages.
pub const FORMS: &str = "blosc[:CNAME[:CLEVEL[:SHUFFLE]]], zlib, gzip, bz2 or zstd[:LEVEL], lzma[:PRESET], \
lz4[:ACCELERATION], none, or a JSON object";

/// A compressor, or `None` for uncompressed chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressorArg(pub Option<CodecConfig>);

/// Parses a compressor. The result has every parameter of its numcodecs configuration.
///
/// # Errors
///
/// Fails for an unknown codec, and for parameters that it can't encode with.
pub fn parse(text: &str) -> Result<CompressorArg, String> {
    if text == "none" {
        return Ok(CompressorArg(None));
    }
    let object = if text.starts_with('{') {
        json::parse(text.as_bytes()).map_err(|e| e.to_string())?
    } else {
        configuration(text)?
    };
    let config = CodecConfig::parse(&object).map_err(|e| e.to_string())?;
    check_compressor(&config).map_err(|e| e.to_string())?;
    Ok(CompressorArg(Some(config)))
}

fn configuration(text: &str) -> Result<Value, String> {
    let mut words = text.split(':');
    let id = words.next().unwrap_or_default();
    let spec = spec_of(id)
        .filter(|spec| !spec.defaults.is_empty())
        .ok_or_else(|| format!("{id:?} is no compressor: {FORMS}"))?;
    let mut object = Map::from_iter([("id".to_string(), id.into())]);
    let defaults = json::parse(spec.defaults.as_bytes()).map_err(|e| e.to_string())?;
    for (n, (name, default)) in defaults.as_object().into_iter().flatten().enumerate() {
        let word = if n < spec.stated { words.next() } else { None };
        let value = word.map_or(Ok(default.clone()), |word| parameter(name, word))?;
        object.insert(name.clone(), value);
    }
    match words.next() {
        Some(word) => Err(format!("{id} has no parameter {word:?} there: {FORMS}")),
        None => Ok(Value::Object(object)),
    }
}

fn parameter(name: &str, word: &str) -> Result<Value, String> {
    let shuffle = SHUFFLES.iter().find(|(known, _)| *known == word);
    match (name, shuffle, word.parse::<i64>()) {
        ("cname", ..) => Ok(word.into()),
        ("shuffle", Some((_, n)), _) => Ok((*n).into()),
        (_, _, Ok(n)) => Ok(n.into()),
        _ => Err(format!("{name} is {word:?}, not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        parse(text)
            .unwrap()
            .0
            .map_or("none".to_string(), |config| json::write(&config.to_json()))
    }

    #[test]
    fn each_form_is_parsed() {
        for (text, expected) in [
            ("none", "none"),
            (
                "blosc",
                r#"{"id":"blosc","cname":"lz4","clevel":5,"shuffle":1,"blocksize":0}"#,
            ),
            (
                "blosc:zstd:9:bitshuffle",
                r#"{"id":"blosc","cname":"zstd","clevel":9,"shuffle":2,"blocksize":0}"#,
            ),
            (
                "blosc:lz4hc:3:0",
                r#"{"id":"blosc","cname":"lz4hc","clevel":3,"shuffle":0,"blocksize":0}"#,
            ),
            ("zlib", r#"{"id":"zlib","level":1}"#),
            ("gzip:6", r#"{"id":"gzip","level":6}"#),
            ("bz2:9", r#"{"id":"bz2","level":9}"#),
            ("zstd:-5", r#"{"id":"zstd","level":-5}"#),
            (
                "lzma",
                r#"{"id":"lzma","preset":null,"format":1,"check":-1,"filters":null}"#,
            ),
            (
                "lzma:2",
                r#"{"id":"lzma","preset":2,"format":1,"check":-1,"filters":null}"#,
            ),
            ("lz4:4", r#"{"id":"lz4","acceleration":4}"#),
            (r#"{"id":"zlib","level":7}"#, r#"{"id":"zlib","level":7}"#),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn bad_compressors_are_refused() {
        for (text, why) in [
            ("", "no compressor"),
            ("snappy", "no compressor"),
            ("zlib:fast", "level"),
            ("zlib:10", "level"),
            ("zlib:1:2", "no parameter"),
            ("blosc:zstd:5:1:0", "no parameter"),
            ("blosc:nothing", "cname"),
            ("blosc:zstd:11", "clevel"),
            ("{\"id\":\"zlib\"", "JSON"),
            ("{\"id\":\"unheard-of\"}", "unheard-of"),
            ("{\"level\":1}", "id"),
            // a compressor must keep all bytes, since it may be used for any array, and numcodecs
            // must accept it
            ("{\"id\":\"packbits\"}", "filter"),
            ("{\"id\":\"shuffle\",\"elementsize\":4}", "filter"),
            ("{\"id\":\"zlib\",\"level\":null}", "level"),
            ("{\"id\":\"blosc\",\"typesize\":4}", "typesize"),
            ("{\"id\":\"zlib\",\"level\":1,\"unknown\":2}", "unknown"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
