//! The commands of docs/killed-writers.md, after zarr-python, TensorStore and zarrs were killed as
//! they wrote into a directory: what `zarrfs check --deep --json` reports as torn or unfinished,
//! and what `zarrfs info --json --absent` lists, are compared with the files of the store. A writer
//! that writes only the listed items completes the array.

use crate::support::{ZARRFS, announce, env_path, python_script, run_python, with_timeout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Numbers of chunks along each dimension of the array of `killed.py`.
const GRID: [u64; 3] = [12, 3, 2];

/// The first and one past the last number along a dimension.
type Ends = [u64; 2];

fn zarrfs_json(verb: &[&str], store: &Path) -> Value {
    let output = Command::new(ZARRFS).args(verb).arg(store).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{verb:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Returns the paths of the findings of a kind that `zarrfs check --deep --json` reports.
fn findings(store: &Path, kind: &str) -> BTreeSet<String> {
    let report = zarrfs_json(&["check", "--deep", "--json"], store);
    let findings = report["findings"].as_array().unwrap();
    let wanted = findings.iter().filter(|finding| finding["kind"] == kind);
    wanted
        .map(|finding| finding["path"].as_str().unwrap().to_string())
        .collect()
}

/// Returns the indices of the chunks that `zarrfs info --json --absent` lists. Checks that no range
/// overlaps another one, and that the items are the items of the chunks.
fn absent(store: &Path) -> BTreeSet<[u64; 3]> {
    let listing = zarrfs_json(&["info", "--json", "--absent"], store);
    let [array] = listing.as_array().unwrap().as_slice() else {
        panic!("{listing}");
    };
    let mut absent = BTreeSet::new();
    for found in array["absent"].as_array().unwrap() {
        let chunks: [Ends; 3] = serde_json::from_value(found["chunks"].clone()).unwrap();
        let items: [Ends; 3] = serde_json::from_value(found["items"].clone()).unwrap();
        for (axis, (edge, len)) in [(1, 12), (128, 300), (128, 256)].into_iter().enumerate() {
            let [start, end] = chunks[axis];
            assert_eq!(
                items[axis],
                [start * edge, (end * edge).min(len)],
                "{found}"
            );
        }
        for i in chunks[0][0]..chunks[0][1] {
            for j in chunks[1][0]..chunks[1][1] {
                for k in chunks[2][0]..chunks[2][1] {
                    assert!(absent.insert([i, j, k]), "twice: {found}");
                }
            }
        }
    }
    let missing =
        array["chunks_in_grid"].as_u64().unwrap() - array["chunks_initialised"].as_u64().unwrap();
    assert_eq!(absent.len() as u64, missing);
    absent
}

/// Returns the indices of the chunks whose files, or the files of whose shards of `shard` chunks,
/// do not exist.
fn without_file(store: &Path, shard: [u64; 3]) -> BTreeSet<[u64; 3]> {
    let mut missing = BTreeSet::new();
    for i in 0..GRID[0] {
        for j in 0..GRID[1] {
            for k in 0..GRID[2] {
                let [a, b, c] = [i / shard[0], j / shard[1], k / shard[2]];
                if !store.join(format!("c/{a}/{b}/{c}")).exists() {
                    missing.insert([i, j, k]);
                }
            }
        }
    }
    missing
}

/// Removes the values at these paths of a store.
fn remove(store: &Path, paths: &BTreeSet<String>) {
    for path in paths {
        fs::remove_file(store.join(path.trim_start_matches('/'))).unwrap();
    }
}

/// Writes what `zarrfs info --json --absent` lists, and compares the whole array.
fn resume(python: &Path, library: &str, store: &Path) {
    let mut listing = Command::new(ZARRFS)
        .args(["info", "--json", "--absent"])
        .arg(store)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut writer = with_timeout(600, python);
    let status = writer
        .arg(python_script("killed.py"))
        .args(["resume", library])
        .arg(store)
        .stdin(listing.stdout.take().unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "{library}");
    assert!(listing.wait().unwrap().success());
    run_python(python, "killed.py", &["same", store.to_str().unwrap()]);
    assert_eq!(absent(store), BTreeSet::new(), "{library}");
    let sound = Command::new(ZARRFS)
        .args(["check", "--deep"])
        .arg(store)
        .status();
    assert!(sound.unwrap().success(), "{library}");
}

/// Starts a writer, kills it once it has written some slices, and checks what is found.
fn killed_at_any_moment(library: &str, shard: Option<u64>) {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("a.zarr");
    let path = store.to_str().unwrap().to_string();
    let mut arguments = vec!["create".to_string(), path.clone()];
    arguments.extend(shard.map(|len| len.to_string()));
    run_python(&python, "killed.py", &arguments);
    let mut writer = Command::new(&python)
        .arg(python_script("killed.py"))
        .args(["write", library, &path])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(writer.stdout.take().unwrap());
    assert_eq!(
        said.lines()
            .take(4)
            .map(|line| line.unwrap())
            .last()
            .unwrap(),
        "3"
    );
    writer.kill().unwrap();
    assert_eq!(writer.wait().unwrap().signal(), Some(libc::SIGKILL));

    let shard = shard.map_or([1, 1, 1], |len| [len, 2, 2]);
    let torn = findings(&store, "chunk");
    if library == "zarr" || library == "tensorstore" {
        assert_eq!(torn, BTreeSet::new(), "{library} replaces files");
    }
    let unfinished = findings(&store, "leftover");
    remove(&store, &torn);
    remove(&store, &unfinished);
    let found = absent(&store);
    let missing = without_file(&store, shard);
    assert!(missing.is_subset(&found), "{library}");
    assert!(
        found.iter().all(|index| index[0] > 3 || !torn.is_empty()),
        "{found:?}"
    );
    if shard == [1, 1, 1] {
        assert_eq!(found, missing, "{library}");
    }
    assert_eq!(findings(&store, "chunk"), BTreeSet::new());
    resume(&python, library, &store);
}

#[test]
fn zarr_python_is_killed() {
    killed_at_any_moment("zarr", None);
}

#[test]
fn zarr_python_is_killed_in_shards() {
    killed_at_any_moment("zarr", Some(4));
}

#[test]
fn tensorstore_is_killed() {
    killed_at_any_moment("tensorstore", None);
}

#[test]
fn zarrs_is_killed() {
    killed_at_any_moment("zarrs", None);
}

/// zarrs opens the file of a chunk or shard, which empties it, and then writes it. strace kills it
/// between the two.
fn torn(shard: Option<u64>, key: &str, lost: &[[u64; 3]]) {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("a.zarr");
    let path = store.to_str().unwrap().to_string();
    let mut arguments = vec!["create".to_string(), path.clone()];
    arguments.extend(shard.map(|len| len.to_string()));
    run_python(&python, "killed.py", &arguments);
    let earlier = ["write", "zarrs", &path, "0", "5"];
    run_python(&python, "killed.py", &earlier);
    let status = with_timeout(600, "strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-P"])
        .arg(store.join(key))
        .args([
            "-e",
            "trace=write,pwrite64",
            "-e",
            "inject=write,pwrite64:signal=SIGKILL:when=1",
        ])
        .arg(&python)
        .arg(python_script("killed.py"))
        .args(["write", "zarrs", &path, "5", "12"])
        // a second thread could tear another object
        .env("RAYON_NUM_THREADS", "1")
        .stdout(Stdio::null())
        .status();
    match status {
        Ok(status) if status.signal() == Some(libc::SIGKILL) || status.code() == Some(137) => {}
        other => {
            announce(&format!(
                "skipped: strace can't kill a program here: {other:?}"
            ));
            return;
        }
    }
    assert_eq!(
        findings(&store, "chunk"),
        BTreeSet::from([format!("/{key}")])
    );
    let before = absent(&store);
    assert!(
        lost.iter().all(|index| !before.contains(index)),
        "damaged, but not absent"
    );
    remove(&store, &findings(&store, "chunk"));
    let found = absent(&store);
    assert!(lost.iter().all(|index| found.contains(index)), "{found:?}");
    resume(&python, "zarrs", &store);
}

#[test]
fn a_torn_chunk_is_found_and_written_anew() {
    torn(None, "c/5/1/0", &[[5, 1, 0]]);
}

#[test]
fn a_torn_shard_is_found_and_its_earlier_chunks_are_written_anew() {
    torn(Some(4), "c/1/0/0", &[[4, 0, 0], [4, 1, 1], [5, 0, 0]]);
}
