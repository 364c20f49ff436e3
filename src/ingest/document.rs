//! The documents of arrays that a file describes, as xarray writes them: in Zarr v2 missing values
//! are the fill value and names of dimensions an attribute, in Zarr v3 missing values are an
//! attribute and the names a field.

use crate::array::hierarchy::{DocumentFormat, ShardShape};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{self, Map, Value, json};
use zarrfs_format::data_type::{DataType, name_of};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::grid::Grid;
use zarrfs_format::interchange::check_interchange;
use zarrfs_format::metadata::v3::fill_value as fill_value_v3;
use zarrfs_format::metadata::v3::from_v2::compressor_codec;
use zarrfs_format::metadata::v3::in_shards::codecs_in_shards;
use zarrfs_format::metadata::{ArrayMetadata, CodecConfig, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP};
use zarrfs_ingest::{FileFormat, Incoming, IncomingArray};

/// Maximum decoded size of a chunk whose shape is chosen, in bytes: few enough chunks for a bucket,
/// small enough to read a point.
const CHUNK_SIZE: u64 = 4 << 20;

/// xarray's attribute for the names of dimensions in Zarr v2.
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// The codec of strings of any length, by its name in both Zarr formats.
const STRINGS: &str = "vlen-utf8";

/// The attribute in which netCDF-C says what has made a file. xarray, netCDF-C and the containers
/// of a mount show it nowhere, so that it marks a node without a change of what programs see.
const MAKER: &str = "_NCProperties";

/// The start of the mark, up to the version of zarrfs, and what the name of the unlimited dimension
/// follows, if there is one.
const MARK: &str = "version=2,zarrfs-ingest=";
const RECORD: &str = ",unlimited=";

/// The formats that a mark names, and what the end of the name of the file follows.
const NAMED: [(FileFormat, &str); 2] = [(FileFormat::Hdf5, ",hdf5="), (FileFormat::Tiff, ",tiff=")];

/// What the mark of a node says of the file that it was.
#[derive(Debug, PartialEq, Eq)]
pub struct FileMark<'a> {
    /// The format and the end of the name of the file; `None` for classic netCDF and NPY.
    pub origin: Option<(FileFormat, &'a str)>,
    /// The name of the unlimited dimension.
    pub unlimited: Option<&'a str>,
}

impl<'a> FileMark<'a> {
    /// Returns the mark in the attributes of a node; `None` if the node was no file.
    pub fn of(attributes: &'a Map<String, Value>) -> Option<Self> {
        let made = attributes.get(MAKER).and_then(Value::as_str)?;
        let rest = made.strip_prefix(MARK)?;
        let (rest, unlimited) = match rest.split_once(RECORD) {
            Some((rest, name)) => (rest, Some(name)),
            None => (rest, None),
        };
        let origin = NAMED.into_iter().find_map(|(format, word)| {
            let (_, ending) = rest.split_once(word)?;
            Some((format, ending))
        });
        Some(FileMark { origin, unlimited })
    }
}

/// Marks the attributes of a node that was a file whose name has this end. A file of HDF5 states
/// its unlimited dimension if it is shown as classic netCDF, since no container of HDF5 has one.
pub fn mark(attributes: &mut Map<String, Value>, incoming: &Incoming, ending: &str) {
    let mut text = format!("{MARK}{}", env!("CARGO_PKG_VERSION"));
    let mut named = NAMED.into_iter();
    if let Some((_, word)) = named.find(|(format, _)| *format == incoming.format()) {
        text += &format!("{word}{ending}");
    }
    let is_netcdf = FileFormat::of_ending(ending) == Some(FileFormat::Netcdf);
    if let Some(record) = incoming.record().filter(|_| is_netcdf) {
        text += &format!("{RECORD}{record}");
    }
    attributes.insert(MAKER.to_string(), text.into());
}

/// How arrays are stored.
#[derive(Clone, Debug)]
pub struct IngestLayout {
    /// The Zarr format.
    pub format: DocumentFormat,
    /// The shape of chunks of arrays with as many dimensions. Other arrays, and all arrays if it is
    /// `None`, get the shape in the file or one that is chosen.
    pub chunks: Option<ShardShape>,
    /// The shape of shards of arrays with as many dimensions, for Zarr v3.
    pub shards: Option<ShardShape>,
    /// The compressor; `None` for none.
    pub compressor: Option<CodecConfig>,
    /// Whether chunks that hold only the fill value are not stored.
    pub drops_empty: bool,
}

