//! Signals and limits of resources (setrlimit(2)), as the table in docs/architecture/cli.md states
//! them: no written byte is lost at a signal that a process can catch, and no acknowledged one at a
//! limit.

use crate::support::array::{TestArray, pattern};
use crate::support::daemon::Daemon;
use crate::support::faulty_server::FaultyServer;
use crate::support::history::History;
use crate::support::session::Session;
use crate::support::{
    ZARRFS, announce, close, errno, memory_directory, unfinished_files, unmount, wait_for,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Signals that ask a mount to end.
const ENDING: [i32; 6] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPWR,
];

/// Signals that leave a mount as it is, beside those for real time; SIGXCPU has it store everything.
const OTHERS: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGIO,
    libc::SIGPROF,
    libc::SIGSTKFLT,
    libc::SIGXFSZ,
    libc::SIGXCPU,
];

/// Signals that state a fault of the program, that no process can catch, or that end no process.
const EXEMPT: [i32; 16] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGURG,
    libc::SIGWINCH,
];

/// Signals that leave a mount as it is.
fn others() -> impl Iterator<Item = i32> {
    let for_real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    OTHERS.into_iter().chain(for_real_time)
}

/// Size of a chunk in bytes.
const CHUNK: usize = 64 << 10;

/// Number of chunks.
const CHUNKS: usize = 8;

/// A limit of file sizes below that of a chunk.
const FILE_LIMIT: u64 = 4096;

fn send(process: Pid, signal: i32) {
    // SAFETY: the call takes numbers alone.
    assert_eq!(
        unsafe { libc::kill(process.as_raw_nonzero().get(), signal) },
        0,
        "{signal}"
    );
}

fn array(folder: &Path) -> TestArray {
    TestArray::new(folder.join("a"), &[CHUNKS * CHUNK], &[CHUNK], json!({}))
}

/// Starts a session of a daemon that `command` runs.
fn session(folder: &Path, command: Command, args: &[&str]) -> (Session, Daemon) {
    let made = array(folder);
    let daemon = Daemon::with_command(command, &made.path, args);
    let session = Session::new(History::new(made), daemon.path());
    (session, daemon)
}

/// Returns the command that runs zarrfs with a limit, an option of prlimit(1).
fn limited(limit: &str) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(limit).arg(ZARRFS);
    command
}

/// Returns the children of a process by name.
fn children(process: Pid, name: &str) -> Vec<Pid> {
    let process = process.as_raw_nonzero();
    let path = format!("/proc/{process}/task/{process}/children");
    let numbers = fs::read_to_string(path).unwrap_or_default();
    let numbers = numbers.split_whitespace().filter_map(|n| n.parse().ok());
    numbers
        .filter(|pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
        })
        .filter_map(Pid::from_raw)
        .collect()
}

/// Returns the guard of a daemon, which gets its name after it has started.
#[track_caller]
fn guard_of(daemon: Pid) -> Pid {
    let mut guards = Vec::new();
    wait_for("the guard", || {
        guards = children(daemon, "zarrfs-guard");
        !guards.is_empty()
    });
    let [guard] = guards[..] else {
        panic!("a daemon has one guard");
    };
    guard
}

#[test]
fn each_signal_has_an_effect_here() {
    let all: Vec<i32> = ENDING.into_iter().chain(OTHERS).chain(EXEMPT).collect();
    // glibc keeps the two before the first for real time
    for signal in 1..32 {
        let count = all.iter().filter(|known| **known == signal).count();
        assert_eq!(count, 1, "signal {signal}");
    }
}

#[test]
fn signals_that_ask_for_an_end_store_everything() {
    for signal in ENDING {
        let folder = memory_directory();
        let (mut session, mut daemon) = session(folder.path(), Command::new(ZARRFS), &[]);
        session.write(100, &pattern(2, 2 * CHUNK)).unwrap();
        send(daemon.pid(), signal);
        wait_for("the mount to be detached", || {
            daemon.log().contains("in use")
        });
        session.write(CHUNK, &pattern(3, CHUNK)).unwrap();
        session.close().unwrap();
        let status = daemon.wait().unwrap();
        assert!(status.success(), "signal {signal}: {status}");
        session.history.check().assert_none();
    }
}

