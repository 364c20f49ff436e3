//! The promises to users about the mounted tree, on a real mount. Tests quote the sentences of
//! `docs/tree.md` that they check, and compare the mount with bytes that they store themselves.

use crate::support::{Mount, copy_tree, errno, is_header, names, test_data, zarrfs};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// A store of uncompressed chunks, so that the test itself knows every byte.
struct Store {
    directory: tempfile::TempDir,
}

impl Store {
    fn new() -> Store {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
        Store { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Creates an array of bytes without chunks and returns its directory.
    fn array(&self, name: &str, shape: &[u64], chunks: &[u64], more: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).unwrap();
        let mut doc: serde_json::Value = serde_json::json!({"zarr_format": 2, "shape": shape, "chunks": chunks,
            "dtype": "|u1", "compressor": null, "fill_value": 0, "order": "C", "filters": null});
        let more: serde_json::Value = serde_json::from_str(&format!("{{{more}}}")).unwrap();
        for (key, value) in more.as_object().unwrap() {
            doc[key] = value.clone();
        }
        fs::write(path.join(".zarray"), doc.to_string()).unwrap();
        path
    }
}

fn xattr(path: &Path, name: &str) -> Option<String> {
    let mut value = vec![0; 65536];
    let n = rustix::fs::getxattr(path, name, &mut value).ok()?;
    Some(String::from_utf8(value[..n].to_vec()).unwrap())
}

/// "Its order is always C, also if the array is stored with order F"; "A chunk file holds
/// prod(chunks) × itemsize bytes, in the order (C or F) of the array."
#[test]
fn flat_bytes_are_in_c_order_and_chunk_files_in_the_arrays_order() {
    let store = Store::new();
    let a = store.array("f", &[2, 3], &[2, 3], r#""order": "F""#);
    // order F of [[0, 1, 2], [3, 4, 5]]
    fs::write(a.join("0.0"), [0, 3, 1, 4, 2, 5]).unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(
        fs::read(mount.join("f/data.raw")).unwrap(),
        [0, 1, 2, 3, 4, 5]
    );
    assert_eq!(fs::read(mount.join("f/0.0")).unwrap(), [0, 3, 1, 4, 2, 5]);
    assert_eq!(xattr(&mount.join("f"), "user.zarr.order").unwrap(), "\"F\"");
}

/// "A Zarr v1 store is a single array at the root (`meta`, `attrs`). The mount shows it as Zarr
/// v2." "zarrfs reads what zarr-python wrote; `--v1-order spec` reads what the specification says."
#[test]
fn v1_arrays_are_shown_as_v2() {
    let directory = tempfile::tempdir().unwrap();
    let meta = r#"{"zarr_format": 1, "shape": [2, 3], "chunks": [2, 3], "dtype": "|u1", "compression": "none",
        "compression_opts": null, "fill_value": 0, "order": "F"}"#;
    fs::write(directory.path().join("meta"), meta).unwrap();
    fs::write(directory.path().join("attrs"), "{\"units\": \"m\"}").unwrap();
    fs::write(directory.path().join("0.0"), [1, 2, 3, 4, 5, 6]).unwrap();
    for (reading, flat) in [("zarr1", [1, 2, 3, 4, 5, 6]), ("spec", [1, 3, 5, 2, 4, 6])] {
        let mount = Mount::new(directory.path(), &["--v1-order", reading]);
        assert_eq!(
            names(mount.path()),
            BTreeSet::from([".zarray", ".zattrs", "0.0", "data.raw"].map(String::from))
        );
        assert_eq!(fs::read(mount.join("data.raw")).unwrap(), flat, "{reading}");
        // a chunk file is the decoded chunk as it is stored
        assert_eq!(
            fs::read(mount.join("0.0")).unwrap(),
            [1, 2, 3, 4, 5, 6],
            "{reading}"
        );
        let view: serde_json::Value =
            serde_json::from_slice(&fs::read(mount.join(".zarray")).unwrap()).unwrap();
        assert_eq!(view["zarr_format"], 2);
        assert_eq!(
            xattr(mount.path(), "user.zarr.attrs.units").unwrap(),
            "\"m\""
        );
        assert_eq!(errno(fs::read(mount.join("meta"))), "ENOENT");
    }
}

/// "A chunk file is named by its grid indices joined with `.`, whatever separator the store uses.
/// The chunk of a 0-dimensional array is `0`."
#[test]
fn chunk_names_are_joined_by_dots() {
    let store = Store::new();
    let a = store.array("slash", &[2, 2], &[1, 1], r#""dimension_separator": "/""#);
    fs::create_dir(a.join("1")).unwrap();
    fs::write(a.join("1/0"), [7]).unwrap();
    let a = store.array("scalar", &[], &[], "");
    fs::write(a.join("0"), [42]).unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(
        names(&mount.join("slash")),
        BTreeSet::from([".zarray", "1.0", "data.raw"].map(String::from))
    );
    assert_eq!(fs::read(mount.join("slash/1.0")).unwrap(), [7]);
    assert_eq!(
        fs::read(mount.join("slash/data.raw")).unwrap(),
        [0, 0, 7, 0]
    );
    // names with "/" can be looked up, but are not listed
    assert_eq!(fs::read(mount.join("slash/1/0")).unwrap(), [7]);
    assert_eq!(names(&mount.join("slash/1")), BTreeSet::new());
    assert_eq!(errno(fs::read(mount.join("slash/0/0"))), "ENOENT");
    assert_eq!(fs::read(mount.join("scalar/0")).unwrap(), [42]);
    assert_eq!(fs::read(mount.join("scalar/data.raw")).unwrap(), [42]);
    let view: serde_json::Value =
        serde_json::from_slice(&fs::read(mount.join("slash/.zarray")).unwrap()).unwrap();
    assert_eq!(view["dimension_separator"], ".");
}

/// "Edge chunks have full size, with the padding that is stored."
#[test]
fn edge_chunks_keep_their_padding() {
    let store = Store::new();
    let a = store.array("a", &[3], &[2], "");
    fs::write(a.join("1"), [5, 99]).unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(fs::read(mount.join("a/1")).unwrap(), [5, 99]);
    assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), [0, 0, 5]);
}

