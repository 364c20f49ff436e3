//! Compares the file system under a model of the kernel's page cache with an array of bytes. Random
//! sequences write through every kind of file, through the cache and past it, through a shared map,
//! by another program, and while the store does not answer. Every byte that is read or stored must
//! be the one that was written last.
//!
//! The model follows Linux: a cached write changes pages before it sends its request, and unlocks
//! those that it fills; a map makes pages dirty, and the kernel writes back whole pages; dropping
//! pages writes back the dirty ones. Its pages are small, but each overlaps several chunks.

use super::with_tree;
use crate::array::Array;
use crate::fs::tests::model::mount;
use crate::fs::tree::Headers;
use crate::fs::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use zarrfs_export::Format;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::MemoryStore;
use zarrfs_store::testing::FaultyStore;

/// Sizes in bytes of a page, a chunk and the array.
const PAGE: usize = 8;
const CHUNK: usize = 6;
const SIZE: usize = 32;

/// Size in bytes of the header of `data.npy`.
const HEADER: usize = 128;

/// The file that is mapped, if any.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mapped {
    Nothing,
    Flat,
    Npy,
    /// The chunk file `2`.
    Chunk,
}

/// An operation. Its numbers are chunks, positions and lengths.
#[derive(Clone, Debug)]
enum Op {
    /// A cached write of `data.raw`. With the flag, its pages are dropped and read again before the
    /// request arrives.
    Write(usize, usize, bool),
    WriteDirect(usize, usize),
    /// A write past the page cache, through a descriptor that can't read. With the flag another
    /// program reads before the request arrives.
    WritePast(usize, usize, bool),
    WriteNpy(usize, usize),
    WriteChunk(usize, usize, usize),
    /// A file is renamed to a chunk (`true`), or a chunk file is written anew.
    ReplaceChunk(usize, bool),
    /// A chunk file is written anew, but ends too early.
    RefusedDraft(usize),
    Unlink(usize),
    Store(usize, usize),
    /// The kernel writes back the dirty pages and keeps them.
    WriteBack,
    /// The kernel drops clean pages to get memory.
    Reclaim,
    Read(usize, usize),
    ReadDirect(usize, usize),
    ReadNpy(usize, usize),
    ReadChunk(usize),
    Sync,
    Open,
    /// Another program changes the store.
    Foreign(usize, usize),
    /// A program truncates `data.raw`, writes into it and closes it.
    Truncate(usize, usize, usize),
    /// A write that has to wait, while the kernel drops its pages and a program reads them.
    Slow(usize, usize),
    /// A notification that no answer waits for.
    Notify,
}

fn op() -> impl Strategy<Value = Op> {
    let at = || 0..SIZE;
    let len = || 1..=2 * PAGE;
    let chunk = || 0..SIZE.div_ceil(CHUNK);
    prop_oneof![
        6 => (at(), len(), any::<bool>()).prop_map(|(at, len, drops)| Op::Write(at, len, drops)),
        2 => (at(), len()).prop_map(|(at, len)| Op::WriteDirect(at, len)),
        3 => (at(), len(), any::<bool>()).prop_map(|(at, len, reads)| Op::WritePast(at, len, reads)),
        3 => (at(), len()).prop_map(|(at, len)| Op::WriteNpy(at, len)),
        3 => (chunk(), 0..CHUNK, len()).prop_map(|(chunk, at, len)| Op::WriteChunk(chunk, at, len)),
        1 => (chunk(), any::<bool>()).prop_map(|(chunk, renames)| Op::ReplaceChunk(chunk, renames)),
        1 => chunk().prop_map(Op::RefusedDraft),
        1 => chunk().prop_map(Op::Unlink),
        6 => (at(), 1..4usize).prop_map(|(at, len)| Op::Store(at, len)),
        1 => Just(Op::WriteBack),
        2 => Just(Op::Reclaim),
        4 => (at(), len()).prop_map(|(at, len)| Op::Read(at, len)),
        1 => (at(), len()).prop_map(|(at, len)| Op::ReadDirect(at, len)),
        2 => (at(), len()).prop_map(|(at, len)| Op::ReadNpy(at, len)),
        1 => chunk().prop_map(Op::ReadChunk),
        1 => Just(Op::Sync),
        1 => Just(Op::Open),
        1 => (at(), len()).prop_map(|(at, len)| Op::Foreign(at, len)),
        1 => (at(), at(), len()).prop_map(|(end, at, len)| Op::Truncate(end, at, len)),
        1 => (at(), len()).prop_map(|(at, len)| Op::Slow(at, len)),
        2 => Just(Op::Notify),
    ]
}

