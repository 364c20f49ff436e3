//! The daemon's memory under hostile stores, servers and users, read from /proc and compared with
//! the documented bound. The mounts have a small cache. Each store here would take hundreds of
//! megabytes or gigabytes of memory in a program without limits.

#[path = "support/counting.rs"]
mod counting;
mod support;

use counting::CountingAllocator;
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::daemon::Daemon;
use support::faulty_server::FaultyServer;
use support::{announce, write_file};
use zarrfs_base::memory as budget;
use zarrfs_format::codec;
use zarrfs_format::metadata::{ArrayMetadata, CodecConfig, V1Order};

/// The cache bound in bytes, and the argument that sets it.
const BOUND: u64 = 32 << 20;
const CACHE: [&str; 2] = ["--cache-size", "32M"];

/// A long time to live for metadata, since the test server reads and digests the whole value for
/// each request.
const TTL: [&str; 2] = ["--metadata-ttl", "1h"];

/// Memory in bytes that the daemon may take beyond the cache bound, as docs/operations.md promises.
const BESIDE: u64 = 64 << 20;

/// Limit in bytes of the daemon's memory, so that a daemon that exceeds its bound does not take
/// down the machine.
const REFUSED: u64 = 3 << 30;

/// Maximum size in bytes of a document that zarrfs reads.
const DOCUMENT: usize = 16 << 20;

/// Mounts `store` and calls `work` with the mount. Fails if the daemon's memory grows beyond the
/// promise.
fn attack(store: &Path, args: &[&str], what: &str, work: impl FnOnce(&Path) + Send + 'static) {
    let daemon = Daemon::start(store, &[&CACHE, args].concat());
    let proc = PathBuf::from(format!("/proc/{}", daemon.pid().as_raw_nonzero()));
    let limit = Rlimit {
        current: Some(REFUSED),
        maximum: Some(REFUSED),
    };
    prlimit(Some(daemon.pid()), Resource::Data, limit).unwrap();
    let mount = daemon.path();
    let result = std::thread::spawn(move || work(&mount)).join();
    let grown = memory(&proc, "VmHWM:").saturating_sub(idle());
    announce(&format!("memory: {what}: {} MiB", grown >> 20));
    assert!(
        grown <= BOUND + BESIDE,
        "{what}: the daemon's memory grew by {} MiB",
        grown >> 20
    );
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
    assert!(daemon.unmount().success(), "{what}: the daemon ends well");
}

/// Returns the memory in bytes of a daemon that has mounted an empty store. Memory that a store
/// takes while it is being mounted counts as growth.
fn idle() -> u64 {
    let store = tempfile::tempdir().unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    let daemon = Daemon::start(store.path(), &CACHE);
    let idle = memory(
        Path::new(&format!("/proc/{}", daemon.pid().as_raw_nonzero())),
        "VmRSS:",
    );
    daemon.unmount();
    idle
}

/// Returns a size in the daemon's `/proc/PID/status`, in bytes.
fn memory(proc: &Path, name: &str) -> u64 {
    let status = fs::read_to_string(proc.join("status")).expect("the daemon is alive");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Runs a command of zarrfs. Returns its standard output and the maximum of its memory in bytes, of
/// which the last millisecond may lack.
fn peak_of_command(args: &[&str]) -> (String, u64) {
    let mut child = Command::new(support::ZARRFS)
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let now = line.and_then(|size| size.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = now.map_or(peak, |now| peak.max(now << 10));
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut said = String::new();
    child.stdout.unwrap().read_to_string(&mut said).unwrap();
    (said, peak)
}

/// Looks up every file in a directory and its extended attributes.
fn list(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let _ = path.symlink_metadata();
        let mut names = Vec::with_capacity(1 << 16);
        let _ = rustix::fs::listxattr(&path, rustix::buffer::spare_capacity(&mut names));
    }
}

/// Reads a whole file. The callers accept errors.
fn read(path: &Path) -> Result<Vec<u8>, std::io::Error> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn stats(mount: &Path) -> String {
    fs::read_to_string(mount.join(".zarrfs/stats")).unwrap()
}

/// Writes the metadata document of an array. The fields in `more` replace the default ones.
fn array(path: &Path, shape: u64, chunks: u64, more: Value) {
    let mut document = json!({"zarr_format": 2, "shape": [shape], "chunks": [chunks], "dtype": "|u1",
        "compressor": null, "fill_value": 0, "order": "C", "filters": null});
    document
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    write_file(path.join(".zarray"), document.to_string());
}

/// Returns `size` encoded zeros.
fn zeros(codec: Value, size: usize) -> Vec<u8> {
    encoded(codec, &vec![0; size])
}

fn encoded(codec: Value, bytes: &[u8]) -> Vec<u8> {
    let codec = codec::build(&CodecConfig::parse(&codec).unwrap(), 1).unwrap();
    let mut out = Vec::new();
    codec.encode(bytes, &mut out).unwrap();
    out
}

/// Returns documents of almost 16 MiB that take many times as much memory once they are parsed or
/// rewritten.
fn documents() -> Vec<(&'static str, String)> {
    let repeated = |item: &str| item.repeat((DOCUMENT - 4096) / item.len());
    let list =
        |item: &str, last: &str| format!("{{\"units\":\"K\",\"a\":[{}{last}]}}", repeated(item));
    vec![
        ("numbers", list("1,", "1")),
        ("nan", list("NaN,", "1")),
        ("lists", list("[],", "[]")),
        ("strings", list("\"\",", "\"\"")),
        ("escapes", format!("{{\"a\":\"{}\"}}", repeated("\\u0001"))),
        ("members", format!("{{{}\"b\":1}}", repeated("\"a\":{},"))),
        (
            "deep",
            format!(
                "{{\"a\":{}{}1{}}}",
                "[".repeat(120),
                "1,".repeat(DOCUMENT / 2 - 4096),
                "]".repeat(120)
            ),
        ),
        ("text", format!("{{\"long_name\":\"{}\"}}", repeated("x"))),
    ]
}

/// Creates a group with large attributes in all its members, and a healthy array.
fn large_documents() -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    write_file(
        store.path().join(".zmetadata"),
        "{\"metadata\":{},\"zarr_consolidated_format\":1}",
    );
    for (name, text) in documents() {
        array(&store.path().join(name), 24, 24, json!({"dtype": "<f4"}));
        write_file(store.path().join(name).join(".zattrs"), text);
    }
    array(
        &store.path().join("healthy"),
        24,
        24,
        json!({"dtype": "<f4"}),
    );
    write_file(store.path().join("healthy/.zattrs"), "{\"units\":\"K\"}");
    store
}

