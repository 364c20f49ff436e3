//! The Zarr format without I/O: data types, metadata documents, codecs, and the arithmetic of
//! chunks. Nothing here opens a file or knows a store.
//!
//! The modules are listed in layer order: a module imports only from those above it, which
//! `tests/docs/layers.rs` checks.

pub mod by_shape; // values made once for each shape of chunks
pub mod dtype; // data types of NumPy
pub mod word; // items as integers
pub mod fill_value; // fill values as bytes of one item
pub mod float_format; // the float formats of v3
pub mod real; // real numbers of any type
pub mod data_type; // the data types of v3
pub mod grid; // byte ranges to chunks
pub mod layout; // orders of the axes of a chunk
pub mod chunk_key; // chunks to keys of the store
pub mod extension; // extension points of v3 documents
pub mod codec; // encoded bytes to decoded bytes, and back
pub mod metadata; // metadata documents
pub mod pipeline; // all codecs of an array
pub mod interchange; // what other programs can read
pub mod shard; // stored values that hold many chunks
