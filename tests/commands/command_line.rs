//! The command line: exit codes, messages, the background process, signals, and mounts of other
//! file systems. Tests compare them with the documents, and the output of verbs with the files of
//! the sample store.

use crate::support;
use crate::support::{
    Mount, ZARRFS, answered, copy_tree, failure, is_mounted, test_data, unmount, wait_for, zarrfs,
};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A directory to mount on. Dropping it detaches every mount there with umount(8).
struct Mountpoint {
    directory: tempfile::TempDir,
}

impl Mountpoint {
    fn new() -> Mountpoint {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("mnt")).unwrap();
        Mountpoint { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    fn text(&self) -> String {
        self.path().to_str().unwrap().to_string()
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        while is_mounted(&self.path()) {
            let status = Command::new("umount").arg("-l").arg(self.path()).status();
            if !status.is_ok_and(|s| s.success()) {
                break;
            }
        }
    }
}

fn sample() -> String {
    test_data("sample.zarr").to_str().unwrap().to_string()
}

/// A mount in the foreground, and its daemon. Dropping it kills the process that holds the mount.
struct Foreground(Child, rustix::process::Pid);

impl Foreground {
    fn start(mountpoint: &Mountpoint, args: &[&str]) -> Foreground {
        let mut command = Command::new(ZARRFS);
        command
            .args(["mount", "-f"])
            .args(args)
            .args([sample(), mountpoint.text()]);
        let child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let path = mountpoint.path();
        wait_for("the mount", || {
            is_mounted(&path) && path.join("air_temperature/data.raw").exists()
        });
        let stats = std::fs::read_to_string(path.join(".zarrfs/stats")).unwrap();
        let pid = stats.lines().find_map(|line| line.strip_prefix("pid "));
        let pid = pid.unwrap().trim().parse().unwrap();
        Foreground(child, rustix::process::Pid::from_raw(pid).unwrap())
    }

    /// Sends a signal to the process that holds the mount, which passes it on. One that no process
    /// can catch goes to the daemon.
    fn signal(&self, signal: rustix::process::Signal) {
        use rustix::process::Signal;
        let holder = rustix::process::Pid::from_child(&self.0);
        match signal {
            Signal::KILL => support::daemon::kill_both(holder),
            Signal::STOP | Signal::CONT => {
                rustix::process::kill_process(self.1, signal).unwrap();
            }
            _ => rustix::process::kill_process(holder, signal).unwrap(),
        }
    }

