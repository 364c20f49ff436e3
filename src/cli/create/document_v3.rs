//! Builds the `zarr.json` of a new v3 array, in the spelling that every reader of Zarr v3 accepts:
//! extensions are objects, and the byte order and the separator are stated.

use super::CreateArgs;
use super::document::{NewDocument, fill_value};
use crate::array::hierarchy::DocumentFormat;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{self, Value, json};
use zarrfs_format::data_type::{DataType, name_of};
use zarrfs_format::dtype::DType;
use zarrfs_format::grid::Grid;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_format::metadata::v3::fill_value as fill_value_v3;
use zarrfs_format::metadata::v3::from_v2::compressor_codec;
use zarrfs_format::metadata::v3::in_shards::codecs_in_shards;
use zarrfs_format::pipeline::Pipeline;

/// The type of the items of a new array.
struct ItemType {
    /// The dtype that the user gave; `None` for the name of a v3 data type that NumPy lacks.
    numpy: Option<DType>,
    /// The data type as `zarr.json` spells it.
    data_type: Value,
    /// The parsed data type.
    parsed: DataType,
    is_big_endian: bool,
}

/// Creates the document of a v3 array from the arguments.
///
/// # Errors
///
/// Fails for arguments that Zarr v3 has no form for, and for arrays that cannot be written.
pub fn new(args: &CreateArgs) -> Result<NewDocument> {
    if args.filters.is_some() {
        return Err(Error::invalid(
            "--filters: Zarr v3 has a list of codecs: give --codecs",
        ));
    }
    let item = ItemType::of(&args.dtype).context("--dtype")?;
    let fill = item.fill_value(args.fill.as_deref()).context("--fill")?;
    let codecs = match &args.codecs {
        Some(codecs) => codecs.clone(),
        None => item.codecs(args)?,
    };
    let (outer, codecs) = match &args.shards {
        Some(shards) => {
            let codecs = codecs_in_shards(&shards.0, &args.chunks.0, &codecs)?;
            (&shards.0, codecs)
        }
        None => (&args.chunks.0, codecs),
    };
    let separator = args.separator.as_deref().unwrap_or("/");
    let mut document = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": args.shape.0,
        "data_type": item.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": args.attrs.clone().unwrap_or_else(|| json!({})),
    });
    if let Some(names) = &args.dimension_names {
        document["dimension_names"] = json!(names.0);
    }
    document["storage_transformers"] = json!([]);
    let text = json::write_pretty(&document);
    let metadata = ArrayMetadata::parse_v3(text.as_bytes())?;
    if item.numpy.is_some_and(|dtype| dtype != metadata.dtype) {
        return Err(Error::invalid(
            "--codecs: codec \"bytes\" states another byte order than --dtype",
        ));
    }
    let grid = Grid::new(&metadata.shape, &metadata.chunks, metadata.dtype.size())?;
    let pipeline = Pipeline::new(&metadata, grid.max_chunk_size())?;
    if !metadata.has_objects() {
        pipeline.check_encodes(metadata.dtype.size(), grid.max_chunk_size())?;
    }
    Ok(NewDocument {
        text,
        size: (!metadata.has_objects()).then_some(grid.size()),
        format: DocumentFormat::V3,
        attributes: None,
    })
}

impl ItemType {
    /// Parses a dtype, or the name of a v3 data type.
    fn of(given: &Value) -> Result<Self> {
        let numpy = DType::parse(given).ok();
        let (data_type, is_big_endian) = match &numpy {
            Some(dtype) => name_of(dtype, given).ok_or_else(|| {
                let more = if dtype.has_objects() {
                    ": give string, or variable_length_bytes"
                } else {
                    ""
                };
                Error::invalid(format!(
                    "{} has no data type in Zarr v3{more}",
                    json::write(given)
                ))
            })?,
            None => (given.clone(), false),
        };
        let parsed = DataType::parse(&data_type, is_big_endian)?;
        Ok(ItemType {
            numpy,
            data_type,
            parsed,
            is_big_endian,
        })
    }

    /// Returns the fill value as `zarr.json` spells it: the given value, or zeros.
    fn fill_value(&self, given: Option<&str>) -> Result<Value> {
        let Some(text) = given else {
            return self.spelled(&[]);
        };
        match &self.numpy {
            Some(dtype) => match fill_value(Some(text), dtype, &Value::Null)? {
                Value::Null => Err(Error::invalid(
                    "null: an array of Zarr v3 must have a fill value",
                )),
                value => self.spelled(&dtype.parse_fill_value(&value)?.unwrap_or_default()),
            },
            None => self.fill_value_of_v3(text),
        }
    }

    fn spelled(&self, item: &[u8]) -> Result<Value> {
        fill_value_v3::spell(item, &self.data_type, &self.parsed)
            .ok_or_else(|| Error::invalid("the value has no spelling in Zarr v3"))
    }

    /// Parses the fill value of a data type that NumPy lacks: JSON, or a word.
    fn fill_value_of_v3(&self, text: &str) -> Result<Value> {
        let value = match json::parse(text.as_bytes()) {
            // a bare NaN is no string
            Ok(Value::String(word)) => json::text(&Value::String(word)).unwrap_or(text).into(),
            // for objects, 5 is a text, too
            Ok(value) if !self.parsed.dtype.has_objects() || value.is_array() => value,
            _ => text.into(),
        };
        fill_value_v3::parse(&value, &self.data_type, &self.parsed)?;
        Ok(value)
    }

    /// Returns the codecs for `--order` and `--compressor`.
    fn codecs(&self, args: &CreateArgs) -> Result<Value> {
        let mut codecs = Vec::new();
        if args.order == "F" && args.shape.0.len() > 1 {
            let order: Vec<usize> = (0..args.shape.0.len()).rev().collect();
            codecs.push(json!({"name": "transpose", "configuration": {"order": order}}));
        }
        codecs.push(match json::text(&self.data_type) {
            Some("string") => json!({"name": "vlen-utf8"}),
            _ if self.parsed.dtype.has_objects() => json!({"name": "vlen-bytes"}),
            _ if self.is_big_endian => json!({"name": "bytes", "configuration": {"endian": "big"}}),
            _ => json!({"name": "bytes", "configuration": {"endian": "little"}}),
        });
        if let Some(compressor) = &args.compressor.0 {
            codecs.push(
                compressor_codec(compressor, self.parsed.dtype.size()).context("--compressor")?,
            );
        }
        Ok(Value::Array(codecs))
    }
}
