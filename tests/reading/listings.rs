//! Comparison of the attributes that a listing returns along with the names, and of those that the
//! kernel caches, with the attributes of lookups in another mount and with the stored files. An
//! open must not trust them.

use crate::support::{Mount, errno, test_data};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

fn write_array(path: &Path, shape: &[u64], chunks: &[u64], more: &str) {
    fs::create_dir_all(path).unwrap();
    let text = format!(
        r#"{{"zarr_format": 2, "shape": {shape:?}, "chunks": {chunks:?}, "dtype": "|u1", "compressor": null,
        "fill_value": 0, "order": "C", "filters": null{more}}}"#
    );
    fs::write(path.join(".zarray"), text).unwrap();
}

/// Returns for each name the attributes that `ls -il --time-style=full-iso -s` shows. Like `ls`,
/// looks up each name as soon as the listing returns it.
fn listed(path: &Path) -> BTreeMap<String, String> {
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let shown = entry
            .metadata()
            .map_or_else(|e| errno::<()>(Err(e)), |m| show(&m));
        (entry.file_name().into_string().unwrap(), shown)
    };
    fs::read_dir(path).unwrap().map(entry).collect()
}

fn show(m: &fs::Metadata) -> String {
    format!(
        "{} {:o} {} {} {} {}",
        m.ino(),
        m.mode(),
        m.len(),
        m.blocks(),
        m.mtime(),
        m.mtime_nsec()
    )
}

/// Adds `path` and the directories below it to `found`.
fn directories(path: &Path, found: &mut Vec<std::path::PathBuf>) {
    found.push(path.to_path_buf());
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            directories(&entry.path(), found);
        }
    }
}

/// `find` asks for the names in each array alone, so no header is made and no file looked up.
#[test]
fn a_walk_looks_up_directories_alone() {
    const ARRAYS: u64 = 20;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    for i in 0..ARRAYS {
        let array = dir.path().join(format!("a{i}"));
        write_array(&array, &[4], &[4], "");
        fs::write(array.join("0"), "1234").unwrap();
    }
    let mount = Mount::new(dir.path(), &[]);
    let mut all = Vec::new();
    directories(mount.path(), &mut all);
    assert_eq!(all.len() as u64, 1 + ARRAYS);
    // the root's documents, `.zarrfs` and the file with the counter come to these
    let walked = mount.counter("live_nodes");
    assert!((ARRAYS..ARRAYS + 8).contains(&walked), "{walked}");
    let names = listed(&all[1]);
    assert!(names.contains_key("data.npy") && names.contains_key("0"));
    assert!(mount.counter("live_nodes") >= walked + names.len() as u64);
}

#[test]
fn a_listing_returns_the_attributes_of_lookups() {
    for store in [
        "sample.zarr",
        "hostile/hierarchy.zarr",
        "hostile/codecs.zarr",
        "hostile/names.zarr",
    ] {
        let mount = Mount::new(&test_data(store), &[]);
        let mut all = Vec::new();
        directories(mount.path(), &mut all);
        let in_listings: Vec<_> = all.iter().map(|path| listed(path)).collect();
        let looked_up = Mount::new(&test_data(store), &[]);
        for (path, listed) in all.iter().zip(in_listings) {
            let path = looked_up
                .path()
                .join(path.strip_prefix(mount.path()).unwrap());
            for (name, shown) in listed {
                let alone = fs::symlink_metadata(path.join(&name))
                    .map_or_else(|e| errno::<()>(Err(e)), |m| show(&m));
                assert_eq!(shown, alone, "{store}: {}/{name}", path.display());
            }
        }
    }
}

#[test]
fn a_large_directory_lists_every_name_once_with_its_attributes() {
    let store = tempfile::tempdir().unwrap();
    write_array(&store.path().join("a"), &[3000], &[1], "");
    for i in 0..3000 {
        fs::write(store.path().join(format!("a/{i}")), vec![1; i % 3]).unwrap();
    }
    let mount = Mount::new(store.path(), &["--headers", "none"]);
    for _ in 0..2 {
        let listed = listed(&mount.join("a"));
        assert_eq!(listed.len(), 3002);
        for i in 0..3000 {
            let shown: Vec<&str> = listed[&i.to_string()].split(' ').collect();
            assert_eq!(
                (shown[2], shown[3]),
                ("1", if i % 3 == 0 { "0" } else { "1" }),
                "{i}"
            );
        }
    }
}

