//! A group with everything below it as one HDF5 file: object headers made from metadata, then the
//! flat bytes of the arrays, each in a contiguous layout. NetCDF-4 programs see shared dimensions,
//! by the "HDF5 Dimension Scale Specification" and netCDF-C's `docs/file_format_specifications.md`.
//! This module decides names, dimensions and places. It does not know how flat bytes are read.

use super::describe::{StringEncoding, add_flags, read_strings};
use super::group::attributes::{self, Attribute};
use super::group::names::{MAX_NAME, legal, with_suffix};
use super::group::types::{Type, native_type};
use super::group::{ALIGNMENT, DimensionIdentity, GroupArray, READER_BLOCK, identities};
use super::number::NumberType;
use super::{Composite, MAX_FILE, PartContent};
use crate::reader::{ArrayNode, HierarchyNode, HierarchyReader};
use heap::{Heap, HeapPlace, SEQUENCE};
pub use messages::sets_flags_alone;
use messages::{Messages, ObjectAttribute, SUPERBLOCK, TextEncoding, UNDEFINED, ValueType};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use strings::HeapStrings;
pub use types::COMPLEX;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::key::Key;
use zarrfs_base::memory;
use zarrfs_format::metadata::ArrayMetadata;

mod heap;
mod messages;
mod strings;
#[cfg(test)]
mod tests;
mod types;

/// Alignment of object headers and of the heap in bytes.
const WORD: u64 = 8;

/// Estimated memory in bytes of an object, without attributes and name.
const OBJECT: usize = 2 << 10;

/// Attributes that HDF5 and netCDF-C write themselves.
pub const OWN_ATTRIBUTES: [&str; 7] = [
    "CLASS",
    "NAME",
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "DIMENSION_LABELS",
    "_Netcdf4Dimid",
    "_Netcdf4Coordinates",
];

/// The attribute of the root that names the program that made the file.
const MAKER: &str = "_NCProperties";

/// What netCDF-C names a scale that stands for a dimension alone (`DIM_WITHOUT_VARIABLE`).
pub const NO_VARIABLE: &str = "This is a netCDF dimension but not a netCDF variable.";

/// The name of the data set of an array that is the root of its store, which has no name.
pub const ROOT_NAME: &str = "data";

/// Returns whether HDF5 has a type for the values of an array, and netCDF-C dimensions for it.
pub fn fits(metadata: &ArrayMetadata) -> bool {
    (metadata.has_objects() || types::of_array(metadata).is_ok()) && !metadata.shape.contains(&0)
}

/// Makes the group at `key`, with all groups and arrays below it, an HDF5 file. An array at the
/// root of a store becomes a group with one data set, `data`.
///
/// Arrays that the format cannot hold are left out, and an attribute of the root lists them.
///
/// # Errors
///
/// [`zarrfs_base::error::Kind::NotFound`] if there is nothing of this kind, ENOMEM if there are too
/// many arrays for the memory.
pub fn file_of_group(hierarchy: &dyn HierarchyReader, key: &Key) -> Result<Composite> {
    let mut file = Hdf5File::default();
    match hierarchy.find(key)? {
        Some(HierarchyNode::Group) => file.collect(hierarchy, key)?,
        Some(node @ HierarchyNode::Array(_)) if key.is_root() => {
            file.push(key, Vec::new(), ObjectContent::Group(BTreeMap::new()));
            let name = key.join(ROOT_NAME);
            file.add(hierarchy, key, &name, &node)?;
        }
        _ => return Err(Error::not_found("no such group").context(key)),
    }
    file.find_dimensions();
    file.composite().context(key)
}

/// An object of the file: a group or an array.
struct FileObject {
    key: Key,
    attributes: Vec<ObjectAttribute>,
    content: ObjectContent,
}

enum ObjectContent {
    /// The numbers of the members of a group, by their names.
    Group(BTreeMap<String, usize>),
    Values(Box<ObjectValues>),
}

/// The values of an array, or a dimension without any.
struct ObjectValues {
    kind: ValueType,
    shape: Vec<u64>,
    fill: Vec<u8>,
    /// Number of bytes.
    size: u64,
    source: ValueSource,
    /// The names of the dimensions, where metadata has them.
    names: Vec<Option<String>>,
    /// The scales of the dimensions, by their numbers.
    scales: Vec<Option<usize>>,
    /// Whether the array is the scale of its dimension.
    is_scale: bool,
}

