//! URLs of stores: which kind of server, which bucket, which prefix in it. It asks no server and no environment.

use crate::error::{Error, Result};
use crate::store::Key;
use reqwest::Url;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// Below a URL of a web server.
    Web(Url),
    /// `s3://bucket/prefix`.
    S3 { bucket: String, prefix: Key },
    /// `gs://bucket/prefix`.
    Google { bucket: String, prefix: Key },
    /// `az://container/prefix`, or `abfs://container@account.dfs.core.windows.net/prefix`, which names the account.
    Azure { container: String, account: Option<String>, prefix: Key },
}

impl Location {
    /// Reads a URL. Names after `s3://`, `gs://`, `az://` and `abfs://` are taken as they are, those after `http://` are
    /// escaped as in every URL.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| Error::invalid("not a URL"))?;
        let (place, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let named = || match place.is_empty() {
            true => Err(Error::invalid("the URL names no bucket")),
            false => Ok((place.to_string(), Key::normalize(prefix)?)),
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => Self::web(url),
            "s3" | "s3a" => named().map(|(bucket, prefix)| Location::S3 { bucket, prefix }),
            "gs" | "gcs" => named().map(|(bucket, prefix)| Location::Google { bucket, prefix }),
            "az" | "azure" | "adl" | "abfs" | "abfss" => {
                let (place, prefix) = named()?;
                let (container, account) = match place.split_once('@') {
                    Some((container, host)) => (container, host.split('.').next().map(str::to_string)),
                    None => (place.as_str(), None),
                };
                Ok(Location::Azure { container: container.to_string(), account, prefix })
            }
            _ => Err(Error::invalid(format!("no store is known by {scheme}://"))),
        }
    }

    fn web(url: &str) -> Result<Self> {
        let mut url = Url::parse(url).map_err(|e| Error::invalid(e.to_string()))?;
        url.set_fragment(None);
        if let Ok(mut names) = url.path_segments_mut() {
            names.pop_if_empty();
        }
        Ok(Location::Web(url))
    }

    /// The URL as it may be shown: no password, no signature.
    pub fn shown(&self) -> String {
        let join = |scheme: &str, place: &str, prefix: &Key| match prefix.is_root() {
            true => format!("{scheme}://{place}"),
            false => format!("{scheme}://{place}/{}", prefix.as_str()),
        };
        match self {
            Location::Web(url) => shown(url),
            Location::S3 { bucket, prefix } => join("s3", bucket, prefix),
            Location::Google { bucket, prefix } => join("gs", bucket, prefix),
            Location::Azure { container, account: None, prefix } => join("az", container, prefix),
            Location::Azure { container, account: Some(account), prefix } => {
                join("abfs", &format!("{container}@{account}.dfs.core.windows.net"), prefix)
            }
        }
    }
}

/// A URL without its user, password, query and fragment: each may be a secret.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // a URL that can't have them has none
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_all_kinds() {
        let key = |path| Key::normalize(path).unwrap();
        let s3 = |bucket: &str, prefix| Location::S3 { bucket: bucket.to_string(), prefix: key(prefix) };
        assert_eq!(Location::parse("s3://b/a b/100%#1?/").unwrap(), s3("b", "a b/100%#1?"));
        assert_eq!(Location::parse("s3://my_bucket").unwrap(), s3("my_bucket", ""));
        let azure = |account: Option<&str>| Location::Azure {
            container: "c".to_string(),
            account: account.map(str::to_string),
            prefix: key("x/y"),
        };
        assert_eq!(Location::parse("az://c/x/y").unwrap(), azure(None));
        assert_eq!(Location::parse("abfs://c/x/y").unwrap(), azure(None));
        assert_eq!(Location::parse("abfss://c@acc.dfs.core.windows.net/x/y").unwrap(), azure(Some("acc")));
        for bad in ["s3://", "s3:///x", "s3://b/../x", "ftp://h/x", "nothing", "http://"] {
            assert!(Location::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = |url| Location::parse(url).unwrap().shown();
        assert_eq!(shown("https://me:secret@host:8443/a%20b.zarr/?sig=secret#x"), "https://host:8443/a%20b.zarr");
        assert_eq!(shown("gs://b/x/"), "gs://b/x");
        assert_eq!(shown("abfs://c@a.dfs.core.windows.net/x"), "abfs://c@a.dfs.core.windows.net/x");
    }
}
