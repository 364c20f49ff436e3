//! Reads of `dataset.nc` in blocks. The kernel divides a read of more than [`REQUEST`] bytes into
//! requests. If a later request fails, the program gets a short read, and NetCDF-C 4.9.0 takes the
//! missing bytes for zeros (`px_pgin` in posixio.c) without an error.
//!
//! Invariant: the first request of a read fails if a later one will. NetCDF-C reads at most one
//! block at a time, so this module looks no further than the end of the block.

use super::CompositeFile;
use crate::cache::Wait;
use crate::export::{GroupFormat, READER_BLOCK};
use crate::fs::Fs;
use crate::fs::tree::Node;
use std::ops::Range;
use std::sync::atomic::Ordering;
use zarrfs_base::error::Result;

/// Size in bytes of the smallest request that can begin a longer read: 1 MiB, less the offset of
/// the buffer of a program in its page.
const REQUEST: usize = (1 << 20) - 4095;

impl CompositeFile {
    /// Loads the bytes that follow a request in its block, unless the request continues the
    /// previous one. Returns `false` if it must not wait for them.
    ///
    /// # Errors
    ///
    /// The error of the first byte that cannot be read.
    pub(super) fn load_rest_of_block(
        &self,
        fs: &Fs,
        (offset, len): (u64, usize),
        wait: Wait,
        scratch: &mut Vec<u8>,
    ) -> Result<bool> {
        let end = offset.saturating_add(len as u64);
        let block_end = (offset / READER_BLOCK + 1).saturating_mul(READER_BLOCK);
        let block_end = block_end.min(self.size());
        if len < REQUEST || end >= block_end {
            return Ok(true);
        }
        let is_first = offset.is_multiple_of(READER_BLOCK)
            || self.continued_at.load(Ordering::Relaxed) != offset;
        if is_first && wait == Wait::Never {
            return Ok(false);
        }
        if is_first {
            self.load_values(fs, end..block_end, len, scratch)?;
        }
        self.continued_at.store(end, Ordering::Relaxed);
        Ok(true)
    }

    /// Reads all values in a range of the file into `scratch`, at most `step` bytes at a time.
    fn load_values(
        &self,
        fs: &Fs,
        range: Range<u64>,
        step: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        for at in range.clone().step_by(step) {
            let len = step.min((range.end - at) as usize);
            let slices = self.slices(at, len);
            for slice in slices.iter().filter(|slice| slice.part.is_flat()) {
                self.read_values(fs, slice, Wait::Allowed, scratch)?;
            }
        }
        Ok(())
    }
}

/// Returns whether programs may take short reads of a file for zeros. The kernel must not keep its
/// pages, because a read of pages is short at the first page that cannot be read.
pub(super) fn is_read_in_blocks(node: &Node) -> bool {
    matches!(node, Node::Dataset(_, GroupFormat::Netcdf))
}
