//! Findings of one directory: of each kind the first ones are told, the rest counted. A million stray files are no million
//! lines. It knows nothing of what is found.

use super::{Event, Finding, FindingKind};
use crate::store::Key;
use std::collections::BTreeMap;

/// Findings of one kind that are told one by one.
const TOLD: u64 = 20;

/// The findings of one directory so far.
pub(super) struct Tally {
    directory: Key,
    counts: BTreeMap<FindingKind, u64>,
}

impl Tally {
    /// None yet.
    pub fn new(directory: &Key) -> Self {
        Tally { directory: directory.clone(), counts: BTreeMap::new() }
    }

    /// Counts a finding, and tells it if it is one of the first.
    pub fn add(&mut self, finding: Finding, tell: &mut dyn FnMut(Event)) {
        let count = self.counts.entry(finding.fault).or_default();
        *count += 1;
        if *count <= TOLD {
            tell(Event::Found(finding));
        }
    }

    /// Tells how many were not told.
    pub fn end(self, tell: &mut dyn FnMut(Event)) {
        for (fault, count) in self.counts.into_iter().filter(|(_, count)| *count > TOLD) {
            let what = format!("{} more like the {TOLD} above", count - TOLD);
            tell(Event::Found(Finding::new(fault, &self.directory, what)));
        }
    }
}
