//! What an overlay changes, and the transfer of its changes to a store.
//!
//! A change is committed only if the store has what it was laid on: the recorded version or, in a
//! copy of the lower store, the same bytes as the lower store has at that version. Values are put
//! under that condition. Each committed change leaves the overlay at once, and a value that is
//! there already counts as committed, so an interrupted commit can be repeated. In its order, the
//! store is valid at every moment for its readers: chunks come before the documents that may need
//! them, the documents of the root last. Removals come at the end, first of documents.

use super::OverlayStore;
use super::change::clear_prefix;
use super::record::{self, ChangeKind, ChangeRecord, RECORDS};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory;
use zarrfs_store::{EntryKind, Key, Replaces, Stat, Store, StoreExt, ValuePiece, get_counted};

/// Number of bytes that are compared at a time.
const STEP: u64 = 1 << 20;

/// Maximum size of a value in bytes whose content is compared by the caller's rule.
const MAX_COMPARED: u64 = 16 << 20;

/// A key that an overlay changes.
pub struct OverlayChange {
    /// The key.
    pub key: Key,
    /// What happened to it.
    pub kind: ChangeKind,
    /// The version text in the record.
    below: Option<String>,
    /// The key in the upper store to which the record belongs.
    place: Key,
}

/// The result of a commit.
#[derive(Debug, Default)]
pub struct CommitReport {
    /// Number of changed or removed values that left the overlay.
    pub committed: u64,
    /// Number of keys that stay, because the store has something else there.
    pub conflicts: u64,
}

/// A function that compares two values of a key whose bytes differ, such as two spellings of a
/// document.
pub type SameContent<'a> = &'a dyn Fn(&Key, &[u8], &[u8]) -> bool;

/// A commit of the changes in `upper` to `target`.
pub struct Committer<'a> {
    upper: &'a dyn Store,
    lower: &'a dyn Store,
    target: &'a dyn Store,
    rank: &'a dyn Fn(&Key) -> u8,
    is_same: SameContent<'a>,
    on_conflict: &'a mut dyn FnMut(&Key, &str) -> Result<()>,
    report: CommitReport,
    /// Changes that the target has, and that leave the overlay once they are durable there.
    unsettled: Vec<OverlayChange>,
}

/// Maximum number of unsettled changes.
const MAX_UNSETTLED: usize = 256;

/// The highest rank of a document.
const MAX_RANK: u8 = 3;

impl OverlayChange {
    /// Returns whether a prefix was removed, or made where one was removed.
    pub fn is_prefix(&self) -> bool {
        self.kind == ChangeKind::Made || self.kind == ChangeKind::Removed && self.replaces_prefix()
    }

    fn replaces_prefix(&self) -> bool {
        self.below == record::version_text(Some(&Stat::prefix()))
    }

    /// Returns whether the lower store no longer has the version on which the change was laid.
    pub fn is_conflict(&self, lower: &dyn Store) -> Result<bool> {
        Ok(record::version_text(lower.stat(&self.key)?.as_ref()) != self.below)
    }
}

impl OverlayStore {
    /// Calls `each` with every change in the upper store. A prefix follows the changes below it.
    /// `each` may drop the change.
    pub fn visit_changes(
        upper: &dyn Store,
        each: &mut dyn FnMut(OverlayChange) -> Result<()>,
    ) -> Result<()> {
        visit(upper, &Key::root(), &Key::root(), &|_| true, each)
    }

    /// Drops the changes at and below `key`, and returns their number. The lower store shows there
    /// again.
    pub fn discard_changes(upper: &dyn Store, key: &Key) -> Result<u64> {
        let mut dropped = 0;
        let mut drop_one = |change: OverlayChange| {
            dropped += 1;
            OverlayStore::drop_change(upper, &change.place)
        };
        for place in [key.clone(), record::aside_of(key)] {
            if is_prefix(upper, &place)? {
                visit(upper, &place, key, &|_| true, &mut drop_one)?;
                clear_empty(upper, &place)?;
            }
        }
        if let Some(change) = change_of(upper, key, key)? {
            drop_one(change)?;
        }
        clear_empty(upper, key)?;
        upper.sync()?;
        Ok(dropped)
    }
}

/// Returns the change of `key`, whose record belongs to `place`.
fn change_of(upper: &dyn Store, place: &Key, key: &Key) -> Result<Option<OverlayChange>> {
    let found = record::read(upper, place)?;
    Ok(found.map(|ChangeRecord { kind, below }| OverlayChange {
        key: key.clone(),
        kind,
        below,
        place: place.clone(),
    }))
}

