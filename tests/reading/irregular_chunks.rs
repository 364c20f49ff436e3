//! Arrays of Zarr v3 whose chunks or shards differ in length, on real mounts. NumPy and numcodecs
//! write the stored chunks and read those that the mount stores. zarr-python has written
//! `rectilinear.zarr` and its digests.

use crate::support;
use crate::support::{
    Mount, announce, env_path, names, open_for_writing, run_python, test_data, zarrfs,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const GROUP: &str = r#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;

/// Writes the document of an array of 10 x 6 bytes, in chunks of 3, 3 and 5 rows and of 4 and 2
/// columns.
fn write_document(array: &Path, more: &Value) {
    let mut document = json!({"zarr_format": 3, "node_type": "array", "shape": [10, 6], "data_type": "uint8",
        "chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[[3, 2], 5], [4, 2]]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 9, "codecs": [{"name": "bytes"}], "attributes": {}});
    for (field, value) in more.as_object().unwrap() {
        document[field] = value.clone();
    }
    fs::create_dir_all(array).unwrap();
    fs::write(array.join("zarr.json"), document.to_string()).unwrap();
}

fn new_store(more: &Value) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join("zarr.json"), GROUP).unwrap();
    write_document(&store.path().join("a"), more);
    store
}

#[test]
fn numcodecs_reads_chunks_that_a_mount_has_overwritten() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let [store, expected] = [(); 2].map(|()| support::memory_directory());
    run_python(&python, "irregular.py", &["make".as_ref(), store.path()]);
    fs::write(store.path().join("zarr.json"), GROUP).unwrap();
    let mount = Mount::new(store.path(), &[]);
    let arrays: Vec<String> = names(store.path())
        .into_iter()
        .filter(|name| name != "zarr.json")
        .collect();
    assert!(arrays.len() >= 48, "{arrays:?}");
    for (i, name) in arrays.iter().enumerate() {
        let path = mount.join(name).join("data.raw");
        let flat = fs::read(&path).unwrap();
        let items = (0..flat.len() / 4).flat_map(|n| (n as f32).to_le_bytes());
        assert!(flat.iter().copied().eq(items), "{name}");
        let mut reversed: Vec<u8> = flat.chunks(4).rev().flatten().copied().collect();
        let mut file = open_for_writing(&path);
        match i % 2 {
            0 => file.write_all(&reversed).unwrap(),
            // parts of most chunks, so that these are read before they are stored
            _ => {
                for (at, piece) in reversed.chunks(100).enumerate().step_by(2) {
                    file.write_all_at(piece, 100 * at as u64).unwrap();
                }
                for (at, piece) in flat.chunks(100).enumerate().skip(1).step_by(2) {
                    reversed[100 * at..][..piece.len()].copy_from_slice(piece);
                }
            }
        }
        file.sync_all().unwrap();
        fs::write(expected.path().join(name), reversed).unwrap();
    }
    mount.assert_no_problem();
    drop(mount);
    announce(
        run_python(
            &python,
            "irregular.py",
            &["check".as_ref(), store.path(), expected.path()],
        )
        .trim(),
    );
    let report = zarrfs(&["check", "--deep", store.path().to_str().unwrap()]);
    assert!(report.status.success(), "{report:?}");
}

