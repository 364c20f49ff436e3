//! Archives and stores on HTTP, S3 and Azure servers, on real mounts. Every array is compared with
//! the values that zarr-python reads from its directory, and every name, size and attribute with a
//! mount of that directory.

use crate::support;
use crate::support::digests::{Comparison, Oracle, stage};
use crate::support::servers::{self, RemoteStore, Server};
use crate::support::{Mount, env_number, env_path, test_data, with_timeout};
use rustix::fs::{lgetxattr, llistxattr};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zarrfs_base::json::Value;

/// The smallest number of arrays for a meaningful comparison.
const LEAST: usize = 100;

/// The number of arrays to compare: scripts/soak compares all, but CI has no time for so many
/// mounts and uploads. These are numbers, not proportions, so that the sample is large enough for
/// any set of folders.
#[derive(Clone, Copy)]
struct Sample {
    /// Number of stores that are a single array. Each takes a mount.
    stores: usize,
    /// Number of arrays of the other stores. Each of these stores contributes at least one.
    arrays: usize,
}

/// A sample of all arrays or all stores.
const ALL: usize = usize::MAX;

impl Sample {
    fn new(stores: usize, arrays: usize) -> Sample {
        match env_number("ZARRFS_REMOTE_ALL", 0) {
            0 => Sample { stores, arrays },
            _ => Sample {
                stores: ALL,
                arrays: ALL,
            },
        }
    }
}

/// Returns whether the item at `index` belongs to a sample of `wanted` items, evenly spread over
/// `total`.
fn is_sampled(index: usize, wanted: usize, total: usize) -> bool {
    let before = |index: usize| index * wanted.min(total) / total;
    before(index + 1) > before(index)
}

/// A directory store and its arrays that are compared.
struct Store {
    name: String,
    arrays: Vec<Value>,
    path: PathBuf,
    /// Number of arrays that are not compared.
    left_out: usize,
}

/// Returns the stores of v2 and v1 in all folders that have an oracle.
fn stores(sample: Sample, spare: &Path) -> Vec<Store> {
    let mut stores = Vec::new();
    for (number, folder) in ["ZARRFS_MATRIX", "ZARRFS_REFERENCE"]
        .into_iter()
        .filter_map(env_path)
        .enumerate()
    {
        let mut oracle = Oracle::read(&folder);
        let spare = spare.join(number.to_string());
        std::fs::create_dir_all(&spare).unwrap();
        for (name, arrays) in std::mem::take(&mut oracle.stores) {
            let path = oracle.path(&name, &spare);
            if path.is_dir() && arrays.iter().any(|a| a["zarr_format"] != 3) {
                stores.push(Store {
                    name,
                    arrays,
                    path,
                    left_out: 0,
                });
            }
        }
    }
    choose(sample, &mut stores);
    stores
}

/// Keeps only the arrays of a sample.
fn choose(sample: Sample, stores: &mut [Store]) {
    let is_single = |store: &&Store| store.arrays.len() == 1;
    let singles = stores.iter().filter(is_single).count();
    let in_groups: usize = stores
        .iter()
        .filter(|store| !is_single(store))
        .map(|store| store.arrays.len())
        .sum();
    let mut single = 0;
    for store in stores {
        let all = store.arrays.len();
        if all == 1 {
            store
                .arrays
                .retain(|_| is_sampled(single, sample.stores, singles));
            single += 1;
        } else {
            let wanted = (all * sample.arrays.min(in_groups)).div_ceil(in_groups);
            let mut index = 0..all;
            store
                .arrays
                .retain(|_| is_sampled(index.next().expect("one for each array"), wanted, all));
        }
        store.left_out = all - store.arrays.len();
    }
}

