//! Stores that are no directories on a real mount: archives, HTTP, S3, Azure, from servers of other hands. Every array is
//! compared with what zarr-python reads of it in its directory, and every name, size and attribute with the mount of the
//! directory itself.

mod support;

use rustix::fs::{lgetxattr, llistxattr};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use support::digests::{Oracle, Table};
use support::servers::{self, Place, Server};
use support::{Mount, data, limited, provided, setting};
use zarrfs::util::json::Value;

/// How many arrays there must be at least for a comparison to mean something.
const LEAST: usize = 100;

/// How many arrays are compared: scripts/soak takes all, CI has no time for that many mounts and uploads. A number, not a
/// proportion, so that the sample is large enough whichever folders of stores there are.
#[derive(Clone, Copy)]
struct Sample {
    /// Stores that are a single array. Each takes a mount.
    stores: usize,
    /// Arrays of the other stores; each of these stores gives at least one.
    arrays: usize,
}

/// All arrays, or all stores.
const ALL: usize = usize::MAX;

impl Sample {
    fn new(stores: usize, arrays: usize) -> Sample {
        match setting("ZARRFS_REMOTE_ALL", 0) {
            0 => Sample { stores, arrays },
            _ => Sample { stores: ALL, arrays: ALL },
        }
    }
}

/// Returns whether the item at `index` belongs to a sample of `wanted` items, evenly spread over `total`.
fn is_sampled(index: usize, wanted: usize, total: usize) -> bool {
    let before = |index: usize| index * wanted.min(total) / total;
    before(index + 1) > before(index)
}

/// A store that is a directory, and those of its arrays that are compared.
struct Store {
    name: String,
    arrays: Vec<Value>,
    path: PathBuf,
    /// Arrays that are not.
    left_out: usize,
}

/// Stores of v2 and v1 of all folders that have an oracle.
fn stores(sample: Sample, spare: &Path) -> Vec<Store> {
    let mut stores = Vec::new();
    for (number, folder) in ["ZARRFS_MATRIX", "ZARRFS_REFERENCE"].into_iter().filter_map(provided).enumerate() {
        let mut oracle = Oracle::read(&folder);
        let spare = spare.join(number.to_string());
        std::fs::create_dir_all(&spare).unwrap();
        for (name, arrays) in std::mem::take(&mut oracle.stores) {
            let path = oracle.path(&name, &spare);
            if path.is_dir() && arrays.iter().any(|a| a["zarr_format"] != 3) {
                stores.push(Store { name, arrays, path, left_out: 0 });
            }
        }
    }
    choose(sample, &mut stores);
    stores
}

/// Keeps the arrays of a sample.
fn choose(sample: Sample, stores: &mut [Store]) {
    let is_single = |store: &&Store| store.arrays.len() == 1;
    let singles = stores.iter().filter(is_single).count();
    let in_groups: usize = stores.iter().filter(|store| !is_single(store)).map(|store| store.arrays.len()).sum();
    let mut single = 0;
    for store in stores {
        let all = store.arrays.len();
        if all == 1 {
            store.arrays.retain(|_| is_sampled(single, sample.stores, singles));
            single += 1;
        } else {
            let wanted = (all * sample.arrays.min(in_groups)).div_ceil(in_groups);
            let mut index = 0..all;
            store.arrays.retain(|_| is_sampled(index.next().expect("one for each array"), wanted, all));
        }
        store.left_out = all - store.arrays.len();
    }
}

/// Compares the arrays of all stores, each mounted as `mount` says of its number.
fn compare(what: &str, stores: &[Store], mount: &mut dyn FnMut(usize) -> Mount) {
    if stores.is_empty() {
        return;
    }
    let mut table = Table::default();
    for (number, store) in stores.iter().enumerate().filter(|(_, store)| !store.arrays.is_empty()) {
        table.compare(&store.name, &store.arrays, mount(number).path(), false);
    }
    table.finish(what, stores.iter().map(|store| store.left_out).sum(), LEAST);
}

