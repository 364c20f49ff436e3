//! The semantics of the file system, in our own types: open files, reads, writes, directory streams, holes. It can be
//! tested without FUSE, and knows nothing of it.

use crate::array::Array;
use crate::array::hierarchy::{MetadataDocument, MetadataFile};
use crate::cache::{Cache, ChunkPart, PrefetchState, Prefetcher, SpillOptions, VersionTag};
use crate::error::{Error, Result};
use crate::fs::tree::{Attributes, Audience, ControlFile, Node, Tree};
use crate::stats::Stats;
use crate::store::{Key, SubtreeLocks};
use crate::util::json::{self, Map, Value};
use crate::util::memory::{self, Grant, lock};
use crate::util::pool::{Pool, PoolGrowth};
use crate::zarr::codec::PartialDecode;
use crate::zarr::grid::ChunkId;
use crate::zarr::layout;
use crate::zarr::metadata::{Order, Separator};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod chunk_file;
mod composite;
mod dataset;
mod directory;
mod draft;
mod flat;
mod fresh;
mod holes;
mod names;
mod page_guards;
mod pages;
mod plain;
mod rename;
mod resize;
pub mod tree;
mod unlinked;
mod waiting;
mod write;
mod write_record;

use chunk_file::{ChunkDrafts, ChunkFile};
use composite::CompositeFile;
use directory::DirectoryStream;
pub use directory::Entry;
use draft::{Draft, Drafts};
use flat::FlatRead;
use fresh::FreshGroups;
pub use holes::Seek;
use holes::StoredChunks;
pub use page_guards::GuardId;
use page_guards::PageGuards;
use pages::Pages;
use plain::PlainFile;
use resize::Resizing;
use unlinked::UnlinkedNames;
pub use waiting::WaitingWrite;
use waiting::WaitingWrites;
pub use write::StalePages;
use write_record::WriteRecord;

/// How files are read and written.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whether the sizes of flat bytes can be changed.
    pub resize: bool,
    /// Threads that read ahead.
    pub threads: usize,
    /// Whether flat bytes go past the kernel's page cache.
    pub direct_io: bool,
    /// Whether files are looked for that the kernel may read from the store itself.
    pub passthrough: bool,
    /// Where decoded chunks go that are needed again and don't fit into the cache.
    pub spill: SpillOptions,
}

/// Threads that store what was written, at least: they mostly wait for the disk.
const MIN_BEHIND: usize = 4;

/// The same of a far store, at most: a chunk for each is encoded in memory beside the cache.
const MAX_BEHIND: usize = 16;

/// Write-back threads that are added while chunks of one array wait for a lock or for the store, so that those of
/// another array are stored nevertheless. A busy disk is no reason to add one.
const BEHIND_GROWTH: PoolGrowth = PoolGrowth { patience: Duration::from_secs(2), max_threads: 64 };

/// What the kernel may keep of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPages {
    /// Nothing, now or later: each read is asked for. The content is made at open, or there is no need to keep it.
    None,
    /// Nothing but what maps take, where the kernel can tell the two apart (since Linux 6.6); else as `Fresh`.
    Maps,
    /// What is read from now on.
    Fresh,
    /// That, and what was read before.
    Kept,
}

/// A file of the store that holds just the bytes of a file of the mount.
#[derive(Debug)]
pub struct Backing {
    /// Open for reading.
    pub file: std::fs::File,
    /// Of what is in it.
    pub mark: VersionTag,
}

/// What `open` answers.
#[derive(Debug)]
pub struct Opened {
    /// Whether other open files may write to the same file: a write of theirs may be in flight while its pages are dropped.
    pub has_other_writers: bool,
    /// To be given to the calls on open files.
    pub handle: u64,
    /// What the kernel may keep of it.
    pub pages: KernelPages,
    /// Where the kernel may read its bytes itself.
    pub backing: Option<Backing>,
}

