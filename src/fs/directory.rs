//! Directory streams: names as they come from the tree, and again from the start where somebody seeks back.

use super::{Fs, Handle};
use crate::error::{Error, Result};
use crate::fs::tree::{Attributes, Level, Listed, Name, Names, Node};
use crate::util::memory::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// Names whose attributes are asked for together. What does not fit into a reply is asked for again with the next.
const TOGETHER: usize = 32;

/// A directory being read. Position 0 is `.`, 1 is `..`, then the names as they come.
pub struct DirectoryStream {
    node: Arc<Node>,
    names: Names,
    /// The position of the next name.
    position: u64,
    /// What was taken from the tree and has no place in the last reply.
    pending: VecDeque<Result<Name>>,
}

/// A name with its attributes.
pub struct Entry<'a> {
    /// The name.
    pub name: &'a Name,
    /// As `stat` tells them.
    pub attributes: &'a Attributes,
    /// True if the name need not be looked up for a second.
    pub lasting: bool,
}

impl Fs {
    /// Opens a directory.
    pub fn open_directory(&self, inode: u64) -> Result<u64> {
        let node = self.tree.node(inode)?;
        if let Node::Directory(key) = &*node {
            self.settle(key, None);
        }
        let names = self.tree.names(&node)?;
        let stream = DirectoryStream { node, names, position: 0, pending: VecDeque::new() };
        Ok(self.insert(Handle::Directory(Mutex::new(stream))))
    }

    /// True if reading the directory `inode` from position `from` on with attributes may take long.
    pub fn is_slow_listing(&self, inode: u64, from: u64) -> bool {
        self.is_far() || self.tree.node(inode).is_ok_and(|node| self.tree.is_slow_listing(&node, from))
    }

    /// Gives the names of an open directory from position `from` on to `add`, each with the position after it, until
    /// `add` returns true: that name did not fit and comes again.
    pub fn read_directory(&self, handle: u64, from: u64, mut add: impl FnMut(&Name, u64) -> bool) -> Result<()> {
        let handle = self.handle(handle)?;
        let mut stream = self.stream_at(&handle, from)?;
        while let Some(name) = stream.next()? {
            if add(&name, stream.position + 1) {
                stream.pending.push_front(Ok(name));
                return Ok(());
            }
            stream.position += 1;
        }
        Ok(())
    }

    /// As [`Fs::read_directory`], with attributes, counting a lookup of each name that was taken but `.` and `..`. It
    /// may end early, but not without a name unless the directory ends: before one whose attributes take long.
    pub fn read_directory_with_attributes(
        &self,
        handle: u64,
        from: u64,
        mut add: impl FnMut(Entry, u64) -> bool,
    ) -> Result<()> {
        let handle = self.handle(handle)?;
        let mut stream = self.stream_at(&handle, from)?;
        let level = match self.tree.level(&stream.node) {
            // a directory that is gone is empty
            Err(e) if e.errno() == libc::ESTALE => return Ok(()),
            level => level?,
        };
        let mut any = false;
        loop {
            let names = stream.take_quick(&level, any)?;
            if names.is_empty() {
                return Ok(());
            }
            let listed = match stream.position {
                0 | 1 => names.iter().map(|name| Some(self.tree.dots(name))).collect(),
                _ => self.tree.listed(&level, &names),
            };
            for (i, (name, listed)) in names.iter().zip(listed).enumerate() {
                if let Some(Listed { node, attributes, sound }) = listed {
                    let dots = stream.position < 2;
                    let inode = if dots { attributes.inode } else { self.tree.remember(node) };
                    let attributes = Attributes { inode, ..attributes };
                    let entry = Entry { name, attributes: &attributes, lasting: sound && attributes.lasting };
                    if add(entry, stream.position + 1) {
                        if !dots {
                            self.tree.forget(inode, 1);
                        }
                        names[i..].iter().rev().for_each(|name| stream.pending.push_front(Ok(name.clone())));
                        return Ok(());
                    }
                    any = true;
                }
                stream.position += 1;
            }
        }
    }

    /// The stream of an open directory, with the name at `from` the next to come.
    fn stream_at<'a>(&self, handle: &'a Handle, from: u64) -> Result<MutexGuard<'a, DirectoryStream>> {
        let Handle::Directory(stream) = handle else { return Err(Error::system(libc::ENOTDIR)) };
        let mut stream = lock(stream);
        if from < stream.position {
            stream.names = self.tree.names(&stream.node)?;
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
    /// The name at the stream's position.
    fn next(&mut self) -> Result<Option<Name>> {
        self.next_at(self.position)
    }

    fn next_at(&mut self, position: u64) -> Result<Option<Name>> {
        let dot = |name: &str, inode| Some(Name { name: name.to_string(), inode, is_directory: true });
        if let Some(name) = self.pending.pop_front() {
            return name.map(Some);
        }
        match position {
            0 => Ok(dot(".", self.node.inode())),
            1 => Ok(dot("..", self.node.parent_inode())),
            _ => self.names.next().transpose(),
        }
    }

    /// The next names, `.` and `..` each alone. With `any`, because something is told already, none from a slow one on,
    /// and a failure is kept for the next time: what was told is not taken back.
    fn take_quick(&mut self, level: &Level, any: bool) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        while names.len() < TOGETHER {
            let position = self.position + names.len() as u64;
            match self.next_at(position) {
                Ok(None) => break,
                Ok(Some(name)) if (any || !names.is_empty()) && level.is_slow(&name.name) => {
                    self.pending.push_front(Ok(name));
                    break;
                }
                Err(e) if any || !names.is_empty() => {
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
