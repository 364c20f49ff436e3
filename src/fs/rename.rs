//! Renames files and directories. A file changes its form if the new name requires it: a plain key
//! that is renamed to a chunk is encoded, one that is renamed to a document is checked. The content
//! is durable under the new name before the old name is removed.

use super::content::FileContent;
use super::files::OpenFile;
use super::files::composite::CompositeFile;
use super::write::WriteMode;
use super::{Change, Fs};
use crate::fs::tree::{Attributes, CONTROL, Node, NodeNature, Target, is_partial};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_export::{GroupFormat, MAX_TEXT};
use zarrfs_format::metadata::MAX_DOCUMENT;
use zarrfs_store::{FileAttribute, Key, Replaces, StoreExt};

impl Fs {
    fn rename_directory(&self, from: &Key, to_directory: &Node, name: &str) -> Result<()> {
        let above = to_directory.directory();
        let above = above.ok_or_else(|| Error::system(libc::EPERM))?;
        if above.is_root() && name == CONTROL
            || self.tree.is_level(from)
            || self.tree.is_view_name(name)
            || self.tree.is_layout_directory(from)
        {
            return Err(Error::system(libc::EPERM));
        }
        let to = above.child(name)?;
        let _alone = self.arrays.resizing.alone(&[from, &to]);
        self.arrays.flush_below(from)?;
        self.tree.hierarchy().rename(from, &to)?;
        self.forget_below(from);
        self.forget_below(&to);
        self.tree
            .renamed(&Node::Directory(from.clone()), &Node::Directory(to));
        Ok(())
    }
}

impl Change<'_> {
    /// Renames `from` to `to`, each a directory's inode number and a name in it. A file at `to` is
    /// replaced, as rename(2) does.
    ///
    /// # Errors
    ///
    /// EEXIST if there is a file at `to` and `keep` is set; EINVAL, with nothing changed, if the
    /// file cannot take the form that the new name requires.
    pub fn rename(&self, from: (u64, &str), to: (u64, &str), keep: bool) -> Result<()> {
        self.writable()?;
        let (from_directory, from) = self.place(from.0, from.1)?;
        let (to_directory, to) = self.place(to.0, to.1)?;
        let (source, _) = self
            .find(&from_directory, &from)?
            .ok_or_else(|| Error::system(libc::ENOENT))?;
        let there = self.find(&to_directory, &to)?.map(|(node, _)| node);
        match &there {
            Some(_) if keep => return Err(Error::system(libc::EEXIST)),
            Some(node) if *node == source => return Ok(()),
            _ => {}
        }
        if self.rename_ingested(&source, there.as_ref(), (&to_directory, &to))? {
            return match source.value() {
                Some(_) => MovedNode::new(self, &source).forget_moved(),
                None => Ok(()),
            };
        }
        let source = MovedNode::new(self, &source);
        match &there {
            Some(node) => self.losing(node, || source.to(there.as_ref(), &to_directory, &to)),
            None => source.to(None, &to_directory, &to),
        }
    }

    /// Links a file under the name of a chunk or document, or a `.partial` file under any name:
    /// copies its content there, and counts a lookup of the new name. zarr-python 3 makes such
    /// links, and then removes the file.
    ///
    /// # Errors
    ///
    /// EPERM for any other link: a program would expect that writes through one name appear under
    /// the other.
    pub fn link(&self, inode: u64, parent: u64, name: &str) -> Result<Attributes> {
        self.writable()?;
        let (source, (parent, name)) = (self.tree.node(inode)?, self.place(parent, name)?);
        if self.find(&parent, &name)?.is_some() {
            return Err(Error::system(libc::EEXIST));
        }
        let moved = MovedNode::new(self, &source);
        moved.store_draft()?;
        match (source.value(), self.tree.target(&parent, &name)?) {
            (Some(_), target @ (Target::Chunk(..) | Target::Document(..) | Target::Encoded(_))) => {
                moved.store_as(&target)?;
            }
            (Some(from), Target::Plain(to)) if is_partial(from.name()) => {
                let put = self.store().put_if(
                    &to,
                    &FileContent::read(&self.arrays, &source)?,
                    Replaces::Nothing,
                );
                put.context(&to)?
                    .ok_or_else(|| Error::system(libc::EEXIST))?;
            }
            _ => return Err(Error::system(libc::EPERM)),
        }
        let (node, attributes) = self
            .find(&parent, &name)?
            .ok_or_else(|| Error::system(libc::ENOENT))?;
        Ok(Attributes {
            inode: self.tree.live.remember(node),
            ..attributes
        })
    }

    /// Writes a file over a header or container, and stores it.
    ///
    /// # Errors
    ///
    /// EPERM if the file cannot become the container. It is not EINVAL, which mv reports as a
    /// directory that is moved below itself.
    pub(super) fn copy_onto(&self, from: &Key, to: &Node) -> Result<()> {
        let (open, _) = CompositeFile::open(self, self.tree.inode(to), to, true, false)?;
        if open.is_text() {
            let path = to.path();
            // the documents that it is made of follow
            if self.absent.copies.has_made(&path.parent()) && is_made_by_rsync(from, &path) {
                return Ok(());
            }
            let text = self.tree.stat(from)?.size.min(MAX_TEXT as u64);
            open.set_whole_len(0)?;
            self.arrays.in_pieces(from, 0..text, |at, piece| {
                open.write_all(self, at, piece, WriteMode::internal())
            })?;
            return open.flush(self);
        }
        if matches!(to.container(), Some((_, GroupFormat::Netcdf))) {
            return open.replace(self, from).map_err(|e| e.context(to.path()));
        }
        let size = self.tree.attributes(&Node::Value(from.clone()))?.size;
        let wanted = self.tree.attributes(to)?.size;
        if size != wanted {
            let why = format!("{size} bytes can't become a file of {wanted}");
            return Err(Error::new(Kind::System(libc::EPERM), why).context(to.path()));
        }
        self.arrays.in_pieces(from, 0..size, |at, piece| {
            open.write_all(self, at, piece, WriteMode::internal())
        })?;
        open.flush(self)
    }
}

