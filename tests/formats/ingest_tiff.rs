//! TIFF files that become arrays: `python/ingest_tiff.py` writes them with tifffile and GDAL, and
//! compares the arrays by zarr-python, and the files that a mount shows by tifffile and rasterio.
//! Damaged files are refused in one line.

use super::fuzz_corpus::{MEMORY, checks, peak_memory};
use crate::support::{
    self, Mount, env_number, env_path, failure, run_python, servers, tree, zarrfs,
};
use std::fs;
use std::path::{Path, PathBuf};

const GROUP_V2: &str = r#"{"zarr_format": 2}"#;
const GROUP_V3: &str = r#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;

/// The minimum number of files.
const FILES: usize = 120;

/// Makes the files in a folder.
fn make(python: &Path, folder: &Path) -> PathBuf {
    let files = folder.join("files");
    fs::create_dir(&files).unwrap();
    run_python(python, "ingest_tiff.py", &[Path::new("make"), &files]);
    files
}

/// Returns the names of the files that become arrays.
fn names(files: &Path) -> Vec<String> {
    let names = support::listed(files).into_iter();
    let names: Vec<_> = names.filter(|name| name.ends_with(".tif")).collect();
    assert!(names.len() >= FILES, "{names:?}");
    names
}

/// Copies the files into a mount, and compares what it shows and what the store has.
fn assert_files_become_arrays(is_v3: bool, options: &[&str]) {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let files = make(&python, folder.path());
    let names = names(&files);
    let store = folder.path().join("store");
    let (document, text) = if is_v3 {
        ("zarr.json", GROUP_V3)
    } else {
        (".zgroup", GROUP_V2)
    };
    support::write_file(store.join(document), text);
    let mount = Mount::new(&store, options);
    for name in &names {
        fs::copy(files.join(name), mount.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    mount.assert_no_problem();
    let shown = [Path::new("shown"), &files, mount.path()];
    let shown = run_python(&python, "ingest_tiff.py", &shown);
    assert_eq!(shown.trim().parse(), Ok(names.len()));
    drop(mount);
    let readers = [(!is_v3).then_some(python), env_path("ZARRFS_TEST_PYTHON3")];
    for reader in readers.into_iter().flatten() {
        let compare = [Path::new("compare"), &files, &store];
        let said = run_python(&reader, "ingest_tiff.py", &compare);
        assert_eq!(said.trim().parse(), Ok(names.len()));
    }
    assert_eq!(support::unfinished_files(&store), [""; 0]);
}

/// "The array has the pixels, and the mount shows the file again", with its place on Earth.
#[test]
fn tiff_files_become_arrays_of_v2() {
    assert_files_become_arrays(false, &["--ingest"]);
}

#[test]
fn tiff_files_become_arrays_of_v3() {
    assert_files_become_arrays(true, &["--ingest=tif"]);
}

#[test]
fn tiff_files_become_arrays_in_shards() {
    let options = ["--ingest", "--ingest-options", "shards=auto chunks=11,17"];
    assert_files_become_arrays(true, &options);
}

/// "Refused by the number of the page": what an array or `data.tif` cannot state.
#[test]
fn tiff_files_that_no_array_shows_are_refused_by_name() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let refused = make(&python, folder.path()).join("refused");
    let store = folder.path().join("s.zarr");
    let target = store.join("a");
    let mut count = 0;
    for name in support::listed(&refused) {
        let Ok(reason) = fs::read_to_string(refused.join(format!("{name}.txt"))) else {
            continue;
        };
        let file = refused.join(&name);
        let output = zarrfs(&["put", target.to_str().unwrap(), file.to_str().unwrap()]);
        let (code, said) = failure(&output);
        assert_eq!((code, said.lines().count()), (1, 1), "{name}: {said}");
        assert!(said.contains(&reason), "{name}: {said}");
        assert!(!store.exists(), "{name}");
        count += 1;
    }
    assert!(count > 15, "{count} files");
    // in a mount the bytes stay beside the name
    support::write_file(store.join(".zgroup"), GROUP_V2);
    let mount = Mount::new(&store, &["--ingest=tif"]);
    let file = refused.join("mask.tif");
    let bytes = fs::read(&file).unwrap();
    let copied = std::process::Command::new("cp")
        .arg(&file)
        .arg(mount.path())
        .output()
        .unwrap();
    assert!(!copied.status.success());
    let kept = || fs::read(mount.join("mask.tif.refused")).ok();
    support::wait_for("the bytes", || kept() == Some(bytes.clone()));
    assert_eq!(
        support::listed(mount.path()),
        support::set(&[".zgroup", "mask.tif.refused"])
    );
}

/// "Programs write into the mount": a file that is written, replaced, and changed in place.
#[test]
fn programs_write_tiff_files_into_the_mount() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    support::write_file(store.join(".zgroup"), GROUP_V2);
    let mount = Mount::new(&store, &["--ingest"]);
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let write = [Path::new("write"), &directory, mount.path()];
    run_python(&python, "ingest_tiff.py", &write);
    mount.assert_no_problem();
    let listed = support::set(&[
        ".zgroup",
        "gdal",
        "gdal.tif",
        "saved",
        "saved.tif",
        "stack",
        "stack.tiff",
    ]);
    assert_eq!(support::listed(mount.path()), listed);
    drop(mount);
    // the names follow from the store
    let mount = Mount::new(&store, &["--ingest=tif,nc"]);
    assert_eq!(support::listed(mount.path()), listed);
    fs::rename(mount.join("stack.tiff"), mount.join("moved.tiff")).unwrap();
    fs::remove_file(mount.join("gdal.tif")).unwrap();
    // an empty directory remains
    let left = support::set(&[
        ".zgroup",
        "gdal",
        "moved",
        "moved.tiff",
        "saved",
        "saved.tif",
    ]);
    assert_eq!(support::listed(mount.path()), left);
}

