//! Stores on a web server that behaves correctly.

use super::*;
use crate::transport::{ServerRequest, Transport};
use reqwest::Method;
use zarrfs_store::testing::InFlight;
use zarrfs_store::{EntryKind, StoreExt};

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// Returns options with which an attempt waits 40 seconds for an answer: longer than requests wait
/// for each other.
fn patient() -> ObjectOptions {
    ObjectOptions {
        timeout: Duration::from_secs(120),
        ..quick()
    }
}

/// Starts a server with one value, `0123456789`, that supports ranges.
fn of_digits() -> Server {
    Server::new(|request, _| {
        let digits = b"0123456789";
        let headers = [("etag", "\"one\""), ("last-modified", DATE)];
        match (request.target.as_str(), request.range()) {
            ("/data/x.zarr/a/0.0", None) => reply(200, &headers, digits),
            ("/data/x.zarr/a/0.0", Some((first, _))) if first >= 10 => {
                reply(416, &[("content-range", "bytes */10")], b"")
            }
            ("/data/x.zarr/a/0.0", Some((first, last))) => {
                let last = last.min(9);
                let range = format!("bytes {first}-{last}/10");
                reply(
                    206,
                    &[headers[0], headers[1], ("content-range", &range)],
                    &digits[first..=last],
                )
            }
            ("/data/x.zarr/gone", _) => reply(410, &[], b"gone"),
            _ => reply(
                404,
                &[("content-type", "text/html")],
                b"<html>not found</html>",
            ),
        }
    })
}

#[test]
fn values_ranges_and_metadata_are_those_of_the_server() {
    let server = of_digits();
    let (store, stats) = open(&server.url, &quick());
    assert_eq!(get(&store, "a/0.0").unwrap().unwrap(), b"0123456789");
    let stat = store.stat(&key("a/0.0")).unwrap().unwrap();
    assert_eq!((stat.kind, stat.size), (EntryKind::Value, 10));
    assert_eq!(stat.version, Version::Tag("\"one\"".to_string()));
    assert_eq!(
        stat.modified,
        std::time::UNIX_EPOCH + Duration::from_secs(784_111_777)
    );
    for (range, part) in [
        (2..5, "234"),
        (8..20, "89"),
        (0..10, "0123456789"),
        (10..12, ""),
        (4..4, ""),
    ] {
        let (bytes, of_part) = get_range(&store, "a/0.0", range.clone()).unwrap().unwrap();
        assert_eq!(
            (bytes, of_part),
            (part.as_bytes().to_vec(), stat.clone()),
            "{range:?}"
        );
    }
    // one request each, and one for metadata for each of the two empty ranges
    assert_eq!(
        (stats.requests.get(), stats.bytes_received.get()),
        (2 + 3 + 2 + 1, 10 + 3 + 2 + 10)
    );
    assert!(
        server
            .requests()
            .iter()
            .all(|request| request.header("accept-encoding") == Some("identity"))
    );
}

#[test]
fn not_found_and_gone_mean_a_missing_key() {
    let server = of_digits();
    let (store, _) = open(&server.url, &quick());
    for path in ["nothing", "gone"] {
        assert_eq!(get(&store, path).unwrap(), None);
        assert_eq!(get_range(&store, path, 0..3).unwrap(), None);
        assert_eq!(store.stat(&key(path)).unwrap(), None);
    }
    assert_eq!(
        store.stat(&Key::root()).unwrap().unwrap().kind,
        EntryKind::Prefix
    );
}

#[test]
fn a_web_server_neither_lists_nor_writes() {
    let server = of_digits();
    let (store, stats) = open(&server.url, &quick());
    assert_eq!(store.list(&Key::root()).unwrap().count(), 0);
    assert_eq!((store.lists_all(), store.is_writable()), (false, false));
    let refused = [
        store.put(&key("a"), b"").map(drop),
        store.put_if(&key("a"), b"", Replaces::Nothing).map(drop),
        store.delete(&key("a")).map(drop),
        store.make_prefix(&key("a")),
        store.rename(&key("a"), &key("b")),
        store.sync(),
    ];
    assert!(
        refused
            .iter()
            .all(|answer| answer.as_ref().is_err_and(|e| e.kind() == Kind::ReadOnly)),
        "{refused:?}"
    );
    assert_eq!(stats.requests.get(), 0);
}

