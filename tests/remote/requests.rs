//! The number of requests that commands and mounts send to a server, as the test server counts
//! them. `info` takes about one request for each document, and a consolidated hierarchy takes a
//! handful, whatever its size.

use crate::support;
use crate::support::faulty_server::FaultyServer;
use crate::support::servers;
use crate::support::{Mount, ZARRFS, env_path, run, with_timeout, write_file};
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A format of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    V2,
    V3,
}

const FORMATS: [Format; 2] = [Format::V2, Format::V3];

/// A bucket that holds `store.zarr`.
struct Bucket {
    folder: tempfile::TempDir,
    server: FaultyServer,
}

impl Bucket {
    /// Creates a store of `groups` groups of `arrays` arrays of two chunks.
    fn new(format: Format, groups: usize, arrays: usize, consolidated: bool) -> Bucket {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("bucket/store.zarr");
        let mut documents = serde_json::Map::new();
        for group in 0..groups {
            let name = format!("g{group:02}");
            add(&root, &name, group_documents(format), &mut documents);
            for array in 0..arrays {
                let name = format!("{name}/a{array:03}");
                add(&root, &name, array_documents(format), &mut documents);
                for chunk in 0..2 {
                    let key = if format == Format::V2 {
                        format!("{chunk}.0")
                    } else {
                        format!("c/{chunk}/0")
                    };
                    write_file(root.join(&name).join(key), [7; 400]);
                }
            }
        }
        let mut own = group_documents(format);
        if consolidated && format == Format::V2 {
            documents.insert(".zgroup".into(), own[0].1.clone());
            own.push((
                ".zmetadata",
                json!({"zarr_consolidated_format": 1, "metadata": documents}),
            ));
        } else if consolidated {
            let nodes = documents
                .into_iter()
                .map(|(key, value)| (key.trim_end_matches("/zarr.json").into(), value));
            let nodes: serde_json::Map<String, Value> = nodes.collect();
            own[0].1["consolidated_metadata"] =
                json!({"kind": "inline", "must_understand": false, "metadata": nodes});
        }
        own.iter().for_each(|(name, document)| {
            write_file(root.join(name), document.to_string().as_bytes())
        });
        let server = FaultyServer::new(folder.path());
        server.set_latency(Duration::from_millis(latency().unwrap_or(0)));
        Bucket { folder, server }
    }

    fn path(&self, key: &str) -> std::path::PathBuf {
        self.folder.path().join("bucket/store.zarr").join(key)
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = with_timeout(120, ZARRFS);
        command.args([verb, "--anon", "--region", "us-east-1", "--endpoint-url"]);
        command
            .arg(self.server.url("").trim_end_matches('/'))
            .env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    /// Mounts the store. Cached metadata lasts longer than a test, unless `args` say otherwise:
    /// the number of requests must not depend on the speed of the machine.
    fn mount(&self, args: &[&str]) -> Mount {
        let mut command = self.command("mount");
        if !args.contains(&"--metadata-ttl") {
            command.args(["--metadata-ttl", "1m"]);
        }
        command.args(args);
        Mount::with_command(command, "s3://bucket/store.zarr".as_ref())
    }

    /// Runs a verb on the store. Returns its output and its requests.
    fn run(&self, verb: &str, args: &[&str]) -> (String, Vec<String>) {
        let mut printed = String::new();
        let requests = requests(&self.server, || {
            let output = self
                .command(verb)
                .args(args)
                .arg("s3://bucket/store.zarr")
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            printed = String::from_utf8(output.stdout).unwrap();
        });
        (printed, requests)
    }
}

fn add(
    root: &Path,
    node: &str,
    own: Vec<(&'static str, Value)>,
    documents: &mut serde_json::Map<String, Value>,
) {
    for (name, document) in own {
        write_file(root.join(node).join(name), document.to_string().as_bytes());
        documents.insert(format!("{node}/{name}"), document);
    }
}

fn group_documents(format: Format) -> Vec<(&'static str, Value)> {
    match format {
        Format::V2 => vec![(".zgroup", json!({"zarr_format": 2}))],
        Format::V3 => vec![(
            "zarr.json",
            json!({"zarr_format": 3, "node_type": "group", "attributes": {}}),
        )],
    }
}

fn array_documents(format: Format) -> Vec<(&'static str, Value)> {
    match format {
        // without dimension_separator, as zarr-python 2.3 wrote them
        Format::V2 => vec![
            (
                ".zarray",
                json!({"zarr_format": 2, "shape": [200, 1], "chunks": [100, 1], "dtype": "<i4", "compressor": null,
                    "fill_value": 0, "order": "C", "filters": null}),
            ),
            (
                ".zattrs",
                json!({"_ARRAY_DIMENSIONS": ["x", "y"], "units": "m"}),
            ),
        ],
        Format::V3 => vec![(
            "zarr.json",
            json!({"zarr_format": 3, "node_type": "array", "shape": [200, 1], "data_type": "int32",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100, 1]}},
                "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0,
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                "attributes": {"units": "m"}, "dimension_names": ["x", "y"]}),
        )],
    }
}

