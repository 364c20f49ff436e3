//! Files of HDF5 and netCDF-4 that become groups: `python/ingest_hdf5.py` writes them with
//! netCDF-C, h5py, xarray and ncgen, and compares the arrays by zarr-python and xarray, and what a
//! mount shows by ncdump, netCDF-C and h5py. Damaged files are refused, whatever their bytes say.

use super::ingest_files::{GROUP_V2, Script};
use crate::support::{self, Mount, env_path, run_python};
use std::fs;
use std::path::Path;

const HDF5: Script = Script {
    name: "ingest_hdf5.py",
    pythons: [
        "ZARRFS_TEST_SERVERS",
        "ZARRFS_TEST_SERVERS",
        "ZARRFS_TEST_PYTHON",
    ],
    files: 50,
    target: |name| {
        let (_, ending) = name.rsplit_once('.')?;
        ["nc", "h5"]
            .contains(&ending)
            .then(|| format!("{name}.{ending}"))
    },
};

/// "The group is what xarray writes: `xarray.open_zarr(STORE/NAME)` is identical to
/// `xarray.open_dataset(FILE)`", and the mount shows the file again.
#[test]
fn files_become_groups_of_v2() {
    HDF5.assert_ingested(false, &["--ingest"], &[]);
}

// the text of ncdump does not depend on the version of the store
#[test]
fn files_become_groups_of_v3() {
    HDF5.assert_ingested(true, &["--ingest=nc,h5"], &["no"]);
}

#[test]
fn files_become_groups_in_shards() {
    let options = ["--ingest", "--ingest-options", "shards=auto chunks=3,40,50"];
    HDF5.assert_ingested(true, &options, &["no"]);
}

/// "Each type without an equal in Zarr is refused", by the name of the variable and of the type.
#[test]
fn files_that_zarr_has_no_equal_for_are_refused_by_name() {
    if let Some(written) = HDF5.write() {
        written.assert_refused();
    }
}

#[test]
fn a_file_in_a_bucket_becomes_the_group_of_a_directory() {
    HDF5.assert_ingested_in_bucket(4);
}

/// "Programs write into the mount": a file that is written, read, changed in place, and extended.
#[test]
fn programs_write_and_extend_files_in_the_mount() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    support::write_file(store.join(".zgroup"), GROUP_V2);
    let mount = Mount::new(&store, &["--ingest=nc,h5"]);
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let write = [Path::new("write"), &directory, mount.path()];
    run_python(&python, "ingest_hdf5.py", &write);
    mount.assert_no_problem();
}

/// Headers, and not the values alone, are damaged often enough.
#[test]
fn damaged_files_are_read_or_refused_in_one_line() {
    HDF5.assert_damage_is_harmless(false);
}
