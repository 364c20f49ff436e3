//! A mount whose daemon is a child of the test: it can be killed, traced and waited for. A test that fails or hangs
//! leaves neither daemon nor mount behind.

use super::{ZARRFS, zarrfs};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a daemon lives at most: then its mount is ended, so that the test is answered with errors and can't hang.
const LIMIT: Duration = Duration::from_secs(120);

/// A mounted store and its daemon.
pub struct Daemon {
    /// None once it has ended.
    child: Option<Child>,
    pid: Pid,
    directory: tempfile::TempDir,
    /// Tells the watch that it is no longer needed, by going away.
    watch: Option<Sender<()>>,
}

impl Daemon {
    /// Mounts `store` on a directory of its own.
    pub fn start(store: &Path, args: &[&str]) -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        let mountpoint = directory.path().join("mnt");
        std::fs::create_dir(&mountpoint).unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(ZARRFS);
        command.args(["mount", "--foreground"]).args(args).arg(store).arg(&mountpoint);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).expect("a process has a number");
        let (watch, ended) = channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                super::say(&format!("{} is ended: it is there for {LIMIT:?}", mountpoint.display()));
                let _ = kill_process(pid, Signal::KILL);
                // a thread that waits in the kernel for an answer of its own process can't even be killed
                let _ = Command::new("umount").arg("--force").arg(&mountpoint).status();
            }
        });
        let daemon = Daemon { child: Some(child), pid, directory, watch: Some(watch) };
        daemon.wait_for_mount();
        daemon
    }

    fn wait_for_mount(&self) {
        let begun = Instant::now();
        let stats = self.path().join(".zarrfs/stats.json");
        while begun.elapsed() < Duration::from_secs(20) {
            if stats.exists() {
                return;
            }
            sleep(Duration::from_millis(2));
        }
        panic!("no mount after {:?}: {}", begun.elapsed(), self.log());
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// The daemon's process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Kills it at once: nothing of what it has in memory can be saved.
    pub fn kill(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        self.wait();
    }

    /// Waits until it has ended; its status, if it hadn't ended before.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        let ended = self.child.take().map(|mut child| child.wait().unwrap());
        self.watch = None;
        ended
    }

    /// Unmounts, as a user does; the daemon's exit status.
    pub fn unmount(mut self) -> ExitStatus {
        let output = zarrfs(&["umount", self.path().to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.wait().expect("it is alive until now")
    }

    fn is_mounted(&self) -> bool {
        let device = |path: &Path| std::fs::symlink_metadata(path).map(|m| m.dev()).ok();
        device(&self.path()) != device(self.directory.path())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            super::say(&format!("the daemon's log:\n{}", self.log()));
        }
        if self.child.is_some() {
            self.kill();
        }
        // a killed daemon leaves its mount; nothing may be deleted through one that stays
        while self.is_mounted() {
            let output = zarrfs(&["umount", "--lazy", self.path().to_str().unwrap()]);
            if !output.status.success() {
                self.directory.disable_cleanup(true);
                return;
            }
        }
    }
}
