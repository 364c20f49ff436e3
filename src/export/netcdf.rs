//! A group as one netCDF file of the classic format: a header made from metadata, then the flat bytes of the group's
//! arrays. This module decides names, shared dimensions and types of attributes. It does not know how flat bytes are
//! read.

use super::{Composite, ItemForm, axis_names, flat};
use crate::array::Array;
use crate::array::hierarchy::{Hierarchy, StoredNode};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::store::Key;
use crate::util::json::{self, Map, Object, Value};
use crate::util::memory;
use crate::zarr::dtype::{DType, DTypeKind};
use crate::zarr::metadata::ArrayMetadata;
use classic::{ClassicHeader, ClassicVersion, Type, Variable};
use dimensions::Dimensions;
pub use edit::HeaderEdit;
use mapping::Mappings;
use names::UniqueNames;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

mod attributes;
mod classic;
mod dimensions;
mod edit;
mod mapping;
mod names;
mod parse;
#[cfg(test)]
mod tests;

/// Alignment of each variable's data in bytes, so that pages of the file are pages of `data.raw`. The format lets the
/// writer choose: "begin: the offset in bytes of the beginning of data for this variable".
const ALIGNMENT: u64 = 4096;

/// Number of free bytes after the header. If a header outgrows its space, netcdf-c moves the data before it writes the
/// header, which the mount then refuses. With free space, the mount refuses before any data move.
const RESERVE: usize = 64 << 10;

/// Maximum size in bytes of a variable in CDF-2, except the last one (`NC_check_vlens` in netcdf-c).
const MAX_VARIABLE: u64 = u32::MAX as u64 - 3;

/// Maximum length of a dimension in CDF-2: a "non-negative INT".
const MAX_DIMENSION: u64 = i32::MAX as u64;

/// Maximum size of a header in bytes: far above that of real headers.
const MAX_HEADER: usize = 32 << 20;

/// Maximum number of words read from an attribute that names grid mappings: `crs: x y other: lat lon`.
const MAX_MAPPINGS: usize = 64;

/// An array that becomes a variable.
struct GroupArray {
    array: Arc<Array>,
    attributes: Object,
    /// The names of the dimensions; `None` where metadata have none.
    names: Vec<Option<String>>,
    kind: Type,
}

impl GroupArray {
    /// Reads the array's attributes and the names of its dimensions; groups that provide names are added to `sources`.
    fn new(hierarchy: &Hierarchy, array: Arc<Array>, kind: Type, sources: &mut Vec<Key>) -> Result<Self> {
        let attributes = hierarchy.attributes(array.key())?;
        let names = axis_names(hierarchy, &array, &attributes, sources);
        Ok(GroupArray { array, attributes, names, kind })
    }

    fn name(&self) -> &str {
        self.array.key().name()
    }

    fn metadata(&self) -> &ArrayMetadata {
        self.array.metadata()
    }

    /// Returns the names, where known, and the lengths of the dimensions.
    fn dimensions(&self) -> impl Iterator<Item = (Option<&str>, u64)> {
        let names = self.names.iter().map(Option::as_deref).chain(std::iter::repeat(None));
        names.zip(self.metadata().shape.iter().copied())
    }

    /// Returns whether the array is a coordinate variable: it has one dimension with its own name.
    fn is_coordinate(&self) -> bool {
        self.dimensions().map(|(name, _)| name).eq([Some(self.name())])
    }

    /// Returns whether the array is a time coordinate of 64-bit integers whose unit is coarse enough that doubles
    /// represent all usual dates exactly.
    fn counts_time(&self) -> bool {
        let units = self.attributes.get("units").and_then(json::text).unwrap_or_default();
        let unit = units.split_once(" since ").map(|(unit, _)| unit.to_ascii_lowercase());
        let is_small = |unit: &str| ["nano", "micro"].iter().any(|small| unit.starts_with(small)) || unit.len() == 2;
        let is_integer = *self.metadata().dtype.kind() == DTypeKind::Int && self.metadata().dtype.size() == 8;
        is_integer && self.is_coordinate() && unit.is_some_and(|unit| !is_small(&unit))
    }

