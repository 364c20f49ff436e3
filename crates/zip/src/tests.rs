//! Valid archives of every form. `hostile` tests invalid archives, and `python` those that Python
//! creates.

mod changes;
mod hostile;
mod python;
mod written;

use super::*;
use std::time::SystemTime;
use zarrfs_store::testing::archive::{Member, archive, archive_with, member};
use zarrfs_store::testing::{FaultyStore, Operation};
use zarrfs_store::testing::{get, key, part};
use zarrfs_store::{DirectoryStore, Entry, MemoryStore, PrefixStore};

/// Stores over an archive that is a local file, and over one that is read by ranges.
struct Both {
    _home: tempfile::TempDir,
    stores: [Result<ZipStore>; 2],
}

fn both(bytes: &[u8]) -> Both {
    let home = tempfile::tempdir().unwrap();
    let memory = MemoryStore::default();
    std::fs::write(home.path().join("x.zip"), bytes).unwrap();
    memory.insert("x.zip", bytes);
    let local = Arc::new(DirectoryStore::open(home.path()).unwrap());
    let stores = [
        ZipStore::open(local, &key("x.zip")),
        ZipStore::open(Arc::new(memory), &key("x.zip")),
    ];
    Both {
        _home: home,
        stores,
    }
}

fn names(store: &dyn Store, prefix: &str) -> Vec<String> {
    let entries = store.list(&key(prefix)).unwrap().map(|e| e.unwrap());
    let marked = |e: Entry| {
        if e.kind == EntryKind::Prefix {
            e.name + "/"
        } else {
            e.name
        }
    };
    let mut names: Vec<_> = entries.map(marked).collect();
    names.sort();
    names
}

/// Checks the members with `get` and `get_range`.
fn check(store: &ZipStore, members: &[Member]) {
    for m in members {
        let name = std::str::from_utf8(&m.name).unwrap();
        // the range comes first, while the local header is unknown
        let half = m.value.len() / 2;
        let len = m.value.len() as u64;
        assert_eq!(
            part(store, name, half as u64..len + 9).unwrap().unwrap(),
            m.value[half..],
            "{name}"
        );
        assert_eq!(get(store, name).unwrap().unwrap(), m.value, "{name}");
        assert_eq!(
            part(store, name, 1..3).unwrap().unwrap(),
            m.value[1.min(m.value.len())..3.min(m.value.len())],
            "{name}"
        );
        assert_eq!(part(store, name, len + 1..len + 5).unwrap().unwrap(), b"");
        let stat = store.stat(&key(name)).unwrap().unwrap();
        assert_eq!((stat.kind, stat.size), (EntryKind::Value, len));
        assert_eq!(
            store.get(&key(name), 1 << 20, &mut Vec::new()).unwrap(),
            Some(stat.version)
        );
    }
}

fn sample() -> Vec<u8> {
    (0..5000u32).flat_map(|i| (i / 3).to_le_bytes()).collect()
}

#[test]
fn stored_and_deflated_members_are_read() {
    let members = [
        member(".zgroup", "{}"),
        member("a/.zarray", "{ }"),
        member("a/0.0", sample()),
        member("a/0.1", sample()).deflated(),
        member("a/0.2", ""),
        member("a/0.3", "").deflated(),
        Member {
            has_descriptor: true,
            ..member("b/c/0", sample())
        },
        Member {
            has_descriptor: true,
            ..member("b/c/1", sample()).deflated()
        },
        // extra fields as long as expected, one byte longer, and much longer
        Member {
            own_extra: 128,
            ..member("b/d/0", sample())
        },
        Member {
            own_extra: 129,
            ..member("b/d/1", sample())
        },
        Member {
            own_extra: 65_000,
            ..member("b/d/2", sample())
        },
        Member {
            is_large: true,
            ..member("b/e", sample())
        },
        Member {
            is_large: true,
            has_descriptor: true,
            ..member("b/f", sample()).deflated()
        },
        member("large", vec![7; 300_000]),
    ];
    for (comment, zip64) in [
        (&b""[..], false),
        (b"", true),
        (b"a comment", false),
        (&[b'x'; 65_535], true),
    ] {
        for store in both(&archive_with(&members, comment, zip64).bytes)
            .stores
            .map(Result::unwrap)
        {
            check(&store, &members);
            check(&store, &members);
            assert_eq!(names(&store, ""), [".zgroup", "a/", "b/", "large"]);
            assert_eq!(names(&store, "a"), [".zarray", "0.0", "0.1", "0.2", "0.3"]);
            assert_eq!(names(&store, "b"), ["c/", "d/", "e", "f"]);
            assert_eq!(
                (names(&store, "b/c"), names(&store, "b/d").len()),
                (vec!["0".into(), "1".into()], 3)
            );
            assert_eq!(
                (get(&store, "a/0.9").unwrap(), get(&store, "a").unwrap()),
                (None, None)
            );
            assert_eq!(
                store.stat(&key("b/c")).unwrap().unwrap().kind,
                EntryKind::Prefix
            );
            assert_eq!(
                (
                    store.stat(&key("b/")).unwrap().is_some(),
                    store.stat(&key("b/c/")).unwrap().is_some()
                ),
                (true, true)
            );
            assert!(
                store.stat(&key("b/cc")).unwrap().is_none()
                    && store.stat(&key("b/c/0/1")).unwrap().is_none()
            );
            assert!(store.list(&key("a/0.0")).is_err() && store.list(&key("none")).is_err());
            assert!(
                !store.is_writable()
                    && store.put(&key("x"), b"").unwrap_err().kind() == Kind::ReadOnly
            );
        }
    }
}

