//! Stores of servers: buckets of S3, Google Cloud Storage and Azure, and what lies below a URL of a web server. Whatever
//! waits for an answer is in here; who calls waits in a thread of their own, and gets a result within the timeout.
//!
//! A request is answered whole or not at all, so that no value is ever put together from two of its versions.

mod cloud;
mod connector;
mod failure;
mod listing;
mod location;
mod names;
mod progress;
mod profile;
mod retry;
mod runtime;
mod service;
mod transport;
mod web;
mod write;

use super::{Key, Listing, ObjectOptions, Replaces, Stat, Store, Version, read_only};
use crate::error::{Error, Kind, Result};
use crate::stats::Stats;
use cloud::{Bucket, Cloud};
use location::Location;
use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;
use web::Web;

/// Requests under way at once. A request of 20 ms that brings 1 MB needs 25 of them for 10 Gbit/s; S3 recommends to spread
/// load over that many connections, and servers of one machine refuse hundreds.
const CONCURRENCY: usize = 64;

/// A store of a server.
pub struct ObjectStore {
    server: Server,
    /// As it may be shown.
    location: String,
}

#[derive(Clone)]
enum Server {
    Web(Arc<Web>),
    Bucket(Arc<Bucket>),
}

impl ObjectStore {
    /// The store at `url`: `http://`, `https://`, `s3://`, `gs://`, `az://` or `abfs://`. Nothing is read of it yet; at
    /// most the region of its bucket is asked for.
    pub fn open(url: &str, options: &ObjectOptions, stats: Arc<Stats>) -> Result<Self> {
        let location = Location::parse(url)?;
        let shown = location.shown();
        let server = Self::server(location, options, &stats).map_err(|e| e.context(&shown))?;
        Ok(ObjectStore { server, location: shown })
    }

    fn server(location: Location, options: &ObjectOptions, stats: &Arc<Stats>) -> Result<Server> {
        let (client, cloud, prefix) = match location {
            Location::Web(url) => return Self::web(url, options, stats),
            Location::S3 { bucket, prefix } => (service::s3(&bucket, options, stats)?, Cloud::S3, prefix),
            Location::Google { bucket, prefix } => (service::google(&bucket, options, stats)?, Cloud::Google, prefix),
            Location::Azure { container, account, prefix } => {
                (service::azure(&container, account.as_deref(), options, stats)?, Cloud::Azure, prefix)
            }
        };
        let bucket = Bucket {
            client,
            cloud,
            prefix,
            forbidden_is_missing: options.forbidden_is_missing,
            timeout: options.timeout,
            made: Mutex::default(),
            knows_no_conditions: AtomicBool::new(false),
        };
        Ok(Server::Bucket(Arc::new(bucket)))
    }

    fn web(mut url: Url, options: &ObjectOptions, stats: &Arc<Stats>) -> Result<Server> {
        let mut options = options.clone();
        if !url.username().is_empty() || url.password().is_some() {
            options.headers.push((AUTHORIZATION.to_string(), basic(&url)));
            // a URL that has them can be without
            let _ = url.set_username("");
            let _ = url.set_password(None);
        }
        let hosts = url.host_str().map(str::to_string).into_iter().collect();
        let transport = service::transport(hosts, &options, stats)?;
        let web = Web { transport, base: url, forbidden_is_missing: options.forbidden_is_missing };
        Ok(Server::Web(Arc::new(web)))
    }

    /// The bucket, if what is asked can be done with a server at all.
    fn bucket(&self) -> Result<&Arc<Bucket>> {
        match &self.server {
            Server::Bucket(bucket) => Ok(bucket),
            Server::Web(_) => Err(read_only()),
        }
    }
}

impl Server {
    async fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        match self {
            Server::Web(web) => web.stat(key).await,
            Server::Bucket(bucket) => bucket.stat(key).await,
        }
    }
}

impl Store for ObjectStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let found = runtime::block_on(async {
            match &self.server {
                Server::Web(web) => web.get(key, limit).await,
                Server::Bucket(bucket) => bucket.get(key, limit).await,
            }
        })?;
        Ok(found.map(|(bytes, version)| {
            *value = bytes;
            version
        }))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let found = runtime::block_on(async {
            match &self.server {
                Server::Web(web) => web.get_range(key, range).await,
                Server::Bucket(bucket) => bucket.get_range(key, range).await,
            }
        })?;
        Ok(found.map(|(bytes, stat)| {
            *value = bytes;
            stat
        }))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        runtime::block_on(self.server.stat(key))
    }

    fn stat_many(&self, keys: &mut dyn Iterator<Item = Key>, each: &mut dyn FnMut(Result<Option<Stat>>) -> bool) {
        let handle = match runtime::handle() {
            Ok(handle) => handle,
            Err(e) => {
                keys.map(|_| Err(e.clone())).all(each);
                return;
            }
        };
        let mut under_way = UnderWay(VecDeque::new());
        loop {
            while under_way.0.len() < CONCURRENCY
                && let Some(key) = keys.next()
            {
                let server = self.server.clone();
                under_way.0.push_back(handle.spawn(async move { server.stat(&key).await }));
            }
            let Some(first) = under_way.0.pop_front() else { return };
            let answer = handle.block_on(first).unwrap_or_else(|e| Err(listing::interrupted(&e)));
            if !each(answer) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        match &self.server {
            // what is known of it comes from elsewhere
            Server::Web(_) => Ok(Box::new(std::iter::empty())),
            Server::Bucket(bucket) => Ok(Box::new(listing::Names::begin(bucket.clone(), prefix)?)),
        }
    }

    fn lists_all(&self) -> bool {
        matches!(self.server, Server::Bucket(_))
    }

    fn concurrency(&self) -> usize {
        CONCURRENCY
    }

    fn location(&self) -> String {
        self.location.clone()
    }

    fn is_writable(&self) -> bool {
        matches!(self.server, Server::Bucket(_))
    }

    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        let put = self.put_if(key, value, Replaces::Anything)?;
        put.ok_or_else(|| Error::new(Kind::System(libc::EIO), "the server refuses what has no condition"))
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        let bucket = self.bucket()?;
        if key.is_root() {
            return Err(Error::system(libc::EISDIR));
        }
        runtime::block_on(bucket.put(key, value, replaces))
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        runtime::block_on(self.bucket()?.delete(key))
    }

    /// What a server has taken it has stored.
    fn sync(&self) -> Result<()> {
        self.bucket().map(drop)
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        runtime::block_on(self.bucket()?.make_prefix(key))
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        runtime::block_on(self.bucket()?.remove_prefix(key))
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        runtime::block_on(self.bucket()?.rename(from, to))
    }
}

/// Questions under way, which nobody asks any more once this is dropped.
struct UnderWay(VecDeque<JoinHandle<Result<Option<Stat>>>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// The user's headers. Their values are not shown, since they may be passwords.
fn user_headers(given: &[(String, String)]) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let bad = || Error::invalid(format!("{name:?} is no header: Name:Value is what is wanted"));
        let name = HeaderName::try_from(name.trim()).map_err(|_| bad())?;
        let mut value = HeaderValue::try_from(value.trim()).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// The header of the user and password in a URL, by RFC 7617.
fn basic(url: &Url) -> String {
    use base64::Engine;
    let decoded = |text| percent_decode_str(text).collect::<Vec<u8>>();
    let pair = [decoded(url.username()), b":".to_vec(), decoded(url.password().unwrap_or_default())].concat();
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

#[cfg(test)]
mod tests;
