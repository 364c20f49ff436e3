//! Files of HDF5 and netCDF-4 that become groups: `python/ingest_hdf5.py` writes them with
//! netCDF-C, h5py, xarray and ncgen, and compares the arrays by zarr-python and xarray, and what a
//! mount shows by ncdump, netCDF-C and h5py. Damaged files are refused, whatever their bytes say.

use super::fuzz_corpus::{MEMORY, checks, peak_memory};
use crate::support::{
    self, Mount, env_number, env_path, failure, run_python, servers, tree, zarrfs,
};
use std::fs;
use std::path::{Path, PathBuf};

const GROUP_V2: &str = r#"{"zarr_format": 2}"#;
const GROUP_V3: &str = r#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;

/// The minimum number of files.
const FILES: usize = 50;

/// Makes the files in a folder.
fn make(python: &Path, folder: &Path) -> PathBuf {
    let files = folder.join("files");
    fs::create_dir(&files).unwrap();
    run_python(python, "ingest_hdf5.py", &[Path::new("make"), &files]);
    files
}

/// Returns the names of files that become groups.
fn names(files: &Path) -> Vec<String> {
    let names = support::listed(files).into_iter();
    let names: Vec<_> = names
        .filter(|name| name.ends_with(".nc") || name.ends_with(".h5"))
        .collect();
    assert!(names.len() >= FILES, "{names:?}");
    names
}

fn count(said: &str) -> usize {
    said.trim().parse().unwrap()
}

/// Copies the files into a mount, and compares what it shows and what the store has.
fn assert_files_become_groups(is_v3: bool, options: &[&str]) {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
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
        let (_, ending) = name.rsplit_once('.').unwrap();
        let target = mount.join(&format!("{name}.{ending}"));
        fs::copy(files.join(name), &target).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    mount.assert_no_problem();
    // the text does not depend on the layout
    let text = if is_v3 { "no" } else { "yes" };
    let shown = [Path::new("shown"), &files, mount.path(), Path::new(text)];
    let shown = run_python(&python, "ingest_hdf5.py", &shown);
    assert_eq!(count(&shown), names.len());
    drop(mount);
    let readers = [
        Some(python.clone()),
        env_path("ZARRFS_TEST_PYTHON").filter(|_| !is_v3),
    ];
    for reader in readers.into_iter().flatten() {
        let compare = [Path::new("compare"), &files, &store];
        let said = run_python(&reader, "ingest_hdf5.py", &compare);
        assert_eq!(count(&said), names.len());
    }
    assert_eq!(support::unfinished_files(&store), [""; 0]);
}

/// "The group is what xarray writes: `xarray.open_zarr(STORE/NAME)` is identical to
/// `xarray.open_dataset(FILE)`", and the mount shows the file again.
#[test]
fn files_become_groups_of_v2() {
    assert_files_become_groups(false, &["--ingest"]);
}

#[test]
fn files_become_groups_of_v3() {
    assert_files_become_groups(true, &["--ingest=nc,h5"]);
}

#[test]
fn files_become_groups_in_shards() {
    let options = ["--ingest", "--ingest-options", "shards=auto chunks=3,40,50"];
    assert_files_become_groups(true, &options);
}

/// "Each type without an equal in Zarr is refused", by the name of the variable and of the type.
#[test]
fn files_that_zarr_has_no_equal_for_are_refused_by_name() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let refused = make(&python, folder.path()).join("refused");
    let target = folder.path().join("s.zarr/g");
    let mut count = 0;
    for name in support::listed(&refused) {
        let Ok(reason) = fs::read_to_string(refused.join(format!("{name}.txt"))) else {
            continue;
        };
        let file = refused.join(&name);
        let output = zarrfs(&["put", target.to_str().unwrap(), file.to_str().unwrap()]);
        let (code, said) = failure(&output);
        assert_eq!(code, 1, "{name}: {said}");
        assert!(said.contains(&reason), "{name}: {said}");
        assert!(!folder.path().join("s.zarr").exists(), "{name}");
        count += 1;
    }
    assert!(count > 15, "{count} files");
}

/// A bucket gets what a directory gets.
#[test]
fn a_file_in_a_bucket_becomes_the_group_of_a_directory() {
    let (Some(python), Some(server)) = (env_path("ZARRFS_TEST_SERVERS"), servers::moto()) else {
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
    for name in names(&files).iter().step_by(4) {
        let (_, ending) = name.rsplit_once('.').unwrap();
        for path in [remote.path(), mount.path()] {
            fs::copy(files.join(name), path.join(format!("{name}.{ending}"))).unwrap();
        }
    }
    drop((remote, mount));
    let downloaded = folder.path().join("remote");
    server.download("bucket/s.zarr", &downloaded);
    assert_eq!(tree::files(&downloaded), tree::files(&local));
}

/// "Programs write into the mount": a file that is written, read, changed in place, and extended.
#[test]
fn programs_write_and_extend_files_in_the_mount() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    support::write_file(store.join(".zgroup"), GROUP_V2);
    let mount = Mount::new(&store, &["--ingest=nc,h5"]);
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).unwrap();
    let write = [Path::new("write"), &directory, mount.path()];
    run_python(&python, "ingest_hdf5.py", &write);
    mount.assert_no_problem();
}

/// No byte of a file makes the reader panic, or take memory without bound.
#[test]
fn damaged_files_are_read_or_refused_in_one_line() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let sample = [Path::new("sample"), folder.path()];
    run_python(&python, "ingest_hdf5.py", &sample);
    let seed = env_number("ZARRFS_TEST_SEED", std::process::id().into());
    println!("ZARRFS_TEST_SEED={seed}");
    let mut random = support::random(seed);
    for name in support::listed(folder.path()) {
        let bytes = fs::read(folder.path().join(&name)).unwrap();
        checks::ingest(&bytes);
        for _ in 0..env_number("ZARRFS_TEST_MUTATIONS", 1500) {
            let mut damaged = bytes.clone();
            // headers, and not the values alone, are damaged often enough
            for _ in 0..=random(4) {
                let at = random(damaged.len());
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
