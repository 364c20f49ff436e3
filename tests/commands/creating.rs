//! `zarrfs create` with many combinations of options. Either zarrfs refuses a combination with exit
//! code 2 and creates nothing, or zarr-python opens, reads and writes the array like one of its
//! own. A creation that fails or is interrupted leaves nothing behind.

use crate::support;
use crate::support::{
    ZARRFS, announce, env_number, env_path, failure, hex, memory_directory, random, run_python,
    wait_for, zarrfs,
};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DTYPES: [&str; 36] = [
    "|b1",
    "|i1",
    "<i2",
    ">i4",
    "<i8",
    "|u1",
    "<u4",
    ">u8",
    "<f2",
    ">f2",
    "<f4",
    ">f4",
    "<f8",
    "<f16",
    "<c8",
    ">c16",
    "<c32",
    "<M8[ns]",
    ">M8[25s]",
    "<m8[D]",
    "<M8",
    "<m8[generic]",
    "|S0",
    "|S5",
    "<U0",
    "<U3",
    ">U2",
    "|V0",
    "|V6",
    "|O",
    r#"[["a","<i2"],["b","<f4",[2]],["c","|S3"]]"#,
    r#"[["a",[["x",">u4"],["y","|b1"]]],["","float32"]]"#,
    r#"[["a","<i4"],["b","|S0"]]"#,
    r#"[["a","<i4"],["t","<M8"]]"#,
    r#"[["a","|O"],["b","<i4"]]"#,
    "f3",
];

const FILLS: [&str; 19] = [
    "null",
    "0",
    "1",
    "-1",
    "1.5",
    "-0.0",
    "NaN",
    "-Infinity",
    "1e400",
    "true",
    "text",
    "ä",
    "eHk=",
    "\"\"",
    "[1,2]",
    "[0.5,\"NaN\"]",
    "[1,\"Infinity\"]",
    "NaT",
    "0x7fc00001",
];

const COMPRESSORS: [&str; 26] = [
    "none",
    "blosc:zstd:3:bitshuffle",
    "blosc:blosclz:9:noshuffle",
    "blosc:lz4:5:autoshuffle",
    "zlib:9",
    "gzip",
    "bz2",
    "lzma",
    "zstd:-3",
    "lz4:7",
    r#"{"id":"lzma","format":3,"check":-1,"preset":null,"filters":[{"id":3,"dist":2},{"id":33,"preset":1}]}"#,
    r#"{"id":"lzma","format":1,"filters":[{"id":33}]}"#,
    r#"{"id":"lzma","format":2}"#,
    r#"{"id":"zstd","level":1,"checksum":true}"#,
    r#"{"id":"zlib"}"#,
    r#"{"id":"zlib","level":null}"#,
    r#"{"id":"zlib","level":1.0}"#,
    r#"{"id":"zlib","level":1,"unknown":2}"#,
    r#"{"id":"blosc","typesize":0}"#,
    r#"{"id":"blosc","typesize":4}"#,
    r#"{"id":"blosc","blocksize":2147483647}"#,
    r#"{"id":"shuffle","elementsize":2}"#,
    r#"{"id":"packbits"}"#,
    r#"{"id":"delta","dtype":"<i2"}"#,
    r#"{"id":"base64"}"#,
    r#"{"id":"vlen-utf8"}"#,
];

