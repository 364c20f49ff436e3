//! A cache of parsed arrays, each with the version of its document. An array that a caller still
//! holds is returned as the same object until its metadata changes, because cached chunks belong to
//! the object. This module reads nothing.

use super::asked_once::SMALL;
use super::{DocumentKind, Parsed};
use crate::array::Array;
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, Weak};
use zarrfs_base::error::Result;
use zarrfs_base::memory::{Reclaim, lock};
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::{Key, Version};

/// Maximum number of documents whose metadata the arrays with the same document share.
const SHARED: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// What documents state, by their text and how it is read.
type Stated = LruCache<Vec<u8>, (DocumentKind, Arc<ArrayMetadata>)>;

/// The arrays of a hierarchy.
pub(super) struct Arrays {
    /// Protects the whole cache.
    known: Mutex<ParsedArrays>,
    /// What documents state that were parsed recently. Protects the map alone.
    stated: Mutex<Stated>,
}

struct ParsedArrays {
    /// The most recently requested arrays, or the errors of those that cannot be used.
    recent: LruCache<Key, (Version, Parsed)>,
    /// Arrays that were evicted from `recent` while a caller held them.
    held: HashMap<Key, (Version, Weak<Array>)>,
    /// The length of `held` at which arrays without holders are removed from it.
    prune_at: usize,
    /// The number of times that arrays were moved or removed.
    moves: u64,
}

impl Arrays {
    /// Returns an empty cache that keeps up to `kept` arrays without holders.
    pub fn new(kept: NonZeroUsize) -> Self {
        let known = ParsedArrays {
            recent: LruCache::new(kept),
            held: HashMap::new(),
            prune_at: kept.get(),
            moves: 0,
        };
        Arrays {
            known: Mutex::new(known),
            stated: Mutex::new(LruCache::new(SHARED)),
        }
    }

    /// Returns the metadata that `parse` makes of a document, or made of the same text before.
    pub fn metadata(
        &self,
        text: &[u8],
        form: DocumentKind,
        parse: impl FnOnce() -> Result<ArrayMetadata>,
    ) -> Result<Arc<ArrayMetadata>> {
        if let Some((of, metadata)) = lock(&self.stated).get(text)
            && *of == form
        {
            return Ok(metadata.clone());
        }
        let metadata = Arc::new(parse()?);
        if text.len() <= SMALL {
            let stated = (form, metadata.clone());
            lock(&self.stated).put(text.to_vec(), stated);
        }
        Ok(metadata)
    }

    /// Returns the count that [`Arrays::insert`] compares. Callers call this before they look up
    /// the array's document.
    pub fn moves(&self) -> u64 {
        lock(&self.known).moves
    }

    /// Returns the array at `key` if it was parsed from `version` of its document.
    pub fn get(&self, key: &Key, version: &Version) -> Option<Parsed> {
        let mut known = lock(&self.known);
        let (of, parsed) = known.current(key)?;
        (of == *version).then_some(parsed)
    }

    /// Returns the array that the last lookup of `key` found.
    pub fn last(&self, key: &Key) -> Option<Arc<Array>> {
        let known = lock(&self.known);
        match known.recent.peek(key) {
            Some((_, parsed)) => parsed.clone().ok(),
            None => known.held.get(key)?.1.upgrade(),
        }
    }

    /// Inserts the result of parsing `version`, and returns the array to use: the cached one if it
    /// has the same metadata. A different cached array is superseded. If any array was moved since
    /// the caller got `moves`, this one may have been moved too; it is then not cached, and its
    /// holders must look it up again.
    pub fn insert(&self, key: &Key, version: Version, parsed: Parsed, moves: u64) -> Parsed {
        let mut known = lock(&self.known);
        if known.moves != moves {
            return parsed.inspect(|array| array.freshness().replace());
        }
        let mut parsed = parsed;
        if let Some((of, Ok(current))) = known.current(key) {
            match &parsed {
                // another thread was first, or the document was rewritten without a change
                Ok(new) if of == version || is_same(&current, new) => parsed = Ok(current),
                // holders must look at the new shape
                Ok(new) if is_resized(&current, new) => current.freshness().supersede(),
                Ok(_) => current.freshness().replace(),
                // the document may be complete again soon; until then nothing is stored, and
                // nothing is lost
                Err(_) => current.freshness().supersede(),
            }
        }
        known.put(key, version, parsed.clone());
        parsed
    }

