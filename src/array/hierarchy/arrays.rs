//! The arrays that have been parsed, each with the version of its metadata. An array that somebody still holds is found
//! again as the same object until its metadata changes: what is known of its chunks hangs on it. It reads nothing.

use super::Parsed;
use crate::array::Array;
use crate::store::{Key, Version};
use crate::util::memory::{Reclaim, lock};
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, Weak};

/// The arrays of a hierarchy.
pub(super) struct Arrays {
    /// Protects everything.
    known: Mutex<ParsedArrays>,
}

struct ParsedArrays {
    /// Those asked for last, and why some can't be honoured.
    recent: LruCache<Key, (Version, Parsed)>,
    /// Those pushed out of there while somebody held them.
    held: HashMap<Key, (Version, Weak<Array>)>,
    /// How many `held` may have until those that nobody holds any more are looked for.
    prune_at: usize,
    /// How often arrays were moved away or removed.
    moves: u64,
}

impl Arrays {
    /// None yet; `kept` of them are kept also when nobody holds them.
    pub fn new(kept: NonZeroUsize) -> Self {
        let known = ParsedArrays { recent: LruCache::new(kept), held: HashMap::new(), prune_at: kept.get(), moves: 0 };
        Arrays { known: Mutex::new(known) }
    }

    /// To be asked before the metadata of an array is looked for: see [`Arrays::insert`].
    pub fn moves(&self) -> u64 {
        lock(&self.known).moves
    }

    /// What was made of `version` of the metadata at `key`.
    pub fn get(&self, key: &Key, version: &Version) -> Option<Parsed> {
        let mut known = lock(&self.known);
        let (of, parsed) = known.current(key)?;
        (of == *version).then_some(parsed)
    }

    /// What was made of the metadata at `key` when it was last asked for.
    pub fn last(&self, key: &Key) -> Option<Arc<Array>> {
        let known = lock(&self.known);
        match known.recent.peek(key) {
            Some((_, parsed)) => parsed.clone().ok(),
            None => known.held.get(key)?.1.upgrade(),
        }
    }

    /// Remembers what was made of `version`, and answers what is to be used: the array that is known already if it is
    /// the same. Another one is superseded. If any array was moved away since [`Arrays::moves`] was asked, this one may
    /// have been: then it is not remembered, and whoever has it must look again.
    pub fn insert(&self, key: &Key, version: Version, parsed: Parsed, moves: u64) -> Parsed {
        let mut known = lock(&self.known);
        if known.moves != moves {
            return parsed.inspect(|array| array.freshness().replace());
        }
        let mut parsed = parsed;
        if let Some((of, Ok(current))) = known.current(key) {
            match &parsed {
                // another thread was first, or the document was written anew and says the same
                Ok(new) if of == version || is_same(&current, new) => parsed = Ok(current),
                // its holders must not go by what it knew
                Ok(new) if is_resized(&current, new) => current.freshness().supersede(),
                Ok(_) => current.freshness().replace(),
                // it may be whole again in a moment: until then nothing is stored, and nothing is lost
                Err(_) => current.freshness().supersede(),
            }
        }
        known.put(key, version, parsed.clone());
        parsed
    }

    /// Drops what is known of the arrays at and below `key`, which are there no longer: nothing is stored for them any more.
    pub fn forget_below(&self, key: &Key) {
        let mut known = lock(&self.known);
        known.moves += 1;
        let below = |k: &Key| k.relative_to(key).is_some();
        let keys: Vec<Key> = known.recent.iter().map(|(k, _)| k).filter(|k| below(k)).cloned().collect();
        let recent = keys.iter().filter_map(|k| known.recent.pop(k)).filter_map(|(_, parsed)| parsed.ok());
        recent.for_each(|array| array.freshness().replace());
        let held = known.held.extract_if(|k, _| below(k)).filter_map(|(_, (_, array))| array.upgrade());
        held.for_each(|array| array.freshness().replace());
    }
}

impl Reclaim for Arrays {
    /// Drops the arrays that have no holder.
    fn reclaim(&self) {
        let Ok(mut known) = self.known.try_lock() else { return };
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
        let Some((pushed, (version, Ok(array)))) = self.recent.push(key.clone(), (version, parsed)) else { return };
        // nobody can come to hold it but by way of us
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

/// True if the chunks of `old` that `new` still has are what they were.
fn is_resized(old: &Array, new: &Array) -> bool {
    old.metadata().encodes_like(new.metadata()) && old.separator() == new.separator()
}

/// True if what is known of `old` holds for `new`.
fn is_same(old: &Array, new: &Array) -> bool {
    old.metadata() == new.metadata() && old.separator() == new.separator()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::store::MemoryStore;
    use crate::zarr::metadata::ArrayMetadata;

    fn array(shape: u64) -> Parsed {
        let document = format!(
            r#"{{"zarr_format":2,"shape":[{shape}],"chunks":[2],"dtype":"|u1","compressor":null,"fill_value":0,
            "order":"C","filters":null}}"#
        );
        let metadata = ArrayMetadata::parse(document.as_bytes()).unwrap();
        Array::new(Key::root(), metadata, Arc::new(MemoryStore::default()), Arc::default()).map(Arc::new)
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
        for found in [arrays.last(&key(0)).unwrap(), arrays.get(&key(0), &version(7)).unwrap().unwrap()] {
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
        assert!(Arc::ptr_eq(&first, &arrays.get(&key(0), &version(2)).unwrap().unwrap()));
        assert!(!first.is_superseded());
        let second = insert(3, array(6)).unwrap();
        assert!(first.is_superseded() && !second.is_superseded());
        assert!(insert(4, Err(Error::damaged("x"))).is_err());
        assert!(second.is_superseded() && arrays.last(&key(0)).is_none());
    }

    #[test]
    fn those_nobody_holds_are_forgotten() {
        let arrays = Arrays::new(NonZeroUsize::new(2).unwrap());
        let mut held: Vec<_> =
            (0..50).map(|i| arrays.insert(&key(i), Version::Count(i), array(5), 0).unwrap()).collect();
        assert_eq!(lock(&arrays.known).held.len(), 48);
        held.truncate(3);
        for i in 100..200 {
            held.push(arrays.insert(&key(i), Version::Count(i), array(5), 0).unwrap());
            held.truncate(4);
        }
        assert!(lock(&arrays.known).held.len() <= 100);
    }
}