/// The latencies at which mounts are tested, in milliseconds. At the larger one, requests overlap.
const LATENCIES: [u64; 2] = [0, 100];

/// Returns the latency in milliseconds for all measurements, if the environment sets one. With
/// `--nocapture` the tests then print a table of requests, their bounds and times.
fn latency() -> Option<u64> {
    std::env::var("ZARRFS_TEST_LATENCY")
        .ok()
        .map(|latency| latency.parse().unwrap())
}

/// Returns each format at each of the latencies.
fn cases() -> impl Iterator<Item = (Format, u64)> {
    let latencies = latency().map_or(LATENCIES.to_vec(), |latency| vec![latency]);
    FORMATS.into_iter().flat_map(move |format| {
        latencies
            .clone()
            .into_iter()
            .map(move |latency| (format, latency))
    })
}

thread_local! {
    /// The duration of the latest work in [`requests`], in seconds.
    static SECONDS: Cell<f64> = const { Cell::new(0.0) };
}

/// Returns the requests that the server receives during `work`.
fn requests(server: &FaultyServer, work: impl FnOnce()) -> Vec<String> {
    let before = server.requests().len();
    let begun = Instant::now();
    work();
    SECONDS.set(begun.elapsed().as_secs_f64());
    server
        .requests()
        .split_off(before)
        .into_iter()
        .map(|r| format!("{} {}", r.method, r.path))
        .collect()
}

#[track_caller]
fn assert_at_most(most: usize, requests: &[String], what: &str) {
    let count = requests.len();
    println!("| {what} | {count} | {most} | {:.2} s |", SECONDS.get());
    let first = requests
        .iter()
        .take(60)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        count > 0 && count <= most,
        "{what}: {count} requests, not {most} or fewer:\n{first}"
    );
}

#[test]
fn info_requests_only_documents() {
    for format in FORMATS {
        let (printed, requests) = Bucket::new(format, 10, 20, false).run("info", &[]);
        assert_eq!(
            printed
                .lines()
                .filter(|line| line.contains("array") && line.contains("800 B"))
                .count(),
            200
        );
        assert_at_most(
            if format == Format::V2 { 415 } else { 215 },
            &requests,
            &format!("info, {format:?}"),
        );
    }
}

/// The number of requests is proportional to the number of arrays, so 600 arrays stand for any
/// number.
#[test]
fn info_of_many_arrays_requests_only_documents() {
    for (format, most) in [(Format::V2, 1220), (Format::V3, 620)] {
        let (printed, requests) = Bucket::new(format, 6, 100, false).run("info", &[]);
        assert_eq!(printed.lines().count(), 607);
        assert_at_most(most, &requests, &format!("info of 600 arrays, {format:?}"));
    }
}

/// A page of a listing that has only chunks costs a request and finds no array.
#[test]
fn many_chunks_are_not_listed_to_find_arrays() {
    let bucket = Bucket::new(Format::V2, 1, 3, false);
    for chunk in 2..9000 {
        write_file(bucket.path(&format!("g00/a000/{chunk}.0")), b"");
    }
    let (printed, requests) = bucket.run("info", &[]);
    assert_eq!(printed.lines().count(), 5);
    assert_at_most(20, &requests, "info");
}

#[test]
fn a_recursive_listing_takes_one_listing() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 10, 20, false);
        let (printed, requests) = bucket.run("ls", &["-lR"]);
        assert_eq!(
            printed
                .lines()
                .filter(|line| line.ends_with(" data.raw"))
                .count(),
            200,
            "{printed}"
        );
        assert_eq!(
            printed
                .lines()
                .filter(|line| line.trim_start().starts_with("400 "))
                .count(),
            400
        );
        assert_at_most(
            if format == Format::V2 { 430 } else { 230 },
            &requests,
            &format!("ls -lR, {format:?}"),
        );
    }
}

