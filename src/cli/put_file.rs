//! `zarrfs put STORE/NAME FILE`: makes a file of another program a group or array.
//!
//! Invariant: whenever the command ends, also by SIGKILL, the name is what it was before, or the
//! whole new group. In a directory the new one is made under a hidden name, and then takes the name
//! or exchanges it with the old one. A bucket has no exchange: there the document of the group is
//! put last, and the old group is removed first.

use crate::array::hierarchy::{DocumentFormat, Hierarchy};
use crate::cli::cache_options::spill_directory;
use crate::cli::compressor;
use crate::cli::create::document::NewDocument;
use crate::cli::create::in_directory::NewInDirectory;
use crate::cli::create::new_array::NewArray;
use crate::cli::create::place::{self, NewPlace};
use crate::cli::create::{check_format, hierarchy_of, open, stored_format};
use crate::cli::progress::ProgressLine;
use crate::cli::put::{IngestArgs, PutArgs};
use crate::cli::unfinished::{StagedOutput, UnfinishedOutput};
use crate::cli::{CommandFailure, CommandResult, StoreLocation, WriteArgs};
use crate::ingest::{Ingest, IngestLayout, remove_keys};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::lock;
use zarrfs_ingest::{FileFormat, Incoming};
use zarrfs_store::{Key, Store};

/// Maximum number of chunks that are put to a server at the same time.
const CONCURRENT_PUTS: usize = 16;

/// Runs the verb with a file.
pub fn run(args: &PutArgs, path: &Path) -> CommandResult {
    args.memory.set_bound();
    let shown = path.display();
    let file = File::open(path).context(&shown)?;
    if !file.metadata().context(&shown)?.is_file() {
        let why = format!("{shown}: not a regular file; a header is read more than once");
        return Err(CommandFailure::wrong_use(why));
    }
    let incoming = Incoming::open(&file).context(&shown)?;
    let (place, key) = place::of(&args.path, &args.store_args, &args.writing)?;
    let store = match &place {
        NewPlace::Directory(path) if !path.exists() => None,
        NewPlace::Directory(path) => {
            let location = StoreLocation::Path(path.clone());
            Some(open(&location, &args.store_args, &args.writing)?)
        }
        NewPlace::Server(_, store) => Some(store.clone()),
    };
    let stored = match &store {
        Some(store) => stored_format(&hierarchy_of(store), &key, &args.path)?,
        None => None,
    };
    let layout = layout(args, stored, &key)?;
    let scratch = spill_directory();
    let progress = Mutex::new(ProgressLine::start(Some(file.metadata()?.len())));
    let is_remote = matches!(place, NewPlace::Server(..));
    let threads = args.memory.threads();
    let ingest = Ingest {
        file: &file,
        incoming: &incoming,
        ending: ending(path, &incoming),
        layout: &layout,
        scratch: &scratch,
        threads: if is_remote {
            threads.max(CONCURRENT_PUTS)
        } else {
            threads
        },
        progress: &|bytes| lock(&progress).show(bytes),
    };
    let done = match &place {
        NewPlace::Directory(store) => in_directory(args, &ingest, store, &key),
        NewPlace::Server(url, store) => on_server(args, &ingest, url, store, &key),
    };
    lock(&progress).end();
    done
}

/// Returns the end by which a mount with `--ingest` names the file that the group was.
fn ending<'a>(path: &'a Path, incoming: &Incoming) -> &'a str {
    let own = path.extension().and_then(|ending| ending.to_str());
    let fits = |ending: &&str| {
        FileFormat::of_ending(ending).is_some_and(|format| format.may_hold(incoming))
    };
    own.filter(fits).unwrap_or(incoming.format().id())
}

/// Returns the layout for a store whose nodes above `key` have the format `stored`.
fn layout(
    args: &PutArgs,
    stored: Option<DocumentFormat>,
    key: &Key,
) -> CommandResult<IngestLayout> {
    let IngestArgs {
        chunks,
        shards,
        compressor,
        zarr_format,
        force,
    } = &args.ingest;
    // a store that is replaced as a whole may change its format
    let stored = stored.filter(|_| !(key.is_root() && *force));
    check_format(stored, *zarr_format, &args.path)?;
    let default = if shards.is_some() {
        DocumentFormat::V3
    } else {
        DocumentFormat::V2
    };
    let format = stored.or(*zarr_format).unwrap_or(default);
    if format == DocumentFormat::V2 && shards.is_some() {
        let why = format!(
            "--shards: {} is in a store of Zarr v2, which has no shards",
            args.path
        );
        return Err(CommandFailure::wrong_use(why));
    }
    let compressor = match compressor {
        Some(compressor) => compressor.clone(),
        None => compressor::parse("blosc").map_err(CommandFailure::wrong_use)?,
    };
    Ok(IngestLayout {
        format,
        chunks: chunks.clone(),
        shards: shards.clone(),
        compressor: compressor.0,
        drops_empty: args.writing.drop_empty_chunks,
    })
}

