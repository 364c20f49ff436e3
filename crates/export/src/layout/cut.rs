//! A cut along a dimension: the runs of indices whose items have the same names. This module reads
//! a coordinate once, and knows no files.

use super::members::LayoutMembers;
use super::pattern::{FieldKind, TimePart};
use super::{MAX_PIECES, text_at};
use crate::calendar::{Cycle, Moment, TimeScale};
use crate::describe::{
    are_strings, attribute_nodata, attribute_number, axis_names, flat_range, number_item, texts,
    time_unit, with_stated_sign,
};
use crate::described::MetadataNumber;
use crate::reader::{ArrayNode, HierarchyReader};
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{self, Object};
use zarrfs_base::key::Key;
use zarrfs_base::memory::{self, Grant};

/// Maximum number of items of a coordinate.
const MAX_ITEMS: u64 = 1 << 20;

/// A cut along a dimension.
#[derive(Debug)]
pub struct AxisCut {
    /// The name of the coordinate in the pattern.
    pub name: String,
    /// The dimension that is cut.
    pub dimension: String,
    /// The length of the dimension in the coordinate.
    pub len: u64,
    /// The coordinate array; `None` for a dimension without one.
    pub array: Option<Key>,
    /// The array that ends the dimension, if it is shorter than the coordinate.
    pub shortest: Option<Key>,
    /// The index at which each run begins, and the end of the last.
    starts: Vec<u64>,
    /// The texts of all fields of all runs, side by side.
    texts: String,
    /// Where each text begins, and the end of the last.
    begins: Vec<u32>,
    /// The number of fields.
    fields: usize,
    /// The last item of the coordinate when the names were made.
    last: Option<CoordinateItem>,
    _memory: Grant,
}

/// An item of a coordinate.
#[derive(Clone, Debug, PartialEq)]
enum CoordinateItem {
    Number(MetadataNumber),
    Text(String),
    Missing,
}

/// The items of a coordinate.
enum CoordinateItems {
    Numbers {
        bytes: Vec<u8>,
        array: Box<ArrayNode>,
        missing: Option<MetadataNumber>,
        scale: Option<f64>,
        offset: Option<f64>,
    },
    Texts(Vec<String>),
    /// Indices alone.
    None,
}

impl CoordinateItems {
    /// Reads the items of a coordinate in a range.
    fn read(array: &ArrayNode, attributes: &Object, range: Range<u64>) -> Result<(Self, Grant)> {
        if are_strings(&array.metadata) {
            let (texts, memory) = texts(array, MAX_ITEMS)?;
            let count = (range.end - range.start) as usize;
            let texts = texts.into_iter().skip(range.start as usize).take(count);
            return Ok((CoordinateItems::Texts(texts.collect()), memory));
        }
        let metadata = with_stated_sign(&array.metadata, attributes).into_owned();
        let size = metadata.dtype.size() as u64;
        let memory = memory::take(((range.end - range.start) * size) as usize)?;
        let bytes = flat_range(array, range.start * size..range.end * size)?;
        let factor = |name: &str| attribute_number(attributes, name);
        let items = CoordinateItems::Numbers {
            bytes,
            missing: attribute_nodata(&metadata, attributes),
            scale: factor("scale_factor").filter(|factor| *factor != 0.0),
            offset: factor("add_offset"),
            array: Box::new(ArrayNode {
                metadata: metadata.into(),
                ..array.clone()
            }),
        };
        Ok((items, memory))
    }

    /// Returns an item. Times count in the units of the array.
    fn get(&self, index: usize) -> CoordinateItem {
        match self {
            CoordinateItems::None => CoordinateItem::Missing,
            CoordinateItems::Texts(texts) => texts
                .get(index)
                .cloned()
                .map_or(CoordinateItem::Missing, CoordinateItem::Text),
            CoordinateItems::Numbers {
                bytes,
                array,
                missing,
                scale,
                offset,
            } => {
                let dtype = &array.metadata.dtype;
                let size = dtype.size().max(1);
                let stored = bytes.get(index * size..(index + 1) * size);
                let Some(number) = stored.and_then(|stored| number_item(dtype, stored)) else {
                    return CoordinateItem::Missing;
                };
                let is_nan = matches!(number, MetadataNumber::Float(x) if !x.is_finite());
                let is_nat = dtype.has_time() && number == MetadataNumber::Int(i64::MIN.into());
                if is_nan || is_nat || Some(number) == *missing {
                    return CoordinateItem::Missing;
                }
                if scale.is_none() && offset.is_none() {
                    return CoordinateItem::Number(number);
                }
                let value = number.as_f64() * scale.unwrap_or(1.0) + offset.unwrap_or(0.0);
                CoordinateItem::Number(MetadataNumber::Float(value))
            }
        }
    }
}