#[test]
fn archives() {
    let spare = tempfile::tempdir().unwrap();
    let stores = stores(Sample::new(12, ALL), spare.path());
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = servers::nginx(folder.path(), "") else { return };
    for (stored, how) in [(true, "stored"), (false, "deflated")] {
        let archive = |number: usize| folder.path().join(format!("{how}{number}.zip"));
        let pairs: Vec<_> =
            stores.iter().enumerate().map(|(number, store)| (store.path.as_path(), archive(number))).collect();
        servers::zip_all(&pairs, stored);
        compare(&format!("archives, {how}"), &stores, &mut |number| Mount::new(&archive(number), &[]));
        compare(&format!("archives over HTTP, {how}"), &stores, &mut |number| {
            server.place(&format!("{how}{number}.zip")).mount(&[])
        });
    }
}

/// zarr-python leaves the earlier versions of a member in the archive.
#[test]
fn archives_that_zarr_python_has_made() {
    let (Some(python), Some(folder)) = (provided("ZARRFS_TEST_PYTHON"), provided("ZARRFS_MATRIX")) else { return };
    let made = tempfile::tempdir().unwrap();
    let Some(server) = servers::nginx(made.path(), "") else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/zip_store.py");
    let archive = made.path().join("dot.zip");
    let status = limited(120, python).arg(script).arg(folder.join("dot.zarr")).arg(&archive).status();
    assert!(status.unwrap().success());
    let arrays = &Oracle::read(&folder).stores["dot.zarr"];
    let (mut local, mut remote) = (Table::default(), Table::default());
    local.compare("dot.zip", arrays, Mount::new(&archive, &[]).path(), true);
    remote.compare("dot.zip", arrays, server.place("dot.zip").mount(&[]).path(), false);
    local.finish("archives of zarr-python", 0, LEAST);
    remote.finish("archives of zarr-python over HTTP", 0, LEAST);
}

#[test]
fn archives_that_others_have_made() {
    let Some(folder) = provided("ZARRFS_REFERENCE") else { return };
    let Some(server) = servers::nginx(&folder, "") else { return };
    let oracle = Oracle::read(&folder);
    let (mut local, mut remote) = (Table::default(), Table::default());
    for (store, arrays) in oracle.stores.iter().filter(|(store, _)| store.ends_with(".zip")) {
        local.compare(store, arrays, Mount::new(&folder.join(store), &[]).path(), true);
        remote.compare(store, arrays, server.place(store).mount(&[]).path(), true);
    }
    local.finish("archives of others", 0, LEAST);
    remote.finish("archives of others over HTTP", 0, LEAST);
}

#[test]
fn http_by_nginx() {
    over_http("HTTP by nginx", Sample::new(12, ALL), |root| servers::nginx(root, ""));
}

#[test]
fn http_by_python() {
    over_http("HTTP by Python's http.server", Sample::new(7, 200), servers::python_http);
}

fn over_http(what: &str, sample: Sample, start: impl Fn(&Path) -> Option<Server>) {
    let spare = tempfile::tempdir().unwrap();
    let mut stores = stores(sample, spare.path());
    let served = tempfile::tempdir().unwrap();
    let Some(server) = start(served.path()) else { return };
    // where nothing can be listed, a store without any document at its root is none
    let is_store = |store: &Store| [".zgroup", ".zarray", "meta"].iter().any(|name| store.path.join(name).exists());
    stores.retain(is_store);
    for (number, store) in stores.iter().enumerate() {
        std::os::unix::fs::symlink(&store.path, served.path().join(number.to_string())).unwrap();
    }
    compare(what, &stores, &mut |number| {
        let how = if is_stale(&stores[number]) { "ignore" } else { "auto" };
        server.place(&number.to_string()).mount(&["--consolidated", how])
    });
}

/// Whether an array is missing in a store's consolidated metadata.
fn is_stale(store: &Store) -> bool {
    let Ok(text) = std::fs::read(store.path.join(".zmetadata")) else { return false };
    let document = zarrfs::util::json::parse(&text).unwrap();
    let is_missing =
        |array: &Value| document["metadata"].get(format!("{}/.zarray", array["array"].as_str().unwrap())).is_none();
    store.arrays.iter().any(is_missing)
}

#[test]
fn s3_by_moto() {
    over_buckets("S3 by moto", servers::moto);
}

#[test]
fn s3_by_localstack() {
    over_buckets("S3 by LocalStack", servers::localstack);
}