#[test]
fn forbidden_is_an_error_unless_configured() {
    let server = Server::new(|_, _| reply(403, &[], b""));
    let (store, _) = open(&server.url, &quick());
    for error in [
        get(&store, "a").unwrap_err(),
        get_range(&store, "a", 0..1).unwrap_err(),
    ] {
        assert_eq!(error.errno(), libc::EACCES);
        for part in [server.url.as_str(), "403", "--403-is-missing"] {
            assert!(error.message().contains(part), "{error}");
        }
    }
    assert_eq!(store.stat(&key("a")).unwrap_err().errno(), libc::EACCES);
    let (store, _) = open(
        &server.url,
        &ObjectOptions {
            forbidden_is_missing: true,
            ..quick()
        },
    );
    assert_eq!(get(&store, "a").unwrap(), None);
    assert_eq!(store.stat(&key("a")).unwrap(), None);
}

/// nginx redirects `a|b` to `a%7Cb/`.
#[test]
fn a_redirect_to_a_slash_is_a_directory_however_it_is_encoded() {
    let server = Server::new(|_, _| reply(301, &[("location", "/data/x.zarr/a%7Cb/")], b""));
    let (store, _) = open(
        &server.url,
        &ObjectOptions {
            retries: 0,
            ..quick()
        },
    );
    assert_eq!(
        store.stat(&key("a|b")).unwrap().map(|stat| stat.kind),
        Some(EntryKind::Prefix)
    );
}

#[test]
fn names_are_escaped_and_the_query_is_kept_but_never_shown() {
    let server = Server::new(|_, _| reply(500, &[], b""));
    let url = format!("{}/?sig=a%2Fb&x=secret", server.url);
    let (store, _) = open(
        &url,
        &ObjectOptions {
            retries: 0,
            ..quick()
        },
    );
    let error = get(&store, "a b/100%/#1?/ä/%2e/\t\n").unwrap_err();
    let target = "/data/x.zarr/a%20b/100%25/%231%3F/%C3%A4/%252e/%09%0A?sig=a%2Fb&x=secret";
    assert_eq!(server.requests()[0].target, target);
    assert!(
        !error.message().contains("secret") && !store.location().contains("secret"),
        "{error}"
    );
    assert_eq!(store.location(), server.url);
}

#[test]
fn without_head_the_first_byte_is_requested() {
    for status in [403, 405, 501] {
        let server = Server::new(move |request, _| match request.method.as_str() {
            "HEAD" => reply(status, &[], b""),
            _ => reply(
                206,
                &[("content-range", "bytes 0-0/77"), ("etag", "\"e\"")],
                b"x",
            ),
        });
        let (store, _) = open(&server.url, &quick());
        assert_eq!(store.stat(&key("a")).unwrap().unwrap().size, 77, "{status}");
    }
}

#[test]
fn versions_are_tags_or_dates_with_sizes_or_unique() {
    let version = |headers: &'static [(&'static str, &'static str)]| {
        let server = Server::new(move |_, _| reply(200, headers, b"12"));
        let (store, _) = open(&server.url, &quick());
        let mut value = Vec::new();
        let of_get = store.get(&key("a"), 9, &mut value).unwrap().unwrap();
        (of_get, store.stat(&key("a")).unwrap().unwrap().version)
    };
    let (of_get, of_stat) = version(&[("etag", "W/\"t\""), ("last-modified", DATE)]);
    assert_eq!(
        (&of_get, &of_get),
        (&Version::Tag("W/\"t\"".to_string()), &of_stat)
    );
    let (of_get, of_stat) = version(&[("last-modified", DATE)]);
    assert_eq!(
        (&of_get, &of_get),
        (&Version::Tag(format!("{DATE}, 2 bytes")), &of_stat)
    );
    let (of_get, of_stat) = version(&[]);
    assert_ne!(of_get, of_stat);
}

