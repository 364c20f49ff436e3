//! A file of HDF5, also one of netCDF-4, as a group of arrays and groups. The library `hdf5-reader`
//! reads the format; this module makes it a group as xarray writes it. Dimension scales become
//! the names of dimensions, and attributes that netCDF-C and HDF5 write for themselves go.

mod bounded;
mod dimensions;
mod filters;
mod types;
mod values;

pub use values::Hdf5Values;

use super::{IncomingArray, IncomingGroup, ItemSource, byte_count, check_size, suitable_chunks};
use bounded::{BoundedFile, ReadBounds};
use dimensions::DimensionHints;
use hdf5_reader::messages::attribute::AttributeMessage;
use hdf5_reader::{Dataset, Datatype, RawAttribute, VarLenKind};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use types::{ItemChange, SetItem};
use values::SharedFile;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{self, Map, Value};
use zarrfs_base::memory::Grant;
use zarrfs_export::hdf5_format::{NO_VARIABLE, OWN_ATTRIBUTES};

/// The first bytes of a file, or of its part after a user block.
const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// The prefix that netCDF-C gives a variable that has the name of a dimension, and is not its
/// coordinate.
const NO_COORDINATE: &str = "_nc4_non_coord_";

/// The attributes of a file that netCDF-C writes itself.
const OF_NETCDF: [&str; 3] = ["_NCProperties", "_nc3_strict", "_Netcdf4Coordinates"];

/// Estimated memory in bytes of a group or array, without attributes and names.
const OBJECT: usize = 1 << 10;

/// Memory in bytes of a value of an attribute: a number is kept as a text.
const ATTRIBUTE_VALUE: usize = 96;

/// Maximum number of bytes of the strings of an attribute.
const MAX_STRINGS: usize = 4 << 20;

/// Maximum number of groups in each other.
const MAX_DEPTH: usize = 64;

/// Returns whether a file of `len` bytes is one of HDF5, perhaps after a user block.
///
/// # Errors
///
/// The file cannot be read.
pub fn is_hdf5(file: &File, len: u64) -> Result<bool> {
    let mut at = 0;
    while at + SIGNATURE.len() as u64 <= len {
        let mut start = [0; SIGNATURE.len()];
        file.read_exact_at(&mut start, at)?;
        if start == *SIGNATURE {
            return Ok(true);
        }
        at = (2 * at).max(512);
    }
    Ok(false)
}

/// The description of a file.
pub struct Hdf5Description {
    file: Arc<SharedFile>,
    groups: Vec<IncomingGroup>,
    arrays: Vec<DescribedArray>,
    record: Option<String>,
    /// The memory of all of this.
    _held: Grant,
}

struct DescribedArray {
    /// The path of the data set in the file.
    path: String,
    /// The path of the array.
    name: String,
    item: SetItem,
    shape: Vec<u64>,
    dimensions: Vec<String>,
    /// The shape of the chunks in the file.
    chunks: Option<Vec<u64>>,
    attributes: Map<String, Value>,
    missing: Option<Vec<u8>>,
}

/// A file whose objects are being described.
struct Hdf5Walk {
    file: BoundedFile,
    groups: Vec<IncomingGroup>,
    arrays: Vec<DescribedArray>,
    hints: Vec<DimensionHints>,
    /// Whether each data set of `hints` stands for a dimension alone.
    is_dimension: Vec<bool>,
    held: Grant,
}

impl Hdf5Description {
    /// Reads the description of a file of `len` bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Incoming::open`](super::Incoming::open).
    pub fn read(file: &File, len: u64) -> Result<Self> {
        let file = Arc::new(file.try_clone()?);
        let mut walk = Hdf5Walk {
            file: BoundedFile::open(&file, len, ReadBounds::Headers)?,
            groups: Vec::new(),
            arrays: Vec::new(),
            hints: Vec::new(),
            is_dimension: Vec::new(),
            held: Grant::default(),
        };
        walk.add_group(String::new(), &mut Vec::new())?;
        let Hdf5Walk {
            groups,
            mut arrays,
            hints,
            is_dimension,
            held,
            ..
        } = walk;
        let (found, unlimited) = dimensions::find(&hints);
        for (array, dimensions) in arrays.iter_mut().zip(found) {
            array.shape = dimensions.shape;
            array.dimensions = dimensions.names;
        }
        let mut is_dimension = is_dimension.into_iter();
        arrays.retain(|_| !is_dimension.next().unwrap_or_default());
        check_sizes(&arrays, len)?;
        let record = match &unlimited[..] {
            [record] if groups.len() == 1 && fits_classic(&arrays, record) => Some(record.clone()),
            _ => None,
        };
        let sizes = arrays
            .iter()
            .map(|array| values::chunk_size(array.chunks.as_ref(), array.item.size));
        let largest = sizes.max().unwrap_or_default();
        Ok(Hdf5Description {
            file: Arc::new(SharedFile::new(file, len, largest)),
            groups,
            arrays,
            record,
            _held: held,
        })
    }

