//! Bad arrays of Zarr v3 beside a good one, on real mounts: every kind of bad document, of bad
//! shards, and of misplaced files. Each must fail with the errno that the test states and with a
//! line that names it. The good array must stay readable, and memory bounded.

use crate::support;
use crate::support::{Mount, announce, errno};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Memory in bytes by which a daemon may grow after the mount: the cache bound and 64 MiB.
const MEMORY: u64 = (32 + 64) << 20;

/// The bytes of the good array.
const GOOD: [u8; 4] = [1, 2, 3, 4];

/// Value of a field in [`REFUSED`] that the document lacks.
const ABSENT: &str = "(absent)";

const D: &str = "EIO";
const U: &str = "EOPNOTSUPP";

/// Bad documents, one per line: D for EIO or U for EOPNOTSUPP; a word of the error line; and, as
/// JSON, the changes to a document of `[4]` bytes in chunks of `[2]`. `chunk` stands for the chunk
/// shape, `shard` for the changes to shards with chunks of `[1]`, and `{"@x":...}` for an extension
/// `x` with a configuration.
const REFUSED: &str = include_str!("../data/hostile_v3.txt");

/// A store in a directory of its own, with a group at its root and the good array.
struct Store {
    directory: tempfile::TempDir,
}

impl Store {
    fn new() -> Store {
        let store = Store {
            directory: tempfile::tempdir().unwrap(),
        };
        fs::write(
            store.path().join("zarr.json"),
            r#"{"zarr_format":3,"node_type":"group"}"#,
        )
        .unwrap();
        store.array("good", &document("{}").to_string());
        fs::write(store.path().join("good/1"), &GOOD[2..]).unwrap();
        store
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Creates an array whose first chunk is stored under the key `0`.
    fn array(&self, name: &str, document: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("zarr.json"), document).unwrap();
        fs::write(path.join("0"), &GOOD[..2]).unwrap();
        path
    }
}

/// Returns JSON with each `{"@x":...}` written out.
fn expanded(value: Value) -> Value {
    match value {
        Value::Array(list) => list.into_iter().map(expanded).collect(),
        Value::Object(object) => match object
            .iter()
            .next()
            .map(|(name, value)| (name.strip_prefix('@'), value))
        {
            Some((Some(name), configuration)) => {
                json!({"name": name, "configuration": expanded(configuration.clone())})
            }
            _ => object
                .into_iter()
                .map(|(name, value)| (name, expanded(value)))
                .collect(),
        },
        value => value,
    }
}

/// Returns the document of a sound array with changes, which are written as in [`REFUSED`].
fn document(changes: &str) -> Value {
    let grid = |shape: &Value| json!({"name": "regular", "configuration": {"chunk_shape": shape}});
    let merge = |object: &mut Value, changes: Map<String, Value>| {
        let object = object.as_object_mut().unwrap();
        for (field, value) in changes {
            if value == ABSENT {
                drop(object.remove(&field))
            } else {
                drop(object.insert(field, value))
            }
        }
    };
    let mut document = json!({"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8",
        "fill_value": 7, "chunk_grid": grid(&json!([2])), "chunk_key_encoding": {"name": "v2"}, "codecs": ["bytes"]});
    let Value::Object(mut changes) = expanded(serde_json::from_str(changes).unwrap()) else {
        panic!("{changes}")
    };
    if let Some(shape) = changes.remove("chunk") {
        document["chunk_grid"] = grid(&shape);
    }
    if let Some(Value::Object(of_shard)) = changes.remove("shard") {
        let mut configuration =
            json!({"chunk_shape": [1], "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"]});
        merge(&mut configuration, of_shard);
        document["codecs"] = json!([{"name": "sharding_indexed", "configuration": configuration}]);
    }
    merge(&mut document, changes);
    document
}

/// A mount of a store, and the checks that failed on it.
struct Checked {
    mount: Mount,
    log: PathBuf,
    memory: u64,
    cases: usize,
    failed: Vec<String>,
}

