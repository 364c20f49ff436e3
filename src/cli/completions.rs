//! `zarrfs completions`: prints completions of the command line for a shell.

use super::header_options::formats;
use super::{Cli, CommandResult, print};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Args, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use zarrfs_export::{Format, GroupFormat};

/// Arguments of `completions`.
#[derive(Args)]
#[command(after_help = "Files that shells read them from:
  bash  ~/.local/share/bash-completion/completions/zarrfs
  zsh   a file _zarrfs in a directory of $fpath
  fish  ~/.config/fish/completions/zarrfs.fish")]
pub struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(hide_possible_values = true)]
    shell: Shell,
}

/// Completes the mountpoints of this machine where `zarrfs stats` and `umount` expect one. The
/// mount table spells spaces in octal. Nothing in a path is evaluated, since any user may name a
/// mountpoint.
const BASH_MOUNTPOINTS: &str = include_str!("complete_mountpoints.bash");

/// Runs the verb.
pub fn run(args: &CompletionsArgs) -> CommandResult {
    let mut command = with_values(Cli::command());
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "zarrfs", &mut text);
    if args.shell == Shell::Bash {
        text.extend_from_slice(BASH_MOUNTPOINTS.as_bytes());
    }
    print(text)
}

/// Adds to a command and its verbs the values that completions offer for options that take others,
/// too, such as lists.
fn with_values(command: Command) -> Command {
    command.mut_subcommands(with_values).mut_args(|arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let is_directory = names
            .iter()
            .any(|name| ["DIR", "MOUNTPOINT", "MOUNTPOINTS"].contains(&name.as_str()));
        match values(&arg) {
            words if !words.is_empty() => arg.value_parser(PossibleValuesParser::new(words)),
            _ if is_directory => arg.value_hint(ValueHint::DirPath),
            _ => arg,
        }
    })
}

/// Returns the values to offer for an option; none if its parser knows them, or there is no list.
fn values(arg: &Arg) -> Vec<&'static str> {
    match arg.get_long() {
        Some("headers") => ["all", "none"]
            .into_iter()
            .chain(formats(false).map(Format::id))
            .collect(),
        Some("containers") => ["all", "none"]
            .into_iter()
            .chain(GroupFormat::ALL.map(GroupFormat::id))
            .chain(formats(true).map(Format::id))
            .collect(),
        Some("views") => vec!["all", "none", "unpacked", "slices"],
        Some("compressor") => vec![
            "none", "blosc", "zlib", "gzip", "bz2", "zstd", "lzma", "lz4",
        ],
        Some("log-level") => vec!["off", "error", "warn", "info", "debug", "trace"],
        Some("to") => vec!["2", "3"],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parsers of the options accept what completions offer.
    #[test]
    fn offered_values_are_accepted() {
        let mount = Cli::command();
        let mount = mount.find_subcommand("mount").unwrap();
        let mut offered = 0;
        for arg in mount.get_arguments() {
            for word in values(arg) {
                let option = format!("--{}={word}", arg.get_long().unwrap());
                let parsed = mount.clone().no_binary_name(true).try_get_matches_from([
                    option.as_str(),
                    "a",
                    "b",
                ]);
                assert!(parsed.is_ok(), "{option}: {}", parsed.unwrap_err());
                offered += 1;
            }
        }
        assert!(offered > 30, "{offered}");
    }
}