/// A run of indices of a dimension, and the names of its items.
pub struct IndexRun<'a> {
    /// The indices.
    pub range: Range<u64>,
    cut: &'a AxisCut,
    number: usize,
}

impl IndexRun<'_> {
    /// Returns the text of a field.
    pub fn text(&self, field: usize) -> &str {
        self.cut.text(self.number * self.cut.fields + field)
    }
}

impl AxisCut {
    /// Finds the coordinate `name` and the runs of its items that have the same texts in the
    /// fields.
    ///
    /// # Errors
    ///
    /// There is no such coordinate or dimension, an item is missing, items are not in order, or
    /// runs have the same texts. An error of the store.
    pub fn find(
        hierarchy: &dyn HierarchyReader,
        members: &LayoutMembers,
        name: &str,
        fields: &[&FieldKind],
    ) -> Result<Self> {
        let found = find_coordinate(hierarchy, members.group(), name)?;
        let needs_items = fields
            .iter()
            .any(|kind| !matches!(kind, FieldKind::Index(_)));
        let Some((array, dimension)) = found else {
            let of_index = members.length(name).filter(|_| !needs_items);
            let (len, _) = of_index.ok_or_else(|| {
                let group = members.group();
                let why = format!("{group} has no coordinate {name:?} of one dimension");
                Error::invalid(why)
            })?;
            let cut = AxisCut::new(name, name, len, fields.len());
            return cut.with_runs(&CoordinateItems::None, None, fields, len);
        };
        let whole = array.metadata.shape.iter().product();
        let (len, shortest) = members.length(&dimension).unwrap_or((whole, &array.key));
        let len = len.min(whole);
        let mut cut = AxisCut::new(name, &dimension, whole, fields.len());
        cut.shortest = Some(shortest.clone()).filter(|_| len < whole);
        cut.array = Some(array.key.clone());
        if !needs_items {
            return cut.with_runs(&CoordinateItems::None, None, fields, len);
        }
        let attributes = hierarchy.attributes(&array.key)?;
        let has_time = |kind: &&FieldKind| matches!(kind, FieldKind::Calendar(_));
        let scale = if fields.iter().any(has_time) {
            Some(time_scale(&array, &attributes, name)?)
        } else {
            None
        };
        if len > MAX_ITEMS {
            let why = format!("{len} items of {name:?} are more than {MAX_ITEMS}");
            return Err(Error::invalid(why));
        }
        let (items, _memory) =
            CoordinateItems::read(&array, &attributes, 0..len).context(&array.key)?;
        if len == whole && len > 0 {
            cut.last = Some(items.get(len as usize - 1));
        }
        cut.with_runs(&items, scale.as_ref(), fields, len)
    }

    fn new(name: &str, dimension: &str, len: u64, fields: usize) -> Self {
        AxisCut {
            name: name.to_string(),
            dimension: dimension.to_string(),
            len,
            array: None,
            shortest: None,
            starts: Vec::new(),
            texts: String::new(),
            begins: Vec::new(),
            fields,
            last: None,
            _memory: Grant::default(),
        }
    }

