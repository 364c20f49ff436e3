//! Parts of arrays that `zarrfs cat --box` prints, also as files of other formats, compared with
//! NumPy's slices of what zarr-python reads.

use crate::support::{ZARRFS, announce, env_path, run_python, run_zarrfs, test_data, text, zarrfs};

#[test]
fn boxes_are_the_slices_of_numpy() {
    let directory = tempfile::tempdir().unwrap();
    if let (Some(python), Some(matrix)) =
        (env_path("ZARRFS_TEST_PYTHON"), env_path("ZARRFS_MATRIX"))
    {
        for (store, step) in [("dot.zarr", "6"), ("slash.zarr", "8")] {
            let store = matrix.join(store);
            let args = ["compare", ZARRFS, text(&store), step];
            announce(run_python(&python, "boxes.py", &args).trim());
        }
    }
    if let Some(python) = env_path("ZARRFS_TEST_PYTHON3") {
        let store = directory.path().join("made.zarr");
        run_python(&python, "boxes.py", &["make", text(&store)]);
        let args = ["compare", ZARRFS, text(&store), "1"];
        announce(run_python(&python, "boxes.py", &args).trim());
    }
}

#[test]
fn programs_open_files_of_boxes_at_their_place() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let sample = test_data("sample.zarr");
    let args = ["programs", ZARRFS, text(&sample), text(directory.path())];
    announce(run_python(&python, "boxes.py", &args).trim());
}

#[test]
fn a_wrong_box_names_the_array_and_its_shape() {
    let sample = test_data("sample.zarr");
    let array = sample.join("air_temperature");
    let shape = "; the shape of the array is [62, 37, 53]";
    for (range, why) in [
        ("0:63", "63 is outside of a dimension of 62 items"),
        (
            "::2",
            "\"::2\" has a step; a box has all items between start:stop",
        ),
        ("1,2,3,4", "4 ranges, but 3 dimensions"),
    ] {
        for verb in ["cat", "header"] {
            let (code, said) = run_zarrfs(&[verb, text(&array), "--box", range]);
            let expected = format!("air_temperature: --box: {why}{shape}");
            assert!(
                code == 2 && said.trim_end().ends_with(&expected),
                "{code} {said}"
            );
        }
    }
    let refused = |args: &[&str], code: i32, why: &str| {
        let (failed, said) = run_zarrfs(args);
        assert!(
            failed == code && said.contains(why),
            "{args:?}: {failed} {said}"
        );
    };
    let array = text(&array);
    refused(
        &["cat", array, "--box=1", "--offset=1"],
        2,
        "cannot be used with",
    );
    refused(&["cat", array, "--format=vrt"], 2, "invalid value 'vrt'");
    refused(&["cat", array, "--format=txt", "--box=0:20"], 0, "");
    refused(
        &["cat", array, "--format=tif", "--box=0:0"],
        4,
        "data.tif can't describe",
    );
    refused(
        &["header", text(&sample), "--format=nc", "--box=1"],
        2,
        "--box is for arrays",
    );
    // the formats are those of the box
    let listed = zarrfs(&["header", array, "--box=1,2"]).stdout;
    let listed = String::from_utf8(listed).unwrap();
    assert!(listed.contains("npy") && listed.contains("txt"), "{listed}");
    assert_eq!(zarrfs(&["cat", array, "--box=5:5"]).stdout, b"");
    assert_eq!(
        zarrfs(&["cat", array, "--box=10,3,7"]).stdout,
        183i16.to_le_bytes()
    );
}
