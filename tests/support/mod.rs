//! Helpers of the integration tests: mounts that are removed with their test even if it fails,
//! fixtures, programs and servers to compare with. No helper depends on the checks of a single
//! test.
#![allow(dead_code)]

pub mod bucket;
pub mod daemon;
pub mod digests;
pub mod faulty_server;
pub mod history;
pub mod array;
pub mod servers;
pub mod session;
pub mod shared_map;
pub mod stoppable;
pub mod tracer;
pub mod tree;

use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub const ZARRFS: &str = env!("CARGO_BIN_EXE_zarrfs");

/// Runs zarrfs to its end.
pub fn zarrfs(args: &[&str]) -> Output {
    Command::new(ZARRFS)
        .args(args)
        .output()
        .expect("zarrfs starts")
}

/// Runs zarrfs to its end. Returns its exit code and its standard error.
pub fn run_zarrfs(args: &[&str]) -> (i32, String) {
    let output = zarrfs(args);
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// Runs a command that asks the daemon of a mount, and runs it again while it says that the daemon
/// does not answer, for at most two minutes: a busy machine may leave it no time.
pub fn answered(mut command: impl FnMut() -> Output) -> Output {
    let begun = Instant::now();
    let mut was_late = false;
    loop {
        let output = command();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_late = said.contains("does not answer");
        was_late |= is_late;
        // the process that a late command leaves behind has a file open until the daemon answers
        let is_kept = was_late && said.contains("in use");
        if !(is_late || is_kept) || begun.elapsed() > Duration::from_secs(120) {
            return output;
        }
    }
}

/// Runs `zarrfs umount` to its end, as [`answered`] does.
pub fn unmount(path: impl AsRef<Path>) -> Output {
    answered(|| {
        Command::new(ZARRFS)
            .arg("umount")
            .arg(path.as_ref())
            .output()
            .expect("zarrfs starts")
    })
}

/// Checks that a closed file has its whole size again. The mount waits a tenth of a second for the
/// request that releases the file, which may come later on a busy machine.
#[track_caller]
pub fn assert_whole_again(path: &Path, size: u64) {
    let is_whole = || std::fs::metadata(path).unwrap().len() == size;
    let asked = Instant::now();
    if !is_whole() {
        let delay = Duration::from_millis(100);
        assert!(asked.elapsed() >= delay, "the mount does not wait");
        wait_for("the whole size", is_whole);
    }
}

/// Returns the exit code of a failed zarrfs and its message, which must be one line.
#[track_caller]
pub fn failure(output: &Output) -> (i32, String) {
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(
        message.starts_with("error: ") && message.lines().count() == 1,
        "{message:?}"
    );
    (
        output.status.code().unwrap(),
        message.trim_end().to_string(),
    )
}

/// Runs a program of the system in a directory and returns what it printed, standard error last.
/// Fails unless the program succeeds within three minutes. Neither the user's configuration nor the
/// locale has any effect.
#[track_caller]
pub fn run(program: &str, args: &[&str], directory: &Path) -> String {
    let mut command = with_timeout(180, program);
    command
        .args(args)
        .current_dir(directory)
        .env("HOME", directory)
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{printed}",
        output.status
    );
    printed
}

/// Returns the path of a script in `tests/python`.
pub fn python_script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/python")
        .join(name)
}

/// Runs a script of `tests/python` and returns what it printed. Fails unless it succeeds within ten
/// minutes.
#[track_caller]
pub fn run_python<A: AsRef<OsStr>>(python: &Path, script: &str, args: &[A]) -> String {
    let output = with_timeout(600, python)
        .arg(python_script(script))
        .args(args)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{script}: {printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

/// Returns whether a header or container file has this name.
pub fn is_header(name: &str) -> bool {
    zarrfs_export::Format::of_name(name).is_some()
}

/// Returns the names in a directory, without those of headers.
pub fn names(directory: &Path) -> BTreeSet<String> {
    let mut names = listed(directory);
    names.retain(|name| !is_header(name));
    names
}

/// Returns all names in a directory.
pub fn listed(directory: &Path) -> BTreeSet<String> {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Returns names as the set that [`listed`] and [`names`] return.
pub fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// Returns a path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a file, and makes the directories above it.
pub fn write_file(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Opens a file for reading and writing.
#[track_caller]
pub fn open_for_writing(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Returns whether a file system is mounted at a path.
pub fn is_mounted(path: &Path) -> bool {
    !zarrfs::fuse::mounts_at(path).unwrap().is_empty()
}

/// Waits until `done` returns true. Fails after two minutes.
#[track_caller]
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "waited two minutes in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a command that is killed after a number of seconds, so that a program that hangs fails
/// its test.
pub fn with_timeout(seconds: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--signal=KILL", &seconds.to_string()])
        .arg(program);
    command
}

/// Creates a temporary directory in the folder that `ZARRFS_TEST_MEMORY` names, by default among
/// the other temporary ones. `scripts/test` names a folder in memory, where syncing is free.
pub fn memory_directory() -> tempfile::TempDir {
    match std::env::var_os("ZARRFS_TEST_MEMORY") {
        Some(memory) => tempfile::tempdir_in(memory).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

/// Returns whether a program is installed. Announces that the test is skipped if it is not.
pub fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|p| p.join(program).is_file());
    if !found {
        announce(&format!(
            "skipped: {program} is not installed; scripts/test installs it"
        ));
    }
    found
}

/// Returns the number in an environment variable, or `default`. `scripts/soak` sets numbers that CI
/// has no time for.
pub fn env_number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable}={text}"))
    })
}

/// Returns a generator of pseudo-random numbers below its argument. The same seed gives the same
/// numbers.
pub fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    }
}

