//! Pages of listings, without the names that can't be keys: the crate refuses a whole page for one of them. It knows the
//! elements in which S3, Google and Azure list, nothing of what is done with the names.

/// The element of an entry, and the one in it that holds the name.
const ENTRIES: [(&str, &str); 4] =
    [("Contents", "Key"), ("CommonPrefixes", "Prefix"), ("Blob", "Name"), ("BlobPrefix", "Name")];

/// The XML of a page without the entries whose names have an empty level, `.`, `..` or a control character; None if there
/// are none.
pub(super) fn without_odd_ones(page: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(page).ok()?;
    let mut odd: Vec<_> = ENTRIES.iter().flat_map(|(entry, name)| odd_entries(text, entry, name)).collect();
    if odd.is_empty() {
        return None;
    }
    odd.sort_unstable();
    let mut kept = Vec::with_capacity(page.len());
    let mut done = 0;
    for (start, end) in odd {
        kept.extend_from_slice(page.get(done..start).unwrap_or_default());
        done = end;
    }
    kept.extend_from_slice(page.get(done..).unwrap_or_default());
    Some(kept)
}

/// Where the entries stand that can't be keys: offsets of their first byte and the one behind them.
fn odd_entries(text: &str, entry: &str, name: &str) -> Vec<(usize, usize)> {
    let (open, close) = (format!("<{entry}>"), format!("</{entry}>"));
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(&open).map(|n| at + n) {
        let Some(end) = text[start..].find(&close).map(|n| start + n + close.len()) else { break };
        if name_in(&text[start..end], name).is_some_and(|name| !is_key(&unescaped(name))) {
            found.push((start, end));
        }
        at = end;
    }
    found
}

/// The text of the element `name`, whose tag may have attributes.
fn name_in<'a>(entry: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = entry.split_once(&format!("<{name}"))?;
    let (_, rest) = rest.split_once('>')?;
    rest.split_once('<').map(|(text, _)| text)
}

/// What the crate takes for a path, but for the slash at the end of a prefix and of a marker.
fn is_key(name: &str) -> bool {
    let name = name.strip_suffix('/').unwrap_or(name);
    name.split('/').all(|level| !["", ".", ".."].contains(&level)) && !name.contains(|c: char| c.is_ascii_control())
}

/// Text of XML as it is meant.
fn unescaped(text: &str) -> String {
    let mut pieces = text.split('&');
    let mut all = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let (reference, rest) = piece.split_once(';').unwrap_or((piece, ""));
        all.extend(character(reference));
        all.push_str(rest);
    }
    all
}

fn character(reference: &str) -> Option<char> {
    match reference {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = reference.strip_prefix('#')?;
            let number = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_no_keys_go_and_all_others_stay_as_they_are() {
        let entry = |name: &str| format!("<Contents><Key>{name}</Key><Size>1</Size></Contents>");
        let prefix = |name: &str| format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>");
        let good = [entry("a/0.0"), entry("a/x&amp;y"), entry("a/dir/"), prefix("a/b/"), entry("ä ö")].concat();
        let odd = [entry("a//b"), entry("/"), entry("a/./b"), entry("a/..&#x2f;c"), entry("a&#10;b"), prefix("a//")];
        let page = format!("<R><Prefix>a//</Prefix>{}{good}{}</R>", odd[..3].concat(), odd[3..].concat());
        let kept = String::from_utf8(without_odd_ones(page.as_bytes()).unwrap()).unwrap();
        assert_eq!(kept, format!("<R><Prefix>a//</Prefix>{good}</R>"));
        let azure =
            "<Blobs><Blob><Name>a//b</Name></Blob><BlobPrefix><Name Encoded=\"false\">a//</Name></BlobPrefix></Blobs>";
        assert_eq!(without_odd_ones(azure.as_bytes()).unwrap(), b"<Blobs></Blobs>");
        for damaged in ["<Contents><Key>a//b", "<Contents>", "", "<Contents><Key</Contents>"] {
            assert_eq!(without_odd_ones(damaged.as_bytes()), None, "{damaged}");
        }
    }
}
