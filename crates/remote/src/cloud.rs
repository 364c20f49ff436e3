//! A store in a bucket of S3, Google Cloud Storage or Azure, read through the clients of the
//! `object_store` crate. This module does not know how requests are sent.
//!
//! A bucket contains only values. A prefix exists if a value is below it, or if this process
//! created it; a prefix whose last value this process removed also exists until the prefix itself
//! is removed.

use super::connection_error::find;
use super::connector::{NamesRemoved, ValueBuffer};
use super::listing_progress::ListingProgress;
use super::request_error::RequestError;
use super::stated_versions::StatedVersions;
use super::store_url::Cloud;
use super::{EndOfValue, ServedStore};
use async_trait::async_trait;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, PutResult,
};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_store::{EntryKind, Key, Stat, Version};

/// The methods that a client of any cloud must have.
pub(super) trait Client: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Client for T {}

/// One page of a listing.
pub(super) struct ListingPage {
    pub objects: Vec<ObjectMeta>,
    pub prefixes: Vec<Path>,
    /// Whether the server listed nothing, not even a name that cannot be a key.
    pub is_empty: bool,
    /// Token of the next page.
    pub next: Option<String>,
}

/// The names that a page of a listing has.
#[derive(Clone, Copy)]
pub(super) enum PageKind<'a> {
    /// Those of one level, at most so many.
    OneLevel(Option<usize>),
    /// Those of all levels, from the first key after this one on.
    AllLevels(Option<&'a Key>),
}

/// A store in a bucket.
pub(super) struct Bucket {
    pub client: Arc<dyn Client>,
    pub cloud: Cloud,
    /// Prefix of all keys of the store.
    pub prefix: Key,
    pub versions: StatedVersions,
    pub forbidden_is_missing: bool,
    /// Maximum duration of a request, and of a listing that returns no names.
    pub timeout: Duration,
    /// Prefixes that exist although no value is below them. The lock protects the set alone.
    pub created: Mutex<BTreeSet<Key>>,
    /// Whether the server has refused a conditional put as not implemented.
    pub lacks_conditions: AtomicBool,
}

#[async_trait]
impl ServedStore for Bucket {
    async fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let found = self.get_part(key, None, limit, value).await?;
        self.take_body(found, value).await
    }

    async fn get_range(
        &self,
        key: &Key,
        range: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        let limit = range.end - range.start;
        let range = Some(GetRange::Bounded(range));
        let found = self.get_part(key, range, limit, value).await?;
        if found.as_ref().is_err_and(|e| status_of(e) == Some(416)) {
            // the range begins after the end of the value
            return Ok(self.stat(key).await?.filter(|s| s.kind == EntryKind::Value));
        }
        self.take_body(found, value).await
    }

    /// Azure does not support such requests.
    async fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<EndOfValue> {
        if self.cloud == Cloud::Azure {
            return Ok(EndOfValue::Unsupported { ever: true });
        }
        let range = Some(GetRange::Suffix(len));
        let found = self.get_part(key, range, len, value).await?;
        if let Err(e) = &found
            && is_other_range(e)
        {
            // 416 is also the answer for an empty value
            let ever = status_of(e) != Some(416);
            return Ok(EndOfValue::Unsupported { ever });
        }
        let range = found.as_ref().map_or(0..0, |found| found.range.clone());
        Ok(match self.take_body(found, value).await? {
            None => EndOfValue::Nothing,
            Some(stat) if range == (stat.size.saturating_sub(len)..stat.size) => {
                EndOfValue::Found(stat)
            }
            Some(_) => EndOfValue::Unsupported { ever: false },
        })
    }

    async fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if key.is_root() {
            return Ok(Some(Stat::prefix()));
        }
        if let Some((meta, attributes)) = self.head(key).await? {
            // some programs mark a directory by an empty value with the same name
            let is_directory =
                is_directory(&attributes) || (meta.size == 0 && self.has_below(key).await?);
            return Ok(Some(if is_directory {
                Stat::prefix()
            } else {
                self.stat_of(&meta)
            }));
        }
        Ok((self.is_created(key) || self.has_below(key).await?).then(Stat::prefix))
    }

    async fn stat_value(&self, key: &Key) -> Result<Option<Stat>> {
        if key.is_root() {
            return Ok(None);
        }
        let found = self.head(key).await?;
        Ok(found
            .filter(|(_, attributes)| !is_directory(attributes))
            .map(|(meta, _)| self.stat_of(&meta)))
    }
}

