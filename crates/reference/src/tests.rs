use super::*;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use zarrfs_store::testing::{get, key, part};
use zarrfs_store::{DirectoryStore, MemoryStore, PrefixStore, delegate_store};

/// Opens references whose targets are in the same store.
fn over(below: Arc<dyn Store>) -> Result<ReferenceStore> {
    let place = TargetPlace::of_path(Path::new("/data")).unwrap();
    let targets = below.clone();
    let root = TargetRoot::new(place.clone(), Box::new(move || Ok(targets.clone())));
    ReferenceStore::open(below, &key("refs.json"), place, vec![root])
}

fn memory(document: &str) -> Arc<MemoryStore> {
    let store = MemoryStore::default();
    store.insert("refs.json", document.as_bytes());
    store.insert("x.nc", b"0123456789");
    Arc::new(store)
}

fn opened(document: &str) -> Result<ReferenceStore> {
    over(memory(document))
}

const SAMPLE: &str = r#" {"version": 1, "templates": {"x": "x.nc"}, "refs": {
    ".zgroup": {"zarr_format": 2}, "a/.zarray": "{\"z\u00e4\": 1}", "a/0": ["{{x}}", 2, 3], "a/1": ["/data/x.nc"],
    "a/2": "base64:AAEC", "a/3": ["file:///data/./x.nc", 10, 0], "b/c/0": ["gone.nc", 0, 1], "a/4": ["x.nc", 8, 3]}} "#;

#[test]
fn values_are_inline_or_parts_of_targets() {
    let store = opened(SAMPLE).unwrap();
    for (name, value) in [
        (".zgroup", "{\"zarr_format\": 2}".as_bytes()),
        ("a/.zarray", "{\"zä\": 1}".as_bytes()),
        ("a/0", b"234"),
        ("a/1", b"0123456789"),
        ("a/2", b"\0\x01\x02"),
        ("a/3", b""),
    ] {
        assert_eq!(get(&store, name).unwrap().as_deref(), Some(value), "{name}");
        assert_eq!(
            part(&store, name, 1..99).unwrap().unwrap(),
            value.get(1..).unwrap_or_default(),
            "{name}"
        );
        assert_eq!(part(&store, name, 50..99).unwrap().unwrap(), b"", "{name}");
        let stat = store.stat(&key(name)).unwrap().unwrap();
        assert_eq!(
            (stat.kind, stat.size),
            (EntryKind::Value, value.len() as u64),
            "{name}"
        );
        assert_eq!(
            store.get(&key(name), 1 << 20, &mut Vec::new()).unwrap(),
            Some(stat.version.clone()),
            "{name}"
        );
        assert_eq!(
            store.get_range(&key(name), 0..1, &mut Vec::new()).unwrap(),
            Some(stat),
            "{name}"
        );
        let mut end = Vec::new();
        store
            .read(&key(name), &ByteRange::Suffix(2), &mut end)
            .unwrap()
            .unwrap();
        assert_eq!(end, value[value.len().saturating_sub(2)..], "{name}");
    }
    assert_eq!(
        store
            .get(&key("a/1"), 9, &mut Vec::new())
            .unwrap_err()
            .kind(),
        Kind::Damaged,
        "above the limit"
    );
    assert_eq!(
        store
            .get(&key("a/0"), 2, &mut Vec::new())
            .unwrap_err()
            .kind(),
        Kind::Damaged,
        "above the limit"
    );
    assert!(get(&store, "a/9").unwrap().is_none() && store.stat(&key("a/9")).unwrap().is_none());
    assert!(
        !store.is_writable() && store.put(&key("a/0"), b"").unwrap_err().kind() == Kind::ReadOnly
    );
}

