//! Stores of Zarr v3 on real mounts: zarr-python 3, xarray and TensorStore read and write them, and
//! compare the values with those in the store. System programs copy, move, edit and remove files.
//! The stored codecs and chunks must stay as they are.

use crate::support;
use crate::support::servers::{self, RemoteStore};
use crate::support::tree::files;
use crate::support::{Mount, announce, copy_tree, env_path, is_installed, run, run_python};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const GROUP: &str = r#"{"zarr_format": 3, "node_type": "group", "attributes": {"title": "made"}}"#;

/// Returns the store that `zarr3.py make` creates. Returns `None`, and announces that the test is
/// skipped, if zarr-python 3 is not installed.
fn sample() -> Option<tempfile::TempDir> {
    let python = env_path("ZARRFS_TEST_PYTHON3")?;
    let made = tempfile::tempdir().unwrap();
    run_python(&python, "zarr3.py", &["make".as_ref(), made.path()]);
    Some(made)
}

/// Returns a copy of the sample, and a mount of the copy.
fn mounted_sample(args: &[&str]) -> Option<(tempfile::TempDir, Mount)> {
    let store = tempfile::tempdir().unwrap();
    copy_tree(sample()?.path(), &store.path().join("s"));
    let mount = Mount::new(&store.path().join("s"), args);
    Some((store, mount))
}

fn new_store() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("zarr.json"), GROUP).unwrap();
    directory
}

/// Returns the document of an array of 4 x 6 bytes in chunks of 2 x 3 bytes.
fn document(codecs: Value, keys: Value) -> Value {
    json!({"zarr_format": 3, "node_type": "array", "shape": [4, 6], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": keys, "codecs": codecs, "attributes": {"units": "m"}})
}

fn bytes_codec() -> Value {
    json!({"name": "bytes", "configuration": {"endian": "little"}})
}

/// Creates an array of 4 x 6 bytes, stored with `bytes` alone below `c`. Returns its flat bytes.
fn plain_array(path: &Path) -> Vec<u8> {
    let keys = json!({"name": "default", "configuration": {"separator": "/"}});
    for row in 0..2 {
        fs::create_dir_all(path.join(format!("c/{row}"))).unwrap();
        for column in 0..2 {
            let at = |i: u8| (2 * row + i / 3) * 6 + 3 * column + i % 3;
            fs::write(
                path.join(format!("c/{row}/{column}")),
                (0..6).map(at).collect::<Vec<u8>>(),
            )
            .unwrap();
        }
    }
    fs::write(
        path.join("zarr.json"),
        document(json!([bytes_codec()]), keys).to_string(),
    )
    .unwrap();
    (0..24).collect()
}

/// Checks that both have the same files with the same bytes. Documents need only have equal values.
#[track_caller]
fn assert_same_files(found: &BTreeMap<PathBuf, Vec<u8>>, wanted: &BTreeMap<PathBuf, Vec<u8>>) {
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(wanted));
    for (name, bytes) in wanted {
        let is_same = if name.ends_with("zarr.json") {
            parse(&found[name]) == parse(bytes)
        } else {
            found[name] == *bytes
        };
        assert!(is_same, "{} differs", name.display());
    }
}

fn parse(text: &[u8]) -> zarrfs_base::json::Value {
    zarrfs_base::json::parse(text)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(text)))
}

fn read_document(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path.join("zarr.json")).unwrap()).unwrap()
}

fn codec_names(path: &Path) -> Vec<String> {
    let codecs = read_document(path)["codecs"].clone();
    codecs
        .as_array()
        .unwrap()
        .iter()
        .map(|codec| codec["name"].as_str().unwrap().to_string())
        .collect()
}

fn raw(mount: &Mount, array: &str) -> Vec<u8> {
    fs::read(mount.join(array).join("data.raw")).unwrap()
}

#[track_caller]
fn assert_no_problem(mount: &Mount) {
    mount.assert_no_problem();
}

#[test]
fn python_libraries_read_a_mount_as_the_store() {
    let (Some(python), Some(sample)) = (env_path("ZARRFS_TEST_PYTHON3"), sample()) else {
        return;
    };
    let sample = sample.path();
    let mount = Mount::new(sample, &["--read-only"]);
    announce(
        run_python(
            &python,
            "zarr3.py",
            &["read".as_ref(), mount.path(), sample],
        )
        .trim(),
    );
    assert_no_problem(&mount);
}