impl Checked {
    /// Mounts a store without the kernel's page cache, so that each read is a request for its own
    /// bytes.
    fn new(store: &Store) -> Checked {
        let log = store.path().with_extension("log");
        let args = [
            "--cache-size=32M",
            "--direct-io",
            "--log-file",
            log.to_str().unwrap(),
        ];
        let mount = Mount::new(store.path(), &args);
        let memory = mount.peak_memory();
        Checked {
            mount,
            log,
            memory,
            cases: 0,
            failed: Vec::new(),
        }
    }

    /// Checks that the result `got` of a case is `expected`, and that the good array can be read.
    /// If `expected` is EIO or EOPNOTSUPP, `.zarrfs/stats` must have a line with the array's name
    /// and `word`.
    fn expect(&mut self, array: &str, what: &str, got: &str, expected: &str, word: &str) {
        self.cases += 1;
        let stats = self.mount.stats();
        let problems = stats
            .lines()
            .filter_map(|line| line.strip_prefix("problem "));
        let of_array: Vec<&str> = problems
            .filter(|line| line.contains(&format!("{array}/")))
            .collect();
        if got != expected {
            self.failed.push(format!(
                "{array}: {what}: {got}, expected {expected}: {of_array:?}"
            ));
        } else if [D, U].contains(&expected) && !of_array.iter().any(|line| line.contains(word)) {
            self.failed.push(format!(
                "{array}: {what}: no problem has {word:?}: {of_array:?}"
            ));
        }
        if fs::read(self.mount.join("good/data.raw")).ok().as_deref() != Some(&GOOD) {
            self.failed
                .push(format!("{array}: the good array is no longer"));
        }
    }

    /// Checks that an array is refused: its document and its chunk are listed, but the chunk cannot
    /// be read, and `data.raw` does not exist.
    fn expect_refused(&mut self, array: &str, errno_of_chunk: &str, word: &str) {
        let directory = self.mount.join(array);
        let names = support::names(&directory);
        self.expect(
            array,
            "the chunk",
            &errno(fs::read(directory.join("0"))),
            errno_of_chunk,
            word,
        );
        // the document of `sparse` exceeds the limit of a group's document, so the mount does not
        // show it
        let has_document = names.contains("zarr.json") || array == "sparse";
        if names.contains("data.raw") || !has_document || !names.contains("0") {
            self.failed.push(format!("{array}: {names:?} are listed"));
        }
        let flat = errno(fs::read(directory.join("data.raw")));
        if flat != "ENOENT" {
            self.failed.push(format!("{array}: data.raw: {flat}"));
        }
    }

    /// Checks the log and the memory, and that commands survive the store.
    fn end(mut self, store: &Store, what: &str) {
        let grown = self.mount.peak_memory().saturating_sub(self.memory);
        if grown > MEMORY {
            self.failed
                .push(format!("memory grew by {} MiB", grown >> 20));
        }
        let log = fs::read_to_string(&self.log).unwrap();
        self.failed.extend(
            log.lines()
                .filter(|line| line.contains("panic"))
                .map(String::from),
        );
        fs::remove_file(&self.log).unwrap();
        drop(self.mount);
        let path = store.path().to_str().unwrap();
        for args in [
            ["check", "--deep"],
            ["check", "--notes"],
            ["info", "--wide"],
            ["info", "--map"],
        ] {
            let output = support::zarrfs(&[&args[..], &[path]].concat());
            let is_told = output.stderr.is_empty()
                || args[0] == "info" && output.stderr.starts_with(b"error: ");
            if !matches!(output.status.code(), Some(0 | 1)) || !is_told {
                self.failed.push(format!(
                    "{args:?}: {}, {}",
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                ));
            }
        }
        announce(&format!(
            "{what}: {} cases, memory grew by {} MiB",
            self.cases,
            grown >> 20
        ));
        assert!(self.failed.is_empty(), "{}", self.failed.join("\n"));
    }
}

