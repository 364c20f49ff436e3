//! The rows of docs/why.md that no other test covers: arrays of Zarr v3 in shards, with checksums,
//! with the codecs `scale_offset` and `cast_value`, of bfloat16 and of strings, as zarr-python and
//! TensorStore write them. Programs that can't open them read the files of a mount, and get the
//! values that the libraries read from the store.

use crate::support::{Mount, announce, env_path, is_installed, run_python, with_timeout};
use std::path::{Path, PathBuf};

/// A mounted store, and the values of its arrays.
struct Opened {
    folder: tempfile::TempDir,
    mount: Mount,
    /// A Python with zarr-python 2, GDAL and netCDF4.
    reader: PathBuf,
}

impl Opened {
    /// Writes and mounts the store; `None` if the test is skipped.
    fn new() -> Option<Opened> {
        let reader = env_path("ZARRFS_TEST_PYTHON")?;
        let writer = env_path("ZARRFS_TEST_PYTHON3")?;
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store.zarr");
        let values = folder.path().join("values");
        run_python(&writer, "opened.py", &[Path::new("write"), &store, &values]);
        let options = [
            "--read-only",
            "--containers",
            "nc",
            "--headers",
            "npy,vrt,envi,txt",
        ];
        let mount = Mount::new(&store, &options);
        Some(Opened {
            folder,
            mount,
            reader,
        })
    }

    /// Runs `opened.py NAME` for the mount. Returns what it printed.
    fn read(&self, name: &str) -> String {
        let values = self.folder.path().join("values");
        let arguments = [Path::new(name), self.mount.path(), &values];
        let printed = run_python(&self.reader, "opened.py", &arguments);
        self.mount.assert_no_problem();
        printed
    }

    /// Returns which arrays a zarr-python can't open.
    fn refused(&self, python: &Path) -> String {
        let store = self.folder.path().join("store.zarr");
        run_python(python, "opened.py", &[Path::new("refuse"), &store])
    }
}

#[test]
fn programs_without_shards_read_them() {
    let Some(opened) = Opened::new() else { return };
    opened.read("sharded");
    let refused = opened.refused(&opened.reader);
    assert_eq!(refused.trim(), "2 sharded checksum brain scaled names");
}

#[test]
fn programs_without_checksums_read_them() {
    if let Some(opened) = Opened::new() {
        opened.read("checksum");
    }
}

#[test]
fn programs_without_scale_offset_and_cast_value_read_them() {
    let Some(opened) = Opened::new() else { return };
    opened.read("scaled");
    let Some(python3) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    announce(&format!(
        "can't be opened by zarr-python {}",
        opened.refused(&python3).trim()
    ));
}

#[test]
fn programs_without_bfloat16_read_it() {
    if let Some(opened) = Opened::new() {
        opened.read("brain");
    }
}

#[test]
fn r_reads_strings() {
    let Some(opened) = Opened::new() else { return };
    if !is_installed("Rscript") {
        return;
    }
    // bytes in hexadecimal digits, since the strings have blanks and tabs
    let script = r#"
        found <- scan(commandArgs(TRUE)[1], "", quote = "\"", allowEscapes = TRUE, encoding = "UTF-8", quiet = TRUE)
        cat(sapply(found, function(text) paste(charToRaw(text), collapse = "")), sep = "\n")
    "#;
    let output = with_timeout(300, "Rscript")
        .args(["--vanilla", "-e", script])
        .arg(opened.mount.join("names/values.txt"))
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let strings: Vec<String> = serde_json::from_str(&opened.read("names")).unwrap();
    let expected = strings.iter().map(|text| {
        let digits = text.bytes().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    });
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        found.lines().collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
}
