//! Metrics for Prometheus, parsed by Prometheus' own Python library and compared with the requests
//! that a test server has recorded. A mount that serves them must survive hostile clients.

use crate::support;
use crate::support::array::{TestArray, pattern};
use crate::support::faulty_server::{Fault, FaultyServer, Request};
use crate::support::{
    Mount, ZARRFS, env_path, failure, python_script, test_data, with_timeout, zarrfs,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Maximum wait for a daemon, so that a test does not hang.
const PATIENCE: Duration = Duration::from_secs(100);

/// A sample: its name, labels and value.
type Sample = (String, Value, f64);

/// A family of metrics that the library of Prometheus has parsed.
struct Family {
    name: String,
    kind: String,
    help: String,
    samples: Vec<Sample>,
}

/// Parses a text with the library of Prometheus. Returns `None` if it is not installed.
fn parsed(text: &str) -> Option<Vec<Family>> {
    let python = env_path("ZARRFS_TEST_SERVERS")?;
    let mut command = with_timeout(60, python);
    command
        .arg(python_script("metrics.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{text}");
    let families: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let string = |value: &Value| value.as_str().unwrap().to_string();
    let family = |family: &Value| {
        let samples = family[3].as_array().unwrap().iter();
        let samples = samples
            .map(|s| (string(&s[0]), s[1].clone(), s[2].as_f64().unwrap()))
            .collect();
        Family {
            name: string(&family[0]),
            kind: string(&family[1]),
            help: string(&family[2]),
            samples,
        }
    };
    Some(families.iter().map(family).collect())
}

fn value(families: &[Family], name: &str, labels: Value) -> f64 {
    let samples = families.iter().flat_map(|family| &family.samples);
    let found: Vec<_> = samples
        .filter(|(n, l, _)| n == name && *l == labels)
        .map(|(_, _, value)| *value)
        .collect();
    assert_eq!(found.len(), 1, "{name} {labels}");
    found[0]
}

fn prometheus(mount: &Mount) -> String {
    let output = zarrfs(&["stats", "--prometheus", mount.path().to_str().unwrap()]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn metrics_equal_the_counts_of_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("bucket");
    let array = TestArray::with_chunks(root.join("a"), &[5000], &[1000], json!({}));
    fs::write(root.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let server = FaultyServer::new(folder.path());
    let begun = Instant::now();
    let mut command = with_timeout(120, ZARRFS);
    command.args(["mount", "--anon", "--region", "us-east-1", "--endpoint-url"]);
    command.arg(server.url("").trim_end_matches('/')).args([
        "--retries",
        "2",
        "--cache-size",
        "64M",
    ]);
    let mount = Mount::with_command(command, "s3://bucket".as_ref());
    server.set("bucket/a/1", Fault::Burst(2));
    assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), array.flat);
    fs::write(mount.join("a/0"), pattern(7, 1000)).unwrap();
    // an outage is one after a second: the server asks for pauses as long as that
    server.set_gate(Box::new(|request| {
        let pause = vec![("Retry-After", "1".to_string())];
        (request.path == "/bucket/a/4").then(|| (503, pause, String::new()))
    }));
    let file = support::open_for_writing(&mount.join("a/data.raw"));
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern(8, 1000), 4000).unwrap();
    assert!(file.sync_all().is_err());
    let text = prometheus(&mount);
    let requests = server.requests();
    let document = include_str!("../../docs/operations.md");
    let words = document.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &&str| word.starts_with("zarrfs_") && !word.contains(char::is_uppercase);
    let names: Vec<&str> = words.filter(is_name).collect();
    assert!(names.len() > 12, "{names:?}");
    for name in names {
        assert!(
            text.contains(&format!("# TYPE {name} ")),
            "{name} is documented, and not there"
        );
    }
    let Some(families) = parsed(&text) else {
        return;
    };
    for family in &families {
        assert!(
            family.name.starts_with("zarrfs_")
                && !family.help.is_empty()
                && family.kind != "unknown",
            "{}",
            family.name
        );
        let named = families
            .iter()
            .filter(|other| other.name == family.name)
            .count();
        assert_eq!(named, 1, "{}", family.name);
    }
    for (kind, method) in [("put", "PUT"), ("get", "GET")] {
        let is_of_kind =
            |request: &&Request| request.method == method && !request.path.contains("list-type=2");
        let made = requests.iter().filter(is_of_kind).count();
        let samples = families.iter().flat_map(|family| &family.samples);
        let of_kind = samples
            .filter(|(name, labels, _)| name == "zarrfs_requests_total" && labels["kind"] == *kind);
        assert_eq!(
            of_kind.map(|(_, _, value)| *value as usize).sum::<usize>(),
            made,
            "{kind}"
        );
        assert_eq!(
            value(
                &families,
                "zarrfs_request_seconds_count",
                json!({"kind": kind})
            ) as usize,
            made,
            "{kind}"
        );
    }
    let listed = requests
        .iter()
        .filter(|request| request.path.contains("list-type=2"))
        .count();
    assert_eq!(
        value(
            &families,
            "zarrfs_requests_total",
            json!({"kind": "list", "status": "200"})
        ) as usize,
        listed
    );
    assert_eq!(
        value(
            &families,
            "zarrfs_requests_total",
            json!({"kind": "get", "status": "500"})
        ),
        2.0
    );
    let single = |name: &str| value(&families, name, json!({}));
    assert!(
        value(
            &families,
            "zarrfs_requests_total",
            json!({"kind": "put", "status": "200"})
        ) >= 1.0
    );
    assert!(single("zarrfs_request_retries_total") >= 3.0);
    assert!(single("zarrfs_request_failures_total") >= 1.0);
    assert!(
        single("zarrfs_bytes_sent_total") == 1000.0
            && single("zarrfs_bytes_received_total") >= 5000.0
    );
    assert_eq!(
        (single("zarrfs_dirty_chunks"), single("zarrfs_dirty_bytes")),
        (1.0, 1000.0)
    );
    assert_eq!(single("zarrfs_cache_bound_bytes"), f64::from(64 << 20));
    assert_eq!(single("zarrfs_store_failing"), 1.0);
    assert!(
        single("zarrfs_problems_met_total") >= 1.0
            && single("zarrfs_last_error_timestamp_seconds") > 1e9
    );
    let uptime = single("zarrfs_uptime_seconds");
    assert!((0.1..begun.elapsed().as_secs_f64()).contains(&uptime));
    let labels = json!({"version": env!("CARGO_PKG_VERSION"), "store": "s3://bucket"});
    assert_eq!(value(&families, "zarrfs_build_info", labels), 1.0);
    server.set_gate(Box::new(|_| None));
    file.sync_all().unwrap();
    drop(file);
    let families = parsed(&prometheus(&mount)).unwrap();
    assert_eq!(value(&families, "zarrfs_dirty_chunks", json!({})), 0.0);
    assert_eq!(value(&families, "zarrfs_store_failing", json!({})), 0.0);
}

/// A mount that serves its statistics.
struct Served {
    mount: Mount,
    address: String,
}

impl Served {
    fn new() -> Served {
        let mount = Mount::new(&test_data("sample.zarr"), &["--read-only", "--listen", "0"]);
        let stats: Value =
            serde_json::from_slice(&fs::read(mount.join(".zarrfs/stats.json")).unwrap()).unwrap();
        Served {
            address: stats["metrics_address"].as_str().unwrap().to_string(),
            mount,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes. Returns the answer, which ends when the server closes the connection.
    fn ask(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(!hangs(&read), "{read:?}");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Returns the number of threads of the daemon.
    fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.mount.counter("pid")))
            .unwrap()
            .count()
    }
}

/// Returns whether a read from a connection has waited in vain.
fn hangs(read: &std::io::Result<usize>) -> bool {
    read.as_ref()
        .is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
}

#[test]
fn statistics_are_served_over_http() {
    let served = Served::new();
    assert!(
        served.address.starts_with("127.0.0.1:"),
        "{}",
        served.address
    );
    fs::read(served.mount.join("lat/data.raw")).unwrap();
    let answer = served.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", body.len())),
        "{head}"
    );
    if let Some(families) = parsed(body) {
        assert_eq!(
            value(&families, "zarrfs_chunk_decodes_total", json!({})),
            1.0
        );
    }
    let names = |text: &str| {
        text.lines()
            .filter(|l| l.starts_with("# TYPE"))
            .map(String::from)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(body), names(&prometheus(&served.mount)));
    let head = served.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    for (request, status) in [
        ("GET / HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("nonsense", 400),
    ] {
        let answer = served.ask(format!("{request}\r\n\r\n").as_bytes());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {answer}"
        );
    }
    // a web page that resolves its own name to this machine reads nothing
    let answer = served.ask(b"GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n");
    assert!(
        answer.starts_with("HTTP/1.1 421 ") && !answer.contains("zarrfs_"),
        "{answer}"
    );
    // a taken address is refused before anything is mounted
    let directory = tempfile::tempdir().unwrap();
    let store = test_data("sample.zarr");
    let mountpoint = directory.path().to_str().unwrap();
    let output = zarrfs(&[
        "mount",
        "--listen",
        &served.address,
        store.to_str().unwrap(),
        mountpoint,
    ]);
    let (code, said) = failure(&output);
    assert!(
        code == 1 && said.contains("--listen") && said.contains("in use"),
        "{code} {said}"
    );
    assert!(!support::is_mounted(directory.path()));
    assert_eq!(
        zarrfs(&[
            "mount",
            "--listen",
            "nowhere",
            store.to_str().unwrap(),
            mountpoint
        ])
        .status
        .code(),
        Some(2)
    );
}

