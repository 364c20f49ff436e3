//! `dataset.nc` on a real mount, which shows a group as a netCDF file. netCDF-C (netCDF4), scipy
//! and xarray read and change the file, and `python/netcdf.py` compares its values with those that
//! zarr-python and xarray read from the store. `scripts/test-legacy` runs other programs.

use crate::support;
use crate::support::{Mount, copy_tree, env_path, errno, run, run_python, test_data, tree};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Options that show all headers and containers.
const ALL: [&str; 4] = ["--headers", "all", "--containers", "nii,tif,nc"];

/// Mounts a store of groups with all kinds of members, and runs these verbs of the Python script on
/// it.
fn with_groups(python: &Path, verbs: &[&str], args: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    run_python(python, "netcdf.py", &[Path::new("make"), folder.path()]);
    let store = folder.path().join("groups.zarr");
    let mount = Mount::new(&store, args);
    for verb in verbs {
        run_python(
            python,
            "netcdf.py",
            &[Path::new(verb), mount.path(), &store],
        );
    }
}

#[test]
fn groups_are_read_as_zarr_python_reads_them() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    with_groups(&python, &["read"], &["--containers", "nc", "--read-only"]);
    with_groups(
        &python,
        &["read"],
        &["--containers", "nc", "--cache-size", "20K"],
    );
}

#[test]
fn the_sample_store_is_read_as_xarray_reads_it() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let sample = test_data("sample.zarr");
    let mount = Mount::new(&sample, &ALL);
    run_python(
        &python,
        "netcdf.py",
        &[Path::new("read"), mount.path(), &sample],
    );
}

#[test]
fn values_can_be_changed_in_place() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    with_groups(&python, &["write"], &ALL);
}

/// Changed attributes go to `.zattrs` if the layout stays the same, whether a program rewrites the
/// header or renames another file onto `dataset.nc`.
#[test]
fn attributes_and_values_can_be_edited() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    with_groups(&python, &["edit"], &["--containers", "nc"]);
}

#[test]
fn nco_can_edit_a_group() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    if ["ncap2", "ncks", "ncatted", "ncrename"]
        .into_iter()
        .all(support::is_installed)
    {
        with_groups(&python, &["nco"], &["--containers", "nc"]);
    }
}

/// Puts a file in the place of `dataset.nc` in each way that programs do, and compares the arrays.
fn put_back(python: &Path, store: &Path, result: &dyn Fn(&Path)) {
    let ways = [
        "cp result.nc mnt/dataset.nc",
        "cp result.nc mnt/new.nc && mv mnt/new.nc mnt/dataset.nc",
        "cp result.nc moved.nc && mv moved.nc mnt/dataset.nc",
        "ncks -h -A -v t result.nc mnt/dataset.nc",
    ];
    for way in ways {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("s");
        copy_tree(store, &copy);
        let before = tree::files(&copy);
        let mount = Mount::new(&copy, &["--containers", "nc"]);
        std::os::unix::fs::symlink(mount.path(), folder.path().join("mnt")).unwrap();
        result(folder.path());
        run("sh", &["-c", way], folder.path());
        mount.assert_no_problem();
        drop(mount);
        run_python(python, "copied.py", &[Path::new("increased"), store, &copy]);
        let after = tree::files(&copy);
        assert!(after.keys().eq(before.keys()), "{way}");
    }
}

/// xarray's default for floats is a fill value of NaN, which JSON cannot state as an attribute. CDO
/// repeats it as `missing_value`, drops it from coordinates, and orders dimensions and variables
/// anew. NCO does the same here where CDO is not installed.
#[test]
fn results_of_cdo_and_nco_go_back_where_the_fill_value_is_nan() {
    if !["ncap2", "ncks", "ncatted"]
        .into_iter()
        .all(support::is_installed)
    {
        return;
    }
    for (variable, format) in [("ZARRFS_TEST_PYTHON", "2"), ("ZARRFS_TEST_PYTHON3", "3")] {
        let Some(python) = env_path(variable) else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let make = [Path::new("make"), &store, Path::new(format)];
        run_python(&python, "copied.py", &make);
        put_back(&python, &store, &|folder| {
            let steps = [
                "ncap2 -O -s 't=t+1.0f' mnt/dataset.nc a.nc",
                "ncatted -O -a missing_value,t,c,f,NaN -a _FillValue,lat,d,, -a _FillValue,time,d,, a.nc",
                "ncks -O --mk_rec_dmn time a.nc b.nc",
                "ncks -O -C -v time,lon,lat,mask,t --no_alphabetize b.nc result.nc",
            ];
            run("sh", &["-c", &steps.join(" && ")], folder);
        });
        if support::is_installed("cdo") {
            put_back(&python, &store, &|folder| {
                let step = "cdo -s -merge -addc,1 -selname,t mnt/dataset.nc -selname,mask mnt/dataset.nc result.nc";
                run("sh", &["-c", step], folder);
            });
        }
    }
}

