//! `scripts/test-runner` and `scripts/test-parallel`, which run the test binaries in `scripts/test`: they name what
//! fails, and end and name a binary that hangs, also one that waits for a daemon.

mod support;

use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::array::TestArray;
use support::{Mount, ZARRFS, run, with_timeout};

/// Returns a script with a limit of two seconds for a test binary, as if `target` were the target directory.
fn script(target: &Path, name: &str) -> Command {
    let mut command = with_timeout(60, Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name));
    command.env("CARGO_TARGET_DIR", target).env("TMPDIR", target).env("ZARRFS_TEST_BINARY_LIMIT", "2");
    command.env_remove("ZARRFS_TEST_LIST");
    command
}

/// Runs a program by the runner.
fn run_limited(target: &Path, program: &[&str]) -> (Output, Duration) {
    let start = Instant::now();
    (script(target, "test-runner").args(program).output().unwrap(), start.elapsed())
}

/// Runs shell scripts, given by name and text, two at a time, after the runner has listed them. Returns the exit code
/// and the lines of the output.
fn run_parallel(programs: &[(&str, &str)]) -> (Option<i32>, Vec<String>) {
    let target = tempfile::tempdir().unwrap();
    let list = target.path().join("list");
    for (name, text) in programs {
        let program: PathBuf = target.path().join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let mut runner = script(target.path(), "test-runner");
        let listed = runner.arg(&program).args(["two words", "'"]).env("ZARRFS_TEST_LIST", &list).output().unwrap();
        assert!(listed.status.success() && listed.stdout.is_empty() && listed.stderr.is_empty(), "{listed:?}");
    }
    let output = script(target.path(), "test-parallel").arg(&list).env("ZARRFS_TEST_JOBS", "2").output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code(), said.lines().map(String::from).collect())
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

/// A program that looks at a stuck process may get stuck itself. Here one that would look at executables does.
#[test]
fn a_diagnosis_that_hangs_ends_as_well() {
    let target = tempfile::tempdir().unwrap();
    let bin = target.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["readlink", "ps", "fuser", "lsof", "pgrep"] {
        std::fs::write(bin.join(name), "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n").unwrap();
        std::fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    // a process with the name of a daemon, at which the runner looks
    let mut named = Command::new("sh").args(["-c", "printf zarrfs >/proc/self/comm; sleep 60 & wait"]).spawn().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let begun = Instant::now();
    let output = script(target.path(), "test-runner").args(["sleep", "60"]).env("PATH", path).output().unwrap();
    run("pkill", &["-KILL", "-P", &named.id().to_string()], target.path());
    let _ = named.kill();
    named.wait().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(124), "{said}");
    assert!(said.contains("sleep: ended after") && begun.elapsed() < Duration::from_secs(50), "{said}");
}

/// The output of each program is in one piece, and the failures come last.
#[test]
fn all_programs_run_and_those_that_fail_are_named() {
    let (code, said) = run_parallel(&[
        ("first-1", "echo one $#; sleep 1; echo two"),
        ("second-2", "echo three; printf 'failures:\\nsome_test\\n'; exit 101"),
        ("faults-3", "echo $2; exit 0"),
    ]);
    let position = |line: &str| said.iter().position(|l| l == line).unwrap_or_else(|| panic!("{line}: {said:#?}"));
    assert_eq!(code, Some(1));
    assert_eq!(position("one 2") + 1, position("two"));
    // the runner starts one of the longest binaries first
    assert!(position("'") < position("one 2"), "{said:#?}");
    let last = &said[position("== second-2 failed")..];
    assert_eq!(last[1..3], ["failures:", "some_test"], "{said:#?}");
    assert_eq!(last.last().unwrap(), "test-parallel: failed: second-2");
}

#[test]
fn a_program_that_hangs_ends_the_others() {
    let (code, said) = run_parallel(&[
        ("hanging-1", "echo begun; exec sleep 60"),
        ("short-2", "sleep 1"),
        ("late-3", "echo late; exec sleep 60"),
        ("never-4", "echo never"),
    ]);
    let text = said.join("\n");
    assert_eq!(code, Some(1), "{text}");
    for line in ["begun", "hanging-1 takes more than 2 s", "late"] {
        assert!(said.iter().any(|l| l == line), "{line}: {text}");
    }
    // on a busy machine the later one may be ended first
    assert!(
        ["hanging-1", "late-3"].iter().any(|name| text.ends_with(&format!("test-parallel: {name} hangs"))),
        "{text}"
    );
    assert!(!text.contains("never-4"), "{text}");
}