#[test]
fn bad_documents_are_refused() {
    let store = Store::new();
    let mut cases: Vec<(String, &str, &str)> = Vec::new();
    let mut add = |name: String, text: String, expected, word| {
        store.array(&name, &text);
        cases.push((name, expected, word));
    };
    for (n, line) in REFUSED.trim().lines().enumerate() {
        let [errno, word, changes] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        add(
            format!("document-{n}"),
            document(changes).to_string(),
            if errno == "D" { D } else { U },
            word,
        );
    }
    for (n, text) in [
        "{\"zarr",
        "[]",
        &"[".repeat(200_000),
        &"{\"a\":".repeat(200_000),
        "",
    ]
    .into_iter()
    .enumerate()
    {
        add(format!("text-{n}"), text.to_string(), D, "zarr.json");
    }
    let codecs =
        |codecs: Value| document(&json!({"chunk": [16], "codecs": codecs}).to_string()).to_string();
    add(
        "many-codecs".into(),
        codecs(json!([&["bytes"][..], &["crc32c"; 64]].concat())),
        U,
        "65 codecs",
    );
    add(
        "dimensions".into(),
        document(&json!({"shape": vec![1; 33], "chunk": vec![1; 33]}).to_string()).to_string(),
        D,
        "33",
    );
    let shard = |shape: u64, codecs: Value| {
        json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [shape], "codecs": codecs,
            "index_codecs": ["bytes"]}}])
    };
    let levels = [1, 2, 4, 8, 16]
        .into_iter()
        .fold(json!(["bytes"]), |inner, shape| shard(shape, inner));
    add("five-levels".into(), codecs(levels), U, "levels");
    for (name, codec) in [
        (
            "delta",
            json!({"name": "numcodecs.delta", "configuration": {"dtype": "|u1"}}),
        ),
        (
            "reshape",
            json!({"name": "reshape", "configuration": {"shape": [[0]]}}),
        ),
    ] {
        let chain = json!([codec, shard(1, json!(["bytes"]))[0]]);
        add(format!("{name}-before-shard"), codecs(chain), U, name);
    }
    add(
        "large".into(),
        document("{}").to_string() + &" ".repeat(17 << 20),
        D,
        "zarr.json",
    );
    let sparse = store.array("sparse", "");
    File::create(sparse.join("zarr.json"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    cases.push(("sparse".into(), D, "zarr.json"));

    let mut checked = Checked::new(&store);
    for (name, expected, word) in &cases {
        checked.expect_refused(name, expected, word);
    }
    checked.end(&store, "bad documents");
}

/// The expected content of a chunk.
#[derive(Clone, Copy)]
enum Shown<'a> {
    Bytes(&'a [u8]),
    /// The chunk has no file, and reads as the fill value in `data.raw`.
    Fill,
    /// Reading it fails with EIO, and a problem in `.zarrfs/stats` has this word.
    Damaged(&'a str),
}

/// Returns the index of a shard, little-endian and with its checksum.
fn index(entries: &[(u64, u64)]) -> Vec<u8> {
    let index: Vec<u8> = entries
        .iter()
        .flat_map(|(offset, len)| [offset.to_le_bytes(), len.to_le_bytes()].concat())
        .collect();
    let sum = crc32c::crc32c(&index);
    [index, sum.to_le_bytes().to_vec()].concat()
}

/// Returns a shard: these bytes, then an index with these entries.
fn shard(bytes: &[u8], entries: &[(u64, u64)]) -> Vec<u8> {
    [bytes, &index(entries)].concat()
}

const EMPTY: (u64, u64) = (u64::MAX, u64::MAX);

impl Checked {
    /// Checks the chunks of an array of bytes in chunks of two, as files and in `data.raw`.
    fn expect_chunks(&mut self, array: &str, chunks: &[Shown]) {
        let directory = self.mount.join(array);
        let flat = match File::open(directory.join("data.raw")) {
            Ok(flat) => flat,
            Err(e) => return self.failed.push(format!("{array}: data.raw: {e}")),
        };
        let names = support::names(&directory);
        for (n, shown) in chunks.iter().enumerate() {
            let chunk = n.to_string();
            let mut part = [0; 2];
            let part = errno(flat.read_exact_at(&mut part, 2 * n as u64).map(|()| part))
                .replace("ok", &format!("{part:?}"));
            let file = fs::read(directory.join(&chunk));
            let file = match &file {
                Ok(bytes) => format!("{bytes:?}"),
                Err(_) => errno(file),
            };
            let (in_flat, in_file, word) = match shown {
                Shown::Bytes(bytes) => (format!("{bytes:?}"), format!("{bytes:?}"), ""),
                Shown::Fill => ("[7, 7]".to_string(), "ENOENT".to_string(), ""),
                Shown::Damaged(word) => (D.to_string(), D.to_string(), *word),
            };
            self.expect(array, &format!("bytes of chunk {n}"), &part, &in_flat, word);
            self.expect(array, &format!("chunk {n}"), &file, &in_file, word);
            if names.contains(&chunk) == matches!(shown, Shown::Fill) {
                self.failed.push(format!("{array}: {names:?} are listed"));
            }
        }
    }
}

/// Returns bad shards: a name, the changes to the sharding codec of an array with one shard of four
/// bytes in chunks of two, the value of the shard, and the expected content of its two chunks.
fn bad_shards() -> Vec<(&'static str, &'static str, Vec<u8>, [Shown<'static>; 2])> {
    let good = shard(&GOOD, &[(0, 2), (2, 2)]);
    let first = Shown::Bytes(&GOOD[..2]);
    let second = Shown::Bytes(&GOOD[2..]);
    let damaged = |word| [Shown::Damaged(word); 2];
    let with_first = |entry| shard(&GOOD, &[entry, (2, 2)]);
    let mut wrong_sum = good.clone();
    wrong_sum[10] ^= 1;
    let start = |entries: [(u64, u64); 2]| [index(&entries), GOOD.to_vec()].concat();
    let at_start = r#"{"index_location":"start"}"#;
    let sums = |damage: u8| {
        let sum =
            |bytes: &[u8]| [bytes.to_vec(), crc32c::crc32c(bytes).to_le_bytes().to_vec()].concat();
        let mut chunks = [sum(&GOOD[..2]), sum(&GOOD[2..])].concat();
        chunks[1] ^= damage;
        shard(&chunks, &[(0, 6), (6, 6)])
    };
    let bomb = miniz_oxide::deflate::compress_to_vec_zlib(&vec![0; 32 << 20], 9);
    let small = miniz_oxide::deflate::compress_to_vec_zlib(&GOOD[2..], 1);
    let sizes = [bomb.len() as u64, small.len() as u64];
    let bomb = shard(
        &[bomb, small].concat(),
        &[(0, sizes[0]), (sizes[0], sizes[1])],
    );
    let frames = |blocks: usize| {
        // a frame of blocks that repeat a byte 128 KiB times
        let block = |last: u8| [last | 2, 0, 0x10, 0];
        let header = [0x28, 0xb5, 0x2f, 0xfd, 0, 0x58].to_vec();
        [
            header,
            [block(0)].repeat(blocks).concat(),
            block(1).to_vec(),
        ]
        .concat()
    };
    let vast = frames(8192);
    let tiny = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 2, 0x11, 0, 0, 3, 4].to_vec();
    let sizes = [vast.len() as u64, tiny.len() as u64];
    let vast = shard(
        &[vast, tiny].concat(),
        &[(0, sizes[0]), (sizes[0], sizes[1])],
    );
    let nested = |inner: [(u64, u64); 2]| {
        let inner = [
            shard(&GOOD[..1], &[inner[0]]),
            shard(&GOOD[2..], &[inner[1]]),
        ];
        shard(&inner.concat(), &[(0, 21), (21, 22)])
    };
    vec![
        ("sound", "{}", good.clone(), [first, second]),
        (
            "empty-value",
            "{}",
            vec![],
            damaged("shorter than its index"),
        ),
        (
            "shorter-than-index",
            "{}",
            good[..20].to_vec(),
            damaged("shorter than its index"),
        ),
        ("wrong-checksum", "{}", wrong_sum, damaged("crc32c")),
        (
            "bytes-behind",
            "{}",
            [&good[..], &[0; 3]].concat(),
            damaged("index"),
        ),
        (
            "behind-the-end",
            "{}",
            with_first((400, 2)),
            [Shown::Damaged("entry 0"), second],
        ),
        (
            "overflow",
            "{}",
            with_first((u64::MAX - 1, 5)),
            [Shown::Damaged("entry 0"), second],
        ),
        (
            "no-offset",
            "{}",
            with_first((u64::MAX, 2)),
            [Shown::Damaged("half empty"), second],
        ),
        (
            "no-length",
            "{}",
            with_first((0, u64::MAX)),
            [Shown::Damaged("half empty"), second],
        ),
        (
            "into-the-index",
            "{}",
            with_first((3, 2)),
            [Shown::Damaged("entry 0"), second],
        ),
        (
            "into-the-index-at-start",
            at_start,
            start([(35, 2), (38, 2)]),
            [Shown::Damaged("entry 0"), second],
        ),
        (
            "at-start",
            at_start,
            start([(36, 2), (38, 2)]),
            [first, second],
        ),
        (
            "no-bytes",
            "{}",
            with_first((0, 0)),
            [Shown::Damaged("no bytes"), second],
        ),
        (
            "one-less",
            "{}",
            with_first((0, 1)),
            [Shown::Damaged("1 bytes"), second],
        ),
        (
            "one-more",
            "{}",
            with_first((0, 3)),
            [Shown::Damaged("3 bytes"), second],
        ),
        ("overlapping", "{}", with_first((2, 2)), [second, second]),
        ("all-empty", "{}", shard(&[], &[EMPTY; 2]), [Shown::Fill; 2]),
        (
            "half-empty",
            "{}",
            shard(&GOOD, &[EMPTY, (2, 2)]),
            [Shown::Fill, second],
        ),
        (
            "inner-checksum",
            r#"{"codecs":["bytes","crc32c"]}"#,
            sums(1),
            [Shown::Damaged("crc32c"), second],
        ),
        (
            "inner-checksum-right",
            r#"{"codecs":["bytes","crc32c"]}"#,
            sums(0),
            [first, second],
        ),
        (
            "zlib-bomb",
            r#"{"codecs":["bytes",{"@numcodecs.zlib":{"level":1}}]}"#,
            bomb,
            [Shown::Damaged("zlib"), second],
        ),
        (
            "zstd-bomb",
            r#"{"codecs":["bytes","zstd"]}"#,
            vast,
            [Shown::Damaged("zstd"), second],
        ),
        (
            "nested",
            NESTED,
            nested([(0, 2), (0, 2)]),
            [Shown::Damaged("entry 0"), second],
        ),
        (
            "nested-far",
            NESTED,
            nested([(21, 2), (0, 2)]),
            [Shown::Damaged("entry 0"), second],
        ),
    ]
}

/// Changes that put each chunk of the shard into an inner shard of its own.
const NESTED: &str = r#"{"codecs":[{"@sharding_indexed":{"chunk_shape":[2],"codecs":["bytes"],
    "index_codecs":["bytes","crc32c"]}}]}"#;

