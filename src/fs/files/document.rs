//! Open metadata documents. A reader gets the text as of the opening.

use super::{NewFile, OpenFile, copy_range};
use crate::array::hierarchy::{MetadataDocument, MetadataFile};
use crate::cache::{FoundBytes, Wait};
use crate::fs::{Fs, KernelPages};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory;
use zarrfs_store::Key;

/// A metadata document open for reading.
struct DocumentFile {
    inode: u64,
    document: Arc<MetadataDocument>,
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
        memory::check_available()?;
        let document = document.ok_or_else(Error::stale)?;
        Ok(NewFile::new(
            Arc::new(DocumentFile { inode, document }),
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
        _: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        Ok(copy_range(&self.document.text, offset, len, out))
    }
}
