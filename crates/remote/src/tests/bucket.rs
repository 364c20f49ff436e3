//! Buckets on a server that answers like S3 or Google, correctly or not.

use super::*;
use zarrfs_store::{EntryKind, StoreExt};

/// Opens the prefix `p` of the bucket `b`.
fn bucket(scheme: &str, server: &Server) -> (ObjectStore, Arc<Stats>) {
    let endpoint_url = Some(format!("http://127.0.0.1:{}", server.port));
    let region = Some("us-east-1".to_string());
    open(
        &format!("{scheme}://b/p"),
        &ObjectOptions {
            endpoint_url,
            region,
            anonymous: true,
            ..quick()
        },
    )
}

fn object(key: &str, size: usize) -> String {
    format!(
        "<Contents><Key>{key}</Key><LastModified>2024-02-29T23:59:59.000Z</LastModified>\
         <ETag>&quot;{size:x}&quot;</ETag><Size>{size}</Size></Contents>"
    )
}

fn prefix(key: &str) -> String {
    format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>")
}

fn page(content: &str, next: Option<&str>) -> Reply {
    let next = next
        .map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>"))
        .unwrap_or_default();
    let xml =
        format!("<?xml version=\"1.0\"?><ListBucketResult>{content}{next}</ListBucketResult>");
    reply(200, &[("content-type", "application/xml")], xml.as_bytes())
}

/// Returns the names of a listing, with a slash after prefixes.
fn names(store: &ObjectStore, path: &str) -> Result<Vec<String>> {
    let entries = store.list(&key(path))?;
    entries
        .map(|e| {
            e.map(|e| {
                if e.kind == EntryKind::Prefix {
                    e.name + "/"
                } else {
                    e.name
                }
            })
        })
        .collect()
}

/// Returns a parameter of the query of a request.
fn query<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let (_, query) = request.target.split_once('?')?;
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(n, _)| *n == name)
        .map(|(_, value)| value)
}

#[test]
fn a_listing_takes_one_request_per_thousand_names_and_returns_stats() {
    let server = Server::new(|request, _| {
        let from: usize =
            query(request, "continuation-token").map_or(0, |token| token.parse().unwrap());
        let objects: String = (from..from + 1000)
            .map(|n| object(&format!("p/a/{n:04}"), n))
            .collect();
        page(
            &objects,
            (from < 4000).then(|| (from + 1000).to_string()).as_deref(),
        )
    });
    let (store, stats) = bucket("s3", &server);
    let entries: Vec<_> = store.list(&key("a")).unwrap().map(|e| e.unwrap()).collect();
    assert_eq!((entries.len(), stats.requests.get()), (5000, 5));
    assert_eq!(
        entries
            .iter()
            .map(|e| &e.name)
            .collect::<std::collections::HashSet<_>>()
            .len(),
        5000
    );
    let of = |name: &str| {
        entries
            .iter()
            .find(|e| e.name == name)
            .unwrap()
            .stat
            .clone()
            .unwrap()
    };
    assert_eq!(
        (of("4321").size, of("4321").version),
        (4321, Version::Tag("\"10e1\"".to_string()))
    );
    assert_eq!(
        of("0000").modified,
        std::time::UNIX_EPOCH + Duration::from_secs(1_709_251_199)
    );
    let first = &server.requests()[0];
    assert_eq!(
        (query(first, "prefix"), query(first, "delimiter")),
        (Some("p%2Fa%2F"), Some("%2F"))
    );
}

#[test]
fn the_next_page_is_requested_while_one_is_read() {
    // the last name of a page may be that of a prefix on the next one
    let names =
        |number: usize| object(&format!("p/{number}a"), 1) + &object(&format!("p/{number}b"), 1);
    let server = Server::new(move |_, number| page(&names(number), Some("more")));
    let (store, stats) = bucket("s3", &server);
    let mut listing = store.list(&Key::root()).unwrap();
    listing.next().unwrap().unwrap();
    wait_until("the next page", || stats.requests.get() >= 2);
    // no further pages are requested, since a reader may stop
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(stats.requests.get(), 2);
}

