//! A store whose metadata documents come from the `.zmetadata` at its root: for stores that cannot
//! list, and for any store if the user asks for it. If a store that cannot list has no
//! `.zmetadata`, nodes are found by name. This is a store itself, so that the layers above do not
//! know where documents come from.
//!
//! Invariant: a document that comes from `.zmetadata` has the permissions of `.zmetadata`, and a
//! prefix those of its stored directory or, if there is none, of `.zmetadata`.

use super::{DocumentFormat, OWN, REMOVED};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::{MAX_CONSOLIDATED, ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA};
use zarrfs_store::{
    ByteRange, EntryKind, Hint, Key, Listing, NameChange, PrefixStore, Readable, Replaces, Stat,
    Store, StoreExt, ValuePiece, Version, get_counted, stat_many_with,
};

mod opened;
mod outline;

use opened::OpenedKeys;
use outline::{Outline, OutlineListing, is_document, prefix_of};

/// The condition for using the documents in the root's `.zmetadata` instead of the stored ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UseConsolidated {
    /// If the store cannot list.
    #[default]
    Auto,
    /// If the store cannot list, and in a bucket that the mount only reads. There the mount reads a
    /// document from `.zmetadata` until a program opens a file of its group or array. Names are
    /// listed from the bucket.
    UntilOpened,
    /// Always; the metadata is then read-only.
    Always,
    /// Never.
    Never,
}

/// A store with the hierarchy of its `.zmetadata`.
pub struct ConsolidatedStore {
    below: Arc<dyn Store>,
    uses_metadata: bool,
    /// With [`UseConsolidated::UntilOpened`], the groups and arrays whose files were opened.
    opened: Option<OpenedKeys>,
    stats: Arc<Stats>,
    /// The version of the latest `.zmetadata` and its content, `None` if unusable. Locked while it
    /// is read.
    latest: Mutex<Option<(Version, Option<Arc<Outline>>)>>,
}

impl ConsolidatedStore {
    /// Wraps `store` unless it can list and `when` does not ask for `.zmetadata`.
    ///
    /// # Errors
    ///
    /// [`UseConsolidated::Always`] without a usable `.zmetadata`.
    pub fn over(
        store: Arc<dyn Store>,
        when: UseConsolidated,
        stats: Arc<Stats>,
    ) -> Result<Arc<dyn Store>> {
        if when == UseConsolidated::Always {
            return Self::over_or_above(store, when, stats, &mut std::iter::empty());
        }
        let is_bucket = store.lists_all() && store.is_writable() && store.concurrency() > 1;
        if store.lists_all() && !(is_bucket && when == UseConsolidated::UntilOpened) {
            Ok(store)
        } else {
            Ok(Arc::new(Self::new(store, when, stats)))
        }
    }

    fn new(store: Arc<dyn Store>, when: UseConsolidated, stats: Arc<Stats>) -> Self {
        let uses_metadata = when != UseConsolidated::Never;
        let opened =
            (store.lists_all() && when == UseConsolidated::UntilOpened).then(OpenedKeys::new);
        ConsolidatedStore {
            below: store,
            uses_metadata,
            opened,
            stats,
            latest: Mutex::default(),
        }
    }

    /// Wraps `store` like [`ConsolidatedStore::over`]. If `store` needs a `.zmetadata` and has
    /// none, this uses the nearest of the stores `above` whose `.zmetadata` has it as a group. Each
    /// of them comes with the key of `store` in it.
    ///
    /// # Errors
    ///
    /// [`UseConsolidated::Always`] without a usable `.zmetadata`.
    pub fn over_or_above(
        store: Arc<dyn Store>,
        when: UseConsolidated,
        stats: Arc<Stats>,
        above: &mut dyn Iterator<Item = (Arc<dyn Store>, Key)>,
    ) -> Result<Arc<dyn Store>> {
        let needs_outline =
            when == UseConsolidated::Always || when != UseConsolidated::Never && !store.lists_all();
        if !needs_outline {
            return Self::over(store, when, stats);
        }
        let own = Self::new(store, when, stats.clone());
        if own.outline()?.is_some() {
            return Ok(Arc::new(own));
        }
        for (store, key) in above {
            let outer = Self::new(store, when, stats.clone());
            // a server may refuse requests for it
            if outer
                .outline()
                .is_ok_and(|outline| outline.is_some_and(|outline| outline.prefixes.contains(&key)))
            {
                return Ok(PrefixStore::at(Arc::new(outer), key));
            }
        }
        if when == UseConsolidated::Always {
            let why = "has no .zmetadata that can be used: `zarrfs consolidate` writes one";
            return Err(Error::invalid(why));
        }
        Ok(Arc::new(own))
    }

