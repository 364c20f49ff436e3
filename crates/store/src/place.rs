//! Places: normalized paths and URLs. A comparison of names tells whether one place lies below
//! another. This module opens nothing.
//!
//! Targets are hostile: no request is ever made from their text. A place becomes a key in a store
//! that was opened at a prefix which the user named.

use percent_encoding::percent_decode_str;
use std::path::Path;
use zarrfs_base::error::{Error, Kind, Result};

/// The origin of local files.
const LOCAL: &str = "file";

/// A normalized path or URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPlace {
    /// Scheme, host and port of a server, scheme and bucket, or [`LOCAL`].
    origin: String,
    /// Names of the path, none of which is empty, `.` or `..`.
    names: Vec<String>,
}

impl TargetPlace {
    /// Returns the place of an absolute local path.
    ///
    /// # Errors
    ///
    /// Fails for a path that is not UTF-8.
    pub fn of_path(path: &Path) -> Result<Self> {
        let text = path
            .to_str()
            .ok_or_else(|| Error::invalid(format!("{}: not UTF-8", path.display())))?;
        resolved(LOCAL.to_string(), &[], text, false)
    }

    /// Returns the place of a URL from the user or from a redirect, without its user, password and
    /// query.
    ///
    /// # Errors
    ///
    /// Fails if `url` is not a URL.
    pub fn of_url(url: &str) -> Result<Self> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| Error::invalid("not a URL"))?;
        let is_web = is_web(&scheme.to_ascii_lowercase());
        let rest = if is_web {
            rest.split(['?', '#']).next().unwrap_or_default()
        } else {
            rest
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = if is_web {
            authority.rsplit('@').next().unwrap_or_default()
        } else {
            authority
        };
        Self::on_server(scheme, host, path)
    }

    /// Returns the place of a target that a document names, relative to the `folder` of the
    /// document.
    ///
    /// # Errors
    ///
    /// EACCES for a target that leads nowhere where it may, [`Kind::Unsupported`] for a URL with a
    /// query.
    pub fn of_target(text: &str, folder: &TargetPlace) -> Result<Self> {
        let Some((scheme, rest)) = split_scheme(text) else {
            let is_web = !text.starts_with('/') && folder.is_web();
            check_query(text, is_web)?;
            return if text.starts_with('/') {
                resolved(LOCAL.to_string(), &[], text, false)
            } else {
                resolved(folder.origin.clone(), &folder.names, text, is_web)
            };
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if scheme.eq_ignore_ascii_case(LOCAL) {
            return match authority {
                "" | "localhost" => resolved(LOCAL.to_string(), &[], path, true),
                _ => Err(refused("names another machine")),
            };
        }
        check_query(text, is_web(&scheme.to_ascii_lowercase()))?;
        Self::on_server(scheme, authority, path)
    }

    /// Returns whether the place is on a server.
    pub fn is_remote(&self) -> bool {
        self.origin != LOCAL
    }

    fn is_web(&self) -> bool {
        self.origin.starts_with("http://") || self.origin.starts_with("https://")
    }

    /// Returns the names of `self` below `prefix`.
    pub fn below(&self, prefix: &TargetPlace) -> Option<&[String]> {
        if self.origin != prefix.origin {
            return None;
        }
        self.names.strip_prefix(prefix.names.as_slice())
    }

    /// Returns whether the place is one of `prefixes` or below one.
    pub fn is_below_any(&self, prefixes: &[TargetPlace]) -> bool {
        prefixes.iter().any(|prefix| self.below(prefix).is_some())
    }

    /// Returns the last name.
    pub fn name(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }

    /// Returns the number of names.
    pub fn depth(&self) -> usize {
        self.names.len()
    }

    fn on_server(scheme: &str, authority: &str, path: &str) -> Result<Self> {
        let scheme = scheme.to_ascii_lowercase();
        let authority = match scheme.as_str() {
            "http" => host(authority, ":80")?,
            "https" => host(authority, ":443")?,
            _ => authority.to_string(),
        };
        // schemes that name the same buckets
        let kind = match scheme.as_str() {
            "s3a" => "s3",
            "gcs" => "gs",
            "azure" | "adl" | "abfs" | "abfss" => "az",
            other => other,
        };
        resolved(format!("{kind}://{authority}"), &[], path, is_web(kind))
    }
}