#[test]
fn python_libraries_write_through_a_mount() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    for compressor in ["none", "zstd:3"] {
        let store = new_store();
        let direct = tempfile::tempdir().unwrap();
        fs::write(
            store.path().join("zarr.json"),
            r#"{"zarr_format": 3, "node_type": "group"}"#,
        )
        .unwrap();
        let mount = Mount::new(store.path(), &["--compressor", compressor]);
        let direct = direct.path().join("direct");
        let args = [
            "write".as_ref(),
            mount.path(),
            store.path(),
            &direct,
            Path::new(compressor),
        ];
        announce(run_python(&python, "zarr3.py", &args).trim());
        assert_no_problem(&mount);
    }
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let store = new_store();
    let flat = plain_array(&store.path().join("a"));
    let before = files(store.path());
    let mount = Mount::new(store.path(), &["--read-only"]);
    let is_refused = |result: std::io::Result<()>| {
        result.is_err_and(|e| e.kind() == ErrorKind::ReadOnlyFilesystem)
    };
    assert!(is_refused(fs::write(mount.join("a/zarr.json"), "{}")));
    assert!(is_refused(fs::remove_file(mount.join("zarr.json"))));
    assert!(is_refused(fs::write(mount.join("a/0.0"), [0; 6])));
    assert!(is_refused(fs::create_dir(mount.join("b"))));
    assert!(
        setxattr(
            mount.join("a"),
            "user.zarr.attrs.x",
            b"1",
            XattrFlags::empty()
        )
        .is_err()
    );
    assert_eq!(raw(&mount, "a"), flat);
    drop(mount);
    assert_same_files(&files(store.path()), &before);
}

/// The programs copy plain files, and the encoded chunks are below `c`.
#[test]
fn encoded_trees_are_copied_into_a_mount_as_they_are() {
    let Some(sample) = sample() else { return };
    let sample = sample.path();
    let archive = tempfile::tempdir().unwrap();
    let archive = archive.path().join("s.tar");
    let from = |name: &str| sample.join(name).to_str().unwrap().to_string();
    run(
        "tar",
        &[
            "cf",
            archive.to_str().unwrap(),
            "-C",
            sample.to_str().unwrap(),
            "zstd",
            "transposed",
        ],
        sample,
    );
    let zstd = from("zstd");
    let transposed = from("transposed");
    let mut ways = vec![
        ("cp", vec!["-r", zstd.as_str(), transposed.as_str(), "."]),
        ("tar", vec!["xf", archive.to_str().unwrap()]),
    ];
    if is_installed("rsync") {
        ways.push(("rsync", vec!["-a", zstd.as_str(), transposed.as_str(), "."]));
    }
    let wanted = Mount::new(sample, &["--read-only"]);
    for (program, args) in ways {
        let store = new_store();
        let mount = Mount::new(store.path(), &[]);
        run(program, &args, mount.path());
        for name in ["zstd", "transposed"] {
            assert_same_files(&files(&store.path().join(name)), &files(&sample.join(name)));
            assert_eq!(raw(&mount, name), raw(&wanted, name), "{program} {name}");
        }
        assert_no_problem(&mount);
    }
}