    /// Returns the content of the present `.zmetadata`; `None` if there is no usable one.
    fn outline(&self) -> Result<Option<Arc<Outline>>> {
        if !self.uses_metadata {
            return Ok(None);
        }
        let Some((key, stat)) = self.consolidated_document()? else {
            return Ok(None);
        };
        let mut latest = lock(&self.latest);
        if let Some((version, outline)) = &*latest
            && *version == stat.version
        {
            return Ok(outline.clone());
        }
        // the old and the new one may not fit into memory together
        *latest = None;
        let read = get_counted(self.below.as_ref(), &key, MAX_CONSOLIDATED);
        let version = match &read {
            Ok(None) => return Ok(None),
            Ok(Some(read)) => read.stat.version.clone(),
            Err(e) if e.kind() == Kind::Damaged => stat.version,
            Err(e) => return Err(e.clone().context(&key)),
        };
        let format = if key.name() == ZARR_JSON {
            DocumentFormat::V3
        } else {
            DocumentFormat::V2
        };
        let parsed = read.and_then(|read| match read {
            Some(read) => Outline::parse(read, format),
            None => Ok(None),
        });
        let outline = match parsed {
            Ok(outline) => outline.map(Arc::new),
            Err(e) if e.kind() == Kind::System(libc::ENOMEM) => return Err(e.context(&key)),
            Err(e) => {
                self.stats.problem(format!(
                    "{key}: {e}: it is not used, metadata is asked for by name"
                ));
                None
            }
        };
        *latest = Some((version, outline.clone()));
        Ok(outline)
    }

    /// Returns the document that holds the others: the root's `zarr.json`, or else `.zmetadata`.
    fn consolidated_document(&self) -> Result<Option<(Key, Stat)>> {
        for name in [ZARR_JSON, ZMETADATA] {
            let key = Key::root().join(name);
            let stat = self.below.stat(&key).context(&key)?;
            if let Some(stat) = stat.filter(|stat| stat.kind == EntryKind::Value) {
                return Ok(Some((key, stat)));
            }
        }
        Ok(None)
    }

    /// Returns the content of `.zmetadata` if the metadata document `key` is to be read from it.
    fn outline_of(&self, key: &Key) -> Result<Option<Arc<Outline>>> {
        let Some(opened) = &self.opened else {
            return if is_document(key) {
                self.outline()
            } else {
                Ok(None)
            };
        };
        if !is_document(key) && key.name() != REMOVED || opened.contains(key) {
            return Ok(None);
        }
        let Some(outline) = self.outline()? else {
            return Ok(None);
        };
        let node = key.parent();
        if outline.prefixes.contains(&node) {
            return Ok(Some(outline));
        }
        // a node without an entry may be new; one listing of its group shows all new ones
        if outline.prefixes.contains(&node.parent()) {
            self.below.hint(Hint::Level(&node.parent()));
        }
        Ok(None)
    }

    /// Drops cached metadata of the consolidated document.
    fn forget_consolidated(&self) {
        let inline = Key::root().join(ZARR_JSON);
        let is_inline = self
            .latest_outline()
            .is_some_and(|outline| outline.documents.contains_key(&inline));
        let document = if is_inline {
            inline
        } else {
            Key::root().join(ZMETADATA)
        };
        self.below.forget(&document);
    }