/// The names of all arrays come from listings of the whole store, or of many arrays.
#[test]
fn a_check_requests_only_documents() {
    for format in FORMATS {
        let documents = if format == Format::V2 { 411 } else { 211 };
        let (printed, requests) = Bucket::new(format, 10, 20, false).run("check", &[]);
        assert!(printed.starts_with("200 arrays, 400 chunks, "), "{printed}");
        assert_at_most(documents + 8, &requests, &format!("check, {format:?}"));
    }
}

/// `find`, `du` and `ls -lR` list one array after the other: what the next ones need is requested
/// together.
#[test]
fn a_walk_through_a_mount_takes_few_listings() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 1, 100, false);
        let documents = if format == Format::V2 { 201 } else { 102 };
        for command in [&["find", "."][..], &["ls", "-lR", "."]] {
            let mount = bucket.mount(&[]);
            let of_walk = requests(&bucket.server, || {
                assert!(
                    run(command[0], &command[1..], mount.path())
                        .matches("data.raw")
                        .count()
                        >= 100
                );
            });
            let listings = of_walk
                .iter()
                .filter(|request| request.contains("list-type=2"))
                .cloned()
                .collect::<Vec<_>>();
            assert_at_most(
                30,
                &listings,
                &format!("listings of {command:?}, {format:?}"),
            );
            assert_at_most(
                documents + 30,
                &of_walk,
                &format!("{command:?}, {format:?}"),
            );
        }
    }
}

#[test]
fn listings_in_a_mount_take_a_handful_of_requests() {
    for (format, latency) in cases() {
        let bucket = Bucket::new(format, 2, 20, false);
        bucket.server.set_latency(Duration::from_millis(latency));
        for args in [&[][..], &["--read-only"]] {
            let mount = bucket.mount(args);
            let of_group = requests(&bucket.server, || {
                assert_eq!(
                    run("ls", &["-l", "g00"], mount.path())
                        .matches("a0")
                        .count(),
                    20
                );
            });
            assert_at_most(
                4,
                &of_group,
                &format!("a group of {format:?} at {latency} ms"),
            );
            let mount = bucket.mount(args);
            let of_array = requests(&bucket.server, || {
                assert!(run("ls", &["-l", "g00/a000"], mount.path()).contains("README.txt"));
            });
            assert_at_most(
                7,
                &of_array,
                &format!("an array of {format:?} at {latency} ms"),
            );
        }
    }
}

/// Views depend on the documents of each array: its names are listed, and each document is asked
/// for once. Two more requests find the separator that a document of v2 leaves out.
#[test]
fn a_listing_with_views_takes_five_requests_for_each_array() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 1, 20, false);
        let mount = bucket.mount(&["--views", "all"]);
        let of_group = requests(&bucket.server, || {
            assert!(run("ls", &["g00"], mount.path()).contains("a019"));
        });
        assert_at_most(
            5 * 20 + 8,
            &of_group,
            &format!("a group of {format:?} with views"),
        );
    }
}

#[test]
fn the_first_byte_takes_a_handful_of_requests() {
    for (format, latency) in cases() {
        let most = if format == Format::V2 { 8 } else { 10 };
        let bucket = Bucket::new(format, 2, 20, false);
        bucket.server.set_latency(Duration::from_millis(latency));
        let mount = bucket.mount(&[]);
        let requests = requests(&bucket.server, || {
            assert_eq!(
                run("head", &["-c", "1", "g00/a000/data.raw"], mount.path()),
                "\u{7}"
            );
        });
        assert_at_most(
            most,
            &requests,
            &format!("the first byte of {format:?} at {latency} ms"),
        );
    }
}

/// The absence of a name is cached as long as other metadata, until a file is opened.
#[test]
fn documents_that_appear_are_seen_at_the_next_open() {
    let bucket = Bucket::new(Format::V2, 1, 1, false);
    let mount = bucket.mount(&["--metadata-ttl", "forever"]);
    let array = mount.join("g00/a000");
    assert_eq!(fs::metadata(array.join("data.raw")).unwrap().len(), 800);
    let longer = fs::read_to_string(bucket.path("g00/a000/.zarray"))
        .unwrap()
        .replace("[200,1]", "[300,1]");
    write_file(bucket.path("g00/a000/.zarray"), longer.as_bytes());
    write_file(bucket.path("g00/a000/2.0"), [9; 400]);
    let read = fs::read(array.join("data.raw")).unwrap();
    assert_eq!((read.len(), read[0], read[1199]), (1200, 7, 9));
    fs::remove_file(bucket.path("g00/a000/2.0")).unwrap();
    assert_eq!(fs::read(array.join("data.raw")).unwrap()[1199], 0);
}

