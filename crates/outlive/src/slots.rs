//! The table of slots in shared memory.
//!
//! | bytes of a head | content |
//! |---|---|
//! | 0 to 3 | 0, or the kind of the record: this slot is a head |
//! | 4 to 7 | the number of the next slot, or 0 |
//! | 8 to 11 | the length of the text in bytes |
//! | 12 to 15 | the number of the head that this record replaces, or 0 |
//! | 16 to 23, 24 to 31 | the two numbers |
//! | 32 to 127 | the text |
//!
//! A slot that continues a text has 0, the number of the next slot, and 120 bytes of text. Slot 0
//! has the number of the first slot that was never in use, and 1 once a record found no free slots;
//! as the number of a slot, 0 means no slot.

use super::JOURNAL_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use zarrfs_base::memory::lock;

/// Size of a slot in bytes.
const SLOT: usize = 128;

/// Number of slots.
const SLOTS: u32 = (JOURNAL_BYTES / SLOT as u64) as u32;

/// Offsets in bytes in a slot.
const NEXT: usize = 4;
const LENGTH: usize = 8;
const REPLACED: usize = 12;
const NUMBERS: [usize; 2] = [16, 24];
const TEXT: usize = 32;
const MORE_TEXT: usize = 8;

/// The journal of a mount.
pub struct Journal {
    base: NonNull<c_void>,
    /// Protects the numbers of free slots that were in use before, and the number in slot 0.
    free: Mutex<Vec<u32>>,
}

/// A record: the number of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordId(u32);

/// A record as a daemon has left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record.
    pub id: RecordId,
    /// Its kind, which is not 0.
    pub kind: u32,
    /// Its numbers.
    pub numbers: [u64; 2],
    /// Its text.
    pub text: Vec<u8>,
}

// SAFETY: the memory is mapped for as long as the value lives, and is accessed by atomic operations
// alone.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

impl Drop for Journal {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `open`, and no reference into it outlives this value.
        let _ = unsafe { munmap(self.base.as_ptr(), JOURNAL_BYTES as usize) };
    }
}

