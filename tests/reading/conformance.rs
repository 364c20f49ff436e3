//! Comparison of every array of the reference stores and the generated matrices, read through a
//! mount, with the oracle of each folder: digests of flat bytes and chunk files by zarr-python and
//! NumPy, and the arrays that zarrfs must refuse. `remote_stores.rs` and `remote_stores_v3.rs` do
//! the same over servers and archives.

use crate::support::digests::{Comparison, Oracle, is_known};
use crate::support::{Mount, env_path};
use std::path::Path;
use zarrfs_base::json::Value;

#[test]
fn the_reference_stores_are_read_as_zarr_python_reads_them() {
    if let Some(folder) = env_path("ZARRFS_REFERENCE") {
        compare(&folder, "reference stores");
    }
}

#[test]
fn the_matrix_is_read_as_zarr_python_reads_it() {
    if let Some(folder) = env_path("ZARRFS_MATRIX") {
        compare(&folder, "matrix stores");
    }
}

#[test]
fn the_v3_matrix_is_read_as_it_was_written() {
    if let Some(folder) = env_path("ZARRFS_MATRIX3") {
        compare(&folder, "v3 matrix stores");
    }
}

/// Compares the stores of a folder.
fn compare(folder: &Path, what: &str) {
    let oracle = Oracle::read(folder);
    let mut table = Comparison::default();
    let mut left_out = 0;
    let unpacked = tempfile::tempdir().unwrap();
    for (store, arrays) in &oracle.stores {
        let path = oracle.path(store, unpacked.path());
        if !path.is_dir() {
            left_out += arrays.len();
            continue;
        }
        let known: Vec<Value> = arrays
            .iter()
            .filter(|array| is_known(array))
            .cloned()
            .collect();
        left_out += arrays.len() - known.len();
        table.compare(store, &known, Mount::new(&path, &[]).path(), true);
    }
    table.finish(what, left_out, 100);
}
