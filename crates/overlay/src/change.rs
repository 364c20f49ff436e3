//! The changes of an overlay. The order of their steps follows from the rules in the module above.

use super::OverlayStore;
use super::record::{self, ChangeKind, ChangeRecord, RECORDS};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Instant, SystemTime};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory;
use zarrfs_base::spill_file::unnamed_file;
use zarrfs_store::{
    Entry, EntryKind, FileAttribute, Key, KeyLock, LocalFiles, NameChange, Permissions, Readable,
    Replaces, Space, Stat, Store, StoreExt, ValuePiece, Version, check_prefix, check_rename,
    need_old,
};

/// Number of bytes of a value that are copied at a time.
const STEP: u64 = 1 << 20;

/// What a change finds at its key.
struct BeforeChange {
    record: Option<ChangeRecord>,
    /// The metadata of the visible value.
    value: Option<Stat>,
    /// Whether the upper store has the visible value.
    is_upper: bool,
    /// The version on which the change is laid.
    below: Option<String>,
}

impl Store for OverlayStore {
    fn check_writable(&self, _prefix: &Key) -> Result<()> {
        self.upper.check_writable(&Key::root())
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        self.put_value(key, replaces, &mut |before| {
            self.put_upper_pieces(key, pieces, before, replaces)
        })
    }

    fn sync(&self) -> Result<()> {
        self.upper.sync()
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        match change {
            NameChange::Delete(key) => {
                let _lock = self.changing.exclusive(&[key]);
                self.delete_locked(key)
            }
            NameChange::MakePrefix(key) => self.make_visible_prefix(key).map(|()| true),
            NameChange::RemovePrefix(key) => {
                check_key(key)?;
                let _lock = self.changing.exclusive(&[key]);
                self.delete_prefix_locked(key).map(|()| true)
            }
            NameChange::Rename(from, to) => self.rename_visible(from, to).map(|()| true),
        }
    }
}

impl LocalFiles for OverlayStore {
    fn open_file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.read_visible(key, |store| store.file(key))
    }

    /// Opens a value of the upper store in place. One of the lower store is copied before.
    fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        let _lock = self.changing.exclusive(&[key]);
        let before = self.before_change(key)?;
        match &before.value {
            Some(_) if create && exclusive => return Err(Error::system(libc::EEXIST)),
            None if !create => return Err(Error::not_found("no such file or directory")),
            Some(_) if before.is_upper => {}
            value => {
                let pieces = value
                    .iter()
                    .map(|stat| ValuePiece::Old(0..stat.size))
                    .collect::<Vec<_>>();
                let version = value.as_ref().map(|stat| &stat.version);
                let replaces = version.map_or(Replaces::Nothing, Replaces::Version);
                let mut copy =
                    |before: &BeforeChange| self.put_upper_pieces(key, &pieces, before, replaces);
                let put = self.put_locked(key, replaces, &mut copy)?;
                put.ok_or_else(|| Error::stale().context("the store below changes it meanwhile"))?;
            }
        }
        self.upper.writable_file(key, false, false)
    }

    /// Sets an attribute in the upper store, after it has copied a value of the lower store there.
    /// A modification time of the root has no effect.
    fn set_attribute(&self, key: &Key, attribute: FileAttribute) -> Result<Option<Permissions>> {
        let shown = self.stat(key)?;
        if key.is_root() {
            // the root shows the attributes of the lower store
            let permissions = shown.and_then(|stat| stat.permissions);
            return match attribute {
                FileAttribute::Mode(mode) if permissions.is_some_and(|p| p.mode() != mode) => {
                    let why = "in an overlay the root has the mode of the store";
                    Err(Error::new(Kind::System(libc::EPERM), why))
                }
                _ => Ok(permissions),
            };
        }
        match (&shown, attribute) {
            (None, _) | (_, FileAttribute::NextMode(_)) => {}
            (Some(_), FileAttribute::Mode(mode)) => {
                self.check_mode(key, mode)?;
                self.copy_up(key)?;
            }
            (Some(_), FileAttribute::Modified(_)) => self.copy_up(key)?,
        }
        let set = self.upper.set_file_attribute(key, attribute)?;
        match self.stat(key)? {
            Some(stat) => Ok(stat.permissions),
            None => Ok(set
                .map(Permissions::written_by_owner)
                .filter(|_| self.has_modes)),
        }
    }

    /// Takes no lock: no other program uses the overlay.
    fn lock_key(&self, _key: &Key, _since: Instant) -> Result<KeyLock> {
        Ok(KeyLock::default())
    }

    fn statvfs(&self) -> Result<Option<Space>> {
        self.upper.space()
    }
}

