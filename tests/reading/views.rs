//! `--views` on a real mount: physical values beside packed arrays, compared with what xarray reads
//! from the store and would store (`python/views.py`), and slices, compared with the flat bytes.

use crate::support;
use crate::support::array::{TestArray, replace};
use crate::support::shared_map::SharedMap;
use crate::support::{
    Mount, ZARRFS, env_path, errno, listed, overwrite, run, run_python, test_data, zarrfs,
};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BOTH: [&str; 2] = ["--views", "unpacked,slices"];

/// Creates a group with packed big-endian integers, their rows in chunks of their own.
fn store() -> (tempfile::TempDir, TestArray) {
    let more = json!({"dtype": ">i2", "fill_value": 0, "compressor": {"id": "zlib", "level": 1}});
    TestArray::in_group(
        &[3, 4, 6],
        &[1, 4, 6],
        more,
        r#"{"scale_factor": 0.5, "units": "K"}"#,
    )
}

/// Returns the physical values of the flat bytes.
fn values(flat: &[u8]) -> Vec<u8> {
    let items = flat.as_chunks().0.iter();
    items
        .flat_map(|item| (f64::from(i16::from_be_bytes(*item)) * 0.5).to_le_bytes())
        .collect()
}

/// Runs verbs of the script on a mount of a new store of many arrays.
fn with_packed_arrays(python: &str, verbs: &str, args: &[&str]) {
    let Some(python) = env_path(python) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("packed.zarr");
    run_python(&python, "views.py", &[Path::new("make"), &store]);
    let mount = Mount::new(&store, args);
    support::announce(
        run_python(
            &python,
            "views.py",
            &[Path::new(verbs), mount.path(), &store],
        )
        .trim(),
    );
}

#[test]
fn physical_values_are_those_of_xarray() {
    with_packed_arrays("ZARRFS_TEST_PYTHON", "read,write,read,programs", &BOTH);
    with_packed_arrays("ZARRFS_TEST_PYTHON3", "read,write,read", &BOTH);
    with_packed_arrays(
        "ZARRFS_TEST_PYTHON",
        "read,programs",
        &[&BOTH[..], &["--read-only"]].concat(),
    );
}

#[test]
fn the_sample_store_has_the_values_of_xarray() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let sample = test_data("sample.zarr");
    let mount = Mount::new(&sample, &BOTH);
    for group in ["", "ocean"] {
        run_python(
            &python,
            "views.py",
            &[PathBuf::from("read"), mount.join(group), sample.join(group)],
        );
    }
    mount.assert_no_problem();
}

#[test]
fn views_are_shown_on_request() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &[]);
    assert_eq!(
        listed(mount.path()),
        BTreeSet::from([".zgroup", "a"].map(String::from))
    );
    assert!(!mount.join("a.unpacked").exists() && !mount.join("a.slices").exists());
    drop(mount);
    let mount = Mount::new(folder.path(), &["-o", "views=unpacked:slices,headers=npy"]);
    assert_eq!(
        listed(mount.path()),
        BTreeSet::from([".zgroup", "a", "a.unpacked", "a.slices"].map(String::from))
    );
    assert_eq!(
        listed(&mount.join("a.unpacked")),
        BTreeSet::from(["data.raw", "data.npy"].map(String::from))
    );
    assert_eq!(
        listed(&mount.join("a.slices")),
        BTreeSet::from(["0", "1", "2"].map(String::from))
    );
    assert_eq!(
        listed(&mount.join("a.slices/2")),
        BTreeSet::from(["data.raw", "data.npy"].map(String::from))
    );
    for name in [
        "a.slices/3",
        "a.slices/00",
        "a.slices/0/0",
        "a.unpacked/0",
        "b.unpacked",
        ".unpacked",
    ] {
        assert!(!mount.join(name).exists(), "{name}");
    }
    let wanted = values(&array.flat);
    assert!(fs::read(mount.join("a.unpacked/data.raw")).unwrap() == wanted);
    assert_eq!(
        fs::metadata(mount.join("a.unpacked/data.raw"))
            .unwrap()
            .len(),
        wanted.len() as u64
    );
    // without scaling there is nothing to unpack
    fs::write(mount.join("a/.zattrs"), "{}").unwrap();
    assert_eq!(
        errno(File::open(mount.join("a.unpacked/data.raw"))),
        "ENOENT"
    );
    let output = Command::new(ZARRFS)
        .args(["mount", "--views", "packed"])
        .arg(folder.path())
        .arg("/")
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("is not one of all, none, unpacked, slices")
    );
}