/// Returns the scheme of a URL and what follows it.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let is_word = scheme
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (is_word && scheme.starts_with(|c: char| c.is_ascii_alphabetic())).then_some((scheme, rest))
}

fn is_web(scheme: &str) -> bool {
    ["http", "https"].contains(&scheme)
}

/// Returns the host and port of a URL in the one spelling that is compared.
fn host(authority: &str, default_port: &str) -> Result<String> {
    let host = authority.to_ascii_lowercase();
    // a user or password in a document is none that the user has given; a backslash ends the host
    // for some parsers
    let is_plain = host
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c));
    if host.is_empty() || !is_plain {
        return Err(refused("has no plain host"));
    }
    Ok(host
        .strip_suffix(default_port)
        .filter(|host| !host.is_empty())
        .unwrap_or(&host)
        .trim_end_matches(':')
        .to_string())
}

fn check_query(text: &str, is_web: bool) -> Result<()> {
    if is_web && text.contains(['?', '#']) {
        Err(Error::unsupported(
            "a target with a query; give signatures in the URL of --allow-reference",
        ))
    } else {
        Ok(())
    }
}

/// Resolves a path relative to `names`.
fn resolved(origin: String, names: &[String], path: &str, is_encoded: bool) -> Result<TargetPlace> {
    let mut names = if path.starts_with('/') {
        Vec::new()
    } else {
        names.to_vec()
    };
    let is_web = is_encoded && origin != LOCAL;
    for part in path.split('/') {
        // decoded first, since servers treat `%2e%2e` as `..`
        let name = if is_encoded {
            percent_decode_str(part)
                .decode_utf8()
                .map_err(|_| refused("is not UTF-8"))?
        } else {
            part.into()
        };
        match &*name {
            "" | "." => {}
            ".." => drop(names.pop().ok_or_else(|| refused("leads above the top"))?),
            name if name.contains(['/', '\0']) => return Err(refused("has a name that is none")),
            name if is_web && may_climb(name) => {
                return Err(refused("has a name that may lead elsewhere"));
            }
            name => names.push(name.to_string()),
        }
    }
    Ok(TargetPlace { origin, names })
}

/// Returns whether some server takes a decoded name for several, or for `..`: it may decode the
/// name again, end it at a semicolon, or treat a backslash or a sign that looks like a slash as
/// one.
fn may_climb(name: &str) -> bool {
    let again = percent_decode_str(name).decode_utf8_lossy();
    let is_separator =
        |c: char| "/\\\0\u{2044}\u{2215}\u{2216}\u{29f8}\u{ff0f}\u{ff3c}".contains(c);
    let before = name.split(';').next().unwrap_or_default();
    name.contains(is_separator)
        || [".", ".."].contains(&before)
        || *again != *name && may_climb(&again)
}

/// Returns the error for a target that may not be opened.
pub fn refused(why: &str) -> Error {
    Error::new(Kind::System(libc::EACCES), why)
}

/// Adds the target to an error.
pub fn target_error(target: &str, e: Error) -> Error {
    e.context(format!("the target {}", shown(target)))
}

