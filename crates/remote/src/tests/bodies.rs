//! Bodies of answers are received into the memory of the caller.

use super::*;
use zarrfs_store::StoreExt;

const DATE: (&str, &str) = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");

/// Starts a server whose `answer` gets the last name of the path, the range and the number of the
/// request, and opens it as a store on a web server and as a bucket.
fn stores(
    answer: impl Fn(&str, Option<&str>, usize) -> Reply + Send + Sync + 'static,
) -> [ObjectStore; 2] {
    let server = Server::new(move |request, number| {
        let name = request.target.rsplit('/').next().unwrap_or_default();
        answer(name, request.header("range"), number)
    });
    let endpoint_url = Some(format!("http://127.0.0.1:{}", server.port));
    let region = Some("us-east-1".to_string());
    let options = ObjectOptions {
        endpoint_url,
        region,
        anonymous: true,
        ..quick()
    };
    [open(&server.url, &quick()).0, open("s3://b/p", &options).0]
}

/// A buffer with old content, and the place of its memory.
fn used_buffer() -> (Vec<u8>, (*const u8, usize)) {
    let mut buffer = Vec::with_capacity(1 << 20);
    buffer.resize(1000, b'x');
    let memory = memory_of(&buffer);
    (buffer, memory)
}

fn memory_of(buffer: &Vec<u8>) -> (*const u8, usize) {
    (buffer.as_ptr(), buffer.capacity())
}

fn value(name: &str, range: Option<&str>) -> Reply {
    let tag = ("etag", "\"one\"");
    match (name, range) {
        ("a", None) => reply(200, &[tag, DATE], b"0123456789"),
        ("a", Some("bytes=2-4")) => {
            reply(206, &[tag, DATE, ("content-range", "bytes 2-4/10")], b"234")
        }
        ("a", Some("bytes=-3")) => {
            reply(206, &[tag, DATE, ("content-range", "bytes 7-9/10")], b"789")
        }
        ("busy", _) => reply(501, &[], b"not here"),
        _ => reply(404, &[], b"no such value"),
    }
}

#[test]
fn the_memory_of_a_buffer_is_kept() {
    for store in stores(|name, range, _| value(name, range)) {
        let (mut buffer, memory) = used_buffer();
        for _ in 0..2 {
            store.get(&key("a"), 100, &mut buffer).unwrap().unwrap();
            assert_eq!(
                (buffer.as_slice(), memory_of(&buffer)),
                (&b"0123456789"[..], memory)
            );
            store
                .get_range(&key("a"), 2..5, &mut buffer)
                .unwrap()
                .unwrap();
            assert_eq!(
                (buffer.as_slice(), memory_of(&buffer)),
                (&b"234"[..], memory)
            );
            store
                .read(&key("a"), &ByteRange::Suffix(3), &mut buffer)
                .unwrap()
                .unwrap();
            assert_eq!(
                (buffer.as_slice(), memory_of(&buffer)),
                (&b"789"[..], memory)
            );
            // also if there is no value, or the request fails
            assert_eq!(store.get(&key("nothing"), 100, &mut buffer).unwrap(), None);
            assert_eq!(memory_of(&buffer), memory, "{}", store.location());
            store.get(&key("busy"), 100, &mut buffer).unwrap_err();
            assert_eq!(memory_of(&buffer), memory, "{}", store.location());
        }
    }
}

#[test]
fn a_retry_keeps_no_byte_of_the_first_attempt() {
    // the first attempt of each pair breaks off after half of another value
    let stores = stores(|_, _, number| match number % 2 {
        0 => reply(
            200,
            &[("etag", "\"old\""), DATE, ("content-length", "10")],
            b"OLDER",
        )
        .then(After::Close),
        _ => reply(200, &[("etag", "\"new\""), DATE], b"newer bits"),
    });
    for store in stores {
        let (mut buffer, memory) = used_buffer();
        let version = store.get(&key("a"), 100, &mut buffer).unwrap().unwrap();
        assert_eq!(version, Version::Tag("\"new\"".to_string()));
        assert_eq!(
            (buffer.as_slice(), memory_of(&buffer)),
            (&b"newer bits"[..], memory)
        );
    }
}

#[test]
fn no_memory_is_reserved_for_more_than_the_limit() {
    let tebibyte = (1_u64 << 40).to_string();
    let stores = stores(move |name, _, _| match name {
        "claimed" => reply(
            200,
            &[("etag", "\"e\""), DATE, ("content-length", &tebibyte)],
            b"12345",
        )
        .then(After::Close),
        _ => reply(
            200,
            &[("etag", "\"e\""), DATE, ("transfer-encoding", "chunked")],
            b"",
        )
        .then(After::Endless),
    });
    for (store, name) in stores
        .iter()
        .flat_map(|store| ["claimed", "endless"].map(|name| (store, name)))
    {
        let mut buffer = Vec::new();
        let error = store.get(&key(name), 10_000, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(
            buffer.capacity() <= 20_000,
            "{} of {name}",
            buffer.capacity()
        );
    }
}
