//! The node that a `zarr.json` defines, found without parsing the whole document: that of a group
//! may hold those of thousands of arrays.

use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, MemberTexts};

/// The field of a group's document that holds the documents below the group. Source: zarr-python 3,
/// "consolidated metadata"; the specification does not have it.
pub const CONSOLIDATED: &str = "consolidated_metadata";

/// The `zarr.json` shown for a group that has none in the store.
pub const GROUP_DOCUMENT_V3: &str =
    "{\n    \"zarr_format\": 3,\n    \"node_type\": \"group\",\n    \"attributes\": {}\n}";

/// The kind of node that a `zarr.json` defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeType {
    /// An array.
    Array,
    /// A group.
    Group,
}

/// Returns the kind of node that a `zarr.json` defines. Nothing else of the document is checked.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the document is not JSON or has no valid
/// `node_type`.
pub fn node_type(document: &[u8]) -> Result<NodeType> {
    match member(document, "node_type")? {
        Some("\"array\"") => Ok(NodeType::Array),
        Some("\"group\"") => Ok(NodeType::Group),
        Some(other) => Err(Error::damaged(format!(
            "node_type is {other:.20}, neither \"array\" nor \"group\""
        ))),
        None => Err(Error::damaged("node_type is missing")),
    }
}

/// Returns whether a `zarr.json` defines a group, judged by its first and its last bytes. Writers
/// put `node_type` before the consolidated metadata, or last.
pub fn is_group_at_ends(first: &[u8], last: &[u8]) -> bool {
    let first = first.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let mut members = MemberTexts::of(first.as_bytes())
        .into_iter()
        .flatten()
        .map_while(Result::ok);
    members.any(|(name, value)| name == "node_type" && value == "\"group\"")
        || ends_in_group(last).is_some()
}

/// Returns the text before the member `node_type` at the end of a document of a group.
fn ends_in_group(text: &[u8]) -> Option<&[u8]> {
    let mut rest = text;
    for end in [&b"}"[..], b"\"group\"", b":", b"\"node_type\"", b","] {
        rest = rest.trim_ascii_end().strip_suffix(end)?;
    }
    Some(rest)
}

/// Checks that `document` is the `zarr.json` of a group. The consolidated metadata in it is not
/// checked.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it is not,
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for another format or a field that
/// must be understood.
pub fn check_group_v3(document: &[u8]) -> Result<()> {
    check_format(document)?;
    if node_type(document)? != NodeType::Group {
        return Err(Error::damaged("node_type is not \"group\""));
    }
    for entry in MemberTexts::of(document)? {
        let (name, value) = entry?;
        match name.as_ref() {
            "zarr_format" | "node_type" | CONSOLIDATED => {}
            "attributes" if value == "null" || value.starts_with('{') => {}
            "attributes" => return Err(Error::damaged("attributes is not an object")),
            _ if value.starts_with('{')
                && member(value.as_bytes(), "must_understand")? == Some("false") => {}
            name => {
                return Err(Error::unsupported(format!(
                    "field {name:?} is unknown, and must be understood"
                )));
            }
        }
    }
    json::check(document)
}

/// Checks that `zarr_format` is 3.
///
/// # Errors
///
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for the format of a draft or of a
/// later version, [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) otherwise.
pub fn check_format(document: &[u8]) -> Result<()> {
    match member(document, "zarr_format")? {
        Some("3") => Ok(()),
        Some(url) if url.starts_with("\"http") => Err(Error::unsupported(format!(
            "zarr_format is {url:.60}, a draft of Zarr v3"
        ))),
        Some(number) if number.parse::<u64>().is_ok_and(|number| number > 3) => {
            Err(Error::unsupported(format!(
                "zarr_format is {number:.20}: this version reads 1 to 3"
            )))
        }
        Some(other) => Err(Error::damaged(format!("zarr_format is {other:.20}, not 3"))),
        None => Err(Error::damaged("zarr_format is missing")),
    }
}

/// Returns the `zarr.json` of a group without its consolidated metadata. A document that has none
/// stays unchanged.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it is not a JSON object.
pub fn without_consolidated(document: &[u8]) -> Result<Vec<u8>> {
    match member(document, CONSOLIDATED)? {
        None => Ok(document.to_vec()),
        Some(_) => json::with_member(document, CONSOLIDATED, None),
    }
}

