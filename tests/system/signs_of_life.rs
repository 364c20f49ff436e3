//! What operators see of mounts, also of those that hang or whose daemon was killed, and how they
//! end them: `zarrfs stats` without a mountpoint, `zarrfs umount --force`, the level of the log.
//! Other mounts of the machine may be in the list: tests look at their own lines.

use crate::support::array::{TestArray, zlib};
use crate::support::daemon::Daemon;
use crate::support::faulty_server::{Fault, FaultyServer};
use crate::support::{
    Mount, ZARRFS, answered, copy_tree, is_mounted, test_data, text, wait_for, with_timeout, zarrfs,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A stopped daemon, which continues when this value is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(daemon: &Daemon) -> Stopped {
        kill_process(daemon.pid(), Signal::STOP).unwrap();
        Stopped(daemon.pid())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Runs zarrfs, which is killed after two minutes.
fn zarrfs_in_time(args: &[&str]) -> Output {
    with_timeout(120, ZARRFS).args(args).output().unwrap()
}

/// Returns what `zarrfs stats --json` lists at a mountpoint, and the exit code.
#[track_caller]
fn listed(mountpoint: &Path) -> (Vec<Value>, i32) {
    let output = zarrfs_in_time(&["stats", "--json"]);
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let path = fs::canonicalize(mountpoint.parent().unwrap())
        .unwrap()
        .join(mountpoint.file_name().unwrap());
    let own = list.into_iter().filter(|mount| {
        mount["mountpoint"]
            .as_str()
            .is_some_and(|m| Path::new(m) == path)
    });
    (own.collect(), output.status.code().unwrap())
}

/// Asks until no daemon of the answer hangs: a busy machine may leave a daemon that is not stopped
/// no time to answer.
#[track_caller]
fn in_time<T>(ask: impl Fn() -> T, hangs: impl Fn(&T) -> bool) -> T {
    let mut answer = ask();
    wait_for("the daemons to answer", || {
        let is_late = hangs(&answer);
        if is_late {
            answer = ask();
        }
        !is_late
    });
    answer
}

/// Returns what [`listed`] does once every daemon of the mountpoint has answered or has ended.
#[track_caller]
fn listed_in_time(mountpoint: &Path) -> (Vec<Value>, i32) {
    in_time(
        || listed(mountpoint),
        |(own, _)| own.iter().any(|mount| mount["state"] == "hangs"),
    )
}

/// Returns what [`line_of`] does once the daemon of the mountpoint has answered or has ended.
#[track_caller]
fn line_in_time(mountpoint: &Path) -> String {
    in_time(|| line_of(mountpoint), |line| line.contains(" hangs "))
}

/// Returns the line of a mountpoint in the list of `zarrfs stats`.
#[track_caller]
fn line_of(mountpoint: &Path) -> String {
    let output = zarrfs_in_time(&["stats"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let start = format!("{} ", mountpoint.display());
    let mut lines = text.lines().filter(|line| line.starts_with(&start));
    let line = lines.next().unwrap_or_else(|| panic!("{text}"));
    assert_eq!(lines.next(), None, "{text}");
    line.to_string()
}

/// Returns the guard of a daemon; `None` where the control files of the kernel are not mounted.
fn guard_of(daemon: Pid) -> Option<Pid> {
    let parent = format!("PPid:\t{}", daemon.as_raw_nonzero());
    let found = fs::read_dir("/proc").unwrap().flatten().find(|process| {
        let read = |name: &str| fs::read_to_string(process.path().join(name)).unwrap_or_default();
        read("comm").trim_end() == "zarrfs-guard" && read("status").lines().any(|l| l == parent)
    });
    let guard =
        found.and_then(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?));
    if guard.is_none() {
        println!("skipped: /sys/fs/fuse/connections is not mounted, so there are no guards");
    }
    guard
}

#[test]
fn stats_lists_a_mount_with_its_store_process_options_and_latest_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("sample.zarr");
    copy_tree(&test_data("sample.zarr"), &store);
    fs::write(store.join("lat/0"), "damage").unwrap();
    let mount = Mount::new(&store, &["-o", "cache_size=100M", "--log-level", "error"]);
    assert!(fs::read(mount.join("lat/data.raw")).is_err());
    // a program that this process starts would close a copy of its files, which stores the data
    let mut writer = Command::new("dd")
        .args(["bs=4", "conv=notrunc", "status=none"])
        .arg(format!(
            "of={}",
            mount.join("air_temperature/data.raw").display()
        ))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    input.write_all(b"data").unwrap();
    wait_for("the write", || mount.counter("bytes_accepted") == 4);
    let (own, _) = listed_in_time(mount.path());
    let [own] = own.as_slice() else {
        panic!("{own:?}")
    };
    assert_eq!(own["state"], "ok");
    assert_eq!(own["store"], text(&fs::canonicalize(&store).unwrap()));
    assert_eq!(own["pid"], mount.counter("pid"));
    assert_eq!(own["uid"], rustix::process::getuid().as_raw());
    let stats = &own["stats"];
    assert!(stats["dirty_bytes"].as_u64().unwrap() > 0, "{own}");
    assert!(
        stats["last_error"].as_str().unwrap().contains("/lat/0: "),
        "{own}"
    );
    assert_eq!(stats["options"], "cache-size=100M,log-level=error");
    let line = line_in_time(mount.path());
    assert!(
        line.contains(" rw,cache-size=100M,log-level=error "),
        "{line}"
    );
    assert!(
        line.contains(" ok ") && line.contains("Z /lat/0: "),
        "{line}"
    );
    drop(input);
    writer.wait().unwrap();
}

/// "A mount that hangs is listed as such": and so is one whose daemon was killed.
#[test]
fn stats_lists_mounts_that_hang_or_have_no_daemon() {
    let hung = [(); 3].map(|()| Daemon::start(&test_data("sample.zarr"), &[]));
    let mut dead = Daemon::start(&test_data("sample.zarr"), &[]);
    dead.kill();
    let stopped = hung.each_ref().map(Stopped::new);
    for daemon in &hung {
        let (own, code) = listed(&daemon.path());
        assert_eq!((own.len(), code), (1, 1), "{own:?}");
        assert_eq!(own[0]["state"], "hangs");
        if guard_of(daemon.pid()).is_some() {
            assert_eq!(own[0]["pid"], daemon.pid().as_raw_nonzero().get());
        }
        assert!(
            own[0]["error"]
                .as_str()
                .unwrap()
                .contains("zarrfs umount --force"),
            "{own:?}"
        );
    }
    let (own, code) = listed_in_time(&dead.path());
    assert_eq!((own[0]["state"].as_str(), code), (Some("ended"), 1));
    assert!(line_in_time(&dead.path()).ends_with(&format!(
        " its daemon has ended; run zarrfs umount {}",
        dead.path().display()
    )));
    drop(stopped);
    for daemon in &hung {
        // the daemon takes the requests of commands that have ended
        let (own, _) = listed_in_time(&daemon.path());
        assert_eq!(own[0]["state"], "ok");
    }
}

/// A mountpoint with spaces and control characters stays one line, and a mount below another one is
/// not taken for it.
#[test]
fn stats_lists_names_that_a_terminal_would_obey_and_covered_mounts() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let odd = directory.path().join("a b\n\u{1b}[31mc");
    fs::create_dir(&odd).unwrap();
    let daemon = Daemon::start(&test_data("sample.zarr"), &[]);
    let over = Daemon::start(&test_data("sample.zarr"), &["--read-only"]);
    let bind = |from: &Path, to: &Path| {
        let done = Command::new("mount")
            .arg("--bind")
            .args([from, to])
            .status();
        assert!(done.unwrap().success());
    };
    bind(&daemon.path(), &odd);
    bind(&over.path(), &daemon.path());
    let (at_odd, _) = listed_in_time(&odd);
    let (at_mount, _) = listed_in_time(&daemon.path());
    let line = zarrfs_in_time(&["stats"]).stdout;
    for path in [&odd, &daemon.path()] {
        assert!(
            Command::new("umount")
                // lists of other tests may have a file open
                .arg("-il")
                .arg(path)
                .status()
                .unwrap()
                .success()
        );
    }
    assert_eq!(at_odd.len(), 1);
    assert_eq!(at_odd[0]["pid"], daemon.pid().as_raw_nonzero().get());
    let states: Vec<_> = at_mount
        .iter()
        .map(|m| m["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["covered", "ok"]);
    assert_eq!(at_mount[1]["pid"], over.pid().as_raw_nonzero().get());
    let lines = String::from_utf8(line).unwrap();
    let shown = directory.path().join("a b\\n\\u001b[31mc");
    assert!(
        lines.lines().any(|l| l.starts_with(text(&shown))),
        "{lines}"
    );
}

/// Commands whose argument lies in a mount that hangs, or that has no daemon, end with its name.
#[test]
fn no_command_waits_for_a_mount_that_hangs() {
    let mut daemon = Daemon::start(&test_data("sample.zarr"), &[]);
    let directory = tempfile::tempdir().unwrap();
    let mnt = daemon.path();
    let array = mnt.join("lat");
    let root = text(&mnt);
    let array = text(&array);
    let other = text(directory.path());
    let commands: [&[&str]; 15] = [
        &["stats", root],
        &["stats", "--prometheus", array],
        &["info", root],
        &["info", "--map", array],
        &["ls", array],
        &["check", root],
        &["cat", array],
        &["put", array],
        &["header", array],
        &["header", "--format", "npy", array],
        &["consolidate", root],
        &["migrate", root],
        &["overlay", "diff", array],
        &["mount", root, other],
        &["mount", other, array],
    ];
    // each command waits for seconds, so all of them run at the same time
    let assert_all_fail = |commands: &[&[&str]], code: i32, why: &str| {
        let assert_fails = |command: &[&str]| {
            let run = || zarrfs_in_time(command);
            let output = if code == 1 { run() } else { answered(run) };
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{command:?}: {message}");
            assert!(message.contains(why), "{command:?}: {message}");
            assert_eq!(message.lines().count(), 1, "{command:?}: {message}");
        };
        let assert_fails = &assert_fails;
        std::thread::scope(|scope| {
            for command in commands {
                scope.spawn(move || assert_fails(command));
            }
        });
    };
    let stopped = Stopped::new(&daemon);
    assert_all_fail(&commands, 1, "does not answer");
    assert_all_fail(&[&["umount", root]], 1, "does not answer");
    drop(stopped);
    daemon.kill();
    let why = format!("its daemon has ended; run zarrfs umount {root}\n");
    assert_all_fail(&commands, 7, &why);
}

/// "If only the server of the store hangs, `zarrfs stats` answers", although the kernel asks for the
/// root first.
#[test]
fn stats_answers_while_the_server_of_the_store_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    TestArray::with_chunks(folder.path().join("a"), &[1000], &[1000], zlib());
    let server = FaultyServer::new(folder.path());
    let daemon = Daemon::start(Path::new(&server.url("a")), &["--timeout", "10m"]);
    server.set_all(Fault::Stall);
    // the kernel and the daemon keep attributes for a second
    std::thread::sleep(Duration::from_millis(2500));
    let output = answered(|| zarrfs_in_time(&["stats", text(&daemon.path())]));
    assert!(output.status.success(), "{output:?}");
    let (own, _) = listed_in_time(&daemon.path());
    assert!(
        ["ok", "failing"].contains(&own[0]["state"].as_str().unwrap()),
        "{own:?}"
    );
}

/// Returns whether a thread of a process waits in the kernel where no signal reaches it.
fn waits_uninterruptibly(process: Pid) -> bool {
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    fs::read_dir(threads).unwrap().flatten().any(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:\tD"))
    })
}

/// A daemon that waits for the answer of another one can't even be killed, but its mount can be
/// ended.
#[test]
fn a_forced_unmount_ends_the_mount_of_a_daemon_that_can_not_be_killed() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    TestArray::with_chunks(folder.path().join("a"), &[1000], &[1000], zlib());
    let server = FaultyServer::new(folder.path());
    server.set("a/0", Fault::Stall);
    let below = Daemon::start(Path::new(&server.url("a")), &["--timeout", "10m"]);
    let mut above = Daemon::start(&below.path(), &["--read-only", "--no-outlive"]);
    let file = above.path().join("data.raw");
    let reader = std::thread::spawn(move || fs::read(file).is_err());
    let asked = || {
        ["HEAD", "GET"]
            .iter()
            .any(|method| server.count(method, "a/0") > 0)
    };
    wait_for("the request", asked);
    kill_process(above.pid(), Signal::KILL).unwrap();
    wait_for("a thread that ignores the signal", || {
        waits_uninterruptibly(above.pid())
    });
    let output = zarrfs_in_time(&["umount", "--force", text(&above.path())]);
    assert!(output.status.success(), "{output:?}");
    assert!(!is_mounted(&above.path()) && is_mounted(&below.path()));
    assert!(reader.join().unwrap(), "the read has failed");
    let output = zarrfs_in_time(&["umount", "--force", text(&below.path())]);
    assert!(output.status.success(), "{output:?}");
    // its request has failed, so that it ends
    above.wait();
}

