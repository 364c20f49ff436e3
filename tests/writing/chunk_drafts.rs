//! Creating, truncating and replacing chunk files. "A chunk file that is created or truncated and
//! then written from its beginning is a *draft*. ... If it does not have the size of a chunk,
//! `close` is `EINVAL` and nothing changes." Tests compare the mount and the decoded store with
//! bytes that they keep themselves.

use crate::support;
use crate::support::array::{TestArray, zlib};
use crate::support::{Mount, close, copy_tree, errno, is_installed};
use rustix::fs::OFlags;
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Output};

/// Size of a decoded chunk in bytes.
const CHUNK: usize = 3000;

/// Creates an array of three chunks, two of which are stored.
fn array(store: &Path) -> TestArray {
    let mut made = TestArray::with_chunks(store.join("a"), &[3 * CHUNK], &[CHUNK], zlib());
    fs::remove_file(made.file(&[2])).unwrap();
    made.clear(&[2]);
    made
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap()
}

fn creating(path: &Path, exclusive: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if exclusive {
        options.create_new(true).open(path)
    } else {
        options.create(true).truncate(true).open(path)
    }
}

fn assert_unchanged(mount: &Mount, made: &TestArray, what: &str) {
    assert!(
        fs::read(mount.join("a/data.raw")).unwrap() == made.flat,
        "{what}: data.raw"
    );
    assert!(
        made.stored_flat().unwrap() == made.flat,
        "{what}: the store"
    );
    assert!(
        !made.file(&[2]).exists() && !mount.join("a/2").exists(),
        "{what}: a chunk was left behind"
    );
}

#[test]
fn a_chunk_file_that_is_closed_short_changes_nothing() {
    let store = tempfile::tempdir().unwrap();
    let made = array(store.path());
    let mount = Mount::new(store.path(), &[]);
    for (name, exclusive) in [("a/0", false), ("a/2", false), ("a/2", true)] {
        for len in [1, 10, CHUNK - 1] {
            let what = format!("{name}, {len} bytes");
            let file = creating(&mount.join(name), exclusive).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 0, "{what}");
            file.write_all_at(&vec![0x78; len], 0).unwrap();
            // the writer reads back its own bytes
            let mut read = vec![0; len];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read == vec![0x78; len], "{what}");
            assert_eq!(errno(file.sync_all()), "EINVAL", "{what}: fsync");
            assert_eq!(errno(close(file)), "EINVAL", "{what}: close");
            assert_unchanged(&mount, &made, &what);
            let line = format!("closed after {len} of {CHUNK} bytes");
            assert!(mount.stats().contains(&line), "{what}: {}", mount.stats());
        }
    }
    // an encoded chunk may be larger than a decoded one
    for len in [CHUNK + 1, 2 * CHUNK] {
        let file = creating(&mount.join("a/1"), false).unwrap();
        assert_eq!(file.write_at(&vec![1; len], 0).unwrap(), CHUNK);
        assert_eq!(errno(close(file)), "EINVAL");
        let file = creating(&mount.join("a/1"), false).unwrap();
        file.write_all_at(&[1; CHUNK], 0).unwrap();
        assert_eq!(errno(file.write_at(&[1; 16], CHUNK as u64)), "EFBIG");
        assert_eq!(errno(close(file)), "EINVAL");
        assert_unchanged(&mount, &made, "too long");
    }
}

