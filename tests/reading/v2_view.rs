//! Stores of Zarr v3 on mounts with `--view v2`: programs that know no other format read and write
//! them, and readers of v3 read the written values from the store.

use crate::support;
use crate::support::{Mount, announce, env_path, names, run, run_python, zarrfs};
use serde_json::Value;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A store of v3 with one array of each kind, and a file with the expected values.
struct Sample {
    directory: tempfile::TempDir,
}

impl Sample {
    /// Returns `None` if zarr-python 3 is not installed.
    fn new() -> Option<Sample> {
        let python = env_path("ZARRFS_TEST_PYTHON3")?;
        let sample = Sample {
            directory: tempfile::tempdir().unwrap(),
        };
        run_python(
            &python,
            "zarr3.py",
            &["make".as_ref(), sample.store().as_path()],
        );
        run_python(
            &python,
            "view_v2.py",
            &["shards".as_ref(), sample.store().as_path()],
        );
        let expected = run_python(
            &python,
            "view_v2.py",
            &["expect".as_ref(), sample.store().as_path()],
        );
        fs::write(sample.expected(), expected).unwrap();
        Some(sample)
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("s.zarr")
    }

    fn expected(&self) -> PathBuf {
        self.directory.path().join("expected.json")
    }

    fn mount(&self, args: &[&str]) -> Mount {
        Mount::new(&self.store(), &[&["--view", "v2"], args].concat())
    }

    /// Returns the documents of v2 and temporary files of zarrfs in the store. There should be
    /// none.
    fn strays(&self) -> Vec<String> {
        let all = support::tree::snapshot(&self.store()).unwrap().into_keys();
        all.filter(|path| path.rsplit('/').next().unwrap().starts_with(".z"))
            .collect()
    }
}

#[test]
fn zarr_python_2_reads_stores_of_v3() {
    let (Some(python), Some(sample)) = (env_path("ZARRFS_TEST_PYTHON"), Sample::new()) else {
        return;
    };
    let mount = sample.mount(&["--read-only"]);
    announce(
        run_python(
            &python,
            "view_v2.py",
            &["read".as_ref(), mount.path(), &sample.expected()],
        )
        .trim(),
    );
    mount.assert_no_problem();
}

#[test]
fn gdal_before_3_12_reads_stores_of_v3() {
    let (Some(python), Some(sample)) = (env_path("ZARRFS_TEST_PYTHON"), Sample::new()) else {
        return;
    };
    let mount = sample.mount(&["--read-only"]);
    announce(
        run_python(
            &python,
            "view_v2.py",
            &["gdal".as_ref(), mount.path(), &sample.expected()],
        )
        .trim(),
    );
}

#[test]
fn zarr_python_2_writes_stores_of_v3() {
    let (Some(python), Some(python3), Some(sample)) = (
        env_path("ZARRFS_TEST_PYTHON"),
        env_path("ZARRFS_TEST_PYTHON3"),
        Sample::new(),
    ) else {
        return;
    };
    let mount = sample.mount(&["--compressor", "zstd:3"]);
    run_python(&python, "view_v2.py", &["write".as_ref(), mount.path()]);
    mount.assert_no_problem();
    drop(mount);
    announce(
        run_python(
            &python3,
            "view_v2.py",
            &["written".as_ref(), sample.store().as_path()],
        )
        .trim(),
    );
    assert_eq!(sample.strays(), [""; 0]);
    let document = fs::read(sample.store().join("made/a/zarr.json")).unwrap();
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(document["codecs"][1]["name"], "zstd", "{document}");
    let check = zarrfs(&["check", "--deep", sample.store().to_str().unwrap()]);
    assert!(
        check.status.success(),
        "{}",
        String::from_utf8_lossy(&check.stdout)
    );
}

