//! What differs between the documents of Zarr v2 and of v3. In v2 each purpose has a document of
//! its own; in v3 a node has one, `zarr.json`, which also holds its attributes and the consolidated
//! metadata of a group. Changes have one path for both formats, which asks [`DocumentFormat`].

use super::MetadataFile;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Object, Value};
use zarrfs_format::metadata::v3::node::{self, CONSOLIDATED, GROUP_DOCUMENT_V3};
use zarrfs_format::metadata::{
    ArrayMetadata, GROUP_DOCUMENT, Separator, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, check_group,
};
use zarrfs_store::Key;

/// The format of the documents of groups and arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentFormat {
    /// Zarr v2.
    V2,
    /// Zarr v3.
    V3,
}

impl DocumentFormat {
    /// Both formats. `zarr.json` takes precedence over documents of v2 beside it.
    pub const ALL: [DocumentFormat; 2] = [DocumentFormat::V3, DocumentFormat::V2];

    /// Returns the number of the format.
    pub fn number(self) -> u8 {
        match self {
            DocumentFormat::V2 => 2,
            DocumentFormat::V3 => 3,
        }
    }

    /// Returns the document that defines an array.
    pub fn array_file(self) -> MetadataFile {
        match self {
            DocumentFormat::V2 => MetadataFile::Array,
            DocumentFormat::V3 => MetadataFile::Zarr,
        }
    }

    /// Returns the document that defines a group.
    pub fn group_file(self) -> MetadataFile {
        match self {
            DocumentFormat::V2 => MetadataFile::Group,
            DocumentFormat::V3 => MetadataFile::Zarr,
        }
    }

    /// Returns the document that holds the attributes.
    pub(super) fn attributes_file(self) -> MetadataFile {
        match self {
            DocumentFormat::V2 => MetadataFile::Attributes,
            DocumentFormat::V3 => MetadataFile::Zarr,
        }
    }

    /// Returns the document that holds the consolidated metadata of a group.
    pub fn consolidated_file(self) -> MetadataFile {
        match self {
            DocumentFormat::V2 => MetadataFile::Consolidated,
            DocumentFormat::V3 => MetadataFile::Zarr,
        }
    }

