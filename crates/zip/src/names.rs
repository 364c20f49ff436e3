//! Names of members: their encoding, and the keys that they become. Source of the rules: PKWARE's
//! APPNOTE.TXT 6.3.10, sections 4.4.4, 4.6.9 and appendix D.

use super::fields::RecordFields;
use zarrfs_store::Key;

/// Flag of a member whose name is UTF-8.
const IS_UTF8: u16 = 1 << 11;

/// Identifier of the extra field with the name in UTF-8.
const EXTRA_NAME: u16 = 0x7075;

/// The characters 128 to 255 of the IBM PC, which names without [`IS_UTF8`] consist of.
const CP437: &str = "\
    ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒ\
    áíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
    └┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀\
    αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// Converts the name of a member to a key, with a trailing slash for a directory. Returns `None`
/// for a name that cannot be one, such as an absolute path, a path that leads out of its directory,
/// or one that is too long.
pub(super) fn key_name(name: &[u8], flags: u16, extra: &[u8]) -> Option<String> {
    let name = decoded(name, flags, extra)?;
    // some archivers write backslashes
    let name = name.replace('\\', "/");
    let mut rest = name.as_str();
    while let Some(below) = rest.strip_prefix("./") {
        rest = below;
    }
    let names = rest.strip_suffix('/').unwrap_or(rest);
    let is_path = names
        .split('/')
        .all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'));
    (is_path && Key::is_short(names)).then(|| rest.to_string())
}

/// Returns the text of a name. Many archivers write UTF-8 without saying so.
fn decoded(name: &[u8], flags: u16, extra: &[u8]) -> Option<String> {
    if let Some(unicode) = unicode_name(name, extra) {
        return Some(unicode.to_string());
    }
    match std::str::from_utf8(name) {
        Ok(name) => Some(name.to_string()),
        Err(_) if flags & IS_UTF8 != 0 => None,
        Err(_) => name.iter().map(|byte| character(*byte)).collect(),
    }
}

/// Returns the name in the extra fields, unless it belongs to another name than the member has by
/// now.
pub(super) fn unicode_name<'a>(name: &[u8], extra: &'a [u8]) -> Option<&'a str> {
    let mut field = RecordFields(extra).extra(EXTRA_NAME)?;
    let is_version_1 = field.bytes(1)? == [1];
    let is_current = field.u32()? == crc32fast::hash(name);
    std::str::from_utf8(field.0)
        .ok()
        .filter(|_| is_version_1 && is_current)
}

/// Returns the character of a byte in code page 437.
fn character(byte: u8) -> Option<char> {
    match byte.checked_sub(128) {
        None => Some(char::from(byte)),
        Some(upper) => CP437.chars().nth(upper.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_code_page_437_is_a_character() {
        let all: String = (0..=255).filter_map(character).collect();
        assert_eq!(all.chars().count(), 256);
        assert_eq!(
            key_name(b"Gr\x94\xe1e/\x80\xff", 0, &[]).as_deref(),
            Some("Gr\u{f6}\u{df}e/\u{c7}\u{a0}")
        );
        assert_eq!(key_name(b"Gr\x94\xe1e", IS_UTF8, &[]), None);
        assert_eq!(
            key_name("\u{f6}".as_bytes(), 0, &[]).as_deref(),
            Some("\u{f6}")
        );
    }

    #[test]
    fn a_name_in_utf_8_counts_if_it_belongs_to_the_member() {
        let extra = |of: &[u8], name: &str| {
            let data = [
                &[1][..],
                &crc32fast::hash(of).to_le_bytes(),
                name.as_bytes(),
            ]
            .concat();
            [
                &EXTRA_NAME.to_le_bytes()[..],
                &(data.len() as u16).to_le_bytes(),
                &data,
            ]
            .concat()
        };
        let name = |extra: &[u8]| key_name(b"?", 0, extra);
        assert_eq!(
            name(&extra(b"?", "\u{6e29}/0")).as_deref(),
            Some("\u{6e29}/0")
        );
        assert_eq!(name(&extra(b"renamed", "\u{6e29}")).as_deref(), Some("?"));
        assert_eq!(name(&extra(b"?", "../x")), None);
        assert_eq!(name(&extra(b"?", "x")[..7]).as_deref(), Some("?"));
    }

    #[test]
    fn names_have_a_length_and_a_depth() {
        assert!(key_name(&b"a/".repeat(Key::MAX_LEVELS), 0, &[]).is_some());
        assert_eq!(key_name(&b"a/".repeat(Key::MAX_LEVELS + 1), 0, &[]), None);
        assert_eq!(key_name(&[b'a'; 20_000], 0, &[]), None);
    }
}
