//! Zarr metadata documents: `zarr.json` of v3, `.zarray` of v2 and `meta` of v1 become one checked
//! [`ArrayMetadata`], and this becomes the uncompressed view that a mount shows. Everything a
//! reader relies on is checked here, once: sizes that fit their integers, a chunk grid, a fill
//! value that fits the dtype. The module knows neither stores nor what codecs do.

mod array;
mod v1;
mod v2;
pub mod v3;

pub use crate::chunk_key::Separator;
pub use crate::codec::CodecConfig;
pub use array::{ArrayMetadata, MAX_CHUNK, Order, ShardLevel, V3Fields};
pub use v1::V1Order;
pub use v2::check_group;

/// Name of the v2 document that makes a prefix an array.
pub const ZARRAY: &str = ".zarray";
/// Name of the v2 document that makes a prefix a group.
pub const ZGROUP: &str = ".zgroup";
/// Name of the v2 document with the attributes of a group or array.
pub const ZATTRS: &str = ".zattrs";
/// Name of the v2 document that holds all documents below a group.
pub const ZMETADATA: &str = ".zmetadata";
/// Name of the v3 document of an array or group.
pub const ZARR_JSON: &str = "zarr.json";
/// Name of the v1 document with the metadata of the one array of a store.
pub const V1_META: &str = "meta";
/// Name of the v1 document with the attributes of the one array of a store.
pub const V1_ATTRS: &str = "attrs";

/// Maximum size of a metadata document in bytes. Real ones are a few kilobytes; parsing takes up to
/// 100 times the size.
pub const MAX_DOCUMENT: u64 = 16 << 20;

/// Maximum size of a document of a group with consolidated metadata in bytes.
pub const MAX_CONSOLIDATED: u64 = 64 << 20;

/// The `.zgroup` document shown for a group that has none in the store.
pub const GROUP_DOCUMENT: &str = "{\n    \"zarr_format\": 2\n}";
