//! The stores that hold the targets of references: one for each prefix below which targets may lie,
//! opened when the first value below it is read.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use zarrfs_base::error::{Error, Result};
use zarrfs_store::{
    EntryKind, Key, Stat, Store, StoreExt, TargetPlace, granted_between, granted_by, present,
    refused, target_error,
};

/// A function that opens the store at a prefix.
type OpenTargets = Box<dyn Fn() -> Result<Arc<dyn Store>> + Send + Sync>;

/// A prefix below which targets may lie.
pub struct TargetRoot {
    place: TargetPlace,
    /// Whether the prefix names a single target, and the store is the folder that holds it.
    is_target: bool,
    /// A prefix of keys that no target may have.
    hidden: Option<Key>,
    open: OpenTargets,
    store: OnceLock<Arc<dyn Store>>,
}

/// A target that may be read: a value of a store.
struct TargetValue {
    store: Arc<dyn Store>,
    key: Key,
    /// Whether the user has named the directory at the root of the store.
    is_below_named: bool,
}

/// All prefixes.
pub struct TargetRoots {
    /// Place of the folder of the document.
    folder: TargetPlace,
    roots: Vec<TargetRoot>,
}

impl TargetRoot {
    /// Creates a prefix for the targets below `place`. `open` opens the store whose root is there.
    pub fn new(place: TargetPlace, open: OpenTargets) -> Self {
        TargetRoot {
            place,
            is_target: false,
            hidden: None,
            open,
            store: OnceLock::new(),
        }
    }

    /// Creates a prefix for one target. `open` opens the store whose root is the folder of it.
    pub fn of_target(place: TargetPlace, open: OpenTargets) -> Self {
        TargetRoot {
            is_target: true,
            ..Self::new(place, open)
        }
    }

    /// Refuses targets at or below `key` in the store of this prefix.
    pub fn hiding(self, key: Option<Key>) -> Self {
        TargetRoot {
            hidden: key,
            ..self
        }
    }

    fn store(&self) -> Result<Arc<dyn Store>> {
        if let Some(store) = self.store.get() {
            return Ok(store.clone());
        }
        // two threads may both open it, and use the one that is kept
        let opened = (self.open)()?;
        Ok(self.store.get_or_init(|| opened).clone())
    }

    /// Returns the key of a target in the store of this prefix.
    fn key_of(&self, target: &TargetPlace) -> Option<Result<Key>> {
        let names = target.below(&self.place)?;
        match (self.is_target, names) {
            (true, []) => Some(Key::root().child(target.name().unwrap_or_default())),
            (false, [_, ..]) => Some(
                names
                    .iter()
                    .try_fold(Key::root(), |key, name| key.child(name)),
            ),
            _ => None,
        }
    }
}

impl TargetRoots {
    /// Returns the places of targets for a document in `folder`.
    pub fn new(folder: TargetPlace, roots: Vec<TargetRoot>) -> Self {
        TargetRoots { folder, roots }
    }

    /// Returns the prefix of a target, the longest one, and the key in its store.
    fn root_of(&self, target: &str) -> Result<(&TargetRoot, Key)> {
        let place =
            TargetPlace::of_target(target, &self.folder).map_err(|e| target_error(target, e))?;
        self.root_of_place(&place)
            .map_err(|e| target_error(target, e))
    }

    fn root_of_place(&self, place: &TargetPlace) -> Result<(&TargetRoot, Key)> {
        let matching = self
            .roots
            .iter()
            .filter_map(|root| Some((root, root.key_of(place)?)));
        let longest = matching.max_by_key(|(root, _)| root.place.depth());
        let Some((root, key)) = longest else {
            return Err(refused(
                "is outside the directory of the references; allow it with --allow-reference URL",
            ));
        };
        let key = key?;
        if root
            .hidden
            .as_ref()
            .is_some_and(|hidden| key.relative_to(hidden).is_some())
        {
            return Err(refused("leads into the mount itself"));
        }
        Ok((root, key))
    }

