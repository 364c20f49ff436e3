//! Zarr v3: `zarr.json` documents. Data types, fill values and codec chains become those of
//! [`ArrayMetadata`](super::ArrayMetadata). Nothing here knows stores. Source of the rules: the
//! Zarr v3.1 specification and the registry of its extensions.

pub mod as_v2;
mod chain;
mod document;
pub mod fill_value;
pub mod from_v2;
pub mod grid;
pub mod in_shards;
pub mod merge;
pub mod node;
pub mod shown;
