//! `dataset.h5` and `dataset.nc` of a store of every type, opened as a whole by every reader that is
//! installed: `python/containers.py` compares the values with those that zarr-python and xarray read
//! from the store.

use crate::support::{Mount, announce, env_path, run_python};
use std::path::Path;

/// Mounts a store of every type in Zarr v2 and in v3, and runs a verb of the Python script on it.
fn with_types(verb: &str) {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    for format in ["2", "3"] {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("types.zarr");
        let script = "containers.py";
        run_python(
            &python,
            script,
            &[Path::new("make"), &store, Path::new(format)],
        );
        let mount = Mount::new(&store, &["--containers", "h5,nc", "--read-only"]);
        let printed = run_python(&python, script, &[Path::new(verb), mount.path(), &store]);
        announce(printed.trim());
    }
}

#[test]
fn libraries_read_whole_files_of_every_type() {
    with_types("read");
}

#[test]
fn programs_read_whole_files_of_every_type() {
    with_types("run");
}
