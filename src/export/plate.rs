//! `plate.txt`: the fields of view of a plate of OME-NGFF, as the attributes `plate` of a group and
//! `well` of the groups below it state them, a line each. This module knows no other format.

use super::Composite;
use super::describe::ome_attribute;
use crate::array::hierarchy::{Hierarchy, StoredNode};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value};
use zarrfs_base::memory;
use zarrfs_store::Key;

/// Maximum number of wells: plates have at most 1,536.
const MAX_WELLS: usize = 1 << 14;

/// Maximum number of wells that are named as left out.
const MAX_REASONS: usize = 100;

/// The first line of the file, with the names of the columns.
const COLUMNS: &str = "row\tcolumn\tfield\tacquisition\timage\n";

/// Returns whether a group with these attributes is a plate.
pub fn is_plate(attributes: &Map<String, Value>) -> bool {
    ome_attribute(attributes, "plate").is_some_and(Value::is_object)
}

/// Makes the file of the plate at `key`. Columns are separated by tabs; the last one is the path of
/// the image, whose arrays are its resolutions, below the plate. What is not known is empty.
///
/// # Errors
///
/// [`zarrfs_base::error::Kind::Unsupported`] if the group is no plate; the store fails to return
/// the attributes of a well; no memory.
pub fn file(hierarchy: &Hierarchy, key: &Key) -> Result<Composite> {
    let attributes = hierarchy.attributes(key)?;
    let no_plate = || Error::unsupported("the group is no plate of OME-NGFF").context(key);
    let plate = ome_attribute(&attributes, "plate").ok_or_else(no_plate)?;
    let [rows, columns] = ["rows", "columns"].map(|name| names(plate, name));
    let wells = plate.get("wells").and_then(Value::as_array);
    let mut file = Composite::default();
    file.sources.push(key.clone());
    let mut memory = memory::take(COLUMNS.len())?;
    let mut text = COLUMNS.to_string();
    let wells = wells.map_or(&[][..], Vec::as_slice);
    if wells.len() > MAX_WELLS {
        file.left_out.push(format!("all but {MAX_WELLS} wells"));
    }
    for well in wells.iter().take(MAX_WELLS) {
        let path = well.get("path").and_then(json::text).unwrap_or_default();
        let path = Key::normalize(path).ok().filter(|path| !path.is_root());
        let found = match &path {
            Some(path) => hierarchy.find(&key.join_key(path))?,
            None => None,
        };
        let (Some(path), Some(StoredNode::Group)) = (path, found) else {
            if file.left_out.len() < MAX_REASONS {
                file.left_out
                    .push(format!("{}: no such group", json::write(well)));
            }
            continue;
        };
        let names = path.as_str();
        let row = named(well, "rowIndex", &rows, names.split('/').next());
        let column = named(well, "columnIndex", &columns, names.split('/').nth(1));
        let well_key = key.join_key(&path);
        let of_well = hierarchy.attributes(&well_key)?;
        file.sources.push(well_key);
        let images =
            ome_attribute(&of_well, "well").and_then(|well| well.get("images")?.as_array());
        for (field, image) in images.into_iter().flatten().enumerate() {
            let acquisition = image
                .get("acquisition")
                .map(json::write)
                .unwrap_or_default();
            let image = image.get("path").and_then(json::text).unwrap_or_default();
            let image = format!("{names}/{image}");
            let words = [&row, &column, &field.to_string(), &acquisition, &image];
            let words = words.map(|word| word.replace(char::is_control, " "));
            let line = words.join("\t") + "\n";
            memory.grow(line.len())?;
            text.push_str(&line);
        }
    }
    file.push_bytes(text.into_bytes());
    Ok(file)
}

/// Returns the names of the rows or columns.
fn names<'a>(plate: &'a Value, of: &str) -> Vec<&'a str> {
    let list = plate.get(of).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .map(|each| each.get("name").and_then(json::text).unwrap_or_default())
        .collect()
}

/// Returns the name of a well's row or column: by its index, which drafts lack, or else from its
/// path.
fn named(well: &Value, index: &str, names: &[&str], of_path: Option<&str>) -> String {
    let index = well.get(index).and_then(Value::as_u64);
    let name = index.and_then(|index| names.get(usize::try_from(index).ok()?).copied());
    name.or(of_path).unwrap_or_default().to_string()
}