/// An open file or directory.
enum Handle {
    Flat(FlatFile),
    Chunk(ChunkFile),
    /// A metadata document, as it was when it was opened.
    Document(Arc<MetadataDocument>),
    /// A control file, as it was when it was opened, and what counts its memory.
    Control(Vec<u8>, #[expect(dead_code, reason = "it is held, not looked at")] Grant),
    /// A metadata document or a chunk of objects, to be written.
    Draft(Arc<Draft>),
    Plain(PlainFile),
    /// A header or container.
    Composite(CompositeFile),
    /// Protects the stream, for as long as one reply is filled from it.
    Directory(Mutex<DirectoryStream>),
}

/// The flat bytes of an array.
struct FlatFile {
    inode: u64,
    array: CurrentArray,
    record: WriteRecord,
    writable: bool,
    stored: StoredChunks,
    readers: PrefetchState,
    dropping: Dropping,
    /// Somebody else keeps what is read, so that the cache need not.
    once: bool,
}

/// The inode number of a file whose pages the kernel was told to drop; 0 once it is known that it has.
struct Dropping(AtomicU64);

/// The array behind an open file. All open files of an array must read through one object: the kernel has but one cache
/// for them, and what one reads the others are given.
///
/// Protects the reference alone.
struct CurrentArray(Mutex<Arc<Array>>);

/// The file system of one mount.
pub struct Fs {
    tree: Tree,
    cache: Arc<Cache>,
    ahead: Prefetcher,
    /// See [`Fs::requests_at_once`].
    requests: usize,
    direct_io: bool,
    passthrough: bool,
    read_only: bool,
    /// Whether the sizes of flat bytes can be changed, and those that are being changed.
    resizes: bool,
    resizing: Resizing,
    /// Stores what was written, behind the back of who goes on writing.
    behind: Pool,
    /// Held while integers of an array are written that are shown as doubles. It protects nothing else.
    converting: SubtreeLocks,
    pages: Pages,
    guards: PageGuards,
    waiting: WaitingWrites,
    drafts: Drafts,
    chunk_drafts: ChunkDrafts,
    /// Where drafts go that do not fit into memory.
    spill_directory: PathBuf,
    fresh: FreshGroups,
    unlinked: UnlinkedNames,
    stats: Arc<Stats>,
    /// Protects the map alone, never held during a request.
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    next_handle: AtomicU64,
}

impl Fs {
    /// The file system that shows `tree`, reading through `cache`.
    pub fn new(tree: Tree, cache: Arc<Cache>, stats: Arc<Stats>, options: Options) -> Result<Self> {
        let requests = tree.hierarchy().store().concurrency();
        Ok(Fs {
            tree,
            requests,
            spill_directory: options.spill.directory.clone(),
            ahead: Prefetcher::new(cache.clone(), options.threads, requests, options.spill)?,
            direct_io: options.direct_io,
            // what the kernel writes into a file of the store is not replaced at once
            passthrough: options.passthrough && options.read_only,
            read_only: options.read_only,
            resizing: Resizing::default(),
            resizes: options.resize,
            behind: {
                let threads = options.threads.max(MIN_BEHIND).max(requests.min(MAX_BEHIND));
                Pool::growing("write-back", threads, BEHIND_GROWTH)?
            },
            converting: SubtreeLocks::default(),
            pages: Pages::new(),
            guards: PageGuards::default(),
            waiting: WaitingWrites::default(),
            drafts: Drafts::default(),
            chunk_drafts: ChunkDrafts::default(),
            fresh: FreshGroups::new(),
            unlinked: UnlinkedNames::new(),
            cache,
            stats,
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
        })
    }

    /// Looks up a name and counts the lookup. ENOENT where there is none.
    pub fn lookup(&self, parent: u64, name: &str) -> Result<Attributes> {
        let (parent, name) = self.place(parent, name)?;
        let (node, attributes) = self.find(&parent, &name)?.ok_or_else(|| Error::not_found("no such file"))?;
        let attributes = self.resizing.attributes(&node, attributes);
        Ok(Attributes { inode: self.tree.remember(node), ..attributes })
    }

    /// Takes back `count` lookups of an inode number.
    pub fn forget(&self, inode: u64, count: u64) {
        self.tree.forget(inode, count);
    }

    /// See [`Tree::take_crowded`].
    pub fn has_too_many_names(&self) -> bool {
        self.tree.take_crowded()
    }

    /// See [`Tree::least_used_names`].
    pub fn least_used_names(&self, kept: &HashSet<u64>) -> HashMap<u64, Vec<String>> {
        self.tree.least_used_names(kept)
    }

