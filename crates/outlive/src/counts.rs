//! Counts that outlive the process, each under a key: a record has the count and the key. Several
//! threads add to a count in any order, so that no thread may set it.

use super::{Journal, Record, RecordId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use zarrfs_base::memory::lock;

/// The counts of one kind.
pub struct KeyedCounts {
    journal: Arc<Journal>,
    kind: u32,
    /// Protects the map: the records by their keys.
    records: Mutex<HashMap<String, RecordId>>,
}

/// A count.
#[derive(Clone)]
pub struct SharedCount {
    journal: Arc<Journal>,
    record: RecordId,
}

impl KeyedCounts {
    /// Creates the counts of a kind of records. Returns also the keys of those that a daemon has
    /// left, if they are not 0, with their records: they stay until the caller has recorded what
    /// follows from them, since this process may be killed before.
    pub fn new(
        journal: Arc<Journal>,
        kind: u32,
        left: &[Record],
    ) -> (Self, Vec<(String, RecordId)>) {
        let mut counted = Vec::new();
        for record in left.iter().filter(|record| record.kind == kind) {
            if record.numbers[0] == 0 {
                journal.remove(record.id);
            } else {
                let key = String::from_utf8_lossy(&record.text);
                counted.push((key.into_owned(), record.id));
            }
        }
        let counts = KeyedCounts {
            journal,
            kind,
            records: Mutex::default(),
        };
        (counts, counted)
    }

    /// Returns the count of a key, `None` if the journal has no space for it.
    pub fn of(&self, key: &str) -> Option<SharedCount> {
        let mut records = lock(&self.records);
        let record = match records.get(key) {
            Some(record) => *record,
            None => {
                let record = self.journal.add(self.kind, [0, 0], key.as_bytes())?;
                records.insert(key.to_string(), record);
                record
            }
        };
        Some(SharedCount {
            journal: self.journal.clone(),
            record,
        })
    }
}

/// A record that lasts as long as this value.
pub struct HeldRecord {
    journal: Arc<Journal>,
    record: RecordId,
}

impl Drop for HeldRecord {
    fn drop(&mut self) {
        self.journal.remove(self.record);
    }
}

impl SharedCount {
    /// Adds one.
    pub fn add(&self) {
        self.journal
            .number(self.record, 0)
            .fetch_add(1, Ordering::AcqRel);
    }

    /// Adds a record of a kind, which is removed when the returned value is dropped, and stays if
    /// the process is killed. Returns `None` if the journal has no space for it.
    pub fn hold(&self, kind: u32, numbers: [u64; 2], text: &[u8]) -> Option<HeldRecord> {
        Some(HeldRecord {
            record: self.journal.add(kind, numbers, text)?,
            journal: self.journal.clone(),
        })
    }

    /// Subtracts one.
    pub fn subtract(&self) {
        self.journal
            .number(self.record, 0)
            .fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create_memory;

    #[test]
    fn a_successor_finds_the_keys_that_are_counted() {
        let memory = create_memory().unwrap();
        let (journal, left) = Journal::open(&memory).unwrap();
        let (counts, counted) = KeyedCounts::new(Arc::new(journal), 3, &left);
        assert!(counted.is_empty());
        let [a, b] = ["a", "b"].map(|key| counts.of(key).unwrap());
        a.add();
        a.add();
        a.subtract();
        b.add();
        counts.of("b").unwrap().subtract();
        let (journal, left) = Journal::open(&memory).unwrap();
        let journal = Arc::new(journal);
        let (_, counted) = KeyedCounts::new(journal.clone(), 3, &left);
        let [(key, record)] = &counted[..] else {
            panic!("{counted:?}");
        };
        assert_eq!(key, "a");
        // a successor that is killed now leaves it to the next one
        let (_, left) = Journal::open(&memory).unwrap();
        assert_eq!(KeyedCounts::new(journal.clone(), 3, &left).1, counted);
        journal.remove(*record);
        let (_, left) = Journal::open(&memory).unwrap();
        assert_eq!(left, []);
    }
}
