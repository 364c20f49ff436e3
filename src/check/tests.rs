use super::*;
use crate::array::hierarchy::{ConsolidatedStore, UseConsolidated};
use crate::error::Error;
use crate::store::{FaultyStore, MemoryStore, Operation, PlannedFault, Store, UnlistedStore};
use crate::zarr::metadata::V1Order;

const ARRAY: &str = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"|u1","compressor":null,"fill_value":0,"order":"C",
    "filters":null}"#;

/// A group with two arrays, each with two chunks.
fn memory() -> Arc<MemoryStore> {
    let store = MemoryStore::default();
    store.insert(".zgroup", r#"{"zarr_format":2}"#);
    for array in ["a", "b"] {
        store.insert(&format!("{array}/.zarray"), ARRAY);
        store.insert(&format!("{array}/0"), "01");
        store.insert(&format!("{array}/1"), "23");
    }
    Arc::new(store)
}

/// What a check finds: kind, key and message of each, and what it looked at.
fn found(store: Arc<dyn Store>, deep: bool) -> (Vec<(FindingKind, String, String)>, Summary) {
    let hierarchy = Hierarchy::new(store, V1Order::Zarr1, Arc::default());
    let (mut found, stop) = (Vec::new(), AtomicBool::new(false));
    let summary = check(&hierarchy, CheckOptions { deep, threads: 1, stop: &stop }, &mut |event| {
        if let Event::Found(finding) = event {
            found.push((finding.fault, finding.key.to_string(), finding.message));
        }
    });
    (found, summary)
}

#[test]
fn a_sound_store() {
    for deep in [false, true] {
        let expected = Summary { groups: 1, arrays: 2, chunks: 4, bytes: 8, complete: true };
        assert_eq!(found(memory(), deep), (Vec::new(), expected));
    }
}

#[test]
fn store_failures_are_findings_and_the_rest_is_checked() {
    // of which calls, how many still succeed, where the failure is found, and how many chunks are
    let cases = [
        (Operation::List, 1, "/a", 2),
        (Operation::List, 2, "/b", 2),
        (Operation::Get, 2, "/a/0", 4),
        (Operation::Get, 0, "/.zgroup", 4),
    ];
    for (operation, after, key, chunks) in cases {
        let store = FaultyStore::new(memory());
        store.plan(PlannedFault { after, ..PlannedFault::next(operation, libc::EIO) });
        let (found, summary) = found(Arc::new(store), true);
        let message = format!("{}; {}", Error::system(libc::EIO), FindingKind::Unreadable.advice());
        assert_eq!(found, [(FindingKind::Unreadable, key.to_string(), message)], "{operation:?} {after}");
        assert_eq!((summary.arrays, summary.chunks, summary.complete), (2, chunks, true), "{operation:?} {after}");
    }
}

#[test]
fn a_store_that_cannot_list_is_asked_for_each_chunk() {
    let store = memory();
    let documents = format!(r#"{{".zgroup":{{"zarr_format":2}},"a/.zarray":{ARRAY},"b/.zarray":{ARRAY}}}"#);
    store.insert(".zmetadata", format!(r#"{{"zarr_consolidated_format":1,"metadata":{documents}}}"#));
    store.insert("b/1", "2");
    store.delete(&Key::root().join("a/0")).unwrap();
    let unlisted = Arc::new(UnlistedStore::new(store));
    let served = ConsolidatedStore::over(unlisted, UseConsolidated::Auto, Arc::default()).unwrap();
    for deep in [false, true] {
        let (all, summary) = found(served.clone(), deep);
        let all: Vec<(FindingKind, &str)> = all.iter().map(|(fault, key, _)| (*fault, key.as_str())).collect();
        assert_eq!(all, [(FindingKind::Unlisted, "/"), (FindingKind::Chunk, "/b/1")], "deep: {deep}");
        assert_eq!((summary.arrays, summary.chunks, summary.bytes), (2, 3, 5), "deep: {deep}");
    }
}

#[test]
fn a_check_can_be_stopped() {
    let hierarchy = Hierarchy::new(memory(), V1Order::Zarr1, Arc::default());
    let stop = AtomicBool::new(false);
    let summary = check(&hierarchy, CheckOptions { deep: true, threads: 1, stop: &stop }, &mut |event| {
        if let Event::Progress(..) = event {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert_eq!((summary.arrays, summary.chunks, summary.complete), (1, 2, false));
}

#[test]
fn finding_kinds_have_unique_names() {
    let names: std::collections::BTreeSet<&str> = FindingKind::ALL.iter().map(|fault| fault.name()).collect();
    assert_eq!(names.len(), FindingKind::ALL.len());
    for fault in FindingKind::ALL {
        assert!(fault.meaning().ends_with('.') && !fault.advice().ends_with('.'), "{fault:?}");
        // who is told of a fault is told what to do
        assert!(fault.level() == Severity::Note || !fault.advice().is_empty(), "{fault:?}");
    }
}
