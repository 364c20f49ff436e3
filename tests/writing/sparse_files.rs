//! Holes. "Until the close of a file that was truncated or created, bytes that the program skips
//! are zeros": real programs copy sparse files over old data. And holes that the mount reports:
//! "while a file of the array is open for writing, all of it counts as data".

use crate::support::array::{TestArray, pattern, zlib};
use crate::support::shared_map::SharedMap;
use crate::support::{
    Mount, assert_whole_again, close, env_path, is_installed, wait_for, with_timeout, zarrfs,
};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Shape of the arrays, in items of two bytes, and of their chunks.
const SHAPE: [usize; 2] = [64, 2048];
const CHUNKS: [usize; 2] = [16, 1024];
const SIZE: usize = 64 * 2048 * 2;
const CHUNK: usize = 16 * 1024 * 2;

/// A document of v3 with the same chunks in shards of 2 x 2.
const SHARDED: &str = r#"{"zarr_format":3,"node_type":"array","shape":[64,2048],"data_type":"int16","fill_value":0,
    "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[32,2048]}},
    "chunk_key_encoding":{"name":"default"},"codecs":[{"name":"sharding_indexed","configuration":{
    "chunk_shape":[16,1024],"codecs":[{"name":"bytes","configuration":{"endian":"little"}}],
    "index_codecs":[{"name":"bytes","configuration":{"endian":"little"}}]}}]}"#;

/// Commands that copy `$from` over `$to`.
const COPIES: [(&str, &str); 12] = [
    ("cp", "cp $from $to"),
    ("cp", "cp --sparse=always $from $to"),
    ("cp", "cp --remove-destination --sparse=always $from $to"),
    ("sh", "cat $from > $to"),
    ("install", "install -m 644 $from $to"),
    (
        "mv",
        "cp --sparse=always $from $from.moved; mv $from.moved $to",
    ),
    (
        "tar",
        "tar -S -c -C $(dirname $from) --transform=s/source/$(basename $to)/ source | tar -x -C $(dirname $to)",
    ),
    ("rsync", "rsync -I --sparse --inplace $from $to"),
    (
        "rsync",
        "rsync -I --sparse --inplace --no-whole-file $from $to",
    ),
    ("rsync", "rsync -I --sparse $from $to"),
    ("dd", "dd if=$from of=$to bs=4096 conv=sparse status=none"),
    ("dd", "dd if=$from bs=4096 conv=sparse status=none > $to"),
];

/// Creates the array `a`.
fn array(kind: &str) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let path = store.path().join("a");
    if kind == "shards" {
        fs::create_dir(&path).unwrap();
        fs::write(path.join("zarr.json"), SHARDED).unwrap();
    } else {
        let fill = if kind == "zeros" { 0 } else { 258 };
        let more =
            json!({"dtype": "<i2", "fill_value": fill, "compressor": {"id": "zlib", "level": 1}});
        TestArray::new(path, &SHAPE, &CHUNKS, more);
    }
    store
}

/// Writes a file of `size` bytes with holes, and data in 4 KiB at its beginning, in its middle and
/// at its end.
fn write_sparse(path: &Path, size: usize, parts: [bool; 3]) -> Vec<u8> {
    let _ = fs::remove_file(path);
    let file = File::create(path).unwrap();
    file.set_len(size as u64).unwrap();
    for (at, _) in [0, size / 2 + 4096, size - 4096]
        .into_iter()
        .zip(parts)
        .filter(|(_, is_data)| *is_data)
    {
        file.write_all_at(&pattern(9, 4096), at as u64).unwrap();
    }
    fs::read(path).unwrap()
}

const LAYOUTS: [[bool; 3]; 3] = [[true, false, true], [false, true, false], [false; 3]];