    fn wait(&mut self) -> i32 {
        let mut code = None;
        wait_for("the daemon's end", || {
            code = self.0.try_wait().unwrap();
            code.is_some()
        });
        let code = code.unwrap().code().unwrap_or(-1);
        if code != 0 {
            // shown if the test fails
            let mut said = String::new();
            let _ = self.0.stderr.take().unwrap().read_to_string(&mut said);
            println!("the daemon ended with {code} and said: {said}");
        }
        code
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn failures_are_the_same_in_the_foreground_and_in_the_background() {
    let mountpoint = Mountpoint::new();
    let here = mountpoint.text();
    let file = mountpoint.directory.path().join("file");
    fs::write(&file, "").unwrap();
    // a folder in the shared sample would appear in the listings of other tests
    let copy = mountpoint.directory.path().join("sample.zarr");
    copy_tree(&test_data("sample.zarr"), &copy);
    let inside = copy.join("ocean");
    let cases: [(&[&str], i32, &str); 8] = [
        (&["/nonexistent/x.zarr", &here], 3, "no such store"),
        (&[file.to_str().unwrap(), &here], 4, "zip"),
        (&[&here, &here], 4, "not a Zarr store"),
        (&[&sample(), "/nonexistent/mnt"], 5, "mkdir -p"),
        (&[&sample(), file.to_str().unwrap()], 5, "not a directory"),
        (
            &[copy.to_str().unwrap(), inside.to_str().unwrap()],
            5,
            "inside the store",
        ),
        (&["-o", "bogus", &sample(), &here], 2, "unknown option"),
        (&["-o", "uid=x", &sample(), &here], 2, "uid=x"),
    ];
    for (args, code, text) in cases {
        let run = |first: &[&str]| failure(&zarrfs(&[&["mount"], first, args].concat()));
        let background = run(&[]);
        assert_eq!(background.0, code, "{background:?}");
        assert!(background.1.contains(text), "{background:?}");
        assert_eq!(run(&["-f"]), background);
    }
    assert!(!is_mounted(&mountpoint.path()));
    assert_eq!(
        zarrfs(&["mount", "--cache-size", "x", &sample(), &here])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(zarrfs(&["frobnicate"]).status.code(), Some(2));
}

#[test]
fn the_mount_is_ready_when_the_parent_process_returns() {
    let mountpoint = Mountpoint::new();
    for _ in 0..5 {
        assert!(
            zarrfs(&["mount", &sample(), &mountpoint.text()])
                .status
                .success()
        );
        assert!(mountpoint.path().join("air_temperature/data.raw").exists());
        let again = failure(&zarrfs(&["mount", &sample(), &mountpoint.text()]));
        assert!(
            again.0 == 5 && again.1.contains("mounted here already"),
            "{again:?}"
        );
        let pid: u64 = fs::read_to_string(mountpoint.path().join(".zarrfs/stats"))
            .unwrap()
            .lines()
            .find_map(|l| l.strip_prefix("pid").map(|v| v.trim().parse().unwrap()))
            .unwrap();
        assert!(unmount(mountpoint.path()).status.success());
        assert!(
            !Path::new(&format!("/proc/{pid}/exe")).exists(),
            "umount waits for the daemon"
        );
        assert!(!is_mounted(&mountpoint.path()));
    }
}

#[test]
fn a_background_mount_closes_its_terminal_and_pipes() {
    let mountpoint = Mountpoint::new();
    let mut child = Command::new(ZARRFS)
        .args(["mount", &sample(), &mountpoint.text()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // both streams end, since the daemon has closed them
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
    assert!(child.wait().unwrap().success() && said.is_empty());
    assert!(unmount(mountpoint.path()).status.success());
}

#[test]
fn signals_unmount_cleanly() {
    use rustix::process::Signal;
    for signal in [Signal::TERM, Signal::INT] {
        let mountpoint = Mountpoint::new();
        let mut daemon = Foreground::start(&mountpoint, &[]);
        // without a log file, this one does nothing
        daemon.signal(Signal::HUP);
        std::thread::sleep(Duration::from_millis(100));
        assert!(mountpoint.path().join("lat/data.raw").exists());
        daemon.signal(signal);
        assert_eq!(daemon.wait(), 0, "{signal:?}");
        assert!(!is_mounted(&mountpoint.path()));
    }
}

#[test]
fn a_signal_to_a_busy_mount_waits_for_the_last_file() {
    let mountpoint = Mountpoint::new();
    let mut daemon = Foreground::start(&mountpoint, &[]);
    let mut file = fs::File::open(mountpoint.path().join("air_temperature/data.raw")).unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    wait_for("the unmount", || !is_mounted(&mountpoint.path()));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 62 * 37 * 53 * 2);
    drop(file);
    assert_eq!(daemon.wait(), 0);
}

#[test]
fn a_second_signal_ends_a_busy_mount() {
    let mountpoint = Mountpoint::new();
    let mut daemon = Foreground::start(&mountpoint, &[]);
    let file = fs::File::open(mountpoint.path().join("air_temperature/data.raw")).unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    wait_for("the unmount", || !is_mounted(&mountpoint.path()));
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait(), 1);
    drop(file);
}

#[test]
fn a_mount_that_hangs_is_recognized_and_can_be_removed() {
    use rustix::process::Signal;
    let mountpoint = Mountpoint::new();
    let mut daemon = Foreground::start(&mountpoint, &[]);
    daemon.signal(Signal::STOP);
    // no command hangs with the mount, and each names what ends it
    let run = |args: &[&str]| {
        let output = support::with_timeout(120, ZARRFS)
            .args(args)
            .arg(mountpoint.path())
            .output()
            .unwrap();
        failure(&output)
    };
    for args in [
        &["stats"][..],
        &["stats", "--json"],
        &["stats", "--prometheus"],
        &["stats", "--watch", "1s"],
        &["umount"],
    ] {
        let (code, said) = run(args);
        let said = said.lines().next().unwrap().to_string();
        assert!(
            code == 1 && said.contains(": does not answer: "),
            "{args:?}: {said}"
        );
        assert!(
            said.contains("umount --force") && said.contains("/sys/fs/fuse/connections/"),
            "{args:?}: {said}"
        );
    }
    let (code, said) = run(&["mount", &sample()]);
    assert!(code == 5 && said.contains("mounted here already"), "{said}");
    // a path in the mount is found without asking the daemon
    let output = support::with_timeout(60, ZARRFS)
        .arg("stats")
        .arg(mountpoint.path().join("lat"))
        .output()
        .unwrap();
    assert!(failure(&output).1.contains("does not answer"), "{output:?}");
    assert!(
        zarrfs(&["umount", "--lazy", &mountpoint.text()])
            .status
            .success()
    );
    assert!(!is_mounted(&mountpoint.path()));
    daemon.signal(Signal::CONT);
    assert_eq!(daemon.wait(), 0);
}

#[test]
fn the_daemon_inherits_no_files_of_its_caller() {
    let mountpoint = Mountpoint::new();
    let lock = mountpoint.directory.path().join("lock");
    let shell = format!("exec 9>{} && flock 9 && exec \"$0\" \"$@\"", lock.display());
    let status = Command::new("bash")
        .args(["-c", &shell, ZARRFS, "mount", &sample(), &mountpoint.text()])
        .status();
    assert!(status.unwrap().success());
    let free = Command::new("flock")
        .args(["-n", lock.to_str().unwrap(), "true"])
        .status()
        .unwrap();
    assert!(free.success(), "the lock is still held");
    let stats = fs::read_to_string(mountpoint.path().join(".zarrfs/stats")).unwrap();
    let pid = stats
        .lines()
        .find_map(|l| l.strip_prefix("pid"))
        .unwrap()
        .trim()
        .to_string();
    assert_eq!(
        fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(),
        "zarrfs\n"
    );
    assert!(unmount(mountpoint.path()).status.success());
}

#[test]
fn umount_names_the_reason_why_it_fails() {
    let mountpoint = Mountpoint::new();
    let mut daemon = Foreground::start(&mountpoint, &[]);
    let file = fs::File::open(mountpoint.path().join("air_temperature/data.raw")).unwrap();
    let (code, said) = failure(&unmount(mountpoint.path()));
    assert!(
        code == 1 && said.contains("in use") && said.contains("--lazy"),
        "{said}"
    );
    assert!(is_mounted(&mountpoint.path()));
    assert!(
        zarrfs(&["umount", "--lazy", &mountpoint.text()])
            .status
            .success()
    );
    drop(file);
    assert_eq!(daemon.wait(), 0);
    let (code, said) = failure(&zarrfs(&["umount", &mountpoint.text()]));
    assert!(code == 1 && said.contains("nothing is mounted"), "{said}");
}

#[test]
fn a_stale_mount_is_recognized_and_can_be_removed() {
    let mountpoint = Mountpoint::new();
    let mut daemon = Foreground::start(&mountpoint, &[]);
    daemon.signal(rustix::process::Signal::KILL);
    daemon.wait();
    let (code, said) = failure(&zarrfs(&["mount", &sample(), &mountpoint.text()]));
    assert!(code == 7 && said.contains("zarrfs umount"), "{said}");
    assert!(unmount(mountpoint.path()).status.success());
    assert!(
        zarrfs(&["mount", &sample(), &mountpoint.text()])
            .status
            .success()
    );
    assert!(unmount(mountpoint.path()).status.success());
}

/// Neither a mount nor an unmount removes the mount of another file system or another daemon.
#[test]
fn mounts_of_other_file_systems_are_left_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let mountpoint = Mountpoint::new();
    let tmpfs = || {
        Command::new("mount")
            .args(["-t", "tmpfs", "tmpfs"])
            .arg(mountpoint.path())
            .status()
            .unwrap()
    };
    assert!(tmpfs().success());
    let (code, said) = failure(&zarrfs(&["umount", &mountpoint.text()]));
    assert!(code == 1 && said.contains("tmpfs"), "{said}");
    assert!(is_mounted(&mountpoint.path()));
    // mount a store over it, then another file system over the store: the daemon's end removes
    // neither file system
    let mut daemon = Foreground::start(&mountpoint, &[]);
    assert!(tmpfs().success());
    daemon.signal(rustix::process::Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    let types: Vec<String> = zarrfs::fuse::mounts_at(&mountpoint.path())
        .unwrap()
        .into_iter()
        .map(|m| m.fs_type)
        .collect();
    assert_eq!(types, ["tmpfs", "fuse.zarrfs", "tmpfs"]);
    assert!(
        Command::new("umount")
            .arg(mountpoint.path())
            .status()
            .unwrap()
            .success()
    );
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait(), 0);
    // detach the mount and mount again: the end of the first daemon leaves the second mount alone
    let mut first = Foreground::start(&mountpoint, &[]);
    let file = fs::File::open(mountpoint.path().join("lat/data.raw")).unwrap();
    assert!(
        zarrfs(&["umount", "-l", &mountpoint.text()])
            .status
            .success()
    );
    let mut second = Foreground::start(&mountpoint, &[]);
    drop(file);
    assert_eq!(first.wait(), 0);
    assert!(mountpoint.path().join("lat/data.raw").exists());
    second.signal(rustix::process::Signal::TERM);
    assert_eq!(second.wait(), 0);
}

#[test]
fn owner_and_modes_come_from_the_options() {
    use std::os::unix::fs::MetadataExt;
    let mount = Mount::new(
        &test_data("sample.zarr"),
        &[
            "--uid",
            "1234",
            "-o",
            "gid=4321,umask=027,allow_other,nofail",
        ],
    );
    let file = fs::metadata(mount.join("air_temperature/data.raw")).unwrap();
    assert_eq!(
        (file.uid(), file.gid(), file.mode() & 0o7777),
        (1234, 4321, 0o640)
    );
    assert_eq!(
        fs::metadata(mount.join("air_temperature")).unwrap().mode() & 0o7777,
        0o750
    );
}

#[test]
fn mountpoints_with_unusual_names_and_relative_paths_work() {
    let mountpoint = Mountpoint::new();
    let odd = mountpoint.path().join("a b\\c,d\n\u{e9}");
    fs::create_dir(&odd).unwrap();
    let run = |args: &[&str]| {
        Command::new(ZARRFS)
            .args(args)
            .current_dir(mountpoint.path())
            .output()
            .unwrap()
    };
    let name = odd.file_name().unwrap().to_str().unwrap();
    let output = run(&["mount", &sample(), name]);
    assert!(output.status.success(), "{output:?}");
    assert!(odd.join("lat/data.raw").exists());
    let output = answered(|| run(&["umount", name]));
    assert!(output.status.success(), "{output:?}");
    assert!(!is_mounted(&odd));
}

#[test]
fn a_store_can_be_mounted_on_itself() {
    let directory = tempfile::tempdir().unwrap();
    copy_tree(&test_data("sample.zarr"), directory.path());
    let path = directory.path().to_str().unwrap();
    assert!(zarrfs(&["mount", path, path]).status.success());
    assert!(directory.path().join("lat/data.raw").exists());
    assert!(unmount(path).status.success());
}

#[test]
fn info_lists_groups_and_arrays() {
    let short = String::from_utf8(zarrfs(&["info", &sample()]).stdout).unwrap();
    let line = |tree: &str| {
        tree.lines()
            .find(|l| l.trim_start().starts_with("sea_surface"))
            .unwrap()
            .to_string()
    };
    assert!(
        line(&short).contains("array  <f4  (time 4, lat 37, lon 53)"),
        "{short}"
    );
    assert!(
        short.lines().all(|line| line.chars().count() <= 80),
        "{short}"
    );
    let wide = String::from_utf8(zarrfs(&["info", "--wide", &sample()]).stdout).unwrap();
    assert!(
        line(&wide).contains("10/18 chunks") && line(&wide).contains("zlib"),
        "{wide}"
    );
    let list: serde_json::Value =
        serde_json::from_slice(&zarrfs(&["info", "--json", &sample()]).stdout).unwrap();
    let find = |path: &str| {
        list.as_array()
            .unwrap()
            .iter()
            .find(|a| a["path"] == path)
            .unwrap()
            .clone()
    };
    let array = find("/air_temperature");
    assert_eq!(array["shape"], serde_json::json!([62, 37, 53]));
    assert_eq!(
        (&array["chunks_initialised"], &array["chunks_in_grid"]),
        (&27.into(), &27.into())
    );
    assert_eq!(array["decoded_bytes"], 62 * 37 * 53 * 2);
    let stored: u64 = (fs::read_dir(test_data("sample.zarr/air_temperature")).unwrap())
        .map(|e| e.unwrap())
        .filter(|e| !e.file_name().to_str().unwrap().starts_with('.'))
        .map(|e| e.metadata().unwrap().len())
        .sum();
    assert_eq!(array["stored_bytes"], stored);
    assert_eq!(find("/ocean")["kind"], "group");
}

#[test]
fn cat_reports_why_it_fails() {
    let group = failure(&zarrfs(&["cat", &sample()]));
    assert!(group.0 == 3 && group.1.contains("a group"), "{group:?}");
    let none = failure(&zarrfs(&["cat", &format!("{}/nothing", sample())]));
    assert!(
        none.0 == 3 && none.1.contains("no such group or array in "),
        "{none:?}"
    );
    let mut child = Command::new(ZARRFS)
        .args(["cat", &format!("{}/air_temperature", sample())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(
        child.wait().unwrap().success(),
        "a closed pipe is no failure"
    );
}

#[test]
fn paths_that_are_no_store_have_messages_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("notes.txt");
    fs::write(&plain, "text").unwrap();
    let plain = plain.to_str().unwrap().to_string();
    let broken = directory.path().join("broken.zip");
    fs::write(&broken, "text").unwrap();
    let sample = sample();
    let broken = broken.to_str().unwrap().to_string();
    for (path, code, why) in [
        (format!("{sample}/typo"), 3, "no such group or array in "),
        (
            format!("{sample}/ocean/typo/x"),
            3,
            "no such group or array in ",
        ),
        (
            format!("{sample}/lat/x"),
            3,
            "is an array, which can't contain any",
        ),
        (format!("{sample}/lat/0"), 3, "a file of the array "),
        (format!("{sample}/lat/.zarray"), 3, "a file of the array "),
        (format!("{sample}/.zgroup"), 3, "a file in a group"),
        (plain.clone(), 4, "a file, but no zip archive"),
        (format!("{plain}/x"), 4, "a file, but no zip archive"),
        (broken, 4, "not a zip archive, or truncated"),
        (
            directory.path().to_str().unwrap().to_string(),
            4,
            "not a Zarr store: it has no zarr.json",
        ),
        (format!("{plain}s"), 3, "no such store"),
    ] {
        for verb in ["info", "ls", "check", "cat"] {
            let said = failure(&zarrfs(&[verb, &path]));
            assert!(
                said.0 == code && said.1.contains(&format!("{path}: ")) && said.1.contains(why),
                "{verb}: {said:?}"
            );
        }
    }
}

/// Names that are likely to be confused have messages that say which one to give.
#[test]
fn a_group_or_a_file_of_mounts_in_place_of_an_array_is_told() {
    let sample = sample();
    let directory = tempfile::tempdir().unwrap();
    let archive = support::servers::zip(&test_data("sample.zarr"), directory.path(), "s.zip", true);
    let archive = archive.to_str().unwrap();
    let group = failure(&zarrfs(&["cat", &sample]));
    let advice = format!("a group, not an array; name an array in it: `zarrfs ls {sample}` lists");
    assert!(group.0 == 3 && group.1.contains(&advice), "{group:?}");
    for store in [&sample, archive] {
        for (verb, name) in [
            ("cat", "data.raw"),
            ("info", "data.raw"),
            ("cat", "data.npy"),
        ] {
            let said = failure(&zarrfs(&[verb, &format!("{store}/lat/{name}")]));
            let advice = format!(
                "{store}/lat/{name}: {name} is a file of mounts, not of stores; name the array, as in \
                 `zarrfs cat {store}/lat`"
            );
            assert!(said.0 == 3 && said.1.contains(&advice), "{verb}: {said:?}");
        }
    }
    // a file that exists is no name of a mount
    let stray = directory.path().join("data.raw");
    fs::write(&stray, "text").unwrap();
    let said = failure(&zarrfs(&["cat", stray.to_str().unwrap()]));
    assert!(said.1.contains("a file, but no zip archive"), "{said:?}");
}

#[test]
fn swapped_arguments_of_a_mount_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().to_str().unwrap();
    let missing = format!("{empty}/missing");
    let sample = sample();
    for store in [&sample, "http://127.0.0.1:1/x.zarr"] {
        for mountpoint in [empty, &missing] {
            let said = failure(&zarrfs(&["mount", mountpoint, store]));
            let advice = format!(
                "{mountpoint}: no Zarr store, but the mountpoint is one; name the store first: \
                 zarrfs mount {store} {mountpoint}"
            );
            assert!(said.0 == 2 && said.1.contains(&advice), "{said:?}");
        }
    }
    assert!(!is_mounted(Path::new(&sample)) && !is_mounted(directory.path()));
}

/// "The mount hides its files": as mount(8), a mount over a directory that is not empty succeeds.
#[test]
fn a_mount_over_files_says_that_it_hides_them() {
    for (file, mounts_store) in [(None, false), (Some("notes.txt"), false), (None, true)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mnt");
        copy_tree(&test_data("sample.zarr"), &directory.path().join("s.zarr"));
        let store = directory.path().join("s.zarr");
        let path = if mounts_store { store.clone() } else { path };
        fs::create_dir_all(&path).unwrap();
        if let Some(name) = file {
            fs::write(path.join(name), "text").unwrap();
        }
        let output = zarrfs(&["mount", store.to_str().unwrap(), path.to_str().unwrap()]);
        let mounted = is_mounted(&path);
        let hidden = file.is_some_and(|name| path.join(name).exists());
        unmount(&path);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && mounted && !hidden, "{said}");
        if file.is_some() {
            let shown = path.display();
            assert_eq!(
                said,
                format!(
                    "zarrfs: warn: {shown}: the directory is not empty: the mount hides its files until the unmount\n"
                )
            );
        } else {
            assert_eq!(said, "");
        }
    }
}

#[test]
fn a_missing_array_in_an_archive_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let archive = support::servers::zip(&test_data("sample.zarr"), directory.path(), "s.zip", true);
    let path = format!("{}/typo", archive.to_str().unwrap());
    let said = failure(&zarrfs(&["info", &path]));
    assert!(
        said.0 == 3 && said.1.contains(&format!("{path}: no such group or array")),
        "{said:?}"
    );
}

/// Returns the lines that `zarrfs stats` prints.
fn stats(args: &[&str]) -> Vec<String> {
    let output = answered(|| zarrfs(&[&["stats"], args].concat()));
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_string)
        .collect()
}