    /// Finds the runs of the first `len` items.
    fn with_runs(
        mut self,
        items: &CoordinateItems,
        scale: Option<&TimeScale>,
        fields: &[&FieldKind],
        len: u64,
    ) -> Result<Self> {
        let mut order = ItemOrder::default();
        let mut texts = vec![String::new(); fields.len()];
        let mut last = texts.clone();
        for index in 0..len {
            let item = items.get(index as usize);
            let moment = scale.map(|scale| moment(scale, &item)).transpose();
            let moment = moment.map_err(|why| self.refused(index, why))?;
            for (text, kind) in texts.iter_mut().zip(fields) {
                text.clear();
                match (kind, &item) {
                    (FieldKind::Index(width), _) => {
                        // writing to a String cannot fail
                        let _ = write!(text, "{index:0width$}");
                    }
                    (_, CoordinateItem::Missing) => return Err(self.refused(index, "is missing")),
                    (FieldKind::Calendar(parts), _) => {
                        if let Some((scale, moment)) = scale.zip(moment.as_ref()) {
                            write_time(parts, scale, moment, text);
                        }
                    }
                    (_, CoordinateItem::Number(number)) => {
                        let _ = write!(text, "{number}");
                    }
                    (_, CoordinateItem::Text(word)) => text.push_str(word),
                }
            }
            if let CoordinateItem::Number(number) = &item
                && let Err(before) = order.add(*number)
            {
                let why = format!("is not in order behind item {before}: sort the store by it");
                return Err(self.refused(index, &why));
            }
            if index == 0 || texts != last {
                self.push_run(index, &texts)?;
                std::mem::swap(&mut texts, &mut last);
            }
        }
        self.starts.push(len);
        self.begins.push(self.texts.len() as u32);
        self.check_names()?;
        Ok(self)
    }

    fn refused(&self, index: u64, why: &str) -> Error {
        Error::invalid(format!("item {index} of {:?} {why}", self.name))
    }

    fn push_run(&mut self, index: u64, texts: &[String]) -> Result<()> {
        if self.starts.len() >= MAX_PIECES {
            let why = format!("{:?} makes more than {MAX_PIECES} files", self.name);
            return Err(Error::invalid(why));
        }
        let len: usize = texts.iter().map(String::len).sum();
        self._memory
            .grow(len + size_of::<u64>() + texts.len() * size_of::<u32>())?;
        self.starts.push(index);
        for text in texts {
            self.begins.push(self.texts.len() as u32);
            self.texts.push_str(text);
        }
        Ok(())
    }

    /// Checks that no two runs have the same texts.
    fn check_names(&self) -> Result<()> {
        let _memory = memory::take(self.count() * 2 * size_of::<(&str, usize)>())?;
        let mut known: HashMap<Vec<&str>, u64> = HashMap::new();
        for number in 0..self.count() {
            let fields = number * self.fields..(number + 1) * self.fields;
            let texts: Vec<&str> = fields.map(|field| self.text(field)).collect();
            if let Some(before) = known.insert(texts.clone(), self.starts[number]) {
                let why = format!("has the name {:?} of item {before}", texts.join(" "));
                return Err(self.refused(self.starts[number], &why));
            }
        }
        Ok(())
    }

    fn text(&self, number: usize) -> &str {
        text_at(&self.texts, &self.begins, number)
    }

    /// Returns the number of runs.
    pub fn count(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Returns whether each run has one index.
    pub fn is_single(&self) -> bool {
        self.starts
            .last()
            .is_none_or(|end| *end == self.count() as u64)
    }

    /// Returns a run.
    pub fn run(&self, number: usize) -> IndexRun<'_> {
        let start = self.starts.get(number).copied().unwrap_or(0);
        let end = self.starts.get(number + 1).copied().unwrap_or(start);
        IndexRun {
            range: start..end,
            cut: self,
            number,
        }
    }

    /// Returns whether the last item of the coordinate is the one of which the names were made.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn is_current(&self, hierarchy: &dyn HierarchyReader) -> Result<bool> {
        let (Some(key), Some(last)) = (&self.array, &self.last) else {
            // more items of a coordinate that is longer than the arrays may be read later
            return Ok(self.array.is_none() || self.starts.last() == Some(&self.len));
        };
        let Some(array) = hierarchy.find_array(key)? else {
            return Ok(false);
        };
        if array.metadata.shape != [self.len] {
            return Ok(false);
        }
        let attributes = hierarchy.attributes(key)?;
        let (items, _memory) = CoordinateItems::read(&array, &attributes, self.len - 1..self.len)?;
        Ok(items.get(0) == *last)
    }
}

/// The direction in which numbers follow each other.
#[derive(Default)]
struct ItemOrder {
    last: Option<MetadataNumber>,
    count: u64,
    is_falling: Option<bool>,
}

