//! Codecs, and the headers and containers for other programs.

mod boxes;
mod codecs;
mod containers;
mod damage;
mod fuzz_corpus;
mod hdf5;
mod header_command;
mod headers;
mod icechunk;
mod images;
mod ingest;
mod ingest_files;
mod ingest_hdf5;
mod ingest_mount;
mod ingest_tiff;
mod layout;
mod opened;
mod netcdf;
mod previews;
mod values_text;
#[path = "../support/mod.rs"]
mod support;