/// Creates an array of 4 x 6 bytes in a store of v3, and returns the store.
fn small_store() -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(store.path().join(name), text).unwrap();
    let group = r#"{"zarr_format":3,"node_type":"group","attributes":{"a":1}}"#;
    write("zarr.json", group);
    for directory in ["x", "g", "half"] {
        fs::create_dir(store.path().join(directory)).unwrap();
    }
    write("g/zarr.json", group);
    let array = r#"{"zarr_format":3,"node_type":"array","shape":[4,6],"data_type":"uint8","fill_value":0,
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2,3]}},"attributes":{"units":"m"},
        "chunk_key_encoding":{"name":"v2","configuration":{"separator":"."}},
        "codecs":[{"name":"bytes","configuration":{"endian":"little"}}]}"#;
    write("x/zarr.json", array);
    write("half/zarr.json", &array.replace("uint8", "bfloat16"));
    for (i, name) in ["0.0", "0.1", "1.0", "1.1"].into_iter().enumerate() {
        fs::write(store.path().join("x").join(name), [i as u8; 6]).unwrap();
    }
    store
}

fn listed(path: &Path) -> Vec<String> {
    names(path)
        .into_iter()
        .filter(|name| name.starts_with('.') || name == "zarr.json")
        .collect()
}

#[test]
fn a_v2_view_shows_only_documents_of_v2() {
    let store = small_store();
    let mount = Mount::new(store.path(), &["--view", "v2"]);
    for (path, expected) in [
        ("", [".zattrs", ".zgroup"]),
        ("g", [".zattrs", ".zgroup"]),
        ("x", [".zarray", ".zattrs"]),
    ] {
        assert_eq!(listed(&mount.join(path)), expected);
        assert!(!mount.join(path).join("zarr.json").exists());
    }
    // NumPy has no such type: the flat bytes are there, and .zarrfs/stats says why .zarray is not
    assert_eq!(listed(&mount.join("half")), [".zattrs"]);
    assert_eq!(fs::read(mount.join("half/data.raw")).unwrap(), [0; 48]);
    assert!(
        mount
            .stats()
            .contains("half/.zarray: is not shown: NumPy has no dtype"),
        "{}",
        mount.stats()
    );
    let output = zarrfs(&[
        "ls",
        "--view",
        "v2",
        &format!("{}/x", store.path().display()),
    ]);
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.starts_with(".zarray\n.zattrs\n"), "{output}");
}

#[test]
fn system_tools_work_as_on_v2() {
    let store = small_store();
    let before = fs::read(store.path().join("x/zarr.json")).unwrap();
    let mount = Mount::new(store.path(), &["--view", "v2"]);
    let shell = |script: &str| run("sh", &["-ec", script], mount.path());
    // save documents as editors do
    shell("cp x/.zarray x/.zarray.new && mv x/.zarray.new x/.zarray");
    assert_eq!(fs::read(store.path().join("x/zarr.json")).unwrap(), before);
    shell("mv x/.zarray x/.zarray~ && cp x/.zarray~ x/.zarray && rm x/.zarray~");
    shell("echo '{\"units\": \"km\"}' > x/.zattrs");
    let document: Value =
        serde_json::from_slice(&fs::read(store.path().join("x/zarr.json")).unwrap()).unwrap();
    assert_eq!(document["attributes"]["units"], "km");
    // copy an array file by file, and remove its directories
    shell(
        "mkdir -p new/y && cp x/.zarray x/.zattrs x/[0-9]* new/y && cmp x/data.raw new/y/data.raw",
    );
    assert_eq!(fs::read(store.path().join("new/y/1.1")).unwrap(), [3; 6]);
    shell("rm -r new/y x/.zattrs && rmdir new && mkdir empty && rmdir empty && rm -r g");
    assert_eq!(
        names(store.path()),
        ["half", "x", "zarr.json"].map(String::from).into()
    );
    for (file, text) in [
        ("x/zarr.json", "{}"),
        ("x/.zarray", "{"),
        ("x/.zattrs", "[1]"),
        (".zgroup", "{}"),
    ] {
        let mut open = fs::File::create(mount.join(file)).unwrap();
        open.write_all(text.as_bytes()).unwrap();
        assert_eq!(
            support::close(open).unwrap_err().kind(),
            ErrorKind::InvalidInput,
            "{file}"
        );
    }
    assert!(
        mount
            .stats()
            .contains("without --view v2 to write zarr.json"),
        "{}",
        mount.stats()
    );
    drop(mount);
    let mut document: Value =
        serde_json::from_slice(&fs::read(store.path().join("x/zarr.json")).unwrap()).unwrap();
    document["attributes"] = serde_json::json!({"units": "m"});
    assert_eq!(document, serde_json::from_slice::<Value>(&before).unwrap());
}
