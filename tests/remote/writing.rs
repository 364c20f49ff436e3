//! Writing to buckets, through real mounts and by commands. Then the vendor's own client downloads
//! the bucket, zarr-python decodes it, and the values are compared with those that the test wrote.

use crate::support;
use crate::support::array::{TestArray, pattern};
use crate::support::servers::{self, RemoteStore, Server};
use crate::support::{
    Mount, announce, close, digest, env_number, env_path, errno, random, sha256, wait_for,
    zarr_python_digests,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Number of writes of two mounts to shared chunks.
const WRITES: u64 = 10_000;

/// Returns the installed servers of buckets, one of each kind, for tests of conditional puts.
fn servers() -> Vec<(&'static str, Server)> {
    let all = [("moto", servers::moto()), ("azurite", servers::azurite())];
    all.into_iter()
        .filter_map(|(name, server)| Some((name, server?)))
        .collect()
}

fn all_servers() -> Vec<(&'static str, Server)> {
    servers()
        .into_iter()
        .chain(servers::localstack().map(|server| ("LocalStack", server)))
        .collect()
}

/// The content of a bucket below a path, as the vendor's own client downloads it.
struct Fetched(tempfile::TempDir);

impl Fetched {
    fn new(server: &Server, path: &str) -> Fetched {
        let folder = tempfile::tempdir().unwrap();
        server.download(path, folder.path());
        Fetched(folder)
    }

    fn join(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Checks that zarr-python reads these flat bytes from the array at `path`.
    #[track_caller]
    fn assert_holds(&self, path: &str, flat: &[u8]) {
        let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
            return;
        };
        assert_eq!(
            zarr_python_digests(&python, &[&self.join(path)]),
            [sha256(flat)],
            "{path}"
        );
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = support::tree::snapshot(self.0.path())
            .unwrap()
            .into_keys()
            .collect();
        names.retain(|name| !self.join(&name[1..]).is_dir());
        names
    }
}

fn compressed() -> serde_json::Value {
    json!({"compressor": {"id": "zlib", "level": 1}, "order": "F"})
}

#[test]
fn zarr_python_reads_the_values_written_to_a_bucket() {
    for (name, server) in servers() {
        let store = tempfile::tempdir().unwrap();
        let mut made =
            TestArray::with_chunks(store.path().join("a"), &[50, 300], &[16, 128], compressed());
        fs::write(store.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
        server.upload(store.path(), "bucket/w.zarr");
        let remote = server.store("bucket/w.zarr");
        {
            let mount = remote.mount(&[]);
            let array = mount.join("a");
            let mut random = random(11);
            for round in 0..4 {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(array.join("data.raw"))
                    .unwrap();
                for _ in 0..5 {
                    let bytes = pattern(100 + round, 1 + random(700));
                    let at = random(made.flat.len() - bytes.len());
                    file.write_all_at(&bytes, at as u64).unwrap();
                    made.flat[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                // a write is readable immediately, and in the bucket after the close
                let mut back = vec![0; made.flat.len()];
                file.read_exact_at(&mut back, 0).unwrap();
                assert!(back == made.flat, "{name}");
                close(file).unwrap();
            }
            Fetched::new(&server, "bucket/w.zarr").assert_holds("a", &made.flat);
            // write, remove and create a chunk file
            made.change(&[1, 1], 77);
            fs::write(array.join("1.1"), made.chunk(&[1, 1])).unwrap();
            fs::remove_file(array.join("0.0")).unwrap();
            made.clear(&[0, 0]);
            assert_eq!(errno(fs::read(array.join("0.0"))), "ENOENT");
            assert!(
                fs::read(array.join("data.raw")).unwrap() == made.flat,
                "{name}"
            );
        }
        let fetched = Fetched::new(&server, "bucket/w.zarr");
        fetched.assert_holds("a", &made.flat);
        assert!(!fetched.join("a/0.0").exists());
        assert!(
            fetched.names().iter().all(|name| !name.contains("zarrfs")),
            "{:?}",
            fetched.names()
        );
    }
}

#[test]
fn names_can_be_created_moved_and_removed_in_a_bucket() {
    for (name, server) in servers() {
        let store = tempfile::tempdir().unwrap();
        let made = TestArray::with_chunks(
            store.path().join("old/a"),
            &[20, 30],
            &[10, 10],
            compressed(),
        );
        for group in ["", "old"] {
            fs::write(
                store.path().join(group).join(".zgroup"),
                br#"{"zarr_format": 2}"#,
            )
            .unwrap();
        }
        server.upload(store.path(), "bucket/n.zarr");
        let mut fresh = TestArray::new(store.path().join("b"), &[7, 9], &[4, 4], compressed());
        {
            let mount = server.store("bucket/n.zarr").mount(&[]);
            fs::create_dir(mount.join("g")).unwrap();
            assert_eq!(errno(fs::create_dir(mount.join("g"))), "EEXIST");
            fs::create_dir(mount.join("g/b")).unwrap();
            fs::write(mount.join("g/b/.zarray"), fresh.text()).unwrap();
            fs::write(mount.join("g/b/.zattrs"), br#"{"units": "K"}"#).unwrap();
            fresh.flat = pattern(5, fresh.flat.len());
            fs::write(mount.join("g/b/data.raw"), &fresh.flat).unwrap();
            fs::rename(mount.join("old"), mount.join("new")).unwrap();
            assert_eq!(
                digest(&mount.join("new/a/data.raw")).unwrap().1,
                sha256(&made.flat),
                "{name}"
            );
            assert!(!mount.join("old").exists());
            assert_eq!(errno(fs::remove_dir(mount.join("new"))), "ENOTEMPTY");
            fs::write(mount.join("notes.txt"), b"plain").unwrap();
            fs::rename(mount.join("notes.txt"), mount.join("g/notes.txt")).unwrap();
            fs::create_dir(mount.join("gone")).unwrap();
            fs::write(mount.join("gone/file"), b"x").unwrap();
            fs::remove_dir_all(mount.join("gone")).unwrap();
        }
        let fetched = Fetched::new(&server, "bucket/n.zarr");
        fetched.assert_holds("new/a", &made.flat);
        fetched.assert_holds("g/b", &fresh.flat);
        assert_eq!(fs::read(fetched.join("g/notes.txt")).unwrap(), b"plain");
        let attributes: serde_json::Value =
            serde_json::from_slice(&fs::read(fetched.join("g/b/.zattrs")).unwrap()).unwrap();
        assert_eq!(attributes, json!({"units": "K"}));
        let left: Vec<String> = fetched.names();
        assert!(
            !left
                .iter()
                .any(|n| n.starts_with("/old") || n.starts_with("/gone") || n.contains("zarrfs")),
            "{left:?}"
        );
    }
}

/// Two mounts of one bucket, as on two machines, write every other byte of the same chunks. No
/// write is lost, whichever mount stores a chunk first.
#[test]
fn two_mounts_of_a_bucket_lose_no_writes_of_each_other() {
    for (name, server) in all_servers() {
        let store = tempfile::tempdir().unwrap();
        let more = json!({"compressor": {"id": "zlib", "level": 1}});
        let mut made = TestArray::new(store.path().to_path_buf(), &[8 * 1000], &[1000], more);
        server.upload(store.path(), "shared/s.zarr");
        let remote = server.store("shared/s.zarr");
        let mounts = [remote.mount(&[]), remote.mount(&[])];
        let count = env_number("ZARRFS_REMOTE_WRITES", WRITES) / 2;
        let begun = std::time::Instant::now();
        let written: Vec<Vec<(usize, u8)>> = std::thread::scope(|scope| {
            let start = |(who, mount)| scope.spawn(move || write(mount, who, count));
            let writers: Vec<_> = mounts.iter().enumerate().map(start).collect();
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .collect()
        });
        for (at, byte) in written.into_iter().flatten() {
            made.flat[at] = byte;
        }
        for mount in &mounts {
            // an open shows the bytes that the other mount has stored
            assert!(
                fs::read(mount.join("data.raw")).unwrap() == made.flat,
                "{name}: a mount shows something else"
            );
        }
        drop(mounts);
        Fetched::new(&server, "shared/s.zarr").assert_holds("", &made.flat);
        announce(&format!(
            "{name}: {} writes of two mounts to 8 chunks, 0 lost, {:?}",
            2 * count,
            begun.elapsed()
        ));
    }
}

/// Writes to every other byte, a few chunks between an open and a close. Returns the offsets and
/// values in order.
fn write(mount: &Mount, who: usize, count: u64) -> Vec<(usize, u8)> {
    let mut random = random(who as u64 + 1);
    let mut written = Vec::new();
    while (written.len() as u64) < count {
        let file = OpenOptions::new()
            .write(true)
            .open(mount.join("data.raw"))
            .unwrap();
        let chunk = random(7);
        for _ in 0..50 {
            let at = chunk * 1000 + 2 * random(1000) + who;
            let byte = 1 + random(255) as u8;
            file.write_all_at(&[byte], at as u64).unwrap();
            written.push((at, byte));
        }
        close(file).unwrap();
    }
    written
}

#[test]
fn commands_accept_names_of_buckets() {
    for (name, server) in servers() {
        let nothing = tempfile::tempdir().unwrap();
        server.upload(nothing.path(), "verbs/x");
        let store = server.store("verbs/v.zarr");
        let array = server.store("verbs/v.zarr/g/a");
        let flat = pattern(3, 6000);
        let created = run(
            &array,
            "create",
            &["--shape", "60,100", "--chunks", "32,32", "--dtype", "|u1"],
            b"",
        );
        assert_eq!(created, "", "{name}");
        assert_eq!(run(&array, "put", &[], &flat), "", "{name}");
        assert_eq!(array.zarrfs("cat", &[]).stdout, flat, "{name}");
        let info = run(&store, "info", &[], b"");
        assert!(
            info.contains("60") && info.contains("100"),
            "{name}: {info}"
        );
        Fetched::new(&server, "verbs/v.zarr").assert_holds("g/a", &flat);
        // an incomplete creation leaves nothing behind
        let before = Fetched::new(&server, "verbs").names();
        for remote in [
            "verbs/v.zarr/g/short",
            "verbs/new.zarr/g/a",
            "verbs/v.zarr/interrupted",
        ] {
            let remote = server.store(remote);
            let mut command = remote.command("create");
            command
                .args([
                    "--shape=60,100",
                    "--chunks=32,32",
                    "--dtype=|u1",
                    "--from-raw=-",
                ])
                .arg(&remote.url);
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = child.stdin.take().unwrap();
            input.write_all(&flat[..5000]).unwrap();
            if remote.url.ends_with("interrupted") {
                wait_for("the array to be begun", || {
                    remote.zarrfs("info", &[]).status.success()
                });
                kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
                assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
            } else {
                drop(input);
                let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
                assert!(said.contains("ends after 5000 bytes"), "{name}: {said}");
            }
            assert_eq!(
                Fetched::new(&server, "verbs").names(),
                before,
                "{name} {}",
                remote.url
            );
        }
        // exit code 3: no such store
        let missing = server.store("verbs/nothing.zarr").zarrfs("info", &[]);
        assert_eq!(
            missing.status.code(),
            Some(3),
            "{name}: {}",
            String::from_utf8_lossy(&missing.stderr)
        );
    }
}

/// Runs a verb with bytes on its standard input. Returns its output.
#[track_caller]
fn run(remote: &RemoteStore, verb: &str, args: &[&str], input: &[u8]) -> String {
    let mut command = remote.command(verb);
    command.args(args).arg(&remote.url);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{verb} {}: {}",
        remote.url,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Opening a file for writing fails, so that programs get the error before they write.
#[test]
fn archives_and_http_are_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("a.zarr");
    TestArray::with_chunks(store.clone(), &[100], &[10], json!({}));
    let archive = servers::zip(&store, folder.path(), "a.zip", false);
    let mut mounts = vec![Mount::new(&archive, &[])];
    let server = servers::nginx(folder.path(), "");
    mounts.extend(
        server
            .iter()
            .flat_map(|s| ["a.zarr", "a.zip"].map(|name| s.store(name).mount(&[]))),
    );
    for mount in &mounts {
        for name in ["data.raw", "0", ".zarray"] {
            let path = mount.join(name);
            assert_eq!(
                errno(OpenOptions::new().write(true).open(&path)),
                "EROFS",
                "{name}"
            );
        }
        assert_eq!(errno(fs::write(mount.join("new"), b"x")), "EROFS");
        assert_eq!(errno(fs::create_dir(mount.join("g"))), "EROFS");
        assert_eq!(errno(fs::remove_file(mount.join("0"))), "EROFS");
        assert_eq!(errno(fs::rename(mount.join("0"), mount.join("1"))), "EROFS");
    }
    assert!(Path::new(&archive).exists());
}