fn shell(script: &str, from: &Path, to: &Path) -> String {
    let script = format!(
        "from={} to={}; set -e; {script}",
        from.display(),
        to.display()
    );
    let done = with_timeout(300, "sh")
        .args(["-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() {
        said
    } else {
        format!("{}: {said}", done.status)
    }
}

#[track_caller]
fn assert_same(what: &str, got: &[u8], wanted: &[u8]) {
    assert_eq!(got.len(), wanted.len(), "{what}: length");
    let differs = got.iter().zip(wanted).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

fn stored(store: &Path) -> Vec<u8> {
    let read = zarrfs(&["cat", store.join("a").to_str().unwrap()]);
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    read.stdout
}

/// Copies sparse files over old data with every program, and over a file that does not exist if
/// `removes`.
fn copy_all(what: &str, source: &Path, target: &Path, size: usize, removes: bool) -> Vec<u8> {
    let mut wanted = Vec::new();
    for (_, script) in COPIES.iter().filter(|(program, _)| is_installed(program)) {
        for parts in LAYOUTS {
            let what = format!("{what}: {script}: {parts:?}");
            fs::write(target, pattern(5, size)).unwrap();
            if removes {
                fs::remove_file(target).unwrap();
            }
            wanted = write_sparse(source, size, parts);
            assert_eq!(shell(script, source, target), "", "{what}");
            assert_same(&what, &fs::read(target).unwrap(), &wanted);
        }
    }
    wanted
}

fn outside() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

#[test]
fn programs_copy_sparse_files_over_data_raw() {
    for kind in ["zeros", "fill value", "shards"] {
        let store = array(kind);
        let outside = outside();
        let mount = Mount::new(store.path(), &[]);
        let wanted = copy_all(
            kind,
            &outside.path().join("source"),
            &mount.join("a/data.raw"),
            SIZE,
            false,
        );
        assert_same(kind, &stored(store.path()), &wanted);
        mount.assert_no_problem();
    }
}

#[test]
fn programs_copy_sparse_files_over_chunk_files() {
    for (kind, removes) in [
        ("fill value", false),
        ("fill value", true),
        ("shards", false),
    ] {
        let store = array(kind);
        let outside = outside();
        let mount = Mount::new(store.path(), &[]);
        let wanted = copy_all(
            kind,
            &outside.path().join("source"),
            &mount.join("a/1.1"),
            CHUNK,
            removes,
        );
        drop(mount);
        let mount = Mount::new(store.path(), &["-o", "ro"]);
        assert_same(kind, &fs::read(mount.join("a/1.1")).unwrap(), &wanted);
    }
}

/// The commonest source of holes is an array in another mount.
#[test]
fn an_array_is_copied_from_a_mount_to_a_mount() {
    let store = array("fill value");
    let sparse = array("zeros");
    let from = Mount::new(sparse.path(), &[]);
    let to = Mount::new(store.path(), &[]);
    fs::write(from.join("a/2.0"), pattern(3, CHUNK)).unwrap();
    let wanted = fs::read(from.join("a/data.raw")).unwrap();
    for script in [
        "cp $from $to",
        "cp --remove-destination $from $to",
        "rsync -I --sparse --inplace $from $to",
    ] {
        fs::write(to.join("a/data.raw"), pattern(5, SIZE)).unwrap();
        assert_eq!(
            shell(script, &from.join("a/data.raw"), &to.join("a/data.raw")),
            ""
        );
        assert_same(script, &fs::read(to.join("a/data.raw")).unwrap(), &wanted);
    }
    // the header is there already
    let npy = fs::read(to.join("a/data.npy")).unwrap();
    let source = outside();
    fs::write(
        source.path().join("source"),
        [&npy[..128], &vec![0; SIZE]].concat(),
    )
    .unwrap();
    fs::write(to.join("a/data.raw"), pattern(5, SIZE)).unwrap();
    assert_eq!(
        shell(
            "cp --sparse=always $from $to",
            &source.path().join("source"),
            &to.join("a/data.npy")
        ),
        ""
    );
    assert_same(
        "data.npy",
        &fs::read(to.join("a/data.raw")).unwrap(),
        &vec![0; SIZE],
    );
}

#[test]
fn numpy_skips_zeros() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let store = array("fill value");
    let mount = Mount::new(store.path(), &[]);
    for (name, size) in [("a/data.raw", SIZE), ("a/0.1", CHUNK)] {
        let target = mount.join(name);
        let code = format!(
            "import sys, numpy as np; m = np.memmap(sys.argv[1], 'u1', 'w+', shape={size}); m[100] = 7; m[-9000] = 8"
        );
        fs::write(&target, pattern(5, size)).unwrap();
        let done = with_timeout(300, &python)
            .args(["-c", &code])
            .arg(&target)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        let mut wanted = vec![0; size];
        (wanted[100], wanted[size - 9000]) = (7, 8);
        assert_same(name, &fs::read(&target).unwrap(), &wanted);
    }
    let code = "import sys, numpy as np; f = open(sys.argv[1], 'wb'); np.full(9, 1, 'u1').tofile(f); f.seek(0, 2)
assert f.tell() == 9, f.tell(); f.seek(50000); np.full(9, 2, 'u1').tofile(f)";
    let mut wanted = pattern(5, SIZE);
    fs::write(mount.join("a/data.raw"), &wanted).unwrap();
    let done = with_timeout(300, &python)
        .args(["-c", code])
        .arg(mount.join("a/data.raw"))
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    wanted[..50000].fill(0);
    wanted[..9].fill(1);
    wanted[50000..50009].fill(2);
    assert_whole_again(&mount.join("a/data.raw"), SIZE as u64);
    assert_same(
        "tofile",
        &fs::read(mount.join("a/data.raw")).unwrap(),
        &wanted,
    );
}

/// "It has its whole size again when it is closed, and bytes behind its end keep their values: `: >
/// data.raw` erases nothing."
#[test]
fn truncating_alone_erases_nothing() {
    let store = array("zeros");
    let mount = Mount::new(store.path(), &[]);
    let mut flat = pattern(5, SIZE);
    for name in ["a/data.raw", "a/data.npy"] {
        let path = mount.join(name);
        fs::write(mount.join("a/data.raw"), &flat).unwrap();
        let before = fs::read(&path).unwrap();
        for script in [
            ": > $to",
            "truncate -s 0 $to",
            "truncate -s 0 $to; truncate -s $(stat -c %s $from) $to",
            "exec 3> $to",
        ] {
            assert_eq!(shell(script, &path, &path), "");
            assert_whole_again(&path, before.len() as u64);
            assert_same(script, &fs::read(&path).unwrap(), &before);
        }
    }
    // while it is open it has the size that the program gave it
    let path = mount.join("a/data.raw");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(fs::read(&path).unwrap(), b"");
    file.write_all_at(b"x", 5000).unwrap();
    let mut wanted = vec![0; 5000];
    wanted.push(b'x');
    assert_same("while it is open", &fs::read(&path).unwrap(), &wanted);
    assert_eq!(seek(&file, SeekFrom::End(0)).unwrap(), 5001);
    close(file).unwrap();
    flat[..5001].copy_from_slice(&wanted);
    assert_whole_again(&path, SIZE as u64);
    assert_same("afterwards", &fs::read(&path).unwrap(), &flat);
    // a map that was made before sees the old bytes again
    let reader = File::open(&path).unwrap();
    let map = SharedMap::read_only(&reader);
    drop(File::create(&path).unwrap());
    // the kernel's own size, on which maps depend
    wait_for("the whole size", || {
        seek(&reader, SeekFrom::End(0)).unwrap() == SIZE as u64
    });
    assert_same("a map", &map.bytes(), &flat);
}

#[test]
fn holes_are_punched() {
    for kind in ["zeros", "fill value"] {
        let store = array(kind);
        let mount = Mount::new(store.path(), &[]);
        let mut flat = pattern(5, SIZE);
        fs::write(mount.join("a/data.raw"), &flat).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount.join("a/data.raw"))
            .unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for (at, len) in [(4096, 100), (60_000, 70_000), (SIZE - 10, 1 << 20)] {
            fallocate(&file, punch, at as u64, len as u64).unwrap();
            flat[at..SIZE.min(at + len)].fill(0);
            assert_same(kind, &fs::read(mount.join("a/data.raw")).unwrap(), &flat);
        }
        close(file).unwrap();
        assert_same(kind, &stored(store.path()), &flat);
    }
}

