//! `--headers`, `--containers`, `--views`, `--layout` and `--view`: the files for other programs
//! that a mount shows, and the Zarr format of its documents.

use super::{PROGRAMS, words};
use crate::array::hierarchy::{Hierarchy, ShownFormat};
use crate::cache::Cache;
use crate::fs::tree::{Headers, Tree, Views};
use clap::Args;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use zarrfs_export::{Format, GroupFormat, LayoutRule, NetcdfOptions};
use zarrfs_format::fill_value::FillMeaning;

/// Options of `mount` and `ls`.
#[derive(Args)]
#[command(next_help_heading = PROGRAMS)]
pub struct HeadersArgs {
    /// Show these headers
    #[arg(long = "headers", value_name = "LIST", default_value = "all", value_parser = parse_headers,
        long_help = headers_help())]
    formats: Headers,
    /// Show these containers
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = parse_containers,
        long_help = containers_help())]
    containers: Headers,
    /// Show these views of arrays
    ///
    /// none, all, or some of unpacked, slices: directories beside an array with files like its own.
    /// ARRAY.unpacked holds physical values, ARRAY.slices planes and volumes by the indices of
    /// leading dimensions.
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = parse_views)]
    views: Views,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    files: FormatArgs,
    /// Show Zarr v3 as stored or as v2
    ///
    /// The default is stored. With v2, a store of v3 shows .zgroup, .zarray, .zattrs and .zmetadata
    /// in place of zarr.json, for programs that know no other format. Writes to them are stored in
    /// zarr.json.
    #[arg(long, value_parser = words(&[("stored", ShownFormat::Stored), ("v2", ShownFormat::V2)]),
        value_name = "FORMAT", default_value = "stored", hide_possible_values = true,
        hide_default_value = true)]
    view: ShownFormat,
}

/// Options of everything that shows arrays and groups in the formats of other programs.
#[derive(Args)]
#[command(next_help_heading = PROGRAMS)]
pub struct FormatArgs {
    /// Give dataset.nc this unlimited dimension
    ///
    /// It must be the first dimension of an array. With --resize, programs can append records.
    /// A mount then shows dataset.nc also without --containers nc.
    #[arg(long = "netcdf-record", value_name = "NAME")]
    record: Option<String>,
    /// Take fill values for missing values
    ///
    /// auto, the default, does so as xarray does, for arrays of Zarr v2 with its names of
    /// dimensions, but not for zeros of files to which a store refers, which are the default of
    /// HDF5; yes does so for all arrays, no for none. An attribute that names a missing value
    /// always counts.
    #[arg(long = "fill-value-is-missing", value_name = "WHEN", value_parser = words(&FILL_MEANINGS),
        default_value = "auto", hide_possible_values = true, hide_default_value = true)]
    fill_meaning: FillMeaning,
}

/// Options of `mount`, `ls` and `cat`: the files that an archive had before it became one store.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = PROGRAMS)]
pub struct LayoutArgs {
    /// Show parts of arrays as files
    ///
    /// A pattern of paths, and the group or arrays that the files hold. {time:%Y%m} cuts by the
    /// calendar of the coordinate time, {level} by its values, {time#} or {time#:04} by its
    /// indices, {var} has a file for each array. The pattern ends with .nc, .h5, .nc4, .tif, .npy
    /// or .raw. Can be given several times.
    #[arg(long, value_name = "RULE", value_parser = LayoutRule::parse)]
    layout: Vec<LayoutRule>,
    /// Read rules of --layout from FILE
    ///
    /// Empty lines and lines that begin with # are skipped.
    #[arg(long, value_name = "FILE", value_parser = read_rules)]
    layout_file: Option<LayoutFile>,
}

/// The rules of a file.
#[derive(Clone, Debug)]
struct LayoutFile(Vec<LayoutRule>);

/// Maximum size of a file of rules in bytes.
const MAX_RULES: u64 = 1 << 20;

