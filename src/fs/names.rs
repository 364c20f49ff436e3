//! Looks up, creates and removes names, and opens drafts and plain keys for writing.

use super::content::FileContent;
use super::files::chunk::ChunkFile;
use super::files::draft::Draft;
use super::files::plain::PlainFile;
use super::files::{NewFile, OpenFile};
use super::{Change, Fs, OpenedFile};
use crate::fs::tree::{Attributes, CONTROL, Node, NodeNature, ROOT_INODE, Target};
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_format::metadata::MAX_DOCUMENT;
use zarrfs_store::{Key, Permissions, Replaces, Space, StoreExt};

/// Maximum size of a chunk of objects while it is written, in bytes: blosc's own limit.
const MAX_OBJECTS: u64 = (1 << 31) - 1;

/// Maximum size of a plain key while it is written to a store without files, in bytes: it is kept
/// in memory.
pub(super) const MAX_PLAIN: u64 = 1 << 30;

/// Maximum number of attempts to open a file that other programs remove and create.
const ATTEMPTS: u32 = 100;

/// The prefix of extended attributes that are user attributes of a group or array.
const ATTRIBUTE: &str = "user.zarr.attrs.";

impl Fs {
    /// Returns the directory with the inode number `parent` and a name in it, in the canonical form
    /// of the tree.
    pub(super) fn place(&self, parent: u64, name: &str) -> Result<(Arc<Node>, String)> {
        if name == CONTROL && parent == ROOT_INODE {
            // send no request, since a server may not answer
            return Ok((Arc::new(Node::Directory(Key::root())), name.to_string()));
        }
        let parent = self.tree.node(parent)?;
        if !parent.is_control() {
            self.tree.record_use();
        }
        Ok(self.tree.canonical(parent, name))
    }

    /// Looks up `name` in the directory `parent`. Finds drafts that are not stored yet, too.
    pub(super) fn find(&self, parent: &Node, name: &str) -> Result<Option<(Node, Attributes)>> {
        let Some(key) = parent.directory() else {
            return self.tree.lookup(parent, name);
        };
        if let Some(draft) = self.drafts.get(&key.child(name)?)
            && let Some(attributes) = draft.attributes(&self.tree)
        {
            return Ok(Some((draft.node(), attributes)));
        }
        if self.arrays.is_unsettled(parent, Some(name)) {
            self.arrays.settle(key, Some(name));
        }
        match self.tree.lookup(parent, name) {
            Ok(None) => {
                let node = Node::Chunk(key.clone(), name.to_string());
                Ok(self
                    .created_chunks
                    .attributes_of(&self.tree, &node)
                    .map(|attributes| (node, attributes)))
            }
            // a header that cannot be made must not be missing without a report of the reason
            Err(e)
                if self.tree.is_header_name(name)
                    && ![libc::ESTALE, libc::ENOENT].contains(&e.errno()) =>
            {
                let line = format!("{}: is not shown: {e}", key.join(name));
                Err(self.stats.met_as(line, e))
            }
            found => found,
        }
    }

    /// Returns the attributes of a file that is being written; `None` for any other file.
    pub(super) fn attributes_while_open(&self, node: &Node) -> Option<Attributes> {
        let draft = self
            .drafts
            .get(&node.path())
            .and_then(|draft| draft.attributes(&self.tree));
        draft.or_else(|| self.created_chunks.attributes_of(&self.tree, node))
    }

    /// Returns an open or kept file with this inode number that has lost its name, and its
    /// attributes.
    pub(super) fn unlinked_file(&self, inode: u64) -> Option<(Arc<dyn OpenFile>, Attributes)> {
        let files = self.files.matching(|file| file.inode() == inode);
        files
            .into_iter()
            .chain(self.lost.kept(inode))
            .find_map(|file| {
                let attributes = Attributes {
                    is_removed: true,
                    ..file.unlinked_attributes(self)?
                };
                Some((file, attributes))
            })
    }

