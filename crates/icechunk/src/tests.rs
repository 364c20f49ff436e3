use super::flat::tests::FlatField::*;
use super::flat::tests::{FlatBuilder, FlatField};
use super::ice_file::tests::file;
use super::manifest::tests::{inline, located, manifest, native};
use super::snapshot::tests::{array, group, snapshot};
use super::*;
use std::path::{Path, PathBuf};
use zarrfs_base::error::Kind;
use zarrfs_base::json;
use zarrfs_store::testing::{FaultyStore, Operation};
use zarrfs_store::testing::{get, key, part};
use zarrfs_store::{EntryKind, MemoryStore, Snapshots};

const SNAPSHOTS: [[u8; 12]; 2] = [[1; 12], [2; 12]];
const MANIFEST: [u8; 12] = [3; 12];
const CHUNK: [u8; 12] = [4; 12];
const NODE: [u8; 8] = [5; 8];

fn reference(name: &str, snapshot: u32) -> Vec<FlatField> {
    vec![Bytes(name.as_bytes().to_vec()), U32(snapshot)]
}

/// Returns the file `repo`, whose main branch is at a snapshot.
fn repository(main: u32) -> Vec<u8> {
    let snapshots = SNAPSHOTS.iter().zip([-1i32, 0]).map(|(id, parent)| {
        let message = Bytes(b"message".to_vec());
        vec![Struct(id.to_vec()), U32(parent as u32), U64(0), message]
    });
    let flat = FlatBuilder::build(vec![
        U8(2),
        Tables(vec![reference("v1", 0)]),
        Tables(vec![reference("main", main)]),
        Absent,
        Tables(snapshots.collect()),
    ]);
    file(IceFileKind::Repository, &flat)
}

fn put(store: &MemoryStore, name: &str, bytes: &[u8]) {
    store.put(&key(name), bytes).unwrap();
}

fn put_manifest(store: &MemoryStore, references: Vec<Vec<FlatField>>) {
    let flat = manifest(MANIFEST, NODE, references);
    let name = format!("manifests/{}", ObjectId(MANIFEST));
    put(store, &name, &file(IceFileKind::Manifest, &flat));
}

fn put_snapshot(store: &MemoryStore, id: [u8; 12], nodes: Vec<Vec<FlatField>>) {
    let flat = snapshot(id, "message", nodes);
    let name = format!("snapshots/{}", ObjectId(id));
    put(store, &name, &file(IceFileKind::Snapshot, &flat));
}

/// Returns a repository with an array of each kind of chunks in the second snapshot.
fn memory() -> Arc<MemoryStore> {
    let store = MemoryStore::default();
    put(&store, "repo", &repository(1));
    put_snapshot(&store, SNAPSHOTS[0], vec![group("/")]);
    let manifests = [(MANIFEST, &[(0, 9), (0, 9)][..])];
    let nodes = vec![group("/"), group("/g"), array("/g/a", NODE, 2, &manifests)];
    put_snapshot(&store, SNAPSHOTS[1], nodes);
    let mut tagged = located(&[1, 3], "file:///data/x.nc", 0, 4);
    tagged.push(Bytes(b"\"other\"".to_vec()));
    put_manifest(
        &store,
        vec![
            inline(&[0, 0], b"inline"),
            native(&[0, 1], CHUNK, 2, 3),
            native(&[0, 2], [9; 12], 0, 1),
            native(&[0, 3], CHUNK, 8, 3),
            located(&[1, 0], "file:///data/x.nc", 1, 4),
            located(&[1, 1], "file:///data/gone.nc", 0, 1),
            located(&[1, 2], "file:///etc/passwd", 0, 1),
            tagged,
            located(&[1, 4], "vcc://nobody/x.nc", 0, 1),
            located(&[1, 5], "x.nc", 0, 1),
        ],
    );
    put(
        &store,
        &format!("chunks/{}", ObjectId(CHUNK)),
        b"0123456789",
    );
    put(&store, "x.nc", b"abcdefgh");
    Arc::new(store)
}

