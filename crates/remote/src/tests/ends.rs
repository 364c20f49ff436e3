//! Requests for the end of a value, to servers that know them and to servers that do not.

use super::*;

const DIGITS: &[u8] = b"0123456789";

/// The kind of a server's answer to a request for the end of a value.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Sent,
    /// The whole value, as if no range was requested.
    Ignored,
    Refused,
    /// Status 501.
    Unknown,
    /// The beginning of the value.
    Mistaken,
}

/// Starts a server with the value `0123456789` in `a` and an empty value in `empty`.
fn server(ends: Ends) -> Server {
    Server::new(move |request, _| {
        let tag = ("etag", "\"one\"");
        let date = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        let part = |range: Range<usize>| {
            let place = format!("bytes {}-{}/10", range.start, range.end - 1);
            reply(206, &[tag, date, ("content-range", &place)], &DIGITS[range])
        };
        let whole = |value: &[u8]| reply(200, &[tag, date], value);
        let is_empty = request.target.ends_with("/empty");
        let bounds = request
            .header("range")
            .and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        match bounds.map(|(first, last)| (first.parse::<usize>(), last.parse::<usize>())) {
            _ if !is_empty && !request.target.ends_with("/a") => reply(404, &[], b""),
            Some(_) if is_empty => reply(416, &[("content-range", "bytes */0")], b""),
            Some((Ok(first), Ok(last))) => part(first..last.min(9) + 1),
            Some((Err(_), Ok(len))) if ends == Ends::Sent => part(10 - len.min(10)..10),
            Some((Err(_), Ok(_))) if ends == Ends::Refused => reply(416, &[], b""),
            Some((Err(_), Ok(_))) if ends == Ends::Unknown => reply(501, &[], b""),
            Some((Err(_), Ok(len))) if ends == Ends::Mistaken => part(0..len.min(10)),
            _ if request.method == "HEAD" => {
                let length = if is_empty { "0" } else { "10" };
                reply(200, &[tag, date, ("content-length", length)], b"")
            }
            _ if is_empty => whole(b""),
            _ => whole(DIGITS),
        }
    })
}

/// Returns the end of a value, and its size.
fn end(store: &ObjectStore, path: &str, len: u64) -> Option<(Vec<u8>, u64)> {
    let mut value = Vec::new();
    let stat = store
        .read(&key(path), &ByteRange::Suffix(len), &mut value)
        .unwrap()?;
    assert_eq!(stat.version, Version::Tag("\"one\"".to_string()));
    Some((value, stat.size))
}

/// Opens the values of a server as a store on a web server and as a bucket.
fn stores(server: &Server) -> [(ObjectStore, Arc<Stats>); 2] {
    let endpoint_url = Some(format!("http://127.0.0.1:{}", server.port));
    let region = Some("us-east-1".to_string());
    let options = ObjectOptions {
        endpoint_url,
        region,
        anonymous: true,
        ..quick()
    };
    [open(&server.url, &quick()), open("s3://b/p", &options)]
}

#[test]
fn one_request_returns_the_end_of_a_value() {
    let server = server(Ends::Sent);
    for (store, stats) in stores(&server) {
        for (len, bytes) in [(3, "789"), (10, "0123456789"), (99, "0123456789")] {
            assert_eq!(end(&store, "a", len), Some((bytes.into(), 10)));
        }
        assert_eq!(end(&store, "nothing", 3), None);
        assert_eq!(stats.requests.get(), 4);
    }
}

#[test]
fn a_server_that_cannot_send_ends_is_asked_for_the_size_first() {
    for ends in [Ends::Ignored, Ends::Refused, Ends::Unknown, Ends::Mistaken] {
        let server = server(ends);
        for (store, stats) in stores(&server) {
            assert_eq!(end(&store, "a", 3), Some((b"789".to_vec(), 10)));
            // a server that has sent something else is not asked for an end again
            let before = stats.requests.get();
            assert_eq!(end(&store, "a", 1), Some((b"9".to_vec(), 10)));
            assert_eq!(
                stats.requests.get() - before,
                if ends == Ends::Refused { 3 } else { 2 },
                "{}",
                store.location()
            );
            // a value that is not longer is its own end
            assert_eq!(end(&store, "a", 10), Some((DIGITS.to_vec(), 10)));
        }
    }
    // Azure has no such requests
    let server = server(Ends::Ignored);
    let endpoint_url = Some(format!("http://127.0.0.1:{}", server.port));
    let (store, _) = open(
        "abfs://b@account.dfs.core.windows.net/p",
        &ObjectOptions {
            endpoint_url,
            anonymous: true,
            ..quick()
        },
    );
    assert_eq!(end(&store, "a", 3), Some((b"789".to_vec(), 10)));
    assert!(
        server
            .requests()
            .iter()
            .all(|request| !request.header("range").is_some_and(|r| r.contains("=-")))
    );
}

#[test]
fn the_end_of_an_empty_value_is_empty() {
    let server = server(Ends::Sent);
    let [(store, _), _] = stores(&server);
    assert_eq!(end(&store, "empty", 3), Some((Vec::new(), 0)));
}
