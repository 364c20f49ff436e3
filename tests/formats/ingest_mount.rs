//! Files that programs write into a mount with `--ingest`: `python/ingest.py` has netCDF-C, scipy,
//! xarray and NumPy write them, and compares what the mount shows with the same files in a
//! directory, and the store by zarr-python and xarray. NCO and CDO write and change others. Names,
//! refusals and kills are compared with the files of the store.

use super::ingest::{classic, many};
use crate::support::daemon::Daemon;
use crate::support::{
    self, Mount, close, env_path, errno, is_installed, listed, run, run_python, servers, test_data,
    tree, wait_for,
};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const GROUP_V2: &str = r#"{"zarr_format": 2}"#;
const GROUP_V3: &str = r#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;

/// Writes a file, and returns the error of its close, which `fs::write` ignores.
fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes.as_ref())?;
    close(file)
}

/// Returns the bytes of an NPY file with two items of this dtype, and as many bytes of items.
fn npy(dtype: &str, items: u8) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': (2,), }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:117}\n").bytes());
    bytes.extend(0..items);
    bytes
}

/// Makes an empty store.
fn store(path: &Path, is_v3: bool) -> PathBuf {
    let (name, text) = if is_v3 {
        ("zarr.json", GROUP_V3)
    } else {
        (".zgroup", GROUP_V2)
    };
    support::write_file(path.join(name), text);
    path.to_path_buf()
}

/// The layouts with which files are stored: a name, whether the store is one of v3, and options.
const LAYOUTS: [(&str, bool, &[&str]); 3] = [
    ("v2", false, &["--ingest=nc,npy"]),
    (
        "v3",
        true,
        &["--ingest", "--ingest-options=compressor=zstd chunks=auto"],
    ),
    (
        "sharded",
        true,
        &[
            "-o",
            "ingest",
            "--ingest-options",
            "shards=auto chunks=3,40,50",
        ],
    ),
];

/// Each file shows its group or array, and `zarrfs put` makes the same store.
#[test]
fn copied_files_become_arrays_of_every_format() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("files");
    fs::create_dir(&files).unwrap();
    run_python(&python, "ingest.py", &[Path::new("make"), &files]);
    for (name, is_v3, options) in LAYOUTS {
        let store = store(&folder.path().join(name), is_v3);
        let mount = Mount::new(&store, options);
        let mut count = 0;
        for file in support::names(&files) {
            // the group has one end, with which the files are compared
            let Some((_, end @ ("nc" | "npy"))) = file.rsplit_once('.') else {
                continue;
            };
            let target = mount.join(&format!("{file}.{end}"));
            fs::copy(files.join(&file), &target).unwrap_or_else(|e| panic!("{file}: {e}"));
            count += 1;
        }
        assert!(count > 90, "{count} files");
        mount.assert_no_problem();
        let shown = [Path::new("shown"), &files, mount.path()];
        let shown = run_python(&python, "ingest.py", &shown);
        assert_eq!(shown.trim().parse(), Ok(count), "{name}");
        drop(mount);
        let readers = [
            (!is_v3).then(|| python.clone()),
            env_path("ZARRFS_TEST_PYTHON3"),
        ];
        for reader in readers.into_iter().flatten() {
            let said = run_python(
                &reader,
                "ingest.py",
                &[Path::new("compare"), &files, &store],
            );
            assert_eq!(said.trim().parse(), Ok(count), "{name}");
        }
        assert_eq!(support::unfinished_files(&store), [""; 0]);
    }
}

#[test]
fn programs_write_into_the_mount_as_into_a_directory() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for (name, is_v3, options) in LAYOUTS {
        let files = folder.path().join(format!("{name}.files"));
        fs::create_dir(&files).unwrap();
        let store = store(&folder.path().join(name), is_v3);
        let mount = Mount::new(&store, options);
        let write = [Path::new("write"), &files, mount.path()];
        run_python(&python, "ingest.py", &write);
        mount.assert_no_problem();
        drop(mount);
        let readers = [
            (!is_v3).then(|| python.clone()),
            env_path("ZARRFS_TEST_PYTHON3"),
        ];
        for reader in readers.into_iter().flatten() {
            let written = [Path::new("written"), &files, &store];
            run_python(&reader, "ingest.py", &written);
        }
    }
}

