//! "If two programs change one chunk, both changes survive if their byte ranges differ ... If the
//! ranges overlap, the last writer wins." The other program is zarr-python. Its digest of the
//! array, the mount and the store are compared with bytes that the tests keep themselves.

use crate::support::array::TestArray;
use crate::support::{Mount, announce, close, env_path, random, sha256, with_timeout};
use serde_json::json;
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

const CHUNK: usize = 100;
const CHUNKS: usize = 12;

/// zarr-python in a process of its own.
pub struct Foreign {
    child: Child,
    told: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Foreign {
    /// Starts zarr-python. Returns `None`, and announces that the test is skipped, if it is not
    /// installed.
    pub fn start(array: &Path, locks: Option<&Path>) -> Option<Foreign> {
        let python = env_path("ZARRFS_TEST_PYTHON")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/foreign.py");
        let mut command = with_timeout(120, python);
        command
            .arg(script)
            .arg(array)
            .args(locks)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Some(Foreign {
            told: child.stdin.take(),
            said,
            child,
        })
    }

    /// Sends a command and returns the answer.
    pub fn ask(&mut self, command: &str) -> String {
        writeln!(self.told.as_ref().unwrap(), "{command}").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "zarr-python ended at {command}");
        line.trim().to_string()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.told = None;
        let _ = self.child.wait();
    }
}

/// A mounted array of bytes with two writers. It must hold `made.flat`.
struct Both {
    made: TestArray,
    /// All files that were opened. They stay open: the kernel releases a closed file at an
    /// unpredictable moment, and the release stores dirty chunks.
    opened: RefCell<Vec<File>>,
    mount: Mount,
    foreign: Foreign,
    _store: tempfile::TempDir,
}

impl Both {
    fn new(options: &[&str]) -> Option<Both> {
        Both::with_locks(options, None)
    }

    /// Starts both writers. With `locks`, zarr-python gets a ProcessSynchronizer with that
    /// directory.
    fn with_locks(options: &[&str], locks: Option<&Path>) -> Option<Both> {
        let store = tempfile::tempdir().unwrap();
        let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
        let made = TestArray::with_chunks(
            store.path().join("a"),
            &[CHUNK * CHUNKS - 30],
            &[CHUNK],
            zlib,
        );
        let foreign = Foreign::start(&made.path, locks)?;
        let mount = Mount::new(&made.path, options);
        Some(Both {
            made,
            opened: RefCell::default(),
            mount,
            foreign,
            _store: store,
        })
    }

    /// Opens `data.raw`.
    fn open(&self) -> File {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.mount.join("data.raw"))
            .unwrap();
        self.opened.borrow_mut().push(file.try_clone().unwrap());
        file
    }

    /// Opens, reads and closes `data.raw`. The close stores dirty chunks.
    fn shown(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut file = self.open();
        file.read_to_end(&mut bytes).unwrap();
        close(file).unwrap();
        bytes
    }

    /// Writes through the mount.
    fn write(&mut self, file: &File, at: usize, value: u8, len: usize) {
        file.write_all_at(&vec![value; len], at as u64).unwrap();
        self.made.flat[at..at + len].fill(value);
    }

    /// Writes with zarr-python, which answers after its write is stored.
    fn foreign_write(&mut self, at: usize, value: u8, len: usize) {
        self.foreign.ask(&format!("set {at} {value} {len}"));
        self.made.flat[at..at + len].fill(value);
    }

    /// Checks that the store holds the expected bytes.
    #[track_caller]
    fn assert_stored(&self, what: &str) {
        let stored = self.made.stored_flat().unwrap();
        let different: Vec<usize> = (0..stored.len())
            .filter(|i| stored[*i] != self.made.flat[*i])
            .collect();
        assert_eq!(different, [0; 0], "{what}: in the store");
    }

    /// Checks that both the mount, in a file opened now, and zarr-python show the expected bytes.
    #[track_caller]
    fn assert_both_read(&mut self, what: &str) {
        let shown = self.shown();
        let different = shown
            .iter()
            .zip(&self.made.flat)
            .position(|(shown, expected)| shown != expected);
        assert_eq!(
            (shown.len(), different),
            (self.made.flat.len(), None),
            "{what}: in the mount"
        );
        assert_eq!(
            self.foreign.ask("digest"),
            sha256(&self.made.flat),
            "{what}: zarr-python reads"
        );
    }
}