/// Returns the extended attributes of a file.
fn attributes(path: &Path) -> BTreeMap<String, String> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    let value = |name: &str| {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        String::from_utf8(value[..length].to_vec()).unwrap()
    };
    names
        .map(|name| std::str::from_utf8(name).unwrap())
        .map(|name| (name.to_string(), value(name)))
        .collect()
}

/// Extended attributes are those of what a view shows, not of the items that are stored.
#[test]
fn views_have_extended_attributes() {
    let attributes_of_array =
        r#"{"_ARRAY_DIMENSIONS": ["t", "y", "x"], "scale_factor": 0.5, "units": "K"}"#;
    let (folder, array) = store();
    fs::write(array.path.join(".zattrs"), attributes_of_array).unwrap();
    let mount = Mount::new(folder.path(), &BOTH);
    let expected = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| (format!("user.{name}"), value.to_string()))
            .collect()
    };
    let of_values = expected(&[
        ("zarr.shape", "[3,4,6]"),
        ("zarr.dtype", "\"<f8\""),
        ("zarr.dimension_names", r#"["t","y","x"]"#),
        ("zarr.attrs._ARRAY_DIMENSIONS", r#"["t","y","x"]"#),
        ("zarr.attrs.units", "\"K\""),
    ]);
    for name in ["a.unpacked", "a.unpacked/data.raw", "a.unpacked/data.npy"] {
        assert_eq!(attributes(&mount.join(name)), of_values, "{name}");
    }
    let of_plane = expected(&[
        ("zarr.shape", "[4,6]"),
        ("zarr.dtype", "\">i2\""),
        ("zarr.fill_value", "0"),
        ("zarr.dimension_names", r#"["y","x"]"#),
        ("zarr.attrs.scale_factor", "0.5"),
        ("zarr.attrs.units", "\"K\""),
        ("zarrfs.flat_offset", "96"),
    ]);
    for name in ["a.slices/2", "a.slices/2/data.raw"] {
        assert_eq!(attributes(&mount.join(name)), of_plane, "{name}");
    }
    let set = rustix::fs::setxattr(
        mount.join("a.slices/2"),
        "user.zarr.attrs.x",
        b"1",
        rustix::fs::XattrFlags::empty(),
    );
    assert_eq!(set, Err(rustix::io::Errno::PERM));
    let removed =
        rustix::fs::removexattr(mount.join("a.unpacked/data.raw"), "user.zarr.attrs.units");
    assert_eq!(removed, Err(rustix::io::Errno::PERM));
}

/// GDAL removes the files of a data set before it creates them again, the header under another name.
#[test]
fn gdal_creates_the_files_of_views_that_exist() {
    if !support::is_installed("gdal_translate") {
        return;
    }
    let (folder, array) = store();
    let copies = tempfile::tempdir().unwrap();
    let mount = Mount::new(folder.path(), &BOTH);
    for view in ["a.slices/1", "a.unpacked"] {
        let copy = copies.path().join(view.replace('/', "-"));
        fs::create_dir(&copy).unwrap();
        for name in ["data.raw", "data.raw.hdr"] {
            fs::copy(mount.join(view).join(name), copy.join(name)).unwrap();
        }
        let wanted = fs::read(copy.join("data.raw")).unwrap();
        let before = fs::read(mount.join(view).join("data.raw.hdr")).unwrap();
        let zeros = vec![0; wanted.len()];
        fs::write(mount.join(view).join("data.raw"), &zeros).unwrap();
        let (from, to) = (copy.join("data.raw"), mount.join(view).join("data.raw"));
        let args = [
            "--config",
            "GDAL_PAM_ENABLED",
            "NO",
            "-q",
            "-of",
            "ENVI",
            from.to_str().unwrap(),
            to.to_str().unwrap(),
        ];
        assert_eq!(run("gdal_translate", &args, copies.path()), "");
        assert!(fs::read(&to).unwrap() == wanted, "{view}");
        assert!(fs::read(mount.join(view).join("data.raw.hdr")).unwrap() == before);
        assert!(
            fs::read(mount.join("a/data.raw")).unwrap() == array.flat,
            "{view}"
        );
    }
}

/// `values.txt` holds the items of the view: physical values, and the rows of a plane of an array
/// of any size.
#[test]
fn values_of_views_are_shown_as_text() {
    let more = json!({"dtype": "<i2", "fill_value": -9});
    let packing = r#"{"scale_factor": 0.5, "missing_value": 3}"#;
    let (folder, mut array) = TestArray::in_group(&[2, 2, 3], &[1, 2, 3], more.clone(), packing);
    array.flat = (0..12i16).flat_map(i16::to_le_bytes).collect();
    [[0, 0, 0], [1, 0, 0]]
        .iter()
        .for_each(|chunk| array.put(chunk));
    let large = TestArray::with_chunks(
        folder.path().join("large"),
        &[3, 600, 500],
        &[1, 600, 500],
        more,
    );
    let mount = Mount::new(folder.path(), &["--views", "all", "--headers", "txt"]);
    let text = |name: &str| {
        let path = mount.join(name);
        let size = fs::metadata(&path).unwrap().len();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(size, text.len() as u64, "{name}");
        text
    };
    assert_eq!(
        text("a.unpacked/values.txt"),
        "0 0.5 1\nnan 2 2.5\n\n3 3.5 4\n4.5 5 5.5\n"
    );
    assert_eq!(text("a.slices/1/values.txt"), "6 7 8\n9 10 11\n");
    // a write through any file shows in the next text
    assert_eq!(
        overwrite(&mount.join("a/data.raw"), 12, &20i16.to_le_bytes()),
        "ok"
    );
    assert_eq!(text("a.slices/1/values.txt"), "20 7 8\n9 10 11\n");
    assert!(text("a.unpacked/values.txt").contains("10 3.5 4\n"));
    assert_eq!(
        errno(fs::write(mount.join("a.slices/1/values.txt"), "1")),
        "ok"
    );
    assert_eq!(text("a.slices/1/values.txt"), "20 7 8\n9 10 11\n");
    assert!(!mount.join("large/values.txt").exists());
    let plane: Vec<String> = large.flat.as_chunks().0[300_000..301_000]
        .iter()
        .map(|n| i16::from_le_bytes(*n).to_string())
        .collect();
    let rows = [plane[..500].join(" "), plane[500..].join(" ")]
        .map(|row| row + "\n")
        .concat();
    assert!(text("large.slices/1/values.txt").starts_with(&rows));
    assert_eq!(
        listed(&mount.join("large.slices/1")),
        BTreeSet::from(["data.raw", "values.txt"].map(String::from))
    );
}

/// `zarrfs ls` lists views as a mount does.
#[test]
fn views_are_listed_without_a_mount() {
    let (folder, _) = store();
    let path = folder.path().to_str().unwrap();
    let said = zarrfs(&["ls", "-R", "-l", "--views", "all", "--headers", "npy", path]);
    let said = String::from_utf8(said.stdout).unwrap();
    let names: Vec<&str> = said
        .lines()
        .map(|line| line.split_whitespace().last().unwrap_or_default())
        .collect();
    for name in [
        "a.slices/",
        "a.unpacked/",
        "/a.unpacked:",
        "/a.slices:",
        "/a.slices/2:",
    ] {
        assert!(names.contains(&name), "{name}: {said}");
    }
    assert!(
        said.contains(" data.raw") && said.contains("576 "),
        "{said}"
    );
    let said = zarrfs(&["ls", path]);
    assert_eq!(
        String::from_utf8(said.stdout).unwrap().lines().last(),
        Some("a/")
    );
}

/// Writes through each file are seen through every other one, immediately.
#[test]
fn files_of_an_array_and_of_its_views_agree() {
    let (folder, mut array) = store();
    let mount = Mount::new(folder.path(), &BOTH);
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount.join(name))
            .unwrap()
    };
    let [flat, unpacked, npy, plane] = [
        "a/data.raw",
        "a.unpacked/data.raw",
        "a.unpacked/data.npy",
        "a.slices/1/data.raw",
    ]
    .map(open);
    let agree = |array: &TestArray| {
        let wanted = values(&array.flat);
        let read = |file: &File, offset, len| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, offset).unwrap();
            bytes
        };
        assert!(read(&flat, 0, 144) == array.flat, "flat");
        assert!(read(&unpacked, 0, 576) == wanted, "unpacked");
        assert!(read(&unpacked, 5, 100) == wanted[5..105], "a part");
        assert!(read(&npy, 128, 576) == wanted, "npy");
        assert!(read(&plane, 0, 48) == array.flat[48..96], "plane");
        assert!(
            fs::read(mount.join("a/1.0.0")).unwrap() == array.flat[48..96],
            "chunk"
        );
    };
    agree(&array);
    flat.write_all_at(&[0, 10, 0, 20], 50).unwrap();
    array.flat[50..54].copy_from_slice(&[0, 10, 0, 20]);
    agree(&array);
    unpacked
        .write_all_at(&[7.5f64, -1.0].map(f64::to_le_bytes).concat(), 26 * 8)
        .unwrap();
    array.flat[52..56].copy_from_slice(&[0, 15, 0xff, 0xfe]);
    agree(&array);
    npy.write_all_at(&3f64.to_le_bytes(), 128 + 71 * 8).unwrap();
    array.flat[142..].copy_from_slice(&[0, 6]);
    agree(&array);
    plane.write_all_at(b"odd", 47 - 2).unwrap();
    array.flat[48 + 45..96].copy_from_slice(b"odd");
    agree(&array);
    for (offset, bytes, wanted) in [
        (0, &[0u8; 7][..], "EINVAL"),
        (4, &[0; 8], "EINVAL"),
        (576, &[0; 8], "EFBIG"),
    ] {
        assert_eq!(
            overwrite(&mount.join("a.unpacked/data.raw"), offset, bytes),
            wanted,
            "{offset}"
        );
    }
    assert_eq!(
        overwrite(
            &mount.join("a.unpacked/data.raw"),
            0,
            &f64::NAN.to_le_bytes()
        ),
        "EINVAL"
    );
    assert_eq!(
        overwrite(&mount.join("a.unpacked/data.npy"), 0, b"other"),
        "EPERM"
    );
    agree(&array);
    for file in [flat, unpacked, npy, plane] {
        support::close(file).unwrap();
    }
    assert!(array.stored_flat().unwrap() == array.flat);
    // cp writes a whole file in place
    fs::write(folder.path().join("new"), values(&array.flat)).unwrap();
    assert_eq!(
        run(
            "cp",
            &["new", mount.join("a.unpacked/data.raw").to_str().unwrap()],
            folder.path()
        ),
        ""
    );
    assert!(array.stored_flat().unwrap() == array.flat);
}

