//! "A store that cannot be written is mounted writable": archives, web servers and directories with
//! an overlay are changed by zarr-python, mounted again, compared, committed to copies, which
//! zarr-python reads, and left unchanged. The daemon and the commit are killed at each system call
//! that changes the overlay or the store.

use crate::support;
use crate::support::array::TestArray;
use crate::support::daemon::Daemon;
use crate::support::session::CALLS;
use crate::support::tracer::{self, Tracer};
use crate::support::{
    Mount, ZARRFS, announce, copy_tree, digest, env_path, failure, is_installed, run_python,
    servers, text, zarrfs,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = "overlay.py";

/// Returns what zarr-python finds in groups.
fn printed<P: AsRef<OsStr>>(python: &Path, groups: &[P]) -> Vec<Value> {
    let mut args = vec![OsStr::new("print")];
    args.extend(groups.iter().map(AsRef::as_ref));
    run_python(python, SCRIPT, &args)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Runs `zarrfs overlay` with success, and returns what it printed.
fn overlay(args: &[&str]) -> String {
    let output = zarrfs(&[&["overlay"], args].concat());
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the digest of each file below a directory.
fn files(root: &Path) -> BTreeMap<PathBuf, (u64, String)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path())
            } else {
                drop(found.insert(entry.path(), digest(&entry.path()).unwrap()))
            }
        }
    }
    found
}

/// Changes a store through an overlay with zarr-python, mounts it again, and commits the changes to
/// a copy.
fn change_and_commit(python: &Path, folder: &Path, original: &Path, mount: &dyn Fn(&str) -> Mount) {
    let changes = folder.join("changes");
    let copy = folder.join("copy");
    copy_tree(original, &copy);
    let mounted = mount(text(&changes));
    run_python(
        python,
        SCRIPT,
        &[OsStr::new("change"), mounted.path().as_os_str()],
    );
    let changed = printed(python, &[mounted.path()]).remove(0);
    assert_eq!(
        (&changed["deleted"], &changed[""]["title"]),
        (&Value::Null, &json!("changed")),
        "{changed}"
    );
    mounted.assert_no_problem();
    let (code, message) = failure(&zarrfs(&["overlay", "commit", text(&changes), text(&copy)]));
    assert!(
        code == 1 && message.contains("in use by another mount"),
        "{message}"
    );
    drop(mounted);

    let mounted = mount(text(&changes));
    assert_eq!(printed(python, &[mounted.path()]).first(), Some(&changed));
    assert!(!mounted.join("deleted").exists() && mounted.join("group").is_dir());
    drop(mounted);

    let summary = overlay(&["diff", text(&changes)]);
    for part in ["/changed: ", "/deleted: ", "/new: ", "removed"] {
        assert!(
            summary.contains(part) && !summary.contains("conflict"),
            "{summary}"
        );
    }
    let listed: Value =
        serde_json::from_str(&overlay(&["diff", "--keys", "--json", text(&changes)])).unwrap();
    let keys = overlay(&["diff", "--keys", text(&changes)]);
    let is_key = |line: &&str| {
        line.starts_with("changed ") || line.starts_with("removed ") || line.starts_with("made ")
    };
    assert_eq!(
        listed["keys"].as_array().unwrap().len(),
        keys.lines().filter(is_key).count()
    );

    assert!(overlay(&["commit", text(&changes), text(&copy)]).contains(" keys committed"));
    assert_eq!(printed(python, &[&copy]), [changed]);
    assert!(!copy.join("deleted").exists(), "the array is removed");
    assert_eq!(overlay(&["diff", text(&changes)]), "");
    let output = zarrfs(&["check", "--deep", text(&copy)]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    overlay(&["discard", "--yes", text(&changes)]);
    assert!(!changes.exists());
}

fn stores(python: &Path, folder: &Path) -> [PathBuf; 2] {
    run_python(
        python,
        SCRIPT,
        &[OsStr::new("make"), folder.join("s").as_os_str()],
    );
    ["s", "s.v3"].map(|name| folder.join(name))
}

#[test]
fn an_archive_is_changed_and_committed_to_a_copy() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for (n, store) in stores(&python, folder.path()).iter().enumerate() {
        let archive = servers::zip(store, folder.path(), &format!("{n}.zip"), n == 0);
        let before = digest(&archive).unwrap();
        let place = folder.path().join(n.to_string());
        fs::create_dir(&place).unwrap();
        change_and_commit(&python, &place, store, &|changes| {
            Mount::new(&archive, &["--overlay", changes])
        });
        assert_eq!(digest(&archive).unwrap(), before);
    }
}