impl OverlayStore {
    fn make_visible_prefix(&self, key: &Key) -> Result<()> {
        check_key(key)?;
        let _lock = self.changing.exclusive(&[key]);
        check_prefix(self.kind(&key.parent())?)?;
        if self.kind(key)?.is_some() {
            return Err(Error::system(libc::EEXIST));
        }
        self.open_parents(key)?;
        self.open_prefix(key, self.record(key)?)
    }

    /// Renames a value or a prefix. What the lower store has is copied; an interrupted rename
    /// leaves copies.
    fn rename_visible(&self, from: &Key, to: &Key) -> Result<()> {
        check_key(from)?;
        check_key(to)?;
        let _lock = self.changing.exclusive(&[from, to]);
        check_prefix(self.kind(&to.parent())?)?;
        let kind = check_rename(from, to, self.kind(from)?, self.kind(to)?)?;
        if from == to {
            return Ok(());
        }
        if kind == EntryKind::Prefix {
            return self.rename_prefix(from, to);
        }
        self.copy_value(from, to)?;
        self.delete_locked(from).map(drop)
    }

    /// Checks that the view will show `mode` if the upper store has it.
    ///
    /// # Errors
    ///
    /// EPERM if it won't: only the owner may write, and no user gets more rights than below.
    fn check_mode(&self, key: &Key, mode: u32) -> Result<()> {
        let set = Stat {
            permissions: Some(Permissions::of_new_file(mode)),
            ..Stat::value(0, SystemTime::UNIX_EPOCH, Version::Count(0))
        };
        let shown = self.shown_above(set, self.lower.stat(key)).permissions;
        if shown.is_none_or(|shown| shown.mode() == mode) {
            return Ok(());
        }
        let why = "in an overlay only the owner may write, and the mode grants no more than below";
        Err(Error::new(Kind::System(libc::EPERM), why).context(key))
    }

    /// Copies an existing value to the upper store, or makes an existing prefix there.
    fn copy_up(&self, key: &Key) -> Result<()> {
        if self.kind(key)? == Some(EntryKind::Value) {
            return self.open_writable(key, false, false).map(drop);
        }
        let _lock = self.changing.exclusive(&[key]);
        self.open_parents(key)?;
        self.open_prefix(key, self.record(key)?)
    }

    /// Returns the value before a change, whose caller has locked the key.
    ///
    /// # Errors
    ///
    /// EISDIR if the key is a prefix.
    fn before_change(&self, key: &Key) -> Result<BeforeChange> {
        check_key(key)?;
        let record = self.record(key)?;
        let kind = record.as_ref().map(|record| record.kind);
        let is_prefix = match kind {
            Some(kind) => kind == ChangeKind::Made,
            None => self.upper_stat(key, EntryKind::Prefix)?.is_some(),
        };
        if is_prefix {
            return Err(Error::system(libc::EISDIR));
        }
        let mut before = BeforeChange {
            below: record.as_ref().and_then(|record| record.below.clone()),
            record,
            value: None,
            is_upper: false,
        };
        if kind == Some(ChangeKind::Removed) {
            return Ok(before);
        }
        if kind == Some(ChangeKind::Changed) {
            before.value = self.upper_stat(key, EntryKind::Value)?;
            before.is_upper = before.value.is_some();
            if before.is_upper {
                return Ok(before);
            }
        }
        let lower = self.lower.stat(key)?;
        // the version of a hidden value counts, too: a commit replaces that value
        if kind.is_none() {
            before.below = record::version_text(lower.as_ref());
        }
        before.value = match lower {
            Some(_) if self.is_hidden(key)? => None,
            Some(stat) if stat.kind == EntryKind::Prefix => {
                return Err(Error::system(libc::EISDIR));
            }
            Some(stat) if stat.kind == EntryKind::Other => {
                return Err(Error::damaged("is not a regular file"));
            }
            stat => stat,
        };
        Ok(before)
    }

