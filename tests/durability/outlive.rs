//! "A mount outlives its daemon": programs go on when the daemon is killed, and when another
//! version takes over. Bytes that were written and not stored are lost, and exactly the files that
//! wrote them report it. ZARRFS_OUTLIVE_KILLS sets how often a daemon is killed.

use crate::exercisers;
use crate::support::array::TestArray;
use crate::support::daemon::Daemon;
use crate::support::shared_map::SharedMap;
use crate::support::{
    ZARRFS, announce, close, copy_tree, env_number, env_path, failure, memory_directory,
    open_for_writing, random, test_data, text, wait_for, with_timeout, zarrfs,
};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const CHUNK: usize = 4096;
const CHUNKS: usize = 16;

/// Options of a mount whose daemon may be killed as often as a test likes.
const OUTLIVED: [&str; 2] = ["--restarts", "1000000"];

/// Returns whether the kernel sends requests again.
fn is_outlived(daemon: &Daemon) -> bool {
    let stats = fs::read_to_string(daemon.path().join(".zarrfs/stats")).unwrap();
    let is_outlived = daemon.pid() != daemon.holder();
    assert_eq!(
        is_outlived,
        stats.contains("\noutlives_daemon      yes\n"),
        "{stats}"
    );
    if !is_outlived {
        println!("skipped: the mount does not outlive its daemon here\n{stats}");
    }
    is_outlived
}

/// Kills the daemon, and waits until another one has taken its place.
pub fn kill(daemon: &Daemon) {
    let killed = daemon.pid();
    kill_process(killed, Signal::KILL).unwrap();
    wait_for("a successor", || {
        daemon.pid() != killed && daemon.pid() != daemon.holder()
    });
}

/// A store with arrays of bytes, in chunks that are compressed.
fn store(directory: &Path, names: &[&str]) -> HashMap<String, TestArray> {
    fs::write(directory.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let array = |name: &&str| {
        let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
        let shape = [CHUNKS * CHUNK];
        let array = TestArray::with_chunks(directory.join(name), &shape, &[CHUNK], zlib);
        (name.to_string(), array)
    };
    names.iter().map(array).collect()
}

/// Creates an array of `count` chunks of `size` bytes in shards of eight, and returns its path.
fn sharded_array(directory: &Path, count: usize, size: usize) -> PathBuf {
    let path = directory.join("s.zarr");
    let [shape, chunk, shard] = [count * size, size, 8 * size].map(|size| size.to_string());
    let args = ["create", text(&path), "--shape", &shape, "--dtype", "u1"];
    let more = ["--chunks", &chunk, "--shards", &shard];
    let created = zarrfs(&[&args[..], &more, &["--zarr-format", "3"]].concat());
    assert!(created.status.success(), "{created:?}");
    path
}

/// Runs `work` again and again on a thread, while `kills` are made. Returns how often it ran.
fn while_killed(daemon: &Daemon, works: Vec<Box<dyn FnMut(usize) + Send>>) -> Vec<usize> {
    let kills = env_number("ZARRFS_OUTLIVE_KILLS", 12);
    let seed = env_number("ZARRFS_SEED", 1);
    let mut random = random(seed);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let run = |mut work: Box<dyn FnMut(usize) + Send>| {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut n = 0;
                while !is_over.load(Ordering::Relaxed) {
                    work(n);
                    n += 1;
                }
                n
            })
        };
        let threads: Vec<_> = works.into_iter().map(run).collect();
        for _ in 0..kills {
            thread::sleep(Duration::from_micros(random(100_000) as u64));
            if threads.iter().any(|thread| thread.is_finished()) {
                break;
            }
            kill(daemon);
        }
        is_over.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// "Programs that read wait for a moment, and go on": with open files, maps and directories.
#[test]
fn readers_do_not_notice_that_the_daemon_is_killed() {
    let directory = memory_directory();
    let arrays = store(directory.path(), &["a", "b"]);
    for options in [&["--read-only"][..], &[]] {
        let daemon = Daemon::start(directory.path(), &[&OUTLIVED[..], options].concat());
        if !is_outlived(&daemon) {
            return;
        }
        let expected = arrays["a"].stored_flat().unwrap();
        let path = daemon.path().join("a/data.raw");
        let root = daemon.path();
        let open = File::open(&path).unwrap();
        let map = SharedMap::read_only(&File::open(&path).unwrap());
        let chunk = root.join("b/3");
        let b = arrays["b"].chunk(&[3]);
        let mut next = random(7);
        let again = expected.clone();
        let works: Vec<Box<dyn FnMut(usize) + Send>> = vec![
            Box::new({
                let expected = expected.clone();
                move |_| assert_eq!(fs::read(&path).unwrap(), expected)
            }),
            Box::new(move |_| {
                let at = next(expected.len() - 100);
                let mut bytes = [0; 100];
                open.read_exact_at(&mut bytes, at as u64).unwrap();
                assert_eq!(bytes, expected[at..at + 100]);
            }),
            Box::new(move |n| {
                let at = n * 977 % again.len();
                assert_eq!(map.get(at), again[at]);
            }),
            Box::new(move |_| {
                for array in ["a", "b"] {
                    let names = crate::support::names(&root.join(array));
                    assert!(
                        names.contains("data.raw") && names.contains("15"),
                        "{names:?}"
                    );
                }
            }),
            Box::new(move |_| assert_eq!(fs::read(&chunk).unwrap(), b)),
        ];
        let runs = while_killed(&daemon, works);
        assert!(runs.iter().all(|runs| *runs > 0), "{runs:?}");
        assert!(daemon.unmount().success());
    }
}

