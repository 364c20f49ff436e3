//! Comparison of metadata that zarrfs writes with metadata that zarr-python reads and writes: of
//! arrays that `zarrfs create` creates, and of changed documents, groups, names and shapes.

use crate::support;
use crate::support::{announce, copy_tree, env_path, run_python, run_zarrfs, text, zarrfs};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use zarrfs::array::hierarchy::{Hierarchy, MetadataFile, NodeUse, StoredNode};
use zarrfs::array::{Array, ArrayEntry, Scratch, WriteBack};
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::{CodecConfig, V1Order};
use zarrfs_store::{DirectoryStore, Key, Store};

fn pythons() -> Vec<PathBuf> {
    ["ZARRFS_TEST_PYTHON", "ZARRFS_TEST_PYTHON3"]
        .into_iter()
        .filter_map(env_path)
        .collect()
}

/// Returns arrays by name, each with the options that create it and the arguments of zarr.create
/// for an equal one.
fn creations() -> Vec<(&'static str, Vec<&'static str>, Value)> {
    let blosc = json!({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0});
    vec![
        (
            "plain",
            vec!["--shape", "10,7", "--chunks", "4,3", "--dtype", "<f4"],
            json!({"shape": [10, 7], "chunks": [4, 3], "dtype": "<f4", "compressor": blosc, "filters": null, "fill_value": 0.0}),
        ),
        (
            "deep/er/options",
            vec![
                "--shape=5,6,7",
                "--chunks=2,2,7",
                "--dtype=int16",
                "--order=F",
                "--separator=/",
                "--fill=-3",
                "--compressor=zstd:7",
                "--filters=[{\"id\":\"delta\",\"dtype\":\"<i2\",\"astype\":\"<i2\"}]",
                "--attrs={\"units\": \"K\"}",
            ],
            json!({"shape": [5, 6, 7], "chunks": [2, 2, 7], "dtype": "<i2", "order": "F", "fill_value": -3,
                "compressor": {"id": "zstd", "level": 7}, "dimension_separator": "/",
                "filters": [{"id": "delta", "dtype": "<i2", "astype": "<i2"}]}),
        ),
        (
            "not-a-number",
            vec![
                "--shape=9",
                "--chunks=4",
                "--dtype=>f8",
                "--fill=NaN",
                "--compressor=lzma:1",
            ],
            json!({"shape": [9], "chunks": [4], "dtype": ">f8", "fill_value": f64::NAN.to_string(), "filters": null,
                "compressor": {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": null}}),
        ),
        (
            "scalar",
            vec!["--shape=", "--chunks=", "--dtype=bool", "--compressor=none"],
            json!({"shape": [], "chunks": [], "dtype": "|b1", "fill_value": false, "compressor": null, "filters": null}),
        ),
        (
            "complex",
            vec![
                "--shape=3",
                "--chunks=3",
                "--dtype=c16",
                "--compressor=gzip:2",
            ],
            json!({"shape": [3], "chunks": [3], "dtype": "<c16", "fill_value": 0, "filters": null,
                "compressor": {"id": "gzip", "level": 2}}),
        ),
        (
            "letters",
            vec![
                "--shape=3",
                "--chunks=2",
                "--dtype=S4",
                "--fill=eHk=",
                "--compressor=bz2:9",
            ],
            json!({"shape": [3], "chunks": [2], "dtype": "|S4", "fill_value": "xy", "filters": null,
                "compressor": {"id": "bz2", "level": 9}}),
        ),
        (
            "fields",
            vec![
                "--shape=3",
                "--chunks=2",
                "--dtype=[[\"a\",\"<i4\"],[\"b\",\"|S3\"]]",
                "--compressor=lz4",
            ],
            json!({"shape": [3], "chunks": [2], "dtype": [["a", "<i4"], ["b", "|S3"]], "fill_value": 0, "filters": null,
                "compressor": {"id": "lz4", "acceleration": 1}}),
        ),
        (
            "moments",
            vec![
                "--shape=3",
                "--chunks=2",
                "--dtype=M8[ms]",
                "--compressor=zlib",
            ],
            json!({"shape": [3], "chunks": [2], "dtype": "<M8[ms]", "fill_value": 0, "filters": null,
                "compressor": {"id": "zlib", "level": 1}}),
        ),
    ]
}

#[test]
fn created_arrays_equal_those_that_zarr_python_creates() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("new.zarr");
    let mut expected = serde_json::Map::new();
    for (name, options, wanted) in creations() {
        let path = store.join(name);
        let said = run_zarrfs(&[&["create", text(&path)], options.as_slice()].concat());
        assert_eq!(said, (0, String::new()), "{name}");
        expected.insert(name.to_string(), wanted);
    }
    for group in ["", "deep", "deep/er"] {
        assert!(store.join(group).join(".zgroup").exists(), "{group:?}");
    }
    assert_eq!(
        std::fs::read_to_string(store.join("deep/er/options/.zattrs"))
            .unwrap()
            .replace([' ', '\n'], ""),
        "{\"units\":\"K\"}"
    );
    let expected = Value::Object(expected)
        .to_string()
        .replace("\"NaN\"", "NaN");
    for python in pythons() {
        announce(run_python(&python, "created.py", &[text(&store), &expected]).trim());
    }
}

#[test]
fn the_path_decides_which_groups_are_created() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::write(root.join("file"), "").unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    let create = |path: &str| {
        let options = ["--shape=4", "--chunks=2", "--dtype=u1", "--compressor=none"];
        run_zarrfs(&[&["create", text(&root.join(path))], options.as_slice()].concat())
    };
    let is_file = |path: &str| root.join(path).is_file();
    // the array is a store of its own
    assert_eq!(create("one.zarr").0, 0);
    assert!(is_file("one.zarr/.zarray") && !is_file("one.zarr/.zgroup"));
    // an existing empty directory is no store, so the array in it is one
    assert_eq!(create("empty/x").0, 0);
    assert!(!is_file("empty/.zgroup") && is_file("empty/x/.zarray"));
    std::fs::write(root.join("empty/.zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    // a group without a document belongs to the store above
    std::fs::create_dir(root.join("empty/bare")).unwrap();
    assert_eq!(create("empty/bare/y").0, 0);
    assert!(is_file("empty/bare/y/.zarray") && !is_file("empty/bare/y/.zgroup"));
    for (path, why) in [
        ("one.zarr", "File exists"),
        ("empty/x", "File exists"),
        ("empty/bare", "File exists"),
        ("empty/x/inner", "inside the array"),
        ("one.zarr/inner", "inside the array"),
        ("file/x", "not a directory"),
    ] {
        let (code, said) = create(path);
        assert!(
            code == 1 && said.contains(why) && said.lines().count() == 1,
            "{path}: {code} {said}"
        );
    }
    std::fs::write(
        root.join("empty/.zmetadata"),
        r#"{"metadata":{".zgroup":{"zarr_format":2}}}"#,
    )
    .unwrap();
    assert_eq!(create("empty/late").0, 0);
    let consolidated: Value =
        serde_json::from_slice(&std::fs::read(root.join("empty/.zmetadata")).unwrap()).unwrap();
    assert_eq!(
        consolidated["metadata"]["late/.zarray"]["shape"],
        json!([4])
    );
    std::fs::create_dir_all(root.join("v3/inner")).unwrap();
    std::fs::write(root.join("v3/zarr.json"), "{}").unwrap();
    std::fs::create_dir(root.join("empty/v3")).unwrap();
    std::fs::write(root.join("empty/v3/zarr.json"), "{}").unwrap();
    // an invalid zarr.json counts as that of a damaged array
    for path in ["v3/x", "v3/inner/x", "empty/v3/x"] {
        let (code, said) = create(path);
        assert!(
            code == 1 && said.contains("inside the array"),
            "{path}: {code} {said}"
        );
    }
    // no array can contain another, whatever the format
    std::fs::create_dir_all(root.join("v1/folder")).unwrap();
    let meta = r#"{"zarr_format":1,"shape":[3],"chunks":[2],"dtype":"<f4","compression":"zlib","compression_opts":1,
        "fill_value":0,"order":"C"}"#;
    std::fs::write(root.join("v1/meta"), meta).unwrap();
    std::fs::write(root.join("v1/attrs"), "{}").unwrap();
    for path in ["v1/x", "v1/folder/x"] {
        let (code, said) = create(path);
        assert!(
            code == 1 && said.contains("inside the array") && !root.join(path).exists(),
            "{path}: {code} {said}"
        );
    }
    assert_eq!(create("v1").0, 1);
}

/// A path that looks like an archive or a URL creates no directory of that name.
#[test]
fn names_of_archives_and_urls_are_not_created_as_directories() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("real.zip"), "PK").unwrap();
    std::fs::write(directory.path().join("mark"), "").unwrap();
    let names = || support::tree::snapshot(directory.path()).unwrap();
    let before = names();
    for (path, why) in [
        ("foo.zip/a", "archives are read-only"),
        ("foo.zip", "archives are read-only"),
        ("new/foo.ZIP/g/a", "archives are read-only"),
        ("real.zip/a", "archives are read-only"),
        ("memory:", "memory"),
        ("memory:/a", "memory"),
        ("memory://a", "memory"),
        ("s3:/bucket/a", "// after the scheme"),
        ("file:/a", "// after the scheme"),
        ("ftp://h/a", "unknown scheme"),
        ("https://127.0.0.1:1/foo.zip/a", "archives are read-only"),
    ] {
        let args = ["create", path, "--shape=4", "--chunks=2", "--dtype=u1"];
        let output = Command::new(support::ZARRFS)
            .args(args)
            .current_dir(directory.path())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && said.contains(why) && said.lines().count() == 1,
            "{path}: {said}"
        );
        assert_eq!(names(), before, "{path}");
    }
    // a directory that exists or is named by a path with a slash may have any name
    std::fs::create_dir(directory.path().join("dir.zip")).unwrap();
    for path in ["dir.zip/a", "./memory:/a"] {
        let args = ["create", path, "--shape=4", "--chunks=2", "--dtype=u1"];
        let output = Command::new(support::ZARRFS)
            .args(args)
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{path}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn wrong_arguments_create_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.zarr");
    let usual = ["--shape=4", "--chunks=2", "--dtype=<f4"];
    for wrong in [
        "--shape=4,4",
        "--shape=a",
        "--chunks=0",
        "--dtype=f3",
        "--dtype=O",
        "--fill=x",
        "--order=N",
        "--compressor=snappy",
        "--compressor=zlib:11",
        "--filters={}",
        "--filters=[{\"id\":\"nobody\"}]",
        "--separator=:",
        "--attrs=[]",
    ] {
        let name = wrong.split('=').next().unwrap();
        let mut args = vec!["create", text(&path), wrong];
        args.extend(
            usual
                .iter()
                .filter(|option| !option.starts_with(&format!("{name}="))),
        );
        let (code, said) = run_zarrfs(&args);
        assert!(code == 2 && !said.is_empty(), "{wrong}: {code} {said}");
        assert!(!path.exists(), "{wrong}");
    }
}

