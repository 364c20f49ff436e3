//! Extended attributes: array metadata and user attributes as JSON, and the key of a chunk in the store.

use super::{Audience, Node, Tree};
use crate::error::Result;
use crate::store::Key;
use crate::util::json;

/// Linux's limits in bytes: of a name, of a value, of a list of names.
const MAX_NAME: usize = 255;
const MAX_VALUE: usize = 64 << 10;
const MAX_LIST: usize = 64 << 10;

const DIMENSION_NAMES: &str = "user.zarr.dimension_names";

/// Returns the extended attributes of `node`, except those that exceed the system's limits, and those from a document
/// that not all of `audience` may read.
pub fn of(tree: &Tree, node: &Node, audience: Audience) -> Result<Vec<(String, Vec<u8>)>> {
    let mut list: Vec<(String, Vec<u8>)> = Vec::new();
    match node {
        Node::Directory(key) | Node::Flat(key) | Node::Header(key, _) | Node::Dataset(key) | Node::Chunk(key, _) => {
            if let Ok(array) = tree.array(key)
                && tree.may_tell(audience, node, &key.join(array.metadata_name()))?
            {
                let describe = |(name, value)| (format!("user.zarr.{name}"), json::write(&value).into_bytes());
                list.extend(array.metadata().description().into_iter().map(describe));
            }
            if tree.may_tell(audience, node, &tree.hierarchy().attributes_key(key))? {
                attributes(tree, key, &mut list)?;
            }
        }
        _ => {}
    }
    if let Node::Chunk(key, name) = node {
        let (array, chunk) = tree.chunk(key, name)?;
        if let Some(stat) = array.stat_chunk(chunk)? {
            list.push(("user.zarrfs.key".into(), array.extent(chunk).key.as_str().into()));
            list.push(("user.zarrfs.stored_size".into(), stat.size.to_string().into()));
            // the read of a damaged shard reports the error
            if let Ok(Some(offset)) = array.offset_in_object(chunk) {
                list.push(("user.zarrfs.offset".into(), offset.to_string().into()));
            }
        }
    }
    let mut bytes = 0;
    list.retain(|(name, value)| {
        let fits = name.len() <= MAX_NAME && !name.contains('\0') && value.len() <= MAX_VALUE;
        bytes += if fits { name.len() + 1 } else { 0 };
        fits && bytes <= MAX_LIST
    });
    Ok(list)
}

/// Adds the user attributes; the dimension names of xarray have an extended attribute of their own.
fn attributes(tree: &Tree, key: &Key, list: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let attributes = tree.hierarchy().attributes(key)?;
    let mut room = MAX_LIST;
    for (name, value) in &attributes {
        // a value beyond the system's limits is not even formatted
        let Some(text) = json::write_within(value, MAX_VALUE).map(String::into_bytes) else { continue };
        let Some(left) = room.checked_sub(name.len()) else { break };
        room = left;
        // a v3 document has dimension names of its own
        if name == "_ARRAY_DIMENSIONS" && !list.iter().any(|(other, _)| other == DIMENSION_NAMES) {
            list.push((DIMENSION_NAMES.into(), text.clone()));
        }
        list.push((format!("user.zarr.attrs.{name}"), text));
    }
    Ok(())
}
