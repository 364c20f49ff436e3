//! Relative paths of a mount in the background, which leaves the directory where it was started.
//!
//! Rule: code that opens a path after the mount answers gets an absolute path. All such paths are
//! made absolute here: [`absolute`] is for those of the command line (the store, `--spill-dir`,
//! `--log-journal`), and [`variables`] for those of the environment. Paths that are opened before
//! the mount answers may stay relative: `--cache-dir`, `--synchronizer` and files of headers. The
//! log is opened again, by its absolute name.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Variables with the name of a file or directory that the mount, or a program that it runs for
/// credentials, opens later.
const VARIABLES: [&str; 10] = [
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_CONFIG_DIR",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HOME",
    "SSL_CERT_FILE",
    "TMPDIR",
];

/// Returns the absolute form of a path, with the links in its existing part resolved.
pub fn absolute(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let real = whole.ancestors().find_map(|above| {
        let rest = whole.strip_prefix(above).ok()?;
        let real = std::fs::canonicalize(above).ok()?;
        Some(real.components().chain(rest.components()).collect())
    });
    real.unwrap_or(whole)
}

/// Returns the variables of the environment that name a path that is opened later, and the absolute
/// path.
pub fn paths() -> Vec<(&'static str, PathBuf)> {
    let profiles = std::env::home_dir().map(|home| ("HOME", home.join(".aws").into()));
    set_variables()
        .chain(profiles)
        .filter_map(|(name, path)| Some((name, std::path::absolute(path).ok()?)))
        .collect()
}

/// Returns the variables of the environment that name a relative path, with the absolute one.
pub fn variables() -> Vec<(&'static str, PathBuf)> {
    set_variables()
        .filter_map(|(name, value)| Some((name, absolute_form(value)?)))
        .collect()
}

/// Returns those of [`VARIABLES`] that are set, with their values.
fn set_variables() -> impl Iterator<Item = (&'static str, OsString)> {
    VARIABLES
        .into_iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)))
}

/// Returns the absolute form of a relative path. A path below `~` is not relative.
fn absolute_form(value: OsString) -> Option<PathBuf> {
    let is_relative = !value.is_empty()
        && !value.as_bytes().starts_with(b"/")
        && !value.as_bytes().starts_with(b"~/");
    // links are not resolved: a link to a token may change
    if is_relative {
        std::path::absolute(value).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_of_variables_become_absolute() {
        let form = |value: &str| absolute_form(value.into());
        let here = std::env::current_dir().unwrap();
        assert_eq!(form("a/token"), Some(here.join("a/token")));
        for value in ["", "/a/token", "~/.aws/token"] {
            assert_eq!(form(value), None, "{value}");
        }
    }

    #[test]
    fn a_missing_path_becomes_absolute() {
        assert_eq!(
            absolute(Path::new("nothing/here")),
            std::env::current_dir().unwrap().join("nothing/here")
        );
        assert_eq!(
            absolute(Path::new("src/..")),
            std::fs::canonicalize(".").unwrap()
        );
    }
}
