//! `zarrfs put`: the bytes that it writes, inputs that it refuses, and its messages. The bytes are
//! compared with the input through `zarrfs cat`.

use crate::support::{Mount, ZARRFS, copy_tree, failure, test_data, zarrfs};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A copy of the sample store.
struct Sample(tempfile::TempDir);

impl Sample {
    fn new() -> Sample {
        let directory = tempfile::tempdir().unwrap();
        copy_tree(&test_data("sample.zarr"), directory.path());
        Sample(directory)
    }

    fn array(&self) -> PathBuf {
        self.0.path().join("air_temperature")
    }

    fn flat(&self) -> Vec<u8> {
        let output = zarrfs(&["cat", self.array().to_str().unwrap()]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }
}

fn put(array: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(ZARRFS);
    command
        .arg("put")
        .arg(array)
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn put_pipe(array: &Path, more: &[&str], bytes: &[u8]) -> Output {
    let mut child = put(array, more).stdin(Stdio::piped()).spawn().unwrap();
    // the command may close its input before it has read everything
    let _ = child.stdin.take().unwrap().write_all(bytes);
    child.wait_with_output().unwrap()
}

fn assert_succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
}

#[test]
fn input_is_written_at_the_offset_and_other_bytes_stay() {
    let sample = Sample::new();
    let mut expected = sample.flat();
    // an empty input changes nothing
    let inode = |name: &str| fs::metadata(sample.array().join(name)).unwrap().ino();
    let before = inode("0.0.0");
    assert_succeeded(&put_pipe(&sample.array(), &[], b""));
    assert_eq!((sample.flat() == expected, inode("0.0.0")), (true, before));
    // a part in the middle, from a pipe
    expected[1001..1778].fill(7);
    assert_succeeded(&put_pipe(&sample.array(), &["--offset", "1001"], &[7; 777]));
    assert!(sample.flat() == expected);
    // the whole array, with a cache of a few chunks, from a file that is read from its current
    // position
    let mut input = tempfile::tempfile().unwrap();
    expected.reverse();
    input.write_all(b"not this").unwrap();
    input.write_all(&expected).unwrap();
    input.seek(SeekFrom::Start(8)).unwrap();
    assert_succeeded(
        &put(&sample.array(), &["--cache-size", "64K"])
            .stdin(input)
            .output()
            .unwrap(),
    );
    assert!(sample.flat() == expected);
    // the last bytes of the array
    let len = expected.len();
    expected[len - 3..].copy_from_slice(b"end");
    assert_succeeded(&put_pipe(
        &sample.array(),
        &["--offset", &(len - 3).to_string()],
        b"end",
    ));
    assert!(sample.flat() == expected);
}

#[test]
fn input_that_does_not_fit_is_refused() {
    let sample = Sample::new();
    let mut expected = sample.flat();
    let len = expected.len();
    let name = sample.array().display().to_string();
    // the size of a file is known before anything is written
    let mut input = tempfile::NamedTempFile::new().unwrap();
    input.write_all(&vec![1; len + 1]).unwrap();
    let output = put(&sample.array(), &[])
        .stdin(File::open(input.path()).unwrap())
        .output()
        .unwrap();
    let told = format!(
        "error: {name}: {} bytes don't fit, it has {len} from byte 0 on; nothing was written",
        len + 1
    );
    assert_eq!(failure(&output), (1, told));
    assert!(sample.flat() == expected);
    // the size of a pipe is not known
    let at = len - 5;
    let output = put_pipe(&sample.array(), &["--offset", &at.to_string()], b"123456");
    let told = format!(
        "error: {name}: the input goes on beyond the array's end; its first 5 bytes were written"
    );
    assert_eq!(failure(&output), (1, told));
    expected[at..].copy_from_slice(b"12345");
    assert!(sample.flat() == expected);
    let output = put_pipe(&sample.array(), &["--offset", "1G"], b"1");
    assert_eq!(failure(&output).0, 1);
    assert_succeeded(&put_pipe(&sample.array(), &["--offset", "1G"], b""));
}

/// c-blosc divides by the item size, and keeps it in 32 bits.
#[test]
fn blosc_encodes_items_of_any_size() {
    let sample = Sample::new();
    let codec = |more: &str| {
        format!(r#"{{"id":"blosc","cname":"lz4","clevel":5,"shuffle":1,"blocksize":0{more}}}"#)
    };
    for (name, dtype, codec) in [
        ("none", "|S0", codec("")),
        ("void", "|V0", codec("")),
        ("large", "|V300", codec("")),
        ("cut", "|V4", codec(r#","typesize":4294967296"#)),
        ("negative", "|V4", codec(r#","typesize":2147483649"#)),
    ] {
        let array = sample.0.path().join(name);
        fs::create_dir(&array).unwrap();
        let document = format!(
            r#"{{"zarr_format":2,"shape":[4],"chunks":[4],"dtype":"{dtype}","fill_value":null,"order":"C",
            "compressor":{codec},"filters":null}}"#
        );
        fs::write(array.join(".zarray"), document).unwrap();
        let len = 4 * dtype[2..].parse::<usize>().unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        assert_succeeded(&put_pipe(&array, &[], &bytes));
        assert_eq!(
            zarrfs(&["cat", array.to_str().unwrap()]).stdout,
            bytes,
            "{name}"
        );
    }
    // the daemon tries the encoder when a file of the array is opened for writing
    let mount = Mount::new(sample.0.path(), &[]);
    for name in ["none", "void"] {
        fs::write(mount.join(name).join("data.raw"), "").unwrap();
        // this may fail: the test is not about chunks of zero bytes
        let _ = File::create(mount.join(name).join("0"));
        assert!(
            mount.join(name).join(".zarray").exists(),
            "the daemon is gone"
        );
    }
    fs::write(mount.join("large/data.raw"), [3; 1200]).unwrap();
    assert_eq!(
        zarrfs(&["cat", sample.0.path().join("large").to_str().unwrap()]).stdout,
        [3; 1200]
    );
}

#[test]
fn arrays_that_cannot_be_written_are_reported() {
    let sample = Sample::new();
    let group = failure(&put_pipe(sample.0.path(), &[], b"1"));
    assert!(
        group.0 == 3
            && group
                .1
                .contains(": a group, not an array; name an array in it: `zarrfs ls "),
        "{group:?}"
    );
    assert_eq!(
        failure(&put_pipe(&sample.0.path().join("none"), &[], b"1")).0,
        3
    );
    let wrong = put_pipe(&sample.array(), &["--offset", "x"], b"1");
    assert_eq!(wrong.status.code(), Some(2));
    // a codec that can decode, but cannot encode with these parameters
    let document = r#"{"zarr_format":2,"shape":[4],"chunks":[4],"dtype":"<f4","fill_value":0,"order":"C",
        "compressor":null,"filters":[{"id":"bitround","keepbits":40}]}"#;
    fs::create_dir(sample.0.path().join("rounded")).unwrap();
    fs::write(sample.0.path().join("rounded/.zarray"), document).unwrap();
    let (code, told) = failure(&put_pipe(&sample.0.path().join("rounded"), &[], b"1234"));
    assert!(
        code == 1 && told.ends_with("can't keep 40 of 23 bits: chunks can be read, not written"),
        "{told}"
    );
    // a damaged chunk, of which only a part is written
    fs::write(sample.array().join("0.0.0"), b"damaged").unwrap();
    let (code, told) = failure(&put_pipe(&sample.array(), &[], b"1234"));
    assert!(code == 1 && told.contains("/0.0.0: "), "{told}");
    assert_eq!(fs::read(sample.array().join("0.0.0")).unwrap(), b"damaged");
    if !rustix::process::geteuid().is_root() {
        fs::set_permissions(sample.array(), fs::Permissions::from_mode(0o555)).unwrap();
        let (code, told) = failure(&put_pipe(&sample.array(), &[], b"1234"));
        assert!(code == 1 && told.ends_with("Permission denied"), "{told}");
        fs::set_permissions(sample.array(), fs::Permissions::from_mode(0o755)).unwrap();
    }
}
