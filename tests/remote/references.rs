//! References to NetCDF-4, HDF5 and TIFF files, as Kerchunk, VirtualiZarr and tifffile write them,
//! on real mounts: compared with what netCDF4, h5netcdf, h5py and tifffile read from the files. And
//! hostile references, with the logs of the servers that they lead to.

use crate::support::servers::{self, RemoteStore, Server};
use crate::support::{
    Mount, ZARRFS, announce, env_path, errno, failure, run_python, text, with_timeout, zarrfs,
};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The references that `references.py` writes.
const NAMES: [&str; 8] = [
    "own.kerchunk-first",
    "own.kerchunk-second",
    "own.kerchunk-combined",
    "own.kerchunk-h",
    "own.virtualizarr-first",
    "own.virtualizarr-second",
    "own.tifffile",
    "own.tifffile-0",
];

/// An array of four bytes in two chunks.
const ARRAY: &str = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"|u1","fill_value":9,"compressor":null,
    "filters":null,"order":"C"}"#;

/// Compares mounts with the files.
fn check(python: &Path, folder: &Path, mounts: &[(&str, Mount)]) {
    let mut args = vec!["check".to_string(), text(folder).to_string()];
    args.extend(
        mounts
            .iter()
            .map(|(name, mount)| format!("{name}={}", text(mount.path()))),
    );
    announce(run_python(python, "references.py", &args).trim());
    mounts
        .iter()
        .for_each(|(_, mount)| mount.assert_no_problem());
}

/// Writes references to an array whose chunks are those values.
fn write(path: &Path, first: &str, second: &str) -> PathBuf {
    let text = format!(
        r#"{{"version":1,"refs":{{".zgroup":{{"zarr_format":2}},"a/.zarray":{ARRAY},"a/0":{first},"a/1":{second}}}}}"#
    );
    fs::write(path, text).unwrap();
    path.to_path_buf()
}

#[test]
fn netcdf_hdf5_and_tiff_files_are_plain_files() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("originals");
    run_python(
        &python,
        "references.py",
        &[
            "make",
            text(folder.path()),
            &format!("own={}", text(&prefix)),
        ],
    );
    let open = |name: &'static str| {
        (
            name,
            Mount::new(&folder.path().join(format!("{name}.json")), &[]),
        )
    };
    let mounts: Vec<_> = NAMES.into_iter().map(open).collect();
    check(&python, folder.path(), &mounts);
    let (_, first) = &mounts[0];
    assert_eq!(errno(fs::write(first.join("temp/0.0.0"), "x")), "EROFS");
    for verb in ["info", "ls", "check"] {
        let output = zarrfs(&[verb, text(&folder.path().join("own.kerchunk-first.json"))]);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{verb}: {output:?}"
        );
    }
    let array = folder.path().join("own.kerchunk-first.json/temp");
    assert_eq!(
        zarrfs(&["cat", text(&array)]).stdout,
        fs::read(first.join("temp/data.raw")).unwrap()
    );
    assert!(
        zarrfs(&["header", "--format", "npy", text(&array)])
            .stdout
            .starts_with(b"\x93NUMPY")
    );
    let put = Command::new(ZARRFS)
        .args(["put", text(&array)])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(failure(&put).0, 1);
    // a changed file shows at the next opening
    let (_, image) = &mounts[7];
    let before = fs::read(image.join("data.raw")).unwrap();
    let path = prefix.join("image.tif");
    fs::write(&path, fs::read(&path).unwrap()).unwrap();
    assert_eq!(fs::read(image.join("data.raw")).unwrap(), before);
    fs::write(&path, b"II").unwrap();
    assert_eq!(errno(fs::read(image.join("data.raw"))), "EIO");
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(fs::read(image.join("data.raw"))), "EIO");
    assert!(
        image.stats().contains("image.tif: is missing"),
        "{}",
        image.stats()
    );
}