#[test]
fn chunk_files_have_the_sizes_of_their_chunks() {
    let store = new_store(&json!({}));
    let mount = Mount::new(store.path(), &[]);
    let array = mount.join("a");
    let flat: Vec<u8> = (0..60).collect();
    fs::write(array.join("data.raw"), &flat).unwrap();
    let sizes = [
        ("0.0", 12),
        ("0.1", 6),
        ("1.0", 12),
        ("1.1", 6),
        ("2.0", 20),
        ("2.1", 10),
    ];
    for (name, size) in sizes {
        assert_eq!(
            fs::metadata(array.join(name)).unwrap().len(),
            size,
            "{name}"
        );
        assert_eq!(
            fs::read(array.join(name)).unwrap().len() as u64,
            size,
            "{name}"
        );
    }
    // rows 6 to 9, and a row of padding
    let mut rows: Vec<u8> = (6..10).flat_map(|row| [6 * row + 4, 6 * row + 5]).collect();
    rows.extend([9, 9]);
    assert_eq!(fs::read(array.join("2.1")).unwrap(), rows);
    assert_eq!(fs::read(store.path().join("a/c/2/1")).unwrap(), rows);

    // a file replaces a chunk if it has the chunk's size
    for (name, size, is_taken) in [
        ("1.1", 6, true),
        ("1.1", 12, false),
        ("2.0", 20, true),
        ("2.0", 12, false),
    ] {
        let other = mount.join("a").join(".new");
        let done = fs::write(&other, vec![size as u8; size])
            .and_then(|()| fs::rename(&other, array.join(name)));
        assert_eq!(done.is_ok(), is_taken, "{name} {size}: {done:?}");
        let _ = fs::remove_file(&other);
    }
    assert_eq!(
        fs::read(array.join("data.raw")).unwrap()[3 * 6..6 * 6][..6],
        [18, 19, 20, 21, 6, 6]
    );
    fs::remove_file(array.join("0.0")).unwrap();
    assert_eq!(
        fs::read(array.join("data.raw")).unwrap()[..6],
        [9, 9, 9, 9, 4, 5]
    );
    let missing = fs::metadata(array.join("3.0")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn an_array_that_grows_beyond_its_listed_chunks_repeats_the_last_one() {
    let store = new_store(&json!({}));
    let mount = Mount::new(store.path(), &["--resize"]);
    let array = mount.join("a");
    fs::write(array.join("data.raw"), [1; 60]).unwrap();
    let resize = |bytes: u64| open_for_writing(&array.join("data.raw")).set_len(bytes);
    resize(66).unwrap();
    assert_eq!(fs::read(array.join("data.raw")).unwrap()[60..], [9; 6]);
    resize(72).unwrap();
    assert_eq!(fs::read(array.join("data.raw")).unwrap()[60..], [9; 12]);
    resize(30).unwrap();
    assert!(
        ["c/2/0", "c/2/1"]
            .iter()
            .all(|key| !store.path().join("a").join(key).exists())
    );
    assert_eq!(fs::read(array.join("1.1")).unwrap(), [1, 1, 1, 1, 9, 9]);
    let stored: Value =
        serde_json::from_slice(&fs::read(store.path().join("a/zarr.json")).unwrap()).unwrap();
    assert_eq!(
        stored["chunk_grid"]["configuration"]["chunk_shapes"],
        json!([[[3, 2], [5, 2]], [4, 2]])
    );
}

#[test]
fn stores_of_zarr_python_are_read() {
    let text = fs::read(test_data("rectilinear.json")).unwrap();
    let expected: Value = serde_json::from_slice(&text).unwrap();
    let mount = Mount::new(&test_data("rectilinear.zarr"), &["--read-only"]);
    for (name, digest) in expected.as_object().unwrap() {
        let (_, found) = support::digest(&mount.join(name).join("data.raw")).unwrap();
        assert_eq!(found, digest.as_str().unwrap(), "{name}");
    }
    mount.assert_no_problem();
    let report = zarrfs(&[
        "check",
        "--deep",
        test_data("rectilinear.zarr").to_str().unwrap(),
    ]);
    assert!(report.status.success(), "{report:?}");
}

#[test]
fn programs_read_headers_and_values_without_a_mount() {
    let store = new_store(&json!({}));
    let array = store.path().join("a");
    let flat: Vec<u8> = (0..60).collect();
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(&flat).unwrap();
    input.rewind().unwrap();
    let put = Command::new(env!("CARGO_BIN_EXE_zarrfs"))
        .arg("put")
        .arg(&array)
        .stdin(input)
        .output()
        .unwrap();
    assert!(put.status.success(), "{put:?}");
    let array = array.to_str().unwrap();
    assert_eq!(zarrfs(&["cat", array]).stdout, flat);
    let header = zarrfs(&["header", "--format", "npy", array]).stdout;
    assert!(
        header.starts_with(b"\x93NUMPY")
            && String::from_utf8_lossy(&header).contains("'shape': (10, 6)")
    );
    fs::remove_file(store.path().join("a/c/1/0")).unwrap();
    let map = String::from_utf8(zarrfs(&["info", "--map", "--ascii", array]).stdout).unwrap();
    assert!(
        map.contains("0  ##\n")
            && map.contains("1  .#\n")
            && map.contains("5 of 6 chunks stored, 54 B"),
        "{map}"
    );
}

#[test]
fn a_view_of_v2_has_no_document_of_chunks_of_different_lengths() {
    let store = new_store(&json!({}));
    let mount = Mount::new(store.path(), &["--view", "v2"]);
    assert!(!mount.join("a/.zarray").exists() && mount.join("a/data.raw").exists());
    assert!(
        mount.stats().contains("different lengths"),
        "{}",
        mount.stats()
    );
    let shown = zarrfs(&["info", "--wide", store.path().to_str().unwrap()]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("chunks (2*3+5, 4+2)"), "{shown}");
}
