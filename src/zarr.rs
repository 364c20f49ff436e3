//! The Zarr format without I/O: data types, metadata documents, codecs, and the arithmetic of chunks. Nothing here
//! opens a file or knows a store.
//!
//! The modules below stand in layer order, as those of the crate do.

pub mod dtype; // data types and fill values
pub mod metadata; // metadata documents
pub mod codec; // encoded bytes to decoded bytes, and back
pub mod grid; // byte ranges to chunks, and chunk keys
pub mod layout; // order C and F of a chunk
