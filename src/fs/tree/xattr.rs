//! Extended attributes: metadata and user attributes of arrays and their views as JSON, the key of
//! a chunk in the store, and the snapshot of a repository.

use super::{Audience, Node, Tree, View};
use chrono::{DateTime, SecondsFormat, Utc};
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Map, Value};
use zarrfs_base::memory::{Grant, lock};
use zarrfs_format::metadata::ZARR_JSON;
use zarrfs_store::{Key, SnapshotRef, Version};

/// Linux's limits in bytes: of a name, of a value, of a list of names.
const MAX_NAME: usize = 255;
const MAX_VALUE: usize = 64 << 10;
const MAX_LIST: usize = 64 << 10;

const ATTRIBUTE: &str = "user.zarr.attrs.";
const DIMENSION_NAMES: &str = "user.zarr.dimension_names";

/// The user attributes of a group or array, each as JSON.
pub(super) struct AttributeTexts {
    /// The versions of the documents before they were read.
    versions: Vec<Version>,
    /// Strings, except those beyond the system's limits.
    texts: Map<String, Value>,
    _memory: Grant,
}

/// Returns the extended attributes of `node`, except those that exceed the system's limits, and
/// those from a document that not all of `audience` may read. With `wanted` it returns the one of
/// that name, and does not format the others.
pub fn of(
    tree: &Tree,
    node: &Node,
    audience: Audience,
    wanted: Option<&str>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let mut list: Vec<(String, Vec<u8>)> = Vec::new();
    if let Some(key) = node.described() {
        if let Ok(array) = tree.array(key)
            && tree.may_tell(audience, node, &key.join(array.metadata_name()))?
        {
            for (name, value) in array.metadata().description() {
                push_json(name, &value, wanted, &mut list);
            }
        }
        if may_be_attribute(wanted)
            && tree.may_tell(audience, node, &tree.hierarchy().attributes_key(key))?
        {
            push_attributes(&texts(tree, key)?.texts, &|_| true, wanted, &mut list);
        }
    }
    if let Some(view) = node.view() {
        of_view(tree, node, view, audience, wanted, &mut list)?;
    }
    if let Some(key) = node.directory()
        && let Some(snapshots) = tree.hierarchy().store().capabilities().snapshots
        && let Some((read, commit)) = snapshots.commit_at(key)?
        && tree.may_tell(audience, node, &key.join(ZARR_JSON))?
    {
        let branch = match read {
            SnapshotRef::Branch(name) => Some(("branch", name)),
            _ => None,
        };
        let time = DateTime::<Utc>::from(commit.time).to_rfc3339_opts(SecondsFormat::Micros, true);
        let facts = [
            ("snapshot", commit.id.to_string()),
            ("message", commit.message),
            ("time", time),
        ];
        let facts = facts.into_iter().chain(branch);
        list.extend(facts.map(|(name, value)| (format!("user.icechunk.{name}"), value.into())));
    }
    if let Some((key, name)) = node.chunk() {
        let (array, chunk) = tree.chunk(key, name)?;
        if let Some(stat) = array.stat_chunk(chunk)? {
            list.push((
                "user.zarrfs.key".into(),
                array.stored_key(chunk).as_str().into(),
            ));
            list.push((
                "user.zarrfs.stored_size".into(),
                stat.size.to_string().into(),
            ));
            // a read of the chunk reports damage
            if let Ok(Some(offset)) = array.offset_in_object(chunk) {
                list.push(("user.zarrfs.offset".into(), offset.to_string().into()));
            }
        }
    }
    let mut bytes = 0;
    list.retain(|(name, value)| {
        let fits = name.len() <= MAX_NAME && !name.contains('\0') && value.len() <= MAX_VALUE;
        bytes += if fits { name.len() + 1 } else { 0 };
        fits && bytes <= MAX_LIST && wanted.is_none_or(|wanted| wanted == name)
    });
    Ok(list)
}