#[test]
fn whole_chunks_and_writes_in_the_middle_are_stored() {
    let store = tempfile::tempdir().unwrap();
    let mut made = array(store.path());
    let mount = Mount::new(store.path(), &[]);
    // after the first piece, the others may come in any order
    let file = creating(&mount.join("a/2"), false).unwrap();
    for at in [0, 2000, 1000] {
        file.write_all_at(&[7; 1000], at).unwrap();
    }
    close(file).unwrap();
    made.flat[2 * CHUNK..].fill(7);
    assert!(made.stored_flat().unwrap() == made.flat);
    // overwrite an existing file without truncating it
    let file = OpenOptions::new()
        .write(true)
        .open(mount.join("a/2"))
        .unwrap();
    file.write_all_at(&[8; 10], 0).unwrap();
    close(file).unwrap();
    made.flat[2 * CHUNK..][..10].fill(8);
    assert!(made.stored_flat().unwrap() == made.flat);
    // a write that does not begin at the first byte makes no draft, also in a new file
    fs::remove_file(mount.join("a/2")).unwrap();
    for name in ["a/2", "a/1"] {
        let file = creating(&mount.join(name), false).unwrap();
        file.write_all_at(&[9; 10], 500).unwrap();
        close(file).unwrap();
    }
    made.flat[2 * CHUNK..].fill(0);
    made.flat[2 * CHUNK + 500..][..10].fill(9);
    made.flat[CHUNK..][..500].fill(0);
    made.flat[CHUNK + 500..][..10].fill(9);
    assert!(made.stored_flat().unwrap() == made.flat);
    // create a file without writing, as touch(1) does
    fs::remove_file(mount.join("a/2")).unwrap();
    assert!(
        run("touch", &[mount.join("a/2").to_str().unwrap()])
            .status
            .success()
    );
    made.flat[2 * CHUNK..].fill(0);
    assert_eq!(made.decoded(&[2]), Some(vec![0; CHUNK]));
    assert!(
        run("touch", &[mount.join("a/2").to_str().unwrap()])
            .status
            .success()
    );
    let truncated = File::create(mount.join("a/1")).unwrap();
    close(truncated).unwrap();
    assert!(made.stored_flat().unwrap() == made.flat);
}

/// The writes of other descriptors to the chunk survive a refused draft, and a full cache stores no
/// part of a draft.
#[test]
fn refusing_a_chunk_file_keeps_the_writes_of_other_descriptors() {
    let store = tempfile::tempdir().unwrap();
    let mut made = array(store.path());
    let mount = Mount::new(store.path(), &["--cache-size", "8K"]);
    let flat = OpenOptions::new()
        .read(true)
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap();
    let [old, new] = ["a/0", "a/2"].map(|name| creating(&mount.join(name), false).unwrap());
    for draft in [&old, &new] {
        draft.write_all_at(&[1; 100], 0).unwrap();
    }
    let in_place = OpenOptions::new()
        .write(true)
        .open(mount.join("a/0"))
        .unwrap();
    in_place.write_all_at(b"other", 50).unwrap();
    made.flat[50..55].copy_from_slice(b"other");
    for at in [20, 2 * CHUNK + 70] {
        flat.write_all_at(b"flat", at as u64).unwrap();
        made.flat[at..at + 4].copy_from_slice(b"flat");
    }
    // the cache holds two chunks
    for round in 0..20u8 {
        flat.write_all_at(&[round; 500], CHUNK as u64).unwrap();
        flat.write_all_at(&[round; 500], 1000).unwrap();
        made.flat[CHUNK..CHUNK + 500].fill(round);
        made.flat[1000..1500].fill(round);
        assert!(
            fs::read(mount.join("a/data.raw")).unwrap() == made.flat,
            "round {round}"
        );
    }
    close(in_place).unwrap();
    assert_eq!(
        (errno(close(old)), errno(close(new))),
        ("EINVAL".into(), "EINVAL".into())
    );
    close(flat).unwrap();
    assert!(fs::read(mount.join("a/data.raw")).unwrap() == made.flat);
    assert!(made.stored_flat().unwrap() == made.flat);
}

/// A file that is removed while it is open does not become a chunk, nor does it overwrite a chunk
/// that another file has stored meanwhile.
#[test]
fn closing_a_removed_chunk_file_stores_nothing() {
    let store = tempfile::tempdir().unwrap();
    let mut made = array(store.path());
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("a/2");
    for len in [0, 100, CHUNK] {
        let file = creating(&path, true).unwrap();
        file.write_all_at(&vec![1; len], 0).unwrap();
        fs::remove_file(&path).unwrap();
        close(file).unwrap();
        assert_unchanged(&mount, &made, "removed");
    }
    for (first, at) in [(0, 0), (10, 500)] {
        let file = creating(&path, true).unwrap();
        let other = OpenOptions::new()
            .write(true)
            .open(mount.join("a/data.raw"))
            .unwrap();
        other.write_all_at(&[7; 50], (2 * CHUNK) as u64).unwrap();
        other.sync_all().unwrap();
        file.write_all_at(&vec![9; first], at).unwrap();
        close(file).unwrap();
        made.flat[2 * CHUNK..][..50].fill(7);
        made.flat[2 * CHUNK + at as usize..][..first].fill(9);
        assert!(
            made.stored_flat().unwrap() == made.flat,
            "written elsewhere"
        );
        fs::remove_file(&path).unwrap();
        made.clear(&[2]);
    }
}