#[test]
fn consolidated_metadata_of_a_bucket_replaces_requests_for_documents() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 10, 20, true);
        let (printed, requests) = bucket.run("info", &[]);
        assert_eq!(
            printed
                .lines()
                .filter(|line| line.contains("array") && line.contains("800 B"))
                .count(),
            200
        );
        assert_at_most(20, &requests, &format!("info, consolidated {format:?}"));
        let (listed, requests) = bucket.run("ls", &["-lR"]);
        assert_eq!(
            listed
                .lines()
                .filter(|line| line.ends_with(" data.raw"))
                .count(),
            200
        );
        assert_at_most(40, &requests, &format!("ls -lR, consolidated {format:?}"));
        let (fresh, _) = bucket.run("info", &["--consolidated", "ignore"]);
        assert_eq!(printed, fresh);
    }
}

#[test]
fn consolidated_metadata_of_many_arrays_takes_a_handful_of_requests() {
    for format in FORMATS {
        let (printed, requests) = Bucket::new(format, 6, 100, true).run("info", &[]);
        assert_eq!(printed.lines().count(), 607);
        assert_at_most(
            10,
            &requests,
            &format!("info of 600 consolidated arrays, {format:?}"),
        );
    }
}

/// "A bucket that is only read is listed, and its documents are read from `.zmetadata` until a file
/// is opened."
#[test]
fn mounts_that_are_only_read_use_consolidated_metadata() {
    for (format, latency) in cases() {
        let bucket = Bucket::new(format, 2, 20, true);
        bucket.server.set_latency(Duration::from_millis(latency));
        let mount = bucket.mount(&["--read-only"]);
        let of_group = requests(&bucket.server, || {
            _ = run("ls", &["-l", "g00"], mount.path())
        });
        assert_at_most(
            3,
            &of_group,
            &format!("a group of consolidated {format:?} at {latency} ms"),
        );
        let mount = bucket.mount(&["--read-only"]);
        let of_array = requests(&bucket.server, || {
            _ = run("ls", &["-l", "g00/a000"], mount.path())
        });
        assert_at_most(
            4,
            &of_array,
            &format!("an array of consolidated {format:?} at {latency} ms"),
        );
        let mount = bucket.mount(&["--read-only"]);
        let of_byte = requests(&bucket.server, || {
            assert_eq!(
                run("head", &["-c", "1", "g00/a000/data.raw"], mount.path()),
                "\u{7}"
            );
        });
        // the last request is for the second chunk, which the kernel reads ahead
        assert_at_most(
            6,
            &of_byte,
            &format!("the first byte of consolidated {format:?} at {latency} ms"),
        );
    }
}

/// The HDF5 file of a group has an address for each array, which depends on all documents.
#[test]
fn the_first_value_of_an_hdf5_file_takes_a_handful_of_requests() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 2, 300, true);
        let mount = bucket.mount(&["--read-only", "--containers", "h5"]);
        let of_value = requests(&bucket.server, || {
            let file = fs::File::open(mount.join("dataset.h5")).unwrap();
            let mut value = [0];
            for at in [0, 4 << 20] {
                file.read_exact_at(&mut value, at).unwrap();
            }
            assert_eq!(value, [7]);
        });
        let what = format!("the first value of 600 arrays in HDF5, consolidated {format:?}");
        assert_at_most(8, &of_value, &what);
    }
}