fn read_rules(path: &str) -> Result<LayoutFile, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_RULES).read_to_string(&mut text));
    read.map_err(|e| e.to_string())?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rules = lines.map(|line| LayoutRule::parse(line).map_err(|e| e.to_string()));
    rules.collect::<Result<_, _>>().map(LayoutFile)
}

impl LayoutArgs {
    /// Returns the rules; an empty list without the options.
    pub fn rules(&self) -> Vec<LayoutRule> {
        let of_file = self.layout_file.iter().flat_map(|file| &file.0);
        self.layout.iter().chain(of_file).cloned().collect()
    }
}

/// The words of `--fill-value-is-missing`.
const FILL_MEANINGS: [(&str, FillMeaning); 3] = [
    ("auto", FillMeaning::Auto),
    ("yes", FillMeaning::Missing),
    ("no", FillMeaning::Value),
];

impl FormatArgs {
    /// Returns how groups are shown.
    pub fn options(&self) -> NetcdfOptions {
        NetcdfOptions {
            record: self.record.clone(),
            ..NetcdfOptions::default()
        }
    }

    /// Returns what fill values stand for.
    pub fn fill_meaning(&self) -> FillMeaning {
        self.fill_meaning
    }

    /// Returns the hierarchy, with the meaning of fill values.
    pub fn hierarchy(&self, hierarchy: Hierarchy) -> Hierarchy {
        hierarchy.with_fill_meaning(self.fill_meaning)
    }

    /// Returns whether the command line has the option, which asks for groups as netCDF files.
    fn is_given(&self) -> bool {
        self.record.is_some()
    }
}

impl HeadersArgs {
    /// Returns the tree that shows a hierarchy with these files.
    ///
    /// # Errors
    ///
    /// The store has no such layout.
    pub fn tree(
        &self,
        hierarchy: Hierarchy,
        cache: Arc<Cache>,
    ) -> zarrfs_base::error::Result<Tree> {
        Tree::new(self.files.hierarchy(hierarchy).with_view(self.view), cache)
            .with_headers(self.shown())
            .with_views(self.views)
            .with_layout(self.layout.rules())
    }

    /// Returns the headers and containers that are shown.
    fn shown(&self) -> Headers {
        let asked = [&self.formats.formats, &self.containers.formats];
        let formats = Format::ALL
            .into_iter()
            .filter(|format| asked.iter().any(|list| list.contains(format)));
        let groups = GroupFormat::ALL.into_iter().filter(|format| {
            let is_implied = *format == GroupFormat::Netcdf && self.files.is_given();
            is_implied || self.containers.groups.contains(format)
        });
        Headers {
            formats: formats.collect(),
            groups: groups.collect(),
            netcdf: self.files.options(),
        }
    }
}

/// Returns the words of the formats that `all` stands for.
fn words_of_all(containers: bool) -> String {
    let all = formats(containers).filter(|format| !format.reads_values());
    all.map(Format::id).collect::<Vec<_>>().join(", ")
}

fn headers_help() -> String {
    format!(
        "Show these headers\n\nall, none, or some of {}, which stand beside data.raw, and txt: the \
         values of small arrays as text, which all leaves out (all,txt).",
        words_of_all(false)
    )
}

fn containers_help() -> String {
    format!(
        "Show these containers\n\nnone, all, or some of {}, {}: files that hold the same bytes \
         in other programs' formats, and png: a small image of the values.",
        words_of_all(true),
        GroupFormat::ALL.map(GroupFormat::id).join(", ")
    )
}

fn parse_headers(text: &str) -> Result<Headers, String> {
    parse(text, false)
}

fn parse_containers(text: &str) -> Result<Headers, String> {
    parse(text, true)
}

fn parse_views(text: &str) -> Result<Views, String> {
    let text = match text {
        "none" => return Ok(Views::default()),
        "all" => "unpacked,slices",
        some => some,
    };
    let mut views = Views::default();
    for word in text.split([',', ':']) {
        match word {
            "unpacked" => views.unpacked = true,
            "slices" => views.slices = true,
            _ => {
                return Err(format!(
                    "{word:?} is not one of all, none, unpacked, slices"
                ));
            }
        }
    }
    Ok(views)
}

