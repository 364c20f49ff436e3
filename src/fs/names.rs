//! Names that are made and removed, and what is neither flat bytes nor a chunk while it is written: drafts, which are
//! checked and stored when they are closed, and plain keys, which are written in place where they are files.

use super::draft::Draft;
use super::{Fs, Handle, KernelPages, Opened, PlainFile};
use crate::array::Array;
use crate::array::hierarchy::MetadataFile;
use crate::error::{Error, Kind, Result};
use crate::fs::tree::{Attributes, CONTROL, FLAT, Node, Target};
use crate::store::{Key, Permissions, Replaces, Space};
use crate::zarr::grid::ChunkId;
use crate::zarr::metadata::{MAX_DOCUMENT, ZGROUP};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::SystemTime;

/// Bytes that a chunk of objects may have while it is written: blosc's own limit, in bytes.
const MAX_OBJECTS: u64 = (1 << 31) - 1;

/// Bytes that a plain key may have while it is written, where values are no files: it is in memory till it is closed.
const MAX_PLAIN: u64 = 1 << 30;

/// What is before the name of a user attribute in the name of its extended attribute.
const ATTRIBUTE: &str = "user.zarr.attrs.";

impl Fs {
    /// A directory, by its inode number, and a name in it, as the tree knows the two.
    pub(super) fn place(&self, parent: u64, name: &str) -> Result<(Arc<Node>, String)> {
        Ok(self.tree.canonical(self.tree.node(parent)?, name))
    }

    /// What `name` is in the directory `parent`, also of a draft that was not stored yet.
    pub(super) fn find(&self, parent: &Node, name: &str) -> Result<Option<(Node, Attributes)>> {
        let Node::Directory(key) = parent else { return self.tree.lookup(parent, name) };
        if let Some(draft) = self.drafts.get(&key.child(name)?)
            && let Some(attributes) = self.of_changed(&draft)
        {
            return Ok(Some((draft.node(), attributes)));
        }
        if self.is_unsettled(parent, Some(name)) {
            self.settle(key, Some(name));
        }
        match self.tree.lookup(parent, name) {
            Ok(None) => {
                let node = Node::Chunk(key.clone(), name.to_string());
                Ok(self.of_created(&node).map(|attributes| (node, attributes)))
            }
            // a header that can't be made must not be missing without a word
            Err(e) if self.tree.is_header_name(name) && ![libc::ESTALE, libc::ENOENT].contains(&e.errno()) => {
                self.stats.problem(format!("{}: is not shown: {e}", key.join(name)));
                Err(e)
            }
            found => found,
        }
    }

    /// What `stat` tells of a file that is being written, or was removed while it is open; None of any other.
    pub(super) fn attributes_while_open(&self, inode: u64) -> Option<Attributes> {
        match self.tree.node(inode) {
            Ok(node) => {
                let draft = self.drafts.get(&node.path()).and_then(|draft| self.of_changed(&draft));
                draft.or_else(|| self.of_created(&node))
            }
            Err(_) => {
                if let Some(draft) = self.removed_draft(inode) {
                    let state = draft.lock();
                    return Some(self.tree.of_file(state.text.len() as u64, state.modified, draft.permissions));
                }
                let metadata = self.removed_file(inode)?.metadata().ok()?;
                let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                let permissions = Permissions::new(metadata.mode(), metadata.uid(), metadata.gid());
                Some(self.tree.of_file(metadata.len(), modified, Some(permissions)))
            }
        }
    }

    /// What `stat` tells of a draft that is not the file's content yet.
    fn of_changed(&self, draft: &Draft) -> Option<Attributes> {
        let state = draft.lock();
        let len = state.text.len() as u64;
        let attributes = state.changed.then(|| self.tree.of_file(len, state.modified, draft.permissions))?;
        Some(Attributes { inode: draft.inode, ..attributes })
    }

