//! Positions in an encoded value from which a codec can decode, so that a small read of a large
//! value need not decode all bytes before it. This module does not know what is encoded: a codec
//! finds the positions while it decodes the value, whose checksum it verifies then.

use super::{CodecError, CodecResult};
use std::ops::Range;
use zarrfs_base::deflate::{self, Container};

/// Minimum number of decoded bytes between two points.
const DISTANCE: usize = 256 << 10;

/// The windows of all points take at most this part of the decoded bytes, in percent.
const MAX_PERCENT: usize = 6;

/// Minimum mean distance in bytes of points without windows.
const DENSEST: usize = 4096;

/// Number of encoded bytes that a codec gets after those that it needs: lz4 refuses a long match in
/// the last bytes of its input.
const MORE: u64 = 8;

/// Maximum size of a window in bytes.
const MAX_WINDOW: usize = 64 << 10;

/// Level of the compression of windows.
const LEVEL: i32 = 1;

/// Size in bytes of a point that is kept on disk, and of the numbers before the first one.
const POINT_SIZE: usize = 32;

/// A position from which a value can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeekPoint {
    /// Number of decoded bytes before it.
    decoded: usize,
    /// Number of encoded bits before it.
    encoded: u64,
    /// What else the codec has to know.
    state: u64,
    /// Offset of the compressed window in the windows.
    window: usize,
}

/// The seek points of one encoded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeekPoints {
    /// The points in order. The first one is at the first decoded byte.
    points: Vec<SeekPoint>,
    /// The decoded bytes before each point to which the codec may refer, compressed.
    windows: Vec<u8>,
    /// Number of decoded bytes.
    nbytes: usize,
    /// Number of encoded bits before the end of the data.
    end: u64,
}

/// The encoded bytes from which a range of a value is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Number of decoded bytes before it.
    pub decoded: usize,
    /// Number of its decoded bytes.
    pub len: usize,
    /// Number of bits between the first stored byte and the segment.
    pub skip: u64,
    /// Number of bits of the segment.
    pub bits: u64,
}

impl SeekPoints {
    /// Begins with a point at the first decoded byte, after `encoded` bits of the value.
    pub(super) fn starting_at(encoded: u64) -> Self {
        let start = SeekPoint {
            decoded: 0,
            encoded,
            state: 0,
            window: 0,
        };
        SeekPoints {
            points: vec![start],
            windows: Vec::new(),
            nbytes: 0,
            end: encoded,
        }
    }

    /// Adds a point after `encoded` bits, with what else the codec has to know there. `decoded` are
    /// all bytes before it, of which the codec may refer to the last `window`. A point that is near
    /// to the last one, or whose window would take too much memory, is left out.
    pub(super) fn add(
        &mut self,
        decoded: &[u8],
        (encoded, state): (u64, u64),
        window: usize,
    ) -> CodecResult<()> {
        let n = decoded.len();
        let last = self.points.last().map_or(0, |point| point.window);
        // the window is likely to be compressed to the size of the last one
        let expected = match self.windows.len() - last {
            0 => window,
            len => len,
        };
        let room = n / 100 * MAX_PERCENT;
        if n < self.start_of_last() + DISTANCE || self.windows.len() + expected > room {
            return Ok(());
        }
        let start = self.windows.len();
        let window = &decoded[n - window.min(n)..];
        if !window.is_empty() {
            deflate::compress(Container::None, LEVEL, window, &mut self.windows)
                .map_err(|e| CodecError::new(e.to_string()))?;
        }
        if self.windows.len() > room {
            self.windows.truncate(start);
            return Ok(());
        }
        self.points.push(SeekPoint {
            decoded: n,
            encoded,
            state,
            window: start,
        });
        Ok(())
    }

    /// Adds a point without a window, however near the last one is. Returns false if the points
    /// would take too much memory.
    pub(super) fn add_independent(&mut self, decoded: usize, encoded: u64) -> bool {
        if decoded > self.start_of_last() {
            self.points.push(SeekPoint {
                decoded,
                encoded,
                state: 0,
                window: self.windows.len(),
            });
        }
        self.points.len() <= 2 + decoded / DENSEST
    }

    /// Ends the collection: the value has `nbytes` decoded bytes, and its data end after `encoded`
    /// bits. Returns `None` if a read may have to decode more than half of the value.
    pub(super) fn end(mut self, nbytes: usize, encoded: u64) -> Option<Self> {
        self.nbytes = nbytes;
        self.end = encoded;
        self.windows.shrink_to_fit();
        self.points.shrink_to_fit();
        let longest = (0..self.points.len()).map(|n| self.segment_len(n)).max();
        longest.is_some_and(|len| len <= nbytes / 2).then_some(self)
    }

