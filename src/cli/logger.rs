//! The log: lines to standard error, to a file, or to the journal of systemd. Its level can be
//! changed while the program runs.

mod queue;
mod repeats;

use super::start_directory::absolute;
use super::systemd::{self, SystemJournal};
use super::{CommandFailure, CommandResult, DIAGNOSTICS, time};
use clap::Args;
use log::{Level, LevelFilter, Log, Metadata, Record};
use queue::{LogQueue, PATIENCE};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;
use zarrfs_base::error::{Error, one_line};
use zarrfs_base::memory::lock;
use zarrfs_base::outside::{ANSWER_LIMIT, Answer, ask_outside};
use zarrfs_base::pool::start_thread;

/// Options of the log.
#[derive(Args)]
#[command(next_help_heading = DIAGNOSTICS)]
pub struct LogArgs {
    /// Set the level, off to trace
    ///
    /// off, error, warn, info, debug or trace. debug logs each request of a program: its operation,
    /// path, offset and length, its outcome and time, and the bytes that were decoded meanwhile;
    /// and each request to a server: its method, key, status, time, bytes and attempt. trace adds
    /// the headers of the latter, without secrets. SIGUSR1 raises the level of a running mount by
    /// one step, and SIGUSR2 lowers it.
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

/// The module that waits for servers.
const TRANSPORT: &str = "zarrfs_remote::transport";

/// The file of `--log-file`, which [`reopen`] replaces.
static LOG_FILE: OnceLock<LogFile> = OnceLock::new();

/// The level of the log, as a number of [`LevelFilter`].
static LEVEL: AtomicUsize = AtomicUsize::new(LevelFilter::Off as usize);

struct LogFile {
    path: PathBuf,
    /// Protects which file is open, and is not held while it is written.
    file: Mutex<Arc<File>>,
}

/// Writes to [`LOG_FILE`].
struct LogFileWriter;

impl Write for LogFileWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let Some(log) = LOG_FILE.get() else {
            return Ok(line.len());
        };
        let file = lock(&log.file).clone();
        (&*file).write(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The service outside a sandbox that opens the log file.
pub const OPEN_LOG: &str = "open-log";

/// Returns the path of the log file, if there is one.
pub fn path() -> Option<&'static Path> {
    LOG_FILE.get().map(|log| log.path.as_path())
}

/// Opens the log file again, after a program has renamed it. Without a log file this does nothing.
pub fn reopen() {
    let Some(log) = LOG_FILE.get() else { return };
    let opened = match ask_outside(OPEN_LOG, &[], ANSWER_LIMIT) {
        Some(answer) => match answer.and_then(Answer::into_file) {
            Ok(file) => Ok(file.into()),
            Err(e) => Err(e.to_string()),
        },
        None => open(&log.path).map_err(|e| e.message),
    };
    match opened {
        Ok(file) => *lock(&log.file) = Arc::new(file),
        Err(e) => log::error!("{e}; the log goes to the former file"),
    }
}

fn level() -> LevelFilter {
    let level = LEVEL.load(Ordering::Relaxed);
    LevelFilter::iter().nth(level).unwrap_or(LevelFilter::Warn)
}

fn set_level(level: LevelFilter) {
    LEVEL.store(level as usize, Ordering::Relaxed);
    // a terminal gets warnings of some modules at any level
    log::set_max_level(level.max(LevelFilter::Warn));
}

/// Raises the level of the log by one step, or lowers it. Returns the new level.
pub fn change_level(raises: bool) -> LevelFilter {
    let last = level();
    let number = if raises {
        last as usize + 1
    } else {
        (last as usize).saturating_sub(1)
    };
    let next = LevelFilter::iter().nth(number).unwrap_or(last);
    // at the more talkative level, so that the line is in the log
    set_level(next.max(last));
    let line = last.max(next).min(LevelFilter::Info);
    if let Some(line) = line.to_level() {
        log::log!(line, "log level {}", shown(next));
    }
    set_level(next);
    next
}

/// Returns the name of a level as on the command line.
pub fn shown(level: LevelFilter) -> String {
    level.as_str().to_lowercase()
}

impl LogArgs {
    /// Returns the level at which the log begins.
    pub fn level(&self) -> LevelFilter {
        self.log_level
    }

    /// Returns in a word where the log of a mount goes, whose process has a terminal if it is in
    /// the foreground.
    pub fn destination(&self, is_foreground: bool) -> &'static str {
        if self.log_file.is_some() {
            "file"
        } else if self.log_journal.is_some() {
            "journal"
        } else if is_foreground {
            "standard error"
        } else {
            "nowhere"
        }
    }

    /// Returns the options that name a path of the log, and the path.
    pub fn paths(
        &self,
        resolved: fn(&Path) -> PathBuf,
    ) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let file = self.log_file.clone().map(|path| ("--log-file", path));
        file.into_iter().chain(
            self.log_journal
                .as_deref()
                .map(|path| ("--log-journal", resolved(path))),
        )
    }

    /// Starts logging, for the mount at `mountpoint`.
    pub fn start(&self, mountpoint: &Path) -> CommandResult {
        if let Some(path) = &self.log_file {
            // the name is not resolved: a link to the file of the day may change
            let whole = std::path::absolute(path)?;
            let _ = LOG_FILE.set(LogFile {
                path: whole,
                file: Mutex::new(Arc::new(open(path)?)),
            });
            return start_queue(LineFormat::File, LogFileWriter, self.log_level);
        }
        let Some(path) = &self.log_journal else {
            return start_queue(LineFormat::Terminal, std::io::stderr(), self.log_level);
        };
        let journal = SystemJournal::open(&absolute(path)).map_err(|e| {
            CommandFailure::failed(format!(
                "--log-journal: {}: {e}; is systemd-journald running?",
                path.display()
            ))
        })?;
        let format = LineFormat::Journal(mountpoint.to_path_buf());
        start_queue(format, journal, self.log_level)
    }
}

