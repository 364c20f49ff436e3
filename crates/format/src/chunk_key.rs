//! Chunk keys: the name of a chunk's value in the store, made of its grid indices. The module knows
//! no store. Source of the rules: Zarr v2 specification, "Chunks" and "dimension_separator".

use crate::grid::{ChunkId, Grid};

/// The character between the grid indices of a chunk key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    /// `0.0`
    Dot,
    /// `0/0`: each index is a level of the hierarchy.
    Slash,
}

impl Separator {
    /// Returns `.` or `/`.
    pub fn as_char(self) -> char {
        match self {
            Separator::Dot => '.',
            Separator::Slash => '/',
        }
    }
}

/// The encoding of chunk keys below an array's prefix. Source: `chunk_key_encoding` of the v3
/// specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEncoding {
    /// Whether keys begin with `c`: the encoding `default` of v3. v2 has no prefix.
    pub has_prefix: bool,
    /// The separator of the parts.
    pub separator: Separator,
}

impl Grid {
    /// Returns the stored key of a chunk: `c/0/1`, or without a prefix the key of
    /// [`Grid::chunk_key`]. With a prefix, a 0-d array has the key `c`. In a grid of shards,
    /// `chunk` is the number of a shard.
    pub fn stored_key(
        &self,
        chunk: ChunkId,
        KeyEncoding {
            has_prefix,
            separator,
        }: KeyEncoding,
    ) -> String {
        match (has_prefix, self.counts().is_empty()) {
            (false, _) => self.chunk_key(chunk, separator),
            (true, true) => "c".to_string(),
            (true, false) => format!(
                "c{}{}",
                separator.as_char(),
                self.chunk_key(chunk, separator)
            ),
        }
    }

    /// Returns the chunk that the stored key `key` names: the inverse of [`Grid::stored_key`].
    pub fn parse_stored_key(
        &self,
        key: &str,
        KeyEncoding {
            has_prefix,
            separator,
        }: KeyEncoding,
    ) -> Option<ChunkId> {
        match (has_prefix, self.counts().is_empty()) {
            (false, _) => self.parse_chunk_key(key, separator),
            (true, true) => (key == "c").then_some(ChunkId(0)),
            (true, false) => self.parse_chunk_key(
                key.strip_prefix('c')?.strip_prefix(separator.as_char())?,
                separator,
            ),
        }
    }

    /// Returns the key of a chunk: its grid indices joined by `separator`, or `0` for a 0-d array.
    pub fn chunk_key(&self, chunk: ChunkId, separator: Separator) -> String {
        let indices: Vec<String> = self.indices(chunk).iter().map(u64::to_string).collect();
        if indices.is_empty() {
            "0".to_string()
        } else {
            indices.join(separator.as_char().encode_utf8(&mut [0; 4]))
        }
    }

    /// Returns the chunk that `key` names, or `None` if `key` is not the canonical key of a chunk
    /// of this grid.
    pub fn parse_chunk_key(&self, key: &str, separator: Separator) -> Option<ChunkId> {
        if self.counts().is_empty() {
            return (key == "0").then_some(ChunkId(0));
        }
        let indices: Vec<u64> = key
            .split(separator.as_char())
            .map(parse_index)
            .collect::<Option<_>>()?;
        let is_inside = indices
            .iter()
            .zip(self.counts())
            .all(|(index, count)| index < count);
        (is_inside && indices.len() == self.counts().len()).then(|| self.chunk(&indices))
    }
}

/// Parses a grid index in its canonical spelling: digits without sign or leading zero.
pub fn parse_index(text: &str) -> Option<u64> {
    let is_canonical =
        text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_canonical)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunk_keys_round_trip(
            dims in prop::collection::vec((1u64..9, 1u64..10), 0..=5),
            id in 0.0..1.0f64,
        ) {
            let (shape, chunks): (Vec<u64>, Vec<u64>) = dims.into_iter().unzip();
            let grid = Grid::new(&shape, &chunks, 1).unwrap();
            let chunk = ChunkId((id * grid.chunk_count() as f64) as u64);
            for separator in [Separator::Dot, Separator::Slash] {
                let key = grid.chunk_key(chunk, separator);
                prop_assert_eq!(grid.parse_chunk_key(&key, separator), Some(chunk));
                for has_prefix in [false, true] {
                    let encoding = KeyEncoding { has_prefix, separator };
                    prop_assert_eq!(grid.parse_stored_key(&grid.stored_key(chunk, encoding), encoding), Some(chunk));
                }
            }
        }
    }

    #[test]
    fn only_canonical_keys_name_chunks() {
        let grid = Grid::new(&[10, 6], &[4, 4], 4).unwrap();
        assert_eq!(
            grid.parse_chunk_key("2.1", Separator::Dot),
            Some(ChunkId(5))
        );
        assert_eq!(grid.chunk_key(ChunkId(5), Separator::Slash), "2/1");
        for key in [
            "00.0",
            "01.0",
            "+1.0",
            "1.0.0",
            " 0.0",
            "0.0.partial",
            "9.9",
            "-1.0",
            "0",
            "",
            "0.",
            ".0",
            "0,0",
            "٠.0",
            "3.0",
            "0.2",
            "99999999999999999999.0",
        ] {
            assert_eq!(grid.parse_chunk_key(key, Separator::Dot), None, "{key}");
        }
    }

    #[test]
    fn a_scalar_has_the_key_0() {
        let grid = Grid::new(&[], &[], 8).unwrap();
        assert_eq!(grid.chunk_key(ChunkId(0), Separator::Dot), "0");
        assert_eq!(
            grid.parse_chunk_key("0", Separator::Slash),
            Some(ChunkId(0))
        );
        assert_eq!(grid.parse_chunk_key("1", Separator::Dot), None);
        assert_eq!(grid.parse_chunk_key("", Separator::Dot), None);
    }

    #[test]
    fn v3_keys_begin_with_c() {
        let grid = Grid::new(&[10, 6], &[4, 4], 4).unwrap();
        let scalar = Grid::new(&[], &[], 8).unwrap();
        let slash = KeyEncoding {
            has_prefix: true,
            separator: Separator::Slash,
        };
        let dot = KeyEncoding {
            has_prefix: true,
            separator: Separator::Dot,
        };
        assert_eq!(
            (
                grid.stored_key(ChunkId(5), slash),
                scalar.stored_key(ChunkId(0), slash)
            ),
            ("c/2/1".into(), "c".into())
        );
        assert_eq!(grid.stored_key(ChunkId(5), dot), "c.2.1");
        for key in [
            "2/1", "c/2.1", "c.2.1", "c/02/1", "c/2/1/0", "c/2", "c", "c/", "/c/2/1", "c/3/0",
            "d/2/1",
        ] {
            assert_eq!(grid.parse_stored_key(key, slash), None, "{key}");
        }
        assert_eq!(
            (
                scalar.parse_stored_key("c", dot),
                scalar.parse_stored_key("0", dot)
            ),
            (Some(ChunkId(0)), None)
        );
    }

    #[test]
    fn an_index_is_digits_without_a_leading_zero() {
        assert_eq!((parse_index("0"), parse_index("10")), (Some(0), Some(10)));
        for text in [
            "",
            "00",
            "01",
            "+1",
            "-1",
            "1 ",
            "a",
            "18446744073709551616",
        ] {
            assert_eq!(parse_index(text), None, "{text}");
        }
    }
}
