//! `scripts/run-tests`, which runs the tests in `scripts/test`: it names those that fail, and ends
//! and names one that hangs, also one that waits for a daemon. The test binaries here are shell
//! scripts. And the tests that `scripts/test` leaves to `--all`.

use crate::layers::{files, source_folders};
use crate::support::array::TestArray;
use crate::support::{Mount, ZARRFS, run, with_timeout};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Writes an executable shell script.
fn write_script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Runs the tests of a test binary whose tests are these shell commands, each of which has `limit`
/// seconds, as if `target` were the target directory. Returns the exit code and the lines of the
/// output.
fn run_tests(
    target: &Path,
    tests: &[(&str, &str)],
    limit: u32,
    prepare: impl FnOnce(&mut Command),
) -> (Option<i32>, Vec<String>) {
    let list: String = tests
        .iter()
        .map(|(name, _)| format!("echo '{name}: test'; "))
        .collect();
    let cases: String = tests
        .iter()
        .map(|(name, text)| format!("{name}) {text} ;;\n"))
        .collect();
    let binary = target.join("some-1234");
    write_script(
        &binary,
        &format!("if [ \"$1\" = --list ]; then {list} exit; fi\ncase $2 in\n{cases}esac"),
    );
    let mut command = with_timeout(
        400,
        Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/run-tests"),
    );
    command
        .arg(&binary)
        .env("CARGO_TARGET_DIR", target)
        .env("TMPDIR", target);
    command
        .env("ZARRFS_TEST_LIMIT_EACH", limit.to_string())
        .env("ZARRFS_TEST_JOBS", "2");
    prepare(&mut command);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8(bytes).unwrap())
        .concat();
    (
        output.status.code(),
        said.lines().map(String::from).collect(),
    )
}

/// Returns the position of the line that begins so.
#[track_caller]
fn position(said: &[String], line: &str) -> usize {
    said.iter()
        .position(|l| l.starts_with(line))
        .unwrap_or_else(|| panic!("{line}: {said:#?}"))
}

#[test]
fn all_tests_run_and_what_failed_comes_last() {
    let target = tempfile::tempdir().unwrap();
    let tests = [
        (
            "a::first",
            "echo 'skipped: no such program'; echo unimportant",
        ),
        ("a::second", "echo three; exit 101"),
        ("b::third", "true"),
    ];
    let (code, said) = run_tests(target.path(), &tests, 60, |_| {});
    assert_eq!(code, Some(1), "{said:#?}");
    let first = position(&said, "ok  some a::first: ");
    assert_eq!(said[first + 1], "skipped: no such program");
    position(&said, "ok  some b::third: ");
    assert!(!said.contains(&"unimportant".to_string()), "{said:#?}");
    let failed = position(&said, "== FAILED  some a::second: ");
    assert_eq!(said[failed + 1], "three");
    assert_eq!(said.last().unwrap(), "run-tests: failed: some a::second");
    let (code, said) = run_tests(target.path(), &tests[2..], 60, |_| {});
    assert_eq!((code, said.len()), (Some(0), 1), "{said:#?}");
    assert_eq!(
        run_tests(target.path(), &[], 60, |_| {}),
        (Some(1), vec!["run-tests: no test has such a name".into()])
    );
}

#[test]
fn a_test_that_waits_for_a_stopped_daemon_is_ended() {
    let target = tempfile::tempdir().unwrap();
    // the runner kills the daemons of its target directory, and must not find those of other tests
    std::fs::create_dir(target.path().join("debug")).unwrap();
    let daemon = target.path().join("debug/zarrfs");
    std::fs::copy(ZARRFS, &daemon).unwrap();
    let store = tempfile::tempdir().unwrap();
    TestArray::with_chunks(store.path().join("a"), &[1000], &[100], json!({}));
    let mut command = Command::new(&daemon);
    command.arg("mount");
    let mut mount = Mount::with_command(command, store.path().as_os_str());
    mount.is_killed = true;
    run(
        "kill",
        &["-STOP", &mount.counter("pid").to_string()],
        store.path(),
    );
    let reads = format!("exec cat {}", mount.join("a/data.raw").display());
    let begun = Instant::now();
    let (code, said) = run_tests(target.path(), &[("waits", &reads)], 2, |_| {});
    assert_eq!(code, Some(1), "{said:#?}");
    position(&said, "some waits takes more than 2 s");
    position(&said, "HANGS  some waits: ");
    assert!(said.iter().any(|line| line.contains("zarrfs")), "{said:#?}");
    assert!(
        begun.elapsed() < Duration::from_secs(300),
        "{:?}",
        begun.elapsed()
    );
}

/// A program that looks at a stuck process may get stuck itself. Here one that would look at
/// executables does.
#[test]
fn a_diagnosis_that_hangs_ends_as_well() {
    let target = tempfile::tempdir().unwrap();
    let bin = target.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["readlink", "ps", "fuser", "lsof", "pgrep"] {
        write_script(&bin.join(name), "trap '' TERM\nwhile :; do sleep 1; done");
    }
    // a process with the name of a daemon, at which the runner looks
    let mut named = Command::new("sh")
        .args(["-c", "printf zarrfs >/proc/self/comm; sleep 600 & wait"])
        .spawn()
        .unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let begun = Instant::now();
    let tests = [("sleeps", "exec sleep 600")];
    let (code, said) = run_tests(target.path(), &tests, 2, |command| {
        command.env("PATH", path);
    });
    run(
        "pkill",
        &["-KILL", "-P", &named.id().to_string()],
        target.path(),
    );
    let _ = named.kill();
    named.wait().unwrap();
    assert_eq!(code, Some(1), "{said:#?}");
    position(&said, "HANGS  some sleeps: ");
    assert!(begun.elapsed() < Duration::from_secs(300), "{said:#?}");
}

/// A test that hangs ends the run, since the daemons of the others are ended with it.
#[test]
fn a_test_that_hangs_is_the_last_one() {
    let target = tempfile::tempdir().unwrap();
    let tests = [
        ("a", "sleep 1"),
        ("hangs", "echo begun; exec sleep 600"),
        ("b", "exec sleep 600"),
        ("never", "true"),
    ];
    let mut limit = 2;
    let (code, said) = loop {
        let (code, said) = run_tests(target.path(), &tests, limit, |_| {});
        // on a busy machine, the first tests may not get so far within the limit
        let is_late = !said.iter().any(|line| line == "begun")
            || said.iter().any(|l| l.starts_with("some a takes more than"));
        if !is_late || limit > 60 {
            break (code, said);
        }
        limit *= 6;
    };
    let text = said.join("\n");
    assert_eq!(code, Some(1), "{text}");
    position(&said, "begun");
    assert!(
        said.last().unwrap().contains("some hangs") && !text.contains("never"),
        "{text}"
    );
}

/// `scripts/test` leaves long tests to `--all` by their names. A usual run would include one that
/// has another name by now.
#[test]
fn tests_that_a_usual_run_leaves_out_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(root.join("scripts/test")).unwrap();
    let (_, list) = script.split_once("\nlong=(\n").unwrap();
    let (list, _) = list.split_once("\n)\n").unwrap();
    let mut paths = Vec::new();
    for folder in source_folders() {
        files(&folder, &mut paths);
    }
    files(&root.join("tests"), &mut paths);
    let code = paths
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect::<String>();
    for name in list.split_whitespace() {
        let (_, function) = name.rsplit_once("::").unwrap();
        assert!(code.contains(&format!("fn {function}(")), "{name}");
    }
}