/// "If two programs change one chunk, both changes survive if their byte ranges differ."
#[test]
fn changes_of_different_bytes_of_a_chunk_are_both_kept() {
    const STRIPE: usize = 10;
    for options in [&[][..], &["--cache-size", "300"], &["--direct-io"]] {
        let Some(mut both) = Both::new(options) else {
            return;
        };
        let mut random = random(5);
        let mut file = both.open();
        let stripes = both.made.flat.len() / STRIPE;
        for round in 0..300 {
            let inside = random(STRIPE);
            let len = 1 + random(STRIPE - inside);
            let value = random(256) as u8;
            match random(2) {
                0 => both.write(&file, random(stripes / 2) * 2 * STRIPE + inside, value, len),
                _ => {
                    both.foreign_write((random(stripes / 2) * 2 + 1) * STRIPE + inside, value, len)
                }
            }
            match random(20) {
                0 => {
                    file.sync_all().unwrap();
                    both.assert_stored(&format!("{options:?}: round {round}"));
                }
                1 => {
                    close(std::mem::replace(&mut file, both.open())).unwrap();
                    both.assert_both_read(&format!("{options:?}: round {round}"));
                }
                _ => {}
            }
        }
        file.sync_all().unwrap();
        both.assert_both_read(&format!("{options:?}: at the end"));
    }
    announce("zarr-python and the mount, 3 x 300 writes to the same chunks: both kept");
}

/// "If the ranges overlap, the last writer wins": the last one to store the bytes.
#[test]
fn the_last_change_of_the_same_bytes_wins() {
    let Some(mut both) = Both::new(&[]) else {
        return;
    };
    let file = both.open();
    for round in 0..20 {
        let at = 37 * round;
        both.foreign_write(at, 1, 50);
        both.write(&file, at, 2, 50);
        file.sync_all().unwrap();
        both.assert_both_read("the mount after zarr-python");
        both.write(&file, at, 3, 50);
        both.foreign_write(at, 4, 50);
        // the mount stores its write last, without having seen that of zarr-python
        both.made.flat[at..at + 50].fill(3);
        file.sync_all().unwrap();
        both.assert_both_read("zarr-python while the mount's write waits");
        both.foreign_write(at, 5, 50);
        both.assert_both_read("zarr-python after the mount");
    }
}

/// "`open` shows the current content of the store", also while another file is open for writing,
/// and also in chunks that the mount has stored itself.
#[test]
fn an_open_sees_every_change_made_before() {
    let Some(mut both) = Both::new(&[]) else {
        return;
    };
    let file = both.open();
    for round in 0..60 {
        let at = 19 * round;
        both.write(&file, at, round as u8, 5);
        if round % 2 == 0 {
            file.sync_all().unwrap();
        }
        both.foreign_write(at + 5, 255 - round as u8, 5);
        assert!(both.shown() == both.made.flat, "round {round}");
    }
}

/// A chunk that zarr-python deletes gets the fill value, except for bytes written through the
/// mount.
#[test]
fn deleting_a_chunk_keeps_bytes_that_are_not_stored_yet() {
    let Some(mut both) = Both::new(&[]) else {
        return;
    };
    let file = both.open();
    both.write(&file, 3 * CHUNK + 10, 7, 20);
    both.foreign.ask("delete 3");
    both.foreign.ask("delete 4");
    both.made.flat[3 * CHUNK..5 * CHUNK].fill(0);
    both.made.flat[3 * CHUNK + 10..][..20].fill(7);
    file.sync_all().unwrap();
    both.assert_both_read("deleted");
    assert!(!both.made.file(&[4]).exists());
}

/// An open shows a new shape, and bytes that were written under the old shape are kept.
#[test]
fn growing_an_array_keeps_bytes_that_are_not_stored_yet() {
    let Some(mut both) = Both::new(&[]) else {
        return;
    };
    let file = both.open();
    let old = both.made.flat.len();
    both.write(&file, old - 40, 9, 40);
    both.foreign.ask(&format!("resize {}", old + 330));
    both.made.flat.resize(old + 330, 0);
    // the stored padding of the edge chunk now lies in the array
    both.foreign_write(old, 8, 330);
    let grown = both.open();
    both.write(&grown, old + 10, 6, 200);
    file.sync_all().unwrap();
    grown.sync_all().unwrap();
    both.assert_both_read("grown");
}

/// "`--synchronizer DIR` closes the gap for writers that take the locks of zarr-python's
/// `ProcessSynchronizer(DIR)`": concurrent writes to the same chunks never undo each other.
#[test]
fn concurrent_writes_with_shared_locks_are_all_kept() {
    const HALF: usize = CHUNK / 2;
    let locks = tempfile::tempdir().unwrap();
    let options = ["--synchronizer", locks.path().to_str().unwrap()];
    let Some(mut both) = Both::with_locks(&options, Some(locks.path())) else {
        return;
    };
    let file = both.open();
    let foreign = &mut both.foreign;
    // each program writes one byte at a time of its half of a chunk
    let places = || (0..8).flat_map(|chunk| (0..HALF).map(move |at| chunk * CHUNK + at));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in places() {
                file.write_all_at(&[1], at as u64).unwrap();
                file.sync_all().unwrap();
            }
        });
        for at in places() {
            foreign.ask(&format!("set {} 2 1", at + HALF));
        }
    });
    for at in places() {
        (both.made.flat[at], both.made.flat[at + HALF]) = (1, 2);
    }
    both.assert_both_read("at the same time");
    announce(&format!(
        "{} writes each, at the same time, to the same chunks with locks: none lost",
        places().count()
    ));
}
