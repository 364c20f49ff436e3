//! `zarrfs info`: lists the groups and arrays of a store, with their dimensions and sizes.

mod absent;
mod array_row;
mod codecs;
mod history;

use super::map::{Style, legend};
use super::{
    CommandFailure, CommandResult, MemoryArgs, Reading, StoreArgs, StoreLocation, StoreRequest,
    list_of, print, warn_unlisted,
};
use crate::array::hierarchy::NodeUse;
use array_row::{ArrayLine, ArrayRow};
use clap::Args;
use rustix::termios::tcgetwinsize;
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, one_line};
use zarrfs_base::json::{self, Value, json};
use zarrfs_export::Plate;
use zarrfs_store::{Key, SnapshotHistory, escaped};

/// Number of characters of a line if standard output is no terminal.
const WIDTH: usize = 80;

/// Maximum width in characters of the column of paths, without and with --wide. A longer path moves
/// the columns after it.
const PATH_COLUMN: [usize; 2] = [30, 40];

/// Arguments of `info`.
#[derive(Args)]
pub struct InfoArgs {
    /// Path of the store, or of a group or array in it
    store: StoreLocation,
    /// Show chunks, shards, order, codecs and stored sizes
    ///
    /// Lines are not cut to the width of the terminal.
    #[arg(long)]
    wide: bool,
    /// Print a JSON list of the groups and arrays
    #[arg(long)]
    json: bool,
    /// List the chunks that are not stored, as ranges
    ///
    /// Each array gets a list "absent" of boxes of its grid, with half-open ranges along each
    /// dimension, of chunks and of items: {"chunks":[[0,2]],"items":[[0,20]]}.
    #[arg(long, requires = "json")]
    absent: bool,
    /// Draw the chunk grid of each array
    ///
    /// Shows which chunks are stored, how large they are, and which have an impossible size.
    #[arg(long)]
    map: bool,
    /// Decode each chunk, and draw those that fail
    #[arg(long, requires = "map")]
    deep: bool,
    /// Draw in ASCII, as in a locale without UTF-8
    #[arg(long, requires = "map")]
    ascii: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Number of snapshots of a repository that are shown.
const SNAPSHOTS: usize = 10;

/// A group or array of the listing.
struct InfoRow {
    key: Key,
    content: RowContent,
}

enum RowContent {
    Group(Option<Plate>),
    /// An array, for JSON.
    Array(Box<ArrayRow>),
    /// An array, for a line. It takes a fraction of the memory.
    Line(Box<ArrayLine>),
    Unreadable(Error),
}

/// Runs the verb.
pub fn run(args: &InfoArgs) -> CommandResult {
    args.memory.set_bound();
    let mut store_args = args.store_args.clone();
    store_args.usage.reading = Reading::WholeOnce;
    let hierarchy = StoreRequest::reading(&args.store, &store_args, &Arc::default()).hierarchy()?;
    let used = if args.wide || args.json || args.map {
        NodeUse::Chunks
    } else {
        NodeUse::Description
    };
    let width = width();
    let mut rows = Vec::new();
    let _once = hierarchy.read_once();
    hierarchy.visit_below(&Key::root(), used, &mut |key, node| {
        let content = match node.usable() {
            Ok(Some(array)) => {
                let row = ArrayRow::new(&hierarchy, key, &array, args, width);
                if args.json {
                    RowContent::Array(Box::new(row))
                } else {
                    RowContent::Line(Box::new(row.into_line(args.wide)))
                }
            }
            Err(e) => RowContent::Unreadable(e),
            // a group whose attributes can't be read is shown without them
            Ok(None) => {
                RowContent::Group(hierarchy.attributes(key).ok().and_then(|a| Plate::of(&a)))
            }
        };
        rows.push(InfoRow {
            key: key.clone(),
            content,
        });
        Ok(())
    })?;
    warn_unlisted(&hierarchy, &args.store);
    let style = Style {
        ascii: args.ascii || !is_utf8(),
        deep: args.deep,
    };
    let history = hierarchy
        .store()
        .capabilities()
        .snapshots
        .map(|all| all.history(SNAPSHOTS));
    let history = history.transpose()?.flatten();
    if args.json {
        let objects = as_objects(&rows, hierarchy.lists_nodes(), history.as_ref());
        if args.absent {
            absent::print_with_absent(&rows, &objects)?;
        } else {
            print(list_of(objects.into_iter()))?;
        }
    } else {
        let legend = if args.map {
            legend(style)
        } else {
            String::new()
        };
        let history = history.map_or(String::new(), |history| history::as_lines(&history));
        print(history + &as_tree(&rows, args.wide, width, style) + &legend)?;
    }
    // the listing has the error
    if let Some(e) = rows.iter().find_map(InfoRow::failure) {
        return Err(CommandFailure::from(e.clone()).plain());
    }
    CommandFailure::check_left_out(&hierarchy, &args.store)
}

impl InfoRow {
    /// Returns the reason why the node could not be examined. An array that is damaged or not
    /// supported has been examined, unless it is all that the command should show.
    fn failure(&self) -> Option<&Error> {
        let failure = match &self.content {
            RowContent::Group(_) => None,
            RowContent::Array(row) => row.stored.as_ref().err(),
            RowContent::Line(row) => row.failure.as_ref(),
            RowContent::Unreadable(e) => Some(e),
        };
        failure.filter(|e| self.key.is_root() || matches!(e.kind(), Kind::System(_)))
    }
}

/// Returns the width of the terminal in characters.
fn width() -> usize {
    let terminal = tcgetwinsize(rustix::stdio::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col));
    terminal.filter(|width| *width >= 20).unwrap_or(WIDTH)
}