#[test]
fn other_signals_leave_a_mount_as_it_is() {
    let folder = memory_directory();
    let (mut session, daemon) = session(folder.path(), Command::new(ZARRFS), &[]);
    session.write(100, &pattern(2, 2 * CHUNK)).unwrap();
    for signal in others().filter(|signal| *signal != libc::SIGXCPU) {
        send(daemon.pid(), signal);
        session.write(CHUNK, &pattern(3, 100)).unwrap();
    }
    let guard = guard_of(daemon.pid());
    for signal in others().chain(ENDING) {
        send(guard, signal);
        session.assert_reads_what_was_written();
    }
    assert_eq!(children(daemon.pid(), "zarrfs-guard"), [guard]);
    // the file is open, and neither closed nor synced
    send(daemon.pid(), libc::SIGXCPU);
    wait_for("the chunks to be stored", || {
        let stored = session.history.array().stored_flat();
        stored.is_ok_and(|stored| stored == session.history.array().flat)
    });
    session.write(CHUNK, &pattern(4, CHUNK)).unwrap();
    session.close().unwrap();
    assert!(daemon.unmount().success());
    session.history.check().assert_none();
}

/// A guard that was sent signals still ends the connection of a daemon that is killed.
#[test]
fn a_guard_does_its_work_after_signals() {
    let folder = memory_directory();
    let (mut session, mut daemon) = session(folder.path(), Command::new(ZARRFS), &[]);
    session.write(0, &pattern(2, CHUNK)).unwrap();
    let guard = guard_of(daemon.pid());
    for signal in others().chain(ENDING) {
        send(guard, signal);
    }
    session.assert_reads_what_was_written();
    assert_eq!(children(daemon.pid(), "zarrfs-guard"), [guard]);
    daemon.kill();
    wait_for("the guard to end", || {
        let path = format!("/proc/{}", guard.as_raw_nonzero());
        !Path::new(&path).exists()
    });
}

/// The daemon of `zarrfs run` ends with its command alone, which has the caller's signals.
#[test]
fn the_daemon_of_run_ends_with_its_command() {
    let folder = memory_directory();
    let made = array(folder.path());
    let script = r#"
        grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status
        printf x | dd of="$1"/data.raw conv=notrunc status=none
        read line
        printf y | dd of="$1"/data.raw conv=notrunc bs=1 seek=70000 status=none
    "#;
    let command = ["sh", "-c", script, "sh", "{}"];
    let mut run = Command::new(ZARRFS)
        .arg("run")
        .arg(&made.path)
        .arg("--")
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the first write", || {
        made.stored(&[0]).is_ok_and(|b| b[0] == b'x')
    });
    // the process that holds the mount, if it outlives its daemon, and the daemon
    let mut processes = Vec::new();
    wait_for("a daemon with a guard", || {
        processes = children(Pid::from_child(&run), "zarrfs");
        let daemons = processes.iter().flat_map(|pid| children(*pid, "zarrfs"));
        let daemons: Vec<Pid> = daemons.collect();
        processes.extend(daemons);
        let mut guards = processes
            .iter()
            .flat_map(|pid| children(*pid, "zarrfs-guard"));
        guards.next().is_some()
    });
    for process in processes {
        for signal in others().chain(ENDING) {
            send(process, signal);
        }
    }
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(made.stored(&[1]).unwrap()[70000 - CHUNK], b'y');
    let mut direct = Command::new("grep");
    direct.args(["-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]);
    assert_eq!(output.stdout, direct.output().unwrap().stdout);
}

/// A limit of file sizes is a full disk: `close` and `fsync` report it, reads go on, nothing is
/// lost, and a raised limit lets the next fsync succeed.
#[test]
fn a_limit_of_file_sizes_loses_nothing() {
    let folder = memory_directory();
    let log = folder.path().join("log");
    let args = ["--log-level", "trace", "--log-file", log.to_str().unwrap()];
    let args = [&["--cache-size", "256K"][..], &args].concat();
    let command = limited(&format!("--fsize={FILE_LIMIT}:1048576"));
    let (mut session, daemon) = session(folder.path(), command, &args);
    let mut refused = Vec::new();
    for chunk in 0..CHUNKS {
        if let Err(e) = session.write(chunk * CHUNK, &pattern(chunk as u64, CHUNK)) {
            refused.push(errno::<()>(Err(e)));
        }
    }
    assert!(
        (1..CHUNKS).contains(&refused.len()) && refused.iter().all(|e| e == "EFBIG"),
        "{refused:?}"
    );
    for _ in 0..2 {
        assert_eq!(errno(session.fsync()), "EFBIG");
        session.assert_reads_what_was_written();
    }
    let reader = File::open(daemon.path().join("data.raw")).unwrap();
    assert_eq!(errno(close(reader)), "ok");
    assert_eq!(errno(session.close()), "EFBIG");
    session.assert_reads_what_was_written();
    assert_eq!(fs::metadata(&log).unwrap().len(), FILE_LIMIT);
    let unmounted = unmount(daemon.path());
    let said = String::from_utf8(unmounted.stderr).unwrap();
    assert!(
        !unmounted.status.success() && said.contains("ulimit -f"),
        "{said}"
    );
    assert_eq!(unfinished_files(folder.path()), [] as [String; 0]);
    let raised = Rlimit {
        current: Some(1 << 20),
        maximum: Some(1 << 20),
    };
    prlimit(Some(daemon.pid()), Resource::Fsize, raised).unwrap();
    session.fsync().expect("the limit is raised");
    session.close().unwrap();
    session.history.check().assert_none();
    assert!(daemon.unmount().success());
}

/// Bytes that zarrfs keeps for itself need no file: reads of rows that do not fit into the cache,
/// and of a server with a cache on the disk.
#[test]
fn files_of_zarrfs_that_cannot_grow_fail_no_read() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fsize = format!("--fsize={FILE_LIMIT}");
    let wide = TestArray::with_chunks(
        folder.path().join("wide"),
        &[256, 4096],
        &[256, 256],
        json!({"compressor": {"id": "zlib", "level": 1}}),
    );
    let spill = folder.path().to_str().unwrap();
    let server = FaultyServer::new(folder.path());
    let cached = folder.path().join("cached");
    let cache = ["--cache-dir", cached.to_str().unwrap()];
    for (store, args) in [
        (
            wide.path.clone(),
            vec!["--cache-size", "256K", "--spill-dir", spill],
        ),
        (server.url("wide").into(), cache.to_vec()),
    ] {
        let daemon = Daemon::with_command(limited(&fsize), &store, &args);
        for _ in 0..2 {
            assert!(
                fs::read(daemon.path().join("data.raw")).unwrap() == wide.flat,
                "{args:?}"
            );
        }
        assert!(daemon.unmount().success());
    }
}