    /// What `stat` tells.
    pub fn attributes(&self, inode: u64) -> Result<Attributes> {
        if let Some(attributes) = self.attributes_while_open(inode) {
            return Ok(Attributes { inode, ..attributes });
        }
        let node = self.tree.node(inode)?;
        if let Node::Chunk(key, name) = &*node {
            self.settle(key, Some(name));
        }
        let attributes = self.resizing.attributes(&node, self.tree.attributes(&node)?);
        Ok(Attributes { inode, ..attributes })
    }

    /// True while anybody has a file or a directory open.
    pub fn is_open(&self) -> bool {
        !lock(&self.handles).is_empty()
    }

    /// See [`Tree::requests`].
    pub fn requests(&self) -> u64 {
        self.tree.requests()
    }

    /// How many requests to the store may be under way at once to good purpose: more than one if it is far.
    pub fn requests_at_once(&self) -> usize {
        self.requests
    }

    /// True if whatever takes the store may take long: its answers are a long time on their way.
    pub fn is_far(&self) -> bool {
        self.requests > 1
    }

    /// True if looking up `name`, or, without one, asking about the node itself, may take long.
    pub fn is_slow(&self, inode: u64, name: Option<&str>) -> bool {
        self.tree.node(inode).is_ok_and(|node| {
            self.is_far()
                // one that is being stored has its state locked
                || !self.drafts.is_empty()
                || self.is_unsettled(&node, name)
                || match name {
                    Some(name) => self.tree.is_slow_name(&node, name),
                    None => self.tree.is_slow(&node),
                }
        })
    }

    /// True if attributes that were told of a file may be taken as they were for a while: opening it must end that.
    pub fn has_lasting_attributes(&self, inode: u64) -> bool {
        self.tree.node(inode).is_ok_and(|node| matches!(*node, Node::Chunk(..)))
    }

    /// True if opening the file may take long.
    pub fn is_slow_open(&self, inode: u64) -> bool {
        self.is_slow(inode, None)
            || self.tree.node(inode).is_ok_and(|node| match &*node {
                Node::Flat(key) => self
                    .tree
                    .hierarchy()
                    .cached_array(key)
                    .is_some_and(|array| self.cache.revalidation_may_block(&array)),
                Node::Control(file) => *file == ControlFile::Sync,
                _ => false,
            })
    }

    /// Opens a file. Everything its reads see is at least as new as this moment. With `direct`, it asked for O_DIRECT.
    pub fn open(&self, inode: u64, for_writing: bool, direct: bool) -> Result<Opened> {
        if for_writing {
            self.writable()?;
        }
        let node = self.tree.node(inode)?;
        self.tree.look_again(&node);
        let (mut pages, mut backing) = (KernelPages::None, None);
        let handle = match &*node {
            _ if for_writing && !self.has_fixed_size(&node)? => {
                let handle;
                (handle, pages) = self.open_to_write(inode, &node)?;
                handle
            }
            Node::Flat(key) => {
                let file;
                (file, pages) = self.open_flat(inode, key, for_writing, direct)?;
                let array = self.current(&file.array)?;
                if for_writing {
                    array.writable()?;
                    self.resizing.finish_closed(key);
                }
                // the flat bytes are those of its one chunk
                let is_one = array.grid().chunk_count() == 1 && array.grid().chunk_size() as u64 == array.size();
                if is_one && array.partial_decode() == PartialDecode::Plain {
                    backing = self.backing(&array, ChunkId(0))?;
                }
                Handle::Flat(file)
            }
            Node::Chunk(key, name) => {
                let file;
                (file, pages, backing) = self.open_chunk(inode, key, name, for_writing)?;
                Handle::Chunk(file)
            }
            Node::Header(..) | Node::Dataset(_) => {
                let file;
                (file, pages) = self.open_composite(inode, &node, for_writing, direct)?;
                Handle::Composite(file)
            }
            Node::Metadata(key, file) => {
                let document = match file {
                    MetadataFile::Consolidated => self.tree.consolidated(key, Duration::ZERO)?,
                    _ => self.tree.document(key, *file)?,
                };
                memory::check_available()?;
                Handle::Document(document.ok_or_else(|| Error::system(libc::ESTALE))?)
            }
            Node::Value(key) if self.drafts.get(key).is_some() => self.open_to_write(inode, &node)?.0,
            Node::Value(key) => {
                self.tree.check_plain(&node, key)?;
                pages = KernelPages::Fresh;
                let file = self.tree.hierarchy().store().file(key).map_err(|e| e.context(key))?;
                Handle::Plain(PlainFile::new(inode, file.map(|(file, _)| file)))
            }
            Node::Unreadable(key) => {
                self.tree.check_plain(&node, key)?;
                return Err(self.tree.unreadable(key));
            }
            Node::Control(file) => {
                let text = self.control(*file).into_bytes();
                let memory = memory::take(text.capacity())?;
                Handle::Control(text, memory)
            }
            Node::Directory(_) | Node::ControlDirectory => return Err(Error::system(libc::EISDIR)),
        };
        let (handle, before) = (self.insert(handle), self.writers(&node, inode));
        Ok(Opened { has_other_writers: before > usize::from(for_writing), handle, pages, backing })
    }

