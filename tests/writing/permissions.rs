//! "No file grants other users more than the stored files it is made of": private files of a store
//! stay private in a mount that other users may use. The tests set modes of stored files and check
//! the modes in the mount and, as another user, which files `cat` can read.

use crate::support;
use crate::support::array::TestArray;
use crate::support::{Mount, ZARRFS, announce, is_installed, servers, with_timeout, zarrfs};
use rustix::fs::{lgetxattr, llistxattr};
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink,
};
use std::path::Path;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Sets the mode 0644 on every file of a tree and 0755 on every directory, regardless of the umask
/// of the tests.
fn open_up(path: &Path) {
    let is_directory = path.is_dir();
    set_mode(path, if is_directory { 0o755 } else { 0o644 });
    if is_directory {
        fs::read_dir(path)
            .unwrap()
            .for_each(|entry| open_up(&entry.unwrap().path()));
    }
}

/// Creates a group of arrays that all users may read.
fn store(names: &[&str], more: serde_json::Value) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    for name in names {
        let made = TestArray::with_chunks(store.path().join(name), &[4, 6], &[2, 3], more.clone());
        fs::write(
            made.path.join(".zattrs"),
            br#"{"_ARRAY_DIMENSIONS": ["y", "x"], "secret": 1}"#,
        )
        .unwrap();
    }
    open_up(store.path());
    store
}