/// A file that is opened shows what the store holds then; maps that are only read show the values.
#[test]
fn an_opened_view_is_as_fresh_as_the_array() {
    let (folder, mut array) = store();
    for args in [&BOTH[..], &["--views", "all", "--read-only"]] {
        let mount = Mount::new(folder.path(), args);
        let read = |name: &str| fs::read(mount.join(name)).unwrap();
        for round in 0..3 {
            array.flat[48..96].fill(round);
            array.put(&[1, 0, 0]);
            assert!(
                read("a.unpacked/data.raw") == values(&array.flat),
                "{args:?} {round}"
            );
            assert!(
                read("a.slices/1/data.raw") == array.flat[48..96],
                "{args:?} {round}"
            );
            let file = File::open(mount.join("a.unpacked/data.npy")).unwrap();
            assert!(
                SharedMap::read_only(&file).bytes()[128..] == values(&array.flat),
                "{args:?} {round}: map"
            );
        }
        let path = mount.join("a.unpacked/data.raw");
        if args.contains(&"--read-only") {
            assert_eq!(errno(OpenOptions::new().write(true).open(&path)), "EROFS");
        }
        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        assert!(modified(&path) >= modified(&mount.join("a/data.raw")));
    }
}

/// Files of views come with their array, as its headers do, and a stored key takes the place of a
/// view.
#[test]
fn names_of_views_belong_to_the_array() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &BOTH);
    let view = mount.join("a.unpacked");
    let create = |path: PathBuf| errno(OpenOptions::new().write(true).create_new(true).open(path));
    assert_eq!(create(view.join("new")), "EPERM");
    assert_eq!(create(view.join("data.npy")), "EEXIST");
    assert_eq!(errno(fs::create_dir(view.join("new"))), "EPERM");
    assert_eq!(errno(fs::create_dir(&view)), "EEXIST");
    assert_eq!(errno(fs::create_dir(mount.join("b.unpacked"))), "EPERM");
    assert_eq!(create(mount.join("b.slices")), "EPERM");
    assert_eq!(errno(fs::rename(&view, mount.join("b"))), "EPERM");
    assert_eq!(
        errno(fs::rename(mount.join("a"), mount.join("a.slices"))),
        "EPERM"
    );
    assert_eq!(
        errno(fs::rename(view.join("data.npy"), view.join("b"))),
        "EPERM"
    );
    fs::remove_file(view.join("data.raw")).unwrap();
    assert!(listed(&view).contains("data.raw"));
    assert!(fs::read(view.join("data.raw")).unwrap() == values(&array.flat));
    fs::write(view.join("README.txt"), "mine").unwrap();
    assert!(
        fs::read_to_string(view.join("README.txt"))
            .unwrap()
            .contains("<f8")
    );
    fs::rename(mount.join("a"), mount.join("b")).unwrap();
    assert!(
        !view.exists()
            && fs::read(mount.join("b.unpacked/data.raw")).unwrap() == values(&array.flat)
    );
    fs::rename(mount.join("b"), mount.join("a")).unwrap();
    assert_eq!(
        listed(folder.path()),
        BTreeSet::from([".zgroup", "a"].map(String::from))
    );
    drop(mount);
    // the stored key wins
    fs::create_dir(folder.path().join("a.unpacked")).unwrap();
    fs::write(folder.path().join("a.unpacked/mine"), "kept").unwrap();
    let mount = Mount::new(folder.path(), &BOTH);
    assert_eq!(
        fs::read_to_string(mount.join("a.unpacked/mine")).unwrap(),
        "kept"
    );
    assert!(
        !mount.join("a.unpacked/data.raw").exists() && mount.join("a.slices/0/data.raw").exists()
    );
    let entries = fs::read_dir(mount.path())
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name() == "a.unpacked");
    assert_eq!(entries.count(), 1);
    assert_eq!(
        run("rm", &["-r", "a.slices", "a", "a.unpacked"], mount.path()),
        ""
    );
    assert_eq!(
        listed(folder.path()),
        BTreeSet::from([".zgroup".to_string()])
    );
}

