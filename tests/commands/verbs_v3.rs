//! Commands on stores of Zarr v3. zarr-python reads the arrays that `create` makes, and zarrfs
//! reads them again after zarr-python has reversed their items. Documents are compared with the
//! specification's JSON.

use crate::support::{announce, env_path, failure, hex, run_python, with_timeout, zarrfs};
use serde_json::{Value, json};
use std::path::Path;

const SHAPE: [usize; 2] = [7, 5];

/// Dtypes, their sizes in bytes, and the data types of v3.
const DTYPES: [(&str, usize, &str); 12] = [
    ("|b1", 1, "\"bool\""),
    ("|i1", 1, "\"int8\""),
    (">i2", 2, "\"int16\""),
    ("<i4", 4, "\"int32\""),
    ("<u8", 8, "\"uint64\""),
    ("<f2", 2, "\"float16\""),
    ("<f4", 4, "\"float32\""),
    (">f8", 8, "\"float64\""),
    ("<c8", 8, "\"complex64\""),
    (
        "<M8[ns]",
        8,
        r#"{"configuration":{"scale_factor":1,"unit":"ns"},"name":"numpy.datetime64"}"#,
    ),
    (
        "|S4",
        4,
        r#"{"configuration":{"length_bytes":4},"name":"null_terminated_bytes"}"#,
    ),
    (
        "<U3",
        12,
        r#"{"configuration":{"length_bytes":12},"name":"fixed_length_utf32"}"#,
    ),
];

const COMPRESSORS: [&str; 8] = [
    "none",
    "blosc:zstd:3:bitshuffle",
    "blosc:lz4:5:autoshuffle",
    "zlib:9",
    "gzip:6",
    "bz2",
    "zstd:3",
    "lz4",
];

/// Returns bytes of an array that are valid values of any dtype.
fn raw(dtype: &str, size: usize) -> Vec<u8> {
    let items = SHAPE.iter().product::<usize>();
    match dtype {
        "|b1" => (0..items).map(|i| (i % 3 == 0) as u8).collect(),
        "<U3" => (0..3 * items)
            .flat_map(|i| (97 + i as u32 % 20).to_le_bytes())
            .collect(),
        // no float whose bytes are at most 90 is NaN
        _ => (0..size * items).map(|i| 1 + (i * 7 % 90) as u8).collect(),
    }
}

fn create(path: &Path, args: &[&str]) -> (i32, String) {
    let output = zarrfs(
        &[
            &[
                "create",
                path.to_str().unwrap(),
                "--shape=7,5",
                "--chunks=4,3",
            ],
            args,
        ]
        .concat(),
    );
    if output.status.success() {
        (0, String::new())
    } else {
        failure(&output)
    }
}

fn document(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path.join("zarr.json")).unwrap()).unwrap()
}

#[test]
fn zarr_python_reads_and_writes_created_arrays() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("new.zarr");
    let mut expected = serde_json::Map::new();
    for (n, (dtype, size, data_type)) in DTYPES.into_iter().enumerate() {
        let raw = raw(dtype, size);
        let file = directory.path().join("raw");
        std::fs::write(&file, &raw).unwrap();
        for (m, compressor) in COMPRESSORS.into_iter().enumerate() {
            let name = format!("g/{n}/{m}");
            let order = if (n + m) % 3 == 0 { "F" } else { "C" };
            let shards = if (n + m) % 4 == 1 {
                vec!["--shards=8,9"]
            } else {
                vec![]
            };
            let from = format!("--from-raw={}", file.display());
            let args = [
                "--zarr-format=3",
                "--dtype",
                dtype,
                "--compressor",
                compressor,
                "--order",
                order,
                "--dimension-names=y,x",
                "--attrs={\"units\":\"K\"}",
                &from,
            ];
            let args = [&args[..], &shards].concat();
            assert_eq!(
                create(&store.join(&name), &args),
                (0, String::new()),
                "{dtype} {compressor}"
            );
            let wanted: Value = serde_json::from_str(data_type).unwrap();
            assert_eq!(document(&store.join(&name))["data_type"], wanted, "{dtype}");
            expected.insert(name, json!({"dtype": dtype, "raw": hex(&raw)}));
        }
    }
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let expected_text = Value::Object(expected.clone()).to_string();
    announce(
        run_python(
            &python,
            "created3.py",
            &[store.to_str().unwrap(), &expected_text],
        )
        .trim(),
    );
    // the script has reversed the items along each dimension
    for (name, wanted) in expected {
        let size = DTYPES
            .iter()
            .find(|(dtype, ..)| wanted["dtype"] == *dtype)
            .unwrap()
            .1;
        let raw = raw(wanted["dtype"].as_str().unwrap(), size);
        let reversed = raw
            .chunks(size)
            .rev()
            .flatten()
            .copied()
            .collect::<Vec<u8>>();
        let read = zarrfs(&["cat", store.join(&name).to_str().unwrap()]);
        assert!(
            read.status.success() && read.stdout == reversed,
            "{name}: {}",
            failure(&read).1
        );
    }
}

