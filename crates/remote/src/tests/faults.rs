//! "EIO or the right bytes within the timeout": servers that break, stall and lie.

use super::*;
use rustix::net::{AddressFamily, SocketType};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use zarrfs_store::StoreExt;

/// A timeout that a test waits for, or that is shorter than a pause.
const SHORT: Duration = Duration::from_secs(3);

/// Returns the result of a request to this server, and the number of attempts.
fn ask(server: &Server, timeout: Duration) -> (Result<Option<Vec<u8>>>, usize) {
    let options = ObjectOptions { timeout, ..quick() };
    let (store, stats) = open(&server.url, &options);
    let begin = Instant::now();
    let got = get(&store, "a/0.0");
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    (got, stats.requests.get() as usize)
}

/// Returns the result of a request to a server with this behavior, and the number of attempts.
fn outcome(
    answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
) -> (Result<Option<Vec<u8>>>, usize) {
    outcome_within(quick().timeout, answer)
}

/// Does what [`outcome`] does, with this timeout.
fn outcome_within(
    timeout: Duration,
    answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
) -> (Result<Option<Vec<u8>>>, usize) {
    let server = Server::new(answer);
    let (got, requests) = ask(&server, timeout);
    assert_eq!(requests, server.requests().len());
    (got, requests)
}

