//! Access to flatbuffers, as <https://flatbuffers.dev/internals/> describes their bytes. Each
//! offset is checked when it is followed, so a damaged file is an error of what is read from it,
//! and files that are much larger than memory can be read from a spill file. This module does not
//! know the schemas.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, Grant, lock};
use zarrfs_base::spill_file::SpillGrant;

/// Maximum length of a string in bytes: that of a key.
const MAX_STRING: usize = 16 << 10;

/// Size in bytes of the blocks in which a spilled file is read.
const BLOCK: usize = 64 << 10;

/// Number of blocks of a spilled file in memory: a vector and the tables that it names lie apart.
const BLOCKS: usize = 8;

/// The bytes of a flatbuffer.
pub(super) enum FlatBytes {
    /// In memory, with a grant for it.
    Memory(
        Vec<u8>,
        #[expect(dead_code, reason = "the grant is only held")] Grant,
    ),
    /// In a file, since there is not enough memory.
    Spilled(SpilledFlat),
}

/// A flatbuffer in a file without a name.
pub(super) struct SpilledFlat {
    file: File,
    len: usize,
    /// The blocks that were read last, with their numbers. The lock protects the list alone.
    blocks: Mutex<Vec<(usize, Vec<u8>)>>,
    /// Memory of the blocks.
    _memory: Grant,
    _space: SpillGrant,
}

impl SpilledFlat {
    /// Returns the flatbuffer in the first `len` bytes of a file, for which `space` was granted.
    pub fn new(file: File, len: usize, space: SpillGrant) -> Result<Self> {
        Ok(SpilledFlat {
            file,
            len,
            blocks: Mutex::default(),
            _memory: memory::take(BLOCK * BLOCKS)?,
            _space: space,
        })
    }

    fn copy(&self, at: usize, out: &mut [u8]) -> Result<()> {
        if out.len() > BLOCK {
            return Ok(self.file.read_exact_at(out, at as u64)?);
        }
        let mut done = 0;
        let mut blocks = lock(&self.blocks);
        while done < out.len() {
            let (number, offset) = ((at + done) / BLOCK, (at + done) % BLOCK);
            match blocks.iter().position(|(known, _)| *known == number) {
                Some(0) => {}
                Some(place) => blocks[..=place].rotate_right(1),
                None => {
                    let mut block = vec![0; BLOCK.min(self.len - number * BLOCK)];
                    self.file
                        .read_exact_at(&mut block, (number * BLOCK) as u64)?;
                    blocks.truncate(BLOCKS - 1);
                    blocks.insert(0, (number, block));
                }
            }
            let found = blocks[0].1.get(offset..).unwrap_or_default();
            let len = found.len().min(out.len() - done);
            if len == 0 {
                return Err(damaged());
            }
            out[done..done + len].copy_from_slice(&found[..len]);
            done += len;
        }
        Ok(())
    }
}

impl FlatBytes {
    pub fn len(&self) -> usize {
        match self {
            FlatBytes::Memory(bytes, _) => bytes.len(),
            FlatBytes::Spilled(spilled) => spilled.len,
        }
    }

    /// Returns the memory that the bytes take.
    pub fn memory(&self) -> usize {
        match self {
            FlatBytes::Memory(bytes, _) => bytes.len(),
            FlatBytes::Spilled(_) => BLOCK * BLOCKS,
        }
    }

    fn copy(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let end = at.checked_add(out.len()).filter(|end| *end <= self.len());
        let end = end.ok_or_else(damaged)?;
        match self {
            FlatBytes::Memory(bytes, _) => out.copy_from_slice(&bytes[at..end]),
            FlatBytes::Spilled(spilled) => spilled.copy(at, out)?,
        }
        Ok(())
    }

    /// Replaces the content of `value` by the bytes of a range. The caller counts its memory.
    pub fn read(&self, range: Range<usize>, value: &mut Vec<u8>) -> Result<()> {
        memory::resize(value, range.len())?;
        self.copy(range.start, value)
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.copy(at, &mut bytes)?;
        Ok(bytes)
    }

    pub fn u32_at(&self, at: usize) -> Result<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// Returns the place to which the offset at `at` leads.
    fn follow(&self, at: usize) -> Result<usize> {
        Ok(at + self.u32_at(at)? as usize)
    }

    /// Returns the table at the root.
    pub fn root(&self) -> Result<FlatTable<'_>> {
        self.table_at(self.follow(0)?)
    }

    /// Returns the table at a place that [`FlatTable::place`] returned.
    pub fn table_at(&self, place: usize) -> Result<FlatTable<'_>> {
        let back = i32::from_le_bytes(self.array(place)?);
        let vtable = usize::try_from(place as i64 - i64::from(back)).map_err(|_| damaged())?;
        let size = u16::from_le_bytes(self.array(vtable)?);
        Ok(FlatTable {
            bytes: self,
            place,
            vtable,
            fields: usize::from(size).saturating_sub(4) / 2,
        })
    }
}

/// A table, whose fields are numbered from 0.
#[derive(Clone, Copy)]
pub(super) struct FlatTable<'a> {
    bytes: &'a FlatBytes,
    place: usize,
    vtable: usize,
    /// Number of fields in the list of their offsets.
    fields: usize,
}