impl Bucket {
    /// Requests a value, or a part of it. The answer takes the memory of `value`, and gives it back
    /// if the request fails.
    async fn get_part(
        &self,
        key: &Key,
        range: Option<GetRange>,
        limit: u64,
        value: &mut Vec<u8>,
    ) -> Result<object_store::Result<GetResult>> {
        let path = self.path(key)?;
        let buffer = ValueBuffer::new(limit, value);
        let mut options = GetOptions {
            range,
            ..Default::default()
        };
        options.extensions.insert(buffer.clone());
        let found = self.client.get_opts(&path, options).await;
        *value = buffer.take();
        value.clear();
        Ok(found)
    }

    /// Moves the body of an answer into `value`. Returns the metadata of the value.
    async fn take_body(
        &self,
        answer: object_store::Result<GetResult>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        let Some(found) = self.found(answer)? else {
            return Ok(None);
        };
        let stat = self.stat_of(&found.meta);
        *value = Vec::from(found.bytes().await.map_err(failed)?);
        Ok(Some(stat))
    }

    /// Requests the metadata of the value of `key`.
    pub async fn head(&self, key: &Key) -> Result<Option<(ObjectMeta, Attributes)>> {
        let options = GetOptions {
            head: true,
            ..Default::default()
        };
        let found = self.found(self.client.get_opts(&self.path(key)?, options).await)?;
        Ok(found.map(|found| (found.meta, found.attributes)))
    }

    /// Returns whether values or the marker of a directory exist below `prefix`.
    pub async fn has_below(&self, prefix: &Key) -> Result<bool> {
        let mut token = None;
        let mut progress = ListingProgress::default();
        loop {
            let page = self
                .page(prefix, token, PageKind::OneLevel(Some(1)))
                .await?;
            if !page.is_empty || page.next.is_none() {
                return Ok(!page.is_empty);
            }
            progress.after(page.next.as_deref(), false, self.timeout)?;
            token = page.next;
        }
    }

    /// Returns a page of the names below `prefix`.
    pub async fn page(
        &self,
        prefix: &Key,
        token: Option<String>,
        kind: PageKind<'_>,
    ) -> Result<ListingPage> {
        let mut options = PaginatedListOptions {
            page_token: token,
            ..Default::default()
        };
        match kind {
            PageKind::OneLevel(most) => {
                (options.max_keys, options.delimiter) = (most, Some(Cow::Borrowed("/")))
            }
            PageKind::AllLevels(after) => {
                options.offset = after.map(|after| self.full(after).as_str().to_string())
            }
        }
        let path = self.full(prefix);
        let path = (!path.is_root()).then(|| format!("{}/", path.as_str()));
        let page = self.client.list_paginated(path.as_deref(), options);
        let page = page.await.map_err(failed)?;
        let objects = page.result.objects;
        let prefixes = page.result.common_prefixes;
        let are_names_removed = page.result.extensions.get::<NamesRemoved>().is_some();
        let is_empty = objects.is_empty() && prefixes.is_empty() && !are_names_removed;
        Ok(ListingPage {
            objects,
            prefixes,
            is_empty,
            next: page.page_token,
        })
    }

    /// Returns whether this process created `prefix` or a prefix below it.
    pub fn is_created(&self, prefix: &Key) -> bool {
        let created = lock(&self.created);
        // `a-b` sorts between `a` and `a/b`
        created
            .range(prefix.clone()..)
            .take_while(|key| key.as_str().starts_with(prefix.as_str()))
            .any(|key| key.relative_to(prefix).is_some())
    }