/// Returns a target without user, password and query, for messages.
fn shown(text: &str) -> String {
    let Some((scheme, rest)) = split_scheme(text) else {
        return text.to_string();
    };
    let rest = if is_web(&scheme.to_ascii_lowercase()) {
        rest.split(['?', '#']).next().unwrap_or_default()
    } else {
        rest
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = if is_web(&scheme.to_ascii_lowercase()) {
        authority.rsplit('@').next().unwrap_or_default()
    } else {
        authority
    };
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what follows `prefix` in a target, if that is below it.
    fn rest(target: &str, prefix: &str) -> Option<String> {
        let prefix = place(prefix);
        let target = TargetPlace::of_target(target, &prefix).ok()?;
        target.below(&prefix).map(|names| names.join("/"))
    }

    fn place(text: &str) -> TargetPlace {
        if text.contains("://") {
            TargetPlace::of_url(text).unwrap()
        } else {
            TargetPlace::of_path(Path::new(text)).unwrap()
        }
    }

    #[test]
    fn targets_below_a_prefix_are_found_in_every_spelling() {
        for (target, prefix, expected) in [
            ("x.nc", "/d", "x.nc"),
            ("./a//b/../x.nc", "/d", "a/x.nc"),
            ("/d/x y%20.nc", "/d/", "x y%20.nc"),
            ("/d/../d/x", "/d", "x"),
            ("file:///d/x%20y", "/d", "x y"),
            ("FILE://localhost/d/x", "/d", "x"),
            ("/x", "/", "x"),
            ("../d/x", "/d", "x"),
            ("https://h/a/x", "https://h/a", "x"),
            ("HTTPS://H:443/a/%78", "https://h/a/", "x"),
            ("http://h/a/x", "http://u:p@H:80/a?sig=1", "x"),
            ("http://[::1]:80/a/x", "http://[::1]/a", "x"),
            ("x%20y", "https://h/a", "x y"),
            ("s3a://b/p/x?y#z", "s3://b/p", "x?y#z"),
            ("x%20y", "s3://b/p", "x%20y"),
            ("https://h/a/50%25;x", "https://h/a", "50%;x"),
            ("a%5cb", "s3://b/p", "a%5cb"),
            ("file:///d/x%5cy", "/d", "x\\y"),
            (
                "abfs://c@acc.dfs.core.windows.net/x",
                "az://c@acc.dfs.core.windows.net",
                "x",
            ),
        ] {
            assert_eq!(
                rest(target, prefix).as_deref(),
                Some(expected),
                "{target} below {prefix}"
            );
        }
    }

    #[test]
    fn targets_outside_a_prefix_are_found_out() {
        for (target, prefix) in [
            ("../x", "/d"),
            ("/etc/passwd", "/d"),
            ("/dx/y", "/d"),
            ("a/../../x", "/d"),
            ("/../../x", "/d"),
            ("file:///d/%2e%2e/x", "/d"),
            ("file://other/d/x", "/d"),
            ("https://h/ab/x", "https://h/a"),
            ("https://h/a/../b", "https://h/a"),
            ("https://h/a/%2E%2e/b", "https://h/a"),
            ("https://h/a%2f..%2fb", "https://h/a"),
            ("https://h/a/x%2fy", "https://h/a"),
            ("https://h/a/%ff", "https://h/a"),
            ("https://h/a/..%5cb", "https://h/a"),
            ("https://h/a/x\\..\\..\\b", "https://h/a"),
            ("https://h/a/%252e%252e/b", "https://h/a"),
            ("https://h/a/..%25%32%66b", "https://h/a"),
            ("https://h/a/..;/b", "https://h/a"),
            ("https://h/a/..%3bx/b", "https://h/a"),
            ("https://h/a/..%ef%bc%8fb", "https://h/a"),
            ("..%5cb", "https://h/a"),
            ("http://h/a/x", "https://h/a"),
            ("https://h:444/a/x", "https://h/a"),
            ("https://h@evil/a/x", "https://h/a"),
            ("https://u:p@h/a/x", "https://h/a"),
            ("https://h\\@evil/a/x", "https://h/a"),
            ("https://evil\\.h/a/x", "https://h/a"),
            ("https://h.evil/a/x", "https://h/a"),
            ("https://h/a/x?redirect=y", "https://h/a"),
            ("https:///a/x", "https://h/a"),
            ("//evil/x", "https://h/a"),
            ("/a/x", "https://h/a"),
            ("../x", "https://h/a"),
            ("file:///a/x", "https://h/a"),
            ("s3://c/p/x", "s3://b/p"),
            ("s3://b/px", "s3://b/p"),
            ("gs://b/p/x", "s3://b/p"),
            ("ftp://h/a/x", "https://h/a"),
            ("simplecache::https://h/a/x", "/d/../e"),
            ("", "s3://b/p/../q/.."),
        ] {
            let found = rest(target, prefix).filter(|rest| !rest.is_empty());
            let is_relative = target.starts_with("simplecache");
            assert_eq!(
                found.is_some(),
                is_relative,
                "{target} below {prefix}: {found:?}"
            );
        }
    }

    #[test]
    fn secrets_of_targets_are_not_shown() {
        assert_eq!(shown("https://u:p@h/a?sig=x"), "https://h/a");
        assert_eq!(shown("/a?b@c"), "/a?b@c");
        assert_eq!(shown("s3://b/x"), "s3://b/x");
    }
}