    /// How many open files may write to the flat bytes that `node` is.
    fn writers(&self, node: &Node, inode: u64) -> usize {
        if let Node::Flat(key) = node { self.guards.writers(key, inode) } else { 0 }
    }

    fn open_array(&self, key: &Key) -> Result<Arc<Array>> {
        let array = self.tree.array(key)?;
        array.readable()?;
        Ok(array)
    }

    fn open_flat(&self, inode: u64, key: &Key, for_writing: bool, direct: bool) -> Result<(FlatFile, KernelPages)> {
        let array = self.open_array(key)?;
        // until the pages are noted: another opening must not have the kernel keep what this one has it drop
        let turn = array.opening();
        let same = self.cache.reopen(&array, &turn);
        let pages = match self.direct_io {
            true => KernelPages::None,
            false => self.pages_of(inode, VersionTag::of_array(&array, None), same),
        };
        drop(turn);
        let file = FlatFile {
            inode,
            array: CurrentArray(Mutex::new(array)),
            record: WriteRecord::default(),
            writable: for_writing,
            stored: StoredChunks::default(),
            readers: PrefetchState::default(),
            dropping: Dropping::new(inode, pages),
            once: !direct && !self.direct_io,
        };
        Ok((file, pages))
    }

    fn backing(&self, array: &Array, chunk: ChunkId) -> Result<Option<Backing>> {
        let found = if self.passthrough { array.plain_file(chunk)? } else { None };
        Ok(found.map(|(file, version)| Backing { file, mark: VersionTag::of_array(array, Some(&version)) }))
    }

    fn pages_of(&self, inode: u64, mark: VersionTag, same: bool) -> KernelPages {
        if self.pages.open(inode, mark, same) { KernelPages::Kept } else { KernelPages::Fresh }
    }

    /// A request of an open file has come: the kernel has the answer to its opening.
    fn answered(&self, dropping: &Dropping) {
        if dropping.0.load(Ordering::Relaxed) != 0 {
            self.pages.dropped(dropping.0.swap(0, Ordering::Relaxed));
        }
    }

    /// The array as it was last opened by anybody. It may block on the store.
    fn current(&self, opened: &CurrentArray) -> Result<Arc<Array>> {
        let old = lock(&opened.0).clone();
        if !old.is_superseded() {
            return Ok(old);
        }
        // the lock isn't held meanwhile: requests that need no store take it, too
        // what can't be stored stays, and whoever closes the file is told
        let _ = self.cache.flush_array(&old);
        let new = self.tree.array(old.key())?;
        new.readable()?;
        *lock(&opened.0) = new.clone();
        Ok(new)
    }

    /// Returns the same array as [`Fs::current`], or `None` if that would take the store.
    fn current_if_known(&self, opened: &CurrentArray) -> Option<Arc<Array>> {
        Some(lock(&opened.0).clone()).filter(|array| !array.is_superseded())
    }

    fn current_for(&self, opened: &CurrentArray, cached: bool) -> Result<Option<Arc<Array>>> {
        if cached { Ok(self.current_if_known(opened)) } else { self.current(opened).map(Some) }
    }

    fn insert(&self, handle: Handle) -> u64 {
        handle.writes_to().iter().for_each(|(array, inode)| self.guards.opened(array, *inode));
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        lock(&self.handles).insert(number, Arc::new(handle));
        number
    }

