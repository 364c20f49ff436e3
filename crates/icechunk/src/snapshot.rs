//! Snapshots: the groups and arrays of one version of a repository, their documents, and the
//! manifests of each array (specification 2.1, section "Snapshot Files", and `snapshot.fbs`).

use super::chunk_keys::ChunkKeyEncoding;
use super::flat::{FlatBytes, FlatTable, damaged};
use super::manifest::NodeId;
use super::manifest_tree::{ManifestExtents, ManifestTree};
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, Grant};
use zarrfs_store::{
    Key, NameSpan, NamedEntry, ObjectId, Permissions, SnapshotCommit, SortedEntries, SortedNames,
    Stat, Version,
};

/// The fields of the tables.
mod field {
    pub const ID: usize = 0;
    pub const PARENT: usize = 1;
    pub const NODES: usize = 2;
    pub const FLUSHED_AT: usize = 3;
    pub const MESSAGE: usize = 4;
    pub const NODE: usize = 0;
    pub const PATH: usize = 1;
    pub const USER_DATA: usize = 2;
    pub const DATA_KIND: usize = 3;
    pub const DATA: usize = 4;
    pub const SHAPE: usize = 0;
    pub const MANIFESTS: usize = 2;
    pub const SHAPE_V2: usize = 3;
    pub const MANIFEST: usize = 0;
    pub const EXTENTS: usize = 1;
}

/// The name of the document of a group or array.
const DOCUMENT: &str = "zarr.json";

/// The document of the root in a snapshot that has none, as the first one of each repository.
const NO_ROOT: &[u8] = br#"{"zarr_format": 3, "node_type": "group", "attributes": {}}"#;

/// The kind of the data of an array.
const ARRAY: u8 = 1;

/// A snapshot.
pub(super) struct IceSnapshot {
    bytes: FlatBytes,
    pub commit: SnapshotCommit,
    /// The snapshot before; `None` in files of the second version.
    pub parent: Option<ObjectId>,
    documents: SortedEntries<IceDocument>,
    /// The first path that is none, if there is one. Such nodes are left out.
    pub refused: Option<String>,
}

/// The document of a group or array.
pub(super) struct IceDocument {
    key: NameSpan,
    /// Place of the table of the node; `None` for [`NO_ROOT`].
    table: Option<u32>,
    /// The array, once it was used.
    array: OnceLock<Arc<IceArray>>,
}

impl NamedEntry for IceDocument {
    const TOGETHER: &'static str = "the groups and arrays of a snapshot";

    fn name(&self) -> NameSpan {
        self.key
    }
}

/// What the chunks of an array are found by.
pub(super) struct IceArray {
    pub node: NodeId,
    pub encoding: ChunkKeyEncoding,
    pub dimensions: usize,
    pub manifests: ManifestTree,
    /// Permissions of the manifests, once they were asked for.
    pub granted: OnceLock<Option<Permissions>>,
    /// Memory of the manifests.
    _memory: Grant,
}

impl IceSnapshot {
    /// Checks a snapshot: that it is `id`, and that its paths can be keys.
    pub fn new(bytes: FlatBytes, id: Option<ObjectId>) -> Result<Self> {
        let root = bytes.root()?;
        let stated = ObjectId(root.inline(field::ID)?.ok_or_else(damaged)?);
        if id.is_some_and(|id| id != stated) {
            return Err(Error::damaged("damaged: it holds another snapshot"));
        }
        let mut documents = SortedEntries::default();
        let mut refused = None;
        let mut has_root = false;
        for node in root.required(field::NODES, 4)?.tables() {
            let node = node?;
            let path = node.string(field::PATH)?.ok_or_else(damaged)?;
            // also of paths that are left out, since many nodes may share a long one
            documents.count(size_of::<IceDocument>() + path.len() + DOCUMENT.len())?;
            let Some(key) = document_key(&path) else {
                refused.get_or_insert(path);
                continue;
            };
            documents.add(&key, |key| IceDocument {
                key,
                table: Some(node.place() as u32),
                array: OnceLock::new(),
            })?;
            has_root |= key == DOCUMENT;
        }
        if !has_root {
            documents.add(DOCUMENT, |key| IceDocument {
                key,
                table: None,
                array: OnceLock::new(),
            })?;
        }
        documents.finish()?;
        Ok(IceSnapshot {
            commit: SnapshotCommit {
                id: stated,
                time: time_of(root.u64(field::FLUSHED_AT)?),
                message: root.string(field::MESSAGE)?.unwrap_or_default(),
            },
            parent: root.inline(field::PARENT)?.map(ObjectId),
            documents,
            refused,
            bytes,
        })
    }