/// Returns whether the locale's characters are UTF-8.
fn is_utf8() -> bool {
    let variables = ["LC_ALL", "LC_CTYPE", "LANG"];
    let locale = variables
        .iter()
        .filter_map(std::env::var_os)
        .find(|value| !value.is_empty());
    let locale = locale
        .unwrap_or_default()
        .to_string_lossy()
        .to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

impl InfoRow {
    /// Returns the row as JSON. Unless all groups and arrays are known, the root says that it is
    /// incomplete.
    fn json(&self, is_complete: bool) -> Value {
        let mut object = json!({"path": format!("/{}", self.key.as_str())});
        match &self.content {
            RowContent::Group(plate) => {
                object["kind"] = "group".into();
                if let Some(Plate {
                    rows,
                    columns,
                    wells,
                }) = plate
                {
                    object["plate"] = json!({"rows": rows, "columns": columns, "wells": wells});
                }
                if self.key.is_root() && !is_complete {
                    object["complete"] = false.into();
                }
            }
            RowContent::Array(row) => row.describe(&mut object),
            RowContent::Line(_) => {}
            RowContent::Unreadable(e) => {
                object["kind"] = "unreadable".into();
                object["error"] = e.to_string().into();
            }
        }
        object
    }
}

/// Returns the rows as JSON objects, each in one line.
fn as_objects(
    rows: &[InfoRow],
    is_complete: bool,
    history: Option<&SnapshotHistory>,
) -> Vec<String> {
    let mut objects: Vec<Value> = rows.iter().map(|row| row.json(is_complete)).collect();
    if let (Some(root), Some(history)) = (objects.first_mut(), history) {
        root["icechunk"] = history::as_json(history);
    }
    let lines = objects.iter();
    lines
        .map(|object| one_line(json::write_strict(object)))
        .collect()
}

/// Returns one line for each row, and its map. Lines without an error are cut to the terminal's
/// width unless `wide`.
fn as_tree(rows: &[InfoRow], wide: bool, width: usize, style: Style) -> String {
    let labels: Vec<String> = rows.iter().map(|row| label(&row.key)).collect();
    let longest = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0);
    let column = longest.min(PATH_COLUMN[usize::from(wide)]);
    let mut text = String::new();
    for (row, label) in rows.iter().zip(&labels) {
        let (content, error) = match &row.content {
            RowContent::Group(None) => ("group".to_string(), None),
            RowContent::Group(Some(Plate {
                rows: n,
                columns,
                wells,
            })) => {
                let line =
                    format!("group: plate of {n} rows and {columns} columns, wells: {wells}");
                (line, None)
            }
            RowContent::Line(row) => (row.text.clone(), row.error.as_ref()),
            RowContent::Array(_) => (String::new(), None),
            RowContent::Unreadable(e) => (format!("unreadable: {e}"), None),
        };
        let is_whole = wide || error.is_some() || matches!(row.content, RowContent::Unreadable(_));
        let error = error.map_or(String::new(), |e| format!("  unreadable: {e}"));
        let line = format!("{label:<column$}  {}", one_line(content + &error));
        text.push_str(&if is_whole {
            line
        } else {
            cut(line, width, style.ascii)
        });
        text.push('\n');
        if let RowContent::Line(row) = &row.content
            && let Some(map) = &row.map
        {
            text.push_str(&map.draw(style));
        }
    }
    text
}

/// Returns the name of a group or array, indented by its depth.
fn label(key: &Key) -> String {
    if key.is_root() {
        return "/".to_string();
    }
    let depth = key.as_str().matches('/').count() + 1;
    format!("{}{}", "  ".repeat(depth), escaped(key.name()))
}

/// Returns a line of at most `width` characters, with dots at the end of one that was cut.
fn cut(line: String, width: usize, ascii: bool) -> String {
    if line.chars().count() <= width {
        return line;
    }
    let dots = if ascii { "..." } else { "…" };
    line.chars()
        .take(width - dots.chars().count())
        .collect::<String>()
        + dots
}
