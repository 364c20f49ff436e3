//! Reading from a server that answers wrongly, through a real mount. The bytes are compared with
//! those that the test stored. A read returns the right bytes or EIO, within the time of its
//! attempts, and never other bytes or bytes of two versions. Other arrays stay readable.

use crate::patience;
use crate::support;
use crate::support::array::TestArray;
use crate::support::daemon::Daemon;
use crate::support::faulty_server::{Fault, FaultyServer};
use crate::support::{Mount, announce, close, digest, errno, sha256, wait_for, with_timeout};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of retries of a request. Its timeout is the default one, which no read has to wait for.
const OPTIONS: [&str; 2] = ["--retries", "2"];

/// Options for faults that end with the timeout.
const IMPATIENT: [&str; 4] = ["--timeout", "1s", "--retries", "2"];

/// The longest time of a read: three attempts and the delays between them. It is shorter than the
/// default timeout.
const PATIENCE: Duration = Duration::from_secs(25);

/// Size in bytes of a chunk that shares no page with another one.
const PAGES: usize = 64 << 10;

/// The result of reading `data.raw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The stored bytes.
    Right,
    /// EIO.
    Eio,
    Eacces,
    /// The stored bytes or EIO.
    RightOrEio,
    /// The fill value, since the chunk is missing.
    Fill,
}

use Expected::*;

/// Every fault, with the result for an uncompressed chunk and for a compressed one.
const FAULTS: [(Fault, Expected, Expected); 29] = [
    (Fault::ShortBody, Eio, Eio),
    (Fault::HalfValue, Eio, Eio),
    (Fault::LongBody, RightOrEio, RightOrEio),
    // the zlib codec ignores bytes after the end of the stream, as numcodecs does
    (Fault::LongValue, Eio, Right),
    (Fault::IgnoredRange, Right, Right),
    (Fault::NoContentRange, RightOrEio, RightOrEio),
    (Fault::PartWith200, Right, Right),
    (Fault::NoVersion, Right, Right),
    (Fault::Status(400), Eio, Eio),
    (Fault::Status(401), Eacces, Eacces),
    (Fault::Status(403), Eacces, Eacces),
    (Fault::Status(404), Fill, Fill),
    (Fault::Status(410), Fill, Fill),
    (Fault::Status(416), Eio, Eio),
    (Fault::Status(500), Eio, Eio),
    (Fault::Status(503), Eio, Eio),
    (Fault::Status(204), Eio, Eio),
    (Fault::Burst(2), Right, Right),
    (Fault::Burst(50), Eio, Eio),
    (Fault::Stall, Eio, Eio),
    (Fault::StallInBody, Eio, Eio),
    (Fault::Trickle, Eio, Eio),
    (Fault::Endless, Eio, Eio),
    (Fault::Huge, Eio, Eio),
    (Fault::Reset, Eio, Eio),
    (Fault::ResetAtOnce, Eio, Eio),
    (Fault::RedirectLoop, Eio, Eio),
    (Fault::Page, Eio, Eio),
    (Fault::Garbage, Eio, Eio),
];

/// An array and the fault of its only chunk.
struct Case {
    name: String,
    fault: Fault,
    expected: Expected,
    array: TestArray,
}

impl Case {
    /// Returns whether a read of the chunk may wait for the timeout.
    fn takes_the_timeout(&self) -> bool {
        matches!(
            self.fault,
            Fault::Stall | Fault::StallInBody | Fault::Trickle | Fault::Endless | Fault::Huge
        )
    }
}

fn cases(store: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    let kinds = [
        ("raw", json!({})),
        ("zlib", json!({"compressor": {"id": "zlib", "level": 1}})),
    ];
    for (number, (fault, raw, compressed)) in FAULTS.into_iter().enumerate() {
        for ((kind, more), expected) in kinds.iter().zip([raw, compressed]) {
            let mut more = more.clone();
            more["fill_value"] = json!(7);
            let name = format!("{number}-{kind}");
            let array = TestArray::with_chunks(store.join(&name), &[20_000], &[20_000], more);
            cases.push(Case {
                name,
                fault,
                expected,
                array,
            });
        }
    }
    cases
}

