//! What a successor must know of open files when the daemon is killed, in the journal of the
//! mount: each open file and directory, truncations that last until a file is closed, and whether
//! bytes were written that are not stored. The successor opens the files again under their old
//! handles.
//!
//! Invariant: **a file through which bytes were written that are lost fails each flush and fsync
//! from then on, until its release, and no other file does.** A record is made before the request
//! is answered, and removed after all is stored. Arrays count their dirty and pending chunks
//! (`array/freshness.rs`): a file of an array has lost bytes only if the count is not 0, or if it
//! alone knew of writes, such as records that a header does not count yet. What is written into a
//! file of the store itself is never lost. A successor may be killed at any time: a record goes
//! only after another one says what follows from it.
//!
//! This module must not know how a daemon dies, or what starts its successor.

use super::files::{OpenFile, UnstoredBytes};
use super::tree::{Attributes, Audience, Node};
use super::write::WriteMode;
use super::{Change, Fs, KernelPages, OpenedFile};
use crate::array::RecordedChunk;
use crate::cache::{FoundBytes, Wait};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_outlive::{Journal, KeyedCounts, Record, RecordId};
use zarrfs_store::Key;

/// The kinds of records. The numbers of a file are its handle, and its flags with the number of
/// writes since everything was stored; its text is the inode number, the number of the request that
/// opened it, and the mode with which it was created. Those of a directory are its handle and inode
/// number; its text is the number of the request, a position, and the name before it.
const FILE_RECORD: u32 = 2;
const DIRECTORY_RECORD: u32 = 3;
const ARRAY_RECORD: u32 = 4;

/// Flags of an open file.
const FOR_WRITING: u64 = 1;
const DIRECT: u64 = 2;
const BY_OWNER: u64 = 4;
/// The file was created, and is not stored.
const IS_CREATED: u64 = 8;
/// The file bypasses the pages of the kernel.
const PAST_PAGES: u64 = 16;
/// Bytes that were written through the file are lost.
const HAS_LOST: u64 = 32;
/// The file of a container or header alone knows of writes, which are in no array yet.
const HOLDS_WRITES: u64 = 64;

/// The number of bits of the handles of one daemon.
const HANDLES: u32 = 40;

/// One write in the number that counts them.
const WRITE: u64 = 1 << 16;

/// How a file was opened.
#[derive(Clone, Copy, Debug)]
pub struct FileOpening {
    /// The number of the request.
    pub request: u64,
    /// For whom it was opened.
    pub audience: Audience,
    /// Whether it may be written.
    pub for_writing: bool,
    /// Whether the program asked for O_DIRECT.
    pub direct: bool,
    /// The mode with which the file was created; `None` if it was only opened.
    pub created: Option<u32>,
}

/// The records of open files and directories.
pub struct OpenRecords {
    journal: Arc<Journal>,
    /// Protects the map, by handle.
    files: Mutex<HashMap<u64, RecordId>>,
    /// Protects the map, by handle.
    directories: Mutex<HashMap<u64, RecordId>>,
    /// Protects the map: what requests have opened in a daemon that was killed.
    unanswered: Mutex<HashMap<u64, Unanswered>>,
}

/// The handle that a request has opened.
#[derive(Clone, Copy)]
enum Unanswered {
    File(u64),
    Directory(u64),
}

impl OpenRecords {
    fn opened(&self, file: &dyn OpenFile, handle: u64, opening: FileOpening) {
        let mut flags = 0;
        for (is_set, flag) in [
            (opening.for_writing, FOR_WRITING),
            (opening.direct, DIRECT),
            (opening.audience == Audience::Owner, BY_OWNER),
            (opening.created.is_some(), IS_CREATED),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let mode = opening.created.unwrap_or_default().into();
        let text = [file.inode(), opening.request, mode];
        let text = text.map(u64::to_le_bytes).concat();
        if let Some(record) = self.journal.add(FILE_RECORD, [handle, flags], &text) {
            lock(&self.files).insert(handle, record);
        }
    }

    fn closed(&self, handle: u64) {
        let record = lock(&self.files).remove(&handle);
        if let Some(record) = record {
            self.journal.remove(record);
        }
    }

    fn change(&self, handle: u64, change: impl Fn(u64) -> u64) {
        let record = lock(&self.files).get(&handle).copied();
        if let Some(record) = record {
            let number = self.journal.number(record, 1);
            let _ =
                number.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old)));
        }
    }

    /// Returns the flags and the number of writes of a file.
    fn state(&self, handle: u64) -> u64 {
        let record = lock(&self.files).get(&handle).copied();
        record.map_or(0, |record| {
            self.journal.number(record, 1).load(Ordering::Acquire)
        })
    }
}

