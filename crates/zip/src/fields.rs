//! Parses little-endian, unaligned fields of records in a zip archive.

/// The unparsed rest of a record.
pub(super) struct RecordFields<'a>(pub &'a [u8]);

impl<'a> RecordFields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    /// Returns the data of the first extra field with this identifier; the rest must be a list of
    /// extra fields.
    pub fn extra(mut self, id: u16) -> Option<RecordFields<'a>> {
        loop {
            let kind = self.u16()?;
            let len = self.u16()?;
            let data = self.bytes(len.into())?;
            if kind == id {
                return Some(RecordFields(data));
            }
        }
    }
}