    /// Returns the form of the items in the file, where all numbers are big-endian.
    fn form(&self) -> ItemForm {
        let dtype = &self.metadata().dtype;
        match (dtype.kind(), self.kind) {
            (DTypeKind::Int, Type::Double) => ItemForm::Doubles { big_endian: dtype.is_big_endian() },
            (DTypeKind::Bytes, _) => ItemForm::AsStored,
            _ if dtype.is_big_endian() => ItemForm::AsStored,
            _ if dtype.size() == 1 => ItemForm::AsStored,
            _ => ItemForm::Reversed(dtype.size()),
        }
    }

    /// Returns the metadata with the dtype that the array has in the file.
    fn metadata_in_file(&self) -> Cow<'_, ArrayMetadata> {
        let metadata = self.metadata();
        match (self.form(), DType::parse_str(">f8")) {
            (ItemForm::Doubles { .. }, Ok(dtype)) => {
                let fill = dtype.parse_fill_value(&metadata.fill_value).ok().flatten();
                Cow::Owned(ArrayMetadata { dtype, fill, ..metadata.clone() })
            }
            _ => Cow::Borrowed(metadata),
        }
    }
}

/// The arrays that become variables, and the reasons why others do not.
#[derive(Default)]
struct GroupArrays {
    list: Vec<GroupArray>,
    /// Reasons by array name.
    left_out: BTreeMap<String, String>,
    /// Size of all variables in bytes.
    size: u64,
    /// The groups and arrays whose documents the file is made from, including arrays that are left out.
    sources: Vec<Key>,
    /// Memory of all attributes, in bytes.
    memory: usize,
}

/// Makes the group at `key` a file of netCDF's classic format, with arrays as variables.
///
/// Missing coordinates and grid mappings are inherited from ancestor groups, as in netCDF-4 and in xarray's trees.
/// Arrays that the format cannot hold are left out, and an attribute lists them: complex numbers, Unicode texts,
/// structs, objects, floats other than 4 and 8 bytes, dimensions of length 0, and arrays that cannot be read.
///
/// # Errors
///
/// [`crate::error::Kind::NotFound`] if there is no group.
pub fn dataset(hierarchy: &Hierarchy, cache: &Cache, key: &Key) -> Result<Composite> {
    let members = GroupArrays::of_group(hierarchy, cache, key)?;
    let attributes = hierarchy.attributes(key)?;
    // memory for the converted attributes and two copies of the header
    let _making = memory::take(members.memory + attributes.memory())?;
    let header = members.header(&attributes);
    members.file(header).map_err(|e| e.context(key))
}

impl GroupArrays {
    fn of_group(hierarchy: &Hierarchy, cache: &Cache, key: &Key) -> Result<Self> {
        if !matches!(hierarchy.find(key)?, Some(StoredNode::Group)) {
            return Err(Error::not_found("no such group").context(key));
        }
        let mut members = GroupArrays { sources: vec![key.clone()], ..GroupArrays::default() };
        members.add_group(hierarchy, key)?;
        members.add_inherited(hierarchy, key)?;
        members.convert_time_to_doubles(cache);
        // in CDF-2 only the last variable may exceed the limit
        members.list.sort_by_key(|member| member.array.size() > MAX_VARIABLE);
        Ok(members)
    }

