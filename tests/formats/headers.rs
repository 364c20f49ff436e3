//! Headers and containers on a real mount: their names, and the changes that they accept. The
//! values that numpy, GDAL (by rasterio), pynrrd, SimpleITK, nibabel, tifffile, netCDF4 and xarray
//! read from them are compared with those that zarr-python reads from the store.
//! `scripts/test-legacy` runs larger programs.

use crate::support;
use crate::support::array::{TestArray, pattern, replace};
use crate::support::faulty_server::FaultyServer;
use crate::support::shared_map::SharedMap;
use crate::support::{
    Mount, ZARRFS, announce, copy_tree, env_path, errno, is_installed, overwrite, run, run_python,
    set, with_timeout,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Creates an array of rows of 12 items in chunks of 5 rows and 8 items, with coordinates that
/// xarray would recognize.
fn store() -> (tempfile::TempDir, TestArray) {
    let more = json!({"dtype": "<i2", "fill_value": -9, "compressor": {"id": "zlib", "level": 1}});
    TestArray::in_group(
        &[7, 12],
        &[5, 8],
        more,
        r#"{"_ARRAY_DIMENSIONS": ["y", "x"], "units": "K"}"#,
    )
}

/// GDAL finds values, reference systems, positions and pyramids that CF, rioxarray, GeoZarr and EOPF
/// state, in any order of dimensions.
#[test]
fn gdal_finds_georeferenced_arrays_upright() {
    let (Some(python), Some(python3)) = (
        env_path("ZARRFS_TEST_PYTHON"),
        env_path("ZARRFS_TEST_PYTHON3"),
    ) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = "georeferenced.py";
    run_python(&python, script, &[Path::new("make"), folder.path()]);
    run_python(&python3, script, &[Path::new("geozarr"), folder.path()]);
    for store in ["cf", "geozarr", "eopf"] {
        let path = folder.path().join(format!("{store}.zarr"));
        let mount = Mount::new(&path, &["--containers", "tif,nc", "--read-only"]);
        let args = [
            Path::new("read"),
            mount.path(),
            folder.path(),
            Path::new(store),
        ];
        run_python(&python, script, &args);
    }
}

/// Returns the names in a directory that are neither chunks nor metadata.
fn shown(directory: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| !name.starts_with('.') && !name.starts_with(|c: char| c.is_ascii_digit()))
        .collect()
}

fn npy_header(shape: &str) -> Vec<u8> {
    let text = format!("{{'descr': '<i2', 'fortran_order': False, 'shape': ({shape}), }}");
    let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    header.extend(format!("{text:<117}\n").bytes());
    header
}

const HEADERS: [&str; 8] = [
    "README.txt",
    "data.mhd",
    "data.nhdr",
    "data.npy",
    "data.raw",
    "data.raw.hdr",
    "data.vrt",
    "data.xmf",
];

#[test]
fn the_requested_headers_are_shown() {
    let (folder, _) = store();
    let choices: [(&[&str], &[&str]); 6] = [
        (&["--headers", "none"], &["data.raw"]),
        (
            &["--headers", "npy,vrt"],
            &["data.npy", "data.raw", "data.vrt"],
        ),
        (
            &["-o", "ro,headers=npy:vrt"],
            &["data.npy", "data.raw", "data.vrt"],
        ),
        (
            &["--headers", "none", "--containers", "nii"],
            &["data.nii", "data.raw"],
        ),
        (
            &[
                "--headers",
                "npy",
                "--containers",
                "nii,tif",
                "--netcdf-record",
                "time",
            ],
            &["data.nii", "data.npy", "data.raw", "data.tif"],
        ),
        (&["--headers", "all"], &HEADERS),
    ];
    let all = set(&HEADERS).into_iter().chain(set(&[
        "data.nii",
        "data.tif",
        "dataset.nc",
        "preview.png",
    ]));
    let all: Vec<String> = all.collect();
    for (args, names) in choices {
        let mount = Mount::new(folder.path(), args);
        assert_eq!(shown(&mount.join("a")), set(names), "{args:?}");
        for name in &all {
            let is_asked = names.contains(&name.as_str());
            assert_eq!(
                mount.join("a").join(name).exists(),
                is_asked,
                "{args:?}: {name}"
            );
        }
        // an option of the file asks for it
        let has_dataset = args.contains(&"--netcdf-record");
        assert_eq!(
            shown(mount.path()).contains("dataset.nc"),
            has_dataset,
            "{args:?}"
        );
        assert_eq!(mount.join("dataset.nc").exists(), has_dataset, "{args:?}");
    }
    let mount = Mount::new(folder.path(), &[]);
    assert_eq!(shown(&mount.join("a")), set(&HEADERS), "without options");
}

