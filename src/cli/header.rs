//! `zarrfs header`: prints a header that lets another program open an array's flat bytes, without
//! FUSE.

use super::header_options::FormatArgs;
use super::{
    CommandFailure, MemoryArgs, StoreArgs, StoreLocation, list_of, location, open_store, print,
};
use crate::array::Array;
use crate::array::hierarchy::FillMeaning;
use crate::cache::Cache;
use crate::export::{self, ArrayBox, Composite, Described, Format, GroupFormat, PartContent};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::sync::Arc;
use zarrfs_base::error::Error;
use zarrfs_base::json::{self, json};
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::{ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA};
use zarrfs_store::{Key, Store};

/// Arguments of `header`.
#[derive(Args)]
pub struct HeaderArgs {
    /// Path of the array, or for nc and h5 of the group
    #[arg(value_name = "STORE/ARRAY")]
    path: StoreLocation,
    /// Print this header [default: list those that fit]
    ///
    /// For npy, nii, tif, nc and h5, the command prints the bytes that precede the values, for txt
    /// the values. The list shows each file under the name that it has in a mount.
    #[arg(long, value_name = "FORMAT", value_parser = formats(), hide_possible_values = true)]
    format: Option<Asked>,
    /// Describe this part of the array (0:10,-5:,3)
    ///
    /// start:stop, : or an index for each dimension, as NumPy counts them. `zarrfs cat --box`
    /// prints the flat bytes of the part. Coordinates are those of its items.
    #[arg(long = "box", value_name = "RANGES", allow_hyphen_values = true)]
    part: Option<String>,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    files: FormatArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// A value of `--format`.
#[derive(Clone, Copy)]
enum Asked {
    Array(Format),
    Group(GroupFormat),
}

/// Parses a value of `--format`.
fn formats() -> impl TypedValueParser<Value = Asked> {
    let words = Format::ALL.into_iter().map(Format::id);
    let parser = PossibleValuesParser::new(words.chain(GroupFormat::ALL.map(GroupFormat::id)));
    parser.try_map(|word| {
        let group = GroupFormat::of_id(&word).map(Asked::Group);
        let asked = Format::of_id(&word).map(Asked::Array).or(group);
        asked.ok_or("no such format")
    })
}

fn ids(formats: impl IntoIterator<Item = Format>) -> String {
    formats
        .into_iter()
        .map(Format::id)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Runs the verb.
pub fn run(args: &HeaderArgs) -> Result<(), CommandFailure> {
    let shown = &args.path;
    let stats = Arc::new(Stats::default());
    // the directory of an array is a store of one array, but its coordinates are beside it
    let alone = open_store(&args.path, &args.store_args, &stats)?;
    let alone = args.files.hierarchy(alone);
    let array = alone.usable_array(&Key::root());
    let array = array.map_err(|e| e.context(shown))?;
    let cache = args.memory.cache(stats.clone());
    match (array, args.format) {
        (Some(_), Some(Asked::Group(format))) if !format.shows_array() => {
            let id = format.id();
            Err(CommandFailure::wrong_use(format!(
                "{shown}: an array; {id} is for groups"
            )))
        }
        (Some(array), asked @ (None | Some(Asked::Array(_)))) => {
            array.readable().map_err(|e| e.context(shown))?;
            let source = HeaderSource {
                path: &args.path,
                store_args: &args.store_args,
                fill_meaning: args.files.fill_meaning(),
                part: parse_box(args.part.as_deref(), &args.path, &array)?,
            };
            match asked {
                Some(Asked::Array(format)) => {
                    let file = source.header(&array, format, &cache, &stats)?;
                    print(before_values(&file))
                }
                _ => {
                    let described = source.described(Format::Readme, &cache, &stats)?;
                    let fitting = Format::ALL
                        .into_iter()
                        .filter(|format| format.fits(&described.metadata));
                    let rows: Vec<HeaderRow> =
                        fitting.map(|format| (format.id(), format.name())).collect();
                    print(list(&rows, args.json))
                }
            }
        }
        (_, Some(Asked::Array(_))) => Err(CommandFailure::not_found(format!(
            "{shown}: a group, not an array; name an array in it: `zarrfs ls {shown}` lists them"
        ))),
        _ if args.part.is_some() => {
            let why = "--box is for arrays, and their formats";
            Err(CommandFailure::wrong_use(format!("{shown}: {why}")))
        }
        (_, Some(Asked::Group(format))) => {
            let file = format.file(&alone, &cache, &Key::root(), &args.files.options());
            print(before_values(&file.map_err(|e| e.context(shown))?))
        }
        (_, None) => {
            let shown = GroupFormat::ALL.into_iter();
            let rows: Vec<HeaderRow> = shown.map(|format| (format.id(), format.name())).collect();
            print(list(&rows, args.json))
        }
    }
}

/// The array, or the part of it, that a header describes.
pub struct HeaderSource<'a> {
    pub path: &'a StoreLocation,
    pub store_args: &'a StoreArgs,
    pub fill_meaning: FillMeaning,
    /// `None` for the whole array.
    pub part: Option<ArrayBox>,
}

/// Parses the value of `--box` for the array at `path`.
pub fn parse_box(
    text: Option<&str>,
    path: &StoreLocation,
    array: &Array,
) -> Result<Option<ArrayBox>, CommandFailure> {
    let shape = &array.metadata().shape;
    let parsed = text.map(|text| ArrayBox::parse(text, shape)).transpose();
    parsed.map_err(|e| {
        let why = format!("{path}: --box: {e}; the shape of the array is {shape:?}");
        CommandFailure::wrong_use(why)
    })
}

impl HeaderSource<'_> {
    /// Returns the file of a format without the flat bytes.
    pub fn header(
        &self,
        array: &Array,
        format: Format,
        cache: &Cache,
        stats: &Arc<Stats>,
    ) -> Result<Composite, CommandFailure> {
        let shown = self.path;
        let of_part = self
            .part
            .as_ref()
            .map(|part| part.metadata(array.metadata()));
        let metadata = of_part.as_ref().unwrap_or(array.metadata());
        if !format.may_fit(metadata) {
            let fitting = Format::ALL
                .into_iter()
                .filter(|format| format.may_fit(metadata));
            let why = if metadata.has_objects() {
                "objects have no flat bytes".to_string()
            } else {
                format!(
                    "{} can't describe an array of this shape and dtype; use {}",
                    format.name(),
                    ids(fitting)
                )
            };
            return Err(CommandFailure::not_zarr(format!("{shown}: {why}")));
        }
        let array = self.described(format, cache, stats)?;
        format
            .header(&array)
            .map_err(|e| CommandFailure::not_zarr(format!("{shown}: {e}")))
    }