    /// Removes the arrays at and below `key`, which no longer exist, so that nothing is stored for
    /// them.
    pub fn forget_below(&self, key: &Key) {
        let mut known = lock(&self.known);
        known.moves += 1;
        let recent = known.recent.iter().map(|(recent, _)| recent);
        let below: Vec<Key> = recent
            .filter(|recent| recent.relative_to(key).is_some())
            .cloned()
            .collect();
        for recent in below {
            if let Some((_, Ok(array))) = known.recent.pop(&recent) {
                array.freshness().replace();
            }
        }
        known.held.retain(|held, (_, array)| {
            if held.relative_to(key).is_none() {
                return true;
            }
            if let Some(array) = array.upgrade() {
                array.freshness().replace();
            }
            false
        });
    }
}

impl Reclaim for Arrays {
    /// Removes the arrays without holders.
    fn reclaim(&self) {
        if let Ok(mut stated) = self.stated.try_lock() {
            stated.clear();
        }
        let Ok(mut known) = self.known.try_lock() else {
            return;
        };
        let keys: Vec<Key> = known.recent.iter().map(|(key, _)| key.clone()).collect();
        for key in keys {
            let is_held = matches!(known.recent.peek(&key), Some((_, Ok(array))) if Arc::strong_count(array) > 1);
            if !is_held {
                known.recent.pop(&key);
            }
        }
    }
}

impl ParsedArrays {
    fn current(&mut self, key: &Key) -> Option<(Version, Parsed)> {
        if let Some(found) = self.recent.get(key) {
            return Some(found.clone());
        }
        let (version, array) = self.held.remove(key)?;
        let array = array.upgrade()?;
        self.put(key, version.clone(), Ok(array.clone()));
        Some((version, Ok(array)))
    }

    fn put(&mut self, key: &Key, version: Version, parsed: Parsed) {
        let Some((pushed, (version, Ok(array)))) = self.recent.push(key.clone(), (version, parsed))
        else {
            return;
        };
        // the caller holds the lock, so that no other thread can obtain the array meanwhile
        if pushed == *key || Arc::strong_count(&array) == 1 {
            return;
        }
        if self.held.len() >= self.prune_at {
            self.held.retain(|_, (_, array)| array.strong_count() > 0);
            self.prune_at = self.recent.cap().get().max(2 * self.held.len());
        }
        self.held.insert(pushed, (version, Arc::downgrade(&array)));
    }
}

/// Returns whether chunks that both arrays have are stored in the same way.
fn is_resized(old: &Array, new: &Array) -> bool {
    old.metadata().is_resize_of(new.metadata()) && old.separator() == new.separator()
}