/// fallocate(2), and posix_fallocate(3) with it, succeeds where a write would.
#[test]
fn space_is_reserved_where_a_write_would_succeed() {
    let store = array("fill value");
    let mount = Mount::new(store.path(), &[]);
    fs::write(mount.join("a/data.raw"), pattern(5, SIZE)).unwrap();
    fs::write(mount.join("plain"), "123").unwrap();
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(mount.join(name));
        file.unwrap()
    };
    let before = stored(store.path());
    let [none, keep] = [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE];
    for name in ["a/data.raw", "a/data.npy", "a/0.0"] {
        let file = open(name);
        let size = file.metadata().unwrap().len();
        for flags in [none, keep] {
            fallocate(&file, flags, 0, size).unwrap();
            fallocate(&file, flags, size - 1, 1).unwrap();
            let beyond = fallocate(&file, flags, size - 1, 2);
            assert_eq!(beyond, Err(rustix::io::Errno::FBIG), "{name}");
        }
        assert_eq!(file.metadata().unwrap().len(), size, "{name}");
        close(file).unwrap();
    }
    assert!(stored(store.path()) == before, "no byte changes");

    let file = open("plain");
    fallocate(&file, keep, 0, 100).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    fallocate(&file, none, 0, 5).unwrap();
    close(file).unwrap();
    assert_eq!(fs::read(mount.join("plain")).unwrap(), b"123\0\0");
    let grown = shell(
        "fallocate -l 8 $to",
        &mount.join("plain"),
        &mount.join("plain"),
    );
    assert_eq!(grown, "");
    assert_eq!(fs::metadata(mount.join("plain")).unwrap().len(), 8);
}

