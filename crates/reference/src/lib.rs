//! A read-only store whose values are in a document of references, or are ranges of values of other
//! stores, which are its targets: the chunks of NetCDF, HDF5 and TIFF files, as Kerchunk and
//! VirtualiZarr find them. The document is a value in the store below. It is read once, and again
//! after it was replaced.
//!
//! The document is hostile: its targets are read only below the prefixes that the caller gives.
//! This module must not know Zarr, nor the kinds of stores.

mod document;
mod generator;
mod index;
mod json_text;
mod targets;
mod template;

use index::{Reference, ReferenceIndex, Referenced};
use json_text::JsonText;
use std::sync::Arc;
pub use targets::{TargetRoot, TargetRoots, check_end};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory;
use zarrfs_base::stats::Stats;
use zarrfs_store::{
    ByteRange, Capabilities, EntryKind, Hint, Key, Listing, OpenedValue, Readable, Reopening,
    SortedEntries, SortedListing, SortedNames, Stat, Store, StoreExt, TargetPlace, Version,
    prefix_in, target_error,
};

/// Maximum length of a key, of a target and of the name of a template in bytes: that of a key.
const MAX_NAME: usize = 16 << 10;

/// Number of bytes of the document that are read at a time.
const BLOCK: u64 = 1 << 20;

/// Maximum number of times that a changing document is read again for one request.
const ATTEMPTS: usize = 5;

/// A store in a document of references.
pub struct ReferenceStore {
    targets: TargetRoots,
    opened: Reopening<OpenReferences>,
    stats: Arc<Stats>,
}

/// A document in the version that was opened.
struct OpenReferences {
    index: ReferenceIndex,
    /// Metadata of the document.
    stat: Stat,
    /// Its version, which the versions of its values begin with.
    version: String,
    /// A target on a server, if there is one.
    remote: Option<String>,
}

impl OpenReferences {
    fn open(below: &Arc<dyn Store>, key: &Key, targets: &TargetRoots) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let stat = below
                .stat(key)?
                .ok_or_else(|| Error::not_found("no such file of references"))?;
            if stat.kind != EntryKind::Value {
                return Err(Error::damaged("is not a file"));
            }
            match read_index(below, key, &stat)? {
                Some(index) => return Ok(Self::of(index, stat, key, targets)),
                None => below.forget(key),
            }
        }
        Err(Error::new(
            Kind::System(libc::EIO),
            "the references change faster than they can be read",
        ))
    }

    fn of(index: ReferenceIndex, stat: Stat, key: &Key, targets: &TargetRoots) -> Self {
        let refused = index
            .targets()
            .filter_map(|target| targets.check(target).err());
        if let Some(e) = index.faults().cloned().chain(refused).next() {
            log::warn!("{key}: some values cannot be read: {e}");
        }
        let remote = index
            .targets()
            .find(|target| targets.is_remote(target))
            .map(str::to_string);
        OpenReferences {
            index,
            version: stat.version.lasting(),
            stat,
            remote,
        }
    }

    /// Returns the metadata of a value in the document.
    fn of_inline(&self, value: &[u8]) -> Stat {
        let version = Version::Tag(self.version.clone());
        Stat {
            permissions: self.stat.permissions,
            ..Stat::value(value.len() as u64, self.stat.modified, version)
        }
    }

    /// Returns the metadata of `len` bytes from `offset` on of a target.
    fn of_target(&self, target: &Stat, offset: u64, len: u64) -> Stat {
        let version = Version::Tag(format!(
            "{}/{}/{offset:x}-{len:x}",
            self.version,
            target.version.lasting()
        ));
        let stat = Stat {
            permissions: target.permissions,
            ..Stat::value(len, target.modified, version)
        };
        stat.restricted(self.stat.permissions)
    }
}

impl OpenedValue for OpenReferences {
    fn stat(&self) -> &Stat {
        &self.stat
    }
}

impl SortedNames for OpenReferences {
    type Entry = Reference;

    fn names(&self) -> &SortedEntries<Reference> {
        &self.index.references
    }

    fn stat_of(&self, entry: &Reference) -> Option<Stat> {
        match self.index.referenced(entry) {
            Ok(Some(Referenced::Inline(value))) => Some(self.of_inline(value)),
            _ => None,
        }
    }
}

/// Reads a document block by block. Returns `None` if it was replaced meanwhile.
fn read_index(below: &Arc<dyn Store>, key: &Key, stat: &Stat) -> Result<Option<ReferenceIndex>> {
    let _block = memory::take(BLOCK.min(stat.size) as usize)?;
    let mut at = 0;
    let mut is_replaced = false;
    let mut next = |block: &mut Vec<u8>| {
        block.clear();
        if at >= stat.size {
            return Ok(());
        }
        let found = below.get_range(key, at..(at + BLOCK).min(stat.size), block)?;
        at += block.len() as u64;
        is_replaced =
            block.is_empty() || found.is_none_or(|now| !now.version.may_equal(&stat.version));
        if is_replaced {
            Err(Error::new(
                Kind::System(libc::EIO),
                "the references were replaced",
            ))
        } else {
            Ok(())
        }
    };
    let parsed = document::parse(&mut JsonText::new(&mut next));
    if is_replaced {
        Ok(None)
    } else {
        parsed.map(Some)
    }
}

