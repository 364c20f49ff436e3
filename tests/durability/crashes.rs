//! "A chunk is replaced atomically. Readers and crashes see the old chunk or the new one, never a
//! mixture." "A write that `fsync` or `close` acknowledged is never lost." Tests kill the daemon at
//! each system call that changes the store, and at random moments under load. They compare the
//! store with a record of all writes, and their reading of the store with zarr-python's.

use crate::support;
use crate::support::array::TestArray;
use crate::support::daemon::Daemon;
use crate::support::history::{Findings, History};
use crate::support::session::{
    CALLS, Run, Session, Step, assert_every_group_was_interrupted, script, steps_with_calls,
};
use crate::support::tracer;
use crate::support::{
    announce, close, env_number, env_path, memory_directory, open_for_writing, overwrite, random,
    sha256, unfinished_files, wait_for, zarr_python_digests, zarrfs,
};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A store that a killed daemon has left, and its torn and lost chunks.
struct Stopped {
    findings: Findings,
    /// SHA-256 of the flat bytes as the test's own reader reads them.
    digest: String,
    store: PathBuf,
}

/// Runs the session up to a step in which strace kills the daemon before a thread's `n`-th call of
/// a group. Returns `None` if no thread makes that many calls.
fn stopped(store: PathBuf, separator: &str, step: usize, calls: &str, n: usize) -> Option<Stopped> {
    let mut run = Run::new(&store, separator);
    let tracer = run.tracer(
        calls,
        &["-e", &format!("inject={calls}:signal=SIGKILL:when={n}")],
    );
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
    let digest = sha256(
        &run.session
            .history
            .array()
            .stored_flat()
            .unwrap_or_default(),
    );
    Some(Stopped {
        findings: run.session.history.check(),
        digest,
        store,
    })
}

/// Kills the daemon at every `stride`th of all calls, each time in a new session, and checks the
/// store.
fn every_stop_point(separator: &str, stride: usize) {
    if !tracer::is_available() {
        return;
    }
    let folder = memory_directory();
    let mut findings = Findings::default();
    let mut left = 0;
    let mut points = Vec::new();
    let busy = steps_with_calls(folder.path(), separator);
    let mut disturbed = HashSet::new();
    for &(step, calls) in &busy {
        for n in (1..).step_by(stride) {
            let store = folder
                .path()
                .join(format!("{step}-{}-{n}", calls.replace(['?', ','], "")));
            let Some(point) = stopped(store, separator, step, calls, n) else {
                break;
            };
            findings += point.findings.clone();
            left += unfinished_files(&point.store).len();
            points.push(point);
            disturbed.insert(calls);
        }
    }
    let count = points.len();
    announce(&format!(
        "{count} stop points, chunk keys joined by {separator:?}: {findings}, {left} unfinished files left"
    ));
    findings.assert_none();
    assert_every_group_was_interrupted(&busy, &disturbed);
    compare_with_zarr_python(&points);
}

/// Checks that zarr-python reads the same bytes as the test's own reader.
fn compare_with_zarr_python(points: &[Stopped]) {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let stores: Vec<&Path> = points.iter().map(|p| p.store.as_path()).collect();
    let theirs = zarr_python_digests(&python, &stores);
    let ours: Vec<&str> = points.iter().map(|p| p.digest.as_str()).collect();
    assert_eq!(theirs, ours, "{stores:?}");
}

#[test]
fn a_kill_at_any_call_tears_and_loses_nothing() {
    every_stop_point(".", 1);
}

/// Only the names of the files differ: scripts/soak stops at every call.
#[test]
fn a_kill_at_any_call_tears_and_loses_nothing_with_nested_chunk_keys() {
    every_stop_point("/", env_number("ZARRFS_STOP_STRIDE", 3) as usize);
}

