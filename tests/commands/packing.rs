//! Archives that `zarrfs pack` writes, compared with the store that they were made of: as
//! zarr-python and Python's zipfile read them, and through a mount.

use crate::support::tree::snapshot;
use crate::support::{
    Mount, ZARRFS, announce, copy_tree, env_path, is_installed, names, overwrite, run_python,
    run_zarrfs, set, test_data, text, zarrfs,
};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

#[track_caller]
fn pack(store: &Path, archive: &Path) -> String {
    let output = zarrfs(&["pack", text(store), text(archive)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the arrays of a store with the digests of their flat bytes, or the error of reading them.
fn arrays(store: &Path) -> Vec<(String, String)> {
    let listed = zarrfs(&["info", "--json", text(store)]).stdout;
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let nodes = listed.as_array().unwrap().iter();
    let paths = nodes.filter(|node| node["kind"] == "array");
    paths
        .map(|node| {
            let path = node["path"].as_str().unwrap();
            let flat = zarrfs(&["cat", &format!("{}{path}", text(store))]);
            let is_read = flat.status.success();
            (
                path.to_string(),
                format!("{is_read} {}", crate::support::sha256(&flat.stdout)),
            )
        })
        .collect()
}

/// Returns the stores of a matrix.
fn stores_of(matrix: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(matrix).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "zarr"));
    paths.sort();
    paths
}

#[test]
fn the_sample_store_is_packed() {
    let directory = tempfile::tempdir().unwrap();
    let sample = test_data("sample.zarr");
    let archive = directory.path().join("x.zip");
    let said = pack(&sample, &archive);
    assert!(
        said.ends_with(" MiB\n") || said.ends_with(" KiB\n"),
        "{said}"
    );
    assert!(arrays(&sample).len() > 5);
    assert_eq!(arrays(&archive), arrays(&sample));
    let mounted = Mount::new(&archive, &["--headers", "none"]);
    assert_eq!(
        std::fs::read(mounted.join("ocean/lat/data.raw")).unwrap(),
        zarrfs(&["cat", text(&sample.join("ocean/lat"))]).stdout
    );
    drop(mounted);
    // a part, an archive again, and an array; equal stores give equal archives
    let part = directory.path().join("ocean.zip");
    pack(&sample.join("ocean"), &part);
    assert_eq!(arrays(&part), arrays(&sample.join("ocean")));
    let again = directory.path().join("again.zip");
    pack(&archive.join("ocean"), &again);
    assert!(std::fs::read(&part).unwrap() == std::fs::read(&again).unwrap());
    let array = directory.path().join("lat.zip");
    pack(&sample.join("lat"), &array);
    assert_eq!(
        zarrfs(&["cat", text(&array)]).stdout,
        zarrfs(&["cat", text(&sample.join("lat"))]).stdout
    );
    let left = ["again.zip", "lat.zip", "ocean.zip", "x.zip"];
    assert_eq!(names(directory.path()), set(&left));
}

#[test]
fn references_become_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let [refs, archive] = ["refs.json", "x.zip"].map(|n| directory.path().join(n));
    std::fs::write(directory.path().join("data"), b"....abcd").unwrap();
    let array = r#"{"zarr_format":2,"shape":[6],"chunks":[4],"dtype":"|u1","compressor":null,
        "fill_value":0,"order":"C","filters":null}"#;
    let document = serde_json::json!({".zgroup": "{\"zarr_format\": 2}", "a/.zarray": array,
        "a/0": ["data", 4, 4], "a/1": "wxyz"});
    std::fs::write(&refs, document.to_string()).unwrap();
    pack(&refs, &archive);
    std::fs::remove_file(directory.path().join("data")).unwrap();
    assert_eq!(zarrfs(&["cat", text(&archive.join("a"))]).stdout, b"abcdwx");
    // the target of a reference is gone
    let (code, said) = run_zarrfs(&["pack", "--force", text(&refs), text(&archive)]);
    assert!(code == 1 && said.contains("/a/0: "), "{code} {said}");
    assert_eq!(zarrfs(&["cat", text(&archive.join("a"))]).stdout, b"abcdwx");
}

