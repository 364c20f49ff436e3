//! Stores drafts and documents: at close and sync, and when a file gets another name.

use super::Change;
use super::files::draft::{Draft, DraftBytes};
use crate::array::hierarchy::MetadataFile;
use crate::fs::tree::Node;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_store::{Key, StoreExt};

impl Change<'_> {
    /// Stores everything as [`Change::store_all`] does, and reports losses since the last report.
    pub fn flush_all(&self) -> Result<()> {
        let stored = self.store_all();
        self.arrays.take_losses().and(stored)
    }

    /// Stores everything, and makes it durable. Drafts that are still open are stored if they are
    /// valid as they are. Losses are not errors of this function: `WrittenArrays::take_losses`
    /// reports them.
    ///
    /// # Errors
    ///
    /// The first error, after all attempts, or at once if the store does not answer at all.
    pub fn store_all(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let mut done = Ok(());
        for draft in self.drafts.all() {
            // chunks of objects stay drafts: half a chunk looks like a whole one
            if matches!(draft.node(), Node::Metadata(..) | Node::Value(_)) {
                done = done.and(match self.flush_draft(&draft) {
                    // the program is still writing it
                    Err(e) if e.kind() == Kind::Invalid => Ok(()),
                    stored => stored,
                });
            }
            if self.cache.is_in_vain(&done) {
                return done;
            }
        }
        self.settle_early_files();
        let done = done.and(self.cache.flush_all());
        if self.cache.is_in_vain(&done) {
            done
        } else {
            done.and(self.store().sync())
        }
    }

    /// Stores a draft if it was changed.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the content is not valid; the stored file stays as it is.
    pub(super) fn flush_draft(&self, draft: &Draft) -> Result<()> {
        let mut content = draft.lock();
        if !content.changed {
            return Ok(());
        }
        let stored = match &draft.node() {
            Node::Metadata(key, file) => self.put_document(key, *file, content.text.bytes()),
            // a shell closes the file before the program that it starts writes to it
            Node::Chunk(..) if content.len == 0 => {
                Err(Error::invalid("an empty file is no chunk of objects")
                    .context(draft.node().path()))
            }
            Node::Chunk(key, name) => {
                let found = self.tree.chunk(key, name);
                found.and_then(|(array, chunk)| {
                    self.writer.put_chunk(&array, chunk, content.text.bytes())
                })
            }
            Node::Value(key) => self.store_value(key, &mut content.text),
            Node::Ingested(path) => match &mut content.text {
                DraftBytes::File(file) => {
                    let file = file.flushed().context(path);
                    file.and_then(|file| self.store_ingested(path, file))
                }
                DraftBytes::Memory { .. } => Ok(()),
            },
            _ => Ok(()),
        };
        content.changed = stored.is_err();
        content.refused = stored.clone().err();
        stored
    }

    /// Stores a plain key or an encoded value.
    fn store_value(&self, key: &Key, text: &mut DraftBytes) -> Result<()> {
        match (self.tree.encoded_value(key)?, text) {
            (Some(value), DraftBytes::File(file)) => {
                let file = file.flushed().context(key)?;
                self.writer.replace_encoded(&value, file)
            }
            (Some(value), DraftBytes::Memory { bytes, .. }) => self
                .writer
                .replace_encoded(&value, &self.arrays.file_of(bytes)?),
            (None, DraftBytes::Memory { bytes, .. }) => {
                self.store().put(key, bytes).map(drop).context(key)
            }
            // the array was replaced since the file was opened
            (None, DraftBytes::File(_)) => Err(Error::stale().context(key)),
        }
    }

    /// Stores a document that was written through the mount.
    pub(super) fn put_document(&self, key: &Key, file: MetadataFile, text: &[u8]) -> Result<()> {
        let is_of_array = self.tree.changes_array(key, file)?;
        let was_array = self.tree.hierarchy().is_array(key).unwrap_or(false);
        let alone = is_of_array.then(|| self.arrays.resizing.alone(&[key]));
        if is_of_array {
            self.arrays.flush_below(key)?;
        }
        self.tree.hierarchy().put_document(key, file, text)?;
        self.tree.document_changed();
        self.writer.add_stale(key, true);
        drop(alone);
        if !was_array && self.tree.hierarchy().is_array(key).unwrap_or(false) {
            self.take_early_files(key);
        }
        Ok(())
    }
}