#[test]
fn a_group_with_views_is_removed() {
    let (folder, array) = store();
    fs::create_dir(folder.path().join("g")).unwrap();
    fs::write(folder.path().join("g/.zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    support::copy_tree(&array.path, &folder.path().join("g/a"));
    let mount = Mount::new(folder.path(), &BOTH);
    assert_eq!(run("rm", &["-r", "g"], mount.path()), "");
    assert_eq!(
        listed(folder.path()),
        BTreeSet::from([".zgroup", "a"].map(String::from))
    );
}

/// With --resize, the values are truncated and appended to as `data.raw` is.
#[test]
fn physical_values_are_resized_with_their_array() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &[&BOTH[..], &["--resize"]].concat());
    let flat = mount.join("a/data.raw");
    let view = mount.join("a.unpacked/data.raw");
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&view)
        .unwrap();
    file.write_all_at(&2f64.to_le_bytes().repeat(24), 576)
        .unwrap();
    assert_eq!((size(&flat), size(&view)), (192, 768));
    assert!(mount.join("a.slices/3").exists());
    assert_eq!(
        fs::read(&flat).unwrap(),
        [array.flat.as_slice(), &[0u8, 4].repeat(24)].concat()
    );
    file.set_len(192).unwrap();
    assert_eq!((size(&flat), size(&view)), (48, 192));
    support::close(file).unwrap();
    assert_eq!(fs::read(&view).unwrap(), values(&array.flat[..48]));
    let npy = fs::read(mount.join("a.unpacked/data.npy")).unwrap();
    assert!(String::from_utf8_lossy(&npy[..128]).contains("(1, 4, 6)") && npy.len() == 128 + 192);
    // truncate, then write all
    fs::write(&view, values(&array.flat)).unwrap();
    assert_eq!((size(&flat), size(&view)), (144, 576));
    assert_eq!(fs::read(&flat).unwrap(), array.flat);
}