/// A directory that is read goes on after the name that was read last, also if names came and went
/// meanwhile.
#[test]
fn each_name_of_a_directory_is_read_once() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let name = |n: usize| format!("{n:04}-{}", "x".repeat(120));
    for n in 0..400 {
        fs::write(directory.path().join(name(n)), "").unwrap();
    }
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let mut entries = fs::read_dir(daemon.path()).unwrap();
    let mut read = |count: usize| -> Vec<String> {
        let names = entries.by_ref().take(count);
        names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    let mut names = read(100);
    // a name that was read goes, so that all later ones have another position
    let gone = names.iter().find(|name| name.contains("xx")).unwrap();
    fs::remove_file(directory.path().join(gone)).unwrap();
    kill(&daemon);
    names.extend(read(10_000));
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(count, names.len(), "a name came twice");
    let missing: Vec<String> = (0..400)
        .map(name)
        .filter(|name| !names.contains(name))
        .collect();
    assert_eq!(missing, [] as [String; 0]);
}

/// The bytes of the blocks of a file that were written and synced.
type Acknowledged = HashMap<usize, u8>;

/// "Nothing that fsync has acknowledged is lost, and the file that wrote reports what is."
#[test]
fn acknowledged_bytes_are_stored_or_their_loss_is_reported() {
    const BLOCK: usize = 1000;
    let directory = memory_directory();
    let arrays = store(directory.path(), &["a", "b"]);
    let daemon = Daemon::start(
        directory.path(),
        &[&OUTLIVED[..], &["--cache-size", "64K"]].concat(),
    );
    if !is_outlived(&daemon) {
        return;
    }
    let writer = |name: &str, seed| -> Box<dyn FnMut(usize) + Send> {
        let path = daemon.path().join(name).join("data.raw");
        let mut next = random(seed);
        let mut known = Acknowledged::default();
        Box::new(move |_| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            let mut written = HashMap::new();
            for _ in 0..1 + next(6) {
                let (block, byte) = (next(CHUNKS * CHUNK / BLOCK), next(256) as u8);
                file.write_all_at(&[byte; BLOCK], (block * BLOCK) as u64)
                    .unwrap();
                written.insert(block, byte);
            }
            let synced = if next(2) == 0 {
                file.sync_data()
            } else {
                Ok(())
            };
            match synced.and(close(file)) {
                Ok(()) => known.extend(written),
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::EIO), "{e}");
                    known.retain(|block, _| !written.contains_key(block));
                }
            }
            let bytes = fs::read(&path).unwrap();
            for (block, byte) in &known {
                let found = &bytes[block * BLOCK..(block + 1) * BLOCK];
                assert!(found.iter().all(|found| found == byte), "block {block}");
            }
        })
    };
    let runs = while_killed(&daemon, vec![writer("a", 1), writer("b", 2)]);
    assert!(runs.iter().all(|runs| *runs > 0), "{runs:?}");
    let shown = fs::read(daemon.path().join("a/data.raw")).unwrap();
    assert!(daemon.unmount().success());
    assert_eq!(arrays["a"].stored_flat().unwrap(), shown);
    let checked = zarrfs(&["check", "--deep", text(directory.path())]);
    assert!(checked.status.success(), "{checked:?}");
}