    /// Puts the value that `write` puts into the upper store, if the visible one satisfies
    /// `replaces`.
    fn put_value(
        &self,
        key: &Key,
        replaces: Replaces,
        write: &mut dyn FnMut(&BeforeChange) -> Result<Option<Version>>,
    ) -> Result<Option<Version>> {
        let _lock = self.changing.exclusive(&[key]);
        self.put_locked(key, replaces, write)
    }

    fn put_locked(
        &self,
        key: &Key,
        replaces: Replaces,
        write: &mut dyn FnMut(&BeforeChange) -> Result<Option<Version>>,
    ) -> Result<Option<Version>> {
        let before = self.before_change(key)?;
        let is_satisfied = match replaces {
            Replaces::Anything => true,
            Replaces::Nothing => before.value.is_none(),
            Replaces::Version(version) => before
                .value
                .as_ref()
                .is_some_and(|stat| stat.version.may_equal(version)),
        };
        if !is_satisfied {
            return Ok(None);
        }
        if !before.is_upper {
            self.set_aside(key)?;
        }
        self.open_parents(key)?;
        let Some(version) = write(&before)? else {
            return Ok(None);
        };
        if before
            .record
            .as_ref()
            .is_none_or(|record| record.kind != ChangeKind::Changed)
        {
            if before.record.is_some() {
                // after a power loss the record must not say that there is a value which is lost
                self.upper.sync()?;
            }
            record::put(self.upper.as_ref(), key, ChangeKind::Changed, before.below)?;
        }
        Ok(Some(version))
    }

    /// Makes room for a value where a prefix was removed.
    fn set_aside(&self, key: &Key) -> Result<()> {
        if self.upper_stat(key, EntryKind::Prefix)?.is_none()
            || clear_prefix(self.upper.as_ref(), key)?
        {
            return Ok(());
        }
        let aside = record::aside_of(key);
        if self.upper.stat(&aside)?.is_some() {
            // the records of the first removal have the versions of all that was there
            return remove_tree(self.upper.as_ref(), key);
        }
        for prefix in [aside.parent().parent(), aside.parent()] {
            self.make_upper_prefix(&prefix)?;
        }
        self.upper.rename(key, &aside)
    }