fn open(below: Arc<dyn Store>, wanted: &str) -> Result<IcechunkStore> {
    let place = TargetPlace::of_path(Path::new("/data")).unwrap();
    let targets = below.clone();
    let root = TargetRoot::new(place.clone(), Box::new(move || Ok(targets.clone())));
    IcechunkStore::open(below, SnapshotRef::parse(wanted)?, place, vec![root], None)
}

fn names(store: &dyn Store, prefix: &str) -> Vec<String> {
    let entries = store.list(&key(prefix)).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let end = if entry.kind == EntryKind::Prefix {
                "/"
            } else {
                ""
            };
            entry.name + end
        })
        .collect();
    names.sort();
    names
}

#[test]
fn chunks_are_inline_native_or_virtual() {
    let store = open(memory(), "branch:main").unwrap();
    for (name, value) in [
        ("g/a/c/0/0", &b"inline"[..]),
        ("g/a/c/0/1", b"234"),
        ("g/a/c/1/0", b"bcde"),
    ] {
        assert_eq!(get(&store, name).unwrap().as_deref(), Some(value), "{name}");
        assert_eq!(
            part(&store, name, 1..99).unwrap().unwrap(),
            value[1..],
            "{name}"
        );
        assert_eq!(part(&store, name, 50..99).unwrap().unwrap(), b"", "{name}");
        let stat = store.stat(&key(name)).unwrap().unwrap();
        assert_eq!(
            (stat.kind, stat.size),
            (EntryKind::Value, value.len() as u64)
        );
        let version = store.get(&key(name), 1 << 20, &mut Vec::new()).unwrap();
        assert_eq!(version, Some(stat.version.clone()), "{name}");
        let read = store.get_range(&key(name), 0..1, &mut Vec::new()).unwrap();
        assert_eq!(read, Some(stat), "{name}");
        assert!(store.get(&key(name), 1, &mut Vec::new()).is_err(), "{name}");
    }
    for name in [
        "g/a/c/5/5",
        "g/a/c/9/0",
        "g/a/c/0/0/0",
        "g/a/.zarray",
        "x",
        "g/a/c/0/01",
    ] {
        assert_eq!(get(&store, name).unwrap(), None, "{name}");
        assert_eq!(store.stat(&key(name)).unwrap(), None, "{name}");
    }
}

#[test]
fn chunks_that_cannot_be_read_are_errors_and_no_fill_values() {
    let store = open(memory(), "branch:main").unwrap();
    for (name, errno, why) in [
        ("g/a/c/0/2", libc::EIO, "is missing"),
        ("g/a/c/0/3", libc::EIO, "has 10 bytes"),
        ("g/a/c/1/1", libc::EIO, "is missing"),
        ("g/a/c/1/2", libc::EACCES, "--allow-reference"),
        ("g/a/c/1/3", libc::EIO, "has changed"),
        ("g/a/c/1/4", libc::EACCES, "no such container"),
        ("g/a/c/1/5", libc::EIO, "not a URL"),
    ] {
        let e = get(&store, name).unwrap_err();
        assert_eq!(
            (e.errno(), e.message().contains(why)),
            (errno, true),
            "{name}: {e}"
        );
    }
}

#[test]
fn groups_arrays_and_chunks_are_listed() {
    let store = open(memory(), "branch:main").unwrap();
    assert_eq!(names(&store, ""), ["g/", "zarr.json"]);
    assert_eq!(names(&store, "g"), ["a/", "zarr.json"]);
    assert_eq!(names(&store, "g/a"), ["c/", "zarr.json"]);
    assert_eq!(names(&store, "g/a/c"), ["0/", "1/"]);
    assert_eq!(names(&store, "g/a/c/0"), ["0", "1", "2", "3"]);
    for prefix in ["x", "g/a/c/7", "g/a/x"] {
        let e = store.list(&key(prefix)).err().unwrap();
        assert_eq!(e.kind(), Kind::NotFound, "{prefix}");
    }
    let kind = |name| store.stat(&key(name)).unwrap().map(|stat| stat.kind);
    for name in ["", "g", "g/a", "g/a/c", "g/a/c/0"] {
        assert_eq!(kind(name), Some(EntryKind::Prefix), "{name}");
    }
    assert!(!store.is_writable() && store.lists_all());
}

