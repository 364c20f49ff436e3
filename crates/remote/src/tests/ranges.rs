//! Servers that answer requests for parts of values in ways of their own.

use super::*;
use zarrfs_store::StoreExt;

const DIGITS: &[u8] = b"0123456789";

const TAG: (&str, &str) = ("etag", "\"one\"");

const DATE: (&str, &str) = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");

/// Opens the values of a server as a store on a web server and as a bucket.
fn stores(
    answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
) -> [(ObjectStore, Arc<Stats>); 2] {
    let server = Server::new(move |request, _| answer(request));
    let endpoint_url = Some(format!("http://127.0.0.1:{}", server.port));
    let options = ObjectOptions {
        endpoint_url,
        region: Some("us-east-1".to_string()),
        anonymous: true,
        ..quick()
    };
    [open(&server.url, &quick()), open("s3://b/p", &options)]
}

/// Returns the requested bytes, as `rclone serve s3` does: with a right Content-Range, and status
/// 200.
fn part_with_200(request: &Request) -> Reply {
    let Some((first, last)) = request.range() else {
        return reply(200, &[TAG, DATE], DIGITS);
    };
    let range = format!("bytes {first}-{}/10", last.min(9));
    reply(
        200,
        &[TAG, DATE, ("content-range", &range)],
        &DIGITS[first..=last.min(9)],
    )
}

#[test]
fn a_part_with_status_200_is_used() {
    for (store, stats) in stores(part_with_200) {
        for (range, part) in [
            (2..5, "234"),
            (0..3, "012"),
            (8..20, "89"),
            (0..10, "0123456789"),
        ] {
            let (bytes, stat) = get_range(&store, "a", range).unwrap().unwrap();
            assert_eq!(
                (bytes, stat.size),
                (part.as_bytes().to_vec(), 10),
                "{}",
                store.location()
            );
        }
        assert_eq!(stats.requests.get(), 4);
    }
}

#[test]
fn a_part_is_cut_from_a_whole_value() {
    // with and without the header that a server of ranges sends
    for more in [None, Some(("content-range", "bytes 0-9/10"))] {
        for (store, _) in
            stores(move |_| reply(200, &[&[TAG, DATE][..], more.as_slice()].concat(), DIGITS))
        {
            for (range, part) in [(2..5, "234"), (8..20, "89"), (10..12, "")] {
                let (bytes, stat) = get_range(&store, "a", range).unwrap().unwrap();
                assert_eq!(
                    (bytes, stat.size),
                    (part.as_bytes().to_vec(), 10),
                    "{}",
                    store.location()
                );
            }
        }
    }
}

/// The error names the server, and the request is not repeated.
#[test]
fn another_part_than_requested_is_an_error_at_once() {
    for (status, range, body) in [
        (200, Some("bytes 0-2/10"), "012"),
        (200, Some("bytes 2-4/10"), "23"),
        (206, Some("bytes 0-2/10"), "012"),
        (206, Some("bytes 2-4/*"), "234"),
        (206, None, "234"),
    ] {
        let headers = move || {
            [TAG, DATE]
                .into_iter()
                .chain(range.map(|range| ("content-range", range)))
        };
        for (store, stats) in
            stores(move |_| reply(status, &headers().collect::<Vec<_>>(), body.as_bytes()))
        {
            let e = get_range(&store, "a", 2..5).unwrap_err();
            let named = format!("{status} {range:?}, {}: {e}", store.location());
            assert!(
                e.errno() == libc::EIO && e.message().contains("http://127.0.0.1:"),
                "{named}"
            );
            assert!(
                e.message().contains("the server") || e.message().contains("a part of a value"),
                "{named}"
            );
            assert_eq!(stats.requests.get(), 1, "{named}");
        }
    }
}

/// "Two answers never have equal versions": a value of the same size is not taken for the same
/// value.
#[test]
fn a_bucket_that_states_no_versions_is_read_and_not_written() {
    let [_, (store, stats)] = stores(|request| match request.method.as_str() {
        "PUT" => reply(200, &[], b""),
        _ => reply(200, &[], DIGITS),
    });
    let mut value = Vec::new();
    let versions = [(); 2].map(|()| store.get(&key("a"), 99, &mut value).unwrap().unwrap());
    assert!(
        versions[0] != versions[1] && versions[0].may_equal(&versions[1]),
        "{versions:?}"
    );
    let reported = stats.problems();
    assert!(
        reported.len() == 1 && reported[0].contains("s3://b: the server states no version"),
        "{reported:?}"
    );
    let before = stats.requests.get();
    for refused in [
        store
            .put_if(&key("a"), b"new", Replaces::Version(&versions[1]))
            .map(drop),
        store.put(&key("a"), b"new").map(drop),
        store.delete(&key("a")).map(drop),
        store.check_writable(&Key::root()),
    ] {
        let e = refused.unwrap_err();
        assert!(
            e.errno() == libc::EROFS && e.message().contains("neither ETag nor Last-Modified"),
            "{e}"
        );
    }
    assert_eq!(stats.requests.get(), before);
}

#[test]
fn a_put_without_an_entity_tag_in_its_answer_says_so() {
    let [_, (store, _)] = stores(|request| match request.method.as_str() {
        "PUT" => reply(200, &[], b""),
        _ => reply(404, &[], b""),
    });
    let e = store.put(&key("a"), b"new").unwrap_err();
    assert!(
        e.message().contains("states no version") && e.message().contains("http://127.0.0.1:"),
        "{e}"
    );
}
