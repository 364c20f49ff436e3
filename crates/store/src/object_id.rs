//! Identifiers of snapshots, manifests and chunks, and their spelling in the names of files.

use std::fmt;

/// Crockford's alphabet.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Length of the text of an identifier.
const LEN: usize = 20;

/// The identifier of a snapshot, manifest or chunk: 12 random bytes. It is shown in base 32, zero
/// bits appended on the right (specification 2.1, section "Common Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(
    /// The bytes.
    pub [u8; 12],
);

impl ObjectId {
    /// Parses the text of an identifier, in upper or lower case.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != LEN {
            return None;
        }
        let digits = text.bytes().map(|c| {
            let c = c.to_ascii_uppercase();
            DIGITS.iter().position(|digit| *digit == c)
        });
        let bits = digits
            .into_iter()
            .try_fold(0u128, |bits, digit| Some(bits << 5 | digit? as u128))?;
        let bytes = (bits >> 4).to_be_bytes();
        // 4 bits follow the 96 of the identifier
        (bits & 0xf == 0).then(|| ObjectId(std::array::from_fn(|i| bytes[4 + i])))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self
            .0
            .iter()
            .fold(0u128, |bits, byte| bits << 8 | u128::from(*byte))
            << 4;
        (0..LEN).rev().try_for_each(|n| {
            let digit = DIGITS[(bits >> (5 * n)) as usize & 31];
            write!(f, "{}", char::from(digit))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_snapshot_has_the_name_that_the_specification_gives() {
        let id = ObjectId([
            0x0b, 0x1c, 0xc8, 0xd6, 0x78, 0x75, 0x80, 0xf0, 0xe3, 0x3a, 0x65, 0x34,
        ]);
        assert_eq!(id.to_string(), "1CECHNKREP0F1RSTCMT0");
        assert_eq!(ObjectId::parse("1CECHNKREP0F1RSTCMT0"), Some(id));
        assert_eq!(ObjectId::parse("1cechnkrep0f1rstcmt0"), Some(id));
        for text in [
            "",
            "1CECHNKREP0F1RSTCMT",
            "1CECHNKREP0F1RSTCMT1",
            "../../../../../../..",
            "1CECHNKREP0F1RSTCM/0",
            "1CECHNKREP0F1RSTCMU0",
        ] {
            assert_eq!(ObjectId::parse(text), None, "{text}");
        }
    }
}
