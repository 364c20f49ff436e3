//! Sample arrays for the tests of formats, and hierarchies in a map of bytes.

use super::described::{Coordinates, Crs, CrsKind, Described, DescribedAxis, MetadataNumber, Role};
use crate::reader::{ArrayNode, ChunkBytes, ChunkReader, HierarchyNode, HierarchyReader};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Object};
use zarrfs_base::key::Key;
use zarrfs_base::memory::Grant;
use zarrfs_format::chunk_key::Separator;
use zarrfs_format::fill_value::FillMeaning;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_format::pipeline::Pipeline;

/// Documents and chunks by their keys. Clones share the map.
#[derive(Clone, Default)]
pub struct MapHierarchy(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

/// The chunks of an array, under v2's keys with dots.
struct MapChunks {
    map: MapHierarchy,
    key: Key,
    metadata: Arc<ArrayMetadata>,
}

impl MapHierarchy {
    /// Sets the value under a key.
    pub fn insert(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.0.lock().unwrap().insert(key.to_string(), value.into());
    }

    /// Returns the value under a key.
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(key.as_str()).cloned()
    }

    /// Returns the array at `path`.
    pub fn array(&self, path: &str) -> ArrayNode {
        let found = self.find_array(&Key::normalize(path).unwrap()).unwrap();
        found.unwrap_or_else(|| panic!("{path} is no array"))
    }

    /// Returns the document that defines an array, and its key.
    fn array_document(&self, key: &Key) -> Option<(Key, Result<ArrayMetadata>)> {
        let zarr_json = key.join("zarr.json");
        if let Some(text) = self.get(&zarr_json) {
            let document = json::parse_object(&text).unwrap();
            let is_array = document.get("node_type").and_then(json::text) == Some("array");
            return is_array.then(|| (zarr_json, ArrayMetadata::parse_v3(&text)));
        }
        let zarray = key.join(".zarray");
        let text = self.get(&zarray)?;
        Some((zarray, ArrayMetadata::parse(&text)))
    }

    fn node(&self, key: &Key, metadata: ArrayMetadata) -> Result<ArrayNode> {
        let metadata = Arc::new(metadata);
        let chunks = MapChunks {
            map: self.clone(),
            key: key.clone(),
            metadata: metadata.clone(),
        };
        Ok(ArrayNode {
            key: key.clone(),
            is_remote: false,
            readable: chunks.pipeline().map(|_| ()),
            metadata,
            chunks: Arc::new(chunks),
            part_of: None,
        })
    }
}

impl MapChunks {
    fn pipeline(&self) -> Result<Pipeline> {
        let size = self.metadata.grid(&self.metadata.shape)?.max_chunk_size();
        Pipeline::new(&self.metadata, size).map_err(|e| e.context(&self.key))
    }
}

impl ChunkReader for MapChunks {
    fn open(&self) -> Result<()> {
        self.pipeline().map(|_| ())
    }

    fn read(&self, chunk: ChunkId) -> Result<Option<ChunkBytes>> {
        let grid = self.metadata.grid(&self.metadata.shape)?;
        let key = self.key.join(&grid.chunk_key(chunk, Separator::Dot));
        let Some(stored) = self.map.get(&key) else {
            return Ok(None);
        };
        let mut decoded = Vec::new();
        self.pipeline()?.decode(&stored, &mut decoded)?;
        Ok(Some(Box::new(decoded)))
    }
}

impl HierarchyReader for MapHierarchy {
    fn find(&self, key: &Key) -> Result<Option<HierarchyNode>> {
        if let Some((document, metadata)) = self.array_document(key) {
            let metadata = metadata.map_err(|e| e.context(document));
            return Ok(Some(match metadata.and_then(|m| self.node(key, m)) {
                Ok(array) => HierarchyNode::Array(array),
                Err(e) => HierarchyNode::Damaged(e),
            }));
        }
        let map = self.0.lock().unwrap();
        let mut names = map.keys().map(|name| Key::root().join(name));
        let is_group = names.any(|name| name != *key && name.relative_to(key).is_some());
        Ok(is_group.then_some(HierarchyNode::Group))
    }

    fn find_array(&self, key: &Key) -> Result<Option<ArrayNode>> {
        let found = self.array_document(key);
        let metadata = found.and_then(|(_, metadata)| metadata.ok());
        metadata
            .map(|metadata| self.node(key, metadata))
            .transpose()
    }