enum ValueSource {
    /// Flat bytes, in the parts of a file. Arrays are not kept: there may be very many.
    Flat(PartContent),
    /// Strings that were read.
    Strings(HeapStrings),
    /// Strings of any length that were read, padded.
    Padded(Arc<[u8]>),
    /// Nothing: the object stands for a dimension.
    Nothing,
}

/// The objects of a file, the root group first.
#[derive(Default)]
struct Hdf5File {
    objects: Vec<FileObject>,
    /// The numbers of groups by their keys.
    groups: HashMap<Key, usize>,
    /// Reasons by the path of what is left out.
    left_out: BTreeMap<String, String>,
    sources: Vec<Key>,
    /// Size of all values in bytes.
    size: u64,
    /// Grant for everything.
    held: memory::Grant,
}

impl Hdf5File {
    /// Collects the groups and arrays.
    fn collect(&mut self, hierarchy: &dyn HierarchyReader, top: &Key) -> Result<()> {
        hierarchy.visit_below(top, &mut |key, node| self.add(hierarchy, top, key, &node))?;
        // what lies beyond the bounds of the walk, or could not be read, is in the statistics
        if self.objects.is_empty() {
            return Err(Error::stale());
        }
        Ok(())
    }

    fn add(
        &mut self,
        hierarchy: &dyn HierarchyReader,
        top: &Key,
        key: &Key,
        node: &HierarchyNode,
    ) -> Result<()> {
        let path = key.relative_to(top).unwrap_or_default();
        let parent = self.groups.get(&key.parent()).copied();
        if key != top && parent.is_none() {
            return Ok(());
        }
        if key.name().len() > MAX_NAME {
            self.leave_out(path.as_str(), "its name is too long");
            return Ok(());
        }
        let object = match node {
            HierarchyNode::Group => {
                self.sources.push(key.clone());
                let stored = hierarchy.attributes(key)?;
                let of_group = attributes::of_group(&stored, &[], &Type::INTEGERS);
                Ok((of_group, ObjectContent::Group(BTreeMap::new())))
            }
            HierarchyNode::Array(array) => {
                self.sources.push(array.key.clone());
                self.values_of(hierarchy, array)?
            }
            // what is left out would depend on the memory
            HierarchyNode::Damaged(e) if e.errno() == libc::ENOMEM => return Err(e.clone()),
            HierarchyNode::Damaged(e) => {
                self.sources.push(key.clone());
                Err(e.to_string())
            }
        };
        let (attributes, content) = match object {
            Ok(object) => object,
            Err(why) => {
                self.leave_out(path.as_str(), &why);
                return Ok(());
            }
        };
        let of_attributes = attributes
            .iter()
            .map(|attribute| attribute.name.len() + attribute.values.len());
        let needed = OBJECT + 3 * key.as_str().len() + of_attributes.sum::<usize>();
        self.held.grow(needed)?;
        memory::check_available()?;
        let mut kept = Vec::with_capacity(attributes.len());
        for attribute in attributes.into_iter().filter_map(attribute) {
            // a name that netCDF does not permit may have been replaced with one of these
            let why = if [attributes::LEFT_OUT, MAKER].contains(&attribute.name.as_str()) {
                "the file has an attribute of this name itself"
            } else if !attribute.fits() {
                "HDF5 has no attributes of more than 64 KiB"
            } else {
                kept.push(attribute);
                continue;
            };
            let place = format!("attribute {} of /{}", attribute.name, path.as_str());
            self.leave_out(&place, why);
        }
        let number = self.push(key, kept, content);
        if let Some(parent) = parent.filter(|_| key != top) {
            self.add_link(parent, key.name().to_string(), number);
        }
        Ok(())
    }

    /// Adds an object. Returns its number.
    fn push(
        &mut self,
        key: &Key,
        attributes: Vec<ObjectAttribute>,
        content: ObjectContent,
    ) -> usize {
        let number = self.objects.len();
        if let ObjectContent::Group(_) = content {
            self.groups.insert(key.clone(), number);
        }
        self.objects.push(FileObject {
            key: key.clone(),
            attributes,
            content,
        });
        number
    }