/// GDAL, R and Octave write a file that shows what they have written into a directory. The order of
/// dimensions is that of their first use.
#[test]
fn gdal_r_and_octave_write_into_the_mount() {
    const R: &str = r#"
        library(ncdf4)
        x <- ncdim_def("x", "degrees_east", 1:20)
        time <- ncdim_def("time", "days since 2000-01-01", 0:2, unlim = TRUE)
        v <- ncvar_def("v", "K", list(x, time), -999, prec = "float")
        file <- nc_create("FILE", v)
        for (i in 1:3) ncvar_put(file, v, 1:20 * i, start = c(1, i), count = c(20, 1))
        ncatt_put(file, 0, "title", "written by R")
        nc_close(file)"#;
    const OCTAVE: &str = r#"
        pkg load netcdf
        nccreate("FILE", "v", "Dimensions", {"x", 5, "y", 4}, "Format", "classic");
        ncwrite("FILE", "v", reshape(1:20, 5, 4));
        ncwriteatt("FILE", "v", "units", "m");"#;
    let folder = tempfile::tempdir().unwrap();
    let grid = folder.path().join("grid.asc");
    let head = "ncols 3\nnrows 2\nxllcorner 5\nyllcorner 40\ncellsize 0.5\n";
    fs::write(&grid, format!("{head}1 2 3\n4 5 6\n")).unwrap();
    let grid = support::text(&grid);
    let writers: [(&str, &[&str], &[&str]); 3] = [
        (
            "gdal_translate",
            &["-q", "-of", "netCDF", "-co", "FORMAT=NC", grid, "FILE"],
            &["--version"],
        ),
        ("Rscript", &["-e", R], &["-e", "library(ncdf4)"]),
        (
            "octave",
            &["-q", "--eval", OCTAVE],
            &["-q", "--eval", "pkg load netcdf"],
        ),
    ];
    let store = store(&folder.path().join("s"), false);
    let mount = Mount::new(&store, &["--ingest"]);
    for (program, args, probe) in writers {
        if !is_installed(program)
            || !Command::new(program)
                .args(probe)
                .status()
                .unwrap()
                .success()
        {
            support::announce(&format!("skipped: {program} does not write netCDF here"));
            continue;
        }
        let name = format!("{program}.nc");
        let dumps = [folder.path(), mount.path()].map(|directory| {
            let file = directory.join(&name);
            let file = support::text(&file);
            let args: Vec<String> = args.iter().map(|arg| arg.replace("FILE", file)).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            run(program, &args, folder.path());
            let dump = run("ncdump", &[file], folder.path());
            let mut lines: Vec<_> = dump
                .lines()
                .filter(|line| !line.contains(":history = "))
                .map(str::to_string)
                .collect();
            lines.sort();
            lines
        });
        assert!(dumps[0].len() > 10, "{dumps:?}");
        assert_eq!(dumps[0], dumps[1]);
        assert!(store.join(program).is_dir());
    }
    mount.assert_no_problem();
}

