//! Files of parts of arrays under names that a pattern makes of coordinates, as an archive had them
//! before it became one store: `tas/tas_{time:%Y}.nc = /tas`. A part is a box along leading
//! dimensions, so that each file is the container of the same arrays with other places of the flat
//! bytes. This module knows neither a mount nor how a container is written.

use crate::describe::describe;
use crate::reader::HierarchyReader;
use crate::{Composite, Format, GroupFormat, ItemForm, NetcdfOptions};
use boxed::BoxedHierarchy;
use cut::{AxisCut, IndexRun};
use members::LayoutMembers;
use pattern::{FieldKind, NamePattern, PatternPart};
use std::collections::BTreeSet;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::key::Key;
use zarrfs_base::memory;

mod boxed;
mod cut;
mod members;
mod pattern;
#[cfg(test)]
mod tests;

/// Maximum number of files of a layout.
pub const MAX_PIECES: usize = 1_000_000;

/// What a file of a layout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceFormat {
    /// The arrays in a container of groups.
    Group(GroupFormat),
    /// One array in a container.
    Array(Format),
    /// The flat bytes of one array.
    Raw,
}

/// The ends of names, and what such files are.
const FORMATS: [(&str, PieceFormat); 6] = [
    (".nc", PieceFormat::Group(GroupFormat::Netcdf)),
    (".h5", PieceFormat::Group(GroupFormat::Hdf5)),
    (".nc4", PieceFormat::Group(GroupFormat::Hdf5)),
    (".tif", PieceFormat::Array(Format::Tiff)),
    (".npy", PieceFormat::Array(Format::Npy)),
    (".raw", PieceFormat::Raw),
];

/// A rule of a layout: `PATTERN = PATH`, the names of files and what they hold.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutRule {
    text: String,
    pattern: NamePattern,
    format: PieceFormat,
    targets: Vec<Key>,
}

/// The files of a rule, as the coordinates of a store name them.
#[derive(Debug)]
pub struct LayoutPieces {
    format: PieceFormat,
    members: LayoutMembers,
    /// Whether an array that is cut has strings of any length.
    has_strings: bool,
    /// The arrays of the files of each item of `{var}`; one item if the pattern lacks it.
    variables: Vec<Key>,
    cuts: Vec<AxisCut>,
    /// The paths of all files, side by side.
    paths: String,
    /// Where each path begins, by the number of the file; and the end of the last.
    begins: Vec<u32>,
    /// The numbers of the files in the order of their paths.
    sorted: Vec<u32>,
    _memory: memory::Grant,
}

/// What the size of a file depends on, beside the documents: the array of `{var}` and the number of
/// items of each cut.
pub type PieceClass = (usize, Vec<u64>);

