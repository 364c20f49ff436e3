//! "A write that `fsync` or `close` acknowledged is never lost" and "a chunk is replaced
//! atomically", here for `fsync` and power cuts. The store has its own file system, which is shut
//! down during writes, as if its disk had disappeared, and mounted again. Then the stored chunks
//! are compared with the history of the writes. scripts/soak runs these tests; they need root and
//! loop devices.

use crate::outlive;
use crate::support;
use crate::support::array::TestArray;
use crate::support::daemon::Daemon;
use crate::support::history::{Findings, History};
use crate::support::session::Session;
use crate::support::{announce, close, env_number, open_for_writing, random, with_timeout};
use serde_json::json;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const CHUNK: usize = 4096;
const CHUNKS: usize = 24;

/// Runs a system program on a path.
fn run(program: &str, args: &[&str], path: &Path) -> Output {
    with_timeout(60, program)
        .args(args)
        .arg(path)
        .output()
        .unwrap()
}

#[track_caller]
fn must(program: &str, args: &[&str], path: &Path) {
    let output = run(program, args, path);
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A file system in a file, mounted through a loop device until this value is dropped.
struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    /// Creates and mounts an empty file system.
    fn new(kind: &str) -> Disk {
        let disk = Disk {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::File::create(disk.image())
            .unwrap()
            .set_len(320 << 20)
            .unwrap();
        let force = if kind == "ext4" { "-F" } else { "-f" };
        must(&format!("mkfs.{kind}"), &["-q", force], &disk.image());
        std::fs::create_dir(disk.path()).unwrap();
        disk.mount();
        disk
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Returns the mountpoint.
    fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn mount(&self) {
        must(
            "mount",
            &["-o", "loop", self.image().to_str().unwrap()],
            &self.path(),
        );
    }

    /// Unmounts and mounts the file system, so that the kernel has no page of it in memory, as
    /// after a reboot.
    fn restart(&self) {
        let begun = Instant::now();
        // the last thread of the killed daemon may still be ending
        while !run("umount", &[], &self.path()).status.success() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "the file system stays busy"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &["-l"], &self.path());
    }
}

/// Cuts the power at a random moment of writing. Returns the findings and the number of successful
/// calls of fsync.
fn cut(kind: &str, seed: u64) -> (Findings, usize) {
    let mut random = random(seed);
    let disk = Disk::new(kind);
    let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
    let array = TestArray::new(
        disk.path().join("store/a"),
        &[CHUNKS * CHUNK],
        &[CHUNK],
        zlib,
    );
    must("sync", &["-f"], &disk.path());
    let mut daemon = Daemon::start(&array.path, &["--cache-size", "32K"]);
    let mut session = Session::new(History::new(array), daemon.path());
    let delay = Duration::from_millis(50 + random(1000) as u64);
    let path = disk.path();
    let cutter = std::thread::spawn(move || {
        std::thread::sleep(delay);
        // shut down without writing anything more, not even the log
        must("xfs_io", &["-x", "-c", "shutdown"], &path);
    });
    let mut syncs = 0;
    loop {
        let at = random(CHUNKS * CHUNK);
        let len = 1 + random(CHUNK - at % CHUNK);
        if session.write(at, &vec![random(256) as u8; len]).is_err() {
            break;
        }
        if random(6) == 0 {
            if session.fsync().is_err() {
                break;
            }
            syncs += 1;
        }
    }
    cutter.join().unwrap();
    let Session { history, .. } = session;
    daemon.kill();
    drop(daemon);
    disk.restart();
    (history.check(), syncs)
}

/// Returns how often the power is cut, which ZARRFS_POWER_CUTS sets.
fn cuts(kind: &str) -> u64 {
    let cuts = env_number("ZARRFS_POWER_CUTS", 0);
    if cuts == 0 {
        announce("skipped: ZARRFS_POWER_CUTS is not set; scripts/soak sets it");
        return 0;
    }
    let programs = ["xfs_io", "losetup", &format!("mkfs.{kind}")];
    let loops = Command::new("losetup")
        .arg("--find")
        .output()
        .is_ok_and(|found| found.status.success());
    if !programs
        .iter()
        .all(|program| support::is_installed(program))
        || !loops
    {
        announce("skipped: no free loop device");
        return 0;
    }
    cuts
}

/// Cuts the power repeatedly, with seeds from ZARRFS_SEED on.
fn power_cuts(kind: &str) {
    let cuts = cuts(kind);
    if cuts == 0 {
        return;
    }
    let seed = env_number("ZARRFS_SEED", 1);
    let mut findings = Findings::default();
    let mut syncs = 0;
    for seed in seed..seed + cuts {
        let (found, synced) = cut(kind, seed);
        assert!(
            found.torn + found.lost == 0,
            "{kind}, seed {seed}: {}",
            found.faults.join("\n")
        );
        findings += found;
        syncs += synced;
    }
    announce(&format!(
        "{cuts} power cuts on {kind}, seeds from {seed}, {syncs} times fsync: {findings}"
    ));
    findings.assert_none();
    assert!(
        syncs > 0,
        "nothing was acknowledged before the power was cut"
    );
}

#[test]
fn power_cuts_on_ext4_tear_and_lose_nothing() {
    power_cuts("ext4");
}

#[test]
fn power_cuts_on_xfs_tear_and_lose_nothing() {
    power_cuts("xfs");
}

/// A daemon that is killed has not synced the directories of the chunks that it has stored.
#[test]
fn fsync_covers_chunks_that_a_killed_daemon_has_stored() {
    for _ in 0..cuts("ext4") {
        let disk = Disk::new("ext4");
        let path = disk.path().join("store/a");
        let array = TestArray::new(path, &[CHUNKS * CHUNK], &[CHUNK], json!({}));
        must("sync", &["-f"], &disk.path());
        let mut daemon = Daemon::start(&array.path, &[]);
        let data = daemon.path().join("data.raw");
        let writer = open_for_writing(&data);
        writer.write_all_at(&[7; CHUNK], 0).unwrap();
        close(writer).unwrap();
        outlive::kill(&daemon);
        open_for_writing(&data).sync_all().unwrap();
        must("xfs_io", &["-x", "-c", "shutdown"], &disk.path());
        daemon.kill();
        drop(daemon);
        disk.restart();
        assert!(array.stored_flat().unwrap()[..CHUNK] == [7; CHUNK]);
    }
}