/// Returns the names of the variables in a group of the store, as directories.
fn variables(group: &Path) -> Vec<String> {
    let entries = fs::read_dir(group).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// "A second file of the same name replaces the group as a whole", in every way in which programs
/// replace files.
#[test]
fn a_file_that_is_written_again_replaces_the_group() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("s"), false);
    let mount = Mount::new(&store, &["--ingest=all"]);
    let file = mount.join("run.nc");
    let assert_is = |name: &str| {
        assert_eq!(variables(&store.join("run")), [name]);
        let shown = fs::read(&file).unwrap();
        assert!(
            shown.starts_with(b"CDF") && shown.ends_with(&[1, 2, 3, 0]),
            "{name}"
        );
        assert!(
            shown
                .windows(name.len())
                .any(|part| part == name.as_bytes())
        );
        assert_eq!(
            listed(mount.path()),
            support::set(&[".zgroup", "run", "run.nc"])
        );
    };
    write(&file, classic("first", 100)).unwrap();
    assert_is("first");
    // truncated and written, by a file that is open for reading as well
    write(&file, classic("second", 100)).unwrap();
    assert_is("second");
    // removed and created exclusively, as mv and tar do
    fs::remove_file(&file).unwrap();
    assert!(!file.exists());
    let mut created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&file)
        .unwrap();
    created.write_all(&classic("third", 100)).unwrap();
    assert_eq!(
        errno(OpenOptions::new().write(true).create_new(true).open(&file)),
        "EEXIST"
    );
    close(created).unwrap();
    assert_is("third");
    // under another name, which is no file of the format, or is one
    write(mount.join("run.nc.tmp"), classic("fourth", 100)).unwrap();
    assert_eq!(
        fs::read(store.join("run.nc.tmp")).unwrap(),
        classic("fourth", 100)
    );
    fs::rename(mount.join("run.nc.tmp"), &file).unwrap();
    assert_is("fourth");
    write(mount.join("other.nc"), classic("fifth", 100)).unwrap();
    assert_eq!(variables(&store.join("other")), ["fifth"]);
    fs::rename(mount.join("other.nc"), &file).unwrap();
    assert_is("fifth");
    // the header first, and the rest through a file that is opened later
    let bytes = classic("sixth", 100);
    let mut header = File::create(&file).unwrap();
    header.write_all(&bytes[..50]).unwrap();
    let mut rest = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&file)
        .unwrap();
    rest.seek(SeekFrom::End(0)).unwrap();
    rest.write_all(&bytes[50..]).unwrap();
    rest.set_len(bytes.len() as u64).unwrap();
    rest.rewind().unwrap();
    let mut read = Vec::new();
    rest.read_to_end(&mut read).unwrap();
    assert_eq!(
        (read.len(), fs::metadata(&file).unwrap().len()),
        (bytes.len(), bytes.len() as u64)
    );
    close(rest).unwrap();
    close(header).unwrap();
    assert_is("sixth");
    mount.assert_no_problem();
}

/// "The names follow from the store", and a mount without the option shows no such name.
#[test]
fn a_later_mount_shows_the_files_of_ingested_nodes_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("s"), false);
    let npy = npy("<i2", 4);
    let put = folder.path().join("put.nc");
    fs::write(&put, classic("x", 100)).unwrap();
    let target = store.join("put");
    let output = support::zarrfs(&["put", target.to_str().unwrap(), put.to_str().unwrap()]);
    assert!(output.status.success());
    support::copy_tree(&test_data("sample.zarr"), &store.join("made"));
    let mount = Mount::new(&store, &["--ingest=all"]);
    write(mount.join("a.nc"), classic("x", 100)).unwrap();
    write(mount.join("b.npy"), &npy).unwrap();
    assert_eq!(fs::read(mount.join("b.npy")).unwrap(), npy);
    let all = [
        ".zgroup", "a", "a.nc", "b", "b.npy", "made", "put", "put.nc",
    ];
    assert_eq!(listed(mount.path()), support::set(&all));
    // groups and arrays that were made otherwise are no files, and stay
    let before = tree::files(&store.join("made"));
    write(mount.join("made.nc"), classic("x", 100)).unwrap();
    write(mount.join("a.npy"), &npy).unwrap();
    assert_eq!(fs::read(store.join("made.nc")).unwrap(), classic("x", 100));
    assert_eq!(fs::read(store.join("a.npy")).unwrap(), npy);
    assert_eq!(tree::files(&store.join("made")), before);
    for name in [".hidden.nc", "x.nc.gz", "x.NC"] {
        write(mount.join(name), "text").unwrap();
        assert_eq!(fs::read(store.join(name)).unwrap(), b"text");
    }
    drop(mount);
    let stored = tree::files(&store);
    for (options, more) in [
        (&["--ingest=nc", "--read-only"][..], &["a.nc", "put.nc"][..]),
        (&["--ingest=npy"], &["b.npy"]),
        (&[], &[]),
    ] {
        let mount = Mount::new(&store, options);
        let mut expected = support::set(&[
            ".hidden.nc",
            ".zgroup",
            "a",
            "a.npy",
            "b",
            "made",
            "made.nc",
            "put",
            "x.NC",
            "x.nc.gz",
        ]);
        expected.extend(more.iter().map(|name| name.to_string()));
        assert_eq!(listed(mount.path()), expected, "{options:?}");
        assert_eq!(mount.join("a.nc").exists(), more.contains(&"a.nc"));
    }
    assert_eq!(tree::files(&store), stored);
}

