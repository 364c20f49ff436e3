//! "Mounting and unmounting go through directories that are held open, so a path that is swapped
//! meanwhile leads nowhere else." The tests swap directories while strace delays the system call
//! that mounts or unmounts, and look in the kernel's mount table. "No thread of a daemon ever
//! enters a FUSE file system that it serves": strace shows which names it opens, and a daemon that
//! is killed when its mount appears ends at once.

use crate::support;
use crate::support::{
    ZARRFS, answered, env_number, is_mounted, random, test_data, text, tracer, unmount, wait_for,
    zarrfs,
};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds by which strace delays a call, long enough to rename a directory. A busy machine may
/// need more than the first.
const HELD: [u32; 3] = [3, 15, 60];

/// A zarrfs that strace delays at the entry of a system call.
struct HeldUp {
    strace: Child,
    /// The numbers of the calls.
    calls: Vec<i64>,
}

impl HeldUp {
    /// Starts zarrfs and waits until it is about to make one of the calls, or is past it, and has
    /// ended or mounted.
    fn at(
        calls: &[(&str, i64)],
        seconds: u32,
        args: &[&str],
        has_mounted: impl Fn() -> bool,
    ) -> HeldUp {
        let names = calls
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(",");
        let delay = format!("inject={names}:delay_enter={seconds}000000");
        let strace = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", &format!("trace={names}")])
            .args(["-e", &delay, ZARRFS])
            .args(args)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let calls = calls.iter().map(|(_, number)| *number).collect();
        let mut held = HeldUp { strace, calls };
        wait_for("the call", || {
            held.is_waiting() || held.has_ended() || has_mounted()
        });
        held
    }

    /// Returns whether zarrfs is still about to make one of the calls.
    fn is_waiting(&self) -> bool {
        // the process that holds the mount, and its daemon
        let first = children(&self.strace.id().to_string());
        let second: Vec<String> = first.iter().flat_map(|pid| children(pid)).collect();
        first.iter().chain(&second).any(|pid| {
            let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            let number = call.split(' ').next().and_then(|n| n.parse::<i64>().ok());
            number.is_some_and(|number| self.calls.contains(&number))
        })
    }

    fn has_ended(&mut self) -> bool {
        self.strace.try_wait().unwrap().is_some()
    }