/// A file or directory that gets another name or form.
struct MovedNode<'a> {
    fs: &'a Change<'a>,
    source: &'a Node,
}

impl<'a> MovedNode<'a> {
    fn new(fs: &'a Change<'a>, source: &'a Node) -> Self {
        MovedNode { fs, source }
    }

    /// Renames the source to the name `to` of a directory, which `there` has.
    fn to(&self, there: Option<&Node>, to_directory: &Node, to: &str) -> Result<()> {
        let mut both = there.into_iter().chain([self.source]);
        // a view exists as long as its array
        if both.any(|node| node.nature() == NodeNature::ViewDirectory) {
            return Err(Error::system(libc::EPERM));
        }
        if let Some(key) = self.source.directory() {
            if let Some(there) = there {
                let old = there.directory();
                self.fs
                    .arrays
                    .check_empty(old.ok_or_else(|| Error::system(libc::ENOTDIR))?)?;
            }
            return self.fs.rename_directory(key, to_directory, to);
        }
        match (self.source.value(), there) {
            (_, Some(there)) if there.directory().is_some() => Err(Error::system(libc::EISDIR)),
            (Some(from), Some(there)) if there.is_composite() && there.view().is_none() => {
                self.rename_onto(from, there)
            }
            _ if self.source.nature() == NodeNature::Stored => {
                self.rename_file(self.fs.tree.target(to_directory, to)?, there)
            }
            // flat bytes exist as long as their array
            _ => Err(Error::system(libc::EPERM)),
        }
    }

    /// Renames the plain key `from` to a header or container.
    fn rename_onto(&self, from: &Key, to: &Node) -> Result<()> {
        self.store_draft()?;
        match self.fs.copy_onto(from, to) {
            Err(e) if self.is_early(from, to, &e) => self.rename_early(to),
            copied => {
                copied.map_err(|e| self.refused(to, e))?;
                self.forget_moved()
            }
        }
    }

    /// Returns whether a file that cannot become `to` may be one that a program copies before the
    /// arrays that it shows.
    fn is_early(&self, from: &Key, to: &Node, e: &Error) -> bool {
        let path = to.path();
        [libc::EPERM, libc::EINVAL, libc::EFBIG].contains(&e.errno())
            && (self.fs.tree.is_empty_container(to) && !is_temporary(from, &path)
                || self.fs.absent.copies.has_made(&path.parent()) && is_made_by_rsync(from, &path))
    }

    /// Renames a file to what is a plain key until the mount shows the same file.
    fn rename_early(&self, to: &Node) -> Result<()> {
        self.fs.tree.early.add(&to.path());
        self.rename_file(Target::Plain(to.path()), None)
    }

    fn rename_file(&self, target: Target, there: Option<&Node>) -> Result<()> {
        self.store_draft()?;
        if let (Some(from), Target::Plain(to)) = (self.source.value(), &target)
            && !matches!(self.fs.tree.encoded_value(from), Ok(Some(_)))
        {
            let new = Node::Value(to.clone());
            self.fs.tree.hierarchy().rename(from, to)?;
            self.fs.drafts.renamed(from, &new);
            self.fs.tree.renamed(self.source, &new);
            self.fs.tree.record_early(to);
            return Ok(());
        }
        self.store_as(&target)?;
        if let (Target::Plain(_), Some(old)) = (&target, there) {
            self.fs.tree.removed(old);
        }
        self.forget_moved()
    }

    /// Removes a file whose content is stored under its new name. Later writes through its open
    /// descriptors fail.
    fn forget_moved(&self) -> Result<()> {
        if self.source.value().is_some() {
            let inode = self.fs.tree.inode(self.source);
            self.fs
                .files
                .matching(|file| file.inode() == inode)
                .iter()
                .for_each(|file| file.end_writing());
            self.fs.drafts.take(&self.source.path());
        }
        // a later file with the old name is another file
        self.fs.tree.became_another(self.source);
        self.fs.remove(self.source)
    }