    /// Returns the description for a format, with the coordinates from the store that holds the
    /// array.
    fn described(
        &self,
        format: Format,
        cache: &Cache,
        stats: &Arc<Stats>,
    ) -> Result<Described, CommandFailure> {
        let (store, key) = enclosing(self.path, self.store_args);
        let hierarchy =
            open_store(&store, self.store_args, stats)?.with_fill_meaning(self.fill_meaning);
        let array = hierarchy.usable_array(&key);
        let array = array.map_err(|e| e.context(self.path))?;
        let described = match (array, &self.part) {
            (Some(array), None) if format.reads_values() => {
                export::describe_values(&hierarchy, cache, &array, 0..array.size())
            }
            (Some(array), Some(part)) if format.reads_values() => {
                part.describe_values(&hierarchy, cache, &array)
            }
            (Some(array), part) => {
                let whole = export::describe(&hierarchy, cache, &array);
                whole.map(|whole| match part {
                    Some(part) => part.describe(&whole),
                    None => whole,
                })
            }
            _ => Err(Error::not_found("no such array")),
        };
        described.map_err(|e| e.context(self.path).into())
    }
}

/// Returns the store that holds an array, which begins at the topmost group above it, and the
/// array's key there.
fn enclosing(path: &StoreLocation, args: &StoreArgs) -> (StoreLocation, Key) {
    let mut store = path.absolute();
    let mut key = Key::root();
    while let Some((above, name)) = store.split_last() {
        let below = name.join_key(&key);
        // a directory that can't be opened is above the store
        let Ok(opened) = location::open(&above, args, None, &Arc::default()) else {
            break;
        };
        if !holds(opened.as_ref(), &below, &[ZARRAY, ZARR_JSON])
            || !holds(
                opened.as_ref(),
                &Key::root(),
                &[ZARR_JSON, ZGROUP, ZMETADATA],
            )
        {
            break;
        }
        (store, key) = (above, below);
    }
    (store, key)
}

/// Returns whether a store has one of these values at `key`.
fn holds(store: &dyn Store, key: &Key, names: &[&str]) -> bool {
    names
        .iter()
        .any(|name| matches!(store.stat(&key.join(name)), Ok(Some(_))))
}

/// The word for a format, and the name of its file.
type HeaderRow = (&'static str, &'static str);

/// Returns a line for each row, or a JSON list.
fn list(rows: &[HeaderRow], as_json: bool) -> String {
    if !as_json {
        return rows
            .iter()
            .map(|(word, file)| format!("{word:<8}{file}\n"))
            .collect();
    }
    list_of(
        rows.iter()
            .map(|(word, file)| json::write(&json!({"format": word, "file": file}))),
    )
}

/// Returns the bytes before the first value of an array.
pub fn before_values(file: &Composite) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in file.parts() {
        match &part.content {
            PartContent::Bytes(text) => bytes.extend_from_slice(text),
            PartContent::Bands(bands) => bytes.extend_from_slice(bands.text().as_bytes()),
            PartContent::Padding => {
                bytes.resize(bytes.len() + usize::try_from(part.len).unwrap_or(0), 0)
            }
            PartContent::Flat { .. } | PartContent::Values { .. } => break,
        }
    }
    bytes
}
