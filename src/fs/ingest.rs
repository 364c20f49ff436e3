//! Files of a mount with `--ingest` that become groups and arrays, and show them afterwards.
//!
//! Invariants:
//! * **A file is a draft, in an unnamed file, from its creation or truncation on. A close makes it
//!   the node of its name as a whole**: the node is made under a hidden name, and then takes the
//!   name, or exchanges it with the node before. A store without renames gets the document of a
//!   group last. A file without a draft shows the container of the node (`tree/ingested.rs`).
//! * **Bytes that cannot become a node are not lost**: the last close puts them beside the file, as
//!   [`REFUSED`], and nothing else has changed.
//!
//! [`crate::ingest`] reads the formats; this module must not know them.

use super::files::composite::CompositeFile;
use super::files::draft::{Draft, DraftBytes};
use super::files::ingested::IngestedFile;
use super::files::{NewFile, OpenFile};
use super::{Change, Fs, KernelPages};
use crate::array::hierarchy::DocumentFormat;
use crate::fs::tree::{Attributes, Node};
use crate::ingest::{Ingest, IngestLayout, StagedNode};
use std::fs::File;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::spill_file::unnamed_file;
use zarrfs_ingest::Incoming;
use zarrfs_store::{Key, Permissions, Replaces, StoreExt, ValuePiece};

/// The end of the names under which the bytes of files are kept that could not become a node.
const REFUSED: &str = ".refused";

/// Returns the end of the name of a file.
fn ending(path: &Key) -> &str {
    path.name()
        .rsplit_once('.')
        .map_or("", |(_, ending)| ending)
}

impl Fs {
    /// Begins a file at `path` that becomes a node; `None` if it becomes an ordinary file.
    pub(super) fn create_ingested(
        &self,
        path: &Key,
        permissions: Option<Permissions>,
    ) -> Result<Option<(Attributes, NewFile)>> {
        match self.tree.ingest_target(path) {
            Some((key, _)) if self.takes_ingested(path, &key)? => {}
            _ => return Ok(None),
        }
        self.store().check_writable(&path.parent()).context(path)?;
        let created = self.remembered(&Node::Ingested(path.clone()), |inode| {
            let draft = self.begin_draft(path, inode, permissions)?;
            let (attributes, _) = draft.clone().created(&self.tree);
            let file = IngestedFile::new(inode, true, Some(draft), None);
            Ok((attributes, NewFile::new(Arc::new(file), KernelPages::None)))
        });
        created.map(Some)
    }

    /// Returns whether a file at `path` may become the node at `key`: no node is there, or the file
    /// shows that node.
    fn takes_ingested(&self, path: &Key, key: &Key) -> Result<bool> {
        let hierarchy = self.tree.hierarchy();
        if self.tree.ingested(path)?.is_some() {
            return Ok(true);
        }
        let is_free = match hierarchy.find(key)? {
            None => true,
            // one that `rm` or `mkdir` has left
            Some(node) => {
                node.is_group()
                    && !hierarchy.has_stored_group(key)?
                    && self.store().list(key).context(key)?.next().is_none()
            }
        };
        Ok(is_free
            && hierarchy.check_new_name(key).is_ok()
            && hierarchy.is_in_store(&key.parent())?)
    }

    fn check_target(&self, path: &Key, key: &Key) -> Result<()> {
        if self.takes_ingested(path, key)? {
            return Ok(());
        }
        let why = format!("{key} exists, and is no group or array that was such a file");
        Err(Error::new(Kind::System(libc::EEXIST), why))
    }

    pub(super) fn begin_draft(
        &self,
        path: &Key,
        inode: u64,
        permissions: Option<Permissions>,
    ) -> Result<Arc<Draft>> {
        let node = Node::Ingested(path.clone());
        let file = unnamed_file(&self.options.spill.directory)?;
        Ok(self
            .drafts
            .open_encoded(&node, inode, file, false, permissions))
    }