    /// Returns the content of an answer, or `None` if it says that the key does not exist.
    pub fn found<T>(&self, answer: object_store::Result<T>) -> Result<Option<T>> {
        match answer {
            Ok(found) => Ok(Some(found)),
            Err(e)
                if self.forbidden_is_missing
                    && request_error_of(&e).is_some_and(RequestError::may_mean_missing) =>
            {
                Ok(None)
            }
            Err(e) => match status_of(&e) {
                Some(410) => Ok(None),
                None if matches!(e, object_store::Error::NotFound { .. }) => Ok(None),
                _ => Err(failed(e)),
            },
        }
    }

    pub fn stat_of(&self, meta: &ObjectMeta) -> Stat {
        Stat::value(meta.size, meta.last_modified.into(), self.version_of(meta))
    }

    /// Returns the version of a value. Generations are not used, since not all answers and listings
    /// have them.
    fn version_of(&self, meta: &ObjectMeta) -> Version {
        let of_tag = meta.e_tag.as_deref().map(tag_version);
        // a missing date is 1970
        let date = Some(meta.last_modified).filter(|date| date.timestamp_millis() != 0);
        self.versions.version(of_tag, date, meta.size)
    }

    /// Returns the key within the bucket.
    pub fn full(&self, key: &Key) -> Key {
        if key.is_root() {
            self.prefix.clone()
        } else {
            self.prefix.join(key.as_str())
        }
    }

    /// Returns the key within the bucket as a path of `object_store`.
    pub fn path(&self, key: &Key) -> Result<Path> {
        let full = self.full(key);
        if self.cloud == Cloud::Azure && full.as_str().contains('\\') {
            return Err(Error::invalid(
                "Azure treats a backslash in a name as a slash",
            ));
        }
        Path::parse(full.as_str()).map_err(|e| Error::invalid(e.to_string()))
    }
}

/// Returns whether an Azure blob marks a directory, as in containers with a hierarchical namespace.
fn is_directory(attributes: &Attributes) -> bool {
    attributes
        .get(&Attribute::Metadata("hdi_isfolder".into()))
        .is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Returns the version for an entity tag. Azure omits the quotes in listings.
pub(super) fn tag_version(tag: &str) -> Version {
    Version::Tag(if tag.contains('"') {
        tag.to_string()
    } else {
        format!("\"{tag}\"")
    })
}

/// Finds the failed request among the sources of an error of `object_store`.
pub(super) fn request_error_of(error: &object_store::Error) -> Option<&RequestError> {
    find(error)
}

/// Returns the status of the answer that an error of `object_store` is about.
pub(super) fn status_of(error: &object_store::Error) -> Option<u16> {
    request_error_of(error)?.status()
}

/// Converts an error of `object_store`.
pub(super) fn failed(error: object_store::Error) -> Error {
    match (request_error_of(&error), &error) {
        (Some(failure), _) => failure.clone().into_error(),
        (None, object_store::Error::NotFound { .. }) => Error::not_found("no such key or bucket"),
        (None, object_store::Error::InvalidPath { source }) => Error::invalid(source.to_string()),
        (None, _) => Error::io(line_of(&error)),
    }
}

/// Returns the version that a server has given to a value that was put.
pub(super) fn version_of_put(put: object_store::Result<PutResult>) -> Result<Version> {
    match put.map_err(failed)?.e_tag {
        Some(tag) => Ok(tag_version(&tag)),
        None => Err(Error::io("the server returns no entity tag")),
    }
}

/// Returns the innermost cause of an error on one line. The outer ones show URLs, which may hold
/// signatures.
pub(super) fn line_of(error: &object_store::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_string()
}

/// Returns whether a server lacks the requested range of a value, or has answered with another one.
/// `object_store` reports the latter as an error that no failed request caused.
fn is_other_range(e: &object_store::Error) -> bool {
    match request_error_of(e) {
        Some(e) => e.lacks_range(),
        None => matches!(e, object_store::Error::Generic { .. }),
    }
}
