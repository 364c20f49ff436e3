//! A store in a bucket of S3, Google Cloud Storage or Azure, read through the clients of the `object_store` crate: values,
//! what stands at a key, pages of names. How requests travel is not known here.
//!
//! A bucket knows values alone. A prefix is there if a value is below it, or if it was made here; so is one whose last
//! value was removed here, until it is removed itself.

use super::connector::{Limit, Names, OddNames};
use super::failure::Failure;
use super::progress::Progress;
use crate::error::{Error, Kind, Result};
use crate::store::{EntryKind, Key, Stat, Version};
use crate::util::memory::lock;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Attribute, Attributes, GetOptions, GetRange, ObjectMeta, ObjectStore};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// What the clients of all three clouds can.
pub(super) trait Client: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Client for T {}

/// Whose servers they are, as far as it makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cloud {
    S3,
    Google,
    Azure,
}

/// A page of a listing.
pub(super) struct Page {
    pub objects: Vec<ObjectMeta>,
    pub prefixes: Vec<Path>,
    /// The server listed nothing, also no name that can't be a key.
    pub is_empty: bool,
    /// Where the next page begins.
    pub next: Option<String>,
}

/// A store in a bucket.
pub(super) struct Bucket {
    pub client: Arc<dyn Client>,
    pub cloud: Cloud,
    /// What stands before every key of the store.
    pub prefix: Key,
    pub forbidden_is_missing: bool,
    /// How long a request may take, and a listing without names.
    pub timeout: Duration,
    /// Prefixes that are there without a value below. Protects the set alone.
    pub made: Mutex<BTreeSet<Key>>,
    /// The server has said that it knows no conditions of puts.
    pub knows_no_conditions: AtomicBool,
}

impl Bucket {
    /// The value of `key`.
    pub async fn get(&self, key: &Key, limit: u64) -> Result<Option<(Vec<u8>, Version)>> {
        let options = GetOptions { extensions: limited(limit), ..Default::default() };
        let Some(found) = self.known(self.client.get_opts(&self.path(key)?, options).await)? else { return Ok(None) };
        let version = version_of(&found.meta);
        let bytes = found.bytes().await.map_err(|e| failed(&e))?;
        Ok(Some((Vec::from(bytes), version)))
    }

    /// The bytes of `range`.
    pub async fn get_range(&self, key: &Key, range: Range<u64>) -> Result<Option<(Vec<u8>, Stat)>> {
        let empty = |stat: Option<Stat>| stat.filter(|s| s.kind == EntryKind::Value).map(|stat| (Vec::new(), stat));
        if range.is_empty() {
            return self.stat(key).await.map(empty);
        }
        let (extensions, bounded) = (limited(range.end - range.start), GetRange::Bounded(range));
        let options = GetOptions { range: Some(bounded), extensions, ..Default::default() };
        let found = self.client.get_opts(&self.path(key)?, options).await;
        if found.as_ref().is_err_and(|e| failure_of(e).and_then(Failure::status) == Some(416)) {
            // the range begins behind the end
            return self.stat(key).await.map(empty);
        }
        let Some(found) = self.known(found)? else { return Ok(None) };
        let (stat, length) = (stat_of(&found.meta), found.range.end - found.range.start);
        let bytes = found.bytes().await.map_err(|e| failed(&e))?;
        match bytes.len() as u64 == length {
            true => Ok(Some((Vec::from(bytes), stat))),
            false => {
                Err(Error::new(Kind::System(libc::EIO), format!("{} bytes came instead of {length}", bytes.len())))
            }
        }
    }