/// Adds the properties of a view: its shape, dtype, fill value and dimension names, where a slice
/// begins in the flat bytes of its array, and attributes of the array.
fn of_view(
    tree: &Tree,
    node: &Node,
    (key, view): (&Key, &View),
    audience: Audience,
    wanted: Option<&str>,
    list: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    let (array, shown) = tree.viewed(key, view)?;
    let hierarchy = tree.hierarchy();
    let documents = [
        key.join(array.metadata_name()),
        hierarchy.attributes_key(key),
    ];
    for document in documents {
        if !tree.may_tell(audience, node, &document)? {
            return Ok(());
        }
    }
    for (name, value) in shown.metadata.description() {
        if ["shape", "dtype", "data_type"].contains(&name)
            || name == "fill_value" && !value.is_null()
        {
            push_json(name, &value, wanted, list);
        }
    }
    if wanted.is_none_or(|wanted| wanted == DIMENSION_NAMES) {
        let attributes = hierarchy.attributes(key)?;
        let mut sources = Vec::new();
        let nodes = tree.exported();
        let array = nodes.array(array);
        let names = zarrfs_export::axis_names(&nodes, &array, &attributes, &mut sources);
        let names = names
            .get(names.len().saturating_sub(shown.metadata.shape.len())..)
            .unwrap_or_default();
        // the names of an image's dimensions come from its group, which the audience may be unable
        // to read
        if sources.is_empty() && names.iter().any(Option::is_some) {
            let names = names.iter().cloned().map(Value::from).collect();
            push_json("dimension_names", &names, wanted, list);
        }
    }
    if let View::Slices(_) = view {
        list.push((
            "user.zarrfs.flat_offset".into(),
            shown.range.start.to_string().into(),
        ));
    }
    if may_be_attribute(wanted) {
        let is_kept = |name: &str| shown.keeps_attribute(name);
        push_attributes(&texts(tree, key)?.texts, &is_kept, wanted, list);
    }
    Ok(())
}

fn push_json(name: &str, value: &Value, wanted: Option<&str>, list: &mut Vec<(String, Vec<u8>)>) {
    let name = format!("user.zarr.{name}");
    if wanted.is_none_or(|wanted| wanted == name) {
        list.push((name, json::write(value).into_bytes()));
    }
}

/// Returns whether the extended attribute `wanted` may come from a user attribute.
fn may_be_attribute(wanted: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| wanted == DIMENSION_NAMES || wanted.starts_with(ATTRIBUTE))
}

/// Adds the user attributes that are kept; the dimension names of xarray have an extended attribute
/// of their own.
fn push_attributes(
    texts: &Map<String, Value>,
    is_kept: &dyn Fn(&str) -> bool,
    wanted: Option<&str>,
    list: &mut Vec<(String, Vec<u8>)>,
) {
    let mut push = |name: &str, text: &Value| {
        let Some(text) = text.as_str().filter(|_| is_kept(name)) else {
            return;
        };
        // a v3 document has dimension names of its own
        if name == "_ARRAY_DIMENSIONS" && !list.iter().any(|(other, _)| other == DIMENSION_NAMES) {
            list.push((DIMENSION_NAMES.into(), text.into()));
        }
        list.push((format!("{ATTRIBUTE}{name}"), text.into()));
    };
    let Some(wanted) = wanted else {
        for (name, text) in texts {
            push(name, text);
        }
        return;
    };
    let name = wanted
        .strip_prefix(ATTRIBUTE)
        .unwrap_or("_ARRAY_DIMENSIONS");
    if let Some(text) = texts.get(name) {
        push(name, text);
    }
}

/// Returns the attributes of the group or array at `key`. A program asks for one after the other,
/// so they are kept for as long as their documents have the same versions.
fn texts(tree: &Tree, key: &Key) -> Result<Arc<AttributeTexts>> {
    // reading the attributes decides below what an unreadable document means
    let stats = tree.hierarchy().document_stats(key).unwrap_or_default();
    let versions: Vec<Version> = stats.into_iter().map(|stat| stat.version).collect();
    if let Some(known) = lock(&tree.known_headers.attributes).get(key)
        && known.versions == versions
    {
        return Ok(known.clone());
    }
    let attributes = tree.hierarchy().attributes(key)?;
    let mut texts = Map::new();
    let mut memory = Grant::default();
    let mut room = MAX_LIST;
    for (name, value) in &attributes {
        // a value beyond the system's limits is not even formatted
        let Some(text) = json::write_within(value, MAX_VALUE) else {
            continue;
        };
        let Some(left) = room.checked_sub(name.len()) else {
            break;
        };
        room = left;
        memory.grow(json::member_memory(name.len() + text.len()))?;
        texts.insert(name.clone(), text.into());
    }
    drop(attributes);
    let made = Arc::new(AttributeTexts {
        versions,
        texts,
        _memory: memory,
    });
    // unreadable attributes are shown as none, and may become readable without a new version
    if !made.texts.is_empty() && !made.versions.is_empty() {
        lock(&tree.known_headers.attributes).put(key.clone(), made.clone());
    }
    Ok(made)
}