/// Decoded chunks under flat names, as another mount shows them, replace those of an array with
/// other codecs.
#[test]
fn decoded_trees_are_copied_over_encoded_arrays() {
    let Some((directory, mount)) = mounted_sample(&[]) else {
        return;
    };
    let source = tempfile::tempdir().unwrap();
    let names = [
        "zstd",
        "blosc",
        "transposed",
        "gzip_dots",
        "v2_levels",
        "big",
    ];
    for name in names {
        fs::create_dir(source.path().join(name)).unwrap();
        for (path, bytes) in files(&mount.join(name)) {
            let text = path.to_str().unwrap();
            let is_chunk = text.split('.').all(|index| index.parse::<u64>().is_ok());
            let reversed = || bytes.iter().rev().copied().collect::<Vec<u8>>();
            match text {
                "zarr.json" => fs::write(source.path().join(name).join(text), &bytes).unwrap(),
                _ if is_chunk => {
                    fs::write(source.path().join(name).join(text), reversed()).unwrap()
                }
                _ => {}
            }
        }
    }
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    drop(mount);
    let from = source.path().to_str().unwrap().to_string() + "/.";
    let mut ways = vec![("cp", vec!["-r", from.as_str(), "."])];
    if is_installed("rsync") {
        ways.push(("rsync", vec!["-a", from.as_str(), "."]));
        ways.push(("rsync", vec!["-a", "--inplace", from.as_str(), "."]));
    }
    for (program, args) in ways {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join("s");
        copy_tree(&directory.path().join("s"), &path);
        // rsync skips a file whose size and time, in seconds, are those of the file to be replaced
        for file in files(&path).keys() {
            File::options()
                .write(true)
                .open(path.join(file))
                .unwrap()
                .set_modified(old)
                .unwrap();
        }
        let mount = Mount::new(&path, &[]);
        run(program, &args, mount.path());
        drop(mount);
        let mount = Mount::new(&path, &["--read-only"]);
        for name in names {
            let found = mount.join(name);
            let wanted = source.path().join(name);
            for (chunk, bytes) in files(&wanted)
                .iter()
                .filter(|(path, _)| !path.ends_with("zarr.json"))
            {
                assert!(
                    fs::read(found.join(chunk)).unwrap() == *bytes,
                    "{program} {args:?} {name} {chunk:?}"
                );
            }
            let before = directory.path().join("s").join(name);
            let after = path.join(name);
            assert_eq!(
                codec_names(&after),
                codec_names(&before),
                "{program} {args:?} {name}"
            );
            assert_eq!(
                files(&after).len(),
                files(&before).len(),
                "{program} {args:?} {name}"
            );
        }
        assert_no_problem(&mount);
    }
}

#[test]
fn trees_are_moved_and_removed() {
    let Some((directory, mount)) = mounted_sample(&[]) else {
        return;
    };
    let store = directory.path().join("s");
    let wanted: Vec<_> = ["zstd", "blosc", "v2_levels"]
        .map(|name| (name, raw(&mount, name)))
        .into();
    let before = files(&store.join("zstd"));
    run("mkdir", &["below"], mount.path());
    run("mv", &["zstd", "blosc", "v2_levels", "below"], mount.path());
    run("mv", &["below", "moved"], mount.path());
    for (name, flat) in &wanted {
        assert_eq!(raw(&mount, &format!("moved/{name}")), *flat, "{name}");
    }
    assert_same_files(&files(&store.join("moved/zstd")), &before);
    // the consolidated metadata changed as well
    let names = read_names(&store);
    assert!(
        names.contains(&"moved/zstd".to_string()) && !names.contains(&"zstd".to_string()),
        "{names:?}"
    );
    // move one chunk to another file system and back
    let outside = tempfile::tempdir().unwrap();
    let chunk = outside.path().join("chunk");
    run(
        "mv",
        &["moved/zstd/0.0", chunk.to_str().unwrap()],
        mount.path(),
    );
    assert_eq!(
        fs::read(&chunk).unwrap(),
        wanted[0].1[..]
            .chunks(28)
            .take(4)
            .flat_map(|row| &row[..12])
            .copied()
            .collect::<Vec<_>>()
    );
    assert!(!store.join("moved/zstd/c/0/0").exists());
    run(
        "mv",
        &[chunk.to_str().unwrap(), "moved/zstd/0.0"],
        mount.path(),
    );
    assert_eq!(raw(&mount, "moved/zstd"), wanted[0].1);
    run("sh", &["-c", "rm -r *"], mount.path());
    drop(mount);
    assert!(files(&store).is_empty(), "{:?}", files(&store).keys());
}

