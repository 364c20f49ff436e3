//! The description of an array for headers: axes with names and coordinates, reference system,
//! missing value, scaling. `describe` makes it from metadata, and the formats write it; this module
//! knows neither.

use std::fmt;
use std::sync::Arc;
use zarrfs_base::json::Object;
use zarrfs_base::key::Key;
use zarrfs_base::memory::SharedGrant;
use zarrfs_format::metadata::ArrayMetadata;

/// An array as other programs see it: its metadata, and the meaning of its attributes and
/// coordinate arrays, independent of any convention.
///
/// [`super::describe`] makes one from a store, and each [`super::Format`] writes one as a header.
/// Everything beyond shape and dtype is optional: a format leaves out what is unknown, and
/// attributes that break their convention are treated as missing. Lists run in the array's own
/// order, the slowest dimension first; formats that want the fastest first reverse them.
///
/// To add a field, set it in `describe` and in the arrays of `testing`, and write it in each format
/// that can hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// The array's key in the hierarchy.
    pub key: Key,
    /// The last name of the key; `data` for an array at the root of a store.
    pub name: String,
    /// The array's Zarr metadata: shape, dtype, fill value. The dtype has the sign that attributes
    /// state.
    pub metadata: ArrayMetadata,
    /// The metadata as the array has them.
    pub stored: Arc<ArrayMetadata>,
    /// One axis for each dimension, in the array's order.
    pub axes: Vec<DescribedAxis>,
    /// The reference system of the x and y coordinates.
    pub crs: Option<Crs>,
    /// GDAL's geotransform of a grid that is rotated against x and y, so that its axes have no
    /// coordinates.
    pub geotransform: Option<[f64; 6]>,
    /// The arrays with the longitude and latitude of each pixel of a curvilinear grid.
    pub geolocation: Option<Geolocation>,
    /// The arrays with the same image in lower resolutions, the finest first.
    pub overviews: Vec<Overview>,
    /// The stored value (before scaling) that stands for missing data.
    pub nodata: Option<MetadataNumber>,
    /// What integers stand for, if they are categories that metadata names.
    pub categories: Arc<[Category]>,
    /// The factor of stored values.
    pub scale: Option<f64>,
    /// The term added to stored values after scaling.
    pub offset: Option<f64>,
    /// The unit of the values after scaling.
    pub units: Option<String>,
    /// A title.
    pub long_name: Option<String>,
    /// What OME-NGFF says of the image, if the array is one of its resolutions.
    pub image: Option<ImageInfo>,
    /// The array's attributes as stored.
    pub attributes: Arc<Object>,
    /// All flat bytes, for a format that [`super::Format::reads_values`]; strings of any length are
    /// padded to the length of the longest.
    pub values: Option<Arc<[u8]>>,
    /// Whether the values are those of a view of the array.
    pub is_view: bool,
    /// The other groups and arrays from which the description was read.
    pub sources: Vec<Key>,
    /// Grant for the memory of coordinates, channels and values.
    pub memory: SharedGrant,
}

/// A dimension of a [`Described`] array.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedAxis {
    /// The name, if it is known.
    pub name: Option<String>,
    /// Number of items.
    pub len: u64,
    /// The axis of space or time that the dimension represents.
    pub role: Role,
    /// The unit of coordinates as the metadata spells it: `degrees_east`, `days since 2000-01-01`,
    /// `micrometer`.
    pub units: Option<String>,
    /// CF's calendar of a time axis, if it is known: `standard`, `noleap`, `360_day`.
    pub calendar: Option<String>,
    /// The positions of the items.
    pub coordinates: Coordinates,
    /// The direction of coordinates along an axis of a body.
    pub direction: Option<AnatomicalDirection>,
    /// The names of the items, if the coordinates are strings; none otherwise.
    pub labels: Arc<[String]>,
    /// Whether a coordinate array exists that could not be used: it is unreadable, too large, or
    /// does not hold numbers. [`DescribedAxis::coordinates`] are then unknown.
    pub is_unread: bool,
}

/// The axis of space or time that a dimension represents.
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
    /// Anything else: bands, channels, members of an ensemble.
    Other,
}

/// The direction in which the coordinates along an axis of a body increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnatomicalDirection {
    /// Towards right, front or head, as those of NIfTI.
    AlongRas,
    /// Towards left, back or feet.
    AgainstRas,
}

/// The coordinates of the centers of a dimension's items.
#[derive(Clone, Debug, PartialEq)]
pub enum Coordinates {
    /// No coordinates are known.
    Unknown,
    /// Equal steps, to a millionth of a step or to the precision of the dtype.
    Regular {
        /// The coordinate of the first item.
        first: f64,
        /// The difference from one item to the next: not 0, negative if coordinates decrease.
        step: f64,
    },
    /// A coordinate for each item.
    Irregular {
        /// The coordinates after scaling, one for each item.
        values: Vec<f64>,
    },
}

