//! The lengths of the chunks along one dimension: one for all, or a list. The module knows neither
//! arrays nor chunks of several dimensions.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};

/// Number of stretches that messages show.
const SHOWN: usize = 6;

/// The lengths of the chunks along one dimension, in items.
///
/// ```
/// use zarrfs_format::grid::Edges;
///
/// let edges = Edges::listed(&[(2, 3), (5, 1)])?; // 2, 2, 2, 5
/// assert_eq!((edges.count(10), edges.max(10), edges.max(6)), (4, 5, 2));
/// assert_eq!((edges.index_of(4), edges.span(3)), (2, 6..11));
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edges {
    /// All chunks have this length, which is at least 1.
    Equal(u64),
    /// Stretches of chunks of equal length, in order, each unlike the one before it. There is at
    /// least one.
    Listed(Arc<[Stretch]>),
}

/// Shows the lengths as a sum, such as `2*3+5`, of at most `SHOWN` stretches.
impl fmt::Display for Edges {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Edges::Equal(len) => write!(f, "{len}"),
            Edges::Listed(stretches) => {
                for (i, stretch) in stretches.iter().take(SHOWN).enumerate() {
                    let plus = if i == 0 { "" } else { "+" };
                    match stretch.count {
                        1 => write!(f, "{plus}{}", stretch.len)?,
                        count => write!(f, "{plus}{count}*{}", stretch.len)?,
                    }
                }
                f.write_str(if stretches.len() > SHOWN { "+..." } else { "" })
            }
        }
    }
}

/// Neighboring chunks of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the first chunk.
    first: u64,
    /// Index of its first item.
    start: u64,
    /// Length of each chunk, at least 1.
    len: u64,
    /// Number of the chunks, at least 1.
    count: u64,
}

impl Stretch {
    fn end(&self) -> u64 {
        self.start + self.len * self.count
    }
}

/// Returns the stretches of the chunks that hold the first `len` items.
fn within(stretches: &[Stretch], len: u64) -> impl Iterator<Item = Stretch> {
    let inside = stretches.iter().take_while(move |s| s.start < len);
    inside.map(move |s| Stretch {
        count: s.count.min((len - s.start).div_ceil(s.len)),
        ..*s
    })
}

