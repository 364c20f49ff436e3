//! The place of a grid as GeoZarr's conventions `proj:` and `spatial:` state it
//! (<https://github.com/zarr-conventions/geo-proj>, <https://github.com/zarr-conventions/spatial>),
//! at the array, at its group or at its entry in the layout of a pyramid
//! (<https://github.com/zarr-conventions/multiscales>); and as STAC's projection extension does,
//! which products of EOPF contain.

use super::super::described::{Crs, DescribedAxis, Role};
use super::crs::StatedPlace;
use super::role::{Claim, Evidence};
use super::{attributes, crs};
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_base::key::Key;

/// Maximum number of levels of a pyramid that are looked at.
const MAX_LEVELS: usize = 64;

/// What attributes of an array and of the groups above it state of its place.
#[derive(Default)]
pub struct Georeference {
    /// The reference system.
    crs: Option<Crs>,
    /// The reference system of the product that contains the array.
    crs_of_product: Option<Crs>,
    /// The other arrays of the pyramid that has the array as a level.
    pub levels: Vec<Key>,
    /// The groups that state something.
    pub groups: Vec<Key>,
    /// The names of the dimensions along y and x.
    dimensions: Option<[String; 2]>,
    /// Statements about the extent, the most specific first.
    extents: Vec<Extent>,
}

/// A statement about the extent of a grid.
struct Extent {
    /// GDAL's geotransform.
    transform: Option<[f64; 6]>,
    /// The least x and y, and the largest.
    bounds: Option<[f64; 4]>,
    /// The numbers of rows and columns of the grid with this transform.
    shape: Option<Vec<f64>>,
    /// Whether x and y are those of centers of pixels, not of edges.
    is_of_nodes: bool,
    /// Whether the transform is that of another level of the pyramid.
    is_of_other_level: bool,
}

impl Georeference {
    /// Collects what is stated of the array at `key`, which has these attributes; `above` are the
    /// groups above it with theirs, nearest first.
    pub fn find(above: &[(Key, Object)], key: &Key, attributes: &Map<String, Value>) -> Self {
        let mut found = Georeference::default();
        found.add(attributes, false);
        for (group, of_group) in above {
            let Some(path) = key.relative_to(group) else {
                continue;
            };
            let layout = of_group.get("multiscales").and_then(|of| of.get("layout"));
            let entries = layout.and_then(Value::as_array).into_iter().flatten();
            let layout: Vec<&Value> = entries.take(MAX_LEVELS).collect();
            let assets: Vec<Option<Key>> = layout.iter().map(|level| asset(level)).collect();
            let own = assets.iter().position(|asset| {
                asset
                    .as_ref()
                    .is_some_and(|asset| *asset == path || *asset == path.parent())
            });
            let mut is_source = own.is_some();
            if let Some(own) = own {
                if let Some(level) = layout[own].as_object() {
                    found.add(level, false);
                }
                found.levels = levels(&assets, own, group, &path);
            }
            if *group == key.parent() || own.is_some() {
                // the transform of a pyramid is that of its first level
                let is_other_level = own.is_some_and(|own| own > 0);
                is_source |= found.add(of_group, is_other_level);
            }
            let product = of_group.get("stac_discovery").and_then(Value::as_object);
            let properties = product.and_then(|product| product.get("properties")?.as_object());
            if let Some(crs) = properties.and_then(reference_system)
                && found.crs_of_product.is_none()
            {
                is_source = true;
                found.crs_of_product = Some(crs);
            }
            if is_source {
                found.groups.push(group.clone());
            }
        }
        found
    }

    /// Adds what these attributes state. Returns whether they state anything.
    fn add(&mut self, attributes: &Map<String, Value>, is_of_other_level: bool) -> bool {
        let crs = reference_system(attributes);
        let names = either(attributes, "spatial:dimensions", "proj:spatial_dimensions");
        let dimensions = names
            .and_then(|names| attributes::texts(Some(names)))
            .and_then(|names| names.last_chunk::<2>().cloned());
        let extent = extent(attributes, is_of_other_level);
        let has_any = crs.is_some() || dimensions.is_some() || extent.is_some();
        if self.crs.is_none() {
            self.crs = crs;
        }
        if self.dimensions.is_none() {
            self.dimensions = dimensions;
        }
        self.extents.extend(extent);
        has_any
    }

    /// Claims the roles of the dimensions that are named as those of y and x.
    pub fn claim(&self, axes: &[DescribedAxis], claims: &mut [Claim]) {
        let Some([y, x]) = &self.dimensions else {
            return;
        };
        for (axis, claim) in axes.iter().zip(claims) {
            if axis.name.as_ref() == Some(y) {
                *claim = Some((Evidence::Axis, Role::Y));
            } else if axis.name.as_ref() == Some(x) {
                *claim = Some((Evidence::Axis, Role::X));
            }
        }
    }

