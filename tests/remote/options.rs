//! The options of remote stores. Each is checked by the requests that a server of the test
//! receives, or by the bytes that a reader gets.

use crate::patience;
use crate::support;
use crate::support::array::{TestArray, replace};
use crate::support::faulty_server::{Fault, FaultyServer};
use crate::support::servers;
use crate::support::{Mount, ZARRFS, digest, errno, sha256, wait_for, with_timeout};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A URL at whose port no program listens. The system gives this port to no program that asks for
/// any free one.
const CLOSED: &str = "http://127.0.0.1:1/x.zarr";

fn mount(url: &str, args: &[&str]) -> Mount {
    let mut command = Command::new(ZARRFS);
    command.arg("mount").args(args);
    Mount::with_command(command, url.as_ref())
}

/// Creates a store of one array with `items` items, in chunks of 1000 items.
fn store(items: usize) -> (tempfile::TempDir, TestArray) {
    let folder = tempfile::tempdir().unwrap();
    let more = json!({"compressor": {"id": "zlib", "level": 1}});
    let array = TestArray::with_chunks(folder.path().join("a"), &[items], &[1000], more);
    fs::write(folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    (folder, array)
}

#[test]
fn configured_headers_are_sent_with_each_request() {
    let (folder, array) = store(3000);
    let server = FaultyServer::new(folder.path());
    let headers = [
        "--header",
        "X-Test: some thing",
        "--header",
        "Authorization:Bearer abc",
    ];
    let mount = mount(&server.url(""), &headers);
    assert_eq!(
        digest(&mount.join("a/data.raw")).unwrap().1,
        sha256(&array.flat)
    );
    let requests = server.requests();
    assert!(requests.len() > 3);
    for request in requests {
        assert_eq!(
            request.headers.get("x-test").map(String::as_str),
            Some("some thing"),
            "{request:?}"
        );
        assert_eq!(
            request.headers.get("authorization").map(String::as_str),
            Some("Bearer abc"),
            "{request:?}"
        );
    }
}

/// Reads a mount that sends a secret header, and returns its log of this level.
fn log_at(level: &str) -> String {
    let (folder, array) = store(3000);
    let server = FaultyServer::new(folder.path());
    let log = folder.path().join("log");
    let log_file = log.to_str().unwrap();
    let headers = [
        "--header",
        "Authorization:Bearer abc",
        "--log-level",
        level,
        "--log-file",
        log_file,
    ];
    let mount = mount(&server.url("?key=abc"), &headers);
    assert_eq!(
        digest(&mount.join("a/data.raw")).unwrap().1,
        sha256(&array.flat)
    );
    fs::read_to_string(&log).unwrap()
}

#[test]
fn the_debug_log_has_a_line_for_each_request_to_a_server_and_no_secrets() {
    let has = |log: &str, parts: &[&str]| {
        log.lines()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    };
    let debug = log_at("debug");
    assert!(
        has(
            &debug,
            &[
                "DEBUG GET http://",
                "/a/1: 200, ",
                " ms, 0 bytes sent, ",
                " received, try 1"
            ]
        ),
        "{debug}"
    );
    assert!(
        !debug.contains("abc") && !debug.contains("TRACE"),
        "{debug}"
    );
    let trace = log_at("trace");
    assert!(
        has(
            &trace,
            &[
                "TRACE GET http://",
                "/a/1: sent: ",
                "authorization: (hidden)"
            ]
        ),
        "{trace}"
    );
    assert!(
        has(
            &trace,
            &[
                "TRACE GET http://",
                "/a/1: answer 200: ",
                "content-length: "
            ]
        ),
        "{trace}"
    );
    assert!(!trace.contains("abc"), "{trace}");
    let usual = log_at("warn");
    assert!(!usual.contains("GET"), "{usual}");
}

/// `stat` may return metadata as old as the time to live. `open` shows the current metadata of the
/// server.
#[test]
fn metadata_is_cached_for_the_time_to_live() {
    for (ttl, is_seen) in [("forever", false), ("1s", true), ("0s", true)] {
        let (folder, array) = store(3000);
        let server = FaultyServer::new(folder.path());
        let mount = mount(&server.url(""), &["--metadata-ttl", ttl]);
        let flat = mount.join("a/data.raw");
        assert_eq!(fs::metadata(&flat).unwrap().len(), 3000);
        let document = array.text().replace("[3000]", "[5000]");
        assert_ne!(document, array.text());
        replace(&folder.path().join("a/.zarray"), document.as_bytes());
        // the kernel caches names for a second as well
        std::thread::sleep(Duration::from_millis(2500));
        let seen = fs::metadata(&flat).unwrap().len();
        assert_eq!(seen, if is_seen { 5000 } else { 3000 }, "{ttl}");
        let file = File::open(&flat).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5000, "{ttl}");
    }
}

