//! "A chunk is replaced atomically: any reader and any crash sees the old one or the new one"; "an acknowledged write
//! (fsync or close returned 0) is never lost": the daemon is killed at each of its system calls that change the store,
//! and at random moments under load.

mod support;

use rustix::process::{Signal, kill_process};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::daemon::Daemon;
use support::history::{Findings, History};
use support::made::Made;
use support::session::{CALLS, Run, Session, Step, assert_every_kind_was_disturbed, busy_steps, script};
use support::tracer;
use support::{alone, provided, quick_directory, random, say, setting, sha256, unfinished, zarr_python_digests};

/// What was found in the store of a daemon that was killed.
struct Stopped {
    findings: Findings,
    /// Of the flat bytes, by this test's own reader.
    digest: String,
    store: PathBuf,
}

/// The session up to a step, in which the daemon is killed before the n-th of these calls that a thread makes. None if
/// there are not so many.
fn stopped(store: PathBuf, separator: &str, step: usize, calls: &str, n: usize) -> Option<Stopped> {
    let mut run = Run::new(&store, separator);
    let tracer = run.tracer(calls, &["-e", &format!("inject={calls}:signal=SIGKILL:when={n}")]);
    let steps = script(run.session.history.array());
    for step in &steps[..step] {
        run.session.step(step).unwrap();
    }
    let (done, log) = run.traced(&steps[step], tracer);
    run.daemon.kill();
    if !log.contains("+++ killed by SIGKILL +++") {
        done.unwrap_or_else(|e| panic!("step {step}, {calls} {n}: {e}\n{log}"));
        return None;
    }
    let digest = sha256(&run.session.history.array().stored_flat().unwrap_or_default());
    Some(Stopped { findings: run.session.history.check(), digest, store })
}

/// Every point at which the daemon can be stopped.
fn every_stop_point(separator: &str) {
    let _alone = alone();
    if !tracer::is_offered() {
        return;
    }
    let folder = quick_directory();
    let (mut findings, mut left, mut points) = (Findings::default(), 0, Vec::new());
    let busy = busy_steps(folder.path(), separator);
    let mut disturbed = HashSet::new();
    for &(step, calls) in &busy {
        for n in 1.. {
            let store = folder.path().join(format!("{step}-{}-{n}", calls.replace(['?', ','], "")));
            let Some(point) = stopped(store, separator, step, calls, n) else { break };
            findings += point.findings.clone();
            left += unfinished(&point.store).len();
            points.push(point);
            disturbed.insert(calls);
        }
    }
    let count = points.len();
    say(&format!("{count} stop points, chunk keys joined by {separator:?}: {findings}, {left} unfinished files left"));
    findings.assert_none();
    assert_every_kind_was_disturbed(&busy, &disturbed);
    compare_with_zarr_python(&points);
}

/// What zarr-python reads is what this test's own reader reads.
fn compare_with_zarr_python(points: &[Stopped]) {
    let Some(python) = provided("ZARRFS_TEST_PYTHON") else { return };
    let stores: Vec<&Path> = points.iter().map(|p| p.store.as_path()).collect();
    let theirs = zarr_python_digests(&python, &stores);
    let ours: Vec<&str> = points.iter().map(|p| p.digest.as_str()).collect();
    assert_eq!(theirs, ours, "{stores:?}");
}

#[test]
fn killed_at_every_call() {
    every_stop_point(".");
}

#[test]
fn killed_at_every_call_with_a_directory_for_each_row_of_chunks() {
    every_stop_point("/");
}

