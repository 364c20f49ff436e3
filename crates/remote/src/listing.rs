//! The listing of one level of a bucket, page by page. The next page is requested while one is
//! read.

use super::cloud::{Bucket, ListingPage, PageKind};
use super::listing_progress::ListingProgress;
use super::runtime::{self, RemoteTask};
use super::store_url::Cloud;
use object_store::path::Path;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_store::{Entry, EntryKind, FirstNames, Key, Reach, ValuePage};

/// An iterator over the names of one level.
pub(super) struct BucketListing {
    bucket: Arc<Bucket>,
    prefix: Key,
    /// Names of prefixes that this process created and that have not been listed yet.
    created: BTreeSet<String>,
    /// Listed values whose prefix of the same name may still follow; the name of each is the
    /// beginning of the next one.
    values: Vec<Entry>,
    ready: VecDeque<Entry>,
    next: Option<RemoteTask<ListingPage>>,
    progress: ListingProgress,
    /// The error to return after the names before it.
    error: Option<Error>,
    /// Reach of a listing that ends after one page; `None` for a listing of all pages.
    reach: Option<Reach>,
}

impl BucketListing {
    /// Starts a listing.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`](zarrfs_base::error::Kind::NotFound) if the prefix does not exist.
    pub fn begin(bucket: Arc<Bucket>, prefix: &Key) -> Result<Self> {
        let mut names = Self::new(bucket, prefix);
        names.request_page(None)?;
        let mut is_empty = true;
        // a server may return pages without names before the first name
        while is_empty && names.next.is_some() {
            is_empty = !names.read_page()?;
        }
        if is_empty && !prefix.is_root() && !names.bucket.is_created(prefix) {
            return Err(Error::not_found("no such prefix"));
        }
        Ok(names)
    }

    fn new(bucket: Arc<Bucket>, prefix: &Key) -> Self {
        BucketListing {
            created: created_below(&bucket, prefix),
            bucket,
            prefix: prefix.clone(),
            values: Vec::new(),
            ready: VecDeque::new(),
            next: None,
            progress: ListingProgress::default(),
            error: None,
            reach: None,
        }
    }

    /// Returns the names of the first page.
    pub fn first(bucket: Arc<Bucket>, prefix: &Key) -> Result<FirstNames> {
        let mut names = Self::new(bucket, prefix);
        names.reach = Some(Reach::All);
        names.request_page(None)?;
        names.read_page()?;
        match names.reach.take() {
            None | Some(Reach::All) => {
                let entries: Result<Vec<Entry>> = names.collect();
                Ok(FirstNames {
                    entries: entries?,
                    reach: Reach::All,
                })
            }
            // entries that depend on the next page are left out
            Some(reach) => Ok(FirstNames {
                entries: names.ready.drain(..).collect(),
                reach,
            }),
        }
    }

    /// Returns the reach of a page that is not the last one: its values, and then its prefixes.
    /// Pages that are not sorted, such as those of S3's directory buckets, show nothing of missing
    /// names; neither do Azure's, which may be sorted otherwise.
    fn reach_of(&self, entries: &[Entry]) -> Reach {
        let names: Vec<String> = entries.iter().map(sorted_name).collect();
        let count = entries.partition_point(|entry| entry.kind == EntryKind::Value);
        let (values, prefixes) = names.split_at(count);
        match names.iter().max() {
            Some(last)
                if self.bucket.cloud != Cloud::Azure
                    && values.is_sorted()
                    && prefixes.is_sorted() =>
            {
                Reach::Before(last.clone())
            }
            _ => Reach::Nothing,
        }
    }

    /// Requests a page.
    fn request_page(&mut self, token: Option<String>) -> Result<()> {
        let bucket = self.bucket.clone();
        let prefix = self.prefix.clone();
        self.next = Some(RemoteTask::spawn(async move {
            bucket.page(&prefix, token, PageKind::OneLevel(None)).await
        })?);
        Ok(())
    }

    /// Waits for the requested page, and requests the next one. Returns `false` if the server
    /// listed nothing.
    fn read_page(&mut self) -> Result<bool> {
        let Some(next) = self.next.take() else {
            return Ok(false);
        };
        let page = next.wait()?;
        let mut entries = Vec::new();
        for meta in &page.objects {
            if let Some(name) = self.name(&meta.location) {
                entries.push(Entry::of_stat(name, self.bucket.stat_of(meta)));
            }
        }
        for path in &page.prefixes {
            if let Some(name) = self.name(path) {
                entries.push(Entry::new(name, EntryKind::Prefix));
            }
        }
        let has_names = !entries.is_empty();
        self.progress
            .after(page.next.as_deref(), has_names, self.bucket.timeout)?;
        if self.reach.is_none() {
            if page.next.is_some() {
                self.request_page(page.next)?;
            }
        } else if page.next.is_some() {
            self.reach = Some(self.reach_of(&entries));
        }
        entries.sort_by_cached_key(sorted_name);
        for entry in entries {
            self.add(entry);
        }
        Ok(!page.is_empty)
    }