/// "An uninitialized chunk has no file: it is not listed, and opening it is `ENOENT`." "An
/// uninitialized chunk reads as the fill value, or as zeros if `fill_value` is null. If it reads as
/// zeros, it is a hole".
#[test]
fn uninitialized_chunks_read_as_the_fill_value() {
    let store = Store::new();
    for (name, fill) in [("seven", "7"), ("null", "null"), ("zero", "0")] {
        let a = store.array(name, &[12288], &[4096], &format!(r#""fill_value": {fill}"#));
        fs::write(a.join("1"), [1; 4096]).unwrap();
    }
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(errno(File::open(mount.join("seven/0"))), "ENOENT");
    assert!(!names(&mount.join("seven")).contains("0"));
    let seek = |name: &str, from, data: bool| {
        let file = File::open(mount.join(name)).unwrap();
        let to = if data {
            rustix::fs::SeekFrom::Data(from)
        } else {
            rustix::fs::SeekFrom::Hole(from)
        };
        rustix::fs::seek(&file, to)
    };
    for (name, fill, sparse) in [("seven", 7, false), ("null", 0, true), ("zero", 0, true)] {
        let file = format!("{name}/data.raw");
        let flat = fs::read(mount.join(&file)).unwrap();
        let expected: Vec<u8> = (0..12288)
            .map(|i| if (4096..8192).contains(&i) { 1 } else { fill })
            .collect();
        assert!(flat == expected, "{name}");
        assert_eq!(seek(&file, 0, true), Ok(if sparse { 4096 } else { 0 }));
        assert_eq!(
            seek(&file, 5000, false),
            Ok(if sparse { 8192 } else { 12288 })
        );
        assert_eq!(
            seek(&file, 9000, true),
            if sparse {
                Err(rustix::io::Errno::NXIO)
            } else {
                Ok(9000)
            }
        );
    }
}

/// "A chunk that cannot be read or decoded is an I/O error (`EIO`): never fill values, never short
/// data. The file `.zarrfs/stats` and the log name the array, the key, the codec and the cause."
/// Other chunks can still be read.
#[test]
fn a_damaged_chunk_is_eio() {
    let store = Store::new();
    let a = store.array(
        "a",
        &[16384],
        &[8192],
        r#""compressor": {"id": "zlib", "level": 1}"#,
    );
    fs::write(a.join("0"), b"garbage").unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(errno(fs::read(mount.join("a/data.raw"))), "EIO");
    assert_eq!(errno(fs::read(mount.join("a/0"))), "EIO");
    let file = File::open(mount.join("a/data.raw")).unwrap();
    let mut tail = [1; 4096];
    file.read_exact_at(&mut tail, 12288).unwrap();
    assert_eq!(tail, [0; 4096]);
    let stats = mount.stats();
    let line = stats.lines().find(|l| l.starts_with("problem ")).unwrap();
    assert!(
        line.contains("/a/0: zlib: ") && line.len() > "problem /a/0: zlib: ".len(),
        "{line}"
    );
}

/// "The chunk files of an array of objects hold the bytes of its object codec, decompressed." It
/// has no `data.raw`.
#[test]
fn arrays_of_objects_have_chunk_files_only() {
    let store = Store::new();
    let bytes = b"\x02\0\0\0\x01\0\0\0a\x02\0\0\0bc";
    let a = store.array(
        "o",
        &[2],
        &[2],
        r#""dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}]"#,
    );
    fs::write(a.join("0"), bytes).unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(errno(File::open(mount.join("o/data.raw"))), "ENOENT");
    assert_eq!(fs::read(mount.join("o/0")).unwrap(), bytes);
    assert_eq!(
        fs::metadata(mount.join("o/0")).unwrap().len(),
        bytes.len() as u64
    );
    let view = fs::read_to_string(mount.join("o/.zarray")).unwrap();
    assert!(view.contains("vlen-utf8"), "an object codec stays: {view}");
}

/// "`ls -l` shows decoded sizes, `du` shows stored sizes." "Times are those of the stored keys.
/// Reading never changes them."
#[test]
fn sizes_and_times_are_those_of_the_store() {
    let store = Store::new();
    let a = store.array("a", &[100_000], &[50_000], "");
    fs::write(a.join("0"), vec![1; 50_000]).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for path in [a.join("0"), a.join(".zarray"), a.clone()] {
        File::open(path).unwrap().set_modified(old).unwrap();
    }
    let mount = Mount::new(store.path(), &[]);
    let flat = fs::metadata(mount.join("a/data.raw")).unwrap();
    assert_eq!(
        (flat.len(), flat.blocks()),
        (100_000, 50_000u64.div_ceil(512))
    );
    assert!(flat.blksize() >= 4096);
    let chunk = fs::metadata(mount.join("a/0")).unwrap();
    assert_eq!(
        (chunk.len(), chunk.blocks()),
        (50_000, 50_000u64.div_ceil(512))
    );
    fs::read(mount.join("a/data.raw")).unwrap();
    for file in ["a/data.raw", "a/0", "a/.zarray", "a"] {
        assert_eq!(
            fs::metadata(mount.join(file)).unwrap().modified().unwrap(),
            old,
            "{file}"
        );
    }
}

/// "A directory lists its fixed names first and then streams its chunks."
#[test]
fn fixed_names_come_first() {
    let store = Store::new();
    let a = store.array("a", &[50], &[1], "");
    for i in 0..50 {
        fs::write(a.join(i.to_string()), [i]).unwrap();
    }
    fs::write(a.join(".zattrs"), "{}").unwrap();
    let mount = Mount::new(store.path(), &[]);
    let order = fs::read_dir(mount.join("a"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap());
    let (headers, order): (Vec<_>, Vec<_>) =
        order.enumerate().partition(|(_, name)| is_header(name));
    assert!(
        headers.iter().all(|(at, _)| *at <= headers.len()),
        "{headers:?}"
    );
    let order: Vec<String> = order.into_iter().map(|(_, name)| name).collect();
    assert_eq!(order[..3], ["data.raw", ".zarray", ".zattrs"]);
    assert_eq!(order.len(), 53);
    for entry in fs::read_dir(mount.join("a")).unwrap() {
        let entry = entry.unwrap();
        use std::os::unix::fs::DirEntryExt;
        assert_eq!(
            entry.ino(),
            entry.metadata().unwrap().ino(),
            "{:?}",
            entry.file_name()
        );
    }
}

/// "Metadata and attributes are extended attributes of the directory of each array or group, and of
/// the files in it."
#[test]
fn extended_attributes_show_metadata() {
    let mount = Mount::new(&test_data("sample.zarr"), &[]);
    for file in [
        "air_temperature",
        "air_temperature/data.raw",
        "air_temperature/0.0.0",
    ] {
        let get =
            |name: &str| xattr(&mount.join(file), &format!("user.zarr.{name}")).unwrap_or_default();
        assert_eq!(get("shape"), "[62,37,53]", "{file}");
        assert_eq!(get("dtype"), "\"<i2\"");
        assert_eq!(get("fill_value"), "-32768");
        assert_eq!(get("filters"), "null");
        assert_eq!(get("dimension_names"), "[\"time\",\"lat\",\"lon\"]");
        assert_eq!(get("attrs.units"), "\"K\"");
        assert!(get("compressor").contains("\"id\":\"blosc\""));
    }
    let chunk = mount.join("air_temperature/0.0.1");
    let stored = fs::metadata(test_data("sample.zarr/air_temperature/0.0.1"))
        .unwrap()
        .len();
    assert_eq!(
        xattr(&chunk, "user.zarrfs.key").unwrap(),
        "air_temperature/0.0.1"
    );
    assert_eq!(
        xattr(&chunk, "user.zarrfs.stored_size").unwrap(),
        stored.to_string()
    );
    let mut list = vec![0u8; 4096];
    let n = rustix::fs::listxattr(mount.join("air_temperature"), &mut list[..]).unwrap();
    let list = String::from_utf8(list[..n].to_vec()).unwrap();
    assert!(
        list.split('\0').any(|n| n == "user.zarr.attrs.long_name"),
        "{list}"
    );
    assert_eq!(xattr(&chunk, "user.zarr.nothing"), None);
}

/// "arrays and groups below a plain directory are found as well"; "Any other name of the store is
/// shown as a plain file. Names that could be chunk keys outside the grid, ... and directories
/// inside the directory of an array are not shown." A directory with both `.zarray` and `.zgroup`
/// is an array.
#[test]
fn plain_keys_are_shown_but_chunks_outside_the_grid_are_not() {
    let store = Store::new();
    let a = store.array("deep/er/a", &[2], &[1], "");
    for (key, bytes) in [("0", b"A"), ("9", b"x"), ("00", b"x"), ("0.partial", b"x")] {
        fs::write(a.join(key), bytes).unwrap();
    }
    fs::write(a.join("notes.txt"), "hello").unwrap();
    fs::write(a.join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
    fs::write(store.path().join("README.md"), "# data").unwrap();
    store.array("deep/er/a/inner", &[2], &[1], "");
    let mount = Mount::new(store.path(), &[]);
    let expected = ["data.raw", ".zarray", "0", "notes.txt"].map(String::from);
    assert_eq!(names(&mount.join("deep/er/a")), BTreeSet::from(expected));
    assert_eq!(
        fs::read(mount.join("deep/er/a/notes.txt")).unwrap(),
        b"hello"
    );
    assert_eq!(fs::read(mount.join("README.md")).unwrap(), b"# data");
    for absent in ["8", "00", "inner", ".zgroup"] {
        assert_eq!(
            errno(fs::metadata(mount.join("deep/er/a").join(absent))),
            "ENOENT",
            "{absent}"
        );
    }
    // "a chunk that is stored outside the grid can be removed by its name", as zarr-python does
    // after a resize
    assert_eq!(errno(fs::read(mount.join("deep/er/a/9"))), "ENOENT");
    fs::remove_file(mount.join("deep/er/a/9")).unwrap();
    assert!(!a.join("9").exists() && fs::metadata(mount.join("deep/er/a/9")).is_err());
    // a program that writes such a file looks it up before it renames it
    assert_eq!(fs::read(mount.join("deep/er/a/0.partial")).unwrap(), b"x");
    // an implicit group has a valid .zgroup in the mount
    assert!(
        fs::read_to_string(mount.join("deep/er/.zgroup"))
            .unwrap()
            .contains("\"zarr_format\": 2")
    );
}

/// `.zarrfs` "exists at the root of the mount. It is not listed".
#[test]
fn control_files_are_not_listed() {
    let mount = Mount::new(&test_data("sample.zarr"), &[]);
    assert!(!names(mount.path()).contains(".zarrfs"));
    fs::read(mount.join("air_temperature/data.raw")).unwrap();
    assert_eq!(mount.counter("chunk_failures"), 0);
    assert!(mount.counter("chunk_decodes") > 0);
    assert!(mount.stats().contains("chunk_decodes"));
    assert_eq!(
        names(&mount.join(".zarrfs")),
        BTreeSet::from(["metrics", "stats", "stats.json", "sync"].map(String::from))
    );
}

/// "An array that stores chunks under `0/0` but declares no `dimension_separator` is detected if
/// the store can list its keys. The log has a warning."
#[test]
fn an_undeclared_separator_is_detected() {
    let store = Store::new();
    let a = store.array("a", &[2, 2], &[1, 2], "");
    fs::create_dir(a.join("1")).unwrap();
    fs::write(a.join("1/0"), [8, 9]).unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mount = Mount::new(store.path(), &["--log-file", log.path().to_str().unwrap()]);
    assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), [0, 0, 8, 9]);
    let said = fs::read_to_string(log.path()).unwrap();
    assert!(
        said.contains("WARN") && said.contains("/a: no dimension_separator is declared"),
        "{said}"
    );
}

/// "An array with an unknown codec shows its metadata but no `data.raw` and no headers; opening one
/// of its chunks is `EOPNOTSUPP`. Invalid metadata has the same effect with `EIO`." "An unsupported
/// or damaged array is listed in `.zarrfs/stats` with its reason."
#[test]
fn damaged_and_unsupported_arrays_show_their_metadata() {
    let store = Store::new();
    let healthy = store.array("healthy", &[1], &[1], "");
    let unknown = store.array(
        "unknown",
        &[1],
        &[1],
        r#""compressor": {"id": "nosuchcodec"}"#,
    );
    let damaged = store.array("damaged", &[1], &[1], r#""shape": [-1]"#);
    for a in [&healthy, &unknown, &damaged] {
        fs::write(a.join("0"), [1]).unwrap();
    }
    let mount = Mount::new(store.path(), &[]);
    for (name, expected) in [("unknown", "EOPNOTSUPP"), ("damaged", "EIO")] {
        assert_eq!(
            names(&mount.join(name)),
            BTreeSet::from([".zarray", "0"].map(String::from))
        );
        assert_eq!(
            errno(File::open(mount.join(name).join("data.raw"))),
            "ENOENT"
        );
        assert_eq!(errno(fs::read(mount.join(name).join("0"))), expected);
        assert!(
            !fs::read(mount.join(name).join(".zarray"))
                .unwrap()
                .is_empty()
        );
    }
    assert_eq!(fs::read(mount.join("healthy/data.raw")).unwrap(), [1]);
    let stats = mount.stats();
    assert!(
        stats.contains("/unknown: codec \"nosuchcodec\" is unknown"),
        "{stats}"
    );
    assert!(
        stats.contains("/damaged/.zarray: shape[0] is -1, not a length"),
        "{stats}"
    );
}

/// "`open` shows the current content of the store": new chunks, replaced chunks, a new shape.
#[test]
fn an_open_shows_the_changes_of_other_programs() {
    let store = Store::new();
    let a = store.array("a", &[8192], &[4096], "");
    let replace = |key: &str, bytes: &[u8]| {
        fs::write(a.join("new.tmp"), bytes).unwrap();
        fs::rename(a.join("new.tmp"), a.join(key)).unwrap();
    };
    replace("0", &[1; 4096]);
    let mount = Mount::new(store.path(), &[]);
    let flat = mount.join("a/data.raw");
    let ends = |bytes: &[u8]| (bytes[0], bytes[bytes.len() - 1], bytes.len());
    assert_eq!(ends(&fs::read(&flat).unwrap()), (1, 0, 8192));
    // another program keeps the file open and mapped meanwhile
    let mut kept = File::open(&flat).unwrap();
    kept.read_exact(&mut [0; 100]).unwrap();
    replace("0", &[2; 4096]);
    assert_eq!(ends(&fs::read(&flat).unwrap()), (2, 0, 8192));
    // a change in place with the same size changes only the times
    fs::write(a.join("0"), [3; 4096]).unwrap();
    assert_eq!(ends(&fs::read(&flat).unwrap()), (3, 0, 8192));
    assert_eq!(fs::read(mount.join("a/0")).unwrap(), [3; 4096]);
    replace("1", &[4; 4096]);
    assert_eq!(ends(&fs::read(&flat).unwrap()), (3, 4, 8192));
    assert_eq!(fs::read(mount.join("a/1")).unwrap(), [4; 4096]);
    fs::remove_file(a.join("0")).unwrap();
    assert_eq!(ends(&fs::read(&flat).unwrap()), (0, 4, 8192));
    assert_eq!(errno(fs::read(mount.join("a/0"))), "ENOENT");
    store.array("a", &[12288], &[4096], "");
    assert_eq!(ends(&fs::read(&flat).unwrap()), (0, 0, 12288));
    store.array("a", &[4096], &[4096], "");
    assert_eq!(ends(&fs::read(&flat).unwrap()), (0, 0, 4096));
    assert_eq!(errno(fs::read(mount.join("a/1"))), "ENOENT");
    kept.seek(SeekFrom::Start(0)).unwrap();
    fs::remove_dir_all(&a).unwrap();
    assert_eq!(errno(fs::read(&flat)), "ENOENT");
}

/// An open shows the current array even if another program has the file open, although both share
/// the kernel's page cache.
#[test]
fn an_old_descriptor_does_not_affect_reads_through_a_new_one() {
    let store = Store::new();
    let a = store.array("a", &[4, 4], &[2, 2], "");
    fs::write(a.join("0.0"), [1; 4]).unwrap();
    fs::write(a.join(".zattrs"), "{\"a\": 1}").unwrap();
    let mount = Mount::new(store.path(), &[]);
    let open = |name: &str| File::open(mount.join("a").join(name)).unwrap();
    let first = |file: &File| {
        let mut bytes = [9; 2];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let old = open("data.raw");
    let old_attributes = open(".zattrs");
    assert_eq!(first(&old), [1, 1]);
    // in another shape, other chunks lie at the same offsets
    store.array("a", &[6, 1], &[2, 1], "");
    fs::write(a.join("0.0"), [5, 6]).unwrap();
    fs::write(a.join(".zattrs"), "{\"a\": 2}").unwrap();
    let new = open("data.raw");
    let new_attributes = open(".zattrs");
    first(&old);
    assert_eq!(first(&new), [5, 6]);
    first(&old_attributes);
    let mut text = String::new();
    (&new_attributes).read_to_string(&mut text).unwrap();
    assert_eq!(text, "{\"a\": 2}");
    // no separator is declared, and zarrfs detects it from chunks that are stored later
    let b = store.array("b", &[2, 2], &[1, 2], "");
    let old = File::open(mount.join("b/data.raw")).unwrap();
    assert_eq!(first(&old), [0, 0]);
    fs::create_dir(b.join("0")).unwrap();
    fs::write(b.join("0/0"), [7, 8]).unwrap();
    let new = File::open(mount.join("b/data.raw")).unwrap();
    first(&old);
    assert_eq!(first(&new), [7, 8]);
}

/// A chunk name stands for the chunk of the current grid, also right after the shape has changed.
#[test]
fn chunk_names_refer_to_the_current_grid() {
    let store = Store::new();
    let a = store.array("a", &[4, 4], &[2, 2], "");
    fs::write(a.join("1.0"), b"AAAA").unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(fs::read(mount.join("a/1.0")).unwrap(), b"AAAA");
    store.array("a", &[4, 6], &[2, 2], "");
    fs::write(a.join("0.2"), b"XXXX").unwrap();
    assert_eq!(fs::read(mount.join("a/1.0")).unwrap(), b"AAAA");
    assert_eq!(
        xattr(&mount.join("a/1.0"), "user.zarrfs.key").unwrap(),
        "a/1.0"
    );
}

/// A plain file that becomes a chunk, and a chunk that becomes readable, are shown as such
/// immediately.
#[test]
fn a_plain_file_can_become_a_chunk() {
    let store = Store::new();
    fs::create_dir(store.path().join("g")).unwrap();
    let encoded = [&crc32(b"data"), &b"data"[..]].concat();
    fs::write(store.path().join("g/0"), &encoded).unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(fs::read(mount.join("g/0")).unwrap(), encoded);
    let a = store.array("g", &[4], &[4], r#""compressor": {"id": "crc32"}"#);
    assert_eq!(fs::metadata(mount.join("g/0")).unwrap().len(), 4);
    assert_eq!(fs::read(mount.join("g/0")).unwrap(), b"data");
    let sound = fs::read(a.join(".zarray")).unwrap();
    fs::write(a.join(".zarray"), "{").unwrap();
    assert_eq!(errno(fs::read(mount.join("g/0"))), "EIO");
    fs::write(a.join(".zarray"), sound).unwrap();
    assert_eq!(fs::read(mount.join("g/0")).unwrap(), b"data");
    assert!(
        !mount.stats().contains("is not a regular file"),
        "{}",
        mount.stats()
    );
}

/// SEEK_HOLE and SEEK_DATA use the current grid.
#[test]
fn holes_refer_to_the_current_grid() {
    let store = Store::new();
    let a = store.array("a", &[2000, 1000], &[1, 1000], "");
    fs::write(a.join("950.0"), vec![1; 1000]).unwrap();
    let mount = Mount::new(store.path(), &[]);
    let file = File::open(mount.join("a/data.raw")).unwrap();
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)),
        Ok(950_000)
    );
    store.array("a", &[2000, 1000], &[1, 500], "");
    fs::write(a.join("1900.1"), vec![2; 500]).unwrap();
    fs::write(a.join("950.0"), vec![1; 500]).unwrap();
    let _another = File::open(mount.join("a/data.raw")).unwrap();
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(950_500)),
        Ok(1_900_500)
    );
}