    /// Waits for the end of zarrfs. Returns whether it succeeded.
    fn ends_well(mut self) -> bool {
        self.strace.wait().unwrap().success()
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        // strace detaches, and zarrfs continues
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// Returns the processes that a process of one thread has started.
fn children(pid: &str) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().map(str::to_string).collect()
}

/// Creates a directory with subdirectories of these names.
fn place(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = fs::canonicalize(folder.path()).unwrap();
    names
        .iter()
        .for_each(|name| fs::create_dir_all(path.join(name)).unwrap());
    (folder, path)
}

/// Returns whether this user can mount without fusermount3 and attach strace.
fn is_available() -> bool {
    rustix::process::getuid().is_root() && tracer::is_available()
}

#[test]
fn a_mount_stays_on_the_checked_directory_even_if_a_link_takes_its_path() {
    if !is_available() {
        return;
    }
    for auto in [false, true] {
        let mut delays = HELD.into_iter();
        assert!(delays.any(|seconds| stays_on_the_checked_directory(auto, seconds)));
    }
}

/// Returns false if the directories were swapped too late.
fn stays_on_the_checked_directory(auto: bool, seconds: u32) -> bool {
    let (_folder, path) = place(&["elsewhere/mnt"]);
    let mountpoint = path.join("a/mnt");
    let elsewhere = path.join("elsewhere/mnt");
    let moved = path.join("moved/mnt");
    let sample = test_data("sample.zarr");
    let mut args = vec!["mount", "--foreground", text(&sample), text(&mountpoint)];
    if auto {
        args.push("--auto-mountpoint")
    } else {
        fs::create_dir_all(&mountpoint).unwrap()
    }
    let calls = [
        ("mount", libc::SYS_mount),
        ("move_mount", libc::SYS_move_mount),
    ];
    let mut daemon = HeldUp::at(&calls, seconds, &args, || is_mounted(&mountpoint));
    if daemon.is_waiting() {
        fs::rename(path.join("a"), path.join("moved")).unwrap();
        symlink("elsewhere", path.join("a")).unwrap();
    }
    if !daemon.is_waiting() {
        let places = [&mountpoint, &moved, &elsewhere];
        wait_for("the mount", || {
            daemon.has_ended() || places.iter().any(|place| is_mounted(place))
        });
        for mounted in places.into_iter().filter(|place| is_mounted(place)) {
            let _ = zarrfs(&["umount", "--lazy", text(mounted)]);
        }
        daemon.ends_well();
        return false;
    }
    wait_for("the mount", || is_mounted(&moved) || is_mounted(&elsewhere));
    assert!(is_mounted(&moved) && !is_mounted(&elsewhere));
    wait_for("an answer", || {
        fs::read(moved.join("lat/data.raw")).is_ok_and(|bytes| bytes.len() == 148)
    });
    assert!(unmount(&moved).status.success());
    assert!(daemon.ends_well());
    assert_eq!(
        moved.exists(),
        !auto,
        "what was made is removed, wherever it is"
    );
    assert!(elsewhere.is_dir());
    true
}

#[test]
fn an_unmount_removes_the_checked_mount_even_if_another_takes_its_path() {
    if !is_available() {
        return;
    }
    assert!(HELD.into_iter().any(removes_the_checked_mount));
}

/// Returns false if the directories were swapped too late.
fn removes_the_checked_mount(seconds: u32) -> bool {
    let (_folder, path) = place(&["a/mnt", "b/mnt"]);
    let sample = test_data("sample.zarr");
    for name in ["a/mnt", "b/mnt"] {
        assert!(
            zarrfs(&["mount", text(&sample), text(&path.join(name))])
                .status
                .success()
        );
    }
    let umount = HeldUp::at(
        &[("umount2", libc::SYS_umount2)],
        seconds,
        &["umount", text(&path.join("a/mnt"))],
        || false,
    );
    if umount.is_waiting() {
        fs::rename(path.join("a"), path.join("moved")).unwrap();
        symlink("b", path.join("a")).unwrap();
    }
    let is_in_time = umount.is_waiting();
    let is_done = umount.ends_well();
    let moved = is_mounted(&path.join("moved/mnt"));
    let other = is_mounted(&path.join("b/mnt"));
    for name in ["a/mnt", "moved/mnt", "b/mnt"] {
        let _ = zarrfs(&["umount", "--lazy", text(&path.join(name))]);
    }
    assert!(!is_in_time || is_done && !moved && other);
    is_in_time
}

/// A daemon unmounts its mount even if a directory above it was renamed meanwhile.
#[test]
fn a_mount_below_a_renamed_directory_can_be_unmounted() {
    let (_folder, path) = place(&["a/mnt"]);
    let sample = test_data("sample.zarr");
    let mountpoint = path.join("a/mnt");
    let mut daemon = Command::new(ZARRFS)
        .args(["mount", "--foreground", text(&sample), text(&mountpoint)])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the mount", || {
        is_mounted(&mountpoint) && mountpoint.join("lat/data.raw").exists()
    });
    fs::rename(path.join("a"), path.join("b")).unwrap();
    let pid = rustix::process::Pid::from_raw(daemon.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
    assert!(!is_mounted(&path.join("b/mnt")));
}

