//! A writable view of a store that is not written: changed values go to a second store, the upper
//! one, in the same layout, with a record for each key that was changed or removed. This module
//! must not know what kinds of stores the two are, and the layers above do not know of it.
//!
//! Rules of the view, for each key:
//!
//! * A value of the upper store counts only if its record says *changed*. Without a record, the
//!   lower store provides the key, unless a record of a prefix above it hides the lower store
//!   there.
//! * *removed* hides what is at and below the key, in both stores. *made* hides only what is below
//!   it in the lower store: a prefix that was created after one was removed.
//! * A prefix of the upper store without a record is a prefix of the view.
//!
//! A change takes effect in one step, so a crash leaves the view as it was before or after. A put
//! writes the value and then its record, a rewrite only the value. A removal writes the record and,
//! once that is durable, deletes the value. Nothing refers to what an interrupted change leaves;
//! the next change of the key replaces it.
//!
//! A record keeps the version of the lower value that it was laid on. If the lower store has
//! another one later, the overlay's bytes are served as they are, and the conflict is reported as a
//! problem. Only one process uses the upper store, which [`OverlayDirectory`] ensures, so its
//! values change only here.

mod change;
mod commit;
mod merge;
mod overlay_directory;
mod record;

pub use commit::{CommitReport, Committer, OverlayChange};
pub use overlay_directory::OverlayDirectory;
pub use record::ChangeKind;

use record::ChangeRecord;
use std::path::PathBuf;
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::stats::Stats;
use zarrfs_store::{
    ByteRange, Capabilities, DirectoryStore, EntryKind, Hint, Key, Listing, Permissions, Readable,
    Stat, Store, SubtreeLocks, both, stat_many_with,
};

/// Maximum number of times that a read begins again because another thread changes the key.
const ATTEMPTS: usize = 100;

/// A store whose changes are kept in another store.
pub struct OverlayStore {
    lower: Arc<dyn Store>,
    upper: Arc<dyn Store>,
    /// Directory of unnamed files, in which parts of lower values are collected.
    scratch: PathBuf,
    stats: Arc<Stats>,
    /// Locks of keys that are being changed.
    changing: SubtreeLocks,
    /// Whether keys of the lower store have permissions.
    has_modes: bool,
    /// Keeps the lock of the directory.
    _directory: Option<OverlayDirectory>,
}

/// The store that provides a key.
#[derive(PartialEq, Eq)]
enum OverlaySource {
    /// The upper store provides the value, and the record its state.
    Upper(ChangeRecord),
    /// The lower store, unless the key is a prefix of the upper one.
    Lower,
    /// Neither store provides a value; the key may be a prefix of the upper store.
    UpperPrefix,
    /// Neither store.
    Nowhere,
}

impl OverlayStore {
    /// Lays the overlay in `directory`, which has `values`, over `lower`.
    pub fn open(
        lower: Arc<dyn Store>,
        directory: OverlayDirectory,
        values: DirectoryStore,
        stats: Arc<Stats>,
    ) -> Result<OverlayStore> {
        let upper = Arc::new(values.removing_abandoned());
        let overlay = Self::over(lower, upper, directory.values_path(), stats)?;
        Ok(OverlayStore {
            _directory: Some(directory),
            ..overlay
        })
    }

    /// Lays `upper` over `lower`. Unnamed files are created in the directory `scratch`.
    fn over(
        lower: Arc<dyn Store>,
        upper: Arc<dyn Store>,
        scratch: PathBuf,
        stats: Arc<Stats>,
    ) -> Result<Self> {
        let has_modes = lower
            .stat(&Key::root())?
            .is_some_and(|stat| stat.permissions.is_some());
        let changing = SubtreeLocks::default();
        Ok(OverlayStore {
            lower,
            upper,
            scratch,
            stats,
            changing,
            has_modes,
            _directory: None,
        })
    }

    fn record(&self, key: &Key) -> Result<Option<ChangeRecord>> {
        record::read(self.upper.as_ref(), key)
    }