/// Returns the error of a listing that does not end. On a busy machine a page may come too late for
/// a short timeout; then the listing begins anew.
fn error_of<T: std::fmt::Debug>(list: impl Fn() -> Result<T>) -> Error {
    let begin = Instant::now();
    loop {
        let error = list().unwrap_err();
        if !error.message().contains("--timeout") || begin.elapsed() > PATIENCE {
            return error;
        }
    }
}

/// A server whose listing never ends: with repeated tokens, or with new tokens and no names.
#[test]
fn an_endless_listing_is_an_error() {
    type Answer = fn(usize) -> (String, String);
    let answers: [(Answer, &str); 3] = [
        (
            |number| (object(&format!("p/a/{number}"), 1), "more".into()),
            "leads back",
        ),
        (
            |number| (object("p/a/x", 1), (number % 3).to_string()),
            "leads back",
        ),
        (|number| (String::new(), number.to_string()), "no names for"),
    ];
    for (answer, says) in answers {
        let server = Server::new(move |request, number| {
            let (content, token) = answer(number);
            match (
                request.method.as_str(),
                query(request, "prefix"),
                query(request, "max-keys"),
            ) {
                ("HEAD", ..) => reply(404, &[], b""),
                (_, Some("p%2Fb%2F"), _) => page("", None),
                (.., Some(_)) => page(&object("p/a/x", 1), None),
                _ => page(&content, Some(&token)),
            }
        });
        let endpoint_url = Some(format!("http://127.0.0.1:{}", server.port));
        // pages without names are read until the timeout
        let timeout = if says == "no names for" {
            Duration::from_millis(500)
        } else {
            quick().timeout
        };
        let options = ObjectOptions {
            endpoint_url,
            region: Some("us-east-1".into()),
            anonymous: true,
            timeout,
            ..quick()
        };
        let (store, _) = open("s3://b/p", &options);
        let error = error_of(|| names(&store, "a"));
        assert!(
            error.errno() == libc::EIO && error.message().contains(says),
            "{error}"
        );
        let error = error_of(|| store.rename(&key("a"), &key("b")));
        assert!(error.message().contains(says), "{error}");
    }
}

#[test]
fn wrong_credentials_are_no_missing_key() {
    for (code, is_missing) in [
        ("AccessDenied", true),
        ("InvalidAccessKeyId", false),
        ("ExpiredToken", false),
    ] {
        let body = format!("<Error><Code>{code}</Code><Message>No</Message></Error>");
        let server = Server::new(move |_, _| reply(403, &[], body.as_bytes()));
        let endpoint_url = Some(format!("http://127.0.0.1:{}", server.port));
        let options = ObjectOptions {
            endpoint_url,
            region: Some("us-east-1".into()),
            anonymous: true,
            forbidden_is_missing: true,
            ..quick()
        };
        let (store, _) = open("s3://b/p", &options);
        match store.get(&key("0.0"), 100, &mut Vec::new()) {
            Ok(found) => assert!(is_missing && found.is_none(), "{code}"),
            Err(e) => assert!(
                !is_missing && e.errno() == libc::EACCES && e.message().contains(code),
                "{code}: {e}"
            ),
        }
    }
}

#[test]
fn a_failed_page_is_an_error_and_not_the_end() {
    let server = Server::new(|_, number| match number {
        0 => page(&object("p/x", 1), Some("more")),
        _ => reply(
            403,
            &[],
            b"<Error><Code>AccessDenied</Code><Message>No</Message></Error>",
        ),
    });
    let (store, _) = bucket("s3", &server);
    let mut listing = store.list(&Key::root()).unwrap();
    assert_eq!(listing.next().unwrap().unwrap().name, "x");
    let error = listing.next().unwrap().unwrap_err();
    assert!(
        error.errno() == libc::EACCES && error.message().contains("AccessDenied: No"),
        "{error}"
    );
    assert!(listing.next().is_none());
}

#[test]
fn names_that_cannot_be_keys_are_left_out() {
    let server = Server::new(|_, _| {
        let odd = [
            object("p/", 0),
            object("p/a//b", 1),
            object("p/./c", 1),
            prefix("p//"),
            prefix("p/../"),
        ]
        .concat();
        page(&(odd + &object("p/good", 1) + &prefix("p/group/")), None)
    });
    let (store, stats) = bucket("s3", &server);
    assert_eq!(names(&store, "").unwrap(), ["good", "group/"]);
    assert_eq!(stats.all_left_out().len(), 1);
}