    /// Adds the arrays of a group in the order of their names.
    fn add_group(&mut self, hierarchy: &Hierarchy, key: &Key) -> Result<()> {
        let below = hierarchy.prefixes(key)?;
        for key in below.keys.iter().rev() {
            match hierarchy.find(key)? {
                Some(StoredNode::Array(array)) => self.add(hierarchy, array)?,
                Some(StoredNode::Damaged(e)) => {
                    self.sources.push(key.clone());
                    self.left_out.insert(key.name().to_string(), e.to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds an array, or the reason why it is left out.
    fn add(&mut self, hierarchy: &Hierarchy, array: Arc<Array>) -> Result<()> {
        // 2^40 bytes are more than the header and all padding between variables
        let limit = i64::MAX as u64 - (1 << 40);
        self.sources.push(array.key().clone());
        let size = array.size().checked_add(self.size).filter(|&size| size <= limit);
        match (type_of(&array), size) {
            (Ok(kind), Some(size)) => {
                let member = GroupArray::new(hierarchy, array, kind, &mut self.sources)?;
                // all attributes are in memory together, and the header holds them once more
                if self.memory + member.attributes.memory() > memory::limit() / 4 {
                    let why = "the attributes of the arrays take more memory than there is for a header";
                    self.left_out.insert(member.name().to_string(), why.into());
                    return Ok(());
                }
                self.memory += member.attributes.memory();
                self.list.push(member);
                self.size = size;
            }
            (Err(why), _) => {
                self.left_out.insert(array.key().name().to_string(), why);
            }
            (_, None) => {
                let why = "makes the file larger than 2^63 bytes";
                self.left_out.insert(array.key().name().to_string(), why.into());
            }
        }
        Ok(())
    }

    /// Adds missing coordinates of named dimensions and missing grid mappings from ancestor groups.
    fn add_inherited(&mut self, hierarchy: &Hierarchy, key: &Key) -> Result<()> {
        let mut known: HashSet<String> = self.list.iter().map(|member| member.name().to_string()).collect();
        known.extend(self.left_out.keys().cloned());
        let named = self.list.iter().flat_map(GroupArray::dimensions);
        let named = named.filter_map(|(name, len)| Some((name?.to_string(), Some(len))));
        let mappings = self.list.iter().filter_map(|member| json::text(member.attributes.get("grid_mapping")?));
        let mappings = mappings
            .flat_map(|names| names.split_whitespace().take(MAX_MAPPINGS))
            .map(|word| (word.trim_end_matches(':').into(), None));
        let missing: BTreeSet<(String, Option<u64>)> =
            mappings.chain(named).filter(|(name, _)| !known.contains(name)).collect();
        for (name, len) in missing {
            if let Some(found) = find_inherited(hierarchy, key, &name, len)? {
                self.add(hierarchy, found)?;
            }
        }
        Ok(())
    }

    /// Returns the smallest version of the format that can hold all variables.
    fn version(&self) -> ClassicVersion {
        let is_large = |member: &&GroupArray| member.array.size() > MAX_VARIABLE;
        let needs_64_bits = |member: &GroupArray| {
            member.kind > Type::UByte || member.metadata().shape.iter().any(|&len| len > MAX_DIMENSION)
        };
        match self.list.iter().filter(is_large).count() > 1 || self.list.iter().any(needs_64_bits) {
            true => ClassicVersion::Data64,
            false => ClassicVersion::Offset64,
        }
    }

    /// Makes time coordinates doubles, as most CF files have them, if the file can then be CDF-2: xarray stores times
    /// as 64-bit integers, and many programs do not know CDF-5. **No read of a file may fail because of a value.**
    /// Therefore the file is CDF-5 if a coordinate is not exact as a double or if the coordinates cannot be read.
    fn convert_time_to_doubles(&mut self, cache: &Cache) {
        self.set_time_type(Type::Double);
        let are_exact = |member: &GroupArray| match member.form() {
            form @ ItemForm::Doubles { .. } => flat(cache, &member.array).is_ok_and(|bytes| form.can_show(&bytes)),
            _ => true,
        };
        if self.version() == ClassicVersion::Data64 || !self.list.iter().all(are_exact) {
            self.set_time_type(Type::Int64);
        }
    }

    fn set_time_type(&mut self, kind: Type) {
        for member in self.list.iter_mut().filter(|member| member.counts_time()) {
            member.kind = kind;
        }
    }

    /// Builds the header, with offsets of data still 0. Grid mappings precede the arrays.
    fn header(&self, attributes: &Map<String, Value>) -> ClassicHeader {
        let version = self.version();
        let mut names = UniqueNames::default();
        let given: Vec<String> = self.list.iter().map(|member| names.give(member.name())).collect();
        let mappings = Mappings::new(&self.list, &mut names);
        let mut dimensions = Dimensions::new(&names);
        // if arrays differ in the length of a dimension, the coordinate variable's dimension gets the plain name
        for member in self.list.iter().filter(|member| member.is_coordinate()) {
            dimensions.numbers(member.dimensions());
        }
        let variable = |(member, name): (&GroupArray, String)| {
            let dtype = &member.metadata().dtype;
            let letters = format!("string{}", dtype.size());
            let letters = (member.kind == Type::Char).then_some((Some(letters.as_str()), dtype.size() as u64));
            let kind = match (member.kind, version) {
                (Type::UByte, ClassicVersion::Offset64) => Type::Byte,
                (kind, _) => kind,
            };
            let mut attributes = attributes::of_variable(&member.metadata_in_file(), &member.attributes, kind, version);
            attributes.extend(mappings.attribute(member));
            Variable {
                name,
                dimensions: dimensions.numbers(member.dimensions().chain(letters)),
                attributes,
                kind,
                size: member.array.size(),
                begin: 0,
            }
        };
        let variables = mappings.variables().chain(self.list.iter().zip(given).map(variable)).collect();
        let left_out: Vec<String> = self.left_out.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        let attributes = attributes::of_group(attributes, &left_out, version);
        ClassicHeader { version, dimensions: dimensions.into_list(), attributes, variables }
    }

    /// Lays out the file and sets the offsets of data in the header.
    fn file(&self, mut header: ClassicHeader) -> Result<Composite> {
        let len = header.bytes().len();
        if len > MAX_HEADER {
            return Err(Error::unsupported(format!("a netCDF header of {len} bytes is more than {MAX_HEADER}")));
        }
        let mut end = (len + RESERVE) as u64;
        for variable in &mut header.variables {
            variable.begin = end.next_multiple_of(ALIGNMENT);
            end = variable.begin + variable.padded_size();
        }
        let mut file = Composite::default();
        file.sources = self.sources.clone();
        let mut bytes = header.bytes();
        bytes.resize(len + RESERVE, 0);
        file.push_bytes(bytes);
        let mappings = header.variables.len().saturating_sub(self.list.len());
        for mapping in header.variables.iter().take(mappings) {
            file.pad_to(ALIGNMENT);
            file.push_bytes(vec![0; mapping.size as usize]);
        }
        for member in &self.list {
            file.pad_to(ALIGNMENT);
            file.push_flat(member.array.key().clone(), member.metadata(), member.form());
            // readers expect the variable's own padding even at the end of the file
            file.pad_to(4);
        }
        Ok(file)
    }
}

/// Returns the type of an array's values in CDF-5, or the reason why there is none.
fn type_of(array: &Array) -> std::result::Result<Type, String> {
    array.readable().map_err(|e| e.message().to_string())?;
    let metadata = array.metadata();
    if metadata.shape.contains(&0) {
        return Err("a dimension has length 0".into());
    }
    match (metadata.dtype.kind(), metadata.dtype.size()) {
        (DTypeKind::Bool, _) | (DTypeKind::Int, 1) => Ok(Type::Byte),
        (DTypeKind::Int, 2) => Ok(Type::Short),
        (DTypeKind::Int, 4) => Ok(Type::Int),
        (DTypeKind::Int, 8) => Ok(Type::Int64),
        (DTypeKind::UInt, 1) => Ok(Type::UByte),
        (DTypeKind::UInt, 2) => Ok(Type::UShort),
        (DTypeKind::UInt, 4) => Ok(Type::UInt),
        (DTypeKind::UInt, 8) => Ok(Type::UInt64),
        (DTypeKind::Float, 4) => Ok(Type::Float),
        (DTypeKind::Float, 8) => Ok(Type::Double),
        (DTypeKind::Bytes, 1..) => Ok(Type::Char),
        (DTypeKind::DateTime, _) if attributes::time_unit(metadata).is_some() => Ok(Type::Int64),
        _ => Err(format!("netCDF has no type for {}", json::write(&metadata.dtype_json))),
    }
}

/// Returns the array `name` of the nearest ancestor of `key` that has one, if it fits: a coordinate variable of length
/// `len` or, without `len`, a scalar, as grid mappings are.
fn find_inherited(hierarchy: &Hierarchy, key: &Key, name: &str, len: Option<u64>) -> Result<Option<Arc<Array>>> {
    // an attribute may hold a name too long for the store to look up
    if name.len() > names::MAX_NAME {
        return Ok(None);
    }
    let mut above = key.clone();
    while !above.is_root() {
        above = above.parent();
        // the name is not valid for an array
        let Ok(place) = above.child(name) else { return Ok(None) };
        let Some(StoredNode::Array(array)) = hierarchy.find(&place)? else { continue };
        let found = GroupArray::new(hierarchy, array, Type::Byte, &mut Vec::new())?;
        let fits = match len {
            Some(len) => found.is_coordinate() && found.metadata().shape == [len],
            None => found.metadata().shape.is_empty(),
        };
        return Ok(fits.then_some(found.array));
    }
    Ok(None)
}
