//! Records of changes, one small value for each changed key in the upper store: the record of `a/b`
//! is `a/.zarrfs-overlay/b`. Records move with the directory that they are in. If a value takes the
//! place of a directory that was removed, the directory's records move aside.

use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Value, json};
use zarrfs_store::{EntryKind, Key, Stat, Store, StoreExt};

/// The name of the directories of records, one in each directory of the upper store.
pub(super) const RECORDS: &str = ".zarrfs-overlay";

/// Maximum size of a record in bytes.
const MAX_RECORD: u64 = 64 << 10;

/// Maximum length in bytes of the text of a version. Servers send short entity tags.
const MAX_VERSION: usize = 16 << 10;

/// The text that stands for the version of a prefix.
const PREFIX: &str = "prefix";

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Its value is the upper one.
    Changed,
    /// The value or prefix below is hidden, with everything below it.
    Removed,
    /// It is a prefix that was created where something was removed: it hides everything below.
    Made,
}

/// The record of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangeRecord {
    pub kind: ChangeKind,
    /// The version in the lower store on which the change was laid, as text; `None` if there was
    /// nothing.
    pub below: Option<String>,
}

impl ChangeKind {
    /// Returns the name in records and in output.
    pub fn name(self) -> &'static str {
        match self {
            ChangeKind::Changed => "changed",
            ChangeKind::Removed => "removed",
            ChangeKind::Made => "made",
        }
    }
}

impl ChangeRecord {
    fn parse(text: &[u8]) -> Option<Self> {
        let value = json::parse(text).ok()?;
        let kinds = [ChangeKind::Changed, ChangeKind::Removed, ChangeKind::Made];
        let kind = kinds
            .into_iter()
            .find(|kind| value.get("state").and_then(Value::as_str) == Some(kind.name()))?;
        let below = match value.get("below")? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            _ => return None,
        };
        Some(ChangeRecord { kind, below })
    }

    fn text(&self) -> String {
        json::write(&json!({"state": self.kind.name(), "below": self.below}))
    }
}

/// Returns whether a key is one of a record, or of a directory of records.
pub(super) fn is_reserved(key: &Key) -> bool {
    key.as_str().split('/').any(|name| name == RECORDS)
}

/// Returns the key of the directory with the records of the level below `prefix`.
pub(super) fn records_of(prefix: &Key) -> Key {
    prefix.join(RECORDS)
}

/// Returns the key of the removed prefix `key` after a value took its place: its records are needed
/// by a commit.
pub(super) fn aside_of(key: &Key) -> Key {
    records_of(&records_of(&key.parent())).join(key.name())
}

fn record_key(key: &Key) -> Key {
    records_of(&key.parent()).join(key.name())
}

/// Returns the record of `key`. The root has none.
pub(super) fn read(upper: &dyn Store, key: &Key) -> Result<Option<ChangeRecord>> {
    if key.is_root() {
        return Ok(None);
    }
    let place = record_key(key);
    read_at_place(upper, &place).map_err(|e| e.context(format!("the overlay's record {place}")))
}

fn read_at_place(upper: &dyn Store, place: &Key) -> Result<Option<ChangeRecord>> {
    let mut text = Vec::new();
    if upper.get(place, MAX_RECORD, &mut text)?.is_none() {
        return Ok(None);
    }
    match ChangeRecord::parse(&text) {
        Some(record) => Ok(Some(record)),
        None => Err(Error::damaged(
            "is not a record of a change; restore it, or discard the overlay",
        )),
    }
}

/// Returns whether `key` has a record.
pub(super) fn exists(upper: &dyn Store, key: &Key) -> Result<bool> {
    Ok(upper.stat(&record_key(key))?.is_some())
}

/// Replaces the record of `key`.
pub(super) fn put(
    upper: &dyn Store,
    key: &Key,
    kind: ChangeKind,
    below: Option<String>,
) -> Result<()> {
    if below.as_ref().is_some_and(|text| text.len() > MAX_VERSION) {
        return Err(Error::unsupported(format!(
            "{key}: its version has more than {MAX_VERSION} bytes"
        )));
    }
    upper
        .put(
            &record_key(key),
            ChangeRecord { kind, below }.text().as_bytes(),
        )
        .map(drop)
}

/// Removes the record of `key`.
pub(super) fn delete(upper: &dyn Store, key: &Key) -> Result<()> {
    upper.delete(&record_key(key)).map(drop)
}

/// Returns the text by which a record states the version of a key in the lower store.
pub(super) fn version_text(below: Option<&Stat>) -> Option<String> {
    below.map(|stat| match stat.kind {
        EntryKind::Value => stat.version.lasting(),
        EntryKind::Prefix => PREFIX.to_string(),
        EntryKind::Other => "other".to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_store::MemoryStore;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let store = MemoryStore::default();
        let key = Key::root().join("a/b");
        for below in [None, Some("\"x\"\n\u{1b}".to_string())] {
            put(&store, &key, ChangeKind::Removed, below.clone()).unwrap();
            assert_eq!(
                read(&store, &key).unwrap(),
                Some(ChangeRecord {
                    kind: ChangeKind::Removed,
                    below
                })
            );
        }
        assert!(exists(&store, &key).unwrap() && !exists(&store, &Key::root().join("a")).unwrap());
        delete(&store, &key).unwrap();
        assert_eq!(read(&store, &key).unwrap(), None);
        assert!(
            put(
                &store,
                &key,
                ChangeKind::Made,
                Some("x".repeat(MAX_VERSION + 1))
            )
            .is_err()
        );
    }

    #[test]
    fn garbage_is_no_record() {
        let store = MemoryStore::default();
        let key = Key::root().join("b");
        let long = vec![b' '; MAX_RECORD as usize + 1];
        let texts: [&[u8]; 6] = [
            b"",
            b"[]",
            b"{\"state\": \"changed\"}",
            b"{\"state\": 1, \"below\": null}",
            b"\xff",
            &long,
        ];
        for text in texts {
            store.insert(&format!("{RECORDS}/b"), text);
            let said = read(&store, &key).unwrap_err();
            assert!(
                said.message()
                    .starts_with("the overlay's record /.zarrfs-overlay/b: "),
                "{said}"
            );
        }
    }
}