/// "Exactly the files that wrote report a loss, at each close and fsync": no reader, no file whose
/// bytes are stored, and no file that is opened later.
#[test]
fn only_files_whose_bytes_are_lost_report_it() {
    let directory = memory_directory();
    let arrays = store(directory.path(), &["lost", "synced", "read"]);
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let path = |name: &str| daemon.path().join(name).join("data.raw");
    let [lost, synced] = ["lost", "synced"].map(|name| open_for_writing(&path(name)));
    let reader = File::open(path("read")).unwrap();
    let other = open_for_writing(&path("lost"));
    let document = daemon.path().join("lost/.zattrs");
    let mut draft = File::create(&document).unwrap();
    draft.write_all(br#"{"a": "#).unwrap();
    let mut created = File::create(daemon.path().join("note")).unwrap();
    created.write_all(b"kept").unwrap();
    lost.write_all_at(&[1; 10], 0).unwrap();
    synced.write_all_at(&[2; 10], 0).unwrap();
    synced.sync_all().unwrap();
    kill(&daemon);
    for _ in 0..2 {
        assert_eq!(lost.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    let again = lost.try_clone().unwrap();
    assert_eq!(close(again).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(close(lost).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(close(draft).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(!document.exists(), "no part of a document is stored");
    synced.write_all_at(&[3; 10], 10).unwrap();
    close(synced).unwrap();
    close(other).unwrap();
    let mut bytes = [0; 10];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, arrays["read"].stored_flat().unwrap()[..10]);
    close(reader).unwrap();
    // a file of the store itself loses nothing
    created.write_all(b" too").unwrap();
    close(created).unwrap();
    assert_eq!(
        fs::read(directory.path().join("note")).unwrap(),
        b"kept too"
    );
    let later = open_for_writing(&path("lost"));
    later.write_all_at(&[4; 10], 0).unwrap();
    close(later).unwrap();
    assert!(daemon.unmount().success());
    assert_eq!(arrays["lost"].stored_flat().unwrap()[..10], [4; 10]);
    assert_eq!(
        arrays["synced"].stored_flat().unwrap()[..20],
        [[2; 10], [3; 10]].concat()
    );
}

/// "Each request that changes bytes is a write": also one that makes zeros.
#[test]
fn zeros_that_are_lost_are_reported() {
    let directory = memory_directory();
    store(directory.path(), &["punched", "extended"]);
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let path = |name: &str| daemon.path().join(name).join("data.raw");
    let punched = open_for_writing(&path("punched"));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&punched, punch, 10, 100).unwrap();
    let extended = File::create(path("extended")).unwrap();
    extended.set_len(100).unwrap();
    kill(&daemon);
    for file in [punched, extended] {
        assert_eq!(close(file).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    assert!(daemon.unmount().success());
}

/// A container holds records until its header counts them, and a header of text holds what was written until the
/// close: no array has these bytes.
#[test]
fn bytes_that_a_container_or_header_holds_are_reported() {
    let directory = memory_directory();
    let array = directory.path().join("v");
    let document = json!({"zarr_format": 2, "shape": [3, 4], "chunks": [3, 4], "dtype": "<i2",
        "compressor": null, "filters": null, "fill_value": 7, "order": "C"});
    fs::create_dir(&array).unwrap();
    fs::write(directory.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    fs::write(array.join(".zarray"), document.to_string()).unwrap();
    fs::write(
        array.join(".zattrs"),
        r#"{"_ARRAY_DIMENSIONS": ["t", "x"]}"#,
    )
    .unwrap();
    let shown = [
        "--headers",
        "all",
        "--containers",
        "nc",
        "--resize",
        "--netcdf-record",
        "t",
    ];
    let daemon = Daemon::start(directory.path(), &[&OUTLIVED[..], &shown].concat());
    if !is_outlived(&daemon) {
        return;
    }
    let container = daemon.path().join("dataset.nc");
    let record = [0, 1, 0, 2, 0, 3, 0, 4];
    let append = || {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&container)
            .unwrap();
        let end = file.metadata().unwrap().len();
        file.write_all_at(&record, end).unwrap();
        file
    };
    let count = |file: &File, records: u32| file.write_all_at(&records.to_be_bytes(), 4);

    let held = append();
    let (code, said) = failure(&zarrfs(&["upgrade", text(&daemon.path())]));
    assert!(code == 1 && said.contains("dataset.nc"), "{said}");
    count(&held, 4).unwrap();
    close(held).unwrap();
    let stored = fs::read(daemon.path().join("v/data.raw")).unwrap();
    assert_eq!(stored[24..], [1, 0, 2, 0, 3, 0, 4, 0]);

    let held = append();
    let header = daemon.path().join("v/data.raw.hdr");
    let written = fs::read(&header).unwrap();
    let in_header = open_for_writing(&header);
    in_header
        .write_all_at(&written.to_ascii_uppercase(), 0)
        .unwrap();
    let emptied = File::create(daemon.path().join("v/data.vrt")).unwrap();
    kill(&daemon);
    assert_eq!(count(&held, 5).unwrap_err().raw_os_error(), Some(libc::EIO));
    for file in [held, in_header, emptied] {
        assert_eq!(close(file).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    // no record of fill values
    assert_eq!(fs::read(daemon.path().join("v/data.raw")).unwrap(), stored);
    assert!(daemon.unmount().success());
}

/// A chunk file that a program has emptied takes an encoded chunk, also if another daemon serves it then.
#[test]
fn an_emptied_chunk_file_takes_an_encoded_chunk_from_any_daemon() {
    let directory = memory_directory();
    let arrays = store(directory.path(), &["a"]);
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let array = &arrays["a"];
    let expected = array.stored_flat().unwrap();
    for (chunk, is_killed) in [(0, true), (1, false)] {
        let name = TestArray::chunk_name(&[chunk]);
        let mut file = File::create(daemon.path().join("a").join(name)).unwrap();
        // as a shell does before it starts the program whose output it redirects
        close(file.try_clone().unwrap()).unwrap();
        if is_killed {
            kill(&daemon);
        } else {
            let upgraded = zarrfs(&["upgrade", text(&daemon.path()), "--program", ZARRFS]);
            assert!(upgraded.status.success(), "{upgraded:?}");
        }
        let encoded = array.encoded(&[chunk]);
        assert!(encoded.len() < CHUNK);
        file.write_all(&encoded).unwrap();
        close(file).unwrap();
    }
    assert!(daemon.unmount().success());
    assert_eq!(array.stored_flat().unwrap(), expected);
}

/// A document that a program has emptied, and not yet written, has its former content in a successor: what is
/// written next must not be laid over it.
#[test]
fn a_document_that_was_emptied_reports_that_the_daemon_was_killed() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let former = br#"{"history": "measured"}"#;
    fs::write(directory.path().join("a/.zattrs"), former).unwrap();
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let shown = daemon.path().join("a/.zattrs");
    let file = File::create(&shown).unwrap();
    kill(&daemon);
    let same_length = br#"{"history": "modelled"}"#;
    let written = file.write_all_at(same_length, 0);
    let closed = close(file);
    assert_eq!(
        written.or(closed).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert_eq!(fs::read(&shown).unwrap(), former);
    fs::write(&shown, same_length).unwrap();
    assert!(daemon.unmount().success());
    let stored = fs::read(directory.path().join("a/.zattrs")).unwrap();
    assert_eq!(stored, same_length);
}

/// "A successor may be killed at any time, also before it serves."
#[test]
fn a_loss_is_reported_also_if_a_successor_is_killed_while_it_starts() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let mut random = random(env_number("ZARRFS_SEED", 1));
    for round in 0..8 {
        let file = open_for_writing(&daemon.path().join("a/data.raw"));
        file.write_all_at(&[round; 10], 0).unwrap();
        kill(&daemon);
        thread::sleep(Duration::from_micros(random(60_000) as u64));
        kill(&daemon);
        assert_eq!(
            close(file).unwrap_err().raw_os_error(),
            Some(libc::EIO),
            "round {round}"
        );
    }
    assert!(daemon.unmount().success());
}

/// "No change of a name is made twice": each of these would fail the second time.
#[test]
fn names_are_created_renamed_and_removed_once() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let worker = |k: usize| -> Box<dyn FnMut(usize) + Send> {
        let root = daemon.path();
        Box::new(move |n| {
            let group = root.join(format!("g{k}-{n}"));
            fs::create_dir(&group).unwrap();
            let [first, second] = ["f", "g"].map(|name| group.join(name));
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&first)
                .unwrap();
            file.write_all(b"hello").unwrap();
            close(file).unwrap();
            let again = OpenOptions::new().write(true).create_new(true).open(&first);
            assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
            fs::rename(&first, &second).unwrap();
            assert_eq!(fs::read(&second).unwrap(), b"hello");
            fs::remove_file(&second).unwrap();
            assert_eq!(
                fs::remove_file(&second).unwrap_err().kind(),
                ErrorKind::NotFound
            );
            let other = fs::create_dir(&group).unwrap_err();
            assert_eq!(other.kind(), ErrorKind::AlreadyExists);
            fs::remove_dir(&group).unwrap();
        })
    };
    let runs = while_killed(&daemon, (0..3).map(worker).collect());
    assert!(runs.iter().all(|runs| *runs > 0), "{runs:?}");
    assert!(daemon.unmount().success());
}

/// "What a program has made and removed decides what it finds, also after the daemon's death."
#[test]
fn programs_that_write_nodes_find_what_they_expect() {
    let directory = memory_directory();
    let root = json!({"zarr_format": 3, "node_type": "group", "attributes": {}});
    fs::write(directory.path().join("zarr.json"), root.to_string()).unwrap();
    let daemon = Daemon::start(directory.path(), &[&OUTLIVED[..], &["--resize"]].concat());
    if !is_outlived(&daemon) {
        return;
    }
    let path = daemon.path().join("a");
    // a new directory shows no document until one is written
    fs::create_dir(&path).unwrap();
    kill(&daemon);
    let document = json!({
        "zarr_format": 3, "node_type": "array", "shape": [8, 4], "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 7, "attributes": {},
        "codecs": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]
    });
    let mut file = File::create_new(path.join("zarr.json")).unwrap();
    file.write_all(document.to_string().as_bytes()).unwrap();
    close(file).unwrap();
    // appended bytes begin where the earlier ones end; for the thread that may be a copying one, the
    // file does not exist yet
    let flat = path.join("data.raw");
    let append = || OpenOptions::new().append(true).open(&flat).unwrap();
    let mut file = thread::scope(|scope| scope.spawn(append).join().unwrap());
    file.write_all(&[1; 2]).unwrap();
    file.sync_all().unwrap();
    kill(&daemon);
    assert_eq!(file.metadata().unwrap().len(), 34);
    file.write_all(&[2; 4]).unwrap();
    close(file).unwrap();
    let expected = [vec![7; 32], vec![1; 2], vec![2; 4], vec![7; 2]].concat();
    wait_for("the last row to be padded", || {
        let read = || fs::read(&flat).unwrap() == expected;
        thread::scope(|scope| scope.spawn(read).join().unwrap())
    });
    // a file that was unlinked before it was stored is not created again
    let chunk = path.join("c/0/0");
    fs::create_dir_all(chunk.parent().unwrap()).unwrap();
    let mut file = File::create_new(&chunk).unwrap();
    file.write_all(b"x").unwrap();
    fs::remove_file(&chunk).unwrap();
    kill(&daemon);
    assert!(!chunk.exists());
    assert!(close(file).is_err());
    assert!(!directory.path().join("a/c/0/0").exists());
    // a program that removes a tree finds it empty in the end
    for name in ["zarr.json", "c/2/0", "c"] {
        let removed = match path.join(name) {
            file if file.is_file() => fs::remove_file(file),
            level => fs::remove_dir_all(level),
        };
        removed.unwrap_or_else(|e| panic!("{name}: {e}"));
        kill(&daemon);
    }
    fs::remove_dir(&path).unwrap();
    assert!(daemon.unmount().success());
    assert!(!directory.path().join("a").exists());
}

/// Programs that copy, list and remove whole trees go on. One that has written may fail with the
/// error that says so, and with no other.
#[test]
fn programs_go_on() {
    let directory = memory_directory();
    let arrays = store(directory.path(), &["a"]);
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let run = |program: &str, args: &[&str]| -> bool {
        let output = Command::new(program).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let is_loss = said.contains("Input/output error");
        assert!(
            output.status.success() || is_loss,
            "{program} {args:?}: {said}"
        );
        output.status.success()
    };
    let expected = arrays["a"].stored_flat().unwrap();
    let root = daemon.path();
    let stored = directory.path().join("a");
    let copied = memory_directory();
    let works: Vec<Box<dyn FnMut(usize) + Send>> = vec![
        Box::new({
            let root = root.clone();
            move |n| {
                let copy = root.join(format!("copy{n}"));
                if run("cp", &["-a", text(&stored), text(&copy)]) {
                    assert_eq!(fs::read(copy.join("data.raw")).unwrap(), expected);
                }
                assert!(run("rm", &["-r", text(&copy)]));
            }
        }),
        Box::new({
            let array = root.join("a");
            move |n| {
                let copy = copied.path().join(n.to_string());
                assert!(run("cp", &["-a", text(&array), text(&copy)]));
                assert!(run("diff", &["-r", text(&array), text(&copy)]));
            }
        }),
        Box::new({
            let array = root.join("a");
            move |_| assert!(run("ls", &["-lR", text(&array)]))
        }),
    ];
    let runs = while_killed(&daemon, works);
    assert!(runs.iter().all(|runs| *runs > 0), "{runs:?}");
    assert!(daemon.unmount().success());
}

/// "After the third death in a minute the mount ends, and the log says why", or after as many as
/// --restarts permits.
#[test]
fn a_daemon_that_is_killed_again_and_again_ends_the_mount() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let mut daemon = Daemon::start(directory.path(), &[]);
    if !is_outlived(&daemon) {
        return;
    }
    let file = File::open(daemon.path().join("a/data.raw")).unwrap();
    kill(&daemon);
    kill(&daemon);
    kill_process(daemon.pid(), Signal::KILL).unwrap();
    let ended = daemon.wait().unwrap();
    assert_eq!(ended.code(), Some(1));
    let why = "for the 3rd time in a minute: the mount ends";
    assert!(daemon.log().contains(why), "{}", daemon.log());
    assert!(file.read_at(&mut [0; 9], 0).is_err() || file.sync_all().is_err());
    assert!(fs::read_dir(daemon.path()).is_err());
}

/// The command of `zarrfs run` goes on, too.
#[test]
fn a_command_does_not_notice_that_the_daemon_is_killed() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let script = r#"
        exec 3<{}/a/data.raw
        head -c 100 <&3 | wc -c
        for _ in 1 2; do
            grep -q '"outlives_daemon": *"yes"' {}/.zarrfs/stats.json || exit 77
            kill -9 $(grep -oE '"pid": *[0-9]+' {}/.zarrfs/stats.json | grep -o '[0-9]*')
            cat {}/a/data.raw | wc -c
        done
        head -c 100 <&3 | wc -c
        printf kept 1<>{}/a/data.raw
    "#;
    let output = zarrfs(&["run", text(directory.path()), "--", "sh", "-c", script]);
    match output.status.code() {
        // no namespaces, or an older kernel
        Some(6 | 77) => return println!("skipped: {output:?}"),
        code => assert_eq!(code, Some(0), "{output:?}"),
    }
    let size = (CHUNKS * CHUNK).to_string();
    let lines: Vec<_> = str::from_utf8(&output.stdout).unwrap().lines().collect();
    assert_eq!(lines, ["100", &size, &size, "100"]);
    let stored = zarrfs(&["cat", text(&directory.path().join("a")), "--length", "4"]);
    assert_eq!(stored.stdout, b"kept");
}

/// "With --no-outlive the mount ends with its daemon."
#[test]
fn a_mount_can_end_with_its_daemon() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let mut daemon = Daemon::start(directory.path(), &["--no-outlive"]);
    let stats = fs::read_to_string(daemon.path().join(".zarrfs/stats")).unwrap();
    assert!(
        stats.contains("outlives_daemon      no: --no-outlive\n"),
        "{stats}"
    );
    assert_eq!(daemon.pid(), daemon.holder());
    let (code, said) = failure(&zarrfs(&["upgrade", text(&daemon.path())]));
    assert!(
        code == 1 && said.contains("(no: --no-outlive)"),
        "{code} {said}"
    );
    kill_process(daemon.pid(), Signal::KILL).unwrap();
    daemon.wait();
    assert!(fs::read_dir(daemon.path()).is_err());
}

/// "Killing the process that holds the mount ends the mount, and everything is stored."
#[test]
fn killing_the_holder_ends_the_mount_and_stores_everything() {
    let directory = memory_directory();
    let arrays = store(directory.path(), &["a"]);
    let mut daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let file = open_for_writing(&daemon.path().join("a/data.raw"));
    file.write_all_at(&[7; 100], 50).unwrap();
    let serving = daemon.pid();
    kill_process(daemon.holder(), Signal::KILL).unwrap();
    daemon.wait();
    wait_for("the end of the daemon", || !is_running(serving));
    drop(file);
    assert_eq!(arrays["a"].stored_flat().unwrap()[50..150], [7; 100]);
}

fn is_running(process: Pid) -> bool {
    let status = format!("/proc/{}/status", process.as_raw_nonzero());
    fs::read_to_string(status).is_ok_and(|status| !status.contains("State:\tZ"))
}

/// Returns the program that serves a mount.
fn program_of(daemon: &Daemon) -> PathBuf {
    fs::read_link(format!("/proc/{}/exe", daemon.pid().as_raw_nonzero())).unwrap()
}

/// "`zarrfs upgrade` replaces the daemon of a mount that is used": nothing is lost, and no file has
/// to be opened again.
#[test]
fn another_version_takes_over_while_the_mount_is_used() {
    /// Number of places that are written in turn.
    const BLOCKS: usize = 80;
    let directory = memory_directory();
    let arrays = store(directory.path(), &["a", "b", "c"]);
    let programs = tempfile::tempdir().unwrap();
    let copy = programs.path().join("zarrfs-new");
    fs::copy(ZARRFS, &copy).unwrap();
    let daemon = Daemon::start(directory.path(), &["--cache-size", "64K"]);
    if !is_outlived(&daemon) {
        return;
    }
    let path = |name: &str| daemon.path().join(name).join("data.raw");
    let expected = arrays["a"].stored_flat().unwrap();
    let writer = open_for_writing(&path("b"));
    // a truncated file keeps its size
    let mut truncated = File::create(path("c")).unwrap();
    truncated.write_all(&[5; 1000]).unwrap();
    let mut entries = fs::read_dir(daemon.path()).unwrap();
    entries.next().unwrap().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut reads = 0;
            while !is_over.load(Ordering::Relaxed) || reads == 0 {
                assert_eq!(fs::read(path("a")).unwrap(), expected);
                reads += 1;
            }
        });
        for n in 0..env_number("ZARRFS_UPGRADES", 4) as usize {
            writer
                .write_all_at(&[n as u8; 777], (n % BLOCKS * 777) as u64)
                .unwrap();
            let program = if n % 2 == 0 {
                copy.as_path()
            } else {
                Path::new(ZARRFS)
            };
            let mountpoint = daemon.path();
            let args = ["upgrade", text(&mountpoint), "--program", text(program)];
            let upgraded = zarrfs(&args);
            assert!(upgraded.status.success(), "{upgraded:?}\n{}", daemon.log());
            assert_eq!(program_of(&daemon), fs::canonicalize(program).unwrap());
            assert_eq!(truncated.metadata().unwrap().len(), 1000);
        }
        is_over.store(true, Ordering::Relaxed);
        reading.join().unwrap();
    });
    truncated.write_all(&[6; 10]).unwrap();
    assert_eq!(truncated.metadata().unwrap().len(), 1010);
    close(truncated).unwrap();
    assert!(entries.count() >= 3);
    close(writer).unwrap();
    // the new program starts the next daemon, too
    kill(&daemon);
    assert!(daemon.unmount().success());
    let stored = arrays["b"].stored_flat().unwrap();
    let upgrades = env_number("ZARRFS_UPGRADES", 4) as usize;
    for n in upgrades.saturating_sub(BLOCKS)..upgrades {
        let at = n % BLOCKS * 777;
        assert_eq!(stored[at..at + 777], [n as u8; 777]);
    }
    let stored = arrays["c"].stored_flat().unwrap();
    assert_eq!(stored[..1010], [vec![5; 1000], vec![6; 10]].concat());
}