    fn handle(&self, number: u64) -> Result<Arc<Handle>> {
        lock(&self.handles).get(&number).cloned().ok_or_else(|| Error::system(libc::EBADF))
    }

    /// Closes a file or directory.
    pub fn release(&self, handle: u64) {
        let Some(closed) = lock(&self.handles).remove(&handle) else { return };
        // what can't be stored is on record, and waits for the next time
        match &*closed {
            Handle::Draft(draft) => self.release_draft(draft),
            Handle::Composite(open) => drop(self.flush_composite(open)),
            Handle::Chunk(file) => {
                self.answered(&file.dropping);
                self.release_chunk_file(file);
            }
            Handle::Flat(FlatFile { array, dropping, .. }) => {
                self.answered(dropping);
                let array = lock(&array.0).clone();
                self.resizing.finish_closed(array.key());
                if array.is_dirty() {
                    let _ = self.flush_array(&array);
                }
            }
            _ => {}
        }
        closed.writes_to().iter().for_each(|(array, inode)| self.guards.closed(array, *inode));
    }

    /// True if releasing an open file may take long.
    pub fn is_slow_release(&self, handle: u64) -> bool {
        self.handle(handle).is_ok_and(|handle| match &*handle {
            Handle::Flat(FlatFile { array, .. }) => lock(&array.0).is_dirty(),
            Handle::Chunk(file) => file.writable,
            Handle::Composite(open) => open.arrays().any(|array| array.is_dirty()),
            Handle::Draft(_) => true,
            _ => false,
        })
    }

