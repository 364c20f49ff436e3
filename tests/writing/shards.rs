//! Arrays in shards on real mounts. Libraries and programs change them. Then libraries, or the test
//! itself by the index of each shard, read the stored chunks. A shard is stored once for all its
//! changed chunks, and its other chunks stay as they are.

use crate::support::daemon::Daemon;
use crate::support::tracer::{self, Tracer};
use crate::support::{
    Mount, announce, close, env_path, errno, open_for_writing, run_python, servers, wait_for,
};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

fn sharding(inner: Value, codecs: Value) -> Value {
    let index =
        json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]);
    let configuration = json!({"chunk_shape": inner, "codecs": codecs, "index_codecs": index});
    json!([{"name": "sharding_indexed", "configuration": configuration}])
}

/// Creates a store with one array of bytes.
fn store(shape: Value, shards: Value, chunks: Value, codecs: Value) -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shards}},
        "chunk_key_encoding": {"name": "default"}, "codecs": sharding(chunks, codecs)});
    fs::create_dir(directory.path().join("a")).unwrap();
    fs::write(directory.path().join("a/zarr.json"), document.to_string()).unwrap();
    directory
}

/// Returns the offset and length in bytes of each chunk, from the index of a shard of `count`
/// chunks.
fn index(shard: &[u8], count: usize) -> Vec<Option<(u64, u64)>> {
    let encoded = &shard[shard.len() - 16 * count - 4..];
    assert_eq!(
        crc32c::crc32c(&encoded[..16 * count]).to_le_bytes(),
        encoded[16 * count..]
    );
    let number = |at: usize| u64::from_le_bytes(encoded[at..at + 8].try_into().unwrap());
    (0..count)
        .map(|i| (number(16 * i), number(16 * i + 8)))
        .map(|entry| (entry.0 != u64::MAX).then_some(entry))
        .collect()
}

/// Returns the decoded chunks of a stored shard without codecs.
fn chunks(store: &Path, key: &str, count: usize) -> Vec<Option<Vec<u8>>> {
    let shard = fs::read(store.join(key)).unwrap();
    let chunk =
        |(offset, len): (u64, u64)| shard[offset as usize..(offset + len) as usize].to_vec();
    index(&shard, count)
        .into_iter()
        .map(|entry| entry.map(chunk))
        .collect()
}

#[test]
fn libraries_change_shards_through_a_mount() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let [store, expected] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let store = store.path().join("s");
    run_python(&python, "shards.py", &["make".as_ref(), store.as_path()]);
    let mount = Mount::new(&store, &[]);
    announce(
        run_python(
            &python,
            "shards.py",
            &["write".as_ref(), mount.path(), expected.path()],
        )
        .trim(),
    );
    mount.assert_no_problem();
    drop(mount);
    run_python(
        &python,
        "shards.py",
        &["check".as_ref(), store.as_path(), expected.path()],
    );
}

#[test]
fn libraries_change_shards_in_a_bucket() {
    let (Some(python), Some(server)) = (env_path("ZARRFS_TEST_PYTHON3"), servers::moto()) else {
        return;
    };
    let [store, expected, stored] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    run_python(
        &python,
        "shards.py",
        &["make".as_ref(), store.path().join("s").as_path()],
    );
    server.upload(&store.path().join("s"), "shards/s");
    let mount = server.store("shards/s").mount(&[]);
    let names = ["nested_start"].map(Path::new);
    let args = [
        &["write".as_ref(), mount.path(), expected.path()],
        &names[..],
    ]
    .concat();
    announce(run_python(&python, "shards.py", &args).trim());
    mount.assert_no_problem();
    drop(mount);
    server.download("shards/s", stored.path());
    run_python(
        &python,
        "shards.py",
        &["check".as_ref(), stored.path(), expected.path()],
    );
}

/// Writes alternate chunks of the same shards through two mounts at the same time. Returns the
/// expected bytes.
fn two_writers(first: Mount, second: Mount, rounds: u8) -> Vec<u8> {
    let write = |mount: &Mount, parity: usize| {
        let mut file = open_for_writing(&mount.join("a/data.raw"));
        for round in 1..=rounds {
            for chunk in (parity..16).step_by(2) {
                file.write_all_at(&[round * 2 + parity as u8; 64], 64 * chunk as u64)
                    .unwrap();
                if (chunk + usize::from(round)) % 3 == 0 {
                    file.sync_all().unwrap();
                }
            }
        }
        file.flush().unwrap();
        close(file).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| write(&first, 0));
        scope.spawn(|| write(&second, 1));
    });
    drop((first, second));
    (0..16u8)
        .flat_map(|chunk| [rounds * 2 + chunk % 2; 64])
        .collect()
}

