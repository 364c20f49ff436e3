//! OME-NGFF images on a real mount. The values and metadata that tifffile, ome-types, ITK, nibabel
//! and pynrrd read from `data.tif`, `data.nii` and `data.nhdr` are compared with those that
//! tests/python/images.py has written. OME-XML is checked against its schema.

use crate::support::{Mount, announce, env_path, run_python, write_file, zarrfs};
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

/// "plate" (OME-NGFF 0.5, "High-content screening metadata").
#[test]
fn the_size_of_a_plate_is_shown() {
    let store = tempfile::tempdir().unwrap();
    let plate = r#"{"rows":[{"name":"A"},{"name":"B"}],"columns":[{"name":"01"},{"name":"02"},{"name":"03"}],
        "wells":[{"path":"A/02","rowIndex":0,"columnIndex":1}]}"#;
    let group = |path: &str, attributes: &str| {
        let folder = store.path().join(path);
        fs::create_dir_all(&folder).unwrap();
        write_file(
            folder.join("zarr.json"),
            format!(r#"{{"zarr_format":3,"node_type":"group","attributes":{attributes}}}"#),
        );
    };
    group(
        "",
        &format!(r#"{{"ome":{{"version":"0.5","plate":{plate}}}}}"#),
    );
    group("old", &format!(r#"{{"plate":{plate}}}"#));
    group("A", r#"{"plate":"flat"}"#);
    let path = store.path().to_str().unwrap();
    let printed = String::from_utf8(zarrfs(&["info", path]).stdout).unwrap();
    let wanted = ["/", "A", "old"].map(|name| {
        let is_plate = name != "A";
        let plate = ": plate of 2 rows and 3 columns, wells: 1";
        (name, if is_plate { plate } else { "" })
    });
    assert_eq!(printed.lines().count(), wanted.len(), "{printed}");
    for (line, (name, plate)) in printed.lines().zip(wanted) {
        assert!(line.trim_start().starts_with(name), "{line}");
        assert!(line.ends_with(&format!("group{plate}")), "{line}");
    }
    let printed = String::from_utf8(zarrfs(&["info", "--json", path]).stdout).unwrap();
    let rows: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        rows[0]["plate"],
        serde_json::json!({"rows": 2, "columns": 3, "wells": 1})
    );
    assert!(rows[1].get("plate").is_none(), "{printed}");
}
