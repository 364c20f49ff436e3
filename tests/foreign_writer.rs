//! "Another writer on the same store: chunks are replaced atomically both ways; a chunk changed by both keeps both
//! changes where the byte ranges differ, else the last one wins." The other writer is zarr-python.

mod support;

use serde_json::json;
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::MutexGuard;
use support::made::Made;
use support::{Mount, alone, close, limited, provided, random, say, sha256};

const CHUNK: usize = 100;
const CHUNKS: usize = 12;

/// zarr-python, in a process of its own.
struct Foreign {
    child: Child,
    told: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Foreign {
    /// None, said aloud, without Python.
    fn start(array: &Path, locks: Option<&Path>) -> Option<Foreign> {
        let python = provided("ZARRFS_TEST_PYTHON")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/foreign.py");
        let mut command = limited(120, python);
        command.arg(script).arg(array).args(locks).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Some(Foreign { told: child.stdin.take(), said, child })
    }

    /// What it answers to a command.
    fn tell(&mut self, command: &str) -> String {
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

/// A mounted array of bytes and both its writers. What it must hold is `made.flat`.
struct Both {
    made: Made,
    /// Every file that was opened: the release of one may store what is written later, at a moment that nobody knows.
    opened: RefCell<Vec<File>>,
    mount: Mount,
    foreign: Foreign,
    _store: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Both {
    fn new(options: &[&str]) -> Option<Both> {
        Both::with_locks(options, None)
    }

    /// zarr-python has a ProcessSynchronizer in the directory `locks`.
    fn with_locks(options: &[&str], locks: Option<&Path>) -> Option<Both> {
        let alone = alone();
        let store = tempfile::tempdir().unwrap();
        let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
        let made = Made::full(store.path().join("a"), &[CHUNK * CHUNKS - 30], &[CHUNK], zlib);
        let foreign = Foreign::start(&made.path, locks)?;
        let mount = Mount::new(&made.path, options);
        Some(Both { made, opened: RefCell::default(), mount, foreign, _store: store, _alone: alone })
    }

    /// Opens the flat bytes.
    fn open(&self) -> File {
        let file = OpenOptions::new().read(true).write(true).open(self.mount.join("data.raw")).unwrap();
        self.opened.borrow_mut().push(file.try_clone().unwrap());
        file
    }

    /// What who opens the flat bytes now is shown; closing stores what was written.
    fn shown(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut file = self.open();
        file.read_to_end(&mut bytes).unwrap();
        close(file).unwrap();
        bytes
    }

    /// The mount's write.
    fn write(&mut self, file: &File, at: usize, value: u8, len: usize) {
        file.write_all_at(&vec![value; len], at as u64).unwrap();
        self.made.flat[at..at + len].fill(value);
    }

    /// zarr-python's write, which is in the store at once.
    fn foreign_write(&mut self, at: usize, value: u8, len: usize) {
        self.foreign.tell(&format!("set {at} {value} {len}"));
        self.made.flat[at..at + len].fill(value);
    }

    /// The store itself has what must be there.
    #[track_caller]
    fn assert_stored(&self, what: &str) {
        let stored = self.made.stored_flat().unwrap();
        let different: Vec<usize> = (0..stored.len()).filter(|i| stored[*i] != self.made.flat[*i]).collect();
        assert_eq!(different, [0; 0], "{what}: in the store");
    }

    /// Both see what must be there, when the file is opened now.
    #[track_caller]
    fn assert_both_see(&mut self, what: &str) {
        let shown = self.shown();
        let different = shown.iter().zip(&self.made.flat).position(|(shown, expected)| shown != expected);
        assert_eq!((shown.len(), different), (self.made.flat.len(), None), "{what}: in the mount");
        assert_eq!(self.foreign.tell("digest"), sha256(&self.made.flat), "{what}: zarr-python reads");
    }
}

/// "A chunk changed by both keeps both changes where the byte ranges differ (the mount lays only what was written through
/// it over the newer chunk)."
#[test]
fn both_write_different_bytes_of_the_same_chunks() {
    const STRIPE: usize = 10;
    for options in [&[][..], &["--cache-size", "300"], &["--direct-io"]] {
        let Some(mut both) = Both::new(options) else { return };
        let (mut random, mut file) = (random(5), both.open());
        let stripes = both.made.flat.len() / STRIPE;
        for round in 0..300 {
            let inside = random(STRIPE);
            let (len, value) = (1 + random(STRIPE - inside), random(256) as u8);
            match random(2) {
                0 => both.write(&file, random(stripes / 2) * 2 * STRIPE + inside, value, len),
                _ => both.foreign_write((random(stripes / 2) * 2 + 1) * STRIPE + inside, value, len),
            }
            match random(20) {
                0 => {
                    file.sync_all().unwrap();
                    both.assert_stored(&format!("{options:?}: round {round}"));
                }
                1 => {
                    close(std::mem::replace(&mut file, both.open())).unwrap();
                    both.assert_both_see(&format!("{options:?}: round {round}"));
                }
                _ => {}
            }
        }
        file.sync_all().unwrap();
        both.assert_both_see(&format!("{options:?}: at the end"));
    }
    say("zarr-python and the mount, 3 x 300 writes to the same chunks: both kept");
}

/// "Else the last one wins": who stores last.
#[test]
fn both_write_the_same_bytes() {
    let Some(mut both) = Both::new(&[]) else { return };
    let file = both.open();
    for round in 0..20 {
        let at = 37 * round;
        both.foreign_write(at, 1, 50);
        both.write(&file, at, 2, 50);
        file.sync_all().unwrap();
        both.assert_both_see("the mount after zarr-python");
        both.write(&file, at, 3, 50);
        both.foreign_write(at, 4, 50);
        // what is written last is stored last: the mount's write wins, which zarr-python's didn't see
        both.made.flat[at..at + 50].fill(3);
        file.sync_all().unwrap();
        both.assert_both_see("zarr-python while the mount's write waits");
        both.foreign_write(at, 5, 50);
        both.assert_both_see("zarr-python after the mount");
    }
}

/// "Changes made behind the mount are seen at the next open", also by who has the file open for writing, and also of
/// chunks that the mount itself has stored.
#[test]
fn an_open_sees_what_was_written_before_it() {
    let Some(mut both) = Both::new(&[]) else { return };
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

/// A chunk that the other writer deletes is as fill values, and keeps what is written through the mount.
#[test]
fn a_chunk_that_is_deleted_while_a_write_waits() {
    let Some(mut both) = Both::new(&[]) else { return };
    let file = both.open();
    both.write(&file, 3 * CHUNK + 10, 7, 20);
    both.foreign.tell("delete 3");
    both.foreign.tell("delete 4");
    both.made.flat[3 * CHUNK..5 * CHUNK].fill(0);
    both.made.flat[3 * CHUNK + 10..][..20].fill(7);
    file.sync_all().unwrap();
    both.assert_both_see("deleted");
    assert!(!both.made.file(&[4]).exists());
}

/// A new shape is seen at the next open; what was written under the old one is kept.
#[test]
fn an_array_that_grows_while_a_write_waits() {
    let Some(mut both) = Both::new(&[]) else { return };
    let file = both.open();
    let old = both.made.flat.len();
    both.write(&file, old - 40, 9, 40);
    both.foreign.tell(&format!("resize {}", old + 330));
    both.made.flat.resize(old + 330, 0);
    // the stored padding of the edge chunk comes to light
    both.foreign_write(old, 8, 330);
    let grown = both.open();
    both.write(&grown, old + 10, 6, 200);
    file.sync_all().unwrap();
    grown.sync_all().unwrap();
    both.assert_both_see("grown");
}

/// "`--synchronizer DIR` takes the same per-chunk lock files as zarr-python's ProcessSynchronizer": then both may write
/// the same chunks at the same moment, and neither undoes what the other does.
#[test]
fn with_the_same_locks_both_write_at_the_same_time() {
    const HALF: usize = CHUNK / 2;
    let locks = tempfile::tempdir().unwrap();
    let options = ["--synchronizer", locks.path().to_str().unwrap()];
    let Some(mut both) = Both::with_locks(&options, Some(locks.path())) else { return };
    let (file, foreign) = (both.open(), &mut both.foreign);
    // half of each chunk is the mount's, half is zarr-python's: one byte at a time, each once
    let places = || (0..8).flat_map(|chunk| (0..HALF).map(move |at| chunk * CHUNK + at));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in places() {
                file.write_all_at(&[1], at as u64).unwrap();
                file.sync_all().unwrap();
            }
        });
        for at in places() {
            foreign.tell(&format!("set {} 2 1", at + HALF));
        }
    });
    for at in places() {
        (both.made.flat[at], both.made.flat[at + HALF]) = (1, 2);
    }
    both.assert_both_see("at the same time");
    say(&format!("{} writes each, at the same time, to the same chunks with locks: none lost", places().count()));
}