/// Compares the arrays of all stores, each in the mount that `mount` returns for the index of the
/// store.
fn compare(what: &str, stores: &[Store], mount: &mut dyn FnMut(usize) -> Mount) {
    if stores.is_empty() {
        return;
    }
    let mut table = Comparison::default();
    for (number, store) in stores
        .iter()
        .enumerate()
        .filter(|(_, store)| !store.arrays.is_empty())
    {
        table.compare(&store.name, &store.arrays, mount(number).path(), false);
    }
    table.finish(what, stores.iter().map(|store| store.left_out).sum(), LEAST);
}

#[test]
fn archives_are_read_as_zarr_python_reads_the_directory() {
    let spare = tempfile::tempdir().unwrap();
    let stores = stores(Sample::new(12, ALL), spare.path());
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = servers::nginx(folder.path(), "") else {
        return;
    };
    for (stored, how) in [(true, "stored"), (false, "deflated")] {
        let archive = |number: usize| folder.path().join(format!("{how}{number}.zip"));
        let pairs: Vec<_> = stores
            .iter()
            .enumerate()
            .map(|(number, store)| (store.path.as_path(), archive(number)))
            .collect();
        servers::zip_all(&pairs, stored);
        compare(&format!("archives, {how}"), &stores, &mut |number| {
            Mount::new(&archive(number), &[])
        });
        compare(
            &format!("archives over HTTP, {how}"),
            &stores,
            &mut |number| server.store(&format!("{how}{number}.zip")).mount(&[]),
        );
    }
}

/// zarr-python leaves earlier versions of a member in an archive.
#[test]
fn archives_that_zarr_python_has_written_are_read_correctly() {
    let (Some(python), Some(folder)) = (env_path("ZARRFS_TEST_PYTHON"), env_path("ZARRFS_MATRIX"))
    else {
        return;
    };
    let made = tempfile::tempdir().unwrap();
    let Some(server) = servers::nginx(made.path(), "") else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/zip_store.py");
    let archive = made.path().join("dot.zip");
    let status = with_timeout(120, python)
        .arg(script)
        .arg(folder.join("dot.zarr"))
        .arg(&archive)
        .status();
    assert!(status.unwrap().success());
    let arrays = &Oracle::read(&folder).stores["dot.zarr"];
    let mut local = Comparison::default();
    let mut remote = Comparison::default();
    local.compare("dot.zip", arrays, Mount::new(&archive, &[]).path(), true);
    remote.compare(
        "dot.zip",
        arrays,
        server.store("dot.zip").mount(&[]).path(),
        false,
    );
    local.finish("archives of zarr-python", 0, LEAST);
    remote.finish("archives of zarr-python over HTTP", 0, LEAST);
}

/// A bucket gives the same archive as a directory. A server that cannot list gives one with the same
/// arrays, whose documents are those of the consolidated metadata.
#[test]
fn stores_on_servers_are_packed() {
    let made = tempfile::tempdir().unwrap();
    let sample = test_data("sample.zarr");
    let packed = |mut command: std::process::Command, store: &str, name: &str| {
        let archive = made.path().join(name);
        let output = command.arg(store).arg(&archive).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        std::fs::read(archive).unwrap()
    };
    let local = with_timeout(120, support::ZARRFS);
    let pack = |mut command: std::process::Command| {
        command.arg("pack");
        command
    };
    let expected = packed(pack(local), support::text(&sample), "local.zip");
    if let Some(server) = servers::nginx(sample.parent().unwrap(), "") {
        let store = server.store("sample.zarr");
        packed(store.command("pack"), &store.url, "web.zip");
        let read = |path: &str| {
            let path = made.path().join(path);
            let verb = |verb: &str| support::zarrfs(&[verb, support::text(&path)]).stdout;
            (verb("info"), verb("cat"))
        };
        for array in [
            "",
            "/air_temperature",
            "/ocean/lat",
            "/ocean/sea_surface_temperature",
        ] {
            let [local, web] = ["local", "web"].map(|name| read(&format!("{name}.zip{array}")));
            assert!(local == web && !local.0.is_empty(), "{array}");
        }
        // without consolidated metadata nothing tells the arrays
        let group = store.join("ocean").with(&["--consolidated", "ignore"]);
        let archive = made.path().join("none.zip");
        let refused = group.command("pack").arg(&group.url).arg(&archive).output();
        assert_eq!(refused.unwrap().status.code(), Some(1));
        assert!(!archive.exists());
    }
    if let Some(server) = servers::moto() {
        server.upload(&sample, "bucket/sample.zarr");
        let store = server.store("bucket/sample.zarr");
        assert!(packed(store.command("pack"), &store.url, "bucket.zip") == expected);
    }
}