/// Calls `each` with the changes below `prefix` whose keys satisfy `wanted`. `place` is the prefix
/// in the upper store.
fn visit(
    upper: &dyn Store,
    place: &Key,
    prefix: &Key,
    wanted: &dyn Fn(&Key) -> bool,
    each: &mut dyn FnMut(OverlayChange) -> Result<()>,
) -> Result<()> {
    for name in prefixes_in(upper, place)? {
        let name = name?;
        visit(upper, &place.join(&name), &prefix.join(&name), wanted, each)?;
    }
    let records = record::records_of(place);
    let aside = record::records_of(&records);
    for name in prefixes_in(upper, &aside)? {
        let name = name?;
        visit(upper, &aside.join(&name), &prefix.join(&name), wanted, each)?;
    }
    for entry in OverlayStore::names_in(upper, &records)?
        .into_iter()
        .flatten()
    {
        let name = entry.context(prefix)?.name;
        let key = prefix.join(&name);
        if name != RECORDS
            && wanted(&key)
            && let Some(change) = change_of(upper, &place.join(&name), &key)?
        {
            each(change)?;
        }
    }
    Ok(())
}

/// Streams the names of prefixes below a prefix of the upper store, without the prefix that holds
/// the records.
fn prefixes_in(
    upper: &dyn Store,
    place: &Key,
) -> Result<impl Iterator<Item = Result<String>> + use<>> {
    let names = OverlayStore::names_in(upper, place)?.into_iter().flatten();
    Ok(names.filter_map(|entry| match entry {
        Ok(entry) => {
            (entry.kind == EntryKind::Prefix && entry.name != RECORDS).then_some(Ok(entry.name))
        }
        Err(e) => Some(Err(e)),
    }))
}

fn is_prefix(upper: &dyn Store, key: &Key) -> Result<bool> {
    let stat = upper.stat(key)?;
    Ok(stat.is_some_and(|stat| stat.kind == EntryKind::Prefix))
}

/// Removes prefixes of the upper store, at and below `place`, that hold nothing.
fn clear_empty(upper: &dyn Store, place: &Key) -> Result<()> {
    let aside = record::records_of(&record::records_of(place));
    for prefix in [place, &aside] {
        for name in prefixes_in(upper, prefix)? {
            clear_empty(upper, &prefix.join(&name?))?;
        }
    }
    if is_prefix(upper, &aside)? && upper.list(&aside)?.next().is_none() {
        upper.remove_prefix(&aside)?;
    }
    if !place.is_root() && is_prefix(upper, place)? && !record::exists(upper, place)? {
        clear_prefix(upper, place)?;
    }
    Ok(())
}

/// Whether a change can be put into the target.
enum CommitState {
    /// The target has what the change was laid on.
    Matches,
    /// The target has the change already.
    Done,
    /// The target has something else.
    Differs,
}

