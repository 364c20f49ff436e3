//! The result of opening a file: what the kernel may keep of it, and which file of the store it may
//! read itself.

/// The pages of a file that the kernel may keep in its page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPages {
    /// No pages: each read is a request. For content that is generated at open or that the kernel
    /// need not keep.
    None,
    /// Only the pages of maps, if the kernel can tell them apart (since Linux 6.6); otherwise like
    /// `Fresh`.
    Maps,
    /// Pages that are read from now on.
    Fresh,
    /// Pages that are read from now on, and those that were read before.
    Kept,
}

impl KernelPages {
    /// Returns the pages that the kernel may keep at an opening: see `Pages::open`.
    pub fn kept_if(is_kept: bool) -> Self {
        if is_kept {
            KernelPages::Kept
        } else {
            KernelPages::Fresh
        }
    }
}

/// The answer to an opening.
#[derive(Debug)]
pub struct OpenedFile {
    /// The number of the open file in later requests.
    pub handle: u64,
    /// The pages that the kernel may keep.
    pub pages: KernelPages,
    /// Whether the file is open more than once, and at least once for writing. The kernel may drop
    /// pages at one opening while a write through another is in flight.
    pub is_written_while_shared: bool,
    /// Whether the kernel may have kept attributes of the file, which the opening must drop.
    pub has_lasting_attributes: bool,
}