/// "Its documents are read from `.zmetadata` until a file is opened."
#[test]
fn opening_a_file_revalidates_its_document() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 1, 3, true);
        let mount = bucket.mount(&["--read-only", "--metadata-ttl", "forever"]);
        let flat = |array: &str| mount.join("g00").join(array).join("data.raw");
        let length = |array: &str| fs::metadata(flat(array)).unwrap().len();
        let (document, chunk) = match format {
            Format::V2 => (".zarray", "2.0"),
            Format::V3 => ("zarr.json", "c/2/0"),
        };
        let made = fs::metadata(flat("a000")).unwrap().modified().unwrap();
        for array in ["a000", "a001"] {
            let path = bucket.path("g00").join(array);
            let text = fs::read_to_string(path.join(document)).unwrap();
            write_file(
                path.join(document),
                text.replace("\"shape\":[200,1]", "\"shape\":[300,1]")
                    .as_bytes(),
            );
            write_file(path.join(chunk), [9; 400]);
        }
        assert_eq!([length("a000"), length("a001")], [800; 2], "{format:?}");
        let read = fs::read(flat("a000")).unwrap();
        assert_eq!(
            (read.len(), read[0], read[1199]),
            (1200, 7, 9),
            "{format:?}"
        );
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(
            [length("a000"), length("a001"), length("a002")],
            [1200, 800, 800],
            "{format:?}"
        );
        assert!(fs::metadata(flat("a000")).unwrap().modified().unwrap() >= made);
        // a new array has no entry in the consolidated metadata
        let new = bucket.path("g00/new");
        array_documents(format)
            .iter()
            .for_each(|(name, text)| write_file(new.join(name), text.to_string().as_bytes()));
        assert_eq!(length("new"), 800);
        fs::remove_dir_all(bucket.path("g00/a002")).unwrap();
        assert!(fs::read(flat("a002")).is_err(), "{format:?}");
    }
}

#[test]
fn info_on_a_web_server_requests_only_consolidated_metadata() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 6, 100, true);
        let url = bucket.server.url("bucket/store.zarr");
        let requests = requests(&bucket.server, || {
            let output = with_timeout(120, ZARRFS)
                .args(["info", &url])
                .output()
                .unwrap();
            assert_eq!(
                String::from_utf8_lossy(&output.stdout)
                    .matches("800 B")
                    .count(),
                600
            );
        });
        assert_at_most(
            10,
            &requests,
            &format!("info of 600 consolidated arrays over HTTP, {format:?}"),
        );
    }
}

/// Neighboring chunks of a shard are read together, and its index by one request.
#[test]
fn reading_a_sharded_array_takes_two_requests_for_each_shard() {
    const CHUNK: usize = 64 << 10;
    let shards = 8;
    let chunks = 32;
    let bucket = Bucket::new(Format::V3, 0, 0, false);
    let names: &[_] = &[json!({"name": "bytes"})];
    let index =
        json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]);
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": [shards * chunks * CHUNK],
        "data_type": "uint8", "fill_value": 0, "chunk_key_encoding": {"name": "default"},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunks * CHUNK]}},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [CHUNK], "codecs": names,
            "index_codecs": index}}]});
    write_file(bucket.path("a/zarr.json"), document.to_string().as_bytes());
    let mut flat = Vec::new();
    for shard in 0..shards {
        let start = flat.len();
        flat.extend((0..chunks * CHUNK).map(|at| (at / 1000 * 7 + shard * 31) as u8));
        let mut object = flat[start..].to_vec();
        let places = (0..chunks).flat_map(|chunk| [(chunk * CHUNK) as u64, CHUNK as u64]);
        let index: Vec<u8> = places.flat_map(u64::to_le_bytes).collect();
        object.extend_from_slice(&index);
        object.extend(crc32c::crc32c(&index).to_le_bytes());
        write_file(bucket.path(&format!("a/c/{shard}")), &object);
    }
    let web = || {
        let mut command = with_timeout(120, ZARRFS);
        command.args(["mount", "--metadata-ttl", "1m"]);
        Mount::with_command(command, bucket.server.url("bucket/store.zarr").as_ref())
    };
    for mount in [bucket.mount(&[]), web()] {
        let looked = requests(&bucket.server, || {
            fs::metadata(mount.join("a/data.raw")).unwrap();
        });
        assert!(
            !looked.iter().any(|request| request.contains("/a/c/")),
            "{looked:?}"
        );
        let requests = requests(&bucket.server, || {
            assert!(
                fs::read(mount.join("a/data.raw")).unwrap() == flat,
                "other bytes"
            );
        });
        // two for each shard, and some for the document, the names, and the chunks that are read
        // before prefetching begins
        assert_at_most(2 * shards + 12, &requests, "8 shards of 32 chunks");
    }
}