    pub fn count(&self) -> usize {
        self.arrays.len()
    }

    pub fn name(&self, number: usize) -> &str {
        let array = self.arrays.get(number);
        array.map_or("", |array| &array.name)
    }

    pub fn groups(&self) -> &[IncomingGroup] {
        &self.groups
    }

    pub fn record(&self) -> Option<&str> {
        self.record.as_deref()
    }

    pub fn array(&self, number: usize) -> Result<IncomingArray> {
        let array = self.arrays.get(number);
        let array = array.ok_or_else(|| Error::invalid("no such array"))?;
        let values = Hdf5Values::new(
            self.file.clone(),
            array.path.clone(),
            array.shape.clone(),
            array.chunks.clone(),
            &array.item,
        );
        Ok(IncomingArray {
            name: array.name.clone(),
            dtype: array.item.dtype.clone(),
            shape: array.shape.clone(),
            dimensions: Some(array.dimensions.clone()),
            attributes: array.attributes.clone(),
            missing: array.missing.clone(),
            chunks: array.suitable_chunks(),
            items: ItemSource::Hdf5(Arc::new(values)),
        })
    }
}

impl DescribedArray {
    /// Returns the size of an item in a store in bytes.
    fn item(&self) -> u64 {
        self.item.size.max(1) as u64
    }

    /// Returns the shape of the chunks in the file if it suits a store, no longer than the array.
    fn suitable_chunks(&self) -> Option<Vec<u64>> {
        suitable_chunks(self.chunks.as_ref()?, &self.shape, self.item())
    }
}

/// Checks that a file of `len` bytes may hold its arrays.
fn check_sizes(arrays: &[DescribedArray], len: u64) -> Result<()> {
    let mut total: u64 = 0;
    for array in arrays {
        let size = byte_count(&array.shape, array.item());
        let size = size.and_then(|size| size.checked_add(total));
        total = check_size(size, &array.shape, len).context(&array.name)?;
    }
    Ok(())
}

/// Returns whether classic netCDF holds arrays of one group with this unlimited dimension.
fn fits_classic(arrays: &[DescribedArray], record: &str) -> bool {
    arrays.iter().all(|array| {
        let dtype = json::plain(&array.item.dtype);
        let is_known = dtype == "|S1" || dtype.contains(['i', 'u', 'f']) && dtype != "<f2";
        is_known && array.dimensions.iter().skip(1).all(|name| name != record)
    })
}

impl Hdf5Walk {
    /// Adds the group at a path, and everything below it. `above` has the addresses of the groups
    /// above.
    fn add_group(&mut self, path: String, above: &mut Vec<u64>) -> Result<()> {
        self.held.grow(OBJECT + 2 * path.len())?;
        self.file.fresh()?;
        let (address, attributes, (groups, sets)) = self.file.call(|file| {
            let group = file.group(&path)?;
            Ok((
                group.address(),
                group.raw_attributes()?,
                group.member_names()?,
            ))
        })?;
        if above.contains(&address) || above.len() > MAX_DEPTH {
            let why = "a group that contains itself, or more than 64 groups in each other";
            return Err(Error::invalid(why).context(&path));
        }
        let attributes = self.attributes(&attributes, false).context(shown(&path))?;
        let number = self.groups.len();
        self.groups.push(IncomingGroup {
            path: path.clone(),
            attributes,
        });
        let joined = |name: &str| match path.as_str() {
            "" => name.to_string(),
            path => format!("{path}/{name}"),
        };
        for name in sets {
            let path = joined(&name);
            let own = name.strip_prefix(NO_COORDINATE).unwrap_or(&name);
            self.add_set(&path, &joined(own), number).context(&path)?;
        }
        above.push(address);
        for name in groups {
            self.add_group(joined(&name), above)?;
        }
        above.pop();
        Ok(())
    }

