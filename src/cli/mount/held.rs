//! The daemon's side of a mount that is *held*: the connection to the process that holds it, which
//! starts a successor if this one is killed. This module must not know how that is done.

use super::message::Message;
use crate::cli::CommandResult;
use crate::cli::mountpoint::MadeDirectories;
use crate::fs::Fs;
use crate::fuse::{ChangePause, Mountpoint, receive, send};
use rustix::io::FdFlags;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::pool::start_thread;
use zarrfs_base::spill_file::unnamed_file;

/// Maximum time for which a hand-over waits until nothing that is written would be lost.
const QUIET_LIMIT: Duration = Duration::from_secs(10);

/// Maximum time for one attempt to pause all changes.
const PAUSE_LIMIT: Duration = Duration::from_secs(3);

/// Time between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Time after which a mount that has lost its holder ends requests in flight.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The environment variable with the numbers of the descriptors of a program that becomes the
/// daemon of a mount.
const HELD: &str = "ZARRFS_HELD";

/// The files that the process that holds a mount keeps for each daemon.
pub struct KeptFiles {
    /// The memory of the journal.
    pub memory: OwnedFd,
    /// The pipe for the numbers of daemons that end.
    pub deaths: OwnedFd,
    /// The spill file of chunks that wait for their shards, once a daemon has opened it.
    pub spill: Option<OwnedFd>,
}

impl KeptFiles {
    /// Duplicates the descriptors.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(KeptFiles {
            memory: self.memory.try_clone()?,
            deaths: self.deaths.try_clone()?,
            spill: self.spill.as_ref().map(OwnedFd::try_clone).transpose()?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &OwnedFd> {
        [&self.memory, &self.deaths].into_iter().chain(&self.spill)
    }
}

/// The connection of a daemon to the process that holds its mount.
pub struct Held {
    pub link: OwnedFd,
    pub kept: KeptFiles,
    /// The mount, and why this daemon has taken its place, if there was one before.
    pub taken: Option<(Mountpoint, String)>,
    /// Pauses changes.
    pub pause: Arc<ChangePause>,
    /// The mountpoint and directories above it that were made.
    pub made: MadeDirectories,
}

impl Held {
    /// Creates the connection of the first daemon.
    pub fn new(link: OwnedFd, kept: KeptFiles) -> Self {
        Held {
            link,
            kept,
            taken: None,
            pause: Arc::default(),
            made: MadeDirectories::default(),
        }
    }

    /// Creates the connection of a successor, which gets the mount by a message.
    ///
    /// # Errors
    ///
    /// The holder has ended.
    pub fn receive(link: OwnedFd, kept: KeptFiles) -> Result<Self> {
        let (message, files) = receive(link.as_fd())?;
        let taken = match message.split_first() {
            Some((kind, rest)) if *kind == Message::Mounted as u8 => {
                let (why, mount) = split_text(rest);
                Mountpoint::from_message(mount, files).map(|mount| (mount, why))
            }
            _ => None,
        };
        let taken = taken.ok_or_else(|| Error::io("the process that holds the mount has ended"))?;
        Ok(Held {
            taken: Some(taken),
            ..Held::new(link, kept)
        })
    }

    /// Returns the spill file of the daemon before, or a new one in `directory`, which is passed
    /// on. Returns `None` if it can't be opened.
    pub fn spill_file(&mut self, directory: &Path) -> Option<File> {
        if let Some(spill) = self.kept.spill.take() {
            return Some(spill.into());
        }
        let spill = unnamed_file(directory).ok()?;
        send(self.link.as_fd(), &[Message::Spill as u8], &[spill.as_fd()]).ok()?;
        Some(spill)
    }

