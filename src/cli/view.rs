//! `--view`: the Zarr format of the documents that a mount shows.

use super::PROGRAMS;
use crate::array::hierarchy::ViewFormat;
use clap::{Args, ValueEnum};

/// An option of `mount` and `ls`.
#[derive(Args)]
#[command(next_help_heading = PROGRAMS)]
pub struct ViewArgs {
    /// Show Zarr v3 as stored or as v2 [default: stored]
    ///
    /// With v2, a store of v3 shows .zgroup, .zarray, .zattrs and .zmetadata in place of zarr.json,
    /// for programs that know no other format. Writes to them are stored in zarr.json.
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "stored",
        hide_possible_values = true,
        hide_default_value = true
    )]
    view: ViewWord,
}

#[derive(Clone, Copy, ValueEnum)]
enum ViewWord {
    Stored,
    V2,
}

impl ViewArgs {
    /// Returns the format.
    pub fn format(&self) -> ViewFormat {
        match self.view {
            ViewWord::Stored => ViewFormat::Stored,
            ViewWord::V2 => ViewFormat::V2,
        }
    }
}