    /// Returns whether a record of a prefix above `key` hides the lower store there.
    fn is_hidden(&self, key: &Key) -> Result<bool> {
        let mut above = key.parent();
        while !above.is_root() {
            if record::exists(self.upper.as_ref(), &above)? {
                return Ok(true);
            }
            above = above.parent();
        }
        Ok(false)
    }

    fn source(&self, key: &Key) -> Result<OverlaySource> {
        if record::is_reserved(key) {
            return Ok(OverlaySource::Nowhere);
        }
        Ok(match self.record(key)? {
            Some(record) if record.kind == ChangeKind::Changed => OverlaySource::Upper(record),
            Some(record) if record.kind == ChangeKind::Removed => OverlaySource::Nowhere,
            Some(_) => OverlaySource::UpperPrefix,
            None if self.is_hidden(key)? => OverlaySource::UpperPrefix,
            None => OverlaySource::Lower,
        })
    }

    /// Calls `ask` with the source of a key, and again while another thread changes the key.
    fn ask<T>(
        &self,
        key: &Key,
        mut ask: impl FnMut(&OverlaySource) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut source = self.source(key)?;
        for _ in 0..ATTEMPTS {
            let answer = ask(&source)?;
            if answer.is_some() || !matches!(source, OverlaySource::Upper(_)) {
                return Ok(answer);
            }
            let now = self.source(key)?;
            if now == source {
                // a power loss took the value but not its record: the change did not happen
                return if self.is_hidden(key)? {
                    Ok(None)
                } else {
                    ask(&OverlaySource::Lower)
                };
            }
            source = now;
        }
        Err(Error::system(libc::EAGAIN).context(key))
    }

    /// Reads a value from the store that provides it.
    fn read_visible<T>(
        &self,
        key: &Key,
        mut read: impl FnMut(&dyn Store) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.ask(key, |source| match source {
            OverlaySource::Nowhere | OverlaySource::UpperPrefix => Ok(None),
            OverlaySource::Lower => read(self.lower.as_ref()),
            OverlaySource::Upper(record) => {
                let value = read(self.upper.as_ref())?;
                if value.is_some() {
                    drop(self.check_below(key, record));
                }
                Ok(value)
            }
        })
    }

    /// Returns the lower metadata of a changed key. Reports a problem if the record states another
    /// version.
    fn check_below(&self, key: &Key, record: &ChangeRecord) -> Result<Option<Stat>> {
        let below = self.lower.stat(key);
        match &below {
            Ok(below) if record::version_text(below.as_ref()) != record.below => self.stats.problem(format!(
                "{key}: the store below has changed since this was changed over it: the overlay's bytes are shown; \
                 `zarrfs overlay diff` lists such keys"
            )),
            // the value is complete without the lower one
            Err(e) => log::debug!("{key}: the store below can't be asked: {e}"),
            Ok(_) => {}
        }
        below
    }

    /// Returns metadata as the view shows it: the owner of the mount may write, and no other user.
    /// There are no permissions if the lower store has none.
    fn shown(stat: Stat, has_modes: bool) -> Stat {
        let permissions = stat
            .permissions
            .filter(|_| has_modes)
            .map(Permissions::written_by_owner);
        Stat {
            permissions,
            ..stat
        }
    }

    /// Returns metadata of the upper store as the view shows it. What only some users may see below
    /// stays so.
    fn shown_above(&self, stat: Stat, below: Result<Option<Stat>>) -> Stat {
        let below = match below {
            Ok(below) => below
                .and_then(|below| below.permissions)
                .map(Permissions::written_by_owner),
            Err(_) => Some(Permissions::OWNER_ONLY),
        };
        Self::shown(
            Stat {
                permissions: both(stat.permissions, below),
                ..stat
            },
            self.has_modes,
        )
    }

