//! A request that waits, for a lock of another process or for the store, delays no request that needs neither. Each test
//! stops something for good and then uses another array of the same mount.

mod support;

use rustix::fs::{FlockOperation, fcntl_lock};
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use support::daemon::Daemon;
use support::made::{Made, pattern};
use support::{close, wait_for};

/// How long a probe may take on a machine that is busy with other things. What the tests stop, they stop for longer.
const PROBE: Duration = Duration::from_secs(20);

/// More requests than there are session threads and workers at first.
const MANY: usize = 40;

/// The array that is stopped and the array that is probed.
fn store(path: &Path) -> (Made, Made) {
    let more = || json!({"compressor": {"id": "zlib", "level": 1}});
    let made = |name: &str| Made::full(path.join(name), &[100_000], &[10_000], more());
    (made("stopped"), made("other"))
}

/// Uses an array as a program does: lists it, looks at it, reads it, writes to it and makes a file beside it. `round`
/// makes what is written differ from what was there.
fn use_array(directory: &Path, made: &mut Made, round: u64) {
    assert!(fs::read_dir(directory).unwrap().any(|entry| entry.unwrap().file_name() == "data.raw"));
    assert_eq!(fs::read(directory.join("data.raw")).unwrap(), made.flat);
    assert_eq!(fs::metadata(directory.join("3")).unwrap().len(), 10_000);
    let part = pattern(round + 2, 25_000);
    let file = File::options().write(true).open(directory.join("data.raw")).unwrap();
    file.write_all_at(&part, 5_000).unwrap();
    close(file).unwrap();
    made.flat[5_000..30_000].copy_from_slice(&part);
    let note = directory.join(format!("note-{round}"));
    fs::write(&note, "text").unwrap();
    assert_eq!(fs::read(&note).unwrap(), b"text");
}

/// Fails, and ends the mount, unless [`use_array`] returns in time.
fn probe(daemon: &mut Daemon, made: Made, round: u64, what: &str) -> Made {
    let (done, wait) = channel();
    let directory = daemon.path().join("other");
    std::thread::spawn(move || {
        let mut made = made;
        use_array(&directory, &mut made, round);
        let _ = done.send(made);
    });
    wait.recv_timeout(PROBE).unwrap_or_else(|_| {
        daemon.kill();
        panic!("{what}: another array can't be used");
    })
}

/// Takes the lock file of a key as zarr-python does.
fn take_lock(locks: &Path, key: &str) -> File {
    let path = locks.join(key);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::options().append(true).create(true).open(path).unwrap();
    fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

fn write_and_close(path: &Path, offset: u64, data: &[u8]) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(data, offset)?;
    close(file)
}

#[test]
fn closes_that_wait_for_a_lock_leave_other_arrays_alone() {
    let (directory, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut stopped, other) = store(directory.path());
    let mut daemon = Daemon::start(directory.path(), &["--no-fsync", "--synchronizer", locks.path().to_str().unwrap()]);
    let held = take_lock(locks.path(), "stopped/0");
    let (flat, begun) = (daemon.path().join("stopped/data.raw"), channel());
    let closers: Vec<JoinHandle<_>> = (0..MANY)
        .map(|i| {
            let (path, begun) = (flat.clone(), begun.0.clone());
            std::thread::spawn(move || {
                begun.send(()).unwrap();
                write_and_close(&path, i as u64 * 100, &[i as u8; 100])
            })
        })
        .collect();
    begun.1.iter().take(MANY).for_each(drop);
    let other = probe(&mut daemon, other, 0, "closes wait for a lock");
    // by now they have come as far as they can
    probe(&mut daemon, other, 1, "closes wait for a lock");
    assert!(closers.iter().all(|closer| !closer.is_finished()));
    drop(held);
    closers.into_iter().for_each(|closer| closer.join().unwrap().unwrap());
    (0..MANY).for_each(|i| stopped.flat[i * 100..][..100].fill(i as u8));
    wait_for("what was closed to be stored", || stopped.stored_flat().unwrap() == stopped.flat);
    assert!(daemon.unmount().success());
}

#[test]
fn a_close_that_waits_for_a_lock_ends_and_keeps_what_was_written() {
    let (directory, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut stopped, _) = store(directory.path());
    let locks_option = ["--no-fsync", "--lock-timeout", "300ms", "--synchronizer", locks.path().to_str().unwrap()];
    let daemon = Daemon::start(directory.path(), &locks_option);
    let flat = daemon.path().join("stopped/data.raw");
    let held = take_lock(locks.path(), "stopped/0");
    let closed = write_and_close(&flat, 10, &[7; 10]).unwrap_err();
    assert_eq!(closed.raw_os_error(), Some(libc::EIO));
    let stats = fs::read_to_string(daemon.path().join(".zarrfs/stats")).unwrap();
    let holder = format!("process {} (", std::process::id());
    assert!(stats.lines().any(|line| line.contains("stopped/0") && line.contains(&holder)), "{stats}");
    // a shared lock delays the exclusive one as well, and needs the right to read alone
    fcntl_lock(&held, FlockOperation::Unlock).unwrap();
    let reader = File::open(locks.path().join("stopped/0")).unwrap();
    fcntl_lock(&reader, FlockOperation::LockShared).unwrap();
    let file = File::options().write(true).open(&flat).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    stopped.flat[10..20].fill(7);
    assert_eq!(fs::read(&flat).unwrap(), stopped.flat, "what could not be stored stays readable");
    fcntl_lock(&reader, FlockOperation::Unlock).unwrap();
    file.sync_all().unwrap();
    assert_eq!(stopped.stored_flat().unwrap(), stopped.flat);
    drop(file);
    assert!(daemon.unmount().success());
}
