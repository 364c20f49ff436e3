//! Web servers, buckets, archives on servers, and references.

mod bucket_access;
mod faults;
mod icechunk;
mod metrics;
mod options;
mod outages;
mod patience;
mod references;
mod requests;
mod remote_stores;
mod remote_stores_v3;
mod writing;
#[path = "../support/mod.rs"]
mod support;
