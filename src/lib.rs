//! zarrfs shows a Zarr store as plain files: the same hierarchy with the codecs taken off.
//!
//! This list is the map of the house. The rooms stand in floor order; a room names only rooms that come earlier in this
//! list, which `tests/layers.rs` checks. A read of `data.raw` walks it from the bottom up: `fuse` takes the request,
//! `fs` finds the open file and asks `grid` which chunks hold the bytes, `cache` has them or lets `array` load them:
//! bytes from `store`, through the pipeline of `codec`. One copy goes from the decoded chunk into the reply.
//!
//! The crate is a program's library: its interface may change with every version.

#![warn(missing_docs)]

// floor 0: the one error, and its errno
pub mod error;
// floor 1: plain notions
pub mod memory;
pub mod pool;
pub mod json;
pub mod stats;
pub mod dtype;
// floor 2: metadata documents
pub mod metadata;
// floor 3: bytes to bytes, and keys to bytes
pub mod codec;
pub mod store;
// floor 4: pure arithmetic
pub mod grid;
pub mod layout;
// floor 5: one array, and all of them
pub mod array;
pub mod hierarchy;
// floor 6: decoded chunks within one bound; what is wrong with a store
pub mod cache;
pub mod check;
// floor 7: files that let other programs open the bytes
pub mod header;
// floor 8: names and nodes
pub mod tree;
// floor 9: what the file system does
pub mod fs;
// floor 10: FUSE
pub mod fuse;
// floor 11: the command line
pub mod cli;