    /// Returns the document with this key.
    pub fn document(&self, key: &str) -> Option<&IceDocument> {
        self.documents.find(key)
    }

    /// Reads all documents and arrays, and returns the number of manifests that they name.
    pub fn check(&self) -> usize {
        let names = (0..).map_while(|position| self.documents.name_at(position));
        let arrays = names.filter_map(|name| {
            let document = self.document(name)?;
            // the result of each must be a value or an error
            let _ = self.stat(document);
            self.array(document).ok().flatten()
        });
        arrays.map(|array| array.manifests.len()).sum()
    }

    /// Returns whether groups or arrays lie at or below a key, or it is the root.
    pub fn is_prefix(&self, key: &str) -> bool {
        self.documents.is_prefix(key)
    }

    /// Returns the table of a node; `None` for [`NO_ROOT`].
    fn table(&self, document: &IceDocument) -> Result<Option<FlatTable<'_>>> {
        let table = document
            .table
            .map(|table| self.bytes.table_at(table as usize));
        table.transpose()
    }

    /// Replaces the content of `value` by the bytes of a document in `range`.
    pub fn read(
        &self,
        document: &IceDocument,
        range: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<()> {
        let end = range.end.min(self.len(document)?) as usize;
        let range = (range.start as usize).min(end)..end;
        match self.table(document)? {
            None => {
                value.clear();
                value.extend_from_slice(&NO_ROOT[range]);
            }
            Some(table) => {
                let start = table.range(field::USER_DATA)?.ok_or_else(damaged)?.start;
                self.bytes
                    .read(start + range.start..start + range.end, value)?;
            }
        }
        Ok(())
    }

    /// Returns the length of a document in bytes.
    pub fn len(&self, document: &IceDocument) -> Result<u64> {
        let len = match self.table(document)? {
            None => NO_ROOT.len(),
            Some(table) => table.range(field::USER_DATA)?.ok_or_else(damaged)?.len(),
        };
        Ok(len as u64)
    }

    /// Returns the metadata of a document. Its version is a digest: it stays the same over
    /// snapshots that do not change it.
    pub fn stat(&self, document: &IceDocument) -> Result<Stat> {
        let mut bytes = Vec::new();
        let _memory = memory::take(self.len(document)? as usize)?;
        self.read(document, 0..u64::MAX, &mut bytes)?;
        Ok(self.stat_of_bytes(&bytes))
    }

    /// Returns the metadata of a value that the files of the repository hold.
    pub fn stat_of_bytes(&self, bytes: &[u8]) -> Stat {
        let digest = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(seed);
            hasher.write(bytes);
            hasher.finish()
        };
        let version = format!("{:x}-{:016x}{:016x}", bytes.len(), digest(0), digest(1));
        self.stat_of_version(bytes.len() as u64, version)
    }

    /// Returns the metadata of a value of this version.
    pub fn stat_of_version(&self, size: u64, version: String) -> Stat {
        Stat::value(size, self.commit.time, Version::Tag(version))
    }

    /// Returns the metadata of a prefix.
    pub fn stat_of_prefix(&self) -> Stat {
        Stat {
            modified: self.commit.time,
            ..Stat::prefix()
        }
    }

    /// Returns the array that a key lies below, and the rest of the key; `None` if no array is
    /// above it. For the key of an array the rest is empty.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the array is.
    pub fn array_of<'a>(&self, key: &'a str) -> Result<Option<(Arc<IceArray>, &'a str)>> {
        let ends = std::iter::once(key.len())
            .chain(key.rmatch_indices('/').map(|(end, _)| end))
            .chain((!key.is_empty()).then_some(0));
        for end in ends {
            let above = &key[..end];
            let name = if above.is_empty() {
                DOCUMENT.to_string()
            } else {
                format!("{above}/{DOCUMENT}")
            };
            if let Some(document) = self.document(&name) {
                let array = self
                    .array(document)
                    .map_err(|e| e.context(format!("/{above}")))?;
                return Ok(array.map(|array| (array, key[end..].trim_start_matches('/'))));
            }
        }
        Ok(None)
    }

    /// Returns the array of a document; `None` for a group.
    fn array(&self, document: &IceDocument) -> Result<Option<Arc<IceArray>>> {
        if let Some(array) = document.array.get() {
            return Ok(Some(array.clone()));
        }
        let Some(node) = self.table(document)? else {
            return Ok(None);
        };
        if node.u8(field::DATA_KIND)? != ARRAY {
            return Ok(None);
        }
        let data = node.table(field::DATA)?.ok_or_else(damaged)?;
        let mut text = Vec::new();
        let memory = memory::take(self.len(document)? as usize)?;
        self.read(document, 0..u64::MAX, &mut text)?;
        let encoding = ChunkKeyEncoding::parse(&text)?;
        drop((text, memory));
        let dimensions = match data.vector(field::SHAPE_V2, 4)? {
            Some(shape) => shape.len(),
            None => data.required(field::SHAPE, 16)?.len(),
        };
        let manifests = data.required(field::MANIFESTS, 4)?;
        let size = ManifestTree::memory(dimensions);
        let memory = memory::take(manifests.len().saturating_mul(size))?;
        let manifests = manifests
            .tables()
            .map(|manifest| extents_of(manifest?, dimensions))
            .collect::<Result<_>>()?;
        let manifests = ManifestTree::new(manifests, dimensions);
        let array = Arc::new(IceArray {
            node: node.inline(field::NODE)?.ok_or_else(damaged)?,
            encoding,
            dimensions,
            manifests,
            granted: OnceLock::new(),
            _memory: memory,
        });
        Ok(Some(document.array.get_or_init(|| array).clone()))
    }
}