/// An open sees a chunk that was replaced on the server, regardless of cached metadata.
#[test]
fn an_open_sees_the_current_chunks_of_the_server() {
    let (folder, mut array) = store(3000);
    let server = FaultyServer::new(folder.path());
    let mount = mount(&server.url(""), &["--metadata-ttl", "forever"]);
    let flat = mount.join("a/data.raw");
    for seed in 20..24 {
        assert_eq!(digest(&flat).unwrap().1, sha256(&array.flat));
        array.change(&[1], seed);
        array.put(&[1]);
    }
    fs::remove_file(array.file(&[2])).unwrap();
    array.clear(&[2]);
    assert_eq!(digest(&flat).unwrap().1, sha256(&array.flat));
    array.change(&[2], 99);
    array.put(&[2]);
    assert_eq!(digest(&flat).unwrap().1, sha256(&array.flat));
}

/// Returns the number of bytes in all files below a directory.
fn size(directory: &Path) -> u64 {
    let mut sum = 0;
    support::tree::visit(directory, &mut |found| {
        sum += found.stat.map_or(0, |stat| {
            if stat.st_mode & libc::S_IFMT == libc::S_IFREG {
                stat.st_size as u64
            } else {
                0
            }
        });
        true
    })
    .unwrap();
    sum
}

#[test]
fn the_disk_cache_keeps_chunks_across_mounts() {
    let (folder, mut array) = store(50_000);
    let server = FaultyServer::new(folder.path());
    let kept = tempfile::tempdir().unwrap();
    let args = ["--cache-dir", kept.path().to_str().unwrap()];
    let asked = || {
        (0..50)
            .map(|i| server.count("GET", &format!("a/{i}")))
            .sum::<usize>()
    };
    let read = |array: &TestArray| {
        let mount = mount(&server.url(""), &args);
        assert_eq!(
            digest(&mount.join("a/data.raw")).unwrap().1,
            sha256(&array.flat)
        );
    };
    read(&array);
    let first = asked();
    assert!((50..=55).contains(&first), "{first} requests for 50 chunks");
    read(&array);
    assert_eq!(asked(), first, "what is on disk is asked for again");
    // only a chunk that has changed is fetched again
    array.change(&[7], 5);
    array.put(&[7]);
    read(&array);
    assert_eq!(asked(), first + 1);
    // a damaged file of the cache is ignored
    support::tree::visit(kept.path(), &mut |found| {
        let path = kept.path().join(&found.path[1..]);
        if path.is_file() && fs::metadata(&path).unwrap().len() > 200 {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[0x55; 20], fs::metadata(&path).unwrap().len() - 40)
                .unwrap();
        }
        true
    })
    .unwrap();
    read(&array);
}

