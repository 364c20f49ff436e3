//! The spelling of consolidated metadata: in the words of the document from which a mount shows it,
//! or that a program has written, where these say the same. A copy of a store is then the store,
//! whatever is copied first.

use super::DocumentFormat;
use super::consolidated::is_implied;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Map, MemberTexts, Value};
use zarrfs_base::memory::{self, Grant, lock};
use zarrfs_format::metadata::v3::node::CONSOLIDATED;
use zarrfs_store::Key;

/// Maximum number of documents that are remembered: a program copies one store, or a few.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// Maximum size in bytes of a document that is spelled like another one. It is parsed each time.
const MAX_SPELLED: usize = 4 << 20;

/// The documents with consolidated metadata that programs have written, perhaps before the
/// documents that these consolidate.
pub(super) struct WrittenConsolidated {
    /// Protects the map, by the keys of the documents.
    texts: Mutex<LruCache<Key, (Vec<u8>, Grant)>>,
}

impl WrittenConsolidated {
    /// Creates an empty record.
    pub fn new() -> Self {
        WrittenConsolidated {
            texts: Mutex::new(LruCache::new(REMEMBERED)),
        }
    }

    /// Remembers what a program has written as the document at `key`, if there is memory to spare.
    pub fn remember(&self, key: &Key, text: &[u8]) {
        self.forget(key);
        if text.len() > MAX_SPELLED || memory::check_available().is_err() {
            return;
        }
        if let Ok(memory) = memory::take(text.len()) {
            lock(&self.texts).put(key.clone(), (text.to_vec(), memory));
        }
    }

    /// Forgets the document at `key`.
    pub fn forget(&self, key: &Key) {
        lock(&self.texts).pop(key);
    }

    /// Returns the document `made` for `key`, in the words of the one that a program has written.
    pub fn spell(&self, format: DocumentFormat, key: &Key, made: Vec<u8>) -> Vec<u8> {
        let mut texts = lock(&self.texts);
        match texts.get(key) {
            Some((written, _)) => spelled_like(format, written, made),
            None => made,
        }
    }
}

/// Returns the document `made` in the words of `other`, if both have entries of the same names.
pub(super) fn spelled_like(format: DocumentFormat, other: &[u8], made: Vec<u8>) -> Vec<u8> {
    if other.len() > MAX_SPELLED || made.len() > MAX_SPELLED || other == made {
        return made;
    }
    match try_spell_like(format, other, &made) {
        Ok(Some(text)) => text,
        _ => made,
    }
}

fn try_spell_like(format: DocumentFormat, other: &[u8], made: &[u8]) -> Result<Option<Vec<u8>>> {
    // while documents are still copied, most of them are missing
    if count_entries(format, made)? != count_entries(format, other)? {
        return Ok(None);
    }
    let (other_value, _memory) = json::parse_counted(other)?;
    let (mut value, _memory) = json::parse_counted(made)?;
    let Some(other_entries) = entries(format, &other_value) else {
        return Ok(None);
    };
    let Some(entries) = entries_mut(format, &mut value) else {
        return Ok(None);
    };
    for (name, other) in other_entries {
        match entries.get_mut(name) {
            Some(entry) if entry == other => {}
            Some(entry) => {
                let texts = [json::write(other), json::write(entry)];
                if format.is_same_entry(name, texts[0].as_bytes(), texts[1].as_bytes())? {
                    *entry = other.clone();
                }
            }
            None if is_implied(format, name, &json::write(other)) => {
                entries.insert(name.clone(), other.clone());
            }
            None => return Ok(None),
        }
    }
    if entries.len() > other_entries.len() {
        return Ok(None);
    }
    Ok(json::respell(other, &value))
}

/// Returns the number of entries of documents that have to be stored.
fn count_entries(format: DocumentFormat, text: &[u8]) -> Result<usize> {
    let entries = format.entries(text)?.unwrap_or("{}");
    let mut count = 0;
    for entry in MemberTexts::of(entries.as_bytes())? {
        let (name, text) = entry?;
        count += usize::from(!is_implied(format, &name, text));
    }
    Ok(count)
}

fn entries(format: DocumentFormat, document: &Value) -> Option<&Map<String, Value>> {
    let parent = match format {
        DocumentFormat::V2 => document,
        DocumentFormat::V3 => document.get(CONSOLIDATED)?,
    };
    parent.get("metadata")?.as_object()
}

fn entries_mut(format: DocumentFormat, document: &mut Value) -> Option<&mut Map<String, Value>> {
    let parent = match format {
        DocumentFormat::V2 => document,
        DocumentFormat::V3 => document.get_mut(CONSOLIDATED)?,
    };
    parent.get_mut("metadata")?.as_object_mut()
}
