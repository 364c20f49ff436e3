//! Attaches strace to a running daemon, to log its system calls or to make them fail. strace counts
//! the calls of each thread from the moment it is attached.

use super::with_timeout;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Stdio};

/// An strace for all threads of a process. It starts early and attaches later: a new process has
/// copies of all open files for a moment, and closing them makes the daemon store dirty chunks.
pub struct Tracer {
    /// `timeout`, which forwards signals to strace.
    child: Child,
    go: Option<ChildStdin>,
    stderr: BufReader<ChildStderr>,
    log: PathBuf,
}

/// Returns whether this user can attach strace to a process. Announces that the test is skipped
/// otherwise.
pub fn is_available() -> bool {
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let attached = Tracer::prepare(pid, "fsync", &[], log.path()).attach();
    let _ = child.kill();
    let _ = child.wait();
    if let Err(why) = &attached {
        super::announce(&format!(
            "skipped: strace can't attach to a process here: {why}"
        ));
    }
    attached.is_ok()
}

impl Tracer {
    /// Prepares to log the system calls `calls` of `pid`, named as strace names them. An injection
    /// among the options, such as `signal=SIGKILL:when=3`, kills the process before any of its
    /// threads makes its third such call.
    pub fn prepare(pid: Pid, calls: &str, options: &[&str], log: &Path) -> Tracer {
        // a test may prepare many, and attach the last one minutes later
        let mut command = with_timeout(600, "sh");
        command.args([
            "-c",
            "read go && exec strace \"$@\"",
            "sh",
            "-f",
            "-y",
            "-e",
            "signal=KILL",
            "-e",
        ]);
        command
            .arg(format!("trace={calls}"))
            .args(options)
            .arg("-o")
            .arg(log);
        command.args(["-p", &pid.as_raw_nonzero().to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        Tracer {
            go: child.stdin.take(),
            stderr,
            child,
            log: log.to_path_buf(),
        }
    }

    /// Attaches to the process. Returns what strace printed if it cannot.
    pub fn attach(mut self) -> Result<Tracer, String> {
        if let Some(mut go) = self.go.take() {
            writeln!(go, "go").map_err(|e| e.to_string())?;
        }
        let mut line = String::new();
        self.stderr
            .read_line(&mut line)
            .map_err(|e| e.to_string())?;
        if line.contains(" attached") {
            Ok(self)
        } else {
            Err(line.trim().to_string())
        }
    }

    /// Detaches from the process and returns the log.
    pub fn detach(mut self) -> String {
        self.end();
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for the imminent end of the process and returns the log.
    pub fn wait(mut self) -> String {
        let _ = self.child.wait();
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn end(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let pid = Pid::from_raw(self.child.id() as i32).expect("a process has a number");
            let _ = kill_process(pid, Signal::TERM);
            let _ = self.stderr.read_to_string(&mut String::new());
            let _ = self.child.wait();
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.end();
    }
}
