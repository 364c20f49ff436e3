//! Finds the changes that GDAL made in `data.vrt`, which it rewrites as a whole in its own
//! spelling. The raster's metadata are the array's attributes and can be changed; everything else
//! comes from other metadata.

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion, escape};
use std::collections::BTreeMap;
use zarrfs_base::json::{self, Map, Value};

/// Elements whose changes are lost, which is reported.
const KNOWN: [&str; 5] = ["GeoTransform", "NoDataValue", "UnitType", "Offset", "Scale"];

/// The content of a file up to its second band.
#[derive(Debug, Default, PartialEq)]
pub struct VrtContent {
    /// Number of columns and rows, and the type of the first band.
    layout: Vec<String>,
    metadata: BTreeMap<String, String>,
    /// The text of [`KNOWN`] elements.
    others: BTreeMap<String, String>,
}

/// The changes that a new file asks for.
#[derive(Debug, Default, PartialEq)]
pub struct VrtEdits {
    /// Changed attributes; `None` removes one.
    pub attributes: Vec<(String, Option<Value>)>,
    /// Changed elements whose changes are lost.
    pub lost: Vec<String>,
}

impl VrtContent {
    /// Parses the beginning of a file. Returns `None` unless it has a first band.
    pub fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader::from_str(text);
        let mut content = VrtContent::default();
        // the names of open elements, and the text of the innermost
        let (mut open, mut inner): (Vec<String>, String) = (Vec::new(), String::new());
        let mut key = None;
        loop {
            match reader.read_event().ok()? {
                Event::Start(start) => {
                    let name = String::from_utf8(start.name().as_ref().to_vec()).ok()?;
                    content.begin(&name, open.len(), &start)?;
                    if name == "MDI" {
                        key = attribute(&start, "key");
                    }
                    // metadata of other domains belong to GDAL
                    if name == "Metadata" && attribute(&start, "domain").is_some() {
                        reader.read_to_end(start.name()).ok()?;
                        continue;
                    }
                    open.push(name);
                    inner.clear();
                }
                Event::End(_) => {
                    let name = open.pop()?;
                    match open.last().map(String::as_str) {
                        Some("Metadata") if name == "MDI" && open.len() == 2 => {
                            content
                                .metadata
                                .insert(key.take()?, inner.trim().to_string());
                        }
                        Some("VRTDataset" | "VRTRasterBand") if KNOWN.contains(&name.as_str()) => {
                            content
                                .others
                                .insert(name.clone(), inner.trim().to_string());
                        }
                        _ => {}
                    }
                    if name == "VRTRasterBand" {
                        return Some(content);
                    }
                }
                Event::Text(part) => inner.push_str(&part.decode().ok()?),
                Event::CData(part) => inner.push_str(&part.decode().ok()?),
                Event::GeneralRef(part) => match part.resolve_char_ref().ok()? {
                    Some(char) => inner.push(char),
                    None => {
                        inner.push_str(escape::resolve_predefined_entity(&part.decode().ok()?)?)
                    }
                },
                Event::Eof => return None,
                _ => {}
            }
        }
    }

    fn begin(&mut self, name: &str, depth: usize, start: &BytesStart) -> Option<()> {
        match (name, depth) {
            ("VRTDataset", 0) => {
                self.layout = vec![
                    attribute(start, "rasterXSize")?,
                    attribute(start, "rasterYSize")?,
                ];
            }
            ("VRTRasterBand", 1) => self.layout.push(attribute(start, "dataType")?),
            (_, 0) => return None,
            _ => {}
        }
        Some(())
    }

    /// Returns the changes in `new`, which was written in place of this file. `stored` holds the
    /// array's attributes. Returns `None` if it describes another raster, such as a copy from
    /// another directory.
    pub fn edits(&self, new: &VrtContent, stored: &Map<String, Value>) -> Option<VrtEdits> {
        if self.layout != new.layout {
            return None;
        }
        let mut edits = VrtEdits::default();
        for (name, text) in new
            .metadata
            .iter()
            .filter(|(name, text)| self.metadata.get(*name) != Some(*text))
        {
            edits
                .attributes
                .push((name.clone(), Some(value(text, stored.get(name)))));
        }
        let gone = self
            .metadata
            .keys()
            .filter(|name| !new.metadata.contains_key(*name) && stored.contains_key(*name));
        edits
            .attributes
            .extend(gone.map(|name| (name.clone(), None)));
        let lost =
            KNOWN.iter().filter(
                |name| match (self.others.get(**name), new.others.get(**name)) {
                    (Some(old), Some(new)) => {
                        old != new && numbers(old).is_none_or(|old| Some(old) != numbers(new))
                    }
                    (old, new) => old != new,
                },
            );
        edits.lost = lost.map(|name| name.to_string()).collect();
        Some(edits)
    }
}