/// Returns the number of renames in a log of strace, and the files that were renamed before their
/// bytes were synced.
fn renames(log: &str) -> (usize, Vec<String>) {
    let mut total = 0;
    let mut unsynced = Vec::new();
    // the file that each thread is syncing, and the synced files
    let mut syncing = HashMap::new();
    let mut synced = HashSet::new();
    for line in log.lines() {
        let (thread, call) = line.split_once(' ').unwrap_or_default();
        let call = call.trim_start();
        if call.starts_with("rename") {
            total += 1;
            if !call
                .split('"')
                .nth(1)
                .is_some_and(|from| synced.contains(name(from)))
            {
                unsynced.push(line.to_string());
            }
        } else if call.starts_with("fdatasync(") {
            syncing.insert(
                thread,
                name(call.split(['<', '>']).nth(1).unwrap_or_default()),
            );
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

/// Without an fdatasync before the rename, a file can be empty after a power cut on XFS and ext4.
#[test]
fn every_file_is_synced_before_it_is_renamed() {
    if !tracer::is_available() {
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
    announce(&format!(
        "{total} renames, {} of them before an fdatasync",
        unsynced.len()
    ));
    let chunks = run.session.history.array().grid().len();
    assert!(
        total >= chunks,
        "the session, which writes to all {chunks} chunks, stores too little"
    );
    assert!(unsynced.is_empty(), "{}", unsynced.join("\n"));
}

#[test]
fn a_rename_before_its_fdatasync_is_detected() {
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

/// Writes until the daemon is killed at a random moment. Returns the findings and the number of
/// writes.
fn killed_under_load(seed: u64) -> (Findings, usize) {
    const CHUNK: usize = 4096;
    const CHUNKS: usize = 24;
    let mut random = random(seed);
    let store = memory_directory();
    let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
    let made = TestArray::new(store.path().join("a"), &[CHUNKS * CHUNK], &[CHUNK], zlib);
    let daemon = Daemon::start(&made.path, &["--cache-size", "32K", "--no-outlive"]);
    let mut session = Session::new(History::new(made), daemon.path());
    let pid = daemon.pid();
    let delay = Duration::from_micros(5_000 + random(150_000) as u64);
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
        if session.write(at, &vec![byte; len]).is_err()
            || random(10) == 0 && session.fsync().is_err()
        {
            break;
        }
    }
    killer.join().unwrap();
    (session.history.check(), writes)
}

/// Runs ZARRFS_KILLS rounds, with seeds from ZARRFS_SEED on.
#[test]
fn a_kill_at_a_random_moment_tears_and_loses_nothing() {
    let kills = env_number("ZARRFS_KILLS", 100);
    let seed = env_number("ZARRFS_SEED", 1);
    let mut findings = Findings::default();
    let mut writes = 0;
    for seed in seed..seed + kills {
        let (found, written) = killed_under_load(seed);
        assert!(
            found.torn + found.lost == 0,
            "seed {seed}: {}",
            found.faults.join("\n")
        );
        findings += found;
        writes += written;
    }
    announce(&format!(
        "{kills} random kills, seeds from {seed}, {writes} writes: {findings}"
    ));
    findings.assert_none();
}

/// "SIGTERM and SIGINT unmount as well; while files are open, the daemon ends with the last of them
/// or at the second signal." All written data is stored, also of a file that is still open.
#[test]
fn signals_store_all_written_data() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = memory_directory();
        let mut run = Run::new(&folder.path().join("store"), ".");
        for step in &script(run.session.history.array()) {
            if let Step::Write(..) = step {
                run.session.step(step).unwrap();
            }
        }
        kill_process(run.daemon.pid(), signal).unwrap();
        wait_for("the first signal to be taken", || {
            run.daemon.log().contains("in use")
        });
        // the second signal ends the daemon although `data.raw` is open
        let _ = kill_process(run.daemon.pid(), signal);
        run.daemon.wait();
        run.session.history.acknowledge();
        run.session.history.check().assert_none();
    }
}

/// A temporary file of a killed daemon goes with the next mount that may write, and no other does.
#[test]
fn temporary_files_of_processes_that_are_gone_are_removed() {
    let folder = memory_directory();
    let store = folder.path().join("s");
    TestArray::with_chunks(store.join("g/a"), &[8], &[2], json!({}));
    std::fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let mut daemon = Daemon::start(&store, &["--no-outlive"]);
    let array = store.join("g/a");
    // strace kills the daemon before it renames the file that it has written
    let data = daemon.path().join("g/a/data.raw");
    let tracer = tracer::Tracer::prepare(
        daemon.pid(),
        CALLS[3],
        &["-e", &format!("inject={}:signal=SIGKILL", CALLS[3])],
        &folder.path().join("log"),
    );
    if !tracer::is_available() {
        return;
    }
    let tracer = tracer.attach().unwrap();
    assert_ne!(overwrite(&data, 0, &[1; 2]), "ok");
    tracer.wait();
    daemon.kill();
    drop(daemon);
    let left = unfinished_files(&store);
    assert_eq!(left.len(), 1, "{left:?}");
    // this process has written the first file, and a process of another system the others
    let name = left[0].rsplit('/').next().unwrap().to_string();
    let namespace = name.rsplit('-').next().unwrap();
    let kept = [
        format!(".zarrfs-{}-0-{namespace}", std::process::id()),
        ".zarrfs-1-0-00000000".into(),
        ".zarrfs-1-0".into(),
    ];
    kept.iter()
        .for_each(|name| std::fs::write(array.join(name), "x").unwrap());
    for args in [
        &["--read-only"][..],
        &["--overlay", folder.path().join("o").to_str().unwrap()],
    ] {
        let daemon = Daemon::start(&store, args);
        assert!(!support::names(&daemon.path().join("g/a")).contains(&name));
        std::thread::sleep(Duration::from_millis(200));
        assert!(array.join(&name).exists(), "{args:?}");
    }
    let daemon = Daemon::start(&store, &[]);
    wait_for("the removal", || !array.join(&name).exists());
    assert!(daemon.unmount().success());
    assert!(kept.iter().all(|name| array.join(name).exists()));
}

/// The rows that one program writes, each with one byte at a time.
struct Rows {
    range: std::ops::Range<usize>,
    /// For each row the byte that is stored, and those of later writes, which may be stored.
    bytes: Vec<Vec<u8>>,
}

const ROWS: usize = 64;
const ROW: usize = 1024;
const PROGRAMS: usize = 8;

impl Rows {
    /// Writes rows until the daemon is gone, and reads what other programs write. Returns the
    /// number of writes.
    fn write_until_killed(&mut self, data: &Path, seed: u64) -> usize {
        let mut random = random(seed);
        let mut writes = 0;
        while let Ok(file) = std::fs::File::options().read(true).write(true).open(data) {
            let mut written = Vec::new();
            for _ in 0..1 + random(4) {
                let row = random(self.bytes.len());
                let next = self.bytes[row]
                    .last()
                    .map_or(1, |byte| byte.wrapping_add(1));
                self.bytes[row].push(next);
                writes += 1;
                let at = (self.range.start + row) * ROW;
                if file.write_all_at(&[next; ROW], at as u64).is_err() {
                    return writes;
                }
                written.push(row);
                let _ = file.read_at(&mut [0; 2 * ROW], (random(ROWS - 2) * ROW) as u64);
            }
            let stored = if random(2) == 0 {
                file.sync_all()
            } else {
                Ok(())
            };
            if stored.and_then(|()| close(file)).is_err() {
                return writes;
            }
            for row in written {
                let last = self.bytes[row].pop().into_iter().collect();
                self.bytes[row] = last;
            }
        }
        writes
    }

    /// Checks that the mount shows the stored bytes or later ones, and takes them for stored.
    fn check(&mut self, data: &std::fs::File) {
        for (row, bytes) in self.range.clone().zip(&mut self.bytes) {
            let mut shown = [0; ROW];
            data.read_exact_at(&mut shown, (row * ROW) as u64).unwrap();
            let allowed = if bytes.is_empty() {
                vec![0]
            } else {
                bytes.clone()
            };
            assert!(
                shown.iter().all(|byte| allowed.contains(byte)),
                "row {row}: {shown:?}, not of {allowed:?}"
            );
            // a row crosses chunks, which may be of different writes: one byte is stored from now
            // on
            *bytes = vec![shown[0]];
            let now = [shown[0]; ROW];
            data.write_all_at(&now, (row * ROW) as u64).unwrap();
        }
    }
}

/// Kills daemons while several programs write and read, and mounts again at once. Runs
/// ZARRFS_LOAD_KILLS rounds.
#[test]
fn a_daemon_that_is_killed_under_load_loses_nothing_and_ends() {
    let folder = memory_directory();
    let kills = env_number("ZARRFS_LOAD_KILLS", 6);
    let seed = env_number("ZARRFS_SEED", 1);
    let mut random_delay = random(seed);
    let overlay = folder.path().join("changes");
    let shards = ["--zarr-format", "3", "--shards", "16,512"];
    let kinds: [(&str, &[&str], &[&str]); 3] = [
        ("v2", &[], &[]),
        ("shards", &shards, &[]),
        ("lower", &[], &["--overlay", overlay.to_str().unwrap()]),
    ];
    let mut writes = 0;
    for (kind, (name, create, mount)) in kinds.iter().enumerate() {
        let store = folder.path().join(name);
        std::fs::create_dir(&store).unwrap();
        let array = store.join("a");
        let shape = format!("{ROWS},{ROW}");
        let chunks = "8,256";
        let args = [
            "create",
            array.to_str().unwrap(),
            "--shape",
            &shape,
            "--chunks",
            chunks,
            "--dtype",
            "u1",
        ];
        let output = zarrfs(&[&args[..], create].concat());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let each = ROWS / PROGRAMS;
        let mut rows: Vec<Rows> = (0..PROGRAMS)
            .map(|n| Rows {
                range: n * each..(n + 1) * each,
                bytes: vec![Vec::new(); each],
            })
            .collect();
        for round in (0..kills).filter(|round| *round as usize % kinds.len() == kind) {
            let mut daemon = Daemon::start(
                &store,
                &[&["--cache-size", "128K", "--no-outlive"], *mount].concat(),
            );
            let data = daemon.path().join("a/data.raw");
            let file = open_for_writing(&data);
            rows.iter_mut().for_each(|rows| rows.check(&file));
            close(file).unwrap();
            let written: usize = std::thread::scope(|scope| {
                let programs: Vec<_> = rows
                    .iter_mut()
                    .zip(1..)
                    .map(|(rows, n)| {
                        scope.spawn({
                            let data = &data;
                            move || rows.write_until_killed(data, seed + round * 100 + n)
                        })
                    })
                    .collect();
                std::thread::sleep(Duration::from_micros(5_000 + random_delay(300_000) as u64));
                daemon.kill();
                programs
                    .into_iter()
                    .map(|program| program.join().unwrap())
                    .sum()
            });
            writes += written;
        }
        let daemon = Daemon::start(&store, mount);
        let file = open_for_writing(&daemon.path().join("a/data.raw"));
        rows.iter_mut().for_each(|rows| rows.check(&file));
        close(file).unwrap();
        assert!(daemon.unmount().success());
    }
    announce(&format!(
        "{kills} kills under {PROGRAMS} programs, seed {seed}, {writes} writes"
    ));
}

/// Tests the check of a history: it must tell torn chunks and lost writes from valid contents.
#[test]
fn torn_and_lost_chunks_are_detected() {
    let store = tempfile::tempdir().unwrap();
    let made = TestArray::with_chunks(
        store.path().join("a"),
        &[8],
        &[2],
        json!({"compressor": {"id": "zlib", "level": 1}}),
    );
    let mut history = History::new(made);
    history.check().assert_none();
    history.write(1, &[101, 102]);
    history.check().assert_none();
    history.acknowledge();
    let found = history.check();
    assert_eq!(
        (found.checked, found.torn, found.lost),
        (4, 0, 2),
        "{found}"
    );
    // the first of the two chunks is stored with a later write that is not acknowledged
    history.write(0, &[100]);
    history.array().put(&[0]);
    let found = history.check();
    assert_eq!((found.torn, found.lost), (0, 1), "{found}");
    history.array().put(&[1]);
    history.check().assert_none();
    // half of a file, an empty file, and bytes of no write
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