#[test]
fn archives_of_other_programs_are_read_correctly() {
    let Some(folder) = env_path("ZARRFS_REFERENCE") else {
        return;
    };
    let Some(server) = servers::nginx(&folder, "") else {
        return;
    };
    let oracle = Oracle::read(&folder);
    let mut local = Comparison::default();
    let mut remote = Comparison::default();
    for (store, arrays) in oracle
        .stores
        .iter()
        .filter(|(store, _)| store.ends_with(".zip"))
    {
        local.compare(
            store,
            arrays,
            Mount::new(&folder.join(store), &[]).path(),
            true,
        );
        remote.compare(store, arrays, server.store(store).mount(&[]).path(), true);
    }
    local.finish("archives of others", 0, LEAST);
    remote.finish("archives of others over HTTP", 0, LEAST);
}

#[test]
fn stores_on_nginx_are_read_as_zarr_python_reads_the_directory() {
    compare_over_http("HTTP by nginx", Sample::new(12, ALL), |root| {
        servers::nginx(root, "")
    });
}

#[test]
fn stores_on_pythons_http_server_are_read_as_zarr_python_reads_the_directory() {
    compare_over_http(
        "HTTP by Python's http.server",
        Sample::new(7, 200),
        servers::python_http,
    );
}

fn compare_over_http(what: &str, sample: Sample, start: impl Fn(&Path) -> Option<Server>) {
    let spare = tempfile::tempdir().unwrap();
    let mut stores = stores(sample, spare.path());
    let served = tempfile::tempdir().unwrap();
    let Some(server) = start(served.path()) else {
        return;
    };
    // where keys cannot be listed, a path without any document is not a store
    let is_store = |store: &Store| {
        [".zgroup", ".zarray", "meta"]
            .iter()
            .any(|name| store.path.join(name).exists())
    };
    stores.retain(is_store);
    for (number, store) in stores.iter().enumerate() {
        std::os::unix::fs::symlink(&store.path, served.path().join(number.to_string())).unwrap();
    }
    compare(what, &stores, &mut |number| {
        let how = if is_stale(&stores[number]) {
            "ignore"
        } else {
            "auto"
        };
        server
            .store(&number.to_string())
            .mount(&["--consolidated", how])
    });
}

/// Returns whether an array is missing in a store's consolidated metadata.
fn is_stale(store: &Store) -> bool {
    let Ok(text) = std::fs::read(store.path.join(".zmetadata")) else {
        return false;
    };
    let document = zarrfs_base::json::parse(&text).unwrap();
    let is_missing = |array: &Value| {
        document["metadata"]
            .get(format!("{}/.zarray", array["array"].as_str().unwrap()))
            .is_none()
    };
    store.arrays.iter().any(is_missing)
}

#[test]
fn stores_on_moto_are_read_as_zarr_python_reads_the_directory() {
    compare_over_buckets("S3 by moto", servers::moto);
}

#[test]
fn stores_on_localstack_are_read_as_zarr_python_reads_the_directory() {
    compare_over_buckets("S3 by LocalStack", servers::localstack);
}

#[test]
fn stores_on_azurite_are_read_as_zarr_python_reads_the_directory() {
    compare_over_buckets("Azure by azurite", servers::azurite);
}

