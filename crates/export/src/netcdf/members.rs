//! The arrays of a group that become variables of its netCDF file. This module decides which arrays
//! these are, in which order, which of them have records, and which are left out. It knows neither
//! headers nor offsets.

use super::classic::ClassicVersion;
use super::{MAX_DIMENSION, MAX_MAPPINGS, NetcdfOptions};
use crate::describe::{
    GridMapping, add_flags, attributes_above, grid_mapping, is_in_degrees, read_strings,
};
use crate::group::types::{Type, native_type};
use crate::group::{GroupArray, names};
use crate::reader::{ArrayNode, HierarchyNode, HierarchyReader};
use crate::{GrowingArrays, ItemForm, MAX_FILE, flat};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json;
use zarrfs_base::key::Key;
use zarrfs_base::memory;

/// Estimated memory in bytes of an array, of its variable in the header and of its part of the
/// file, without attributes and metadata.
const ARRAY: usize = 3 << 9;

/// Estimated memory in bytes of the reader of an array's chunks.
const CHUNKS: usize = 5 << 9;

/// The arrays that become variables, and the reasons why others do not.
#[derive(Default)]
pub struct GroupArrays {
    options: NetcdfOptions,
    /// The arrays in the order of their data.
    pub list: Vec<GroupArray>,
    /// Reasons by array name.
    left_out: BTreeMap<String, String>,
    /// Size of all variables in bytes.
    size: u64,
    /// The groups and arrays whose documents the file is made from, including arrays that are left
    /// out.
    pub sources: Vec<Key>,
    /// Memory of all attributes and strings, in bytes.
    pub memory: usize,
    /// Grant for the arrays themselves.
    held: memory::Grant,
    /// Arrays that are left out, collected only for a record dimension.
    others: Vec<GroupArray>,
    /// The arrays of the record dimension.
    pub growing: GrowingArrays,
}

impl GroupArrays {
    /// Collects the arrays of a group, and what they need of the groups above.
    ///
    /// # Errors
    ///
    /// [`zarrfs_base::error::Kind::NotFound`] if there is no group, ENOMEM if it has too many
    /// arrays for the memory.
    pub fn of_group(
        hierarchy: &dyn HierarchyReader,
        key: &Key,
        options: &NetcdfOptions,
    ) -> Result<Self> {
        if !matches!(hierarchy.find(key)?, Some(HierarchyNode::Group)) {
            return Err(Error::not_found("no such group").context(key));
        }
        let options = options.clone();
        let sources = vec![key.clone()];
        let mut members = GroupArrays {
            options,
            sources,
            ..GroupArrays::default()
        };
        members.add_group(hierarchy, key)?;
        members.add_inherited(hierarchy, key)?;
        members.find_mappings(hierarchy, key);
        members.find_letters();
        members.find_records();
        members.leave_out(|member| member.is_empty().then(|| "a dimension has length 0".into()));
        members.read_strings();
        members.convert_to_doubles();
        if members.version() == ClassicVersion::Data64 {
            members.list.iter_mut().for_each(GroupArray::state_sign);
        }
        // records follow the other variables, and in CDF-2 only the last variable of either may
        // exceed the limit
        members
            .list
            .sort_by_key(|member| (member.is_record, member.is_large()));
        Ok(members)
    }

    /// Returns why arrays are left out, a line for each.
    pub fn reasons(&self) -> Vec<String> {
        self.left_out
            .iter()
            .map(|(name, why)| format!("{name}: {why}"))
            .collect()
    }