#[test]
fn stats_shows_the_counters_of_a_mount() {
    let mount = Mount::new(Path::new(&sample()), &[]);
    let read = fs::read(mount.join("air_temperature/data.raw"))
        .unwrap()
        .len();
    let here = mount.path().to_str().unwrap().to_string();
    let lines = stats(&[&here]);
    let value = |name: &str| {
        let line = lines
            .iter()
            .find(|l| l.starts_with(&format!("{name}  ")))
            .unwrap_or_else(|| panic!("{lines:?}"));
        line[name.len()..].trim().to_string()
    };
    assert!(value("store time").ends_with("s"), "{lines:?}");
    assert_eq!(value("store"), sample());
    // all values begin in the same column
    let columns = lines.iter().map(|l| {
        l.find("  ")
            .map(|at| at + l[at..].len() - l[at..].trim_start().len())
    });
    assert_eq!(
        columns.collect::<std::collections::BTreeSet<_>>().len(),
        1,
        "{lines:?}"
    );
    // any path in the mount does as well, and --json prints the document unchanged
    let json = stats(&["--json", mount.join("ocean").to_str().unwrap()]);
    assert_eq!(json.len(), 1);
    let document: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!(document["store"], sample());
    // the kernel may have requested a page twice, and reading the statistics counts as well
    let later = document["bytes_served"].as_u64().unwrap() as f64 / 1024.0;
    let shown: f64 = value("bytes served")
        .strip_suffix(" KiB")
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        (read as f64 / 1024.0).round() - 0.5 <= shown && shown <= later + 0.1,
        "{shown} of {later}"
    );
}