impl Edges {
    /// Returns the edges of chunks whose lengths and repetitions are listed.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) for no chunk, a length or repetition of
    /// 0, or a sum above 2^63.
    pub fn listed(list: &[(u64, u64)]) -> Result<Self> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut first = 0u64;
        let mut start = 0u64;
        for &(len, count) in list {
            let end = len
                .checked_mul(count)
                .and_then(|more| start.checked_add(more))
                .filter(|n| *n <= i64::MAX as u64);
            let (Some(end), true) = (end, len > 0 && count > 0) else {
                return Err(Error::damaged(format!(
                    "{count} chunks of length {len} from item {start} on"
                )));
            };
            match stretches.last_mut() {
                Some(last) if last.len == len => last.count += count,
                _ => stretches.push(Stretch {
                    first,
                    start,
                    len,
                    count,
                }),
            }
            (first, start) = (first + count, end);
        }
        if stretches.is_empty() {
            Err(Error::damaged("no chunk"))
        } else {
            Ok(Edges::Listed(stretches.into()))
        }
    }

    /// Returns the length that all chunks have; `None` if their lengths differ.
    pub fn equal(&self) -> Option<u64> {
        match self {
            Edges::Equal(edge) => Some(*edge),
            Edges::Listed(stretches) => stretches
                .first()
                .filter(|_| stretches.len() == 1)
                .map(|stretch| stretch.len),
        }
    }

    /// Returns the length of the longest chunk that holds any of the first `len` items; of the
    /// first chunk if there are none.
    pub fn max(&self, len: u64) -> u64 {
        match self {
            Edges::Equal(edge) => *edge,
            Edges::Listed(stretches) => {
                let inside = within(stretches, len.max(1));
                inside.map(|stretch| stretch.len).max().unwrap_or(1)
            }
        }
    }

    /// Returns whether the chunks that hold the first `len` items have the same lengths as those of
    /// `other`.
    pub fn begins_like(&self, other: &Edges, len: u64) -> bool {
        match (self, other) {
            (Edges::Equal(one), Edges::Equal(other)) => one == other,
            _ => self.first(len) == other.first(len),
        }
    }

    /// Returns the lengths, with their repetitions, of the chunks that hold the first `len` items.
    fn first(&self, len: u64) -> Vec<(u64, u64)> {
        match self {
            Edges::Equal(_) if len == 0 => Vec::new(),
            Edges::Equal(edge) => vec![(*edge, len.div_ceil(*edge))],
            Edges::Listed(stretches) => within(stretches, len).map(|s| (s.len, s.count)).collect(),
        }
    }

    /// Returns the number of items that the chunks can hold.
    pub fn capacity(&self) -> u64 {
        match self {
            Edges::Equal(_) => u64::MAX,
            Edges::Listed(stretches) => stretches.last().map_or(0, Stretch::end),
        }
    }

    /// Returns the number of chunks that hold any of the first `len` items. `len` must not exceed
    /// [`Edges::capacity`].
    pub fn count(&self, len: u64) -> u64 {
        match self {
            Edges::Equal(edge) => len.div_ceil(*edge),
            Edges::Listed(_) => len.checked_sub(1).map_or(0, |last| self.index_of(last) + 1),
        }
    }

    /// Returns the index of the chunk that holds an item.
    pub fn index_of(&self, item: u64) -> u64 {
        match self {
            Edges::Equal(edge) => item / edge,
            Edges::Listed(stretches) => {
                let stretch = stretches[stretches
                    .partition_point(|next| next.start <= item)
                    .saturating_sub(1)];
                stretch.first + (item - stretch.start) / stretch.len
            }
        }
    }

    /// Returns the items of a chunk, padding included.
    pub fn span(&self, index: u64) -> Range<u64> {
        let (start, len) = match self {
            Edges::Equal(edge) => (index * edge, *edge),
            Edges::Listed(stretches) => {
                let stretch = stretches[stretches
                    .partition_point(|next| next.first <= index)
                    .saturating_sub(1)];
                (
                    stretch.start + (index - stretch.first) * stretch.len,
                    stretch.len,
                )
            }
        };
        start..start.saturating_add(len)
    }

    /// Returns the length of a chunk.
    pub fn len_of(&self, index: u64) -> u64 {
        let span = self.span(index);
        span.end - span.start
    }

    /// Returns the edges of the chunks that hold the first `len` items, each item being `times`
    /// items of the result.
    pub(super) fn scaled(&self, len: u64, times: u64) -> Edges {
        match self {
            Edges::Equal(edge) => Edges::Equal(edge * times),
            Edges::Listed(stretches) => {
                let scaled = within(stretches, len).map(|s| Stretch {
                    start: s.start * times,
                    len: s.len * times,
                    ..s
                });
                Edges::Listed(scaled.collect())
            }
        }
    }

    /// Returns the edges in units of `len` items, which divides each length.
    pub fn divided(&self, len: u64) -> Edges {
        match self {
            Edges::Equal(edge) => Edges::Equal(edge / len),
            Edges::Listed(stretches) => {
                let divided = stretches.iter().map(|s| Stretch {
                    start: s.start / len,
                    len: s.len / len,
                    ..*s
                });
                Edges::Listed(divided.collect())
            }
        }
    }

    /// Returns the listed lengths with their repetitions; empty if all chunks have one length.
    pub fn list(&self) -> Vec<(u64, u64)> {
        match self {
            Edges::Equal(_) => Vec::new(),
            Edges::Listed(stretches) => stretches
                .iter()
                .map(|stretch| (stretch.len, stretch.count))
                .collect(),
        }
    }
}
