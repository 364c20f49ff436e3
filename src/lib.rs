//! zarrfs shows a Zarr store as plain files: the same hierarchy with the codecs taken off.
//!
//! The modules below stand in layer order: a module imports only from those above it in this list,
//! which `tests/docs/layers.rs` checks. A read of `data.raw` runs through them from the bottom up:
//! `fuse` takes the request, `fs` finds the open file and asks the grid of `zarrfs_format` which
//! chunks hold the bytes, `cache` has them or lets `array` load them: bytes of a store, decoded by
//! the codecs. One copy goes from the decoded chunk into the reply.
//!
//! The crate is the library of one program: its interface may change with every version.

pub mod array; // one array, and the hierarchy of all
pub mod cache; // decoded chunks within one bound
pub mod export; // arrays and groups as zarrfs_export reads them
pub mod ingest; // files of other programs made arrays
pub mod check; // faults in a store
pub mod fs; // the file system
pub mod fuse; // the adapter to FUSE
pub mod cli; // the command line