    /// Returns what is stated of an array with these axes, whose roles are known.
    pub fn place(&self, axes: &[DescribedAxis]) -> StatedPlace {
        StatedPlace {
            crs: self.crs.clone(),
            crs_of_product: self.crs_of_product.clone(),
            transform: self.transform(axes),
        }
    }

    /// Returns GDAL's geotransform of an array with these axes.
    fn transform(&self, axes: &[DescribedAxis]) -> Option<[f64; 6]> {
        let rows = axes.iter().find(|axis| axis.role == Role::Y)?.len;
        let columns = axes.iter().find(|axis| axis.role == Role::X)?.len;
        self.extents
            .iter()
            .filter_map(|extent| extent.of_grid(rows, columns))
            .find(|transform| crs::is_transform(*transform))
    }
}

impl Extent {
    /// Returns GDAL's geotransform of a grid with so many rows and columns, if the statement is
    /// about such a grid.
    fn of_grid(&self, rows: u64, columns: u64) -> Option<[f64; 6]> {
        let is_of_grid = match &self.shape {
            Some(shape) => shape.as_slice() == [rows as f64, columns as f64],
            None => !self.is_of_other_level,
        };
        if let Some(transform) = self.transform.filter(|_| is_of_grid) {
            return Some(transform);
        }
        let [left, bottom, right, top] = self.bounds?;
        let nodes = if self.is_of_nodes { 1.0 } else { 0.0 };
        let dx = (right - left) / (columns as f64 - nodes);
        let dy = (bottom - top) / (rows as f64 - nodes);
        Some([
            left - nodes * dx / 2.0,
            dx,
            0.0,
            top - nodes * dy / 2.0,
            0.0,
            dy,
        ])
    }
}

/// Returns the statement about the extent.
fn extent(attributes: &Map<String, Value>, is_of_other_level: bool) -> Option<Extent> {
    let is_affine = attributes
        .get("spatial:transform_type")
        .is_none_or(|kind| json::text(kind) == Some("affine"));
    let transform = either(attributes, "spatial:transform", "proj:transform");
    let transform = attributes::numbers(transform.filter(|_| is_affine));
    let is_of_nodes = attributes.get("spatial:registration").and_then(json::text) == Some("node");
    // both conventions use the order of affine matrices: a b c d e f, perhaps with 0 0 1
    let transform = transform
        .and_then(|numbers| numbers.first_chunk::<6>().copied())
        .map(|[dx, row_dx, x, column_dy, dy, y]| {
            let half = if is_of_nodes { 0.5 } else { 0.0 };
            let x = x - half * (dx + row_dx);
            let y = y - half * (dy + column_dy);
            [x, dx, row_dx, y, column_dy, dy]
        });
    let bounds = attributes::numbers(either(attributes, "spatial:bbox", "proj:bbox"));
    let bounds = bounds.and_then(|numbers| numbers.try_into().ok());
    if transform.is_none() && bounds.is_none() {
        return None;
    }
    Some(Extent {
        transform,
        bounds,
        shape: attributes::numbers(either(attributes, "spatial:shape", "proj:shape")),
        is_of_nodes,
        is_of_other_level,
    })
}

/// Returns the first of two attributes that exists.
fn either<'a>(attributes: &'a Map<String, Value>, first: &str, second: &str) -> Option<&'a Value> {
    attributes.get(first).or_else(|| attributes.get(second))
}

/// Returns the reference system in all forms in which attributes have it.
fn reference_system(attributes: &Map<String, Value>) -> Option<Crs> {
    let code = attributes::line(attributes, "proj:code");
    let code = code.as_deref().and_then(|code| code.split_once(':'));
    let number = attributes.get("proj:epsg").and_then(attributes::integer);
    let coded = match (code, number) {
        (Some((authority, code)), _) => crs::of_code(authority, code),
        (None, Some(number)) => crs::of_code("EPSG", &number.to_string()),
        (None, None) => None,
    };
    crs::merged([
        crs::wkt(attributes, "proj:wkt2").map(crs::of_wkt),
        coded,
        attributes.get("proj:projjson").and_then(crs::of_projjson),
    ])
}

/// Returns the path of the array or group of an entry of a layout.
fn asset(level: &Value) -> Option<Key> {
    let path = level.get("asset").and_then(json::text)?;
    Key::normalize(path).ok().filter(|path| !path.is_root())
}

/// Returns the keys of the arrays of the other levels than `own`, which has the array at `path` of
/// the group.
fn levels(assets: &[Option<Key>], own: usize, group: &Key, path: &Key) -> Vec<Key> {
    let is_array = assets[own].as_ref() == Some(path);
    let others = assets.iter().enumerate().filter(|(i, _)| *i != own);
    others
        .filter_map(|(_, asset)| asset.as_ref())
        .map(|asset| {
            let level = group.join_key(asset);
            if is_array {
                level
            } else {
                level.join(path.name())
            }
        })
        .collect()
}
