//! A document of an array that a user wrote, and the document that is stored for it: one of the
//! same format, or in a mount that shows v3 as v2 a `zarr.json` for a `.zarray`. The stored one
//! keeps what the mounted tree hides.

use super::document::refused;
use super::{DocumentFormat, DocumentKind};
use crate::array::Array;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_format::metadata::v3::from_v2::{self, compressor_codec};
use zarrfs_format::metadata::v3::merge::{differs_v3, merged_v3};
use zarrfs_format::metadata::{ArrayMetadata, CodecConfig, Order, Separator};
use zarrfs_store::Key;

/// A document of an array that a user wrote.
pub(super) struct WrittenArray<'a> {
    pub text: &'a [u8],
    fields: Object,
    pub metadata: ArrayMetadata,
    /// The format of the document.
    pub format: DocumentFormat,
    /// The format in which the array is stored.
    pub stored: DocumentFormat,
}

impl<'a> WrittenArray<'a> {
    /// Parses a document of an array that is stored in the same format.
    pub fn parse(text: &'a [u8], format: DocumentFormat) -> Result<Self> {
        Ok(WrittenArray {
            text,
            metadata: format.parse_array(text)?,
            fields: json::parse_object(text)?,
            format,
            stored: format,
        })
    }

    /// Returns the kind of document that is stored.
    pub fn kind(&self) -> DocumentKind {
        match self.stored {
            DocumentFormat::V2 => DocumentKind::V2,
            DocumentFormat::V3 => DocumentKind::V3,
        }
    }

    /// Returns whether a new array gets the default compressor.
    pub fn lacks_compressor(&self) -> bool {
        match self.format {
            DocumentFormat::V2 => self.metadata.compressor.is_none(),
            DocumentFormat::V3 => self.metadata.is_decoded() && !self.metadata.has_objects(),
        }
    }

    /// Returns the document of a new array and its metadata.
    ///
    /// # Errors
    ///
    /// Fails, with `document` in the error, if the array has no form in the stored format.
    pub fn new_document(
        &self,
        document: &Key,
        compressor: Option<&CodecConfig>,
        attributes: Option<&[u8]>,
    ) -> Result<(ArrayMetadata, Vec<u8>)> {
        if (self.format, self.stored) == (DocumentFormat::V2, DocumentFormat::V3) {
            let mut metadata = self.metadata.clone();
            if let Some(compressor) = compressor {
                metadata.compressor = Some(compressor.clone());
            }
            return new_v3_document(&metadata, self.text, attributes)
                .map_err(|e| refused(document, e));
        }
        let Some(compressor) = compressor else {
            return Ok((self.metadata.clone(), self.text.to_vec()));
        };
        let mut fields = (*self.fields).clone();
        match self.format {
            DocumentFormat::V2 => {
                fields.insert("compressor".into(), compressor.to_json());
            }
            DocumentFormat::V3 => {
                let codec = compressor_codec(compressor, self.metadata.dtype.size())
                    .map_err(|e| e.context(format!("{document}: --compressor")))?;
                fields
                    .get_mut("codecs")
                    .and_then(Value::as_array_mut)
                    .ok_or_else(|| Error::invalid("codecs is not a list"))?
                    .push(codec);
            }
        }
        let fields = Value::Object(fields);
        let text = json::respell(self.text, &fields)
            .unwrap_or_else(|| json::write_pretty(&fields).into_bytes());
        let metadata = self
            .format
            .parse_array(&text)
            .map_err(|e| refused(document, e))?;
        Ok((metadata, text))
    }

