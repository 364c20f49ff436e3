//! Stores on servers: buckets of S3, Google Cloud Storage and Azure, and read-only stores below a
//! URL of a web server.
//!
//! Only this module is asynchronous; its callers block until a request ends, at the latest after
//! the timeout. An answer is complete or an error, so no value is ever assembled from two versions.

mod answer_headers;
mod cloud;
mod connection_error;
mod connector;
mod credential_process;
mod credentials;
mod listing;
mod listing_progress;
mod outage;
mod page_filter;
mod profile;
mod renewed_keys;
mod request_error;
mod request_log;
mod retry;
mod role_keys;
mod runtime;
mod service;
mod signer;
mod stated_versions;
mod store_url;
mod transport;
mod upload;
mod web;
mod write;

use super::{
    EntryKind, FirstNames, Key, Listing, ObjectOptions, PagedListing, Replaces, Stat, Store,
    ValuePages, ValuePiece, Version, pieces, read_only,
};
use crate::error::{Error, Result};
use crate::stats::Stats;
use cloud::Bucket;
use listing::{BucketListing, ValueListing};
use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use stated_versions::StatedVersions;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use store_url::{Cloud, StoreUrl};
use tokio::task::JoinHandle;
use web::Web;

/// Maximum number of requests in flight. A request of 20 ms that returns 1 MB needs 25 of them for
/// 10 Gbit/s. S3 recommends to spread load over that many connections, and servers of one machine
/// refuse hundreds.
const CONCURRENCY: usize = 64;

/// A store on a server.
pub struct ObjectStore {
    backend: Backend,
    /// URL without secrets.
    location: String,
}

#[derive(Clone)]
enum Backend {
    Web(Arc<Web>),
    Bucket(Arc<Bucket>),
}

impl ObjectStore {
    /// Opens the store at `url`: `http://`, `https://`, `s3://`, `gs://`, `az://` or `abfs://`.
    /// This sends no request, except for the region of a bucket.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) if the URL, an option or the environment is
    /// wrong.
    pub fn open(url: &str, options: &ObjectOptions, stats: Arc<Stats>) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        let location = url.without_secrets();
        let versions = StatedVersions::new(url.server(), stats.clone());
        let backend = Backend::open(url, options, versions, &stats)?;
        Ok(ObjectStore { backend, location })
    }

    /// Returns the bucket, or an error if the store is read-only.
    fn bucket(&self) -> Result<&Arc<Bucket>> {
        match &self.backend {
            Backend::Bucket(bucket) => Ok(bucket),
            Backend::Web(_) => Err(read_only()),
        }
    }

    /// Returns the bucket, or an error if it cannot be written.
    fn writable_bucket(&self) -> Result<&Arc<Bucket>> {
        let bucket = self.bucket()?;
        bucket.versions.check().map(|()| bucket)
    }
}

impl Backend {
    fn open(
        url: StoreUrl,
        options: &ObjectOptions,
        versions: StatedVersions,
        stats: &Arc<Stats>,
    ) -> Result<Self> {
        let (cloud, bucket, account, prefix) = match url {
            StoreUrl::Web(url) => return Self::web(url, options, versions, stats),
            StoreUrl::Bucket {
                cloud,
                bucket,
                account,
                prefix,
            } => (cloud, bucket, account, prefix),
        };
        let client = match cloud {
            Cloud::S3 => service::s3(&bucket, options, stats)?,
            Cloud::Google => service::google(&bucket, options, stats)?,
            Cloud::Azure => service::azure(&bucket, account.as_deref(), options, stats)?,
        };
        let bucket = Bucket {
            client,
            cloud,
            prefix,
            versions,
            forbidden_is_missing: options.forbidden_is_missing,
            timeout: options.timeout,
            created: Mutex::default(),
            lacks_conditions: AtomicBool::new(false),
            lacks_ends: AtomicBool::new(false),
        };
        Ok(Backend::Bucket(Arc::new(bucket)))
    }

    fn web(
        mut url: Url,
        options: &ObjectOptions,
        versions: StatedVersions,
        stats: &Arc<Stats>,
    ) -> Result<Self> {
        let mut options = options.clone();
        if !url.username().is_empty() || url.password().is_some() {
            options
                .headers
                .push((AUTHORIZATION.to_string(), basic_authorization(&url)));
            // these calls fail only for URLs that cannot have a user
            let _ = url.set_username("");
            let _ = url.set_password(None);
        }
        let hosts = url.host_str().map(str::to_string).into_iter().collect();
        let transport = service::transport(hosts, &options, stats)?;
        Ok(Backend::Web(Arc::new(Web::new(
            transport,
            url,
            versions,
            options.forbidden_is_missing,
        ))))
    }

    async fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        match self {
            Backend::Web(web) => web.get(key, limit, value).await,
            Backend::Bucket(bucket) => bucket.get(key, limit, value).await,
        }
    }

    async fn get_range(
        &self,
        key: &Key,
        range: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        match self {
            Backend::Web(web) => web.get_range(key, range, value).await,
            Backend::Bucket(bucket) => bucket.get_range(key, range, value).await,
        }
    }

    async fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<EndOfValue> {
        match self {
            Backend::Web(web) => web.get_end(key, len, value).await,
            Backend::Bucket(bucket) => bucket.get_end(key, len, value).await,
        }
    }

    async fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        match self {
            Backend::Web(web) => web.stat(key).await,
            Backend::Bucket(bucket) => bucket.stat(key).await,
        }
    }

    /// Returns the metadata of the value of `key`, and does not look for a prefix.
    async fn stat_value(&self, key: &Key) -> Result<Option<Stat>> {
        match self {
            Backend::Web(web) => Ok(web
                .stat(key)
                .await?
                .filter(|stat| stat.kind == EntryKind::Value)),
            Backend::Bucket(_) if key.is_root() => Ok(None),
            Backend::Bucket(bucket) => bucket.stat_value(key).await,
        }
    }
}