/// Some libraries move the data to make space for a longer header before the header is refused. The
/// data stay where they were.
#[test]
fn changes_of_the_layout_are_refused_and_change_nothing() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    with_groups(&python, &["refuse"], &["--containers", "nc"]);
}

/// Mounts a store of groups with a time dimension as the record dimension, and runs these verbs on
/// it.
fn with_records(verbs: &[&str], args: &[&str]) {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    run_python(
        &python,
        "netcdf_records.py",
        &[Path::new("make"), folder.path()],
    );
    let store = folder.path().join("growing.zarr");
    let args = [&["--containers", "nc", "--netcdf-record", "time"], args].concat();
    let mount = Mount::new(&store, &args);
    for verb in verbs {
        let printed = run_python(
            &python,
            "netcdf_records.py",
            &[Path::new(verb), mount.path(), &store],
        );
        for line in printed.lines().filter(|line| line.starts_with("skipped")) {
            println!("{line}");
        }
    }
}

/// CDF-2 lacks some types: short arrays of them are doubles. Strings are arrays of characters. `ncra`
/// and `cdo` use the record dimension.
#[test]
fn records_doubles_and_strings_are_read_and_written() {
    with_records(&["read", "write"], &["--cache-size", "20K"]);
}

/// With `--resize`, appending records through netCDF-C, NCO and `cdo cat` appends to the Zarr
/// arrays.
#[test]
fn records_are_appended() {
    if support::is_installed("ncrcat") {
        with_records(&["append"], &["--resize"]);
    }
}

#[test]
fn records_are_not_appended_without_resize() {
    if support::is_installed("ncrcat") {
        with_records(&["refuse"], &[]);
    }
}

/// netCDF-C moves data to make space for a longer header. Its writes look like appended records,
/// but must not append any.
#[test]
fn moved_data_are_not_taken_for_appended_records() {
    if support::is_installed("ncatted") {
        with_records(&["move"], &["--resize"]);
    }
}

/// GDAL does not open CDF-5, and rioxarray stores a grid mapping as an integer of 64 bits.
#[test]
fn gdal_opens_what_rioxarray_writes() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let script = "rasters_of_rioxarray.py";
    let folder = tempfile::tempdir().unwrap();
    run_python(&python, script, &[Path::new("make"), folder.path()]);
    let store = folder.path().join("rasters.zarr");
    let mount = Mount::new(&store, &["--containers", "nc", "--read-only"]);
    run_python(&python, script, &[Path::new("read"), mount.path(), &store]);
}

/// The zeros of an HDF5 file are no missing values, whatever its fill value is; in a store of xarray
/// the fill value stands for them.
#[test]
fn fill_values_are_missing_where_their_writer_says_so() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = "fill_values.py";
    run_python(&python, script, &[Path::new("make"), folder.path()]);
    for (store, meaning, expected) in [
        ("counts.json", "auto", "zeros"),
        ("counts.json", "yes", "missing"),
        ("counts.zarr", "auto", "missing"),
        ("counts.zarr", "no", "none"),
    ] {
        let args = [
            "--containers",
            "nc,h5",
            "--read-only",
            "--fill-value-is-missing",
        ];
        let mount = Mount::new(
            &folder.path().join(store),
            &[&args[..], &[meaning]].concat(),
        );
        run_python(&python, script, &[Path::new(expected), mount.path()]);
    }
}