fn compare_over_buckets(what: &str, start: impl Fn() -> Option<Server>) {
    let spare = tempfile::tempdir().unwrap();
    let mut stores = stores(Sample::new(9, 130), spare.path());
    for store in &mut stores {
        // the object_store crate refuses names with control characters
        let all = store.arrays.len();
        store.arrays.retain(|array| {
            !array["array"]
                .as_str()
                .unwrap()
                .contains(|c: char| c.is_ascii_control())
        });
        store.left_out += all - store.arrays.len();
    }
    let Some(server) = start() else { return };
    let staged = tempfile::tempdir().unwrap();
    for (number, store) in stores.iter().enumerate() {
        let to = staged.path().join(number.to_string());
        stage(&store.path, &store.arrays, &[".zgroup", ".zattrs"], &to);
    }
    server.upload(staged.path(), "stores/all");
    compare(what, &stores, &mut |number| {
        server.store(&format!("stores/all/{number}")).mount(&[])
    });
}

/// The size of a file or directory in bytes, its stored size in blocks, and its extended
/// attributes.
type Seen = (u64, u64, BTreeMap<String, String>);

fn look(path: &Path) -> std::io::Result<Seen> {
    let stat = std::fs::symlink_metadata(path)?;
    let mut listed_paths = vec![0; 64 << 10];
    let length = llistxattr(path, &mut listed_paths)?;
    let mut attributes = BTreeMap::new();
    for name in listed_paths[..length]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 64 << 10];
        let length = lgetxattr(path, name, &mut value)?;
        let text = String::from_utf8_lossy(&value[..length]).into_owned();
        attributes.insert(String::from_utf8_lossy(name).into_owned(), text);
    }
    let size = if stat.is_dir() { 0 } else { stat.len() };
    let blocks = if stat.is_dir() { 0 } else { stat.blocks() };
    Ok((size, blocks, attributes))
}