#[test]
fn listing_large_documents_takes_little_memory() {
    let store = large_documents();
    attack(
        store.path(),
        &[],
        "ls -la and .zmetadata of large documents",
        |mount| {
            list(mount);
            let consolidated: Value =
                serde_json::from_slice(&read(&mount.join(".zmetadata")).unwrap()).unwrap();
            assert_eq!(consolidated["metadata"]["healthy/.zattrs"]["units"], "K");
            assert!(consolidated["metadata"].get("numbers/.zattrs").is_none());
            assert!(stats(mount).contains("left out of .zmetadata"));
            for (name, text) in documents() {
                let mut names = Vec::with_capacity(1 << 16);
                let _ = rustix::fs::listxattr(
                    mount.join(name),
                    rustix::buffer::spare_capacity(&mut names),
                );
                // documents are shown exactly as they are stored
                assert!(
                    read(&mount.join(name).join(".zattrs")).unwrap() == text.as_bytes(),
                    "{name}"
                );
            }
        },
    );
}

#[test]
fn headers_of_large_documents_take_little_memory() {
    let store = large_documents();
    attack(
        store.path(),
        &["--containers", "nc,tif,nii"],
        "headers and containers of large documents",
        |mount| {
            let _ = read(&mount.join("dataset.nc"));
            for (name, _) in documents() {
                for header in fs::read_dir(mount.join(name)).unwrap() {
                    let _ = read(&header.unwrap().path());
                }
            }
            assert!(read(&mount.join("healthy/data.npy")).unwrap().len() > 96);
        },
    );
}

/// A `dataset.nc` whose description needs more memory than there is shows as empty, and does not
/// open.
#[test]
fn the_netcdf_file_of_many_arrays_takes_little_memory() {
    let store = support::memory_directory();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    write_file(store.path().join("group/.zgroup"), "{\"zarr_format\":2}");
    for number in 0..20_000 {
        array(
            &store.path().join(format!("group/a{number:05}")),
            4,
            2,
            json!({}),
        );
    }
    attack(
        store.path(),
        &["--containers", "nc"],
        "dataset.nc of 20,000 arrays",
        |mount| {
            let group = mount.join("group");
            let listed = support::run("ls", &["-l"], &group);
            assert_eq!(
                listed.lines().count(),
                20_002,
                "all arrays, dataset.nc and the total"
            );
            assert_eq!(fs::metadata(group.join("dataset.nc")).unwrap().len(), 0);
            assert_eq!(
                read(&group.join("dataset.nc")).unwrap_err().raw_os_error(),
                Some(libc::ENOMEM)
            );
            let stats = stats(mount);
            assert!(
                stats.contains("group/dataset.nc: describing its arrays needs more memory"),
                "{stats}"
            );
            assert_eq!(read(&group.join("a19999/data.raw")).unwrap(), [0; 4]);
        },
    );
}

/// What a `dataset.nc` keeps of its arrays counts: half as many fit into the memory of this mount.
#[test]
fn the_netcdf_file_of_different_arrays_is_shown_in_little_memory() {
    let store = support::memory_directory();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    for number in 0..10_000 {
        let path = store.path().join(format!("a{number:05}"));
        array(&path, number + 1, 2, json!({}));
    }
    attack(
        store.path(),
        &["--containers", "nc"],
        "dataset.nc of 10,000 different arrays",
        |mount| {
            let file = File::open(mount.join("dataset.nc")).unwrap();
            assert!(file.metadata().unwrap().len() > 10_000 * 4096);
            let mut start = [0; 4096];
            file.read_exact_at(&mut start, 0).unwrap();
            assert!(start.starts_with(b"CDF"));
        },
    );
}