impl Fs {
    /// Makes the mount outlive its daemon: records in `journal` what a successor must know, and
    /// takes over what the daemons before have `left` there, of which there were `generation`.
    /// Returns the inode numbers of the open files and directories.
    pub fn outlive(&self, journal: Arc<Journal>, left: &[Record], generation: u64) -> Vec<u64> {
        // a request to close a file of an earlier daemon may come again, also if it was closed
        self.files.begin_after(generation << HANDLES);
        self.directories.begin_after(generation << HANDLES);
        self.tree.outlive(&journal, left);
        self.truncations.outlive(&journal, left);
        self.absent.outlive(&journal, left);
        let (counts, counted) = KeyedCounts::new(journal.clone(), ARRAY_RECORD, left);
        let keys = counted.iter().map(|(key, _)| Key::normalize(key));
        let lost: Vec<Key> = keys.flatten().collect();
        self.cache.count_unstored(counts);
        for (chunk, record) in RecordedChunk::of_records(left, self.cache.spill()) {
            let key = chunk.key().clone();
            let array = self.arrays.open(&key);
            let done = array.and_then(|array| self.cache.hand_over_again(&array, chunk));
            if let Err(e) = done {
                let why = "a chunk was lost when the daemon was killed";
                self.stats.problem(format!("not stored: {key}: {why}: {e}"));
            }
            journal.remove(record.id);
        }
        let records = OpenRecords {
            journal,
            files: Mutex::default(),
            directories: Mutex::default(),
            unanswered: Mutex::default(),
        };
        let records = self.open_records.get_or_init(|| records);
        let mut open = Vec::new();
        for record in left {
            open.extend(match record.kind {
                FILE_RECORD => self.reopen(records, record, &lost),
                DIRECTORY_RECORD => self.reopen_directory(records, record),
                _ => None,
            });
        }
        // opening a file completes the last row
        self.arrays.resizing.outlive(&records.journal, left);
        // only now do the records of the files say what is lost
        for (_, record) in counted {
            records.journal.remove(record);
        }
        open
    }

    /// Returns an open file with bytes that would be lost with the daemon although all arrays are
    /// stored.
    pub fn unstored_file(&self) -> Option<String> {
        let records = self.open_records.get()?;
        let handles: Vec<u64> = lock(&records.files).keys().copied().collect();
        let is_unstored = |handle: &u64| {
            let file = self.files.get(*handle).ok()?;
            let state = records.state(*handle);
            let is_unstored = state & HOLDS_WRITES != 0
                || (state >= WRITE && file.unstored_bytes() == UnstoredBytes::InFile);
            is_unstored.then(|| self.tree.shown_path(file.inode(), ""))
        };
        handles.iter().find_map(is_unstored)
    }

    /// Records an open file, before its opening is answered.
    pub fn record_opening(&self, opened: &OpenedFile, opening: FileOpening) {
        if let Some(records) = self.open_records.get()
            && let Ok(file) = self.files.get(opened.handle)
        {
            records.opened(&*file, opened.handle, opening);
        }
    }

    /// Records that writes through an open file bypass the pages of the kernel.
    pub fn record_past_pages(&self, handle: u64) {
        if let Some(records) = self.open_records.get() {
            records.change(handle, |flags| flags | PAST_PAGES);
        }
    }

    /// Records a write through an open file, before it is answered.
    pub(super) fn record_written(&self, handle: u64) {
        if let Some(records) = self.open_records.get() {
            records.change(handle, |flags| flags + WRITE);
        }
    }

    /// Records whether an open file alone knows of writes, before a request that changes that is
    /// answered.
    pub(super) fn record_held(&self, handle: u64, file: &dyn OpenFile) {
        if let Some(records) = self.open_records.get()
            && let Some(file) = file.as_composite()
        {
            // asked again if another thread has changed the flags meanwhile
            records.change(handle, |flags| {
                if file.holds_writes() {
                    flags | HOLDS_WRITES
                } else {
                    flags & !HOLDS_WRITES
                }
            });
        }
    }

