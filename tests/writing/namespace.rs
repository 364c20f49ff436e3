//! Creating, removing and renaming files and directories through a mount, and writing documents and
//! plain keys. The bytes in the mount and the store are compared with those that the test wrote.
//! `writing.rs` tests writes to flat bytes and chunk files, and `python_writers.rs` tests other
//! programs.

use crate::support;
use crate::support::array::{TestArray, pattern};
use crate::support::{Mount, close, errno, names, run};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// A store with one group, `g`, and one array, `a`, all of whose chunks are stored.
struct Store {
    directory: tempfile::TempDir,
    array: TestArray,
}

impl Store {
    fn new(more: Value) -> Store {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("g")).unwrap();
        for group in ["", "g"] {
            fs::write(
                directory.path().join(group).join(".zgroup"),
                "{\"zarr_format\": 2}",
            )
            .unwrap();
        }
        let array = TestArray::with_chunks(directory.path().join("a"), &[5, 6], &[2, 3], more);
        Store { directory, array }
    }

    fn compressed() -> Store {
        Store::new(json!({"compressor": {"id": "zlib", "level": 1}, "dtype": "<u4", "order": "F"}))
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Calls `look` with a new mount, which has nothing cached.
    fn with_new_mount<T>(&self, look: impl FnOnce(&Mount) -> T) -> T {
        look(&Mount::new(self.path(), &["--read-only"]))
    }

    /// Checks that no temporary file is left in the store.
    fn assert_no_temporary_files(&self) {
        let mut directories = vec![self.path().to_path_buf()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).unwrap().map(|e| e.unwrap()) {
                assert!(
                    !entry.file_name().to_string_lossy().starts_with(".zarrfs-"),
                    "{:?}",
                    entry.path()
                );
                if entry.file_type().unwrap().is_dir() {
                    directories.push(entry.path());
                }
            }
        }
    }
}

fn document(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// "They are checked when they are closed: invalid JSON or metadata that zarrfs cannot honor is
/// `EINVAL`, the old document stays, and `.zarrfs/stats` has the reason."
#[test]
fn invalid_documents_are_refused_at_close() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("a/.zattrs");
    fs::write(&path, r#"{"units": "m", "no": NaN}"#).unwrap();
    assert_eq!(fs::read(&path).unwrap(), br#"{"units": "m", "no": NaN}"#);
    assert_eq!(
        fs::read(store.path().join("a/.zattrs")).unwrap(),
        br#"{"units": "m", "no": NaN}"#
    );
    for (name, bad) in [
        ("a/.zattrs", "{bad"),
        ("a/.zattrs", "[1]"),
        ("a/.zattrs", ""),
        ("g/.zgroup", "{\"zarr_format\": 3}"),
        ("a/.zarray", "{\"zarr_format\": 2}"),
        ("g/.zarray", "{}"),
    ] {
        let before = fs::read(mount.join(name)).ok();
        assert_eq!(
            close_after_writing(&mount.join(name), bad),
            "EINVAL",
            "{name} {bad:?}"
        );
        // the kernel releases a closed file a moment later: until then, its text is shown
        support::wait_for("the release", || fs::read(mount.join(name)).ok() == before);
    }
    assert_eq!(
        names(&mount.join("g")),
        BTreeSet::from([".zgroup".to_string()])
    );
    let stats = mount.stats();
    assert!(
        stats.contains("/a/.zattrs") && stats.contains("not valid JSON"),
        "{stats}"
    );
    assert_eq!(
        fs::read(mount.join("a/data.raw")).unwrap(),
        store.array.flat
    );
    store.assert_no_temporary_files();
}

/// Writes a file and returns the result of closing it.
fn close_after_writing(path: &Path, text: &str) -> String {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
    errno(
        rustix::io::fcntl_dupfd_cloexec(&file, 0)
            .map_err(Into::into)
            .and_then(close),
    )
}

/// Reads and `stat` of an open document return its text so far. `fsync` stores it.
#[test]
fn an_open_document_shows_its_text_so_far() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("g/.zattrs");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    file.write_all(b"{\"a\": 1}      ").unwrap();
    file.set_len(8).unwrap();
    assert_eq!(
        (
            file.metadata().unwrap().len(),
            fs::metadata(&path).unwrap().len()
        ),
        (8, 8)
    );
    file.seek(SeekFrom::Start(6)).unwrap();
    file.write_all(b"2").unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "{\"a\": 2}");
    assert!(!store.path().join("g/.zattrs").exists());
    file.sync_all().unwrap();
    assert_eq!(
        fs::read(store.path().join("g/.zattrs")).unwrap(),
        b"{\"a\": 2}"
    );
    // append through a second descriptor
    let mut more = OpenOptions::new().append(true).open(&path).unwrap();
    more.write_all(b"\n").unwrap();
    drop((more, file));
    assert_eq!(fs::read(&path).unwrap(), b"{\"a\": 2}\n");
    assert_eq!(fs::metadata(&path).unwrap().len(), 9);
    // a document has at most 16 MiB
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(errno(file.write_all_at(b"x", 16 << 20)), "EFBIG");
    drop(file);
    assert_eq!(
        errno(
            fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)
        ),
        "EEXIST"
    );
    assert_eq!(fs::read(&path).unwrap(), b"{\"a\": 2}\n");
}

