//! Helpers that do not know Zarr, stores or files: JSON as Python reads and writes it, an account
//! of memory, huge pages, temporary files for bytes that do not fit into memory, and worker
//! threads.

pub mod huge_pages;
pub mod json;
pub mod memory;
pub mod pool;
pub mod spill_file;
