//! Test suites of other projects on a directory of a mount: pjdfstest, which checks what POSIX says about calls of a file
//! system, and the stressors of stress-ng. `data/pjdfstest.txt` and `data/stress-ng.txt` list what fails, with reasons.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Mount, announce, env_path, is_installed, test_data, with_timeout};

/// Stressors of the ordinary run, whose time is short.
const STRESSORS: [&str; 24] = [
    "access",
    "chattr",
    "chmod",
    "copy-file",
    "dentry",
    "dirmany",
    "fallocate",
    "fiemap",
    "filename",
    "fpunch",
    "fsize",
    "getdent",
    "hdd",
    "iomix",
    "lease",
    "link",
    "lockf",
    "mmap",
    "open",
    "rename",
    "symlink",
    "touch",
    "utime",
    "xattr",
];

/// Stressors of other classes that use files in the directory.
const OTHER_STRESSORS: [&str; 8] = ["aio", "aiol", "mmap", "readahead", "revio", "seek", "sendfile", "splice"];

/// Stressors of file systems that do not use the directory, or use all mounts of the machine.
const OTHER_PLACES: [&str; 6] = ["bind-mount", "binderfs", "eventfd", "fanotify", "ioprio", "procfs"];

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

/// Asserts that what failed is listed in a file of `tests/data`, and that for each line of it something failed.
#[track_caller]
fn assert_listed(failed: &BTreeSet<String>, file: &str) {
    let list = fs::read_to_string(test_data(file)).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let patterns: Vec<&str> = lines.map(|line| line.split_once(": ").expect("PATTERN: reason").0).collect();
    let unlisted: Vec<_> = failed.iter().filter(|name| !patterns.iter().any(|p| matches(p, name))).collect();
    assert!(unlisted.is_empty(), "not listed in tests/data/{file}: {unlisted:?}");
    let passing: Vec<_> = patterns.iter().filter(|p| !failed.iter().any(|name| matches(p, name))).collect();
    assert!(passing.is_empty(), "listed in tests/data/{file}, and no longer failing: {passing:?}");
}

/// Every test of pjdfstest passes in a directory that `mkdir` has made, except the listed ones. A line of the list that
/// no failure matches is a failure as well.
#[test]
fn pjdfstest_passes_but_for_what_a_store_cannot_hold() {
    let Some(program) = env_path("ZARRFS_PJDFSTEST") else { return };
    if !rustix::process::geteuid().is_root() {
        return announce("pjdfstest needs root: skipped");
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

    assert!(named(&said, "ok").len() > 100, "{said}");
    assert_listed(&named(&said, "FAILED"), "pjdfstest.txt");
}

/// Returns the stressors of a run at length: all that this version of stress-ng has and that use the directory.
fn all_stressors() -> Vec<String> {
    let output = Command::new("stress-ng").args(["--class", "filesystem?"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, class) = said.split_once("stressors:").unwrap_or_else(|| panic!("no stressors: {said}"));
    let mut all: BTreeSet<String> = class.split_whitespace().chain(OTHER_STRESSORS).map(String::from).collect();
    all.retain(|stressor| !OTHER_PLACES.contains(&stressor.as_str()));
    all.into_iter().collect()
}

/// Runs two workers of a stressor in a directory. Returns what they said if they failed, or skipped all or some of
/// their work. Some take minutes to remove what they have made.
fn stress(stressor: &str, seconds: u32, directory: &Path) -> Option<String> {
    let output = with_timeout(seconds + 300, "stress-ng")
        .args([&format!("--{stressor}"), "2", "--verify", "--timeout", &seconds.to_string(), "--temp-path"])
        .arg(directory)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(
        said.contains("dispatching hogs") && output.status.code().is_some(),
        "{stressor}: {}\n{said}",
        output.status
    );
    let is_skipped = said.lines().any(|line| line.contains("skipping") || line.contains("will be skipped"));
    (is_skipped || !output.status.success()).then_some(said)
}

/// Every stressor that passes in a plain directory passes in one that `mkdir` has made in a mount, except the listed
/// ones. Afterwards the mount works, and nothing is left.
#[test]
fn stressors_pass_but_for_what_a_store_cannot_hold() {
    if !is_installed("stress-ng") {
        return;
    }
    let is_long = std::env::var("ZARRFS_SUITES").is_ok_and(|suites| suites == "all");
    let stressors = if is_long { all_stressors() } else { STRESSORS.map(String::from).to_vec() };
    let seconds = if is_long { 10 } else { 1 };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s");
    let plain = folder.path().join("plain");
    fs::create_dir(&store).unwrap();
    fs::create_dir(&plain).unwrap();
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let mount = Mount::new(&store, &[]);
    let place = mount.join("place");
    fs::create_dir(&place).unwrap();
    let mut failed = BTreeSet::new();
    for stressor in stressors {
        let Some(said) = stress(&stressor, seconds, &place) else { continue };
        if stress(&stressor, seconds, &plain).is_none() {
            announce(&format!("stress-ng in the mount, not in a plain directory: {said}"));
            failed.insert(stressor);
        }
    }
    mount.assert_no_problem();
    fs::remove_dir(&place).unwrap();
    drop(mount);
    let left = support::tree::snapshot(&store).unwrap().into_keys().collect::<Vec<_>>();
    assert_eq!(left, ["/.zgroup"]);
    assert_listed(&failed, "stress-ng.txt");
}