    /// Counts a lookup of `node`, creates or opens its file by `open`, and returns it with the
    /// attributes of that inode number.
    pub(super) fn remembered<T>(
        &self,
        node: &Node,
        open: impl FnOnce(u64) -> Result<(Attributes, T)>,
    ) -> Result<(Attributes, T)> {
        let inode = self.tree.live.remember(node.clone());
        let opened = open(inode).inspect_err(|_| self.tree.live.forget(inode, 1));
        let (attributes, file) = opened?;
        let attributes = Attributes {
            inode,
            ..attributes
        };
        Ok((attributes, file))
    }

    pub(super) fn create_new(
        &self,
        target: Target,
        name: &str,
        exclusive: bool,
        mode: u32,
    ) -> Result<(Attributes, NewFile)> {
        let permissions = match target.stored_key() {
            Some(key) => self.set_next_mode(&key, mode)?,
            None => None,
        };
        if let Target::Plain(path) = &target
            && let Some(created) = self.create_ingested(path, permissions)?
        {
            return Ok(created);
        }
        match target {
            Target::Document(key, file) => {
                self.create_draft(Node::Metadata(key, file), permissions, MAX_DOCUMENT)
            }
            Target::Flat(_) => Err(Error::system(libc::EEXIST)),
            Target::Chunk(array, _) => {
                array.writable()?;
                let node = Node::Chunk(array.key().clone(), name.to_string());
                if array.metadata().has_objects() {
                    return self.create_draft(node, permissions, MAX_OBJECTS);
                }
                self.remembered(&node, |inode| {
                    Ok(ChunkFile::create(self, inode, array, name, permissions))
                })
            }
            Target::Encoded(value) => {
                let node = Node::Value(value.array.stored_key(value.chunk));
                self.remembered(&node, |inode| {
                    let file = self.arrays.encoded_file(&value)?;
                    let draft = self
                        .drafts
                        .open_encoded(&node, inode, file, false, permissions);
                    Ok(draft.created(&self.tree))
                })
            }
            Target::Plain(key) => {
                self.tree.begin_layout_directory(&key.parent())?;
                self.tree.record_early(&key);
                let store = self.store();
                let file = match store.writable_file(&key, true, exclusive) {
                    Err(e) if e.kind() == Kind::Unsupported => {
                        return self.create_plain(key, exclusive, permissions);
                    }
                    file => file.context(&key)?,
                };
                self.remembered(&Node::Value(key), |inode| {
                    let new = PlainFile::open(inode, Some(file));
                    // not those of the name, which another file may take at any time
                    let attributes = new.file.unlinked_attributes(self);
                    Ok((attributes.ok_or_else(Error::stale)?, new))
                })
            }
        }
    }

    fn create_draft(
        &self,
        node: Node,
        permissions: Option<Permissions>,
        limit: u64,
    ) -> Result<(Attributes, NewFile)> {
        self.remembered(&node, |inode| {
            let draft = self.drafts.open(&node, inode, None, permissions, limit)?;
            Ok(draft.created(&self.tree))
        })
    }

    /// Creates a plain key in a store without files. An exclusive one is stored immediately, or two
    /// machines would both believe that they have created it.
    fn create_plain(
        &self,
        key: Key,
        exclusive: bool,
        permissions: Option<Permissions>,
    ) -> Result<(Attributes, NewFile)> {
        let store = self.store();
        if exclusive
            && store
                .put_if(&key, &[], Replaces::Nothing)
                .context(&key)?
                .is_none()
        {
            return Err(Error::system(libc::EEXIST));
        }
        self.create_draft(Node::Value(key), permissions, MAX_PLAIN)
    }