#[test]
fn a_store_on_a_web_server_is_changed_and_committed_to_a_copy() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let stores = stores(&python, folder.path());
    let Some(server) = servers::nginx(folder.path(), "") else {
        return;
    };
    for store in stores {
        let name = store.file_name().unwrap().to_str().unwrap();
        let place = folder.path().join(format!("{name}.place"));
        fs::create_dir(&place).unwrap();
        change_and_commit(&python, &place, &store, &|changes| {
            server.store(name).mount(&["--overlay", changes])
        });
    }
}

/// Creates a store with one array of `<i4`, whose chunks are the files 0, 1, 2 and 3.
fn small_store(path: &Path) -> TestArray {
    let array = TestArray::with_chunks(path.join("a"), &[8], &[2], json!({"dtype": "<i4"}));
    fs::write(path.join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
    array
}

#[test]
fn a_chunk_that_the_store_has_changed_is_reported_and_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s");
    let changes = folder.path().join("changes");
    let array = small_store(&store);
    let before = files(&store);
    let overlaid = Mount::new(&store, &["--overlay", text(&changes)]);
    for chunk in ["0", "1"] {
        fs::write(overlaid.join("a").join(chunk), [7; 8]).unwrap();
    }
    fs::remove_file(overlaid.join("a/2")).unwrap();
    drop(overlaid);
    assert_eq!(files(&store), before, "the store is not written");

    for (chunk, theirs) in [(1, 9u8), (2, 8)] {
        fs::write(array.file(&[chunk]), [theirs; 8]).unwrap();
    }
    let overlaid = Mount::new(&store, &["--overlay", text(&changes)]);
    for _ in 0..2 {
        let flat = fs::read(overlaid.join("a/data.raw")).unwrap();
        assert_eq!(flat, [&[7; 16][..], &[0; 8], &array.flat[24..]].concat());
    }
    // a partial write is merged with the overlay's bytes
    let file = support::open_for_writing(&overlaid.join("a/data.raw"));
    file.write_all_at(&[6], 8).unwrap();
    support::close(file).unwrap();
    let problems = overlaid.stats();
    let is_problem = |line: &&str| {
        line.starts_with("problem ") && line.contains("/a/1: the store below has changed")
    };
    assert_eq!(problems.lines().filter(is_problem).count(), 1, "{problems}");
    drop(overlaid);
    assert_eq!(
        fs::read(changes.join("store/a/1")).unwrap(),
        [6, 7, 7, 7, 7, 7, 7, 7]
    );

    let summary = overlay(&["diff", "--keys", text(&changes)]);
    assert!(
        summary.contains("2 chunks changed, 1 chunk removed, 2 in conflict with the store"),
        "{summary}"
    );
    assert!(
        summary.contains("changed /a/1 (conflict)\n") && summary.contains("changed /a/0\n"),
        "{summary}"
    );
    let output = zarrfs(&["overlay", "commit", text(&changes)]);
    let (code, message) = failure(&output);
    assert!(
        code == 1 && message.contains("2 keys differ from what was changed"),
        "{message}"
    );
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("conflict: /a/1: ") && said.contains("conflict: /a/2: "),
        "{said}"
    );
    let stored = [0, 1, 2].map(|chunk| fs::read(array.file(&[chunk])).unwrap());
    assert_eq!(
        stored,
        [[7; 8], [9; 8], [8; 8]],
        "one chunk is committed, theirs stay"
    );

    let (code, message) = failure(&zarrfs(&["overlay", "discard", text(&changes), "a/1"]));
    assert!(
        code == 2 && message.ends_with("repeat with --yes"),
        "{message}"
    );
    assert!(
        overlay(&["discard", "--yes", text(&changes), "a/1", "/a"]).contains("2 changes discarded")
    );
    assert_eq!(
        overlay(&["commit", text(&changes)]),
        format!("{}: 0 keys committed\n", store.display())
    );
}

