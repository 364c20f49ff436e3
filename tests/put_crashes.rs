//! "A chunk is replaced atomically: any reader and any crash sees the old one or the new one." Here zarrfs is killed, or
//! its system calls fail, at each call that changes the store, one after the other, by strace. `zarrfs put` stores as a
//! mount does, and needs none.

mod support;

use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::made::{Made, pattern};
use support::{ZARRFS, say, zarrfs};

const SHAPE: [usize; 2] = [24, 512];
const CHUNKS: [usize; 2] = [4, 128];

/// The calls that change a store, or make a change durable. Each thread counts its own.
const CALLS: [&str; 5] = ["write", "fdatasync", "renameat", "mkdirat", "fsync"];

/// Chunks above this row are there before.
const OLD_ROWS: usize = 4;

struct Case {
    directory: tempfile::TempDir,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Case {
    /// An array of which a part is stored, and other bytes for all of it.
    fn new(separator: &str) -> Case {
        let directory = tempfile::tempdir().unwrap();
        let compressor = json!({"compressor": {"id": "zlib", "level": 1}, "dimension_separator": separator});
        let mut made = Made::new(directory.path().join("a"), &SHAPE, &CHUNKS, compressor);
        let stored = OLD_ROWS * CHUNKS[0] * SHAPE[1];
        made.flat[..stored].copy_from_slice(&pattern(1, stored));
        for index in made.grid().into_iter().filter(|index| index[0] < OLD_ROWS) {
            made.put(&index);
        }
        let new = pattern(2, made.flat.len());
        fs::write(directory.path().join("new"), &new).unwrap();
        Case { directory, old: made.flat, new }
    }

    fn array(&self) -> PathBuf {
        self.directory.path().join("a")
    }

    /// Puts the new bytes. strace writes one log for each thread, with the time of each call.
    fn put(&self, strace: &[&str], more: &[&str]) -> Output {
        let input = fs::File::open(self.directory.path().join("new")).unwrap();
        fs::create_dir_all(self.directory.path().join("log")).unwrap();
        let mut command = Command::new("strace");
        command.args(["-ff", "-ttt", "-o"]).arg(self.directory.path().join("log/l")).args(strace);
        command.args([ZARRFS, "put"]).arg(self.array()).args(more);
        command.stdin(Stdio::from(input)).output().expect("strace starts")
    }

    /// The calls that each thread made.
    fn log(&self) -> Vec<String> {
        let files = fs::read_dir(self.directory.path().join("log")).unwrap();
        files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
    }

    /// True if all chunks are new. Each is old or new, and nothing else is there but what a kill may leave.
    fn check(&self, what: &str, may_leave: bool) -> bool {
        let output = zarrfs(&["cat", self.array().to_str().unwrap()]);
        assert!(output.status.success(), "{what}: torn: {}", String::from_utf8_lossy(&output.stderr));
        let flat = output.stdout;
        let mut all = true;
        for row in (0..SHAPE[0]).step_by(CHUNKS[0]) {
            for column in (0..SHAPE[1]).step_by(CHUNKS[1]) {
                let lines = |bytes: &[u8]| -> Vec<u8> {
                    let line = |i| &bytes[(row + i) * SHAPE[1] + column..][..CHUNKS[1]];
                    (0..CHUNKS[0]).flat_map(line).copied().collect()
                };
                let (got, is_new) = (lines(&flat), lines(&flat) == lines(&self.new));
                assert!(is_new || got == lines(&self.old), "{what}: neither old nor new at {row}, {column}");
                all &= is_new;
            }
        }
        let left = temporary(&self.array());
        assert!(may_leave || left == 0, "{what}: {left} temporary files are left");
        all
    }
}

/// How many temporary files there are below a directory.
fn temporary(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => temporary(&entry.path()),
            false => usize::from(entry.file_name().to_string_lossy().starts_with(".zarrfs-")),
        })
        .sum()
}

fn has_strace() -> bool {
    let found = Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: strace is not installed");
    }
    found
}

/// Has every call fail in turn as `what` says, until there are no more of them, and calls `check` with how it went.
fn at_every_call(what: &str, check: impl Fn(&Case, &Output, &str)) {
    let mut points = BTreeMap::new();
    for separator in [".", "/"] {
        for call in CALLS {
            for n in 1.. {
                let case = Case::new(separator);
                let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{what}:when={n}"));
                let output = case.put(&["-e", &trace, "-e", &inject], &[]);
                let hit = case.log().iter().any(|log| log.contains("(INJECTED)") || log.contains("killed by SIGKILL"));
                check(&case, &output, &format!("{what} at {call} {n}, {separator:?}"));
                if !hit {
                    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                    break;
                }
                *points.entry(call).or_insert(0) += 1;
            }
        }
    }
    say(&format!("{what}: {points:?}"));
    assert_eq!(points.len(), CALLS.len(), "not every call was hit");
}

#[test]
fn a_kill_at_any_call_leaves_each_chunk_old_or_new() {
    if !has_strace() {
        return;
    }
    at_every_call("signal=SIGKILL", |case, output, what| {
        let killed = output.status.signal() == Some(9);
        assert!(killed || output.status.success(), "{what}: {output:?}");
        let all = case.check(what, killed);
        assert!(all || killed, "{what}: lost");
        if killed {
            // what it has left is in nobody's way
            assert!(case.put(&["-e", "trace=none"], &[]).status.success());
            assert!(case.check(what, true), "{what}: lost");
        }
    });
}

#[test]
fn an_error_at_any_call_is_told_and_leaves_each_chunk_old_or_new() {
    if !has_strace() {
        return;
    }
    for errno in ["EIO", "ENOSPC"] {
        at_every_call(&format!("error={errno}"), |case, output, what| {
            let all = case.check(what, false);
            assert!(all || output.status.code() == Some(1), "{what}: not told: {output:?}");
        });
    }
}

/// When a call returned, in seconds.
fn time(line: &str) -> f64 {
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_chunk_is_on_the_disk_before_it_gets_its_name_and_its_name_when_all_is_done() {
    if !has_strace() {
        return;
    }
    let case = Case::new("/");
    let trace = ["-e", "trace=openat,fdatasync,fsync,renameat"];
    assert!(case.put(&trace, &[]).status.success());
    let (mut renames, mut last_rename, mut last_sync) = (0, 0.0, 0.0);
    for log in case.log() {
        // the file being written, and whether it was synced
        let (mut descriptor, mut synced) = (String::new(), false);
        for line in log.lines() {
            if line.contains("openat(") && line.contains("O_CREAT") {
                (descriptor, synced) = (line.rsplit(" = ").next().unwrap().to_string(), false);
            } else if line.contains(&format!("fdatasync({descriptor})")) {
                synced = line.ends_with("= 0");
            } else if line.contains("renameat(") {
                assert!(synced, "{line}");
                renames += 1;
                last_rename = f64::max(last_rename, time(line));
            } else if line.contains("fsync(") && line.ends_with("= 0") {
                last_sync = f64::max(last_sync, time(line));
            }
        }
    }
    assert_eq!(renames, 24);
    assert!(last_sync > last_rename, "the directories were not synced after the last chunk");

    let case = Case::new(".");
    assert!(case.put(&trace, &["--no-fsync"]).status.success());
    let log = case.log().concat();
    assert!(case.check("--no-fsync", false) && log.contains("renameat(") && !log.contains("sync("));
}
