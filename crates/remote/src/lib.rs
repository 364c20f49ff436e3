//! Stores on servers: buckets of S3, Google Cloud Storage and Azure, and read-only stores below a
//! URL of a web server.
//!
//! Only this crate is asynchronous; its callers block until a request ends, at the latest after
//! the timeout. An answer is complete or an error, so no value is ever assembled from two versions.

mod answer_headers;
mod client_needs;
mod cloud;
mod connection_error;
mod connector;
mod credential_process;
mod credentials;
mod hosts;
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

pub use client_needs::{ClientNeeds, runs_azure_cli};
pub use credentials::{READ_KEYS, read_keys};
pub use hosts::{FIND_HOST, find_host};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cloud::Bucket;
use listing::{BucketListing, ValueListing};
use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use runtime::RemoteTask;
use stated_versions::StatedVersions;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use store_url::{Cloud, StoreUrl};
use web::Web;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::stats::Stats;
use zarrfs_store::{
    ByteRange, Capabilities, FirstNames, Key, Listing, NameChange, ObjectOptions, PagedListing,
    Readable, Replaces, Stat, Store, ValuePages, ValuePiece, Version, assemble, is_put_in_memory,
    read_by_stat, read_only,
};

/// Maximum number of requests in flight. A request of 20 ms that returns 1 MB needs 25 of them for
/// 10 Gbit/s. S3 recommends to spread load over that many connections, and servers of one machine
/// refuse hundreds.
const CONCURRENCY: usize = 64;

/// A store on a server.
pub struct ObjectStore {
    server: Arc<dyn ServedStore>,
    /// The server, if it can be written.
    bucket: Option<Arc<Bucket>>,
    /// Whether the server has shown that it does not support requests for the end of a value.
    lacks_ends: AtomicBool,
    /// URL without secrets.
    location: String,
}

/// What web servers and buckets answer.
#[async_trait]
trait ServedStore: Send + Sync {
    /// Reads the value of `key` into `value`.
    async fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Stat>>;

    /// Reads the bytes of `range`, which is not empty, into `value`.
    async fn get_range(
        &self,
        key: &Key,
        range: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Stat>>;

    /// Reads the last `len` bytes of a value, at least one, into `value`.
    async fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<EndOfValue>;

    /// Returns the metadata of `key`. The root is always a prefix.
    async fn stat(&self, key: &Key) -> Result<Option<Stat>>;

    /// Returns the metadata of the value of `key`, and does not look for a prefix.
    async fn stat_value(&self, key: &Key) -> Result<Option<Stat>>;
}

/// The answer to a request for the end of a value.
enum EndOfValue {
    Found(Stat),
    Nothing,
    /// The server does not support this request, or `ever` such ones, so the size must be requested
    /// first.
    Unsupported {
        ever: bool,
    },
}

impl ObjectStore {
    /// Opens the store at `url`: `http://`, `https://`, `s3://`, `gs://`, `az://` or `abfs://`.
    /// This sends no request, except for the region of a bucket.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if the URL, an option or the
    /// environment is wrong.
    pub fn open(url: &str, options: &ObjectOptions, stats: Arc<Stats>) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        let location = url.without_secrets();
        let versions = StatedVersions::new(url.server(), stats.clone());
        let (server, bucket): (Arc<dyn ServedStore>, _) = match url {
            StoreUrl::Web(url) => (Arc::new(open_web(url, options, versions, &stats)?), None),
            StoreUrl::Bucket {
                cloud,
                bucket,
                account,
                prefix,
            } => {
                let client = match cloud {
                    Cloud::S3 => service::s3(&bucket, options, &stats)?,
                    Cloud::Google => service::google(&bucket, options, &stats)?,
                    Cloud::Azure => service::azure(&bucket, account.as_deref(), options, &stats)?,
                };
                let bucket = Arc::new(Bucket {
                    client,
                    cloud,
                    prefix,
                    versions,
                    forbidden_is_missing: options.forbidden_is_missing,
                    timeout: options.timeout,
                    created: Mutex::default(),
                    lacks_conditions: AtomicBool::new(false),
                });
                (bucket.clone(), Some(bucket))
            }
        };
        Ok(ObjectStore {
            server,
            bucket,
            lacks_ends: AtomicBool::new(false),
            location,
        })
    }

    /// Returns the bucket, or an error if the store is read-only.
    fn bucket(&self) -> Result<&Arc<Bucket>> {
        self.bucket.as_ref().ok_or_else(read_only)
    }

    /// Returns the bucket, or an error if it cannot be written.
    fn writable_bucket(&self) -> Result<&Arc<Bucket>> {
        let bucket = self.bucket()?;
        bucket.versions.check().map(|()| bucket)
    }
}

fn open_web(
    mut url: Url,
    options: &ObjectOptions,
    versions: StatedVersions,
    stats: &Arc<Stats>,
) -> Result<Web> {
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
    Ok(Web {
        transport: service::transport(hosts, &options, stats)?,
        base: url,
        versions,
        forbidden_is_missing: options.forbidden_is_missing,
    })
}