    fn attributes(&self, key: &Key) -> Result<Object> {
        if let Some(text) = self.get(&key.join("zarr.json")) {
            let document = json::parse_object(&text)?;
            let attributes = document.get("attributes").map(json::write);
            return json::parse_object(attributes.as_deref().unwrap_or("{}").as_bytes());
        }
        let text = self.get(&key.join(".zattrs"));
        let attributes = text.map(|text| json::parse_object(&text));
        Ok(attributes.and_then(Result::ok).unwrap_or_default())
    }

    fn children(&self, key: &Key) -> Result<(Vec<Key>, Grant)> {
        let map = self.0.lock().unwrap();
        let below = map.keys().filter_map(|name| {
            let path = Key::root().join(name).relative_to(key)?;
            let (first, _) = path.as_str().split_once('/')?;
            Some(key.join(first))
        });
        let mut children: Vec<Key> = below.collect();
        children.sort();
        children.dedup();
        Ok((children, Grant::default()))
    }

    fn visit_below(
        &self,
        key: &Key,
        visit: &mut dyn FnMut(&Key, HierarchyNode) -> Result<()>,
    ) -> Result<()> {
        let Some(node) = self.find(key)? else {
            return Ok(());
        };
        let is_group = matches!(node, HierarchyNode::Group);
        visit(key, node)?;
        let below = if is_group {
            self.children(key)?.0
        } else {
            Vec::new()
        };
        below
            .iter()
            .try_for_each(|below| self.visit_below(below, visit))
    }

    fn ancestors(&self, key: &Key) -> Vec<Key> {
        let above = std::iter::successors(Some(key.clone()), |key| {
            (!key.is_root()).then(|| key.parent())
        });
        above.skip(1).collect()
    }

    fn document(&self, key: &Key) -> Result<Option<Box<dyn AsRef<[u8]>>>> {
        let text = self.get(key);
        Ok(text.map(|text| Box::new(text) as Box<dyn AsRef<[u8]>>))
    }

    fn fill_meaning(&self, _: &ArrayNode) -> FillMeaning {
        FillMeaning::Auto
    }
}

/// Returns a root group with arrays in chunks of one item, each with its path, dtype in JSON,
/// shape, and the attributes' document.
pub fn hierarchy(arrays: &[(&str, &str, &[u64], &str)]) -> MapHierarchy {
    let map = MapHierarchy::default();
    map.insert(".zgroup", r#"{"zarr_format":2}"#);
    for (path, dtype, shape, attributes) in arrays {
        let chunks: Vec<u64> = shape.iter().map(|_| 1).collect();
        let document = format!(
            r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":{dtype},"compressor":null,
            "fill_value":null,"order":"C","filters":null,"dimension_separator":"."}}"#
        );
        map.insert(&format!("{path}/.zarray"), document);
        map.insert(&format!("{path}/.zattrs"), *attributes);
    }
    map
}

/// Returns the metadata of an array with the dtype, in JSON, and shape.
pub fn metadata(dtype: &str, shape: &[u64]) -> ArrayMetadata {
    let chunks = vec![1; shape.len()];
    let document = format!(
        r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":{dtype},"compressor":null,"fill_value":null,
        "order":"C","filters":null}}"#
    );
    ArrayMetadata::parse(document.as_bytes()).unwrap()
}

/// Returns an array without attributes; `dtype` is a NumPy string such as `<f4`.
pub fn plain(dtype: &str, shape: &[u64]) -> Described {
    Described::of_metadata(
        &Key::normalize("group/data").unwrap(),
        &metadata(&format!("{dtype:?}"), shape),
    )
}

fn axis(name: &str, role: Role, units: &str, coordinates: Coordinates, len: u64) -> DescribedAxis {
    let name = Some(name.into());
    let units = Some(units.into());
    DescribedAxis {
        name,
        len,
        role,
        units,
        calendar: None,
        coordinates,
        direction: None,
        labels: Default::default(),
        is_unread: false,
    }
}