/// Returns the modes of files of a mount, in octal.
fn modes(mount: &Mount, names: &[&str]) -> String {
    let mode = |name: &&str| {
        let stat = fs::symlink_metadata(mount.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        format!("{:o}", stat.mode() & 0o7777)
    };
    names.iter().map(mode).collect::<Vec<_>>().join(" ")
}

const FILES: [&str; 9] = [
    "",
    ".zarray",
    ".zattrs",
    "data.raw",
    "data.npy",
    "README.txt",
    "data.vrt",
    "0.0",
    "1.1",
];

/// Returns the modes of an array's directory and files, in octal.
fn modes_of(mount: &Mount, array: &str) -> String {
    let names = FILES.map(|name| format!("{array}/{name}"));
    modes(mount, &names.each_ref().map(String::as_str))
}

#[test]
fn a_file_grants_only_what_all_its_sources_grant() {
    let store = store(
        &["public", "closed", "document", "attributes", "chunk"],
        json!({}),
    );
    let private = |path: &str, mode: u32| set_mode(&store.path().join(path), mode);
    private("closed", 0o700);
    private("document/.zarray", 0o600);
    private("attributes/.zattrs", 0o640);
    private("chunk/0.0", 0o400);
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(
        modes_of(&mount, "public"),
        "755 644 644 644 644 644 644 644 644"
    );
    // a directory above the array keeps others out, and the modes of the array itself do not change
    assert_eq!(
        modes_of(&mount, "closed"),
        "700 644 644 600 600 600 600 644 644"
    );
    assert_eq!(
        modes_of(&mount, "document"),
        "755 600 644 600 600 600 600 644 644"
    );
    assert_eq!(
        modes_of(&mount, "attributes"),
        "755 644 640 644 640 640 640 644 644"
    );
    assert_eq!(
        modes_of(&mount, "chunk"),
        "755 644 644 644 644 644 644 400 644"
    );
    assert_eq!(
        modes(&mount, &[".zarrfs/sync", ".zarrfs/stats", ".zarrfs"]),
        "600 644 755"
    );
    drop(mount);
    let mount = Mount::new(store.path(), &["--umask", "007", "--read-only"]);
    assert_eq!(
        modes_of(&mount, "attributes"),
        "550 440 440 440 440 440 440 440 440"
    );
    assert_eq!(
        modes_of(&mount, "closed"),
        "500 440 440 400 400 400 400 440 440"
    );
    assert_eq!(modes(&mount, &[".zarrfs/sync"]), "400");
}

/// An array's headers contain coordinates and grid mappings of other arrays. `.zmetadata` and
/// `dataset.nc` contain all documents of a group.
#[test]
fn headers_and_containers_respect_the_modes_of_other_arrays() {
    let store = store(&["a"], json!({"dtype": "<i4"}));
    let path = |name: &str| store.path().join(name);
    for (name, shape, attributes) in [("x", 6, r#"["x"]"#), ("y", 4, r#"["y"]"#)] {
        let made = TestArray::with_chunks(path(name), &[shape], &[shape], json!({"dtype": "<i4"}));
        let text = format!(r#"{{"_ARRAY_DIMENSIONS": {attributes}}}"#);
        fs::write(made.path.join(".zattrs"), text).unwrap();
    }
    fs::write(
        path(".zmetadata"),
        br#"{"metadata": {}, "zarr_consolidated_format": 1}"#,
    )
    .unwrap();
    open_up(store.path());
    let shown = |private: &str, mode: u32| {
        set_mode(&path(private), mode);
        let mount = Mount::new(store.path(), &["--containers", "nc"]);
        let modes = modes(
            &mount,
            &[
                ".zmetadata",
                "dataset.nc",
                "a/data.npy",
                "a/data.raw",
                "a/README.txt",
                "a/data.vrt",
            ],
        );
        open_up(&path(private));
        modes
    };
    assert_eq!(shown(".zgroup", 0o644), "644 644 644 644 644 644");
    assert_eq!(shown("x/.zarray", 0o600), "600 600 644 644 600 600");
    assert_eq!(shown("x", 0o711), "600 600 644 644 600 600");
    assert_eq!(shown("y/.zattrs", 0o600), "600 600 644 644 600 600");
    assert_eq!(shown(".zgroup", 0o600), "600 600 644 644 644 644");
    assert_eq!(shown(".zmetadata", 0o640), "640 644 644 644 644 644");
}

/// With `--consolidated use` documents come from one document of the root, which may be private
/// while those that it replaces are not. Directories keep their modes.
#[test]
fn what_comes_from_consolidated_metadata_has_its_permissions() {
    let store = store(&["a", "closed"], json!({}));
    let location = store.path().to_str().unwrap();
    let done = |args: &[&str]| assert!(zarrfs(args).status.success(), "{args:?}");
    done(&["consolidate", location]);
    for (consolidated, documents) in [
        (".zmetadata", &["a/.zarray", "a/.zattrs"][..]),
        ("zarr.json", &["a/zarr.json"]),
    ] {
        if consolidated == "zarr.json" {
            open_up(store.path());
            done(&["migrate", "--to", "3", location]);
        }
        open_up(store.path());
        set_mode(&store.path().join("closed"), 0o700);
        for (mode, expected) in [(0o644, "644"), (0o640, "640"), (0o600, "600")] {
            set_mode(&store.path().join(consolidated), mode);
            let mount = Mount::new(
                store.path(),
                &[
                    "--consolidated",
                    "use",
                    "--allow-other",
                    "--containers",
                    "nc",
                ],
            );
            for name in ["a/data.raw", "a/data.npy", "a/README.txt", "a/data.vrt"]
                .iter()
                .chain(documents)
            {
                assert_eq!(modes(&mount, &[name]), expected, "{consolidated} {name}");
            }
            assert_eq!(
                modes(&mount, &["", "a", "a/0.0", "closed"]),
                "755 755 644 700",
                "{consolidated}"
            );
            assert_eq!(
                modes(&mount, &["closed/data.raw", "dataset.nc"]),
                "600 600",
                "{consolidated}"
            );
            // listings return the same modes
            let listed = fs::read_dir(mount.join("a"))
                .unwrap()
                .map(|entry| entry.unwrap());
            let mut raw = listed.filter(|entry| entry.file_name() == "data.raw");
            assert_eq!(
                format!(
                    "{:o}",
                    raw.next().unwrap().metadata().unwrap().mode() & 0o777
                ),
                expected
            );
            let Some((_, listed)) = as_nobody(&mount, "getfattr", &["-d", "-m", "-", "a"]) else {
                continue;
            };
            assert_eq!(
                listed.contains("secret") && listed.contains("shape"),
                mode == 0o644,
                "{listed}"
            );
            assert!(
                mode == 0o644 || !listed.contains("secret") && !listed.contains("shape"),
                "{listed}"
            );
            for name in documents.iter().chain(&["a/data.raw", "a/README.txt"]) {
                let (readable, said) = as_nobody(&mount, "cat", &[name]).unwrap();
                assert_eq!(readable, mode == 0o644, "{name}: {said}");
            }
        }
    }
}

/// The path of a stored file may lead through a directory that the mount does not show: a level of
/// chunk keys, or the directory of a symbolic link's target.
#[test]
fn the_modes_of_hidden_directories_are_respected() {
    let store = store(&["a", "closed/deep"], json!({"dimension_separator": "/"}));
    set_mode(&store.path().join("a/1"), 0o700);
    set_mode(&store.path().join("closed"), 0o700);
    fs::write(store.path().join("closed/note"), b"secret").unwrap();
    set_mode(&store.path().join("closed/note"), 0o644);
    symlink("closed/deep", store.path().join("link")).unwrap();
    symlink("closed/note", store.path().join("file")).unwrap();
    symlink("a/.zattrs", store.path().join("open")).unwrap();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(
        modes(&mount, &["a/0.0", "a/0.1", "a/1.0", "a/1.1"]),
        "644 644 600 600"
    );
    assert_eq!(
        modes(&mount, &["closed", "closed/note", "open"]),
        "700 644 644"
    );
    assert_eq!(
        modes(
            &mount,
            &["file", "link", "link/.zarray", "link/data.raw", "link/0.0"]
        ),
        "600 700 600 600 600"
    );
    // listings return the same modes
    let listed = fs::read_dir(mount.join("a"))
        .unwrap()
        .map(|entry| entry.unwrap());
    let listed: Vec<_> = listed
        .filter(|entry| entry.file_name().to_str().unwrap().starts_with("1."))
        .collect();
    assert!(
        listed.len() == 2
            && listed
                .iter()
                .all(|entry| entry.metadata().unwrap().mode() & 0o777 == 0o600)
    );
}

#[test]
fn files_of_an_archive_have_the_permissions_of_the_archive() {
    let store = store(&["a"], json!({}));
    let folder = tempfile::tempdir().unwrap();
    let archive = servers::zip(store.path(), folder.path(), "s.zip", true);
    for (mode, expected) in [(0o600, "400 500 400 400"), (0o644, "444 555 444 444")] {
        set_mode(&archive, mode);
        let mount = Mount::new(&archive, &[]);
        assert_eq!(
            modes(&mount, &[".zgroup", "a", "a/data.raw", "a/0.0"]),
            expected
        );
    }
}

/// Returns whether the modes of a mount let all users read a file in it.
fn all_may_read(mount: &Mount, name: &str) -> bool {
    let levels = Path::new(name).ancestors();
    let mut modes = levels.map(|level| {
        let stat = fs::metadata(mount.join(level.to_str().unwrap()));
        stat.unwrap_or_else(|e| panic!("{}: {e}", level.display()))
            .mode()
    });
    let file = modes.next().unwrap();
    file & 0o004 != 0 && modes.all(|directory| directory & 0o001 != 0)
}

/// "No file grants other users more than the stored files it is made of", in whatever kind of store
/// they lie: a closed directory closes what the store shows of the files below it. Directories
/// above what the command names do not count, for no kind.
#[test]
fn closed_directories_and_files_close_what_comes_from_them_in_each_kind_of_store() {
    const ICE: [&str; 3] = ["size-64/data.raw", "size-64/0", "native/data.raw"];
    const ICE_HISTORY: [&str; 2] = ["branch/main/size-64/data.raw", "branch/main/native/0"];
    const INLINE: [&str; 2] = ["size-64/data.raw", "size-64/0"];
    const NATIVE: [&str; 2] = ["native/data.raw", "native/0"];
    const ARRAY: [&str; 3] = ["a/data.raw", "a/0.0", "a/README.txt"];
    const NESTED: [&str; 2] = ["r.icechunk/size-64/0", "r.icechunk/native/data.raw"];
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let array = store(&["a"], json!({}));
    support::copy_tree(array.path(), &path("s.zarr"));
    fs::create_dir_all(path("stores/closed")).unwrap();
    servers::zip(array.path(), &path("stores/closed"), "s.zarr.zip", true);
    fs::create_dir_all(path("references/files")).unwrap();
    fs::write(path("references/files/x"), [7; 4]).unwrap();
    let document = json!({"version": 1, "refs": {
        ".zgroup": r#"{"zarr_format": 2}"#,
        "a/.zarray": r#"{"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "compressor": null,
            "fill_value": 0, "order": "C", "filters": null}"#,
        "a/0": ["files/x", 0, 4],
    }});
    fs::write(path("references/r.json"), document.to_string()).unwrap();
    for version in ["v1", "v2"] {
        let from = support::test_data(&format!("icechunk/{version}-inline"));
        support::copy_tree(&from, &path(version));
        support::copy_tree(&from, &path(&format!("stores/{version}/r.icechunk")));
    }
    open_up(folder.path());
    let manifests = |version: &str| -> Vec<String> {
        let directory = format!("{version}/manifests");
        let names = fs::read_dir(path(&directory)).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.map(|name| format!("{directory}/{name}")).collect()
    };
    let [in_v1, in_v2] = ["v1", "v2"].map(manifests);
    let both: &[&[&str]] = &[&[], &["--overlay", "OVERLAY"]];
    let alone: &[&[&str]] = &[&[]];
    let history: &[&[&str]] = &[&["--history"]];
    let stores: &[&[&str]] = &[&["--stores"]];
    // the mounted store, its options, the closed files, and the files that only the owner then reads
    let one = |name: &str| vec![name.to_string()];
    for (location, options, closed, files) in [
        ("s.zarr", both, one("s.zarr"), &ARRAY[..]),
        ("s.zarr", both, one("s.zarr/a"), &ARRAY),
        ("v1", both, one("v1"), &ICE),
        ("v1", both, one("v1/refs"), &ICE),
        ("v1", both, one("v1/refs/branch.main"), &ICE),
        ("v1", both, one("v1/snapshots"), &ICE),
        ("v1", both, one("v1/manifests"), &ICE),
        ("v1", both, one("v1/chunks"), &NATIVE),
        ("v1", both, in_v1, &INLINE),
        ("v2", both, one("v2"), &ICE),
        ("v2", both, one("v2/repo"), &ICE),
        ("v2", both, one("v2/snapshots"), &ICE),
        ("v2", both, one("v2/manifests"), &ICE),
        ("v2", both, one("v2/chunks"), &NATIVE),
        ("v2", both, in_v2, &INLINE),
        ("v1", history, one("v1"), &ICE_HISTORY),
        ("v1", history, one("v1/refs"), &ICE_HISTORY),
        ("v2", history, one("v2"), &ICE_HISTORY),
        ("v2", history, one("v2/repo"), &ICE_HISTORY),
        ("v2", history, one("v2/snapshots"), &ICE_HISTORY),
        ("v2", history, one("v2/manifests"), &ICE_HISTORY),
        ("stores/v1", stores, one("stores/v1/r.icechunk"), &NESTED),
        (
            "stores/v1",
            stores,
            one("stores/v1/r.icechunk/refs"),
            &NESTED,
        ),
        ("stores/v2", stores, one("stores/v2/r.icechunk"), &NESTED),
        (
            "stores/v2",
            stores,
            one("stores/v2/r.icechunk/snapshots"),
            &NESTED,
        ),
        (
            "stores",
            stores,
            one("stores/closed"),
            &["closed/s.zarr.zip/a/data.raw", "closed/s.zarr.zip/a/0.0"],
        ),
        (
            "stores/closed/s.zarr.zip",
            both,
            one("stores/closed/s.zarr.zip"),
            &ARRAY,
        ),
        (
            "references/r.json",
            alone,
            one("references/files"),
            &["a/0"],
        ),
        (
            "references/r.json",
            alone,
            one("references/files/x"),
            &["a/0"],
        ),
        (
            "references/r.json",
            alone,
            one("references/r.json"),
            &["a/data.raw", "a/0"],
        ),
        // directories above the mounted store
        ("s.zarr", alone, one(""), &[]),
        ("v2", alone, one(""), &[]),
        ("stores/closed/s.zarr.zip", alone, one("stores/closed"), &[]),
        ("references/r.json", alone, one("references"), &[]),
    ] {
        for options in options {
            let overlay = tempfile::tempdir().unwrap();
            set_mode(overlay.path(), 0o755);
            let overlay = overlay.path().to_str().unwrap();
            let options = options.iter().map(|option| match *option {
                "OVERLAY" => overlay,
                option => option,
            });
            let options: Vec<&str> = options.collect();
            let open = Mount::new(&path(location), &options);
            let what = format!("{location} {options:?}, {closed:?}");
            for name in files {
                assert!(
                    all_may_read(&open, name),
                    "{what}: {name} while all is open"
                );
            }
            drop(open);
            for name in &closed {
                let is_directory = path(name).is_dir();
                set_mode(&path(name), if is_directory { 0o700 } else { 0o600 });
            }
            let mount = Mount::new(&path(location), &options);
            for name in files {
                assert!(!all_may_read(&mount, name), "{what}: {name}");
            }
            if files.is_empty() {
                let name = if location == "v2" {
                    ICE[0]
                } else {
                    "a/data.raw"
                };
                assert!(all_may_read(&mount, name), "{what}: {name}");
            }
            drop(mount);
            for name in &closed {
                open_up(&path(name));
            }
        }
    }
}

/// The store's users and groups may differ from those of the mount.
#[test]
fn each_class_gets_the_rights_that_its_members_have_in_the_store() {
    let store = store(&["a"], json!({}));
    let file = store.path().join("a/0.0");
    if chown(&file, Some(1234), Some(4321)).is_err() {
        return announce("skipped: giving files away takes root");
    }
    for (mode, alone, group, both) in [
        (0o640, "600", "640", "640"),
        (0o604, "600", "604", "604"),
        (0o644, "644", "644", "644"),
        (0o066, "0", "0", "66"),
    ] {
        set_mode(&file, mode);
        for (options, expected) in [
            (&[][..], alone),
            (&["--gid", "4321"], group),
            (&["--gid", "4321", "--uid", "1234"], both),
        ] {
            let mount = Mount::new(store.path(), options);
            assert_eq!(modes(&mount, &["a/0.0"]), expected, "{mode:o} {options:?}");
        }
    }
}

#[test]
fn a_private_file_stays_private_while_it_is_written() {
    let store = store(&["a"], json!({}));
    set_mode(&store.path().join("a/.zattrs"), 0o600);
    let mount = Mount::new(store.path(), &[]);
    let mut file = OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(mount.join("a/.zattrs"))
        .unwrap();
    file.write_all(b"{").unwrap();
    assert_eq!(modes(&mount, &["a/.zattrs"]), "600");
    file.write_all(b"}").unwrap();
    drop(file);
    assert_eq!(modes(&mount, &["a/.zattrs"]), "600");
    assert_eq!(
        fs::metadata(store.path().join("a/.zattrs")).unwrap().mode() & 0o777,
        0o600
    );
}

/// All users can list the names of extended attributes, but only users who may read the document
/// can read their values.
#[test]
fn extended_attributes_reveal_no_values_of_private_documents() {
    let store = store(&["a"], json!({}));
    let names = |mount: &Mount| {
        let mut names = vec![0; 4096];
        let length = llistxattr(mount.join("a"), &mut names).unwrap();
        String::from_utf8(names[..length].to_vec()).unwrap()
    };
    let value =
        |mount: &Mount, name: &str| lgetxattr(mount.join("a"), name, &mut [0; 100][..]).is_ok();
    for (document, attribute, other) in [
        (".zattrs", "user.zarr.attrs.secret", "user.zarr.shape"),
        (".zarray", "user.zarr.shape", "user.zarr.attrs.secret"),
    ] {
        set_mode(&store.path().join("a").join(document), 0o600);
        let mount = Mount::new(store.path(), &["--allow-other"]);
        assert!(
            names(&mount).contains(attribute) && !value(&mount, attribute) && value(&mount, other),
            "{document}"
        );
        if let Some(listed) = as_nobody(&mount, "getfattr", &["-m", "-", "a"]) {
            assert!(
                listed.1.contains(other) && !listed.1.contains(attribute),
                "{document}: {}",
                listed.1
            );
        }
        set_mode(&store.path().join("a").join(document), 0o644);
    }
    let mount = Mount::new(store.path(), &[]);
    assert!(value(&mount, "user.zarr.attrs.secret") && value(&mount, "user.zarr.shape"));
}

/// Runs a program as an unprivileged user in the directory of a mount, as [`as_nobody_in`] does.
fn as_nobody(mount: &Mount, program: &str, args: &[&str]) -> Option<(bool, String)> {
    as_nobody_in(mount.path(), program, args)
}

/// Runs a program as an unprivileged user in a directory, which that user may be unable to reach by
/// its path. Returns whether the program succeeded, and its output. Returns `None`, and announces
/// that the test is skipped, if this process cannot become another user.
fn as_nobody_in(directory: &Path, program: &str, args: &[&str]) -> Option<(bool, String)> {
    if !rustix::process::getuid().is_root() || !is_installed("setpriv") || !is_installed(program) {
        announce("skipped: to become another user takes root and setpriv");
        return None;
    }
    let mut command = with_timeout(60, "setpriv");
    command
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            program,
        ])
        .args(args);
    let output = command.current_dir(directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), said))
}