#[test]
fn azure_by_azurite() {
    over_buckets("Azure by azurite", servers::azurite);
}

fn over_buckets(what: &str, start: impl Fn() -> Option<Server>) {
    let spare = tempfile::tempdir().unwrap();
    let mut stores = stores(Sample::new(9, 130), spare.path());
    for store in &mut stores {
        // the object_store crate takes no such names
        let all = store.arrays.len();
        store.arrays.retain(|array| !array["array"].as_str().unwrap().contains(|c: char| c.is_ascii_control()));
        store.left_out += all - store.arrays.len();
    }
    let Some(server) = start() else { return };
    let staged = tempfile::tempdir().unwrap();
    for (number, store) in stores.iter().enumerate() {
        stage(store, &staged.path().join(number.to_string()));
    }
    server.upload(staged.path(), "stores/all");
    compare(what, &stores, &mut |number| server.place(&format!("stores/all/{number}")).mount(&[]));
}

/// Copies the arrays of a store that are compared, and what is in the groups above them.
fn stage(store: &Store, to: &Path) {
    for array in &store.arrays {
        let name = Path::new(array["array"].as_str().unwrap());
        support::copy_tree(&store.path.join(name), &to.join(name));
        for group in name.ancestors().skip(1) {
            for document in [".zgroup", ".zattrs"] {
                let from = store.path.join(group).join(document);
                if from.is_file() {
                    std::fs::copy(from, to.join(group).join(document)).unwrap();
                }
            }
        }
    }
}

/// What a user sees of a file or directory: its size, what it takes in the store, its extended attributes.
type Seen = (u64, u64, BTreeMap<String, String>);