    /// Stores the draft of a plain key in a store without files, because the key is about to be
    /// renamed.
    fn store_draft(&self) -> Result<()> {
        match self.source.value().and_then(|key| self.fs.drafts.get(key)) {
            Some(draft) => self.fs.flush_draft(&draft),
            None => Ok(()),
        }
    }

    /// Stores the content of a file durably as `target`, in place of the old content, and records
    /// why if it is refused.
    fn store_as(&self, target: &Target) -> Result<()> {
        self.try_store_as(target).inspect_err(|e| {
            if e.kind() == Kind::Invalid {
                self.fs.stats.problem(format!("not stored: {e}"));
            }
        })
    }

    fn try_store_as(&self, target: &Target) -> Result<()> {
        let store = self.fs.store();
        let moved = match (self.source.value(), target.stored_key()) {
            (Some(from), Some(to)) => Some((self.fs.tree.find_stat(from)?, to)),
            _ => None,
        };
        if let Some((Some(stat), to)) = &moved
            && let Some(permissions) = stat.permissions
        {
            store.set_file_attribute(to, FileAttribute::NextMode(permissions.mode()))?;
        }
        match (self.source.value(), target) {
            (_, Target::Plain(to)) => {
                store
                    .put(to, &FileContent::read(&self.fs.arrays, self.source)?)
                    .context(to)?;
                self.fs.drafts.forget(to);
            }
            (_, Target::Document(key, file)) => {
                self.fs.put_document(
                    key,
                    *file,
                    &FileContent::read_up_to(&self.fs.arrays, self.source, MAX_DOCUMENT)?,
                )?;
                self.fs.drafts.forget(&key.join(file.name()));
            }
            (_, Target::Chunk(array, chunk)) => {
                self.fs.writer.put_chunk(
                    array,
                    *chunk,
                    &FileContent::read_up_to(
                        &self.fs.arrays,
                        self.source,
                        array.max_size(*chunk)?,
                    )?,
                )?;
                self.fs.drafts.forget(&array.chunk_path(*chunk));
            }
            (from, Target::Encoded(value)) => {
                let file = match from {
                    Some(from) => self.fs.arrays.copy_of(from)?,
                    None => self
                        .fs
                        .arrays
                        .file_of(&FileContent::read(&self.fs.arrays, self.source)?)?,
                };
                self.fs.writer.replace_encoded(value, &file)?;
                self.fs.drafts.forget(&value.array.stored_key(value.chunk));
            }
            (Some(from), Target::Flat(array)) => self.fs.writer.copy_into(from, array)?,
            (None, Target::Flat(array)) => {
                return Err(
                    Error::invalid("can't become the flat bytes of an array").context(array.key())
                );
            }
        }
        if let Some((Some(stat), to)) = &moved {
            let modified = FileAttribute::Modified(Some(stat.modified));
            if let Err(e) = store.set_file_attribute(to, modified) {
                log::debug!("{to}: has the time of its storing: {e}");
            }
        }
        store.sync()
    }

    /// Records why a file could not be renamed to a container, and returns the error to report.
    /// Removes the file if it is a temporary one, because nothing else would remove it from the
    /// store.
    fn refused(&self, to: &Node, e: Error) -> Error {
        if ![libc::EPERM, libc::EINVAL].contains(&e.errno()) {
            return e;
        }
        let is_removed =
            is_temporary(&self.source.path(), &to.path()) && self.forget_moved().is_ok();
        let removed = if is_removed {
            "; that file was removed: have the program write to another directory"
        } else {
            ""
        };
        self.fs
            .stats
            .problem(format!("{} can't become {e}{removed}", self.source.path()));
        Error::new(Kind::System(libc::EPERM), e.message())
    }
}

/// Returns whether rsync has made the file `from` to rename it to `to`: `.data.tif.Xa81Bc`.
fn is_made_by_rsync(from: &Key, to: &Key) -> bool {
    let rest = from.name().strip_prefix('.');
    let suffix = rest
        .and_then(|rest| rest.strip_prefix(to.name()))
        .and_then(|rest| rest.strip_prefix('.'));
    suffix.is_some_and(|suffix| {
        suffix.len() == 6 && suffix.bytes().all(|b| b.is_ascii_alphanumeric())
    }) && from.parent() == to.parent()
}

/// Returns whether a program has made the file `from` only to rename it to `to`: NCO's
/// `dataset.nc.pid123.ncap2.tmp`.
fn is_temporary(from: &Key, to: &Key) -> bool {
    let rest = from
        .name()
        .strip_prefix(to.name())
        .and_then(|rest| rest.strip_prefix(".pid"));
    let tool = rest
        .and_then(|rest| rest.strip_suffix(".tmp"))
        .and_then(|rest| rest.split_once('.'));
    tool.is_some_and(|(pid, tool)| {
        !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()) && tool.starts_with("nc")
    }) && from.parent() == to.parent()
}
