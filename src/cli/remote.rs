//! Options of remote stores. This module must not know how they are reached.

use super::{REMOTE, duration, size, words};
use crate::array::hierarchy::UseConsolidated;
use clap::Args;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_store::ObjectOptions;

/// Options of every verb that opens a remote store.
#[derive(Args, Clone)]
#[command(next_help_heading = REMOTE)]
pub struct RemoteArgs {
    /// Use this server (http://127.0.0.1:9000)
    ///
    /// Needed for object storage that is not the provider's own.
    #[arg(long, value_name = "URL")]
    pub endpoint_url: Option<String>,
    /// Set the S3 region [default: the bucket's]
    ///
    /// The default for another server is the region in the environment or the profile. If the
    /// server names another one, that is used.
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Send no credentials, as public buckets allow
    #[arg(long)]
    anon: bool,
    /// Send a header, or those in a file
    ///
    /// Such as "Authorization: Bearer TOKEN". A file has one header a line, which other users can't
    /// see in the list of processes. May be given several times.
    #[arg(long = "header", value_name = "K:V|@FILE", value_parser = header_arg)]
    headers: Vec<HeaderArg>,
    /// Limit the time of a request
    ///
    /// The time includes the retries.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    pub timeout: Duration,
    /// Limit the retries of a request
    ///
    /// By default a request is repeated until --timeout.
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// Treat status 403 (Forbidden) as "no such key"
    ///
    /// Some servers answer 403 for keys that don't exist.
    #[arg(long = "403-is-missing")]
    forbidden_is_missing: bool,
    /// Keep encoded chunks in this directory
    ///
    /// Later mounts use them, too. Several mounts may share the directory.
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Limit the size of --cache-dir
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = size::parse)]
    pub cache_dir_size: u64,
    /// Reuse metadata for this time [default: 1s]
    ///
    /// A time, or forever. Opening a file always asks. info, ls and check ask for everything once.
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    metadata_ttl: Option<Ttl>,
    /// Read .zmetadata: use, ignore [default: auto]
    ///
    /// auto reads it where the store can't be listed, and of a bucket that is only read: by info
    /// and ls, and in a mount with --read-only, until a file is opened. use reads it always, ignore
    /// never.
    #[arg(
        long,
        value_parser = words(&WHEN),
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub consolidated: UseConsolidated,
}

/// A time to live; `None` is forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl(pub Option<Duration>);

/// The words of `--consolidated`.
const WHEN: [(&str, UseConsolidated); 3] = [
    ("auto", UseConsolidated::Auto),
    ("use", UseConsolidated::Always),
    ("ignore", UseConsolidated::Never),
];

fn ttl(text: &str) -> std::result::Result<Ttl, String> {
    match text {
        "forever" => Ok(Ttl(None)),
        "0" | "0s" => Ok(Ttl(Some(Duration::ZERO))),
        _ => duration::parse(text).map(|ttl| Ttl(Some(ttl))),
    }
}

/// A value of `--header`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeaderArg {
    /// A header.
    Given(String, String),
    /// A file of headers. It is read when the store is opened, not when the command line is parsed.
    File(PathBuf),
}

/// Maximum size of a file of headers, in bytes.
const MAX_HEADERS: u64 = 64 << 10;

fn header_arg(text: &str) -> std::result::Result<HeaderArg, String> {
    match text.strip_prefix('@') {
        Some("") => Err("@ must be followed by the name of a file".to_string()),
        Some(file) => Ok(HeaderArg::File(file.into())),
        None => header(text).map(|(name, value)| HeaderArg::Given(name, value)),
    }
}

/// Reads a file of headers, one a line; empty lines and lines that begin with `#` are skipped.
/// Errors never show the content, which is a secret.
fn headers_of_file(path: &Path) -> Result<Vec<(String, String)>> {
    read_headers(path).context(format!("--header @{}", path.display()))
}

