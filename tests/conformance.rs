//! Comparison of every array of the reference stores and the generated matrix, read through a mount, with zarr-python's
//! digests of `data.raw` and of chunk files, and with its refusals. Zarr v3 is left out. `remote_stores.rs` does the same
//! over servers and archives.

mod support;

use std::path::Path;
use support::digests::{Comparison, Oracle};
use support::{Mount, env_path};

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

fn compare(folder: &Path, what: &str) {
    let oracle = Oracle::read(folder);
    let (mut table, mut left_out) = (Comparison::default(), 0);
    let unpacked = tempfile::tempdir().unwrap();
    for (store, arrays) in &oracle.stores {
        let path = oracle.path(store, unpacked.path());
        if !path.is_dir() || arrays.iter().all(|a| a["zarr_format"] == 3) {
            left_out += arrays.len();
            continue;
        }
        table.compare(store, arrays, Mount::new(&path, &[]).path(), true);
    }
    table.finish(what, left_out, 100);
}