    /// Returns whether only the lower store has anything at a key.
    fn is_of_lower(&self, key: &Key) -> Result<bool> {
        Ok(!key.is_root()
            && self.source(key)? == OverlaySource::Lower
            && self.upper.stat(key)?.is_none())
    }

    fn upper_stat(&self, key: &Key, kind: EntryKind) -> Result<Option<Stat>> {
        Ok(self.upper.stat(key)?.filter(|stat| stat.kind == kind))
    }

    /// Returns the metadata of a key that no record describes.
    fn stat_unrecorded(&self, key: &Key) -> Result<Option<Stat>> {
        match self.upper_stat(key, EntryKind::Prefix)? {
            // a server need not be asked for the permissions that it does not have
            Some(stat) if !self.has_modes => Ok(Some(self.shown_above(stat, Ok(None)))),
            Some(stat) => Ok(Some(self.shown_above(stat, self.lower.stat(key)))),
            None => Ok(self
                .lower
                .stat(key)?
                .map(|stat| Self::shown(stat, self.has_modes))),
        }
    }

    /// Returns the listing of one of the stores, or `None` if the prefix does not exist there.
    fn names_in(store: &dyn Store, prefix: &Key) -> Result<Option<Listing>> {
        match store.list(prefix) {
            Err(e) if e.kind() == Kind::NotFound || e.errno() == libc::ENOENT => Ok(None),
            names => names.map(Some),
        }
    }
}

impl Readable for OverlayStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let read = self.read_visible(key, |store| store.read(key, range, value))?;
        Ok(read.map(|stat| Self::shown(stat, self.has_modes)))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if key.is_root() {
            return Ok(self
                .lower
                .stat(key)?
                .map(|stat| Self::shown(stat, self.has_modes)));
        }
        self.ask(key, |source| match source {
            OverlaySource::Nowhere => Ok(None),
            OverlaySource::UpperPrefix => {
                let stat = self.upper_stat(key, EntryKind::Prefix)?;
                Ok(stat.map(|stat| self.shown_above(stat, Ok(None))))
            }
            OverlaySource::Lower => self.stat_unrecorded(key),
            OverlaySource::Upper(record) => {
                let stat = self.upper_stat(key, EntryKind::Value)?;
                Ok(stat.map(|stat| self.shown_above(stat, self.check_below(key, record))))
            }
        })
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        stat_many_with(
            self.lower.as_ref(),
            keys,
            &mut |key| match self.is_of_lower(key) {
                Ok(true) => None,
                Ok(false) => Some(self.stat(key)),
                Err(e) => Some(Err(e)),
            },
            // adapting metadata of the upper store twice has no effect
            &mut |stat| each(stat.map(|stat| stat.map(|stat| Self::shown(stat, self.has_modes)))),
        );
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let source = if prefix.is_root() {
            OverlaySource::Lower
        } else {
            self.source(prefix)?
        };
        let upper_names = match source {
            OverlaySource::Nowhere => None,
            _ => Self::names_in(self.upper.as_ref(), prefix)?,
        };
        let lower_names = match source {
            OverlaySource::Lower => Self::names_in(self.lower.as_ref(), prefix)?,
            _ => None,
        };
        if upper_names.is_none() && lower_names.is_none() {
            return Err(Error::not_found("no such prefix"));
        }
        let has_modes = self.has_modes;
        Ok(merge::merged(
            self.upper.clone(),
            prefix.clone(),
            lower_names,
            upper_names,
            move |stat| Self::shown(stat, has_modes),
        ))
    }

    fn refers_to_files(&self, key: &Key) -> bool {
        self.lower.refers_to_files(key)
    }

    fn lists_nodes(&self) -> bool {
        self.lower.lists_nodes()
    }

    fn hint(&self, hint: Hint) {
        self.lower.hint(hint);
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            local: Some(self),
            side: None,
            ..self.lower.capabilities()
        }
    }

    fn location(&self) -> String {
        self.lower.location()
    }
}

#[cfg(test)]
mod tests;