    /// Returns the content of the `.zmetadata` that was read last, without waiting.
    fn latest_outline(&self) -> Option<Arc<Outline>> {
        let latest = self.latest.try_lock().ok()?;
        latest.as_ref()?.1.clone()
    }

    /// Returns the stat of a key that `.zmetadata` defines as a prefix. A store without modes is
    /// not asked.
    fn prefix(&self, outline: &Outline, key: &Key) -> Result<Option<Stat>> {
        let Some(stat) = outline.prefix(key) else {
            return Ok(None);
        };
        if stat.permissions.is_none() {
            return Ok(Some(stat));
        }
        let stored = self
            .below
            .stat(key)?
            .filter(|stored| stored.kind == EntryKind::Prefix);
        Ok(Some(Stat {
            permissions: stored.map_or(stat.permissions, |stored| stored.permissions),
            ..stat
        }))
    }

    /// Returns the stat of a key that [`Self::outline_of`] does not read from `.zmetadata`, for a
    /// store that can list.
    fn stat_below(&self, opened: &OpenedKeys, key: &Key) -> Result<Option<Stat>> {
        let Some(outline) = self.outline()? else {
            return self.below.stat(key);
        };
        if !opened.contains(key)
            && let Some(stat) = self.prefix(&outline, key)?
        {
            return Ok(Some(stat));
        }
        let node = if is_document(key) {
            key.parent()
        } else {
            key.clone()
        };
        // opening a file must not move the time of its array back
        let earliest = if outline.prefixes.contains(&node) {
            outline.modified
        } else {
            SystemTime::UNIX_EPOCH
        };
        let found = self.below.stat(key)?;
        Ok(found.map(|stat| Stat {
            modified: stat.modified.max(earliest),
            ..stat
        }))
    }

    /// Probes a key that a store without listings does not know: returns the stat of a prefix if
    /// the key has the document of a group or array and is not below an array.
    fn probe(&self, key: &Key) -> Result<Option<Stat>> {
        if key.as_str().split('/').any(|name| name.starts_with('.')) {
            return Ok(None);
        }
        let levels = key
            .as_str()
            .match_indices('/')
            .map(|(end, _)| &key.as_str()[..end]);
        for above in std::iter::once("").chain(levels) {
            if self
                .below
                .stat(&Key::root().join(above).join(ZARRAY))?
                .is_some()
            {
                return Ok(None);
            }
        }
        for name in [ZARR_JSON, ZARRAY, ZGROUP] {
            if let Some(stat) = self.below.stat(&key.join(name))? {
                return Ok(Some(prefix_of(stat.modified)));
            }
        }
        Ok(None)
    }

    /// Returns an error if `.zmetadata` provides the metadata, so that changed documents would not
    /// be read.
    fn check_metadata_writable(&self) -> Result<()> {
        match self.outline()? {
            None => Ok(()),
            Some(_) => {
                let why = "the metadata is read from .zmetadata alone (--consolidated use), so it can't be changed";
                Err(Error::new(Kind::ReadOnly, why))
            }
        }
    }

    fn forget_below(&self, prefix: &Key) {
        self.below.forget(prefix);
        match &self.opened {
            Some(opened) => opened.add(prefix),
            None if self.uses_metadata => self.forget_consolidated(),
            None => {}
        }
    }

    fn check_put(&self, key: &Key) -> Result<()> {
        if is_document(key) {
            self.check_metadata_writable()
        } else {
            Ok(())
        }
    }
}