/// Starts the log of a verb that prints its errors: only a wait for a server is logged.
pub fn start_for_command() -> CommandResult {
    start(Logger { queue: None }, LevelFilter::Off)
}

/// Starts the log of a daemon, which the thread `log` writes to `out`.
fn start_queue(
    format: LineFormat,
    out: impl Write + Send + 'static,
    level: LevelFilter,
) -> CommandResult {
    let queue = Arc::new(LogQueue::new(format, PATIENCE));
    let of_thread = queue.clone();
    start_thread("log", move || of_thread.run(out))?;
    start(Logger { queue: Some(queue) }, level)?;
    // the usual hook writes to standard error on the thread that serves a request
    std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
    Ok(())
}

fn start(logger: Logger, level: LevelFilter) -> CommandResult {
    if LOGGER.set(logger).is_ok()
        && let Some(logger) = LOGGER.get()
    {
        log::set_logger(logger).map_err(|e| CommandFailure::failed(format!("log: {e}")))?;
    }
    set_level(level);
    Ok(())
}

/// Prints the error with which the process ends, on standard error.
pub fn print_error(text: &str) {
    let line = format!("error: {text}\n").into_bytes();
    match LOGGER.get().and_then(|logger| logger.queue.as_deref()) {
        Some(queue) if matches!(queue.format(), LineFormat::Terminal) => queue.write_line(line),
        // if it can't be written, the exit code still reports the failure
        _ => drop(std::io::stderr().write_all(&line)),
    }
}

/// Writes what the log has counted, and waits a limited time until all its lines are written.
pub fn end() {
    log::logger().flush();
}

/// How a line of the log looks, which depends on where it goes.
enum LineFormat {
    Terminal,
    File,
    /// An entry of the journal, with the mountpoint.
    Journal(PathBuf),
}

impl LineFormat {
    /// Returns a message, which is one line, as it is written.
    fn line(&self, level: Level, text: &str) -> Vec<u8> {
        match self {
            LineFormat::Terminal => {
                let level = shown(level.to_level_filter());
                format!("zarrfs: {level}: {text}\n").into_bytes()
            }
            LineFormat::File => {
                let now = time::utc(SystemTime::now());
                format!("{now} {level:<5} {text}\n").into_bytes()
            }
            LineFormat::Journal(mountpoint) => systemd::entry(level, text, mountpoint),
        }
    }
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Passes messages on, if their level permits it.
struct Logger {
    /// Without one, the thread that logs writes to standard error.
    queue: Option<Arc<LogQueue>>,
}

impl Logger {
    /// Returns whether the log shows a record.
    fn shows(&self, record: &Record) -> bool {
        let is_on_terminal = match &self.queue {
            Some(queue) => matches!(queue.format(), LineFormat::Terminal),
            None => true,
        };
        // a command that waits for a server must say so
        let is_wait = record.level() <= Level::Warn && record.target().starts_with(TRANSPORT);
        let is_shown =
            record.level() <= level() && (level() >= LevelFilter::Debug || !is_late_reply(record));
        self.enabled(record.metadata()) && (is_shown || is_on_terminal && is_wait)
    }
}

impl Log for Logger {
    /// Returns whether messages of a module may be logged at the highest level.
    fn enabled(&self, metadata: &Metadata) -> bool {
        let highest = if metadata.target().starts_with("zarrfs") {
            LevelFilter::Trace
        } else if metadata.target().starts_with("fuser") {
            // fuser warns of every operation that a file system leaves out
            LevelFilter::Error
        } else {
            // lines of the libraries for servers may contain credentials
            LevelFilter::Warn
        };
        metadata.level() <= highest
    }

    fn log(&self, record: &Record) {
        if !self.shows(record) {
            return;
        }
        let text = one_line(record.args().to_string());
        let Some(queue) = &self.queue else {
            let line = LineFormat::Terminal.line(record.level(), &text);
            let _ = std::io::stderr().write_all(&line);
            return;
        };
        // a user who asks for a line per request gets every message
        let place = (level() < LevelFilter::Debug).then(|| (record.target(), record.line()));
        queue.write(place, record.level(), &text);
    }

    fn flush(&self) {
        if let Some(queue) = &self.queue {
            queue.end();
        }
    }
}

/// Returns whether a record of fuser says that the kernel does not know a request any more
/// (ENOENT): the program that has asked was killed meanwhile.
fn is_late_reply(record: &Record) -> bool {
    record.target().starts_with("fuser")
        && record
            .args()
            .to_string()
            .starts_with("Failed to send FUSE reply: ")
        && record.args().to_string().ends_with("(os error 2)")
}

/// Opens a file to append the log to it. A log without a reader must not stop the mount: a FIFO
/// without a reader is an error, and lines that a reader doesn't take are lost. A new file is for
/// its owner, since the log quotes private documents.
pub fn open(path: &Path) -> CommandResult<File> {
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