/// With `--resize` space behind the end is rows.
#[test]
fn reserved_space_makes_an_array_longer() {
    let store = array("zeros");
    let mount = Mount::new(store.path(), &["--resize"]);
    let row = SIZE as u64 / SHAPE[0] as u64;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, SIZE as u64 + row).unwrap();
    assert_eq!(file.metadata().unwrap().len(), SIZE as u64);
    fallocate(&file, FallocateFlags::empty(), 0, SIZE as u64 + row).unwrap();
    close(file).unwrap();
    let path = mount.join("a/data.raw");
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE as u64 + row);
}

/// A copy has what a shared map has written, though the kernel has not sent it yet.
#[test]
fn a_dirty_page_of_a_map_is_no_hole() {
    let store = tempfile::tempdir().unwrap();
    TestArray::new(store.path().join("a"), &[1 << 20], &[1 << 18], zlib());
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("a/data.raw");
    let other = File::open(&path).unwrap();
    assert!(seek(&other, SeekFrom::Data(0)).is_err());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let map = SharedMap::new(&file);
    map.set(600_000, 7);
    let copy = store.path().join("copy");
    assert_eq!(shell("cp --sparse=auto $from $to", &path, &copy), "");
    assert_eq!(fs::read(&copy).unwrap()[600_000], 7, "the copy has a hole");
    assert!(seek(&other, SeekFrom::Data(0)).is_ok_and(|at| at <= 600_000));
    drop((map, file));
    // once it is closed, the chunks that are not stored are holes again, also to a file that has
    // listed them before
    wait_for("holes", || {
        seek(&other, SeekFrom::Data(0)).is_ok_and(|at| at == 1 << 19)
    });
}
