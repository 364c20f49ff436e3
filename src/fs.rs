//! The file system of one mount: names, open files and directories, in types of its own. It is
//! tested without FUSE and must not know of it.

use crate::cache::{Cache, FoundBytes, Prefetcher, SpillOptions, WRITE_BACK_THREADS, Wait};
use crate::fs::tree::{Attributes, Audience, Node, Tree, ViewedFile};
use files::chunk::ChunkFile;
use files::composite::CompositeFile;
use files::document::DocumentFile;
use files::flat::FlatFile;
use files::view::OpenView;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory;
use zarrfs_base::pool::{Pool, PoolGrowth, processors};
use zarrfs_base::stats::Stats;
use zarrfs_store::{Key, Store, StoreExt, SubtreeLocks};

mod absent_names;
mod arrays;
mod blocking;
mod change;
mod content;
mod copies;
mod directory;
mod early_files;
mod encoded_values;
mod files;
mod flush;
mod ingest;
mod lost_names;
mod metrics;
mod modes;
mod names;
mod opened_file;
mod page_guards;
mod pages;
mod rename;
mod reshape;
mod resize;
mod survival;
mod sync;
pub mod tree;
mod truncation;
mod unlinked;
mod waiting;
mod write;
mod write_record;
mod zeros;

pub use absent_names::AbsentNames;
pub use arrays::WrittenArrays;
pub use blocking::RequestKind;
pub use change::Change;
pub use directory::DirectoryEntry;
use directory::DirectoryStream;
pub use files::Seek;
use files::chunk::created::CreatedChunks;
pub use files::control::Facts;
use files::draft::Drafts;
use files::ingested::BegunDrafts;
use files::plain::PlainFile;
use files::{Handles, LoadedBlocks, NewFile, OpenFile, OpenedTexts};
use lost_names::LostNames;
pub use opened_file::{KernelPages, OpenedFile};
pub use page_guards::GuardId;
use pages::Pages;
pub use survival::FileOpening;
use survival::OpenRecords;
use sync::Syncs;
use truncation::Truncations;
pub use waiting::WaitingWrite;
use waiting::WaitingWrites;
pub use write::StalePages;
use write::WriteMode;

/// Options for reading and writing files.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whether the sizes of flat bytes can be changed.
    pub resize: bool,
    /// Number of prefetching threads.
    pub threads: usize,
    /// Whether reads of flat bytes bypass the kernel's page cache.
    pub direct_io: bool,
    /// Directory and size limit of spill files, for decoded chunks that are needed again and do not
    /// fit into the cache, for drafts and other writes, and for texts of open files.
    pub spill: SpillOptions,
}

impl Options {
    /// Returns whether an array determines the size of a node, and programs may change it.
    fn is_resized(&self, node: &Node) -> bool {
        self.resize && node.resized().is_some()
    }
}

/// Maximum length in bytes of a name that a program may create, as in other file systems.
pub const MAX_NAME: usize = 255;

/// Write-back threads added while chunks of one array wait for a lock or for the store, so that
/// those of another array are stored nevertheless. A busy disk is no reason to add one.
const WRITE_BACK_GROWTH: PoolGrowth = PoolGrowth {
    patience: Duration::from_secs(2),
    max_threads: 64,
};

