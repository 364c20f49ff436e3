//! The journal of a mount: records in memory that the daemon shares with the process that holds
//! the mount, so that a daemon that is killed leaves them to its successor. The crate knows the
//! life of a record, and must not know what one means, nor FUSE.
//!
//! The memory is a table of slots. A record takes one slot, and more if its text is long; its first
//! slot, the *head*, has two numbers that change in place. Invariant: **at every instruction, the
//! memory holds each record as it was before or after a change.** A record is complete before the
//! one store that makes its head a head, so that a process may be killed at any moment. Nothing is
//! flushed: memory outlives a process, and no mount outlives the machine.

mod counts;
mod names;
mod slots;

pub use counts::{HeldRecord, KeyedCounts, SharedCount};
pub use names::RecordedNames;
pub use slots::{Journal, Record, RecordId};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

/// Size of a journal in bytes. Memory is only taken by slots that were in use: a slot of 128 bytes
/// holds a name of usual length, and the kernel is asked to forget names above some 100,000.
pub const JOURNAL_BYTES: u64 = 64 << 20;

/// Creates the memory of a journal without records. Its size is fixed.
///
/// # Errors
///
/// The kernel refuses: no memory, or a limit of the size of files (`ulimit -f`) below
/// [`JOURNAL_BYTES`].
pub fn create_memory() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("zarrfs-journal", flags)?;
    ftruncate(&memory, JOURNAL_BYTES)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&memory, seals)?;
    Ok(memory)
}