#[test]
fn a_redirect_to_the_same_name_with_a_slash_is_a_directory() {
    let server = Server::new(|request, _| match request.target.as_str() {
        "/data/x.zarr/group" => reply(301, &[("location", "/data/x.zarr/group/")], b""),
        _ => reply(
            200,
            &[("content-type", "text/html")],
            b"<html>index of group</html>",
        ),
    });
    let (store, _) = open(&server.url, &quick());
    assert_eq!(
        store.stat(&key("group")).unwrap().unwrap().kind,
        EntryKind::Prefix
    );
    assert_eq!(get(&store, "group").unwrap(), None);
}

#[test]
fn user_and_password_of_the_url_become_a_header() {
    let server = Server::new(|_, _| reply(200, &[], b"1"));
    let url = server.url.replace("http://", "http://me:p%40ss@");
    let (store, _) = open(&url, &quick());
    get(&store, "a").unwrap();
    // base64 of me:p@ss
    assert_eq!(
        server.requests()[0].header("authorization"),
        Some("Basic bWU6cEBzcw==")
    );
    assert_eq!(store.location(), server.url);
}

#[test]
fn headers_are_sent_only_to_the_host_of_the_store() {
    let other = Server::new(|_, _| reply(200, &[("etag", "\"there\"")], b"moved"));
    let same_host = other.port;
    let elsewhere = format!("http://localhost:{}/new", other.port);
    let server = Server::new(move |request, _| match request.target.as_str() {
        "/data/x.zarr/away" => reply(302, &[("location", &elsewhere)], b""),
        "/data/x.zarr/port" => reply(
            307,
            &[("location", &format!("http://127.0.0.1:{same_host}/new"))],
            b"",
        ),
        "/data/x.zarr/here" => reply(308, &[("location", "/data/x.zarr/there")], b""),
        _ => reply(200, &[], b"here"),
    });
    let headers = vec![
        ("X-Token".to_string(), " secret ".to_string()),
        ("Cookie".to_string(), "id=1".to_string()),
    ];
    let (store, _) = open(&server.url, &ObjectOptions { headers, ..quick() });
    for (path, value) in [("away", "moved"), ("port", "moved"), ("here", "here")] {
        assert_eq!(get(&store, path).unwrap().unwrap(), value.as_bytes());
    }
    let sees = |request: &Request| {
        request.header("x-token") == Some("secret") && request.header("cookie").is_some()
    };
    assert_eq!((server.requests().len(), other.requests().len()), (4, 2));
    assert!(server.requests().iter().all(sees));
    assert!(other.requests().iter().all(|request| {
        request
            .header("x-token")
            .or(request.header("cookie"))
            .is_none()
    }));
}

/// This includes headers of the request itself, such as session tokens of S3 and keys of SSE-C.
#[test]
fn no_secret_of_a_request_goes_to_another_origin() {
    let other = Server::new(|_, _| reply(206, &[("content-range", "bytes 0-3/4")], b"done"));
    let elsewhere = format!("http://127.0.0.1:{}/there", other.port);
    let server = Server::new(move |_, _| reply(307, &[("location", &elsewhere)], b""));
    let transport = Transport::new(
        vec!["127.0.0.1".into()],
        HeaderMap::new(),
        quick().timeout,
        0,
        Arc::default(),
    )
    .unwrap();
    let mut ask = ServerRequest::new(Method::GET, server.url.parse().unwrap());
    let secrets = [
        "authorization",
        "cookie",
        "proxy-authorization",
        "x-amz-security-token",
        "x-amz-server-side-encryption-customer-key",
        "x-goog-encryption-key",
        "x-ms-encryption-key",
        "x-api-key",
    ];
    for name in secrets {
        ask.headers.insert(name, HeaderValue::from_static("secret"));
    }
    ask.headers
        .insert("range", HeaderValue::from_static("bytes=0-3"));
    ask.headers
        .insert("if-match", HeaderValue::from_static("\"tag\""));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut body = Vec::new();
    runtime.block_on(transport.send(&ask, &mut body)).unwrap();
    assert_eq!(body, b"done");
    let asked = &server.requests()[0];
    let led = &other.requests()[0];
    assert!(
        secrets
            .iter()
            .all(|name| asked.header(name) == Some("secret") && led.header(name).is_none())
    );
    assert_eq!(
        (led.header("range"), led.header("if-match")),
        (Some("bytes=0-3"), Some("\"tag\""))
    );
}