#[test]
fn files_on_servers_are_read_by_ranges() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (Some(web), Some(bucket)) = (servers::nginx(folder.path(), ""), servers::moto()) else {
        return;
    };
    let url = format!("{}/originals", web.endpoint());
    let sets = [
        "near=originals",
        &format!("web={url}"),
        "s3=s3://refs/data/originals",
    ];
    run_python(
        &python,
        "references.py",
        &[&["make", text(folder.path())], &sets[..]].concat(),
    );
    bucket.upload(folder.path(), "refs/data");
    let local = |name: &'static str, args: &[&str]| {
        (
            name,
            Mount::new(&folder.path().join(format!("{name}.json")), args),
        )
    };
    let remote = |name: &'static str| {
        let store = if name.starts_with("s3") {
            bucket.store("refs/data")
        } else {
            web.store("")
        };
        let url = format!("{}/{name}.json", store.url.trim_end_matches('/'));
        (name, RemoteStore { url, ..store }.mount(&[]))
    };
    // local references to files on a server, with a disk cache
    let cache = folder.path().join("cache");
    let args = ["--allow-reference", &url, "--cache-dir", text(&cache)];
    let mut mounts = vec![
        local("near.kerchunk-h", &[]),
        local("web.kerchunk-combined", &args),
    ];
    mounts.extend(
        [
            "near.kerchunk-first",
            "near.tifffile",
            "web.kerchunk-second",
            "web.virtualizarr-first",
        ]
        .map(remote),
    );
    mounts.extend(
        [
            "web.tifffile-0",
            "s3.kerchunk-combined",
            "s3.virtualizarr-second",
        ]
        .map(remote),
    );
    check(&python, folder.path(), &mounts);
    assert!(
        web.requests()
            .iter()
            .any(|line| line.starts_with("GET /originals/first.nc 206 [bytes="))
    );
    let (_, again) = local("web.kerchunk-combined", &args);
    let read = |mount: &Mount| fs::read(mount.join("temp/data.raw")).unwrap();
    assert!(read(&again) == read(&mounts[1].1) && again.counter("disk_cache_hits") > 10);
}

/// Returns what reading the array gives: its bytes or an errno.
fn read(mount: &Mount) -> Result<Vec<u8>, String> {
    fs::read(mount.join("a/data.raw")).map_err(|e| errno::<()>(Err(e)))
}

/// Returns the requests to a server whose paths begin with `path`.
fn requests(server: &Server, path: &str) -> Vec<String> {
    let lines = server.requests().into_iter();
    lines
        .filter(|line| {
            line.split(' ')
                .nth(1)
                .is_some_and(|uri| uri.starts_with(path))
        })
        .collect()
}

