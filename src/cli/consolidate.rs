//! `zarrfs consolidate`: writes the consolidated metadata of a store: `.zmetadata`, or for Zarr v3
//! a part of `zarr.json`.

use super::{CommandFailure, CommandResult, StoreArgs, StoreLocation, StoreRequest, print};
use crate::array::hierarchy::UseConsolidated;
use clap::Args;
use std::sync::Arc;
use zarrfs_base::error::ErrorContext;
use zarrfs_base::json::{self, json};
use zarrfs_format::metadata::{ZARR_JSON, ZARRAY, ZMETADATA};
use zarrfs_store::Key;

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
pub fn run(args: &ConsolidateArgs) -> CommandResult {
    let shown = &args.store;
    let stats = Arc::default();
    let mut store_args = args.store_args.clone();
    // read the documents themselves
    store_args.remote.consolidated = UseConsolidated::Never;
    let hierarchy = StoreRequest::reading(&args.store, &store_args, &stats).hierarchy()?;
    let names = hierarchy.write_consolidated(&Key::root()).context(shown)?;
    let is_v3 = hierarchy.is_v3(&Key::root()).context(shown)?;
    let arrays = names.iter().filter(|name| {
        if is_v3 {
            Key::normalize(name)
                .is_ok_and(|key| matches!(hierarchy.usable_array(&key), Ok(Some(_))))
        } else {
            name.rsplit('/').next() == Some(ZARRAY)
        }
    });
    let arrays = arrays.count();
    let document = if is_v3 { ZARR_JSON } else { ZMETADATA };
    let documents = names.len();
    let problems = stats.problems();
    let error = (!problems.is_empty()).then(|| format!("{shown}: {}", problems.join("\nerror: ")));
    let report = if args.json {
        let mut report =
            json!({"store": shown.to_string(), "documents": documents, "arrays": arrays});
        if let Some(error) = &error {
            report["error"] = error.as_str().into();
        }
        json::write(&report)
    } else {
        format!("{shown}: {document} holds {documents} documents, of {arrays} arrays")
    };
    print(report + "\n")?;
    error.map_or(Ok(()), |error| Err(CommandFailure::failed(error).plain()))
}