    /// Opens a file without a fixed size for writing.
    pub(super) fn open_to_write(&self, inode: u64, node: &Node) -> Result<NewFile> {
        match node {
            Node::Metadata(key, file) => {
                let (stored, permissions) = match self.tree.document(key, *file)? {
                    Some(document) => (document.text.clone(), document.stat.permissions),
                    None => {
                        return self
                            .drafts
                            .get(&node.path())
                            .map(Draft::opened)
                            .ok_or_else(Error::stale);
                    }
                };
                Ok(self
                    .drafts
                    .open(node, inode, Some(stored), permissions, MAX_DOCUMENT)?
                    .opened())
            }
            Node::Chunk(key, name) => {
                let (array, chunk) = self.tree.chunk(key, name)?;
                array.writable()?;
                let bytes = FileContent::read(&self.arrays, node)?.bytes;
                let permissions = array.stat_chunk(chunk)?.and_then(|stat| stat.permissions);
                Ok(self
                    .drafts
                    .open(node, inode, Some(bytes), permissions, MAX_OBJECTS)?
                    .opened())
            }
            Node::Value(key) => {
                if let Some(draft) = self.drafts.get(key) {
                    return Ok(draft.opened());
                }
                self.tree.check_plain(node, key)?;
                if let Some(value) = self.tree.encoded_value(key)? {
                    let stat = self.tree.find_stat(key)?;
                    let permissions = stat.and_then(|stat| stat.permissions);
                    let file = self.arrays.encoded_file(&value)?;
                    return Ok(self
                        .drafts
                        .open_encoded(node, inode, file, true, permissions)
                        .opened());
                }
                let file = self.store().writable_file(key, false, false);
                if file.as_ref().is_err_and(|e| e.kind() == Kind::Unsupported) {
                    let text = FileContent::read_up_to(&self.arrays, node, MAX_PLAIN)?.bytes;
                    return Ok(self
                        .drafts
                        .open(node, inode, Some(text), None, MAX_PLAIN)?
                        .opened());
                }
                let file = file.map_err(|e| {
                    if e.errno() == libc::ENOENT {
                        Error::stale()
                    } else {
                        e.context(key)
                    }
                })?;
                Ok(PlainFile::open(inode, Some(file)))
            }
            Node::Unreadable(key) => Err(self.tree.unreadable(key)),
            _ if node.is_directory() => Err(Error::system(libc::EISDIR)),
            _ => Err(Error::system(libc::EPERM)),
        }
    }

    /// Creates a directory: see
    /// [`Hierarchy::make_directory`](crate::array::hierarchy::Hierarchy::make_directory). Counts a
    /// lookup of it.
    pub fn make_directory(&self, parent: u64, name: &str, mode: u32) -> Result<Attributes> {
        self.writable()?;
        let parent = self.tree.node(parent)?;
        let above = parent.directory();
        let above = above.ok_or_else(|| Error::system(libc::EPERM))?;
        if above.is_root() && name == CONTROL {
            return Err(Error::system(libc::EEXIST));
        }
        let key = above.child(name)?;
        if self.tree.is_view_name(name) {
            let why = "a directory of this name comes with an array, as the mount shows views; choose another name";
            return Err(Error::new(Kind::System(libc::EPERM), why).context(key));
        }
        if !self.tree.make_level(&key)? {
            self.set_next_mode(&key, mode)?;
            self.tree.hierarchy().make_directory(&key)?;
        }
        let node = Node::Directory(key);
        let attributes = self.tree.attributes(&node)?;
        Ok(Attributes {
            inode: self.tree.live.remember(node),
            ..attributes
        })
    }

    /// Removes a directory: a group or an array with nothing left in it.
    pub fn remove_directory(&self, parent: u64, name: &str) -> Result<()> {
        self.writable()?;
        let (parent, name) = self.place(parent, name)?;
        let found = self.find(&parent, &name)?;
        let (node, _) = found.ok_or_else(|| Error::system(libc::ENOENT))?;
        let Some(key) = node.directory() else {
            return match node.nature() {
                // it exists as long as its array, so that a tree can be removed
                NodeNature::ViewDirectory => Ok(()),
                NodeNature::Control if node.is_directory() => Err(Error::system(libc::EPERM)),
                _ => Err(Error::system(libc::ENOTDIR)),
            };
        };
        // it exists as long as its arrays, so that a tree can be removed
        if self.tree.is_layout_directory(key) && self.tree.find_stat(key)?.is_none() {
            return Ok(());
        }
        self.change().losing(&node, || {
            let _alone = self.arrays.resizing.alone(&[key]);
            self.arrays.check_empty(key)?;
            // removed chunks may still be in their objects
            self.arrays.flush_below(key)?;
            self.tree.hierarchy().remove_node(key)?;
            self.forget_below(key);
            self.tree.removed(&node);
            Ok(())
        })
    }

