//! What headers can say of an array: its axes with their names and coordinates, its reference system, the value that
//! stands for missing ones, its scaling. Where it comes from is `describe`'s to know, how it is spelt the formats'.

use crate::store::Key;
use crate::util::json::Object;
use crate::util::memory::SharedGrant;
use crate::zarr::metadata::ArrayMetadata;
use std::fmt;
use std::sync::Arc;

/// An array as headers describe it.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// Its place in the hierarchy.
    pub key: Key,
    /// Its name: the last one of the key; of an array that is a store by itself, `data`.
    pub name: String,
    /// Shape, dtype, ...
    pub metadata: ArrayMetadata,
    /// One for each dimension, in the array's own order.
    pub axes: Vec<DescribedAxis>,
    /// What the coordinates of x and y mean.
    pub crs: Option<Crs>,
    /// The value that stands for missing ones, as it is stored (before scaling).
    pub nodata: Option<MetadataNumber>,
    /// What stored values are multiplied by.
    pub scale: Option<f64>,
    /// What is added to them then.
    pub offset: Option<f64>,
    /// Of the values, after scaling.
    pub units: Option<String>,
    /// A title for people.
    pub long_name: Option<String>,
    /// The array's own attributes, as stored.
    pub attributes: Arc<Object>,
    /// Other arrays and groups whose documents or chunks tell some of this.
    pub sources: Vec<Key>,
    /// Counts the coordinates.
    pub memory: SharedGrant,
}

/// A dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedAxis {
    /// Its name; None if nothing tells.
    pub name: Option<String>,
    /// Items.
    pub len: u64,
    /// What it runs along.
    pub role: Role,
    /// Of its coordinates, as spelt in the metadata: `degrees_east`, `days since 2000-01-01`, `micrometer`.
    pub units: Option<String>,
    /// Of a time axis, as CF spells it: `standard`, `noleap`, `360_day`; None if nothing tells.
    pub calendar: Option<String>,
    /// Where its items lie.
    pub coordinates: Coordinates,
    /// Whether there is a coordinate array although [`Coordinates::Unknown`] stands here: it can't be read, is too large, or
    /// holds no numbers.
    pub is_unread: bool,
}

/// What a dimension runs along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Longitude, easting, columns.
    X,
    /// Latitude, northing, rows.
    Y,
    /// Height, depth, pressure, slices.
    Z,
    /// Time.
    Time,
    /// Bands, colours, members of an ensemble, whatever has no place in space and time.
    Other,
}

/// Where the items of a dimension lie: their centres.
#[derive(Clone, Debug, PartialEq)]
pub enum Coordinates {
    /// Nothing tells: unit steps from 0.
    Unknown,
    /// At equal steps (to a millionth of one).
    Regular {
        /// Of the first item.
        first: f64,
        /// To the next one; not 0, negative where coordinates decrease.
        step: f64,
    },
    /// Anywhere.
    Irregular {
        /// One for each item, after scaling.
        values: Vec<f64>,
        /// The array that holds them, and its metadata.
        source: Option<(Key, Box<ArrayMetadata>)>,
    },
}

/// A coordinate reference system, in the forms in which metadata holds it; at least one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Crs {
    /// WKT, version 1 or 2.
    pub wkt: Option<String>,
    /// `EPSG:4326`
    pub authority: Option<String>,
    /// PROJJSON, as text.
    pub projjson: Option<String>,
    /// True for longitude and latitude in degrees.
    pub is_geographic: bool,
}

/// A number as it stands in metadata: integers of 64 bits stay exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetadataNumber {
    /// An integer.
    Int(i128),
    /// Anything else.
    Float(f64),
}

impl MetadataNumber {
    /// The nearest f64.
    pub fn as_f64(self) -> f64 {
        match self {
            MetadataNumber::Int(n) => n as f64,
            MetadataNumber::Float(x) => x,
        }
    }
}

/// As C's strtod reads it: `-9999`, `1e20`, `nan`, `inf`.
impl fmt::Display for MetadataNumber {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            MetadataNumber::Int(n) => write!(f, "{n}"),
            MetadataNumber::Float(x) if x.is_nan() => f.write_str("nan"),
            MetadataNumber::Float(x) if x.abs() >= 1e16 || (*x != 0.0 && x.abs() < 1e-5) => write!(f, "{x:e}"),
            MetadataNumber::Float(x) => write!(f, "{x}"),
        }
    }
}

impl Described {
    /// What the metadata alone tells of the array at `key`: no geometry.
    pub fn of_metadata(key: &Key, metadata: &ArrayMetadata) -> Self {
        let axis = |len: &u64| DescribedAxis {
            name: None,
            len: *len,
            role: Role::Other,
            units: None,
            calendar: None,
            coordinates: Coordinates::Unknown,
            is_unread: false,
        };
        Described {
            key: key.clone(),
            name: if key.is_root() { "data" } else { key.name() }.to_string(),
            axes: metadata.shape.iter().map(axis).collect(),
            metadata: metadata.clone(),
            crs: None,
            nodata: None,
            scale: None,
            offset: None,
            units: None,
            long_name: None,
            attributes: Arc::default(),
            sources: Vec::new(),
            memory: SharedGrant::default(),
        }
    }

    /// Bytes of the flat array.
    pub fn size(&self) -> u64 {
        self.metadata.flat_size()
    }

    /// The first coordinate of an axis and the step to the next, where they are regular.
    pub fn spacing(&self, axis: usize) -> Option<(f64, f64)> {
        match self.axes.get(axis)?.coordinates {
            Coordinates::Regular { first, step } => Some((first, step)),
            _ => None,
        }
    }
}