    /// Puts pieces into the upper store. Old pieces that are in the lower store are copied to an
    /// unnamed file first, since a value may be larger than memory.
    fn put_upper_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        before: &BeforeChange,
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let needs_old = need_old(pieces);
        let version = match (replaces, &before.value) {
            (Replaces::Version(version), Some(_)) if needs_old => version,
            _ if needs_old => return Ok(None),
            _ => return self.upper.put_pieces(key, pieces, Replaces::Anything),
        };
        if before.is_upper {
            return self.upper.put_pieces(key, pieces, replaces);
        }
        let copies = unnamed_file(&self.scratch)?;
        let mut end = 0;
        let mut whole = Vec::with_capacity(pieces.len());
        for piece in pieces {
            whole.push(match piece {
                ValuePiece::Bytes(bytes) => ValuePiece::Bytes(bytes),
                ValuePiece::File(file, range) => ValuePiece::File(file, range.clone()),
                ValuePiece::Old(range) => {
                    if !copy_range(
                        self.lower.as_ref(),
                        key,
                        range.clone(),
                        version,
                        (&copies, end),
                    )? {
                        return Ok(None);
                    }
                    let start = end;
                    end += range.end - range.start;
                    ValuePiece::File(&copies, start..end)
                }
            });
        }
        self.upper.put_pieces(key, &whole, Replaces::Anything)
    }

    /// Creates the prefixes above `key` in the upper store.
    ///
    /// # Errors
    ///
    /// ENOTDIR if one of them is a value.
    fn open_parents(&self, key: &Key) -> Result<()> {
        for (end, _) in key.as_str().match_indices('/') {
            let above = Key::root().join(&key.as_str()[..end]);
            let record = self.record(&above)?;
            let is_open = record
                .as_ref()
                .is_none_or(|record| record.kind == ChangeKind::Made);
            if is_open && self.upper_stat(&above, EntryKind::Prefix)?.is_some() {
                continue;
            }
            if self
                .stat(&above)?
                .is_some_and(|stat| stat.kind != EntryKind::Prefix)
            {
                return Err(Error::system(libc::ENOTDIR));
            }
            self.open_prefix(&above, record)?;
        }
        Ok(())
    }

    /// Makes `key` a prefix of the view that hides all removed keys below it.
    fn open_prefix(&self, key: &Key, record: Option<ChangeRecord>) -> Result<()> {
        if self
            .upper
            .stat(key)?
            .is_some_and(|stat| stat.kind != EntryKind::Prefix)
        {
            // left by an interrupted change
            self.upper.delete(key)?;
        }
        self.make_upper_prefix(key)?;
        match record {
            Some(record) if record.kind != ChangeKind::Made => {
                record::put(self.upper.as_ref(), key, ChangeKind::Made, record.below)
            }
            _ => Ok(()),
        }
    }

    /// Creates a prefix of the upper store, unless it exists.
    fn make_upper_prefix(&self, key: &Key) -> Result<()> {
        match self.upper.make_prefix(key) {
            Err(e) if e.errno() == libc::EEXIST => Ok(()),
            made => made,
        }
    }

    fn delete_locked(&self, key: &Key) -> Result<bool> {
        let before = self.before_change(key)?;
        if before.value.is_none() {
            return Ok(false);
        }
        if before.below.is_none() && self.lower.stat(key)?.is_none() {
            record::delete(self.upper.as_ref(), key)?;
        } else {
            record::put(self.upper.as_ref(), key, ChangeKind::Removed, before.below)?;
        }
        // the value must not go before the record is durable; if it stays, it does not count
        if before.is_upper
            && let Err(e) = self.upper.sync().and_then(|()| self.upper.delete(key))
        {
            log::debug!("{key}: a removed value stays in the overlay: {e}");
        }
        Ok(true)
    }

    fn delete_prefix_locked(&self, key: &Key) -> Result<()> {
        check_prefix(self.kind(key)?)?;
        self.check_empty(key)?;
        let below = match self.record(key)? {
            Some(record) => record.below,
            None => {
                let below = record::version_text(self.lower.stat(key)?.as_ref());
                if below.is_none() && clear_prefix(self.upper.as_ref(), key)? {
                    return Ok(());
                }
                below
            }
        };
        self.open_parents(key)?;
        // the records below stay: a commit needs the versions of the removed keys
        record::put(self.upper.as_ref(), key, ChangeKind::Removed, below)
    }

    fn rename_prefix(&self, from: &Key, to: &Key) -> Result<()> {
        let exists = self.kind(to)?.is_some();
        if exists {
            self.check_empty(to)?;
        }
        if self.is_new(from)?
            && self.is_new(to)?
            && (!exists || clear_prefix(self.upper.as_ref(), to)?)
        {
            self.open_parents(to)?;
            return self.upper.rename(from, to);
        }
        if !self.lower.lists_all() {
            let why =
                "the store below can't list what is in it, so it can't be renamed in an overlay";
            return Err(Error::unsupported(why));
        }
        self.copy_below(from, to).inspect_err(|_| {
            if let Err(e) = self.remove_below(to) {
                log::warn!("{to}: copies remain from a failed rename: {e}");
            }
        })?;
        self.remove_below(from)
    }

    /// Returns whether the lower store has nothing at a key, and no record tells of it.
    fn is_new(&self, key: &Key) -> Result<bool> {
        Ok(self.record(key)?.is_none() && self.lower.stat(key)?.is_none())
    }

    fn copy_below(&self, from: &Key, to: &Key) -> Result<()> {
        self.open_parents(to)?;
        self.open_prefix(to, self.record(to)?)?;
        for entry in self.list(from)? {
            let entry = entry?;
            let from = from.join(&entry.name);
            let to = to.join(&entry.name);
            match entry.kind {
                EntryKind::Prefix => self.copy_below(&from, &to)?,
                _ => self.copy_value(&from, &to)?,
            }
        }
        Ok(())
    }

    fn remove_below(&self, prefix: &Key) -> Result<()> {
        for entry in self.list(prefix)? {
            let entry = entry?;
            let key = prefix.join(&entry.name);
            match entry.kind {
                EntryKind::Prefix => self.remove_below(&key)?,
                _ => drop(self.delete_locked(&key)?),
            }
        }
        self.delete_prefix_locked(prefix)
    }

    fn copy_value(&self, from: &Key, to: &Key) -> Result<()> {
        let source = self.before_change(from)?;
        let stat = source
            .value
            .ok_or_else(|| Error::not_found("no such key"))?;
        let store = if source.is_upper {
            &self.upper
        } else {
            &self.lower
        };
        let file = match store.file(from)? {
            Some((file, found)) if found.version == stat.version => file,
            _ => {
                let copy = unnamed_file(&self.scratch)?;
                if !copy_range(
                    store.as_ref(),
                    from,
                    0..stat.size,
                    &stat.version,
                    (&copy, 0),
                )? {
                    return Err(Error::stale().context(from));
                }
                copy
            }
        };
        let pieces = [ValuePiece::File(&file, 0..stat.size)];
        let mut put = |_: &BeforeChange| self.upper.put_pieces(to, &pieces, Replaces::Anything);
        self.put_locked(to, Replaces::Anything, &mut put).map(drop)
    }

    fn kind(&self, key: &Key) -> Result<Option<EntryKind>> {
        Ok(self.stat(key)?.map(|stat| stat.kind))
    }

    fn check_empty(&self, prefix: &Key) -> Result<()> {
        match self.list(prefix)?.next() {
            None => Ok(()),
            Some(entry) => entry.and(Err(Error::system(libc::ENOTEMPTY))),
        }
    }

    /// Drops the change of a key, so that the lower store shows there again. Keys that the overlay
    /// made below a prefix stay.
    pub(super) fn drop_change(upper: &dyn Store, key: &Key) -> Result<()> {
        record::delete(upper, key)?;
        match upper.stat(key)?.map(|stat| stat.kind) {
            Some(EntryKind::Prefix) => clear_prefix(upper, key).map(drop),
            Some(_) => upper.delete(key).map(drop),
            None => Ok(()),
        }
    }
}

