//! Zarr v1: the `meta` document of the one array of a store. Source of the rules: the v1
//! specification, and the output of zarr 1.x, its only writer.

use super::{ArrayMetadata, CodecConfig, Order, Separator, array};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value};

/// The meaning of order F in v1. zarr 1.x stored F layout only with blosc; otherwise it stored C
/// layout, whatever order the document states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum V1Order {
    /// The layout that zarr 1.x stored.
    #[default]
    Zarr1,
    /// The layout that the document states, by the specification.
    Spec,
}

impl ArrayMetadata {
    /// Parses a v1 `meta` document.
    ///
    /// # Errors
    ///
    /// The errors of [`ArrayMetadata::parse`].
    pub fn parse_v1(document: &[u8], reading: V1Order) -> Result<Self> {
        let doc = array::object(document, 1)?;
        let memory = array::take_for_fields(&doc, &["dtype", "fill_value", "compression_opts"])?;
        let mut meta = ArrayMetadata::common(&doc, 1)?;
        if meta.has_objects() {
            return Err(Error::unsupported("v1 has no codec for objects"));
        }
        meta.compressor = compressor(&doc)?;
        meta.memory = memory.into();
        meta.separator = Some(Separator::Dot);
        let blosc = meta.compressor.as_ref().is_some_and(|c| c.id == "blosc");
        if reading == V1Order::Zarr1 && !blosc {
            meta.order = Order::C;
        }
        Ok(meta)
    }
}

/// Parses the compressor: `compression` is a codec id, null or "none", and `compression_opts` holds
/// its parameters, or its level as a number.
fn compressor(doc: &Map<String, Value>) -> Result<Option<CodecConfig>> {
    let Some(id) = array::stated(doc, "compression") else {
        return Ok(None);
    };
    let id = json::text(id).ok_or_else(|| Error::damaged("compression is not a name"))?;
    if id == "none" {
        return Ok(None);
    }
    let parameters = match array::stated(doc, "compression_opts") {
        None => Map::new(),
        Some(Value::Object(parameters)) => parameters.clone(),
        Some(level @ Value::Number(_)) => {
            [("level".to_string(), level.clone())].into_iter().collect()
        }
        Some(_) => {
            return Err(Error::damaged(
                "compression_opts is neither an object nor a number",
            ));
        }
    };
    Ok(Some(CodecConfig::new(id, parameters)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(compression: &str, opts: &str, reading: V1Order) -> Result<ArrayMetadata> {
        let text = format!(
            r#"{{"zarr_format":1,"shape":[4,4],"chunks":[2,2],"dtype":"<f8","compression":{compression},
            "compression_opts":{opts},"fill_value":NaN,"order":"F"}}"#
        );
        ArrayMetadata::parse_v1(text.as_bytes(), reading)
    }

    #[test]
    fn order_f_is_read_as_zarr_1_wrote_it() {
        let stored = |c, o, r| meta(c, o, r).unwrap().order;
        assert_eq!(stored("\"zlib\"", "1", V1Order::Zarr1), Order::C);
        assert_eq!(stored("\"none\"", "null", V1Order::Zarr1), Order::C);
        assert_eq!(
            stored("\"blosc\"", "{\"cname\":\"lz4\"}", V1Order::Zarr1),
            Order::F
        );
        assert_eq!(stored("\"zlib\"", "1", V1Order::Spec), Order::F);
    }

    #[test]
    fn the_shown_document_is_v2() {
        let view = meta("\"bz2\"", "3", V1Order::Zarr1)
            .unwrap()
            .shown_document();
        assert!(
            view.contains(r#""fill_value": "NaN""#) && view.contains(r#""zarr_format": 2"#),
            "{view}"
        );
        assert!(meta("7", "null", V1Order::Zarr1).is_err());
        assert!(meta("\"zlib\"", "\"fast\"", V1Order::Zarr1).is_err());
    }
}
