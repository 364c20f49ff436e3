//! `dataset.nc` on a real mount: groups as netCDF files, opened by netCDF-C (netCDF4), scipy and xarray, and compared with
//! what zarr-python and xarray read of the store itself (`python/netcdf.py`). `scripts/test-legacy` asks other programs.

mod support;

use std::fs;
use std::path::Path;
use support::{Mount, copy_tree, data, errno, limited, provided};

/// Every container at once: they show the same arrays.
const ALL: [&str; 4] = ["--headers", "all", "--containers", "nii,tif,nc"];

fn script(python: &Path, args: &[&Path]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/netcdf.py");
    let output = limited(120, python).arg(script).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{}", said.trim());
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// A copy of the store with all that a group may hold, mounted, and what is to be done to it.
fn with_groups(python: &Path, verbs: &[&str], args: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    script(python, &[Path::new("make"), folder.path()]);
    let store = folder.path().join("groups.zarr");
    let mount = Mount::new(&store, args);
    for verb in verbs {
        script(python, &[Path::new(verb), mount.path(), &store]);
    }
}

#[test]
fn groups_are_read_as_zarr_python_reads_them() {
    let Some(python) = provided("ZARRFS_TEST_HEADERS") else { return };
    with_groups(&python, &["read"], &["--containers", "nc", "--read-only"]);
    with_groups(&python, &["read"], &["--containers", "nc", "--cache-size", "20K"]);
}

#[test]
fn the_sample_is_what_xarray_finds_in_the_store() {
    let Some(python) = provided("ZARRFS_TEST_HEADERS") else { return };
    let sample = data("sample.zarr");
    let mount = Mount::new(&sample, &ALL);
    script(&python, &[Path::new("read"), mount.path(), &sample]);
}

#[test]
fn values_are_changed_in_place() {
    let Some(python) = provided("ZARRFS_TEST_HEADERS") else { return };
    with_groups(&python, &["write"], &ALL);
}

/// Also by a library that makes room for a header before it is told that it can't be written.
#[test]
fn changes_of_the_header_are_refused_and_change_nothing() {
    let Some(python) = provided("ZARRFS_TEST_HEADERS") else { return };
    with_groups(&python, &["refuse"], &["--containers", "nc"]);
}

/// The file is that of the metadata as it stands, and one that is open that of its opening.
#[test]
fn the_file_follows_the_metadata() {
    let folder = tempfile::tempdir().unwrap();
    copy_tree(&data("sample.zarr/ocean"), folder.path());
    let mount = Mount::new(folder.path(), &["--containers", "nc", "--metadata-ttl", "0s"]);
    let path = mount.join("dataset.nc");
    let before = fs::read(&path).unwrap();
    assert_eq!(before.len() as u64, fs::metadata(&path).unwrap().len());
    assert!(before.starts_with(b"CDF\x02") && has(&before, b"Sea surface temperature, missing on land"));

    fs::write(mount.join(".zattrs"), br#"{"title":"another title"}"#).unwrap();
    let after = fs::read(&path).unwrap();
    assert!(has(&after, b"another title") && !has(&after, b"missing on land"));

    fs::rename(mount.join("time"), mount.join("instant")).unwrap();
    let after = fs::read(&path).unwrap();
    assert!(has(&after, b"\0\0\0\x07instant\0"));

    assert_eq!(errno(fs::remove_file(&path)), "ok");
    assert!(path.exists());
}

fn has(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}
