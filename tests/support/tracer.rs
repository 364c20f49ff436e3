//! The system calls of a running daemon, seen and made to fail: strace, attached when the test says so. It counts calls
//! per thread, from the moment of attaching.

use super::limited;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};

/// strace, attached to all threads of a process.
pub struct Tracer {
    /// `timeout`, which passes signals on to strace.
    child: Child,
    said: BufReader<ChildStderr>,
    log: PathBuf,
}

/// Whether this machine and user can trace; says so if not.
pub fn is_offered() -> bool {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let offered = Tracer::attach(pid, "fsync", &[], log.path()).map(drop);
    let _ = child.kill();
    let _ = child.wait();
    if let Err(why) = &offered {
        super::say(&format!("skipped: strace can't attach to a process here: {why}"));
    }
    offered.is_ok()
}

impl Tracer {
    /// Attaches to `pid` and logs its `calls`, names of system calls as strace takes them. An injection such as
    /// `signal=SIGKILL:when=3` ends the process before any of its threads makes its third of one of them.
    pub fn attach(pid: Pid, calls: &str, options: &[&str], log: &Path) -> Result<Tracer, String> {
        let mut command = limited(60, "strace");
        command.args(["-f", "-y", "-e", "signal=KILL", "-e", &format!("trace={calls}")]).args(options);
        command.arg("-o").arg(log).args(["-p", &pid.as_raw_nonzero().to_string()]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).map_err(|e| e.to_string())?;
        if line.contains(" attached") {
            return Ok(Tracer { child, said, log: log.to_path_buf() });
        }
        let _ = said.read_to_string(&mut line);
        let _ = child.wait();
        Err(line.trim().to_string())
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
