//! `--sandbox`: what a mount needs inside the sandbox, and what its guard does outside. This module
//! must not know how the kernel is asked.

use super::logger;
use super::{CommandFailure, CommandResult, DIAGNOSTICS, StoreLocation, absolute, words};
use crate::fuse::Mountpoint;
use clap::Args;
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::outside::{Answer, set_outside};
use zarrfs_base::spill_file;
use zarrfs_sandbox::{PathAccess, SandboxRules, SandboxSupport};

/// The variables of the guard. A missing variable forbids its service: opening the log file,
/// reading keys (the variable is the directory in which zarrfs was started), looking up hosts, and
/// opening spill files.
const LOG_FILE: &str = "ZARRFS_GUARD_LOG";
const START_DIRECTORY: &str = "ZARRFS_GUARD_DIRECTORY";
const HAS_SERVERS: &str = "ZARRFS_GUARD_SERVERS";
const SPILL_DIRECTORY: &str = "ZARRFS_GUARD_SPILL";

/// The option `--sandbox`.
#[derive(Args)]
pub struct SandboxArgs {
    /// Confine the daemon: off, on [default: auto]
    ///
    /// A daemon that serves can open its store and the directories of its options alone, connect
    /// to the ports of its servers, and start no program, whatever a store makes it do. auto uses
    /// what the kernel has of it, on refuses to mount without all of it. .zarrfs/stats says what is
    /// in use.
    #[arg(long, value_parser = words(&MODES), value_name = "WHEN", default_value = "auto",
        hide_possible_values = true, hide_default_value = true, help_heading = DIAGNOSTICS)]
    sandbox: SandboxMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SandboxMode {
    Auto,
    Off,
    On,
}

const MODES: [(&str, SandboxMode); 3] = [
    ("auto", SandboxMode::Auto),
    ("off", SandboxMode::Off),
    ("on", SandboxMode::On),
];

/// The paths and servers of a mount.
pub struct MountNeeds<'a> {
    /// The store, and then the places of references, independent of the working directory.
    pub places: Vec<(StoreLocation, PathAccess)>,
    /// Directories of the daemon, and of an overlay.
    pub own: Vec<(&'a Path, PathAccess)>,
    pub spill: PathBuf,
    pub endpoint: Option<&'a str>,
    /// The directory from which a directory made for the mount is removed.
    pub made_in: Option<PathBuf>,
}

/// The sandbox that a mount will enter.
pub struct Sandbox {
    /// `None` if there is none.
    support: Option<SandboxSupport>,
    rules: SandboxRules,
    /// What statistics show.
    pub description: String,
}

impl SandboxArgs {
    /// Returns the sandbox for a mount. The paths are opened here, since a path that leads through
    /// a mount cannot be opened before the mount answers.
    ///
    /// # Errors
    ///
    /// Fails if it is required, and the kernel lacks a part of it.
    pub fn prepare(&self, needs: &MountNeeds) -> CommandResult<Sandbox> {
        let support = SandboxSupport::of_kernel();
        let program = needs.runs_programs();
        match (self.sandbox, program.or(support.lack())) {
            (SandboxMode::Off, _) => Ok(Sandbox::off("--sandbox off")),
            (SandboxMode::On, Some(lack)) => Err(CommandFailure::failed(format!(
                "--sandbox on: {lack}; use --sandbox off, or leave the option out"
            ))),
            (SandboxMode::Auto, Some(lack)) if program.is_some() => Ok(Sandbox::off(lack)),
            _ => Ok(Sandbox {
                support: Some(support),
                rules: needs.rules(),
                description: support.description(),
            }),
        }
    }

    /// Starts the guard of a mount, which writes into a pipe when the daemon ends. Without it there
    /// is no sandbox.
    pub fn start_guard(
        &self,
        sandbox: &mut Sandbox,
        needs: &MountNeeds,
        mountpoint: &mut Mountpoint,
        deaths: Option<BorrowedFd>,
    ) -> Result<()> {
        let guard = mountpoint.start_guard(&needs.replaceable(), &needs.variables(), deaths);
        let Err(e) = guard else {
            return Ok(());
        };
        if self.sandbox == SandboxMode::On {
            return Err(e.context("--sandbox on"));
        }
        log::debug!("{e}; if the daemon is killed, its mount may hang until it is unmounted");
        if sandbox.support.is_some() {
            *sandbox = Sandbox::off(&e.to_string());
        }
        Ok(())
    }
}

impl Sandbox {
    fn off(why: &str) -> Self {
        Sandbox {
            support: None,
            rules: SandboxRules::default(),
            description: format!("off: {why}"),
        }
    }

    /// Enters the sandbox with all threads of the process.
    pub fn enter(&self, mountpoint: &Mountpoint) -> Result<()> {
        let (Some(support), Some(guard)) = (self.support, mountpoint.guard()) else {
            return Ok(());
        };
        support.enter(&self.rules)?;
        let outside = guard.clone();
        zarrfs_store::change_directories_by(Box::new(move |call, directories| {
            let made = outside.call(call, directories);
            made.map_err(|e| Errno::from_raw_os_error(e.errno()))
        }));
        let guard = guard.clone();
        set_outside(move |service, argument, limit| guard.serve(service, argument, limit));
        Ok(())
    }
}

