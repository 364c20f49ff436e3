//! What the whole-mount tests share: a mount that goes away with its test, also when that fails; and digests.
#![allow(dead_code)]

pub mod daemon;
pub mod digests;
pub mod faulty;
pub mod history;
pub mod made;
pub mod servers;
pub mod session;
pub mod stoppable;
pub mod tracer;
pub mod walk;

use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The program under test.
pub const ZARRFS: &str = env!("CARGO_BIN_EXE_zarrfs");

/// Runs zarrfs and returns what it printed.
pub fn zarrfs(args: &[&str]) -> Output {
    Command::new(ZARRFS).args(args).output().expect("zarrfs starts")
}

/// True for the name of a header, which an array's directory shows beside what these tests are about.
pub fn is_header(name: &str) -> bool {
    zarrfs::export::Format::of_name(name).is_some()
}

/// Whether anything is mounted at a path.
pub fn is_mounted(path: &Path) -> bool {
    !zarrfs::fuse::mounts_at(path).unwrap().is_empty()
}

/// Fails if it takes more than half a minute.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A command that is killed after so many seconds: what hangs fails.
pub fn limited(seconds: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &seconds.to_string()]).arg(program);
    command
}

/// A directory that goes away with its test, in memory where there is room for it: to sync it costs nothing.
pub fn quick_directory() -> tempfile::TempDir {
    match std::env::var_os("ZARRFS_TEST_MEMORY") {
        Some(memory) => tempfile::tempdir_in(memory).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

/// To be held by tests that say when what they write is stored: a process that another test starts has copies of all
/// open files for a moment, and closing them stores what was written.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a program is installed; says so if not.
pub fn installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|p| p.join(program).is_file());
    if !found {
        say(&format!("skipped: {program} is not installed; scripts/test installs it"));
    }
    found
}

/// A number that an environment variable sets: scripts/soak asks for more than CI has time for.
pub fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// Numbers that show no pattern, the same in each run.
pub fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    }
}

/// A mounted store.
pub struct Mount {
    directory: Option<tempfile::TempDir>,
    path: PathBuf,
    /// Unmounted by the test itself.
    gone: bool,
}

impl Mount {
    /// Mounts `store` on a directory of its own.
    pub fn new(store: &Path, args: &[&str]) -> Mount {
        let mut command = Command::new(ZARRFS);
        command.arg("mount").args(args);
        Mount::by(command, store.as_os_str())
    }

    /// As [`Mount::new`], by a command that lacks only the store and the mountpoint.
    pub fn by(mut command: Command, store: &OsStr) -> Mount {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mnt");
        std::fs::create_dir(&path).unwrap();
        let output = command.arg(store).arg(&path).output().expect("zarrfs starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Mount { directory: Some(directory), path, gone: false }
    }

    /// Notes that it was unmounted already.
    pub fn note_unmounted(mut self) {
        self.gone = true;
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// One counter of `.zarrfs/stats.json`.
    pub fn counter(&self, name: &str) -> u64 {
        let text = std::fs::read(self.join(".zarrfs/stats.json")).unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&text).unwrap();
        stats[name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// What the counters of `.zarrfs/stats.json` grow by while `work` is done.
    pub fn growth(&self, work: impl FnOnce()) -> Growth {
        let read = || {
            let text = std::fs::read(self.join(".zarrfs/stats.json")).unwrap();
            (serde_json::from_slice(&text).unwrap(), text.len() as u64)
        };
        let (before, own) = read();
        work();
        Growth { before, after: read().0, own }
    }

    /// The most memory the daemon has had so far, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.counter("pid"))).unwrap();
        let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// The text of `.zarrfs/stats`.
    pub fn stats(&self) -> String {
        std::fs::read_to_string(self.join(".zarrfs/stats")).unwrap()
    }
}

/// Counters at two moments.
pub struct Growth {
    before: serde_json::Value,
    after: serde_json::Value,
    /// Bytes served by looking at the counters the first time.
    own: u64,
}

impl Growth {
    /// What a counter grew by.
    pub fn of(&self, name: &str) -> u64 {
        let value = |all: &serde_json::Value| all[name].as_u64().unwrap_or_else(|| panic!("no counter {name}"));
        let own = if name == "bytes_served" { self.own } else { 0 };
        value(&self.after) - value(&self.before) - own
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let path = self.path.to_str().unwrap();
        let mut output = zarrfs(&["umount", path]);
        if !output.status.success() {
            output = zarrfs(&["umount", "--lazy", path]);
        }
        let gone = output.status.success();
        // never delete through a mount that stayed
        if !gone && let Some(directory) = self.directory.take() {
            let _ = directory.keep();
        }
        if !std::thread::panicking() {
            assert!(gone, "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Closes a file, and tells what close(2) said: that is where a write that can't be stored is reported.
pub fn close(file: std::fs::File) -> std::io::Result<()> {
    // SAFETY: the descriptor is this file's, which gives it up here.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Names of unfinished files in a directory of a store, at any depth.
pub fn unfinished(store: &Path) -> Vec<String> {
    let mut found = walk::snapshot(store).unwrap().into_keys().collect::<Vec<_>>();
    found.retain(|path| path.contains("/.zarrfs-"));
    found
}

/// The digests of the flat bytes of arrays, by zarr-python, one for each.
pub fn zarr_python_digests(python: &Path, arrays: &[&Path]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/flat.py");
    let output = limited(120, python).arg(script).args(arrays).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

/// The digest of a file, read through the mount, and its length.
pub fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = std::fs::File::open(path)?;
    let (mut hash, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok((length, hex(&hash.finalize())));
        }
        hash.update(&buffer[..n]);
        length += n as u64;
    }
}

/// The digest of bytes.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The errno of a failed operation, by name; "ok" for one that succeeded.
pub fn errno<T>(result: std::io::Result<T>) -> String {
    let names = [
        (libc::EIO, "EIO"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EROFS, "EROFS"),
        (libc::ENOENT, "ENOENT"),
        (libc::EACCES, "EACCES"),
        (libc::ELOOP, "ELOOP"),
        (libc::ENAMETOOLONG, "ENAMETOOLONG"),
        (libc::ENODATA, "ENODATA"),
        (libc::EBUSY, "EBUSY"),
        (libc::EINVAL, "EINVAL"),
        (libc::EPERM, "EPERM"),
        (libc::EEXIST, "EEXIST"),
        (libc::ENOTEMPTY, "ENOTEMPTY"),
        (libc::EISDIR, "EISDIR"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EFBIG, "EFBIG"),
        (libc::ENOSPC, "ENOSPC"),
    ];
    match result {
        Ok(_) => "ok".to_string(),
        Err(e) => match names.iter().find(|(n, _)| Some(*n) == e.raw_os_error()) {
            Some((_, name)) => name.to_string(),
            None => e.to_string(),
        },
    }
}

/// Prints a line that is to be seen also when the test passes.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A directory the test script made, named by an environment variable. Without it the test says so and passes.
pub fn provided(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        println!("skipped: {variable} is not set; scripts/test sets it");
    }
    path
}

/// Copies a tree of plain files and directories.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Path of a file or directory below `tests/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}
