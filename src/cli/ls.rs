//! `zarrfs ls`: lists the names in a group or array as a mount shows them, without FUSE.

use super::header_options::HeadersArgs;
use super::{
    CommandFailure, CommandResult, Reading, StoreArgs, StoreLocation, StoreRequest, stdio, time,
    warn_unlisted,
};
use crate::array::hierarchy::{MAX_NODES, Prefixes, WalkBounds, too_much};
use crate::cache::Cache;
use crate::fs::tree::{ListedNode, Name, NodeNature, Tree};
use clap::Args;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Result, one_line};
use zarrfs_base::json::{self, Value, json};
use zarrfs_store::{Key, escaped};

/// Maximum number of names that are sorted. A directory with more is printed in the order of the
/// store.
const SORTED: usize = 1 << 16;

/// Number of names whose attributes are requested together.
const TOGETHER: usize = 1024;

/// Memory for decoded chunks, in bytes: the size of a chunk of objects is known once it is decoded.
const CACHE: usize = 64 << 20;

/// Arguments of `ls`.
#[derive(Args)]
pub struct LsArgs {
    /// Path of the store, or of a group or array in it
    #[arg(value_name = "STORE[/PATH]")]
    path: StoreLocation,
    /// Show the size, the stored size and the time (UTC)
    #[arg(short, long)]
    long: bool,
    /// List directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print a JSON list with an object for each name
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    headers: HeadersArgs,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// A name with the attributes to be printed.
struct Line {
    key: Key,
    is_directory: bool,
    known: Option<ListedAttributes>,
}

impl Line {
    /// Returns the line of a name in the directory at `key`.
    fn new(key: &Key, name: &Name, known: Option<ListedAttributes>) -> Self {
        Line {
            key: key.join(&name.name),
            is_directory: name.is_directory,
            known,
        }
    }
}

/// The attributes of a name.
struct ListedAttributes {
    size: u64,
    stored: u64,
    modified: String,
}

/// The output, while it is printed.
struct ListOutput<'a> {
    args: &'a LsArgs,
    out: BufWriter<stdio::Output>,
    /// Number of JSON objects so far.
    objects: u64,
    /// Numbers of characters of the longest size and of the longest stored size so far.
    widths: [usize; 2],
}

/// Runs the verb.
pub fn run(args: &LsArgs) -> CommandResult {
    let stats = Arc::default();
    let mut store_args = args.store_args.clone();
    store_args.usage.reading = if args.recursive {
        Reading::WholeOnce
    } else {
        Reading::Once
    };
    let hierarchy = StoreRequest::reading(&args.path, &store_args, &stats).hierarchy()?;
    warn_unlisted(&hierarchy, &args.path);
    let tree = args
        .headers
        .tree(hierarchy, Arc::new(Cache::new(CACHE, stats)))
        .context(&args.path)?;
    let mut output = ListOutput {
        args,
        out: BufWriter::new(stdio::output()),
        objects: 0,
        widths: [1; 2],
    };
    let done = output.list_all(&tree);
    match done.and_then(|failed| output.out.flush().map(|()| failed)) {
        Err(e) => stdio::ended(Err(e)),
        // with --json, the list has the error
        Ok(Some(e)) => Err(CommandFailure::from(e.context(&args.path)).plain()),
        Ok(None) => CommandFailure::check_left_out(tree.hierarchy(), &args.path),
    }
}