    /// Stores an open file by `store`, and records that all earlier writes through it are stored.
    pub(super) fn record_stored(
        &self,
        handle: u64,
        file: &dyn OpenFile,
        store: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(records) = self.open_records.get() else {
            return store();
        };
        let before = records.state(handle);
        let stored = store();
        match &stored {
            // a write meanwhile may not be stored
            Ok(()) => records.change(handle, |flags| {
                if flags / WRITE == before / WRITE {
                    (flags % WRITE) & !IS_CREATED
                } else {
                    flags
                }
            }),
            Err(e) if e.errno() == libc::ESTALE => {
                records.change(handle, |flags| flags | HAS_LOST);
            }
            Err(_) => {}
        }
        self.record_held(handle, file);
        stored
    }

    /// Records that a file is about to be unlinked: a successor must not create it again.
    pub(super) fn record_unlinking(&self, inode: u64) {
        let Some(records) = self.open_records.get() else {
            return;
        };
        let handles: Vec<u64> = lock(&records.files).keys().copied().collect();
        for handle in handles {
            if self
                .files
                .get(handle)
                .is_ok_and(|file| file.inode() == inode)
            {
                records.change(handle, |flags| flags & !IS_CREATED);
            }
        }
    }

    /// Records the end of an open file.
    pub(super) fn record_release(&self, handle: u64) {
        if let Some(records) = self.open_records.get() {
            records.closed(handle);
        }
    }

    /// Records an open directory.
    pub fn record_directory(&self, handle: u64, inode: u64, request: u64) {
        if let Some(records) = self.open_records.get() {
            let text = [request, 0].map(u64::to_le_bytes).concat();
            let record = records
                .journal
                .add(DIRECTORY_RECORD, [handle, inode], &text);
            if let Some(record) = record {
                lock(&records.directories).insert(handle, record);
            }
        }
    }

    /// Records that the names of an open directory were passed on up to the position `position`,
    /// before which `name` is.
    pub(super) fn record_names_read(&self, handle: u64, inode: u64, position: u64, name: &str) {
        let Some(records) = self.open_records.get() else {
            return;
        };
        let mut directories = lock(&records.directories);
        let Some(record) = directories.get_mut(&handle) else {
            return;
        };
        let mut text = [0, position].map(u64::to_le_bytes).concat();
        text.extend(name.as_bytes());
        let new = records.journal.replace(*record, [handle, inode], &text);
        *record = new.unwrap_or(*record);
    }

    /// Records the end of an open directory.
    pub(super) fn record_directory_release(&self, handle: u64) {
        let Some(records) = self.open_records.get() else {
            return;
        };
        let record = lock(&records.directories).remove(&handle);
        if let Some(record) = record {
            records.journal.remove(record);
        }
    }

    /// Closes what the request `request` has opened in a daemon that was killed: the answer has not
    /// reached the kernel, which sends the request again.
    pub fn close_unanswered(&self, request: u64) {
        let opened = self.open_records.get().and_then(|records| {
            let mut unanswered = lock(&records.unanswered);
            unanswered.remove(&request)
        });
        match opened {
            Some(Unanswered::File(handle)) => self.change().release(handle),
            Some(Unanswered::Directory(handle)) => self.release_directory(handle),
            None => {}
        }
    }

    /// Returns the open file that the request `request` has created in a daemon that was killed,
    /// with its attributes.
    pub fn created_unanswered(&self, request: u64) -> Option<(Attributes, OpenedFile)> {
        let records = self.open_records.get()?;
        let unanswered = lock(&records.unanswered).get(&request).copied();
        let Some(Unanswered::File(handle)) = unanswered else {
            return None;
        };
        let attributes = self.attributes(self.files.get(handle).ok()?.inode()).ok()?;
        let opened = OpenedFile {
            handle,
            pages: KernelPages::Fresh,
            is_written_while_shared: false,
            has_lasting_attributes: false,
        };
        Some((attributes, opened))
    }