#[test]
fn wrong_directories_and_options_end_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s");
    let other = folder.path().join("o");
    let changes = folder.path().join("changes");
    small_store(&store);
    small_store(&other);
    let mountpoint = folder.path().join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let refused = |store: &Path, directory: &Path, more: &[&str]| {
        let mut args = vec![
            "mount",
            text(store),
            text(&mountpoint),
            "--overlay",
            text(directory),
        ];
        args.extend(more);
        failure(&zarrfs(&args))
    };
    let expect = |(code, message): (i32, String), expected: i32, part: &str| {
        assert!(
            code == expected && message.contains(part),
            "{code}: {message}"
        );
    };
    drop(Mount::new(&store, &["--overlay", text(&changes)]));
    expect(refused(&other, &changes, &[]), 2, "an overlay of ");
    expect(
        refused(&store, &other, &[]),
        2,
        "neither empty nor an overlay",
    );
    expect(
        refused(&store, &store.join("x"), &[]),
        2,
        "choose another directory",
    );
    expect(refused(&store, folder.path(), &[]), 5, "inside the overlay");
    expect(
        refused(&store, &mountpoint, &[]),
        5,
        "leads through the mountpoint",
    );
    expect(
        refused(Path::new("memory:"), &changes, &[]),
        2,
        "can be written itself",
    );
    for option in ["--stores", "--synchronizer=/tmp"] {
        let output = zarrfs(&[
            "mount",
            text(&store),
            text(&mountpoint),
            "--overlay",
            text(&changes),
            option,
        ]);
        let message = String::from_utf8_lossy(&output.stderr).to_string();
        assert!(
            output.status.code() == Some(2) && message.contains("cannot be used with"),
            "{message}"
        );
    }
    expect(
        refused(
            &folder.path().join("nothing"),
            &folder.path().join("new"),
            &[],
        ),
        3,
        "no such store",
    );
    assert!(
        !folder.path().join("new").exists(),
        "nothing is created for a wrong store"
    );

    let verb = |args: &[&str]| failure(&zarrfs(&[&["overlay"], args].concat()));
    expect(
        verb(&["diff", text(&folder.path().join("new"))]),
        3,
        "no such directory",
    );
    expect(verb(&["commit", text(&other)]), 2, "not an overlay");
    expect(
        verb(&["discard", text(&changes)]),
        2,
        "all changes would be lost",
    );
    expect(
        verb(&["discard", "--yes", text(&changes), "a/0"]),
        3,
        "/a/0: not changed",
    );
    let archive = servers::zip(&store, folder.path(), "s.zip", true);
    expect(
        verb(&["commit", text(&changes), text(&archive)]),
        1,
        "name a copy of it",
    );
    fs::write(
        changes.join("overlay.json"),
        "{\"zarrfs_overlay\": 2, \"store\": \"\"}",
    )
    .unwrap();
    expect(refused(&store, &changes, &[]), 2, "format 2");
    expect(verb(&["diff", text(&changes)]), 2, "format 2");
}