#[test]
fn unknown_formats_are_refused() {
    let (folder, _) = store();
    let mountpoint = tempfile::tempdir().unwrap();
    for args in [
        ["--headers", "numpy"],
        ["--headers", "nii"],
        ["--containers", "npy"],
        ["-o", "headers=x"],
    ] {
        let mut command = Command::new(ZARRFS);
        let output = command
            .arg("mount")
            .args(args)
            .arg(folder.path())
            .arg(mountpoint.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("npy") || said.contains("nii"),
            "{args:?}: {said}"
        );
    }
}

/// A stored file with the name of a header is hidden by the header, and no change reaches it.
#[test]
fn a_stored_file_of_the_same_name_is_hidden_and_kept() {
    let (folder, array) = store();
    fs::write(array.path.join("data.vrt"), "the user's own").unwrap();
    let mount = Mount::new(folder.path(), &[]);
    assert!(
        fs::read_to_string(mount.join("a/data.vrt"))
            .unwrap()
            .starts_with("<VRTDataset")
    );
    let listed = fs::read_dir(mount.join("a"))
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name() == "data.vrt");
    assert_eq!(listed.count(), 1);
    let _ = fs::remove_file(mount.join("a/data.vrt"));
    drop(mount);
    assert_eq!(
        fs::read_to_string(array.path.join("data.vrt")).unwrap(),
        "the user's own"
    );
    let mount = Mount::new(folder.path(), &["--headers", "none"]);
    assert_eq!(
        fs::read_to_string(mount.join("a/data.vrt")).unwrap(),
        "the user's own"
    );
}

#[test]
fn data_npy_is_mapped_like_the_flat_bytes() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &[]);
    let path = mount.join("a/data.npy");
    let wanted = [npy_header("7, 12"), array.flat.clone()].concat();
    assert_eq!(fs::metadata(&path).unwrap().len(), wanted.len() as u64);
    assert!(fs::read(&path).unwrap() == wanted);
    let file = File::open(&path).unwrap();
    // across the end of the header, by items, and across the end of the file
    for (offset, len) in [
        (0, 10),
        (120, 16),
        (127, 2),
        (128, 1),
        (129, 3),
        (200, 96),
        (290, 40),
        (296, 8),
    ] {
        let mut bytes = vec![0; len];
        let n = file.read_at(&mut bytes, offset as u64).unwrap();
        assert_eq!(
            bytes[..n],
            wanted[offset.min(wanted.len())..(offset + len).min(wanted.len())],
            "{offset}"
        );
    }
}

#[test]
fn writes_through_data_npy_reach_the_array() {
    let (folder, mut array) = store();
    let mount = Mount::new(folder.path(), &[]);
    let npy = mount.join("a/data.npy");
    let flat = mount.join("a/data.raw");
    let header = npy_header("7, 12");
    let new = pattern(5, array.flat.len());
    // parts of items, and across the borders of chunks
    for (at, len) in [(0, 1), (15, 4), (40, 60), (167, 1)] {
        assert_eq!(
            overwrite(&npy, (header.len() + at) as u64, &new[at..at + len]),
            "ok"
        );
        array.flat[at..at + len].copy_from_slice(&new[at..at + len]);
        assert!(
            fs::read(&flat).unwrap() == array.flat,
            "through data.raw, after {at}"
        );
        assert!(
            array.stored_flat().unwrap() == array.flat,
            "in the store, after {at}"
        );
    }
    // data.npy shows writes through other files
    assert_eq!(overwrite(&flat, 20, b"zarrfs"), "ok");
    array.flat[20..26].copy_from_slice(b"zarrfs");
    assert!(fs::read(&npy).unwrap()[header.len()..] == array.flat);
    assert_eq!(overwrite(&mount.join("a/0.0"), 0, b"chunk!"), "ok");
    array.flat[..6].copy_from_slice(b"chunk!");
    assert!(fs::read(&npy).unwrap()[header.len()..] == array.flat);
    // numpy.save truncates the file, then writes the header and all items
    fs::write(&npy, [header.clone(), new.clone()].concat()).unwrap();
    assert!(array.stored_flat().unwrap() == new);
    // nothing can be written behind the items
    assert_eq!(
        overwrite(&npy, (header.len() + new.len()) as u64, b"x"),
        "EFBIG"
    );
}

