//! Manifests: for each array the references of its chunks, sorted by their places in the grid
//! (specification 2.1, section "Chunk Manifest Files", and `manifest.fbs`). They stay encoded in
//! memory; binary search finds a reference.

use super::flat::{FlatBytes, FlatTable, FlatVector, damaged};
use std::cmp::Ordering;
use std::ops::Range;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, Grant};
use zarrfs_store::{Key, ObjectId};
use zstd_safe::{DCtx, DDict};

/// The fields of the tables.
mod field {
    pub const ID: usize = 0;
    pub const ARRAYS: usize = 1;
    pub const DICTIONARY: usize = 2;
    pub const NODE: usize = 0;
    pub const REFERENCES: usize = 1;
    pub const INDEX: usize = 0;
    pub const INLINE: usize = 1;
    pub const OFFSET: usize = 2;
    pub const LENGTH: usize = 3;
    pub const CHUNK: usize = 4;
    pub const LOCATION: usize = 5;
    pub const ENTITY_TAG: usize = 6;
    pub const LAST_MODIFIED: usize = 7;
    pub const COMPRESSED_LOCATION: usize = 8;
}

/// Maximum size in bytes of the dictionary for locations; icechunk 2.3 writes 2 KiB.
const MAX_DICTIONARY: usize = 1 << 20;

/// Maximum length of a location that was compressed, in bytes: that of a key. Icechunk 2.3 reads
/// 1,024.
const MAX_LOCATION: usize = 16 << 10;

/// Memory in bytes that a manifest takes beside its bytes, which is most of a small one.
const OVERHEAD: usize = 512;

/// The identifier of an array or group.
pub(super) type NodeId = [u8; 8];

/// Where the bytes of a chunk are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChunkPlace {
    /// In a range of the manifest itself.
    Inline(Range<usize>),
    /// In `len` bytes of a file of the repository.
    Native { id: ObjectId, offset: u64, len: u64 },
    /// In `len` bytes of a target outside the repository.
    Virtual {
        location: String,
        offset: u64,
        len: u64,
        unchanged: TargetCondition,
    },
}

/// How a target is known not to have changed since its chunks were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetCondition {
    /// It has this entity tag.
    EntityTag(String),
    /// It was not modified later, in seconds since 1970.
    LastModified(u32),
    Unstated,
}

/// A manifest.
pub(super) struct IceManifest {
    bytes: FlatBytes,
    /// The arrays with the places of their tables, sorted.
    arrays: Vec<(NodeId, usize)>,
    /// Memory of the arrays and the dictionary.
    memory: Grant,
    dictionary: Option<DDict<'static>>,
}

impl IceManifest {
    /// Checks a manifest: that it is `id`, and that binary search finds its references.
    pub fn new(bytes: FlatBytes, id: Option<ObjectId>) -> Result<Self> {
        let root = bytes.root()?;
        if id.is_some_and(|id| root.inline(field::ID) != Ok(Some(id.0))) {
            return Err(Error::damaged("damaged: it holds another manifest"));
        }
        let tables = root.required(field::ARRAYS, 4)?;
        let dictionary = root.bytes(field::DICTIONARY, MAX_DICTIONARY)?;
        let len = dictionary.as_ref().map_or(0, Vec::len);
        let memory =
            memory::take(tables.len() * size_of::<(NodeId, usize)>() + 3 * len + OVERHEAD)?;
        let mut arrays = Vec::with_capacity(tables.len());
        let mut count = 0;
        for table in tables.tables() {
            let table = table?;
            let node = table.inline(field::NODE)?.ok_or_else(damaged)?;
            let references = table.required(field::REFERENCES, 4)?;
            // arrays that share references would take as long as there are pairs
            count += references.len();
            if count > bytes.len() / 4 {
                return Err(damaged());
            }
            check_sorted(references)?;
            arrays.push((node, table.place()));
        }
        arrays.sort_unstable();
        let dictionary = dictionary
            .map(|dictionary| {
                DDict::try_create(&dictionary)
                    .ok_or_else(|| Error::damaged("damaged: the dictionary of its locations"))
            })
            .transpose()?;
        Ok(IceManifest {
            bytes,
            arrays,
            memory,
            dictionary,
        })
    }

    /// Returns the memory in bytes.
    pub fn memory(&self) -> usize {
        self.bytes.memory() + self.memory.bytes()
    }

