//! A client that writes to an array by a fixed script, so that a test can stop the daemon at each
//! system call. The session records in a [`History`] which bytes the store may hold afterwards.

use super::array::{TestArray, pattern};
use super::daemon::Daemon;
use super::history::History;
use super::tracer::Tracer;
use super::{close, random};
use serde_json::json;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Number of writes of a session.
const WRITES: usize = 24;

/// One step of the script.
pub enum Step {
    /// Writes bytes at an offset of `data.raw`.
    Write(usize, Vec<u8>),
    /// Opens, writes and closes a chunk file.
    Chunk(Vec<usize>, Vec<u8>),
    Fsync,
    /// Closes `data.raw`. The next write opens it again.
    Close,
}

/// Creates an array of order F whose rows cross three chunks each. Every third chunk is not stored.
pub fn array(path: PathBuf, separator: &str) -> TestArray {
    let more = json!({"compressor": {"id": "zlib", "level": 1}, "order": "F", "dimension_separator": separator});
    let mut made = TestArray::with_chunks(path, &[50, 300], &[16, 128], more);
    for index in made.grid().into_iter().step_by(3) {
        made.clear(&index);
        std::fs::remove_file(made.file(&index)).unwrap();
    }
    made
}

/// Returns the steps: writes within one chunk, across chunks, and of whole chunk files, with an
/// fsync or a close after every four of them.
pub fn script(made: &TestArray) -> Vec<Step> {
    let mut random = random(7);
    let grid = made.grid();
    let size = made.flat.len();
    let mut steps = Vec::new();
    for write in 0..WRITES {
        let seed = 2 + write as u64;
        steps.push(match write % 6 {
            4 => Step::Chunk(
                grid[random(grid.len())].clone(),
                pattern(seed, made.chunk_size()),
            ),
            kind => {
                let len = 1 + random([90, 900, 90, 4000, 0, 300][kind]);
                Step::Write(random(size - len), pattern(seed, len))
            }
        });
        match write % 8 {
            3 => steps.push(Step::Fsync),
            7 => steps.push(Step::Close),
            _ => {}
        }
    }
    steps
}

/// A writing client and the history of its array.
pub struct Session {
    pub history: History,
    directory: PathBuf,
    /// `data.raw`, while it is open.
    file: Option<File>,
}

impl Session {
    /// Begins a session on an array whose directory in the mount is `directory`.
    pub fn new(history: History, directory: PathBuf) -> Session {
        Session {
            history,
            directory,
            file: None,
        }
    }

