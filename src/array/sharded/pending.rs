//! Chunks of shards that were handed over, encoded, and are not yet in their objects. They take
//! precedence over the stored chunks: every reader of the array gets them. This module does not
//! know how or when objects are stored.

use crate::array::Ranges;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, Grant, lock};
use zarrfs_base::spill_file::{SpillFile, SpilledBytes};
use zarrfs_format::grid::ChunkId;
use zarrfs_outlive::HeldRecord;
use zarrfs_store::Version;

/// Maximum bytes of encoded chunks that wait in memory; others wait in a spill file.
const IN_MEMORY: usize = 8 << 20;

/// Approximate memory of a pending chunk beside its bytes.
const COST: usize = 256;

/// Maximum number of pending chunks of all arrays: each takes about [`COST`] bytes wherever it
/// waits.
const MAX_PENDING: usize = 1 << 17;

/// Minimum time without a change after which an object is stored in the background.
const QUIET: Duration = Duration::from_secs(1);

/// The time without a change is at least this many times the duration of the last put.
const QUIET_PUTS: u32 = 4;

/// Maximum time without a change before an object is stored, however long puts take.
const MAX_QUIET: Duration = Duration::from_secs(60);

/// The number of the next pending version, unique in the process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Bytes of encoded chunks that wait in memory, of all arrays.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Number of pending chunks of all arrays.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes later pending versions follow a version of a killed daemon.
pub fn continue_after(version: u64) {
    NEXT.fetch_max(version.saturating_add(1), Ordering::Relaxed);
}

/// Returns whether so many chunks are pending that objects have to be stored before more chunks are
/// handed over.
pub fn are_too_many() -> bool {
    COUNT.load(Ordering::Relaxed) >= MAX_PENDING
}

/// The bytes of an encoded chunk.
pub enum PendingBytes {
    /// In memory.
    Memory(HeldBytes),
    /// In a spill file.
    Spilled(Arc<SpilledBytes>),
}