#[test]
fn stats_watch_ends_with_the_mount_or_on_a_signal() {
    use rustix::process::{Pid, Signal, kill_process};
    let mut mount = Some(Mount::new(Path::new(&sample()), &[]));
    let here = mount.as_ref().unwrap().path().to_str().unwrap().to_string();
    let watch = |more: &[&str]| {
        let mut command = Command::new(ZARRFS);
        command
            .args(["stats", "--watch", "100ms"])
            .args(more)
            .arg(&here);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let lines = |child: &mut Child, n| {
        let mut out = std::io::BufReader::new(child.stdout.as_mut().unwrap());
        let read = std::iter::from_fn(|| {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut out, &mut line)
                .ok()
                .filter(|n| *n > 0)
                .map(|_| line)
        });
        read.take(n).collect::<Vec<_>>()
    };
    let end = |child: Child| {
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (
                output.status.code(),
                String::from_utf8(output.stderr).unwrap().as_str()
            ),
            (Some(0), "")
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let mut broken = watch(&[]);
    lines(&mut broken, 1);
    broken.stdout = None;
    end(broken);
    let mut interrupted = watch(&[]);
    lines(&mut interrupted, 1);
    kill_process(Pid::from_child(&interrupted), Signal::INT).unwrap();
    end(interrupted);
    let mut watched = watch(&[]);
    lines(&mut watched, 1);
    fs::read(mount.as_ref().unwrap().join("air_temperature/data.raw")).unwrap();
    let mut out = std::io::BufReader::new(watched.stdout.as_mut().unwrap());
    let mut said = String::new();
    while !(said.starts_with("bytes served ") && said.ends_with("iB/s\n")) {
        said.clear();
        let len = std::io::BufRead::read_line(&mut out, &mut said).unwrap();
        assert!(len > 0, "no rate");
    }
    mount = None;
    std::io::Read::read_to_string(&mut out, &mut said).unwrap();
    end(watched);
    assert!(said.ends_with('\n'));
    drop(mount);
}

#[test]
fn stats_names_the_reason_why_it_fails() {
    let mountpoint = Mountpoint::new();
    let mount = Mount::new(Path::new(&sample()), &[]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(ZARRFS)
        .arg("stats")
        .arg(mount.path())
        .stdout(full)
        .output()
        .unwrap();
    let (code, said) = failure(&output);
    assert!(
        code == 1 && said.contains("standard output: No space left on device"),
        "{said}"
    );
    drop(mount);
    let (code, said) = failure(&zarrfs(&["stats", &mountpoint.text()]));
    assert!(
        code == 5 && said.contains("not in a mount of zarrfs"),
        "{said}"
    );
    let (code, said) = failure(&zarrfs(&["stats", "/proc/self"]));
    assert!(
        code == 5 && said.contains("not in a mount of zarrfs"),
        "{said}"
    );
    let (code, said) = failure(&zarrfs(&["stats", &(mountpoint.text() + "/none")]));
    assert!(code == 5 && said.contains("no such file"), "{said}");
    assert_eq!(
        zarrfs(&["stats", "--watch", "1", &mountpoint.text()])
            .status
            .code(),
        Some(2)
    );
    let mut daemon = Foreground::start(&mountpoint, &[]);
    daemon.signal(rustix::process::Signal::KILL);
    daemon.wait();
    let (code, said) = failure(&answered(|| zarrfs(&["stats", &mountpoint.text()])));
    assert!(code == 7 && said.contains("zarrfs umount"), "{said}");
}

#[test]
fn a_log_without_a_reader_does_not_stop_the_mount() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let mountpoint = Mountpoint::new();
    let sample = test_data("sample.zarr");
    let args = [
        "mount",
        "--log-level",
        "trace",
        "--log-file",
        fifo.to_str().unwrap(),
        sample.to_str().unwrap(),
    ];
    let mount = || {
        support::with_timeout(180, ZARRFS)
            .args(args)
            .arg(mountpoint.path())
            .output()
            .unwrap()
    };
    let (code, said) = failure(&mount());
    assert!(
        code == 1 && said.contains("FIFO") && said.contains("name a file"),
        "{code} {said}"
    );
    // a FIFO that is open for reading but never read, with more log lines than it holds
    let _reader = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&fifo)
        .unwrap();
    let output = mount();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listing = support::with_timeout(180, "sh")
        .args([
            "-c",
            "for i in $(seq 2000); do stat \"$0/nothing$i\" 2>/dev/null; done; cat \"$0/lat/data.raw\" | wc -c",
        ])
        .arg(mountpoint.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&listing.stdout).trim(), "148");
    assert!(unmount(mountpoint.path()).status.success());
}

