//! `Array::store`: every chunk of the generated matrix is loaded from a copy of its store, encoded
//! and stored again, and `python/storing.py` compares the result with those of numcodecs and
//! zarr-python. Also arrays with two codecs in each place, and the lock files that zarrfs and
//! zarr-python share.

use crate::support::{Mount, announce, copy_tree, env_path, python_script, run_python};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use zarrfs::array::hierarchy::{Hierarchy, StoredNode};
use zarrfs::array::{Array, Scratch};
use zarrfs_base::json::Value;
use zarrfs_base::stats::Stats;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{Separator, V1Order};
use zarrfs_store::{DirectoryStore, Key, LockFiles, Store};

fn python(script: &str) -> Option<Command> {
    let mut command = Command::new(env_path("ZARRFS_TEST_PYTHON")?);
    command.arg(python_script(script));
    Some(command)
}

fn find(store: Arc<dyn Store>, path: &str) -> Arc<Array> {
    let hierarchy = Hierarchy::new(store, V1Order::Zarr1, Arc::new(Stats::default()));
    match hierarchy.find(&Key::normalize(path).unwrap()).unwrap() {
        Some(StoredNode::Array(array)) => array,
        _ => panic!("no array at {path:?}"),
    }
}

/// Loads and stores every chunk of an array, also uninitialized chunks. Returns the number of
/// chunks. `tests/reading/conformance.rs` checks that chunks are loaded correctly.
fn store_again(path: &Path, entry: &Value) -> usize {
    let name = entry["array"].as_str().unwrap();
    let store = Arc::new(DirectoryStore::open(path).unwrap().without_fsync());
    let array = find(store.clone(), name);
    array.writable().unwrap();
    let mut scratch = Scratch::default();
    let chunks = entry["chunk_sha256"].as_object().unwrap();
    for key in chunks.keys() {
        let chunk = if key.is_empty() {
            Some(ChunkId(0))
        } else {
            array.grid().parse_chunk_key(key, Separator::Dot)
        };
        let chunk = chunk.unwrap();
        let mut bytes = vec![0; array.grid().chunk_size(chunk)];
        match array.load(chunk, Vec::new(), &mut scratch).unwrap() {
            Some(loaded) => bytes = loaded.bytes,
            None if array.metadata().has_objects() => continue,
            None => array.metadata().write_fill(&mut bytes, 0),
        }
        let version = array.store(chunk, &bytes, &mut scratch).unwrap();
        // a new hierarchy has nothing cached
        let loaded = find(store.clone(), name)
            .load(chunk, Vec::new(), &mut scratch)
            .unwrap()
            .unwrap();
        assert_eq!(loaded.version, version, "{}/{name} {key}", path.display());
        let same = loaded.bytes == bytes;
        assert!(same || array.is_lossy(), "{}/{name} {key}", path.display());
    }
    chunks.len()
}