#[test]
fn a_branch_moves_after_an_opening_and_a_tag_stays() {
    let below = memory();
    let branch = |below: &Arc<MemoryStore>| {
        let head = open(below.clone(), "branch:main").unwrap();
        IceRepositoryStore::of_branch(head, Key::root())
    };
    let main = branch(&below);
    let tag = open(below.clone(), "tag:v1").unwrap();
    assert_eq!(names(&tag, ""), ["zarr.json"]);
    let settled = |store: &IceRepositoryStore| store.settled(&Key::root()).unwrap().unwrap();
    let second = settled(&main);
    put(&below, "repo", &repository(0));
    assert!(
        get(&main, "g/zarr.json").unwrap().is_some(),
        "until a file is opened"
    );
    main.forget(&Key::root());
    assert!(get(&main, "g/zarr.json").unwrap().is_none());
    // what was found before stays
    let first = settled(&main);
    assert_ne!(first, second);
    for (prefix, is_left) in [(&first, false), (&second, true)] {
        let document = prefix.join("g/zarr.json");
        assert_eq!(main.stat(&document).unwrap().is_some(), is_left);
        assert_eq!(main.is_left(&document).unwrap(), is_left);
        assert!(!main.is_left(&Key::root().join("g")).unwrap());
    }
    assert!(main.settled(&second).unwrap().is_none());
    for (settled, lasting) in [
        (&second, ""),
        (&second.join("g/a"), "g/a"),
        (&Key::root().join("g/@x"), "g/@x"),
    ] {
        assert_eq!(IceRepositoryStore::lasting_key(settled), key(lasting));
    }
    // a branch that moves back leaves the other snapshot
    put(&below, "repo", &repository(1));
    assert!(!main.is_left(&second).unwrap() && main.is_left(&first).unwrap());
    // a snapshot that is gone is an error: without one, its chunks would have the fill value
    let other = branch(&below);
    below
        .delete(&key(&format!("snapshots/{}", ObjectId(SNAPSHOTS[0]))))
        .unwrap();
    let e = other.stat(&first.join("g/a/c/0/0")).unwrap_err();
    assert_eq!(e.errno(), libc::EIO, "{e}");
    put_snapshot(&below, SNAPSHOTS[0], vec![group("/")]);
    below.delete(&key("repo")).unwrap();
    assert_eq!(main.stat(&key("zarr.json")).unwrap_err().errno(), libc::EIO);
    assert!(main.stat(&second.join("zarr.json")).unwrap().is_some());
    assert!(tag.stat(&key("zarr.json")).unwrap().is_some());
    let snapshot = format!("snapshot:{}", ObjectId(SNAPSHOTS[1]));
    assert!(
        get(&open(below.clone(), &snapshot).unwrap(), "g/zarr.json")
            .unwrap()
            .is_some()
    );
    for missing in [
        "branch:x",
        "tag:x",
        "snapshot:1CECHNKREP0F1RSTCMT0",
        "branch:main",
    ] {
        let e = open(below.clone(), missing).err().unwrap();
        assert_eq!(e.kind(), Kind::NotFound, "{missing}: {e}");
    }
}

/// The file of the repository, which has a line for each branch, is not read for each of them.
#[test]
fn a_branch_or_tag_more_is_a_snapshot_more_to_read() {
    let reads = |count: u32| {
        let below = MemoryStore::default();
        let id = |n: u32| [&n.to_be_bytes()[..], &[7; 8]].concat().try_into().unwrap();
        for n in 0..count {
            put_snapshot(&below, id(n), vec![group("/")]);
        }
        let snapshots = (0..count).map(|n| {
            let message = Bytes(b"message".to_vec());
            vec![Struct(id(n).to_vec()), U32(u32::MAX), U64(0), message]
        });
        let branches = (0..count).map(|n| reference(&format!("b{n}"), n));
        let flat = FlatBuilder::build(vec![
            U8(2),
            Tables(vec![reference("v1", 0), reference("v2", 0)]),
            Tables(branches.chain([reference("main", 0)]).collect()),
            Absent,
            Tables(snapshots.collect()),
        ]);
        put(&below, "repo", &file(IceFileKind::Repository, &flat));
        let below = Arc::new(FaultyStore::new(Arc::new(below)));
        let all = IceRepositoryStore::of_history(open(below.clone(), "branch:main").unwrap());
        assert_eq!(names(&all, "branch").len(), count as usize + 2);
        for n in 0..count {
            let name = key(&format!("branch/b{n}"));
            let found = all.stat(&name).unwrap().map(|stat| stat.kind);
            assert_eq!(found, Some(EntryKind::Prefix), "{name}");
        }
        let before_tags = below.calls(Operation::Get);
        for name in ["tag/v1/zarr.json", "tag/v2/zarr.json", "tag/v1"] {
            assert!(all.stat(&key(name)).unwrap().is_some(), "{name}");
        }
        assert_eq!(below.calls(Operation::Get), before_tags);
        before_tags
    };
    for count in [10, 20, 40] {
        assert_eq!(reads(count), u64::from(count) + 1, "{count} branches");
    }
}

