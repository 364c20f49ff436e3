//! An outage of a server takes `--timeout` once, measured by the requests that a faulty server
//! receives.

use crate::patience;
use crate::support;
use crate::support::Mount;
use crate::support::array::{TestArray, pattern};
use crate::support::faulty_server::{Fault, FaultyServer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The arrays of a bucket, each of 20 chunks.
const ARRAYS: [&str; 3] = ["a", "b", "c"];

/// Returns the number of requests for keys of each array that the server receives during `run`. The
/// kernel releases a closed file later, which may cause one more request.
fn requests_of<const N: usize>(
    server: &FaultyServer,
    arrays: [&str; N],
    run: impl FnOnce(),
) -> [usize; N] {
    let before = server.requests().len();
    run();
    let requests = server.requests().split_off(before);
    let names = |path: &str, array: &str| {
        path.contains(&format!("/{array}/")) || path.contains(&format!("={array}%2F"))
    };
    arrays.map(|array| {
        requests
            .iter()
            .filter(|request| names(&request.path, array))
            .count()
    })
}

/// Creates a bucket and starts its server.
fn bucket() -> (tempfile::TempDir, FaultyServer) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("bucket");
    for name in ARRAYS {
        TestArray::with_chunks(root.join(name), &[2000], &[100], json!({}));
    }
    fs::write(root.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let server = FaultyServer::new(folder.path());
    (folder, server)
}

fn mount(server: &FaultyServer, args: &[&str]) -> Mount {
    let url = server.url("");
    let endpoint = ["--endpoint-url", url.trim_end_matches('/')];
    let access = ["--anon", "--region", "us-east-1"];
    patience::mount("s3://bucket", &[&access[..], &endpoint, args].concat())
}

/// Overwrites an array, and leaves its file open: nothing is stored yet.
fn overwrite(mount: &Mount, array: &str) -> File {
    let file = patience::open_for_writing(&mount.join(array).join("data.raw"));
    file.write_all_at(&pattern(9, 2000), 0).unwrap();
    file
}

/// "A program that closes several files waits for the first one alone."
#[test]
fn files_that_are_closed_in_an_outage_wait_for_the_first_alone() {
    // a server that refuses at once and asks for pauses, and one that is silent for a while
    for (silence, pause) in [(0, "1"), (700, "0")] {
        let (_folder, server) = bucket();
        // the long timeout is the time for which others get a single attempt after a failure; the
        // retries end each request much earlier
        let mount = mount(&server, &["--timeout", "1m", "--retries", "2"]);
        let [file, others @ ..] = ARRAYS.map(|name| overwrite(&mount, name));
        server.set_latency(Duration::from_millis(silence));
        server.set_gate(Box::new(move |_| {
            let headers = vec![("Retry-After", pause.to_string())];
            Some((503, headers, String::new()))
        }));
        let [count, rest @ ..] =
            requests_of(&server, ARRAYS, || assert!(support::close(file).is_err()));
        assert!(
            count >= 3 && rest == [0, 0],
            "{silence} ms: {count} {rest:?}"
        );
        for (name, file) in ["b", "c"].into_iter().zip(others) {
            let [count] = requests_of(&server, [name], || assert!(support::close(file).is_err()));
            assert!(count <= 2, "{silence} ms: {count} requests for {name}");
        }
        // the end of the mount stores everything
        server.set_latency(Duration::ZERO);
        server.set_gate(Box::new(|_| None));
    }
}

/// "A mount that a signal ends gives up after `--timeout` without any progress"
#[test]
fn an_outage_takes_the_timeout_once() {
    // a server that refuses, and one that is silent
    for fault in [Fault::Status(503), Fault::Stall] {
        let (_folder, server) = bucket();
        let mount = mount(&server, &["--timeout", "2s"]);
        let files = ARRAYS.map(|name| overwrite(&mount, name));
        server.set_all(fault);
        for file in files {
            assert!(support::close(file).is_err(), "{fault:?}");
        }
        let process = Pid::from_raw(mount.counter("pid") as i32).unwrap();
        let ended = pidfd_open(process, PidfdFlags::empty()).unwrap();
        let begun = Instant::now();
        let [first, rest @ ..] = requests_of(&server, ARRAYS, || {
            kill_process(process, Signal::TERM).unwrap();
            let limit = Timespec {
                tv_sec: 120,
                tv_nsec: 0,
            };
            assert_eq!(
                poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit)),
                Ok(1),
                "the daemon does not end"
            );
        });
        mount.assume_unmounted();
        assert!(
            begun.elapsed() >= Duration::from_secs(2),
            "{fault:?}: {:?}",
            begun.elapsed()
        );
        // the daemon retries the first array, but not with each chunk, and tries the others at most
        // once
        assert!(
            (1..20).contains(&first) && rest.iter().all(|count| *count <= 1),
            "{fault:?}: {first} {rest:?}"
        );
    }
}