/// Files in an overlay that no zarrfs has written make requests fail, or are ignored. The daemon
/// survives them. "A mount with `--read-only` (`-o ro`) shows an overlay that exists, and changes
/// nothing in it."
#[test]
fn a_read_only_mount_shows_an_overlay() {
    let folder = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(
        folder.path().join("s/a"),
        &[4],
        &[4],
        json!({"dtype": "|u1"}),
    );
    fs::write(folder.path().join("s/.zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let store = folder.path().join("s");
    let changes = folder.path().join("changes");
    let options = ["-o", "ro", "--overlay", text(&changes)];
    let missing = folder.path().join("mnt");
    let (code, message) = failure(&zarrfs(
        &[&["mount", text(&store), text(&missing)], &options[..]].concat(),
    ));
    assert!(
        code != 0 && message.contains("changes") && !changes.exists(),
        "{code} {message}"
    );
    let mount = Mount::new(&store, &["--overlay", text(&changes)]);
    fs::write(mount.join("a/.zattrs"), r#"{"units": "K"}"#).unwrap();
    fs::write(mount.join("a/0"), [7; 4]).unwrap();
    drop(mount);
    let before = files(&changes);
    let mount = Mount::new(&store, &options);
    assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), [7; 4]);
    assert!(
        fs::read_to_string(mount.join("a/.zattrs"))
            .unwrap()
            .contains("units")
    );
    assert_eq!(
        fs::write(mount.join("a/0"), [8; 4])
            .unwrap_err()
            .raw_os_error(),
        Some(libc::EROFS)
    );
    mount.assert_no_problem();
    drop(mount);
    assert_eq!(
        (files(&changes), array.chunk(&[0])),
        (before, array.flat.clone())
    );
}

#[test]
fn hostile_files_in_an_overlay_are_errors_or_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s");
    let changes = folder.path().join("changes");
    let array = small_store(&store);
    let overlaid = Mount::new(&store, &["--overlay", text(&changes)]);
    fs::write(overlaid.join("a/0"), [7; 8]).unwrap();
    let records = changes.join("store/a/.zarrfs-overlay");
    fs::write(records.join("1"), "{").unwrap();
    fs::write(records.join("2"), vec![b' '; 1 << 20]).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", records.join("3")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", changes.join("store/a/passwd")).unwrap();
    fs::write(changes.join("store/a/stray"), "x").unwrap();
    fs::create_dir(records.join("4")).unwrap();
    assert_eq!(fs::read(overlaid.join("a/0")).unwrap(), [7; 8]);
    for chunk in ["1", "2", "3"] {
        assert!(fs::read(overlaid.join("a").join(chunk)).is_err(), "{chunk}");
    }
    assert!(!overlaid.join("a/stray").exists() && !overlaid.join("a/passwd").exists());
    let (code, message) = failure(&zarrfs(&["overlay", "diff", text(&changes)]));
    assert!(code == 1 && message.contains("record"), "{message}");
    for record in ["1", "2", "3"] {
        fs::remove_file(records.join(record)).unwrap();
    }
    fs::remove_dir(records.join("4")).unwrap();
    let flat = fs::read(overlaid.join("a/data.raw")).unwrap();
    assert_eq!(flat, [&[7; 8], &array.flat[8..]].concat());
}

/// The changes of a session that is killed: path, and the new content, or `None` to remove it.
const STEPS: [(&str, Option<[u8; 8]>); 5] = [
    ("a/0", Some([1; 8])),
    ("a/0", Some([2; 8])),
    ("a/0", None),
    ("a/0", Some([3; 8])),
    ("a/1", None),
];

fn apply(mount: &Path, step: &(&str, Option<[u8; 8]>)) -> std::io::Result<()> {
    match step.1 {
        Some(bytes) => {
            let mut file = File::create(mount.join(step.0))?;
            file.write_all(&bytes)?;
            support::close(file)
        }
        None => fs::remove_file(mount.join(step.0)),
    }
}