/// A small read of a chunk that was decoded before fetches and decodes a part of it, and with
/// `--cache-dir` that holds for later mounts.
#[test]
fn parts_of_chunks_that_were_decoded_before_are_fetched() {
    // each byte of a shuffled item is fetched by a request of its own, of large chunks
    let shuffle = json!([{"id": "shuffle", "elementsize": 4}]);
    let gzip = json!({"compressor": {"id": "gzip", "level": 1}});
    let shuffled = json!({"compressor": {"id": "zlib", "level": 1}, "filters": shuffle});
    for (codec, chunks, chunk) in [(gzip, 6, 8 << 20), (shuffled, 3, 17 << 20)] {
        let folder = tempfile::tempdir().unwrap();
        let shape = [chunks, chunk];
        let mut array =
            TestArray::with_chunks(folder.path().to_path_buf(), &shape, &[1, chunk], codec);
        let server = FaultyServer::new(folder.path());
        let kept = tempfile::tempdir().unwrap();
        let args = ["--cache-size", "40M", "--cache-dir"];
        let args = [&args[..], &[kept.path().to_str().unwrap()]].concat();
        let series = |array: &TestArray, mount: &Mount, at: usize| {
            let file = File::open(mount.join("data.raw")).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
            let growth = mount.growth(|| {
                for start in (0..chunks).map(|n| n * chunk + at) {
                    let mut bytes = [0; 100];
                    file.read_exact_at(&mut bytes, start as u64).unwrap();
                    assert_eq!(bytes, array.flat[start..start + 100], "{start}");
                }
            });
            growth.of("chunk_decodes") as usize
        };
        for args in [&args[..2], &args] {
            let mount = mount(&server.url(""), args);
            assert!(series(&array, &mount, 5000) >= chunks);
            let before = server.requests().len();
            assert_eq!(series(&array, &mount, chunk / 2), 0);
            for request in server.requests().into_iter().skip(before) {
                let is_chunk = request.path.ends_with(|c: char| c.is_ascii_digit());
                let has_range = request.headers.contains_key("range");
                assert!(
                    !is_chunk || request.method == "HEAD" || has_range,
                    "{request:?}"
                );
            }
        }
        let later = mount(&server.url(""), &args);
        assert_eq!(
            series(&array, &later, chunk / 2),
            0,
            "seek points of the disk cache"
        );
        array.change(&[2, 0], 5);
        array.put(&[2, 0]);
        assert_eq!(
            series(&array, &later, chunk / 4),
            1,
            "one chunk has changed"
        );
    }
}

#[test]
fn the_disk_cache_stays_within_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(
        folder.path().to_path_buf(),
        &[4 << 20],
        &[64 << 10],
        json!({}),
    );
    let server = FaultyServer::new(folder.path());
    let kept = tempfile::tempdir().unwrap();
    let args = [
        "--cache-dir",
        kept.path().to_str().unwrap(),
        "--cache-dir-size",
        "1M",
    ];
    for _ in 0..2 {
        let mounts = [mount(&server.url(""), &args), mount(&server.url(""), &args)];
        for mount in &mounts {
            assert_eq!(
                digest(&mount.join("data.raw")).unwrap().1,
                sha256(&array.flat)
            );
        }
    }
    let size = size(kept.path());
    assert!(
        size > 100 << 10 && size <= (1 << 20) + (256 << 10),
        "{size} bytes are kept"
    );
}