    /// Opens the file at `path`: its draft, if it is being written, or the container of its node.
    pub(super) fn open_ingested(
        &self,
        inode: u64,
        path: &Key,
        for_writing: bool,
        direct: bool,
    ) -> Result<NewFile> {
        let draft = self.drafts.get(path);
        let draft = draft.filter(|draft| for_writing || draft.is_unstored());
        let node = self.tree.ingested(path)?;
        let mut pages = KernelPages::None;
        let shown = match &node {
            Some(node) if draft.is_none() => {
                self.tree.revalidate(node);
                let (file, its) = CompositeFile::open(self, inode, node, for_writing, direct)?;
                pages = its;
                Some(file)
            }
            None if draft.is_none() => return Err(Error::stale()),
            _ => None,
        };
        let file = IngestedFile::new(inode, for_writing, draft, shown);
        Ok(NewFile::new(Arc::new(file), pages))
    }
}

impl Change<'_> {
    /// Sets the length of a file that is open, or of its draft. Returns whether it is either.
    pub(super) fn resize_ingested(
        &self,
        path: &Key,
        size: u64,
        handle: Option<u64>,
    ) -> Result<bool> {
        let file = handle.map(|handle| self.files.get(handle)).transpose()?;
        if let Some(handle) = handle {
            // a successor of the daemon must know that the content differs from the container
            self.record_written(handle);
        }
        let opened = file.as_ref().and_then(|file| file.as_ingested());
        match (opened, self.drafts.get(path)) {
            (Some(opened), _) => opened.resize(self, size).map(|()| true),
            (None, Some(draft)) => draft.set_len(size).map(|()| true),
            (None, None) => Ok(false),
        }
    }

    /// Makes a file the node of its path. Its content must not change meanwhile.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if it describes no node; EEXIST if another node has the name. Nothing has
    /// changed then.
    pub(super) fn store_ingested(&self, path: &Key, file: &File) -> Result<()> {
        let rules = self.tree.ingest.as_deref().ok_or_else(Error::stale)?;
        let target = self.tree.ingest_target(path);
        let (key, format) = target.ok_or_else(Error::stale)?;
        let incoming = Incoming::open(file).context(path)?;
        if !format.may_hold(&incoming) {
            let why = format!("its content is not that of a .{} file", format.id());
            return Err(Error::invalid(why).context(path));
        }
        let is_v3 = self.tree.hierarchy().is_v3(&key.parent())?;
        let layout = IngestLayout {
            format: if is_v3 {
                DocumentFormat::V3
            } else {
                DocumentFormat::V2
            },
            ..rules.layout.clone()
        };
        let ingest = Ingest {
            file,
            incoming: &incoming,
            ending: ending(path),
            layout: &layout,
            scratch: &self.options.spill.directory,
            threads: self.options.threads.max(self.concurrency.min(16)),
            progress: &|_| (),
        };
        self.replace_node(path, &key, Some(&ingest)).context(path)
    }

    /// Makes the file at `path` the node at `key`, in place of the node before. Without a file, an
    /// empty directory remains: `rm -r` removes the directory next.
    fn replace_node(&self, path: &Key, key: &Key, by: Option<&Ingest>) -> Result<()> {
        let hierarchy = self.tree.hierarchy();
        let store = hierarchy.shared_store();
        self.check_target(path, key)?;
        let staged = StagedNode::make(&store, key, by)?;
        let alone = self.arrays.resizing.alone(&[key]);
        self.arrays.flush_below(key)?;
        // another program may have made a node meanwhile
        self.check_target(path, key)?;
        let placed = staged.take_place();
        drop(alone);
        let adopted = placed.and_then(|()| hierarchy.adopt(key));
        self.forget_below(key);
        self.tree.removed(&Node::Directory(key.clone()));
        adopted?;
        store.sync()
    }

    /// Removes the node that the file at `path` shows. Returns whether there was one.
    pub(super) fn remove_ingested(&self, path: &Key) -> Result<bool> {
        if self.tree.ingested(path)?.is_none() {
            return Ok(false);
        }
        let target = self.tree.ingest_target(path);
        let (key, _) = target.ok_or_else(Error::stale)?;
        self.replace_node(path, &key, None)?;
        Ok(true)
    }

    /// Renames a file that is a node, or makes a file that gets such a name a node. Returns false
    /// for all other renames.
    ///
    /// # Errors
    ///
    /// EXDEV if a node gets another kind of name: programs then copy the file, and unlink it.
    pub(super) fn rename_ingested(
        &self,
        source: &Node,
        there: Option<&Node>,
        (directory, name): (&Node, &str),
    ) -> Result<bool> {
        if self.tree.ingest.is_none() {
            return Ok(false);
        }
        let to = &directory.path().child(name)?;
        let is_taken = matches!(there, Some(node) if !matches!(node, Node::Ingested(_)));
        let target = self.tree.ingest_target(to).filter(|_| !is_taken);
        let target = match target {
            Some((key, _)) if self.takes_ingested(to, &key)? => Some(key),
            _ => None,
        };
        match (source, target) {
            (Node::Ingested(from), Some(key)) => {
                let old = self.tree.ingest_target(from);
                let (old, _) = old
                    .filter(|_| ending(from) == ending(to))
                    .ok_or(Error::system(libc::EXDEV))?;
                if self.tree.ingested(from)?.is_some() {
                    self.move_node(&old, &key, to)?;
                }
                let new = Node::Ingested(to.clone());
                self.drafts.renamed(from, &new);
                self.tree.renamed(source, &new);
                Ok(true)
            }
            (Node::Ingested(_), None) => Err(Error::system(libc::EXDEV)),
            (Node::Value(from), Some(_)) => {
                if let Some(draft) = self.drafts.get(from) {
                    self.flush_draft(&draft)?;
                }
                let file = match self.store().file(from)? {
                    Some((file, _)) => file,
                    None => self.arrays.copy_of(from)?,
                };
                self.store_ingested(to, &file).map_err(|e| {
                    self.stats.problem(format!("{from} can't become {e}"));
                    Error::new(Kind::System(libc::EPERM), e.message())
                })?;
                self.drafts.forget(to);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Renames a node in place of the one at `to`, which the file `shown` shows.
    fn move_node(&self, from: &Key, to: &Key, shown: &Key) -> Result<()> {
        if self.tree.hierarchy().find(to)?.is_some() {
            self.replace_node(shown, to, None)?;
        }
        let _alone = self.arrays.resizing.alone(&[from, to]);
        self.arrays.flush_below(from)?;
        self.tree.hierarchy().rename(from, to)?;
        [from, to].iter().for_each(|key| self.forget_below(key));
        let [from, to] = [from, to].map(|key| Node::Directory(key.clone()));
        self.tree.renamed(&from, &to);
        Ok(())
    }

    /// Puts the bytes of a draft that cannot become a node beside it, and says so in one line.
    pub(super) fn keep_refused(&self, draft: &Draft) {
        let path = draft.node().path();
        let kept = path.parent().join(&format!("{}{REFUSED}", path.name()));
        let mut content = draft.lock();
        let Some(why) = content.refused.take() else {
            return;
        };
        content.changed = false;
        let len = content.len;
        let put = match &mut content.text {
            DraftBytes::File(file) => file.flushed().and_then(|file| {
                let pieces = [ValuePiece::File(file, 0..len)];
                self.store().put_pieces(&kept, &pieces, Replaces::Anything)
            }),
            DraftBytes::Memory { bytes, .. } => self.store().put(&kept, bytes).map(Some),
        };
        self.stats.problem(match put {
            Ok(_) => format!("not stored: {why}; its bytes are in {kept}"),
            Err(e) => format!("not stored: {why}; its bytes are lost: {kept}: {e}"),
        });
    }
}