impl Journal {
    /// Maps the memory of [`create_memory`](super::create_memory), which no other living process
    /// writes, and returns the records in it.
    ///
    /// # Errors
    ///
    /// The kernel refuses to map it.
    pub fn open(memory: impl AsFd) -> rustix::io::Result<(Journal, Vec<Record>)> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let len = JOURNAL_BYTES as usize;
        // SAFETY: the kernel chooses a free range of addresses, and the size of the memory is
        // sealed, so that no access is beyond its end.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                access,
                MapFlags::SHARED,
                memory.as_fd(),
                0,
            )?
        };
        let journal = Journal {
            base: NonNull::new(base).ok_or(rustix::io::Errno::NOMEM)?,
            free: Mutex::default(),
        };
        let records = journal.recover();
        Ok((journal, records))
    }

    /// Adds a record of a kind, which is not 0, and returns it. It is in the memory when this
    /// returns. Returns `None` if no slots are free; the journal is incomplete then.
    pub fn add(&self, kind: u32, numbers: [u64; 2], text: &[u8]) -> Option<RecordId> {
        self.write(kind, numbers, text, 0).map(RecordId)
    }

    /// Returns whether a record found no free slots, so that a successor would miss it.
    pub fn is_incomplete(&self) -> bool {
        self.word(0, NEXT).load(Ordering::Acquire) != 0
    }

    /// Replaces a record by one of the same kind. A process that is killed meanwhile leaves one of
    /// the two. Returns `None` if no slots are free; the old record stays, and the journal is
    /// incomplete.
    pub fn replace(&self, old: RecordId, numbers: [u64; 2], text: &[u8]) -> Option<RecordId> {
        let kind = self.word(old.0, 0).load(Ordering::Acquire);
        let new = self.write(kind, numbers, text, old.0)?;
        let freed = self.erase(old.0);
        // before the old slots are used again: the number would stand for another record
        self.word(new, REPLACED).store(0, Ordering::Release);
        lock(&self.free).extend(freed);
        Some(RecordId(new))
    }

    /// Removes a record.
    pub fn remove(&self, record: RecordId) {
        let freed = self.erase(record.0);
        lock(&self.free).extend(freed);
    }

    /// Returns a number of a record, 0 or 1, which changes in place.
    pub fn number(&self, record: RecordId, index: usize) -> &AtomicU64 {
        self.at(record.0, NUMBERS[index])
    }

    /// Returns the number of bytes of memory that records have taken so far.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.untouched().load(Ordering::Relaxed)) * SLOT as u64
    }

    fn write(&self, kind: u32, numbers: [u64; 2], text: &[u8], replaced: u32) -> Option<u32> {
        let (first, rest) = text.split_at(text.len().min(SLOT - TEXT));
        let parts: Vec<&[u8]> = rest.chunks(SLOT - MORE_TEXT).collect();
        let slots = self.take(1 + parts.len())?;
        for (part, at) in parts.iter().zip(1..) {
            let next = slots.get(at + 1).copied().unwrap_or_default();
            self.word(slots[at], NEXT).store(next, Ordering::Relaxed);
            self.copy_in(slots[at], MORE_TEXT, part);
        }
        let head = slots[0];
        let next = slots.get(1).copied().unwrap_or_default();
        self.word(head, NEXT).store(next, Ordering::Relaxed);
        self.word(head, LENGTH)
            .store(text.len() as u32, Ordering::Relaxed);
        self.word(head, REPLACED).store(replaced, Ordering::Relaxed);
        for (at, number) in NUMBERS.into_iter().zip(numbers) {
            self.at::<AtomicU64>(head, at)
                .store(number, Ordering::Relaxed);
        }
        self.copy_in(head, TEXT, first);
        self.word(head, 0).store(kind, Ordering::Release);
        Some(head)
    }

    /// Makes a head an ordinary slot, and returns the slots of its record. Returns no slot if it is
    /// no head.
    fn erase(&self, head: u32) -> Vec<u32> {
        let kind = self.word(head, 0).swap(0, Ordering::AcqRel);
        debug_assert_ne!(kind, 0, "a record is removed twice");
        if kind == 0 {
            return Vec::new();
        }
        self.chain(head)
    }

    /// Returns the slots of a record. Damaged memory ends the chain.
    fn chain(&self, head: u32) -> Vec<u32> {
        let mut slots = vec![head];
        let mut next = self.word(head, NEXT).load(Ordering::Relaxed);
        while next != 0 && next < SLOTS && slots.len() < SLOTS as usize {
            slots.push(next);
            next = self.word(next, NEXT).load(Ordering::Relaxed);
        }
        slots
    }

    fn take(&self, count: usize) -> Option<Vec<u32>> {
        let mut free = lock(&self.free);
        let untouched = self.untouched().load(Ordering::Relaxed).clamp(1, SLOTS);
        let kept = free.len().saturating_sub(count);
        let mut taken = free.split_off(kept);
        let missing = (count - taken.len()) as u32;
        if missing > SLOTS - untouched {
            free.append(&mut taken);
            self.word(0, NEXT).store(1, Ordering::Release);
            return None;
        }
        taken.extend(untouched..untouched + missing);
        self.untouched()
            .store(untouched + missing, Ordering::Release);
        Some(taken)
    }

    /// Returns the number in slot 0.
    fn untouched(&self) -> &AtomicU32 {
        self.word(0, 0)
    }

    /// Reads all records, and finds the free slots.
    fn recover(&self) -> Vec<Record> {
        let untouched = self.untouched().load(Ordering::Acquire).min(SLOTS);
        let kind_of = |slot: u32| self.word(slot, 0).load(Ordering::Acquire);
        for slot in 1..untouched {
            if kind_of(slot) != 0 {
                // a process was killed between the stores of `replace`
                let old = self.word(slot, REPLACED).swap(0, Ordering::AcqRel);
                if old != 0 && old < SLOTS {
                    self.word(old, 0).store(0, Ordering::Release);
                }
            }
        }
        let mut is_used = vec![false; untouched as usize];
        let mut records = Vec::new();
        for head in (1..untouched).filter(|slot| kind_of(*slot) != 0) {
            let slots = self.chain(head);
            for slot in &slots {
                if let Some(is_used) = is_used.get_mut(*slot as usize) {
                    *is_used = true;
                }
            }
            records.push(Record {
                id: RecordId(head),
                kind: kind_of(head),
                numbers: NUMBERS.map(|at| self.at::<AtomicU64>(head, at).load(Ordering::Acquire)),
                text: self.text(&slots),
            });
        }
        *lock(&self.free) = (1..untouched)
            .filter(|slot| !is_used[*slot as usize])
            .collect();
        records
    }

    fn text(&self, slots: &[u32]) -> Vec<u8> {
        let len = self.word(slots[0], LENGTH).load(Ordering::Relaxed) as usize;
        let mut text = Vec::new();
        for (n, slot) in slots.iter().enumerate() {
            let start = if n == 0 { TEXT } else { MORE_TEXT };
            for at in start..SLOT {
                if text.len() < len {
                    text.push(self.at::<AtomicU8>(*slot, at).load(Ordering::Relaxed));
                }
            }
        }
        text
    }

    fn copy_in(&self, slot: u32, at: usize, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            self.at::<AtomicU8>(slot, at + n)
                .store(*byte, Ordering::Relaxed);
        }
    }

    fn word(&self, slot: u32, at: usize) -> &AtomicU32 {
        self.at(slot, at)
    }

    fn at<T: Atomic>(&self, slot: u32, at: usize) -> &T {
        let offset = slot as usize % SLOTS as usize * SLOT + at;
        debug_assert!(at + size_of::<T>() <= SLOT && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the offset lies in the mapping, whose length is `SLOTS * SLOT`, and is aligned,
        // since the mapping begins at a page. `T` is an atomic number, so that other threads and
        // the process that shares the memory may access it, too; all bits are valid.
        unsafe { self.base.byte_add(offset).cast::<T>().as_ref() }
    }
}

/// A number that threads and processes share.
trait Atomic {}

impl Atomic for AtomicU8 {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}

#[cfg(test)]
mod tests;