/// "`mkdir` creates a plain directory. A `.zgroup` written into it makes it a group, a `.zarray` an
/// array." The array keeps the codecs of that document.
#[test]
fn mkdir_creates_a_directory_and_a_written_document_makes_it_a_group_or_an_array() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    for name in ["plain", "plain/deep", "g/new"] {
        fs::create_dir(mount.join(name)).unwrap();
        assert_eq!(names(&store.path().join(name)), BTreeSet::new());
        assert_eq!(names(&mount.join(name)), BTreeSet::new());
        assert_eq!(
            errno(fs::metadata(mount.join(name).join(".zgroup"))),
            "ENOENT"
        );
    }
    // as cp -r does, with the group's document after those of what is in it
    for name in ["plain/deep", "plain"] {
        let group = mount.join(name).join(".zgroup");
        File::create_new(&group)
            .unwrap()
            .write_all(br#"{"zarr_format": 2}"#)
            .unwrap();
        assert_eq!(
            document(&store.path().join(name).join(".zgroup")),
            json!({"zarr_format": 2})
        );
        assert_eq!(errno(File::create_new(&group)), "EEXIST");
    }
    assert_eq!(errno(fs::create_dir(mount.join("g/new"))), "EEXIST");
    assert_eq!(errno(fs::create_dir(mount.join("g/none/x"))), "ENOENT");
    assert_eq!(errno(fs::create_dir(mount.join(".zarrfs"))), "EEXIST");
    assert_eq!(errno(fs::create_dir(mount.join("a/below"))), "EPERM");
    let text = json!({"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<u2", "fill_value": 9, "order": "C",
        "compressor": {"id": "zlib", "level": 9}, "filters": null});
    fs::write(mount.join("g/new/.zarray"), text.to_string()).unwrap();
    assert_eq!(document(&store.path().join("g/new/.zarray")), text);
    assert_eq!(
        names(&mount.join("g/new")),
        BTreeSet::from([".zarray", "data.raw"].map(String::from))
    );
    assert_eq!(
        document(&mount.join("g/new/.zarray"))["compressor"],
        Value::Null
    );
    assert_eq!(
        fs::read(mount.join("g/new/data.raw")).unwrap(),
        [9, 0].repeat(4)
    );
    fs::write(mount.join("g/new/1"), [1, 2, 3, 4]).unwrap();
    assert_eq!(
        fs::read(store.path().join("g/new/1")).unwrap()[0],
        0x78,
        "zlib's first byte"
    );
    assert_eq!(
        fs::read(mount.join("g/new/data.raw")).unwrap(),
        [9, 0, 9, 0, 1, 2, 3, 4]
    );
    store.with_new_mount(|mount| {
        assert_eq!(
            fs::read(mount.join("g/new/data.raw")).unwrap(),
            [9, 0, 9, 0, 1, 2, 3, 4]
        );
    });
    store.assert_no_temporary_files();
}

/// "Creating a chunk file (`touch`, `dd seek=N`) creates a chunk of fill values. Deleting a chunk
/// file makes the chunk uninitialized."
#[test]
fn chunk_files_can_be_created_and_deleted() {
    let mut store = Store::new(json!({"compressor": {"id": "zlib", "level": 1}, "fill_value": 5}));
    let mount = Mount::new(store.path(), &[]);
    fs::remove_file(mount.join("a/0.0")).unwrap();
    assert_eq!(errno(fs::metadata(mount.join("a/0.0"))), "ENOENT");
    assert!(!store.path().join("a/0.0").exists());
    assert_eq!(errno(fs::remove_file(mount.join("a/0.0"))), "ENOENT");
    assert_eq!(fs::read(mount.join("a/data.raw")).unwrap()[..3], [5, 5, 5]);

    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(mount.join("a/0.0"))
        .unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    // a byte that is skipped is zero
    file.write_all_at(&[1, 2], 1).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    assert_eq!(fs::read(mount.join("a/0.0")).unwrap(), [0, 1, 2, 5, 5, 5]);
    assert_eq!(
        errno(
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(mount.join("a/0.0"))
        ),
        "EEXIST"
    );
    drop(file);
    store.array.set_chunk(&[0, 0], &[0, 1, 2, 5, 5, 5]);
    assert_eq!(
        fs::read(mount.join("a/data.raw")).unwrap(),
        store.array.flat
    );
    store.with_new_mount(|mount| {
        assert_eq!(
            fs::read(mount.join("a/data.raw")).unwrap(),
            store.array.flat
        )
    });

    // a chunk file that is created and closed holds the fill value, and a copy holds the copied
    // bytes
    fs::remove_file(mount.join("a/2.1")).unwrap();
    drop(File::create(mount.join("a/2.1")).unwrap());
    assert_eq!(fs::read(mount.join("a/2.1")).unwrap(), [5; 6]);
    fs::remove_file(mount.join("a/2.1")).unwrap();
    fs::copy(mount.join("a/0.0"), mount.join("a/2.1")).unwrap();
    assert_eq!(fs::read(mount.join("a/2.1")).unwrap(), [0, 1, 2, 5, 5, 5]);
    // no chunk can be created outside the grid
    for name in ["9.9", "3.0", "00.0", "0.0.0"] {
        assert_eq!(
            errno(File::create(mount.join("a").join(name))),
            "EINVAL",
            "{name}"
        );
    }
    store.assert_no_temporary_files();
}