/// Returns the text of a member of a JSON object, the last one of this name.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if `document` is not a JSON object.
pub fn member<'a>(document: &'a [u8], name: &str) -> Result<Option<&'a str>> {
    let mut found = None;
    for member in MemberTexts::of(document)? {
        let (other, value) = member?;
        if other == name {
            found = Some(value.trim_end());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_base::error::Kind;

    #[test]
    fn the_node_type_is_read_from_the_text() {
        for (document, expected) in [
            (
                r#"{"zarr_format":3,"node_type":"array"}"#,
                Some(NodeType::Array),
            ),
            ("{ \"node_type\" : \"group\" }", Some(NodeType::Group)),
            (
                r#"{"attributes":{"node_type":"array"},"node_type":"group","x":[1,{"a":"}"}]}"#,
                Some(NodeType::Group),
            ),
            (r#"{"node_type":"x"}"#, None),
            (r#"{"node_type":3}"#, None),
            ("{}", None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(node_type(document.as_bytes()).ok(), expected, "{document}");
        }
    }

    #[test]
    fn groups_are_recognized_by_the_ends_of_their_documents() {
        let is_group =
            |first: &str, last: &str| is_group_at_ends(first.as_bytes(), last.as_bytes());
        assert!(is_group(
            r#"{"zarr_format":3,"node_type":"group","consolidated_metadata":{"a"#,
            "}}"
        ));
        assert!(is_group(
            r#"{"zarr_format":3,"consolidated_metadata":{"a"#,
            "},\n \"node_type\": \"group\"\n}\n"
        ));
        assert!(!is_group(
            r#"{"zarr_format":3,"attributes":{"node_type":"group","a"#,
            r#""node_type":"array"}"#
        ));
        assert!(!is_group(
            r#"{"node_type":"gro"#,
            r#""x":{"node_type":"group"}}"#
        ));
        assert!(!is_group("\0\0", "\0\0") && !is_group("", ""));
    }

    #[test]
    fn groups_are_checked() {
        let group = |rest: &str| {
            check_group_v3(format!(r#"{{"zarr_format":3,"node_type":"group"{rest}}}"#).as_bytes())
        };
        for rest in [
            "",
            r#","attributes":{}"#,
            r#","attributes":null"#,
            r#","x":{"must_understand":false}"#,
        ] {
            assert_eq!(group(rest), Ok(()), "{rest}");
        }
        assert_eq!(
            group(r#","consolidated_metadata":{"kind":"inline"}"#),
            Ok(())
        );
        for (rest, kind) in [
            (r#","attributes":[]"#, Kind::Damaged),
            (r#","x":1"#, Kind::Unsupported),
            (r#","x":{"must_understand":true}"#, Kind::Unsupported),
            (r#","attributes":{"a":tru}"#, Kind::Damaged),
        ] {
            assert_eq!(group(rest).unwrap_err().kind(), kind, "{rest}");
        }
        for (format, kind) in [
            ("2", Kind::Damaged),
            ("4", Kind::Unsupported),
            ("\"3\"", Kind::Damaged),
            ("\"https://a\"", Kind::Unsupported),
        ] {
            let document = format!(r#"{{"zarr_format":{format},"node_type":"group"}}"#);
            assert_eq!(
                check_group_v3(document.as_bytes()).unwrap_err().kind(),
                kind,
                "{format}"
            );
        }
        assert_eq!(check_group_v3(GROUP_DOCUMENT_V3.as_bytes()), Ok(()));
    }

    #[test]
    fn consolidated_metadata_is_removed() {
        let plain = br#"{"zarr_format": 3,  "node_type": "group"}"#;
        assert_eq!(without_consolidated(plain).unwrap(), plain);
        let full =
            br#"{"zarr_format":3,"consolidated_metadata":{"metadata":{"a":{}}},"node_type":"group","a\"b":[1, 2]}"#;
        let shown = without_consolidated(full).unwrap();
        assert_eq!(
            String::from_utf8(shown).unwrap(),
            r#"{"zarr_format":3,"node_type":"group","a\"b":[1, 2]}"#
        );
    }
}