impl<'a> FlatTable<'a> {
    /// Returns the place of the table.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Returns the place of a field; `None` if the table lacks it.
    fn field(&self, number: usize) -> Result<Option<usize>> {
        if number >= self.fields {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(self.bytes.array(self.vtable + 4 + 2 * number)?);
        Ok((offset != 0).then(|| self.place + usize::from(offset)))
    }

    /// Returns the bytes of a field that is a number or a struct.
    pub fn inline<const N: usize>(&self, number: usize) -> Result<Option<[u8; N]>> {
        match self.field(number)? {
            Some(at) => self.bytes.array(at).map(Some),
            None => Ok(None),
        }
    }

    pub fn u8(&self, number: usize) -> Result<u8> {
        Ok(self.inline::<1>(number)?.unwrap_or_default()[0])
    }

    pub fn u32(&self, number: usize) -> Result<u32> {
        Ok(u32::from_le_bytes(self.inline(number)?.unwrap_or_default()))
    }

    pub fn u64(&self, number: usize) -> Result<u64> {
        Ok(u64::from_le_bytes(self.inline(number)?.unwrap_or_default()))
    }

    /// Returns the vector of a field whose elements have `size` bytes.
    pub fn vector(&self, number: usize, size: usize) -> Result<Option<FlatVector<'a>>> {
        let Some(at) = self.field(number)? else {
            return Ok(None);
        };
        let start = self.bytes.follow(at)?;
        let len = self.bytes.u32_at(start)? as usize;
        let first = start + 4;
        if len.checked_mul(size).and_then(|len| len.checked_add(first)) > Some(self.bytes.len()) {
            return Err(damaged());
        }
        Ok(Some(FlatVector {
            bytes: self.bytes,
            first,
            size,
            len,
        }))
    }

    /// Returns the vector of a field that the schema requires.
    pub fn required(&self, number: usize, size: usize) -> Result<FlatVector<'a>> {
        self.vector(number, size)?.ok_or_else(damaged)
    }

    /// Returns the place of the bytes of a vector or string.
    pub fn range(&self, number: usize) -> Result<Option<Range<usize>>> {
        let vector = self.vector(number, 1)?;
        Ok(vector.map(|vector| vector.first..vector.first + vector.len))
    }

    /// Returns the bytes of a vector or string of at most `limit` bytes.
    pub fn bytes(&self, number: usize, limit: usize) -> Result<Option<Vec<u8>>> {
        let Some(range) = self.range(number)? else {
            return Ok(None);
        };
        if range.len() > limit {
            return Err(Error::damaged(format!("a name of {} bytes", range.len())));
        }
        let mut bytes = Vec::new();
        self.bytes.read(range, &mut bytes)?;
        Ok(Some(bytes))
    }

    pub fn string(&self, number: usize) -> Result<Option<String>> {
        let bytes = self.bytes(number, MAX_STRING)?;
        bytes
            .map(|bytes| {
                String::from_utf8(bytes).map_err(|_| Error::damaged("a name is not UTF-8"))
            })
            .transpose()
    }

    pub fn table(&self, number: usize) -> Result<Option<FlatTable<'a>>> {
        match self.field(number)? {
            Some(at) => self.bytes.table_at(self.bytes.follow(at)?).map(Some),
            None => Ok(None),
        }
    }
}

/// A vector.
#[derive(Clone, Copy)]
pub(super) struct FlatVector<'a> {
    bytes: &'a FlatBytes,
    first: usize,
    /// Size of an element in bytes.
    size: usize,
    len: usize,
}

impl<'a> FlatVector<'a> {
    pub fn len(&self) -> usize {
        self.len
    }

    fn at(&self, number: usize) -> Result<usize> {
        if number < self.len {
            Ok(self.first + number * self.size)
        } else {
            Err(damaged())
        }
    }

    pub fn u32(&self, number: usize) -> Result<u32> {
        self.bytes.u32_at(self.at(number)?)
    }

    /// Returns two numbers that are a struct.
    pub fn pair(&self, number: usize) -> Result<(u32, u32)> {
        let at = self.at(number)?;
        Ok((self.bytes.u32_at(at)?, self.bytes.u32_at(at + 4)?))
    }

    pub fn table(&self, number: usize) -> Result<FlatTable<'a>> {
        self.bytes.table_at(self.bytes.follow(self.at(number)?)?)
    }

    pub fn tables(self) -> impl Iterator<Item = Result<FlatTable<'a>>> {
        (0..self.len).map(move |number| self.table(number))
    }
}