    /// Makes a file, or opens the one that is there unless that is an error, for reading and writing. Counts a lookup of
    /// it.
    pub fn create(&self, parent: u64, name: &str, exclusive: bool, truncate: bool) -> Result<(Attributes, Opened)> {
        self.writable()?;
        let (parent, name) = self.place(parent, name)?;
        match self.find(&parent, &name)? {
            Some((Node::Metadata(key, MetadataFile::Group), _)) if exclusive && self.fresh.contains(&key) => {
                self.make_draft(Node::Metadata(key, MetadataFile::Group), MAX_DOCUMENT)
            }
            Some((node, _)) if exclusive && !self.unlinked.create(&node.path()) => Err(Error::system(libc::EEXIST)),
            Some((node, _)) => {
                let inode = self.tree.remember(node);
                let opened = self.open(inode, true, false).and_then(|opened| {
                    if truncate {
                        self.truncate_chunk_file(inode, 0, Some(opened.handle));
                    }
                    let sized = if truncate { self.set_size(inode, 0) } else { self.attributes(inode) };
                    sized.map(|attributes| (attributes, opened.handle)).inspect_err(|_| self.release(opened.handle))?;
                    Ok((self.attributes(inode)?, opened))
                });
                opened.inspect_err(|_| self.tree.forget(inode, 1))
            }
            None => self.make(self.tree.target(&parent, &name)?, &name, exclusive),
        }
    }

    fn make(&self, target: Target, name: &str, exclusive: bool) -> Result<(Attributes, Opened)> {
        match target {
            Target::Document(key, file) => self.make_draft(Node::Metadata(key, file), MAX_DOCUMENT),
            Target::Flat(_) => Err(Error::system(libc::EEXIST)),
            Target::Chunk(array, _) => {
                array.writable()?;
                if array.metadata().has_objects() {
                    let node = Node::Chunk(array.key().clone(), name.to_string());
                    return self.make_draft(node, MAX_OBJECTS);
                }
                let (file, attributes) = self.create_chunk(array, name);
                Ok((attributes, self.opened(Handle::Chunk(file), KernelPages::None)))
            }
            Target::Plain(key) if self.tree.is_header_name(name) && self.fresh.contains(&key.parent()) => {
                // a copy of an array that is being made: see `Tree::target` of flat bytes
                let why = "headers come with the array: write its .zarray first";
                Err(Error::new(Kind::System(libc::EPERM), why).context(key))
            }
            Target::Plain(key) => {
                let store = self.tree.hierarchy().store();
                let file = match store.writable_file(&key, true, exclusive) {
                    Err(e) if e.kind() == Kind::Unsupported => return self.make_plain(key, exclusive),
                    file => file.map_err(|e| e.context(&key))?,
                };
                let inode = self.tree.remember(Node::Value(key));
                let handle = Handle::Plain(PlainFile::new(inode, Some(file)));
                let attributes = self.attributes(inode).inspect_err(|_| self.tree.forget(inode, 1))?;
                Ok((attributes, self.opened(handle, KernelPages::Fresh)))
            }
        }
    }

    fn make_draft(&self, node: Node, limit: u64) -> Result<(Attributes, Opened)> {
        let inode = self.tree.remember(node.clone());
        let draft = self.drafts.open(&node, inode, None, limit)?;
        let attributes = self.tree.of_file(draft.lock().text.len() as u64, SystemTime::now(), draft.permissions);
        Ok((Attributes { inode, ..attributes }, self.opened(Handle::Draft(draft), KernelPages::None)))
    }

    /// A new plain key where values are no files. An exclusive one is there at once, or two machines would both take
    /// themselves for its maker.
    fn make_plain(&self, key: Key, exclusive: bool) -> Result<(Attributes, Opened)> {
        let store = self.tree.hierarchy().store();
        if exclusive && store.put_if(&key, &[], Replaces::Nothing).map_err(|e| e.context(&key))?.is_none() {
            return Err(Error::system(libc::EEXIST));
        }
        self.make_draft(Node::Value(key), MAX_PLAIN)
    }

    fn opened(&self, handle: Handle, pages: KernelPages) -> Opened {
        Opened { has_other_writers: false, handle: self.insert(handle), pages, backing: None }
    }

    /// True for flat bytes, headers and chunks, but those of objects.
    pub(super) fn has_fixed_size(&self, node: &Node) -> Result<bool> {
        Ok(match node {
            Node::Flat(_) | Node::Header(..) | Node::Dataset(_) => true,
            Node::Chunk(key, _) => !self.tree.array(key)?.metadata().has_objects(),
            _ => false,
        })
    }

