//! The names of categories: what the integers of an array stand for. CF states them in attributes
//! of the array (CF conventions, 3.5, "Flags"). AnnData keeps them in an array `categories` beside
//! the array `codes`, which counts them from 0 and has -1 where there is none ("On-disk format",
//! "Categorical arrays").

use super::super::described::{Category, MetadataNumber};
use super::attributes::{self, is_shown};
use super::strings;
use crate::reader::{ArrayNode, HierarchyReader};
use std::collections::HashSet;
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_base::key::Key;
use zarrfs_base::memory::{self, Grant};
use zarrfs_format::dtype::DTypeKind;

/// Maximum number of categories that are named: a list of more is no help to a reader.
const MAX_CATEGORIES: u64 = 1024;

/// Maximum size in bytes of the names in an attribute, which HDF5 limits.
const MAX_MEANINGS: usize = 32 << 10;

/// Memory of a category in bytes, without its name.
const CATEGORY: usize = 64;

/// The attributes of CF's flags.
const VALUES: &str = "flag_values";
const MEANINGS: &str = "flag_meanings";

/// The categories of an array.
#[derive(Default)]
pub struct Categories {
    /// The categories; none if the array has none that are named.
    pub list: Vec<Category>,
    /// The number of items without a category, if categories say so.
    pub missing: Option<MetadataNumber>,
    /// The other groups and arrays from which they were read.
    pub sources: Vec<Key>,
    /// Grant for their memory.
    pub memory: Grant,
}

impl Categories {
    /// Finds the categories of `array`, which has these `attributes`. What cannot be read is left
    /// out.
    pub fn find(
        hierarchy: &dyn HierarchyReader,
        array: &ArrayNode,
        attributes: &Map<String, Value>,
    ) -> Self {
        Self::read(hierarchy, array, attributes).unwrap_or_else(|e| {
            log::debug!("{}: described without its categories: {e}", &array.key);
            Categories::default()
        })
    }

    fn read(
        hierarchy: &dyn HierarchyReader,
        array: &ArrayNode,
        attributes: &Map<String, Value>,
    ) -> Result<Self> {
        let kind = array.metadata.dtype.kind();
        if !matches!(kind, DTypeKind::Int | DTypeKind::UInt) {
            return Ok(Categories::default());
        }
        if let Some(flags) = of_flags(attributes)? {
            return Ok(flags);
        }
        of_codes(hierarchy, array)
    }
}

/// Returns the categories that CF's attributes state.
fn of_flags(attributes: &Map<String, Value>) -> Result<Option<Categories>> {
    let Some(values) = attributes.get(VALUES).map(attributes::items) else {
        return Ok(None);
    };
    let Some(meanings) = attributes.get(MEANINGS).and_then(json::text) else {
        return Ok(None);
    };
    if values.len() as u64 > MAX_CATEGORIES || meanings.split_whitespace().count() != values.len() {
        return Ok(None);
    }
    let memory = memory::take(values.len() * CATEGORY + meanings.len())?;
    let named = values.iter().zip(meanings.split_whitespace());
    let list: Option<Vec<Category>> = named
        .map(|(value, name)| {
            Some(Category {
                value: attributes::integer(value)?,
                name: name.to_string(),
            })
        })
        .collect();
    Ok(list.map(|list| Categories {
        list,
        memory,
        ..Categories::default()
    }))
}

/// Returns the categories of AnnData's codes; none for another array.
fn of_codes(hierarchy: &dyn HierarchyReader, array: &ArrayNode) -> Result<Categories> {
    let none = Categories::default();
    let key = &array.key;
    if key.name() != "codes" {
        return Ok(none);
    }
    let group = key.parent();
    let kind = hierarchy.attributes(&group)?;
    if kind.get("encoding-type").and_then(json::text) != Some("categorical") {
        return Ok(none);
    }
    let Some(categories) = hierarchy.find_array(&group.join("categories"))? else {
        return Ok(none);
    };
    let (names, mut memory) = strings::texts(&categories, MAX_CATEGORIES)?;
    memory.grow(names.len() * CATEGORY)?;
    let is_signed = *array.metadata.dtype.kind() == DTypeKind::Int;
    let list = (0..).zip(names);
    Ok(Categories {
        list: list.map(|(value, name)| Category { value, name }).collect(),
        missing: is_signed.then_some(MetadataNumber::Int(-1)),
        sources: vec![group, categories.key.clone()],
        memory,
    })
}

/// Adds CF's flags to the `attributes` of an array whose categories are named elsewhere, and what
/// they were read from to `sources`. A flag has a word for its name, so that blanks become
/// underscores; names that are then empty or equal make no flags. Returns the grant for the
/// attributes.
pub fn add_flags(
    hierarchy: &dyn HierarchyReader,
    array: &ArrayNode,
    attributes: &mut Object,
    sources: &mut Vec<Key>,
) -> Grant {
    if attributes.contains_key(VALUES) || attributes.contains_key(MEANINGS) {
        return Grant::default();
    }
    let categories = Categories::find(hierarchy, array, attributes);
    let words: Vec<String> = categories
        .list
        .iter()
        .map(|category| word(&category.name))
        .collect();
    let different: HashSet<&String> = words.iter().filter(|word| is_shown(word)).collect();
    let meanings = words.join(" ");
    if words.is_empty() || different.len() < words.len() || meanings.len() > MAX_MEANINGS {
        return Grant::default();
    }
    let values: Vec<Value> = (0..words.len()).map(Value::from).collect();
    let map = attributes.map_mut();
    map.insert(VALUES.to_string(), values.into());
    map.insert(MEANINGS.to_string(), meanings.into());
    sources.extend(categories.sources);
    categories.memory
}

/// Returns a name with underscores in place of blanks.
fn word(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join("_")
}
