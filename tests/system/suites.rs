//! Test suites of other projects on a directory of a mount: pjdfstest, which checks what POSIX says
//! about calls of a file system, the stressors of stress-ng, and the tests that zarr-python and
//! xarray have of themselves. The text files in `data` list what fails, with reasons. An ordinary
//! run takes a part; `ZARRFS_SUITES=all` takes everything.

use crate::support;
use crate::support::{Mount, announce, env_path, is_installed, test_data, with_timeout};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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
const OTHER_STRESSORS: [&str; 8] = [
    "aio",
    "aiol",
    "mmap",
    "readahead",
    "revio",
    "seek",
    "sendfile",
    "splice",
];

/// Stressors of file systems that do not use the directory, or use all mounts of the machine.
const OTHER_PLACES: [&str; 6] = [
    "bind-mount",
    "binderfs",
    "eventfd",
    "fanotify",
    "ioprio",
    "procfs",
];

/// Returns whether `text` matches a pattern, in which `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            text.char_indices()
                .map(|(i, _)| &text[i..])
                .chain([""])
                .any(|end| matches(rest, end))
        }),
    }
}

/// Returns the tests that end so.
fn named(said: &str, outcome: &str) -> BTreeSet<String> {
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter(|(name, end)| name.contains("::") && end.trim() == outcome)
        .map(|(name, _)| name.to_string())
        .collect()
}

/// Asserts that what failed is listed in a file of `tests/data`, and returns the patterns of the
/// list.
#[track_caller]
fn assert_expected(failed: &BTreeSet<String>, file: &str) -> Vec<String> {
    let list = fs::read_to_string(test_data(file)).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let patterns: Vec<_> = lines
        .map(|line| {
            line.split_once(": ")
                .expect("PATTERN: reason")
                .0
                .to_string()
        })
        .collect();
    let unlisted: Vec<_> = failed
        .iter()
        .filter(|name| !patterns.iter().any(|p| matches(p, name)))
        .collect();
    assert!(
        unlisted.is_empty(),
        "not listed in tests/data/{file}: {unlisted:#?}"
    );
    patterns
}

/// Asserts that what failed is listed in a file of `tests/data`, and that for each line of it
/// something failed.
#[track_caller]
fn assert_listed(failed: &BTreeSet<String>, file: &str) {
    let patterns = assert_expected(failed, file);
    let passing: Vec<_> = patterns
        .iter()
        .filter(|p| !failed.iter().any(|name| matches(p, name)))
        .collect();
    assert!(
        passing.is_empty(),
        "listed in tests/data/{file}, and no longer failing: {passing:?}"
    );
}

/// Every test of pjdfstest passes in a directory that `mkdir` has made, except the listed ones. A
/// line of the list that no failure matches is a failure as well.
#[test]
fn pjdfstest_passes_but_for_what_a_store_cannot_hold() {
    let Some(program) = env_path("ZARRFS_PJDFSTEST") else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return announce("pjdfstest needs root: skipped");
    }
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s");
    let configuration = folder.path().join("pjdfstest.toml");
    fs::create_dir(&store).unwrap();
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let users = r#"entries = [["daemon", "daemon"], ["bin", "bin"]]"#;
    let settings = "[settings]\nnaptime = 0.01\nallow_remount = false\n";
    fs::write(
        &configuration,
        format!("[features]\n{settings}[dummy_auth]\n{users}\n"),
    )
    .unwrap();
    let mount = Mount::new(&store, &[]);
    let place = mount.join("place");
    fs::create_dir(&place).unwrap();
    let output = Command::new("timeout")
        .args([
            "800".as_ref(),
            program.as_os_str(),
            "-c".as_ref(),
            configuration.as_os_str(),
            "-p".as_ref(),
        ])
        .arg(&place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("Summary: "),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );

    assert!(named(&said, "ok").len() > 100, "{said}");
    assert_listed(&named(&said, "FAILED"), "pjdfstest.txt");
}

fn is_long() -> bool {
    std::env::var("ZARRFS_SUITES").is_ok_and(|suites| suites == "all")
}

/// Returns the stressors of a run at length: all that this version of stress-ng has and that use
/// the directory.
fn all_stressors() -> Vec<String> {
    let output = Command::new("stress-ng")
        .args(["--class", "filesystem?"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, class) = said
        .split_once("stressors:")
        .unwrap_or_else(|| panic!("no stressors: {said}"));
    let mut all: BTreeSet<String> = class
        .split_whitespace()
        .chain(OTHER_STRESSORS)
        .map(String::from)
        .collect();
    all.retain(|stressor| !OTHER_PLACES.contains(&stressor.as_str()));
    all.into_iter().collect()
}

/// Runs two workers of a stressor in a directory. Returns what they said if they failed, or skipped
/// all or some of their work. Some take minutes to remove what they have made, and some leave files
/// in the current folder.
fn stress(stressor: &str, seconds: u32, directory: &Path, folder: &Path) -> Option<String> {
    let output = with_timeout(seconds + 300, "stress-ng")
        .args([
            &format!("--{stressor}"),
            "2",
            "--verify",
            "--timeout",
            &seconds.to_string(),
            "--temp-path",
        ])
        .arg(directory)
        .current_dir(folder)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    assert!(
        said.contains("dispatching hogs") && output.status.code().is_some(),
        "{stressor}: {}\n{said}",
        output.status
    );
    let is_skipped = said
        .lines()
        .any(|line| line.contains("skipping") || line.contains("will be skipped"));
    (is_skipped || !output.status.success()).then_some(said)
}

/// Every stressor that passes in a plain directory passes in one that `mkdir` has made in a mount,
/// except the listed ones. Afterwards the mount works, and nothing is left.
#[test]
fn stressors_pass_but_for_what_a_store_cannot_hold() {
    if !is_installed("stress-ng") {
        return;
    }
    let is_long = is_long();
    let stressors = if is_long {
        all_stressors()
    } else {
        STRESSORS.map(String::from).to_vec()
    };
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
        let Some(said) = stress(&stressor, seconds, &place, folder.path()) else {
            continue;
        };
        if stress(&stressor, seconds, &plain, folder.path()).is_none() {
            announce(&format!(
                "stress-ng in the mount, not in a plain directory: {said}"
            ));
            failed.insert(stressor);
        }
    }
    mount.assert_no_problem();
    fs::remove_dir(&place).unwrap();
    drop(mount);
    let left = support::tree::snapshot(&store)
        .unwrap()
        .into_keys()
        .collect::<Vec<_>>();
    assert_eq!(left, ["/.zgroup"]);
    // on a busy machine a stressor may do too little to fail
    assert_expected(&failed, "stress-ng.txt");
}