    /// Adds an entry. A value waits until no prefix of its name can follow. An empty one marks a
    /// directory, and is left out if the prefix exists.
    fn add(&mut self, entry: Entry) {
        self.created.remove(&entry.name);
        let sorted = sorted_name(&entry);
        while let Some(value) = self
            .values
            .pop_if(|value| !sorted.starts_with(&value.name) || format!("{}/", value.name) < sorted)
        {
            self.ready.push_back(value);
        }
        if entry.kind == EntryKind::Value {
            return self.values.push(entry);
        }
        match self.values.pop_if(|value| value.name == entry.name) {
            Some(value) if value.stat.as_ref().is_some_and(|stat| stat.size > 0) => {
                self.ready.push_back(Entry {
                    hides_prefix: true,
                    ..value
                });
            }
            _ => self.ready.push_back(entry),
        }
    }

    /// Returns the name of `path` below the prefix, or `None` for the marker of the prefix itself.
    fn name(&self, path: &Path) -> Option<String> {
        let full = self.bucket.full(&self.prefix);
        let rest = if full.is_root() {
            path.as_ref()
        } else {
            path.as_ref()
                .strip_prefix(full.as_str())?
                .strip_prefix('/')?
        };
        Key::root().child(rest).ok().map(|_| rest.to_string())
    }
}

impl Iterator for BucketListing {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(Ok(entry));
            }
            if let Some(e) = self.error.take() {
                return Some(Err(e));
            }
            if self.next.is_none() && self.values.is_empty() {
                let name = self.created.pop_first()?;
                return Some(Ok(Entry::new(name, EntryKind::Prefix)));
            }
            if self.next.is_some() {
                let Err(e) = self.read_page() else {
                    continue;
                };
                // the names that follow are unknown, so the caller must not take this for the end
                self.error = Some(e);
                self.created.clear();
            }
            self.ready.extend(self.values.drain(..));
        }
    }
}

/// Returns what a server sorts an entry by.
fn sorted_name(entry: &Entry) -> String {
    if entry.kind == EntryKind::Prefix {
        format!("{}/", entry.name)
    } else {
        entry.name.clone()
    }
}

/// The values below a prefix on all levels, page by page.
pub(super) struct ValueListing {
    bucket: Arc<Bucket>,
    prefix: Key,
    /// Key after which the listing begins.
    after: Option<Key>,
    /// Token of the next page; `None` after the last one.
    next: Option<Option<String>>,
    progress: ListingProgress,
}

impl ValueListing {
    /// Starts a listing, without a request.
    pub fn new(bucket: Arc<Bucket>, prefix: &Key, after: Option<&Key>) -> Self {
        let prefix = prefix.clone();
        let after = after.cloned();
        ValueListing {
            bucket,
            prefix,
            after,
            next: Some(None),
            progress: ListingProgress::default(),
        }
    }

    fn page(&mut self, token: Option<String>) -> Result<ValuePage> {
        let page = runtime::block_on(self.bucket.page(
            &self.prefix,
            token,
            PageKind::AllLevels(self.after.as_ref()),
        ))?;
        self.progress.after(
            page.next.as_deref(),
            !page.objects.is_empty(),
            self.bucket.timeout,
        )?;
        self.next = page.next.map(Some);
        let full = self.bucket.full(&self.prefix);
        let mut values = Vec::new();
        for meta in &page.objects {
            let mut names = meta.location.as_ref().split('/');
            if let Ok(key) = names.try_fold(Key::root(), |key, name| key.child(name))
                && let Some(key) = key.relative_to(&full)
            {
                values.push((self.prefix.join_key(&key), self.bucket.stat_of(meta)));
            }
        }
        Ok(ValuePage {
            values,
            is_last: self.next.is_none(),
        })
    }
}

impl Iterator for ValueListing {
    type Item = Result<ValuePage>;

    fn next(&mut self) -> Option<Self::Item> {
        let token = self.next.take()?;
        Some(self.page(token))
    }
}

/// Returns the names one level below `prefix` of prefixes that this process created.
fn created_below(bucket: &Bucket, prefix: &Key) -> BTreeSet<String> {
    let created = lock(&bucket.created);
    let below = created
        .iter()
        .filter_map(|key| key.relative_to(prefix))
        .filter(|rest| !rest.is_root());
    below
        .filter_map(|rest| rest.as_str().split('/').next().map(str::to_string))
        .collect()
}