#[test]
fn arrays_are_created_from_flat_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let raw = directory.path().join("raw");
    let bytes = support::array::pattern(3, 2 * 301 * 97);
    std::fs::write(&raw, &bytes).unwrap();
    let cat = |path: &Path| zarrfs(&["cat", text(path)]).stdout;
    let usual = [
        "--shape=301,97",
        "--chunks=50,10",
        "--dtype=<i2",
        "--compressor=zlib",
    ];
    for (name, more) in [
        ("plain", vec![]),
        ("turned", vec!["--order=F", "--separator=/"]),
        // the cache holds less than a row of chunks
        ("small", vec!["--cache-size=8K", "--fill=-7"]),
    ] {
        let path = directory.path().join(name);
        let args = [
            &["create", text(&path), "--from-raw", text(&raw)],
            usual.as_slice(),
            more.as_slice(),
        ]
        .concat();
        assert_eq!(run_zarrfs(&args), (0, String::new()), "{name}");
        assert!(cat(&path) == bytes, "{name}");
    }
    let piped = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        let args = [&["create", text(&path), "--from-raw=-"], usual.as_slice()].concat();
        let mut child = Command::new(support::ZARRFS)
            .args(args)
            .stdin(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // the command may close its input before it has read everything
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes);
        let output = child.wait_with_output().unwrap();
        (
            path,
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (path, code, said) = piped("piped", &bytes);
    assert!(
        code == Some(0) && said.is_empty() && cat(&path) == bytes,
        "{said}"
    );
    let (path, code, said) = piped("short", &bytes[..5000]);
    assert!(
        code == Some(1) && said.contains("ends after 5000 bytes") && !path.exists(),
        "{said}"
    );
    let (path, code, said) = piped("long", &[bytes.as_slice(), b"more"].concat());
    assert!(
        code == Some(1) && said.contains("more bytes than the array") && !path.exists(),
        "{said}"
    );
    std::fs::write(&raw, &bytes[1..]).unwrap();
    let path = directory.path().join("none");
    let (code, said) = run_zarrfs(
        &[
            &["create", text(&path), "--from-raw", text(&raw)],
            usual.as_slice(),
        ]
        .concat(),
    );
    assert!(
        code == 1 && said.contains("nothing was created") && !path.exists(),
        "{code} {said}"
    );
}