/// Small members that are neighbors are read together.
#[test]
fn an_archive_on_a_web_server_is_read_in_few_parts() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 1, 20, false);
        servers::zip(&bucket.path(""), bucket.folder.path(), "store.zip", true);
        let url = bucket.server.url("store.zip");
        let requests = requests(&bucket.server, || {
            let output = with_timeout(120, ZARRFS)
                .args(["ls", "-lR", &url])
                .output()
                .unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(
                printed
                    .lines()
                    .filter(|line| line.ends_with(" data.raw"))
                    .count(),
                20
            );
        });
        assert_at_most(
            10,
            &requests,
            &format!("ls -lR of an archive over HTTP, {format:?}"),
        );
    }
}

/// Over HTTP, the documents of a group may be in the `.zmetadata` of a store above.
#[test]
fn a_group_of_a_consolidated_store_shows_its_arrays() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 2, 3, true);
        let group = bucket.server.url("bucket/store.zarr/g00");
        let output = with_timeout(60, ZARRFS)
            .args(["info", &group])
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        assert_eq!(
            String::from_utf8_lossy(&output.stdout)
                .matches("800 B")
                .count(),
            3,
            "{format:?}"
        );
        let output = with_timeout(60, ZARRFS)
            .args(["check", "--json", &group])
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&report["arrays"], &report["complete"]),
            (&json!(3), &json!(true)),
            "{report}"
        );
        let read = with_timeout(60, ZARRFS)
            .args(["cat", &format!("{group}/a001")])
            .output()
            .unwrap();
        assert_eq!(read.stdout, [7; 800]);
        let mut mount = Command::new(ZARRFS);
        mount.arg("mount");
        let mount = Mount::with_command(mount, group.as_ref());
        assert_eq!(fs::read(mount.join("a002/data.raw")).unwrap(), [7; 800]);
        // in a bucket, only with this option
        let mut command = bucket.command("info");
        let output = command
            .args(["--consolidated", "use", "s3://bucket/store.zarr/g01"])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout)
                .matches("800 B")
                .count(),
            3,
            "{output:?}"
        );
    }
}

#[test]
fn a_store_whose_arrays_cannot_be_listed_is_reported_as_incomplete() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 1, 2, false);
        let url = bucket.server.url("bucket/store.zarr");
        for verb in ["info", "ls"] {
            let output = with_timeout(60, ZARRFS)
                .args([verb, &url])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                output.status.success()
                    && said.starts_with("warning: ")
                    && said.contains(".zmetadata"),
                "{said}"
            );
        }
        let output = with_timeout(60, ZARRFS)
            .args(["info", "--json", &url])
            .output()
            .unwrap();
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(rows[0]["complete"], json!(false), "{rows}");
        let output = with_timeout(60, ZARRFS)
            .args(["check", "--json", &url])
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&report["complete"], output.status.code()),
            (&json!(false), Some(1)),
            "{report}"
        );
        let mountpoint = tempfile::tempdir().unwrap();
        for (url, is_known) in [(&url, false), (&format!("{url}/g00/a000"), true)] {
            let output = with_timeout(60, ZARRFS)
                .args(["info", url])
                .output()
                .unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty() == is_known,
                "{url}: {output:?}"
            );
            let output = with_timeout(60, ZARRFS)
                .args(["mount", url])
                .arg(mountpoint.path())
                .output()
                .unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty() == is_known,
                "{url}: {output:?}"
            );
            assert!(support::unmount(mountpoint.path()).status.success());
        }
    }
}

/// "Arrays are found by name": an empty listing does not hide them.
#[test]
fn a_listing_of_a_web_server_answers_no_lookup() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 1, 1, false);
        let mut command = with_timeout(60, ZARRFS);
        command.args(["mount", "--metadata-ttl", "forever"]);
        let mount = Mount::with_command(command, bucket.server.url("bucket/store.zarr").as_ref());
        assert!(!support::names(mount.path()).contains("g00"));
        assert_eq!(
            fs::read(mount.join("g00/a000/data.raw")).unwrap(),
            [7; 800],
            "{format:?}"
        );
    }
}

