//! Writes with O_DIRECT, O_SYNC and O_DSYNC on a real mount, compared with bytes that the tests
//! keep themselves. Those with O_DIRECT consist of whole blocks, so the last one crosses the end of every
//! file whose size is not a multiple of a block. "A write past the end is `EFBIG`"; a write across
//! the end is short. Such a write that changed bytes must never return an error.

use crate::support;
use crate::support::Mount;
use crate::support::array::{TestArray, pattern};
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of one row. No file of the array has a size that is a multiple of a block.
const ROW: usize = 1002;

fn open_direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}

/// Writes `data` at `offset` and checks that `wanted` bytes are written, or that the write fails
/// with EFBIG if `wanted` is 0.
#[track_caller]
fn assert_writes(file: &File, data: &[u8], offset: usize, wanted: usize) {
    let written = file
        .write_at(data, offset as u64)
        .map_err(|e| e.raw_os_error());
    match wanted {
        0 => assert_eq!(
            written,
            Err(Some(libc::EFBIG)),
            "{} bytes at {offset}",
            data.len()
        ),
        _ => assert_eq!(written, Ok(wanted), "{} bytes at {offset}", data.len()),
    }
}

/// Overwrites a file of fixed size by writes across its end, of one request and of several of at
/// most 1 MiB. Keeps the first `header` bytes. Checks that writes after the end fail. Returns the
/// new content.
fn overwrite(path: &Path, header: usize) -> Vec<u8> {
    let mut model = fs::read(path).unwrap();
    let size = model.len();
    let file = open_direct(path);
    for (seed, offset) in [
        (1, size - 100),
        (2, size.saturating_sub(3 << 19).max(header)),
        (3, header),
    ] {
        let data = pattern(seed, (4 << 20) + offset % 7);
        assert_writes(&file, &data, offset, size - offset);
        model[offset..].copy_from_slice(&data[..size - offset]);
        assert!(
            fs::read(path).unwrap() == model,
            "{}: after a write at {offset}",
            path.display()
        );
    }
    support::close(file).unwrap();
    assert!(
        fs::read(path).unwrap() == model,
        "{}: after closing it",
        path.display()
    );
    assert_writes(&open_direct(path), &[1; 4096], size, 0);
    assert_writes(&open_direct(path), &[1; 4096], size + 4096, 0);
    model
}

#[test]
fn a_write_across_the_end_is_short() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let more = json!({"dtype": "|u1", "fill_value": 7, "compressor": {"id": "zlib", "level": 1}});
    let mut made =
        TestArray::with_chunks(folder.path().join("a"), &[2600, ROW], &[1300, ROW], more);
    let mount = Mount::new(folder.path(), &["--containers", "tif,nc"]);
    let array = mount.join("a");
    made.flat = overwrite(&array.join("data.raw"), 0);
    let first = overwrite(&array.join("0.0"), 0);
    made.flat[..first.len()].copy_from_slice(&first);
    for path in [
        array.join("data.npy"),
        array.join("data.tif"),
        mount.join("dataset.nc"),
    ] {
        let begin = fs::read(&path)
            .unwrap()
            .windows(64)
            .position(|bytes| *bytes == made.flat[..64])
            .unwrap();
        // this test needs files without padding behind the last variable, which would be read-only
        let is_padded = !(fs::metadata(&path).unwrap().len() as usize - begin).is_multiple_of(ROW);
        assert!(!is_padded, "{}", path.display());
        made.flat = overwrite(&path, begin)[begin..].to_vec();
        assert!(
            made.stored_flat().unwrap() == made.flat,
            "{}",
            path.display()
        );
    }
}

/// To lengthen the header of `dataset.nc`, a program moves the arrays across the end of the file.
/// Such a write must change nothing.
#[test]
fn a_write_across_the_end_of_dataset_nc_is_refused_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    let made = TestArray::with_chunks(
        folder.path().join("a"),
        &[20, 16],
        &[5, 16],
        json!({"dtype": "|u1"}),
    );
    let mount = Mount::new(folder.path(), &["--containers", "nc"]);
    let path = mount.join("dataset.nc");
    let before = fs::read(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    assert_writes(&file, &[1; 200], before.len() - 100, 0);
    assert_eq!(
        file.write_at(&[1], before.len() as u64 - 100)
            .unwrap_err()
            .raw_os_error(),
        Some(libc::EPERM)
    );
    support::close(file).unwrap();
    assert!(fs::read(&path).unwrap() == before && made.stored_flat().unwrap() == made.flat);
}

#[test]
fn a_write_across_the_end_grows_the_array_with_resize() {
    let folder = tempfile::tempdir().unwrap();
    let made = TestArray::with_chunks(
        folder.path().join("a"),
        &[2600, ROW],
        &[1300, ROW],
        json!({"dtype": "|u1"}),
    );
    let mount = Mount::new(folder.path(), &["--resize"]);
    let path = mount.join("a/data.raw");
    let data = pattern(5, 3 << 20);
    let at = made.flat.len() - 100;
    assert_eq!(
        open_direct(&path).write_at(&data, at as u64).unwrap(),
        data.len()
    );
    assert!(fs::read(&path).unwrap()[at..][..data.len()] == data);
}

/// "With `O_SYNC` or `O_DSYNC` each write in place is stored and synced before it returns."
#[test]
fn a_write_with_o_sync_is_stored_when_it_returns() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".zgroup"), br#"{"zarr_format": 2}"#).unwrap();
    fs::write(folder.path().join("plain"), [0; 64]).unwrap();
    let array = folder.path().join("a");
    let mut made = TestArray::with_chunks(array, &[4000], &[1000], support::array::zlib());
    let mount = Mount::new(folder.path(), &["--containers", "nc"]);
    let mut seed = 7;
    for flags in [libc::O_SYNC, libc::O_DSYNC] {
        for name in ["a/data.raw", "a/2", "a/data.npy", "dataset.nc"] {
            let path = mount.join(name);
            let wanted = &made.flat[2000..2064];
            let shown = fs::read(&path).unwrap();
            let at = shown.windows(64).position(|bytes| bytes == wanted).unwrap();
            let mut options = OpenOptions::new();
            let file = options.write(true).custom_flags(flags).open(&path).unwrap();
            for within in [0, 40] {
                seed += 1;
                let data = pattern(seed, 16);
                file.write_all_at(&data, (at + within) as u64).unwrap();
                made.flat[2000 + within..][..16].copy_from_slice(&data);
                assert!(made.stored_flat().unwrap() == made.flat, "{name}: {within}");
            }
        }
        let mut options = OpenOptions::new();
        let path = mount.join("plain");
        let file = options.write(true).custom_flags(flags).open(path).unwrap();
        file.write_all_at(&[flags as u8 | 1; 8], 8).unwrap();
        let stored = fs::read(folder.path().join("plain")).unwrap();
        assert_eq!(stored[8..16], [flags as u8 | 1; 8]);
        // a document takes effect when it is closed, and a part of it is no error
        let path = mount.join("a/.zattrs");
        let mut file = options.create(true).open(path).unwrap();
        file.write_all(b"{\"units\": ").unwrap();
        file.write_all(b"\"K\"}").unwrap();
        support::close(file).unwrap();
    }
    let before = made.stored_flat().unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open(mount.join("a/data.raw"));
    let file = file.unwrap();
    file.write_all_at(&[1; 8], 0).unwrap();
    assert!(made.stored_flat().unwrap() == before);
}