#[test]
fn many_members_are_listed_in_order() {
    // the central directory is longer than the tail that is read first
    let members: Vec<_> = (0..5000)
        .map(|i| member(&format!("a/{}.{}", i / 70, i % 70), [i as u8; 3]))
        .collect();
    for store in both(&archive(&members)).stores.map(Result::unwrap) {
        check(&store, &members);
        let listed: Vec<Entry> = store.list(&key("a")).unwrap().map(|e| e.unwrap()).collect();
        assert_eq!(listed.len(), 5000);
        let mut keys = listed
            .iter()
            .map(|e| key("a").join(&e.name))
            .chain([key("a/none"), key("a")]);
        let mut found = Vec::new();
        store.stat_many(&mut keys, &mut |stat| {
            found.push(stat.unwrap());
            true
        });
        assert_eq!(
            found
                .split_off(5000)
                .into_iter()
                .map(|s| s.map(|s| s.kind))
                .collect::<Vec<_>>(),
            [None, Some(EntryKind::Prefix)]
        );
        assert_eq!(
            found,
            listed.into_iter().map(|e| e.stat).collect::<Vec<_>>()
        );
    }
}

#[test]
fn the_last_of_several_members_with_one_name_counts() {
    let members = [
        member("a", "first"),
        member("b", "one"),
        member("a", "second"),
        member("b/", ""),
        member("b\\c", "below a value"),
        member("a", "the last"),
    ];
    for store in both(&archive(&members)).stores.map(Result::unwrap) {
        assert_eq!(get(&store, "a").unwrap().unwrap(), b"the last");
        assert_eq!(
            (names(&store, ""), get(&store, "b").unwrap().unwrap()),
            (vec!["a".into(), "b".into()], b"one".to_vec())
        );
    }
}

#[test]
fn a_comment_may_contain_the_signature_of_an_end_record() {
    let members = [member("a", "1"), member("b", "2")];
    let inner = archive_with(&members, b"", false);
    let end = &inner.bytes[inner.bytes.len() - 22..];
    // false end records: one ends too early, and one ends with the archive but has no directory
    // before it
    let false_end = [
        b"PK\x05\x06".as_slice(),
        &[0; 4],
        &[9, 0, 9, 0, 5, 0, 0, 0, 1, 0, 0, 0],
        &[2, 0],
        b"xx",
    ]
    .concat();
    for comment in [
        [b"abc", end, b"tail"].concat(),
        false_end,
        b"PK\x05\x06".to_vec(),
    ] {
        for zip64 in [false, true] {
            for store in both(&archive_with(&members, &comment, zip64).bytes)
                .stores
                .map(Result::unwrap)
            {
                check(&store, &members);
            }
        }
    }
}

#[test]
fn bytes_before_the_archive_shift_its_offsets() {
    let members = [
        member("a", sample()),
        Member {
            is_large: true,
            ..member("b", "2")
        },
    ];
    for zip64 in [false, true] {
        let bytes = [
            &b"#!/bin/sh\n"[..],
            &archive_with(&members, b"", zip64).bytes,
        ]
        .concat();
        for store in both(&bytes).stores.map(Result::unwrap) {
            check(&store, &members);
        }
    }
}

