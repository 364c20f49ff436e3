//! The listing of one level of a bucket, page by page. The next page is requested while one is read.

use super::cloud::{Bucket, ListingPage, stat_of};
use super::listing_progress::ListingProgress;
use super::runtime;
use crate::error::{Error, Result};
use crate::store::{Entry, EntryKind, Key};
use crate::util::memory::lock;
use object_store::path::Path;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// An iterator over the names of one level.
pub(super) struct BucketListing {
    bucket: Arc<Bucket>,
    prefix: Key,
    /// Names of prefixes that this process created and that have not been listed yet.
    created: BTreeSet<String>,
    /// Names of values, each a prefix of the next one, whose prefix of the same name may still follow. The entry is an
    /// empty value, which is shown only if that prefix does not exist.
    values: Vec<(String, Option<Entry>)>,
    ready: VecDeque<Entry>,
    next: Option<JoinHandle<Result<ListingPage>>>,
    progress: ListingProgress,
    failed: bool,
}

impl BucketListing {
    /// Starts a listing.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`](crate::error::Kind::NotFound) if the prefix does not exist.
    pub fn begin(bucket: Arc<Bucket>, prefix: &Key) -> Result<Self> {
        let created = created_below(&bucket, prefix);
        let mut names = BucketListing {
            bucket,
            prefix: prefix.clone(),
            created,
            values: Vec::new(),
            ready: VecDeque::new(),
            next: None,
            progress: ListingProgress::default(),
            failed: false,
        };
        names.request_page(None)?;
        let mut is_empty = !names.read_page()?;
        // a server may return pages without names before the first name
        while is_empty && names.next.is_some() {
            is_empty = !names.read_page()?;
        }
        if is_empty && !prefix.is_root() && !names.bucket.is_created(prefix) {
            return Err(Error::not_found("no such prefix"));
        }
        Ok(names)
    }

    /// Requests a page.
    fn request_page(&mut self, token: Option<String>) -> Result<()> {
        let (bucket, prefix) = (self.bucket.clone(), self.prefix.clone());
        self.next = Some(runtime::handle()?.spawn(async move { bucket.page(&prefix, token, None, true).await }));
        Ok(())
    }

    /// Waits for the requested page, and requests the next one. Returns `false` if the server listed nothing.
    fn read_page(&mut self) -> Result<bool> {
        let Some(next) = self.next.take() else { return Ok(false) };
        let page = runtime::block_on(async { next.await.unwrap_or_else(|e| Err(interrupted(&e))) })?;
        let ListingPage { objects, prefixes, is_empty, next } = page;
        let objects = objects.iter().filter_map(|meta| Some((self.name(&meta.location)?, Some(meta))));
        let mut all: Vec<_> =
            objects.chain(prefixes.iter().filter_map(|path| Some((self.name(path)?, None)))).collect();
        self.progress.after(next.as_deref(), !all.is_empty(), self.bucket.timeout)?;
        if next.is_some() {
            self.request_page(next)?;
        }
        all.sort_by_cached_key(|(name, meta)| if meta.is_some() { name.clone() } else { format!("{name}/") });
        for (name, meta) in all {
            let entry = match meta {
                Some(meta) => {
                    let stat = stat_of(meta);
                    Entry { name, kind: EntryKind::Value, stat: Some(stat) }
                }
                None => Entry { name, kind: EntryKind::Prefix, stat: None },
            };
            self.add(entry);
        }
        Ok(!is_empty)
    }

    /// Adds an entry. If a value and a prefix have the same name, an empty value is hidden, and otherwise the prefix
    /// is.
    fn add(&mut self, entry: Entry) {
        self.created.remove(&entry.name);
        self.show_held(&entry.name);
        if entry.kind == EntryKind::Value {
            let is_empty = entry.stat.as_ref().is_some_and(|stat| stat.size == 0);
            let (name, shown) = (entry.name.clone(), if is_empty { None } else { Some(entry.clone()) });
            self.ready.extend(shown);
            self.values.push((name, is_empty.then_some(entry)));
            return;
        }
        match self.values.last_mut().filter(|(name, _)| *name == entry.name) {
            Some((_, None)) => {}
            Some((_, held)) => {
                *held = None;
                self.ready.push_back(entry);
            }
            None => self.ready.push_back(entry),
        }
    }

    /// Shows the empty values that turned out not to be prefixes, since `name` sorts after anything below them.
    fn show_held(&mut self, name: &str) {
        while self.values.last().is_some_and(|(value, _)| !name.starts_with(value.as_str())) {
            self.ready.extend(self.values.pop().and_then(|(_, held)| held));
        }
    }

    /// Returns the name of `path` below the prefix, or `None` for the marker of the prefix itself.
    fn name(&self, path: &Path) -> Option<String> {
        let full = self.bucket.full(&self.prefix);
        let rest = match full.is_root() {
            true => path.as_ref(),
            false => path.as_ref().strip_prefix(full.as_str())?.strip_prefix('/')?,
        };
        Key::root().child(rest).ok().map(|_| rest.to_string())
    }
}

impl Iterator for BucketListing {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if self.failed {
                return None;
            }
            if let Some(entry) = self.ready.pop_front() {
                return Some(Ok(entry));
            }
            if self.next.is_none() && !self.values.is_empty() {
                self.ready.extend(std::mem::take(&mut self.values).into_iter().filter_map(|(_, held)| held));
            } else if self.next.is_none() {
                let name = self.created.pop_first()?;
                return Some(Ok(Entry { name, kind: EntryKind::Prefix, stat: None }));
            } else if let Err(e) = self.read_page() {
                // the names that follow are unknown, so the caller must not take this for the end
                self.failed = true;
                return Some(Err(e));
            }
        }
    }
}

impl Drop for BucketListing {
    fn drop(&mut self) {
        if let Some(next) = &self.next {
            next.abort();
        }
    }
}

/// Returns the names one level below `prefix` of prefixes that this process created.
fn created_below(bucket: &Bucket, prefix: &Key) -> BTreeSet<String> {
    let created = lock(&bucket.created);
    let below = created.iter().filter_map(|key| key.relative_to(prefix)).filter(|rest| !rest.is_root());
    below.filter_map(|rest| rest.as_str().split('/').next().map(str::to_string)).collect()
}

pub(super) fn interrupted(error: &tokio::task::JoinError) -> Error {
    Error::system(libc::EIO).context(format!("a request was aborted: {error}"))
}