/// Converts the text of an attribute; it stays a number if it was one.
fn value(text: &str, before: Option<&Value>) -> Value {
    match (before, json::parse(text.as_bytes())) {
        (Some(Value::Number(_)), Ok(number @ Value::Number(_))) => number,
        _ => text.into(),
    }
}

/// Parses numbers and rounds them to 12 digits, since GDAL spells them differently.
fn numbers(text: &str) -> Option<Vec<String>> {
    let numbers = text.split(',').map(|word| word.trim().parse::<f64>().ok());
    numbers
        .map(|number| Some(format!("{:.12e}", number?)))
        .collect()
}

fn attribute(start: &BytesStart, name: &str) -> Option<String> {
    let attribute = start.try_get_attribute(name).ok()??;
    attribute
        .normalized_value(XmlVersion::Implicit1_0)
        .ok()
        .map(|value| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::super::super::{PartContent, testing};
    use super::*;

    /// Returns the text of an array's file.
    fn shown() -> String {
        let file = super::super::file(&testing::geographic());
        let text = file.parts().iter().map(|part| match &part.content {
            PartContent::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            PartContent::Bands(bands) => bands.text(),
            _ => String::new(),
        });
        text.collect()
    }

    /// The file as GDAL 3.6 rewrites it.
    const BY_GDAL: &str = r#"<VRTDataset rasterXSize="10" rasterYSize="6">
  <SRS dataAxisToSRSAxisMapping="2,1">GEOGCS["WGS 84"]</SRS>
  <GeoTransform>  9.8750000000000000e+00,  2.5000000000000000e-01,  0.0000000000000000e+00,  5.0250000000000000e+01,  0.0000000000000000e+00, -5.0000000000000000e-01</GeoTransform>
  <Metadata>
    <MDI key="units">degrees &#67;</MDI>
    <MDI key="A">B &amp; C</MDI>
    <MDI key="valid_min">151</MDI>
  </Metadata>
  <Metadata domain="IMAGE_STRUCTURE">
    <MDI key="INTERLEAVE">BAND</MDI>
  </Metadata>
  <VRTRasterBand dataType="Float32" band="1" blockYSize="1" subClass="VRTRawRasterBand">
    <Description>time=0</Description>
    <NoDataValue>-9999</NoDataValue>
    <UnitType>K</UnitType>
    <SourceFilename relativeToVRT="1">data.raw</SourceFilename>
  </VRTRasterBand>"#;

    #[test]
    fn changes_by_gdal_are_found() {
        let array = testing::geographic();
        let own = VrtContent::parse(&shown()).unwrap();
        assert_eq!(
            own.edits(&own, &array.attributes),
            Some(VrtEdits::default())
        );
        let edits = own
            .edits(&VrtContent::parse(BY_GDAL).unwrap(), &array.attributes)
            .unwrap();
        let found: Vec<_> = edits
            .attributes
            .iter()
            .map(|(name, v)| (name.as_str(), v.as_ref().map(json::write)))
            .collect();
        let text = |text: &str| Some(text.to_string());
        assert_eq!(
            found,
            [
                ("A", text("\"B & C\"")),
                ("units", text("\"degrees C\"")),
                ("valid_min", text("151")),
                ("long_name", None)
            ]
        );
        assert!(edits.lost.is_empty(), "{:?}", edits.lost);
        let other = BY_GDAL.replace("-9999", "0").replace("9.875", "9.5");
        let edits = own
            .edits(&VrtContent::parse(&other).unwrap(), &array.attributes)
            .unwrap();
        assert_eq!(edits.lost, ["GeoTransform", "NoDataValue"]);
    }

    #[test]
    fn other_rasters_and_invalid_files_are_refused() {
        let own = VrtContent::parse(&shown()).unwrap();
        for (old, new) in [("XSize=\"10\"", "XSize=\"11\""), ("Float32", "Float64")] {
            let other = VrtContent::parse(&BY_GDAL.replace(old, new)).unwrap();
            assert_eq!(own.edits(&other, &Map::new()), None, "{new}");
        }
        for text in [
            "",
            "something else",
            "<VRTDataset>",
            "<a><b></a>",
            "<VRTDataset rasterXSize=\"1\" rasterYSize=\"1\"/>",
        ] {
            assert_eq!(VrtContent::parse(text), None, "{text}");
        }
        for len in 0..BY_GDAL.len() - 1 {
            assert_eq!(
                BY_GDAL.get(..len).and_then(VrtContent::parse),
                None,
                "{len}"
            );
        }
    }
}