/// Returns the paths in the consolidated metadata of a store.
fn read_names(store: &Path) -> Vec<String> {
    let text = fs::read(store.join("zarr.json")).unwrap();
    let document = parse(&text);
    document["consolidated_metadata"]["metadata"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect()
}

#[test]
fn editors_can_edit_documents() {
    let Some((directory, mount)) = mounted_sample(&[]) else {
        return;
    };
    let store = directory.path().join("s");
    let flat = raw(&mount, "blosc");
    let before = files(&store.join("blosc"));
    let title = || {
        read_document_lossy(&store)["attributes"]["title"]
            .as_str()
            .unwrap()
            .to_string()
    };
    run(
        "sed",
        &[
            "-i",
            "s/\"title\": \".*\"/\"title\": \"edited\"/",
            "zarr.json",
        ],
        mount.path(),
    );
    assert_eq!(title(), "edited");
    run(
        "sh",
        &[
            "-c",
            "sed s/edited/moved/ zarr.json > zarr.json.tmp && mv zarr.json.tmp zarr.json",
        ],
        mount.path(),
    );
    assert_eq!(title(), "moved");
    assert!(
        !read_names(&store).is_empty(),
        "the consolidated metadata stay"
    );
    let edit = |name: &str, from: &str, to: &str| {
        let text = fs::read_to_string(mount.join(name).join("zarr.json")).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(mount.join(name).join(".new"), text.replacen(from, to, 1)).unwrap();
        fs::rename(
            mount.join(name).join(".new"),
            mount.join(name).join("zarr.json"),
        )
    };
    // the array is 15 x 9 in chunks of 4 x 3
    edit("blosc", "15,", "12,").unwrap();
    assert_eq!(raw(&mount, "blosc"), flat[..12 * 9 * 4]);
    let codecs = codec_names(&store.join("blosc"));
    assert_eq!(codecs, ["bytes", "blosc"]);
    assert_no_problem(&mount);
    let e = edit("blosc", "\"uint32\"", "\"int64\"").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    fs::remove_file(mount.join("blosc/.new")).unwrap();
    edit("blosc", "12,", "15,").unwrap();
    let after = files(&store.join("blosc"));
    assert!(
        after
            .iter()
            .all(|(name, bytes)| name.ends_with("zarr.json") || before[name] == *bytes)
    );
    if is_installed("vim") {
        for options in ["backupcopy=no", "backupcopy=yes", "nowritebackup"] {
            let set = format!("set {options}");
            let change = "%s/\"node_type\": *\"array\"/\"node_type\":  \"array\"/";
            run(
                "vim",
                &[
                    "-u",
                    "NONE",
                    "-es",
                    "-c",
                    &set,
                    "-c",
                    change,
                    "-c",
                    "wq",
                    "zstd/zarr.json",
                ],
                mount.path(),
            );
            assert_eq!(
                codec_names(&store.join("zstd")),
                ["bytes", "zstd"],
                "{options}"
            );
        }
    }
    // the refused edit is the only problem
    let stats = mount.stats();
    let problems: Vec<_> = stats
        .lines()
        .filter(|line| line.starts_with("problem "))
        .collect();
    assert!(
        problems.len() == 1 && problems[0].contains("/blosc/zarr.json"),
        "{stats}"
    );
}

/// Parses a document like [`read_document`], but accepts a bare `NaN`.
fn read_document_lossy(path: &Path) -> zarrfs_base::json::Value {
    parse(&fs::read(path.join("zarr.json")).unwrap())
}

/// Some programs replace a file by removing it and writing it anew.
#[test]
fn a_document_that_is_removed_and_written_anew_keeps_codecs_and_chunks() {
    let Some((directory, mount)) = mounted_sample(&["--compressor", "gzip:1"]) else {
        return;
    };
    let store = directory.path().join("s");
    for name in ["blosc", "transposed", "gzip_dots", "v2_keys", "words"] {
        let before = files(&store.join(name));
        let document = mount.join(name).join("zarr.json");
        let text = fs::read(&document).unwrap();
        fs::remove_file(&document).unwrap();
        assert!(!store.join(name).join("zarr.json").exists(), "{name}");
        fs::write(&document, text).unwrap();
        assert_same_files(&files(&store.join(name)), &before);
    }
    assert_no_problem(&mount);
}

#[test]
fn extended_attributes_are_attributes_in_the_document() {
    let store = new_store();
    plain_array(&store.path().join("a"));
    let before = read_document(&store.path().join("a"));
    let mount = Mount::new(store.path(), &[]);
    let get = |path: &Path, name: &str| {
        let mut value = vec![0; 1000];
        let n = getxattr(path, format!("user.zarr.{name}"), &mut value).ok()?;
        Some(String::from_utf8(value[..n].to_vec()).unwrap())
    };
    for path in ["", "a"] {
        let shown = mount.join(path);
        let stored = store.path().join(path);
        setxattr(&shown, "user.zarr.attrs.scale", b"0.5", XattrFlags::empty()).unwrap();
        setxattr(
            &shown,
            "user.zarr.attrs.units",
            b"\"km\"",
            XattrFlags::empty(),
        )
        .unwrap();
        assert_eq!(get(&shown, "attrs.scale").as_deref(), Some("0.5"));
        let attributes = read_document(&stored)["attributes"].clone();
        assert_eq!(
            (&attributes["scale"], &attributes["units"]),
            (&json!(0.5), &json!("km")),
            "{path}"
        );
        assert_eq!(read_document(&shown)["attributes"], attributes);
        removexattr(&shown, "user.zarr.attrs.scale").unwrap();
        assert!(removexattr(&shown, "user.zarr.attrs.scale").is_err());
        assert_eq!(read_document(&stored)["attributes"].get("scale"), None);
    }
    let mut wanted = before;
    wanted["attributes"]["units"] = json!("km");
    assert_eq!(read_document(&store.path().join("a")), wanted);
    assert_eq!(
        get(&mount.join("a"), "shape").as_deref(),
        Some("[4, 6]").map(|_| "[4,6]")
    );
}

#[test]
fn formats_may_be_mixed() {
    let store = tempfile::tempdir().unwrap();
    let root = store.path();
    fs::write(root.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let flat = plain_array(&root.join("v3"));
    let two = json!({"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "compressor": null,
        "fill_value": 0, "order": "C", "filters": null});
    for name in ["v2", "both"] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join(".zarray"), two.to_string()).unwrap();
        fs::write(root.join(name).join("0"), [7, 8, 9]).unwrap();
    }
    plain_array(&root.join("both"));
    let mount = Mount::new(root, &[]);
    assert_eq!(
        (raw(&mount, "v3"), raw(&mount, "v2")),
        (flat.clone(), vec![7, 8, 9])
    );
    assert_eq!(raw(&mount, "both"), flat);
    assert!(mount.join("v2/.zarray").exists() && !mount.join("v2/zarr.json").exists());
    assert!(mount.join("v3/zarr.json").exists() && !mount.join("v3/.zarray").exists());
    // a new array of v3 in the v2 group
    fs::create_dir(mount.join("new")).unwrap();
    let keys = json!({"name": "v2", "configuration": {"separator": "."}});
    fs::write(
        mount.join("new/zarr.json"),
        document(json!([bytes_codec()]), keys).to_string(),
    )
    .unwrap();
    fs::write(mount.join("new/1.1"), [1, 2, 3, 4, 5, 6]).unwrap();
    drop(mount);
    assert_eq!(
        files(&root.join("new")).len(),
        2,
        "{:?}",
        files(&root.join("new")).keys()
    );
    assert_eq!(fs::read(root.join("new/1.1")).unwrap(), [1, 2, 3, 4, 5, 6]);
}