#[test]
fn the_header_of_data_npy_can_only_be_overwritten_by_itself() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &["--containers", "nii,tif"]);
    let npy = mount.join("a/data.npy");
    let header = npy_header("7, 12");
    assert_eq!(overwrite(&npy, 0, &header), "ok");
    assert_eq!(overwrite(&npy, 60, &header[60..80]), "ok");
    assert_eq!(overwrite(&npy, 0, &npy_header("12, 7")), "EPERM");
    assert_eq!(overwrite(&npy, 127, b" x"), "EPERM");
    for name in ["data.nii", "data.tif"] {
        let path = mount.join("a").join(name);
        let start = fs::read(&path).unwrap()[..64].to_vec();
        assert_eq!(overwrite(&path, 0, &start), "ok", "{name}");
        assert_eq!(overwrite(&path, 0, &[0x55; 64]), "EPERM", "{name}");
    }
    assert!(fs::read(&npy).unwrap() == [header, array.flat.clone()].concat());
    assert!(array.stored_flat().unwrap() == array.flat);
}

/// GDAL's metadata in `data.vrt` become attributes. Other changes that GDAL writes are reported in
/// the statistics.
#[test]
fn gdal_edits_the_metadata_of_data_vrt() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &[]);
    let path = mount.join("a/data.vrt");
    let text = fs::read_to_string(&path).unwrap();
    let attributes = || {
        fs::read_to_string(array.path.join(".zattrs"))
            .unwrap()
            .split_whitespace()
            .collect::<String>()
    };
    let edited = text
        .replace(">K</MDI>", ">degC</MDI>\n<MDI key=\"A\">B</MDI>")
        .replace(">K<", ">C<");
    // write in pieces, as VSIFWriteL does
    let mut file = File::create(&path).unwrap();
    edited
        .as_bytes()
        .chunks(100)
        .for_each(|piece| file.write_all(piece).unwrap());
    support::close(file).unwrap();
    assert_eq!(
        attributes(),
        r#"{"_ARRAY_DIMENSIONS":["y","x"],"units":"degC","A":"B"}"#
    );
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .contains("<MDI key=\"A\">B</MDI>")
    );
    let stats = fs::read_to_string(mount.join(".zarrfs/stats")).unwrap();
    assert!(
        stats.contains("/a/data.vrt: not stored: UnitType"),
        "{stats}"
    );
    if support::is_installed("gdal_edit.py") {
        let edit = |args: &[&str]| run("gdal_edit.py", args, &mount.join("a"));
        assert_eq!(edit(&["-a_srs", "EPSG:32632", "data.vrt"]), "");
        assert!(
            attributes().contains(r#""_CRS":{"wkt":"PROJCS["#),
            "{}",
            attributes()
        );
        let info = run("gdalinfo", &["data.vrt"], &mount.join("a"));
        assert!(info.contains("WGS 84 / UTM zone 32N"), "{info}");
        // GDAL repeats the system with the next change, and removes it
        let system = attributes();
        assert_eq!(edit(&["-mo", "A=B", "data.vrt"]), "");
        assert_eq!(attributes(), system);
        assert_eq!(edit(&["-a_srs", "", "data.vrt"]), "");
        assert!(!attributes().contains("_CRS"), "{}", attributes());
        assert_eq!(edit(&["-a_nodata", "7", "data.vrt"]), "");
        let stats = fs::read_to_string(mount.join(".zarrfs/stats")).unwrap();
        assert!(
            stats.contains("/a/data.vrt: not stored: NoDataValue of VRTRasterBand"),
            "{stats}"
        );
        assert_eq!(
            run(
                "gdal_edit.py",
                &["-mo", "units=K", "-mo", "history=by GDAL", "data.vrt"],
                &mount.join("a")
            ),
            ""
        );
        let told = attributes();
        assert!(
            told.contains(r#""units":"K""#) && told.contains(r#""history":"byGDAL""#),
            "{told}"
        );
    }
    // copy a header of another raster over this one
    fs::write(
        &path,
        text.replace("rasterXSize=\"12\"", "rasterXSize=\"13\"")
            .replace(">K<", ">degF<"),
    )
    .unwrap();
    assert!(!attributes().contains("degF"));
    let stats = fs::read_to_string(mount.join(".zarrfs/stats")).unwrap();
    assert!(stats.contains("rasterXSize"), "{stats}");
    assert!(array.stored_flat().unwrap() == array.flat);
}

/// Text headers accept writes, so that a directory can be copied over another, and stay as they are;
/// `.zarrfs/stats` names what was written.
#[test]
fn text_headers_accept_writes_and_stay_as_they_are() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &[]);
    let before = support::tree::snapshot(folder.path()).unwrap();
    for name in HEADERS
        .iter()
        .filter(|name| !["data.raw", "data.npy"].contains(name))
    {
        let path = mount.join("a").join(name);
        let text = fs::read(&path).unwrap();
        assert!(!text.is_empty() && text.is_ascii(), "{name}");
        assert_eq!(overwrite(&path, 3, b"something else"), "ok", "{name}");
        fs::write(&path, "something else").unwrap();
        let stats = fs::read_to_string(mount.join(".zarrfs/stats")).unwrap();
        assert!(
            stats.contains(&format!("/a/{name}: not stored: ")),
            "{stats}"
        );
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(errno(file.set_len(2)), "ok", "{name}");
        drop(file);
        // a removed file is absent until a listing shows that it exists as long as the array
        fs::remove_file(&path).unwrap();
        assert_eq!(errno(fs::read(&path)), "ENOENT", "{name}");
        assert!(shown(&mount.join("a")).contains(*name), "{name}");
        assert!(fs::read(&path).unwrap() == text, "{name}");
        assert_eq!(
            fs::metadata(&path).unwrap().len(),
            text.len() as u64,
            "{name}"
        );
        let inner = OpenOptions::new().write(true).create_new(true).open(&path);
        assert_eq!(errno(inner), "EEXIST", "{name}");
        assert_eq!(
            errno(fs::rename(&path, mount.join("a/other"))),
            "EPERM",
            "{name}"
        );
    }
    fs::remove_file(mount.join("a/data.npy")).unwrap();
    assert!(shown(&mount.join("a")).contains("data.npy"));
    assert_eq!(
        fs::read(mount.join("a/data.npy")).unwrap().len(),
        128 + array.flat.len()
    );
    assert!(
        before == support::tree::snapshot(folder.path()).unwrap(),
        "the store was changed"
    );
}

