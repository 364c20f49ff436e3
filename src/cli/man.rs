//! `zarrfs man`: manual pages, generated from the text of the help, with exit codes, files,
//! environment and examples.

use super::{Cli, CommandFailure, CommandResult, EXIT_CODES, print, stdio};
use crate::check::FindingKind;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use zarrfs_base::error::Error;

/// Arguments of `man`.
#[derive(Args)]
pub struct ManArgs {
    /// Verb of the page [default: the page of zarrfs]
    ///
    /// The page is shown by man(1) if standard output is a terminal, and printed as roff otherwise.
    verb: Option<String>,
    /// Write all pages into this directory
    ///
    /// Their names are zarrfs.1 and zarrfs-VERB.1.
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    all: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: &ManArgs) -> CommandResult {
    // `help` needs no page: the page of a verb has the text of `zarrfs help VERB`
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    if let Some(directory) = &args.all {
        return write_all(&command, directory)
            .map_err(|e| Error::from(e).context(directory.display()).into());
    }
    let verb = args.verb.as_deref().unwrap_or_default();
    let command = if args.verb.is_none() {
        &mut command
    } else {
        find_verb(&mut command, verb).ok_or_else(|| {
            CommandFailure::wrong_use(format!("unknown verb: {verb}; zarrfs --help lists them"))
        })?
    };
    let page = page(command, verb)?;
    if !stdio::is_terminal() {
        return print(page);
    }
    match show(&page) {
        Ok(()) => Ok(()),
        // man(1) is missing or has failed
        Err(_) => print(command.render_long_help().to_string()),
    }
}

/// Returns a verb, or one of its own verbs as in `overlay-diff`.
fn find_verb<'a>(command: &'a mut Command, name: &str) -> Option<&'a mut Command> {
    match name.split_once('-') {
        Some((verb, own)) => command.find_subcommand_mut(verb)?.find_subcommand_mut(own),
        None => command.find_subcommand_mut(name),
    }
}

/// Shows a page by man(1), which calls the user's pager.
fn show(page: &[u8]) -> std::io::Result<()> {
    let mut man = std::process::Command::new("man")
        .args(["-l", "-"])
        .stdin(Stdio::piped())
        .spawn()?;
    // man(1) stops reading when its user leaves the pager
    let _ = man.stdin.take().map(|mut pipe| pipe.write_all(page));
    if man.wait()?.success() {
        Ok(())
    } else {
        Err(std::io::Error::other("man failed"))
    }
}

fn write_all(command: &Command, directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    write_page(command, "", directory)?;
    for verb in command.get_subcommands() {
        write_page(verb, verb.get_name(), directory)?;
        for own in verb.get_subcommands() {
            let name = format!("{}-{}", verb.get_name(), own.get_name());
            write_page(own, &name, directory)?;
        }
    }
    Ok(())
}

fn write_page(command: &Command, verb: &str, directory: &Path) -> std::io::Result<()> {
    let name = format!("{}.1", title(verb));
    std::fs::write(directory.join(name), page(command, verb)?)
}

/// Returns the title of the page of a verb.
fn title(verb: &str) -> String {
    if verb.is_empty() {
        "zarrfs".to_string()
    } else {
        format!("zarrfs-{verb}")
    }
}

/// Returns the page of a verb, or of zarrfs itself if `verb` is empty.
fn page(command: &Command, verb: &str) -> std::io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut out = Vec::new();
    let title = title(verb);
    // no date, which would need an update with each release
    writeln!(
        out,
        ".TH {title} 1 \"\" \"zarrfs {}\" \"User commands\"",
        env!("CARGO_PKG_VERSION")
    )?;
    man.render_name_section(&mut out)?;
    synopsis(command, &title.replace('-', " ")).to_writer(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    if verb == "check" {
        let findings = FindingKind::all().map(|kind| {
            let name = format!("{} ({})", kind.name(), kind.level().name());
            (name, kind.meaning())
        });
        section("FINDINGS", findings).to_writer(&mut out)?;
    }
    section(
        "EXIT STATUS",
        EXIT_CODES
            .lines()
            .filter_map(|line| line.trim().split_once("  ")),
    )
    .to_writer(&mut out)?;
    if ["", "mount", "run"].contains(&verb) {
        section("FILES", rows("FILES").into_iter()).to_writer(&mut out)?;
        section("ENVIRONMENT", rows("ENVIRONMENT").into_iter()).to_writer(&mut out)?;
    }
    let examples = rows(format!("EXAMPLES {verb}").trim_end());
    if !examples.is_empty() {
        section("EXAMPLES", examples.into_iter()).to_writer(&mut out)?;
    }
    if !verb.is_empty() {
        Roff::new()
            .control("SH", ["SEE ALSO"])
            .text([bold("zarrfs"), roman("(1)")])
            .to_writer(&mut out)?;
    }
    Ok(out)
}

/// The text of the pages that the help does not have: files, the environment, and examples of each
/// verb. A line with a # begins a section; a name is followed by its description in a line.
const SECTIONS: &str = include_str!("man_sections.txt");

/// Returns the names and descriptions of a section of [`SECTIONS`].
fn rows(heading: &str) -> Vec<(&'static str, &'static str)> {
    let mut lines = SECTIONS
        .lines()
        .skip_while(|line| line.strip_prefix("# ") != Some(heading))
        .skip(1)
        .take_while(|line| !line.starts_with("# "));
    std::iter::from_fn(|| Some((lines.next()?, lines.next()?.trim_start()))).collect()
}

/// Returns the usage line of the help: the sections below have each option.
fn synopsis(command: &Command, called: &str) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let arguments = usage
        .trim_start_matches("Usage: ")
        .trim_start_matches(called);
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"])
        .text([bold(called), roman(arguments)]);
    roff
}

fn section<N: Into<String>>(title: &str, rows: impl Iterator<Item = (N, &'static str)>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (name, what) in rows {
        roff.control("TP", [])
            .text([bold(name)])
            .text([roman(what)]);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_section_has_names_with_descriptions_and_belongs_to_a_verb() {
        let mut command = Cli::command();
        for heading in SECTIONS.lines().filter_map(|line| line.strip_prefix("# ")) {
            let is_known = match heading.split_once(' ') {
                Some((first, verb)) => {
                    first == "EXAMPLES" && find_verb(&mut command, verb).is_some()
                }
                None => ["FILES", "ENVIRONMENT", "EXAMPLES"].contains(&heading),
            };
            assert!(is_known && !rows(heading).is_empty(), "{heading}");
        }
        let lines = SECTIONS.lines().filter(|line| !line.starts_with("# "));
        for (n, line) in lines.enumerate() {
            assert_eq!(line.starts_with("    "), n % 2 == 1, "{line}");
        }
    }
}