/// Each opening shows the current metadata.
#[test]
fn the_file_follows_the_metadata() {
    let folder = tempfile::tempdir().unwrap();
    copy_tree(&test_data("sample.zarr/ocean"), folder.path());
    let mount = Mount::new(
        folder.path(),
        &["--containers", "nc", "--metadata-ttl", "0s"],
    );
    let path = mount.join("dataset.nc");
    let before = fs::read(&path).unwrap();
    assert_eq!(before.len() as u64, fs::metadata(&path).unwrap().len());
    assert!(
        before.starts_with(b"CDF\x02")
            && contains(&before, b"Sea surface temperature, missing on land")
    );

    fs::write(mount.join(".zattrs"), br#"{"title":"another title"}"#).unwrap();
    let after = fs::read(&path).unwrap();
    assert!(contains(&after, b"another title") && !contains(&after, b"missing on land"));

    fs::rename(mount.join("time"), mount.join("instant")).unwrap();
    let after = fs::read(&path).unwrap();
    assert!(contains(&after, b"\0\0\0\x07instant\0"));

    assert_eq!(errno(fs::remove_file(&path)), "ok");
    assert!(!path.exists());
    let mut names = fs::read_dir(path.parent().unwrap()).unwrap();
    assert!(names.any(|entry| entry.unwrap().path() == path));
    assert!(path.exists());
}

/// Long names and attributes do not hide the file. A coordinate value that is not exactly a double
/// does not make it unreadable.
#[test]
fn unusual_attributes_and_values_leave_the_file_readable() {
    let folder = tempfile::tempdir().unwrap();
    let array = |name: &str, dtype: &str, attributes: &str, bytes: &[u8]| {
        let path = folder.path().join("g").join(name);
        fs::create_dir_all(&path).unwrap();
        let document = format!(
            r#"{{"zarr_format":2,"shape":[2],"chunks":[2],"dtype":"{dtype}","compressor":null,"fill_value":0,"order":"C",
            "filters":null}}"#
        );
        fs::write(path.join(".zarray"), document).unwrap();
        fs::write(path.join(".zattrs"), attributes).unwrap();
        fs::write(path.join("0"), bytes).unwrap();
    };
    for place in ["", "g"] {
        fs::create_dir_all(folder.path().join(place)).unwrap();
        fs::write(
            folder.path().join(place).join(".zgroup"),
            br#"{"zarr_format":2}"#,
        )
        .unwrap();
    }
    let long = "x".repeat(5000);
    array(
        "t",
        "<f4",
        &format!(r#"{{"_ARRAY_DIMENSIONS":["time"],"grid_mapping":"{long}"}}"#),
        &[1; 8],
    );
    array(
        "n",
        "<f4",
        &format!(r#"{{"_ARRAY_DIMENSIONS":["{long}"]}}"#),
        &[1; 8],
    );
    let times = [1i64, (1 << 53) + 1].map(i64::to_le_bytes).concat();
    array(
        "time",
        "<i8",
        r#"{"_ARRAY_DIMENSIONS":["time"],"units":"days since 2000-01-01"}"#,
        &times,
    );
    let mount = Mount::new(folder.path(), &["--containers", "nc"]);
    let path = mount.join("g/dataset.nc");
    let bytes = fs::read(&path).unwrap();
    assert!(
        bytes.starts_with(b"CDF\x05") && bytes.len() as u64 == fs::metadata(&path).unwrap().len()
    );
    assert!(contains(
        &bytes,
        &[1i64, (1 << 53) + 1].map(i64::to_be_bytes).concat()
    ));
    // the layout depends on whether all values are doubles, so such a change makes an open file
    // stale
    let flat = OpenOptions::new()
        .write(true)
        .open(mount.join("g/time/data.raw"))
        .unwrap();
    flat.write_all_at(&7i64.to_le_bytes(), 8).unwrap();
    let open = fs::File::open(&path).unwrap();
    let mut start = [0; 4];
    open.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"CDF\x02");
    flat.write_all_at(&times[8..], 8).unwrap();
    let mut all = vec![0; open.metadata().unwrap().len() as usize];
    assert_eq!(
        open.read_exact_at(&mut all, 0).unwrap_err().raw_os_error(),
        Some(libc::ESTALE)
    );
    assert!(fs::read(&path).unwrap().starts_with(b"CDF\x05"));
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}
