//! Names of stores as command lines spell them: paths, URLs, and names of archives. This module
//! must not look at what exists.

use crate::cli::{CommandFailure, CommandResult, absolute};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use zarrfs_format::metadata::ZARR_JSON;
use zarrfs_store::Key;

/// URL schemes of remote stores.
const SCHEMES: [&str; 9] = [
    "http", "https", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss",
];

/// Ending of the names of archives.
const ARCHIVE: &str = ".zip";

/// Ending of the names of archives of OME-NGFF (RFC-9).
const OME_ARCHIVE: &str = ".ozx";

/// Ending of the names of files of references.
const REFERENCES: &str = ".json";

/// The location of a store, or of a group or array in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// A path of a directory, or of an archive or a key in one.
    Path(PathBuf),
    /// A URL of a remote store.
    Url(String),
    /// A new store in memory.
    Memory,
}

impl From<OsString> for StoreLocation {
    fn from(name: OsString) -> Self {
        match name.to_str() {
            Some("memory:" | "memory://") => StoreLocation::Memory,
            Some(text) if scheme(text) == Some("file") => StoreLocation::Path(file_path(text)),
            Some(text) if scheme(text).is_some() || is_misspelled(text) => {
                StoreLocation::Url(text.to_string())
            }
            _ => StoreLocation::Path(name.into()),
        }
    }
}

impl StoreLocation {
    /// Returns the location independent of the working directory.
    pub fn absolute(&self) -> StoreLocation {
        match self {
            StoreLocation::Path(path) => StoreLocation::Path(absolute(path)),
            other => other.clone(),
        }
    }

    /// Returns the location above this one, and the name of this one in it. Returns `None` at the
    /// top, and if the name can't be a key.
    pub fn split_last(&self) -> Option<(StoreLocation, Key)> {
        let (above, name) = match self {
            StoreLocation::Path(path) => (
                StoreLocation::Path(path.parent()?.to_path_buf()),
                path.file_name()?.to_str()?.to_string(),
            ),
            StoreLocation::Url(url) => {
                let parts = UrlParts::of(url);
                let depth = parts.names.len().checked_sub(1)?;
                (
                    StoreLocation::Url(parts.up_to(depth)),
                    parts.names[depth].to_string(),
                )
            }
            StoreLocation::Memory => return None,
        };
        Key::root().child(&name).ok().map(|key| (above, key))
    }

    /// Returns the last name of the location. A whole bucket has its own name.
    pub fn name(&self) -> Option<String> {
        let name = match self {
            StoreLocation::Path(path) => absolute(path).file_name()?.to_str()?.to_string(),
            StoreLocation::Url(url) => {
                let parts = UrlParts::of(url);
                let server = parts.server.rsplit('/').find(|part| !part.is_empty());
                parts.names.last().copied().or(server)?.to_string()
            }
            StoreLocation::Memory => "memory".to_string(),
        };
        Some(name)
    }

    /// Returns the path of a local store.
    pub fn path(&self) -> Option<&Path> {
        match self {
            StoreLocation::Path(path) => Some(path),
            _ => None,
        }
    }
}

impl fmt::Display for StoreLocation {
    /// Omits secrets, because messages and the mount table show the location.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreLocation::Path(path) => path.display().fmt(f),
            StoreLocation::Url(url) => f.write_str(&without_secrets(url)),
            StoreLocation::Memory => f.write_str("memory:"),
        }
    }
}

/// Returns the scheme of a URL, or `None` for a path. A directory with such a name can be given as
/// `./NAME`.
fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_word = scheme
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (is_word && scheme.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(scheme)
}

/// Returns whether `text` is a URL without its slashes. A directory is unlikely to be named `s3:`.
fn is_misspelled(text: &str) -> bool {
    let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
    SCHEMES.contains(&scheme) || ["file", "memory"].contains(&scheme)
}

/// Checks the scheme of a URL.
pub fn check_url(url: &str) -> CommandResult {
    let shown = without_secrets(url);
    let known = SCHEMES.join("://, ");
    let why = match scheme(url) {
        Some(scheme) if SCHEMES.contains(&scheme) => return Ok(()),
        _ if url.starts_with("memory:") => {
            "a store in memory has no path and can only be mounted; use memory:".to_string()
        }
        None => format!("no // after the scheme; for a directory use ./{shown}"),
        Some(_) => format!("unknown scheme; use {known}://, file:// or memory:"),
    };
    Err(CommandFailure::wrong_use(format!("{shown}: {why}")))
}

/// Returns the path of a `file://` URL.
fn file_path(url: &str) -> PathBuf {
    let rest = url.strip_prefix("file://").unwrap_or(url);
    let path = rest
        .strip_prefix("localhost")
        .filter(|path| path.starts_with('/'))
        .unwrap_or(rest);
    OsString::from_vec(percent_encoding::percent_decode_str(path).collect()).into()
}

/// Returns a URL without user, password and query.
fn without_secrets(url: &str) -> String {
    let Some((start, rest)) = url.split_once("://") else {
        return url.to_string();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // abfs://container@account is no secret
    let authority = match start {
        "http" | "https" => authority.rsplit('@').next().unwrap_or_default(),
        _ => authority,
    };
    format!("{start}://{authority}{path}")
}

/// A URL of a store in parts.
pub struct UrlParts<'a> {
    /// What precedes the path.
    server: &'a str,
    /// The names of the path.
    pub names: Vec<&'a str>,
    /// The query, or nothing.
    query: &'a str,
}