impl LayoutRule {
    /// Parses `PATTERN = PATH`. Several paths of arrays of one group are separated by commas.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) with the reason.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_rule(text).map_err(|e| e.context(format!("layout {:?}", text.trim())))
    }

    fn parse_rule(text: &str) -> Result<Self> {
        let (pattern, targets) = text
            .rsplit_once('=')
            .ok_or_else(|| Error::invalid("has no =; give PATTERN = PATH"))?;
        let pattern = NamePattern::parse(pattern.trim())?;
        let end = pattern.end();
        let found = FORMATS.iter().find(|(known, _)| end.ends_with(known));
        let (_, format) = found.ok_or_else(|| {
            let known: Vec<&str> = FORMATS.iter().map(|(end, _)| *end).collect();
            let why = format!("the pattern ends with none of {}", known.join(", "));
            Error::invalid(why)
        })?;
        let targets = targets.split(',').map(|path| Key::normalize(path.trim()));
        let targets: Vec<Key> = targets.collect::<Result<_>>()?;
        Ok(LayoutRule {
            text: text.trim().to_string(),
            pattern,
            format: *format,
            targets,
        })
    }

    /// Returns the rule as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the directories that the pattern names before its first field, from the top.
    pub fn fixed_directories(&self) -> Vec<Key> {
        let fixed = self.pattern.fixed();
        let ends = fixed.match_indices('/').map(|(at, _)| at);
        ends.map(|end| Key::root().join(&fixed[..end])).collect()
    }

    /// Returns the files of the rule in the hierarchy whose root is at `root`. Reads the
    /// coordinates that the pattern names, and metadata.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) with the reason why the store has no
    /// such files: a coordinate is missing or not monotonic, two files would have one name. An
    /// error of the store; ENOMEM.
    pub fn pieces(&self, hierarchy: &dyn HierarchyReader, root: &Key) -> Result<LayoutPieces> {
        self.find_pieces(hierarchy, root)
            .map_err(|e| e.context(format!("layout {:?}", self.text)))
    }

    fn find_pieces(&self, hierarchy: &dyn HierarchyReader, root: &Key) -> Result<LayoutPieces> {
        let targets = self.targets.iter().map(|target| root.join_key(target));
        let members = LayoutMembers::find(hierarchy, &targets.collect::<Vec<_>>())?;
        let mut cuts = Vec::new();
        for (name, fields) in self.pattern.coordinates() {
            cuts.push(AxisCut::find(hierarchy, &members, name, &fields)?);
        }
        let dimensions: Vec<&str> = cuts.iter().map(|cut| cut.dimension.as_str()).collect();
        let has_variables = self.pattern.has_variables();
        let variables = if has_variables {
            members.variables(&dimensions)
        } else {
            vec![members.group().clone()]
        };
        if variables.is_empty() {
            let dimensions = dimensions.join(", ");
            let why = format!(
                "no array of {} has the dimensions {dimensions}",
                members.group()
            );
            return Err(Error::invalid(why));
        }
        if !has_variables && !matches!(self.format, PieceFormat::Group(_)) {
            members.check_single()?;
        }
        let single: Vec<(&str, bool)> = cuts
            .iter()
            .map(|cut| (cut.dimension.as_str(), cut.is_single()))
            .collect();
        members.check_cuts(&single)?;
        LayoutPieces::new(self, members, variables, cuts)
    }
}

impl LayoutPieces {
    fn new(
        rule: &LayoutRule,
        members: LayoutMembers,
        variables: Vec<Key>,
        cuts: Vec<AxisCut>,
    ) -> Result<Self> {
        let counts = cuts.iter().map(AxisCut::count);
        let count = counts.fold(variables.len(), usize::saturating_mul);
        if count > MAX_PIECES {
            let why = format!("{count} files are more than {MAX_PIECES}");
            return Err(Error::invalid(why));
        }
        let dimensions: Vec<&str> = cuts.iter().map(|cut| cut.dimension.as_str()).collect();
        let mut pieces = LayoutPieces {
            format: rule.format,
            has_strings: members.has_strings(&dimensions),
            members,
            variables,
            cuts,
            paths: String::new(),
            begins: Vec::new(),
            sorted: Vec::new(),
            _memory: memory::take(count * 2 * size_of::<u32>())?,
        };
        let mut held = memory::Grant::default();
        for number in 0..count {
            if pieces.paths.len() >= held.bytes() {
                held.grow(1 << 16)?;
            }
            pieces.begins.push(pieces.paths.len() as u32);
            pieces.push_path(&rule.pattern, number)?;
        }
        pieces.begins.push(pieces.paths.len() as u32);
        let mut sorted: Vec<u32> = (0..count as u32).collect();
        sorted.sort_unstable_by_key(|number| pieces.path(*number as usize));
        for pair in sorted.windows(2) {
            let [first, second] = [pair[0] as usize, pair[1] as usize];
            if pieces.path(first) == pieces.path(second) {
                let [first, second] = [first.min(second), first.max(second)];
                let path = pieces.path(first).to_string();
                let [first, second] = [first, second].map(|number| pieces.origin(number));
                let why = format!("two files have the name {path:?}: {first} and {second}");
                return Err(Error::invalid(why));
            }
        }
        pieces.sorted = sorted;
        pieces._memory = std::mem::take(&mut pieces._memory).and(held);
        Ok(pieces)
    }

