//! The commands `check`, `ls`, `info --map`, `completions` and `man`. Findings of `check` are
//! compared with the faults that tests make and with the damaged arrays of the generated matrices,
//! and listings of `ls` with a mount. groff and the shells read the manual pages and completions.

use crate::support::array::TestArray;
use crate::support::servers;
use crate::support::tree::{differences, snapshot};
use crate::support::{
    Mount, ZARRFS, announce, copy_tree, env_path, is_installed, test_data, unmount, with_timeout,
    zarrfs,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The findings of a check without their messages: level, path and kind.
type Findings = BTreeSet<(String, String, String)>;

fn parsed(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.is_empty(), "{said}");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)))
}

/// Runs `zarrfs check --json` and returns its report. Fails unless the exit code agrees with the
/// findings.
fn check(args: &[&str]) -> Value {
    let output = zarrfs(&[&["check", "--json"], args].concat());
    let report = parsed(&output);
    let faults = report["errors"].as_u64().unwrap() + report["warnings"].as_u64().unwrap();
    assert_eq!(
        output.status.code(),
        Some(i32::from(faults > 0)),
        "{report}"
    );
    assert_eq!(report["complete"], true, "{report}");
    report
}

fn findings(report: &Value) -> Findings {
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_string();
    let list = report["findings"].as_array().unwrap();
    list.iter()
        .map(|f| (text(f, "level"), text(f, "path"), text(f, "kind")))
        .collect()
}

fn set(rows: &[(&str, &str, &str)]) -> Findings {
    rows.iter()
        .map(|(level, path, kind)| (level.to_string(), path.to_string(), kind.to_string()))
        .collect()
}

fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Chunks with faults that only decoding finds.
const DEEP: [&str; 3] = ["/zlib/1.0", "/blosc/0", "/words/0"];

