//! The semantics of the file system, in our own types: open files, reads, directory streams, holes. It can be tested
//! without FUSE, and knows nothing of it.

use crate::array::Array;
use crate::cache::{Cache, Chunk};
use crate::error::{Error, Kind, Result};
use crate::grid::{ChunkId, Run};
use crate::hierarchy::Document;
use crate::json::{self, Map, Value};
use crate::layout;
use crate::memory::lock;
use crate::metadata::{Order, Separator};
use crate::stats::Stats;
use crate::store::Key;
use crate::tree::{Attributes, ControlFile, MetadataFile, Name, Names, Node, Tree};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod holes;

pub use holes::Seek;
use holes::StoredChunks;

/// Chunks a read keeps at hand: a row of the array goes through several of them again and again.
const HELD: usize = 32;

/// Runs of a request looked at together: enough for any usual one, and a bound on what has to be remembered.
const PIECE: usize = 1 << 16;

/// What a look into the cache gave: not there; or there, decoded or uninitialised.
type Cached = Option<Option<Arc<Chunk>>>;

/// What `open` answers.
#[derive(Debug)]
pub struct Opened {
    /// To be given to the calls on open files.
    pub handle: u64,
    /// The content is made at open: reads must not be answered from, or cut by, what the kernel remembers.
    pub synthesised: bool,
}

/// An open file or directory.
enum Handle {
    Flat(CurrentArray, StoredChunks),
    /// A chunk, by its name in the mount.
    Chunk(CurrentArray, String),
    /// Metadata and control files, as they were when opened.
    Document(Vec<u8>),
    Value(Key),
    /// Protects the stream, for as long as one reply is filled from it.
    Directory(Mutex<DirectoryStream>),
}

/// The array behind an open file. All open files of an array must read through one object: the kernel has but one cache
/// for them, and what one reads the others are given.
///
/// Protects the reference alone.
struct CurrentArray(Mutex<Arc<Array>>);

/// A directory being read. Position 0 is `.`, 1 is `..`, then the names as they come.
struct DirectoryStream {
    node: Arc<Node>,
    names: Names,
    /// The position of the next name.
    position: u64,
    /// A name that did not fit into the last reply.
    pending: Option<Name>,
}

/// The file system of one mount. Read-only.
pub struct Fs {
    tree: Tree,
    cache: Arc<Cache>,
    stats: Arc<Stats>,
    /// Protects the map alone, never held during a request.
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    next_handle: AtomicU64,
}

impl Fs {
    /// The file system that shows `tree`, reading through `cache`.
    pub fn new(tree: Tree, cache: Arc<Cache>, stats: Arc<Stats>) -> Self {
        Fs { tree, cache, stats, handles: Mutex::default(), next_handle: AtomicU64::new(1) }
    }

    /// Looks up a name and counts the lookup. ENOENT where there is none.
    pub fn lookup(&self, parent: u64, name: &str) -> Result<Attributes> {
        let parent = self.tree.node(parent)?;
        let none = || Error::not_found("no such file");
        let node = self.tree.lookup(&parent, name)?.ok_or_else(none)?;
        let attributes =
            self.tree.attributes_of_found(&node).map_err(|e| if e.errno() == libc::ESTALE { none() } else { e })?;
        self.tree.remember(node);
        Ok(attributes)
    }

    /// Takes back `count` lookups of an inode number.
    pub fn forget(&self, inode: u64, count: u64) {
        self.tree.forget(inode, count);
    }

    /// What `stat` tells.
    pub fn attributes(&self, inode: u64) -> Result<Attributes> {
        self.tree.attributes(&*self.tree.node(inode)?)
    }

    /// True if looking up `name`, or, without one, asking about the node itself, may take long.
    pub fn is_slow(&self, inode: u64, name: Option<&str>) -> bool {
        self.tree.node(inode).is_ok_and(|node| match name {
            Some(name) => self.tree.is_slow_name(&node, name),
            None => self.tree.is_slow(&node),
        })
    }

