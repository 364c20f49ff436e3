//! `zarrfs migrate`: converts a Zarr store to a later format, in place, or to a new store with
//! shards.

use super::progress::ProgressLine;
use super::unfinished::{StagedOutput, rename_to_free_name};
use super::{
    CommandFailure, CommandResult, StoreArgs, StoreLocation, StoreRequest, check_listed, location,
    print,
};
use crate::array::hierarchy::{ShardShape, UseConsolidated};
use clap::Args;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext};
use zarrfs_base::json::{self, json};
use zarrfs_store::{DirectoryStore, Key};

/// Arguments of `migrate`.
#[derive(Args)]
pub struct MigrateArgs {
    /// Path of the store
    store: StoreLocation,
    /// Path of the new store, for --shards
    #[arg(requires = "shards")]
    new: Option<StoreLocation>,
    /// Convert to this Zarr format: 2 or 3 [default: 2]
    ///
    /// 2 converts a store of v1, 3 one of v1 or v2. Chunks stay where they are; only metadata
    /// documents are replaced.
    #[arg(long = "to", value_name = "FORMAT", value_parser = clap::value_parser!(u8).range(2..=3))]
    zarr_format: Option<u8>,
    /// Copy chunks into shards of this shape, or auto
    ///
    /// The shape is in items, and for arrays of as many dimensions. auto chooses one for each
    /// array: whole chunks of up to 64 MiB. STORE stays as it is. NEW becomes a directory, with a
    /// store of Zarr v3.
    #[arg(long, value_name = "N,N...", value_parser = shard_shape, requires = "new")]
    shards: Option<ShardShape>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Parses a shape of shards.
pub fn shard_shape(text: &str) -> Result<ShardShape, String> {
    if text == "auto" {
        return Ok(ShardShape::Auto);
    }
    let lengths = text.split(',').map(|word| {
        let length = word.trim().parse::<u64>().ok().filter(|length| *length > 0);
        length.ok_or_else(|| format!("{word:?} is not a length; give lengths, or auto"))
    });
    lengths.collect::<Result<_, _>>().map(ShardShape::Lengths)
}

/// Runs the verb.
pub fn run(args: &MigrateArgs) -> CommandResult {
    if let (Some(shape), Some(new)) = (&args.shards, &args.new) {
        return copy_in_shards(args, shape, new);
    }
    let shown = &args.store;
    let mut store_args = args.store_args.clone();
    // read the documents themselves
    store_args.remote.consolidated = UseConsolidated::Never;
    let hierarchy = StoreRequest::reading(&args.store, &store_args, &Arc::default()).hierarchy()?;
    let migrated = match args.zarr_format {
        Some(3) => hierarchy.migrate_to_v3(),
        _ => hierarchy.migrate(),
    }
    .context(shown)?;
    let found = if hierarchy.is_v3(&Key::root()).context(shown)? {
        3
    } else {
        2
    };
    let report = match (args.json, migrated) {
        (true, _) => json::write(
            &json!({"store": shown.to_string(), "migrated": migrated, "zarr_format": found}),
        ),
        (false, true) => format!("{shown}: converted to Zarr v{found}"),
        (false, false) => {
            let others = if found == 2 && args.zarr_format.is_none() {
                "; --to 3 converts it to Zarr v3, and --shards auto copies it into a new store with shards"
            } else {
                ""
            };
            format!("{shown}: Zarr v{found} already, nothing to do{others}")
        }
    };
    print(report + "\n")
}

/// Copies the store to the new one, with chunks in shards.
fn copy_in_shards(args: &MigrateArgs, shape: &ShardShape, new: &StoreLocation) -> CommandResult {
    let shown = &args.store;
    if args.zarr_format == Some(2) {
        let why = "--to 2: Zarr v2 has no shards; leave it out, or use --to 3";
        return Err(CommandFailure::wrong_use(why));
    }
    let StoreLocation::Path(target) = new.absolute() else {
        let why = "--shards makes a store in a directory; name one, and copy it from there";
        return Err(CommandFailure::wrong_use(format!("{new}: {why}")));
    };
    if target.symlink_metadata().is_ok() {
        let why = "exists already; name a new store, or remove it";
        return Err(CommandFailure::wrong_use(format!("{new}: {why}")));
    }
    let beside = target.parent().unwrap_or(Path::new("/"));
    location::check_not_mounted(beside)?;
    let hierarchy =
        StoreRequest::reading(&args.store, &args.store_args, &Arc::default()).hierarchy()?;
    check_listed(&hierarchy, shown)?;
    let staged = StagedOutput::new(beside)?;
    let made = staged.path("new");
    std::fs::create_dir(&made)?;
    let scratch = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(staged.path("chunks"))?;
    // no program sees the values before the store is synced as a whole
    let store = Arc::new(DirectoryStore::open(&made)?.without_fsync());
    let mut progress = ProgressLine::start(None);
    let copied =
        hierarchy.copy_in_shards(store, shape, &scratch, &mut |bytes| progress.show(bytes));
    progress.end();
    let copied = copied.map_err(|e| {
        let why = format!("{}; {new} was not made", e.message());
        Error::new(e.kind(), why).context(shown)
    })?;
    CommandFailure::check_left_out(&hierarchy, shown)?;
    staged.finish(|| rename_to_free_name(&made, &target))?;
    let report = if args.json {
        json::write(&json!({"store": shown.to_string(), "new": new.to_string(),
            "arrays": copied.arrays, "sharded": copied.sharded, "chunks": copied.chunks,
            "shards": copied.shards}))
    } else {
        format!(
            "{new}: {} of {} arrays in shards, {} shards of {} chunks",
            copied.sharded, copied.arrays, copied.shards, copied.chunks
        )
    };
    print(report + "\n")
}
