//! Open metadata documents. A reader gets the text as of the opening, or of a document that is
//! not stored yet the text so far.

use super::draft::Draft;
use super::opened_text::OpenedText;
use super::{NewFile, OpenFile};
use crate::array::hierarchy::MetadataFile;
use crate::cache::{FoundBytes, Wait};
use crate::fs::tree::Attributes;
use crate::fs::{Fs, KernelPages};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_store::Key;

/// A metadata document open for reading.
pub struct DocumentFile {
    inode: u64,
    text: OpenedText,
}

impl DocumentFile {
    /// Opens a metadata document of the group or array at `key` for reading.
    pub(in crate::fs) fn open(
        fs: &Fs,
        inode: u64,
        key: &Key,
        file: MetadataFile,
    ) -> Result<NewFile> {
        let document = fs.tree.document_of_age(key, file, Duration::ZERO)?;
        let Some(document) = document else {
            // it may be created and not stored yet
            let draft = fs.drafts.get(&key.join(file.name()));
            let file = CreatedDocument(draft.ok_or_else(Error::stale)?);
            return Ok(NewFile::new(Arc::new(file), KernelPages::None));
        };
        let text = fs.opened_texts.hold(document)?;
        Ok(NewFile::new(
            Arc::new(DocumentFile { inode, text }),
            KernelPages::None,
        ))
    }
}

/// A metadata document that another program has created and not closed yet, open for reading. Its
/// close stores nothing, since the text may be incomplete.
struct CreatedDocument(Arc<Draft>);

impl OpenFile for CreatedDocument {
    fn inode(&self) -> u64 {
        self.0.inode
    }

    fn read(
        &self,
        fs: &Fs,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        self.0.read(fs, offset, len, wait, out)
    }

    fn unlinked_attributes(&self, fs: &Fs) -> Option<Attributes> {
        self.0.unlinked_attributes(fs)
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
