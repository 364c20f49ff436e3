//! Removes names that cannot be keys from pages of listings. `object_store` refuses a whole page
//! that contains one. This module knows the XML elements in which S3, Google and Azure list names.

use quick_xml::escape::unescape;

/// The element of an entry, and the element in it that contains the name.
const ENTRIES: [(&str, &str); 4] = [
    ("Contents", "Key"),
    ("CommonPrefixes", "Prefix"),
    ("Blob", "Name"),
    ("BlobPrefix", "Name"),
];

/// Returns the XML of a page without the entries whose names have an empty level, `.`, `..` or a
/// control character, or `None` if there are no such entries.
pub(super) fn remove_invalid_names(page: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(page).ok()?;
    let mut invalid: Vec<_> = ENTRIES
        .iter()
        .flat_map(|(entry, name)| invalid_entries(text, entry, name))
        .collect();
    if invalid.is_empty() {
        return None;
    }
    invalid.sort_unstable();
    let mut kept = Vec::with_capacity(page.len());
    let mut done = 0;
    for (start, end) in invalid {
        kept.extend_from_slice(page.get(done..start).unwrap_or_default());
        done = end;
    }
    kept.extend_from_slice(page.get(done..).unwrap_or_default());
    Some(kept)
}

/// Returns the byte ranges of entries whose names cannot be keys.
fn invalid_entries(text: &str, entry: &str, name: &str) -> Vec<(usize, usize)> {
    let open = format!("<{entry}>");
    let close = format!("</{entry}>");
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(&open).map(|n| at + n) {
        let Some(end) = text[start..].find(&close).map(|n| start + n + close.len()) else {
            break;
        };
        if name_in(&text[start..end], name)
            .and_then(|name| unescape(name).ok())
            .is_some_and(|name| !is_key(&name))
        {
            found.push((start, end));
        }
        at = end;
    }
    found
}

/// Returns the text of the element `name`, whose tag may have attributes.
fn name_in<'a>(entry: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = entry.split_once(&format!("<{name}"))?;
    let (_, rest) = rest.split_once('>')?;
    rest.split_once('<').map(|(text, _)| text)
}

/// Returns whether `object_store` accepts the name; prefixes and markers end with a slash.
fn is_key(name: &str) -> bool {
    let name = name.strip_suffix('/').unwrap_or(name);
    name.split('/')
        .all(|level| !["", ".", ".."].contains(&level))
        && !name.contains(|c: char| c.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_cannot_be_keys_are_removed_and_others_stay_unchanged() {
        let entry = |name: &str| format!("<Contents><Key>{name}</Key><Size>1</Size></Contents>");
        let prefix =
            |name: &str| format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>");
        let good = [
            entry("a/0.0"),
            entry("a/x&amp;y"),
            entry("a/dir/"),
            prefix("a/b/"),
            entry("ä ö"),
        ]
        .concat();
        let invalid = [
            entry("a//b"),
            entry("/"),
            entry("a/./b"),
            entry("a/..&#x2f;c"),
            entry("a&#10;b"),
            prefix("a//"),
        ];
        let page = format!(
            "<R><Prefix>a//</Prefix>{}{good}{}</R>",
            invalid[..3].concat(),
            invalid[3..].concat()
        );
        let kept = String::from_utf8(remove_invalid_names(page.as_bytes()).unwrap()).unwrap();
        assert_eq!(kept, format!("<R><Prefix>a//</Prefix>{good}</R>"));
        let azure = "<Blobs><Blob><Name>a//b</Name></Blob><BlobPrefix><Name Encoded=\"false\">a//</Name></BlobPrefix></Blobs>";
        assert_eq!(
            remove_invalid_names(azure.as_bytes()).unwrap(),
            b"<Blobs></Blobs>"
        );
        for damaged in [
            "<Contents><Key>a//b",
            "<Contents>",
            "",
            "<Contents><Key</Contents>",
        ] {
            assert_eq!(remove_invalid_names(damaged.as_bytes()), None, "{damaged}");
        }
    }
}
