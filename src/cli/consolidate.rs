//! `zarrfs consolidate`: writes the `.zmetadata` of a store.

use super::remote::ConsolidatedArg;
use super::{CommandFailure, StoreArgs, StoreLocation, logger, open_store, print};
use crate::stats::Stats;
use crate::store::Key;
use crate::util::json::{self, json};
use crate::zarr::metadata::{ZARRAY, ZMETADATA};
use clap::Args;
use log::LevelFilter;
use std::sync::Arc;

/// Arguments of `consolidate`.
#[derive(Args)]
pub struct ConsolidateArgs {
    /// Path of the store
    store: StoreLocation,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Runs the verb.
pub fn run(args: &ConsolidateArgs) -> Result<(), CommandFailure> {
    logger::start(LevelFilter::Off, None)?;
    let (shown, stats) = (&args.store, Arc::new(Stats::default()));
    let mut store_args = args.store_args.clone();
    // read the documents themselves
    store_args.remote.consolidated = ConsolidatedArg::Ignore;
    let hierarchy = open_store(&args.store, &store_args, stats.clone())?;
    let names = hierarchy.write_consolidated(&Key::root()).map_err(|e| e.context(shown))?;
    let arrays = names.iter().filter(|name| name.rsplit('/').next() == Some(ZARRAY)).count();
    let documents = names.len();
    let report = match args.json {
        true => {
            let report = json!({"store": shown.to_string(), "documents": documents, "arrays": arrays});
            json::write(&report)
        }
        false => format!("{shown}: {ZMETADATA} holds {documents} documents, of {arrays} arrays"),
    };
    print(report + "\n")?;
    match stats.problems().as_slice() {
        [] => Ok(()),
        problems => Err(CommandFailure::new(1, format!("{shown}: {}", problems.join("\nerror: ")))),
    }
}
