//! A mount whose store is open: all that can fail before anything is mounted. This module must not
//! mount.

use super::held::Held;
use super::plan::{MountPlan, inherit, own_paths};
use super::signals::{LOG_LEVEL, register};
use super::{HOLDER, OUTLIVES, ServedArgs};
use crate::array::hierarchy::Hierarchy;
use crate::cli::child_process::PassedSignals;
use crate::cli::location::{StoreRequest, StoreUsage, check_not_swapped};
use crate::cli::mountpoint::{self, MadeDirectories};
use crate::cli::nesting::{self, MountSite, OwnPath};
use crate::cli::sandbox::{MountNeeds, Sandbox};
use crate::cli::stats::listen::StatisticsListener;
use crate::cli::{
    CommandFailure, CommandResult, absolute, logger, overlay, version, warn_unlisted,
};
use crate::fs::tree::Audience;
use crate::fs::{Fs, Options};
use crate::fuse::Mountpoint;
use signal_hook::iterator::Signals;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrfs_base::error::ErrorContext;
use zarrfs_base::memory;
use zarrfs_base::spill_file::{SpillFile, SpillSpace};
use zarrfs_base::stats::Stats;
use zarrfs_sandbox::PathAccess;
use zarrfs_store::{Store, StoreExt};

/// A mount that can be made.
pub struct OpenedMount<'a> {
    pub plan: MountPlan<'a>,
    /// The paths that the daemon uses, which the mount must not hide.
    pub own: Vec<OwnPath>,
    /// The mount of another program, or of a former daemon.
    pub inherited: Option<Mountpoint>,
    /// The connection to the process that holds the mount.
    pub held: Option<Held>,
    /// Whether this daemon has taken the place of another one.
    pub is_successor: bool,
    /// The path of the mountpoint, without links.
    pub path: PathBuf,
    pub listener: Option<StatisticsListener>,
    pub store: Arc<dyn Store>,
    pub fs: Arc<Fs>,
    /// Whether the store is only read, or the overlay if there is one.
    pub read_only: bool,
    pub needs: MountNeeds<'a>,
    pub sandbox: Sandbox,
    pub signals: Signals,
    /// Dropping this removes the mountpoint, after the mount has ended.
    pub made: MadeDirectories,
}

impl<'a> OpenedMount<'a> {
    /// Checks a plan, starts the log, and opens the store. A mount that is `held` may be there.
    pub fn new(plan: MountPlan<'a>, mut held: Option<Held>) -> CommandResult<Self> {
        let args = plan.args;
        let taken = held.as_mut().and_then(|held| held.taken.take());
        let (inherited, why) = match taken {
            Some((mountpoint, why)) => (Some(mountpoint), Some(why)),
            None => (inherit(&plan)?, None),
        };
        let path = inherited
            .as_ref()
            .map_or_else(|| absolute(plan.path), |mount| mount.path().to_path_buf());
        let site = match &inherited {
            Some(mountpoint) => MountSite::of(mountpoint)?,
            None => {
                // an inherited mount does not answer yet, and the store must not lie in it
                args.store.check_answers()?;
                MountSite::before(&path)
            }
        };
        let own = own_paths(args, inherited.is_some());
        nesting::check(&own, &site)?;
        // only now no directory is read that may hang
        if inherited.is_none() && !args.stores {
            check_not_swapped(&args.store, plan.path)?;
        }
        args.log.start(&path)?;
        raise_file_limit();
        args.reading.memory.set_bound();
        let stats = Arc::default();
        let listener = args.listen.as_ref().map(StatisticsListener::bind);
        let listener = listener.transpose()?;
        let hierarchy = open_hierarchy(args, &path, why.is_some(), &stats)?;
        warn_unlisted(&hierarchy, &args.store);
        let read_only = args.read_only || !hierarchy.store().is_writable();
        let signals = register()?;
        if why.is_some() {
            PassedSignals::take_blocked();
        }
        let made = match &mut held {
            Some(held) => std::mem::take(&mut held.made),
            None if plan.makes_mountpoint => mountpoint::make(plan.path)?,
            None => MadeDirectories::default(),
        };
        let store = hierarchy.shared_store();
        let spill_directory = args.reading.spill_directory();
        let spill = held
            .as_mut()
            .filter(|_| !read_only)
            .and_then(|held| held.spill_file(&spill_directory));
        let fs = file_system(args, hierarchy, read_only, stats, spill)?;
        set_facts(&fs, &plan);
        if held.is_some() {
            let holder = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
            fs.facts().set(OUTLIVES, "yes", Audience::Everyone);
            fs.facts()
                .set(HOLDER, holder.to_string(), Audience::Everyone);
        }
        if let Some(why) = &why {
            log::warn!("{why}: this one serves {} now", path.display());
        }
        let needs = needs(args, &made, read_only);
        let sandbox = args.sandbox.prepare(&needs)?;
        Ok(OpenedMount {
            plan,
            own,
            inherited,
            held,
            is_successor: why.is_some(),
            path,
            listener,
            store,
            fs,
            read_only,
            needs,
            sandbox,
            signals,
            made,
        })
    }
}

