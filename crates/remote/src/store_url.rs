//! URLs of stores: the kind of server, the bucket, and the prefix. This module sends no requests.

use reqwest::Url;
use zarrfs_base::error::{Error, Result};
use zarrfs_store::Key;

/// The provider of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cloud {
    S3,
    Google,
    Azure,
}

/// The parsed URL of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreUrl {
    /// A URL of a web server.
    Web(Url),
    /// `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
    Bucket {
        cloud: Cloud,
        /// The bucket or, for Azure, the container.
        bucket: String,
        /// The Azure account, if the URL names it:
        /// `abfs://container@account.dfs.core.windows.net/prefix`.
        account: Option<String>,
        prefix: Key,
    },
}

impl StoreUrl {
    /// Parses a URL. Names after `s3://`, `gs://`, `az://` and `abfs://` are literal, those after
    /// `http://` are percent-encoded.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| Error::invalid("not a URL"))?;
        let (place, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let cloud = match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => return Self::web(url),
            "s3" | "s3a" => Cloud::S3,
            "gs" | "gcs" => Cloud::Google,
            "az" | "azure" | "adl" | "abfs" | "abfss" => Cloud::Azure,
            _ => return Err(Error::invalid(format!("unknown scheme {scheme}://"))),
        };
        if place.is_empty() {
            return Err(Error::invalid("the URL names no bucket"));
        }
        let (bucket, account) = match place.split_once('@') {
            Some((container, host)) if cloud == Cloud::Azure => {
                (container, host.split('.').next().map(str::to_string))
            }
            _ => (place, None),
        };
        if !is_name(bucket) || !account.as_deref().is_none_or(is_name) {
            return Err(Error::invalid(format!(
                "{place:?} can't be the name of a bucket, which has letters, digits and some of -_.:$~"
            )));
        }
        Ok(StoreUrl::Bucket {
            cloud,
            bucket: bucket.to_string(),
            account,
            prefix: Key::normalize(prefix)?,
        })
    }

    fn web(url: &str) -> Result<Self> {
        let mut url = Url::parse(url).map_err(|e| Error::invalid(e.to_string()))?;
        url.set_fragment(None);
        if let Ok(mut names) = url.path_segments_mut() {
            names.pop_if_empty();
        }
        Ok(StoreUrl::Web(url))
    }

    /// Returns the server or the bucket, without passwords, for messages.
    pub fn server(&self) -> String {
        match self {
            StoreUrl::Web(url) => url.origin().ascii_serialization(),
            StoreUrl::Bucket {
                cloud,
                bucket,
                account,
                ..
            } => match (cloud, account) {
                (Cloud::S3, _) => format!("s3://{bucket}"),
                (Cloud::Google, _) => format!("gs://{bucket}"),
                (Cloud::Azure, None) => format!("az://{bucket}"),
                (Cloud::Azure, Some(account)) => {
                    format!("abfs://{bucket}@{account}.dfs.core.windows.net")
                }
            },
        }
    }

    /// Returns the URL without passwords and signatures, for messages.
    pub fn without_secrets(&self) -> String {
        match self {
            StoreUrl::Web(url) => without_secrets(url),
            StoreUrl::Bucket { prefix, .. } if prefix.is_root() => self.server(),
            StoreUrl::Bucket { prefix, .. } => format!("{}/{}", self.server(), prefix.as_str()),
        }
    }
}

/// Returns whether a text can be the name of a bucket on any server, and part of a URL as it is.
/// Each server has stricter rules.
fn is_name(text: &str) -> bool {
    ![".", ".."].contains(&text)
        && (1..=255).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:$~".contains(&byte))
}

/// Returns a URL without user, password, query and fragment, each of which may be a secret.
pub(super) fn without_secrets(url: &Url) -> String {
    let mut url = url.clone();
    // a URL that cannot have a user or password has none
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
    fn urls_of_all_kinds_are_parsed() {
        let located = |cloud, bucket: &str, account: Option<&str>, prefix| StoreUrl::Bucket {
            cloud,
            bucket: bucket.to_string(),
            account: account.map(str::to_string),
            prefix: Key::normalize(prefix).unwrap(),
        };
        let s3 = |bucket, prefix| located(Cloud::S3, bucket, None, prefix);
        let azure = |account| located(Cloud::Azure, "c", account, "x/y");
        assert_eq!(
            StoreUrl::parse("s3://b/a b/100%#1?/").unwrap(),
            s3("b", "a b/100%#1?")
        );
        assert_eq!(
            StoreUrl::parse("s3://my_bucket").unwrap(),
            s3("my_bucket", "")
        );
        assert_eq!(StoreUrl::parse("az://c/x/y").unwrap(), azure(None));
        assert_eq!(StoreUrl::parse("abfs://c/x/y").unwrap(), azure(None));
        assert_eq!(
            StoreUrl::parse("abfss://c@acc.dfs.core.windows.net/x/y").unwrap(),
            azure(Some("acc"))
        );
        for bad in [
            "s3://",
            "s3:///x",
            "s3://b/../x",
            "ftp://h/x",
            "nothing",
            "http://",
            "s3://a b/x",
            "s3://a%zz",
            "s3://./x",
            "gs://\u{e9}/x",
            "az://a?b/x",
            "s3://a#b",
        ] {
            assert!(StoreUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = |url| StoreUrl::parse(url).unwrap().without_secrets();
        assert_eq!(
            shown("https://me:secret@host:8443/a%20b.zarr/?sig=secret#x"),
            "https://host:8443/a%20b.zarr"
        );
        assert_eq!(shown("gs://b/x/"), "gs://b/x");
        assert_eq!(
            shown("abfs://c@a.dfs.core.windows.net/x"),
            "abfs://c@a.dfs.core.windows.net/x"
        );
    }
}