impl Store for ObjectStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let backend = self.backend.clone();
        let key = key.clone();
        runtime::receive(value, |mut buffer| async move {
            (backend.get(&key, limit, &mut buffer).await, buffer)
        })
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        if range.is_empty() {
            value.clear();
            return runtime::block_on(self.backend.stat_value(key));
        }
        let backend = self.backend.clone();
        let key = key.clone();
        runtime::receive(value, |mut buffer| async move {
            (backend.get_range(&key, range, &mut buffer).await, buffer)
        })
    }

    fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let backend = self.backend.clone();
        let wanted = key.clone();
        let end = runtime::receive(value, |mut buffer| async move {
            (backend.get_end(&wanted, len, &mut buffer).await, buffer)
        })?;
        match end {
            EndOfValue::Found(stat) => Ok(Some(stat)),
            EndOfValue::Nothing => Ok(None),
            EndOfValue::Unsupported => super::get_end_by_stat(self, key, len, value),
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        runtime::block_on(self.backend.stat(key))
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let handle = match runtime::handle() {
            Ok(handle) => handle,
            Err(e) => {
                keys.map(|_| Err(e.clone())).all(each);
                return;
            }
        };
        let mut in_flight = PendingStats(VecDeque::new());
        loop {
            while in_flight.0.len() < CONCURRENCY
                && let Some(key) = keys.next()
            {
                let backend = self.backend.clone();
                in_flight
                    .0
                    .push_back(handle.spawn(async move { backend.stat(&key).await }));
            }
            let Some(first) = in_flight.0.pop_front() else {
                return;
            };
            let stat = handle
                .block_on(first)
                .unwrap_or_else(|e| Err(runtime::interrupted(&e)));
            if !each(stat) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        match &self.backend {
            Backend::Web(_) => Ok(Box::new(std::iter::empty())),
            Backend::Bucket(bucket) => Ok(Box::new(BucketListing::begin(bucket.clone(), prefix)?)),
        }
    }

    fn lists_all(&self) -> bool {
        self.is_writable()
    }

    fn concurrency(&self) -> usize {
        CONCURRENCY
    }

    fn location(&self) -> String {
        self.location.clone()
    }

    fn is_writable(&self) -> bool {
        self.bucket().is_ok()
    }

    fn check_writable(&self, _prefix: &Key) -> Result<()> {
        self.bucket()?.versions.check()
    }

    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        let put = self.put_if(key, value, Replaces::Anything)?;
        put.ok_or_else(|| {
            Error::io("the server refuses an unconditional put because of a condition")
        })
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        let bucket = self.writable_bucket()?;
        if key.is_root() {
            return Err(Error::system(libc::EISDIR));
        }
        runtime::block_on(bucket.put(key, value, replaces))
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        if pieces::is_put_in_memory(pieces) {
            pieces::put_in_memory(self, key, pieces, replaces)
        } else {
            runtime::block_on(self.writable_bucket()?.put_in_parts(key, pieces, replaces))
        }
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        runtime::block_on(self.writable_bucket()?.delete(key))
    }

    /// Does nothing, since a server makes a value durable before it answers.
    fn sync(&self) -> Result<()> {
        self.bucket().map(drop)
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        runtime::block_on(self.writable_bucket()?.make_prefix(key))
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        runtime::block_on(self.writable_bucket()?.remove_prefix(key))
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        runtime::block_on(self.writable_bucket()?.rename(from, to))
    }
}

impl PagedListing for ObjectStore {
    fn first_names(&self, prefix: &Key) -> Result<Option<FirstNames>> {
        match &self.backend {
            Backend::Web(_) => Ok(None),
            Backend::Bucket(bucket) => BucketListing::first(bucket.clone(), prefix).map(Some),
        }
    }

    fn values_below(&self, prefix: &Key, after: Option<&Key>) -> Result<Option<ValuePages>> {
        match &self.backend {
            Backend::Web(_) => Ok(None),
            // containers with a hierarchical namespace have another order
            Backend::Bucket(bucket) if bucket.cloud == Cloud::Azure && after.is_some() => Ok(None),
            Backend::Bucket(bucket) => Ok(Some(Box::new(ValueListing::new(
                bucket.clone(),
                prefix,
                after,
            )))),
        }
    }
}

/// The answer to a request for the end of a value.
enum EndOfValue {
    Found(Stat),
    Nothing,
    /// The server does not support such requests, so the size must be requested first.
    Unsupported,
}

/// Requests in flight, which are aborted when this is dropped.
struct PendingStats(VecDeque<JoinHandle<Result<Option<Stat>>>>);

impl Drop for PendingStats {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Parses the headers from the user. Their values may be passwords, so they are never logged.
fn user_headers(given: &[(String, String)]) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let invalid = || Error::invalid(format!("{name:?} is not a header; write Name:Value"));
        let name = HeaderName::try_from(name.trim()).map_err(|_| invalid())?;
        let mut value = HeaderValue::try_from(value.trim()).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// Returns the header for the user and password of a URL, by RFC 7617.
fn basic_authorization(url: &Url) -> String {
    use base64::Engine;
    let decoded = |text| percent_decode_str(text).collect::<Vec<u8>>();
    let pair = [
        decoded(url.username()),
        b":".to_vec(),
        decoded(url.password().unwrap_or_default()),
    ]
    .concat();
    format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(pair)
    )
}

#[cfg(test)]
mod tests;
