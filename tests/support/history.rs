//! The successive contents of each chunk of an array, and the oldest one that must survive. After a
//! crash the store is compared with this history: a chunk that holds none of its recorded contents
//! is *torn*, and a chunk that holds one from before its last acknowledged write is *lost*.

use super::array::TestArray;
use std::fmt;
use std::ops::AddAssign;

/// Size in bytes of a page of the kernel.
const PAGE: usize = 4096;

/// An array and the history of each of its chunks.
pub struct History {
    array: TestArray,
    chunks: Vec<ChunkHistory>,
}

/// The contents of one chunk over time.
struct ChunkHistory {
    index: Vec<usize>,
    /// The contents after each write, oldest first.
    versions: Vec<Vec<u8>>,
    /// Index of the oldest of `versions` that the store may still hold.
    acknowledged: usize,
}

/// The result of comparing stores with histories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Number of chunks compared.
    pub checked: usize,
    /// Number of chunks that hold none of their recorded contents, or that cannot be decoded.
    pub torn: usize,
    /// Number of chunks that are older than the last acknowledged write.
    pub lost: usize,
    /// A description of each torn or lost chunk.
    pub faults: Vec<String>,
}

impl AddAssign for Findings {
    fn add_assign(&mut self, other: Findings) {
        self.checked += other.checked;
        self.torn += other.torn;
        self.lost += other.lost;
        self.faults.extend(other.faults);
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{} chunks checked, {} torn, {} lost",
            self.checked, self.torn, self.lost
        )
    }
}

impl Findings {
    /// Fails if any chunk is torn or lost.
    #[track_caller]
    pub fn assert_none(&self) {
        assert!(self.checked > 0, "nothing was checked");
        assert!(
            self.torn == 0 && self.lost == 0,
            "{self}\n{}",
            self.faults.join("\n")
        );
    }
}

impl History {
    /// Begins a history with the contents of `array`, which must be stored already.
    pub fn new(array: TestArray) -> History {
        let begin = |index: Vec<usize>| {
            let first = array.inside(&array.flat, &index);
            ChunkHistory {
                versions: vec![first],
                index,
                acknowledged: 0,
            }
        };
        let chunks = array.grid().into_iter().map(begin).collect();
        History { array, chunks }
    }

    /// Returns the array, with the bytes of the latest write.
    pub fn array(&self) -> &TestArray {
        &self.array
    }

    /// Records a write to the flat bytes. The store may hold it from now on, and must hold it once
    /// it is acknowledged. Each row makes a version, since the mount may store a chunk between two
    /// rows of the write.
    pub fn write(&mut self, mut offset: usize, mut data: &[u8]) {
        let row = self.array.row();
        while !data.is_empty() {
            let (piece, rest) = data.split_at(data.len().min(row - offset % row));
            self.array.flat[offset..offset + piece.len()].copy_from_slice(piece);
            self.record_versions();
            (offset, data) = (offset + piece.len(), rest);
        }
    }

    /// Records a failed write, after which the mount shows `now`. The request that failed has all
    /// of `data`, or the bytes up to the end of one of the kernel's pages. Each chunk must show all
    /// of this request or nothing of it.
    #[track_caller]
    pub fn write_failed(&mut self, offset: usize, data: &[u8], now: &[u8]) {
        let end = offset + data.len();
        let ends = (offset + 1..end)
            .filter(|end| end.is_multiple_of(PAGE))
            .chain([end]);
        let is_whole = ends
            .into_iter()
            .any(|end| self.shows_whole_chunks(offset, &data[..end - offset], now));
        assert!(
            is_whole,
            "a write of {} bytes at {offset}: a chunk shows a part of it",
            data.len()
        );
        self.array.flat.copy_from_slice(now);
        self.record_versions();
    }

    /// Returns whether each chunk in `now` has all bytes of a write or none of them.
    fn shows_whole_chunks(&self, offset: usize, data: &[u8], now: &[u8]) -> bool {
        let mut after = self.array.flat.clone();
        after[offset..offset + data.len()].copy_from_slice(data);
        self.chunks.iter().all(
            |ChunkHistory {
                 index, versions, ..
             }| {
                let now = self.array.inside(now, index);
                versions.last() == Some(&now) || now == self.array.inside(&after, index)
            },
        )
    }

    /// Records a write of a whole chunk file, whose bytes are in the array's own order.
    pub fn write_chunk(&mut self, index: &[usize], bytes: &[u8]) {
        self.array.set_chunk(index, bytes);
        self.record_versions();
    }

    fn record_versions(&mut self) {
        for chunk in &mut self.chunks {
            let now = self.array.inside(&self.array.flat, &chunk.index);
            if chunk.versions.last() != Some(&now) {
                chunk.versions.push(now);
            }
        }
    }

    /// Records that an fsync or a close has succeeded, which acknowledges all writes so far.
    pub fn acknowledge(&mut self) {
        self.chunks.iter_mut().for_each(ChunkHistory::acknowledge);
    }

    /// Records that the writes of one chunk are acknowledged.
    pub fn acknowledge_chunk(&mut self, index: &[usize]) {
        self.chunks
            .iter_mut()
            .filter(|chunk| chunk.index == index)
            .for_each(ChunkHistory::acknowledge);
    }

    /// Compares the store with the history.
    pub fn check(&self) -> Findings {
        let mut findings = Findings {
            checked: self.chunks.len(),
            ..Findings::default()
        };
        for ChunkHistory {
            index,
            versions,
            acknowledged,
        } in &self.chunks
        {
            let fault = match self.array.stored(index) {
                Ok(found) if versions[*acknowledged..].contains(&found) => continue,
                Ok(found) => versions.iter().position(|version| *version == found),
                Err(why) => {
                    findings.faults.push(format!("chunk {index:?}: {why}"));
                    None
                }
            };
            let text = match fault {
                Some(at) => {
                    findings.lost += 1;
                    let last = versions.len() - 1;
                    format!(
                        "as after write {at}, but write {acknowledged} of {last} was acknowledged"
                    )
                }
                None => {
                    findings.torn += 1;
                    format!("as after none of its {} writes", versions.len() - 1)
                }
            };
            findings.faults.push(format!(
                "{}: chunk {index:?}: {text}",
                self.array.path.display()
            ));
        }
        findings
    }
}

impl ChunkHistory {
    fn acknowledge(&mut self) {
        self.acknowledged = self.versions.len() - 1;
    }
}
