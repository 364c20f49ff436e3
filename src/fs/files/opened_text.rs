//! Texts of open files, as of their opening. This module must not know what they mean.

use super::copy_range;
use crate::cache::{FoundBytes, Wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zarrfs_base::error::Result;
use zarrfs_base::memory;
use zarrfs_base::spill_file::{SpillFile, SpillOptions, SpilledBytes};
use zarrfs_store::read_at;

/// Bytes with the grant for their memory.
type Text = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The texts of all open files of a mount.
///
/// Invariant: the texts in memory take at most an eighth of the memory for documents, and a spill
/// file holds the others. So a user with many open files leaves memory for other requests, unless
/// the disk has no space for the spill file.
pub(in crate::fs) struct OpenedTexts {
    spill: Arc<SpillFile>,
    /// Bytes of the texts in memory.
    in_memory: AtomicUsize,
}

/// The text of an open file.
pub(super) struct OpenedText {
    place: TextPlace,
    texts: Arc<OpenedTexts>,
}

enum TextPlace {
    Memory(Text),
    Spilled(SpilledBytes),
}

impl OpenedTexts {
    /// Returns an owner of texts without any.
    pub(in crate::fs) fn new(spill: SpillOptions) -> Arc<Self> {
        Arc::new(OpenedTexts {
            spill: SpillFile::new(spill, None),
            in_memory: AtomicUsize::new(0),
        })
    }

    /// Keeps the text of a file that is opened.
    ///
    /// # Errors
    ///
    /// ENOMEM if there is neither memory nor space for it.
    pub(super) fn hold(self: &Arc<Self>, text: Text) -> Result<OpenedText> {
        let bytes = (*text).as_ref();
        let before = self.in_memory.fetch_add(bytes.len(), Ordering::Relaxed);
        // dropping it takes its bytes from the sum
        let held = OpenedText {
            place: TextPlace::Memory(text.clone()),
            texts: self.clone(),
        };
        let is_too_much = before + bytes.len() > memory::limit() / 8;
        if (is_too_much || memory::check_available().is_err())
            && let Ok(spilled) = self.spill.put(bytes)
        {
            return Ok(OpenedText {
                place: TextPlace::Spilled(spilled),
                texts: self.clone(),
            });
        }
        memory::check_available()?;
        Ok(held)
    }
}

impl OpenedText {
    /// Reads up to `len` bytes at `offset`, fewer only at the end.
    pub(super) fn read(
        &self,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        let spilled = match &self.place {
            TextPlace::Memory(text) => return Ok(copy_range((**text).as_ref(), offset, len, out)),
            TextPlace::Spilled(_) if wait == Wait::Never => return Ok(FoundBytes::MustWait),
            TextPlace::Spilled(spilled) => spilled,
        };
        let (file, range) = spilled.place();
        let left = spilled.size().saturating_sub(offset);
        out.clear();
        out.resize(left.min(len as u64) as usize, 0);
        read_at(file, range.start.saturating_add(offset), out)?;
        Ok(FoundBytes::Copied)
    }
}

impl Drop for OpenedText {
    fn drop(&mut self) {
        if let TextPlace::Memory(text) = &self.place {
            let len = (**text).as_ref().len();
            self.texts.in_memory.fetch_sub(len, Ordering::Relaxed);
        }
    }
}