    /// Opens a file again that a daemon has left open. Returns its inode number.
    fn reopen(&self, records: &OpenRecords, record: &Record, lost: &[Key]) -> Option<u64> {
        let [handle, flags] = record.numbers;
        let text = record.text.as_chunks::<8>().0;
        let [inode, request, mode] = <[[u8; 8]; 3]>::try_from(text).ok()?.map(u64::from_le_bytes);
        let is = |flag| flags & flag != 0;
        let audience = if is(BY_OWNER) {
            Audience::Owner
        } else {
            Audience::Readers
        };
        let opened = if is(IS_CREATED) {
            self.create_again(inode, mode as u32)
        } else {
            self.open_for(audience, inode, is(FOR_WRITING), is(DIRECT))
        };
        let opened = opened.and_then(|opened| {
            let file = self.files.remove(opened.handle);
            file.ok_or_else(Error::stale)
        });
        let file = match opened {
            Ok(file) => {
                let kind = file.unstored_bytes();
                let wrote = flags >= WRITE;
                let is_lost = match kind {
                    UnstoredBytes::None => false,
                    UnstoredBytes::InFile => wrote,
                    UnstoredBytes::InArrays => {
                        let arrays = file.written_arrays();
                        is(HOLDS_WRITES)
                            || (wrote && arrays.iter().any(|array| lost.contains(array)))
                    }
                };
                if is_lost || is(HAS_LOST) {
                    let number = records.journal.number(record.id, 1);
                    number.fetch_or(HAS_LOST, Ordering::AcqRel);
                    match file.write_record() {
                        // later writes could have another meaning without the earlier ones
                        Some(record) if kind == UnstoredBytes::InArrays && !is(HOLDS_WRITES) => {
                            record.lose(lost_bytes());
                            file
                        }
                        _ => EndedFile::open(inode, lost_bytes(), true),
                    }
                } else {
                    file
                }
            }
            Err(reason) => {
                let shown = self.tree.shown_path(inode, "");
                log::warn!("{shown}: can't be opened again: {reason}");
                EndedFile::open(inode, reason, flags >= WRITE || is(HAS_LOST))
            }
        };
        if let Some(flat) = file.as_flat().filter(|_| is(PAST_PAGES)) {
            flat.write_past_pages();
        }
        // the program that has emptied the file may write an encoded chunk next
        if let Some(chunk) = file.as_chunk()
            && self.truncations.is_emptied_by(inode, handle)
        {
            chunk.truncate();
        }
        self.files.insert_at(handle, file);
        lock(&records.files).insert(handle, record.id);
        lock(&records.unanswered).insert(request, Unanswered::File(handle));
        Some(inode)
    }

    /// Creates a file again that was created, and was not stored.
    fn create_again(&self, inode: u64, mode: u32) -> Result<OpenedFile> {
        let path = self.tree.node(inode)?.path();
        let parent = Node::Directory(path.parent());
        if self.find(&parent, path.name())?.is_some() {
            return self.open(inode, true, false);
        }
        let target = self.tree.target(&parent, path.name())?;
        let (attributes, new) = self.create_new(target, path.name(), false, mode)?;
        // the kernel has looked it up once
        self.tree.live.forget(attributes.inode, 1);
        Ok(self.insert(new))
    }

    /// Opens a directory again that a daemon has left open. Returns its inode number.
    fn reopen_directory(&self, records: &OpenRecords, record: &Record) -> Option<u64> {
        let [handle, inode] = record.numbers;
        let (request, rest) = record.text.split_first_chunk()?;
        let (position, name) = rest.split_first_chunk()?;
        let place = (u64::from_le_bytes(*position), str::from_utf8(name).ok()?);
        // one that was removed is empty
        self.open_directory_at(handle, inode, place).ok()?;
        lock(&records.directories).insert(handle, record.id);
        let request = u64::from_le_bytes(*request);
        lock(&records.unanswered).insert(request, Unanswered::Directory(handle));
        Some(inode)
    }
}

/// The error of a file whose bytes are lost.
fn lost_bytes() -> Error {
    let why = "bytes that were written through this file were lost when the daemon was killed; write them again";
    Error::io(why)
}

/// An open file that can't be opened again.
struct EndedFile {
    inode: u64,
    reason: Error,
    has_lost: bool,
}

impl EndedFile {
    fn open(inode: u64, reason: Error, has_lost: bool) -> Arc<dyn OpenFile> {
        Arc::new(EndedFile {
            inode,
            reason,
            has_lost,
        })
    }
}

impl OpenFile for EndedFile {
    fn inode(&self) -> u64 {
        self.inode
    }

    fn read(&self, _: &Fs, _: u64, _: usize, _: Wait, _: &mut Vec<u8>) -> Result<FoundBytes> {
        Err(self.reason.clone())
    }

    fn write(&self, _: &Change, _: u64, _: &[u8], _: WriteMode) -> Result<Option<usize>> {
        Err(self.reason.clone())
    }

    fn flush(&self, _: &Change) -> Result<()> {
        if self.has_lost {
            Err(lost_bytes())
        } else {
            Ok(())
        }
    }
}