/// A group that becomes an array is shown as one immediately, also to a process whose working
/// directory it is.
#[test]
fn a_group_can_become_an_array() {
    let store = Store::new();
    fs::create_dir(store.path().join("new")).unwrap();
    let mount = Mount::new(store.path(), &[]);
    let inside = File::open(mount.join("new")).unwrap();
    let a = store.array("new", &[4], &[4], r#""compressor": {"id": "crc32"}"#);
    fs::write(a.join("0"), [&crc32(b"data"), &b"data"[..]].concat()).unwrap();
    let open = |name: &str| {
        let flags = rustix::fs::OFlags::RDONLY;
        File::from(rustix::fs::openat(&inside, name, flags, rustix::fs::Mode::empty()).unwrap())
    };
    for name in ["0", "data.raw"] {
        let mut bytes = Vec::new();
        open(name).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"data", "{name}");
    }
}

fn crc32(bytes: &[u8]) -> [u8; 4] {
    let config =
        zarrfs_format::metadata::CodecConfig::parse(&serde_json::json!({"id": "crc32"})).unwrap();
    let mut out = Vec::new();
    zarrfs_format::codec::build(&config, 1)
        .unwrap()
        .encode(bytes, &mut out)
        .unwrap();
    out[..4].try_into().unwrap()
}

