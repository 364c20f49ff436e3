//! The mount written by programs that are not ours: zarr-python 2.18 and 3 and xarray make, fill, resize, append to and
//! delete arrays and groups through it; cp, mv, rsync, tar, sed, vim and git do what they do anywhere. What the store
//! then holds is compared with what they were given.

mod support;

use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::made::Made;
use support::{Mount, copy_tree, provided, say};

fn store() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
    directory
}

fn run(program: &str, args: &[&str], directory: &Path) {
    let mut command = Command::new("timeout");
    // no configuration of whoever runs the test
    command.arg("60").arg(program).args(args).current_dir(directory).env("HOME", directory).env("LC_ALL", "C");
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {} {said}", output.status);
}

/// False, said aloud, if a program is not there.
fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()));
    if !found {
        say(&format!("skipped: {program} is not installed; scripts/test installs it"));
    }
    found
}

/// Every file below a directory and its bytes.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut all, mut directories) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(|e| e.unwrap()) {
            match entry.file_type().unwrap().is_dir() {
                true => directories.push(entry.path()),
                false => {
                    let name = entry.path().strip_prefix(root).unwrap().to_path_buf();
                    all.insert(name, fs::read(entry.path()).unwrap());
                }
            }
        }
    }
    all
}

fn names(files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<String> {
    files.keys().map(|path| path.to_str().unwrap().to_string()).collect()
}

/// A hierarchy as a program without codecs has it: an uncompressed array and a group with attributes.
fn source() -> (tempfile::TempDir, Made, Made) {
    let directory = store();
    fs::create_dir(directory.path().join("g")).unwrap();
    fs::write(directory.path().join("g/.zgroup"), "{\"zarr_format\": 2}").unwrap();
    fs::write(directory.path().join("g/.zattrs"), "{\"title\": \"copied\"}").unwrap();
    fs::write(directory.path().join("g/notes.txt"), "notes\n").unwrap();
    let made = Made::full(directory.path().join("g/a"), &[50, 60], &[20, 30], json!({"dtype": "<i4"}));
    fs::write(made.path.join(".zattrs"), "{\"units\": \"m\"}").unwrap();
    let nested = json!({"dtype": "<i2", "dimension_separator": "/"});
    let nested = Made::full(directory.path().join("g/n"), &[5, 4, 6], &[2, 3, 6], nested);
    (directory, made, nested)
}

fn write_with(variable: &str) {
    let Some(python) = provided(variable) else { return };
    for compressor in ["none", "blosc:zstd:5"] {
        write_stored_with(&python, compressor);
    }
}

fn write_stored_with(python: &Path, compressor: &str) {
    let (store, direct) = (store(), tempfile::tempdir().unwrap());
    let mount = Mount::new(store.path(), &["--compressor", compressor]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/writes.py");
    let direct = direct.path().join("direct");
    let output = Command::new("timeout")
        .args(["300".as_ref(), python.as_os_str(), script.as_os_str()])
        .args([mount.path(), store.path(), &direct, Path::new(compressor)])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    say(said.trim());
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!mount.stats().contains("problem"), "{}", mount.stats());
}

#[test]
fn zarr_python_2_and_xarray() {
    write_with("ZARRFS_TEST_PYTHON");
}

#[test]
fn zarr_python_3_and_xarray() {
    write_with("ZARRFS_TEST_PYTHON3");
}

/// Each way to copy gives the store what the source has, and changes an array of other codecs to what the source has.
#[test]
fn trees_are_copied() {
    let (source, made, nested) = source();
    let from = source.path().join("g");
    let from = from.to_str().unwrap();
    let mut ways: Vec<(&str, Vec<&str>)> = vec![("cp", vec!["-r", from, "."]), ("cp", vec!["-a", from, "."])];
    let archive = source.path().join("g.tar");
    run("tar", &["cf", archive.to_str().unwrap(), "-C", source.path().to_str().unwrap(), "g"], source.path());
    ways.push(("tar", vec!["xf", archive.to_str().unwrap()]));
    if has("rsync") {
        ways.push(("rsync", vec!["-a", from, "."]));
        ways.push(("rsync", vec!["-a", "--inplace", from, "."]));
    }
    for (program, args) in ways {
        // into nothing
        let new = store();
        let mount = Mount::new(new.path(), &[]);
        run(program, &args, mount.path());
        let wanted = files(Path::new(from));
        let mut found = files(&new.path().join("g"));
        // of a level of chunk keys that was copied before it could be known for one
        found.retain(|path, _| !(path.starts_with("n") && path.ends_with(".zgroup")));
        assert_eq!(names(&found), names(&wanted), "{program} {args:?}");
        assert!(found == wanted, "{program} {args:?}: other bytes");
        assert_eq!(fs::read(mount.join("g/a/data.raw")).unwrap(), made.flat, "{program} {args:?}");
        assert_eq!(fs::read(mount.join("g/n/data.raw")).unwrap(), nested.flat, "{program} {args:?}");
        assert!(!mount.stats().contains("problem"), "{program} {args:?}: {}", mount.stats());
        drop(mount);

        // over what is there, which is stored with a codec
        let old = store();
        copy_tree(Path::new(from), &old.path().join("g"));
        fs::remove_dir_all(old.path().join("g/a")).unwrap();
        let more = json!({"dtype": "<i4", "compressor": {"id": "zlib", "level": 1}});
        let mut there = Made::full(old.path().join("g/a"), &[50, 60], &[20, 30], more);
        there.change(&[1, 1], 5);
        there.put(&[1, 1]);
        fs::remove_file(there.file(&[2, 1])).unwrap();
        let mount = Mount::new(old.path(), &[]);
        run(program, &args, mount.path());
        assert_eq!(fs::read(mount.join("g/a/data.raw")).unwrap(), made.flat, "{program} {args:?}");
        assert_eq!(fs::read(mount.join("g/n/data.raw")).unwrap(), nested.flat, "{program} {args:?}");
        drop(mount);
        let document = fs::read_to_string(old.path().join("g/a/.zarray")).unwrap();
        assert!(document.contains("zlib"), "{program} {args:?}: {document}");
        assert_eq!(names(&files(&old.path().join("g"))), names(&wanted), "{program} {args:?}");
        let mount = Mount::new(old.path(), &["--read-only"]);
        assert_eq!(fs::read(mount.join("g/a/data.raw")).unwrap(), made.flat, "{program} {args:?}");
        assert_eq!(fs::read(mount.join("g/n/data.raw")).unwrap(), nested.flat, "{program} {args:?}");
    }
}

/// A tree is copied and moved within the mount, and out of it again.
#[test]
fn trees_are_copied_within_the_mount() {
    let (source, made, _) = source();
    let store = store();
    copy_tree(&source.path().join("g"), &store.path().join("g"));
    let mount = Mount::new(store.path(), &[]);
    run("mkdir", &["below"], mount.path());
    run("cp", &["-r", "g/.zattrs", "g/notes.txt", "below"], mount.path());
    run("mv", &["g/notes.txt", "below/moved.txt"], mount.path());
    run("mv", &["g", "below/g"], mount.path());
    assert_eq!(fs::read(mount.join("below/g/a/data.raw")).unwrap(), made.flat);
    // from another file system, and to it
    let outside = tempfile::tempdir().unwrap();
    let (chunk, path) = (outside.path().join("chunk"), mount.join("below/g/a/0.0"));
    run("mv", &[path.to_str().unwrap(), chunk.to_str().unwrap()], mount.path());
    assert_eq!(fs::read(&chunk).unwrap(), made.chunk(&[0, 0]));
    assert!(!store.path().join("below/g/a/0.0").exists());
    run("mv", &[chunk.to_str().unwrap(), path.to_str().unwrap()], mount.path());
    run("cp", &["-r", "below", outside.path().to_str().unwrap()], mount.path());
    assert_eq!(fs::read(outside.path().join("below/g/a/data.raw")).unwrap(), made.flat);
    assert_eq!(fs::read(outside.path().join("below/moved.txt")).unwrap(), b"notes\n");
    run("rm", &["-r", "below"], mount.path());
    assert_eq!(names(&files(store.path())), [".zgroup"]);
}

/// Editors save documents as their users set them: in place, or by way of a backup or a new file.
#[test]
fn documents_are_edited() {
    let (source, made, _) = source();
    let mount = Mount::new(source.path(), &[]);
    let attributes = || fs::read_to_string(source.path().join("g/.zattrs")).unwrap();
    run("sed", &["-i", "s/copied/edited/", "g/.zattrs"], mount.path());
    assert_eq!(attributes(), "{\"title\": \"edited\"}");
    run("sed", &["-i.bak", "s/edited/again/", "g/.zattrs"], mount.path());
    assert_eq!(attributes(), "{\"title\": \"again\"}");
    assert_eq!(fs::read_to_string(source.path().join("g/.zattrs.bak")).unwrap(), "{\"title\": \"edited\"}");
    fs::remove_file(mount.join("g/.zattrs.bak")).unwrap();
    run("sh", &["-c", "printf '{\"title\": \"printed\"' > g/.zattrs; printf '}' >> g/.zattrs || true"], mount.path());
    assert_eq!(attributes(), "{\"title\": \"again\"}", "half a document is none");
    run("sh", &["-c", "{ printf '{\"title\": '; echo '\"printed\"}'; } > g/.zattrs"], mount.path());
    assert_eq!(attributes(), "{\"title\": \"printed\"}\n");
    run("sed", &["-i", "s/^ *50,/    45,/", "g/a/.zarray"], mount.path());
    assert_eq!(fs::read(mount.join("g/a/data.raw")).unwrap(), made.flat[..45 * 60 * 4]);
    if has("vim") {
        for (n, options) in ["backupcopy=no", "backupcopy=yes", "nowritebackup", "backup"].iter().enumerate() {
            for name in ["g/.zattrs", "g/notes.txt"] {
                let (set, change) = (format!("set {options}"), format!("%s/printed.*\\|notes.*/printed{n}\"}}/e"));
                run("vim", &["-u", "NONE", "-es", "-c", &set, "-c", &change, "-c", "wq", name], mount.path());
                let wanted = if name.ends_with(".txt") {
                    format!("printed{n}\"}}\n")
                } else {
                    format!("{{\"title\": \"printed{n}\"}}\n")
                };
                assert_eq!(fs::read_to_string(source.path().join(name)).unwrap(), wanted, "{options}");
                let _ = fs::remove_file(mount.join(&format!("{name}~")));
            }
        }
    }
    drop(mount);
    let chunks = names(&files(&source.path().join("g/a")));
    assert_eq!(chunks.len(), 2 + made.grid().len(), "{chunks:?}");
    assert_eq!(names(&files(source.path()))[..4], [".zgroup", "g/.zattrs", "g/.zgroup", "g/a/.zarray"]);
}

/// A repository of git beside the data: files made, linked, replaced by renaming, mapped and removed all the time.
#[test]
fn git_keeps_a_repository() {
    if !has("git") {
        return;
    }
    let (source, ..) = source();
    let mount = Mount::new(source.path(), &[]);
    let git = |args: &[&str]| {
        let name = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main"];
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
    assert_eq!(fs::read_to_string(source.path().join("g/notes.txt")).unwrap(), "notes 2\n");
    drop(mount);
    run("git", &["fsck", "--strict"], source.path());
}