fn json(path: &Path) -> Value {
    zarrfs_base::json::parse(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the paths below a directory, from listings.
fn listed_paths(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![String::new()];
    while let Some(path) = waiting.pop() {
        for entry in std::fs::read_dir(directory.join(&path)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if path.is_empty() {
                name
            } else {
                format!("{path}/{name}")
            };
            if entry.file_type().unwrap().is_dir() {
                waiting.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Checks that every name that the directory's mount lists looks the same in the other mount. Does
/// not check which names the other mount lists.
fn assert_shows_the_same(directory: &Mount, other: &Mount, can_list: bool) {
    let listed_paths = listed_paths(directory.path());
    assert!(listed_paths.len() > 20, "{listed_paths:?}");
    // a mount that cannot list may not know every document, and then shows another .zmetadata
    for name in listed_paths
        .iter()
        .filter(|name| can_list || *name != ".zmetadata")
    {
        let here = look(&directory.join(name)).unwrap();
        let mut there = look(&other.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        if Path::new(name)
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(".z")
        {
            // documents from .zmetadata are formatted in another way
            assert_eq!(
                json(&other.join(name)),
                json(&directory.join(name)),
                "{name}"
            );
            (there.0, there.1) = (here.0, here.1);
        }
        if !can_list {
            // without listings, the stored size of flat bytes is unknown
            there.1 = here.1;
        }
        assert_eq!(there, here, "{name}");
    }
    for missing in [
        "nothing",
        "air_temperature/9.9.9",
        "air_temperature/0.0",
        ".zarray",
    ] {
        let gone = std::fs::symlink_metadata(other.join(missing))
            .map(|_| ())
            .unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ENOENT), "{missing}");
    }
}

fn assert_lists_the_same(directory: &Mount, other: &Mount) {
    assert_shows_the_same(directory, other, true);
    assert_eq!(listed_paths(other.path()), listed_paths(directory.path()));
}

#[test]
fn archives_and_buckets_list_the_same_names_as_the_directory() {
    let sample = test_data("sample.zarr");
    let directory = Mount::new(&sample, &["--read-only"]);
    let folder = tempfile::tempdir().unwrap();
    for stored in [true, false] {
        let archive = servers::zip(&sample, folder.path(), "sample.zarr.zip", stored);
        assert_lists_the_same(&directory, &Mount::new(&archive, &[]));
    }
    for server in [servers::moto(), servers::azurite()].into_iter().flatten() {
        for path in ["whole", "part/of/it"] {
            let path = if path == "whole" {
                path.to_string()
            } else {
                format!("other/{path}")
            };
            server.upload(&sample, &path);
            assert_lists_the_same(&directory, &server.store(&path).mount(&["--read-only"]));
        }
    }
}

/// Without `.zmetadata` nothing can be listed over HTTP. With it, groups, arrays and documents can
/// be listed.
#[test]
fn http_lists_the_content_of_zmetadata() {
    let store = tempfile::tempdir().unwrap();
    support::copy_tree(&test_data("sample.zarr"), store.path());
    let Some(server) = servers::nginx(store.path(), "") else {
        return;
    };
    let directory = Mount::new(store.path(), &["--read-only"]);
    let remote = server.store("");
    {
        let consolidated = remote.mount(&[]);
        assert_shows_the_same(&directory, &consolidated, false);
        let is_chunk = |name: &&String| {
            name.rsplit('/')
                .next()
                .unwrap()
                .starts_with(|c: char| c.is_ascii_digit())
        };
        let expected: Vec<String> = listed_paths(directory.path())
            .into_iter()
            .filter(|name| !is_chunk(&name))
            .collect();
        let listed: Vec<String> = listed_paths(consolidated.path())
            .into_iter()
            .filter(|name| !is_chunk(&name))
            .collect();
        assert_eq!(listed, expected);
    }
    let ignoring = remote
        .clone()
        .with(&["--consolidated", "ignore"])
        .mount(&[]);
    assert_shows_the_same(&directory, &ignoring, false);
    drop(ignoring);
    std::fs::remove_file(store.path().join(".zmetadata")).unwrap();
    let directory = Mount::new(store.path(), &["--read-only"]);
    assert_shows_the_same(&directory, &remote.mount(&[]), false);
}

/// Parts of large uncompressed chunks are read by ranged requests that fetch little more than the
/// requested bytes.
#[test]
fn a_part_of_an_uncompressed_chunk_is_a_ranged_read() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("a.zarr");
    let made = support::array::TestArray::with_chunks(
        store.clone(),
        &[6 << 20],
        &[6 << 20],
        serde_json::json!({}),
    );
    servers::zip(&store, folder.path(), "a.zip", true);
    let Some(server) = servers::nginx(folder.path(), "") else {
        return;
    };
    for name in ["a.zarr", "a.zip"] {
        let mount = server.store(name).mount(&["--direct-io"]);
        let file = std::fs::File::open(mount.join("data.raw")).unwrap();
        let before = mount.counter("bytes_received");
        let mut bytes = [0; 1000];
        file.read_exact_at(&mut bytes, 3_000_000).unwrap();
        assert_eq!(bytes, made.flat[3_000_000..3_001_000]);
        let read = mount.counter("bytes_received") - before;
        assert!(
            read < 1 << 20,
            "{name}: {read} bytes of 1000 that were asked for"
        );
    }
}

/// `info` and `cat` work on every kind of store without a mount.
#[test]
fn info_and_cat_accept_every_kind_of_store() {
    let sample = test_data("sample.zarr");
    let folder = tempfile::tempdir().unwrap();
    let archive = servers::zip(&sample, folder.path(), "sample.zip", false);
    let plain = |path: &Path| RemoteStore {
        url: path.to_str().unwrap().to_string(),
        args: vec![],
        environment: vec![],
    };
    let mut remotes = vec![plain(&sample), plain(&archive)];
    let http = servers::nginx(folder.path(), "");
    remotes.extend(http.as_ref().map(|server| server.store("sample.zip")));
    let other = servers::nginx(&sample, "");
    remotes.extend(other.as_ref().map(|server| server.store("")));
    let buckets: Vec<Server> = [servers::moto(), servers::azurite()]
        .into_iter()
        .flatten()
        .collect();
    for server in &buckets {
        server.upload(&sample, "bucket/sample.zarr");
        remotes.push(server.store("bucket/sample.zarr"));
    }
    let expected = remotes[0].join("air_temperature").zarrfs("cat", &[]).stdout;
    assert!(expected.len() > 1000);
    for remote in &remotes {
        let array = remote.join("air_temperature");
        let cat = array.zarrfs("cat", &[]);
        assert!(
            cat.status.success(),
            "{}: {}",
            array.url,
            String::from_utf8_lossy(&cat.stderr)
        );
        assert!(cat.stdout == expected, "{}", array.url);
        let info = remote.zarrfs("info", &[]);
        let said = String::from_utf8_lossy(&info.stdout);
        assert!(
            info.status.success() && said.contains("air_temperature"),
            "{}: {info:?}",
            remote.url
        );
    }
}

/// "A directory takes precedence over a value of the same name", which no file system can hold
/// both.
#[test]
fn a_value_with_the_name_of_a_directory_hides_nothing() {
    let sample = test_data("sample.zarr");
    let folder = tempfile::tempdir().unwrap();
    let values = folder.path().join("values");
    std::fs::create_dir(&values).unwrap();
    ["air_temperature", "ocean"]
        .iter()
        .for_each(|name| std::fs::write(values.join(name), "value").unwrap());
    let archive = servers::zip(&sample, folder.path(), "sample.zip", false);
    let add = "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1], 'a'); [z.writestr(n, 'value') for n in sys.argv[2:]]";
    let added = with_timeout(60, "python3")
        .args(["-c", add])
        .arg(&archive)
        .args(["air_temperature", "ocean"])
        .status();
    assert!(added.unwrap().success());
    let url = archive.to_str().unwrap().to_string();
    let mut stores = vec![RemoteStore {
        url,
        args: Vec::new(),
        environment: Vec::new(),
    }];
    let server = servers::moto();
    if let Some(server) = &server {
        server.upload(&sample, "bucket/sample.zarr");
        server.upload(&values, "bucket/sample.zarr");
        let store = server.store("bucket/sample.zarr");
        stores.extend([
            store.clone(),
            store.clone().with(&["--consolidated", "ignore"]),
        ]);
        stores.push(store.with(&["--consolidated", "ignore", "--metadata-ttl", "0"]));
    }
    let printed = |store: &RemoteStore, verb: &str, args: &[&str]| {
        String::from_utf8(store.zarrfs(verb, args).stdout).unwrap()
    };
    let plain = |path: &Path| RemoteStore {
        url: path.to_str().unwrap().into(),
        args: vec![],
        environment: vec![],
    };
    let expected = printed(&plain(&sample), "info", &[]);
    let flat = plain(&sample)
        .join("ocean/sea_surface_temperature")
        .zarrfs("cat", &[])
        .stdout;
    for store in &stores {
        assert_eq!(printed(store, "info", &[]), expected, "{store:?}");
        let found = store.zarrfs("check", &[]);
        let said = String::from_utf8(found.stdout).unwrap();
        let lines = said
            .lines()
            .filter(|line| line.contains("a value with the name of a directory"))
            .count();
        assert_eq!(
            (found.status.code(), lines),
            (Some(1), 2),
            "{store:?}: {said}"
        );
        let mount = store.mount(&[]);
        assert!(
            mount.join("air_temperature").is_dir() && mount.join("ocean").is_dir(),
            "{store:?}"
        );
        assert!(support::names(mount.path()).contains("ocean"), "{store:?}");
        assert!(mount.join("ocean").is_dir(), "{store:?}");
        assert!(
            std::fs::read(mount.join("ocean/sea_surface_temperature/data.raw")).unwrap() == flat,
            "{store:?}"
        );
        let problems = std::fs::read_to_string(mount.join(".zarrfs/stats")).unwrap();
        assert!(
            problems.contains("/ocean: a value with the name of a directory"),
            "{store:?}: {problems}"
        );
    }
}