/// Returns a request that an S3 server received. Its headers have the signature and the region.
fn s3_request(args: &[&str], environment: &[(&str, &str)]) -> support::faulty_server::Request {
    let folder = tempfile::tempdir().unwrap();
    let server = FaultyServer::new(folder.path());
    let mut command = with_timeout(60, ZARRFS);
    command
        .args([
            "info",
            "--endpoint-url",
            server.url("").trim_end_matches('/'),
        ])
        .args(args)
        .arg("s3://bucket/x.zarr");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    let output = command
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(!output.status.success());
    server
        .requests()
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn requests_to_s3_carry_credentials_and_region() {
    let keys = [
        ("AWS_ACCESS_KEY_ID", "somebody"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let signed = |args: &[&str], more: &[(&str, &str)]| {
        let environment = [&keys, more].concat();
        s3_request(args, &environment)
            .headers
            .remove("authorization")
            .expect("it is signed")
    };
    let from_option = signed(&["--region", "eu-test-7"], &[("AWS_REGION", "xx-other-1")]);
    assert!(
        from_option.contains("somebody/") && from_option.contains("/eu-test-7/s3"),
        "{from_option}"
    );
    let from_environment = signed(&[], &[("AWS_REGION", "xx-other-1")]);
    assert!(
        from_environment.contains("/xx-other-1/s3"),
        "{from_environment}"
    );
    let anonymous = s3_request(&["--anon", "--region", "eu-test-7"], &keys);
    assert_eq!(anonymous.headers.get("authorization"), None);
    assert!(anonymous.path.starts_with("/bucket"), "{}", anonymous.path);
}

#[test]
fn retries_and_timeout_are_those_configured() {
    let (folder, array) = store(1000);
    let server = FaultyServer::new(folder.path());
    let url = server.url("");
    let none = mount(&url, &["--retries", "0"]);
    let many = mount(&url, &["--retries", "6"]);
    for mount in [&none, &many] {
        assert!(mount.join("a/data.raw").exists());
    }
    server.set("a/0", Fault::Burst(4));
    assert_eq!(errno(digest(&none.join("a/data.raw"))), "EIO");
    assert_eq!(
        digest(&many.join("a/data.raw")).unwrap().1,
        sha256(&array.flat)
    );
    server.set("a/0", Fault::Stall);
    let impatient = patience::mount(&url, &["--retries", "0", "--timeout", "500ms"]);
    let path = impatient.join("a/data.raw");
    wait_for("a lookup that succeeds in time", || path.exists());
    let begun = Instant::now();
    assert_eq!(errno(digest(&path)), "EIO");
    assert!(begun.elapsed() >= Duration::from_millis(100));
    // the message has the time that the request has waited
    let stats = impatient.stats();
    assert!(stats.contains("no data for 0."), "{stats}");
}

/// By default `.zmetadata` is used only for stores that cannot list keys. The option requires or
/// ignores it.
#[test]
fn consolidated_metadata_is_used_as_configured() {
    let (folder, array) = store(1000);
    let stale = json!({"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2},
        "b/.zarray": serde_json::from_str::<serde_json::Value>(&array.text()).unwrap()}});
    fs::write(folder.path().join(".zmetadata"), stale.to_string()).unwrap();
    let server = FaultyServer::new(folder.path());
    let directory = folder.path().to_str().unwrap();
    let shows = |store: &str, how: &str| {
        let mount = mount(store, &["--consolidated", how]);
        ["a", "b"].map(|name| mount.join(name).join(".zarray").exists())
    };
    for (store, how, expected) in [
        (server.url("").as_str(), "use", [false, true]),
        (server.url("").as_str(), "ignore", [true, false]),
        (directory, "auto", [true, false]),
        (directory, "use", [false, true]),
        (directory, "ignore", [true, false]),
    ] {
        assert_eq!(shows(store, how), expected, "{store} {how}");
    }
}

#[test]
fn a_store_in_memory_can_be_mounted() {
    let mount = mount("memory:", &[]);
    fs::create_dir(mount.join("a")).unwrap();
    let (_folder, array) = store(3000);
    fs::write(mount.join("a/.zarray"), array.text()).unwrap();
    fs::write(mount.join("a/data.raw"), &array.flat).unwrap();
    assert_eq!(
        digest(&mount.join("a/data.raw")).unwrap().1,
        sha256(&array.flat)
    );
    assert!(mount.join("a/0").exists());
}

/// The line says what to do.
#[test]
fn mistakes_are_reported_in_one_line() {
    let (folder, _) = store(1000);
    let Some(server) = servers::nginx(folder.path(), "") else {
        return;
    };
    let url = server.store("").url;
    for (store, args, code) in [
        ("s3://bucket/x", vec!["--header", "no colon"], 2),
        ("gopher://host/x", vec![], 2),
        ("s3://", vec![], 2),
        ("http://", vec![], 2),
        (CLOSED, vec!["--retries", "0"], 1),
        // a web server cannot tell whether a path without any document is a store
        (&format!("{url}nothing.zarr"), vec![], 4),
        (&format!("{url}nothing.zip"), vec![], 3),
    ] {
        let output = with_timeout(60, ZARRFS)
            .arg("info")
            .args(args)
            .arg(store)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{store}: {said}");
        assert!(code == 2 || said.lines().count() == 1, "{store}: {said}");
    }
}

/// The background process also reads the headers from the file, so that `ps` does not show them.
#[test]
fn headers_are_read_from_a_file() {
    let (folder, array) = store(3000);
    let server = FaultyServer::new(folder.path());
    let secrets = tempfile::tempdir().unwrap();
    fs::write(secrets.path().join("token"), "X-Token: open sesame\n").unwrap();
    let argument = format!("@{}", secrets.path().join("token").display());
    let mount = mount(&server.url(""), &["--header", &argument]);
    assert_eq!(
        digest(&mount.join("a/data.raw")).unwrap().1,
        sha256(&array.flat)
    );
    assert!(server.requests().iter().all(|r| {
        r.headers
            .get("x-token")
            .is_some_and(|value| value == "open sesame")
    }));
    let words = fs::read(format!("/proc/{}/cmdline", mount.counter("pid"))).unwrap();
    let words = String::from_utf8_lossy(&words).into_owned();
    assert!(
        words.contains(&argument) && !words.contains("sesame"),
        "{words}"
    );
    // a file that is missing or contains no headers
    fs::write(secrets.path().join("token"), "sesame").unwrap();
    for (file, told) in [
        (argument.as_str(), "line 1: not a header"),
        ("@/nothing", "@/nothing: No such file"),
    ] {
        let output = with_timeout(60, ZARRFS)
            .args(["info", "--header", file, &server.url("")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(told) && !said.contains("sesame"),
            "{said}"
        );
    }
}

/// Without `--retries`, only the timeout limits the attempts.
#[test]
fn requests_are_repeated_until_the_timeout() {
    let (folder, array) = store(1000);
    let server = FaultyServer::new(folder.path());
    let patient = mount(&server.url(""), &[]);
    assert!(patient.join("a/data.raw").exists());
    server.set("a/0", Fault::Burst(6));
    assert_eq!(
        digest(&patient.join("a/data.raw")).unwrap().1,
        sha256(&array.flat)
    );
    let impatient = patience::mount(&server.url(""), &["--timeout", "2s"]);
    let path = impatient.join("a/data.raw");
    wait_for("a lookup that succeeds in time", || path.exists());
    server.set("a/0", Fault::Status(503));
    let begun = Instant::now();
    assert_eq!(errno(digest(&path)), "EIO");
    // the default timeout is 30 s
    assert!(
        (1000..25_000).contains(&begun.elapsed().as_millis()),
        "{:?}",
        begun.elapsed()
    );
}

/// "A command fails at once": no program listens at the port, and the person who waits has made a
/// typing error or not started the server.
#[test]
fn a_refused_connection_ends_a_command_at_once() {
    let verbs: [&[&str]; 6] = [
        &["info"],
        &["ls"],
        &["cat"],
        &["check"],
        &["migrate", "--to", "3"],
        &["consolidate"],
    ];
    for verb in verbs {
        // a command that tries again until its timeout is killed, and says nothing
        let mut command = with_timeout(120, ZARRFS);
        let output = command
            .args(verb)
            .args(["--timeout", "10m", CLOSED])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with("error: ")
                && said.lines().count() == 1
                && said.contains("refused")
                && said.contains("; check the host and the port of the URL"),
            "{verb:?}: {said}"
        );
        assert_eq!(output.status.code(), Some(1), "{verb:?}");
    }
}

/// A mount waits for its server, which may start later.
#[test]
fn a_server_that_cannot_be_reached_is_reported_before_the_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let start = |timeout: &str| {
        let mut command = with_timeout(120, ZARRFS);
        command.args(["mount", "--foreground", "--timeout", timeout, CLOSED]);
        let mut child = command
            .arg(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        (child, lines)
    };
    let (mut patient, mut lines) = start("10m");
    let said = lines.next().unwrap().unwrap();
    let tries_again = patient.try_wait().unwrap().is_none();
    kill_process(Pid::from_child(&patient), Signal::TERM).unwrap();
    patient.wait().unwrap();
    assert!(
        said.starts_with("zarrfs: warn: ")
            && said.contains("refused")
            && said.contains("trying again"),
        "{said}"
    );
    assert!(tries_again);
    let begun = Instant::now();
    let (mut impatient, lines) = start("3s");
    let said = lines.last().unwrap().unwrap();
    assert!(
        said.starts_with("error: ") && said.contains("refused"),
        "{said}"
    );
    assert!(
        begun.elapsed() > Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(impatient.wait().unwrap().code(), Some(1));
}

#[test]
fn statistics_and_a_clean_unmount_take_no_requests() {
    let (folder, _) = store(3000);
    fs::create_dir(folder.path().join("bucket")).unwrap();
    fs::rename(folder.path().join("a"), folder.path().join("bucket/a")).unwrap();
    fs::rename(
        folder.path().join(".zgroup"),
        folder.path().join("bucket/.zgroup"),
    )
    .unwrap();
    let server = FaultyServer::new(folder.path());
    let url = server.url("");
    let bucket = [
        "--anon",
        "--region",
        "us-east-1",
        "--endpoint-url",
        url.trim_end_matches('/'),
    ];
    for (store, args) in [
        (format!("{url}bucket"), &[][..]),
        ("s3://bucket".into(), &bucket),
    ] {
        let mount = mount(&store, args);
        assert_eq!(fs::metadata(mount.join("a/data.raw")).unwrap().len(), 3000);
        std::thread::sleep(Duration::from_millis(2500));
        let before = server.requests().len();
        for name in ["stats", "stats.json", "metrics"] {
            assert!(
                !fs::read(mount.join(".zarrfs").join(name))
                    .unwrap()
                    .is_empty()
            );
        }
        for args in [
            ["stats", mount.path().to_str().unwrap()],
            ["umount", mount.path().to_str().unwrap()],
        ] {
            let output =
                support::answered(|| with_timeout(60, ZARRFS).args(args).output().unwrap());
            assert!(output.status.success(), "{output:?}");
        }
        let made: Vec<_> = server
            .requests()
            .split_off(before)
            .into_iter()
            .map(|r| r.path)
            .collect();
        assert!(made.is_empty(), "{store}: {made:?}");
        mount.assume_unmounted();
    }
}

/// Runs `info` on a store without the credentials and proxies of this machine, and returns its only
/// line of errors.
fn error_of(url: &str, args: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = with_timeout(300, ZARRFS);
    for (name, _) in std::env::vars() {
        let prefixes = ["AWS_", "AZURE_", "GOOGLE_", "SSL_CERT_"];
        if prefixes.iter().any(|prefix| name.starts_with(prefix))
            || name.to_ascii_lowercase().ends_with("_proxy")
        {
            command.env_remove(name);
        }
    }
    command
        .args(["info", "--timeout", "1h"])
        .args(args)
        .arg(url);
    let output = command
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| [1, 2].contains(&code)),
        "{url}: {said}"
    );
    assert_eq!(said.lines().count(), 1, "{url}: {said}");
    said
}

/// "Permanent failures are reported at once": a command that waits for its timeout of an hour is
/// killed.
#[test]
fn what_no_retry_can_mend_is_one_line_at_once() {
    let Some(python) = support::env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut servers = Command::new(python);
    servers
        .arg(support::python_script("tls_servers.py"))
        .arg(folder.path());
    // they end with their standard input
    let mut servers = servers
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ports = String::new();
    BufReader::new(servers.stdout.take().unwrap())
        .read_line(&mut ports)
        .unwrap();
    let ports: serde_json::Value = serde_json::from_str(&ports).unwrap();
    let url = |which: &str| format!("https://localhost:{}/x.zarr", ports[which]);
    let issuer = folder.path().join("ca.pem");
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let issuer = issuer.to_str().unwrap();
    let empty = empty.to_str().unwrap();
    let place = folder.path().to_str().unwrap();
    let [key, damaged] =
        [("key", "PRIVATE KEY"), ("damaged", "CERTIFICATE")].map(|(name, what)| {
            let text = format!("-----BEGIN {what}-----\nAAAA\n-----END {what}-----\n");
            fs::write(folder.path().join(name), text).unwrap();
            format!("{place}/{name}")
        });
    let (key, damaged) = (key.as_str(), damaged.as_str());
    for (which, file, told) in [
        (
            "issuer",
            issuer,
            "the issuer of the server's certificate is unknown",
        ),
        ("name", issuer, "elsewhere.example"),
        ("expired", issuer, "the server's certificate has expired"),
        ("early", issuer, "not valid yet, or the clock"),
        (
            "plain",
            issuer,
            "the server does not speak TLS on this port",
        ),
        (
            "right",
            "/nothing.pem",
            "SSL_CERT_FILE=/nothing.pem: No such file or directory",
        ),
        (
            "right",
            empty,
            "empty: it has no certificate; name PEM certificates",
        ),
        ("right", key, "key: it has no certificate"),
        ("right", damaged, "damaged: its certificates are damaged"),
        ("right", place, "Is a directory"),
    ] {
        let said = error_of(&url(which), &[], &[("SSL_CERT_FILE", file)]);
        assert!(
            said.contains(told) && !said.contains("attempts"),
            "{which}: {said}"
        );
    }
    for (directory, told) in [
        (
            "/nothing",
            "SSL_CERT_DIR=/nothing: No such file or directory",
        ),
        ("/proc/self/task", "no file in it has a certificate"),
    ] {
        let said = error_of(&url("right"), &[], &[("SSL_CERT_DIR", directory)]);
        assert!(said.contains(told) && !said.contains("attempts"), "{said}");
    }
    let mut right = with_timeout(300, ZARRFS);
    let said = right
        .args(["info", &url("right")])
        .env("SSL_CERT_FILE", issuer)
        .output()
        .unwrap()
        .stderr;
    assert!(
        String::from_utf8_lossy(&said).contains("not a Zarr store"),
        "{}",
        String::from_utf8_lossy(&said)
    );
    drop(servers.stdin.take());
    servers.wait().unwrap();
}

#[test]
fn a_proxy_is_named() {
    let server = FaultyServer::new(Path::new("/nothing"));
    server.set_all(Fault::Status(407));
    let proxy = server.url("").replace("http://", "http://me:secret@");
    let proxy = proxy.trim_end_matches('/');
    let address = server.url("");
    let refusal = format!(
        "the proxy {} requires a user and a password",
        address.trim_end_matches('/')
    );
    for scheme in ["http", "https"] {
        let variables = [("http_proxy", proxy), ("https_proxy", proxy)];
        let said = error_of(
            &format!("{scheme}://zarrfs.example/x.zarr"),
            &[],
            &variables,
        );
        assert!(
            said.contains(&refusal) && !said.contains("secret"),
            "{said}"
        );
    }
    let methods: Vec<_> = server
        .requests()
        .into_iter()
        .map(|request| request.method)
        .collect();
    assert_eq!(methods, ["HEAD", "CONNECT"]);
    for scheme in ["http", "https"] {
        let variables = [
            ("http_proxy", "http://127.0.0.1:1"),
            ("https_proxy", "http://127.0.0.1:1"),
        ];
        let said = error_of(
            &format!("{scheme}://zarrfs.example/x.zarr"),
            &["--retries", "0"],
            &variables,
        );
        assert!(
            said.contains("through the proxy http://127.0.0.1:1"),
            "{said}"
        );
    }
}

/// The error says what is wrong with credentials, and shows no character of a key.
#[test]
fn unusable_credentials_are_named_and_not_shown() {
    let damaged = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        damaged.path(),
        r#"{"type": "sesame", "private_key": "sesame"}"#,
    )
    .unwrap();
    let damaged = damaged.path().to_str().unwrap();
    let azure = ("AZURE_STORAGE_ACCOUNT", "lab");
    for (url, environment, told) in [
        (
            "gs://b/x",
            &[("GOOGLE_APPLICATION_CREDENTIALS", "/nothing/key.json")][..],
            "/nothing/key.json: No such file",
        ),
        (
            "gs://b/x",
            &[("GOOGLE_APPLICATION_CREDENTIALS", damaged)],
            "the credentials of Google are damaged",
        ),
        (
            "gs://b/x",
            &[("GOOGLE_SERVICE_ACCOUNT_KEY", "sesame")],
            "the credentials of Google are damaged",
        ),
        (
            "az://b/x",
            &[azure, ("AZURE_STORAGE_ACCOUNT_KEY", "se!same")],
            "not base64",
        ),
        (
            "az://b/x",
            &[azure, ("AZURE_FEDERATED_TOKEN_FILE", "/nothing/token")],
            "/nothing/token: No such file",
        ),
        (
            "s3://b/x",
            &[
                ("AWS_WEB_IDENTITY_TOKEN_FILE", "/nothing/token"),
                ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
            ],
            "/nothing/token: No such file",
        ),
        (
            "s3://b/x",
            &[
                ("AWS_SHARED_CREDENTIALS_FILE", "/nothing/keys"),
                ("AWS_PROFILE", "lab"),
            ],
            "AWS_SHARED_CREDENTIALS_FILE=/nothing/keys: No such file",
        ),
    ] {
        let said = error_of(
            url,
            &["--endpoint-url", "http://127.0.0.1:1", "--retries", "0"],
            environment,
        );
        assert!(said.contains(told), "{url}: {said}");
        assert!(
            !said.contains("sesame") && !said.contains("ymbol") && !said.contains('!'),
            "{url}: {said}"
        );
    }
}

