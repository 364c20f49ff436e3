//! "A chunk is replaced atomically. Readers and crashes see the old chunk or the new one, never a
//! mixture." strace kills `zarrfs put`, or makes a system call fail, at each call that changes the
//! store. Each chunk found afterwards is compared with the old and the new bytes. `zarrfs put`
//! stores chunks as a mount does, but needs none.

use crate::support::array::{TestArray, pattern};
use crate::support::{ZARRFS, announce, is_installed, unfinished_files, zarrfs};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const SHAPE: [usize; 2] = [24, 512];
const CHUNKS: [usize; 2] = [4, 128];

/// The system calls that change a store or make a change durable. strace counts the calls of each
/// thread separately.
const CALLS: [&str; 5] = [
    "write,pwrite64",
    "fdatasync",
    "renameat2",
    "mkdirat",
    "fsync",
];

/// Number of rows of chunks that are stored before `zarrfs put` runs.
const OLD_ROWS: usize = 4;

/// A store and the bytes that are put into it.
struct Case {
    directory: tempfile::TempDir,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Case {
    /// Creates an array of which a part is stored, and new bytes for all of it.
    fn new(separator: &str) -> Case {
        let directory = tempfile::tempdir().unwrap();
        let compressor =
            json!({"compressor": {"id": "zlib", "level": 1}, "dimension_separator": separator});
        let mut made = TestArray::new(directory.path().join("a"), &SHAPE, &CHUNKS, compressor);
        let stored = OLD_ROWS * CHUNKS[0] * SHAPE[1];
        made.flat[..stored].copy_from_slice(&pattern(1, stored));
        for index in made.grid().into_iter().filter(|index| index[0] < OLD_ROWS) {
            made.put(&index);
        }
        let new = pattern(2, made.flat.len());
        fs::write(directory.path().join("new"), &new).unwrap();
        Case {
            directory,
            old: made.flat,
            new,
        }
    }

    fn array(&self) -> PathBuf {
        self.directory.path().join("a")
    }

    /// Runs `zarrfs put` with the new bytes under strace, which writes one log per thread with the
    /// time of each call.
    fn put(&self, strace: &[&str], more: &[&str]) -> Output {
        let input = fs::File::open(self.directory.path().join("new")).unwrap();
        fs::create_dir_all(self.directory.path().join("log")).unwrap();
        let mut command = Command::new("strace");
        command
            .args(["-ff", "-ttt", "-o"])
            .arg(self.directory.path().join("log/l"))
            .args(strace);
        command.args([ZARRFS, "put"]).arg(self.array()).args(more);
        command
            .stdin(Stdio::from(input))
            .output()
            .expect("strace starts")
    }

    /// Returns the logs of the threads.
    fn log(&self) -> Vec<String> {
        let files = fs::read_dir(self.directory.path().join("log")).unwrap();
        files
            .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
            .collect()
    }

    /// Checks that each chunk is old or new and, unless `may_leave`, that no temporary file is
    /// left. Returns whether all chunks are new.
    fn check(&self, what: &str, may_leave: bool) -> bool {
        let output = zarrfs(&["cat", self.array().to_str().unwrap()]);
        assert!(
            output.status.success(),
            "{what}: torn: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let flat = output.stdout;
        let mut all = true;
        for row in (0..SHAPE[0]).step_by(CHUNKS[0]) {
            for column in (0..SHAPE[1]).step_by(CHUNKS[1]) {
                let lines = |bytes: &[u8]| -> Vec<u8> {
                    let line = |i| &bytes[(row + i) * SHAPE[1] + column..][..CHUNKS[1]];
                    (0..CHUNKS[0]).flat_map(line).copied().collect()
                };
                let got = lines(&flat);
                let is_new = lines(&flat) == lines(&self.new);
                assert!(
                    is_new || got == lines(&self.old),
                    "{what}: neither old nor new at {row}, {column}"
                );
                all &= is_new;
            }
        }
        let left = unfinished_files(&self.array());
        assert!(
            may_leave || left.is_empty(),
            "{what}: temporary files are left: {left:?}"
        );
        all
    }
}

/// Runs `zarrfs put` once for each call, at which strace injects the fault `what`. Calls `check`
/// with each result.
fn at_every_call(what: &str, check: impl Fn(&Case, &Output, &str)) {
    let mut points = BTreeMap::new();
    for separator in [".", "/"] {
        for call in CALLS {
            for n in 1.. {
                let case = Case::new(separator);
                let trace = format!("trace={call}");
                let inject = format!("inject={call}:{what}:when={n}");
                let output = case.put(&["-e", &trace, "-e", &inject], &[]);
                let hit = case
                    .log()
                    .iter()
                    .any(|log| log.contains("(INJECTED)") || log.contains("killed by SIGKILL"));
                check(
                    &case,
                    &output,
                    &format!("{what} at {call} {n}, {separator:?}"),
                );
                if !hit {
                    assert!(
                        output.status.success(),
                        "{}",
                        String::from_utf8_lossy(&output.stderr)
                    );
                    break;
                }
                *points.entry(call).or_insert(0) += 1;
            }
        }
    }
    announce(&format!("{what}: {points:?}"));
    assert_eq!(points.len(), CALLS.len(), "not every call was hit");
}

#[test]
fn a_kill_at_any_call_leaves_each_chunk_old_or_new() {
    if !is_installed("strace") {
        return;
    }
    at_every_call("signal=SIGKILL", |case, output, what| {
        let killed = output.status.signal() == Some(9);
        assert!(killed || output.status.success(), "{what}: {output:?}");
        let all = case.check(what, killed);
        assert!(all || killed, "{what}: lost");
        if killed {
            // the files that a kill leaves behind do not affect the next run
            assert!(case.put(&["-e", "trace=none"], &[]).status.success());
            assert!(case.check(what, true), "{what}: lost");
        }
    });
}

#[test]
fn an_error_at_any_call_is_reported_and_leaves_each_chunk_old_or_new() {
    if !is_installed("strace") {
        return;
    }
    for errno in ["EIO", "ENOSPC"] {
        at_every_call(&format!("error={errno}"), |case, output, what| {
            let all = case.check(what, false);
            assert!(
                all || output.status.code() == Some(1),
                "{what}: not told: {output:?}"
            );
        });
    }
}

/// Returns the time of a call in a log, in seconds.
fn time(line: &str) -> f64 {
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn chunks_are_synced_before_they_are_renamed_and_directories_at_the_end() {
    if !is_installed("strace") {
        return;
    }
    let case = Case::new("/");
    let trace = ["-e", "trace=openat,fdatasync,fsync,renameat2"];
    assert!(case.put(&trace, &[]).status.success());
    let mut renames = 0;
    let mut last_rename = 0.0;
    let mut last_sync = 0.0;
    for log in case.log() {
        // the descriptor of the file that is being written, and whether it has been synced
        let mut descriptor = String::new();
        let mut synced = false;
        for line in log.lines() {
            if line.contains("openat(") && line.contains("O_CREAT") {
                (descriptor, synced) = (line.rsplit(" = ").next().unwrap().to_string(), false);
            } else if line.contains(&format!("fdatasync({descriptor})")) {
                synced = line.ends_with("= 0");
            } else if line.contains("renameat2(") {
                assert!(synced, "{line}");
                renames += 1;
                last_rename = f64::max(last_rename, time(line));
            } else if line.contains("fsync(") && line.ends_with("= 0") {
                last_sync = f64::max(last_sync, time(line));
            }
        }
    }
    assert_eq!(renames, 24);
    assert!(
        last_sync > last_rename,
        "the directories were not synced after the last chunk"
    );

    let case = Case::new(".");
    assert!(case.put(&trace, &["--no-fsync"]).status.success());
    let log = case.log().concat();
    assert!(
        case.check("--no-fsync", false) && log.contains("renameat2(") && !log.contains("sync(")
    );
}
