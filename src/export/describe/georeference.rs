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
use zarrfs_store::Key;

/// Maximum number of levels of a pyramid that are looked at.
const MAX_LEVELS: usize = 64;

/// What attributes of an array and of the groups above it say of its place.
#[derive(Default)]
pub struct Georeference {
    /// The reference system.
    crs: Option<Crs>,
    /// The reference system of the product that contains the array.
    crs_of_product: Option<Crs>,
    /// The other arrays of the pyramid that has the array as a level.
    pub levels: Vec<Key>,
    /// The groups that say something.
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
    /// Collects what is said of the array at `key`, which has these attributes; `above` are the
    /// groups above it with theirs, nearest first.
    pub fn find(above: &[(Key, Object)], key: &Key, attributes: &Map<String, Value>) -> Self {
        let mut found = Georeference::default();
        found.add(attributes, false);
        for (group, of_group) in above {
            let Some(path) = key.relative_to(group) else {
                continue;
            };
            let layout = of_group.get("multiscales").and_then(|of| of.get("layout"));
            let layout = layout
                .and_then(Value::as_array)
                .map_or(&[][..], Vec::as_slice);
            let level = layout.iter().find(|level| is_level(level, &path));
            let mut has_said = false;
            if let Some(level) = level.and_then(Value::as_object) {
                has_said = true;
                found.add(level, false);
                found.levels = levels(layout, level, group, &path);
            }
            if *group == key.parent() || level.is_some() {
                let is_derived = level.is_some_and(|level| level.get("derived_from").is_some());
                has_said |= found.add(of_group, is_derived);
            }
            let product = of_group.get("stac_discovery");
            let product = product.and_then(|product| product.get("properties")?.as_object());
            if let Some(crs) = product.and_then(reference_system)
                && found.crs_of_product.is_none()
            {
                has_said = true;
                found.crs_of_product = Some(crs);
            }
            if has_said {
                found.groups.push(group.clone());
            }
        }
        found
    }

    /// Adds what these attributes say. Returns whether they say anything.
    fn add(&mut self, attributes: &Map<String, Value>, is_of_other_level: bool) -> bool {
        let crs = reference_system(attributes);
        let names = either(attributes, "spatial:dimensions", "proj:spatial_dimensions");
        let dimensions = names
            .and_then(|names| attributes::texts(Some(names)))
            .and_then(|names| names.last_chunk::<2>().cloned());
        let extent = extent(attributes, is_of_other_level);
        let says = crs.is_some() || dimensions.is_some() || extent.is_some();
        if self.crs.is_none() {
            self.crs = crs;
        }
        if self.dimensions.is_none() {
            self.dimensions = dimensions;
        }
        self.extents.extend(extent);
        says
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
        let found = self
            .extents
            .iter()
            .find_map(|extent| extent.of_grid(rows, columns));
        found.filter(|transform| crs::is_transform(*transform))
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

/// Returns whether an entry of a layout is the array at `path`, or the group that contains it.
fn is_level(level: &Value, path: &Key) -> bool {
    asset(level).is_some_and(|asset| asset == *path || asset == path.parent())
}

/// Returns the path of the array or group of an entry of a layout.
fn asset(level: &Value) -> Option<Key> {
    let path = level.get("asset").and_then(json::text)?;
    Key::normalize(path).ok().filter(|path| !path.is_root())
}

/// Returns the keys of the arrays of the other levels; `own` is the level of the array at `path`.
fn levels(layout: &[Value], own: &Map<String, Value>, group: &Key, path: &Key) -> Vec<Key> {
    let others = layout.iter().filter(|level| level.as_object() != Some(own));
    let is_array = own
        .get("asset")
        .and_then(json::text)
        .is_some_and(|asset| Key::normalize(asset).ok().as_ref() == Some(path));
    others
        .take(MAX_LEVELS)
        .filter_map(asset)
        .map(|asset| {
            let level = group.join_key(&asset);
            if is_array {
                level
            } else {
                level.join(path.name())
            }
        })
        .collect()
}