    /// Returns whether a thread may set the mode of a file, to no effect: of a plain key, and of a file that it has just
    /// created, since `install` and rsync give such a file a mode of its own.
    pub fn takes_any_mode(&self, inode: u64, thread: u32) -> bool {
        self.tree.node(inode).is_ok_and(|node| {
            matches!(*node, Node::Value(_))
                || self.chunk_drafts.is_created(&node.path())
                || self.unlinked.is_created_by(&node.path(), thread)
        })
    }

    /// A new handle of a file that is no flat bytes and no chunk of fixed size, to write it.
    pub(super) fn open_to_write(&self, inode: u64, node: &Node) -> Result<(Handle, KernelPages)> {
        let stale = || Error::system(libc::ESTALE);
        match node {
            Node::Metadata(key, file) => {
                let stored = match self.tree.document(key, *file)? {
                    Some(document) => (document.text.clone(), document.stat.permissions),
                    None => return self.drafts.get(&node.path()).map(in_memory).ok_or_else(stale),
                };
                Ok(in_memory(self.drafts.open(node, inode, Some(stored), MAX_DOCUMENT)?))
            }
            Node::Chunk(key, name) => {
                let (array, chunk) = self.tree.chunk(key, name)?;
                array.writable()?;
                let bytes = self.content(node)?.bytes;
                let permissions = array.stat_chunk(chunk)?.and_then(|stat| stat.permissions);
                Ok(in_memory(self.drafts.open(node, inode, Some((bytes, permissions)), MAX_OBJECTS)?))
            }
            Node::Value(key) => {
                if let Some(draft) = self.drafts.get(key) {
                    return Ok(in_memory(draft));
                }
                self.tree.check_plain(node, key)?;
                let file = self.tree.hierarchy().store().writable_file(key, false, false);
                if file.as_ref().is_err_and(|e| e.kind() == Kind::Unsupported) {
                    let text = self.content_up_to(node, MAX_PLAIN)?.bytes;
                    return Ok(in_memory(self.drafts.open(node, inode, Some((text, None)), MAX_PLAIN)?));
                }
                let file = file.map_err(|e| if e.errno() == libc::ENOENT { stale() } else { e.context(key) })?;
                Ok((Handle::Plain(PlainFile::new(inode, Some(file))), KernelPages::Fresh))
            }
            Node::Directory(_) | Node::ControlDirectory => Err(Error::system(libc::EISDIR)),
            Node::Unreadable(key) => Err(self.tree.unreadable(key)),
            Node::Flat(_) | Node::Header(..) | Node::Dataset(_) | Node::Control(_) => Err(Error::system(libc::EPERM)),
        }
    }

    /// Stores a draft that was changed. What can't be honoured is [`Kind::Invalid`], and the old file stays.
    pub(super) fn flush_draft(&self, draft: &Draft) -> Result<()> {
        let mut state = draft.lock();
        if !state.changed {
            return Ok(());
        }
        let stored = match &draft.node() {
            Node::Metadata(key, file) => self.put_document(key, *file, &state.text),
            // a shell closes what it has not written yet
            Node::Chunk(..) if state.text.is_empty() => {
                Err(Error::invalid("an empty file is no chunk of objects").context(draft.node().path()))
            }
            Node::Chunk(key, name) => {
                self.tree.chunk(key, name).and_then(|(array, chunk)| self.replace_chunk(&array, chunk, &state.text))
            }
            Node::Value(key) => {
                let put = self.tree.hierarchy().store().put(key, &state.text);
                put.map(drop).map_err(|e| e.context(key))
            }
            _ => Ok(()),
        };
        state.changed = stored.is_err();
        state.refused = stored.clone().err();
        stored
    }

    /// To be called when an open draft is closed for good: what was wrong with it goes on record. Not before, since it
    /// may have been closed while it was still written.
    pub(super) fn release_draft(&self, draft: &Draft) {
        if self.flush_draft(draft).is_err()
            && let Some(e) = draft.lock().refused.take()
        {
            self.stats.problem(format!("not stored: {e}"));
        }
    }

    /// Stores a document as a user of the mount has written it.
    pub(super) fn put_document(&self, key: &Key, file: MetadataFile, text: &[u8]) -> Result<()> {
        let _alone = (file == MetadataFile::Array).then(|| self.resizing.alone(&[key]));
        if file == MetadataFile::Array {
            self.store_written(key)?;
        }
        self.tree.hierarchy().put_document(key, file, text)?;
        self.tree.document_changed(key, file, false);
        if matches!(file, MetadataFile::Group | MetadataFile::Array) {
            self.fresh.forget(key);
        }
        self.drop_pages(&Node::Flat(key.clone()));
        Ok(())
    }