#[test]
fn writing_large_documents_takes_little_memory() {
    let store = large_documents();
    attack(
        store.path(),
        &[],
        "large documents held open, changed and begun",
        |mount| {
            let mut held = Vec::new();
            for (name, _) in documents() {
                let path = mount.join(name).join(".zattrs");
                held.extend((0..2).map(|_| File::open(&path)));
                let _ = rustix::fs::setxattr(
                    mount.join(name),
                    "user.zarr.attrs.x",
                    b"1",
                    rustix::fs::XattrFlags::empty(),
                );
            }
            drop(held);
            // write a gigabyte into attributes, and many documents concurrently
            let mut drafts = Vec::new();
            for (name, _) in documents() {
                let Ok(mut file) = fs::OpenOptions::new()
                    .write(true)
                    .open(mount.join(name).join(".zattrs"))
                else {
                    continue;
                };
                let piece = vec![b' '; 1 << 20];
                let written = (0..1024)
                    .take_while(|_| file.write_all(&piece).is_ok())
                    .count();
                assert!(written <= 16, "{written} MiB");
                drafts.push(file);
            }
            drop(drafts);
            assert_eq!(
                read(&mount.join("healthy/.zattrs")).unwrap(),
                b"{\"units\":\"K\"}"
            );
        },
    );
}

/// Many openings of a document leave memory for other requests, and each opening keeps its text.
#[test]
fn many_openings_of_a_document_leave_memory_to_others() {
    const OPENINGS: usize = 400;
    let store = tempfile::tempdir().unwrap();
    let spill = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let group = |text: usize, letter: &str| {
        let attributes = json!({"text": letter.repeat(text)});
        json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}).to_string()
    };
    write_file(store.path().join("zarr.json"), group(0, ""));
    write_file(store.path().join("other/zarr.json"), group(8 << 20, "o"));
    let stored = store.path().join("opened/zarr.json");
    write_file(&stored, group(188 << 10, "1"));
    let first = store.path().to_path_buf();
    let args = ["--spill-dir", spill.path().to_str().unwrap()];
    attack(
        &first,
        &args,
        "a document opened many times",
        move |mount| {
            let opened = mount.join("opened/zarr.json");
            let old = read(&opened).unwrap();
            let other = read(&mount.join("other/zarr.json")).unwrap();
            let held: Vec<File> = (0..OPENINGS)
                .map(|_| File::open(&opened).unwrap())
                .collect();
            write_file(&stored, group(100 << 10, "2"));
            assert!(read(&mount.join("other/zarr.json")).unwrap() == other);
            assert!(read(&opened).unwrap() != old);
            for mut file in held {
                let mut text = Vec::new();
                file.read_to_end(&mut text).unwrap();
                assert!(text == old);
            }
        },
    );
}

#[test]
fn large_fill_values_take_little_memory() {
    let store = tempfile::tempdir().unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    for i in 0..6 {
        let text = "QUJD".repeat(DOCUMENT / 4 - 1024);
        let dtype = ["|S12000000", "<U3000000", "|V12000000"][i % 3];
        array(
            &store.path().join(format!("a{i}")),
            2,
            1,
            json!({"dtype": dtype, "fill_value": text}),
        );
    }
    let fields: Vec<Value> = (0..500_000)
        .map(|i| json!([format!("{i}"), "|u1"]))
        .collect();
    array(
        &store.path().join("fields"),
        2,
        1,
        json!({"dtype": fields, "fill_value": null}),
    );
    attack(
        store.path(),
        &["--headers", "all"],
        "large fill values and dtypes",
        |mount| {
            list(mount);
            for entry in fs::read_dir(mount).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    list(&path);
                    let _ = read(&path.join(".zarray"));
                }
            }
            assert!(stats(mount).len() < 1 << 20);
        },
    );
}

#[test]
fn filters_that_expand_data_take_little_memory() {
    let store = tempfile::tempdir().unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    let bz2 = json!({"id": "bz2", "level": 9});
    let astype = json!({"id": "astype", "encode_dtype": "<f8", "decode_dtype": "|i1"});
    // each filter makes a chunk 8 times as large; the array with four filters gets the bytes for
    // three
    let size = 1 << 20;
    let bombs = [1, 2, 3].map(|n| zeros(bz2.clone(), size << (3 * n)));
    for n in 1..=4 {
        let path = store.path().join(format!("astype{n}"));
        array(
            &path,
            size as u64,
            size as u64,
            json!({"dtype": "|i1", "compressor": bz2, "filters": vec![&astype; n]}),
        );
        write_file(path.join("0"), &bombs[n.min(3) - 1]);
    }
    let zlib = json!({"id": "zlib", "level": 1});
    let path = store.path().join("compressors");
    array(
        &path,
        1000,
        1000,
        json!({"compressor": zlib, "filters": vec![&zlib; 40]}),
    );
    write_file(
        path.join("0"),
        encoded(zlib.clone(), &zeros(zlib.clone(), 256 << 20)),
    );
    attack(store.path(), &[], "filters that expand", |mount| {
        assert!(read(&mount.join("astype1/data.raw")).unwrap() == vec![0; 1 << 20]);
        for name in ["astype2", "astype3", "astype4", "compressors"] {
            list(&mount.join(name));
            let _ = read(&mount.join(name).join("data.raw"));
            let _ = read(&mount.join(name).join("0"));
        }
        assert!(read(&mount.join("astype3/data.raw")).is_err());
        let file = fs::OpenOptions::new()
            .write(true)
            .open(mount.join("astype3/data.raw"));
        let _ = file.and_then(|file| file.write_all_at(b"x", 7));
    });
}