impl MountNeeds<'_> {
    /// Returns why the mount can't have a sandbox: a client of its store or references starts
    /// programs.
    fn runs_programs(&self) -> Option<&'static str> {
        #[cfg(feature = "remote")]
        if self.urls().any(zarrfs_remote::runs_azure_cli) {
            return Some("AZURE_USE_AZURE_CLI starts the program az");
        }
        None
    }

    /// Returns the directories in whose place others may be found later.
    fn replaceable(&self) -> Vec<(PathBuf, PathAccess)> {
        let places = self.places.iter();
        places
            .filter_map(|(location, access)| Some((location.path()?.to_path_buf(), *access)))
            .collect()
    }

    /// Returns the variables of the guard.
    fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![(SPILL_DIRECTORY, self.spill.clone().into())];
        if let Some(path) = logger::path() {
            variables.push((LOG_FILE, path.into()));
        }
        if self.urls().next().is_some() {
            variables.push((HAS_SERVERS, "1".into()));
        }
        if self.urls().any(|url| url.starts_with("s3")) {
            let directory = std::env::current_dir().unwrap_or_default();
            variables.push((START_DIRECTORY, directory.into()));
        }
        variables
    }

    /// Returns the URLs of the store and of references.
    fn urls(&self) -> impl Iterator<Item = &str> {
        self.places
            .iter()
            .filter_map(|(location, _)| match location {
                StoreLocation::Url(url) => Some(url.as_str()),
                _ => None,
            })
    }

    fn rules(&self) -> SandboxRules {
        let mut rules = SandboxRules::default();
        rules.permit("/dev/null", PathAccess::Files);
        for (n, (location, access)) in self.places.iter().enumerate() {
            // a store may be a part of an archive or repository
            let path = location.path().and_then(|path| match n {
                0 => path.ancestors().find(|above| above.exists()),
                _ => Some(path),
            });
            let Some(path) = path else { continue };
            if path.is_file() {
                // an archive or a file of references may be replaced by another file of its name
                permit_around(&mut rules, path);
            }
            rules.permit(path, *access);
        }
        for (directory, access) in &self.own {
            rules.permit(absolute(directory), *access);
        }
        if let Some(directory) = &self.made_in {
            rules.permit(directory, PathAccess::RemoveDirectories);
        }
        self.add_servers(&mut rules);
        rules
    }

    /// Adds what requests to servers need.
    fn add_servers(&self, rules: &mut SandboxRules) {
        for place in &self.places {
            let StoreLocation::Url(url) = &place.0 else {
                continue;
            };
            // clouds, services for credentials, and redirects from http to https
            rules.connect([80, 443]);
            rules.connect(port_of(url));
            rules.connect(self.endpoint.and_then(port_of));
            #[cfg(feature = "remote")]
            {
                let needs = zarrfs_remote::ClientNeeds::new(url);
                rules.connect(needs.urls.iter().filter_map(|url| port_of(url)));
                for file in needs.token_files {
                    permit_around(rules, &file);
                }
                // clients for the targets of references are made later, also for those beside a
                // store that is a file of references
                if self.places.first().is_none_or(|store| store.0 != place.0)
                    || super::location::leads_into_archive(url)
                {
                    for file in needs.files {
                        rules.permit(file, PathAccess::Read);
                    }
                }
            }
        }
    }
}

/// Permits to read a file that may be replaced by another one of its name: what lies in its
/// directory, and where a link leads.
fn permit_around(rules: &mut SandboxRules, file: &Path) {
    let target = std::fs::canonicalize(file).ok();
    for file in std::iter::once(file).chain(target.as_deref()) {
        if let Some(directory) = file.parent() {
            rules.permit(directory, PathAccess::Read);
        }
    }
}

/// Returns the port of a URL. The scheme may be missing, as in variables for proxies.
fn port_of(url: &str) -> Option<u16> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    match host.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => port.parse().ok(),
        _ => match scheme.to_ascii_lowercase().as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        },
    }
}

/// Returns a variable of the guard.
fn variable(name: &str) -> Result<PathBuf> {
    let value = std::env::var_os(name).map(PathBuf::from);
    value.ok_or_else(|| Error::system(libc::EPERM))
}

fn text(argument: &[u8]) -> Result<&str> {
    str::from_utf8(argument).map_err(|_| Error::system(libc::EINVAL))
}

/// Runs a service in the guard.
pub fn serve(service: &str, argument: &[u8]) -> Result<Answer> {
    match service {
        logger::OPEN_LOG => {
            let file = logger::open(&variable(LOG_FILE)?).map_err(|e| Error::io(e.message))?;
            Ok(Answer::of_file(file))
        }
        spill_file::OPEN_UNNAMED => {
            let directory = variable(SPILL_DIRECTORY)?;
            if directory.as_os_str().as_bytes() != argument {
                return Err(Error::system(libc::EACCES));
            }
            spill_file::unnamed_file(&directory).map(Answer::of_file)
        }
        zarrfs_store::NAME_HOLDER => {
            let name = zarrfs_store::name_holder(text(argument)?);
            let name = name.ok_or_else(|| Error::system(libc::ENOENT))?;
            Ok(Answer::of_bytes(name.into_bytes()))
        }
        #[cfg(feature = "remote")]
        zarrfs_remote::READ_KEYS => {
            zarrfs_remote::read_keys(variable(START_DIRECTORY)?, argument).map(Answer::of_bytes)
        }
        #[cfg(feature = "remote")]
        zarrfs_remote::FIND_HOST => {
            variable(HAS_SERVERS)?;
            let host = text(argument)?;
            zarrfs_remote::find_host(host).map(Answer::of_bytes)
        }
        _ => Err(Error::system(libc::EOPNOTSUPP)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_urls() {
        for (url, port) in [
            ("http://a", Some(80)),
            ("https://a/b:5", Some(443)),
            ("HTTP://u:p@[::1]:9000/x", Some(9000)),
            ("https://[::1]/x", Some(443)),
            ("proxy:3128", Some(3128)),
            ("s3://bucket/key", None),
            ("http://a:b", None),
        ] {
            assert_eq!(port_of(url), port, "{url}");
        }
    }
}
