//! The sandbox: an attacker who makes a codec run code reaches nothing outside the store
//! (`crates/base/src/probe.rs` tries), and what a mount does itself still works.

use crate::support;
use crate::support::array::{TestArray, zlib};
use crate::support::faulty_server::FaultyServer;
use crate::support::{Mount, ZARRFS, announce, answered, wait_for, zarrfs};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// The number of attempts of the probe, without those of system calls by their number.
const NAMED_ATTEMPTS: usize = 46;

/// uretprobe(2) and uprobe(2), for which the kernel runs no filter. Outside the code that the
/// kernel makes for them, they fail or stop the process.
const UNFILTERED_CALLS: &[i64] = if cfg!(target_arch = "x86_64") {
    &[335, 336]
} else {
    &[]
};

/// Returns whether the kernel has the whole sandbox. Announces that the test is skipped if not.
fn has_sandbox() -> bool {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let mount = Mount::new(store.path(), &[]);
    let text = line(&mount.stats(), "sandbox");
    let has = text.starts_with("on: ");
    if !has {
        announce(&format!("skipped: the sandbox is {text}"));
    }
    has
}

/// Returns whether the probe can try the whole sandbox. Announces that the test is skipped if not.
fn can_probe() -> bool {
    if !cfg!(debug_assertions) {
        announce("skipped: release builds have no probe");
        return false;
    }
    has_sandbox()
}

/// Returns the value of a line of `.zarrfs/stats`.
fn line(stats: &str, name: &str) -> String {
    let found = stats.lines().find_map(|line| line.strip_prefix(name));
    found
        .unwrap_or_else(|| panic!("{stats}"))
        .trim()
        .to_string()
}

/// A store with one array, and a directory that is not the store.
struct Site {
    folder: tempfile::TempDir,
    array: TestArray,
}

impl Site {
    fn new() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("s.zarr");
        fs::create_dir(&store).unwrap();
        fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
        let array = TestArray::with_chunks(store.join("a"), &[20], &[10], zlib());
        let outside = folder.path().join("outside");
        fs::create_dir_all(outside.join("empty")).unwrap();
        fs::write(outside.join("file"), "outside").unwrap();
        fs::write(outside.join("other"), "").unwrap();
        Site { folder, array }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_string()
    }

    /// Mounts `store`, decodes a chunk, and returns the outcomes of the probe, which also tries
    /// `calls`.
    fn probe(&self, store: &str, args: &[&str], calls: &[i64]) -> BTreeMap<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = self.path("log");
        let mut command = Command::new(ZARRFS);
        let setting = format!("{}:{port}", self.path("outside"));
        let calls: Vec<String> = calls.iter().map(i64::to_string).collect();
        // this level writes all messages, also of one kind
        command
            .args(["mount", "--log-file", &log, "--log-level", "debug"])
            .args(args)
            .env("ZARRFS_TEST_PROBE", setting)
            .env("ZARRFS_TEST_CALLS", calls.join(","));
        let mount = Mount::with_command(command, store.as_ref());
        assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), self.array.flat);
        let text = || fs::read_to_string(&log).unwrap();
        wait_for("the probe", || text().contains("probe ended"));
        let outcomes = text();
        drop(mount);
        fs::remove_file(&log).unwrap();
        let lines = outcomes
            .lines()
            .filter_map(|line| line.split_once(" probe "));
        lines
            .filter_map(|(_, outcome)| outcome.split_once(": "))
            .map(|(name, outcome)| (name.to_string(), outcome.to_string()))
            .collect()
    }
}

/// Returns the numbers of all system calls that the sandbox forbids for any argument.
fn forbidden_calls(connects: bool) -> Vec<i64> {
    let permitted = zarrfs_sandbox::permitted_calls(connects).unwrap();
    let is_forbidden =
        |number: &i64| !permitted.contains(number) && !UNFILTERED_CALLS.contains(number);
    (0..512).filter(is_forbidden).collect()
}