#[test]
fn damage_in_a_shard_affects_only_the_damaged_chunks() {
    let store = Store::new();
    let sharded = |shape: u64, of_shard: &str| {
        let of_shard: Value = serde_json::from_str(of_shard).unwrap();
        let mut changes = json!({"shape": [shape], "chunk": [4], "shard": {"chunk_shape": [2]}});
        changes["shard"]
            .as_object_mut()
            .unwrap()
            .extend(of_shard.as_object().unwrap().clone());
        document(&changes.to_string()).to_string()
    };
    let cases = bad_shards();
    for (name, of_shard, value, _) in &cases {
        fs::write(store.array(name, &sharded(4, of_shard)).join("0"), value).unwrap();
    }
    // a shard beside the damaged one, and entries outside the array
    let beside = store.array("beside", &sharded(10, "{}"));
    fs::write(beside.join("0"), b"bad").unwrap();
    fs::write(beside.join("1"), shard(&GOOD, &[(0, 2), (2, 2)])).unwrap();
    fs::write(beside.join("2"), shard(&GOOD, &[(0, 2), (2, 2)])).unwrap();
    // the first chunk claims a terabyte of a sparse file
    for (name, of_shard) in [
        ("vast", "{}"),
        ("vast-zlib", r#"{"codecs":["bytes","gzip"]}"#),
    ] {
        let file = File::create(store.array(name, &sharded(4, of_shard)).join("0")).unwrap();
        file.write_all_at(&shard(&GOOD, &[(0, 1 << 40), (1 << 40, 4)]), 1 << 40)
            .unwrap();
    }

    let mut checked = Checked::new(&store);
    for (name, _, _, chunks) in &cases {
        checked.expect_chunks(name, chunks);
    }
    let [first, second] = [&GOOD[..2], &GOOD[2..]].map(Shown::Bytes);
    let lost = Shown::Damaged("shorter than its index");
    checked.expect_chunks("beside", &[lost, lost, first, second, first]);
    checked.expect_chunks(
        "vast",
        &[Shown::Damaged("1099511627776"), Shown::Damaged("4 bytes")],
    );
    checked.expect_chunks(
        "vast-zlib",
        &[Shown::Damaged("1099511627776"), Shown::Damaged("gzip")],
    );
    checked.end(&store, "bad shards");
}

#[test]
fn misplaced_files_are_neither_arrays_nor_chunks() {
    let store = Store::new();
    let slashes = |shape: Value, chunk: Value| {
        let keys = json!({"name": "default", "configuration": {"separator": "/"}});
        document(&json!({"shape": shape, "chunk": chunk, "chunk_key_encoding": keys}).to_string())
            .to_string()
    };
    let line = slashes(json!([4]), json!([2]));
    let plane = slashes(json!([2, 2]), json!([1, 2]));
    let write = |path: PathBuf| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &GOOD[..2]).unwrap();
    };
    write(store.array("c-is-a-file", &line).join("c"));
    write(store.array("level-is-a-file", &plane).join("c/0"));
    write(store.array("zeros", &line).join("c/00"));
    write(store.array("too-deep", &plane).join("c/0/0/0"));
    write(store.array("too-far", &line).join("c/2"));
    write(store.array("minus", &line).join("c/-1"));
    // zarrfs does not open documents that are not regular files
    let odd = |name: &str| {
        let path = store.array(name, "").join("zarr.json");
        fs::remove_file(&path).unwrap();
        path
    };
    rustix::fs::mknodat(
        rustix::fs::CWD,
        odd("fifo"),
        rustix::fs::FileType::Fifo,
        0o644.into(),
        0,
    )
    .unwrap();
    fs::create_dir(odd("directory")).unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("zarr.json"), document("{}").to_string()).unwrap();
    symlink(outside.path().join("zarr.json"), odd("link-out")).unwrap();
    // groups with consolidated metadata
    let group = |name: &str, consolidated: Value| {
        let document =
            json!({"zarr_format": 3, "node_type": "group", "consolidated_metadata": consolidated});
        store.array(&format!("{name}/array"), &self::document("{}").to_string());
        fs::write(
            store.path().join(name).join("zarr.json"),
            document.to_string(),
        )
        .unwrap();
    };
    let entries = json!({"../good": document("{}"), "/x": 1, "array/../../y": {}, "array": []});
    group(
        "inline",
        json!({"kind": "inline", "must_understand": false, "metadata": entries}),
    );
    group(
        "other-kind",
        json!({"kind": "remote", "must_understand": false, "url": "http://x"}),
    );
    group("no-object", json!([1]));
    group("too-large", json!(null));
    File::options()
        .append(true)
        .open(store.path().join("too-large/zarr.json"))
        .unwrap()
        .set_len(300 << 20)
        .unwrap();

    let mut checked = Checked::new(&store);
    for (name, chunk) in [
        ("c-is-a-file", "0"),
        ("level-is-a-file", "0.0"),
        ("zeros", "0"),
        ("too-far", "2"),
        ("minus", "-1"),
    ] {
        let directory = checked.mount.join(name);
        let flat = format!(
            "{:?}",
            fs::read(directory.join("data.raw")).unwrap_or_default()
        );
        checked.expect(name, "data.raw", &flat, "[7, 7, 7, 7]", "");
        checked.expect(
            name,
            "the chunk",
            &errno(fs::read(directory.join(chunk))),
            "ENOENT",
            "",
        );
    }
    // as in v2, a directory under the key of a chunk is damage
    let chunk = errno(fs::read(checked.mount.join("too-deep/0.0")));
    checked.expect("too-deep", "the chunk", &chunk, D, "is a directory");
    for (name, expected, word) in [
        ("fifo", D, "not a regular file"),
        ("directory", D, "is a directory"),
        ("link-out", "EACCES", "leads out"),
    ] {
        let directory = checked.mount.join(name);
        // without the document it is not known that there is no such file
        let flat = if name == "link-out" {
            "EACCES"
        } else {
            "ENOENT"
        };
        checked.expect(
            name,
            "the chunk",
            &errno(fs::read(directory.join("0"))),
            expected,
            word,
        );
        checked.expect(
            name,
            "zarr.json",
            &errno(fs::read(directory.join("zarr.json"))),
            expected,
            word,
        );
        checked.expect(
            name,
            "data.raw",
            &errno(fs::read(directory.join("data.raw"))),
            flat,
            word,
        );
    }
    for name in ["inline", "other-kind", "no-object"] {
        let directory = checked.mount.join(name);
        let names = format!("{:?}", support::names(&directory));
        checked.expect(name, "the names", &names, r#"{"array", "zarr.json"}"#, "");
        let document = fs::read(directory.join("zarr.json")).unwrap_or_default();
        let document = serde_json::from_slice::<Value>(&document)
            .unwrap_or_default()
            .to_string();
        let shown = document
            .split(",\"consolidated_metadata\":")
            .next()
            .unwrap_or_default()
            .trim_end_matches('}');
        checked.expect(
            name,
            "zarr.json",
            shown,
            r#"{"zarr_format":3,"node_type":"group""#,
            "",
        );
        // the mount shows none of the stored entries, but makes entries of the documents that exist
        let has_entries = format!(
            "{} {}",
            document.contains("\"array\":{"),
            document.contains("good")
        );
        checked.expect(
            name,
            "entries",
            &has_entries,
            if name == "inline" {
                "true false"
            } else {
                "false false"
            },
            "",
        );
        let chunk = format!(
            "{:?}",
            fs::read(directory.join("array/0")).unwrap_or_default()
        );
        checked.expect(name, "an array in it", &chunk, "[1, 2]", "");
    }
    let document = errno(fs::read(checked.mount.join("too-large/zarr.json")));
    checked.expect("too-large", "zarr.json", &document, D, "314572800 bytes");
    let chunk = format!(
        "{:?}",
        fs::read(checked.mount.join("too-large/array/0")).unwrap_or_default()
    );
    checked.expect("too-large", "an array in it", &chunk, "[1, 2]", "");
    checked.end(&store, "strange files");
}

