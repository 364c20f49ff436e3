//! Listings of a bucket in the format of S3's `ListObjectsV2`. The bucket is a subfolder of the
//! folder that a server serves.

use super::sha256;
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of names in a page, as in S3.
const PAGE: usize = 1000;

/// Returns the entity tag of a value.
pub fn tag(value: &[u8]) -> String {
    format!("\"{}\"", &sha256(value)[..16])
}

/// Returns the page of names that `query` asks for.
pub fn page(bucket: &Path, query: &str) -> String {
    let query: BTreeMap<&str, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name, decoded(value)))
        .collect();
    let get = |name: &str| query.get(name).cloned().unwrap_or_default();
    let prefix = get("prefix");
    let delimiter = get("delimiter");
    let after = get("continuation-token").max(get("start-after"));
    let most = get("max-keys").parse().unwrap_or(PAGE).min(PAGE);
    let mut names = BTreeMap::new();
    add_names(bucket, "", &prefix, !delimiter.is_empty(), &mut names);
    names.retain(|name, _| *name > after);
    let is_truncated = names.len() > most;
    let names: Vec<_> = names.into_iter().take(most).collect();
    let mut text = format!("<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
    if let Some((last, _)) = names.last().filter(|_| is_truncated) {
        text += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
    }
    for (name, size) in names {
        text += &match size {
            None => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            Some(size) => {
                let tag = tag(&std::fs::read(bucket.join(&name)).unwrap_or_default())
                    .replace('"', "&quot;");
                let date = "<LastModified>2024-01-01T00:00:00.000Z</LastModified>";
                format!(
                    "<Contents><Key>{name}</Key>{date}<ETag>{tag}</ETag><Size>{size}</Size></Contents>"
                )
            }
        };
    }
    text + "</ListBucketResult>"
}

/// Adds the keys in a folder that begin with a prefix, with the sizes of their values in bytes. If
/// `is_delimited` is set, a level below the prefix is one name without a size.
fn add_names(
    bucket: &Path,
    folder: &str,
    prefix: &str,
    is_delimited: bool,
    names: &mut BTreeMap<String, Option<u64>>,
) {
    for entry in std::fs::read_dir(bucket.join(folder))
        .into_iter()
        .flatten()
        .flatten()
    {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let key = format!("{folder}{name}");
        let is_directory = entry.path().is_dir();
        let below = format!("{key}/");
        if is_directory && is_delimited && below.starts_with(prefix) && below != prefix {
            if holds_files(&entry.path()) {
                names.insert(below, None);
            }
        } else if is_directory && (below.starts_with(prefix) || prefix.starts_with(&below)) {
            add_names(bucket, &below, prefix, is_delimited, names);
        } else if !is_directory && key.starts_with(prefix) {
            names.insert(
                key,
                Some(entry.path().metadata().map_or(0, |metadata| metadata.len())),
            );
        }
    }
}

/// Returns whether a folder holds files at any depth. A bucket has no empty levels.
fn holds_files(folder: &Path) -> bool {
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| !entry.path().is_dir() || holds_files(&entry.path()))
}

fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let byte = part
            .get(..2)
            .and_then(|code| u8::from_str_radix(code, 16).ok())
            .unwrap_or(b'?');
        out.push(char::from(byte));
        out += part.get(2..).unwrap_or_default();
    }
    out
}
