//! `zarrfs man`: manual pages, made of the help and of what a help has no room for: exit codes, files, environment, examples.

use super::man_pages::{ENVIRONMENT, FILES, PAGES};
use super::{Cli, EXIT_CODES, Failure, print};
use crate::check::FindingKind;
use crate::error::Error;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What `man` takes.
#[derive(Args)]
#[command(after_help = "To read one: zarrfs man check | man -l -")]
pub struct ManArgs {
    /// The verb that the page is about [default: all of zarrfs]
    verb: Option<String>,
    /// Write all pages into this directory, as zarrfs.1 and zarrfs-VERB.1
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    all: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: &ManArgs) -> Result<(), Failure> {
    // each page tells what `zarrfs help VERB` would
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    if let Some(directory) = &args.all {
        return write_all(&command, directory).map_err(|e| Error::from(e).context(directory.display()).into());
    }
    let page = match &args.verb {
        None => page(&command, ""),
        Some(verb) => {
            let found = command.find_subcommand(verb);
            let found = found.ok_or_else(|| Failure::new(2, format!("{verb:?} is no verb of zarrfs")))?;
            page(found, found.get_name())
        }
    };
    print(page.map_err(Error::from)?)
}

fn write_all(command: &Command, directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("zarrfs.1"), page(command, "")?)?;
    for verb in command.get_subcommands() {
        std::fs::write(directory.join(format!("zarrfs-{}.1", verb.get_name())), page(verb, verb.get_name())?)?;
    }
    Ok(())
}

/// The page of a verb; of zarrfs itself where `verb` is empty.
fn page(command: &Command, verb: &str) -> std::io::Result<Vec<u8>> {
    let (man, mut out) = (Man::new(command.clone()), Vec::new());
    let title = if verb.is_empty() { "zarrfs".to_string() } else { format!("zarrfs-{verb}") };
    // no date: it would have to be kept
    writeln!(out, ".TH {title} 1 \"\" \"zarrfs {}\" \"User commands\"", env!("CARGO_PKG_VERSION"))?;
    man.render_name_section(&mut out)?;
    synopsis(command, &title.replace('-', " ")).to_writer(&mut out)?;
    man.render_description_section(&mut out)?;
    let more = PAGES.iter().find(|page| page.verb == verb);
    if let Some(page) = more.filter(|page| !page.description.is_empty()) {
        let mut roff = Roff::new();
        for paragraph in page.description.split("\n\n") {
            roff.control("PP", []).text([roman(paragraph)]);
        }
        roff.to_writer(&mut out)?;
    }
    man.render_options_section(&mut out)?;
    if verb.is_empty() {
        man.render_subcommands_section(&mut out)?;
    }
    if verb == "check" {
        let findings =
            FindingKind::ALL.map(|fault| (format!("{} ({})", fault.name(), fault.level().name()), fault.meaning()));
        section("FINDINGS", findings.iter().map(|(name, what)| (name.as_str(), *what))).to_writer(&mut out)?;
    }
    section("EXIT STATUS", EXIT_CODES.lines().filter_map(|line| line.trim().split_once("  "))).to_writer(&mut out)?;
    if verb.is_empty() || verb == "mount" {
        section("FILES", FILES.iter().copied()).to_writer(&mut out)?;
        section("ENVIRONMENT", ENVIRONMENT.iter().copied()).to_writer(&mut out)?;
    }
    if let Some(page) = more {
        section("EXAMPLES", page.examples.iter().copied()).to_writer(&mut out)?;
    }
    if !verb.is_empty() {
        Roff::new().control("SH", ["SEE ALSO"]).text([bold("zarrfs"), roman("(1)")]).to_writer(&mut out)?;
    }
    Ok(out)
}

/// How it is called, as the help says it: each option has its place below.
fn synopsis(command: &Command, called: &str) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let arguments = usage.trim_start_matches("Usage: ").trim_start_matches(called);
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text([bold(called), roman(arguments)]);
    roff
}

fn section<'a>(title: &str, rows: impl Iterator<Item = (&'a str, &'a str)>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (name, what) in rows {
        roff.control("TP", []).text([bold(name)]).text([roman(what)]);
    }
    roff
}