impl<'a> UrlParts<'a> {
    pub fn of(url: &'a str) -> Self {
        let (base, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
        let start = base.find("://").map_or(0, |at| at + 3);
        let path = base[start..].find('/').map_or(base.len(), |at| start + at);
        let (server, path) = base.split_at(path);
        UrlParts {
            server,
            names: path.split('/').filter(|name| !name.is_empty()).collect(),
            query,
        }
    }

    /// Returns the URL up to a number of names, with the query.
    pub fn up_to(&self, depth: usize) -> String {
        let names = self.names.iter().take(depth);
        let path: String = names.map(|name| format!("/{name}")).collect();
        format!("{}{path}{}", self.server, self.query)
    }

    /// Returns the place of the first name that is an archive or a file of references.
    pub fn archive(&self) -> Option<usize> {
        self.names
            .iter()
            .position(|name| is_archive_name(name) || is_references_name(name))
    }
}

/// Returns whether an archive may have this name.
pub fn is_archive_name(name: &str) -> bool {
    has_ending(name, ARCHIVE) || is_ome_archive_name(name)
}

/// Returns whether an archive of OME-NGFF may have this name.
pub fn is_ome_archive_name(name: &str) -> bool {
    has_ending(name, OME_ARCHIVE)
}

/// Returns whether a name has an ending, in letters of either case, and something before it.
fn has_ending(name: &str, ending: &str) -> bool {
    name.len() > ending.len() && name.to_ascii_lowercase().ends_with(ending)
}

/// Returns whether the name belongs to a file of references.
pub fn is_references_name(name: &str) -> bool {
    has_ending(name, REFERENCES) && name != ZARR_JSON
}

/// Returns whether a URL leads to an archive or a file of references, or to a key in one.
pub fn leads_into_archive(url: &str) -> bool {
    UrlParts::of(url).archive().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(name: &str) -> StoreLocation {
        OsString::from(name).into()
    }

    #[test]
    fn names_are_paths_or_urls() {
        for path in ["a/b.zarr", "/a://b", "C:\\x", "./s3://x", "://x", "1a://x"] {
            assert_eq!(location(path), StoreLocation::Path(path.into()), "{path}");
        }
        assert_eq!(
            location("file:///a%20b/c%zz"),
            StoreLocation::Path("/a b/c%zz".into())
        );
        assert_eq!(
            location("file://localhost/a"),
            StoreLocation::Path("/a".into())
        );
        assert_eq!(location("s3://b/x"), StoreLocation::Url("s3://b/x".into()));
        assert_eq!(location("memory:"), StoreLocation::Memory);
        for text in ["memory:/a", "memory://a", "s3:/b/x", "file:/x", "http:h/x"] {
            let StoreLocation::Url(url) = location(text) else {
                panic!("{text}")
            };
            let said = check_url(&url)
                .map_err(|e| (e.code, e.message))
                .unwrap_err();
            assert!(
                said.0 == 2 && said.1.starts_with(&format!("{text}: ")),
                "{said:?}"
            );
        }
        assert_eq!(location("./s3:x"), StoreLocation::Path("./s3:x".into()));
    }

    #[test]
    fn secrets_in_urls_are_not_shown() {
        for (url, shown) in [
            ("https://u:p@h:80/a/b?sig=x#y", "https://h:80/a/b"),
            ("https://h?sig=x", "https://h"),
            ("abfs://c@account/p", "abfs://c@account/p"),
        ] {
            assert_eq!(location(url).to_string(), shown);
        }
    }

    #[test]
    fn a_url_is_split_into_names() {
        let parts = UrlParts::of("s3://bucket//a/b.zarr/?x=1/2");
        assert_eq!(parts.names, ["a", "b.zarr"]);
        let urls: Vec<String> = (0..4).map(|depth| parts.up_to(depth)).collect();
        let url = |path: &str| format!("s3://bucket{path}?x=1/2");
        assert_eq!(
            urls,
            [url(""), url("/a"), url("/a/b.zarr"), url("/a/b.zarr")]
        );
    }

    #[test]
    fn a_location_is_split_into_parent_and_name() {
        let split = |name| {
            location(name)
                .split_last()
                .map(|(above, key)| (above, key.as_str().to_string()))
        };
        assert_eq!(split("/a/b.zarr"), Some((location("/a"), "b.zarr".into())));
        assert_eq!(
            split("s3://bucket/a/b/?x=1"),
            Some((location("s3://bucket/a?x=1"), "b".into()))
        );
        for top in ["/", "s3://bucket", "memory:"] {
            assert_eq!(split(top), None, "{top}");
        }
    }

    #[test]
    fn urls_into_archives_are_split() {
        let parts = |url| {
            let parts = UrlParts::of(url);
            let at = parts.archive()?;
            let name = parts.names[at].to_string();
            Some((parts.up_to(at), name, parts.names[at + 1..].join("/")))
        };
        let found = |folder: &str, name: &str, inside: &str| {
            Some((folder.into(), name.into(), inside.into()))
        };
        assert_eq!(
            parts("https://h/a/b.zip"),
            found("https://h/a", "b.zip", "")
        );
        assert_eq!(
            parts("https://h/a/b.ZIP/g/x?sig=1/2"),
            found("https://h/a?sig=1/2", "b.ZIP", "g/x")
        );
        assert_eq!(parts("https://h/b.ozx/0"), found("https://h", "b.ozx", "0"));
        assert_eq!(
            parts("s3://bucket/b.zip"),
            found("s3://bucket", "b.zip", "")
        );
        assert_eq!(
            parts("https://h/a/refs.json/g?sig=1"),
            found("https://h/a?sig=1", "refs.json", "g")
        );
        for url in [
            "https://h/a.zarr/zarr.json",
            "https://h/.json",
            "https://h.zip/a",
            "https://h/a?x=b.zip",
            "https://h/a/.zip",
            "https://h.zip",
        ] {
            assert_eq!(parts(url), None, "{url}");
        }
    }
}