impl Readable for ObjectStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let server = self.server.clone();
        let wanted = key.clone();
        match range {
            &ByteRange::Whole(limit) => runtime::receive(value, |mut buffer| async move {
                (server.get(&wanted, limit, &mut buffer).await, buffer)
            }),
            ByteRange::Bounded(range) if range.is_empty() => {
                value.clear();
                runtime::block_on(self.server.stat_value(key))
            }
            ByteRange::Bounded(range) => {
                let range = range.clone();
                runtime::receive(value, |mut buffer| async move {
                    (server.get_range(&wanted, range, &mut buffer).await, buffer)
                })
            }
            &ByteRange::Suffix(len) if len == 0 || self.lacks_ends.load(Ordering::Relaxed) => {
                read_by_stat(self, key, len, value)
            }
            &ByteRange::Suffix(len) => {
                let end = runtime::receive(value, |mut buffer| async move {
                    (server.get_end(&wanted, len, &mut buffer).await, buffer)
                })?;
                match end {
                    EndOfValue::Found(stat) => Ok(Some(stat)),
                    EndOfValue::Nothing => Ok(None),
                    EndOfValue::Unsupported { ever } => {
                        self.lacks_ends.fetch_or(ever, Ordering::Relaxed);
                        read_by_stat(self, key, len, value)
                    }
                }
            }
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        runtime::block_on(self.server.stat(key))
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let mut in_flight = VecDeque::new();
        loop {
            while in_flight.len() < CONCURRENCY
                && let Some(key) = keys.next()
            {
                let server = self.server.clone();
                in_flight.push_back(RemoteTask::spawn(async move { server.stat(&key).await }));
            }
            let Some(first) = in_flight.pop_front() else {
                return;
            };
            if !each(first.and_then(RemoteTask::wait)) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        match &self.bucket {
            None => Ok(Box::new(std::iter::empty())),
            Some(bucket) => Ok(Box::new(BucketListing::begin(bucket.clone(), prefix)?)),
        }
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            concurrency: CONCURRENCY,
            lists_all: self.bucket.is_some(),
            ..Capabilities::default()
        }
    }

    fn location(&self) -> String {
        self.location.clone()
    }
}

impl Store for ObjectStore {
    fn check_writable(&self, _prefix: &Key) -> Result<()> {
        self.writable_bucket().map(drop)
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let bucket = self.writable_bucket()?;
        if key.is_root() {
            return Err(Error::system(libc::EISDIR));
        }
        if !is_put_in_memory(pieces) {
            return runtime::block_on(bucket.put_in_parts(key, pieces, replaces));
        }
        match assemble(self, key, pieces, replaces)? {
            Some(value) => runtime::block_on(bucket.put(key, &value.bytes, replaces)),
            None => Ok(None),
        }
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        let bucket = self.writable_bucket()?;
        runtime::block_on(async {
            match change {
                NameChange::Delete(key) => bucket.delete(key).await,
                NameChange::MakePrefix(key) => bucket.make_prefix(key).await.map(|()| true),
                NameChange::RemovePrefix(key) => bucket.remove_prefix(key).await.map(|()| true),
                NameChange::Rename(from, to) => bucket.rename(from, to).await.map(|()| true),
            }
        })
    }

    /// Does nothing, since a server makes a value durable before it answers.
    fn sync(&self) -> Result<()> {
        self.bucket().map(drop)
    }
}

impl PagedListing for ObjectStore {
    fn first_names(&self, prefix: &Key) -> Result<Option<FirstNames>> {
        let Some(bucket) = &self.bucket else {
            return Ok(None);
        };
        BucketListing::first(bucket.clone(), prefix).map(Some)
    }

    fn values_below(&self, prefix: &Key, after: Option<&Key>) -> Result<Option<ValuePages>> {
        match &self.bucket {
            None => Ok(None),
            // containers with a hierarchical namespace have another order
            Some(bucket) if bucket.cloud == Cloud::Azure && after.is_some() => Ok(None),
            Some(bucket) => Ok(Some(Box::new(ValueListing::new(
                bucket.clone(),
                prefix,
                after,
            )))),
        }
    }
}

/// Parses the headers from the user. Their values may be passwords, so they are never logged.
fn user_headers(given: &[(String, String)]) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let parsed = HeaderName::try_from(name.trim());
        let (Ok(parsed), Ok(mut value)) = (parsed, HeaderValue::try_from(value.trim())) else {
            let why = format!("{name:?} is not a header; write Name:Value");
            return Err(Error::invalid(why));
        };
        value.set_sensitive(true);
        headers.append(parsed, value);
    }
    Ok(headers)
}

/// Returns the header for the user and password of a URL, by RFC 7617.
fn basic_authorization(url: &Url) -> String {
    let mut pair: Vec<u8> = percent_decode_str(url.username()).collect();
    pair.push(b':');
    pair.extend(percent_decode_str(url.password().unwrap_or_default()));
    format!("Basic {}", STANDARD.encode(pair))
}

#[cfg(test)]
mod tests;
