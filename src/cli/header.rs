//! `zarrfs header`: prints a header that lets another program open an array's flat bytes, without
//! FUSE.

use super::flat::no_array;
use super::header_options::FormatArgs;
use super::{
    CommandFailure, CommandResult, MemoryArgs, StoreArgs, StoreLocation, StoreRequest, list_of,
    print,
};
use crate::array::Array;
use crate::array::hierarchy::{Hierarchy, StoredNode};
use crate::cache::Cache;
use crate::export::CachedHierarchy;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext};
use zarrfs_base::json::{self, json};
use zarrfs_base::stats::Stats;
use zarrfs_export::{
    ArrayBox, Composite, Described, Format, GroupFormat, HierarchyNode, HierarchyReader,
    PartContent,
};
use zarrfs_format::fill_value::FillMeaning;
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
    /// the values, and for png an image of the whole array. The list shows each file under the name
    /// that it has in a mount.
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
pub fn run(args: &HeaderArgs) -> CommandResult {
    let shown = &args.path;
    let stats = Arc::default();
    // the directory of an array is a store of one array, but its coordinates are beside it
    let alone = StoreRequest::reading(&args.path, &args.store_args, &stats).hierarchy()?;
    let alone = args.files.hierarchy(alone);
    let place = alone.find(&Key::root()).context(shown)?;
    let cache = Arc::new(args.memory.cache(stats.clone()));
    match (place, args.format) {
        (Some(StoredNode::Damaged(e)), _) => Err(e.context(shown).into()),
        (Some(StoredNode::Array(_)), Some(Asked::Group(format))) if !format.shows_array() => {
            let id = format.id();
            Err(CommandFailure::wrong_use(format!(
                "{shown}: an array; {id} is for groups"
            )))
        }
        (Some(StoredNode::Array(array)), asked @ (None | Some(Asked::Array(_)))) => {
            array.readable().context(shown)?;
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
        (_, Some(Asked::Array(_))) => Err(no_array(shown)),
        _ if args.part.is_some() => {
            let why = "--box is for arrays, and their formats";
            Err(CommandFailure::wrong_use(format!("{shown}: {why}")))
        }
        (_, Some(Asked::Group(format))) => {
            let nodes = CachedHierarchy {
                hierarchy: &alone,
                cache: &cache,
                seen: None,
            };
            let file = format.file(&nodes, &Key::root(), &args.files.options());
            print(before_values(&file.context(shown)?))
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
) -> CommandResult<Option<ArrayBox>> {
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
        cache: &Arc<Cache>,
        stats: &Arc<Stats>,
    ) -> CommandResult<Composite> {
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
        if format.is_image() && self.part.is_some() {
            let why = format!("{shown}: --box: {} shows whole arrays", format.name());
            return Err(CommandFailure::wrong_use(why));
        }
        let (hierarchy, key) = self.enclosing(stats)?;
        let nodes = CachedHierarchy {
            hierarchy: &hierarchy,
            cache,
            seen: None,
        };
        let array = self.described_in(&nodes, &key, format)?;
        if format.is_image() {
            return format
                .image(&nodes, &array)
                .map_err(|e| e.context(shown).into());
        }
        format
            .header(&array)
            .map_err(|e| CommandFailure::not_zarr(format!("{shown}: {e}")))
    }

    /// Returns the description for a format, with the coordinates from the store that holds the
    /// array.
    fn described(
        &self,
        format: Format,
        cache: &Arc<Cache>,
        stats: &Arc<Stats>,
    ) -> CommandResult<Described> {
        let (hierarchy, key) = self.enclosing(stats)?;
        let nodes = CachedHierarchy {
            hierarchy: &hierarchy,
            cache,
            seen: None,
        };
        self.described_in(&nodes, &key, format)
    }

    /// Returns the hierarchy of the store that holds the array, and the array's key there.
    fn enclosing(&self, stats: &Arc<Stats>) -> CommandResult<(Hierarchy, Key)> {
        let (store, key) = enclosing(self.path, self.store_args);
        let hierarchy = StoreRequest::reading(&store, self.store_args, stats).hierarchy()?;
        Ok((hierarchy.with_fill_meaning(self.fill_meaning), key))
    }

    fn described_in(
        &self,
        nodes: &CachedHierarchy,
        key: &Key,
        format: Format,
    ) -> CommandResult<Described> {
        let place = nodes.find(key).context(self.path)?;
        let described = match (place, &self.part) {
            (Some(HierarchyNode::Array(array)), None) if format.reads_values() => {
                zarrfs_export::describe_values(nodes, &array, 0..array.size())
            }
            (Some(HierarchyNode::Array(array)), Some(part)) if format.reads_values() => {
                part.describe_values(nodes, &array)
            }
            (Some(HierarchyNode::Array(array)), part) => {
                let whole = zarrfs_export::describe(nodes, &array);
                whole.map(|whole| match part {
                    Some(part) => part.describe(&whole),
                    None => whole,
                })
            }
            (Some(HierarchyNode::Damaged(e)), _) => Err(e),
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
        let Ok(opened) = StoreRequest::reading(&above, args, &Arc::default()).open() else {
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
