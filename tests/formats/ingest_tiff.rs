//! TIFF files that become arrays: `python/ingest_tiff.py` writes them with tifffile and GDAL, and
//! compares the arrays by zarr-python, and the files that a mount shows by tifffile and rasterio.
//! Damaged files are refused in one line.

use super::ingest_files::{GROUP_V2, Script};
use crate::support::{self, Mount, env_path, run_python};
use std::fs;
use std::path::Path;

const TIFF: Script = Script {
    name: "ingest_tiff.py",
    pythons: [
        "ZARRFS_TEST_PYTHON",
        "ZARRFS_TEST_PYTHON3",
        "ZARRFS_TEST_PYTHON",
    ],
    files: 120,
    target: |name| name.ends_with(".tif").then(|| name.to_string()),
};

/// "The array has the pixels, and the mount shows the file again", with its place on Earth.
#[test]
fn tiff_files_become_arrays_of_v2() {
    TIFF.assert_ingested(false, &["--ingest"], &[]);
}

#[test]
fn tiff_files_become_arrays_of_v3() {
    TIFF.assert_ingested(true, &["--ingest=tif"], &[]);
}

#[test]
fn tiff_files_become_arrays_in_shards() {
    let options = ["--ingest", "--ingest-options", "shards=auto chunks=11,17"];
    TIFF.assert_ingested(true, &options, &[]);
}

/// "Refused by the number of the page": what an array or `data.tif` cannot state.
#[test]
fn tiff_files_that_no_array_shows_are_refused_by_name() {
    let Some(written) = TIFF.write() else {
        return;
    };
    let store = written.assert_refused();
    // in a mount the bytes stay beside the name
    support::write_file(store.join(".zgroup"), GROUP_V2);
    let mount = Mount::new(&store, &["--ingest=tif"]);
    let file = written.refused().join("mask.tif");
    let bytes = fs::read(&file).unwrap();
    let copied = std::process::Command::new("cp")
        .arg(&file)
        .arg(mount.path())
        .output()
        .unwrap();
    assert!(!copied.status.success());
    let kept = || fs::read(mount.join("mask.tif.refused")).ok();
    support::wait_for("the bytes", || kept() == Some(bytes.clone()));
    assert_eq!(
        support::listed(mount.path()),
        support::set(&[".zgroup", "mask.tif.refused"])
    );
}

/// "Programs write into the mount": a file that is written, replaced, and changed in place.
#[test]
fn programs_write_tiff_files_into_the_mount() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    support::write_file(store.join(".zgroup"), GROUP_V2);
    let mount = Mount::new(&store, &["--ingest"]);
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let write = [Path::new("write"), &directory, mount.path()];
    run_python(&python, "ingest_tiff.py", &write);
    mount.assert_no_problem();
    let listed = support::set(&[
        ".zgroup",
        "gdal",
        "gdal.tif",
        "saved",
        "saved.tif",
        "stack",
        "stack.tiff",
    ]);
    assert_eq!(support::listed(mount.path()), listed);
    drop(mount);
    // the names follow from the store
    let mount = Mount::new(&store, &["--ingest=tif,nc"]);
    assert_eq!(support::listed(mount.path()), listed);
    fs::rename(mount.join("stack.tiff"), mount.join("moved.tiff")).unwrap();
    fs::remove_file(mount.join("gdal.tif")).unwrap();
    // an empty directory remains
    let left = support::set(&[
        ".zgroup",
        "gdal",
        "moved",
        "moved.tiff",
        "saved",
        "saved.tif",
    ]);
    assert_eq!(support::listed(mount.path()), left);
}

#[test]
fn a_tiff_file_in_a_bucket_becomes_the_array_of_a_directory() {
    TIFF.assert_ingested_in_bucket(12);
}

#[test]
fn damaged_tiff_files_are_read_or_refused_in_one_line() {
    TIFF.assert_damage_is_harmless(true);
}