/// "SIGHUP opens the file of `--log-file` again."
#[test]
fn a_log_that_was_renamed_is_opened_again() {
    let mountpoint = Mountpoint::new();
    let folder = tempfile::tempdir().unwrap();
    let (log, old) = (folder.path().join("log"), folder.path().join("log.1"));
    let has =
        |log: &Path, text: &str| fs::read_to_string(log).is_ok_and(|said| said.contains(text));
    // a relative name, and a process in the background, which leaves the directory
    let mut command = Command::new(ZARRFS);
    command
        .current_dir(folder.path())
        .args(["mount", "--log-level", "debug", "--log-file", "log"]);
    assert!(
        command
            .arg(sample())
            .arg(mountpoint.path())
            .status()
            .unwrap()
            .success()
    );
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(mountpoint.path().join(".zarrfs/stats.json")).unwrap())
            .unwrap();
    let daemon = rustix::process::Pid::from_raw(stats["pid"].as_i64().unwrap() as i32).unwrap();
    assert!(!mountpoint.path().join("first").exists());
    wait_for("the first line", || has(&log, "lookup /first"));
    fs::rename(&log, &old).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::HUP).unwrap();
    wait_for("the new file", || log.exists());
    // the guard makes the file before the daemon has it
    let mut names = 0;
    wait_for("the second line", || {
        names += 1;
        assert!(!mountpoint.path().join(format!("second{names}")).exists());
        has(&log, "lookup /second")
    });
    assert!(!mountpoint.path().join("third").exists());
    wait_for("the third line", || has(&log, "lookup /third"));
    assert!(has(&old, "/first") && !has(&old, "/third") && !has(&log, "/first"));
    assert!(unmount(mountpoint.path()).status.success());
}

