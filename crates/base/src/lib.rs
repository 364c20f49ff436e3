//! What every crate of zarrfs needs, and no Zarr: errors, keys, counters and problems, JSON as
//! Python reads and writes it, an account of memory, huge pages, temporary files for bytes that do
//! not fit into memory, worker threads, the effects of signals, and deflate. The crate knows
//! neither stores nor arrays.

pub mod deflate;
pub mod error;
pub mod huge_pages;
pub mod json;
pub mod key;
pub mod memory;
pub mod outside;
pub mod pool;
pub mod signals;
pub mod spill_file;
pub mod stats;