/// "Others read the counters, not the problems": a problem may quote private documents.
#[test]
fn problems_are_shown_to_the_owner_alone() {
    let store = store(&["a"], json!({}));
    fs::write(
        store.path().join("a/.zarray"),
        r#"{"zarr_format": 2, "secret": 7}"#,
    )
    .unwrap();
    set_mode(&store.path().join("a/.zarray"), 0o600);
    let log = store.path().join("log");
    let mount = Mount::new(
        store.path(),
        &["--allow-other", "--log-file", log.to_str().unwrap()],
    );
    for _ in 0..2 {
        assert!(fs::read(mount.join("a/0.0")).is_err());
    }
    assert_eq!(fs::metadata(&log).unwrap().mode() & 0o777, 0o600);
    let own = mount.stats();
    let problem = own
        .lines()
        .find_map(|line| line.strip_prefix("problem "))
        .unwrap();
    let words: Vec<&str> = problem.split_whitespace().collect();
    assert!(
        words[0].ends_with('Z') && words[1].ends_with('x') && words[2].starts_with("/a"),
        "{problem}"
    );
    assert!(
        own.contains("last_error ") && !own.contains("problems_shown_to"),
        "{own}"
    );
    let owners: serde_json::Value = serde_json::from_slice(
        &zarrfs(&["stats", "--json", mount.path().to_str().unwrap()]).stdout,
    )
    .unwrap();
    let first = &owners["problems"][0];
    assert!(
        first["count"].as_u64() >= Some(1) && first["time"].as_str().unwrap().ends_with('Z'),
        "{first}"
    );
    assert!(
        first["message"].as_str().unwrap().starts_with("/a"),
        "{first}"
    );
    let shown =
        String::from_utf8(zarrfs(&["stats", mount.path().to_str().unwrap()]).stdout).unwrap();
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("problem ") && line.ends_with(words.last().unwrap())),
        "{shown}"
    );
    for name in ["stats", "stats.json", "metrics"] {
        let Some((done, text)) = as_nobody(&mount, "cat", &[&format!(".zarrfs/{name}")]) else {
            return;
        };
        assert!(
            done && text.contains("problems_met") && !text.contains("/a"),
            "{name}: {text}"
        );
        assert_eq!(
            text.contains("problems_shown_to"),
            name != "metrics",
            "{text}"
        );
    }
    let list = as_nobody(&mount, ZARRFS, &["stats", "."]);
    assert!(list.is_none_or(|(done, text)| done && text.contains("problems shown to")));
}