/// The tests that a Zarr library has of itself, which pytest runs.
struct Suite<'a> {
    python: PathBuf,
    /// The directory in which pytest runs, and arguments that name the tests.
    source: PathBuf,
    tests: &'a [&'a str],
    /// The part of an ordinary run, as an expression of pytest.
    part: &'a str,
}

impl Suite<'_> {
    /// Starts the tests with `directory` for all temporary files.
    fn start(&self, directory: &Path, choice: &str) -> Child {
        with_timeout(3000, &self.python)
            .args([
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-o",
                "addopts=",
                "-o",
                "filterwarnings=",
            ])
            .args(["--timeout=300", "--tb=short", "-rfE", "--basetemp"])
            .arg(directory.join("pytest"))
            .args(self.tests)
            .args(["-k", choice])
            .current_dir(&self.source)
            .env("TMPDIR", directory)
            .env("COLUMNS", "1000")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// Returns the tests that failed, and everything that pytest said.
fn outcome(child: Child) -> (BTreeSet<String>, String) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        matches!(output.status.code(), Some(0 | 1)) && said.contains(" passed"),
        "{}: {said}",
        output.status
    );
    let failed = said.lines().filter_map(|line| {
        line.strip_prefix("FAILED ")
            .or_else(|| line.strip_prefix("ERROR "))
    });
    // other lines of a log begin so, too
    let named = failed.filter(|line| line.contains("::"));
    (
        named
            .map(|line| line.split(" - ").next().unwrap_or(line).to_string())
            .collect(),
        said,
    )
}

/// Runs a suite with all its files in a mount of a store with this document, and in a plain
/// directory at the same time. What fails in the mount alone is listed in `file`.
#[track_caller]
fn assert_same_as_in_a_directory(suite: &Suite, (name, document): (&str, &str), file: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [store, plain] = ["s", "plain"].map(|name| folder.path().join(name));
    fs::create_dir(&store).unwrap();
    fs::create_dir(&plain).unwrap();
    fs::write(store.join(name), document).unwrap();
    let mount = Mount::new(&store, &[]);
    let place = mount.join("place");
    fs::create_dir(&place).unwrap();
    let choice = if is_long() { "" } else { suite.part };
    let beside = suite.start(&plain, choice);
    let (mut failed, said) = outcome(suite.start(&place, choice));
    let (failed_beside, _) = outcome(beside);
    failed.retain(|test| !failed_beside.contains(test));
    if is_long() {
        assert_listed(&failed, file);
    } else {
        assert_expected(&failed, file);
    }
    announce(said.lines().last().unwrap());
    fs::read(mount.join(".zarrfs/stats")).unwrap();
}

#[test]
fn tests_of_zarr_python_2_pass_but_for_the_listed_ones() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let tests = ["--pyargs", "zarr.tests"];
    let part = "TestDirectoryStore or WithDirectoryStore";
    let suite = Suite {
        python,
        source: std::env::temp_dir(),
        tests: &tests,
        part,
    };
    assert_same_as_in_a_directory(
        &suite,
        (".zgroup", r#"{"zarr_format": 2}"#),
        "zarr-python-2.txt",
    );
}

#[test]
fn tests_of_zarr_python_3_pass_but_for_the_listed_ones() {
    let (Some(python), Some(source)) = (
        env_path("ZARRFS_TEST_PYTHON3"),
        env_path("ZARRFS_ZARR_TESTS"),
    ) else {
        return;
    };
    // the tests of examples and documents need other packages, those of properties and states use
    // no files
    let left_out = [
        "examples.py",
        "docs.py",
        "api/test_synchronous.py",
        "properties.py",
        "store/test_stateful.py",
    ];
    let left_out = left_out.map(|test| format!("--ignore=tests/test_{test}"));
    let tests: Vec<&str> = ["tests"]
        .into_iter()
        .chain(left_out.iter().map(String::as_str))
        .collect();
    let part = "(test_local or test_group or test_api) and local";
    let suite = Suite {
        python,
        source,
        tests: &tests,
        part,
    };
    let document = r#"{"zarr_format": 3, "node_type": "group"}"#;
    assert_same_as_in_a_directory(&suite, ("zarr.json", document), "zarr-python-3.txt");
}

#[test]
fn tests_of_xarray_pass_but_for_the_listed_ones() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let tests = [
        "--pyargs",
        "xarray.tests.test_backends",
        "xarray.tests.test_backends_datatree",
    ];
    let part = "TestZarrDirectoryStore and (persistence or append or region or consolidated)";
    let suite = Suite {
        python,
        source: std::env::temp_dir(),
        tests: &tests,
        part,
    };
    let document = r#"{"zarr_format": 3, "node_type": "group"}"#;
    assert_same_as_in_a_directory(&suite, ("zarr.json", document), "xarray.txt");
}