#[test]
fn headers_cannot_be_written_in_a_read_only_mount() {
    let (folder, _) = store();
    let mount = Mount::new(folder.path(), &["-o", "ro", "--containers", "all"]);
    for name in [
        "a/data.npy",
        "a/data.vrt",
        "a/README.txt",
        "a/data.tif",
        "dataset.nc",
    ] {
        let path = mount.join(name);
        assert_eq!(
            errno(OpenOptions::new().write(true).open(&path)),
            "EROFS",
            "{name}"
        );
        assert_eq!(errno(fs::remove_file(&path)), "EROFS", "{name}");
        assert!(!fs::read(&path).unwrap().is_empty(), "{name}");
    }
}

/// cp and tar copy everything out of a mount without an error, back onto the same array, and to a
/// new array.
#[test]
fn trees_with_headers_are_copied() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &["--containers", "all"]);
    let all = mount.join("a");
    let copies = tempfile::tempdir().unwrap();
    let from = all.to_str().unwrap();
    assert_eq!(run("cp", &["-r", from, "by-cp"], copies.path()), "");
    fs::create_dir(copies.path().join("by-tar")).unwrap();
    assert_eq!(
        run("tar", &["cf", "a.tar", "-C", from, "."], copies.path()),
        ""
    );
    assert_eq!(
        run("tar", &["xf", "a.tar", "-C", "by-tar"], copies.path()),
        ""
    );
    let names = |path: &Path| {
        fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect::<BTreeSet<_>>()
    };
    for copy in ["by-cp", "by-tar"] {
        let copy = copies.path().join(copy);
        assert_eq!(names(&copy), names(&all));
        for name in names(&all) {
            assert!(
                fs::read(copy.join(&name)).unwrap() == fs::read(all.join(&name)).unwrap(),
                "{name:?}"
            );
        }
        // copy back onto the same array, whose headers are equal
        assert_eq!(
            run(
                "cp",
                &["-r", &format!("{}/.", copy.display()), from],
                copies.path()
            ),
            ""
        );
        assert!(array.stored_flat().unwrap() == array.flat);
    }
    // the headers of the copy say another name
    assert_eq!(run("cp", &["-r", "a", "new"], mount.path()), "");
    assert_eq!(shown(&mount.join("new")), shown(&all));
    assert!(fs::read(mount.join("new/data.raw")).unwrap() == array.flat);
    let stored = names(&folder.path().join("new"));
    let strange = stored
        .iter()
        .filter(|n| n.to_str().unwrap().starts_with(['d', 'R']))
        .collect::<Vec<_>>();
    assert!(strange.is_empty(), "stored: {strange:?}");
}