    /// Opens a file. Everything its reads see is at least as new as this moment.
    pub fn open(&self, inode: u64, for_writing: bool) -> Result<Opened> {
        if for_writing {
            return Err(Error::new(Kind::ReadOnly, "the mount is read-only"));
        }
        let node = self.tree.node(inode)?;
        let mut synthesised = false;
        let handle = match &*node {
            Node::Flat(key) => Handle::Flat(CurrentArray(Mutex::new(self.open_array(key)?)), StoredChunks::default()),
            Node::Chunk(key, name) => {
                let array = self.open_array(key)?;
                let chunk = array.grid().parse_chunk_key(name, Separator::Dot);
                let chunk = chunk.ok_or_else(|| Error::system(libc::ESTALE))?;
                array.stat_chunk(chunk)?.ok_or_else(|| Error::system(libc::ESTALE))?;
                if array.metadata().is_object() {
                    // its size is known only now, or never: then it must not look like an empty file
                    self.cache.get(&array, chunk)?;
                    synthesised = true;
                }
                Handle::Chunk(CurrentArray(Mutex::new(array)), name.clone())
            }
            Node::Metadata(key, file) => {
                synthesised = true;
                let document = match file {
                    MetadataFile::Consolidated => self.tree.consolidated(key, Duration::ZERO)?,
                    _ => self.tree.document(key, *file)?,
                };
                let text = |d: Arc<Document>| Arc::try_unwrap(d).map_or_else(|d| d.text.clone(), |d| d.text);
                Handle::Document(document.map(text).ok_or_else(|| Error::system(libc::ESTALE))?)
            }
            Node::Value(key) => {
                self.tree.check_plain(&node, key)?;
                Handle::Value(key.clone())
            }
            Node::Unreadable(key) => {
                self.tree.check_plain(&node, key)?;
                return Err(self.tree.unreadable(key));
            }
            Node::Control(file) => {
                synthesised = true;
                Handle::Document(self.control(*file).into_bytes())
            }
            Node::Directory(_) | Node::ControlDirectory => return Err(Error::system(libc::EISDIR)),
        };
        Ok(Opened { handle: self.insert(handle), synthesised })
    }

    fn open_array(&self, key: &Key) -> Result<Arc<Array>> {
        let array = self.tree.array(key)?;
        array.readable()?;
        array.begin_epoch();
        Ok(array)
    }

    /// The array as it was last opened by anybody.
    fn current(&self, opened: &CurrentArray) -> Result<Arc<Array>> {
        let mut array = lock(&opened.0);
        if array.is_superseded() {
            *array = self.tree.array(array.key())?;
            array.readable()?;
        }
        Ok(array.clone())
    }

    fn insert(&self, handle: Handle) -> u64 {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        lock(&self.handles).insert(number, Arc::new(handle));
        number
    }

    fn handle(&self, number: u64) -> Result<Arc<Handle>> {
        lock(&self.handles).get(&number).cloned().ok_or_else(|| Error::system(libc::EBADF))
    }

    /// Closes a file or directory.
    pub fn release(&self, handle: u64) {
        lock(&self.handles).remove(&handle);
    }

    /// Reads up to `len` bytes at `offset` into `out`, replacing what is there; fewer only at the end of the file.
    /// With `cached`, false is returned, and `out` is worthless, if that would take the store or a wait.
    pub fn read(&self, handle: u64, offset: u64, len: usize, cached: bool, out: &mut Vec<u8>) -> Result<bool> {
        let done = match &*self.handle(handle)? {
            // it has to be looked up again
            Handle::Flat(array, _) | Handle::Chunk(array, _) if cached && lock(&array.0).is_superseded() => false,
            Handle::Flat(array, _) => self.read_flat(&*self.current(array)?, offset, len, cached, out)?,
            Handle::Chunk(array, name) => self.read_chunk(&*self.current(array)?, name, offset, len, cached, out)?,
            Handle::Document(text) => {
                let start = (offset.min(text.len() as u64)) as usize;
                out.clear();
                out.extend_from_slice(&text[start..text.len().min(start + len)]);
                true
            }
            Handle::Value(_) if cached => false,
            Handle::Value(key) => {
                let end = offset.saturating_add(len as u64);
                let got = self.tree.hierarchy().store().get_range(key, offset..end, out).map_err(|e| e.context(key))?;
                got.ok_or_else(|| Error::system(libc::ESTALE))?;
                true
            }
            Handle::Directory(_) => return Err(Error::system(libc::EISDIR)),
        };
        if done {
            self.stats.bytes_served.add(out.len() as u64);
        }
        Ok(done)
    }