#[test]
fn the_store_decides_the_format() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    // without this file the empty directory would become the store
    std::fs::write(root.join("file"), "").unwrap();
    let made =
        |path: &str, args: &[&str]| create(&root.join(path), &[&["--dtype=<f4"], args].concat());
    assert_eq!(made("two.zarr/a", &[]).0, 0);
    assert!(root.join("two.zarr/a/.zarray").exists() && root.join("two.zarr/.zgroup").exists());
    assert_eq!(made("three.zarr/g/a", &["--zarr-format=3"]).0, 0);
    for group in ["three.zarr", "three.zarr/g"] {
        assert_eq!(document(&root.join(group))["node_type"], "group", "{group}");
    }
    assert_eq!(made("three.zarr/h/b", &[]).0, 0);
    assert_eq!(document(&root.join("three.zarr/h"))["node_type"], "group");
    let b = document(&root.join("three.zarr/h/b"));
    assert_eq!(
        (&b["shape"], &b["fill_value"], b.get("dimension_names")),
        (&json!([7, 5]), &json!(0.0), None)
    );
    assert_eq!(
        b["chunk_grid"]["configuration"]["chunk_shape"],
        json!([4, 3])
    );
    assert_eq!(
        b["chunk_key_encoding"],
        json!({"name": "default", "configuration": {"separator": "/"}})
    );
    assert_eq!(
        b["codecs"],
        json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "blosc", "configuration":
            {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}}])
    );
    // a store that is an array, in an empty directory
    std::fs::create_dir(root.join("empty")).unwrap();
    assert_eq!(made("empty", &["--zarr-format=3"]).0, 0);
    assert_eq!(document(&root.join("empty"))["node_type"], "array");
    assert!(
        !root.join("three.zarr/.zgroup").exists() && !root.join("three.zarr/h/.zgroup").exists()
    );
    for (path, args, code, why) in [
        (
            "two.zarr/b",
            &["--zarr-format=3"] as &[&str],
            2,
            "in a store of Zarr v2",
        ),
        (
            "three.zarr/c",
            &["--zarr-format=2"],
            2,
            "in a store of Zarr v3",
        ),
        (
            "two.zarr/b",
            &["--dimension-names=y,x"],
            2,
            "--dimension-names",
        ),
        ("two.zarr/b", &["--codecs=[]"], 2, "--codecs"),
        ("two.zarr/b", &["--shards=8,6"], 2, "--shards"),
        (
            "three.zarr/c",
            &["--shards=8,5"],
            2,
            "no multiples of the chunks",
        ),
        (
            "three.zarr/c",
            &["--shards=8"],
            2,
            "no multiples of the chunks",
        ),
        (
            "three.zarr/c",
            &["--filters=[{\"id\":\"shuffle\"}]"],
            2,
            "--codecs",
        ),
        (
            "three.zarr/c",
            &["--dimension-names=y"],
            2,
            "dimension_names",
        ),
        ("three.zarr/c", &["--fill=null"], 2, "null"),
        ("three.zarr/c", &["--fill=x"], 2, "--fill"),
        (
            "three.zarr/c",
            &["--codecs=[{\"name\":\"unheard-of\"}]"],
            2,
            "unheard-of",
        ),
        (
            "three.zarr/c",
            &["--codecs=[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"big\"}}]"],
            2,
            "byte order",
        ),
        ("three.zarr/h/b", &[], 1, "File exists"),
        ("three.zarr/h/b/inner", &[], 1, "inside the array"),
        ("empty/inner", &[], 1, "inside the array"),
    ] {
        let (status, said) = made(path, args);
        assert!(
            status == code && said.contains(why),
            "{path} {args:?}: {status} {said}"
        );
        assert!(!root.join("three.zarr/c").exists() && !root.join("two.zarr/b").exists());
    }
    let (status, said) = create(&root.join("three.zarr/c"), &["--dtype=<f16"]);
    assert!(
        status == 2 && said.contains("no data type in Zarr v3"),
        "{status} {said}"
    );
}