#[test]
fn removed_and_renamed_files_are_removed_and_renamed_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("s"), true);
    let mount = Mount::new(&store, &["--ingest=all"]);
    write(mount.join("a.nc"), classic("x", 100)).unwrap();
    let size = fs::metadata(mount.join("a.nc")).unwrap().len();
    let mut open = File::open(mount.join("a.nc")).unwrap();
    let mut start = [0; 4];
    open.read_exact(&mut start).unwrap();
    assert!(start.starts_with(b"CDF"));
    fs::rename(mount.join("a.nc"), mount.join("b.nc")).unwrap();
    assert!(!mount.join("a.nc").exists() && !store.join("a").exists());
    assert_eq!(fs::metadata(mount.join("b.nc")).unwrap().len(), size);
    assert_eq!(variables(&store.join("b")), ["x"]);
    // mv copies what gets another kind of name
    let renamed = fs::rename(mount.join("b.nc"), mount.join("b.dat")).unwrap_err();
    assert_eq!(renamed.raw_os_error(), Some(libc::EXDEV));
    let mv = Command::new("mv")
        .args(["b.nc", "b.dat"])
        .current_dir(mount.path())
        .status();
    assert!(mv.unwrap().success());
    assert_eq!(fs::metadata(store.join("b.dat")).unwrap().len(), size);
    // an empty directory remains, since rm -r removes it next
    assert_eq!(fs::read_dir(store.join("b")).unwrap().count(), 0);
    fs::remove_dir(mount.join("b")).unwrap();
    fs::create_dir(mount.join("d")).unwrap();
    for name in ["d/a.nc", "d/b.nc", "d/a.nc"] {
        write(mount.join(name), classic("x", 100)).unwrap();
    }
    // a draft, which is no group yet
    let draft = File::create(mount.join("d/c.nc")).unwrap();
    fs::rename(mount.join("d/c.nc"), mount.join("d/e.nc")).unwrap();
    (&draft).write_all(&classic("y", 100)).unwrap();
    close(draft).unwrap();
    assert_eq!(variables(&store.join("d/e")), ["y"]);
    let unlinked = File::create(mount.join("d/f.nc")).unwrap();
    (&unlinked).write_all(&classic("y", 100)).unwrap();
    fs::remove_file(mount.join("d/f.nc")).unwrap();
    close(unlinked).unwrap();
    assert!(!store.join("d/f").exists() && !mount.join("d/f.nc").exists());
    mount.assert_no_problem();
    let rm = Command::new("rm")
        .arg("-r")
        .arg(mount.join("d"))
        .output()
        .unwrap();
    assert!(rm.status.success(), "{rm:?}");
    assert!(!store.join("d").exists());
    assert_eq!(support::unfinished_files(&store), [""; 0]);
}

