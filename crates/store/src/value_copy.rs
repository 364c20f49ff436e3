//! Copies of values into files. Values of any size are copied part by part, and the first parts of
//! several values are read at the same time from a store that answers several requests.

use crate::{Key, Stat, Store, StoreExt};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::pool::on_threads;

/// Number of bytes of a value that are read at a time.
pub const COPIED_PART: u64 = 4 << 20;

/// Maximum number of values whose first parts are in memory.
const TOGETHER: usize = 16;

/// Maximum number of times that a value is read which another program keeps replacing.
const ATTEMPTS: usize = 5;

/// The first bytes of a value, which may be all, and its metadata.
pub struct ValueStart {
    bytes: Vec<u8>,
    stat: Stat,
}

/// A value that was copied.
pub struct CopiedValue {
    /// Number of bytes.
    pub size: u64,
    /// CRC-32 of the bytes.
    pub crc: u32,
}

impl ValueStart {
    /// Returns the number of values that the store answers at the same time.
    pub fn together(store: &dyn Store) -> usize {
        store.concurrency().clamp(1, TOGETHER)
    }

    /// Reads the first bytes of the value of `key`; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn read(store: &dyn Store, key: &Key) -> Result<Option<Self>> {
        let mut bytes = Vec::new();
        let stat = store
            .get_range(key, 0..COPIED_PART, &mut bytes)
            .context(key)?;
        Ok(stat.map(|stat| ValueStart { bytes, stat }))
    }

    /// Reads the first bytes of all these values, in their order, at the same time.
    ///
    /// # Errors
    ///
    /// The first error of a read.
    pub fn read_all(store: &dyn Store, keys: &[Key]) -> Result<Vec<Option<Self>>> {
        let starts: Vec<Mutex<Option<Self>>> = keys.iter().map(|_| Mutex::default()).collect();
        let next = AtomicUsize::new(0);
        on_threads(keys.len().min(Self::together(store)), &|| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(key) = keys.get(i) else {
                    return Ok(());
                };
                *lock(&starts[i]) = Self::read(store, key)?;
            }
        })?;
        Ok(starts.iter().map(|start| lock(start).take()).collect())
    }

    /// Returns the value if these bytes are all.
    pub fn whole(&self) -> Option<&[u8]> {
        (self.bytes.len() as u64 == self.stat.size).then_some(&self.bytes)
    }

    /// Copies the value of `key` in `store`, which begins with this start, to `file` from `offset`
    /// on. A value that is replaced meanwhile is copied again from its beginning; longer former
    /// ones may leave bytes behind it.
    ///
    /// # Errors
    ///
    /// The store or the file fails, or the value is removed or keeps changing.
    pub fn copy(
        self,
        store: &dyn Store,
        key: &Key,
        file: &File,
        offset: u64,
    ) -> Result<CopiedValue> {
        let mut start = self;
        for _ in 0..ATTEMPTS {
            if let Some(crc) = start.copy_once(store, key, file, offset)? {
                let size = start.stat.size;
                return Ok(CopiedValue { size, crc });
            }
            start = Self::read(store, key)?
                .ok_or_else(|| Error::not_found("was removed while it was read").context(key))?;
        }
        Err(Error::io("changes faster than it can be read").context(key))
    }

    /// Copies the value and returns its checksum; `None` if it is replaced meanwhile.
    fn copy_once(
        &self,
        store: &dyn Store,
        key: &Key,
        file: &File,
        offset: u64,
    ) -> Result<Option<u32>> {
        let mut crc = crc32fast::Hasher::new();
        write_at(file, &self.bytes, offset)?;
        crc.update(&self.bytes);
        let mut done = self.bytes.len() as u64;
        let mut part = Vec::new();
        while done < self.stat.size {
            let found = store
                .get_range(key, done..done + COPIED_PART, &mut part)
                .context(key)?;
            let is_same = found.is_some_and(|found| found.version.may_equal(&self.stat.version));
            if !is_same || part.is_empty() {
                return Ok(None);
            }
            write_at(file, &part, offset + done)?;
            crc.update(&part);
            done += part.len() as u64;
        }
        Ok((done == self.stat.size).then(|| crc.finalize()))
    }
}

fn write_at(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    let written = file.write_all_at(bytes, offset);
    written.map_err(|e| Error::from(e).context("the copy"))
}