/// "never fill values, never short data", also where only decoding tells the size of a chunk.
#[test]
fn a_damaged_chunk_of_objects_is_eio() {
    let store = Store::new();
    let more = r#""dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "zlib"}"#;
    let a = store.array("o", &[2], &[2], more);
    fs::write(a.join("0"), b"garbage!!").unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(errno(fs::read(mount.join("o/0"))), "EIO");
}

/// An unreadable directory or document affects only its own array.
#[test]
fn unreadable_keys_hide_no_others() {
    let store = Store::new();
    let a = store.array("a", &[2, 2], &[1, 1], r#""dimension_separator": "/""#);
    fs::create_dir(a.join("0")).unwrap();
    fs::write(a.join("0/0"), [7]).unwrap();
    std::os::unix::fs::symlink("/", a.join("1")).unwrap();
    fs::create_dir(a.join(".zattrs")).unwrap();
    store.array("b", &[1], &[1], "");
    fs::write(store.path().join(".zmetadata"), "{}").unwrap();
    let mount = Mount::new(store.path(), &[]);
    let file = File::open(mount.join("a/data.raw")).unwrap();
    let mut first = [0; 1];
    assert_eq!(errno(file.read_exact_at(&mut first, 2)), "EACCES");
    assert_eq!(fs::read(mount.join("a/0.0")).unwrap(), [7]);
    assert_eq!(xattr(&mount.join("a"), "user.zarr.shape").unwrap(), "[2,2]");
    let view: serde_json::Value =
        serde_json::from_slice(&fs::read(mount.join(".zmetadata")).unwrap()).unwrap();
    let names: Vec<&String> = view["metadata"].as_object().unwrap().keys().collect();
    assert_eq!(names, [".zgroup", "a/.zarray", "b/.zarray"]);
    let info =
        String::from_utf8(zarrfs(&["info", "--wide", store.path().to_str().unwrap()]).stdout)
            .unwrap();
    assert!(
        info.contains("?/4 chunks  unreadable: /a: some chunks can't be listed"),
        "{info}"
    );
    assert!(
        info.lines()
            .any(|l| l.trim_start().starts_with("b ") && l.contains("0/1 chunks")),
        "{info}"
    );
}

/// "`-o ro` or `--read-only` refuses all changes with `EROFS`." Reading a whole mount changes no
/// file of the store.
#[test]
fn writing_is_refused_and_reading_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    copy_tree(&test_data("sample.zarr"), directory.path());
    let picture = || {
        let mut files = BTreeSet::new();
        let mut todo = vec![directory.path().to_path_buf()];
        while let Some(path) = todo.pop() {
            let meta = fs::metadata(&path).unwrap();
            files.insert((
                path.clone(),
                meta.mtime(),
                meta.mtime_nsec(),
                meta.ctime_nsec(),
                meta.len(),
            ));
            if meta.is_dir() {
                todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            }
        }
        files
    };
    let before = picture();
    let mount = Mount::new(directory.path(), &["-o", "ro"]);
    let write = |path: &str| fs::OpenOptions::new().write(true).open(mount.join(path));
    assert_eq!(errno(write("air_temperature/data.raw")), "EROFS");
    assert_eq!(errno(write("air_temperature/.zattrs")), "EROFS");
    assert_eq!(errno(File::create(mount.join("new"))), "EROFS");
    assert_eq!(errno(fs::create_dir(mount.join("group"))), "EROFS");
    assert_eq!(
        errno(fs::remove_file(mount.join("air_temperature/0.0.0"))),
        "EROFS"
    );
    let mut todo = vec![mount.path().to_path_buf()];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()))
        } else {
            drop(fs::read(&path).unwrap())
        }
    }
    assert_eq!(picture(), before);
}