/// Files renamed in a log of strace, and those of them whose bytes were not on stable storage before.
fn renames(log: &str) -> (usize, Vec<String>) {
    let (mut total, mut unsynced) = (0, Vec::new());
    // by thread, what it is syncing; and what is synced
    let (mut syncing, mut synced) = (HashMap::new(), HashSet::new());
    for line in log.lines() {
        let (thread, call) = line.split_once(' ').unwrap_or_default();
        let call = call.trim_start();
        if call.starts_with("rename") {
            total += 1;
            if !call.split('"').nth(1).is_some_and(|from| synced.contains(name(from))) {
                unsynced.push(line.to_string());
            }
        } else if call.starts_with("fdatasync(") {
            syncing.insert(thread, name(call.split(['<', '>']).nth(1).unwrap_or_default()));
        }
        let ended = call.starts_with("fdatasync(") || call.starts_with("<... fdatasync resumed>");
        if ended && call.ends_with(" = 0") {
            synced.extend(syncing.remove(thread));
        }
    }
    (total, unsynced)
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// "temp in the same directory -> write -> fdatasync -> rename": on XFS and ext4 a file that is renamed before its bytes
/// are on the disk can be empty after a power cut.
#[test]
fn no_file_is_renamed_before_it_is_on_stable_storage() {
    let _alone = alone();
    if !tracer::is_offered() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(&folder.path().join("store"), ".");
    let calls = [CALLS[2], CALLS[3]].join(",");
    let tracer = run.tracer(&calls, &[]).attach().unwrap();
    for step in &script(run.session.history.array()) {
        run.session.step(step).unwrap();
    }
    let (total, unsynced) = renames(&tracer.detach());
    say(&format!("{total} renames, {} of them before an fdatasync", unsynced.len()));
    let chunks = run.session.history.array().grid().len();
    assert!(total >= chunks, "the session, which writes to all {chunks} chunks, stores too little");
    assert!(unsynced.is_empty(), "{}", unsynced.join("\n"));
}

#[test]
fn a_rename_before_its_fdatasync_is_noticed() {
    let log = r#"17  fdatasync(9</s/a/.zarrfs-5-1>) = 0
18  renameat(7</s/a>, ".zarrfs-5-1", 7</s/a>, "0.0") = 0
18  renameat(7</s/a>, ".zarrfs-5-2", 7</s/a>, "0.1") = 0
17  fdatasync(9</s/a/.zarrfs-5-2>) = 0
17  fdatasync(9</s/a/.zarrfs-5-3>) = -1 EIO (Input/output error)
17  rename("/s/a/.zarrfs-5-3", "/s/a/0.2") = 0
17  fdatasync(9</s/a/.zarrfs-5-4> <unfinished ...>
18  renameat(7</s/a>, ".zarrfs-5-4", 7</s/a>, "1.0" <unfinished ...>
17  <... fdatasync resumed>) = 0
17  renameat(7</s/a>, ".zarrfs-5-4", 7</s/a>, "1.0") = 0"#;
    let (total, unsynced) = renames(log);
    assert_eq!((total, unsynced.len()), (5, 3), "{unsynced:?}");
}

/// One round of writing until the daemon is killed, some time from now.
fn killed_under_load(seed: u64) -> (Findings, usize) {
    const CHUNK: usize = 4096;
    const CHUNKS: usize = 24;
    let mut random = random(seed);
    let store = quick_directory();
    let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
    let made = Made::new(store.path().join("a"), &[CHUNKS * CHUNK], &[CHUNK], zlib);
    let daemon = Daemon::start(&made.path, &["--cache-size", "32K"]);
    let mut session = Session::new(History::new(made), daemon.path());
    let (pid, delay) = (daemon.pid(), Duration::from_micros(5_000 + random(150_000) as u64));
    let killer = std::thread::spawn(move || {
        std::thread::sleep(delay);
        let _ = kill_process(pid, Signal::KILL);
    });
    let mut writes = 0;
    loop {
        let at = random(CHUNKS * CHUNK);
        let (at, len) = match random(5) {
            0 => (at / CHUNK * CHUNK, CHUNK),
            _ => (at, 1 + random(CHUNK - at % CHUNK)),
        };
        writes += 1;
        let byte = random(256) as u8;
        if session.write(at, &vec![byte; len]).is_err() || random(10) == 0 && session.fsync().is_err() {
            break;
        }
    }
    killer.join().unwrap();
    (session.history.check(), writes)
}

/// ZARRFS_KILLS rounds from ZARRFS_SEED on.
#[test]
fn killed_at_random_under_load() {
    let _alone = alone();
    let (kills, seed) = (setting("ZARRFS_KILLS", 100), setting("ZARRFS_SEED", 1));
    let (mut findings, mut writes) = (Findings::default(), 0);
    for seed in seed..seed + kills {
        let (found, written) = killed_under_load(seed);
        assert!(found.torn + found.lost == 0, "seed {seed}: {}", found.faults.join("\n"));
        findings += found;
        writes += written;
    }
    say(&format!("{kills} random kills, seeds from {seed}, {writes} writes: {findings}"));
    findings.assert_none();
}

/// "At unmount, SIGTERM, SIGINT, SIGHUP: everything is flushed and synced": also what was written to a file that is still
/// open, when a second signal ends the mount.
#[test]
fn signals_have_everything_stored() {
    let _alone = alone();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let folder = quick_directory();
        let mut run = Run::new(&folder.path().join("store"), ".");
        for step in &script(run.session.history.array()) {
            if let Step::Write(..) = step {
                run.session.step(step).unwrap();
            }
        }
        kill_process(run.daemon.pid(), signal).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        // gone by now, if it ends although the file is open
        let _ = kill_process(run.daemon.pid(), signal);
        run.daemon.wait();
        run.session.history.acknowledge();
        run.session.history.check().assert_none();
    }
}

/// The check has teeth: it tells a torn chunk and a lost write from what may be found.
#[test]
fn torn_and_lost_chunks_are_noticed() {
    let store = tempfile::tempdir().unwrap();
    let made = Made::full(store.path().join("a"), &[8], &[2], json!({"compressor": {"id": "zlib", "level": 1}}));
    let mut history = History::new(made);
    history.check().assert_none();
    history.write(1, &[101, 102]);
    history.check().assert_none();
    history.acknowledge();
    let found = history.check();
    assert_eq!((found.checked, found.torn, found.lost), (4, 0, 2), "{found}");
    // the first of the two chunks is stored, with a later write to it that is not acknowledged
    history.write(0, &[100]);
    history.array().put(&[0]);
    let found = history.check();
    assert_eq!((found.torn, found.lost), (0, 1), "{found}");
    history.array().put(&[1]);
    history.check().assert_none();
    // half a file, none, and bytes of nobody
    let file = history.array().file(&[3]);
    let whole = std::fs::read(&file).unwrap();
    for torn in [&whole[..whole.len() / 2], b"", b"nobody's"] {
        std::fs::write(&file, torn).unwrap();
        let found = history.check();
        assert_eq!((found.torn, found.lost), (1, 0), "{found}");
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(history.check().torn, 1);
}