    /// Returns the number of decoded bytes between point `n` and the next one.
    fn segment_len(&self, n: usize) -> usize {
        let start = self
            .points
            .get(n)
            .map_or(self.nbytes, |point| point.decoded);
        self.points
            .get(n + 1)
            .map_or(self.nbytes, |next| next.decoded)
            - start
    }

    /// Returns the points as bytes, which [`SeekPoints::parse`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let len = POINT_SIZE * (self.points.len() + 1) + self.windows.len();
        let mut bytes = Vec::with_capacity(len);
        let header = [self.nbytes as u64, self.end, 0, self.points.len() as u64];
        let points = self.points.iter();
        let points = points.flat_map(|p| [p.decoded as u64, p.encoded, p.state, p.window as u64]);
        for number in header.into_iter().chain(points) {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.windows);
        bytes
    }

    /// Reads what [`SeekPoints::to_bytes`] returned; `None` if it is something else.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (numbers, _) = bytes.as_chunks::<8>();
        let number = |i: usize| numbers.get(i).map(|bytes| u64::from_le_bytes(*bytes));
        let index = |i: usize| usize::try_from(number(i)?).ok();
        let (nbytes, end, count) = (index(0)?, number(1)?, index(3)?);
        let points = (1..count.checked_add(1)?).map(|n| {
            Some(SeekPoint {
                decoded: index(4 * n)?,
                encoded: number(4 * n + 1)?,
                state: number(4 * n + 2)?,
                window: index(4 * n + 3)?,
            })
        });
        let points = points.take(numbers.len()).collect::<Option<Vec<_>>>()?;
        let windows = bytes.get(POINT_SIZE * (points.len() + 1)..)?.to_vec();
        let last = SeekPoint {
            decoded: nbytes,
            encoded: end,
            state: 0,
            window: windows.len(),
        };
        let starts_at_0 = points.first().is_some_and(|first| first.decoded == 0);
        let is_sorted = points
            .iter()
            .zip(points.iter().skip(1).chain([&last]))
            .all(|(a, b)| a.decoded < b.decoded && a.encoded <= b.encoded && a.window <= b.window);
        (points.len() == count && starts_at_0 && is_sorted).then_some(SeekPoints {
            points,
            windows,
            nbytes,
            end,
        })
    }

    fn start_of_last(&self) -> usize {
        self.points.last().map_or(0, |point| point.decoded)
    }

    /// Returns the number of decoded bytes.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Returns the bytes of memory that the points take.
    pub fn size(&self) -> usize {
        size_of::<Self>()
            + self.points.capacity() * size_of::<SeekPoint>()
            + self.windows.capacity()
    }

    /// Returns the number of the last point before the end of byte `decoded`.
    fn before(&self, decoded: usize) -> usize {
        let after = self
            .points
            .partition_point(|point| point.decoded <= decoded);
        after.saturating_sub(1)
    }

    /// Returns the number of encoded bits before point `n`, or before the end of the data.
    fn bit(&self, n: usize) -> u64 {
        self.points.get(n).map_or(self.end, |point| point.encoded)
    }

    /// Returns the numbers of the points from which the bytes of `range` are decoded.
    fn around(&self, range: &Range<usize>) -> Range<usize> {
        let last = range.end.max(range.start + 1) - 1;
        self.before(range.start)..self.before(last) + 1
    }

    /// Returns the encoded bytes that are needed to decode the bytes of `range`.
    pub fn stored_range(&self, range: &Range<usize>) -> Range<usize> {
        let points = self.around(range);
        let end = (self.bit(points.end).div_ceil(8) + MORE).min(self.end.div_ceil(8));
        (self.bit(points.start) / 8) as usize..end as usize
    }

    /// Returns the bytes of memory that decoding the bytes of `range` takes, with the encoded ones.
    pub fn memory_for(&self, range: &Range<usize>) -> usize {
        let decoded: usize = self.around(range).map(|n| self.segment_len(n)).sum();
        // lz4 may copy the encoded bytes
        2 * self.stored_range(range).len() + decoded + MAX_WINDOW
    }

    /// Returns the segments of encoded bits that hold the bytes of `range`, one after each point.
    pub(super) fn segments(&self, range: &Range<usize>) -> impl Iterator<Item = Segment> {
        let points = self.around(range);
        let first = self.bit(points.start) / 8 * 8;
        points.map(move |n| Segment {
            decoded: self.points[n].decoded,
            len: self.segment_len(n),
            skip: self.bit(n) - first,
            bits: self.bit(n + 1) - self.bit(n),
        })
    }

    /// Replaces `out` by the window of `window` bytes before the first byte from which `range` is
    /// decoded, by nothing at the beginning of the value, and by room for all bytes from there to
    /// the end of `range`.
    pub(super) fn begin(
        &self,
        range: &Range<usize>,
        window: usize,
        out: &mut Vec<u8>,
    ) -> CodecResult<DecodeStart> {
        let n = self.before(range.start);
        let point = self.points[n];
        let end = self
            .points
            .get(n + 1)
            .map_or(self.windows.len(), |next| next.window);
        out.clear();
        if point.decoded > 0 {
            out.resize(window, 0);
            let compressed = &self.windows[point.window..end];
            match deflate::decompress(Container::None, compressed, out) {
                Ok((_, made)) if made == window => {}
                _ => return Err(CodecError::new("a seek point is damaged")),
            }
        }
        let start = out.len();
        out.resize(start + range.end - point.decoded, 0);
        Ok(DecodeStart {
            start,
            wanted: start + range.start - point.decoded,
            bit: (point.encoded % 8) as u32,
            state: point.state,
        })
    }
}

