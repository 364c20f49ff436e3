//! `zarrfs pack`: copies a store into a zip archive, value by value, without decoding any.

use super::progress::ProgressLine;
use super::unfinished::{StagedOutput, rename_to_free_name};
use super::{CommandFailure, CommandResult, StoreArgs, StoreLocation, StoreRequest};
use super::{check_listed, location, overlay, print, size};
use crate::array::hierarchy::Hierarchy;
use clap::Args;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{self, json};
use zarrfs_base::memory;
use zarrfs_format::metadata::ZARR_JSON;
use zarrfs_store::{Key, ValueStart};
use zarrfs_zip::ZipWriter;

/// The bound of the memory for names and documents: 550 MiB, enough for the names of three million
/// values in one directory.
const MEMORY: usize = 1 << 30;

/// Arguments of `pack`.
#[derive(Args)]
pub struct PackArgs {
    /// Path of the store, or of a group or array in it
    store: StoreLocation,
    /// Name of the archive: FILE.zip or FILE.ozx
    ///
    /// FILE.ozx is for an image of OME-NGFF 0.5 or later, and states its version.
    #[arg(value_name = "FILE")]
    archive: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    /// Include the changes in a directory of mount --overlay
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Runs the verb.
pub fn run(args: &PackArgs) -> CommandResult {
    let shown = args.archive.display();
    let target = std::path::absolute(&args.archive)?;
    check_target(args, &target)?;
    memory::set_cache_bound(MEMORY);
    let hierarchy = open(args)?;
    let version = if location::is_ome_archive_name(&shown.to_string()) {
        let version = ome_version(&hierarchy).context(&args.store)?;
        Some(version)
    } else {
        None
    };
    check_listed(&hierarchy, &args.store)?;
    let staged = StagedOutput::new(target.parent().unwrap_or(&target))?;
    let new = staged.path("new.zip");
    let mut copy = ArchiveCopy::new(&hierarchy, &new, &staged.path("records")).context(&shown)?;
    let packed = hierarchy
        .visit_values(&mut |key| copy.push(key))
        .and_then(|()| copy.write_pending());
    copy.progress.end();
    packed.context(&args.store)?;
    CommandFailure::check_left_out(&hierarchy, &args.store)?;
    let comment = version.map(|version| copy.comment(&version));
    let count = copy.writer.count();
    let finished = copy.writer.finish(&comment.unwrap_or_default());
    finished.context(&shown)?;
    let bytes = std::fs::metadata(&new)?.len();
    staged.finish(|| {
        if args.force {
            std::fs::rename(&new, &target).context(target.display())
        } else {
            rename_to_free_name(&new, &target)
        }
    })?;
    let [count, bytes] = [size::count(count), size::show(bytes)];
    print(format!("{shown}: {count} values, {bytes}\n"))
}

/// Opens the store with its overlay, if there is one.
fn open(args: &PackArgs) -> CommandResult<Hierarchy> {
    let stats = Arc::default();
    let Some(directory) = &args.overlay else {
        return StoreRequest::reading(&args.store, &args.store_args, &stats).hierarchy();
    };
    let mut store_args = args.store_args.clone();
    store_args.usage.is_read_only = true;
    overlay::open(
        StoreRequest::reading(&args.store, &store_args, &stats),
        directory,
    )
}

/// Checks the name of the archive before anything is read.
fn check_target(args: &PackArgs, target: &Path) -> CommandResult {
    let shown = args.archive.display();
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let why = if !location::is_archive_name(&name) {
        "not the name of an archive; let it end with .zip or .ozx"
    } else if target.is_dir() {
        "a directory; name a file"
    } else if !args.force && target.symlink_metadata().is_ok() {
        "exists already; replace it with --force"
    } else {
        return location::check_not_mounted(target.parent().unwrap_or(target));
    };
    Err(CommandFailure::wrong_use(format!("{shown}: {why}")))
}

/// Returns the version of OME-NGFF that the root of the store states.
fn ome_version(hierarchy: &Hierarchy) -> Result<String> {
    let root = Key::root();
    let attributes = hierarchy.attributes(&root)?;
    let version = attributes.get("ome").and_then(|ome| ome.get("version"));
    match version.and_then(json::text) {
        Some(version) if hierarchy.is_v3(&root)? => Ok(version.to_string()),
        _ => Err(Error::invalid(
            "no image of OME-NGFF 0.5 or later, whose zarr.json has ome.version; write FILE.zip",
        )),
    }
}

/// An archive, and the values that were visited and are not written yet.
struct ArchiveCopy<'a> {
    hierarchy: &'a Hierarchy,
    writer: ZipWriter,
    pending: Vec<Key>,
    /// Maximum number of keys in `pending`.
    together: usize,
    progress: ProgressLine,
    /// Whether a value was written that is no `zarr.json`.
    has_others: bool,
    /// Whether each `zarr.json` precedes all other values.
    is_json_first: bool,
}

impl<'a> ArchiveCopy<'a> {
    fn new(hierarchy: &'a Hierarchy, archive: &Path, records: &Path) -> Result<Self> {
        let archive = File::create_new(archive)?;
        let records = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(records)?;
        let together = ValueStart::together(hierarchy.store());
        Ok(ArchiveCopy {
            hierarchy,
            writer: ZipWriter::new(archive, records),
            pending: Vec::with_capacity(together),
            together,
            progress: ProgressLine::start(None),
            has_others: false,
            is_json_first: true,
        })
    }

    /// Adds a value, and writes those that were added if they are as many as the store answers at a
    /// time.
    fn push(&mut self, key: &Key) -> Result<()> {
        self.pending.push(key.clone());
        if self.pending.len() < self.together {
            return Ok(());
        }
        self.write_pending()
    }

    /// Writes the values that were added, in their order. Keys without a value are chunks that are
    /// uninitialized, or were removed since they were listed.
    fn write_pending(&mut self) -> Result<()> {
        let store = self.hierarchy.store();
        let keys = std::mem::take(&mut self.pending);
        let starts = ValueStart::read_all(store, &keys)?;
        for (key, start) in keys.iter().zip(starts) {
            let Some(start) = start else {
                continue;
            };
            let is_json = key.name() == ZARR_JSON;
            self.is_json_first &= !(is_json && self.has_others);
            self.has_others |= !is_json;
            self.writer.add(store, key, start)?;
            self.progress.show(self.writer.size());
        }
        Ok(())
    }

    /// Returns the comment that RFC-9 of OME-NGFF specifies for an archive.
    fn comment(&self, version: &str) -> Vec<u8> {
        let first = json!({"centralDirectory": {"jsonFirst": self.is_json_first}});
        json::write(&json!({"ome": {"version": version, "zipFile": first}})).into_bytes()
    }
}