    /// Reads all references, and returns the number of those that lead somewhere.
    pub fn check(&self) -> usize {
        let arrays = self.arrays.iter().filter_map(|(node, _)| {
            let references = self.references(node).ok()??;
            let places = references.tables().map(|reference| self.place(reference?));
            Some(places.filter(Result::is_ok).count())
        });
        arrays.sum()
    }

    /// Returns the bytes of the flatbuffer.
    pub fn bytes(&self) -> &FlatBytes {
        &self.bytes
    }

    fn references(&self, node: &NodeId) -> Result<Option<FlatVector<'_>>> {
        let Ok(found) = self.arrays.binary_search_by_key(node, |(node, _)| *node) else {
            return Ok(None);
        };
        let table = self.bytes.table_at(self.arrays[found].1)?;
        table.required(field::REFERENCES, 4).map(Some)
    }

    /// Returns where a chunk is; `None` if it has the fill value.
    pub fn find(&self, node: &NodeId, index: &[u32]) -> Result<Option<ChunkPlace>> {
        let Some(references) = self.references(node)? else {
            return Ok(None);
        };
        let found = partition(&references, 0..references.len(), index, Ordering::is_lt)?;
        if found == references.len() {
            return Ok(None);
        }
        let reference = references.table(found)?;
        let place = reference.required(field::INDEX, 4)?;
        if place.len() == index.len() && compare(&place, index)?.is_eq() {
            self.place(reference).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns the numbers of the references of an array whose places in the grid begin with
    /// `begin`.
    pub fn range(&self, node: &NodeId, begin: &[u32]) -> Result<Range<usize>> {
        let Some(references) = self.references(node)? else {
            return Ok(0..0);
        };
        let all = 0..references.len();
        let start = partition(&references, all.clone(), begin, Ordering::is_lt)?;
        let end = partition(&references, start..all.end, begin, Ordering::is_le)?;
        Ok(start..end)
    }

    /// Returns the first number in `range` of a reference whose place in the grid does not begin
    /// with `begin`, which the first one does.
    pub fn after(&self, node: &NodeId, range: Range<usize>, begin: &[u32]) -> Result<usize> {
        match self.references(node)? {
            Some(references) => partition(&references, range, begin, Ordering::is_le),
            None => Ok(range.end),
        }
    }

    /// Returns the place in the grid of a reference.
    pub fn index(&self, node: &NodeId, number: usize) -> Result<Vec<u32>> {
        let references = self.references(node)?.ok_or_else(damaged)?;
        let index = references.table(number)?.required(field::INDEX, 4)?;
        (0..index.len()).map(|n| index.u32(n)).collect()
    }

    /// Reads a reference. Icechunk looks for the kinds in this order.
    fn place(&self, reference: FlatTable) -> Result<ChunkPlace> {
        let offset = reference.u64(field::OFFSET)?;
        let len = reference.u64(field::LENGTH)?;
        if offset
            .checked_add(len)
            .is_none_or(|end| end > i64::MAX as u64)
        {
            let why =
                format!("damaged: {len} bytes from byte {offset} on are more than a file has");
            return Err(Error::damaged(why));
        }
        if let Some(id) = reference.inline(field::CHUNK)? {
            let id = ObjectId(id);
            return Ok(ChunkPlace::Native { id, offset, len });
        }
        let location = match reference.bytes(field::COMPRESSED_LOCATION, MAX_LOCATION)? {
            Some(compressed) => Some(self.decompressed(&compressed)?),
            None => reference.string(field::LOCATION)?,
        };
        if let Some(location) = location {
            let unchanged = match reference.string(field::ENTITY_TAG)? {
                Some(tag) => TargetCondition::EntityTag(tag),
                None => match reference.u32(field::LAST_MODIFIED)? {
                    0 => TargetCondition::Unstated,
                    seconds => TargetCondition::LastModified(seconds),
                },
            };
            return Ok(ChunkPlace::Virtual {
                location,
                offset,
                len,
                unchanged,
            });
        }
        let inline = reference.range(field::INLINE)?;
        inline
            .map(ChunkPlace::Inline)
            .ok_or_else(|| Error::damaged("damaged: a reference that leads nowhere"))
    }

    fn decompressed(&self, compressed: &[u8]) -> Result<String> {
        let why = |why: &str| Error::damaged(format!("damaged: a compressed location: {why}"));
        let dictionary = self
            .dictionary
            .as_ref()
            .ok_or_else(|| why("there is no dictionary"))?;
        let mut location = Vec::with_capacity(MAX_LOCATION);
        DCtx::try_create()
            .ok_or_else(|| Error::system(libc::ENOMEM))?
            .decompress_using_ddict(&mut location, compressed, dictionary)
            .map_err(|code| why(zstd_safe::get_error_name(code)))?;
        String::from_utf8(location).map_err(|_| why("not UTF-8"))
    }
}

/// Checks that the references of an array are sorted by their places in a grid.
fn check_sorted(references: FlatVector) -> Result<()> {
    let mut last: Vec<u32> = Vec::new();
    for (n, reference) in references.tables().enumerate() {
        let index = reference?.required(field::INDEX, 4)?;
        if index.len() > Key::MAX_LEVELS {
            return Err(Error::damaged(format!(
                "damaged: {} dimensions",
                index.len()
            )));
        }
        let is_after = n == 0 || index.len() == last.len() && compare(&index, &last)?.is_gt();
        if !is_after {
            return Err(Error::damaged("damaged: its references are not sorted"));
        }
        last.clear();
        for dimension in 0..index.len() {
            last.push(index.u32(dimension)?);
        }
    }
    Ok(())
}

/// Compares the beginning of a place in a grid.
fn compare(index: &FlatVector, begin: &[u32]) -> Result<Ordering> {
    for (dimension, wanted) in begin.iter().enumerate() {
        if dimension == index.len() {
            return Ok(Ordering::Less);
        }
        let order = index.u32(dimension)?.cmp(wanted);
        if order.is_ne() {
            return Ok(order);
        }
    }
    Ok(Ordering::Equal)
}

/// Returns the first number in `range` of a reference whose order relative to `begin` is not as
/// `is_before` says.
fn partition(
    references: &FlatVector,
    range: Range<usize>,
    begin: &[u32],
    is_before: fn(Ordering) -> bool,
) -> Result<usize> {
    let Range { mut start, mut end } = range;
    while start < end {
        let middle = start + (end - start) / 2;
        let index = references.table(middle)?.required(field::INDEX, 4)?;
        if is_before(compare(&index, begin)?) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    Ok(start)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::flat::tests::FlatField::*;
    use crate::flat::tests::{FlatBuilder, FlatField, flat};
    use crate::ice_file::IceFileKind;

    /// Returns the vector of a place in a grid.
    fn index(index: &[u32]) -> FlatField {
        Structs(index.iter().flat_map(|n| n.to_le_bytes()).collect(), 4)
    }

    pub fn inline(place: &[u32], bytes: &[u8]) -> Vec<FlatField> {
        vec![index(place), Bytes(bytes.to_vec())]
    }

    pub fn native(place: &[u32], id: [u8; 12], offset: u64, len: u64) -> Vec<FlatField> {
        vec![
            index(place),
            Absent,
            U64(offset),
            U64(len),
            Struct(id.to_vec()),
        ]
    }

    pub fn located(place: &[u32], location: &str, offset: u64, len: u64) -> Vec<FlatField> {
        let location = Bytes(location.as_bytes().to_vec());
        vec![
            index(place),
            Absent,
            U64(offset),
            U64(len),
            Absent,
            location,
        ]
    }

    /// Returns the flatbuffer of a manifest with one array.
    pub fn manifest(id: [u8; 12], node: NodeId, references: Vec<Vec<FlatField>>) -> Vec<u8> {
        let array = vec![Struct(node.to_vec()), Tables(references)];
        FlatBuilder::build(vec![Struct(id.to_vec()), Tables(vec![array])])
    }

    const NODE: NodeId = [1; 8];

    fn opened(references: Vec<Vec<FlatField>>) -> Result<IceManifest> {
        IceManifest::new(flat(manifest([2; 12], NODE, references)), None)
    }

    #[test]
    fn references_of_each_kind_are_found() {
        let mut tagged = located(&[1, 3], "s3://bucket/x", 5, 6);
        tagged.push(Bytes(b"tag".to_vec()));
        let mut dated = located(&[2, 0], "s3://bucket/x", 5, 6);
        dated.extend([Absent, U32(9)]);
        let manifest = opened(vec![
            inline(&[0, 0], b"xyz"),
            inline(&[0, 7], b""),
            native(&[1, 2], [3; 12], 4, 5),
            tagged,
            dated,
        ])
        .unwrap();
        let find = |index: &[u32]| manifest.find(&NODE, index).unwrap();
        let Some(ChunkPlace::Inline(range)) = find(&[0, 0]) else {
            panic!()
        };
        let mut bytes = Vec::new();
        manifest.bytes.read(range, &mut bytes).unwrap();
        assert_eq!(bytes, b"xyz");
        assert!(matches!(find(&[0, 7]), Some(ChunkPlace::Inline(range)) if range.is_empty()));
        assert_eq!(
            find(&[1, 2]),
            Some(ChunkPlace::Native {
                id: ObjectId([3; 12]),
                offset: 4,
                len: 5
            })
        );
        let of = |unchanged| {
            Some(ChunkPlace::Virtual {
                location: "s3://bucket/x".into(),
                offset: 5,
                len: 6,
                unchanged,
            })
        };
        assert_eq!(find(&[1, 3]), of(TargetCondition::EntityTag("tag".into())));
        assert_eq!(find(&[2, 0]), of(TargetCondition::LastModified(9)));
        assert_eq!((find(&[0, 1]), find(&[3, 0])), (None, None));
        assert_eq!(manifest.find(&[0; 8], &[0, 0]).unwrap(), None);
        assert_eq!(manifest.range(&NODE, &[1]).unwrap(), 2..4);
        assert_eq!(manifest.range(&NODE, &[]).unwrap(), 0..5);
        assert_eq!(manifest.after(&NODE, 0..5, &[0]).unwrap(), 2);
        assert_eq!(manifest.index(&NODE, 3).unwrap(), [1, 3]);
    }

    #[test]
    fn damaged_manifests_are_refused() {
        for references in [
            vec![inline(&[1], b""), inline(&[0], b"")],
            vec![inline(&[1], b""), inline(&[1], b"")],
            vec![inline(&[0], b""), inline(&[1, 2], b"")],
            vec![vec![]],
        ] {
            assert!(opened(references).is_err());
        }
        let other = IceManifest::new(
            flat(manifest([2; 12], NODE, vec![])),
            Some(ObjectId([3; 12])),
        );
        assert!(other.is_err());
        let manifest = opened(vec![
            vec![index(&[0])],
            native(&[1], [0; 12], u64::MAX, 2),
            vec![
                index(&[2]),
                Absent,
                Absent,
                Absent,
                Absent,
                Absent,
                Absent,
                Absent,
                Bytes(vec![1]),
            ],
        ])
        .unwrap();
        for (n, why) in ["leads nowhere", "more than a file", "no dictionary"]
            .iter()
            .enumerate()
        {
            let e = manifest.find(&NODE, &[n as u32]).unwrap_err();
            assert!(e.message().contains(why), "{e}");
        }
    }

    /// Each reference takes at most 64 bytes beyond those of the file. A release build has a
    /// million of them, and its times count.
    #[test]
    fn many_references_are_found() {
        const COUNT: u32 = if cfg!(debug_assertions) {
            30_000
        } else {
            1_000_000
        };
        let place = |n: u32| [n / 1000, n % 1000, 0];
        let id = |n: u32| {
            // like random bytes
            let digits = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let mut id = [0; 12];
            id.copy_from_slice(&digits.to_le_bytes()[4..]);
            id
        };
        let references = (0..COUNT).map(|n| native(&place(n), id(n), 0, 1 << 20));
        let flat = manifest([2; 12], NODE, references.collect());
        let file = crate::ice_file::tests::file(IceFileKind::Manifest, &flat);
        let begun = std::time::Instant::now();
        let bytes = crate::ice_file::decode(&file, IceFileKind::Manifest).unwrap();
        let manifest = IceManifest::new(bytes, None).unwrap();
        let opened = begun.elapsed();
        for n in 0..COUNT {
            assert!(manifest.find(&NODE, &place(n)).unwrap().is_some());
        }
        let beyond = manifest.memory() - file.len();
        assert!(beyond <= 64 * COUNT as usize, "{beyond} bytes");
        println!(
            "{} bytes, {} as a flatbuffer, {} in memory; opened in {opened:?}, each found in {:?}",
            file.len(),
            flat.len(),
            manifest.memory(),
            (begun.elapsed() - opened) / COUNT
        );
    }
}