    /// Forgets all records of files at and below `key`, because they were removed or renamed.
    pub(super) fn forget_below(&self, key: &Key) {
        self.drafts.forget_below(key);
        self.arrays.resizing.forget_below(key);
        self.absent.forget_below(key);
        self.tree.early.forget_below(key);
    }

    /// Sets or, without a value, removes a user attribute of a group or array through an extended
    /// attribute.
    ///
    /// # Errors
    ///
    /// EEXIST if it exists and `create` is set; ENODATA if it does not exist and `replace` is set
    /// or there is no value.
    pub fn set_xattr(
        &self,
        inode: u64,
        name: &str,
        value: Option<&[u8]>,
        create: bool,
        replace: bool,
    ) -> Result<()> {
        self.writable()?;
        let Some(attribute) = name.strip_prefix(ATTRIBUTE) else {
            let ours = name.starts_with("user.zarr");
            return Err(Error::system(if ours {
                libc::EPERM
            } else {
                libc::EOPNOTSUPP
            }));
        };
        let node = self.tree.node(inode)?;
        let described = node.described().filter(|_| node.chunk().is_none());
        let key = described.ok_or_else(|| Error::system(libc::EPERM))?;
        let exists = self
            .tree
            .hierarchy()
            .attributes(key)?
            .contains_key(attribute);
        if create && exists {
            return Err(Error::system(libc::EEXIST));
        }
        if !exists && (replace || value.is_none()) {
            return Err(Error::system(libc::ENODATA));
        }
        self.tree.hierarchy().set_attribute(key, attribute, value)?;
        self.tree.document_changed();
        Ok(())
    }

    /// Returns the space of the store; `None` if the store does not know it.
    pub fn space(&self) -> Result<Option<Space>> {
        self.store().space()
    }
}