/// Opens the store with the options of the mount. The path of the `mountpoint` has no links.
fn open_hierarchy(
    args: &ServedArgs,
    mountpoint: &Path,
    is_successor: bool,
    stats: &Arc<Stats>,
) -> CommandResult<Hierarchy> {
    let mut store_args = args.store_args.clone();
    store_args.usage = StoreUsage {
        is_read_only: args.read_only,
        holds_stores: args.stores,
        shows_history: args.history,
        mountpoint: Some(mountpoint.to_path_buf()),
        is_successor,
        spill: Some(SpillSpace::new(args.reading.spill_options())),
        ..StoreUsage::default()
    };
    let request = StoreRequest::reading(&args.store, &store_args, stats).for_writing(&args.writing);
    let hierarchy = match &args.overlay {
        Some(directory) => overlay::open(request, directory)?,
        None => request.hierarchy()?,
    };
    memory::end_opening();
    let compressor = args.compressor.as_ref();
    Ok(hierarchy.with_compressor(compressor.and_then(|compressor| compressor.0.clone())))
}

/// Creates the file system with the options of the mount. Chunks that wait for their shards are
/// spilled into a file that may be given.
fn file_system(
    args: &ServedArgs,
    hierarchy: Hierarchy,
    read_only: bool,
    stats: Arc<Stats>,
    spill: Option<File>,
) -> CommandResult<Arc<Fs>> {
    let options = Options {
        resize: args.resize,
        direct_io: args.direct_io,
        ..args.reading.options(read_only)
    };
    let cache = args
        .reading
        .memory
        .cache(stats.clone())
        .dropping_empty(args.writing.drop_empty_chunks);
    let spill = SpillFile::new(options.spill.clone(), spill);
    let cache = Arc::new(cache.spilling(spill));
    memory::register_shrinking(&cache);
    let tree = args.headers.tree(hierarchy, cache.clone());
    let ingest = args.ingest.rules(args.writing.drop_empty_chunks);
    let ingest = ingest.map_err(CommandFailure::wrong_use)?;
    let tree = tree.and_then(|tree| tree.with_ingest(ingest));
    let tree = tree.context(&args.store)?;
    let fs = Arc::new(Fs::new(tree, cache.clone(), stats, options)?);
    if !read_only {
        cache.store_quiet()?;
    }
    if fs.concurrency() > 1 {
        fs.limit_syncs(args.store_args.remote.timeout);
    }
    Ok(fs)
}

/// Sets what the control files show of the program and of its command line.
fn set_facts(fs: &Fs, plan: &MountPlan) {
    let log = &plan.args.log;
    let everyone = Audience::Everyone;
    fs.facts().set("options", plan.options, Audience::Owner);
    fs.facts()
        .set("log", log.destination(plan.foreground), everyone);
    fs.facts()
        .set(LOG_LEVEL, logger::shown(log.level()), everyone);
    fs.facts().set("build", version::build(), everyone);
    fs.facts().set("features", version::features(), everyone);
}

/// Returns what the daemon needs while it serves.
fn needs<'a>(args: &'a ServedArgs, made: &MadeDirectories, read_only: bool) -> MountNeeds<'a> {
    let writing = if read_only {
        PathAccess::Read
    } else {
        PathAccess::Write
    };
    let overlay = args.overlay.iter().map(|path| (path, writing));
    let own = [
        &args.store_args.remote.cache_dir,
        &args.writing.synchronizer,
    ];
    let own = own.into_iter().flatten();
    let own = own.map(|path| (path, PathAccess::Write)).chain(overlay);
    let access = if args.overlay.is_some() {
        PathAccess::Read
    } else {
        writing
    };
    let references = args.store_args.allow_reference.iter();
    let mut places = vec![(args.store.absolute(), access)];
    places.extend(references.map(|location| (location.absolute(), PathAccess::Read)));
    MountNeeds {
        places,
        own: own.map(|(path, access)| (path.as_path(), access)).collect(),
        spill: args.reading.spill_directory(),
        endpoint: args.store_args.remote.endpoint_url.as_deref(),
        made_in: made.parent(),
    }
}

/// Raises the limit of open files: each directory that a user's program holds open takes a
/// descriptor here.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // without the privilege the limit stays
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