#[test]
fn huge_chunks_take_little_memory() {
    let store = tempfile::tempdir().unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    let zlib = json!({"id": "zlib", "level": 1});
    let size = 400 << 20;
    array(
        &store.path().join("c"),
        size,
        size,
        json!({"compressor": zlib}),
    );
    let document = json!({"zarr_format": 2, "shape": [2, size / 2], "chunks": [2, size / 2], "dtype": "|u1",
        "compressor": zlib, "fill_value": 0, "order": "F", "filters": null});
    write_file(store.path().join("f/.zarray"), document.to_string());
    let objects = json!({"dtype": "|O", "fill_value": null, "compressor": zlib, "filters": [{"id": "vlen-bytes"}]});
    array(&store.path().join("o"), 10, 10, objects);
    let bomb = zeros(zlib, size as usize);
    for name in ["c/0", "f/0.0", "o/0"] {
        write_file(store.path().join(name), &bomb);
    }
    array(&store.path().join("raw"), size, size, json!({}));
    File::create(store.path().join("raw/0"))
        .unwrap()
        .set_len(size)
        .unwrap();
    attack(
        store.path(),
        &[],
        "chunks larger than the memory for them",
        move |mount| {
            for name in ["c", "f", "o"] {
                list(&mount.join(name));
                let _ = read(&mount.join(name).join("0"));
                let file = File::open(mount.join(name).join("data.raw"));
                let _ = file.and_then(|file| file.read_exact_at(&mut [0], 7));
            }
            let refused = read(&mount.join("c/0")).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM), "{refused}");
            assert!(stats(mount).contains("--cache-size"), "{}", stats(mount));
            // parts of an uncompressed chunk can be read without memory for all of it
            let mut end = [1; 5];
            File::open(mount.join("raw/data.raw"))
                .unwrap()
                .read_exact_at(&mut end, size - 5)
                .unwrap();
            assert_eq!(end, [0; 5]);
            for name in ["c/data.raw", "c/0", "raw/data.raw"] {
                let file = fs::OpenOptions::new().write(true).open(mount.join(name));
                let _ = file.and_then(|file| file.write_all_at(b"x", 7));
            }
        },
    );
}

/// Returns a `.zmetadata` of `arrays` arrays with `more` in the attributes of each.
fn consolidated(arrays: usize, more: &str) -> String {
    let zarray = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"|u1","compressor":null,"fill_value":0,
        "order":"C","filters":null}"#;
    let entry = |i| {
        format!(
            r#""group/a{i:05}/.zarray":{zarray},"group/a{i:05}/.zattrs":{{"units":"K","more":{more}}}"#
        )
    };
    let entries: Vec<String> = (0..arrays).map(entry).collect();
    let groups = r#"".zgroup":{"zarr_format":2},"group/.zgroup":{"zarr_format":2}"#;
    format!(
        r#"{{"zarr_consolidated_format":1,"metadata":{{{groups},{}}}}}"#,
        entries.join(",")
    )
}

#[test]
fn consolidated_metadata_takes_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("\"{}\"", "x".repeat(2700));
    let large = consolidated(10_000, &text);
    assert!(large.len() > 28_000_000, "{}", large.len());
    write_file(folder.path().join("large/.zmetadata"), &large);
    write_file(folder.path().join("large/group/a00007/0"), "ab");
    let numbers = (15 << 20) / 2;
    write_file(
        folder.path().join("numbers/.zmetadata"),
        consolidated(1, &format!("[{}1]", "1,".repeat(numbers))),
    );
    let names: String = (0..200_000)
        .map(|i| format!("\"{i}/a/b/c/.zattrs\":{{}},"))
        .collect();
    write_file(
        folder.path().join("names/.zmetadata"),
        format!("{{\"metadata\":{{{names}\".zgroup\":{{}}}}}}"),
    );
    write_file(
        folder.path().join("vast/.zmetadata"),
        consolidated(1, &format!("\"{}\"", "x".repeat(65 << 20))),
    );
    for name in ["numbers", "names", "vast"] {
        write_file(
            folder.path().join(name).join(".zgroup"),
            "{\"zarr_format\":2}",
        );
    }
    let server = FaultyServer::new(folder.path());
    attack(
        Path::new(&server.url("large")),
        &TTL,
        "30 MB of .zmetadata from a server",
        |mount| {
            assert_eq!(
                fs::read_dir(mount.join("group"))
                    .unwrap()
                    .filter(|e| e.as_ref().unwrap().file_type().unwrap().is_dir())
                    .count(),
                10_000
            );
            assert_eq!(
                read(&mount.join("group/a00007/data.raw")).unwrap(),
                b"ab\0\0"
            );
            assert!(
                read(&mount.join("group/a09999/.zattrs"))
                    .unwrap()
                    .starts_with(b"{\"units\":\"K\"")
            );
            // two such documents and their index exceed the memory for documents
            let _ = read(&mount.join(".zmetadata"));
        },
    );
    let daemon = Daemon::start(
        Path::new(&server.url("large")),
        &["--cache-size", "128M", TTL[0], TTL[1]],
    );
    assert!(read(&daemon.path().join(".zmetadata")).unwrap().len() > 28_000_000);
    daemon.unmount();
    for (name, told) in [
        ("numbers", "group/a00000"),
        ("names", "--cache-size"),
        ("vast", "67108864"),
    ] {
        attack(
            Path::new(&server.url(name)),
            &TTL,
            &format!("{name} in the .zmetadata of a server"),
            move |mount| {
                list(mount);
                let _ = read(&mount.join("group/a00000/.zattrs"));
                let _ = read(&mount.join(".zmetadata"));
                let stats = stats(mount);
                assert!(
                    name == "numbers" || stats.contains(told) && stats.contains(".zmetadata"),
                    "{name}: {stats}"
                );
            },
        );
    }
}

