//! Every array of the reference stores and of the generated matrix, read through a real mount and compared with what
//! zarr-python reads: digests of `data.raw`, of chunk files, refusals. v3 stores are not read yet; the same over servers
//! and archives is in `remote_stores.rs`.

mod support;

use std::path::Path;
use support::digests::{Oracle, Table};
use support::{Mount, provided};

#[test]
fn the_reference_stores() {
    if let Some(folder) = provided("ZARRFS_REFERENCE") {
        compare(&folder, "reference stores");
    }
}

#[test]
fn the_matrix() {
    if let Some(folder) = provided("ZARRFS_MATRIX") {
        compare(&folder, "matrix stores");
    }
}

fn compare(folder: &Path, what: &str) {
    let oracle = Oracle::read(folder);
    let (mut table, mut left_out) = (Table::default(), 0);
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