/// "What cannot be converted fails at close, changes nothing, and its bytes are in `NAME.nc.refused`."
#[test]
fn a_damaged_file_fails_at_close_and_its_bytes_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("s"), false);
    let daemon = Daemon::start(&store, &["--ingest=all"]);
    let file = daemon.path().join("run.nc");
    write(&file, classic("x", 100)).unwrap();
    let before = tree::files(&store);
    let shown = fs::read(&file).unwrap();
    let short = classic("x", 101);
    let objects = npy("|O", 16);
    let two = npy("|i1", 9);
    let cases: [(&str, &[u8], &str); 6] = [
        ("run.nc", &short, "the file has 103 of 104 bytes"),
        (
            "new.nc",
            b"\x89HDF\r\n\x1a\n",
            "the file ends before the bytes that it refers to",
        ),
        ("dot.nc", &classic(".x", 100), "names that begin with a dot"),
        ("o.npy", &objects, "Python objects"),
        ("two.npy", &two, "7 bytes follow its array"),
        (
            "array.npy",
            &classic("x", 100),
            "its content is not that of a .npy file",
        ),
    ];
    for (name, bytes, reason) in cases {
        let mut written = File::create(daemon.path().join(name)).unwrap();
        written.write_all(bytes).unwrap();
        assert_eq!(errno(close(written)), "EINVAL", "{name}");
        let refused = store.join(format!("{name}.refused"));
        wait_for("the kept bytes", || {
            fs::read(&refused).is_ok_and(|kept| kept == bytes)
        });
        let lines = || {
            let log = daemon.log();
            let of_file: Vec<_> = log.lines().filter(|line| line.contains(name)).collect();
            of_file.join("\n")
        };
        wait_for("the line", || !lines().is_empty());
        let line = lines();
        let named = format!("its bytes are in /{name}.refused");
        assert!(line.contains(reason) && line.contains(&named), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        fs::remove_file(daemon.path().join(format!("{name}.refused"))).unwrap();
        assert_eq!(tree::files(&store), before, "{name}");
        assert_eq!(fs::read(&file).unwrap(), shown);
    }
    // a file that cannot be put under another name stays what it was
    write(daemon.path().join("t"), &short).unwrap();
    assert_eq!(errno(fs::rename(daemon.path().join("t"), &file)), "EPERM");
    assert_eq!(fs::read(store.join("t")).unwrap(), short);
    fs::remove_file(daemon.path().join("t")).unwrap();
    assert_eq!(tree::files(&store), before);
    assert!(daemon.unmount().success());
}

/// Empty files and headers keep their names until they are completed. A close of them, also of a
/// copy of a descriptor, is no failure.
#[test]
fn a_file_that_is_only_begun_waits_for_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("s"), false);
    let mount = Mount::new(&store, &["--ingest=all"]);
    let file = mount.join("x.nc");
    File::create(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    let appended = OpenOptions::new().append(true).open(&file).unwrap();
    // two descriptors of one open file
    let copy = appended.try_clone().unwrap();
    close(copy).unwrap();
    (&appended).write_all(&classic("x", 100)).unwrap();
    let copy = appended.try_clone().unwrap();
    close(appended).unwrap();
    assert_eq!(variables(&store.join("x")), ["x"]);
    assert!(copy.metadata().unwrap().len() >= 104);
    close(copy).unwrap();
    // truncated and closed: the group stays
    File::create(&file).unwrap();
    wait_for("the release", || {
        fs::metadata(&file).is_ok_and(|found| found.len() >= 104)
    });
    assert_eq!(variables(&store.join("x")), ["x"]);
    // a shell closes its copy before the program writes
    let source = folder.path().join("source.nc");
    fs::write(&source, classic("y", 100)).unwrap();
    run(
        "sh",
        &[
            "-c",
            "cat \"$0\" > \"$1\"",
            source.to_str().unwrap(),
            file.to_str().unwrap(),
        ],
        folder.path(),
    );
    assert_eq!(variables(&store.join("x")), ["y"]);
    write(mount.join("never.nc"), "").unwrap();
    mount.assert_no_problem();
    drop(mount);
    assert_eq!(variables(&store), ["x"]);
}