#[test]
fn missing_and_exchanged_files_are_errors() {
    let below = memory();
    put_snapshot(&below, SNAPSHOTS[1], vec![]);
    let name = format!("snapshots/{}", ObjectId(SNAPSHOTS[0]));
    let other = file(IceFileKind::Snapshot, &snapshot(SNAPSHOTS[1], "", vec![]));
    put(&below, &name, &other);
    let e = open(below.clone(), "tag:v1").err().unwrap();
    assert!(e.message().contains("another snapshot"), "{e}");
    below.delete(&key(&name)).unwrap();
    let e = open(below.clone(), "tag:v1").err().unwrap();
    assert_eq!(
        (e.errno(), e.message().contains(&name)),
        (libc::EIO, true),
        "{e}"
    );

    let below = memory();
    below
        .delete(&key(&format!("manifests/{}", ObjectId(MANIFEST))))
        .unwrap();
    let store = open(below, "branch:main").unwrap();
    let e = get(&store, "g/a/c/0/0").unwrap_err();
    assert_eq!(
        (e.errno(), e.message().contains("/manifests/")),
        (libc::EIO, true),
        "{e}"
    );
}

/// The repositories that the package has written, and what it has read from them.
fn fixtures() -> (PathBuf, json::Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/icechunk");
    let digests = std::fs::read(folder.join("digests.json")).unwrap();
    (folder, json::parse(&digests).unwrap())
}

#[test]
fn repositories_of_the_package_hold_the_nodes_that_it_read() {
    let (folder, digests) = fixtures();
    let mut arrays = 0;
    for (name, repository) in digests.as_object().unwrap() {
        let below = Arc::new(zarrfs_store::DirectoryStore::open(&folder.join(name)).unwrap());
        assert!(IcechunkStore::is_in(&*below).unwrap(), "{name}");
        let ids = |kind: &str| {
            let named = repository[kind].as_object().unwrap().iter();
            named
                .map(|(name, id)| (name.clone(), ObjectId::parse(id.as_str().unwrap()).unwrap()))
                .collect::<Vec<_>>()
        };
        let main = open(below.clone(), "branch:main").unwrap();
        let mut history = IceRepositoryStore::of_snapshot(main, Key::root())
            .history(100)
            .unwrap()
            .unwrap();
        // the package can look it up, and does not list it
        history
            .tags
            .retain(|(tag, _)| tag != "été" || name.starts_with("v2"));
        let sorted = |mut ids: Vec<(String, ObjectId)>| {
            ids.sort();
            ids
        };
        assert_eq!(sorted(history.branches), sorted(ids("branches")), "{name}");
        assert_eq!(sorted(history.tags), sorted(ids("tags")), "{name}");
        for (id, expected) in repository["snapshots"].as_object().unwrap() {
            let store = open(below.clone(), &format!("snapshot:{id}")).unwrap();
            assert_eq!(
                store.commit().message,
                expected["message"].as_str().unwrap(),
                "{name} {id}"
            );
            let mut found = Vec::new();
            documents(&store, "", &mut found);
            found.sort();
            let nodes = ["groups", "arrays"].map(|kind| expected[kind].as_object().unwrap());
            let mut keys: Vec<String> = nodes
                .iter()
                .flat_map(|nodes| nodes.keys())
                .map(|path| {
                    format!("{path}/zarr.json")
                        .trim_start_matches('/')
                        .to_string()
                })
                .collect();
            // the root is shown as a group if it has no document
            if !keys.contains(&"zarr.json".to_string()) {
                keys.push("zarr.json".to_string());
            }
            keys.sort();
            assert_eq!(found, keys, "{name} {id}");
            for path in nodes[1].keys() {
                let path = path.trim_start_matches('/');
                count_chunks(&store, path);
                arrays += 1;
            }
        }
    }
    println!("{arrays} arrays");
    assert!(arrays >= 250);
}

