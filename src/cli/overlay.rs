//! `zarrfs overlay`: the changes that a mount with --overlay has kept in a directory: shows them,
//! commits them to the store, or discards them. Also opens the store of such a mount.

use super::{
    CommandFailure, StoreArgs, StoreLocation, StoreRequest, WriteArgs, absolute, location, print,
    stdio,
};
use crate::array::hierarchy::{Hierarchy, REMOVED, UseConsolidated};
use clap::{Args, Subcommand};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, Result as ErrorResult};
use zarrfs_base::json::{self, Value, json};
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::{V1_ATTRS, V1_META, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use zarrfs_store::{
    ChangeKind, Committer, Key, OverlayChange, OverlayDirectory, OverlayStore, Store,
};

/// Maximum number of conflicts that are listed in JSON.
const MAX_LISTED: usize = 1000;

/// Arguments of `overlay`.
#[derive(Args)]
pub struct OverlayArgs {
    #[command(subcommand)]
    action: OverlayAction,
}

#[derive(Subcommand)]
enum OverlayAction {
    /// Show the changed and removed keys
    ///
    /// One line for each array and group, with the number of changed and removed chunks, documents
    /// and other files. A conflict is a key that the store below has changed since it was changed
    /// over it.
    Diff(DiffArgs),
    /// Write the changes to the store, or to a copy of it
    ///
    /// A key is only written if the store has what it had when the key was changed. The other keys
    /// stay in the overlay and are named. In a copy, that is what the store below has. An
    /// interrupted commit is finished by the next one.
    Commit(CommitArgs),
    /// Remove the changes
    ///
    /// Without KEY, DIR is removed, too.
    Discard(DiscardArgs),
}

/// Arguments of `overlay diff`.
#[derive(Args)]
struct DiffArgs {
    /// Directory of the overlay
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// List each key
    #[arg(long)]
    keys: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    below: BelowArgs,
}

/// Arguments of `overlay commit`.
#[derive(Args)]
struct CommitArgs {
    /// Directory of the overlay
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The store, or a copy of it [default: the store below]
    store: Option<StoreLocation>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    below: BelowArgs,
}

/// Arguments of `overlay discard`.
#[derive(Args)]
struct DiscardArgs {
    /// Directory of the overlay
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Discard only the changes at and below these keys
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Confirm that the changes are lost
    #[arg(long)]
    yes: bool,
}

/// Options for the store below.
#[derive(Args)]
struct BelowArgs {
    /// Read the store below from here
    ///
    /// The overlay knows the location without passwords and queries of a URL. Also for a store that
    /// was moved.
    #[arg(long, value_name = "STORE")]
    below: Option<StoreLocation>,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Opens a store with the overlay in a directory, for a mount. A read-only mount creates no
/// overlay.
pub fn open(request: StoreRequest, directory: &Path) -> Result<Hierarchy, CommandFailure> {
    location::check_not_mounted(directory)?;
    let path = absolute(directory);
    match request.location.absolute() {
        StoreLocation::Memory => {
            return Err(CommandFailure::wrong_use(
                "--overlay: a store in memory can be written itself; mount it without",
            ));
        }
        StoreLocation::Path(store) if path.starts_with(&store) || store.starts_with(&path) => {
            return Err(CommandFailure::wrong_use(format!(
                "--overlay {}: the store is in it, or it is in the store; choose another directory",
                path.display()
            )));
        }
        _ => {}
    }
    // records have the versions of documents as they are stored, also in a bucket that is only read
    let lower_args = StoreArgs {
        is_read_only: false,
        // changes are of one snapshot
        keeps_snapshot: true,
        ..request.args.clone()
    };
    let lower_request = StoreRequest {
        args: &lower_args,
        writing: None,
        ..request
    };
    let lower = lower_request.open_layers()?;
    request.hierarchy_of(lower.clone())?;
    let store = recorded(request.location);
    let directory = if request.args.is_read_only {
        OverlayDirectory::open_of(&path, &store)
    } else {
        OverlayDirectory::open_or_create(&path, &store)
    };
    let fsync = request.writing.is_none_or(|writing| !writing.no_fsync);
    let store = directory
        .and_then(|directory| OverlayStore::open(lower, directory, fsync, request.stats.clone()))
        .map_err(|e| failed(e.context("--overlay")))?;
    request.hierarchy_of(Arc::new(store))
}

/// Returns a location as an overlay records it: independent of the working directory, and without
/// secrets.
fn recorded(location: &StoreLocation) -> String {
    let shown = location.absolute().to_string();
    match location {
        StoreLocation::Url(_) => shown.trim_end_matches('/').to_string(),
        _ => shown,
    }
}

fn failed(e: Error) -> CommandFailure {
    if e.kind() == Kind::Invalid {
        CommandFailure::wrong_use(e.to_string())
    } else {
        e.into()
    }
}

/// Runs the verb.
pub fn run(args: &OverlayArgs) -> Result<(), CommandFailure> {
    match &args.action {
        OverlayAction::Diff(args) => diff(args),
        OverlayAction::Commit(args) => commit(args),
        OverlayAction::Discard(args) => discard(args),
    }
}

fn open_directory(path: &Path, locks: bool) -> Result<OverlayDirectory, CommandFailure> {
    location::check_answers(path)?;
    OverlayDirectory::open(&absolute(path), locks).map_err(|e| match e.errno() {
        libc::ENOENT | libc::ENOTDIR => {
            CommandFailure::not_found(format!("{}: no such directory", path.display()))
        }
        _ => failed(e),
    })
}

impl BelowArgs {
    fn location(&self, directory: &OverlayDirectory) -> StoreLocation {
        self.below
            .clone()
            .unwrap_or_else(|| OsString::from(directory.store()).into())
    }

    /// Opens the store below for reading.
    fn open(&self, location: &StoreLocation) -> Result<Arc<dyn Store>, CommandFailure> {
        let request = StoreRequest {
            location,
            args: &self.store_args,
            writing: None,
            stats: &Arc::default(),
        };
        let store = request.open_layers()?;
        request.hierarchy_of(store.clone())?;
        Ok(store)
    }
}

/// The number of changes of a group or array.
#[derive(Default)]
struct NodeChanges {
    /// Changed and removed chunks, documents and other files.
    counts: [[u64; 2]; 3],
    conflicts: u64,
}

/// Words for what [`NodeChanges`] counts.
const COUNTED: [&str; 3] = ["chunk", "document", "file"];

impl NodeChanges {
    /// Returns each count, the word for what was counted, and what was done to it.
    fn counted(&self) -> impl Iterator<Item = (u64, &'static str, &'static str)> {
        let counts = COUNTED.into_iter().zip(self.counts);
        counts.flat_map(|(what, [changed, removed])| {
            [(changed, what, "changed"), (removed, what, "removed")]
        })
    }

    fn text(&self, node: &Key) -> String {
        let mut parts = Vec::new();
        for (count, what, done) in self.counted() {
            match count {
                0 => {}
                1 => parts.push(format!("1 {what} {done}")),
                _ => parts.push(format!("{count} {what}s {done}")),
            }
        }
        if self.conflicts > 0 {
            parts.push(format!("{} in conflict with the store", self.conflicts));
        }
        format!("{node}: {}\n", parts.join(", "))
    }

    fn json(&self, node: &Key) -> Value {
        let mut object = json!({"path": node.to_string(), "conflicts": self.conflicts});
        for (count, what, done) in self.counted() {
            object[format!("{what}s_{done}")] = count.into();
        }
        object
    }
}

fn diff(args: &DiffArgs) -> Result<(), CommandFailure> {
    let directory = open_directory(&args.directory, false)?;
    let location = args.below.location(&directory);
    let lower = args.below.open(&location)?;
    let upper = directory.values()?;
    let shown = directory.store().to_string();
    let stats = Arc::new(Stats::default());
    let merged = Arc::new(OverlayStore::open(
        lower.clone(),
        directory,
        true,
        stats.clone(),
    )?);
    let hierarchies = [merged, lower.clone()].map(|store: Arc<dyn Store>| {
        Hierarchy::new(store, args.below.store_args.v1_order, stats.clone())
    });
    let mut counter = ChangeCounter {
        hierarchies,
        nodes: BTreeMap::new(),
    };
    let mut keys = Vec::new();
    OverlayStore::visit_changes(&upper, &mut |change| {
        let is_conflict = change.is_conflict(lower.as_ref())?;
        if !change.is_prefix() {
            counter.count(&change, is_conflict)?;
        }
        if args.keys && args.json {
            let key = change.key.to_string();
            let state = change.kind.name();
            keys.push(json!({"key": key, "state": state, "conflict": is_conflict}));
        } else if args.keys {
            keys_line(&change, is_conflict)?;
        }
        Ok(())
    })
    .map_err(|e| e.context(args.directory.display()))?;
    let nodes = counter.nodes.iter();
    if args.json {
        let nodes: Vec<Value> = nodes.map(|(node, changes)| changes.json(node)).collect();
        let mut object = json!({"store": shown, "nodes": nodes});
        if args.keys {
            object["keys"] = keys.into();
        }
        return print(json::write(&object) + "\n");
    }
    print(
        nodes
            .map(|(node, changes)| changes.text(node))
            .collect::<String>(),
    )
}

/// Prints the line of a key. It is written at once, since there may be any number of keys.
fn keys_line(change: &OverlayChange, is_conflict: bool) -> ErrorResult<()> {
    let slash = if change.is_prefix() { "/" } else { "" };
    let conflict = if is_conflict { " (conflict)" } else { "" };
    line(&format!(
        "{} {}{slash}{conflict}",
        change.kind.name(),
        change.key
    ))
}

/// Prints a line. The rest of the work does not depend on a reader, which may end early.
fn line(text: &str) -> ErrorResult<()> {
    match writeln!(stdio::output(), "{text}") {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

/// Counts the changes of each group and array.
struct ChangeCounter {
    /// The store with the overlay, and the store below.
    hierarchies: [Hierarchy; 2],
    nodes: BTreeMap<Key, NodeChanges>,
}

impl ChangeCounter {
    fn count(&mut self, change: &OverlayChange, is_conflict: bool) -> ErrorResult<()> {
        let parent = change.key.parent();
        let is_document = rank(&change.key) > 0;
        let array = if is_document {
            None
        } else {
            self.array_above(&parent)?
        };
        let what = match &array {
            Some(_) => 0,
            None if is_document => 1,
            None => 2,
        };
        let changes = self.nodes.entry(array.unwrap_or(parent)).or_default();
        changes.counts[what][usize::from(change.kind == ChangeKind::Removed)] += 1;
        changes.conflicts += u64::from(is_conflict);
        Ok(())
    }

    /// Returns the array at or above a key, in the overlay or, if it was removed there, in the
    /// store below.
    fn array_above(&self, key: &Key) -> ErrorResult<Option<Key>> {
        let mut above = key.clone();
        loop {
            let known = self.nodes.get(&above);
            if known.is_some_and(|changes| changes.counts[0] != [0, 0]) {
                return Ok(Some(above));
            }
            for hierarchy in &self.hierarchies {
                if hierarchy.is_array(&above)? {
                    return Ok(Some(above));
                }
            }
            if above.is_root() {
                return Ok(None);
            }
            above = above.parent();
        }
    }
}

/// Ranks keys as a commit puts them: chunks, attributes, documents that define a group or array,
/// and `.zmetadata`.
fn rank(key: &Key) -> u8 {
    match key.name() {
        ZATTRS | V1_ATTRS | REMOVED => 1,
        ZARRAY | ZGROUP | ZARR_JSON | V1_META => 2,
        ZMETADATA => 3,
        _ => 0,
    }
}

fn is_same_document(_: &Key, a: &[u8], b: &[u8]) -> bool {
    // consolidated metadata spells documents in its own way
    json::parse_object(a).is_ok_and(|a| json::parse_object(b).is_ok_and(|b| a == b))
}

fn commit(args: &CommitArgs) -> Result<(), CommandFailure> {
    let directory = open_directory(&args.directory, true)?;
    let below = args.below.location(&directory);
    let location = args.store.as_ref().unwrap_or(&below);
    let target = open_target(location, &args.below.store_args)?;
    let lower = args.below.open(&below)?;
    let upper = directory.values()?;
    let mut conflicts = Vec::new();
    let mut on_conflict = |key: &Key, why: &str| {
        if !args.json {
            line(&format!("conflict: {key}: {why}"))?;
        } else if conflicts.len() < MAX_LISTED {
            conflicts.push(json!({"key": key.to_string(), "reason": why}));
        }
        Ok(())
    };
    let stores: [&dyn Store; 3] = [&upper, lower.as_ref(), target.as_ref()];
    let report = Committer::new(stores, &rank, &is_same_document, &mut on_conflict).run();
    let report = report.map_err(|e| e.context(location))?;
    let committed = report.committed;
    let committed = if args.json {
        json::write(
            &json!({"store": location.to_string(), "committed": committed,
            "conflicts": report.conflicts, "keys": conflicts}),
        )
    } else {
        let keys = if committed == 1 { "key" } else { "keys" };
        format!("{location}: {committed} {keys} committed")
    };
    print(committed + "\n")?;
    match report.conflicts {
        0 => Ok(()),
        conflicts => {
            let why = "differ from what was changed and stay in the overlay; look at them, or discard them";
            Err(CommandFailure::failed(format!("{location}: {conflicts} keys {why}")).plain())
        }
    }
}

/// Opens the store that gets the changes.
fn open_target(
    location: &StoreLocation,
    args: &StoreArgs,
) -> Result<Arc<dyn Store>, CommandFailure> {
    if *location == StoreLocation::Memory {
        return Err(CommandFailure::wrong_use(
            "memory: its content ends with the command; name another store",
        ));
    }
    let mut args = args.clone();
    let writing = WriteArgs::default();
    // the documents themselves are written
    args.remote.consolidated = UseConsolidated::Never;
    let request = StoreRequest {
        location,
        args: &args,
        writing: Some(&writing),
        stats: &Arc::default(),
    };
    let target = request.open_layers()?;
    target.check_writable(&Key::root()).map_err(|e| {
        CommandFailure::failed(format!(
            "{location}: {e}; name a copy of it: zarrfs overlay commit DIR STORE"
        ))
    })?;
    request.hierarchy_of(target.clone())?;
    Ok(target)
}

fn discard(args: &DiscardArgs) -> Result<(), CommandFailure> {
    let shown = args.directory.display();
    let directory = open_directory(&args.directory, true)?;
    let upper = directory.values()?;
    let keys = args.keys.iter().map(|key| Key::normalize(key));
    let keys: Vec<Key> = keys.collect::<ErrorResult<_>>().map_err(failed)?;
    if !args.yes {
        let what = if keys.is_empty() {
            "all changes"
        } else {
            "the changes of these keys"
        };
        return Err(CommandFailure::wrong_use(format!(
            "{shown}: {what} would be lost; repeat with --yes"
        )));
    }
    let mut dropped = 0;
    for key in &keys {
        let found = OverlayStore::discard_changes(&upper, key).map_err(|e| e.context(key))?;
        if found == 0 {
            return Err(CommandFailure::not_found(format!(
                "{key}: not changed in {shown}"
            )));
        }
        dropped += found;
    }
    if !keys.is_empty() {
        return print(format!("{shown}: {dropped} changes discarded\n"));
    }
    directory.remove()?;
    print(format!("{shown}: discarded\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_recorded_without_secrets() {
        let location = |name: &str| recorded(&OsString::from(name).into());
        assert_eq!(location("https://u:p@h/a/?sig=1"), "https://h/a");
        assert_eq!(location("/nothing/a.zarr"), "/nothing/a.zarr");
        assert_eq!(location("file:///nothing/a%20b"), "/nothing/a b");
    }

    #[test]
    fn documents_are_compared_as_json() {
        let key = Key::root();
        assert!(is_same_document(&key, b"{\"a\": 1}", b"{\n\"a\":1}"));
        assert!(
            !is_same_document(&key, b"{\"a\": 1}", b"{\"a\": 2}")
                && !is_same_document(&key, b"x", b"x")
        );
    }
}
