//! The types of netCDF's classic formats, and the parser of their headers, for crates that read
//! such files.

pub use crate::group::attributes::Attribute;
pub use crate::group::types::Type;
pub use crate::netcdf::{
    ClassicDimension, ClassicHeader, ClassicVersion, ParseFailure, Variable, parse,
};
pub use crate::number::{NumberKind, NumberType};
