//! The keys of chunks below an array, as its `zarr.json` declares them (Zarr 3.1, section "Chunk
//! key encoding"): the only thing that this crate knows of Zarr.

use zarrfs_base::error::{Error, Result};
use zarrfs_base::json;

/// How the places of chunks are spelled in keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkKeyEncoding {
    /// Whether keys begin with `c`: the encoding `default`, not `v2`.
    has_prefix: bool,
    separator: char,
}

/// What a key below an array names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChunkKey {
    /// The prefix `c` of all chunks.
    All,
    /// The prefix of the chunks whose places begin so.
    Begin(Vec<u32>),
    /// The chunk at a place.
    Chunk(Vec<u32>),
}

impl ChunkKeyEncoding {
    /// Returns the encoding that a document declares.
    pub fn parse(document: &[u8]) -> Result<Self> {
        let document = json::parse_object(document)?;
        let encoding = document.get("chunk_key_encoding");
        let name = encoding.and_then(|encoding| encoding.get("name").or(Some(encoding))?.as_str());
        let has_prefix = match name {
            Some("default") => true,
            Some("v2") => false,
            other => {
                let why = format!("its chunk key encoding {:?}", other.unwrap_or_default());
                return Err(Error::unsupported(why));
            }
        };
        let separator = encoding
            .and_then(|encoding| encoding.get("configuration")?.get("separator")?.as_str())
            .unwrap_or(if has_prefix { "/" } else { "." });
        match separator {
            "/" => Ok(ChunkKeyEncoding {
                has_prefix,
                separator: '/',
            }),
            "." => Ok(ChunkKeyEncoding {
                has_prefix,
                separator: '.',
            }),
            other => Err(Error::unsupported(format!(
                "its separator {other:?} of chunk keys"
            ))),
        }
    }

    /// Parses a key below an array of `dimensions` dimensions.
    pub fn parse_key(self, key: &str, dimensions: usize) -> Option<ChunkKey> {
        let mut places = key;
        if self.has_prefix {
            let rest = key.strip_prefix('c')?;
            places = match rest.strip_prefix(self.separator) {
                Some(places) => places,
                None if !rest.is_empty() => return None,
                None if dimensions == 0 => return Some(ChunkKey::Chunk(Vec::new())),
                None => return (self.separator == '/').then_some(ChunkKey::All),
            };
        } else if dimensions == 0 {
            return (key == "0").then(|| ChunkKey::Chunk(Vec::new()));
        }
        let begin: Vec<u32> = places
            .split(self.separator)
            .map(parse_number)
            .collect::<Option<_>>()?;
        match begin.len() {
            len if len == dimensions => Some(ChunkKey::Chunk(begin)),
            len if len < dimensions && self.separator == '/' => Some(ChunkKey::Begin(begin)),
            _ => None,
        }
    }

    /// Returns the single name below the array that all chunks share, and whether it is a chunk
    /// itself.
    pub fn single_name(self, dimensions: usize) -> Option<(&'static str, bool)> {
        match dimensions {
            0 if self.has_prefix => Some(("c", true)),
            0 => Some(("0", true)),
            _ => (self.has_prefix && self.separator == '/').then_some(("c", false)),
        }
    }

    /// Returns the last name of the key of a chunk below the names of the first `depth` dimensions,
    /// and whether it names the chunk and no prefix.
    pub fn name(self, place: &[u32], depth: usize) -> (String, bool) {
        if self.separator == '/' {
            let number = place.get(depth).copied().unwrap_or_default();
            return (number.to_string(), depth + 1 >= place.len());
        }
        let numbers: Vec<String> = place.iter().map(u32::to_string).collect();
        let start = if self.has_prefix { "c." } else { "" };
        (format!("{start}{}", numbers.join(".")), true)
    }
}

/// Parses a number as keys spell it.
fn parse_number(text: &str) -> Option<u32> {
    let is_plain = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::ChunkKey::*;
    use super::*;

    fn encoding(text: &str) -> Result<ChunkKeyEncoding> {
        ChunkKeyEncoding::parse(format!(r#"{{"chunk_key_encoding": {text}}}"#).as_bytes())
    }

    #[test]
    fn keys_are_parsed_as_they_are_spelled() {
        for (text, key, dimensions, found) in [
            (r#"{"name": "default"}"#, "c", 2, Some(All)),
            (r#"{"name": "default"}"#, "c/1", 2, Some(Begin(vec![1]))),
            (
                r#"{"name": "default"}"#,
                "c/1/20",
                2,
                Some(Chunk(vec![1, 20])),
            ),
            (r#"{"name": "default"}"#, "c", 0, Some(Chunk(vec![]))),
            (r#"{"name": "default"}"#, "c/0", 0, None),
            (r#"{"name": "default"}"#, "c/01/2", 2, None),
            (r#"{"name": "default"}"#, "c/+1/2", 2, None),
            (r#"{"name": "default"}"#, "c/1/2/3", 2, None),
            (r#"{"name": "default"}"#, "c/4294967296", 1, None),
            (r#"{"name": "default"}"#, "x/1", 1, None),
            (r#"{"name": "default"}"#, "c1", 1, None),
            (r#""default""#, "c/1", 1, Some(Chunk(vec![1]))),
            (r#"{"name": "v2"}"#, "1.2", 2, Some(Chunk(vec![1, 2]))),
            (r#"{"name": "v2"}"#, "1", 2, None),
            (r#"{"name": "v2"}"#, "0", 0, Some(Chunk(vec![]))),
        ] {
            let encoding = encoding(text).unwrap();
            assert_eq!(encoding.parse_key(key, dimensions), found, "{text} {key}");
            if let Some(Chunk(place)) = found
                && dimensions > 0
            {
                let (name, is_chunk) = encoding.name(&place, dimensions - 1);
                assert!(is_chunk && key.ends_with(&name), "{key} {name}");
            }
        }
        let dotted =
            encoding(r#"{"name": "default", "configuration": {"separator": "."}}"#).unwrap();
        assert_eq!(dotted.parse_key("c.1.2", 2), Some(Chunk(vec![1, 2])));
        assert_eq!(dotted.parse_key("c", 2), None);
        assert_eq!(dotted.name(&[1, 2], 0), ("c.1.2".into(), true));
        for text in ["null", "3", r#"{"name": "x"}"#, "[]"] {
            assert!(encoding(text).is_err(), "{text}");
        }
        assert!(encoding(r#"{"name": "v2", "configuration": {"separator": "-"}}"#).is_err());
    }
}