#[test]
fn created_documents_of_v3_have_the_requested_codecs_and_fill_values() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("s.zarr");
    let codecs = r#"[{"name":"transpose","configuration":{"order":[1,0]}},{"name":"bytes","configuration":{"endian":"little"}},{"name":"crc32c"}]"#;
    for (name, args, fill) in [
        (
            "codecs",
            &["--dtype=<i2", "--codecs", codecs, "--fill=-3"] as &[&str],
            json!(-3),
        ),
        (
            "nan",
            &["--dtype=>f4", "--fill=NaN", "--separator=."],
            json!("NaN"),
        ),
        ("text", &["--dtype=string", "--fill=5"], json!("5")),
        ("bytes", &["--dtype=variable_length_bytes"], json!("")),
        ("brain", &["--dtype=bfloat16", "--fill=1.5"], json!(1.5)),
        (
            "nibble",
            &["--dtype=int4", "--dimension-names=y,"],
            json!(0),
        ),
        (
            "fields",
            &[r#"--dtype=[["a","<i2"],["b","<f4"]]"#],
            json!({"a": 0, "b": 0.0}),
        ),
    ] {
        assert_eq!(
            create(&root.join(name), &[args, &["--zarr-format=3"]].concat()),
            (0, String::new()),
            "{name}"
        );
        assert_eq!(document(&root.join(name))["fill_value"], fill, "{name}");
    }
    assert_eq!(
        document(&root.join("codecs"))["codecs"],
        serde_json::from_str::<Value>(codecs).unwrap()
    );
    assert_eq!(
        document(&root.join("nan"))["codecs"][0]["configuration"]["endian"],
        "big"
    );
    assert_eq!(
        document(&root.join("nan"))["chunk_key_encoding"]["configuration"]["separator"],
        "."
    );
    assert_eq!(
        document(&root.join("nibble"))["dimension_names"],
        json!(["y", null])
    );
    assert_eq!(
        document(&root.join("text"))["codecs"][0],
        json!({"name": "vlen-utf8"})
    );
    let listed = zarrfs(&["info", root.to_str().unwrap()]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    for line in [
        "array  int4  (y 7, 5)",
        "array  bfloat16  (7, 5)",
        "array  >f4  (7, 5)",
        "array  string  (7, 5)",
    ] {
        assert!(listed.contains(line), "{line}\n{listed}");
    }
    let wide = zarrfs(&["info", "--wide", root.join("codecs").to_str().unwrap()]);
    let wide = String::from_utf8(wide.stdout).unwrap();
    assert!(
        wide.contains("chunks (4, 3)  transpose(order=[1,0]), bytes(endian=little), crc32c  "),
        "{wide}"
    );
    let rows = zarrfs(&["info", "--json", root.join("brain").to_str().unwrap()]);
    let rows: Value = serde_json::from_slice(&rows.stdout).unwrap();
    assert_eq!(
        (&rows[0]["dtype"], &rows[0]["data_type"]),
        (&Value::Null, &json!("bfloat16"))
    );
    assert_eq!(rows[0]["codecs"][0]["name"], "bytes");
}

/// The store has two shards of 2 x 4 bytes in chunks of 1 x 2. One has three chunks, the last of a
/// wrong size; the other is damaged.
#[test]
fn info_counts_the_chunks_in_shards() {
    let directory = tempfile::tempdir().unwrap();
    let array = directory.path().join("a.zarr");
    let path = array.to_str().unwrap();
    let codecs = json!([{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [1, 2], "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"]}}]);
    let codecs = format!("--codecs={codecs}");
    let args = [
        "--shape=4,200",
        "--chunks=2,4",
        "--dtype=|u1",
        "--zarr-format=3",
        &codecs,
    ];
    let made = zarrfs(&[&["create", path], &args[..]].concat());
    assert!(made.status.success(), "{}", failure(&made).1);
    let entries: [(u64, u64); 4] = [(0, 2), (2, 2), (u64::MAX, u64::MAX), (4, 1)];
    let index: Vec<u8> = entries
        .iter()
        .flat_map(|(at, len)| [at.to_le_bytes(), len.to_le_bytes()].concat())
        .collect();
    let sum = crc32c::crc32c(&index).to_le_bytes();
    let shard = [&[1; 5][..], &index, &sum].concat();
    std::fs::create_dir_all(array.join("c/0")).unwrap();
    std::fs::create_dir_all(array.join("c/1")).unwrap();
    std::fs::write(array.join("c/0/0"), shard).unwrap();
    std::fs::write(array.join("c/1/49"), b"short").unwrap();
    let info = |args: &[&str]| {
        String::from_utf8(zarrfs(&[&["info", path], args].concat()).stdout).unwrap()
    };
    let wide = info(&["--wide"]);
    assert!(
        wide.contains("chunks (1, 2)  shards (2, 4)  sharding_indexed("),
        "{wide}"
    );
    assert!(
        wide.trim_end().ends_with("7/400 chunks in 2/100 shards"),
        "{wide}"
    );
    let rows: Value = serde_json::from_str(&info(&["--json"])).unwrap();
    assert_eq!(
        (&rows[0]["shards_stored"], &rows[0]["shards_in_grid"]),
        (&json!(2), &json!(100))
    );
    assert_eq!(
        (&rows[0]["chunks_initialised"], &rows[0]["shards"]),
        (&json!(7), &json!([2, 4]))
    );
    for deep in [&[][..], &["--deep"]] {
        let map = info(&[&["--map", "--ascii"], deep].concat());
        let cells: Vec<&str> = map
            .lines()
            .skip(1)
            .take(2)
            .map(|line| line[8..].trim_end())
            .collect();
        assert_eq!(
            cells,
            [
                format!("!{}", ".".repeat(49)),
                format!("{}!", ".".repeat(49))
            ],
            "{map}"
        );
        assert!(
            map.contains("7 of 400 chunks stored") && map.contains("5 fail"),
            "{map}"
        );
        assert!(
            map.contains("a cell is 2 x 2 chunks, a shard, 1 to 9"),
            "{map}"
        );
    }
}

/// "What others write is no finding": zarr-python 3 adds to the groups that it consolidates.
#[test]
fn nested_groups_of_v2_that_zarr_python_3_has_consolidated_have_no_findings() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store.zarr");
    let script = "
import sys, zarr
root = zarr.open_group(sys.argv[1], mode='w', zarr_format=2)
group = root.create_group('g')
for node in (root, group, group.create_group('h')):
    node.create_array('a', shape=(4,), chunks=(2,), dtype='f8', fill_value=float('nan'))[:] = 1
zarr.consolidate_metadata(sys.argv[1], zarr_format=2)
";
    let made = with_timeout(120, python)
        .args(["-W", "ignore", "-c", script])
        .arg(&store)
        .status()
        .unwrap();
    assert!(made.success());
    let output = zarrfs(&["check", store.to_str().unwrap()]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("3 arrays, 6 chunks"),
        "{printed}"
    );
}