/// The file system of one mount.
///
/// ```
/// use std::sync::Arc;
/// use zarrfs::array::hierarchy::Hierarchy;
/// use zarrfs::cache::{Cache, SpillOptions};
/// use zarrfs::fs::tree::Tree;
/// use zarrfs::fs::{Fs, Options};
/// use zarrfs_base::stats::Stats;
/// use zarrfs_store::MemoryStore;
/// use zarrfs_format::metadata::V1Order;
///
/// let (store, stats) = (Arc::new(MemoryStore::default()), Arc::<Stats>::default());
/// store.insert("a/1.0", [5, 6]);
/// store.insert("a/.zarray", br#"{"zarr_format": 2, "shape": [2, 2], "chunks": [1, 2], "dtype": "|u1",
///     "compressor": null, "filters": null, "fill_value": 9, "order": "C"}"#);
/// let cache = Arc::new(Cache::new(1 << 20, stats.clone()));
/// let tree = Tree::new(Hierarchy::new(store, V1Order::Zarr1, stats.clone()), cache.clone());
/// let spill = SpillOptions { directory: std::env::temp_dir(), limit: 1 << 20 };
/// let options = Options { read_only: true, resize: false, threads: 1, direct_io: false, spill };
/// let fs = Fs::new(tree, cache, stats, options)?;
///
/// // the root has inode number 1
/// let array = fs.lookup(1, "a")?.inode;
/// let opened = fs.open(fs.lookup(array, "data.raw")?.inode, false, false)?;
/// let mut bytes = Vec::new();
/// fs.read(opened.handle, 0, 4, &mut bytes)?;
/// assert_eq!(bytes, [9, 9, 5, 6]);
/// fs.change().release(opened.handle);
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
pub struct Fs {
    tree: Arc<Tree>,
    cache: Arc<Cache>,
    arrays: WrittenArrays,
    prefetcher: Prefetcher,
    /// Useful number of concurrent requests to the store.
    concurrency: usize,
    options: Options,
    /// Background write-back pool.
    write_back: Pool,
    /// Whether a job of this pool waits for a thread. Once it runs, it stores chunks until none has
    /// to be stored.
    is_write_back_queued: Arc<AtomicBool>,
    /// Locks of arrays while integers shown as doubles are written, which reads and rewrites whole
    /// items.
    converting: SubtreeLocks,
    pages: Pages,
    /// Protects the files whose pages the kernel still has to drop after changes without a request,
    /// by inode number, with the guards to be removed then.
    unsent_stale_pages: Mutex<HashMap<u64, Vec<GuardId>>>,
    waiting: WaitingWrites,
    opened_texts: Arc<OpenedTexts>,
    loaded_blocks: Arc<LoadedBlocks>,
    drafts: Drafts,
    begun: BegunDrafts,
    created_chunks: CreatedChunks,
    truncations: Truncations,
    syncs: Syncs,
    facts: Facts,
    absent: AbsentNames,
    lost: LostNames,
    stats: Arc<Stats>,
    files: Handles<dyn OpenFile>,
    /// The open directories. Each lock protects a stream while one reply is made from it.
    directories: Handles<Mutex<DirectoryStream>>,
    /// What a successor must know, if the mount outlives its daemon.
    open_records: OnceLock<OpenRecords>,
}

impl Fs {
    /// Creates the file system that shows `tree` and reads through `cache`.
    pub fn new(tree: Tree, cache: Arc<Cache>, stats: Arc<Stats>, options: Options) -> Result<Self> {
        let concurrency = tree.hierarchy().store().concurrency();
        let tree = Arc::new(tree);
        Ok(Fs {
            arrays: WrittenArrays::new(
                tree.clone(),
                cache.clone(),
                options.spill.directory.clone(),
            ),
            absent: AbsentNames::new(tree.clone()),
            lost: LostNames::new(tree.clone(), options.read_only),
            tree,
            concurrency,
            prefetcher: Prefetcher::new(
                cache.clone(),
                options.threads,
                concurrency,
                options.spill.clone(),
            )?,
            opened_texts: OpenedTexts::new(options.spill.clone()),
            loaded_blocks: LoadedBlocks::new(),
            options,
            write_back: Pool::growing(
                "write-back",
                WRITE_BACK_THREADS.max(processors()),
                WRITE_BACK_GROWTH,
            )?,
            is_write_back_queued: Arc::default(),
            converting: SubtreeLocks::default(),
            pages: Pages::new(),
            unsent_stale_pages: Mutex::default(),
            waiting: WaitingWrites::default(),
            drafts: Drafts::default(),
            begun: BegunDrafts::default(),
            created_chunks: CreatedChunks::default(),
            truncations: Truncations::default(),
            syncs: Syncs::new(cache.clone(), stats.clone()),
            facts: Facts::default(),
            cache,
            stats,
            files: Handles::new(),
            directories: Handles::new(),
            open_records: OnceLock::new(),
        })
    }

    /// Returns the tree that is mounted.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the names that exist and that programs do not find.
    pub fn absent_names(&self) -> &AbsentNames {
        &self.absent
    }

    /// Returns the open files.
    pub fn files(&self) -> &Handles<dyn OpenFile> {
        &self.files
    }

    /// Returns the arrays whose bytes are written.
    pub fn arrays(&self) -> &WrittenArrays {
        &self.arrays
    }

    fn store(&self) -> &dyn Store {
        self.tree.hierarchy().store()
    }

