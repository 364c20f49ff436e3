//! What a read has found. A reply needs no copy of bytes that lie side by side in one cached chunk
//! or window: it is sent from there.

use super::DecodedPart;

/// What a read of an open file, or of a part of it, has found.
pub enum FoundBytes {
    /// The bytes lie side by side in a cached chunk or window.
    Run(CachedRun),
    /// The buffer of the caller holds the bytes.
    Copied,
    /// The read needs the store, or has to wait, and must not. The content of the caller's buffer
    /// is unspecified.
    MustWait,
}

impl FoundBytes {
    /// Returns the bytes; `out` is the buffer that the read was called with.
    pub fn bytes<'a>(&'a self, out: &'a [u8]) -> &'a [u8] {
        match self {
            FoundBytes::Run(run) => run.bytes(),
            FoundBytes::Copied => out,
            FoundBytes::MustWait => &[],
        }
    }

    /// Returns `None` if the read has to wait.
    pub fn ready(self) -> Option<FoundBytes> {
        match self {
            FoundBytes::MustWait => None,
            found => Some(found),
        }
    }

    /// Copies the bytes into `out`, the buffer that the read was called with, if they lie
    /// elsewhere. Returns false if the read has to wait.
    pub fn copy_to(&self, out: &mut Vec<u8>) -> bool {
        match self {
            FoundBytes::Run(run) => {
                out.clear();
                out.extend_from_slice(run.bytes());
                true
            }
            FoundBytes::Copied => true,
            FoundBytes::MustWait => false,
        }
    }
}

/// Bytes that lie side by side in a cached chunk or window. They stay in memory as long as this
/// value.
pub struct CachedRun {
    part: DecodedPart,
    /// Offset in the chunk or window, in bytes.
    offset: usize,
    len: usize,
}

impl CachedRun {
    /// Returns the `len` bytes at `offset` of a chunk or window; `None` if `part` lacks some
    /// of these bytes.
    pub fn new(part: DecodedPart, offset: usize, len: usize) -> Option<Self> {
        let is_whole = part.at(offset).is_some_and(|bytes| bytes.len() >= len);
        is_whole.then_some(CachedRun { part, offset, len })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.part
            .at(self.offset)
            .and_then(|bytes| bytes.get(..self.len))
            .unwrap_or_default()
    }
}
