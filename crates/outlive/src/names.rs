//! Names that outlive the process, each with a number and the time when it was recorded: a map in
//! memory whose entries are records of the journal, too, if there is one. A name is a path: `a/b`
//! is below `a`, and all are below the empty one.

use super::{Journal, Record, RecordId};
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use zarrfs_base::memory::lock;

/// Recorded names.
pub struct RecordedNames {
    /// Protects the map and its records.
    recorded: Mutex<LruCache<String, RecordedName>>,
    /// The journal, and the kind of the records.
    journal: OnceLock<(Arc<Journal>, u32)>,
}

#[derive(Clone, Copy)]
struct RecordedName {
    number: u64,
    at: Instant,
    record: Option<RecordId>,
}

impl RecordedNames {
    /// Creates an empty map, which forgets the name that was recorded first when it has more than
    /// `maximum`.
    pub fn new(maximum: NonZeroUsize) -> Self {
        Self::with(LruCache::new(maximum))
    }

    /// Creates an empty map without a maximum.
    pub fn unbounded() -> Self {
        Self::with(LruCache::unbounded())
    }

    fn with(names: LruCache<String, RecordedName>) -> Self {
        RecordedNames {
            recorded: Mutex::new(names),
            journal: OnceLock::new(),
        }
    }

    /// Records names as records of a kind in `journal` from now on, and takes over those that a
    /// daemon has left there.
    pub fn outlive(&self, journal: &Arc<Journal>, kind: u32, left: &[Record]) {
        let mut recorded = lock(&self.recorded);
        let _ = self.journal.set((journal.clone(), kind));
        for record in left.iter().filter(|record| record.kind == kind) {
            let [number, at] = record.numbers;
            let age = Duration::from_nanos(now().saturating_sub(at));
            let now = Instant::now();
            let entry = RecordedName {
                number,
                at: now.checked_sub(age).unwrap_or(now),
                record: Some(record.id),
            };
            let name = String::from_utf8_lossy(&record.text).into_owned();
            self.insert(&mut recorded, name, entry);
        }
    }

    fn insert(
        &self,
        recorded: &mut LruCache<String, RecordedName>,
        name: String,
        entry: RecordedName,
    ) {
        if let Some((_, displaced)) = recorded.push(name, entry) {
            self.forget(displaced);
        }
    }

    fn forget(&self, entry: RecordedName) {
        if let (Some((journal, _)), Some(record)) = (self.journal.get(), entry.record) {
            journal.remove(record);
        }
    }

    /// Records a name with a number, at present.
    pub fn put(&self, name: &str, number: u64) {
        self.put_at(name, number, Instant::now());
    }

    /// Records a name with a number, at a time.
    pub fn put_at(&self, name: &str, number: u64, at: Instant) {
        let mut recorded = lock(&self.recorded);
        let then = now().saturating_sub(at.elapsed().as_nanos() as u64);
        let journal = self.journal.get();
        let entry = RecordedName {
            number,
            at,
            record: journal
                .and_then(|(journal, kind)| journal.add(*kind, [number, then], name.as_bytes())),
        };
        self.insert(&mut recorded, name.to_string(), entry);
    }

    /// Changes the number of a recorded name, and records that at present. Returns the number.
    pub fn update(&self, name: &str, change: impl FnOnce(u64) -> u64) -> Option<u64> {
        let mut recorded = lock(&self.recorded);
        let entry = recorded.get_mut(name)?;
        entry.number = change(entry.number);
        entry.at = Instant::now();
        if let (Some((journal, _)), Some(record)) = (self.journal.get(), entry.record) {
            let numbers = [entry.number, now()];
            for (at, number) in numbers.into_iter().enumerate() {
                journal.number(record, at).store(number, Ordering::Release);
            }
        }
        Some(entry.number)
    }

    /// Returns the number of a name, and for how long it has been recorded.
    pub fn get(&self, name: &str) -> Option<(u64, Duration)> {
        let recorded = lock(&self.recorded);
        let entry = recorded.peek(name)?;
        Some((entry.number, entry.at.elapsed()))
    }

    /// Removes a name. Returns its number, and for how long it was recorded.
    pub fn remove(&self, name: &str) -> Option<(u64, Duration)> {
        let entry = lock(&self.recorded).pop(name)?;
        self.forget(entry);
        Some((entry.number, entry.at.elapsed()))
    }

    /// Returns the names at and below `above` with their numbers.
    pub fn at_and_below(&self, above: &str) -> Vec<(String, u64)> {
        let recorded = lock(&self.recorded);
        let found = recorded.iter().filter(|(name, _)| is_below(name, above));
        found
            .map(|(name, entry)| (name.clone(), entry.number))
            .collect()
    }

    /// Removes the names at and below `above`.
    pub fn remove_below(&self, above: &str) {
        for (name, _) in self.at_and_below(above) {
            self.remove(&name);
        }
    }
}

/// Returns the time of the clock that outlives the process, in nanoseconds since 1970. The times
/// matter for seconds only, so that the clock of the system suffices.
fn now() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_nanos() as u64
}

/// Returns whether a name is `above`, or below it.
fn is_below(name: &str, above: &str) -> bool {
    let rest = name.strip_prefix(above);
    above.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create_memory;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn the_name_that_was_recorded_first_is_forgotten() {
        let memory = create_memory().unwrap();
        let names = RecordedNames::new(NonZeroUsize::new(2).unwrap());
        let (journal, left) = Journal::open(&memory).unwrap();
        names.outlive(&Arc::new(journal), 3, &left);
        for name in ["a", "b", "a", "c"] {
            names.put(name, 0);
        }
        assert!(names.get("b").is_none() && names.get("a").is_some());
        let (_, left) = Journal::open(&memory).unwrap();
        assert_eq!(left.len(), 2, "records are forgotten, too");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(String, u64),
        Remove(String),
        RemoveBelow(String),
        /// The process is killed.
        Die,
    }

    fn step() -> impl Strategy<Value = Step> {
        let name = prop::sample::select(vec!["", "a", "ab", "a/b", "a/b/c", "b"]);
        let name = name.prop_map(str::to_string);
        prop_oneof![
            (name.clone(), any::<u64>()).prop_map(|(name, number)| Step::Put(name, number)),
            name.clone().prop_map(Step::Remove),
            name.prop_map(Step::RemoveBelow),
            Just(Step::Die),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn names_outlive_the_process(steps in prop::collection::vec(step(), 1..30)) {
            let memory = create_memory().unwrap();
            let mut names = RecordedNames::unbounded();
            let mut model: HashMap<String, u64> = HashMap::new();
            let (journal, left) = Journal::open(&memory).unwrap();
            names.outlive(&Arc::new(journal), 3, &left);
            for step in steps {
                match step {
                    Step::Put(name, number) => {
                        names.put(&name, number);
                        model.insert(name, number);
                    }
                    Step::Remove(name) => {
                        let removed = names.remove(&name).map(|(number, _)| number);
                        prop_assert_eq!(removed, model.remove(&name));
                    }
                    Step::RemoveBelow(above) => {
                        names.remove_below(&above);
                        let below = format!("{above}/");
                        model.retain(|name, _| {
                            !above.is_empty() && *name != above && !name.starts_with(&below)
                        });
                    }
                    Step::Die => {
                        names = RecordedNames::unbounded();
                        let (journal, left) = Journal::open(&memory).unwrap();
                        names.outlive(&Arc::new(journal), 3, &left);
                    }
                }
                let found: HashMap<_, _> = names.at_and_below("").into_iter().collect();
                prop_assert_eq!(&found, &model);
            }
        }
    }
}