const FILTERS: [&str; 30] = [
    r#"[{"id":"delta","dtype":"<i2"}]"#,
    r#"[{"id":"delta","dtype":"<i8"}]"#,
    r#"[{"id":"delta","dtype":"<f8"}]"#,
    r#"[{"id":"delta","dtype":"<f4","astype":null}]"#,
    r#"[{"id":"delta","dtype":">i4","astype":"<i8"}]"#,
    r#"[{"id":"packbits"}]"#,
    r#"[{"id":"bitround","keepbits":5}]"#,
    r#"[{"id":"bitround","keepbits":50}]"#,
    r#"[{"id":"quantize","digits":1,"dtype":"<f4"}]"#,
    r#"[{"id":"quantize","digits":2,"dtype":"<f8","astype":"<f4"}]"#,
    r#"[{"id":"fixedscaleoffset","offset":0,"scale":4,"dtype":"<f8","astype":"<i2"}]"#,
    r#"[{"id":"fixedscaleoffset","offset":-3,"scale":10,"dtype":"<f4"}]"#,
    r#"[{"id":"astype","encode_dtype":"<i4","decode_dtype":"<i2"}]"#,
    r#"[{"id":"astype","encode_dtype":"<f4","decode_dtype":"<f8"},{"id":"bitround","keepbits":9}]"#,
    r#"[{"id":"shuffle"}]"#,
    r#"[{"id":"shuffle","elementsize":0}]"#,
    r#"[{"id":"crc32"}]"#,
    r#"[{"id":"crc32c"}]"#,
    r#"[{"id":"adler32"},{"id":"zlib","level":1}]"#,
    r#"[{"id":"fletcher32"}]"#,
    r#"[{"id":"jenkins_lookup3","initval":7}]"#,
    r#"[{"id":"zlib","level":1},{"id":"delta","dtype":"<i2"}]"#,
    r#"[{"id":"categorize","labels":["b","cd"],"dtype":"<U3"}]"#,
    r#"[{"id":"vlen-utf8"}]"#,
    r#"[{"id":"vlen-bytes"},{"id":"zlib","level":1}]"#,
    r#"[{"id":"vlen-array","dtype":"<i4"}]"#,
    r#"[{"id":"json2"}]"#,
    r#"[{"id":"msgpack2"}]"#,
    r#"[{"id":"pickle"}]"#,
    r#"[{"id":"json2","encoding":"utf-32"}]"#,
];

/// Dtypes whose fill values are spelled in different ways.
const WITH_FILLS: [&str; 16] = [
    "|b1", "|u1", ">i4", "<f2", "<f4", ">f8", "<f16", "<c8", ">c16", ">M8[25s]", "<m8[D]", "|S5",
    "<U3", "|V6", DTYPES[30], "|O",
];

const ITEMS: usize = 7;

/// The options of one array, each of which may be left out.
#[derive(Clone, Copy, PartialEq)]
struct Case {
    dtype: &'static str,
    fill: Option<&'static str>,
    compressor: Option<&'static str>,
    filters: Option<&'static str>,
    layout: &'static [&'static str],
}

/// Shapes, chunks and orders for 7 items or none. Cases that vary other options use the first.
const LAYOUTS: [&[&str]; 6] = [
    &["--shape=7", "--chunks=3"],
    &["--shape=7", "--chunks=9", "--separator=/"],
    &["--shape=1,7", "--chunks=1,2", "--order=F"],
    &["--shape=7,1,1", "--chunks=2,1,3", "--separator=/"],
    &["--shape=0", "--chunks=4"],
    &["--shape=3,0", "--chunks=2,2", "--order=F"],
];

/// Returns cases with every single option for dtypes of each kind, and some random combinations.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = |dtype| Case {
        dtype,
        fill: None,
        compressor: None,
        filters: None,
        layout: LAYOUTS[0],
    };
    for dtype in DTYPES {
        cases.push(plain(dtype));
    }
    for dtype in WITH_FILLS {
        cases.extend(FILLS.map(|fill| Case {
            fill: Some(fill),
            ..plain(dtype)
        }));
    }
    for dtype in ["<i2", "<f4", "|S5"] {
        cases.extend(COMPRESSORS.map(|compressor| Case {
            compressor: Some(compressor),
            ..plain(dtype)
        }));
    }
    for dtype in ["|b1", "|i1", "<i2", "<f4", "<f8", "<U3", "|O"] {
        cases.extend(FILTERS.map(|filters| Case {
            filters: Some(filters),
            ..plain(dtype)
        }));
    }
    let mut random = random(20);
    let mut any = |list: &[&'static str]| (random(2) > 0).then(|| list[random(list.len())]);
    for _ in 0..env_number("ZARRFS_CREATE_CASES", 100) {
        let dtype = any(&DTYPES).unwrap_or("<f8");
        let fill = any(&FILLS);
        let compressor = any(&COMPRESSORS);
        let filters = any(&FILTERS);
        cases.push(Case {
            dtype,
            fill,
            compressor,
            filters,
            layout: LAYOUTS[0],
        });
    }
    for layout in LAYOUTS {
        cases.extend(["<i2", ">f8", "<U3", "|O", DTYPES[30]].map(|dtype| Case {
            layout,
            ..plain(dtype)
        }));
        cases.push(Case {
            layout,
            filters: Some(FILTERS[0]),
            compressor: Some("none"),
            ..plain("<i2")
        });
        cases.push(Case {
            layout,
            filters: Some(FILTERS[23]),
            ..plain("|O")
        });
    }
    cases
}