    /// Returns the document of a new group.
    pub fn group_document(self) -> &'static str {
        match self {
            DocumentFormat::V2 => GROUP_DOCUMENT,
            DocumentFormat::V3 => GROUP_DOCUMENT_V3,
        }
    }

    /// Checks the document of a group.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) or
    /// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if it is not valid.
    pub fn check_group(self, text: &[u8]) -> Result<()> {
        match self {
            DocumentFormat::V2 => check_group(text),
            DocumentFormat::V3 => node::check_group_v3(text),
        }
    }

    /// Parses the document of an array.
    pub(super) fn parse_array(self, text: &[u8]) -> Result<ArrayMetadata> {
        match self {
            DocumentFormat::V2 => ArrayMetadata::parse(text),
            DocumentFormat::V3 => ArrayMetadata::parse_v3(text),
        }
    }

    /// Returns the attributes in the text of the document that holds them.
    pub(super) fn attributes(self, text: &[u8]) -> Result<Object> {
        match self {
            DocumentFormat::V2 => json::parse_object(text),
            DocumentFormat::V3 => attributes_member(text)?.map_or(Ok(Object::default()), |text| {
                json::parse_object(text.as_bytes())
            }),
        }
    }

    /// Returns the text of the document that holds the attributes, with other ones.
    pub(super) fn with_attributes(self, text: &[u8], attributes: Object) -> Result<Vec<u8>> {
        let (map, _memory) = attributes.into_parts();
        let attributes = Value::Object(map);
        match self {
            DocumentFormat::V2 => Ok(json::write_pretty(&attributes).into_bytes()),
            DocumentFormat::V3 => json::with_member(
                text,
                "attributes",
                Some(json::write(&attributes).as_bytes()),
            ),
        }
    }

    /// Returns the names of the documents of which consolidated metadata has entries.
    pub(super) fn consolidated_names(self) -> &'static [&'static str] {
        match self {
            DocumentFormat::V2 => &[ZARRAY, ZATTRS, ZGROUP],
            DocumentFormat::V3 => &[ZARR_JSON],
        }
    }

    /// Returns the text of the entries in the document with the consolidated metadata of a group:
    /// an object of names and documents. `None` if a `zarr.json` has none of the kind `inline`.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the document is not JSON, or a
    /// `.zmetadata` holds no metadata.
    pub(super) fn entries(self, text: &[u8]) -> Result<Option<&str>> {
        let is_object = |value: &&str| value.starts_with('{');
        match self {
            DocumentFormat::V2 => {
                json::check(text)?;
                node::member(text, "metadata")?
                    .filter(is_object)
                    .map(Some)
                    .ok_or_else(|| Error::damaged("holds no metadata object"))
            }
            DocumentFormat::V3 => {
                let Some(inline) = node::member(text, CONSOLIDATED)?.filter(is_object) else {
                    return Ok(None);
                };
                json::check(text)?;
                let inline = inline.as_bytes();
                match node::member(inline, "kind")? {
                    None | Some("\"inline\"") => {
                        Ok(node::member(inline, "metadata")?.filter(is_object))
                    }
                    Some(_) => Ok(None),
                }
            }
        }
    }

    /// Returns the key, relative to the group, of the document in the entry of this name; `None` if
    /// the name is no key.
    pub(super) fn entry_document(self, name: &str) -> Option<Key> {
        let key = Key::normalize(name).ok()?;
        match self {
            DocumentFormat::V2 => Some(key),
            DocumentFormat::V3 => (!key.is_root()).then(|| key.join(ZARR_JSON)),
        }
    }

    /// Returns the name of the entry of a document, whose key is relative to the group; `None` for
    /// the `zarr.json` of the group, which holds the entries.
    pub(super) fn entry_name(self, document: &Key) -> Option<String> {
        let name = match self {
            DocumentFormat::V2 => document.clone(),
            DocumentFormat::V3 => document.parent(),
        };
        (!name.is_root()).then(|| name.as_str().to_string())
    }

    /// Returns whether an entry says what the stored document `name` does. **What other writers
    /// state in their own words is not stale**: zarr-python 3 states the defaults of arrays, and
    /// gives groups below the root an empty member for consolidated metadata.
    pub(super) fn is_same_entry(self, name: &str, entry: &[u8], text: &[u8]) -> Result<bool> {
        if self == DocumentFormat::V3 {
            return is_same_node(&node::without_consolidated(entry)?, text);
        }
        if is_same_json(entry, text)? {
            return Ok(true);
        }
        if name.ends_with(ZGROUP) {
            return is_same_json(
                &node::without_consolidated(entry)?,
                &node::without_consolidated(text)?,
            );
        }
        let (Ok(entry), Ok(text)) = (ArrayMetadata::parse(entry), ArrayMetadata::parse(text))
        else {
            return Ok(false);
        };
        let is_same = entry.shape == text.shape
            && entry.separator.unwrap_or(Separator::Dot)
                == text.separator.unwrap_or(Separator::Dot)
            && entry.encodes_like(&text);
        Ok(name.ends_with(ZARRAY) && is_same)
    }
}

/// Returns the text of the attributes in a `zarr.json`; `None` if it has none.
pub(super) fn attributes_member(text: &[u8]) -> Result<Option<&str>> {
    Ok(node::member(text, "attributes")?.filter(|text| *text != "null"))
}

/// Returns whether two `zarr.json` describe the same node. A writer of consolidated metadata states
/// defaults that the stored document leaves out.
pub(super) fn is_same_node(a: &[u8], b: &[u8]) -> Result<bool> {
    if is_same_json(a, b)? {
        return Ok(true);
    }
    let attributes_a = attributes_member(a)?.unwrap_or("{}");
    let attributes_b = attributes_member(b)?.unwrap_or("{}");
    if !is_same_json(attributes_a.as_bytes(), attributes_b.as_bytes())? {
        return Ok(false);
    }
    let (Ok(array_a), Ok(array_b)) = (ArrayMetadata::parse_v3(a), ArrayMetadata::parse_v3(b))
    else {
        return Ok(node::check_group_v3(a).is_ok() && node::check_group_v3(b).is_ok());
    };
    let names_a = array_a.v3.as_ref().map(|v3| &v3.dimension_names);
    let names_b = array_b.v3.as_ref().map(|v3| &v3.dimension_names);
    Ok(array_a.shape == array_b.shape
        && array_a.separator == array_b.separator
        && array_a.encodes_like(&array_b)
        && names_a == names_b)
}

/// Returns whether two documents are equal as JSON.
pub(super) fn is_same_json(a: &[u8], b: &[u8]) -> Result<bool> {
    if a == b {
        return Ok(true);
    }
    Ok(is_equal(&json::parse(a)?, &json::parse(b)?))
}

/// Returns whether two JSON values are equal, regardless of how programs spell their numbers.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            let are_integers = (a.is_i64() || a.is_u64()) && (b.is_i64() || b.is_u64());
            x == y || !are_integers && json::float(a) == json::float(b)
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| is_equal(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len()
                && x.iter()
                    .all(|(name, x)| y.get(name).is_some_and(|y| is_equal(x, y)))
        }
        _ => a == b,
    }
}