/// "Moving a file onto a chunk name stores it if it has the size of a chunk; otherwise `mv` fails
/// with `EINVAL` and the old chunk stays."
#[test]
fn a_file_of_the_right_size_can_be_moved_onto_a_chunk() {
    let mut store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    let bytes = pattern(7, store.array.chunk_size());
    let flat = File::open(mount.join("a/data.raw")).unwrap();
    let mut seen = vec![0; store.array.flat.len()];
    flat.read_exact_at(&mut seen, 0).unwrap();
    // the first two are names that zarr-python gives to temporary files
    for (name, index) in [
        ("0.0.5ce1.partial", [0, 0]),
        ("0.1.partial", [0, 1]),
        ("new", [2, 1]),
    ] {
        let temporary = mount.join("a").join(name);
        let chunk = mount.join("a").join(TestArray::chunk_name(&index));
        fs::write(&temporary, &bytes).unwrap();
        assert_eq!(fs::metadata(&temporary).unwrap().len(), bytes.len() as u64);
        fs::rename(&temporary, &chunk).unwrap();
        assert_eq!(errno(fs::metadata(&temporary)), "ENOENT");
        assert_eq!(fs::read(&chunk).unwrap(), bytes);
        assert!(!store.path().join("a").join(name).exists());
        store.array.set_chunk(&index, &bytes);
        // files that are already open show the new chunk as well
        flat.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, store.array.flat);
    }
    for len in [0, bytes.len() - 1, bytes.len() + 1] {
        fs::write(mount.join("a/wrong"), vec![1; len]).unwrap();
        assert_eq!(
            errno(fs::rename(mount.join("a/wrong"), mount.join("a/1.1"))),
            "EINVAL",
            "{len}"
        );
        assert_eq!(fs::read(mount.join("a/wrong")).unwrap().len(), len);
        assert_eq!(
            errno(fs::rename(mount.join("a/wrong"), mount.join("a/9.9"))),
            "EINVAL"
        );
    }
    // a file that was moved away while open must not accept writes that would be lost
    let mut file = File::create(mount.join("a/open")).unwrap();
    file.write_all(&bytes).unwrap();
    fs::rename(mount.join("a/open"), mount.join("a/2.0")).unwrap();
    store.array.set_chunk(&[2, 0], &bytes);
    assert_eq!(
        file.write_all(b"more").unwrap_err().raw_os_error(),
        Some(libc::ESTALE)
    );
    drop(file);
    // move a file from another directory onto a chunk that is not stored
    fs::remove_file(mount.join("a/1.1")).unwrap();
    fs::write(mount.join("g/file"), &bytes).unwrap();
    fs::rename(mount.join("g/file"), mount.join("a/1.1")).unwrap();
    store.array.set_chunk(&[1, 1], &bytes);
    store.with_new_mount(|mount| {
        assert_eq!(
            fs::read(mount.join("a/data.raw")).unwrap(),
            store.array.flat
        )
    });
    store.assert_no_temporary_files();
}

/// "A chunk is replaced atomically. Readers and crashes see the old chunk or the new one, never a
/// mixture", also with four concurrent writers.
#[test]
fn readers_never_see_a_part_of_a_renamed_chunk() {
    const LEN: usize = 4096;
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
    let more = json!({"compressor": {"id": "zlib", "level": 1}});
    TestArray::with_chunks(directory.path().join("a"), &[8 * LEN], &[LEN], more);
    let mount = Mount::new(directory.path(), &[]);
    for chunk in 0..8 {
        fs::write(mount.join(&format!("a/{chunk}")), [0; LEN]).unwrap();
    }
    let flat = File::open(mount.join("a/data.raw")).unwrap();
    let look = |chunk: usize, at_least: u8| {
        let mut bytes = [0; LEN];
        flat.read_exact_at(&mut bytes, (chunk * LEN) as u64)
            .unwrap();
        assert!(
            bytes.iter().all(|b| *b == bytes[0]) && bytes[0] >= at_least,
            "{chunk}: {} of {at_least}",
            bytes[0]
        );
    };
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let mount = &mount;
            let look = &look;
            scope.spawn(move || {
                for round in 1..=40 {
                    let chunk = writer * 2 + usize::from(round % 2);
                    let temporary = mount.join(&format!("a/{chunk}.{writer}.partial"));
                    fs::write(&temporary, [round; LEN]).unwrap();
                    fs::rename(&temporary, mount.join(&format!("a/{chunk}"))).unwrap();
                    // a file that was open before shows the chunk as soon as rename returns
                    look(chunk, round);
                    for other in 0..8 {
                        look(other, 0);
                    }
                }
            });
        }
    });
    drop(flat);
    drop(mount);
    let files = names(&directory.path().join("a"));
    assert_eq!(files.len(), 9, "{files:?}");
}

/// A renamed chunk keeps its decoded bytes in the order of its array, and a renamed document keeps
/// its text.
#[test]
fn renamed_chunks_and_documents_keep_their_bytes() {
    let mut store = Store::compressed();
    let other = json!({"dtype": "<u4", "compressor": {"id": "bz2", "level": 1}});
    let mut other = TestArray::with_chunks(store.path().join("c"), &[4, 3], &[2, 3], other);
    let mount = Mount::new(store.path(), &[]);
    let bytes = fs::read(mount.join("a/0.1")).unwrap();
    fs::rename(mount.join("a/0.1"), mount.join("a/1.0")).unwrap();
    store.array.set_chunk(&[1, 0], &bytes);
    store.array.clear(&[0, 1]);
    assert_eq!(errno(fs::metadata(mount.join("a/0.1"))), "ENOENT");
    assert_eq!(
        fs::read(mount.join("a/data.raw")).unwrap(),
        store.array.flat
    );
    // the other array has another order, and the bytes are not reordered
    fs::rename(mount.join("a/1.0"), mount.join("c/1.0")).unwrap();
    store.array.clear(&[1, 0]);
    other.set_chunk(&[1, 0], &bytes);
    fs::rename(mount.join("c/0.0"), mount.join("g/kept")).unwrap();
    assert_eq!(
        fs::read(mount.join("g/kept")).unwrap(),
        other.chunk(&[0, 0])
    );
    other.clear(&[0, 0]);
    // a new chunk under the old name is another file
    fs::copy(mount.join("c/1.0"), mount.join("c/0.0")).unwrap();
    assert_eq!(
        fs::read(mount.join("g/kept")).unwrap().len(),
        other.chunk_size()
    );
    assert_ne!(
        fs::read(mount.join("g/kept")).unwrap(),
        fs::read(mount.join("c/0.0")).unwrap()
    );
    other.set_chunk(&[0, 0], &bytes);
    for array in [&store.array, &other] {
        let name = array.path.file_name().unwrap().to_str().unwrap();
        store.with_new_mount(|mount| {
            assert_eq!(
                fs::read(mount.join(name).join("data.raw")).unwrap(),
                array.flat
            )
        });
    }

    fs::write(mount.join("a/.zattrs"), "{\"a\": 1}").unwrap();
    fs::rename(mount.join("a/.zattrs"), mount.join("a/.zattrs~")).unwrap();
    assert_eq!(errno(fs::metadata(mount.join("a/.zattrs"))), "ENOENT");
    assert_eq!(fs::read(mount.join("a/.zattrs~")).unwrap(), b"{\"a\": 1}");
    fs::rename(mount.join("a/.zattrs~"), mount.join("g/.zattrs")).unwrap();
    assert_eq!(
        fs::read(store.path().join("g/.zattrs")).unwrap(),
        b"{\"a\": 1}"
    );
    fs::write(mount.join("a/bad"), "{").unwrap();
    assert_eq!(
        errno(fs::rename(mount.join("a/bad"), mount.join("g/.zattrs"))),
        "EINVAL"
    );
    assert_eq!(fs::read(mount.join("g/.zattrs")).unwrap(), b"{\"a\": 1}");
    assert_eq!(fs::read(mount.join("a/bad")).unwrap(), b"{");
    store.assert_no_temporary_files();
}