/// The time and memory of a mount, an open, a stat and a read do not depend on the number of
/// chunks.
#[test]
fn an_array_of_many_chunks_opens_as_fast_as_a_small_one() {
    let store = Store::new();
    store.array("vast", &[1 << 30, 1 << 30], &[1, 1 << 20], "");
    let a = store.array("last", &[1 << 60], &[16], "");
    fs::write(a.join(((1u64 << 56) - 1).to_string()), [9; 16]).unwrap();
    let mount = Mount::new(store.path(), &["--cache-size", "1M"]);
    let start = Instant::now();
    let file = File::open(mount.join("vast/data.raw")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 60);
    let mut tail = [1; 100];
    file.read_exact_at(&mut tail, (1 << 60) - 100).unwrap();
    assert_eq!(tail, [0; 100]);
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)),
        Err(rustix::io::Errno::NXIO)
    );
    let last = File::open(mount.join("last/data.raw")).unwrap();
    assert_eq!(
        rustix::fs::seek(&last, rustix::fs::SeekFrom::Data(0)),
        Ok((1 << 60) - 16)
    );
    assert_eq!(names(&mount.join("last")).len(), 3);
    let pid = mount.counter("pid");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 64 << 10, "peak memory {peak} KiB");
    // no measurement: only an enumeration of 2^56 chunks could take this long
    assert!(start.elapsed() < Duration::from_secs(120));
}