fn mapped() -> impl Strategy<Value = Mapped> {
    prop::sample::select(vec![
        Mapped::Nothing,
        Mapped::Flat,
        Mapped::Flat,
        Mapped::Npy,
        Mapped::Chunk,
    ])
}

/// A page in the kernel's page cache.
#[derive(Clone)]
struct Page {
    bytes: Vec<u8>,
    is_dirty: bool,
}

/// An open file, and the position of its bytes in the array.
#[derive(Clone, Copy)]
struct Open {
    inode: u64,
    handle: u64,
    /// The position in the file of the array's first byte.
    start: i64,
    /// Size of the file in bytes.
    len: usize,
}

struct Kernel {
    fs: Arc<Fs>,
    store: Arc<FaultyStore>,
    memory: Arc<MemoryStore>,
    pages: BTreeMap<(u64, usize), Page>,
    flat: Open,
    reader: Open,
    /// `data.raw`, opened to be written alone.
    writer: Open,
    npy: Open,
    /// The mapped file.
    map: Option<Open>,
    /// Files whose pages a later notification drops, each with the guards to remove then.
    notices: Vec<(u64, Vec<GuardId>)>,
    /// Whether pages of `data.raw` were dropped before: see `fuse::page_reads`.
    were_dropped: bool,
    /// The value that each byte of the array must have.
    expected: Vec<u8>,
    /// For each byte, whether its last change is only in a dirty page of the map.
    only_mapped: Vec<bool>,
    /// For each byte, whether its last change came from another map: `data.raw` shows it after a
    /// notification.
    late: Vec<bool>,
    /// The files that the request in progress has made stale.
    stale: RefCell<Vec<StalePages>>,
    next: u8,
}

fn document() -> String {
    format!(
        r#"{{"zarr_format":2,"shape":[{SIZE}],"chunks":[{CHUNK}],"dtype":"|u1","compressor":{{"id":"zlib"}},"fill_value":0,
        "order":"C","filters":null}}"#
    )
}

fn mounted(store: &Arc<FaultyStore>, bound: usize) -> Arc<Fs> {
    let fs = mount(store, bound);
    let headers = Headers {
        formats: vec![Format::Npy],
        ..Headers::default()
    };
    Arc::new(with_tree(fs, |tree| tree.with_headers(headers)))
}

impl Kernel {
    fn new(bound: usize, mapped: Mapped) -> Kernel {
        let memory = Arc::new(MemoryStore::default());
        let store = Arc::new(FaultyStore::new(memory.clone()));
        memory
            .put(&Key::normalize("a/.zarray").unwrap(), document().as_bytes())
            .unwrap();
        let fs = mounted(&store, bound);
        let [flat, reader, writer, npy] = [
            ("data.raw", true),
            ("data.raw", false),
            ("data.raw", true),
            ("data.npy", true),
        ]
        .map(|(name, writes)| {
            let start = if name == "data.npy" { HEADER } else { 0 };
            open(&fs, name, writes, start as i64, start + SIZE)
        });
        assert!(fs.files().write_past_pages(writer.handle));
        let map = match mapped {
            Mapped::Nothing => None,
            Mapped::Flat => Some(open(&fs, "data.raw", true, 0, SIZE)),
            Mapped::Npy => Some(open(&fs, "data.npy", true, HEADER as i64, HEADER + SIZE)),
            Mapped::Chunk => {
                fs.change()
                    .write(flat.handle, 2 * CHUNK as u64, &[1])
                    .unwrap();
                fs.change().fsync(flat.handle).unwrap();
                Some(open(&fs, "2", true, -2 * CHUNK as i64, CHUNK))
            }
        };
        let mut expected = vec![0; SIZE];
        if mapped == Mapped::Chunk {
            expected[2 * CHUNK] = 1;
        }
        let pages = BTreeMap::new();
        let notices = Vec::new();
        let only_mapped = vec![false; SIZE];
        let were_dropped = false;
        Kernel {
            fs,
            store,
            memory,
            pages,
            flat,
            reader,
            writer,
            npy,
            map,
            notices,
            were_dropped,
            expected,
            only_mapped,
            late: vec![false; SIZE],
            stale: RefCell::default(),
            next: 1,
        }
    }

