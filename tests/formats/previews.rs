//! `preview.png` on a real mount: GDAL decodes it, and its pixels are compared with those that
//! NumPy computes from the values that zarr-python reads.

use crate::support;
use crate::support::array::TestArray;
use crate::support::{Mount, announce, env_path, errno, failure, names, run_python, zarrfs};
use serde_json::json;
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn previews_have_the_pixels_that_numpy_computes() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store.zarr");
    let path = store.to_str().unwrap();
    run_python(&python, "previews.py", &["write", path]);
    let mount = Mount::new(&store, &["--read-only", "--containers", "png"]);
    let args = ["check", mount.path().to_str().unwrap(), path];
    announce(run_python(&python, "previews.py", &args).trim());
    mount.assert_no_problem();
}

/// Returns a store with 40 times 30 integers of 2 bytes in chunks of 20 rows.
fn store() -> (tempfile::TempDir, TestArray) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let more = json!({"dtype": "<i2", "fill_value": 7, "compressor": {"id": "zlib", "level": 1}});
    let mut array = TestArray::with_chunks(folder.path().join("a"), &[40, 30], &[20, 30], more);
    array.flat = (0..1200i16).flat_map(i16::to_le_bytes).collect();
    array.put(&[0, 0]);
    array.put(&[1, 0]);
    (folder, array)
}

/// "Its size is known without a chunk."
#[test]
fn a_listing_decodes_no_chunk() {
    let (folder, _) = store();
    let mount = Mount::new(
        folder.path(),
        &["--headers", "none", "--containers", "png", "--views", "all"],
    );
    let path = mount.join("a/preview.png");
    let mut size = 0;
    let listed = mount.growth(|| {
        for name in names(&mount.join("a")) {
            fs::metadata(mount.join("a").join(name)).unwrap();
        }
        size = fs::metadata(&path).unwrap().len();
    });
    assert_eq!(listed.of("bytes_decoded"), 0);
    let mut file = Vec::new();
    let read = mount.growth(|| file = fs::read(&path).unwrap());
    assert_eq!((file.len() as u64, read.of("bytes_decoded")), (size, 2400));
    assert_eq!(file[..8], *b"\x89PNG\r\n\x1a\n");
    let copy = folder.path().join("copy.png");
    support::run(
        "cp",
        &[support::text(&path), support::text(&copy)],
        folder.path(),
    );
    assert!(fs::read(&copy).unwrap() == file);
    // the command prints the same image, and views have none
    let array = folder.path().join("a");
    let printed = zarrfs(&["cat", support::text(&array), "--format", "png"]);
    assert!(printed.stdout == file, "{printed:?}");
    assert!(!mount.join("a/slices/0/preview.png").exists());
    let boxed = [
        "header",
        support::text(&array),
        "--format",
        "png",
        "--box",
        "1:3",
    ];
    let (code, said) = failure(&zarrfs(&boxed));
    assert_eq!(code, 2);
    assert!(said.contains("preview.png shows whole arrays"), "{said}");
    mount.assert_no_problem();
}

#[test]
fn a_preview_shows_what_was_written_before_it_was_opened() {
    let (folder, _) = store();
    let mount = Mount::new(folder.path(), &["--containers", "png"]);
    let path = mount.join("a/preview.png");
    let first = fs::read(&path).unwrap();
    let flat = support::open_for_writing(&mount.join("a/data.raw"));
    flat.write_all_at(&[1; 600], 0).unwrap();
    let second = fs::read(&path).unwrap();
    assert!(first.len() == second.len() && first != second);
    // what is written in its place is accepted, as of all headers, so that trees can be copied
    fs::write(&path, "no image").unwrap();
    assert!(fs::read(&path).unwrap() == second);
}

#[test]
fn a_torn_chunk_is_an_error_and_a_missing_one_is_not() {
    let (folder, array) = store();
    fs::remove_file(array.file(&[1, 0])).unwrap();
    let mount = Mount::new(folder.path(), &["--read-only", "--containers", "png"]);
    let path = mount.join("a/preview.png");
    assert!(fs::read(&path).is_ok());
    mount.assert_no_problem();
    fs::write(array.file(&[0, 0]), b"torn").unwrap();
    assert!(fs::metadata(&path).is_ok());
    assert_eq!(errno(fs::read(&path)), "EIO");
    let said = mount.stats();
    assert!(said.contains("a/0.0"), "{said}");
}
