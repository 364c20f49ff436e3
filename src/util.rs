//! Helpers that know nothing of Zarr, stores or files: JSON as Python reads and writes it, memory that is counted, and
//! worker threads.

pub mod json;
pub mod memory;
pub mod pool;
