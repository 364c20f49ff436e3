//! Files of other programs that become groups and arrays: `python/ingest.py` writes them with
//! netCDF-C, scipy, xarray, NumPy and ncgen, and compares the arrays by zarr-python and xarray.
//! Refusals, replaced groups and killed commands are compared with the files of the store.

use crate::support::{
    self, ZARRFS, env_path, failure, run_python, servers, test_data, tree, zarrfs,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Makes the files, and a store of each with these options of `put`. Returns the folders of files
/// and stores.
fn stores(python: &Path, folder: &Path, name: &str, options: &[&str]) -> (PathBuf, PathBuf) {
    let files = folder.join("files");
    if !files.exists() {
        fs::create_dir(&files).unwrap();
        run_python(python, "ingest.py", &[Path::new("make"), &files]);
    }
    let stores = folder.join(name);
    fs::create_dir(&stores).unwrap();
    for file in support::names(&files) {
        if !file.ends_with(".pickle") {
            put(&stores.join(&file), &files.join(&file), options);
        }
    }
    (files, stores)
}

fn put(store: &Path, file: &Path, options: &[&str]) {
    let mut words = vec!["put", store.to_str().unwrap(), file.to_str().unwrap()];
    words.extend(options);
    let output = zarrfs(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", file.display());
}

fn compare(python: &Path, folders: &(PathBuf, PathBuf)) {
    let (files, stores) = folders;
    let said = run_python(python, "ingest.py", &[Path::new("compare"), files, stores]);
    let count: usize = said.trim().parse().unwrap();
    assert!(count > 90, "{count} files");
}

#[test]
fn files_become_arrays_of_every_format() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let v2 = stores(&python, folder, "v2", &[]);
    compare(&python, &v2);
    let v3 = stores(
        &python,
        folder,
        "v3",
        &["--zarr-format", "3", "--compressor", "zstd"],
    );
    // arrays of three dimensions have chunks of several shards and at the edge
    let sharded = ["--shards", "auto", "--chunks", "3,40,50"];
    let sharded = stores(&python, folder, "sharded", &sharded);
    let Some(python3) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    for folders in [&v2, &v3, &sharded] {
        compare(&python3, folders);
    }
}

/// Returns the bytes of a classic file with one variable `name` of three bytes that begin at
/// `begin`.
pub fn classic(name: &str, begin: u32) -> Vec<u8> {
    let mut bytes = b"CDF\x01".to_vec();
    let mut word = |n: u32| bytes.extend(n.to_be_bytes());
    // no record; the dimension x of length 3; no attribute; a variable
    [0, 10, 1, 1, 0x7800_0000, 3, 0, 0, 11, 1]
        .into_iter()
        .for_each(&mut word);
    word(name.len() as u32);
    bytes.extend(name.bytes());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let mut word = |n: u32| bytes.extend(n.to_be_bytes());
    [1, 0, 0, 0, 1, 4, begin].into_iter().for_each(&mut word);
    bytes.resize(100, 0);
    bytes.extend([1, 2, 3]);
    bytes
}

#[test]
fn files_that_cannot_become_arrays_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    support::copy_tree(&test_data("sample.zarr"), &store);
    let before = tree::files(&store);
    let hdf5 = b"\x89HDF\r\n\x1a\n".as_slice();
    let objects = [
        b"\x93NUMPY\x01\x00\x3b\x00{'descr': '|O', 'fortran_order': False, 'shape': (2,), }   \n"
            .as_slice(),
        &[0; 16],
    ]
    .concat();
    let cases: [(&str, &[u8], &str); 9] = [
        ("empty", b"", "an empty file"),
        (
            "text",
            b"a,b\n1,2\n",
            "not a file of NPY, TIFF, classic netCDF, netCDF-4 and HDF5",
        ),
        ("hdf5", hdf5, "the file ends before the bytes"),
        ("tiff", b"II*\0........", "the file ends at byte 12"),
        (
            "cut",
            &classic("x", 100)[..40],
            "ends within its netCDF header",
        ),
        (
            "short",
            &classic("x", 101),
            "x: the file has 103 of 104 bytes",
        ),
        ("dot", &classic(".x", 100), "names that begin with a dot"),
        ("slash", &classic("a/b", 100), "a/b"),
        ("objects", &objects, "Python objects"),
    ];
    for (name, bytes, reason) in cases {
        let file = folder.path().join(name);
        fs::write(&file, bytes).unwrap();
        let target = store.join("new");
        let output = zarrfs(&["put", target.to_str().unwrap(), file.to_str().unwrap()]);
        let (code, said) = failure(&output);
        assert_eq!((code, said.lines().count()), (1, 1), "{name}: {said}");
        assert!(said.contains(reason), "{name}: {said}");
        assert_eq!(tree::files(&store), before, "{name}");
    }
    let file = folder.path().join("good");
    fs::write(&file, classic("x", 100)).unwrap();
    let file = file.to_str().unwrap();
    let existing = store.join("air_temperature");
    let (_, said) = failure(&zarrfs(&["put", existing.to_str().unwrap(), file]));
    assert!(
        said.contains("exists already; replace it with --force"),
        "{said}"
    );
    let target = store.join("new");
    let v3 = zarrfs(&["put", target.to_str().unwrap(), file, "--shards", "auto"]);
    assert!(
        failure(&v3)
            .1
            .contains("a store of Zarr v2, which has no shards")
    );
    let inside = existing.join("new");
    failure(&zarrfs(&["put", inside.to_str().unwrap(), file]));
    assert_eq!(tree::files(&store), before);
}