    /// Adds the arrays of a group in the order of their names.
    fn add_group(&mut self, hierarchy: &dyn HierarchyReader, key: &Key) -> Result<()> {
        let (children, _memory) = hierarchy.children(key)?;
        for key in &children {
            match hierarchy.find(key)? {
                Some(HierarchyNode::Array(array)) => self.add(hierarchy, array)?,
                Some(HierarchyNode::Damaged(e)) => {
                    self.sources.push(key.clone());
                    self.left_out.insert(key.name().to_string(), e.to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds an array, or the reason why it is left out.
    fn add(&mut self, hierarchy: &dyn HierarchyReader, array: ArrayNode) -> Result<()> {
        self.hold(ARRAY)?;
        self.sources.push(array.key.clone());
        let name = array.key.name().to_string();
        let kind = match native_type(&array) {
            Ok(kind) => kind,
            Err(why) => {
                self.left_out.insert(name, why);
                if self.options.record.is_some() {
                    let sources = &mut self.sources;
                    let mut other = GroupArray::new(hierarchy, &array, Type::Byte, sources)?;
                    other.shorten_metadata(self.others.last())?;
                    self.others.push(other);
                }
                return Ok(());
            }
        };
        let mut member = GroupArray::new(hierarchy, &array, kind, &mut self.sources)?;
        // a record may be written to an array of length 0
        let size = member
            .variable_size()
            .max(member.shown_size(member.metadata().row_size()));
        let size = size.checked_add(self.size).filter(|&size| size <= MAX_FILE);
        let Some(size) = size.filter(|_| member.metadata().row_size() <= MAX_FILE) else {
            self.left_out
                .insert(name, "makes the file larger than 2^63 bytes".into());
            return Ok(());
        };
        // all attributes are in memory together, and the header holds them once more
        if self.memory + member.attributes.memory() > memory::limit() / 4 {
            let why = "the attributes of the arrays take more memory than there is for a header";
            self.left_out.insert(name, why.into());
            return Ok(());
        }
        self.memory += member.attributes.memory();
        // codes of categories get flags
        let flags = add_flags(hierarchy, &array, &mut member.attributes, &mut self.sources);
        self.memory += flags.bytes();
        self.held = std::mem::take(&mut self.held).and(flags);
        if member.metadata().has_objects() || member.lacks_type() {
            self.hold(CHUNKS)?;
            member.array = Some(array);
        } else {
            member.shorten_metadata(self.list.last())?;
        }
        self.list.push(member);
        self.size = size;
        Ok(())
    }

    /// Takes memory for an array.
    fn hold(&mut self, bytes: usize) -> Result<()> {
        // the other half is for the documents, which are read one after another
        if self.held.bytes() + bytes > memory::limit() / 2 {
            return Err(Error::system(libc::ENOMEM).context("a netCDF file of so many arrays"));
        }
        self.held.grow(bytes)
    }

    /// Adds missing coordinates of named dimensions and missing grid mappings from ancestor groups.
    fn add_inherited(&mut self, hierarchy: &dyn HierarchyReader, key: &Key) -> Result<()> {
        let mut known: HashSet<String> = self
            .list
            .iter()
            .map(|member| member.name().to_string())
            .collect();
        known.extend(self.left_out.keys().cloned());
        let named = self.list.iter().flat_map(GroupArray::dimensions);
        let named = named.filter_map(|(name, len)| Some((name?.to_string(), Some(len))));
        let mappings = self
            .list
            .iter()
            .filter_map(|member| json::text(member.attributes.get("grid_mapping")?));
        let mappings = mappings
            .flat_map(|names| names.split_whitespace().take(MAX_MAPPINGS))
            .map(|word| (word.trim_end_matches(':').into(), None));
        let missing: BTreeSet<(String, Option<u64>)> = mappings
            .chain(named)
            .filter(|(name, _)| !known.contains(name))
            .collect();
        for (name, len) in missing {
            if let Some(found) = find_inherited(hierarchy, key, &name, len)? {
                self.add(hierarchy, found)?;
            }
        }
        Ok(())
    }

    /// Finds the grid mappings of the arrays of the group at `key`. Any group above it may begin to
    /// state one.
    fn find_mappings(&mut self, hierarchy: &dyn HierarchyReader, key: &Key) {
        let above = attributes_above(hierarchy, &key.join("array"));
        let groups = above.iter().map(|(group, _)| group);
        let groups =
            groups.filter(|key| matches!(hierarchy.find(key), Ok(Some(HierarchyNode::Group))));
        let groups: Vec<Key> = groups.filter(|group| *group != key).cloned().collect();
        let in_degrees: HashSet<String> = self
            .list
            .iter()
            .filter(|member| member.is_coordinate() && is_in_degrees(&member.attributes))
            .map(|member| member.name().to_string())
            .collect();
        let mut known: BTreeSet<Arc<GridMapping>> = BTreeSet::new();
        for member in &mut self.list {
            let names = member.names.iter().flatten();
            let has_degrees = names.into_iter().any(|name| in_degrees.contains(name));
            let found = grid_mapping(
                &above,
                (&member.key, &member.metadata.shape),
                &member.attributes,
                &member.names,
                has_degrees,
            );
            member.mapping = found.map(|found| match known.get(&found) {
                Some(known) => known.clone(),
                None => {
                    self.memory += found.wkt.len();
                    let found = Arc::new(found);
                    known.insert(found.clone());
                    found
                }
            });
        }
        self.sources.extend(groups);
    }

    /// Finds the arrays of single bytes whose last dimension is the letters of a text already, as
    /// in `char station(station, strlen)`: no array of another type has that dimension.
    fn find_letters(&mut self) {
        let others = self.list.iter().filter(|member| member.kind != Type::Char);
        let shared: HashSet<String> = others
            .flat_map(GroupArray::dimensions)
            .filter_map(|(name, _)| name.map(str::to_string))
            .collect();
        for member in self.list.iter_mut().filter(|m| m.letters == Some(1)) {
            let last = member
                .dimensions()
                .skip(1)
                .last()
                .and_then(|(name, _)| name);
            if self.options.has_characters || last.is_some_and(|name| !shared.contains(name)) {
                member.letters = None;
            }
        }
    }

    /// Finds the arrays whose first dimension is the record dimension. If they differ in its
    /// length, the coordinate variable, or else the first array, decides the number of records.
    /// Arrays of other lengths get a dimension of their own.
    fn find_records(&mut self) {
        let Some(wanted) = self.options.record.as_deref() else {
            return;
        };
        let coordinate = self
            .list
            .iter()
            .find(|member| member.is_coordinate() && member.name() == wanted);
        let mut first = coordinate
            .into_iter()
            .chain(&self.list)
            .filter_map(|member| member.dimensions().next());
        let Some((_, count)) = first.find(|(name, _)| *name == Some(wanted)) else {
            return;
        };
        for member in &mut self.list {
            let first = member.dimensions().next();
            member.is_record = first == Some((Some(wanted), count));
        }
        for member in self.list.iter().chain(&self.others) {
            let records = Some((Some(wanted), count));
            match member
                .dimensions()
                .filter(|is| Some(*is) == records)
                .count()
            {
                0 => {}
                1 if member.dimensions().next() == records => {
                    self.growing.keys.push(member.key.clone())
                }
                _ => {
                    let why = "their dimension is not the first of";
                    self.growing.fixed = Some(format!("{why} {:?}", member.name()));
                }
            }
        }
        self.others.clear();
    }

    /// Removes the arrays for which `reason` returns one.
    fn leave_out(&mut self, mut reason: impl FnMut(&mut GroupArray) -> Option<String>) {
        let left_out = &mut self.left_out;
        self.list.retain_mut(|member| match reason(member) {
            Some(why) => {
                left_out.insert(member.name().to_string(), why);
                false
            }
            None => true,
        });
    }

    /// Reads the arrays of strings of any length, as long as there is memory.
    fn read_strings(&mut self) {
        let mut memory = self.memory;
        self.leave_out(|member| {
            if !member.metadata().has_objects() {
                return None;
            }
            let array = member.array.take()?;
            let free = (memory::limit() / 4).saturating_sub(memory);
            match read_strings(&array, free) {
                Ok(strings) => {
                    memory += strings.values.len();
                    member.letters = Some(strings.longest as u64);
                    member.values = Some(strings.values);
                    None
                }
                Err(e) => Some(e.to_string()),
            }
        });
        self.memory = memory;
    }

    /// Returns the smallest version of the format that can hold all variables.
    pub fn version(&self) -> ClassicVersion {
        let has_64_bits = self.list.iter().any(|member| {
            let lengths = &member.metadata().shape;
            member.kind > Type::UByte || lengths.iter().any(|len| *len > MAX_DIMENSION)
        });
        if has_64_bits || self.has_large() {
            ClassicVersion::Data64
        } else {
            ClassicVersion::Offset64
        }
    }

    /// Returns whether variables are too large for CDF-2. It has room for one at the end of the
    /// file, or of a record (`NC_check_vlens` in netcdf-c).
    fn has_large(&self) -> bool {
        let has_records = self.list.iter().any(|member| member.is_record);
        let large = self.list.iter().filter(|member| member.is_large());
        let (records, fixed): (Vec<_>, Vec<_>) = large.partition(|member| member.is_record);
        records.len() > 1 || fixed.len() > usize::from(!has_records)
    }

    /// Makes integers that CDF-2 lacks doubles, in arrays of at most one dimension, if the file can
    /// then be CDF-2: xarray stores times and grid mappings as 64-bit integers, and many programs
    /// do not know CDF-5. **No read of a file may fail because of a value.** Therefore the file is
    /// CDF-5 if a value is not exact as a double or if the values cannot be read. All values of an
    /// array count, so that files of its parts have one type.
    fn convert_to_doubles(&mut self) {
        let native: Vec<Type> = self.list.iter().map(|member| member.kind).collect();
        for member in self.list.iter_mut().filter(|member| member.lacks_type()) {
            member.kind = Type::Double;
        }
        let is_small = self.version() == ClassicVersion::Offset64;
        let is_exact = is_small
            && self.list.iter().all(|member| match member.form() {
                form @ ItemForm::Double(_) => member.array.as_ref().is_some_and(|array| {
                    flat(array.whole()).is_ok_and(|bytes| form.can_show(&bytes))
                }),
                _ => true,
            });
        if !is_exact {
            for (member, kind) in self.list.iter_mut().zip(native) {
                member.kind = kind;
            }
        }
    }
}

/// Returns the array `name` of the nearest ancestor of `key` that has one, provided that it fits: a
/// coordinate variable of length `len`, or, without a length, a scalar as grid mappings are.
fn find_inherited(
    hierarchy: &dyn HierarchyReader,
    key: &Key,
    name: &str,
    len: Option<u64>,
) -> Result<Option<ArrayNode>> {
    // an attribute may hold a name too long for the store to look up
    if name.len() > names::MAX_NAME {
        return Ok(None);
    }
    for above in hierarchy.ancestors(key) {
        // not a valid name of an array
        let Ok(place) = above.child(name) else {
            return Ok(None);
        };
        let Some(HierarchyNode::Array(array)) = hierarchy.find(&place)? else {
            continue;
        };
        let found = GroupArray::new(hierarchy, &array, Type::Byte, &mut Vec::new())?;
        let fits = match len {
            Some(len) => found.is_coordinate() && found.metadata().shape == [len],
            None => found.metadata().shape.is_empty(),
        };
        return Ok(fits.then_some(array));
    }
    Ok(None)
}