/// A verb that writes a file ends with an error and leaves nothing.
#[test]
fn verbs_report_a_limit_of_file_sizes() {
    let folder = memory_directory();
    let made = TestArray::with_chunks(folder.path().join("a"), &[4 * CHUNK], &[CHUNK], json!({}));
    let before = made.stored_flat().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (store, new, archive) = (path("a"), path("new"), path("a.zip"));
    for words in [
        vec!["put", &store],
        vec![
            "create",
            &new,
            "--shape=262144",
            "--chunks=65536",
            "--dtype=u1",
            "--compressor=none",
            "--from-raw=-",
        ],
        vec!["pack", &store, &archive],
        vec!["cat", &store],
    ] {
        let input = folder.path().join("input");
        fs::write(&input, vec![7; 4 * CHUNK]).unwrap();
        let output = File::create(folder.path().join("output")).unwrap();
        let done = limited(&format!("--fsize={FILE_LIMIT}"))
            .args(&words)
            .stdin(File::open(&input).unwrap())
            .stdout(output)
            .output()
            .unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{words:?}: {said}");
        assert!(
            said.starts_with("error: ") && said.lines().count() == 1,
            "{words:?}: {said}"
        );
        announce(&said);
    }
    assert!(made.stored_flat().unwrap() == before);
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "input", "output"]);
}

/// Under each other limit, a mount works or says why it does not; what `fsync` acknowledges is
/// stored.
#[test]
fn no_limit_loses_acknowledged_bytes() {
    for limit in [
        "--core=0",
        "--locks=0",
        "--memlock=0",
        "--msgqueue=0",
        "--nice=0",
        "--nproc=0",
        "--rtprio=0",
        "--rttime=1000",
        "--sigpending=0",
        "--stack=1048576",
        "--nofile=40",
        "--data=268435456",
        "--as=1073741824",
        "--cpu=1:60",
    ] {
        let folder = memory_directory();
        let args = ["--cache-size", "1M"];
        let (mut session, mut daemon) = session(folder.path(), limited(limit), &args);
        for round in 0..4 {
            session.write(100, &pattern(round, 6 * CHUNK)).unwrap();
            session.fsync().unwrap_or_else(|e| panic!("{limit}: {e}"));
        }
        session.write(CHUNK, &pattern(9, CHUNK)).unwrap();
        session.assert_reads_what_was_written();
        daemon.kill();
        session.history.check().assert_none();
    }
}