/// No path of the daemon leads through its mount, by whatever name: a thread that waits for its own
/// process can't be killed.
#[test]
fn a_mountpoint_on_a_path_of_the_daemon_is_refused() {
    let mountpoint = Mountpoint::new();
    let top = fs::canonicalize(mountpoint.directory.path()).unwrap();
    let here = mountpoint.text();
    let path = |name: &str| top.join(name).to_str().unwrap().to_string();
    copy_tree(&test_data("sample.zarr"), &top.join("mnt/inner.zarr"));
    copy_tree(&test_data("sample.zarr"), &top.join("store.zarr"));
    fs::create_dir(top.join("store.zarr/lat/mnt")).unwrap();
    for (target, link) in [
        ("mnt", "link"),
        ("mnt/inner.zarr", "store"),
        ("mnt/../store.zarr", "around"),
        ("..", "mnt/up"),
    ] {
        std::os::unix::fs::symlink(target, top.join(link)).unwrap();
    }
    let store = path("store.zarr");
    let option = |option: &str, name: &str| {
        vec![
            format!("--{option}={}", path(name)),
            store.clone(),
            here.clone(),
        ]
    };
    let cases = [
        vec![path("mnt/inner.zarr"), here.clone()],
        vec![path("link/inner.zarr/lat"), here.clone()],
        vec![path("store"), here.clone()],
        vec![path("mnt/inner.zarr"), path("link")],
        vec![path("store.zarr"), path("store.zarr/lat/mnt")],
        vec![
            path("around/../store.zarr"),
            path("mnt/up/store.zarr/lat/mnt"),
        ],
        option("overlay", "link/new"),
        option("overlay", "mnt"),
        option("spill-dir", "link"),
        option("log-file", "link/log"),
        option("log-file", "mnt/up/log"),
        option("synchronizer", "link/locks"),
        option("allow-reference", "link/inner.zarr"),
        vec![
            "--cache-dir".into(),
            path("mnt/cache"),
            "http://127.0.0.1:1/x.zarr".into(),
            here.clone(),
        ],
        vec![
            "--cache-dir".into(),
            path(""),
            "http://127.0.0.1:1/x.zarr".into(),
            here.clone(),
        ],
    ];
    let run = |args: &[String], variable: &str, value: &str| {
        let mut command = support::with_timeout(60, ZARRFS);
        command.arg("mount").args(args).env(variable, value);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        failure(&output)
    };
    for args in cases {
        let (code, said) = run(&args, "NONE", "");
        let is_named =
            said.contains(": leads through the mountpoint ") || said.contains(": inside the ");
        assert!(code == 5 && is_named, "{args:?}: {code} {said}");
        assert!(!is_mounted(&mountpoint.path()), "{args:?}");
    }
    for (variable, value) in [
        ("HOME", path("mnt/up")),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", path("link/token")),
    ] {
        let (code, said) = run(
            &["http://127.0.0.1:1/x.zarr".into(), here.clone()],
            variable,
            &value,
        );
        assert!(code == 5 && said.contains(variable), "{code} {said}");
    }
    // links of the same names that lead elsewhere
    let beside = top.join("beside");
    fs::create_dir(&beside).unwrap();
    std::os::unix::fs::symlink("../beside", top.join("mnt/out")).unwrap();
    let args = [
        format!("--spill-dir={}", path("beside")),
        format!("--overlay={}", path("beside/o")),
    ];
    let output = support::with_timeout(60, ZARRFS)
        .arg("mount")
        .args(args)
        .args([&path("store.zarr"), &here])
        .output();
    assert!(output.as_ref().unwrap().status.success(), "{output:?}");
    assert!(mountpoint.path().join("lat/data.raw").exists());
    assert!(unmount(&here).status.success());
}