/// Adds the keys of all documents below a prefix.
fn documents(store: &IcechunkStore, prefix: &str, found: &mut Vec<String>) {
    for entry in store.list(&key(prefix)).unwrap() {
        let entry = entry.unwrap();
        let name = key(prefix).join(&entry.name);
        if entry.name == "zarr.json" {
            found.push(name.as_str().to_string());
        } else if entry.kind == EntryKind::Prefix {
            documents(store, name.as_str(), found);
        }
    }
}

/// Checks that each chunk of an array that is listed exists, and returns their number.
fn count_chunks(store: &IcechunkStore, prefix: &str) -> usize {
    let mut count = 0;
    for entry in store.list(&key(prefix)).unwrap() {
        let entry = entry.unwrap_or_else(|e| panic!("{prefix}: {e}"));
        let name = format!("{prefix}/{}", entry.name);
        if entry.kind == EntryKind::Prefix {
            assert_eq!(
                store.stat(&key(&name)).unwrap().unwrap().kind,
                EntryKind::Prefix
            );
            count += count_chunks(store, &name);
        } else {
            count += usize::from(store.stat(&key(&name)).is_ok_and(|stat| stat.is_some()));
        }
    }
    count
}

#[test]
fn containers_are_read_from_the_configuration() {
    let (folder, _) = fixtures();
    let bytes = std::fs::read(folder.join("v2-virtual/repo")).unwrap();
    let flat = ice_file::decode(&bytes, IceFileKind::Repository).unwrap();
    let configuration = flat.root().unwrap().bytes(9, 1 << 20).unwrap().unwrap();
    let prefix = "file:///zarrfs-fixture/virtual/";
    let expected = [("fixture".to_string(), prefix.to_string())];
    assert_eq!(flex::containers(&configuration), expected);
    // damaged ones name other containers or none
    for at in 0..configuration.len() {
        flex::containers(&configuration[..at]);
        for value in [0, 1, 8, 0x24, 0x7f, 0xff] {
            let mut bytes = configuration.clone();
            bytes[at] = value;
            flex::containers(&bytes);
        }
    }
}

#[test]
fn damaged_files_are_errors_and_never_panics() {
    let (folder, _) = fixtures();
    for name in ["v2-history", "v1-split", "v2-locations"] {
        for kind in ["repo", "snapshots", "manifests"] {
            let path = folder.join(name).join(kind);
            let files: Vec<PathBuf> = match std::fs::read_dir(&path) {
                Ok(entries) => entries.map(|entry| entry.unwrap().path()).take(1).collect(),
                Err(_) if path.is_file() => vec![path],
                Err(_) => continue,
            };
            for file in files {
                check_damaged(&std::fs::read(file).unwrap());
            }
        }
    }
}

/// Checks a file, and copies of it with damaged flatbuffers.
fn check_damaged(file: &[u8]) {
    assert!(IcechunkStore::check(file).is_ok());
    let kind = IceFileKind::of(file).unwrap();
    let flat = ice_file::decode(file, kind).unwrap();
    let mut bytes = Vec::new();
    flat.read(0..flat.len(), &mut bytes).unwrap();
    let mut plain = file[..39].to_vec();
    plain[38] = 0;
    plain.extend(bytes);
    assert!(IcechunkStore::check(&plain).is_ok());
    for n in 0..100 {
        // spread over the file
        let at = 39 + n * 7919 % (plain.len() - 43);
        for value in [0u32, 1, 0x7fff_ffff, u32::MAX] {
            let mut damaged = plain.clone();
            damaged[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let _ = IcechunkStore::check(&damaged);
        }
        let _ = IcechunkStore::check(&plain[..at]);
    }
}
