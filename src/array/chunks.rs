//! Where the encoded chunks of an array lie: each in a value of its own, or several in an *object*.
//! [`Chunks`] is the one door to both; a chunk that has a value of its own is the only one of its
//! object. Implementations know keys, versions and encoded bytes, and which chunks wait for which
//! others until they are stored. They do not know who reads or writes a chunk.

use super::{Array, Losses, Ranges};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use zarrfs_base::error::{ErrorContext, Result};
use zarrfs_base::spill_file::SpillFile;
use zarrfs_format::grid::{ChunkId, Grid};
use zarrfs_store::{Replaces, Stat, StoreExt, Version};

/// Chunks of an object.
pub type ObjectChunks = Box<dyn Iterator<Item = ChunkId> + Send>;

/// Which objects with chunks that wait there are due to be stored.
pub enum Due {
    /// All of them, the one that waits longest first.
    All,
    /// Those that have not changed for a while.
    Quiet(Instant),
    /// Those that the close of a file stores: they could not be stored before, or a successor of
    /// this daemon would not have one of their chunks.
    Close,
    /// The one that holds a chunk that was put or erased, if all its chunks were.
    After(ChunkId),
}

/// How written bytes are stored.
#[derive(Clone, Copy)]
pub struct WriteBack<'a> {
    /// The beginning of the request. The wait for the store's lock is measured from it, so that a
    /// request for many chunks waits once.
    pub since: Instant,
    /// Where bytes are recorded that are lost, since the array was replaced or became smaller.
    /// Without it the array's document is not examined.
    pub losses: Option<&'a Losses>,
    /// The file that holds chunks that wait for their objects, if memory does not. Without it, they
    /// wait in memory however many there are.
    pub spill: Option<&'a Arc<SpillFile>>,
}

impl WriteBack<'_> {
    /// Begins to store bytes for a caller that changes the shape: the array's document is not
    /// examined, so no loss is noticed.
    pub fn unconfirmed() -> Self {
        WriteBack {
            since: Instant::now(),
            losses: None,
            spill: None,
        }
    }
}

/// An encoded chunk to put.
#[derive(Clone, Copy)]
pub struct EncodedChunk<'a> {
    /// The encoded bytes.
    pub bytes: &'a [u8],
    /// The decoded bytes that may differ from the replaced chunk; `None` stands for all.
    pub written: Option<&'a Ranges>,
    /// What it may replace.
    pub replaces: Replaces<'a>,
}

/// The encoded chunks of an array, in its store. Errors name the key.
///
/// What a method does unless it is overridden is right for chunks that are values of their own.
pub(super) trait Chunks: Any + Send + Sync {
    /// Returns the grid of the objects.
    fn objects<'a>(&'a self, array: &'a Array) -> &'a Grid {
        &array.grid
    }

    /// Returns the number of the object that holds a chunk.
    fn object_of(&self, _: &Array, chunk: ChunkId) -> u64 {
        chunk.0
    }

    /// Returns the chunks of the array that an object holds or may hold, in C order.
    fn members(&self, _: &Array, object: u64) -> ObjectChunks {
        Box::new(std::iter::once(ChunkId(object)))
    }

    /// Returns those chunks of a listed object that are stored, or may be because it is damaged.
    fn stored_members(&self, array: &Arc<Array>, object: u64) -> ObjectChunks {
        self.members(array, object)
    }

    /// Reads a whole chunk of at most `limit` bytes; `None` if it is uninitialized.
    fn get(
        &self,
        array: &Array,
        chunk: ChunkId,
        limit: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<Version>> {
        let key = array.stored_key(chunk);
        let got = array.timed(&key, || {
            let got = array.store.get(&key, limit, out);
            got.map_err(|e| array.explained_by_store(chunk, e))
        })?;
        array.stats.bytes_stored.add(out.len() as u64);
        Ok(got)
    }

    /// Reads the bytes `range` of a chunk, or fewer if the chunk ends earlier. The stat has the
    /// size and the version of the chunk.
    fn get_range(
        &self,
        array: &Array,
        chunk: ChunkId,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        array.timed_range(&array.stored_key(chunk), range, out)
    }

    /// Returns the stat of a chunk as of now; `None` if the chunk is uninitialized.
    fn stat(&self, array: &Array, chunk: ChunkId) -> Result<Option<Stat>> {
        array.stat_object(chunk)
    }

    /// Calls `each` with the stat of each chunk, in order, until it returns false.
    fn stat_many(
        &self,
        array: &Array,
        chunks: &mut dyn Iterator<Item = ChunkId>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        array.stat_objects(chunks, each);
    }

    /// Checks that there is memory to store objects.
    ///
    /// # Errors
    ///
    /// ENOMEM if there is not.
    fn check_storable(&self, _: &Array) -> Result<()> {
        Ok(())
    }

    /// Puts a chunk. Readers get it with the returned version from now on. Returns `None`, with
    /// nothing put, if the chunk has been replaced meanwhile.
    fn put_if(
        &self,
        array: &Array,
        chunk: ChunkId,
        new: EncodedChunk,
        _: WriteBack,
    ) -> Result<Option<Version>> {
        let key = array.stored_key(chunk);
        let put = array.timed(&key, || array.store.put_if(&key, new.bytes, new.replaces))?;
        if put.is_some() {
            array.stats.object_stores.add(1);
            array.stats.bytes_written.add(new.bytes.len() as u64);
        }
        Ok(put)
    }

    /// Makes a chunk uninitialized. Returns false if it was uninitialized already.
    fn erase(&self, array: &Array, chunk: ChunkId, _: WriteBack) -> Result<bool> {
        let key = array.stored_key(chunk);
        array.store.delete(&key).context(&key)
    }

    /// Returns the objects that are due to be stored.
    fn due(&self, _: &Array, _: Due) -> Vec<u64> {
        Vec::new()
    }

    /// Stores the chunks that wait for an object: see [`Array::store_object`].
    fn flush(&self, _: &Array, _: u64, _: WriteBack) -> Result<()> {
        Ok(())
    }

    /// Forgets the former state of the object that holds a chunk, which was replaced.
    fn forget(&self, _: &Array, _: ChunkId) {}

    /// Returns whether an object holds several chunks, which wait there for each other once they
    /// are put.
    fn share_objects(&self) -> bool {
        false
    }
}

/// Chunks that are values of their own.
pub(super) struct PlainChunks;

impl Chunks for PlainChunks {}