/// A thread that waits for an answer of its own process can't be killed, and the mount would hang
/// for ever.
#[test]
fn no_thread_of_a_daemon_enters_its_own_mount() {
    if !is_available() {
        return;
    }
    let (_folder, path) = place(&["own-mountpoint", "spill"]);
    support::copy_tree(&test_data("sample.zarr"), &path.join("store.zarr"));
    let mountpoint = path.join("own-mountpoint");
    let log = path.join("calls");
    for more in [
        &["--read-only"][..],
        &[
            "--log-level=debug",
            "--log-file=log",
            "--overlay=overlay",
            "--spill-dir=spill",
        ],
    ] {
        let mut daemon = Command::new("strace")
            .args([
                "-f",
                "-y",
                "-s",
                "4096",
                "-e",
                "signal=none",
                "-e",
                "trace=%file,getdents64,fstatfs",
                "-o",
            ])
            .arg(&log)
            .args([ZARRFS, "mount", "--foreground", "--idle-timeout=1h"])
            .args(more)
            .args(["store.zarr", "own-mountpoint"])
            .current_dir(&path)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the mount", || {
            is_mounted(&mountpoint) && mountpoint.join("lat/data.raw").exists()
        });
        let data = mountpoint.join("air_temperature/data.raw");
        let first = fs::read(&data).unwrap();
        if more[0] != "--read-only" {
            assert_eq!(support::overwrite(&data, 0, &first[..99]), "ok");
        }
        let asked = answered(|| zarrfs(&["stats", text(&mountpoint)]));
        assert!(asked.status.success());
        assert!(unmount(&mountpoint).status.success());
        assert!(daemon.wait().unwrap().success());
        let calls = fs::read_to_string(&log).unwrap();
        let mounted = calls
            .lines()
            .position(|line| line.contains("move_mount("))
            .expect("it mounts");
        let after: Vec<&str> = calls.lines().skip(mounted + 1).collect();
        assert!(
            after.iter().any(|line| line.contains("mountinfo")) && after.len() > 100,
            "strace saw too little"
        );
        let entering = after
            .iter()
            .filter(|line| line.contains("own-mountpoint") && !line.contains("umount2("));
        // the log and the mount table name it, and the kernel tells the number of a mount by itself
        let apart = [" write(", " read(", "AT_STATX_DONT_SYNC"];
        let entering = entering.filter(|line| !apart.iter().any(|part| line.contains(part)));
        assert_eq!(entering.collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}

/// The process that is killed.
#[derive(Clone, Copy, Debug)]
enum Killed {
    /// A daemon that no other process would replace.
    DaemonAlone,
    /// A daemon that has not begun to serve is not replaced.
    Daemon,
    /// The process that holds the mount: its daemon unmounts.
    Holder,
}

/// Kills a process when its mount appears, and fails unless the mount ends.
fn kill_when_mounted(path: &Path, killed_process: Killed, pause: Duration) {
    let mountpoint = path.join("mnt");
    let alone = match killed_process {
        Killed::DaemonAlone => &["--no-outlive"][..],
        Killed::Daemon | Killed::Holder => &["--restarts", "0"],
    };
    let mut daemon = Command::new(ZARRFS)
        .args(["mount", "--foreground"])
        .args(alone)
        .args([text(&test_data("sample.zarr")), text(&mountpoint)])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !is_mounted(&mountpoint) {
        assert!(
            begun.elapsed() < Duration::from_secs(120) && daemon.try_wait().unwrap().is_none(),
            "no mount"
        );
    }
    std::thread::sleep(pause);
    let first = rustix::process::Pid::from_raw(daemon.id() as i32).unwrap();
    let victim = match killed_process {
        Killed::Daemon => support::daemon::daemon_of(first),
        Killed::DaemonAlone | Killed::Holder => first,
    };
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).unwrap();
    let killed = Instant::now();
    while daemon.try_wait().unwrap().is_none() {
        if killed.elapsed() > Duration::from_secs(120) {
            let _ = zarrfs(&["umount", "--force", text(&mountpoint)]);
            panic!("{killed_process:?} could not be killed {pause:?} after its mount appeared");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Killed::Holder = killed_process {
        wait_for("the unmount", || !is_mounted(&mountpoint));
    } else {
        let ended = unmount(&mountpoint);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.success(),
            "{killed_process:?} {pause:?}: {said}"
        );
    }
}

/// Returns whether a mount shows a store. The directory below it is empty.
fn is_served(mountpoint: &Path) -> bool {
    fs::read_dir(mountpoint).is_ok_and(|mut entries| entries.next().is_some())
}

/// The kernel gives the identifier and the device number of a mount that has ended to the next one.
#[test]
fn a_daemon_that_ends_late_leaves_the_next_mount_at_its_place() {
    let (_folder, path) = place(&["mnt"]);
    let mountpoint = path.join("mnt");
    for option in ["--restarts=2", "--no-outlive", "--sandbox=off"] {
        let mount = || {
            let store = test_data("sample.zarr");
            let mut daemon = Command::new(ZARRFS);
            daemon.args([
                "mount",
                "--foreground",
                option,
                text(&store),
                text(&mountpoint),
            ]);
            let daemon = daemon.stdin(Stdio::null()).spawn().unwrap();
            wait_for("the mount", || is_served(&mountpoint));
            daemon
        };
        let mut first = mount();
        let holder = rustix::process::Pid::from_raw(first.id() as i32).unwrap();
        let stopped = match option {
            "--no-outlive" => holder,
            _ => support::daemon::daemon_of(holder),
        };
        rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
        // --lazy asks the daemon for nothing
        assert!(
            zarrfs(&["umount", "--lazy", text(&mountpoint)])
                .status
                .success()
        );
        let mut second = mount();
        rustix::process::kill_process(stopped, rustix::process::Signal::CONT).unwrap();
        assert!(first.wait().unwrap().success());
        assert!(is_served(&mountpoint), "{option}: unmounted");
        assert!(unmount(&mountpoint).status.success());
        assert!(second.wait().unwrap().success());
    }
}

