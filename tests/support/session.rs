//! A scripted session of a program that writes: always the same calls, so that a daemon can be stopped at each of them.
//! The history it keeps knows what the store may hold afterwards.

use super::daemon::Daemon;
use super::history::History;
use super::made::{Made, pattern};
use super::tracer::Tracer;
use super::{close, random};
use serde_json::json;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Writes of a session.
const WRITES: usize = 24;

/// What a session does next.
pub enum Step {
    /// Bytes at an offset of `data.raw`.
    Write(usize, Vec<u8>),
    /// A chunk file opened, written and closed.
    Chunk(Vec<usize>, Vec<u8>),
    Fsync,
    /// The next write opens `data.raw` again.
    Close,
}

/// An array of order F whose rows cross three chunks each; every third chunk is not there yet.
pub fn array(path: PathBuf, separator: &str) -> Made {
    let more = json!({"compressor": {"id": "zlib", "level": 1}, "order": "F", "dimension_separator": separator});
    let mut made = Made::full(path, &[50, 300], &[16, 128], more);
    for index in made.grid().into_iter().step_by(3) {
        made.clear(&index);
        std::fs::remove_file(made.file(&index)).unwrap();
    }
    made
}

/// The steps: writes within one chunk, across chunks, and of whole chunk files, with an fsync or a close after each few.
pub fn script(made: &Made) -> Vec<Step> {
    let (mut random, grid, size) = (random(7), made.grid(), made.flat.len());
    let mut steps = Vec::new();
    for write in 0..WRITES {
        let seed = 2 + write as u64;
        steps.push(match write % 6 {
            4 => Step::Chunk(grid[random(grid.len())].clone(), pattern(seed, made.chunk_size())),
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

/// The session of one program.
pub struct Session {
    pub history: History,
    directory: PathBuf,
    /// `data.raw`, from the first write after a close on.
    file: Option<File>,
}

impl Session {
    /// A session on an array whose directory in the mount is `directory`.
    pub fn new(history: History, directory: PathBuf) -> Session {
        Session { history, directory, file: None }
    }

    /// Carries out a step and notes what it may have changed, and what it has acknowledged.
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

    /// Writes all of `data`, in as many calls as it takes.
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
                        // nobody can tell: it may have been done
                        Err(_) => self.history.write(offset, data),
                    }
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn write_chunk(&mut self, index: &[usize], bytes: &[u8]) -> Result<()> {
        let file = open(&self.directory.join(Made::name(index)))?;
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

    /// Of `data.raw`, opened if it isn't.
    pub fn fsync(&mut self) -> Result<()> {
        self.data_raw()?.sync_all()?;
        self.history.acknowledge();
        Ok(())
    }

    /// Of `data.raw`, if it is open.
    pub fn close(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            close(file)?;
            self.history.acknowledge();
        }
        Ok(())
    }

    /// What the mount shows, past the kernel's page cache.
    fn read(&self) -> Result<Vec<u8>> {
        let path = self.directory.join("data.raw");
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let mut bytes = vec![0; self.history.array().flat.len()];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// What the mount shows is what was written, whatever became of the store.
    #[track_caller]
    pub fn assert_reads_what_was_written(&self) {
        let read = self.read().expect("reading never fails because of what can't be stored");
        let written = &self.history.array().flat;
        let different = (0..read.len()).find(|i| read[*i] != written[*i]);
        assert_eq!(different, None, "the first byte that isn't what was written");
    }
}

/// Calls by which a store changes, as strace names them. Each list is counted by itself.
pub const CALLS: [&str; 6] =
    ["openat,openat2", "write,pwrite64", "fdatasync", "?rename,?renameat,?renameat2", "fsync", "?mkdir,?mkdirat"];

/// As little memory as makes the daemon store chunks before it is told to.
const CACHE: [&str; 2] = ["--cache-size", "8K"];

/// A session on a mount of its own.
pub struct Run {
    pub session: Session,
    pub daemon: Daemon,
    /// Where strace writes.
    pub log: PathBuf,
}

impl Run {
    /// Makes the array at `store`, and mounts it.
    pub fn new(store: &Path, separator: &str) -> Run {
        let made = array(store.to_path_buf(), separator);
        let daemon = Daemon::start(store, &CACHE);
        let session = Session::new(History::new(made), daemon.path());
        Run { session, log: store.with_extension("log"), daemon }
    }

    /// strace, ready to be attached.
    pub fn tracer(&self, calls: &str, options: &[&str]) -> Tracer {
        Tracer::prepare(self.daemon.pid(), calls, options, &self.log)
    }

    /// Carries out a step while strace looks on; its log.
    pub fn traced(&mut self, step: &Step, tracer: Tracer) -> (Result<()>, String) {
        let tracer = tracer.attach().unwrap();
        let done = self.session.step(step);
        let log = if done.as_ref().is_err_and(is_gone) { tracer.wait() } else { tracer.detach() };
        (done, log)
    }
}

/// Which steps of the script make which calls.
pub fn busy_steps(folder: &Path, separator: &str) -> Vec<(usize, &'static str)> {
    let mut run = Run::new(&folder.join("undisturbed"), separator);
    let steps = script(run.session.history.array());
    let tracers: Vec<Tracer> = steps.iter().map(|_| run.tracer(&CALLS.join(","), &[])).collect();
    let mut busy = Vec::new();
    for (at, (step, tracer)) in steps.iter().zip(tracers).enumerate() {
        let (done, log) = run.traced(step, tracer);
        done.unwrap();
        let made = |call: &&str| log.contains(&format!(" {}(", call.trim_start_matches('?')));
        busy.extend(CALLS.into_iter().filter(|calls| calls.split(',').any(|c| made(&c))).map(|calls| (at, calls)));
    }
    run.session.history.check().assert_none();
    assert_eq!(run.session.history.array().stored_flat().unwrap(), run.session.history.array().flat);
    busy
}

/// Fails unless each kind of call that the session makes was disturbed at least once. How often depends on which thread
/// stores which chunk, and when: that differs between runs.
#[track_caller]
pub fn assert_every_kind_was_disturbed(busy: &[(usize, &str)], disturbed: &HashSet<&str>) {
    let made: HashSet<&str> = busy.iter().map(|(_, calls)| *calls).collect();
    for calls in &CALLS[1..4] {
        assert!(made.contains(calls), "the session stores nothing: no {calls}");
    }
    let missed: Vec<_> = made.difference(disturbed).collect();
    assert!(missed.is_empty(), "never disturbed: {missed:?}");
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// True of the errors the kernel gives when the daemon is gone: what was asked for may have been done.
fn is_gone(e: &Error) -> bool {
    [libc::ENOTCONN, libc::ECONNABORTED].map(Some).contains(&e.raw_os_error())
}
