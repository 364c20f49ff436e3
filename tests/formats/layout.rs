//! Layouts on a real mount: files that an archive had before it became one store. `python/layout.py`
//! makes the archives and the stores, and compares dimensions, values and attributes of the files
//! by netCDF4, xarray and rasterio; zarr-python reads what was written through them.

use crate::support::servers;
use crate::support::{
    self, Mount, copy_tree, env_path, listed, run_python, run_zarrfs, test_data, wait_for, zarrfs,
};
use std::fs;
use std::path::{Path, PathBuf};

const YEARS: &str = "years/tas_{time:%Y}.nc = /";

/// The layouts of the archives that the script makes.
const LAYOUTS: [(&str, &str); 3] = [
    ("years", YEARS),
    ("days", "days/day_{time:%Y%m%d}.nc4 = /"),
    ("dates", "dates/rain_{time:%Y%m%d}.tif = /rain"),
];

/// The archives of files and their stores; `None` without Python's libraries.
fn archives() -> Option<(PathBuf, tempfile::TempDir)> {
    let python = env_path("ZARRFS_TEST_PYTHON")?;
    let folder = tempfile::tempdir().unwrap();
    run_python(&python, "layout.py", &[Path::new("make"), folder.path()]);
    Some((python, folder))
}

fn compare(python: &Path, folder: &Path, store: &Path, layout: (&str, &str)) {
    let mount = Mount::new(store, &["--layout", layout.1]);
    compare_mount(python, folder, &mount, layout.0);
}

fn compare_mount(python: &Path, folder: &Path, mount: &Mount, name: &str) {
    let arguments = [Path::new("compare"), folder, mount.path(), Path::new(name)];
    run_python(python, "layout.py", &arguments);
    mount.assert_no_problem();
}

#[test]
fn files_are_those_of_the_archive() {
    let Some((python, folder)) = archives() else {
        return;
    };
    let folder = folder.path();
    for layout in LAYOUTS {
        let store = folder.join(format!("{}.zarr", layout.0));
        compare(&python, folder, &store, layout);
    }
    // an array has the coordinates, bounds and scalar coordinates that it refers to
    let store = folder.join("years.zarr");
    compare(
        &python,
        folder,
        &store,
        ("years", "years/tas_{time:%Y}.nc = /tas"),
    );
    let archive = folder.join("years.zip");
    let [from, to] = [&store, &archive].map(|path| support::text(path));
    assert_eq!(run_zarrfs(&["pack", from, to]).0, 0);
    compare(&python, folder, &archive, ("years", YEARS));
    if let Some(python3) = env_path("ZARRFS_TEST_PYTHON3") {
        let sharded = folder.join("sharded.zarr");
        run_python(
            &python3,
            "layout.py",
            &[Path::new("shard"), &store, &sharded],
        );
        compare(&python, folder, &sharded, ("years", YEARS));
    }
    if let Some(server) = servers::moto() {
        server.upload(&store, "archive/years.zarr");
        let bucket = server.store("archive/years.zarr");
        compare_mount(
            &python,
            folder,
            &bucket.mount(&["--layout", YEARS]),
            "years",
        );
    }
}

#[test]
fn writes_reach_the_items_of_the_file() {
    let Some((python, folder)) = archives() else {
        return;
    };
    let store = folder.path().join("years.zarr");
    let mount = Mount::new(&store, &["--layout", YEARS]);
    let arguments = [Path::new("write"), mount.path(), &store];
    run_python(&python, "layout.py", &arguments);
    mount.assert_no_problem();
}

