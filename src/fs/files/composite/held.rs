//! Writes that are held back until it is clear what they mean: in memory, and beyond a few MiB in a
//! file without a name. This module does not know what the bytes are.

use rustix::fs::MemfdFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, Grant};
use zarrfs_base::spill_file::{SpillOptions, free_space, unnamed_file};

/// Maximum bytes held in memory.
const IN_MEMORY: u64 = 8 << 20;

/// Maximum number of ranges of bytes. Programs append in order, so that there are few.
const MAX_RANGES: usize = 1 << 16;

/// Bytes copied at a time.
const STEP: u64 = 1 << 20;

/// Bytes that were written, at their offsets.
pub struct HeldWrites {
    file: File,
    /// The memory of the file; `None` if it is on disk.
    memory: Option<Grant>,
    /// Ranges of offsets that neither overlap nor touch: the end by the start.
    ranges: BTreeMap<u64, u64>,
}

impl HeldWrites {
    /// Returns a place without bytes.
    pub fn new() -> Result<Self> {
        let memory = Some(memory::take(IN_MEMORY as usize)?);
        let file = rustix::fs::memfd_create(c"zarrfs records", MemfdFlags::CLOEXEC)?;
        Ok(HeldWrites {
            file: file.into(),
            memory,
            ranges: BTreeMap::new(),
        })
    }

    /// Holds bytes.
    ///
    /// # Errors
    ///
    /// ENOSPC if all of them take more than the limit of spilled bytes or half of the free space.
    pub fn write(&mut self, options: &SpillOptions, offset: u64, data: &[u8]) -> Result<()> {
        self.add(offset, offset.saturating_add(data.len() as u64));
        let size: u64 = self.ranges.iter().map(|(start, end)| end - start).sum();
        if self.ranges.len() > MAX_RANGES || size > IN_MEMORY.max(options.limit) {
            let why = "records that the header does not count yet take more than --spill-size";
            return Err(Error::system(libc::ENOSPC).context(why));
        }
        if size > IN_MEMORY && self.memory.is_some() {
            if size > free_space(&options.directory)? / 2 {
                return Err(Error::system(libc::ENOSPC).context(options.directory.display()));
            }
            self.move_to(unnamed_file(&options.directory)?)?;
        }
        Ok(self.file.write_all_at(data, offset)?)
    }

    fn move_to(&mut self, file: File) -> Result<()> {
        let mut piece = Vec::new();
        for (start, end) in &self.ranges {
            for at in (*start..*end).step_by(STEP as usize) {
                // the last range may not be written yet
                piece.resize(STEP.min(end - at) as usize, 0);
                let len = self.file.read_at(&mut piece, at)?;
                file.write_all_at(&piece[..len], at)?;
            }
        }
        (self.file, self.memory) = (file, None);
        Ok(())
    }

    fn add(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &its_end)) = self.ranges.range(..=start).next_back()
            && its_end >= start
        {
            (start, end) = (before, end.max(its_end));
        }
        while let Some((&next, &its_end)) = self.ranges.range(start..=end).next() {
            self.ranges.remove(&next);
            end = end.max(its_end);
        }
        self.ranges.insert(start, end);
    }

    /// Puts the held bytes over those that were read at `offset`, up to `len` of them.
    pub fn show(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let end = offset.saturating_add(len as u64);
        for (start, its_end) in self.ranges.range(..end) {
            let from = offset.max(*start);
            let to = end.min(*its_end);
            if from < to {
                let at = (from - offset) as usize;
                let to = (to - offset) as usize;
                // the request bounds it
                out.resize(out.len().max(to), 0);
                self.file.read_exact_at(&mut out[at..to], from)?;
            }
        }
        Ok(())
    }

    /// Hands all bytes before `end` to `write`, in pieces, and forgets them. Returns whether others
    /// are left.
    pub fn take_before(
        &mut self,
        end: u64,
        mut write: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let mut piece = Vec::new();
        while let Some((&start, &its_end)) = self
            .ranges
            .first_key_value()
            .filter(|(start, _)| **start < end)
        {
            let to = its_end.min(end);
            for at in (start..to).step_by(STEP as usize) {
                memory::resize(&mut piece, STEP.min(to - at) as usize)?;
                self.file.read_exact_at(&mut piece, at)?;
                write(at, &piece)?;
            }
            self.ranges.remove(&start);
            if to < its_end {
                self.ranges.insert(to, its_end);
            }
        }
        Ok(!self.ranges.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bytes_are_shown_and_taken_in_order() {
        let directory = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let options = SpillOptions {
            directory: directory.path().into(),
            limit: 32 << 20,
        };
        for big in [100usize, 9 << 20] {
            let mut held = HeldWrites::new().unwrap();
            if big as u64 > IN_MEMORY && free_space(directory.path()).is_err() {
                continue; // a tmpfs
            }
            held.write(&options, 10, &vec![1; big]).unwrap();
            held.write(&options, 5, &[2; 6]).unwrap();
            held.write(&options, 1 << 40, &[3; 4]).unwrap();
            assert_eq!(held.ranges.len(), 2);
            assert_eq!(held.memory.is_none(), big as u64 > IN_MEMORY);
            let mut out = vec![9; 4];
            held.show(2, 10, &mut out).unwrap();
            assert_eq!(out, [9, 9, 9, 2, 2, 2, 2, 2, 2, 1]);
            let mut taken = Vec::new();
            let mut take = |end| {
                let taken = |at, bytes: &[u8]| {
                    taken.push((at, bytes[0]));
                    Ok(())
                };
                held.take_before(end, taken).unwrap()
            };
            assert!(take(7) && take(1 << 39));
            assert!(!take(u64::MAX));
            assert_eq!(taken[..2], [(5, 2), (7, 2)]);
            assert_eq!(taken.last(), Some(&(1 << 40, 3)));
        }
        let mut held = HeldWrites::new().unwrap();
        assert!(
            held.write(
                &SpillOptions {
                    limit: 0,
                    ..options
                },
                0,
                &vec![1; 9 << 20]
            )
            .is_err()
        );
    }
}