#[test]
fn two_mounts_of_a_directory_change_one_shard() {
    let directory = store(json!([1024]), json!([512]), json!([64]), json!(["bytes"]));
    let locks = tempfile::tempdir().unwrap();
    let options = [
        "--synchronizer",
        locks.path().to_str().unwrap(),
        "--no-fsync",
    ];
    let mounts = [(); 2].map(|()| Mount::new(directory.path(), &options));
    let [first, second] = mounts;
    let expected = two_writers(first, second, 20);
    let stored: Vec<u8> = ["a/c/0", "a/c/1"]
        .iter()
        .flat_map(|key| chunks(directory.path(), key, 8))
        .flatten()
        .flatten()
        .collect();
    assert!(stored == expected, "a write was lost");
}

#[test]
fn two_mounts_of_a_bucket_change_one_shard() {
    let Some(server) = servers::moto() else {
        return;
    };
    let directory = store(json!([1024]), json!([512]), json!([64]), json!(["bytes"]));
    server.upload(directory.path(), "two/s");
    let [first, second] = [(); 2].map(|()| server.store("two/s").mount(&[]));
    let expected = two_writers(first, second, 5);
    let stored = tempfile::tempdir().unwrap();
    server.download("two/s", stored.path());
    let stored: Vec<u8> = ["a/c/0", "a/c/1"]
        .iter()
        .flat_map(|key| chunks(stored.path(), key, 8))
        .flatten()
        .flatten()
        .collect();
    assert!(stored == expected, "a write was lost");
}

/// Such a shard is uploaded in parts, and a changed one is copied in parts.
#[test]
fn a_shard_larger_than_a_request_is_stored_in_a_bucket() {
    const SIZE: usize = 72 << 20;
    let Some(server) = servers::moto() else {
        return;
    };
    let directory = store(
        json!([SIZE]),
        json!([SIZE]),
        json!([4 << 20]),
        json!(["bytes"]),
    );
    server.upload(directory.path(), "large/s");
    let mut expected: Vec<u8> = (0..SIZE).map(|i| (i >> 16) as u8 ^ i as u8).collect();
    let mount = server.store("large/s").mount(&[]);
    fs::write(mount.join("a/data.raw"), &expected).unwrap();
    let file = open_for_writing(&mount.join("a/data.raw"));
    file.write_all_at(&[1, 2, 3], 33 << 20).unwrap();
    close(file).unwrap();
    expected[33 << 20..][..3].copy_from_slice(&[1, 2, 3]);
    assert!(fs::read(mount.join("a/data.raw")).unwrap() == expected);
    mount.assert_no_problem();
    drop(mount);
    let stored = tempfile::tempdir().unwrap();
    server.download("large/s", stored.path());
    let stored: Vec<u8> = chunks(stored.path(), "a/c/0", SIZE >> 22)
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    assert!(stored == expected);
}

#[test]
fn a_closed_chunk_file_is_stored_after_a_time_without_writes() {
    let directory = store(json!([256]), json!([256]), json!([64]), json!(["bytes"]));
    let mount = Mount::new(directory.path(), &["--no-fsync"]);
    fs::write(mount.join("a/1"), [7; 64]).unwrap();
    assert_eq!(fs::read(mount.join("a/1")).unwrap(), [7; 64]);
    wait_for("the shard is stored", || {
        directory.path().join("a/c/0").exists()
    });
    assert_eq!(
        chunks(directory.path(), "a/c/0", 4),
        [None, Some(vec![7; 64]), None, None]
    );
    fs::remove_file(mount.join("a/1")).unwrap();
    assert!(!mount.join("a/1").exists());
    wait_for("the shard without chunks is deleted", || {
        !directory.path().join("a/c/0").exists()
    });
}