fn array(h: &Hierarchy, path: &str) -> Arc<Array> {
    match h.find(&Key::normalize(path).unwrap()).unwrap() {
        Some(StoredNode::Array(array)) => array,
        _ => panic!("no array at {path}"),
    }
}

/// Makes the changes that `check` in `tests/python/changed.py` expects.
fn change(h: &Hierarchy) {
    let key = |path: &str| Key::normalize(path).unwrap();
    h.resize(&array(h, "g/a"), &[6, 8]).unwrap();
    h.resize(&array(h, "g/a"), &[11, 8]).unwrap();
    h.set_attribute(&key("g/a"), "units", Some(b"{\"si\": true}"))
        .unwrap();
    // zarr-python resizes by writing back the document that the mount shows, with another shape
    let view: Value = serde_json::from_str(&array(h, "g/f").metadata().shown_document()).unwrap();
    let mut view = view.as_object().unwrap().clone();
    view["shape"] = json!([7, 9]);
    h.put_document(
        &key("g/f"),
        MetadataFile::Array,
        Value::Object(view).to_string().as_bytes(),
    )
    .unwrap();
    h.put_document(
        &key("g/f"),
        MetadataFile::Attributes,
        b"{\"note\": \"second\"}",
    )
    .unwrap();
    h.set_attribute(&key("g/f"), "plain", Some(b"not JSON"))
        .unwrap();
    h.create_group(&key("h")).unwrap();
    h.rename(&key("g/f"), &key("h/b")).unwrap();
    h.create_group(&key("h/inner")).unwrap();
    h.create_group(&key("h/new")).unwrap();
    let new = json!({"zarr_format": 2, "shape": [5], "chunks": [2], "dtype": "<u2", "compressor": null, "filters": null,
        "fill_value": 0, "order": "C"});
    h.put_document(
        &key("h/new"),
        MetadataFile::Array,
        new.to_string().as_bytes(),
    )
    .unwrap();
    let gone = array(h, "g/gone");
    h.remove_document(gone.key(), MetadataFile::Array).unwrap();
    for entry in gone.entries().unwrap() {
        if let ArrayEntry::Chunk(chunk) = entry.unwrap() {
            assert!(gone.erase(chunk, WriteBack::unconfirmed()).unwrap());
        }
    }
    h.remove_node(gone.key()).unwrap();
    assert!(h.find(gone.key()).unwrap().is_none());
}

