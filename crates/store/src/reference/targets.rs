//! The stores that hold the targets of references: one for each prefix below which targets may lie,
//! opened when the first value below it is read.

use super::place::{TargetPlace, refused, target_error};
use crate::reopening::present;
use crate::{Key, Store};
use std::sync::{Arc, OnceLock};
use zarrfs_base::error::Result;

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
pub(super) struct TargetValue {
    pub store: Arc<dyn Store>,
    pub key: Key,
}

/// All prefixes.
pub(super) struct TargetRoots {
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
    pub fn find(&self, target: &str) -> Result<TargetValue> {
        let (root, key) = self.root_of(target)?;
        let store = root.store().map_err(|e| target_error(target, present(e)))?;
        Ok(TargetValue { store, key })
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
