//! Moments that outlive the process, each with a key and a number: a record has the number, the
//! time and the key. They matter for seconds only, so that the clock of the system suffices.

use super::{Journal, Record, RecordId};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// The moments of one kind. Without a journal they are not recorded.
#[derive(Default)]
pub struct Moments {
    journal: OnceLock<(Arc<Journal>, u32)>,
}

fn now() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_nanos() as u64
}

impl Moments {
    /// Records moments as records of a kind from now on. Returns those that a daemon has left: the
    /// key, the number, the time, and the record.
    pub fn outlive(
        &self,
        journal: &Arc<Journal>,
        kind: u32,
        left: &[Record],
    ) -> Vec<(String, u64, Instant, RecordId)> {
        let _ = self.journal.set((journal.clone(), kind));
        let left = left.iter().filter(|record| record.kind == kind);
        left.filter_map(|record| {
            let [number, at] = record.numbers;
            let age = Duration::from_nanos(now().saturating_sub(at));
            let key = String::from_utf8(record.text.clone()).ok()?;
            // a moment before the system was started is long past
            let at = Instant::now().checked_sub(age)?;
            Some((key, number, at, record.id))
        })
        .collect()
    }

    /// Records the present as a moment of `key`.
    pub fn add(&self, key: &str, number: u64) -> Option<RecordId> {
        let (journal, kind) = self.journal.get()?;
        journal.add(*kind, [number, now()], key.as_bytes())
    }

    /// Moves a moment to the present, and changes its number.
    pub fn update(&self, record: Option<RecordId>, number: u64) {
        if let (Some((journal, _)), Some(record)) = (self.journal.get(), record) {
            journal.number(record, 0).store(number, Ordering::Release);
            journal.number(record, 1).store(now(), Ordering::Release);
        }
    }

    /// Removes a moment.
    pub fn remove(&self, record: Option<RecordId>) {
        if let (Some((journal, _)), Some(record)) = (self.journal.get(), record) {
            journal.remove(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create_memory;

    #[test]
    fn a_successor_finds_moments_with_their_age() {
        let memory = create_memory().unwrap();
        let (journal, left) = Journal::open(&memory).unwrap();
        let moments = Moments::default();
        assert_eq!(moments.add("a", 1), None, "there is no journal");
        assert_eq!(moments.outlive(&Arc::new(journal), 3, &left), []);
        let before = Instant::now();
        let [a, b] = ["a", "b"].map(|key| moments.add(key, 1));
        moments.update(a, 7);
        moments.remove(b);
        let (journal, left) = Journal::open(&memory).unwrap();
        let found = Moments::default().outlive(&Arc::new(journal), 3, &left);
        let [(key, number, at, _)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((key.as_str(), *number), ("a", 7));
        // both clocks may differ by a tick
        assert!(*at + Duration::from_secs(1) > before && *at <= Instant::now());
    }
}
