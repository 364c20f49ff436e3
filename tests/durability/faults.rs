//! EIO and ENOSPC at each system call that stores a chunk. `close` and `fsync` "report what could
//! not be stored. That data waits for the next attempt, and reads continue to see it." Tests
//! compare the mount and the store with a record of all writes.

use crate::support::array::{TestArray, pattern};
use crate::support::daemon::Daemon;
use crate::support::history::{Findings, History};
use crate::support::session::{
    CALLS, Run, Session, assert_every_group_was_interrupted, script, steps_with_calls,
};
use crate::support::tracer;
use crate::support::{announce, close, errno, memory_directory, unfinished_files, unmount};
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The result of a session in which system calls failed.
struct Failed {
    /// Number of steps that returned an error: 1 if the step did during which the calls failed,
    /// else 0.
    told: usize,
    findings: Findings,
}

/// Runs a whole session in which calls fail during one step. Returns `None` if that step makes no
/// such calls.
fn failed(store: &Path, step: usize, calls: &str, fault: &str) -> Option<Failed> {
    let mut run = Run::new(store, ".");
    let mut tracer = Some(run.tracer(calls, &["-e", &format!("inject={calls}:{fault}")]));
    let steps = script(run.session.history.array());
    let mut findings = Findings::default();
    let mut told = 0;
    for (at, next) in steps.iter().enumerate() {
        if at == step
            && let Some(tracer) = tracer.take()
        {
            let tracer = tracer.attach().unwrap();
            told += usize::from(run.session.step(next).is_err());
            // during the fault no accepted write may be missing in the mount, and no acknowledged
            // one in the store
            run.session.assert_reads_what_was_written();
            findings += run.session.history.check();
            if !tracer.detach().contains("(INJECTED)") {
                return None;
            }
            // a program that got an error can try again
            run.session
                .fsync()
                .expect("it is tried again, and nothing is in the way");
        } else {
            run.session.step(next).unwrap();
        }
        run.session.assert_reads_what_was_written();
    }
    run.session.close().unwrap();
    let Run {
        session: Session { history, .. },
        daemon,
        ..
    } = run;
    assert!(daemon.unmount().success());
    findings += history.check();
    assert!(
        history.array().stored_flat().unwrap() == history.array().flat,
        "{}: all of it is stored",
        store.display()
    );
    assert_eq!(unfinished_files(store), [] as [String; 0]);
    Some(Failed { told, findings })
}

/// Runs sessions in which all calls of a group fail during a step, and sessions in which only the
/// `n`-th does, for each group in `which`, step and `n`.
fn every_call_fails(error: &str, which: &[&str]) {
    if !tracer::is_available() {
        return;
    }
    let folder = memory_directory();
    let mut findings = Findings::default();
    let mut points = 0;
    let mut told = 0;
    let mut busy = steps_with_calls(folder.path(), ".");
    busy.retain(|(_, calls)| which.contains(calls));
    let mut disturbed = HashSet::new();
    for &(step, calls) in &busy {
        let mut point = |when: &str| {
            let name = format!("{step}-{}-{when}", calls.replace(['?', ','], ""));
            let store = folder.path().join(name);
            let failed = failed(&store, step, calls, &format!("error={error}:when={when}"));
            let hit = failed.is_some();
            if let Some(failed) = failed {
                findings += failed.findings;
                told += failed.told;
                points += 1;
                disturbed.insert(calls);
            }
            hit
        };
        point("1+");
        for n in 1.. {
            if !point(&n.to_string()) {
                break;
            }
        }
    }
    announce(&format!(
        "{error} at {points} points: {findings}; told {told} times, else tried again unasked"
    ));
    findings.assert_none();
    assert_every_group_was_interrupted(&busy, &disturbed);
}

#[test]
fn an_io_error_at_any_call_loses_nothing() {
    // a failure of opening a file is left out: it makes reads fail as well, which is allowed
    every_call_fails("EIO", &CALLS[1..]);
}

#[test]
fn a_full_disk_at_any_call_loses_nothing() {
    every_call_fails("ENOSPC", &CALLS[1..4]);
}