/// "If the new program can't take over, the former one goes on, and says why."
#[test]
fn a_program_that_can_not_take_over_changes_nothing() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let programs = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(directory.path(), &[]);
    if !is_outlived(&daemon) {
        return;
    }
    let mut file = File::open(daemon.path().join("a/data.raw")).unwrap();
    let script = |name: &str, text: &str| {
        let path = programs.path().join(name);
        fs::write(
            &path,
            format!("#!/bin/sh\n[ \"$1\" = --version ] && echo zarrfs 9 && exit\n{text}\n"),
        )
        .unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    };
    let other = programs.path().join("other");
    fs::write(&other, "").unwrap();
    for (program, why) in [
        (
            script("fails", "exit 3"),
            "the new program has ended with code 3",
        ),
        (
            script("ends", "exit 0"),
            "the new program has ended with code 0",
        ),
        (
            script("dies", "kill -9 $$"),
            "the new program was killed (signal 9)",
        ),
        (other, "other"),
        (programs.path().join("missing"), "missing"),
    ] {
        let mountpoint = daemon.path();
        let args = ["upgrade", text(&mountpoint), "--program", text(&program)];
        let (code, said) = failure(&zarrfs(&args));
        assert!(code == 1 && said.contains(why), "{code} {said}");
        assert_eq!(program_of(&daemon), fs::canonicalize(ZARRFS).unwrap());
        file.read_exact(&mut [0; 100]).unwrap();
    }
    // a document that is being written would be lost
    let mut draft = File::create(daemon.path().join("a/.zattrs")).unwrap();
    draft.write_all(b"{").unwrap();
    let (code, said) = failure(&zarrfs(&["upgrade", text(&daemon.path())]));
    assert!(
        code == 1 && said.contains("a/.zattrs") && said.contains("being written"),
        "{said}"
    );
    draft.write_all(b"}").unwrap();
    close(draft).unwrap();
    let upgraded = zarrfs(&["upgrade", text(&daemon.path())]);
    assert!(upgraded.status.success(), "{upgraded:?}");
    close(file).unwrap();
    assert!(daemon.unmount().success());
}