impl Change<'_> {
    /// Creates a file, or opens an existing one unless `exclusive`, for reading and writing. Counts
    /// a lookup of it.
    pub fn create(
        &self,
        parent: u64,
        name: &str,
        exclusive: bool,
        truncate: bool,
        mode: u32,
    ) -> Result<(Attributes, OpenedFile)> {
        self.writable()?;
        let (parent, name) = self.place(parent, name)?;
        self.tree
            .hierarchy()
            .check_not_archived(&parent.path().child(&name)?)?;
        // other programs may remove the file, and create it anew
        let mut attempts = 0..ATTEMPTS;
        while let Some((node, _)) = self.find(&parent, &name)? {
            // the next lookup may find the file under another name
            let was_removed = self.absent.unlinked.remove(&node.path());
            if exclusive && !was_removed {
                return Err(Error::system(libc::EEXIST));
            }
            match self.open_existing(&node, truncate || exclusive) {
                Err(e) if e.errno() == libc::ESTALE && attempts.next().is_some() => {}
                opened => return opened,
            }
        }
        let path = parent.path().child(&name)?;
        self.absent.unlinked.remove(&path);
        let _opening = self.lost.opening(&path);
        let target = self.tree.target(&parent, &name)?;
        let (attributes, new) = self.create_new(target, &name, exclusive, mode)?;
        let is_chunk = new.file.as_chunk().is_some();
        let opened = self.insert(new);
        Ok((
            if is_chunk {
                self.truncations.created(opened.handle, attributes)
            } else {
                attributes
            },
            opened,
        ))
    }

    fn open_existing(&self, node: &Node, truncate: bool) -> Result<(Attributes, OpenedFile)> {
        self.remembered(node, |inode| {
            let opened = self.open(inode, true, false)?;
            let sized = if truncate {
                self.set_size(inode, 0, Some(opened.handle)).map(drop)
            } else {
                Ok(())
            };
            let attributes = sized.and_then(|()| self.attributes(inode));
            Ok((
                attributes.inspect_err(|_| self.release(opened.handle))?,
                opened,
            ))
        })
    }

    /// Removes a file for a thread. Flat bytes and headers exist as long as their array: their
    /// removal changes nothing, except that the thread may create them anew.
    pub fn unlink(&self, parent: u64, name: &str) -> Result<()> {
        self.writable()?;
        let (parent, name) = self.place(parent, name)?;
        let found = self.find(&parent, &name)?;
        let (node, _) = found.ok_or_else(|| Error::not_found("no such file"))?;
        if node.is_generated() && !matches!(node, Node::Ingested(_)) {
            self.absent.unlinked.add(&node.path());
        }
        self.record_unlinking(self.tree.inode(&node));
        self.losing(&node, || match node.chunk() {
            Some(_) => self.unlink_chunk(&node),
            None => self.remove(&node),
        })
    }

    pub(super) fn remove(&self, node: &Node) -> Result<()> {
        let was_draft = self.drafts.forget(&node.path()) | self.created_chunks.forget(&node.path());
        let was_stored = match node {
            Node::Ingested(path) => {
                let removed = self.remove_ingested(path)?;
                self.tree.removed(node);
                removed
            }
            _ if node.is_generated() => return Ok(()),
            Node::Chunk(key, name) => {
                let (array, chunk) = self.tree.stored_chunk(key, name)?;
                // the array's shape and key must not change before the chunk is handed over as
                // erased
                let _writing = self.arrays.resizing.writing_to(&array)?;
                let erased = self.writer.erase_chunk(&array, chunk)?;
                if self.tree.chunk(key, name).is_err() {
                    // no file of the array stores what lies outside of it
                    array.store_objects()?;
                }
                erased
            }
            Node::Metadata(key, file) => {
                if self.tree.changes_array(key, *file)? {
                    self.arrays.flush_below(key)?;
                }
                match self.tree.hierarchy().remove_document(key, *file) {
                    Err(e) if was_draft && e.kind() == Kind::NotFound => {}
                    removed => removed?,
                }
                self.tree.document_changed();
                return Ok(());
            }
            Node::Value(key) | Node::Unreadable(key) => {
                let removed = match self.tree.encoded_value(key) {
                    Ok(Some(value)) => self.writer.erase_encoded(&value)?,
                    _ => self.store().delete(key).context(key)?,
                };
                self.tree.removed(node);
                self.tree.end_layout_directory(&key.parent());
                removed
            }
            _ if node.is_control() => return Err(Error::system(libc::EPERM)),
            _ => return Err(Error::system(libc::EISDIR)),
        };
        if was_stored || was_draft {
            Ok(())
        } else {
            Err(Error::system(libc::ENOENT))
        }
    }

    /// Sets the size of a file in bytes, through the open file `handle` if there is one.
    ///
    /// # Errors
    ///
    /// EFBIG if a fixed size would have to grow.
    pub fn set_size(&self, inode: u64, size: u64, handle: Option<u64>) -> Result<Attributes> {
        self.writable()?;
        let node = self.tree.node(inode);
        match node.and_then(|node| self.set_size_of(inode, &node, size, handle)) {
            // the file may have lost its name
            Err(e) if e.errno() == libc::ESTALE => {
                self.unnamed_file(inode, handle).ok_or(e)?.set_len(size)?;
            }
            sized => sized?,
        }
        if let Some(handle) = handle
            && let Ok(file) = self.files.get(handle)
        {
            self.record_held(handle, &*file);
        }
        self.attributes(inode)
    }

    fn set_size_of(&self, inode: u64, node: &Node, size: u64, handle: Option<u64>) -> Result<()> {
        if let Node::Ingested(path) = node
            && self.resize_ingested(path, size, handle)?
        {
            return Ok(());
        }
        if self.tree.has_fixed_size(node)? {
            return self.truncate_file(inode, node, size, handle);
        }
        if let Some(draft) = self.drafts.get(&node.path()) {
            // a successor of the daemon opens the file with its former content
            if let Some(handle) = handle {
                self.record_written(handle);
            }
            return draft.set_len(size);
        }
        let file = self.open_to_write(inode, node)?.file;
        file.set_len(size)?;
        file.flush(self)
    }

    /// Returns the open file `handle`, or any open file of the inode without a handle. Its content
    /// outlives its name.
    fn unnamed_file(&self, inode: u64, handle: Option<u64>) -> Option<Arc<dyn OpenFile>> {
        match handle {
            Some(handle) => {
                let opened = self.files.get(handle).ok();
                opened.filter(|file| file.unlinked_attributes(self).is_some())
            }
            None => self.unlinked_file(inode).map(|(file, _)| file),
        }
    }
}