/// An editor that renames the old `.zarray` before it writes the new one does not lose the codecs,
/// which the mount hides.
#[test]
fn saving_zarray_by_way_of_a_backup_keeps_the_codecs() {
    let mut store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("a/.zarray");
    let backup = mount.join("a/.zarray~");
    let mut shown = document(&path);
    fs::rename(&path, &backup).unwrap();
    assert_eq!(errno(fs::metadata(&path)), "ENOENT");
    shown["shape"] = json!([5, 3]);
    fs::write(&path, shown.to_string()).unwrap();
    fs::remove_file(&backup).unwrap();
    assert_eq!(
        document(&store.path().join("a/.zarray"))["compressor"]["id"],
        "zlib"
    );
    assert_eq!(document(&path)["shape"], json!([5, 3]));
    let row = 6 * 4;
    store.array.flat = store
        .array
        .flat
        .chunks(row)
        .flat_map(|row| row[..12].to_vec())
        .collect();
    assert_eq!(
        fs::read(mount.join("a/data.raw")).unwrap(),
        store.array.flat
    );
    assert_eq!(
        names(&mount.join("a")),
        BTreeSet::from([".zarray", "data.raw", "0.0", "1.0", "2.0"].map(String::from))
    );
    store.assert_no_temporary_files();
}

/// `mv new.raw data.raw` replaces the flat bytes, and changes nothing if the file has another size.
#[test]
fn a_file_of_the_right_size_can_be_moved_onto_data_raw() {
    let mut store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    store.array.flat = pattern(9, store.array.flat.len());
    fs::write(mount.join("new.raw"), &store.array.flat).unwrap();
    fs::write(mount.join("short.raw"), [1, 2, 3]).unwrap();
    fs::rename(mount.join("new.raw"), mount.join("a/data.raw")).unwrap();
    assert_eq!(
        errno(fs::rename(
            mount.join("short.raw"),
            mount.join("a/data.raw")
        )),
        "EINVAL"
    );
    assert_eq!(
        fs::read(mount.join("a/data.raw")).unwrap(),
        store.array.flat
    );
    assert_eq!(errno(fs::metadata(mount.join("new.raw"))), "ENOENT");
    store.with_new_mount(|mount| {
        assert_eq!(
            fs::read(mount.join("a/data.raw")).unwrap(),
            store.array.flat
        )
    });
    // data.raw itself cannot be moved
    assert_eq!(
        errno(fs::rename(
            mount.join("a/data.raw"),
            mount.join("moved.raw")
        )),
        "EPERM"
    );
    assert_eq!(
        errno(fs::rename(
            mount.join("a/.zarray"),
            mount.join("a/data.raw")
        )),
        "EINVAL"
    );
    // a program that removes the file may be about to create it anew: it is absent until it is
    // created, or until a listing shows that it exists as long as the array
    let path = mount.join("a/data.raw");
    fs::remove_file(&path).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| errno(fs::read(&path)));
        assert_eq!(other.join().unwrap(), "ENOENT");
    });
    assert_eq!(errno(fs::read(&path)), "ENOENT");
    let mut names = fs::read_dir(mount.join("a")).unwrap();
    assert!(names.any(|entry| entry.unwrap().file_name() == "data.raw"));
    assert_eq!(fs::read(&path).unwrap(), store.array.flat);
    assert_eq!(errno(File::create(mount.join("g/data.raw"))), "EPERM");
    assert_eq!(errno(File::create(mount.join("a/.zarrfs-1-1"))), "EPERM");
    assert_eq!(errno(fs::remove_file(mount.join(".zarrfs/stats"))), "EPERM");
    assert_eq!(errno(fs::remove_dir(mount.join(".zarrfs"))), "EPERM");
    assert_eq!(errno(File::create(mount.join(".zarrfs/x"))), "EPERM");
    store.assert_no_temporary_files();
}

