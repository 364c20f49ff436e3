//! The content that all formats of group files share: the arrays with the attributes, names, types
//! and dimensions that they have in netCDF's data model. This module knows neither headers nor
//! offsets.

use crate::describe::{GridMapping, axis_names, fill_is_missing, with_stated_sign};
use crate::form::ItemForm;
use crate::reader::{ArrayNode, HierarchyReader};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use types::{Type, type_of};
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Object, Value};
use zarrfs_base::key::Key;
use zarrfs_base::memory::{self, SharedGrant};
use zarrfs_format::metadata::{ArrayMetadata, V3Fields};

pub mod attributes;
pub mod names;
pub mod types;

/// Alignment of each array's data in bytes, so that pages of the file are pages of `data.raw`, and
/// an array that cannot be read takes out no other, and no header.
pub const ALIGNMENT: u64 = 4096;

/// Size in bytes of the blocks that NetCDF-C reads, at multiples of it. A read that reaches an
/// unreadable value fails as a whole, so the header shares no block with values.
pub const READER_BLOCK: u64 = 4 << 20;

/// Maximum size in bytes of a variable in CDF-2, except the last one (`NC_check_vlens` in
/// netcdf-c).
const MAX_VARIABLE: u64 = u32::MAX as u64 - 3;

/// Memory in bytes of shortened metadata, without lists and the spelling of the dtype.
const STATED: usize = size_of::<ArrayMetadata>() + size_of::<V3Fields>() + 64;

/// What makes two dimensions of arrays the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DimensionIdentity {
    /// The name in the metadata, if any.
    pub name: Option<String>,
    /// Number of items.
    pub len: u64,
    /// The number of unnamed dimensions of the same length that precede it in the array.
    pub before: usize,
}

/// Identifies the dimensions of an array, given by names and lengths.
pub fn identities<'a>(
    dimensions: impl Iterator<Item = (Option<&'a str>, u64)>,
) -> impl Iterator<Item = DimensionIdentity> {
    let mut unnamed: HashMap<u64, usize> = HashMap::new();
    dimensions.map(move |(name, len)| {
        let mut before = 0;
        if name.is_none() {
            let count = unnamed.entry(len).or_default();
            before = *count;
            *count += 1;
        }
        DimensionIdentity {
            name: name.map(str::to_string),
            len,
            before,
        }
    })
}

/// An array of a file.
pub struct GroupArray {
    /// The key of the array.
    pub key: Key,
    /// Its metadata.
    pub metadata: Arc<ArrayMetadata>,
    /// The array itself, if its chunks are still to be read.
    pub array: Option<ArrayNode>,
    /// Its attributes as stored.
    pub attributes: Object,
    /// Whether the fill value stands for missing values.
    pub fill_is_missing: bool,
    /// The grid mapping that another convention than CF states.
    pub mapping: Option<Arc<GridMapping>>,
    /// The metadata with another sign of integers, if the type of the file states it.
    pub with_sign: Option<Box<ArrayMetadata>>,
    /// The names of its dimensions, where metadata has them.
    pub names: Vec<Option<String>>,
    /// The type of its values in the file.
    pub kind: Type,
    /// Whether its first dimension is the record dimension.
    pub is_record: bool,
    /// The number of bytes of each text, if the file has a dimension for them that the array lacks.
    pub letters: Option<u64>,
    /// The values of an array without flat bytes.
    pub values: Option<Arc<[u8]>>,
}

impl GroupArray {
    /// Reads the array's attributes and the names of its dimensions; groups that provide names are
    /// added to `sources`.
    pub fn new(
        hierarchy: &dyn HierarchyReader,
        array: &ArrayNode,
        kind: Type,
        sources: &mut Vec<Key>,
    ) -> Result<Self> {
        let attributes = hierarchy.attributes(&array.key)?;
        let names = axis_names(hierarchy, array, &attributes, sources);
        let letters = (kind == Type::Char).then_some(array.metadata.dtype.size() as u64);
        Ok(GroupArray {
            fill_is_missing: fill_is_missing(
                hierarchy.fill_meaning(array),
                &array.metadata,
                &attributes,
            ),
            mapping: None,
            with_sign: None,
            key: array.key.clone(),
            metadata: array.metadata.clone(),
            array: None,
            attributes,
            names,
            kind,
            is_record: false,
            letters,
            values: None,
        })
    }

