//! Options of every verb that decodes: memory, threads and spill files.

use super::start_directory::absolute;
use super::{CACHING, size};
use crate::cache::{Cache, SpillOptions};
use crate::fs::Options;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use zarrfs_base::memory;
use zarrfs_base::stats::Stats;

/// Options of every verb that decodes or encodes chunks.
#[derive(Args)]
#[command(next_help_heading = CACHING)]
pub struct MemoryArgs {
    /// Limit the memory for decoded chunks
    ///
    /// A number with K, M, G or T.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    pub cache_size: u64,
    /// Decode on N threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

impl MemoryArgs {
    pub fn cache(&self, stats: Arc<Stats>) -> Cache {
        self.set_bound();
        Cache::new(
            usize::try_from(self.cache_size).unwrap_or(usize::MAX),
            stats,
        )
        .decoding_with(self.threads())
    }

    /// Sets the bound that the memory of documents and headers counts against.
    pub fn set_bound(&self) {
        memory::set_cache_bound(usize::try_from(self.cache_size).unwrap_or(usize::MAX));
    }

    /// Returns the number of threads asked for, or one per core.
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(
            || std::thread::available_parallelism().map_or(2, |n| n.get()),
            usize::from,
        )
    }
}

/// Options of every verb that reads flat bytes.
#[derive(Args)]
#[command(next_help_heading = CACHING)]
pub struct ReadArgs {
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Spill into DIR [default: $TMPDIR or /var/tmp]
    ///
    /// Decoded chunks wait there while an array is read from its beginning to its end and a row of
    /// its chunks doesn't fit into --cache-size, encoded chunks until their shard is stored, and
    /// manifests of Icechunk that exceed memory. It should not be a file system in memory.
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
    /// Limit the size of spill files
    ///
    /// 0 decodes the chunks again instead, and stores shards in more steps.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = size::parse)]
    spill_size: u64,
}

impl ReadArgs {
    pub fn options(&self, read_only: bool) -> Options {
        let spill = self.spill_options();
        Options {
            read_only,
            resize: false,
            threads: self.memory.threads(),
            direct_io: false,
            spill,
        }
    }

    pub fn spill_options(&self) -> SpillOptions {
        SpillOptions {
            directory: self.spill_directory(),
            limit: self.spill_size,
        }
    }

    /// Returns the directory of spill files.
    pub fn spill_directory(&self) -> PathBuf {
        absolute(&self.spill_name())
    }

    /// Returns the directory of spill files by the name that the user has given.
    pub fn spill_name(&self) -> PathBuf {
        self.spill_dir.clone().unwrap_or_else(spill_directory)
    }
}

/// Returns the default directory of spill files.
pub fn spill_directory() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}
