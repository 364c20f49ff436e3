//! Zarr v3: `zarr.json` documents. Data types, fill values and codec chains become those of [`ArrayMetadata`](super::ArrayMetadata).
//! Nothing here knows stores. Source of the rules: the Zarr v3.1 specification and the register of its extensions.

pub mod data_type;
pub mod fill_value;
pub mod node;
