//! `dataset.h5` on a real mount, which shows a group with everything below it as an HDF5 file. HDF5
//! (h5py), netCDF-C (netCDF4), h5netcdf and xarray read and change the file, and `python/hdf5.py`
//! compares its values with those that zarr-python reads from the store.

use crate::support::{Mount, announce, copy_tree, env_path, run_python, test_data, write_file};
use std::path::{Path, PathBuf};

/// Mounts a store of all types, and runs verbs of the Python script on it.
fn with_types(verbs: &[&str], args: &[&str]) {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    run_python(&python, "hdf5.py", &[Path::new("make"), folder.path()]);
    let store = folder.path().join("types.zarr");
    let mount = Mount::new(&store, args);
    for verb in verbs {
        let mut words = vec![Path::new(verb), mount.path()];
        words.extend((*verb != "dimensions").then_some(store.as_path()));
        run_python(&python, "hdf5.py", &words);
    }
}

#[test]
fn values_and_dimensions_are_read() {
    with_types(
        &["read", "dimensions"],
        &["--containers", "h5,nc", "--read-only"],
    );
    with_types(&["read"], &["--containers", "h5", "--cache-size", "20K"]);
}

#[test]
fn values_are_changed_in_place_and_nothing_else() {
    with_types(&["write", "read", "refuse"], &["--containers", "h5"]);
}

#[test]
fn an_array_at_the_root_is_a_data_set() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    run_python(&python, "hdf5.py", &[Path::new("make"), folder.path()]);
    for name in ["cube/air", "types/nf2l", "types/text"] {
        let store = folder.path().join("types.zarr").join(name);
        let mount = Mount::new(&store, &["--containers", "h5,nc"]);
        assert!(!mount.join("dataset.nc").exists());
        let words = [Path::new("raw"), mount.path(), &store];
        let printed = run_python(&python, "hdf5.py", &words);
        assert!(printed.starts_with("1 equal"), "{printed}");
        assert_eq!(
            std::fs::read_dir(mount.path())
                .unwrap()
                .filter(|entry| { entry.as_ref().unwrap().file_name() == "dataset.h5" })
                .count(),
            1
        );
    }
}

/// A name that HDF5 or netCDF cannot have is left out or replaced, and keeps no program from opening
/// the file.
#[test]
fn files_with_any_name_can_be_opened() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    run_python(&python, "hdf5.py", &[Path::new("entitle"), folder.path()]);
    let mount = Mount::new(&folder.path().join("names.zip"), &["--containers", "h5,nc"]);
    run_python(&python, "hdf5.py", &[Path::new("open_names"), mount.path()]);
}

/// Hostile documents, names and attributes: no program crashes or hangs, and what the file leaves out
/// is named.
#[test]
fn hostile_documents_crash_no_program() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("hostile.zarr");
    copy_tree(&test_data("hostile"), &store.join("stores"));
    for (corpus, document) in [("metadata", ".zarray"), ("metadata3", "zarr.json")] {
        let inputs = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(corpus);
        for (number, input) in std::fs::read_dir(inputs).unwrap().enumerate() {
            let text = std::fs::read(input.unwrap().path()).unwrap();
            write_file(
                store.join(format!("{corpus}/{number}")).join(document),
                text,
            );
        }
    }
    run_python(&python, "hdf5.py", &[Path::new("spoil"), &store]);
    let mount = Mount::new(&store, &["--containers", "h5", "--cache-size", "64M"]);
    announce(run_python(&python, "hdf5.py", &[Path::new("survive"), mount.path()]).trim());
    assert!(mount.peak_memory() < (64 + 64) << 20);
}

/// Arrays with every dtype, codec and layout, whose flat bytes the conformance tests compare with
/// what other libraries read.
#[test]
fn arrays_of_generated_stores_have_their_flat_bytes() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    for variable in ["ZARRFS_MATRIX", "ZARRFS_MATRIX3"] {
        let Some(folder) = env_path(variable) else {
            continue;
        };
        let mut stores: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "zarr"))
            .collect();
        stores.sort();
        for store in stores {
            let mount = Mount::new(&store, &["--containers", "h5", "--read-only"]);
            // a damaged array at the root has none
            if mount.join("dataset.h5").exists() {
                let words = [Path::new("raw"), mount.path(), &store];
                announce(run_python(&python, "hdf5.py", &words).trim());
            }
        }
    }
}