/// Returns bytes of 7 items that are valid values to NumPy.
fn raw(dtype: &str, size: usize) -> Vec<u8> {
    let item = size / ITEMS;
    let ordered = |mut bytes: Vec<u8>| {
        if dtype.starts_with('>') {
            bytes.reverse();
        }
        bytes
    };
    let float = |i: usize, len: usize| {
        let value = i as f64 * 1.25 - 3.0;
        ordered(match len {
            2 => half::f16::from_f64(value).to_le_bytes().to_vec(),
            4 => (value as f32).to_le_bytes().to_vec(),
            8 => value.to_le_bytes().to_vec(),
            // 1.0 or 0.0 as an 80-bit float of x86
            _ if i % 2 == 1 => [&[0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f][..], &[0; 6]].concat(),
            _ => vec![0; 16],
        })
    };
    let kind = dtype.as_bytes()[1];
    (0..ITEMS)
        .flat_map(|i| match kind {
            b'b' => vec![(i % 2) as u8],
            b'i' | b'u' | b'M' | b'm' => {
                ordered((i as u64 * 13 % 100).to_le_bytes()[..item].to_vec())
            }
            b'f' => float(i, item),
            b'c' => [float(i, item / 2), float(i + 1, item / 2)].concat(),
            b'U' => (0..item / 4)
                .flat_map(|n| ordered(((b'a' + ((i + n) % 5) as u8) as u32).to_le_bytes().to_vec()))
                .collect(),
            // any byte is valid, even in a struct's booleans
            _ => (0..item).map(|n| ((i + n) % 2) as u8).collect(),
        })
        .collect()
}

/// Creates the arrays of a case in `path`. Returns the case as the Python script expects it, or
/// `None` if zarrfs refused it.
fn create(path: &Path, case: Case) -> Option<Value> {
    let options = [
        ("--dtype", Some(case.dtype)),
        ("--fill", case.fill),
        ("--compressor", case.compressor),
        ("--filters", case.filters),
    ];
    let options: Vec<String> = options
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", (*value)?)))
        .collect();
    let make = |name: &str, more: &[&str]| {
        let array = path.join(name);
        let output = Command::new(ZARRFS)
            .args(["create", array.to_str().unwrap(), "--no-fsync"])
            .args(case.layout)
            .args(&options)
            .args(more)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output
            .status
            .code()
            .unwrap_or_else(|| panic!("{options:?}: {}", output.status));
        assert!(
            code == 0 || code == 2 && !said.is_empty(),
            "{options:?}: {code} {said}"
        );
        assert_eq!(array.exists(), code == 0, "{options:?}");
        (code == 0).then_some(array)
    };
    let flat = |array: &Path| zarrfs(&["cat", array.to_str().unwrap()]).stdout;
    // the parent directory is no store, so `empty` and `full` are two stores
    std::fs::create_dir(path).unwrap();
    std::fs::write(path.join("mark"), "").unwrap();
    let empty = make("empty", &[])?;
    let bytes = if case.dtype.contains("|O") {
        Vec::new()
    } else {
        flat(&empty)
    };
    // an array without items has no bytes
    let raw = if bytes.is_empty() {
        Vec::new()
    } else {
        raw(case.dtype, bytes.len())
    };
    let options = options
        .iter()
        .map(String::as_str)
        .chain(case.layout.iter().copied())
        .collect::<Vec<_>>()
        .join(" ");
    let mut told =
        json!({"path": path, "options": options, "empty": hex(&bytes), "raw": hex(&raw)});
    // whether the creation is refused must not depend on the values
    if !case.dtype.contains("|O")
        && (case.fill.is_none() || case.compressor.is_some() || case.filters.is_some())
    {
        let file = path.join("raw");
        std::fs::write(&file, &raw).unwrap();
        let full = make("full", &["--from-raw", file.to_str().unwrap()])
            .expect("it was made without values");
        told["full"] = hex(&flat(&full)).into();
    }
    Some(told)
}