/// "`rmdir`, `rm -r` and `mv` work inside the mount."
#[test]
fn directories_can_be_removed_and_renamed() {
    let mut store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(errno(fs::remove_dir(mount.join("a"))), "ENOTEMPTY");
    assert_eq!(errno(fs::remove_dir(mount.join("a/data.raw"))), "ENOTDIR");
    assert_eq!(errno(fs::remove_file(mount.join("a"))), "EISDIR");
    // a rename moves written bytes that are not stored yet
    let file = OpenOptions::new()
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap();
    file.write_all_at(&[1, 2, 3, 4], 0).unwrap();
    store.array.flat[..4].copy_from_slice(&[1, 2, 3, 4]);
    fs::rename(mount.join("a"), mount.join("g/b")).unwrap();
    drop(file);
    assert!(!store.path().join("a").exists() && store.path().join("g/b/0.0").exists());
    assert_eq!(errno(fs::metadata(mount.join("a"))), "ENOENT");
    assert_eq!(
        fs::read(mount.join("g/b/data.raw")).unwrap(),
        store.array.flat
    );
    assert_eq!(
        errno(fs::rename(mount.join("g"), mount.join("g/b/c"))),
        "EINVAL"
    );
    // a group is not empty: Python's os.renames removes directories that are
    fs::rename(mount.join("g/b"), mount.join("b")).unwrap();
    assert_eq!(errno(fs::remove_dir(mount.join("g"))), "ENOTEMPTY");
    fs::write(mount.join("g/.zattrs"), "{}").unwrap();
    fs::remove_file(mount.join("g/.zgroup")).unwrap();
    assert_eq!(errno(fs::remove_dir(mount.join("g"))), "ENOTEMPTY");
    fs::rename(mount.join("b"), mount.join("g/b")).unwrap();
    // a directory can be renamed onto an empty group only
    fs::create_dir(mount.join("empty")).unwrap();
    fs::rename(mount.join("g"), mount.join("empty")).unwrap();
    fs::create_dir(mount.join("g")).unwrap();
    assert_eq!(
        errno(fs::rename(mount.join("g"), mount.join("empty"))),
        "ENOTEMPTY"
    );
    assert_eq!(
        fs::read(mount.join("empty/b/data.raw")).unwrap(),
        store.array.flat
    );
    assert_eq!(names(&mount.join("g")), BTreeSet::new());
    fs::remove_dir(mount.join("g")).unwrap();
    assert_eq!(errno(fs::metadata(mount.join("g"))), "ENOENT");

    run("rm", &["-r", "empty"], mount.path());
    assert_eq!(names(store.path()), BTreeSet::from([".zgroup".to_string()]));
    assert_eq!(names(mount.path()), BTreeSet::from([".zgroup".to_string()]));
}

/// `rm -r` works in any order of the files and with any separator, and also deletes files that the
/// mount does not show.
#[test]
fn removing_all_files_and_the_directory_deletes_an_array() {
    for (n, order) in ["data.raw", ".zarray", "0.0"].into_iter().enumerate() {
        for separator in [".", "/"] {
            let store = Store::new(json!({"dimension_separator": separator}));
            fs::write(store.path().join("a/9.9"), "a chunk of a former shape").unwrap();
            fs::write(store.path().join("a/notes"), "hello").unwrap();
            let mount = Mount::new(store.path(), &[]);
            let mut files: Vec<_> = names(&mount.join("a")).into_iter().collect();
            files.rotate_left(n);
            files.sort_by_key(|name| name != order);
            for name in &files {
                fs::remove_file(mount.join("a").join(name))
                    .unwrap_or_else(|e| panic!("{name} {separator}: {e}"));
            }
            fs::remove_dir(mount.join("a")).unwrap();
            assert!(!store.path().join("a").exists());
            // the name can be used again
            fs::create_dir(mount.join("a")).unwrap();
            fs::write(mount.join("a/.zarray"), store.array.text()).unwrap();
            assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), vec![0; 30]);
        }
    }
}

/// "Any other name is a plain key of the store and is stored unchanged."
#[test]
fn plain_keys_behave_like_regular_files() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    for place in ["", "g", "a"] {
        let path = mount.join(place).join("notes.txt");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.write_all(b"hello").unwrap();
        assert_eq!(
            (fs::metadata(&path).unwrap().len(), fs::read(&path).unwrap()),
            (5, b"hello".to_vec())
        );
        file.set_len(2).unwrap();
        file.write_all_at(b"y", 3).unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"he\0y");
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"!")
            .unwrap();
        assert_eq!(
            fs::read(store.path().join(place).join("notes.txt")).unwrap(),
            b"he\0y!"
        );
        assert_eq!(
            errno(OpenOptions::new().write(true).create_new(true).open(&path)),
            "EEXIST"
        );
        fs::write(&path, "anew").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"anew");
        assert!(names(path.parent().unwrap()).contains("notes.txt"));
        fs::remove_file(&path).unwrap();
        assert!(!store.path().join(place).join("notes.txt").exists());
        // a descriptor that is open keeps the deleted file
        assert_eq!(file.metadata().unwrap().len(), 4);
        file.write_all_at(b"A", 0).unwrap();
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"Anew");
    }
    assert_eq!(errno(File::create(mount.join("none/x"))), "ENOENT");
    assert_eq!(
        errno(std::os::unix::fs::symlink("x", mount.join("link"))),
        "EPERM"
    );
    fs::write(mount.join("x"), "x").unwrap();
    assert_eq!(
        errno(fs::hard_link(mount.join("x"), mount.join("y"))),
        "EPERM"
    );
    let mode = rustix::fs::Mode::RUSR;
    let made = |kind| {
        rustix::fs::mknodat(rustix::fs::CWD, mount.join("node"), kind, mode, 0).map_err(Into::into)
    };
    assert_eq!(errno(made(rustix::fs::FileType::Fifo)), "EPERM");
    made(rustix::fs::FileType::RegularFile).unwrap();
    assert_eq!(fs::read(store.path().join("node")).unwrap(), b"");
}

