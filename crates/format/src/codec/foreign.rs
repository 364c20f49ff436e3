//! Recognizes stored values that no codec of an array has made: what web servers and proxies send
//! in place of a value. Only error messages depend on it.

/// Number of bytes at the beginning of a value that [`foreign_content`] needs.
pub const BEGINNING: usize = 64;

/// Beginnings of texts, in lower case, and what the texts are.
const TEXTS: [(&str, &str); 6] = [
    ("<!doctype", "a web page, not a chunk"),
    ("<html", "a web page, not a chunk"),
    ("<head", "a web page, not a chunk"),
    (
        "<?xml",
        "an XML document, as servers send errors, not a chunk",
    ),
    (
        "<error",
        "an XML document, as servers send errors, not a chunk",
    ),
    (
        "{\"",
        "a JSON document, as servers send errors, not a chunk",
    ),
];

/// Beginnings of compressed values, and the codecs that make them.
const COMPRESSED: [(&[u8], &str); 2] = [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd")];

/// Returns what a value is that does not decode and begins with these bytes, if that explains why.
/// `codecs` are the names of the array's codecs, separated by commas.
pub fn foreign_content(beginning: &[u8], codecs: &str) -> Option<String> {
    for (magic, name) in COMPRESSED {
        if beginning.starts_with(magic) && !codecs.split(", ").any(|codec| codec == name) {
            return Some(format!(
                "the value is compressed with {name}, which the array's metadata does not say: \
                 the server or a program that copied the store has compressed it"
            ));
        }
    }
    let beginning = &beginning[..beginning.len().min(BEGINNING)];
    let text = beginning.strip_prefix(b"\xef\xbb\xbf").unwrap_or(beginning);
    let text = text.trim_ascii_start();
    let begins = |with: &str| {
        text.get(..with.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
    };
    let (with, what) = TEXTS.into_iter().find(|(with, _)| begins(with))?;
    let shown = String::from_utf8_lossy(&text[..with.len()]);
    Some(format!("the value begins with {shown}: it is {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_documents_and_compressed_values_are_recognized() {
        let of = |bytes: &[u8], codecs| foreign_content(bytes, codecs).unwrap_or_default();
        for (bytes, expected) in [
            (
                &b"\xef\xbb\xbf\r\n <!DOCTYPE html><p>"[..],
                "begins with <!DOCTYPE: it is a web page",
            ),
            (b"<HTML>", "begins with <HTML: it is a web page"),
            (b"<?xml version='1.0'?>", "it is an XML document"),
            (b"<Error><Code>", "begins with <Error: it is an XML"),
            (b"{\"message\": 1}", "it is a JSON document"),
            (b"\x1f\x8b\x08\0", "is compressed with gzip"),
            (b"\x28\xb5\x2f\xfd\0", "is compressed with zstd"),
        ] {
            assert!(of(bytes, "delta, blosc").contains(expected), "{expected}");
        }
        assert_eq!(of(b"\x1f\x8b\x08\0", "gzip"), "");
        assert_eq!(of(b"\x28\xb5\x2f\xfd", "shuffle, zstd"), "");
        for bytes in [&b""[..], b"<", b"<htm", b"\x02\x01\x13\x04", b"{1", b"   "] {
            assert_eq!(of(bytes, "blosc"), "", "{bytes:?}");
        }
    }
}
