//! OME-NGFF images on a real mount. The values and metadata that tifffile, ome-types, ITK, nibabel
//! and pynrrd read from `data.tif`, `data.nii` and `data.nhdr` are compared with those that
//! tests/python/images.py has written. OME-XML is checked against its schema.

use crate::support::{Mount, announce, env_path, run_python};

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