#[test]
fn a_daemon_that_is_killed_when_its_mount_appears_ends() {
    let (_folder, path) = place(&["mnt"]);
    let kills = env_number("ZARRFS_START_KILLS", 40);
    let mut random = random(env_number("ZARRFS_SEED", 1));
    for kill in 0..kills as usize {
        let killed = [Killed::DaemonAlone, Killed::Daemon, Killed::Holder][kill % 3];
        kill_when_mounted(&path, killed, Duration::from_micros(random(2_000) as u64));
    }
    let mountpoint = path.join("mnt");
    assert!(
        zarrfs(&["mount", text(&test_data("sample.zarr")), text(&mountpoint)])
            .status
            .success()
    );
    assert!(mountpoint.join("lat/data.raw").exists());
    assert!(unmount(&mountpoint).status.success());
}

/// A thread of the daemon makes the kernel drop pages, and waits for a read of them, which waits
/// for the store.
#[test]
fn a_daemon_whose_thread_waits_for_a_page_can_be_killed() {
    if !is_available() {
        return;
    }
    let (_folder, path) = place(&["store/a"]);
    let array =
        support::array::TestArray::with_chunks(path.join("store/a"), &[65536], &[16384], json!({}));
    let mut daemon = support::daemon::Daemon::start(&path.join("store"), &["--no-outlive"]);
    let minor = rustix::fs::minor(std::os::unix::fs::MetadataExt::dev(
        &fs::metadata(daemon.path()).unwrap(),
    ));
    if !Path::new(&format!("/sys/fs/fuse/connections/{minor}/abort")).exists() {
        println!("skipped: fusectl is not mounted");
        return;
    }
    let data = daemon.path().join("a/data.raw");
    let mut strace = Command::new("strace")
        .args([
            "-f",
            "-o",
            "/dev/null",
            "-P",
            "a/3",
            "-e",
            "trace=openat2",
            "-p",
            &daemon.pid().as_raw_nonzero().to_string(),
        ])
        .args(["-e", "inject=openat2:delay_enter=600000000"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // returns whether the state of a thread of the daemon is so by a file in /proc
    let is_any = |name: &str, is_so: &dyn Fn(&str) -> bool| {
        let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid().as_raw_nonzero()))
            .unwrap()
            .flatten();
        let mut states =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join(name)).ok());
        states.any(|state| is_so(&state))
    };
    let traced = format!("TracerPid:\t{}\n", strace.id());
    wait_for("strace", || {
        !is_any("status", &|state| !state.contains(&traced))
    });
    // one read of all chunks, of which the last is delayed
    let reader = std::thread::spawn(move || fs::read(data));
    // strace stops threads for a moment at the calls, too, that it does not delay
    let call = format!("{} ", libc::SYS_openat2);
    let mut since: Option<Instant> = None;
    wait_for("the delayed call", || {
        let is_delayed = is_any("syscall", &|state| state.starts_with(&call));
        since = is_delayed.then(|| since.unwrap_or_else(Instant::now));
        since.is_some_and(|since| since.elapsed() > Duration::from_millis(300))
    });
    let chunk = daemon.path().join("a/0");
    let bytes = vec![7; array.chunk_size()];
    let writer = std::thread::spawn(move || fs::write(chunk, bytes));
    wait_for("the notification", || {
        is_any("stack", &|state| state.contains("fuse_reverse_inval_inode"))
    });
    let _ = rustix::process::kill_process(daemon.pid(), rustix::process::Signal::KILL);
    std::thread::sleep(Duration::from_millis(300));
    let _ = strace.kill();
    strace.wait().unwrap();
    daemon.kill();
    assert!(reader.join().unwrap().is_err());
    let _ = writer.join().unwrap();
}