/// Bytes in memory, counted in [`HELD`] until they are dropped.
pub struct HeldBytes {
    pub bytes: Vec<u8>,
    _memory: Grant,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        HELD.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl PendingBytes {
    /// Copies bytes into memory, or into `spill` if all pending chunks would take more than
    /// `IN_MEMORY` bytes.
    ///
    /// # Errors
    ///
    /// ENOSPC if there is no space in the spill file, ENOMEM if there is no memory or too many
    /// chunks are pending.
    pub fn hold(bytes: &[u8], spill: Option<&Arc<SpillFile>>) -> Result<Self> {
        let Some(spill) = spill else {
            return Self::in_memory(bytes);
        };
        if are_too_many() {
            return Err(
                Error::system(libc::ENOMEM).context("too many chunks wait for their shards")
            );
        }
        if HELD.load(Ordering::Relaxed) + bytes.len() <= IN_MEMORY
            && let Ok(held) = PendingBytes::in_memory(bytes)
        {
            return Ok(held);
        }
        spill
            .put(bytes)
            .map(|spilled| PendingBytes::Spilled(Arc::new(spilled)))
            .map_err(|e| Error::system(libc::ENOSPC).context(e.message()))
    }

    /// Copies bytes into memory.
    pub fn in_memory(bytes: &[u8]) -> Result<Self> {
        let mut granted = Grant::default();
        granted.grow(bytes.len() + COST)?;
        let mut copy = Vec::new();
        memory::reserve(&mut copy, bytes.len())?;
        copy.extend_from_slice(bytes);
        HELD.fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(PendingBytes::Memory(HeldBytes {
            bytes: copy,
            _memory: granted,
        }))
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> u64 {
        match self {
            PendingBytes::Memory(held) => held.bytes.len() as u64,
            PendingBytes::Spilled(spilled) => spilled.size(),
        }
    }

    /// Replaces the content of `out` with a range of the bytes, cut off at their end.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let end = range.end.min(self.size());
        let start = range.start.min(end);
        out.clear();
        match self {
            PendingBytes::Memory(held) => {
                memory::reserve(out, (end - start) as usize)?;
                out.extend_from_slice(&held.bytes[start as usize..end as usize]);
            }
            PendingBytes::Spilled(spilled) => {
                let (file, place) = spilled.place();
                memory::resize(out, (end - start) as usize)?;
                file.read_exact_at(out, place.start + start)?;
            }
        }
        Ok(())
    }
}

/// A chunk that was handed over.
pub struct PendingChunk {
    /// The encoded chunk; `None` if it was erased.
    pub bytes: Option<PendingBytes>,
    /// The version that the chunk has, also after it is stored.
    pub version: Version,
    /// Time at which the chunk was handed over.
    pub modified: SystemTime,
    /// The bytes of the decoded chunk that were written; `None` if the stored chunk does not show
    /// through.
    pub written: Option<Ranges>,
    /// The version of the stored chunk that shows through; `None` if it was not stored.
    pub base: Option<Version>,
    /// Grant for the memory of `written` beyond [`COST`].
    _ranges: Grant,
}

impl PendingChunk {
    /// Returns a chunk with a new version.
    ///
    /// # Errors
    ///
    /// ENOMEM if there is no memory for the written ranges.
    pub fn new(
        bytes: Option<PendingBytes>,
        written: Option<Ranges>,
        base: Option<Version>,
    ) -> Result<Self> {
        let mut ranges = Grant::default();
        ranges.grow(
            written
                .as_ref()
                .map_or(0, Ranges::memory)
                .saturating_sub(COST),
        )?;
        COUNT.fetch_add(1, Ordering::Relaxed);
        let version = Version::Pending(NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(PendingChunk {
            bytes,
            version,
            modified: SystemTime::now(),
            written,
            base,
            _ranges: ranges,
        })
    }
}

impl Drop for PendingChunk {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pending chunks by chunk number.
pub type ChunkChanges = BTreeMap<ChunkId, Arc<PendingChunk>>;

/// The pending chunks of an object.
#[derive(Default)]
struct PendingObject {
    /// The records of the chunks: see `recorded`. Each is dropped before the bytes of its chunk,
    /// which it may refer to.
    records: BTreeMap<ChunkId, HeldRecord>,
    chunks: ChunkChanges,
    /// Number of chunks through which stored bytes show.
    partial: usize,
    /// Times at which the first and the last chunk were handed over.
    times: Option<(Instant, Instant)>,
    /// Whether the object could not be stored. It is tried again.
    has_failed: bool,
}

impl PendingObject {
    fn insert(&mut self, chunk: ChunkId, new: PendingChunk, record: Option<HeldRecord>) {
        match record {
            Some(record) => drop(self.records.insert(chunk, record)),
            None => drop(self.records.remove(&chunk)),
        }
        self.partial += usize::from(new.written.is_some());
        if let Some(old) = self.chunks.insert(chunk, Arc::new(new)) {
            self.partial -= usize::from(old.written.is_some());
        }
    }

    fn remove(&mut self, chunk: ChunkId) {
        self.records.remove(&chunk);
        if let Some(old) = self.chunks.remove(&chunk) {
            self.partial -= usize::from(old.written.is_some());
        }
    }
}

/// The pending chunks of an array, by the objects that will hold them.
#[derive(Default)]
pub struct PendingChunks {
    /// Protects the chunks.
    objects: Mutex<BTreeMap<u64, PendingObject>>,
    /// Nanoseconds of the last put of an object.
    last_put: AtomicU64,
}

impl PendingChunks {
    /// Returns whether no chunk is pending.
    pub fn is_empty(&self) -> bool {
        lock(&self.objects).is_empty()
    }

    /// Returns a pending chunk of an object.
    pub fn get(&self, object: u64, chunk: ChunkId) -> Option<Arc<PendingChunk>> {
        lock(&self.objects)
            .get(&object)?
            .chunks
            .get(&chunk)
            .cloned()
    }

    /// Returns all pending chunks of an object.
    pub fn chunks(&self, object: u64) -> ChunkChanges {
        lock(&self.objects)
            .get(&object)
            .map(|found| found.chunks.clone())
            .unwrap_or_default()
    }

    /// Returns all pending chunks.
    pub fn all(&self) -> Vec<ChunkId> {
        let objects = lock(&self.objects);
        let chunks = objects.values().flat_map(|object| object.chunks.keys());
        chunks.copied().collect()
    }

    /// Returns the pending chunk with the highest number.
    pub fn last(&self) -> Option<ChunkId> {
        let objects = lock(&self.objects);
        let last = objects
            .values()
            .filter_map(|object| object.chunks.last_key_value());
        last.map(|(chunk, _)| *chunk).max()
    }