impl ReferenceStore {
    /// Opens the document that is the value of `key` in the store `below`. `folder` is the place of
    /// that store; targets are read below `roots`.
    pub fn open(
        below: Arc<dyn Store>,
        key: &Key,
        folder: TargetPlace,
        roots: Vec<TargetRoot>,
    ) -> Result<Self> {
        let targets = TargetRoots::new(folder, roots);
        let opened = OpenReferences::open(&below, key, &targets)?;
        Ok(ReferenceStore {
            targets,
            opened: Reopening::new(below, key.clone(), opened),
            stats: Arc::default(),
        })
    }

    /// Records in `stats` that references are left out.
    pub fn with_stats(self, stats: Arc<Stats>) -> Self {
        let store = ReferenceStore { stats, ..self };
        store.record_left_out(&store.opened.current());
        store
    }

    fn record_left_out(&self, opened: &OpenReferences) {
        let why = "references are left out, since their names cannot be keys";
        self.stats
            .names_left_out(&self.opened.key, opened.index.refused.as_deref(), why);
    }

    /// Checks bytes as a document of references, without its targets, and returns the number of its
    /// keys.
    ///
    /// # Errors
    ///
    /// The errors of [`ReferenceStore::open`].
    pub fn check(document: &[u8]) -> Result<usize> {
        let mut blocks = document.chunks(BLOCK as usize);
        let mut next = |block: &mut Vec<u8>| {
            block.clear();
            block.extend_from_slice(blocks.next().unwrap_or_default());
            Ok(())
        };
        let index = document::parse(&mut JsonText::new(&mut next))?;
        let folder = TargetPlace::of_url("https://host/folder")?;
        for target in index.targets() {
            // the result of each must be a place or an error
            let _ = TargetPlace::of_target(target, &folder);
        }
        Ok((0..)
            .take_while(|&position| index.key_at(position).is_some())
            .count())
    }

    fn open_again(&self) -> Result<OpenReferences> {
        let Reopening { below, key, .. } = &self.opened;
        let opened = OpenReferences::open(below, key, &self.targets)?;
        self.record_left_out(&opened);
        Ok(opened)
    }

    /// Returns the document after checking that it is current.
    fn fresh(&self) -> Result<Arc<OpenReferences>> {
        self.opened.fresh(|| self.open_again())
    }

    /// Returns the document, after checking that it is current if a file was opened since the last
    /// check.
    fn known(&self) -> Result<Arc<OpenReferences>> {
        self.opened.known(|| self.open_again())
    }

    /// Returns the metadata of a name. `latest` is the target that was looked at before, with its
    /// metadata.
    fn stat_in<'a>(
        &self,
        opened: &'a OpenReferences,
        name: &str,
        latest: &mut Option<(&'a str, Stat)>,
    ) -> Result<Option<Stat>> {
        let (target, range) = match opened.index.find(name)? {
            None => {
                let is_prefix = opened.names().is_prefix(name);
                return Ok(is_prefix.then(|| prefix_in(&opened.stat, &opened.version)));
            }
            Some(Referenced::Inline(value)) => return Ok(Some(opened.of_inline(value))),
            Some(Referenced::Range {
                target,
                offset,
                len,
            }) => (target, Some((offset, len))),
            Some(Referenced::Whole(target)) => (target, None),
        };
        let stat = match latest {
            Some((known, stat)) if *known == target => stat.clone(),
            _ => self.targets.stat(target)?,
        };
        *latest = Some((target, stat.clone()));
        let (offset, len) = range.unwrap_or((0, stat.size));
        check_end(&stat, offset, len).map_err(|e| target_error(target, e))?;
        Ok(Some(opened.of_target(&stat, offset, len)))
    }
}

impl Readable for ReferenceStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let opened = self.known()?;
        let stat = match opened.index.find(key.as_str())? {
            None => return Ok(None),
            Some(Referenced::Inline(bytes)) => {
                range.copy(bytes, value)?;
                opened.of_inline(bytes)
            }
            Some(Referenced::Range {
                target,
                offset,
                len,
            }) => {
                let part = range.within(len)?;
                let stat = self.targets.read_part((target, offset, len), part, value)?;
                opened.of_target(&stat, offset, len)
            }
            Some(Referenced::Whole(target)) => {
                let stat = self
                    .targets
                    .read(target, |store, key| store.read(key, range, value))?;
                opened.of_target(&stat, 0, stat.size)
            }
        };
        Ok(Some(stat))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.stat_in(&*self.fresh()?, key.as_str(), &mut None)
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let opened = match self.fresh() {
            Ok(opened) => opened,
            Err(e) => {
                keys.map(|_| Err(e.clone())).all(each);
                return;
            }
        };
        // chunks of one file are neighbors, and one request tells of all of them
        let mut latest = None;
        for key in keys {
            if !each(self.stat_in(&opened, key.as_str(), &mut latest)) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let opened = self.fresh()?;
        if opened.names().is_prefix(prefix.as_str()) {
            Ok(Box::new(SortedListing::new(opened, prefix).map(Ok)))
        } else {
            Err(Error::not_found("no such prefix in the references"))
        }
    }

    fn refers_to_files(&self, _key: &Key) -> bool {
        true
    }

    fn hint(&self, hint: Hint) {
        if let Hint::Forget(_) | Hint::ForgetDocuments(_) = hint {
            self.targets.forget();
            self.opened.forget();
        }
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let remote = self
            .opened
            .current()
            .remote
            .as_ref()
            .map_or(1, |target| self.targets.concurrency(target));
        Capabilities {
            concurrency: remote.max(self.opened.below.concurrency()),
            ..Capabilities::default()
        }
    }

    fn location(&self) -> String {
        self.opened.location()
    }
}

impl Store for ReferenceStore {}

#[cfg(test)]
mod tests;
