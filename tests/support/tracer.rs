//! The system calls of a running daemon, seen and made to fail: strace, attached when the test says so. It counts calls
//! per thread, from the moment of attaching.

use super::limited;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Stdio};

/// strace, for all threads of a process. It is started before it is needed: a process that is started has copies of all
/// open files for a moment, and closing them has the daemon store what was written.
pub struct Tracer {
    /// `timeout`, which passes signals on to strace.
    child: Child,
    go: Option<ChildStdin>,
    said: BufReader<ChildStderr>,
    log: PathBuf,
}

/// Whether this machine and user can trace; says so if not.
pub fn is_offered() -> bool {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let attached = Tracer::prepare(pid, "fsync", &[], log.path()).attach();
    let _ = child.kill();
    let _ = child.wait();
    if let Err(why) = &attached {
        super::say(&format!("skipped: strace can't attach to a process here: {why}"));
    }
    attached.is_ok()
}

impl Tracer {
    /// Is going to log the `calls` of `pid`, names of system calls as strace takes them. An injection among the options,
    /// such as `signal=SIGKILL:when=3`, ends the process before any of its threads makes its third of one of them.
    pub fn prepare(pid: Pid, calls: &str, options: &[&str], log: &Path) -> Tracer {
        let mut command = limited(60, "sh");
        command.args(["-c", "read go && exec strace \"$@\"", "sh", "-f", "-y", "-e", "signal=KILL", "-e"]);
        command.arg(format!("trace={calls}")).args(options).arg("-o").arg(log);
        command.args(["-p", &pid.as_raw_nonzero().to_string()]);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().expect("it is piped"));
        Tracer { go: child.stdin.take(), said, child, log: log.to_path_buf() }
    }

    /// Attaches to the process, or says why that is not to be had.
    pub fn attach(mut self) -> Result<Tracer, String> {
        if let Some(mut go) = self.go.take() {
            writeln!(go, "go").map_err(|e| e.to_string())?;
        }
        let mut line = String::new();
        self.said.read_line(&mut line).map_err(|e| e.to_string())?;
        match line.contains(" attached") {
            true => Ok(self),
            false => Err(line.trim().to_string()),
        }
    }

    /// Detaches; what was logged.
    pub fn detach(mut self) -> String {
        self.end();
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for the end of the process, which is near; what was logged.
    pub fn wait(mut self) -> String {
        let _ = self.child.wait();
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn end(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let pid = Pid::from_raw(self.child.id() as i32).expect("a process has a number");
            let _ = kill_process(pid, Signal::TERM);
            let _ = self.said.read_to_string(&mut String::new());
            let _ = self.child.wait();
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.end();
    }
}
