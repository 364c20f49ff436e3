//! Archives that are truncated, damaged or malicious: each member has its stored value or is an
//! error.

use super::*;
use zarrfs_store::testing::archive::Archive;

fn twenty() -> (Vec<Member>, Archive) {
    let value = |i: u8| vec![i; 10 + usize::from(i)];
    let members: Vec<_> = (0..20)
        .map(|i| match i % 4 {
            0 => member(&format!("a/{i}.0"), value(i)),
            1 => member(&format!("a/{i}.0"), value(i)).deflated(),
            2 => Member {
                has_descriptor: true,
                ..member(&format!("b/{i}"), value(i)).deflated()
            },
            _ => Member {
                is_large: true,
                ..member(&format!("c/d/{i}"), value(i))
            },
        })
        .collect();
    let archive = archive_with(&members, b"the end", true);
    (members, archive)
}

/// Reads everything and checks that each returned value is the stored one. Returns the number of
/// values.
fn intact(bytes: &[u8], members: &[Member], parts_may_differ: bool) -> usize {
    let mut least = usize::MAX;
    for store in both(bytes).stores {
        let Ok(store) = store else {
            least = 0;
            continue;
        };
        let mut right = 0;
        for m in members {
            let name = std::str::from_utf8(&m.name).unwrap();
            match get(&store, name) {
                Ok(Some(value)) => {
                    assert_eq!(value, m.value, "{name}");
                    right += 1;
                }
                Ok(None) => {}
                Err(e) => assert!([libc::EIO, libc::EOPNOTSUPP].contains(&e.errno()), "{e}"),
            }
            match part(&store, name, 3..8) {
                // a range of stored data has no checksum of its own
                Ok(Some(value)) => assert!(
                    value == m.value[3..8] || parts_may_differ && !m.is_deflated,
                    "{name}"
                ),
                Ok(None) => {}
                Err(e) => assert!([libc::EIO, libc::EOPNOTSUPP].contains(&e.errno()), "{e}"),
            }
        }
        for prefix in ["", "a", "b", "c/d"] {
            store
                .list(&key(prefix))
                .into_iter()
                .flatten()
                .for_each(|e| drop(e.unwrap()));
        }
        least = least.min(right);
    }
    least
}

#[test]
fn a_truncated_archive_is_refused() {
    let (members, archive) = twenty();
    assert_eq!(intact(&archive.bytes, &members, false), 20);
    for len in 0..archive.bytes.len() {
        assert_eq!(intact(&archive.bytes[..len], &members, false), 0, "{len}");
    }
}

#[test]
fn a_flipped_byte_affects_one_member_or_all() {
    let (members, archive) = twenty();
    let mut refused = 0;
    for at in 0..archive.bytes.len() {
        let mut bytes = archive.bytes.clone();
        bytes[at] ^= [0x01, 0x80, 0xff][at % 3];
        match intact(&bytes, &members, at < archive.directory) {
            0 if at >= archive.directory => refused += 1,
            // a damaged size may overlap the next member
            n => assert!(n >= 18, "{at}: {n}"),
        }
    }
    assert!(
        refused > 0 && refused < archive.bytes.len() - archive.directory,
        "{refused}"
    );
}

/// Returns the error of the member `a`, from `get` and `get_range`.
fn refused(members: &[Member]) -> [String; 2] {
    let Both { _home, stores } = both(&archive(members));
    let [local, far] = stores.map(Result::unwrap);
    let whole = [&local, &far].map(|s| {
        get(s, "a")
            .unwrap_err()
            .to_string()
            .split_once("x.zip: ")
            .unwrap()
            .1
            .to_string()
    });
    assert_eq!(whole[0], whole[1]);
    let part = [&local, &far].map(|s| part(s, "a", 0..1).map(|_| ()).map_err(|e| e.to_string()));
    let part = part.map(|p| {
        p.err().map_or(String::new(), |e| {
            e.split_once("x.zip: ").unwrap().1.to_string()
        })
    });
    assert_eq!(part[0], part[1]);
    let [whole, part] = [whole, part].map(|[first, _]| first);
    [whole, part]
}