#[test]
fn targets_elsewhere_are_neither_opened_nor_requested() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mine", "mine2", "other"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("x"), b"\x01\x02\x03\x04").unwrap();
    }
    let refs = folder.path().join("mine/refs.json");
    let denied = || Err("EACCES".to_string());
    symlink("../other/x", folder.path().join("mine/link")).unwrap();
    let secret = folder.path().join("other/x");
    for target in [
        "../other/x",
        "/etc/passwd",
        text(&secret),
        "file:///etc/hostname",
        "link",
        "../mine2/x",
    ] {
        write(&refs, &format!(r#"["{target}",0,2]"#), r#"["x",2,2]"#);
        let mount = Mount::new(&refs, &["--headers", "none"]);
        assert_eq!(
            (read(&mount), fs::read(mount.join("a/1")).unwrap()),
            (denied(), vec![3, 4]),
            "{target}"
        );
        assert_eq!(errno(fs::read(mount.join("a/0"))), "EACCES", "{target}");
    }
    write(
        &refs,
        &format!(r#"["{}",0,2]"#, text(&secret)),
        r#"["../mine2/x",2,2]"#,
    );
    let [one, two] = ["other/x", "mine2"].map(|name| folder.path().join(name));
    let mount = Mount::new(
        &refs,
        &[
            "--allow-reference",
            text(&one),
            "--allow-reference",
            text(&two),
        ],
    );
    assert_eq!(read(&mount), Ok(vec![1, 2, 3, 4]));
    drop(mount);

    let (Some(first), Some(second)) = (
        servers::nginx(folder.path(), ""),
        servers::nginx(folder.path(), ""),
    ) else {
        return;
    };
    let mine = |args: &[&str]| {
        let store = RemoteStore {
            url: format!("{}/mine/refs.json", first.endpoint()),
            ..first.store("")
        };
        store.with(&["--header", "X-Test: token"]).mount(args)
    };
    let away = format!("{}/other/x", second.endpoint());
    for target in [
        &away,
        &format!("{}/other/x", first.endpoint()),
        "../other/x",
        "%2e%2e/other/x",
        "/other/x",
        &format!("file://{}", text(&secret)),
        &format!(
            "http://{}@127.0.0.1/other/x",
            first.endpoint().replace("http://", "")
        ),
    ] {
        write(&refs, &format!(r#"["{target}",0,2]"#), r#"["x",2,2]"#);
        let mount = mine(&["--headers", "none"]);
        assert_eq!(
            (read(&mount), fs::read(mount.join("a/1")).unwrap()),
            (denied(), vec![3, 4]),
            "{target}"
        );
    }
    assert!(
        requests(&first, "/other").is_empty()
            && requests(&second, "")
                .iter()
                .all(|line| line.contains(".nothing"))
    );
    // the header is sent to allowed prefixes, and to them alone
    write(&refs, &format!(r#"["{away}",0,2]"#), r#"["x",2,2]"#);
    let mount = mine(&[
        "--allow-reference",
        &format!("{}/other/", second.endpoint()),
    ]);
    assert_eq!(read(&mount), Ok(vec![1, 2, 3, 4]));
    let sent = requests(&second, "/other/x");
    assert!(
        !sent.is_empty() && sent.iter().all(|line| line.ends_with("[token]")),
        "{sent:?}"
    );
}

/// A daemon that reads a target through its own mount would wait for itself.
#[test]
fn targets_in_the_mount_itself_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mountpoint = folder.path().join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    fs::write(folder.path().join("x"), "abcd").unwrap();
    let array =
        r#"{\"zarr_format\":2,\"shape\":[16],\"chunks\":[4],\"dtype\":\"|u1\",\"compressor\":null,
        \"fill_value\":0,\"order\":\"C\",\"filters\":null}"#
            .replace('\n', "");
    let refs = folder.path().join("refs.json");
    let document = format!(
        r#"{{"a/.zarray":"{array}","a/0":["x"],"a/1":["mnt/a/data.raw",0,4],"a/2":["{}/a/0"]}}"#,
        text(&mountpoint)
    );
    fs::write(&refs, document).unwrap();
    assert!(
        zarrfs(&["mount", text(&refs), text(&mountpoint)])
            .status
            .success()
    );
    let read = |name: &str| {
        with_timeout(300, "cat")
            .arg(mountpoint.join(name))
            .output()
            .unwrap()
    };
    let said = ["a/0", "a/1", "a/2"].map(read);
    let unmounted = zarrfs(&["umount", "--force", text(&mountpoint)]);
    assert!(unmounted.status.success(), "{unmounted:?}, after {said:?}");
    assert_eq!(said[0].stdout, b"abcd");
    for refused in &said[1..] {
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains("Permission denied"),
            "{refused:?}"
        );
    }
}

#[test]
fn redirects_of_targets_stay_below_the_prefixes() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mine", "other"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("x"), b"\x01\x02\x03\x04").unwrap();
    }
    let Some(second) = servers::nginx(folder.path(), "") else {
        return;
    };
    let jump = format!(
        "location /mine/away {{ return 302 {}/other/x; }} location /mine/near {{ return 302 /mine/x; }}",
        second.endpoint()
    );
    let Some(first) = servers::nginx(folder.path(), &jump) else {
        return;
    };
    let store = RemoteStore {
        url: format!("{}/mine/refs.json", first.endpoint()),
        ..first.store("")
    };
    write(
        &folder.path().join("mine/refs.json"),
        r#"["away",0,2]"#,
        r#"["near",2,2]"#,
    );
    let mount = store.mount(&["--headers", "none"]);
    assert_eq!(
        (
            errno(fs::read(mount.join("a/0"))),
            fs::read(mount.join("a/1")).unwrap()
        ),
        ("EACCES".into(), vec![3, 4])
    );
    assert!(requests(&second, "/other").is_empty());
    let mount = store.mount(&["--allow-reference", &second.endpoint()]);
    assert_eq!(read(&mount), Ok(vec![1, 2, 3, 4]));
}

#[test]
fn a_faulty_reference_is_an_error_of_its_chunk_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x"), b"\x01\x02").unwrap();
    let path = folder.path().join("refs.json");
    for (reference, why) in [
        ("null", "neither a text nor a list"),
        (r#"["x",-1,2]"#, "neither [URL] nor [URL, OFFSET, LENGTH]"),
        (
            r#"["x",9223372036854775807,1]"#,
            "more than a file can have",
        ),
        (r#""base64:*""#, "not base64"),
    ] {
        write(&path, r#"["x",0,2]"#, reference);
        let mount = Mount::new(&path, &[]);
        assert_eq!(fs::read(mount.join("a/0")).unwrap(), [1, 2], "{reference}");
        for name in ["a/1", "a/data.raw"] {
            assert_eq!(
                errno(fs::read(mount.join(name))),
                "EIO",
                "{name}: {reference}"
            );
        }
        let mut names = fs::read_dir(mount.join("a")).unwrap();
        assert!(
            names.any(|name| name.unwrap().file_name() == "1"),
            "{reference}"
        );
        drop(mount);
        let checked = zarrfs(&["check", text(&path)]);
        let found = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(!checked.status.success(), "{found}");
        let is_named = found.contains("the reference \"a/1\": ") && found.contains(why);
        assert!(
            is_named && found.contains("1 finding"),
            "{reference}: {found}"
        );
    }
}

#[test]
fn hostile_references_end_in_one_line_and_within_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refs.json");
    let generator = |count: u64| {
        format!(
            r#"{{"version":1,"refs":{{".zgroup":"{{\"zarr_format\":2}}"}},"gen":[{{"key":"a/{{{{i}}}}","url":"x",
                "dimensions":{{"i":{{"stop":{count}}}}}}}]}}"#
        )
    };
    fs::write(&path, generator(100_000)).unwrap();
    let mount = Mount::new(&path, &["--cache-size", "16M"]);
    assert!(fs::read_dir(mount.join("a")).unwrap().count() >= 100_000);
    // 200 bytes for each name that the kernel keeps
    assert!(
        mount.peak_memory() < (16 << 20) + (64 << 20) + 100_000 * 200,
        "{} MiB",
        mount.peak_memory() >> 20
    );
    drop(mount);
    let mountpoint = tempfile::tempdir().unwrap();
    let refused = |document: &str, why: &str| {
        fs::write(&path, document).unwrap();
        let (code, message) = failure(&zarrfs(&[
            "mount",
            "--cache-size",
            "16M",
            text(&path),
            text(mountpoint.path()),
        ]));
        assert!(code == 4 && message.contains(why), "{code}: {message}");
    };
    for count in [2_000_000, 1 << 40, i64::MAX as u64] {
        refused(&generator(count), "--cache-size");
    }
    refused(
        &format!(r#"{{"a":"{}"}}"#, "x".repeat(32 << 20)),
        "--cache-size",
    );
    refused(&r#"{"a":"#.repeat(1 << 20), "ends too early");
    refused(
        r#"{"version":1,"templates":{"u":"{{u}}"},"refs":{"a":["{{u}}"]}}"#,
        "is an expression",
    );
    refused("{}", "not a Zarr store");
    fs::create_dir_all(folder.path().join("parquet/a")).unwrap();
    fs::write(
        folder.path().join("parquet/.zmetadata"),
        r#"{"metadata":{},"record_size":10}"#,
    )
    .unwrap();
    fs::write(folder.path().join("parquet/a/refs.0.parq"), "PAR1").unwrap();
    let (code, message) = failure(&zarrfs(&["info", text(&folder.path().join("parquet"))]));
    assert!(
        code == 4 && message.contains("convert them to JSON"),
        "{code}: {message}"
    );
}