/// The documents of a group or array.
pub struct NodeDocuments {
    /// Names and texts, the document that makes the node last.
    pub texts: Vec<(&'static str, String)>,
    /// The parsed document of an array.
    pub metadata: Option<ArrayMetadata>,
}

/// Returns the documents of a group with these attributes.
///
/// # Errors
///
/// The layout has shards, and the format has none.
pub fn group_documents(
    attributes: Map<String, Value>,
    layout: &IngestLayout,
) -> Result<NodeDocuments> {
    let attributes = Value::Object(attributes);
    let texts = match layout.format {
        DocumentFormat::V2 if layout.shards.is_some() => {
            return Err(Error::invalid("Zarr v2 has no shards"));
        }
        DocumentFormat::V2 => vec![
            (ZATTRS, json::write_pretty(&attributes)),
            (ZGROUP, layout.format.group_document().to_string()),
        ],
        DocumentFormat::V3 => {
            let group = json!({"zarr_format": 3, "node_type": "group", "attributes": attributes});
            vec![(ZARR_JSON, json::write_pretty(&group))]
        }
    };
    Ok(NodeDocuments {
        texts,
        metadata: None,
    })
}

/// Returns the documents of an array.
///
/// # Errors
///
/// The Zarr format has no such dtype, or cannot store the array in this layout.
pub fn array_documents(array: &IncomingArray, layout: &IngestLayout) -> Result<NodeDocuments> {
    let dtype = DType::parse(&array.dtype)?;
    let chunks = chunk_shape(array, dtype.size() as u64, layout);
    if chunks.contains(&0) {
        return Err(Error::invalid("a chunk of length 0"));
    }
    match layout.format {
        DocumentFormat::V2 => documents_v2(array, &dtype, &chunks, layout),
        DocumentFormat::V3 => documents_v3(array, &dtype, &chunks, layout),
    }
}

fn documents_v2(
    array: &IncomingArray,
    dtype: &DType,
    chunks: &[u64],
    layout: &IngestLayout,
) -> Result<NodeDocuments> {
    let missing = array.missing.as_ref();
    let fill = missing.and_then(|item| fill_json(dtype, item));
    let text = json::write_pretty(&json!({
        "chunks": chunks,
        "compressor": layout.compressor.as_ref().map(CodecConfig::to_json),
        "dimension_separator": ".",
        "dtype": array.dtype,
        "fill_value": fill,
        "filters": dtype.has_objects().then(|| json!([{"id": STRINGS}])),
        "order": "C",
        "shape": array.shape,
        "zarr_format": 2,
    }));
    let metadata = ArrayMetadata::parse(text.as_bytes())?;
    let grid = Grid::new(&metadata.shape, &metadata.chunks, metadata.dtype.size())?;
    check_interchange(&metadata, grid.max_chunk_size())?;
    let mut attributes = Map::new();
    if let Some(names) = &array.dimensions {
        attributes.insert(DIMENSIONS.to_string(), json!(names));
    }
    let others = array
        .attributes
        .iter()
        .filter(|(name, _)| *name != DIMENSIONS);
    attributes.extend(others.map(|(name, value)| (name.clone(), value.clone())));
    Ok(NodeDocuments {
        texts: vec![
            (ZATTRS, json::write_pretty(&Value::Object(attributes))),
            (ZARRAY, text),
        ],
        metadata: Some(metadata),
    })
}

fn documents_v3(
    array: &IncomingArray,
    dtype: &DType,
    chunks: &[u64],
    layout: &IngestLayout,
) -> Result<NodeDocuments> {
    let shown = || format!("{} has no data type in Zarr v3", json::write(&array.dtype));
    let (data_type, is_big_endian) = if dtype.has_objects() {
        ("string".into(), false)
    } else {
        name_of(dtype, &array.dtype).ok_or_else(|| Error::invalid(shown()))?
    };
    let parsed = DataType::parse(&data_type, is_big_endian)?;
    let missing = array.missing.as_deref().unwrap_or_default();
    let fill = fill_value_v3::spell(missing, &data_type, &parsed)
        .or_else(|| fill_value_v3::spell(&[], &data_type, &parsed))
        .ok_or_else(|| Error::invalid(shown()))?;
    let endian = if is_big_endian { "big" } else { "little" };
    let mut codecs = if dtype.has_objects() {
        vec![json!({"name": STRINGS})]
    } else {
        vec![json!({"name": "bytes", "configuration": {"endian": endian}})]
    };
    if let Some(compressor) = &layout.compressor {
        codecs.push(compressor_codec(compressor, dtype.size()).context("--compressor")?);
    }
    let codecs = Value::Array(codecs);
    let shards = match &layout.shards {
        Some(shards) => shards.lengths_for(&array.shape, chunks, dtype),
        None => None,
    };
    let (outer, codecs) = match &shards {
        Some(shards) => (&shards[..], codecs_in_shards(shards, chunks, &codecs)?),
        None => (chunks, codecs),
    };
    let mut attributes = array.attributes.clone();
    if let Some(item) = &array.missing
        && let Some(spelled) = missing_v3(dtype, item)
    {
        attributes.insert("_FillValue".to_string(), spelled);
    }
    let mut document = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": attributes,
    });
    if let Some(names) = &array.dimensions {
        document["dimension_names"] = json!(names);
    }
    document["storage_transformers"] = json!([]);
    let text = json::write_pretty(&document);
    Ok(NodeDocuments {
        metadata: Some(ArrayMetadata::parse_v3(text.as_bytes())?),
        texts: vec![(ZARR_JSON, text)],
    })
}