#[test]
fn ncap2_and_ncatted_change_a_file_in_place() {
    if !["ncap2", "ncatted"].into_iter().all(support::is_installed) {
        return;
    }
    let Some((python, folder)) = archives() else {
        return;
    };
    let store = folder.path().join("years.zarr");
    let [before, after] = ["before", "after"].map(|name| folder.path().join(name));
    copy_tree(&store, &before);
    let mount = Mount::new(&store, &["--layout", YEARS]);
    let file = mount.join("years/tas_1852.nc");
    let file = support::text(&file);
    let work = folder.path();
    support::run("ncap2", &["-h", "-A", "-s", "height=3.0", file, file], work);
    support::run(
        "ncap2",
        &["-h", "-A", "-s", "time_bnds=time_bnds+1", file, file],
        work,
    );
    support::run("ncatted", &["-h", "-a", "note,tas,c,c,by NCO", file], work);
    mount.assert_no_problem();
    drop(mount);
    copy_tree(&store, &after);
    let script = "
import sys, zarr
a, b = (zarr.open(path, mode='r') for path in sys.argv[1:])
expected = a['time_bnds'][...]
expected[24:36] += 1
assert (b['time_bnds'][...] == expected).all()
assert (b['height'][...], b['tas'].attrs['note']) == (3, 'by NCO'), b['height'][...]
assert all((a[name][...] == b[name][...]).all() for name in ('tas', 'time', 'lat', 'lat_bnds'))
";
    let paths = [before, after].map(|path| support::text(&path).to_string());
    let arguments = ["-c", script, &paths[0], &paths[1]];
    support::run(support::text(&python), &arguments, work);
}

#[test]
fn a_store_that_grows_adds_files() {
    let Some((python, folder)) = archives() else {
        return;
    };
    let store = folder.path().join("years.zarr");
    let mount = Mount::new(&store, &["--read-only", "--layout", YEARS]);
    let years = mount.join("years");
    let content = || -> Vec<(String, Vec<u8>)> {
        let names = listed(&years).into_iter();
        names
            .map(|name| (name.clone(), fs::read(years.join(name)).unwrap()))
            .collect()
    };
    let before = content();
    assert_eq!(before.len(), 8);
    let open = fs::File::open(years.join("tas_1857.nc")).unwrap();
    run_python(&python, "layout.py", &[Path::new("append"), &store]);
    wait_for("a year more", || listed(&years).contains("tas_1858.nc"));
    let after = content();
    assert_eq!((&after[..8], after.len()), (&before[..], 9));
    // a file that is open stays what it was
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut &open, &mut bytes).unwrap();
    assert_eq!(bytes, before[7].1);
    mount.assert_no_problem();
}

/// The sample has four times a day.
#[test]
fn names_stand_beside_those_of_the_store() {
    let store = test_data("sample.zarr");
    let rules = [
        "--layout",
        "air_temperature/{time:%Y%m%d}.nc = /air_temperature",
        "--layout",
        "months/{var}/{time:%m}.raw = /air_temperature",
        "--layout",
        "months/{time#:02}.npy = /air_temperature",
    ];
    let mount = Mount::new(&store, &[&["--read-only"][..], &rules].concat());
    assert_eq!(listed(&mount.join("months/air_temperature")).len(), 1);
    let root = listed(mount.path());
    assert!(root.contains("months") && root.contains("ocean") && root.contains("lat"));
    let array = listed(&mount.join("air_temperature"));
    let days = array.iter().filter(|name| name.ends_with(".nc")).count();
    assert!(days > 10 && array.contains("data.raw") && array.contains("0.0.0"));
    let flat = fs::read(mount.join("air_temperature/data.raw")).unwrap();
    let whole = listed(&mount.join("months/air_temperature"));
    let raw = whole
        .iter()
        .map(|name| fs::read(mount.join("months/air_temperature").join(name)));
    let raw: Vec<u8> = raw.flat_map(Result::unwrap).collect();
    assert!(raw == flat);
    let npy = fs::read(mount.join("months/61.npy")).unwrap();
    assert!(npy.starts_with(b"\x93NUMPY") && npy.ends_with(&flat[flat.len() / 62 * 61..]));
    // the names that are listed are those that are found, without a mount, too
    let store = support::text(&store);
    for name in ["months/61.npy", "air_temperature/data.raw"] {
        let printed = zarrfs(&[&["cat", store, name], &rules[..]].concat());
        assert!(
            printed.stdout == fs::read(mount.join(name)).unwrap(),
            "{name}"
        );
    }
    let listed_alone = zarrfs(&[&["ls", store], &rules[..]].concat());
    let names: Vec<String> = String::from_utf8(listed_alone.stdout)
        .unwrap()
        .lines()
        .map(|line| line.trim_end_matches('/').to_string())
        .collect();
    assert!(root.iter().all(|name| names.contains(name)), "{names:?}");
    mount.assert_no_problem();
}

