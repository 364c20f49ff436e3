//! The sandbox of a daemon: the paths that it may open and the ports that it may connect to
//! (Landlock), and the system calls that it may make (seccomp). A thread that has entered can't
//! leave. The crate knows neither stores nor FUSE, and does not know why a path is needed.

#[cfg(debug_assertions)]
pub mod probe;
#[cfg_attr(
    not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64"
    )),
    path = "no_system_calls.rs"
)]
mod system_calls;
mod threads;

pub use system_calls::permitted_calls;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, RestrictSelfAttr,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
};
use rustix::fs::FileType;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use zarrfs_base::error::{Error, Result, set_sandboxed};

/// The version of Landlock (Linux 5.19) without which it is not used: before, no file could be
/// renamed from one directory to another.
const OLDEST: i32 = 2;

/// The version (Linux 6.7) that first restricts ports.
const PORTS: i32 = 4;

/// The version that restricts all threads of a process itself.
const ALL_THREADS: i32 = 8;

/// The latest version whose rights this module knows. Those of later ones stay permitted.
const KNOWN: ABI = ABI::V8;

/// What the kernel has of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxSupport {
    /// The version of Landlock; `None` if it is missing, off or too old.
    landlock: Option<i32>,
    seccomp: bool,
}

/// What may be done below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathAccess {
    /// Files and directories are read.
    Read,
    /// Everything is read, written, created, renamed and removed.
    Write,
    /// Existing files are read and written.
    Files,
    /// Empty directories are removed.
    RemoveDirectories,
}

/// What a process needs inside the sandbox.
#[derive(Debug, Default)]
pub struct SandboxRules {
    paths: Vec<(PathFd, PathAccess)>,
    ports: BTreeSet<u16>,
}

impl SandboxRules {
    /// Permits access to a path, and to all below a directory. A path that does not exist now stays
    /// forbidden.
    pub fn permit(&mut self, path: impl AsRef<Path>, access: PathAccess) {
        let opened = PathFd::new(path).ok();
        self.paths.extend(opened.map(|opened| (opened, access)));
    }

    /// Permits connections to ports of any host.
    pub fn connect(&mut self, ports: impl IntoIterator<Item = u16>) {
        self.ports.extend(ports);
    }
}

impl SandboxSupport {
    /// Asks the kernel.
    pub fn of_kernel() -> Self {
        let version = threads::landlock_version();
        SandboxSupport {
            landlock: Some(version).filter(|version| *version >= OLDEST),
            seccomp: system_calls::is_supported(),
        }
    }

    /// Returns what is missing for the whole sandbox, or `None`.
    pub fn lack(self) -> Option<&'static str> {
        match (self.landlock, self.seccomp) {
            (Some(PORTS..), true) => None,
            (Some(_), true) => {
                Some("the kernel's Landlock restricts no ports (Linux 6.7 or later)")
            }
            (None, true) => {
                Some("the kernel has no usable Landlock (Linux 5.19 or later, and lsm=landlock)")
            }
            (Some(_), false) => {
                Some("the kernel or this machine's architecture has no seccomp filters")
            }
            (None, false) => Some("the kernel has neither Landlock nor seccomp filters"),
        }
    }

    /// Describes the sandbox on this kernel, for statistics.
    pub fn description(self) -> String {
        let landlock = self.landlock.map(|version| format!("Landlock {version}"));
        let seccomp = self.seccomp.then(|| "seccomp".to_string());
        let parts: Vec<String> = landlock.into_iter().chain(seccomp).collect();
        match (parts.is_empty(), self.lack()) {
            (true, Some(lack)) => format!("off: {lack}"),
            (false, Some(lack)) => format!("partly on: {}; {lack}", parts.join(", ")),
            (_, None) => format!("on: {}", parts.join(", ")),
        }
    }

    /// Enters the sandbox with all threads of the process. What the kernel lacks is left out.
    ///
    /// # Errors
    ///
    /// Fails if a thread can't be restricted. Some may be by then, so the process must end.
    pub fn enter(self, rules: &SandboxRules) -> Result<()> {
        if self.landlock.is_some() || self.seccomp {
            set_sandboxed();
        }
        let enter = || {
            if let Some(version) = self.landlock {
                restrict_paths(rules, version)?;
            }
            if self.seccomp {
                system_calls::restrict(!rules.ports.is_empty())?;
            }
            Ok(())
        };
        enter().map_err(|e: Error| e.context("the sandbox"))
    }
}

