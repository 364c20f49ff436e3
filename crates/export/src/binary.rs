//! Fields of a binary header in either byte order. This module knows no format.

/// The fields of a header so far.
pub struct HeaderFields {
    bytes: Vec<u8>,
    is_big_endian: bool,
}

impl HeaderFields {
    /// Returns an empty header in the given byte order.
    pub fn new(is_big_endian: bool) -> Self {
        HeaderFields {
            bytes: Vec::new(),
            is_big_endian,
        }
    }

    /// Appends a number, given as its little-endian bytes.
    pub fn put<const N: usize>(&mut self, mut little: [u8; N]) {
        if self.is_big_endian {
            little.reverse();
        }
        self.bytes.extend(little);
    }

    /// Appends bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Appends zeros.
    pub fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// Appends text in a NUL-terminated field of `width` bytes; longer text is cut between two
    /// characters.
    pub fn text(&mut self, text: &str, width: usize) {
        let mut end = text.len().min(width.saturating_sub(1));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = self.bytes.len();
        self.bytes.extend(text.bytes().take(end));
        self.bytes.resize(before + width, 0);
    }

    /// Returns the number of bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns all bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_either_byte_order() {
        let bytes = |is_big_endian| {
            let mut fields = HeaderFields::new(is_big_endian);
            fields.put(258u16.to_le_bytes());
            fields.text("aé", 3);
            fields.text("b", 2);
            fields.into_bytes()
        };
        assert_eq!(bytes(false), b"\x02\x01a\0\0b\0");
        assert_eq!(bytes(true), b"\x01\x02a\0\0b\0");
    }
}