/// A store that is mounted in the background until this value is dropped.
pub struct Mount {
    directory: Option<tempfile::TempDir>,
    path: PathBuf,
    /// Whether the test has unmounted it already.
    is_unmounted: bool,
    /// Whether its processes were killed: a daemon that one of them started before may unmount it.
    pub is_killed: bool,
}

impl Mount {
    /// Mounts `store` on a new directory.
    pub fn new(store: &Path, args: &[&str]) -> Mount {
        let mut command = Command::new(ZARRFS);
        command.arg("mount").args(args);
        Mount::with_command(command, store.as_os_str())
    }

    /// Mounts `store` with `command`, to which this function adds the store and a new mountpoint.
    pub fn with_command(mut command: Command, store: &OsStr) -> Mount {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mnt");
        std::fs::create_dir(&path).unwrap();
        let output = command
            .arg(store)
            .arg(&path)
            .output()
            .expect("zarrfs starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Mount {
            directory: Some(directory),
            path,
            is_unmounted: false,
            is_killed: false,
        }
    }

    /// Drops this value without unmounting, since the test has done so.
    pub fn assume_unmounted(mut self) {
        self.is_unmounted = true;
    }

    /// Returns the mountpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the mount.
    pub fn join(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// Returns one counter of `.zarrfs/stats.json`.
    pub fn counter(&self, name: &str) -> u64 {
        let text = std::fs::read(self.join(".zarrfs/stats.json")).unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&text).unwrap();
        stats[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// Returns by how much the counters of `.zarrfs/stats.json` grow during `work`.
    pub fn growth(&self, work: impl FnOnce()) -> Growth {
        let read = || {
            let text = std::fs::read(self.join(".zarrfs/stats.json")).unwrap();
            (serde_json::from_slice(&text).unwrap(), text.len() as u64)
        };
        let (before, own) = read();
        work();
        Growth {
            before,
            after: read().0,
            own,
        }
    }

    /// Returns the daemon's peak resident memory so far, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.counter("pid"))).unwrap();
        let peak = status
            .lines()
            .find_map(|l| l.strip_prefix("VmHWM:"))
            .unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Asserts that the mount has recorded no problem.
    #[track_caller]
    pub fn assert_no_problem(&self) {
        let stats = self.stats();
        assert!(
            !stats.lines().any(|line| line.starts_with("problem ")),
            "{stats}"
        );
    }

    /// Returns the text of `.zarrfs/stats`.
    pub fn stats(&self) -> String {
        std::fs::read_to_string(self.join(".zarrfs/stats")).unwrap()
    }
}

/// The counters of a mount before and after some work.
pub struct Growth {
    before: serde_json::Value,
    after: serde_json::Value,
    /// Size in bytes of the first `stats.json`. Reading it adds so much to `bytes_served`.
    own: u64,
}

impl Growth {
    /// Returns by how much a counter grew.
    pub fn of(&self, name: &str) -> u64 {
        let value = |all: &serde_json::Value| {
            all[name]
                .as_u64()
                .unwrap_or_else(|| panic!("no counter {name}"))
        };
        let own = if name == "bytes_served" { self.own } else { 0 };
        value(&self.after) - value(&self.before) - own
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_unmounted {
            return;
        }
        let path = self.path.to_str().unwrap();
        let mut output = if std::thread::panicking() {
            zarrfs(&["umount", path])
        } else {
            unmount(path)
        };
        if !output.status.success() {
            output = zarrfs(&["umount", "--lazy", path]);
        }
        let is_unmounted = output.status.success() || self.is_killed && !is_mounted(&self.path);
        // deleting the directory would delete the files of the mounted store
        if !is_unmounted && let Some(directory) = self.directory.take() {
            let _ = directory.keep();
        }
        if !std::thread::panicking() {
            assert!(is_unmounted, "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Closes a file or descriptor. Returns the error of close(2), which reports writes that cannot be
/// stored.
pub fn close(file: impl IntoRawFd) -> std::io::Result<()> {
    // SAFETY: the file gives up its descriptor here, so nothing else closes it.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Returns the paths of temporary files that zarrfs has left below a directory of a store.
pub fn unfinished_files(store: &Path) -> Vec<String> {
    let mut found = tree::snapshot(store)
        .unwrap()
        .into_keys()
        .collect::<Vec<_>>();
    found.retain(|path| path.contains("/.zarrfs-"));
    found
}

/// Returns for each array the SHA-256 of its flat bytes as zarr-python reads them.
#[track_caller]
pub fn zarr_python_digests(python: &Path, arrays: &[&Path]) -> Vec<String> {
    run_python(python, "flat.py", arrays)
        .lines()
        .map(String::from)
        .collect()
}

/// Returns the length of a file and the SHA-256 of its bytes.
pub fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut length = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok((length, hex(&hash.finalize())));
        }
        hash.update(&buffer[..n]);
        length += n as u64;
    }
}

/// Returns the SHA-256 of bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the name of the error of a failed operation, such as "EIO", or "ok" for one that
/// succeeded.
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

/// Overwrites bytes of a file and closes it. Returns the name of the error, or "ok".
pub fn overwrite(path: &Path, offset: u64, bytes: &[u8]) -> String {
    let write = || {
        let file = File::options().write(true).open(path)?;
        file.write_all_at(bytes, offset)?;
        close(file)
    };
    errno(write())
}

/// Prints a line that is shown even if the test passes. libtest captures `println!`, but no direct
/// writes.
pub fn announce(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns the path in an environment variable that `scripts/test` sets. Announces that the test is
/// skipped if the variable is not set.
pub fn env_path(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        println!("skipped: {variable} is not set; scripts/test sets it");
    }
    path
}

/// Copies a tree of regular files and directories.
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

/// Returns the path of a file or directory in `tests/data`.
pub fn test_data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path)
}