/// Where decoding begins.
pub(super) struct DecodeStart {
    /// Offset in the output of the first byte to decode.
    pub start: usize,
    /// Offset in the output of the first byte that is wanted.
    pub wanted: usize,
    /// Its bit in the first stored byte.
    pub bit: u32,
    /// What else the codec has to know.
    pub state: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::compressors::{codec, encoded};
    use crate::codec::{Codec, PartialDecode};
    use proptest::prelude::*;

    const CODECS: [&str; 7] = [
        r#"{"id": "zlib", "level": 1}"#,
        r#"{"id": "zlib", "level": 9}"#,
        r#"{"id": "zlib", "level": 0}"#,
        r#"{"id": "gzip", "level": 6}"#,
        r#"{"id": "lz4", "acceleration": 1}"#,
        r#"{"id": "lz4", "acceleration": 50}"#,
        r#"{"id": "bz2", "level": 1}"#,
    ];

    /// Returns bytes of which each has `noise` random bits, with runs of zeros between unless they
    /// are 8.
    fn sample(len: usize, noise: u32, mut seed: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(len + 4096);
        while value.len() < len {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let run = (seed >> 40) as usize % 4096;
            if seed >> 61 == 0 && noise < 8 {
                value.resize(value.len() + run, 0);
            }
            let mut state = seed;
            value.extend(
                std::iter::repeat_with(|| {
                    state = state
                        .wrapping_mul(2862933555777941757)
                        .wrapping_add(3037000493);
                    (state >> 33) as u8 & ((1u32 << noise) - 1) as u8
                })
                .take(run),
            );
        }
        value.truncate(len);
        value
    }

    fn part(
        codec: &dyn Codec,
        points: &SeekPoints,
        range: Range<usize>,
        stored: &[u8],
    ) -> CodecResult<Vec<u8>> {
        let mut out = vec![9; 100];
        let start = codec.decode_part(points, range, stored, &mut out)?;
        Ok(out.split_off(start))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Every range decodes from its stored range to the same bytes as the whole value, the
        /// points take at most their part of memory, and no damage is more than an error.
        #[test]
        fn ranges_decode_to_the_bytes_of_the_value(
            which in 0..CODECS.len(),
            (size, noise, seed) in (4_000_000..6_000_000usize, prop_oneof![1..8u32, Just(8)], any::<u64>()),
            reads in prop::collection::vec((any::<prop::sample::Index>(), 1..600_000usize), 8),
            damage in any::<prop::sample::Index>(),
        ) {
            let codec = codec(CODECS[which], 1);
            prop_assert_eq!(codec.partial_decode(), PartialDecode::Seek);
            let value = sample(size, noise, seed);
            let mut stored = encoded(&*codec, &value);
            let mut out = vec![0; size];
            let (made, points) = codec.decode_with_points(&stored, &mut out).unwrap();
            prop_assert!(made == size && out == value);
            let points = points.unwrap();
            prop_assert_eq!(points.nbytes(), size);
            prop_assert!(points.windows.len() * 100 <= size * MAX_PERCENT);
            let mut bytes = points.to_bytes();
            prop_assert!(SeekPoints::parse(&bytes).is_some_and(|parsed| parsed == points));
            prop_assert_eq!(SeekPoints::parse(&bytes[..damage.index(POINT_SIZE)]), None);
            bytes[damage.index(POINT_SIZE * points.points.len())] ^= 0x80;
            if let Some(other) = SeekPoints::parse(&bytes).filter(|other| other.nbytes() == size) {
                let _ = part(&*codec, &other, 100_000..100_100, &stored);
            }
            for (start, len) in reads {
                let start = start.index(size);
                let range = start..(start + len).min(size);
                let from = points.stored_range(&range);
                prop_assert!(from.end <= stored.len());
                let found = part(&*codec, &points, range.clone(), &stored[from.clone()]).unwrap();
                prop_assert!(found == value[range.clone()]);
                let memory = points.memory_for(&range);
                prop_assert!(memory >= from.len() + range.len());
                stored[damage.index(from.len()) + from.start] ^= 1;
                let _ = part(&*codec, &points, range.clone(), &stored[from.clone()]);
                stored[damage.index(from.len()) + from.start] ^= 1;
                let _ = part(&*codec, &points, range, &stored[from.start..from.end - from.len() / 2]);
            }
        }
    }