#[test]
fn creating_an_array_takes_at_most_ten_requests() {
    for (format, consolidated) in FORMATS
        .into_iter()
        .flat_map(|format| [(format, false), (format, true)])
    {
        let bucket = Bucket::new(format, 1, 1, consolidated);
        let zarr_format = if format == Format::V2 { "2" } else { "3" };
        let args = [
            "--shape",
            "4,4",
            "--chunks",
            "2,2",
            "--dtype",
            "<i4",
            "--zarr-format",
            zarr_format,
        ];
        for (path, more) in [
            ("store.zarr/new", &[][..]),
            ("store.zarr/g00/new", &["--attrs", r#"{"units": "m"}"#]),
            ("new.zarr/a", &[]),
            ("alone.zarr", &[]),
        ] {
            let url = format!("s3://bucket/{path}");
            let requests = requests(&bucket.server, || {
                let output = bucket
                    .command("create")
                    .args(args)
                    .args(more)
                    .arg(&url)
                    .output()
                    .unwrap();
                assert!(
                    output.status.success(),
                    "{}",
                    String::from_utf8_lossy(&output.stderr)
                );
            });
            assert_at_most(
                10,
                &requests,
                &format!("{path}, {format:?}, consolidated: {consolidated}"),
            );
            let output = bucket.command("info").arg(&url).output().unwrap();
            assert!(
                String::from_utf8_lossy(&output.stdout).contains("64 B"),
                "{output:?}"
            );
        }
        let (shown, _) = bucket.run(
            "info",
            &[
                "--consolidated",
                if consolidated { "use" } else { "ignore" },
            ],
        );
        assert_eq!(
            shown
                .lines()
                .filter(|line| line.contains("new") && line.contains("64 B"))
                .count(),
            2,
            "{shown}"
        );
    }
}

/// A level that is known is not listed again after each change that the mount itself makes.
#[test]
fn creating_an_array_through_a_mount_takes_few_listings() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let script = "
import sys, zarr
path, zarr_format = sys.argv[1], int(sys.argv[2])
a = zarr.create_array(path, shape=(4, 4), chunks=(2, 2), dtype='i4', compressors=None, zarr_format=zarr_format)
a[:] = 1
a.attrs['units'] = 'm'
";
    for format in FORMATS {
        let bucket = Bucket::new(format, 1, 1, false);
        let mount = bucket.mount(&[]);
        let of_array = requests(&bucket.server, || {
            let mut python = with_timeout(120, &python);
            python
                .args(["-W", "ignore", "-c", script])
                .arg(mount.join("g00/new"));
            assert!(
                python
                    .arg(if format == Format::V2 { "2" } else { "3" })
                    .status()
                    .unwrap()
                    .success()
            );
        });
        let listings = of_array
            .iter()
            .filter(|request| request.contains("list-type=2"))
            .cloned()
            .collect::<Vec<_>>();
        assert_at_most(
            20,
            &listings,
            &format!("listings while an array is created, {format:?}"),
        );
        assert_eq!(
            fs::read(mount.join("g00/new/data.raw")).unwrap(),
            [1i32; 16].map(i32::to_le_bytes).concat()
        );
    }
}

#[test]
fn create_does_not_replace_an_array_that_another_program_creates_meanwhile() {
    for format in FORMATS {
        let bucket = Bucket::new(format, 1, 1, false);
        for path in ["store.zarr/new", "store.zarr/group/new", "alone.zarr"] {
            let zarr_format = if format == Format::V2 { "2" } else { "3" };
            let args = [
                "--shape",
                "4,4",
                "--chunks",
                "2,2",
                "--dtype",
                "<i4",
                "--zarr-format",
                zarr_format,
            ];
            let folder = bucket.folder.path().to_path_buf();
            // the document appears after zarrfs has checked that there is none
            bucket.server.set_gate(Box::new(move |request| {
                if request.method == "PUT" && !folder.join(&request.path[1..]).exists() {
                    write_file(folder.join(&request.path[1..]), b"of another");
                }
                None
            }));
            let output = bucket
                .command("create")
                .args(args)
                .arg(format!("s3://bucket/{path}"))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                (output.status.code(), said.lines().count()),
                (Some(1), 1),
                "{said}"
            );
            assert!(
                said.contains("exist") && said.contains("another program"),
                "{said}"
            );
            let name = if path.ends_with("group/new") {
                "group"
            } else {
                path.rsplit('/').next().unwrap()
            };
            let top = bucket
                .folder
                .path()
                .join("bucket")
                .join(if name == "alone.zarr" {
                    ""
                } else {
                    "store.zarr"
                })
                .join(name);
            let mut left = Vec::new();
            support::tree::visit(&top, &mut |found| {
                left.extend(fs::read(top.join(found.path.trim_start_matches('/'))));
                true
            })
            .unwrap();
            assert_eq!(left, [b"of another"], "{format:?} {path}");
        }
    }
}