/// Memory stays within `--cache-size` and 64 MiB while programs read an array of eight times the
/// cache's size.
#[test]
fn memory_stays_within_the_cache_bound() {
    let store = Store::new();
    let a = store.array(
        "a",
        &[64 << 20],
        &[1 << 20],
        r#""compressor": {"id": "zlib", "level": 1}"#,
    );
    let zeros = {
        let config = serde_json::json!({"id": "zlib", "level": 1});
        let config = zarrfs_format::metadata::CodecConfig::parse(&config).unwrap();
        let mut out = Vec::new();
        zarrfs_format::codec::build(&config, 1)
            .unwrap()
            .encode(&vec![0; 1 << 20], &mut out)
            .unwrap();
        out
    };
    for i in 0..64 {
        fs::write(a.join(i.to_string()), &zeros).unwrap();
    }
    let mount = Mount::new(store.path(), &["--cache-size", "8M"]);
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| assert_eq!(fs::read(mount.join("a/data.raw")).unwrap().len(), 64 << 20));
        }
    });
    assert!(mount.counter("cache_bytes") <= 8 << 20);
    let status = fs::read_to_string(format!("/proc/{}/status", mount.counter("pid"))).unwrap();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < (8 + 64) << 10, "peak memory {peak} KiB");
}

/// `zarrfs cat` prints the same bytes as the mount shows, at the same offsets.
#[test]
fn cat_prints_the_flat_bytes() {
    let mount = Mount::new(&test_data("sample.zarr"), &[]);
    let flat = fs::read(mount.join("air_temperature/data.raw")).unwrap();
    let array = test_data("sample.zarr/air_temperature");
    let array = array.to_str().unwrap();
    assert!(zarrfs(&["cat", array]).stdout == flat);
    assert!(
        zarrfs(&["cat", array, "--offset", "1001", "--length", "777"]).stdout == flat[1001..1778]
    );
    assert!(zarrfs(&["cat", array, "--offset", "1G"]).stdout.is_empty());
}