impl<'a> Committer<'a> {
    /// Prepares the commit of the changes in `upper`, an overlay of `lower`, to `target`: the same
    /// store, or a copy.
    ///
    /// `rank` is 0 for a chunk, and for a document 1 to 3, in the order in which they are put.
    /// `is_same` compares documents whose bytes differ. `on_conflict` is called with each key that
    /// stays, and the reason.
    pub fn new(
        [upper, lower, target]: [&'a dyn Store; 3],
        rank: &'a dyn Fn(&Key) -> u8,
        is_same: SameContent<'a>,
        on_conflict: &'a mut dyn FnMut(&Key, &str) -> Result<()>,
    ) -> Self {
        let report = CommitReport::default();
        let unsettled = Vec::new();
        Committer {
            upper,
            lower,
            target,
            rank,
            is_same,
            on_conflict,
            report,
            unsettled,
        }
    }

    /// Commits all changes that do not conflict.
    pub fn run(mut self) -> Result<CommitReport> {
        self.visit(&|_| true, &mut |this, change| match change.kind {
            ChangeKind::Made => this.clear_made(&change),
            _ => Ok(()),
        })?;
        for wanted in 0..=MAX_RANK {
            let rank = self.rank;
            self.visit(
                &|key| rank(key) == wanted,
                &mut |this, change| match change.kind {
                    ChangeKind::Changed => this.commit_value(change),
                    _ => Ok(()),
                },
            )?;
        }
        for is_document in [true, false] {
            let rank = self.rank;
            self.visit(
                &|key| (rank(key) > 0) == is_document,
                &mut |this, change| match change.kind {
                    ChangeKind::Changed => Ok(()),
                    ChangeKind::Made => this.commit_made(change),
                    ChangeKind::Removed => this.commit_removal(change),
                },
            )?;
        }
        clear_empty(self.upper, &Key::root())?;
        self.upper.sync()?;
        Ok(self.report)
    }

    fn visit(
        &mut self,
        wanted: &dyn Fn(&Key) -> bool,
        each: &mut dyn FnMut(&mut Self, OverlayChange) -> Result<()>,
    ) -> Result<()> {
        let upper = self.upper;
        visit(upper, &Key::root(), &Key::root(), wanted, &mut |change| {
            let key = change.key.clone();
            each(self, change).context(key)
        })?;
        self.settle_all()
    }

    fn conflict(&mut self, key: &Key, why: &str) -> Result<()> {
        self.report.conflicts += 1;
        (self.on_conflict)(key, why)
    }

    /// Lets a change leave the overlay later, when a power loss can't take it from the target.
    fn settle(&mut self, change: OverlayChange) -> Result<()> {
        self.unsettled.push(change);
        if self.unsettled.len() < MAX_UNSETTLED {
            Ok(())
        } else {
            self.settle_all()
        }
    }

    fn settle_all(&mut self) -> Result<()> {
        if self.unsettled.is_empty() {
            return Ok(());
        }
        self.target.sync()?;
        for change in std::mem::take(&mut self.unsettled) {
            OverlayStore::drop_change(self.upper, &change.place).context(&change.key)?;
            self.report.committed += u64::from(!change.is_prefix());
        }
        Ok(())
    }

    fn commit_value(&mut self, change: OverlayChange) -> Result<()> {
        let key = &change.key.clone();
        let Some(ours) = self
            .upper
            .stat(key)?
            .filter(|stat| stat.kind == EntryKind::Value)
        else {
            // a power loss took the value: the change did not happen
            return OverlayStore::drop_change(self.upper, key);
        };
        let there = match self.target.stat(key)? {
            Some(there) if there.kind == EntryKind::Prefix && self.make_room(&change)? => None,
            there => there,
        };
        match self.state(&change, there.as_ref())? {
            CommitState::Done => return self.settle(change),
            CommitState::Differs => return self.conflict(key, DIFFERS),
            CommitState::Matches => {}
        }
        let (file, _) = self.upper.file(key)?.ok_or_else(Error::stale)?;
        let replaces = there
            .as_ref()
            .map_or(Replaces::Nothing, |there| Replaces::Version(&there.version));
        match self
            .target
            .put_pieces(key, &[ValuePiece::File(&file, 0..ours.size)], replaces)?
        {
            Some(_) => self.settle(change),
            None => self.conflict(key, "the store changes it just now; repeat the command"),
        }
    }

    /// Removes the prefix of the target whose place a value took. Returns `false` if something
    /// there stays.
    fn make_room(&mut self, change: &OverlayChange) -> Result<bool> {
        let upper = self.upper;
        let conflicts = self.report.conflicts;
        visit(
            upper,
            &record::aside_of(&change.place),
            &change.key,
            &|_| true,
            &mut |change| match change.kind {
                ChangeKind::Removed => self.commit_removal(change),
                _ => Ok(()),
            },
        )?;
        let is_clear = self.report.conflicts == conflicts && self.clear_target(&change.key)?;
        Ok(is_clear && self.remove_target_prefix(&change.key)?)
    }

    fn commit_removal(&mut self, change: OverlayChange) -> Result<()> {
        let key = &change.key.clone();
        let there = self.target.stat(key)?;
        match there.as_ref().map(|there| there.kind) {
            None => self.settle(change),
            Some(EntryKind::Prefix) => {
                if self.clear_target(key)? && self.remove_target_prefix(key)? {
                    return self.settle(change);
                }
                Ok(())
            }
            Some(_) => match self.state(&change, there.as_ref())? {
                CommitState::Matches => {
                    self.target.delete(key)?;
                    self.settle(change)
                }
                _ => self.conflict(key, DIFFERS),
            },
        }
    }

    /// Settles a prefix whose content was committed. While changes stay below it, it hides what
    /// they don't belong to.
    fn commit_made(&mut self, change: OverlayChange) -> Result<()> {
        self.settle_all()?;
        let mut is_used = change.below.is_some();
        visit(
            self.upper,
            &change.place,
            &change.key,
            &|_| true,
            &mut |_| {
                is_used = true;
                Ok(())
            },
        )?;
        if is_used { Ok(()) } else { self.settle(change) }
    }

    /// Removes what the prefix replaced, and notes in the record that this was done.
    fn clear_made(&mut self, change: &OverlayChange) -> Result<()> {
        let key = &change.key;
        if change.below.is_none() {
            return Ok(());
        }
        let there = self.target.stat(key)?;
        let is_cleared = match there.as_ref().map(|there| there.kind) {
            None => true,
            Some(EntryKind::Prefix) => {
                // keys with records are removed later
                let conflicts = self.report.conflicts;
                self.clear_target(key)?;
                self.report.conflicts == conflicts
            }
            Some(_) => match self.state(change, there.as_ref())? {
                CommitState::Matches => self.target.delete(key)?,
                _ => false,
            },
        };
        if is_cleared {
            record::put(self.upper, key, ChangeKind::Made, None)
        } else {
            Ok(())
        }
    }

    /// Deletes the values below a prefix of the target that the overlay hides without a record,
    /// because the lower store cannot list. Returns `false` if others stay.
    fn clear_target(&mut self, prefix: &Key) -> Result<bool> {
        let mut is_clear = true;
        for entry in OverlayStore::names_in(self.target, prefix)?
            .into_iter()
            .flatten()
        {
            let entry = entry?;
            let key = prefix.join(&entry.name);
            if entry.kind == EntryKind::Prefix {
                // a value may have its name now
                is_clear &= self.clear_target(&key)? && self.remove_target_prefix(&key)?;
            } else if !has_record(self.upper, &Key::root(), key.as_str())? {
                let is_hidden = !self.lower.lists_all() && self.equals(self.lower, &key)?;
                if is_hidden {
                    self.target.delete(&key)?;
                } else {
                    is_clear = false;
                    self.conflict(
                        &key,
                        "the store has it, and the overlay has removed its directory",
                    )?;
                }
            } else {
                // its own removal has failed, or comes later
                is_clear = false;
            }
        }
        Ok(is_clear)
    }

    /// Removes the empty prefixes at and below `prefix`. Returns `false` if one is not empty.
    fn remove_target_prefix(&mut self, prefix: &Key) -> Result<bool> {
        for entry in OverlayStore::names_in(self.target, prefix)?
            .into_iter()
            .flatten()
        {
            let entry = entry?;
            if entry.kind == EntryKind::Prefix
                && !self.remove_target_prefix(&prefix.join(&entry.name))?
            {
                return Ok(false);
            }
        }
        match self.target.remove_prefix(prefix) {
            Err(e) if e.errno() == libc::ENOENT => Ok(true),
            Err(e) if e.errno() == libc::ENOTEMPTY => {
                self.conflict(prefix, DIFFERS).map(|()| false)
            }
            removed => removed.map(|()| true),
        }
    }

    /// Compares the target with the record of a change.
    fn state(&self, change: &OverlayChange, there: Option<&Stat>) -> Result<CommitState> {
        let found = record::version_text(there);
        // a prefix exists only as long as something is below it, in some stores
        if found == change.below || found.is_none() && change.replaces_prefix() {
            return Ok(CommitState::Matches);
        }
        let is_value = there.is_some_and(|there| there.kind == EntryKind::Value);
        if !is_value {
            return Ok(CommitState::Differs);
        }
        let key = &change.key;
        if change.kind == ChangeKind::Changed && self.equals(self.upper, key)? {
            return Ok(CommitState::Done);
        }
        // a copy of the lower store has other versions, but the same bytes
        let is_same_below = change.below.is_some() && !change.is_conflict(self.lower)?;
        Ok(if is_same_below && self.equals(self.lower, key)? {
            CommitState::Matches
        } else {
            CommitState::Differs
        })
    }

    /// Returns whether `store` and the target have the same value.
    fn equals(&self, store: &dyn Store, key: &Key) -> Result<bool> {
        let (Some(a), Some(b)) = (store.stat(key)?, self.target.stat(key)?) else {
            return Ok(false);
        };
        if [a.kind, b.kind] != [EntryKind::Value; 2] {
            return Ok(false);
        }
        if a.size == b.size && has_same_bytes(store, self.target, key, a.size)? {
            return Ok(true);
        }
        if (self.rank)(key) == 0 || a.size.max(b.size) > MAX_COMPARED {
            return Ok(false);
        }
        let a = get_counted(store, key, MAX_COMPARED)?;
        let b = get_counted(self.target, key, MAX_COMPARED)?;
        Ok(a.zip(b)
            .is_some_and(|(a, b)| (self.is_same)(key, &a.bytes, &b.bytes)))
    }
}

/// Returns whether the key at `path` below the prefix `place` of the upper store has a record,
/// there or aside.
fn has_record(upper: &dyn Store, place: &Key, path: &str) -> Result<bool> {
    let Some((name, rest)) = path.split_once('/') else {
        return record::exists(upper, &place.join(path));
    };
    let below = place.join(name);
    for place in [record::aside_of(&below), below] {
        if upper.stat(&place)?.is_some() && has_record(upper, &place, rest)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The reason of a conflict.
const DIFFERS: &str = "the store has changed it since";

fn has_same_bytes(a: &dyn Store, b: &dyn Store, key: &Key, size: u64) -> Result<bool> {
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    let mut start = 0;
    while start < size {
        let range = start..size.min(start + STEP);
        for (store, part) in [(a, &mut ours), (b, &mut theirs)] {
            memory::reserve(part, STEP as usize)?;
            if store.get_range(key, range.clone(), part)?.is_none() {
                return Ok(false);
            }
        }
        if ours != theirs {
            return Ok(false);
        }
        start = range.end;
    }
    Ok(true)
}