/// A shell opens and closes the file in its own process before the program that it starts writes to
/// it.
#[test]
fn a_short_redirected_output_stores_no_chunk() {
    let store = tempfile::tempdir().unwrap();
    let made = array(store.path());
    let mount = Mount::new(store.path(), &[]);
    for name in ["a/2", "a/0"] {
        let script = format!(
            "head -c 100 /dev/zero | tr '\\0' x > {}",
            mount.join(name).display()
        );
        let _ = run("sh", &["-c", &script]);
        support::wait_for("the file to be released", || {
            mount.stats().contains("closed after 100")
        });
        assert_unchanged(&mount, &made, name);
    }
}

/// Creates the array `text` of two strings, deflated as Python's zlib does. Returns the decoded
/// chunk.
fn array_of_strings(store: &Path, strings: [u8; 2]) -> Vec<u8> {
    let decoded = [
        b"\x02\0\0\0\x01\0\0\0",
        &strings[..1],
        b"\x01\0\0\0",
        &strings[1..],
    ]
    .concat();
    let size = [decoded.len() as u8, 0, !decoded.len() as u8, 0xff];
    let deflated = [
        &b"\x78\x01\x01"[..],
        &size,
        &decoded,
        &adler(&decoded).to_be_bytes(),
    ]
    .concat();
    let document = json!({"zarr_format": 2, "shape": [2], "chunks": [2], "order": "C", "dtype": "|O", "fill_value": "",
        "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "zlib"}});
    fs::create_dir(store.join("text")).unwrap();
    fs::write(store.join("text/.zarray"), document.to_string()).unwrap();
    fs::write(store.join("text/0"), deflated).unwrap();
    decoded
}

/// The chunk files of a store are encoded. Programs that copy them into a mount, in place or by
/// renaming, replace the chunks of an array that has the same codecs, and nothing else.
#[test]
fn encoded_chunks_replace_those_of_an_array_with_the_same_codecs_only() {
    for (program, options) in [("cp", "-r"), ("rsync", "-a")] {
        if !is_installed(program) {
            continue;
        }
        let [store, source] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let made = array(store.path());
        let mut other = array(source.path());
        other.flat[..CHUNK].fill(7);
        fs::write(
            Mount::new(source.path(), &[]).join("a/0"),
            &other.flat[..CHUNK],
        )
        .unwrap();
        array_of_strings(store.path(), *b"ab");
        let text = array_of_strings(source.path(), *b"cd");
        let plain = TestArray::with_chunks(
            store.path().join("plain"),
            &[3 * CHUNK],
            &[CHUNK],
            json!({}),
        );
        fs::write(store.path().join(".zgroup"), r#"{"zarr_format":2}"#).unwrap();
        let mount = Mount::new(store.path(), &[]);
        let copy = |from: &str, to: &str| {
            let from = format!("{}/{from}/", source.path().display());
            run(
                program,
                &[
                    options,
                    "--",
                    &format!("{from}."),
                    mount.join(to).to_str().unwrap(),
                ],
            )
        };
        for name in ["a", "text"] {
            let done = copy(name, name);
            assert!(
                done.status.success(),
                "{program} of {name}: {}",
                String::from_utf8_lossy(&done.stderr)
            );
        }
        assert!(
            fs::read(mount.join("a/data.raw")).unwrap() == other.flat,
            "{program}"
        );
        assert_eq!(fs::read(mount.join("text/0")).unwrap(), text, "{program}");
        for stored in ["a/0", "a/1", "text/0"] {
            let bytes = fs::read(store.path().join(stored)).unwrap();
            assert!(
                bytes == fs::read(source.path().join(stored)).unwrap(),
                "{program}: {stored}"
            );
        }
        assert!(made.stored_flat().unwrap() == other.flat, "{program}");

        // an array that stores its chunks as they are
        fs::remove_file(source.path().join("a/.zarray")).unwrap();
        assert!(!copy("a", "plain").status.success(), "{program}");
        assert!(
            mount.stats().contains("not stored: "),
            "{program}: {}",
            mount.stats()
        );
        assert!(
            fs::read(mount.join("plain/data.raw")).unwrap() == plain.flat,
            "{program}"
        );
        drop(mount);
        assert!(plain.stored_flat().unwrap() == plain.flat, "{program}");
        assert!(support::unfinished_files(store.path()).is_empty());
    }
}

/// An encoded chunk may by chance be as long as the decoded one. Neither reading of it would be
/// right for all programs.
#[test]
fn a_chunk_that_may_be_encoded_or_decoded_is_refused() {
    let store = tempfile::tempdir().unwrap();
    let mut made = TestArray::with_chunks(
        store.path().join("a"),
        &[3 * CHUNK],
        &[CHUNK],
        json!({"compressor": {"id": "zstd"}}),
    );
    for index in 0..3 {
        fs::remove_file(made.file(&[index])).unwrap();
        made.clear(&[index]);
    }
    // a Zstandard frame (RFC 8878) of a raw block and one that repeats a byte 14 times, as often as
    // the frame has bytes beside those of the raw block
    let block = |is_last: usize, kind: usize, len: usize| {
        (is_last | kind << 1 | len << 3).to_le_bytes()[..3].to_vec()
    };
    let size = (CHUNK as u16 - 256).to_le_bytes();
    let raw = [block(0, 0, CHUNK - 14), vec![5; CHUNK - 14]].concat();
    let both = [
        &[0x28, 0xb5, 0x2f, 0xfd, 0x60],
        &size[..],
        &raw,
        &block(1, 1, 14),
        &[6],
    ]
    .concat();
    assert_eq!(both.len(), CHUNK);
    fs::write(made.file(&[1]), &both).unwrap();
    made.flat[CHUNK..2 * CHUNK].copy_from_slice(&[[5; CHUNK - 14].as_slice(), &[6; 14]].concat());
    let mount = Mount::new(store.path(), &[]);
    let file = creating(&mount.join("a/0"), false).unwrap();
    file.write_all_at(&both, 0).unwrap();
    assert_eq!(errno(close(file)), "EINVAL");
    assert!(
        mount
            .stats()
            .contains("may be a decoded chunk or an encoded one"),
        "{}",
        mount.stats()
    );
    fs::write(mount.join("a/x.partial"), &both).unwrap();
    assert_eq!(
        errno(fs::rename(mount.join("a/x.partial"), mount.join("a/2"))),
        "EINVAL"
    );
    fs::remove_file(mount.join("a/x.partial")).unwrap();
    assert!(fs::read(mount.join("a/data.raw")).unwrap() == made.flat);
    assert!(!made.file(&[0]).exists() && !made.file(&[2]).exists());
    // flat bytes are never encoded
    File::options()
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap()
        .write_all_at(&both, 0)
        .unwrap();
    assert!(fs::read(mount.join("a/0")).unwrap() == both);
}

fn adler(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

/// With `--drop-empty-chunks` a missing chunk can still be created by name.
#[test]
fn a_missing_chunk_can_be_created_if_empty_chunks_are_dropped() {
    let store = tempfile::tempdir().unwrap();
    let mut made = array(store.path());
    let mount = Mount::new(store.path(), &["--drop-empty-chunks"]);
    let path = mount.join("a/2");
    let source = store.path().join("chunk.bin");
    fs::write(&source, [5; CHUNK]).unwrap();
    let from = source.to_str().unwrap().to_string();
    let to = path.to_str().unwrap().to_string();
    for (program, args) in [
        ("cp", vec![from.clone(), to.clone()]),
        (
            "dd",
            vec![
                format!("if={from}"),
                format!("of={to}"),
                "bs=700".into(),
                "status=none".into(),
            ],
        ),
        (
            "install",
            vec!["-m".into(), "644".into(), from.clone(), to.clone()],
        ),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let done = run(program, &args);
        assert!(
            done.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        made.flat[2 * CHUNK..].fill(5);
        assert!(made.stored_flat().unwrap() == made.flat, "{program}");
        fs::remove_file(&path).unwrap();
        made.flat[2 * CHUNK..].fill(0);
    }
    // a chunk of fill values is dropped without an error
    assert!(run("touch", &[&to]).status.success());
    fs::write(&source, [0; CHUNK]).unwrap();
    assert!(run("cp", &[&from, &to]).status.success());
    assert!(!made.file(&[2]).exists());
    let file = creating(&path, true).unwrap();
    file.write_all_at(b"late", 100).unwrap();
    file.metadata().unwrap();
    close(file).unwrap();
    made.flat[2 * CHUNK + 100..][..4].copy_from_slice(b"late");
    assert!(made.stored_flat().unwrap() == made.flat);
}

/// tar, mv, install and cp remove a file and create it exclusively.
#[test]
fn programs_can_replace_data_raw_and_headers() {
    let store = tempfile::tempdir().unwrap();
    let mut made = TestArray::with_chunks(store.path().join("a"), &[3 * CHUNK], &[CHUNK], zlib());
    let mount = Mount::new(store.path(), &[]);
    let elsewhere = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let header = fs::read(mount.join("a/data.npy")).unwrap()[..128].to_vec();
    let from = elsewhere.path().to_str().unwrap().to_string();
    let to = mount.join("a").display().to_string();
    let copies: [(&str, &dyn Fn() -> Output); 4] = [
        ("tar", &|| {
            run(
                "sh",
                &[
                    "-c",
                    &format!("tar c -C {from} data.raw data.npy | timeout 60 tar x -C {to}"),
                ],
            )
        }),
        ("mv", &|| {
            run(
                "timeout",
                &[
                    "60",
                    "mv",
                    &format!("{from}/data.raw"),
                    &format!("{from}/data.npy"),
                    &to,
                ],
            )
        }),
        ("install", &|| {
            run(
                "timeout",
                &[
                    "60",
                    "install",
                    "-m",
                    "644",
                    &format!("{from}/data.raw"),
                    &to,
                ],
            )
        }),
        ("cp", &|| {
            run(
                "timeout",
                &[
                    "60",
                    "cp",
                    "--remove-destination",
                    &format!("{from}/data.raw"),
                    &to,
                ],
            )
        }),
    ];
    for (seed, (program, copy)) in copies.iter().enumerate() {
        made.flat = support::array::pattern(seed as u64 + 7, 3 * CHUNK);
        fs::write(format!("{from}/data.raw"), &made.flat).unwrap();
        fs::write(
            format!("{from}/data.npy"),
            [&header[..], &made.flat].concat(),
        )
        .unwrap();
        let done = copy();
        assert!(
            done.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(made.stored_flat().unwrap() == made.flat, "{program}");
        assert!(
            fs::read(mount.join("a/data.raw")).unwrap() == made.flat,
            "{program}"
        );
    }
    // a removed file is absent to every process, and any process may create it exclusively
    fs::remove_file(mount.join("a/data.raw")).unwrap();
    let exists = || {
        run("test", &["-e", &format!("{to}/data.raw")])
            .status
            .success()
    };
    assert!(!exists());
    let script = format!("set -C; cat {from}/data.raw > {to}/data.raw");
    assert!(run("sh", &["-c", &script]).status.success() && exists());
    assert!(made.stored_flat().unwrap() == made.flat);
    fs::remove_file(mount.join("a/data.raw")).unwrap();
    let flags = OFlags::EXCL.bits() as i32;
    let exclusive = |name: &str| {
        OpenOptions::new()
            .write(true)
            .create(true)
            .custom_flags(flags)
            .open(mount.join(name))
    };
    exclusive("a/data.raw").unwrap();
    assert_eq!(errno(exclusive("a/data.raw")), "EEXIST");
    assert_eq!(errno(exclusive("a/data.npy")), "EEXIST");
    copy_tree(&store.path().join("a"), &elsewhere.path().join("copy"));
}

/// Creates an array of v3, of two values of eight bytes each: chunks of eight bytes with a
/// checksum, or shards of two chunks of four bytes.
fn encoded_array(store: &Path, name: &str, has_shards: bool) {
    let mut codecs = json!(["bytes", "crc32c"]);
    if has_shards {
        let index = json!([{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"]);
        let configuration = json!({"chunk_shape": [4], "codecs": codecs, "index_codecs": index});
        codecs = json!([{"name": "sharding_indexed", "configuration": configuration}]);
    }
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": [16], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": codecs});
    fs::create_dir_all(store.join(name).join("c")).unwrap();
    fs::write(store.join(name).join("zarr.json"), document.to_string()).unwrap();
    for key in ["c/0", "c/1"] {
        fs::write(store.join(name).join(key), encoded(&[1; 8], has_shards)).unwrap();
    }
}

/// Encodes a value of eight bytes.
fn encoded(bytes: &[u8; 8], has_shards: bool) -> Vec<u8> {
    let summed = |bytes: &[u8]| [bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
    if !has_shards {
        return summed(bytes);
    }
    let index: Vec<u8> = [0u64, 8, 8, 8]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .collect();
    [summed(&bytes[..4]), summed(&bytes[4..]), summed(&index)].concat()
}

#[test]
fn encoded_values_below_c_are_replaced_as_a_whole_if_they_decode() {
    let store = tempfile::tempdir().unwrap();
    let arrays = [("chunks", false), ("shards", true)];
    arrays
        .iter()
        .for_each(|(name, has_shards)| encoded_array(store.path(), name, *has_shards));
    let mount = Mount::new(store.path(), &[]);
    for (name, has_shards) in arrays {
        let shown = mount.join(name);
        let stored = store.path().join(name);
        let flat = File::open(shown.join("data.raw")).unwrap();
        let read = |offset: u64| {
            let mut bytes = [0; 8];
            flat.read_exact_at(&mut bytes, offset).unwrap();
            bytes
        };
        let valid = |byte: u8| encoded(&[byte; 8], has_shards);
        let assert_old = |what: &str| {
            assert_eq!((read(0), read(8)), ([1; 8], [1; 8]), "{name}: {what}");
            assert!(
                fs::read(stored.join("c/0")).unwrap() == valid(1),
                "{name}: {what}: the store"
            );
        };
        assert_eq!(
            fs::read(shown.join("c/0")).unwrap(),
            valid(1),
            "{name}: programs read what they have encoded"
        );
        // a change in the middle, and a value that is cut off
        let file = OpenOptions::new()
            .write(true)
            .open(shown.join("c/0"))
            .unwrap();
        assert_eq!(errno(file.write_at(b"xx", 2)), "EPERM", "{name}");
        assert_eq!(errno(file.set_len(5)), "EPERM", "{name}");
        close(file).unwrap();
        assert_old("a change in the middle");
        let mut flipped = valid(9);
        flipped[3] ^= 1;
        let len = valid(9).len();
        let wrong = [
            vec![],
            valid(9)[..len - 1].to_vec(),
            [valid(9), vec![0]].concat(),
            flipped,
            vec![9; 8],
        ];
        for bytes in &wrong {
            // create, truncate, rename
            for key in ["c/0", "c/new"] {
                let file = File::create(shown.join(key)).unwrap();
                file.write_all_at(bytes, 0).unwrap();
                if key == "c/0" {
                    assert_eq!(errno(file.sync_all()), "EINVAL", "{name}: {bytes:?}");
                    assert_eq!(errno(close(file)), "EINVAL", "{name}: {bytes:?}");
                } else {
                    close(file).unwrap();
                    assert_eq!(
                        errno(fs::rename(shown.join(key), shown.join("c/0"))),
                        "EINVAL",
                        "{name}: {bytes:?}"
                    );
                    fs::remove_file(shown.join(key)).unwrap();
                }
                assert_old(&format!("{bytes:?} to {key}"));
            }
        }
        assert!(
            mount
                .stats()
                .contains(&format!("not stored: /{name}/c/0: ")),
            "{}",
            mount.stats()
        );
        // keys of no chunk
        assert_eq!(errno(File::create(shown.join("c/2"))), "EINVAL", "{name}");
        assert_eq!(errno(fs::create_dir(shown.join("c/x"))), "EPERM", "{name}");
        // valid values, through each way
        fs::write(shown.join("c/0"), valid(2)).unwrap();
        assert_eq!(read(0), [2; 8], "{name}: readers that are open see it");
        fs::write(shown.join("c/0.part"), valid(3)).unwrap();
        fs::rename(shown.join("c/0.part"), shown.join("c/0")).unwrap();
        assert_eq!((read(0), read(8)), ([3; 8], [1; 8]), "{name}");
        fs::remove_file(shown.join("c/1")).unwrap();
        assert_eq!(read(8), [0; 8], "{name}: its chunks are uninitialized");
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .open(shown.join("c/1"))
            .unwrap();
        std::io::Write::write_all(&mut file, &valid(4)).unwrap();
        close(file).unwrap();
        assert_eq!(
            (read(8), fs::read(stored.join("c/1")).unwrap()),
            ([4; 8], valid(4)),
            "{name}"
        );
        // a chunk that was written is stored before its encoded value is read, and is older than
        // one that is written
        let writer = OpenOptions::new()
            .write(true)
            .open(shown.join("data.raw"))
            .unwrap();
        writer.write_all_at(&[5; 8], 0).unwrap();
        assert_eq!(fs::read(shown.join("c/0")).unwrap(), valid(5), "{name}");
        writer.write_all_at(&[6; 8], 0).unwrap();
        fs::write(shown.join("c/0"), valid(7)).unwrap();
        close(writer).unwrap();
        assert_eq!(
            (read(0), fs::read(stored.join("c/0")).unwrap()),
            ([7; 8], valid(7)),
            "{name}"
        );
        fs::rename(shown.join("c/0"), shown.join("moved")).unwrap();
        assert_eq!(
            (read(0), fs::read(shown.join("moved")).unwrap()),
            ([0; 8], valid(7)),
            "{name}"
        );
    }
    assert!(support::unfinished_files(store.path()).is_empty());
}

#[test]
fn an_encoded_tree_is_copied_onto_an_array_of_the_same_codecs_only() {
    let [store, source] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    encoded_array(store.path(), "a", true);
    encoded_array(store.path(), "b", false);
    encoded_array(source.path(), "a", true);
    fs::write(source.path().join("a/c/1"), encoded(&[8; 8], true)).unwrap();
    let mount = Mount::new(store.path(), &[]);
    let copy = |to: &str| {
        run(
            "cp",
            &[
                "-r",
                &format!("{}/a/.", source.path().display()),
                mount.join(to).to_str().unwrap(),
            ],
        )
    };
    assert!(copy("a").status.success());
    assert_eq!(
        fs::read(mount.join("a/data.raw")).unwrap(),
        [[1; 8], [8; 8]].concat()
    );
    let before = fs::read(store.path().join("b/c/0")).unwrap();
    let output = copy("b");
    assert!(
        !output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(fs::read(mount.join("b/data.raw")).unwrap(), [1; 16]);
    assert_eq!(fs::read(store.path().join("b/c/0")).unwrap(), before);
}

/// "checked when they are closed: ... the old document stays, and `.zarrfs/stats` has the reason",
/// whether or not the program looks at the result of close, and while it has the file open.
#[test]
fn statistics_name_what_was_refused() {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let made = array(store.path());
    let mount = Mount::new(store.path(), &[]);
    let assert_named = |what: &str| {
        assert!(
            mount.stats().contains(&format!("not stored: {what}")),
            "{what}: {}",
            mount.stats()
        )
    };
    for name in [".zattrs", "a/.zarray"] {
        let file = File::create(mount.join(name)).unwrap();
        file.write_all_at(b"{bad", 0).unwrap();
        // another process has the file open, as the shell that redirects output to it
        let other = file.try_clone().unwrap();
        assert_eq!(errno(close(file)), "EINVAL");
        assert_named(&format!("/{name}: not valid JSON"));
        drop(other);
    }
    fs::write(mount.join("a/x.tmp"), b"[bad").unwrap();
    for (from, to, what) in [
        ("a/x.tmp", "a/.zattrs", "/a/.zattrs: not valid JSON"),
        ("a/x.tmp", "a/1", "/a/1: 4 bytes"),
    ] {
        assert_eq!(
            errno(fs::rename(mount.join(from), mount.join(to))),
            "EINVAL"
        );
        assert_named(what);
    }
    assert_eq!(
        errno(fs::hard_link(mount.join("a/x.tmp"), mount.join("a/2"))),
        "EINVAL"
    );
    assert_named("/a/2: 4 bytes");
    assert!(fs::read(mount.join("a/data.raw")).unwrap() == made.flat);
}