/// Returns floats over time, latitude from north to south, and longitude.
pub fn geographic() -> Described {
    let regular = |first, step| Coordinates::Regular { first, step };
    let attributes = r#"{"units":"K","long_name":"Air <2 m>","_FillValue":-9999.0,"valid_min":150,"flags":[1,2]}"#;
    let attributes = json::parse_object(attributes.as_bytes()).unwrap().into();
    Described {
        axes: vec![
            axis(
                "time",
                Role::Time,
                "hours since 2000-01-01 00:00:00",
                regular(0.0, 6.0),
                4,
            ),
            axis("lat", Role::Y, "degrees_north", regular(50.0, -0.5), 6),
            axis("lon", Role::X, "degrees_east", regular(10.0, 0.25), 10),
        ],
        crs: Some(Crs {
            authority: Some("EPSG:4326".into()),
            kind: CrsKind::Geographic,
            ..Crs::default()
        }),
        nodata: Some(MetadataNumber::Float(-9999.0)),
        units: Some("K".into()),
        long_name: Some("Air <2 m>".into()),
        attributes,
        ..plain("<f4", &[4, 6, 10])
    }
}

/// Returns packed big-endian integers over monthly times, four levels, latitude from south to
/// north, and longitude.
pub fn model() -> Described {
    let irregular = |values: &[f64]| Coordinates::Irregular {
        values: values.to_vec(),
    };
    Described {
        name: "sea-surface temperature".into(),
        axes: vec![
            axis(
                "time",
                Role::Time,
                "days since 2001-01-01",
                irregular(&[0.0, 31.0, 59.0]),
                3,
            ),
            axis(
                "level",
                Role::Z,
                "hPa",
                irregular(&[1000.0, 850.0, 500.0, 200.0]),
                4,
            ),
            axis(
                "lat",
                Role::Y,
                "degrees_north",
                irregular(&[-60.5, -10.0, 0.0, 10.0, 60.5]),
                5,
            ),
            axis(
                "lon",
                Role::X,
                "degrees_east",
                Coordinates::Regular {
                    first: 0.1,
                    step: 0.1,
                },
                6,
            ),
        ],
        nodata: Some(MetadataNumber::Int(-32768)),
        scale: Some(0.05),
        offset: Some(260.0),
        units: Some("K".into()),
        ..plain(">i2", &[3, 4, 5, 6])
    }
}

/// Returns bytes over channel, z, y and x at equal steps, as microscopes produce.
pub fn microscopy() -> Described {
    let regular = |step| Coordinates::Regular { first: 0.0, step };
    Described {
        axes: vec![
            DescribedAxis {
                units: None,
                ..axis("c", Role::Other, "", Coordinates::Unknown, 2)
            },
            axis("z", Role::Z, "micrometer", regular(2.0), 3),
            axis("y", Role::Y, "micrometer", regular(0.5), 4),
            axis("x", Role::X, "micrometer", regular(0.5), 5),
        ],
        ..plain("|u1", &[2, 3, 4, 5])
    }
}

/// Returns arrays with hostile metadata: long names, numbers that are not finite, very many items.
pub fn hostile() -> Vec<Described> {
    let strange = [
        f64::NAN,
        f64::INFINITY,
        f64::MIN_POSITIVE,
        f64::MAX,
        -f64::MAX,
        0.0,
    ];
    let long = "\u{1}<&\"'{},é\n".repeat(10_000);
    let mut all = Vec::new();
    for (first, step) in strange
        .iter()
        .flat_map(|first| strange.iter().map(move |step| (*first, *step)))
    {
        let regular = Coordinates::Regular { first, step };
        let irregular = Coordinates::Irregular {
            values: vec![step; 3],
        };
        let named = |role, coordinates, len| axis(&long, role, &long, coordinates, len);
        let most = i32::MAX as u64;
        for axes in [
            vec![
                named(Role::Time, regular.clone(), 3),
                named(Role::Z, regular.clone(), most),
            ],
            vec![
                named(Role::Other, irregular.clone(), 3),
                named(Role::Y, irregular, 3),
                named(Role::X, regular, most),
            ],
        ] {
            let shape: Vec<u64> = axes.iter().map(|axis| axis.len).collect();
            let number = Some(MetadataNumber::Float(first));
            all.push(Described {
                axes,
                name: long.clone(),
                long_name: Some(long.clone()),
                units: Some(long.clone()),
                crs: Some(Crs {
                    wkt: Some(long.clone()),
                    ..Crs::default()
                }),
                nodata: number,
                scale: Some(first),
                offset: Some(step),
                ..plain("<f4", &shape)
            });
        }
    }
    all
}