/// Returns the names and bytes of the group, and its entries in the consolidated metadata.
fn state(store: &Path) -> (BTreeMap<String, Vec<u8>>, Option<String>) {
    let read = |path: PathBuf| fs::read(path).ok();
    let group = if store.join("g").exists() {
        tree::files(&store.join("g"))
            .into_iter()
            .map(|(name, bytes)| (name.to_str().unwrap().to_string(), bytes))
            .collect()
    } else {
        BTreeMap::new()
    };
    let consolidated = read(store.join(".zmetadata")).map(|text| String::from_utf8(text).unwrap());
    (group, consolidated)
}

#[test]
fn a_replaced_group_is_replaced_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    let [one, two] = [("one", "old"), ("two", "new")].map(|(name, variable)| {
        let file = folder.path().join(name);
        fs::write(&file, classic(variable, 100)).unwrap();
        file
    });
    put(&store.join("g"), &one, &[]);
    let consolidated = zarrfs(&["consolidate", store.to_str().unwrap()]);
    assert!(consolidated.status.success());
    put(&store.join("g"), &two, &["--force"]);
    let (group, consolidated) = state(&store);
    assert!(
        group.keys().any(|name| name.starts_with("new/")),
        "{group:?}"
    );
    assert!(
        !group.keys().any(|name| name.starts_with("old")),
        "{group:?}"
    );
    let consolidated = consolidated.unwrap();
    assert!(consolidated.contains("g/new/.zarray") && !consolidated.contains("g/old"));
    assert!(support::unfinished_files(&store).is_empty());
}

/// "Whenever the command ends, also by SIGKILL, the name is what it was before, or the whole new
/// group."
#[test]
fn a_killed_command_leaves_the_old_group_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    // 60 variables of one chunk, so that a kill finds the command at work
    let files = ["a", "b"].map(|letter| {
        let file = folder.path().join(letter);
        fs::write(&file, many(letter, 60)).unwrap();
        file
    });
    let begun = Instant::now();
    put(&store.join("g"), &files[0], &[]);
    // half of the commands end before they are killed
    let most = 2 * begun.elapsed().as_millis() as usize + 1;
    let group = |letter: &str, content: &BTreeMap<String, Vec<u8>>| {
        let documents = content.keys().filter(|name| name.ends_with(".zarray"));
        let chunks = content.keys().filter(|name| name.ends_with("/0"));
        (documents.count(), chunks.count()) == (60, 60)
            && content
                .keys()
                .all(|name| name.starts_with(letter) || name.starts_with(".z"))
    };
    let mut random = support::random(7);
    let mut counts = [0, 0];
    for round in 0..support::env_number("ZARRFS_TEST_KILLS", 40) {
        let is_second = random(2) == 1;
        let mut child = Command::new(ZARRFS)
            .args(["put", "--force"])
            .arg(store.join("g"))
            .arg(&files[usize::from(is_second)])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(random(most) as u64));
        let _ = child.kill();
        child.wait().unwrap();
        let (content, _) = state(&store);
        let found = [group("a", &content), group("b", &content)];
        assert!(found[0] != found[1], "{round}: {:?}", content.keys());
        counts[usize::from(found[1])] += 1;
    }
    println!("{counts:?}");
}

/// A bucket has no exchange: the document of the group is put last, and a group is only replaced
/// with --force.
#[test]
fn a_group_in_a_bucket_is_that_of_a_directory() {
    let Some(server) = servers::moto() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = [("a", 5), ("b", 3)].map(|(letter, count)| {
        let file = folder.path().join(letter);
        fs::write(&file, many(letter, count)).unwrap();
        file
    });
    support::write_file(folder.path().join("empty/note"), "bucket");
    server.upload(&folder.path().join("empty"), "bucket/other");
    let store = server.store("bucket/s.zarr/g");
    let put = |file: &Path, options: &[&str]| {
        Command::new(ZARRFS)
            .args(["put", &store.url])
            .arg(file)
            .args(&store.args)
            .args(options)
            .envs(store.environment.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap()
    };
    let assert_equals = |file: &Path, round: &str| {
        let local = folder.path().join(round);
        self::put(&local.join("s.zarr/g"), file, &[]);
        let remote = folder.path().join(format!("{round}.remote"));
        server.download("bucket/s.zarr", &remote);
        assert_eq!(
            tree::files(&remote),
            tree::files(&local.join("s.zarr")),
            "{round}"
        );
    };
    let first = put(&one, &[]);
    assert!(first.status.success(), "{first:?}");
    assert_equals(&one, "first");
    let (_, said) = failure(&put(&two, &[]));
    assert!(said.contains("exists already"), "{said}");
    assert_equals(&one, "refused");
    let second = put(&two, &["--force"]);
    assert!(second.status.success(), "{second:?}");
    assert_equals(&two, "second");
}

/// Returns the bytes of a classic file with variables `LETTER0`, `LETTER1` and so on, of three
/// bytes each.
pub fn many(letter: &str, count: u32) -> Vec<u8> {
    let mut bytes = b"CDF\x01".to_vec();
    let words = [0, 10, 1, 1, 0x7800_0000, 3, 0, 0, 11, count];
    bytes.extend(words.iter().flat_map(|n: &u32| n.to_be_bytes()));
    for n in 0..count {
        let name = format!("{letter}{n:03}");
        let fields = [1, 0, 0, 0, 1, 4, 4096 + 4 * n];
        bytes.extend((name.len() as u32).to_be_bytes());
        bytes.extend(name.bytes());
        bytes.extend(fields.iter().flat_map(|n: &u32| n.to_be_bytes()));
    }
    bytes.resize(4096, 0);
    bytes.resize(4096 + 4 * count as usize, 7);
    bytes
}