#[test]
fn an_array_that_grows_keeps_chunks_that_wait_to_be_stored() {
    let directory = store(json!([250]), json!([256]), json!([64]), json!(["bytes"]));
    let mount = Mount::new(
        directory.path(),
        &["--no-fsync", "--resize", "--cache-size", "1M"],
    );
    let mut expected = vec![0; 250];
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(mount.join("a/data.raw"))
        .unwrap();
    for step in 1..=60u8 {
        // the last chunk, with padding past the end of the array
        let last = expected.len() / 64;
        if step % 3 == 0 && mount.join(&format!("a/{last}")).exists() {
            fs::write(mount.join(&format!("a/{last}")), [step; 64]).unwrap();
            expected[64 * last..].fill(step);
        }
        if step % 7 == 0 {
            fs::remove_file(mount.join(&format!("a/{}", last - 1))).unwrap();
            expected[64 * (last - 1)..64 * last].fill(0);
        }
        file.write_all(&[100 + step; 37]).unwrap();
        expected.extend([100 + step; 37]);
        if step % 5 == 0 {
            file.sync_all().unwrap();
        }
    }
    close(file).unwrap();
    assert!(fs::read(mount.join("a/data.raw")).unwrap() == expected);
    assert_eq!(fs::read(mount.join(".zarrfs/sync")).unwrap(), b"");
    mount.assert_no_problem();
    drop(mount);
    let mount = Mount::new(directory.path(), &["--read-only"]);
    assert!(fs::read(mount.join("a/data.raw")).unwrap() == expected);
}

#[test]
fn extended_attributes_of_a_chunk_file_locate_its_bytes_in_the_shard() {
    let store = store(json!([8]), json!([4]), json!([2]), json!(["bytes"]));
    let mount = Mount::new(store.path(), &[]);
    for (name, bytes) in [("1", b"BB"), ("0", b"AA"), ("2", b"CC")] {
        fs::write(mount.join("a").join(name), bytes).unwrap();
    }
    assert_eq!(fs::read(mount.join(".zarrfs/sync")).unwrap(), b"");
    let shard = fs::read(store.path().join("a/c/0")).unwrap();
    let mut value = [0u8; 64];
    for (name, bytes) in [("0", b"AA"), ("1", b"BB")] {
        let mut get = |attribute: &str| {
            let n = rustix::fs::getxattr(mount.join("a").join(name), attribute, &mut value[..])
                .unwrap();
            String::from_utf8(value[..n].to_vec()).unwrap()
        };
        assert_eq!(get("user.zarrfs.key"), "a/c/0");
        let offset = get("user.zarrfs.offset");
        let size = get("user.zarrfs.stored_size");
        let offset: usize = offset.parse().unwrap();
        assert_eq!(
            (&shard[offset..offset + 2], size.as_str()),
            (&bytes[..], "2")
        );
    }
}