#[test]
fn every_created_array_is_usable_by_zarr_python() {
    let directory = memory_directory();
    let cases = cases();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(case) = cases.get(n) else {
                return made;
            };
            made.extend(create(&directory.path().join(n.to_string()), *case));
        }
    };
    let made: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    announce(&format!(
        "{} of {} arrays were made, the rest refused",
        made.len(),
        cases.len()
    ));
    // both outcomes must occur often
    assert!(
        made.len() * 5 > cases.len() && made.len() * 5 < cases.len() * 4,
        "{} of {}",
        made.len(),
        cases.len()
    );
    let list = directory.path().join("cases.json");
    std::fs::write(&list, Value::Array(made).to_string()).unwrap();
    for python in ["ZARRFS_TEST_PYTHON", "ZARRFS_TEST_PYTHON3"]
        .into_iter()
        .filter_map(env_path)
    {
        announce(run_python(&python, "grid.py", &[&list]).trim());
    }
}

/// A store with a group and a `.zmetadata`, beside an empty directory.
struct Store(tempfile::TempDir);

impl Store {
    fn new() -> Store {
        let directory = tempfile::tempdir().unwrap();
        let group = "{\"zarr_format\": 2}";
        std::fs::create_dir_all(directory.path().join("x.zarr/g")).unwrap();
        for path in ["x.zarr/.zgroup", "x.zarr/g/.zgroup"] {
            std::fs::write(directory.path().join(path), group).unwrap();
        }
        let documents =
            r#"{"metadata":{".zgroup":{"zarr_format":2},"g/.zgroup":{"zarr_format":2}}}"#;
        std::fs::write(directory.path().join("x.zarr/.zmetadata"), documents).unwrap();
        std::fs::create_dir(directory.path().join("empty")).unwrap();
        Store(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn everything(&self) -> Vec<String> {
        let mut found: Vec<String> = support::tree::snapshot(self.0.path())
            .unwrap()
            .into_keys()
            .collect();
        found.sort();
        found
    }

    /// Starts to create an array whose values come from a pipe.
    fn begin(&self, name: &str) -> std::process::Child {
        let path = self.path(name);
        let args = [
            "--shape=1000,1000",
            "--chunks=100,100",
            "--dtype=<f8",
            "--compressor=none",
            "--from-raw=-",
        ];
        let mut command = Command::new(ZARRFS);
        command
            .arg("create")
            .arg(path)
            .args(args)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

/// Without a group above the array, the store is the first directory whose name ends with .zarr, or
/// else the first that is missing.
#[test]
fn a_directory_without_documents_is_no_store() {
    for (existing, path, root) in [
        ("", "new.zarr/x", "new.zarr"),
        ("", "new.zarr/g/x", "new.zarr"),
        ("", "g/x", "g"),
        ("", "x", "x"),
        ("notes.txt", "g/new.zarr/x", "g/new.zarr"),
        ("other.zarr/.zgroup", "new.zarr/x", "new.zarr"),
        ("other.zarr/.zgroup", "other.zarr/g/x", "other.zarr"),
        ("old.zarr/", "old.zarr/g/x", "old.zarr"),
        ("old.zarr/", "old.zarr", "old.zarr"),
        ("old.zarr/g/", "old.zarr/g/x", "old.zarr"),
        (".zgroup", "new.zarr/x", ""),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(existing);
        std::fs::create_dir_all(if existing.ends_with('/') {
            &file
        } else {
            file.parent().unwrap()
        })
        .unwrap();
        if !existing.is_empty() && !existing.ends_with('/') {
            std::fs::write(&file, "{\"zarr_format\": 2}").unwrap();
        }
        let array = directory.path().join(path);
        let made = zarrfs(&[
            "create",
            array.to_str().unwrap(),
            "--shape=1",
            "--chunks=1",
            "--dtype=<f8",
        ]);
        assert!(
            made.status.success(),
            "{existing:?} {path}: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        assert!(array.join(".zarray").is_file(), "{existing:?} {path}");
        let is_group = |path: &Path| path.join(".zgroup").is_file();
        assert!(
            path == root || is_group(&directory.path().join(root)),
            "{existing:?} {path}"
        );
        let above: Vec<&Path> = Path::new(root).ancestors().skip(1).collect();
        assert!(
            !above
                .iter()
                .any(|above| is_group(&directory.path().join(above))),
            "{existing:?} {path}"
        );
    }
}

const PLACES: [&str; 4] = ["x.zarr/g/new/a", "new.zarr/g/a", "empty", "empty/a"];

#[test]
fn an_interrupted_creation_leaves_nothing_behind() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::os::unix::process::ExitStatusExt;
    for place in PLACES {
        for signal in [
            Signal::INT,
            Signal::TERM,
            Signal::HUP,
            Signal::QUIT,
            Signal::XCPU,
        ] {
            let store = Store::new();
            let before = store.everything();
            let mut child = store.begin(place);
            let mut input = child.stdin.take().unwrap();
            // full rows of chunks are stored before the input ends
            input.write_all(&vec![1; 6_000_000]).unwrap();
            wait_for("the array to be begun", || {
                store.everything().len() > before.len() + 2
            });
            kill_process(Pid::from_child(&child), signal).unwrap();
            let status = child.wait().unwrap();
            assert_eq!(status.signal(), Some(signal.as_raw()), "{place}");
            assert_eq!(store.everything(), before, "{place} {signal:?}");
        }
        // SIGKILL leaves files behind, but under a hidden name
        let store = Store::new();
        let before = store.everything();
        let mut child = store.begin(place);
        child
            .stdin
            .take()
            .unwrap()
            .write_all(&vec![1; 6_000_000])
            .unwrap_or(());
        let _ = child.kill();
        child.wait().unwrap();
        let seen: Vec<String> = store
            .everything()
            .into_iter()
            .filter(|path| !path.contains("/.zarrfs-create-"))
            .collect();
        // a check reports them
        let checked =
            String::from_utf8(zarrfs(&["check", store.path("x.zarr").to_str().unwrap()]).stdout)
                .unwrap();
        let left = store
            .everything()
            .iter()
            .any(|path| path.starts_with("/x.zarr/g/.zarrfs-create-"));
        assert_eq!(
            checked.contains("a value that zarrfs has not finished"),
            left,
            "{checked}"
        );
        // the creation may have been complete before the signal
        assert!(
            seen == before || store.path(place).join(".zarray").exists(),
            "{place} {seen:?}"
        );
    }
}

#[test]
fn a_failed_creation_leaves_nothing_behind() {
    for place in PLACES {
        for (len, why) in [
            (1000, "ends after 1000 bytes"),
            (8_000_001, "more bytes than the array"),
        ] {
            let store = Store::new();
            let before = store.everything();
            let mut child = store.begin(place);
            // the command may close its input before it has read everything
            let _ = child.stdin.take().unwrap().write_all(&vec![1; len]);
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(
                output.status.code() == Some(1) && said.contains(why),
                "{place}: {said}"
            );
            assert_eq!(store.everything(), before, "{place}");
        }
        let store = Store::new();
        let mut child = store.begin(place);
        child
            .stdin
            .take()
            .unwrap()
            .write_all(&vec![1; 8_000_000])
            .unwrap();
        assert!(child.wait().unwrap().success(), "{place}");
        assert!(
            store.path(place).join(".zarray").exists()
                && support::unfinished_files(store.0.path()).is_empty(),
            "{place}"
        );
        let flat = zarrfs(&["cat", store.path(place).to_str().unwrap()]).stdout;
        assert!(flat == vec![1; 8_000_000], "{place}");
    }
    // .zmetadata describes the new array and its groups
    let store = Store::new();
    let args = ["--shape=4", "--chunks=2", "--dtype=<f4"];
    let made = zarrfs(
        &[
            &["create", store.path("x.zarr/g/n/a").to_str().unwrap()],
            &args[..],
        ]
        .concat(),
    );
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let consolidated: Value =
        serde_json::from_slice(&std::fs::read(store.path("x.zarr/.zmetadata")).unwrap()).unwrap();
    let mut names: Vec<&str> = consolidated["metadata"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    names.sort();
    assert_eq!(
        names,
        [".zgroup", "g/.zgroup", "g/n/.zgroup", "g/n/a/.zarray"]
    );
}

/// A tmpfs that is too small for the array. `new` returns `None` if this user cannot mount one.
struct Small(tempfile::TempDir);

impl Small {
    fn new() -> Option<Small> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2M", "none"])
            .arg(directory.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            Some(Small(directory))
        } else {
            announce("skipped: a tmpfs can't be mounted");
            None
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let Some(small) = Small::new() else { return };
    let source = tempfile::NamedTempFile::new().unwrap();
    // chunks of zeros would not be stored
    std::fs::write(source.path(), vec![1; 8_000_000]).unwrap();
    std::fs::create_dir(small.0.path().join("empty")).unwrap();
    std::fs::write(small.0.path().join("mark"), "").unwrap();
    for place in ["new.zarr/g/a", "empty", "empty/a"] {
        let output = Command::new(ZARRFS)
            .arg("create")
            .arg(small.0.path().join(place))
            .args([
                "--shape=1000,1000",
                "--chunks=100,100",
                "--dtype=<f8",
                "--compressor=none",
                "--from-raw",
            ])
            .arg(source.path())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && said.contains("No space left"),
            "{said}"
        );
        let mut left: Vec<String> = support::tree::snapshot(small.0.path())
            .unwrap()
            .into_keys()
            .collect();
        left.retain(|path| {
            !path.ends_with("/empty") && !path.ends_with("/mark") && !path.is_empty() && path != "/"
        });
        assert!(left.is_empty(), "{place}: {left:?}");
    }
}

/// A store in a mount of zarrfs can be read, but a command that would write it is refused at once,
/// and leaves nothing.
#[test]
fn a_store_in_a_mount_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("outer.zarr");
    support::copy_tree(&support::test_data("sample.zarr"), &store);
    let before = support::tree::snapshot(&store).unwrap();
    let mount = support::Mount::new(&store, &[]);
    let mountpoint = folder.path().join("mnt");
    std::fs::create_dir(&mountpoint).unwrap();
    let path = |name: &str| mount.join(name).to_str().unwrap().to_string();
    let inner = path("inner.zarr/a");
    let here = mountpoint.to_str().unwrap();
    let sample = store.to_str().unwrap();
    for args in [
        &[
            "create", &inner, "--shape", "4", "--chunks", "2", "--dtype", "u1",
        ][..],
        &["mount", &path(""), here],
        &["mount", &path("lat"), here],
        &["mount", sample, here, "--overlay", &path("changes")],
        &["put", &path("lat")],
    ] {
        let (code, said) = failure(&zarrfs(args));
        assert!(
            code == 2 && said.contains("in a mount of zarrfs") && said.contains(sample),
            "{args:?}: {code} {said}"
        );
    }
    assert_eq!(support::tree::snapshot(&store).unwrap(), before);
    assert!(
        zarrfs(&["mount", "--read-only", &path(""), here])
            .status
            .success()
    );
    let read = |root: &std::path::Path| std::fs::read(root.join("lat/data.raw")).unwrap();
    assert_eq!(read(&mountpoint), read(mount.path()));
    assert!(support::unmount(here).status.success());
}