    /// Looks up a name and counts the lookup.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no such name, ENAMETOOLONG if no file system has such names. A bucket
    /// may.
    pub fn lookup(&self, parent: u64, name: &str) -> Result<Attributes> {
        let (parent, name) = self.place(parent, name)?;
        let Some((node, attributes)) = self.find(&parent, &name)? else {
            return Err(match name.len() {
                0..=MAX_NAME => Error::not_found("no such file"),
                _ => Error::system(libc::ENAMETOOLONG),
            });
        };
        let attributes = self.arrays.sized(&node, attributes)?;
        Ok(self.truncations.shown(Attributes {
            inode: self.tree.live.remember(node),
            ..attributes
        }))
    }

    /// Returns the attributes of an inode.
    pub fn attributes(&self, inode: u64) -> Result<Attributes> {
        self.whole_attributes(inode)
            .map(|attributes| self.truncations.shown(attributes))
    }

    /// Returns the attributes of an inode, with the size that it has unless it is truncated.
    fn whole_attributes(&self, inode: u64) -> Result<Attributes> {
        let named = self.tree.node(inode);
        let named = named.and_then(|node| self.named_attributes(&node));
        let attributes = match named {
            // the name may show another file meanwhile, or none
            Err(e) if e.errno() == libc::ESTALE => self.lost_attributes(inode).ok_or(e)?,
            attributes => attributes?,
        };
        Ok(Attributes {
            inode,
            ..attributes
        })
    }

    /// Returns the attributes of a node that had a name just now.
    fn named_attributes(&self, node: &Node) -> Result<Attributes> {
        if let Some(attributes) = self.attributes_while_open(node) {
            return Ok(attributes);
        }
        if let Some((key, name)) = node.chunk() {
            self.arrays.settle(key, Some(name));
        } else if let Some(key) = node.value() {
            self.arrays.settle_object(key);
        }
        self.arrays.sized(node, self.tree.attributes(node)?)
    }

    /// Returns the extended attributes that `audience` may read, each with its value; with `wanted`
    /// only the one of that name.
    pub fn xattrs(
        &self,
        inode: u64,
        audience: Audience,
        wanted: Option<&str>,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        let named = self.tree.node(inode);
        match named.and_then(|node| self.tree.xattrs(&node, audience, wanted)) {
            // a file without a name has no extended attributes
            Err(e) if e.errno() == libc::ESTALE => {
                self.lost_attributes(inode).map(|_| Vec::new()).ok_or(e)
            }
            found => found,
        }
    }

    /// Returns whether any file or directory is open. Control files do not count, nor does the
    /// root: `df` opens it.
    pub fn is_open(&self) -> bool {
        // a locked directory is being listed
        self.files.any(|file| file.is_use())
            || self
                .directories
                .any(|directory| directory.try_lock().map_or(true, |stream| stream.is_use()))
    }

    /// Returns the useful number of concurrent requests to the store: more than one if it is
    /// remote.
    pub fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// Returns an error if the mount is read-only.
    pub fn writable(&self) -> Result<()> {
        if self.options.read_only {
            Err(Error::new(Kind::ReadOnly, "the mount is read-only"))
        } else {
            Ok(())
        }
    }

    /// Opens a file for the owner of the mount. Reads through it return bytes at least as new as
    /// the store's at this moment. `direct` is set if the program asked for O_DIRECT.
    pub fn open(&self, inode: u64, for_writing: bool, direct: bool) -> Result<OpenedFile> {
        self.open_for(Audience::Owner, inode, for_writing, direct)
    }

    /// Opens a file as [`Fs::open`] does, for one of `audience`.
    pub fn open_for(
        &self,
        audience: Audience,
        inode: u64,
        for_writing: bool,
        direct: bool,
    ) -> Result<OpenedFile> {
        if for_writing {
            self.writable()?;
        }
        let node = self.tree.node(inode).ok();
        let chunk = node.filter(|node| for_writing && node.chunk().is_some());
        let opening = chunk.map(|node| self.lost.opening(&node.path()));
        let opened = self.open_named(audience, inode, for_writing, direct);
        drop(opening);
        opened.or_else(|e| self.open_lost(inode, e))
    }