/// The server ignores ranges and sends each value from its beginning.
#[test]
fn reads_from_a_server_without_ranges_take_little_memory() {
    use support::faulty_server::Fault;
    let folder = tempfile::tempdir().unwrap();
    write_file(folder.path().join(".zgroup"), "{\"zarr_format\":2}");
    write_file(
        folder.path().join(".zmetadata"),
        "{\"metadata\":{\".zgroup\":{\"zarr_format\":2}}}",
    );
    let size = 60 << 20;
    for i in 0..8 {
        write_file(folder.path().join(format!("plain{i}")), vec![7; size]);
    }
    let server = FaultyServer::new(folder.path());
    for i in 0..8 {
        server.set(&format!("plain{i}"), Fault::IgnoredRange);
    }
    attack(
        Path::new(&server.url("")),
        &[],
        "a server without ranges",
        move |mount| {
            std::thread::scope(|scope| {
                for i in 0..8 {
                    let path = mount.join(format!("plain{i}"));
                    scope.spawn(move || {
                        let mut end = [0; 9];
                        let _ = File::open(path)
                            .and_then(|file| file.read_exact_at(&mut end, size as u64 - 9));
                    });
                }
            });
        },
    );
}

/// Returns a shard of `count` equal chunks.
fn shard(chunk: &[u8], count: u64) -> Vec<u8> {
    let len = chunk.len() as u64;
    let mut index: Vec<u8> = (0..count)
        .flat_map(|i| [i * len, len])
        .flat_map(u64::to_le_bytes)
        .collect();
    index.extend(crc32c::crc32c(&index).to_le_bytes());
    [chunk.repeat(count as usize), index].concat()
}

/// Chunks and neighboring chunks of shards are received into buffers that are reused, and that stay
/// when others of other sizes are needed.
#[test]
fn buffers_for_what_servers_send_take_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    write_file(
        folder.path().join("zarr.json"),
        "{\"zarr_format\":3,\"node_type\":\"group\"}",
    );
    let size = 256 << 10;
    let count = 64;
    let objects = 6;
    let encoded_chunk = {
        let chunk = vec![7; size];
        [chunk.as_slice(), &crc32c::crc32c(&chunk).to_le_bytes()].concat()
    };
    let shard_size = size as u64 * count;
    let chunk_size = 3 << 20;
    let index =
        json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]);
    let inner = json!([{"name": "bytes"}, {"name": "crc32c"}]);
    let codecs = json!([{"name": "sharding_indexed",
        "configuration": {"chunk_shape": [size], "codecs": inner, "index_codecs": index}}]);
    let document = |shape: u64, chunk: u64, codecs: Value| {
        json!({"zarr_format": 3, "node_type": "array", "shape": [shape], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
            "chunk_key_encoding": {"name": "default"}, "codecs": codecs})
        .to_string()
    };
    write_file(
        folder.path().join("shards/zarr.json"),
        document(objects * shard_size, shard_size, codecs),
    );
    write_file(
        folder.path().join("chunks/zarr.json"),
        document(32 * chunk_size, chunk_size, inner),
    );
    let large = vec![7; chunk_size as usize];
    let stored = shard(&encoded_chunk, count);
    (0..objects).for_each(|i| write_file(folder.path().join(format!("shards/c/{i}")), &stored));
    let stored = [large.as_slice(), &crc32c::crc32c(&large).to_le_bytes()].concat();
    (0..32).for_each(|i| write_file(folder.path().join(format!("chunks/c/{i}")), &stored));
    let server = FaultyServer::new(folder.path());
    for first in ["shards", "chunks"] {
        attack(
            Path::new(&server.url("")),
            &TTL,
            &format!("{first} of a server, then others"),
            move |mount| {
                let others = if first == "shards" {
                    "chunks"
                } else {
                    "shards"
                };
                for name in [first, others, first] {
                    let bytes = read(&mount.join(name).join("data.raw")).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == 7), "{name}");
                }
            },
        );
    }
}

