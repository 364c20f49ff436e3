//! OME-NGFF images on a real mount. The values and metadata that tifffile, ome-types, ITK, nibabel
//! and pynrrd read from `data.tif`, `data.nii` and `data.nhdr` are compared with those that
//! tests/python/images.py has written. OME-XML is checked against its schema.

use crate::support::{Mount, announce, env_path, names, run_python, write_file, zarrfs};
use std::fs;

#[test]
fn programs_read_the_values_and_metadata_of_images() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    run_python(
        &python,
        "images.py",
        &["write", folder.path().to_str().unwrap()],
    );
    for name in ["v2.zarr", "v3.zarr", "systems.zarr"] {
        let store = folder.path().join(name);
        let mount = Mount::new(&store, &["-o", "ro", "--containers", "tif,nii"]);
        let args = [
            "check",
            mount.path().to_str().unwrap(),
            store.to_str().unwrap(),
        ];
        announce(run_python(&python, "images.py", &args).trim());
        mount.assert_no_problem();
    }
}

/// "plate", "well", "images" (OME-NGFF 0.5, "High-content screening metadata").
#[test]
fn a_plate_lists_its_fields() {
    let store = tempfile::tempdir().unwrap();
    let group = |path: &str, ome: &str| {
        let folder = store.path().join(path);
        fs::create_dir_all(&folder).unwrap();
        let attributes = format!(r#"{{"ome":{{"version":"0.5"{ome}}}}}"#);
        write_file(
            folder.join("zarr.json"),
            format!(r#"{{"zarr_format":3,"node_type":"group","attributes":{attributes}}}"#),
        );
    };
    group(
        "",
        r#","plate":{"rows":[{"name":"A"},{"name":"B"}],"columns":[{"name":"01"},{"name":"02"}],
        "wells":[{"path":"A/02","rowIndex":0,"columnIndex":1},{"path":"B/01","rowIndex":1,"columnIndex":0},
        {"path":"../x","rowIndex":0,"columnIndex":0},{"path":"B/02","rowIndex":1,"columnIndex":1}]}"#,
    );
    group("A", "");
    group("B", "");
    let fields =
        r#","well":{"images":[{"path":"0","acquisition":1},{"path":"1","acquisition":2}]}"#;
    group("A/02", fields);
    group("B/01", r#","well":{"images":[{"path":"f"}]}"#);
    let expected = "row\tcolumn\tfield\tacquisition\timage\n\
        A\t02\t0\t1\tA/02/0\nA\t02\t1\t2\tA/02/1\nB\t01\t0\t\tB/01/f\n";
    let mount = Mount::new(store.path(), &["--containers", "plate"]);
    let shown = fs::read_to_string(mount.join("plate.txt")).unwrap();
    assert_eq!(shown, expected);
    assert!(names(mount.path()).contains("plate.txt"));
    assert!(!names(&mount.join("A")).contains("plate.txt"));
    assert!(fs::metadata(mount.join("A/plate.txt")).is_err());
    // a changed well is seen at the next opening
    group("A/02", r#","well":{"images":[]}"#);
    let shown = fs::read_to_string(mount.join("plate.txt")).unwrap();
    assert_eq!(shown.lines().count(), 2, "{shown}");
    let path = store.path().to_str().unwrap();
    let printed = zarrfs(&["header", "--format", "plate", path]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout), shown);
}