    fn open_named(
        &self,
        audience: Audience,
        inode: u64,
        for_writing: bool,
        direct: bool,
    ) -> Result<OpenedFile> {
        self.truncations.settle(inode);
        let node = self.tree.node(inode)?;
        if for_writing {
            self.tree.hierarchy().check_not_archived(&node.path())?;
        }
        self.tree.revalidate(&node);
        self.tree.check_snapshot(inode, &node)?;
        let header = node.header().filter(|_| node.view().is_none());
        if let Some(key) = node.flat().or(header.map(|(key, _)| key))
            && !for_writing
        {
            self.check_not_dismantled(key)?;
        }
        if let Some(key) = node.value() {
            self.arrays.settle_object(key);
        }
        let new = match &*node {
            _ if for_writing && !self.tree.has_fixed_size(&node)? => {
                self.open_to_write(inode, &node)?
            }
            Node::Flat(key) => FlatFile::open(self, inode, key, for_writing, direct)?,
            Node::Chunk(key, name) => ChunkFile::open(self, inode, key, name, for_writing)?,
            Node::ViewFile(key, view, ViewedFile::Flat) => {
                OpenView::open(self, inode, &node, (key, view), for_writing)?
            }
            Node::Ingested(path) => self.open_ingested(inode, path, for_writing, direct)?,
            _ if node.is_composite() => {
                let (file, pages) = CompositeFile::open(self, inode, &node, for_writing, direct)?;
                NewFile::new(Arc::new(file), pages)
            }
            Node::Metadata(key, file) => DocumentFile::open(self, inode, key, *file)?,
            Node::Value(key) if self.drafts.get(key).is_some() => {
                self.open_to_write(inode, &node)?
            }
            Node::Value(key) => {
                self.tree.check_plain(&node, key)?;
                let file = self.store().file(key).context(key)?;
                PlainFile::open(inode, file.map(|(file, _)| file))
            }
            Node::Unreadable(key) => {
                self.tree.check_plain(&node, key)?;
                return Err(self.tree.unreadable(key));
            }
            Node::Control(file) => self.open_control(inode, *file, audience)?,
            _ => return Err(Error::system(libc::EISDIR)),
        };
        let opened = self.insert(new);
        let is_written_while_shared = node.flat().is_some_and(|key| {
            self.files.note_sharing(inode) && self.arrays.guards.writers(key, inode) > 0
        });
        Ok(OpenedFile {
            is_written_while_shared,
            has_lasting_attributes: node.chunk().is_some(),
            ..opened
        })
    }

    /// Checks that the document of the array at `key` was not removed. A program that moves an
    /// array file by file would read the fill values of chunks that it has removed, and write them
    /// over the moved ones.
    fn check_not_dismantled(&self, key: &Key) -> Result<()> {
        if self.options.read_only || !self.tree.hierarchy().lost_document(key)? {
            return Ok(());
        }
        Err(Error::not_found(
            "the array's document was removed: write it before reading flat bytes",
        )
        .context(key))
    }

    /// Assigns a handle to a new file.
    fn insert(&self, new: NewFile) -> OpenedFile {
        let NewFile { file, pages } = new;
        file.written_arrays()
            .iter()
            .for_each(|array| self.arrays.guards.opened(array, file.inode()));
        let handle = self.files.insert(file);
        OpenedFile {
            handle,
            pages,
            is_written_while_shared: false,
            has_lasting_attributes: false,
        }
    }

    /// Reads up to `len` bytes at `offset`, fewer only at the end of the file: from the cache, or
    /// into `out`, replacing its content. A caller that must not wait asks with [`Wait::Never`]
    /// first, which records the request, and repeats it with [`Wait::Allowed`] where it may.
    pub fn read_with(
        &self,
        handle: u64,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        let file = self.files.get(handle)?;
        let found = if let Some(zeros) = self.truncations.read_held(file.inode(), offset, len) {
            *out = zeros;
            FoundBytes::Copied
        } else {
            let len = self.truncations.readable(handle, &*file, offset, len);
            file.read(self, offset, len, wait, out)?
        };
        self.stats.bytes_served.add(found.bytes(out).len() as u64);
        Ok(found)
    }

    /// Reads as [`Fs::read_with`] does without a wait, always into `out`. Returns `false` if it has
    /// to wait.
    pub fn read_cached(
        &self,
        handle: u64,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let found = self.read_with(handle, offset, len, Wait::Never, out)?;
        Ok(found.copy_to(out))
    }

    /// Reads as [`Fs::read_with`] does with a wait, always into `out`.
    pub fn read(&self, handle: u64, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let found = self.read_with(handle, offset, len, Wait::Allowed, out)?;
        found.copy_to(out);
        Ok(())
    }

