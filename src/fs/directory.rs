//! Open directories: streams of names as the tree lists them. A stream starts anew when the reader
//! seeks back.

use super::Fs;
use crate::fs::tree::{
    Attributes, DirectoryKind, FIXED_NAMES, ListedNode, Name, NameStream, Node, ROOT_INODE, Tree,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;

/// Number of names looked up together. Names that do not fit into a reply are looked up again for
/// the next one.
const BATCH: usize = 32;

/// Position at which the first plain listing of an array ends, so that a program that asks for the
/// attributes of names gets those of the chunks after it together.
const FIRST_CHUNKS: u64 = FIXED_NAMES + BATCH as u64;

/// Maximum number of names that are read to find the last one that an earlier daemon has returned.
const MAX_SKIPPED: u64 = 1 << 20;

/// A directory being read. Position 0 is `.`, 1 is `..`, then the names follow as they are listed.
pub struct DirectoryStream {
    inode: u64,
    parent_inode: u64,
    node: Arc<Node>,
    names: NameStream,
    /// The position of the next name.
    position: u64,
    /// Names that were taken from the tree and did not fit into the last reply.
    pending: VecDeque<Result<Name>>,
}

impl DirectoryStream {
    /// Returns whether the mount is in use while the directory is open.
    pub fn is_use(&self) -> bool {
        !self.node.is_control() && self.inode != ROOT_INODE
    }
}

/// A name in a directory, with its attributes.
pub struct DirectoryEntry<'a> {
    /// The name.
    pub name: &'a Name,
    /// The attributes of the file.
    pub attributes: &'a Attributes,
    /// Whether the kernel may keep the name and the attributes for a second.
    pub lasting: bool,
}

impl Fs {
    /// Opens a directory and returns its handle.
    pub fn open_directory(&self, inode: u64) -> Result<u64> {
        let node = match self.tree.node(inode) {
            Ok(node) => node,
            // another program has removed it since the kernel has found it
            Err(e) => self
                .tree
                .live
                .lost(inode)
                .filter(|node| node.is_directory())
                .ok_or(e)?,
        };
        if let Some(key) = node.directory() {
            self.arrays.settle(key, None);
            self.tree.look_ahead(key);
        }
        let names = self.lost.names_in(inode, &node)?;
        self.absent.unlinked.listed(&node.path());
        let stream = DirectoryStream {
            inode,
            parent_inode: self.tree.inode(&Node::Directory(node.path().parent())),
            node,
            names,
            position: 0,
            pending: VecDeque::new(),
        };
        Ok(self.directories.insert(Arc::new(Mutex::new(stream))))
    }

    /// Opens a directory under a handle that an earlier daemon has returned. Its names were read up
    /// to a position, before which a name is: it goes on after that name, also if others came or
    /// went meanwhile.
    pub(super) fn open_directory_at(
        &self,
        handle: u64,
        inode: u64,
        (position, last): (u64, &str),
    ) -> Result<()> {
        let opened = self.open_directory(inode)?;
        let stream = self.directories.remove(opened).ok_or_else(Error::stale)?;
        let mut open = lock(&stream);
        while position > 2 && open.position < MAX_SKIPPED {
            let Some(name) = open.next()? else {
                // the position is found by counting
                open.names = self.lost.names_in(inode, &open.node)?;
                open.position = 0;
                break;
            };
            open.position += 1;
            if name.name == last {
                open.position = position;
                break;
            }
        }
        drop(open);
        self.directories.insert_at(handle, stream);
        Ok(())
    }

    /// Closes a directory.
    pub fn release_directory(&self, handle: u64) {
        self.record_directory_release(handle);
        self.directories.remove(handle);
    }

    /// Passes the names of an open directory from position `from` on to `add`, each with the
    /// position after it, until `add` returns `true`: that name did not fit, and the next call
    /// passes it again. The first call may end earlier in an array with many chunks.
    pub fn read_directory(
        &self,
        handle: u64,
        from: u64,
        mut add: impl FnMut(&Name, u64) -> bool,
    ) -> Result<()> {
        let stream = self.directories.get(handle)?;
        let mut stream = self.seek_stream(&stream, from)?;
        let mut last = None;
        let is_first = from < FIXED_NAMES && self.tree.is_known_array(&stream.node);
        while !(is_first && stream.position >= FIRST_CHUNKS)
            && let Some(name) = stream.next()?
        {
            if add(&name, stream.position + 1) {
                stream.pending.push_front(Ok(name));
                break;
            }
            stream.position += 1;
            last = Some(name.name);
        }
        self.record_position(handle, &stream, last);
        Ok(())
    }

    fn record_position(&self, handle: u64, stream: &DirectoryStream, last: Option<String>) {
        if let Some(name) = last {
            self.record_names_read(handle, stream.inode, stream.position, &name);
        }
    }