/// Rows that are not stored are holes where they read as zeros.
#[test]
fn holes_of_the_array_are_holes_of_the_values() {
    let (folder, array) = store();
    fs::remove_file(array.file(&[1, 0, 0])).unwrap();
    let mount = Mount::new(folder.path(), &BOTH);
    let file = File::open(mount.join("a.unpacked/data.raw")).unwrap();
    let seek = |to| rustix::fs::seek(&file, to).map_err(|e| e.raw_os_error());
    use rustix::fs::SeekFrom::{Data, Hole};
    assert_eq!(
        [Hole(9), Data(200), Hole(400), Data(575)].map(seek),
        [Ok(192), Ok(384), Ok(576), Ok(575)]
    );
    assert_eq!(seek(Data(576)), Err(6));
    replace(
        &array.path.join(".zattrs"),
        br#"{"scale_factor": 0.5, "add_offset": 1}"#,
    );
    let file = File::open(mount.join("a.unpacked/data.raw")).unwrap();
    assert_eq!(rustix::fs::seek(&file, Hole(9)).unwrap(), 576);
    let plane = File::open(mount.join("a.slices/1/data.raw")).unwrap();
    assert_eq!(rustix::fs::seek(&plane, Hole(3)).unwrap(), 3);
    assert!(rustix::fs::seek(&plane, Data(3)).is_err());
}

