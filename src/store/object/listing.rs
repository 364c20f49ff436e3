//! The names of one level of a bucket, as they come: page by page, the next one under way while one is read.

use super::cloud::{Bucket, Page, stat_of};
use super::progress::Progress;
use super::runtime;
use crate::error::{Error, Result};
use crate::store::{Entry, EntryKind, Key};
use crate::util::memory::lock;
use object_store::path::Path;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A listing.
pub(super) struct Names {
    bucket: Arc<Bucket>,
    prefix: Key,
    /// What was made here below the prefix and has not been listed yet.
    made: BTreeSet<String>,
    /// Names of values of which each begins with the one before: one of them may be a prefix, too, which comes later.
    /// With them what is shown then if none comes.
    values: Vec<(String, Option<Entry>)>,
    ready: VecDeque<Entry>,
    next: Option<JoinHandle<Result<Page>>>,
    progress: Progress,
    failed: bool,
}

impl Names {
    /// Begins a listing; an error if there is no such prefix.
    pub fn begin(bucket: Arc<Bucket>, prefix: &Key) -> Result<Self> {
        let made = made_below(&bucket, prefix);
        let mut names = Names {
            bucket,
            prefix: prefix.clone(),
            made,
            values: Vec::new(),
            ready: VecDeque::new(),
            next: None,
            progress: Progress::default(),
            failed: false,
        };
        names.ask(None)?;
        let mut is_empty = !names.read_page()?;
        // a server may answer pages without names before the first name
        while is_empty && names.next.is_some() {
            is_empty = !names.read_page()?;
        }
        if is_empty && !prefix.is_root() && !names.bucket.is_made(prefix) {
            return Err(Error::not_found("no such prefix"));
        }
        Ok(names)
    }

    /// Sends for a page.
    fn ask(&mut self, token: Option<String>) -> Result<()> {
        let (bucket, prefix) = (self.bucket.clone(), self.prefix.clone());
        self.next = Some(runtime::handle()?.spawn(async move { bucket.page(&prefix, token, None, true).await }));
        Ok(())
    }

    /// Takes the page that is under way, and sends for the next; false if the server listed nothing.
    fn read_page(&mut self) -> Result<bool> {
        let Some(next) = self.next.take() else { return Ok(false) };
        let page = runtime::block_on(async { next.await.unwrap_or_else(|e| Err(interrupted(&e))) })?;
        let Page { objects, prefixes, is_empty, next } = page;
        let objects = objects.iter().filter_map(|meta| Some((self.name(&meta.location)?, Some(meta))));
        let mut all: Vec<_> =
            objects.chain(prefixes.iter().filter_map(|path| Some((self.name(path)?, None)))).collect();
        self.progress.after(next.as_deref(), !all.is_empty(), self.bucket.timeout)?;
        if next.is_some() {
            self.ask(next)?;
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

    /// Adds an entry. Of a value and a prefix of one name only one is shown: the prefix, if the value is empty.
    fn add(&mut self, entry: Entry) {
        self.made.remove(&entry.name);
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

    /// Shows the empty values that are no prefixes: those with which `name` doesn't begin.
    fn show_held(&mut self, name: &str) {
        while self.values.last().is_some_and(|(value, _)| !name.starts_with(value.as_str())) {
            self.ready.extend(self.values.pop().and_then(|(_, held)| held));
        }
    }

    /// The name of `path` below the prefix; None for the marker of the prefix itself.
    fn name(&self, path: &Path) -> Option<String> {
        let full = self.bucket.full(&self.prefix);
        let rest = match full.is_root() {
            true => path.as_ref(),
            false => path.as_ref().strip_prefix(full.as_str())?.strip_prefix('/')?,
        };
        Key::root().child(rest).ok().map(|_| rest.to_string())
    }
}

impl Iterator for Names {
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
                let name = self.made.pop_first()?;
                return Some(Ok(Entry { name, kind: EntryKind::Prefix, stat: None }));
            } else if let Err(e) = self.read_page() {
                // what comes behind it is unknown: who goes on reading must not take this for the end
                self.failed = true;
                return Some(Err(e));
            }
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        if let Some(next) = &self.next {
            next.abort();
        }
    }
}

/// The names one level below `prefix` of what was made here.
fn made_below(bucket: &Bucket, prefix: &Key) -> BTreeSet<String> {
    let made = lock(&bucket.made);
    let below = made.iter().filter_map(|key| key.relative_to(prefix)).filter(|rest| !rest.is_root());
    below.filter_map(|rest| rest.as_str().split('/').next().map(str::to_string)).collect()
}

pub(super) fn interrupted(error: &tokio::task::JoinError) -> Error {
    Error::system(libc::EIO).context(format!("a request was given up: {error}"))
}
