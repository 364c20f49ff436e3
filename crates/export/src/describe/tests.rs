use super::super::described::{Crs, CrsKind, MetadataNumber, Role};
use super::*;
use crate::testing::MapHierarchy;

mod conventions;
mod categories;
mod hostile;
mod strings;
mod v3;

/// Arrays that are described.
struct Case {
    map: MapHierarchy,
}

fn case() -> Case {
    Case {
        map: MapHierarchy::default(),
    }
}

impl Case {
    /// Adds an array without stored chunks.
    fn array(self, path: &str, dtype: &str, shape: &[u64], attributes: &str) -> Self {
        self.array_with(path, dtype, shape, "null", attributes)
    }

    fn array_with(
        self,
        path: &str,
        dtype: &str,
        shape: &[u64],
        fill: &str,
        attributes: &str,
    ) -> Self {
        // a 1-D array has chunks of three items, any other one chunk
        let chunks: Vec<u64> = shape
            .iter()
            .map(|len| if shape.len() == 1 { 3 } else { *len.max(&1) })
            .collect();
        let document = format!(
            r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":"{dtype}","compressor":null,"fill_value":{fill},
            "order":"C","filters":null}}"#
        );
        self.map.insert(&format!("{path}/.zarray"), document);
        self.value(&format!("{path}/.zattrs"), attributes)
    }

    /// Adds a 1-D array with these items.
    fn line<const N: usize>(
        self,
        path: &str,
        dtype: &str,
        items: &[[u8; N]],
        attributes: &str,
    ) -> Self {
        let case = self.array(path, dtype, &[items.len() as u64], attributes);
        for (i, chunk) in items.chunks(3).enumerate() {
            let mut bytes = chunk.concat();
            bytes.resize(3 * N, 0);
            case.map.insert(&format!("{path}/{i}"), bytes);
        }
        case
    }

    fn value(self, key: &str, value: &str) -> Self {
        self.map.insert(key, value);
        self
    }

    fn describe(&self, path: &str) -> Described {
        describe(&self.map, &self.map.array(path)).unwrap()
    }
}

/// Returns little-endian doubles.
fn f8(values: &[f64]) -> Vec<[u8; 8]> {
    values.iter().map(|value| value.to_le_bytes()).collect()
}

/// Returns big-endian floats of four bytes.
fn f4(values: &[f32]) -> Vec<[u8; 4]> {
    values.iter().map(|value| value.to_be_bytes()).collect()
}

fn regular(first: f64, step: f64) -> Coordinates {
    Coordinates::Regular { first, step }
}

fn names(described: &Described) -> Vec<Option<&str>> {
    described
        .axes
        .iter()
        .map(|axis| axis.name.as_deref())
        .collect()
}

fn roles(described: &Described) -> Vec<Role> {
    described.axes.iter().map(|axis| axis.role).collect()
}

fn places(described: &Described) -> Vec<Coordinates> {
    described
        .axes
        .iter()
        .map(|axis| axis.coordinates.clone())
        .collect()
}