    fn leave_out(&mut self, path: &str, why: &str) {
        self.left_out.insert(path.to_string(), why.to_string());
    }

    fn add_link(&mut self, group: usize, name: String, number: usize) {
        if let Some(FileObject {
            content: ObjectContent::Group(members),
            ..
        }) = self.objects.get_mut(group)
        {
            members.insert(name, number);
        }
    }

    /// Returns the attributes and the values of an array, or the reason why it is left out.
    fn values_of(
        &mut self,
        hierarchy: &dyn HierarchyReader,
        array: &ArrayNode,
    ) -> Result<std::result::Result<(Vec<Attribute>, ObjectContent), String>> {
        if let Err(e) = &array.readable {
            return Ok(Err(e.message().to_string()));
        }
        let metadata = &array.metadata;
        // netCDF-C takes it for an unlimited dimension
        if metadata.shape.contains(&0) {
            return Ok(Err("a dimension has length 0".into()));
        }
        let item = metadata.dtype.size() as u64;
        let product = metadata
            .shape
            .iter()
            .fold(item, |size, len| size.saturating_mul(*len));
        if product > MAX_FILE {
            return Ok(Err("its dimensions are too long".into()));
        }
        let classic = native_type(array).unwrap_or(Type::Byte);
        let mut member = GroupArray::new(hierarchy, array, classic, &mut self.sources)?;
        member.state_sign();
        let flags = add_flags(hierarchy, array, &mut member.attributes, &mut self.sources);
        self.held = std::mem::take(&mut self.held).and(flags);
        let shown = member.with_sign.as_deref().unwrap_or(metadata);
        let (kind, source, size) = match self.source_of(array, shown)? {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let fill = match &source {
            ValueSource::Flat(PartContent::Flat { form, .. }) => types::fill(metadata, form),
            _ => Vec::new(),
        };
        let room = size + source.heap_len();
        let Some(total) = self.size.checked_add(room).filter(|size| *size <= MAX_FILE) else {
            return Ok(Err("makes the file larger than 2^63 bytes".into()));
        };
        let mut of_array = attributes::of_variable(&member, member.kind, &Type::INTEGERS);
        of_array.retain(|attribute| fits_values(attribute, &kind));
        self.size = total;
        let is_scale = member.is_coordinate();
        let names: Vec<Option<String>> = member
            .dimensions()
            .map(|(name, _)| name.map(str::to_string))
            .collect();
        let values = ObjectValues {
            kind,
            shape: metadata.shape.clone(),
            fill,
            size,
            source,
            scales: vec![None; names.len()],
            names,
            is_scale,
        };
        Ok(Ok((of_array, ObjectContent::Values(Box::new(values)))))
    }

    /// Returns the type, the source and the size in bytes of the values of an array, or the reason
    /// why it is left out. `shown` is its metadata with the sign that the file states.
    fn source_of(
        &mut self,
        array: &ArrayNode,
        shown: &ArrayMetadata,
    ) -> Result<std::result::Result<(ValueType, ValueSource, u64), String>> {
        let metadata = &array.metadata;
        if strings::has_strings(metadata) {
            array.chunks.open()?;
            if let Some(strings) = self.read_heap(array)? {
                let kind = ValueType::Strings(strings.encoding);
                let size = strings.sequences() as u64;
                return Ok(Ok((kind, ValueSource::Strings(strings), size)));
            }
        }
        if metadata.has_objects() {
            let encoding = match StringEncoding::of(metadata) {
                Some(StringEncoding::VlenBytes) => TextEncoding::Ascii,
                _ => TextEncoding::Utf8,
            };
            return match read_strings(array, self.free()) {
                Ok(strings) => {
                    self.held.grow(strings.values.len())?;
                    let kind = ValueType::Text(strings.longest, encoding);
                    let size = strings.values.len() as u64;
                    Ok(Ok((kind, ValueSource::Padded(strings.values), size)))
                }
                Err(e) => Ok(Err(e.to_string())),
            };
        }
        let (kind, form) = match types::of_array(shown) {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let Some(size) = form.shown_size(array.size()) else {
            return Ok(Err("has more than 2^64 bytes".into()));
        };
        let range = 0..metadata.flat_size();
        let content = PartContent::flat(array.key.clone(), metadata, range, form);
        Ok(Ok((kind, ValueSource::Flat(content), size)))
    }

    /// Returns the number of bytes that strings may take.
    fn free(&self) -> usize {
        (memory::limit() / 4).saturating_sub(self.held.bytes())
    }

    /// Reads the strings of an array; `None` if the file holds them with a fixed length.
    fn read_heap(&mut self, array: &ArrayNode) -> Result<Option<HeapStrings>> {
        let before = self.held.bytes();
        let most = strings::MAX_BYTES.min(self.free());
        self.held.grow(2 * most)?;
        let strings = HeapStrings::read(array, most).ok();
        let kept = strings.as_ref().map_or(0, HeapStrings::len);
        self.held.shrink_to(before + kept);
        Ok(strings)
    }

    /// Finds the scale of each dimension: the coordinate in the group of the array or the nearest
    /// one above, or else a scale that stands for the dimension alone. NetCDF-C adds those that are
    /// missing to a file that it opens for writing.
    fn find_dimensions(&mut self) {
        let mut scales: HashMap<(Key, DimensionIdentity), usize> = HashMap::new();
        for (number, object) in self.objects.iter().enumerate() {
            if let ObjectContent::Values(values) = &object.content
                && values.is_scale
            {
                let dimension = DimensionIdentity {
                    name: Some(object.key.name().to_string()),
                    len: values.shape[0],
                    before: 0,
                };
                scales.insert((object.key.parent(), dimension), number);
            }
        }
        for number in 0..self.objects.len() {
            let ObjectContent::Values(values) = &self.objects[number].content else {
                continue;
            };
            if values.is_scale {
                continue;
            }
            let names = values.names.iter().map(Option::as_deref);
            let names = names.map(|name| name.filter(|name| !name.is_empty()));
            let named = names.chain(std::iter::repeat(None));
            let dimensions: Vec<DimensionIdentity> =
                identities(named.zip(values.shape.iter().copied())).collect();
            let group = self.objects[number].key.parent();
            let found = dimensions.into_iter().map(|dimension| {
                let above = std::iter::successors(Some(group.clone()), |key| {
                    (!key.is_root()).then(|| key.parent())
                });
                let known = above
                    .map_while(|key| self.groups.contains_key(&key).then_some(key))
                    .find_map(|key| scales.get(&(key, dimension.clone())).copied());
                if known.is_some() {
                    return known;
                }
                let scale = self.add_dimension(&group, &dimension)?;
                scales.insert((group.clone(), dimension), scale);
                Some(scale)
            });
            let found: Vec<Option<usize>> = found.collect();
            if let ObjectContent::Values(values) = &mut self.objects[number].content {
                values.scales = found;
            }
        }
    }

    /// Adds a dimension that no array describes.
    fn add_dimension(&mut self, group: &Key, dimension: &DimensionIdentity) -> Option<usize> {
        let len = dimension.len;
        self.held.grow(OBJECT).ok()?;
        let parent = *self.groups.get(group)?;
        let ObjectContent::Group(members) = &self.objects[parent].content else {
            return None;
        };
        let name = dimension.name.as_deref().map(legal);
        let with_len = with_suffix(name.as_deref().unwrap_or("dim"), &len.to_string());
        let name = name
            .into_iter()
            .chain([with_len.clone()])
            .chain((2..).map(|n: u64| with_suffix(&with_len, &n.to_string())))
            .find(|name| !members.contains_key(name))?;
        let content = ObjectContent::Values(Box::new(ObjectValues {
            kind: ValueType::Number(NumberType::of_floats(4, true)),
            shape: vec![len],
            fill: Vec::new(),
            size: 0,
            source: ValueSource::Nothing,
            names: Vec::new(),
            scales: vec![None],
            is_scale: true,
        }));
        let number = self.push(&group.join(&name), Vec::new(), content);
        self.add_link(parent, name, number);
        Some(number)
    }

    /// Lays out the file.
    fn composite(mut self) -> Result<Composite> {
        let reasons: Vec<String> = self
            .left_out
            .iter()
            .map(|(path, why)| format!("{path}: {why}"))
            .collect();
        if !reasons.is_empty() {
            let text = reasons.join("\n").into_bytes();
            let listed = text_attribute(attributes::LEFT_OUT, cut(text));
            self.objects[0].attributes.push(listed);
        }
        // netCDF-C adds it to a file that it opens for writing
        let maker = format!("version=2,zarrfs={}", env!("CARGO_PKG_VERSION"));
        let maker = text_attribute(MAKER, maker.into_bytes());
        self.objects[0].attributes.push(maker);
        let references = self.references();
        // neither the sizes of headers nor the places in the heap depend on addresses
        let mut heap = Heap::default();
        let in_heap: HashMap<usize, HeapPlace> = references
            .iter()
            .map(|scale| (*scale, heap.push(&UNDEFINED.to_le_bytes())))
            .collect();
        let mut places = Places {
            headers: vec![0; self.objects.len()],
            values: vec![0; self.objects.len()],
            heap: 0,
        };
        let mut at = SUPERBLOCK as u64;
        for number in 0..self.objects.len() {
            at = at.next_multiple_of(WORD);
            let len = self.header(number, &places, &in_heap)?.len();
            places.headers[number] = at;
            at += len as u64;
        }
        places.heap = at.next_multiple_of(WORD);
        let own = places.heap + heap.into_bytes().len() as u64;
        let mut file = Composite::default();
        let has_values = self.objects.iter().any(|object| object.room() > 0);
        let mut end = own.next_multiple_of(if has_values { READER_BLOCK } else { 1 });
        for (number, object) in self.objects.iter().enumerate() {
            places.values[number] = if object.room() == 0 {
                UNDEFINED
            } else {
                end = end.next_multiple_of(ALIGNMENT);
                let at = end;
                end += object.room();
                at
            };
        }
        let mut bytes = memory::zeroed(own as usize)?;
        let superblock = messages::superblock(places.headers[0], end);
        bytes[..SUPERBLOCK].copy_from_slice(&superblock);
        for number in 0..self.objects.len() {
            let header = self.header(number, &places, &in_heap)?;
            let at = places.headers[number] as usize;
            bytes[at..at + header.len()].copy_from_slice(&header);
        }
        let mut heap = Heap::default();
        for scale in references {
            heap.push(&places.headers[scale].to_le_bytes());
        }
        bytes[places.heap as usize..].copy_from_slice(&heap.into_bytes());
        file.push_bytes(bytes);
        if has_values {
            file.pad_to(READER_BLOCK);
        }
        for (object, at) in self.objects.into_iter().zip(places.values) {
            let room = object.room();
            let ObjectContent::Values(values) = object.content else {
                continue;
            };
            if room == 0 {
                continue;
            }
            file.pad_to(ALIGNMENT);
            match values.source {
                ValueSource::Flat(content) => file.push(room, content),
                ValueSource::Strings(strings) => {
                    file.push_values(object.key, room, strings.at(at).into());
                }
                ValueSource::Padded(bytes) => file.push_values(object.key, room, bytes),
                ValueSource::Nothing => {}
            }
        }
        file.left_out = reasons;
        file.sources = self.sources;
        Ok(file)
    }

    /// Returns the scales that arrays refer to.
    fn references(&self) -> Vec<usize> {
        let mut numbers: Vec<usize> = self
            .objects
            .iter()
            .filter_map(|object| match &object.content {
                ObjectContent::Values(values) => Some(values.scales.iter().flatten().copied()),
                ObjectContent::Group(_) => None,
            })
            .flatten()
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Returns the header of an object.
    fn header(
        &self,
        number: usize,
        places: &Places,
        references: &HashMap<usize, HeapPlace>,
    ) -> Result<Vec<u8>> {
        let object = &self.objects[number];
        let mut messages = Messages::default();
        messages.attribute_info();
        match &object.content {
            ObjectContent::Group(members) => {
                messages.group(members.len());
                for (order, (name, member)) in members.iter().enumerate() {
                    messages.link(order, name, places.headers[*member]);
                }
            }
            ObjectContent::Values(values) => {
                let place = (places.values[number], values.size);
                messages.values(&values.kind, &values.shape, &values.fill, place);
                for attribute in values.dimensions(&object.key, references, places.heap) {
                    messages.attribute(&attribute);
                }
            }
        }
        for attribute in &object.attributes {
            messages.attribute(attribute);
        }
        Ok(messages.into_header())
    }
}

/// Where the parts of a file are.
struct Places {
    headers: Vec<u64>,
    values: Vec<u64>,
    heap: u64,
}

impl FileObject {
    /// Returns the number of bytes that the values take in the file.
    fn room(&self) -> u64 {
        match &self.content {
            ObjectContent::Values(values) => values.size + values.source.heap_len(),
            ObjectContent::Group(_) => 0,
        }
    }
}

impl ValueSource {
    /// Returns the number of bytes that follow the values in the file, to which they refer.
    fn heap_len(&self) -> u64 {
        match self {
            ValueSource::Strings(strings) => (strings.len() - strings.sequences()) as u64,
            _ => 0,
        }
    }
}

impl ObjectValues {
    /// Returns the attributes that say which dimensions the array has, or that it is one.
    fn dimensions(
        &self,
        key: &Key,
        references: &HashMap<usize, HeapPlace>,
        heap: u64,
    ) -> Vec<ObjectAttribute> {
        if self.is_scale {
            let name = match self.source {
                ValueSource::Nothing => format!("{NO_VARIABLE}{:>10}", self.shape[0]),
                _ => key.name().to_string(),
            };
            return [("CLASS", "DIMENSION_SCALE"), ("NAME", &name)]
                .map(|(attribute, text)| ObjectAttribute {
                    name: attribute.to_string(),
                    kind: ValueType::Name(text.len() + 1),
                    shape: Some(Vec::new()),
                    values: [text.as_bytes(), b"\0"].concat(),
                })
                .into();
        }
        if self.scales.iter().all(Option::is_none) {
            return Vec::new();
        }
        // a sequence of one reference, or of none
        let values = self.scales.iter().flat_map(|scale| {
            let place = scale.and_then(|scale| references.get(&scale));
            place.map_or([0; SEQUENCE], |place| place.sequence(1, heap))
        });
        vec![ObjectAttribute {
            name: "DIMENSION_LIST".to_string(),
            kind: ValueType::References,
            shape: Some(vec![self.scales.len() as u64]),
            values: values.collect(),
        }]
    }
}

/// Returns whether an attribute that was made for netCDF stays: a missing value has the type of the
/// values or misleads netCDF-C, which refuses it. Strings are decoded already, whereas the bytes of
/// characters are not.
fn fits_values(attribute: &Attribute, kind: &ValueType) -> bool {
    if attribute.name == "_Encoding" {
        return matches!(kind, ValueType::Text(1, _));
    }
    const TYPED: [&str; 5] = [
        "_FillValue",
        "missing_value",
        "valid_min",
        "valid_max",
        "valid_range",
    ];
    if !TYPED.contains(&attribute.name.as_str()) {
        return true;
    }
    let ValueType::Number(number) = kind else {
        return false;
    };
    attribute.name != "_FillValue" || attribute.values.len() == number.size
}

/// Converts an attribute that was made for netCDF; `None` for those that the file has itself.
fn attribute(from: Attribute) -> Option<ObjectAttribute> {
    if OWN_ATTRIBUTES.contains(&from.name.as_str()) {
        return None;
    }
    let Some(number) = from.kind.number() else {
        return Some(text_attribute(&from.name, from.values));
    };
    let count = from.values.len() / number.size;
    Some(ObjectAttribute {
        name: from.name,
        kind: ValueType::Number(number),
        shape: Some(if count == 1 {
            Vec::new()
        } else {
            vec![count as u64]
        }),
        values: from.values,
    })
}

fn text_attribute(name: &str, text: Vec<u8>) -> ObjectAttribute {
    ObjectAttribute {
        name: name.to_string(),
        kind: ValueType::Text(text.len().max(1), TextEncoding::Utf8),
        shape: (!text.is_empty()).then(Vec::new),
        values: text,
    }
}

/// Cuts a list of lines so that it fits into an attribute.
fn cut(mut lines: Vec<u8>) -> Vec<u8> {
    const MOST: usize = 60 << 10;
    if lines.len() > MOST {
        lines.truncate(MOST);
        let end = lines.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        lines.truncate(end);
        lines.extend(b"\nand more");
    }
    lines
}