    /// Stores what was written to arrays at and below `key`: their metadata is about to change.
    pub(super) fn store_written(&self, key: &Key) -> Result<()> {
        self.cache.flush_where(|array| array.key().relative_to(key).is_some())
    }

    /// Removes a file, for a thread. Flat bytes and headers are there as long as their array: to remove them changes
    /// nothing, but that the thread may create them anew.
    pub fn unlink(&self, parent: u64, name: &str, thread: u32) -> Result<()> {
        self.writable()?;
        let (parent, name) = self.place(parent, name)?;
        let found = self.find(&parent, &name)?;
        let (node, _) = found.ok_or_else(|| Error::not_found("no such file"))?;
        if matches!(node, Node::Flat(_) | Node::Header(..) | Node::Dataset(_)) {
            self.unlinked.add(node.path(), thread);
        }
        self.remove(&node)
    }

    pub(super) fn remove(&self, node: &Node) -> Result<()> {
        let was_draft = self.drafts.forget(&node.path()) | self.chunk_drafts.forget(&node.path());
        let gone = || Error::system(libc::ENOENT);
        match node {
            Node::Flat(_) | Node::Header(..) | Node::Dataset(_) => Ok(()),
            Node::Chunk(key, name) => {
                let (array, chunk) = self.tree.chunk(key, name)?;
                let erased = self.erase_chunk(&array, chunk)?;
                if erased || was_draft { Ok(()) } else { Err(gone()) }
            }
            Node::Metadata(key, file) => {
                if *file == MetadataFile::Array {
                    self.store_written(key)?;
                }
                match self.tree.hierarchy().remove_document(key, *file) {
                    Err(e) if was_draft && e.kind() == Kind::NotFound => {}
                    removed => removed?,
                }
                self.tree.document_changed(key, *file, true);
                if *file == MetadataFile::Group {
                    self.fresh.forget(key);
                }
                Ok(())
            }
            Node::Value(key) | Node::Unreadable(key) => {
                let removed = self.tree.hierarchy().store().delete(key).map_err(|e| e.context(key))?;
                self.tree.removed(node);
                if removed || was_draft { Ok(()) } else { Err(gone()) }
            }
            Node::Directory(_) => Err(Error::system(libc::EISDIR)),
            Node::ControlDirectory | Node::Control(_) => Err(Error::system(libc::EPERM)),
        }
    }

    pub(super) fn erase_chunk(&self, array: &Arc<Array>, chunk: ChunkId) -> Result<bool> {
        let was_written = self.cache.is_written(array, chunk);
        self.guard_chunk(array, chunk);
        // without the chunk's lock: it waits for a write-back, which takes that lock
        self.cache.forget_chunk(array, chunk);
        let erased = array.lock_chunk(chunk).and_then(|_lock| array.erase(chunk));
        // who has read it meanwhile must not keep it
        self.cache.forget_chunk(array, chunk);
        Ok(erased? || was_written)
    }

    /// Returns whether the thread `who` is not to find `name`, though it is there: see `fresh` and `unlinked`.
    pub fn hides(&self, parent: u64, name: &str, who: u32) -> bool {
        self.tree.node(parent).is_ok_and(|parent| match &*parent {
            Node::Directory(key) if name == ZGROUP => self.fresh.hides(key, who),
            Node::Directory(key) => key.child(name).is_ok_and(|path| self.unlinked.hides(&path, who)),
            _ => false,
        })
    }

    /// Makes a directory, which is a group, for the process `maker`. Counts a lookup of it.
    pub fn make_directory(&self, parent: u64, name: &str, maker: u32) -> Result<Attributes> {
        self.writable()?;
        let parent = self.tree.node(parent)?;
        let Node::Directory(above) = &*parent else { return Err(Error::system(libc::EPERM)) };
        if above.is_root() && name == CONTROL {
            return Err(Error::system(libc::EEXIST));
        }
        let key = above.child(name)?;
        if !self.tree.make_level(&key)? {
            self.tree.hierarchy().create_group(&key)?;
            self.tree.document_changed(&key, MetadataFile::Group, false);
            self.fresh.made(key.clone(), maker);
        }
        let node = Node::Directory(key);
        let attributes = self.tree.attributes(&node)?;
        Ok(Attributes { inode: self.tree.remember(node), ..attributes })
    }