/// "A kill leaves the old state or the new."
#[test]
fn a_killed_daemon_leaves_the_old_group_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("s"), false);
    let files = ["a", "b"].map(|letter| many(letter, 60));
    let mut longest = 1;
    let mut random = support::random(11);
    let mut counts = [0, 0];
    for round in 0..support::env_number("ZARRFS_TEST_KILLS", 12) {
        let mut daemon = Daemon::start(&store, &["--ingest=all", "--no-outlive"]);
        let file = daemon.path().join("g.nc");
        if round == 0 {
            let begun = Instant::now();
            write(&file, &files[0]).unwrap();
            longest += 2 * begun.elapsed().as_micros() as usize;
        }
        let pid = daemon.pid();
        let delay = Duration::from_micros(random(longest) as u64);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            let _ = kill_process(pid, Signal::KILL);
        });
        let is_second = random(2) == 1;
        let written = write(&file, &files[usize::from(is_second)]);
        killer.join().unwrap();
        daemon.kill();
        let names: Vec<String> = tree::files(&store.join("g"))
            .into_keys()
            .map(|name| name.to_str().unwrap().to_string())
            .collect();
        let is = |letter: &str| {
            let of = |end: &str| names.iter().filter(|name| name.ends_with(end)).count();
            let all = |name: &String| name.starts_with(letter) || name.starts_with(".z");
            (of(".zarray"), of("/0")) == (60, 60) && names.iter().all(all)
        };
        let found = [is("a"), is("b")];
        assert!(found[0] != found[1], "{round}: {names:?}");
        assert!(written.is_err() || found[usize::from(is_second)], "{round}");
        counts[usize::from(found[1])] += 1;
    }
    println!("{counts:?}");
}

/// A successor of the daemon knows that a file was a draft, and fails its close.
#[test]
fn a_file_whose_bytes_are_lost_with_the_daemon_fails_at_close() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("s"), false);
    let daemon = Daemon::start(&store, &["--ingest=all", "--restarts=10"]);
    let file = daemon.path().join("g.nc");
    write(&file, classic("x", 100)).unwrap();
    let before = tree::files(&store);
    for truncates in [true, false] {
        let mut options = OpenOptions::new();
        let mut open = options.write(true).truncate(truncates).open(&file).unwrap();
        // the header of another file
        open.write_all(&classic("y", 100)[..80]).unwrap();
        let killed = daemon.pid();
        kill_process(killed, Signal::KILL).unwrap();
        let stats = daemon.path().join(".zarrfs/stats.json");
        wait_for("the successor", || stats.exists() && daemon.pid() != killed);
        assert_eq!(errno(close(open)), "EIO", "{truncates}");
        assert_eq!(tree::files(&store), before);
    }
    write(&file, classic("z", 100)).unwrap();
    assert_eq!(variables(&store.join("g")), ["z"]);
    assert!(daemon.unmount().success());
}

#[test]
fn wrong_options_are_refused_before_the_mount() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("s"), false);
    let mountpoint = folder.path().join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    for (options, reason) in [
        (&["--ingest-options=chunks=2"][..], "without --ingest"),
        (
            &["--ingest=nc", "--ingest-options=shards=auto"],
            "shards: the store is one of Zarr v2",
        ),
        (&["--ingest=grib"], "is not one of all, nc, npy, h5"),
        (
            &["--ingest", "--ingest-options=compressor=snappy"],
            "no compressor",
        ),
    ] {
        let paths = [store.to_str().unwrap(), mountpoint.to_str().unwrap()];
        let output = support::zarrfs(&[&["mount"], &paths[..], options].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(reason),
            "{options:?}: {said}"
        );
    }
}