#[test]
fn the_debug_log_has_a_line_for_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("x.zarr");
    let log = folder.path().join("log");
    copy_tree(&test_data("sample.zarr"), &store);
    fs::write(store.join("air_temperature/0.0.0"), "damaged").unwrap();
    let log_of = |args: &[&str]| {
        let mountpoint = Mountpoint::new();
        let _ = fs::remove_file(&log);
        let args = [
            args,
            &["--log-file", log.to_str().unwrap(), store.to_str().unwrap()],
        ]
        .concat();
        assert!(
            zarrfs(&[&["mount"], &args[..], &[&mountpoint.text()]].concat())
                .status
                .success()
        );
        assert_eq!(
            fs::read(mountpoint.path().join("lat/data.raw"))
                .unwrap()
                .len(),
            148
        );
        assert!(!mountpoint.path().join("nothing").exists());
        let error = fs::read(mountpoint.path().join("air_temperature/data.raw")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert!(unmount(mountpoint.path()).status.success());
        fs::read_to_string(&log).unwrap()
    };
    let has = |log: &str, parts: &[&str]| {
        log.lines()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    };
    let debug = log_of(&["--log-level", "debug"]);
    assert!(
        has(
            &debug,
            &[
                "DEBUG read /lat/data.raw offset 0 length ",
                ": ok, ",
                "s, ",
                " bytes decoded"
            ]
        ),
        "{debug}"
    );
    assert!(
        has(&debug, &["DEBUG lookup /nothing: errno 2 ("]),
        "{debug}"
    );
    assert!(
        has(
            &debug,
            &[
                "ERROR read /air_temperature/data.raw offset 0 length ",
                ": errno 5 (",
                "blosc"
            ]
        ),
        "{debug}"
    );
    let usual = log_of(&[]);
    assert!(
        has(
            &usual,
            &[
                "ERROR read /air_temperature/data.raw offset 0 length ",
                ": EIO: ",
                "blosc"
            ]
        ),
        "{usual}"
    );
    assert!(!usual.contains("DEBUG"), "{usual}");
}