    /// Returns the value that a target names.
    ///
    /// # Errors
    ///
    /// EACCES for a target below no prefix. It is not looked at.
    fn find(&self, target: &str) -> Result<TargetValue> {
        let (root, key) = self.root_of(target)?;
        let store = root.store().map_err(|e| target_error(target, present(e)))?;
        Ok(TargetValue {
            store,
            key,
            is_below_named: !root.is_target && root.place != self.folder,
        })
    }

    /// Calls `read` with the value of a target.
    ///
    /// # Errors
    ///
    /// EIO if the target is missing: it must not look like a key without a reference, whose value
    /// is the fill value.
    pub fn read<T>(
        &self,
        target: &str,
        read: impl FnOnce(&dyn Store, &Key) -> Result<Option<T>>,
    ) -> Result<T> {
        let value = self.find(target)?;
        read(&*value.store, &value.key)
            .and_then(|found| found.ok_or_else(|| Error::damaged("is missing")))
            .map_err(|e| target_error(target, present(e)))
    }

    /// Returns the metadata of a target, with no more permissions than the directories above it
    /// grant. Those above the document or above a target that the user has named do not count, as
    /// those above a store.
    ///
    /// # Errors
    ///
    /// The errors of [`TargetRoots::read`].
    pub fn stat(&self, target: &str) -> Result<Stat> {
        let stat = self.read(target, |store, key| store.stat(key))?;
        if stat.permissions.is_none() {
            return Ok(stat);
        }
        let TargetValue {
            store,
            key,
            is_below_named,
        } = self.find(target)?;
        let root = Key::root();
        let stat = stat.restricted(granted_between(&*store, &root, &key));
        if is_below_named {
            Ok(stat.restricted(granted_by(&*store, &root)))
        } else {
            Ok(stat)
        }
    }

    /// Reads the bytes of `part`, relative to `offset`, of a target that must have `len` bytes
    /// there. Returns the metadata of the target.
    pub fn read_part(
        &self,
        (target, offset, len): (&str, u64, u64),
        part: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<Stat> {
        let end = part.end.min(len);
        let start = part.start.min(end);
        self.read(target, |store, key| {
            let range = offset.saturating_add(start)..offset.saturating_add(end);
            let Some(stat) = store.get_range(key, range, value)? else {
                return Ok(None);
            };
            check_end(&stat, offset, len)?;
            if value.len() as u64 == end - start {
                Ok(Some(stat))
            } else {
                Err(Error::damaged("is cut short"))
            }
        })
    }

    /// Returns the largest number of requests that may be in flight to a prefix.
    pub fn max_concurrency(&self) -> usize {
        let remote = self.roots.iter().filter(|root| root.place.is_remote());
        remote
            .filter_map(|root| Some(root.store().ok()?.concurrency()))
            .max()
            .unwrap_or(1)
    }

    /// Checks that a target is below a prefix.
    pub fn check(&self, target: &str) -> Result<()> {
        self.root_of(target).map(drop)
    }

    /// Returns whether a target is on a server.
    pub fn is_remote(&self, target: &str) -> bool {
        self.root_of(target)
            .is_ok_and(|(root, _)| root.place.is_remote())
    }

    /// Returns the number of requests that may be in flight to a target.
    pub fn concurrency(&self, target: &str) -> usize {
        self.find(target)
            .map_or(1, |value| value.store.concurrency())
    }

    /// Invalidates cached metadata of all targets.
    pub fn forget(&self) {
        self.roots
            .iter()
            .filter_map(|root| root.store.get())
            .for_each(|store| store.forget(&Key::root()));
    }
}

/// Checks that a target is a value with the bytes of a reference.
pub fn check_end(target: &Stat, offset: u64, len: u64) -> Result<()> {
    if target.kind != EntryKind::Value {
        return Err(Error::damaged("is not a file"));
    }
    let size = target.size;
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::damaged(format!(
            "has {size} bytes, and not {len} from byte {offset} on"
        ))),
    }
}