/// Permits the calling thread access below open directories, and nothing else. Other threads are
/// not restricted.
///
/// # Errors
///
/// Fails if the kernel has no Landlock.
pub fn restrict_thread(directories: &[(OwnedFd, PathAccess)]) -> Result<()> {
    let mut ruleset = ruleset(&SandboxRules::default())?;
    for (directory, access) in directories {
        let rule = PathBeneath::new(directory, rights(*access));
        ruleset = ruleset.add_rule(rule).map_err(failed)?;
    }
    match ruleset.restrict_self().map_err(failed)?.ruleset {
        RulesetStatus::NotEnforced => Err(Error::system(libc::EOPNOTSUPP)),
        _ => Ok(()),
    }
}

/// Restricts the paths and ports of all threads.
fn restrict_paths(rules: &SandboxRules, version: i32) -> Result<()> {
    // the kernel knows a directory of /proc by an object that exists while the directory is open
    let process = PathFd::new("/proc/self").map_err(failed)?;
    let ruleset = ruleset(rules)?
        .add_rule(PathBeneath::new(&process, rights(PathAccess::Read)))
        .map_err(failed)?;
    std::mem::forget(process);
    if version >= ALL_THREADS {
        let entered = ruleset
            .all_threads(true)
            .and_then(|ruleset| ruleset.restrict_self());
        return entered.map(drop).map_err(failed);
    }
    let ruleset: Option<OwnedFd> = ruleset.into();
    let ruleset = ruleset.ok_or_else(|| Error::system(libc::EOPNOTSUPP))?;
    threads::restrict_all(ruleset.as_fd())
}

fn ruleset(rules: &SandboxRules) -> Result<landlock::RulesetCreated> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(KNOWN)))
        .and_then(|ruleset| ruleset.create())
        .map_err(failed)?;
    for (opened, access) in &rules.paths {
        let mut rights = rights(*access);
        let stat = rustix::fs::fstat(opened.as_fd())?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            rights &= AccessFs::from_file(KNOWN);
        }
        ruleset = ruleset
            .add_rule(PathBeneath::new(opened, rights))
            .map_err(failed)?;
    }
    for port in &rules.ports {
        ruleset = ruleset
            .add_rule(NetPort::new(*port, AccessNet::ConnectTcp))
            .map_err(failed)?;
    }
    Ok(ruleset)
}

/// Returns the rights of an access.
fn rights(access: PathAccess) -> BitFlags<AccessFs> {
    let never = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    match access {
        PathAccess::Read => AccessFs::ReadFile | AccessFs::ReadDir,
        PathAccess::Write => AccessFs::from_all(KNOWN) & !never,
        PathAccess::Files => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate,
        PathAccess::RemoveDirectories => AccessFs::RemoveDir.into(),
    }
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::io(e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_says_what_is_missing() {
        let described = |landlock, seccomp| SandboxSupport { landlock, seccomp }.description();
        assert_eq!(described(Some(7), true), "on: Landlock 7, seccomp");
        let partly = described(Some(3), true);
        assert!(
            partly
                .starts_with("partly on: Landlock 3, seccomp; the kernel's Landlock restricts no"),
            "{partly}"
        );
        let partly = described(None, true);
        assert!(
            partly.starts_with("partly on: seccomp; the kernel has no usable Landlock"),
            "{partly}"
        );
        let off = described(None, false);
        assert!(off.starts_with("off: the kernel has neither"), "{off}");
    }

    #[test]
    fn no_access_executes_or_makes_devices() {
        for access in [
            PathAccess::Read,
            PathAccess::Write,
            PathAccess::Files,
            PathAccess::RemoveDirectories,
        ] {
            let never = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock;
            assert!((rights(access) & never).is_empty(), "{access:?}");
        }
        assert!(rights(PathAccess::Write).contains(AccessFs::Refer));
    }
}