    /// One copy: from the decoded chunks into the reply. Each chunk is asked for once in a piece of the request,
    /// however often its rows come: with a small cache it might be gone by its next row.
    fn read_flat(&self, array: &Array, offset: u64, len: usize, cached: bool, out: &mut Vec<u8>) -> Result<bool> {
        let end = offset.saturating_add(len as u64).min(array.size());
        out.resize(end.saturating_sub(offset) as usize, 0);
        let mut runs = array.grid().runs(offset..end).peekable();
        let (mut done, mut missing, mut missing_chunks) = (0, Vec::new(), HashSet::new());
        while runs.peek().is_some() {
            // what is cached is copied at once, in file order
            let mut held: [Option<(ChunkId, Cached)>; HELD] = Default::default();
            for run in runs.by_ref().take(PIECE) {
                let slot = &mut held[(run.chunk.0 % HELD as u64) as usize];
                let known = slot.take_if(|(id, _)| *id == run.chunk).map(|(_, known)| known);
                let known = match known {
                    Some(known) => known,
                    // somebody may have loaded it meanwhile: its runs must still all be of one version
                    None if missing_chunks.contains(&run.chunk) => None,
                    None => self.cache.peek(array, run.chunk).transpose()?,
                };
                match &known {
                    Some(chunk) => copy(chunk.as_deref(), &run, offset, done, array, out),
                    None if cached => return Ok(false),
                    None => {
                        missing_chunks.insert(run.chunk);
                        missing.push((run, done));
                    }
                }
                done += run.len;
                *slot = Some((run.chunk, known));
            }
            // the rest chunk by chunk; the cache's rule: hold nothing while waiting for room
            drop(held);
            missing.sort_unstable_by_key(|(run, at)| (run.chunk, *at));
            for same in missing.chunk_by(|(a, _), (b, _)| a.chunk == b.chunk) {
                let chunk = self.cache.get(array, same[0].0.chunk)?;
                for (run, at) in same {
                    copy(chunk.as_deref(), run, offset, *at, array, out);
                }
            }
            missing.clear();
            missing_chunks.clear();
        }
        Ok(true)
    }

    fn read_chunk(
        &self,
        array: &Array,
        name: &str,
        offset: u64,
        len: usize,
        cached: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let stale = || Error::system(libc::ESTALE);
        let chunk = array.grid().parse_chunk_key(name, Separator::Dot).ok_or_else(stale)?;
        let bytes = match self.cache.peek(array, chunk) {
            Some(bytes) => bytes?,
            None if cached => return Ok(false),
            None => self.cache.get(array, chunk)?,
        };
        let bytes = bytes.ok_or_else(stale)?;
        let start = offset.min(bytes.len() as u64) as usize;
        let end = bytes.len().min(start.saturating_add(len));
        out.resize(end - start, 0);
        let meta = array.metadata();
        if meta.order == Order::F && !meta.is_object() {
            layout::read_f(&meta.chunks, meta.dtype.size(), &bytes, start..end, out);
        } else {
            out.copy_from_slice(&bytes[start..end]);
        }
        Ok(true)
    }

    /// Where the next data or hole begins, at or after `offset`. ENXIO past the end, as lseek(2) says.
    pub fn seek(&self, inode: u64, handle: u64, offset: u64, seek: Seek) -> Result<u64> {
        let handle = self.handle(handle)?;
        let Handle::Flat(array, stored) = &*handle else {
            let size = self.attributes(inode)?.size;
            return match seek {
                _ if offset >= size => Err(Error::system(libc::ENXIO)),
                Seek::Data => Ok(offset),
                Seek::Hole => Ok(size),
            };
        };
        let array = self.current(array)?;
        match offset < array.size() {
            true => stored.seek(&array, offset, seek),
            false => Err(Error::system(libc::ENXIO)),
        }
    }

