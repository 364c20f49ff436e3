//! `scripts/test-runner`, which runs the test binaries in `scripts/test`: it ends a binary that hangs, also one that
//! waits for a daemon, and names it.

mod support;

use serde_json::json;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::array::TestArray;
use support::{Mount, ZARRFS, run, with_timeout};

/// Runs a program by the runner with a limit of two seconds, as if `target` were the target directory.
fn run_limited(target: &Path, program: &[&str]) -> (Output, Duration) {
    let start = Instant::now();
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/test-runner");
    let mut command = with_timeout(60, runner);
    command.args(program).env("CARGO_TARGET_DIR", target).env("TMPDIR", target).env("ZARRFS_TEST_BINARY_LIMIT", "2");
    (command.output().unwrap(), start.elapsed())
}

#[test]
fn output_and_status_are_passed_on() {
    let target = tempfile::tempdir().unwrap();
    let (output, _) = run_limited(target.path(), &["sh", "-c", "echo running 1 test; exit 101"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(101), b"running 1 test\n".as_slice()));
    let (output, _) = run_limited(target.path(), &["true"]);
    assert!(output.status.success() && String::from_utf8(output.stderr).unwrap().starts_with("true: "));
}

#[test]
fn a_program_that_waits_for_a_stopped_daemon_is_ended() {
    let target = tempfile::tempdir().unwrap();
    // the runner kills the daemons of its target directory, and must not find those of other tests
    std::fs::create_dir(target.path().join("debug")).unwrap();
    let daemon = target.path().join("debug/zarrfs");
    std::fs::copy(ZARRFS, &daemon).unwrap();
    let store = tempfile::tempdir().unwrap();
    TestArray::with_chunks(store.path().join("a"), &[1000], &[100], json!({}));
    let mut command = Command::new(&daemon);
    command.arg("mount");
    let mount = Mount::with_command(command, store.path().as_os_str());
    run("kill", &["-STOP", &mount.counter("pid").to_string()], store.path());
    let (output, took) = run_limited(target.path(), &["cat", mount.join("a/data.raw").to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(124), "{said}");
    assert!(said.contains("cat takes more than 2 s") && said.contains("zarrfs"), "{said}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}