    /// Appends the path of a file.
    fn push_path(&mut self, pattern: &NamePattern, number: usize) -> Result<()> {
        let (variable, runs) = self.place(number);
        let from = self.paths.len();
        let mut path = std::mem::take(&mut self.paths);
        for part in pattern.parts() {
            match part {
                PatternPart::Text(text) => path.push_str(text),
                PatternPart::Field(field) if field.kind == FieldKind::Variable => {
                    path.push_str(self.variables[variable].name());
                }
                PatternPart::Field(field) => {
                    let cut = self.cuts.iter().position(|cut| cut.name == field.name);
                    let run = cut.map(|cut| self.cuts[cut].run(runs[cut]));
                    path.push_str(run.as_ref().map_or("", |run| run.text(field.number)));
                }
            }
        }
        self.paths = path;
        pattern::check_path(&self.paths[from..]).context(self.origin(number))
    }

    /// Returns the item of `{var}` and the run of each cut that a file shows.
    fn place(&self, number: usize) -> (usize, Vec<usize>) {
        let mut rest = number;
        let mut runs = vec![0; self.cuts.len()];
        for (run, cut) in runs.iter_mut().zip(&self.cuts).rev() {
            *run = rest % cut.count().max(1);
            rest /= cut.count().max(1);
        }
        (rest, runs)
    }