    /// Passes names as [`Fs::read_directory`] does, with their attributes, and counts a lookup of
    /// each name that `add` takes, except `.` and `..`. It may stop before a name whose attributes
    /// take long, but passes at least one name unless the directory ends. From position 0 on, it
    /// passes `.` and `..` alone of an array of which the kernel does not know the first file: the
    /// kernel requests attributes with the first names of each directory, even if the program asks
    /// for no attributes. It requests attributes again once it has looked up a name, but not if it
    /// looks up again a name that it knows.
    pub fn read_directory_with_attributes(
        &self,
        handle: u64,
        from: u64,
        mut add: impl FnMut(DirectoryEntry, u64) -> bool,
    ) -> Result<()> {
        let stream = self.directories.get(handle)?;
        let mut stream = self.seek_stream(&stream, from)?;
        if from == 0 && self.tree.is_known_array(&stream.node) && !stream.is_looked_up(&self.tree) {
            return self.pass_dots(&mut stream, add);
        }
        let _once = self.tree.hierarchy().asked_once();
        let directory = match self.tree.directory(&stream.node) {
            // a directory that was removed is empty
            Err(e) if e.errno() == libc::ESTALE => return Ok(()),
            directory => directory?,
        };
        let mut any = false;
        let mut last = None;
        loop {
            let names = stream.next_batch(&self.tree, &directory, any)?;
            if names.is_empty() {
                self.record_position(handle, &stream, last);
                return Ok(());
            }
            let is_dots = stream.position < 2;
            let listed = if is_dots {
                names
                    .iter()
                    .map(|name| Some(self.tree.dots(name)))
                    .collect()
            } else {
                self.tree.listed(&directory, &names)
            };
            for (i, (name, listed)) in names.iter().zip(listed).enumerate() {
                if let Some(ListedNode {
                    node,
                    attributes,
                    sound,
                }) = listed
                {
                    let inode = if is_dots {
                        attributes.inode
                    } else {
                        self.tree.live.remember(node)
                    };
                    let attributes = self.truncations.shown(Attributes {
                        inode,
                        ..attributes
                    });
                    let lasting = sound && attributes.lasting;
                    if add(
                        DirectoryEntry {
                            name,
                            attributes: &attributes,
                            lasting,
                        },
                        stream.position + 1,
                    ) {
                        if !is_dots {
                            self.tree.live.forget(inode, 1);
                        }
                        names[i..]
                            .iter()
                            .rev()
                            .for_each(|name| stream.pending.push_front(Ok(name.clone())));
                        self.record_position(handle, &stream, last);
                        return Ok(());
                    }
                    any = true;
                }
                stream.position += 1;
                last = Some(name.name.clone());
            }
        }
    }

    /// Passes `.` and `..` as [`Fs::read_directory_with_attributes`] does.
    fn pass_dots(
        &self,
        stream: &mut DirectoryStream,
        mut add: impl FnMut(DirectoryEntry, u64) -> bool,
    ) -> Result<()> {
        while stream.position < 2
            && let Some(name) = stream.next()?
        {
            let attributes = self.tree.dots(&name).attributes;
            let entry = DirectoryEntry {
                name: &name,
                attributes: &attributes,
                lasting: attributes.lasting,
            };
            if add(entry, stream.position + 1) {
                stream.pending.push_front(Ok(name));
                break;
            }
            stream.position += 1;
        }
        Ok(())
    }

    /// Locks a stream and moves it to the position `from`.
    fn seek_stream<'a>(
        &self,
        stream: &'a Mutex<DirectoryStream>,
        from: u64,
    ) -> Result<MutexGuard<'a, DirectoryStream>> {
        let mut stream = lock(stream);
        if !stream.node.is_control() {
            self.tree.record_use();
        }
        if from < stream.position {
            stream.names = self.lost.names_in(stream.inode, &stream.node)?;
            stream.position = 0;
            stream.pending.clear();
        }
        while stream.position < from && stream.next()?.is_some() {
            stream.position += 1;
        }
        Ok(stream)
    }
}

impl DirectoryStream {
    /// Takes the name at the stream's position.
    fn next(&mut self) -> Result<Option<Name>> {
        self.next_at(self.position)
    }

    fn next_at(&mut self, position: u64) -> Result<Option<Name>> {
        if let Some(name) = self.pending.pop_front() {
            return name.map(Some);
        }
        let (name, inode) = match position {
            0 => (".", self.inode),
            1 => ("..", self.parent_inode),
            _ => return self.names.next().transpose(),
        };
        Ok(Some(Name {
            name: name.to_string(),
            inode,
            is_directory: true,
        }))
    }

    /// Returns whether the kernel knows the first file of a stream at its beginning.
    fn is_looked_up(&mut self, tree: &Tree) -> bool {
        let first: Vec<Result<Name>> = (0..3)
            .map_while(|position| self.next_at(position).transpose())
            .collect();
        let is_known = matches!(first.get(2), Some(Ok(name)) if tree.live.knows(name.inode));
        for name in first.into_iter().rev() {
            self.pending.push_front(name);
        }
        is_known
    }

    /// Takes the next names to be looked up together; `.` and `..` come alone. If the reply has
    /// names already (`any`) the batch ends before a name whose attributes take long, and an error
    /// waits for the next reply.
    fn next_batch(
        &mut self,
        tree: &Tree,
        directory: &DirectoryKind,
        any: bool,
    ) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        while names.len() < BATCH {
            let position = self.position + names.len() as u64;
            let any = any || !names.is_empty();
            match self.next_at(position) {
                Ok(None) => break,
                Ok(Some(name)) if any && tree.is_costly(directory, &name.name) => {
                    self.pending.push_front(Ok(name));
                    break;
                }
                Err(e) if any => {
                    self.pending.push_front(Err(e));
                    break;
                }
                next => names.extend(next?),
            }
            if position < 2 {
                break;
            }
        }
        Ok(names)
    }
}