    fn add_set(&mut self, path: &str, name: &str, group: usize) -> Result<()> {
        self.held.grow(OBJECT + 4 * path.len())?;
        self.file.fresh()?;
        let (set, encoded, attributes) = self.file.call(|file| {
            let set = file.dataset(path)?;
            let encoded = set.raw_datatype()?;
            let attributes = set.raw_attributes()?;
            Ok((set, encoded, attributes))
        })?;
        let hints = self.hints(&set, &attributes, name, group)?;
        let is_dimension = hints.scale.is_some() && self.is_dimension_alone(&attributes)?;
        let item = if is_dimension {
            // netCDF-C gives it any type
            types::item_type(
                &Datatype::Opaque {
                    size: 1,
                    tag: String::new(),
                },
                &[5],
            )
        } else {
            types::item_type(set.dtype(), &encoded)
        };
        let item = item.map_err(|what| {
            Error::invalid(format!("its items are {what}, which has no equal in Zarr"))
        })?;
        let mut found = self.attributes(&attributes, hints.scale.is_some())?;
        let missing = match found.remove("_FillValue") {
            Some(_) => Some(missing(&set, &attributes, &item, |raw| {
                self.string(&set, raw)
            })?),
            None => None,
        };
        for (name, value) in &item.attributes {
            found.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let chunks = set
            .chunks()
            .map(|chunks| chunks.into_iter().map(u64::from).collect::<Vec<_>>());
        if let Some(chunks) = &chunks
            && (chunks.contains(&0) || chunks.len() != hints.shape.len())
        {
            return Err(Error::invalid("HDF5: its chunks have another shape"));
        }
        self.arrays.push(DescribedArray {
            path: path.to_string(),
            name: name.to_string(),
            item,
            shape: Vec::new(),
            dimensions: Vec::new(),
            chunks,
            attributes: found,
            missing,
        });
        self.hints.push(hints);
        self.is_dimension.push(is_dimension);
        Ok(())
    }

    /// Collects the facts about the dimensions of a data set.
    fn hints(
        &self,
        set: &Dataset,
        attributes: &[RawAttribute],
        name: &str,
        group: usize,
    ) -> Result<DimensionHints> {
        let shape = set.shape().to_vec();
        if shape.is_empty() && self.file.call(|_| set.num_elements())? == 0 {
            return Err(Error::invalid(
                "it has no dataspace, and Zarr has no empty scalars",
            ));
        }
        let is_unlimited = (0..shape.len())
            .map(|n| set.max_dims().and_then(|lengths| lengths.get(n)) == Some(&u64::MAX));
        let mut hints = DimensionHints {
            is_unlimited: is_unlimited.collect(),
            shape,
            address: set.address(),
            group,
            ..DimensionHints::default()
        };
        for attribute in attributes {
            let message = attribute.message();
            match message.name.as_str() {
                "CLASS" => {
                    let value = self.attribute(message)?;
                    if value == "DIMENSION_SCALE" {
                        let own = name.rsplit_once('/').map_or(name, |(_, own)| own);
                        hints.scale = Some(own.to_string());
                    }
                }
                "_Netcdf4Dimid" => hints.id = self.attribute(message)?.as_i64(),
                "_Netcdf4Coordinates" => {
                    let value = self.attribute(message)?;
                    let list = value.as_array().cloned().unwrap_or(vec![value]);
                    hints.ids = list.iter().filter_map(Value::as_i64).collect();
                }
                "DIMENSION_LIST" => hints.scales = self.scales(set, message)?,
                "DIMENSION_LABELS" => {
                    let value = self.attribute(message)?;
                    let list = value.as_array().cloned().unwrap_or(vec![value]);
                    let texts = list.iter().map(|text| json::plain(text).to_string());
                    hints.labels = texts.collect();
                }
                _ => {}
            }
        }
        Ok(hints)
    }

    /// Returns the address of the first scale of each dimension; 0 without a scale.
    fn scales(&self, set: &Dataset, message: &AttributeMessage) -> Result<Vec<u64>> {
        let is_list = matches!(&message.datatype, Datatype::VarLen { base, kind: VarLenKind::Sequence, .. }
            if matches!(**base, Datatype::Reference { .. }));
        if !is_list {
            return Ok(Vec::new());
        }
        let size = set.vlen_reference_size() - 8;
        let mut addresses = Vec::new();
        for list in message.raw_data.chunks_exact(set.vlen_reference_size()) {
            if list.starts_with(&[0; 4]) {
                addresses.push(0);
                continue;
            }
            // the first scale alone: a list may have any number
            let mut first = list.to_vec();
            first[..4].copy_from_slice(&1u32.to_le_bytes());
            let found = self
                .file
                .call(|_| set.resolve_vlen_reference_bytes(&first, size))?;
            let mut address = [0; 8];
            address[..size.min(8)].copy_from_slice(&found[..size.min(8)]);
            addresses.push(u64::from_le_bytes(address));
        }
        Ok(addresses)
    }

    /// Returns whether a scale stands for a dimension, and has no values.
    fn is_dimension_alone(&self, attributes: &[RawAttribute]) -> Result<bool> {
        let mut attributes = attributes.iter().map(RawAttribute::message);
        let Some(name) = attributes.find(|message| message.name == "NAME") else {
            return Ok(false);
        };
        let value = self.attribute(name)?;
        Ok(value
            .as_str()
            .is_some_and(|text| text.starts_with(NO_VARIABLE)))
    }

    /// Returns the attributes of an object without those that HDF5 and netCDF-C write themselves.
    fn attributes(
        &mut self,
        attributes: &[RawAttribute],
        is_scale: bool,
    ) -> Result<Map<String, Value>> {
        let mut found = Map::new();
        for attribute in attributes {
            let message = attribute.message();
            let name = message.name.as_str();
            let is_own = match name {
                // programs other than HDF5 use these names, too
                "CLASS" | "NAME" => is_scale,
                _ => OWN_ATTRIBUTES.contains(&name) || OF_NETCDF.contains(&name),
            };
            if is_own {
                continue;
            }
            let values = message.raw_data.len().saturating_mul(ATTRIBUTE_VALUE);
            self.held.grow(values.saturating_add(OBJECT))?;
            let value = self
                .attribute(message)
                .context(format!("attribute {name:?}"))?;
            self.held.grow(json::write(&value).len())?;
            found.insert(name.to_string(), value);
        }
        Ok(found)
    }

    /// Returns the value of an attribute.
    fn attribute(&self, message: &AttributeMessage) -> Result<Value> {
        let reference = usize::from(self.file.opened().superblock().offset_size) + 8;
        let mut total = 0;
        types::attribute(message, reference, &mut |reference| {
            if reference.starts_with(&[0; 4]) {
                return Ok(Vec::new());
            }
            let bytes = self.file.call(|file| {
                let root = file.root_group()?;
                root.resolve_vlen_reference_bytes(reference, 1)
            })?;
            total += bytes.len();
            if total > MAX_STRINGS {
                return Err(Error::invalid("its strings take more than 4 MiB"));
            }
            Ok(bytes)
        })
    }

    fn string(&self, set: &Dataset, reference: &[u8]) -> Result<Vec<u8>> {
        if reference.starts_with(&[0; 4]) {
            return Ok(Vec::new());
        }
        self.file
            .call(|_| set.resolve_vlen_reference_bytes(reference, 1))
    }
}

fn shown(path: &str) -> String {
    format!("/{path}")
}

/// Returns the item of a data set that stands for missing values, as the store has it.
///
/// # Errors
///
/// The attribute is not one value of the type of the data set.
fn missing(
    set: &Dataset,
    attributes: &[RawAttribute],
    item: &SetItem,
    string: impl Fn(&[u8]) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let mut messages = attributes.iter().map(RawAttribute::message);
    let message = messages.find(|message| message.name == "_FillValue");
    let wrong = || Error::invalid("_FillValue is not one value of the type of the variable");
    let message = message.ok_or_else(wrong)?;
    let mut value = message.raw_data.clone();
    if let ItemChange::String(_) = item.change {
        if value.len() != set.vlen_reference_size() {
            return Err(wrong());
        }
        return string(&value);
    }
    let of_value = types::number_of(&message.datatype);
    let is_same = match (of_value, types::number_of(set.dtype())) {
        (Some(value), Some(number)) => (value.kind, value.size) == (number.kind, number.size),
        _ => {
            let are_texts = [&message.datatype, set.dtype()]
                .iter()
                .all(|dtype| matches!(dtype, Datatype::String { .. }));
            are_texts || message.datatype == *set.dtype()
        }
    };
    if !is_same || value.len() != item.size {
        return Err(wrong());
    }
    match (of_value, item.change) {
        (Some(number), _) if number.is_big_endian => value.reverse(),
        (None, ItemChange::Reversed(part)) => {
            value.chunks_exact_mut(part).for_each(<[u8]>::reverse);
        }
        _ => {}
    }
    Ok(value)
}