    /// Hands over a chunk, or erases it if there are no bytes. `written` are the bytes that were
    /// written over the version `base`; `None` if all were. `record` records the chunk in the
    /// journal. Returns the chunk's new version; `None`, without a change, if another version than
    /// `base` is pending.
    ///
    /// # Errors
    ///
    /// ENOMEM if there is no memory for the written ranges.
    pub fn put(
        &self,
        (object, chunk): (u64, ChunkId),
        bytes: Option<PendingBytes>,
        written: Option<&Ranges>,
        base: Option<Version>,
        record: impl FnOnce(&PendingChunk) -> Option<HeldRecord>,
    ) -> Result<Option<Version>> {
        let mut objects = lock(&self.objects);
        let known = objects
            .get(&object)
            .and_then(|found| found.chunks.get(&chunk));
        let (written, base) = match (written, known) {
            (None, _) => (None, None),
            (Some(written), None) => (Some(written.clone()), base),
            (Some(_), Some(known)) if known.bytes.is_none() && base.is_none() => (None, None),
            (Some(written), Some(known))
                if known.bytes.is_some() && base.as_ref() == Some(&known.version) =>
            {
                let all = known.written.as_ref().map(|before| {
                    let mut all = before.clone();
                    all.add_all(written);
                    all
                });
                (all, known.base.clone())
            }
            _ => return Ok(None),
        };
        let new = PendingChunk::new(bytes, written, base)?;
        let found = objects.entry(object).or_default();
        let version = new.version.clone();
        let record = record(&new);
        found.insert(chunk, new, record);
        let now = Instant::now();
        found.times = Some((found.times.map_or(now, |(first, _)| first), now));
        Ok(Some(version))
    }

    /// Replaces a pending chunk, with its record, unless it has changed since `old`, or drops it.
    pub fn replace(
        &self,
        object: u64,
        chunk: ChunkId,
        old: &PendingChunk,
        new: Option<PendingChunk>,
        record: impl FnOnce(&PendingChunk) -> Option<HeldRecord>,
    ) {
        let mut objects = lock(&self.objects);
        let Some(found) = objects.get_mut(&object) else {
            return;
        };
        if found
            .chunks
            .get(&chunk)
            .is_none_or(|known| known.version != old.version)
        {
            return;
        }
        match new {
            Some(new) => {
                let record = record(&new);
                found.insert(chunk, new, record);
            }
            None => found.remove(chunk),
        }
        objects.retain(|_, found| !found.chunks.is_empty());
    }

    /// Drops the pending chunks of an object that have not changed since `stored`.
    pub fn remove(&self, object: u64, stored: &ChunkChanges) {
        let mut objects = lock(&self.objects);
        let Some(found) = objects.get_mut(&object) else {
            return;
        };
        for (chunk, stored) in stored {
            if found
                .chunks
                .get(chunk)
                .is_some_and(|known| known.version == stored.version)
            {
                found.remove(*chunk);
            }
        }
        if found.chunks.is_empty() {
            objects.remove(&object);
        }
    }

    /// Returns whether `count` chunks of an object are pending and no stored bytes show through.
    pub fn is_complete(&self, object: u64, count: u64) -> bool {
        let objects = lock(&self.objects);
        objects
            .get(&object)
            .is_some_and(|found| found.partial == 0 && found.chunks.len() as u64 == count)
    }

    /// Returns the number of encoded bytes of all chunks.
    pub fn size(&self) -> u64 {
        lock(&self.objects)
            .values()
            .flat_map(|object| object.chunks.values())
            .filter_map(|chunk| Some(chunk.bytes.as_ref()?.size()))
            .sum()
    }

    /// Returns the objects with pending chunks, the one that waits longest first.
    pub fn objects(&self) -> Vec<u64> {
        self.objects_where(|_| true)
    }

    /// Returns the objects that have been quiet for long enough.
    pub fn quiet(&self, now: Instant) -> Vec<u64> {
        let last_put = Duration::from_nanos(self.last_put.load(Ordering::Relaxed));
        let pause = last_put.saturating_mul(QUIET_PUTS).clamp(QUIET, MAX_QUIET);
        self.objects_where(|object| {
            object
                .times
                .is_some_and(|(_, last)| now.saturating_duration_since(last) >= pause)
        })
    }

    /// Returns the objects that could not be stored, and with `is_outlived` those with a chunk that
    /// has no record.
    pub fn due_at_close(&self, is_outlived: bool) -> Vec<u64> {
        self.objects_where(|object| {
            let has_unrecorded = object.records.len() < object.chunks.len();
            object.has_failed || (is_outlived && has_unrecorded)
        })
    }

