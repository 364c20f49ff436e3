//! A group as one netCDF file of the classic format: a header made from metadata, then the flat
//! bytes of the group's arrays. This module decides names, shared dimensions and types of
//! attributes. It does not know how flat bytes are read.

use super::Composite;
use crate::group::names::UniqueNames;
use crate::group::types::Type;
use crate::group::{ALIGNMENT, READER_BLOCK, attributes};
use crate::reader::HierarchyReader;
pub use classic::{ClassicDimension, ClassicHeader, ClassicVersion, Variable};
use dimensions::Dimensions;
pub use edit::{HeaderEdit, Moved};
use mapping::Mappings;
use members::GroupArrays;
pub use parse::{ParseFailure, parse};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{Map, Value};
use zarrfs_base::key::Key;
use zarrfs_base::memory;

mod classic;
mod dimensions;
mod edit;
mod mapping;
mod members;
mod parse;
#[cfg(test)]
mod tests;

/// Padding in bytes that a file may have even if its values are smaller. It gives each variable its
/// own blocks, so that damage affects no other variable.
const MIN_PADDING: u64 = 16 << 20;

/// Number of free bytes after the header. If a header outgrows its space, netcdf-c moves the data
/// before it writes the header, which the mount then refuses. With free space, the mount refuses
/// before any data move.
const RESERVE: usize = 64 << 10;

/// Maximum length of a dimension in CDF-2: a "non-negative INT".
const MAX_DIMENSION: u64 = i32::MAX as u64;

/// Maximum size of a header in bytes: far above that of real headers.
const MAX_HEADER: usize = 32 << 20;

/// Maximum number of words read from an attribute that names grid mappings: `crs: x y other: lat
/// lon`.
const MAX_MAPPINGS: usize = 64;

/// How groups are shown as netCDF files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetcdfOptions {
    /// The name of the dimension that is the record dimension of groups that have it.
    pub record: Option<String>,
    /// Whether the items of all arrays of single bytes are characters. Otherwise they are texts of
    /// one letter, unless a dimension shows that the letters of a text lie there.
    pub has_characters: bool,
}

/// Makes the group at `key` a file of netCDF's classic format, with arrays as variables.
///
/// Missing coordinates and grid mappings are inherited from ancestor groups, as in netCDF-4 and in
/// xarray's trees. Arrays that the format cannot hold are left out, and an attribute lists them:
/// complex numbers, structs, objects other than strings, extended floats, dimensions of length 0,
/// and arrays that cannot be read.
///
/// # Errors
///
/// [`zarrfs_base::error::Kind::NotFound`] if there is no group, ENOMEM if it has too many arrays
/// for the memory.
pub fn dataset(
    hierarchy: &dyn HierarchyReader,
    key: &Key,
    options: &NetcdfOptions,
) -> Result<Composite> {
    let members = GroupArrays::of_group(hierarchy, key, options)?;
    let attributes = hierarchy.attributes(key)?;
    // memory for the converted attributes and two copies of the header
    let _making = memory::take(members.memory + attributes.memory())?;
    let header = header_of(&members, &attributes);
    file_of(&members, header).context(key)
}

/// Builds the header, with offsets of data still 0. Grid mappings precede the arrays.
fn header_of(members: &GroupArrays, attributes: &Map<String, Value>) -> ClassicHeader {
    let version = members.version();
    let mut names = UniqueNames::default();
    let given: Vec<String> = members
        .list
        .iter()
        .map(|member| names.give(member.name()))
        .collect();
    let mappings = Mappings::new(&members.list, &mut names);
    let mut dimensions = Dimensions::new(&names);
    if let Some(first) = members.list.iter().find(|member| member.is_record) {
        dimensions.numbers(first.dimensions().take(1), true);
    }
    // if arrays differ in the length of a dimension, the coordinate variable's dimension gets the
    // plain name
    for member in members.list.iter().filter(|member| member.is_coordinate()) {
        dimensions.numbers(member.dimensions(), member.is_record);
    }
    let mut variables: Vec<Variable> = mappings.variables().collect();
    for (member, name) in members.list.iter().zip(given) {
        let letters = member.letters.map(|len| (format!("string{len}"), len));
        let letters = letters
            .as_ref()
            .map(|(name, len)| (Some(name.as_str()), *len));
        let kind = match (member.kind, version) {
            (Type::UByte, ClassicVersion::Offset64) => Type::Byte,
            (kind, _) => kind,
        };
        let mut attributes = attributes::of_variable(member, kind, version.integers());
        attributes.extend(mappings.attribute(member));
        variables.push(Variable {
            name,
            dimensions: dimensions.numbers(member.dimensions().chain(letters), member.is_record),
            attributes,
            kind,
            size: member.variable_size(),
            begin: 0,
        });
    }
    let attributes = attributes::of_group(attributes, &members.reasons(), version.integers());
    ClassicHeader {
        version,
        dimensions: dimensions.into_list(),
        attributes,
        variables,
    }
}

/// Returns the alignment in bytes of a variable, the first `fixed` of which have no records. The
/// variables of a record follow each other, so that there is one distance for all.
fn alignment(number: usize, fixed: usize, separate: bool) -> u64 {
    match number {
        0 => READER_BLOCK,
        _ if number > fixed => 4,
        _ if separate => READER_BLOCK,
        _ => ALIGNMENT,
    }
}

/// Lays out the file and sets the offsets of data in the header.
fn file_of(members: &GroupArrays, mut header: ClassicHeader) -> Result<Composite> {
    let len = header.bytes().len();
    if len > MAX_HEADER {
        return Err(Error::unsupported(format!(
            "a netCDF header of {len} bytes is more than {MAX_HEADER}"
        )));
    }
    let mappings = header.variables.len().saturating_sub(members.list.len());
    let records = members.list.iter().filter(|member| member.is_record);
    let fixed = header.variables.len() - records.count();
    let sizes = header.variables.iter().map(Variable::padded_size);
    let values = sizes.fold(MIN_PADDING, u64::saturating_add);
    let separate = header.variables.len() as u64 * READER_BLOCK <= values;
    let mut end = (len + RESERVE) as u64;
    for (number, variable) in header.variables.iter_mut().enumerate() {
        variable.begin = end.next_multiple_of(alignment(number, fixed, separate));
        end = variable.begin + variable.padded_size();
    }
    let mut file = Composite::default();
    file.sources = members.sources.clone();
    file.left_out = members.reasons();
    file.growing = members.growing.clone();
    let mut bytes = header.bytes();
    bytes.resize(len + RESERVE, 0);
    file.push_bytes(bytes);
    for (number, mapping) in header.variables.iter().take(mappings).enumerate() {
        file.pad_to(alignment(number, fixed, separate));
        file.push_bytes(vec![0; mapping.size as usize]);
    }
    let is_single = header.variables.len() == fixed + 1;
    for (number, member) in (mappings..).zip(&members.list) {
        if number <= fixed {
            file.pad_to(alignment(number, fixed, separate));
        }
        if number == fixed {
            file.begin_records(header.record_count().unwrap_or(0));
        }
        let key = member.key.clone();
        match &member.values {
            Some(values) => file.push_values(key, member.variable_size(), values.clone()),
            None => file.push_flat(key, member.metadata(), member.form()),
        }
        // readers expect the variable's own padding even at the end of the file, except in "the
        // special case of exactly one record variable"
        if !(member.is_record && is_single) {
            file.pad_to(4);
        }
    }
    Ok(file)
}