#[test]
fn fsync_and_sync_store_a_chunk_at_once() {
    let directory = store(json!([256]), json!([256]), json!([64]), json!(["bytes"]));
    let mount = Mount::new(directory.path(), &["--no-fsync"]);
    let mut file = File::create(mount.join("a/0")).unwrap();
    file.write_all(&[1; 64]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(chunks(directory.path(), "a/c/0", 4)[0], Some(vec![1; 64]));
    for (chunk, value) in [(1, 2u8), (2, 3)] {
        fs::write(mount.join(&format!("a/{chunk}")), [value; 64]).unwrap();
    }
    assert_eq!(fs::read(mount.join(".zarrfs/sync")).unwrap(), b"");
    let expected = [
        Some(vec![1; 64]),
        Some(vec![2; 64]),
        Some(vec![3; 64]),
        None,
    ];
    assert_eq!(chunks(directory.path(), "a/c/0", 4), expected);
    // the encoded shard below `c` is current as well
    fs::write(mount.join("a/3"), [4; 64]).unwrap();
    let shown = fs::read(mount.join("a/c/0")).unwrap();
    assert_eq!(
        (
            index(&shown, 4).iter().flatten().count(),
            fs::read(directory.path().join("a/c/0")).unwrap()
        ),
        (4, shown)
    );
}

#[test]
fn damage_in_a_shard_is_kept_or_replaced_but_never_spread() {
    let directory = store(
        json!([256]),
        json!([256]),
        json!([64]),
        json!(["bytes", "crc32c"]),
    );
    let key = directory.path().join("a/c/0");
    let mount = Mount::new(directory.path(), &["--no-fsync"]);
    fs::write(mount.join("a/data.raw"), (0..=255).collect::<Vec<u8>>()).unwrap();
    let mut shard = fs::read(&key).unwrap();
    let (offset, len) = index(&shard, 4)[1].unwrap();
    shard[offset as usize] ^= 1;
    fs::write(&key, &shard).unwrap();
    // a damaged chunk is copied as it is
    fs::write(mount.join("a/0"), [5; 64]).unwrap();
    assert_eq!(fs::read(mount.join(".zarrfs/sync")).unwrap(), b"");
    let stored = fs::read(&key).unwrap();
    let (now, _) = index(&stored, 4)[1].unwrap();
    assert_eq!(
        stored[now as usize..(now + len) as usize],
        shard[offset as usize..(offset + len) as usize]
    );
    assert_eq!(errno(fs::read(mount.join("a/1"))), "EIO");
    assert_eq!(fs::read(mount.join("a/0")).unwrap(), [5; 64]);
    fs::write(mount.join("a/1"), [6; 64]).unwrap();
    assert_eq!(fs::read(mount.join("a/1")).unwrap(), [6; 64]);
    assert_eq!(fs::read(mount.join(".zarrfs/sync")).unwrap(), b"");
    // a damaged index: the shard is replaced when all its chunks were written
    let mut shard = fs::read(&key).unwrap();
    let end = shard.len() - 1;
    shard[end] ^= 1;
    fs::write(&key, &shard).unwrap();
    let mut file = File::create(mount.join("a/0")).unwrap();
    file.write_all(&[8; 64]).unwrap();
    assert_eq!(errno(file.sync_all()), "EIO");
    assert_eq!(fs::read(&key).unwrap(), shard, "it stays");
    drop(file);
    for chunk in 1..4 {
        fs::write(mount.join(&format!("a/{chunk}")), [9; 64]).unwrap();
    }
    assert_eq!(fs::read(mount.join(".zarrfs/sync")).unwrap(), b"");
    let flat = fs::read(mount.join("a/data.raw")).unwrap();
    assert!(flat[..64] == [8; 64] && flat[64..] == [9; 192]);
    assert_eq!(
        index(&fs::read(&key).unwrap(), 4).iter().flatten().count(),
        4
    );
}

/// The shard is larger than the memory that the daemon may take.
#[test]
fn a_shard_larger_than_memory_is_written_and_read() {
    const SIZE: usize = 192 << 20;
    let directory = store(
        json!([SIZE]),
        json!([SIZE]),
        json!([1 << 20]),
        json!(["bytes"]),
    );
    let mount = Mount::new(
        directory.path(),
        &[
            "--no-fsync",
            "--cache-size",
            "16M",
            "--spill-dir",
            "/var/tmp",
        ],
    );
    let block = |n: usize| -> Vec<u8> { (0..1 << 20).map(|i| (i * 7 + n * 13) as u8).collect() };
    let mut file = open_for_writing(&mount.join("a/data.raw"));
    for n in 0..SIZE >> 20 {
        file.write_all(&block(n)).unwrap();
    }
    close(file).unwrap();
    let file = open_for_writing(&mount.join("a/data.raw"));
    file.write_all_at(&[1, 2, 3], 77 << 20).unwrap();
    close(file).unwrap();
    let mut file = File::open(mount.join("a/data.raw")).unwrap();
    let mut bytes = vec![0; 1 << 20];
    for n in 0..SIZE >> 20 {
        file.read_exact(&mut bytes).unwrap();
        let mut expected = block(n);
        if n == 77 {
            expected[..3].copy_from_slice(&[1, 2, 3]);
        }
        assert!(bytes == expected, "MiB {n}");
    }
    drop(file);
    let peak = mount.peak_memory();
    let puts = mount.counter("objects_stored");
    announce(&format!(
        "a shard of 192 MiB: {} MiB of memory, {puts} puts",
        peak >> 20
    ));
    assert!(peak < (16 + 64 + 24) << 20, "{peak} bytes");
    drop(mount);
    let stored = File::open(directory.path().join("a/c/0")).unwrap();
    assert!(stored.metadata().unwrap().len() < (SIZE + SIZE / 3) as u64);
}

#[test]
fn a_shard_that_cannot_be_stored_is_reported_and_tried_again() {
    let directory = store(json!([256]), json!([256]), json!([64]), json!(["bytes"]));
    let mount = Mount::new(directory.path(), &["--no-fsync"]);
    fs::write(mount.join("a/data.raw"), [1; 256]).unwrap();
    let level = directory.path().join("a/c");
    // a directory in place of the shard can't be replaced by a file
    fs::remove_file(level.join("0")).unwrap();
    fs::create_dir_all(level.join("0/x")).unwrap();
    fs::write(mount.join("a/2"), [2; 64]).unwrap();
    wait_for("the failure is known", || {
        mount.stats().contains("not stored: /a/c/0")
    });
    let mut file = File::create(mount.join("a/3")).unwrap();
    file.write_all(&[3; 64]).unwrap();
    assert!(close(file).is_err(), "the next close tells");
    assert_eq!(fs::read(mount.join("a/2")).unwrap(), [2; 64]);
    fs::remove_dir_all(level.join("0")).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(fs::read(mount.join(".zarrfs/sync")).unwrap(), b"");
    assert_eq!(
        chunks(directory.path(), "a/c/0", 4),
        [None, None, Some(vec![2; 64]), Some(vec![3; 64])]
    );
}

/// Stores a shard of four chunks of `len` bytes without codecs: bytes 1, 2, 3 and 4.
fn put_shard(store: &Path, len: usize) {
    let mut shard = Vec::new();
    let mut index = Vec::new();
    for chunk in 0..4u64 {
        shard.extend(vec![chunk as u8 + 1; len]);
        index.extend(
            [
                (len as u64 * chunk).to_le_bytes(),
                (len as u64).to_le_bytes(),
            ]
            .concat(),
        );
    }
    index.extend(crc32c::crc32c(&index).to_le_bytes());
    fs::create_dir_all(store.join("a/c")).unwrap();
    fs::write(store.join("a/c/0"), [shard, index].concat()).unwrap();
}

/// Changes a chunk of `len` bytes, and kills the daemon before the `n`-th of the system calls
/// `calls` in a thread. Checks that each stored chunk is the old or the new one. Returns whether a
/// thread reached that call.
fn is_killed(store: &Path, (len, is_whole): (usize, bool), calls: &str, n: usize) -> bool {
    put_shard(store, len);
    let mut daemon = Daemon::start(store, &["--no-outlive"]);
    let log = store.join("log");
    let inject = format!("inject={calls}:signal=SIGKILL:when={n}");
    let tracer = Tracer::prepare(daemon.pid(), calls, &["-e", &inject], &log);
    let file = open_for_writing(&daemon.path().join("a/data.raw"));
    let written = if is_whole { 0..4 } else { 1..2 };
    file.write_all_at(&vec![9; written.len() * len], (written.start * len) as u64)
        .unwrap();
    let tracer = tracer.attach().unwrap();
    let synced = file.sync_all().is_ok();
    let said = if synced {
        tracer.detach()
    } else {
        tracer.wait()
    };
    daemon.kill();
    drop(file);
    let found: Vec<Vec<u8>> = chunks(store, "a/c/0", 4)
        .into_iter()
        .map(Option::unwrap)
        .collect();
    for (i, chunk) in found.iter().enumerate() {
        assert!(
            chunk.len() == len && chunk.iter().all(|byte| *byte == chunk[0]),
            "{calls} {n}: chunk {i} is torn"
        );
    }
    let found: Vec<u8> = found.iter().map(|chunk| chunk[0]).collect();
    let old = [1, 2, 3, 4];
    let mut new = old;
    new[written].fill(9);
    // the chunks may be stored by several puts
    let is_right = |i: usize| found[i] == new[i] || found[i] == old[i] && !synced;
    assert!(
        (0..4).all(is_right),
        "{calls} {n}: {found:?}, synced: {synced}"
    );
    said.contains("+++ killed by SIGKILL +++")
}

/// The daemon writes a large shard past the page cache if the file system can, and none of its
/// bytes is kept.
#[test]
fn a_kill_at_any_call_leaves_the_old_shard_or_the_new_one() {
    const RENAME: &str = "?rename,?renameat,?renameat2";
    if !tracer::is_available() {
        return;
    }
    let mut points = 0;
    let small = ["copy_file_range", "pwrite64", "fdatasync", RENAME];
    let large = ["write,pwrite64", "fdatasync", RENAME];
    let cases = small
        .map(|calls| ((64, false), calls))
        .into_iter()
        .chain(large.map(|calls| ((400_000, true), calls)));
    for ((len, is_whole), calls) in cases {
        let before = points;
        for n in 1.. {
            let directory = store(
                json!([4 * len]),
                json!([4 * len]),
                json!([len]),
                json!(["bytes"]),
            );
            if !is_killed(directory.path(), (len, is_whole), calls, n) {
                break;
            }
            points += 1;
        }
        // on some file systems the daemon shares blocks or copies by other calls
        assert!(
            points > before || calls == "copy_file_range",
            "the daemon never calls {calls} for chunks of {len}"
        );
    }
    announce(&format!("{points} stop points of the storing of a shard"));
}