/// Returns the formats of containers, or those of headers.
pub fn formats(containers: bool) -> impl Iterator<Item = Format> {
    Format::ALL
        .into_iter()
        .filter(move |format| format.is_container() == containers)
}

fn parse(text: &str, containers: bool) -> Result<Headers, String> {
    let mut list = Headers::default();
    if text == "none" {
        return Ok(list);
    }
    for word in text.split([',', ':']) {
        match formats(containers).find(|format| format.id() == word) {
            Some(format) => list.formats.push(format),
            None if word == "all" => {
                list.formats
                    .extend(formats(containers).filter(|format| !format.reads_values()));
                let groups = GroupFormat::ALL.into_iter();
                list.groups.extend(groups.filter(|_| containers));
            }
            None => {
                if containers && let Some(format) = GroupFormat::of_id(word) {
                    list.groups.push(format);
                    continue;
                }
                let groups = GroupFormat::ALL.into_iter().filter(|_| containers);
                let words: Vec<&str> = formats(containers)
                    .map(Format::id)
                    .chain(groups.map(GroupFormat::id))
                    .collect();
                return Err(format!(
                    "{word:?} is not one of all, none, {}",
                    words.join(", ")
                ));
            }
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    #[test]
    fn lists_of_views_are_parsed() {
        let views = |unpacked, slices| Ok(Views { unpacked, slices });
        assert_eq!(parse_views("none"), views(false, false));
        assert_eq!(parse_views("unpacked"), views(true, false));
        assert_eq!(parse_views("slices:unpacked"), views(true, true));
        assert_eq!(parse_views("all"), parse_views("unpacked,slices"));
        for text in ["", "packed", "all,slices", "unpacked,"] {
            assert!(
                parse_views(text).unwrap_err().contains("is not one of"),
                "{text}"
            );
        }
    }

    #[test]
    fn an_option_of_netcdf_shows_groups_as_files() {
        for (words, is_shown) in [
            (&[][..], false),
            (&["--containers", "tif"], false),
            (&["--netcdf-record", "time"], true),
            (&["--containers", "tif", "--netcdf-record", "time"], true),
        ] {
            let command =
                HeadersArgs::augment_args(clap::Command::new("mount").no_binary_name(true));
            let args = HeadersArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
            let shown = args.shown().groups;
            assert_eq!(shown.contains(&GroupFormat::Netcdf), is_shown, "{words:?}");
        }
    }

    #[test]
    fn lists_of_formats_are_parsed() {
        let ids = |list: Result<Headers, String>| {
            let list = list.unwrap();
            (
                list.formats
                    .iter()
                    .map(|format| format.id())
                    .collect::<Vec<_>>(),
                list.groups,
            )
        };
        assert_eq!(
            ids(parse_headers("vrt:npy,mhd")),
            (vec!["vrt", "npy", "mhd"], vec![])
        );
        assert_eq!(ids(parse_headers("none")), (vec![], vec![]));
        assert_eq!(ids(parse_headers("all")).0.len(), 7);
        // the values of an array are read only if the user asks for them
        assert!(!ids(parse_headers("all")).0.contains(&"txt"));
        assert_eq!(ids(parse_headers("all,txt")).0.len(), 8);
        assert_eq!(ids(parse_headers("txt")), (vec!["txt"], vec![]));
        assert_eq!(
            ids(parse_containers("nc")),
            (vec![], vec![GroupFormat::Netcdf])
        );
        assert_eq!(
            ids(parse_containers("all")),
            (vec!["nii", "tif", "png"], GroupFormat::ALL.to_vec())
        );
        for (text, containers) in [
            ("nii", false),
            ("npy", true),
            ("", false),
            ("nc", false),
            ("all,nii", false),
            ("none,npy", false),
        ] {
            assert!(
                parse(text, containers)
                    .unwrap_err()
                    .contains("is not one of"),
                "{text}"
            );
        }
    }
}