/// Creates a store with at least one fault of every kind. Returns the expected findings.
fn create_faulty_store(store: &Path) -> Findings {
    write(store.join(".zgroup"), r#"{"zarr_format": 2}"#);
    write(store.join(".zattrs"), r#"{"title": NaN}"#);
    let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
    TestArray::with_chunks(store.join("good"), &[4, 6], &[2, 3], zlib.clone());

    let plain = TestArray::with_chunks(store.join("plain"), &[4, 6], &[2, 3], json!({}));
    write(plain.file(&[0, 0]), [7; 5]);
    fs::remove_file(plain.file(&[0, 1])).unwrap();
    fs::create_dir(plain.file(&[0, 1])).unwrap();
    for name in [
        "9.0",
        "00.1",
        "0.-1",
        "0.0.0123abcd.partial",
        "0.0.__lock",
        ".zarrfs-77-1",
        "notes.txt",
        "0/1",
        ".zgroup",
    ] {
        write(plain.path.join(name), "x");
    }
    write(plain.path.join("inside/.zarray"), plain.text());
    write(
        plain.path.join(".zattrs"),
        r#"{"_ARRAY_DIMENSIONS": ["x"]}"#,
    );

    let compressed = TestArray::with_chunks(store.join("zlib"), &[4, 6], &[2, 3], zlib);
    write(compressed.file(&[0, 0]), "");
    let mut damaged = compressed.encoded(&[1, 0]);
    damaged.truncate(damaged.len() / 2);
    write(compressed.file(&[1, 0]), damaged);
    // the header of the blosc frame states more bytes than the chunk has
    let blosc = json!({"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}});
    let small = store.join("blosc");
    let large = store.join("large");
    let small = TestArray::with_chunks(small, &[8], &[8], blosc.clone());
    let large = TestArray::with_chunks(large, &[64], &[64], blosc);
    fs::copy(large.file(&[0]), small.file(&[0])).unwrap();

    // the chunk has two strings, but one is stored
    write(
        store.join("words/.zarray"),
        r#"{"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|O", "compressor": null,
        "fill_value": "", "order": "C", "filters": [{"id": "vlen-utf8"}]}"#,
    );
    write(store.join("words/0"), b"\x01\0\0\0\x01\0\0\0a");

    let nested = TestArray::with_chunks(
        store.join("nested"),
        &[4, 6],
        &[2, 3],
        json!({"dimension_separator": "/"}),
    );
    write(nested.path.join("1.1"), nested.encoded(&[1, 1]));
    write(nested.path.join("0/7"), "x");
    let undeclared = TestArray::with_chunks(
        store.join("undeclared"),
        &[4, 6],
        &[2, 3],
        json!({"dimension_separator": "/"}),
    );
    write(
        undeclared.path.join(".zarray"),
        undeclared
            .text()
            .replace("\"dimension_separator\":\"/\"", "\"_\":0"),
    );

    write(store.join("garbage/.zarray"), "{]");
    write(
        store.join("codec/.zarray"),
        plain
            .text()
            .replace("\"compressor\":null", "\"compressor\":{\"id\":\"unheard\"}"),
    );
    write(store.join("list/.zgroup"), r#"{"zarr_format": 2}"#);
    write(store.join("list/.zattrs"), "[1]");
    write(store.join("badgroup/.zgroup"), r#"{"zarr_format": 7}"#);
    write(
        store.join("v3/zarr.json"),
        r#"{"zarr_format": 3, "node_type": "array"}"#,
    );
    write(store.join("v3/c/0/0"), "x");
    write(
        store.join("mixed/zarr.json"),
        r#"{"zarr_format": 3, "node_type": "group"}"#,
    );
    write(store.join("mixed/.zgroup"), r#"{"zarr_format": 2}"#);
    write(store.join("unmarked/readme"), "x");
    write(store.join(".git/config"), "x");
    write(store.join(".zarrfs-12-3"), "x");
    write(store.join("gone/.zarrfs-zarray"), plain.text());
    write(store.join("gone/.zgroup"), r#"{"zarr_format": 2}"#);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        store.join("fifo"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    symlink("/etc/passwd", store.join("link-out")).unwrap();

    let entry = |path: &str| {
        (
            path.to_string(),
            serde_json::from_slice::<Value>(&fs::read(store.join(path)).unwrap()),
        )
    };
    let (name, good) = entry("good/.zarray");
    let mut other = good.as_ref().unwrap().clone();
    other["fill_value"] = json!(1);
    let metadata = json!({name: good.unwrap(), "large/.zarray": other, "nowhere/.zarray": {}});
    write(
        store.join(".zmetadata"),
        json!({"zarr_consolidated_format": 1, "metadata": metadata}).to_string(),
    );

    set(&[
        ("error", "/garbage/.zarray", "metadata"),
        ("error", "/badgroup/.zgroup", "metadata"),
        ("error", "/list/.zattrs", "attributes"),
        ("error", "/plain/0.0", "chunk"),
        ("error", "/plain/0.1", "chunk"),
        ("error", "/zlib/0.0", "chunk"),
        ("error", "/zlib/1.0", "chunk"),
        ("error", "/blosc/0", "chunk"),
        ("error", "/words/0", "chunk"),
        ("error", "/plain/0/1", "separator"),
        ("error", "/nested/1.1", "separator"),
        ("warning", "/codec", "unsupported"),
        ("warning", "/undeclared/.zarray", "undeclared-separator"),
        ("warning", "/plain/.zattrs", "dimensions"),
        ("warning", "/plain/9.0", "outside-grid"),
        ("warning", "/plain/00.1", "outside-grid"),
        ("warning", "/nested/0/7", "outside-grid"),
        ("warning", "/plain/0.0.0123abcd.partial", "leftover"),
        ("warning", "/plain/0.0.__lock", "leftover"),
        ("warning", "/plain/.zarrfs-77-1", "leftover"),
        ("warning", "/.zarrfs-12-3", "leftover"),
        ("warning", "/gone/.zarrfs-zarray", "leftover"),
        ("warning", "/.zmetadata", "zmetadata"),
        ("error", "/v3/zarr.json", "metadata"),
        ("warning", "/mixed/.zgroup", "mixed-formats"),
        ("warning", "/plain/inside", "nested"),
        ("warning", "/plain/.zgroup", "nested"),
        ("warning", "/fifo", "not-a-file"),
        ("warning", "/link-out", "not-a-file"),
        ("note", "/unmarked", "no-zgroup"),
        ("note", "/unmarked/readme", "extra"),
        ("note", "/.git", "extra"),
        ("note", "/plain/notes.txt", "extra"),
        ("note", "/plain/0.-1", "extra"),
    ])
}

#[test]
fn check_finds_every_kind_of_fault_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("faulty.zarr");
    let expected = create_faulty_store(&store);
    let before = snapshot(&store).unwrap();
    let path = store.to_str().unwrap();
    let report = check(&["--deep", "--notes", path]);
    assert_eq!(findings(&report), expected);
    assert_eq!(
        report["findings"].as_array().unwrap().len() as u64,
        counted(&report),
        "{report}"
    );
    // a check of sizes finds less, notes are hidden by default, and the number of threads does not
    // matter
    let mut shallow = expected.clone();
    shallow.retain(|(level, path, _)| level != "note" && !DEEP.contains(&path.as_str()));
    assert_eq!(findings(&check(&[path])), shallow);
    assert_eq!(
        findings(&check(&["--deep", "--notes", "--threads", "1", path])),
        expected
    );
    // an array is a store of its own
    let array = findings(&check(&["--deep", store.join("zlib").to_str().unwrap()]));
    assert_eq!(
        array,
        set(&[("error", "/0.0", "chunk"), ("error", "/1.0", "chunk")])
    );
    assert_eq!(
        differences(&before, &snapshot(&store).unwrap()),
        [] as [String; 0]
    );
}

fn counted(report: &Value) -> u64 {
    ["errors", "warnings", "notes"]
        .iter()
        .map(|name| report[name].as_u64().unwrap())
        .sum()
}

#[test]
fn a_finding_names_the_key_the_fault_and_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    create_faulty_store(directory.path());
    let output = zarrfs(&["check", directory.path().to_str().unwrap()]);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "error    /plain/0.0: no codec: 5 bytes, it must have 6; restore it from a copy; if it is deleted the chunk reads as \
         the fill value",
        "error    /zlib/0.0: zlib: empty; restore it from a copy; if it is deleted the chunk reads as the fill value",
        "error    /plain/0/1: a chunk under '/', where the array's separator is '.'; correct the separator in the \
         array's document, or rename the chunks",
        "warning  /.zmetadata: lacks zlib/.zarray, which is stored; rewrite it with `zarrfs consolidate`",
        "warning  /.zmetadata: has nowhere/.zarray, of which no valid document is stored; rewrite it with `zarrfs \
         consolidate`",
        "warning  /.zmetadata: has another large/.zarray than is stored; rewrite it with `zarrfs consolidate`",
        "warning  /plain/9.0: named like a chunk, but the grid has 2 x 2; readers do not find it: delete it, or correct the shape \
         in the array's document",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(!text.contains("good/.zarray"), "{text}");
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("11 arrays, ")
            && last.ends_with(" findings, 5 notes (--notes shows them)"),
        "{last}"
    );
}

#[test]
fn archives_and_servers_are_checked_as_directories_are() {
    if !is_installed("python3") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("faulty.zarr");
    let mut expected = create_faulty_store(&store);
    for path in ["fifo", "link-out"] {
        fs::remove_file(store.join(path)).unwrap();
    }
    fs::remove_dir(store.join("plain/0.1")).unwrap();
    expected.retain(|(_, path, _)| !["/fifo", "/link-out", "/plain/0.1"].contains(&path.as_str()));
    for stored in [true, false] {
        let archive = servers::zip(&store, directory.path(), &format!("{stored}.zip"), stored);
        assert_eq!(
            findings(&check(&["--deep", "--notes", archive.to_str().unwrap()])),
            expected,
            "stored: {stored}"
        );
    }
    if let Some(server) = servers::moto() {
        server.upload(&store, "bucket/faulty.zarr");
        let output = server
            .store("bucket/faulty.zarr")
            .zarrfs("check", &["--deep", "--json", "--notes"]);
        assert_eq!(findings(&parsed(&output)), expected, "in a bucket");
    }
    // where keys cannot be listed, the hierarchy comes from .zmetadata and chunks are requested one
    // by one
    fs::remove_file(store.join(".zmetadata")).unwrap();
    fs::remove_dir_all(store.join("garbage")).unwrap();
    // consolidate reports unreadable documents and writes the others
    zarrfs(&["consolidate", store.to_str().unwrap()]);
    let Some(server) = servers::python_http(directory.path()) else {
        return;
    };
    let output = server
        .store("faulty.zarr")
        .zarrfs("check", &["--deep", "--json", "--notes"]);
    let report = parsed(&output);
    let found = findings(&report);
    let chunks: Vec<&str> = found
        .iter()
        .filter(|(_, _, kind)| kind == "chunk")
        .map(|(_, path, _)| path.as_str())
        .collect();
    assert_eq!(
        chunks,
        [
            "/blosc/0",
            "/plain/0.0",
            "/words/0",
            "/zlib/0.0",
            "/zlib/1.0"
        ]
    );
    assert!(
        found.contains(&("note".into(), "/".into(), "unlisted".into())),
        "{report}"
    );
    assert!(
        found.contains(&("warning".into(), "/codec".into(), "unsupported".into())),
        "{report}"
    );
    assert_eq!(output.status.code(), Some(1));
}

/// A check of the sample and the matrices finds the arrays that were damaged on purpose, and no
/// others.
#[test]
fn only_damaged_arrays_have_findings() {
    let report = check(&[
        "--deep",
        "--notes",
        test_data("sample.zarr").to_str().unwrap(),
    ]);
    assert_eq!(
        (counted(&report), &report["arrays"], &report["chunks"]),
        (0, &json!(8), &json!(43))
    );
    let mut stores: Vec<PathBuf> = Vec::new();
    for folder in ["ZARRFS_MATRIX", "ZARRFS_REFERENCE"]
        .iter()
        .filter_map(|variable| env_path(variable))
    {
        stores_below(&folder, &mut stores);
    }
    let mut arrays = 0;
    let mut damaged = 0;
    for store in stores {
        let report = check(&["--deep", store.to_str().unwrap()]);
        arrays += report["arrays"].as_u64().unwrap();
        let name = store.file_name().unwrap().to_str().unwrap();
        let found = findings(&report);
        let damaged_arrays: BTreeSet<&str> = found
            .iter()
            .map(|(_, path, _)| path.split('/').nth(1).unwrap_or_default())
            .collect();
        match name {
            "odd.zarr" | "v2-odd.zarr" => {
                let names = fs::read_dir(&store)
                    .unwrap()
                    .map(|e| e.unwrap().file_name().into_string().unwrap());
                let bad: BTreeSet<String> = names.filter(|name| name.starts_with("bad-")).collect();
                let ok = ["ok-chunks-beyond-grid"];
                let found: BTreeSet<String> = damaged_arrays
                    .iter()
                    .filter(|name| !ok.contains(name))
                    .map(|name| name.to_string())
                    .collect();
                assert_eq!(found, bad, "{}: {report:#}", store.display());
                damaged += bad.len();
            }
            "tree.zarr" | "v2-tree.zarr" => {
                assert!(
                    found.iter().all(|(level, _, _)| level == "warning"),
                    "{}: {report:#}",
                    store.display()
                );
            }
            "stale.zarr" => {
                assert!(
                    found.iter().all(|(_, _, kind)| kind == "zmetadata") && !found.is_empty(),
                    "{report:#}"
                )
            }
            // its codec has a parameter that no specification defines
            "africa.zarr" => assert!(
                found.iter().all(|(_, _, kind)| kind == "unsupported"),
                "{report:#}"
            ),
            "undeclared.zarr" => {
                assert_eq!(damaged_arrays.into_iter().collect::<Vec<_>>(), ["nested"])
            }
            "fixture.zarr" => assert_eq!(
                damaged_arrays.into_iter().collect::<Vec<_>>(),
                ["nested_legacy"]
            ),
            _ => assert!(found.is_empty(), "{}: {report:#}", store.display()),
        }
    }
    announce(&format!(
        "{arrays} arrays checked, {damaged} of them damaged on purpose"
    ));
}

/// Collects the stores below a folder.
fn stores_below(folder: &Path, stores: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_store = [".zgroup", ".zarray", "meta"]
            .iter()
            .any(|document| path.join(document).is_file());
        if is_store || name.ends_with(".zarr") || name.ends_with(".zip") && path.is_file() {
            stores.push(path);
        } else if path.is_dir() && !["sha256", "LICENSES"].contains(&name) {
            stores_below(&path, stores);
        }
    }
}

/// A check of any store in the hostile corpus ends with findings or with a one-line error.
#[test]
fn a_check_survives_hostile_stores() {
    for entry in fs::read_dir(test_data("hostile")).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let output = with_timeout(300, ZARRFS)
            .args(["check", "--deep", "--json", "--notes"])
            .arg(&path)
            .output()
            .unwrap();
        let code = output.status.code();
        let said = String::from_utf8_lossy(&output.stderr);
        match code {
            Some(0 | 1) if said.is_empty() => drop(parsed(&output)),
            _ => {
                assert!(
                    matches!(code, Some(1 | 4)) && said.lines().count() == 1,
                    "{}: {code:?} {said}",
                    path.display()
                )
            }
        }
    }
}

#[test]
fn many_similar_findings_are_summarized() {
    let directory = tempfile::tempdir().unwrap();
    let made = TestArray::new(directory.path().join("a"), &[4], &[2], json!({}));
    for i in 2..502 {
        write(made.path.join(i.to_string()), "xx");
    }
    let report = check(&[directory.path().join("a").to_str().unwrap()]);
    assert_eq!(report["warnings"], 21, "{report}");
    let last = report["findings"].as_array().unwrap().last().unwrap();
    assert!(
        last["message"]
            .as_str()
            .unwrap()
            .starts_with("480 more like the 20 above"),
        "{last}"
    );
}

#[test]
fn an_interrupted_check_reports_its_progress() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path().join(".zgroup"), r#"{"zarr_format": 2}"#);
    write(directory.path().join("a/.zarray"), "{]");
    let made = TestArray::new(
        directory.path().join("b"),
        &[6000, 512],
        &[1, 512],
        json!({"compressor": {"id": "bz2", "level": 9}}),
    );
    let chunk = made.encoded(&[0, 0]);
    (0..6000).for_each(|i| fs::write(made.file(&[i, 0]), &chunk).unwrap());
    let mut command = Command::new(ZARRFS);
    command
        .args(["check", "--deep", "--threads", "1"])
        .arg(directory.path())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(
        line.starts_with("error    /a/.zarray: not valid JSON"),
        "{line}"
    );
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(
        rest.starts_with("interrupted after ") && rest.trim_end().ends_with(": 1 finding"),
        "{rest}"
    );
    let chunks: u64 = rest
        .split(", ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .replace(',', "")
        .parse()
        .unwrap();
    assert!(chunks < 6000, "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

/// Returns the names in a directory of a mount, with the sizes of files.
fn shown(path: &Path) -> BTreeSet<(String, Option<u64>)> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let row = |entry: fs::DirEntry| {
        let metadata = fs::metadata(entry.path());
        let size = metadata.ok().filter(|m| m.is_file()).map(|m| m.len());
        (entry.file_name().into_string().unwrap(), size)
    };
    entries.map(row).collect()
}

#[test]
fn ls_lists_the_names_and_sizes_of_a_mount() {
    let directory = tempfile::tempdir().unwrap();
    let faulty_store = directory.path().join("faulty.zarr");
    create_faulty_store(&faulty_store);
    let mut stores = vec![test_data("sample.zarr"), faulty_store];
    stores.extend(
        env_path("ZARRFS_MATRIX")
            .into_iter()
            .flat_map(|m| ["object.zarr", "tree.zarr"].map(|s| m.join(s))),
    );
    for store in stores {
        let options = ["--headers", "npy,vrt,readme", "--containers", "nii"];
        let mount = Mount::new(&store, &options);
        let path = store.to_str().unwrap();
        let list = parsed(&zarrfs(
            &[&["ls", "-R", "--json"], &options[..], &[path]].concat(),
        ));
        let mut groups = vec![mount.path().to_path_buf()];
        let mut listed = 0;
        while let Some(group) = groups.pop() {
            let prefix = group.strip_prefix(mount.path()).unwrap().to_str().unwrap();
            let prefix = if prefix.is_empty() {
                "/".to_string()
            } else {
                format!("/{prefix}/")
            };
            let own = list.as_array().unwrap().iter().filter_map(|entry| {
                let name = entry["path"].as_str().unwrap().strip_prefix(&prefix)?;
                (!name.contains('/')).then(|| (name.to_string(), entry["size"].as_u64()))
            });
            let own: BTreeSet<_> = own.collect();
            assert_eq!(own, shown(&group), "{}", group.display());
            listed += own.len();
            groups.extend(
                own.iter()
                    .map(|(name, _)| group.join(name))
                    .filter(|path| path.is_dir()),
            );
        }
        assert_eq!(list.as_array().unwrap().len(), listed);
        // plain ls lists the same names
        let names = zarrfs(&[&["ls"], &options[..], &[path]].concat());
        let names: Vec<String> = String::from_utf8(names.stdout)
            .unwrap()
            .lines()
            .map(|l| l.trim_end_matches('/').into())
            .collect();
        let root: Vec<String> = shown(mount.path())
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, root);
    }
}

#[test]
fn ls_shows_decoded_and_stored_sizes_and_times() {
    let store = test_data("sample.zarr/lat");
    let output = zarrfs(&["ls", "-l", "--headers", "none", store.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let names: Vec<&str> = rows.iter().map(|row| row[3]).collect();
    assert_eq!(names, [".zarray", ".zattrs", "0", "data.raw"], "{text}");
    let stored = fs::metadata(store.join("0")).unwrap().len().to_string();
    assert_eq!(rows[2][..2], ["148", stored.as_str()], "{text}");
    assert!(
        rows.iter()
            .all(|row| row[2].len() == 20 && row[2].ends_with('Z')),
        "{text}"
    );
    let none = zarrfs(&["ls", store.join("nothing").to_str().unwrap()]);
    assert_eq!((none.status.code(), none.stdout.len()), (Some(3), 0));
    let group =
        String::from_utf8(zarrfs(&["ls", "-R", test_data("sample.zarr").to_str().unwrap()]).stdout)
            .unwrap();
    assert!(
        group.starts_with("/:\n.zattrs\n") && group.contains("\n\n/ocean/lat:\n.zarray\n"),
        "{group}"
    );
}

#[test]
fn unusual_names_and_values_are_escaped_and_stay_valid_json() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().to_str().unwrap();
    write(directory.path().join(".zgroup"), r#"{"zarr_format": 2}"#);
    let odd = "a\"b\n\u{1b}[31m";
    let made = TestArray::new(
        directory.path().join(odd),
        &[4],
        &[2],
        json!({"dtype": "<f8"}),
    );
    write(
        made.path.join(".zarray"),
        made.text()
            .replace("\"fill_value\":0", "\"fill_value\":NaN"),
    );
    write(made.path.join("7"), "");
    let consolidated =
        json!({"zarr_consolidated_format": 1, "metadata": {format!("{odd}/.zattrs"): {}}});
    write(
        directory.path().join(".zmetadata"),
        consolidated.to_string(),
    );
    let info = parsed(&zarrfs(&["info", "--json", store]));
    assert_eq!(
        (&info[1]["path"], &info[1]["fill_value"]),
        (&json!(format!("/{odd}")), &json!("NaN")),
        "{info}"
    );
    let listed = parsed(&zarrfs(&["ls", "--json", store]));
    assert!(
        listed
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["path"] == format!("/{odd}")),
        "{listed}"
    );
    let kinds = findings(&check(&[store]));
    assert!(
        kinds.contains(&("warning".into(), format!("/{odd}/7"), "outside-grid".into())),
        "{kinds:?}"
    );
    for verb in ["info", "ls", "check"] {
        let text = String::from_utf8(zarrfs(&[verb, store]).stdout).unwrap();
        assert!(
            text.contains(r#"a"b\n\u{1b}[31m"#) && !text.contains('\u{1b}'),
            "{verb}: {text}"
        );
        assert!(
            !text.lines().any(|line| line.starts_with("\\u{1b}")),
            "{verb}: {text}"
        );
    }
}

#[test]
fn a_map_shows_stored_missing_and_damaged_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let made = TestArray::with_chunks(
        directory.path().join("a"),
        &[6, 8],
        &[2, 2],
        json!({"compressor": {"id": "zlib", "level": 1}}),
    );
    fs::remove_file(made.file(&[0, 1])).unwrap();
    write(made.file(&[1, 2]), "");
    write(made.file(&[2, 3]), "no zlib stream");
    let path = made.path.to_str().unwrap();
    let picture = |args: &[&str]| {
        let output = zarrfs(&[&["info", "--map", "--ascii"], args, &[path]].concat());
        assert!(output.status.success() && output.stderr.is_empty());
        String::from_utf8(output.stdout).unwrap()
    };
    let text = picture(&[]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[1..4],
        ["     0  #.##", "     1  ##!#", "     2  ####"],
        "{text}"
    );
    assert!(
        lines[4].starts_with("  11 of 12 chunks stored, ") && lines[4].ends_with(", 1 fail"),
        "{text}"
    );
    assert!(lines[5].contains("/1.2: zlib: empty"), "{text}");
    assert!(picture(&["--deep"]).contains("     2  ###!"));
    let json = parsed(&zarrfs(&["info", "--map", "--deep", "--json", path]));
    let map = &json[0]["map"];
    assert_eq!(
        (&map["grid"], &map["chunks_per_cell"]),
        (&json!([3, 4]), &json!([1, 1, 1]))
    );
    assert_eq!(map["stored"], json!([1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]));
    assert_eq!(map["failed"], json!([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]));
    let bytes: u64 = map["bytes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .sum();
    assert_eq!(json[0]["stored_bytes"], bytes);
    // the locale decides which characters the map uses
    let drawn = |locale: &str| {
        let output = Command::new(ZARRFS)
            .args(["info", "--map", path])
            .env_clear()
            .env("LC_ALL", locale)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(drawn("C.UTF-8").contains('█') && drawn("C").is_ascii());
    assert_eq!(zarrfs(&["info", "--deep", path]).status.code(), Some(2));
}

#[test]
fn a_map_of_a_large_grid_fits_the_screen() {
    let directory = tempfile::tempdir().unwrap();
    let made = TestArray::new(
        directory.path().join("a"),
        &[3000, 4, 5000],
        &[1, 1, 1],
        json!({}),
    );
    for (at, index) in [[0, 0, 0], [2999, 3, 4999], [1500, 2, 17]]
        .iter()
        .enumerate()
    {
        write(made.file(index), [at as u8]);
    }
    let output = zarrfs(&["info", "--map", "--ascii", made.path.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert!(
        lines.len() < 100 && lines.iter().all(|line| line.len() <= 80),
        "{text}"
    );
    let pictures = lines
        .iter()
        .take_while(|line| !line.contains("chunks stored"));
    let cells: String = pictures
        .filter(|line| !line.contains('('))
        .map(|line| line[8..].to_string())
        .collect();
    assert_eq!(
        (
            cells.matches('1').count(),
            cells.len() - cells.matches('.').count()
        ),
        (3, 3),
        "{text}"
    );
    assert!(
        text.contains("3 of 60,000,000 chunks stored, 3 B"),
        "{text}"
    );
    assert!(
        text.contains("a cell is 1 x 70 chunks of 188 planes"),
        "{text}"
    );
}

#[test]
fn a_failed_write_to_standard_output_is_an_error_but_a_closed_pipe_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("sample.zarr");
    copy_tree(&test_data("sample.zarr"), &store);
    let (store, array) = (store.to_str().unwrap(), store.join("lat"));
    let array = array.to_str().unwrap();
    for args in [
        &["info", store][..],
        &["ls", "-lR", store],
        &["check", store],
        &["check", "--json", store],
        &["cat", array],
        &["header", array],
        &["header", "--format", "nii", array],
        &["consolidate", store],
        &["migrate", store],
        &["completions", "bash"],
        &["man"],
        &["--help"],
        &["--version"],
        &["create", "--help"],
        &["help", "mount"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = with_timeout(300, ZARRFS)
            .args(args)
            .stdout(full)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.ends_with("No space left on device\n") && said.lines().count() == 1,
            "{args:?}: {said}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = with_timeout(300, ZARRFS)
            .args(args)
            .stdout(writer)
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), output.stderr.len()),
            (Some(0), 0),
            "{args:?}"
        );
        let output = with_timeout(300, "sh")
            .args(["-c", "exec \"$0\" \"$@\" >&-", ZARRFS])
            .args(args)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.ends_with("standard output: Bad file descriptor\n") && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
    // a closed standard input is an error, not an empty input
    let put = with_timeout(300, "sh")
        .args(["-c", "exec \"$0\" put \"$1\" <&-", ZARRFS, array])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&put.stderr);
    assert!(
        put.status.code() == Some(1) && said.contains("standard input: Bad file descriptor"),
        "{said}"
    );
    // a verb that prints nothing works without standard output
    let put = with_timeout(300, "sh")
        .args(["-c", "exec \"$0\" put \"$1\" >&- </dev/null", ZARRFS, array])
        .output()
        .unwrap();
    assert!(
        put.status.success(),
        "{}",
        String::from_utf8_lossy(&put.stderr)
    );
}

#[test]
fn zarr_json_takes_precedence_over_documents_of_v2() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("x.zarr");
    let array = json!({"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 7,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}, {"name": "gzip"}]});
    let group = r#"{"zarr_format": 3, "node_type": "group"}"#;
    for (path, text) in [
        (".zgroup", r#"{"zarr_format": 2}"#.to_string()),
        ("both/.zgroup", r#"{"zarr_format": 2}"#.to_string()),
        ("both/zarr.json", group.to_string()),
        ("new/zarr.json", array.to_string()),
    ] {
        fs::create_dir_all(store.join(path).parent().unwrap()).unwrap();
        fs::write(store.join(path), text).unwrap();
    }
    let path = store.to_str().unwrap();
    let list = parsed(&zarrfs(&["info", "--json", path]));
    let kinds: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["path"].as_str(), node["kind"].as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            (Some("/"), Some("group")),
            (Some("/both"), Some("group")),
            (Some("/new"), Some("array"))
        ]
    );
    assert!(findings(&check(&[path])).contains(&(
        "warning".into(),
        "/both/.zgroup".into(),
        "mixed-formats".into()
    )));
    let mount = Mount::new(&store, &[]);
    assert!(mount.join("both/zarr.json").exists() && !mount.join("both/.zgroup").exists());
    assert!(mount.join(".zgroup").exists() && !mount.join("zarr.json").exists());
    assert_eq!(fs::read(mount.join("new/data.raw")).unwrap(), [7; 4]);
    assert!(mount.join("new/zarr.json").exists() && !mount.join("new/.zarray").exists());
}

/// Returns the verbs that the help lists.
fn verbs() -> Vec<String> {
    let help = String::from_utf8(zarrfs(&["--help"]).stdout).unwrap();
    let list = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.map(|line| line.split_whitespace().next().unwrap().to_string());
    names.filter(|name| name != "help").collect()
}

#[test]
fn every_verb_has_a_well_formed_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    assert!(
        zarrfs(&["man", "--all", pages.to_str().unwrap()])
            .status
            .success()
    );
    let verbs = verbs();
    assert!(verbs.len() > 10, "{verbs:?}");
    let page = |name: &str| fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
    let main = page("zarrfs");
    for section in [
        "NAME",
        "SYNOPSIS",
        "DESCRIPTION",
        "OPTIONS",
        "EXIT STATUS",
        "FILES",
        "ENVIRONMENT",
        "EXAMPLES",
    ] {
        let heading = if section.contains(' ') {
            format!(".SH \"{section}\"")
        } else {
            format!(".SH {section}")
        };
        assert!(
            main.lines().any(|line| line == heading),
            "{section}: {main}"
        );
    }
    for verb in &verbs {
        let own = page(&format!("zarrfs-{verb}"));
        assert!(
            main.contains(&format!("zarrfs\\-{verb}(1)")),
            "{verb} is not in zarrfs(1)"
        );
        assert!(
            own.contains(".SH \"EXIT STATUS\"") && own.contains("SEE ALSO"),
            "{own}"
        );
        assert_eq!(zarrfs(&["man", verb]).stdout, own.as_bytes());
    }
    let of_overlays = ["diff", "commit", "discard"];
    for verb in of_overlays {
        let own = page(&format!("zarrfs-overlay-{verb}"));
        assert!(
            page("zarrfs-overlay").contains(&format!("zarrfs\\-overlay\\-{verb}(1)")),
            "{verb}"
        );
        assert!(
            own.contains(&format!("\\fBzarrfs overlay {verb}\\fR ")) && own.contains("SEE ALSO"),
            "{own}"
        );
        assert_eq!(
            zarrfs(&["man", &format!("overlay-{verb}")]).stdout,
            own.as_bytes()
        );
    }
    assert_eq!(
        fs::read_dir(&pages).unwrap().count(),
        verbs.len() + of_overlays.len() + 1
    );
    let options = page("zarrfs-mount");
    assert!(
        options.contains("\\fBzarrfs mount\\fR [OPTIONS] <STORE> [MOUNTPOINT]\n"),
        "{options}"
    );
    assert!(
        options.contains("fuse.zarrfs") && options.contains(".SH FILES"),
        "{options}"
    );
    assert!(page("zarrfs-check").contains("outside\\-grid (warning)"));
    assert_eq!(zarrfs(&["man", "nothing"]).status.code(), Some(2));
    if is_installed("groff") {
        for entry in fs::read_dir(&pages).unwrap() {
            let output = Command::new("groff")
                .args(["-man", "-Tutf8", "-ww", "-z"])
                .arg(entry.unwrap().path())
                .output()
                .unwrap();
            assert!(
                output.stderr.is_empty(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[test]
fn a_manual_page_is_shown_on_a_terminal() {
    if !is_installed("script") {
        return;
    }
    let show = |path: &str| {
        let command = format!("{ZARRFS} man check");
        let mut script = with_timeout(300, "script");
        script
            .args(["-qec", &format!("PATH={path} {command}"), "/dev/null"])
            .stdin(Stdio::null());
        let output = script
            .env("MANPAGER", "cat")
            .env("TERM", "dumb")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // without man(1)
    let text = show("/nonexistent");
    assert!(
        text.contains("Find damaged metadata") && text.contains("--deep") && !text.contains(".SH"),
        "{text}"
    );
    if is_installed("man") {
        let text = show("$PATH");
        assert!(
            text.contains("damaged") && text.contains("deep") && !text.contains(".SH"),
            "{text}"
        );
    }
}

#[test]
fn each_option_is_one_line_of_the_help() {
    for verb in verbs() {
        let help = String::from_utf8(zarrfs(&[&verb, "--help"]).stdout).unwrap();
        let lines = help.lines().filter(|line| !line.starts_with("Usage:"));
        for line in lines.clone() {
            assert!(line.chars().count() <= 80, "{verb}: {line}");
        }
        // clap would move the text of a long option to the next line
        let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
        for line in lines.filter(is_option) {
            assert!(
                line.trim_start().contains("  "),
                "{verb}: {line} has no text"
            );
        }
        assert_eq!(
            help,
            String::from_utf8(zarrfs(&[&verb, "-h"]).stdout).unwrap()
        );
    }
    let help = String::from_utf8(zarrfs(&["mount", "--help"]).stdout).unwrap();
    for heading in [
        "Caching",
        "Access",
        "Remote stores",
        "Writing",
        "Other programs",
        "Diagnostics",
    ] {
        assert_eq!(
            help.lines()
                .filter(|line| *line == format!("{heading}:"))
                .count(),
            1,
            "{help}"
        );
    }
}

#[test]
fn shells_accept_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = zarrfs(&["completions", shell]);
        assert!(output.status.success() && output.stderr.is_empty());
        let text = String::from_utf8(output.stdout).unwrap();
        for verb in verbs() {
            assert!(text.contains(&verb), "{shell} has no {verb}");
        }
        if is_installed(shell) {
            let mut child = Command::new(shell)
                .arg("-n")
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            child
                .stdin
                .take()
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert_eq!(zarrfs(&["completions", "nothing"]).status.code(), Some(2));
}

/// Completions offer values of options and, for `umount` and `stats`, the mountpoints of stores.
#[test]
fn bash_completes_values_and_mountpoints() {
    if !is_installed("bash") {
        return announce("skipped: bash is not installed");
    }
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let place = tempfile::tempdir().unwrap();
    let mountpoint = place.path().join("a $(touch evaluated) b");
    fs::create_dir(&mountpoint).unwrap();
    let mounted = zarrfs(&[
        "mount",
        store.path().to_str().unwrap(),
        mountpoint.to_str().unwrap(),
    ]);
    assert!(mounted.status.success());
    let script = r#"
        source <("$0" completions bash)
        complete=$(complete -p zarrfs)
        [[ $complete =~ -F\ ([^ ]+) ]]
        COMP_WORDS=(zarrfs "$@"); COMP_CWORD=$#
        "${BASH_REMATCH[1]}" zarrfs "${@: -1}" "${COMP_WORDS[$#-1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let complete = |words: &[&str]| {
        let mut bash = with_timeout(300, "bash");
        let output = bash
            .args(["-c", script, ZARRFS])
            .args(words)
            .current_dir(place.path())
            .output()
            .unwrap();
        assert!(
            output.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        complete(&["header", "x", "--format", "n"]),
        ["npy", "nrrd", "nii", "nc"]
    );
    assert_eq!(
        complete(&["mount", "x", "y", "--compressor", "z"]),
        ["zlib", "zstd"]
    );
    assert_eq!(complete(&["mount", "x", "y", "--headers", "no"]), ["none"]);
    assert_eq!(complete(&["completions", "ba"]), ["bash"]);
    assert!(complete(&["umount", "--l"]).contains(&"--lazy".to_string()));
    let quoted = format!(r"{}/a\ \$\(touch\ evaluated\)\ b", place.path().display());
    for words in [
        ["stats", ""],
        ["umount", place.path().to_str().unwrap()],
        ["unmount", "/"],
    ] {
        assert!(
            complete(&words).contains(&quoted),
            "{words:?}: {:?}",
            complete(&words)
        );
    }
    assert_eq!(complete(&["stats", "/nothing"]), [""]);
    assert!(unmount(&mountpoint).status.success());
    assert!(!place.path().join("evaluated").exists());
}

/// "Text from a store is escaped before it reaches a terminal": what `header` and `cat` print is
/// exact in a pipe.
#[test]
fn a_terminal_gets_no_control_characters() {
    if !is_installed("script") {
        return announce("skipped: script is not installed");
    }
    let store = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(store.path().join("a"), &[4], &[4], json!({"dtype": "|u1"}));
    fs::write(array.path.join("0"), b"\x1b\x9bA\n").unwrap();
    let attributes = "{\"long_name\": \"\u{9b}2J\u{7f}\u{202e}\"}";
    fs::write(array.path.join(".zattrs"), attributes).unwrap();
    let path = array.path.to_str().unwrap();
    for (verb, raw, shown) in [
        (
            &["header", "--format", "vrt"][..],
            &b"\xc2\x9b2J\x7f\xe2\x80\xae"[..],
            r"\u009b2J\u007f\u202e",
        ),
        (&["cat"], b"\x1b\x9bA\n", "\\u001b\\x9bA\r\n"),
    ] {
        let holds =
            |output: &[u8], what: &[u8]| output.windows(what.len()).any(|found| found == what);
        let piped = zarrfs(&[verb, &[path]].concat()).stdout;
        assert!(holds(&piped, raw), "{verb:?}");
        let command = format!("{ZARRFS} {} {path}", verb.join(" "));
        let terminal = with_timeout(300, "script")
            .args(["-qec", &command, "/dev/null"])
            .output()
            .unwrap()
            .stdout;
        assert!(
            holds(&terminal, shown.as_bytes()),
            "{verb:?}: {}",
            String::from_utf8_lossy(&terminal)
        );
        let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        assert!(
            !std::str::from_utf8(&terminal).unwrap().contains(is_control),
            "{verb:?}"
        );
    }
}

/// Parameters of codecs, names of arrays and error messages contain text of the store. Control
/// characters in it must not reach the terminal or break lines.
#[test]
fn control_characters_of_a_store_are_escaped() {
    let store = tempfile::tempdir().unwrap();
    let hostile = "\u{1b}[2J\r\nfake\u{202e}txt\u{9b}31m\u{7f}";
    let array = |name: &str, compressor: Value, dtype: Value| {
        let path = store.path().join(name);
        fs::create_dir_all(&path).unwrap();
        let document = json!({"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": dtype, "compressor": compressor,
            "fill_value": 0, "order": "C", "filters": null});
        fs::write(path.join(".zarray"), document.to_string()).unwrap();
        fs::write(path.join("0"), b"x").unwrap();
    };
    fs::write(store.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    array("unknown", json!({"id": hostile}), json!("|u1"));
    array(
        "parameter",
        json!({"id": "zlib", "level": 1, "note": hostile}),
        json!("|u1"),
    );
    array("struct", json!(null), json!([[hostile, "|u1"]]));
    array(
        &format!("name{}", hostile.replace('/', "")),
        json!({"id": "zlib", "level": 1}),
        json!("|u1"),
    );
    array("dtype", json!(null), json!(hostile));
    let path = store.path().to_str().unwrap();
    let is_plain = |text: &str| {
        let control = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(
            !text.contains(control) && text.lines().all(|line| !line.starts_with("fake")),
            "{text:?}"
        );
    };
    let mut said = String::new();
    for words in [
        &["info"][..],
        &["info", "--json"],
        &["ls", "-lR"],
        &["ls", "--json", "-R"],
        &["check", "--deep", "--notes"],
        &["check", "--json"],
        &["cat"],
    ] {
        let output = zarrfs(&[words, &[path]].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        is_plain(&text);
        said += &text;
    }
    assert!(said.matches("fake").count() > 8, "{said}");
    let log = tempfile::NamedTempFile::new().unwrap();
    let mount = Mount::new(
        store.path(),
        &[
            "--log-file",
            log.path().to_str().unwrap(),
            "--log-level",
            "debug",
        ],
    );
    for name in ["unknown", "parameter", "struct", "dtype"] {
        let _ = fs::read(mount.join(name).join("0"));
    }
    is_plain(&mount.stats());
    let json = fs::read_to_string(mount.join(".zarrfs/stats.json")).unwrap();
    is_plain(&json);
    let log = fs::read_to_string(log.path()).unwrap();
    is_plain(&log);
    assert!(
        mount.stats().contains("fake") && log.contains("fake"),
        "{log}"
    );
}

/// What has no place in a mount is a line of each command that looks at the whole store, and an
/// exit code.
#[test]
fn what_is_left_out_is_said() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s.zarr");
    write(store.join(".zgroup"), r#"{"zarr_format": 2}"#);
    fs::create_dir(store.join(std::ffi::OsStr::from_bytes(b"\xff"))).unwrap();
    let said = "/: names that are not UTF-8 are left out";
    for args in [
        &["info"][..],
        &["ls"],
        &["ls", "-R"],
        &["check"],
        &["info", "--json"],
    ] {
        let output = zarrfs(&[args, &[store.to_str().unwrap()]].concat());
        let all = [output.stdout, output.stderr].concat();
        let all = String::from_utf8_lossy(&all);
        assert!(
            output.status.code() == Some(1) && all.contains(said),
            "{args:?}: {all}"
        );
    }
    let expected = set(&[("error", "/", "left-out")]);
    assert_eq!(findings(&check(&[store.to_str().unwrap()])), expected);
    let mount = Mount::new(&store, &[]);
    assert!(fs::read_dir(mount.path()).unwrap().count() > 0);
    let stats = fs::read_to_string(mount.path().join(".zarrfs/stats")).unwrap();
    assert!(stats.contains(said), "{stats}");
    fs::remove_dir(store.join(std::ffi::OsStr::from_bytes(b"\xff"))).unwrap();
    // a directory of 300 levels, of which the last ones are cut off
    fs::create_dir_all(store.join("a/".repeat(300))).unwrap();
    for args in [&["info"][..], &["ls", "-R"], &["check"]] {
        let output = zarrfs(&[args, &[store.to_str().unwrap()]].concat());
        let all = [output.stdout, output.stderr].concat();
        let all = String::from_utf8_lossy(&all);
        assert!(
            output.status.code() == Some(1) && all.contains("256 levels deep"),
            "{args:?}: {all:.400}"
        );
    }
}