    /// What stands at `key`. The root is always a prefix.
    pub async fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if key.is_root() {
            return Ok(Some(prefix_stat()));
        }
        if let Some((meta, attributes)) = self.head(key).await? {
            // an empty value with others below is what some programs put where they make a directory
            let is_directory = is_directory(&attributes) || (meta.size == 0 && self.has_below(key).await?);
            return Ok(Some(if is_directory { prefix_stat() } else { stat_of(&meta) }));
        }
        Ok((self.is_made(key) || self.has_below(key).await?).then(prefix_stat))
    }

    /// What the server tells of the value of `key`.
    pub async fn head(&self, key: &Key) -> Result<Option<(ObjectMeta, Attributes)>> {
        let options = GetOptions { head: true, ..Default::default() };
        let found = self.known(self.client.get_opts(&self.path(key)?, options).await)?;
        Ok(found.map(|found| (found.meta, found.attributes)))
    }

    /// True if there are values below `prefix`, or the marker of a directory.
    pub async fn has_below(&self, prefix: &Key) -> Result<bool> {
        let (mut token, mut progress) = (None, Progress::default());
        loop {
            let page = self.page(prefix, token, Some(1), true).await?;
            if !page.is_empty || page.next.is_none() {
                return Ok(!page.is_empty);
            }
            progress.after(page.next.as_deref(), false, self.timeout)?;
            token = page.next;
        }
    }

    /// A page of the names below `prefix`: of one level, or all.
    pub async fn page(
        &self,
        prefix: &Key,
        token: Option<String>,
        most: Option<usize>,
        one_level: bool,
    ) -> Result<Page> {
        let mut options = PaginatedListOptions { page_token: token, max_keys: most, ..Default::default() };
        options.delimiter = one_level.then_some(Cow::Borrowed("/"));
        options.extensions.insert(Names);
        let path = self.full(prefix);
        let path = (!path.is_root()).then(|| format!("{}/", path.as_str()));
        let page = self.client.list_paginated(path.as_deref(), options).await.map_err(|e| failed(&e))?;
        let (objects, prefixes) = (page.result.objects, page.result.common_prefixes);
        let is_odd = page.result.extensions.get::<OddNames>().is_some();
        let is_empty = objects.is_empty() && prefixes.is_empty() && !is_odd;
        Ok(Page { objects, prefixes, is_empty, next: page.page_token })
    }

    /// True if `prefix` was made here, or something below it.
    pub fn is_made(&self, prefix: &Key) -> bool {
        let made = lock(&self.made);
        made.range(prefix.clone()..).take_while(|key| key.as_str().starts_with(prefix.as_str())).any(|key| {
            // `a` is followed by `a-b` before `a/b`
            key.relative_to(prefix).is_some()
        })
    }

    /// What an answer has, or None if it says that there is no such key.
    pub fn known<T>(&self, answer: object_store::Result<T>) -> Result<Option<T>> {
        match answer {
            Ok(found) => Ok(Some(found)),
            Err(e) => match failure_of(&e).and_then(Failure::status) {
                Some(410) => Ok(None),
                Some(403) if self.forbidden_is_missing => Ok(None),
                None if matches!(e, object_store::Error::NotFound { .. }) => Ok(None),
                _ => Err(failed(&e)),
            },
        }
    }

    /// The key in the bucket.
    pub fn full(&self, key: &Key) -> Key {
        if key.is_root() { self.prefix.clone() } else { self.prefix.join(key.as_str()) }
    }

    /// The key in the bucket as the crate wants it.
    pub fn path(&self, key: &Key) -> Result<Path> {
        let full = self.full(key);
        if self.cloud == Cloud::Azure && full.as_str().contains('\\') {
            return Err(Error::invalid("Azure takes a backslash in a name for a slash"));
        }
        Path::parse(full.as_str()).map_err(|e| Error::invalid(e.to_string()))
    }
}

fn limited(bytes: u64) -> object_store::Extensions {
    let mut extensions = object_store::Extensions::new();
    extensions.insert(Limit(bytes));
    extensions
}

/// Azure's directories, where a container has a hierarchy, are empty blobs that say so.
fn is_directory(attributes: &Attributes) -> bool {
    let says = |value: &str| value.eq_ignore_ascii_case("true");
    attributes.get(&Attribute::Metadata("hdi_isfolder".into())).is_some_and(|value| says(value))
}

/// Of a prefix nothing is known but that it is there.
pub(super) fn prefix_stat() -> Stat {
    let version = Version::Tag(String::new());
    Stat { kind: EntryKind::Prefix, size: 0, modified: SystemTime::UNIX_EPOCH, version, permissions: None }
}

pub(super) fn stat_of(meta: &ObjectMeta) -> Stat {
    let (size, modified) = (meta.size, SystemTime::from(meta.last_modified));
    Stat { kind: EntryKind::Value, size, modified, version: version_of(meta), permissions: None }
}

/// The entity tag: requests for a value and listings all tell it, generations they don't.
fn version_of(meta: &ObjectMeta) -> Version {
    match &meta.e_tag {
        Some(tag) => tag_version(tag),
        None => Version::Tag(format!("{}, {} bytes", meta.last_modified, meta.size)),
    }
}

/// The version of an entity tag. Azure leaves the quotes out in listings.
pub(super) fn tag_version(tag: &str) -> Version {
    Version::Tag(if tag.contains('"') { tag.to_string() } else { format!("\"{tag}\"") })
}

/// The failure of a request that is behind an error of the crate.
pub(super) fn failure_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Failure> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(failure) = error.downcast_ref() {
            return Some(failure);
        }
        next = error.source();
    }
    None
}

/// What an error of the crate is to who asked.
pub(super) fn failed(error: &object_store::Error) -> Error {
    match (failure_of(error), error) {
        (Some(failure), _) => failure.clone().into_error(),
        (None, object_store::Error::NotFound { .. }) => Error::not_found("no such key or bucket"),
        (None, object_store::Error::InvalidPath { source }) => Error::invalid(source.to_string()),
        (None, _) => Error::new(Kind::System(libc::EIO), line_of(error)),
    }
}

/// The innermost cause of an error in one line: what is around it shows URLs, which may hold signatures.
pub(super) fn line_of(error: &object_store::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string().lines().next().unwrap_or_default().to_string()
}
