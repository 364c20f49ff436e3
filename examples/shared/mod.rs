//! Helpers of the examples that measure the minimum cost of a write: the codecs of one array,
//! without a cache and without writing to its store, and the replacement of a file that survives a
//! power loss.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use zarrfs::array::hierarchy::{Hierarchy, StoredNode};
use zarrfs::array::{Array, Scratch};
use zarrfs_base::stats::Stats;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{V1Order, ZARRAY};
use zarrfs_store::{DirectoryStore, Key, MemoryStore, Store, StoreExt};

/// Maximum size of a value in bytes, larger than any value here.
const LIMIT: u64 = 1 << 40;

/// An array whose chunks are loaded from a directory and encoded into memory.
pub struct Codecs {
    pub array: Arc<Array>,
    target: Arc<Array>,
    memory: Arc<MemoryStore>,
    stats: Arc<Stats>,
    /// The decoded chunk that was loaded last: one buffer for all chunks, as in a mount.
    pub bytes: Vec<u8>,
    scratch: Scratch,
}

impl Codecs {
    /// Opens the array in the directory `path`.
    pub fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let stats = Arc::new(Stats::default());
        let memory = Arc::new(MemoryStore::default());
        let mut document = Vec::new();
        let store = Arc::new(DirectoryStore::open(path)?);
        let key = Key::normalize(ZARRAY)?;
        store
            .get(&key, LIMIT, &mut document)?
            .ok_or("not an array of Zarr v2")?;
        memory.put(&key, &document)?;
        Ok(Codecs {
            array: find(store, Arc::default())?,
            target: find(memory.clone(), stats.clone())?,
            memory,
            stats,
            bytes: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// Reads and decodes a chunk into `bytes`.
    pub fn load(&mut self, chunk: ChunkId) -> Result<(), Box<dyn Error>> {
        let loaded = self
            .array
            .load(chunk, std::mem::take(&mut self.bytes), &mut self.scratch)?;
        self.bytes = loaded.ok_or("an uninitialised chunk")?.bytes;
        Ok(())
    }

    /// Encodes `bytes` as a chunk. Returns the encoded bytes, and the seconds that the codecs took.
    pub fn encode(&mut self, chunk: ChunkId) -> Result<(Vec<u8>, f64), Box<dyn Error>> {
        let before = self.stats.codec_time.get();
        self.target.store(chunk, &self.bytes, &mut self.scratch)?;
        let seconds = (self.stats.codec_time.get() - before) as f64 / 1e9;
        let key = self.target.stored_key(chunk);
        let mut stored = Vec::new();
        self.memory.get(&key, LIMIT, &mut stored)?;
        self.memory.delete(&key)?;
        Ok((stored, seconds))
    }
}

fn find(store: Arc<dyn Store>, stats: Arc<Stats>) -> Result<Arc<Array>, Box<dyn Error>> {
    match Hierarchy::new(store, V1Order::Zarr1, stats).find(&Key::root())? {
        Some(StoredNode::Array(array)) => Ok(array),
        _ => Err("not an array".into()),
    }
}

/// Replaces a file with a new one, whose bytes are on stable storage. Its name is on stable storage
/// after [`sync_names`].
pub fn replace(directory: &Path, name: &str, value: &[u8]) -> std::io::Result<()> {
    let temporary = directory.join(format!(".{name}"));
    let mut file = File::create_new(&temporary)?;
    file.write_all(value)?;
    file.sync_data()?;
    std::fs::rename(temporary, directory.join(name))
}

/// Puts the names in a directory on stable storage.
pub fn sync_names(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}