/// Returns an archive of deflated members, each with its name, deflated bytes, decoded size and
/// checksum.
fn archive(members: &[(&str, &[u8], u64, u32)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut directory = Vec::new();
    for (name, data, size, crc) in members {
        let fields = |out: &mut Vec<u8>| {
            out.extend([20, 0, 0, 0, 8, 0, 0, 0, 0x21, 0x5a]);
            for number in [*crc, data.len() as u32, *size as u32] {
                out.extend(number.to_le_bytes());
            }
            out.extend([name.len() as u8, 0, 0, 0]);
        };
        let offset = file.len() as u32;
        directory.extend(b"PK\x01\x02\x14\x00");
        fields(&mut directory);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
        file.extend(b"PK\x03\x04");
        fields(&mut file);
        file.extend(name.as_bytes());
        file.extend(*data);
    }
    let start = file.len() as u32;
    let count = (members.len() as u16).to_le_bytes();
    file.extend(&directory);
    file.extend(b"PK\x05\x06\0\0\0\0");
    file.extend([count, count].concat());
    file.extend([(directory.len() as u32).to_le_bytes(), start.to_le_bytes()].concat());
    file.extend([0, 0]);
    file
}

#[test]
fn deflated_members_of_an_archive_take_little_memory() {
    let store = tempfile::tempdir().unwrap();
    let size = 300 << 20;
    let mut value = vec![0; size];
    value
        .iter_mut()
        .step_by(1 << 20)
        .enumerate()
        .for_each(|(i, byte)| *byte = i as u8);
    let zlib = encoded(json!({"id": "zlib", "level": 1}), &value);
    // without zlib's header and checksum
    let bomb = &zlib[2..zlib.len() - 4];
    let crc = crc32fast::hash(&value);
    let zgroup = b"{\"zarr_format\":2}";
    let group = encoded(json!({"id": "zlib"}), zgroup);
    let document = json!({"zarr_format": 2, "shape": [size], "chunks": [size], "dtype": "|u1",
        "compressor": null, "fill_value": 0, "order": "C", "filters": null})
    .to_string();
    let zarray = encoded(json!({"id": "zlib"}), document.as_bytes());
    let bare = |zlib: &Vec<u8>| zlib[2..zlib.len() - 4].to_vec();
    let group = bare(&group);
    let zarray = bare(&zarray);
    let path = store.path().join("x.zip");
    let members = [
        (
            ".zgroup",
            &group[..],
            zgroup.len() as u64,
            crc32fast::hash(zgroup),
        ),
        (
            "a/.zarray",
            &zarray[..],
            document.len() as u64,
            crc32fast::hash(document.as_bytes()),
        ),
        ("a/0", bomb, size as u64, crc),
        ("a/.zattrs", bomb, size as u64, crc),
        ("plain1", bomb, size as u64, crc),
        ("plain2", bomb, size as u64, crc),
        ("plain3", bomb, size as u64, crc ^ 1),
    ];
    write_file(path.clone(), archive(&members));
    attack(&path, &[], "deflated members of an archive", move |mount| {
        let byte = |name: &str, at: usize| {
            let mut byte = [0; 3];
            File::open(mount.join(name))
                .and_then(|file| file.read_exact_at(&mut byte, at as u64))
                .map(|()| byte)
        };
        for name in ["plain1", "plain2", "a/data.raw"] {
            for mib in [299, 7, 150, 151, 3] {
                assert_eq!(
                    byte(name, (mib << 20) - 1).unwrap(),
                    [0, mib as u8, 0],
                    "{name} {mib}"
                );
            }
        }
        assert!(byte("plain3", 0).is_err(), "the checksum is wrong");
        list(&mount.join("a"));
        let _ = read(&mount.join("a/.zattrs"));
        let all = read(&mount.join("plain1")).unwrap();
        assert!(crc32fast::hash(&all) == crc && all.len() == size);
    });
}

#[test]
fn writing_chunks_of_objects_takes_little_memory() {
    let store = tempfile::tempdir().unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    let objects = json!({"dtype": "|O", "fill_value": null, "filters": [{"id": "vlen-bytes"}]});
    array(&store.path().join("o"), 100, 10, objects);
    attack(
        store.path(),
        &[],
        "chunks of objects that are written",
        |mount| {
            let mut drafts = Vec::new();
            for i in 0..10 {
                let Ok(mut file) = File::create(mount.join(format!("o/{i}"))) else {
                    continue;
                };
                let piece = vec![0; 1 << 20];
                let written = (0..64)
                    .take_while(|_| file.write_all(&piece).is_ok())
                    .count();
                assert!(i > 0 || written >= 8, "{written}");
                drafts.push(file);
            }
            drop(drafts);
        },
    );
}

#[test]
fn encoders_take_little_memory() {
    const CHUNK: usize = 2 << 20;
    const SIZE: usize = 4 * CHUNK;
    let store = tempfile::tempdir().unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    for (name, codec) in [
        ("zstd", json!({"id": "zstd", "level": 22})),
        ("lzma", json!({"id": "lzma", "preset": 9})),
    ] {
        let path = store.path().join(name);
        array(
            &path,
            SIZE as u64,
            CHUNK as u64,
            json!({"compressor": codec}),
        );
    }
    let what = "encoders of tens of megabytes";
    attack(store.path(), &[], what, move |mount| {
        let bytes: Vec<u8> = (0..SIZE).map(|i| ((i * i) >> 9) as u8).collect();
        let write = |name: &str| {
            let path = mount.join(name).join("data.raw");
            let mut file = File::options().write(true).open(path)?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        write("zstd").unwrap();
        assert!(fs::read(mount.join("zstd/data.raw")).unwrap() == bytes);
        // one of these alone exceeds the bound
        let refused = write("lzma").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM));
    });
}

/// Creates a directory of empty files.
fn create_files(directory: &Path, names: impl Iterator<Item = String>) {
    fs::create_dir_all(directory).unwrap();
    let directory = File::open(directory).unwrap();
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    for name in names {
        rustix::fs::openat(&directory, name, flags, rustix::fs::Mode::RUSR).unwrap();
    }
}

