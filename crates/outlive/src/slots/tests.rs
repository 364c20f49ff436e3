use super::*;
use crate::create_memory;
use proptest::prelude::*;
use std::collections::HashMap;

fn sorted(mut records: Vec<Record>) -> Vec<(u32, [u64; 2], Vec<u8>)> {
    records.sort_by_key(|record| record.id.0);
    let parts = |record: Record| (record.kind, record.numbers, record.text);
    records.into_iter().map(parts).collect()
}

#[test]
fn a_successor_finds_what_was_recorded() {
    let memory = create_memory().unwrap();
    let (journal, found) = Journal::open(&memory).unwrap();
    assert_eq!(found, []);
    let long = vec![7; 1000];
    let first = journal.add(1, [2, 3], b"a").unwrap();
    let second = journal.add(4, [5, 6], &long).unwrap();
    journal.number(first, 1).store(9, Ordering::Relaxed);
    // it is not unmapped: a process that is killed drops nothing
    std::mem::forget(journal);
    let (journal, found) = Journal::open(&memory).unwrap();
    let expected = [(1, [2, 9], b"a".to_vec()), (4, [5, 6], long)];
    assert_eq!(sorted(found), expected);
    journal.remove(second);
    let used = journal.used_bytes();
    // the slots of the removed record are used again
    journal.add(4, [0, 0], &[1; 900]).unwrap();
    assert_eq!(journal.used_bytes(), used);
}

#[test]
fn a_process_that_is_killed_while_it_replaces_a_record_leaves_one() {
    let memory = create_memory().unwrap();
    let (journal, _) = Journal::open(&memory).unwrap();
    let old = journal.add(1, [0, 0], &[1; 200]).unwrap();
    // the stores of `replace`, up to the first, and up to the second
    let new = journal.write(1, [1, 1], b"new", old.0).unwrap();
    let (journal, found) = Journal::open(&memory).unwrap();
    assert_eq!(sorted(found), [(1, [1, 1], b"new".to_vec())]);
    let newer = journal.write(1, [2, 2], b"newer", new).unwrap();
    journal.erase(new);
    let (journal, found) = Journal::open(&memory).unwrap();
    assert_eq!(sorted(found), [(1, [2, 2], b"newer".to_vec())]);
    // the slots that both have left are free, and their use does not erase the record
    for _ in 0..4 {
        journal.add(2, [0, 0], b"").unwrap();
    }
    let (_, found) = Journal::open(&memory).unwrap();
    assert!(found.iter().any(|record| record.id.0 == newer));
    assert_eq!(found.len(), 5);
}

#[test]
fn a_full_journal_refuses_records_and_keeps_those_it_has() {
    let memory = create_memory().unwrap();
    let (journal, _) = Journal::open(&memory).unwrap();
    let text = vec![1; 18 << 20];
    let kept: Vec<RecordId> = (0..3)
        .map(|_| journal.add(1, [0, 0], &text).unwrap())
        .collect();
    assert!(!journal.is_incomplete());
    assert_eq!(journal.add(1, [0, 0], &text), None);
    assert_eq!(journal.replace(kept[0], [0, 0], &text), None);
    journal.add(1, [0, 0], b"small").unwrap();
    let (journal, found) = Journal::open(&memory).unwrap();
    assert_eq!(found.len(), 4);
    assert!(journal.is_incomplete());
    journal.remove(kept[1]);
    journal.add(1, [0, 0], &text).unwrap();
}

#[test]
fn damaged_memory_ends_no_process() {
    let memory = create_memory().unwrap();
    let (journal, _) = Journal::open(&memory).unwrap();
    let ids = [0; 3].map(|_| journal.add(1, [0, 0], &[1; 500]).unwrap());
    for (id, at) in ids.iter().zip([NEXT, LENGTH, REPLACED]) {
        journal.word(id.0, at).store(u32::MAX, Ordering::Relaxed);
    }
    // a text whose slots form a circle
    let circle = journal.add(1, [0, 0], &[1; 500]).unwrap();
    journal
        .word(circle.0 + 1, NEXT)
        .store(circle.0 + 1, Ordering::Relaxed);
    journal.untouched().store(u32::MAX, Ordering::Relaxed);
    let (journal, _) = Journal::open(&memory).unwrap();
    let _ = journal.add(1, [0, 0], b"");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_memory_holds_what_a_map_would(
        operations in prop::collection::vec((0..4u8, 0..20usize, 0..400usize), 1..120),
    ) {
        let memory = create_memory().unwrap();
        let (mut journal, _) = Journal::open(&memory).unwrap();
        let mut model: HashMap<u32, (u32, [u64; 2], Vec<u8>)> = HashMap::new();
        for (n, (operation, which, len)) in operations.into_iter().enumerate() {
            let numbers = [n as u64, len as u64];
            let text = vec![n as u8; len];
            let mut ids: Vec<u32> = model.keys().copied().collect();
            ids.sort_unstable();
            let chosen = ids.get(which % ids.len().max(1)).copied();
            match (operation, chosen) {
                (1, Some(id)) => {
                    journal.remove(RecordId(id));
                    model.remove(&id);
                }
                (2, Some(id)) => {
                    let new = journal.replace(RecordId(id), numbers, &text).unwrap();
                    let (kind, ..) = model.remove(&id).unwrap();
                    model.insert(new.0, (kind, numbers, text));
                }
                (3, Some(id)) => {
                    journal.number(RecordId(id), 1).store(7, Ordering::Relaxed);
                    model.get_mut(&id).unwrap().1[1] = 7;
                }
                _ => {
                    let id = journal.add(1 + n as u32, numbers, &text).unwrap();
                    model.insert(id.0, (1 + n as u32, numbers, text));
                }
            }
            if which == 0 {
                let (next, found) = Journal::open(&memory).unwrap();
                journal = next;
                let mut expected: Vec<_> = model.iter().collect();
                expected.sort_by_key(|(id, _)| **id);
                let expected: Vec<_> = expected.into_iter().map(|(_, record)| record.clone()).collect();
                prop_assert_eq!(sorted(found), expected);
            }
        }
    }
}
