//! What each chunk of an array has held, write by write, and from which write on it must survive. After a crash the
//! store itself is compared with it: a chunk that holds what no write left there is torn; one that holds what it held
//! before its last acknowledged write is lost.

use super::made::Made;
use std::fmt;
use std::ops::AddAssign;

/// An array and its past.
pub struct History {
    array: Made,
    chunks: Vec<Past>,
}

/// One chunk's past.
struct Past {
    index: Vec<usize>,
    /// What it held, oldest first.
    held: Vec<Vec<u8>>,
    /// The oldest that may still be found.
    floor: usize,
}

/// What was found in stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Chunks compared.
    pub checked: usize,
    /// Chunks that hold what no write left there, or that can't be decoded.
    pub torn: usize,
    /// Chunks that are older than what was acknowledged.
    pub lost: usize,
    /// A line on each of them.
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
        write!(f, "{} chunks checked, {} torn, {} lost", self.checked, self.torn, self.lost)
    }
}

impl Findings {
    /// Fails if any chunk is torn or lost.
    #[track_caller]
    pub fn assert_none(&self) {
        assert!(self.checked > 0, "nothing was checked");
        assert!(self.torn == 0 && self.lost == 0, "{self}\n{}", self.faults.join("\n"));
    }
}

impl History {
    /// The past begins with what `array` holds, which must be in its store.
    pub fn new(array: Made) -> History {
        let past = |index: Vec<usize>| Past { held: vec![array.inside(&array.flat, &index)], index, floor: 0 };
        let chunks = array.grid().into_iter().map(past).collect();
        History { array, chunks }
    }

    /// The array, with the bytes of the latest write.
    pub fn array(&self) -> &Made {
        &self.array
    }

    /// A write to the flat bytes. It may be in the store from now on, and must be once it is acknowledged. A chunk may be
    /// stored between two of its rows.
    pub fn write(&mut self, mut offset: usize, mut data: &[u8]) {
        let row = self.array.row();
        while !data.is_empty() {
            let (piece, rest) = data.split_at(data.len().min(row - offset % row));
            self.array.flat[offset..offset + piece.len()].copy_from_slice(piece);
            self.remember();
            (offset, data) = (offset + piece.len(), rest);
        }
    }

    /// A write that failed, after which the array is as `now`: of each chunk it has changed all or nothing.
    #[track_caller]
    pub fn write_failed(&mut self, offset: usize, data: &[u8], now: &[u8]) {
        let mut after = self.array.flat.clone();
        after[offset..offset + data.len()].copy_from_slice(data);
        for Past { index, held, .. } in &self.chunks {
            let now = self.array.inside(now, index);
            let is_old = held.last() == Some(&now);
            assert!(is_old || now == self.array.inside(&after, index), "chunk {index:?}: neither all nor nothing");
        }
        self.array.flat.copy_from_slice(now);
        self.remember();
    }

    /// A write of a whole chunk file, in the array's own order.
    pub fn write_chunk(&mut self, index: &[usize], bytes: &[u8]) {
        self.array.set_chunk(index, bytes);
        self.remember();
    }

    fn remember(&mut self) {
        for past in &mut self.chunks {
            let now = self.array.inside(&self.array.flat, &past.index);
            if past.held.last() != Some(&now) {
                past.held.push(now);
            }
        }
    }

    /// All writes so far were acknowledged: an fsync or a close returned 0.
    pub fn acknowledge(&mut self) {
        self.chunks.iter_mut().for_each(Past::acknowledge);
    }

    /// As [`History::acknowledge`], of one chunk alone.
    pub fn acknowledge_chunk(&mut self, index: &[usize]) {
        self.chunks.iter_mut().filter(|p| p.index == index).for_each(Past::acknowledge);
    }

    /// Compares the store with the past.
    pub fn check(&self) -> Findings {
        let mut findings = Findings { checked: self.chunks.len(), ..Findings::default() };
        for Past { index, held, floor } in &self.chunks {
            let fault = match self.array.stored(index) {
                Ok(found) if held[*floor..].contains(&found) => continue,
                Ok(found) => held.iter().position(|h| *h == found),
                Err(why) => {
                    findings.faults.push(format!("chunk {index:?}: {why}"));
                    None
                }
            };
            let text = match fault {
                Some(at) => {
                    findings.lost += 1;
                    format!("as after write {at}, but write {floor} of {} was acknowledged", held.len() - 1)
                }
                None => {
                    findings.torn += 1;
                    format!("as after none of its {} writes", held.len() - 1)
                }
            };
            findings.faults.push(format!("{}: chunk {index:?}: {text}", self.array.path.display()));
        }
        findings
    }
}

impl Past {
    fn acknowledge(&mut self) {
        self.floor = self.held.len() - 1;
    }
}