/// Creates a store of all cases and starts its server.
fn faulty_store(folder: &Path) -> (Vec<Case>, FaultyServer) {
    let cases = cases(folder);
    std::fs::write(folder.join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    (cases, FaultyServer::new(folder))
}

fn mount(url: &str, args: &[&str]) -> Mount {
    let mut command = Command::new(support::ZARRFS);
    command.arg("mount").args(OPTIONS).args(args);
    Mount::with_command(command, url.as_ref())
}

/// Reads a file. Returns the name of the error and the digest of the bytes.
fn read(path: &Path) -> (String, Option<String>) {
    match digest(path) {
        Ok((_, sha256)) => ("ok".into(), Some(sha256)),
        Err(e) => (errno::<()>(Err(e)), None),
    }
}

#[test]
fn every_fault_ends_in_the_right_bytes_or_an_error() {
    let store = tempfile::tempdir().unwrap();
    let (cases, server) = faulty_store(store.path());
    let url = server.url("");
    // after a request was given up, others of its mount get a single attempt: the cases that have
    // to succeed share no mount with those that fail
    let answered = mount(&url, &[]);
    let refused = mount(&url, &[]);
    let impatient = patience::mount(&url, &IMPATIENT);
    let mount_of = |case: &Case| match case.expected {
        _ if case.takes_the_timeout() => &impatient,
        Eio | RightOrEio => &refused,
        Right | Fill | Eacces => &answered,
    };
    let paths: Vec<PathBuf> = cases
        .iter()
        .map(|case| mount_of(case).join(&case.name).join("data.raw"))
        .collect();
    for (case, path) in cases.iter().zip(&paths) {
        // look up every array before the server becomes faulty
        wait_for(&case.name, || path.exists());
        server.set(&format!("{}/0", case.name), case.fault);
    }
    let answers: Vec<_> = std::thread::scope(|scope| {
        let readers: Vec<_> = paths
            .iter()
            .map(|path| {
                scope.spawn(move || {
                    let begun = Instant::now();
                    (read(path), begun.elapsed())
                })
            })
            .collect();
        readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .collect()
    });
    let mut failed = Vec::new();
    for (case, ((errno, found), took)) in cases.iter().zip(answers) {
        let is_right = found
            .as_ref()
            .is_some_and(|found| *found == sha256(&case.array.flat));
        let is_fill = found
            .as_ref()
            .is_some_and(|found| *found == sha256(&[7; 20_000]));
        let is_as_expected = match case.expected {
            Right => is_right,
            Fill => is_fill,
            Eio => errno == "EIO",
            Eacces => errno == "EACCES",
            RightOrEio => is_right || errno == "EIO",
        };
        let what = if is_right {
            "right"
        } else if is_fill {
            "fill"
        } else {
            &errno
        };
        if !is_as_expected || took > PATIENCE {
            let asked = server.count("GET", &format!("{}/0", case.name));
            failed.push(format!(
                "{:?} {}: {what} after {took:?}, {asked} GET",
                case.fault, case.name
            ));
        }
    }
    assert!(
        failed.is_empty(),
        "{}\n{}",
        failed.join("\n"),
        [&answered, &refused, &impatient]
            .map(Mount::stats)
            .join("\n")
    );
    // when the server answers correctly again, every read succeeds
    server.heal();
    for (case, path) in cases.iter().zip(&paths) {
        let mut errno = String::new();
        let mut found = None;
        wait_for(&case.name, || {
            (errno, found) = read(path);
            // a slow machine may exceed the short timeout again
            errno == "ok" || !case.takes_the_timeout()
        });
        assert_eq!(
            found,
            Some(sha256(&case.array.flat)),
            "{:?} {}: {errno}",
            case.fault,
            case.name
        );
    }
}

/// A body in an unrequested content encoding is decoded or refused, but never taken for the value.
#[test]
fn a_content_encoding_is_not_taken_for_the_value() {
    let store = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(store.path().to_path_buf(), &[20_000], &[20_000], json!({}));
    let server = FaultyServer::new(store.path());
    let mount = mount(&server.url(""), &[]);
    server.set("0", Fault::Gzip);
    let (errno, found) = read(&mount.join("data.raw"));
    assert!(
        errno == "EIO" || found == Some(sha256(&array.flat)),
        "{errno}, {found:?}"
    );
}

/// Some servers answer 403 for keys that do not exist.
#[test]
fn status_403_means_missing_only_if_the_user_says_so() {
    let store = tempfile::tempdir().unwrap();
    let mut array = TestArray::with_chunks(
        store.path().to_path_buf(),
        &[2 * PAGES],
        &[PAGES],
        json!({}),
    );
    let server = FaultyServer::new(store.path());
    server.set("1", Fault::Status(403));
    let refusing = mount(&server.url(""), &[]);
    let file = File::open(refusing.join("data.raw")).unwrap();
    let mut bytes = vec![0; PAGES];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, array.flat[..PAGES]);
    assert_eq!(errno(file.read_at(&mut bytes, PAGES as u64)), "EACCES");
    let stats = refusing.stats();
    assert!(stats.contains("403"), "{stats}");
    let taking = mount(&server.url(""), &["--403-is-missing"]);
    array.clear(&[1]);
    assert_eq!(
        digest(&taking.join("data.raw")).unwrap().1,
        sha256(&array.flat)
    );
}