#[test]
fn an_archive_is_packed_with_the_changes_of_its_overlay() {
    let directory = tempfile::tempdir().unwrap();
    let [old, changes, new] = ["old.zip", "changes", "new.zip"].map(|n| directory.path().join(n));
    pack(&test_data("sample.zarr"), &old);
    let before = std::fs::read(&old).unwrap();
    let mounted = Mount::new(&old, &["--overlay", text(&changes)]);
    let said = overwrite(&mounted.join("lat/data.raw"), 4, b"abcd");
    assert_eq!(said, "ok");
    std::fs::create_dir(mounted.join("notes")).unwrap();
    std::fs::write(mounted.join("notes/n.txt"), "plain").unwrap();
    let lat = std::fs::read(mounted.join("lat/data.raw")).unwrap();
    assert_eq!(lat[4..8], *b"abcd");
    drop(mounted);
    let output = zarrfs(&["pack", "--overlay", text(&changes), text(&old), text(&new)]);
    assert!(output.status.success());
    assert!(zarrfs(&["cat", text(&new.join("lat"))]).stdout == lat);
    let mounted = Mount::new(&new, &[]);
    assert_eq!(
        std::fs::read(mounted.join("notes/n.txt")).unwrap(),
        b"plain"
    );
    drop(mounted);
    assert!(std::fs::read(&old).unwrap() == before);
}

#[test]
fn zarr_python_reads_packed_stores() {
    let directory = tempfile::tempdir().unwrap();
    for (matrix, names) in [
        // those that zarr-python can open as a whole
        ("ZARRFS_MATRIX", &["consolidated", "dot", "slash"][..]),
        ("ZARRFS_MATRIX3", &["zarr-python", "zarrs"]),
    ] {
        let (Some(old), Some(new), Some(matrix)) = (
            env_path("ZARRFS_TEST_PYTHON"),
            env_path("ZARRFS_TEST_PYTHON3"),
            env_path(matrix),
        ) else {
            return;
        };
        for store in stores_of(&matrix) {
            let name = store.file_stem().unwrap().to_str().unwrap();
            let archive = directory.path().join(format!("{name}.zip"));
            pack(&store, &archive);
            let compare = |python: &Path, what: &str| {
                let args = [what, text(&store), text(&archive)];
                announce(run_python(python, "packed.py", &args).trim());
            };
            compare(&new, "members");
            if names.contains(&name) {
                let is_v3 = store.join("zarr.json").exists();
                compare(if is_v3 { &new } else { &old }, "values");
            }
            if name == "consolidated" {
                compare(&new, "values");
            }
        }
    }
}

#[test]
fn an_archive_of_ome_zarr_has_its_documents_first() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image.zarr");
    run_python(&python, "packed.py", &["ome", text(&image)]);
    let archive = directory.path().join("image.ozx");
    pack(&image, &archive);
    run_python(
        &python,
        "packed.py",
        &["values", text(&image), text(&archive)],
    );
    let order = run_python(&python, "packed.py", &["order", text(&archive)]);
    let expected = [
        "zarr.json",
        "0/zarr.json",
        "1/zarr.json",
        "labels/zarr.json",
        "labels/cells/zarr.json",
        "labels/cells/0/zarr.json",
        "0/c/0/0",
        "0/c/0/1",
        "0/c/1/0",
        "0/c/1/1",
        "1/c/0/0",
        "labels/cells/0/c/0",
        "labels/cells/0/c/1",
        "labels/cells/0/c/2",
        r#"{"ome":{"version":"0.5","zipFile":{"centralDirectory":{"jsonFirst":true}}}}"#,
    ];
    assert_eq!(order.lines().collect::<Vec<_>>(), expected);
    // it is a store wherever an archive is one
    assert_eq!(arrays(&archive), arrays(&image));
    let flat = zarrfs(&["cat", text(&image.join("1"))]).stdout;
    assert_eq!(zarrfs(&["cat", text(&archive.join("1"))]).stdout, flat);
    let mounted = Mount::new(directory.path(), &["--stores"]);
    assert_eq!(
        std::fs::read(mounted.join("image.ozx/1/data.raw")).unwrap(),
        flat
    );
    drop(mounted);
    // a zarr.json that is no document of a group or array comes later
    std::fs::create_dir(image.join("0/c/notes")).unwrap();
    std::fs::copy(image.join("zarr.json"), image.join("0/c/notes/zarr.json")).unwrap();
    let other = directory.path().join("other.ozx");
    pack(&image, &other);
    let order = run_python(&python, "packed.py", &["order", text(&other)]);
    assert!(
        order.trim().ends_with(r#"{"jsonFirst":false}}}}"#),
        "{order}"
    );
    let refused = run_zarrfs(&["pack", text(&test_data("sample.zarr")), "/tmp/none.ozx"]);
    assert!(
        refused.0 == 1 && refused.1.contains("no image of OME-NGFF 0.5"),
        "{refused:?}"
    );
}

