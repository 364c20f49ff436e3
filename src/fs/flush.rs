//! Stores written data: at close and sync, before the store is asked for its content, and before
//! metadata changes.

use super::files::draft::{Draft, DraftText};
use super::{Change, Fs};
use crate::array::Array;
use crate::array::hierarchy::MetadataFile;
use crate::fs::tree::{FLAT, Node, chunk_named};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_store::Key;

impl Fs {
    /// Fails if written bytes were lost and no close or fsync has reported the loss.
    pub fn take_losses(&self) -> Result<()> {
        self.cache.take_losses(|_| true)
    }

    /// Returns `stored`, the result of a close or fsync of a file of the array at `key`. A loss
    /// comes before any other error.
    pub(super) fn with_losses(&self, key: &Key, stored: Result<()>) -> Result<()> {
        self.cache.take_losses(|lost| lost == key).and(stored)
    }

    /// Stores the dirty chunks of arrays at and below `key`, because their metadata are about to
    /// change.
    pub(super) fn flush_below(&self, key: &Key) -> Result<()> {
        self.cache
            .flush_where(|array| array.key().relative_to(key).is_some())
    }

    /// Records why the drafts that are open were refused when a descriptor of theirs was closed
    /// last: the release, which records it as well, may come much later.
    pub(super) fn record_refused(&self) {
        for draft in self.drafts.all() {
            let refused = draft
                .try_lock()
                .and_then(|content| content.refused.clone().filter(|_| content.len > 0));
            if let Some(e) = refused {
                self.stats.problem(format!("not stored: {e}"));
            }
        }
    }

    /// Returns whether a change of a document may change the metadata of the array at `key`. In a
    /// v2 view of a v3 array, the attributes are part of that metadata.
    pub(super) fn changes_array(&self, key: &Key, file: MetadataFile) -> Result<bool> {
        let hierarchy = self.tree.hierarchy();
        Ok(file.defines_arrays()
            || hierarchy.cached_array(key).is_some() && hierarchy.shows_as_v2(key)?)
    }

    fn is_array(&self, key: &Key) -> bool {
        self.tree.hierarchy().is_array(key).unwrap_or(false)
    }

    /// Stores the chunk `name` of the array at `key`, or hands over all dirty chunks of the array,
    /// so that the store knows which chunks there are. A chunk that cannot be stored now does not
    /// exist yet.
    pub(super) fn settle(&self, key: &Key, name: Option<&str>) {
        self.settle_object(&name.map_or_else(|| key.clone(), |name| key.join(name)));
        let Some(array) = self.tree.hierarchy().cached_array(key) else {
            return;
        };
        if !array.freshness().is_dirty() {
            return;
        }
        let settled = match name {
            None => self.cache.hand_over(&array),
            Some(name) => match chunk_named(&array, name) {
                Some(chunk) => self.cache.flush_chunk(&array, chunk),
                None => Ok(()),
            },
        };
        if let Err(e) = settled {
            log::debug!("{e}");
        }
    }

    /// Stores the chunks of the array that has an object, or a directory of objects, at `path`: a
    /// program is about to see the stored bytes.
    pub(super) fn settle_object(&self, path: &Key) {
        if self.is_object_unsettled(path)
            && let Err(e) = self.cache.flush_where(|array| array.is_object_path(path))
        {
            log::debug!("{e}");
        }
    }

    /// Returns whether [`Fs::settle`] has something to store before `name` in the directory `node`,
    /// or a chunk file itself, is looked up.
    pub(super) fn is_unsettled(&self, node: &Node, name: Option<&str>) -> bool {
        let (key, name) = match (node.directory(), node.chunk(), node.value()) {
            (Some(key), ..) => (key, name),
            (_, Some((key, name)), _) => (key, Some(name)),
            (.., Some(key)) => return self.is_object_unsettled(key),
            _ => return false,
        };
        let array = self.tree.hierarchy().cached_array(key);
        name != Some(FLAT) && array.is_some_and(|array| array.freshness().is_dirty())
            || self.is_object_unsettled(&name.map_or_else(|| key.clone(), |name| key.join(name)))
    }

    fn is_object_unsettled(&self, path: &Key) -> bool {
        self.cache.has_pending(|array| array.is_object_path(path))
            || matches!(self.tree.encoded_value(path), Ok(Some(value)) if value.array.freshness().is_dirty())
    }
}

impl Change<'_> {
    /// Stores everything as [`Change::store_all`] does, and reports losses since the last report.
    pub fn flush_all(&self) -> Result<()> {
        let stored = self.store_all();
        self.take_losses().and(stored)
    }

    /// Stores everything, and makes it durable. Drafts that are still open are stored if they are
    /// valid as they are. Losses are not errors of this function: [`Fs::take_losses`] reports them.
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

    /// Stores the dirty chunks of an array. If its filters are lossy, the kernel drops the pages of
    /// `data.raw`: later reads return the values that the filters have kept.
    pub(super) fn flush_array(&self, array: &Array) -> Result<()> {
        let done = self.cache.flush_array(array);
        if array.is_lossy() && array.freshness().writes() > 0 {
            self.add_stale(array.key(), true);
        }
        done
    }

    /// Hands over the dirty chunks of an array with shards, and stores those of any other array.
    /// Programs close the chunk files of a shard one by one, and each close would store the whole
    /// shard.
    pub(super) fn hand_over(&self, array: &Array) -> Result<()> {
        if array.has_shards() {
            self.cache.hand_over(array)
        } else {
            self.flush_array(array)
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
                found.and_then(|(array, chunk)| self.put_chunk(&array, chunk, content.text.bytes()))
            }
            Node::Value(key) => self.store_value(key, &content.text),
            _ => Ok(()),
        };
        content.changed = stored.is_err();
        content.refused = stored.clone().err();
        stored
    }

    /// Stores a plain key or an encoded value.
    fn store_value(&self, key: &Key, text: &DraftText) -> Result<()> {
        match (self.tree.encoded_value(key)?, text) {
            (Some(value), DraftText::File(file)) => self.replace_encoded(&value, file),
            (Some(value), DraftText::Memory(bytes)) => {
                self.replace_encoded(&value, &self.file_of(bytes)?)
            }
            (None, DraftText::Memory(bytes)) => self
                .store()
                .put(key, bytes)
                .map(drop)
                .map_err(|e| e.context(key)),
            // the array was replaced since the file was opened
            (None, DraftText::File(_)) => Err(Error::stale().context(key)),
        }
    }

    /// Stores a document that was written through the mount.
    pub(super) fn put_document(&self, key: &Key, file: MetadataFile, text: &[u8]) -> Result<()> {
        let is_of_array = self.changes_array(key, file)?;
        let was_array = self.is_array(key);
        let alone = is_of_array.then(|| self.resizing.alone(&[key]));
        if is_of_array {
            self.flush_below(key)?;
        }
        self.tree.hierarchy().put_document(key, file, text)?;
        self.tree.document_changed();
        self.add_stale(key, true);
        drop(alone);
        if !was_array && self.is_array(key) {
            self.take_early_files(key);
        }
        Ok(())
    }
}