/// Entries for chunks outside the array stay when another chunk of the shard is replaced.
#[test]
fn chunks_outside_the_array_stay_in_their_shard() {
    let store = Store::new();
    let document = document(r#"{"chunk":[6],"shard":{"chunk_shape":[2]}}"#).to_string();
    let value = store.array("outside", &document).join("0");
    fs::write(
        &value,
        shard(b"\x01\x02\x03\x04\x05\x06", &[(0, 2), (2, 2), (4, 2)]),
    )
    .unwrap();
    let mount = Mount::new(store.path(), &[]);
    fs::write(mount.join("outside/1"), [8, 9]).unwrap();
    drop(mount);
    let value = fs::read(&value).unwrap();
    let (numbers, _) = value[value.len() - 3 * 16 - 4..].as_chunks::<8>();
    let chunk = |n: usize| {
        let [start, len] = [0, 1].map(|half| u64::from_le_bytes(numbers[2 * n + half]) as usize);
        &value[start..start + len]
    };
    assert_eq!([chunk(0), chunk(1), chunk(2)], [[1, 2], [8, 9], [5, 6]]);
}

/// While another program replaces a shard by one with other offsets, a reader gets the chunks of
/// one or the other.
#[test]
fn a_shard_that_is_replaced_is_read_again() {
    let store = Store::new();
    let document = document(r#"{"chunk":[4],"shard":{"chunk_shape":[2]}}"#).to_string();
    let values = [
        shard(&GOOD, &[(0, 2), (2, 2)]),
        shard(b"waste\x05\x06\x07\x08", &[(5, 2), (7, 2)]),
    ];
    let array = store.array("replaced", &document);
    let next = store.path().join("good/next");
    fs::write(array.join("0"), &values[0]).unwrap();
    let checked = Checked::new(&store);
    let is_done = AtomicBool::new(false);
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in values
                .iter()
                .cycle()
                .take_while(|_| !is_done.load(Ordering::Relaxed))
            {
                fs::write(&next, value).unwrap();
                fs::rename(&next, array.join("0")).unwrap();
            }
        });
        let start = Instant::now();
        // on a busy machine, one thread may run alone for seconds
        for n in 0.. {
            if n > 400 && (seen.len() >= 4 || start.elapsed() > Duration::from_secs(30)) {
                break;
            }
            let name = ["0", "1"][n % 2];
            seen.insert((
                name,
                fs::read(checked.mount.join("replaced").join(name)).map_err(|e| e.to_string()),
            ));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let expected = [
        ("0", vec![1, 2]),
        ("0", vec![5, 6]),
        ("1", vec![3, 4]),
        ("1", vec![7, 8]),
    ];
    assert_eq!(
        seen,
        BTreeSet::from(expected.map(|(name, bytes)| (name, Ok(bytes))))
    );
    checked.end(&store, "a replaced shard");
}

/// Libraries take a missing chunk for fill values. The keys of an array that is refused are
/// unknown, so every name that could be, or lead to, one is an error, stored or not.
#[test]
fn no_chunk_of_a_refused_array_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path();
    let unknown = document(r#"{"codecs":["bytes","zarrs.gdeflate"]}"#).to_string();
    let v2 = |id: &str| {
        json!({"zarr_format": 2, "shape": [4, 4], "chunks": [2, 2], "dtype": id, "fill_value": 7,
        "compressor": null, "filters": null, "order": "C", "dimension_separator": "/"})
        .to_string()
    };
    let documents = [
        ("unknown", "zarr.json", unknown, U),
        ("broken", "zarr.json", "{\"node_type\"".into(), D),
        ("v2", ".zarray", v2("x"), D),
    ];
    let stored = ["0", "1.0", "c.1.0", "2/0", "c/0/1", "c/3"];
    let unstored = ["5", "7.7", "c.9", "c.9.9", "9/9", "c/5", "c/0/9", "2/9"];
    for (name, file, text, _) in &documents {
        for key in stored {
            fs::create_dir_all(store.join(name).join(key).parent().unwrap()).unwrap();
            fs::write(store.join(name).join(key), b"x").unwrap();
        }
        fs::write(store.join(name).join(file), text).unwrap();
    }
    fs::create_dir(store.join("broken/other")).unwrap();
    fs::create_dir(store.join("empty")).unwrap();
    fs::write(store.join("empty/zarr.json"), &documents[0].2).unwrap();
    fs::write(
        store.join("zarr.json"),
        r#"{"zarr_format":3,"node_type":"group"}"#,
    )
    .unwrap();
    let mount = Mount::new(store, &[]);
    for (name, _, _, expected) in &documents {
        let array = mount.join(name);
        for key in stored.iter().chain(&unstored) {
            assert_eq!(errno(fs::read(array.join(key))), *expected, "{name}/{key}");
        }
        for key in ["other", "other/0", "c/0/x", "x", "c.x", "data.raw"] {
            assert_eq!(errno(fs::read(array.join(key))), "ENOENT", "{name}/{key}");
        }
        for key in ["c/0/1", "0", "c/7"] {
            assert_eq!(
                errno(fs::File::create(array.join(key))),
                *expected,
                "{name}/{key}"
            );
        }
        let listed = |path: &str| {
            support::names(&array.join(path))
                .into_iter()
                .filter(|name| !name.contains("zar"))
        };
        assert_eq!(
            listed("").collect::<Vec<_>>(),
            ["0", "1.0", "2", "c", "c.1.0"],
            "{name}"
        );
        assert_eq!(
            listed("c").chain(listed("c/0")).collect::<Vec<_>>(),
            ["0", "3", "1"],
            "{name}"
        );
    }
    // even where no chunk is stored
    for key in ["c", "c/0/0", "0", "0/0", "0.0"] {
        assert_eq!(errno(fs::read(mount.join("empty").join(key))), U, "{key}");
    }
    assert_eq!(errno(fs::read(mount.join("empty/x"))), "ENOENT");
    support::run("rm", &["-r", "unknown", "v2", "empty"], mount.path());
    drop(mount);
    assert_eq!(
        support::names(store),
        ["broken", "zarr.json"].map(String::from).into()
    );
}
