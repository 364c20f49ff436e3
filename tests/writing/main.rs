//! Writing through mounts: values, chunks, documents, names, sizes and modes, also by several
//! writers at a time.

mod chunk_drafts;
mod copied_back;
mod data_raw;
mod direct_writes;
mod foreign_writer;
mod lost_names;
mod many_ways;
mod names_model;
mod namespace;
mod overlay;
mod permissions;
mod python_writers;
mod replaced_arrays;
mod resizing;
mod rewritten;
mod several_mounts;
mod shards;
mod shared_pages;
mod sparse_files;
mod storing;
mod times;
#[path = "../support/mod.rs"]
mod support;