#[test]
fn zarr_python_reads_every_stored_array() {
    let (Some(matrix), Some(mut script)) = (env_path("ZARRFS_MATRIX"), python("storing.py")) else {
        return;
    };
    let copy = tempfile::tempdir().unwrap();
    copy_tree(&matrix, copy.path());
    let oracle =
        zarrfs_base::json::parse(&std::fs::read(matrix.join("oracle.json")).unwrap()).unwrap();
    let mut arrays = 0;
    let mut chunks = 0;
    for entry in oracle["arrays"].as_array().unwrap() {
        if entry["expect"] != "refuse" {
            chunks += store_again(&copy.path().join(entry["store"].as_str().unwrap()), entry);
            arrays += 1;
        }
    }
    assert!(arrays > 500, "{arrays}");
    let output = script.arg(&matrix).arg(copy.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    announce(&format!(
        "stored {chunks} chunks of {arrays} arrays; zarr-python: {}",
        said.trim()
    ));
}

/// A zarr-python process that carries out commands.
struct Other {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Other {
    fn tell(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Creates an array of one chunk, `group/a`. Opens it in this process and in zarr-python, with the
/// same directory of locks.
fn shared_array(path: &Path) -> Option<(Arc<Array>, Other)> {
    let mut script = python("locks.py")?;
    let store = path.join("store");
    let locks = path.join("locks");
    std::fs::create_dir_all(store.join("group/a")).unwrap();
    std::fs::write(store.join(".zgroup"), r#"{"zarr_format":2}"#).unwrap();
    std::fs::write(store.join("group/.zgroup"), r#"{"zarr_format":2}"#).unwrap();
    let document = r#"{"zarr_format":2,"shape":[4,4],"chunks":[4,4],"dtype":"<u4","compressor":{"id":"zlib","level":1},
        "fill_value":0,"order":"F","filters":null}"#;
    std::fs::write(store.join("group/a/.zarray"), document).unwrap();
    let mut child = script
        .args([&store, &locks])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts Python");
    let answers = BufReader::new(child.stdout.take().unwrap());
    let locks = LockFiles::open(&locks, std::time::Duration::from_secs(60)).unwrap();
    let ours = DirectoryStore::open(&store)
        .unwrap()
        .without_fsync()
        .with_locks(locks);
    Some((find(Arc::new(ours), "group/a"), Other { child, answers }))
}

#[test]
fn zarrfs_and_zarr_python_wait_for_locks_of_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let Some((array, mut other)) = shared_array(dir.path()) else {
        return;
    };
    assert_eq!(other.ask("key"), "group/a/0.0");
    let lock = array.lock_chunk(ChunkId(0)).unwrap();
    assert_eq!(other.ask("try"), "busy");
    drop(lock);
    assert_eq!(other.ask("try"), "got");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| array.lock_chunk(ChunkId(0)).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!waiting.is_finished());
        other.tell("release");
        let _lock = waiting.join().unwrap();
        assert_eq!(other.answer(), "released");
        assert_eq!(other.ask("try"), "busy");
    });
}

#[test]
fn no_change_under_a_shared_lock_is_lost() {
    const OURS: u32 = 1000;
    const THEIRS: u32 = 200;
    let dir = tempfile::tempdir().unwrap();
    let Some((array, mut other)) = shared_array(dir.path()) else {
        return;
    };
    let mut scratch = Scratch::default();
    // the answer shows that zarr-python is running; it is slower, so it gets fewer rounds
    assert_eq!(other.ask("key"), "group/a/0.0");
    other.tell(&format!("count {THEIRS}"));
    for i in 0..OURS {
        let _lock = array.lock_chunk(ChunkId(0)).unwrap();
        let loaded = array.load(ChunkId(0), Vec::new(), &mut scratch).unwrap();
        let mut bytes = loaded.map_or_else(|| vec![0; 64], |loaded| loaded.bytes);
        assert_eq!(bytes[..4], i.to_le_bytes(), "a change of ours is gone");
        bytes[..4].copy_from_slice(&(i + 1).to_le_bytes());
        array.store(ChunkId(0), &bytes, &mut scratch).unwrap();
    }
    assert_eq!(other.answer(), "counted");
    let bytes = array
        .load(ChunkId(0), Vec::new(), &mut scratch)
        .unwrap()
        .unwrap()
        .bytes;
    assert_eq!(
        (&bytes[..4], &bytes[60..]),
        (&OURS.to_le_bytes()[..], &THEIRS.to_le_bytes()[..])
    );
}

/// The memory for a chunk follows from its size, whichever codecs an array has, so that a small
/// cache is enough.
#[test]
fn arrays_with_any_two_codecs_are_written() {
    let Some(python) = env_path("ZARRFS_TEST_PYTHON3") else {
        return;
    };
    let store = tempfile::tempdir().unwrap();
    run_python(
        &python,
        "codec_pairs.py",
        &["make".as_ref(), store.path().as_os_str()],
    );
    let mount = Mount::new(store.path(), &["--cache-size", "16M"]);
    run_python(
        &python,
        "codec_pairs.py",
        &["write".as_ref(), mount.path().as_os_str()],
    );
    mount.assert_no_problem();
    drop(mount);
    announce(
        run_python(
            &python,
            "codec_pairs.py",
            &["check".as_ref(), store.path().as_os_str()],
        )
        .trim(),
    );
}
