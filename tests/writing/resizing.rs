//! `--resize` on a real mount: "truncating `data.raw` and writing past its end change the first
//! dimension instead", "shrinking removes the chunks outside the shape and clears the part of edge
//! chunks that is cut off", and "an incomplete last row is padded with the fill value at `close`".
//! A new mount and zarr-python read the results.

use crate::support::array::{TestArray, pattern};
use crate::support::{self, Mount, env_path, run_python, wait_for};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Creates an array of rows of 12 items, in chunks of 5 rows and 8 items, with a fill value other
/// than zero.
fn array(path: &Path, rows: usize) -> TestArray {
    let more = json!({"dtype": "<i2", "fill_value": 258, "compressor": {"id": "zlib", "level": 1}});
    TestArray::with_chunks(path.join("a"), &[rows, 12], &[5, 8], more)
}

const ROW: usize = 24;

fn shape(store: &Path) -> Value {
    serde_json::from_slice::<Value>(&fs::read(store.join("a/.zarray")).unwrap()).unwrap()["shape"]
        .clone()
}

fn chunks(store: &Path) -> Vec<String> {
    let names = fs::read_dir(store.join("a"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|n| !n.starts_with('.')).collect();
    names.sort();
    names
}

fn fill(rows: usize) -> Vec<u8> {
    [2, 1].repeat(rows * ROW / 2)
}

/// Checks that a new mount and, if installed, zarr-python read these flat bytes.
#[track_caller]
fn assert_holds(store: &Path, flat: &[u8]) {
    let mount = Mount::new(store, &["-o", "ro"]);
    assert!(
        fs::read(mount.join("a/data.raw")).unwrap() == flat,
        "through a mount"
    );
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    let code = "import sys, zarr; sys.stdout.buffer.write(zarr.open_array(sys.argv[1], mode='r')[:].tobytes())";
    let read = Command::new(python)
        .args(["-c", code])
        .arg(store.join("a"))
        .output()
        .unwrap();
    assert!(
        read.stdout == flat,
        "zarr-python: {}",
        String::from_utf8_lossy(&read.stderr)
    );
}

#[test]
fn appending_adds_rows() {
    let store = tempfile::tempdir().unwrap();
    let made = array(store.path(), 7);
    let mount = Mount::new(store.path(), &["--resize"]);
    let path = mount.join("a/data.raw");
    let mut flat = made.flat.clone();
    let new = pattern(3, 100 * ROW);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    // append pieces that end inside of rows and items
    for part in new.chunks(101) {
        file.write_all(part).unwrap();
        flat.extend_from_slice(part);
        assert_eq!(fs::metadata(&path).unwrap().len(), flat.len() as u64);
    }
    drop(file);
    assert_eq!(shape(store.path()), json!([107, 12]));
    assert!(fs::read(&path).unwrap() == flat);
    drop(mount);
    assert_holds(store.path(), &flat);
}

#[test]
fn a_partial_last_row_is_padded_at_close() {
    let store = tempfile::tempdir().unwrap();
    let mut flat = array(store.path(), 7).flat;
    let mount = Mount::new(store.path(), &["--resize"]);
    let path = mount.join("a/data.raw");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[9; 10], 7 * ROW as u64).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 7 * ROW as u64 + 10);
    drop(file);
    flat.extend([9; 10]);
    flat.extend_from_slice(&fill(1)[10..]);
    // the release of the file comes a moment after the close
    wait_for("the last row to be padded", || {
        fs::metadata(&path).unwrap().len() == 8 * ROW as u64
    });
    // a write past the end fills the gap with the fill value
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[8; ROW], 20 * ROW as u64).unwrap();
    drop(file);
    flat.extend_from_slice(&fill(12));
    flat.extend_from_slice(&[8; ROW]);
    // truncate inside of a row
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(3 * ROW as u64 + 5).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3 * ROW as u64 + 5);
    drop(file);
    flat.truncate(3 * ROW + 5);
    flat.extend_from_slice(&fill(1)[5..]);
    assert_eq!(shape(store.path()), json!([4, 12]));
    drop(mount);
    assert_holds(store.path(), &flat);
}