/// `--compressor` compresses new arrays whose document has only the codec `bytes`. Their writer
/// writes decoded chunks, under the keys of its document.
#[test]
fn the_compressor_is_for_documents_without_codecs() {
    let store = new_store();
    let mount = Mount::new(store.path(), &["--compressor", "zstd:3"]);
    let keys = json!({"name": "default", "configuration": {"separator": "/"}});
    for name in ["plain", "own"] {
        fs::create_dir_all(mount.join(name)).unwrap();
    }
    let gzip = json!({"name": "gzip", "configuration": {"level": 1}});
    let put = |name: &str, codecs: Value| {
        fs::write(
            mount.join(name).join("zarr.json"),
            document(codecs, keys.clone()).to_string(),
        )
        .unwrap();
    };
    put("plain", json!([bytes_codec()]));
    put("own", json!([bytes_codec(), gzip]));
    fs::create_dir_all(mount.join("plain/c/1")).unwrap();
    fs::write(mount.join("plain/c/1/0"), [1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(
        fs::read(mount.join("plain/c/1/0")).unwrap(),
        [1, 2, 3, 4, 5, 6]
    );
    assert_eq!(
        fs::read(mount.join("plain/1.0")).unwrap(),
        [1, 2, 3, 4, 5, 6]
    );
    drop(mount);
    assert_eq!(codec_names(&store.path().join("plain")), ["bytes", "zstd"]);
    assert_eq!(codec_names(&store.path().join("own")), ["bytes", "gzip"]);
    let stored = fs::read(store.path().join("plain/c/1/0")).unwrap();
    assert_eq!(
        stored[..4],
        [0x28, 0xb5, 0x2f, 0xfd],
        "the magic number of zstd, RFC 8878"
    );
    let mount = Mount::new(store.path(), &[]);
    let mut wanted = vec![0; 24];
    wanted[12..15].copy_from_slice(&[1, 2, 3]);
    wanted[18..21].copy_from_slice(&[4, 5, 6]);
    assert_eq!(raw(&mount, "plain"), wanted);
}

/// Returns the paths of the arrays below a mounted directory.
fn arrays(mount: &Path) -> Vec<String> {
    let shown = files(mount)
        .into_keys()
        .map(|path| path.to_str().unwrap().to_string());
    shown
        .filter_map(|path| path.strip_suffix("/data.raw").map(String::from))
        .collect()
}

/// Checks that `remote` shows the arrays of the sample with the same bytes and metadata.
fn compare_remote(remote: &RemoteStore, sample: &Path, names: &[String]) {
    let local = Mount::new(sample, &["--read-only"]);
    let mount = remote.mount(&[]);
    for name in names {
        assert_eq!(raw(&mount, name), raw(&local, name), "{name}");
        let (found, wanted) = [&mount, &local]
            .map(|mount| read_document_lossy(&mount.join(name)))
            .into();
        for field in ["shape", "data_type", "codecs", "fill_value", "attributes"] {
            // the order of members may differ from that of consolidated metadata
            let value = |document: &Value| document.get(field).cloned();
            let is_none = |value: Option<Value>| value.filter(|value| *value != json!({}));
            assert_eq!(
                is_none(value(&found)),
                is_none(value(&wanted)),
                "{name}: {field}"
            );
        }
    }
    assert_no_problem(&mount);
}

#[test]
fn a_server_without_listings_is_listed_by_the_consolidated_metadata() {
    let Some(sample) = sample() else { return };
    let sample = sample.path();
    let served = tempfile::tempdir().unwrap();
    copy_tree(sample, &served.path().join("s"));
    let python = env_path("ZARRFS_TEST_PYTHON3").unwrap();
    let code = "import sys, zarr; zarr.consolidate_metadata(sys.argv[1])";
    let path = served.path().join("s");
    run(
        python.to_str().unwrap(),
        &["-W", "ignore", "-c", code, path.to_str().unwrap()],
        served.path(),
    );
    let local = Mount::new(&path, &["--read-only"]);
    let names = arrays(local.path());
    assert!(names.len() > 20, "{names:?}");
    let Some(server) = servers::python_http(served.path()) else {
        return;
    };
    let remote = server.store("s");
    compare_remote(&remote, &path, &names);
    let mount = remote.mount(&[]);
    let list = |mount: &Mount, path: &str| {
        let names = support::names(&mount.join(path)).into_iter();
        names
            .filter(|name| mount.join(path).join(name).is_dir() && name != ".zarrfs")
            .collect::<Vec<_>>()
    };
    for path in ["", "a", "a/b", "data.zarr"] {
        assert_eq!(list(&mount, path), list(&local, path), "{path}");
    }
}

#[test]
fn archives_are_read() {
    let Some(sample) = sample() else { return };
    let sample = sample.path();
    let folder = tempfile::tempdir().unwrap();
    let archive = servers::zip(sample, folder.path(), "s.zip", false);
    let names = arrays(Mount::new(sample, &["--read-only"]).path());
    let url = archive.to_str().unwrap().to_string();
    compare_remote(
        &RemoteStore {
            url,
            args: vec![],
            environment: vec![],
        },
        sample,
        &names,
    );
    let archive = Mount::new(&archive, &[]);
    assert_eq!(arrays(archive.path()), names);
}