#[test]
fn levels_are_listed() {
    let store = opened(SAMPLE).unwrap();
    let names = |store: &dyn Store, prefix: &str| {
        let entries = store.list(&key(prefix)).unwrap().map(|e| e.unwrap());
        entries
            .map(|e| {
                if e.kind == EntryKind::Prefix {
                    e.name + "/"
                } else {
                    e.name
                }
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&store, ""), [".zgroup", "a/", "b/"]);
    assert_eq!(names(&store, "b"), ["c/"]);
    assert_eq!(
        store.list(&key("a/0")).map(drop).unwrap_err().kind(),
        Kind::NotFound
    );
    assert_eq!(
        store.list(&key("q")).map(drop).unwrap_err().kind(),
        Kind::NotFound
    );
    assert_eq!(
        store.stat(&key("b")).unwrap().unwrap().kind,
        EntryKind::Prefix
    );
    let below = PrefixStore::at(Arc::new(opened(SAMPLE).unwrap()), key("b/c"));
    assert_eq!(
        (
            names(&*below, ""),
            below.location().ends_with("refs.json/b/c")
        ),
        (vec!["0".to_string()], true)
    );
    assert!(names(&opened("{}").unwrap(), "").is_empty());
}

#[test]
fn missing_and_short_targets_are_damage_and_not_missing_chunks() {
    let store = opened(SAMPLE).unwrap();
    for (name, why) in [
        ("b/c/0", "the target gone.nc: is missing"),
        ("a/4", "has 10 bytes, and not 3 from byte 8 on"),
    ] {
        for e in [
            get(&store, name).unwrap_err(),
            part(&store, name, 0..1).unwrap_err(),
            store.stat(&key(name)).unwrap_err(),
        ] {
            assert!(
                e.errno() == libc::EIO && e.message().contains(why),
                "{name}: {e}"
            );
        }
    }
    let mut results = Vec::new();
    store.stat_many(
        &mut ["a/0", "a/1", "a/4", "q", "b/c/0"].map(key).into_iter(),
        &mut |found| {
            results.push(
                found
                    .map(|stat| stat.map_or(99, |stat| stat.size))
                    .unwrap_or(77),
            );
            true
        },
    );
    assert_eq!(results, [3, 10, 77, 99, 77]);
}

#[test]
fn a_version_changes_with_the_target_and_with_the_document() {
    let below = memory(SAMPLE);
    let store = over(below.clone()).unwrap();
    let versions =
        || [".zgroup", "a/0", "a/1"].map(|name| store.stat(&key(name)).unwrap().unwrap().version);
    let first = versions();
    assert_eq!(versions(), first);
    below.insert("x.nc", b"abcdefghij");
    let second = versions();
    assert!(second[0] == first[0] && second[1] != first[1] && second[2] != first[2]);
    assert_eq!(get(&store, "a/0").unwrap().unwrap(), b"cde");
    below.insert("refs.json", br#"{"a/0": ["x.nc", 0, 1], ".zgroup": "{}"}"#);
    assert_eq!(
        get(&store, "a/1").unwrap().unwrap(),
        b"abcdefghij",
        "an open file goes on"
    );
    store.forget(&Key::root());
    assert_eq!(get(&store, "a/0").unwrap().unwrap(), b"a");
    assert!(get(&store, "a/1").unwrap().is_none());
    below.insert("refs.json", b"{");
    store.forget(&Key::root());
    let e = get(&store, "a/0").unwrap_err();
    assert!(
        e.errno() == libc::EIO && e.message().contains("refs.json"),
        "{e}"
    );
    below.delete(&key("refs.json")).unwrap();
    store.forget(&Key::root());
    assert_eq!(get(&store, "a/0").unwrap_err().errno(), libc::EIO);
}

/// Opens references with one more prefix, and counts how often its store is opened.
fn with_prefix(document: &str) -> (ReferenceStore, Arc<AtomicUsize>) {
    let place = TargetPlace::of_url("https://host/folder").unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let root = |url: &str, is_target: bool| {
        let count = count.clone();
        let open = Box::new(move || -> Result<Arc<dyn Store>> {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(memory("{}"))
        });
        let place = TargetPlace::of_url(url).unwrap();
        if is_target {
            TargetRoot::of_target(place, open)
        } else {
            TargetRoot::new(place, open)
        }
    };
    let roots = vec![
        root("https://host/folder", false),
        root("s3://bucket/allowed", false),
        root("https://other/x.nc", true),
    ];
    (
        ReferenceStore::open(memory(document), &key("refs.json"), place, roots).unwrap(),
        count,
    )
}

#[test]
fn targets_elsewhere_are_refused_and_not_looked_at() {
    for target in [
        "/etc/passwd",
        "file:///etc/passwd",
        "../secret",
        "https://host/folder2/x.nc",
        "https://host/x.nc",
        "http://host/folder/x.nc",
        "https://host:8443/folder/x.nc",
        "https://user@host/folder/x.nc",
        "https://host/folder/%2e%2e/x.nc",
        "https://evil/folder/x.nc",
        "s3://bucket/x.nc",
        "s3://bucket/allowed2/x.nc",
        "https://other/x.nc/y",
        "https://other/x.nc2",
        "https://host/folder",
        "ftp://host/folder/x.nc",
    ] {
        let (store, opened) = with_prefix(&format!(
            r#"{{"a/0": ["{target}", 0, 1], "a/1": ["{target}"]}}"#
        ));
        for e in [
            get(&store, "a/0").unwrap_err(),
            part(&store, "a/1", 0..1).unwrap_err(),
            store.stat(&key("a/0")).unwrap_err(),
        ] {
            assert!(
                e.errno() == libc::EACCES && e.message().starts_with("the target "),
                "{target}: {e}"
            );
        }
        assert_eq!(
            (opened.load(Ordering::Relaxed), store.concurrency()),
            (0, 1),
            "{target}"
        );
    }
    for target in [
        "x.nc",
        "https://HOST:443/folder/y/../x.nc",
        "s3://bucket/allowed/x.nc",
        "https://other/x.nc",
    ] {
        let (store, opened) = with_prefix(&format!(r#"{{"a/0": ["{target}", 0, 1]}}"#));
        assert_eq!(
            opened.load(Ordering::Relaxed),
            0,
            "nothing is opened before it is read"
        );
        assert_eq!(get(&store, "a/0").unwrap().unwrap(), b"0", "{target}");
        assert_eq!(opened.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn links_do_not_lead_out_of_the_directory() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("data");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(home.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", folder.join("link")).unwrap();
    std::os::unix::fs::symlink("..", folder.join("up")).unwrap();
    std::fs::write(
        folder.join("refs.json"),
        r#"{"a": ["link"], "b": ["up/secret", 0, 3], "c": ["up/data/refs.json"]}"#,
    )
    .unwrap();
    let store = DirectoryStore::open(&folder).unwrap();
    let place = TargetPlace::of_path(&folder).unwrap();
    let path = folder.clone();
    let root = TargetRoot::new(
        place.clone(),
        Box::new(move || Ok(Arc::new(DirectoryStore::open(&path)?))),
    );
    let store =
        ReferenceStore::open(Arc::new(store), &key("refs.json"), place, vec![root]).unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(
            get(&store, name).unwrap_err().errno(),
            libc::EACCES,
            "{name}"
        );
        assert_eq!(
            store.stat(&key(name)).unwrap_err().errno(),
            libc::EACCES,
            "{name}"
        );
    }
}

#[test]
fn a_faulty_reference_concerns_its_key_only() {
    let deep = format!("{}{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let long = format!(r#"["{}"]"#, "x".repeat(MAX_NAME + 1));
    for (reference, errno) in [
        ("null", libc::EIO),
        ("true", libc::EIO),
        ("-1.5e3", libc::EIO),
        ("[]", libc::EIO),
        ("[ ]", libc::EIO),
        ("[1]", libc::EIO),
        (r#"[0, "x.nc"]"#, libc::EIO),
        (r#"[["x.nc"], 0, 1]"#, libc::EIO),
        (r#"[{"]": "x.nc"}]"#, libc::EIO),
        ("[null, 0, 1]", libc::EIO),
        (r#"["x.nc", 0]"#, libc::EIO),
        (r#"["x.nc", 0, 1, 2]"#, libc::EIO),
        (r#"["x.nc", null, 1]"#, libc::EIO),
        (r#"["x.nc", -1, 1]"#, libc::EIO),
        (r#"["x.nc", 0, -1]"#, libc::EIO),
        (r#"["x.nc", 0.5, 1]"#, libc::EIO),
        (r#"["x.nc", "0", 1]"#, libc::EIO),
        (
            r#"["x.nc", 18446744073709551615, 18446744073709551615]"#,
            libc::EIO,
        ),
        (r#"["x.nc", 18446744073709551616, 1]"#, libc::EIO),
        (r#"["foo://host/x.nc", 0, 1]"#, libc::EACCES),
        (r#""base64:A""#, libc::EIO),
        (r#""base64:!!!!""#, libc::EIO),
        (r#"{"b": }"#, libc::EIO),
        (r#"["{{v}}", 0, 1]"#, libc::EIO),
        (r#"["{{u + 1}}", 0, 1]"#, libc::EOPNOTSUPP),
        (&deep, libc::EIO),
        (&long, libc::EIO),
    ] {
        let shown = &reference[..reference.len().min(100)];
        let store = opened(&format!(
            r#"{{"version": 1, "templates": {{"u": "x.nc"}}, "refs": {{"a/0": ["{{{{u}}}}", 0, 1],
                "a/1": "good", "a/1": {reference}, "a/2": {reference}, "a/2": ["x.nc", 1, 1],
                "a/3": {reference}, "b": "text"}}}}"#
        ))
        .unwrap_or_else(|e| panic!("{shown}: {e}"));
        let mut statuses = Vec::new();
        store.stat_many(
            &mut ["a/0", "a/1", "a/2", "a/4"].map(key).into_iter(),
            &mut |found| {
                statuses.push(found.map(|stat| stat.is_some()));
                true
            },
        );
        let of_many = statuses.remove(1).unwrap_err();
        let others: Vec<_> = statuses.into_iter().map(Result::unwrap).collect();
        assert_eq!(others, [true, true, false], "{shown}");
        for (e, name) in [
            (get(&store, "a/1").unwrap_err(), "a/1"),
            (get(&store, "a/3").unwrap_err(), "a/3"),
            (part(&store, "a/1", 0..1).unwrap_err(), "a/1"),
            (store.stat(&key("a/3")).unwrap_err(), "a/3"),
            (of_many, "a/1"),
        ] {
            assert_eq!(e.errno(), errno, "{shown}: {e}");
            // a target that may not be read is named itself
            let is_named = e.message().contains(&format!("the reference {name:?}: "));
            assert!(is_named || errno == libc::EACCES, "{shown}: {e}");
        }
        for (name, value) in [("a/0", b"0".as_slice()), ("a/2", b"1"), ("b", b"text")] {
            assert_eq!(
                get(&store, name).unwrap().as_deref(),
                Some(value),
                "{shown}"
            );
        }
        // a key that is not listed would be a chunk of fill values
        let names = store.list(&key("a")).unwrap().map(|e| e.unwrap().name);
        assert_eq!(names.collect::<Vec<_>>(), ["0", "1", "2", "3"], "{shown}");
    }
}

#[test]
fn equal_faults_take_the_memory_of_one() {
    let members = (0..1000).map(|i| format!(r#""{i}": null"#));
    let document = members.collect::<Vec<_>>().join(",");
    let store = opened(&format!("{{{document}}}")).unwrap();
    assert_eq!(store.opened.current().index.faults().count(), 1);
}

#[test]
fn hostile_documents_are_refused() {
    let long_key = format!(r#"{{"{}": "x"}}"#, "x".repeat(MAX_NAME + 1));
    let rules = format!(
        r#"{{"version": 1, "templates": {{"a": "{}"}}}}"#,
        "x".repeat(2 << 20)
    );
    for (document, kind) in [
        ("", Kind::Damaged),
        ("[]", Kind::Damaged),
        ("\u{feff}\u{feff}{}", Kind::Damaged),
        ("{} x", Kind::Damaged),
        (r#"{"a": "\ud800"}"#, Kind::Damaged),
        (r#"{"a": }"#, Kind::Damaged),
        (r#"{"a": 1"#, Kind::Damaged),
        (r#"{"a": [1}"#, Kind::Damaged),
        (r#"{"version": 1.5, "refs": {}}"#, Kind::Damaged),
        (r#"{"version": 2, "refs": {}}"#, Kind::Unsupported),
        (r#"{"version": 1, "refs": []}"#, Kind::Damaged),
        (
            r#"{"b": "x", "version": 1, "refs": {"a": "x"}}"#,
            Kind::Damaged,
        ),
        (
            r#"{"version": 1, "refs": {"a": ["{{u}}"]}, "templates": {"u": "{{u}}"}}"#,
            Kind::Unsupported,
        ),
        (
            r#"{"version": 1, "refs": {"a": ["{{f(c='x')}}"]}, "templates": {"f": "s3://b/{{c}}"}}"#,
            Kind::Unsupported,
        ),
        (r#"{"version": 1, "templates": {"u": 1}}"#, Kind::Damaged),
        (r#"{"version": 1, "templates": {"u": {}}"#, Kind::Damaged),
        (r#"{"version": 1, "gen": [1]}"#, Kind::Damaged),
        (r#"{"version": 1, "gen": {}}"#, Kind::Damaged),
        (&long_key, Kind::Damaged),
        (&rules, Kind::Damaged),
    ] {
        let Err(e) = opened(document) else {
            panic!("{document}")
        };
        assert_eq!(
            e.kind(),
            kind,
            "{}: {e}",
            &document[..document.len().min(100)]
        );
    }
}

#[test]
fn a_document_larger_than_memory_is_refused_early() {
    // 72 MiB of references in 40 bytes of text each, made while they are read
    struct Endless;
    impl Readable for Endless {
        fn read(&self, _: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
            let range = range.within(u64::MAX)?;
            *value = match range.start {
                0 => b"{\"a\": \"".to_vec(),
                _ => vec![b'x'; (range.end - range.start) as usize],
            };
            self.stat(&Key::root())
        }

        fn stat(&self, _: &Key) -> Result<Option<Stat>> {
            Ok(Some(Stat::value(
                1 << 50,
                std::time::SystemTime::UNIX_EPOCH,
                Version::Count(1),
            )))
        }

        fn list(&self, _: &Key) -> Result<Listing> {
            Ok(Box::new(std::iter::empty()))
        }

        fn location(&self) -> String {
            "endless".to_string()
        }
    }

    impl Store for Endless {}
    let Err(e) = over(Arc::new(Endless)) else {
        panic!("the string never ends")
    };
    assert!(e.message().contains("--cache-size"), "{e}");
}

/// A store whose document is replaced while it is read.
struct Replacing {
    inner: Arc<MemoryStore>,
    left: AtomicUsize,
}

impl Readable for Replacing {
    delegate_store!(inner: stat list location);

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let found = self.inner.read(key, range, value);
        if let ByteRange::Whole(_) = range {
            return found;
        }
        let left = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        if left.is_ok() {
            let text = format!(
                r#"{{"a": "{}", "b": "{}"}}"#,
                "x".repeat(3 << 20),
                left.unwrap_or(0)
            );
            self.inner.insert(key.as_str(), text.as_bytes());
        }
        found
    }
}

impl Store for Replacing {}

#[test]
fn a_document_that_is_replaced_while_it_is_read_is_read_again() {
    let text = format!(r#"{{"a": "{}"}}"#, "x".repeat(3 << 20));
    let replacing = |left| {
        Arc::new(Replacing {
            inner: memory(&text),
            left: AtomicUsize::new(left),
        })
    };
    assert_eq!(
        get(&over(replacing(2)).unwrap(), "b").unwrap().unwrap(),
        b"1"
    );
    let Err(e) = over(replacing(usize::MAX)) else {
        panic!("it is never the same")
    };
    assert!(
        e.errno() == libc::EIO && e.message().contains("faster"),
        "{e}"
    );
}