impl ItemOrder {
    /// Adds a number.
    ///
    /// # Errors
    ///
    /// The index of the item before, if the number is on its other side.
    fn add(&mut self, number: MetadataNumber) -> std::result::Result<(), u64> {
        let order = self.last.and_then(|last| match (last, number) {
            (MetadataNumber::Int(last), MetadataNumber::Int(number)) => Some(number.cmp(&last)),
            (last, number) => number.as_f64().partial_cmp(&last.as_f64()),
        });
        let is_falling = order
            .filter(|order| order.is_ne())
            .map(|order| order.is_lt());
        let known = self.is_falling.or(is_falling);
        if is_falling.is_some() && is_falling != known {
            return Err(self.count - 1);
        }
        self.is_falling = known;
        self.last = Some(number);
        self.count += 1;
        Ok(())
    }
}

/// Returns the nearest coordinate array of one dimension and its dimension.
fn find_coordinate(
    hierarchy: &dyn HierarchyReader,
    group: &Key,
    name: &str,
) -> Result<Option<(ArrayNode, String)>> {
    let groups = std::iter::once(group.clone()).chain(hierarchy.ancestors(group));
    for group in groups {
        let Ok(key) = group.child(name) else {
            return Ok(None);
        };
        let Some(array) = hierarchy.find_array(&key)? else {
            continue;
        };
        let attributes = hierarchy.attributes(&key)?;
        let mut names = axis_names(hierarchy, &array, &attributes, &mut Vec::new());
        if names.len() != 1 {
            return Ok(None);
        }
        let dimension = names.remove(0).unwrap_or_else(|| name.to_string());
        return Ok(Some((array, dimension)));
    }
    Ok(None)
}

/// Returns the meaning of the numbers of a time coordinate.
fn time_scale(array: &ArrayNode, attributes: &Object, name: &str) -> Result<TimeScale> {
    let text = |name: &str| attributes.get(name).and_then(json::text);
    if array.metadata.dtype.has_time() {
        let unit = time_unit(&array.metadata);
        let scale = unit.and_then(|(unit, factor)| {
            let scale =
                TimeScale::parse(&format!("{unit} since 1970-01-01"), "proleptic_gregorian");
            scale.map(|scale| scale.times(factor))
        });
        let why = || Error::invalid(format!("{name:?} counts years or months"));
        return scale.ok_or_else(why);
    }
    let units = text("units").unwrap_or_default();
    let calendar = text("calendar").unwrap_or("standard");
    if Cycle::of(calendar).is_none() {
        let why = format!("{name:?} has the unknown calendar {calendar:?}");
        return Err(Error::invalid(why));
    }
    TimeScale::parse(units, calendar).ok_or_else(|| {
        let why = format!("{name:?} is no time: units {units:?} in the calendar {calendar:?}");
        Error::invalid(why)
    })
}

fn moment(scale: &TimeScale, item: &CoordinateItem) -> std::result::Result<Moment, &'static str> {
    let moment = match item {
        CoordinateItem::Number(MetadataNumber::Int(number)) => scale.of_int(*number),
        CoordinateItem::Number(MetadataNumber::Float(number)) => scale.of_float(*number),
        CoordinateItem::Missing => return Err("is missing"),
        CoordinateItem::Text(_) => None,
    };
    moment.ok_or("is no date of the years 0 to 9999")
}

fn write_time(parts: &[TimePart], scale: &TimeScale, moment: &Moment, to: &mut String) {
    let (year, month, day) = moment.date;
    let (hour, minute) = moment.hour_and_minute();
    for part in parts {
        // writing to a String cannot fail
        let _ = match part {
            TimePart::Text(text) => write!(to, "{text}"),
            TimePart::Year => write!(to, "{year:04}"),
            TimePart::Month => write!(to, "{month:02}"),
            TimePart::Day => write!(to, "{day:02}"),
            TimePart::DayOfYear => write!(to, "{:03}", scale.day_of_year(moment)),
            TimePart::Hour => write!(to, "{hour:02}"),
            TimePart::Minute => write!(to, "{minute:02}"),
            TimePart::Second => write!(to, "{:02}", moment.second()),
        };
    }
}