    /// Returns what passes a mount on that is not served yet: a message, and its files.
    pub fn mount_message(mountpoint: &Mountpoint) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let (bytes, files) = mountpoint.to_message().unwrap_or_default();
        let message = [&[Message::Mounted as u8, 0], bytes.as_slice()].concat();
        let files = files.iter().map(BorrowedFd::try_clone_to_owned);
        Ok((message, files.collect::<std::io::Result<_>>()?))
    }

    /// Passes the mount on, before its first request is answered.
    pub fn send_mount(&self, (message, files): (Vec<u8>, Vec<OwnedFd>)) -> Result<()> {
        let files: Vec<BorrowedFd> = files.iter().map(OwnedFd::as_fd).collect();
        Ok(send(self.link.as_fd(), &message, &files)?)
    }

    /// Returns the connection of a program that the process that holds the mount has started;
    /// `None` in any other process.
    ///
    /// # Errors
    ///
    /// The holder has ended.
    pub fn from_environment() -> Result<Option<Self>> {
        let Some(numbers) = std::env::var(HELD).ok() else {
            return Ok(None);
        };
        // SAFETY: the process has one thread. A program that it runs must not take itself for a
        // daemon.
        unsafe { std::env::remove_var(HELD) };
        let mut descriptors = numbers.split(',').filter_map(|n| {
            let fd = n.parse().ok()?;
            // SAFETY: the holder has passed this descriptor on, and nothing else uses it.
            Some(unsafe { OwnedFd::from_raw_fd(fd) })
        });
        let mut next = || descriptors.next().ok_or_else(|| Error::invalid(HELD));
        let link = next()?;
        let kept = KeptFiles {
            memory: next()?,
            deaths: next()?,
            spill: next().ok(),
        };
        for fd in kept.all().chain([&link]) {
            rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        }
        Held::receive(link, kept).map(Some)
    }

    /// Replaces this process by a program, which becomes the daemon. Returns if it can't be
    /// started.
    pub fn replace_process(link: OwnedFd, kept: &KeptFiles, program: &Path) {
        let descriptors = [&link].into_iter().chain(kept.all());
        let numbers: Vec<String> = descriptors
            .map(|fd| {
                let _ = rustix::io::fcntl_setfd(fd, FdFlags::empty());
                fd.as_raw_fd().to_string()
            })
            .collect();
        let mut words = std::env::args_os();
        let name = words.next().unwrap_or_default();
        let failed = Command::new(program)
            .arg0(name)
            .args(words)
            .env(HELD, numbers.join(","))
            .exec();
        let socket = Arc::new(link);
        let pause = Arc::default();
        HeldLink { socket, pause }
            .fail(&Error::from(failed).context(program.display()).to_string());
    }

    /// Returns the connection, for the report of a failure.
    pub fn reporter(&self) -> Option<HeldLink> {
        Some(HeldLink {
            socket: Arc::new(self.link.try_clone().ok()?),
            pause: self.pause.clone(),
        })
    }

    /// Returns the connection of a daemon that is about to serve.
    pub fn link(self) -> HeldLink {
        HeldLink {
            socket: Arc::new(self.link),
            pause: self.pause,
        }
    }
}

/// The connection of a daemon that serves.
#[derive(Clone)]
pub struct HeldLink {
    socket: Arc<OwnedFd>,
    pause: Arc<ChangePause>,
}

impl HeldLink {
    /// Reports that the mount answers, and takes messages from now on.
    pub fn begin(&self, fs: Arc<Fs>, mountpoint: Arc<Mountpoint>) -> CommandResult {
        self.tell(Message::Ready, "")?;
        let link = self.clone();
        start_thread("holder", move || link.take_messages(&fs, &mountpoint))?;
        Ok(())
    }

    fn tell(&self, message: Message, text: &str) -> Result<()> {
        let bytes = [&[message as u8], text.as_bytes()].concat();
        Ok(send(self.socket.as_fd(), &bytes, &[])?)
    }

    /// Reports why the mount can't be served.
    pub fn fail(&self, why: &str) {
        let _ = self.tell(Message::Failed, why);
    }

    /// Reports that the mount has ended: no successor is needed.
    pub fn end(&self) {
        // the other process may have been killed
        let _ = self.tell(Message::Ending, "");
    }

    /// Takes messages of the process that holds the mount. If that is killed the mount ends, and
    /// everything that was written is stored.
    fn take_messages(&self, fs: &Arc<Fs>, mountpoint: &Mountpoint) {
        while let Ok((message, _)) = receive(self.socket.as_fd()) {
            let Some(kind) = message.first() else {
                break;
            };
            match Message::of_byte(*kind) {
                Some(Message::Pause) => {
                    let told = match become_quiet(fs, &self.pause) {
                        Ok(()) => self.tell(Message::Paused, ""),
                        Err(e) => self.tell(Message::Refused, &e.to_string()),
                    };
                    if told.is_err() {
                        break;
                    }
                }
                Some(Message::Resume) => self.pause.end(),
                _ => {}
            }
        }
        self.pause.end();
        log::warn!(
            "the process that holds the mount has ended: the mount ends, and everything is stored"
        );
        if mountpoint.can_unmount() {
            let _ = mountpoint.unmount();
            sleep(END_LIMIT);
        }
        // otherwise it would last as long as its open files, without a successor
        mountpoint.abort();
    }
}

/// Returns the text before the first zero, and what follows.
pub fn split_text(bytes: &[u8]) -> (String, &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    (text.into_owned(), parts.next().unwrap_or_default())
}

/// Pauses all changes, and stores everything, so that a successor lacks nothing.
fn become_quiet(fs: &Fs, pause: &ChangePause) -> Result<()> {
    let begun = Instant::now();
    loop {
        if !pause.begin(PAUSE_LIMIT) {
            return Err(Error::io("requests that change files don't end"));
        }
        let stored = fs.change().store_all();
        let why = match (stored, fs.unstored_file()) {
            (Err(e), _) => e,
            (Ok(()), Some(path)) => Error::io("is being written; close it").context(path),
            (Ok(()), None) => return Ok(()),
        };
        pause.end();
        if begun.elapsed() > QUIET_LIMIT {
            return Err(why);
        }
        sleep(RETRY_PAUSE);
    }
}