/// Returns the error of a file whose offsets lead outside, or that lacks a part.
pub(super) fn damaged() -> Error {
    Error::damaged("damaged: its flatbuffer is inconsistent")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Builds flatbuffers front to back: fields are added to a table, and then its targets.
    #[derive(Default)]
    pub struct FlatBuilder(pub Vec<u8>);

    /// The value of a field.
    pub enum FlatField {
        Absent,
        U8(u8),
        U32(u32),
        U64(u64),
        Struct(Vec<u8>),
        Bytes(Vec<u8>),
        Structs(Vec<u8>, usize),
        Table(Vec<FlatField>),
        Tables(Vec<Vec<FlatField>>),
    }

    use FlatField::*;

    impl FlatBuilder {
        /// Returns the flatbuffer with a root table of these fields.
        pub fn build(fields: Vec<FlatField>) -> Vec<u8> {
            let mut builder = FlatBuilder(vec![0; 4]);
            let root = builder.table(fields);
            builder.0[..4].copy_from_slice(&(root as u32).to_le_bytes());
            builder.0
        }

        fn table(&mut self, fields: Vec<FlatField>) -> usize {
            let vtable = self.0.len();
            let mut offsets = Vec::new();
            let mut body = vec![0; 4];
            let mut later = Vec::new();
            for field in fields {
                offsets.push(if matches!(field, Absent) {
                    0
                } else {
                    body.len() as u16
                });
                match field {
                    Absent => {}
                    U8(n) => body.push(n),
                    U32(n) => body.extend(n.to_le_bytes()),
                    U64(n) => body.extend(n.to_le_bytes()),
                    Struct(bytes) => body.extend(bytes),
                    target => {
                        later.push((body.len(), target));
                        body.extend([0; 4]);
                    }
                }
            }
            self.0.extend((4 + 2 * offsets.len() as u16).to_le_bytes());
            self.0.extend((body.len() as u16).to_le_bytes());
            offsets
                .iter()
                .for_each(|offset| self.0.extend(offset.to_le_bytes()));
            let place = self.0.len();
            body[..4].copy_from_slice(&((place - vtable) as i32).to_le_bytes());
            self.0.extend(body);
            for (at, target) in later {
                let at = place + at;
                let found = match target {
                    Bytes(bytes) => self.vector(bytes.len(), &bytes),
                    Structs(bytes, size) => self.vector(bytes.len() / size, &bytes),
                    Table(fields) => self.table(fields),
                    Tables(tables) => {
                        let vector = self.vector(tables.len(), &vec![0; 4 * tables.len()]);
                        for (n, fields) in tables.into_iter().enumerate() {
                            let at = vector + 4 + 4 * n;
                            let table = self.table(fields);
                            self.point(at, table);
                        }
                        vector
                    }
                    _ => unreachable!(),
                };
                self.point(at, found);
            }
            place
        }

        fn vector(&mut self, len: usize, bytes: &[u8]) -> usize {
            let at = self.0.len();
            self.0.extend((len as u32).to_le_bytes());
            self.0.extend(bytes);
            at
        }

        fn point(&mut self, at: usize, target: usize) {
            self.0[at..at + 4].copy_from_slice(&((target - at) as u32).to_le_bytes());
        }
    }

    pub fn flat(bytes: Vec<u8>) -> FlatBytes {
        FlatBytes::Memory(bytes, Grant::default())
    }

    #[test]
    fn fields_are_found_in_memory_and_in_a_file() {
        let bytes = FlatBuilder::build(vec![
            U8(7),
            Absent,
            Bytes(b"name".to_vec()),
            Tables(vec![vec![U64(1 << 40)], vec![]]),
            Structs(vec![1, 0, 0, 0, 2, 0, 0, 0], 8),
        ]);
        let mut flats = vec![flat(bytes.clone())];
        // not on a tmpfs
        if let Some((_directory, space)) = crate::ice_file::tests::space(1 << 20) {
            let grant = space.take(bytes.len() as u64).unwrap();
            let file = space.open().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            let spilled = SpilledFlat::new(file, bytes.len(), grant).unwrap();
            flats.push(FlatBytes::Spilled(spilled));
        }
        for flat in flats {
            let root = flat.root().unwrap();
            assert_eq!(root.u8(0).unwrap(), 7);
            assert_eq!(root.u32(1).unwrap(), 0);
            assert_eq!(root.string(2).unwrap().as_deref(), Some("name"));
            let tables = root.required(3, 4).unwrap();
            let numbers: Vec<u64> = tables
                .tables()
                .map(|table| table.unwrap().u64(0).unwrap())
                .collect();
            assert_eq!(numbers, [1 << 40, 0]);
            assert_eq!(root.required(4, 8).unwrap().pair(0).unwrap(), (1, 2));
            assert!(root.vector(5, 4).unwrap().is_none() && root.required(5, 4).is_err());
            assert!(root.required(4, 8).unwrap().pair(1).is_err());
        }
    }

    #[test]
    fn offsets_that_lead_outside_are_damage() {
        let bytes = FlatBuilder::build(vec![Bytes(b"name".to_vec())]);
        for at in 0..bytes.len() - 4 {
            for value in [0, 1, 4, 0x7fff_fff0, u32::MAX] {
                let mut bytes = bytes.clone();
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                // an error or another value, never a panic
                let flat = flat(bytes);
                let _ = flat.root().and_then(|root| {
                    let _ = root
                        .table(0)
                        .and_then(|table| table.map(|t| t.u64(0)).transpose());
                    root.string(0)
                });
            }
        }
        assert!(flat(Vec::new()).root().is_err());
    }
}