    /// Reads up to `len` bytes at `offset` into `out`, replacing what is there; fewer only at the end of the file. If
    /// that would take the store or a wait, false is returned and `out` is worthless: [`Fs::read`] must follow.
    pub fn read_cached(&self, handle: u64, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<bool> {
        let handle = self.handle(handle)?;
        match &*handle {
            Handle::Flat(file) => {
                self.answered(&file.dropping);
                if !self.note_flat(file, offset, len) {
                    return Ok(false);
                }
            }
            Handle::Composite(open) if !self.note_composite(open, offset, len) => return Ok(false),
            Handle::Chunk(file) => self.answered(&file.dropping),
            _ => {}
        }
        self.read_from(&handle, offset, len, true, out)
    }

    /// Reads as [`Fs::read_cached`] does, whatever it takes.
    pub fn read(&self, handle: u64, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.read_from(&*self.handle(handle)?, offset, len, false, out).map(|_| ())
    }

    /// Gets ready for the next read: to be called when a reply has been sent.
    pub fn prepare(&self) {
        self.cache.refill_buffers();
    }

    fn read_from(&self, handle: &Handle, offset: u64, len: usize, cached: bool, out: &mut Vec<u8>) -> Result<bool> {
        let done = match handle {
            Handle::Flat(file) => self.read_flat(file, offset, len, cached, out)?,
            Handle::Composite(open) => self.read_composite(open, offset, len, cached, out)?,
            Handle::Chunk(file) => self.read_chunk_file(file, offset, len, cached, out)?,
            Handle::Document(document) => read_text(&document.text, offset, len, out),
            Handle::Control(text, _) => read_text(text, offset, len, out),
            // the state of a draft is locked while it is stored
            Handle::Draft(_) | Handle::Plain(_) if cached => false,
            Handle::Draft(draft) => {
                draft.read(offset, len, out);
                true
            }
            Handle::Plain(open) => {
                self.read_plain(open, offset, len, out)?;
                true
            }
            Handle::Directory(_) => return Err(Error::system(libc::EISDIR)),
        };
        if done {
            self.stats.bytes_served.add(out.len() as u64);
        }
        Ok(done)
    }

    /// Notes a request, to read ahead of it. False if the array has to be looked up first.
    fn note_flat(&self, file: &FlatFile, offset: u64, len: usize) -> bool {
        let Some(array) = self.current_if_known(&file.array) else { return false };
        flat::note(&self.ahead, &file.readers, &array, offset, len, file.once);
        true
    }

    fn read_flat(&self, file: &FlatFile, offset: u64, len: usize, cached: bool, out: &mut Vec<u8>) -> Result<bool> {
        let Some(array) = self.current_for(&file.array, cached)? else { return Ok(false) };
        let range = offset..offset.saturating_add(len as u64);
        match cached {
            true if self.waiting.overlaps(array.key(), &range) => return Ok(false),
            true => {}
            false => self.waiting.wait_for(array.key(), &range),
        }
        let whole = file.readers.is_forward(offset);
        if let Some(done) = self.ahead.read(&file.readers, &array, offset, len, cached, out) {
            return Ok(done);
        }
        let request = FlatRead { cache: &self.cache, ahead: &self.ahead, array: &array, offset, whole };
        request.read(len, cached, &self.stats, out)
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
        let piece = match self.cache.peek(array, chunk, ChunkPart::Whole) {
            Some(piece) => piece?,
            None if cached => return Ok(false),
            None => self.cache.get(array, chunk, ChunkPart::Whole)?,
        };
        let piece = piece.ok_or_else(stale)?;
        let bytes = piece.bytes();
        let start = offset.min(bytes.len() as u64) as usize;
        let end = bytes.len().min(start.saturating_add(len));
        out.resize(end - start, 0);
        let meta = array.metadata();
        if meta.order == Order::F && !meta.has_objects() {
            layout::read_f_order(&meta.chunks, meta.dtype.size(), bytes, start..end, out);
        } else {
            out.copy_from_slice(&bytes[start..end]);
        }
        Ok(true)
    }

    /// Where the next data or hole begins, at or after `offset`. ENXIO past the end, as lseek(2) says.
    pub fn seek(&self, inode: u64, handle: u64, offset: u64, seek: Seek) -> Result<u64> {
        let handle = self.handle(handle)?;
        let Handle::Flat(file) = &*handle else {
            let size = self.attributes(inode)?.size;
            return match seek {
                _ if offset >= size => Err(Error::system(libc::ENXIO)),
                Seek::Data => Ok(offset),
                Seek::Hole => Ok(size),
            };
        };
        let array = self.current(&file.array)?;
        self.settle(array.key(), None);
        match offset < array.size() {
            true => file.stored.seek(&array, offset, seek),
            false => Err(Error::system(libc::ENXIO)),
        }
    }

    /// Extended attributes that `audience` may know, each with its value.
    pub fn xattrs(&self, inode: u64, audience: Audience) -> Result<Vec<(String, Vec<u8>)>> {
        self.tree.xattrs(&*self.tree.node(inode)?, audience)
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
            ControlFile::Sync => self.flush_all().map_or_else(|e| format!("{e}\n"), |()| String::new()),
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

/// Reads up to `len` bytes at `offset` of a text.
fn read_text(text: &[u8], offset: u64, len: usize, out: &mut Vec<u8>) -> bool {
    let start = (offset.min(text.len() as u64)) as usize;
    out.clear();
    out.extend_from_slice(&text[start..text.len().min(start.saturating_add(len))]);
    true
}

impl Handle {
    /// The arrays whose flat bytes may be written through the file, each with the file's inode number.
    fn writes_to(&self) -> Vec<(Key, u64)> {
        match self {
            Handle::Flat(file) if file.writable => vec![(lock(&file.array.0).key().clone(), file.inode)],
            Handle::Chunk(file) if file.writable => vec![(lock(&file.array.0).key().clone(), file.inode)],
            Handle::Composite(open) if open.writable => open.keys().map(|key| (key.clone(), open.inode)).collect(),
            _ => Vec::new(),
        }
    }

    /// The record of a file through which the array at `key` may be written.
    fn record_of(&self, key: &Key) -> Option<&WriteRecord> {
        let record = match self {
            Handle::Flat(file) => &file.record,
            Handle::Chunk(file) => &file.record,
            Handle::Composite(open) => &open.record,
            _ => return None,
        };
        self.writes_to().iter().any(|(array, _)| array == key).then_some(record)
    }
}

impl Dropping {
    fn new(inode: u64, pages: KernelPages) -> Self {
        Dropping(AtomicU64::new(if pages == KernelPages::Fresh { inode } else { 0 }))
    }
}

#[cfg(test)]
mod composites;
#[cfg(test)]
mod far;
#[cfg(test)]
mod latency;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod races;
#[cfg(test)]
mod model;
#[cfg(test)]
mod pages_model;
#[cfg(test)]
mod tests;