/// A chunk of a shard waits for its object, and is lost with the daemon as other bytes are.
#[test]
fn chunks_that_wait_for_their_shard_are_reported() {
    let directory = memory_directory();
    let path = sharded_array(directory.path(), 8, 512);
    let daemon = Daemon::start(&path, &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let data = daemon.path().join("data.raw");
    let writer = open_for_writing(&data);
    // a whole chunk is encoded, and waits
    writer.write_all_at(&[1; 512], 512).unwrap();
    thread::sleep(Duration::from_millis(50));
    kill(&daemon);
    match writer.sync_all() {
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EIO)),
        // on a busy machine it was stored before the kill
        Ok(()) => assert_eq!(fs::read(&data).unwrap()[512..1024], [1; 512]),
    }
    drop(writer);
    let writer = open_for_writing(&data);
    writer.write_all_at(&[2; 512], 512).unwrap();
    writer.sync_all().unwrap();
    kill(&daemon);
    close(writer).unwrap();
    assert_eq!(fs::read(&data).unwrap()[512..1024], [2; 512]);
    assert!(daemon.unmount().success());
}

/// "A chunk file of a shard that was closed, removed or renamed is as it was then, although its
/// shard was not stored." Bytes of `data.raw` may be lost, and are reported.
#[test]
fn chunk_files_of_shards_outlive_the_daemon() {
    chunk_files_outlive(8, 512, 40);
}