/// "`open` shows the current content of the store", also right after a listing.
#[test]
fn an_open_does_not_trust_the_attributes_of_a_listing() {
    let store = tempfile::tempdir().unwrap();
    let a = store.path().join("a");
    write_array(&a, &[8], &[4], "");
    fs::write(a.join("0"), [1; 4]).unwrap();
    fs::write(a.join("1"), [1; 4]).unwrap();
    let mount = Mount::new(store.path(), &["--headers", "none"]);
    let old = File::open(mount.join("a/0")).unwrap();
    assert_eq!(listed(&mount.join("a")).len(), 4);
    // enlarge two chunks and remove one
    write_array(&a, &[16], &[8], "");
    fs::write(a.join("0"), [2; 8]).unwrap();
    fs::remove_file(a.join("1")).unwrap();
    let mut new = File::open(mount.join("a/0")).unwrap();
    assert_eq!(new.metadata().unwrap().len(), 8);
    let mut bytes = Vec::new();
    new.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, [2; 8]);
    assert_eq!(errno(File::open(mount.join("a/1"))), "ENOENT");
    let mut again = [0; 8];
    assert_eq!(old.read_at(&mut again, 0).unwrap(), 8);
    // a new chunk is there immediately, even if a lookup has just failed
    assert_eq!(errno(fs::metadata(mount.join("a/1"))), "ENOENT");
    fs::write(a.join("1"), [3; 8]).unwrap();
    assert_eq!(fs::read(mount.join("a/1")).unwrap(), [3; 8]);
}

/// Listing names decodes nothing; asking for a size decodes that chunk.
#[test]
fn listing_chunks_of_objects_decodes_nothing() {
    let store = tempfile::tempdir().unwrap();
    let a = store.path().join("a");
    write_array(&a, &[100], &[1], "");
    let text = fs::read_to_string(a.join(".zarray")).unwrap();
    let text = text
        .replace("\"|u1\"", "\"|O\"")
        .replace("\"filters\": null", r#""filters": [{"id": "vlen-utf8"}]"#);
    fs::write(a.join(".zarray"), text).unwrap();
    for i in 0..100 {
        // one string of i bytes
        let chunk = [
            &1u32.to_le_bytes()[..],
            &(i as u32).to_le_bytes(),
            &vec![b'x'; i],
        ]
        .concat();
        fs::write(a.join(i.to_string()), chunk).unwrap();
    }
    let mount = Mount::new(store.path(), &["--headers", "none"]);
    assert_eq!(fs::read_dir(mount.join("a")).unwrap().count(), 101);
    assert_eq!(mount.counter("chunk_decodes"), 0);
    let listed = listed(&mount.join("a"));
    for i in 0..100 {
        assert_eq!(
            listed[&i.to_string()].split(' ').nth(2).unwrap(),
            (8 + i).to_string(),
            "{i}"
        );
    }
}

/// A name that cannot be looked up is listed, and looking it up returns the error.
#[test]
fn a_name_that_cannot_be_looked_up_is_listed() {
    let store = tempfile::tempdir().unwrap();
    let a = store.path().join("a");
    write_array(&a, &[2], &[1], "");
    fs::write(a.join("0"), [1]).unwrap();
    std::os::unix::fs::symlink("/", a.join("1")).unwrap();
    let mount = Mount::new(store.path(), &["--headers", "none"]);
    let listed = listed(&mount.join("a"));
    assert_eq!(listed["1"], "EACCES");
    assert_eq!(errno(fs::metadata(mount.join("a/1"))), "EACCES");
    assert_eq!(listed["0"].split(' ').nth(2), Some("1"));
}

/// The kernel asks the daemon once for extended attributes of other namespaces, such as the access
/// lists of `ls -l`.
#[test]
fn unsupported_extended_attributes_are_asked_for_once() {
    let mount = Mount::new(&test_data("sample.zarr"), &[]);
    let get = |name: &str| {
        rustix::fs::getxattr(
            mount.join("air_temperature/0.0.0"),
            name,
            &mut [0u8; 100][..],
        )
        .err()
    };
    for name in [
        "system.posix_acl_access",
        "security.selinux",
        "security.capability",
    ] {
        assert_eq!(get(name), Some(rustix::io::Errno::OPNOTSUPP), "{name}");
    }
    assert_eq!(get("user.other"), Some(rustix::io::Errno::NODATA));
}

/// The daemon has one descriptor for each directory that a program holds open, or fewer: their
/// number is limited.
#[test]
fn an_open_directory_takes_one_descriptor() {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
    let mount = Mount::new(store.path(), &[]);
    let descriptors = format!("/proc/{}/fd", mount.counter("pid"));
    let count = || fs::read_dir(&descriptors).unwrap().count();
    let before = count();
    let directories: Vec<File> = (0..100)
        .map(|number| {
            let path = mount.join(&number.to_string());
            fs::create_dir(&path).unwrap();
            File::open(path).unwrap()
        })
        .collect();
    let taken = count() - before;
    // some for requests that are still being served
    assert!(taken <= directories.len() + 20, "{taken}");
}