/// The daemon keeps the path of each name until the kernel forgets it. Long paths need fewer names
/// for the same memory.
#[test]
fn looking_up_many_names_takes_little_memory() {
    const NAMES: u64 = 40_000;
    let store = match Path::new("/dev/shm") {
        memory if memory.is_dir() => tempfile::tempdir_in(memory),
        _ => tempfile::tempdir(),
    };
    let store = store.unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    let deep: PathBuf = (0..12).map(|i| format!("{i:0>240}")).collect();
    array(
        &store.path().join(&deep).join("chunks"),
        NAMES,
        1,
        json!({}),
    );
    let plain = |i: u64| format!("{i:x>240}");
    create_files(
        &store.path().join(&deep).join("chunks"),
        (0..NAMES).map(|i| i.to_string()),
    );
    create_files(
        &store.path().join(&deep).join("plain"),
        (0..NAMES).map(plain),
    );
    attack(
        store.path(),
        &[],
        "names that were looked up",
        move |mount| {
            let [chunks, files] = ["chunks", "plain"].map(|name| mount.join(&deep).join(name));
            let held = File::open(chunks.join("7")).unwrap();
            for directory in [&chunks, &files] {
                // list and look up, as `ls -l` does
                let names = fs::read_dir(directory).unwrap();
                let sizes =
                    names.map(|name| name.unwrap().path().symlink_metadata().unwrap().len());
                assert!(sizes.count() as u64 >= NAMES);
            }
            // look up the names without listing them, in several threads
            std::thread::scope(|scope| {
                for first in 0..4 {
                    let files = &files;
                    scope.spawn(move || {
                        for i in (first..NAMES).step_by(4) {
                            assert!(files.join(plain(i)).symlink_metadata().is_ok());
                        }
                    });
                }
            });
            // the name of an open file stays
            assert_eq!(
                fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd())).unwrap(),
                chunks.join("7")
            );
            assert_eq!(
                held.metadata().unwrap().ino(),
                fs::metadata(chunks.join("7")).unwrap().ino()
            );
        },
    );
}

#[test]
fn replacing_a_chunk_of_order_f_takes_little_memory() {
    let store = tempfile::tempdir().unwrap();
    write_file(store.path().join(".zgroup"), "{\"zarr_format\":2}");
    let document = json!({"zarr_format": 2, "shape": [4096, 4096], "chunks": [4096, 4096], "dtype": "|u1",
        "compressor": null, "fill_value": 0, "order": "F", "filters": null});
    write_file(store.path().join("f/.zarray"), document.to_string());
    let stored = store.path().join("f/0.0");
    attack(
        store.path(),
        &[],
        "a chunk of order F that is replaced",
        move |mount| {
            let bytes: Vec<u8> = (0..16 << 20).map(|i: u32| (i % 251) as u8).collect();
            fs::write(mount.join("f/0.0"), &bytes).unwrap();
            assert!(
                fs::read(stored).unwrap() == bytes,
                "the store holds the bytes of the chunk file"
            );
        },
    );
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Documents that state far more than they hold, in every field that states a size, a number or a
/// structure.
fn overstating_documents() -> Vec<(String, Value)> {
    let mut documents = Vec::new();
    let mut v2 = |name: &str, more: Value| {
        let mut document = json!({"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": null,
            "fill_value": 0, "order": "C", "filters": null});
        document
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        documents.push((format!("v2 {name}"), document));
    };
    let large = "x".repeat(1 << 20);
    for dtype in ["|S2147483647", "|V2147483647", "<U536870911", ">U536870911"] {
        for fill in [
            json!(""),
            json!("AAEC"),
            json!(large),
            json!(0),
            json!(null),
        ] {
            v2(
                dtype,
                json!({"dtype": dtype, "fill_value": fill, "chunks": [1]}),
            );
        }
    }
    let fields = |count: usize, dtype: &Value| -> Value {
        (0..count)
            .map(|i| json!([format!("f{i}"), dtype]))
            .collect()
    };
    v2(
        "fields",
        json!({"dtype": fields(60_000, &json!("<f4")), "fill_value": null}),
    );
    v2(
        "fields within",
        json!({"dtype": fields(20_000, &json!("<f4")), "fill_value": null}),
    );
    v2(
        "long names",
        json!({"dtype": [[large, "<f4"], [format!("{large}y"), "<f4"]], "fill_value": null}),
    );
    v2(
        "nested fields",
        json!({"dtype": fields(200, &fields(200, &json!("<f4"))), "fill_value": null}),
    );
    let deep = (0..50).fold(json!("<f4"), |inner, i| {
        json!([[format!("a{i}"), inner], ["b", "|V1000000"]])
    });
    v2("deep fields", json!({"dtype": deep, "fill_value": "AAEC"}));
    v2(
        "subarrays",
        json!({"dtype": [["a", "<f4", vec![1; 50_000]], ["b", "|V1", [2147483000]]], "fill_value": "AAEC"}),
    );
    v2(
        "dimensions",
        json!({"shape": vec![1; 1_000_000], "chunks": vec![1; 1_000_000]}),
    );
    v2(
        "filters",
        json!({"filters": vec![json!({"id": "delta", "dtype": "<i4"}); 60]}),
    );
    v2(
        "compressor",
        json!({"compressor": {"id": "zlib", "level": 1, "more": vec![json!({"a": 1}); 50_000]}}),
    );
    let mut v3 = |name: &str, more: Value| {
        let mut document = json!({"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, "fill_value": 0,
            "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]});
        document
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        documents.push((format!("v3 {name}"), document));
    };
    for name in ["fixed_length_utf32", "null_terminated_bytes", "raw_bytes"] {
        let data_type = json!({"name": name, "configuration": {"length_bytes": 256 << 20}});
        for fill in [json!(""), json!(large), json!(null)] {
            v3(name, json!({"data_type": data_type, "fill_value": fill}));
        }
    }
    v3(
        "raw bits",
        json!({"data_type": "r2147483640", "fill_value": null}),
    );
    let fields = |count: usize, data_type: Value| -> Value {
        let list: Value = (0..count)
            .map(|i| json!({"name": format!("f{i}"), "data_type": data_type}))
            .collect();
        json!({"name": "struct", "configuration": {"fields": list}})
    };
    v3(
        "fields",
        json!({"data_type": fields(60_000, json!("float32")), "fill_value": null}),
    );
    v3(
        "fields within",
        json!({"data_type": fields(20_000, json!("float32")), "fill_value": null}),
    );
    let wide = json!({"name": "raw_bytes", "configuration": {"length_bytes": 1 << 20}});
    v3(
        "wide fields",
        json!({"data_type": fields(2_000, wide), "fill_value": null}),
    );
    v3(
        "listed chunks",
        json!({"shape": [1u64 << 40], "chunk_grid": {"name": "rectilinear", "configuration":
        {"kind": "inline", "chunk_shapes": [vec![json!([1, 1u64 << 40]); 200_000]]}}}),
    );
    v3(
        "scalar map",
        json!({"codecs": [{"name": "cast_value", "configuration": {"data_type": "int8", "scalar_map":
        {"encode": vec![json!([1, 2]); 200_000]}}}, {"name": "bytes"}]}),
    );
    let shards = |inner: Value, _: i32| {
        json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [1],
        "codecs": inner, "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}]}}])
    };
    v3(
        "shards of shards",
        json!({"codecs": (0..40).fold(json!([{"name": "bytes"}]), shards)}),
    );
    v3(
        "vast shards",
        json!({"shape": [1u64 << 60], "codecs": shards(json!([{"name": "bytes"}]), 0),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1u64 << 60]}}}),
    );
    v3("names", json!({"dimension_names": [large]}));
    documents
}