fn look(path: &Path) -> std::io::Result<Seen> {
    let stat = std::fs::symlink_metadata(path)?;
    let mut names = vec![0; 64 << 10];
    let length = llistxattr(path, &mut names)?;
    let mut attributes = BTreeMap::new();
    for name in names[..length].split(|b| *b == 0).filter(|name| !name.is_empty()) {
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
    zarrfs::util::json::parse(&std::fs::read(path).unwrap()).unwrap()
}

/// Paths below a directory, as listings tell them.
fn names(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![String::new()];
    while let Some(path) = waiting.pop() {
        for entry in std::fs::read_dir(directory.join(&path)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                waiting.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every name the directory's mount lists is the same to a user in the other one. Which names that one lists is for the
/// caller.
fn assert_shows_the_same(directory: &Mount, other: &Mount, can_list: bool) {
    let names = names(directory.path());
    assert!(names.len() > 20, "{names:?}");
    // what .zmetadata names is what is known
    for name in names.iter().filter(|name| can_list || *name != ".zmetadata") {
        let here = look(&directory.join(name)).unwrap();
        let mut there = look(&other.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        if Path::new(name).file_name().unwrap().to_str().unwrap().starts_with(".z") {
            // written anew where it comes from .zmetadata
            assert_eq!(json(&other.join(name)), json(&directory.join(name)), "{name}");
            (there.0, there.1) = (here.0, here.1);
        }
        if !can_list {
            // what a file takes in the store is the sum of chunks that nobody can list
            there.1 = here.1;
        }
        assert_eq!(there, here, "{name}");
    }
    for missing in ["nothing", "air_temperature/9.9.9", "air_temperature/0.0", ".zarray"] {
        let gone = std::fs::symlink_metadata(other.join(missing)).map(|_| ()).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ENOENT), "{missing}");
    }
}

fn assert_lists_the_same(directory: &Mount, other: &Mount) {
    assert_shows_the_same(directory, other, true);
    assert_eq!(names(other.path()), names(directory.path()));
}

#[test]
fn listings_of_archives_and_buckets_are_those_of_the_directory() {
    let sample = data("sample.zarr");
    let directory = Mount::new(&sample, &["--read-only"]);
    let folder = tempfile::tempdir().unwrap();
    for stored in [true, false] {
        let archive = servers::zip(&sample, folder.path(), "sample.zarr.zip", stored);
        assert_lists_the_same(&directory, &Mount::new(&archive, &[]));
    }
    for server in [servers::moto(), servers::azurite()].into_iter().flatten() {
        for path in ["whole", "part/of/it"] {
            let path = if path == "whole" { path.to_string() } else { format!("other/{path}") };
            server.upload(&sample, &path);
            assert_lists_the_same(&directory, &server.place(&path).mount(&["--read-only"]));
        }
    }
}

/// Without `.zmetadata` nobody can tell what is there; with it groups, arrays and documents can be listed.
#[test]
fn http_shows_what_is_known() {
    let store = tempfile::tempdir().unwrap();
    support::copy_tree(&data("sample.zarr"), store.path());
    let Some(server) = servers::nginx(store.path(), "") else { return };
    let directory = Mount::new(store.path(), &["--read-only"]);
    let place = server.place("");
    {
        let consolidated = place.mount(&[]);
        assert_shows_the_same(&directory, &consolidated, false);
        let is_chunk = |name: &&String| name.rsplit('/').next().unwrap().starts_with(|c: char| c.is_ascii_digit());
        let expected: Vec<String> = names(directory.path()).into_iter().filter(|name| !is_chunk(&name)).collect();
        let listed: Vec<String> = names(consolidated.path()).into_iter().filter(|name| !is_chunk(&name)).collect();
        assert_eq!(listed, expected);
    }
    let ignoring = place.clone().with(&["--consolidated", "ignore"]).mount(&[]);
    assert_shows_the_same(&directory, &ignoring, false);
    drop(ignoring);
    std::fs::remove_file(store.path().join(".zmetadata")).unwrap();
    let directory = Mount::new(store.path(), &["--read-only"]);
    assert_shows_the_same(&directory, &place.mount(&[]), false);
}

/// A value is read in parts where a part is enough and the whole would take longer: of an uncompressed array that is not
/// much more than what was asked for.
#[test]
fn a_part_of_an_uncompressed_chunk_is_a_ranged_read() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("a.zarr");
    let made = support::made::Made::full(store.clone(), &[6 << 20], &[6 << 20], serde_json::json!({}));
    servers::zip(&store, folder.path(), "a.zip", true);
    let Some(server) = servers::nginx(folder.path(), "") else { return };
    for name in ["a.zarr", "a.zip"] {
        let mount = server.place(name).mount(&["--direct-io"]);
        let file = std::fs::File::open(mount.join("data.raw")).unwrap();
        let before = mount.counter("bytes_received");
        let mut bytes = [0; 1000];
        file.read_exact_at(&mut bytes, 3_000_000).unwrap();
        assert_eq!(bytes, made.flat[3_000_000..3_001_000]);
        let read = mount.counter("bytes_received") - before;
        assert!(read < 1 << 20, "{name}: {read} bytes of 1000 that were asked for");
    }
}

/// The verbs that need no mount take the same names.
#[test]
fn info_and_cat_take_every_name() {
    let sample = data("sample.zarr");
    let folder = tempfile::tempdir().unwrap();
    let archive = servers::zip(&sample, folder.path(), "sample.zip", false);
    let plain = |path: &Path| Place { url: path.to_str().unwrap().to_string(), args: vec![], environment: vec![] };
    let mut places = vec![plain(&sample), plain(&archive)];
    let http = servers::nginx(folder.path(), "");
    places.extend(http.as_ref().map(|server| server.place("sample.zip")));
    let other = servers::nginx(&sample, "");
    places.extend(other.as_ref().map(|server| server.place("")));
    let buckets: Vec<Server> = [servers::moto(), servers::azurite()].into_iter().flatten().collect();
    for server in &buckets {
        server.upload(&sample, "bucket/sample.zarr");
        places.push(server.place("bucket/sample.zarr"));
    }
    let expected = places[0].join("air_temperature").zarrfs("cat", &[]).stdout;
    assert!(expected.len() > 1000);
    for place in &places {
        let array = place.join("air_temperature");
        let cat = array.zarrfs("cat", &[]);
        assert!(cat.status.success(), "{}: {}", array.url, String::from_utf8_lossy(&cat.stderr));
        assert!(cat.stdout == expected, "{}", array.url);
        let info = place.zarrfs("info", &[]);
        let said = String::from_utf8_lossy(&info.stdout);
        assert!(info.status.success() && said.contains("air_temperature"), "{}: {info:?}", place.url);
    }
}
