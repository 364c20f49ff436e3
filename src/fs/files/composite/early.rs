//! A header or container that a program truncates or creates, and then writes as a whole, although
//! it has another layout than the generated one, or shows arrays that are not there yet. It is
//! written to a plain key of the same name, which the generated file hides, and becomes that at its
//! close: see `fs::early_files`.

use super::CompositeFile;
use super::early_file::EarlyFile;
use crate::fs::files::OpenFile;
use crate::fs::{Change, Fs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_export::HeaderEdit;

/// The state of a file that may be written as a whole.
#[derive(Default)]
pub struct WholeFile {
    /// Whether the file was truncated to nothing, or created.
    begun: AtomicBool,
    /// The plain key that is written in place of the file.
    early: OnceLock<Arc<dyn OpenFile>>,
    /// Whether the plain key has become the file, or waits for the arrays that it shows.
    is_finished: AtomicBool,
}

impl WholeFile {
    /// Returns the plain key that is written in place of the file.
    pub fn early(&self) -> Option<&Arc<dyn OpenFile>> {
        self.early.get()
    }

    /// Returns whether the plain key has not become the file.
    pub fn is_unfinished(&self) -> bool {
        self.early().is_some() && !self.is_finished.load(Ordering::Relaxed)
    }
}

impl CompositeFile {
    /// Sets the length of the plain key, and returns whether there is one. Records that a program
    /// that truncates the file to nothing writes it as a whole.
    pub(in crate::fs) fn set_whole_len(&self, len: u64) -> Result<bool> {
        if let Some(early) = self.whole.early() {
            return early.set_len(len).map(|()| true);
        }
        if self.is_text() {
            self.cut_text(len)?;
        }
        if len == 0 {
            self.whole.begun.store(true, Ordering::Relaxed);
        }
        Ok(false)
    }

    /// Returns whether the first write, which was refused in place with `e`, may begin a file that
    /// can take its place when it is complete.
    pub(super) fn may_begin_early(&self, fs: &Fs, data: &[u8], e: &Error) -> bool {
        let is_whole = self.whole.begun.load(Ordering::Relaxed);
        if !is_whole || ![libc::EPERM, libc::EFBIG].contains(&e.errno()) {
            return false;
        }
        if fs.may_be_early(&self.node) {
            return true;
        }
        let taken = self.takes_header(fs, data);
        let why = match &taken {
            Ok(()) => return true,
            // other files than `dataset.nc` are written in place alone
            Err(_) if self.header().is_none() => e.clone(),
            Err(why) => why.clone().context(self.node.path()),
        };
        fs.stats.problem(format!("not stored: {why}"));
        false
    }

    /// Checks that the file takes over the values of another file that begins with `data`, wherever
    /// they lie in it. A program that ignores errors of close learns early that it does not.
    fn takes_header(&self, fs: &Fs, data: &[u8]) -> Result<()> {
        let refused = || Error::system(libc::EPERM);
        let (group, header) = self.header().ok_or_else(refused)?;
        let edited = HeaderEdit::compare(header, data)?.ok_or_else(refused)?;
        if edited.more_records().is_some() {
            self.check_growth(fs)?;
        }
        edited
            .changes(group, &self.file, |key| fs.tree.hierarchy().attributes(key))
            .map(drop)
    }

    /// Begins to write to a plain key in place of the file.
    pub(super) fn begin_early(&self, fs: &Change) -> Result<&Arc<dyn OpenFile>> {
        let new = fs.create_early(&self.node)?;
        self.refused.store(false, Ordering::Relaxed);
        Ok(self.whole.early.get_or_init(|| new))
    }

    /// Puts the plain key in the place of the file.
    ///
    /// # Errors
    ///
    /// EPERM if it cannot become the file, unless the arrays that it shows may follow.
    pub(super) fn finish_early(&self, fs: &Change) -> Result<()> {
        let Some(early) = self.whole.early() else {
            return Ok(());
        };
        early.flush(fs)?;
        if self.whole.is_finished.load(Ordering::Relaxed) {
            return Ok(());
        }
        let path = self.node.path();
        let taken = EarlyFile::new(fs, &path).take();
        let waits = taken.is_err() && fs.may_be_early(&self.node);
        if waits {
            fs.tree.record_early(&path);
        }
        if taken.is_ok() || waits {
            self.whole.is_finished.store(true, Ordering::Relaxed);
            return Ok(());
        }
        taken.map_err(|e| {
            fs.stats.problem(format!("not stored: {e}"));
            Error::new(Kind::System(libc::EPERM), e.message())
        })
    }

    /// Removes the plain key if it has not become the file.
    pub(super) fn end_early(&self, fs: &Change) {
        if self.whole.is_unfinished()
            && let Err(e) = EarlyFile::new(fs, &self.node.path()).remove()
        {
            fs.stats.problem(e.to_string());
        }
    }
}
