//! Open metadata documents. A reader gets the text as of the opening.

use super::opened_text::OpenedText;
use super::{NewFile, OpenFile};
use crate::array::hierarchy::MetadataFile;
use crate::cache::{FoundBytes, Wait};
use crate::fs::{Fs, KernelPages};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_store::Key;

/// A metadata document open for reading.
struct DocumentFile {
    inode: u64,
    text: OpenedText,
}

impl Fs {
    /// Opens a metadata document of the group or array at `key` for reading.
    pub(in crate::fs) fn open_document(
        &self,
        inode: u64,
        key: &Key,
        file: MetadataFile,
    ) -> Result<NewFile> {
        let document = self.tree.document_of_age(key, file, Duration::ZERO)?;
        let text = self.opened_texts.hold(document.ok_or_else(Error::stale)?)?;
        Ok(NewFile::new(
            Arc::new(DocumentFile { inode, text }),
            KernelPages::None,
        ))
    }
}

impl OpenFile for DocumentFile {
    fn inode(&self) -> u64 {
        self.inode
    }

    fn read(
        &self,
        _: &Fs,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        self.text.read(offset, len, wait, out)
    }
}