#[test]
fn zarr_python_reads_changed_metadata() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.zarr");
    announce(run_python(&python, "changed.py", &["make", text(&path)]).trim());
    let store: Arc<dyn Store> = Arc::new(DirectoryStore::open(&path).unwrap());
    let zstd =
        CodecConfig::parse(&zarrfs_base::json::parse(b"{\"id\":\"zstd\",\"level\":5}").unwrap())
            .unwrap();
    let stats = Arc::new(Stats::default());
    change(&Hierarchy::new(store, V1Order::Zarr1, stats.clone()).with_compressor(Some(zstd)));
    assert!(stats.problems().is_empty(), "{:?}", stats.problems());
    for python in pythons() {
        announce(run_python(&python, "changed.py", &["check", text(&path)]).trim());
    }
    support::tree::visit(&path, &mut |found| {
        assert!(!found.path.contains(".zarrfs-"), "{}", found.path);
        true
    })
    .unwrap();
}

/// `zarrfs consolidate` writes the same document as zarr.consolidate_metadata, and zarr-python
/// reads it.
#[test]
fn consolidated_metadata_equals_that_of_zarr_python() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.zarr");
    announce(run_python(&python, "changed.py", &["make", text(&path)]).trim());
    change(&Hierarchy::new(
        Arc::new(DirectoryStore::open(&path).unwrap()),
        V1Order::Zarr1,
        Arc::default(),
    ));
    // every change has updated `.zmetadata` already
    let kept = std::fs::read_to_string(path.join(".zmetadata")).unwrap();
    std::fs::remove_file(path.join(".zmetadata")).unwrap();
    let output = zarrfs(&["consolidate", text(&path)]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said,
        format!(
            "{}: .zmetadata holds 9 documents, of 3 arrays\n",
            path.display()
        )
    );
    let written = std::fs::read_to_string(path.join(".zmetadata")).unwrap();
    // serde_json does not parse NaN
    let value =
        |text: &str| serde_json::from_str::<Value>(&text.replace("NaN", "\"NaN\"")).unwrap();
    assert_eq!(value(&written), value(&kept));
    for python in pythons() {
        announce(run_python(&python, "changed.py", &["consolidated", text(&path)]).trim());
    }
}