/// A user in a mount below a directory that only its owner may enter sees the counters.
#[test]
fn counters_are_shown_where_the_path_of_the_mount_leads_through_a_private_directory() {
    let store = store(&["a"], json!({}));
    let private = tempfile::tempdir().unwrap();
    let mountpoint = private.path().join("b/mnt");
    fs::create_dir_all(&mountpoint).unwrap();
    set_mode(private.path(), 0o700);
    let path = mountpoint.to_str().unwrap();
    assert!(
        zarrfs(&[
            "mount",
            "--allow-other",
            store.path().to_str().unwrap(),
            path
        ])
        .status
        .success()
    );
    let said =
        ["", "a"].map(|below| as_nobody_in(&mountpoint.join(below), ZARRFS, &["stats", "."]));
    assert!(support::unmount(path).status.success());
    for (done, text) in said.into_iter().flatten() {
        assert!(done && text.contains("problems shown to"), "{text}");
    }
}

/// The kernel enforces the modes: another user can read exactly the files that the store grants.
#[test]
fn another_user_cannot_read_private_files() {
    let store = store(&["public", "private"], json!({}));
    fs::write(store.path().join("notes"), b"secret").unwrap();
    for name in ["notes", "private/.zarray", "private/0.0"] {
        set_mode(&store.path().join(name), 0o600);
    }
    let mount = Mount::new(store.path(), &["--allow-other"]);
    let read = |name: &str| as_nobody(&mount, "cat", &[name]);
    for name in [
        "public/data.raw",
        "public/0.0",
        "public/README.txt",
        "private/1.1",
        ".zarrfs/stats",
    ] {
        let Some((done, said)) = read(name) else {
            return;
        };
        assert!(done, "{name}: {said}");
    }
    for name in [
        "private/data.raw",
        "private/data.npy",
        "private/README.txt",
        "private/0.0",
        "notes",
        ".zarrfs/sync",
    ] {
        let Some((done, said)) = read(name) else {
            return;
        };
        assert!(
            !done && said.contains("Permission denied"),
            "{name}: {said}"
        );
    }
}

