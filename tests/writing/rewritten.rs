//! Arrays of the v3 matrix are overwritten through a mount. Then zarr-python 3, its zarrs pipeline
//! and TensorStore must read the written values from the store.

use crate::support;
use crate::support::digests::Oracle;
use crate::support::{Mount, announce, copy_tree, env_path, run_python};
use std::fs;
use std::path::{Path, PathBuf};
use zarrfs_base::json::{self, Value};

/// One array of this many is rewritten.
const SAMPLE: usize = 2;

/// Filters that change some or all values.
const LOSSY: [&str; 6] = [
    "scale_offset",
    "bitround",
    "fixedscaleoffset",
    "quantize",
    "cast_value",
    "numcodecs.astype",
];

/// Returns whether an array has flat bytes, and codecs that keep every value.
fn is_rewritable(document: &Path, array: &Value) -> bool {
    let text = fs::read_to_string(document).unwrap();
    let is_readable =
        array["expect"].is_null() && array["object"] != true && array["nbytes"].as_u64() > Some(0);
    is_readable && !LOSSY.iter().any(|name| text.contains(&format!("{name}\"")))
}

/// Copies a sample of the arrays of the v3 matrix into a store, and returns their names there.
fn copy_sample(folder: &Path, store: &Path) -> Vec<String> {
    let oracle = Oracle::read(folder);
    let mut names = Vec::new();
    for (from, arrays) in &oracle.stores {
        let path = |array: &Value| folder.join(from).join(array["array"].as_str().unwrap());
        let arrays = arrays
            .iter()
            .filter(|array| is_rewritable(&path(array).join("zarr.json"), array));
        // leave out arrays without chunks: a library that reads their fill values may lack the
        // codecs
        let arrays = arrays.filter(|array| fs::read_dir(path(array)).unwrap().count() > 1);
        for array in arrays.step_by(SAMPLE) {
            let name = format!(
                "{from}-{}",
                array["array"].as_str().unwrap().replace('/', "-")
            );
            copy_tree(&path(array), &store.join(&name));
            names.push(name);
        }
    }
    let group = br#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;
    fs::write(store.join("zarr.json"), group).unwrap();
    names
}

/// Returns the number of bytes of an item in a flat file of `len` bytes.
fn item_size(document: &Path, len: usize) -> usize {
    let document = json::parse(&fs::read(document).unwrap()).unwrap();
    let items: u64 = document["shape"]
        .as_array()
        .unwrap()
        .iter()
        .map(|len| len.as_u64().unwrap())
        .product();
    len / items as usize
}

/// Writes the items of an array in reverse order through a mount, so that each stays a value of the
/// type. Returns the written bytes.
fn rewrite(array: PathBuf) -> Vec<u8> {
    let flat = fs::read(array.join("data.raw")).unwrap();
    let size = item_size(&array.join("zarr.json"), flat.len());
    let reversed: Vec<u8> = flat.chunks(size).rev().flatten().copied().collect();
    let mut file = fs::OpenOptions::new()
        .write(true)
        .open(array.join("data.raw"))
        .unwrap();
    std::io::Write::write_all(&mut file, &reversed).unwrap();
    file.sync_all().unwrap();
    reversed
}

#[test]
fn other_libraries_read_the_values_written_over_their_arrays() {
    let (Some(folder), Some(python)) =
        (env_path("ZARRFS_MATRIX3"), env_path("ZARRFS_TEST_PYTHON3"))
    else {
        return;
    };
    let [store, original, expected] = [(); 3].map(|()| support::memory_directory());
    let names = copy_sample(&folder, store.path());
    copy_tree(store.path(), original.path());
    let mount = Mount::new(store.path(), &[]);
    for name in &names {
        fs::write(expected.path().join(name), rewrite(mount.join(name))).unwrap();
    }
    mount.assert_no_problem();
    drop(mount);
    announce(&format!(
        "{} arrays of the v3 matrix were rewritten",
        names.len()
    ));
    announce(
        run_python(
            &python,
            "rewritten.py",
            &[store.path(), original.path(), expected.path()],
        )
        .trim(),
    );
}