/// A bucket gets what a directory gets.
#[test]
fn a_file_in_a_bucket_becomes_the_group_of_a_directory() {
    let Some(server) = servers::moto() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let local = store(&folder.path().join("local/s.zarr"), false);
    server.upload(&folder.path().join("local"), "bucket");
    let remote = server.store("bucket/s.zarr").mount(&["--ingest=all"]);
    let mount = Mount::new(&local, &["--ingest=all"]);
    let npy = npy("<f4", 8);
    for (round, path) in [remote.path(), mount.path()].into_iter().enumerate() {
        write(path.join("g.nc"), many("a", 5)).unwrap();
        write(path.join("g.nc"), many("b", 3)).unwrap();
        write(path.join("x.npy"), &npy).unwrap();
        // NCO's way
        fs::write(path.join("h.nc.pid1.ncks.tmp"), many("c", 2)).unwrap();
        fs::rename(path.join("h.nc.pid1.ncks.tmp"), path.join("h.nc")).unwrap();
        write(path.join("removed.nc"), many("d", 2)).unwrap();
        fs::remove_file(path.join("removed.nc")).unwrap();
        let _ = fs::remove_dir(path.join("removed"));
        let names = [".zgroup", "g", "g.nc", "h", "h.nc", "x", "x.npy"];
        assert_eq!(listed(path), support::set(&names), "{round}");
        assert_eq!(fs::read(path.join("x.npy")).unwrap(), npy);
    }
    for name in ["g.nc", "h.nc"] {
        assert_eq!(
            fs::read(remote.join(name)).unwrap(),
            fs::read(mount.join(name)).unwrap()
        );
    }
    let mut short = many("e", 2);
    short.truncate(100);
    assert_eq!(errno(write(remote.join("g.nc"), &short)), "EINVAL");
    let refused = remote.join("g.nc.refused");
    wait_for("the kept bytes", || {
        fs::read(&refused).is_ok_and(|kept| kept == short)
    });
    fs::remove_file(refused).unwrap();
    drop((remote, mount));
    let downloaded = folder.path().join("remote");
    server.download("bucket/s.zarr", &downloaded);
    assert_eq!(tree::files(&downloaded), tree::files(&local));
}

/// NCO writes temporary files and renames them, or changes a file in place; CDO writes at once.
#[test]
fn nco_and_cdo_write_and_change_files() {
    if !["ncgen", "ncks", "ncap2", "ncatted", "ncrename", "ncdump"]
        .iter()
        .all(|program| is_installed(program))
    {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let cdl = "netcdf x { dimensions: t = UNLIMITED ; y = 2 ; variables: double t(t) ; short v(t, y) ; v:units = \"K\" ; \
               data: t = 0, 1 ; v = 1, 2, 3, 4 ; }";
    fs::write(folder.join("x.cdl"), cdl).unwrap();
    run("ncgen", &["-o", "x.nc", "x.cdl"], folder);
    let store = store(&folder.join("s"), true);
    let mount = Mount::new(&store, &["--ingest=all"]);
    let local = folder.join("local");
    fs::create_dir(&local).unwrap();
    // the same commands in a directory
    for directory in [&local, mount.path()] {
        let source = folder.join("x.nc");
        let source = source.to_str().unwrap();
        run("ncks", &["-O", "-h", source, "a.nc"], directory);
        run(
            "ncap2",
            &["-O", "-h", "-s", "w=v*2", "a.nc", "b.nc"],
            directory,
        );
        run(
            "ncap2",
            &["-A", "-h", "-s", "u=v+1", "a.nc", "a.nc"],
            directory,
        );
        run(
            "ncatted",
            &["-O", "-h", "-a", "units,v,o,c,degC", "a.nc"],
            directory,
        );
        run(
            "ncrename",
            &["-O", "-h", "-v", "v,temperature", "b.nc"],
            directory,
        );
        if is_installed("cdo") {
            run(
                "cdo",
                &["-s", "--no_history", "-addc,1", "a.nc", "c.nc"],
                directory,
            );
        }
        run("ncks", &["-A", "-h", "b.nc", "a.nc"], directory);
    }
    let names = support::names(&local);
    assert!(names.len() >= 2);
    for name in names {
        let [expected, found] =
            [&local, mount.path()].map(|directory| run("ncdump", &[&name], directory));
        // variables stand in the order of their names
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&expected), sorted(&found), "{name}");
    }
    mount.assert_no_problem();
    drop(mount);
    let nodes: Vec<String> = variables(&store);
    assert!(
        nodes.starts_with(&["a".to_string(), "b".to_string()]),
        "{nodes:?}"
    );
    assert_eq!(support::unfinished_files(&store), [""; 0]);
    assert!(
        !support::names(&store)
            .iter()
            .any(|name| name.contains(".pid"))
    );
}
