//! Helpers that do not know Zarr, stores or files: JSON as Python reads and writes it, an account of memory, temporary
//! files for bytes that do not fit into memory, and worker threads.

pub mod json;
pub mod memory;
pub mod pool;
pub mod spill_file;