/// A store of one array has no name: its views are called after its files.
#[test]
fn the_views_of_an_array_at_the_root() {
    let (_folder, array) = store();
    let mount = Mount::new(&array.path, &BOTH);
    assert!(listed(mount.path()).is_superset(&BTreeSet::from(
        ["data.unpacked", "data.slices"].map(String::from)
    )));
    assert!(fs::read(mount.join("data.unpacked/data.raw")).unwrap() == values(&array.flat));
    assert!(fs::read(mount.join("data.slices/2/data.raw")).unwrap() == array.flat[96..]);
}

/// Each directory of slices has the files of its volume or plane, and directories for the next
/// index.
#[test]
fn slices_of_four_dimensions_are_volumes_and_planes() {
    let folder = tempfile::tempdir().unwrap();
    let more = json!({"dtype": "<u2"});
    let array = TestArray::with_chunks(
        folder.path().join("image"),
        &[2, 3, 4, 5],
        &[1, 2, 4, 5],
        more,
    );
    let mount = Mount::new(folder.path(), &["--views", "slices", "--headers", "npy"]);
    let slices = mount.join("image.slices");
    let set = |names: &[&str]| {
        names
            .iter()
            .map(|name| name.to_string())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(listed(&slices), set(&["0", "1"]));
    assert_eq!(
        listed(&slices.join("1")),
        set(&["0", "1", "2", "data.npy", "data.raw"])
    );
    assert_eq!(listed(&slices.join("1/2")), set(&["data.npy", "data.raw"]));
    assert!(fs::read(slices.join("1/data.raw")).unwrap() == array.flat[120..]);
    let plane = fs::read(slices.join("0/2/data.npy")).unwrap();
    assert!(
        plane[128..] == array.flat[80..120]
            && String::from_utf8_lossy(&plane[..128]).contains("(4, 5)")
    );
    let map = OpenOptions::new()
        .read(true)
        .write(true)
        .open(slices.join("0/2/data.raw"))
        .unwrap();
    let map = SharedMap::new(&map);
    map.write(7, b"mapped");
    map.sync();
    assert_eq!(
        fs::read(mount.join("image/data.raw")).unwrap()[87..93],
        *b"mapped"
    );
    assert!(!mount.join("image.unpacked").exists());
}
