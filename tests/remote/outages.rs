//! An outage of a server takes `--timeout` once, measured by the requests that a faulty server
//! receives.

use crate::support;
use crate::support::array::{TestArray, pattern};
use crate::support::faulty_server::{Fault, FaultyServer};
use crate::support::{Mount, ZARRFS, with_timeout};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::json;
use std::fs;

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

/// "A program that closes several files waits for the first one alone."
/// "A mount that a signal ends gives up after `--timeout` without any progress"
#[test]
fn an_outage_takes_the_timeout_once() {
    // a server that refuses, and one that is silent
    for (fault, timeout) in [(Fault::Status(503), "3s"), (Fault::Stall, "2s")] {
        outage_takes_the_timeout_once(fault, timeout);
    }
}

fn outage_takes_the_timeout_once(fault: Fault, timeout: &str) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        TestArray::with_chunks(
            folder.path().join("bucket").join(name),
            &[2000],
            &[100],
            json!({}),
        );
    }
    fs::write(
        folder.path().join("bucket/.zgroup"),
        r#"{"zarr_format": 2}"#,
    )
    .unwrap();
    let server = FaultyServer::new(folder.path());
    let mut command = with_timeout(120, ZARRFS);
    command.args([
        "mount",
        "--anon",
        "--region",
        "us-east-1",
        "--timeout",
        timeout,
        "--endpoint-url",
    ]);
    command.arg(server.url("").trim_end_matches('/'));
    let mount = Mount::with_command(command, "s3://bucket".as_ref());
    let open = |name: &str| {
        let file = support::open_for_writing(&mount.join(name).join("data.raw"));
        std::os::unix::fs::FileExt::write_all_at(&file, &pattern(9, 2000), 0).unwrap();
        file
    };
    let first = open("a");
    let others = ["b", "c"].map(open);
    server.set_all(fault);
    let [count, rest @ ..] = requests_of(&server, ["a", "b", "c"], || {
        assert!(support::close(first).is_err())
    });
    let tries = if fault == Fault::Stall { 2 } else { 4 };
    assert!(
        count >= tries && rest == [0, 0],
        "{fault:?}: {count} {rest:?}"
    );
    for (name, file) in ["b", "c"].into_iter().zip(others) {
        let [count] = requests_of(&server, [name], || assert!(support::close(file).is_err()));
        assert!(count <= 2, "{fault:?}: {count} requests for {name}");
    }
    let process = Pid::from_raw(mount.counter("pid") as i32).unwrap();
    let ended = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let [first, rest @ ..] = requests_of(&server, ["a", "b", "c"], || {
        kill_process(process, Signal::TERM).unwrap();
        let limit = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        assert_eq!(
            poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit)),
            Ok(1),
            "the daemon does not end"
        );
    });
    mount.assume_unmounted();
    // the daemon retries the first array, and tries the others at most once
    let most = if fault == Fault::Stall { 1 } else { 2 };
    assert!(
        (most..=10).contains(&first) && rest.iter().all(|count| *count <= 1),
        "{fault:?}: {first} {rest:?}"
    );
}
