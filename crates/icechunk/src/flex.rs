//! Reads the containers of virtual chunks from the configuration of a repository, which is in
//! FlexBuffers (<https://flatbuffers.dev/flatbuffers_internals/#flexbuffers>). This module checks
//! each offset when it follows it, and knows no other part of the configuration.

/// Maximum number of containers, and maximum length of their names and prefixes in bytes.
const MAX_CONTAINERS: usize = 1024;
const MAX_TEXT: usize = 16 << 10;

/// Types of values.
const STRING: u8 = 5;
const MAP: u8 = 9;

/// A value.
#[derive(Clone, Copy)]
struct FlexValue<'a> {
    bytes: &'a [u8],
    /// Place of what the value refers to.
    place: usize,
    /// Size in bytes of the numbers that describe it.
    width: usize,
    kind: u8,
}

impl<'a> FlexValue<'a> {
    /// Returns the value that the bytes hold.
    fn root(bytes: &'a [u8]) -> Option<Self> {
        let [.., packed, width] = bytes else {
            return None;
        };
        let at = bytes.len().checked_sub(2 + usize::from(*width))?;
        Self::at(bytes, at, usize::from(*width), *packed)
    }

    /// Returns the value whose offset, of `width` bytes, is at `at`.
    fn at(bytes: &'a [u8], at: usize, width: usize, packed: u8) -> Option<Self> {
        let kind = packed >> 2;
        let place = if [STRING, MAP].contains(&kind) {
            at.checked_sub(number(bytes, at, width)?)?
        } else {
            at
        };
        Some(FlexValue {
            bytes,
            place,
            width: 1 << (packed & 3),
            kind,
        })
    }

    fn text(self) -> Option<&'a str> {
        let len = number(self.bytes, self.place.checked_sub(self.width)?, self.width)?;
        let bytes = self.bytes.get(self.place..self.place.checked_add(len)?)?;
        (self.kind == STRING && len <= MAX_TEXT).then(|| std::str::from_utf8(bytes).ok())?
    }

    /// Returns the values of a map, each with the bytes that begin with its name and a NUL.
    fn entries(self) -> impl Iterator<Item = (&'a [u8], FlexValue<'a>)> {
        let len = (self.kind == MAP)
            .then(|| number(self.bytes, self.place.checked_sub(self.width)?, self.width))
            .flatten();
        (0..len.unwrap_or(0)).map_while(move |n| self.entry(n, len?))
    }

    fn entry(self, n: usize, len: usize) -> Option<(&'a [u8], FlexValue<'a>)> {
        let FlexValue {
            bytes,
            place,
            width,
            ..
        } = self;
        let keys = place.checked_sub(3 * width)?;
        let key_width = number(bytes, keys + width, width)?;
        let keys = keys.checked_sub(number(bytes, keys, width)?)?;
        let key = keys.checked_add(n.checked_mul(key_width)?)?;
        let name = bytes.get(key.checked_sub(number(bytes, key, key_width)?)?..)?;
        let types = place.checked_add(len.checked_mul(width)?)?;
        let packed = *bytes.get(types.checked_add(n)?)?;
        Some((name, Self::at(bytes, place + n * width, width, packed)?))
    }

    fn get(self, name: &str) -> Option<FlexValue<'a>> {
        let is_name = |bytes: &[u8]| {
            let rest = bytes.strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.first() == Some(&0))
        };
        let mut entries = self.entries();
        entries
            .find(|(bytes, _)| is_name(bytes))
            .map(|(_, value)| value)
    }
}

/// Returns a number of `width` bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    if ![1, 2, 4, 8].contains(&width) {
        return None;
    }
    let number = bytes
        .iter()
        .rev()
        .fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number).ok()
}

/// Returns the name and the prefix of URLs of each container that a configuration names
/// (`virtual_chunk_containers` of icechunk's `RepositoryConfig`).
pub(super) fn containers(configuration: &[u8]) -> Vec<(String, String)> {
    let containers =
        FlexValue::root(configuration).and_then(|root| root.get("virtual_chunk_containers"));
    let entries = containers.into_iter().flat_map(FlexValue::entries);
    entries
        .take(MAX_CONTAINERS)
        .filter_map(|(_, container)| {
            let name = container.get("name")?.text()?;
            let prefix = container.get("url_prefix")?.text()?;
            Some((name.to_string(), prefix.to_string()))
        })
        .collect()
}