/// Returns the message of a request that must fail with EIO, and the number of attempts.
fn failure(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> (String, usize) {
    let (got, requests) = outcome(answer);
    (message_of(got), requests)
}

/// Returns the message of an error, which must be EIO. The message must contain the URL.
fn message_of(got: Result<Option<Vec<u8>>>) -> String {
    let error = got.unwrap_err();
    assert_eq!(error.errno(), libc::EIO, "{error}");
    assert!(
        error.message().contains("/data/x.zarr/a/0.0") && !error.message().contains('\n'),
        "{error}"
    );
    error.message().to_string()
}

/// Returns a behavior: attempts from number `nth` on, counted from 0, get the right value, and
/// earlier ones `wrong`.
fn at_last(nth: usize, wrong: Reply) -> impl Fn(&Request, usize) -> Reply + Send + Sync {
    move |_, number| {
        if number >= nth {
            reply(200, &[("etag", "\"e\"")], b"right")
        } else {
            wrong.clone()
        }
    }
}

#[test]
fn a_short_body_is_retried_and_never_returned() {
    let short = || reply(200, &[("content-length", "10")], b"12345").then(After::Close);
    let (got, requests) = outcome(at_last(2, short()));
    assert_eq!((got.unwrap().unwrap(), requests), (b"right".to_vec(), 3));
    let (message, requests) = failure(move |_, _| short());
    assert_eq!(requests, 4);
    assert!(
        message.contains("breaks off") && message.contains("4 attempts"),
        "{message}"
    );
}

#[test]
fn a_truncated_chunked_body_is_retried() {
    let (_, requests) = failure(|_, _| {
        reply(200, &[("transfer-encoding", "chunked")], b"5\r\n12345\r\n").then(After::Close)
    });
    assert_eq!(requests, 4);
    let (got, _) = outcome(|_, _| {
        reply(
            200,
            &[("transfer-encoding", "chunked")],
            b"5\r\n12345\r\n0\r\n\r\n",
        )
    });
    assert_eq!(got.unwrap().unwrap(), b"12345");
}

#[test]
fn a_body_without_length_is_refused() {
    let (message, requests) = failure(|_, _| Reply {
        bytes: b"HTTP/1.1 200 OK\r\n\r\n12345".to_vec(),
        after: After::Close,
    });
    assert_eq!(requests, 1);
    assert!(message.contains("length"), "{message}");
}

#[test]
fn a_longer_body_is_neither_the_value_nor_the_next_answer() {
    let server = Server::new(|request, _| {
        if request.target.ends_with("long") {
            reply(
                200,
                &[("content-length", "5")],
                b"12345HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad",
            )
        } else {
            reply(200, &[], b"good")
        }
    });
    let (store, _) = open(&server.url, &quick());
    for _ in 0..5 {
        assert_eq!(get(&store, "long").unwrap().unwrap(), b"12345");
        assert_eq!(get(&store, "other").unwrap().unwrap(), b"good");
    }
}

#[test]
fn temporary_errors_pass_and_permanent_ones_are_reported() {
    for status in [500, 502, 503, 504, 429, 408] {
        let (got, requests) = outcome(at_last(3, reply(status, &[], b"busy")));
        assert_eq!(
            (got.unwrap().unwrap(), requests),
            (b"right".to_vec(), 4),
            "{status}"
        );
    }
    let (message, requests) = failure(|_, _| reply(503, &[], b""));
    assert!(requests == 4 && message.contains("503"), "{message}");
}

#[test]
fn a_permanent_error_is_not_retried() {
    for status in [400, 402, 406, 411, 418, 501, 505] {
        let (message, requests) = failure(move |_, _| reply(status, &[], b""));
        assert!(
            requests == 1 && message.contains(&status.to_string()),
            "{message}"
        );
    }
    let (got, requests) = outcome(|_, _| reply(401, &[], b""));
    assert_eq!((got.unwrap_err().errno(), requests), (libc::EACCES, 1));
}

#[test]
fn the_pause_that_a_server_asks_for_is_kept() {
    let begin = Instant::now();
    let (got, _) = outcome(at_last(1, reply(503, &[("retry-after", "1")], b"")));
    assert!(got.is_ok() && begin.elapsed() >= Duration::from_secs(1));
    // a pause beyond the timeout ends the request
    let (got, requests) =
        outcome_within(SHORT, |_, _| reply(429, &[("retry-after", "86400")], b""));
    let message = message_of(got);
    assert!(requests == 1 && message.contains("429"), "{message}");
}

#[test]
fn a_stalled_connection_ends_within_the_timeout() {
    let nothing = |after| Reply {
        bytes: Vec::new(),
        after,
    };
    let (got, requests) = outcome(at_last(2, nothing(After::Close)));
    assert_eq!((got.unwrap().unwrap(), requests), (b"right".to_vec(), 3));
    let (got, requests) = outcome_within(SHORT, at_last(1, nothing(After::Stall)));
    assert_eq!((got.unwrap().unwrap(), requests), (b"right".to_vec(), 2));
    let half = reply(200, &[("content-length", "10")], b"12345").then(After::Stall);
    let (got, _) = outcome_within(SHORT, at_last(1, half.clone()));
    assert_eq!(got.unwrap().unwrap(), b"right");
    let server = Server::new(move |_, _| half.clone());
    let (got, requests) = ask(&server, SHORT);
    // the last attempt may have no time to reach the server
    assert!(server.requests().len() <= requests);
    let message = message_of(got);
    assert!(message.contains("--timeout"), "{message}");
}

#[test]
fn a_missing_server_is_an_error_at_the_timeout() {
    // a socket that does not listen refuses connections, and keeps its port from other servers
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let socket = TcpListener::from(socket);
    let url = format!("http://{}/x", socket.local_addr().unwrap());
    let options = ObjectOptions {
        timeout: Duration::from_secs(2),
        ..ObjectOptions::default()
    };
    let begin = Instant::now();
    loop {
        let (store, stats) = open(&url, &options);
        let error = get(&store, "a").unwrap_err();
        assert_eq!(error.errno(), libc::EIO, "{error}");
        // a busy machine may make fewer attempts in this time
        if stats.requests.get() > 2 && error.message().contains("can't connect") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{error}");
    }
    let options = ObjectOptions {
        retries: 1,
        timeout: quick().timeout,
        ..options
    };
    let (store, stats) = open(&url, &options);
    assert!(get(&store, "a").is_err() && stats.requests.get() == 2);
}

#[test]
fn an_endless_body_is_cut_off() {
    let (message, requests) =
        failure(|_, _| reply(200, &[("transfer-encoding", "chunked")], b"").then(After::Endless));
    assert!(
        requests == 1 && message.contains("more than the 1048576 bytes"),
        "{message}"
    );
}

#[test]
fn a_value_above_the_limit_is_refused_before_it_is_received() {
    let server = Server::new(|_, _| reply(200, &[("content-length", "1000001")], b""));
    let (store, stats) = open(&server.url, &quick());
    let error = store
        .get(&key("a"), 1_000_000, &mut Vec::new())
        .unwrap_err();
    assert_eq!((error.errno(), error.kind()), (libc::EIO, Kind::Damaged));
    assert!(
        error
            .message()
            .contains("1000001 bytes, more than the 1000000"),
        "{error}"
    );
    assert_eq!((stats.requests.get(), stats.bytes_received.get()), (1, 0));
}

#[test]
fn redirects_end() {
    let (message, requests) =
        failure(|_, number| reply(302, &[("location", &format!("/{number}"))], b""));
    assert!(
        requests == 11 && message.contains("too many redirects"),
        "{message}"
    );
}

#[test]
fn a_compressed_body_is_refused() {
    let (message, requests) =
        failure(|_, _| reply(200, &[("content-encoding", "gzip")], b"\x1f\x8b"));
    assert!(requests == 1 && message.contains("compressed"), "{message}");
}

#[test]
fn a_page_that_says_not_found_with_200_is_no_value() {
    let html = [("content-type", "text/html; charset=utf-8")];
    let (message, _) = failure(move |_, _| reply(200, &html, b"<html>not found</html>"));
    assert!(message.contains("page"), "{message}");
    let server = Server::new(move |_, _| reply(200, &html, b"<html>"));
    let (store, _) = open(&server.url, &quick());
    assert_eq!(store.stat(&key("a")).unwrap_err().errno(), libc::EIO);
    assert_eq!(get(&store, "index.html").unwrap().unwrap(), b"<html>");
}

#[test]
fn a_range_is_cut_from_a_whole_value() {
    let digits: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    let all = digits.clone();
    let server = Server::new(move |_, _| reply(200, &[("etag", "\"e\"")], &all));
    let (store, stats) = open(&server.url, &quick());
    let (bytes, stat) = get_range(&store, "a", 1000..3000).unwrap().unwrap();
    assert_eq!(
        (bytes.as_slice(), stat.size),
        (&digits[1000..3000], 800_000)
    );
    // the bytes after the range are not received
    assert_eq!(stats.bytes_received.get(), 3000);
    let (bytes, stat) = get_range(&store, "a", 799_999..900_000).unwrap().unwrap();
    assert_eq!((bytes.as_slice(), stat.size), (&digits[799_999..], 800_000));
    assert_eq!(
        get_range(&store, "a", 800_000..900_000).unwrap().unwrap().0,
        b""
    );
    let error = get_range(&store, "a", 1 << 40..(1 << 40) + 1).unwrap_err();
    assert!(
        error.errno() == libc::EIO && error.message().contains("does not support ranges"),
        "{error}"
    );
}

#[test]
fn a_wrong_range_is_refused() {
    let part = |headers: &'static [(&'static str, &'static str)], body: &'static [u8]| {
        let server = Server::new(move |_, _| reply(206, headers, body));
        let (store, stats) = open(&server.url, &quick());
        let error = get_range(&store, "a", 2..5).unwrap_err();
        assert_eq!(error.errno(), libc::EIO, "{headers:?}: {error}");
        stats.requests.get()
    };
    assert_eq!(part(&[("content-range", "bytes 0-2/10")], b"012"), 1);
    assert_eq!(part(&[("content-range", "bytes 2-4/*")], b"234"), 1);
    assert_eq!(part(&[], b"234"), 1);
    assert_eq!(part(&[("content-range", "bytes 4-2/10")], b"234"), 1);
    assert_eq!(part(&[("content-range", "bytes 2-3/10")], b"23"), 1);
    assert_eq!(
        part(
            &[("content-range", "bytes 2-18446744073709551615/10")],
            b"234"
        ),
        1
    );
    // a body that is shorter than its header says is retried
    assert_eq!(part(&[("content-range", "bytes 2-4/10")], b"23"), 4);
}

#[test]
fn an_answer_never_mixes_versions() {
    // each answer is another version, and every second one breaks off in the middle
    let count = Arc::new(AtomicUsize::new(0));
    let server = Server::new(move |_, _| {
        let n = count.fetch_add(1, Ordering::Relaxed);
        let tag = format!("\"{n}\"");
        let byte = n as u8;
        match n % 2 {
            0 => reply(
                200,
                &[("etag", &tag), ("content-length", "1000")],
                &[byte; 500],
            )
            .then(After::Close),
            _ => reply(200, &[("etag", &tag)], &[byte; 1000]),
        }
    });
    let (store, _) = open(&server.url, &quick());
    for n in 0..10u8 {
        let mut value = Vec::new();
        let version = store.get(&key("a"), 1000, &mut value).unwrap().unwrap();
        assert_eq!(
            (value, version),
            (
                vec![2 * n + 1; 1000],
                Version::Tag(format!("\"{}\"", 2 * n + 1))
            )
        );
    }
}

#[test]
fn garbage_instead_of_an_answer_is_an_error() {
    for garbage in [
        "",
        "\0\0\0\0",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "SSH-2.0-x\r\n",
    ] {
        failure(move |_, _| Reply {
            bytes: garbage.as_bytes().to_vec(),
            after: After::Close,
        });
    }
}