fn read_headers(path: &Path) -> Result<Vec<(String, String)>> {
    let mut text = String::new();
    File::open(path)?
        .take(MAX_HEADERS + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > MAX_HEADERS {
        return Err(Error::invalid(format!("more than {MAX_HEADERS} bytes")));
    }
    let mut headers = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        headers.push(header(line).map_err(|_| {
            Error::invalid(format!(
                "line {}: not a header, such as X-Token: abc",
                n + 1
            ))
        })?);
    }
    Ok(headers)
}

fn header(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("a header is a name and a value, such as \"X-Token: abc\"")?;
    if name.is_empty() || !name.chars().all(is_token) {
        return Err(format!("{name:?} can't be the name of a header"));
    }
    let value = value.trim_matches([' ', '\t']);
    if value.chars().all(|c| c == '\t' || (' '..='~').contains(&c)) {
        Ok((name.to_string(), value.to_string()))
    } else {
        Err("the value of a header is of printable ASCII characters".to_string())
    }
}

/// Returns whether the name of a header may have this character.
fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

/// Default time to live of metadata for a command that does not read the store once.
const TTL: Ttl = Ttl(Some(Duration::from_secs(1)));

impl RemoteArgs {
    /// Returns the time to live of metadata, by default forever for a command that reads the store
    /// once.
    pub fn metadata_ttl(&self, reads_once: bool) -> Option<Duration> {
        self.metadata_ttl
            .unwrap_or(if reads_once { Ttl(None) } else { TTL })
            .0
    }

    /// Returns the options of the store.
    ///
    /// # Errors
    ///
    /// Fails if a file of headers can't be read.
    pub fn options(&self) -> Result<ObjectOptions> {
        let mut headers = Vec::new();
        for header in &self.headers {
            match header {
                HeaderArg::Given(name, value) => headers.push((name.clone(), value.clone())),
                HeaderArg::File(path) => headers.extend(headers_of_file(path)?),
            }
        }
        Ok(ObjectOptions {
            endpoint_url: self.endpoint_url.clone(),
            region: self.region.clone(),
            anonymous: self.anon,
            headers,
            timeout: self.timeout,
            retries: self.retries.unwrap_or(u32::MAX),
            refusal_is_final: false,
            forbidden_is_missing: self.forbidden_is_missing,
            redirects: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_times_are_parsed() {
        assert_eq!(
            header("X-Token:  a: b "),
            Ok(("X-Token".into(), "a: b".into()))
        );
        for text in ["", "x", ": y", "a b: c", "a: b\n", "a: \u{e9}"] {
            assert!(header(text).is_err(), "{text:?}");
        }
        assert_eq!(header_arg("@/a b"), Ok(HeaderArg::File("/a b".into())));
        assert!(header_arg("@").is_err());
        assert_eq!(ttl("forever"), Ok(Ttl(None)));
        assert_eq!(ttl("0s"), Ok(Ttl(Some(Duration::ZERO))));
        assert_eq!(ttl("2m"), Ok(Ttl(Some(Duration::from_secs(120)))));
        assert!(ttl("1").is_err() && ttl("never").is_err());
    }

    #[test]
    fn files_of_headers_are_read_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("headers");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            headers_of_file(&file)
        };
        let expected = vec![
            ("A".to_string(), "1".to_string()),
            ("B".to_string(), "2: 3".to_string()),
        ];
        assert_eq!(
            read("# of the archive\nA: 1\r\n\nB:2: 3\n").unwrap(),
            expected
        );
        for text in [
            "A: 1\nsecret",
            "secret secret: 1",
            "A: sec\u{1}ret",
            &"secret".repeat(20_000),
        ] {
            let error = read(text).unwrap_err();
            let said = error.to_string();
            assert!(
                said.contains("headers") && !said.contains("secret") && said.lines().count() == 1,
                "{said}"
            );
        }
        assert_eq!(
            headers_of_file(Path::new("/nothing")).unwrap_err().errno(),
            libc::ENOENT
        );
    }
}