/// Returns a missing value as a `.zarray` spells it. A NaN of any bits is NaN.
fn fill_json(dtype: &DType, item: &[u8]) -> Option<Value> {
    let stripped = zarrfs_format::fill_value::without_zeros(item.to_vec());
    match dtype.kind() {
        DTypeKind::Float if dtype.float_of(item).is_nan() => Some("NaN".into()),
        DTypeKind::Object => Some(String::from_utf8_lossy(item).into()),
        _ => dtype.fill_value_json(&stripped),
    }
}

/// Returns a missing value as xarray's `FillValueCoder` spells it: floats are doubles in base64.
fn missing_v3(dtype: &DType, item: &[u8]) -> Option<Value> {
    match dtype.kind() {
        DTypeKind::Float => Some(STANDARD.encode(dtype.float_of(item).to_le_bytes()).into()),
        // xarray reads no such attribute for characters, whose fill value says the same
        DTypeKind::Bytes => None,
        _ => fill_json(dtype, item),
    }
}

/// Returns the shape of the chunks of an array.
fn chunk_shape(array: &IncomingArray, item: u64, layout: &IngestLayout) -> Vec<u64> {
    match (&layout.chunks, &array.chunks) {
        (Some(ShardShape::Lengths(lengths)), _) if lengths.len() == array.shape.len() => {
            lengths.clone()
        }
        (Some(ShardShape::Auto), _) | (_, None) => chosen_chunks(&array.shape, item),
        (_, Some(of_file)) => of_file.clone(),
    }
}

/// Chooses the shape of chunks: begins with the shape of the array, and halves its longest
/// dimension until the chunk is small.
fn chosen_chunks(shape: &[u64], item: u64) -> Vec<u64> {
    let mut lengths: Vec<u64> = shape.iter().map(|len| (*len).max(1)).collect();
    loop {
        let size = lengths
            .iter()
            .fold(item.max(1), |n, len| n.saturating_mul(*len));
        // of equal lengths the first one, so that chunks have long runs in the file
        let longest = (0..lengths.len()).rev().max_by_key(|n| lengths[*n]);
        match longest {
            Some(longest) if size > CHUNK_SIZE && lengths[longest] > 1 => {
                lengths[longest] = lengths[longest].div_ceil(2);
            }
            _ => return lengths,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_chunks_are_small_and_near_cubes() {
        for (shape, item, expected) in [
            (&[][..], 8, &[][..]),
            (&[0, 5], 4, &[1, 5]),
            (&[1000, 1000], 4, &[1000, 1000]),
            (&[365, 721, 1440], 4, &[92, 91, 90]),
            (&[1 << 40], 1, &[1 << 22]),
            (&[3], 1 << 30, &[1]),
        ] {
            let chosen = chosen_chunks(shape, item);
            assert_eq!(chosen, expected, "{shape:?}");
        }
    }
}
