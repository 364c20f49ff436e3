//! Zarr metadata documents: `.zarray` of v2 and `meta` of v1 turned into one checked [`ArrayMetadata`], and back into
//! the uncompressed v2 view that a mount shows. Everything a reader relies on (sizes that fit, a chunk grid that
//! exists, a fill value that fits the dtype) is checked here, once. It knows neither stores nor codecs' insides.

mod array;
mod codec_config;
mod v1;

pub use array::{ArrayMetadata, Order, Separator, check_group};
pub use codec_config::CodecConfig;
pub use v1::V1Order;

/// Marks an array: the name of its metadata document, as those below.
pub const ZARRAY: &str = ".zarray";
/// Marks a group.
pub const ZGROUP: &str = ".zgroup";
/// The attributes of a group or array.
pub const ZATTRS: &str = ".zattrs";
/// All documents below a group in one.
pub const ZMETADATA: &str = ".zmetadata";
/// Zarr v1: the metadata of the one array of a store.
pub const V1_META: &str = "meta";
/// Zarr v1: the attributes of the one array of a store.
pub const V1_ATTRS: &str = "attrs";

/// The largest metadata document read, in bytes: far above real ones, far below what would hurt.
pub const MAX_DOCUMENT: u64 = 16 << 20;

/// The `.zgroup` document of a group that has none of its own.
pub const GROUP_DOCUMENT: &str = "{\n    \"zarr_format\": 2\n}";