/// `rm -r` of an array removes its headers as well.
#[test]
fn arrays_with_headers_are_removed() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &["--containers", "all"]);
    assert_eq!(run("rm", &["-r", "a"], mount.path()), "");
    assert!(!mount.join("a").exists() && !array.path.exists());
}

#[test]
fn find_and_du_count_bytes_once() {
    let (folder, array) = store();
    let with = Mount::new(folder.path(), &[]);
    let without = Mount::new(folder.path(), &["--headers", "none"]);
    let used = |mount: &Mount, name: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(mount.join(name)).unwrap().blocks() * 512
    };
    assert_eq!(used(&with, "a/data.raw"), used(&without, "a/data.raw"));
    let size = array.flat.len() as u64;
    assert!(
        size < 1024 && used(&with, "a/data.npy") <= 1024,
        "{}",
        used(&with, "a/data.npy")
    );
    let output = Command::new("find")
        .arg(with.path())
        .args(["-name", "data.*", "-printf", "%f %s\n"])
        .output()
        .unwrap();
    assert!(output.stderr.is_empty());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains(&format!("data.npy {}\n", 128 + size)),
        "{said}"
    );
}

#[test]
fn a_store_on_a_server_has_the_same_headers() {
    let (folder, array) = store();
    let server = FaultyServer::new(folder.path());
    let mut command = Command::new(ZARRFS);
    command.args(["mount", "--containers", "tif,nii"]);
    let mount = Mount::with_command(command, server.url("").as_ref());
    let here = Mount::new(folder.path(), &["--containers", "tif,nii"]);
    assert_eq!(shown(&mount.join("a")), shown(&here.join("a")));
    for name in shown(&here.join("a")) {
        let far = mount.join("a").join(&name);
        let near = here.join("a").join(&name);
        assert!(fs::read(far).unwrap() == fs::read(near).unwrap(), "{name}");
    }
    assert!(
        fs::read(mount.join("a/data.npy")).unwrap() == [npy_header("7, 12"), array.flat].concat()
    );
}