/// A path whose metadata is an HTML page is not a store. An array whose document is an HTML page is
/// damaged, not empty.
#[test]
fn an_html_page_is_not_taken_for_a_document() {
    let store = tempfile::tempdir().unwrap();
    TestArray::with_chunks(store.path().join("a"), &[100], &[100], json!({}));
    TestArray::with_chunks(store.path().join("b"), &[100], &[100], json!({}));
    std::fs::write(store.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let server = FaultyServer::new(store.path());
    server.set("a/.zarray", Fault::Page);
    let mount = mount(&server.url(""), &[]);
    assert_ne!(errno(File::open(mount.join("a/data.raw"))), "ok");
    assert!(mount.join("b/data.raw").exists());
}

/// "A web page in place of a chunk": a server that says neither status nor type of the page. The
/// reason is that, whatever the codec makes of the page.
#[test]
fn a_page_in_place_of_a_chunk_or_a_shard_is_named() {
    let page = format!("<!DOCTYPE html>\n<html>{}</html>", "x".repeat(500));
    let store = tempfile::tempdir().unwrap();
    std::fs::write(store.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    for (name, compressor) in [
        ("raw", json!(null)),
        ("zlib", json!({"id": "zlib", "level": 1})),
        (
            "blosc",
            json!({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}),
        ),
    ] {
        let path = store.path().join(name);
        TestArray::with_chunks(path.clone(), &[100], &[100], json!({}));
        let document = json!({"zarr_format": 2, "shape": [100], "chunks": [100], "dtype": "|u1",
            "fill_value": 0, "order": "C", "filters": null, "compressor": compressor});
        std::fs::write(path.join(".zarray"), document.to_string()).unwrap();
        std::fs::write(path.join("0"), &page).unwrap();
    }
    let shard = store.path().join("shard");
    std::fs::create_dir_all(shard.join("c")).unwrap();
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": [100],
        "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [50],
            "codecs": [{"name": "bytes"}], "index_codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}}]});
    std::fs::write(shard.join("zarr.json"), document.to_string()).unwrap();
    std::fs::write(shard.join("c/0"), &page).unwrap();
    let server = FaultyServer::new(store.path());
    let mount = mount(&server.url(""), &[]);
    for (name, key) in [
        ("raw", "0"),
        ("zlib", "0"),
        ("blosc", "0"),
        ("shard", "c/0"),
    ] {
        assert_eq!(
            errno(digest(&mount.join(name).join("data.raw"))),
            "EIO",
            "{name}"
        );
        let stats = mount.stats();
        let named = |line: &str| {
            line.starts_with("problem ")
                && line.contains(&format!("/{name}/{key}: "))
                && line.contains("the value begins with <!DOCTYPE: it is a web page, not a chunk")
        };
        assert!(stats.lines().any(named), "{name}: {stats}");
    }
}

/// Opening an array asks for its chunks if the array does not declare the separator of their keys.
/// A server that does not answer that leaves a problem, as it does for every other request.
#[test]
fn a_failure_to_find_the_separator_is_a_problem() {
    let store = tempfile::tempdir().unwrap();
    std::fs::write(store.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let path = store.path().join("a");
    TestArray::with_chunks(path.clone(), &[20, 20], &[10, 20], json!({}));
    let document = json!({"zarr_format": 2, "shape": [20, 20], "chunks": [10, 20], "dtype": "|u1",
        "fill_value": 0, "order": "C", "filters": null, "compressor": null});
    std::fs::write(path.join(".zarray"), document.to_string()).unwrap();
    let server = FaultyServer::new(store.path());
    server.set("a/0.0", Fault::Status(204));
    let mount = mount(&server.url(""), &[]);
    for name in ["data.raw", "0.0", ".zarray"] {
        let opened = File::open(mount.join("a").join(name));
        assert!(opened.is_err() || name == ".zarray", "{name}: {opened:?}");
    }
    let stats = mount.stats();
    let is_of_probe = |line: &str| line.starts_with("problem ") && line.contains("204");
    assert!(stats.lines().any(is_of_probe), "{stats}");
    server.heal();
    assert!(File::open(mount.join("a/data.raw")).is_ok());
}

/// WebDAV servers answer 405 or a page for a directory: what is in it says whether it is a group or
/// an array. A page in place of a chunk is still an error.
#[test]
fn groups_and_arrays_are_found_where_directories_are_answered_by_pages_or_status_405() {
    let store = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(store.path().join("group/a"), &[100], &[100], json!({}));
    for group in ["", "group"] {
        std::fs::write(
            store.path().join(group).join(".zgroup"),
            br#"{"zarr_format": 2}"#,
        )
        .unwrap();
    }
    std::fs::create_dir(store.path().join("empty")).unwrap();
    for status in [405, 200] {
        let server = FaultyServer::new(store.path());
        let folder = store.path().to_path_buf();
        server.set_gate(Box::new(move |request| {
            let page = vec![("Content-Type", "text/html; charset=utf-8".to_string())];
            folder
                .join(request.path.trim_matches('/'))
                .is_dir()
                .then(|| (status, page, "<html></html>".to_string()))
        }));
        let mount = mount(&server.url(""), &[]);
        assert_eq!(
            digest(&mount.join("group/a/data.raw")).unwrap().1,
            sha256(&array.flat),
            "{status}"
        );
        assert!(
            mount.join("group").is_dir() && !mount.join("nothing").exists(),
            "{status}"
        );
        assert_eq!(
            errno(std::fs::metadata(mount.join("empty"))),
            "EIO",
            "{status}: nothing says what it is"
        );
        server.set("group/a/0", Fault::Page);
        assert_eq!(
            errno(digest(&mount.join("group/a/data.raw"))),
            "EIO",
            "{status}"
        );
    }
}

/// While the server does not answer, a lazy unmount succeeds immediately, and a plain unmount
/// succeeds when the reader has ended.
#[test]
fn a_mount_of_a_silent_server_can_be_unmounted() {
    let store = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(
        store.path().to_path_buf(),
        &[2 * PAGES],
        &[PAGES],
        json!({}),
    );
    // what succeeds while a reader waits for the longer timeout has not waited for the server
    const LONG: &str = "10m";
    for (lazily, timeout) in [(true, LONG), (true, "5s"), (false, "5s")] {
        let server = FaultyServer::new(store.path());
        let url = server.url("");
        // with direct I/O no reader waits for pages that the kernel requested for another reader
        let args = ["--timeout", timeout, "--retries", "1", "--direct-io"];
        let mut daemon = Daemon::start(Path::new(&url), &args);
        server.set("1", Fault::Stall);
        let path = daemon.path().join("data.raw");
        let mut reader = with_timeout(300, "cat")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for_request(&server, "1");
        let begun = Instant::now();
        if timeout == LONG {
            // another reader gets the chunk for which the server answers
            let mut bytes = vec![0; PAGES];
            File::open(&path)
                .unwrap()
                .read_exact_at(&mut bytes, 0)
                .unwrap();
            assert_eq!(bytes, array.flat[..PAGES]);
        }
        if lazily {
            let output = support::zarrfs(&["umount", "--lazy", daemon.path().to_str().unwrap()]);
            assert!(output.status.success());
            assert!(!path.exists());
            if timeout == LONG {
                assert!(
                    reader.try_wait().unwrap().is_none(),
                    "others have waited for the reader"
                );
                // its request ends with the server
                drop(server);
            }
            assert!(
                !reader.wait().unwrap().success(),
                "it was given bytes the server has not sent"
            );
            assert!(daemon.wait().unwrap().success());
        } else {
            // the waiting reader can be killed
            let group = rustix::process::Pid::from_raw(reader.id() as i32).unwrap();
            let _ = rustix::process::kill_process(group, rustix::process::Signal::TERM);
            let _ = reader.wait();
            assert!(daemon.unmount().success());
        }
        // the server breaks off after a minute of silence
        assert!(
            begun.elapsed() < Duration::from_secs(50),
            "{:?}",
            begun.elapsed()
        );
    }
}

/// Waits until a server has received a request for a path.
fn wait_for_request(server: &FaultyServer, path: &str) {
    wait_for(path, || {
        server.count("GET", path) + server.count("HEAD", path) > 0
    });
}

/// A value that is replaced while it is read is read again, or the request fails. Raw chunks are
/// read by ranges and blosc chunks by blocks, so a whole chunk takes several requests.
#[test]
fn a_chunk_is_never_assembled_from_two_versions() {
    let store = tempfile::tempdir().unwrap();
    let raw = TestArray::with_chunks(store.path().join("raw"), &[6 << 20], &[6 << 20], json!({}));
    std::fs::write(store.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let size = raw.flat.len();
    for fault in [Fault::ChangingTag, Fault::ChangingTagUnchecked] {
        let server = FaultyServer::new(store.path());
        let mount = mount(&server.url(""), &["--direct-io"]);
        server.set("raw/0", fault);
        let mut read = 0;
        let mut failed = 0;
        let mut random = support::random(3);
        for round in 0..40 {
            let file = File::open(mount.join("raw/data.raw")).unwrap();
            let len = [4096, 100_000, 1][round % 3];
            let mut bytes = vec![0; len];
            match file.read_at(&mut bytes, random(size - len) as u64) {
                Ok(n) => {
                    assert!(
                        bytes[..n].iter().all(|byte| *byte == bytes[0]),
                        "{fault:?}: bytes of two versions"
                    );
                    read += 1;
                }
                Err(e) => {
                    assert_eq!(errno::<()>(Err(e)), "EIO");
                    failed += 1;
                }
            }
        }
        announce(&format!(
            "{fault:?}: {read} of 40 reads succeeded, {failed} failed"
        ));
    }
}

/// Members of a replaced archive are never read at the offsets of its old directory.
#[test]
fn a_replaced_archive_is_never_read_by_its_old_directory() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("a.zarr");
    let old = TestArray::with_chunks(store.clone(), &[100_000], &[10_000], json!({}));
    let archive = support::servers::zip(&store, folder.path(), "a.zip", true);
    let mut new = TestArray::with_chunks(store.clone(), &[100_000], &[10_000], json!({}));
    for index in new.grid() {
        new.change(&index, 9);
        new.put(&index);
    }
    // the new archive has other offsets as well
    std::fs::write(store.join(".first"), [0; 777]).unwrap();
    let other = support::servers::zip(&store, folder.path(), "b.zip", true);
    let server = FaultyServer::new(folder.path());
    let mount = mount(&server.url("a.zip"), &["--direct-io"]);
    let file = File::open(mount.join("data.raw")).unwrap();
    let mut bytes = vec![0; 10_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, old.flat[..10_000]);
    std::fs::rename(other, archive).unwrap();
    for at in (0..100_000).step_by(10_000) {
        match file.read_at(&mut bytes, at as u64) {
            Ok(n) => {
                let now = &bytes[..n];
                assert!(
                    now == &old.flat[at..at + n] || now == &new.flat[at..at + n],
                    "at {at}: neither of the two"
                );
            }
            Err(e) => assert_eq!(errno::<()>(Err(e)), "EIO"),
        }
    }
    drop(file);
}

/// Requests that hang do not delay readers of another array.
#[test]
fn other_arrays_can_be_read_while_requests_hang() {
    let store = tempfile::tempdir().unwrap();
    std::fs::write(store.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let stalled: Vec<String> = (0..8).map(|i| format!("stalled{i}")).collect();
    for name in &stalled {
        TestArray::with_chunks(store.path().join(name), &[1000], &[1000], json!({}));
    }
    let good = TestArray::with_chunks(store.path().join("good"), &[50_000], &[1000], json!({}));
    let server = FaultyServer::new(store.path());
    let mut command = Command::new(support::ZARRFS);
    command.args([
        "mount",
        "--timeout",
        "10m",
        "--retries",
        "0",
        "--threads",
        "2",
    ]);
    let mount = Mount::with_command(command, server.url("").as_ref());
    let paths: BTreeMap<&String, PathBuf> = stalled
        .iter()
        .map(|n| (n, mount.join(n).join("data.raw")))
        .collect();
    for (name, path) in &paths {
        assert!(path.exists());
        server.set(&format!("{name}/0"), Fault::Stall);
    }
    std::thread::scope(|scope| {
        let readers: Vec<_> = paths
            .values()
            .map(|path| scope.spawn(move || read(path).0))
            .collect();
        for name in &stalled {
            wait_for_request(&server, &format!("{name}/0"));
        }
        assert_eq!(
            read(&mount.join("good/data.raw")).1,
            Some(sha256(&good.flat))
        );
        assert!(
            readers.iter().all(|reader| !reader.is_finished()),
            "it waited for others"
        );
        // the requests that hang end with the server
        drop(server);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), "EIO");
        }
    });
}

/// Failed requests are sent again the configured number of times, with growing delays.
#[test]
fn requests_are_retried_as_often_as_configured() {
    let store = tempfile::tempdir().unwrap();
    TestArray::with_chunks(store.path().to_path_buf(), &[1000], &[1000], json!({}));
    let server = FaultyServer::new(store.path());
    let mut command = Command::new(support::ZARRFS);
    command.args(["mount", "--retries", "1"]);
    let mount = Mount::with_command(command, server.url("").as_ref());
    server.set("0", Fault::Status(500));
    let file = File::open(mount.join("data.raw")).unwrap();
    assert_eq!(errno(file.read_at(&mut [0; 1], 0)), "EIO");
    let asked = server.count("GET", "0") + server.count("HEAD", "0");
    assert!((2..=6).contains(&asked), "{asked} requests");
    close(file).unwrap();
}

/// Creates a store of a sharded array, an array of chunks that are read in parts, and one of small
/// chunks. Returns the bytes of each.
fn store_of_shards(folder: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let mut random = support::random(7);
    let mut created = Vec::new();
    for (name, shape, args) in [
        (
            "shards",
            40_000,
            &[
                "--chunks",
                "1000",
                "--shards",
                "10000",
                "--zarr-format",
                "3",
            ][..],
        ),
        (
            "parts",
            7 << 20,
            &["--chunks", "7340032", "--compressor", "none"],
        ),
        ("chunks", 5000, &["--chunks", "1000"]),
    ] {
        let flat: Vec<u8> = (0..shape).map(|_| random(256) as u8).collect();
        let raw = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(raw.path(), &flat).unwrap();
        let store = folder.join(name);
        let shape = shape.to_string();
        let args = [
            &["create", "--dtype", "|u1", "--shape", &shape],
            args,
            &["--from-raw"],
        ]
        .concat();
        let output = with_timeout(60, support::ZARRFS)
            .args(args)
            .arg(raw.path())
            .arg(store)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        created.push((name, flat));
    }
    created
}

/// A value of the same size may be another one: what was read before an opening is read again.
/// Shards are read whole.
#[test]
fn a_server_that_states_no_versions_is_read_by_few_requests_and_stays_fresh() {
    let store = tempfile::tempdir().unwrap();
    for (name, flat) in store_of_shards(store.path()) {
        let server = FaultyServer::new(store.path());
        server.set_all(Fault::NoVersion);
        // cached metadata lasts longer than the test: the number of requests must not depend on the
        // speed of the machine
        let mount = mount(&server.url(name), &["--metadata-ttl", "1m"]);
        let path = mount.join("data.raw");
        assert_eq!(
            digest(&path).unwrap().1,
            sha256(&flat),
            "{name}: {}",
            mount.stats()
        );
        let asked = server.requests();
        assert!(asked.len() <= 20, "{name}: {asked:?}");
        // the same array with other bytes, in values of the same size
        let values: Vec<_> = match name {
            "shards" => (0..4).map(|n| format!("shards/c/{n}")).collect(),
            _ => continue,
        };
        let first = store.path().join(&values[0]);
        let second = store.path().join(&values[1]);
        let swapped = [
            std::fs::read(&second).unwrap(),
            std::fs::read(&first).unwrap(),
        ];
        std::fs::write(&first, &swapped[0]).unwrap();
        std::fs::write(&second, &swapped[1]).unwrap();
        let expected = [&flat[10_000..20_000], &flat[..10_000], &flat[20_000..]].concat();
        assert_eq!(digest(&path).unwrap().1, sha256(&expected), "{name}");
        let stats = mount.stats();
        let reports = stats
            .lines()
            .filter(|line| line.starts_with("problem ") && line.contains("states no version"));
        assert_eq!(reports.count(), 1, "{stats}");
    }
}

/// An overlay keeps the changes, so that the server need not state versions.
#[test]
fn a_server_that_states_no_versions_can_be_written_in_an_overlay() {
    let store = tempfile::tempdir().unwrap();
    let overlay = tempfile::tempdir().unwrap();
    for (name, mut flat) in store_of_shards(store.path()) {
        let server = FaultyServer::new(store.path());
        server.set_all(Fault::NoVersion);
        let changes = overlay.path().join(name);
        let args = ["--overlay", changes.to_str().unwrap()];
        let mounted = mount(&server.url(name), &args);
        for at in [10, 1990, 3500] {
            let file = File::options()
                .read(true)
                .write(true)
                .open(mounted.join("data.raw"))
                .unwrap();
            file.write_all_at(&[9; 700], at).unwrap();
            flat[at as usize..at as usize + 700].fill(9);
            close(file).unwrap_or_else(|e| panic!("{name}: {e}: {}", mounted.stats()));
        }
        assert_eq!(
            digest(&mounted.join("data.raw")).unwrap().1,
            sha256(&flat),
            "{name}"
        );
        drop(mounted);
        assert_eq!(
            digest(&mount(&server.url(name), &args).join("data.raw"))
                .unwrap()
                .1,
            sha256(&flat),
            "{name}"
        );
    }
}

/// "the server states no version": nothing is lost by a put that cannot be conditional.
#[test]
fn a_bucket_that_states_no_versions_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let created = store_of_shards(&folder.path().join("bucket"));
    let server = FaultyServer::new(folder.path());
    server.set_all(Fault::NoVersion);
    for (name, flat) in &created {
        let mut command = with_timeout(120, support::ZARRFS);
        command
            .args([
                "mount",
                "--anon",
                "--endpoint-url",
                server.url("").trim_end_matches('/'),
            ])
            .args(OPTIONS);
        let mount = Mount::with_command(command, format!("s3://bucket/{name}").as_ref());
        let path = mount.join("data.raw");
        assert_eq!(
            digest(&path).unwrap().1,
            sha256(flat),
            "{name}: {}",
            mount.stats()
        );
        assert_eq!(
            errno(File::options().write(true).open(&path)),
            "EROFS",
            "{name}"
        );
        let stats = mount.stats();
        assert!(
            stats.contains("the server states no version") && !stats.contains("again and again"),
            "{stats}"
        );
        assert!(
            server
                .requests()
                .iter()
                .all(|request| request.method != "PUT")
        );
    }
}

/// Parts of shards that come with status 200 are used by one request each.
#[test]
fn shards_are_read_where_parts_come_with_status_200() {
    let folder = tempfile::tempdir().unwrap();
    let created = store_of_shards(&folder.path().join("bucket"));
    let server = FaultyServer::new(folder.path());
    server.set_all(Fault::PartWith200);
    for (name, flat) in &created {
        let mut command = with_timeout(120, support::ZARRFS);
        command
            .args([
                "mount",
                "--anon",
                "--endpoint-url",
                server.url("").trim_end_matches('/'),
            ])
            .args(OPTIONS);
        let bucket = Mount::with_command(command, format!("s3://bucket/{name}").as_ref());
        for mount in [bucket, mount(&server.url(&format!("bucket/{name}")), &[])] {
            assert_eq!(
                digest(&mount.join("data.raw")).unwrap().1,
                sha256(flat),
                "{name}: {}",
                mount.stats()
            );
        }
    }
}
