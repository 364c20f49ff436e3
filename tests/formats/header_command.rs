//! Comparison of the output of `zarrfs header` with the headers that a mount shows, and of its exit
//! codes with the documented ones.

use crate::support::array::TestArray;
use crate::support::{Mount, ZARRFS, copy_tree, test_data, zarrfs};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn header(path: &Path, format: &str) -> Output {
    zarrfs(&["header", path.to_str().unwrap(), "--format", format])
}

/// Returns the exit code and the message of a failure that prints nothing to standard output.
fn failure(output: &Output) -> (i32, String) {
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr.clone()).unwrap(),
    )
}

/// Returns the formats and file names that the command lists without `--format`.
fn listed(path: &Path) -> Vec<(String, String)> {
    let output = zarrfs(&["header", path.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.lines().map(|line| {
        line.split_whitespace()
            .map(str::to_string)
            .collect::<Vec<_>>()
    });
    words
        .map(|words| (words[0].clone(), words[1].clone()))
        .collect()
}

#[test]
fn the_header_is_the_one_that_a_mount_shows() {
    let store = test_data("sample.zarr");
    let mount = Mount::new(&store, &["--headers", "all,txt", "--containers", "all"]);
    let mut compared = 0;
    for array in [
        "air_temperature",
        "lat",
        "lon",
        "ocean/sea_surface_temperature",
    ] {
        let flat = fs::metadata(mount.join(array).join("data.raw"))
            .unwrap()
            .len() as usize;
        for (word, name) in listed(&store.join(array)) {
            let shown = fs::read(mount.join(array).join(&name)).unwrap();
            let holds_flat = ["npy", "nii", "tif"].contains(&word.as_str());
            let expected = if holds_flat {
                &shown[..shown.len() - flat]
            } else {
                &shown[..]
            };
            let printed = header(&store.join(array), &word);
            assert!(
                printed.status.success() && printed.stdout == expected,
                "{array} {word}: {printed:?}"
            );
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
    let dataset = fs::read(mount.join("dataset.nc")).unwrap();
    let printed = header(&store, "nc").stdout;
    assert!(printed.len() > 100 && dataset.starts_with(&printed));
}

#[test]
fn the_list_of_formats_is_also_printed_as_json() {
    let array = test_data("sample.zarr").join("lat");
    let output = zarrfs(&["header", array.to_str().unwrap(), "--json"]);
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |row: &serde_json::Value, name: &str| row[name].as_str().unwrap().to_string();
    let rows: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (text(row, "format"), text(row, "file")))
        .collect();
    assert_eq!(rows, listed(&array));
    assert!(rows.contains(&("npy".to_string(), "data.npy".to_string())));
}

#[test]
fn the_geometry_comes_from_the_other_arrays_of_the_group() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store.zarr");
    copy_tree(&test_data("sample.zarr"), &store);
    let array = store.join("air_temperature");
    let expected = header(&array, "vrt");
    let text = String::from_utf8(expected.stdout.clone()).unwrap();
    assert!(text.contains("<GeoTransform>"), "{text}");
    let here = Command::new(ZARRFS)
        .args(["header", ".", "--format", "vrt"])
        .current_dir(&array)
        .output()
        .unwrap();
    assert_eq!(here.stdout, expected.stdout);
    // without a group there are no other arrays
    fs::remove_file(store.join(".zgroup")).unwrap();
    let _ = fs::remove_file(store.join(".zmetadata"));
    let text = String::from_utf8(header(&array, "vrt").stdout).unwrap();
    assert!(
        text.contains("rasterXSize=\"53\"") && !text.contains("<GeoTransform>"),
        "{text}"
    );
}

#[test]
fn failures_have_different_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let long = TestArray::with_chunks(
        folder.path().join("long"),
        &[3],
        &[3],
        serde_json::json!({"dtype": "<i8"}),
    );
    let (code, said) = failure(&header(&long.path, "mhd"));
    assert_eq!(code, 4);
    assert!(
        said.contains("data.mhd can't describe") && said.contains("npy, envi, vrt, readme"),
        "{said}"
    );
    assert_eq!(failure(&header(folder.path(), "vrt")).0, 3, "a group");
    assert_eq!(failure(&header(&folder.path().join("nothing"), "vrt")).0, 3);
    assert_eq!(failure(&header(&long.path, "nc")).0, 2);
    assert_eq!(failure(&header(&long.path, "jpeg")).0, 2);
    fs::write(long.path.join(".zarray"), "{").unwrap();
    let (code, said) = failure(&header(&long.path, "vrt"));
    assert!(
        code == 1 && said.contains("not valid JSON"),
        "{code} {said}"
    );
}
