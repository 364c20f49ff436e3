//! Copies out of a mount that go back into a mount: `cp`, rsync and tar copy all files that it
//! shows, with the headers and containers, in any order. zarr-python compares the stores, and no
//! copied header is left in them.

use crate::support::tree::files;
use crate::support::{Mount, announce, copy_tree, env_path, is_installed, run, run_python};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const CONTAINERS: [&str; 4] = ["--containers", "nc,h5,tif,nii", "--umask", "022"];

/// A store that zarr-python has made, and a copy of all that its mount shows.
struct Source {
    python: PathBuf,
    format: &'static str,
    directory: tempfile::TempDir,
}

impl Source {
    fn new(variable: &str, format: &'static str) -> Option<Source> {
        let python = env_path(variable)?;
        let directory = tempfile::tempdir().unwrap();
        let source = Source {
            python,
            format,
            directory,
        };
        let store = source.store();
        run_python(
            &source.python,
            "copied.py",
            &[Path::new("make"), &store, Path::new(format)],
        );
        let mount = Mount::new(&store, &CONTAINERS);
        fs::create_dir(source.copy()).unwrap();
        let all = format!("{}/.", mount.path().display());
        run("cp", &["-a", &all, "."], &source.copy());
        run(
            "tar",
            &["cf", source.archive().to_str().unwrap(), "."],
            mount.path(),
        );
        Some(source)
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn copy(&self) -> PathBuf {
        self.directory.path().join("copy")
    }

    fn archive(&self) -> PathBuf {
        self.directory.path().join("copy.tar")
    }

    /// Returns a new store with an empty group.
    fn empty(&self) -> tempfile::TempDir {
        let store = tempfile::tempdir().unwrap();
        let (name, text) = empty_group(self.format);
        fs::write(store.path().join(name), text).unwrap();
        store
    }

    /// Returns the programs that copy everything into the current directory.
    fn ways(&self) -> Vec<(&'static str, Vec<String>)> {
        let from = format!("{}/.", self.copy().display());
        let archive = self.archive().display().to_string();
        let mut ways = vec![
            ("cp", vec!["-a".to_string(), from.clone(), ".".to_string()]),
            ("cp", vec!["-r".to_string(), from.clone(), ".".to_string()]),
            ("tar", vec!["xf".to_string(), archive]),
        ];
        if is_installed("rsync") {
            let delete = ["-a", "--delete", &from, "."];
            ways.push(("rsync", delete.map(str::to_string).to_vec()));
        }
        ways
    }

    /// Checks that a store has the values and attributes of the source, and no other files than
    /// documents and chunks.
    fn check(&self, store: &Path, way: &str) {
        let compare = [Path::new("compare"), &self.store(), store];
        run_python(&self.python, "copied.py", &compare);
        for path in files(store).keys() {
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_document = name.starts_with(".z") || name == "zarr.json";
            let is_chunk = name.split('.').all(|index| index.parse::<u64>().is_ok());
            assert!(is_document || is_chunk, "{way}: {path:?}");
        }
    }
}

/// Returns the name and the text of the document of an empty group.
fn empty_group(format: &str) -> (&'static str, &'static str) {
    match format {
        "2" => (".zgroup", r#"{"zarr_format": 2}"#),
        _ => ("zarr.json", r#"{"zarr_format": 3, "node_type": "group"}"#),
    }
}

fn make_old(directory: &Path) {
    for name in files(directory).keys() {
        let file = File::options()
            .write(true)
            .open(directory.join(name))
            .unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_modified(old).unwrap();
    }
}

fn copied_back(variable: &str, format: &'static str) {
    let Some(source) = Source::new(variable, format) else {
        return;
    };
    let compressed = [&CONTAINERS[..], &["--compressor", "zlib:5"]].concat();
    for (program, args) in source.ways() {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let way = format!("{program} {}", args[0]);

        // into an empty store, then once more
        let store = source.empty();
        let mount = Mount::new(store.path(), &compressed);
        run(program, &args, mount.path());
        run(program, &args, mount.path());
        mount.assert_no_problem();
        drop(mount);
        source.check(store.path(), &way);
        let document = if format == "2" {
            ".zarray"
        } else {
            "zarr.json"
        };
        for name in ["t", "lat", "g/sub/t"] {
            let text = fs::read_to_string(store.path().join(name).join(document)).unwrap();
            assert!(
                text.contains("zlib") || text.contains("gzip"),
                "{way}: {text}"
            );
        }

        // over the same arrays
        let store = tempfile::tempdir().unwrap();
        let store = store.path().join("s");
        copy_tree(&source.store(), &store);
        make_old(&store);
        let before = files(&store);
        let mount = Mount::new(&store, &compressed);
        run(program, &args, mount.path());
        mount.assert_no_problem();
        drop(mount);
        source.check(&store, &way);
        assert!(files(&store).keys().eq(before.keys()), "{way}");
    }
}

#[test]
fn copies_of_v2_go_back_into_a_mount() {
    copied_back("ZARRFS_TEST_PYTHON", "2");
}

#[test]
fn copies_of_v3_go_back_into_a_mount() {
    copied_back("ZARRFS_TEST_PYTHON3", "3");
}

/// Copies all that a mount shows into the mount of an empty store, which becomes the same store:
/// documents byte for byte, no chunk that was missing, and chunks byte for byte.
fn copied_whole(variable: &str, format: &'static str, codec: &str, compressor: &[&str]) {
    let Some(python) = env_path(variable) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    let args = [
        Path::new("make_sparse"),
        &source,
        Path::new(format),
        Path::new(codec),
    ];
    run_python(&python, "copied.py", &args);
    let from = Mount::new(&source, &[&CONTAINERS[..], &["--read-only"]].concat());
    let wanted = files(&source);
    let all = format!("{}/.", from.path().display());
    let piped = format!("tar c -C {all} . | tar x");
    let mut ways = vec![
        ("cp", vec!["-a", &all, "."]),
        ("cp", vec!["-r", &all, "."]),
        ("sh", vec!["-c", &piped]),
    ];
    if is_installed("rsync") {
        ways.push(("rsync", vec!["-a", &all, "."]));
    }
    for (program, args) in ways {
        let way = format!("{program} {}", args[0]);
        let store = tempfile::tempdir().unwrap();
        fs::write(
            store.path().join(empty_group(format).0),
            empty_group(format).1,
        )
        .unwrap();
        let mount = Mount::new(store.path(), &[&CONTAINERS[..], compressor].concat());
        run(program, &args, mount.path());
        mount.assert_no_problem();
        drop(mount);
        let found = files(store.path());
        assert!(found.keys().eq(wanted.keys()), "{way}: {:?}", found.keys());
        for (name, bytes) in &found {
            let text = String::from_utf8_lossy(bytes);
            assert!(*bytes == wanted[name], "{way}: {name:?}: {text}");
        }
    }
}

#[test]
fn a_copy_of_a_mount_of_v2_is_the_store() {
    copied_whole("ZARRFS_TEST_PYTHON", "2", "none", &[]);
    let blosc = ["--compressor", "blosc:lz4:5"];
    copied_whole("ZARRFS_TEST_PYTHON", "2", "default", &blosc);
}

#[test]
fn a_copy_of_a_mount_of_v3_is_the_store() {
    copied_whole("ZARRFS_TEST_PYTHON3", "3", "none", &[]);
    let zstd = ["--compressor", "zstd:0"];
    copied_whole("ZARRFS_TEST_PYTHON3", "3", "default", &zstd);
}

/// A program of root keeps the owners of the files that it copies. No file of a mount has another
/// owner than the mount.
#[test]
fn files_of_other_owners_go_back_into_a_mount() {
    let Some(source) = Source::new("ZARRFS_TEST_PYTHON", "2") else {
        return;
    };
    if chown(source.copy().join("t/data.raw"), Some(1234), Some(4321)).is_err() {
        return announce("skipped: giving files away takes root");
    }
    run("chown", &["-R", "1234:4321", "."], &source.copy());
    run(
        "tar",
        &["cf", source.archive().to_str().unwrap(), "."],
        &source.copy(),
    );
    for (program, args) in source.ways() {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let store = source.empty();
        let mount = Mount::new(store.path(), &CONTAINERS);
        run(program, &args, mount.path());
        mount.assert_no_problem();
        assert_eq!(fs::metadata(mount.join("t/data.raw")).unwrap().uid(), 0);
        drop(mount);
        source.check(store.path(), program);
    }
}

/// What cannot become the generated file of its name is kept, and a problem.
#[test]
fn a_file_that_no_array_shows_is_kept() {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let mount = Mount::new(store.path(), &CONTAINERS);
    fs::create_dir(mount.join("a")).unwrap();
    fs::write(mount.join("a/data.npy"), "mine").unwrap();
    fs::write(mount.join("a/data.raw"), "12345678").unwrap();
    fs::write(mount.join("dataset.h5"), "mine").unwrap();
    let document = r#"{"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "|u1", "order": "C",
        "compressor": null, "filters": null, "fill_value": 0}"#;
    fs::write(mount.join("a/.zarray"), document).unwrap();
    assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), b"12345678");
    fs::read(mount.join(".zarrfs/sync")).unwrap();
    let stats = mount.stats();
    for path in ["a/data.npy", "dataset.h5"] {
        assert!(
            stats.contains(&format!("{path}: stays in the store")),
            "{stats}"
        );
        assert_eq!(fs::read(store.path().join(path)).unwrap(), b"mine");
        assert_ne!(fs::read(mount.join(path)).unwrap(), b"mine");
    }
    assert!(!store.path().join("a/data.raw").exists());
}