    fn runs(&self, number: usize) -> Vec<IndexRun<'_>> {
        let (_, runs) = self.place(number);
        let pairs = self.cuts.iter().zip(runs);
        pairs.map(|(cut, run)| cut.run(run)).collect()
    }

    /// Returns what a file shows, for messages: `time 12 to 23`.
    fn origin(&self, number: usize) -> String {
        let (variable, _) = self.place(number);
        let runs = self.runs(number);
        let pairs = self.cuts.iter().zip(runs);
        let words: Vec<String> = pairs
            .map(|(cut, run)| match run.range.end - run.range.start {
                1 => format!("{} {}", cut.name, run.range.start),
                _ => format!("{} {} to {}", cut.name, run.range.start, run.range.end - 1),
            })
            .collect();
        match words.as_slice() {
            [] => self.variables[variable].name().to_string(),
            _ if self.variables.len() > 1 => {
                format!("{} {}", self.variables[variable].name(), words.join(", "))
            }
            _ => words.join(", "),
        }
    }

    /// Returns whether a store that grows makes the file longer: it shows the last items along a
    /// dimension.
    pub fn may_grow(&self, number: usize) -> bool {
        let (_, runs) = self.place(number);
        let mut pairs = self.cuts.iter().zip(runs);
        self.cuts.is_empty() || pairs.any(|(cut, run)| run + 1 == cut.count())
    }

    /// Returns the group of the arrays.
    pub fn group(&self) -> &Key {
        self.members.group()
    }

    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Returns whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Returns the path of a file by its number.
    pub fn path(&self, number: usize) -> &str {
        text_at(&self.paths, &self.begins, number)
    }

    /// Returns the number of the file at a path.
    pub fn find(&self, path: &str) -> Option<usize> {
        let place = self
            .sorted
            .binary_search_by_key(&path, |number| self.path(*number as usize));
        Some(self.sorted[place.ok()?] as usize)
    }

    /// Returns the place in the order of paths at which those below a directory begin.
    pub fn first_below(&self, directory: &Key) -> usize {
        let prefix = prefix(directory);
        self.sorted
            .partition_point(|number| self.path(*number as usize) < prefix.as_str())
    }

    /// Returns the name in a directory that a place in the order of paths stands for, whether it
    /// names a directory, and the place of the next name. Returns `None` behind the last name.
    pub fn name_at(&self, directory: &Key, place: usize) -> Option<(&str, bool, usize)> {
        let path = self.path(*self.sorted.get(place)? as usize);
        let rest = path.strip_prefix(prefix(directory).as_str())?;
        match rest.split_once('/') {
            None => Some((rest, false, place + 1)),
            Some((name, _)) => {
                let inside = format!("{}{name}/", prefix(directory));
                let behind = self.sorted[place..]
                    .partition_point(|number| self.path(*number as usize).starts_with(&inside));
                Some((name, true, place + behind))
            }
        }
    }

    /// Returns whether a path names a directory with files.
    pub fn has_directory(&self, path: &Key) -> bool {
        self.name_at(path, self.first_below(path)).is_some()
    }

    /// Returns what the size of a file depends on; `None` if it depends on the values.
    pub fn class(&self, number: usize) -> Option<PieceClass> {
        if self.has_strings {
            return None;
        }
        let (variable, runs) = self.place(number);
        let ranges = self.cuts.iter().zip(runs);
        let ranges = ranges.map(|(cut, run)| cut.run(run).range);
        let lengths = ranges.map(|range| range.end - range.start);
        Some((variable, lengths.collect()))
    }

    /// Returns why files end before a coordinate does, a line for each.
    pub fn shortened(&self) -> Vec<String> {
        let short = self.cuts.iter().filter_map(|cut| {
            let array = cut.shortest.as_ref()?;
            Some(format!(
                "{array} has fewer than the {} items of {}, and ends the files",
                cut.len, cut.dimension
            ))
        });
        short.collect()
    }

    /// Returns the format of the files if they are containers of groups.
    pub fn container(&self) -> Option<GroupFormat> {
        match self.format {
            PieceFormat::Group(format) => Some(format),
            PieceFormat::Array(_) | PieceFormat::Raw => None,
        }
    }

    /// Returns the groups and arrays whose documents decide on the names of files.
    pub fn sources(&self) -> BTreeSet<Key> {
        let mut sources: BTreeSet<Key> = self.members.keys().cloned().collect();
        sources.extend(self.cuts.iter().filter_map(|cut| cut.array.clone()));
        sources
    }

    /// Returns whether the names were made of the present last items of all coordinates. A store
    /// that grows writes its coordinates last.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn is_current(&self, hierarchy: &dyn HierarchyReader) -> Result<bool> {
        for cut in &self.cuts {
            if !cut.is_current(hierarchy)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a file by its number.
    ///
    /// # Errors
    ///
    /// Those of [`GroupFormat::file`] and [`Format::file`].
    pub fn file(
        &self,
        hierarchy: &dyn HierarchyReader,
        number: usize,
        netcdf: &NetcdfOptions,
    ) -> Result<Composite> {
        let (variable, _) = self.place(number);
        let runs = self.runs(number);
        let shown = self.members.shown(&self.variables[variable]);
        let boxed = BoxedHierarchy::new(hierarchy, self.members.group(), shown, &self.cuts, &runs);
        let array = || {
            let key = self.members.single(&self.variables[variable]);
            let found = boxed.find_array(&key)?;
            found.ok_or_else(|| Error::stale().context(key))
        };
        let mut file = match self.format {
            PieceFormat::Group(format) => format.file(&boxed, self.members.group(), netcdf)?,
            PieceFormat::Array(format) => format.file(&describe(&boxed, &array()?)?)?,
            PieceFormat::Raw => {
                let array = array()?;
                if array.metadata.has_objects() {
                    let why = "strings of any length have no flat bytes";
                    return Err(Error::unsupported(why).context(array.key));
                }
                let mut file = Composite::default();
                file.push_flat(array.key.clone(), &array.metadata, ItemForm::AsStored);
                file.sources.push(array.key);
                file
            }
        };
        file.place_arrays(|key| boxed.place(key));
        Ok(file)
    }
}

/// Returns one of several texts that lie side by side: `begins` has where each begins, and the end
/// of the last.
fn text_at<'a>(texts: &'a str, begins: &[u32], number: usize) -> &'a str {
    let place = begins.get(number).zip(begins.get(number + 1));
    let range = place.map(|(from, to)| *from as usize..*to as usize);
    range.and_then(|range| texts.get(range)).unwrap_or_default()
}

/// Returns what the paths of all files below a directory begin with.
fn prefix(directory: &Key) -> String {
    match directory.as_str() {
        "" => String::new(),
        path => format!("{path}/"),
    }
}
