//! The mount read by programs that are not ours: zarr-python 2.18 and 3 and xarray open it as the uncompressed store
//! that it is; plain reads, memory maps and parallel readers are compared with what zarr-python makes of the store.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Mount, data, provided};

fn script(python: &Path, name: &str, args: &[&Path]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name);
    let output = Command::new(python).arg(script).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{name} {}: {}", args[1].display(), said.trim());
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// The sample store, the directory stores of the matrix, and those of the reference stores.
fn stores() -> Vec<PathBuf> {
    let mut stores = vec![data("sample.zarr")];
    if let Some(matrix) = std::env::var_os("ZARRFS_MATRIX").map(PathBuf::from) {
        let found = std::fs::read_dir(matrix).unwrap().map(|e| e.unwrap().path());
        // v1 stores and damaged ones are beyond these readers; zarr takes an undeclared separator for "."
        let beyond = ["odd.zarr", "undeclared.zarr"];
        let readable = |p: &PathBuf| p.join(".zgroup").exists() && !beyond.iter().any(|name| p.ends_with(name));
        stores.extend(found.filter(readable));
    }
    if let Some(reference) = std::env::var_os("ZARRFS_REFERENCE").map(PathBuf::from) {
        let names = [
            "climate-air/air_temperature.zarr",
            "climate-cube/ocean_colour.zarr",
            "basic-zarrita/data.zarr",
            "dtypes-netcdfjava/test_dtypes.zarr",
            "genomics-ccle/ccle_snp_wes.reduced.zarr",
            "singlecell-anndata/anndata-csr.adata.zarr",
            "ngff-image/exemplar-001.crop.image.ome.zarr",
            "matrix-v2/v2-tree.zarr",
        ];
        stores.extend(names.map(|n| reference.join(n)));
    }
    stores
}

/// Opens every store's mount with the Python that `variable` names.
fn compare_views(variable: &str) {
    let Some(python) = provided(variable) else { return };
    for store in stores() {
        let mount = Mount::new(&store, &[]);
        script(&python, "view.py", &[mount.path(), &store]);
    }
}

#[test]
fn zarr_python_2_and_xarray() {
    compare_views("ZARRFS_TEST_PYTHON");
}

#[test]
fn zarr_python_3_and_xarray() {
    compare_views("ZARRFS_TEST_PYTHON3");
}

#[test]
fn odd_offsets_maps_and_parallel_readers() {
    let Some(python) = provided("ZARRFS_TEST_PYTHON") else { return };
    let sample = data("sample.zarr");
    for cache in ["512M", "100K"] {
        let mount = Mount::new(&sample, &["--cache-size", cache]);
        script(&python, "reads.py", &[mount.path(), &sample, Path::new("air_temperature")]);
        script(&python, "reads.py", &[mount.path(), &sample, Path::new("ocean/sea_surface_temperature")]);
    }
    if let Some(reference) = provided("ZARRFS_REFERENCE") {
        let store = reference.join("climate-air/air_temperature.zarr");
        let mount = Mount::new(&store, &["--cache-size", "6M"]);
        script(&python, "reads.py", &[mount.path(), &store, Path::new("air")]);
        let store = reference.join("basic-zarrjs/simple_F_3D.zarr");
        let mount = Mount::new(&store, &[]);
        script(&python, "reads.py", &[mount.path(), &store, Path::new("")]);
    }
}
