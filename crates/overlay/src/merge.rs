//! The names of one level in the merged view.

use super::record::{self, ChangeKind, RECORDS};
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_store::{Entry, EntryKind, Key, Listing, Stat, Store};

/// Streams the names below `prefix`: first the names of the lower store that are neither changed
/// nor removed, then the names of the upper store. It keeps no names, so a name that changes
/// meanwhile may appear twice. `shown` adapts metadata of the lower store.
pub(super) fn merged(
    upper: Arc<dyn Store>,
    prefix: Key,
    lower_names: Option<Listing>,
    upper_names: Option<Listing>,
    shown: impl Fn(Stat) -> Stat + Send + 'static,
) -> Listing {
    let has_changes = upper_names.is_some();
    let of_lower = upper.clone();
    let level = prefix.clone();
    let below = lower_names.into_iter().flatten().filter_map(move |entry| {
        let entry = match entry {
            Ok(entry) => Entry {
                stat: entry.stat.map(&shown),
                ..entry
            },
            Err(e) => return Some(Err(e)),
        };
        let is_shown = if entry.name == RECORDS {
            Ok(false)
        } else if has_changes {
            shows_lower(of_lower.as_ref(), &level.join(&entry.name))
        } else {
            Ok(true)
        };
        is_shown
            .map(|is_shown| is_shown.then_some(entry))
            .transpose()
    });
    let above = upper_names.into_iter().flatten().filter_map(move |entry| {
        let entry = match entry {
            Ok(entry) => Entry {
                stat: None,
                ..entry
            },
            Err(e) => return Some(Err(e)),
        };
        let is_shown = shows_upper(upper.as_ref(), &prefix.join(&entry.name), entry.kind);
        is_shown
            .map(|is_shown| is_shown.then_some(entry))
            .transpose()
    });
    Box::new(below.chain(above))
}

/// Returns whether the lower store provides a key that exists there.
fn shows_lower(upper: &dyn Store, key: &Key) -> Result<bool> {
    let hiding = match record::read(upper, key)? {
        None => EntryKind::Prefix,
        Some(record) if record.kind == ChangeKind::Changed => EntryKind::Value,
        Some(_) => return Ok(false),
    };
    Ok(upper.stat(key)?.is_none_or(|stat| stat.kind != hiding))
}

/// Returns whether an entry of the upper store is part of the merged view.
fn shows_upper(upper: &dyn Store, key: &Key, kind: EntryKind) -> Result<bool> {
    if key.name() == RECORDS || kind == EntryKind::Other {
        return Ok(false);
    }
    let state = record::read(upper, key)?.map(|record| record.kind);
    Ok(match kind {
        EntryKind::Value => state == Some(ChangeKind::Changed),
        _ => matches!(state, None | Some(ChangeKind::Made)),
    })
}