    /// Carries out a step. Records the bytes that it may have changed, and the writes that the
    /// mount has acknowledged.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Write(offset, data) => self.write(*offset, data),
            Step::Chunk(index, bytes) => self.write_chunk(index, bytes),
            Step::Fsync => self.fsync(),
            Step::Close => self.close(),
        }
    }

    fn data_raw(&mut self) -> Result<&File> {
        if self.file.is_none() {
            self.file = Some(open(&self.directory.join("data.raw"))?);
        }
        Ok(self.file.as_ref().expect("it is open"))
    }

    /// Writes all of `data`, in as many calls as the kernel needs.
    pub fn write(&mut self, mut offset: usize, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            match self.data_raw()?.write_at(data, offset as u64) {
                Ok(done) => {
                    self.history.write(offset, &data[..done]);
                    (offset, data) = (offset + done, &data[done..]);
                }
                Err(e) => {
                    match self.read() {
                        Ok(now) => self.history.write_failed(offset, data, &now),
                        // the daemon is gone: the write may have reached the store or not
                        Err(_) => self.history.write(offset, data),
                    }
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn write_chunk(&mut self, index: &[usize], bytes: &[u8]) -> Result<()> {
        let file = open(&self.directory.join(TestArray::chunk_name(index)))?;
        let written = file.write_all_at(bytes, 0);
        if written.as_ref().map_or_else(is_gone, |()| true) {
            self.history.write_chunk(index, bytes);
        }
        let closed = close(file);
        written?;
        closed?;
        self.history.acknowledge_chunk(index);
        Ok(())
    }

    /// Calls fsync on `data.raw`, which is opened if necessary.
    pub fn fsync(&mut self) -> Result<()> {
        self.data_raw()?.sync_all()?;
        self.history.acknowledge();
        Ok(())
    }

    /// Closes `data.raw` if it is open.
    pub fn close(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            close(file)?;
            self.history.acknowledge();
        }
        Ok(())
    }

    /// Reads `data.raw` from the daemon, past the kernel's page cache.
    fn read(&self) -> Result<Vec<u8>> {
        let path = self.directory.join("data.raw");
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)?;
        let mut bytes = vec![0; self.history.array().flat.len()];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Checks that the mount shows all writes, whether the daemon could store them or not.
    #[track_caller]
    pub fn assert_reads_what_was_written(&self) {
        let read = self
            .read()
            .expect("a read must not fail because a write cannot be stored");
        let written = &self.history.array().flat;
        let different = (0..read.len()).find(|i| read[*i] != written[*i]);
        assert_eq!(
            different, None,
            "the first byte that differs from what was written"
        );
    }
}

/// System calls that change the store, in groups as strace names them. Each group is counted
/// separately.
pub const CALLS: [&str; 6] = [
    "openat,openat2",
    "write,pwrite64",
    "fdatasync",
    "?rename,?renameat,?renameat2",
    "fsync",
    "?mkdir,?mkdirat",
];

/// A cache so small that the daemon has to store chunks before any flush.
const CACHE: [&str; 2] = ["--cache-size", "8K"];

/// A session on a mount of its own.
pub struct Run {
    pub session: Session,
    pub daemon: Daemon,
    /// The file that strace writes.
    pub log: PathBuf,
}

impl Run {
    /// Creates the array at `store` and mounts it.
    pub fn new(store: &Path, separator: &str) -> Run {
        let made = array(store.to_path_buf(), separator);
        // a killed daemon must leave the store to the test
        let daemon = Daemon::start(store, &[&CACHE[..], &["--no-outlive"]].concat());
        let session = Session::new(History::new(made), daemon.path());
        Run {
            session,
            log: store.with_extension("log"),
            daemon,
        }
    }

    /// Prepares strace for the daemon's system calls.
    pub fn tracer(&self, calls: &str, options: &[&str]) -> Tracer {
        Tracer::prepare(self.daemon.pid(), calls, options, &self.log)
    }

    /// Carries out a step while strace is attached. Returns the step's result and the log of
    /// strace.
    pub fn traced(&mut self, step: &Step, tracer: Tracer) -> (Result<()>, String) {
        let tracer = tracer.attach().unwrap();
        let done = self.session.step(step);
        let log = if done.as_ref().is_err_and(is_gone) {
            tracer.wait()
        } else {
            tracer.detach()
        };
        (done, log)
    }
}

/// Returns pairs of a step's index in the script and a group of [`CALLS`] that the daemon makes
/// during the step.
pub fn steps_with_calls(folder: &Path, separator: &str) -> Vec<(usize, &'static str)> {
    let mut run = Run::new(&folder.join("undisturbed"), separator);
    let steps = script(run.session.history.array());
    let tracers: Vec<Tracer> = steps
        .iter()
        .map(|_| run.tracer(&CALLS.join(","), &[]))
        .collect();
    let mut busy = Vec::new();
    for (at, (step, tracer)) in steps.iter().zip(tracers).enumerate() {
        let (done, log) = run.traced(step, tracer);
        done.unwrap();
        let made = |call: &&str| log.contains(&format!(" {}(", call.trim_start_matches('?')));
        busy.extend(
            CALLS
                .into_iter()
                .filter(|calls| calls.split(',').any(|c| made(&c)))
                .map(|calls| (at, calls)),
        );
    }
    run.session.history.check().assert_none();
    assert_eq!(
        run.session.history.array().stored_flat().unwrap(),
        run.session.history.array().flat
    );
    busy
}

/// Checks that calls of every group that the session makes were interrupted at least once. The
/// number of interruptions differs between runs, since it depends on which thread stores which
/// chunk.
#[track_caller]
pub fn assert_every_group_was_interrupted(busy: &[(usize, &str)], disturbed: &HashSet<&str>) {
    let made: HashSet<&str> = busy.iter().map(|(_, calls)| *calls).collect();
    for calls in &CALLS[1..4] {
        assert!(made.contains(calls), "the session never calls {calls}");
    }
    let missed: Vec<_> = made.difference(disturbed).collect();
    assert!(missed.is_empty(), "never interrupted: {missed:?}");
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Returns whether an error means that the daemon is gone. The request may have been carried out.
fn is_gone(e: &Error) -> bool {
    [libc::ENOTCONN, libc::ECONNABORTED]
        .map(Some)
        .contains(&e.raw_os_error())
}
