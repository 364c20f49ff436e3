//! Bounds the findings of one directory: the first ones of each kind are reported, the others only
//! counted, so that a million stray files do not print a million lines.

use super::{Event, Finding, FindingKind};
use std::collections::BTreeMap;
use zarrfs_store::Key;

/// Maximum number of findings of one kind that are reported one by one.
const REPORTED: u64 = 20;

/// The number of findings of each kind in a directory.
pub(super) struct Tally {
    directory: Key,
    counts: BTreeMap<FindingKind, u64>,
}

impl Tally {
    /// Returns an empty tally.
    pub fn new(directory: &Key) -> Self {
        Tally {
            directory: directory.clone(),
            counts: BTreeMap::new(),
        }
    }

    /// Counts a finding and reports it if it is one of the first.
    pub fn add(&mut self, finding: Finding, tell: &mut dyn FnMut(Event)) {
        let count = self.counts.entry(finding.fault).or_default();
        *count += 1;
        if *count <= REPORTED {
            tell(Event::Found(finding));
        }
    }

    /// Reports how many findings were only counted.
    pub fn end(self, tell: &mut dyn FnMut(Event)) {
        for (fault, count) in self
            .counts
            .into_iter()
            .filter(|(_, count)| *count > REPORTED)
        {
            let what = format!("{} more like the {REPORTED} above", count - REPORTED);
            tell(Event::Found(Finding::new(fault, &self.directory, what)));
        }
    }
}