#[test]
fn a_value_that_hides_a_prefix_of_its_name_says_so_unless_it_is_a_marker() {
    let server = Server::new(|request, _| match query(request, "continuation-token") {
        None => page(
            &[
                object("p/m", 0),
                object("p/m!", 0),
                object("p/v", 3),
                object("p/v!", 3),
                prefix("p/m/"),
            ]
            .concat(),
            Some("more"),
        ),
        // many names with a common beginning put the prefixes on later pages
        Some(_) => page(&[object("p/w", 0), prefix("p/v/")].concat(), None),
    });
    let (store, _) = bucket("s3", &server);
    let mut listed = names(&store, "").unwrap();
    listed.sort();
    assert_eq!(listed, ["m!", "m/", "v", "v!", "w"]);
    let hiding = store
        .list(&Key::root())
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.hides_prefix);
    assert_eq!(hiding.map(|entry| entry.name).collect::<Vec<_>>(), ["v"]);
}

#[test]
fn stat_agrees_with_the_listing() {
    let server = Server::new(|request, _| {
        let value = |size: &str| {
            let headers = [
                ("etag", "\"e\""),
                ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
                ("content-length", size),
            ];
            reply(200, &headers, b"")
        };
        match (
            request.method.as_str(),
            request.target.as_str(),
            query(request, "prefix"),
        ) {
            ("HEAD", "/b/p/value", _) => value("5"),
            ("HEAD", "/b/p/marker" | "/b/p/empty", _) => value("0"),
            ("GET", _, Some("p%2Fmarker%2F" | "p%2Fgroup%2F")) => {
                page(&object("p/group/x", 1), None)
            }
            ("GET", _, Some("p%2Fodd%2F")) => page(&object("p/odd//x", 1), None),
            ("GET", _, Some(_)) => page("", None),
            _ => reply(404, &[], b""),
        }
    });
    let (store, stats) = bucket("s3", &server);
    let kind = |path: &str| store.stat(&key(path)).unwrap().map(|stat| stat.kind);
    assert_eq!(
        (kind("value"), stats.requests.get()),
        (Some(EntryKind::Value), 1)
    );
    assert_eq!(
        (kind("group"), stats.requests.get()),
        (Some(EntryKind::Prefix), 3)
    );
    assert_eq!(
        (kind("empty"), kind("marker")),
        (Some(EntryKind::Value), Some(EntryKind::Prefix))
    );
    assert_eq!(
        (kind("odd"), kind("nothing")),
        (Some(EntryKind::Prefix), None)
    );
    assert_eq!(names(&store, "nothing").unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn a_missing_bucket_is_not_a_missing_key() {
    let server = Server::new(|_, _| reply(404, &[], b"<Error><Code>NoSuchBucket</Code></Error>"));
    let (store, _) = bucket("s3", &server);
    let error = get(&store, "a").unwrap_err();
    assert_eq!((error.kind(), error.errno()), (Kind::NoStore, libc::EIO));
    assert_eq!(
        error.message(),
        "the server 127.0.0.1 has no bucket b; check its name, or create it"
    );
    assert!(names(&store, "").is_err());
}

#[test]
fn puts_are_conditional() {
    let server = Server::new(|request, _| {
        match (request.header("if-match"), request.header("if-none-match")) {
            (None, None) | (Some("\"old\""), None) => reply(200, &[("etag", "\"new\"")], b""),
            (None, Some("*")) => reply(412, &[], b"<Error><Code>PreconditionFailed</Code></Error>"),
            (Some("\"gone\""), None) => reply(404, &[], b"<Error><Code>NoSuchKey</Code></Error>"),
            (Some("\"race\""), None) => reply(
                409,
                &[],
                b"<Error><Code>ConditionalRequestConflict</Code></Error>",
            ),
            _ => reply(412, &[], b""),
        }
    });
    let (store, stats) = bucket("s3", &server);
    let new = Version::Tag("\"new\"".to_string());
    let put = |tag: &str| {
        store
            .put_if(
                &key("a"),
                b"1",
                Replaces::Version(&Version::Tag(tag.to_string())),
            )
            .unwrap()
    };
    assert_eq!(store.put(&key("a"), b"12").unwrap(), new);
    assert_eq!(
        store.put_if(&key("a"), b"1", Replaces::Nothing).unwrap(),
        None
    );
    assert_eq!(
        ["\"old\"", "\"other\"", "\"gone\"", "\"race\""].map(put),
        [Some(new), None, None, None]
    );
    assert_eq!(
        (stats.requests.get(), server.requests()[0].body.as_slice()),
        (6, b"12".as_slice())
    );
    // a version of another kind of store matches nothing
    assert_eq!(
        store
            .put_if(&key("a"), b"1", Replaces::Version(&Version::Count(1)))
            .unwrap(),
        None
    );
}

#[test]
fn a_server_without_conditions_is_tried_once() {
    let server = Server::new(|request, _| {
        match request
            .header("if-match")
            .or(request.header("if-none-match"))
        {
            Some(_) => reply(501, &[], b"<Error><Code>NotImplemented</Code></Error>"),
            None => reply(200, &[("etag", "\"e\"")], b""),
        }
    });
    let (store, stats) = bucket("s3", &server);
    for _ in 0..3 {
        assert!(
            store
                .put_if(&key("a"), b"1", Replaces::Nothing)
                .unwrap()
                .is_some()
        );
    }
    assert_eq!(stats.requests.get(), 4);
}

#[test]
fn a_retried_put_does_not_conflict_with_itself() {
    let server = Server::new(|request, number| match (request.method.as_str(), number) {
        ("PUT", 0) => Reply {
            bytes: Vec::new(),
            after: After::Close,
        },
        ("PUT", _) => reply(412, &[], b""),
        _ => reply(
            200,
            &[
                ("etag", "\"e\""),
                ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ],
            b"mine",
        ),
    });
    let put = |value: &[u8]| {
        bucket("s3", &server)
            .0
            .put_if(&key("a"), value, Replaces::Nothing)
            .unwrap()
    };
    assert_eq!(put(b"mine"), Some(Version::Tag("\"e\"".to_string())));
    // the answers that were not lost
    assert_eq!((put(b"mine"), put(b"other")), (None, None));
    let server = Server::new(|request, number| match (request.method.as_str(), number) {
        ("PUT", 0) => reply(500, &[], b""),
        ("PUT", _) => reply(412, &[], b""),
        _ => reply(
            200,
            &[
                ("etag", "\"e\""),
                ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ],
            b"them",
        ),
    });
    let (store, _) = bucket("s3", &server);
    assert_eq!(
        store.put_if(&key("a"), b"mine", Replaces::Nothing).unwrap(),
        None
    );
}

#[test]
fn a_retried_put_sends_the_whole_value() {
    let value = vec![5; 300_000];
    let server = Server::new(|_, number| match number {
        0 => reply(500, &[], b"<Error><Code>InternalError</Code></Error>"),
        1 => Reply {
            bytes: Vec::new(),
            after: After::Close,
        },
        _ => reply(200, &[("etag", "\"e\"")], b""),
    });
    let (store, _) = bucket("s3", &server);
    store.put(&key("a"), &value).unwrap();
    let bodies: Vec<_> = server
        .requests()
        .into_iter()
        .map(|request| request.body)
        .collect();
    assert_eq!(bodies, [value.clone(), value.clone(), value]);
}

#[test]
fn google_gets_the_generation_of_the_tag() {
    let server = Server::new(|request, _| {
        let generation = request.header("x-goog-if-generation-match");
        let headers = [
            ("etag", "\"e\""),
            ("x-goog-generation", "77"),
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ];
        match (request.method.as_str(), generation) {
            ("HEAD", _) => reply(200, &headers, b""),
            ("PUT", None | Some("77")) => reply(200, &headers, b""),
            _ => reply(412, &[], b""),
        }
    });
    let (store, _) = bucket("gs", &server);
    let put = |tag: &str| {
        store
            .put_if(
                &key("a"),
                b"1",
                Replaces::Version(&Version::Tag(tag.to_string())),
            )
            .unwrap()
    };
    assert_eq!(put("\"e\""), Some(Version::Tag("\"e\"".to_string())));
    assert_eq!(
        server
            .requests()
            .last()
            .unwrap()
            .header("x-goog-if-generation-match"),
        Some("77")
    );
    assert_eq!(put("\"other\""), None);
    assert_eq!(
        store.put_if(&key("a"), b"1", Replaces::Nothing).unwrap(),
        None
    );
    assert_eq!(
        server
            .requests()
            .last()
            .unwrap()
            .header("x-goog-if-generation-match"),
        Some("0")
    );
}

#[test]
fn a_failed_rename_leaves_the_source_unchanged() {
    let server =
        Server::new(
            |request, _| match (request.method.as_str(), query(request, "prefix")) {
                ("GET", Some("p%2Ffrom%2F")) => {
                    page(&(object("p/from/1", 1) + &object("p/from/2", 1)), None)
                }
                ("GET", Some(_)) => page("", None),
                ("PUT", _) if request.target.ends_with("/2") => reply(403, &[], b""),
                ("PUT", _) => reply(
                    200,
                    &[],
                    b"<CopyObjectResult><ETag>&quot;e&quot;</ETag></CopyObjectResult>",
                ),
                ("DELETE", _) => reply(204, &[], b""),
                _ => reply(404, &[], b""),
            },
        );
    let (store, _) = bucket("s3", &server);
    assert_eq!(
        store.rename(&key("from"), &key("to")).unwrap_err().errno(),
        libc::EACCES
    );
    let deleted: Vec<_> = server
        .requests()
        .into_iter()
        .filter(|r| r.method == "DELETE")
        .map(|r| r.target)
        .collect();
    assert!(deleted.contains(&"/b/p/to/1".to_string()), "{deleted:?}");
    assert!(
        !deleted.iter().any(|target| target.contains("from")),
        "{deleted:?}"
    );
}

#[test]
fn a_created_or_emptied_prefix_exists_until_it_is_removed() {
    let server =
        Server::new(
            |request, _| match (request.method.as_str(), request.target.contains('?')) {
                ("GET", true) => page("", None),
                ("HEAD", _) if request.target.ends_with("a/v") => reply(
                    200,
                    &[
                        ("etag", "\"e\""),
                        ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
                    ],
                    b"",
                ),
                ("DELETE", _) => reply(204, &[], b""),
                _ => reply(404, &[], b""),
            },
        );
    let (store, _) = bucket("s3", &server);
    let errno = |done: Result<()>| done.unwrap_err().errno();
    assert_eq!(errno(store.make_prefix(&key("x/y"))), libc::ENOENT);
    store.make_prefix(&key("x")).unwrap();
    store.make_prefix(&key("x/y")).unwrap();
    assert_eq!(errno(store.make_prefix(&key("x"))), libc::EEXIST);
    assert!(store.delete(&key("a/v")).unwrap());
    assert_eq!(
        (names(&store, "").unwrap(), names(&store, "x").unwrap()),
        (vec!["a/".into(), "x/".into()], vec!["y/".into()])
    );
    assert_eq!(errno(store.remove_prefix(&key("x"))), libc::ENOTEMPTY);
    for path in ["x/y", "x", "a"] {
        store.remove_prefix(&key(path)).unwrap();
        assert_eq!(errno(store.remove_prefix(&key(path))), libc::ENOENT);
    }
    assert_eq!(names(&store, "").unwrap(), Vec::<String>::new());
}

#[test]
fn a_range_after_the_end_is_empty() {
    let server = Server::new(|request, _| {
        let headers = [
            ("etag", "\"e\""),
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("content-length", "10"),
        ];
        match (request.method.as_str(), request.range()) {
            ("HEAD", _) => reply(200, &headers, b""),
            (_, Some((10, _))) => reply(
                206,
                &[headers[0], headers[1], ("content-range", "bytes 10-9/10")],
                b"",
            ),
            _ => reply(416, &[], b"<Error><Code>InvalidRange</Code></Error>"),
        }
    });
    let (store, _) = bucket("s3", &server);
    for range in [10..12, 20..30] {
        let (bytes, stat) = get_range(&store, "a", range).unwrap().unwrap();
        assert_eq!((bytes.len(), stat.size), (0, 10));
    }
}
