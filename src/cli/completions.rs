//! `zarrfs completions`: prints completions of the command line for a shell.

use super::{Cli, CommandFailure, print};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

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

/// Runs the verb.
pub fn run(args: &CompletionsArgs) -> Result<(), CommandFailure> {
    let (mut command, mut text) = (Cli::command(), Vec::new());
    clap_complete::generate(args.shell, &mut command, "zarrfs", &mut text);
    print(text)
}