/// A coordinate reference system in the forms that metadata has; at least one is present.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Crs {
    /// WKT of version 1 or 2.
    pub wkt: Option<String>,
    /// An identifier such as `EPSG:4326`.
    pub authority: Option<String>,
    /// PROJJSON text.
    pub projjson: Option<String>,
    /// What x and y are.
    pub kind: CrsKind,
    /// The unit of x and y in meters, if it is a known length.
    pub unit: Option<f64>,
    /// The height of a geostationary satellite, by which its scanning angles in radians are
    /// multiplied to become x and y.
    pub perspective_height: Option<f64>,
}

/// The kinds of reference systems that formats distinguish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrsKind {
    /// X and y are longitude and latitude in degrees.
    Geographic,
    /// X and y are lengths.
    Projected,
    /// Anything else, or not known.
    #[default]
    Other,
}

/// An array that has an image in a lower resolution, with the same dimensions, bands and type.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// The array.
    pub key: Key,
    /// Its metadata.
    pub metadata: Arc<ArrayMetadata>,
}

/// The longitudes and latitudes of the pixels of a curvilinear grid. Their arrays have the two
/// dimensions of the image.
#[derive(Clone, Debug, PartialEq)]
pub struct Geolocation {
    /// The array of longitudes.
    pub longitudes: Key,
    /// The array of latitudes.
    pub latitudes: Key,
}

/// What OME-NGFF says of an image, beside its axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageInfo {
    /// The name.
    pub name: Option<String>,
    /// The index of the axis whose items are channels.
    pub channel_axis: Option<usize>,
    /// The channels that the metadata describes, from the first one on.
    pub channels: Vec<ImageChannel>,
}

/// A channel of an image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageChannel {
    /// The name, in one line.
    pub name: Option<String>,
    /// The color in which the channel is shown, as 0xRRGGBB.
    pub color: Option<u32>,
}

/// A category of items.
#[derive(Clone, Debug, PartialEq)]
pub struct Category {
    /// The integer that stands for it.
    pub value: i128,
    /// Its name.
    pub name: String,
}

/// A number from metadata; 64-bit integers stay exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetadataNumber {
    /// An integer.
    Int(i128),
    /// Any other number.
    Float(f64),
}

impl Crs {
    /// Returns whether x and y are longitude and latitude in degrees.
    pub fn is_geographic(&self) -> bool {
        self.kind == CrsKind::Geographic
    }
}

impl DescribedAxis {
    /// Returns an axis of which only the number of items is known.
    pub fn of_length(len: u64) -> Self {
        DescribedAxis {
            name: None,
            len,
            role: Role::Other,
            units: None,
            calendar: None,
            coordinates: Coordinates::Unknown,
            direction: None,
            labels: Arc::default(),
            is_unread: false,
        }
    }
}

impl MetadataNumber {
    /// Returns the nearest f64.
    pub fn as_f64(self) -> f64 {
        match self {
            MetadataNumber::Int(n) => n as f64,
            MetadataNumber::Float(x) => x,
        }
    }
}

/// Spells the number as C's strtod reads it: `-9999`, `1e20`, `nan`, `inf`.
impl fmt::Display for MetadataNumber {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            MetadataNumber::Int(n) => write!(f, "{n}"),
            MetadataNumber::Float(x) if x.is_nan() => f.write_str("nan"),
            MetadataNumber::Float(x) if x.abs() >= 1e16 || (*x != 0.0 && x.abs() < 1e-5) => {
                write!(f, "{x:e}")
            }
            MetadataNumber::Float(x) => write!(f, "{x}"),
        }
    }
}

impl Described {
    /// Returns the description of the array at `key` from its metadata alone, without geometry.
    pub fn of_metadata(key: &Key, metadata: &ArrayMetadata) -> Self {
        Described {
            key: key.clone(),
            name: if key.is_root() { "data" } else { key.name() }.to_string(),
            axes: metadata
                .shape
                .iter()
                .copied()
                .map(DescribedAxis::of_length)
                .collect(),
            metadata: metadata.clone(),
            stored: Arc::new(metadata.clone()),
            crs: None,
            geotransform: None,
            geolocation: None,
            overviews: Vec::new(),
            nodata: None,
            categories: Arc::default(),
            scale: None,
            offset: None,
            units: None,
            long_name: None,
            image: None,
            attributes: Arc::default(),
            values: None,
            is_view: false,
            sources: Vec::new(),
            memory: SharedGrant::default(),
        }
    }

    /// Returns the same description, of a view that does not stand beside the other arrays.
    pub fn of_view(&self) -> Self {
        Described {
            values: None,
            is_view: true,
            geolocation: None,
            overviews: Vec::new(),
            ..self.clone()
        }
    }

    /// Returns the size of the flat array in bytes.
    pub fn size(&self) -> u64 {
        self.metadata.flat_size()
    }
}
