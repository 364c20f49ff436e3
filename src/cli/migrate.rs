//! `zarrfs migrate`: a Zarr v1 store turned into v2, in place.

use super::{Failure, Location, StoreArgs, logger, open_store};
use crate::stats::Stats;
use clap::Args;
use log::LevelFilter;
use std::sync::Arc;

/// What `migrate` takes.
#[derive(Args)]
pub struct MigrateArgs {
    /// The store
    store: Location,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Runs the verb.
pub fn run(args: &MigrateArgs) -> Result<(), Failure> {
    logger::start(LevelFilter::Off, None)?;
    let shown = &args.store;
    let hierarchy = open_store(&args.store, &args.store_args, Arc::new(Stats::default()))?;
    match hierarchy.migrate().map_err(|e| e.context(shown))? {
        true => println!("{shown}: Zarr v2 now"),
        false => println!("{shown}: nothing to do, it is Zarr v2 already"),
    }
    Ok(())
}
