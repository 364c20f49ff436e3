//! `zarrfs migrate`: converts a Zarr store to a later format, in place.

use super::{CommandFailure, StoreArgs, StoreLocation, open_store, print};
use crate::array::hierarchy::UseConsolidated;
use clap::Args;
use std::sync::Arc;
use zarrfs_base::json::{self, json};
use zarrfs_store::Key;

/// Arguments of `migrate`.
#[derive(Args)]
pub struct MigrateArgs {
    /// Path of the store
    store: StoreLocation,
    /// Convert to this Zarr format: 2 or 3
    ///
    /// 2 converts a store of v1, 3 one of v1 or v2. Chunks stay where they are; only metadata
    /// documents are replaced.
    #[arg(long = "to", value_name = "FORMAT", default_value = "2", value_parser = clap::value_parser!(u8).range(2..=3))]
    zarr_format: u8,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Runs the verb.
pub fn run(args: &MigrateArgs) -> Result<(), CommandFailure> {
    let shown = &args.store;
    let format = args.zarr_format;
    let mut store_args = args.store_args.clone();
    // read the documents themselves
    store_args.remote.consolidated = UseConsolidated::Never;
    let hierarchy = open_store(&args.store, &store_args, &Arc::default())?;
    let migrated = match format {
        3 => hierarchy.migrate_to_v3(),
        _ => hierarchy.migrate(),
    }
    .map_err(|e| e.context(shown))?;
    let found = if hierarchy
        .is_v3(&Key::root())
        .map_err(|e| e.context(shown))?
    {
        3
    } else {
        2
    };
    let report = match (args.json, migrated) {
        (true, _) => json::write(
            &json!({"store": shown.to_string(), "migrated": migrated, "zarr_format": found}),
        ),
        (false, true) => format!("{shown}: converted to Zarr v{found}"),
        (false, false) => format!("{shown}: Zarr v{found} already, nothing to do"),
    };
    print(report + "\n")
}