/// The connections of slow clients, of many clients and with huge requests end, and do not affect
/// the mount.
#[test]
fn hostile_clients_do_not_hurt_the_mount() {
    let served = Served::new();
    let before = served.threads();
    let begun = Instant::now();
    let mut slow: Vec<TcpStream> = (0..200).map(|_| served.connect()).collect();
    for stream in &mut slow {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
    }
    std::thread::sleep(Duration::from_millis(500));
    let threads = served.threads();
    assert!(
        threads <= before + 8 + 2,
        "{before} threads, then {threads}"
    );
    // meanwhile the mount answers
    let read = Instant::now();
    assert!(
        !fs::read(served.mount.join("air_temperature/data.raw"))
            .unwrap()
            .is_empty()
    );
    assert!(read.elapsed() < PATIENCE, "{:?}", read.elapsed());
    // a client that trickles gets no more time than a silent one
    for (n, stream) in slow.iter_mut().enumerate() {
        if n % 2 == 0 {
            let _ = stream.write_all(b"y");
        }
        let read = stream.read(&mut [0]);
        assert!(!matches!(read, Ok(1)) && !hangs(&read), "{n}: {read:?}");
    }
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    let huge = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &vec![b'y'; 10 << 20]].concat();
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(5000));
    let peak = served.mount.peak_memory();
    for bytes in [&huge[..], many.as_bytes(), &[0; 100_000], b"\r\n\r\n"] {
        let answer = served.ask(bytes);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
    }
    assert!(
        served.mount.peak_memory() < peak + (4 << 20),
        "a request may take 8 KiB"
    );
    // a client that does not read its answer, which fits the buffer of its socket
    let mut deaf = served.connect();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    for _ in 0..300 {
        let _ = served.ask(b"GET /metrics HTTP/1.1\r\n\r\n");
    }
    let answer = served.ask(b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    support::wait_for("the threads to end", || served.threads() <= before + 1);
}