impl SortedNames for IceSnapshot {
    type Entry = IceDocument;

    fn names(&self) -> &SortedEntries<IceDocument> {
        &self.documents
    }

    fn stat_of(&self, _: &IceDocument) -> Option<Stat> {
        None
    }
}

fn extents_of(manifest: FlatTable, dimensions: usize) -> Result<ManifestExtents> {
    let extents = manifest.required(field::EXTENTS, 8)?;
    if ![0, dimensions].contains(&extents.len()) {
        return Err(Error::damaged(
            "damaged: a manifest for another number of dimensions",
        ));
    }
    let extents = (0..extents.len()).map(|n| extents.pair(n).map(|(from, to)| from..to));
    Ok(ManifestExtents {
        id: ObjectId(manifest.inline(field::MANIFEST)?.ok_or_else(damaged)?),
        extents: extents.collect::<Result<_>>()?,
    })
}

/// Returns the key of the document of the node at a path; `None` if that is not in canonical form.
fn document_key(path: &str) -> Option<String> {
    let path = path.strip_prefix('/')?;
    let key = Key::normalize(path)
        .ok()
        .filter(|key| key.as_str() == path)?
        .join(DOCUMENT);
    Key::is_short(key.as_str()).then(|| key.as_str().to_string())
}

/// Returns the time that is so many microseconds after 1970 (specification 2.1, `flushed_at`).
pub(super) fn time_of(microseconds: u64) -> SystemTime {
    let since = Duration::from_micros(microseconds);
    SystemTime::UNIX_EPOCH
        .checked_add(since)
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::flat::tests::FlatField::*;
    use crate::flat::tests::{FlatBuilder, FlatField, flat};

    pub fn group(path: &str) -> Vec<FlatField> {
        let document = br#"{"zarr_format": 3, "node_type": "group"}"#;
        vec![
            Struct(vec![0; 8]),
            Bytes(path.as_bytes().to_vec()),
            Bytes(document.to_vec()),
            U8(2),
            Table(vec![]),
        ]
    }

    /// The identifier of a manifest, and the part of the grid that it covers.
    pub type NamedExtents<'a> = ([u8; 12], &'a [(u32, u32)]);

    /// Returns the table of an array of `dimensions` dimensions with manifests and their extents.
    pub fn array(
        path: &str,
        node: NodeId,
        dimensions: usize,
        manifests: &[NamedExtents],
    ) -> Vec<FlatField> {
        let manifests = manifests.iter().map(|(id, extents)| {
            let extents = extents
                .iter()
                .flat_map(|(from, to)| [from.to_le_bytes(), to.to_le_bytes()].concat());
            vec![Struct(id.to_vec()), Structs(extents.collect(), 8)]
        });
        let data = vec![
            Structs(vec![0; 16 * dimensions], 16),
            Absent,
            Tables(manifests.collect()),
        ];
        let document = br#"{"zarr_format": 3, "chunk_key_encoding": {"name": "default"}}"#;
        vec![
            Struct(node.to_vec()),
            Bytes(path.as_bytes().to_vec()),
            Bytes(document.to_vec()),
            U8(1),
            Table(data),
        ]
    }

    pub fn snapshot(id: [u8; 12], message: &str, nodes: Vec<Vec<FlatField>>) -> Vec<u8> {
        FlatBuilder::build(vec![
            Struct(id.to_vec()),
            Absent,
            Tables(nodes),
            U64(1_000_000),
            Bytes(message.as_bytes().to_vec()),
        ])
    }

    #[test]
    fn nodes_are_found_in_any_order_and_refused_by_path() {
        let nodes = [
            "/b/c", "/", "/b", "/a-b", "/../x", "/a//b", "b", "/a/", "/./a", "",
        ];
        let nodes = nodes.map(group).into();
        let bytes = flat(snapshot([1; 12], "first", nodes));
        let snapshot = IceSnapshot::new(bytes, Some(ObjectId([1; 12]))).unwrap();
        let names = (0..).map_while(|position| snapshot.documents.name_at(position));
        let keys: Vec<&str> = names.collect();
        assert_eq!(
            keys,
            ["a-b/zarr.json", "b/c/zarr.json", "b/zarr.json", "zarr.json"]
        );
        assert_eq!(snapshot.refused.as_deref(), Some("/../x"));
        assert_eq!(snapshot.commit.message, "first");
        assert_eq!(
            snapshot.commit.time,
            SystemTime::UNIX_EPOCH + Duration::from_secs(1)
        );
        assert!(snapshot.is_prefix("b") && snapshot.is_prefix("") && !snapshot.is_prefix("x"));
    }

    #[test]
    fn keys_below_arrays_are_found() {
        let nodes = vec![
            group("/"),
            array(
                "/g/a",
                [7; 8],
                2,
                &[([1; 12], &[(0, 2), (0, 9)]), ([2; 12], &[(2, 4), (0, 9)])],
            ),
            array("/g/bad", [7; 8], 2, &[([1; 12], &[(0, 2)])]),
        ];
        let bytes = flat(snapshot([1; 12], "", nodes));
        let snapshot = IceSnapshot::new(bytes, None).unwrap();
        let (array, rest) = snapshot.array_of("g/a/c/0/1").unwrap().unwrap();
        assert_eq!((array.node, rest, array.dimensions), ([7; 8], "c/0/1", 2));
        assert_eq!(snapshot.array_of("g/a").unwrap().unwrap().1, "");
        for (begin, held) in [(&[3, 1][..], &[2][..]), (&[], &[1, 2]), (&[9], &[])] {
            let matching = array.manifests.matching(begin);
            let numbers: Vec<u8> = matching.map(|named| named.id.0[0]).collect();
            assert_eq!(numbers, held);
        }
        for key in ["c/0", "g/x", "", "g"] {
            assert!(snapshot.array_of(key).unwrap().is_none(), "{key}");
        }
        let Err(e) = snapshot.array_of("g/bad/c/0/0") else {
            panic!()
        };
        assert!(e.message().starts_with("/g/bad: "), "{e}");
    }
}
