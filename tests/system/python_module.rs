//! The Python module of the wheel, on each Python that the tests have: `tests/python/module.py` uses
//! it as programs do. ZARRFS_PYTHON_KILLS sets how often a Python that writes is killed.

use crate::support::{ZARRFS, announce, env_number, env_path, python_script, with_timeout};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Runs the tests of the module whose names begin with one of `words`.
fn run_module(words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    // where the module finds a program that pip has not installed
    symlink(ZARRFS, folder.path().join("zarrfs")).unwrap();
    let mut path = OsString::from(folder.path());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python");
    let pythons = ["ZARRFS_TEST_PYTHON", "ZARRFS_TEST_PYTHON3"].map(env_path);
    // virtual environments of the same Python differ in libraries alone, which the module does not use
    let by_program: BTreeMap<PathBuf, PathBuf> = pythons
        .into_iter()
        .flatten()
        .map(|python| (fs::canonicalize(&python).unwrap(), python))
        .collect();
    for python in by_program.values() {
        let output = with_timeout(800, python)
            .arg("-B")
            .arg(python_script("module.py"))
            .args(words)
            .env("PATH", &path)
            .env("PYTHONPATH", &source)
            .env("ZARRFS_PYTHON_KILLS", kills().to_string())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}{complained}");
        assert!(printed.contains("ok: "), "{printed}");
        printed
            .lines()
            .filter(|line| line.contains(" kills"))
            .for_each(announce);
    }
}

fn kills() -> u64 {
    env_number("ZARRFS_PYTHON_KILLS", 6)
}

/// "Leaving the block stores everything and unmounts, and raises `zarrfs.Error` if something is not
/// stored."
#[test]
fn blocks_store_and_raise() {
    run_module(&["block"]);
}

#[test]
fn keywords_and_errors_are_those_of_the_command_line() {
    run_module(&["options"]);
}

#[test]
fn arrays_are_maps_and_commands_store() {
    run_module(&["map", "run"]);
}

/// "However Python ends, the mount ends with it: everything that was written is stored first."
#[test]
fn mounts_end_with_their_process() {
    run_module(&["end", "process"]);
}

#[test]
fn killed_writers_leave_no_mount_and_lose_no_synced_byte() {
    run_module(&["kill"]);
}
