//! The record layout of netCDF's classic format: parts that repeat at a constant distance.
//! Positions are computed, so that records take no memory. This module does not know what the parts
//! hold.

use super::FilePart;
use std::ops::Range;

/// Where the records of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// The index of the first part of a record; the others follow.
    pub(super) first: usize,
    /// Offset of the first record, in bytes.
    pub at: u64,
    /// Number of bytes from one record to the next.
    pub step: u64,
    /// Number of records.
    pub(super) count: u64,
}

/// The bytes of one part that a request covers, in all of its records.
pub struct FileSlice<'a> {
    /// The index of the part.
    pub number: usize,
    /// The part.
    pub part: &'a FilePart,
    /// Where the slice begins in the bytes of the part, those of all records one after the other.
    pub at: u64,
    /// Its length in bytes.
    pub len: usize,
    /// Where it begins in the request.
    begin: usize,
    /// The number of bytes of other parts between two records.
    gap: usize,
}

impl<'a> FileSlice<'a> {
    /// Returns the runs of the slice: where each begins in the request, and which bytes of the
    /// slice it holds.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut position = self.begin;
        let mut done = 0;
        std::iter::from_fn(move || {
            let rest = match self.gap {
                0 => self.len,
                _ => (self.part.len - (self.at + done as u64) % self.part.len) as usize,
            };
            let range = done..done + rest.min(self.len - done);
            let piece = (position, range.clone());
            (position, done) = (position + range.len() + self.gap, range.end);
            (!range.is_empty()).then_some(piece)
        })
    }

    /// Copies the bytes of the slice to their places in the request.
    pub fn scatter(&self, bytes: &[u8], request: &mut [u8]) {
        for (position, range) in self.pieces() {
            let len = range.len();
            request[position..position + len].copy_from_slice(&bytes[range]);
        }
    }

    /// Copies the bytes of the slice from the request.
    pub fn gather(&self, request: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        for (position, range) in self.pieces() {
            bytes.extend_from_slice(&request[position..position + range.len()]);
        }
        bytes
    }
}

impl Records {
    /// Appends the slices of a request from `offset` to `end`; `record` has the parts of a record.
    pub(super) fn slices<'a>(
        &self,
        record: &'a [FilePart],
        offset: u64,
        end: u64,
        out: &mut Vec<FileSlice<'a>>,
    ) {
        if offset.max(self.at) >= end {
            return;
        }
        let from = offset.max(self.at) - self.at;
        let to = end - self.at;
        // a group may have thousands of variables, and most requests are small
        let touched = if from / self.step == (to - 1) / self.step {
            let first = record.partition_point(|part| part.at + part.len <= self.in_first(from));
            first..record.partition_point(|part| part.at <= self.in_first(to - 1))
        } else {
            0..record.len()
        };
        for (i, part) in record
            .iter()
            .enumerate()
            .take(touched.end)
            .skip(touched.start)
        {
            let at = self.position(part, from);
            let last = self.position(part, to);
            if at < last {
                let begin = at / part.len * self.step + part.at + at % part.len - offset;
                out.push(FileSlice {
                    number: self.first + i,
                    part,
                    at,
                    len: (last - at) as usize,
                    begin: begin as usize,
                    gap: (self.step - part.len) as usize,
                });
            }
        }
    }

    /// Returns the offset in the file of a position in the records, in the first of them.
    fn in_first(&self, at: u64) -> u64 {
        self.at + at % self.step
    }

    /// Returns how many bytes of a part precede a position in the records.
    fn position(&self, part: &FilePart, at: u64) -> u64 {
        at / self.step * part.len + self.in_first(at).saturating_sub(part.at).min(part.len)
    }
}