/// Files of a layout come with their arrays: their removal changes nothing, and the store gets no
/// directory for them.
#[test]
fn directories_of_a_layout_come_with_their_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s.zarr");
    copy_tree(&test_data("sample.zarr"), &store);
    let before = support::tree::files(&store);
    let rule = "own/{time:%m%d}.nc = /air_temperature";
    let mount = Mount::new(&store, &["--layout", rule]);
    let own = mount.join("own");
    let names = listed(&own);
    assert_eq!(
        support::errno(fs::rename(&own, mount.join("other"))),
        "EPERM"
    );
    // programs write temporary files beside a file, which leave nothing
    fs::write(own.join("new.tmp"), b"x").unwrap();
    assert_eq!(fs::read(own.join("new.tmp")).unwrap(), b"x");
    assert!(listed(&own).contains("new.tmp"));
    fs::remove_file(own.join("new.tmp")).unwrap();
    assert_eq!(listed(&own), names);
    let first = own.join(names.first().unwrap());
    fs::remove_file(&first).unwrap();
    assert_eq!(listed(&own), names);
    // in its own place, a copy changes nothing
    let content = fs::read(&first).unwrap();
    fs::write(&first, &content).unwrap();
    assert_eq!(fs::read(&first).unwrap(), content);
    let longer = [content, vec![0; 8]].concat();
    assert!(fs::write(&first, longer).is_err());
    drop(mount);
    assert_eq!(support::tree::files(&store), before);
}

#[test]
fn bad_layouts_are_refused_in_one_line() {
    let store = test_data("sample.zarr");
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules");
    fs::write(&rules, "# rules\n\ntas_{time:%Q}.nc = /air_temperature\n").unwrap();
    let store = support::text(&store);
    let rules = support::text(&rules);
    for (options, code, why) in [
        (["--layout", "{time:%m%d}.nc"], 2, "has no ="),
        (["--layout-file", rules], 2, "unknown field {time:%Q}"),
        (
            ["--layout", "a/{level}.nc = /air_temperature"],
            1,
            "no coordinate \"level\"",
        ),
        (
            ["--layout", "{lat}.nc = /air_temperature"],
            1,
            "a cut is along the first",
        ),
        (
            ["--layout", "{time:%H}.nc = /air_temperature"],
            1,
            "has the name \"00\" of item 0",
        ),
        (
            ["--layout", "../{time:%d}.nc = /air_temperature"],
            2,
            "leaves its directory",
        ),
        (["--layout", "lat/data.raw = /lat"], 1, "hides a file"),
    ] {
        let output = zarrfs(&[&["ls", store], &options[..]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("error")).collect();
        assert!(
            lines.len() == 1 && lines[0].contains(why),
            "{options:?}: {said}"
        );
        assert_eq!(output.status.code(), Some(code), "{said}");
    }
    let twice = [
        "--layout",
        "{time#}.npy = /time",
        "--layout",
        "{time#}.npy = /lat",
    ];
    let output = zarrfs(&[&["ls", store], &twice[..]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("\"0.npy\" is that of two files"), "{said}");
    let no_name = zarrfs(&["cat", store, "--layout", "{time#}.npy = /time"]);
    assert_eq!(no_name.status.code(), Some(2));
}