    /// Returns the offset, at or after `offset`, where the next data or hole begins: see
    /// `OpenFile::seek`.
    pub fn seek(&self, handle: u64, offset: u64, target: Seek) -> Result<u64> {
        let file = self.files.get(handle)?;
        self.truncations.seek(file.inode(), offset, target, || {
            file.seek(self, offset, target)
        })
    }

    /// Records a write that has to wait: reads of its bytes wait until the returned value is
    /// dropped. Returns `None` for files whose pages the kernel does not keep while they are
    /// written.
    pub fn waiting_write(&self, handle: u64, offset: u64, len: usize) -> Option<WaitingWrite> {
        let file = self.files.get(handle).ok()?;
        let range = offset..offset.saturating_add(len as u64);
        Some(self.waiting.begin(file.as_flat()?.array.key(), range))
    }

    /// Returns the inode numbers of the `data.raw` of all arrays that are written through an open
    /// file: a flush of the file is answered after their pages are dropped.
    pub fn files_with_pages(&self, handle: u64) -> Vec<u64> {
        let Ok(file) = self.files.get(handle) else {
            return Vec::new();
        };
        file.written_arrays()
            .into_iter()
            .map(|array| self.tree.flat_inode(&array))
            .collect()
    }

    /// Records the error that a request is answered with as a problem: see [`Stats::report`].
    pub fn report(&self, e: Error) -> Error {
        self.stats.report(e)
    }
}

impl Change<'_> {
    /// Closes a file.
    pub fn release(&self, handle: u64) {
        self.end_truncation(handle);
        let Some(file) = self.files.remove(handle) else {
            return;
        };
        file.release(self);
        self.record_release(handle);
        file.written_arrays()
            .iter()
            .for_each(|array| self.arrays.guards.closed(array, file.inode()));
    }

    /// Writes `data` at `offset` and returns the number of bytes written: see `OpenFile::write`.
    pub fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<usize> {
        let written = self.write_with(handle, offset, data, Wait::Allowed, false)?;
        Ok(written.unwrap_or_default())
    }

    /// Writes as [`Change::write`] does, or returns `None` if that needs the store or a wait and
    /// `wait` does not allow it: the caller must then repeat the write. `mapped` is set for pages
    /// that a shared map has made dirty. The bytes are visible to all readers when this returns.
    pub fn write_with(
        &self,
        handle: u64,
        offset: u64,
        data: &[u8],
        wait: Wait,
        mapped: bool,
    ) -> Result<Option<usize>> {
        let mode = WriteMode {
            mapped,
            wait,
            ..WriteMode::internal()
        };
        let file = self.files.get(handle)?;
        // before the bytes are in memory: a store that ends meanwhile may lack them
        self.record_written(handle);
        let written = self.write_in(&*file, offset, data, mode);
        if matches!(written, Ok(None)) {
            return Ok(None);
        }
        self.record_held(handle, &*file);
        let written = written?.unwrap_or_default();
        self.stats.bytes_accepted.add(written as u64);
        if self.cache.wants_background_flush()
            && !self.is_write_back_queued.swap(true, Ordering::Relaxed)
        {
            let cache = self.cache.clone();
            let is_queued = self.is_write_back_queued.clone();
            self.write_back.run(move || {
                is_queued.store(false, Ordering::Relaxed);
                // the close of the file reports errors; the array pauses after one
                while cache.wants_background_flush() && cache.flush_in_background().unwrap_or(true)
                {
                    memory::begin_request();
                }
            });
        }
        Ok(Some(written))
    }

    /// Stores everything written through an open file, at each close: see `OpenFile::flush`.
    pub fn flush(&self, handle: u64) -> Result<()> {
        let file = self.files.get(handle)?;
        self.truncations.closed(file.inode(), handle);
        let stored = self.record_stored(handle, &*file, || file.flush(self));
        self.restore_rows(file.inode(), handle).and(stored)
    }

    /// Makes durable what was written in place through an open file with O_SYNC or O_DSYNC.
    pub fn sync_write(&self, handle: u64) -> Result<()> {
        self.files.get(handle)?.sync_in_place(self)?;
        self.store().sync()
    }

    /// Stores everything written through an open file, and makes it durable.
    pub fn fsync(&self, handle: u64) -> Result<()> {
        let file = self.files.get(handle)?;
        self.record_stored(handle, &*file, || file.fsync(self))?;
        self.store().sync()
    }
}

#[cfg(test)]
mod tests;
