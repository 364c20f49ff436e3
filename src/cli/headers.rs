//! `--headers`, `--containers` and `--views`: the files for other programs that a mount shows.

use super::PROGRAMS;
use crate::export::Format;
use crate::fs::tree::{Headers, Views};
use clap::Args;

/// The word for a group's netCDF file.
pub const NETCDF: &str = "nc";

/// Options of `mount` and `ls`.
#[derive(Args)]
#[command(next_help_heading = PROGRAMS)]
pub struct HeadersArgs {
    /// Show these headers
    ///
    /// all, none, or some of npy, envi, vrt, nrrd, mhd, xdmf, ctl, readme, which stand beside data.raw.
    #[arg(long = "headers", value_name = "LIST", default_value = "all", value_parser = parse_headers)]
    formats: FormatList,
    /// Show these containers
    ///
    /// none, all, or some of nii, tif, nc: files that hold the same bytes in other programs' formats.
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = parse_containers)]
    containers: FormatList,
    /// Show these views of arrays
    ///
    /// none, all, or some of unpacked, slices: directories beside an array with files like its own. ARRAY.unpacked
    /// holds physical values, ARRAY.slices planes and volumes by the indices of leading dimensions.
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = parse_views)]
    views: Views,
}

/// A list of formats, with the netCDF files of groups.
#[derive(Clone, Debug)]
struct FormatList(Headers);

impl HeadersArgs {
    /// Returns the views that the tree shows.
    pub fn views(&self) -> Views {
        self.views
    }

    /// Returns the files that the tree shows.
    pub fn shown(&self) -> Headers {
        let both = || self.formats.0.formats.iter().chain(&self.containers.0.formats);
        let formats = Format::ALL.into_iter().filter(|format| both().any(|asked| asked == format));
        Headers { formats: formats.collect(), dataset: self.containers.0.dataset }
    }
}

fn parse_headers(text: &str) -> Result<FormatList, String> {
    parse(text, false)
}

fn parse_containers(text: &str) -> Result<FormatList, String> {
    parse(text, true)
}

fn parse_views(text: &str) -> Result<Views, String> {
    let mut views = Views::default();
    match text {
        "none" => {}
        "all" => views = Views { unpacked: true, slices: true },
        _ => {
            for word in text.split([',', ':']) {
                match word {
                    "unpacked" => views.unpacked = true,
                    "slices" => views.slices = true,
                    _ => return Err(format!("{word:?} is not one of all, none, unpacked, slices")),
                }
            }
        }
    }
    Ok(views)
}

fn parse(text: &str, containers: bool) -> Result<FormatList, String> {
    let all = || Format::ALL.into_iter().filter(|format| format.is_container() == containers);
    let mut list = Headers::default();
    match text {
        "none" => {}
        "all" => list = Headers { formats: all().collect(), dataset: containers },
        _ => {
            for word in text.split([',', ':']) {
                match all().find(|format| format.id() == word) {
                    Some(format) => list.formats.push(format),
                    None if containers && word == NETCDF => list.dataset = true,
                    None => {
                        let words: Vec<&str> = all().map(Format::id).chain(containers.then_some(NETCDF)).collect();
                        return Err(format!("{word:?} is not one of all, none, {}", words.join(", ")));
                    }
                }
            }
        }
    }
    Ok(FormatList(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_views_are_read() {
        let views = |unpacked, slices| Ok(Views { unpacked, slices });
        assert_eq!(parse_views("none"), views(false, false));
        assert_eq!(parse_views("unpacked"), views(true, false));
        assert_eq!(parse_views("slices:unpacked"), views(true, true));
        assert_eq!(parse_views("all"), parse_views("unpacked,slices"));
        for text in ["", "packed", "all,slices", "unpacked,"] {
            assert!(parse_views(text).unwrap_err().contains("is not one of"), "{text}");
        }
    }

    #[test]
    fn lists_are_read() {
        let ids = |list: Result<FormatList, String>| {
            let list = list.unwrap().0;
            (list.formats.iter().map(|format| format.id()).collect::<Vec<_>>(), list.dataset)
        };
        assert_eq!(ids(parse_headers("vrt:npy,ctl")), (vec!["vrt", "npy", "ctl"], false));
        assert_eq!(ids(parse_headers("none")), (vec![], false));
        assert_eq!(ids(parse_headers("all")).0.len(), 8);
        assert_eq!(ids(parse_containers("nc")), (vec![], true));
        assert_eq!(ids(parse_containers("all")), (vec!["nii", "tif"], true));
        for (text, containers) in [("nii", false), ("npy", true), ("", false), ("nc", false), ("all,npy", false)] {
            assert!(parse(text, containers).unwrap_err().contains("is not one of"), "{text}");
        }
    }
}