/// "SIGUSR1 raises the level of the log by one step, and SIGUSR2 lowers it": in any mount, and no
/// signal of those that operators send to all processes of zarrfs ends the guard.
#[test]
fn signals_change_the_level_of_the_log() {
    let daemon = Daemon::start(&test_data("sample.zarr"), &["--read-only"]);
    let stats = || fs::read_to_string(daemon.path().join(".zarrfs/stats")).unwrap();
    let has_level = |level: &str| stats().contains(&format!("\nlog_level            {level}\n"));
    let read = || drop(fs::read(daemon.path().join("lat/data.raw")).unwrap());
    let requests = || daemon.log().matches("/lat/data.raw").count();
    assert!(has_level("warn"), "{}", stats());
    read();
    assert_eq!(requests(), 0);
    for (signal, level) in [
        (Signal::USR1, "info"),
        (Signal::USR1, "debug"),
        (Signal::USR1, "trace"),
        (Signal::USR1, "trace"),
        (Signal::USR2, "debug"),
    ] {
        kill_process(daemon.pid(), signal).unwrap();
        wait_for(level, || has_level(level));
    }
    read();
    wait_for("a line of a request", || requests() > 0);
    for level in ["info", "warn", "error", "off"] {
        kill_process(daemon.pid(), Signal::USR2).unwrap();
        wait_for(level, || has_level(level));
    }
    let before = daemon.log();
    assert!(
        before.contains("log level debug\n") && before.contains("log level warn\n"),
        "{before}"
    );
    read();
    assert_eq!(daemon.log(), before);
    let Some(guard) = guard_of(daemon.pid()) else {
        return;
    };
    for signal in [Signal::USR2, Signal::USR1, Signal::HUP, Signal::TERM] {
        kill_process(guard, signal).unwrap();
    }
    // a guard that took them for the end of the daemon would end with the mount
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(guard_of(daemon.pid()), Some(guard));
    read();
}

#[test]
fn the_version_states_what_the_program_was_built_of() {
    let [short, long] = ["-V", "--version"].map(|option| zarrfs(&[option]));
    assert_eq!(short.stdout, long.stdout);
    let text = String::from_utf8(long.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let version = format!("zarrfs {}", env!("CARGO_PKG_VERSION"));
    assert_eq!((lines.len(), lines[0]), (4, version.as_str()), "{text}");
    let feature = if cfg!(feature = "remote") {
        "features   remote"
    } else {
        "features   none"
    };
    assert!(lines[1].starts_with("build      commit "), "{text}");
    assert!(lines[2].starts_with(feature), "{text}");
    assert!(
        lines[3].contains("Landlock") && lines[3].contains("seccomp"),
        "{text}"
    );
    let mount = Mount::new(&test_data("sample.zarr"), &[]);
    let stats = mount.stats();
    for line in &lines[1..] {
        let (name, value) = line.split_once(' ').unwrap();
        let value = value.trim();
        assert!(
            stats.contains(&format!("\n{name:<20} {value}\n")),
            "{stats}"
        );
    }
}