    /// Opens a directory.
    pub fn open_directory(&self, inode: u64) -> Result<u64> {
        let node = self.tree.node(inode)?;
        let names = self.tree.names(&node)?;
        let stream = DirectoryStream { node, names, position: 0, pending: None };
        Ok(self.insert(Handle::Directory(Mutex::new(stream))))
    }

    /// Gives the names of an open directory from position `from` on to `add`, each with the position after it, until
    /// `add` returns true: that name did not fit and comes again.
    pub fn read_directory(&self, handle: u64, from: u64, mut add: impl FnMut(&Name, u64) -> bool) -> Result<()> {
        let handle = self.handle(handle)?;
        let Handle::Directory(stream) = &*handle else { return Err(Error::system(libc::ENOTDIR)) };
        let mut stream = lock(stream);
        if from < stream.position {
            stream.names = self.tree.names(&stream.node)?;
            (stream.position, stream.pending) = (0, None);
        }
        while let Some(name) = stream.next()? {
            let position = stream.position;
            if position >= from && add(&name, position + 1) {
                stream.pending = Some(name);
                return Ok(());
            }
            stream.position += 1;
        }
        Ok(())
    }

    /// Extended attributes, each with its value.
    pub fn xattrs(&self, inode: u64) -> Result<Vec<(String, Vec<u8>)>> {
        self.tree.xattrs(&*self.tree.node(inode)?)
    }

    /// Records a problem that a request ran into.
    pub fn problem(&self, line: String) {
        self.stats.problem(line);
    }

    fn control(&self, file: ControlFile) -> String {
        let mut values = self.tree.state();
        values.extend(self.stats.counters().map(|(name, n)| (name, n.into())));
        let problems = self.stats.problems();
        match file {
            ControlFile::StatsJson => {
                let mut object: Map<String, Value> = values.into_iter().map(|(n, v)| (n.to_string(), v)).collect();
                object.insert("problems".into(), problems.into());
                json::write(&Value::Object(object)) + "\n"
            }
            ControlFile::Stats => {
                let plain = |v: &Value| v.as_str().map_or_else(|| json::write(v), str::to_string);
                let mut text: String = values.iter().map(|(n, v)| format!("{n:<20} {}\n", plain(v))).collect();
                text.extend(problems.iter().map(|p| format!("problem              {p}\n")));
                text
            }
        }
    }
}

/// Copies a run of a read that began at `offset` to its place `at` in the reply; no chunk stands for an uninitialised
/// one.
fn copy(chunk: Option<&Chunk>, run: &Run, offset: u64, at: usize, array: &Array, out: &mut [u8]) {
    let to = &mut out[at..at + run.len];
    match chunk {
        Some(chunk) => to.copy_from_slice(&chunk[run.offset..run.offset + run.len]),
        None => fill(to, offset + at as u64, array),
    }
}

/// Writes the fill value over `to`, which stands at `position` of the flat array.
fn fill(to: &mut [u8], position: u64, array: &Array) {
    // the buffer is used again: it may hold another read's bytes
    to.fill(0);
    let (Some(item), size) = (&array.metadata().fill, array.metadata().dtype.size()) else { return };
    if item.is_empty() {
        return;
    }
    let (mut at, mut inside) = (0, (position % size as u64) as usize);
    while at < to.len() {
        // the zero bytes at an item's end are left out
        let rest = item.get(inside..).unwrap_or_default();
        let n = rest.len().min(to.len() - at);
        to[at..at + n].copy_from_slice(&rest[..n]);
        at += size - inside;
        inside = 0;
    }
}

impl DirectoryStream {
    /// The name at the stream's position.
    fn next(&mut self) -> Result<Option<Name>> {
        let dot = |name: &str, inode| Some(Name { name: name.to_string(), inode, is_directory: true });
        if let Some(name) = self.pending.take() {
            return Ok(Some(name));
        }
        match self.position {
            0 => Ok(dot(".", self.node.inode())),
            1 => Ok(dot("..", self.node.parent_inode())),
            _ => self.names.next().transpose(),
        }
    }
}

#[cfg(test)]
mod tests;
