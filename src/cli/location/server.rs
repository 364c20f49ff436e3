//! The clients of servers, which a build may leave out. This module must not know what a store
//! holds.

use std::sync::Arc;
use zarrfs_base::error::Error;
use zarrfs_base::stats::Stats;
use zarrfs_store::{ObjectOptions, PagedListing};

/// Environment variables that name the server or the account of a bucket.
const SERVERS: [&str; 8] = [
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AWS_PROFILE",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ENDPOINT",
    "STORAGE_EMULATOR_HOST",
];

/// Opens the values below a URL.
#[cfg(feature = "remote")]
pub fn open_object_store(
    url: &str,
    options: &ObjectOptions,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn PagedListing>, Error> {
    Ok(Arc::new(zarrfs_remote::ObjectStore::open(
        url,
        options,
        stats.clone(),
    )?))
}

/// Refuses every store on a server.
#[cfg(not(feature = "remote"))]
pub fn open_object_store(
    _: &str,
    _: &ObjectOptions,
    _: &Arc<Stats>,
) -> Result<Arc<dyn PagedListing>, Error> {
    Err(Error::unsupported(
        "this build of zarrfs has no clients of servers; build it with the cargo feature `remote`",
    ))
}

/// Returns a text that distinguishes servers with buckets of the same name: the endpoint, or
/// variables that name it.
pub fn server_text(endpoint: Option<String>) -> String {
    endpoint.unwrap_or_else(|| {
        let named = SERVERS
            .iter()
            .filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
        named.collect::<Vec<_>>().join(" ")
    })
}
