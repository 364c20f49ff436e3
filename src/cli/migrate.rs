//! `zarrfs migrate`: converts a Zarr v1 store to v2, in place.

use super::{CommandFailure, StoreArgs, StoreLocation, logger, open_store, print};
use crate::stats::Stats;
use crate::util::json::{self, json};
use clap::Args;
use log::LevelFilter;
use std::sync::Arc;

/// Arguments of `migrate`.
#[derive(Args)]
pub struct MigrateArgs {
    /// Path of the store
    store: StoreLocation,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Runs the verb.
pub fn run(args: &MigrateArgs) -> Result<(), CommandFailure> {
    logger::start(LevelFilter::Off, None)?;
    let shown = &args.store;
    let hierarchy = open_store(&args.store, &args.store_args, Arc::new(Stats::default()))?;
    let migrated = hierarchy.migrate().map_err(|e| e.context(shown))?;
    let report = match (args.json, migrated) {
        (true, _) => json::write(&json!({"store": shown.to_string(), "migrated": migrated})),
        (false, true) => format!("{shown}: converted to Zarr v2"),
        (false, false) => format!("{shown}: Zarr v2 already, nothing to do"),
    };
    print(report + "\n")
}
