//! A mount whose daemon is a child process of the test, so that it can be killed, traced and waited
//! for. A test that fails or hangs leaves neither daemon nor mount behind.

use super::{ZARRFS, unmount, zarrfs};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Maximum lifetime of a daemon. Then a thread kills it and aborts its mount, so that waiting
/// requests fail. The longest tests take half a minute of processor time, and get a small share of
/// it beside others; `scripts/run-tests` ends a test after 900 s.
const LIMIT: Duration = Duration::from_secs(800);

/// Maximum time in which a killed daemon ends.
const KILL_LIMIT: Duration = Duration::from_secs(60);

/// A mounted store, the process that holds it, and the daemon that serves it.
pub struct Daemon {
    /// The process that holds the mount; `None` once it has ended.
    child: Option<Child>,
    holder: Pid,
    directory: tempfile::TempDir,
    /// Dropping the sender stops the thread that enforces [`LIMIT`].
    watch: Option<Sender<()>>,
}

impl Daemon {
    /// Mounts `store` on a new directory.
    pub fn start(store: &Path, args: &[&str]) -> Daemon {
        Daemon::with_command(Command::new(ZARRFS), store, args)
    }

    /// Mounts `store` with the program, or with one that runs it.
    pub fn with_command(mut command: Command, store: &Path, args: &[&str]) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        let mountpoint = directory.path().join("mnt");
        std::fs::create_dir(&mountpoint).unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        command
            .args(["mount", "--foreground"])
            .args(args)
            .arg(store)
            .arg(&mountpoint);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let holder = Pid::from_raw(child.id() as i32).expect("a process has a number");
        let (watch, ended) = channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                super::announce(&format!(
                    "the daemon of {} is killed after {LIMIT:?}",
                    mountpoint.display()
                ));
                kill_both(holder);
                // a thread that waits in the kernel for an answer of its own process does not even
                // react to SIGKILL
                let _ = Command::new("umount")
                    .arg("--force")
                    .arg(&mountpoint)
                    .status();
            }
        });
        let daemon = Daemon {
            child: Some(child),
            holder,
            directory,
            watch: Some(watch),
        };
        daemon.wait_for_mount();
        daemon
    }

    fn wait_for_mount(&self) {
        let begun = Instant::now();
        let stats = self.path().join(".zarrfs/stats.json");
        while begun.elapsed() < Duration::from_secs(120) {
            if stats.exists() {
                return;
            }
            sleep(Duration::from_millis(2));
        }
        panic!("no mount after {:?}: {}", begun.elapsed(), self.log());
    }

    /// Returns the mountpoint.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// Returns the process id of the daemon that serves the mount now.
    pub fn pid(&self) -> Pid {
        daemon_of(self.holder)
    }

    /// Returns the process id of the process that holds the mount.
    pub fn holder(&self) -> Pid {
        self.holder
    }

    /// Returns the daemon's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Kills the daemon with SIGKILL, so that it cannot store the dirty chunks that it holds, and
    /// the process that would start another one. Fails if they do not end.
    pub fn kill(&mut self) {
        kill_both(self.holder);
        let killed = Instant::now();
        self.wait();
        assert!(
            std::thread::panicking() || killed.elapsed() < KILL_LIMIT,
            "the daemon could not be killed"
        );
    }

    /// Waits until the daemon has ended. Returns its exit status, or `None` if it had ended before.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        let ended = self.child.take().map(|mut child| child.wait().unwrap());
        self.watch = None;
        ended
    }

    /// Unmounts as a user does. Returns the daemon's exit status.
    pub fn unmount(mut self) -> ExitStatus {
        let output = unmount(self.path());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.wait()
            .expect("the daemon had ended before the unmount")
    }

    fn is_mounted(&self) -> bool {
        let device = |path: &Path| std::fs::symlink_metadata(path).map(|m| m.dev()).ok();
        device(&self.path()) != device(self.directory.path())
    }
}

/// Kills the process that holds a mount, and the daemon, which would store everything otherwise.
pub fn kill_both(holder: Pid) {
    // it must not start another daemon meanwhile
    let _ = kill_process(holder, Signal::STOP);
    for pid in [daemon_of(holder), holder] {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Returns the daemon that the process `holder` has started, or `holder` if it serves alone.
pub fn daemon_of(holder: Pid) -> Pid {
    // the kernel's own list of children is only complete while all of them are stopped
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let children = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(process.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        let is_child = parent.trim().parse() == Ok(holder.as_raw_nonzero().get());
        (is_child && !status.contains("State:\tZ") && !is_guard(pid)).then_some(pid)
    });
    children.max().and_then(Pid::from_raw).unwrap_or(holder)
}

/// Returns whether a process is a guard, also before it has its name.
fn is_guard(pid: i32) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| variable.starts_with(b"ZARRFS_GUARDED="))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            super::announce(&format!("the daemon's log:\n{}", self.log()));
        }
        if self.child.is_some() {
            self.kill();
        }
        // a killed daemon leaves its mount behind, and deleting the directory would delete the
        // mounted files
        while self.is_mounted() {
            let output = zarrfs(&["umount", "--lazy", self.path().to_str().unwrap()]);
            if !output.status.success() {
                self.directory.disable_cleanup(true);
                return;
            }
        }
        // a panic of a thread that prefetches or stores in the background fails no request
        assert!(
            std::thread::panicking() || !self.log().contains("panicked at"),
            "{}",
            self.log()
        );
    }
}