/// Kills the daemon before each call of a step that changes the overlay. The next mount shows the
/// chunk as it was before the step or after it.
#[test]
fn a_kill_at_any_call_leaves_a_chunk_of_the_overlay_old_or_new() {
    if !tracer::is_available() {
        return;
    }
    let folder = support::memory_directory();
    let store = folder.path().join("s");
    let array = small_store(&store);
    let mut points = 0;
    let mut groups = HashSet::new();
    for (at, step) in STEPS.iter().enumerate() {
        for calls in [CALLS[3], CALLS[5], "?unlink,?unlinkat"] {
            for n in 1.. {
                let changes = folder.path().join(format!("{at}-{n}-{}", calls.len()));
                let args = ["--overlay", text(&changes), "--no-outlive"];
                let mut daemon = Daemon::start(&store, &args);
                let inject = format!("inject={calls}:signal=SIGKILL:when={n}");
                let tracer = Tracer::prepare(
                    daemon.pid(),
                    calls,
                    &["-e", &inject],
                    &folder.path().join("log"),
                );
                for earlier in &STEPS[..at] {
                    apply(&daemon.path(), earlier).unwrap();
                }
                let read = |mount: &Path| fs::read(mount.join(step.0)).ok();
                let old = read(&daemon.path());
                let tracer = tracer.attach().unwrap();
                let done = apply(&daemon.path(), step);
                let log = if done.is_err() {
                    tracer.wait()
                } else {
                    tracer.detach()
                };
                daemon.kill();
                drop(daemon);
                let again = Daemon::start(&store, &["--overlay", text(&changes)]);
                let found = read(&again.path());
                let new = step.1.map(Vec::from);
                assert!(
                    found == new || done.is_err() && found == old,
                    "step {at}, {calls} {n}: {found:?}\n{log}"
                );
                assert_eq!(
                    fs::read(again.path().join("a/data.raw")).unwrap()[16..],
                    array.flat[16..]
                );
                if !log.contains("killed by SIGKILL") {
                    done.unwrap();
                    break;
                }
                groups.insert(calls);
                points += 1;
            }
        }
    }
    announce(&format!("{points} stop points in an overlay"));
    assert_eq!(groups.len(), 3, "not every call was hit");
}

/// Kills a commit at each call that changes the store or the overlay. The next one finishes it.
#[test]
fn a_commit_that_is_killed_at_any_call_can_be_repeated() {
    if !is_installed("strace") {
        return;
    }
    let folder = support::memory_directory();
    let store = folder.path().join("s");
    let changes = folder.path().join("changes");
    let array = small_store(&store);
    let overlaid = Mount::new(&store, &["--overlay", text(&changes)]);
    for step in &STEPS[3..] {
        apply(overlaid.path(), step).unwrap();
    }
    fs::write(overlaid.join("a/.zattrs"), "{\"x\": 1}").unwrap();
    drop(overlaid);
    let wanted = [&[3; 8][..], &[0; 8], &array.flat[16..]].concat();
    let mut points = 0;
    for call in ["renameat", "unlinkat", "fdatasync", "fsync"] {
        for n in 1.. {
            let target = folder.path().join("t");
            let left = folder.path().join("left");
            for (from, to) in [(&store, &target), (&changes, &left)] {
                let _ = fs::remove_dir_all(to);
                copy_tree(from, to);
            }
            let mut command = Command::new("strace");
            command.args([
                "-f",
                "-e",
                &format!("trace={call}"),
                "-e",
                &format!("inject={call}:signal=SIGKILL:when={n}"),
            ]);
            command.args([ZARRFS, "overlay", "commit", text(&left), text(&target)]);
            let output = command.stdin(Stdio::null()).output().unwrap();
            let was_killed = output.status.signal() == Some(9);
            assert!(
                was_killed || output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            let flat = zarrfs(&["cat", text(&target.join("a"))]);
            assert!(
                flat.status.success(),
                "{call} {n}: the store is valid at every moment"
            );
            if !was_killed {
                break;
            }
            points += 1;
            overlay(&["commit", text(&left), text(&target)]);
            assert_eq!(
                zarrfs(&["cat", text(&target.join("a"))]).stdout,
                wanted,
                "{call} {n}"
            );
            assert_eq!(
                fs::read_to_string(target.join("a/.zattrs")).unwrap(),
                "{\"x\": 1}"
            );
            assert_eq!(overlay(&["diff", text(&left)]), "", "{call} {n}");
        }
    }
    announce(&format!("{points} stop points of a commit"));
    assert!(points > 10);
}