#[test]
fn removed_rows_never_reappear() {
    for rows in [0, 1, 5, 6, 10, 13] {
        let store = tempfile::tempdir().unwrap();
        let mut flat = array(store.path(), 14).flat;
        let mount = Mount::new(store.path(), &["--resize"]);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount.join("a/data.raw"))
            .unwrap();
        // these bytes are not stored yet when the file is truncated
        file.write_all_at(&[7; 2 * ROW], 11 * ROW as u64).unwrap();
        flat[11 * ROW..13 * ROW].fill(7);
        file.set_len((rows * ROW) as u64).unwrap();
        flat.truncate(rows * ROW);
        let last = rows.div_ceil(5);
        assert!(
            chunks(store.path())
                .iter()
                .all(|n| n[..1].parse::<usize>().unwrap() < last),
            "{rows}"
        );
        file.set_len(14 * ROW as u64).unwrap();
        // a program that has made a file shorter believes in zeros
        flat.extend(vec![0; (14 - rows) * ROW]);
        let mut now = vec![0; flat.len()];
        file.read_exact_at(&mut now, 0).unwrap();
        assert!(now == flat, "{rows} rows");
        drop((file, mount));
        assert_holds(store.path(), &flat);
    }
}

#[test]
fn copying_a_file_gives_the_array_its_size() {
    let store = tempfile::tempdir().unwrap();
    array(store.path(), 14);
    let mount = Mount::new(store.path(), &["--resize"]);
    for (seed, rows) in [(5, 200), (6, 3), (7, 14)] {
        let flat = pattern(seed, rows * ROW);
        fs::write(store.path().join("new"), &flat).unwrap();
        let done = Command::new("cp")
            .arg(store.path().join("new"))
            .arg(mount.join("a/data.raw"))
            .status()
            .unwrap();
        assert!(done.success());
        assert_eq!(shape(store.path()), json!([rows, 12]));
        assert!(fs::read(mount.join("a/data.raw")).unwrap() == flat);
        fs::remove_file(store.path().join("new")).unwrap();
        assert_holds(store.path(), &flat);
    }
    // chunk files still have a fixed size
    let chunk = OpenOptions::new()
        .write(true)
        .open(mount.join("a/0.0"))
        .unwrap();
    assert_eq!(
        chunk.set_len(1000).unwrap_err().raw_os_error(),
        Some(libc::EFBIG)
    );
}

/// "Rows that are skipped after a truncation are zeros", also if the fill value is another one.
#[test]
fn copying_a_sparse_file_adds_rows_of_zeros() {
    let store = tempfile::tempdir().unwrap();
    array(store.path(), 14);
    let source = store.path().join("new");
    for (rows, parts) in [
        (2000, vec![(0, 20), (800, 900)]),
        (1500, vec![(700, 1000)]),
        (900, vec![]),
    ] {
        let mount = Mount::new(store.path(), &["--resize"]);
        let file = File::create(&source).unwrap();
        file.set_len((rows * ROW) as u64).unwrap();
        for (start, end) in parts {
            file.write_all_at(&pattern(8, (end - start) * ROW), (start * ROW) as u64)
                .unwrap();
        }
        let to = mount.join("a/data.raw");
        let done = Command::new("cp")
            .arg("--sparse=always")
            .arg(&source)
            .arg(&to)
            .status()
            .unwrap();
        assert!(done.success());
        let flat = fs::read(&source).unwrap();
        assert_eq!(shape(store.path()), json!([rows, 12]));
        assert!(fs::read(&to).unwrap() == flat, "{rows}");
        drop(mount);
        fs::remove_file(&source).unwrap();
        assert_holds(store.path(), &flat);
    }
}

#[test]
fn concurrent_appends_are_all_kept() {
    let store = tempfile::tempdir().unwrap();
    let flat = array(store.path(), 1).flat;
    let mount = Mount::new(store.path(), &["--resize"]);
    let path = mount.join("a/data.raw");
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..20 {
                    let mut file = OpenOptions::new().append(true).open(path).unwrap();
                    file.write_all(&[writer + 1; ROW]).unwrap();
                }
            });
        }
    });
    let now = fs::read(&path).unwrap();
    assert_eq!(
        (now.len(), shape(store.path())),
        (81 * ROW, json!([81, 12]))
    );
    assert!(now[..ROW] == flat);
    for writer in 1..=4u8 {
        assert_eq!(
            now[ROW..]
                .chunks(ROW)
                .filter(|row| row.iter().all(|b| *b == writer))
                .count(),
            20,
            "{writer}"
        );
    }
}

