//! `zarrfs cat`: the flat bytes of an array or of a part of it, without FUSE, perhaps as a file of
//! another format; or a file of a layout.

use super::flat::{self, Flat};
use super::header::{HeaderSource, before_values, parse_box};
use super::header_options::LayoutArgs;
use super::{
    CommandFailure, CommandResult, ReadArgs, StoreArgs, StoreLocation, StoreRequest, size, stdio,
};
use crate::array::hierarchy::Hierarchy;
use crate::cache::Cache;
use crate::fs::tree::{ROOT_INODE, Tree};
use crate::fs::{Fs, Options};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::io::{BufWriter, Write};
use std::iter;
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext};
use zarrfs_export::Format;
use zarrfs_format::fill_value::FillMeaning;

/// Number of bytes read and written at a time.
const STEP: u64 = 4 << 20;

/// Arguments of `cat`.
#[derive(Args)]
pub struct CatArgs {
    /// Path of the array, in or after the path of the store
    #[arg(value_name = "STORE/ARRAY")]
    path: StoreLocation,
    /// Path of a file of --layout, when the store is a group
    #[arg(value_name = "NAME", conflicts_with_all = ["part", "format"])]
    name: Option<String>,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Begin at byte N
    #[arg(long, value_name = "N", default_value = "0", value_parser = size::parse)]
    offset: u64,
    /// Print N bytes [default: all that follow]
    #[arg(long, value_name = "N", value_parser = size::parse)]
    length: Option<u64>,
    /// Print this part of the array (0:10,-5:,3)
    ///
    /// start:stop, : or an index for each dimension, as NumPy counts them: negative ones from the
    /// end. An index leaves its dimension out, and dimensions that are not named are whole.
    #[arg(long = "box", value_name = "RANGES", allow_hyphen_values = true,
        conflicts_with_all = ["offset", "length"])]
    part: Option<String>,
    /// Print a file of this format: npy, nii, tif, txt, png
    ///
    /// The file has the coordinates of the items that are printed.
    #[arg(long, value_name = "FORMAT", value_parser = formats(), hide_possible_values = true,
        conflicts_with_all = ["offset", "length"])]
    format: Option<Format>,
    #[command(flatten)]
    reading: ReadArgs,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Parses a value of `--format`: a format of files that hold values.
fn formats() -> impl TypedValueParser<Value = Format> {
    let holding = Format::ALL
        .into_iter()
        .filter(|format| format.holds_flat() || format.reads_values() || format.is_image());
    PossibleValuesParser::new(holding.map(Format::id))
        .try_map(|word| Format::of_id(&word).ok_or("no such format"))
}

/// Runs the verb.
pub fn run(args: &CatArgs) -> CommandResult {
    let stats = Arc::default();
    // an array's directory is a store of one array
    let hierarchy = StoreRequest::reading(&args.path, &args.store_args, &stats).hierarchy()?;
    let cache = args.reading.memory.cache(stats.clone());
    let options = args.reading.options(true);
    if args.name.is_some() || !args.layout.rules().is_empty() {
        return print_laid_out(args, hierarchy, cache, options);
    }
    let Flat { fs, handle, array } =
        flat::open(&args.path, hierarchy, cache, stats.clone(), options)?;
    let part = parse_box(args.part.as_deref(), &args.path, &array)?;
    let item = array.metadata().dtype.size() as u64;
    let mut header = Vec::new();
    if let Some(format) = args.format {
        let source = HeaderSource {
            path: &args.path,
            store_args: &args.store_args,
            fill_meaning: FillMeaning::default(),
            part: part.clone(),
        };
        let cache = Arc::new(args.reading.memory.cache(stats.clone()));
        header = before_values(&source.header(&array, format, &cache, &stats)?);
    }
    let end = args.length.map_or(array.size(), |n| {
        args.offset.saturating_add(n).min(array.size())
    });
    let printed = match (&part, args.format) {
        (_, Some(format)) if !format.holds_flat() => print(&fs, handle, &header, iter::empty()),
        (Some(part), _) => print(&fs, handle, &header, part.runs(item)),
        (None, _) => print(&fs, handle, &header, iter::once(args.offset..end)),
    };
    printed.map_err(|e| e.context(&args.path).into())
}

/// Prints a file of a layout.
fn print_laid_out(
    args: &CatArgs,
    hierarchy: Hierarchy,
    cache: Cache,
    options: Options,
) -> CommandResult {
    let rules = args.layout.rules();
    let (Some(name), false) = (&args.name, rules.is_empty()) else {
        let why = "the name of a file needs --layout or --layout-file, and they need a name";
        return Err(CommandFailure::wrong_use(why.to_string()));
    };
    let cache = Arc::new(cache);
    let tree = Tree::new(hierarchy, cache.clone()).with_layout(rules);
    let fs = Fs::new(tree.context(&args.path)?, cache, Arc::default(), options)?;
    let mut inode = ROOT_INODE;
    let mut size = 0;
    for part in name.split('/').filter(|part| !part.is_empty()) {
        let found = fs.lookup(inode, part);
        let found = found.context(format!("{}: {name:?}", args.path))?;
        (inode, size) = (found.inode, found.size);
    }
    let handle = fs.open(inode, false, false).context(name)?.handle;
    let end = args
        .length
        .map_or(size, |n| args.offset.saturating_add(n).min(size));
    let printed = print(&fs, handle, &[], iter::once(args.offset..end));
    printed.map_err(|e| e.context(format!("{}: {name:?}", args.path)).into())
}

/// Prints `header` and these ranges of the flat bytes. A reader that has ended, such as `head`, is
/// no failure.
fn print(
    fs: &Fs,
    handle: u64,
    header: &[u8],
    ranges: impl Iterator<Item = Range<u64>>,
) -> Result<(), Error> {
    let mut out = BufWriter::with_capacity(STEP as usize, stdio::output());
    let mut written = out.write_all(header);
    let mut bytes = Vec::new();
    'all: for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let len = STEP.min(range.end - at) as usize;
            if !fs.read_cached(handle, at, len, &mut bytes)? {
                fs.read(handle, at, len, &mut bytes)?;
            }
            if bytes.is_empty() {
                return Err(Error::stale().context("became shorter"));
            }
            at += bytes.len() as u64;
            written = written.and_then(|()| out.write_all(&bytes));
            if written.is_err() {
                break 'all;
            }
        }
    }
    Ok(stdio::unless_ended(written.and_then(|()| out.flush()))?)
}