fn exists(shown: &StoreLocation) -> CommandFailure {
    CommandFailure::failed(format!("{shown}: exists already; replace it with --force"))
}

/// Makes the group in a directory, under a hidden name that becomes its own.
fn in_directory(args: &PutArgs, ingest: &Ingest, store: &Path, key: &Key) -> CommandResult {
    let shown = &args.path;
    let target = store.join(key.as_str());
    // one sync of the whole replaces one for each chunk: no program sees them before
    let writing = WriteArgs {
        no_fsync: true,
        synchronizer: None,
        ..args.writing.clone()
    };
    if target.symlink_metadata().is_ok() {
        let is_empty = target
            .read_dir()
            .is_ok_and(|mut names| names.next().is_none());
        if !args.ingest.force && !is_empty {
            return Err(exists(shown));
        }
        return replace_in_directory(args, ingest, store, key, &target, &writing);
    }
    let new = NewInDirectory {
        shown,
        store_args: &args.store_args,
        writing: &writing,
        store,
        key,
        document: &group_of(ingest),
    };
    new.create(|staged, _, _| {
        staged.make_above().context(shown)?;
        let made = ingest.store(&staged.hierarchy.shared_store(), staged.key);
        Ok(made.context(shown)?)
    })
}

/// Returns the part of a node's document on which the nodes above it depend.
fn group_of(ingest: &Ingest) -> NewDocument {
    NewDocument {
        text: String::new(),
        size: None,
        format: ingest.layout.format,
        attributes: None,
    }
}

/// Makes the group beside the one that it replaces, and exchanges both.
fn replace_in_directory(
    args: &PutArgs,
    ingest: &Ingest,
    store: &Path,
    key: &Key,
    target: &Path,
    writing: &WriteArgs,
) -> CommandResult {
    let shown = &args.path;
    let location = StoreLocation::Path(store.to_path_buf());
    let hierarchy = hierarchy_of(&open(&location, &args.store_args, writing)?);
    if !key.is_root() {
        hierarchy.check_new_name(key).context(shown)?;
    }
    let staged = StagedOutput::new(target.parent().unwrap_or(store))?;
    let new = staged.path("new");
    std::fs::create_dir(&new)?;
    let made = open(&StoreLocation::Path(new.clone()), &args.store_args, writing)?;
    ingest.store(&made, &Key::root()).context(shown)?;
    staged.finish(|| {
        exchange(&new, target).context(shown)?;
        adopted(&hierarchy, key)
    })?;
    Ok(())
}

/// Exchanges the names of two files or directories at one moment.
fn exchange(new: &Path, target: &Path) -> Result<()> {
    renameat_with(CWD, new, CWD, target, RenameFlags::EXCHANGE).map_err(|e| {
        let e = Error::from(e);
        if [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP].contains(&e.errno()) {
            let why = "its file system can't exchange two names; remove the old one first";
            return Error::new(e.kind(), why);
        }
        e
    })
}

/// Makes the group on a server, its document last.
fn on_server(
    args: &PutArgs,
    ingest: &Ingest,
    url: &StoreLocation,
    store: &Arc<dyn Store>,
    key: &Key,
) -> CommandResult {
    let shown = &args.path;
    let hierarchy = hierarchy_of(store);
    ingest.check(store, key).context(shown)?;
    let document = group_of(ingest);
    let new = NewArray {
        hierarchy: &hierarchy,
        key,
        document: &document,
    };
    let is_free = match new.first_missing() {
        Ok(_) => true,
        Err(e) if e.errno() == libc::EEXIST && args.ingest.force => false,
        Err(e) if e.errno() == libc::EEXIST => return Err(exists(shown)),
        Err(e) => return Err(e.context(shown).into()),
    };
    if !is_free {
        remove_keys(store, key).context(shown)?;
    }
    new.make_above().context(shown)?;
    let url = url.clone();
    let store_args = args.store_args.clone();
    let writing = args.writing.clone();
    let made = key.clone();
    let unfinished = UnfinishedOutput::new(move || {
        // `store` does not know of the chunks that were stored meanwhile
        if let Ok(opened) = open(&url, &store_args, &writing) {
            let _ = remove_keys(&opened, &made);
        }
    })?;
    ingest.store(store, key).context(shown)?;
    let finished = unfinished.finish(|| adopted(&hierarchy, key));
    Ok(finished.context(shown)?)
}

/// Updates the consolidated metadata above a new node.
fn adopted(hierarchy: &Hierarchy, key: &Key) -> Result<()> {
    if !key.is_root() {
        hierarchy.adopt(key)?;
    }
    hierarchy.store().sync()
}