    /// Returns a field that the document changes and that must not change while chunks are stored.
    pub fn differs(&self, stored: &Map<String, Value>, array: &Array) -> Option<&'static str> {
        match self.format {
            DocumentFormat::V2 => differs_v2(array, &self.metadata),
            DocumentFormat::V3 => {
                differs_v3(stored, array.metadata(), &self.fields, &self.metadata)
            }
        }
    }

    /// Merges the document into the stored one: shape, fill value, and unknown fields.
    pub fn merged(
        &self,
        stored: &Map<String, Value>,
        old: &ArrayMetadata,
    ) -> Result<Map<String, Value>> {
        match (self.format, self.stored) {
            (DocumentFormat::V3, _) => Ok(merged_v3(stored, &self.fields, old, &self.metadata)),
            (DocumentFormat::V2, DocumentFormat::V3) => merged_into_v3(stored, old, &self.metadata),
            (DocumentFormat::V2, DocumentFormat::V2) => Ok(self.merged_v2(stored, old)),
        }
    }

    /// Returns the document, and its metadata, of an array without chunks in place of `stored`,
    /// whose fields it keeps where the mounted tree hides them.
    pub fn replacement(
        &self,
        stored: &Map<String, Value>,
        old: &ArrayMetadata,
        attributes: Option<&[u8]>,
    ) -> Result<(ArrayMetadata, Vec<u8>)> {
        match (self.format, self.stored) {
            (DocumentFormat::V3, _) => Ok(self.with_hidden_v3(stored, old)),
            (DocumentFormat::V2, DocumentFormat::V3) => {
                new_v3_document(&self.metadata, self.text, attributes)
            }
            (DocumentFormat::V2, DocumentFormat::V2) => {
                let fields = self.with_hidden_v2(stored, old);
                let text = json::write_pretty(&Value::Object(fields)).into_bytes();
                Ok((ArrayMetadata::parse(&text)?, text))
            }
        }
    }

    fn merged_v2(&self, stored: &Map<String, Value>, old: &ArrayMetadata) -> Map<String, Value> {
        let mut fields = stored.clone();
        let new = &self.metadata;
        let has_same_fill = if old.has_objects() {
            new.fill_value == old.fill_value
        } else {
            new.fill == old.fill
        };
        for (field, value) in &self.fields {
            match field.as_str() {
                "chunks"
                | "compressor"
                | "dimension_separator"
                | "dtype"
                | "filters"
                | "order"
                | "zarr_format" => {}
                "fill_value" if has_same_fill => {}
                _ => drop(fields.insert(field.clone(), value.clone())),
            }
        }
        fields
    }

    /// Returns the fields, with the stored ones that the mounted tree hid.
    fn with_hidden_v2(
        &self,
        stored: &Map<String, Value>,
        old: &ArrayMetadata,
    ) -> Map<String, Value> {
        let new = &self.metadata;
        let has_same_filters = shows_no_filters(old, new) && new.dtype == old.dtype;
        let hidden = [
            ("compressor", new.compressor.is_none()),
            ("filters", has_same_filters),
            (
                "dimension_separator",
                new.separator != Some(Separator::Slash),
            ),
        ];
        let mut fields = (*self.fields).clone();
        for (field, is_hidden) in hidden {
            if let Some(value) = stored.get(field).filter(|_| is_hidden) {
                fields.insert(field.to_string(), value.clone());
            }
        }
        fields
    }

    /// Returns the document and its metadata. Where it states the codecs, keys or grid that the
    /// mount shows, it gets the stored ones, which the mount hides, if the chunk files of both
    /// documents are the same.
    fn with_hidden_v3(
        &self,
        stored: &Map<String, Value>,
        old: &ArrayMetadata,
    ) -> (ArrayMetadata, Vec<u8>) {
        let new = &self.metadata;
        let grid = new.has_chunks_of(old).then_some("chunk_grid");
        let keys = (!new.has_key_prefix() && new.separator == Some(Separator::Dot))
            .then_some("chunk_key_encoding");
        if new.is_decoded() {
            let mut fields = (*self.fields).clone();
            for field in ["codecs"].into_iter().chain(grid).chain(keys) {
                if let Some(value) = stored.get(field) {
                    fields.insert(field.to_string(), value.clone());
                }
            }
            let text = json::write_pretty(&Value::Object(fields)).into_bytes();
            // the stored codecs may have another byte order, or may not be able to encode such
            // items or chunks
            if let Ok(metadata) = ArrayMetadata::parse_v3(&text)
                && metadata.has_chunks_of(new)
                && (&metadata.dtype, &metadata.fill, metadata.object_codec())
                    == (&new.dtype, &new.fill, new.object_codec())
            {
                return (metadata, text);
            }
        }
        (new.clone(), self.text.to_vec())
    }
}

/// Returns a field that a written `.zarray` changes and that must not change. A null codec and the
/// separator of the mounted tree are not changes.
fn differs_v2(array: &Array, written: &ArrayMetadata) -> Option<&'static str> {
    let stored = array.metadata();
    let same_dtype = written.dtype == stored.dtype
        && (written.dtype_json == stored.dtype_json || !stored.dtype.has_time());
    let same_compressor = written.compressor.is_none() || written.compressor == stored.compressor;
    let same_filters = shows_no_filters(stored, written) || written.filters == stored.filters;
    let same_separator =
        written.separator != Some(Separator::Slash) || array.separator() == Separator::Slash;
    let fields = [
        ("dtype", same_dtype),
        ("chunks", written.chunks == stored.chunks),
        ("order", written.order == stored.order),
        ("compressor", same_compressor),
        ("filters", same_filters),
        ("dimension_separator", same_separator),
    ];
    fields
        .into_iter()
        .find(|(_, same)| !same)
        .map(|(field, _)| field)
}

/// Returns whether `written` has only the filters that the mounted tree shows.
fn shows_no_filters(stored: &ArrayMetadata, written: &ArrayMetadata) -> bool {
    written.filters.is_empty() || written.filters.iter().eq(stored.object_codec())
}

/// Returns the `zarr.json` of a new array for its `.zarray`, and its metadata.
fn new_v3_document(
    metadata: &ArrayMetadata,
    text: &[u8],
    attributes: Option<&[u8]>,
) -> Result<(ArrayMetadata, Vec<u8>)> {
    from_v2::check_array_fields(text)?;
    if metadata.order == Order::F && metadata.shape.len() > 1 {
        // the program that wrote the document writes chunks in this order
        return Err(Error::unsupported(
            "order \"F\" can't be shown as Zarr v2 of a store of v3: create it with order \"C\"",
        ));
    }
    let text = from_v2::array_document(
        metadata,
        metadata.separator.unwrap_or(Separator::Dot),
        attributes,
    )?;
    Ok((ArrayMetadata::parse_v3(&text)?, text))
}

/// Returns the stored `zarr.json` with the shape and the fill value of a written `.zarray`.
fn merged_into_v3(
    stored: &Map<String, Value>,
    old: &ArrayMetadata,
    new: &ArrayMetadata,
) -> Result<Map<String, Value>> {
    let mut fields = stored.clone();
    fields.insert("shape".into(), new.shape.clone().into());
    // the stored one may have no spelling in v2
    let shown = ArrayMetadata::parse(old.shown_document().as_bytes())?;
    let is_kept = if old.has_objects() {
        new.fill_value == shown.fill_value
    } else {
        new.fill.as_deref().unwrap_or_default() == shown.fill.as_deref().unwrap_or_default()
    };
    if !is_kept {
        let v3 = old
            .v3
            .as_ref()
            .ok_or_else(|| Error::invalid("not an array of Zarr v3"))?;
        fields.insert(
            "fill_value".into(),
            from_v2::fill_value_of(new, &v3.data_type, old.is_big_endian())?,
        );
    }
    Ok(fields)
}