/// GDAL truncates the file, writes two zero bytes, closes it, and opens it again to write the rows
/// that the header states. The header of a view is accepted, and not stored: its fields are named.
#[test]
fn gdal_creates_the_flat_bytes_of_an_array_and_its_views() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON") else {
        return;
    };
    for options in [&[][..], &["--resize"]] {
        let store = tempfile::tempdir().unwrap();
        let script = "created_by_gdal.py";
        run_python(&python, script, &[Path::new("make"), store.path()]);
        let mount = Mount::new(store.path(), &[&["--views", "all"], options].concat());
        let write = [Path::new("write"), mount.path(), store.path()];
        run_python(&python, script, &write);
        let stats = mount.stats();
        let problems: Vec<&str> = stats
            .lines()
            .filter(|line| line.starts_with("problem "))
            .collect();
        let header = |view: &str| format!("/{view}/data.raw.hdr: not stored: band names, ");
        assert_eq!(problems.len(), 2, "{stats}");
        assert!(problems[0].contains(&header("a.unpacked")), "{stats}");
        assert!(problems[1].contains(&header("a.slices/1")), "{stats}");
    }
}

/// Zeros that are less than a row are no data if the file is closed after them: any program may
/// create a file so, and open it again to write the rows.
#[test]
fn zeros_of_less_than_a_row_leave_an_array_its_rows() {
    let store = tempfile::tempdir().unwrap();
    let flat = array(store.path(), 7).flat;
    let rows = flat.len() / ROW;
    let mount = Mount::new(store.path(), &["--resize"]);
    let path = mount.join("a/data.raw");
    for (len, pieces) in [(1, 1), (3, 1), (4, 2), (ROW - 1, 1), (ROW - 1, ROW - 1)] {
        fs::write(&path, &flat).unwrap();
        let mut file = File::create(&path).unwrap();
        for piece in vec![0; len].chunks(len / pieces) {
            file.write_all(piece).unwrap();
        }
        // other programs see them until the close
        assert_eq!(fs::read(&path).unwrap(), vec![0; len]);
        support::close(file).unwrap();
        assert_eq!(shape(store.path()), json!([rows, 12]), "{len}");
        assert_eq!(fs::read(&path).unwrap(), [2, 1].repeat(12 * rows), "{len}");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&flat, 0).unwrap();
        support::close(file).unwrap();
        assert_eq!(fs::read(&path).unwrap(), flat);
    }
    // what overwrites a part of them leaves the others zeros
    let file = File::create(&path).unwrap();
    file.write_all_at(&[0; 6], 0).unwrap();
    file.write_all_at(&[9; 2], 2).unwrap();
    support::close(file).unwrap();
    let row = [&[0, 0, 9, 9, 0, 0][..], &[2, 1].repeat(9)].concat();
    assert_eq!(fs::read(&path).unwrap(), row);
    // a row of zeros is data
    fs::write(&path, [0; ROW]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [0; ROW]);
}

/// Two zero bytes are data unless the file is closed after them.
#[test]
fn zeros_after_a_truncation_are_data_if_more_follows() {
    let store = tempfile::tempdir().unwrap();
    array(store.path(), 7);
    let mount = Mount::new(store.path(), &["--resize"]);
    let path = mount.join("a/data.raw");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[0, 0], 0).unwrap();
    file.write_all_at(&[1, 0], 2).unwrap();
    support::close(file).unwrap();
    let row = [&[0, 0, 1, 0][..], &[2, 1].repeat(10)].concat();
    assert_eq!(fs::read(&path).unwrap(), row);
    fs::write(&path, [0, 0]).unwrap();
    assert_eq!(shape(store.path()), json!([1, 12]));
    assert_eq!(fs::read(&path).unwrap(), [2, 1].repeat(12));
    fs::write(&path, b"").unwrap();
    assert_eq!(shape(store.path()), json!([0, 12]));
}

#[test]
fn the_size_of_data_raw_is_fixed_without_the_option() {
    let store = tempfile::tempdir().unwrap();
    let made = array(store.path(), 7);
    let mount = Mount::new(store.path(), &[]);
    let file = File::create(mount.join("a/data.raw")).unwrap();
    assert_eq!(
        file.write_at(b"x", made.flat.len() as u64)
            .unwrap_err()
            .raw_os_error(),
        Some(libc::EFBIG)
    );
    drop(file);
    assert_eq!(shape(store.path()), json!([7, 12]));
}