#[test]
fn an_invalid_header_is_refused_without_showing_its_value() {
    let headers = vec![("no name".to_string(), "secret".to_string())];
    let error = ObjectStore::open(
        "http://h/x",
        &ObjectOptions { headers, ..quick() },
        Arc::default(),
    )
    .err()
    .unwrap();
    assert!(
        error.message().contains("no name") && !error.message().contains("secret"),
        "{error}"
    );
}

#[test]
fn stat_many_sends_concurrent_requests_and_keeps_their_order() {
    let in_flight = Arc::new(InFlight::default());
    in_flight.gather(4);
    let of_server = in_flight.clone();
    let server = Server::new(move |request, _| {
        let number: usize = request.target.rsplit('/').next().unwrap().parse().unwrap();
        let time = if number.is_multiple_of(7) { 60 } else { 20 };
        let _request = of_server.begin();
        std::thread::sleep(Duration::from_millis(time));
        if number.is_multiple_of(3) {
            reply(404, &[], b"")
        } else {
            reply(200, &[("etag", "\"e\"")], &vec![0; number])
        }
    });
    let (store, stats) = open(&server.url, &patient());
    let mut sizes = Vec::new();
    store.stat_many(&mut (0..200).map(|n| key(&n.to_string())), &mut |stat| {
        sizes.push(stat.unwrap().map(|stat| stat.size as usize));
        true
    });
    let expected: Vec<_> = (0..200).map(|n| (n % 3 != 0).then_some(n)).collect();
    assert_eq!(sizes, expected);
    let most = in_flight.most();
    assert!(most >= 4, "{most} requests at once");
    assert_eq!(stats.requests.get(), 200);
    let mut answers = 0;
    store.stat_many(&mut (1..).map(|n| key(&n.to_string())), &mut |_| {
        answers += 1;
        answers < 3
    });
    assert_eq!(answers, 3);
}

#[test]
fn many_threads_can_wait_together() {
    let in_flight = Arc::new(InFlight::default());
    in_flight.gather(8);
    let of_server = in_flight.clone();
    let server = Server::new(move |_, _| {
        let _request = of_server.begin();
        reply(200, &[], b"1")
    });
    let (store, _) = open(&server.url, &patient());
    std::thread::scope(|scope| {
        for n in 0..40 {
            let store = &store;
            scope.spawn(move || assert_eq!(get(store, &n.to_string()).unwrap().unwrap(), b"1"));
        }
    });
    let most = in_flight.most();
    assert!(most >= 8, "{most} requests at once");
}

#[test]
fn a_server_that_closes_connections_gets_few_requests_at_a_time() {
    let in_flight = Arc::new(InFlight::default());
    let of_server = in_flight.clone();
    let server = Server::new(move |_, _| {
        let _request = of_server.begin();
        std::thread::sleep(Duration::from_millis(5));
        reply(200, &[("connection", "close")], b"1").then(After::Close)
    });
    let (store, _) = open(&server.url, &patient());
    get(&store, "first").unwrap();
    in_flight.gather(2);
    let mut answers = 0;
    store.stat_many(&mut (0..100).map(|n| key(&n.to_string())), &mut |stat| {
        answers += usize::from(stat.unwrap().is_some());
        true
    });
    let most = in_flight.most();
    assert!(
        answers == 100 && (2..=6).contains(&most),
        "{answers} answers, {most} at once"
    );
}

/// A server may refuse HEAD and send the page of a directory without its length.
#[test]
fn a_page_of_unknown_size_is_no_value() {
    let server = Server::new(|request, _| match request.method.as_str() {
        "HEAD" => reply(405, &[], b""),
        _ => reply(
            200,
            &[
                ("content-type", "text/html"),
                ("transfer-encoding", "chunked"),
            ],
            b"14\r\n<!DOCTYPE html><html\r\n0\r\n\r\n",
        ),
    });
    let (store, _) = open(&server.url, &quick());
    let error = store.stat(&key("group")).unwrap_err();
    assert_eq!(error.kind(), Kind::NotAValue, "{error}");
}