impl ListOutput<'_> {
    /// Prints the directory, with --recursive also those below it. Returns the first directory that
    /// can't be listed, after all others are printed.
    ///
    /// # Errors
    ///
    /// Fails as soon as something can't be printed.
    fn list_all(&mut self, tree: &Tree) -> std::io::Result<Option<Error>> {
        let mut levels = vec![Prefixes::sorted(vec![Key::root()])];
        let mut failed = None;
        let mut first = true;
        let mut bounds = WalkBounds::without_end();
        if self.args.json {
            self.out.write_all(b"[")?;
        }
        while let Some(level) = levels.last_mut() {
            let Some(key) = level.next(tree.hierarchy().store()) else {
                levels.pop();
                continue;
            };
            if self.args.recursive && !self.args.json {
                let blank = if first { "" } else { "\n" };
                writeln!(self.out, "{blank}{key}:")?;
            }
            first = false;
            let mut below = Vec::new();
            let listed = match bounds.admit(&key) {
                Ok(()) => self.list(tree, &key, &mut below)?,
                Err(e) => Some(e),
            };
            if let Some(e) = listed {
                self.print_error(&key, &e)?;
                failed.get_or_insert(e);
            }
            if bounds.is_spent() {
                break;
            }
            if self.args.recursive {
                levels.push(Prefixes::sorted(below));
            }
        }
        if self.args.json {
            self.out
                .write_all(if self.objects > 0 { b"\n]\n" } else { b"]\n" })?;
        }
        Ok(failed)
    }

    /// Prints one directory, and adds the directories in it to `below`. Returns the error of a
    /// listing that is incomplete.
    fn list(
        &mut self,
        tree: &Tree,
        key: &Key,
        below: &mut Vec<Key>,
    ) -> std::io::Result<Option<Error>> {
        let mut names = match tree
            .directory_at(key)
            .and_then(|directory| tree.names(&directory))
        {
            Ok(names) => names,
            Err(e) => return Ok(Some(e)),
        };
        let mut most = SORTED;
        loop {
            let mut failed = None;
            let some = names
                .by_ref()
                .take(most)
                .map_while(|name| name.map_err(|e| failed = Some(e)).ok());
            let mut some: Vec<Name> = some.collect();
            let is_all = some.len() < most;
            // a directory that is too long to be sorted keeps the order of the store
            if is_all && most == SORTED {
                some.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            }
            most = TOGETHER;
            if below.len() > MAX_NODES {
                return Ok(Some(too_much(format!(
                    "{key}: more than {MAX_NODES} directories: left out"
                ))));
            }
            for some in some.chunks(TOGETHER) {
                below.extend(
                    some.iter()
                        .filter(|name| name.is_directory)
                        .map(|name| key.join(&name.name)),
                );
                match self.lines(tree, key, some) {
                    Ok(lines) => self.print(&lines)?,
                    Err(e) => return Ok(Some(e)),
                }
            }
            if is_all {
                return Ok(failed);
            }
        }
    }

    fn lines(&self, tree: &Tree, key: &Key, names: &[Name]) -> Result<Vec<Line>> {
        let asked = self.args.long || self.args.json;
        if !asked {
            let lines = names.iter().map(|name| Line::new(key, name, None));
            return Ok(lines.collect());
        }
        let level = tree.directory(&tree.directory_at(key)?)?;
        let listed = tree.listed(&level, names);
        // a name that was removed meanwhile is left out
        let found = names
            .iter()
            .zip(listed)
            .filter_map(|(name, listed)| Some((name, listed?)));
        Ok(found
            .map(|(name, listed)| Line::new(key, name, known(tree, listed)))
            .collect())
    }

    fn print(&mut self, lines: &[Line]) -> std::io::Result<()> {
        if self.args.json {
            return lines.iter().try_for_each(|line| self.print_object(line));
        }
        for known in lines
            .iter()
            .filter(|line| !line.is_directory)
            .filter_map(|line| line.known.as_ref())
        {
            let [size, stored] = [known.size, known.stored].map(|n| n.to_string().len());
            self.widths = [self.widths[0].max(size), self.widths[1].max(stored)];
        }
        let [sizes, stored] = self.widths;
        for line in lines {
            let name = escaped(line.key.name());
            let slash = if line.is_directory { "/" } else { "" };
            if self.args.long {
                let shown = match &line.known {
                    Some(known) if line.is_directory => {
                        ["-".into(), "-".into(), known.modified.clone()]
                    }
                    Some(known) => [
                        known.size.to_string(),
                        known.stored.to_string(),
                        known.modified.clone(),
                    ],
                    None => ["?".into(), "?".into(), "?".into()],
                };
                write!(
                    self.out,
                    "{:>sizes$} {:>stored$} {:<20} ",
                    shown[0], shown[1], shown[2]
                )?;
            }
            writeln!(self.out, "{name}{slash}")?;
        }
        Ok(())
    }

    fn print_object(&mut self, line: &Line) -> std::io::Result<()> {
        let kind = if line.is_directory {
            "directory"
        } else {
            "file"
        };
        let mut object = json!({"path": format!("/{}", line.key.as_str()), "kind": kind});
        let known = line.known.as_ref();
        if !line.is_directory {
            object["size"] = known.map(|known| known.size).into();
            object["stored_bytes"] = known.map(|known| known.stored).into();
        }
        object["modified"] = known.map(|known| known.modified.clone()).into();
        self.write_object(&object)
    }

    /// Prints, with --json, the reason why a directory is not listed, or not completely.
    fn print_error(&mut self, key: &Key, error: &Error) -> std::io::Result<()> {
        if !self.args.json {
            return Ok(());
        }
        let path = format!("/{}", key.as_str());
        self.write_object(&json!({"path": path, "kind": "directory", "error": error.message()}))
    }

    fn write_object(&mut self, object: &Value) -> std::io::Result<()> {
        let comma = if self.objects > 0 { "," } else { "" };
        self.objects += 1;
        write!(self.out, "{comma}\n{}", one_line(json::write(object)))
    }
}

/// Returns the attributes of a name, or `None` if they can't be read.
fn known(tree: &Tree, listed: ListedNode) -> Option<ListedAttributes> {
    let attributes = listed.attributes;
    let node = listed.node;
    let stored = if let Some((key, name)) = node.chunk() {
        let chunk = tree.chunk(key, name);
        chunk
            .and_then(|(array, chunk)| array.stat_chunk(chunk))
            .ok()?
    } else if node.nature() == NodeNature::Stored {
        tree.hierarchy().store().stat(&node.path()).ok()?
    } else {
        None
    };
    let stored = if node.flat().is_some() {
        // an estimate from a bounded number of chunks
        attributes.blocks * 512
    } else {
        // files that the mount generates take no space in the store
        stored.map_or(0, |stat| stat.size)
    };
    let modified = time::utc(attributes.modified);
    listed.sound.then_some(ListedAttributes {
        size: attributes.size,
        stored,
        modified,
    })
}