/// Headers show the new shape of an array after a resize through the mount and in the store.
#[test]
fn headers_follow_the_shape() {
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &["--resize"]);
    let header = |shape: &str| {
        let file = fs::read(mount.join("a/data.npy")).unwrap();
        assert!(
            file.starts_with(&npy_header(shape)),
            "{shape}: {}",
            String::from_utf8_lossy(&file[..128])
        );
        let text = fs::read_to_string(mount.join("a/data.vrt")).unwrap();
        let rows = shape.split(',').next().unwrap();
        assert!(
            text.contains(&format!("rasterYSize=\"{rows}\"")),
            "{shape}: {text}"
        );
        assert_eq!(
            file.len() as u64,
            fs::metadata(mount.join("a/data.npy")).unwrap().len()
        );
        assert_eq!(file[128..], fs::read(mount.join("a/data.raw")).unwrap());
    };
    header("7, 12");
    // resize by writing data.raw
    OpenOptions::new()
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap()
        .set_len(10 * 24)
        .unwrap();
    header("10, 12");
    // resize by writing .zarray
    let document = fs::read_to_string(mount.join("a/.zarray")).unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&document).unwrap();
    document["shape"] = json!([4, 12]);
    fs::write(mount.join("a/.zarray"), document.to_string()).unwrap();
    header("4, 12");
    // resize in the store, behind the mount
    replace(&array.path.join(".zarray"), array.text().as_bytes());
    std::thread::sleep(std::time::Duration::from_millis(2500));
    header("7, 12");
}

/// Headers show changed attributes at their next open.
#[test]
fn headers_follow_the_attributes() {
    let (folder, _) = store();
    let mount = Mount::new(folder.path(), &[]);
    let text = || fs::read_to_string(mount.join("a/data.vrt")).unwrap();
    assert!(text().contains("<UnitType>K</UnitType>"), "{}", text());
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(
        mount.join("a"),
        "user.zarr.attrs.units",
        br#""degC""#,
        flags,
    )
    .unwrap();
    rustix::fs::setxattr(
        mount.join("a"),
        "user.zarr.attrs.scale_factor",
        b"0.5",
        flags,
    )
    .unwrap();
    assert!(
        text().contains("<UnitType>degC</UnitType>") && text().contains("<Scale>0.5</Scale>"),
        "{}",
        text()
    );
    fs::write(
        mount.join("a/.zattrs"),
        r#"{"_ARRAY_DIMENSIONS": ["y", "x"]}"#,
    )
    .unwrap();
    assert!(!text().contains("<UnitType>"), "{}", text());
}

