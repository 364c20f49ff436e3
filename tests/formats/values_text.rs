//! `values.txt` on a real mount: its values are compared with those of NumPy and cftime, awk reads
//! it, and it changes with its array.

use crate::support;
use crate::support::array::TestArray;
use crate::support::{Mount, ZARRFS, announce, env_path, errno, run, run_python};
use serde_json::json;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

#[test]
fn numpy_reads_the_same_values() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store.zarr");
    run_python(
        &python,
        "values_text.py",
        &["write", store.to_str().unwrap()],
    );
    let mount = Mount::new(&store, &["-o", "ro,headers=txt"]);
    let args = [
        "check",
        mount.path().to_str().unwrap(),
        store.to_str().unwrap(),
    ];
    announce(run_python(&python, "values_text.py", &args).trim());
    mount.assert_no_problem();
}

/// Writes a store of strings with zarr-python 2 and 3, and compares its files in a mount.
#[test]
fn strings_of_any_length_are_those_of_zarr_python() {
    let (Some(python2), Some(python3)) = (
        env_path("ZARRFS_TEST_PYTHON"),
        env_path("ZARRFS_TEST_PYTHON3"),
    ) else {
        return;
    };
    // h5py is there alone
    let reader = env_path("ZARRFS_TEST_SERVERS").unwrap_or_else(|| python2.clone());
    let folder = tempfile::tempdir().unwrap();
    for (verb, python, name) in [
        ("write", &python2, "by_2.zarr"),
        ("write", &python3, "by_3.zarr"),
        ("refer", &python2, "references.json"),
    ] {
        let store = folder.path().join(name);
        let expected = folder.path().join("expected");
        run_python(python, "strings.py", &[Path::new(verb), &store, &expected]);
        let mount = Mount::new(
            &store,
            &[
                "--read-only",
                "--headers",
                "txt,readme,vrt,envi",
                "--containers",
                "nc,h5",
            ],
        );
        let args = [Path::new("check"), mount.path(), &expected];
        announce(run_python(&reader, "strings.py", &args).trim());
        if verb == "write" {
            run_python(&python2, "strings.py", &[Path::new("bands"), mount.path()]);
        }
        mount.assert_no_problem();
    }
}

/// Returns a store of 4 times 3 integers of 2 bytes from 1 to 12, in chunks of 2 rows.
fn store() -> (tempfile::TempDir, TestArray) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let more = json!({"dtype": "<i2", "fill_value": 0, "compressor": {"id": "zlib", "level": 1}});
    let mut array = TestArray::with_chunks(folder.path().join("a"), &[4, 3], &[2, 3], more);
    array.flat = (1..=12i16).flat_map(i16::to_le_bytes).collect();
    let mount = Mount::new(folder.path(), &["--headers", "none"]);
    fs::write(mount.join("a/data.raw"), &array.flat).unwrap();
    (folder, array)
}

fn text(mount: &Mount) -> String {
    let path = mount.join("a/values.txt");
    let size = fs::metadata(&path).unwrap().len();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(size, text.len() as u64, "{text}");
    text
}

#[test]
fn values_txt_is_shown_only_on_request() {
    let (folder, _) = store();
    for (args, is_shown) in [
        (&["--containers", "all"] as &[&str], false),
        (&["--headers", "all"], false),
        (&["--headers", "all,txt"], true),
        (&["--headers", "txt"], true),
    ] {
        let mount = Mount::new(folder.path(), args);
        let names = fs::read_dir(mount.join("a"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        assert_eq!(
            names.filter(|name| name == "values.txt").count(),
            usize::from(is_shown),
            "{args:?}"
        );
        assert_eq!(mount.join("a/values.txt").exists(), is_shown, "{args:?}");
        assert_eq!(
            mount.join("a/data.npy").exists(),
            args != ["--headers", "txt"],
            "{args:?}"
        );
    }
    let printed = run(ZARRFS, &["header", "--format", "txt", "a"], folder.path());
    assert_eq!(printed, "1 2 3\n4 5 6\n7 8 9\n10 11 12\n");
}

#[test]
fn awk_sums_the_columns() {
    let (folder, _) = store();
    let mount = Mount::new(folder.path(), &["--headers", "txt"]);
    let program = "{ a += $1; c += $3 } END { print NR, a, c }";
    assert_eq!(
        run("awk", &[program, "a/values.txt"], mount.path()),
        "4 22 30\n"
    );
}

/// The array changes through the mount, through its attributes, and behind the mount. The size of
/// the file always fits its text.
#[test]
fn values_txt_follows_the_array() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &["--headers", "txt"]);
    assert_eq!(text(&mount), "1 2 3\n4 5 6\n7 8 9\n10 11 12\n");
    let flat = fs::OpenOptions::new()
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap();
    for number in [-7i16, 1234, 5] {
        flat.write_all_at(&number.to_le_bytes(), 2).unwrap();
        // the write is visible before it is stored
        assert_eq!(
            text(&mount),
            format!("1 {number} 3\n4 5 6\n7 8 9\n10 11 12\n")
        );
    }
    support::close(flat).unwrap();
    fs::remove_file(mount.join("a/1.0")).unwrap();
    assert_eq!(text(&mount), "1 5 3\n4 5 6\n0 0 0\n0 0 0\n");
    fs::write(
        mount.join("a/.zattrs"),
        r#"{"units": "hours since 2000-01-01"}"#,
    )
    .unwrap();
    assert!(
        text(&mount).starts_with("2000-01-01T01:00:00 2000-01-01T05:00:00 "),
        "{}",
        text(&mount)
    );
    fs::write(mount.join("a/.zattrs"), "{}").unwrap();
    // change the store behind the mount: opening the file shows its current content
    fs::remove_file(array.path.join("0.0")).unwrap();
    assert_eq!(
        fs::read_to_string(mount.join("a/values.txt")).unwrap(),
        "0 0 0\n".repeat(4)
    );
    assert_eq!(text(&mount), "0 0 0\n".repeat(4));
}

#[test]
fn writes_to_values_txt_change_nothing() {
    let (folder, _) = store();
    let mount = Mount::new(folder.path(), &["--headers", "txt"]);
    let before = support::tree::snapshot(folder.path()).unwrap();
    let text_before = text(&mount);
    fs::write(mount.join("a/values.txt"), "something else").unwrap();
    assert_eq!(text(&mount), text_before);
    drop(mount);
    let mount = Mount::new(folder.path(), &["-o", "ro,headers=txt"]);
    let opened = fs::OpenOptions::new()
        .write(true)
        .open(mount.join("a/values.txt"));
    assert_eq!(errno(opened), "EROFS");
    assert!(before == support::tree::snapshot(folder.path()).unwrap());
}

#[test]
fn a_damaged_chunk_is_an_error() {
    let (folder, array) = store();
    fs::write(array.path.join("1.0"), "not zlib").unwrap();
    let mount = Mount::new(folder.path(), &["--headers", "txt"]);
    assert_eq!(errno(fs::read(mount.join("a/values.txt"))), "EIO");
    let listed = fs::read_dir(mount.join("a"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert!(
        listed
            .into_iter()
            .any(|name| Path::new(&name) == Path::new("values.txt"))
    );
    assert!(mount.stats().contains("1.0"), "{}", mount.stats());
}
