//! "`.zmetadata` serves where the store cannot list, and is ignored where it can."

use super::*;
use crate::array::ArrayEntry;
use zarrfs_format::metadata::Separator;
use zarrfs_store::MetadataCache;
use zarrfs_store::testing::UnlistedStore;

const GROUP: &str = "{\"zarr_format\":2}";

/// Two groups, three arrays, and a chunk.
const VALUES: [(&str, &str); 6] = [
    (".zgroup", GROUP),
    ("g/.zgroup", GROUP),
    ("g/x/.zarray", ARRAY),
    ("g/x/.zattrs", "{\"unit\": \"m\"}"),
    ("g/0/.zarray", ARRAY),
    ("g/x/1", "a chunk"),
];

fn consolidated(values: &[(&str, &str)]) -> String {
    let documents = values.iter().filter(|(key, _)| {
        key.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with('.'))
    });
    let entries: Vec<String> = documents
        .map(|(key, text)| format!("{key:?}:{text}"))
        .collect();
    format!(
        "{{\"zarr_consolidated_format\":1,\"metadata\":{{{}}}}}",
        entries.join(",")
    )
}

/// Returns a store in memory, a view of it that cannot list and counts requests, and a hierarchy
/// that reads this view through a cache.
fn unlisted(
    values: &[(&str, &str)],
    when: UseConsolidated,
) -> (Arc<MemoryStore>, Arc<FaultyStore>, Hierarchy) {
    let (memory, _) = hierarchy(values);
    let counted = Arc::new(FaultyStore::new(Arc::new(UnlistedStore::new(
        memory.clone(),
    ))));
    let stats = Arc::new(Stats::default());
    let store = ConsolidatedStore::over(
        Arc::new(MetadataCache::new(counted.clone(), None)),
        when,
        stats.clone(),
    )
    .unwrap();
    (
        memory,
        counted,
        Hierarchy::new(store, V1Order::Zarr1, stats),
    )
}

fn asked(store: &FaultyStore) -> u64 {
    [Operation::Stat, Operation::Get, Operation::List]
        .into_iter()
        .map(|operation| store.calls(operation))
        .sum()
}

fn walked(h: &Hierarchy) -> Vec<String> {
    let mut seen = Vec::new();
    h.visit_below(&Key::root(), NodeUse::Description, &mut |key, place| {
        seen.push(format!("{key} {}", kind(Some(place))));
        Ok(())
    })
    .unwrap();
    seen
}

fn kind(place: Option<&StoredNode>) -> &'static str {
    match place {
        Some(StoredNode::Array(_)) => "array",
        Some(StoredNode::Group) => "group",
        Some(StoredNode::Value) => "value",
        Some(_) => "other",
        None => "nothing",
    }
}

fn found(h: &Hierarchy, path: &str) -> &'static str {
    kind(h.find(&key(path)).unwrap().as_ref())
}

#[test]
fn the_hierarchy_takes_three_requests() {
    let (memory, counted, h) = unlisted(&VALUES, UseConsolidated::Auto);
    memory.insert(".zmetadata", consolidated(&VALUES));
    h.check().unwrap();
    assert_eq!(
        walked(&h),
        ["/ group", "/g group", "/g/0 array", "/g/x array"]
    );
    assert_eq!(h.attributes(&key("g/x")).unwrap()["unit"], "m");
    assert!(h.attributes(&key("g/0")).unwrap().is_empty());
    assert_eq!(
        asked(&counted),
        3,
        "stats of zarr.json and .zmetadata, and the value of that"
    );
    assert_eq!(
        (
            found(&h, "g/x/1"),
            found(&h, "g/y"),
            found(&h, "g/x/.zgroup")
        ),
        ("value", "nothing", "nothing")
    );
    // the view is made from the documents that exist
    let view = json::parse(&h.shown_consolidated(&Key::root()).unwrap().unwrap().text).unwrap();
    assert_eq!(view["metadata"].as_object().unwrap().len(), 5);
}

/// Names that sort around `a/`: `.` comes before the slash, `0` after it.
#[test]
fn each_level_lists_its_own_names() {
    let values = [
        ("a/.zgroup", GROUP),
        ("a/b/c/.zarray", ARRAY),
        ("a.b/.zarray", ARRAY),
        ("a0/.zarray", ARRAY),
        (".zgroup", GROUP),
    ];
    let (memory, _, h) = unlisted(&values, UseConsolidated::Auto);
    memory.insert(".zmetadata", consolidated(&values));
    assert_eq!(
        walked(&h),
        [
            "/ group",
            "/a group",
            "/a/b group",
            "/a/b/c array",
            "/a.b array",
            "/a0 array"
        ]
    );
    let names = |path: &str| {
        let mut names: Vec<String> = h
            .store()
            .list(&key(path))
            .unwrap()
            .map(|entry| entry.unwrap().name)
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(""), [".zgroup", "a", "a.b", "a0"]);
    assert_eq!(
        (names("a"), names("a/b")),
        (vec![".zgroup".into(), "b".into()], vec!["c".into()])
    );
}