#[test]
fn a_failed_pack_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    copy_tree(&test_data("sample.zarr"), &path("x.zarr"));
    std::fs::write(path("old.zip"), "an old file").unwrap();
    std::fs::create_dir(path("folder.zip")).unwrap();
    let before = snapshot(directory.path()).unwrap();
    for (archive, code, why) in [
        (
            "old.zip",
            2,
            "old.zip: exists already; replace it with --force",
        ),
        ("folder.zip", 2, "folder.zip: a directory; name a file"),
        (
            "x.tar",
            2,
            "x.tar: not the name of an archive; let it end with .zip or .ozx",
        ),
        ("none/x.zip", 1, "none: No such file or directory"),
    ] {
        let (failed, said) = run_zarrfs(&["pack", text(&path("x.zarr")), text(&path(archive))]);
        assert!(
            failed == code && said.trim_end().ends_with(why),
            "{failed} {said}"
        );
    }
    assert_eq!(snapshot(directory.path()).unwrap(), before);
    // the last value cannot be read
    symlink("/nonexistent", path("x.zarr/time/zz")).unwrap();
    let before = snapshot(directory.path()).unwrap();
    let (code, said) = run_zarrfs(&["pack", text(&path("x.zarr")), text(&path("new.zip"))]);
    assert!(code == 1 && said.contains("/time/zz: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let [store, old] = ["x.zarr", "old.zip"].map(path);
    let args = ["pack", "--force", text(&store), text(&old)];
    assert_eq!(run_zarrfs(&args).0, 1);
    assert_eq!(snapshot(directory.path()).unwrap(), before);
    std::fs::remove_file(path("x.zarr/time/zz")).unwrap();
    assert_eq!(run_zarrfs(&args), (0, String::new()));
    assert_eq!(arrays(&path("old.zip")), arrays(&path("x.zarr")));
}

/// strace kills the command at each call that changes a file.
#[test]
fn a_pack_that_is_killed_leaves_the_old_archive_or_the_new_one() {
    if !is_installed("strace") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    copy_tree(&test_data("sample.zarr/ocean/lat"), &path("lat.zarr"));
    pack(&path("lat.zarr"), &path("whole.zip"));
    let whole = std::fs::read(path("whole.zip")).unwrap();
    let mut killed = 0;
    for call in [
        "mkdir",
        "pwrite64",
        "copy_file_range",
        "ftruncate",
        "fsync",
        "renameat2",
        "unlinkat",
    ] {
        for n in 1.. {
            let inject = format!("inject={call}:signal=SIGKILL:when={n}");
            let status = Command::new("strace")
                .args([
                    "-f",
                    "-qq",
                    "-o",
                    "/dev/null",
                    "-e",
                    &format!("trace={call}"),
                    "-e",
                ])
                .args([&inject, ZARRFS, "pack", text(&path("lat.zarr"))])
                .arg(path("new.zip"))
                .stdout(std::process::Stdio::null())
                .status()
                .unwrap();
            let made = std::fs::read(path("new.zip")).ok();
            assert!(made.is_none_or(|made| made == whole), "{call} {n}");
            let _ = std::fs::remove_file(path("new.zip"));
            if status.success() {
                break;
            }
            killed += 1;
        }
    }
    assert!(killed > 10, "{killed}");
}