/// Programs save a file by renaming a temporary file onto it, repeatedly with the same names.
#[test]
fn a_file_can_be_replaced_by_renaming_many_times() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    let (index, lock) = (mount.join("index"), mount.join("index.lock"));
    let mut old = Vec::new();
    for n in 0..20 {
        let text = format!("{n}").repeat(10 * (n % 3 + 1));
        fs::write(&lock, &text).unwrap();
        let file = File::open(&lock).unwrap();
        fs::rename(&lock, &index).unwrap();
        assert_eq!(errno(fs::metadata(&lock)), "ENOENT");
        assert_eq!(fs::read_to_string(&index).unwrap(), text, "{n}");
        assert_eq!(fs::metadata(&index).unwrap().len(), text.len() as u64);
        old.push((file, text));
        fs::write(&lock, "half").unwrap();
        assert_eq!(fs::read_to_string(&index).unwrap(), old[n].1, "{n}");
        fs::remove_file(&lock).unwrap();
    }
    // a descriptor keeps the version that it has opened
    for (file, text) in &old {
        assert_eq!(file.metadata().unwrap().len(), text.len() as u64);
        let mut bytes = vec![0; text.len()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, text.as_bytes());
    }
    let numbers: BTreeSet<u64> = old
        .iter()
        .map(|(file, _)| file.metadata().unwrap().ino())
        .collect();
    assert_eq!(numbers.len(), old.len(), "each is a file of its own");
    let keep = rustix::fs::RenameFlags::NOREPLACE;
    let rename = |from: &str, to: &str, flags| {
        let from = mount.join(from);
        let to = mount.join(to);
        errno(
            rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags)
                .map_err(Into::into),
        )
    };
    fs::write(&lock, "x").unwrap();
    assert_eq!(rename("index.lock", "index", keep), "EEXIST");
    assert_eq!(rename("index.lock", "a/0.0", keep), "EEXIST");
    assert_eq!(
        rename("index.lock", "index", rustix::fs::RenameFlags::EXCHANGE),
        "EINVAL"
    );
    assert_eq!(rename("index.lock", "other", keep), "ok");
    assert_eq!(
        rename("other", "other", rustix::fs::RenameFlags::empty()),
        "ok"
    );
    assert_eq!(fs::read(mount.join("other")).unwrap(), b"x");
}

/// zarr-python 3 creates documents exclusively by linking a temporary file to their name.
#[test]
fn documents_and_chunks_can_be_created_by_link() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    let temporary = mount.join("g/.zattrs.a1b2.partial");
    fs::write(&temporary, "{\"a\": 1}").unwrap();
    fs::hard_link(&temporary, mount.join("g/.zattrs")).unwrap();
    assert_eq!(
        errno(fs::hard_link(&temporary, mount.join("g/.zattrs"))),
        "EEXIST"
    );
    assert_eq!(
        errno(fs::hard_link(&temporary, mount.join("g/.zgroup"))),
        "EEXIST"
    );
    fs::remove_file(&temporary).unwrap();
    assert_eq!(fs::read(mount.join("g/.zattrs")).unwrap(), b"{\"a\": 1}");
    fs::remove_file(mount.join("a/1.1")).unwrap();
    let bytes = pattern(3, store.array.chunk_size());
    for (name, said) in [("short", "EINVAL"), ("whole", "ok")] {
        fs::write(
            mount.join("a").join(name),
            if said == "ok" { &bytes } else { &bytes[1..] },
        )
        .unwrap();
        assert_eq!(
            errno(fs::hard_link(
                mount.join("a").join(name),
                mount.join("a/1.1")
            )),
            said
        );
    }
    assert_eq!(fs::read(mount.join("a/1.1")).unwrap(), bytes);
    assert_eq!(fs::read(mount.join("a/whole")).unwrap(), bytes);
    assert_eq!(
        errno(fs::hard_link(mount.join("a/whole"), mount.join("a/other"))),
        "EPERM"
    );
    // a plain key, too, if its name says that it is about to be renamed or removed
    for place in ["", "g", "a"] {
        let [temporary, plain] =
            ["notes.4e1c.partial", "notes"].map(|name| mount.join(place).join(name));
        fs::write(&temporary, "hello").unwrap();
        fs::hard_link(&temporary, &plain).unwrap();
        assert_eq!(errno(fs::hard_link(&temporary, &plain)), "EEXIST");
        fs::remove_file(&temporary).unwrap();
        assert_eq!(fs::read(&plain).unwrap(), b"hello");
        assert_eq!(
            fs::read(store.path().join(place).join("notes")).unwrap(),
            b"hello"
        );
        fs::remove_file(&plain).unwrap();
    }
    store.assert_no_temporary_files();
}

/// Setting and removing the extended attribute `user.zarr.attrs.NAME` sets and removes the
/// attribute NAME.
#[test]
fn attributes_can_be_set_as_extended_attributes() {
    use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
    let store = Store::compressed();
    fs::write(store.path().join("a/.zattrs"), "{\"old\": [1, 2]}").unwrap();
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("a");
    let set = |name: &str, value: &str, flags| {
        errno(setxattr(&path, name, value.as_bytes(), flags).map_err(Into::into))
    };
    let remove = |name: &str| errno(removexattr(&path, name).map_err(Into::into));
    let none = XattrFlags::empty();
    assert_eq!(set("user.zarr.attrs.scale", "{\"x\": 0.5}", none), "ok");
    assert_eq!(
        set("user.zarr.attrs.units", "metres", XattrFlags::CREATE),
        "ok"
    );
    let expected = json!({"old": [1, 2], "scale": {"x": 0.5}, "units": "metres"});
    assert_eq!(document(&store.path().join("a/.zattrs")), expected);
    assert_eq!(document(&mount.join("a/.zattrs")), expected);
    let mut value = [0; 20];
    assert_eq!(
        getxattr(&path, "user.zarr.attrs.units", &mut value).unwrap(),
        8
    );
    assert_eq!(&value[..8], b"\"metres\"");
    assert_eq!(
        set("user.zarr.attrs.units", "1", XattrFlags::CREATE),
        "EEXIST"
    );
    assert_eq!(
        set("user.zarr.attrs.none", "1", XattrFlags::REPLACE),
        "ENODATA"
    );
    assert_eq!(remove("user.zarr.attrs.none"), "ENODATA");
    assert_eq!(remove("user.zarr.attrs.old"), "ok");
    assert_eq!(
        document(&mount.join("a/.zattrs")),
        json!({"scale": {"x": 0.5}, "units": "metres"})
    );
    assert_eq!(set("user.zarr.shape", "[1]", none), "EPERM");
    assert_eq!(set("user.mine", "1", none), "EOPNOTSUPP");
    assert_eq!(set("security.x", "1", none), "EOPNOTSUPP");
}

