//! `zarrfs upgrade`: replaces the daemon of a mount by another program. Open files, maps and
//! directories stay open.

use super::mount::{HOLDER, OUTLIVES, order};
use super::{CommandFailure, CommandResult};
use crate::fuse::{MountEntry, mount_of, mounts, read_statistics};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zarrfs_base::error::Error;
use zarrfs_base::json::{self, Value};

/// Arguments of `upgrade`.
#[derive(Args)]
pub struct UpgradeArgs {
    /// Mountpoints, or paths in mounts
    #[arg(required_unless_present = "all")]
    mountpoints: Vec<PathBuf>,
    /// Upgrade all mounts in the mount table that this user may
    #[arg(long, conflicts_with = "mountpoints")]
    all: bool,
    /// Program that takes over [default: this one]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// Runs the verb. Upgrades every mount, also after one has failed.
pub fn run(args: &UpgradeArgs) -> CommandResult {
    let program = match &args.program {
        Some(path) => {
            std::fs::canonicalize(path).map_err(|e| Error::from(e).context(path.display()))?
        }
        None => std::env::current_exe()?,
    };
    check(&program)?;
    let mut found = Vec::new();
    if args.all {
        found.extend(mounts()?.into_iter().filter(MountEntry::is_zarrfs));
    }
    let mut result = Ok(());
    let mut fail = |path: &Path, why: String| {
        CommandFailure::failed(format!("{}: {why}", path.display())).print(false);
        result = Err(CommandFailure::failed(""));
    };
    for path in &args.mountpoints {
        match mount_of(path) {
            Ok(Some(mount)) => found.push(mount),
            Ok(None) => fail(path, "not in a mount of zarrfs".to_string()),
            Err(e) => fail(path, e.to_string()),
        }
    }
    for mount in found {
        if let Err(e) = upgrade(&mount, &program) {
            fail(&mount.path, e.to_string());
        }
    }
    result
}

/// Checks that a program is a zarrfs that can be started: while it takes over, requests wait for
/// it.
fn check(program: &Path) -> CommandResult {
    let shown = program.display();
    let said = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|e| Error::from(e).context(shown.to_string()))?;
    if said.status.success() && said.stdout.starts_with(b"zarrfs ") {
        Ok(())
    } else {
        let why = format!("{shown}: --program: not a zarrfs that can be started here");
        Err(CommandFailure::failed(why))
    }
}

fn upgrade(mount: &MountEntry, program: &Path) -> Result<(), Error> {
    let statistics = json::parse(&read_statistics(mount)?)?;
    let text = |name: &str| {
        statistics
            .get(name)
            .and_then(Value::as_str)
            .map(str::to_string)
    };
    let Some(holder) = text(HOLDER).and_then(|pid| pid.parse().ok()) else {
        let why = text(OUTLIVES).unwrap_or_else(|| "it is older than this command".to_string());
        let why = format!("its daemon can't be replaced ({why}); unmount, and mount again");
        return Err(Error::unsupported(why));
    };
    order(holder, program).map_err(|e| e.context("the former daemon goes on"))
}