/// Removes a prefix of the upper store that holds neither records nor prefixes, with values that do
/// not count. Returns `false` if it holds any.
pub(super) fn clear_prefix(upper: &dyn Store, key: &Key) -> Result<bool> {
    let records = record::records_of(key);
    let has_records =
        OverlayStore::names_in(upper, &records)?.is_some_and(|mut names| names.next().is_some());
    let left: Vec<Entry> = upper.list(key)?.take(MAX_LEFT + 1).collect::<Result<_>>()?;
    let is_used = left
        .iter()
        .any(|entry| entry.kind == EntryKind::Prefix && entry.name != RECORDS);
    if has_records || is_used || left.len() > MAX_LEFT {
        return Ok(false);
    }
    for entry in left {
        match entry.kind {
            EntryKind::Prefix => upper.remove_prefix(&records)?,
            _ => drop(upper.delete(&key.join(&entry.name))?),
        }
    }
    match upper.remove_prefix(key) {
        Ok(()) => Ok(true),
        // unfinished files of a process that has died
        Err(e) if [libc::ENOTEMPTY, libc::EEXIST].contains(&e.errno()) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes a prefix with everything below it.
pub(super) fn remove_tree(upper: &dyn Store, prefix: &Key) -> Result<()> {
    for entry in upper.list(prefix)? {
        let entry = entry?;
        let key = prefix.join(&entry.name);
        match entry.kind {
            EntryKind::Prefix => remove_tree(upper, &key)?,
            _ => drop(upper.delete(&key)?),
        }
    }
    upper.remove_prefix(prefix)
}

/// Maximum number of values, left by interrupted changes, that are removed with a prefix.
const MAX_LEFT: usize = 1000;

/// Copies a range of a value to a position of a file. Returns `false` if the value has another
/// version.
fn copy_range(
    store: &dyn Store,
    key: &Key,
    range: Range<u64>,
    version: &Version,
    to: (&File, u64),
) -> Result<bool> {
    let (file, mut position) = to;
    let mut start = range.start;
    let mut part = Vec::new();
    while start < range.end {
        let len = STEP.min(range.end - start);
        memory::reserve(&mut part, len as usize)?;
        let stat = store.get_range(key, start..start + len, &mut part)?;
        if stat.is_none_or(|stat| !stat.version.may_equal(version)) || part.len() as u64 != len {
            return Ok(false);
        }
        file.write_all_at(&part, position)?;
        (start, position) = (start + len, position + len);
    }
    Ok(true)
}

fn check_key(key: &Key) -> Result<()> {
    if key.is_root() {
        Err(Error::system(libc::EISDIR))
    } else if record::is_reserved(key) {
        let why = format!("{RECORDS} is the overlay's own name");
        Err(Error::invalid(why))
    } else {
        Ok(())
    }
}
