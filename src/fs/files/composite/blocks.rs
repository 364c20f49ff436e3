//! Reads of `dataset.nc` in blocks. The kernel cuts a read of more than [`REQUEST`] bytes into
//! requests, and if one fails it returns the bytes before: a short read. NetCDF-C 4.9.0 takes what
//! is missing for zeros (`px_pgin` in posixio.c), and the program never learns of the damage.
//!
//! Invariant: the first request of a read fails if a later one will. Blocks are those of NetCDF-C,
//! so this module looks no further than the end of one.

use super::CompositeFile;
use crate::cache::Wait;
use crate::export::{GroupFormat, READER_BLOCK};
use crate::fs::Fs;
use crate::fs::tree::Node;
use std::sync::atomic::Ordering;
use zarrfs_base::error::Result;

/// Number of bytes of the smallest request that can begin a longer read: 1 MiB, less what the
/// program's buffer begins behind the border of a page.
const REQUEST: usize = (1 << 20) - 4095;

impl CompositeFile {
    /// Loads what follows a request in its block, unless the request continues the one before.
    /// Returns whether it could, which it can't where it must not wait.
    ///
    /// # Errors
    ///
    /// The error of the first byte that can't be read.
    pub(super) fn load_rest_of_block(
        &self,
        fs: &Fs,
        (offset, len): (u64, usize),
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let end = offset.saturating_add(len as u64);
        let block_end = (offset / READER_BLOCK + 1).saturating_mul(READER_BLOCK);
        let block_end = block_end.min(self.size());
        if len < REQUEST || end >= block_end {
            return Ok(true);
        }
        let continues = self.continued_at.load(Ordering::Relaxed) == offset
            && !offset.is_multiple_of(READER_BLOCK);
        if !continues {
            if wait == Wait::Never {
                return Ok(false);
            }
            for at in (end..block_end).step_by(len) {
                let rest = len.min((block_end - at) as usize);
                for slice in self.slices(at, rest) {
                    if slice.part.is_flat() {
                        self.read_values(fs, &slice, wait, out)?;
                    }
                }
            }
        }
        self.continued_at.store(end, Ordering::Relaxed);
        Ok(true)
    }
}

/// Returns whether short reads of a file may be taken for zeros. The kernel must not keep its
/// pages, since a read of pages is short at the first one that can't be read.
pub(super) fn is_read_in_blocks(node: &Node) -> bool {
    matches!(node, Node::Dataset(_, GroupFormat::Netcdf))
}