/// Checks that everything was tried, and that the sandbox refused it.
fn assert_refused(outcomes: &BTreeMap<String, String>, calls: &[i64]) {
    let (mut numbered, mut named): (BTreeMap<_, _>, BTreeMap<_, _>) = outcomes
        .iter()
        .map(|(name, outcome)| (name.as_str(), outcome.as_str()))
        .partition(|(name, _)| name.starts_with("call "));
    assert!(calls.len() > 300, "{}", calls.len());
    assert_eq!(numbered.len(), calls.len());
    assert_eq!(named.len(), NAMED_ATTEMPTS);
    // its arguments can't be checked, so the library has to use another call
    let clone3 = numbered.remove(&*format!("call {}", libc::SYS_clone3));
    assert_eq!(clone3, Some("ENOSYS"));
    announce("clone3: ENOSYS");
    let tried = numbered.len();
    numbered.retain(|_, outcome| *outcome != "EPERM");
    assert_eq!(numbered, BTreeMap::new());
    announce(&format!("{tried} other system calls: EPERM"));
    for (name, outcome) in &named {
        announce(&format!("{name}: {outcome}"));
    }
    named.retain(|_, outcome| !["EPERM", "EACCES"].contains(outcome));
    assert_eq!(named, BTreeMap::new());
}

#[test]
fn a_codec_that_runs_code_reaches_nothing_outside_the_store() {
    if !can_probe() {
        return;
    }
    let site = Site::new();
    let store = site.path("s.zarr");
    let calls = forbidden_calls(false);
    let outcomes = site.probe(&store, &[], &calls);
    assert_refused(&outcomes, &calls);
    let outside = site.folder.path().join("outside");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"outside");
    assert_eq!(support::listed(&outside).len(), 3);
    // without the sandbox, the same attempts succeed
    let outcomes = site.probe(&store, &["--sandbox", "off"], &[]);
    assert_eq!(outcomes.len(), NAMED_ATTEMPTS);
    for name in [
        "program",
        "clone of a process",
        "reading a file",
        "creating a file",
        "removing a directory",
        "reading /etc/passwd",
        "connecting to another port",
        "socket AF_UNIX",
        "fcntl F_SETOWN",
        "fcntl F_SETSIG",
    ] {
        assert_eq!(outcomes[name], "succeeded", "{name}");
    }
}

#[test]
fn a_store_on_a_server_permits_its_port_alone() {
    if !can_probe() {
        return;
    }
    let site = Site::new();
    let server = FaultyServer::new(site.folder.path());
    // the name is looked up outside the sandbox
    let url = server.url("s.zarr").replace("127.0.0.1", "localhost");
    let calls = forbidden_calls(true);
    let outcomes = site.probe(&url, &["--read-only"], &calls);
    assert_refused(&outcomes, &calls);
}

#[test]
fn statistics_say_what_the_sandbox_is() {
    let site = Site::new();
    let store = site.path("s.zarr");
    let mount = Mount::new(Path::new(&store), &["--sandbox", "off"]);
    assert_eq!(line(&mount.stats(), "sandbox"), "off: --sandbox off");
    let asked = answered(|| zarrfs(&["stats", mount.path().to_str().unwrap()]));
    let printed = asked.stdout;
    assert!(
        String::from_utf8(printed)
            .unwrap()
            .contains("off: --sandbox off")
    );
    drop(mount);
    if has_sandbox() {
        let mount = Mount::new(Path::new(&store), &["--sandbox=on"]);
        let text = line(&mount.stats(), "sandbox");
        assert!(
            text.starts_with("on: Landlock ") && text.ends_with(", seccomp"),
            "{text}"
        );
    }
}

#[test]
fn a_store_that_is_replaced_is_written_in_its_place_alone() {
    let site = Site::new();
    let store = site.folder.path().join("s.zarr");
    let mount = Mount::new(&store, &[]);
    for round in 0..3u8 {
        fs::remove_dir_all(&store).unwrap();
        fs::create_dir(&store).unwrap();
        fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
        let array = TestArray::with_chunks(store.join("a"), &[20], &[10], zlib());
        let data = mount.join("a/data.raw");
        assert_eq!(fs::read(&data).unwrap(), array.flat, "{round}");
        let values = vec![round; array.flat.len()];
        fs::write(&data, &values).unwrap();
        assert_eq!(array.stored_flat().unwrap(), values);
        fs::create_dir(mount.join("g")).unwrap();
        fs::rename(mount.join("g"), mount.join("h")).unwrap();
        fs::remove_dir(mount.join("h")).unwrap();
        assert!(!store.join("h").exists());
    }
    let stats = mount.stats();
    assert!(!stats.contains("Permission denied"), "{stats}");
}