#[test]
fn the_only_folder_of_an_archive_can_be_the_store() {
    let inside = [
        member("x.zarr/", ""),
        member("x.zarr/.zgroup", "{}"),
        member("x.zarr/a/0", "zero"),
    ];
    let mac = [member("__MACOSX/x.zarr/._a", "?"), member(".DS_Store", "?")];
    for store in both(&archive(&[&inside[..], &mac].concat()))
        .stores
        .map(Result::unwrap)
    {
        let folder = store.single_folder().unwrap();
        assert_eq!(folder, key("x.zarr"));
        let below = store.location();
        let store = PrefixStore::at(Arc::new(store), folder);
        assert_eq!(names(&*store, ""), [".zgroup", "a/"]);
        assert_eq!(
            (names(&*store, "a"), get(&*store, "a/0").unwrap().unwrap()),
            (vec!["0".into()], b"zero".to_vec())
        );
        assert_eq!(
            store.stat(&Key::root()).unwrap().unwrap().kind,
            EntryKind::Prefix
        );
        assert_eq!(store.location(), format!("{below}/x.zarr"));
    }
    for others in [
        vec![],
        vec![member(".zgroup", "{}")],
        vec![member("x.zarr/a", ""), member("y/a", "")],
    ] {
        assert_eq!(
            both(&archive(&others))
                .stores
                .map(|s| s.unwrap().single_folder()),
            [None, None]
        );
    }
}

#[test]
fn times_come_from_the_members_if_plausible() {
    let at = |date| Member {
        date,
        ..member("a", "1")
    };
    let modified = |m: Member| {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("x.zip"), archive(&[m])).unwrap();
        let store = ZipStore::open(
            Arc::new(DirectoryStore::open(home.path()).unwrap()),
            &key("x.zip"),
        )
        .unwrap();
        store
            .stat(&key("a"))
            .unwrap()
            .unwrap()
            .modified
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    // 2024-02-29, 2000-03-01
    assert_eq!(modified(at(44 << 9 | 2 << 5 | 29)), 1_709_164_800);
    assert_eq!(modified(at(20 << 9 | 3 << 5 | 1)), 951_868_800);
    // an invalid day, the day of archivers without a time, month 13, the year 2107
    for date in [0, 1 << 5 | 1, 20 << 9 | 13 << 5 | 1, 127 << 9 | 1 << 5 | 1] {
        assert!(modified(at(date)) >= now - 100, "{date:x}");
    }
}

#[test]
fn a_remote_archive_takes_few_requests() {
    let members: Vec<_> = (0..50)
        .map(|i| member(&format!("a/{i}"), vec![i; 100]))
        .collect();
    let below = MemoryStore::default();
    below.insert("x.zip", archive(&members));
    let below = Arc::new(FaultyStore::new(Arc::new(below)));
    let requests = || (below.calls(Operation::Get), below.calls(Operation::Stat));
    let store = ZipStore::open(below.clone(), &key("x.zip")).unwrap();
    // the size, and the tail with the central directory
    assert_eq!(requests(), (1, 1));
    for m in &members {
        get(&store, std::str::from_utf8(&m.name).unwrap())
            .unwrap()
            .unwrap();
    }
    assert_eq!(requests(), (51, 1));
    store.list(&key("a")).unwrap().for_each(drop);
    assert_eq!(requests(), (51, 2));
    part(&store, "a/7", 5..9).unwrap().unwrap();
    assert_eq!(requests(), (52, 2));
}

#[test]
fn names_in_other_encodings_are_read() {
    let utf8 = "\u{6e29}/0";
    let members = [
        Member {
            name: b"Gr\x94\xe1e/0".to_vec(),
            ..member("", sample())
        },
        Member {
            unicode_name: utf8.into(),
            ..member("?/0", sample()).deflated()
        },
        Member {
            flags: 1 << 11,
            name: b"\xff".to_vec(),
            ..member("", sample())
        },
        member(&"a/".repeat(30_000), sample()),
    ];
    for store in both(&archive(&members)).stores.map(Result::unwrap) {
        let stats = Arc::new(Stats::default());
        let store = store.with_stats(stats.clone());
        assert_eq!(names(&store, ""), ["Gr\u{f6}\u{df}e/", "\u{6e29}/"]);
        for name in ["Gr\u{f6}\u{df}e/0", utf8] {
            assert_eq!(get(&store, name).unwrap().unwrap(), sample(), "{name}");
        }
        let left_out = stats.all_left_out();
        assert!(
            left_out.len() == 1 && left_out[0].starts_with("/x.zip: 2 members"),
            "{left_out:?}"
        );
        assert_eq!(stats.problems(), left_out);
    }
}