impl Readable for ConsolidatedStore {
    fn below(&self) -> Option<&dyn Store> {
        Some(&*self.below)
    }

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        match self.outline_of(key)? {
            Some(outline) => outline.read(key, range, value),
            None => self.below.read(key, range, value),
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if let Some(outline) = self.outline_of(key)? {
            return Ok(outline
                .documents
                .get(key)
                .map(|place| outline.stat_of(place)));
        }
        // reading statistics looks up the root, too, and must not wait for a server
        if key.is_root() {
            return self.latest_outline().map_or_else(
                || self.below.stat(key),
                |outline| self.prefix(&outline, key),
            );
        }
        if let Some(opened) = &self.opened {
            return self.stat_below(opened, key);
        }
        // a read-only store has no files of zarrfs
        if key.name().starts_with(OWN) && !self.below.is_writable() {
            return Ok(None);
        }
        let outline = self.outline()?;
        // the decoded .zmetadata is made from a listing, which does not exist here
        if key.name() == ZMETADATA && outline.is_none() && !self.below.lists_all() {
            return Ok(None);
        }
        if let Some(outline) = &outline
            && let Some(stat) = self.prefix(outline, key)?
        {
            return Ok(Some(stat));
        }
        let is_probed = outline.is_none() && !self.below.lists_all();
        match self.below.stat(key) {
            Ok(None) if is_probed => self.probe(key),
            // some servers answer so for a directory
            Err(e) if is_probed && e.kind() == Kind::NotAValue => {
                self.probe(key)?.map_or(Err(e), |found| Ok(Some(found)))
            }
            found => found,
        }
    }

    /// Probes no key: keys that are requested together come from a listing.
    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let outline = match self.outline() {
            Ok(outline) => outline,
            Err(e) => {
                while keys.next().is_some() && each(Err(e.clone())) {}
                return;
            }
        };
        let mut known = |key: &Key| {
            let outline = outline.as_ref()?;
            let is_opened = self
                .opened
                .as_ref()
                .is_some_and(|opened| opened.contains(key));
            if is_opened || self.opened.is_some() && !outline.prefixes.contains(&key.parent()) {
                return None;
            }
            match outline.documents.get(key) {
                Some(place) => Some(Ok(Some(outline.stat_of(place)))),
                None if is_document(key) => Some(Ok(None)),
                None => self
                    .prefix(outline, key)
                    .transpose()
                    .map(|stat| stat.map(Some)),
            }
        };
        stat_many_with(self.below.as_ref(), keys, &mut known, each);
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        if self.below.lists_all() {
            return self.below.list(prefix);
        }
        match self.outline()? {
            Some(outline) if outline.prefixes.contains(prefix) => Ok(Box::new(
                OutlineListing::new(outline, prefix.clone()).map(Ok),
            )),
            _ => self.below.list(prefix),
        }
    }

    fn lists_nodes(&self) -> bool {
        self.below.lists_all() || self.outline().is_ok_and(|outline| outline.is_some())
    }

    /// Requests the content of those nodes alone that `.zmetadata` does not contain.
    fn hint(&self, hint: Hint) {
        let prefixes = match hint {
            Hint::Nodes(prefixes) => prefixes,
            Hint::Forget(prefix) => return self.forget_below(prefix),
            Hint::ForgetDocuments(prefix) => {
                let is_consolidated = self
                    .latest_outline()
                    .is_some_and(|outline| outline.prefixes.contains(prefix));
                return if is_consolidated {
                    self.forget_consolidated();
                } else {
                    self.forget_below(prefix);
                };
            }
            Hint::WholeStore | Hint::Below(_) | Hint::Level(_) => return self.below.hint(hint),
        };
        let Ok(outline) = self.outline() else { return };
        let mut unknown = prefixes.to_vec();
        if let Some(outline) = outline {
            unknown.retain(|key| !outline.prefixes.contains(key));
        }
        self.below.hint(Hint::Nodes(&unknown));
    }

    fn location(&self) -> String {
        self.below.location()
    }
}

impl Store for ConsolidatedStore {
    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        self.check_put(key)?;
        self.below.put_pieces(key, pieces, replaces)
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        match change {
            NameChange::Delete(key) => self.check_put(key)?,
            NameChange::MakePrefix(_) | NameChange::RemovePrefix(_) => {
                self.check_metadata_writable()?;
            }
            NameChange::Rename(from, to) => {
                let stat = self.below.stat(from)?;
                if is_document(from) || stat.is_none_or(|stat| stat.kind != EntryKind::Value) {
                    self.check_metadata_writable()?;
                }
                self.check_put(to)?;
            }
        }
        self.below.change(change)
    }
}
