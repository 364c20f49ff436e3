//! `zarrfs migrate`: converts a Zarr v1 store to v2, in place.

use super::{Failure, Location, StoreArgs, logger, open_store, print};
use crate::stats::Stats;
use crate::util::json::{self, Value};
use clap::Args;
use log::LevelFilter;
use std::sync::Arc;

/// Arguments of `migrate`.
#[derive(Args)]
pub struct MigrateArgs {
    /// Path of the store
    store: Location,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Runs the verb.
pub fn run(args: &MigrateArgs) -> Result<(), Failure> {
    logger::start(LevelFilter::Off, None)?;
    let shown = &args.store;
    let hierarchy = open_store(&args.store, &args.store_args, Arc::new(Stats::default()))?;
    let migrated = hierarchy.migrate().map_err(|e| e.context(shown))?;
    let report = match (args.json, migrated) {
        (true, _) => {
            let report = [("store".to_string(), shown.to_string().into()), ("migrated".to_string(), migrated.into())];
            json::write(&Value::Object(report.into_iter().collect()))
        }
        (false, true) => format!("{shown}: Zarr v2 now"),
        (false, false) => format!("{shown}: nothing to do, it is Zarr v2 already"),
    };
    print(report + "\n")
}