#[test]
fn without_zmetadata_nodes_are_found_by_name() {
    let (memory, counted, h) = unlisted(&VALUES, UseConsolidated::Auto);
    h.check().unwrap();
    let names = ["", "g", "g/x", "g/0", "g/x/1", "g/x/0", "g/none", "none"];
    let kinds = [
        "group", "group", "array", "array", "value", "nothing", "nothing", "nothing",
    ];
    assert_eq!(names.map(|name| found(&h, name)), kinds);
    // a second lookup of each takes no request
    let before = asked(&counted);
    assert_eq!(names.map(|name| found(&h, name)), kinds);
    assert_eq!(asked(&counted), before);
    assert_eq!(walked(&h), ["/ group"]);
    // an array that was created meanwhile is found when it is opened
    memory.insert("none/.zarray", ARRAY);
    h.store().forget(&key("none"));
    assert_eq!(found(&h, "none"), "array");
    let (_, _, h) = unlisted(&[("x/.zarray", ARRAY)], UseConsolidated::Auto);
    assert_eq!(h.check().unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_changed_zmetadata_changes_only_the_versions_of_changed_documents() {
    let (memory, counted, h) = unlisted(&VALUES, UseConsolidated::Auto);
    memory.insert(".zmetadata", consolidated(&VALUES));
    let x = array(&h, "g/x");
    let other = array(&h, "g/0");
    let more = [&VALUES[..], &[("g/new/.zarray", ARRAY)]].concat();
    let more = consolidated(&more).replacen("\"shape\":[4]", "\"shape\":[6]", 1);
    memory.insert(".zmetadata", more);
    let before = asked(&counted);
    assert_eq!(
        (array(&h, "g/x").size(), asked(&counted) - before),
        (16, 0),
        "nobody has opened anything"
    );
    h.store().forget(&key("g/x"));
    assert_eq!((array(&h, "g/x").size(), found(&h, "g/new")), (24, "array"));
    assert!(x.is_superseded() && !other.is_superseded() && Arc::ptr_eq(&other, &array(&h, "g/0")));
    assert_eq!(asked(&counted) - before, 2);
    h.store().forget(&key("g/x"));
    array(&h, "g/x");
    assert_eq!(asked(&counted) - before, 3, "it is as it was");
    memory.remove(".zmetadata");
    h.store().forget(&key("g"));
    assert_eq!(
        (array(&h, "g/x").size(), found(&h, "g/new")),
        (16, "nothing")
    );
}

#[test]
fn a_damaged_zmetadata_is_recorded_and_not_used() {
    let (memory, counted, h) = unlisted(&VALUES, UseConsolidated::Auto);
    memory.insert(".zmetadata", "<html>not found</html>");
    assert_eq!(
        (found(&h, "g/x"), found(&h, "g"), found(&h, "g/0")),
        ("array", "group", "array")
    );
    assert_eq!(h.stats.problems().len(), 1, "{:?}", h.stats.problems());
    assert!(
        h.stats.problems()[0].starts_with("/.zmetadata: "),
        "{:?}",
        h.stats.problems()
    );
    // names that lead out of the store, or are no documents, are ignored
    memory.insert(
        ".zmetadata",
        r#"{"metadata":{"../.zarray":{},"a/../../.zgroup":{},"g/x/1":{},"g/.zgroup":{}}}"#,
    );
    h.store().forget(&Key::root());
    assert_eq!(walked(&h), ["/ group", "/g group"]);
    // a document that cannot be requested does not count as missing
    h.store().forget(&Key::root());
    counted.plan(PlannedFault {
        times: 100,
        ..PlannedFault::next(Operation::Stat, libc::EIO)
    });
    assert_eq!(h.find(&key("g")).err().map(|e| e.errno()), Some(libc::EIO));
    assert_eq!(h.check().unwrap_err().errno(), libc::EIO);
}

/// Entries of `zarr.json` that lead out of the store or are no documents are left out, and other
/// kinds are ignored.
#[test]
fn hostile_inline_metadata_is_not_used() {
    let group = r#"{"zarr_format":3,"node_type":"group"}"#;
    let root = |consolidated: &str| {
        format!(r#"{{"zarr_format":3,"node_type":"group","consolidated_metadata":{consolidated}}}"#)
    };
    let (memory, _, h) = unlisted(&[("y/zarr.json", group)], UseConsolidated::Auto);
    let entries = format!(r#"{{"../y":{group},"a/../../y":{group},"":{group},"g":{group},"h":5}}"#);
    memory.insert(
        "zarr.json",
        root(&format!(
            r#"{{"kind":"inline","must_understand":false,"metadata":{entries}}}"#
        )),
    );
    assert_eq!((found(&h, "g"), found(&h, "y")), ("group", "nothing"));
    for other in [
        r#"{"kind":"remote","metadata":{"g":{}}}"#,
        "[1]",
        "5",
        "[}",
        r#"{"kind":"inline","metadata":[]}"#,
    ] {
        memory.insert("zarr.json", root(other));
        h.store().forget(&Key::root());
        assert_eq!(
            (found(&h, "g"), found(&h, "y")),
            ("nothing", "group"),
            "{other}"
        );
    }
}

/// "`--consolidated auto|use|ignore`".
#[test]
fn a_listing_store_uses_zmetadata_only_on_request() {
    let (memory, _) = hierarchy(&VALUES);
    let over = |when| -> Result<Hierarchy> {
        let store = ConsolidatedStore::over(memory.clone(), when, Arc::default())?;
        Ok(Hierarchy::new(store, V1Order::Zarr1, Arc::default()))
    };
    let fails = over(UseConsolidated::Always).map(drop).unwrap_err();
    assert_eq!(
        (fails.kind(), fails.message().contains("zarrfs consolidate")),
        (Kind::Invalid, true),
        "{fails}"
    );
    memory.insert(".zmetadata", consolidated(&VALUES[..3]));
    for (when, expected) in [
        (UseConsolidated::Auto, 5),
        (UseConsolidated::Always, 4),
        (UseConsolidated::Never, 5),
    ] {
        let h = over(when).unwrap();
        let place = |path| found(&h, path);
        let arrays = ["", "g", "g/x", "g/0"]
            .map(place)
            .into_iter()
            .filter(|kind| ["array", "group"].contains(kind));
        // without its document g/0 is a group
        assert_eq!(
            (arrays.count(), place("g/0") == "array"),
            (4, expected == 5),
            "{when:?}"
        );
        assert_eq!(h.attributes(&key("g/x")).unwrap().is_empty(), expected == 4);
    }
    // chunks can be written then, metadata can't
    let h = over(UseConsolidated::Always).unwrap();
    h.store().put(&key("g/x/0"), b"a chunk").unwrap();
    let refused = |done: Result<()>| assert_eq!(done.unwrap_err().kind(), Kind::ReadOnly);
    refused(h.set_attribute(&key("g/x"), "a", Some(b"1")));
    refused(h.create_group(&key("new")));
    refused(h.remove_node(&key("g/0")));
    refused(h.rename(&key("g/x"), &key("y")));
    refused(h.remove_document(&key("g/x"), MetadataFile::Array));
    assert_eq!(
        everything(&memory)
            .iter()
            .filter(|k| k.starts_with("new") || k.starts_with("y"))
            .count(),
        0
    );
    // a store that cannot list and ignores .zmetadata finds nothing in it
    let (memory, _, h) = unlisted(&VALUES[..2], UseConsolidated::Never);
    memory.insert(".zmetadata", consolidated(&VALUES));
    assert_eq!((found(&h, "g"), found(&h, "g/x")), ("group", "nothing"));
    // it shows no .zmetadata that is generated from the few known documents
    assert!(h.shown_consolidated(&Key::root()).unwrap().is_none());
}

/// "chunks under `0/0` without `dimension_separator`": where nothing is listed, the first chunk
/// tells.
#[test]
fn the_first_chunk_decides_an_undeclared_separator() {
    let nested = ARRAY.replace("[4]", "[4,4]").replace("[2]", "[2,2]");
    for (chunk, separator) in [
        ("x/0/0", Separator::Slash),
        ("x/0.0", Separator::Dot),
        ("x/1/1", Separator::Dot),
    ] {
        let (_, _, h) = unlisted(
            &[("x/.zarray", &nested), (chunk, "")],
            UseConsolidated::Auto,
        );
        assert_eq!(array(&h, "x").separator(), separator, "{chunk}");
    }
    let (_, counted, h) = unlisted(&[("x/.zarray", ARRAY)], UseConsolidated::Auto);
    let x = array(&h, "x");
    assert_eq!(
        (
            asked(&counted),
            x.entries()
                .unwrap()
                .filter(|e| !matches!(e, Ok(ArrayEntry::Value(_))))
                .count()
        ),
        (6, 0)
    );
}