    /// Gives integers the sign that an attribute states, and the values the type of the file for
    /// it.
    pub fn state_sign(&mut self) {
        let shown = with_stated_sign(&self.metadata, &self.attributes);
        if let (Cow::Owned(shown), Ok(kind)) = (&shown, type_of(&shown)) {
            self.kind = kind;
            self.with_sign = Some(shown.clone().into());
        }
    }

    /// Returns the array's name.
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// Returns the array's metadata.
    pub fn metadata(&self) -> &ArrayMetadata {
        &self.metadata
    }

    /// Replaces the metadata by what the file states of them, which `last` has if the arrays are
    /// alike: there may be very many.
    ///
    /// # Errors
    ///
    /// There is no memory for them.
    pub fn shorten_metadata(&mut self, last: Option<&GroupArray>) -> Result<()> {
        let whole = &self.metadata;
        let mut stated = ArrayMetadata {
            fill_value: Value::Null,
            v3: whole.v3.as_ref().map(|_| Box::default()),
            memory: SharedGrant::default(),
            ..whole.without_codecs(whole.shape.clone(), Vec::new())
        };
        if let Some(last) = last.filter(|last| *last.metadata == stated) {
            self.metadata = last.metadata.clone();
            return Ok(());
        }
        let spelled = 2 * json::memory_of(&stated.dtype_json);
        let lists =
            size_of_val(stated.shape.as_slice()) + stated.fill.iter().map(Vec::len).sum::<usize>();
        stated.memory = memory::take(STATED + spelled + lists)?.into();
        self.metadata = stated.into();
        Ok(())
    }

    /// Returns the names, where known, and the lengths of the dimensions.
    pub fn dimensions(&self) -> impl Iterator<Item = (Option<&str>, u64)> {
        let names = self
            .names
            .iter()
            .map(Option::as_deref)
            .chain(std::iter::repeat(None));
        names.zip(self.metadata().shape.iter().copied())
    }

    /// Returns whether the array is a coordinate variable: it has one dimension with its own name.
    pub fn is_coordinate(&self) -> bool {
        self.dimensions()
            .map(|(name, _)| name)
            .eq([Some(self.name())])
    }

    /// Returns whether the array has at most one dimension, and CDF-2 lacks the type of its values.
    pub fn lacks_type(&self) -> bool {
        self.kind > Type::UByte && self.metadata().shape.len() <= 1
    }

    /// Returns how the file holds the items.
    pub fn form(&self) -> ItemForm {
        types::form(self.metadata(), self.kind)
    }

    /// Returns the size of the variable in bytes, of a record variable in each record; the largest
    /// number if 64 bits do not hold it.
    pub fn variable_size(&self) -> u64 {
        let metadata = self.metadata();
        match (&self.values, self.letters) {
            (Some(_), Some(letters)) => {
                let inner = metadata.shape.iter().skip(usize::from(self.is_record));
                inner.fold(letters, |size, len| size.saturating_mul(*len))
            }
            _ if self.is_record => self.shown_size(metadata.row_size()),
            _ => self.shown_size(metadata.flat_size()),
        }
    }

    /// Returns the size in the file of so many flat bytes.
    pub fn shown_size(&self, stored: u64) -> u64 {
        self.form().shown_size(stored).unwrap_or(u64::MAX)
    }

    /// Returns whether CDF-2 has the variable only at the end of a file or record.
    pub fn is_large(&self) -> bool {
        self.variable_size() > MAX_VARIABLE
    }

    /// Returns whether a dimension other than the record dimension has length 0, which marks the
    /// record dimension.
    pub fn is_empty(&self) -> bool {
        self.metadata()
            .shape
            .iter()
            .skip(usize::from(self.is_record))
            .any(|len| *len == 0)
    }
}