    /// A value whose checksum is wrong, or that is followed by something, is left to the decoder.
    #[test]
    fn only_verified_values_have_points() {
        let value = sample(4_000_000, 4, 7);
        let mut out = vec![0; value.len()];
        for config in CODECS {
            let codec = codec(config, 1);
            let stored = encoded(&*codec, &value);
            assert!(
                codec
                    .decode_with_points(&stored, &mut out)
                    .unwrap()
                    .1
                    .is_some()
            );
            let mut damaged = stored.clone();
            *damaged.last_mut().unwrap() ^= 0x40;
            match codec.decode_with_points(&damaged, &mut out) {
                Err(e) => assert_eq!(Err(e), codec.decode(&damaged, &mut out), "{config}"),
                // lz4 has no checksum
                Ok((_, points)) => assert!(points.is_some() && config.contains("lz4"), "{config}"),
            }
            let mut twice = vec![0; 2 * value.len()];
            let decoded = codec.decode_with_points(&[&stored[..], &stored].concat(), &mut twice);
            if let Ok((_, points)) = decoded {
                assert_eq!(points, None, "{config}");
            }
            // too few bytes for a point in the middle
            let small = encoded(&*codec, &value[..9000]);
            assert_eq!(
                codec.decode_with_points(&small, &mut out[..9000]).unwrap(),
                (9000, None)
            );
        }
    }

    /// lz4 refuses a match whose length takes several bytes at the end of its input.
    #[test]
    fn a_range_may_end_in_a_long_match_before_a_point() {
        let noise = sample(2 << 20, 8, 3);
        let value = [&noise[..1 << 20], &[0; 1 << 20], &noise].concat();
        let lz4 = codec(r#"{"id": "lz4"}"#, 1);
        let stored = encoded(&*lz4, &value);
        let mut out = vec![0; value.len()];
        let points = lz4
            .decode_with_points(&stored, &mut out)
            .unwrap()
            .1
            .unwrap();
        for point in &points.points[1..] {
            let range = point.decoded - 100..point.decoded;
            let from = points.stored_range(&range);
            let found = part(&*lz4, &points, range.clone(), &stored[from]).unwrap();
            assert_eq!(found, value[range]);
        }
    }

    /// The header of a gzip member may have a name, a comment, extra fields and a checksum.
    #[test]
    fn members_with_long_headers_have_points() {
        let value = sample(4_000_000, 4, 7);
        let mut out = vec![0; value.len()];
        let gzip = codec(r#"{"id": "gzip"}"#, 1);
        let plain = encoded(&*gzip, &value);
        let mut header = plain[..10].to_vec();
        header[3] = 0x1e;
        header.extend(b"\x03\x00abcname\x00comment\x00");
        let crc = crc32fast::hash(&header) as u16;
        header.extend(crc.to_le_bytes());
        let stored = [&header, &plain[10..]].concat();
        let points = gzip
            .decode_with_points(&stored, &mut out)
            .unwrap()
            .1
            .unwrap();
        assert_eq!(out, value);
        let range = 1_000_000..1_000_100;
        let from = points.stored_range(&range);
        assert_eq!(
            part(&*gzip, &points, range.clone(), &stored[from]).unwrap(),
            value[range]
        );
    }
}