/// A tmpfs whose size can be changed.
struct SmallDisk {
    directory: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts a tmpfs. Returns `None`, and announces that the test is skipped, if this user cannot
    /// mount one.
    fn new(size: &str) -> Option<SmallDisk> {
        let directory = tempfile::tempdir().unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(directory.path())
            .output();
        match done {
            Ok(output) if output.status.success() => Some(SmallDisk { directory }),
            _ => {
                announce("skipped: mounting a tmpfs takes root");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        assert!(
            Command::new("mount")
                .args(["-o", &options])
                .arg(self.path())
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

const CHUNK: usize = 64 << 10;

/// Writes 32 uncompressed chunks through a daemon that caches 8, to a disk of 1200 KiB with space
/// for 18. The first 8 are stored already. Returns the errors of the writes as well.
fn fill(disk: &SmallDisk) -> (Session, Daemon, Vec<String>) {
    let mut made = TestArray::new(
        disk.path().join("a"),
        &[32 * CHUNK],
        &[CHUNK],
        serde_json::json!({}),
    );
    for chunk in 0..8 {
        made.change(&[chunk], 1);
        made.put(&[chunk]);
    }
    let daemon = Daemon::start(&made.path, &["--cache-size", "512K"]);
    let mut session = Session::new(History::new(made), daemon.path());
    let mut errors = Vec::new();
    for chunk in 0..32 {
        let bytes = pattern(2 + chunk as u64, CHUNK);
        if let Err(e) = session.write(chunk * CHUNK, &bytes) {
            errors.push(errno::<()>(Err(e)));
        }
    }
    (session, daemon, errors)
}

/// Writes fail without any effect once the cache is full of chunks that cannot be stored. When the
/// disk has space again, fsync succeeds and no accepted write is lost.
#[test]
fn a_full_disk_fails_writes_but_loses_nothing() {
    let Some(disk) = SmallDisk::new("1200k") else {
        return;
    };
    let (mut session, daemon, errors) = fill(&disk);
    assert!(
        (1..24).contains(&errors.len()) && errors.iter().all(|e| e == "ENOSPC"),
        "{errors:?}"
    );
    for _ in 0..2 {
        assert_eq!(errno(session.fsync()), "ENOSPC");
    }
    session.assert_reads_what_was_written();
    // a program that only reads gets no error of another program's writes
    assert_eq!(
        errno(close(File::open(daemon.path().join("data.raw")).unwrap())),
        "ok"
    );
    assert_eq!(errno(session.close()), "ENOSPC");
    session.assert_reads_what_was_written();
    let full = session.history.check();
    full.assert_none();
    assert_eq!(unfinished_files(disk.path()), [] as [String; 0]);
    disk.resize("16m");
    session.fsync().expect("there is room");
    let findings = session.history.check();
    findings.assert_none();
    // the writes that were refused succeed now
    let array = session.history.array();
    let refused: Vec<usize> = (0..32)
        .filter(|c| array.flat[c * CHUNK..][..CHUNK] != pattern(2 + *c as u64, CHUNK))
        .collect();
    assert_eq!(refused.len(), errors.len());
    for chunk in refused {
        session
            .write(chunk * CHUNK, &pattern(2 + chunk as u64, CHUNK))
            .unwrap();
    }
    session.close().unwrap();
    assert!(daemon.unmount().success());
    session.history.check().assert_none();
    announce(&format!(
        "a full disk: {} of 32 writes refused; full: {full}; with room again: {findings}",
        errors.len()
    ));
}

/// An unmount that cannot store everything fails and leaves the mount in place. It can be repeated
/// later.
#[test]
fn an_unmount_that_cannot_store_everything_fails() {
    let Some(disk) = SmallDisk::new("1200k") else {
        return;
    };
    let (mut session, daemon, _) = fill(&disk);
    assert_eq!(errno(session.close()), "ENOSPC");
    for _ in 0..2 {
        let output = unmount(daemon.path());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains("No space left on device"),
            "{said}"
        );
        session.assert_reads_what_was_written();
    }
    disk.resize("16m");
    assert!(daemon.unmount().success());
    session.history.acknowledge();
    session.history.check().assert_none();
    assert_eq!(unfinished_files(disk.path()), [] as [String; 0]);
}

/// zarrfs keeps small writes to a file that becomes an array in memory at first. If the disk is full
/// by then, the close returns the error, and no program sees an array. A second copy is stored.
#[test]
fn a_full_spill_directory_is_an_error_of_close() {
    let Some(disk) = SmallDisk::new("300k") else {
        return;
    };
    let store = tempfile::tempdir().unwrap();
    std::fs::write(store.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
    let spill = disk.path().to_str().unwrap();
    let daemon = Daemon::start(store.path(), &["--ingest=npy", "--spill-dir", spill]);
    let items = pattern(1, 400 << 10);
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let form = format!(
        "{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}",
        items.len()
    );
    bytes.extend(format!("{form:117}\n").bytes());
    bytes.extend(&items);
    let path = daemon.path().join("a.npy");
    let copied = || {
        let mut file = File::create(&path)?;
        for piece in bytes.chunks(4 << 10) {
            file.write_all(piece).expect("a small write needs no space");
        }
        close(file)
    };
    assert_eq!(errno(copied()), "ENOSPC");
    assert!(!path.exists() && !store.path().join("a").exists());
    disk.resize("4m");
    copied().unwrap();
    let array = daemon.path().join("a/data.raw");
    assert!(std::fs::read(array).unwrap() == items);
    assert!(daemon.unmount().success());
}