/// "Other `chmod` is `EPERM` unless it changes nothing", if no thread has just written the file.
/// "`chown` by root and `chgrp` by the owner of the mount have no effect." `statfs` reports the
/// space of the store's file system.
#[test]
fn owners_are_fixed_and_statfs_reports_the_space_of_the_store() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    for name in ["a", "a/0.0", "a/.zarray", "a/data.raw"] {
        let path = mount.join(name);
        let stat = fs::metadata(&path).unwrap();
        fs::set_permissions(&path, stat.permissions()).unwrap();
        std::os::unix::fs::chown(&path, Some(stat.uid()), Some(stat.gid())).unwrap();
        if name == "a/data.raw" {
            assert_eq!(
                errno(fs::set_permissions(
                    &path,
                    fs::Permissions::from_mode(0o600)
                )),
                "EPERM",
                "{name}"
            );
        }
        let given = errno(std::os::unix::fs::chown(&path, Some(stat.uid() + 1), None));
        let is_root = rustix::process::getuid().is_root();
        assert_eq!(given, if is_root { "ok" } else { "EPERM" }, "{name}");
        let now = fs::metadata(&path).unwrap();
        assert_eq!((now.uid(), now.gid()), (stat.uid(), stat.gid()), "{name}");
    }
    let [shown, below] =
        [mount.path(), store.path()].map(|path| rustix::fs::statvfs(path).unwrap());
    assert_eq!(
        (shown.f_blocks, shown.f_frsize),
        (below.f_blocks, below.f_frsize)
    );
    assert!(shown.f_bavail > 0 && shown.f_ffree > 0);
}

/// "`-o ro` or `--read-only` refuses all changes with `EROFS`."
#[test]
fn a_read_only_mount_refuses_every_change() {
    let store = Store::compressed();
    let before = support::tree::snapshot(store.path()).unwrap();
    let mount = Mount::new(store.path(), &["-o", "ro"]);
    let read_only = [
        errno(File::create(mount.join("x"))),
        errno(File::create(mount.join("a/.zattrs"))),
        errno(fs::create_dir(mount.join("d"))),
        errno(fs::remove_file(mount.join("a/0.0"))),
        errno(fs::remove_dir(mount.join("g"))),
        errno(fs::rename(mount.join("a"), mount.join("b"))),
        errno(fs::rename(mount.join("a/0.0"), mount.join("a/1.1"))),
        errno(
            rustix::fs::setxattr(
                mount.join("a"),
                "user.zarr.attrs.a",
                b"1",
                rustix::fs::XattrFlags::empty(),
            )
            .map_err(Into::into),
        ),
    ];
    assert_eq!(read_only, ["EROFS"; 8]);
    assert!(
        support::tree::differences(&before, &support::tree::snapshot(store.path()).unwrap())
            .is_empty()
    );
}

/// In an array with the separator `/`, the names `0/1` and `0.1` are one chunk file. The directory
/// `0` can be opened but is not listed.
#[test]
fn levels_of_chunk_keys_work_as_directories() {
    let mut store =
        Store::new(json!({"dimension_separator": "/", "compressor": {"id": "zlib", "level": 1}}));
    let mount = Mount::new(store.path(), &[]);
    assert_eq!(errno(fs::create_dir(mount.join("a/0"))), "EEXIST");
    assert_eq!(
        fs::read(mount.join("a/0/1")).unwrap(),
        store.array.chunk(&[0, 1])
    );
    let bytes = pattern(4, store.array.chunk_size());
    fs::write(mount.join("a/0/1"), &bytes).unwrap();
    store.array.set_chunk(&[0, 1], &bytes);
    fs::write(mount.join("a/0/0.x1.partial"), &bytes).unwrap();
    fs::rename(mount.join("a/0/0.x1.partial"), mount.join("a/0/0")).unwrap();
    store.array.set_chunk(&[0, 0], &bytes);
    assert_eq!(fs::read(mount.join("a/0.0")).unwrap(), bytes);
    assert_eq!(errno(fs::write(mount.join("a/0/9"), &bytes)), "EINVAL");
    assert_eq!(
        errno(fs::rename(mount.join("a/0"), mount.join("moved"))),
        "EPERM"
    );
    assert_eq!(errno(fs::create_dir(mount.join("a/0/0"))), "EEXIST");
    assert_eq!(errno(fs::create_dir(mount.join("a/0/x"))), "EPERM");
    assert_eq!(names(&mount.join("a/0")), BTreeSet::new());
    assert!(!names(&mount.join("a")).contains("0"));
    assert_eq!(errno(fs::metadata(mount.join("a/3"))), "ENOENT");
    fs::create_dir(mount.join("a/3")).unwrap();
    fs::remove_dir(mount.join("a/3")).unwrap();
    assert_eq!(errno(fs::remove_dir(mount.join("a/2"))), "ENOTEMPTY");
    fs::remove_file(mount.join("a/2/1")).unwrap();
    store.array.clear(&[2, 1]);
    assert_eq!(
        fs::read(mount.join("a/data.raw")).unwrap(),
        store.array.flat
    );
    store.with_new_mount(|mount| {
        assert_eq!(
            fs::read(mount.join("a/data.raw")).unwrap(),
            store.array.flat
        );
        assert_eq!(fs::read(mount.join("a/0/0")).unwrap(), bytes);
    });
    run("rm", &["-r", "a"], mount.path());
    assert!(!store.path().join("a").exists());
    store.assert_no_temporary_files();
}