/// The same with so many bytes that chunks wait in the spill file.
#[test]
fn chunk_files_in_the_spill_file_outlive_the_daemon() {
    chunk_files_outlive(16, 1500 << 10, 12);
}

/// The same with more written pieces than the journal has of a chunk: close stores the shard.
#[test]
fn a_chunk_file_that_was_written_in_many_pieces_outlives_the_daemon() {
    let directory = memory_directory();
    let path = sharded_array(directory.path(), 8, 2048);
    let daemon = Daemon::start(&path, &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let chunk = daemon.path().join("3");
    fs::write(&chunk, [1; 2048]).unwrap();
    open_for_writing(&chunk).sync_all().unwrap();
    let mut expected = [1; 2048];
    for pieces in [200, 1000] {
        let file = open_for_writing(&chunk);
        for piece in 0..pieces {
            expected[2 * piece] += 1;
            file.write_all_at(&expected[2 * piece..][..1], 2 * piece as u64)
                .unwrap();
        }
        close(file).unwrap();
        kill(&daemon);
        assert!(fs::read(&chunk).unwrap() == expected, "{pieces}");
    }
    assert!(daemon.unmount().success());
}

/// Changes the files of `count` chunks of `size` bytes, and compares them with a model after each
/// kill.
fn chunk_files_outlive(count: usize, size: usize, rounds: u64) {
    let directory = memory_directory();
    let path = sharded_array(directory.path(), count, size);
    let daemon = Daemon::start(&path, &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let chunk = |number: usize| daemon.path().join(number.to_string());
    let mut random = random(env_number("ZARRFS_SEED", 1));
    let mut expected: Vec<Option<Vec<u8>>> = vec![None; count];
    let content = |number| match fs::read(chunk(number)) {
        Ok(bytes) => Some(bytes),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::NotFound, "{number}: {e}");
            None
        }
    };
    for round in 0..rounds * env_number("ZARRFS_OUTLIVE_KILLS", 12) / 12 {
        for _ in 0..1 + random(4) {
            let [number, other] = [random(count), random(count)];
            let byte = 1 + (round % 255) as u8;
            match (random(4), expected[number].is_some()) {
                (0, true) => {
                    fs::remove_file(chunk(number)).unwrap();
                    expected[number] = None;
                }
                (1, true) if other != number => {
                    fs::rename(chunk(number), chunk(other)).unwrap();
                    expected[other] = expected[number].take();
                }
                (2, true) => {
                    let file = open_for_writing(&chunk(number));
                    let at = random(size - 9);
                    file.write_all_at(&[byte; 9], at as u64).unwrap();
                    close(file).unwrap();
                    let bytes = expected[number].as_mut().unwrap();
                    bytes[at..at + 9].fill(byte);
                }
                _ => {
                    // these bytes don't compress
                    let bytes: Vec<u8> = (0..size).map(|_| random(256) as u8).collect();
                    fs::write(chunk(number), &bytes).unwrap();
                    expected[number] = Some(bytes);
                }
            }
        }
        kill(&daemon);
        let found: Vec<_> = (0..count).map(content).collect();
        assert!(found == expected, "{round}");
    }
    let flat: Vec<u8> = expected
        .iter()
        .flat_map(|chunk| chunk.clone().unwrap_or_else(|| vec![0; size]))
        .collect();
    assert!(daemon.unmount().success());
    let stored = zarrfs(&["cat", text(&path)]);
    assert!(stored.stdout == flat);
    // a removed chunk is not stored as fill values
    let count = expected.iter().flatten().count();
    let shown = zarrfs(&["info", "--json", text(&path)]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let initialized = &shown[0]["chunks_initialised"];
    assert_eq!(initialized, &json!(count), "{shown}");
}

/// Two files that are no arrays, which fsx maps, truncates and writes, lose nothing.
#[test]
fn fsx_does_not_notice_that_the_daemon_is_killed() {
    let Some(fsx) = env_path("ZARRFS_FSX") else {
        announce("skipped: ZARRFS_FSX is not set");
        return;
    };
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let seed = env_number("ZARRFS_SEED", 1);
    let run = |name: &str| {
        let file = daemon.path().join(name);
        let fsx = fsx.clone();
        Box::new(move |n: usize| {
            File::create(&file).unwrap();
            let mut command = with_timeout(600, &fsx);
            command.args(["-q", "-N", "500", "-S"]);
            command.arg((seed + n as u64).to_string());
            exercisers::run(command.arg(&file), &format!("fsx, seed {seed}, run {n}"));
        })
    };
    let works: Vec<Box<dyn FnMut(usize) + Send>> = vec![run("one"), run("two")];
    let runs = while_killed(&daemon, works);
    assert!(runs.iter().all(|runs| *runs > 0), "{runs:?}");
    assert!(daemon.unmount().success());
}

/// "An overlay, an archive: what is stored differs, and the rule does not."
#[test]
fn overlays_and_archives_outlive_their_daemons() {
    let directory = memory_directory();
    let sample = directory.path().join("sample.zarr");
    copy_tree(&test_data("sample.zarr"), &sample);
    let archive = directory.path().join("sample.zip");
    let packed = zarrfs(&["pack", text(&sample), text(&archive)]);
    assert!(packed.status.success(), "{packed:?}");
    let changes = ["1", "2"].map(|name| directory.path().join(name));
    let overlays = changes
        .each_ref()
        .map(|changes| ["--overlay", text(changes)]);
    for (store, options) in [
        (&sample, &overlays[0][..]),
        (&archive, &[]),
        (&archive, &overlays[1]),
    ] {
        let daemon = Daemon::start(store, &[&OUTLIVED[..], options].concat());
        if !is_outlived(&daemon) {
            return;
        }
        let path = daemon.path().join("lat/data.raw");
        let before = fs::read(&path).unwrap();
        let mut open = File::open(&path).unwrap();
        kill(&daemon);
        let mut bytes = Vec::new();
        open.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, before);
        assert_eq!(fs::read(&path).unwrap(), before);
        close(open).unwrap();
        assert!(daemon.unmount().success());
    }
}

/// The memory of the holder does not grow with what the daemon does.
#[test]
fn the_holder_stays_small() {
    let directory = memory_directory();
    store(directory.path(), &["a"]);
    let daemon = Daemon::start(directory.path(), &OUTLIVED);
    if !is_outlived(&daemon) {
        return;
    }
    let memory = || -> u64 {
        let status = format!("/proc/{}/status", daemon.holder().as_raw_nonzero());
        let status = fs::read_to_string(status).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        line.unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    };
    for _ in 0..5 {
        fs::read(daemon.path().join("a/data.raw")).unwrap();
        kill(&daemon);
    }
    assert!(memory() < 8 << 10, "{} KiB", memory());
    let sockets = fs::read_dir(format!("/proc/{}/fd", daemon.holder().as_raw_nonzero())).unwrap();
    let links = sockets.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let is_store = |link: &PathBuf| link.starts_with(directory.path());
    assert_eq!(links.filter(is_store).count(), 0);
    assert!(daemon.unmount().success());
}