/// "What a program creates has the mode that it asks for", and replaced files keep theirs.
#[test]
fn modes_of_new_files_and_directories_are_those_of_their_creation() {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let mount = Mount::new(store.path(), &[]);
    let create = |name: &str, mode: u32, text: &str| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode);
        let mut file = options.open(mount.join(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    let modes = |name: &str| {
        // the mount stores a document when the program has closed it
        mount.stats();
        [mount.path(), store.path()]
            .map(|path| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777)
    };
    fs::DirBuilder::new()
        .mode(0o700)
        .create(mount.join("g"))
        .unwrap();
    assert_eq!(modes("g"), [0o700; 2]);
    create("g/plain", 0o600, "x");
    create("g/.zattrs", 0o600, "{}");
    create("g/open", 0o644, "x");
    assert_eq!(
        [modes("g/plain"), modes("g/.zattrs"), modes("g/open")],
        [[0o600; 2], [0o600; 2], [0o644; 2]]
    );
    // they are rewritten, also by a rename
    create("g/plain", 0o644, "y");
    create("g/.zattrs", 0o644, r#"{"a": 1}"#);
    create("g/private.tmp", 0o600, r#"{"a": 2}"#);
    fs::rename(mount.join("g/private.tmp"), mount.join("g/.zattrs")).unwrap();
    assert_eq!([modes("g/plain"), modes("g/.zattrs")], [[0o600; 2]; 2]);
    create("private.tmp", 0o600, r#"{"a": 3}"#);
    fs::rename(mount.join("private.tmp"), mount.join(".zattrs")).unwrap();
    assert_eq!(modes(".zattrs"), [0o600; 2]);
    // programs that create private files set the mode later: rsync, install, tar
    create("g/rsync", 0o600, "x");
    set_mode(&mount.join("g/rsync"), 0o644);
    set_mode(&mount.join("g"), 0o755);
    assert_eq!([modes("g/rsync"), modes("g")], [[0o644; 2], [0o755; 2]]);
    if is_installed("install") {
        fs::write(store.path().join("source"), "{}").unwrap();
        support::run(
            "install",
            &["-m", "644", "source", "g/.zattrs"],
            mount.path(),
        );
        support::run(
            "install",
            &["-m", "640", "source", "installed"],
            mount.path(),
        );
        assert_eq!(
            [modes("g/.zattrs"), modes("installed")],
            [[0o644; 2], [0o640; 2]]
        );
    }
    // an array takes them on
    let document = r#"{"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "compressor": null, "fill_value": 0,
        "order": "C", "filters": null}"#;
    fs::DirBuilder::new()
        .mode(0o750)
        .create(mount.join("a"))
        .unwrap();
    create("a/.zarray", 0o640, document);
    create("a/0", 0o600, "x");
    assert_eq!(
        [modes("a"), modes("a/.zarray"), modes("a/0")],
        [[0o750; 2], [0o640; 2], [0o600; 2]]
    );
    assert_eq!(
        fs::metadata(mount.join("a/data.raw"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o640
    );
}

pub const V2: &str = r#"{"zarr_format": 2, "shape": [2, 2], "chunks": [1, 2], "dtype": "|u1",
    "compressor": null, "fill_value": 0, "order": "C", "filters": null,
    "dimension_separator": "/"}"#;
pub const V3: &str = r#"{"zarr_format": 3, "node_type": "array", "shape": [2, 2],
    "data_type": "uint8", "fill_value": 0, "codecs": [{"name": "bytes"}],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}},
    "chunk_key_encoding": {"name": "default"}}"#;

/// "Each bit of a mode that is accepted is shown and stored": while a file is created, while it is
/// written, and later, whatever file it is.
#[test]
fn each_bit_of_a_mode_is_shown_and_stored() {
    let store = store(&[], json!({}));
    let mount = Mount::new(store.path(), &[]);
    let mode_of = |path: &Path| {
        let stat = fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        stat.mode() & 0o7777
    };
    for (array, document, text, stored) in [
        ("v2", ".zarray", V2, "v2/1/0"),
        ("v3", "zarr.json", V3, "v3/c/1/0"),
    ] {
        fs::create_dir(mount.join(array)).unwrap();
        let document = format!("{array}/{document}");
        let chunk = format!("{array}/1.0");
        let note = format!("{array}/note");
        for (name, text, stored) in [
            (&document, text, document.as_str()),
            (&chunk, "xy", stored),
            (&note, "#!/bin/sh\necho done\n", note.as_str()),
        ] {
            let path = mount.join(name);
            let check = |mode: u32, when: &str| {
                assert_eq!(mode_of(&path), mode, "{name} {when}");
                // a file is stored when the daemon has seen its close
                mount.stats();
                if when != "open" {
                    assert_eq!(mode_of(&store.path().join(stored)), mode, "{name} {when}");
                }
            };
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o640);
            let mut file = options.open(&path).unwrap();
            check(0o640, "open");
            let set = |mode| file.set_permissions(fs::Permissions::from_mode(mode));
            for mode in [0o755, 0o604, 0o777] {
                set(mode).unwrap();
                check(mode, "open");
            }
            file.write_all(text.as_bytes()).unwrap();
            check(0o777, "open");
            drop(file);
            check(0o777, "closed");
            for mode in [0o444, 0o755, 0o600, 0o664] {
                set_mode(&path, mode);
                check(mode, "changed");
            }
            for mode in [0o4755, 0o2644, 0o1777] {
                let e = fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap_err();
                assert_eq!(e.raw_os_error(), Some(libc::EPERM), "{name} {mode:o}");
            }
            check(0o664, "after a mode that is refused");
            // a chunk is removed and created under another umask
            if name != &document {
                fs::remove_file(&path).unwrap();
                support::run(
                    "sh",
                    &["-c", &format!("umask 077; printf xy > {name}")],
                    mount.path(),
                );
                check(0o600, "created with a umask");
            }
        }
        for mode in [0o700, 0o775, 0o751] {
            set_mode(&mount.join(array), mode);
            let modes = [mount.path(), store.path()].map(|path| mode_of(&path.join(array)));
            assert_eq!(modes, [mode; 2], "{array}");
        }
    }
    let script = mount.join("script");
    fs::write(&script, "#!/bin/sh\necho done\n").unwrap();
    set_mode(&script, 0o755);
    assert_eq!(support::run("./script", &[], mount.path()).trim(), "done");
    let copies = tempfile::tempdir().unwrap();
    let to = copies.path().join("script");
    support::run("cp", &["-a", "script", to.to_str().unwrap()], mount.path());
    assert_eq!(mode_of(&to), 0o755);
    drop(mount);
    let mount = Mount::new(store.path(), &["--noexec"]);
    assert_eq!(mode_of(&mount.join("script")), 0o755);
    let refused = std::process::Command::new(mount.join("script")).output();
    let refused = refused.map(|output| output.status).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

/// A chunk in a shard and a file that is made of several have no mode of their own.
#[test]
fn a_mode_that_can_t_be_stored_is_refused() {
    let store = tempfile::tempdir().unwrap();
    let codecs = r#"{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1],
        "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}]}}"#;
    let document = V3.replace(r#"{"name": "bytes"}"#, codecs);
    fs::write(store.path().join("zarr.json"), document).unwrap();
    let mount = Mount::new(store.path(), &[]);
    fs::write(mount.join("0.0"), "x").unwrap();
    drop(mount);
    let mount = Mount::new(store.path(), &[]);
    for name in ["0.0", "data.raw", "data.npy"] {
        let shown = fs::metadata(mount.join(name)).unwrap().mode() & 0o777;
        set_mode(&mount.join(name), shown);
        for mode in [0o600, 0o755] {
            let set = fs::set_permissions(mount.join(name), fs::Permissions::from_mode(mode));
            assert_eq!(
                set.unwrap_err().raw_os_error(),
                Some(libc::EPERM),
                "{name} {mode:o}"
            );
        }
    }
}