    /// Removes a directory: a group or an array with nothing left in it.
    pub fn remove_directory(&self, parent: u64, name: &str) -> Result<()> {
        self.writable()?;
        let (parent, name) = self.place(parent, name)?;
        let found = self.find(&parent, &name)?;
        match found.map(|(node, _)| node) {
            None => Err(Error::system(libc::ENOENT)),
            Some(Node::Directory(key)) => {
                let _alone = self.resizing.alone(&[&key]);
                self.check_empty(&key)?;
                self.tree.hierarchy().remove_node(&key)?;
                self.forget_below(&key);
                self.tree.removed(&Node::Directory(key));
                Ok(())
            }
            Some(Node::ControlDirectory) => Err(Error::system(libc::EPERM)),
            Some(_) => Err(Error::system(libc::ENOTDIR)),
        }
    }

    /// What is known of files below `key` is of those that were there.
    pub(super) fn forget_below(&self, key: &Key) {
        self.drafts.forget_below(key);
        self.resizing.forget_below(key);
        self.unlinked.forget_below(key);
        self.fresh.forget(key);
    }

    /// ENOTEMPTY if a directory shows anything but what comes and goes with it: whoever removes it without looking, as
    /// Python's `os.renames` does, must not take attributes along.
    pub(super) fn check_empty(&self, key: &Key) -> Result<()> {
        // a chunk that is not stored yet is one, too
        self.store_written(key)?;
        for name in self.tree.names(&Node::Directory(key.clone()))? {
            let name = name?.name;
            if ![ZGROUP, FLAT].contains(&name.as_str()) && !self.tree.comes_with(key, &name) {
                return Err(Error::system(libc::ENOTEMPTY).context(key));
            }
        }
        Ok(())
    }

    /// Sets the size of a draft or a plain key.
    pub(super) fn set_size_of_file(&self, inode: u64, size: u64) -> Result<Attributes> {
        let node = match self.tree.node(inode) {
            Ok(node) => node,
            Err(e) => {
                match self.removed_draft(inode) {
                    Some(draft) => draft.set_size(size)?,
                    None => self.removed_file(inode).ok_or(e)?.set_len(size)?,
                }
                return self.attributes(inode);
            }
        };
        match self.drafts.get(&node.path()) {
            Some(draft) => draft.set_size(size)?,
            None => match self.open_to_write(inode, &node)?.0 {
                Handle::Draft(draft) => {
                    draft.set_size(size)?;
                    self.flush_draft(&draft)?;
                }
                Handle::Plain(PlainFile { file: Some(file), .. }) => file.set_len(size)?,
                _ => return Err(Error::system(libc::EPERM)),
            },
        }
        self.attributes(inode)
    }

    /// Sets or, without a value, removes a user attribute of a group or array by way of an extended attribute. With
    /// `create` it must not be there (EEXIST), with `replace` it must (ENODATA).
    pub fn set_xattr(&self, inode: u64, name: &str, value: Option<&[u8]>, create: bool, replace: bool) -> Result<()> {
        self.writable()?;
        let Some(attribute) = name.strip_prefix(ATTRIBUTE) else {
            let ours = name.starts_with("user.zarr");
            return Err(Error::system(if ours { libc::EPERM } else { libc::EOPNOTSUPP }));
        };
        let node = self.tree.node(inode)?;
        let (Node::Directory(key) | Node::Flat(key) | Node::Header(key, _) | Node::Dataset(key)) = &*node else {
            return Err(Error::system(libc::EPERM));
        };
        let there = self.tree.hierarchy().attributes(key)?.contains_key(attribute);
        if create && there {
            return Err(Error::system(libc::EEXIST));
        }
        if !there && (replace || value.is_none()) {
            return Err(Error::system(libc::ENODATA));
        }
        self.tree.hierarchy().set_attribute(key, attribute, value)?;
        self.tree.document_changed(key, MetadataFile::Attributes, false);
        Ok(())
    }

    /// What room there is for the store; None if it can't tell.
    pub fn space(&self) -> Result<Option<Space>> {
        self.tree.hierarchy().store().space()
    }
}

fn in_memory(draft: Arc<Draft>) -> (Handle, KernelPages) {
    (Handle::Draft(draft), KernelPages::None)
}