    /// Makes a change, and keeps the list of stale pages until the request is answered.
    fn changed<T>(&self, work: impl FnOnce(&Change) -> T) -> T {
        let change = self.fs.change();
        let done = work(&change);
        self.stale.borrow_mut().extend(change.take_stale_pages());
        done
    }

    fn some_bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).for_each(|_| self.next = self.next.wrapping_mul(5).wrapping_add(7));
        (0..len as u8)
            .map(|i| (i.wrapping_mul(31) ^ self.next) | 1)
            .collect()
    }

    /// Records that bytes of the array were written through a file other than the map.
    fn written(&mut self, at: usize, data: &[u8]) {
        self.expected[at..at + data.len()].copy_from_slice(data);
        self.only_mapped[at..at + data.len()].fill(false);
        self.late[at..at + data.len()].fill(false);
    }

    /// Answers a request: drops the stale pages that the answer waits for, and queues the others.
    fn answer(&mut self) {
        for stale in self.stale.take() {
            self.notices.push((stale.inode, stale.guards));
            if stale.is_awaited {
                self.notify_of(stale.inode);
            }
        }
    }

    /// Carries out all notifications for a file together, as the daemon does.
    fn notify_of(&mut self, inode: u64) {
        let (these, others) = std::mem::take(&mut self.notices)
            .into_iter()
            .partition(|(other, _)| *other == inode);
        self.notices = others;
        self.drop_pages(inode, 0..usize::MAX);
        let these: Vec<(u64, Vec<GuardId>)> = these;
        these
            .iter()
            .for_each(|(_, guards)| self.fs.arrays.pages_dropped(guards));
        if inode == self.flat.inode {
            self.late.fill(false);
        }
    }

    /// Drops the pages of a file in a range of bytes, after writing back the dirty ones.
    fn drop_pages(&mut self, inode: u64, range: Range<usize>) {
        let touched = |page: usize| page * PAGE < range.end && (page + 1) * PAGE > range.start;
        let pages: Vec<(u64, usize)> = self
            .pages
            .keys()
            .filter(|(i, page)| *i == inode && touched(*page))
            .copied()
            .collect();
        for key in pages {
            self.write_back(key);
            self.pages.remove(&key);
        }
        self.were_dropped |= inode == self.flat.inode;
    }

    fn write_back(&mut self, key: (u64, usize)) {
        let Some(page) = self.pages.get_mut(&key).filter(|page| page.is_dirty) else {
            return;
        };
        page.is_dirty = false;
        let bytes = page.bytes.clone();
        let map = self.map.expect("a dirty page has a map");
        let at = (key.1 * PAGE) as u64;
        if self
            .changed(|fs| fs.write_with(map.handle, at, &bytes, Wait::Never, true))
            .unwrap()
            .is_none()
        {
            assert_eq!(
                self.changed(|fs| fs.write_with(map.handle, at, &bytes, Wait::Allowed, true))
                    .unwrap(),
                Some(bytes.len())
            );
        }
        for i in 0..bytes.len() {
            let position = (at as i64 + i as i64) - map.start;
            if (0..SIZE as i64).contains(&position) {
                let was_only_mapped = std::mem::take(&mut self.only_mapped[position as usize]);
                self.late[position as usize] |= was_only_mapped && map.inode != self.flat.inode;
            }
        }
        // the write-back of a page waits for no notification
        let stale = self.stale.take();
        self.notices
            .extend(stale.into_iter().map(|stale| (stale.inode, stale.guards)));
    }

    /// Returns a page of a file, and reads it if the kernel does not have it.
    fn page(&mut self, file: Open, page: usize) -> Vec<u8> {
        if let Some(page) = self.pages.get(&(file.inode, page)) {
            return page.bytes.clone();
        }
        let bytes = read(&self.fs, file.handle, page * PAGE, PAGE);
        self.pages.insert(
            (file.inode, page),
            Page {
                bytes: bytes.clone(),
                is_dirty: false,
            },
        );
        bytes
    }

    /// Reads through the page cache.
    fn cached(&mut self, file: Open, range: Range<usize>) -> Vec<u8> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let first = pages.start * PAGE;
        let bytes: Vec<u8> = pages.flat_map(|page| self.page(file, page)).collect();
        bytes[range.start - first..range.end - first].to_vec()
    }

    /// Compares bytes that were read from the array with the expected ones. Other files need not
    /// show bytes that only the map has changed.
    fn check(&self, at: usize, bytes: &[u8], through_map: bool, what: &str) {
        for (i, byte) in bytes.iter().enumerate() {
            let is_free = self.only_mapped[at + i] && !through_map;
            assert!(
                is_free || *byte == self.expected[at + i],
                "{what}: byte {} of {at}",
                at + i
            );
        }
    }

    fn is_mapped(&self, file: Open) -> bool {
        self.map.is_some_and(|map| map.inode == file.inode)
    }

    /// Does the first half of a cached write: the kernel changes its pages, and unlocks those that
    /// are wholly written.
    fn fill_pages(&mut self, at: usize, data: &[u8]) {
        for page in at / PAGE..(at + data.len()).div_ceil(PAGE) {
            let start = (page * PAGE).max(at);
            let end = ((page + 1) * PAGE).min(at + data.len());
            let key = (self.flat.inode, page);
            if end - start == PAGE {
                self.pages.entry(key).or_insert(Page {
                    bytes: vec![0; PAGE],
                    is_dirty: false,
                });
            }
            if let Some(held) = self.pages.get_mut(&key) {
                held.bytes[start - page * PAGE..end - page * PAGE]
                    .copy_from_slice(&data[start - at..end - at]);
            }
        }
    }

    /// Answers a cached write, and queues its notifications. With `again`, drops its pages before:
    /// see `fuse::page_reads`.
    fn end_write(&mut self, at: usize, data: &[u8], again: bool) {
        let stale = self.stale.take();
        self.notices
            .extend(stale.into_iter().map(|stale| (stale.inode, stale.guards)));
        if again {
            self.drop_pages(self.flat.inode, at..at + data.len());
        }
    }

    fn write(&mut self, at: usize, len: usize, drops: bool) {
        let data = self.some_bytes(len.min(SIZE - at));
        self.fill_pages(at, &data);
        self.written(at, &data);
        if drops {
            // the kernel has unlocked the page, and the request has not arrived yet
            self.drop_pages(self.flat.inode, at..at + data.len());
            let _ = self.cached(self.reader, at..at + data.len());
        }
        let again = self.were_dropped;
        let written = self
            .changed(|fs| fs.write_with(self.flat.handle, at as u64, &data, Wait::Never, false))
            .unwrap();
        let written = written.unwrap_or_else(|| {
            self.changed(|fs| fs.write(self.flat.handle, at as u64, &data))
                .unwrap()
        });
        assert_eq!(written, data.len());
        self.end_write(at, &data, again);
    }

    /// Writes in a separate thread while the store does not answer. Concurrent reads must return
    /// the written bytes.
    fn write_slowly(&mut self, at: usize, len: usize) {
        let data = self.some_bytes(len.min(SIZE - at));
        // write back dirty pages first: the model itself must not wait
        let inodes = [self.flat.inode, self.npy.inode];
        inodes
            .into_iter()
            .chain(self.map.map(|map| map.inode))
            .for_each(|inode| self.notify_of(inode));
        self.fill_pages(at, &data);
        self.written(at, &data);
        let fs = self.fs.clone();
        let handle = self.flat.handle;
        let again = self.were_dropped;
        self.store.stop(Key::root().join("a"), 0);
        let written = self.changed(|fs| {
            fs.write_with(handle, at as u64, &data, Wait::Never, false)
                .unwrap()
        });
        let waiting = written
            .is_none()
            .then(|| fs.waiting_write(handle, at as u64, data.len()));
        std::thread::scope(|scope| {
            let fs = &fs;
            let bytes = &data;
            let waits = waiting.is_some();
            let writer = waits.then(|| {
                scope.spawn(move || {
                    let change = fs.change();
                    let written = change.write(handle, at as u64, bytes).unwrap();
                    drop(waiting);
                    assert_eq!(written, bytes.len());
                    change.take_stale_pages()
                })
            });
            // the kernel drops the pages, and a program reads them
            self.pages.retain(|(inode, _), _| *inode != self.flat.inode);
            let reader = self.reader.handle;
            let pages = at / PAGE * PAGE..(at + bytes.len()).next_multiple_of(PAGE);
            let read = scope.spawn(move || {
                (
                    pages.start,
                    read(fs, reader, pages.start, pages.end - pages.start),
                )
            });
            std::thread::yield_now();
            self.store.resume();
            let stale = writer
                .map(|writer| writer.join().unwrap())
                .unwrap_or_default();
            self.notices
                .extend(stale.into_iter().map(|stale| (stale.inode, stale.guards)));
            let (start, bytes) = read.join().unwrap();
            self.check(
                start,
                &bytes,
                self.is_mapped(self.flat),
                "read while a write waits",
            );
            for (i, page) in bytes.chunks(PAGE).enumerate() {
                let page = Page {
                    bytes: page.to_vec(),
                    is_dirty: false,
                };
                self.pages.insert((self.flat.inode, start / PAGE + i), page);
            }
        });
        self.end_write(at, &data, again);
    }

    fn chunk_range(chunk: usize) -> Range<usize> {
        chunk * CHUNK..((chunk + 1) * CHUNK).min(SIZE)
    }

    fn chunk_file(&self, chunk: usize, writes: bool) -> Option<Open> {
        let name = chunk.to_string();
        let array = self.fs.lookup(1, "a").unwrap().inode;
        let inode = self.fs.lookup(array, &name).ok()?.inode;
        let handle = self.fs.open(inode, writes, false).unwrap().handle;
        Some(Open {
            inode,
            handle,
            start: -((chunk * CHUNK) as i64),
            len: CHUNK,
        })
    }

    fn close(&mut self, file: Open) {
        self.changed(|fs| fs.flush(file.handle)).unwrap();
        self.answer();
        self.changed(|fs| fs.release(file.handle));
        self.answer();
    }

    fn write_chunk(&mut self, chunk: usize, at: usize, len: usize) {
        let Some(file) = self.chunk_file(chunk, true) else {
            return;
        };
        let range = Kernel::chunk_range(chunk);
        let data = self.some_bytes(len.min(CHUNK - at));
        if self.is_mapped(file) {
            // the kernel writes past its cache, and drops the file's own pages first
            self.drop_pages(file.inode, 0..CHUNK);
        }
        assert_eq!(
            self.changed(|fs| fs.write(file.handle, at as u64, &data))
                .unwrap(),
            data.len()
        );
        let inside = range.len().saturating_sub(at).min(data.len());
        self.written(range.start + at.min(range.len()), &data[..inside]);
        self.answer();
        self.close(file);
    }

    fn replace_chunk(&mut self, chunk: usize, renames: bool) {
        let array = self.fs.lookup(1, "a").unwrap().inode;
        let name = chunk.to_string();
        let data = self.some_bytes(CHUNK);
        if renames {
            self.memory
                .put(&Key::normalize("a/new.bin").unwrap(), &data)
                .unwrap();
            self.changed(|fs| fs.rename((array, "new.bin"), (array, &name), false))
                .unwrap();
            self.answer();
        } else {
            let handle = self.draft(array, &name);
            self.changed(|fs| fs.write(handle, 0, &data)).unwrap();
            self.answer();
            self.changed(|fs| fs.flush(handle)).unwrap();
            self.answer();
            self.changed(|fs| fs.release(handle));
            self.answer();
        }
        let range = Kernel::chunk_range(chunk);
        self.written(range.start, &data[..range.len()]);
    }

    /// Opens a chunk file to write it anew.
    fn draft(&mut self, array: u64, name: &str) -> u64 {
        match self.fs.lookup(array, name) {
            Ok(found) => {
                let handle = self.fs.open(found.inode, true, false).unwrap().handle;
                self.changed(|fs| fs.set_size(found.inode, 0, Some(handle)))
                    .unwrap();
                handle
            }
            Err(_) => {
                self.changed(|fs| fs.create(array, name, true, false, 0o644))
                    .unwrap()
                    .1
                    .handle
            }
        }
    }

    fn refuse_draft(&mut self, chunk: usize) {
        let array = self.fs.lookup(1, "a").unwrap().inode;
        let data = self.some_bytes(CHUNK - 1);
        let handle = self.draft(array, &chunk.to_string());
        self.changed(|fs| fs.write(handle, 0, &data)).unwrap();
        self.answer();
        assert_eq!(
            self.changed(|fs| fs.flush(handle)).unwrap_err().errno(),
            libc::EINVAL
        );
        self.answer();
        self.changed(|fs| fs.release(handle));
        self.answer();
    }

    fn unlink(&mut self, chunk: usize) {
        let array = self.fs.lookup(1, "a").unwrap().inode;
        let is_mapped_chunk = self.map.is_some_and(|map| map.len == CHUNK) && chunk == 2;
        if is_mapped_chunk
            || self
                .changed(|fs| fs.unlink(array, &chunk.to_string()))
                .is_err()
        {
            return;
        }
        let range = Kernel::chunk_range(chunk);
        self.written(range.start, &vec![0; range.len()]);
        self.answer();
    }

    fn store_through_map(&mut self, at: usize, len: usize) {
        let Some(map) = self.map else { return };
        let data = self.some_bytes(len);
        for (i, byte) in data.iter().enumerate() {
            let position = at + i;
            let place = position as i64 + map.start;
            let is_there = position < SIZE && place >= 0 && (place as usize) < map.len;
            // do not change a page that a queued notification will drop
            if !is_there || self.notices.iter().any(|(inode, _)| *inode == map.inode) {
                continue;
            }
            let page = place as usize / PAGE;
            let within = place as usize % PAGE;
            self.page(map, page);
            let held = self.pages.get_mut(&(map.inode, page)).unwrap();
            held.bytes[within] = *byte;
            held.is_dirty = true;
            self.expected[position] = *byte;
            // `data.raw` has one page cache for its map and its descriptors
            self.only_mapped[position] = true;
        }
    }

    /// Lets another program replace chunks in the store after a sync, and opens `data.raw` again.
    fn change_elsewhere(&mut self, at: usize, len: usize) {
        let inodes = [self.flat.inode, self.npy.inode];
        inodes
            .into_iter()
            .chain(self.map.map(|map| map.inode))
            .for_each(|inode| self.notify_of(inode));
        self.sync();
        let metadata = ArrayMetadata::parse(document().as_bytes()).unwrap();
        let key = Key::normalize("a").unwrap();
        let other = Array::new(key, metadata, self.memory.clone(), Arc::default()).unwrap();
        let data = self.some_bytes(len.min(SIZE - at));
        self.written(at, &data);
        for chunk in at / CHUNK..(at + data.len()).div_ceil(CHUNK) {
            let mut bytes = vec![0; CHUNK];
            let range = Kernel::chunk_range(chunk);
            bytes[..range.len()].copy_from_slice(&self.expected[range]);
            other
                .store(ChunkId(chunk as u64), &bytes, &mut Default::default())
                .unwrap();
        }
        self.open_again();
        // the kernel drops the pages of the other files when they are opened
        for inode in [self.npy.inode]
            .into_iter()
            .chain(self.map.map(|map| map.inode))
        {
            self.drop_pages(inode, 0..usize::MAX);
        }
    }

    /// Truncates `data.raw` through a descriptor of its own, writes past the page cache and closes
    /// it. Bytes between the end and the write become zeros, and those behind both keep their
    /// values.
    fn truncate(&mut self, end: usize, at: usize, len: usize) {
        // a chunk that is skipped whole is removed, and its file with it
        let skips_mapped_chunk = end <= 2 * CHUNK && at >= 3 * CHUNK;
        if skips_mapped_chunk && self.map.is_some_and(|map| map.len == CHUNK) {
            return;
        }
        // dirty pages behind the end would be lost
        self.sync();
        let inode = self.flat.inode;
        let opened = self.fs.open(inode, true, false).unwrap();
        let file = Open {
            handle: opened.handle,
            ..self.flat
        };
        if opened.pages != KernelPages::Kept {
            self.drop_pages(inode, 0..usize::MAX);
        }
        self.answer();
        self.changed(|fs| fs.set_size(inode, end as u64, Some(file.handle)))
            .unwrap();
        self.pages
            .retain(|&(other, page), _| other != inode || page * PAGE < end);
        // the kernel fills its last page with zeros, and so it does when it reads the page
        let inside = end % PAGE;
        if inside > 0 {
            let mut bytes = self.page(file, end / PAGE);
            bytes.truncate(inside);
            self.check(
                end - inside,
                &bytes,
                self.is_mapped(file),
                "the last page of data.raw",
            );
            bytes.resize(PAGE, 0);
            self.pages.insert(
                (inode, end / PAGE),
                Page {
                    bytes,
                    is_dirty: false,
                },
            );
        }
        self.answer();
        let data = self.some_bytes(len.min(SIZE - at));
        self.drop_pages(inode, at..at + data.len());
        assert_eq!(
            self.changed(|fs| fs.write(file.handle, at as u64, &data))
                .unwrap(),
            data.len()
        );
        self.written(end.min(at), &vec![0; at.saturating_sub(end)]);
        self.written(at, &data);
        self.end_write(at, &data, true);
        self.close(file);
        // the daemon drops the last page before another program can see the whole size
        if self.notices.iter().any(|(noticed, _)| *noticed == inode) {
            self.notify_of(inode);
        }
    }

    fn open_again(&mut self) {
        let opened = self.fs.open(self.reader.inode, false, false).unwrap();
        if opened.pages != KernelPages::Kept {
            self.drop_pages(self.flat.inode, 0..usize::MAX);
        }
        let before = std::mem::replace(&mut self.reader.handle, opened.handle);
        self.changed(|fs| fs.release(before));
        self.answer();
    }

    fn sync(&mut self) {
        if let Some(map) = self.map {
            let dirty: Vec<_> = self
                .pages
                .keys()
                .filter(|(inode, _)| *inode == map.inode)
                .copied()
                .collect();
            dirty.into_iter().for_each(|key| self.write_back(key));
            self.changed(|fs| fs.fsync(map.handle)).unwrap();
        }
        self.changed(|fs| fs.fsync(self.flat.handle)).unwrap();
        self.answer();
        // flush and fsync wait for the notifications of `data.raw`
        self.notify_of(self.flat.inode);
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write(at, len, drops) => self.write(at, len, drops),
            Op::WriteDirect(at, len) => {
                let data = self.some_bytes(len.min(SIZE - at));
                // the kernel writes back and drops the pages of the range before and after the
                // write
                self.drop_pages(self.flat.inode, at..at + data.len());
                self.changed(|fs| fs.write(self.flat.handle, at as u64, &data))
                    .unwrap();
                self.written(at, &data);
                self.end_write(at, &data, true);
            }
            Op::WritePast(at, len, reads) => {
                let data = self.some_bytes(len.min(SIZE - at));
                // the kernel writes back and drops the pages of the range before it sends the
                // request
                self.drop_pages(self.flat.inode, at..at + data.len());
                if reads {
                    let _ = self.cached(self.reader, at..at + data.len());
                }
                let again = self.fs.files().leaves_stale_pages(self.writer.handle);
                self.changed(|fs| fs.write(self.writer.handle, at as u64, &data))
                    .unwrap();
                self.written(at, &data);
                self.end_write(at, &data, again);
            }
            Op::WriteNpy(at, len) => {
                let data = self.some_bytes(len.min(SIZE - at));
                let inode = self.npy.inode;
                let place = HEADER + at;
                self.drop_pages(inode, place..place + data.len());
                assert_eq!(
                    self.changed(|fs| fs.write(self.npy.handle, place as u64, &data))
                        .unwrap(),
                    data.len()
                );
                self.written(at, &data);
                self.answer();
                self.drop_pages(inode, place..place + data.len());
            }
            Op::WriteChunk(chunk, at, len) => self.write_chunk(chunk, at, len),
            Op::ReplaceChunk(chunk, renames) => self.replace_chunk(chunk, renames),
            Op::RefusedDraft(chunk) => self.refuse_draft(chunk),
            Op::Unlink(chunk) => self.unlink(chunk),
            Op::Store(at, len) => self.store_through_map(at, len),
            Op::WriteBack => {
                let all: Vec<_> = self.pages.keys().copied().collect();
                all.into_iter().for_each(|key| self.write_back(key));
            }
            Op::Reclaim => self.pages.retain(|_, page| page.is_dirty),
            Op::Read(at, len) => {
                let range = at..(at + len).min(SIZE);
                let bytes = self.cached(self.reader, range);
                let late = std::mem::take(&mut self.late);
                let before = self.only_mapped.clone();
                self.only_mapped
                    .iter_mut()
                    .zip(&late)
                    .for_each(|(only, late)| *only |= late);
                self.check(at, &bytes, self.is_mapped(self.flat), "data.raw");
                (self.only_mapped, self.late) = (before, late);
            }
            Op::ReadDirect(at, len) => {
                let range = at..(at + len).min(SIZE);
                let pages: Vec<_> = self
                    .pages
                    .keys()
                    .filter(|(i, _)| *i == self.flat.inode)
                    .copied()
                    .collect();
                pages.into_iter().for_each(|key| self.write_back(key));
                let bytes = read(&self.fs, self.reader.handle, at, range.len());
                self.check(
                    at,
                    &bytes,
                    self.is_mapped(self.flat),
                    "data.raw past the cache",
                );
            }
            Op::ReadNpy(at, len) => {
                let range = at..(at + len).min(SIZE);
                let pages: Vec<_> = self
                    .pages
                    .keys()
                    .filter(|(i, _)| *i == self.npy.inode)
                    .copied()
                    .collect();
                pages.into_iter().for_each(|key| self.write_back(key));
                let bytes = read(&self.fs, self.npy.handle, HEADER + at, range.len());
                self.check(at, &bytes, self.is_mapped(self.npy), "data.npy");
            }
            Op::ReadChunk(chunk) => {
                let Some(file) = self.chunk_file(chunk, false) else {
                    return;
                };
                let range = Kernel::chunk_range(chunk);
                let bytes = read(&self.fs, file.handle, 0, range.len());
                self.check(range.start, &bytes, false, "the chunk file");
                self.changed(|fs| fs.release(file.handle));
            }
            Op::Sync => self.sync(),
            Op::Open => self.open_again(),
            Op::Foreign(at, len) => self.change_elsewhere(at, len),
            Op::Truncate(end, at, len) => self.truncate(end, at, len),
            Op::Slow(at, len) => self.write_slowly(at, len),
            Op::Notify => {
                if let Some((inode, _)) = self.notices.first() {
                    self.notify_of(*inode);
                }
            }
        }
    }

    /// Writes back and closes everything, and compares the store with the expected bytes.
    fn end(mut self) {
        while let Some((inode, _)) = self.notices.first() {
            self.notify_of(*inode);
        }
        let all: Vec<_> = self.pages.keys().copied().collect();
        all.into_iter().for_each(|key| self.write_back(key));
        while let Some((inode, _)) = self.notices.first() {
            self.notify_of(*inode);
        }
        let bytes = self.cached(self.reader, 0..SIZE);
        self.check(0, &bytes, false, "data.raw at the end");
        for file in [Some(self.flat), Some(self.writer), Some(self.npy), self.map]
            .into_iter()
            .flatten()
        {
            self.close(file);
        }
        self.only_mapped.fill(false);
        let fs = mounted(&self.store, 1 << 16);
        let file = open(&fs, "data.raw", false, 0, SIZE);
        self.check(0, &read(&fs, file.handle, 0, SIZE), false, "the store");
    }
}

fn open(fs: &Fs, name: &str, writes: bool, start: i64, len: usize) -> Open {
    let array = fs.lookup(1, "a").unwrap().inode;
    let inode = fs.lookup(array, name).unwrap().inode;
    Open {
        inode,
        handle: fs.open(inode, writes, false).unwrap().handle,
        start,
        len,
    }
}

fn read(fs: &Fs, handle: u64, offset: usize, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    if !fs
        .read_cached(handle, offset as u64, len, &mut out)
        .unwrap()
    {
        fs.read(handle, offset as u64, len, &mut out).unwrap();
    }
    out
}

/// Returns the number of sequences to try: 2,000 take a quarter of a minute, and scripts/soak tries
/// more.
fn cases() -> u32 {
    std::env::var("ZARRFS_PAGE_SEQUENCES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(2_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn every_byte_read_is_the_one_written_last(
        mapped in mapped(), bound in prop::sample::select(vec![0usize, 20, 4 << 20]),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let mut kernel = Kernel::new(bound, mapped);
        for op in &ops {
            kernel.apply(op);
        }
        kernel.end();
    }
}
