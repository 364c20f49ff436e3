//! The test suite of another project on a directory of a mount: pjdfstest, which checks what POSIX says about calls of
//! a file system. `data/pjdfstest.txt` lists what fails, with reasons.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Mount, env_path};

/// Returns whether `text` matches a pattern, in which `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text
            .strip_prefix(start)
            .is_some_and(|text| text.char_indices().map(|(i, _)| &text[i..]).chain([""]).any(|end| matches(rest, end))),
    }
}

/// Returns the tests that end so.
fn named(said: &str, outcome: &str) -> BTreeSet<String> {
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(name, end)| name.contains("::") && end.trim() == outcome).map(|(name, _)| name.to_string()).collect()
}

/// Every test of pjdfstest passes in a directory that `mkdir` has made, except the listed ones. A line of the list that
/// no failure matches is a failure as well.
#[test]
fn pjdfstest_passes_but_for_what_a_store_cannot_hold() {
    let Some(program) = env_path("ZARRFS_PJDFSTEST") else { return };
    if !rustix::process::geteuid().is_root() {
        return support::announce("pjdfstest needs root: skipped");
    }
    let folder = tempfile::tempdir().unwrap();
    let (store, configuration) = (folder.path().join("s"), folder.path().join("pjdfstest.toml"));
    fs::create_dir(&store).unwrap();
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let users = r#"entries = [["daemon", "daemon"], ["bin", "bin"]]"#;
    let settings = "[settings]\nnaptime = 0.01\nallow_remount = false\n";
    fs::write(&configuration, format!("[features]\n{settings}[dummy_auth]\n{users}\n")).unwrap();
    let mount = Mount::new(&store, &[]);
    let place = mount.join("place");
    fs::create_dir(&place).unwrap();
    let output = Command::new("timeout")
        .args(["300".as_ref(), program.as_os_str(), "-c".as_ref(), configuration.as_os_str(), "-p".as_ref()])
        .arg(&place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Summary: "), "{said}{}", String::from_utf8_lossy(&output.stderr));

    let failed = named(&said, "FAILED");
    assert!(named(&said, "ok").len() > 100, "{said}");
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pjdfstest.txt");
    let list = fs::read_to_string(list).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let patterns: Vec<&str> = lines.map(|line| line.split_once(": ").expect("PATTERN: reason").0).collect();
    let unlisted: Vec<_> = failed.iter().filter(|name| !patterns.iter().any(|p| matches(p, name))).collect();
    assert!(unlisted.is_empty(), "not listed in tests/data/pjdfstest.txt: {unlisted:?}");
    let passing: Vec<_> = patterns.iter().filter(|p| !failed.iter().any(|name| matches(p, name))).collect();
    assert!(passing.is_empty(), "listed, and no longer failing: {passing:?}");
}