/// A bucket gets what a directory gets.
#[test]
fn a_tiff_file_in_a_bucket_becomes_the_array_of_a_directory() {
    let (Some(python), Some(server)) = (env_path("ZARRFS_TEST_PYTHON"), servers::moto()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let files = make(&python, folder.path());
    let local = folder.path().join("local/s.zarr");
    support::write_file(local.join("zarr.json"), GROUP_V3);
    server.upload(&folder.path().join("local"), "bucket");
    let options = ["--ingest", "--ingest-options=shards=auto"];
    let remote = server.store("bucket/s.zarr").mount(&options);
    let mount = Mount::new(&local, &options);
    for name in names(&files).iter().step_by(12) {
        for path in [remote.path(), mount.path()] {
            fs::copy(files.join(name), path.join(name)).unwrap();
        }
    }
    drop((remote, mount));
    let downloaded = folder.path().join("remote");
    server.download("bucket/s.zarr", &downloaded);
    assert_eq!(tree::files(&downloaded), tree::files(&local));
}

/// No byte of a file makes the reader panic, or take memory without bound.
#[test]
fn damaged_tiff_files_are_read_or_refused_in_one_line() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let sample = [Path::new("sample"), folder.path()];
    run_python(&python, "ingest_tiff.py", &sample);
    let seed = env_number("ZARRFS_TEST_SEED", std::process::id().into());
    println!("ZARRFS_TEST_SEED={seed}");
    let mut random = support::random(seed);
    for name in support::listed(folder.path()) {
        let bytes = fs::read(folder.path().join(&name)).unwrap();
        checks::ingest(&bytes);
        for _ in 0..env_number("ZARRFS_TEST_MUTATIONS", 1500) {
            let mut damaged = bytes.clone();
            for _ in 0..=random(4) {
                // headers lie at the begin or the end
                let at = match random(3) {
                    0 => random(damaged.len()),
                    1 => random(damaged.len().min(600)),
                    _ => damaged.len() - 1 - random(damaged.len().min(600)),
                };
                damaged[at] = match random(3) {
                    0 => 0xff,
                    1 => damaged[at] ^ (1 << random(8)),
                    _ => random(256) as u8,
                };
            }
            if random(20) == 0 {
                damaged.truncate(random(bytes.len()));
            }
            let result = std::panic::catch_unwind(|| checks::ingest(&damaged));
            assert!(result.is_ok(), "{name}, ZARRFS_TEST_SEED={seed}");
        }
    }
    assert!(peak_memory() < MEMORY, "{} MiB", peak_memory() >> 20);
}