/// "Changing a document while the store has a `.zmetadata` updates both."
#[test]
fn zmetadata_follows_every_change_of_metadata() {
    let store = Store::compressed();
    fs::write(
        store.path().join(".zmetadata"),
        "{\"zarr_consolidated_format\": 1, \"metadata\": {}}",
    )
    .unwrap();
    let mount = Mount::new(store.path(), &[]);
    let stored = || document(&store.path().join(".zmetadata"))["metadata"].clone();
    let shown = || document(&mount.join(".zmetadata"))["metadata"].clone();
    fs::write(mount.join("a/.zattrs"), "{\"units\": \"m\"}").unwrap();
    assert_eq!(stored()["a/.zattrs"], json!({"units": "m"}));
    assert_eq!(shown()["a/.zattrs"], json!({"units": "m"}));
    fs::rename(mount.join("a"), mount.join("g/b")).unwrap();
    assert_eq!(
        (&stored()["a/.zattrs"], &stored()["g/b/.zattrs"]),
        (&Value::Null, &json!({"units": "m"}))
    );
    assert_eq!(
        (&shown()["a/.zarray"], &shown()["g/b/.zattrs"]),
        (&Value::Null, &json!({"units": "m"}))
    );
    run("rm", &["-r", "g"], mount.path());
    assert_eq!(
        (&stored()["g/b/.zarray"], &shown()["g/b/.zarray"]),
        (&Value::Null, &Value::Null)
    );
}

/// A chunk of objects has no fixed size, so every write replaces the whole chunk.
#[test]
fn chunks_of_objects_are_replaced_as_a_whole() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    fs::create_dir(mount.join("o")).unwrap();
    let text = json!({"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|O", "fill_value": "", "order": "C",
        "compressor": {"id": "zlib", "level": 1}, "filters": [{"id": "vlen-utf8"}]});
    fs::write(mount.join("o/.zarray"), text.to_string()).unwrap();
    let strings = |words: [&str; 2]| {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for word in words {
            bytes.extend((word.len() as u32).to_le_bytes());
            bytes.extend(word.as_bytes());
        }
        bytes
    };
    for (n, words) in [["a", "bc"], ["def", "g"], ["", ""], ["hij", "klmnop"]]
        .into_iter()
        .enumerate()
    {
        let bytes = strings(words);
        if n % 2 == 0 {
            fs::write(mount.join("o/0"), &bytes).unwrap();
        } else {
            fs::write(mount.join("o/0.x.partial"), &bytes).unwrap();
            fs::rename(mount.join("o/0.x.partial"), mount.join("o/0")).unwrap();
        }
        assert_eq!(fs::read(mount.join("o/0")).unwrap(), bytes);
        assert_eq!(
            fs::metadata(mount.join("o/0")).unwrap().len(),
            bytes.len() as u64
        );
        assert_eq!(
            fs::read(store.path().join("o/0")).unwrap()[0],
            0x78,
            "zlib's first byte"
        );
    }
    assert_eq!(close_after_writing(&mount.join("o/0"), ""), "EINVAL");
    store.with_new_mount(|mount| {
        assert_eq!(
            fs::read(mount.join("o/0")).unwrap(),
            strings(["hij", "klmnop"])
        )
    });
    fs::remove_file(mount.join("o/0")).unwrap();
    assert!(!store.path().join("o/0").exists());
}

/// Names of more than 255 bytes are too long for every call, as in other file systems, and not
/// merely missing.
#[test]
fn long_names_are_refused() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    for place in ["", "a", "g"] {
        fs::write(mount.join(place).join("n".repeat(255)), "x").unwrap();
        for length in [256, 300, 1023] {
            let long = mount.join(place).join("n".repeat(length));
            let calls = [
                errno(fs::metadata(&long)),
                errno(File::create(&long)),
                errno(fs::create_dir(&long)),
                errno(fs::rename(mount.join("g"), &long)),
                errno(fs::remove_file(&long)),
            ];
            assert_eq!(calls, ["ENAMETOOLONG"; 5], "{place:?} {length}");
        }
    }
}

/// FSStore of zarr-python 2 moves an array key by key, flat bytes included: it must not write the
/// fill values of removed chunks over moved ones.
#[test]
fn flat_bytes_of_an_array_without_its_document_are_not_read() {
    let store = Store::compressed();
    let mount = Mount::new(store.path(), &[]);
    let document = fs::read(mount.join("a/.zarray")).unwrap();
    fs::remove_file(mount.join("a/.zarray")).unwrap();
    for name in ["data.raw", "data.npy", "README.txt"] {
        assert_eq!(
            errno(File::open(mount.join("a").join(name))),
            "ENOENT",
            "{name}"
        );
    }
    assert_eq!(
        fs::read(mount.join("a/0.0")).unwrap(),
        store.array.chunk(&[0, 0])
    );
    fs::write(mount.join("a/.zarray"), document).unwrap();
    assert_eq!(
        fs::read(mount.join("a/data.raw")).unwrap(),
        store.array.flat
    );
}