#[test]
fn documents_that_cannot_be_consolidated_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(path("g/bad")).unwrap();
    std::fs::write(path("g/.zgroup"), "{\"zarr_format\":2}").unwrap();
    std::fs::write(path("g/bad/.zattrs"), "{").unwrap();
    let (code, said) = run_zarrfs(&["consolidate", text(&path("g"))]);
    assert!(
        code == 1 && said.contains("/bad/.zattrs: ") && said.contains("left out of /.zmetadata"),
        "{said}"
    );
    assert!(
        std::fs::read_to_string(path("g/.zmetadata"))
            .unwrap()
            .contains("\"metadata\"")
    );
    let array = zarrfs(&[
        "create",
        text(&path("a")),
        "--shape",
        "4",
        "--chunks",
        "2",
        "--dtype",
        "<i4",
    ]);
    assert!(
        array.status.success(),
        "{}",
        String::from_utf8_lossy(&array.stderr)
    );
    let (code, said) = run_zarrfs(&["consolidate", text(&path("a"))]);
    assert!(
        code == 1 && said.contains("not a group") && !path("a/.zmetadata").exists(),
        "{said}"
    );
    assert_eq!(run_zarrfs(&["consolidate", text(&path("none"))]).0, 3);
}

/// Returns the flat bytes of an array.
fn flat(array: &Array) -> Vec<u8> {
    let mut bytes = vec![0; array.size() as usize];
    array.metadata().write_fill(&mut bytes, 0);
    let mut at = 0;
    let mut scratch = Scratch::default();
    for run in array.grid().runs(0..array.size()) {
        if let Some(chunk) = array.load(run.chunk, Vec::new(), &mut scratch).unwrap() {
            bytes[at..at + run.len].copy_from_slice(&chunk.bytes[run.offset..run.offset + run.len]);
        }
        at += run.len;
    }
    bytes
}

/// Writes every document of the matrix back as the mount shows it. Then each array grows by one
/// item along each dimension and shrinks again.
#[test]
fn writing_back_the_shown_documents_changes_nothing() {
    let Some(matrix) = env_path("ZARRFS_MATRIX") else {
        return;
    };
    let copy = tempfile::tempdir().unwrap();
    let mut seen = 0;
    let mut resized = 0;
    for store in [
        "dot.zarr",
        "slash.zarr",
        "root.zarr",
        "root0d.zarr",
        "object.zarr",
        "undeclared.zarr",
        "consolidated.zarr",
    ] {
        let path = copy.path().join(store);
        copy_tree(&matrix.join(store), &path);
        let h = Hierarchy::new(
            Arc::new(DirectoryStore::open(&path).unwrap().without_fsync()),
            V1Order::Zarr1,
            Arc::default(),
        );
        let mut arrays = Vec::new();
        h.visit_below(&Key::root(), NodeUse::Chunks, &mut |_, place| {
            if let StoredNode::Array(array) = place {
                arrays.push(array.clone());
            }
            Ok(())
        })
        .unwrap();
        for array in arrays.iter().filter(|array| array.writable().is_ok()) {
            let key = array.key();
            let document = path.join(key.as_str()).join(".zarray");
            let stored = std::fs::read(&document).unwrap();
            let put = |text: &[u8]| h.put_document(key, MetadataFile::Array, text).unwrap();
            put(array.metadata().shown_document().as_bytes());
            assert_eq!(
                std::fs::read(&document).unwrap(),
                stored,
                "{}",
                document.display()
            );
            seen += 1;
            if array.metadata().has_objects() {
                continue;
            }
            let shape = array.metadata().shape.clone();
            let before = flat(array);
            for shape in [shape.iter().map(|n| n + 1).collect::<Vec<_>>(), shape] {
                let mut view: Value =
                    serde_json::from_str(&array.metadata().shown_document()).unwrap();
                view["shape"] = json!(shape);
                put(view.to_string().as_bytes());
            }
            let Some(StoredNode::Array(now)) = h.find(key).unwrap() else {
                panic!("{key}")
            };
            assert_eq!(now.metadata(), array.metadata(), "{key}");
            assert!(
                array.is_lossy() || flat(&now) == before,
                "{}",
                document.display()
            );
            resized += 1;
        }
    }
    announce(&format!(
        "{seen} documents written back, {resized} arrays resized"
    ));
    assert!(seen > 100 && resized > 100);
}
