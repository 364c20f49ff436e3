//! Reading a mount with other programs: zarr-python 2.18 and 3 and xarray open it as the
//! uncompressed store that it shows. Plain reads, memory maps and parallel readers are compared
//! with the values that zarr-python reads from the store itself.

use crate::support::{Mount, announce, env_path, run_python, test_data};
use std::path::{Path, PathBuf};

/// Returns the sample store and the directory stores of the matrix and the reference stores.
fn stores() -> Vec<PathBuf> {
    let mut stores = vec![test_data("sample.zarr")];
    if let Some(matrix) = std::env::var_os("ZARRFS_MATRIX").map(PathBuf::from) {
        let found = std::fs::read_dir(matrix)
            .unwrap()
            .map(|e| e.unwrap().path());
        // these readers cannot open v1 stores and damaged ones, and take an undeclared separator
        // for "."
        let beyond = ["odd.zarr", "undeclared.zarr"];
        let readable = |p: &PathBuf| {
            p.join(".zgroup").exists() && !beyond.iter().any(|name| p.ends_with(name))
        };
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

/// Compares the mount of every store with the store, using the Python that `variable` names.
fn compare_views(variable: &str) {
    let Some(python) = env_path(variable) else {
        return;
    };
    for store in stores() {
        let mount = Mount::new(&store, &[]);
        announce(run_python(&python, "view.py", &[mount.path(), &store]).trim());
    }
}

#[test]
fn zarr_python_2_and_xarray_read_a_mount_as_the_store() {
    compare_views("ZARRFS_TEST_PYTHON");
}

#[test]
fn zarr_python_3_and_xarray_read_a_mount_as_the_store() {
    compare_views("ZARRFS_TEST_PYTHON3");
}

#[test]
fn reads_at_odd_offsets_maps_and_parallel_readers_agree() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let sample = test_data("sample.zarr");
    for cache in ["512M", "100K"] {
        let mount = Mount::new(&sample, &["--cache-size", cache]);
        announce(
            run_python(
                &python,
                "reads.py",
                &[mount.path(), &sample, Path::new("air_temperature")],
            )
            .trim(),
        );
        announce(
            run_python(
                &python,
                "reads.py",
                &[
                    mount.path(),
                    &sample,
                    Path::new("ocean/sea_surface_temperature"),
                ],
            )
            .trim(),
        );
    }
    if let Some(reference) = env_path("ZARRFS_REFERENCE") {
        let store = reference.join("climate-air/air_temperature.zarr");
        let mount = Mount::new(&store, &["--cache-size", "6M"]);
        announce(
            run_python(
                &python,
                "reads.py",
                &[mount.path(), &store, Path::new("air")],
            )
            .trim(),
        );
        let store = reference.join("basic-zarrjs/simple_F_3D.zarr");
        let mount = Mount::new(&store, &[]);
        announce(run_python(&python, "reads.py", &[mount.path(), &store, Path::new("")]).trim());
    }
}
