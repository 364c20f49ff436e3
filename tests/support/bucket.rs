//! The listings of a bucket, as S3 answers `ListObjectsV2`. The bucket is a folder in the folder of a server.

use super::{sha256, tree};
use std::collections::BTreeMap;
use std::path::Path;

/// The most names of a page.
const PAGE: usize = 1000;

/// Returns the entity tag of a value.
pub fn tag(value: &[u8]) -> String {
    format!("\"{}\"", &sha256(value)[..16])
}

/// Returns the page of names that `query` asks for.
pub fn page(bucket: &Path, query: &str) -> String {
    let query: BTreeMap<&str, String> =
        query.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, value)| (name, decoded(value))).collect();
    let get = |name: &str| query.get(name).cloned().unwrap_or_default();
    let (prefix, delimiter, after) = (get("prefix"), get("delimiter"), get("continuation-token"));
    let most = get("max-keys").parse().unwrap_or(PAGE).min(PAGE);
    // a level below a prefix is one name
    let mut names = BTreeMap::new();
    for (key, size) in keys(bucket, &prefix) {
        let end = key[prefix.len()..].find('/').filter(|_| !delimiter.is_empty()).map(|end| prefix.len() + end + 1);
        let name = key[..end.unwrap_or(key.len())].to_string();
        if name > after {
            names.entry(name).or_insert(end.is_none().then_some(size));
        }
    }
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
                let tag = tag(&std::fs::read(bucket.join(&name)).unwrap_or_default()).replace('"', "&quot;");
                let date = "<LastModified>2024-01-01T00:00:00.000Z</LastModified>";
                format!("<Contents><Key>{name}</Key>{date}<ETag>{tag}</ETag><Size>{size}</Size></Contents>")
            }
        };
    }
    text + "</ListBucketResult>"
}

/// Returns the keys below a prefix, with the sizes of their values.
fn keys(bucket: &Path, prefix: &str) -> Vec<(String, u64)> {
    let mut keys = Vec::new();
    let (folder, _) = prefix.rsplit_once('/').unwrap_or_default();
    if !bucket.join(folder).is_dir() {
        return keys;
    }
    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    tree::visit(&bucket.join(&folder), &mut |found| {
        let key = format!("{folder}{}", found.path.trim_start_matches('/'));
        let path = bucket.join(&key);
        if key.starts_with(prefix) && path.is_file() {
            keys.push((key, path.metadata().map_or(0, |metadata| metadata.len())));
        }
        true
    })
    .unwrap();
    keys
}

fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let byte = part.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok()).unwrap_or(b'?');
        out.push(char::from(byte));
        out += part.get(2..).unwrap_or_default();
    }
    out
}