/// Runs a command on a file and returns its output.
fn said(command: &[&str], path: &Path) -> String {
    let output = with_timeout(60, command[0])
        .args(&command[1..])
        .arg(path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// `getfattr -d` lists attributes as JSON on the directory and on each file for other programs.
/// `setfattr` takes JSON, and any other value as text.
#[test]
fn attributes_are_read_and_set_by_getfattr_and_setfattr() {
    if !is_installed("getfattr") {
        return;
    }
    let (folder, array) = store();
    let mount = Mount::new(folder.path(), &[]);
    let a = mount.join("a");
    for name in ["", "data.raw", "data.npy", "data.vrt"] {
        let listed = said(&["getfattr", "-d", "--absolute-names"], &a.join(name));
        for line in [
            r#"user.zarr.attrs._ARRAY_DIMENSIONS="[\"y\",\"x\"]""#,
            r#"user.zarr.attrs.units="\"K\"""#,
            r#"user.zarr.shape="[7,12]""#,
            r#"user.zarr.dtype="\"<i2\"""#,
            r#"user.zarr.fill_value="-9""#,
        ] {
            assert!(
                listed.lines().any(|l| l == line),
                "{name}: {line} in {listed}"
            );
        }
    }
    let stored = || {
        serde_json::from_slice::<serde_json::Value>(&fs::read(array.path.join(".zattrs")).unwrap())
            .unwrap()
    };
    for (name, value, wanted) in [
        ("units", r#""degC""#, json!("degC")),
        ("valid_range", "[0, 50.5]", json!([0, 50.5])),
        ("number", "273.15", json!(273.15)),
        ("text", "not JSON", json!("not JSON")),
        ("nested", r#"{"a": {"b": null}}"#, json!({"a": {"b": null}})),
    ] {
        said(
            &[
                "setfattr",
                "-n",
                &format!("user.zarr.attrs.{name}"),
                "-v",
                value,
            ],
            &a.join("data.npy"),
        );
        assert_eq!(stored()[name], wanted);
        let got = said(
            &[
                "getfattr",
                "--only-values",
                "-n",
                &format!("user.zarr.attrs.{name}"),
            ],
            &a,
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&got).unwrap(),
            wanted,
            "{name}"
        );
    }
    said(&["setfattr", "-x", "user.zarr.attrs.nested"], &a);
    assert_eq!(stored().get("nested"), None);
    assert_eq!(stored()["_ARRAY_DIMENSIONS"], json!(["y", "x"]));
    said(
        &[
            "setfattr",
            "-n",
            "user.zarr.attrs.title",
            "-v",
            "of the group",
        ],
        mount.path(),
    );
    assert!(
        said(&["getfattr", "-d"], mount.path())
            .contains(r#"user.zarr.attrs.title="\"of the group\"""#)
    );
    let refused = Command::new("setfattr")
        .args(["-n", "user.zarr.shape", "-v", "[1]"])
        .arg(&a)
        .output()
        .unwrap();
    assert!(!refused.status.success(), "the shape was set");
}

/// Shared maps of `data.npy` and `data.raw` show the same array once they are synced and opened
/// again.
#[test]
fn maps_of_data_npy_and_data_raw_show_the_same_array() {
    let (folder, mut made) = store();
    let mount = Mount::new(folder.path(), &[]);
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount.join("a").join(name))
            .unwrap()
    };
    for round in 0..3u8 {
        let npy = SharedMap::new(&open("data.npy"));
        let flat = SharedMap::new(&open("data.raw"));
        assert!(
            npy.bytes()[128..] == made.flat && flat.bytes() == made.flat,
            "round {round}"
        );
        npy.set(128 + 30, round + 100);
        made.flat[30] = round + 100;
        npy.sync();
        drop(npy);
        assert!(
            fs::read(mount.join("a/data.raw")).unwrap() == made.flat,
            "round {round}: read"
        );
        flat.sync();
        drop(flat);
        let flat = SharedMap::new(&open("data.raw"));
        assert!(flat.bytes() == made.flat, "round {round}: mapped again");
        flat.set(31, round + 50);
        made.flat[31] = round + 50;
        flat.sync();
        drop(flat);
        assert!(
            fs::read(mount.join("a/data.npy")).unwrap()[128..] == made.flat,
            "round {round}: the other way"
        );
        assert!(
            made.stored_flat().unwrap() == made.flat,
            "round {round}: the store"
        );
    }
}

/// Returns the store that tests/python/geo.py creates.
fn geo(python: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    announce(run_python(python, "geo.py", &[folder.path().to_str().unwrap()]).trim());
    folder
}

fn compare(options: &[&str], checks: &[&str]) {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let geo = geo(&python);
    let mount = Mount::new(&geo.path().join("geo.zarr"), options);
    let mut args = vec![mount.path().to_str().unwrap(), geo.path().to_str().unwrap()];
    args.extend(checks);
    announce(run_python(&python, "headers.py", &args).trim());
    mount.assert_no_problem();
}

#[test]
fn numpy_reads_and_maps_every_array() {
    compare(&[], &["npy"]);
}

#[test]
fn every_format_is_shown_for_the_arrays_that_it_can_describe() {
    compare(&["--containers", "all"], &["presence"]);
}

#[test]
fn rasterio_reads_values_and_geometry() {
    compare(&["-o", "ro"], &["vrt", "envi"]);
    compare(&["--containers", "tif"], &["tiff_raster"]);
}

#[test]
fn image_readers_read_values_and_geometry() {
    compare(&[], &["pynrrd", "itk_nrrd", "itk_meta_image"]);
    compare(
        &["--containers", "tif,nii"],
        &["tiff", "itk_tiff", "nifti", "itk_nifti"],
    );
}

#[test]
fn netcdf_readers_read_the_group() {
    compare(&["--containers", "nc"], &["netcdf", "xarray_netcdf"]);
}

/// Maps, `numpy.save` and netCDF4 change the array in place, and zarr-python reads the changes from
/// the store.
#[test]
fn programs_write_in_place() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let copy = tempfile::tempdir().unwrap();
    copy_tree(geo(&python).path(), copy.path());
    let mount = Mount::new(&copy.path().join("geo.zarr"), &["--containers", "all"]);
    let args = [
        mount.path().to_str().unwrap(),
        copy.path().to_str().unwrap(),
    ];
    announce(run_python(&python, "headers_written.py", &args).trim());
}
