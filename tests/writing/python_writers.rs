//! Writing to a mount with other programs: zarr-python 2.18 and 3 and xarray create, fill, resize,
//! append to and delete arrays and groups; cp, mv, rsync, tar, sed, vim and git work as on any file
//! system. The files of the store are compared with the input of these programs.

use crate::support::array::TestArray;
use crate::support::tree::files;
use crate::support::{
    Mount, announce, copy_tree, env_path, is_installed, run, run_python, wait_for,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

fn store() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
    directory
}

fn paths(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<String> {
    files
        .keys()
        .map(|path| path.to_str().unwrap().to_string())
        .collect()
}

/// Sets an old modification time on every file below a directory: rsync skips a file whose size and
/// time, in seconds, are those of the file to be replaced.
fn make_old(directory: &Path) {
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for name in files(directory).keys() {
        File::options()
            .write(true)
            .open(directory.join(name))
            .unwrap()
            .set_modified(old)
            .unwrap();
    }
}

/// Creates a store as a program without codecs does: an uncompressed array and a group with
/// attributes.
fn source() -> (tempfile::TempDir, TestArray, TestArray) {
    let directory = store();
    fs::create_dir(directory.path().join("g")).unwrap();
    fs::write(directory.path().join("g/.zgroup"), "{\"zarr_format\": 2}").unwrap();
    fs::write(
        directory.path().join("g/.zattrs"),
        "{\"title\": \"copied\"}",
    )
    .unwrap();
    fs::write(directory.path().join("g/notes.txt"), "notes\n").unwrap();
    let array = TestArray::with_chunks(
        directory.path().join("g/a"),
        &[50, 60],
        &[20, 30],
        json!({"dtype": "<i4"}),
    );
    fs::write(array.path.join(".zattrs"), "{\"units\": \"m\"}").unwrap();
    let nested = json!({"dtype": "<i2", "dimension_separator": "/"});
    let nested =
        TestArray::with_chunks(directory.path().join("g/n"), &[5, 4, 6], &[2, 3, 6], nested);
    (directory, array, nested)
}

fn write_with(variable: &str) {
    let Some(python) = env_path(variable) else {
        return;
    };
    for compressor in ["none", "blosc:zstd:5"] {
        write_stored_with(&python, compressor);
    }
}

fn write_stored_with(python: &Path, compressor: &str) {
    let store = store();
    let direct = tempfile::tempdir().unwrap();
    let mount = Mount::new(store.path(), &["--compressor", compressor]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/writes.py");
    let direct = direct.path().join("direct");
    let output = Command::new("timeout")
        .args(["300".as_ref(), python.as_os_str(), script.as_os_str()])
        .args([mount.path(), store.path(), &direct, Path::new(compressor)])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    announce(said.trim());
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    mount.assert_no_problem();
}

#[test]
fn zarr_python_2_and_xarray_write_through_a_mount() {
    write_with("ZARRFS_TEST_PYTHON");
}

#[test]
fn zarr_python_3_and_xarray_write_through_a_mount() {
    write_with("ZARRFS_TEST_PYTHON3");
}

/// Makes arrays and datasets where nothing exists, with the default modes of zarr-python and
/// xarray, through mounts of stores of both formats. Both versions of zarr-python read them,
/// through the mount and from the store.
#[test]
fn zarr_python_and_xarray_make_what_does_not_exist() {
    let Some(zarr2) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let Some(zarr3) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let readers_of_2 = [&zarr2, &zarr3];
    for (maker, format, readers) in [
        (&zarr2, "2", &readers_of_2[..]),
        (&zarr3, "2", &readers_of_2[..]),
        (&zarr3, "3", &readers_of_2[1..]),
    ] {
        let store = tempfile::tempdir().unwrap();
        if format == "2" {
            fs::write(store.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
        } else {
            fs::write(
                store.path().join("zarr.json"),
                r#"{"zarr_format": 3, "node_type": "group"}"#,
            )
            .unwrap();
        }
        let mount = Mount::new(store.path(), &[]);
        run_python(
            maker,
            "made.py",
            &["make".as_ref(), mount.path(), format.as_ref()],
        );
        for reader in readers {
            for place in [mount.path(), store.path()] {
                run_python(
                    reader,
                    "made.py",
                    &["read".as_ref(), place, format.as_ref()],
                );
            }
        }
        mount.assert_no_problem();
    }
}

/// After any way of copying a tree, the mount shows the files of the source, also over an array
/// with other codecs.
#[test]
fn trees_can_be_copied_into_a_mount() {
    let (source, array, nested) = source();
    let from = source.path().join("g");
    let from = from.to_str().unwrap();
    let mut ways: Vec<(&str, Vec<&str>)> =
        vec![("cp", vec!["-r", from, "."]), ("cp", vec!["-a", from, "."])];
    let archive = source.path().join("g.tar");
    run(
        "tar",
        &[
            "cf",
            archive.to_str().unwrap(),
            "-C",
            source.path().to_str().unwrap(),
            "g",
        ],
        source.path(),
    );
    ways.push(("tar", vec!["xf", archive.to_str().unwrap()]));
    if is_installed("rsync") {
        ways.push(("rsync", vec!["-a", from, "."]));
        ways.push(("rsync", vec!["-a", "--inplace", from, "."]));
    }
    for (program, args) in ways {
        // copy into an empty store
        let new = store();
        let mount = Mount::new(new.path(), &[]);
        run(program, &args, mount.path());
        let wanted = files(Path::new(from));
        let mut found = files(&new.path().join("g"));
        // files of a level of chunk keys may be copied before it can be recognized as one
        found.retain(|path, _| !(path.starts_with("n") && path.ends_with(".zgroup")));
        assert_eq!(paths(&found), paths(&wanted), "{program} {args:?}");
        assert!(found == wanted, "{program} {args:?}: other bytes");
        assert_eq!(
            fs::read(mount.join("g/a/data.raw")).unwrap(),
            array.flat,
            "{program} {args:?}"
        );
        assert_eq!(
            fs::read(mount.join("g/n/data.raw")).unwrap(),
            nested.flat,
            "{program} {args:?}"
        );
        mount.assert_no_problem();
        drop(mount);

        // copy over a compressed array
        let old = store();
        copy_tree(Path::new(from), &old.path().join("g"));
        fs::remove_dir_all(old.path().join("g/a")).unwrap();
        let more = json!({"dtype": "<i4", "compressor": {"id": "zlib", "level": 1}});
        let mut there = TestArray::with_chunks(old.path().join("g/a"), &[50, 60], &[20, 30], more);
        there.change(&[1, 1], 5);
        there.put(&[1, 1]);
        fs::remove_file(there.file(&[2, 1])).unwrap();
        make_old(old.path());
        let mount = Mount::new(old.path(), &[]);
        run(program, &args, mount.path());
        assert_eq!(
            fs::read(mount.join("g/a/data.raw")).unwrap(),
            array.flat,
            "{program} {args:?}"
        );
        assert_eq!(
            fs::read(mount.join("g/n/data.raw")).unwrap(),
            nested.flat,
            "{program} {args:?}"
        );
        drop(mount);
        let document = fs::read_to_string(old.path().join("g/a/.zarray")).unwrap();
        assert!(document.contains("zlib"), "{program} {args:?}: {document}");
        assert_eq!(
            paths(&files(&old.path().join("g"))),
            paths(&wanted),
            "{program} {args:?}"
        );
        let mount = Mount::new(old.path(), &["--read-only"]);
        assert_eq!(
            fs::read(mount.join("g/a/data.raw")).unwrap(),
            array.flat,
            "{program} {args:?}"
        );
        assert_eq!(
            fs::read(mount.join("g/n/data.raw")).unwrap(),
            nested.flat,
            "{program} {args:?}"
        );
    }
}

/// The test also moves a chunk to another file system and back.
#[test]
fn trees_can_be_copied_and_moved_within_a_mount() {
    let (source, array, _) = source();
    let store = store();
    copy_tree(&source.path().join("g"), &store.path().join("g"));
    let mount = Mount::new(store.path(), &[]);
    run("mkdir", &["below"], mount.path());
    run(
        "cp",
        &["-r", "g/.zattrs", "g/notes.txt", "below"],
        mount.path(),
    );
    run("mv", &["g/notes.txt", "below/moved.txt"], mount.path());
    run("mv", &["g", "below/g"], mount.path());
    assert_eq!(
        fs::read(mount.join("below/g/a/data.raw")).unwrap(),
        array.flat
    );
    // to another file system and back
    let outside = tempfile::tempdir().unwrap();
    let chunk = outside.path().join("chunk");
    let path = mount.join("below/g/a/0.0");
    run(
        "mv",
        &[path.to_str().unwrap(), chunk.to_str().unwrap()],
        mount.path(),
    );
    assert_eq!(fs::read(&chunk).unwrap(), array.chunk(&[0, 0]));
    assert!(!store.path().join("below/g/a/0.0").exists());
    run(
        "mv",
        &[chunk.to_str().unwrap(), path.to_str().unwrap()],
        mount.path(),
    );
    run(
        "cp",
        &["-r", "below", outside.path().to_str().unwrap()],
        mount.path(),
    );
    assert_eq!(
        fs::read(outside.path().join("below/g/a/data.raw")).unwrap(),
        array.flat
    );
    assert_eq!(
        fs::read(outside.path().join("below/moved.txt")).unwrap(),
        b"notes\n"
    );
    run("rm", &["-r", "below"], mount.path());
    assert_eq!(paths(&files(store.path())), [".zgroup"]);
}

/// Editors save documents in place, by way of a backup, or by way of a new file.
#[test]
fn editors_can_edit_documents() {
    let (source, array, _) = source();
    let mount = Mount::new(source.path(), &[]);
    let attributes = || fs::read_to_string(source.path().join("g/.zattrs")).unwrap();
    run(
        "sed",
        &["-i", "s/copied/edited/", "g/.zattrs"],
        mount.path(),
    );
    assert_eq!(attributes(), "{\"title\": \"edited\"}");
    run(
        "sed",
        &["-i.bak", "s/edited/again/", "g/.zattrs"],
        mount.path(),
    );
    assert_eq!(attributes(), "{\"title\": \"again\"}");
    assert_eq!(
        fs::read_to_string(source.path().join("g/.zattrs.bak")).unwrap(),
        "{\"title\": \"edited\"}"
    );
    fs::remove_file(mount.join("g/.zattrs.bak")).unwrap();
    let print = |script| run("sh", &["-c", script], mount.path());
    print("printf '{\"title\": \"printed\"' > g/.zattrs || true");
    // the kernel says some time after the close that no descriptor is left; until then an append
    // goes on with what was written
    wait_for("the document to be refused", || {
        mount.stats().contains("not stored: ")
    });
    print("printf '}' >> g/.zattrs || true");
    assert_eq!(
        attributes(),
        "{\"title\": \"again\"}",
        "half a document is none"
    );
    run(
        "sh",
        &[
            "-c",
            "{ printf '{\"title\": '; echo '\"printed\"}'; } > g/.zattrs",
        ],
        mount.path(),
    );
    assert_eq!(attributes(), "{\"title\": \"printed\"}\n");
    run(
        "sed",
        &["-i", "s/\\[50,/[45,/", "g/a/.zarray"],
        mount.path(),
    );
    assert_eq!(
        fs::read(mount.join("g/a/data.raw")).unwrap(),
        array.flat[..45 * 60 * 4]
    );
    if is_installed("vim") {
        for (n, options) in ["backupcopy=no", "backupcopy=yes", "nowritebackup", "backup"]
            .iter()
            .enumerate()
        {
            for name in ["g/.zattrs", "g/notes.txt"] {
                let set = format!("set {options}");
                let change = format!("%s/printed.*\\|notes.*/printed{n}\"}}/e");
                run(
                    "vim",
                    &[
                        "-u", "NONE", "-es", "-c", &set, "-c", &change, "-c", "wq", name,
                    ],
                    mount.path(),
                );
                let wanted = if name.ends_with(".txt") {
                    format!("printed{n}\"}}\n")
                } else {
                    format!("{{\"title\": \"printed{n}\"}}\n")
                };
                assert_eq!(
                    fs::read_to_string(source.path().join(name)).unwrap(),
                    wanted,
                    "{options}"
                );
                let _ = fs::remove_file(mount.join(&format!("{name}~")));
            }
        }
    }
    drop(mount);
    let chunks = paths(&files(&source.path().join("g/a")));
    assert_eq!(chunks.len(), 2 + array.grid().len(), "{chunks:?}");
    assert_eq!(
        paths(&files(source.path()))[..4],
        [".zgroup", "g/.zattrs", "g/.zgroup", "g/a/.zarray"]
    );
}

/// git creates, links, renames, maps and removes files all the time.
#[test]
fn a_git_repository_works_beside_the_data() {
    if !is_installed("git") {
        return;
    }
    let (source, ..) = source();
    let mount = Mount::new(source.path(), &[]);
    let git = |args: &[&str]| {
        let name = [
            "-c",
            "user.name=n",
            "-c",
            "user.email=e@example.org",
            "-c",
            "init.defaultBranch=main",
        ];
        run("git", &[&name, args].concat(), mount.path());
    };
    git(&["init", "-q"]);
    for n in 0..5 {
        fs::write(mount.join("g/notes.txt"), format!("notes {n}\n")).unwrap();
        git(&["add", "g/notes.txt", "g/.zattrs"]);
        git(&["commit", "-q", "-m", "change"]);
    }
    git(&["gc", "-q"]);
    git(&["fsck", "--strict"]);
    git(&["checkout", "-q", "HEAD~2"]);
    assert_eq!(
        fs::read_to_string(source.path().join("g/notes.txt")).unwrap(),
        "notes 2\n"
    );
    drop(mount);
    run("git", &["fsck", "--strict"], source.path());
}
