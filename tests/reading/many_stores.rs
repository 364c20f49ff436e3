//! `mount --stores` on a directory of stores: zarr-python reads and writes stores of both formats
//! through the mount and without it (`python/many_stores.py`), archives are read-only directories,
//! broken stores leave their neighbors alone, and a listing of thousands of stores reads none of
//! them.

use crate::support;
use crate::support::array::{TestArray, pattern};
use crate::support::{
    Mount, copy_tree, env_path, errno, failure, listed, run, run_python, set, test_data, zarrfs,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Creates `NAME.zarr` with an array `a` of two chunks, and returns its flat bytes.
fn store(directory: &Path, name: &str) -> Vec<u8> {
    let store = directory.join(name);
    fs::create_dir_all(&store).unwrap();
    fs::write(store.join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    TestArray::with_chunks(
        store.join("a"),
        &[4, 6],
        &[2, 6],
        json!({"compressor": null}),
    )
    .flat
}

/// Puts the store `NAME.zarr` into the archive `NAME.zarr.zip`, and removes it.
fn archived(directory: &Path, name: &str) {
    let archive = directory.join(format!("{name}.zip"));
    run(
        "python3",
        &["-m", "zipfile", "-c", archive.to_str().unwrap(), "."],
        &directory.join(name),
    );
    fs::remove_dir_all(directory.join(name)).unwrap();
}

#[test]
fn zarr_python_reads_and_writes_each_store() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let stores = folder.path().join("stores");
    run_python(&python, "many_stores.py", &[Path::new("make"), &stores]);
    let mount = Mount::new(&stores, &["--stores"]);
    for verb in ["compare", "create", "compare"] {
        let printed = run_python(
            &python,
            "many_stores.py",
            &[Path::new(verb), mount.path(), &stores],
        );
        support::announce(printed.trim());
    }
    mount.assert_no_problem();
    drop(mount);
    // each store is one that a mount of its own shows
    let output = zarrfs(&[
        "check",
        "--deep",
        stores.join("new-group2.zarr").to_str().unwrap(),
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn a_directory_shows_its_stores_and_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let flat = store(folder.path(), "x.zarr");
    store(folder.path(), "y.zarr");
    archived(folder.path(), "y.zarr");
    store(folder.path(), "sub/z.zarr");
    archived(folder.path(), "sub/z.zarr");
    store(folder.path(), "unnamed");
    copy_tree(
        &test_data("sample.zarr"),
        &folder.path().join("sample.zarr"),
    );
    for (name, text) in [
        ("notes.txt", "text"),
        ("plain.zip", "no store"),
        ("0.0", "zero"),
        ("sub/data.raw", "raw"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mount = Mount::new(
        folder.path(),
        &["--stores", "--containers", "nc", "--views", "unpacked"],
    );
    let names = [
        "0.0",
        "notes.txt",
        "plain.zip",
        "sample.zarr",
        "sub",
        "unnamed",
        "x.zarr",
        "y.zarr.zip",
    ];
    assert_eq!(listed(mount.path()), set(&names));
    assert_eq!(listed(&mount.join("sub")), set(&["data.raw", "z.zarr.zip"]));
    for name in [
        ".zgroup",
        ".zattrs",
        ".zmetadata",
        "zarr.json",
        "dataset.nc",
        "sub/.zgroup",
        "sub/dataset.nc",
    ] {
        assert_eq!(errno(fs::metadata(mount.join(name))), "ENOENT", "{name}");
    }
    for name in ["notes.txt", "plain.zip", "0.0", "sub/data.raw"] {
        assert_eq!(
            fs::read(mount.join(name)).unwrap(),
            fs::read(folder.path().join(name)).unwrap(),
            "{name}"
        );
    }
    for name in ["x.zarr", "y.zarr.zip", "sub/z.zarr.zip", "unnamed"] {
        assert_eq!(
            fs::read(mount.join(name).join("a/data.raw")).unwrap(),
            flat,
            "{name}"
        );
        assert!(mount.join(name).join("dataset.nc").exists(), "{name}");
    }
    assert!(
        mount
            .join("sample.zarr/air_temperature.unpacked/data.raw")
            .exists()
    );
    // what the mount of a single store shows
    let single = Mount::new(
        &test_data("sample.zarr"),
        &["--containers", "nc", "--views", "unpacked", "--read-only"],
    );
    let paths = |root: &Path| run("find", &[".", "-type", "f", "-printf", "%p %s\n"], root);
    let sorted = |text: String| text.lines().map(str::to_string).collect::<BTreeSet<_>>();
    assert_eq!(
        sorted(paths(&mount.join("sample.zarr"))),
        sorted(paths(single.path()))
    );
    run("du", &["-s", "."], mount.path());
    run("df", &["."], mount.path());
    mount.assert_no_problem();
}

#[test]
fn directories_are_written_and_archives_are_not() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["x.zarr", "y.zarr"] {
        store(folder.path(), name);
    }
    archived(folder.path(), "y.zarr");
    let mount = Mount::new(folder.path(), &["--stores"]);
    fs::write(mount.join("x.zarr/a/data.raw"), pattern(1, 24)).unwrap();
    assert_eq!(
        fs::read(folder.path().join("x.zarr/a/1.0")).unwrap(),
        pattern(1, 24)[12..]
    );
    fs::write(mount.join("new.txt"), "text").unwrap();
    fs::create_dir(mount.join("plain")).unwrap();
    fs::rename(mount.join("x.zarr"), mount.join("plain/w.zarr")).unwrap();
    assert_eq!(listed(&folder.path().join("plain")), set(&["w.zarr"]));
    fs::remove_dir_all(mount.join("plain/w.zarr")).unwrap();
    assert_eq!(listed(&folder.path().join("plain")), set(&[]));
    let archive = mount.join("y.zarr.zip");
    for (what, result) in [
        (
            "write",
            fs::File::options()
                .write(true)
                .open(archive.join("a/data.raw"))
                .map(drop),
        ),
        ("chunk", fs::write(archive.join("a/0.0"), [0; 12])),
        ("file", fs::write(archive.join("new.txt"), "text")),
        ("mkdir", fs::create_dir(archive.join("g"))),
        ("remove", fs::remove_file(archive.join("a/1.0"))),
        ("rename", fs::rename(&archive, mount.join("z.zarr.zip"))),
        ("new archive", fs::write(mount.join("new.zarr.zip"), "text")),
        ("attributes", fs::write(archive.join(".zattrs"), "{}")),
    ] {
        assert_eq!(errno(result), "EROFS", "{what}");
    }
    assert_eq!(errno(fs::remove_dir(&archive)), "ENOTEMPTY");
    assert_eq!(
        listed(folder.path()),
        set(&["new.txt", "plain", "y.zarr.zip"])
    );
    drop(mount);
    let mount = Mount::new(folder.path(), &["--stores", "--read-only"]);
    assert_eq!(errno(fs::create_dir(mount.join("z.zarr"))), "EROFS");
    assert_eq!(
        fs::read(mount.join("y.zarr.zip/a/data.raw")).unwrap().len(),
        24
    );
}

#[test]
fn a_broken_archive_leaves_its_neighbors_alone() {
    let folder = tempfile::tempdir().unwrap();
    let flat = store(folder.path(), "good.zarr");
    archived(folder.path(), "good.zarr");
    fs::write(folder.path().join("broken.zarr.zip"), "no archive").unwrap();
    let mount = Mount::new(folder.path(), &["--stores"]);
    assert!(
        fs::metadata(mount.join("broken.zarr.zip"))
            .unwrap()
            .is_dir()
    );
    for _ in 0..2 {
        assert_eq!(errno(fs::read_dir(mount.join("broken.zarr.zip"))), "EIO");
        assert_eq!(
            errno(fs::read(mount.join("broken.zarr.zip/.zgroup"))),
            "EIO"
        );
    }
    let stats = mount.stats();
    let problems: Vec<&str> = stats
        .lines()
        .filter(|line| line.starts_with("problem "))
        .collect();
    assert!(
        problems.len() == 1 && problems[0].contains("broken.zarr.zip"),
        "{stats}"
    );
    assert_eq!(
        fs::read(mount.join("good.zarr.zip/a/data.raw")).unwrap(),
        flat
    );
    // a file that is open reads its archive also after the archive was repaired beside it
    let file = fs::File::open(mount.join("good.zarr.zip/a/data.raw")).unwrap();
    store(folder.path(), "repaired.zarr");
    archived(folder.path(), "repaired.zarr");
    fs::rename(
        folder.path().join("repaired.zarr.zip"),
        folder.path().join("broken.zarr.zip"),
    )
    .unwrap();
    assert_eq!(
        fs::read(mount.join("broken.zarr.zip/a/data.raw")).unwrap(),
        flat
    );
    assert_eq!(
        std::io::read_to_string(&file).unwrap_or_default().len(),
        flat.len()
    );
}

/// Every store is broken, so a request that reads one would record a problem.
#[test]
fn a_listing_of_thousands_reads_no_store() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..1500 {
        fs::write(folder.path().join(format!("{i}.zarr.zip")), "no archive").unwrap();
        fs::create_dir(folder.path().join(format!("{i}.zarr"))).unwrap();
        fs::write(
            folder.path().join(format!("{i}.zarr/zarr.json")),
            "no document",
        )
        .unwrap();
    }
    let mount = Mount::new(
        folder.path(),
        &["--stores", "--containers", "nc", "--views", "unpacked"],
    );
    assert_eq!(listed(mount.path()).len(), 3000);
    assert_eq!(
        run("ls", &["-l"], mount.path())
            .lines()
            .filter(|line| line.starts_with('d'))
            .count(),
        3000
    );
    assert_eq!(
        run("find", &[".", "-maxdepth", "1", "-type", "d"], mount.path())
            .lines()
            .count(),
        3001
    );
    mount.assert_no_problem();
    let directory = fs::metadata(mount.path()).unwrap();
    assert_eq!(
        (directory.uid(), directory.is_dir()),
        (rustix::process::getuid().as_raw(), true)
    );
    assert_eq!(errno(fs::read_dir(mount.join("7.zarr.zip"))), "EIO");
    assert!(mount.stats().contains("7.zarr.zip"));
}

#[test]
fn permissions_are_those_of_the_stores() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path(), "x.zarr");
    archived(folder.path(), "x.zarr");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (file, directory) in [(0o640, 0o750), (0o600, 0o700), (0o644, 0o755)] {
        fs::set_permissions(
            folder.path().join("x.zarr.zip"),
            fs::Permissions::from_mode(file),
        )
        .unwrap();
        let mount = Mount::new(folder.path(), &["--stores"]);
        assert_eq!(mode(&mount.join("x.zarr.zip")), directory);
        assert_eq!(mode(&mount.join("x.zarr.zip/a/data.raw")), file);
    }
}

#[test]
fn other_locations_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path(), "x.zarr");
    store(folder.path(), "y.zarr");
    archived(folder.path(), "y.zarr");
    let mountpoint = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let refused = |location: &str, more: &[&str]| {
        let at = mountpoint.path().to_str().unwrap();
        failure(&zarrfs(
            &[&["mount", "--stores"], more, &[location, at]].concat(),
        ))
    };
    for (location, code, why) in [
        (path("x.zarr"), 2, "a group, no directory of stores"),
        (path("x.zarr/a"), 2, "an array, no directory of stores"),
        (path("y.zarr.zip"), 2, "a file, no directory of stores"),
        (path("none"), 3, "no such store"),
        (
            "https://localhost:1/stores".into(),
            2,
            "takes a local directory",
        ),
        ("memory:".into(), 2, "takes a local directory"),
    ] {
        let (found, message) = refused(&location, &[]);
        assert!(
            found == code && message.contains(why),
            "{location}: {found} {message}"
        );
    }
    let output = Command::new(support::ZARRFS)
        .args(["mount", "--stores", "--synchronizer", "locks", &path("")])
        .arg(mountpoint.path())
        .output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}