/// Returns whether everything cached for `old` is valid for `new`.
fn is_same(old: &Array, new: &Array) -> bool {
    old.metadata() == new.metadata() && old.separator() == new.separator()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_base::error::Error;
    use zarrfs_format::metadata::ArrayMetadata;
    use zarrfs_store::MemoryStore;

    fn array(shape: u64) -> Parsed {
        let document = format!(
            r#"{{"zarr_format":2,"shape":[{shape}],"chunks":[2],"dtype":"|u1","compressor":null,"fill_value":0,
            "order":"C","filters":null}}"#
        );
        let metadata = ArrayMetadata::parse(document.as_bytes()).unwrap();
        Array::new(
            Key::root(),
            metadata,
            Arc::new(MemoryStore::default()),
            Arc::default(),
        )
        .map(Arc::new)
    }

    fn key(i: u64) -> Key {
        Key::root().join(&i.to_string())
    }

    #[test]
    fn an_array_that_is_held_stays_the_same() {
        let arrays = Arrays::new(NonZeroUsize::new(2).unwrap());
        let version = Version::Count;
        let held = arrays.insert(&key(0), version(7), array(5), 0).unwrap();
        for i in 1..100 {
            arrays.insert(&key(i), version(i), array(5), 0).unwrap();
        }
        assert!(!held.is_superseded());
        assert_eq!(lock(&arrays.known).held.len(), 1);
        assert!(arrays.get(&key(0), &version(8)).is_none());
        for found in [
            arrays.last(&key(0)).unwrap(),
            arrays.get(&key(0), &version(7)).unwrap().unwrap(),
        ] {
            assert!(Arc::ptr_eq(&held, &found));
        }
        drop(held);
        for i in 1..100 {
            arrays.insert(&key(i), version(i), array(5), 0).unwrap();
        }
        assert!(arrays.get(&key(0), &version(7)).is_none() && arrays.last(&key(0)).is_none());
    }

    #[test]
    fn only_other_metadata_supersede_an_array() {
        let arrays = Arrays::new(NonZeroUsize::new(2).unwrap());
        let version = Version::Count;
        let insert = |n, parsed| arrays.insert(&key(0), version(n), parsed, 0);
        let first = insert(1, array(5)).unwrap();
        assert!(Arc::ptr_eq(&first, &insert(1, array(5)).unwrap()));
        assert!(Arc::ptr_eq(&first, &insert(2, array(5)).unwrap()));
        assert!(Arc::ptr_eq(
            &first,
            &arrays.get(&key(0), &version(2)).unwrap().unwrap()
        ));
        assert!(!first.is_superseded());
        let second = insert(3, array(6)).unwrap();
        assert!(first.is_superseded() && !second.is_superseded());
        assert!(insert(4, Err(Error::damaged("x"))).is_err());
        assert!(second.is_superseded() && arrays.last(&key(0)).is_none());
    }

    #[test]
    fn arrays_with_the_same_document_share_what_it_states() {
        let arrays = Arrays::new(NonZeroUsize::new(2).unwrap());
        let stated = || Ok(array(5).unwrap().metadata().clone());
        let share = |text: &[u8], form| arrays.metadata(text, form, stated).unwrap();
        let first = share(b"a", DocumentKind::V2);
        assert!(Arc::ptr_eq(&first, &share(b"a", DocumentKind::V2)));
        assert!(!Arc::ptr_eq(&first, &share(b"b", DocumentKind::V2)));
        let refused = arrays.metadata(b"a", DocumentKind::V3, || Err(Error::damaged("x")));
        assert!(refused.is_err());
        arrays.reclaim();
        assert!(!Arc::ptr_eq(&first, &share(b"a", DocumentKind::V2)));
        let long = vec![b' '; SMALL + 1];
        assert!(!Arc::ptr_eq(
            &share(&long, DocumentKind::V2),
            &share(&long, DocumentKind::V2)
        ));
    }

    #[test]
    fn arrays_without_holders_are_forgotten() {
        let arrays = Arrays::new(NonZeroUsize::new(2).unwrap());
        let mut held: Vec<_> = (0..50)
            .map(|i| {
                arrays
                    .insert(&key(i), Version::Count(i), array(5), 0)
                    .unwrap()
            })
            .collect();
        assert_eq!(lock(&arrays.known).held.len(), 48);
        held.truncate(3);
        for i in 100..200 {
            held.push(
                arrays
                    .insert(&key(i), Version::Count(i), array(5), 0)
                    .unwrap(),
            );
            held.truncate(4);
        }
        assert!(lock(&arrays.known).held.len() <= 100);
    }
}