    fn objects_where(&self, is_wanted: impl Fn(&PendingObject) -> bool) -> Vec<u64> {
        let objects = lock(&self.objects);
        let mut list: Vec<_> = objects
            .iter()
            .filter(|(_, found)| is_wanted(found))
            .map(|(object, found)| (found.times.map(|(first, _)| first), *object))
            .collect();
        drop(objects);
        list.sort_unstable();
        list.into_iter().map(|(_, object)| object).collect()
    }

    /// Records that an object could not be stored.
    pub fn record_failure(&self, object: u64) {
        if let Some(found) = lock(&self.objects).get_mut(&object) {
            found.has_failed = true;
        }
    }

    /// Records the duration of a put.
    pub fn record_put(&self, took: Duration) {
        self.last_put
            .store(took.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts four equal bytes, or erases the chunk.
    fn put(
        pending: &PendingChunks,
        (object, chunk): (u64, u64),
        byte: Option<u8>,
        written: Option<&Ranges>,
        base: Option<Version>,
    ) -> Option<Version> {
        let bytes = byte.map(|byte| PendingBytes::in_memory(&[byte; 4]).unwrap());
        let at = (object, ChunkId(chunk));
        pending.put(at, bytes, written, base, |_| None).unwrap()
    }

    #[test]
    fn written_ranges_add_up_until_the_chunk_is_whole() {
        let pending = PendingChunks::default();
        let at = (3, 7);
        let base = Some(Version::Count(9));
        let [start, end] = [0..1, 1..2].map(Ranges::from);
        let first = put(&pending, at, Some(1), Some(&start), base.clone());
        let known = pending.get(3, ChunkId(7)).unwrap();
        assert_eq!(
            (known.written.clone(), known.base.clone()),
            (Some(start), base.clone())
        );
        let other = put(&pending, at, Some(2), Some(&end), base.clone());
        assert!(other.is_none(), "of another version");
        put(&pending, at, Some(2), Some(&end), first);
        let known = pending.get(3, ChunkId(7)).unwrap();
        assert_eq!(
            (known.written.clone(), known.base.clone()),
            (Some(Ranges::from(0..2)), base)
        );
        assert!(!pending.is_complete(3, 1));
        put(&pending, at, Some(3), None, None);
        assert!(pending.is_complete(3, 1) && !pending.is_complete(3, 2));
        // a chunk that was handed over later stays
        pending.remove(3, &[(ChunkId(7), known)].into());
        assert_eq!(pending.objects(), [3]);
        pending.remove(3, &pending.chunks(3));
        assert!(pending.is_empty());
    }

    #[test]
    fn an_erased_chunk_hides_the_stored_one() {
        let pending = PendingChunks::default();
        put(&pending, (0, 0), None, None, None);
        // all other bytes are fill values
        put(&pending, (0, 0), Some(1), Some(&Ranges::from(0..1)), None);
        assert!(pending.get(0, ChunkId(0)).unwrap().written.is_none() && pending.is_complete(0, 1));
    }

    #[test]
    fn long_lists_of_written_ranges_are_counted() {
        let pending = PendingChunks::default();
        let vast: Ranges = (0..1 << 18).map(|n| 2 * n..2 * n + 1).collect();
        assert!(vast.memory() > 64 << 10);
        let base = Some(Version::Count(1));
        put(&pending, (1, 0), Some(1), Some(&vast), base).unwrap();
        let chunk = pending.get(1, ChunkId(0)).unwrap();
        assert_eq!(
            chunk._ranges.bytes(),
            chunk.written.as_ref().unwrap().memory() - COST
        );
    }

    #[test]
    fn objects_are_stored_when_they_are_quiet() {
        let pending = PendingChunks::default();
        put(&pending, (5, 1), Some(1), None, None);
        let now = Instant::now();
        assert!(pending.quiet(now).is_empty());
        assert_eq!(pending.quiet(now + QUIET), [5]);
        pending.record_put(Duration::from_secs(3));
        assert!(
            pending.quiet(now + QUIET).is_empty()
                && pending.quiet(now + Duration::from_secs(13)) == [5]
        );
        pending.record_put(Duration::from_secs(300));
        assert_eq!(pending.quiet(now + MAX_QUIET), [5]);
    }
}
