//! Comparison of stores that `zarrfs migrate` has converted, from v1 to v2 and from v2 to v3, with
//! their original values, as zarr-python and xarray read them.

use crate::support;
use crate::support::tree::snapshot;
use crate::support::{
    announce, copy_tree, env_path, failure, names, run_python, run_zarrfs, text, zarrfs,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn migrated_stores_keep_their_values() {
    let (Some(python), Some(matrix)) = (env_path("ZARRFS_TEST_PYTHON"), env_path("ZARRFS_MATRIX"))
    else {
        return;
    };
    let copy = tempfile::tempdir().unwrap();
    copy_tree(&matrix.join("v1"), &copy.path().join("v1"));
    for store in std::fs::read_dir(copy.path().join("v1"))
        .unwrap()
        .map(|e| e.unwrap().path())
    {
        for said in [
            "converted to Zarr v2",
            "nothing to do; --to 3 converts it to Zarr v3, and --shards auto copies it",
        ] {
            let output = zarrfs(&["migrate", text(&store)]);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(
                String::from_utf8_lossy(&output.stdout).contains(said),
                "{}",
                store.display()
            );
        }
    }
    announce(run_python(&python, "migrated.py", &[text(&matrix), text(copy.path())]).trim());
    assert_eq!(run_zarrfs(&["migrate", "/nonexistent/x.zarr"]).0, 3);
    assert_eq!(run_zarrfs(&["migrate", text(copy.path())]).0, 4);
}

/// Fill values as zarr 1.x wrote them for a dtype, and the bytes of an item that they stand for.
const V1_FILLS: [(&str, &str, &str); 16] = [
    (r#""<c16""#, "0", "00000000000000000000000000000000"),
    (r#"">c8""#, "1.5", "3fc0000000000000"),
    // v1 did not use base64, so these letters are the value
    (r#""|S4""#, "\"abcd\"", "61626364"),
    (r#""|S4""#, "\"eHk=\"", "65486b3d"),
    (r#""|S4""#, "\"xy\"", "78790000"),
    (r#""|S4""#, "\"\"", "00000000"),
    (r#""|S3""#, "0", "300000"),
    (r#""|V3""#, "0", "000000"),
    (r#"[["a","<i4"],["b","|S1"]]"#, "0", "0000000000"),
    (r#""<f8""#, "NaN", "000000000000f87f"),
    (r#"">f4""#, "-Infinity", "ff800000"),
    (r#""<i4""#, "7", "07000000"),
    (r#""|b1""#, "true", "01"),
    (r#""<U2""#, "\"ab\"", "6100000062000000"),
    (r#""<m8[s]""#, "3", "0300000000000000"),
    (r#""<f4""#, "null", ""),
];

/// Creates a Zarr v1 store of one array without stored chunks.
fn make_v1(path: &Path, dtype: &str, fill: &str, compression: &str, attributes: &[u8]) {
    let meta = format!(
        r#"{{"zarr_format":1,"shape":[3],"chunks":[2],"dtype":{dtype},"compression":"{compression}",
        "compression_opts":null,"fill_value":{fill},"order":"C"}}"#
    );
    std::fs::create_dir(path).unwrap();
    std::fs::write(path.join("meta"), meta).unwrap();
    std::fs::write(path.join("attrs"), attributes).unwrap();
}

#[test]
fn migrated_fill_values_and_attributes_keep_their_meaning() {
    let directory = tempfile::tempdir().unwrap();
    let mut expected = serde_json::Map::new();
    let mut add = |name: String, dtype: &str, fill: &str, item: &str, attributes: &str| {
        let path = directory.path().join(name);
        make_v1(&path, dtype, fill, "zlib", attributes.as_bytes());
        let shown = zarrfs(&["cat", text(&path)]).stdout;
        assert_eq!(
            support::hex(&shown),
            item.repeat(3).to_string(),
            "{dtype} {fill}: before it is migrated"
        );
        assert_eq!(
            run_zarrfs(&["migrate", text(&path)]),
            (0, String::new()),
            "{dtype} {fill}"
        );
        assert_eq!(
            support::hex(&zarrfs(&["cat", text(&path)]).stdout),
            item.repeat(3),
            "{dtype} {fill}"
        );
        let item = if fill == "null" {
            Value::Null
        } else {
            item.into()
        };
        expected.insert(
            text(&path).to_string(),
            json!({"item": item, "attributes": attributes}),
        );
    };
    for (n, (dtype, fill, item)) in V1_FILLS.into_iter().enumerate() {
        add(
            n.to_string(),
            dtype,
            fill,
            if fill == "null" { "00000000" } else { item },
            "{}",
        );
    }
    // zarr-python accepts NaN and duplicate names, as Python's json does; the last of equal names
    // counts
    for (n, attributes) in [
        r#"{"x": NaN, "y": [-Infinity]}"#,
        r#"{"a": 1, "a": 2}"#,
        "{\"ä\": \"\\ud800\"}",
    ]
    .iter()
    .enumerate()
    {
        add(
            format!("attributes{n}"),
            "\"<i4\"",
            "0",
            "00000000",
            attributes,
        );
    }
    let list = directory.path().join("expected.json");
    std::fs::write(&list, Value::Object(expected).to_string()).unwrap();
    for python in ["ZARRFS_TEST_PYTHON", "ZARRFS_TEST_PYTHON3"]
        .into_iter()
        .filter_map(env_path)
    {
        announce(run_python(&python, "fills.py", &[text(&list)]).trim());
    }
}

#[test]
fn a_store_that_cannot_be_migrated_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    for (n, (compression, attributes, why)) in [
        ("zlib", &b"{"[..], "attrs: not valid JSON"),
        ("zlib", b"[1]", "attrs: not a JSON object"),
        ("zlib", b"{\"a\": \"\xff\"}", "attrs: not UTF-8"),
        ("zlib", b"{'a': 1}", "attrs: not valid JSON"),
        ("unheard-of", b"{}", "codec \"unheard-of\" is unknown"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = directory.path().join(n.to_string());
        make_v1(&path, "\"<f4\"", "0", compression, attributes);
        let before = snapshot(&path).unwrap();
        let (code, said) = run_zarrfs(&["migrate", text(&path)]);
        assert!(
            code == 1 && said.contains(why) && said.contains("nothing was migrated"),
            "{code} {said}"
        );
        assert_eq!(said.lines().count(), 1);
        assert_eq!(snapshot(&path).unwrap(), before, "{why}");
    }
}

/// Returns the arrays of each store of the matrix that have no form in v3.
fn refused(python: &Path, matrix: &Path) -> BTreeMap<String, Vec<String>> {
    let listed = run_python(python, "migrated3.py", &["refused".as_ref(), matrix]);
    serde_json::from_str(&listed).unwrap()
}

/// The stores of the matrix that `matrix.py` writes: every dtype, codec, order and fill value,
/// nested groups, attributes, and consolidated metadata.
#[test]
fn stores_of_v2_become_v3() {
    let (Some(python), Some(matrix)) = (env_path("ZARRFS_TEST_PYTHON3"), env_path("ZARRFS_MATRIX"))
    else {
        return;
    };
    let refused = refused(&python, &matrix);
    assert!(refused.len() > 3, "{refused:?}");
    let copy = tempfile::tempdir().unwrap();
    let stores = || {
        let entries = std::fs::read_dir(&matrix)
            .unwrap()
            .map(|entry| entry.unwrap());
        entries
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "zarr"))
            .map(|entry| entry.file_name())
    };
    let migrate = |path: &Path| zarrfs(&["migrate", "--to", "3", text(path)]);
    for name in stores().map(|name| name.into_string().unwrap()) {
        let store = copy.path().join(&name);
        copy_tree(&matrix.join(&name), &store);
        for array in refused.get(&name).into_iter().flatten() {
            let path = store.join(array);
            let before = snapshot(&path).unwrap();
            let (code, message) = failure(&migrate(&path));
            assert!(
                code == 1 && message.ends_with("; nothing was migrated"),
                "{name}/{array}: {message}"
            );
            assert_eq!(snapshot(&path).unwrap(), before, "{name}/{array}");
            std::fs::remove_dir_all(path).unwrap();
        }
        for said in ["converted to Zarr v3", "Zarr v3 already, nothing to do"] {
            let output = migrate(&store);
            assert!(
                output.status.success(),
                "{name}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(
                String::from_utf8_lossy(&output.stdout).contains(said),
                "{name}"
            );
        }
    }
    announce(
        run_python(
            &python,
            "migrated3.py",
            &["compare".as_ref(), matrix.as_path(), copy.path()],
        )
        .trim(),
    );
}

/// The same stores, and those of v3, are copied to new ones in which chunks lie in shards.
/// zarr-python 3 reads the new stores.
#[test]
fn chunks_are_copied_into_shards() {
    let (Some(python), Some(matrix)) = (env_path("ZARRFS_TEST_PYTHON3"), env_path("ZARRFS_MATRIX"))
    else {
        return;
    };
    let refused = refused(&python, &matrix);
    let directory = support::memory_directory();
    let new = directory.path().join("new");
    std::fs::create_dir(&new).unwrap();
    let mut sharded = 0;
    let mut copy = |store: &Path, copy: &Path| {
        let args = [
            "migrate",
            "--json",
            "--shards",
            "auto",
            text(store),
            text(copy),
        ];
        let output = zarrfs(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", store.display());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        sharded += report["sharded"].as_u64().unwrap();
        let checked = zarrfs(&["check", "--deep", text(copy)]);
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{}: {said}", copy.display());
    };
    for entry in std::fs::read_dir(&matrix).unwrap() {
        let store = entry.unwrap().path();
        if store.extension().is_none_or(|e| e != "zarr") {
            continue;
        }
        let name = store.file_name().unwrap();
        let old = directory.path().join(name);
        copy_tree(&store, &old);
        for array in refused.get(name.to_str().unwrap()).into_iter().flatten() {
            std::fs::remove_dir_all(old.join(array)).unwrap();
        }
        // arrays that are damaged on purpose
        for array in names(&old).iter().filter(|name| name.starts_with("bad-")) {
            std::fs::remove_dir_all(old.join(array)).unwrap();
        }
        let before = snapshot(&old).unwrap();
        copy(&old, &new.join(name));
        assert_eq!(snapshot(&old).unwrap(), before, "{name:?}");
    }
    let compared = run_python(
        &python,
        "migrated3.py",
        &["compare".as_ref(), matrix.as_path(), new.as_path()],
    );
    announce(compared.trim());
    for name in ["zarr-python.zarr", "zarrs.zarr"] {
        let Some(matrix) = env_path("ZARRFS_MATRIX3") else {
            break;
        };
        let [old, new] = [matrix.join(name), new.join(name)];
        copy(&old, &new);
        let args = ["values", text(&old), text(&new)];
        announce(run_python(&python, "packed.py", &args).trim());
    }
    announce(&format!("{sharded} arrays in shards"));
    assert!(sharded > 300, "{sharded}");
}

#[test]
fn a_copy_into_shards_that_fails_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    copy_tree(&support::test_data("sample.zarr"), &path("x.zarr"));
    std::fs::create_dir(path("old.zarr")).unwrap();
    let before = snapshot(directory.path()).unwrap();
    let refused = |args: &[&str], code: i32, why: &str| {
        let (failed, said) = run_zarrfs(&[&["migrate"], args].concat());
        assert!(failed == code && said.contains(why), "{failed} {said}");
        assert_eq!(snapshot(directory.path()).unwrap(), before, "{args:?}");
    };
    let [store, old, new] = ["x.zarr", "old.zarr", "new.zarr"].map(path);
    let [store, old, new] = [&store, &old, &new].map(|path| text(path));
    refused(
        &["--shards=auto", store, old],
        2,
        "old.zarr: exists already",
    );
    refused(&["--shards=auto", store], 2, "required");
    refused(&[store, new], 2, "required");
    refused(&["--shards=2,x", store, new], 2, "\"x\" is not a length");
    refused(
        &["--to=2", "--shards=auto", store, new],
        2,
        "Zarr v2 has no shards",
    );
    refused(
        &["--shards=auto", store, "s3://b/new.zarr"],
        2,
        "a store in a directory",
    );
    let why =
        "/air_temperature: --shards: [24, 16, 23] are no multiples of the chunks [24, 16, 24]; ";
    refused(&["--shards=24,16,23", store, new], 1, why);
    refused(
        &["--shards=1,1", store, new],
        1,
        "no array of 2 dimensions has several chunks",
    );
    let made = zarrfs(&[
        "migrate",
        "--shards=24,16,48",
        &format!("{store}/air_temperature"),
        new,
    ]);
    let said = String::from_utf8_lossy(&made.stdout);
    assert!(
        said.ends_with("new.zarr: 1 of 1 arrays in shards, 18 shards of 27 chunks\n"),
        "{said}"
    );
    let flat = |path: &str| zarrfs(&["cat", path]).stdout;
    assert!(flat(new) == flat(&format!("{store}/air_temperature")));
}

/// Missing values keep their meaning, although xarray states them in other ways in v3, as do names,
/// times and packed values.
#[test]
fn xarray_opens_the_same_datasets() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let old = directory.path().join("old");
    let new = directory.path().join("new");
    std::fs::create_dir(&old).unwrap();
    run_python(
        &python,
        "migrated3.py",
        &["datasets".as_ref(), old.as_path()],
    );
    copy_tree(&old, &new);
    for name in ["plain.zarr", "consolidated.zarr"] {
        assert_eq!(
            run_zarrfs(&["migrate", "--to", "3", text(&new.join(name))]),
            (0, String::new())
        );
    }
    announce(
        run_python(
            &python,
            "migrated3.py",
            &["same".as_ref(), old.as_path(), new.as_path()],
        )
        .trim(),
    );
}

/// Creates a store of v2 with a group and arrays, one of them of structs, which zarr-python 3.1
/// cannot read in v3.
fn make_v2(path: &Path) {
    std::fs::create_dir_all(path.join("g")).unwrap();
    for group in [path.to_path_buf(), path.join("g")] {
        std::fs::write(group.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    }
    let fields = json!([["a", ">i4"], ["b", "|S3"], ["c", ">f8"]]);
    for (name, more) in [
        (
            "struct",
            json!({"dtype": fields, "order": "F", "compressor": {"id": "zlib", "level": 1}}),
        ),
        (
            "g/numbers",
            json!({"dtype": "<u2", "order": "C", "dimension_separator": "/", "fill_value": 7}),
        ),
    ] {
        let mut document = json!({"zarr_format": 2, "shape": [4, 6], "chunks": [2, 4], "fill_value": null,
            "compressor": null, "filters": null});
        document
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        std::fs::create_dir(path.join(name)).unwrap();
        std::fs::write(path.join(name).join(".zarray"), document.to_string()).unwrap();
        let raw = path.with_extension("raw");
        let size = zarrfs(&["cat", text(&path.join(name))]).stdout.len();
        std::fs::write(
            &raw,
            (0..size).map(|i| (7 * i % 251) as u8).collect::<Vec<u8>>(),
        )
        .unwrap();
        let put = std::process::Command::new(support::ZARRFS)
            .args(["put", text(&path.join(name))])
            .stdin(std::fs::File::open(&raw).unwrap())
            .status();
        assert!(put.unwrap().success());
    }
}

#[test]
fn migrating_to_v3_changes_no_chunk_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s.zarr");
    make_v2(&store);
    let chunks = || {
        let is_chunk = |path: &str| {
            path.rsplit('/')
                .next()
                .unwrap()
                .bytes()
                .all(|b| b.is_ascii_digit() || b == b'.')
        };
        snapshot(&store)
            .unwrap()
            .into_iter()
            .filter(|(path, _)| is_chunk(path))
            .collect::<Vec<_>>()
    };
    let cat = |name: &str| zarrfs(&["cat", text(&store.join(name))]).stdout;
    let before = (chunks(), cat("struct"), cat("g/numbers"));
    assert!(before.0.len() > 8 && before.1.iter().any(|b| *b != 0));
    let output = zarrfs(&["migrate", "--to", "3", "--json", text(&store)]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report,
        json!({"store": text(&store), "migrated": true, "zarr_format": 3})
    );
    assert_eq!((chunks(), cat("struct"), cat("g/numbers")), before);
    assert_eq!(
        run_zarrfs(&["check", "--deep", text(&store)]),
        (0, String::new())
    );
    // without --to, and with a format that does not exist
    let output = zarrfs(&["migrate", text(&store)]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{}: Zarr v3 already, nothing to do\n", store.display())
    );
    assert_eq!(run_zarrfs(&["migrate", "--to", "4", text(&store)]).0, 2);
    assert_eq!(
        run_zarrfs(&["migrate", "--to", "3", "/nonexistent/x.zarr"]).0,
        3
    );
}
