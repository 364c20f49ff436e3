//! A damaged chunk in a file that shows a whole group, on a real mount: reads of its values fail,
//! whatever their size, and reads of other arrays succeed.

use crate::support::{Mount, env_path, is_installed, run_python, write_file};
use serde_json::json;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Bytes that NetCDF-C reads at a time.
const BLOCK: usize = 4 * MIB;

/// Creates an array of ones in chunks of one row, of which one is damaged.
fn create(store: &Path, name: &str, (rows, row): (usize, usize), damaged: Option<usize>) {
    let document = json!({"zarr_format": 2, "shape": [rows, row], "chunks": [1, row], "dtype": "|u1", "order": "C",
        "fill_value": 0, "compressor": null, "filters": null});
    let path = store.join(name);
    write_file(path.join(".zarray"), document.to_string());
    write_file(
        path.join(".zattrs"),
        json!({"_ARRAY_DIMENSIONS": [format!("rows{rows}"), format!("row{row}")]}).to_string(),
    );
    for chunk in 0..rows {
        let len = if damaged == Some(chunk) { row - 1 } else { row };
        write_file(path.join(format!("{chunk}.0")), vec![1; len]);
    }
}

fn store() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_file(
        folder.path().join(".zgroup"),
        json!({"zarr_format": 2}).to_string(),
    );
    folder
}

/// NetCDF-C 4.9.0 shows zeros after a short read.
#[test]
fn a_read_of_a_block_is_whole_or_an_error() {
    for options in [
        &["--containers", "nc"][..],
        &["--containers", "nc", "--read-only"],
    ] {
        for damaged in 0..6 {
            let folder = store();
            create(folder.path(), "x", (6, MIB), Some(damaged));
            let mount = Mount::new(folder.path(), options);
            let file = File::open(mount.join("dataset.nc")).unwrap();
            let size = file.metadata().unwrap().len() as usize;
            assert_eq!(size, BLOCK + 6 * MIB);
            let mut buffer = vec![0; BLOCK + 16];
            // the kernel cuts reads at pages of the buffer
            for at in [0, 16] {
                for block in 0..size.div_ceil(BLOCK) {
                    let wanted = BLOCK.min(size - block * BLOCK);
                    let read = file.read_at(&mut buffer[at..at + BLOCK], (block * BLOCK) as u64);
                    let is_damaged = (damaged / 4 + 1) == block;
                    match read {
                        Ok(len) => assert!(
                            !is_damaged && len == wanted,
                            "{len} of {wanted} bytes of block {block}, row {damaged} is damaged"
                        ),
                        Err(e) => assert!(is_damaged, "block {block}, row {damaged}: {e}"),
                    }
                }
            }
            // a smaller read sees the damage where it is
            for row in 0..6 {
                let read = file.read_at(&mut buffer[..MIB / 2], (BLOCK + row * MIB) as u64);
                assert_eq!(read.is_err(), row == damaged, "row {row} of {damaged}");
            }
        }
    }
}

/// The first request of a read loads bytes for the next ones, which must notice a write.
#[test]
fn a_read_that_goes_on_shows_writes() {
    let folder = store();
    create(folder.path(), "x", (6, MIB), None);
    let mount = Mount::new(folder.path(), &["--containers", "nc"]);
    let raw = File::options().write(true).open(mount.join("x/data.raw"));
    let raw = raw.unwrap();
    let file = File::open(mount.join("dataset.nc")).unwrap();
    let mut expected = vec![0; 6 * MIB];
    let mut buffer = vec![0; MIB];
    for round in 1..4 {
        for (i, byte) in expected.iter_mut().enumerate() {
            *byte = (i / 4096 + round) as u8;
        }
        raw.write_all_at(&expected, 0).unwrap();
        for row in 0..6 {
            file.read_exact_at(&mut buffer, (BLOCK + row * MIB) as u64)
                .unwrap();
            assert!(buffer == expected[row * MIB..][..MIB], "row {row}");
            // writes to this row, to the next row, and to a row of the next block
            for at in [row * MIB + 9, row * MIB + MIB + 9, 5 * MIB + row] {
                if let Some(byte) = expected.get_mut(at).filter(|_| round > 1) {
                    *byte = 0xaa;
                    raw.write_all_at(&[0xaa], at as u64).unwrap();
                }
            }
        }
    }
}

#[test]
fn only_readers_of_a_damaged_array_see_it() {
    let Some(python) = env_path("ZARRFS_TEST_SERVERS") else {
        return;
    };
    let arrays = [
        ("small", (3, 5)),
        ("other", (2, 7)),
        ("large", (6, MIB)),
        ("page", (2, 4096)),
    ];
    for options in [&["--read-only"][..], &[]] {
        for (damaged, (rows, _)) in arrays {
            let folder = store();
            for (name, shape) in arrays {
                let chunk = (name == damaged).then(|| rows - 1);
                create(folder.path(), name, shape, chunk);
            }
            let options = [options, &["--containers", "nc,h5"]].concat();
            let mount = Mount::new(folder.path(), &options);
            run_python(&python, "damage.py", &[mount.path(), Path::new(damaged)]);
            for (name, _) in arrays {
                if is_installed("ncks") {
                    let output = Command::new("ncks")
                        .args(["-C", "-H", "-v", name])
                        .arg(mount.join("dataset.nc"))
                        .output()
                        .unwrap();
                    assert_eq!(output.status.success(), name != damaged, "{name} {damaged}");
                }
            }
        }
    }
}
