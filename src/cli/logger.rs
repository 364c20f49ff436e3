//! The log: lines to standard error, to a file, or to the journal of systemd.

use super::start_directory::absolute;
use super::systemd::{self, Journal};
use super::{CommandFailure, DIAGNOSTICS, time};
use clap::Args;
use env_logger::{Builder, Target};
use log::{LevelFilter, Record};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;
use zarrfs_base::error::{Error, one_line};
use zarrfs_base::memory::lock;

/// Options of the log.
#[derive(Args)]
#[command(next_help_heading = DIAGNOSTICS)]
pub struct LogArgs {
    /// Set the level, off to trace
    ///
    /// off, error, warn, info, debug or trace. debug logs each request of a program: its operation,
    /// path, offset and length, its outcome and time, and the bytes that were decoded meanwhile;
    /// and each request to a server: its method, key, status, time, bytes and attempt. trace adds
    /// the headers of the latter, without secrets.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log_level: LevelFilter,
    /// Append the log to a file
    ///
    /// SIGHUP opens it again. Without one the log goes to standard error, and nowhere in the
    /// background. Problems of the data are in .zarrfs/stats, too.
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Send the log to the journal of systemd
    ///
    /// SOCKET is where the journal of a namespace listens.
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true, conflicts_with = "log_file",
        default_missing_value = systemd::JOURNAL)]
    log_journal: Option<PathBuf>,
}

/// The file of `--log-file`, which [`reopen`] replaces.
static LOG_FILE: OnceLock<LogFile> = OnceLock::new();

struct LogFile {
    path: PathBuf,
    /// Protects the open file.
    file: Mutex<File>,
}

/// Writes to [`LOG_FILE`].
struct LogFileWriter;

impl Write for LogFileWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        LOG_FILE
            .get()
            .map_or(Ok(line.len()), |log| lock(&log.file).write(line))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Opens the log file again, after a program has renamed it. Without a log file this does nothing.
pub fn reopen() {
    let Some(log) = LOG_FILE.get() else { return };
    match open(&log.path) {
        Ok(file) => *lock(&log.file) = file,
        Err(e) => log::error!("{}; the log goes to the former file", e.message),
    }
}

impl LogArgs {
    /// Returns the options that name a path of the log, and the path.
    pub fn paths(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let file = self.log_file.clone().map(|path| ("--log-file", path));
        file.into_iter().chain(
            self.log_journal
                .as_deref()
                .map(|path| ("--log-journal", absolute(path))),
        )
    }

    /// Starts logging, for the mount at `mountpoint`.
    pub fn start(&self, mountpoint: &Path) -> Result<(), CommandFailure> {
        if let Some(path) = &self.log_file {
            return start_to_file(self.log_level, path);
        }
        let Some(path) = &self.log_journal else {
            return start_to_terminal(self.log_level);
        };
        let journal = Journal::open(&absolute(path)).map_err(|e| {
            CommandFailure::failed(format!(
                "--log-journal: {}: {e}; is systemd-journald running?",
                path.display()
            ))
        })?;
        let mountpoint = mountpoint.to_path_buf();
        let mut builder = builder(self.log_level);
        builder.target(Target::Pipe(Box::new(journal)));
        builder.format(move |out, r| systemd::write_entry(out, r, &mountpoint));
        started(builder)
    }
}

/// Starts the log of a verb that prints its errors: only a wait for a server is logged.
pub fn start_for_command() -> Result<(), CommandFailure> {
    start_to_terminal(LevelFilter::Off)
}

fn start_to_file(level: LevelFilter, path: &Path) -> Result<(), CommandFailure> {
    // the name is not resolved: a link to the file of the day may change
    let whole = std::path::absolute(path).map_err(Error::from)?;
    let _ = LOG_FILE.set(LogFile {
        path: whole,
        file: Mutex::new(open(path)?),
    });
    let mut builder = builder(level);
    builder.target(Target::Pipe(Box::new(LogFileWriter)));
    builder.format(|out, r| {
        let now = time::utc(SystemTime::now());
        writeln!(out, "{now} {:<5} {}", r.level(), text(r))
    });
    started(builder)
}

fn start_to_terminal(level: LevelFilter) -> Result<(), CommandFailure> {
    let mut builder = builder(level);
    // a command that waits for a server must say so
    builder.filter_module("zarrfs_remote::transport", level.max(LevelFilter::Warn));
    builder.format(|out, r| {
        let level = r.level().as_str().to_lowercase();
        writeln!(out, "zarrfs: {level}: {}", text(r))
    });
    started(builder)
}

/// Returns the message of a record, on one line.
fn text(record: &Record) -> String {
    one_line(record.args().to_string())
}

/// Opens a file to append the log to it. A log without a reader must not stop the mount: a FIFO
/// without a reader is an error, and lines that a reader doesn't take are lost. A new file is for
/// its owner, since the log quotes private documents.
fn open(path: &Path) -> Result<File, CommandFailure> {
    let mut options = OpenOptions::new();
    options
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(path).map_err(|e| {
        let why = match e.raw_os_error() {
            Some(libc::ENXIO) => "a FIFO or socket without a reader; name a file".to_string(),
            _ => Error::from(e).to_string(),
        };
        CommandFailure::failed(format!("log file {}: {why}", path.display()))
    })
}

fn builder(level: LevelFilter) -> Builder {
    let mut builder = Builder::new();
    // lines of the libraries for servers may contain credentials
    builder
        .filter_level(level.min(LevelFilter::Warn))
        .filter_module("zarrfs", level);
    // fuser warns of every operation that a file system leaves out
    builder.filter_module("fuser", level.min(LevelFilter::Error));
    builder
}

fn started(mut builder: Builder) -> Result<(), CommandFailure> {
    builder
        .try_init()
        .map_err(|e| CommandFailure::failed(format!("log: {e}")))
}