/// Nothing whose size a document states exists before it is checked and counted: with the smallest
/// cache, a document takes no more than all grants together, whatever it states.
#[test]
fn documents_take_no_memory_that_is_not_granted() {
    budget::set_cache_bound(0);
    for (name, document) in overstating_documents() {
        let text = document.to_string();
        drop(document);
        budget::begin_request();
        let (peak, parsed) = counting::peak_of(|| {
            if name.starts_with("v3") {
                ArrayMetadata::parse_v3(text.as_bytes())
            } else {
                ArrayMetadata::parse(text.as_bytes())
            }
        });
        let (of_view, _) = counting::peak_of(|| {
            parsed
                .as_ref()
                .map(|metadata| metadata.shown_document().len())
        });
        let said = parsed
            .as_ref()
            .map_or_else(|e| e.to_string(), |_| "read".to_string());
        assert!(
            peak < budget::limit() + (2 << 20),
            "{name}: {} MiB, {said:.200}",
            peak >> 20
        );
        assert!(
            of_view < 16 << 20,
            "{name}: its view takes {} MiB",
            of_view >> 20
        );
        assert!(
            said.len() < 4 << 20,
            "{name}: its error has {} bytes",
            said.len()
        );
    }
    let v1 = json!({"zarr_format": 1, "shape": [4], "chunks": [1], "dtype": "|S2147483647", "compression": null,
        "compression_opts": null, "fill_value": "x", "order": "C"});
    let (peak, _) =
        counting::peak_of(|| ArrayMetadata::parse_v1(v1.to_string().as_bytes(), V1Order::Zarr1));
    assert!(peak < 1 << 20, "v1: {} MiB", peak >> 20);
}

/// "`check --deep` and `info --map --deep` keep the bound of a daemon", with chunks that decode
/// beside each other, and with one that `cat` refuses, too, in the same words.
#[test]
fn a_deep_check_stays_within_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s");
    write_file(store.join(".zgroup"), "{\"zarr_format\":2}");
    for (name, chunk, count) in [("large", 256 << 20, 1), ("many", 8 << 20, 24)] {
        let codec = support::array::zlib();
        let made = support::array::TestArray::with_zeros(store.join(name), chunk, count, codec);
        drop(made);
    }
    let path = support::text(&store);
    let wide = [&CACHE[..], &["--threads", "16"]].concat();
    let (found, peak) = peak_of_command(&[&["check", "--deep", path][..], &wide].concat());
    announce(&format!("memory: a deep check: {} MiB", peak >> 20));
    assert!(peak <= idle() + BOUND + BESIDE, "{} MiB", peak >> 20);
    let (drawn, peak) = peak_of_command(&[&["info", "--map", "--deep", path][..], &wide].concat());
    assert!(
        peak <= idle() + BOUND + BESIDE,
        "{} MiB: {drawn}",
        peak >> 20
    );
    let large = format!("{path}/large");
    let refused = support::zarrfs(&[&["cat", &large][..], &CACHE].concat());
    let (code, said) = support::failure(&refused);
    let why = said
        .rsplit_once(": a chunk needs ")
        .expect("cat refuses it")
        .1;
    assert_eq!(code, 1);
    let findings: Vec<&str> = found
        .lines()
        .filter(|line| line.starts_with("error "))
        .collect();
    assert!(
        findings.len() == 1
            && findings[0].contains("/large")
            && findings[0].ends_with(&format!("a chunk needs {why}; it was not examined")),
        "{found} {said}"
    );
}