#[test]
fn refusals_of_a_bucket_are_not_blamed_on_credentials_without_reason() {
    let keys = [
        ("AWS_ACCESS_KEY_ID", "tests"),
        ("AWS_SECRET_ACCESS_KEY", "sesame"),
    ];
    let server = FaultyServer::new(Path::new("/nothing"));
    let said = |status: u16, date: bool, body: &str, environment: &[(&str, &str)]| {
        let body = body.to_string();
        let headers = if date {
            vec![("Date", "Sun, 06 Nov 1994 08:49:37 GMT".to_string())]
        } else {
            Vec::new()
        };
        server.set_gate(Box::new(move |_| {
            Some((status, headers.clone(), body.clone()))
        }));
        let endpoint = server.url("");
        error_of(
            "s3://b/x",
            &["--endpoint-url", endpoint.trim_end_matches('/')],
            &[&keys, environment].concat(),
        )
    };
    let plain = said(400, false, "", &[]);
    assert!(
        plain.contains("400") && !plain.contains("credentials"),
        "{plain}"
    );
    let skewed = "<Error><Code>RequestTimeTooSkewed</Code><Message>too large</Message></Error>";
    for (status, date, body) in [(403, false, skewed), (403, true, ""), (400, true, "")] {
        let skewed = said(status, date, body, &[]);
        assert!(
            skewed.contains("clock") && !skewed.contains("credentials"),
            "{skewed}"
        );
    }
    let denied =
        "<Error><Code>AccessDenied</Code><Message>User: &quot;a&quot; &amp; b</Message></Error>";
    let denied = said(403, false, denied, &[]);
    assert!(
        denied.contains(r#"AccessDenied: User: "a" & b"#),
        "{denied}"
    );
}
