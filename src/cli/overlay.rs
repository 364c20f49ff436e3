//! `zarrfs overlay`: the changes that a mount with --overlay has kept in a directory: shows them,
//! commits them to the store, or discards them. Also opens the store of such a mount.

mod changes;

use super::{
    CommandFailure, CommandResult, StoreArgs, StoreLocation, StoreRequest, WriteArgs, absolute,
    location, print, stdio,
};
use crate::array::hierarchy::{Hierarchy, UseConsolidated};
use changes::{ChangeCounter, rank};
use clap::{Args, Subcommand};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result as ErrorResult};
use zarrfs_base::json::{self, Value, json};
use zarrfs_base::stats::Stats;
use zarrfs_overlay::{Committer, OverlayChange, OverlayDirectory, OverlayStore};
use zarrfs_store::{Key, Store};

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
pub fn open(request: StoreRequest, directory: &Path) -> CommandResult<Hierarchy> {
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
    let mut lower_args = request.args.clone();
    lower_args.usage.is_read_only = false;
    // changes are of one snapshot
    lower_args.usage.keeps_snapshot = true;
    let lower = StoreRequest::reading(request.location, &lower_args, request.stats);
    let lower = lower.open_layers()?;
    request.hierarchy_of(lower.clone())?;
    let store = recorded(request.location);
    let directory = if request.args.usage.is_read_only {
        OverlayDirectory::open_of(&path, &store)
    } else {
        OverlayDirectory::open_or_create(&path, &store)
    };
    let open = |directory: OverlayDirectory| {
        let values = request.written(directory.values()?)?;
        OverlayStore::open(lower, directory, values, request.stats.clone())
    };
    let store = directory
        .and_then(open)
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
pub fn run(args: &OverlayArgs) -> CommandResult {
    match &args.action {
        OverlayAction::Diff(args) => diff(args),
        OverlayAction::Commit(args) => commit(args),
        OverlayAction::Discard(args) => discard(args),
    }
}

fn open_directory(path: &Path, locks: bool) -> CommandResult<OverlayDirectory> {
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
    fn open(&self, location: &StoreLocation) -> CommandResult<Arc<dyn Store>> {
        let stats = Arc::default();
        let request = StoreRequest::reading(location, &self.store_args, &stats);
        let store = request.open_layers()?;
        request.hierarchy_of(store.clone())?;
        Ok(store)
    }
}

fn diff(args: &DiffArgs) -> CommandResult {
    let directory = open_directory(&args.directory, false)?;
    let location = args.below.location(&directory);
    let lower = args.below.open(&location)?;
    let upper = directory.values()?;
    let values = directory.values()?;
    let shown = directory.store().to_string();
    let stats: Arc<Stats> = Arc::default();
    let merged = OverlayStore::open(lower.clone(), directory, values, stats.clone())?;
    let merged = Arc::new(merged);
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
    .context(args.directory.display())?;
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
    Ok(stdio::unless_ended(writeln!(stdio::output(), "{text}"))?)
}

fn is_same_document(_: &Key, a: &[u8], b: &[u8]) -> bool {
    // consolidated metadata spells documents in its own way
    json::parse_object(a).is_ok_and(|a| json::parse_object(b).is_ok_and(|b| a == b))
}

fn commit(args: &CommitArgs) -> CommandResult {
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
    let report = report.context(location)?;
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
fn open_target(location: &StoreLocation, args: &StoreArgs) -> CommandResult<Arc<dyn Store>> {
    if *location == StoreLocation::Memory {
        return Err(CommandFailure::wrong_use(
            "memory: its content ends with the command; name another store",
        ));
    }
    let mut args = args.clone();
    let writing = WriteArgs::default();
    // the documents themselves are written
    args.remote.consolidated = UseConsolidated::Never;
    let stats = Arc::default();
    let request = StoreRequest::reading(location, &args, &stats).for_writing(&writing);
    let target = request.open_layers()?;
    target.check_writable(&Key::root()).map_err(|e| {
        CommandFailure::failed(format!(
            "{location}: {e}; name a copy of it: zarrfs overlay commit DIR STORE"
        ))
    })?;
    request.hierarchy_of(target.clone())?;
    Ok(target)
}

fn discard(args: &DiscardArgs) -> CommandResult {
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
        let found = OverlayStore::discard_changes(&upper, key).context(key)?;
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