#[test]
fn members_are_refused_with_a_reason() {
    let a = || member("a", vec![5; 3000]);
    let both_ways = |m: Member, why: &str| assert_eq!(refused(&[m]), [why; 2]);
    both_ways(Member { flags: 1, ..a() }, "encrypted in the zip archive");
    let only = "in the zip archive; only stored and deflated members can be read";
    both_ways(
        Member {
            method: Some(12),
            ..a()
        },
        &format!("compressed by bzip2 {only}"),
    );
    both_ways(
        Member {
            method: Some(77),
            ..a()
        },
        &format!("compressed by method 77 {only}"),
    );
    let sizes = "its sizes in the central directory contradict each other";
    both_ways(
        Member {
            size: Some(2999),
            ..a()
        },
        sizes,
    );
    both_ways(
        Member {
            size: Some(1 << 40),
            is_large: true,
            ..a().deflated()
        },
        sizes,
    );
    both_ways(
        Member {
            size: Some(2999),
            ..a().deflated()
        },
        "deflate: holds more than 2999 bytes",
    );
    both_ways(
        Member {
            size: Some(3001),
            ..a().deflated()
        },
        "it inflates to 3000 bytes, not 3001",
    );
    let crc = format!(
        "its crc32 is {:08x}, the archive says 00000007",
        crc32fast::hash(&a().value)
    );
    both_ways(
        Member {
            crc: Some(7),
            ..a().deflated()
        },
        &crc,
    );
    assert_eq!(
        refused(&[Member {
            crc: Some(7),
            ..a()
        }]),
        [crc, String::new()]
    );
    let overlaps = "it shares bytes with another member of the archive";
    assert_eq!(
        refused(&[
            a(),
            Member {
                stands_at: Some(0),
                ..member("b", "")
            }
        ]),
        [overlaps; 2]
    );
    let large = Member {
        size: Some(1 << 40),
        stored_size: Some(1 << 40),
        is_large: true,
        ..a()
    };
    assert_eq!(refused(&[large]), [overlaps; 2]);
    let another = "another member is at its offset in the archive";
    assert_eq!(
        refused(&[
            member("b", ""),
            member("b", "later"),
            Member {
                stands_at: Some(0),
                ..member("a", "")
            }
        ]),
        [another; 2]
    );
}

#[test]
fn a_value_above_the_limit_is_not_read() {
    let members = [
        member("a", vec![0; 5000]),
        member("b", vec![0; 5000]).deflated(),
    ];
    for store in both(&archive(&members)).stores.map(Result::unwrap) {
        for name in ["a", "b"] {
            let mut value = Vec::new();
            assert_eq!(
                store.get(&key(name), 4999, &mut value).unwrap_err().kind(),
                Kind::Damaged
            );
            assert_eq!(value.capacity(), 0);
            assert!(store.get(&key(name), 5000, &mut value).unwrap().is_some());
        }
    }
}

#[test]
fn names_that_cannot_be_keys_are_left_out() {
    let bad = [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "\\windows",
        "a//b",
        "a/./b",
        "..",
        "a\0b",
        "",
        "/",
    ];
    let good = [
        member("ok", "1"),
        member("./dot/b", "2"),
        member("back\\slash", "3"),
    ];
    let mut members: Vec<_> = bad.iter().map(|name| member(name, "bad")).collect();
    members.push(Member {
        name: b"\xff\xfe".to_vec(),
        flags: 1 << 11,
        ..member("", "bad")
    });
    members.extend(good);
    for store in both(&archive(&members)).stores.map(Result::unwrap) {
        assert_eq!(names(&store, ""), ["back/", "dot/", "ok"]);
        let values = ["ok", "dot/b", "back/slash"].map(|name| get(&store, name).unwrap().unwrap());
        assert_eq!(values, [b"1", b"2", b"3"]);
    }
}

#[test]
fn a_wrong_end_record_is_refused() {
    let whole = archive_with(&[member("a", "1"), member("b", "2")], b"", false);
    let end = whole.bytes.len() - 22;
    // offset, bytes, message
    let lies: [(usize, &[u8], &str); 6] = [
        (4, &[1], "one part of a split archive; join the parts first"),
        (10, &[3], "its central directory has 2 members, not 3"),
        (
            12,
            &[1],
            "its central directory is not at the offset in its end record",
        ),
        (
            12,
            &[255, 255, 255, 255],
            "its central directory is not at the offset in its end record",
        ),
        (
            16,
            &[255, 255, 255, 255],
            "its central directory is not at the offset in its end record",
        ),
        (
            20,
            &[1],
            "not a zip archive, or truncated: the end record is missing",
        ),
    ];
    for (at, lie, why) in lies {
        let mut bytes = whole.bytes.clone();
        bytes[end + at..end + at + lie.len()].copy_from_slice(lie);
        for store in both(&bytes).stores {
            assert_eq!(store.err().unwrap().message(), why);
        }
    }
    for store in both(b"PK")
        .stores
        .into_iter()
        .chain(both(b"").stores)
        .chain(both(&[0; 100_000]).stores)
    {
        assert_eq!(store.err().unwrap().kind(), Kind::Damaged);
    }
}
