//! `zarrfs completions`: what a shell needs to complete the command line.

use super::{Cli, Failure, print};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// What `completions` takes.
#[derive(Args)]
#[command(after_help = "Where shells look for them:
  bash  ~/.local/share/bash-completion/completions/zarrfs
  zsh   a file _zarrfs in a directory of $fpath
  fish  ~/.config/fish/completions/zarrfs.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs the verb.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let (mut command, mut text) = (Cli::command(), Vec::new());
    clap_complete::generate(args.shell, &mut command, "zarrfs", &mut text);
    print(text)
}
